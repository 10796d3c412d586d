/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments: memfds that several processes map, and the pages behind them.
 *
 * Offsets and lengths are multiples of the page of the segment's kind (segment_page_bytes()).  Pages are committed by segment_commit() before
 * anybody can reach them, so a shortage is an error from a call here and never a SIGBUS.  Kinds are LAYOUT_PAGES_.
 */
#ifndef SLAB_SHM_SEGMENT_H
#define SLAB_SHM_SEGMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/layout.h"

/* Flags of segment_create(). */
enum {
	SEGMENT_SEAL_SEAL = 1, /* no further seals: all but session segments, to which segment_writer_exists() will add one */
};

/* Flags of segment_map(). */
enum {
	SEGMENT_MAP_WRITE = 1,
	SEGMENT_MAP_NORESERVE = 2, /* huge pages: reserve none for the mapping; for data segments, whose pages are committed one by one */
	SEGMENT_MAP_POPULATE = 4,  /* commit and map all pages now */
	SEGMENT_MAP_DONTFORK = 8,
};

/* Part of a segment. */
struct segment_extent {
	int fd;
	/* LAYOUT_PAGES_ */
	uint32_t pages;
	uint64_t off;
	uint64_t bytes;
};

/* 4 KiB, 2 MiB or 1 GiB. */
uint64_t segment_page_bytes(uint32_t pages);

/* Sparse memfd, close-on-exec, mode 0600, sealed against shrinking and growing.  The descriptor, or a negative errno. */
int segment_create(const char *name, uint64_t bytes, uint32_t pages, uint32_t flags);

/* Another descriptor of the same segment, with which nothing can be written.  The descriptor, or a negative errno. */
int segment_reopen_readonly(int fd);

/*
 * Range of addresses for segments to be mapped into; nothing can be reached in it.  align is a power of two.  On error *addrp is untouched.
 */
int segment_reserve_range(uint64_t bytes, uint64_t align, void **addrp);

/*
 * Maps the first bytes of a segment: where the kernel likes, or at addr over what is there (part of a reserved range; still reserved after an
 * error).  -ENOMEM also stands for pages that POPULATE could not commit.  On error *mapp is untouched.
 */
int segment_map(int fd, uint64_t bytes, uint32_t flags, void *addr, void **mapp);
void segment_unmap(void *map, uint64_t bytes);

/*
 * Commits an extent of which nothing is committed, on the kernel's node os_node, or wherever the calling thread's policy says if that is -1.
 * With a node the placement is read back; *n_misplacedp (may be NULL) gets the number of pages that lie elsewhere, which is no error.
 * -ENOMEM or -ENOSPC: a shortage; other errors: the kernel's.  On error nothing of the extent is committed.
 */
int segment_commit(const struct segment_extent *extent, int os_node, uint32_t *n_misplacedp);

/*
 * Makes transparent huge pages of an extent of 4 KiB pages that is committed, in the file, so that whoever maps it has them; through a mapping of
 * its own for a moment, so that it goes without advice from others and with shmem_enabled=never.  offsets and lengths are multiples of 2 MiB.
 * A negative errno (-ENOMEM, -EAGAIN, -EBUSY: none to be had now; -EINVAL: the kernel does not do it) leaves the small pages.
 */
int segment_collapse(const struct segment_extent *extent);

/* Punches the extent out: its pages go back to the system, whoever maps them. */
int segment_give_back(const struct segment_extent *extent);

/*
 * Is it what segment_create() made, of so many bytes (sealed against shrinking and growing, and with SEGMENT_SEAL_SEAL against further seals)?  0;
 * -EBADMSG: it is not; or what the system said.
 */
int segment_check(int fd, uint64_t bytes, uint32_t flags);

/* Bytes committed, or a negative errno. */
int64_t segment_resident(int fd);

/*
 * Seals the segment against writing and so asks whether a mapping is left that may write (or, before Linux 6.7, one through a descriptor that
 * may).  0: none, and none can come any more; 1: there is one, nothing has changed; or a negative errno (-EPERM: SEGMENT_SEAL_SEAL).
 */
int segment_writer_exists(int fd);

#endif
