/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The acts of victims, by the public interface alone: each path of a call, small enough to be died in at every step of it.
 *
 * What the stage says of the application: an object is held from the return of the call that gave it to the call that frees it; n_begun
 * counts the owner's objects that a call was asked to free or adopt, n_gone those of which it has returned.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/atomic.h"
#include "tests/kill_rig.h"

enum { N_FLOW = 20 };

const struct kill_kind kill_kinds[KILL_KINDS] = {
	{"reclaim", SLABC_RECLAIM, KILL_CAPACITY},
	{"keep", 0, KILL_CAPACITY},
	{"shared, keep", SLABC_SHARED, KILL_CAPACITY},
	{"debug, reclaim", SLABC_DEBUG | SLABC_RECLAIM, KILL_CAPACITY},
	{"no sheaves, keep", 0, SLABC_SHEAVES_NONE},
};

struct kill_stage *kill_stage;

/* A call that must succeed: victims say on which line it did not. */
#define NEED(ok) CHECK(ok)

struct slabc_cache *
kill_open_cache(struct slabc *c, uint32_t kind)
{
	struct slabc_cache_options o = SLABC_CACHE_OPTIONS_INIT;
	struct slabc_cache *k = NULL;
	char name[32];

	snprintf(name, sizeof name, "kill%u", kind);
	o.flags = kill_kinds[kind].flags;
	o.sheaf_capacity = kill_kinds[kind].capacity;
	o.max_cached = 4 * KILL_CAPACITY * KILL_OBJECT_BYTES;
	o.cpu_partial = SLABC_KNOB_NONE;
	NEED(slabc_cache_open(c, name, KILL_OBJECT_BYTES, &o, &k) == 0);
	return k;
}

static void
hold(struct kill_crew *crew, void *p)
{
	struct kill_stage *stage = crew->stage;

	NEED(p != NULL && crew->n < KILL_MAX_HELD);
	memset(p, (int)crew->n + 1, 64);
	crew->pv[crew->n++] = p;
	stage->held[stage->n_held] = (uint32_t)((uint64_t)((char *)p - crew->base) >> LAYOUT_PLACE_SHIFT);
	atomic_write_release(&stage->n_held, stage->n_held + 1);
}

static void *
let_go(struct kill_crew *crew)
{
	atomic_write_release(&crew->stage->n_held, crew->stage->n_held - 1);
	return crew->pv[--crew->n];
}

static void
alloc_some(struct kill_crew *crew, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		hold(crew, slabc_alloc(crew->k));
}

static void
alloc_bulk(struct kill_crew *crew, uint32_t n)
{
	void *pv[KILL_MAX_HELD];

	NEED(slabc_alloc_bulk(crew->k, n, pv) == 0);
	for (uint32_t i = 0; i < n; i++)
		hold(crew, pv[i]);
}

static void
free_bulk(struct kill_crew *crew)
{
	uint32_t n = crew->n;

	atomic_write_release(&crew->stage->n_held, 0);
	crew->n = 0;
	slabc_free_bulk(crew->k, n, crew->pv);
}

static void
free_last(struct kill_crew *crew)
{
	slabc_free(crew->k, let_go(crew));
}

static void
free_all(struct kill_crew *crew)
{
	while (crew->n)
		free_last(crew);
}

static void
hold_some(struct kill_crew *crew)
{
	alloc_some(crew, 3);
}

/* The one that is freed next is not the one that was allocated last: the entry that it gets was another's, which is held. */
static void
hold_out_of_order(struct kill_crew *crew)
{
	struct kill_stage *stage = crew->stage;
	uint32_t place;
	void *p;

	alloc_some(crew, 3);
	p = crew->pv[0];
	crew->pv[0] = crew->pv[2];
	crew->pv[2] = p;
	place = stage->held[0];
	stage->held[0] = stage->held[2];
	stage->held[2] = place;
}

/* So many that a sheaf is left half full. */
static void
hold_and_free(struct kill_crew *crew)
{
	alloc_some(crew, 4 * KILL_CAPACITY);
	while (crew->n > 3)
		free_last(crew);
}

static void
pair(struct kill_crew *crew)
{
	alloc_some(crew, 1);
	free_last(crew);
}

static void
first_alloc(struct kill_crew *crew)
{
	alloc_some(crew, 1);
}

static void
flow(struct kill_crew *crew)
{
	alloc_some(crew, N_FLOW);
	free_all(crew);
	alloc_some(crew, 2);
}

static void
hold_many(struct kill_crew *crew)
{
	alloc_some(crew, 12 * KILL_CAPACITY);
}

static void
bulk(struct kill_crew *crew)
{
	alloc_bulk(crew, 3);
	free_bulk(crew);
	alloc_bulk(crew, 2 * KILL_CAPACITY + 3);
	slabc_ref_of(crew->c, crew->pv[1]);
	free_bulk(crew);
}

static void
prefill(struct kill_crew *crew)
{
	struct slabc_sheaf *s = slabc_prefill(crew->k, KILL_CAPACITY + 2);

	NEED(s != NULL);
	hold(crew, slabc_alloc_from(crew->k, s));
	NEED(slabc_refill(crew->k, &s, KILL_CAPACITY) == 0);
	hold(crew, slabc_alloc_from(crew->k, s));
	NEED(slabc_refill(crew->k, &s, KILL_CAPACITY + 3) == 0);
	slabc_return(crew->k, s);
	s = slabc_prefill(crew->k, 3);
	NEED(s != NULL);
	slabc_return(crew->k, s);
}

static void
sized(struct kill_crew *crew)
{
	void *p;

	hold(crew, slabc_malloc(crew->c, 100));
	hold(crew, slabc_malloc(crew->c, 20000));
	p = slabc_realloc(crew->c, let_go(crew), 50000);
	hold(crew, p);
	slabc_mfree(crew->c, let_go(crew));
	p = slabc_realloc(crew->c, let_go(crew), 300);
	hold(crew, p);
	slabc_mfree(crew->c, let_go(crew));
}

static void
share(struct kill_crew *crew)
{
	NEED(slabc_ref_of(crew->c, crew->pv[crew->n - 1]) != 0);
	free_last(crew);
}

/* By pointer, or, of what is to be reclaimed, by reference. */
static void
free_foreign(struct kill_crew *crew, uint32_t i)
{
	struct kill_stage *stage = crew->stage;

	atomic_write_release(&stage->n_begun, i + 1);
	if (kill_kinds[stage->kind].flags & SLABC_RECLAIM)
		NEED(slabc_free_ref(crew->c, stage->refs[i]) == 0);
	else
		slabc_free(crew->k, slabc_deref(crew->c, stage->refs[i]));
	atomic_write_release(&stage->n_gone, i + 1);
}

static void
free_refs(struct kill_crew *crew)
{
	for (uint32_t i = 0; i < crew->stage->n_refs; i++) {
		atomic_write_release(&crew->stage->n_begun, i + 1);
		NEED(slabc_free_ref(crew->c, crew->stage->refs[i]) == 0);
		atomic_write_release(&crew->stage->n_gone, i + 1);
	}
}

static void
free_pointers(struct kill_crew *crew)
{
	for (uint32_t i = 0; i < crew->stage->n_refs; i++)
		free_foreign(crew, i);
	NEED(slabc_cache_shrink(crew->k) == 0);
}

static void
free_foreign_bulk(struct kill_crew *crew)
{
	struct kill_stage *stage = crew->stage;
	void *pv[KILL_MAX_REFS];

	if (kill_kinds[stage->kind].flags & SLABC_RECLAIM) {
		free_refs(crew);
		return;
	}
	for (uint32_t i = 0; i < stage->n_refs; i++)
		NEED((pv[i] = slabc_deref(crew->c, stage->refs[i])) != NULL);
	atomic_write_release(&stage->n_begun, stage->n_refs);
	slabc_free_bulk(crew->k, stage->n_refs, pv);
	atomic_write_release(&stage->n_gone, stage->n_refs);
	slabc_cache_close(crew->k);
}

/* The first one twice: whichever claim comes second is lost. */
static void
free_twice(struct kill_crew *crew)
{
	void *p = slabc_deref(crew->c, crew->stage->refs[0]);

	free_foreign(crew, 0);
	free_foreign(crew, 1);
	slabc_free(crew->k, p);
	for (uint32_t i = 2; i < crew->stage->n_refs; i++)
		free_foreign(crew, i);
	NEED(slabc_cache_shrink(crew->k) == 0);
}

/*
 * A foreign sheaf that has served before: its claims were lost, since the objects had been adopted meanwhile, and now they are the owner's
 * again: what lies above its size says exactly what the words are.
 */
static void
lose_claims(struct kill_crew *crew)
{
	struct kill_stage *stage = crew->stage;
	bool is_put_off = !(kill_kinds[stage->kind].flags & SLABC_RECLAIM) && kill_kinds[stage->kind].capacity == KILL_CAPACITY;
	void *pv[KILL_MAX_REFS];

	hold_some(crew);
	for (uint32_t i = 2; i < stage->n_refs && is_put_off; i++)
		slabc_free(crew->k, slabc_deref(crew->c, stage->refs[i]));
	for (uint32_t i = 2; i < stage->n_refs; i++)
		NEED((pv[i] = slabc_adopt(crew->c, stage->refs[i])) != NULL);
	free_foreign(crew, 0);
	for (uint32_t i = 2; i < stage->n_refs; i++)
		NEED(slabc_give(crew->c, pv[i], stage->owner) == 0);
}

static void
free_after_lost_claims(struct kill_crew *crew)
{
	free_foreign(crew, 1);
}

static void
adopt(struct kill_crew *crew)
{
	for (uint32_t i = 0; i < crew->stage->n_refs; i++) {
		NEED(slabc_valid(crew->c, crew->stage->refs[i]) == 1);
		atomic_write_release(&crew->stage->n_begun, i + 1);
		hold(crew, slabc_adopt(crew->c, crew->stage->refs[i]));
		atomic_write_release(&crew->stage->n_gone, i + 1);
	}
	free_last(crew);
}

static void
adopt_orphans(struct kill_crew *crew)
{
	for (uint32_t i = 0; i < crew->stage->n_refs; i++)
		hold(crew, slabc_adopt_orphan(crew->c, crew->stage->refs[i]));
	free_last(crew);
}

static void
give(struct kill_crew *crew)
{
	struct kill_stage *stage = crew->stage;

	atomic_write_release(&stage->given, stage->held[stage->n_held - 1] + 1);
	NEED(slabc_give(crew->c, let_go(crew), stage->owner) == 0);
}

static void
publish(struct kill_crew *crew)
{
	slabc_ref ref = slabc_ref_of(crew->c, crew->pv[0]), found = 0;
	char name[32];

	snprintf(name, sizeof name, KILL_ROOT, crew->stage->client);
	NEED(slabc_publish(crew->c, name, ref, SLABC_REPLACE) == 0);
	NEED(slabc_lookup(crew->c, name, &found) == 0 && found == ref);
	NEED(slabc_unpublish(crew->c, name) == 0);
	NEED(slabc_publish(crew->c, name, slabc_ref_of(crew->c, crew->pv[1]), SLABC_REPLACE) == 0);
	NEED(slabc_lookup_wait(crew->c, name, &found, 1000) == 0);
	free_last(crew);
}

/* Two handles: the session's own, and the application's. */
static void
leave(struct kill_crew *crew)
{
	slabc_cache_close(crew->k);
	slabc_close(crew->c);
}

static void
open_session(struct kill_crew *crew)
{
	struct slabc_options o = SLABC_OPTIONS_INIT;

	o.socket = crew->stage->socket;
	o.label = "victim";
	o.timeout_ms = HARNESS_PATIENCE_MS;
	NEED(slabc_open(&crew->c, &o) == 0);
	crew->k = kill_open_cache(crew->c, crew->stage->kind);
}

/* Of a new session it is the first object. */
static void
arrive(struct kill_crew *crew)
{
	open_session(crew);
	atomic_write_release(&crew->stage->client, slabc_client_id(crew->c));
	NEED(slabc_alloc(crew->k) != NULL);
}

/* A handler allocates, and frees what it had from the time before. */
static struct slabc_cache *handlers;
static void *volatile handlers_object;

static void
on_signal(int sig)
{
	void *p = slabc_alloc(handlers);

	(void)sig;
	if (handlers_object)
		slabc_free(handlers, handlers_object);
	handlers_object = p;
}

static void
be_interrupted(struct kill_crew *crew)
{
	struct sigaction sa = {.sa_handler = on_signal};

	hold_and_free(crew);
	handlers = crew->k;
	handlers_object = slabc_alloc(crew->k);
	sigaction(KILL_SIGNAL, &sa, NULL);
}

static void
flow_with_signals(struct kill_crew *crew)
{
	flow(crew);
	free_bulk(crew);
	alloc_bulk(crew, 3);
}

const struct kill_act kill_acts[] = {
	{.name = "pair", .before = hold_some, .op = pair, .is_short = true},
	{.name = "free out of order", .before = hold_out_of_order, .op = free_last, .is_short = true},
	{.name = "first alloc", .op = first_alloc},
	{.name = "ebb and flow", .before = hold_and_free, .op = flow},
	{.name = "free of many", .before = hold_many, .op = free_all},
	{.name = "bulk", .before = hold_some, .op = bulk},
	{.name = "prefill", .before = hold_and_free, .op = prefill},
	{.name = "sized", .op = sized},
	{.name = "share and free", .before = hold_some, .op = share},
	{.name = "free of another's by reference", .before = hold_some, .op = free_refs, .n_refs = 3},
	{.name = "free of another's by pointer", .before = hold_some, .op = free_pointers, .n_refs = KILL_CAPACITY + 2},
	{.name = "free of another's in bulk", .before = hold_some, .op = free_foreign_bulk, .n_refs = KILL_CAPACITY + 1},
	{.name = "free of another's twice", .before = hold_some, .op = free_twice, .n_refs = KILL_CAPACITY - 1},
	{.name = "free of another's after lost claims",
		.before = lose_claims,
		.op = free_after_lost_claims,
		.n_refs = KILL_CAPACITY + 2,
		.is_short = true},
	{.name = "adopt", .before = hold_some, .op = adopt, .n_refs = 2},
	{.name = "adopt orphans", .before = hold_some, .op = adopt_orphans, .n_refs = 2, .has_orphans = true},
	{.name = "give", .before = hold_some, .op = give},
	{.name = "publish", .before = hold_some, .op = publish},
	{.name = "thread exit", .before = hold_and_free, .in_thread = true},
	{.name = "close", .before = hold_and_free, .op = leave},
	{.name = "open", .op = arrive, .has_no_session = true},
	{.name = "recalled", .before = hold_and_free, .op = flow, .is_recalled = true},
	{.name = "nested", .before = be_interrupted, .op = flow_with_signals, .is_nested = true},
};
const uint32_t kill_n_acts = sizeof kill_acts / sizeof kill_acts[0];
_Static_assert(sizeof kill_acts / sizeof kill_acts[0] <= KILL_MAX_ACTS, "KILL_MAX_ACTS");

/* Where place 0 is: from an object of a cache that is not looked at. */
static void
find_base(struct kill_crew *crew)
{
	struct slabc_cache *k = harness_open_cache(crew->c, "kill-base", 64, SLABC_RECLAIM);
	char *p = slabc_alloc(k);

	NEED(p != NULL);
	crew->base = p - ((uint64_t)(uint32_t)slabc_ref_of(crew->c, p) << LAYOUT_PLACE_SHIFT);
	slabc_free(k, p);
	slabc_cache_close(k);
}

static struct kill_crew crew;
static void (*begins)(void);

static void
prepare(void)
{
	const struct kill_act *act = &kill_acts[crew.stage->act];

	if (act->before)
		act->before(&crew);
	if (act->is_recalled) {
		atomic_write_release(&crew.stage->wants_recall, 1);
		while (!atomic_read_acquire(&crew.stage->is_recalled))
			harness_pause();
	}
	begins();
}

static void *
prepare_thread(void *arg)
{
	prepare();
	return arg;
}

void
kill_play(struct kill_stage *stage, void (*begin)(void), void (*end)(void))
{
	const struct kill_act *act = &kill_acts[stage->act];
	pthread_t thread;

	kill_stage = crew.stage = stage;
	begins = begin;
	if (!act->has_no_session) {
		open_session(&crew);
		find_base(&crew);
		atomic_write_release(&stage->client, slabc_client_id(crew.c));
	}
	if (act->in_thread) {
		NEED(pthread_create(&thread, NULL, prepare_thread, NULL) == 0);
		pthread_join(thread, NULL);
	} else {
		prepare();
		act->op(&crew);
	}
	end();
	for (;;)
		pause();
}
