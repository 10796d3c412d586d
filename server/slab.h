/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger: slabd's own truth about every slab and object, in a memfd that no client ever gets.
 *
 * A slab is 2^order pages of one cache on one node, with a run of words; in a cache of runs it is one object on as many pages as that wants,
 * and on no partial list.  Two bits an object say where it is:
 *
 *     FREE  in its slab              n_free = objects with FREE; a slab with n_free > 0 is on its node's partial list, unless it is a run
 *     BARN  in a sheaf of the node barn
 *     OUT   with clients: in one of their sheaves, or held (its word names the holder), or set aside for one (stash.h)
 *
 * FREE and BARN imply an unowned word.  The bits of a slab, its n_free and its links change only under the list_lock of its (cache, node).
 * The bits are indexed by word, 16 objects to a 32-bit unit; no unit is shared by two slabs, since a run has at least 16 words.
 */
#ifndef SLAB_SERVER_SLAB_H
#define SLAB_SERVER_SLAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arena;
struct cache;

enum slab_state { SLAB_FREE = 0, SLAB_BARN = 1, SLAB_OUT = 2 };

/* The order of a run of pages. */
enum { SLAB_RUN = 0xff };

/* Slab descriptor; number 0 is none.  24 bytes, so that small slabs stay within the metadata budget (design.md, section 9). */
struct slab {
	uint32_t first_page; /* in the arena */
	uint32_t first_word;
	uint32_t next; /* partial list; unused descriptors: next unused one */
	union {
		uint32_t prev;    /* partial list */
		uint32_t n_pages; /* of a run */
	};
	uint16_t n_free;
	uint16_t n_objects;
	uint16_t cache; /* 0: the descriptor is unused */
	uint8_t order; /* or SLAB_RUN */
	uint8_t node;
};

static inline uint32_t
slab_pages(const struct slab *slab)
{
	return slab->order == SLAB_RUN ? slab->n_pages : 1u << slab->order;
}

/* An object found by its place. */
struct slab_object {
	uint32_t slab;
	uint32_t word;
};

/*
 * Carves a slab for the cache on the node: pages (first the cache's order, then the smallest that holds an object), words, page map.
 * All objects FREE; on no list.  Takes no list_lock.  0 and *slabp, or -ENOSPC (the arena's limit), -ENOMEM (no memory on this node), -EOVERFLOW (no words).
 */
int slab_new(struct arena *arena, struct cache *cache, unsigned node, uint32_t *slabp);

/* Carves a run of n_pages as one object, FREE.  As slab_new(). */
int slab_new_run(struct arena *arena, struct cache *cache, unsigned node, uint32_t n_pages, uint32_t *slabp);

/*
 * Takes a slab off the page map and out of walkers' sight, under list_lock, all objects FREE and on no list; slab_free() then gives its memory
 * back, without the lock.
 */
void slab_retire(struct arena *arena, uint32_t slab);
void slab_free(struct arena *arena, const struct cache *cache, uint32_t slab);

/*
 * A dead slabd's descriptor, used or not.  _verify claims its pages and words, and changes nothing: 0, or -EBADMSG and what does not agree.  Then _adopt
 * finishes its page map, frees BARN objects and counts it; an unused one may be used.  At last _sweep_map takes off the map what no slab has.
 */
int slab_verify(struct arena *arena, uint32_t number, char *why, size_t why_size);
void slab_adopt(struct arena *arena, uint32_t number);
void slab_sweep_map(struct arena *arena, uint32_t first_page, uint32_t n_pages);

/* The object of the cache that starts at place; false: there is none.  Any place may be asked for.  Stable only under the slab's list_lock. */
bool slab_find(const struct arena *arena, const struct cache *cache, uint32_t place, struct slab_object *op);

/* slab_get() and slab_set(), which every object passes, stand in arena.h. */

/* The place of the slab's i-th object, and how large it is. */
uint32_t slab_place(const struct arena *arena, const struct cache *cache, uint32_t slab, uint32_t i);
uint64_t slab_object_bytes(const struct arena *arena, const struct cache *cache, uint32_t slab);

#endif
