/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a cache that nobody needs.
 *
 * It ends when no other session has it open and none of its objects is in use.  Then its slabs are gone, so no page of the page map names
 * it; every session's slots and lists for it are taken back; its id is given to another cache as late as can be. What a client of the
 * library may still do with a handle of it is the library's business (client/admin.c): slabd believes no client anyway, and a slot with its
 * id is from then on one of whatever cache has that id.
 */
#ifndef SLAB_SERVER_RETIRE_H
#define SLAB_SERVER_RETIRE_H

#include <stdbool.h>
#include <stddef.h>

#include "server/session.h"

/*
 * Is anything against it?  own: a session whose having it open does not count; NULL: none.  is_idle_counted: objects that lie idle in
 * sheaves count too. 0; -EBUSY, and a sentence that says how many objects, and who has most of them, or who has it open.  sessions_lock
 * held for reading.
 */
int retire_check(struct cache *cache, const struct session *own, bool is_idle_counted, char *why, size_t why_size);

/* Ends the cache of that name.  -ENOENT; -EBUSY as above.  Takes sessions_lock. The own session's work is not held. */
int retire_cache(struct arena *arena, const char *name, struct session *own, char *why, size_t why_size);

#endif
