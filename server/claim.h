/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims that slabd makes for a client: of what lies in a foreign sheaf (shm/sheaf.h) that it took from a living one, or that a dead one
 * left (design.md, I1b; tests/model/foreign_sheaf.pml).
 *
 * Two words of an entry's object count.  The recorded one: claimed now, by compare-and-swap straight to unowned, as the entry goes out of
 * its sheaf in the same hold of the lock.  And, of a dead client whose ordinary sheaves are drained, one that names it, CLOSING, in the
 * same life: it made the claim itself.  Of a living one that is another thread's doing, which goes on.  Every other word means that the
 * claim is lost, an unowned one too: who cleared it has put the object elsewhere.
 *
 * All calls: the caller holds the session's work, or only looks.
 */
#ifndef SLAB_SERVER_CLAIM_H
#define SLAB_SERVER_CLAIM_H

#include <stdbool.h>
#include <stdint.h>

#include "server/session.h"

/* Is it a foreign sheaf whose claims are not made yet?  So the client says. */
bool claim_is_unsettled(const struct session *session, uint32_t slot);

/* The record of an unsettled sheaf with so many entries; NULL: what the client says of it makes no sense. */
const struct sheaf *claim_record(const struct session *session, const struct cache *cache, uint32_t slot, uint32_t size);

/* Claims an object, of which the client recorded that word; its word is clear then.  false: the claim is lost. */
bool claim_make(struct session *session, const struct cache *cache, uint32_t *word, uint32_t recorded);

/* A lost claim is a double free: counted and reported, of a client that lives. */
void claim_lost(struct session *session, const struct cache *cache);

#endif
