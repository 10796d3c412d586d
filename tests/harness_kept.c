/* SPDX-License-Identifier: Apache-2.0 */
/* A moment without slabd, and what the keeper holds then. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/harness.h"

/* The keeper's next descriptor that is memory of slabd's of that name; -1: no more. */
static int
next_held(DIR *dir, const struct harness *h, const char *name)
{
	char path[320], link[64];
	struct dirent *e;

	while (dir && (e = readdir(dir))) {
		ssize_t n;

		snprintf(path, sizeof path, "/proc/%d/fd/%s", h->slabd, e->d_name);
		n = readlink(path, link, sizeof link - 1);
		if (n <= 7)
			continue;
		link[n] = '\0';
		if (strncmp(link, "/memfd:", 7) == 0 && strncmp(link + 7, name, strlen(name)) == 0)
			return open(path, O_RDWR | O_CLOEXEC);
	}
	return -1;
}

int
harness_open_held(const struct harness *h, const char *name, unsigned nth)
{
	char path[64];
	DIR *dir;
	int fd;

	snprintf(path, sizeof path, "/proc/%d/fd", h->slabd);
	dir = opendir(path);
	fd = next_held(dir, h, name);
	for (; fd >= 0 && nth > 0; nth--) {
		close(fd);
		fd = next_held(dir, h, name);
	}
	if (dir)
		closedir(dir);
	return fd;
}

unsigned
harness_count_kept(const struct harness *h)
{
	char path[64];
	unsigned n = 0;
	DIR *dir;
	int fd;

	snprintf(path, sizeof path, "/proc/%d/fd", h->slabd);
	dir = opendir(path);
	while ((fd = next_held(dir, h, "slabd:session")) >= 0) {
		close(fd);
		n++;
	}
	if (dir)
		closedir(dir);
	return n;
}

/* In all arenas. */
static unsigned
count_sessions(struct harness *h)
{
	union proto_request request = {0};
	union proto_reply reply = {0};
	unsigned n = 0;

	do {
		CHECK(harness_ask(h, PROTO_OP_ARENAS, &request, &reply) == PROTO_STATUS_OK);
		request.arenas.after = reply.arenas.arena;
		n += reply.arenas.n_sessions;
	} while (reply.arenas.arena);
	return n;
}

pid_t
harness_child(const struct harness *h)
{
	char path[64];
	FILE *file;
	int pid = 0;

	snprintf(path, sizeof path, "/proc/%d/task/%d/children", h->slabd, h->slabd);
	file = fopen(path, "re");
	if (file && fscanf(file, "%d", &pid) != 1)
		pid = 0;
	if (file)
		fclose(file);
	return pid;
}

pid_t
harness_stop_and_kill(struct harness *h)
{
	pid_t pid = (pid_t)harness_status(h).pid;

	/* What it was sent it has. */
	CHECK(EVENTUALLY(harness_count_kept(h) == count_sessions(h)));
	REQUIRE(kill(h->slabd, SIGSTOP) == 0);
	REQUIRE(kill(pid, SIGKILL) == 0);
	return pid;
}

void
harness_go_on(struct harness *h, pid_t before)
{
	REQUIRE(kill(h->slabd, SIGCONT) == 0);
	harness_wait_kept(h, before);
}
