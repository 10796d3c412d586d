/* SPDX-License-Identifier: Apache-2.0 */
/* Of make check-long: two hundred kills of slabd under twenty busy clients, and how soon it serves again; all times are printed. */
#include <stdio.h>

#include "tests/harness.h"

CU_pSuite it_adopt_long_suite(void);

/* Longer than it takes the keeper to start the next one without a pause (slabd-keeper.8). */
enum { LIFE_MS = 1050, N_TIMES = 21, LIMIT_NS = 100000000 };

static void
it_two_hundred_kills_under_twenty_clients(void)
{
	const struct storm storm = {.arguments = "--page-kind=4k --arena-size=512M --threads=2",
		.n_busy = 20,
		.n_kills = 200,
		.least_ms = LIFE_MS,
		.more_ms = 100,
		.timeout_s = 900};

	harness_storm(&storm);
}

/* Many a one does not live long enough to have adopted all. */
static void
it_two_hundred_kills_in_a_row(void)
{
	const struct storm storm = {
		.arguments = "--page-kind=4k --arena-size=512M", .n_busy = 20, .n_kills = 200, .more_ms = 60, .timeout_s = 900};

	harness_storm(&storm);
}

/* Serving again in under 100 ms, on a machine that does not do much else: the median is asked for. */
static void
it_serves_32_gib_within_100_ms(void)
{
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k --arena-size=32G");
	struct slabc *c = harness_open(h, "large");
	struct slabc_cache *k = harness_open_cache(c, "k", 4096, 0);
	static void *p[4000];
	int64_t times[N_TIMES];

	alarm(300);
	REQUIRE(slabc_alloc_bulk(k, 4000, p) == 0);
	for (int i = 0; i < N_TIMES; i++) {
		for (int64_t until = harness_now_ns() + LIFE_MS * INT64_C(1000000); harness_now_ns() < until;)
			harness_pause();
		times[i] = harness_time_kill(h);
	}
	harness_check_audit(h);
	slabc_free_bulk(k, 4000, p);
	slabc_close(c);
	harness_check_at_rest(h);
	CHECK(harness_print_times(h, times, N_TIMES) < LIMIT_NS);
}

CU_pSuite
it_adopt_long_suite(void)
{
	CU_pSuite suite = harness_suite("adopt-long");

	CU_ADD_TEST(suite, it_serves_32_gib_within_100_ms);
	CU_ADD_TEST(suite, it_two_hundred_kills_under_twenty_clients);
	CU_ADD_TEST(suite, it_two_hundred_kills_in_a_row);
	return suite;
}
