/* SPDX-License-Identifier: Apache-2.0 */
/* Barn lists: see barn.h.  The tag makes a head that came back look different, so that a slow compare-and-swap cannot succeed by mistake. */
#include "shm/barn.h"

#include "shm/step.h"

#define HEAD_SLOT_MASK 0xffffu

/* No honest crowd makes a compare-and-swap fail so often; a client that never stops writing the head must not hold slabd. */
enum { MAX_LOST = 100000 };

static uint64_t
head_make(uint64_t old, uint32_t slot_plus_one, uint32_t count)
{
	uint64_t tag = (old >> 32) + 1;

	return (tag << 32) | ((uint64_t)(count & 0xffff) << 16) | slot_plus_one;
}

void
barn_push_chain(uint64_t *head, struct layout_slot *slots, uint32_t first, uint32_t last, uint32_t n)
{
	uint64_t old = atomic_read(head);

	for (int tries = 0; tries < MAX_LOST; tries++) {
		atomic_write(&slots[last].next, (uint32_t)old & HEAD_SLOT_MASK);
		STEP(BARN_READ);
		/* order: BARN release - the links are written before the list shows the slots */
		if (atomic_cas(head, &old, head_make(old, first + 1, barn_count(old) + n)))
			return;
	}
}

void
barn_push(uint64_t *head, struct layout_slot *slots, uint32_t slot)
{
	barn_push_chain(head, slots, slot, slot, 1);
}

int32_t
barn_pop(uint64_t *head, struct layout_slot *slots, uint32_t n_slots)
{
	/* order: BARN acquire - pairs with barn_push_chain(): the link of the slot that the head names */
	uint64_t old = atomic_read_acquire(head);

	for (int tries = 0; tries < MAX_LOST; tries++) {
		uint32_t top = (uint32_t)old & HEAD_SLOT_MASK, next = 0, count = barn_count(old);

		if (top == 0)
			return -1;
		if (top <= n_slots)
			next = atomic_read(&slots[top - 1].next);
		if (top > n_slots || next > n_slots)
			next = top = 0; /* somebody wrote nonsense: the slots are found by walking */
		if (next == 0)
			count = 1;
		STEP(BARN_READ);
		if (atomic_cas(head, &old, head_make(old, next, count - 1)))
			return (int32_t)top - 1;
	}
	return -1;
}

uint32_t
barn_pop_some(uint64_t *head, struct layout_slot *slots, uint32_t n_slots, uint32_t want, uint16_t *popped)
{
	/* order: BARN acquire - pairs with barn_push_chain(): the links below the slot that the head names, older ones too, since heads change by compare-and-swap only */
	uint64_t old = atomic_read_acquire(head);

	for (int tries = 0; tries < MAX_LOST; tries++) {
		uint32_t top = (uint32_t)old & HEAD_SLOT_MASK, count = barn_count(old), n = 0;

		if (top == 0)
			return 0;
		/* Whoever changes a link of these has changed the head. */
		while (n < want && top != 0 && top <= n_slots) {
			popped[n++] = (uint16_t)(top - 1);
			top = atomic_read(&slots[top - 1].next);
		}
		if (top > n_slots)
			top = 0; /* somebody wrote nonsense: the slots are found by walking */
		STEP(BARN_READ);
		if (atomic_cas(head, &old, head_make(old, top, top == 0 || count < n ? 0 : count - n)))
			return n;
	}
	return 0;
}
