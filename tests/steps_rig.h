/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rig of test_mutants: slabd in a thread of this process, clients here or in forked children, and steps at which something is played.
 *
 * NEED() is about the play itself: what fails there could not be played, and the process ends with 2.  HOLDS() is what slabd promises: what
 * fails there is a fault in the unmutated program (a CUnit failure) and what a mutant must come to (its process ends with 1). Only the main
 * thread judges.
 */
#ifndef SLAB_TESTS_STEPS_RIG_H
#define SLAB_TESTS_STEPS_RIG_H

#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "client/internal.h"
#include "server/slabd.h"
#include "shm/step.h"

enum {
	RIG_WAIT_S = 10,
	RIG_MAX_HELD = 64,
	RIG_SENTENCE_BYTES = 400,
	/* Objects of a page: the formula makes sheaves of smaller ones larger. */
	RIG_OBJECT_BYTES = 4096,
	RIG_SLAB_ORDER = 4,
	RIG_SLAB_OBJECTS = 16,
	RIG_CAPACITY = 8,
};

void rig_need(bool ok, const char *file, int line, const char *format, ...) __attribute__((format(printf, 4, 5)));
void rig_holds(bool ok, const char *file, int line, const char *format, ...) __attribute__((format(printf, 4, 5)));
#define NEED(ok, ...) rig_need((ok), __FILE__, __LINE__, __VA_ARGS__)
#define HOLDS(ok, ...) rig_holds((ok), __FILE__, __LINE__, __VA_ARGS__)

/* In the process of a mutant: the file descriptor on which the first sentence of HOLDS() goes out; -1: CUnit is told. */
extern int rig_report_fd;

/* One slabd. */
struct rig {
	struct slabd *slabd;
	struct arena *arena;
	pthread_t thread; /* of its first loop */
	char folder[64];
	char socket[80];
};
extern struct rig rig;

void rig_start(unsigned n_loops);
/* On an invented machine: the kernel's nodes 0 and 3.  Clients run on this one's node 0, if it has nodes at all. */
void rig_start_two_nodes(unsigned n_loops);
enum { RIG_FAR_OS_NODE = 3 };
void rig_stop(void);
/* Sessions and caches of the calling process, at stage's socket in a child. */
struct slabc *rig_open(const char *socket);
struct slabc_cache *rig_cache(struct slabc *c, const char *name, size_t size, const struct slabc_cache_options *options);
/* The played stories' cache: slabs of RIG_SLAB_OBJECTS, sheaves of RIG_CAPACITY; as it is, or with other knobs. */
struct slabc_cache_options rig_cache_options(uint32_t flags);
struct slabc_cache *rig_open_with(struct slabc *s, const struct slabc_cache_options *o);
struct slabc_cache *rig_open_cache(struct slabc *s, uint32_t flags);
/* Calls that must succeed. */
void *rig_get(struct slabc_cache *k);
void rig_get_some(struct slabc_cache *k, uint32_t n, void **pv);
/* Objects of the far node. */
void rig_get_far(struct slabc_cache *k, uint32_t n, void **pv);
slabc_ref rig_share(struct slabc *s, const void *p);
/* Waits until so many sessions have ended. */
void rig_wait_ended(uint64_t n);
/* Until slabd has so many connections: a new one goes to the loop that has the fewest. */
void rig_wait_connections(uint32_t n);
/* Runs play in a thread of its own and waits for it. */
void rig_elsewhere(void (*play)(void));
/* Hands slot, held by `from`, back to slabd, and waits until that is done. */
void rig_give_back(struct slabc_cache *k, uint32_t slot, uint32_t from);

/* Steps: once, at the next time (after skip times) that any thread is there; and always. */
void rig_at(enum step step, uint32_t skip, void (*play)(void));
void rig_always(void (*play)(enum step step));
bool rig_was_played(void);
/* A step that was met, here or in a child; and the first that never was, STEP_COUNT if there is none. */
void rig_met(enum step step);
enum step rig_first_unmet(void);

/* steps_account.c: what every object's place is, by walking the ledger, all sheaves and the node barns. */
struct account {
	uint32_t n_objects, n_free, n_barn, n_out;
	uint32_t n_lost;                          /* OUT, unowned, in no sheaf */
	uint32_t n_doubled;                       /* in two places */
	uint32_t n_named;                         /* FREE or BARN, and its word names somebody */
	uint32_t n_closing;                       /* OUT, CLOSING */
	uint32_t n_miscounted;                    /* slabs or barns that count wrongly */
	char first[RIG_SENTENCE_BYTES];           /* about the first that is wrong */
	char first_of_ledger[RIG_SENTENCE_BYTES]; /* and of those that no client may bring about: doubled, named, miscounted */
};

/* at_rest: under the locks, and everything counts.  Else at an instant of slabd's only loop, when objects may well be OUT and nowhere. */
void account_take(struct account *a, bool at_rest);
/* Objects that are OUT and whose word names the client. */
uint32_t account_of_client(uint32_t client, uint32_t *n_not_sharedp);
/* Is every object in exactly one place, and does the audit say so?  The story is part of the sentence. */
void rig_judge(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same of the ledger alone: for clients that have spoiled objects of their own. */
void rig_judge_ledger(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Does the holder have the object, and does slabd know? */
void rig_judge_holder(const struct slabc_cache *k, const void *p, const char *story);

/* The object at p, of c: what the ledger says, and its word. */
uint32_t rig_place(const struct slabc *c, const void *p);
enum slab_state rig_ledger(const struct slabc_cache *k, const void *p);
uint32_t rig_word(const struct slabc_cache *k, const void *p);

/* What a child and its parent share. */
struct stage {
	sem_t go, reached, more;
	char socket[80];
	uint32_t flags; /* of the cache */
	uint32_t client;
	uint32_t is_done;
	uint32_t at; /* step at which it was killed */
	uint32_t instant;
	const void *script;
	slabc_ref ref;
	uint32_t n_refs; /* of another client's objects, to be freed; calls that freed so many have returned */
	uint32_t n_freed;
	slabc_ref refs[RIG_MAX_HELD];
	uint32_t n_held;
	uint32_t held[RIG_MAX_HELD]; /* places that its application holds */
};

/* A child: forked before rig_start(), it acts at actor_go(). */
struct actor {
	pid_t pid;
	struct stage *stage;
};

void actor_fork(struct actor *a, void (*act)(struct stage *stage));
void actor_go(struct actor *a);
/* Waits for the child's stage_reached(). */
void actor_reached(struct actor *a);
void actor_more(struct actor *a);
/* Ends it by SIGKILL, and waits for its end. */
void actor_kill(struct actor *a);
/* Waits for a child that kills itself. */
void actor_died(struct actor *a);
void actor_free(struct actor *a);

/* In the child. */
void stage_reached(struct stage *stage);
void stage_wait_more(struct stage *stage);
void stage_stop(void) __attribute__((noreturn));
/* For rig_at(): the end; and reached, then nothing more.  Of the child's only stage. */
void stage_die(void);
void stage_halt(void);

/* steps_claim.c: for actor_fork(): holds a sheaf's objects, has reached that, and then is killed in the free of one, which lies in its
 * sheaf and is still named. */
void owner_killed_in_free(struct stage *stage);

/* The stories. */
#define STORY(name, ...) void name(void);
#include "tests/steps_stories.def"

#endif
