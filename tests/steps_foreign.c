/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims made later (design.md, I1b; tests/model/foreign_sheaf.pml): a free of another client's object against its owner, its adopters,
 * other frees and the reaper, until its claim is made; and foreign sheaves as no correct client leaves them.
 *
 * The owner is `b`, who frees is `c`, who adopts or frees too is `d`; those who die are children.
 */
#include <semaphore.h>
#include <stdlib.h>

#include "server/grant.h"
#include "server/recall.h"
#include "server/session.h"
#include "tests/steps_rig.h"

static struct slabc *b, *c, *d;
static struct slabc_cache *bk, *ck, *dk;
static void *bs_object;
static slabc_ref the_ref;

/* b's object is shared; all three have the cache. */
static void
begin(unsigned n_loops)
{
	rig_start(n_loops);
	b = rig_open(rig.socket);
	c = rig_open(rig.socket);
	d = rig_open(rig.socket);
	bk = rig_open_cache(b, 0);
	ck = rig_open_cache(c, 0);
	dk = rig_open_cache(d, 0);
	bs_object = rig_get(bk);
	the_ref = rig_share(b, bs_object);
}

static void
end(void)
{
	slabc_close(b);
	slabc_close(c);
	slabc_close(d);
	rig_stop();
}

static void
free_by_pointer(struct slabc *s, struct slabc_cache *k, slabc_ref ref)
{
	void *p = slabc_deref(s, ref);

	NEED(p, "%s", slabc_last_error());
	errno = 0;
	slabc_free(k, p);
	NEED(errno == 0, "%s", slabc_last_error());
}

/* Has the calling thread entries in a foreign sheaf? */
static uint32_t
n_unsettled(const struct slabc_cache *k)
{
	const struct sheaf *s = tls.block->cache[k->v.index].foreign;

	return s ? atomic_read(&s->size) : 0;
}

static void
make_claims(struct slabc_cache *k)
{
	NEED(slabc_cache_shrink(k) == 0, "%s", slabc_last_error());
}

static void *
adopt(struct slabc *s, slabc_ref ref)
{
	void *p = slabc_adopt(s, ref);

	NEED(p, "%s", slabc_last_error());
	return p;
}

/* Others come between a free and its claim */

/* Who adopted the object since keeps it, and so does its owner who freed it himself and has it anew; the late free is a double free. */
void
it_late_claim_is_lost(void)
{
	void *p, *q;

	begin(1);
	free_by_pointer(c, ck, the_ref);
	NEED(n_unsettled(ck) == 1, "it was not put off");
	HOLDS(slabc_valid(c, the_ref), "a free that takes effect later took effect");
	rig_judge("freed by another client, and not yet claimed");
	p = adopt(d, the_ref);
	make_claims(ck);
	rig_judge_holder(dk, p, "adopted after another client freed it");
	HOLDS(ck->shown->n_double_frees == 1 && ck->shown->n_foreign_frees == 0,
		"a lost claim counts as %llu double frees, %llu foreign ones", (unsigned long long)ck->shown->n_double_frees,
		(unsigned long long)ck->shown->n_foreign_frees);
	rig_judge("adopted after another client freed it");

	q = rig_get(bk);
	free_by_pointer(c, ck, rig_share(b, q));
	slabc_free(bk, q);
	NEED(rig_get(bk) == q, "another object came first");
	rig_share(b, q);
	make_claims(ck);
	rig_judge_holder(bk, q, "freed by its owner too, and allocated anew");
	HOLDS(ck->shown->n_double_frees == 2, "a lost claim was not counted");
	rig_judge("freed by its owner too, and allocated anew");
	end();
}

/* Of two frees of one object one wins; the loser is counted when it is found out, whether it was another client's or one's own. */
void
it_one_late_free_wins(void)
{
	begin(1);
	free_by_pointer(c, ck, the_ref);
	free_by_pointer(d, dk, the_ref);
	free_by_pointer(c, ck, the_ref);
	NEED(n_unsettled(ck) == 2 && n_unsettled(dk) == 1, "they were not put off");
	make_claims(ck);
	HOLDS(ck->shown->n_foreign_frees == 1 && ck->shown->n_double_frees == 1, "two frees by one client: %llu won, %llu lost",
		(unsigned long long)ck->shown->n_foreign_frees, (unsigned long long)ck->shown->n_double_frees);
	make_claims(dk);
	HOLDS(dk->shown->n_foreign_frees == 0 && dk->shown->n_double_frees == 1, "the free that came last: %llu won, %llu lost",
		(unsigned long long)dk->shown->n_foreign_frees, (unsigned long long)dk->shown->n_double_frees);
	HOLDS(!slabc_valid(b, the_ref), "an object is held that was freed three times");
	rig_judge("one object was freed three times");
	end();
}

static sem_t halted, go_on;

static void
halt_here(void)
{
	sem_post(&halted);
	sem_wait(&go_on);
}

static void *
free_by_ref(void *arg)
{
	NEED(slabc_free_ref(c, the_ref) == 0, "%s", slabc_last_error());
	return arg;
}

/* A second thread of c's is in the midst of a free by reference of what the first one's foreign sheaf has: its claim is its own. */
static void
second_thread_frees(void (*make)(void), const char *story)
{
	pthread_t thread;

	sem_init(&halted, 0, 0);
	sem_init(&go_on, 0, 0);
	begin(1);
	rig_get(ck); /* the handle's record of this thread, and of its session's own handle */
	free_by_pointer(c, ck, the_ref);
	NEED(n_unsettled(ck) == 1, "it was not put off");
	rig_at(STEP_CLAIM_MADE, 0, halt_here);
	NEED(pthread_create(&thread, NULL, free_by_ref, NULL) == 0, "no thread");
	sem_wait(&halted);
	make();
	sem_post(&go_on);
	pthread_join(thread, NULL);
	rig_judge("%s", story);
	HOLDS(ck->shown->n_foreign_frees == 1 && ck->shown->n_double_frees == 1, "%s: %llu won, %llu lost", story,
		(unsigned long long)ck->shown->n_foreign_frees, (unsigned long long)ck->shown->n_double_frees);
	end();
}

static void
c_makes_claims(void)
{
	make_claims(ck);
}

void
it_others_claim_is_not_mine(void)
{
	second_thread_frees(c_makes_claims, "claims were made while another thread freed the same object");
}

/* Hands */

static void *second_thread_has[RIG_CAPACITY / 2];

static void
second_thread_allocates(void)
{
	rig_get_some(ck, RIG_CAPACITY / 2, second_thread_has);
}

static void
second_thread_allocates_elsewhere(void)
{
	rig_elsewhere(second_thread_allocates);
}

/* A foreign sheaf is settled; amid its clearing another thread of the process looks for a sheaf. */
void
it_foreign_sheaf_is_clear_when_it_changes_hands(void)
{
	static const char story[] = "a thread allocated while another one's foreign sheaf was settled";

	begin(1);
	for (int i = 0; i < RIG_CAPACITY; i++)
		free_by_pointer(c, ck, rig_share(b, rig_get(bk)));
	NEED(n_unsettled(ck) == RIG_CAPACITY, "they were not put off");
	rig_at(STEP_SETTLE_CLEARING, 0, second_thread_allocates_elsewhere);
	/* One more, for which there is no room. */
	free_by_pointer(c, ck, the_ref);
	NEED(rig_was_played(), "nothing was cleared");
	rig_judge("%s", story);
	for (int i = 0; i < RIG_CAPACITY / 2; i++)
		rig_judge_holder(ck, second_thread_has[i], story);
	HOLDS(ck->shown->n_dropped == 0, "%s, and was handed %llu objects that were being freed", story,
		(unsigned long long)ck->shown->n_dropped);
	end();
}

/* The dead */

/* Frees what it is told to by pointer, has reached that, and goes on to the end. */
static void
freer(struct stage *stage)
{
	struct slabc *s = rig_open(stage->socket);
	struct slabc_cache *k = rig_open_cache(s, 0);

	stage->client = s->me;
	free_by_pointer(s, k, stage->ref);
	NEED(n_unsettled(k) == 1, "it was not put off");
	stage_reached(stage);
}

/* Kills a client that has freed b's object, and not claimed it; before that, or at a step of the reaper's, somebody acts. */
static void
freer_dies(void (*before)(void), enum step step, void (*meanwhile)(void))
{
	struct actor a;

	actor_fork(&a, freer);
	begin(1);
	a.stage->ref = the_ref;
	actor_go(&a);
	actor_reached(&a);
	if (before)
		before();
	rig_at(step, 0, meanwhile);
	actor_kill(&a);
	rig_wait_ended(1);
	NEED(!meanwhile || rig_was_played(), "the dead one's sheaf was not settled");
	actor_free(&a);
}

static void *adopted;

static void
d_adopts(void)
{
	adopted = adopt(d, the_ref);
}

static void
d_adopts_elsewhere(void)
{
	rig_elsewhere(d_adopts);
}

static void
b_frees(void)
{
	slabc_free(bk, bs_object);
}

void
it_late_free_of_the_dead_takes_effect(void)
{
	freer_dies(NULL, STEP_TAKE_CHECKED, NULL);
	HOLDS(!slabc_valid(b, the_ref), "what the dead had freed is still held");
	rig_judge("a client died before it claimed what it had freed");
	end();
}

void
it_adoption_wins_over_the_deads_free(void)
{
	for (int i = 0; i < 2; i++) {
		freer_dies(i ? NULL : d_adopts, STEP_TAKE_CHECKED, i ? d_adopts_elsewhere : NULL);
		rig_judge_holder(dk, adopted, i ? "adopted while the dead one's claim was made" : "adopted after the dead one freed it");
		rig_judge("adopted, and freed by one who died");
		end();
	}
}

/* Its owner freed it too: it lies in the owner's sheaf. */
void
it_unowned_word_is_a_lost_claim(void)
{
	freer_dies(b_frees, STEP_TAKE_CHECKED, NULL);
	rig_judge("freed by its owner, and by one who died");
	end();
}

/* Two threads free one object, the second by reference, and its client dies when the entry is in the second's sheaf, its word not clear. */

static struct stage *frees_twice_stage;
static struct slabc *frees_twice_session;

static void *
frees_twice_second(void *arg)
{
	rig_at(STEP_FREE_GROWN, 0, stage_halt);
	slabc_free_ref(frees_twice_session, frees_twice_stage->ref);
	return arg;
}

static void
frees_twice(struct stage *stage)
{
	struct slabc_cache *k;
	pthread_t thread;

	frees_twice_session = rig_open(stage->socket);
	frees_twice_stage = stage;
	k = rig_open_cache(frees_twice_session, 0);
	rig_get(k);
	free_by_pointer(frees_twice_session, k, stage->ref);
	NEED(n_unsettled(k) == 1, "it was not put off");
	pthread_create(&thread, NULL, frees_twice_second, NULL);
	stage_stop();
}

/* It gets what came back first, and leaves it in a sheaf. */
static struct slabc_sheaf *bs_sheaf;

static void
b_takes_a_sheaf(void)
{
	bs_sheaf = slabc_prefill(bk, RIG_CAPACITY);
	NEED(bs_sheaf, "%s", slabc_last_error());
}

static void
b_takes_a_sheaf_elsewhere(void)
{
	rig_elsewhere(b_takes_a_sheaf);
}

void
it_settles_after_ordinary_sheaves(void)
{
	struct actor a;

	actor_fork(&a, frees_twice);
	begin(2);
	a.stage->ref = the_ref;
	actor_go(&a);
	actor_reached(&a);
	rig_at(STEP_REAP_ORDINARY, 0, b_takes_a_sheaf_elsewhere);
	actor_kill(&a);
	rig_wait_ended(1);
	NEED(rig_was_played(), "nobody was reaped");
	rig_judge("freed by two threads of one that died, and allocated while it was reaped");
	slabc_return(bk, bs_sheaf);
	actor_free(&a);
	end();
}

/*
 * Sheaf and record have served before: what lies above the size is no wish.  The freer's first eight claims are lost to d, who gives the
 * objects back to b: their words are again what they were when they were recorded.  Then it dies in the midst of a ninth free.
 */

static void
die_in_the_next(void)
{
	stage_reached(frees_twice_stage);
	stage_wait_more(frees_twice_stage);
	rig_at(STEP_FOREIGN_RECORDED, 0, stage_die);
}

static void
frees_nine(struct stage *stage)
{
	struct slabc *s = rig_open(stage->socket);
	struct slabc_cache *k = rig_open_cache(s, 0);

	frees_twice_stage = stage;
	for (int i = 0; i < RIG_CAPACITY; i++)
		free_by_pointer(s, k, stage->refs[i]);
	NEED(n_unsettled(k) == RIG_CAPACITY, "they were not put off");
	stage_reached(stage);
	stage_wait_more(stage);
	rig_at(STEP_FOREIGN_OPENED, 0, die_in_the_next);
	free_by_pointer(s, k, stage->ref);
}

void
it_size_covers_what_is_written(void)
{
	void *pv[RIG_CAPACITY];
	struct actor a;

	actor_fork(&a, frees_nine);
	begin(1);
	rig_get_some(bk, RIG_CAPACITY, pv);
	for (int i = 0; i < RIG_CAPACITY; i++)
		a.stage->refs[i] = rig_share(b, pv[i]);
	a.stage->ref = the_ref;
	actor_go(&a);
	actor_reached(&a);
	for (int i = 0; i < RIG_CAPACITY; i++)
		adopt(d, a.stage->refs[i]);
	actor_more(&a);
	actor_reached(&a);
	for (int i = 0; i < RIG_CAPACITY; i++)
		NEED(slabc_give(d, slabc_deref(d, a.stage->refs[i]), slabc_client_id(b)) == 0, "%s", slabc_last_error());
	actor_more(&a);
	actor_died(&a);
	rig_wait_ended(1);
	for (int i = 0; i < RIG_CAPACITY; i++)
		rig_judge_holder(bk, pv[i], "its free was lost long ago");
	rig_judge_holder(bk, bs_object, "killed before its free was put down");
	rig_judge("killed in a foreign sheaf's second use");
	actor_free(&a);
	end();
}

/* Revocation, as slabd revokes main and spare (design.md, section 4): here the calling thread is the owner, so that no membarrier is
 * needed. */

static struct sheaf *
foreign_of(const struct slabc_cache *k)
{
	return tls.block->cache[k->v.index].foreign;
}

static void
revoke(struct sheaf *s)
{
	atomic_write(&s->floor, UINT32_MAX);
	atomic_write(&s->limit, 0);
}

/* slabd takes a thread's revoked sheaf. */
static void
take_revoked(struct slabc_cache *k, uint32_t slot)
{
	struct session *session;

	pthread_rwlock_rdlock(&rig.arena->sessions_lock);
	session = rig.arena->sessions[k->v.me];
	pthread_mutex_lock(&session->work);
	NEED(session_slot_take(session, slot, LAYOUT_HOLDER_THREAD + tls.block->number), "the slot is not the thread's");
	grant_take_back(session, slot, true);
	HOLDS(atomic_read(&session_sheaf(session, slot)->busy) == 0, "a slot that was unsettled is so in its next life");
	session_slot_put(session, slot);
	pthread_mutex_unlock(&session->work);
	pthread_rwlock_unlock(&rig.arena->sessions_lock);
}

/* Until slabd has taken the sheaf frees claim at once; its claims are made for a client that goes on; then the thread begins another. */
void
it_revoked_foreign_sheaf_is_settled(void)
{
	slabc_ref refs[3];
	uint32_t slot;

	begin(1);
	for (int i = 0; i < 3; i++)
		refs[i] = rig_share(b, rig_get(bk));
	free_by_pointer(c, ck, refs[0]);
	free_by_pointer(c, ck, the_ref);
	d_adopts();
	slot = (uint32_t)tls.block->cache[ck->v.index].foreign_slot;
	revoke(foreign_of(ck));
	free_by_pointer(c, ck, refs[1]);
	HOLDS(!slabc_valid(b, refs[1]), "a free beside a revoked foreign sheaf was put off");
	take_revoked(ck, slot);
	HOLDS(!slabc_valid(b, refs[0]), "slabd took a foreign sheaf, and its object is still held");
	rig_judge_holder(dk, adopted, "adopted before slabd took the foreign sheaf");
	HOLDS(ck->shown->n_foreign_frees == 2 && ck->shown->n_double_frees == 1, "%llu frees, %llu double frees are counted",
		(unsigned long long)ck->shown->n_foreign_frees, (unsigned long long)ck->shown->n_double_frees);
	rig_judge("slabd took a foreign sheaf");
	free_by_pointer(c, ck, refs[2]);
	HOLDS(n_unsettled(ck) == 1, "after a revocation nothing is put off any more");
	make_claims(ck);
	HOLDS(!slabc_valid(b, refs[2]), "the foreign sheaf after a revoked one was not settled");
	rig_judge("a foreign sheaf after a revoked one");
	end();
}

/* Taken while it lies with the client that flushes: the client finds slabd has it. */
static void
slabd_takes_it(void)
{
	uint32_t slot = (uint32_t)tls.block->cache[ck->v.index].foreign_slot;

	revoke(foreign_of(ck));
	take_revoked(ck, slot);
}

void
it_revoked_before_it_is_flushed(void)
{
	begin(1);
	free_by_pointer(c, ck, the_ref);
	slabd_takes_it();
	make_claims(ck);
	HOLDS(!slabc_valid(b, the_ref), "slabd took a foreign sheaf, and its object is still held");
	HOLDS(ck->shown->n_foreign_frees == 1, "%llu frees are counted", (unsigned long long)ck->shown->n_foreign_frees);
	rig_judge("slabd took a foreign sheaf, and then it was flushed");
	end();
}

/* What names a living client, CLOSING, may be its other thread's: slabd leaves it alone. */
void
it_living_clients_claim_is_left_alone(void)
{
	second_thread_frees(slabd_takes_it, "slabd took a foreign sheaf while another thread freed the same object");
}

/* Hostile clients */

/* c's prefilled sheaf says that it is unsettled, and names that slot as its record. */
static void
hostile(uint32_t next, uint32_t record_entry, uint32_t place, const char *story)
{
	struct slabc_sheaf *s = slabc_prefill(ck, RIG_CAPACITY), *record = slabc_prefill(ck, RIG_CAPACITY);
	struct slabc_sheaf *small = slabc_prefill(ck, RIG_CAPACITY - 1);
	struct session *session = rig.arena->sessions[c->me];
	uint64_t n_faults = atomic_read(&session->n_faults);

	NEED(s && record && small, "%s", slabc_last_error());
	atomic_write(&record->sheaf->size, 0);
	for (int i = 0; i < RIG_CAPACITY; i++) {
		atomic_write(&record->sheaf->entry[i], record_entry);
		atomic_write(&s->sheaf->entry[i], place);
	}
	atomic_write(&c->slots[s->slot].next, next == 1 ? s->slot + 1 : next == 2 ? record->slot + 1 : next == 3 ? small->slot + 1 : next);
	atomic_write(&s->sheaf->busy, SHEAF_UNSETTLED);
	pthread_rwlock_rdlock(&rig.arena->sessions_lock);
	pthread_mutex_lock(&session->work);
	NEED(session_slot_take(session, s->slot, LAYOUT_HOLDER_APP), "the slot is not the application's");
	grant_take_back(session, s->slot, true);
	HOLDS(atomic_read(&s->sheaf->size) == 0 && atomic_read(&s->sheaf->busy) == 0, "%s: the sheaf is not empty", story);
	session_slot_put(session, s->slot);
	pthread_mutex_unlock(&session->work);
	pthread_rwlock_unlock(&rig.arena->sessions_lock);
	HOLDS(next == 2 || atomic_read(&session->n_faults) == n_faults + 1, "%s: no fault was counted", story);
	rig_judge_holder(bk, bs_object, story);
	rig_judge_ledger("%s", story);
	slabc_return(ck, record);
	slabc_return(ck, small);
	free(s);
}

void
it_hostile_foreign_sheaves_take_nothing(void)
{
	struct slabc_cache *ok;
	uint32_t others_slot, place;
	void *owned;

	begin(1);
	owned = rig_get(bk);
	place = rig_place(b, owned);
	ok = rig_cache(c, "another cache", 64, NULL);
	rig_get(ok);
	others_slot = (uint32_t)tls.block->cache[ok->v.index].main_slot;
	hostile(0, 0, place, "no record");
	hostile(1, 0, place, "a foreign sheaf that is its own record");
	hostile(3, 0, place, "a record that is too small");
	hostile(others_slot + 1, 0, place, "a record of another cache");
	hostile(LAYOUT_MAX_SLOTS, 0, place, "a record in a slot that was never made");
	hostile(UINT32_MAX, 0, place, "a record out of range");
	/* A record that is one: what another holds is claimed from nothing but exactly that, and only if it is shared. */
	hostile(2, rig_word(bk, owned), place, "a record of an object that is not shared");
	hostile(2, rig_word(bk, bs_object) + WORD_GENERATION_ONE, rig_place(b, bs_object), "a record of another life");
	hostile(2, word_with(rig_word(bk, bs_object), c->me, WORD_CLOSING), rig_place(b, bs_object), "a claim of one's own recorded");
	hostile(2, 0, rig_place(b, bs_object), "a record of nothing");
	hostile(2, 0, UINT32_MAX, "tombstones");
	hostile(2, 0, rig_place(b, bs_object) + 1, "a place inside an object");
	rig_judge_holder(bk, owned, "hostile foreign sheaves");
	end();
}

/* Age: whoever goes on freeing, or allocating, has no claim to make for ever. */

void
it_old_foreign_sheaf_is_flushed(void)
{
	void *pv[4 * RIG_CAPACITY];

	begin(1);
	free_by_pointer(c, ck, the_ref);
	rig_get_some(ck, 4 * RIG_CAPACITY, pv);
	HOLDS(n_unsettled(ck) == 1, "a young foreign sheaf was flushed");
	tls.block->cache[ck->v.index].opened_s -= FOREIGN_MAX_AGE_S;
	slabc_free_bulk(ck, 4 * RIG_CAPACITY, pv);
	rig_get_some(ck, 4 * RIG_CAPACITY, pv);
	HOLDS(n_unsettled(ck) == 0 && !slabc_valid(b, the_ref), "an old foreign sheaf is kept");
	rig_judge("an old foreign sheaf was flushed");
	end();
}

/* slabd's part, for a thread that never comes to a slow path: the sheaf grows at each tick, and is as old as its first entry. */
void
it_old_foreign_sheaf_is_recalled(void)
{
	slabc_ref ref[RECALL_TICKS];

	begin(1);
	free_by_pointer(c, ck, the_ref);
	for (int i = 0; i < RECALL_TICKS; i++)
		ref[i] = rig_share(b, rig_get(bk));
	for (int i = 0; i <= RECALL_TICKS; i++) {
		HOLDS(slabc_valid(b, the_ref), "a young foreign sheaf was recalled");
		pthread_rwlock_rdlock(&rig.arena->sessions_lock);
		recall_decay(rig.arena);
		pthread_rwlock_unlock(&rig.arena->sessions_lock);
		if (i < RECALL_TICKS)
			free_by_pointer(c, ck, ref[i]);
	}
	HOLDS(!slabc_valid(b, the_ref), "a foreign sheaf that grows is never recalled");
	make_claims(ck);
	rig_judge("an old foreign sheaf was recalled");
	end();
}
