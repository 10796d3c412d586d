/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cache: objects of one size, by name, for all clients of an arena; its knobs, and a node (node.h) for each NUMA node.
 *
 * Caches are made at their first opening and live as long as the arena.  Everything but the counters and the nodes is written once, before
 * the cache is shown.
 */
#ifndef SLAB_SERVER_CACHE_H
#define SLAB_SERVER_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/arena.h"
#include "server/node.h"

/* As asked for; 0 means the profile's default (client/slabclient.h). */
struct cache_options {
	const char *name;
	uint64_t size;
	uint64_t align;
	uint32_t flags;
	uint32_t sheaf_capacity;
	uint32_t sheaf_round_up;
	uint32_t barn_full;
	uint32_t min_partial;
	uint32_t min_order;
	uint32_t max_order;
	uint32_t min_objects;
	uint64_t max_cached;
};

struct cache {
	struct arena *arena;
	uint16_t id;
	char name[48];
	uint32_t flags;
	uint32_t object_size;  /* as asked for */
	uint32_t align;
	uint32_t object_bytes; /* from one object to the next */
	uint32_t recip;
	uint32_t order;
	uint32_t min_order; /* the smallest that holds an object */
	uint32_t n_slab_objects;
	uint32_t capacity;    /* of a sheaf; 1 if is_sheafless */
	bool is_sheafless;    /* nothing is kept idle by clients or in the barn */
	uint32_t barn_full;   /* sheaves a node's barn may hold */
	uint32_t min_partial;
	uint64_t max_cached;  /* bytes in a client's process barn */
	uint64_t n_openers;   /* atomic: sessions that have it open */
	/* What sessions that have ended had counted; atomic. */
	uint64_t n_dead_refills;
	uint64_t n_dead_flushes;
	uint64_t n_dead_foreign_frees;
	unsigned n_nodes;
	struct node nodes[];
};

/*
 * Finds or makes the cache.  0 and *cachep; or -EEXIST, -EINVAL, -ENOENT, -ENOSPC, -ENAMETOOLONG, -ENOMEM with a sentence in why that names the
 * field and its limits.  Any thread.
 */
int cache_open(struct arena *arena, const struct cache_options *options, struct cache **cachep, char *why, size_t why_size);

/* With the arena. */
void cache_free(struct cache *cache);

#endif
