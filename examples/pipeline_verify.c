/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the counters counted, and what a pipe of the system's own tools counts of the same text: both must be the same, word for word.
 *
 * Both sides come sorted by bytes (LC_ALL=C), so comparing is reading them side by side.
 */
#define _GNU_SOURCE 1
#include "pipeline.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { VERIFY_S = 300 };

/* $1 passes over the files, the first $2 words of it. The empty line before a text that starts with no letter is no word. */
static const char script[] = "p=$1; n=$2; shift 2\n"
			     "while [ \"$p\" -gt 0 ]; do cat -- \"$@\" || exit; p=$((p - 1)); done |\n"
			     "tr -cs A-Za-z '\\n' | tr A-Z a-z | sed '/^$/d' | head -n \"$n\" | sort | uniq -c\n";

static int
total_compare(const void *x, const void *y)
{
	const struct total *a = x;
	const struct total *b = y;
	uint32_t n = a->n_bytes < b->n_bytes ? a->n_bytes : b->n_bytes;
	int r = memcmp(a->text, b->text, n);

	return r != 0 ? r : (a->n_bytes > b->n_bytes) - (a->n_bytes < b->n_bytes);
}

int64_t
totals_of(struct area *a, struct total **totalsp)
{
	size_t n_max = 1;
	int64_t n = 0;

	for (unsigned i = 0; i < a->n_counters; i++)
		n_max += area_table(a, i)->n_entries;
	*totalsp = calloc(n_max, sizeof(**totalsp));
	if (!*totalsp)
		return -ENOMEM;
	for (unsigned i = 0; i < a->n_counters; i++) {
		struct table *t = area_table(a, i);

		for (uint32_t k = 0; k < t->n_entries; k++) {
			const struct table_entry *e = area_entry(a, t, k);
			struct total *total = &(*totalsp)[n];

			for (unsigned r = 0; r < a->n_readers; r++)
				total->count += e->cell[r] >> 32;
			total->text = area_text(a, t) + e->text_off;
			total->n_bytes = e->n_bytes;
			n += total->count > 0; /* 0: a counter was killed while it made the entry */
		}
	}
	qsort(*totalsp, (size_t)n, sizeof(**totalsp), total_compare);
	return n;
}

static pid_t
verify_spawn(uint64_t n_words, uint64_t n_passes, char *const *files, size_t n_files, int out)
{
	static char sh[] = "sh", dash_c[] = "-c", name[] = "pipeline-verify", locale[] = "LC_ALL=C", path[] = "PATH=/usr/bin:/bin";
	static char text[sizeof(script)];
	char passes[24], words[24];
	char *env[] = {locale, path, NULL};
	char **argv = calloc(n_files + 7, sizeof(*argv));
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	size_t n = 0;
	pid_t pid;
	int r;

	if (!argv)
		return -ENOMEM;
	memcpy(text, script, sizeof(script));
	snprintf(passes, sizeof(passes), "%" PRIu64, n_passes);
	snprintf(words, sizeof(words), "%" PRIu64, n_words);
	argv[n++] = sh;
	argv[n++] = dash_c;
	argv[n++] = text;
	argv[n++] = name;
	argv[n++] = passes;
	argv[n++] = words;
	memcpy(argv + n, files, n_files * sizeof(*argv));
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
	/* A group of its own: to end it is to end all of its pipe. */
	posix_spawnattr_init(&attr);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP);
	posix_spawnattr_setpgroup(&attr, 0);
	r = posix_spawn(&pid, "/bin/sh", &actions, &attr, argv, env);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&actions);
	free(argv);
	return r == 0 ? pid : -r;
}

/* All that comes out of fd until its end, with a NUL behind; NULL, errno: not before the deadline. */
static char *
verify_read(int fd)
{
	time_t deadline = time(NULL) + VERIFY_S;
	size_t n_bytes = 0, n_room = 0;
	char *bytes = NULL;
	ssize_t n = -1;

	while (n != 0) {
		struct pollfd p = {fd, POLLIN, 0};
		char *more = n_room - n_bytes < 4096 ? realloc(bytes, n_room += 65536) : bytes;

		if (!more || time(NULL) >= deadline) {
			free(bytes);
			errno = more ? ETIMEDOUT : ENOMEM;
			return NULL;
		}
		bytes = more;
		if (poll(&p, 1, 1000) <= 0)
			continue;
		n = read(fd, bytes + n_bytes, n_room - n_bytes - 1);
		n_bytes += n > 0 ? (size_t)n : 0;
	}
	bytes[n_bytes] = 0;
	return bytes;
}

static int
verify_compare(const struct total *totals, size_t n_totals, char *lines)
{
	size_t n = 0;
	char *rest;

	for (char *line = strtok_r(lines, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		char *word;
		uint64_t count = strtoull(line, &word, 10);

		word += *word == ' ';
		if (n < n_totals && totals[n].count == count && totals[n].n_bytes == strlen(word) &&
			memcmp(totals[n].text, word, totals[n].n_bytes) == 0) {
			n++;
			continue;
		}
		fprintf(stderr, "pipeline: uniq says \"%s\" %" PRIu64 ", we say \"%.*s\" %" PRIu64 "\n", word, count,
			n < n_totals ? (int)totals[n].n_bytes : 0, n < n_totals ? totals[n].text : "", n < n_totals ? totals[n].count : 0);
		return -EBADMSG;
	}
	if (n == n_totals)
		return 0;
	fprintf(stderr, "pipeline: we have %zu words that uniq does not have\n", n_totals - n);
	return -EBADMSG;
}

int
totals_verify(const struct total *totals, size_t n_totals, uint64_t n_words, uint64_t n_passes, char *const *files, size_t n_files)
{
	int status = 0;
	int r = 0;
	char *lines;
	int fds[2];
	pid_t pid;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return -errno;
	pid = verify_spawn(n_words, n_passes, files, n_files, fds[1]);
	close(fds[1]);
	lines = pid > 0 ? verify_read(fds[0]) : NULL;
	if (!lines) {
		r = pid > 0 ? -errno : pid;
		fprintf(stderr, "pipeline: cat | tr | sort | uniq -c: %s\n", strerror(-r));
	}
	close(fds[0]);
	if (pid > 0) {
		if (!lines)
			kill(-pid, SIGKILL);
		waitpid(pid, &status, 0);
	}
	if (r == 0 && status != 0) {
		fprintf(stderr, "pipeline: cat | tr | sort | uniq -c ended with status %#x\n", (unsigned)status);
		r = -EIO;
	}
	if (r == 0)
		r = verify_compare(totals, n_totals, lines);
	free(lines);
	return r;
}
