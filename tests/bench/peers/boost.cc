/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two peers out of Boost.Interprocess, over one managed_shared_memory that the parent makes before it forks the workers:
 *
 *   boost-msm     allocate() and deallocate() of the segment itself, best fit under its lock
 *   boost-node    a cached_node_allocator of each worker: nodes of a common pool, some of them cached
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include <boost/interprocess/allocators/cached_node_allocator.hpp>
#include <boost/interprocess/managed_shared_memory.hpp>
#include <cerrno>
#include <cstring>
#include <new>
#include <sched.h>
#include <string>
#include <unistd.h>

#include "tests/bench/bench.h"

namespace bi = boost::interprocess;

struct object {
	char bytes[BENCH_OBJECT_BYTES];
};
using nodes = bi::cached_node_allocator<object, bi::managed_shared_memory::segment_manager>;

static bi::managed_shared_memory *segment;

struct peer {
	nodes allocator{segment->get_segment_manager()};
	uint64_t n_free = segment->get_free_memory(); /* at the start */
};

static void
boost_prepare(const struct bench_options *opt)
{
	std::string name = "slabd-bench." + std::to_string(getpid());
	/* A batch a worker, and as much again for headers and caches. */
	size_t n_bytes = (size_t)opt->n_workers * BENCH_BATCH * BENCH_OBJECT_BYTES * 2;

	try {
		segment = new bi::managed_shared_memory(bi::create_only, name.c_str(), n_bytes);
	} catch (const std::exception &e) {
		bench_die(e.what(), ENOMEM);
	}
	bi::shared_memory_object::remove(name.c_str());
}

static struct peer *
boost_open(const struct bench_options *, unsigned)
{
	return new peer;
}

/* The process ends: an allocator that went before its objects would say that this is an error. */
static void
boost_close(struct peer *)
{
}

static uint64_t
boost_bytes(struct peer *p)
{
	return p->n_free - segment->get_free_memory();
}

static inline void *
msm_alloc(struct peer *)
{
	void *q = segment->allocate(BENCH_OBJECT_BYTES, std::nothrow);

	if (!q)
		bench_die("managed_shared_memory::allocate", ENOMEM);
	return q;
}

static inline void *
node_alloc(struct peer *p)
{
	try {
		return p->allocator.allocate_one().get();
	} catch (const std::exception &e) {
		bench_die(e.what(), ENOMEM);
	}
}

#define PATTERN(name) msm_##name
#define PATTERN_ALLOC(p) msm_alloc(p)
#define PATTERN_FREE(p, q) segment->deallocate(q)
#include "tests/bench/patterns.h"

#define PATTERN(name) node_##name
#define PATTERN_ALLOC(p) node_alloc(p)
#define PATTERN_FREE(p, q) (p)->allocator.deallocate_one((object *)(q))
#include "tests/bench/patterns.h"

#define PIPE_SEND(p, q) ((uint64_t)(uintptr_t)(q))
#define PIPE_RECEIVE(p, x) ((void *)(uintptr_t)(x))

namespace msm
{
#define PIPE_ALLOC(p) msm_alloc(p)
#define PIPE_FREE(p, q) segment->deallocate(q)
#include "tests/bench/pipe.h"
#undef PIPE_ALLOC
#undef PIPE_FREE
} // namespace msm

namespace node
{
#define PIPE_ALLOC(p) node_alloc(p)
#define PIPE_FREE(p, q) (p)->allocator.deallocate_one((object *)(q))
#include "tests/bench/pipe.h"
} // namespace node

static uint64_t
msm_run(struct peer *p, struct bench_state *s, enum bench_pattern pattern, uint64_t until_ns)
{
	return pattern == BENCH_PIPE ? msm::pipe_until(p, s, until_ns) : msm_until(p, s, pattern, until_ns);
}

static uint64_t
node_run(struct peer *p, struct bench_state *s, enum bench_pattern pattern, uint64_t until_ns)
{
	return pattern == BENCH_PIPE ? node::pipe_until(p, s, until_ns) : node_until(p, s, pattern, until_ns);
}

static struct peer_ops peer_msm = {"boost-msm", boost_prepare, boost_open, boost_close, msm_run, boost_bytes, true, nullptr};
static struct peer_ops peer_node = {"boost-node", boost_prepare, boost_open, boost_close, node_run, boost_bytes, true, nullptr};

__attribute__((constructor)) static void
boost_add(void)
{
	bench_add_peer(&peer_msm);
	bench_add_peer(&peer_node);
}
