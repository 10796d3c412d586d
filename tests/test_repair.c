/* SPDX-License-Identifier: Apache-2.0 */
/* Repair goes a portion at a time (server/repair.h): what comes to light, goes or comes back between two portions is taken as it is when it is met. */
#include <string.h>

#include "server/cache.h"
#include "server/repair.h"
#include "server/session.h"
#include "tests/world.h"

CU_pSuite test_repair_suite(void);

/* More than two batches of the audit (server/audit.c). */
enum { N_SHEAVES = 40, EACH = 1000, N = N_SHEAVES * EACH, MIB = 1 << 20 };

static struct audit_back told;
static unsigned n_told;

static void
tell(struct cache *cache, const struct audit_back *back)
{
	(void)cache;
	told = *back;
	n_told++;
}

/* The first session drops all that it has drawn: its slots. */
static void
drop(struct world *w, struct cache *k, uint32_t *slots)
{
	for (int i = 0; i < N_SHEAVES; i++) {
		struct grant grant;

		CU_ASSERT_EQUAL_FATAL(world_refill(w, 0, k, 1, EACH, &grant), 0);
		slots[i] = grant.slot;
	}
	for (int i = 0; i < N_SHEAVES; i++)
		atomic_write(&session_sheaf(w->sessions[0], slots[i])->size, 0);
}

static struct audit_walk *
begin(struct world *w)
{
	struct audit_walk *walk = NULL;

	n_told = 0;
	CU_ASSERT_EQUAL_FATAL(audit_begin(&walk, w->arena, 0, tell), 0);
	return walk;
}

static int
step(struct world *w, struct audit_walk *walk)
{
	int r;

	pthread_rwlock_rdlock(&w->arena->sessions_lock);
	r = audit_step(walk);
	pthread_rwlock_unlock(&w->arena->sessions_lock);
	return r;
}

/* Is all that the sheaf had OUT still? */
static bool
is_whole(const struct world *w, struct cache *k, const struct sheaf *sheaf)
{
	struct slab_object o;

	for (uint32_t i = 0; i < EACH; i++)
		if (!slab_find(w->arena, k, sheaf->entry[i], &o) || slab_get(w->arena, o.word) != SLAB_OUT)
			return false;
	return true;
}

/* Between two portions a client has in a sheaf again what the first would have called lost. */
static void
test_what_comes_back_between_portions_stays(void)
{
	const struct cache_options options = {.name = "k", .size = 16};
	uint32_t slots[N_SHEAVES];
	struct audit_walk *walk;
	uint64_t n_back = 0;
	struct cache *k;
	struct world w;
	int r;

	world_init(&w, 64 * MIB, ARENA_PROFILE_DEFAULT);
	k = world_open_cache(&w, &options);
	drop(&w, k, slots);
	walk = begin(&w);
	while ((r = step(&w, walk)) == AUDIT_E_MORE && audit_result(walk)->n_repaired == 0)
		;
	CU_ASSERT_EQUAL(r, AUDIT_E_MORE);
	for (int i = 0; i < N_SHEAVES; i++) {
		struct sheaf *sheaf = session_sheaf(w.sessions[0], slots[i]);

		if (is_whole(&w, k, sheaf)) {
			atomic_write(&sheaf->size, EACH);
			n_back += EACH;
		}
	}
	CU_ASSERT(n_back > 0);
	CU_ASSERT_EQUAL(n_told, 0);
	while (step(&w, walk) == AUDIT_E_MORE)
		;
	CU_ASSERT_EQUAL(audit_result(walk)->n_repaired, N - n_back);
	CU_ASSERT_EQUAL(audit_result(walk)->n_lost, N - n_back);
	CU_ASSERT_EQUAL(n_told, 1);
	CU_ASSERT_EQUAL(told.n, N - n_back);
	CU_ASSERT_EQUAL(told.bytes, (N - n_back) * 16);
	CU_ASSERT_EQUAL(w.arena->n_repaired, N - n_back);
	audit_end(walk);
	CU_ASSERT_EQUAL(world_check(&w, k).n_in_sheaves, n_back);
	world_deinit(&w);
}

/* Who asked for it goes away in the midst of it: what was taken back so far is told, and the rest is lost still. */
static void
test_what_is_given_up_is_told(void)
{
	const struct cache_options options = {.name = "k", .size = 16};
	uint32_t slots[N_SHEAVES];
	struct audit_walk *walk;
	struct audit audit;
	struct cache *k;
	struct world w;
	uint64_t n;

	world_init(&w, 64 * MIB, ARENA_PROFILE_DEFAULT);
	k = world_open_cache(&w, &options);
	drop(&w, k, slots);
	walk = begin(&w);
	while (step(&w, walk) == AUDIT_E_MORE && audit_result(walk)->n_repaired == 0)
		;
	n = audit_result(walk)->n_repaired;
	CU_ASSERT(n > 0 && n < N);
	audit_cancel(walk);
	CU_ASSERT_EQUAL(n_told, 1);
	CU_ASSERT_EQUAL(told.n, n);
	CU_ASSERT_EQUAL(audit_run(w.arena, k->id, &audit), 0);
	CU_ASSERT_EQUAL(audit.n_lost, N - n);
	CU_ASSERT_EQUAL(audit_take_back(w.arena, tell, &audit), 0);
	CU_ASSERT_EQUAL(audit.n_repaired, N - n);
	world_deinit(&w);
}

/* slabd does not see the sheaves of a session that it could not map again: then nothing is taken back. */
static void
test_unseen_sheaves_are_left_alone(void)
{
	const struct cache_options options = {.name = "k", .size = 16};
	struct audit audit;
	struct grant grant;
	struct cache *k;
	struct world w;
	void *map;

	world_init(&w, 64 * MIB, ARENA_PROFILE_DEFAULT);
	k = world_open_cache(&w, &options);
	CU_ASSERT_EQUAL_FATAL(world_refill(&w, 1, k, 1, EACH, &grant), 0);
	map = w.sessions[1]->map;
	w.sessions[1]->map = NULL;
	CU_ASSERT_EQUAL(audit_take_back(w.arena, tell, &audit), 0);
	CU_ASSERT_EQUAL(audit.n_lost, EACH);
	CU_ASSERT_EQUAL(audit.n_repaired, 0);
	w.sessions[1]->map = map;
	CU_ASSERT_EQUAL(world_check(&w, k).n_in_sheaves, EACH);
	world_deinit(&w);
}

/* Of its own accord: nothing while nothing is lost; then a pass over all caches, which says when one that began there is over. */
static void
test_pass_over_an_arena(void)
{
	const struct cache_options one = {.name = "one", .size = 64}, options = {.name = "k", .size = 16};
	uint32_t slots[N_SHEAVES];
	struct cache *k, *k1;
	struct grant grant;
	struct world w;
	uint64_t n;

	world_init(&w, 64 * MIB, ARENA_PROFILE_DEFAULT);
	k1 = world_open_cache(&w, &one);
	k = world_open_cache(&w, &options);
	CU_ASSERT_EQUAL_FATAL(world_refill(&w, 0, k1, 1, EACH, &grant), 0);
	CU_ASSERT(repair_arena(w.arena, &n));
	CU_ASSERT_EQUAL(n, 0);
	atomic_write(&session_sheaf(w.sessions[0], grant.slot)->size, 0);
	drop(&w, k, slots);
	/* One that is under way has passed the first already. */
	w.arena->repair->cache = k->id;
	w.arena->repair_due_ns = 0;
	CU_ASSERT(repair_arena(w.arena, &n));
	CU_ASSERT_EQUAL(n, N + EACH);
	CU_ASSERT_EQUAL(w.arena->n_repaired, N + EACH);
	/* What stays on the list goes when memory is short. */
	CU_ASSERT_EQUAL(world_check(&w, k).n_out + world_check(&w, k1).n_out, 0);
	world_deinit(&w);
}

CU_pSuite
test_repair_suite(void)
{
	CU_pSuite suite = CU_add_suite("repair", NULL, NULL);

	CU_ADD_TEST(suite, test_what_comes_back_between_portions_stays);
	CU_ADD_TEST(suite, test_what_is_given_up_is_told);
	CU_ADD_TEST(suite, test_unseen_sheaves_are_left_alone);
	CU_ADD_TEST(suite, test_pass_over_an_arena);
	return suite;
}
