/* SPDX-License-Identifier: Apache-2.0 */
/* Refills that follow the program: asked for ahead, so that a steady thread does not wait; none at all for one that swings about a boundary. */
#include "tests/harness.h"

enum { BATCH = 1024, SIZE = 256 };

/* A session, and its handle of the one cache. */
struct end {
	struct slabc *c;
	struct slabc_cache *k;
};

static struct end
end_open(const struct harness *h, const char *label)
{
	struct end end = {.c = harness_open(h, label)};

	end.k = harness_open_cache(end.c, "k", SIZE, SLABC_SHARED);
	return end;
}

/* What one session allocates another frees, n_rounds times; slabd, which answers once between two of them, has done by then what was asked before. */
static void
pump(struct harness *h, const struct end *from, const struct end *to, unsigned n_rounds)
{
	static void *pv[BATCH];

	for (unsigned i = 0; i < n_rounds; i++) {
		REQUIRE(slabc_alloc_bulk(from->k, BATCH, pv) == 0);
		for (unsigned j = 0; j < BATCH; j++)
			REQUIRE((pv[j] = slabc_deref(to->c, slabc_ref_of(from->c, pv[j]))) != NULL);
		slabc_free_bulk(to->k, BATCH, pv);
		harness_status(h);
	}
}

static struct slabc_stats
stats_of(struct slabc *c)
{
	struct slabc_stats s = SLABC_STATS_INIT;

	REQUIRE(slabc_get_stats(c, &s) == 0);
	return s;
}

/* Objects that go one way for long: refills go on, hardly any is waited for. */
static void
it_steady_producer_does_not_wait(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct end from = end_open(h, "producer"), to = end_open(h, "consumer");
	struct slabc_stats before, after;

	pump(h, &from, &to, 100);
	before = stats_of(from.c);
	pump(h, &from, &to, 200);
	after = stats_of(from.c);
	printf(" %llu refills, %llu waited for ", (unsigned long long)(after.n_refills - before.n_refills),
		(unsigned long long)(after.n_waits - before.n_waits));
	CHECK(after.n_refills > before.n_refills);
	CHECK((after.n_waits - before.n_waits) * 5 <= after.n_refills - before.n_refills);
	CHECK(harness_audit(h).n_lost == 0);
	slabc_close(from.c);
	slabc_close(to.c);
}

/* A refill asked for ahead that could not be made is asked for again when there is memory. */
static void
it_asks_ahead_again_after_a_shortage(void)
{
	enum { MOST = 16 << 20 };
	static void *pv[MOST / SIZE + 1];
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=16M");
	struct end from = end_open(h, "producer"), to = end_open(h, "consumer");
	struct slabc_stats before, after;
	size_t n = 0;

	pump(h, &from, &to, 50);
	while (n <= MOST / SIZE && (pv[n] = slabc_alloc(from.k)))
		n++;
	CHECK(n <= MOST / SIZE && n > MOST / SIZE * 9 / 10);
	slabc_free_bulk(from.k, n, pv);
	pump(h, &from, &to, 100);
	before = stats_of(from.c);
	pump(h, &from, &to, 100);
	after = stats_of(from.c);
	printf(" %llu refills, %llu waited for ", (unsigned long long)(after.n_refills - before.n_refills),
		(unsigned long long)(after.n_waits - before.n_waits));
	CHECK(after.n_refills > before.n_refills);
	CHECK((after.n_waits - before.n_waits) * 5 <= after.n_refills - before.n_refills);
	slabc_close(from.c);
	slabc_close(to.c);
}

/* Where a client's fair share is less than a sheaf, each refill is waited for: nothing is asked for ahead in vain. */
static void
it_asks_nothing_ahead_where_many_share(void)
{
	enum { N_OTHERS = 60 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct end from = end_open(h, "producer"), to = end_open(h, "consumer"), others[N_OTHERS];
	struct slabc_stats before, after;

	for (int i = 0; i < N_OTHERS; i++)
		others[i] = end_open(h, "other");
	pump(h, &from, &to, 100);
	before = stats_of(from.c);
	pump(h, &from, &to, 100);
	after = stats_of(from.c);
	printf(" %llu refills, %llu waited for ", (unsigned long long)(after.n_refills - before.n_refills),
		(unsigned long long)(after.n_waits - before.n_waits));
	CHECK(after.n_waits > before.n_waits);
	CHECK((after.n_refills - before.n_refills) * 10 <= (after.n_waits - before.n_waits) * 11);
	for (int i = 0; i < N_OTHERS; i++)
		slabc_close(others[i].c);
	slabc_close(from.c);
	slabc_close(to.c);
}

/* A thread whose live objects swing about any number sends nothing. */
static void
it_swinging_sends_nothing(void)
{
	static void *pv[4096];
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "swinger");
	struct slabc_cache *k = harness_open_cache(c, "k", SIZE, 0);
	struct slabc_stats before, after;

	REQUIRE(slabc_alloc_bulk(k, 4096, pv) == 0);
	slabc_free_bulk(k, 2048, pv);
	REQUIRE(slabc_alloc_bulk(k, 2048, pv) == 0);
	before = stats_of(c);
	for (unsigned width = 1; width <= 2048; width *= 2) {
		for (unsigned i = 0; i < 50; i++) {
			slabc_free_bulk(k, width, pv);
			REQUIRE(slabc_alloc_bulk(k, width, pv) == 0);
		}
	}
	after = stats_of(c);
	CHECK(after.n_refills == before.n_refills && after.n_flushes == before.n_flushes);
	slabc_close(c);
}

CU_pSuite it_refill_suite(void);

CU_pSuite
it_refill_suite(void)
{
	CU_pSuite suite = harness_suite("refill");

	CU_ADD_TEST(suite, it_steady_producer_does_not_wait);
	CU_ADD_TEST(suite, it_asks_ahead_again_after_a_shortage);
	CU_ADD_TEST(suite, it_asks_nothing_ahead_where_many_share);
	CU_ADD_TEST(suite, it_swinging_sends_nothing);
	return suite;
}
