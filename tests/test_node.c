/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes: partial lists, when a slab is discarded, the node barn, and what list_lock counts. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/world.h"

CU_pSuite test_node_suite(void);

/* A refill takes whole free lists of as few slabs as do, from the head; what an allocation left over stays at the head, what frees made
 * partial joins at the tail. */
static void
test_whole_free_lists_in_order(void)
{
	const struct cache_options options = {.name = "k", .size = 256, .max_order = LAYOUT_KNOB_NONE};
	uint32_t slabs[3], places[64], n;
	struct world w;
	struct cache *k;

	world_init(&w, 64 << 20, ARENA_PROFILE_DEFAULT);
	k = world_open_cache(&w, &options);
	CU_ASSERT_EQUAL_FATAL(k->n_slab_objects, 16);
	for (int i = 0; i < 3; i++)
		slabs[i] = world_add_slab(&w, k);
	CU_ASSERT_EQUAL(k->nodes[0].first_partial, slabs[2]); /* fresh: at the head */
	CU_ASSERT_EQUAL(k->nodes[0].n_partial, 3);
	CU_ASSERT_EQUAL(world_take(&w, k, places, 48), 48);
	CU_ASSERT_EQUAL(k->nodes[0].n_partial, 0);
	CU_ASSERT_EQUAL(k->nodes[0].first_partial, 0);
	CU_ASSERT_EQUAL(world_take(&w, k, places, 1), 0);

	world_put(&w, k, slabs[1], 3, 5);
	world_put(&w, k, slabs[0], 0, 7);
	world_put(&w, k, slabs[2], 10, 1);
	world_put(&w, k, slabs[1], 9, 1); /* on the list already: keeps its place */
	CU_ASSERT_EQUAL(k->nodes[0].n_partial, 3);
	CU_ASSERT_EQUAL(k->nodes[0].first_partial, slabs[1]);
	CU_ASSERT_EQUAL(k->nodes[0].last_partial, slabs[2]);

	/* Six of the first slab, one of the second, nothing of the third. */
	n = world_take(&w, k, places, 7);
	CU_ASSERT_EQUAL(n, 7);
	for (uint32_t i = 0; i < 6; i++)
		CU_ASSERT_EQUAL(world_slab_of(&w, places[i]), slabs[1]);
	for (uint32_t i = 1; i < 6; i++)
		CU_ASSERT(places[i] > places[i - 1]);
	CU_ASSERT_EQUAL(world_slab_of(&w, places[6]), slabs[0]);
	CU_ASSERT_EQUAL(k->nodes[0].n_partial, 2);
	CU_ASSERT_EQUAL(k->nodes[0].first_partial, slabs[0]);
	CU_ASSERT_EQUAL(w.arena->slabs[slabs[0]].n_free, 6);
	CU_ASSERT_EQUAL(k->nodes[0].n_free, 7);
	/* More than there is. */
	CU_ASSERT_EQUAL(world_take(&w, k, places, 64), 7);
	CU_ASSERT_EQUAL(k->nodes[0].n_partial, 0);
	/* All are OUT and nowhere, but for the audit that is a loss: back they go. */
	for (int i = 0; i < 3; i++)
		world_put(&w, k, slabs[i], 0, 16);
	world_deinit(&w);
}

/* An empty slab is discarded when n_partial >= min_partial, itself counted if it is on the list; else kept. */
static void
test_discard_rule(void)
{
	static const uint32_t knobs[] = {LAYOUT_KNOB_NONE, 1, 2, 3};

	for (unsigned i = 0; i < 4; i++) {
		const struct cache_options options = {.name = "k", .size = 256, .max_order = LAYOUT_KNOB_NONE, .min_partial = knobs[i]};
		uint32_t places[64], slabs[4], min_partial = knobs[i] == LAYOUT_KNOB_NONE ? 0 : knobs[i], n_kept = 0;
		struct world w;
		struct cache *k;

		world_init(&w, 64 << 20, ARENA_PROFILE_DEFAULT);
		k = world_open_cache(&w, &options);
		CU_ASSERT_EQUAL(k->min_partial, min_partial);
		for (int j = 0; j < 4; j++)
			slabs[j] = world_add_slab(&w, k);
		CU_ASSERT_EQUAL(world_take(&w, k, places, 64), 64);
		for (int j = 0; j < 4; j++) {
			world_put(&w, k, slabs[j], 0, 15);
			CU_ASSERT_EQUAL(k->nodes[0].n_partial, n_kept + 1);
			CU_ASSERT_EQUAL(k->nodes[0].n_slabs, 4 - (unsigned)j + n_kept);
			world_put(&w, k, slabs[j], 15, 1);
			n_kept += n_kept + 1 < min_partial;
			CU_ASSERT_EQUAL(k->nodes[0].n_partial, n_kept);
			CU_ASSERT_EQUAL(k->nodes[0].n_slabs, 3 - (unsigned)j + n_kept);
		}
		CU_ASSERT_EQUAL(k->nodes[0].n_discarded, 4 - n_kept);
		CU_ASSERT_EQUAL(k->nodes[0].n_objects, 16 * n_kept);
		/* A trim leaves none, whatever the knob says. */
		node_trim(w.arena, &k->nodes[0]);
		CU_ASSERT_EQUAL(k->nodes[0].n_slabs, 0);
		CU_ASSERT_EQUAL(w.arena->committed_bytes, 0);
		world_deinit(&w);
	}
}

/* Where no block of the chosen order is left the smallest one that holds an object does; counted. */
static void
test_order_fallback(void)
{
	const struct cache_options options = {.name = "k", .size = 2000, .min_order = 3};
	uint32_t pages[512], n = 0, slab;
	struct world w;
	struct cache *k;

	world_init(&w, 2 << 20, ARENA_PROFILE_DEFAULT);
	k = world_open_cache(&w, &options);
	CU_ASSERT_EQUAL(k->order, 3);
	while (n < 512 && arena_pages_alloc(w.arena, 0, 0, &pages[n]) == 0)
		n++;
	CU_ASSERT_EQUAL(n, 512);
	CU_ASSERT_EQUAL(slab_new(w.arena, k, 0, &slab), -ENOSPC);
	/* Single pages that are no neighbours. */
	for (uint32_t i = 1; i < 8; i += 2)
		arena_pages_free(w.arena, pages[i], 0);
	for (int i = 0; i < 4; i++) {
		slab = world_add_slab(&w, k);
		CU_ASSERT_EQUAL(w.arena->slabs[slab].order, 0);
		CU_ASSERT_EQUAL(w.arena->slabs[slab].n_objects, 2);
	}
	CU_ASSERT_EQUAL(slab_new(w.arena, k, 0, &slab), -ENOSPC);
	CU_ASSERT_EQUAL(k->nodes[0].n_order_fallback, 4);
	CU_ASSERT_EQUAL(k->nodes[0].n_pages, 4);
	CU_ASSERT_EQUAL(k->nodes[0].n_objects, 8);
	/* With room again, the chosen order. */
	for (uint32_t i = 16; i < 32; i++)
		arena_pages_free(w.arena, pages[i], 0);
	slab = world_add_slab(&w, k);
	CU_ASSERT_EQUAL(w.arena->slabs[slab].order, 3);
	CU_ASSERT_EQUAL(k->nodes[0].n_order_fallback, 4);
	world_deinit(&w);
}

static uint32_t
copy_places(struct world *w, int i, int32_t slot, uint32_t *places)
{
	const struct sheaf *sheaf = session_sheaf(w->sessions[i], (uint32_t)slot);

	memcpy(places, sheaf->entry, sheaf->size * sizeof places[0]);
	return sheaf->size;
}

static int
compare_places(const void *a, const void *b)
{
	const uint32_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

/* Sheaves that one client gives back go whole to the next, the oldest first, without a slab's being touched; the barn is bounded. */
static void
test_node_barn_is_fifo_and_bounded(void)
{
	const struct cache_options options = {.name = "k", .size = 64, .barn_full = 3};
	uint32_t places[5][LAYOUT_MAX_SHEAF], got[LAYOUT_MAX_SHEAF];
	struct grant grant;
	int32_t slots[5];
	uint64_t n_free, n_touched;
	struct world w;
	struct cache *k;

	world_init(&w, 64 << 20, ARENA_PROFILE_DEFAULT);
	k = world_open_cache(&w, &options);
	for (int i = 0; i < 5; i++) {
		CU_ASSERT_EQUAL(world_refill(&w, 0, k, 1, 0, &grant), 0);
		slots[i] = world_take_full(&w, 0, k);
		CU_ASSERT_FATAL(slots[i] >= 0);
		CU_ASSERT_EQUAL(copy_places(&w, 0, slots[i], places[i]), k->capacity);
	}
	for (int i = 0; i < 5; i++)
		world_give_back(&w, 0, k, slots[i], true);
	CU_ASSERT_EQUAL(k->nodes[0].n_full, 3);
	CU_ASSERT_EQUAL(k->nodes[0].n_barn, 3 * k->capacity);
	CU_ASSERT_EQUAL(k->nodes[0].n_sheaves_taken, 5);
	n_free = k->nodes[0].n_free;
	CU_ASSERT_EQUAL(world_check(&w, k).n_out, 0);

	/* Each was taken from a slab or more, and two went back there. */
	n_touched = k->nodes[0].n_slabs_touched;
	CU_ASSERT(n_touched >= 5 && n_touched <= 7 * k->capacity);
	for (int i = 0; i < 3; i++) {
		int32_t slot;

		CU_ASSERT_EQUAL(world_refill(&w, 1, k, 1, 0, &grant), 0);
		CU_ASSERT_EQUAL(grant.n_objects, k->capacity);
		slot = world_take_full(&w, 1, k);
		CU_ASSERT_EQUAL(copy_places(&w, 1, slot, got), k->capacity);
		qsort(places[i], k->capacity, sizeof got[0], compare_places);
		qsort(got, k->capacity, sizeof got[0], compare_places);
		CU_ASSERT_EQUAL(memcmp(places[i], got, k->capacity * sizeof got[0]), 0);
	}
	CU_ASSERT_EQUAL(k->nodes[0].n_free, n_free);
	CU_ASSERT_EQUAL(k->nodes[0].n_slabs_touched, n_touched);
	CU_ASSERT_EQUAL(k->nodes[0].n_full, 0);
	CU_ASSERT_EQUAL(k->nodes[0].n_barn, 0);
	world_deinit(&w);
}

/* list_lock's own counters: one thread holds it, another must wait. */
static void *
lock_and_unlock(void *arg)
{
	node_lock(arg);
	node_unlock(arg);
	return NULL;
}

static void
test_list_lock_counts(void)
{
	const struct cache_options options = {.name = "k", .size = 64};
	const struct timespec moment = {.tv_nsec = 1000000};
	struct list_lock *lock;
	pthread_t thread;
	struct world w;
	struct cache *k;

	world_init(&w, 8 << 20, ARENA_PROFILE_DEFAULT);
	k = world_open_cache(&w, &options);
	lock = &k->nodes[0].lock;
	CU_ASSERT_EQUAL(lock->n_acquired, 0);
	/* The first hold is timed, the others of its sixteen are not. */
	for (int i = 0; i < NODE_LOCK_SAMPLE; i++)
		lock_and_unlock(&k->nodes[0]);
	CU_ASSERT_EQUAL(lock->n_acquired, NODE_LOCK_SAMPLE);
	CU_ASSERT_EQUAL(lock->n_contended, 0);
	CU_ASSERT_EQUAL(lock->wait_ns, 0);
	CU_ASSERT(lock->hold_ns > 0 && lock->hold_ns % NODE_LOCK_SAMPLE == 0);

	node_lock(&k->nodes[0]);
	CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, lock_and_unlock, &k->nodes[0]), 0);
	/* It waits when it sleeps in the mutex: then the lock's word says that somebody does. */
	while (__atomic_load_n(&lock->mutex.__data.__lock, __ATOMIC_RELAXED) < 2)
		nanosleep(&moment, NULL);
	nanosleep(&moment, NULL);
	CU_ASSERT_EQUAL(lock->n_contended, 0); /* is told by who has it */
	node_unlock(&k->nodes[0]);
	CU_ASSERT_EQUAL(pthread_join(thread, NULL), 0);
	CU_ASSERT_EQUAL(lock->n_acquired, NODE_LOCK_SAMPLE + 2);
	CU_ASSERT_EQUAL(lock->n_contended, 1);
	CU_ASSERT(lock->wait_ns >= 1000000);
	/* That hold was timed: it is multiplied. */
	CU_ASSERT(lock->hold_ns >= (uint64_t)NODE_LOCK_SAMPLE * 1000000);
	world_deinit(&w);
}

CU_pSuite
test_node_suite(void)
{
	CU_pSuite suite = CU_add_suite("node", NULL, NULL);

	CU_ADD_TEST(suite, test_whole_free_lists_in_order);
	CU_ADD_TEST(suite, test_discard_rule);
	CU_ADD_TEST(suite, test_order_fallback);
	CU_ADD_TEST(suite, test_node_barn_is_fifo_and_bounded);
	CU_ADD_TEST(suite, test_list_lock_counts);
	return suite;
}
