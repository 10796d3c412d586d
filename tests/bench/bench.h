/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bench: one measurement of one peer, in one pattern, with so many processes.
 *
 * A unit is an allocation, a write to the object's first word, and a free, of a 256-byte object.  A worker is a process (in the malloc
 * peer's pipe a thread) that does one pattern for a given time; a peer is who allocates.  Each peer compiles the patterns for itself
 * (patterns.h), so that a call is the peer's own call and nothing else.  A peer registers itself; which are there is a matter of linking,
 * so that none is in a process with what another one needs.
 */
#ifndef SLAB_TESTS_BENCH_H
#define SLAB_TESTS_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define _Alignas alignas
#define _Noreturn [[noreturn]]
extern "C" {
#endif

enum {
	BENCH_OBJECT_BYTES = 256,
	BENCH_MAX_WORKERS = 64,
	BENCH_BATCH = 65536, /* the largest batch, and slots of a worker */
	BENCH_RING = 4096,
	BENCH_PUBLISH = 32,
	BENCH_SLOW_NS = 2000, /* a call longer than this was not on the fast path */
	BENCH_LINE = 64,
};
#define BENCH_SECOND_NS UINT64_C(1000000000)

enum bench_pattern {
	BENCH_PAIR,     /* alloc, free */
	BENCH_BATCH1K,  /* 1,024 allocs, as many frees in the same order */
	BENCH_BATCH64K, /* 65,536 */
	BENCH_RANDOM4K, /* a step allocates into, or frees from, a random one of 4,096 slots; two steps are a unit */
	BENCH_PIPE,     /* one allocates and publishes, the other reads and frees */
	BENCH_MIXED,    /* by turns 512 allocs and 512 frees in order, and 1,024 steps as in random4k */
	BENCH_LIVE,     /* 65,536 allocs and no free: what the peer takes from the system for them */
	BENCH_N_PATTERNS,
};

struct bench_options {
	const char *peer;      /* as peers name themselves */
	const char *peer_name; /* in the output: which malloc it is */
	enum bench_pattern pattern;
	unsigned n_workers;
	double warm_up; /* seconds: slabd learns how much a client needs */
	double seconds;
	double give_up;        /* seconds beyond the time, after which a peer has not finished */
	bool has_no_owner;     /* slabd only: SLABC_NO_OWNER */
	uint32_t object_bytes; /* slabd only, like all that follows */
	uint32_t capacity;     /* of a sheaf; 0: by formula; SLABC_SHEAVES_NONE */
	uint64_t max_cached;   /* bytes in a process barn; 0: the default */
	uint32_t barn_full;    /* sheaves in a node barn; 0: by formula; SLABC_KNOB_NONE */
	const char *socket;
	const char *slabctl; /* NULL: counters stay 0 */
	const char *cache;   /* its name */
	bool is_trade;       /* mixed pattern, calls timed, another line of output */
};

/* What passes between the two ends of a pipe: references, or pointers. */
struct bench_ring {
	_Alignas(BENCH_LINE) uint64_t head; /* W: producer (RING_HEAD). R: consumer */
	uint64_t n_closed;                  /* phases ended.  W: producer (RING_CLOSED). R: consumer */
	_Alignas(BENCH_LINE) uint64_t tail; /* W: consumer (RING_TAIL). R: producer */
	_Alignas(BENCH_LINE) uint64_t slot[BENCH_RING];
};

/* One worker's place in the shared page. W: worker. R: parent, when n_phases says that it is there. */
struct bench_worker {
	_Alignas(BENCH_LINE) uint32_t n_phases; /* warmed up, then measured (PHASE) */
	int32_t error;
	uint64_t n_units;
	uint64_t ns;
	uint64_t n_slow; /* calls, when timed */
	uint64_t slow_ns;
	uint64_t run_delay_ns; /* ready to run, but no CPU */
	uint64_t n_bytes;      /* live: taken from the system */
};

/* A worker's own. */
struct bench_state {
	struct bench_worker *shared;
	struct bench_ring *ring; /* pipe: NULL in others */
	bool is_producer;
	unsigned n_phases; /* pipe: ended */
	uint64_t sequence; /* pipe: of the next object */
	uint64_t random;
	bool is_timed;
	double ns_per_tick;
	uint64_t slow_ticks;
	void *slots[BENCH_BATCH];
};

/* A peer.  run() does a pattern until a time of bench_now_ns() and returns how many units; errors are said on stderr and end the run. */
struct peer;
struct peer_ops {
	const char *name;
	void (*prepare)(const struct bench_options *opt); /* in the parent, before there is a worker; NULL: nothing to do */
	struct peer *(*open)(const struct bench_options *opt, unsigned worker);
	void (*close)(struct peer *p);
	uint64_t (*run)(struct peer *p, struct bench_state *s, enum bench_pattern pattern, uint64_t until_ns);
	uint64_t (*bytes)(struct peer *p); /* taken from the system for objects; NULL: as slabctl says */
	bool is_shared;                    /* an object may be freed by another process */
	struct peer_ops *next;
};

/* Before main(). */
void bench_add_peer(struct peer_ops *ops);

/* Of the cache, from slabctl --json caches; fields as slabd names them (proto/ops.def). */
struct bench_counters {
	uint64_t object_bytes, capacity;
	uint64_t n_thread, n_process_barn, n_returned, n_node_barn;
	uint64_t n_refills, n_flushes, n_sheaves_granted, n_pages;
	uint64_t lock_acquired, lock_contended, lock_wait_ns, lock_hold_ns;
	uint64_t words_bytes, map_bytes, ledger_bytes, session_bytes; /* of the arena, from slabctl --json status */
};

/* counters.c.  0 or -errno, said on stderr. */
int bench_counters_read(const struct bench_options *opt, struct bench_counters *out);

/* worker.c.  Runs the workers and gives back what they did and the counters before and after. 0 or -errno, said on stderr. */
struct bench_result {
	uint64_t n_units;
	double ns_per_unit; /* of a worker, mean; of a pipe the consumer's */
	double units_per_s; /* of all together */
	uint64_t worker_ns, n_slow, slow_ns, run_delay_ns, n_bytes;
	struct bench_counters before, after;
};
int bench_run(const struct bench_options *opt, const struct peer_ops *ops, struct bench_result *result);

uint64_t bench_now_ns(void);
_Noreturn void bench_die(const char *what, int error);

static inline uint64_t
bench_ticks(void)
{
#ifdef __x86_64__
	return __builtin_ia32_rdtsc();
#else
	return bench_now_ns();
#endif
}

static inline void
bench_pause(void)
{
#ifdef __x86_64__
	__builtin_ia32_pause();
#endif
}

#ifdef __cplusplus
}
#endif

#endif
