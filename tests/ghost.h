/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ghost ledger: what the workers of stress_kill say they hold, in memory of the test's own, compared object by object with what slabd's
 * arena says.
 *
 * Each worker has a lane that it alone writes and that outlives it.  A lane's truth is one of two notes; the worker fills in the other one
 * and then makes it the valid one with a single store, so that whatever instant it is killed at, the lane says what it held and, in
 * advance, which call was under way on which objects.  What may have come of that call is then a known set (ghost_op).
 *
 * Objects are known by place (8-byte units within the arena) and, once shared, by reference.  An object's first bytes are its stamp: who
 * holds it, and its reference.  Two holders of one object meet each other's stamps.
 *
 * A free of another client's object by pointer takes effect later; the lane says which they are (late[]), beside what it holds.
 *
 * References go from worker to worker through rings, one for each pair: the producer writes `head`, the consumer `tail`; both outlive their
 * writers, and the next worker of the lane goes on where the last one died.
 */
#ifndef SLAB_TESTS_GHOST_H
#define SLAB_TESTS_GHOST_H

#include <stdbool.h>
#include <stdint.h>

#include "client/slabclient.h"
#include "shm/layout.h"

enum {
	GHOST_KEPT = 0,    /* the default cache: what the dead held becomes orphans */
	GHOST_RECLAIM = 1, /* SLABC_RECLAIM: it is freed */
	GHOST_CHURN = 2,   /* so too; an object a slab, and none kept: pages come and go all the time */
	GHOST_CACHES = 3,

	GHOST_MAX_LANES = 16,
	GHOST_CHURNERS = 2,    /* lanes that are mostly at GHOST_CHURN */
	GHOST_MAX_HELD = 384,  /* objects of a cache in a lane */
	GHOST_MAX_CHURN = 96,  /* of GHOST_CHURN */
	GHOST_MAX_BATCH = 128, /* in one step */
	GHOST_RING_ROOM = 128,
	GHOST_MAX_LATE = 1024, /* more than a sheaf and a step can have of frees that have not taken effect */
	GHOST_SLOTS = 16384, /* client slots */
};

/*
 * What is under way, on n objects of `cache`: held[first] and on, or, of a ring, the entries `at` and on.  After a kill each of them is:
 */
enum ghost_op {
	GHOST_IDLE,
	GHOST_OPEN,       /* nothing is held; the session's name is not known yet */
	GHOST_CLOSE,      /* RECLAIM objects: held, or gone */
	GHOST_ALLOC,      /* up to n unknown objects may be the lane's */
	GHOST_ALLOC_EACH, /* held beyond n_held if held[] says so; and one unknown object */
	GHOST_STAMP,      /* held, perhaps without its stamp */
	GHOST_FREE,       /* held, or gone */
	GHOST_FREE_EACH,  /* gone below `progress`; held or gone at it; held above */
	GHOST_GAP,        /* gone; the last ones of the lane are being moved into their place */
	GHOST_SHARE,      /* held, perhaps without the reference in its stamp */
	GHOST_LOOK,       /* held */
	GHOST_PASS,       /* held if the ring's head is still `at`, else in the ring */
	GHOST_ADOPT,      /* in the ring, and perhaps named by the lane */
	GHOST_CONSUME,    /* in the ring, or gone */
	GHOST_TAKEN,      /* no longer in the ring, whether its tail says so or not */
	GHOST_OPS,
};
extern const char *const ghost_op_names[GHOST_OPS];

/* Only of uint32_t: see ghost_commit(). */
struct ghost_note {
	uint32_t n_held[GHOST_CACHES];
	uint32_t op, cache, first, n;
	uint32_t from, to, at; /* the ring */
	uint32_t n_late;       /* of late[], over and over again */
	/* By this worker so far: allocated; freed, whoever allocated them; found to have been reclaimed. */
	uint32_t n_allocated[GHOST_CACHES];
	uint32_t n_freed[GHOST_CACHES];
	uint32_t n_gone[GHOST_CACHES];
};

struct ghost_lane {
	struct ghost_note note[2];
	uint32_t now; /* which note is valid */
	uint32_t progress;
	uint32_t phase;     /* GHOST_PHASE_ that the worker has reached */
	uint32_t client;    /* slabc_client_id() */
	uintptr_t base;     /* address of place 0 in the worker */
	uint32_t is_inside; /* of a call */
	uint64_t n_steps;   /* of all the lane's workers, dead ones too */
	char error[256];
	/*
	 * The last of others' objects that the lane's workers freed by pointer, up to the note's n_late: until the claim is made the word still names the
	 * object's sender.  When the worker has died they are gone, all of them.
	 */
	slabc_ref late[GHOST_MAX_LATE];
	void *held[GHOST_CACHES][GHOST_MAX_HELD + GHOST_MAX_BATCH];
};

enum { GHOST_PHASE_WORK, GHOST_PHASE_DRAIN, GHOST_PHASE_QUIT };

struct ghost_item {
	slabc_ref ref;
	uint32_t sender; /* client id; it is the stamp's `who` until somebody adopts */
	uint32_t cache;
};

struct ghost_ring {
	uint32_t head __attribute__((aligned(64))); /* W: producer */
	uint32_t tail __attribute__((aligned(64))); /* W: consumer */
	struct ghost_item item[GHOST_RING_ROOM];
};

struct ghost {
	uint32_t n_lanes;
	uint32_t phase; /* what the workers should do */
	/* By client slot: the last session of it that has ended, or is about to. */
	uint32_t ended[GHOST_SLOTS];
	struct ghost_lane lane[GHOST_MAX_LANES];
	struct ghost_ring ring[GHOST_MAX_LANES][GHOST_MAX_LANES]; /* from, to */
};

/* Objects of the dead are freed. */
static inline bool
ghost_is_reclaimed(uint32_t cache)
{
	return cache != GHOST_KEPT;
}

static inline uint32_t
ghost_max_held(uint32_t cache)
{
	return cache == GHOST_CHURN ? GHOST_MAX_CHURN : GHOST_MAX_HELD;
}

struct ghost_stamp {
	uint64_t who;  /* client id, place */
	slabc_ref ref; /* 0: none was made */
};

static inline uint64_t
ghost_who(uint32_t client, uint32_t place)
{
	return (uint64_t)client << 32 | place;
}

static inline uint32_t
ghost_place(const struct ghost_lane *lane, const void *p)
{
	return (uint32_t)(((uintptr_t)p - lane->base) >> LAYOUT_PLACE_SHIFT);
}

static inline const struct ghost_note *
ghost_now(const struct ghost_lane *lane)
{
	return &lane->note[__atomic_load_n(&lane->now, __ATOMIC_ACQUIRE)];
}

/* By the lane's worker: from here on *note is what holds. */
static inline void
ghost_commit(struct ghost_lane *lane, const struct ghost_note *note)
{
	uint32_t next = !lane->now;
	uint32_t *to = (uint32_t *)&lane->note[next];
	const uint32_t *from = (const uint32_t *)note;

	/* Field by field: a wide copy of what was just written in parts stalls the processor. */
	for (uint32_t i = 0; i < sizeof *note / sizeof *to; i++)
		__atomic_store_n(&to[i], from[i], __ATOMIC_RELAXED);
	__atomic_store_n(&lane->now, next, __ATOMIC_RELEASE);
}

static inline void
ghost_end_session(struct ghost *ghost, uint32_t client)
{
	__atomic_store_n(&ghost->ended[client % GHOST_SLOTS], client, __ATOMIC_SEQ_CST);
}

/* May an object that this session passed on have been reclaimed? */
static inline bool
ghost_has_ended(const struct ghost *ghost, uint32_t client)
{
	return __atomic_load_n(&ghost->ended[client % GHOST_SLOTS], __ATOMIC_SEQ_CST) >= client;
}

/* What a worker opens; the same for all. */
struct ghost_setup {
	const char *socket;
	const char *cache_name[GHOST_CACHES];
	size_t object_size[GHOST_CACHES];
	struct slabc_cache_options cache[GHOST_CACHES];
	int timeout_ms;
};

/* The load (ghost_worker.c): until the ghost says otherwise, or the process is killed; exits with 0, or with a sentence in the lane. */
void ghost_worker_run(struct ghost *ghost, uint32_t lane, const struct ghost_setup *setup, uint64_t seed) __attribute__((noreturn));
uint64_t ghost_random(uint64_t *state);

/* The arena as one process sees it, read only. */
struct ghost_view {
	const struct layout_arena *arena;
	const struct layout_cache *caches;
	const struct layout_page *pages;
	const uint32_t *words;
	char *base;
	uint32_t cache[GHOST_CACHES]; /* their ids */
	struct slabc *c;              /* the comparing process's own session, with which it adopts and frees */
	struct slabc_cache *k[GHOST_CACHES];
	uint32_t client;
	/* By place, in units of 32 bytes: which lane says it is there. */
	uint8_t *mark;
	/* Failures so far. */
	uint64_t n_failures;
};

/* What a victim may be seen in the midst of. */
struct ghost_death {
	uint32_t n_closing;        /* words CLOSING that name it */
	uint32_t n_named_in_sheaf; /* objects it is named by, in a sheaf of its own below the size */
	uint32_t n_unsettled;      /* frees of others' objects, not yet claimed */
	bool has_session;
};

/* What became of the dead. */
struct ghost_sums {
	uint64_t n_allocated[GHOST_CACHES]; /* by the dead, beyond what they noted */
	uint64_t n_freed[GHOST_CACHES];     /* likewise */
	uint64_t n_gone[GHOST_CACHES];      /* reclaimed */
	uint64_t n_adopted[GHOST_CACHES];   /* adopted, or freed by reference, by the comparing process */
	uint64_t n_compared;                /* objects looked at */
};

/* A victim's objects while it was stopped: what became of them is compared with this. */
struct ghost_snapshot {
	struct ghost_note note;
	uint32_t progress, client;
	uint32_t n[GHOST_CACHES];
	uint32_t n_freed[GHOST_CACHES]; /* in the call under way, before the victim was stopped */
	struct {
		uint32_t place, generation;
		slabc_ref ref;
		uint64_t who;
		bool may_be_gone;
	} object[GHOST_CACHES][GHOST_MAX_HELD + GHOST_MAX_BATCH];
};

/* 0; or -1, reported. The session must be open in this process. */
int ghost_view_init(struct ghost_view *view, struct slabc *c, struct slabc_cache *const *k, const char *const *names);
void ghost_view_deinit(struct ghost_view *view);

/* Prints a failure. */
void ghost_fail(struct ghost_view *view, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Of a stopped worker: pid's session segment and the words. */
void ghost_look(const struct ghost_view *view, int pid, uint32_t client, struct ghost_death *death);
/* Of a stopped worker, just before it is killed: its lane, and that what it holds is its own. */
void ghost_snapshot(struct ghost_view *view, const struct ghost *ghost, uint32_t lane, struct ghost_snapshot *snapshot);
/* After slabd has reaped it, while the others run: compares, and takes what it left.  Completes the lane's ring. */
void ghost_settle(
	struct ghost_view *view, struct ghost *ghost, uint32_t lane, const struct ghost_snapshot *snapshot, struct ghost_sums *sums);
/* All workers stopped, the dead settled: every object of every lane and ring, and every word that names somebody. */
void ghost_compare(struct ghost_view *view, const struct ghost *ghost, struct ghost_sums *sums);
uint64_t ghost_count_named(const struct ghost_view *view);

#endif
