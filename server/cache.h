/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cache: objects of one size, by name, for all clients of an arena; its knobs, and a node (node.h) for each NUMA node.
 *
 * Caches are made at their first opening and live until they are destroyed (retire.h), or with the arena.  Whoever uses one holds sessions_lock for
 * reading, or is a session that has it open.  Everything but the counters, the nodes and the six knobs that can be tuned is written once, before
 * the cache is shown.
 */
#ifndef SLAB_SERVER_CACHE_H
#define SLAB_SERVER_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/arena.h"
#include "server/node.h"

struct session;

enum cache_policy { CACHE_POLICY_SLUB = 1, CACHE_POLICY_SLOB };

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
	uint32_t cpu_partial;
	uint32_t policy; /* CACHE_POLICY_ */
	uint32_t barn_empty;
	const struct session *opener; /* named when its knobs are ignored; NULL: nobody */
};

struct cache {
	struct arena *arena;
	uint16_t id;
	char name[48];
	uint32_t flags;
	uint32_t object_size;  /* as asked for */
	uint32_t align;
	uint32_t object_bytes; /* from one object to the next */
	uint32_t head;         /* bytes of a slab before its first object: of debug caches (shm/debug.h) */
	uint32_t recip;
	uint32_t order;
	uint32_t min_order; /* the smallest that holds an object */
	uint32_t n_slab_objects;
	uint32_t capacity;    /* of a sheaf; 1 if is_sheafless */
	bool is_sheafless;    /* nothing is kept idle by clients or in the barn */
	uint32_t barn_full;   /* sheaves a node's barn may hold */
	uint32_t min_partial;
	uint32_t cpu_partial; /* objects set aside for one client (stash.h) */
	uint32_t cpu_partial_slabs; /* what these are taken to lie in */
	enum cache_policy policy;
	uint64_t max_cached;  /* bytes in a client's process barn */
	uint32_t barn_empty;  /* sheaves without objects there */
	bool is_empty_default; /* it goes with max_cached */
	uint64_t n_openers;   /* atomic: sessions that have it open */
	uint32_t is_closed;   /* atomic: the last one left some of it OUT, and nobody has looked yet whether that is lost (sweep.h) */
	uint64_t n_recalled;  /* atomic: sheaves taken from clients' threads */
	uint64_t n_repaired;  /* atomic: lost objects taken back while slabd runs (repair.h) */
	/* What sessions that have ended had counted; atomic. */
	uint64_t n_dead_refills;
	uint64_t n_dead_waits;
	uint64_t n_dead_flushes;
	uint64_t n_dead_foreign_frees;
	/* In a cache without owner words: objects lent to sessions that have ended, less those taken back from them; atomic. */
	int64_t n_dead_drawn;
	/* Of the sessions that have ended, the one that was lent most that did not come back from it; under the arena's ledger_lock. */
	struct {
		uint32_t client;
		pid_t pid;
		uid_t uid;
		char label[32];
		int64_t n;
	} missing;
	unsigned n_nodes;
	struct node nodes[];
};

/*
 * Finds or makes the cache.  0 and *cachep; or -EEXIST, -EINVAL, -ENOTSUP, -ENOENT, -ENOSPC, -ENAMETOOLONG, -ENOMEM with a sentence in why that names the
 * field and its limits.  Any thread.
 */
int cache_open(struct arena *arena, const struct cache_options *options, struct cache **cachep, char *why, size_t why_size);

/* NULL: there is none.  sessions_lock held, which keeps it there. */
struct cache *cache_find(struct arena *arena, const char *name);

/* Objects in a slab of that order. */
uint32_t cache_objects(const struct cache *cache, uint32_t order);

/* The letters of a value of the setting debug, "FZPU" or "FZ,name,other*", as LAYOUT_CACHE_ flags; -EINVAL: none such. */
int cache_parse_debug(const char *text);

enum {
	CACHE_TUNE_CAPACITY = 1,
	CACHE_TUNE_BARN_FULL = 2,
	CACHE_TUNE_MIN_PARTIAL = 4,
	CACHE_TUNE_MAX_CACHED = 8,
	CACHE_TUNE_CPU_PARTIAL = 16,
	CACHE_TUNE_BARN_EMPTY = 32,
	CACHE_TUNE_ALL = 63,
};

/* New knobs: those in set.  Values as in cache_options. */
struct cache_tuning {
	uint32_t set; /* CACHE_TUNE_ */
	uint32_t sheaf_capacity;
	uint32_t barn_full;
	uint32_t min_partial;
	uint64_t max_cached;
	uint32_t cpu_partial;
	uint32_t barn_empty;
};

const char *cache_policy_name(enum cache_policy policy);

/*
 * Changes knobs of a cache in use.  Sheaves of the old capacity go on until they come back, and are then no longer whole for the barn (grant.c).
 * 0, or -EINVAL with a sentence and nothing changed.  sessions_lock held for writing, so that nobody is in the midst of a grant by the old ones.
 */
int cache_tune(struct cache *cache, const struct cache_tuning *tuning, char *why, size_t why_size);

/* Ends a cache that has no slab and that nobody has open; its id may be used again.  sessions_lock held for writing. */
void cache_remove(struct cache *cache);

/* Of n_allocated objects, those that sessions had not given back when they ended: at most, for others may have freed some. 0 where words say more. */
uint64_t cache_left(struct cache *cache, uint64_t n_allocated);

/* Objects that are OUT. Takes list_locks. */
uint64_t cache_count_out(struct cache *cache);

/* The cache of that id, or none, as the ledger of a dead slabd has it.  0, or a negative errno and a sentence. */
int cache_adopt(struct arena *arena, uint32_t id, char *why, size_t why_size);

/* With the arena. */
void cache_free(struct cache *cache);

#endif
