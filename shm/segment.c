/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments: see segment.h.
 *
 * Placing.  A memory policy on a plain memfd is kept in the file, on a hugetlb memfd only in the mapping: a page that a client faults in lands on
 * the client's node.  So pages are placed before anybody can reach them, by fallocate() under the thread's own policy, which both kinds obey; no
 * mapping is needed for it, and a shortage is an errno there.  After a hole was punched the same holds again.
 *
 * fallocate() on hugetlb keeps what it got before it ran out; on shmem it undoes it.  segment_commit() punches in either case.
 *
 * The raw system calls are here, not libnuma's, because clients are linked with this file too.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "shm/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/memfd.h>
#include <linux/mempolicy.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

enum {
	MAX_OS_NODES = 1024,
	MASK_LONGS = MAX_OS_NODES / (8 * (int)sizeof(unsigned long)),
	MASK_BITS = MAX_OS_NODES + 1, /* the kernel takes one off */
	LOOK_PAGES = 256,             /* pages whose node is asked in one call */
	COLLAPSE_TRIES = 3,           /* a page may be busy for a moment */
};

#define COLLAPSE_BYTES (2u << 20)

struct policy {
	int mode;
	unsigned long mask[MASK_LONGS];
};

uint64_t
segment_page_bytes(uint32_t pages)
{
	return pages == LAYOUT_PAGES_1G ? 1ull << 30 : pages == LAYOUT_PAGES_HUGE ? 2ull << 20 : LAYOUT_PAGE_BYTES;
}

static int
memfd(const char *name, uint32_t pages)
{
	unsigned int flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
	int fd;

	if (pages == LAYOUT_PAGES_HUGE)
		flags |= MFD_HUGETLB | MFD_HUGE_2MB;
	if (pages == LAYOUT_PAGES_1G)
		flags |= MFD_HUGETLB | MFD_HUGE_1GB;
	fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);
	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(name, flags);
	return fd < 0 ? -errno : fd;
}

int
segment_create(const char *name, uint64_t bytes, uint32_t pages, uint32_t flags)
{
	int seals = F_SEAL_SHRINK | F_SEAL_GROW | (flags & SEGMENT_SEAL_SEAL ? F_SEAL_SEAL : 0);
	int fd, r;

	if (bytes == 0 || bytes % segment_page_bytes(pages) != 0)
		return -EINVAL;
	fd = memfd(name, pages);
	if (fd < 0)
		return fd;
	if (fchmod(fd, 0600) < 0 || ftruncate(fd, (off_t)bytes) < 0 || fcntl(fd, F_ADD_SEALS, seals) < 0) {
		r = -errno;
		close(fd);
		return r;
	}
	return fd;
}

int
segment_reopen_readonly(int fd)
{
	char path[32];
	int r;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	r = open(path, O_RDONLY | O_CLOEXEC);
	return r < 0 ? -errno : r;
}

int
segment_reserve_range(uint64_t bytes, uint64_t align, void **addrp)
{
	uint64_t before, after;
	char *map;

	if (bytes == 0 || bytes % LAYOUT_PAGE_BYTES || align < LAYOUT_PAGE_BYTES || align & (align - 1) || bytes + align < bytes)
		return -EINVAL;
	map = mmap(NULL, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (map == MAP_FAILED)
		return -errno;
	before = -(uint64_t)(uintptr_t)map & (align - 1);
	after = align - before;
	if (before)
		munmap(map, before);
	munmap(map + before + bytes, after);
	*addrp = map + before;
	return 0;
}

/* Takes a mapping back after an error: what lay in a reserved range leaves it reserved. */
static void
map_undo(void *map, uint64_t bytes, const void *addr)
{
	if (addr)
		mmap(map, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	else
		munmap(map, bytes);
}

/* What madvise() could not populate is a shortage, whatever it calls it. */
static int
populate(void *map, uint64_t bytes, int advice)
{
	int r;

	do
		r = madvise(map, bytes, advice);
	while (r < 0 && errno == EINTR);
	if (r == 0)
		return 0;
	return errno == EFAULT ? -ENOMEM : -errno;
}

int
segment_map(int fd, uint64_t bytes, uint32_t flags, void *addr, void **mapp)
{
	int prot = PROT_READ | (flags & SEGMENT_MAP_WRITE ? PROT_WRITE : 0);
	int map_flags = MAP_SHARED | (flags & SEGMENT_MAP_NORESERVE ? MAP_NORESERVE : 0) | (addr ? MAP_FIXED : 0);
	void *map;
	int r = 0;

	map = mmap(addr, bytes, prot, map_flags, fd, 0);
	if (map == MAP_FAILED)
		return -errno;
	if (flags & SEGMENT_MAP_DONTFORK && madvise(map, bytes, MADV_DONTFORK) < 0)
		r = -errno;
	if (r == 0 && flags & SEGMENT_MAP_POPULATE)
		r = populate(map, bytes, flags & SEGMENT_MAP_WRITE ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
	if (r < 0) {
		map_undo(map, bytes, addr);
		return r;
	}
	*mapp = map;
	return 0;
}

void
segment_unmap(void *map, uint64_t bytes)
{
	munmap(map, bytes);
}

static int
allocate(const struct segment_extent *extent, int mode)
{
	int r;

	do
		r = fallocate(extent->fd, mode, (off_t)extent->off, (off_t)extent->bytes);
	while (r < 0 && errno == EINTR);
	return r < 0 ? -errno : 0;
}

static int
policy_set(const struct policy *policy)
{
	return syscall(SYS_set_mempolicy, policy->mode, policy->mask, (unsigned long)MASK_BITS) < 0 ? -errno : 0;
}

/* fallocate() under a policy that binds this thread to the node. */
static int
allocate_on(const struct segment_extent *extent, int os_node)
{
	struct policy old = {0}, bind = {.mode = MPOL_BIND};
	int r, restored;

	bind.mask[os_node / (8 * (int)sizeof(bind.mask[0]))] = 1ul << os_node % (8 * (int)sizeof(bind.mask[0]));
	if (syscall(SYS_get_mempolicy, &old.mode, old.mask, (unsigned long)MASK_BITS, NULL, 0ul) < 0)
		return -errno;
	r = policy_set(&bind);
	if (r < 0)
		return r;
	r = allocate(extent, 0);
	restored = policy_set(&old);
	return r < 0 ? r : restored;
}

/* Counts the pages of a mapping that are not on the node. */
static int
count_misplaced(char *map, const struct segment_extent *extent, int os_node, uint32_t *n_misplacedp)
{
	uint64_t page_bytes = segment_page_bytes(extent->pages), n_pages = extent->bytes / page_bytes, i, j, n;
	void *addrs[LOOK_PAGES];
	int nodes[LOOK_PAGES];

	for (i = 0; i < n_pages; i += n) {
		n = n_pages - i < LOOK_PAGES ? n_pages - i : LOOK_PAGES;
		for (j = 0; j < n; j++)
			addrs[j] = map + (i + j) * page_bytes;
		if (syscall(SYS_move_pages, 0, (unsigned long)n, addrs, NULL, nodes, 0) < 0)
			return -errno;
		for (j = 0; j < n; j++)
			*n_misplacedp += nodes[j] != os_node;
	}
	return 0;
}

/* Reads the placement back through a mapping of our own: the kernel tells the node only of pages that are mapped. */
static int
look(const struct segment_extent *extent, int os_node, uint32_t *n_misplacedp)
{
	void *map;
	int r;

	map = mmap(NULL, extent->bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, extent->fd, (off_t)extent->off);
	if (map == MAP_FAILED)
		return -errno;
	r = populate(map, extent->bytes, MADV_POPULATE_READ);
	if (r == 0)
		r = count_misplaced(map, extent, os_node, n_misplacedp);
	munmap(map, extent->bytes);
	return r;
}

int
segment_commit(const struct segment_extent *extent, int os_node, uint32_t *n_misplacedp)
{
	uint32_t n_misplaced = 0;
	int r;

	if (os_node >= MAX_OS_NODES || extent->bytes == 0 || (extent->off | extent->bytes) % segment_page_bytes(extent->pages) != 0)
		return -EINVAL;
	r = os_node < 0 ? allocate(extent, 0) : allocate_on(extent, os_node);
	if (r == 0 && os_node >= 0 && n_misplacedp)
		r = look(extent, os_node, &n_misplaced);
	if (r < 0) {
		segment_give_back(extent);
		return r;
	}
	if (n_misplacedp)
		*n_misplacedp = n_misplaced;
	return 0;
}

int
segment_collapse(const struct segment_extent *extent)
{
	void *map;
	int r;

	if (extent->bytes == 0 || (extent->off | extent->bytes) % COLLAPSE_BYTES != 0 || extent->pages != LAYOUT_PAGES_4K)
		return -EINVAL;
	r = segment_reserve_range(extent->bytes, COLLAPSE_BYTES, &map);
	if (r < 0)
		return r;
	if (mmap(map, extent->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, extent->fd, (off_t)extent->off) == MAP_FAILED) {
		r = -errno;
	} else {
		int tries = 0;

		do
			r = madvise(map, extent->bytes, MADV_COLLAPSE) < 0 ? -errno : 0;
		while ((r == -EAGAIN || r == -EINTR) && ++tries < COLLAPSE_TRIES);
	}
	munmap(map, extent->bytes);
	return r;
}

int
segment_give_back(const struct segment_extent *extent)
{
	return allocate(extent, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE);
}

int
segment_check(int fd, uint64_t bytes, uint32_t flags)
{
	int wanted = F_SEAL_SHRINK | F_SEAL_GROW | (flags & SEGMENT_SEAL_SEAL ? F_SEAL_SEAL : 0), seals = fcntl(fd, F_GET_SEALS);
	struct stat st;

	if (fstat(fd, &st) < 0)
		return -errno;
	if (seals < 0 || (seals & wanted) != wanted || !S_ISREG(st.st_mode) || (uint64_t)st.st_size != bytes)
		return -EBADMSG;
	return 0;
}

int64_t
segment_resident(int fd)
{
	struct stat st;

	return fstat(fd, &st) < 0 ? -errno : (int64_t)st.st_blocks * 512;
}

int
segment_writer_exists(int fd)
{
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0)
		return 0;
	return errno == EBUSY ? 1 : -errno;
}
