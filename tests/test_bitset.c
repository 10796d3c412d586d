/* SPDX-License-Identifier: Apache-2.0 */
/* Bitsets against a plain byte map, at the sizes where a level begins. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <CUnit/CUnit.h>

#include "server/bitset.h"

CU_pSuite test_bitset_suite(void);

static unsigned
seed_get(void)
{
	const char *text = getenv("SLAB_SEED");
	unsigned seed = text ? (unsigned)strtoul(text, NULL, 0) : (unsigned)time(NULL);

	printf(" seed %u ", seed);
	return seed;
}

static uint32_t
shadow_first(const uint8_t *shadow, uint32_t n_bits, uint32_t from)
{
	for (; from < n_bits; from++)
		if (shadow[from])
			return from;
	return BITSET_NONE;
}

/* A bit above is set exactly while its word below is not zero. */
static bool
summaries_are_exact(const struct bitset *set)
{
	uint32_t k, i, n_bits = set->n_bits;

	for (k = 0; k + 1 < set->n_levels; k++) {
		n_bits = (n_bits + 63) / 64;
		for (i = 0; i < n_bits; i++)
			if ((set->levels[k][i] != 0) != (set->levels[k + 1][i / 64] >> i % 64 & 1))
				return false;
	}
	return true;
}

static void
test_random_ops_match_a_byte_map(void)
{
	static const uint32_t sizes[] = {1, 2, 63, 64, 65, 4095, 4096, 4097, 70000};
	unsigned seed = seed_get();
	size_t s;
	int i;

	for (s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		uint32_t n = sizes[s];
		uint8_t *shadow = calloc(n, 1);
		struct bitset set;

		CU_ASSERT_EQUAL_FATAL(bitset_init(&set, n), 0);
		for (i = 0; i < 3000; i++) {
			uint32_t bit = (uint32_t)rand_r(&seed) % n, from = (uint32_t)rand_r(&seed) % (n + 2);

			/* Long phases of filling and of emptying, so that summaries come and go. */
			if (rand_r(&seed) % 8 < (i / 500 % 2 ? 1 : 6)) {
				bitset_set(&set, bit);
				shadow[bit] = 1;
			} else {
				uint32_t first = bitset_first(&set, bit);

				bit = first == BITSET_NONE ? bit : first;
				bitset_clear(&set, bit);
				shadow[bit] = 0;
			}
			CU_ASSERT_EQUAL(bitset_test(&set, bit), shadow[bit] != 0);
			CU_ASSERT_EQUAL(bitset_first(&set, from), shadow_first(shadow, n, from));
			CU_ASSERT_EQUAL(bitset_first(&set, n), BITSET_NONE);
		}
		CU_ASSERT(summaries_are_exact(&set));
		bitset_deinit(&set);
		free(shadow);
	}
}

static void
test_first_at_the_ends(void)
{
	struct bitset set;

	CU_ASSERT_EQUAL(bitset_init(&set, 0), -EINVAL);
	CU_ASSERT_EQUAL_FATAL(bitset_init(&set, 4097), 0);
	CU_ASSERT_EQUAL(bitset_first(&set, 0), BITSET_NONE);
	bitset_set(&set, 4096);
	CU_ASSERT_EQUAL(bitset_first(&set, 0), 4096);
	CU_ASSERT_EQUAL(bitset_first(&set, 4096), 4096);
	CU_ASSERT_EQUAL(bitset_first(&set, 4097), BITSET_NONE);
	CU_ASSERT_EQUAL(bitset_first(&set, UINT32_MAX), BITSET_NONE);
	bitset_set(&set, 0);
	CU_ASSERT_EQUAL(bitset_first(&set, 0), 0);
	CU_ASSERT_EQUAL(bitset_first(&set, 1), 4096);
	bitset_deinit(&set);
}

/* The largest set there can be: half a GiB of addresses, and only the touched pages of it in memory. */
static void
test_large_set_costs_what_it_holds(void)
{
	unsigned char *in_core;
	size_t n_pages, n_in_core = 0, i;
	struct bitset set;

	CU_ASSERT_EQUAL_FATAL(bitset_init(&set, UINT32_MAX), 0);
	CU_ASSERT_EQUAL(set.n_levels, 6);
	bitset_set(&set, UINT32_MAX - 1);
	bitset_set(&set, 1u << 31);
	CU_ASSERT_EQUAL(bitset_first(&set, 0), 1u << 31);
	CU_ASSERT_EQUAL(bitset_first(&set, (1u << 31) + 1), UINT32_MAX - 1);

	n_pages = (set.bytes + 4095) / 4096;
	in_core = malloc(n_pages);
	CU_ASSERT_EQUAL_FATAL(mincore(set.levels[0], set.bytes, in_core), 0);
	for (i = 0; i < n_pages; i++)
		n_in_core += in_core[i] & 1;
	CU_ASSERT(n_in_core <= 2 * 6);
	free(in_core);

	bitset_clear(&set, 1u << 31);
	CU_ASSERT_EQUAL(bitset_first(&set, 0), UINT32_MAX - 1);
	bitset_deinit(&set);
	bitset_deinit(&set);
}

CU_pSuite
test_bitset_suite(void)
{
	CU_pSuite suite = CU_add_suite("bitset", NULL, NULL);

	CU_ADD_TEST(suite, test_random_ops_match_a_byte_map);
	CU_ADD_TEST(suite, test_first_at_the_ends);
	CU_ADD_TEST(suite, test_large_set_costs_what_it_holds);
	return suite;
}
