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

#include "server/census.h"
#include "server/repair.h"
#include "server/session.h"

/* What a question keeps from one portion to the next; zeros at first. */
struct retire_walk {
	struct census_walk count;
	struct repair_walk repair;
	bool is_repaired;
};

enum { RETIRE_E_MORE = 1 }; /* of both: ask again, it goes on from there */

/*
 * Is anything against it, but for what lies idle in sheaves?  own: a session whose having the cache open does not count; NULL: none.  Nothing is
 * changed.  0; -ENOENT; -EBUSY, and a sentence that says how many objects are in use, and who has most of them, or who has it open.  Takes sessions_lock.
 */
int retire_look(struct arena *arena, const char *name, struct session *own, struct retire_walk *walk, char *why, size_t why_size);

/* Ends the cache of that name; as above, but idle objects count too, and lost ones are taken back before.  The own session's work is not held. */
int retire_cache(struct arena *arena, const char *name, struct session *own, struct retire_walk *walk, char *why, size_t why_size);

/* The question is answered, or nobody asks it any more: frees a walk that calloc() made. */
void retire_end(void *walk);

#endif
