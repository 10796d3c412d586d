/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The DPDK peer: a mempool with a cache of 512 objects a worker, its get and put inlined as DPDK's header has them.
 *
 * The pool lies in huge pages that the parent maps (--in-memory) before it forks the workers; so all have it at one address.  A worker is
 * an "lcore" with its own cache.  The ring behind the caches spins while another that has begun is not on a CPU: with more workers than
 * CPUs it may not come to an end.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_lcore.h>
#include <rte_mempool.h>
#include <rte_memzone.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "tests/bench/bench.h"

enum { DPDK_CACHE = 512, DPDK_MIB = 192 };
#define DPDK_POOL "bench-pool"

struct peer {
	struct rte_mempool *pool;
};

static struct peer dpdk;

static void
dpdk_prepare(const struct bench_options *opt)
{
	char mib[16];
	char *argv[] = {"bench", "--in-memory", "--no-pci", "--no-telemetry", "--log-level=error", "-l", "0", "-m", mib, NULL};
	/* Of a worker: a batch, and what a cache may hold above its size. */
	unsigned n = opt->n_workers * (BENCH_BATCH + 2 * DPDK_CACHE);
	cpu_set_t before;

	snprintf(mib, sizeof(mib), "%d", DPDK_MIB);
	if (sched_getaffinity(0, sizeof(before), &before) < 0)
		bench_die("sched_getaffinity", errno);
	if (rte_eal_init(9, argv) < 0)
		bench_die("rte_eal_init", rte_errno);
	dpdk.pool = rte_mempool_create(DPDK_POOL, n, BENCH_OBJECT_BYTES, DPDK_CACHE, 0, NULL, NULL, NULL, NULL, SOCKET_ID_ANY, 0);
	if (!dpdk.pool)
		bench_die("rte_mempool_create", rte_errno);
	/* DPDK has pinned us. */
	if (sched_setaffinity(0, sizeof(before), &before) < 0)
		bench_die("sched_setaffinity", errno);
}

static struct peer *
dpdk_open(const struct bench_options *opt, unsigned worker)
{
	(void)opt;
	RTE_PER_LCORE(_lcore_id) = worker;
	return &dpdk;
}

static void
dpdk_close(struct peer *p)
{
	(void)p;
}

static void
dpdk_add_bytes(const struct rte_memzone *zone, void *sum)
{
	if (strstr(zone->name, DPDK_POOL))
		*(uint64_t *)sum += zone->len;
}

/* Objects, caches and ring: the pool is as large as what it was made for, used or not. */
static uint64_t
dpdk_bytes(struct peer *p)
{
	uint64_t sum = 0;

	(void)p;
	rte_memzone_walk(dpdk_add_bytes, &sum);
	return sum;
}

static inline void *
dpdk_alloc(struct peer *p)
{
	void *q;

	if (__builtin_expect(rte_mempool_get(p->pool, &q) < 0, 0))
		bench_die("rte_mempool_get", ENOMEM);
	return q;
}

#define PATTERN(name) dpdk_##name
#define PATTERN_ALLOC(p) dpdk_alloc(p)
#define PATTERN_FREE(p, q) rte_mempool_put((p)->pool, (q))
#include "tests/bench/patterns.h"

#define PIPE_SEND(p, q) ((uint64_t)(uintptr_t)(q))
#define PIPE_RECEIVE(p, x) ((void *)(uintptr_t)(x))
#define PIPE_ALLOC(p) dpdk_alloc(p)
#define PIPE_FREE(p, q) rte_mempool_put((p)->pool, (q))
#include "tests/bench/pipe.h"

static uint64_t
dpdk_run(struct peer *p, struct bench_state *s, enum bench_pattern pattern, uint64_t until_ns)
{
	return pattern == BENCH_PIPE ? pipe_until(p, s, until_ns) : dpdk_until(p, s, pattern, until_ns);
}

static struct peer_ops peer_dpdk = {.name = "dpdk",
	.prepare = dpdk_prepare,
	.open = dpdk_open,
	.close = dpdk_close,
	.run = dpdk_run,
	.bytes = dpdk_bytes,
	.is_shared = true};

__attribute__((constructor)) static void
dpdk_add(void)
{
	bench_add_peer(&peer_dpdk);
}
