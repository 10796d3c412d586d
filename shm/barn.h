/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Barn lists: lock-free stacks of slots in the session segment, shared by the client's threads and slabd.
 *
 * A list is a hint.  A sheaf changes hands by one compare-and-swap on its slot's holder word (barn_take()); whoever is killed between the
 * holder word and the list leaves a slot that is found by walking (I2; tests/model/barn.pml).
 * A client can write heads and links: a popped number is checked against n_slots, its holder by compare-and-swap, and a caller's loops are bounded.
 */
#ifndef SLAB_SHM_BARN_H
#define SLAB_SHM_BARN_H

#include "shm/atomic.h"
#include "shm/layout.h"

/* Sheaves on the list, as its head says. */
static inline uint32_t
barn_count(uint64_t head)
{
	return (uint32_t)(head >> 16) & 0xffff;
}

/* Puts a slot on a list.  The holder word must say so already.  Who cannot get through to the head leaves it off: it is found by walking. */
void barn_push(uint64_t *head, struct layout_slot *slots, uint32_t slot);

/* Takes the newest slot off a list; -1: empty, or a head or link of n_slots and more (then the list is emptied). */
int32_t barn_pop(uint64_t *head, struct layout_slot *slots, uint32_t n_slots);

/* Puts n slots on a list, linked from first to last by next as barn_link() does it. */
void barn_push_chain(uint64_t *head, struct layout_slot *slots, uint32_t first, uint32_t last, uint32_t n);

/* Takes up to `want` of the newest off a list, newest first. Returns how many; a nonsensical link ends the list. */
uint32_t barn_pop_some(uint64_t *head, struct layout_slot *slots, uint32_t n_slots, uint32_t want, uint16_t *popped);

/* Of a chain to be pushed: `next` comes after `slot`, which is still the caller's. */
static inline void
barn_link(struct layout_slot *slots, uint32_t slot, uint32_t next)
{
	atomic_write(&slots[slot].next, next + 1);
}

/* Makes the slot mine, if its holder is still `from`. */
static inline bool
barn_take(struct layout_slot *slot, uint32_t from, uint32_t to)
{
	/* order: HOLDER acquire - pairs with barn_hand(): the sheaf is as its last holder left it */
	return atomic_cas(&slot->holder, &from, to);
}

/* Hands my slot on. Every word of its entries must be clear (I1). */
static inline void
barn_hand(struct layout_slot *slot, uint32_t to)
{
	/* order: HOLDER release - sheaf, size and words are written before the slot changes hands */
	atomic_write_release(&slot->holder, to);
}

#endif
