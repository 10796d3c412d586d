/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Killed, or interrupted by a signal, at each step of each operation.
 *
 * An operation is played again and again: in the i-th run its client is killed at the i-th STEP() it comes to, until a run comes to its
 * end.  Each run has a slabd and a client of its own, in caches of each kind.  Afterwards each object is in exactly one place, what the
 * dead held is free or an orphan, and a survivor allocates from all that came back without meeting an object twice.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/steps_rig.h"

/* Objects of a page: the formula makes sheaves of smaller ones larger.  Sixteen to a slab. */
enum { CAPACITY = 4, OBJECT_BYTES = 4096, SLAB_ORDER = 4, N_FLOW = 14, N_RACKED = 40, N_SHEAVES = 16, N_SURVIVOR = 40, MAX_INSTANTS = 2000 };

/* What a client has: its session, its cache and what its application holds. */
struct crew {
	struct stage *stage;
	struct slabc *c;
	struct slabc_cache *k;
	void *pv[RIG_MAX_HELD];
	uint32_t n;
};

struct script {
	const char *name;
	void (*before)(struct crew *crew);
	void (*op)(struct crew *crew);
	uint32_t n_refs; /* to objects of the survivor's */
	bool is_far;     /* in an arena of two nodes */
	bool is_racked;  /* played with the kinds that are */
};

/* Beside the cache's flags. */
enum { NO_SHEAVES = 1u << 31, RACKED = 1u << 30 };

static const struct kind {
	const char *name;
	uint32_t flags;
} kinds[] = {
	{"reclaim", SLABC_RECLAIM},
	{"keep", 0},
	{"shared, reclaim", SLABC_SHARED | SLABC_RECLAIM},
	{"shared, keep", SLABC_SHARED},
	{"no sheaves, reclaim", NO_SHEAVES | SLABC_RECLAIM},
	{"no sheaves, keep", NO_SHEAVES},
	{"debug, reclaim", SLABC_DEBUG | SLABC_RECLAIM},
	{"debug, shared, keep", SLABC_DEBUG | SLABC_SHARED},
	{"racks, reclaim", RACKED | SLABC_RECLAIM},
	{"racks, shared, keep", RACKED | SLABC_SHARED},
};
enum { N_KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static bool
is_racked(const struct kind *kind)
{
	return (kind->flags & RACKED) != 0;
}

static struct slabc_cache *
open_cache(struct slabc *c, uint32_t flags)
{
	struct slabc_cache_options o = SLABC_CACHE_OPTIONS_INIT;
	struct slabc_cache *k;

	o.flags = flags & ~(uint32_t)(NO_SHEAVES | RACKED);
	o.sheaf_capacity = flags & NO_SHEAVES ? SLABC_SHEAVES_NONE : CAPACITY;
	/* One sheaf: the second goes back to slabd.  Or as many as let a thread have some in its rack. */
	o.max_cached = (flags & RACKED ? N_SHEAVES : 1) * CAPACITY * OBJECT_BYTES;
	o.min_order = o.max_order = SLAB_ORDER;
	k = rig_cache(c, "steps", OBJECT_BYTES, &o);
	NEED(k->capacity == (flags & NO_SHEAVES ? 1 : CAPACITY), "sheaves have %u entries", k->capacity);
	return k;
}

/* The application's view, kept where it outlives the client: what a call has returned, until it is given to the next call. */
static void
hold(struct crew *crew, void *p)
{
	struct stage *stage = crew->stage;

	NEED(p && crew->n < RIG_MAX_HELD, "allocation: %s", slabc_last_error());
	crew->pv[crew->n++] = p;
	stage->held[stage->n_held] = rig_place(crew->c, p);
	atomic_write_release(&stage->n_held, stage->n_held + 1);
}

static void *
let_go(struct crew *crew)
{
	atomic_write_release(&crew->stage->n_held, crew->stage->n_held - 1);
	return crew->pv[--crew->n];
}

static void
let_all_go(struct crew *crew)
{
	atomic_write_release(&crew->stage->n_held, 0);
	crew->n = 0;
}

static void
alloc_some(struct crew *crew, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		hold(crew, slabc_alloc(crew->k));
}

static void
hold_one(struct crew *crew)
{
	alloc_some(crew, 1);
}

static void
hold_three(struct crew *crew)
{
	alloc_some(crew, 3);
}

static void
hold_shared(struct crew *crew)
{
	alloc_some(crew, 2);
	NEED(slabc_ref_of(crew->c, crew->pv[1]), "%s", slabc_last_error());
}

static void
hold_far(struct crew *crew)
{
	void *pv[2 * CAPACITY + 1];

	rig_get_far(crew->k, 2 * CAPACITY + 1, pv);
	for (int i = 0; i < 2 * CAPACITY + 1; i++)
		hold(crew, pv[i]);
	/* Shared from birth or not: one is freed by closing its word. */
	NEED(slabc_ref_of(crew->c, pv[2]), "%s", slabc_last_error());
	hold_one(crew);
}

static void
free_last(struct crew *crew)
{
	slabc_free(crew->k, let_go(crew));
}

static void
alloc_bulk(struct crew *crew, uint32_t n)
{
	void *pv[RIG_MAX_HELD];

	NEED(slabc_alloc_bulk(crew->k, n, pv) == 0, "%s", slabc_last_error());
	for (uint32_t i = 0; i < n; i++)
		hold(crew, pv[i]);
}

static void
alloc_bulk_three(struct crew *crew)
{
	alloc_bulk(crew, 3);
}

static void
free_bulk_all(struct crew *crew)
{
	uint32_t n = crew->n;

	let_all_go(crew);
	slabc_free_bulk(crew->k, n, crew->pv);
}

/* One by one, and in bulk; those of the far node and, the last, one of the near one. */
static void
free_far(struct crew *crew)
{
	while (crew->n > CAPACITY)
		free_last(crew);
	free_bulk_all(crew);
	hold_one(crew);
	NEED(slabc_cache_shrink(crew->k) == 0, "%s", slabc_last_error());
}

static void
free_ref(struct crew *crew)
{
	NEED(slabc_free_ref(crew->c, crew->stage->ref) == 0, "%s", slabc_last_error());
}

/* By pointer; what is to be reclaimed, by reference. */
static void
free_foreign(struct crew *crew, uint32_t i)
{
	errno = 0;
	if (crew->stage->flags & SLABC_RECLAIM)
		NEED(slabc_free_ref(crew->c, crew->stage->refs[i]) == 0, "%s", slabc_last_error());
	else
		slabc_free(crew->k, slabc_deref(crew->c, crew->stage->refs[i]));
	NEED(errno == 0, "%s", slabc_last_error());
}

static void
free_foreign_all(struct crew *crew)
{
	for (uint32_t i = 0; i < crew->stage->n_refs; i++) {
		free_foreign(crew, i);
		atomic_write_release(&crew->stage->n_freed, i + 1);
	}
	NEED(slabc_cache_shrink(crew->k) == 0, "%s", slabc_last_error());
	hold_one(crew);
}

static void
free_foreign_bulk(struct crew *crew)
{
	uint32_t n = crew->stage->n_refs;
	void *pv[RIG_MAX_HELD];

	for (uint32_t i = 0; i < n; i++)
		NEED((pv[i] = slabc_deref(crew->c, crew->stage->refs[i])), "%s", slabc_last_error());
	for (uint32_t i = 0; i < n && crew->stage->flags & SLABC_RECLAIM; i++)
		free_foreign(crew, i);
	if (!(crew->stage->flags & SLABC_RECLAIM))
		slabc_free_bulk(crew->k, n, pv);
	atomic_write_release(&crew->stage->n_freed, n);
	slabc_cache_close(crew->k);
}

/* The first one twice: whichever claim comes second is lost, and the last entry takes its place. */
static void
free_foreign_twice(struct crew *crew)
{
	void *p = slabc_deref(crew->c, crew->stage->refs[0]);

	free_foreign(crew, 0);
	free_foreign(crew, 1);
	slabc_free(crew->k, p);
	for (uint32_t i = 2; i < crew->stage->n_refs; i++)
		free_foreign(crew, i);
	atomic_write_release(&crew->stage->n_freed, crew->stage->n_refs);
	NEED(slabc_cache_shrink(crew->k) == 0, "%s", slabc_last_error());
}

static void
adopt(struct crew *crew)
{
	hold(crew, slabc_adopt(crew->c, crew->stage->ref));
}

static void
flow(struct crew *crew)
{
	alloc_some(crew, N_FLOW);
	while (crew->n)
		free_last(crew);
	alloc_bulk(crew, N_FLOW);
	free_bulk_all(crew);
	hold_one(crew);
}

/* More than the rack has room for. */
static void
fill_racks(struct crew *crew)
{
	alloc_some(crew, N_RACKED);
	while (crew->n)
		free_last(crew);
}

static void
use_racks(struct crew *crew)
{
	NEED(tls.block->rack[crew->k->v.index][RACK_FULL].n > 0, "nothing is in the rack");
	alloc_some(crew, N_RACKED - CAPACITY);
	while (crew->n > 1)
		free_last(crew);
}

static void
prefill(struct crew *crew)
{
	struct slabc_sheaf *s = slabc_prefill(crew->k, CAPACITY + 2);

	NEED(s, "%s", slabc_last_error());
	hold(crew, slabc_alloc_from(crew->k, s));
	NEED(slabc_refill(crew->k, &s, CAPACITY) == 0, "%s", slabc_last_error());
	hold(crew, slabc_alloc_from(crew->k, s));
	NEED(slabc_refill(crew->k, &s, CAPACITY + 3) == 0, "%s", slabc_last_error());
	slabc_return(crew->k, s);
}

static void
leave(struct crew *crew)
{
	/* Two handles: the session's own, and the application's. */
	slabc_cache_close(crew->k);
	slabc_close(crew->c);
}

static const struct script alloc_script = {"alloc", hold_one, hold_one, 0, false, false};
static const struct script first_alloc_script = {"a first alloc", NULL, hold_one, 0, false, false};
static const struct script free_script = {"free", hold_three, free_last, 0, false, false};
static const struct script bulk_alloc_script = {"bulk alloc", hold_one, alloc_bulk_three, 0, false, false};
static const struct script bulk_free_script = {"bulk free", hold_three, free_bulk_all, 0, false, false};
static const struct script shared_free_script = {"free of a shared object", hold_shared, free_last, 0, false, false};
static const struct script foreign_free_script = {"free of another's object", hold_one, free_ref, 1, false, false};
static const struct script foreign_pointer_script = {"frees of another's objects by pointer", hold_three, free_foreign_all, CAPACITY + 2, false, false};
static const struct script foreign_bulk_script = {"bulk free of another's objects", hold_one, free_foreign_bulk, CAPACITY + 1, false, false};
static const struct script foreign_twice_script = {"one of another's objects freed twice", hold_one, free_foreign_twice, CAPACITY - 1, false, false};
static const struct script far_script = {"frees of what lies on another node", hold_far, free_far, 0, true, false};
static const struct script adopt_script = {"adopt", hold_one, adopt, 1, false, false};
static const struct script flow_script = {"ebb and flow", NULL, flow, 0, false, false};
static const struct script rack_script = {"racks", fill_racks, use_racks, 0, false, true};
static const struct script prefill_script = {"prefill", NULL, prefill, 0, false, false};
static const struct script close_script = {"close", hold_three, leave, 0, false, false};

/* The child */

static int32_t countdown = -1;
static struct stage *the_stage;

static void
die_in_time(enum step step)
{
	if (countdown < 0 || countdown-- > 0)
		return;
	the_stage->at = step;
	kill(getpid(), SIGKILL);
}

static void
act(struct stage *stage)
{
	const struct script *script = stage->script;
	struct crew crew = {.stage = stage, .c = rig_open(stage->socket)};

	crew.k = open_cache(crew.c, stage->flags);
	atomic_write(&stage->client, crew.c->me);
	if (script->before)
		script->before(&crew);
	the_stage = stage;
	countdown = (int32_t)stage->instant;
	rig_always(die_in_time);
	script->op(&crew);
	rig_always(NULL);
	stage->is_done = 1;
	kill(getpid(), SIGKILL);
}

/* The survivor */

static void
judge_held(const struct stage *stage, const char *story)
{
	uint32_t n_not_shared, n = account_of_client(stage->client, &n_not_shared);

	if (stage->flags & SLABC_RECLAIM) {
		HOLDS(n == 0, "%s: %u objects of the dead did not come back", story, n);
		return;
	}
	HOLDS(n_not_shared == 0, "%s: %u orphans can never be adopted", story, n_not_shared);
	/* More: those that a call was about to give or had just taken when the kill fell into it. */
	HOLDS(n >= stage->n_held, "%s: the dead held %u objects, %u are kept", story, stage->n_held, n);
	for (uint32_t i = 0; i < stage->n_held; i++) {
		struct slab_object o;

		NEED(slab_find(rig.arena, arena_cache(rig.arena, 1), stage->held[i], &o), "%s: no object at %#x", story, stage->held[i]);
		HOLDS(slab_get(rig.arena, o.word) == SLAB_OUT && word_owner(atomic_read(&rig.arena->words[o.word])) == stage->client,
			"%s: place %#x, which the dead held, is no orphan", story, stage->held[i]);
	}
}

/* What the dead freed has gone, though it died before the claim was made; what it did not come to is still there. */
static void
judge_freed(struct slabc *c, const struct script *script, const struct stage *stage, const char *story)
{
	bool is_one_by_one = script->op == free_foreign_all;

	for (uint32_t i = 0; i < stage->n_refs; i++) {
		HOLDS(i >= stage->n_freed || !slabc_valid(c, stage->refs[i]), "%s: object %u, which the dead had freed, is still held", story, i);
		HOLDS(!is_one_by_one || i <= stage->n_freed || slabc_valid(c, stage->refs[i]), "%s: object %u has gone, and nobody freed it", story,
			i);
	}
}

static void
judge_reuse(struct slabc *c, struct slabc_cache *k, const struct stage *stage, const char *story)
{
	void *pv[N_SURVIVOR];

	for (uint32_t i = 0; i < N_SURVIVOR; i++) {
		pv[i] = slabc_alloc(k);
		HOLDS(pv[i], "%s: a survivor cannot allocate: %s", story, slabc_last_error());
		for (uint32_t j = 0; j < i; j++)
			HOLDS(pv[i] != pv[j], "%s: a survivor got one object twice", story);
		for (uint32_t j = 0; j < stage->n_held && !(stage->flags & SLABC_RECLAIM); j++)
			HOLDS(rig_place(c, pv[i]) != stage->held[j], "%s: a survivor got an orphan", story);
	}
	HOLDS(k->shown->n_dropped == 0, "%s: a survivor was given %llu objects that somebody held", story,
		(unsigned long long)k->shown->n_dropped);
	rig_judge("%s, and then a survivor allocated", story);
	HOLDS(k->n_written == 0, "%s: a survivor was told %u times of bytes that nobody wrote", story, k->n_written);
	for (uint32_t i = 0; i < N_SURVIVOR; i++)
		slabc_free(k, pv[i]);
}

static bool has_died_at[STEP_COUNT];

/* true: the operation came to its end. */
static bool
play(const struct script *script, uint32_t flags, const char *kind, uint32_t instant)
{
	struct slabc_cache *k;
	char story[128];
	struct actor a;
	struct slabc *c;
	bool is_done;

	actor_fork(&a, act);
	a.stage->script = script;
	a.stage->flags = flags;
	a.stage->instant = instant;
	(script->is_far ? rig_start_two_nodes : rig_start)(1);
	c = rig_open(rig.socket);
	k = open_cache(c, flags);
	a.stage->n_refs = script->n_refs;
	for (uint32_t i = 0; i < script->n_refs; i++)
		a.stage->refs[i] = rig_share(c, rig_get(k));
	a.stage->ref = a.stage->refs[0];
	actor_go(&a);
	actor_died(&a);
	rig_wait_ended(1);
	is_done = a.stage->is_done;
	if (!is_done) {
		rig_met((enum step)a.stage->at);
		has_died_at[a.stage->at] = true;
	}
	snprintf(story, sizeof(story), "%s, %s, killed %s %s", script->name, kind, is_done ? "after" : "at",
		is_done ? "it" : step_names[a.stage->at]);
	rig_judge("%s", story);
	judge_held(a.stage, story);
	judge_freed(c, script, a.stage, story);
	judge_reuse(c, k, a.stage, story);
	slabc_close(c);
	rig_wait_ended(2);
	rig_judge("%s, all have gone", story);
	actor_free(&a);
	rig_stop();
	return is_done;
}

static void
play_all(const struct script *script)
{
	for (unsigned i = 0; i < N_KINDS; i++) {
		uint32_t instant = 0;

		if (is_racked(&kinds[i]) != script->is_racked)
			continue;
		while (!play(script, kinds[i].flags, kinds[i].name, instant))
			NEED(++instant < MAX_INSTANTS, "%s has no end", script->name);
		NEED(instant > 0, "%s has no step", script->name);
	}
}

void
it_killed_in_alloc(void)
{
	play_all(&alloc_script);
	play_all(&first_alloc_script);
}

void
it_killed_in_free(void)
{
	play_all(&free_script);
}

void
it_killed_in_bulk_alloc(void)
{
	play_all(&bulk_alloc_script);
}

void
it_killed_in_bulk_free(void)
{
	play_all(&bulk_free_script);
}

void
it_killed_in_shared_free(void)
{
	play_all(&shared_free_script);
}

void
it_killed_in_foreign_free(void)
{
	play_all(&foreign_free_script);
}

void
it_killed_in_late_frees(void)
{
	play_all(&foreign_pointer_script);
	play_all(&foreign_bulk_script);
	play_all(&foreign_twice_script);
}

void
it_killed_in_far_frees(void)
{
	play_all(&far_script);
}

void
it_killed_in_adopt(void)
{
	play_all(&adopt_script);
}

void
it_killed_in_flow(void)
{
	play_all(&flow_script);
}

void
it_killed_in_racks(void)
{
	memset(has_died_at, 0, sizeof(has_died_at));
	play_all(&rack_script);
	for (enum step step = STEP_RACK_TAKEN; step <= STEP_RACK_PUT; step++)
		NEED(has_died_at[step], "nobody died at %s", step_names[step]);
}

void
it_killed_in_prefill(void)
{
	play_all(&prefill_script);
}

void
it_killed_in_close(void)
{
	play_all(&close_script);
}

/* Signals: the handler allocates and frees at the i-th step of the operation that it interrupts. */

static struct {
	struct crew crew; /* what the handler's application holds */
	slabc_ref foreign; /* another client's object, to be freed; 0: none */
	struct stage stage;
	pthread_t thread;
	uint32_t n_signals;
	enum step at;
} handler;

static void
on_signal(int sig)
{
	void *p = slabc_alloc(handler.crew.k);

	(void)sig;
	if (handler.foreign && !(handler.stage.flags & SLABC_RECLAIM))
		slabc_free(handler.crew.k, slabc_deref(handler.crew.c, handler.foreign));
	/* One free each time, and one object more each time one is to be had. */
	if (handler.crew.n)
		free_last(&handler.crew);
	if (p)
		hold(&handler.crew, p);
	handler.n_signals++;
}

static void
signal_in_time(enum step step)
{
	if (!pthread_equal(pthread_self(), handler.thread) || countdown < 0 || countdown-- > 0)
		return;
	handler.at = step;
	raise(SIGUSR1);
}

static void
judge_distinct(const struct crew *mine, const char *story)
{
	for (uint32_t i = 0; i < mine->n; i++) {
		for (uint32_t j = 0; j < i; j++)
			HOLDS(mine->pv[i] != mine->pv[j], "%s: one object was allocated twice", story);
		for (uint32_t j = 0; j < handler.crew.n; j++)
			HOLDS(mine->pv[i] != handler.crew.pv[j], "%s: the handler got the object of the call it interrupted", story);
	}
}

/* Another client, whose objects the interrupted call and its handler free. */
static struct slabc *
open_owner(const struct script *script, uint32_t flags, struct stage *stage)
{
	struct slabc *c = rig_open(rig.socket);
	struct slabc_cache *k = open_cache(c, flags);

	stage->n_refs = script->n_refs;
	for (uint32_t i = 0; i < script->n_refs; i++)
		stage->refs[i] = rig_share(c, rig_get(k));
	handler.foreign = rig_share(c, rig_get(k));
	return c;
}

/* What the handler frees lies on another node, as does what it interrupts the free of. */
static void
hold_handlers_far(void)
{
	void *far[2];

	rig_get_far(handler.crew.k, 2, far);
	for (int i = 0; i < 2; i++)
		hold(&handler.crew, far[i]);
}

static bool
play_signal(const struct script *script, const struct kind *kind, uint32_t instant)
{
	static struct stage stage;
	struct crew crew = {.stage = &stage};
	uint32_t n_before, n_not_shared;
	struct slabc *other = NULL;
	char story[128];
	bool is_done;

	stage.n_held = handler.stage.n_held = stage.n_freed = 0;
	stage.flags = handler.stage.flags = kind->flags;
	(script->is_far ? rig_start_two_nodes : rig_start)(1);
	crew.c = rig_open(rig.socket);
	crew.k = open_cache(crew.c, kind->flags);
	handler.crew = (struct crew){.stage = &handler.stage, .c = crew.c, .k = crew.k};
	handler.thread = pthread_self();
	/* Sheaves in the process barn, as a nested call needs one; and something for the handler to free. */
	alloc_some(&crew, N_FLOW);
	while (crew.n)
		free_last(&crew);
	alloc_some(&handler.crew, 2);
	if (script->is_far)
		hold_handlers_far();
	if (script->n_refs)
		other = open_owner(script, kind->flags, &stage);
	if (script->before)
		script->before(&crew);
	n_before = handler.n_signals;
	countdown = (int32_t)instant;
	rig_always(signal_in_time);
	script->op(&crew);
	is_done = handler.n_signals == n_before;
	countdown = -1;
	rig_always(NULL);
	snprintf(story, sizeof(story), "%s, %s, a signal %s %s", script->name, kind->name, is_done ? "after" : "at",
		is_done ? "it" : step_names[handler.at]);
	judge_distinct(&crew, story);
	rig_judge("%s", story);
	/* A free that the handler had to put off is made by the next slow call: let there be some. */
	alloc_some(&crew, N_FLOW);
	judge_distinct(&crew, story);
	rig_judge("%s, then more allocations", story);
	while (crew.n)
		free_last(&crew);
	while (handler.crew.n)
		free_last(&handler.crew);
	alloc_some(&crew, 4 * CAPACITY);
	HOLDS(account_of_client(crew.c->me, &n_not_shared) == crew.n, "%s: %u objects are held, not %u", story,
		account_of_client(crew.c->me, &n_not_shared), crew.n);
	rig_judge("%s, then all were freed", story);
	if (other && !is_done && !(kind->flags & SLABC_RECLAIM)) {
		NEED(slabc_cache_shrink(crew.k) == 0, "%s", slabc_last_error());
		HOLDS(!slabc_valid(other, handler.foreign), "%s: what the handler freed is still held", story);
		rig_judge("%s, then claims were made", story);
	}
	slabc_close(other);
	slabc_close(crew.c);
	rig_wait_ended(other ? 2 : 1);
	rig_stop();
	return is_done;
}

static void
play_all_signals(const struct script *script)
{
	struct sigaction sa = {.sa_handler = on_signal};

	sigaction(SIGUSR1, &sa, NULL);
	for (unsigned i = 0; i < N_KINDS; i++) {
		uint32_t instant = 0;

		if (is_racked(&kinds[i]) != script->is_racked)
			continue;
		while (!play_signal(script, &kinds[i], instant))
			NEED(++instant < MAX_INSTANTS, "%s has no end", script->name);
		NEED(instant > 0, "%s has no step", script->name);
	}
}

void
it_signal_in_alloc(void)
{
	play_all_signals(&alloc_script);
}

void
it_signal_in_free(void)
{
	play_all_signals(&free_script);
}

void
it_signal_in_bulk_alloc(void)
{
	play_all_signals(&bulk_alloc_script);
}

void
it_signal_in_bulk_free(void)
{
	play_all_signals(&bulk_free_script);
}

void
it_signal_in_shared_free(void)
{
	play_all_signals(&shared_free_script);
}

void
it_signal_in_late_frees(void)
{
	play_all_signals(&foreign_pointer_script);
	handler.foreign = 0;
}

void
it_signal_in_far_frees(void)
{
	play_all_signals(&far_script);
}

void
it_signal_in_flow(void)
{
	play_all_signals(&flow_script);
}

void
it_signal_in_racks(void)
{
	play_all_signals(&rack_script);
}

void
it_signal_in_prefill(void)
{
	play_all_signals(&prefill_script);
}
