/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recall: slabd takes back what clients keep idle, also of one that sleeps or is stopped (design.md, section 4; tests/model/recall.pml).
 *
 *   process barn         sheaf by sheaf, by compare-and-swap on the slot's holder (grant.h).
 *   main, spare, rack    floor ~0 and limit 0, THEN a membarrier, THEN busy is read.  0: holder THREAD + n becomes RECALLED, and the sheaf
 * is emptied.  Else floor and limit are put back, and the thread never notices.
 *
 * After the barrier whoever enters the sheaf sees it revoked, and whoever entered it before is seen busy; that needs a barrier of its own
 * for every revocation.  An emptied sheaf stays revoked, and its slot is not lent again, until its thread has let go of it: until then the
 * thread may be in the midst of reading its size, or point to it.  Only sessions that registered for membarrier; a sheaf with a bit in busy
 * that is not known here is left alone.  A client stopped inside the bracket keeps that one sheaf.
 *
 * All calls: sessions_lock held for reading; sessions on which somebody works just now are passed by.
 */
#ifndef SLAB_SERVER_RECALL_H
#define SLAB_SERVER_RECALL_H

#include <stdbool.h>
#include <stdint.h>

#include "server/session.h"

/* Ticks after which what has not changed is idle. */
enum { RECALL_TICKS = 4 };

/* 0, or why slabd may not issue membarriers, as a positive errno: then threads' sheaves are never taken. */
int recall_probe(void);

/*
 * Memory is short, for the session, whose work is held: the next means of getting some of what is idle back to the slabs and pages.
 * *stagep, at first 0, counts them: barns; threads' sheaves of the cache; those of all caches, and again a few times, with pauses, if some were
 * busy, unless somebody was refused just before; what is lost (repair.h).
 * false: there is none left.
 */
bool recall_relieve(struct session *session, struct cache *cache, unsigned *stagep);

/* Everything that the session, whose work is held, keeps idle in barns and with threads goes back to the slabs. */
void recall_own(struct session *session);

/*
 * Everything idle of the cache goes back to the pages: what lies in clients' process barns and with their threads, of the session (if not
 * NULL, its work is held) all that no thread holds, and the node barns and empty slabs.
 */
void recall_shrink(struct arena *arena, struct session *session, struct cache *cache);

/*
 * One tick: what has not changed for RECALL_TICKS of them goes back.  A thread that allocates and frees without ever asking for a sheaf
 * changes the generation of its sheaf's top object; a foreign sheaf is as old as its first entry, though the thread goes on with it; in a cache without owner words nothing would tell, and threads keep theirs.
 */
void recall_decay(struct arena *arena);

/* Who keeps most idle, and how many bytes; NULL: nobody keeps any. */
const struct session *recall_idlest(const struct arena *arena, uint64_t *bytesp);

#endif
