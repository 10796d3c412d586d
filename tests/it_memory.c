/* SPDX-License-Identifier: Apache-2.0 */
/* Memory: the page ladder and what is said of it, shortage as an error and never a signal, pages given back, the reserve, and the
 * metadata's share. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

CU_pSuite it_memory_suite(void);

enum { PAGE = 4096, HUGE_BYTES = 2 << 20 };

/* As many objects of 4,096 bytes, each written. */
static void
fill(struct slabc_cache *k, unsigned char **pv, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		REQUIRE((pv[i] = slabc_alloc(k)) != NULL);
		memset(pv[i], (int)(i % 251), PAGE);
	}
}

static unsigned
count_bad(unsigned char **pv, unsigned n)
{
	unsigned n_bad = 0;

	for (unsigned i = 0; i < n; i++)
		n_bad += pv[i][0] != i % 251 || pv[i][PAGE - 1] != i % 251;
	return n_bad;
}

/* No huge page to be had: the next rung, and STATUS says what was wanted, what was got and what would change it. */
static void
it_empty_pool_steps_down(void)
{
	static unsigned char *pv[2048];
	struct proto_status_reply status;
	struct slabc *c;

	if (!hugepages_take(0))
		return;
	CLEANUP(harness_free) struct harness *h = harness_slabd("--arena-size=64M");
	c = harness_open(h, "steps down");
	fill(harness_open_cache(c, "k", PAGE, 0), pv, 2048);
	CHECK(count_bad(pv, 2048) == 0);
	status = harness_status(h);
	CHECK(strcmp(status.page_kind, "auto") == 0);
	CHECK(status.bytes_huge == 0);
	CHECK(status.bytes_thp + status.bytes_4k >= 2048 * PAGE);
	CHECK(strstr(status.page_note, "wanted 2 MiB pages") != NULL);
	CHECK(strstr(status.page_note, "got transparent huge pages") != NULL);
	CHECK(strstr(status.page_note, "vm.nr_hugepages") != NULL);
	/* Logged once, not at every step down. */
	CHECK(harness_log_count(h, "wanted 2 MiB pages") == 1);
	slabc_close(c);
}

/* A pool that runs dry half way: both kinds are used, every object can be touched. */
static void
it_half_empty_pool_uses_both_kinds(void)
{
	static unsigned char *pv[6144];
	struct proto_status_reply status;
	struct slabc *c;

	if (!hugepages_take(8))
		return;
	CLEANUP(harness_free) struct harness *h = harness_slabd("--arena-size=64M");
	c = harness_open(h, "both kinds");
	fill(harness_open_cache(c, "k", PAGE, 0), pv, 6144);
	CHECK(count_bad(pv, 6144) == 0);
	status = harness_status(h);
	CHECK(status.bytes_huge == 8ull * HUGE_BYTES);
	CHECK(status.bytes_thp + status.bytes_4k >= 6144ull * PAGE - 8ull * HUGE_BYTES);
	CHECK(status.committed_bytes == status.bytes_huge + status.bytes_thp + status.bytes_4k);
	CHECK(hugepages_free() == 0);
	slabc_close(c);
	CHECK(harness_audit(h).n_lost == 0);
}

/* Only huge pages wanted, none there: ENOMEM in a sentence that names the sysctl, and slabd lives. */
static void
it_huge_only_says_what_is_missing(void)
{
	struct slabc_cache *k;
	struct slabc *c;
	void *p;

	if (!hugepages_take(0))
		return;
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=huge --arena-size=64M");
	c = harness_open(h, "huge only");
	k = harness_open_cache(c, "k", PAGE, 0);
	errno = 0;
	CHECK(slabc_alloc(k) == NULL && errno == ENOMEM);
	CHECK(strstr(slabc_last_error(), "nr_hugepages") != NULL);
	CHECK(strstr(harness_status(h).page_note, "got none") != NULL);
	/* Once there are some it works. */
	if (hugepages_take(4)) {
		CHECK((p = slabc_alloc(k)) != NULL);
		memset(p, 1, PAGE);
		CHECK(harness_status(h).bytes_huge == HUGE_BYTES);
	}
	slabc_close(c);
}

/* Pages go back to the pool: those of a cache without objects at once, the rest when slabd ends. */
static void
it_huge_pages_are_given_back(void)
{
	static unsigned char *pv[3072];
	struct slabc_cache *k;
	struct slabc *c;

	if (!hugepages_take(8))
		return;
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=huge --arena-size=64M");
	c = harness_open(h, "gives back");
	for (int round = 0; round < 3; round++) {
		k = harness_open_cache(c, "k", PAGE, 0);
		fill(k, pv, 3072);
		CHECK(hugepages_free() <= 2);
		for (int i = 0; i < 3072; i++)
			slabc_free(k, pv[i]);
		slabc_cache_close(k);
		/* The closing leaves nothing idle. */
		CHECK(harness_cache(h, "k").n_objects == 0);
		CHECK(harness_status(h).committed_bytes == 0);
		CHECK(EVENTUALLY(hugepages_free() == 8));
	}
	fill(harness_open_cache(c, "k", PAGE, 0), pv, 3072);
	slabc_close(c);
	CHECK(hugepages_free() <= 2); /* kept for who may adopt */
	CHECK(harness_stop_slabd(h, SIGTERM) == 0);
	CHECK(EVENTUALLY(hugepages_free() == 8));
}

static void
hold_huge(struct peer *me, void *arg)
{
	static unsigned char *pv[2048];
	struct harness *h = arg;

	fill(harness_open_cache(harness_open(h, "holds huge pages"), "k", PAGE, 0), pv, 1024);
	peer_tell(me, 'h');
	peer_await(me, 'e');
}

/* Slabd and all clients SIGKILLed: the kernel has every page back; nothing is left behind that a restart would have to clean. */
static void
it_kill_of_all_leaves_no_page(void)
{
	pid_t pids[2];

	if (!hugepages_take(8))
		return;
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=huge --arena-size=64M");
	for (int i = 0; i < 2; i++)
		pids[i] = harness_spawn(h, hold_huge, h);
	for (int i = 0; i < 2; i++)
		peer_await(harness_peer(h, pids[i]), 'h');
	CHECK(hugepages_free() <= 4);
	harness_kill_slabd(h);
	for (int i = 0; i < 2; i++)
		harness_kill(h, pids[i], SIGKILL);
	CHECK(EVENTUALLY(hugepages_free() == 8));
}

static void
fill_and_free(struct peer *me, void *arg)
{
	static unsigned char *pv[16384];
	struct harness *h = arg;
	struct slabc_cache *k = harness_open_cache(harness_open(h, "comes and goes"), "k", PAGE, 0);

	fill(k, pv, 16384);
	peer_tell(me, 'f');
	peer_await(me, 'g');
	for (int i = 0; i < 16384; i++)
		slabc_free(k, pv[i]);
	peer_tell(me, 'd');
	peer_await(me, 'e');
}

/* A cache's memory goes back when its objects are free and its client is gone, though another has it open. */
static void
it_committed_falls_after_the_client(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=128M");
	struct slabc *keeper = harness_open(h, "keeps the cache open");
	pid_t pid = harness_spawn(h, fill_and_free, h);
	uint64_t peak, after;

	harness_open_cache(keeper, "k", PAGE, 0);
	peer_await(harness_peer(h, pid), 'f');
	peak = harness_status(h).committed_bytes;
	CHECK(peak >= 64u << 20);
	peer_tell(harness_peer(h, pid), 'g');
	peer_await(harness_peer(h, pid), 'd');
	peer_tell(harness_peer(h, pid), 'e');
	harness_join(h, pid);
	harness_wait_reaped(h, pid);
	after = harness_status(h).committed_bytes;
	/* The node barn keeps 16 MiB at most, and in its slabs' shadow a little more. */
	printf(" %llu MiB, then %llu MiB ", (unsigned long long)peak >> 20, (unsigned long long)after >> 20);
	CHECK(after <= (16u + 4u) << 20);
	CHECK(harness_cache(h, "k").n_out == 0);
	/* What is committed is what the system says. */
	CHECK(harness_status(h).bytes_4k == after);
	slabc_close(keeper);
	CHECK(harness_status(h).committed_bytes == 0);
}

/* A full arena says ENOMEM and names the limit; after frees it gives again, to the same client and to another, whatever cache they want it
 * for. */
static void
it_full_arena_recovers(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=8M");
	struct slabc *c = harness_open(h, "fills it"), *other = harness_open(h, "other");
	struct slabc_cache *k = harness_open_cache(c, "k", 1000, 0), *same = harness_open_cache(other, "k", 1000, 0);
	struct slabc_cache *k2 = harness_open_cache(other, "k2", 3000, 0);
	static void *pv[16384];
	unsigned n = 0, m = 0;

	errno = 0;
	while (n < 16384 && (pv[n] = slabc_alloc(k)))
		memset(pv[n++], 1, 1000);
	CHECK(errno == ENOMEM);
	CHECK(strstr(slabc_last_error(), "--arena-size") != NULL);
	CHECK(n > 8000);
	CHECK(harness_status(h).committed_bytes <= 8u << 20);
	errno = 0;
	CHECK(slabc_alloc(same) == NULL && errno == ENOMEM);
	CHECK(slabc_alloc(k2) == NULL && errno == ENOMEM);
	/* The same client. */
	for (int i = 0; i < 10; i++)
		slabc_free(k, pv[--n]);
	for (int i = 0; i < 10; i++)
		CHECK((pv[n++] = slabc_alloc(k)) != NULL);
	/* The other one: what the first keeps idle is called in. */
	while (n > 100)
		slabc_free(k, pv[--n]);
	for (int i = 0; i < 1000; i++)
		CHECK(slabc_alloc(same) != NULL);
	while (m < 1000 && slabc_alloc(k2))
		m++;
	CHECK(m == 1000);
	slabc_close(c);
	slabc_close(other);
	CHECK(harness_audit(h).n_lost == 0);
	CHECK(harness_audit(h).n_doubled == 0);
}

/* The reserve is there before slabd answers, and stays. */
static void
it_reserve_is_kept(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=64M --reserve=16M");
	struct slabc *c = harness_open(h, "uses it");
	static unsigned char *pv[8192];
	struct slabc_cache *k = harness_open_cache(c, "k", PAGE, 0);

	CHECK(harness_status(h).committed_bytes == 16u << 20);
	CHECK(harness_status(h).bytes_4k == 16u << 20);
	fill(k, pv, 2048);
	CHECK(harness_status(h).committed_bytes <= (16u + 1u) << 20); /* it is used first */
	fill(k, pv + 2048, 6144);
	CHECK(harness_status(h).committed_bytes >= 32u << 20);
	for (int i = 0; i < 8192; i++)
		slabc_free(k, pv[i]);
	slabc_close(c);
	CHECK(harness_cache(h, "k").n_objects == 0);
	CHECK(harness_status(h).committed_bytes == 16u << 20);
}

/* A reserve that cannot be had, or is above the arena's size, is refused at the start. */
static void
it_reserve_that_cannot_be_had(void)
{
	CLEANUP(harness_free) struct harness *h = harness_new();
	int status = -1;

	CHECK(!harness_start(h, &status, "--page-kind=4k --arena-size=64M --reserve=65M"));
	CHECK(status == 1);
	CHECK(harness_log_count(h, "reserve 68157440 is above arena-size 67108864") == 1);
	if (!hugepages_take(2))
		return;
	CHECK(!harness_start(h, &status, "--page-kind=huge --arena-size=64M --reserve=16M"));
	CHECK(status == 1);
	CHECK(harness_log_count(h, "the reserve of 16777216 bytes could not be committed") == 1);
	CHECK(harness_log_count(h, "nr_hugepages") >= 1);
	/* auto: the rest is of the next kind. */
	CHECK(harness_start(h, &status, "--arena-size=64M --reserve=16M"));
	CHECK(harness_status(h).bytes_huge == 4u << 20);
	CHECK(harness_status(h).bytes_thp + harness_status(h).bytes_4k == 12u << 20);
	CHECK(harness_stop_slabd(h, SIGTERM) == 0);
	hugepages_put_back();
}

static int
compare(const void *a, const void *b)
{
	const int64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

/* Ready, its socket answering, within 200 ms with an arena of 1 GiB. */
static void
it_ready_soon(void)
{
	int64_t took[5];

	for (int i = 0; i < 5; i++) {
		CLEANUP(harness_free) struct harness *h = harness_new();
		int64_t start = harness_now_ns();

		REQUIRE(harness_start(h, NULL, "--arena-size=1G"));
		took[i] = harness_now_ns() - start;
	}
	qsort(took, 5, sizeof took[0], compare);
	printf(" %.1f ms ", (double)took[2] / 1e6);
	CHECK(took[2] < 200000000);
}

/* Words, map and ledger for 64 MiB of live objects: at most 8% at 64 bytes, 3% at 256, 0.7% at 4,096. */
static void
it_metadata_share(void)
{
	static const struct {
		unsigned size;
		double most;
	} cases[] = {{64, 0.08}, {256, 0.03}, {4096, 0.007}};
	static void *pv[(64 << 20) / 64];

	for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=128M");
		unsigned n = (64u << 20) / cases[i].size;
		struct slabc *c = harness_open(h, "metadata");
		struct slabc_cache *k = harness_open_cache(c, "k", cases[i].size, 0);
		struct proto_status_reply before, after;
		double share;

		/* A first object: what a cache costs once is no share of the live bytes. */
		REQUIRE(slabc_alloc(k) != NULL);
		before = harness_status(h);
		REQUIRE(slabc_alloc_bulk(k, n, pv) == 0);
		after = harness_status(h);
		share = (double)(after.words_bytes + after.map_bytes + after.ledger_bytes - before.words_bytes - before.map_bytes -
				 before.ledger_bytes) /
			(64 << 20);
		printf(" %u: %.3f%% ", cases[i].size, share * 100);
		CHECK(share <= cases[i].most);
		CHECK(after.committed_bytes < (64u + 8u) << 20);
		slabc_close(c);
	}
}

CU_pSuite
it_memory_suite(void)
{
	CU_pSuite suite = harness_suite("memory");

	CU_ADD_TEST(suite, it_empty_pool_steps_down);
	CU_ADD_TEST(suite, it_half_empty_pool_uses_both_kinds);
	CU_ADD_TEST(suite, it_huge_only_says_what_is_missing);
	CU_ADD_TEST(suite, it_huge_pages_are_given_back);
	CU_ADD_TEST(suite, it_kill_of_all_leaves_no_page);
	CU_ADD_TEST(suite, it_committed_falls_after_the_client);
	CU_ADD_TEST(suite, it_full_arena_recovers);
	CU_ADD_TEST(suite, it_reserve_is_kept);
	CU_ADD_TEST(suite, it_reserve_that_cannot_be_had);
	CU_ADD_TEST(suite, it_ready_soon);
	CU_ADD_TEST(suite, it_metadata_share);
	return suite;
}
