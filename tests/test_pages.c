/* SPDX-License-Identifier: Apache-2.0 */
/* Buddy allocator against a byte a page, with commits that fail, and with threads. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <CUnit/CUnit.h>

#include "server/pages.h"
#include "shm/atomic.h"

CU_pSuite test_pages_suite(void);

enum { MAX_UNITS = 64, MAX_TEST_PAGES = MAX_UNITS << 4, N_THREADS = 3 };

/* A segment that remembers what is committed, and who says so. */
struct fake {
	struct pages pages;
	uint8_t is_committed[MAX_UNITS]; /* by unit */
	uint8_t owned[MAX_TEST_PAGES];   /* by page: handed out */
	uint32_t n_committed, max_committed;
	uint32_t n_commits, n_give_backs;
	uint32_t fail_at;  /* this commit, counted from 1, fails; 0: none does */
	uint32_t n_faults; /* what no callback should ever see */
	uint32_t n_inside;
	void (*on_commit)(struct fake *fake);
	void (*on_give_back)(struct fake *fake);
};

static unsigned
seed_get(void)
{
	const char *text = getenv("SLAB_SEED");
	unsigned seed = text ? (unsigned)strtoul(text, NULL, 0) : (unsigned)time(NULL);

	printf(" seed %u ", seed);
	return seed;
}

static uint32_t
fake_unit(struct fake *fake, uint32_t first, uint32_t n)
{
	uint32_t unit = first >> fake->pages.unit_order;

	if (n != 1u << fake->pages.unit_order || first % n != 0 || first >= fake->pages.n_pages)
		fake->n_faults++;
	return unit % MAX_UNITS;
}

static int
fake_commit(void *ctx, uint32_t first, uint32_t n)
{
	struct fake *fake = ctx;
	uint32_t unit = fake_unit(fake, first, n);
	int r = 0;

	if (atomic_add(&fake->n_inside, 1) != 0 || fake->is_committed[unit])
		fake->n_faults++;
	if (fake->on_commit)
		fake->on_commit(fake);
	if (++fake->n_commits == fake->fail_at || (fake->max_committed && fake->n_committed == fake->max_committed)) {
		r = -ENOMEM;
	} else {
		fake->is_committed[unit] = 1;
		fake->n_committed++;
	}
	atomic_add(&fake->n_inside, -1u);
	return r;
}

static void
fake_give_back(void *ctx, uint32_t first, uint32_t n)
{
	struct fake *fake = ctx;
	uint32_t unit = fake_unit(fake, first, n), i;

	if (atomic_add(&fake->n_inside, 1) != 0 || !fake->is_committed[unit])
		fake->n_faults++;
	for (i = 0; i < n; i++)
		if (n <= 16 && atomic_read(&fake->owned[first + i]))
			fake->n_faults++;
	if (fake->on_give_back)
		fake->on_give_back(fake);
	fake->is_committed[unit] = 0;
	fake->n_committed--;
	fake->n_give_backs++;
	atomic_add(&fake->n_inside, -1u);
}

static const struct pages_ops fake_ops = {.commit = fake_commit, .give_back = fake_give_back};

static void
fake_init(struct fake *fake, uint32_t n_units, uint32_t unit_order, uint32_t reserve_units)
{
	memset(fake, 0, sizeof(*fake));
	CU_ASSERT_EQUAL_FATAL(pages_init(&fake->pages, n_units << unit_order, unit_order, reserve_units, &fake_ops, fake), 0);
}

static void
fake_deinit(struct fake *fake)
{
	CU_ASSERT(pages_check(&fake->pages));
	CU_ASSERT_EQUAL(fake->n_faults, 0);
	pages_deinit(&fake->pages);
}

/* Marks a block's pages as handed out; false: one of them is already, or lies in no committed unit. */
static bool
fake_own(struct fake *fake, uint32_t first, uint32_t order)
{
	uint32_t i;
	bool ok = first % (1u << order) == 0 && first + (1u << order) <= fake->pages.n_pages;

	for (i = 0; ok && i < 1u << order; i++)
		ok = atomic_swap(&fake->owned[first + i], 1) == 0 &&
		     atomic_read(&fake->is_committed[(first + i) >> fake->pages.unit_order]);
	return ok;
}

static void
fake_disown(struct fake *fake, uint32_t first, uint32_t order)
{
	uint32_t i;

	for (i = 0; i < 1u << order; i++)
		atomic_write(&fake->owned[first + i], 0);
}

static struct pages_counters
counters_of(struct fake *fake)
{
	struct pages_counters counters;

	pages_count(&fake->pages, &counters);
	return counters;
}

struct block {
	uint32_t first, order;
};

/* 100,000 random allocations and frees; every 97th commit fails, and then nothing has changed. */
static void
test_random_blocks_do_not_overlap(void)
{
	static struct fake fake;
	static struct block blocks[MAX_TEST_PAGES];
	unsigned seed = seed_get();
	uint32_t n_blocks = 0, n_used = 0, n_refused = 0, n_full = 0, i;

	fake_init(&fake, MAX_UNITS, 4, 3);
	for (i = 0; i < 100000; i++) {
		if ((uint32_t)rand_r(&seed) % 100 < (i / 5000 % 2 ? 42 : 58)) {
			struct block block = {.order = (uint32_t)rand_r(&seed) % 5};
			struct pages_counters before = counters_of(&fake), after;
			int r;

			fake.fail_at = fake.n_commits / 97 * 97 + 97;
			r = pages_alloc(&fake.pages, block.order, &block.first);
			if (r < 0) {
				after = counters_of(&fake);
				CU_ASSERT(before.n_committed == after.n_committed && before.n_free == after.n_free);
				CU_ASSERT(before.n_given_back == after.n_given_back);
				CU_ASSERT(pages_check(&fake.pages));
				CU_ASSERT(r == -ENOMEM || r == -ENOSPC);
				n_refused += r == -ENOMEM;
				n_full += r == -ENOSPC;
				continue;
			}
			CU_ASSERT_FATAL(fake_own(&fake, block.first, block.order));
			blocks[n_blocks++] = block;
			n_used += 1u << block.order;
		} else if (n_blocks > 0) {
			uint32_t pick = (uint32_t)rand_r(&seed) % n_blocks;
			struct block block = blocks[pick];

			fake_disown(&fake, block.first, block.order);
			pages_free(&fake.pages, block.first, block.order);
			blocks[pick] = blocks[--n_blocks];
			n_used -= 1u << block.order;
		}
		CU_ASSERT_EQUAL(counters_of(&fake).n_committed, fake.n_committed << 4);
		CU_ASSERT_EQUAL(counters_of(&fake).n_committed, counters_of(&fake).n_free + n_used);
		if (i % 100 == 0)
			CU_ASSERT(pages_check(&fake.pages));
	}
	CU_ASSERT(n_refused > 0);
	CU_ASSERT(n_full > 0);
	CU_ASSERT_EQUAL(counters_of(&fake).n_commit_fails, n_refused);

	while (n_blocks > 0) {
		n_blocks--;
		fake_disown(&fake, blocks[n_blocks].first, blocks[n_blocks].order);
		pages_free(&fake.pages, blocks[n_blocks].first, blocks[n_blocks].order);
	}
	CU_ASSERT_EQUAL(counters_of(&fake).n_committed, 3 << 4);
	CU_ASSERT_EQUAL(counters_of(&fake).n_free, 3 << 4);
	CU_ASSERT_EQUAL(counters_of(&fake).n_given_back, fake.n_give_backs << 4);
	CU_ASSERT_EQUAL(fake.n_committed, 3);
	fake_deinit(&fake);
}

struct run {
	uint32_t first, n_pages;
};

/* The same as fake_own() of a run; false, too, if it begins elsewhere than a run of its length must. */
static bool
fake_own_run(struct fake *fake, struct run run)
{
	bool ok = run.first + run.n_pages <= fake->pages.n_pages && (run.n_pages <= 16 || run.first % 16 == 0);

	ok = ok && (run.n_pages > 16 || run.first / 16 == (run.first + run.n_pages - 1) / 16);
	for (uint32_t i = 0; ok && i < run.n_pages; i++)
		ok = fake_own(fake, run.first + i, 0);
	return ok;
}

static void
fake_free_run(struct fake *fake, struct run run)
{
	for (uint32_t i = 0; i < run.n_pages; i++)
		fake_disown(fake, run.first + i, 0);
	pages_free_run(&fake->pages, run.first, run.n_pages);
}

/* 50,000 random runs of a page to seven units, and single blocks between them; commits fail, and then everything is as before. */
static void
test_random_runs_do_not_overlap(void)
{
	static struct fake fake;
	static struct run runs[MAX_TEST_PAGES];
	unsigned seed = seed_get();
	uint32_t n_runs = 0, n_used = 0, n_refused = 0, n_full = 0, n_long = 0;

	fake_init(&fake, MAX_UNITS, 4, 3);
	CU_ASSERT_EQUAL(pages_reserve(&fake.pages), 0);
	for (uint32_t i = 0; i < 50000; i++) {
		if ((uint32_t)rand_r(&seed) % 100 < (i / 5000 % 2 ? 42 : 58)) {
			struct run run = {.n_pages = 1 + (uint32_t)rand_r(&seed) % (rand_r(&seed) % 4 ? 20 : 112)};
			struct pages_counters before = counters_of(&fake), after;
			int r;

			fake.fail_at = fake.n_commits / 23 * 23 + 23;
			r = pages_alloc_run(&fake.pages, run.n_pages, &run.first);
			if (r < 0) {
				after = counters_of(&fake);
				CU_ASSERT(before.n_committed == after.n_committed && before.n_free == after.n_free);
				CU_ASSERT(pages_check(&fake.pages));
				CU_ASSERT(r == -ENOMEM || r == -ENOSPC);
				n_refused += r == -ENOMEM;
				n_full += r == -ENOSPC;
				continue;
			}
			CU_ASSERT_FATAL(fake_own_run(&fake, run));
			runs[n_runs++] = run;
			n_used += run.n_pages;
			n_long += run.n_pages > 16;
		} else if (n_runs > 0) {
			uint32_t pick = (uint32_t)rand_r(&seed) % n_runs;

			n_used -= runs[pick].n_pages;
			fake_free_run(&fake, runs[pick]);
			runs[pick] = runs[--n_runs];
		}
		CU_ASSERT_EQUAL(counters_of(&fake).n_committed, fake.n_committed << 4);
		CU_ASSERT_EQUAL(counters_of(&fake).n_committed, counters_of(&fake).n_free + n_used);
		if (i % 100 == 0)
			CU_ASSERT(pages_check(&fake.pages));
	}
	CU_ASSERT(n_refused > 0 && n_full > 0 && n_long > 1000);
	CU_ASSERT_EQUAL(counters_of(&fake).n_commit_fails, n_refused);
	while (n_runs > 0)
		fake_free_run(&fake, runs[--n_runs]);
	CU_ASSERT_EQUAL(counters_of(&fake).n_committed, 3 << 4);
	CU_ASSERT_EQUAL(counters_of(&fake).n_free, 3 << 4);
	CU_ASSERT_EQUAL(fake.n_committed, 3);
	fake_deinit(&fake);
}

/* A run takes no page more than it has, from the lowest place that will do; what is left of its last unit serves blocks. */
static void
test_runs_leave_the_rest(void)
{
	static struct fake fake;
	uint32_t a, b, c, d, page;

	fake_init(&fake, 8, 4, 0);
	CU_ASSERT_EQUAL(pages_alloc_run(&fake.pages, 0, &a), -EINVAL);
	CU_ASSERT_EQUAL(pages_alloc_run(&fake.pages, 8 * 16 + 1, &a), -ENOSPC);
	CU_ASSERT_EQUAL(fake.n_commits, 0);
	CU_ASSERT_EQUAL(pages_alloc_run(&fake.pages, 11, &a), 0);
	CU_ASSERT_EQUAL(pages_alloc(&fake.pages, 2, &b), 0);
	CU_ASSERT_EQUAL(pages_alloc(&fake.pages, 0, &page), 0);
	CU_ASSERT(a == 0 && b == 12 && page == 11);
	CU_ASSERT_EQUAL(fake.n_commits, 1);
	CU_ASSERT_EQUAL(pages_alloc_run(&fake.pages, 33, &c), 0);
	CU_ASSERT_EQUAL(c, 16);
	CU_ASSERT_EQUAL(fake.n_commits, 4);
	CU_ASSERT_EQUAL(counters_of(&fake).n_free, 15);
	CU_ASSERT_EQUAL(pages_alloc(&fake.pages, 3, &d), 0);
	CU_ASSERT_EQUAL(d, 56);
	/* Its first two units go back with it; the third is in use. Those before and behind it do not make a run of four. */
	pages_free_run(&fake.pages, c, 33);
	CU_ASSERT_EQUAL(fake.n_give_backs, 2);
	CU_ASSERT_EQUAL(pages_alloc_run(&fake.pages, 64, &c), 0);
	CU_ASSERT_EQUAL(c, 64);
	CU_ASSERT_EQUAL(pages_alloc_run(&fake.pages, 33, &c), -ENOSPC);
	CU_ASSERT_EQUAL(pages_alloc_run(&fake.pages, 32, &c), 0);
	CU_ASSERT_EQUAL(c, 16);
	fake_deinit(&fake);
}

/* Units that are free but not given back (the reserve) are part of a run like those that must be committed. */
static void
test_run_over_the_reserve(void)
{
	static struct fake fake;
	uint32_t first;

	fake_init(&fake, 8, 4, 2);
	CU_ASSERT_EQUAL(pages_reserve(&fake.pages), 0);
	CU_ASSERT_EQUAL(pages_alloc_run(&fake.pages, 70, &first), 0);
	CU_ASSERT_EQUAL(first, 0);
	CU_ASSERT_EQUAL(fake.n_commits, 5);
	pages_free_run(&fake.pages, 0, 70);
	CU_ASSERT_EQUAL(counters_of(&fake).n_committed, 2 << 4);
	/* The third commit of a run of five fails: nothing has changed, the reserve is whole. */
	fake.fail_at = fake.n_commits + 3;
	CU_ASSERT_EQUAL(pages_alloc_run(&fake.pages, 80, &first), -ENOMEM);
	CU_ASSERT_EQUAL(counters_of(&fake).n_committed, 2 << 4);
	CU_ASSERT_EQUAL(counters_of(&fake).n_free, 2 << 4);
	CU_ASSERT_EQUAL(counters_of(&fake).n_commit_fails, 1);
	fake_deinit(&fake);
}

/* Lowest block of the smallest order that suffices, and only then another unit. */
static void
test_lowest_block_of_the_smallest_order(void)
{
	static struct fake fake;
	uint32_t a, b, c, d, e, first;

	fake_init(&fake, 3, 4, 0);
	CU_ASSERT_EQUAL(fake.n_commits, 0);
	CU_ASSERT_EQUAL(pages_alloc(&fake.pages, 3, &a), 0);
	CU_ASSERT_EQUAL(pages_alloc(&fake.pages, 1, &b), 0);
	CU_ASSERT_EQUAL(pages_alloc(&fake.pages, 1, &c), 0);
	CU_ASSERT_EQUAL(pages_alloc(&fake.pages, 2, &d), 0);
	CU_ASSERT(a == 0 && b == 8 && c == 10 && d == 12);
	CU_ASSERT_EQUAL(fake.n_commits, 1);
	CU_ASSERT_EQUAL(pages_alloc(&fake.pages, 0, &e), 0);
	CU_ASSERT_EQUAL(e, 16);
	CU_ASSERT_EQUAL(fake.n_commits, 2);

	pages_free(&fake.pages, a, 3);
	pages_free(&fake.pages, c, 1);
	CU_ASSERT_EQUAL(pages_alloc(&fake.pages, 0, &first), 0); /* 17, left over from 16, is smaller than the lower 0 and 10 */
	CU_ASSERT_EQUAL(first, 17);
	CU_ASSERT_EQUAL(pages_alloc(&fake.pages, 0, &first), 0); /* then 10, of order 1, before 18 and before 0, of order 3 */
	CU_ASSERT_EQUAL(first, 10);
	CU_ASSERT_EQUAL(pages_alloc(&fake.pages, 3, &first), 0);
	CU_ASSERT_EQUAL(first, 0);
	CU_ASSERT_EQUAL(pages_alloc(&fake.pages, 5, &first), -EINVAL);
	fake_deinit(&fake);
}

/* A unit that is free goes back at once, is the next to be committed, and its pages merge whatever the order of the frees. */
static void
test_free_units_go_back(void)
{
	static const uint32_t shuffled[] = {9, 2, 15, 4, 0, 11, 6, 13, 1, 8, 3, 10, 5, 12, 7, 14};
	static struct fake fake;
	uint32_t first, i;

	fake_init(&fake, 3, 4, 0);
	for (i = 0; i < 48; i++) {
		CU_ASSERT_EQUAL(pages_alloc(&fake.pages, 0, &first), 0);
		CU_ASSERT_EQUAL(first, i);
	}
	CU_ASSERT_EQUAL(pages_alloc(&fake.pages, 0, &first), -ENOSPC);
	for (i = 0; i < 16; i++) {
		CU_ASSERT_EQUAL(fake.n_give_backs, 0);
		pages_free(&fake.pages, 16 + shuffled[i], 0);
	}
	CU_ASSERT_EQUAL(fake.n_give_backs, 1);
	CU_ASSERT(fake.is_committed[0] && !fake.is_committed[1] && fake.is_committed[2]);
	CU_ASSERT_EQUAL(pages_alloc(&fake.pages, 4, &first), 0);
	CU_ASSERT_EQUAL(first, 16);
	fake_deinit(&fake);
}

static void
test_reserve_stays(void)
{
	static struct fake fake;
	uint32_t first[4], i;

	fake_init(&fake, 8, 9, 2);
	CU_ASSERT_EQUAL(pages_reserve(&fake.pages), 0);
	CU_ASSERT_EQUAL(pages_reserve(&fake.pages), 0);
	CU_ASSERT_EQUAL(fake.n_commits, 2);
	for (i = 0; i < 4; i++)
		CU_ASSERT_EQUAL(pages_alloc(&fake.pages, 9, &first[i]), 0);
	CU_ASSERT_EQUAL(fake.n_commits, 4);
	for (i = 0; i < 4; i++)
		pages_free(&fake.pages, first[i], 9);
	CU_ASSERT_EQUAL(fake.n_give_backs, 2);
	CU_ASSERT_EQUAL(counters_of(&fake).n_committed, 2 << 9);
	fake_deinit(&fake);

	/* A reserve that is refused half-way: what is there stays and is good. */
	fake_init(&fake, 8, 4, 5);
	fake.fail_at = 3;
	CU_ASSERT_EQUAL(pages_reserve(&fake.pages), -ENOMEM);
	CU_ASSERT_EQUAL(counters_of(&fake).n_free, 2 << 4);
	CU_ASSERT_EQUAL(pages_reserve(&fake.pages), 0);
	CU_ASSERT_EQUAL(counters_of(&fake).n_free, 5 << 4);
	fake_deinit(&fake);

	fake_init(&fake, 2, 4, 3);
	CU_ASSERT_EQUAL(pages_reserve(&fake.pages), -ENOSPC);
	fake_deinit(&fake);
}

/* By unit: whether the walk over the holes names it. */
static void
find_holes(struct fake *fake, bool *is_hole)
{
	uint32_t first = 0, n = 0;

	memset(is_hole, 0, MAX_UNITS * sizeof *is_hole);
	while (pages_next_hole(&fake->pages, first + n, &first, &n))
		for (uint32_t page = first; page < first + n; page += 1u << fake->pages.unit_order)
			is_hole[page >> fake->pages.unit_order] = true;
}

/* The holes are all that is not committed, and only that; what comes free while pages are held goes back at the release. */
static void
test_holes_are_what_is_not_committed(void)
{
	static struct fake fake;
	bool is_hole[MAX_UNITS];
	uint32_t first[5], run;

	fake_init(&fake, 16, 4, 0);
	for (int i = 0; i < 5; i++)
		CU_ASSERT_EQUAL(pages_alloc(&fake.pages, 4, &first[i]), 0);
	pages_free(&fake.pages, first[1], 4);
	pages_free(&fake.pages, first[4], 4);
	CU_ASSERT_EQUAL(pages_alloc_run(&fake.pages, 4 << 4, &run), 0);
	pages_hold(&fake.pages);
	pages_free(&fake.pages, first[2], 4);
	CU_ASSERT_EQUAL(fake.n_give_backs, 2);
	find_holes(&fake, is_hole);
	for (int i = 0; i < 16; i++)
		CU_ASSERT_EQUAL(is_hole[i], !fake.is_committed[i]);
	CU_ASSERT(is_hole[1] && !is_hole[2] && is_hole[15]);
	pages_release(&fake.pages);
	CU_ASSERT_EQUAL(fake.n_give_backs, 3);
	find_holes(&fake, is_hole);
	CU_ASSERT(is_hole[2]);
	fake_deinit(&fake);
}

static void
test_init_refuses(void)
{
	struct pages pages;

	CU_ASSERT_EQUAL(pages_init(&pages, 0, 4, 0, &fake_ops, NULL), -EINVAL);
	CU_ASSERT_EQUAL(pages_init(&pages, 24, 4, 0, &fake_ops, NULL), -EINVAL);
	CU_ASSERT_EQUAL(pages_init(&pages, 1024, PAGES_MAX_ORDER + 1, 0, &fake_ops, NULL), -EINVAL);
}

static void
test_marked_blocks_are_taken(void)
{
	static struct fake fake;
	uint32_t first;

	fake_init(&fake, 4, 4, 0);
	CU_ASSERT_EQUAL(pages_mark(&fake.pages, 2, 2), -EINVAL);
	CU_ASSERT_EQUAL(pages_mark(&fake.pages, 64, 0), -EINVAL);
	CU_ASSERT_EQUAL(pages_mark(&fake.pages, 0, 5), -EINVAL);
	fake.is_committed[2] = 1;
	fake.n_committed = 1;
	CU_ASSERT_EQUAL(pages_mark(&fake.pages, 36, 1), 0);
	CU_ASSERT_EQUAL(pages_mark(&fake.pages, 36, 1), -EBUSY);
	CU_ASSERT_EQUAL(pages_mark(&fake.pages, 37, 0), -EBUSY);
	CU_ASSERT_EQUAL(pages_mark(&fake.pages, 36, 2), -EBUSY);
	CU_ASSERT_EQUAL(pages_mark(&fake.pages, 32, 4), -EBUSY);
	CU_ASSERT_EQUAL(pages_mark(&fake.pages, 39, 0), 0);
	CU_ASSERT_EQUAL(counters_of(&fake).n_committed, 16);
	CU_ASSERT_EQUAL(counters_of(&fake).n_free, 13);
	CU_ASSERT(pages_check(&fake.pages));

	CU_ASSERT_EQUAL(pages_alloc(&fake.pages, 0, &first), 0);
	CU_ASSERT_EQUAL(first, 38);
	CU_ASSERT_EQUAL(pages_alloc(&fake.pages, 4, &first), 0); /* unit 0 was never committed: lower than the free ones above unit 2 */
	CU_ASSERT_EQUAL(first, 0);
	pages_free(&fake.pages, 38, 0);
	pages_free(&fake.pages, 39, 0);
	pages_free(&fake.pages, 36, 1);
	CU_ASSERT_EQUAL(fake.n_give_backs, 1);
	CU_ASSERT(!fake.is_committed[2]);
	fake_deinit(&fake);
}

/* What a helper thread does while the test's own thread is inside a call of ops. */
struct visit {
	struct fake *fake;
	pthread_t thread;
	uint32_t first;
	int r;
	uint32_t tid;
};

static struct visit visit;

static void *
visit_alloc_order_0(void *arg)
{
	struct visit *v = arg;

	v->r = pages_alloc(&v->fake->pages, 0, &v->first);
	return NULL;
}

static void *
visit_free_page_0(void *arg)
{
	struct visit *v = arg;

	pages_free(&v->fake->pages, 0, 0);
	return NULL;
}

static void
run_inside(struct fake *fake, void *(*start)(void *))
{
	visit.fake = fake;
	visit.r = 1;
	CU_ASSERT_EQUAL_FATAL(pthread_create(&visit.thread, NULL, start, &visit), 0);
	pthread_join(visit.thread, NULL);
}

static void
alloc_inside(struct fake *fake)
{
	fake->on_commit = NULL;
	run_inside(fake, visit_alloc_order_0);
}

static void
free_inside(struct fake *fake)
{
	fake->on_commit = NULL;
	run_inside(fake, visit_free_page_0);
}

/* Blocks that are there can be had while another thread commits (else this test would hang). */
static void
test_commit_does_not_block_others(void)
{
	static struct fake fake;
	uint32_t a, b;

	fake_init(&fake, 4, 4, 0);
	CU_ASSERT_EQUAL(pages_alloc(&fake.pages, 0, &a), 0);
	fake.on_commit = alloc_inside;
	CU_ASSERT_EQUAL(pages_alloc(&fake.pages, 4, &b), 0);
	CU_ASSERT_EQUAL(b, 16);
	CU_ASSERT_EQUAL(visit.r, 0);
	CU_ASSERT_EQUAL(visit.first, 1);
	fake_deinit(&fake);
}

/* A unit that comes free while another thread commits is given back by that thread, and a refused commit finds what came free. */
static void
test_free_does_not_wait(void)
{
	static struct fake fake;
	uint32_t a, b;

	fake_init(&fake, 4, 4, 0);
	CU_ASSERT_EQUAL(pages_alloc(&fake.pages, 0, &a), 0);
	fake.on_commit = free_inside;
	CU_ASSERT_EQUAL(pages_alloc(&fake.pages, 4, &b), 0);
	CU_ASSERT_EQUAL(b, 16);
	CU_ASSERT_EQUAL(fake.n_give_backs, 1);
	CU_ASSERT(!fake.is_committed[0] && fake.is_committed[1]);
	fake_deinit(&fake);

	fake_init(&fake, 4, 4, 0);
	CU_ASSERT_EQUAL(pages_alloc(&fake.pages, 0, &a), 0);
	fake.fail_at = 2;
	fake.on_commit = free_inside;
	CU_ASSERT_EQUAL(pages_alloc(&fake.pages, 4, &b), 0);
	CU_ASSERT_EQUAL(b, 0);
	fake_deinit(&fake);
}

static void *
visit_alloc_and_tell(void *arg)
{
	struct visit *v = arg;

	atomic_write_release(&v->tid, 1);
	return visit_alloc_order_0(arg);
}

/* Starts a thread that needs a unit too, and stays in the call until it waits for us or has entered a call of its own. */
static void
second_asks_inside(struct fake *fake)
{
	bool is_waiting = false;

	fake->on_commit = NULL;
	visit = (struct visit){.fake = fake, .r = 1};
	CU_ASSERT_EQUAL_FATAL(pthread_create(&visit.thread, NULL, visit_alloc_and_tell, &visit), 0);
	while (!is_waiting && atomic_read(&fake->n_inside) == 1) {
		pthread_mutex_lock(&fake->pages.lock);
		/* glibc counts waiters in the condition variable; zero bytes mean that nobody has come yet. */
		is_waiting = atomic_read_acquire(&visit.tid) && fake->pages.moved.__data.__wrefs != 0;
		pthread_mutex_unlock(&fake->pages.lock);
	}
}

/* Two threads need a unit, one is committed, both are served from it. */
static void
test_waits_for_the_unit_under_way(void)
{
	static struct fake fake;
	uint32_t first;

	fake_init(&fake, 4, 4, 0);
	fake.max_committed = 1; /* the limit leaves room for one: a second commit would be refused */
	fake.on_commit = second_asks_inside;
	CU_ASSERT_EQUAL(pages_alloc(&fake.pages, 0, &first), 0);
	pthread_join(visit.thread, NULL);
	CU_ASSERT_EQUAL(first, 0);
	CU_ASSERT_EQUAL(visit.r, 0);
	CU_ASSERT_EQUAL(visit.first, 1);
	CU_ASSERT_EQUAL(fake.n_commits, 1);
	fake_deinit(&fake);
}

/* While a run commits its units another thread gets a unit of its own, and not one of them. */
static void
test_runs_do_not_block_others(void)
{
	static struct fake fake;
	uint32_t a;

	fake_init(&fake, 8, 4, 0);
	visit = (struct visit){.fake = &fake, .r = 1};
	fake.on_commit = second_asks_inside;
	CU_ASSERT_EQUAL(pages_alloc_run(&fake.pages, 60, &a), 0);
	pthread_join(visit.thread, NULL);
	CU_ASSERT_EQUAL(a, 0);
	CU_ASSERT_EQUAL(visit.r, 0);
	/* The tail of the run's last unit, or a unit after it. */
	CU_ASSERT(visit.first >= 60);
	CU_ASSERT_EQUAL(counters_of(&fake).n_committed, fake.n_committed << 4);
	fake_deinit(&fake);
}

struct worker {
	struct fake *fake;
	pthread_t thread;
	unsigned seed;
	uint32_t n_bad;
};

/* Holds few blocks, so that units come and go all the time. */
static void *
worker_run(void *arg)
{
	struct worker *worker = arg;
	struct fake *fake = worker->fake;
	struct block held[8];
	struct run run;
	uint32_t n_held = 0, i;

	for (i = 0; i < 20000; i++) {
		if (n_held < 8 && rand_r(&worker->seed) % 2) {
			struct block *block = &held[n_held];

			block->order = (uint32_t)rand_r(&worker->seed) % 5;
			if (pages_alloc(&fake->pages, block->order, &block->first) == 0) {
				worker->n_bad += !fake_own(fake, block->first, block->order);
				n_held++;
			}
			run.n_pages = 1 + (uint32_t)rand_r(&worker->seed) % 40;
			if (i % 8 == 0 && pages_alloc_run(&fake->pages, run.n_pages, &run.first) == 0) {
				worker->n_bad += !fake_own_run(fake, run);
				fake_free_run(fake, run);
			}
		} else if (n_held > 0) {
			n_held--;
			fake_disown(fake, held[n_held].first, held[n_held].order);
			pages_free(&fake->pages, held[n_held].first, held[n_held].order);
		}
	}
	while (n_held-- > 0) {
		fake_disown(fake, held[n_held].first, held[n_held].order);
		pages_free(&fake->pages, held[n_held].first, held[n_held].order);
	}
	return NULL;
}

static void
test_threads_share_a_segment(void)
{
	static struct fake fake;
	struct worker workers[N_THREADS];
	unsigned seed = seed_get();
	uint32_t i;

	fake_init(&fake, MAX_UNITS, 4, 1);
	fake.max_committed = 4;
	for (i = 0; i < N_THREADS; i++) {
		workers[i] = (struct worker){.fake = &fake, .seed = seed + i};
		CU_ASSERT_EQUAL_FATAL(pthread_create(&workers[i].thread, NULL, worker_run, &workers[i]), 0);
	}
	for (i = 0; i < N_THREADS; i++) {
		pthread_join(workers[i].thread, NULL);
		CU_ASSERT_EQUAL(workers[i].n_bad, 0);
	}
	CU_ASSERT(counters_of(&fake).n_commit_fails > 0);
	CU_ASSERT_EQUAL(counters_of(&fake).n_committed, 1 << 4);
	CU_ASSERT_EQUAL(counters_of(&fake).n_free, 1 << 4);
	CU_ASSERT_EQUAL(fake.n_committed, 1);
	fake_deinit(&fake);
}

/* The checker is itself checked: each kind of damage is noticed. */
static void
test_check_notices_damage(void)
{
	static struct fake fake;
	struct pages *pages = &fake.pages;
	uint32_t first;

	fake_init(&fake, 4, 4, 0);
	CU_ASSERT_EQUAL(pages_alloc(pages, 0, &first), 0);
	CU_ASSERT_EQUAL(pages_alloc(pages, 0, &first), 0);
	CU_ASSERT(pages_check(pages));
	bitset_set(&pages->free[0], 0); /* more free pages than counted */
	CU_ASSERT(!pages_check(pages));
	pages->counters.n_free++;
	CU_ASSERT(pages_check(pages));
	bitset_set(&pages->free[0], 1); /* buddies that were not merged */
	pages->counters.n_free++;
	CU_ASSERT(!pages_check(pages));
	bitset_clear(&pages->free[0], 1);
	pages->counters.n_free--;
	bitset_set(&pages->free[0], 8); /* inside a free block */
	pages->counters.n_free++;
	CU_ASSERT(!pages_check(pages));
	bitset_clear(&pages->free[0], 8);
	bitset_set(&pages->free[0], 16); /* in a unit that is not committed */
	CU_ASSERT(!pages_check(pages));
	bitset_clear(&pages->free[0], 16);
	pages->counters.n_free--;
	pages->counters.n_committed += 16;
	CU_ASSERT(!pages_check(pages));
	pages->counters.n_committed -= 16;
	CU_ASSERT(pages_check(pages));
	bitset_set(&pages->claimed, 1); /* claimed, and not counted as seen */
	CU_ASSERT(!pages_check(pages));
	bitset_clear(&pages->claimed, 1);
	fake_deinit(&fake);
}

CU_pSuite
test_pages_suite(void)
{
	CU_pSuite suite = CU_add_suite("pages", NULL, NULL);

	CU_ADD_TEST(suite, test_random_blocks_do_not_overlap);
	CU_ADD_TEST(suite, test_random_runs_do_not_overlap);
	CU_ADD_TEST(suite, test_runs_leave_the_rest);
	CU_ADD_TEST(suite, test_run_over_the_reserve);
	CU_ADD_TEST(suite, test_lowest_block_of_the_smallest_order);
	CU_ADD_TEST(suite, test_free_units_go_back);
	CU_ADD_TEST(suite, test_reserve_stays);
	CU_ADD_TEST(suite, test_holes_are_what_is_not_committed);
	CU_ADD_TEST(suite, test_init_refuses);
	CU_ADD_TEST(suite, test_marked_blocks_are_taken);
	CU_ADD_TEST(suite, test_commit_does_not_block_others);
	CU_ADD_TEST(suite, test_free_does_not_wait);
	CU_ADD_TEST(suite, test_waits_for_the_unit_under_way);
	CU_ADD_TEST(suite, test_runs_do_not_block_others);
	CU_ADD_TEST(suite, test_threads_share_a_segment);
	CU_ADD_TEST(suite, test_check_notices_damage);
	return suite;
}
