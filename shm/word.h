/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The object word: who holds an object, in which state, in which life.
 *
 *     31            16 15  14 13             0
 *    +----------------+------+----------------+
 *    |   generation   | state|  owner slot    |
 *    +----------------+------+----------------+
 *
 * Owner 0: unowned (free, or idle in a sheaf).  WORD_ORPHAN: kept for nobody in particular.  The generation is advanced by each allocation
 * and never set back, whatever object the word stands for (design.md, section 3; tests/model).
 *
 *   0 --alloc--> OWNED --ref_of, adopt, give--> SHARED --free--> CLOSING --> 0
 *                OWNED --free (nobody else can take it)--------------------> 0
 */
#ifndef SLAB_SHM_WORD_H
#define SLAB_SHM_WORD_H

#include <stdbool.h>
#include <stdint.h>

#define WORD_OWNER_MASK 0x3fffu
#define WORD_ORPHAN 0x3fffu /* an owner value no client has */
#define WORD_STATE_MASK 0xc000u
#define WORD_OWNED 0x0000u
#define WORD_SHARED 0x4000u
#define WORD_CLOSING 0x8000u
#define WORD_LOW_MASK 0xffffu /* owner and state */
#define WORD_GENERATION_ONE 0x10000u

static inline uint32_t
word_owner(uint32_t w)
{
	return w & WORD_OWNER_MASK;
}

static inline uint32_t
word_state(uint32_t w)
{
	return w & WORD_STATE_MASK;
}

static inline uint32_t
word_generation(uint32_t w)
{
	return w >> 16;
}

/* The same life, unowned. */
static inline uint32_t
word_cleared(uint32_t w)
{
	return w & ~WORD_LOW_MASK;
}

/* The same life, held by owner in that state. */
static inline uint32_t
word_with(uint32_t w, uint32_t owner, uint32_t state)
{
	return word_cleared(w) | state | owner;
}

/* Somebody holds the object and is not freeing it: it may be resolved and, if SHARED, claimed. */
static inline bool
word_is_live(uint32_t w)
{
	return word_owner(w) != 0 && word_state(w) != WORD_CLOSING;
}

#endif
