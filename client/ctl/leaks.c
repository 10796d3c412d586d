/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leaks: who holds how much, by client, cache and call site.
 *
 * Slabd reads no object, so slabctl looks for itself: it attaches as a client that may only read, walks the page map for the starts of objects, reads
 * each word for its holder, and in a debug cache the record behind the object for where it was allocated.  Records are read with pread(), which
 * neither commits memory behind slabd nor faults where it took some back.  All goes on meanwhile: an object counts if its word is the same after its
 * record was read as before.
 *
 * Any client of the arena can write records: they are copied, and their strings are printed as all others are.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/ctl/command.h"
#include "client/slabclient.h"
#include "shm/atomic.h"
#include "shm/debug.h"
#include "shm/word.h"

enum { N_META = 3 }; /* descriptors before those of the data segments */

/* Objects of a kind. */
struct leak {
	uint32_t cache;
	uint32_t owner; /* client slot */
	char site[LAYOUT_SITE_BYTES];
	uint64_t n;
	uint64_t bytes;
};

struct leaks {
	int fds[PROTO_MAX_FDS];
	const struct layout_arena *arena;
	const struct layout_cache *caches;
	const struct layout_page *pages;
	const uint32_t *words;
	uint64_t n_words;
	uint32_t only; /* cache id; 0: all */
	struct leak *leaks;
	size_t n_leaks, max_leaks;
	uint32_t *table; /* by hash: index + 1; max_leaks * 2 of them */
	struct proto_clients_reply *clients[LAYOUT_MAX_CLIENTS + 2];
};

static void
no_memory(void)
{
	ask_die(ASK_EXIT_SLABD, "no memory for the list");
}

/* What slabd shows */

static const void *
map_segment(const struct ask *ask, int fd, uint64_t least, uint64_t *bytesp)
{
	struct stat st;
	void *map;

	if (fstat(fd, &st) < 0 || (uint64_t)st.st_size < least)
		ask_die(ASK_EXIT_SLABD, "slabd at %s shows a segment that cannot be", ask->socket);
	map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		no_memory();
	*bytesp = (uint64_t)st.st_size;
	return map;
}

static void
attach(struct ask *ask, struct leaks *l)
{
	union proto_request request = {0};
	unsigned n_fds = PROTO_MAX_FDS;
	union proto_reply reply;
	uint64_t arena_bytes, words_bytes;
	const char *map;

	ask_call(ask, PROTO_OP_STATUS, &request, &reply);
	request = (union proto_request){.attach = {.flags = SLABC_RDONLY, .nonce = ask->nonce, .label = "slabctl leaks"}};
	memcpy(request.attach.arena, reply.status.arena, sizeof(request.attach.arena));
	ask_call_fds(ask, PROTO_OP_ATTACH, &request, &reply, l->fds, &n_fds);
	if (n_fds != N_META + reply.attach.n_segments)
		ask_die(ASK_EXIT_SLABD, "slabd at %s shows %u descriptors for %u segments", ask->socket, n_fds, reply.attach.n_segments);
	map = map_segment(ask, l->fds[0], LAYOUT_ARENA_PAGES_OFF, &arena_bytes);
	l->arena = (const struct layout_arena *)(const void *)map;
	l->caches = (const struct layout_cache *)(const void *)(map + LAYOUT_ARENA_CACHES_OFF);
	l->pages = (const struct layout_page *)(const void *)(map + LAYOUT_ARENA_PAGES_OFF);
	l->n_words = l->arena->n_words;
	l->words = map_segment(ask, l->fds[1], l->n_words * sizeof(uint32_t), &words_bytes);
	if (l->arena->hash != layout_hash || l->arena->n_segments != reply.attach.n_segments ||
		LAYOUT_ARENA_PAGES_OFF + (uint64_t)l->arena->n_pages * sizeof(struct layout_page) > arena_bytes)
		ask_die(ASK_EXIT_SLABD, "slabd at %s shows an arena that cannot be", ask->socket);
}

static void
list_clients(struct ask *ask, struct leaks *l)
{
	union proto_request request = {0};
	union proto_reply reply;

	while (ask_next(ask, PROTO_OP_CLIENTS, &request, &reply)) {
		struct proto_clients_reply **clientp = &l->clients[reply.clients.client];

		*clientp = malloc(sizeof(**clientp));
		if (!*clientp)
			no_memory();
		**clientp = reply.clients;
	}
}

/* Counting */

static uint64_t
hash(uint32_t cache, uint32_t owner, const char *site)
{
	uint64_t h = (uint64_t)cache << 32 | owner;

	for (; *site; site++)
		h = (h ^ (unsigned char)*site) * UINT64_C(0x100000001b3);
	return h ^ h >> 29;
}

static uint32_t *
find_slot(struct leaks *l, uint32_t cache, uint32_t owner, const char *site)
{
	size_t mask = l->max_leaks * 2 - 1, i = hash(cache, owner, site) & mask;

	for (;; i = (i + 1) & mask) {
		const struct leak *leak;

		if (l->table[i] == 0)
			return &l->table[i];
		leak = &l->leaks[l->table[i] - 1];
		if (leak->cache == cache && leak->owner == owner && strcmp(leak->site, site) == 0)
			return &l->table[i];
	}
}

static void
grow(struct leaks *l)
{
	size_t max = l->max_leaks ? l->max_leaks * 2 : 1024;

	l->leaks = reallocarray(l->leaks, max, sizeof(*l->leaks));
	free(l->table);
	l->table = calloc(max * 2, sizeof(*l->table));
	if (!l->leaks || !l->table || max > UINT32_MAX)
		no_memory();
	l->max_leaks = max;
	for (size_t i = 0; i < l->n_leaks; i++)
		*find_slot(l, l->leaks[i].cache, l->leaks[i].owner, l->leaks[i].site) = (uint32_t)i + 1;
}

static void
count(struct leaks *l, uint32_t cache, uint32_t owner, const char *site, uint64_t bytes)
{
	uint32_t *slot;

	if (l->n_leaks == l->max_leaks)
		grow(l);
	slot = find_slot(l, cache, owner, site);
	if (*slot == 0) {
		struct leak *leak = &l->leaks[l->n_leaks++];

		*leak = (struct leak){.cache = cache, .owner = owner};
		snprintf(leak->site, sizeof(leak->site), "%s", site);
		*slot = (uint32_t)l->n_leaks;
	}
	l->leaks[*slot - 1].n++;
	l->leaks[*slot - 1].bytes += bytes;
}

/* Where the object of a debug cache was allocated; "?": its record does not say. */
static void
read_site(const struct leaks *l, uint32_t page, uint32_t off, uint32_t cache, char *site)
{
	const struct layout_cache *k = &l->caches[cache];
	uint32_t object_bytes = atomic_read(&k->object_bytes), i = 0, place = page << LAYOUT_PLACE_PAGE_SHIFT | off >> LAYOUT_PLACE_SHIFT;
	const struct layout_segment *segments = l->arena->segments;
	struct layout_record record;
	off_t at;

	strcpy(site, "?");
	while (i < l->arena->n_segments && page - segments[i].first_page >= segments[i].n_pages)
		i++;
	if (i == l->arena->n_segments)
		return;
	at = (off_t)(page - segments[i].first_page) * LAYOUT_PAGE_BYTES + off + debug_record_off(object_bytes, k->flags);
	if (pread(l->fds[N_META + i], &record, sizeof(record), at) != (ssize_t)sizeof(record) ||
		record.seal >> 1 != debug_seal(place, cache, object_bytes, l->pages[page].incarnation, false) >> 1)
		return;
	record.allocated.site[LAYOUT_SITE_BYTES - 1] = '\0';
	if (*record.allocated.site)
		memcpy(site, record.allocated.site, LAYOUT_SITE_BYTES);
}

/* Bytes of the run whose first page this is. */
static uint64_t
run_bytes(const struct leaks *l, uint32_t page)
{
	const struct layout_page *p = &l->pages[page];

	if (page + 1 >= l->arena->n_pages || atomic_read(&p[1].cache) != atomic_read(&p[0].cache) || p[1].prod >> 32 != p[0].prod >> 32)
		return LAYOUT_PAGE_BYTES;
	return (uint64_t)(uint32_t)p[1].prod * LAYOUT_PAGE_BYTES;
}

/* The object that starts there. */
static void
look_at_object(struct leaks *l, uint32_t page, uint32_t off, uint32_t cache, const uint32_t *word)
{
	const struct layout_cache *k = &l->caches[cache];
	uint32_t w = atomic_read(word), flags = atomic_read(&k->flags);
	char site[LAYOUT_SITE_BYTES] = "-";

	if (word_owner(w) == 0)
		return;
	if (flags & LAYOUT_CACHE_USER)
		read_site(l, page, off, cache, site);
	if (atomic_read(word) == w)
		count(l, cache, word_owner(w), site, flags & LAYOUT_CACHE_RUNS ? run_bytes(l, page) : atomic_read(&k->object_bytes));
}

static void
look_at_page(struct leaks *l, uint32_t page)
{
	/* order: PAGE_MAP acquire - a cache that a page names is described */
	uint32_t cache = atomic_read_acquire(&l->pages[page].cache), recip;
	uint64_t prod = atomic_read(&l->pages[page].prod);

	if (cache == 0 || cache >= LAYOUT_MAX_CACHES || (l->only && cache != l->only) || l->caches[cache].flags & LAYOUT_CACHE_NO_OWNER)
		return;
	recip = atomic_read(&l->caches[cache].recip);
	for (uint32_t off = 0; off < LAYOUT_PAGE_BYTES; off += 1u << LAYOUT_PLACE_SHIFT) {
		uint64_t x = (uint64_t)off * recip + prod;

		if ((uint32_t)x < recip && x >> 32 < l->n_words)
			look_at_object(l, page, off, cache, &l->words[x >> 32]);
	}
}

/* Printing */

static int
by_bytes(const void *a, const void *b)
{
	const struct leak *p = a, *q = b;

	return p->bytes != q->bytes ? (p->bytes < q->bytes) - (p->bytes > q->bytes) : strcmp(p->site, q->site);
}

static void
add_leak(const struct leaks *l, struct table *table, const struct leak *leak)
{
	static const struct proto_clients_reply nobody = {.state = "dead"};
	const struct proto_clients_reply *client = l->clients[leak->owner] ? l->clients[leak->owner] : &nobody;
	char name[sizeof(l->caches[0].name)];

	memcpy(name, l->caches[leak->cache].name, sizeof(name));
	name[sizeof(name) - 1] = '\0';
	if (table_add_number(table, leak->bytes) < 0 || table_add_number(table, leak->n) < 0 || table_add_string(table, name) < 0 ||
		table_add_number(table, client->client_id) < 0 || table_add_number(table, client->pid) < 0 ||
		table_add_string(table, client->label) < 0 || table_add_string(table, client->state) < 0 || table_add_string(table, leak->site) < 0)
		no_memory();
}

int
command_leaks(struct ctl *ctl)
{
	static const struct table_column columns[] = {
		{"bytes", "bytes", false},
		{"n", "objects", false},
		{"cache", "cache", true},
		{"client_id", "client", false},
		{"pid", "pid", false},
		{"label", "label", true},
		{"state", "state", true},
		{"site", "site", true},
	};
	static struct leaks l;
	struct table *table = table_new(columns, sizeof(columns) / sizeof(columns[0]));

	if (!table)
		no_memory();
	ask_open(&ctl->ask);
	if (ctl->n_args > 0)
		l.only = ask_find_cache(&ctl->ask, ctl->args[0]);
	attach(&ctl->ask, &l);
	for (uint32_t page = 0; page < l.arena->n_pages; page++)
		look_at_page(&l, page);
	/* After the walk: who came meanwhile is named too. */
	list_clients(&ctl->ask, &l);
	if (l.n_leaks > 0)
		qsort(l.leaks, l.n_leaks, sizeof(*l.leaks), by_bytes);
	for (size_t i = 0; i < l.n_leaks; i++)
		add_leak(&l, table, &l.leaks[i]);
	table_print_rows(table, ctl->form, stdout);
	table_free(table);
	return EXIT_SUCCESS;
}
