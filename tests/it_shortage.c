/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Real shortages, as systems have them (tests/fail_main.c makes them up): a pool of huge pages that others take from, control groups, few descriptors,
 * no locked memory, a full disk for the log.  An error or the next kind of page, and never a signal for who follows the rules.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness.h"

CU_pSuite it_shortage_suite(void);

enum { PAGE = 4096, HUGE_BYTES = 2 << 20, N_HUGE = 8 };

/* Takes what there is of the pool, and gives it back, as fast as it can: whoever looks first and takes then finds it gone. */
static void
take_and_give(struct peer *me, void *arg)
{
	int fd = memfd_create("robber", MFD_CLOEXEC | MFD_HUGETLB | MFD_HUGE_2MB);

	(void)arg;
	REQUIRE(fd >= 0 && ftruncate(fd, (off_t)N_HUGE * HUGE_BYTES) == 0);
	peer_tell(me, 'r');
	for (;;) {
		for (int i = 0; i < N_HUGE; i++)
			if (fallocate(fd, 0, (off_t)i * HUGE_BYTES, HUGE_BYTES) < 0)
				break;
		fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)N_HUGE * HUGE_BYTES);
	}
}

/* Between slabd's look at the pool and its taking, another takes: small pages, and each object can be touched; what was counted is what there is. */
static void
it_pool_drained_by_another(void)
{
	static unsigned char *pv[N_HUGE * 512];
	struct proto_status_reply status;
	struct slabc_cache *k;
	struct slabc *c;
	unsigned n;
	pid_t robber;

	if (!hugepages_take(N_HUGE))
		return;
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=huge,4k --arena-size=64M");
	robber = harness_spawn(h, take_and_give, NULL);
	peer_await(harness_peer(h, robber), 'r');
	for (int round = 0; round < 20; round++) {
		c = harness_open(h, "is robbed");
		k = harness_open_cache(c, "k", PAGE, 0);
		for (n = 0; n < N_HUGE * 512; n++) {
			REQUIRE((pv[n] = slabc_alloc(k)) != NULL);
			memset(pv[n], (int)n, PAGE);
		}
		for (unsigned i = 0; i < n; i++) {
			REQUIRE(pv[i][0] == (unsigned char)i && pv[i][PAGE - 1] == (unsigned char)i);
			slabc_free(k, pv[i]);
		}
		status = harness_status(h);
		CHECK(status.committed_bytes == status.bytes_huge + status.bytes_thp + status.bytes_4k);
		slabc_cache_close(k);
		slabc_close(c);
		CHECK(EVENTUALLY(harness_status(h).committed_bytes == 0));
		CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).bytes_missing == 0);
	}
	harness_kill(h, robber, SIGKILL);
}

/* Descriptors for the socket, and not for the segments: an error that says so, and what there was is closed again; with more it works. */
static void
it_client_with_few_files(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=64M");
	struct slabc_options options = SLABC_OPTIONS_INIT;
	unsigned n_open = harness_count_fds(getpid());
	struct rlimit before, few;
	struct slabc *c = NULL;
	int r, n_refused = 0;

	options.socket = h->socket;
	getrlimit(RLIMIT_NOFILE, &before);
	for (unsigned n = 0; n < 16 && !c; n++) {
		few = (struct rlimit){n_open + n, before.rlim_max};
		REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
		r = slabc_open(&c, &options);
		REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
		if (r == 0)
			break;
		n_refused++;
		CHECK(r == -EMFILE);
		CHECK(*slabc_last_error() != '\0');
		CHECK(harness_count_fds(getpid()) == n_open);
	}
	CHECK(c != NULL && n_refused > 0);
	slabc_close(c);
	CHECK(EVENTUALLY(harness_status(h).n_sessions == 0));
}

static void
without_locked_memory(struct peer *me, void *arg)
{
	const struct rlimit none = {0, 0};
	struct slabc_cache *k;
	struct slabc *c;
	void *p;

	(void)me;
	REQUIRE(setrlimit(RLIMIT_MEMLOCK, &none) == 0);
	REQUIRE(geteuid() != 0 || setuid(65534) == 0);
	c = harness_open(arg, "locks nothing");
	k = harness_open_cache(c, "k", PAGE, 0);
	for (int i = 0; i < 1000; i++) {
		REQUIRE((p = slabc_alloc(k)) != NULL);
		memset(p, 1, PAGE);
	}
	slabc_close(c);
}

/* Neither slabd nor a client needs locked memory. */
static void
it_no_locked_memory(void)
{
	const struct rlimit none = {0, 0};
	struct rlimit before;

	getrlimit(RLIMIT_MEMLOCK, &before);
	setrlimit(RLIMIT_MEMLOCK, &none);
	CLEANUP(harness_free)
	struct harness *h = harness_slabd_config("[slabd]\nsocket-mode = 0666\n[arena default]\nsize = 64M\nmode = 0666\npage-kind = 4k\n");
	setrlimit(RLIMIT_MEMLOCK, &before);
	harness_join(h, harness_spawn(h, without_locked_memory, h));
	CHECK(harness_audit(h).n_lost == 0);
}

/* A log on a disk that is full: lines are lost, and nothing else; with room again they come. */
static void
it_full_disk_for_the_log(void)
{
	CLEANUP(harness_free) struct harness *h = harness_new();
	char path[128];
	struct slabc *c;
	int fd;

	if (mount("slabd-it", h->dir, "tmpfs", 0, "size=64k,mode=755") < 0) {
		skip("no tmpfs can be mounted: %s", strerror(errno));
		return;
	}
	REQUIRE(harness_start(h, NULL, "--page-kind=4k --arena-size=64M"));
	snprintf(path, sizeof path, "%s/filler", h->dir);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	while (fd >= 0 && write(fd, path, sizeof path) > 0)
		;
	close(fd);
	for (int i = 0; i < 100; i++) {
		void *p;

		c = harness_open(h, "makes lines");
		CHECK((p = slabc_alloc(harness_open_cache(c, "k", 100, 0))) != NULL);
		slabc_close(c);
	}
	CHECK(EVENTUALLY(harness_status(h).n_sessions == 0));
	CHECK(harness_audit(h).n_orphans == 100 && harness_audit(h).n_lost == 0);
	CHECK(unlink(path) == 0);
	c = harness_open(h, "is told of");
	slabc_close(c);
	CHECK(EVENTUALLY(harness_log_count(h, "is told of") > 0));
	CHECK(harness_stop_slabd(h, SIGTERM) == 0);
	CHECK(umount2(h->dir, MNT_DETACH) == 0);
}

#define GROUP_1 "/sys/fs/cgroup/memory"
#define GROUP_2 "/sys/fs/cgroup"

static bool
write_text(const char *dir, const char *file, const char *text)
{
	char path[256];
	int fd;
	bool ok;

	snprintf(path, sizeof path, "%s/%s", dir, file);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
	if (fd >= 0)
		close(fd);
	return ok;
}

/* A group of 48 MiB in which slabd alone will be.  false: no group can be made here. */
static bool
make_group(char *dir, size_t size)
{
	bool is_1 = access(GROUP_1 "/memory.limit_in_bytes", F_OK) == 0;

	snprintf(dir, size, "%s/slabd-it-%d", is_1 ? GROUP_1 : GROUP_2, getpid());
	if (!is_1)
		write_text(GROUP_2, "cgroup.subtree_control", "+memory");
	if (mkdir(dir, 0755) < 0)
		return false;
	if (write_text(dir, is_1 ? "memory.limit_in_bytes" : "memory.max", "50331648"))
		return true;
	rmdir(dir);
	return false;
}

/* The limit of slabd's control group: ENOMEM to who asks, and no kill of slabd; freed memory serves again. A reserve above it is refused at the start. */
static void
it_memory_limit_of_the_group(void)
{
	CLEANUP(harness_free) struct harness *h = harness_new();
	static unsigned char *pv[16384];
	char dir[128], program[400];
	struct slabc_cache *k;
	struct slabc *c;
	unsigned n = 0;
	int status = 0;

	if (!make_group(dir, sizeof dir)) {
		skip("no control group can be made: %s", strerror(errno));
		return;
	}
	snprintf(program, sizeof program, "#!/bin/sh\necho $$ >%s/cgroup.procs && exec %s \"$@\"\n", dir, harness_path("SLABD"));
	snprintf(h->program, sizeof h->program, "/bin/sh %s/run", h->dir);
	{
		char path[128];
		FILE *file;

		snprintf(path, sizeof path, "%s/run", h->dir);
		file = fopen(path, "we");
		REQUIRE(file && fputs(program, file) >= 0 && fclose(file) == 0);
	}
	CHECK(!harness_start(h, &status, "--page-kind=4k --arena-size=256M --reserve=64M"));
	CHECK(status == 1);
	CHECK(harness_log_count(h, "the memory limit of slabd's control group") > 0);
	REQUIRE(harness_start(h, NULL, "--page-kind=4k --arena-size=256M"));
	c = harness_open(h, "at the limit");
	k = harness_open_cache(c, "k", PAGE, 0);
	for (int round = 0; round < 3; round++) {
		errno = 0;
		while (n < 16384 && (pv[n] = slabc_alloc(k)))
			memset(pv[n++], 1, PAGE);
		CHECK(n > 6000 && n < 12288);
		CHECK(errno == ENOMEM);
		CHECK(strstr(harness_status(h).page_note, "control group") != NULL);
		CHECK(harness_status(h).committed_bytes == harness_status(h).bytes_4k);
		while (n > 0)
			slabc_free(k, pv[--n]);
	}
	slabc_close(c);
	CHECK(harness_audit(h).n_lost == 0);
	CHECK(harness_stop_slabd(h, SIGTERM) == 0);
	CHECK(EVENTUALLY(rmdir(dir) == 0));
}

CU_pSuite
it_shortage_suite(void)
{
	CU_pSuite suite = harness_suite("shortage");

	CU_ADD_TEST(suite, it_pool_drained_by_another);
	CU_ADD_TEST(suite, it_client_with_few_files);
	CU_ADD_TEST(suite, it_no_locked_memory);
	CU_ADD_TEST(suite, it_full_disk_for_the_log);
	CU_ADD_TEST(suite, it_memory_limit_of_the_group);
	return suite;
}
