/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/recount.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/arena.h"
#include "shm/sheaf.h"
#include "shm/word.h"

enum { N_OWNERS = WORD_ORPHAN + 1, MAX_SESSIONS = 256 };

struct recount {
	pid_t slabd;
	struct arena arena;               /* only what ledger_point() makes of a ledger, and the maps below */
	uint8_t *in_sheaves, *is_strange; /* by word */
	uint32_t named[N_OWNERS];
};

static const char *const state_names[] = {"FREE", "BARN", "OUT", "?"};

/* Calls visit with a descriptor of each memory of slabd's of that name, until it says that it is done. */
static void
each_memory(pid_t slabd, const char *name, bool (*visit)(struct recount *r, int fd), struct recount *r)
{
	char path[320], link[80];
	bool is_done = false;
	struct dirent *e;
	DIR *dir;

	snprintf(path, sizeof path, "/proc/%d/fd", slabd);
	dir = opendir(path);
	while (dir && !is_done && (e = readdir(dir))) {
		ssize_t n;
		int fd;

		snprintf(path, sizeof path, "/proc/%d/fd/%s", slabd, e->d_name);
		n = readlink(path, link, sizeof link - 1);
		if (n <= 0)
			continue;
		link[n] = '\0';
		if (strncmp(link, "/memfd:", 7) != 0 || strncmp(link + 7, name, strlen(name)) != 0)
			continue;
		fd = open(path, O_RDONLY | O_CLOEXEC);
		is_done = fd >= 0 && visit(r, fd);
		if (fd >= 0)
			close(fd);
	}
	if (dir)
		closedir(dir);
}

static void *
map_all(int fd, uint64_t *bytesp)
{
	struct stat st;
	void *map;

	if (fstat(fd, &st) < 0)
		return NULL;
	map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0);
	*bytesp = (uint64_t)st.st_size;
	return map == MAP_FAILED ? NULL : map;
}

static bool
map_ledger(struct recount *r, int fd)
{
	r->arena.ledger = map_all(fd, &r->arena.ledger_bytes);
	return r->arena.ledger != NULL;
}

static bool
map_arena(struct recount *r, int fd)
{
	r->arena.head = map_all(fd, &r->arena.bytes);
	return r->arena.head != NULL;
}

static bool
map_words(struct recount *r, int fd)
{
	r->arena.words = map_all(fd, &r->arena.words_bytes);
	return r->arena.words != NULL;
}

struct recount *
recount_open(pid_t slabd)
{
	struct recount *r = calloc(1, sizeof *r);
	struct arena *a = r ? &r->arena : NULL;

	if (!r)
		return NULL;
	r->slabd = slabd;
	each_memory(slabd, "slabd:ledger", map_ledger, r);
	each_memory(slabd, "slabd:arena", map_arena, r);
	each_memory(slabd, "slabd:words", map_words, r);
	if (!a->ledger || !a->head || !a->words || a->ledger->words_bytes != a->words_bytes) {
		recount_close(r);
		return NULL;
	}
	ledger_point(a);
	a->shown = (struct layout_cache *)(void *)((char *)a->head + LAYOUT_ARENA_CACHES_OFF);
	a->page_map = (struct layout_page *)(void *)((char *)a->head + LAYOUT_ARENA_PAGES_OFF);
	r->in_sheaves = calloc(1, a->head->n_words);
	r->is_strange = calloc(1, a->head->n_words);
	return r;
}

void
recount_close(struct recount *r)
{
	if (!r)
		return;
	if (r->arena.ledger)
		munmap(r->arena.ledger, r->arena.ledger_bytes);
	if (r->arena.head)
		munmap(r->arena.head, r->arena.bytes);
	if (r->arena.words)
		munmap(r->arena.words, r->arena.words_bytes);
	free(r->in_sheaves);
	free(r->is_strange);
	free(r);
}

void
recount_at(struct recount *r, pid_t slabd)
{
	r->slabd = slabd;
}

/* The word of the object that starts at place, of that cache (0: any); -1: there is none. */
static int64_t
word_at(const struct recount *r, uint32_t place, uint32_t cache)
{
	uint32_t number = place >> LAYOUT_PLACE_PAGE_SHIFT, recip;
	const struct layout_page *page;
	uint64_t x;

	if (number >= r->arena.head->n_pages)
		return -1;
	page = &r->arena.page_map[number];
	if (page->cache == 0 || page->cache >= LAYOUT_MAX_CACHES || (cache && page->cache != cache))
		return -1;
	recip = r->arena.shown[page->cache].recip;
	x = ((uint64_t)place << LAYOUT_PLACE_SHIFT & (LAYOUT_PAGE_BYTES - 1)) * recip + page->prod;
	return (uint32_t)x < recip && x >> 32 < r->arena.head->n_words ? (int64_t)(x >> 32) : -1;
}

static void
count_sheaf(struct recount *r, const struct sheaf *sheaf, const struct session_slot *slot, uint32_t client)
{
	uint32_t size = atomic_read_acquire(&sheaf->size);

	/* Its entries are others' objects still, or claimed and named. */
	if (atomic_read_acquire(&sheaf->busy) & SHEAF_UNSETTLED)
		return;
	for (uint32_t i = 0; i < size && i < slot->capacity; i++) {
		int64_t word = word_at(r, atomic_read(&sheaf->entry[i]), slot->cache);
		uint32_t owner = word < 0 ? 0 : word_owner(atomic_read(&r->arena.words[word]));

		if (word < 0)
			continue;
		r->in_sheaves[word]++;
		r->is_strange[word] |= owner != 0 && owner != client;
	}
}

/* A session's sheaves, if the ledger has the session. */
static bool
count_session(struct recount *r, int fd)
{
	uint64_t bytes = 0;
	char *map = map_all(fd, &bytes);
	const struct layout_session *head = (const struct layout_session *)(void *)map;
	const struct session_slot *slots;

	if (!map)
		return false;
	if (head->client == 0 || head->client > LAYOUT_MAX_CLIENTS || r->arena.clients[head->client].state == LEDGER_CLIENT_NONE ||
		r->arena.incarnations[head->client] != head->incarnation) {
		munmap(map, bytes);
		return false;
	}
	slots = ledger_slots(&r->arena, head->client);
	for (uint32_t i = 0; i < LAYOUT_MAX_SLOTS && slots[i].bytes != 0; i++)
		if (slots[i].cache != 0 && slots[i].off < bytes)
			count_sheaf(r, (const struct sheaf *)(void *)(map + slots[i].off), &slots[i], head->client);
	munmap(map, bytes);
	return false;
}

static void wrong(struct recount_sums *sums, uint64_t *counter, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void
wrong(struct recount_sums *sums, uint64_t *counter, const char *format, ...)
{
	va_list args;

	++*counter;
	if (sums->first[0])
		return;
	va_start(args, format);
	vsnprintf(sums->first, sizeof sums->first, format, args);
	va_end(args);
}

/* An object that is with a client, or was. */
static void
judge_out(struct recount *r, struct recount_sums *sums, uint32_t place, uint32_t word, uint32_t flags)
{
	uint32_t w = atomic_read(&r->arena.words[word]), owner = word_owner(w);
	bool is_dead = owner == WORD_ORPHAN || (owner && r->arena.clients[owner].state == LEDGER_CLIENT_NONE);

	sums->n_out++;
	r->named[owner] += owner != 0;
	if (!(w & WORD_LOW_MASK) && !r->in_sheaves[word])
		wrong(sums, &sums->n_lost, "lost: place %#x is OUT, its word names nobody, and it is in no sheaf", place);
	if (r->is_strange[word])
		wrong(sums, &sums->n_doubled, "doubled: place %#x is client %u's, and lies in another one's sheaf", place, owner);
	if (is_dead && (flags & LAYOUT_CACHE_RECLAIM || word_state(w) != WORD_SHARED))
		wrong(sums, &sums->n_stuck, "stuck: place %#x, word %#x, names client %u, which has ended", place, w, owner);
}

static void
judge_slab(struct recount *r, struct recount_sums *sums, const struct slab *slab)
{
	const struct ledger_cache *cache = &r->arena.ledger_caches[slab->cache];

	/* A slab on its way out of the map is nobody's. */
	if (r->arena.page_map[slab->first_page].cache != slab->cache || cache->flags & LAYOUT_CACHE_NO_OWNER)
		return;
	for (uint32_t i = 0; i < slab->n_objects; i++) {
		uint32_t word = slab->first_word + i;
		uint32_t place =
			(slab->first_page << LAYOUT_PLACE_PAGE_SHIFT) + ((cache->head + i * cache->object_bytes) >> LAYOUT_PLACE_SHIFT);
		enum slab_state state = slab_get(&r->arena, word);

		sums->n_objects++;
		sums->n_in_sheaves += r->in_sheaves[word];
		if (r->in_sheaves[word] > 1)
			wrong(sums, &sums->n_doubled, "doubled: place %#x lies in %u sheaves", place, r->in_sheaves[word]);
		if (state == SLAB_OUT) {
			judge_out(r, sums, place, word, cache->flags);
			continue;
		}
		if (r->in_sheaves[word])
			wrong(sums, &sums->n_doubled, "doubled: place %#x is %s, and lies in a client's sheaf", place, state_names[state]);
		if (atomic_read(&r->arena.words[word]) & WORD_LOW_MASK)
			wrong(sums, &sums->n_stuck, "stuck: place %#x is %s, and its word names client %u", place, state_names[state],
				word_owner(atomic_read(&r->arena.words[word])));
	}
}

void
recount_take(struct recount *r, struct recount_sums *sums)
{
	*sums = (struct recount_sums){0};
	/* No others were ever used. */
	memset(r->in_sheaves, 0, r->arena.ledger->n_seeded);
	memset(r->is_strange, 0, r->arena.ledger->n_seeded);
	memset(r->named, 0, sizeof r->named);
	each_memory(r->slabd, "slabd:session", count_session, r);
	for (uint32_t number = 1; number <= r->arena.ledger->n_slabs; number++)
		if (r->arena.slabs[number].cache)
			judge_slab(r, sums, &r->arena.slabs[number]);
}

uint32_t
recount_named(const struct recount *r, uint32_t client)
{
	return r->named[client & WORD_OWNER_MASK];
}

bool
recount_find(const struct recount *r, uint32_t place, enum slab_state *statep, uint32_t *wordp)
{
	int64_t word = word_at(r, place, 0);

	if (word < 0)
		return false;
	*statep = slab_get(&r->arena, (uint32_t)word);
	*wordp = atomic_read(&r->arena.words[word]);
	return true;
}
