/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Online audit (design.md, I7; tests/model/audit.pml): is each object of a cache in exactly one place?
 *
 * Under the cache's list_locks, so that no grant and no take-back of it runs: words, sheaves, words again.  An OUT object that is unowned at both
 * looks, in the same generation, and in no sheaf or stash between them is lost.  Doubled is one that then lies in two sheaves, or in a sheaf while its word
 * names somebody other than the sheaf's client, or in a stash and anything else, or of which the ledger says FREE or BARN while a sheaf has it or its word names somebody.  Both
 * looks must lie nearer together than a generation takes to come round; else it is looked at again, and in the end undecided.
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
	uint64_t n_repaired; /* of n_lost, taken back (repair.h) */
};

/* Told of an object as it is found lost, the cache's locks still held; seen: its word at both looks. */
typedef void audit_lost_fn(void *ctx, struct cache *cache, uint32_t slab, uint32_t word, uint32_t seen);

/* One cache, added to what *audit says already. lost may be NULL. -ENOMEM. sessions_lock held. */
int audit_cache(struct cache *cache, struct audit *audit, audit_lost_fn *lost, void *ctx);

/* id 0: all caches of the arena, added up.  -ENOENT, -ENOMEM.  Takes sessions_lock for reading. */
int audit_run(struct arena *arena, uint32_t id, struct audit *audit);

#endif
