/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Orphans: objects that the dead left, and how objects pass from one client to another through slabd's hands.
 *
 * An object is an orphan while its word names nobody who lives: a client slot without a session, or WORD_ORPHAN.  Whoever takes it, or
 * frees it, does so by compare-and-swap from exactly the word that was read (tests/model/README.md, rule 14): of two that were shown it,
 * one gets it. A gift is made in the turn in which slabd knows that the receiver lives, under its session's work: its reaper, which comes
 * after, meets the word (tests/model/give_slot.pml). All calls but orphan_list() and orphan_reclaim(), which take it: the caller holds
 * sessions_lock for reading.
 */
#ifndef SLAB_SERVER_ORPHAN_H
#define SLAB_SERVER_ORPHAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "server/cache.h"
#include "server/census.h"
#include "server/session.h"

/* Who left them. */
struct orphan_owner {
	uint32_t id; /* as of a client; WORD_ORPHAN: clients whose names are forgotten */
	pid_t pid;
	uid_t uid;
	const char *label;
	int64_t age_ns; /* since its end; since the last of them, if forgotten */
};

/* false: the client slot has a session, or is none. */
bool orphan_owner(const struct arena *arena, uint32_t client, int64_t now_ns, struct orphan_owner *owner);

/*
 * The first orphan of the cache at place from or above: *refp; 0: there is none below *nextp, from where the caller may ask again; *nextp
 * 0: none at all.  Looks at so much at a time that others need not wait.
 */
void orphan_next(struct arena *arena, struct cache *cache, uint64_t from, uint64_t *refp, uint64_t *nextp);

/* The session becomes the owner.  -ESTALE: gone, or somebody who lives has it; with a sentence. */
int orphan_adopt(struct session *session, uint64_t ref, char *why, size_t why_size);

/* A client's own object becomes another's, and shared.  -ESRCH: no such client lives. -EACCES: it may only read. -EINVAL: not the giver's.
 * -ENOTSUP: no object words. */
int orphan_give(struct session *giver, uint64_t ref, uint32_t client_id, char *why, size_t why_size);

/* Orphans of one client in one cache. */
struct orphan_group {
	uint32_t cache; /* 0: no more */
	uint32_t client;
	struct orphan_owner owner;
	char cache_name[48];
	char label[32];
	uint64_t n;
	uint64_t bytes;
};

/* A question for the first group after that one, by cache and client; free() ends it. */
struct orphan_walk {
	uint64_t asked_ns;
	uint32_t after_cache;
	uint32_t after_client;
	uint32_t cache; /* that is looked at, or the next one above */
	struct census_walk count;
};

enum { ORPHAN_E_MORE = 1 }; /* of orphan_list(): ask again, it goes on from there */

int orphan_walk_new(struct orphan_walk **walkp, uint64_t asked_ns, uint32_t after_cache, uint32_t after_client);

/* 0 and the group, whose cache is 0 if there are no more; ORPHAN_E_MORE; -ENOMEM. */
int orphan_list(struct arena *arena, struct orphan_walk *walk, struct orphan_group *group);

/* Of one client's. */
struct orphan_share {
	uint64_t left; /* bytes to be freed yet: to the object above */
	uint64_t n;    /* objects freed, and how many bytes that is */
	uint64_t bytes;
	uint32_t cache; /* theirs; 0: of several */
};

struct orphan_filter {
	uint32_t cache;     /* 0: all */
	uint32_t client_id; /* 0: all */
	int64_t min_age_ns;
	struct orphan_share *shares; /* by client's number: only what is left of its share; NULL: all */
};

/* Frees what the filter lets through, from slab number `from` on, a part at a time; returns where to go on, 0: all was seen. */
uint32_t orphan_reclaim(struct arena *arena, const struct orphan_filter *filter, uint32_t from, uint64_t *n_freedp, uint64_t *bytesp);

/*
 * Clients have ended: if the dead have left more than the arena's max-orphans, frees what is too much, of who died first first, and logs whose
 * it was.  What waited longest is the least likely to be adopted; of the dead whose turn it is only as much as must be.  Takes sessions_lock.
 */
void orphan_bound(struct arena *arena);

#endif
