/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Client stash: free objects that slabd has set aside for one client of a cache (design.md, section 4, layer 5; the knob cpu_partial).
 *
 * A refill that must go to the partial list takes more than it needs in the same hold of list_lock: whole free lists, as few slabs as do.  The
 * next refills of that client are copied from here, and take no list_lock.
 * A stashed object is OUT, unowned, in no sheaf, and of one node.  The places lie in slabd's own memory: what a client can write is in none of
 * it.  So a slabd that dies leaves what I3 lets it leave: objects that are OUT, unowned and in no sheaf, until they are audited.
 *
 *   grows and shrinks back   under the node's list_lock
 *   goes into a sheaf        under `lock`, which nobody waits for but in an audit: that holds it too, so it sees no object on its way
 *
 * Work on the session is serial, so neither can meet the other.  The audit takes these locks after the list_locks; they are leaves.
 */
#ifndef SLAB_SERVER_STASH_H
#define SLAB_SERVER_STASH_H

#include <pthread.h>
#include <stdint.h>

struct cache;
struct node;
struct session;

struct stash {
	pthread_mutex_t lock;
	uint32_t size; /* atomic: statistics read it without a lock */
	uint32_t room;
	unsigned node; /* whose objects these are */
	uint32_t *place;
};

/*
 * The session's stash for the node, with room for what the cache's knob says; objects of another node go back first.  NULL: the knob says none,
 * or there is no memory for it.  All calls but stash_of(): the session's work is held.  Takes a list_lock, but not when all is as it was.
 */
struct stash *stash_get(struct session *session, struct cache *cache, struct node *node);

/* What there is; NULL: none. sessions_lock held. */
struct stash *stash_of(const struct session *session, uint32_t cache);

/* Objects in it; any thread. sessions_lock held. */
uint32_t stash_size(const struct session *session, uint32_t cache);

/* Up to want places. stash->lock held until the sheaf that they go into covers them. Returns how many. */
uint32_t stash_take(struct stash *stash, uint32_t *places, uint32_t want);

/* Fills it from the partial list of its node, whose list_lock is held, up to the knob, by at most max, and from no more slabs than the kernel would. Returns by how many. */
uint32_t stash_restock(struct stash *stash, struct session *session, struct node *node, uint64_t max);

/* What is above max goes back to the slabs. Takes a list_lock. */
void stash_trim(struct session *session, struct cache *cache, uint32_t max);

/* The cache's objects have all gone back, or the session ends. sessions_lock held for writing, or nobody else knows the session. */
void stash_forget(struct session *session, uint32_t cache);

#endif
