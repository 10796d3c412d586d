/* SPDX-License-Identifier: Apache-2.0 */
#include "server/ledger.h"

#include <stdio.h>
#include <unistd.h>

#include "server/arena.h"
#include "server/slabd.h"
#include "shm/segment.h"

/* Where the parts lie; each begins on a page. */
struct parts {
	uint64_t caches;
	uint64_t clients;
	uint64_t incarnations;
	uint64_t named;
	uint64_t dead;
	uint64_t roots;
	uint64_t units;
	uint64_t slabs;
	uint64_t bits;
	uint64_t drawn;
	uint64_t slots;
	uint64_t end;
};

enum { N_CLIENTS = LAYOUT_MAX_CLIENTS + 1, DRAWN_BYTES = LAYOUT_MAX_CACHES * sizeof(int64_t) };

#define SLOTS_BYTES ((uint64_t)LAYOUT_MAX_SLOTS * sizeof(struct session_slot))

_Static_assert(DRAWN_BYTES % LAYOUT_PAGE_BYTES == 0 && SLOTS_BYTES % LAYOUT_PAGE_BYTES == 0, "what goes with a session is whole pages");

/* The next part's place, after one of so many bytes. */
static uint64_t
add(uint64_t *endp, uint64_t bytes)
{
	uint64_t off = *endp;

	*endp = (off + bytes + LAYOUT_PAGE_BYTES - 1) & ~(uint64_t)(LAYOUT_PAGE_BYTES - 1);
	return off;
}

static struct parts
parts_of(uint32_t n_units, uint32_t max_slabs, uint64_t n_words)
{
	struct parts p;
	uint64_t end = 0;

	add(&end, sizeof(struct ledger_head));
	p.caches = add(&end, LAYOUT_MAX_CACHES * sizeof(struct ledger_cache));
	p.clients = add(&end, N_CLIENTS * sizeof(struct ledger_client));
	p.incarnations = add(&end, N_CLIENTS * sizeof(uint32_t));
	p.named = add(&end, N_CLIENTS);
	p.dead = add(&end, N_CLIENTS * sizeof(struct session_dead));
	p.roots = add(&end, ROOT_MAX * sizeof(struct root));
	p.units = add(&end, n_units);
	p.slabs = add(&end, ((uint64_t)max_slabs + 1) * sizeof(struct slab));
	p.bits = add(&end, n_words / 4);
	p.drawn = add(&end, (uint64_t)N_CLIENTS * DRAWN_BYTES);
	p.slots = add(&end, N_CLIENTS * SLOTS_BYTES);
	p.end = end;
	return p;
}

static struct parts
parts_of_arena(const struct arena *arena)
{
	return parts_of(arena->ledger->n_units, arena->ledger->max_slabs, arena->words_bytes / sizeof(uint32_t));
}

void
ledger_sign(struct ledger_head *head)
{
	head->writer = (uint32_t)getpid();
	snprintf(head->server, sizeof head->server, "slabd %s", SLABD_VERSION);
}

uint64_t
ledger_caches_off(void)
{
	return parts_of(0, 0, 0).caches;
}

uint64_t
ledger_clients_off(void)
{
	return parts_of(0, 0, 0).clients;
}

uint64_t
ledger_bytes(uint32_t n_units, uint32_t max_slabs, uint64_t n_words)
{
	return parts_of(n_units, max_slabs, n_words).end;
}

void
ledger_point(struct arena *arena)
{
	struct parts p = parts_of_arena(arena);
	char *map = (char *)arena->ledger;

	arena->ledger_caches = (struct ledger_cache *)(map + p.caches);
	arena->clients = (struct ledger_client *)(map + p.clients);
	arena->incarnations = (uint32_t *)(map + p.incarnations);
	arena->named = (uint8_t *)(map + p.named);
	arena->dead = (struct session_dead *)(map + p.dead);
	arena->units = (uint8_t *)(map + p.units);
	arena->slabs = (struct slab *)(map + p.slabs);
	arena->bits = (uint32_t *)(map + p.bits);
	roots_init(&arena->roots, (struct root *)(map + p.roots), &arena->ledger->n_roots);
}

struct session_slot *
ledger_slots(const struct arena *arena, uint32_t client)
{
	return (struct session_slot *)((char *)arena->ledger + parts_of_arena(arena).slots + client * SLOTS_BYTES);
}

int64_t *
ledger_drawn(const struct arena *arena, uint32_t client)
{
	return (int64_t *)((char *)arena->ledger + parts_of_arena(arena).drawn + (uint64_t)client * DRAWN_BYTES);
}

int
ledger_clear_session(const struct arena *arena, uint32_t client)
{
	struct parts p = parts_of_arena(arena);
	struct segment_extent slots = {.fd = arena->ledger_fd, .off = p.slots + client * SLOTS_BYTES, .bytes = SLOTS_BYTES};
	struct segment_extent drawn = {.fd = arena->ledger_fd, .off = p.drawn + (uint64_t)client * DRAWN_BYTES, .bytes = DRAWN_BYTES};
	int r = segment_give_back(&slots);

	return r < 0 ? r : segment_give_back(&drawn);
}
