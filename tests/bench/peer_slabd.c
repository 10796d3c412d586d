/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slabd peer: the public interface as a program calls it, out of line, objects with owner words, or without (--no-owner).  Built once
 * more with slabclient-inline.h it is the peer slabd-inline, which also counts the calls that reach the library (ld --wrap).
 *
 * In the pipe the cache is SLABC_SHARED, as a program would have it whose objects are made to be passed on: so slabc_ref_of() has nothing to
 * do at each.  In the other patterns nothing is passed on.
 *
 * Timed (bench --trade), each call stands between two readings of the cycle counter; what took longer than BENCH_SLOW_NS adds to the time
 * in slow calls.  That costs some 20 ns a call, so timed and untimed figures must not be mixed.
 */
#define _GNU_SOURCE 1
#include "tests/bench/bench.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/slabclient.h"

struct peer {
	struct slabc *c;
	struct slabc_cache *k;
	struct bench_state *s; /* timed: where slow calls are counted */
};

#ifdef SLABCLIENT_INLINE_H
#define NAME "slabd-inline"

static uint64_t n_slow_calls;

void *__real_slabc_alloc(struct slabc_cache *k);
void __real_slabc_free(struct slabc_cache *k, void *q);
void *__wrap_slabc_alloc(struct slabc_cache *k);
void __wrap_slabc_free(struct slabc_cache *k, void *q);

void *
__wrap_slabc_alloc(struct slabc_cache *k)
{
	n_slow_calls++;
	return __real_slabc_alloc(k);
}

void
__wrap_slabc_free(struct slabc_cache *k, void *q)
{
	n_slow_calls++;
	__real_slabc_free(k, q);
}

static void
slabd_count_slow(struct bench_state *s)
{
	s->shared->n_slow = n_slow_calls;
	n_slow_calls = 0;
}
#else
#define NAME "slabd"

static void
slabd_count_slow(struct bench_state *s)
{
	(void)s;
}
#endif

static struct peer *
slabd_open(const struct bench_options *opt, unsigned worker)
{
	struct slabc_options o = SLABC_OPTIONS_INIT;
	struct slabc_cache_options ko = SLABC_CACHE_OPTIONS_INIT;
	struct peer *p = calloc(1, sizeof(*p));
	int r;

	(void)worker;
	if (!p)
		bench_die("calloc", errno);
	o.socket = opt->socket;
	o.label = "bench";
	o.timeout_ms = 10000;
	ko.sheaf_capacity = opt->capacity;
	ko.max_cached = opt->max_cached;
	ko.barn_full = opt->barn_full;
	ko.flags = opt->has_no_owner ? SLABC_NO_OWNER : opt->pattern == BENCH_PIPE ? SLABC_SHARED : 0;
	r = slabc_open(&p->c, &o);
	if (r == 0)
		r = slabc_cache_open(p->c, opt->cache, opt->object_bytes, &ko, &p->k);
	if (r < 0)
		bench_die(slabc_last_error(), -r);
	return p;
}

static void
slabd_close(struct peer *p)
{
	slabc_cache_close(p->k);
	slabc_close(p->c);
	free(p);
}

__attribute__((always_inline)) static inline void *
slabd_alloc(struct peer *p)
{
	void *q = slabc_alloc(p->k);

	if (__builtin_expect(!q, 0))
		bench_die(slabc_last_error(), errno);
	return q;
}

static inline void
slabd_count(struct peer *p, uint64_t since)
{
	uint64_t ticks = bench_ticks() - since;

	if (__builtin_expect(ticks < p->s->slow_ticks, 1))
		return;
	p->s->shared->n_slow++;
	p->s->shared->slow_ns += (uint64_t)((double)ticks * p->s->ns_per_tick);
}

static inline void *
slabd_alloc_timed(struct peer *p)
{
	uint64_t since = bench_ticks();
	void *q = slabd_alloc(p);

	slabd_count(p, since);
	return q;
}

static inline void
slabd_free_timed(struct peer *p, void *q)
{
	uint64_t since = bench_ticks();

	slabc_free(p->k, q);
	slabd_count(p, since);
}

#define PATTERN(name) slabd_##name
#define PATTERN_ALLOC(p) slabd_alloc(p)
#define PATTERN_FREE(p, q) slabc_free((p)->k, (q))
#include "tests/bench/patterns.h"

#define PATTERN(name) slabd_timed_##name
#define PATTERN_ALLOC(p) slabd_alloc_timed(p)
#define PATTERN_FREE(p, q) slabd_free_timed(p, q)
#include "tests/bench/patterns.h"

#define PIPE_SEND(p, q) slabc_ref_of((p)->c, (q))
#define PIPE_RECEIVE(p, x) slabc_deref((p)->c, (x))
#define PIPE_ALLOC(p) slabd_alloc(p)
#define PIPE_FREE(p, q) slabc_free((p)->k, (q))
#include "tests/bench/pipe.h"

static uint64_t
slabd_run(struct peer *p, struct bench_state *s, enum bench_pattern pattern, uint64_t until_ns)
{
	uint64_t n;

	p->s = s;
	errno = 0;
	if (pattern == BENCH_PIPE)
		n = pipe_until(p, s, until_ns);
	else if (s->is_timed)
		n = slabd_timed_until(p, s, pattern, until_ns);
	else
		n = slabd_until(p, s, pattern, until_ns);
	if (errno == EINVAL)
		bench_die("a free was refused", errno);
	if (!s->is_timed)
		slabd_count_slow(s);
	return n;
}

static struct peer_ops peer_slabd = {.name = NAME, .open = slabd_open, .close = slabd_close, .run = slabd_run, .is_shared = true};

__attribute__((constructor)) static void
slabd_add(void)
{
	bench_add_peer(&peer_slabd);
}
