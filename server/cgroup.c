/* SPDX-License-Identifier: Apache-2.0 */
#include "server/cgroup.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* For page tables, the kernel's own, and what it charges in advance. */
#define SLACK_BYTES (UINT64_C(2) << 20)

/* Where the two versions are mounted, and what they call their files. */
static const struct version {
	const char *controller; /* in /proc/self/cgroup */
	const char *mount;
	const char *limit, *used;
} versions[] = {
	{"memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"},
	{"", "/sys/fs/cgroup", "memory.max", "memory.current"},
	{"", "/sys/fs/cgroup/unified", "memory.max", "memory.current"},
};

/* UINT64_MAX: "max", or nothing that can be read. */
static uint64_t
read_number(int fd)
{
	char text[32];
	ssize_t n = pread(fd, text, sizeof text - 1, 0);

	if (n <= 0 || text[0] < '0' || text[0] > '9')
		return UINT64_MAX;
	text[n] = '\0';
	return strtoull(text, NULL, 10);
}

static int
open_in(const char *dir, const char *file)
{
	char path[PATH_MAX + 32];

	snprintf(path, sizeof path, "%s/%s", dir, file);
	return open(path, O_RDONLY | O_CLOEXEC);
}

static void
close_level(const struct cgroup_level *level)
{
	const int fds[] = {level->limit_fd, level->used_fd, level->stat_fd};

	for (unsigned i = 0; i < 3; i++)
		if (fds[i] >= 0)
			close(fds[i]);
}

/* Version 1 says "no limit" by a large number. */
static void
add_level(struct cgroup *cgroup, const struct version *v, const char *dir)
{
	struct cgroup_level level = {open_in(dir, v->limit), open_in(dir, v->used), open_in(dir, "memory.stat")};

	if (level.limit_fd >= 0 && level.used_fd >= 0 && read_number(level.limit_fd) < INT64_MAX / 2 && cgroup->n_levels < CGROUP_MAX_LEVELS)
		cgroup->levels[cgroup->n_levels++] = level;
	else
		close_level(&level);
}

/* The group and those above it. */
static void
add_levels(struct cgroup *cgroup, const struct version *v, const char *group)
{
	char dir[PATH_MAX];
	size_t least = strlen(v->mount);

	snprintf(dir, sizeof dir, "%s%s", v->mount, strcmp(group, "/") == 0 ? "" : group);
	for (;;) {
		add_level(cgroup, v, dir);
		if (strlen(dir) <= least)
			return;
		*strrchr(dir, '/') = '\0';
	}
}

/* "memory" among "cpu,memory"; "" only by itself. */
static bool
has_controller(const char *list, const char *name)
{
	size_t n = strlen(name);

	for (;; list++) {
		if (strncmp(list, name, n) == 0 && (list[n] == ',' || list[n] == '\0'))
			return n > 0 || *list == '\0';
		list = strchr(list, ',');
		if (!list)
			return false;
	}
}

void
cgroup_init(struct cgroup *cgroup)
{
	FILE *file = fopen("/proc/self/cgroup", "re");
	char line[PATH_MAX];

	*cgroup = (struct cgroup){0};
	/* number:controllers:group */
	while (file && fgets(line, sizeof line, file)) {
		char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;

		if (!group)
			continue;
		*group++ = '\0';
		group[strcspn(group, "\n")] = '\0';
		for (unsigned i = 0; i < sizeof versions / sizeof versions[0]; i++)
			if (has_controller(controllers + 1, versions[i].controller))
				add_levels(cgroup, &versions[i], group);
	}
	if (file)
		fclose(file);
}

void
cgroup_deinit(struct cgroup *cgroup)
{
	while (cgroup->n_levels)
		close_level(&cgroup->levels[--cgroup->n_levels]);
}

/* Of the group's page cache: what gives way. Shared memory is under another name, since it does not. */
static uint64_t
count_files(int fd)
{
	static const char *const names[] = {"\ninactive_file ", "\nactive_file "};
	char text[8192];
	ssize_t n = fd < 0 ? -1 : pread(fd, text, sizeof text - 1, 0);
	uint64_t bytes = 0;

	if (n <= 0)
		return 0;
	text[n] = '\0';
	for (unsigned i = 0; i < 2; i++) {
		const char *at = strstr(text, names[i]);

		bytes += at ? strtoull(at + strlen(names[i]), NULL, 10) : 0;
	}
	return bytes;
}

bool
cgroup_has_room(const struct cgroup *cgroup, uint64_t bytes)
{
	for (unsigned i = 0; i < cgroup->n_levels; i++) {
		const struct cgroup_level *level = &cgroup->levels[i];
		uint64_t limit = read_number(level->limit_fd), used = read_number(level->used_fd), files;

		if (used == UINT64_MAX || limit == UINT64_MAX || used + bytes + SLACK_BYTES <= limit)
			continue;
		files = count_files(level->stat_fd);
		if (used - (files < used ? files : used) + bytes + SLACK_BYTES > limit)
			return false;
	}
	return true;
}
