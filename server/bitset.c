/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Set of numbers with a quick search: see bitset.h.
 *
 * bit b of levels[k] stands for word b of levels[k - 1]; setting a bit sets its bits above, clearing the last bit of a word clears them.  So a
 * search goes up until a word has a bit at or after the place, and then straight down.
 */
#include "server/bitset.h"

#include <errno.h>
#include <sys/mman.h>

static uint32_t
words_for(uint32_t n_bits)
{
	return n_bits / 64 + (n_bits % 64 != 0);
}

int
bitset_init(struct bitset *set, uint32_t n_bits)
{
	uint32_t n_words[BITSET_MAX_LEVELS], n_levels = 0, k;
	size_t total = 0;
	uint64_t *at;
	void *map;

	if (n_bits == 0)
		return -EINVAL;
	do {
		n_words[n_levels] = words_for(n_levels ? n_words[n_levels - 1] : n_bits);
		total += n_words[n_levels];
	} while (n_words[n_levels++] > 1);

	map = mmap(NULL, total * sizeof(*at), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (map == MAP_FAILED)
		return -errno;

	*set = (struct bitset){.n_levels = n_levels, .n_bits = n_bits, .bytes = total * sizeof(*at)};
	at = map;
	for (k = 0; k < n_levels; k++) {
		set->levels[k] = at;
		at += n_words[k];
	}
	return 0;
}

void
bitset_deinit(struct bitset *set)
{
	if (set->bytes)
		munmap(set->levels[0], set->bytes);
	*set = (struct bitset){0};
}

void
bitset_set(struct bitset *set, uint32_t bit)
{
	uint32_t k;

	for (k = 0; k < set->n_levels; k++) {
		uint64_t *word = &set->levels[k][bit / 64], old = *word;

		*word = old | 1ull << bit % 64;
		if (old)
			return; /* the bits above are set */
		bit /= 64;
	}
}

void
bitset_clear(struct bitset *set, uint32_t bit)
{
	uint32_t k;

	for (k = 0; k < set->n_levels; k++) {
		uint64_t *word = &set->levels[k][bit / 64];

		*word &= ~(1ull << bit % 64);
		if (*word)
			return;
		bit /= 64;
	}
}

bool
bitset_test(const struct bitset *set, uint32_t bit)
{
	return set->levels[0][bit / 64] >> bit % 64 & 1;
}

uint32_t
bitset_first(const struct bitset *set, uint32_t from)
{
	uint32_t at = from, n_bits = set->n_bits, k = 0;

	for (;;) {
		uint64_t found;

		if (k == set->n_levels || at >= n_bits)
			return BITSET_NONE;
		found = set->levels[k][at / 64] & ~0ull << at % 64;
		if (found) {
			at = at / 64 * 64 + (uint32_t)__builtin_ctzll(found);
			break;
		}
		at = at / 64 + 1;
		n_bits = words_for(n_bits);
		k++;
	}
	while (k-- > 0)
		at = at * 64 + (uint32_t)__builtin_ctzll(set->levels[k][at]);
	return at;
}
