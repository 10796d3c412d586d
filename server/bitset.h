/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Set of numbers below a fixed bound that finds its smallest member at or after a number in a few steps.
 *
 * One bit a number, and above it one bit for each non-empty word of 64 bits, and so on up to a single word: at most BITSET_MAX_LEVELS looks.
 * The memory is mapped, zero and not reserved: a large set with few members costs the pages that its members touch.
 * No lock of its own.
 */
#ifndef SLAB_SERVER_BITSET_H
#define SLAB_SERVER_BITSET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BITSET_MAX_LEVELS = 6 };

#define BITSET_NONE UINT32_MAX

struct bitset {
	/* levels[0] has a bit a number; a bit of levels[k + 1] is set iff that word of levels[k] is not zero. */
	uint64_t *levels[BITSET_MAX_LEVELS];
	uint32_t n_levels;
	/* Members are below this. */
	uint32_t n_bits;
	/* Bytes mapped at levels[0]. */
	size_t bytes;
};

/* Empty set of numbers below n_bits.  -EINVAL: n_bits is 0; -ENOMEM. */
int bitset_init(struct bitset *set, uint32_t n_bits);

/* Also on a set that is all zero (never initialised). */
void bitset_deinit(struct bitset *set);

/* bit < n_bits. */
void bitset_set(struct bitset *set, uint32_t bit);
void bitset_clear(struct bitset *set, uint32_t bit);
bool bitset_test(const struct bitset *set, uint32_t bit);

/* Smallest member >= from, which may be any number; BITSET_NONE: there is none. */
uint32_t bitset_first(const struct bitset *set, uint32_t from);

#endif
