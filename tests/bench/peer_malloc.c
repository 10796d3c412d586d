/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The malloc peer: glibc's, or whichever LD_PRELOAD puts in its place (libtcmalloc_minimal.so.4).
 *
 * Each process has a private heap and shares nothing: these figures are what allocating costs where no object ever leaves its process.  In
 * the pipe, where one does, the two ends are threads of one process.
 */
#define _GNU_SOURCE 1
#include "tests/bench/bench.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct peer {
	uint64_t n_bytes; /* resident at the start */
};

static uint64_t
resident(void)
{
	unsigned long size, n_pages = 0;
	FILE *f = fopen("/proc/self/statm", "re");

	if (!f || fscanf(f, "%lu %lu", &size, &n_pages) != 2)
		bench_die("/proc/self/statm", errno);
	fclose(f);
	return (uint64_t)n_pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static struct peer *
malloc_open(const struct bench_options *opt, unsigned worker)
{
	struct peer *p = calloc(1, sizeof(*p));

	(void)opt;
	(void)worker;
	if (!p)
		bench_die("calloc", errno);
	p->n_bytes = resident();
	return p;
}

static void
malloc_close(struct peer *p)
{
	free(p);
}

static uint64_t
malloc_bytes(struct peer *p)
{
	return resident() - p->n_bytes;
}

static inline void *
malloc_alloc(void)
{
	void *q = malloc(BENCH_OBJECT_BYTES);

	if (__builtin_expect(!q, 0))
		bench_die("malloc", errno);
	return q;
}

#define PATTERN(name) malloc_##name
#define PATTERN_ALLOC(p) malloc_alloc()
#define PATTERN_FREE(p, q) free(q)
#include "tests/bench/patterns.h"

#define PIPE_SEND(p, q) ((uint64_t)(uintptr_t)(q))
#define PIPE_RECEIVE(p, x) ((void *)(uintptr_t)(x))
#define PIPE_ALLOC(p) malloc_alloc()
#define PIPE_FREE(p, q) ((void)(p), free(q))
#include "tests/bench/pipe.h"

static uint64_t
malloc_run(struct peer *p, struct bench_state *s, enum bench_pattern pattern, uint64_t until_ns)
{
	return pattern == BENCH_PIPE ? pipe_until(p, s, until_ns) : malloc_until(p, s, pattern, until_ns);
}

static struct peer_ops peer_malloc = {
	.name = "malloc", .open = malloc_open, .close = malloc_close, .run = malloc_run, .bytes = malloc_bytes};

__attribute__((constructor)) static void
malloc_add(void)
{
	bench_add_peer(&peer_malloc);
}
