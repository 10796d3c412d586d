/* SPDX-License-Identifier: Apache-2.0 */
/*
 * No loop is endless (design.md, I8): between each look at a shared word and the compare-and-swap that follows, somebody writes it.
 *
 * Who tries again must give up in time, say so, and leave the object where it was.  The writer stops in the end, so that a loop without a
 * bound is seen by how long it went on, and not by a hang.
 */
#include <stdlib.h>
#include <string.h>

#include "server/cache.h"
#include "server/grant.h"
#include "server/session.h"
#include "shm/barn.h"
#include "tests/steps_rig.h"

/* MAX_LOST of server/grant.c, reaper.c, session.c and MAX_LOST_GIVES of orphan.c; MAX_LOST_CLAIMS of client/free.c and ref.c; MAX_LOST of
 * shm/barn.c. */
enum { SERVER_TRIES = 64, CLIENT_TRIES = 4096, BARN_TRIES = 100000, TOO_OFTEN = 300000 };

/* Clients that there are none of. */
enum { NOBODY = 1000, NOBODY_ELSE };

static struct slabc *b, *c;
static struct slabc_cache *bk, *ck;

/* The writer: at each such step the word becomes the one or the other. */
static struct {
	enum step step;
	uint32_t *word;
	uint32_t values[2];
	uint32_t n;
} spoiler;

static void
spoil(enum step step)
{
	if (step != spoiler.step || spoiler.n >= TOO_OFTEN)
		return;
	spoiler.n++;
	atomic_write(spoiler.word, spoiler.values[atomic_read(spoiler.word) == spoiler.values[0]]);
}

static void
begin_spoiling(enum step step, uint32_t *word, uint32_t one, uint32_t other)
{
	spoiler.step = step;
	spoiler.word = word;
	spoiler.values[0] = one;
	spoiler.values[1] = other;
	spoiler.n = 0;
	atomic_write(word, one);
	rig_always(spoil);
}

/* Others: how often it was looked at for other objects. */
static void
end_spoiling(uint32_t max, uint32_t others, const char *who)
{
	rig_always(NULL);
	HOLDS(spoiler.n >= max && spoiler.n <= max + others, "%s tried %u times, and %u are the bound", who, spoiler.n, max);
}

static uint32_t *
word_of(const struct slabc_cache *k, uint32_t place)
{
	return sheaf_word(&k->v, place);
}

/* As slabd tunes: the knob, then what lies in barns. */
static void
tune_to_a_byte(void)
{
	const struct cache_tuning tuning = {.set = CACHE_TUNE_MAX_CACHED, .max_cached = 1};
	struct cache *cache = cache_find(rig.arena, "mutants");
	struct session *session;
	char why[256];

	pthread_rwlock_wrlock(&rig.arena->sessions_lock);
	session = rig.arena->first_session;
	NEED(cache && cache_tune(cache, &tuning, why, sizeof(why)) == 0, "the cache is not tuned");
	pthread_mutex_lock(&session->work);
	grant_trim(session, cache);
	pthread_mutex_unlock(&session->work);
	pthread_rwlock_unlock(&rig.arena->sessions_lock);
}

static uint32_t
barn_sheaves(void)
{
	return barn_count(atomic_read(&ck->shown->full));
}

/*
 * A sheaf is put into the barn by a thread that had read the old limit, when slabd has lowered it and called in what was more: it lies
 * there beside the one that stayed, and goes back when the next is put down.
 */
void
it_surplus_goes_at_the_next_put(void)
{
	struct slabc_sheaf *s[3];

	rig_start(1);
	c = rig_open(rig.socket);
	ck = rig_open_cache(c, 0);
	for (int i = 0; i < 3; i++) {
		s[i] = slabc_prefill(ck, RIG_CAPACITY);
		NEED(s[i], "%s", slabc_last_error());
	}
	slabc_return(ck, s[0]);
	NEED(barn_sheaves() == 1, "%u sheaves lie in the barn", barn_sheaves());
	rig_at(STEP_BARN_HANDED, 0, tune_to_a_byte);
	slabc_return(ck, s[1]);
	NEED(rig_was_played() && barn_sheaves() == 2, "%u sheaves lie in the barn after the tuning", barn_sheaves());
	slabc_return(ck, s[2]);
	HOLDS(barn_sheaves() == 1, "%u sheaves stay in a barn of one", barn_sheaves());
	rig_judge("after a tuning amid a put");
	slabc_close(c);
	rig_stop();
}

/* slabd takes a sheaf back, and the client writes the word of its top entry all the while: the entry is dropped, the others come back. */
void
it_take_back_gives_up(void)
{
	struct slabc_sheaf *s;
	uint32_t *word, w, me;

	rig_start(1);
	c = rig_open(rig.socket);
	ck = rig_open_cache(c, 0);
	me = c->me;
	s = slabc_prefill(ck, RIG_CAPACITY);
	NEED(s, "%s", slabc_last_error());
	word = word_of(ck, s->sheaf->entry[RIG_CAPACITY - 1]);
	w = atomic_read(word);
	begin_spoiling(STEP_TAKE_CHECKED, word, word_with(w, me, WORD_OWNED), word_with(w, me, WORD_SHARED));
	rig_give_back(ck, s->slot, LAYOUT_HOLDER_APP);
	end_spoiling(SERVER_TRIES, RIG_CAPACITY - 1, "taking an entry back");
	HOLDS(rig.arena->sessions[me]->n_faults == 1, "an entry that was given up counts as %llu faults",
		(unsigned long long)rig.arena->sessions[me]->n_faults);
	rig_judge("an entry's word changed without end while it was taken back");
	free(s);
	slabc_close(c);
	rig_stop();
}

static void
hold_one_and_wait(struct stage *stage)
{
	struct slabc *s = rig_open(stage->socket);
	struct slabc_cache *k = rig_open_cache(s, stage->flags);

	stage->client = s->me;
	stage->held[0] = rig_place(s, rig_get(k));
	stage_reached(stage);
	stage_stop();
}

/*
 * The reaper would free what a dead client held, and somebody writes the word all the while: it stays under the dead one's name.  Then the
 * name is to be forgotten, and somebody writes the word all the while: the slot is not used again.
 */
void
it_reaper_and_forgetting_give_up(void)
{
	enum { MANY = 5000 }; /* above MAX_NAMED of server/session.c */
	uint32_t *word, w, dead, n_not_shared;
	struct actor owner;

	actor_fork(&owner, hold_one_and_wait);
	owner.stage->flags = SLABC_RECLAIM;
	rig_start(1);
	b = rig_open(rig.socket);
	bk = rig_open_cache(b, SLABC_RECLAIM);
	actor_go(&owner);
	actor_reached(&owner);
	dead = owner.stage->client;
	word = word_of(bk, owner.stage->held[0]);
	w = atomic_read(word);
	NEED(word_owner(w) == dead, "the word does not name its holder");
	begin_spoiling(STEP_RECLAIM_READ, word, word_with(w, dead, WORD_OWNED), word_with(w, dead, WORD_SHARED));
	actor_kill(&owner);
	rig_wait_ended(1);
	end_spoiling(SERVER_TRIES, 0, "reclaiming");
	HOLDS(account_of_client(dead, &n_not_shared) == 1, "an object that the reaper gave up names the dead no more");
	HOLDS(rig.arena->named[dead], "the dead one's slot is free though a word names it");
	rig_judge("a word changed without end while its dead owner was reaped");

	rig.arena->n_named += MANY;
	rig.arena->next_client = dead;
	begin_spoiling(STEP_FORGET_READ, word, word_with(w, dead, WORD_OWNED), word_with(w, dead, WORD_SHARED));
	c = rig_open(rig.socket);
	end_spoiling(SERVER_TRIES, 0, "forgetting a name");
	HOLDS(c->me != dead, "a slot is used again though a word names its dead");
	slabc_close(c);
	rig.arena->next_client = dead;
	c = rig_open(rig.socket);
	HOLDS(c->me == dead && word_owner(atomic_read(word)) == WORD_ORPHAN, "client %u, and the word names %u: the name is not forgotten",
		c->me, word_owner(atomic_read(word)));
	rig.arena->n_named -= MANY;
	slabc_close(c);
	slabc_close(b);
	actor_free(&owner);
	rig_stop();
}

/* A client frees, adopts, shares or gives, and somebody writes the word all the while: EIO (EINVAL from slabd), and the object is where it
 * was. */
void
it_claims_give_up(void)
{
	uint32_t *word, w;
	slabc_ref ref;
	void *p, *q;
	int r;

	rig_start(1);
	b = rig_open(rig.socket);
	c = rig_open(rig.socket);
	bk = rig_open_cache(b, 0);
	ck = rig_open_cache(c, 0);
	p = rig_get(bk);
	ref = rig_share(b, p);
	q = rig_get(ck); /* so that there is a sheaf to free into */
	word = word_of(bk, rig_place(b, p));
	w = atomic_read(word);

	begin_spoiling(STEP_CLAIM_READ, word, word_with(w, NOBODY, WORD_SHARED), word_with(w, NOBODY_ELSE, WORD_SHARED));
	r = slabc_free_ref(c, ref);
	end_spoiling(CLIENT_TRIES, 0, "a free by reference");
	HOLDS(r == -EIO, "a free by reference that was given up says %s", strerror(-r));

	begin_spoiling(STEP_CLAIM_READ, word, word_with(w, NOBODY, WORD_SHARED), word_with(w, NOBODY_ELSE, WORD_SHARED));
	HOLDS(!slabc_adopt(c, ref) && errno == EIO, "an adoption that was given up says %s", strerror(errno));
	end_spoiling(CLIENT_TRIES, 0, "an adoption");

	begin_spoiling(STEP_SHARE_READ, word, word_with(w, b->me, WORD_OWNED), word_with(w + WORD_GENERATION_ONE, b->me, WORD_OWNED));
	HOLDS(!slabc_ref_of(b, p) && errno == EIO, "a sharing that was given up says %s", strerror(errno));
	end_spoiling(CLIENT_TRIES, 0, "a sharing");

	begin_spoiling(STEP_GIVE_READ, word, word_with(w, b->me, WORD_OWNED), word_with(w, b->me, WORD_SHARED));
	r = slabc_give(b, p, slabc_client_id(c));
	end_spoiling(SERVER_TRIES, 0, "a gift");
	HOLDS(r == -EINVAL, "a gift that was given up says %s", strerror(-r));

	atomic_write(word, word_with(w, b->me, WORD_SHARED));
	rig_judge_holder(bk, p, "after all that");
	slabc_free(ck, q);
	slabc_free(bk, p);
	rig_judge("after all that");
	slabc_close(b);
	slabc_close(c);
	rig_stop();
}

/* The head of a list that somebody writes all the while: who pops gets nothing, who pushes leaves the slot to be found by walking. */

static uint64_t head;
static uint32_t n_head_writes;

static void
write_head(enum step step)
{
	if (step == STEP_BARN_READ && n_head_writes < TOO_OFTEN) {
		n_head_writes++;
		atomic_add(&head, UINT64_C(1) << 32);
	}
}

void
it_lists_give_up(void)
{
	struct layout_slot slots[2] = {{0}};
	int32_t slot;

	rig_always(write_head);
	head = (uint64_t)1 << 16 | 1;
	n_head_writes = 0;
	slot = barn_pop(&head, slots, 2);
	HOLDS(slot == -1 && n_head_writes == BARN_TRIES, "slot %d was popped in %u tries", slot, n_head_writes);
	n_head_writes = 0;
	barn_push(&head, slots, 1);
	HOLDS(((uint32_t)head & 0xffff) == 1 && n_head_writes == BARN_TRIES, "a slot was pushed in %u tries", n_head_writes);
	rig_always(NULL);
	HOLDS(barn_pop(&head, slots, 2) == 0, "the list is not as it was");
}
