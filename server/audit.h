/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Online audit (design.md, I7; tests/model/audit.pml): is each object of a cache in exactly one place?
 *
 * Under the cache's list_locks, so that no grant and no take-back of it runs: words, sheaves, words again.  An OUT object that is unowned at both
 * looks, in the same generation, and in no sheaf or stash between them is lost.  Doubled is one that then lies in two sheaves, or in a sheaf while its word
 * names somebody other than the sheaf's client, or in a stash and anything else, or of which the ledger says FREE or BARN while a sheaf has it or its word names somebody.  Both
 * looks must lie nearer together than a generation takes to come round; else it is looked at again, and in the end undecided.
 *
 * A portion at a time, each in one hold of the locks: the next 16,384 objects; then what is left of them, 4,096 at a time, which are few enough to be
 * looked at again and again between the sheaves.  So any number of losses is found exactly, and a hold lasts half a millisecond, and what it takes to read all
 * sheaves of the cache.  Each object is counted as it was in its portion.
 * A cache without owner words is passed by: of its objects nobody can say it.
 */
#ifndef SLAB_SERVER_AUDIT_H
#define SLAB_SERVER_AUDIT_H

#include <stdint.h>

#include "server/arena.h"

struct cache;

struct audit {
	uint64_t n_objects; /* = n_free + n_barn + n_out */
	uint64_t n_out;
	uint64_t n_free;
	uint64_t n_barn;
	uint64_t n_in_sheaves; /* OUT, unowned, in a sheaf */
	uint64_t n_in_stashes; /* OUT, unowned, in a stash */
	uint64_t n_held;       /* OUT, named by a living session */
	uint64_t n_orphans;    /* OUT, named by a dead one, or ORPHAN */
	uint64_t n_lost;
	uint64_t n_doubled;
	uint64_t n_undecided;
	uint64_t n_rounds;
	uint64_t longest_window_ns; /* between both looks, where that decided */
	uint64_t first_lost;        /* place + 1 */
	uint64_t first_doubled;
	uint64_t n_repaired; /* of n_lost, taken back */
};

enum { AUDIT_E_MORE = 1 }; /* of audit_step(): it has not seen everything yet */

struct audit_walk;

/* What was taken back of a cache; and of the rest how many objects name each client, WORD_ORPHAN too. */
struct audit_back {
	uint64_t n;
	uint64_t bytes;
	uint32_t *n_named;
};

/* Told of each cache of which something was taken back, when the walk leaves it. sessions_lock held for reading. */
typedef void audit_told_fn(struct cache *cache, const struct audit_back *back);

/*
 * id 0: all caches of the arena, added up.  told NULL: it only looks.  Else what is lost goes back to its slab as it is found, under the locks
 * that it was found under (repair.h).  -ENOENT, -ENOMEM.  sessions_lock held for reading.
 */
int audit_begin(struct audit_walk **runp, struct arena *arena, uint32_t id, audit_told_fn *told);
/* A portion.  0: that was the last; AUDIT_E_MORE; -ENOMEM.  sessions_lock held for reading, not necessarily since the last; takes the locks of the cache. */
int audit_step(struct audit_walk *run);
const struct audit *audit_result(const struct audit_walk *run);
/* NULL is ignored.  Before the last portion it is told of what was taken back so far.  sessions_lock held for reading; audit_cancel() takes it. */
void audit_end(struct audit_walk *run);
void audit_cancel(void *run);

/*
 * For who adopts the arena, before anything is granted or taken back in it: what is lost is FREE afterwards. 0, or -ENOMEM.  What is undecided stays as it
 * is.  Nobody waits for a lock, so portions are large.
 */
int audit_take_back(struct arena *arena, audit_told_fn *told, struct audit *audit);

/* All of it at once.  Takes sessions_lock. */
int audit_run(struct arena *arena, uint32_t id, struct audit *audit);

#endif
