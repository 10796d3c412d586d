/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each rule of design.md, section 5, that has a mutant: played in C, unmutated and broken (tests/model has the proofs, shm/step.h the names).
 *
 *   test_mutants                 every story, unmutated, under CUnit: all must pass
 *   test_mutants --mutant=NAME   the stories that are to notice NAME, each in a process of its own.  One line a story:
 *                                "NAME caught by STORY: what was seen", or MISSED, or CRASHED.  Exit status 1 if all caught it, 0 if one missed
 *                                it, 2 if one crashed or could not be played
 *   test_mutants --list          the mutants
 *
 * No interleaving is hoped for: at a step (shm/step.h) the other party acts, in a thread of its own, or a child is killed or left standing there.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CUnit/Basic.h>

#include "server/audit.h"
#include "server/session.h"
#include "tests/steps_rig.h"

/* Objects of a page: the formula makes sheaves of smaller ones larger. */
enum { CAPACITY = 8, OBJECT_BYTES = 4096, SLAB_ORDER = 4, SLAB_OBJECTS = 16, SMALL_BYTES = 256, MUTANT_S = 50 };

/* The parties, where threads of the play find them. */
static struct slabc *b, *c;
static struct slabc_cache *bk, *ck;
static slabc_ref the_ref;
static void *adopted;

/* Slabs of 16 objects, sheaves of 8. */
static struct slabc_cache_options
cache_options(uint32_t flags)
{
	struct slabc_cache_options o = SLABC_CACHE_OPTIONS_INIT;

	o.flags = flags;
	o.sheaf_capacity = CAPACITY;
	o.min_order = o.max_order = SLAB_ORDER;
	return o;
}

static struct slabc_cache *
open_with(struct slabc *s, const struct slabc_cache_options *o)
{
	struct slabc_cache *k = rig_cache(s, "mutants", OBJECT_BYTES, o);

	NEED(k->capacity == CAPACITY, "sheaves have %u entries", k->capacity);
	return k;
}

static struct slabc_cache *
open_cache(struct slabc *s, uint32_t flags)
{
	struct slabc_cache_options o = cache_options(flags);

	return open_with(s, &o);
}

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

static void *
get(struct slabc_cache *k)
{
	void *p = slabc_alloc(k);

	NEED(p, "allocation: %s", slabc_last_error());
	return p;
}

static void
get_some(struct slabc_cache *k, uint32_t n, void **pv)
{
	for (uint32_t i = 0; i < n; i++)
		pv[i] = get(k);
}

static slabc_ref
share(struct slabc *s, const void *p)
{
	slabc_ref ref = slabc_ref_of(s, p);

	NEED(ref, "%s", slabc_last_error());
	return ref;
}

static void
judge_holder(const struct slabc_cache *k, const void *p, const char *story)
{
	HOLDS(rig_ledger(k, p) == SLAB_OUT, "%s: the ledger says that an object is free, which client %u holds", story, k->v.me);
	HOLDS(word_owner(rig_word(k, p)) == k->v.me, "%s: an object's word names client %u, not client %u, which holds it", story,
		word_owner(rig_word(k, p)), k->v.me);
}

/* A client that holds eight objects, of which the fourth is shared, and frees one when told to. */

static void
owner_begin(struct stage *stage, struct slabc_cache **kp, void **pv)
{
	struct slabc *s = rig_open(stage->socket);

	*kp = open_cache(s, stage->flags);
	stage->client = s->me;
	get_some(*kp, CAPACITY, pv);
	stage->ref = share(s, pv[3]);
	stage_reached(stage);
	stage_wait_more(stage);
}

static void
owner_killed_in_free(struct stage *stage)
{
	struct slabc_cache *k;
	void *pv[CAPACITY];

	owner_begin(stage, &k, pv);
	rig_at(STEP_FREE_GROWN, 0, stage_die);
	slabc_free(k, pv[CAPACITY - 1]);
}

static void
owner_halts_in_shared_free(struct stage *stage)
{
	struct slabc_cache *k;
	void *pv[CAPACITY];

	owner_begin(stage, &k, pv);
	rig_at(STEP_FREE_GROWN, 0, stage_halt);
	slabc_free(k, pv[3]);
}

static void
owner_of_one(struct stage *stage)
{
	struct slabc *s = rig_open(stage->socket);
	struct slabc_cache *k = open_cache(s, stage->flags);

	stage->client = s->me;
	stage->ref = share(s, get(k));
	stage_reached(stage);
}

/* Frees another's object by reference, and stands still when the entry is in its sheaf. */
static void
freer_halts(struct stage *stage)
{
	struct slabc *s = rig_open(stage->socket);
	struct slabc_cache *k = open_cache(s, stage->flags);

	get(k);
	get(k);
	stage_reached(stage);
	stage_wait_more(stage);
	rig_at(STEP_FREE_GROWN, 0, stage_halt);
	slabc_free_ref(s, stage->ref);
}

/* Reaping */

static void
b_allocates(void)
{
	get(bk);
}

/* A client dies with its object freed but still named: sheaves first, then words; between them another client must not be given it. */
static void
b_allocates_elsewhere(void)
{
	rig_elsewhere(b_allocates);
}

static void
it_reap_drains_sheaves_before_words(void)
{
	struct actor a;

	actor_fork(&a, owner_killed_in_free);
	a.stage->flags = SLABC_RECLAIM;
	rig_start(2); /* the dead one's loop reaps it, the other one serves b */
	actor_go(&a);
	actor_reached(&a);
	b = rig_open(rig.socket);
	bk = open_cache(b, SLABC_RECLAIM);
	rig_at(STEP_TAKE_SIZED, 0, b_allocates_elsewhere);
	actor_more(&a);
	actor_died(&a);
	rig_wait_ended(1);
	NEED(rig_was_played(), "nothing was drained");
	rig_judge("another client allocated while the dead one was reaped");
	slabc_close(b);
	actor_free(&a);
	rig_stop();
}

static void
b_adopts(void)
{
	adopted = slabc_adopt(b, the_ref);
}

static void
b_adopts_elsewhere(void)
{
	rig_elsewhere(b_adopts);
}

static void
adopt_while_reaped(uint32_t flags)
{
	struct actor a;

	actor_fork(&a, owner_of_one);
	a.stage->flags = flags;
	rig_start(1);
	b = rig_open(rig.socket);
	bk = open_cache(b, flags);
	actor_go(&a);
	actor_reached(&a);
	the_ref = a.stage->ref;
	adopted = NULL;
	rig_at(STEP_RECLAIM_READ, 0, b_adopts_elsewhere);
	actor_kill(&a);
	rig_wait_ended(1);
	NEED(rig_was_played(), "no word was walked");
	HOLDS(adopted, "the adoption of a dying client's object fails: %s", strerror(errno));
	judge_holder(bk, adopted, "adopted while its dead owner was reaped");
	rig_judge("adopted while its dead owner was reaped");
	for (int i = 0; i < 3 * SLAB_OBJECTS; i++)
		HOLDS(get(bk) != adopted, "an object adopted while its dead owner was reaped was allocated again");
	slabc_close(b);
	actor_free(&a);
	rig_stop();
}

static void
it_adoption_wins_over_reclaim(void)
{
	adopt_while_reaped(SLABC_RECLAIM);
	adopt_while_reaped(0);
}

/* Frees of others' objects */

/* An owner dies while another client frees its object, and then the freer dies: the object goes back once. */
static void
it_claims_before_it_pushes(void)
{
	struct actor owner, freer;

	actor_fork(&owner, owner_halts_in_shared_free);
	actor_fork(&freer, freer_halts);
	owner.stage->flags = freer.stage->flags = SLABC_RECLAIM;
	rig_start(1);
	actor_go(&owner);
	actor_reached(&owner);
	freer.stage->ref = owner.stage->ref;
	actor_go(&freer);
	actor_reached(&freer);
	actor_more(&freer);
	actor_reached(&freer);
	actor_kill(&owner);
	rig_wait_ended(1);
	b = rig_open(rig.socket);
	bk = open_cache(b, SLABC_RECLAIM);
	get(bk);
	actor_kill(&freer);
	rig_wait_ended(2);
	rig_judge("an owner died while its object was being freed by another, who died too");
	slabc_close(b);
	actor_free(&owner);
	actor_free(&freer);
	rig_stop();
}

/* An owner stands still amid the free of a shared object: nobody can adopt it any more, and when it dies the object goes back once. */
static void
it_free_closes_first(void)
{
	struct actor owner;

	actor_fork(&owner, owner_halts_in_shared_free);
	rig_start(1);
	b = rig_open(rig.socket);
	bk = open_cache(b, 0);
	get(bk);
	get(bk);
	actor_go(&owner);
	actor_reached(&owner);
	the_ref = owner.stage->ref;
	actor_more(&owner);
	actor_reached(&owner);
	b_adopts();
	if (adopted)
		slabc_free(bk, adopted);
	actor_kill(&owner);
	rig_wait_ended(1);
	rig_judge("%s while its owner was freeing it, then the owner died", adopted ? "an object was adopted and freed" : "adoption was tried");
	HOLDS(!adopted, "an object was adopted while its owner was freeing it");
	slabc_close(b);
	actor_free(&owner);
	rig_stop();
}

static void
c_adopts(void)
{
	NEED(slabc_adopt(c, the_ref), "%s", slabc_last_error());
}

static void
c_adopts_elsewhere(void)
{
	rig_elsewhere(c_adopts);
}

/* More dead than may be named: the next session takes the dead one's slot, and its objects lose its name. */
static void
slot_is_used_again(void)
{
	enum { MANY = 5000 };

	rig.arena->n_named += MANY;
	c = rig_open(rig.socket);
	rig.arena->n_named -= MANY;
}

static void
slot_is_used_again_elsewhere(void)
{
	rig_elsewhere(slot_is_used_again);
}

/* Who loses a claim to another client tries again: the object is there as before. */
static void
it_lost_claim_is_tried_again(void)
{
	struct slabc *a;
	struct slabc_cache *ak;
	int r;

	rig_start(1);
	a = rig_open(rig.socket);
	b = rig_open(rig.socket);
	c = rig_open(rig.socket);
	ak = open_cache(a, 0);
	bk = open_cache(b, 0);
	ck = open_cache(c, 0);
	adopted = get(ak);
	the_ref = share(a, adopted);
	get(bk);

	rig_at(STEP_CLAIM_READ, 0, c_adopts_elsewhere);
	b_adopts();
	NEED(rig_was_played(), "nothing was claimed");
	HOLDS(adopted, "an adoption that lost to another one failed, though the object is there");
	HOLDS(word_owner(rig_word(bk, adopted)) == b->me, "the last of two to adopt does not have it");

	rig_at(STEP_CLAIM_READ, 0, c_adopts_elsewhere);
	get(ak);
	r = slabc_free_ref(a, the_ref);
	NEED(rig_was_played(), "nothing was claimed");
	HOLDS(r == 0, "a free that lost to an adoption failed, though the object is there: %s", strerror(-r));
	HOLDS(!slabc_deref(c, the_ref) && errno == ESTALE, "a freed object's reference still resolves");
	rig_judge("claims that lost");
	slabc_close(a);
	slabc_close(b);
	slabc_close(c);
	rig_stop();
}

static void
it_claim_lost_to_orphaning_is_tried_again(void)
{
	struct actor owner;

	actor_fork(&owner, owner_of_one);
	rig_start(1);
	actor_go(&owner);
	actor_reached(&owner);
	b = rig_open(rig.socket);
	bk = open_cache(b, 0);
	the_ref = owner.stage->ref;
	actor_kill(&owner);
	rig_wait_ended(1);
	rig.arena->next_client = owner.stage->client;
	rig_at(STEP_CLAIM_READ, 0, slot_is_used_again_elsewhere);
	b_adopts();
	NEED(rig_was_played() && c->me == owner.stage->client, "the slot was not used again");
	HOLDS(adopted, "an adoption that lost to the orphan's mark failed, though the object is there");
	judge_holder(bk, adopted, "adopted while its dead owner's slot was used again");
	rig_judge("an adoption lost to the orphan's mark");
	slabc_close(b);
	slabc_close(c);
	actor_free(&owner);
	rig_stop();
}

static void
it_old_reference_frees_nothing(void)
{
	struct slabc *a;
	struct slabc_cache *ak;
	slabc_ref old;
	void *p, *q;
	int r;

	rig_start(1);
	a = rig_open(rig.socket);
	b = rig_open(rig.socket);
	ak = open_cache(a, 0);
	bk = open_cache(b, 0);
	p = get(ak);
	old = share(a, p);
	slabc_free(ak, p);
	q = get(ak);
	NEED(q == p, "the object was not allocated again");
	the_ref = share(a, q);
	get(bk);
	r = slabc_free_ref(b, old);
	HOLDS(r == -ESTALE, "a free by an old reference says %s", r ? strerror(-r) : "success, and freed what its owner had allocated since");
	judge_holder(ak, q, "a free by an old reference");
	HOLDS(slabc_valid(a, the_ref), "a free by an old reference hit a later life");
	rig_judge("a free by an old reference");
	slabc_close(a);
	slabc_close(b);
	rig_stop();
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

/* If slabd were killed at any of its steps, its successor would find no object in two places. */
static void
it_slabd_never_has_an_object_twice(void)
{
	enum { N = 6 * CAPACITY };
	struct slabc_cache_options o = cache_options(SLABC_RECLAIM);
	struct actor owner;
	void *pv[N];

	actor_fork(&owner, owner_killed_in_free);
	owner.stage->flags = SLABC_RECLAIM;
	rig_start(1);
	at_instant = (struct account){0};
	n_instants = 0;
	rig_always(take_account);
	b = rig_open(rig.socket);
	o.min_partial = SLABC_KNOB_NONE;
	o.barn_full = 2;
	o.max_cached = CAPACITY * OBJECT_BYTES;
	bk = open_with(b, &o);
	actor_go(&owner);
	actor_reached(&owner);
	for (int i = 0; i < 3; i++) {
		get_some(bk, N, pv);
		slabc_free_bulk(bk, N, pv);
	}
	actor_more(&owner);
	actor_died(&owner);
	rig_wait_ended(1);
	slabc_cache_close(bk);
	slabc_close(b);
	rig_wait_ended(2);
	rig_always(NULL);
	NEED(n_instants > 50, "slabd came to %u steps", n_instants);
	HOLDS(!at_instant.first[0], "slabd killed at %s: %s", step_names[at_step], at_instant.first);
	rig_judge("after all that");
	actor_free(&owner);
	rig_stop();
}

/* The audit beside grant and take-back */

static struct audit beside;
static pthread_t auditor;
static bool has_auditor;

static void *
run_audit(void *arg)
{
	NEED(audit_run(rig.arena, NULL, &beside) == 0, "the audit fails");
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
	HOLDS(beside.n_lost == 0 && beside.n_doubled == 0, "audit beside slabd at %s says %llu lost, %llu doubled, and none is", step_names[step],
		(unsigned long long)beside.n_lost, (unsigned long long)beside.n_doubled);
	HOLDS(has_auditor, "the audit ran while slabd was at %s", step_names[step]);
}

static void
it_audit_waits_for_transfers(void)
{
	static const enum step grants[] = {STEP_GRANT_MARKED, STEP_GRANT_WRITTEN}, takes[] = {STEP_TAKE_REMOVED};
	void *pv[CAPACITY];
	struct slabc_sheaf *s;

	rig_start(1);
	b = rig_open(rig.socket);
	bk = open_cache(b, 0);
	for (unsigned i = 0; i < sizeof(grants) / sizeof(grants[0]); i++) {
		rig_at(grants[i], 0, audit_beside);
		s = slabc_prefill(bk, CAPACITY);
		NEED(s, "%s", slabc_last_error());
		judge_beside(grants[i]);
	}
	for (unsigned i = 0; i < sizeof(takes) / sizeof(takes[0]); i++) {
		s = slabc_prefill(bk, CAPACITY);
		NEED(s, "%s", slabc_last_error());
		rig_at(takes[i], 0, audit_beside);
		rig_give_back(bk, s->slot, LAYOUT_HOLDER_APP);
		judge_beside(takes[i]);
		free(s);
	}
	get_some(bk, CAPACITY, pv);
	rig_judge("audits beside transfers");
	slabc_close(b);
	rig_stop();
}

static void *bs_object;

static void
b_frees(void)
{
	slabc_free(bk, bs_object);
	bs_object = NULL;
}

static void
b_allocates_or_frees(void)
{
	rig_elsewhere(bs_object ? b_frees : b_allocates);
}

/* The audit has looked at words, or sheaves, and then a client allocates, or frees: that is neither lost nor doubled. */
static void
it_audit_beside_clients(void)
{
	static const enum step steps[] = {STEP_AUDIT_FIRST_LOOK, STEP_AUDIT_SECOND_LOOK};

	rig_start(1);
	b = rig_open(rig.socket);
	bk = open_cache(b, 0);
	for (unsigned i = 0; i < 4; i++) {
		bs_object = i / 2 ? get(bk) : NULL;
		rig_at(steps[i % 2], 0, b_allocates_or_frees);
		run_audit(NULL);
		NEED(rig_was_played(), "the audit did not look");
		HOLDS(beside.n_lost == 0 && beside.n_doubled == 0 && beside.n_undecided == 0,
			"a client was busy at %s, and the audit says %llu lost, %llu doubled, %llu undecided", step_names[steps[i % 2]],
			(unsigned long long)beside.n_lost, (unsigned long long)beside.n_doubled, (unsigned long long)beside.n_undecided);
	}
	slabc_close(b);
	rig_stop();
}

/* Sheaves that change hands */

static void *second_thread_has[CAPACITY / 2];

static void
second_thread_allocates(void)
{
	get_some(bk, CAPACITY / 2, second_thread_has);
}

static void
second_thread_allocates_elsewhere(void)
{
	rig_elsewhere(second_thread_allocates);
}

/* A bulk free fills a sheaf; amid its clearing another thread of the process looks for one. */
static void
it_sheaf_is_clear_when_it_changes_hands(void)
{
	void *pv[CAPACITY];

	rig_start(1);
	b = rig_open(rig.socket);
	bk = open_cache(b, 0);
	get_some(bk, CAPACITY, pv);
	rig_at(STEP_BULK_FREE_CLEARING, 0, second_thread_allocates_elsewhere);
	slabc_free_bulk(bk, CAPACITY, pv);
	NEED(rig_was_played(), "nothing was cleared");
	rig_judge("a thread allocated while another one freed in bulk");
	for (int i = 0; i < CAPACITY / 2; i++)
		judge_holder(bk, second_thread_has[i], "a thread allocated while another one freed in bulk");
	HOLDS(bk->shown->n_dropped == 0, "a thread was handed %llu objects that were being freed", (unsigned long long)bk->shown->n_dropped);
	slabc_close(b);
	rig_stop();
}

/* Hostile clients: c writes into its session segment what no correct client writes. */

static struct slabc_sheaf *cs_sheaf;

/* b has an object, c a sheaf with objects in its hands. */
static void
hostile_begin(uint32_t barn_full, bool is_shared)
{
	struct slabc_cache_options o = cache_options(0);

	o.barn_full = barn_full;
	rig_start(1);
	b = rig_open(rig.socket);
	c = rig_open(rig.socket);
	bk = open_with(b, &o);
	ck = open_with(c, &o);
	bs_object = get(bk);
	if (is_shared)
		share(b, bs_object);
	cs_sheaf = slabc_prefill(ck, CAPACITY);
	NEED(cs_sheaf, "%s", slabc_last_error());
}

static void
hostile_end(const char *story)
{
	judge_holder(bk, bs_object, story);
	rig_judge_ledger("%s", story);
	for (int i = 0; i < 3 * SLAB_OBJECTS; i++)
		HOLDS(get(bk) != bs_object, "%s: an object was allocated twice", story);
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
static void
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
	atomic_write(&cs_sheaf->sheaf->entry[CAPACITY - 1], rig_place(b, bs_object));
}

/* While slabd reads the top entry it becomes an object that another client holds. */
static void
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
it_entry_twice_goes_back_once(void)
{
	for (unsigned i = 0; i < 2; i++) {
		hostile_begin(i ? SLABC_KNOB_NONE : 0, false);
		atomic_write(&cs_sheaf->sheaf->entry[CAPACITY - 2], atomic_read(&cs_sheaf->sheaf->entry[CAPACITY - 1]));
		rig_give_back(ck, cs_sheaf->slot, LAYOUT_HOLDER_APP);
		hostile_end(i ? "an entry twice in a sheaf, no barn" : "an entry twice in a sheaf");
	}
}

static void
it_others_object_is_not_taken_back(void)
{
	for (unsigned i = 0; i < 2; i++) {
		hostile_begin(i ? SLABC_KNOB_NONE : 0, i);
		swap_entry();
		rig_give_back(ck, cs_sheaf->slot, LAYOUT_HOLDER_APP);
		hostile_end(i ? "an entry of a shared object that another client holds" : "an entry of an object that another client holds");
	}
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
	judge_holder(k, p, story);
}

/* A page may come round to the same incarnation; the word's generation tells then. */
static void
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
	p = get(bk);
	old = share(b, p);
	place = rig_place(b, p);
	page = place >> LAYOUT_PLACE_PAGE_SHIFT;
	incarnation = rig.arena->page_map[page].incarnation;
	generation = word_generation(rig_word(bk, p));
	for (int i = 0; i < INCARNATIONS; i++) {
		slabc_free(bk, p);
		NEED(rig.arena->page_map[page].cache == 0, "the page was kept");
		p = get(bk);
		NEED(rig_place(b, p) == place, "another page");
	}
	NEED(rig.arena->page_map[page].incarnation == incarnation, "the incarnation has not come round");
	share(b, p);
	judge_stale(bk, p, old, "a page that came round to its old incarnation");
	HOLDS(word_generation(rig_word(bk, p)) == generation + INCARNATIONS, "the generation went from %u to %u in %d allocations", generation,
		word_generation(rig_word(bk, p)), INCARNATIONS);
	slabc_close(b);
	rig_stop();
}

/* A page that another cache has now leads to words that stand at the old generation by chance; the page's incarnation tells then. */
static void
it_page_in_another_life_is_stale(void)
{
	void *pv[SLAB_OBJECTS + 1], *q;
	slabc_ref old;

	rig_start(1);
	b = rig_open(rig.socket);
	bk = open_bare(b, "before", SMALL_BYTES);
	ck = open_bare(b, "after", SMALL_BYTES / 4);
	/* A second slab keeps the words' block, so that the other cache gets words that were never used. */
	get_some(bk, SLAB_OBJECTS + 1, pv);
	old = share(b, pv[0]);
	for (int i = 0; i < SLAB_OBJECTS; i++)
		slabc_free(bk, pv[i]);
	q = get(ck);
	NEED(q == pv[0], "another page");
	share(b, q);
	NEED(word_generation(rig_word(ck, q)) == ((uint32_t)(old >> 32) & 0xffff), "the generations differ");
	judge_stale(ck, q, old, "a page that another cache has now");
	slabc_close(b);
	rig_stop();
}

/* Last: a step that nobody comes to any more guards nothing. */
static void
it_has_met_every_step(void)
{
	enum step unmet = rig_first_unmet();

	HOLDS(unmet == STEP_COUNT, "no story came to %s", unmet < STEP_COUNT ? step_names[unmet] : "");
}

/* Stories and what they are to notice */

struct story {
	const char *name;
	void (*play)(void);
	enum mutant notices[4]; /* MUTANT_NONE ends it */
};

#define STORY(name, ...) {#name, name, {__VA_ARGS__}}
static const struct story stories[] = {
	STORY(it_killed_in_alloc, MUTANT_SHRINK_FIRST),
	STORY(it_killed_in_free, MUTANT_CLEAR_FIRST, MUTANT_WORD_LEFT),
	STORY(it_killed_in_bulk_alloc, MUTANT_SHRINK_FIRST),
	STORY(it_killed_in_bulk_free, MUTANT_CLEAR_FIRST, MUTANT_WORD_LEFT),
	STORY(it_killed_in_shared_free, MUTANT_WORD_LEFT),
	STORY(it_killed_in_foreign_free, MUTANT_CLAIM_TO_ZERO),
	STORY(it_killed_in_adopt, MUTANT_NONE),
	STORY(it_killed_in_flow, MUTANT_SHRINK_FIRST, MUTANT_CLEAR_FIRST),
	STORY(it_killed_in_prefill, MUTANT_SHRINK_FIRST),
	STORY(it_killed_in_close, MUTANT_NONE),
	STORY(it_signal_at_any_step, MUTANT_NO_GUARD),
	STORY(it_reap_drains_sheaves_before_words, MUTANT_WORDS_FIRST),
	STORY(it_adoption_wins_over_reclaim, MUTANT_PLAIN_RECLAIM),
	STORY(it_claims_before_it_pushes, MUTANT_PUSH_FIRST),
	STORY(it_free_closes_first, MUTANT_FREE_NOT_CLOSED),
	STORY(it_lost_claim_is_tried_again, MUTANT_NO_RETRY),
	STORY(it_claim_lost_to_orphaning_is_tried_again, MUTANT_NO_RETRY),
	STORY(it_old_reference_frees_nothing, MUTANT_POINTER_FREE),
	STORY(it_slabd_never_has_an_object_twice, MUTANT_LEDGER_FIRST, MUTANT_WORDS_FIRST, MUTANT_WORD_LEFT),
	STORY(it_audit_waits_for_transfers, MUTANT_NO_LOCK),
	STORY(it_audit_beside_clients, MUTANT_NONE),
	STORY(it_sheaf_is_clear_when_it_changes_hands, MUTANT_HAND_OVER_BEFORE_CLEAR),
	STORY(it_size_above_capacity_is_cut, MUTANT_TRUST_SIZE),
	STORY(it_entry_is_read_once, MUTANT_READ_TWICE),
	STORY(it_entry_twice_goes_back_once, MUTANT_CHECK_THEN_MARK),
	STORY(it_others_object_is_not_taken_back, MUTANT_NO_WORD_CHECK),
	STORY(it_generation_outlives_its_slab, MUTANT_GENERATION_RESET),
	STORY(it_page_in_another_life_is_stale, MUTANT_NO_INCARNATION),
	STORY(it_has_met_every_step, MUTANT_NONE),
};

enum { N_STORIES = sizeof(stories) / sizeof(stories[0]), N_NOTICES = sizeof(stories[0].notices) / sizeof(stories[0].notices[0]) };

static bool
notices(const struct story *story, enum mutant mutant)
{
	for (unsigned i = 0; i < N_NOTICES; i++)
		if (story->notices[i] == mutant)
			return true;
	return false;
}

/* The story, with the rule broken, in a process of its own.  As main() then. */
static int
play_broken(const struct story *story, enum mutant mutant)
{
	const char *name = step_mutant_names[mutant];
	char seen[RIG_SENTENCE_BYTES + 1];
	int report[2], status;
	ssize_t n;
	pid_t pid;

	fflush(NULL);
	if (pipe(report) < 0 || (pid = fork()) < 0)
		return 2;
	if (pid == 0) {
		close(report[0]);
		rig_report_fd = report[1];
		step_mutant = mutant;
		alarm(MUTANT_S);
		story->play();
		_exit(0);
	}
	close(report[1]);
	waitpid(pid, &status, 0);
	/* Children of its own may still hold the other end: what there is to read is there. */
	n = WIFEXITED(status) && WEXITSTATUS(status) ? read(report[0], seen, RIG_SENTENCE_BYTES) : 0;
	close(report[0]);
	seen[n > 0 ? n : 0] = '\0';
	seen[strcspn(seen, "\n")] = '\0';
	if (WIFEXITED(status) && WEXITSTATUS(status) == 1) {
		printf("%s caught by %s: %s\n", name, story->name, seen);
		return 1;
	}
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
		printf("%s MISSED by %s\n", name, story->name);
		return 0;
	}
	printf("%s CRASHED %s: %s%s\n", name, story->name, WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "", seen);
	return 2;
}

static int
play_mutant(const char *name)
{
	enum mutant mutant = MUTANT_NONE;
	int result = -1;

	for (int m = MUTANT_NONE + 1; m < MUTANT_COUNT; m++)
		if (strcmp(step_mutant_names[m], name) == 0)
			mutant = (enum mutant)m;
	if (mutant == MUTANT_NONE) {
		fprintf(stderr, "there is no mutant '%s'\n", name);
		return 2;
	}
	for (unsigned i = 0; i < N_STORIES; i++) {
		int r = notices(&stories[i], mutant) ? play_broken(&stories[i], mutant) : -1;

		/* The worst counts: crashed, missed, caught, none. */
		if (r == 2 || (r == 0 && result != 2) || (r == 1 && result == -1))
			result = r;
	}
	if (result == -1)
		printf("%s MISSED: no story is to notice it\n", name);
	return result == -1 ? 0 : result;
}

static int
play_unmutated(void)
{
	CU_pSuite suite;
	unsigned n_failed;

	if (CU_initialize_registry() != CUE_SUCCESS)
		return 2;
	suite = CU_add_suite("mutants, unmutated", NULL, NULL);
	for (unsigned i = 0; suite && i < N_STORIES; i++)
		if (!CU_add_test(suite, stories[i].name, stories[i].play))
			suite = NULL;
	if (!suite)
		return 2;
	CU_basic_set_mode(CU_BRM_VERBOSE);
	CU_basic_run_tests();
	n_failed = CU_get_number_of_failures();
	CU_cleanup_registry();
	return n_failed ? 1 : 0;
}

int
main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 2 && strncmp(argv[1], "--mutant=", 9) == 0)
		return play_mutant(argv[1] + 9);
	if (argc == 2 && strcmp(argv[1], "--list") == 0) {
		for (int m = MUTANT_NONE + 1; m < MUTANT_COUNT; m++)
			puts(step_mutant_names[m]);
		return 0;
	}
	if (argc != 1) {
		fprintf(stderr, "usage: %s [--mutant=NAME | --list]\n", argv[0]);
		return 2;
	}
	alarm(2 * MUTANT_S);
	return play_unmutated();
}
