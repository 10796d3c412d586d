/* SPDX-License-Identifier: Apache-2.0 */
/* Caches: what profiles and knobs come to, and what an opening must match. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "server/geometry.h"
#include "tests/world.h"

CU_pSuite test_cache_suite(void);

/* Knob values by profile: the kernel's own numbers (slub-reference.md 2, 3, 4, 5.1); by default barns bounded in bytes; tiny keeps nothing.
 */
static void
test_profiles(void)
{
	static const struct {
		uint32_t size, capacity, min_partial, tiny_order, cpu_partial;
	} golden[] = {{64, 60, 5, 0, 120}, {128, 60, 5, 0, 120}, {192, 60, 5, 0, 120}, {256, 28, 5, 0, 52}, {512, 28, 5, 1, 52},
		{1024, 12, 5, 1, 24}, {2048, 12, 5, 1, 24}, {4096, 4, 6, 1, 6}, {8192, 4, 6, 1, 6}, {16384, 4, 7, 2, 6}};
	static const enum arena_profile profiles[] = {ARENA_PROFILE_DEFAULT, ARENA_PROFILE_KERNEL, ARENA_PROFILE_TINY};

	for (unsigned p = 0; p < 3; p++) {
		struct world w;

		world_init(&w, 1 << 30, profiles[p]);
		for (unsigned i = 0; i < sizeof golden / sizeof golden[0]; i++) {
			uint32_t size = golden[i].size, sheaf_bytes_held = golden[i].capacity * size;
			char name[16];
			const struct cache_options options = {.name = name, .size = size};
			struct cache *k;

			snprintf(name, sizeof name, "k%u", size);
			k = world_open_cache(&w, &options);
			CU_ASSERT_EQUAL(k->is_sheafless, profiles[p] == ARENA_PROFILE_TINY);
			CU_ASSERT_EQUAL(k->cpu_partial, profiles[p] == ARENA_PROFILE_KERNEL ? golden[i].cpu_partial : 0);
			CU_ASSERT_EQUAL(k->policy, CACHE_POLICY_SLUB);
			if (profiles[p] == ARENA_PROFILE_TINY) {
				CU_ASSERT_EQUAL(k->order, golden[i].tiny_order);
				CU_ASSERT_EQUAL(k->min_partial, 0);
				CU_ASSERT_EQUAL(k->barn_full, 0);
				CU_ASSERT_EQUAL(k->barn_empty, 0);
				continue;
			}
			CU_ASSERT_EQUAL(k->capacity, golden[i].capacity);
			CU_ASSERT_EQUAL(k->min_partial, golden[i].min_partial);
			CU_ASSERT_EQUAL(k->order,
				(uint32_t)geometry_order(size, 0, GEOMETRY_MAX_ORDER, geometry_min_objects(topology_online_cpus())));
			CU_ASSERT_EQUAL(k->barn_empty, profiles[p] == ARENA_PROFILE_KERNEL ? 10 : k->max_cached / sheaf_bytes_held > 64 ? k->max_cached / sheaf_bytes_held : 64);
			CU_ASSERT_EQUAL(k->barn_full, profiles[p] == ARENA_PROFILE_KERNEL ? 10 : (16u << 20) / sheaf_bytes_held);
		}
		world_deinit(&w);
	}
}

/* Knobs asked for are heeded, "none" is none, and a small arena bounds what may lie idle by its eighth. */
static void
test_knobs(void)
{
	struct cache_options options = {.name = "a",
		.size = 256,
		.sheaf_capacity = 32,
		.barn_full = 7,
		.barn_empty = 8,
		.min_partial = 9,
		.min_order = 2,
		.max_order = 2,
		.max_cached = 12345};
	struct world w;
	struct cache *k;

	world_init(&w, 8 << 20, ARENA_PROFILE_DEFAULT);
	k = world_open_cache(&w, &options);
	CU_ASSERT_EQUAL(k->capacity, 32); /* maple_node's request, as it is */
	CU_ASSERT_EQUAL(k->barn_full, 7);
	CU_ASSERT_EQUAL(k->barn_empty, 8);
	CU_ASSERT_EQUAL(k->min_partial, 9);
	CU_ASSERT_EQUAL(k->order, 2);
	CU_ASSERT_EQUAL(k->n_slab_objects, 64);
	CU_ASSERT_EQUAL(k->max_cached, 12345);
	options = (struct cache_options){.name = "b",
		.size = 256,
		.sheaf_capacity = 32,
		.sheaf_round_up = 1,
		.barn_full = LAYOUT_KNOB_NONE,
		.barn_empty = LAYOUT_KNOB_NONE,
		.max_order = LAYOUT_KNOB_NONE};
	k = world_open_cache(&w, &options);
	CU_ASSERT_EQUAL(k->capacity, 60);
	CU_ASSERT_EQUAL(k->barn_full, 0);
	CU_ASSERT_EQUAL(k->barn_empty, 0);
	CU_ASSERT_EQUAL(k->order, 0);
	options = (struct cache_options){.name = "c", .size = 256};
	k = world_open_cache(&w, &options);
	CU_ASSERT_EQUAL(k->barn_full, (1 << 20) / (28 * 256));
	CU_ASSERT_EQUAL(k->max_cached, 1 << 20);
	world_deinit(&w);
}

/* An opening must match in size, align and flags; align 0 is 8; size 0 takes what is there; the rest is ignored. */
static void
test_match_rules(void)
{
	const struct cache_options made = {.name = "k", .size = 100, .flags = LAYOUT_CACHE_RECLAIM};
	struct cache_options o;
	struct cache *k, *again;
	struct world w;

	world_init(&w, 8 << 20, ARENA_PROFILE_DEFAULT);
	k = world_open_cache(&w, &made);
	CU_ASSERT_EQUAL(k->object_bytes, 104);
	for (int i = 0; i < 4; i++) {
		static const uint64_t same_aligns[] = {0, 1, 4, 8};

		o = made;
		o.align = same_aligns[i];
		CU_ASSERT_EQUAL(cache_open(w.arena, &o, &again, w.why, sizeof w.why), 0);
		CU_ASSERT_PTR_EQUAL(again, k);
	}
	o = (struct cache_options){.name = "k", .flags = LAYOUT_CACHE_SHARED, .align = 64};
	CU_ASSERT_EQUAL(cache_open(w.arena, &o, &again, w.why, sizeof w.why), 0);
	o = made;
	o.sheaf_capacity = 500;
	o.max_cached = 1;
	o.cpu_partial = 30;
	CU_ASSERT_EQUAL(cache_open(w.arena, &o, &again, w.why, sizeof w.why), 0);
	CU_ASSERT_EQUAL(k->capacity, 60);
	CU_ASSERT_EQUAL(k->cpu_partial, 0);
	o = made;
	o.policy = CACHE_POLICY_SLOB;
	CU_ASSERT_EQUAL(cache_open(w.arena, &o, &again, w.why, sizeof w.why), 0);
	CU_ASSERT_EQUAL(k->policy, CACHE_POLICY_SLUB);
	for (int i = 0; i < 3; i++) {
		o = made;
		o.size = i == 0 ? 104 : 100; /* the same room, and yet another size */
		o.align = i == 1 ? 16 : 0;
		o.flags = i == 2 ? 0 : LAYOUT_CACHE_RECLAIM;
		CU_ASSERT_EQUAL(cache_open(w.arena, &o, &again, w.why, sizeof w.why), -EEXIST);
		CU_ASSERT_PTR_NOT_NULL(strstr(w.why, "is there with size 100, align 8, flags SLABC_RECLAIM; asked for size 1"));
	}
	o = (struct cache_options){.name = "other"};
	CU_ASSERT_EQUAL(cache_open(w.arena, &o, &again, w.why, sizeof w.why), -ENOENT);
	world_deinit(&w);
}

/* 511 caches of an arena. */
static void
test_cache_limit(void)
{
	struct cache *k;
	struct world w;
	char name[16];

	world_init(&w, 8 << 20, ARENA_PROFILE_DEFAULT);
	for (int i = 0; i < LAYOUT_MAX_CACHES; i++) {
		struct cache_options o = {.name = name, .size = 64};

		snprintf(name, sizeof name, "k%d", i);
		CU_ASSERT_EQUAL(cache_open(w.arena, &o, &k, w.why, sizeof w.why), i < LAYOUT_MAX_CACHES - 1 ? 0 : -ENOSPC);
	}
	CU_ASSERT_PTR_NOT_NULL(strstr(w.why, "511"));
	world_deinit(&w);
}

CU_pSuite
test_cache_suite(void)
{
	CU_pSuite suite = CU_add_suite("cache", NULL, NULL);

	CU_ADD_TEST(suite, test_profiles);
	CU_ADD_TEST(suite, test_knobs);
	CU_ADD_TEST(suite, test_match_rules);
	CU_ADD_TEST(suite, test_cache_limit);
	return suite;
}
