/* SPDX-License-Identifier: Apache-2.0 */
/* Readers: who keeps a unit of pages that came free, and until when; with the pages of a segment behind it. */
#include <errno.h>
#include <string.h>

#include <CUnit/CUnit.h>

#include "server/pages.h"
#include "server/readers.h"

CU_pSuite test_readers_suite(void);

enum { UNIT_ORDER = 4, UNIT = 1 << UNIT_ORDER, N_UNITS = 8 };

/* A segment whose system has so many units left to commit. */
struct bench {
	struct readers readers;
	struct pages pages;
	uint32_t n_left;
	uint32_t n_commits;
};

static int
bench_commit(void *ctx, uint32_t first, uint32_t n)
{
	struct bench *b = ctx;

	(void)first;
	CU_ASSERT_EQUAL(n, UNIT);
	if (b->n_left == 0)
		return -ENOMEM;
	b->n_left--;
	b->n_commits++;
	return 0;
}

static void
bench_give_back(void *ctx, uint32_t first, uint32_t n)
{
	struct bench *b = ctx;

	(void)first;
	CU_ASSERT_EQUAL(n, UNIT);
	b->n_left++;
}

static uint64_t
bench_mark(void *ctx)
{
	return readers_last(&((struct bench *)ctx)->readers);
}

static uint64_t
bench_kept_from(void *ctx)
{
	return readers_oldest(&((struct bench *)ctx)->readers);
}

static const struct pages_ops bench_ops = {
	.commit = bench_commit, .give_back = bench_give_back, .mark = bench_mark, .kept_from = bench_kept_from};

static void
bench_init(struct bench *b, uint32_t n_left, uint32_t reserve_units)
{
	memset(b, 0, sizeof *b);
	b->n_left = n_left;
	readers_init(&b->readers);
	CU_ASSERT_EQUAL_FATAL(pages_init(&b->pages, N_UNITS * UNIT, UNIT_ORDER, reserve_units, &bench_ops, b), 0);
}

static void
bench_deinit(struct bench *b)
{
	CU_ASSERT(pages_check(&b->pages));
	pages_deinit(&b->pages);
	readers_deinit(&b->readers);
}

static void
leave(struct bench *b, struct reader *reader)
{
	readers_leave(&b->readers, reader);
	pages_trim(&b->pages);
}

static uint32_t
committed(struct bench *b)
{
	struct pages_counters c;

	pages_count(&b->pages, &c);
	return c.n_committed / UNIT;
}

static uint32_t
kept(struct bench *b)
{
	return pages_kept(&b->pages) / UNIT;
}

/* Takes a unit and frees it again. */
static void
use_unit(struct bench *b)
{
	uint32_t first;

	CU_ASSERT_EQUAL_FATAL(pages_alloc(&b->pages, UNIT_ORDER, &first), 0);
	pages_free(&b->pages, first, UNIT_ORDER);
}

static void
test_oldest_reader(void)
{
	struct readers readers;
	struct reader r[4];
	uint32_t flag[4] = {0};

	readers_init(&readers);
	CU_ASSERT_EQUAL(readers_last(&readers), 0);
	CU_ASSERT_EQUAL(readers_oldest(&readers), UINT64_MAX);
	for (int i = 0; i < 3; i++)
		readers_enter(&readers, &r[i], &flag[i]);
	CU_ASSERT_EQUAL(readers_last(&readers), 3);
	CU_ASSERT_EQUAL(readers_oldest(&readers), UINT64_MAX);
	flag[2] = 1;
	CU_ASSERT_EQUAL(readers_oldest(&readers), 3);
	flag[1] = 7;
	CU_ASSERT_EQUAL(readers_oldest(&readers), 2);
	/* Once seen it holds. */
	flag[1] = 0;
	CU_ASSERT_EQUAL(readers_oldest(&readers), 2);
	/* A flag that cannot be read for a while counts, and is forgotten when it can. */
	readers_move(&readers, &r[0], NULL);
	CU_ASSERT_EQUAL(readers_oldest(&readers), 1);
	readers_move(&readers, &r[0], &flag[0]);
	CU_ASSERT_EQUAL(readers_oldest(&readers), 2);
	readers_leave(&readers, &r[1]);
	CU_ASSERT_EQUAL(readers_oldest(&readers), 3);
	/* The last leaves, and another is the last. */
	readers_leave(&readers, &r[2]);
	CU_ASSERT_EQUAL(readers_oldest(&readers), UINT64_MAX);
	readers_enter(&readers, &r[3], NULL);
	CU_ASSERT_EQUAL(readers_oldest(&readers), 4);
	CU_ASSERT_EQUAL(readers_last(&readers), 4);
	readers_leave(&readers, &r[0]);
	readers_leave(&readers, &r[3]);
	CU_ASSERT_PTR_NULL(readers.first);
	readers_deinit(&readers);
}

/* A unit stays for a reader that was there when it came free, and goes with that reader. */
static void
test_unit_is_kept_for_its_reader(void)
{
	struct reader r, late;
	uint32_t flag = 0, late_flag = 1;
	struct bench b;

	bench_init(&b, N_UNITS, 0);
	readers_enter(&b.readers, &r, &flag);
	/* It resolves nothing so far. */
	use_unit(&b);
	CU_ASSERT(committed(&b) == 0 && kept(&b) == 0);
	flag = 1;
	use_unit(&b);
	CU_ASSERT(committed(&b) == 1 && kept(&b) == 1);
	/* Who came later cannot come to what was there. */
	readers_enter(&b.readers, &late, &late_flag);
	pages_trim(&b.pages);
	CU_ASSERT(committed(&b) == 1 && kept(&b) == 1);
	leave(&b, &r);
	CU_ASSERT(committed(&b) == 0 && kept(&b) == 0 && b.n_left == N_UNITS);
	leave(&b, &late);
	bench_deinit(&b);
}

/* What another reader may see stays, what only the leaving one may see goes. */
static void
test_each_unit_has_its_readers(void)
{
	struct reader r[3];
	uint32_t flag[3] = {1, 1, 0}, first[3];
	struct bench b;

	bench_init(&b, N_UNITS, 0);
	for (int i = 0; i < 3; i++)
		CU_ASSERT_EQUAL_FATAL(pages_alloc(&b.pages, UNIT_ORDER, &first[i]), 0);
	for (int i = 0; i < 3; i++) {
		readers_enter(&b.readers, &r[i], &flag[i]);
		pages_free(&b.pages, first[i], UNIT_ORDER);
	}
	CU_ASSERT_EQUAL(kept(&b), 3);
	leave(&b, &r[0]);
	CU_ASSERT_EQUAL(kept(&b), 2); /* the first came free before the second reader came */
	leave(&b, &r[1]);
	CU_ASSERT(committed(&b) == 0 && b.n_left == N_UNITS);
	leave(&b, &r[2]);
	bench_deinit(&b);
}

/* Kept units are free: they are taken before others are committed, whole and in parts, and the last use counts. */
static void
test_kept_units_are_used_again(void)
{
	struct reader r, second;
	uint32_t flag = 1, second_flag = 1, first, part, run;
	struct bench b;

	bench_init(&b, 2, 0);
	readers_enter(&b.readers, &r, &flag);
	CU_ASSERT_EQUAL_FATAL(pages_alloc_run(&b.pages, 2 * UNIT, &run), 0);
	pages_free_run(&b.pages, run, 2 * UNIT);
	CU_ASSERT(kept(&b) == 2 && b.n_left == 0 && b.n_commits == 2);
	CU_ASSERT_EQUAL_FATAL(pages_alloc_run(&b.pages, 2 * UNIT, &run), 0);
	CU_ASSERT(kept(&b) == 0 && b.n_commits == 2);
	pages_free_run(&b.pages, run, 2 * UNIT);
	CU_ASSERT_EQUAL_FATAL(pages_alloc(&b.pages, 0, &part), 0);
	CU_ASSERT(kept(&b) == 1 && b.n_commits == 2);
	readers_enter(&b.readers, &second, &second_flag);
	/* The first reader's end does not reach what is in use again, nor, later, what the second may have seen. */
	leave(&b, &r);
	CU_ASSERT(committed(&b) == 1 && kept(&b) == 0);
	pages_free(&b.pages, part, 0);
	CU_ASSERT(committed(&b) == 1 && kept(&b) == 1);
	leave(&b, &second);
	CU_ASSERT(committed(&b) == 0);
	CU_ASSERT_EQUAL_FATAL(pages_alloc(&b.pages, UNIT_ORDER, &first), 0);
	pages_free(&b.pages, first, UNIT_ORDER);
	CU_ASSERT(committed(&b) == 0 && b.n_left == 2);
	bench_deinit(&b);
}

/* A run that cannot be had leaves the kept units with the mark they had, and those that nobody ever used with none. */
static void
test_a_failed_run_marks_nothing(void)
{
	struct reader r, late;
	uint32_t flag = 1, late_flag = 1, first, run;
	struct bench b;

	bench_init(&b, 3, 0);
	readers_enter(&b.readers, &r, &flag);
	CU_ASSERT_EQUAL_FATAL(pages_alloc(&b.pages, UNIT_ORDER, &first), 0);
	pages_free(&b.pages, first, UNIT_ORDER);
	readers_enter(&b.readers, &late, &late_flag);
	CU_ASSERT(pages_alloc_run(&b.pages, 4 * UNIT, &run) < 0);
	CU_ASSERT(kept(&b) == 1 && committed(&b) == 1);
	leave(&b, &r);
	CU_ASSERT(committed(&b) == 0 && b.n_left == 3);
	leave(&b, &late);
	bench_deinit(&b);
}

/* What a unit was marked with before it was punched says nothing of it when it is committed anew. */
static void
test_a_new_unit_has_no_mark(void)
{
	struct reader r[2];
	uint32_t flag[2] = {0, 1}, run;
	struct bench b;

	bench_init(&b, 2, 0);
	for (int i = 0; i < 2; i++)
		readers_enter(&b.readers, &r[i], &flag[i]);
	use_unit(&b);
	CU_ASSERT_EQUAL(kept(&b), 1);
	leave(&b, &r[1]);
	CU_ASSERT_EQUAL(committed(&b), 0);
	/* The older session begins to read now; the first unit of a run that fails nobody ever had. */
	flag[0] = 1;
	CU_ASSERT(pages_alloc_run(&b.pages, 3 * UNIT, &run) < 0);
	CU_ASSERT(committed(&b) == 0 && b.n_commits == 3 && b.n_left == 2);
	leave(&b, &r[0]);
	bench_deinit(&b);
}

/* The reserve is no unit kept for readers. */
static void
test_reserve_is_not_counted_as_kept(void)
{
	struct reader r;
	uint32_t flag = 1, run;
	struct bench b;

	bench_init(&b, N_UNITS, 2);
	CU_ASSERT_EQUAL(pages_reserve(&b.pages), 0);
	readers_enter(&b.readers, &r, &flag);
	CU_ASSERT(committed(&b) == 2 && kept(&b) == 0);
	CU_ASSERT_EQUAL_FATAL(pages_alloc_run(&b.pages, 3 * UNIT, &run), 0);
	pages_free_run(&b.pages, run, 3 * UNIT);
	CU_ASSERT(committed(&b) == 3 && kept(&b) == 1);
	leave(&b, &r);
	CU_ASSERT(committed(&b) == 2 && kept(&b) == 0);
	bench_deinit(&b);
}

CU_pSuite
test_readers_suite(void)
{
	CU_pSuite suite = CU_add_suite("readers", NULL, NULL);

	CU_ADD_TEST(suite, test_oldest_reader);
	CU_ADD_TEST(suite, test_unit_is_kept_for_its_reader);
	CU_ADD_TEST(suite, test_each_unit_has_its_readers);
	CU_ADD_TEST(suite, test_kept_units_are_used_again);
	CU_ADD_TEST(suite, test_a_failed_run_marks_nothing);
	CU_ADD_TEST(suite, test_a_new_unit_has_no_mark);
	CU_ADD_TEST(suite, test_reserve_is_not_counted_as_kept);
	return suite;
}
