/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments on both kinds of page.  The tests on huge pages set the size of the system's pool and put it back; without the right to do that they
 * are skipped.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CUnit/CUnit.h>

#include "shm/segment.h"
#include "tests/skip.h"

CU_pSuite test_segment_suite(void);

#define HUGE_BYTES (2ull << 20)
#define HUGE_DIR "/sys/kernel/mm/hugepages/hugepages-2048kB/"

static long
number_read(const char *path)
{
	long value = -1;
	FILE *file = fopen(path, "re");

	if (!file)
		return -1;
	if (fscanf(file, "%ld", &value) != 1)
		value = -1;
	fclose(file);
	return value;
}

static bool
number_write(const char *path, long value)
{
	FILE *file = fopen(path, "we");
	bool ok;

	if (!file)
		return false;
	ok = fprintf(file, "%ld", value) > 0;
	return fclose(file) == 0 && ok;
}

/* The pool as it was found; the lock keeps other runs of this test away. */
static struct {
	long n_before;
	int lock_fd;
	bool is_taken;
} pool;

static long
pool_free(void)
{
	return number_read(HUGE_DIR "free_hugepages");
}

/* Also the suite's clean-up. */
static int
pool_put_back(void)
{
	if (pool.is_taken) {
		number_write(HUGE_DIR "nr_hugepages", pool.n_before);
		close(pool.lock_fd);
	}
	pool.is_taken = false;
	return 0;
}

/* Makes the pool have n free pages, or says why the test cannot be done. */
static bool
pool_take(long n)
{
	long n_others;

	pool_put_back(); /* of a test that ended early */
	pool.lock_fd = open(HUGE_DIR "nr_hugepages", O_RDONLY | O_CLOEXEC);
	pool.is_taken = pool.lock_fd >= 0 && flock(pool.lock_fd, LOCK_EX) == 0;
	if (pool.is_taken) {
		pool.n_before = number_read(HUGE_DIR "nr_hugepages");
		n_others = pool.n_before - pool_free();
		if (number_read(HUGE_DIR "nr_overcommit_hugepages") == 0 && number_read(HUGE_DIR "resv_hugepages") == 0 &&
			number_write(HUGE_DIR "nr_hugepages", n_others + n) && pool_free() == n)
			return true;
		pool_put_back();
	}
	skip("cannot set the pool of huge pages");
	return false;
}

static int
wait_status(pid_t pid)
{
	int status = -1;

	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

static void
test_create_seals_and_mode(void)
{
	struct stat st;
	void *map;
	int fd = segment_create("test", 1 << 20, LAYOUT_PAGES_4K, SEGMENT_SEAL_SEAL);

	CU_ASSERT_FATAL(fd >= 0);
	CU_ASSERT_EQUAL(fstat(fd, &st), 0);
	CU_ASSERT_EQUAL(st.st_mode & 07777, 0600);
	CU_ASSERT_EQUAL(st.st_size, 1 << 20);
	CU_ASSERT_EQUAL(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
	CU_ASSERT_EQUAL(fcntl(fd, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	CU_ASSERT(ftruncate(fd, 4096) < 0 && errno == EPERM);
	CU_ASSERT(ftruncate(fd, 2 << 20) < 0 && errno == EPERM);
	CU_ASSERT_EQUAL(segment_writer_exists(fd), -EPERM);
	CU_ASSERT_EQUAL(segment_resident(fd), 0);
	CU_ASSERT_EQUAL(segment_map(fd, 1 << 20, SEGMENT_MAP_WRITE, NULL, &map), 0);
	segment_unmap(map, 1 << 20);
	close(fd);

	CU_ASSERT_EQUAL(segment_create("test", 0, LAYOUT_PAGES_4K, 0), -EINVAL);
	CU_ASSERT_EQUAL(segment_create("test", 4095, LAYOUT_PAGES_4K, 0), -EINVAL);
	CU_ASSERT_EQUAL(segment_create("test", 1 << 20, LAYOUT_PAGES_HUGE, 0), -EINVAL);
	CU_ASSERT_EQUAL(segment_resident(-1), -EBADF);
}

/* Seals and modes hold on huge pages too. */
static void
test_create_huge(void)
{
	struct stat st;
	int fd = segment_create("test", 4 * HUGE_BYTES, LAYOUT_PAGES_HUGE, SEGMENT_SEAL_SEAL);

	if (fd == -ENODEV || fd == -ENOSYS) {
		skip("no huge pages");
		return;
	}
	CU_ASSERT_FATAL(fd >= 0);
	CU_ASSERT_EQUAL(fstat(fd, &st), 0);
	CU_ASSERT_EQUAL(st.st_mode & 07777, 0600);
	CU_ASSERT(ftruncate(fd, (off_t)HUGE_BYTES) < 0 && errno == EPERM);
	CU_ASSERT(ftruncate(fd, (off_t)(8 * HUGE_BYTES)) < 0 && errno == EPERM);
	CU_ASSERT_EQUAL(segment_resident(fd), 0);
	close(fd);
}

static void
test_commit_and_give_back(void)
{
	struct segment_extent extent = {.pages = LAYOUT_PAGES_4K, .off = 64 << 10, .bytes = 128 << 10};
	uint32_t n_misplaced = 77;
	char *map;
	void *at;

	extent.fd = segment_create("test", 1 << 20, LAYOUT_PAGES_4K, SEGMENT_SEAL_SEAL);
	CU_ASSERT_FATAL(extent.fd >= 0);
	CU_ASSERT_EQUAL_FATAL(segment_map(extent.fd, 1 << 20, SEGMENT_MAP_WRITE | SEGMENT_MAP_NORESERVE, NULL, &at), 0);
	map = at;
	CU_ASSERT_EQUAL(segment_commit(&extent, -1, &n_misplaced), 0);
	CU_ASSERT_EQUAL(n_misplaced, 0);
	CU_ASSERT_EQUAL(segment_resident(extent.fd), 128 << 10);
	map[extent.off] = 'x';
	CU_ASSERT_EQUAL(segment_resident(extent.fd), 128 << 10);
	CU_ASSERT_EQUAL(segment_give_back(&extent), 0);
	CU_ASSERT_EQUAL(segment_resident(extent.fd), 0);
	CU_ASSERT_EQUAL(segment_commit(&extent, -1, NULL), 0);
	CU_ASSERT_EQUAL(map[extent.off], 0);
	segment_unmap(map, 1 << 20);

	extent.off = 100;
	CU_ASSERT_EQUAL(segment_commit(&extent, -1, NULL), -EINVAL);
	extent.off = 1 << 20; /* past the end of what is sealed */
	CU_ASSERT_EQUAL(segment_commit(&extent, -1, NULL), -EPERM);
	close(extent.fd);
}

static bool
has_numa_calls(void)
{
	int mode;

	return syscall(SYS_get_mempolicy, &mode, NULL, 0ul, NULL, 0ul) == 0;
}

/* Binding places pages, is read back, and leaves the thread's own policy as it was. */
static void
test_commit_on_a_node(void)
{
	struct segment_extent extent = {.pages = LAYOUT_PAGES_4K, .off = 0, .bytes = 2 << 20};
	unsigned long mask = 1, seen[16] = {0};
	uint32_t n_misplaced = 77;
	int mode = -1;

	if (!has_numa_calls()) {
		skip("kernel without NUMA");
		return;
	}
	extent.fd = segment_create("test", 4 << 20, LAYOUT_PAGES_4K, SEGMENT_SEAL_SEAL);
	CU_ASSERT_FATAL(extent.fd >= 0);
	CU_ASSERT_EQUAL(syscall(SYS_set_mempolicy, MPOL_PREFERRED, &mask, 65ul), 0);
	CU_ASSERT_EQUAL(segment_commit(&extent, 0, &n_misplaced), 0);
	CU_ASSERT_EQUAL(n_misplaced, 0);
	CU_ASSERT_EQUAL(segment_resident(extent.fd), 2 << 20);
	CU_ASSERT_EQUAL(syscall(SYS_get_mempolicy, &mode, seen, 1024ul, NULL, 0ul), 0);
	CU_ASSERT(mode == MPOL_PREFERRED && seen[0] == 1);

	/* A node that is not there: an error, nothing committed, the policy as it was. */
	extent.off = 2 << 20;
	CU_ASSERT_EQUAL(segment_commit(&extent, 1023, &n_misplaced), -EINVAL);
	CU_ASSERT_EQUAL(segment_commit(&extent, 1024, &n_misplaced), -EINVAL);
	CU_ASSERT_EQUAL(segment_resident(extent.fd), 2 << 20);
	CU_ASSERT_EQUAL(syscall(SYS_get_mempolicy, &mode, seen, 1024ul, NULL, 0ul), 0);
	CU_ASSERT_EQUAL(mode, MPOL_PREFERRED);
	CU_ASSERT_EQUAL(syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0ul), 0);
	close(extent.fd);
}

/* An empty pool is an error from commit and from populate: nothing of it raises SIGBUS. */
static void
test_empty_pool_is_an_error(void)
{
	struct segment_extent extent = {.pages = LAYOUT_PAGES_HUGE, .off = 0, .bytes = HUGE_BYTES};
	void *map = NULL;
	int r;

	if (pool_take(0)) {
		extent.fd = segment_create("test", 8 * HUGE_BYTES, LAYOUT_PAGES_HUGE, SEGMENT_SEAL_SEAL);
		CU_ASSERT_FATAL(extent.fd >= 0);
		r = segment_commit(&extent, -1, NULL);
		CU_ASSERT(r == -ENOMEM || r == -ENOSPC);
		if (has_numa_calls()) {
			r = segment_commit(&extent, 0, NULL);
			CU_ASSERT(r == -ENOMEM || r == -ENOSPC);
		}
		CU_ASSERT_EQUAL(segment_map(extent.fd, 8 * HUGE_BYTES, SEGMENT_MAP_WRITE, NULL, &map), -ENOMEM);
		r = segment_map(extent.fd, 8 * HUGE_BYTES, SEGMENT_MAP_WRITE | SEGMENT_MAP_NORESERVE | SEGMENT_MAP_POPULATE, NULL, &map);
		CU_ASSERT_EQUAL(r, -ENOMEM);
		CU_ASSERT_PTR_NULL(map);
		CU_ASSERT_EQUAL(segment_resident(extent.fd), 0);
		close(extent.fd);
	}
	pool_put_back();
}

/* A commit that runs out half-way leaves nothing behind; what the pool has can be had, written, given back and had again. */
static void
test_half_empty_pool(void)
{
	struct segment_extent extent = {.pages = LAYOUT_PAGES_HUGE, .off = 0, .bytes = 8 * HUGE_BYTES};
	uint32_t n_misplaced = 77;
	void *map;
	int r, node = -1;

	/* With a second node, no one knows how much of the pool is on which. */
	if (has_numa_calls() && access("/sys/devices/system/node/node1", F_OK) < 0)
		node = 0;

	if (pool_take(4)) {
		extent.fd = segment_create("test", 16 * HUGE_BYTES, LAYOUT_PAGES_HUGE, SEGMENT_SEAL_SEAL);
		CU_ASSERT_FATAL(extent.fd >= 0);
		CU_ASSERT_EQUAL_FATAL(segment_map(extent.fd, 16 * HUGE_BYTES, SEGMENT_MAP_WRITE | SEGMENT_MAP_NORESERVE, NULL, &map), 0);
		r = segment_commit(&extent, -1, NULL);
		CU_ASSERT(r == -ENOMEM || r == -ENOSPC);
		CU_ASSERT_EQUAL(segment_resident(extent.fd), 0);
		CU_ASSERT_EQUAL(pool_free(), 4);

		extent.off = 3 * HUGE_BYTES;
		extent.bytes = 4 * HUGE_BYTES;
		CU_ASSERT_EQUAL_FATAL(segment_commit(&extent, node, &n_misplaced), 0);
		CU_ASSERT_EQUAL(n_misplaced, 0);
		CU_ASSERT_EQUAL(segment_resident(extent.fd), (int64_t)(4 * HUGE_BYTES));
		CU_ASSERT_EQUAL(pool_free(), 0);
		memset((char *)map + extent.off, 'x', extent.bytes);

		CU_ASSERT_EQUAL(segment_give_back(&extent), 0);
		CU_ASSERT_EQUAL(pool_free(), 4);
		CU_ASSERT_EQUAL_FATAL(segment_commit(&extent, node, &n_misplaced), 0);
		CU_ASSERT_EQUAL(n_misplaced, 0);
		CU_ASSERT_EQUAL(((char *)map)[extent.off], 0);
		segment_unmap(map, 16 * HUGE_BYTES);
		close(extent.fd);
		CU_ASSERT_EQUAL(pool_free(), 4);
	}
	pool_put_back();
}

static void
test_readonly_descriptor_cannot_write(void)
{
	void *map;
	int fd = segment_create("test", 1 << 20, LAYOUT_PAGES_4K, SEGMENT_SEAL_SEAL), ro;

	CU_ASSERT_FATAL(fd >= 0);
	ro = segment_reopen_readonly(fd);
	CU_ASSERT_FATAL(ro >= 0);
	CU_ASSERT_EQUAL(fcntl(ro, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
	CU_ASSERT_EQUAL(segment_map(ro, 1 << 20, SEGMENT_MAP_WRITE, NULL, &map), -EACCES);
	CU_ASSERT_EQUAL_FATAL(segment_map(ro, 1 << 20, 0, NULL, &map), 0);
	CU_ASSERT(mprotect(map, 1 << 20, PROT_READ | PROT_WRITE) < 0 && errno == EACCES);
	CU_ASSERT(write(ro, "x", 1) < 0 && errno == EBADF);
	CU_ASSERT(fallocate(ro, 0, 0, 4096) < 0 && errno == EBADF);
	segment_unmap(map, 1 << 20);
	CU_ASSERT_EQUAL(segment_reopen_readonly(1 << 20), -ENOENT);
	close(ro);
	close(fd);
}

/* Becomes nobody and tries to get a writable descriptor out of a read-only one; the exit status is the errno. */
static int
reopen_as_nobody(int ro)
{
	char path[32];
	pid_t pid = fork();

	if (pid != 0)
		return wait_status(pid);
	if (setgroups(0, NULL) < 0 || setgid(65534) < 0 || setuid(65534) < 0 || prctl(PR_SET_DUMPABLE, 1) < 0)
		_exit(200);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", ro);
	_exit(open(path, O_RDWR) >= 0 ? 0 : errno);
}

/* A client of another user cannot make its read-only descriptor a writable one: the mode 0600 forbids it, nothing else would. */
static void
test_other_user_cannot_reopen_writable(void)
{
	int fd, ro;

	if (geteuid() != 0) {
		skip("not root");
		return;
	}
	fd = segment_create("test", 1 << 20, LAYOUT_PAGES_4K, SEGMENT_SEAL_SEAL);
	CU_ASSERT_FATAL(fd >= 0);
	ro = segment_reopen_readonly(fd);
	CU_ASSERT_FATAL(ro >= 0);
	CU_ASSERT_EQUAL(reopen_as_nobody(ro), EACCES);
	CU_ASSERT_EQUAL(fchmod(fd, 0666), 0);
	CU_ASSERT_EQUAL(reopen_as_nobody(ro), 0);
	close(ro);
	close(fd);
}

/* The probe sees a child's mapping while there is one, and seals when there is none. */
static void
test_writer_probe(void)
{
	int to_child[2], from_child[2], fd = segment_create("test", 1 << 20, LAYOUT_PAGES_4K, 0);
	void *map;
	char byte;
	pid_t pid;

	CU_ASSERT_FATAL(fd >= 0 && pipe(to_child) == 0 && pipe(from_child) == 0);
	pid = fork();
	if (pid == 0) {
		if (segment_map(fd, 1 << 20, SEGMENT_MAP_WRITE, NULL, &map) < 0)
			_exit(1);
		if (write(from_child[1], "m", 1) != 1 || read(to_child[0], &byte, 1) != 1)
			_exit(2);
		_exit(0);
	}
	CU_ASSERT_EQUAL(read(from_child[0], &byte, 1), 1);
	CU_ASSERT_EQUAL(segment_writer_exists(fd), 1);
	CU_ASSERT_EQUAL(segment_writer_exists(fd), 1);
	CU_ASSERT_EQUAL(write(to_child[1], "x", 1), 1);
	CU_ASSERT_EQUAL(wait_status(pid), 0);
	CU_ASSERT_EQUAL(segment_writer_exists(fd), 0);
	CU_ASSERT_EQUAL(segment_writer_exists(fd), 0);
	CU_ASSERT_EQUAL(segment_map(fd, 1 << 20, SEGMENT_MAP_WRITE, NULL, &map), -EPERM);
	CU_ASSERT_EQUAL(segment_writer_exists(-1), -EBADF);
	close(to_child[0]);
	close(to_child[1]);
	close(from_child[0]);
	close(from_child[1]);
	close(fd);
}

/* Whether the page at addr can be read, without finding out by a fault. */
static bool
is_readable(const void *addr)
{
	int fds[2];
	bool ok;

	if (pipe(fds) < 0)
		return false;
	ok = write(fds[1], addr, 1) == 1;
	close(fds[0]);
	close(fds[1]);
	return ok;
}

static void
test_reserved_range(void)
{
	uint64_t align = 1ull << 30;
	int fd = segment_create("test", 1 << 20, LAYOUT_PAGES_4K, SEGMENT_SEAL_SEAL);
	void *range = NULL, *map = NULL;
	unsigned char in_core;
	char *at;

	CU_ASSERT_FATAL(fd >= 0);
	CU_ASSERT_EQUAL(segment_reserve_range(100, align, &range), -EINVAL);
	CU_ASSERT_EQUAL(segment_reserve_range(1 << 20, 3 << 20, &range), -EINVAL);
	CU_ASSERT_EQUAL(segment_reserve_range(1ull << 60, align, &range), -ENOMEM);
	CU_ASSERT_PTR_NULL(range);
	CU_ASSERT_EQUAL_FATAL(segment_reserve_range(32ull << 30, align, &range), 0);
	CU_ASSERT_EQUAL((uintptr_t)range % align, 0);
	/* What was mapped for the sake of the alignment is gone. */
	CU_ASSERT(mincore((char *)range + (32ull << 30), 4096, &in_core) < 0 && errno == ENOMEM);
	at = (char *)range + (4 << 20);
	CU_ASSERT(!is_readable(range));
	CU_ASSERT(!is_readable(at));

	CU_ASSERT_EQUAL(segment_map(fd, 1 << 20, SEGMENT_MAP_WRITE | SEGMENT_MAP_POPULATE | SEGMENT_MAP_DONTFORK, at, &map), 0);
	CU_ASSERT_PTR_EQUAL(map, at);
	CU_ASSERT_EQUAL(segment_resident(fd), 1 << 20);
	CU_ASSERT(is_readable(at));
	CU_ASSERT(!is_readable(at + (1 << 20)));
	CU_ASSERT(!is_readable(at - 1));
	segment_unmap(range, 32ull << 30);
	close(fd);
}

/* A segment that cannot be populated leaves the range reserved: nobody else's mapping can come to lie there. */
static void
test_range_stays_reserved_after_an_error(void)
{
	void *range, *map = NULL;
	int fd;

	if (pool_take(0)) {
		fd = segment_create("test", 2 * HUGE_BYTES, LAYOUT_PAGES_HUGE, SEGMENT_SEAL_SEAL);
		CU_ASSERT_FATAL(fd >= 0);
		CU_ASSERT_EQUAL_FATAL(segment_reserve_range(4 * HUGE_BYTES, HUGE_BYTES, &range), 0);
		CU_ASSERT_EQUAL(
			segment_map(fd, 2 * HUGE_BYTES, SEGMENT_MAP_WRITE | SEGMENT_MAP_NORESERVE | SEGMENT_MAP_POPULATE, range, &map),
			-ENOMEM);
		CU_ASSERT_PTR_NULL(map);
		/* MAP_FIXED_NOREPLACE refuses what is mapped already. */
		CU_ASSERT(mmap(range, 2 * HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED &&
			  errno == EEXIST);
		/* With pages in the pool a mapping that was left would answer now. */
		CU_ASSERT(number_write(HUGE_DIR "nr_hugepages", number_read(HUGE_DIR "nr_hugepages") + 1));
		CU_ASSERT(!is_readable(range));
		segment_unmap(range, 4 * HUGE_BYTES);
		close(fd);
	}
	pool_put_back();
}

/* A child does not inherit what is mapped DONTFORK. */
static void
test_dontfork(void)
{
	int fd = segment_create("test", 4096, LAYOUT_PAGES_4K, 0);
	void *kept, *left;
	pid_t pid;

	CU_ASSERT_FATAL(fd >= 0);
	CU_ASSERT_EQUAL_FATAL(segment_map(fd, 4096, SEGMENT_MAP_WRITE, NULL, &kept), 0);
	CU_ASSERT_EQUAL_FATAL(segment_map(fd, 4096, SEGMENT_MAP_WRITE | SEGMENT_MAP_DONTFORK, NULL, &left), 0);
	pid = fork();
	if (pid == 0)
		_exit(is_readable(kept) && !is_readable(left) ? 0 : 1);
	CU_ASSERT_EQUAL(wait_status(pid), 0);
	segment_unmap(kept, 4096);
	segment_unmap(left, 4096);
	close(fd);
}

/*
 * Committed small pages become a huge one, which a mapping that was there before sees with its contents; not what is no whole huge page, nor what is
 * hugetlb.  A kernel that does not do it says so, and the small pages serve.
 */
static void
test_collapse(void)
{
	struct segment_extent extent = {.pages = LAYOUT_PAGES_4K, .off = HUGE_BYTES, .bytes = 2 * HUGE_BYTES}, odd;
	char *map = NULL;
	void *at;
	int r;

	extent.fd = segment_create("test", 4 * HUGE_BYTES, LAYOUT_PAGES_4K, SEGMENT_SEAL_SEAL);
	CU_ASSERT_FATAL(extent.fd >= 0);
	CU_ASSERT_EQUAL_FATAL(segment_reserve_range(4 * HUGE_BYTES, HUGE_BYTES, &at), 0);
	CU_ASSERT_EQUAL_FATAL(segment_map(extent.fd, 4 * HUGE_BYTES, SEGMENT_MAP_WRITE, at, &at), 0);
	map = at;
	CU_ASSERT_EQUAL_FATAL(segment_commit(&extent, -1, NULL), 0);
	map[extent.off + 4097] = 'k';
	r = segment_collapse(&extent);
	if (r < 0)
		skip("the kernel makes no transparent huge page of a memfd: %s", strerror(-r));
	CU_ASSERT(map[extent.off + 4097] == 'k' && map[extent.off + 4096] == 0);
	CU_ASSERT_EQUAL(segment_resident(extent.fd), (int64_t)extent.bytes);
	/* Its hole takes it away as a whole. */
	CU_ASSERT_EQUAL(segment_give_back(&extent), 0);
	CU_ASSERT_EQUAL(segment_resident(extent.fd), 0);

	odd = extent;
	odd.bytes = 4096;
	CU_ASSERT_EQUAL(segment_collapse(&odd), -EINVAL);
	odd = extent;
	odd.off = 4096;
	CU_ASSERT_EQUAL(segment_collapse(&odd), -EINVAL);
	odd = extent;
	odd.pages = LAYOUT_PAGES_HUGE;
	CU_ASSERT_EQUAL(segment_collapse(&odd), -EINVAL);
	segment_unmap(map, 4 * HUGE_BYTES);
	close(extent.fd);
}

CU_pSuite
test_segment_suite(void)
{
	CU_pSuite suite = CU_add_suite("segment", NULL, pool_put_back);

	CU_ADD_TEST(suite, test_create_seals_and_mode);
	CU_ADD_TEST(suite, test_create_huge);
	CU_ADD_TEST(suite, test_commit_and_give_back);
	CU_ADD_TEST(suite, test_commit_on_a_node);
	CU_ADD_TEST(suite, test_empty_pool_is_an_error);
	CU_ADD_TEST(suite, test_half_empty_pool);
	CU_ADD_TEST(suite, test_readonly_descriptor_cannot_write);
	CU_ADD_TEST(suite, test_other_user_cannot_reopen_writable);
	CU_ADD_TEST(suite, test_writer_probe);
	CU_ADD_TEST(suite, test_reserved_range);
	CU_ADD_TEST(suite, test_range_stays_reserved_after_an_error);
	CU_ADD_TEST(suite, test_dontfork);
	CU_ADD_TEST(suite, test_collapse);
	return suite;
}
