/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What slabd shows a session, mapped: arena segment, word table, session segment, and the data segments side by side in one range of
 * addresses, so that base + place * 8 is an object's address whatever segment it lies in.
 *
 * Everything that is read here is checked against the descriptors' sizes and the limits of shm/layout.h; after that, place < span / 8 and
 * the page map's own entries are what the other files rely on.  Descriptors are closed once mapped.
 */
#include "client/internal.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/segment.h"

enum { N_META = 3 }; /* arena, words, session; then the data segments */

#define RANGE_ALIGN (2u << 20)

static int
nonsense(const char *what)
{
	return error_set(EPROTO, "slabd shows %s that cannot be: library and slabd do not fit", what);
}

/* Maps a whole segment of at least `least` bytes. */
static int
map_whole(int fd, uint64_t least, uint32_t flags, const char *what, void **mapp, uint64_t *bytesp)
{
	struct stat st;
	int r;

	if (fstat(fd, &st) < 0)
		return error_set(errno, "%s: %s", what, strerror(errno));
	if (st.st_size <= 0 || (uint64_t)st.st_size < least)
		return nonsense(what);
	r = segment_map(fd, (uint64_t)st.st_size, flags, NULL, mapp);
	if (r < 0)
		return error_set(-r, "mapping %s, %lld bytes: %s", what, (long long)st.st_size, strerror(-r));
	*bytesp = (uint64_t)st.st_size;
	return 0;
}

static int
check_arena(const struct slabc *c, uint32_t n_segments)
{
	const struct layout_arena *arena = c->arena;
	uint64_t end = 0;

	if (arena->hash != layout_hash)
		return error_set(EPROTO,
			"the arena's layout is %016llx, this library's %016llx: library and slabd are of different versions",
			(unsigned long long)arena->hash, (unsigned long long)layout_hash);
	if (arena->n_pages == 0 || arena->n_pages > LAYOUT_MAX_PAGES ||
		LAYOUT_ARENA_PAGES_OFF + (uint64_t)arena->n_pages * sizeof(struct layout_page) > c->arena_bytes)
		return nonsense("a page map");
	if (arena->n_segments == 0 || arena->n_segments != n_segments || n_segments > LAYOUT_MAX_SEGMENTS)
		return nonsense("a number of segments");
	for (uint32_t i = 0; i < n_segments; i++) {
		const struct layout_segment *s = &arena->segments[i];
		uint64_t align = segment_page_bytes(s->pages) / LAYOUT_PAGE_BYTES;

		if (s->first_page < end || s->n_pages == 0 || (uint64_t)s->first_page + s->n_pages > arena->n_pages ||
			s->first_page % align || s->n_pages % align || s->pages > LAYOUT_PAGES_1G)
			return nonsense("a segment");
		end = (uint64_t)s->first_page + s->n_pages;
	}
	return 0;
}

static int
map_arena(struct slabc *c, int fd, uint32_t n_segments)
{
	void *map;
	int r = map_whole(fd, LAYOUT_ARENA_PAGES_OFF, 0, "the arena segment", &map, &c->arena_bytes);

	if (r < 0)
		return r;
	c->arena = map;
	c->caches = (const struct layout_cache *)((const char *)map + LAYOUT_ARENA_CACHES_OFF);
	c->pages = (const struct layout_page *)((const char *)map + LAYOUT_ARENA_PAGES_OFF);
	return check_arena(c, n_segments);
}

static int
map_words(struct slabc *c, int fd)
{
	uint64_t n_words = c->arena->n_words;
	void *map;
	int r;

	if (n_words == 0 || n_words > UINT32_MAX + UINT64_C(1))
		return nonsense("a number of words");
	r = map_whole(fd, n_words * sizeof(uint32_t), c->is_readonly ? 0 : SEGMENT_MAP_WRITE, "the word table", &map, &c->words_bytes);
	if (r < 0)
		return r;
	c->words = map;
	c->n_words = n_words;
	return 0;
}

static int
map_session(struct slabc *c, int fd)
{
	void *map;
	int r = map_whole(fd, LAYOUT_SESSION_BYTES, SEGMENT_MAP_WRITE | SEGMENT_MAP_NORESERVE | SEGMENT_MAP_DONTFORK, "the session segment",
		&map, &c->session_bytes);

	if (r < 0)
		return r;
	c->session = map;
	c->session_caches = (struct layout_session_cache *)((char *)map + LAYOUT_SESSION_CACHES_OFF);
	c->slots = (struct layout_slot *)((char *)map + LAYOUT_SESSION_SLOTS_OFF);
	if (c->session->hash != layout_hash || c->session->client != c->me)
		return nonsense("a session segment");
	return 0;
}

static int
map_data(struct slabc *c, const int *fds)
{
	uint64_t bytes = (uint64_t)c->arena->n_pages * LAYOUT_PAGE_BYTES;
	uint32_t flags = SEGMENT_MAP_NORESERVE | (c->is_readonly ? 0 : SEGMENT_MAP_WRITE);
	uint64_t align = RANGE_ALIGN;
	int r;

	/* A page of 1 GiB lies at a multiple of that. */
	for (uint32_t i = 0; i < c->arena->n_segments; i++)
		if (segment_page_bytes(c->arena->segments[i].pages) > align)
			align = segment_page_bytes(c->arena->segments[i].pages);
	r = segment_reserve_range(bytes, align, &c->range);
	if (r < 0)
		return error_set(-r, "the arena needs %llu bytes of address space: %s", (unsigned long long)bytes, strerror(-r));
	c->range_bytes = bytes;
	for (uint32_t i = 0; i < c->arena->n_segments; i++) {
		const struct layout_segment *s = &c->arena->segments[i];
		uint64_t segment_bytes = (uint64_t)s->n_pages * LAYOUT_PAGE_BYTES;
		struct stat st;
		void *map;

		if (fstat(fds[i], &st) < 0)
			return error_set(errno, "data segment %u: %s", i, strerror(errno));
		if ((uint64_t)st.st_size < segment_bytes)
			return nonsense("a data segment");
		r = segment_map(fds[i], segment_bytes, flags, (char *)c->range + (uint64_t)s->first_page * LAYOUT_PAGE_BYTES, &map);
		if (r < 0)
			return error_set(-r, "mapping data segment %u, %llu bytes: %s", i, (unsigned long long)segment_bytes, strerror(-r));
	}
	c->base = c->range;
	c->span = bytes;
	return 0;
}

int
mapping_attach(struct slabc *c, const struct proto_attach_reply *reply, int *fds, unsigned n_fds)
{
	/* A read-only session may come without a session segment. */
	unsigned n_meta = c->is_readonly && n_fds == N_META - 1 + reply->n_segments ? N_META - 1 : N_META;
	int r;

	if (n_fds != n_meta + reply->n_segments || (!c->is_readonly && !reply->may_write)) {
		r = n_fds != n_meta + reply->n_segments ? nonsense("a number of descriptors")
							: error_set(EACCES, "the arena may only be read: open it with SLABC_RDONLY");
	} else {
		r = map_arena(c, fds[0], reply->n_segments);
		if (r == 0)
			r = map_words(c, fds[1]);
		if (r == 0 && !c->is_readonly)
			r = map_session(c, fds[2]);
		if (r == 0)
			r = map_data(c, fds + n_meta);
	}
	for (unsigned i = 0; i < n_fds; i++)
		close(fds[i]);
	return r;
}

struct sheaf *
mapping_sheaf(const struct slabc *c, uint32_t slot)
{
	uint32_t capacity;
	uint64_t off;

	if (slot >= LAYOUT_MAX_SLOTS || !c->session)
		return NULL;
	capacity = atomic_read(&c->slots[slot].capacity);
	off = (uint64_t)atomic_read(&c->slots[slot].off) * LAYOUT_SLOT_UNIT;
	if (capacity == 0 || capacity > LAYOUT_MAX_SHEAF || off < LAYOUT_SESSION_SHEAVES_OFF ||
		off + sheaf_bytes(capacity) > c->session_bytes)
		return NULL;
	return (struct sheaf *)((char *)c->session + off);
}

void
mapping_drop_session(struct slabc *c)
{
	/* In a forked child the segment is not there, and its address may be somebody else's by now. */
	if (c->session && !c->is_forked)
		segment_unmap(c->session, c->session_bytes);
	c->session = NULL;
	c->session_caches = NULL;
	c->slots = NULL;
}

void
mapping_drop(struct slabc *c)
{
	union {
		const void *in;
		void *out; /* munmap() reads nothing and writes nothing */
	} arena = {.in = c->arena};

	mapping_drop_session(c);
	if (c->range)
		segment_unmap(c->range, c->range_bytes);
	if (c->words)
		segment_unmap(c->words, c->words_bytes);
	if (c->arena)
		segment_unmap(arena.out, c->arena_bytes);
	c->range = NULL;
	c->words = NULL;
	c->arena = NULL;
}
