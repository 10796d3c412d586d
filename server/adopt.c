/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See adopt.h.  Nobody else knows the arena yet, so no lock is held; its clients change their words and sheaves all the while.
 *
 * What the ledger says is checked where it is used as an index or a size; that its writer was slabd is what the descriptors' owner vouches for.
 */
#include "server/adopt.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/audit.h"
#include "server/cache.h"
#include "server/clock.h"
#include "server/grant.h"
#include "server/log.h"
#include "server/session.h"
#include "server/slabd.h"
#include "server/store.h"
#include "shm/segment.h"

/* An audit may find a client too quick for it. */
enum { AUDIT_TRIES = 4 };

struct adoption {
	struct arena *arena;
	struct store *store;
	unsigned number;
	char *why;
	size_t why_size;
};

/* The check that failed. */
__attribute__((format(printf, 2, 3))) static int
fail(const struct adoption *a, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(a->why, a->why_size, format, args);
	va_end(args);
	return -EBADMSG;
}

static int
take(const struct adoption *a, char kind, unsigned index)
{
	return store_take(a->store, store_name(a->number, kind, index).text);
}

/* A table, mapped for writing; its fd is taken over. */
static int
map_table(const struct adoption *a, char kind, const char *what, uint64_t bytes, int *fdp, int *fd_readonlyp, void **mapp)
{
	int r;

	*fdp = take(a, kind, 0);
	if (*fdp < 0)
		return fail(a, "%s: its descriptor is not in the store", what);
	r = segment_check(*fdp, bytes, SEGMENT_SEAL_SEAL);
	if (r < 0)
		return fail(a, "%s: it is not the sealed memory of %llu bytes that it was", what, (unsigned long long)bytes);
	r = segment_reopen_readonly(*fdp);
	if (r >= 0) {
		*fd_readonlyp = r;
		r = segment_map(*fdp, bytes, SEGMENT_MAP_WRITE | SEGMENT_MAP_NORESERVE, NULL, mapp);
	}
	if (r < 0)
		fail(a, "%s: %s", what, strerror(-r));
	return r;
}

static bool
has_sound_segments(const struct ledger_head *head)
{
	uint64_t end = 0, n_units = 0;

	for (uint32_t i = 0; i < head->n_segments; i++) {
		const struct ledger_segment *s = &head->segments[i];

		if (s->first_page < end || s->n_pages == 0 || s->node >= head->n_nodes || s->kind > LAYOUT_PAGES_1G || s->unit_order > PAGES_MAX_ORDER ||
			(s->n_pages | s->first_page) & ((1u << s->unit_order) - 1))
			return false;
		end = (uint64_t)s->first_page + s->n_pages;
		n_units += s->n_pages >> s->unit_order;
	}
	return end == head->n_pages && end <= LAYOUT_MAX_PAGES && n_units == head->n_units;
}

/* What the ledger says of itself.  bytes: that its memory has. */
static int
check_head(const struct adoption *a, const struct ledger_head *head, uint64_t bytes)
{
	if (head->magic != LEDGER_MAGIC)
		return fail(a, "ledger: it does not begin as one");
	if (head->layout_hash != layout_hash || head->ledger_hash != ledger_hash || head->layout_version != LAYOUT_VERSION)
		return fail(a, "layout: the ledger is of layout %016llx, ledger %016llx, version %u (%.*s); this slabd is of layout %016llx, ledger %016llx, "
			       "version %u (slabd %s)",
			(unsigned long long)head->layout_hash, (unsigned long long)head->ledger_hash, head->layout_version, (int)sizeof head->server,
			head->server, (unsigned long long)layout_hash, (unsigned long long)ledger_hash, LAYOUT_VERSION, SLABD_VERSION);
	if (head->ledger_bytes != bytes || head->words_bytes == 0 || head->words_bytes > (UINT32_MAX + 1ull) * sizeof(uint32_t) ||
		ledger_bytes(head->n_units, head->max_slabs, head->words_bytes / sizeof(uint32_t)) != bytes)
		return fail(a, "ledger: its size is %llu, and by its counts it is another", (unsigned long long)bytes);
	if (!head->name[0] || !memchr(head->name, '\0', sizeof head->name))
		return fail(a, "ledger: the arena's name");
	if (head->n_segments == 0 || head->n_segments > LAYOUT_MAX_SEGMENTS || head->n_nodes == 0 || head->n_nodes > LAYOUT_MAX_NODES ||
		!has_sound_segments(head))
		return fail(a, "ledger: the table of data segments");
	if (head->n_slabs > head->max_slabs || head->n_clients > LAYOUT_MAX_CLIENTS + 1 || head->n_seeded > head->words_bytes / sizeof(uint32_t) ||
		head->last_cache >= LAYOUT_MAX_CACHES)
		return fail(a, "ledger: a count is above its limit");
	if (head->arena_bytes < LAYOUT_ARENA_PAGES_OFF + (uint64_t)head->n_pages * sizeof(struct layout_page))
		return fail(a, "ledger: the arena segment's size");
	return 0;
}

/* The ledger, and an arena of the options that it names. */
static int
open_ledger(struct adoption *a)
{
	struct arena_options options = {.name = ""};
	const struct ledger_head *head;
	struct stat st;
	void *map = NULL;
	int fd = take(a, STORE_LEDGER, 0), r;

	if (fd < 0)
		return fail(a, "ledger: its descriptor is not in the store");
	if (fstat(fd, &st) < 0 || (uint64_t)st.st_size < sizeof *head || segment_check(fd, (uint64_t)st.st_size, SEGMENT_SEAL_SEAL) < 0)
		r = fail(a, "ledger: it is no sealed memory of slabd's");
	else
		r = segment_map(fd, (uint64_t)st.st_size, SEGMENT_MAP_WRITE | SEGMENT_MAP_NORESERVE, NULL, &map);
	head = map;
	if (r == 0)
		r = check_head(a, head, (uint64_t)st.st_size);
	if (r == 0) {
		options = (struct arena_options){
			.name = head->name,
			.limit_bytes = head->limit_bytes,
			.reserve_bytes = head->reserve_bytes,
			.page_kind = head->page_kind,
			.profile = (enum arena_profile)head->profile,
		};
		access_init(&options.access);
		r = arena_begin(&a->arena, &options, a->why, a->why_size);
	}
	if (r < 0) {
		if (map)
			segment_unmap(map, (uint64_t)st.st_size);
		close(fd);
		return r;
	}
	a->arena->ledger = map;
	a->arena->ledger_fd = fd;
	a->arena->ledger_bytes = (uint64_t)st.st_size;
	return 0;
}

static int
open_tables(struct adoption *a)
{
	struct arena *arena = a->arena;
	const struct ledger_head *head = arena->ledger;
	void *map = NULL;
	int r;

	arena->bytes = head->arena_bytes;
	r = map_table(a, STORE_ARENA, "arena segment", head->arena_bytes, &arena->fd, &arena->fd_readonly, &map);
	if (r < 0)
		return r;
	arena->head = map;
	arena->shown = (struct layout_cache *)((char *)map + LAYOUT_ARENA_CACHES_OFF);
	arena->page_map = (struct layout_page *)((char *)map + LAYOUT_ARENA_PAGES_OFF);
	arena->words_bytes = head->words_bytes;
	map = NULL;
	r = map_table(a, STORE_WORDS, "word table", head->words_bytes, &arena->words_fd, &arena->words_fd_readonly, &map);
	if (r < 0)
		return r;
	arena->words = map;
	if (arena->head->hash != layout_hash || arena->head->n_pages != head->n_pages || arena->head->n_segments != head->n_segments)
		return fail(a, "arena segment: it is not the ledger's");
	return 0;
}

static int
open_segments(struct adoption *a)
{
	struct arena *arena = a->arena;
	const struct ledger_head *head = arena->ledger;

	if (head->n_nodes != arena->topology.n_nodes)
		return fail(a, "nodes: the machine had %u NUMA nodes and has %u", head->n_nodes, arena->topology.n_nodes);
	for (uint32_t i = 0; i < head->n_segments; i++) {
		const struct ledger_segment *s = &head->segments[i];
		int fd = take(a, STORE_DATA, i), r;

		if (fd < 0)
			return fail(a, "data segment %u: its descriptor is not in the store", i);
		if (s->os_node != arena->topology.os_node[s->node])
			r = fail(a, "nodes: node %u had the number %u and has %u", s->node, s->os_node, arena->topology.os_node[s->node]);
		else
			r = segment_check(fd, (uint64_t)s->n_pages * LAYOUT_PAGE_BYTES, SEGMENT_SEAL_SEAL) < 0
				    ? fail(a, "data segment %u: it is not the sealed memory of %u pages that it was", i, s->n_pages)
				    : 0;
		if (r < 0) {
			close(fd);
			return r;
		}
		r = arena_add_segment(arena, s, fd);
		if (r < 0) {
			fail(a, "data segment %u: %s", i, strerror(-r));
			return r;
		}
	}
	return 0;
}

/* Caches, units, slabs and roots: all within bounds, nothing twice.  The allocators know then what is in use. */
static int
verify(struct adoption *a)
{
	struct arena *arena = a->arena;
	char what[200];
	int r = words_init(&arena->words_runs, arena->words_bytes / sizeof(uint32_t));

	if (r < 0)
		return r;
	for (uint32_t id = 1; id < LAYOUT_MAX_CACHES && r == 0; id++)
		r = cache_adopt(arena, id, what, sizeof what);
	if (r < 0) {
		fail(a, "caches: %s", what);
		return r;
	}
	for (unsigned i = 0; i < arena->n_segments; i++)
		if (arena_adopt_units(&arena->segments[i]) < 0)
			return fail(a, "units: data segment %u has one in a state that there is not", i);
	for (uint32_t number = 1; number <= arena->n_slabs && r == 0; number++)
		r = slab_verify(arena, number, what, sizeof what);
	if (r < 0) {
		fail(a, "slabs: %s", what);
		return r;
	}
	r = roots_adopt(&arena->roots);
	if (r < 0)
		fail(a, "roots: the table of %u", arena->ledger->n_roots);
	return r;
}

/* The pidfd, and the segment (-1 in a read-only session), which the store has under one name in no order. */
static int
take_session(const struct adoption *a, uint32_t client, int *pidfdp, int *fdp)
{
	*pidfdp = *fdp = -1;
	for (int i = 0; i < (a->arena->clients[client].is_readonly ? 1 : 2); i++) {
		int fd = take(a, STORE_SESSION, client), *whichp = fd >= 0 && fcntl(fd, F_GET_SEALS) >= 0 ? fdp : pidfdp;

		if (fd >= 0 && *whichp >= 0)
			close(*whichp);
		*whichp = fd >= 0 ? fd : *whichp;
	}
	if (*pidfdp >= 0 && (*fdp >= 0) != (a->arena->clients[client].is_readonly != 0))
		return 0;
	if (*pidfdp >= 0)
		close(*pidfdp);
	if (*fdp >= 0)
		close(*fdp);
	return fail(a, "sessions: the descriptors of client %u are not in the store", client);
}

static int
adopt_sessions(struct adoption *a)
{
	struct arena *arena = a->arena;
	char what[200];

	for (uint32_t client = 1; client < arena->ledger->n_clients; client++) {
		const struct ledger_client *kept = &arena->clients[client];
		struct session *session;
		int pidfd, fd, r;

		arena->n_named += arena->named[client] != 0;
		if (kept->state == LEDGER_CLIENT_NONE)
			continue;
		if (kept->state > LEDGER_CLIENT_DYING || kept->is_readonly > 1)
			return fail(a, "sessions: client %u is in a state that there is not", client);
		r = take_session(a, client, &pidfd, &fd);
		if (r < 0)
			return r;
		r = session_adopt(&session, arena, client, fd, what, sizeof what);
		if (r < 0) {
			close(pidfd);
			fail(a, "sessions: %s", what);
			return r;
		}
		session->pidfd = pidfd;
	}
	return 0;
}

/* What was half done is undone, or done. */
static void
finish(struct arena *arena)
{
	ledger_sign(arena->ledger);
	for (unsigned i = 0; i < arena->n_segments; i++)
		arena_adopt_finish(&arena->segments[i]);
	for (uint32_t number = 1; number <= arena->n_slabs; number++)
		slab_adopt(arena, number);
	for (unsigned i = 0; i < arena->n_segments; i++) {
		const struct arena_segment *s = &arena->segments[i];

		for (uint32_t unit = 0; unit < s->n_pages >> s->unit_order; unit++)
			if (s->units[unit] != LEDGER_UNIT_ABSENT)
				slab_sweep_map(arena, s->first_page + (unit << s->unit_order), 1u << s->unit_order);
	}
}

/* What the dead one had in its hands of the session. */
static void
finish_session(struct session *session)
{
	for (uint32_t slot = 0; slot < session->n_slots; slot++) {
		struct session_slot *own = &session->slots[slot];
		struct layout_slot *shown = &session_slots(session)[slot];
		uint32_t holder = atomic_read_acquire(&shown->holder);
		struct sheaf *sheaf;

		if (!own->cache)
			continue;
		sheaf = session_sheaf(session, slot);
		if (holder == LAYOUT_HOLDER_SLABD) {
			own->is_lent = false;
			grant_take_back(session, slot, false);
			session_slot_put(session, slot);
			continue;
		}
		own->is_lent = true;
		/* A revocation that was carried out is finished; one that was not is withdrawn (tests/model/recall.pml): the owner goes on. */
		if (holder == LAYOUT_HOLDER_RECALLED) {
			grant_take_back(session, slot, false);
		} else if (holder >= LAYOUT_HOLDER_THREAD && atomic_read(&sheaf->floor) == SHEAF_REVOKED) {
			atomic_write(&sheaf->limit, own->capacity);
			atomic_write_release(&sheaf->floor, 0);
		}
	}
}

static void
count_opener(struct session *session, struct cache *cache)
{
	if (session_has_open(session, cache->id))
		atomic_add(&cache->n_openers, 1);
}

static void
finish_sessions(struct arena *arena)
{
	for (struct session *s = arena->first_session; s; s = s->next) {
		for (struct cache *cache = arena_cache_after(arena, 0); cache; cache = arena_cache_after(arena, cache->id))
			count_opener(s, cache);
		if (s->map)
			finish_session(s);
	}
}

/* In a cache without owner words what no session has drawn was drawn by the dead, or lost with slabd. */
static void
count_left(struct cache *cache)
{
	struct arena *arena = cache->arena;
	int64_t n = 0;

	for (unsigned i = 0; i < cache->n_nodes; i++)
		n += (int64_t)(cache->nodes[i].n_objects - cache->nodes[i].n_free);
	for (struct session *s = arena->first_session; s; s = s->next)
		n -= s->n_drawn[cache->id];
	cache->n_dead_drawn = n > 0 ? n : 0;
}

/* Caches as their knobs have them. */
static void
settle_caches(struct arena *arena)
{
	for (struct cache *cache = arena_cache_after(arena, 0); cache; cache = arena_cache_after(arena, cache->id)) {
		if (cache->flags & LAYOUT_CACHE_NO_OWNER)
			count_left(cache);
		for (unsigned i = 0; i < cache->n_nodes; i++)
			node_trim_to(arena, &cache->nodes[i], 0, cache->n_openers ? cache->min_partial : 0);
	}
}

/* What the dead one had in its hands, or set aside, and also what a wrong client dropped: nobody can tell. */
static void
tell_back(struct cache *cache, const struct audit_back *back)
{
	log_info("arena '%s', cache '%s': %llu objects, %llu bytes, lay in no sheaf and nobody had them: they are taken back", cache->arena->name,
		cache->name, (unsigned long long)back->n, (unsigned long long)back->bytes);
}

static int
take_back_lost(struct adoption *a, uint64_t *n_backp)
{
	struct audit audit = {0};
	uint64_t first_doubled = 0;

	*n_backp = 0;
	for (int i = 0; i < AUDIT_TRIES && (i == 0 || audit.n_undecided); i++) {
		int r = audit_take_back(a->arena, tell_back, &audit);

		if (r < 0) {
			fail(a, "audit: %s", strerror(-r));
			return r;
		}
		*n_backp += audit.n_repaired;
		first_doubled = audit.first_doubled;
	}
	if (audit.n_doubled)
		log_error("arena '%s': %llu objects are in two places, the first at place %llu: some client wrote where it should not",
			a->arena->name, (unsigned long long)audit.n_doubled, (unsigned long long)first_doubled - 1);
	if (audit.n_undecided)
		log_warning("arena '%s': of %llu objects it cannot be said that they are lost", a->arena->name, (unsigned long long)audit.n_undecided);
	return 0;
}

/* Looks at everything, and changes nothing that clients or another adopter would see. */
static int
look(struct adoption *a)
{
	struct arena *arena = a->arena;
	int r = open_tables(a);

	if (r == 0)
		r = open_segments(a);
	if (r < 0)
		return r;
	ledger_point(arena);
	arena_point_units(arena);
	arena->n_slabs = arena->ledger->n_slabs;
	arena->max_slabs = arena->ledger->max_slabs;
	r = verify(a);
	return r == 0 ? adopt_sessions(a) : r;
}

void
adopt_leave(struct arena *arena)
{
	int pidfd;

	if (!arena)
		return;
	while (adopt_next_session(arena, &pidfd))
		close(pidfd);
	while (arena->first_session)
		session_leave(arena->first_session);
	arena_free(arena);
}

int
adopt_arena(struct arena **arenap, struct store *store, unsigned number, char *why, size_t why_size)
{
	struct adoption a = {.store = store, .number = number, .why = why, .why_size = why_size};
	int r;

	*arenap = NULL;
	/* The ledger was the last to be kept: nobody can have attached to the arena. */
	if (!store_has_left(store, number, STORE_LEDGER) && !store_has_left(store, number, STORE_SESSION)) {
		store_drop_left(store, number, 0);
		return 0;
	}
	r = open_ledger(&a);
	if (r == 0)
		r = look(&a);
	if (r < 0) {
		adopt_leave(a.arena);
		return r;
	}
	*arenap = a.arena;
	return 0;
}

int
adopt_carry_out(struct arena *arena, struct store *store, unsigned number, uint64_t start_ns)
{
	char why[256] = "";
	struct adoption a = {.arena = arena, .store = store, .number = number, .why = why, .why_size = sizeof why};
	uint32_t writer = arena->ledger->writer;
	uint64_t n_back;
	int r;

	arena->store = store;
	arena->store_number = number;
	finish(arena);
	finish_sessions(arena);
	/* Clients wait: what is committed from here on becomes transparent huge pages later. */
	arena->is_made = true;
	/* Short of memory it serves on with what is there. */
	if (arena_commit_reserve(arena, why, sizeof why) < 0)
		log_warning("arena '%s': %s", arena->name, why);
	r = take_back_lost(&a, &n_back);
	if (r < 0)
		return r;
	settle_caches(arena);
	store_drop_left(store, number, STORE_SESSION);
	log_notice("arena '%s' adopted from slabd %u: %u caches, %u sessions, %llu bytes, %llu objects taken back that were under way, in %llu us",
		arena->name, writer, arena->n_caches, arena->n_sessions, (unsigned long long)arena->committed_bytes, (unsigned long long)n_back,
		(unsigned long long)(clock_now_ns() - start_ns) / 1000);
	return 0;
}

int
adopt_keep_arena(struct arena *arena, struct store *store, unsigned number)
{
	const struct {
		char kind;
		int fd;
	} tables[] = {{STORE_ARENA, arena->fd}, {STORE_WORDS, arena->words_fd}, {STORE_LEDGER, arena->ledger_fd}};
	int r = 0;

	for (unsigned i = 0; i < arena->n_segments && r == 0; i++)
		r = store_keep(store, store_name(number, STORE_DATA, i).text, &arena->segments[i].fd, 1);
	/* The ledger last: who finds it finds the rest. */
	for (unsigned i = 0; i < sizeof tables / sizeof tables[0] && r == 0; i++)
		r = store_keep(store, store_name(number, tables[i].kind, 0).text, &tables[i].fd, 1);
	if (r < 0)
		return r;
	arena->store = store;
	arena->store_number = number;
	return 0;
}

struct session *
adopt_next_session(struct arena *arena, int *pidfdp)
{
	for (struct session *s = arena->first_session; s; s = s->next) {
		if (s->pidfd < 0)
			continue;
		*pidfdp = s->pidfd;
		s->pidfd = -1;
		return s;
	}
	return NULL;
}
