/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a cache has on one NUMA node: the partial list and the node barn, under one instrumented list_lock.
 *
 *   n_objects = n_free + n_barn + n_out          (n_out is not stored)
 *   a slab, unless it is a run, is on the partial list iff its n_free > 0;  n_partial counts them
 *
 * The audit holds this lock too, so that a grant or a take-back is never seen half done (I7).
 */
#ifndef SLAB_SERVER_NODE_H
#define SLAB_SERVER_NODE_H

#include <pthread.h>
#include <stdint.h>

struct arena;
struct cache;

/* Times of hold are taken on one acquisition in NODE_LOCK_SAMPLE and multiplied. */
enum { NODE_LOCK_SAMPLE = 16 };

struct list_lock {
	pthread_mutex_t mutex;
	uint64_t n_acquired; /* all under the mutex itself */
	uint64_t n_contended;
	uint64_t wait_ns;
	uint64_t hold_ns;
	uint64_t held_since; /* 0: this hold is not timed */
};

/* 64 sheaves of the default capacity for objects of 256 bytes, 28: 16 KiB. */
enum { NODE_MAX_SPARES = 64 };

/* A sheaf in slabd's hands, whole: its objects are BARN. */
struct node_sheaf {
	struct node_sheaf *next;
	uint32_t size;
	uint32_t capacity;
	/* By its word an object is marked without being looked for: the slab of what is BARN stays. */
	struct node_place {
		uint32_t place;
		uint32_t word;
	} at[];
};

struct node {
	struct list_lock lock;
	struct cache *cache;
	unsigned index;
	/* Partial list, by slab number; 0: none. Under the policy slob in order of place. */
	uint32_t first_partial;
	uint32_t last_partial;
	uint64_t n_partial;
	uint64_t n_slabs;
	uint64_t n_pages;
	uint64_t n_objects; /* atomic: a grant reads it without the lock */
	uint64_t n_free;
	/* Node barn: oldest first, since what changes process is cold; bounded in sheaves or bytes (cache.h). */
	struct node_sheaf *first_full;
	struct node_sheaf **last_full;
	uint32_t n_full; /* atomic: a grant looks before it takes the lock */
	uint64_t n_barn;
	/* Those that the barn has done with, for the next: sheaves come and go by the dozen, under the lock. At most NODE_MAX_SPARES. */
	struct node_sheaf *first_spare;
	uint32_t n_spares;
	/* For show. */
	uint64_t n_carved;
	uint64_t n_slabs_touched; /* that objects were taken from or given back to; twice where another came between */
	uint32_t touched;         /* the last of them */
	uint64_t n_discarded;
	uint64_t n_order_fallback;
	uint64_t n_sheaves_granted; /* atomic: a grant from a stash counts here too */
	uint64_t n_sheaves_taken;
};

/* Slabs that left the map under the lock and give their memory back after it. */
struct node_discard {
	struct cache *cache;
	uint32_t first; /* linked by next */
};

void node_init(struct node *node, struct cache *cache, unsigned index);
void node_deinit(struct node *node);
void node_lock(struct node *node);
void node_unlock(struct node *node);

/* Puts a fresh slab at the head of the list; one that a free made partial goes to the tail; under slob both where they lie. Lock held. */
void node_add_slab(struct arena *arena, struct node *node, uint32_t slab);

/* Counts a fresh run, which is on no list: OUT from here on. Lock held. */
void node_add_run(struct arena *arena, struct node *node, uint32_t slab);

/* A slab, or run, of a dead slabd's, whose n_free is right: counted, and on the list if it has free objects. */
void node_adopt_slab(struct arena *arena, struct node *node, uint32_t slab);

/* Takes up to want objects off the first partial slab, lowest first: marks them OUT, then writes their places. Lock held. Returns how many. */
uint32_t node_take_slab(struct arena *arena, struct node *node, uint32_t *places, uint32_t want);

/* The same off as few partial slabs as possible. */
uint32_t node_take_free(struct arena *arena, struct node *node, uint32_t *places, uint32_t want);

/* An object of the node goes back to its slab: FREE. An empty slab is put on the discard list when n_partial >= min_partial, a run always. Lock held. */
void node_put_free(struct arena *arena, struct node *node, uint32_t slab, uint32_t word, struct node_discard *discard);

/* Frees the memory of discarded slabs. No list_lock held. */
void node_discard(struct arena *arena, struct node_discard *discard);

/* An empty sheaf of the cache's capacity; NULL: no memory. Lock held. */
struct node_sheaf *node_sheaf_new(struct node *node);
/* Lock held. */
void node_sheaf_free(struct node *node, struct node_sheaf *sheaf);

/* The oldest sheaf of the barn, its objects still BARN; NULL: none. It is the caller's, who frees it. Lock held. */
struct node_sheaf *node_barn_get(struct node *node);
/* Lock held. */
void node_barn_put(struct node *node, struct node_sheaf *sheaf);

/* Empties the barn into the slabs, down to max_full sheaves, and discards empty slabs, down to min_partial on the list. Takes the lock. */
void node_trim_to(struct arena *arena, struct node *node, uint32_t max_full, uint32_t min_partial);
/* Down to nothing, whatever the cache's knobs say. */
void node_trim(struct arena *arena, struct node *node);

#endif
