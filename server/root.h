/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Roots: the names that an arena's clients give to references.
 *
 * The table is part of the ledger, bounded, and found by an index sorted by name in the order of bytes.  A root is weak: it is there as long as its reference
 * stands, which is looked at whenever the root is met; nobody tells the table that an object was freed.
 * A watch is somebody who waits for a name.  It is told once, by a byte on its socket, that the name was published, and then looks again.
 */
#ifndef SLAB_SERVER_ROOT_H
#define SLAB_SERVER_ROOT_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/ref.h"

struct arena;

enum {
	ROOT_NAME_BYTES = 256, /* of a name, with its NUL */
	ROOT_MAX = 65536,      /* of an arena */
};

struct root;

struct root_watch {
	struct root_watch *next, **prevp; /* prevp NULL: it has been told, or has been taken away */
	int fd;                           /* its owner's: a socket that does not block */
	char name[ROOT_NAME_BYTES];
};

struct roots {
	pthread_mutex_t lock; /* a leaf; guards everything below */
	struct root *table;  /* ROOT_MAX entries of the ledger; those from *n_seenp on were never used */
	uint32_t *n_seenp;
	uint32_t first_free; /* entries below this are in use */
	struct root **sorted;
	uint32_t n;
	uint32_t room;
	struct root_watch *first_watch;
};

void roots_init(struct roots *roots, struct root *table, uint32_t *n_seenp);
/* Finds the roots that a predecessor left in the table.  -EINVAL: they cannot be. -ENOMEM. */
int roots_adopt(struct roots *roots);
/* No watch is left. */
void roots_deinit(struct roots *roots);

/*
 * Names a reference.  -ESTALE: it stands no more. -EINVAL: its object is not shared. -ENOTSUP: its cache has no owner words. -EEXIST: the
 * name has a reference that stands, and may_replace is false. -ENOSPC: ROOT_MAX. -ENOMEM.  With a sentence in why.
 */
int root_publish(struct arena *arena, const char *name, uint64_t ref, bool may_replace, char *why, size_t why_size);
/* false: there is none. */
bool root_unpublish(struct arena *arena, const char *name);
bool root_lookup(struct arena *arena, const char *name, uint64_t *refp);

/* The first root after `after` (empty: from the start) whose name begins with prefix; name has ROOT_NAME_BYTES.  false: no more. */
bool root_next(struct arena *arena, const char *prefix, const char *after, char *name, uint64_t *refp, struct ref_object *op);

/* Looks, and if there is no such root, waits for it: fd and name are set.  true: it is there, and the watch was left alone. */
bool root_watch(struct arena *arena, struct root_watch *watch, uint64_t *refp);
/* Told or not. */
void root_unwatch(struct arena *arena, struct root_watch *watch);

/* As many as the table has, stale ones too. */
uint32_t root_count(struct arena *arena);

#endif
