/* SPDX-License-Identifier: Apache-2.0 */
/* What is done for the dead, and whom words may still name. */
#include <stdlib.h>

#include "server/reaper.h"
#include "tests/world.h"

CU_pSuite test_reaper_suite(void);

enum { MAX_NAMED = 4096 }; /* as in server/session.c */

/* The dead: objects of both nodes that name them, and sheaves of both, are freed into their own nodes' slabs. */
static void
test_the_deads_objects_go_home(void)
{
	const struct cache_options options = {.name = "k", .size = 256, .flags = LAYOUT_CACHE_RECLAIM, .min_partial = 100};
	struct grant grant;
	struct world w;
	struct cache *k;

	world_init_on(&w, 8 << 20, ARENA_PROFILE_DEFAULT, &world_two_nodes);
	k = world_open_cache(&w, &options);
	for (unsigned n = 0; n < 2; n++) {
		struct sheaf *sheaf;

		CU_ASSERT_EQUAL(world_refill_on(&w, 0, k, 1, 50 + n, n ? 3 : 0, &grant), 0);
		sheaf = session_sheaf(w.sessions[0], grant.slot);
		for (int i = 0; i < 20; i++) {
			struct slab_object o;

			CU_ASSERT_FATAL(slab_find(w.arena, k, sheaf->entry[--sheaf->size], &o));
			w.arena->words[o.word] += WORD_GENERATION_ONE + w.sessions[0]->client;
		}
	}
	CU_ASSERT_EQUAL(world_check(&w, k).n_held, 40);
	reaper_reap(w.sessions[0]);
	w.sessions[0] = NULL;
	CU_ASSERT_EQUAL(world_check(&w, k).n_out, 0);
	for (unsigned n = 0; n < 2; n++)
		CU_ASSERT_EQUAL(k->nodes[n].n_free + k->nodes[n].n_barn, k->nodes[n].n_objects);
	world_deinit(&w);
}

static uint32_t
count_named(const struct world *w, uint32_t client)
{
	uint32_t n = 0;

	for (uint32_t number = 1; number <= w->arena->n_slabs; number++)
		for (uint32_t i = 0; w->arena->slabs[number].cache && i < w->arena->slabs[number].n_objects; i++)
			n += word_owner(w->arena->words[w->arena->slabs[number].first_word + i]) == client;
	return n;
}

enum { N_DEAD = 64, N_SHEAF = 50, N_HELD = 20 };

/* Sheaves of both caches, some of whose objects it holds: freed half-way, owned, or shared. */
static struct session *
make_holder(struct world *w, struct cache *const *caches)
{
	struct session *session = NULL;

	CU_ASSERT_EQUAL_FATAL(session_new(&session, w->arena, &world_who, w->why, sizeof w->why), 0);
	for (int i = 0; i < 2; i++) {
		const struct grant_request request = {.n_sheaves = 1, .capacity = N_SHEAF};
		struct sheaf *sheaf;
		struct grant grant;

		session_set_open(session, caches[i], true);
		world_lock(session);
		CU_ASSERT_EQUAL_FATAL(grant_refill(session, caches[i], &request, &grant, w->why, sizeof w->why), 0);
		world_unlock(session);
		sheaf = session_sheaf(session, grant.slot);
		for (uint32_t j = 0; j < N_HELD; j++) {
			static const uint32_t states[] = {WORD_OWNED, WORD_SHARED, WORD_CLOSING, WORD_OWNED};
			struct slab_object o;

			CU_ASSERT_FATAL(slab_find(w->arena, caches[i], sheaf->entry[--sheaf->size], &o));
			w->arena->words[o.word] = word_with(w->arena->words[o.word] + WORD_GENERATION_ONE, session->client, states[j % 4]);
		}
	}
	return session;
}

/* Who ends together is reaped together: one look at each word serves all, and nobody else's object changes, not even of one who is dying
 * too. */
static void
test_one_walk_for_all_the_dead(void)
{
	const struct cache_options reclaim = {.name = "reclaim", .size = 64, .flags = LAYOUT_CACHE_RECLAIM, .min_partial = 1000},
				   kept = {.name = "kept", .size = 256, .min_partial = 1000};
	struct session *first = NULL, *alive, *later;
	uint32_t clients[N_DEAD];
	struct cache *caches[2];
	uint64_t n_words = 0;
	struct world w;

	world_init(&w, 64 << 20, ARENA_PROFILE_DEFAULT);
	caches[0] = world_open_cache(&w, &reclaim);
	caches[1] = world_open_cache(&w, &kept);
	alive = make_holder(&w, caches);
	later = make_holder(&w, caches);
	later->state = SESSION_DYING;
	for (int i = 0; i < N_DEAD; i++) {
		struct session *session = make_holder(&w, caches);

		clients[i] = session->client;
		session->next_dying = first;
		first = session;
	}
	for (int i = 0; i < 2; i++)
		n_words += caches[i]->nodes[0].n_objects;
	CU_ASSERT_EQUAL(world_check(&w, caches[0]).n_in_sheaves, (N_DEAD + 2) * (N_SHEAF - N_HELD));

	CU_ASSERT_EQUAL(reaper_reap(first), n_words);
	for (int i = 0; i < N_DEAD; i++)
		CU_ASSERT(w.arena->sessions[clients[i]] == NULL);
	CU_ASSERT_EQUAL(world_check(&w, caches[0]).n_out, 2 * N_SHEAF);
	/* A free that was begun is finished, the others stay. */
	CU_ASSERT_EQUAL(world_check(&w, caches[1]).n_out, 2 * N_SHEAF + N_DEAD * N_HELD * 3 / 4);
	CU_ASSERT_EQUAL(world_check(&w, caches[1]).n_held, N_HELD);
	CU_ASSERT_EQUAL(count_named(&w, alive->client), 2 * N_HELD);
	CU_ASSERT_EQUAL(count_named(&w, later->client), 2 * N_HELD);
	for (int i = 0; i < N_DEAD; i++) {
		CU_ASSERT_EQUAL(count_named(&w, clients[i]), N_HELD * 3 / 4);
		CU_ASSERT(w.arena->named[clients[i]]);
	}
	reaper_reap(later);
	reaper_reap(alive);
	CU_ASSERT_EQUAL(world_check(&w, caches[0]).n_out, 0);
	CU_ASSERT_EQUAL(world_check(&w, caches[1]).n_orphans, (N_DEAD + 2) * N_HELD * 3 / 4);
	world_deinit(&w);
}

/* A session that ends and leaves one object, of the sheaf's top, under its name; its slot. */
static uint32_t
die_and_leave_one(struct world *w, struct cache *k, struct sheaf *sheaf, uint32_t state, uint32_t *wordp)
{
	struct session *session = NULL;
	struct slab_object o;
	uint32_t client;

	CU_ASSERT_EQUAL_FATAL(session_new(&session, w->arena, &world_who, w->why, sizeof w->why), 0);
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
	k = world_open_cache(&w, &options);
	for (n = 0; n <= MAX_NAMED; n++) {
		uint32_t client;

		if (!sheaf || sheaf->size == 0) {
			CU_ASSERT_EQUAL_FATAL(world_refill(&w, 0, k, 1, LAYOUT_MAX_SHEAF, &grant), 0);
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
		CU_ASSERT_EQUAL_FATAL(session_new(&session, w.arena, &world_who, w.why, sizeof w.why), 0);
		CU_ASSERT(session->client != first && session->client != second);
		CU_ASSERT_EQUAL(count_named(&w, first), 1);
		CU_ASSERT_EQUAL(word_owner(w.arena->words[first_word]), first);
		session_end(session, false);
	}
	CU_ASSERT_EQUAL(w.arena->n_named, MAX_NAMED + 1);
	before = w.arena->words[first_word];
	/* One more than the cap: who comes to the slot gets it, and no name of its dead. */
	w.arena->next_client = first;
	CU_ASSERT_EQUAL_FATAL(session_new(&session, w.arena, &world_who, w.why, sizeof w.why), 0);
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
	CU_ASSERT_EQUAL_FATAL(session_new(&session, w.arena, &world_who, w.why, sizeof w.why), 0);
	CU_ASSERT(session->client != second);
	CU_ASSERT_EQUAL(word_owner(w.arena->words[second_word]), second);
	session_end(session, false);
	/* The audit counts it where it was: kept, and nobody's. */
	CU_ASSERT_EQUAL(world_check(&w, k).n_orphans, MAX_NAMED + 1);
	world_deinit(&w);
}

CU_pSuite
test_reaper_suite(void)
{
	CU_pSuite suite = CU_add_suite("reaper", NULL, NULL);

	CU_ADD_TEST(suite, test_the_deads_objects_go_home);
	CU_ADD_TEST(suite, test_one_walk_for_all_the_dead);
	CU_ADD_TEST(suite, test_names_of_the_dead);
	return suite;
}
