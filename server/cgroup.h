/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory limits of slabd's control groups (memory.max; memory.limit_in_bytes of version 1), and whether there is room below them.
 *
 * Beyond such a limit the kernel does not refuse a page, it kills a process of the group, and in slabd's there is none but slabd.  So slabd looks before it
 * commits pages that count there, which those of hugetlb do not.  Files in the page cache count too, and give way: they are no reason to refuse.
 * A group counts if it has a limit when slabd starts.
 */
#ifndef SLAB_SERVER_CGROUP_H
#define SLAB_SERVER_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

enum { CGROUP_MAX_LEVELS = 4 };

/* A group with a limit: its files. */
struct cgroup_level {
	int limit_fd;
	int used_fd;
	int stat_fd;
};

struct cgroup {
	unsigned n_levels;
	struct cgroup_level levels[CGROUP_MAX_LEVELS];
};

/* What cannot be found or read is taken for no limit. */
void cgroup_init(struct cgroup *cgroup);
void cgroup_deinit(struct cgroup *cgroup);

/* For so much more?  Any thread. */
bool cgroup_has_room(const struct cgroup *cgroup, uint64_t bytes);

#endif
