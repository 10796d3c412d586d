/* SPDX-License-Identifier: Apache-2.0 */
/* Client stashes (cpu_partial), and the policy slob. */
#include <stdlib.h>
#include <string.h>

#include "server/cache.h"
#include "server/reaper.h"
#include "server/recall.h"
#include "server/stash.h"
#include "shm/barn.h"
#include "tests/world.h"

CU_pSuite test_stash_suite(void);

enum { ME = LAYOUT_HOLDER_THREAD, MANY = 1024 };

/* What clients have set aside of the cache. */
static uint64_t
n_stashed(const struct world *w, const struct cache *k)
{
	uint64_t n = 0;

	for (int i = 0; i < WORLD_SESSIONS; i++)
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
	k = world_open_cache(w, options);
	for (unsigned i = 0; i < n_slabs; i++)
		world_add_slab(w, k);
	return k;
}

static void
decay(struct world *w)
{
	pthread_rwlock_rdlock(&w->arena->sessions_lock);
	recall_decay(w->arena);
	pthread_rwlock_unlock(&w->arena->sessions_lock);
}

/* What is set aside and not asked for goes back as what lies in a barn does, also where the barn is empty. */
static void
test_idle_stash_goes_back(void)
{
	const struct cache_options options = {.name = "k", .size = 64, .sheaf_capacity = 60, .cpu_partial = 120, .barn_full = LAYOUT_KNOB_NONE};
	struct grant grant;
	struct world w;
	struct cache *k = open_with_free(&w, &options, 8);

	CU_ASSERT_EQUAL(world_refill(&w, 0, k, 1, 0, &grant), 0);
	CU_ASSERT(world_take_full(&w, 0, k) >= 0);
	CU_ASSERT(n_stashed(&w, k) > 0);
	for (int i = 0; i < RECALL_TICKS; i++) {
		decay(&w);
		CU_ASSERT(n_stashed(&w, k) > 0);
	}
	decay(&w);
	CU_ASSERT_EQUAL(n_stashed(&w, k), 0);
	world_check(&w, k);
	world_deinit(&w);
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
			CU_ASSERT_EQUAL(world_refill(&w, 0, k, 1, 0, &grant), 0);
		CU_ASSERT_EQUAL(n_stashed(&w, k), 0);
		before = k->nodes[0].lock.n_acquired;
		for (int j = 0; j < 120; j++) {
			CU_ASSERT_EQUAL(world_refill(&w, 0, k, 1, 0, &grant), 0);
			CU_ASSERT_EQUAL(grant.n_objects, 60);
			CU_ASSERT(n_stashed(&w, k) <= k->cpu_partial);
		}
		CU_ASSERT_EQUAL(k->nodes[0].lock.n_acquired - before, golden[i].n_locks);
		/* The first one's sheaves count too. */
		CU_ASSERT_EQUAL(k->nodes[0].n_sheaves_granted, 120 + k->cpu_partial / 60 + 1);
		CU_ASSERT_EQUAL(k->nodes[0].n_carved, 200);
		CU_ASSERT_EQUAL(world_check(&w, k).n_in_stashes, n_stashed(&w, k));
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
	k = world_open_cache(&w, &options);
	CU_ASSERT_EQUAL_FATAL(k->n_slab_objects, 16);
	CU_ASSERT_EQUAL(k->cpu_partial_slabs, 7);
	for (int i = 0; i < 40; i++)
		slabs[i] = world_add_slab(&w, k);
	CU_ASSERT_EQUAL(world_take(&w, k, places, 40 * 16), 40 * 16);
	for (int i = 0; i < 40; i++)
		world_put(&w, k, slabs[i], 3, 1);
	CU_ASSERT_EQUAL(world_refill(&w, 0, k, 1, 0, &grant), 0);
	CU_ASSERT_EQUAL(grant.n_objects, 10);
	CU_ASSERT_EQUAL(n_stashed(&w, k), 7 / 2 + 1);
	CU_ASSERT_EQUAL(k->nodes[0].n_partial, 40 - 10 - 4);
	for (int i = 0; i < 40; i++) {
		world_put(&w, k, slabs[i], 0, 3);
		world_put(&w, k, slabs[i], 4, 12);
	}
	CU_ASSERT_EQUAL(world_check(&w, k).n_in_stashes, 4);
	world_deinit(&w);
}

/* The knob went down by several sheaves, and nothing was trimmed yet: the stash takes nothing more. */
static void
test_stash_of_a_knob_that_went_down(void)
{
	const struct cache_options options = {.name = "k", .size = 64, .sheaf_capacity = 60, .cpu_partial = 300};
	struct grant grant;
	struct world w;
	struct cache *k = open_with_free(&w, &options, 40);
	struct stash *stash;

	CU_ASSERT_EQUAL(world_refill(&w, 0, k, 1, 0, &grant), 0);
	stash = stash_of(w.sessions[0], k->id);
	CU_ASSERT_FATAL(stash != NULL && stash->size == 300);
	k->cpu_partial = 60;
	node_lock(&k->nodes[0]);
	CU_ASSERT_EQUAL(stash_restock(stash, w.sessions[0], &k->nodes[0], 100), 0);
	node_unlock(&k->nodes[0]);
	CU_ASSERT_EQUAL(stash->size, 300);
	CU_ASSERT_EQUAL(world_check(&w, k).n_in_stashes, 300);
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

	CU_ASSERT_EQUAL(world_refill(&w, 0, k, 1, 0, &grant), 0);
	CU_ASSERT_EQUAL(n_stashed(&w, k), 100);
	slot = world_take_full(&w, 0, k);
	world_give_back(&w, 0, k, slot, true);
	CU_ASSERT_EQUAL(k->nodes[0].n_full, 1);
	CU_ASSERT_EQUAL(world_refill(&w, 0, k, 1, 0, &grant), 0);
	CU_ASSERT_EQUAL(k->nodes[0].n_full, 0);
	CU_ASSERT_EQUAL(n_stashed(&w, k), 100);
	before = k->nodes[0].lock.n_acquired;
	CU_ASSERT_EQUAL(world_refill(&w, 0, k, 1, 33, &grant), 0);
	CU_ASSERT_EQUAL(grant.n_objects, 33);
	CU_ASSERT_EQUAL(n_stashed(&w, k), 67);
	CU_ASSERT_EQUAL(k->nodes[0].lock.n_acquired, before);
	CU_ASSERT_EQUAL(world_refill(&w, 0, k, 1, 80, &grant), 0);
	CU_ASSERT_EQUAL(grant.n_objects, 80);
	CU_ASSERT_EQUAL(n_stashed(&w, k), 100);
	CU_ASSERT_EQUAL(k->nodes[0].lock.n_acquired, before + 1);
	/* Another client has its own. */
	CU_ASSERT_EQUAL(world_refill(&w, 1, k, 1, 0, &grant), 0);
	CU_ASSERT_EQUAL(n_stashed(&w, k), 200);
	CU_ASSERT_EQUAL(w.sessions[0]->n_drawn[k->id], 60 + 33 + 80 + 100);
	CU_ASSERT_EQUAL(world_check(&w, k).n_in_stashes, 200);
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

		CU_ASSERT_EQUAL(world_refill(&w, 0, k, 1, 10, &grant), 0);
		CU_ASSERT_EQUAL(n_stashed(&w, k), 100);
		if (way == TUNE) {
			pthread_rwlock_wrlock(&w.arena->sessions_lock);
			CU_ASSERT_EQUAL(cache_tune(k, &tuning, w.why, sizeof w.why), 0);
			pthread_rwlock_unlock(&w.arena->sessions_lock);
		}
		if (way != DEATH)
			world_lock(w.sessions[0]);
		if (way == DEATH)
			reaper_reap(w.sessions[0]);
		else if (way == CLOSE)
			grant_close(w.sessions[0], k);
		else if (way == SHRINK)
			recall_shrink(w.arena, w.sessions[0], k);
		else if (way == TUNE)
			stash_trim(w.sessions[0], k, k->cpu_partial);
		if (way != DEATH)
			world_unlock(w.sessions[0]);
		if (way == DEATH)
			w.sessions[0] = NULL;
		if (way == OTHERS_SHRINK) {
			world_lock(w.sessions[1]);
			recall_shrink(w.arena, w.sessions[1], k);
			world_unlock(w.sessions[1]);
		}
		CU_ASSERT_EQUAL(n_stashed(&w, k), n_left);
		CU_ASSERT_EQUAL(world_check(&w, k).n_out, n_left + (way == DEATH ? 0 : 10));
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

	CU_ASSERT_EQUAL(world_refill(&w, 0, k, 1, 20, &grant), 0);
	CU_ASSERT_EQUAL(n_stashed(&w, k), 60);
	CU_ASSERT_EQUAL(cache_tune(k, &more, w.why, sizeof w.why), 0);
	CU_ASSERT_EQUAL(world_refill(&w, 0, k, 1, 70, &grant), 0);
	CU_ASSERT_EQUAL(n_stashed(&w, k), 500);
	CU_ASSERT_EQUAL(world_check(&w, k).n_in_stashes, 500);
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
	k = world_open_cache(&w, &options);
	k2 = world_open_cache(&w, &other);
	for (int i = 0; i < 512; i++)
		world_add_slab(&w, k);
	CU_ASSERT_EQUAL(world_refill(&w, 0, k, 1, 10, &grant), 0);
	CU_ASSERT_EQUAL(n_stashed(&w, k), 300);
	/* The second takes what is left in the slabs, and sets aside what it can; then the first one's. */
	CU_ASSERT_EQUAL(world_refill(&w, 1, k2, 1, 0, &grant), 0);
	CU_ASSERT_EQUAL(n_stashed(&w, k), 0);
	CU_ASSERT_EQUAL(n_stashed(&w, k2), 0);
	world_take_everything(&w, k, taken, MANY, &n_objects);
	CU_ASSERT_EQUAL(world_refill(&w, 1, k, 1, 0, &grant), -ENOMEM);
	CU_ASSERT_EQUAL(n_stashed(&w, k) + n_stashed(&w, k2), 0);
	CU_ASSERT_EQUAL(world_check(&w, k).n_free, 0);
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

	world_init_on(&w, 8 << 20, ARENA_PROFILE_DEFAULT, &world_two_nodes);
	k = world_open_cache(&w, &options);
	for (unsigned turn = 0; turn < 6; turn++) {
		unsigned node = turn / 2 % 2;
		struct stash *stash;

		CU_ASSERT_EQUAL(world_refill_on(&w, 0, k, 1, 10, node ? 3 : 0, &grant), 0);
		CU_ASSERT_EQUAL(world_count_on(&w, 0, (int32_t)grant.slot, node), 10);
		stash = stash_of(w.sessions[0], k->id);
		CU_ASSERT_EQUAL(stash->node, node);
		CU_ASSERT(stash->size > 0);
		for (uint32_t i = 0; i < stash->size; i++)
			CU_ASSERT_EQUAL(world_node_of(&w, stash->place[i]), node);
		world_check(&w, k);
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

	CU_ASSERT_EQUAL(world_refill(&w, 0, k, 1, 4, &grant), 0);
	stash = stash_of(w.sessions[0], k->id);
	CU_ASSERT_EQUAL_FATAL(stash->size, 40);
	CU_ASSERT_EQUAL(world_refill(&w, 1, k, 1, 1, &grant), 0);
	/* Its own sheaf says that it frees one of the first one's. */
	sheaf = session_sheaf(w.sessions[1], grant.slot);
	sheaf->entry[0] = stash->place[7];
	CU_ASSERT(barn_take(&session_slots(w.sessions[1])[grant.slot], LAYOUT_HOLDER_APP, ME));
	world_give_back(&w, 1, k, (int32_t)grant.slot, true);
	/* And it names another. */
	CU_ASSERT_FATAL(slab_find(w.arena, k, stash->place[8], &o));
	w.arena->words[o.word] += WORD_GENERATION_ONE + w.sessions[1]->client;
	world_lock(w.sessions[0]);
	stash_trim(w.sessions[0], k, 0);
	world_unlock(w.sessions[0]);
	world_check_node(&w, k, 0);
	CU_ASSERT_EQUAL(slab_get(w.arena, o.word), SLAB_OUT);
	reaper_reap(w.sessions[1]);
	w.sessions[1] = NULL;
	world_check_node(&w, k, 0);
	reaper_reap(w.sessions[0]);
	w.sessions[0] = NULL;
	world_check_node(&w, k, 0);
	w.arena->words[o.word] = 0;
	world_put(&w, k, o.slab, o.word - w.arena->slabs[o.slab].first_word, 1);
	/* The object that the wrong client left out of its sheaf is lost, and no other. */
	CU_ASSERT_EQUAL(k->nodes[0].n_objects - k->nodes[0].n_free, 1);
	for (uint32_t i = 0; i < 64 && k->nodes[0].n_slabs; i++)
		if (slab_get(w.arena, w.arena->slabs[o.slab].first_word + i) == SLAB_OUT)
			world_put(&w, k, o.slab, i, 1);
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

	CU_ASSERT_EQUAL(world_refill(&w, 0, k, 1, 4, &grant), 0);
	sheaf = session_sheaf(w.sessions[0], grant.slot);
	stash = stash_of(w.sessions[0], k->id);
	audit = world_check(&w, k);
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
		k = world_open_cache(&w, &options);
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
	CU_ASSERT_EQUAL(world_open_cache(&w, &(const struct cache_options){.name = "k", .size = 64})->cpu_partial,
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
	k = world_open_cache(&w, &options);
	CU_ASSERT_EQUAL_FATAL(k->n_slab_objects, 16);
	for (int i = 0; i < 3; i++)
		slabs[i] = world_add_slab(&w, k);
	for (int i = 0; i < 3; i++)
		for (int j = i + 1; j < 3; j++)
			if (w.arena->slabs[slabs[j]].first_page < w.arena->slabs[slabs[i]].first_page) {
				got = slabs[i];
				slabs[i] = slabs[j];
				slabs[j] = got;
			}
	/* All, from the lowest place up. */
	CU_ASSERT_EQUAL(world_take(&w, k, places, 48), 48);
	for (int i = 0; i < 48; i++)
		CU_ASSERT_EQUAL(places[i], slab_place(w.arena, k, slabs[i / 16], (uint32_t)i % 16));
	for (unsigned i = 0; i < 6; i++)
		world_put(&w, k, slabs[freed[i].slab], freed[i].object, 1);
	for (unsigned i = 0; i < 6; i++) {
		CU_ASSERT_EQUAL(world_take(&w, k, &got, 1), 1);
		CU_ASSERT_EQUAL(got, slab_place(w.arena, k, slabs[expected[i].slab], expected[i].object));
	}
	/* Freed below while above is free: below is taken. */
	world_put(&w, k, slabs[2], 4, 1);
	world_put(&w, k, slabs[0], 8, 1);
	CU_ASSERT_EQUAL(world_take(&w, k, &got, 1), 1);
	CU_ASSERT_EQUAL(got, slab_place(w.arena, k, slabs[0], 8));
	world_put(&w, k, slabs[2], 5, 1);
	/* An empty slab goes back at once. */
	for (int i = 0; i < 3; i++) {
		world_put(&w, k, slabs[i], 0, i == 2 ? 4 : 16);
		if (i == 2)
			world_put(&w, k, slabs[i], 6, 10);
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

	CU_ASSERT_EQUAL(world_take(&w, k, places, N), N);
	for (int round = 0; round < ROUNDS; round++) {
		uint32_t n_kept = LIVE - LIVE / 8;

		while (n > n_kept) {
			uint32_t i = (uint32_t)rand_r(&seed) % n;
			struct slab_object o;

			CU_ASSERT_FATAL(slab_find(w.arena, k, places[i], &o));
			world_put(&w, k, o.slab, o.word - w.arena->slabs[o.slab].first_word, 1);
			places[i] = places[--n];
		}
		while ((n += world_take(&w, k, places + n, LIVE - n)) < LIVE)
			world_add_slab(&w, k);
	}
	n_slabs = k->nodes[0].n_slabs;
	world_check_node(&w, k, 0);
	while (n > 0) {
		struct slab_object o;

		CU_ASSERT_FATAL(slab_find(w.arena, k, places[--n], &o));
		world_put(&w, k, o.slab, o.word - w.arena->slabs[o.slab].first_word, 1);
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
		{{.barn_empty = 8}, "barn_empty 8"}, {{.max_order = 2}, "max_order 2"}, {{.min_objects = 6}, "min_objects 6"}};
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
			k = world_open_cache(&w, &options);
			CU_ASSERT(k->policy == CACHE_POLICY_SLOB && k->is_sheafless);
			CU_ASSERT(k->barn_full == 0 && k->cpu_partial == 0 && k->min_partial == 0);
			CU_ASSERT_EQUAL(k->order, size <= 4096 ? 0 : 3);
		}
		for (uint32_t bit = 1; bit < CACHE_TUNE_ALL; bit *= 2) {
			const struct cache_tuning tuning = {
				.set = bit, .sheaf_capacity = 9, .barn_full = 9, .min_partial = 9, .max_cached = 99, .cpu_partial = 9, .barn_empty = 9};

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
test_stash_suite(void)
{
	CU_pSuite suite = CU_add_suite("stash", NULL, NULL);

	CU_ADD_TEST(suite, test_idle_stash_goes_back);
	CU_ADD_TEST(suite, test_stash_spares_the_list_lock);
	CU_ADD_TEST(suite, test_stash_takes_few_slabs);
	CU_ADD_TEST(suite, test_stash_of_a_knob_that_went_down);
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
