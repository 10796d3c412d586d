/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grant and take-back: how sheaves pass between slabd and a client (design.md, I3; tests/model/grant_takeback_crash.pml, hostile.pml).
 *
 *   grant      ledger OUT, THEN entry, THEN size, THEN holder.  (Between the first two an object may lie in the client's stash: stash.h.)
 *   take-back  size and entry read once; entry accepted if its place is an object of the cache and its word is unowned or names the sheaf's own
 *              client; word cleared, THEN entry out of the sheaf, THEN, in the same hold of list_lock, OUT checked and FREE or BARN marked.
 *
 *   unsettled  entry and recorded word read once; claimed for the client (claim.h), which clears the word, then as above.
 *
 * What a wrong client can do with that (I8): an OUT object with an unowned word is taken back from whoever gives it back, so also from one that found its place in
 * the word table while it lay idle in another's sheaf, and then it is lent twice.  Nothing tells: an honest return has unowned words always, since they are
 * cleared before a sheaf is handed over.  To know whom an object was lent to takes two bytes an object, a third of all metadata, and would refuse the frees of
 * what others were lent; bits a slab ("lent to more than one") say nothing in a cache that is shared, which is what caches are here; a sheaf of another client
 * can be looked through only with all of them at each take-back.  So it is bounded, not prevented: nothing of slabd's goes wrong, only caches of that arena, and
 * a place that is given back when it is FREE already is reported.  That report is of the second to give it back, who may be the honest one.
 *
 * So a slabd killed anywhere leaves at worst an object that is OUT, unowned and in no sheaf.
 * All calls: the caller holds sessions_lock for reading and the session's work.
 */
#ifndef SLAB_SERVER_GRANT_H
#define SLAB_SERVER_GRANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/session.h"

struct grant_request {
	uint32_t n_sheaves;
	uint32_t n_empty;   /* instead, if n_sheaves is 0: slots without objects, for threads that free */
	uint32_t capacity;  /* 0: the cache's, sheaves go to the process barn; else one sheaf with so many objects, for the application */
	uint32_t os_node;   /* where the client runs */
	uint32_t n_pages;   /* in a cache of runs, with capacity 1: of the run */
	bool is_ahead;      /* nobody waits for it: nothing that others keep idle is called in for it */
};

struct grant {
	uint32_t n_sheaves;
	uint32_t n_objects;
	uint32_t slot; /* of the last sheaf */
};

/*
 * Lends sheaves: from the node barn, from the client's stash, from partial slabs, then carved, sparingly; before anything is carved every waiting return is looked at,
 * and before ENOMEM everything idle is called in.  -ENOMEM, -EDQUOT (slots, client-max), -EINVAL, with a sentence in why; then nothing was lent.
 */
int grant_refill(struct session *session, struct cache *cache, const struct grant_request *request, struct grant *grant, char *why,
	size_t why_size);

/* Takes what the client has put on its list of returned sheaves. */
void grant_flush(struct session *session, struct cache *cache);

/* Takes every sheaf of the cache that no thread holds: the session closes it. */
void grant_close(struct session *session, struct cache *cache);

/* Takes what is on the client's lists, empty sheaves too.  By the lists: its threads go on, and a sheaf that is on none is on its way to one. */
void grant_shrink(struct session *session, struct cache *cache);

/* Takes what lies in the client's process barn and what it has given back, down to the slabs. */
void grant_call_in(struct session *session, struct cache *cache);

/* Of the client's process barn: what is more than the knobs let it keep, oldest first, and sheaves of another capacity than the cache has now. */
void grant_trim(struct session *session, struct cache *cache);

/* Empties a slot that is in slabd's hands, or whose client is dead; an unsettled one by making its claims (claim.h). to_barn: whole into the node barn, if there is room. */
void grant_take_back(struct session *session, uint32_t slot, bool to_barn);

#endif
