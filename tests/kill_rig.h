/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that are killed at a chosen instant beside honest ones: what kill_points (at a step, shm/step.h) and kill_step (at an
 * instruction) share.
 *
 *   stand    a slabd, two honest workers at work in the same caches, and the session of the test process, which owns what victims free and
 * adopt act      what a victim does (kill_acts.c): a preparation, and the calls in the midst of which it dies victim   a child that plays
 * an act; its stage, in shared memory, outlives it and says what its application held and had freed
 *
 * After each death kill_judge() wants: the session reaped; slabd's audit and a recount (recount.h, with everybody stopped) without anything
 * lost, doubled or stuck; each object that a worker holds still its own, and its word too; what the victim held an orphan, or freed; what
 * it had freed gone.
 */
#ifndef SLAB_TESTS_KILL_RIG_H
#define SLAB_TESTS_KILL_RIG_H

#include "tests/harness.h"
#include "tests/recount.h"

enum {
	KILL_KINDS = 5, /* of caches: kill_kinds[] */
	KILL_MAX_ACTS = 32,
	KILL_WORKERS = 2,
	KILL_VICTIMS = 8, /* at one time */
	KILL_MAX_HELD = 160,
	KILL_MAX_REFS = 20,
	KILL_MAX_TRACE = 8192,
	KILL_CAPACITY = 8, /* of a sheaf */
	KILL_OBJECT_BYTES = 512,
};

struct kill_kind {
	const char *name;
	unsigned flags;
	uint32_t capacity;
};
extern const struct kill_kind kill_kinds[KILL_KINDS];

struct kill_stage {
	/* What to do. */
	uint32_t act, kind;
	slabc_ref refs[KILL_MAX_REFS]; /* of the owner's objects; n_gone of them were freed or adopted by calls that have returned */
	uint32_t n_refs, n_begun, n_gone;
	uint32_t owner; /* client id */
	char socket[96];
	/* How far it is. */
	uint32_t client; /* 0: no session yet */
	uint32_t wants_recall, is_recalled;
	uint32_t is_done;
	/* Places that its application holds: allocated by calls that have returned, freed by none that has begun. */
	uint32_t n_held, held[KILL_MAX_HELD];
	uint32_t given; /* + 1: a place that the owner may have been given */
	/* kill_points: it dies, or, is_waiting, waits to be killed, at that pass of the step; or, of none, it lists which steps it comes
	 * to. */
	uint32_t step, pass, is_waiting, has_arrived;
	uint32_t tid;  /* kill_step: the thread that is traced */
	uint32_t nest; /* of a nested act: the handler comes after so many steps, or instructions */
	uint32_t n_trace;
	uint16_t trace[KILL_MAX_TRACE];
};

/* A victim while it acts. */
struct kill_crew {
	struct kill_stage *stage;
	struct slabc *c;
	struct slabc_cache *k;
	char *base; /* address of place 0 */
	void *pv[KILL_MAX_HELD];
	uint32_t n;
};

struct kill_act {
	const char *name;
	void (*before)(struct kill_crew *crew); /* may be NULL */
	void (*op)(struct kill_crew *crew);
	uint32_t n_refs;
	bool is_short;       /* kill_step: in each kind, not one by lot */
	bool in_thread;      /* op is the end of a thread */
	bool is_recalled;    /* slabd takes back what is idle before op */
	bool has_orphans;    /* somebody has left some, and refs are these */
	bool has_no_session; /* op opens it */
	bool is_nested;      /* a signal handler comes in between */
};
extern const struct kill_act kill_acts[];
extern const uint32_t kill_n_acts;

/* kill_acts.c, in the victim: plays stage->act, with begin() and end() around op; does not return. */
void kill_play(struct kill_stage *stage, void (*begin)(void), void (*end)(void)) __attribute__((noreturn));
struct slabc_cache *kill_open_cache(struct slabc *c, uint32_t kind);
/* What a nested act's signal handler is to be called by. */
enum { KILL_SIGNAL = SIGUSR1 };
/* The name that a client publishes. */
#define KILL_ROOT "of client %u"

struct kill_stand {
	struct harness *h;
	struct slabc *c; /* the owner's */
	struct slabc_cache *k[KILL_KINDS];
	char *base;
	struct recount *recount;
	struct kill_lane *lanes;   /* of the workers, shared */
	struct kill_stage *stages; /* of KILL_VICTIMS victims, shared */
	pid_t workers[KILL_WORKERS];
	pid_t slabd;    /* while it is stopped */
	uint64_t n_all; /* objects that the arena has room for */
	uint64_t n_kills, n_recounts, n_again, n_elsewhere;
};

/* slabd by these arguments, or, program, one under the keeper. */
void kill_stand_up(struct kill_stand *s, const char *program, const char *arguments);
/* All have gone: nothing is out, and as many objects are to be had as at first. */
void kill_stand_down(struct kill_stand *s);

/* Makes stage i ready for a victim of that act, and starts one, which calls kill_play(). */
void kill_prepare(struct kill_stand *s, uint32_t i, uint32_t act, uint32_t kind);
pid_t kill_start(struct kill_stand *s, uint32_t i, void (*begin)(void), void (*end)(void));
/* Called while a victim is waited for: does what it asks for. */
void kill_serve(struct kill_stand *s, uint32_t i);
/* The victims, pids[n] of the first n stages, are dead and waited for.  story: "pair, reclaim, at ALLOC_NAMED".  false: something is wrong.
 */
bool kill_judge(struct kill_stand *s, const pid_t *pids, uint32_t n, const char *story);

/* The stage of this process, a victim's. */
extern struct kill_stage *kill_stage;

#endif
