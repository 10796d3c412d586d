/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slabd's own side: at each of its steps, beside its audit, and against clients that write into their sheaves what no correct client writes
 * (design.md, I3, I7 and I8); and old references to pages that it has used anew.
 *
 * The honest client is `b`, the hostile one `c`.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "server/audit.h"
#include "server/session.h"
#include "server/stash.h"
#include "tests/steps_rig.h"

enum { SMALL_BYTES = 256, SMALL_SLAB_OBJECTS = 16 };

static struct slabc *b, *c;
static struct slabc_cache *bk, *ck;

/* No sheaves, no barn, no empty slab kept: each object comes and goes by itself, and a page with the last of its objects. */
static struct slabc_cache *
open_bare(struct slabc *s, const char *name, size_t size)
{
	struct slabc_cache_options o = SLABC_CACHE_OPTIONS_INIT;

	o.sheaf_capacity = SLABC_SHEAVES_NONE;
	o.min_partial = SLABC_KNOB_NONE;
	o.max_order = SLABC_KNOB_NONE;
	return rig_cache(s, name, size, &o);
}

/* slabd's own steps */

static struct account at_instant;
static enum step at_step;
static uint32_t n_instants;

static void
take_account(enum step step)
{
	struct account a;

	if (!pthread_equal(pthread_self(), rig.thread) || at_instant.first[0])
		return;
	n_instants++;
	account_take(&a, false);
	if (!a.first[0])
		return;
	at_instant = a;
	at_step = step;
}

/* Has freed the objects of another client, and claimed none. */
static void
freer_with_claims_to_make(struct stage *stage)
{
	struct slabc *s = rig_open(stage->socket);
	struct slabc_cache *k = rig_cache(s, "kept", RIG_OBJECT_BYTES, NULL);

	for (uint32_t i = 0; i < stage->n_refs; i++)
		slabc_free(k, slabc_deref(s, stage->refs[i]));
	stage_reached(stage);
}

/* If slabd were killed at any of its steps, its successor would find no object in two places. */
void
it_slabd_never_has_an_object_twice(void)
{
	enum { N = 6 * RIG_CAPACITY };
	struct slabc_cache_options o = rig_cache_options(SLABC_RECLAIM);
	struct slabc_cache *kept;
	struct actor owner, freer;
	void *pv[N];

	actor_fork(&owner, owner_killed_in_free);
	actor_fork(&freer, freer_with_claims_to_make);
	owner.stage->flags = SLABC_RECLAIM;
	rig_start(1);
	at_instant = (struct account){0};
	n_instants = 0;
	rig_always(take_account);
	b = rig_open(rig.socket);
	o.min_partial = SLABC_KNOB_NONE;
	o.barn_full = 2;
	o.max_cached = RIG_CAPACITY * RIG_OBJECT_BYTES;
	o.cpu_partial = 2 * RIG_CAPACITY;
	bk = rig_open_with(b, &o);
	actor_go(&owner);
	actor_reached(&owner);
	for (int i = 0; i < 3; i++) {
		rig_get_some(bk, N, pv);
		slabc_free_bulk(bk, N, pv);
	}
	actor_more(&owner);
	actor_died(&owner);
	rig_wait_ended(1);
	/* Of a cache of its own, as what is reclaimed is not freed so. */
	kept = rig_cache(b, "kept", RIG_OBJECT_BYTES, NULL);
	freer.stage->n_refs = 5;
	for (int i = 0; i < 5; i++)
		freer.stage->refs[i] = rig_share(b, rig_get(kept));
	actor_go(&freer);
	actor_reached(&freer);
	actor_kill(&freer);
	rig_wait_ended(2);
	for (int i = 0; i < 5; i++)
		HOLDS(!slabc_valid(b, freer.stage->refs[i]), "what the dead had freed is still held");
	slabc_cache_close(bk);
	slabc_close(b);
	rig_wait_ended(3);
	rig_always(NULL);
	NEED(n_instants > 50, "slabd came to %u steps", n_instants);
	HOLDS(!at_instant.first[0], "slabd killed at %s: %s", step_names[at_step], at_instant.first);
	rig_judge("after all that");
	actor_free(&owner);
	actor_free(&freer);
	rig_stop();
}

/* A sheaf in the application's hands. */
static struct slabc_sheaf *
prefilled(struct slabc_cache *k)
{
	struct slabc_sheaf *s = slabc_prefill(k, RIG_CAPACITY);

	NEED(s, "%s", slabc_last_error());
	return s;
}

/* The audit beside grant and take-back */

static struct audit beside;
static pthread_t auditor;
static bool has_auditor;

static void *
run_audit(void *arg)
{
	NEED(audit_run(rig.arena, 0, &beside) == 0, "the audit fails");
	return arg;
}

/* Half-way through its transfer slabd waits for the audit to end, which the lock keeps from beginning; so it waits no longer than this. */
static void
audit_beside(void)
{
	struct timespec t;

	NEED(pthread_create(&auditor, NULL, run_audit, NULL) == 0, "no thread");
	clock_gettime(CLOCK_REALTIME, &t);
	t.tv_nsec += 100000000;
	t.tv_sec += t.tv_nsec / 1000000000;
	t.tv_nsec %= 1000000000;
	has_auditor = pthread_timedjoin_np(auditor, NULL, &t) != 0;
}

static void
judge_beside(enum step step)
{
	NEED(rig_was_played(), "slabd was not at %s", step_names[step]);
	if (has_auditor)
		NEED(pthread_join(auditor, NULL) == 0, "no auditor");
	HOLDS(beside.n_lost == 0 && beside.n_doubled == 0, "audit beside slabd at %s says %llu lost, %llu doubled, and none is",
		step_names[step], (unsigned long long)beside.n_lost, (unsigned long long)beside.n_doubled);
	HOLDS(has_auditor, "the audit ran while slabd was at %s", step_names[step]);
}

void
it_audit_waits_for_grants(void)
{
	static const enum step steps[] = {STEP_GRANT_MARKED, STEP_GRANT_WRITTEN};

	rig_start(1);
	b = rig_open(rig.socket);
	bk = rig_open_cache(b, 0);
	for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		rig_at(steps[i], 0, audit_beside);
		free(prefilled(bk));
		judge_beside(steps[i]);
	}
	rig_judge("audits beside grants");
	slabc_close(b);
	rig_stop();
}

void
it_audit_waits_for_take_backs(void)
{
	static const enum step steps[] = {STEP_TAKE_REMOVED, STEP_TAKE_CLEARED};

	rig_start(1);
	b = rig_open(rig.socket);
	bk = rig_open_cache(b, 0);
	for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		struct slabc_sheaf *s = prefilled(bk);

		rig_at(steps[i], 0, audit_beside);
		rig_give_back(bk, s->slot, LAYOUT_HOLDER_APP);
		judge_beside(steps[i]);
		free(s);
	}
	rig_judge("audits beside take-backs");
	slabc_close(b);
	rig_stop();
}

/* What is set aside for a client goes into its sheaf without list_lock, and the audit waits for that too. */
void
it_audit_waits_for_stashes(void)
{
	static const enum step steps[] = {STEP_GRANT_WRITTEN, STEP_GRANT_SIZED};
	struct slabc_cache_options o = rig_cache_options(0);

	o.cpu_partial = 4 * RIG_CAPACITY;
	rig_start(1);
	b = rig_open(rig.socket);
	bk = rig_open_with(b, &o);
	for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		const struct stash *stash;

		/* One refill sets aside what the next gets. */
		free(prefilled(bk));
		stash = stash_of(rig.arena->sessions[b->me], bk->v.cache);
		NEED(stash && stash->size >= RIG_CAPACITY, "nothing is set aside");
		rig_at(steps[i], 0, audit_beside);
		free(prefilled(bk));
		judge_beside(steps[i]);
	}
	rig_judge_ledger("audits beside a stash");
	slabc_close(b);
	rig_wait_ended(1);
	rig_judge("all have gone");
	rig_stop();
}

static void *bs_object;

static void
b_allocates(void)
{
	rig_get(bk);
}

static void
b_frees(void)
{
	slabc_free(bk, bs_object);
	bs_object = NULL;
}

/* The audit has looked at words, or sheaves, and then a client allocates, or frees, from its sheaf: that is neither lost nor doubled. */
void
it_audit_beside_clients(void)
{
	static const enum step steps[] = {STEP_AUDIT_FIRST_LOOK, STEP_AUDIT_SECOND_LOOK};

	rig_start(1);
	b = rig_open(rig.socket);
	bk = rig_open_cache(b, 0);
	rig_get(bk);
	for (unsigned i = 0; i < 4; i++) {
		bs_object = rig_get(bk);
		rig_at(steps[i % 2], 0, i / 2 ? b_frees : b_allocates);
		run_audit(NULL);
		NEED(rig_was_played(), "the audit did not look");
		HOLDS(beside.n_lost == 0 && beside.n_doubled == 0 && beside.n_undecided == 0,
			"a client was busy at %s, and the audit says %llu lost, %llu doubled, %llu undecided", step_names[steps[i % 2]],
			(unsigned long long)beside.n_lost, (unsigned long long)beside.n_doubled, (unsigned long long)beside.n_undecided);
	}
	slabc_close(b);
	rig_stop();
}

/* A word that comes round */

enum { N_SHEAVES = 20 }; /* above SLOTS_A_LOOK of server/audit.c */

static struct slabc_sheaf *round_sheaf;
static uint32_t n_rounds;

/*
 * Its owner allocates the top entry before the sheaf is read, and frees it after that, 65,535 allocations later (the word says so): so the
 * object is in no sheaf that the audit reads, and its word is in the end as it was.
 */
static void
come_round(enum step step)
{
	uint32_t *word = &rig.arena->words[0] + (sheaf_word(&bk->v, round_sheaf->sheaf->entry[RIG_CAPACITY - 1]) - bk->v.words);
	static uint32_t before;

	if (step == STEP_AUDIT_FIRST_LOOK && n_rounds == 0) {
		n_rounds++;
		before = atomic_read(word);
		atomic_write(word, word_with(before + WORD_GENERATION_ONE, b->me, WORD_OWNED));
		atomic_write(&round_sheaf->sheaf->size, RIG_CAPACITY - 1);
	} else if (step == STEP_AUDIT_LOOKED_AGAIN && n_rounds == 1) {
		n_rounds++;
		atomic_write(&round_sheaf->sheaf->size, RIG_CAPACITY);
		atomic_write(word, before);
	}
}

/* Words are read again while the sheaves are: what came and went in between is not taken for lost. */
void
it_audit_sees_a_word_come_round(void)
{
	struct slabc_sheaf *sheaves[N_SHEAVES];

	rig_start(1);
	b = rig_open(rig.socket);
	bk = rig_open_cache(b, 0);
	for (int i = 0; i < N_SHEAVES; i++)
		sheaves[i] = prefilled(bk);
	round_sheaf = sheaves[0];
	n_rounds = 0;
	rig_always(come_round);
	run_audit(NULL);
	rig_always(NULL);
	NEED(n_rounds == 2, "the audit looked %u times", n_rounds);
	HOLDS(beside.n_lost == 0 && beside.n_doubled == 0,
		"an object was allocated and freed beside the audit, which says %llu lost, %llu doubled", (unsigned long long)beside.n_lost,
		(unsigned long long)beside.n_doubled);
	HOLDS(beside.n_undecided == 0 && beside.n_rounds > 1, "the audit looked %llu times, and %llu are undecided",
		(unsigned long long)beside.n_rounds, (unsigned long long)beside.n_undecided);
	for (int i = 0; i < N_SHEAVES; i++)
		slabc_return(bk, sheaves[i]);
	rig_judge("a word came round beside an audit");
	slabc_close(b);
	rig_stop();
}

/* Looks that lie too far apart */

enum { ROUNDS = 16, SLOW_US = 1000 }; /* MAX_ROUNDS, and over max_window_ns, of server/audit.c */

/* Long enough for a generation to come round, and nothing happens meanwhile. */
static void
be_slow(enum step step)
{
	if (step == STEP_AUDIT_SECOND_LOOK)
		usleep(SLOW_US);
}

static void
judge_slow_and_fast(uint32_t n_lost, uint32_t n_doubled, const char *what)
{
	rig_always(be_slow);
	run_audit(NULL);
	rig_always(NULL);
	HOLDS(beside.n_lost == 0 && beside.n_doubled == 0,
		"%s: looks a millisecond apart prove nothing, and the audit says %llu lost, %llu doubled", what,
		(unsigned long long)beside.n_lost, (unsigned long long)beside.n_doubled);
	HOLDS(beside.n_undecided == n_lost + n_doubled, "%s: a slow audit says %llu undecided", what,
		(unsigned long long)beside.n_undecided);
	HOLDS(beside.n_rounds == (n_lost + n_doubled ? ROUNDS : 1), "%s: a slow audit looked %llu times", what,
		(unsigned long long)beside.n_rounds);
	run_audit(NULL);
	HOLDS(beside.n_lost == n_lost && beside.n_doubled == n_doubled && beside.n_undecided == 0,
		"%s: the audit says %llu lost, %llu doubled, %llu undecided", what, (unsigned long long)beside.n_lost,
		(unsigned long long)beside.n_doubled, (unsigned long long)beside.n_undecided);
}

/* What turns on a generation is said only if none can have come round between two looks; else it is undecided, after so many rounds. What
 * does not is said at once. */
void
it_slow_audit_is_undecided(void)
{
	struct slabc_sheaf *s;
	uint32_t kept;

	rig_start(1);
	b = rig_open(rig.socket);
	bk = rig_open_cache(b, 0);
	bs_object = rig_get(bk);
	s = prefilled(bk);
	judge_slow_and_fast(0, 0, "nothing is wrong");
	s->sheaf->size--;
	judge_slow_and_fast(1, 0, "an object is in no sheaf");
	s->sheaf->size++;
	kept = s->sheaf->entry[3];
	s->sheaf->entry[3] = s->sheaf->entry[5];
	judge_slow_and_fast(1, 1, "an object is in two places, another in none");
	s->sheaf->entry[3] = kept;
	judge_slow_and_fast(0, 0, "all is well again");
	slabc_return(bk, s);
	slabc_close(b);
	rig_stop();
}

/* A session that is dying: nothing is granted to it, nothing called in from it, while others are in want */

static uint32_t dying, n_at_drained, n_after;

static uint32_t
count_entries(const struct session *session)
{
	uint32_t n = 0;

	for (uint32_t slot = 0; slot < session->n_slots; slot++)
		if (session->slots[slot].cache)
			n += atomic_read(&session_sheaf(session, slot)->size);
	return n;
}

static void *
want_everything(void *arg)
{
	void *p;

	/* To the end of the arena: slabd looks everywhere for idle ones before it says no. */
	while ((p = slabc_alloc(bk)))
		++*(uint32_t *)arg;
	NEED(errno == ENOMEM, "allocation: %s", slabc_last_error());
	return NULL;
}

/* The reaper has drained the sheaves; the words still name it. */
static void
others_are_in_want(void)
{
	struct session *session = rig.arena->sessions[dying];
	static uint32_t n_got;
	pthread_t thread;

	NEED(session, "the dying session is not listed");
	HOLDS(atomic_read(&session->state) == SESSION_DYING, "a session is reaped, and its state is %d", (int)session->state);
	n_at_drained = count_entries(session);
	n_got = 0;
	NEED(pthread_create(&thread, NULL, want_everything, &n_got) == 0 && pthread_join(thread, NULL) == 0, "no thread");
	NEED(n_got > 0, "nothing was left");
	n_after = count_entries(session);
}

static void
hold_some_and_wait(struct stage *stage)
{
	struct slabc *s = rig_open(stage->socket);
	struct slabc_cache *k = rig_open_cache(s, SLABC_RECLAIM);

	stage->client = s->me;
	rig_get_some(k, 3, (void *[3]){0});
	stage_reached(stage);
	stage_stop();
}

void
it_dying_gets_no_grant(void)
{
	struct slabc_cache_options o = rig_cache_options(SLABC_RECLAIM);
	struct actor owner;

	actor_fork(&owner, hold_some_and_wait);
	/* The honest client's loop, and the one that reaps. */
	rig_start(2);
	b = rig_open(rig.socket);
	bk = rig_open_with(b, &o);
	actor_go(&owner);
	actor_reached(&owner);
	dying = owner.stage->client;
	n_at_drained = n_after = UINT32_MAX;
	rig_at(STEP_REAP_DRAINED, 0, others_are_in_want);
	actor_kill(&owner);
	rig_wait_ended(1);
	NEED(rig_was_played(), "nobody was reaped");
	HOLDS(n_at_drained == 0, "a drained session has %u objects in sheaves", n_at_drained);
	HOLDS(n_after == 0, "a dying session was granted %u objects", n_after);
	HOLDS(slabc_alloc(bk), "what the dead held did not come back");
	rig_judge("others were in want while one died");
	actor_free(&owner);
	slabc_close(b);
	rig_stop();
}

/* Hostile clients: c writes into its session segment what no correct client writes. */

static struct slabc_sheaf *cs_sheaf;

/* b has an object, c a sheaf with objects in its hands. */
static void
hostile_begin(uint32_t barn_full, bool is_shared)
{
	struct slabc_cache_options o = rig_cache_options(0);

	o.barn_full = barn_full;
	rig_start(1);
	b = rig_open(rig.socket);
	c = rig_open(rig.socket);
	bk = rig_open_with(b, &o);
	ck = rig_open_with(c, &o);
	bs_object = rig_get(bk);
	if (is_shared)
		rig_share(b, bs_object);
	cs_sheaf = prefilled(ck);
}

static void
hostile_end(const char *story)
{
	rig_judge_holder(bk, bs_object, story);
	rig_judge_ledger("%s", story);
	for (int i = 0; i < 3 * RIG_SLAB_OBJECTS; i++)
		HOLDS(rig_get(bk) != bs_object, "%s: an object was allocated twice", story);
	rig_judge_ledger("%s, then allocations", story);
	HOLDS(bk->shown->n_dropped == 0, "%s: a client was given %llu objects that somebody holds", story,
		(unsigned long long)bk->shown->n_dropped);
	free(cs_sheaf);
	slabc_close(b);
	slabc_close(c);
	rig_wait_ended(2);
	rig_judge_ledger("%s, all have gone", story);
	rig_stop();
}

/* A size above the capacity reaches into the next slot, whose sheaf somebody else uses. */
void
it_size_above_capacity_is_cut(void)
{
	enum { FULL_LINES = 28 }; /* a slot of 128 bytes without a gap */
	struct slabc_cache_options o = SLABC_CACHE_OPTIONS_INIT;
	struct slabc_sheaf *s, *next;
	uint64_t n_faults;

	o.sheaf_capacity = FULL_LINES;
	o.max_order = o.barn_full = SLABC_KNOB_NONE;
	rig_start(1);
	c = rig_open(rig.socket);
	ck = rig_cache(c, "mutants", 64, &o);
	s = slabc_prefill(ck, FULL_LINES);
	next = slabc_prefill(ck, FULL_LINES);
	NEED(s && next, "%s", slabc_last_error());
	NEED((char *)next->sheaf == (char *)s->sheaf + sheaf_bytes(FULL_LINES), "the slots are no neighbours");
	atomic_write(&s->sheaf->size, 2 * FULL_LINES + (uint32_t)(sizeof(struct sheaf) / sizeof(uint32_t)));
	rig_give_back(ck, s->slot, LAYOUT_HOLDER_APP);
	rig_judge("a sheaf came back with a size above its capacity");
	n_faults = rig.arena->first_session->n_faults;
	HOLDS(n_faults == 1, "a size above the capacity counts as %llu faults", (unsigned long long)n_faults);
	for (int i = 0; i < FULL_LINES; i++)
		HOLDS(slabc_alloc_from(ck, next), "the next sheaf has lost objects");
	rig_judge("a sheaf came back with a size above its capacity, and the next one was used");
	free(s);
	free(next);
	slabc_close(c);
	rig_stop();
}

static void
swap_entry(void)
{
	atomic_write(&cs_sheaf->sheaf->entry[RIG_CAPACITY - 1], rig_place(b, bs_object));
}

/* While slabd reads the top entry it becomes an object that another client holds. */
void
it_entry_is_read_once(void)
{
	static const enum step steps[] = {STEP_TAKE_SIZED, STEP_TAKE_CHECKED, STEP_TAKE_CLEARED, STEP_TAKE_REMOVED};

	for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		char story[96];

		hostile_begin(i % 2 ? SLABC_KNOB_NONE : 0, i % 2);
		rig_at(steps[i], 0, swap_entry);
		rig_give_back(ck, cs_sheaf->slot, LAYOUT_HOLDER_APP);
		NEED(rig_was_played(), "slabd was not at %s", step_names[steps[i]]);
		snprintf(story, sizeof(story), "an entry changed at %s", step_names[steps[i]]);
		hostile_end(story);
	}
}

static void
entry_twice(uint32_t barn_full, const char *story)
{
	hostile_begin(barn_full, false);
	atomic_write(&cs_sheaf->sheaf->entry[RIG_CAPACITY - 2], atomic_read(&cs_sheaf->sheaf->entry[RIG_CAPACITY - 1]));
	rig_give_back(ck, cs_sheaf->slot, LAYOUT_HOLDER_APP);
	hostile_end(story);
}

void
it_entry_twice_goes_back_once(void)
{
	entry_twice(0, "an entry twice in a sheaf");
}

void
it_entry_twice_goes_to_its_slab_once(void)
{
	entry_twice(SLABC_KNOB_NONE, "an entry twice in a sheaf, and no barn");
}

static void
others_object(uint32_t barn_full, bool is_shared, const char *story)
{
	hostile_begin(barn_full, is_shared);
	swap_entry();
	rig_give_back(ck, cs_sheaf->slot, LAYOUT_HOLDER_APP);
	hostile_end(story);
}

void
it_others_object_is_not_taken_back(void)
{
	others_object(0, false, "an entry of an object that another client holds");
}

void
it_others_shared_object_is_not_taken_back(void)
{
	others_object(SLABC_KNOB_NONE, true, "an entry of a shared object that another client holds");
}

/* Old references and new pages */

static void
judge_stale(const struct slabc_cache *k, const void *p, slabc_ref old, const char *story)
{
	int r;

	HOLDS(!slabc_deref(b, old), "%s: an old reference resolves to another object", story);
	HOLDS(!slabc_adopt(b, old), "%s: another object was adopted by an old reference", story);
	r = slabc_free_ref(b, old);
	HOLDS(r == -ESTALE, "%s: a free by an old reference says %s", story, r ? strerror(-r) : "success");
	rig_judge_holder(k, p, story);
}

/* A page may come round to the same incarnation; the word's generation tells then. */
void
it_generation_outlives_its_slab(void)
{
	enum { INCARNATIONS = 256 };
	uint32_t page, place, generation;
	uint8_t incarnation;
	slabc_ref old;
	void *p;

	rig_start(1);
	b = rig_open(rig.socket);
	bk = open_bare(b, "mutants", SMALL_BYTES);
	p = rig_get(bk);
	old = rig_share(b, p);
	place = rig_place(b, p);
	page = place >> LAYOUT_PLACE_PAGE_SHIFT;
	incarnation = rig.arena->page_map[page].incarnation;
	generation = word_generation(rig_word(bk, p));
	for (int i = 0; i < INCARNATIONS; i++) {
		slabc_free(bk, p);
		NEED(rig.arena->page_map[page].cache == 0, "the page was kept");
		p = rig_get(bk);
		NEED(rig_place(b, p) == place, "another page");
	}
	NEED(rig.arena->page_map[page].incarnation == incarnation, "the incarnation has not come round");
	rig_share(b, p);
	judge_stale(bk, p, old, "a page that came round to its old incarnation");
	HOLDS(word_generation(rig_word(bk, p)) == generation + INCARNATIONS, "the generation went from %u to %u in %d allocations",
		generation, word_generation(rig_word(bk, p)), INCARNATIONS);
	slabc_close(b);
	rig_stop();
}

/* A page that another cache has now leads to words that stand at the old generation by chance; the page's incarnation tells then. */
void
it_page_in_another_life_is_stale(void)
{
	void *pv[SMALL_SLAB_OBJECTS + 1], *q;
	slabc_ref old;

	rig_start(1);
	b = rig_open(rig.socket);
	bk = open_bare(b, "before", SMALL_BYTES);
	ck = open_bare(b, "after", SMALL_BYTES / 4);
	/* A second slab keeps the words' block, so that the other cache gets words that were never used. */
	rig_get_some(bk, SMALL_SLAB_OBJECTS + 1, pv);
	old = rig_share(b, pv[0]);
	for (int i = 0; i < SMALL_SLAB_OBJECTS; i++)
		slabc_free(bk, pv[i]);
	q = rig_get(ck);
	NEED(q == pv[0], "another page");
	rig_share(b, q);
	NEED(word_generation(rig_word(ck, q)) == ((uint32_t)(old >> 32) & 0xffff), "the generations differ");
	judge_stale(ck, q, old, "a page that another cache has now");
	slabc_close(b);
	rig_stop();
}

static bool was_reader;

static void
look_at_readers(void)
{
	was_reader = readers_oldest(&rig.arena->readers) != UINT64_MAX;
}

/* Slabd that frees pages at the instant when a client's first reference resolves knows that it may be reading. */
void
it_is_a_reader_before_it_resolves(void)
{
	void *p;

	rig_start(1);
	b = rig_open(rig.socket);
	bk = open_bare(b, "read", SMALL_BYTES);
	p = rig_get(bk);
	look_at_readers();
	HOLDS(!was_reader, "a session that resolved nothing counts as a reader");
	rig_at(STEP_DEREF_READ, 0, look_at_readers);
	NEED(slabc_deref(b, rig_share(b, p)) == p, "a reference of an object of its own does not resolve");
	NEED(rig_was_played(), "nothing was read");
	HOLDS(was_reader, "the page map was read by a session that slabd does not take for a reader");
	slabc_close(b);
	rig_stop();
}
