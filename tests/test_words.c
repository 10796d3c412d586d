/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of words: no overlap, natural alignment, blocks that change their size, and conservation. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <CUnit/CUnit.h>

#include "server/words.h"

CU_pSuite test_words_suite(void);

static unsigned
seed_get(void)
{
	const char *text = getenv("SLAB_SEED");
	unsigned seed = text ? (unsigned)strtoul(text, NULL, 0) : (unsigned)time(NULL);

	printf(" seed %u ", seed);
	return seed;
}

static uint32_t
rounded(uint32_t n)
{
	uint32_t run = 16;

	while (run < n)
		run *= 2;
	return run;
}

struct run {
	uint32_t first, n;
};

enum { TABLE_BLOCKS = 40, TABLE_WORDS = TABLE_BLOCKS * WORDS_BLOCK, MAX_RUNS = TABLE_WORDS / 16 };

/* 100,000 random allocations and frees against a byte a word. */
static void
test_random_runs_do_not_overlap(void)
{
	unsigned seed = seed_get();
	uint8_t *shadow = calloc(TABLE_WORDS, 1);
	struct run *runs = calloc(MAX_RUNS, sizeof(*runs));
	struct words_counters counters;
	uint32_t n_runs = 0, i, j, n_full = 0;
	uint64_t n_words = 0;
	struct words words;

	CU_ASSERT_EQUAL_FATAL(words_init(&words, TABLE_WORDS + 5), 0);
	for (i = 0; i < 100000; i++) {
		if ((uint32_t)rand_r(&seed) % 100 < (i / 10000 % 2 ? 40 : 60)) {
			uint32_t n = 1 + (uint32_t)rand_r(&seed) % (1u << rand_r(&seed) % 13), first, overlap = 0;
			int r = words_alloc(&words, n, &first);

			if (r < 0) {
				CU_ASSERT_EQUAL(r, -ENOSPC);
				n_full++;
				continue;
			}
			CU_ASSERT_FATAL(first % rounded(n) == 0 && first + rounded(n) <= TABLE_WORDS);
			for (j = 0; j < rounded(n); j++)
				overlap += shadow[first + j]++;
			CU_ASSERT_EQUAL_FATAL(overlap, 0);
			runs[n_runs++] = (struct run){first, n};
			n_words += rounded(n);
		} else if (n_runs > 0) {
			uint32_t pick = (uint32_t)rand_r(&seed) % n_runs;
			struct run run = runs[pick];

			words_free(&words, run.first, run.n);
			memset(shadow + run.first, 0, rounded(run.n));
			n_words -= rounded(run.n);
			runs[pick] = runs[--n_runs];
		}
		if (i % 1000 == 0) {
			words_count(&words, &counters);
			CU_ASSERT_EQUAL(counters.n_words, n_words);
			CU_ASSERT(words_check(&words));
		}
	}
	CU_ASSERT(n_full > 0); /* the table was full at times */
	while (n_runs > 0) {
		n_runs--;
		words_free(&words, runs[n_runs].first, runs[n_runs].n);
	}
	words_count(&words, &counters);
	CU_ASSERT_EQUAL(counters.n_words, 0);
	CU_ASSERT_EQUAL(counters.n_blocks, 0);
	CU_ASSERT_EQUAL(counters.n_high_water, TABLE_WORDS);
	CU_ASSERT(words_check(&words));
	words_deinit(&words);
	free(runs);
	free(shadow);
}

/* The lowest block with room goes first, a block that is empty again serves another size, and the table grows only when it must. */
static void
test_table_stays_dense(void)
{
	struct words_counters counters;
	struct words words;
	uint32_t a, b, c, first;

	CU_ASSERT_EQUAL_FATAL(words_init(&words, 5 * WORDS_BLOCK), 0);
	CU_ASSERT_EQUAL(words_alloc(&words, 64, &a), 0);
	CU_ASSERT_EQUAL(a, 0);
	CU_ASSERT_EQUAL(words_alloc(&words, 33, &b), 0);
	CU_ASSERT_EQUAL(b, 64);
	CU_ASSERT_EQUAL(words_alloc(&words, 4096, &c), 0);
	CU_ASSERT_EQUAL(c, WORDS_BLOCK);
	words_count(&words, &counters);
	CU_ASSERT_EQUAL(counters.n_blocks, 2);
	CU_ASSERT_EQUAL(counters.n_words, 64 + 64 + 4096);
	CU_ASSERT_EQUAL(counters.n_high_water, 2 * WORDS_BLOCK);

	words_free(&words, a, 64);
	CU_ASSERT_EQUAL(words_alloc(&words, 1, &first), 0); /* another size: not in block 0, which has a run of 64 */
	CU_ASSERT_EQUAL(first, 2 * WORDS_BLOCK);
	words_free(&words, first, 1);
	words_free(&words, b, 33);
	words_count(&words, &counters);
	CU_ASSERT_EQUAL(counters.n_blocks, 1);
	CU_ASSERT_EQUAL(words_alloc(&words, 16, &first), 0); /* block 0 serves any size again */
	CU_ASSERT_EQUAL(first, 0);
	CU_ASSERT_EQUAL(words_alloc(&words, 16, &first), 0);
	CU_ASSERT_EQUAL(first, 16);
	words_count(&words, &counters);
	CU_ASSERT_EQUAL(counters.n_high_water, 3 * WORDS_BLOCK);
	CU_ASSERT(words_check(&words));
	words_deinit(&words);
}

static void
test_limits(void)
{
	struct words_counters counters;
	struct words words;
	uint32_t first = 77, i;

	CU_ASSERT_EQUAL(words_init(&words, WORDS_BLOCK - 1), -EINVAL);
	CU_ASSERT_EQUAL(words_init(&words, (1ull << 32) + 1), -EINVAL);
	CU_ASSERT_EQUAL_FATAL(words_init(&words, WORDS_BLOCK), 0);
	CU_ASSERT_EQUAL(words_alloc(&words, 0, &first), -EINVAL);
	CU_ASSERT_EQUAL(words_alloc(&words, WORDS_MAX_RUN + 1, &first), -EINVAL);
	for (i = 0; i < 256; i++) {
		CU_ASSERT_EQUAL(words_alloc(&words, 16, &first), 0);
		CU_ASSERT_EQUAL(first, i * 16);
	}
	CU_ASSERT_EQUAL(words_alloc(&words, 16, &first), -ENOSPC);
	words_deinit(&words);

	/* The largest table, up to its last word. */
	CU_ASSERT_EQUAL_FATAL(words_init(&words, 1ull << 32), 0);
	CU_ASSERT_EQUAL(words_mark(&words, UINT32_MAX - 4095, 2048), 0);
	CU_ASSERT_EQUAL(words_alloc(&words, 2048, &first), 0);
	CU_ASSERT_EQUAL(first, UINT32_MAX - 2047);
	words_count(&words, &counters);
	CU_ASSERT_EQUAL(counters.n_high_water, 1ull << 32);
	words_deinit(&words);
}

/* What a predecessor handed out is not handed out again. */
static void
test_marked_runs_are_taken(void)
{
	struct words_counters counters;
	struct words words;
	uint32_t first;

	CU_ASSERT_EQUAL_FATAL(words_init(&words, 4 * WORDS_BLOCK), 0);
	CU_ASSERT_EQUAL(words_mark(&words, 2 * WORDS_BLOCK, 2048), 0);
	CU_ASSERT_EQUAL(words_mark(&words, 2 * WORDS_BLOCK, 2048), -EBUSY);
	CU_ASSERT_EQUAL(words_mark(&words, 2 * WORDS_BLOCK + 2048, 16), -EBUSY);
	CU_ASSERT_EQUAL(words_mark(&words, 8, 16), -EINVAL);
	CU_ASSERT_EQUAL(words_mark(&words, 4 * WORDS_BLOCK, 16), -EINVAL);
	CU_ASSERT_EQUAL(words_mark(&words, 0, 0), -EINVAL);
	words_count(&words, &counters);
	CU_ASSERT_EQUAL(counters.n_blocks, 1);
	CU_ASSERT_EQUAL(counters.n_high_water, 3 * WORDS_BLOCK);
	CU_ASSERT(words_check(&words));

	CU_ASSERT_EQUAL(words_alloc(&words, 2048, &first), 0);
	CU_ASSERT_EQUAL(first, 2 * WORDS_BLOCK + 2048);
	CU_ASSERT_EQUAL(words_alloc(&words, 2048, &first), 0);
	CU_ASSERT_EQUAL(first, 0);
	words_free(&words, 2 * WORDS_BLOCK, 2048);
	CU_ASSERT(words_check(&words));
	words_deinit(&words);
}

CU_pSuite
test_words_suite(void)
{
	CU_pSuite suite = CU_add_suite("words", NULL, NULL);

	CU_ADD_TEST(suite, test_random_runs_do_not_overlap);
	CU_ADD_TEST(suite, test_table_stays_dense);
	CU_ADD_TEST(suite, test_limits);
	CU_ADD_TEST(suite, test_marked_runs_are_taken);
	return suite;
}
