/* SPDX-License-Identifier: Apache-2.0 */
/* Debug caches: what lies around an object, and what of it the page map and the ledger take for objects. */
#include <errno.h>
#include <string.h>

#include <CUnit/CUnit.h>

#include "server/arena.h"
#include "server/cache.h"
#include "server/slab.h"
#include "shm/debug.h"

CU_pSuite test_debug_suite(void);

enum { ALL = LAYOUT_CACHE_DEBUG_ALL };

/* Red zones and record fit between two objects, aligned, for all sizes and alignments; and the head leads to no object before the first. */
static void
test_shape(void)
{
	static const uint32_t flags[] = {LAYOUT_CACHE_DEBUG | LAYOUT_CACHE_RED_ZONE, ALL};
	bool ok = true;

	for (uint32_t align = 8; align <= LAYOUT_PAGE_BYTES; align *= 2)
		for (uint32_t size = 1; size <= LAYOUT_MAX_OBJECT_BYTES; size += size < 600 ? 1 : 509)
			for (int i = 0; i < 2; i++) {
				struct debug_shape s = debug_shape(size, align, flags[i]);

				ok = ok && s.object_bytes % align == 0 && s.head % align == 0 && s.record_off % 8 == 0;
				ok = ok && s.record_off >= size + DEBUG_ZONE_BYTES / 2 && s.head >= DEBUG_ZONE_BYTES;
				ok = ok && s.record_off + debug_record_bytes(flags[i]) + DEBUG_ZONE_BYTES == s.object_bytes;
				ok = ok && s.record_off == debug_record_off(s.object_bytes, flags[i]);
				ok = ok && s.head + align <= s.object_bytes && s.head + s.object_bytes <= LAYOUT_MAX_SLOT_BYTES;
			}
	CU_ASSERT(ok);
	CU_ASSERT_EQUAL(debug_shape(LAYOUT_MAX_OBJECT_BYTES, LAYOUT_PAGE_BYTES, ALL).object_bytes + LAYOUT_PAGE_BYTES, LAYOUT_MAX_SLOT_BYTES);
	CU_ASSERT(debug_seal(8, 1, 64, 0, false) != debug_seal(16, 1, 64, 0, false));
	CU_ASSERT(debug_seal(8, 1, 64, 0, false) != debug_seal(8, 1, 64, 1, false));
	CU_ASSERT_EQUAL(debug_seal(8, 1, 64, 0, false) | 1, debug_seal(8, 1, 64, 0, true));
}

/* Every place of a slab: those that start an object are those that the ledger says, in order, within the slab and with room around them. */
static void
check_places(struct arena *arena, struct cache *k, uint32_t number)
{
	const struct slab *slab = &arena->slabs[number];
	uint32_t first = slab->first_page << LAYOUT_PLACE_PAGE_SHIFT, end = first + (slab_pages(slab) << LAYOUT_PLACE_PAGE_SHIFT), n = 0;
	bool ok = true;

	for (uint32_t place = first; place < end; place++) {
		uint64_t off = (uint64_t)(place - first) << LAYOUT_PLACE_SHIFT;
		struct slab_object o;

		if (!slab_find(arena, k, place, &o))
			continue;
		ok = ok && o.slab == number && o.word == slab->first_word + n && place == slab_place(arena, k, number, n);
		ok = ok && off % k->align == 0 && off >= DEBUG_ZONE_BYTES && off + k->object_bytes <= (uint64_t)LAYOUT_PAGE_BYTES * slab_pages(slab);
		n++;
	}
	CU_ASSERT(ok);
	CU_ASSERT_EQUAL(n, slab->n_objects);
	CU_ASSERT_EQUAL(n, cache_objects(k, slab->order));
	CU_ASSERT(n > 0);
}

static void
test_places(void)
{
	static const struct {
		uint64_t size, align;
	} kinds[] = {{1, 0}, {8, 8}, {64, 0}, {64, 64}, {100, 16}, {500, 512}, {4000, 0}, {4096, 4096}, {1, 4096}, {8192, 0}, {32768, 0}, {32768, 4096}};
	struct arena_options options = {.name = "t", .limit_bytes = 16 << 20, .page_kind = LADDER_4K};
	struct arena *arena;
	char why[256];

	CU_ASSERT_EQUAL_FATAL(arena_new(&arena, &options, why, sizeof why), 0);
	for (unsigned i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
		char name[16] = {'k', (char)('a' + i)};
		struct cache_options o = {.name = name, .size = kinds[i].size, .align = kinds[i].align, .flags = LAYOUT_CACHE_DEBUG};
		struct cache *k;
		uint32_t slab;

		CU_ASSERT_EQUAL_FATAL(cache_open(arena, &o, &k, why, sizeof why), 0);
		CU_ASSERT_EQUAL(k->flags, ALL);
		CU_ASSERT_EQUAL(k->object_size, kinds[i].size);
		CU_ASSERT_EQUAL_FATAL(slab_new(arena, k, 0, &slab), 0);
		check_places(arena, k, slab);
	}
	arena_free(arena);
}

static uint32_t
flags_of(struct arena *arena, const char *name, uint32_t flags)
{
	struct cache_options o = {.name = name, .size = 64, .flags = flags};
	struct cache *k;
	char why[256];

	return cache_open(arena, &o, &k, why, sizeof why) == 0 ? k->flags : 0xffff;
}

/* Which checks a cache makes: its maker's, and those of the arena's setting if it names the cache. */
static void
test_setting(void)
{
	struct arena_options options = {.name = "t", .limit_bytes = 4 << 20, .page_kind = LADDER_4K, .debug = "FZ,message,tree*"};
	struct arena *arena;
	char why[256];

	CU_ASSERT_EQUAL(cache_parse_debug("FZPU"), ALL & ~LAYOUT_CACHE_DEBUG);
	CU_ASSERT_EQUAL(cache_parse_debug("P,a,b*"), LAYOUT_CACHE_POISON);
	CU_ASSERT_EQUAL(cache_parse_debug("U,*"), LAYOUT_CACHE_USER);
	CU_ASSERT_EQUAL(cache_parse_debug(""), -EINVAL);
	CU_ASSERT_EQUAL(cache_parse_debug("FX"), -EINVAL);
	CU_ASSERT_EQUAL(cache_parse_debug(",a"), -EINVAL);
	CU_ASSERT_EQUAL(cache_parse_debug("F,"), -EINVAL);
	CU_ASSERT_EQUAL(cache_parse_debug("F,a,,b"), -EINVAL);
	CU_ASSERT_EQUAL_FATAL(arena_new(&arena, &options, why, sizeof why), 0);
	CU_ASSERT_EQUAL(flags_of(arena, "message", 0), LAYOUT_CACHE_DEBUG | LAYOUT_CACHE_SANITY | LAYOUT_CACHE_RED_ZONE);
	CU_ASSERT_EQUAL(flags_of(arena, "tree.node", LAYOUT_CACHE_RECLAIM),
		LAYOUT_CACHE_RECLAIM | LAYOUT_CACHE_DEBUG | LAYOUT_CACHE_SANITY | LAYOUT_CACHE_RED_ZONE);
	CU_ASSERT_EQUAL(flags_of(arena, "tree.use", LAYOUT_CACHE_DEBUG | LAYOUT_CACHE_USER),
		LAYOUT_CACHE_DEBUG | LAYOUT_CACHE_SANITY | LAYOUT_CACHE_RED_ZONE | LAYOUT_CACHE_USER);
	CU_ASSERT_EQUAL(flags_of(arena, "messages", 0), 0);
	CU_ASSERT_EQUAL(flags_of(arena, "mess", 0), 0);
	CU_ASSERT_EQUAL(flags_of(arena, "tree.bare", LAYOUT_CACHE_NO_OWNER), LAYOUT_CACHE_NO_OWNER);
	/* Later openers need not agree. */
	CU_ASSERT_EQUAL(flags_of(arena, "messages", LAYOUT_CACHE_DEBUG), 0);
	CU_ASSERT_EQUAL(flags_of(arena, "tree.node", LAYOUT_CACHE_RECLAIM), flags_of(arena, "tree.node", LAYOUT_CACHE_RECLAIM | LAYOUT_CACHE_DEBUG));
	CU_ASSERT_EQUAL(flags_of(arena, "neither", LAYOUT_CACHE_NO_OWNER | LAYOUT_CACHE_DEBUG), 0xffff);
	arena_free(arena);
}

CU_pSuite
test_debug_suite(void)
{
	CU_pSuite suite = CU_add_suite("debug", NULL, NULL);

	CU_ADD_TEST(suite, test_shape);
	CU_ADD_TEST(suite, test_places);
	CU_ADD_TEST(suite, test_setting);
	return suite;
}
