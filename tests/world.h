/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An arena without sockets, for unit tests: caches, nodes and grants in this process, and sessions whose client's side the test plays.
 * After every test the arena's objects are where the counters say: n_objects = n_free + n_barn + n_out.
 */
#ifndef SLAB_TESTS_WORLD_H
#define SLAB_TESTS_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include <CUnit/CUnit.h>

#include "server/audit.h"
#include "server/grant.h"

enum { WORLD_SESSIONS = 3 };

struct world {
	struct arena *arena;
	struct session *sessions[WORLD_SESSIONS]; /* NULL: has ended */
	char why[256];
};

extern const struct session_who world_who;
/* The kernel's nodes 0 and 3, with CPUs 0 and 1; 1 and 2 have no memory, 1 is near 0 and 2 near 3. */
extern const struct topology_source world_two_nodes;

void world_init(struct world *w, uint64_t limit, enum arena_profile profile);
/* NULL: this machine's nodes. */
void world_init_on(struct world *w, uint64_t limit, enum arena_profile profile, const struct topology_source *source);
/* Checks all caches once more. */
void world_deinit(struct world *w);

/* Opened in every session, so that none of its closing takes the idle ones with it. */
struct cache *world_open_cache(struct world *w, const struct cache_options *options);

/* The counters of the nodes against the ledger, and the audit, which finds nothing wrong. */
struct audit world_check(struct world *w, struct cache *k);

/* What a request holds. */
void world_lock(struct session *s);
void world_unlock(struct session *s);

/* As the i-th session. */
int world_refill(struct world *w, int i, struct cache *k, uint32_t n_sheaves, uint32_t capacity, struct grant *grant);
int world_refill_on(struct world *w, int i, struct cache *k, uint32_t n_sheaves, uint32_t capacity, uint32_t os_node, struct grant *grant);
/* Plays the client's thread: takes a full sheaf off the process barn; its slot, -1: none. */
int32_t world_take_full(struct world *w, int i, struct cache *k);
/* And gives one back. */
void world_give_back(struct world *w, int i, struct cache *k, int32_t slot, bool rings);

uint32_t world_slab_of(const struct world *w, uint32_t place);
/* The counters of one node against the ledger; its lock is taken. */
void world_check_node(struct world *w, struct cache *k, unsigned n);
/* Carves a slab onto the list. */
uint32_t world_add_slab(struct world *w, struct cache *k);
uint32_t world_take(struct world *w, struct cache *k, uint32_t *places, uint32_t want);
/* Frees n objects of the slab, the i-th on. */
void world_put(struct world *w, struct cache *k, uint32_t slab, uint32_t i, uint32_t n);
/* The first client takes whatever there is; its slots. */
uint32_t world_take_everything(struct world *w, struct cache *k, int32_t *slots, uint32_t max, uint64_t *n_objectsp);
/* By place: as the ledger says, and as the segments lie. */
unsigned world_node_of(const struct world *w, uint32_t place);
/* Entries of a sheaf that are of the node. */
uint32_t world_count_on(const struct world *w, int i, int32_t slot, unsigned node);

#endif
