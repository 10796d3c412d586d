/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Repair: objects that the audit finds lost (audit.h; design.md, I7) go back to their slabs.
 *
 * Lost are those that a wrong client drops (it draws sheaves and writes their size to 0), and those that a slabd which was killed had in its hands (I3;
 * adopt.h).  The audit says under the cache's locks that such an object's word is clear, unchanged between two looks, and that no sheaf and no stash has it;
 * still under them it is FREE.  No client that follows the rules can have it: to such a one an entry in
 * its sheaf is a place, and whoever takes an object names it before the entry goes (I1).  A wrong client that has kept an entry to itself has what it
 * has anyway: it can write everybody's objects and words (I8).
 *
 * It runs when it is asked for, and by itself where what is lost would be missed: when the last session has closed a cache (sweep.h), before a cache is
 * destroyed, and (not often) when memory is short or a client's quota.  By itself it first counts whether anything can be lost, so where nothing is it costs a
 * walk over the words and no lock.  All of it goes a portion at a time, and what moves between two portions is looked at in the one in which it is met: that
 * an object is lost is found, and made good, within a single hold of the locks.
 *
 * All calls but the one that says otherwise: sessions_lock held for reading.
 */
#ifndef SLAB_SERVER_REPAIR_H
#define SLAB_SERVER_REPAIR_H

#include <stdbool.h>

#include "server/audit.h"
#include "server/census.h"

/* An audit's told(): logs it, with who was lent most that did not come back from him; of each cache at each power of two. */
void repair_tell(struct cache *cache, const struct audit_back *back);

/* Of one cache: first the glance, then, if that says so, the audit. Zeros, but for the cache's id. */
struct repair_walk {
	uint32_t cache;
	struct census_walk glance;
	struct audit_walk *audit;
	unsigned n_audits;
};

enum { REPAIR_E_MORE = 1 };

/* A portion.  0: that was the last, and the walk holds nothing any more; REPAIR_E_MORE; -ENOMEM. */
int repair_step(struct arena *arena, struct repair_walk *walk);
/* Before the last, or after.  repair_cancel() takes sessions_lock. */
void repair_end(struct repair_walk *walk);
void repair_cancel(struct repair_walk *walk);

/*
 * Goes on with the arena's pass over all caches for some portions, at most for a fifth of the time; waits a moment for its turn, if something was lost
 * before.  *np: taken back meanwhile.  true: a pass that began here is over, so what was lost before is back.
 */
bool repair_arena(struct arena *arena, uint64_t *np);

#endif
