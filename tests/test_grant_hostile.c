/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that give back what they do not have, played at the worst instant: in the midst of a refill slabd looks at lists which the client
 * wrote, and there is the very slot that it fills.
 *
 * A list whose slot links to itself never ends, so the slot is still on it when slabd looks again after having chosen it.
 */
#include <errno.h>

#include "shm/barn.h"
#include "tests/world.h"

CU_pSuite test_grant_hostile_suite(void);

enum { ME = LAYOUT_HOLDER_THREAD };

/* One sheaf of n objects comes and goes: its slot, the first session's first, is slabd's, and its objects lie in slabs. */
static void
make_slot_free(struct world *w, struct cache *k, uint32_t n)
{
	struct grant grant;

	CU_ASSERT_EQUAL_FATAL(world_refill(w, 0, k, 1, n, &grant), 0);
	CU_ASSERT_EQUAL_FATAL(grant.slot, 0);
	CU_ASSERT(barn_take(&session_slots(w->sessions[0])[0], LAYOUT_HOLDER_APP, ME));
	world_give_back(w, 0, k, 0, true);
	world_lock(w->sessions[0]);
	grant_close(w->sessions[0], k);
	world_unlock(w->sessions[0]);
	CU_ASSERT_EQUAL(w->sessions[0]->slots[0].cache, 0);
}

/* What the client writes: the slot is what `holder` says, and on the list for ever. */
static void
loop_slot(struct world *w, uint64_t *head, uint32_t holder)
{
	struct layout_slot *slots = session_slots(w->sessions[0]);

	atomic_write(&slots[0].holder, holder);
	atomic_write(&slots[0].next, 1);
	atomic_write(head, (uint64_t)1 << 16 | 1);
}

/* A refill that finds less than a sheaf looks at the returned ones: that which it fills, and which has twelve objects, is not one of them.
 */
static void
test_slot_being_filled_is_not_returned(void)
{
	enum { N_OTHERS = 20, N_LEFT = 12 };
	const struct cache_options options = {.name = "k",
		.size = 256,
		.sheaf_capacity = 28,
		.max_order = LAYOUT_KNOB_NONE,
		.min_partial = 100,
		.barn_full = LAYOUT_KNOB_NONE};
	struct grant grant;
	struct world w;
	struct cache *k;

	world_init(&w, 64 << 20, ARENA_PROFILE_DEFAULT);
	k = world_open_cache(&w, &options);
	make_slot_free(&w, k, k->capacity);
	CU_ASSERT_EQUAL_FATAL(world_refill(&w, 1, k, 1, N_OTHERS, &grant), 0);
	CU_ASSERT_EQUAL_FATAL(k->nodes[0].n_free, N_LEFT);

	loop_slot(&w, &session_cache(w.sessions[0], k->id)->returned, LAYOUT_HOLDER_RETURNED);
	CU_ASSERT_EQUAL(world_refill(&w, 0, k, 1, 0, &grant), 0);
	CU_ASSERT_EQUAL(grant.n_sheaves, 1);
	CU_ASSERT_EQUAL(grant.n_objects, k->capacity);
	CU_ASSERT_EQUAL(session_sheaf(w.sessions[0], grant.slot)->size, k->capacity);
	/* At the start it was with nobody, in the midst it was slabd's. */
	CU_ASSERT_EQUAL(w.sessions[0]->n_faults, 2);
	CU_ASSERT_EQUAL(barn_count(session_cache(w.sessions[0], k->id)->empty), 0);
	CU_ASSERT_EQUAL(world_check(&w, k).n_in_sheaves, k->capacity + N_OTHERS);
	world_deinit(&w);
}

/* When memory is short slabd calls in what lies in process barns: that which it fills is not one of them either. */
static void
test_slot_being_filled_is_not_called_in(void)
{
	enum { N = 20, N_OTHERS = 500, N_LEFT = 12 };
	const struct cache_options options = {
		.name = "k", .size = 4096, .max_order = LAYOUT_KNOB_NONE, .min_partial = 100, .barn_full = LAYOUT_KNOB_NONE};
	struct grant grant;
	struct world w;
	struct cache *k;

	world_init(&w, 2 << 20, ARENA_PROFILE_DEFAULT);
	k = world_open_cache(&w, &options);
	make_slot_free(&w, k, N);
	CU_ASSERT_EQUAL_FATAL(world_refill(&w, 1, k, 1, N_OTHERS, &grant), 0);

	loop_slot(&w, &session_cache(w.sessions[0], k->id)->full, LAYOUT_HOLDER_BARN);
	CU_ASSERT_EQUAL(world_refill(&w, 0, k, 1, N, &grant), -ENOMEM);
	CU_ASSERT_EQUAL(w.sessions[0]->n_faults, 1);
	CU_ASSERT_EQUAL(world_check(&w, k).n_in_sheaves, N_OTHERS);
	CU_ASSERT_EQUAL(world_refill(&w, 1, k, 1, N_LEFT, &grant), 0);
	world_deinit(&w);
}

/* Once a slot is back, its holder word may say what it likes. */
static void
test_slot_that_is_back_is_not_returned(void)
{
	const struct cache_options options = {.name = "k", .size = 256, .barn_full = LAYOUT_KNOB_NONE};
	struct grant grant;
	struct world w;
	struct cache *k;

	world_init(&w, 64 << 20, ARENA_PROFILE_DEFAULT);
	k = world_open_cache(&w, &options);
	make_slot_free(&w, k, k->capacity);
	loop_slot(&w, &session_cache(w.sessions[0], k->id)->returned, LAYOUT_HOLDER_RETURNED);
	for (unsigned i = 1; i <= 3; i++) {
		world_lock(w.sessions[0]);
		grant_flush(w.sessions[0], k);
		world_unlock(w.sessions[0]);
		CU_ASSERT_EQUAL(w.sessions[0]->n_faults, i);
	}
	/* It is lent once, and the next is another. */
	for (uint32_t i = 0; i < 2; i++) {
		CU_ASSERT_EQUAL(world_refill(&w, 0, k, 1, k->capacity, &grant), 0);
		CU_ASSERT_EQUAL(grant.slot, i);
	}
	world_deinit(&w);
}

/* A refill of many sheaves, each of which looks for an empty one on a list that never ends and has none: it looks so often, and not for each at all slots. */
static void
test_looped_list_is_left_soon(void)
{
	enum { N_EMPTY = 4096, N_SHEAVES = 200, MAX_LOOKS = 64 };
	const struct cache_options options = {.name = "k", .size = 64, .sheaf_capacity = 4, .min_partial = 1000, .barn_full = LAYOUT_KNOB_NONE};
	const struct grant_request empty = {.n_empty = 512};
	struct layout_session_cache *lists;
	struct layout_slot *slots;
	struct grant grant;
	struct world w;
	struct cache *k;

	world_init(&w, 64 << 20, ARENA_PROFILE_DEFAULT);
	k = world_open_cache(&w, &options);
	lists = session_cache(w.sessions[0], k->id);
	slots = session_slots(w.sessions[0]);
	for (uint32_t n = 0; n < N_EMPTY; n += grant.n_sheaves) {
		world_lock(w.sessions[0]);
		CU_ASSERT_EQUAL_FATAL(grant_refill(w.sessions[0], k, &empty, &grant, w.why, sizeof w.why), 0);
		world_unlock(w.sessions[0]);
	}
	/* There are objects for all. */
	CU_ASSERT_EQUAL_FATAL(world_refill(&w, 1, k, 1, LAYOUT_MAX_SHEAF, &grant), 0);
	CU_ASSERT(barn_take(&session_slots(w.sessions[1])[grant.slot], LAYOUT_HOLDER_APP, ME));
	world_give_back(&w, 1, k, (int32_t)grant.slot, true);
	/* As if each were with a thread. */
	for (uint32_t i = 0; i < N_EMPTY; i++)
		atomic_write(&slots[i].holder, ME);
	atomic_write(&slots[0].next, 1);
	atomic_write(&lists->empty, (uint64_t)1 << 16 | 1);
	CU_ASSERT_EQUAL(world_refill(&w, 0, k, N_SHEAVES, 0, &grant), 0);
	CU_ASSERT_EQUAL(grant.n_sheaves, N_SHEAVES);
	/* The tag says how often the list was changed. */
	CU_ASSERT(atomic_read(&lists->empty) >> 32 <= N_SHEAVES * MAX_LOOKS);
	world_deinit(&w);
}

/* What slabd has met of a client counts, whatever the client writes into the counters that are its own. */
static void
test_faults_cannot_be_counted_away(void)
{
	const struct cache_options options = {.name = "k", .size = 256, .barn_full = LAYOUT_KNOB_NONE};
	struct layout_session_cache *counts;
	struct world w;
	struct cache *k;

	world_init(&w, 64 << 20, ARENA_PROFILE_DEFAULT);
	k = world_open_cache(&w, &options);
	counts = session_cache(w.sessions[0], k->id);
	session_fault(w.sessions[0], "nothing");
	CU_ASSERT_EQUAL(session_count_faults(w.sessions[0]), 1);
	atomic_write(&counts->n_double_frees, UINT64_MAX);
	CU_ASSERT(session_count_faults(w.sessions[0]) > 1);
	atomic_write(&counts->n_wild_frees, (uint64_t)1 << 63);
	atomic_write(&counts->n_misaligned_frees, (uint64_t)1 << 63);
	CU_ASSERT(session_count_faults(w.sessions[0]) > 1);
	atomic_write(&counts->n_double_frees, 0);
	atomic_write(&counts->n_wild_frees, 0);
	atomic_write(&counts->n_misaligned_frees, 0);
	world_deinit(&w);
}

CU_pSuite
test_grant_hostile_suite(void)
{
	CU_pSuite suite = CU_add_suite("grant hostile", NULL, NULL);

	CU_ADD_TEST(suite, test_slot_being_filled_is_not_returned);
	CU_ADD_TEST(suite, test_slot_being_filled_is_not_called_in);
	CU_ADD_TEST(suite, test_slot_that_is_back_is_not_returned);
	CU_ADD_TEST(suite, test_looped_list_is_left_soon);
	CU_ADD_TEST(suite, test_faults_cannot_be_counted_away);
	return suite;
}
