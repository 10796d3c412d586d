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
};

enum { AUDIT_E_MORE = 1 }; /* of audit_step(): it has not seen everything yet */

struct audit_walk;

/* id 0: all caches of the arena, added up.  -ENOENT, -ENOMEM. */
int audit_begin(struct audit_walk **runp, struct arena *arena, uint32_t id);
/* A portion.  0: that was the last; AUDIT_E_MORE; -ENOMEM.  Takes sessions_lock for reading, as all do, and the locks of the cache. */
int audit_step(struct audit_walk *run);
const struct audit *audit_result(const struct audit_walk *run);
void audit_end(void *run);

/*
 * For who adopts the arena, before anything is granted or taken back in it: what is lost is FREE afterwards. 0, or -ENOMEM.  The n_lost of audit are those
 * that were taken back; what is undecided stays as it is.  Nobody waits for a lock, so portions are large.
 */
int audit_take_back(struct arena *arena, struct audit *audit);

/* All of it at once. */
int audit_run(struct arena *arena, uint32_t id, struct audit *audit);

#endif
