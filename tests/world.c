/* SPDX-License-Identifier: Apache-2.0 */
/* See world.h. */
#include "tests/world.h"

#include <stdio.h>

#include "server/node.h"
#include "shm/barn.h"

enum { ME = LAYOUT_HOLDER_THREAD };

const struct session_who world_who = {.label = "test"};

void
world_init_on(struct world *w, uint64_t limit, enum arena_profile profile, const struct topology_source *source)
{
	const struct arena_options options = {
		.name = "default", .limit_bytes = limit, .page_kind = LADDER_4K, .profile = profile, .source = source};

	*w = (struct world){0};
	CU_ASSERT_EQUAL_FATAL(arena_new(&w->arena, &options, w->why, sizeof w->why), 0);
	for (int i = 0; i < WORLD_SESSIONS; i++)
		CU_ASSERT_EQUAL_FATAL(session_new(&w->sessions[i], w->arena, &world_who, w->why, sizeof w->why), 0);
}

void
world_init(struct world *w, uint64_t limit, enum arena_profile profile)
{
	world_init_on(w, limit, profile, NULL);
}

/* What a node's counters should be, by walking the ledger. */
void
world_check_node(struct world *w, struct cache *k, unsigned n)
{
	const struct node *node = &k->nodes[n];
	uint64_t n_slabs = 0, n_partial = 0, n_objects = 0, n_free = 0, n_barn = 0, n_full = 0, n_in_sheaves = 0;

	for (uint32_t number = 1; number <= w->arena->n_slabs; number++) {
		const struct slab *slab = &w->arena->slabs[number];
		uint32_t n_free_here = 0;

		if (slab->cache != k->id || slab->node != n)
			continue;
		for (uint32_t i = 0; i < slab->n_objects; i++) {
			n_free_here += slab_get(w->arena, slab->first_word + i) == SLAB_FREE;
			n_barn += slab_get(w->arena, slab->first_word + i) == SLAB_BARN;
		}
		CU_ASSERT_EQUAL(slab->n_free, n_free_here);
		n_slabs++;
		n_partial += n_free_here > 0;
		n_objects += slab->n_objects;
		n_free += n_free_here;
	}
	for (const struct node_sheaf *sheaf = node->first_full; sheaf; sheaf = sheaf->next) {
		n_full++;
		n_in_sheaves += sheaf->size;
	}
	CU_ASSERT_EQUAL(node->n_slabs, n_slabs);
	CU_ASSERT_EQUAL(node->n_partial, n_partial);
	CU_ASSERT_EQUAL(node->n_objects, n_objects);
	CU_ASSERT_EQUAL(node->n_free, n_free);
	CU_ASSERT_EQUAL(node->n_barn, n_barn);
	CU_ASSERT_EQUAL(node->n_barn, n_in_sheaves);
	CU_ASSERT_EQUAL(node->n_full, n_full);
}

/* The counters of the nodes against the ledger. */
struct audit
world_check(struct world *w, struct cache *k)
{
	uint64_t n_objects = 0, n_free = 0, n_barn = 0;
	struct audit audit;

	for (unsigned n = 0; n < k->n_nodes; n++) {
		world_check_node(w, k, n);
		n_objects += k->nodes[n].n_objects;
		n_free += k->nodes[n].n_free;
		n_barn += k->nodes[n].n_barn;
	}
	CU_ASSERT_EQUAL(audit_run(w->arena, k->id, &audit), 0);
	CU_ASSERT_EQUAL(audit.n_objects, audit.n_free + audit.n_barn + audit.n_out);
	CU_ASSERT_EQUAL(audit.n_objects, n_objects);
	CU_ASSERT_EQUAL(audit.n_free, n_free);
	CU_ASSERT_EQUAL(audit.n_barn, n_barn);
	CU_ASSERT_EQUAL(audit.n_lost, 0);
	CU_ASSERT_EQUAL(audit.n_doubled, 0);
	CU_ASSERT_EQUAL(audit.n_undecided, 0);
	return audit;
}

void
world_deinit(struct world *w)
{
	for (unsigned id = 1; id <= w->arena->n_caches; id++)
		world_check(w, w->arena->caches[id]);
	for (int i = 0; i < WORLD_SESSIONS; i++)
		if (w->sessions[i])
			session_end(w->sessions[i], false);
	arena_free(w->arena);
}

/* Opened in every session, so that none of its closing takes the idle ones with it. */
struct cache *
world_open_cache(struct world *w, const struct cache_options *options)
{
	struct cache *k = NULL;
	int r = cache_open(w->arena, options, &k, w->why, sizeof w->why);

	if (r < 0)
		printf(" %s ", w->why);
	CU_ASSERT_EQUAL_FATAL(r, 0);
	for (int i = 0; i < WORLD_SESSIONS; i++)
		session_set_open(w->sessions[i], k, true);
	return k;
}

void
world_lock(struct session *s)
{
	pthread_rwlock_rdlock(&s->arena->sessions_lock);
	pthread_mutex_lock(&s->work);
}

void
world_unlock(struct session *s)
{
	pthread_mutex_unlock(&s->work);
	pthread_rwlock_unlock(&s->arena->sessions_lock);
}

int
world_refill_on(struct world *w, int i, struct cache *k, uint32_t n_sheaves, uint32_t capacity, uint32_t os_node, struct grant *grant)
{
	const struct grant_request request = {.n_sheaves = n_sheaves, .capacity = capacity, .os_node = os_node};
	int r;

	world_lock(w->sessions[i]);
	r = grant_refill(w->sessions[i], k, &request, grant, w->why, sizeof w->why);
	world_unlock(w->sessions[i]);
	return r;
}

int
world_refill(struct world *w, int i, struct cache *k, uint32_t n_sheaves, uint32_t capacity, struct grant *grant)
{
	return world_refill_on(w, i, k, n_sheaves, capacity, 0, grant);
}

/* Plays the client's thread: takes a full sheaf off the process barn; its slot, -1: none. */
int32_t
world_take_full(struct world *w, int i, struct cache *k)
{
	struct layout_slot *slots = session_slots(w->sessions[i]);
	int32_t slot = barn_pop(&session_cache(w->sessions[i], k->id)->full, slots, LAYOUT_MAX_SLOTS);

	if (slot >= 0)
		CU_ASSERT(barn_take(&slots[slot], LAYOUT_HOLDER_BARN, ME));
	return slot;
}

/* And gives one back. */
void
world_give_back(struct world *w, int i, struct cache *k, int32_t slot, bool rings)
{
	struct layout_slot *slots = session_slots(w->sessions[i]);

	barn_hand(&slots[slot], LAYOUT_HOLDER_RETURNED);
	barn_push(&session_cache(w->sessions[i], k->id)->returned, slots, (uint32_t)slot);
	if (!rings)
		return;
	world_lock(w->sessions[i]);
	grant_flush(w->sessions[i], k);
	world_unlock(w->sessions[i]);
}

uint32_t
world_slab_of(const struct world *w, uint32_t place)
{
	return w->arena->page_map[place >> LAYOUT_PLACE_PAGE_SHIFT].slab;
}

/* Two nodes: the kernel's 0 and 3, with CPUs 0 and 1; 1 and 2 have no memory, 1 is near 0 and 2 near 3. */
static bool
two_have_memory(uint32_t os_node)
{
	return os_node == 0 || os_node == 3;
}

static int
two_distance(uint32_t from, uint32_t to)
{
	return 10 + 10 * (int)(from < to ? to - from : from - to);
}

static int
two_node_of_cpu(uint32_t cpu)
{
	return cpu ? 3 : 0;
}

const struct topology_source world_two_nodes = {
	.n_os_nodes = 4, .n_os_cpus = 2, .has_memory = two_have_memory, .distance = two_distance, .node_of_cpu = two_node_of_cpu};

/* Carves a slab onto the list. */
uint32_t
world_add_slab(struct world *w, struct cache *k)
{
	uint32_t slab = 0;

	CU_ASSERT_EQUAL_FATAL(slab_new(w->arena, k, 0, &slab), 0);
	node_lock(&k->nodes[0]);
	node_add_slab(w->arena, &k->nodes[0], slab);
	node_unlock(&k->nodes[0]);
	return slab;
}

uint32_t
world_take(struct world *w, struct cache *k, uint32_t *places, uint32_t want)
{
	uint32_t n;

	node_lock(&k->nodes[0]);
	n = node_take_free(w->arena, &k->nodes[0], places, want);
	node_unlock(&k->nodes[0]);
	return n;
}

/* Frees n objects of the slab, the i-th on. */
void
world_put(struct world *w, struct cache *k, uint32_t slab, uint32_t i, uint32_t n)
{
	struct node_discard discard = {0};
	uint32_t first = w->arena->slabs[slab].first_word;

	node_lock(&k->nodes[0]);
	for (uint32_t j = i; j < i + n; j++)
		node_put_free(w->arena, &k->nodes[0], slab, first + j, &discard);
	node_unlock(&k->nodes[0]);
	node_discard(w->arena, &discard);
}

/* The first client takes whatever there is; its slots. */
uint32_t
world_take_everything(struct world *w, struct cache *k, int32_t *slots, uint32_t max, uint64_t *n_objectsp)
{
	struct grant grant;
	uint32_t n = 0;

	*n_objectsp = 0;
	while (n < max && world_refill(w, 0, k, 16, 0, &grant) == 0) {
		*n_objectsp += grant.n_objects;
		while (n < max && (slots[n] = world_take_full(w, 0, k)) >= 0)
			n++;
	}
	CU_ASSERT(n < max);
	CU_ASSERT_PTR_NOT_NULL(strstr(w->why, "--arena-size"));
	return n;
}

/* By place: as the ledger says, and as the segments lie. */
unsigned
world_node_of(const struct world *w, uint32_t place)
{
	uint32_t page = place >> LAYOUT_PLACE_PAGE_SHIFT;
	unsigned node = w->arena->slabs[world_slab_of(w, place)].node, i = 0;

	while (i < w->arena->n_segments && page - w->arena->segments[i].first_page >= w->arena->segments[i].n_pages)
		i++;
	CU_ASSERT_FATAL(i < w->arena->n_segments);
	CU_ASSERT_EQUAL(w->arena->segments[i].node, node);
	return node;
}

/* Entries of a sheaf that are of the node. */
uint32_t
world_count_on(const struct world *w, int i, int32_t slot, unsigned node)
{
	const struct sheaf *sheaf = session_sheaf(w->sessions[i], (uint32_t)slot);
	uint32_t n = 0;

	for (uint32_t j = 0; j < sheaf->size; j++)
		n += world_node_of(w, sheaf->entry[j]) == node;
	return n;
}
