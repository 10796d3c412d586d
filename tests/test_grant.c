/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Caches, nodes and grants without sockets: an arena in this process, sessions whose client's side the test plays.
 * After every test the arena's objects are where the counters say: n_objects = n_free + n_barn + n_out.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <CUnit/CUnit.h>

#include "server/audit.h"
#include "server/geometry.h"
#include "server/grant.h"
#include "server/reaper.h"
#include "server/stash.h"
#include "shm/barn.h"

CU_pSuite test_grant_suite(void);

enum { ME = LAYOUT_HOLDER_THREAD, MAX_SESSIONS = 3 };

struct world {
	struct arena *arena;
	struct session *sessions[MAX_SESSIONS];
	char why[256];
};

static const struct session_who who = {.label = "test"};

static void
world_init_on(struct world *w, uint64_t limit, enum arena_profile profile, const struct topology_source *source)
{
	const struct arena_options options = {
		.name = "default", .limit_bytes = limit, .page_kind = LADDER_4K, .profile = profile, .source = source};

	*w = (struct world){0};
	CU_ASSERT_EQUAL_FATAL(arena_new(&w->arena, &options, w->why, sizeof w->why), 0);
	for (int i = 0; i < MAX_SESSIONS; i++)
		CU_ASSERT_EQUAL_FATAL(session_new(&w->sessions[i], w->arena, &who, w->why, sizeof w->why), 0);
}

static void
world_init(struct world *w, uint64_t limit, enum arena_profile profile)
{
	world_init_on(w, limit, profile, NULL);
}

/* What a node's counters should be, by walking the ledger. */
static void
check_node(struct world *w, struct cache *k, unsigned n)
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
static struct audit
check_counters(struct world *w, struct cache *k)
{
	uint64_t n_objects = 0, n_free = 0, n_barn = 0;
	struct audit audit;

	for (unsigned n = 0; n < k->n_nodes; n++) {
		check_node(w, k, n);
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

static void
world_deinit(struct world *w)
{
	for (unsigned id = 1; id <= w->arena->n_caches; id++)
		check_counters(w, w->arena->caches[id]);
	for (int i = 0; i < MAX_SESSIONS; i++)
		if (w->sessions[i])
			session_end(w->sessions[i], false);
	arena_free(w->arena);
}

/* Opened in every session, so that none of its closing takes the idle ones with it. */
static struct cache *
open_cache(struct world *w, const struct cache_options *options)
{
	struct cache *k = NULL;
	int r = cache_open(w->arena, options, &k, w->why, sizeof w->why);

	if (r < 0)
		printf(" %s ", w->why);
	CU_ASSERT_EQUAL_FATAL(r, 0);
	for (int i = 0; i < MAX_SESSIONS; i++)
		session_set_open(w->sessions[i], k, true);
	return k;
}

static void
lock(struct session *s)
{
	pthread_rwlock_rdlock(&s->arena->sessions_lock);
	pthread_mutex_lock(&s->work);
}

static void
unlock(struct session *s)
{
	pthread_mutex_unlock(&s->work);
	pthread_rwlock_unlock(&s->arena->sessions_lock);
}

static int
refill_on(struct world *w, int i, struct cache *k, uint32_t n_sheaves, uint32_t capacity, uint32_t os_node, struct grant *grant)
{
	const struct grant_request request = {.n_sheaves = n_sheaves, .capacity = capacity, .os_node = os_node};
	int r;

	lock(w->sessions[i]);
	r = grant_refill(w->sessions[i], k, &request, grant, w->why, sizeof w->why);
	unlock(w->sessions[i]);
	return r;
}

static int
refill(struct world *w, int i, struct cache *k, uint32_t n_sheaves, uint32_t capacity, struct grant *grant)
{
	return refill_on(w, i, k, n_sheaves, capacity, 0, grant);
}

/* Plays the client's thread: takes a full sheaf off the process barn; its slot, -1: none. */
static int32_t
take_full(struct world *w, int i, struct cache *k)
{
	struct layout_slot *slots = session_slots(w->sessions[i]);
	int32_t slot = barn_pop(&session_cache(w->sessions[i], k->id)->full, slots, LAYOUT_MAX_SLOTS);

	if (slot >= 0)
		CU_ASSERT(barn_take(&slots[slot], LAYOUT_HOLDER_BARN, ME));
	return slot;
}

/* And gives one back. */
static void
give_back(struct world *w, int i, struct cache *k, int32_t slot, bool rings)
{
	struct layout_slot *slots = session_slots(w->sessions[i]);

	barn_hand(&slots[slot], LAYOUT_HOLDER_RETURNED);
	barn_push(&session_cache(w->sessions[i], k->id)->returned, slots, (uint32_t)slot);
	if (!rings)
		return;
	lock(w->sessions[i]);
	grant_flush(w->sessions[i], k);
	unlock(w->sessions[i]);
}

/* Carves a slab onto the list. */
static uint32_t
add_slab(struct world *w, struct cache *k)
{
	uint32_t slab = 0;

	CU_ASSERT_EQUAL_FATAL(slab_new(w->arena, k, 0, &slab), 0);
	node_lock(&k->nodes[0]);
	node_add_slab(w->arena, &k->nodes[0], slab);
	node_unlock(&k->nodes[0]);
	return slab;
}

static uint32_t
take(struct world *w, struct cache *k, uint32_t *places, uint32_t want)
{
	uint32_t n;

	node_lock(&k->nodes[0]);
	n = node_take_free(w->arena, &k->nodes[0], places, want);
	node_unlock(&k->nodes[0]);
	return n;
}

/* Frees n objects of the slab, the i-th on. */
static void
put(struct world *w, struct cache *k, uint32_t slab, uint32_t i, uint32_t n)
{
	struct node_discard discard = {0};
	uint32_t first = w->arena->slabs[slab].first_word;

	node_lock(&k->nodes[0]);
	for (uint32_t j = i; j < i + n; j++)
		node_put_free(w->arena, &k->nodes[0], slab, first + j, &discard);
	node_unlock(&k->nodes[0]);
	node_discard(w->arena, &discard);
}

static uint32_t
slab_of(const struct world *w, uint32_t place)
{
	return w->arena->page_map[place >> LAYOUT_PLACE_PAGE_SHIFT].slab;
}

/* A refill takes whole free lists of as few slabs as do, from the head; what an allocation left over stays at the head, what frees made
 * partial joins at the tail. */
static void
test_whole_free_lists_in_order(void)
{
	const struct cache_options options = {.name = "k", .size = 256, .max_order = LAYOUT_KNOB_NONE};
	uint32_t slabs[3], places[64], n;
	struct world w;
	struct cache *k;

	world_init(&w, 64 << 20, ARENA_PROFILE_DEFAULT);
	k = open_cache(&w, &options);
	CU_ASSERT_EQUAL_FATAL(k->n_slab_objects, 16);
	for (int i = 0; i < 3; i++)
		slabs[i] = add_slab(&w, k);
	CU_ASSERT_EQUAL(k->nodes[0].first_partial, slabs[2]); /* fresh: at the head */
	CU_ASSERT_EQUAL(k->nodes[0].n_partial, 3);
	CU_ASSERT_EQUAL(take(&w, k, places, 48), 48);
	CU_ASSERT_EQUAL(k->nodes[0].n_partial, 0);
	CU_ASSERT_EQUAL(k->nodes[0].first_partial, 0);
	CU_ASSERT_EQUAL(take(&w, k, places, 1), 0);

	put(&w, k, slabs[1], 3, 5);
	put(&w, k, slabs[0], 0, 7);
	put(&w, k, slabs[2], 10, 1);
	put(&w, k, slabs[1], 9, 1); /* on the list already: keeps its place */
	CU_ASSERT_EQUAL(k->nodes[0].n_partial, 3);
	CU_ASSERT_EQUAL(k->nodes[0].first_partial, slabs[1]);
	CU_ASSERT_EQUAL(k->nodes[0].last_partial, slabs[2]);

	/* Six of the first slab, one of the second, nothing of the third. */
	n = take(&w, k, places, 7);
	CU_ASSERT_EQUAL(n, 7);
	for (uint32_t i = 0; i < 6; i++)
		CU_ASSERT_EQUAL(slab_of(&w, places[i]), slabs[1]);
	for (uint32_t i = 1; i < 6; i++)
		CU_ASSERT(places[i] > places[i - 1]);
	CU_ASSERT_EQUAL(slab_of(&w, places[6]), slabs[0]);
	CU_ASSERT_EQUAL(k->nodes[0].n_partial, 2);
	CU_ASSERT_EQUAL(k->nodes[0].first_partial, slabs[0]);
	CU_ASSERT_EQUAL(w.arena->slabs[slabs[0]].n_free, 6);
	CU_ASSERT_EQUAL(k->nodes[0].n_free, 7);
	/* More than there is. */
	CU_ASSERT_EQUAL(take(&w, k, places, 64), 7);
	CU_ASSERT_EQUAL(k->nodes[0].n_partial, 0);
	/* All are OUT and nowhere, but for the audit that is a loss: back they go. */
	for (int i = 0; i < 3; i++)
		put(&w, k, slabs[i], 0, 16);
	world_deinit(&w);
}

/* An empty slab is discarded when n_partial >= min_partial, itself counted if it is on the list; else kept. */
static void
test_discard_rule(void)
{
	static const uint32_t knobs[] = {LAYOUT_KNOB_NONE, 1, 2, 3};

	for (unsigned i = 0; i < 4; i++) {
		const struct cache_options options = {.name = "k", .size = 256, .max_order = LAYOUT_KNOB_NONE, .min_partial = knobs[i]};
		uint32_t places[64], slabs[4], min_partial = knobs[i] == LAYOUT_KNOB_NONE ? 0 : knobs[i], n_kept = 0;
		struct world w;
		struct cache *k;

		world_init(&w, 64 << 20, ARENA_PROFILE_DEFAULT);
		k = open_cache(&w, &options);
		CU_ASSERT_EQUAL(k->min_partial, min_partial);
		for (int j = 0; j < 4; j++)
			slabs[j] = add_slab(&w, k);
		CU_ASSERT_EQUAL(take(&w, k, places, 64), 64);
		for (int j = 0; j < 4; j++) {
			put(&w, k, slabs[j], 0, 15);
			CU_ASSERT_EQUAL(k->nodes[0].n_partial, n_kept + 1);
			CU_ASSERT_EQUAL(k->nodes[0].n_slabs, 4 - (unsigned)j + n_kept);
			put(&w, k, slabs[j], 15, 1);
			n_kept += n_kept + 1 < min_partial;
			CU_ASSERT_EQUAL(k->nodes[0].n_partial, n_kept);
			CU_ASSERT_EQUAL(k->nodes[0].n_slabs, 3 - (unsigned)j + n_kept);
		}
		CU_ASSERT_EQUAL(k->nodes[0].n_discarded, 4 - n_kept);
		CU_ASSERT_EQUAL(k->nodes[0].n_objects, 16 * n_kept);
		/* A trim leaves none, whatever the knob says. */
		node_trim(w.arena, &k->nodes[0]);
		CU_ASSERT_EQUAL(k->nodes[0].n_slabs, 0);
		CU_ASSERT_EQUAL(w.arena->committed_bytes, 0);
		world_deinit(&w);
	}
}

/* Where no block of the chosen order is left the smallest one that holds an object does; counted. */
static void
test_order_fallback(void)
{
	const struct cache_options options = {.name = "k", .size = 2000, .min_order = 3};
	uint32_t pages[512], n = 0, slab;
	struct world w;
	struct cache *k;

	world_init(&w, 2 << 20, ARENA_PROFILE_DEFAULT);
	k = open_cache(&w, &options);
	CU_ASSERT_EQUAL(k->order, 3);
	while (n < 512 && arena_pages_alloc(w.arena, 0, 0, &pages[n]) == 0)
		n++;
	CU_ASSERT_EQUAL(n, 512);
	CU_ASSERT_EQUAL(slab_new(w.arena, k, 0, &slab), -ENOSPC);
	/* Single pages that are no neighbours. */
	for (uint32_t i = 1; i < 8; i += 2)
		arena_pages_free(w.arena, pages[i], 0);
	for (int i = 0; i < 4; i++) {
		slab = add_slab(&w, k);
		CU_ASSERT_EQUAL(w.arena->slabs[slab].order, 0);
		CU_ASSERT_EQUAL(w.arena->slabs[slab].n_objects, 2);
	}
	CU_ASSERT_EQUAL(slab_new(w.arena, k, 0, &slab), -ENOSPC);
	CU_ASSERT_EQUAL(k->nodes[0].n_order_fallback, 4);
	CU_ASSERT_EQUAL(k->nodes[0].n_pages, 4);
	CU_ASSERT_EQUAL(k->nodes[0].n_objects, 8);
	/* With room again, the chosen order. */
	for (uint32_t i = 16; i < 32; i++)
		arena_pages_free(w.arena, pages[i], 0);
	slab = add_slab(&w, k);
	CU_ASSERT_EQUAL(w.arena->slabs[slab].order, 3);
	CU_ASSERT_EQUAL(k->nodes[0].n_order_fallback, 4);
	world_deinit(&w);
}

static uint32_t
copy_places(struct world *w, int i, int32_t slot, uint32_t *places)
{
	const struct sheaf *sheaf = session_sheaf(w->sessions[i], (uint32_t)slot);

	memcpy(places, sheaf->entry, sheaf->size * sizeof places[0]);
	return sheaf->size;
}

static int
compare_places(const void *a, const void *b)
{
	const uint32_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

/* Sheaves that one client gives back go whole to the next, the oldest first, without a slab's being touched; the barn is bounded. */
static void
test_node_barn_is_fifo_and_bounded(void)
{
	const struct cache_options options = {.name = "k", .size = 64, .barn_full = 3};
	uint32_t places[5][LAYOUT_MAX_SHEAF], got[LAYOUT_MAX_SHEAF];
	struct grant grant;
	int32_t slots[5];
	uint64_t n_free;
	struct world w;
	struct cache *k;

	world_init(&w, 64 << 20, ARENA_PROFILE_DEFAULT);
	k = open_cache(&w, &options);
	for (int i = 0; i < 5; i++) {
		CU_ASSERT_EQUAL(refill(&w, 0, k, 1, 0, &grant), 0);
		slots[i] = take_full(&w, 0, k);
		CU_ASSERT_FATAL(slots[i] >= 0);
		CU_ASSERT_EQUAL(copy_places(&w, 0, slots[i], places[i]), k->capacity);
	}
	for (int i = 0; i < 5; i++)
		give_back(&w, 0, k, slots[i], true);
	CU_ASSERT_EQUAL(k->nodes[0].n_full, 3);
	CU_ASSERT_EQUAL(k->nodes[0].n_barn, 3 * k->capacity);
	CU_ASSERT_EQUAL(k->nodes[0].n_sheaves_taken, 5);
	n_free = k->nodes[0].n_free;
	CU_ASSERT_EQUAL(check_counters(&w, k).n_out, 0);

	for (int i = 0; i < 3; i++) {
		int32_t slot;

		CU_ASSERT_EQUAL(refill(&w, 1, k, 1, 0, &grant), 0);
		CU_ASSERT_EQUAL(grant.n_objects, k->capacity);
		slot = take_full(&w, 1, k);
		CU_ASSERT_EQUAL(copy_places(&w, 1, slot, got), k->capacity);
		qsort(places[i], k->capacity, sizeof got[0], compare_places);
		qsort(got, k->capacity, sizeof got[0], compare_places);
		CU_ASSERT_EQUAL(memcmp(places[i], got, k->capacity * sizeof got[0]), 0);
	}
	CU_ASSERT_EQUAL(k->nodes[0].n_free, n_free);
	CU_ASSERT_EQUAL(k->nodes[0].n_full, 0);
	CU_ASSERT_EQUAL(k->nodes[0].n_barn, 0);
	world_deinit(&w);
}

/* A prefilled sheaf of another size than the cache's is not a sheaf for the next client: its slot would be too small. */
static void
test_odd_sheaves_stay_out_of_the_barn(void)
{
	const struct cache_options options = {.name = "k", .size = 64};
	static const uint32_t sizes[] = {1, 10, 61, 500, LAYOUT_MAX_SHEAF};
	struct grant grant;
	struct world w;
	struct cache *k;

	world_init(&w, 64 << 20, ARENA_PROFILE_DEFAULT);
	k = open_cache(&w, &options);
	for (unsigned i = 0; i < 5; i++) {
		CU_ASSERT_EQUAL(refill(&w, 0, k, 1, sizes[i], &grant), 0);
		CU_ASSERT_EQUAL(grant.n_objects, sizes[i]);
		CU_ASSERT(barn_take(&session_slots(w.sessions[0])[grant.slot], LAYOUT_HOLDER_APP, ME));
		give_back(&w, 0, k, (int32_t)grant.slot, true);
		CU_ASSERT_EQUAL(k->nodes[0].n_full, 0);
		CU_ASSERT_EQUAL(k->nodes[0].n_barn, 0);
	}
	for (int i = 0; i < 20; i++) {
		int32_t slot;

		CU_ASSERT_EQUAL(refill(&w, 1, k, 1, 0, &grant), 0);
		slot = take_full(&w, 1, k);
		CU_ASSERT_FATAL(slot >= 0);
		CU_ASSERT(session_sheaf(w.sessions[1], (uint32_t)slot)->size <= k->capacity);
	}
	world_deinit(&w);
}

/* Grants and returns between three clients in random order: no object in two places, none in none, at any time. */
static void
test_hand_over_conserves_objects(void)
{
	const struct cache_options options = {.name = "k", .size = 200, .barn_full = 5};
	const char *text = getenv("SLAB_SEED");
	unsigned seed = text ? (unsigned)strtoul(text, NULL, 0) : 1;
	int32_t held[MAX_SESSIONS][64];
	unsigned n_held[MAX_SESSIONS] = {0};
	struct grant grant;
	struct world w;
	struct cache *k;

	world_init(&w, 64 << 20, ARENA_PROFILE_DEFAULT);
	k = open_cache(&w, &options);
	for (int turn = 0; turn < 3000; turn++) {
		int i = rand_r(&seed) % MAX_SESSIONS;

		if (rand_r(&seed) % 2 && n_held[i] < 64) {
			CU_ASSERT_EQUAL(refill(&w, i, k, 1 + (uint32_t)rand_r(&seed) % 4, 0, &grant), 0);
			while (n_held[i] < 64 && (held[i][n_held[i]] = take_full(&w, i, k)) >= 0)
				n_held[i]++;
		} else if (n_held[i] > 0) {
			struct sheaf *sheaf = session_sheaf(w.sessions[i], (uint32_t)held[i][n_held[i] - 1]);

			/* Some come back part used: what is missing is held, named by its client. */
			for (int j = rand_r(&seed) % 4; j > 0 && sheaf->size > 0; j--) {
				struct slab_object o;

				CU_ASSERT_FATAL(slab_find(w.arena, k, sheaf->entry[sheaf->size - 1], &o));
				CU_ASSERT_EQUAL(word_owner(w.arena->words[o.word]), 0);
				CU_ASSERT_EQUAL(slab_get(w.arena, o.word), SLAB_OUT);
				w.arena->words[o.word] += WORD_GENERATION_ONE + w.sessions[i]->client;
				sheaf->size--;
			}
			give_back(&w, i, k, held[i][--n_held[i]], rand_r(&seed) % 2);
		}
		if (turn % 100 == 0)
			check_counters(&w, k);
	}
	/* Their ends bring everything back but what is kept under their names. */
	for (int i = 0; i < MAX_SESSIONS; i++) {
		reaper_reap(w.sessions[i]);
		w.sessions[i] = NULL;
	}
	CU_ASSERT_EQUAL(check_counters(&w, k).n_out, check_counters(&w, k).n_orphans);
	world_deinit(&w);
}

/* Without sheaves: one object a request, none kept in the barn, each back in its slab at once. */
static void
test_no_sheaves(void)
{
	const struct cache_options options = {.name = "k", .size = 64, .sheaf_capacity = LAYOUT_KNOB_NONE};
	struct grant grant;
	int32_t slots[10];
	struct world w;
	struct cache *k;

	world_init(&w, 64 << 20, ARENA_PROFILE_DEFAULT);
	k = open_cache(&w, &options);
	CU_ASSERT(k->is_sheafless);
	CU_ASSERT_EQUAL(k->barn_full, 0);
	for (int i = 0; i < 10; i++) {
		CU_ASSERT_EQUAL(refill(&w, 0, k, 1, 0, &grant), 0);
		CU_ASSERT_EQUAL(grant.n_objects, 1);
		slots[i] = take_full(&w, 0, k);
		CU_ASSERT_FATAL(slots[i] >= 0);
	}
	CU_ASSERT_EQUAL(check_counters(&w, k).n_out, 10);
	for (int i = 0; i < 10; i++) {
		give_back(&w, 0, k, slots[i], true);
		CU_ASSERT_EQUAL(check_counters(&w, k).n_out, 9 - (unsigned)i);
		CU_ASSERT_EQUAL(k->nodes[0].n_barn, 0);
	}
	world_deinit(&w);
}

/* Knob values by profile: the kernel's own numbers (slub-reference.md 2, 3, 4, 5.1); by default barns bounded in bytes; tiny keeps nothing.
 */
static void
test_profiles(void)
{
	static const struct {
		uint32_t size, capacity, min_partial, tiny_order, cpu_partial;
	} golden[] = {{64, 60, 5, 0, 120}, {128, 60, 5, 0, 120}, {192, 60, 5, 0, 120}, {256, 28, 5, 0, 52}, {512, 28, 5, 1, 52},
		{1024, 12, 5, 1, 24}, {2048, 12, 5, 1, 24}, {4096, 4, 6, 1, 6}, {8192, 4, 6, 1, 6}, {16384, 4, 7, 2, 6}};
	static const enum arena_profile profiles[] = {ARENA_PROFILE_DEFAULT, ARENA_PROFILE_KERNEL, ARENA_PROFILE_TINY};

	for (unsigned p = 0; p < 3; p++) {
		struct world w;

		world_init(&w, 1 << 30, profiles[p]);
		for (unsigned i = 0; i < sizeof golden / sizeof golden[0]; i++) {
			uint32_t size = golden[i].size, sheaf_bytes_held = golden[i].capacity * size;
			char name[16];
			const struct cache_options options = {.name = name, .size = size};
			struct cache *k;

			snprintf(name, sizeof name, "k%u", size);
			k = open_cache(&w, &options);
			CU_ASSERT_EQUAL(k->is_sheafless, profiles[p] == ARENA_PROFILE_TINY);
			CU_ASSERT_EQUAL(k->cpu_partial, profiles[p] == ARENA_PROFILE_KERNEL ? golden[i].cpu_partial : 0);
			CU_ASSERT_EQUAL(k->policy, CACHE_POLICY_SLUB);
			if (profiles[p] == ARENA_PROFILE_TINY) {
				CU_ASSERT_EQUAL(k->order, golden[i].tiny_order);
				CU_ASSERT_EQUAL(k->min_partial, 0);
				CU_ASSERT_EQUAL(k->barn_full, 0);
				continue;
			}
			CU_ASSERT_EQUAL(k->capacity, golden[i].capacity);
			CU_ASSERT_EQUAL(k->min_partial, golden[i].min_partial);
			CU_ASSERT_EQUAL(k->order,
				(uint32_t)geometry_order(size, 0, GEOMETRY_MAX_ORDER, geometry_min_objects(topology_online_cpus())));
			CU_ASSERT_EQUAL(k->barn_full, profiles[p] == ARENA_PROFILE_KERNEL ? 10 : (16u << 20) / sheaf_bytes_held);
		}
		world_deinit(&w);
	}
}

/* Knobs asked for are heeded, "none" is none, and a small arena bounds what may lie idle by its eighth. */
static void
test_knobs(void)
{
	struct cache_options options = {.name = "a",
		.size = 256,
		.sheaf_capacity = 32,
		.barn_full = 7,
		.min_partial = 9,
		.min_order = 2,
		.max_order = 2,
		.max_cached = 12345};
	struct world w;
	struct cache *k;

	world_init(&w, 8 << 20, ARENA_PROFILE_DEFAULT);
	k = open_cache(&w, &options);
	CU_ASSERT_EQUAL(k->capacity, 32); /* maple_node's request, as it is */
	CU_ASSERT_EQUAL(k->barn_full, 7);
	CU_ASSERT_EQUAL(k->min_partial, 9);
	CU_ASSERT_EQUAL(k->order, 2);
	CU_ASSERT_EQUAL(k->n_slab_objects, 64);
	CU_ASSERT_EQUAL(k->max_cached, 12345);
	options = (struct cache_options){.name = "b",
		.size = 256,
		.sheaf_capacity = 32,
		.sheaf_round_up = 1,
		.barn_full = LAYOUT_KNOB_NONE,
		.max_order = LAYOUT_KNOB_NONE};
	k = open_cache(&w, &options);
	CU_ASSERT_EQUAL(k->capacity, 60);
	CU_ASSERT_EQUAL(k->barn_full, 0);
	CU_ASSERT_EQUAL(k->order, 0);
	options = (struct cache_options){.name = "c", .size = 256};
	k = open_cache(&w, &options);
	CU_ASSERT_EQUAL(k->barn_full, (1 << 20) / (28 * 256));
	CU_ASSERT_EQUAL(k->max_cached, 1 << 20);
	world_deinit(&w);
}

/* An opening must match in size, align and flags; align 0 is 8; size 0 takes what is there; the rest is ignored. */
static void
test_match_rules(void)
{
	const struct cache_options made = {.name = "k", .size = 100, .flags = LAYOUT_CACHE_RECLAIM};
	struct cache_options o;
	struct cache *k, *again;
	struct world w;

	world_init(&w, 8 << 20, ARENA_PROFILE_DEFAULT);
	k = open_cache(&w, &made);
	CU_ASSERT_EQUAL(k->object_bytes, 104);
	for (int i = 0; i < 4; i++) {
		static const uint64_t same_aligns[] = {0, 1, 4, 8};

		o = made;
		o.align = same_aligns[i];
		CU_ASSERT_EQUAL(cache_open(w.arena, &o, &again, w.why, sizeof w.why), 0);
		CU_ASSERT_PTR_EQUAL(again, k);
	}
	o = (struct cache_options){.name = "k", .flags = LAYOUT_CACHE_SHARED, .align = 64};
	CU_ASSERT_EQUAL(cache_open(w.arena, &o, &again, w.why, sizeof w.why), 0);
	o = made;
	o.sheaf_capacity = 500;
	o.max_cached = 1;
	o.cpu_partial = 30;
	CU_ASSERT_EQUAL(cache_open(w.arena, &o, &again, w.why, sizeof w.why), 0);
	CU_ASSERT_EQUAL(k->capacity, 60);
	CU_ASSERT_EQUAL(k->cpu_partial, 0);
	o = made;
	o.policy = CACHE_POLICY_SLOB;
	CU_ASSERT_EQUAL(cache_open(w.arena, &o, &again, w.why, sizeof w.why), 0);
	CU_ASSERT_EQUAL(k->policy, CACHE_POLICY_SLUB);
	for (int i = 0; i < 3; i++) {
		o = made;
		o.size = i == 0 ? 104 : 100; /* the same room, and yet another size */
		o.align = i == 1 ? 16 : 0;
		o.flags = i == 2 ? 0 : LAYOUT_CACHE_RECLAIM;
		CU_ASSERT_EQUAL(cache_open(w.arena, &o, &again, w.why, sizeof w.why), -EEXIST);
		CU_ASSERT_PTR_NOT_NULL(strstr(w.why, "is there with size 100, align 8, flags 0x1; asked for size 1"));
	}
	o = (struct cache_options){.name = "other"};
	CU_ASSERT_EQUAL(cache_open(w.arena, &o, &again, w.why, sizeof w.why), -ENOENT);
	world_deinit(&w);
}

/* 511 caches of an arena. */
static void
test_cache_limit(void)
{
	struct cache *k;
	struct world w;
	char name[16];

	world_init(&w, 8 << 20, ARENA_PROFILE_DEFAULT);
	for (int i = 0; i < LAYOUT_MAX_CACHES; i++) {
		struct cache_options o = {.name = name, .size = 64};

		snprintf(name, sizeof name, "k%d", i);
		CU_ASSERT_EQUAL(cache_open(w.arena, &o, &k, w.why, sizeof w.why), i < LAYOUT_MAX_CACHES - 1 ? 0 : -ENOSPC);
	}
	CU_ASSERT_PTR_NOT_NULL(strstr(w.why, "511"));
	world_deinit(&w);
}

/* The first client takes whatever there is; its slots. */
static uint32_t
take_everything(struct world *w, struct cache *k, int32_t *slots, uint32_t max, uint64_t *n_objectsp)
{
	struct grant grant;
	uint32_t n = 0;

	*n_objectsp = 0;
	while (n < max && refill(w, 0, k, 16, 0, &grant) == 0) {
		*n_objectsp += grant.n_objects;
		while (n < max && (slots[n] = take_full(w, 0, k)) >= 0)
			n++;
	}
	CU_ASSERT(n < max);
	CU_ASSERT_PTR_NOT_NULL(strstr(w->why, "--arena-size"));
	return n;
}

/* Its threads put their sheaves into its process barn. */
static void
make_idle(struct world *w, struct cache *k, const int32_t *taken, uint32_t n)
{
	struct layout_slot *slots = session_slots(w->sessions[0]);

	for (uint32_t i = 0; i < n; i++) {
		barn_hand(&slots[taken[i]], LAYOUT_HOLDER_BARN);
		barn_push(&session_cache(w->sessions[0], k->id)->full, slots, (uint32_t)taken[i]);
	}
}

enum { MANY = 1024 };

/* A full arena: what others keep idle where slabd can reach it is called in; what threads hold is not; then ENOMEM in a sentence. */
static void
test_full_arena_and_relief(void)
{
	const struct cache_options options = {.name = "k", .size = 4096}, other = {.name = "other", .size = 1000};
	struct cache *k, *k2;
	int32_t taken[MANY];
	struct grant grant;
	uint64_t n_objects;
	struct world w;
	uint32_t n;

	world_init(&w, 2 << 20, ARENA_PROFILE_DEFAULT);
	k = open_cache(&w, &options);
	k2 = open_cache(&w, &other);
	n = take_everything(&w, k, taken, MANY, &n_objects);
	CU_ASSERT_EQUAL(n_objects, 512);
	CU_ASSERT_EQUAL(w.arena->committed_bytes, 2 << 20);
	/* Threads hold it all. */
	CU_ASSERT_EQUAL(refill(&w, 1, k, 1, 0, &grant), -ENOMEM);
	CU_ASSERT_EQUAL(refill(&w, 1, k2, 1, 0, &grant), -ENOMEM);
	CU_ASSERT_PTR_NOT_NULL(strstr(w.why, "--arena-size"));
	CU_ASSERT_EQUAL(check_counters(&w, k).n_in_sheaves, 512);
	/* It is idle: the second client gets some, of the same cache and of another. */
	make_idle(&w, k, taken, n);
	CU_ASSERT_EQUAL(refill(&w, 1, k2, 1, 0, &grant), 0);
	CU_ASSERT_EQUAL(grant.n_objects, k2->capacity);
	CU_ASSERT_EQUAL(take_full(&w, 0, k), -1);
	CU_ASSERT_EQUAL(refill(&w, 1, k, 1, 0, &grant), 0);
	check_counters(&w, k);
	check_counters(&w, k2);
	world_deinit(&w);
}

/* What lies in the node barn serves prefills of any size too: nothing is carved while enough is idle. */
static void
test_prefill_opens_the_barn(void)
{
	const struct cache_options options = {.name = "k", .size = 64};
	int32_t slots[20];
	struct grant grant;
	uint64_t n_objects;
	struct world w;
	struct cache *k;

	world_init(&w, 64 << 20, ARENA_PROFILE_DEFAULT);
	k = open_cache(&w, &options);
	for (int i = 0; i < 20; i++) {
		CU_ASSERT_EQUAL(refill(&w, 0, k, 1, 0, &grant), 0);
		slots[i] = take_full(&w, 0, k);
		CU_ASSERT_FATAL(slots[i] >= 0);
	}
	for (int i = 0; i < 20; i++)
		give_back(&w, 0, k, slots[i], true);
	CU_ASSERT_EQUAL(k->nodes[0].n_full, 20);
	n_objects = k->nodes[0].n_objects;
	for (int i = 0; i < 20; i++) {
		CU_ASSERT_EQUAL(refill(&w, 1, k, 1, 45, &grant), 0);
		CU_ASSERT_EQUAL(grant.n_objects, 45);
	}
	CU_ASSERT_EQUAL(k->nodes[0].n_objects, n_objects);
	world_deinit(&w);
}

/* A prefill that could be had by calling the idle in is had, also where a part of it lies free. */
static void
test_prefill_calls_the_idle_in(void)
{
	const struct cache_options options = {.name = "k", .size = 4096};
	int32_t taken[MANY];
	struct grant grant;
	uint64_t n_objects;
	struct world w;
	struct cache *k;
	uint32_t n;

	world_init(&w, 2 << 20, ARENA_PROFILE_DEFAULT);
	k = open_cache(&w, &options);
	n = take_everything(&w, k, taken, MANY, &n_objects);
	/* One sheaf's objects in slabs, the rest idle with the first client. */
	make_idle(&w, k, taken, n - 1);
	lock(w.sessions[0]);
	barn_hand(&session_slots(w.sessions[0])[taken[n - 1]], LAYOUT_HOLDER_SLABD);
	grant_take_back(w.sessions[0], (uint32_t)taken[n - 1], false);
	session_slot_put(w.sessions[0], (uint32_t)taken[n - 1]);
	unlock(w.sessions[0]);
	CU_ASSERT(k->nodes[0].n_free > 0 && k->nodes[0].n_free < 100);
	CU_ASSERT_EQUAL(refill(&w, 1, k, 1, 100, &grant), 0);
	CU_ASSERT_EQUAL(grant.n_objects, 100);
	world_deinit(&w);
}

/* A session has 16,384 slots for sheaves; one more is refused in a sentence, and those that come back are lent again. */
static void
test_slots_are_bounded(void)
{
	const struct cache_options options = {.name = "k", .size = 8};
	uint32_t n = 0;
	struct grant grant;
	struct world w;
	struct cache *k;
	int32_t slot = -1;

	world_init(&w, 256 << 20, ARENA_PROFILE_DEFAULT);
	k = open_cache(&w, &options);
	while (n <= LAYOUT_MAX_SLOTS && refill(&w, 0, k, 64, 0, &grant) == 0) {
		n += grant.n_sheaves;
		while ((slot = take_full(&w, 0, k)) >= 0)
			session_sheaf(w.sessions[0], (uint32_t)slot)->size = 0; /* dropped: their objects are of no interest here */
	}
	CU_ASSERT_EQUAL(n, LAYOUT_MAX_SLOTS);
	CU_ASSERT_PTR_NOT_NULL(strstr(w.why, "16384"));
	give_back(&w, 0, k, 77, true);
	CU_ASSERT_EQUAL(refill(&w, 0, k, 1, 0, &grant), 0);
	CU_ASSERT_EQUAL(take_full(&w, 0, k), 77);
	for (int i = 0; i < MAX_SESSIONS; i++)
		session_end(w.sessions[i], false);
	arena_free(w.arena);
}

/* list_lock's own counters: one thread holds it, another must wait. */
static void *
lock_and_unlock(void *arg)
{
	node_lock(arg);
	node_unlock(arg);
	return NULL;
}

static void
test_list_lock_counts(void)
{
	const struct cache_options options = {.name = "k", .size = 64};
	const struct timespec moment = {.tv_nsec = 1000000};
	struct list_lock *lock;
	pthread_t thread;
	struct world w;
	struct cache *k;

	world_init(&w, 8 << 20, ARENA_PROFILE_DEFAULT);
	k = open_cache(&w, &options);
	lock = &k->nodes[0].lock;
	CU_ASSERT_EQUAL(lock->n_acquired, 0);
	/* The first hold is timed, the others of its sixteen are not. */
	for (int i = 0; i < NODE_LOCK_SAMPLE; i++)
		lock_and_unlock(&k->nodes[0]);
	CU_ASSERT_EQUAL(lock->n_acquired, NODE_LOCK_SAMPLE);
	CU_ASSERT_EQUAL(lock->n_contended, 0);
	CU_ASSERT_EQUAL(lock->wait_ns, 0);
	CU_ASSERT(lock->hold_ns > 0 && lock->hold_ns % NODE_LOCK_SAMPLE == 0);

	node_lock(&k->nodes[0]);
	CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, lock_and_unlock, &k->nodes[0]), 0);
	/* It waits when it sleeps in the mutex: then the lock's word says that somebody does. */
	while (__atomic_load_n(&lock->mutex.__data.__lock, __ATOMIC_RELAXED) < 2)
		nanosleep(&moment, NULL);
	nanosleep(&moment, NULL);
	CU_ASSERT_EQUAL(lock->n_contended, 0); /* is told by who has it */
	node_unlock(&k->nodes[0]);
	CU_ASSERT_EQUAL(pthread_join(thread, NULL), 0);
	CU_ASSERT_EQUAL(lock->n_acquired, NODE_LOCK_SAMPLE + 2);
	CU_ASSERT_EQUAL(lock->n_contended, 1);
	CU_ASSERT(lock->wait_ns >= 1000000);
	/* That hold was timed: it is multiplied. */
	CU_ASSERT(lock->hold_ns >= (uint64_t)NODE_LOCK_SAMPLE * 1000000);
	world_deinit(&w);
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

static const struct topology_source two_nodes = {
	.n_os_nodes = 4, .n_os_cpus = 2, .has_memory = two_have_memory, .distance = two_distance, .node_of_cpu = two_node_of_cpu};

/* By place: as the ledger says, and as the segments lie. */
static unsigned
node_of(const struct world *w, uint32_t place)
{
	uint32_t page = place >> LAYOUT_PLACE_PAGE_SHIFT;
	unsigned node = w->arena->slabs[slab_of(w, place)].node, i = 0;

	while (i < w->arena->n_segments && page - w->arena->segments[i].first_page >= w->arena->segments[i].n_pages)
		i++;
	CU_ASSERT_FATAL(i < w->arena->n_segments);
	CU_ASSERT_EQUAL(w->arena->segments[i].node, node);
	return node;
}

/* Entries of a sheaf that are of the node. */
static uint32_t
count_on(const struct world *w, int i, int32_t slot, unsigned node)
{
	const struct sheaf *sheaf = session_sheaf(w->sessions[i], (uint32_t)slot);
	uint32_t n = 0;

	for (uint32_t j = 0; j < sheaf->size; j++)
		n += node_of(w, sheaf->entry[j]) == node;
	return n;
}

/* Objects come from where the client runs; a node without memory is its neighbour's; a number that there is none of is the first's. */
static void
test_grants_come_from_the_clients_node(void)
{
	static const struct {
		uint32_t os_node;
		unsigned node;
	} where[] = {{0, 0}, {3, 1}, {1, 0}, {2, 1}, {4, 0}, {UINT32_MAX, 0}};
	const struct cache_options options = {.name = "k", .size = 256};
	struct grant grant;
	struct world w;
	struct cache *k;

	world_init_on(&w, 8 << 20, ARENA_PROFILE_DEFAULT, &two_nodes);
	CU_ASSERT_EQUAL_FATAL(w.arena->topology.n_nodes, 2);
	CU_ASSERT_EQUAL_FATAL(w.arena->n_segments, 2);
	k = open_cache(&w, &options);
	CU_ASSERT_EQUAL_FATAL(k->n_nodes, 2);
	for (unsigned i = 0; i < sizeof where / sizeof where[0]; i++) {
		int32_t slot;

		CU_ASSERT_EQUAL(refill_on(&w, 0, k, 1, 0, where[i].os_node, &grant), 0);
		slot = take_full(&w, 0, k);
		CU_ASSERT_FATAL(slot >= 0);
		CU_ASSERT_EQUAL(count_on(&w, 0, slot, where[i].node), k->capacity);
		CU_ASSERT_EQUAL(refill_on(&w, 0, k, 1, 10, where[i].os_node, &grant), 0);
		CU_ASSERT_EQUAL(count_on(&w, 0, (int32_t)grant.slot, where[i].node), 10);
	}
	CU_ASSERT_EQUAL(k->nodes[0].n_objects - k->nodes[0].n_free, 4u * (k->capacity + 10));
	CU_ASSERT_EQUAL(k->nodes[1].n_objects - k->nodes[1].n_free, 2u * (k->capacity + 10));
	check_counters(&w, k);
	world_deinit(&w);
}

/* A node that is full is followed by the next nearest; only when that is full too the memory is out. */
static void
test_carving_goes_on_with_the_next_node(void)
{
	const struct cache_options options = {.name = "k", .size = 4096};
	uint64_t n_first = 0, n_second = 0;
	struct grant grant;
	struct world w;
	struct cache *k;
	int r;

	world_init_on(&w, 2 << 20, ARENA_PROFILE_DEFAULT, &two_nodes);
	/* Each segment has room for all of the arena: so the second is reached only by what is over its limit. */
	w.arena->options.limit_bytes *= 2;
	k = open_cache(&w, &options);
	while ((r = refill_on(&w, 0, k, 1, 16, 3, &grant)) == 0) {
		uint32_t n = count_on(&w, 0, (int32_t)grant.slot, 1);

		CU_ASSERT_EQUAL(grant.n_objects, 16);
		CU_ASSERT(n == 16 || n_first == 512);
		n_first += n;
		n_second += 16 - n;
	}
	CU_ASSERT_EQUAL(r, -ENOMEM);
	CU_ASSERT_EQUAL(n_first, 512);
	CU_ASSERT_EQUAL(n_second, 512);
	CU_ASSERT_PTR_NOT_NULL(strstr(w.why, "--arena-size"));
	CU_ASSERT_EQUAL(k->nodes[0].n_objects, 512);
	CU_ASSERT_EQUAL(k->nodes[1].n_objects, 512);
	CU_ASSERT_EQUAL(w.arena->committed_bytes, 4 << 20);
	check_counters(&w, k);
	world_deinit(&w);
}

/* A client's thread frees what it likes: the sheaf that comes back has objects of both nodes, and each goes home. */
static void
take_back_mixed(uint32_t barn_full, bool top_is_far)
{
	const struct cache_options options = {.name = "k", .size = 256, .sheaf_capacity = 32, .barn_full = barn_full};
	int32_t near, far;
	uint64_t n_free[2];
	struct sheaf *a, *b;
	struct grant grant;
	struct world w;
	struct cache *k;

	world_init_on(&w, 8 << 20, ARENA_PROFILE_DEFAULT, &two_nodes);
	k = open_cache(&w, &options);
	CU_ASSERT_EQUAL(refill_on(&w, 0, k, 1, 0, 0, &grant), 0);
	CU_ASSERT_FATAL((near = take_full(&w, 0, k)) >= 0);
	CU_ASSERT_EQUAL(refill_on(&w, 0, k, 1, 0, 3, &grant), 0);
	CU_ASSERT_FATAL((far = take_full(&w, 0, k)) >= 0);
	a = session_sheaf(w.sessions[0], (uint32_t)near);
	b = session_sheaf(w.sessions[0], (uint32_t)far);
	/* Every third of the one for one of the other; the top is near or far. */
	for (uint32_t i = top_is_far ? 1 : 0; i < k->capacity; i += 3) {
		uint32_t place = a->entry[i];

		a->entry[i] = b->entry[i];
		b->entry[i] = place;
	}
	CU_ASSERT_EQUAL(node_of(&w, a->entry[31]), top_is_far);
	CU_ASSERT_EQUAL(count_on(&w, 0, near, 0), 21);
	n_free[0] = k->nodes[0].n_free;
	n_free[1] = k->nodes[1].n_free;
	give_back(&w, 0, k, near, true);
	check_counters(&w, k);
	for (unsigned n = 0; n < 2; n++) {
		uint32_t n_here = n ? 11 : 21;
		bool in_barn = barn_full != LAYOUT_KNOB_NONE && n == (top_is_far ? 1u : 0u);

		CU_ASSERT_EQUAL(k->nodes[n].n_full, in_barn);
		CU_ASSERT_EQUAL(k->nodes[n].n_barn, in_barn ? n_here : 0);
		CU_ASSERT_EQUAL(k->nodes[n].n_free, n_free[n] + (in_barn ? 0 : n_here));
	}
	CU_ASSERT_EQUAL(w.sessions[0]->n_faults, 0);
	give_back(&w, 0, k, far, true);
	check_counters(&w, k);
	CU_ASSERT_EQUAL(check_counters(&w, k).n_out, 0);
	world_deinit(&w);
}

static void
test_mixed_sheaf_goes_home(void)
{
	take_back_mixed(0, false);
	take_back_mixed(0, true);
	take_back_mixed(LAYOUT_KNOB_NONE, false);
	take_back_mixed(LAYOUT_KNOB_NONE, true);
}

/* Each node has a barn of its own, full by itself; the client of a node gets that node's, and the oldest of it. */
static void
test_barns_are_by_node(void)
{
	const struct cache_options options = {.name = "k", .size = 256, .sheaf_capacity = 32, .barn_full = 2};
	int32_t slots[2][3], slot;
	uint32_t oldest[2];
	struct grant grant;
	struct world w;
	struct cache *k;

	world_init_on(&w, 8 << 20, ARENA_PROFILE_DEFAULT, &two_nodes);
	k = open_cache(&w, &options);
	for (unsigned n = 0; n < 2; n++)
		for (int i = 0; i < 3; i++) {
			CU_ASSERT_EQUAL(refill_on(&w, 0, k, 1, 0, n ? 3 : 0, &grant), 0);
			CU_ASSERT_FATAL((slots[n][i] = take_full(&w, 0, k)) >= 0);
		}
	for (int i = 0; i < 3; i++)
		for (unsigned n = 0; n < 2; n++) {
			if (i == 0)
				oldest[n] = session_sheaf(w.sessions[0], (uint32_t)slots[n][0])->entry[0];
			give_back(&w, 0, k, slots[n][i], true);
			CU_ASSERT_EQUAL(k->nodes[n].n_full, i < 2 ? (uint32_t)i + 1 : 2);
		}
	check_counters(&w, k);
	for (unsigned n = 2; n-- > 0;) {
		bool is_there = false;

		CU_ASSERT_EQUAL(refill_on(&w, 1, k, 1, 0, n ? 3 : 0, &grant), 0);
		CU_ASSERT_FATAL((slot = take_full(&w, 1, k)) >= 0);
		CU_ASSERT_EQUAL(count_on(&w, 1, slot, n), 32);
		for (uint32_t i = 0; i < 32; i++)
			is_there |= session_sheaf(w.sessions[1], (uint32_t)slot)->entry[i] == oldest[n];
		CU_ASSERT(is_there);
		CU_ASSERT_EQUAL(k->nodes[n].n_full, 1);
		check_counters(&w, k);
	}
	world_deinit(&w);
}

/* The dead: objects of both nodes that name them, and sheaves of both, are freed into their own nodes' slabs. */
static void
test_the_deads_objects_go_home(void)
{
	const struct cache_options options = {.name = "k", .size = 256, .flags = LAYOUT_CACHE_RECLAIM, .min_partial = 100};
	struct grant grant;
	struct world w;
	struct cache *k;

	world_init_on(&w, 8 << 20, ARENA_PROFILE_DEFAULT, &two_nodes);
	k = open_cache(&w, &options);
	for (unsigned n = 0; n < 2; n++) {
		struct sheaf *sheaf;

		CU_ASSERT_EQUAL(refill_on(&w, 0, k, 1, 50 + n, n ? 3 : 0, &grant), 0);
		sheaf = session_sheaf(w.sessions[0], grant.slot);
		for (int i = 0; i < 20; i++) {
			struct slab_object o;

			CU_ASSERT_FATAL(slab_find(w.arena, k, sheaf->entry[--sheaf->size], &o));
			w.arena->words[o.word] += WORD_GENERATION_ONE + w.sessions[0]->client;
		}
	}
	CU_ASSERT_EQUAL(check_counters(&w, k).n_held, 40);
	reaper_reap(w.sessions[0]);
	w.sessions[0] = NULL;
	CU_ASSERT_EQUAL(check_counters(&w, k).n_out, 0);
	for (unsigned n = 0; n < 2; n++)
		CU_ASSERT_EQUAL(k->nodes[n].n_free + k->nodes[n].n_barn, k->nodes[n].n_objects);
	world_deinit(&w);
}

/* The same by chance: three clients that move, and free whatever they have. */
static void
test_hand_over_between_nodes(void)
{
	const struct cache_options options = {.name = "k", .size = 200, .barn_full = 3};
	const char *text = getenv("SLAB_SEED");
	unsigned seed = text ? (unsigned)strtoul(text, NULL, 0) : 2;
	int32_t held[MAX_SESSIONS][64];
	unsigned n_held[MAX_SESSIONS] = {0};
	struct grant grant;
	struct world w;
	struct cache *k;

	world_init_on(&w, 64 << 20, ARENA_PROFILE_DEFAULT, &two_nodes);
	k = open_cache(&w, &options);
	for (int turn = 0; turn < 2000; turn++) {
		int i = rand_r(&seed) % MAX_SESSIONS;

		if (rand_r(&seed) % 2 && n_held[i] < 64) {
			CU_ASSERT_EQUAL(refill_on(&w, i, k, 1 + (uint32_t)rand_r(&seed) % 4, 0, (uint32_t)rand_r(&seed) % 4, &grant), 0);
			while (n_held[i] < 64 && (held[i][n_held[i]] = take_full(&w, i, k)) >= 0)
				n_held[i]++;
		} else if (n_held[i] > 1) {
			struct sheaf *a = session_sheaf(w.sessions[i], (uint32_t)held[i][n_held[i] - 1]);
			struct sheaf *b = session_sheaf(w.sessions[i], (uint32_t)held[i][rand_r(&seed) % (n_held[i] - 1)]);

			for (uint32_t j = 0; j < a->size && j < b->size; j += 1 + (uint32_t)rand_r(&seed) % 3) {
				uint32_t place = a->entry[j];

				a->entry[j] = b->entry[j];
				b->entry[j] = place;
			}
			give_back(&w, i, k, held[i][--n_held[i]], rand_r(&seed) % 2);
		}
		if (turn % 50 == 0)
			check_counters(&w, k);
	}
	for (int i = 0; i < MAX_SESSIONS; i++) {
		CU_ASSERT_EQUAL(w.sessions[i]->n_faults, 0);
		reaper_reap(w.sessions[i]);
		w.sessions[i] = NULL;
	}
	CU_ASSERT_EQUAL(check_counters(&w, k).n_out, 0);
	world_deinit(&w);
}

/* Names of the dead */

enum { MAX_NAMED = 4096 }; /* as in server/session.c */

static uint32_t
count_named(const struct world *w, uint32_t client)
{
	uint32_t n = 0;

	for (uint32_t number = 1; number <= w->arena->n_slabs; number++)
		for (uint32_t i = 0; w->arena->slabs[number].cache && i < w->arena->slabs[number].n_objects; i++)
			n += word_owner(w->arena->words[w->arena->slabs[number].first_word + i]) == client;
	return n;
}

/* A session that ends and leaves one object, of the sheaf's top, under its name; its slot. */
static uint32_t
die_and_leave_one(struct world *w, struct cache *k, struct sheaf *sheaf, uint32_t state, uint32_t *wordp)
{
	struct session *session = NULL;
	struct slab_object o;
	uint32_t client;

	CU_ASSERT_EQUAL_FATAL(session_new(&session, w->arena, &who, w->why, sizeof w->why), 0);
	client = session->client;
	CU_ASSERT_FATAL(sheaf->size > 0 && slab_find(w->arena, k, sheaf->entry[sheaf->size - 1], &o));
	w->arena->words[o.word] = word_with(w->arena->words[o.word] + WORD_GENERATION_ONE, client, state);
	sheaf->size--;
	*wordp = o.word;
	session_end(session, true);
	return client;
}

/*
 * A slot is not used again while a word names its dead.  Of more dead than the cap the words are rewritten to ORPHAN, in the same state and
 * generation, when their slot's turn comes; and nobody else's.
 */
static void
test_names_of_the_dead(void)
{
	const struct cache_options options = {.name = "k", .size = 64};
	uint32_t first = 0, second = 0, word, first_word = 0, second_word = 0, before, n = 0;
	struct session *session = NULL;
	struct sheaf *sheaf = NULL;
	struct grant grant;
	struct world w;
	struct cache *k;

	world_init(&w, 64 << 20, ARENA_PROFILE_DEFAULT);
	k = open_cache(&w, &options);
	for (n = 0; n <= MAX_NAMED; n++) {
		uint32_t client;

		if (!sheaf || sheaf->size == 0) {
			CU_ASSERT_EQUAL_FATAL(refill(&w, 0, k, 1, LAYOUT_MAX_SHEAF, &grant), 0);
			sheaf = session_sheaf(w.sessions[0], grant.slot);
		}
		client = die_and_leave_one(&w, k, sheaf, n == 0 ? WORD_SHARED : WORD_CLOSING, &word);
		if (n == 0)
			first = client, first_word = word;
		if (n == 1)
			second = client, second_word = word;
		if (n != 1)
			continue;
		/* Two are named, the cap is far: both slots are passed over. */
		w.arena->next_client = first;
		CU_ASSERT_EQUAL_FATAL(session_new(&session, w.arena, &who, w.why, sizeof w.why), 0);
		CU_ASSERT(session->client != first && session->client != second);
		CU_ASSERT_EQUAL(count_named(&w, first), 1);
		CU_ASSERT_EQUAL(word_owner(w.arena->words[first_word]), first);
		session_end(session, false);
	}
	CU_ASSERT_EQUAL(w.arena->n_named, MAX_NAMED + 1);
	before = w.arena->words[first_word];
	/* One more than the cap: who comes to the slot gets it, and no name of its dead. */
	w.arena->next_client = first;
	CU_ASSERT_EQUAL_FATAL(session_new(&session, w.arena, &who, w.why, sizeof w.why), 0);
	CU_ASSERT_EQUAL(session->client, first);
	CU_ASSERT_EQUAL(w.arena->words[first_word], word_with(before, WORD_ORPHAN, WORD_SHARED));
	CU_ASSERT_EQUAL(count_named(&w, first), 0);
	CU_ASSERT_EQUAL(count_named(&w, WORD_ORPHAN), 1);
	CU_ASSERT_EQUAL(w.arena->n_named, MAX_NAMED);
	CU_ASSERT_EQUAL(w.arena->named[first], 0);
	/* At the cap the others keep their names, also where the next one in turn is named. */
	CU_ASSERT_EQUAL(word_owner(w.arena->words[second_word]), second);
	w.arena->next_client = second;
	session_end(session, false);
	CU_ASSERT_EQUAL_FATAL(session_new(&session, w.arena, &who, w.why, sizeof w.why), 0);
	CU_ASSERT(session->client != second);
	CU_ASSERT_EQUAL(word_owner(w.arena->words[second_word]), second);
	session_end(session, false);
	/* The audit counts it where it was: kept, and nobody's. */
	CU_ASSERT_EQUAL(check_counters(&w, k).n_orphans, MAX_NAMED + 1);
	world_deinit(&w);
}

/* Who is dying gives no sheaf to others and gets none: its memory is the reaper's. */
static void
test_the_dying_are_left_alone(void)
{
	const struct cache_options options = {.name = "k", .size = 4096};
	int32_t taken[MANY];
	struct grant grant;
	uint64_t n_objects;
	struct world w;
	struct cache *k;
	uint32_t n;

	world_init(&w, 2 << 20, ARENA_PROFILE_DEFAULT);
	k = open_cache(&w, &options);
	n = take_everything(&w, k, taken, MANY, &n_objects);
	make_idle(&w, k, taken, n);
	w.sessions[0]->state = SESSION_DYING;
	CU_ASSERT_EQUAL(refill(&w, 1, k, 1, 0, &grant), -ENOMEM);
	CU_ASSERT_EQUAL(check_counters(&w, k).n_in_sheaves, 512);
	reaper_reap(w.sessions[0]);
	w.sessions[0] = NULL;
	CU_ASSERT_EQUAL(refill(&w, 1, k, 1, 0, &grant), 0);
	CU_ASSERT_EQUAL(check_counters(&w, k).n_in_sheaves, k->capacity);
	world_deinit(&w);
}

/* What clients have set aside of the cache. */
static uint64_t
n_stashed(const struct world *w, const struct cache *k)
{
	uint64_t n = 0;

	for (int i = 0; i < MAX_SESSIONS; i++)
		if (w->sessions[i] && stash_of(w->sessions[i], k->id))
			n += stash_of(w->sessions[i], k->id)->size;
	return n;
}

/* A world with slabs on the list, and nothing else. */
static struct cache *
open_with_free(struct world *w, const struct cache_options *options, unsigned n_slabs)
{
	struct cache *k;

	world_init(w, 64 << 20, ARENA_PROFILE_DEFAULT);
	k = open_cache(w, options);
	for (unsigned i = 0; i < n_slabs; i++)
		add_slab(w, k);
	return k;
}

/* The trade: the more a client has set aside, the fewer of its refills take list_lock; what it has set aside is idle, and bounded by the
 * knob. */
static void
test_stash_spares_the_list_lock(void)
{
	static const struct {
		uint32_t cpu_partial;
		uint64_t n_locks; /* of 120 refills */
	} golden[] = {{LAYOUT_KNOB_NONE, 120}, {60, 60}, {120, 40}, {180, 30}, {300, 20}};

	for (unsigned i = 0; i < sizeof golden / sizeof golden[0]; i++) {
		const struct cache_options options = {
			.name = "k", .size = 64, .sheaf_capacity = 60, .cpu_partial = golden[i].cpu_partial, .barn_full = LAYOUT_KNOB_NONE};
		struct grant grant;
		uint64_t before;
		struct world w;
		struct cache *k = open_with_free(&w, &options, 200);

		/* Its first refill makes the stash; one empty again leaves it as it began. */
		for (uint32_t j = 0; j <= k->cpu_partial / 60; j++)
			CU_ASSERT_EQUAL(refill(&w, 0, k, 1, 0, &grant), 0);
		CU_ASSERT_EQUAL(n_stashed(&w, k), 0);
		before = k->nodes[0].lock.n_acquired;
		for (int j = 0; j < 120; j++) {
			CU_ASSERT_EQUAL(refill(&w, 0, k, 1, 0, &grant), 0);
			CU_ASSERT_EQUAL(grant.n_objects, 60);
			CU_ASSERT(n_stashed(&w, k) <= k->cpu_partial);
		}
		CU_ASSERT_EQUAL(k->nodes[0].lock.n_acquired - before, golden[i].n_locks);
		/* The first one's sheaves count too. */
		CU_ASSERT_EQUAL(k->nodes[0].n_sheaves_granted, 120 + k->cpu_partial / 60 + 1);
		CU_ASSERT_EQUAL(k->nodes[0].n_carved, 200);
		CU_ASSERT_EQUAL(check_counters(&w, k).n_in_stashes, n_stashed(&w, k));
		world_deinit(&w);
	}
}

/* Where free lists are short a hold takes from no more slabs than the kernel's would: half of those that the knob stands for, and one. */
static void
test_stash_takes_few_slabs(void)
{
	const struct cache_options options = {
		.name = "k", .size = 256, .max_order = LAYOUT_KNOB_NONE, .sheaf_capacity = 10, .cpu_partial = 52};
	uint32_t slabs[40], places[40 * 16];
	struct grant grant;
	struct world w;
	struct cache *k;

	world_init(&w, 64 << 20, ARENA_PROFILE_DEFAULT);
	k = open_cache(&w, &options);
	CU_ASSERT_EQUAL_FATAL(k->n_slab_objects, 16);
	CU_ASSERT_EQUAL(k->cpu_partial_slabs, 7);
	for (int i = 0; i < 40; i++)
		slabs[i] = add_slab(&w, k);
	CU_ASSERT_EQUAL(take(&w, k, places, 40 * 16), 40 * 16);
	for (int i = 0; i < 40; i++)
		put(&w, k, slabs[i], 3, 1);
	CU_ASSERT_EQUAL(refill(&w, 0, k, 1, 0, &grant), 0);
	CU_ASSERT_EQUAL(grant.n_objects, 10);
	CU_ASSERT_EQUAL(n_stashed(&w, k), 7 / 2 + 1);
	CU_ASSERT_EQUAL(k->nodes[0].n_partial, 40 - 10 - 4);
	for (int i = 0; i < 40; i++) {
		put(&w, k, slabs[i], 0, 3);
		put(&w, k, slabs[i], 4, 12);
	}
	CU_ASSERT_EQUAL(check_counters(&w, k).n_in_stashes, 4);
	world_deinit(&w);
}

/* Whole sheaves of the barn come first; prefills of any size are served from it too, and a part of a sheaf is made whole from the slabs. */
static void
test_stash_and_the_other_layers(void)
{
	const struct cache_options options = {.name = "k", .size = 64, .sheaf_capacity = 60, .cpu_partial = 100};
	struct grant grant;
	uint64_t before;
	int32_t slot;
	struct world w;
	struct cache *k = open_with_free(&w, &options, 10);

	CU_ASSERT_EQUAL(refill(&w, 0, k, 1, 0, &grant), 0);
	CU_ASSERT_EQUAL(n_stashed(&w, k), 100);
	slot = take_full(&w, 0, k);
	give_back(&w, 0, k, slot, true);
	CU_ASSERT_EQUAL(k->nodes[0].n_full, 1);
	CU_ASSERT_EQUAL(refill(&w, 0, k, 1, 0, &grant), 0);
	CU_ASSERT_EQUAL(k->nodes[0].n_full, 0);
	CU_ASSERT_EQUAL(n_stashed(&w, k), 100);
	before = k->nodes[0].lock.n_acquired;
	CU_ASSERT_EQUAL(refill(&w, 0, k, 1, 33, &grant), 0);
	CU_ASSERT_EQUAL(grant.n_objects, 33);
	CU_ASSERT_EQUAL(n_stashed(&w, k), 67);
	CU_ASSERT_EQUAL(k->nodes[0].lock.n_acquired, before);
	CU_ASSERT_EQUAL(refill(&w, 0, k, 1, 80, &grant), 0);
	CU_ASSERT_EQUAL(grant.n_objects, 80);
	CU_ASSERT_EQUAL(n_stashed(&w, k), 100);
	CU_ASSERT_EQUAL(k->nodes[0].lock.n_acquired, before + 1);
	/* Another client has its own. */
	CU_ASSERT_EQUAL(refill(&w, 1, k, 1, 0, &grant), 0);
	CU_ASSERT_EQUAL(n_stashed(&w, k), 200);
	CU_ASSERT_EQUAL(w.sessions[0]->n_drawn[k->id], 60 + 33 + 80 + 100);
	CU_ASSERT_EQUAL(check_counters(&w, k).n_in_stashes, 200);
	world_deinit(&w);
}

/* It goes back when the client dies, closes the cache or shrinks it, when another shrinks it or needs the memory, and by tuning. */
static void
test_stash_is_given_back(void)
{
	const struct cache_options options = {.name = "k", .size = 64, .sheaf_capacity = 60, .cpu_partial = 100};
	enum { DEATH, CLOSE, SHRINK, OTHERS_SHRINK, TUNE, N_WAYS };

	for (int way = 0; way < N_WAYS; way++) {
		const struct cache_tuning tuning = {.set = CACHE_TUNE_CPU_PARTIAL, .cpu_partial = 30};
		struct grant grant;
		struct world w;
		struct cache *k = open_with_free(&w, &options, 10);
		uint64_t n_left = way == TUNE ? 30 : 0;

		CU_ASSERT_EQUAL(refill(&w, 0, k, 1, 10, &grant), 0);
		CU_ASSERT_EQUAL(n_stashed(&w, k), 100);
		if (way == TUNE) {
			pthread_rwlock_wrlock(&w.arena->sessions_lock);
			CU_ASSERT_EQUAL(cache_tune(k, &tuning, w.why, sizeof w.why), 0);
			pthread_rwlock_unlock(&w.arena->sessions_lock);
		}
		if (way != DEATH)
			lock(w.sessions[0]);
		if (way == DEATH)
			reaper_reap(w.sessions[0]);
		else if (way == CLOSE)
			grant_close(w.sessions[0], k);
		else if (way == SHRINK)
			grant_shrink(w.arena, w.sessions[0], k);
		else if (way == TUNE)
			stash_trim(w.sessions[0], k, k->cpu_partial);
		if (way != DEATH)
			unlock(w.sessions[0]);
		if (way == DEATH)
			w.sessions[0] = NULL;
		if (way == OTHERS_SHRINK) {
			lock(w.sessions[1]);
			grant_shrink(w.arena, w.sessions[1], k);
			unlock(w.sessions[1]);
		}
		CU_ASSERT_EQUAL(n_stashed(&w, k), n_left);
		CU_ASSERT_EQUAL(check_counters(&w, k).n_out, n_left + (way == DEATH ? 0 : 10));
		if (way != DEATH)
			CU_ASSERT_EQUAL(w.sessions[0]->n_drawn[k->id], (int64_t)n_left + 10);
		world_deinit(&w);
	}
}

/* A knob that is raised gets its room at the next refill. */
static void
test_stash_grows_with_its_knob(void)
{
	const struct cache_options options = {.name = "k", .size = 64, .sheaf_capacity = 60, .cpu_partial = 60};
	const struct cache_tuning more = {.set = CACHE_TUNE_CPU_PARTIAL, .cpu_partial = 500};
	struct grant grant;
	struct world w;
	struct cache *k = open_with_free(&w, &options, 20);

	CU_ASSERT_EQUAL(refill(&w, 0, k, 1, 20, &grant), 0);
	CU_ASSERT_EQUAL(n_stashed(&w, k), 60);
	CU_ASSERT_EQUAL(cache_tune(k, &more, w.why, sizeof w.why), 0);
	CU_ASSERT_EQUAL(refill(&w, 0, k, 1, 70, &grant), 0);
	CU_ASSERT_EQUAL(n_stashed(&w, k), 500);
	CU_ASSERT_EQUAL(check_counters(&w, k).n_in_stashes, 500);
	world_deinit(&w);
}

/* Where memory is short nobody has anything set aside, of whatever cache, and nothing is set aside anew. */
static void
test_stash_is_called_in_when_memory_is_short(void)
{
	const struct cache_options options = {.name = "k", .size = 4096, .cpu_partial = 300, .max_order = LAYOUT_KNOB_NONE};
	const struct cache_options other = {.name = "other", .size = 1000, .cpu_partial = 40};
	struct cache *k, *k2;
	int32_t taken[MANY];
	struct grant grant;
	uint64_t n_objects;
	struct world w;

	world_init(&w, 2 << 20, ARENA_PROFILE_DEFAULT);
	k = open_cache(&w, &options);
	k2 = open_cache(&w, &other);
	for (int i = 0; i < 512; i++)
		add_slab(&w, k);
	CU_ASSERT_EQUAL(refill(&w, 0, k, 1, 10, &grant), 0);
	CU_ASSERT_EQUAL(n_stashed(&w, k), 300);
	/* The second takes what is left in the slabs, and sets aside what it can; then the first one's. */
	CU_ASSERT_EQUAL(refill(&w, 1, k2, 1, 0, &grant), 0);
	CU_ASSERT_EQUAL(n_stashed(&w, k), 0);
	CU_ASSERT_EQUAL(n_stashed(&w, k2), 0);
	take_everything(&w, k, taken, MANY, &n_objects);
	CU_ASSERT_EQUAL(refill(&w, 1, k, 1, 0, &grant), -ENOMEM);
	CU_ASSERT_EQUAL(n_stashed(&w, k) + n_stashed(&w, k2), 0);
	CU_ASSERT_EQUAL(check_counters(&w, k).n_free, 0);
	world_deinit(&w);
}

/* A client that moves to another node takes nothing with it: what it had set aside goes home. */
static void
test_stash_is_of_the_clients_node(void)
{
	const struct cache_options options = {.name = "k", .size = 256, .cpu_partial = 50};
	struct grant grant;
	struct world w;
	struct cache *k;

	world_init_on(&w, 8 << 20, ARENA_PROFILE_DEFAULT, &two_nodes);
	k = open_cache(&w, &options);
	for (unsigned turn = 0; turn < 6; turn++) {
		unsigned node = turn / 2 % 2;
		struct stash *stash;

		CU_ASSERT_EQUAL(refill_on(&w, 0, k, 1, 10, node ? 3 : 0, &grant), 0);
		CU_ASSERT_EQUAL(count_on(&w, 0, (int32_t)grant.slot, node), 10);
		stash = stash_of(w.sessions[0], k->id);
		CU_ASSERT_EQUAL(stash->node, node);
		CU_ASSERT(stash->size > 0);
		for (uint32_t i = 0; i < stash->size; i++)
			CU_ASSERT_EQUAL(node_of(&w, stash->place[i]), node);
		check_counters(&w, k);
	}
	world_deinit(&w);
}

/*
 * A client that writes where it should not names an object that is set aside for another, and frees it: the ledger has it once, whatever
 * becomes of the stash, and what somebody names is not taken from him.
 */
static void
test_stash_and_a_wrong_client(void)
{
	const struct cache_options options = {.name = "k",
		.size = 64,
		.sheaf_capacity = 20,
		.cpu_partial = 40,
		.barn_full = LAYOUT_KNOB_NONE,
		.min_partial = LAYOUT_KNOB_NONE};
	struct slab_object o;
	struct grant grant;
	struct sheaf *sheaf;
	struct stash *stash;
	struct world w;
	struct cache *k = open_with_free(&w, &options, 1);

	CU_ASSERT_EQUAL(refill(&w, 0, k, 1, 4, &grant), 0);
	stash = stash_of(w.sessions[0], k->id);
	CU_ASSERT_EQUAL_FATAL(stash->size, 40);
	CU_ASSERT_EQUAL(refill(&w, 1, k, 1, 1, &grant), 0);
	/* Its own sheaf says that it frees one of the first one's. */
	sheaf = session_sheaf(w.sessions[1], grant.slot);
	sheaf->entry[0] = stash->place[7];
	CU_ASSERT(barn_take(&session_slots(w.sessions[1])[grant.slot], LAYOUT_HOLDER_APP, ME));
	give_back(&w, 1, k, (int32_t)grant.slot, true);
	/* And it names another. */
	CU_ASSERT_FATAL(slab_find(w.arena, k, stash->place[8], &o));
	w.arena->words[o.word] += WORD_GENERATION_ONE + w.sessions[1]->client;
	lock(w.sessions[0]);
	stash_trim(w.sessions[0], k, 0);
	unlock(w.sessions[0]);
	check_node(&w, k, 0);
	CU_ASSERT_EQUAL(slab_get(w.arena, o.word), SLAB_OUT);
	reaper_reap(w.sessions[1]);
	w.sessions[1] = NULL;
	check_node(&w, k, 0);
	reaper_reap(w.sessions[0]);
	w.sessions[0] = NULL;
	check_node(&w, k, 0);
	w.arena->words[o.word] = 0;
	put(&w, k, o.slab, o.word - w.arena->slabs[o.slab].first_word, 1);
	/* The object that the wrong client left out of its sheaf is lost, and no other. */
	CU_ASSERT_EQUAL(k->nodes[0].n_objects - k->nodes[0].n_free, 1);
	for (uint32_t i = 0; i < 64 && k->nodes[0].n_slabs; i++)
		if (slab_get(w.arena, w.arena->slabs[o.slab].first_word + i) == SLAB_OUT)
			put(&w, k, o.slab, i, 1);
	world_deinit(&w);
}

/* The audit knows the stash for a place: what is in it and in a sheaf too is doubled, and what is taken out of it lost. */
static void
test_audit_looks_into_stashes(void)
{
	const struct cache_options options = {.name = "k", .size = 64, .sheaf_capacity = 20, .cpu_partial = 40};
	struct grant grant;
	struct audit audit;
	struct sheaf *sheaf;
	struct stash *stash;
	struct world w;
	struct cache *k = open_with_free(&w, &options, 2);
	uint32_t kept;

	CU_ASSERT_EQUAL(refill(&w, 0, k, 1, 4, &grant), 0);
	sheaf = session_sheaf(w.sessions[0], grant.slot);
	stash = stash_of(w.sessions[0], k->id);
	audit = check_counters(&w, k);
	CU_ASSERT(audit.n_in_stashes == 40 && audit.n_in_sheaves == 4 && audit.n_out == 44);
	kept = sheaf->entry[2];
	sheaf->entry[2] = stash->place[5];
	CU_ASSERT_EQUAL(audit_run(w.arena, k->id, &audit), 0);
	CU_ASSERT(audit.n_doubled == 1 && audit.n_lost == 1 && audit.first_doubled == stash->place[5] + 1ull);
	sheaf->entry[2] = kept;
	stash->size--;
	CU_ASSERT_EQUAL(audit_run(w.arena, k->id, &audit), 0);
	CU_ASSERT(audit.n_doubled == 0 && audit.n_lost == 1 && audit.first_lost == stash->place[39] + 1ull);
	stash->size++;
	world_deinit(&w);
}

/* Knobs of the stash: by the profile's formula but where there are no sheaves, none, and what is asked for. */
static void
test_stash_knobs(void)
{
	const struct cache_tuning back = {.set = CACHE_TUNE_CPU_PARTIAL},
				  none = {.set = CACHE_TUNE_CPU_PARTIAL, .cpu_partial = LAYOUT_KNOB_NONE},
				  high = {.set = CACHE_TUNE_CPU_PARTIAL, .cpu_partial = 65537};
	static const struct {
		uint32_t cpu_partial, sheaf_capacity, n;
	} cases[] = {
		{0, 0, 52}, {LAYOUT_KNOB_NONE, 0, 0}, {7, 0, 7}, {65536, 0, 65536}, {0, LAYOUT_KNOB_NONE, 0}, {9, LAYOUT_KNOB_NONE, 9}};
	struct world w;

	world_init(&w, 64 << 20, ARENA_PROFILE_KERNEL);
	for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		char name[16];
		const struct cache_options options = {
			.name = name, .size = 256, .cpu_partial = cases[i].cpu_partial, .sheaf_capacity = cases[i].sheaf_capacity};
		struct cache *k;

		snprintf(name, sizeof name, "k%u", i);
		k = open_cache(&w, &options);
		CU_ASSERT_EQUAL(k->cpu_partial, cases[i].n);
		CU_ASSERT_EQUAL(cache_tune(k, &none, w.why, sizeof w.why), 0);
		CU_ASSERT_EQUAL(k->cpu_partial, 0);
		CU_ASSERT_EQUAL(cache_tune(k, &back, w.why, sizeof w.why), 0);
		CU_ASSERT_EQUAL(k->cpu_partial, k->is_sheafless ? 0 : 52);
		CU_ASSERT_EQUAL(cache_tune(k, &high, w.why, sizeof w.why), -EINVAL);
		CU_ASSERT(strstr(w.why, "cpu_partial 65537") != NULL && strstr(w.why, "65536") != NULL);
		CU_ASSERT_EQUAL(k->cpu_partial, k->is_sheafless ? 0 : 52);
	}
	world_deinit(&w);
	world_init(&w, 1 << 30, ARENA_PROFILE_SERVER);
	CU_ASSERT_EQUAL(open_cache(&w, &(const struct cache_options){.name = "k", .size = 64})->cpu_partial,
		120 * profile_of(ARENA_PROFILE_SERVER, topology_online_cpus(), 1 << 30).cpu_partial_factor);
	world_deinit(&w);
}

/* First fit by address: the lowest free object of the lowest slab that has one, in whatever order they were freed. */
static void
test_slob_is_first_fit(void)
{
	const struct cache_options options = {.name = "k", .size = 256, .policy = CACHE_POLICY_SLOB};
	/* By slab in order of place, and object in it. */
	static const struct {
		int slab;
		uint32_t object;
	} freed[] = {{2, 9}, {0, 14}, {1, 3}, {2, 0}, {0, 2}, {1, 15}}, expected[] = {{0, 2}, {0, 14}, {1, 3}, {1, 15}, {2, 0}, {2, 9}};
	uint32_t slabs[3], places[48], got;
	struct world w;
	struct cache *k;

	world_init(&w, 64 << 20, ARENA_PROFILE_DEFAULT);
	k = open_cache(&w, &options);
	CU_ASSERT_EQUAL_FATAL(k->n_slab_objects, 16);
	for (int i = 0; i < 3; i++)
		slabs[i] = add_slab(&w, k);
	for (int i = 0; i < 3; i++)
		for (int j = i + 1; j < 3; j++)
			if (w.arena->slabs[slabs[j]].first_page < w.arena->slabs[slabs[i]].first_page) {
				got = slabs[i];
				slabs[i] = slabs[j];
				slabs[j] = got;
			}
	/* All, from the lowest place up. */
	CU_ASSERT_EQUAL(take(&w, k, places, 48), 48);
	for (int i = 0; i < 48; i++)
		CU_ASSERT_EQUAL(places[i], slab_place(w.arena, k, slabs[i / 16], (uint32_t)i % 16));
	for (unsigned i = 0; i < 6; i++)
		put(&w, k, slabs[freed[i].slab], freed[i].object, 1);
	for (unsigned i = 0; i < 6; i++) {
		CU_ASSERT_EQUAL(take(&w, k, &got, 1), 1);
		CU_ASSERT_EQUAL(got, slab_place(w.arena, k, slabs[expected[i].slab], expected[i].object));
	}
	/* Freed below while above is free: below is taken. */
	put(&w, k, slabs[2], 4, 1);
	put(&w, k, slabs[0], 8, 1);
	CU_ASSERT_EQUAL(take(&w, k, &got, 1), 1);
	CU_ASSERT_EQUAL(got, slab_place(w.arena, k, slabs[0], 8));
	put(&w, k, slabs[2], 5, 1);
	/* An empty slab goes back at once. */
	for (int i = 0; i < 3; i++) {
		put(&w, k, slabs[i], 0, i == 2 ? 4 : 16);
		if (i == 2)
			put(&w, k, slabs[i], 6, 10);
		CU_ASSERT_EQUAL(k->nodes[0].n_slabs, 2 - (unsigned)i);
	}
	world_deinit(&w);
}

/* Slabs of a cache of which nine objects in ten were freed by chance, after so many rounds in which an eighth is freed so and allocated
 * again. */
static uint64_t
slabs_after_churn(enum cache_policy policy)
{
	enum { N = 8192, LIVE = N / 10, ROUNDS = 30 };
	const struct cache_options options = {.name = "k",
		.size = 256,
		.policy = policy,
		.sheaf_capacity = LAYOUT_KNOB_NONE,
		.min_partial = LAYOUT_KNOB_NONE,
		.max_order = LAYOUT_KNOB_NONE};
	static uint32_t places[N];
	uint32_t n = N;
	unsigned seed = 20;
	uint64_t n_slabs;
	struct world w;
	struct cache *k = open_with_free(&w, &options, N / 16);

	CU_ASSERT_EQUAL(take(&w, k, places, N), N);
	for (int round = 0; round < ROUNDS; round++) {
		uint32_t n_kept = LIVE - LIVE / 8;

		while (n > n_kept) {
			uint32_t i = (uint32_t)rand_r(&seed) % n;
			struct slab_object o;

			CU_ASSERT_FATAL(slab_find(w.arena, k, places[i], &o));
			put(&w, k, o.slab, o.word - w.arena->slabs[o.slab].first_word, 1);
			places[i] = places[--n];
		}
		while ((n += take(&w, k, places + n, LIVE - n)) < LIVE)
			add_slab(&w, k);
	}
	n_slabs = k->nodes[0].n_slabs;
	check_node(&w, k, 0);
	while (n > 0) {
		struct slab_object o;

		CU_ASSERT_FATAL(slab_find(w.arena, k, places[--n], &o));
		put(&w, k, o.slab, o.word - w.arena->slabs[o.slab].first_word, 1);
	}
	CU_ASSERT_EQUAL(k->nodes[0].n_slabs, 0);
	world_deinit(&w);
	return n_slabs;
}

/* A heap of which nine in ten were freed by chance packs under slob as it goes on, and less without; both have slabs of a page, and keep no
 * empty one. */
static void
test_slob_packs(void)
{
	uint64_t slob = slabs_after_churn(CACHE_POLICY_SLOB), slub = slabs_after_churn(CACHE_POLICY_SLUB);

	printf(" %llu slabs under slob, %llu under slub ", (unsigned long long)slob, (unsigned long long)slub);
	CU_ASSERT(slob * 3 < slub * 2);
}

/* Nothing idle anywhere, slabs as small as can be; who asks for something else, or tunes it, is refused by name. */
static void
test_slob_knobs(void)
{
	static const struct {
		struct cache_options options;
		const char *field;
	} wrong[] = {{{.sheaf_capacity = 10}, "sheaf_capacity 10"}, {{.barn_full = 3}, "barn_full 3"},
		{{.cpu_partial = 4}, "cpu_partial 4"}, {{.min_partial = 5}, "min_partial 5"}, {{.min_order = 1}, "min_order 1"},
		{{.max_order = 2}, "max_order 2"}, {{.min_objects = 6}, "min_objects 6"}};
	static const enum arena_profile profiles[] = {
		ARENA_PROFILE_DEFAULT, ARENA_PROFILE_KERNEL, ARENA_PROFILE_TINY, ARENA_PROFILE_SERVER};
	struct cache *k;
	struct world w;

	for (unsigned p = 0; p < 4; p++) {
		world_init(&w, 1 << 30, profiles[p]);
		for (uint32_t size = 8; size <= 32768; size *= 8) {
			char name[16];
			const struct cache_options options = {.name = name, .size = size, .policy = CACHE_POLICY_SLOB};

			snprintf(name, sizeof name, "k%u", size);
			k = open_cache(&w, &options);
			CU_ASSERT(k->policy == CACHE_POLICY_SLOB && k->is_sheafless);
			CU_ASSERT(k->barn_full == 0 && k->cpu_partial == 0 && k->min_partial == 0);
			CU_ASSERT_EQUAL(k->order, size <= 4096 ? 0 : 3);
		}
		for (uint32_t bit = 1; bit < CACHE_TUNE_ALL; bit *= 2) {
			const struct cache_tuning tuning = {
				.set = bit, .sheaf_capacity = 9, .barn_full = 9, .min_partial = 9, .max_cached = 99, .cpu_partial = 9};

			CU_ASSERT_EQUAL(cache_tune(k, &tuning, w.why, sizeof w.why), bit == CACHE_TUNE_MAX_CACHED ? 0 : -EINVAL);
			CU_ASSERT(k->barn_full == 0 && k->cpu_partial == 0 && k->min_partial == 0 && k->capacity == 1);
		}
		world_deinit(&w);
	}
	world_init(&w, 8 << 20, ARENA_PROFILE_DEFAULT);
	for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		struct cache_options options = wrong[i].options;

		options.name = "wrong";
		options.size = 64;
		options.policy = CACHE_POLICY_SLOB;
		CU_ASSERT_EQUAL(cache_open(w.arena, &options, &k, w.why, sizeof w.why), -EINVAL);
		CU_ASSERT(strstr(w.why, wrong[i].field) != NULL && strstr(w.why, "slob") != NULL);
		options.policy = CACHE_POLICY_SLOB + 1;
		CU_ASSERT_EQUAL(cache_open(w.arena, &options, &k, w.why, sizeof w.why), -EINVAL);
		CU_ASSERT(strstr(w.why, "policy 3") != NULL);
	}
	world_deinit(&w);
}

CU_pSuite
test_grant_suite(void)
{
	CU_pSuite suite = CU_add_suite("grant", NULL, NULL);

	CU_ADD_TEST(suite, test_whole_free_lists_in_order);
	CU_ADD_TEST(suite, test_discard_rule);
	CU_ADD_TEST(suite, test_order_fallback);
	CU_ADD_TEST(suite, test_node_barn_is_fifo_and_bounded);
	CU_ADD_TEST(suite, test_odd_sheaves_stay_out_of_the_barn);
	CU_ADD_TEST(suite, test_hand_over_conserves_objects);
	CU_ADD_TEST(suite, test_no_sheaves);
	CU_ADD_TEST(suite, test_profiles);
	CU_ADD_TEST(suite, test_knobs);
	CU_ADD_TEST(suite, test_match_rules);
	CU_ADD_TEST(suite, test_cache_limit);
	CU_ADD_TEST(suite, test_full_arena_and_relief);
	CU_ADD_TEST(suite, test_prefill_opens_the_barn);
	CU_ADD_TEST(suite, test_prefill_calls_the_idle_in);
	CU_ADD_TEST(suite, test_slots_are_bounded);
	CU_ADD_TEST(suite, test_list_lock_counts);
	CU_ADD_TEST(suite, test_grants_come_from_the_clients_node);
	CU_ADD_TEST(suite, test_carving_goes_on_with_the_next_node);
	CU_ADD_TEST(suite, test_mixed_sheaf_goes_home);
	CU_ADD_TEST(suite, test_barns_are_by_node);
	CU_ADD_TEST(suite, test_the_deads_objects_go_home);
	CU_ADD_TEST(suite, test_hand_over_between_nodes);
	CU_ADD_TEST(suite, test_names_of_the_dead);
	CU_ADD_TEST(suite, test_the_dying_are_left_alone);
	CU_ADD_TEST(suite, test_stash_spares_the_list_lock);
	CU_ADD_TEST(suite, test_stash_takes_few_slabs);
	CU_ADD_TEST(suite, test_stash_and_the_other_layers);
	CU_ADD_TEST(suite, test_stash_is_given_back);
	CU_ADD_TEST(suite, test_stash_grows_with_its_knob);
	CU_ADD_TEST(suite, test_stash_is_called_in_when_memory_is_short);
	CU_ADD_TEST(suite, test_stash_is_of_the_clients_node);
	CU_ADD_TEST(suite, test_stash_and_a_wrong_client);
	CU_ADD_TEST(suite, test_audit_looks_into_stashes);
	CU_ADD_TEST(suite, test_stash_knobs);
	CU_ADD_TEST(suite, test_slob_is_first_fit);
	CU_ADD_TEST(suite, test_slob_packs);
	CU_ADD_TEST(suite, test_slob_knobs);
	return suite;
}
