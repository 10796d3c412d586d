/* SPDX-License-Identifier: Apache-2.0 */
/* Grants and take-backs on a machine with two nodes: objects come from where the client runs, and go home. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/reaper.h"
#include "tests/world.h"

CU_pSuite test_grant_nodes_suite(void);

/* Objects come from where the client runs; a node without memory is its neighbour's; a number that there is none of is the first's. */
static void
test_grants_come_from_the_clients_node(void)
{
	static const struct {
		uint32_t os_node;
		unsigned node;
	} where[] = {{0, 0}, {3, 1}, {1, 0}, {2, 1}, {4, 0}, {UINT32_MAX, 0}};
	const struct cache_options options = {.name = "k", .size = 256};
	struct grant grant;
	struct world w;
	struct cache *k;

	world_init_on(&w, 8 << 20, ARENA_PROFILE_DEFAULT, &world_two_nodes);
	CU_ASSERT_EQUAL_FATAL(w.arena->topology.n_nodes, 2);
	CU_ASSERT_EQUAL_FATAL(w.arena->n_segments, 2);
	k = world_open_cache(&w, &options);
	CU_ASSERT_EQUAL_FATAL(k->n_nodes, 2);
	for (unsigned i = 0; i < sizeof where / sizeof where[0]; i++) {
		int32_t slot;

		CU_ASSERT_EQUAL(world_refill_on(&w, 0, k, 1, 0, where[i].os_node, &grant), 0);
		slot = world_take_full(&w, 0, k);
		CU_ASSERT_FATAL(slot >= 0);
		CU_ASSERT_EQUAL(world_count_on(&w, 0, slot, where[i].node), k->capacity);
		CU_ASSERT_EQUAL(world_refill_on(&w, 0, k, 1, 10, where[i].os_node, &grant), 0);
		CU_ASSERT_EQUAL(world_count_on(&w, 0, (int32_t)grant.slot, where[i].node), 10);
	}
	CU_ASSERT_EQUAL(k->nodes[0].n_objects - k->nodes[0].n_free, 4u * (k->capacity + 10));
	CU_ASSERT_EQUAL(k->nodes[1].n_objects - k->nodes[1].n_free, 2u * (k->capacity + 10));
	world_check(&w, k);
	world_deinit(&w);
}

/* A node that is full is followed by the next nearest; only when that is full too the memory is out. */
static void
test_carving_goes_on_with_the_next_node(void)
{
	const struct cache_options options = {.name = "k", .size = 4096};
	uint64_t n_first = 0, n_second = 0;
	struct grant grant;
	struct world w;
	struct cache *k;
	int r;

	world_init_on(&w, 2 << 20, ARENA_PROFILE_DEFAULT, &world_two_nodes);
	/* Each segment has room for all of the arena: so the second is reached only by what is over its limit. */
	w.arena->options.limit_bytes *= 2;
	k = world_open_cache(&w, &options);
	while ((r = world_refill_on(&w, 0, k, 1, 16, 3, &grant)) == 0) {
		uint32_t n = world_count_on(&w, 0, (int32_t)grant.slot, 1);

		CU_ASSERT_EQUAL(grant.n_objects, 16);
		CU_ASSERT(n == 16 || n_first == 512);
		n_first += n;
		n_second += 16 - n;
	}
	CU_ASSERT_EQUAL(r, -ENOMEM);
	CU_ASSERT_EQUAL(n_first, 512);
	CU_ASSERT_EQUAL(n_second, 512);
	CU_ASSERT_PTR_NOT_NULL(strstr(w.why, "--arena-size"));
	CU_ASSERT_EQUAL(k->nodes[0].n_objects, 512);
	CU_ASSERT_EQUAL(k->nodes[1].n_objects, 512);
	CU_ASSERT_EQUAL(w.arena->committed_bytes, 4 << 20);
	CU_ASSERT_EQUAL(w.arena->n_from_elsewhere[1], 512);
	CU_ASSERT_EQUAL(w.arena->n_from_elsewhere[0], 0);
	world_check(&w, k);
	world_deinit(&w);
}

/* strict: a node that is full is no reason to go on with another, for objects, runs and what lies in slabd already; other clients go on. */
static void
test_strict_stays_on_the_node(void)
{
	const struct cache_options options = {.name = "k", .size = 4096}, runs = {.name = "runs", .size = 4096, .flags = LAYOUT_CACHE_RUNS};
	struct grant_request run = {.n_sheaves = 1, .capacity = 1, .os_node = 3, .n_pages = 2};
	struct grant grant;
	struct cache *k, *r;
	uint64_t n = 0;
	struct world w;

	world_init_on(&w, 2 << 20, ARENA_PROFILE_DEFAULT, &world_two_nodes);
	w.arena->options.limit_bytes *= 2;
	w.arena->options.is_node_strict = true;
	k = world_open_cache(&w, &options);
	r = world_open_cache(&w, &runs);
	/* Something free on the other node. */
	CU_ASSERT_EQUAL(world_refill_on(&w, 1, k, 1, 16, 0, &grant), 0);
	world_give_back(&w, 1, k, (int32_t)grant.slot, true);
	CU_ASSERT(k->nodes[0].n_free + k->nodes[0].n_barn > 0);
	while (world_refill_on(&w, 0, k, 1, 16, 3, &grant) == 0) {
		CU_ASSERT_EQUAL(world_count_on(&w, 0, (int32_t)grant.slot, 1), 16);
		n += 16;
	}
	CU_ASSERT_EQUAL(n, 512);
	CU_ASSERT_PTR_NOT_NULL(strstr(w.why, "node 3 alone may serve this client (node-policy=strict in [arena"));
	world_lock(w.sessions[0]);
	CU_ASSERT_EQUAL(grant_refill(w.sessions[0], r, &run, &grant, w.why, sizeof w.why), -ENOMEM);
	CU_ASSERT_PTR_NOT_NULL(strstr(w.why, "node-policy=strict"));
	run.os_node = 0;
	CU_ASSERT_EQUAL(grant_refill(w.sessions[0], r, &run, &grant, w.why, sizeof w.why), 0);
	world_unlock(w.sessions[0]);
	CU_ASSERT_EQUAL(world_refill_on(&w, 0, k, 1, 16, 0, &grant), 0);
	CU_ASSERT_EQUAL(w.arena->n_from_elsewhere[0] + w.arena->n_from_elsewhere[1], 0);
	world_check(&w, k);
	world_deinit(&w);
}

/* A client's thread frees what it likes: the sheaf that comes back has objects of both nodes, and each goes home. */
static void
take_back_mixed(uint32_t barn_full, bool top_is_far)
{
	const struct cache_options options = {.name = "k", .size = 256, .sheaf_capacity = 32, .barn_full = barn_full};
	int32_t near, far;
	uint64_t n_free[2];
	struct sheaf *a, *b;
	struct grant grant;
	struct world w;
	struct cache *k;

	world_init_on(&w, 8 << 20, ARENA_PROFILE_DEFAULT, &world_two_nodes);
	k = world_open_cache(&w, &options);
	CU_ASSERT_EQUAL(world_refill_on(&w, 0, k, 1, 0, 0, &grant), 0);
	CU_ASSERT_FATAL((near = world_take_full(&w, 0, k)) >= 0);
	CU_ASSERT_EQUAL(world_refill_on(&w, 0, k, 1, 0, 3, &grant), 0);
	CU_ASSERT_FATAL((far = world_take_full(&w, 0, k)) >= 0);
	a = session_sheaf(w.sessions[0], (uint32_t)near);
	b = session_sheaf(w.sessions[0], (uint32_t)far);
	/* Every third of the one for one of the other; the top is near or far. */
	for (uint32_t i = top_is_far ? 1 : 0; i < k->capacity; i += 3) {
		uint32_t place = a->entry[i];

		a->entry[i] = b->entry[i];
		b->entry[i] = place;
	}
	CU_ASSERT_EQUAL(world_node_of(&w, a->entry[31]), top_is_far);
	CU_ASSERT_EQUAL(world_count_on(&w, 0, near, 0), 21);
	n_free[0] = k->nodes[0].n_free;
	n_free[1] = k->nodes[1].n_free;
	world_give_back(&w, 0, k, near, true);
	world_check(&w, k);
	for (unsigned n = 0; n < 2; n++) {
		uint32_t n_here = n ? 11 : 21;
		bool in_barn = barn_full != LAYOUT_KNOB_NONE && n == (top_is_far ? 1u : 0u);

		CU_ASSERT_EQUAL(k->nodes[n].n_full, in_barn);
		CU_ASSERT_EQUAL(k->nodes[n].n_barn, in_barn ? n_here : 0);
		CU_ASSERT_EQUAL(k->nodes[n].n_free, n_free[n] + (in_barn ? 0 : n_here));
	}
	CU_ASSERT_EQUAL(w.sessions[0]->n_faults, 0);
	world_give_back(&w, 0, k, far, true);
	world_check(&w, k);
	CU_ASSERT_EQUAL(world_check(&w, k).n_out, 0);
	world_deinit(&w);
}

static void
test_mixed_sheaf_goes_home(void)
{
	take_back_mixed(0, false);
	take_back_mixed(0, true);
	take_back_mixed(LAYOUT_KNOB_NONE, false);
	take_back_mixed(LAYOUT_KNOB_NONE, true);
}

/* Each node has a barn of its own, full by itself; the client of a node gets that node's, and the oldest of it. */
static void
test_barns_are_by_node(void)
{
	const struct cache_options options = {.name = "k", .size = 256, .sheaf_capacity = 32, .barn_full = 2};
	int32_t slots[2][3], slot;
	uint32_t oldest[2];
	struct grant grant;
	struct world w;
	struct cache *k;

	world_init_on(&w, 8 << 20, ARENA_PROFILE_DEFAULT, &world_two_nodes);
	k = world_open_cache(&w, &options);
	for (unsigned n = 0; n < 2; n++)
		for (int i = 0; i < 3; i++) {
			CU_ASSERT_EQUAL(world_refill_on(&w, 0, k, 1, 0, n ? 3 : 0, &grant), 0);
			CU_ASSERT_FATAL((slots[n][i] = world_take_full(&w, 0, k)) >= 0);
		}
	for (int i = 0; i < 3; i++)
		for (unsigned n = 0; n < 2; n++) {
			if (i == 0)
				oldest[n] = session_sheaf(w.sessions[0], (uint32_t)slots[n][0])->entry[0];
			world_give_back(&w, 0, k, slots[n][i], true);
			CU_ASSERT_EQUAL(k->nodes[n].n_full, i < 2 ? (uint32_t)i + 1 : 2);
		}
	world_check(&w, k);
	for (unsigned n = 2; n-- > 0;) {
		bool is_there = false;

		CU_ASSERT_EQUAL(world_refill_on(&w, 1, k, 1, 0, n ? 3 : 0, &grant), 0);
		CU_ASSERT_FATAL((slot = world_take_full(&w, 1, k)) >= 0);
		CU_ASSERT_EQUAL(world_count_on(&w, 1, slot, n), 32);
		for (uint32_t i = 0; i < 32; i++)
			is_there |= session_sheaf(w.sessions[1], (uint32_t)slot)->entry[i] == oldest[n];
		CU_ASSERT(is_there);
		CU_ASSERT_EQUAL(k->nodes[n].n_full, 1);
		world_check(&w, k);
	}
	world_deinit(&w);
}

/* The same by chance: three clients that move, and free whatever they have. */
static void
test_hand_over_between_nodes(void)
{
	const struct cache_options options = {.name = "k", .size = 200, .barn_full = 3};
	const char *text = getenv("SLAB_SEED");
	unsigned seed = text ? (unsigned)strtoul(text, NULL, 0) : 2;
	int32_t held[WORLD_SESSIONS][64];
	unsigned n_held[WORLD_SESSIONS] = {0};
	struct grant grant;
	struct world w;
	struct cache *k;

	world_init_on(&w, 64 << 20, ARENA_PROFILE_DEFAULT, &world_two_nodes);
	k = world_open_cache(&w, &options);
	for (int turn = 0; turn < 2000; turn++) {
		int i = rand_r(&seed) % WORLD_SESSIONS;

		if (rand_r(&seed) % 2 && n_held[i] < 64) {
			CU_ASSERT_EQUAL(
				world_refill_on(&w, i, k, 1 + (uint32_t)rand_r(&seed) % 4, 0, (uint32_t)rand_r(&seed) % 4, &grant), 0);
			while (n_held[i] < 64 && (held[i][n_held[i]] = world_take_full(&w, i, k)) >= 0)
				n_held[i]++;
		} else if (n_held[i] > 1) {
			struct sheaf *a = session_sheaf(w.sessions[i], (uint32_t)held[i][n_held[i] - 1]);
			struct sheaf *b = session_sheaf(w.sessions[i], (uint32_t)held[i][rand_r(&seed) % (n_held[i] - 1)]);

			for (uint32_t j = 0; j < a->size && j < b->size; j += 1 + (uint32_t)rand_r(&seed) % 3) {
				uint32_t place = a->entry[j];

				a->entry[j] = b->entry[j];
				b->entry[j] = place;
			}
			world_give_back(&w, i, k, held[i][--n_held[i]], rand_r(&seed) % 2);
		}
		if (turn % 50 == 0)
			world_check(&w, k);
	}
	for (int i = 0; i < WORLD_SESSIONS; i++) {
		CU_ASSERT_EQUAL(w.sessions[i]->n_faults, 0);
		reaper_reap(w.sessions[i]);
		w.sessions[i] = NULL;
	}
	CU_ASSERT_EQUAL(world_check(&w, k).n_out, 0);
	world_deinit(&w);
}

CU_pSuite
test_grant_nodes_suite(void)
{
	CU_pSuite suite = CU_add_suite("grant nodes", NULL, NULL);

	CU_ADD_TEST(suite, test_grants_come_from_the_clients_node);
	CU_ADD_TEST(suite, test_carving_goes_on_with_the_next_node);
	CU_ADD_TEST(suite, test_strict_stays_on_the_node);
	CU_ADD_TEST(suite, test_mixed_sheaf_goes_home);
	CU_ADD_TEST(suite, test_barns_are_by_node);
	CU_ADD_TEST(suite, test_hand_over_between_nodes);
	return suite;
}
