/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Repair: objects that the audit finds lost (audit.h; design.md, I7) go back to their slabs.
 *
 * Lost are those that a wrong client drops (it draws sheaves and writes their size to 0), and those that a slabd which was killed had in its hands (I3).
 * The audit says under the cache's locks that such an object's word is clear, unchanged between two looks, and that no sheaf and no stash has it;
 * still under them the word is looked at a third time, and the object is FREE.  No client that follows the rules can have it: to such a one an entry in
 * its sheaf is a place, and whoever takes an object names it before the entry goes (I1).  A wrong client that has kept an entry to itself has what it
 * has anyway: it can write everybody's objects and words (I8).
 *
 * It runs when it is asked for, and by itself where what is lost would be missed: when the last session closes a cache, before a cache is destroyed, and
 * (not often) when memory is short or a client's quota.  By itself it first counts whether anything can be lost, so where nothing is it costs a
 * walk over the words and no lock.
 */
#ifndef SLAB_SERVER_REPAIR_H
#define SLAB_SERVER_REPAIR_H

#include <stdbool.h>

#include "server/audit.h"

/* As audit_run(), and takes back what is lost; logged with who was lent most that did not come back from him. */
int repair_run(struct arena *arena, uint32_t id, struct audit *audit);

/* One cache, if more of it is OUT and named by nobody than lies in sheaves. Returns how many were taken back. sessions_lock held. */
uint64_t repair_cache(struct cache *cache);

/*
 * All caches of the arena, at most for a fifth of the time; waits a moment for its turn, if something was lost before.  false: it did not come; else *np were taken back.
 * sessions_lock held.
 */
bool repair_arena(struct arena *arena, uint64_t *np);

#endif
