/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adoption: an arena goes on where a slabd was killed (design.md, I6; ledger.h has the order of its changes).
 *
 *   the dead one's death is proven (store_claim()), THEN everything is verified, and nothing changed
 *   THEN what was half done is undone or done: units, slabs, page map; allocators, lists and counts are made anew
 *   THEN sheaves in slabd's hands are emptied, revocations withdrawn, and what is OUT, unowned and in no sheaf is taken back
 *   THEN the dead are reaped, and the living are waited for (conn.h)
 *
 * All of it may be begun again if it is killed too.  Clients go on meanwhile with what they have.
 */
#ifndef SLAB_SERVER_ADOPT_H
#define SLAB_SERVER_ADOPT_H

#include <stddef.h>

#include "server/arena.h"

/*
 * The arena that was left under that number, verified, and nothing of it changed.  0, *arenap, which is NULL if its ledger was never kept: nobody has it,
 * and its descriptors are dropped; or -EBADMSG, -ENOMEM and so on with a sentence that names the check that failed: all is left in the store as it was.
 */
int adopt_arena(struct arena **arenap, struct store *store, unsigned number, char *why, size_t why_size);

/* It is this slabd's then; it was begun at start_ns (for the log).  0, or a negative errno: there is no memory, and another slabd may begin again. */
int adopt_carry_out(struct arena *arena, struct store *store, unsigned number, uint64_t start_ns);

/* It stays in the store as it is; NULL is ignored. */
void adopt_leave(struct arena *arena);

/* Descriptors of a new arena into the store, for the next slabd, before anybody attaches.  0, or a negative errno. */
int adopt_keep_arena(struct arena *arena, struct store *store, unsigned number);

/* A session of an adopted arena, and the pidfd of its process, which is the caller's then; NULL: no more are left. */
struct session *adopt_next_session(struct arena *arena, int *pidfdp);

#endif
