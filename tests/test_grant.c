/* SPDX-License-Identifier: Apache-2.0 */
/* Grants and take-backs: how sheaves pass between slabd and its clients, and what is called in when memory is short. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "server/reaper.h"
#include "shm/barn.h"
#include "tests/world.h"

CU_pSuite test_grant_suite(void);

enum { ME = LAYOUT_HOLDER_THREAD, MANY = 1024 };

/*
 * A prefilled sheaf of another size than the cache's is not a sheaf for the next client: its slot would be too small.  A larger one becomes
 * several of the cache's size, which as a whole serve the next one like it; a smaller one goes to the slabs.
 */
static void
test_odd_sheaves_are_cut_for_the_barn(void)
{
	const struct cache_options options = {.name = "k", .size = 64};
	static const uint32_t sizes[] = {1, 10, 61, 500, LAYOUT_MAX_SHEAF};
	struct grant grant;
	struct world w;
	struct cache *k;

	for (unsigned i = 0; i < 5; i++) {
		uint32_t n;

		world_init(&w, 64 << 20, ARENA_PROFILE_DEFAULT);
		k = world_open_cache(&w, &options);
		n = sizes[i] >= k->capacity ? sizes[i] : 0;
		/* The second time most of it comes out of the barn. */
		for (int j = 0; j < 2; j++) {
			CU_ASSERT_EQUAL(world_refill(&w, 0, k, 1, sizes[i], &grant), 0);
			CU_ASSERT_EQUAL(grant.n_objects, sizes[i]);
			CU_ASSERT(barn_take(&session_slots(w.sessions[0])[grant.slot], LAYOUT_HOLDER_APP, ME));
			world_give_back(&w, 0, k, (int32_t)grant.slot, true);
			CU_ASSERT(j > 0 || k->nodes[0].n_full == (n + k->capacity - 1) / k->capacity);
			CU_ASSERT(j > 0 ? k->nodes[0].n_barn >= n : k->nodes[0].n_barn == n);
			for (const struct node_sheaf *s = k->nodes[0].first_full; s; s = s->next)
				CU_ASSERT(s->size <= k->capacity);
		}
		world_check(&w, k);
		if (i < 4)
			world_deinit(&w);
	}
	for (int i = 0; i < 20; i++) {
		int32_t slot;

		CU_ASSERT_EQUAL(world_refill(&w, 1, k, 1, 0, &grant), 0);
		slot = world_take_full(&w, 1, k);
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
	int32_t held[WORLD_SESSIONS][64];
	unsigned n_held[WORLD_SESSIONS] = {0};
	struct grant grant;
	struct world w;
	struct cache *k;

	world_init(&w, 64 << 20, ARENA_PROFILE_DEFAULT);
	k = world_open_cache(&w, &options);
	for (int turn = 0; turn < 3000; turn++) {
		int i = rand_r(&seed) % WORLD_SESSIONS;

		if (rand_r(&seed) % 2 && n_held[i] < 64) {
			CU_ASSERT_EQUAL(world_refill(&w, i, k, 1 + (uint32_t)rand_r(&seed) % 4, 0, &grant), 0);
			while (n_held[i] < 64 && (held[i][n_held[i]] = world_take_full(&w, i, k)) >= 0)
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
			world_give_back(&w, i, k, held[i][--n_held[i]], rand_r(&seed) % 2);
		}
		if (turn % 100 == 0)
			world_check(&w, k);
	}
	/* Their ends bring everything back but what is kept under their names. */
	for (int i = 0; i < WORLD_SESSIONS; i++) {
		reaper_reap(w.sessions[i]);
		w.sessions[i] = NULL;
	}
	CU_ASSERT_EQUAL(world_check(&w, k).n_out, world_check(&w, k).n_orphans);
	world_deinit(&w);
}

/* Sheaves that come back stay, empty, on the client's list, as far as barn_empty goes, now and after a tuning. */
static void
test_empties_stay_as_the_knob_says(void)
{
	static const uint32_t knobs[] = {LAYOUT_KNOB_NONE, 3, 300, 0}, left[] = {0, 3, 256, 256};

	for (int n = 0; n < 4; n++) {
		const struct cache_options options = {.name = "k", .size = 64, .sheaf_capacity = 10, .barn_empty = knobs[n]};
		int32_t slots[400];
		struct grant grant;
		struct world w;
		struct cache *k;
		uint32_t i = 0;

		world_init(&w, 64 << 20, ARENA_PROFILE_DEFAULT);
		k = world_open_cache(&w, &options);
		while (i < 400) {
			CU_ASSERT_EQUAL_FATAL(world_refill(&w, 0, k, 1, 0, &grant), 0);
			slots[i] = world_take_full(&w, 0, k);
			CU_ASSERT_FATAL(slots[i++] >= 0);
		}
		while (i-- > 0)
			world_give_back(&w, 0, k, slots[i], i == 0);
		CU_ASSERT_EQUAL(barn_count(atomic_read(&session_cache(w.sessions[0], k->id)->empty)), left[n]);
		/* A tuning lets the others go. */
		k->barn_empty = left[n] / 2;
		world_lock(w.sessions[0]);
		grant_trim(w.sessions[0], k);
		world_unlock(w.sessions[0]);
		CU_ASSERT_EQUAL(barn_count(atomic_read(&session_cache(w.sessions[0], k->id)->empty)), left[n] / 2);
		world_deinit(&w);
	}
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
	k = world_open_cache(&w, &options);
	CU_ASSERT(k->is_sheafless);
	CU_ASSERT_EQUAL(k->barn_full, 0);
	for (int i = 0; i < 10; i++) {
		CU_ASSERT_EQUAL(world_refill(&w, 0, k, 1, 0, &grant), 0);
		CU_ASSERT_EQUAL(grant.n_objects, 1);
		slots[i] = world_take_full(&w, 0, k);
		CU_ASSERT_FATAL(slots[i] >= 0);
	}
	CU_ASSERT_EQUAL(world_check(&w, k).n_out, 10);
	for (int i = 0; i < 10; i++) {
		world_give_back(&w, 0, k, slots[i], true);
		CU_ASSERT_EQUAL(world_check(&w, k).n_out, 9 - (unsigned)i);
		CU_ASSERT_EQUAL(k->nodes[0].n_barn, 0);
	}
	world_deinit(&w);
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
	k = world_open_cache(&w, &options);
	k2 = world_open_cache(&w, &other);
	n = world_take_everything(&w, k, taken, MANY, &n_objects);
	CU_ASSERT_EQUAL(n_objects, 512);
	CU_ASSERT_EQUAL(w.arena->committed_bytes, 2 << 20);
	/* Threads hold it all. */
	CU_ASSERT_EQUAL(world_refill(&w, 1, k, 1, 0, &grant), -ENOMEM);
	CU_ASSERT_EQUAL(world_refill(&w, 1, k2, 1, 0, &grant), -ENOMEM);
	CU_ASSERT_PTR_NOT_NULL(strstr(w.why, "--arena-size"));
	CU_ASSERT_EQUAL(world_check(&w, k).n_in_sheaves, 512);
	/* It is idle: the second client gets some, of the same cache and of another. */
	make_idle(&w, k, taken, n);
	CU_ASSERT_EQUAL(world_refill(&w, 1, k2, 1, 0, &grant), 0);
	CU_ASSERT_EQUAL(grant.n_objects, k2->capacity);
	CU_ASSERT_EQUAL(world_take_full(&w, 0, k), -1);
	CU_ASSERT_EQUAL(world_refill(&w, 1, k, 1, 0, &grant), 0);
	world_check(&w, k);
	world_check(&w, k2);
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
	k = world_open_cache(&w, &options);
	for (int i = 0; i < 20; i++) {
		CU_ASSERT_EQUAL(world_refill(&w, 0, k, 1, 0, &grant), 0);
		slots[i] = world_take_full(&w, 0, k);
		CU_ASSERT_FATAL(slots[i] >= 0);
	}
	for (int i = 0; i < 20; i++)
		world_give_back(&w, 0, k, slots[i], true);
	CU_ASSERT_EQUAL(k->nodes[0].n_full, 20);
	n_objects = k->nodes[0].n_objects;
	for (int i = 0; i < 20; i++) {
		CU_ASSERT_EQUAL(world_refill(&w, 1, k, 1, 45, &grant), 0);
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
	k = world_open_cache(&w, &options);
	n = world_take_everything(&w, k, taken, MANY, &n_objects);
	/* One sheaf's objects in slabs, the rest idle with the first client. */
	make_idle(&w, k, taken, n - 1);
	world_lock(w.sessions[0]);
	barn_hand(&session_slots(w.sessions[0])[taken[n - 1]], LAYOUT_HOLDER_SLABD);
	grant_take_back(w.sessions[0], (uint32_t)taken[n - 1], false);
	session_slot_put(w.sessions[0], (uint32_t)taken[n - 1]);
	world_unlock(w.sessions[0]);
	CU_ASSERT(k->nodes[0].n_free > 0 && k->nodes[0].n_free < 100);
	CU_ASSERT_EQUAL(world_refill(&w, 1, k, 1, 100, &grant), 0);
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
	k = world_open_cache(&w, &options);
	while (n <= LAYOUT_MAX_SLOTS && world_refill(&w, 0, k, 64, 0, &grant) == 0) {
		n += grant.n_sheaves;
		while ((slot = world_take_full(&w, 0, k)) >= 0)
			session_sheaf(w.sessions[0], (uint32_t)slot)->size = 0; /* dropped: their objects are of no interest here */
	}
	CU_ASSERT_EQUAL(n, LAYOUT_MAX_SLOTS);
	CU_ASSERT_PTR_NOT_NULL(strstr(w.why, "16384"));
	world_give_back(&w, 0, k, 77, true);
	CU_ASSERT_EQUAL(world_refill(&w, 0, k, 1, 0, &grant), 0);
	CU_ASSERT_EQUAL(world_take_full(&w, 0, k), 77);
	for (int i = 0; i < WORLD_SESSIONS; i++)
		session_end(w.sessions[i], false);
	arena_free(w.arena);
}

/* Who asks on and on where nothing is left does not hold the loop up each time, while on another session somebody is at work; what comes free is found at once. */
static void
test_refusals_do_not_wait_each_time(void)
{
	enum { N_REFUSED = 100 };
	const struct cache_options options = {.name = "k", .size = 4096};
	struct rusage before, after;
	struct grant grant;
	int32_t slot = -1, taken;
	struct world w;
	struct cache *k;

	world_init(&w, 2 << 20, ARENA_PROFILE_DEFAULT);
	k = world_open_cache(&w, &options);
	while (world_refill(&w, 0, k, 1, 0, &grant) == 0)
		while ((taken = world_take_full(&w, 0, k)) >= 0)
			slot = taken;
	pthread_mutex_lock(&w.sessions[1]->work);
	getrusage(RUSAGE_THREAD, &before);
	for (int i = 0; i < N_REFUSED; i++)
		CU_ASSERT_EQUAL(world_refill(&w, 0, k, 1, 0, &grant), -ENOMEM);
	getrusage(RUSAGE_THREAD, &after);
	CU_ASSERT(after.ru_nvcsw - before.ru_nvcsw < N_REFUSED);
	world_give_back(&w, 0, k, slot, false);
	CU_ASSERT_EQUAL(world_refill(&w, 0, k, 1, 0, &grant), 0);
	pthread_mutex_unlock(&w.sessions[1]->work);
	for (int i = 0; i < WORLD_SESSIONS; i++)
		session_end(w.sessions[i], false);
	arena_free(w.arena);
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
	k = world_open_cache(&w, &options);
	n = world_take_everything(&w, k, taken, MANY, &n_objects);
	make_idle(&w, k, taken, n);
	w.sessions[0]->state = SESSION_DYING;
	CU_ASSERT_EQUAL(world_refill(&w, 1, k, 1, 0, &grant), -ENOMEM);
	CU_ASSERT_EQUAL(world_check(&w, k).n_in_sheaves, 512);
	reaper_reap(w.sessions[0]);
	w.sessions[0] = NULL;
	CU_ASSERT_EQUAL(world_refill(&w, 1, k, 1, 0, &grant), 0);
	CU_ASSERT_EQUAL(world_check(&w, k).n_in_sheaves, k->capacity);
	world_deinit(&w);
}

CU_pSuite
test_grant_suite(void)
{
	CU_pSuite suite = CU_add_suite("grant", NULL, NULL);

	CU_ADD_TEST(suite, test_odd_sheaves_are_cut_for_the_barn);
	CU_ADD_TEST(suite, test_hand_over_conserves_objects);
	CU_ADD_TEST(suite, test_empties_stay_as_the_knob_says);
	CU_ADD_TEST(suite, test_no_sheaves);
	CU_ADD_TEST(suite, test_full_arena_and_relief);
	CU_ADD_TEST(suite, test_prefill_opens_the_barn);
	CU_ADD_TEST(suite, test_prefill_calls_the_idle_in);
	CU_ADD_TEST(suite, test_slots_are_bounded);
	CU_ADD_TEST(suite, test_refusals_do_not_wait_each_time);
	CU_ADD_TEST(suite, test_the_dying_are_left_alone);
	return suite;
}
