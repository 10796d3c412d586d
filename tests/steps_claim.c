/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who has an object: frees, claims and adoptions against each other, and against the reaper (design.md, I1 and I1b).
 *
 * One client here is `b`, another `c`; those who die are children.
 */
#include <string.h>

#include "tests/steps_rig.h"

static struct slabc *b, *c;
static struct slabc_cache *bk;
static slabc_ref the_ref;
static void *adopted;

/* A client that holds eight objects, of which the fourth is shared, and frees one when told to. */

static void
owner_begin(struct stage *stage, struct slabc_cache **kp, void **pv)
{
	struct slabc *s = rig_open(stage->socket);

	*kp = rig_open_cache(s, stage->flags);
	stage->client = s->me;
	rig_get_some(*kp, RIG_CAPACITY, pv);
	stage->ref = rig_share(s, pv[3]);
	stage_reached(stage);
	stage_wait_more(stage);
}

void
owner_killed_in_free(struct stage *stage)
{
	struct slabc_cache *k;
	void *pv[RIG_CAPACITY];

	owner_begin(stage, &k, pv);
	rig_at(STEP_FREE_GROWN, 0, stage_die);
	slabc_free(k, pv[RIG_CAPACITY - 1]);
}

static void
owner_halts_in_shared_free(struct stage *stage)
{
	struct slabc_cache *k;
	void *pv[RIG_CAPACITY];

	owner_begin(stage, &k, pv);
	rig_at(STEP_FREE_GROWN, 0, stage_halt);
	slabc_free(k, pv[3]);
}

static void
owner_of_one(struct stage *stage)
{
	struct slabc *s = rig_open(stage->socket);
	struct slabc_cache *k = rig_open_cache(s, stage->flags);

	stage->client = s->me;
	stage->ref = rig_share(s, rig_get(k));
	stage_reached(stage);
}

/* Frees another's object by reference, and stands still when the entry is in its sheaf. */
static void
freer_halts(struct stage *stage)
{
	struct slabc *s = rig_open(stage->socket);
	struct slabc_cache *k = rig_open_cache(s, stage->flags);

	rig_get(k);
	rig_get(k);
	stage_reached(stage);
	stage_wait_more(stage);
	rig_at(STEP_FREE_GROWN, 0, stage_halt);
	slabc_free_ref(s, stage->ref);
}

/* Reaping */

static void
b_allocates(void)
{
	rig_get(bk);
}

/* A client dies with its object freed but still named: sheaves first, then words; between them another client must not be given it. */
static void
b_allocates_elsewhere(void)
{
	rig_elsewhere(b_allocates);
}

void
it_reap_drains_sheaves_before_words(void)
{
	struct actor a;

	actor_fork(&a, owner_killed_in_free);
	a.stage->flags = SLABC_RECLAIM;
	rig_start(2); /* the dead one's loop reaps it, the other one serves b */
	actor_go(&a);
	actor_reached(&a);
	b = rig_open(rig.socket);
	bk = rig_open_cache(b, SLABC_RECLAIM);
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
	bk = rig_open_cache(b, flags);
	actor_go(&a);
	actor_reached(&a);
	the_ref = a.stage->ref;
	adopted = NULL;
	rig_at(STEP_RECLAIM_READ, 0, b_adopts_elsewhere);
	actor_kill(&a);
	rig_wait_ended(1);
	NEED(rig_was_played(), "no word was walked");
	HOLDS(adopted, "the adoption of a dying client's object fails: %s", strerror(errno));
	rig_judge_holder(bk, adopted, "adopted while its dead owner was reaped");
	rig_judge("adopted while its dead owner was reaped");
	for (int i = 0; i < 3 * RIG_SLAB_OBJECTS; i++)
		HOLDS(rig_get(bk) != adopted, "an object adopted while its dead owner was reaped was allocated again");
	slabc_close(b);
	actor_free(&a);
	rig_stop();
}

void
it_adoption_wins_over_reclaim(void)
{
	adopt_while_reaped(SLABC_RECLAIM);
}

void
it_adoption_wins_over_orphaning(void)
{
	adopt_while_reaped(0);
}

/* Frees of others' objects */

/* An owner dies while another client frees its object, and then the freer dies: the object goes back once. */
void
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
	bk = rig_open_cache(b, SLABC_RECLAIM);
	rig_get(bk);
	actor_kill(&freer);
	rig_wait_ended(2);
	rig_judge("an owner died while its object was being freed by another, who died too");
	slabc_close(b);
	actor_free(&owner);
	actor_free(&freer);
	rig_stop();
}

/* An owner stands still amid the free of a shared object: nobody can adopt it any more, and when it dies the object goes back once. */
void
it_free_closes_first(void)
{
	struct actor owner;

	actor_fork(&owner, owner_halts_in_shared_free);
	rig_start(1);
	b = rig_open(rig.socket);
	bk = rig_open_cache(b, 0);
	rig_get(bk);
	rig_get(bk);
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
	rig_judge("%s while its owner was freeing it, then the owner died",
		adopted ? "an object was adopted and freed" : "adoption was tried");
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

/* Three clients; the first one shares an object. */
static struct slabc *
three_clients(void)
{
	struct slabc *a;
	struct slabc_cache *ak;

	rig_start(1);
	a = rig_open(rig.socket);
	b = rig_open(rig.socket);
	c = rig_open(rig.socket);
	ak = rig_open_cache(a, 0);
	bk = rig_open_cache(b, 0);
	the_ref = rig_share(a, rig_get(ak));
	rig_get(bk);
	return a;
}

static void
three_clients_leave(struct slabc *a)
{
	slabc_close(a);
	slabc_close(b);
	slabc_close(c);
	rig_stop();
}

/* Who loses a claim to another client tries again: the object is there as before. */
void
it_lost_adoption_is_tried_again(void)
{
	struct slabc *a = three_clients();

	rig_at(STEP_CLAIM_READ, 0, c_adopts_elsewhere);
	b_adopts();
	NEED(rig_was_played(), "nothing was claimed");
	HOLDS(adopted, "an adoption that lost to another one failed, though the object is there");
	rig_judge_holder(bk, adopted, "the last of two to adopt an object");
	rig_judge("two adopted an object");
	three_clients_leave(a);
}

void
it_lost_free_is_tried_again(void)
{
	struct slabc *a = three_clients();
	int r;

	rig_at(STEP_CLAIM_READ, 0, c_adopts_elsewhere);
	r = slabc_free_ref(b, the_ref);
	NEED(rig_was_played(), "nothing was claimed");
	HOLDS(r == 0, "a free that lost to an adoption failed, though the object is there: %s", strerror(-r));
	HOLDS(!slabc_deref(c, the_ref) && errno == ESTALE, "a freed object's reference still resolves");
	rig_judge("an object was adopted while another client freed it");
	three_clients_leave(a);
}

void
it_claim_lost_to_orphaning_is_tried_again(void)
{
	struct actor owner;

	actor_fork(&owner, owner_of_one);
	rig_start(1);
	actor_go(&owner);
	actor_reached(&owner);
	b = rig_open(rig.socket);
	bk = rig_open_cache(b, 0);
	the_ref = owner.stage->ref;
	actor_kill(&owner);
	rig_wait_ended(1);
	rig.arena->next_client = owner.stage->client;
	rig_at(STEP_CLAIM_READ, 0, slot_is_used_again_elsewhere);
	b_adopts();
	NEED(rig_was_played() && c->me == owner.stage->client, "the slot was not used again");
	HOLDS(adopted, "an adoption that lost to the orphan's mark failed, though the object is there");
	rig_judge_holder(bk, adopted, "adopted while its dead owner's slot was used again");
	rig_judge("an adoption lost to the orphan's mark");
	slabc_close(b);
	slabc_close(c);
	actor_free(&owner);
	rig_stop();
}

void
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
	ak = rig_open_cache(a, 0);
	bk = rig_open_cache(b, 0);
	p = rig_get(ak);
	old = rig_share(a, p);
	slabc_free(ak, p);
	q = rig_get(ak);
	NEED(q == p, "the object was not allocated again");
	the_ref = rig_share(a, q);
	rig_get(bk);
	r = slabc_free_ref(b, old);
	HOLDS(r == -ESTALE, "a free by an old reference says %s",
		r ? strerror(-r) : "success, and freed what its owner had allocated since");
	rig_judge_holder(ak, q, "a free by an old reference");
	HOLDS(slabc_valid(a, the_ref), "a free by an old reference hit a later life");
	rig_judge("a free by an old reference");
	slabc_close(a);
	slabc_close(b);
	rig_stop();
}

/* Sheaves that change hands */

static void *second_thread_has[RIG_CAPACITY / 2];

static void
second_thread_allocates(void)
{
	rig_get_some(bk, RIG_CAPACITY / 2, second_thread_has);
}

static void
second_thread_allocates_elsewhere(void)
{
	rig_elsewhere(second_thread_allocates);
}

/* A bulk free fills a sheaf; amid its clearing another thread of the process looks for one. */
void
it_sheaf_is_clear_when_it_changes_hands(void)
{
	void *pv[RIG_CAPACITY];

	rig_start(1);
	b = rig_open(rig.socket);
	bk = rig_open_cache(b, 0);
	rig_get_some(bk, RIG_CAPACITY, pv);
	rig_at(STEP_BULK_FREE_CLEARING, 0, second_thread_allocates_elsewhere);
	slabc_free_bulk(bk, RIG_CAPACITY, pv);
	NEED(rig_was_played(), "nothing was cleared");
	rig_judge("a thread allocated while another one freed in bulk");
	for (int i = 0; i < RIG_CAPACITY / 2; i++)
		rig_judge_holder(bk, second_thread_has[i], "a thread allocated while another one freed in bulk");
	HOLDS(bk->shown->n_dropped == 0, "a thread was handed %llu objects that were being freed",
		(unsigned long long)bk->shown->n_dropped);
	slabc_close(b);
	rig_stop();
}
