/* SPDX-License-Identifier: Apache-2.0 */
/* Barn lists: order, bounds against what a client may have written, and conservation under threads that push, pop and take. */
#include <pthread.h>
#include <string.h>

#include <CUnit/CUnit.h>

#include "shm/barn.h"

CU_pSuite test_barn_suite(void);

enum { N_SLOTS = 64 };

static struct layout_slot slots[N_SLOTS];

static uint32_t
head_slot(uint64_t head)
{
	return (uint32_t)head & 0xffff;
}

/* Last in, first out; the head counts. */
static void
test_stack_order_and_count(void)
{
	uint64_t head = 0, before;

	CU_ASSERT_EQUAL(barn_pop(&head, slots, N_SLOTS), -1);
	CU_ASSERT_EQUAL(barn_count(head), 0);
	for (uint32_t i = 0; i < N_SLOTS; i++) {
		barn_push(&head, slots, i);
		CU_ASSERT_EQUAL(barn_count(head), i + 1);
		CU_ASSERT_EQUAL(head_slot(head), i + 1);
	}
	for (uint32_t i = N_SLOTS; i-- > 0;) {
		before = head;
		CU_ASSERT_EQUAL(barn_pop(&head, slots, N_SLOTS), (int32_t)i);
		CU_ASSERT_EQUAL(barn_count(head), i);
		CU_ASSERT(before >> 32 != head >> 32); /* the tag: a head never comes back as it was */
	}
	CU_ASSERT_EQUAL(barn_pop(&head, slots, N_SLOTS), -1);
}

/* A head or link that no correct client writes empties the list instead of leading anywhere. */
static void
test_nonsense_empties_the_list(void)
{
	static const uint32_t wrong[] = {N_SLOTS + 1, 0xffff};
	uint64_t head;

	for (unsigned i = 0; i < 2; i++) {
		head = (uint64_t)7 << 16 | wrong[i];
		CU_ASSERT_EQUAL(barn_pop(&head, slots, N_SLOTS), -1);
		CU_ASSERT_EQUAL(barn_pop(&head, slots, N_SLOTS), -1);
		CU_ASSERT_EQUAL(head_slot(head), 0);

		head = 0;
		barn_push(&head, slots, 3);
		barn_push(&head, slots, 4);
		slots[4].next = wrong[i];
		CU_ASSERT_EQUAL(barn_pop(&head, slots, N_SLOTS), -1);
		CU_ASSERT_EQUAL(head_slot(head), 0);
	}
	/* Slots that slabd has not made are not there. */
	head = 0;
	barn_push(&head, slots, 10);
	CU_ASSERT_EQUAL(barn_pop(&head, slots, 10), -1);
	/* A loop gives slots for ever: who walks bounds the walk, and the holder word says who has what. */
	head = 0;
	barn_push(&head, slots, 5);
	slots[5].next = 5 + 1;
	for (int i = 0; i < 1000; i++)
		CU_ASSERT_EQUAL(barn_pop(&head, slots, N_SLOTS), 5);
}

/* A sheaf is taken by one, whoever finds it on which list. */
static void
test_holder_word_decides(void)
{
	struct layout_slot slot = {.holder = LAYOUT_HOLDER_SLABD};

	CU_ASSERT(!barn_take(&slot, LAYOUT_HOLDER_BARN, LAYOUT_HOLDER_THREAD));
	CU_ASSERT_EQUAL(slot.holder, LAYOUT_HOLDER_SLABD);
	barn_hand(&slot, LAYOUT_HOLDER_BARN);
	CU_ASSERT(barn_take(&slot, LAYOUT_HOLDER_BARN, LAYOUT_HOLDER_THREAD + 1));
	CU_ASSERT(!barn_take(&slot, LAYOUT_HOLDER_BARN, LAYOUT_HOLDER_SLABD));
	CU_ASSERT_EQUAL(slot.holder, LAYOUT_HOLDER_THREAD + 1);
}

enum { N_THREADS = 4, N_TURNS = 100000 };

struct crowd {
	uint64_t lists[2];
	uint32_t n_inside[N_SLOTS]; /* who has the slot now */
	uint32_t n_bad;
};

static void *
take_and_put(void *arg)
{
	struct crowd *crowd = arg;

	for (int i = 0; i < N_TURNS; i++) {
		int32_t slot = barn_pop(&crowd->lists[i % 2], slots, N_SLOTS);

		if (slot < 0)
			continue;
		/* Popped by one only, so the holder word is still as it was handed. */
		if (atomic_add(&crowd->n_inside[slot], 1) != 0 || !barn_take(&slots[slot], LAYOUT_HOLDER_BARN, LAYOUT_HOLDER_THREAD))
			atomic_add(&crowd->n_bad, 1);
		atomic_add(&crowd->n_inside[slot], -1u);
		barn_hand(&slots[slot], LAYOUT_HOLDER_BARN);
		barn_push(&crowd->lists[(i / 2) % 2], slots, (uint32_t)slot);
	}
	return NULL;
}

/* Four threads pop and push two lists: no slot is popped twice, none gets lost, the counts add up. */
static void
test_threads_conserve_slots(void)
{
	struct crowd crowd = {{0}, {0}, 0};
	uint32_t seen[N_SLOTS] = {0}, n = 0;
	pthread_t threads[N_THREADS];
	int32_t slot;

	for (uint32_t i = 0; i < N_SLOTS; i++) {
		barn_hand(&slots[i], LAYOUT_HOLDER_BARN);
		barn_push(&crowd.lists[i % 2], slots, i);
	}
	for (int i = 0; i < N_THREADS; i++)
		CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, take_and_put, &crowd), 0);
	for (int i = 0; i < N_THREADS; i++)
		pthread_join(threads[i], NULL);
	CU_ASSERT_EQUAL(crowd.n_bad, 0);
	CU_ASSERT_EQUAL(barn_count(crowd.lists[0]) + barn_count(crowd.lists[1]), N_SLOTS);
	for (int i = 0; i < 2; i++)
		while ((slot = barn_pop(&crowd.lists[i], slots, N_SLOTS)) >= 0) {
			n++;
			seen[slot]++;
		}
	CU_ASSERT_EQUAL(n, N_SLOTS);
	for (uint32_t i = 0; i < N_SLOTS; i++)
		CU_ASSERT_EQUAL(seen[i], 1);
}

CU_pSuite
test_barn_suite(void)
{
	CU_pSuite suite = CU_add_suite("barn", NULL, NULL);

	CU_ADD_TEST(suite, test_stack_order_and_count);
	CU_ADD_TEST(suite, test_nonsense_empties_the_list);
	CU_ADD_TEST(suite, test_holder_word_decides);
	CU_ADD_TEST(suite, test_threads_conserve_slots);
	return suite;
}
