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

CU_pSuite
test_grant_hostile_suite(void)
{
	CU_pSuite suite = CU_add_suite("grant hostile", NULL, NULL);

	CU_ADD_TEST(suite, test_slot_being_filled_is_not_returned);
	CU_ADD_TEST(suite, test_slot_being_filled_is_not_called_in);
	CU_ADD_TEST(suite, test_slot_that_is_back_is_not_returned);
	return suite;
}
