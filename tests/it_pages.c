/* SPDX-License-Identifier: Apache-2.0 */
/* The page ladder's upper and lower rungs: transparent huge pages, pages of 1 GiB, and what is said where there are none. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "tests/harness.h"

CU_pSuite it_pages_suite(void);

enum { PAGE = 4096, HUGE_BYTES = 2 << 20 };

#define GIANT_DIR "/sys/kernel/mm/hugepages/hugepages-1048576kB/"

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

/* Bytes of this process's mapping of a data segment that the kernel maps as huge pages, by what smaps says under that heading. */
static uint64_t
mapped_huge(const char *segment, const char *heading)
{
	FILE *file = fopen("/proc/self/smaps", "re");
	uint64_t sum = 0;
	bool is_ours = false;
	char line[512];

	REQUIRE(file != NULL);
	while (fgets(line, sizeof line, file)) {
		unsigned long from, to, kb;

		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			is_ours = strstr(line, segment) != NULL;
		else if (is_ours && strncmp(line, heading, strlen(heading)) == 0 && sscanf(line + strlen(heading), ": %lu kB", &kb) == 1)
			sum += (uint64_t)kb << 10;
	}
	fclose(file);
	return sum;
}

/* Does the kernel make transparent huge pages of a memfd here?  By asking slabd, which says so; else told to skip(). */
static bool
has_thp(struct harness *h)
{
	if (harness_status(h).bytes_thp > 0)
		return true;
	skip("the kernel makes no transparent huge page of a memfd here: %s", harness_status(h).page_note);
	return false;
}

/* With shmem_enabled=never and no advice by anybody a client has its objects in huge pages. */
static void
it_thp_reach_the_client(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=thp,4k --arena-size=64M --reserve=20M");
	static unsigned char *pv[6144];
	struct proto_status_reply status = harness_status(h);
	struct slabc *c;

	CHECK(strcmp(status.page_kind, "thp,4k") == 0);
	CHECK(status.committed_bytes == 20u << 20 && status.bytes_thp + status.bytes_4k == 20u << 20);
	if (!has_thp(h))
		return;
	CHECK(status.bytes_thp == 20u << 20 && status.bytes_4k == 0 && strcmp(status.page_note, "") == 0);
	c = harness_open(h, "huge by collapse");
	fill(harness_open_cache(c, "k", PAGE, 0), pv, 6144);
	CHECK(count_bad(pv, 6144) == 0);
	CHECK(EVENTUALLY(harness_status(h).bytes_thp == harness_status(h).committed_bytes));
	status = harness_status(h);
	CHECK(status.bytes_4k == 0 && status.bytes_thp >= 6144u * PAGE);
	/* What was made huge under this process is what it wrote, and in its map again when it is touched. */
	CHECK(count_bad(pv, 6144) == 0);
	/* What this process touched it has mapped by the 2 MiB. */
	CHECK(mapped_huge("slabd:data:0:4k", "ShmemPmdMapped") >= 6144u * PAGE - HUGE_BYTES);
	slabc_close(c);
	CHECK(harness_audit(h).n_lost == 0);
}

/* Units that are free go back, and are huge again when they are needed again. */
static void
it_thp_come_back(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=thp,4k --arena-size=64M");
	static unsigned char *pv[2048];
	struct slabc *c = harness_open(h, "comes and goes");

	for (int round = 0; round < 3; round++) {
		struct slabc_cache *k = harness_open_cache(c, "k", PAGE, 0);

		fill(k, pv, 2048);
		CHECK(EVENTUALLY(harness_status(h).bytes_4k == 0 || *harness_status(h).page_note));
		if (round == 0 && !has_thp(h)) {
			slabc_close(c);
			return;
		}
		CHECK(EVENTUALLY(harness_status(h).bytes_thp >= 2048u * PAGE && harness_status(h).bytes_4k == 0));
		CHECK(count_bad(pv, 2048) == 0);
		for (int i = 0; i < 2048; i++)
			slabc_free(k, pv[i]);
		slabc_cache_close(k);
		CHECK(harness_status(h).committed_bytes == 0 && harness_status(h).bytes_thp == 0 && harness_status(h).bytes_4k == 0);
	}
	slabc_close(c);
}

/* Where the kernel refuses, small pages serve; said once, in STATUS and log, with what would change it. */
static void
it_without_thp_small_pages_serve(void)
{
	static unsigned char *pv[4096];
	struct proto_status_reply status;
	struct harness *started;
	struct slabc *c;

	/* Slabd inherits it. */
	if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) < 0) {
		skip("PR_SET_THP_DISABLE: %s", strerror(errno));
		return;
	}
	started = harness_slabd("--page-kind=thp,4k --arena-size=64M --reserve=4M");
	prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
	CLEANUP(harness_free) struct harness *h = started;
	c = harness_open(h, "small pages");
	fill(harness_open_cache(c, "k", PAGE, 0), pv, 4096);
	CHECK(count_bad(pv, 4096) == 0);
	status = harness_status(h);
	CHECK(status.bytes_thp == 0 && status.bytes_4k == status.committed_bytes);
	CHECK(strstr(status.page_note, "wanted transparent huge pages") != NULL && strstr(status.page_note, "got 4 KiB pages") != NULL);
	CHECK(strstr(status.page_note, "shmem_enabled") != NULL);
	CHECK(harness_log_count(h, "wanted transparent huge pages") == 1);
	slabc_close(c);
}

static long
number_of(const char *path)
{
	FILE *file = fopen(path, "re");
	long n = -1;

	if (file && fscanf(file, "%ld", &n) != 1)
		n = -1;
	if (file)
		fclose(file);
	return n;
}

static bool
giant_pool(long n)
{
	FILE *file = fopen(GIANT_DIR "nr_hugepages", "we");
	bool ok = file && fprintf(file, "%ld\n", n) > 0;

	return (!file || fclose(file) == 0) && ok && number_of(GIANT_DIR "nr_hugepages") == n;
}

/* 1 GiB pages come only if asked for. Without any, alone: an error that names where they come from; over others: a step down that does. */
static void
it_no_giant_pages(void)
{
	CLEANUP(harness_free) struct harness *h = harness_new();
	struct proto_status_reply s;
	struct slabc_cache *k;
	struct slabc *c;
	unsigned n_said;
	int status = -1;
	char *p;

	if (number_of(GIANT_DIR "free_hugepages") > 0) {
		skip("the pool of 1 GiB pages is not empty");
		return;
	}
	CHECK(!harness_start(h, &status, "--page-kind=1g --arena-size=1G --reserve=1M"));
	CHECK(status == 1);
	CHECK(harness_log_count(h, "hugepages-1048576kB/nr_hugepages") >= 1 && harness_log_count(h, "hugepagesz=1G") >= 1);
	/* Not even without a reserve is it mistaken for something else. */
	if (access(GIANT_DIR, F_OK) == 0) {
		REQUIRE(harness_start(h, NULL, "--page-kind=1g --arena-size=64M"));
		CHECK(harness_status(h).arena_bytes == 1u << 30); /* in whole pages */
		c = harness_open(h, "wants one");
		k = harness_open_cache(c, "k", 64, 0);
		errno = 0;
		CHECK(slabc_alloc(k) == NULL && errno == ENOMEM);
		CHECK(strstr(slabc_last_error(), "1 GiB pages") != NULL);
		slabc_close(c);
		CHECK(harness_stop_slabd(h, SIGTERM) == 0);
	}
	REQUIRE(harness_start(h, NULL, "--page-kind=1g,4k --arena-size=2G --reserve=1M"));
	s = harness_status(h);
	CHECK(strcmp(s.page_kind, "1g,4k") == 0 && s.bytes_1g == 0 && s.bytes_4k == 1u << 20);
	CHECK(strstr(s.page_note, "1 GiB pages") != NULL && strstr(s.page_note, "hugepages-1048576kB") != NULL);
	c = harness_open(h, "takes what there is");
	CHECK((p = slabc_alloc(harness_open_cache(c, "k", 64, 0))) != NULL);
	memset(p, 1, 64);
	slabc_close(c);
	CHECK(harness_stop_slabd(h, SIGTERM) == 0);
	/* Unless asked for, nobody misses them. */
	n_said = harness_log_count(h, "1 GiB pages");
	REQUIRE(harness_start(h, NULL, "--arena-size=2G --reserve=1M"));
	CHECK(harness_log_count(h, "1 GiB pages") == n_said);
	CHECK(harness_stop_slabd(h, SIGTERM) == 0);
}

/* With one in the pool, it carries the objects, and the next rung the rest. */
static void
it_giant_page(void)
{
	struct proto_status_reply s;
	struct slabc_cache *k;
	struct slabc *c;
	static void *pv[1024];
	unsigned n = 0;

	/* The lock on the other pool's file keeps the other tests away. */
	if (!hugepages_take(0))
		return;
	if (number_of(GIANT_DIR "nr_hugepages") != 0 || !giant_pool(1)) {
		giant_pool(0);
		skip("no page of 1 GiB can be had");
		return;
	}
	CLEANUP(harness_free) struct harness *h = harness_new();
	bool started = harness_start(h, NULL, "--page-kind=1g,4k --arena-size=1100M --reserve=1G");

	/* Slabd has it, and keeps it until its end. */
	giant_pool(0);
	REQUIRE(started);
	s = harness_status(h);
	CHECK(s.bytes_1g == 1u << 30 && s.bytes_4k == 0 && s.committed_bytes == 1u << 30);
	c = harness_open(h, "in a giant");
	k = harness_open_cache(c, "k", 32768, 0);
	for (; n < 1024; n++) {
		REQUIRE((pv[n] = slabc_alloc(k)) != NULL);
		memset(pv[n], (int)n, 32768);
	}
	CHECK(harness_status(h).bytes_1g == 1u << 30 && harness_status(h).bytes_4k == 0);
	CHECK(mapped_huge("slabd:data:0:1g", "Shared_Hugetlb") + mapped_huge("slabd:data:0:1g", "Private_Hugetlb") == 1u << 30);
	while (n-- > 0)
		CHECK(((unsigned char *)pv[n])[32767] == n % 256);
	slabc_close(c);
	CHECK(harness_audit(h).n_lost == 0);
	CHECK(harness_stop_slabd(h, SIGTERM) == 0);
	CHECK(EVENTUALLY(number_of(GIANT_DIR "nr_hugepages") == 0));
}

static void
read_giant(struct peer *me, void *arg)
{
	struct slabc *c = harness_open(arg, "reader");
	const volatile unsigned char *p;
	slabc_ref ref;

	peer_get(me, &ref, sizeof ref);
	REQUIRE((p = slabc_deref(c, ref)) != NULL);
	CHECK(p[PAGE - 1] == 77);
	peer_tell(me, 'r');
	peer_await(me, 'f');
	/* Without the page, a SIGBUS. */
	(void)p[PAGE - 1];
	CHECK(slabc_valid(c, ref) == 0);
	slabc_close(c);
}

/* A giant page that came free is kept for a reader, and no longer. */
static void
it_giant_page_is_kept_for_its_reader(void)
{
	struct slabc_options options = SLABC_OPTIONS_INIT;
	struct slabc_cache *k = NULL;
	struct slabc *c = NULL;
	struct peer *peer;
	slabc_ref ref;
	void *p = NULL;
	pid_t pid;

	if (!hugepages_take(0))
		return;
	if (number_of(GIANT_DIR "nr_hugepages") != 0 || !giant_pool(1)) {
		giant_pool(0);
		skip("no page of 1 GiB can be had");
		return;
	}
	CLEANUP(harness_free) struct harness *h = harness_new();
	bool started = harness_start(h, NULL, "--page-kind=1g --arena-size=1G");

	/* To fill a giant page with zeros may take long. */
	options.socket = h->socket;
	options.timeout_ms = -1;
	if (started && CHECK(slabc_open(&c, &options) == 0)) {
		k = harness_open_cache(c, "k", PAGE, 0);
		p = slabc_alloc(k);
	}
	/* Slabd has it; there is no other. */
	giant_pool(0);
	REQUIRE(p != NULL);
	pid = harness_spawn(h, read_giant, h);
	peer = harness_peer(h, pid);
	memset(p, 77, PAGE);
	ref = slabc_ref_of(c, p);
	peer_put(peer, &ref, sizeof ref);
	peer_await(peer, 'r');
	slabc_free(k, p);
	slabc_cache_close(k);
	CHECK(harness_status(h).bytes_1g == 1u << 30 && harness_status(h).kept_bytes == 1u << 30);
	peer_tell(peer, 'f');
	harness_join(h, pid);
	CHECK(EVENTUALLY(harness_status(h).committed_bytes == 0));
	CHECK(harness_status(h).bytes_1g == 0 && harness_status(h).kept_bytes == 0);
	slabc_close(c);
	CHECK(harness_stop_slabd(h, SIGTERM) == 0);
	CHECK(EVENTUALLY(number_of(GIANT_DIR "nr_hugepages") == 0));
}

/* The profile for servers: larger sheaves, orders and partial lists than the default's, by the machine's size. */
static void
it_server_profile(void)
{
	CLEANUP(harness_free)
	struct harness *h =
		harness_slabd_config("[arena]\nsize = 2G\npage-kind = 4k\nprofile = server\n[arena plain]\nsize = 2G\npage-kind = 4k\n");
	struct slabc_options options = SLABC_OPTIONS_INIT;
	struct slabc *c = harness_open(h, "server"), *plain = NULL;
	union proto_request request = {.caches = {.arena = "plain"}};
	union proto_reply reply = {0};
	struct proto_caches_reply server;
	unsigned n_cpus = (unsigned)sysconf(_SC_NPROCESSORS_ONLN);

	options.socket = h->socket;
	options.arena = "plain";
	REQUIRE(slabc_open(&plain, &options) == 0);
	harness_open_cache(c, "k", 256, 0);
	harness_open_cache(plain, "k", 256, 0);
	server = harness_cache(h, "k");
	CHECK(harness_ask(h, PROTO_OP_CACHES, &request, &reply) == PROTO_STATUS_OK);
	CHECK(server.cpu_partial >= 52 && reply.caches.cpu_partial == 0);
	CHECK(server.order >= reply.caches.order && server.objects_per_slab >= reply.caches.objects_per_slab);
	if (n_cpus < 2) {
		skip("one CPU: the scale is 1");
	} else {
		CHECK(server.capacity >= 2 * reply.caches.capacity);
		CHECK(server.order > reply.caches.order);
		CHECK(server.min_partial > reply.caches.min_partial && server.max_cached >= 2 * reply.caches.max_cached);
	}
	CHECK(strcmp(harness_status(h).profile, "server") == 0);
	slabc_close(c);
	slabc_close(plain);
}

CU_pSuite
it_pages_suite(void)
{
	CU_pSuite suite = harness_suite("pages");

	CU_ADD_TEST(suite, it_thp_reach_the_client);
	CU_ADD_TEST(suite, it_thp_come_back);
	CU_ADD_TEST(suite, it_without_thp_small_pages_serve);
	CU_ADD_TEST(suite, it_no_giant_pages);
	CU_ADD_TEST(suite, it_giant_page);
	CU_ADD_TEST(suite, it_giant_page_is_kept_for_its_reader);
	CU_ADD_TEST(suite, it_server_profile);
	return suite;
}
