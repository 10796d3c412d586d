/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recall (server/recall.h): slabd takes the sheaves of a thread that is in the midst of something, hands them on meanwhile, sleeps, or
 * runs.
 *
 * The owner is a thread of client b, the other client is c.  slabd's part runs in the thread that calls recall(), as it would in one of its
 * loops.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "server/cache.h"
#include "server/recall.h"
#include "server/session.h"
#include "tests/steps_rig.h"

enum { HALF = RIG_CAPACITY / 2, N_OTHERS = 2 * RIG_SLAB_OBJECTS, SHORT_MS = 500 };

static struct slabc *b, *c;
static struct slabc_cache *bk, *ck;
static void *others[N_OTHERS];

static void
recall_of(const struct slabc_cache *k)
{
	pthread_rwlock_rdlock(&rig.arena->sessions_lock);
	recall_shrink(rig.arena, NULL, arena_cache(rig.arena, k->v.cache));
	pthread_rwlock_unlock(&rig.arena->sessions_lock);
}

static void
recall_once(void)
{
	recall_of(bk);
}

static void
begin(uint32_t flags)
{
	rig_start(1);
	NEED(rig.arena->recall_error == 0, "no membarrier here: %s", strerror(rig.arena->recall_error));
	b = rig_open(rig.socket);
	c = rig_open(rig.socket);
	NEED(b->is_recallable, "not registered for membarrier");
	b->timeout_ms = SHORT_MS;
	bk = rig_open_cache(b, flags);
	ck = rig_open_cache(c, flags);
}

static void
end(void)
{
	slabc_close(b);
	slabc_close(c);
	rig_stop();
}

static struct session *
session_of(const struct slabc *s)
{
	return rig.arena->sessions[s->me];
}

/* slabd looks, and the other client takes all that it finds. */
static void
recall_for_others(void)
{
	recall_of(bk);
	rig_get_some(ck, N_OTHERS, others);
}

static void
recall_for_others_elsewhere(void)
{
	rig_elsewhere(recall_for_others);
}

/* Amid an operation */

static void *held[RIG_CAPACITY];

static void
op_alloc(void)
{
	held[0] = slabc_alloc(bk);
	HOLDS(held[0], "an allocation fails: %s", slabc_last_error());
}

static void
op_free(void)
{
	slabc_free(bk, held[0]);
	held[0] = NULL;
}

static void
op_alloc_bulk(void)
{
	HOLDS(slabc_alloc_bulk(bk, HALF, held) == 0, "a bulk allocation fails: %s", slabc_last_error());
}

static void
op_free_bulk(void)
{
	slabc_free_bulk(bk, HALF, held);
	memset(held, 0, sizeof(held));
}

static const struct amid {
	const char *name;
	void (*before)(void);
	void (*op)(void);
	uint32_t flags;
	enum step step;
} amids[] = {
	{"an allocation, entered", NULL, op_alloc, 0, STEP_ALLOC_ENTERED},
	{"an allocation, named", NULL, op_alloc, 0, STEP_ALLOC_NAMED},
	{"an allocation, shrunk", NULL, op_alloc, 0, STEP_ALLOC_SHRUNK},
	{"a free, entered", op_alloc, op_free, 0, STEP_FREE_ENTERED},
	{"a free, grown", op_alloc, op_free, 0, STEP_FREE_GROWN},
	{"a free, cleared", op_alloc, op_free, 0, STEP_FREE_CLEARED},
	{"a shared free, closed", op_alloc, op_free, SLABC_SHARED, STEP_FREE_CLOSED},
	{"a shared free, grown", op_alloc, op_free, SLABC_SHARED, STEP_FREE_GROWN},
	{"a bulk allocation", NULL, op_alloc_bulk, 0, STEP_BULK_ALLOC_NAMED},
	{"a bulk free, grown", op_alloc_bulk, op_free_bulk, 0, STEP_BULK_FREE_GROWN},
	{"a bulk free, clearing", op_alloc_bulk, op_free_bulk, 0, STEP_BULK_FREE_CLEARING},
};
enum { N_AMIDS = sizeof(amids) / sizeof(amids[0]) };

static void
judge_amid(const struct amid *amid)
{
	struct session *session = session_of(b);

	rig_judge("recalled amid %s", amid->name);
	HOLDS(session->n_faults == 0, "recalled amid %s: slabd finds fault", amid->name);
	for (int i = 0; i < RIG_CAPACITY; i++)
		if (held[i])
			rig_judge_holder(bk, held[i], amid->name);
	for (int i = 0; i < N_OTHERS; i++)
		rig_judge_holder(ck, others[i], amid->name);
	HOLDS(rig.arena->n_recall_busy == 1 && session->n_recalled == 0, "recalled amid %s: %llu busy, %llu taken", amid->name,
		(unsigned long long)rig.arena->n_recall_busy, (unsigned long long)session->n_recalled);
}

static void
play_amid(const struct amid *amid)
{
	void *p;

	memset(held, 0, sizeof(held));
	begin(amid->flags);
	/* The first use, with a refill, is over. */
	slabc_free(bk, rig_get(bk));
	if (amid->before)
		amid->before();
	rig_at(amid->step, 0, recall_for_others_elsewhere);
	amid->op();
	NEED(rig_was_played(), "%s never came to %s", amid->name, step_names[amid->step]);
	/* And it goes on as if nothing had been. */
	p = slabc_alloc(bk);
	HOLDS(p, "after a recall amid %s: %s", amid->name, slabc_last_error());
	slabc_free(bk, p);
	judge_amid(amid);
	end();
}

/* A sheaf on which its thread is at work stays with it, whatever instant it is, and is usable afterwards. */
void
it_recall_lets_be_what_is_in_use(void)
{
	for (int i = 0; i < N_AMIDS; i++)
		play_amid(&amids[i]);
}

/* More sheaves come and go than a rack has room for. */
enum { N_RACKED = 30 * RIG_CAPACITY };
static void *racked[N_RACKED];

static void
use_racks(void)
{
	rig_get_some(bk, N_RACKED, racked);
	for (int i = 0; i < N_RACKED; i++)
		slabc_free(bk, racked[i]);
}

/* Slabd takes what lies in a thread's rack while the thread moves a sheaf: whichever of the two comes first, each object has one holder. */
void
it_recall_meets_a_moving_rack(void)
{
	static const enum step steps[] = {STEP_SWAP, STEP_RACK_TAKEN, STEP_RACK_PUT, STEP_RACK_FILLED, STEP_RACK_GIVEN};

	for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		struct session *session;

		begin(0);
		session = session_of(b);
		use_racks();
		rig_at(steps[i], 0, recall_for_others_elsewhere);
		use_racks();
		NEED(rig_was_played(), "nothing came to %s", step_names[steps[i]]);
		NEED(session->n_recalled > 0, "nothing was recalled at %s", step_names[steps[i]]);
		rig_judge("recalled at %s", step_names[steps[i]]);
		rig_get_some(bk, N_RACKED, racked);
		for (int j = 0; j < N_RACKED; j++)
			rig_judge_holder(bk, racked[j], step_names[steps[i]]);
		for (int j = 0; j < N_OTHERS; j++)
			rig_judge_holder(ck, others[j], step_names[steps[i]]);
		HOLDS(session->n_faults == 0 && bk->shown->n_dropped == 0, "recalled at %s: slabd finds %llu faults, the thread %llu entries that are another's",
			step_names[steps[i]], (unsigned long long)session->n_faults, (unsigned long long)bk->shown->n_dropped);
		rig_judge("recalled at %s, and the thread has gone on", step_names[steps[i]]);
		end();
	}
}

/* An owner in a thread of its own, which goes on when it is told to */

static struct {
	pthread_t thread;
	sem_t ready, go;
	void (*act)(void);
	void *pv[2 * RIG_CAPACITY];
} owner;

/* Has main, spare and one more in its rack, all with objects. */
static void *
owner_thread(void *arg)
{
	rig_get_some(bk, RIG_CAPACITY + HALF, owner.pv);
	slabc_free_bulk(bk, RIG_CAPACITY + HALF - 1, owner.pv);
	sem_post(&owner.ready);
	sem_wait(&owner.go);
	owner.act();
	sem_post(&owner.ready);
	return arg;
}

static void
owner_begin(void (*act)(void))
{
	sem_init(&owner.ready, 0, 0);
	sem_init(&owner.go, 0, 0);
	owner.act = act;
	NEED(pthread_create(&owner.thread, NULL, owner_thread, NULL) == 0, "no thread");
	sem_wait(&owner.ready);
}

static void
owner_goes_on(void)
{
	sem_post(&owner.go);
	sem_wait(&owner.ready);
}

static void
owner_end(void)
{
	NEED(pthread_join(owner.thread, NULL) == 0, "no owner");
}

static void
owner_allocates(void)
{
	for (int i = 0; i < RIG_CAPACITY + HALF - 1; i++) {
		owner.pv[i] = slabc_alloc(bk);
		HOLDS(owner.pv[i], "an owner whose sheaves were taken: %s", slabc_last_error());
	}
}

/* What a thread keeps idle is another client's a moment later, and the thread goes on with other sheaves. */
void
it_recall_takes_from_a_sleeping_thread(void)
{
	begin(0);
	owner_begin(owner_allocates);
	recall_for_others();
	/* And that in its rack. */
	HOLDS(rig.arena->n_recalled_sheaves == 3 && rig.arena->n_recall_busy == 0, "%llu sheaves were taken, not main, spare and rack",
		(unsigned long long)rig.arena->n_recalled_sheaves);
	rig_judge("taken from a sleeping thread");
	owner_goes_on();
	owner_end();
	for (int i = 0; i < RIG_CAPACITY + HALF; i++)
		rig_judge_holder(bk, owner.pv[i], "allocated after a recall");
	HOLDS(session_of(b)->n_faults == 0, "slabd finds fault with a correct owner");
	rig_judge("its thread has gone on");
	end();
}

/* What the owner still points to is nobody else's: of what is popped through the pointer nobody would know. */
void
it_recalled_slot_waits_for_its_thread(void)
{
	struct slabc_cache_options o = rig_cache_options(0);
	struct slabc_cache *mine;
	uint32_t page;
	void *p;

	begin(0);
	mine = rig_cache(b, "another", RIG_OBJECT_BYTES, &o);
	owner_begin(owner_allocates);
	recall_of(bk);
	/* This thread of the same process gets sheaves of the same size. */
	for (int i = 0; i < 4 * RIG_CAPACITY; i++) {
		p = rig_get(mine);
		NEED(p, "no object");
	}
	owner_goes_on();
	owner_end();
	for (int i = 0; i < RIG_CAPACITY + HALF - 1; i++) {
		page = rig_place(b, owner.pv[i]) >> LAYOUT_PLACE_PAGE_SHIFT;
		HOLDS(b->pages[page].cache == bk->v.cache, "a thread popped another thread's object, of another cache");
	}
	rig_judge("a slot was lent again");
	end();
}

/* Sheaves that change hands between slabd's choice and its revocation */

static void
owner_leaves(void)
{
	/* By ending: its sheaves go to the barn. */
}

static struct slabc_sheaf *prefilled;

static void
owner_prefills(void)
{
	prefilled = slabc_prefill(bk, RIG_CAPACITY);
	NEED(prefilled, "%s", slabc_last_error());
}

static void
owner_goes_on_and_ends(void)
{
	owner_goes_on();
	owner_end();
}

void
it_recall_meets_a_leaving_thread(void)
{
	for (uint32_t i = 0; i < 2; i++) {
		begin(0);
		owner_begin(owner_leaves);
		rig_at(STEP_RECALL_CHOSEN, i, owner_goes_on_and_ends);
		recall_of(bk);
		NEED(rig_was_played(), "slabd did not choose");
		for (int j = 0; j < 4 * RIG_CAPACITY; j++)
			HOLDS(slabc_alloc(bk), "sheaves of a thread that left: %s", slabc_last_error());
		rig_judge("the thread left as slabd chose");
		end();
	}
}

static struct {
	pthread_t thread;
	uint32_t skip;
	bool was_chosen, has_user;
	uint32_t n_got;
	char error[RIG_SENTENCE_BYTES];
} prefill;

static void *
use_prefilled(void *arg)
{
	while (prefill.n_got < RIG_CAPACITY && slabc_alloc_from(bk, prefilled))
		prefill.n_got++;
	snprintf(prefill.error, sizeof(prefill.error), "%s", slabc_last_error());
	return arg;
}

/* Chosen as the thread's spare, then prefilled, then revoked; and used from that moment on. */
static void
steps_prefill(enum step step)
{
	if (step == STEP_RECALL_CHOSEN && !prefill.was_chosen && prefill.skip-- == 0) {
		prefill.was_chosen = true;
		owner_goes_on_and_ends();
	} else if (step == STEP_RECALL_REVOKED && prefill.was_chosen && !prefill.has_user) {
		prefill.has_user = true;
		NEED(pthread_create(&prefill.thread, NULL, use_prefilled, NULL) == 0, "no thread");
		usleep(2000); /* enough for it to meet the revocation; if it comes later the story is another, and holds too */
	}
}

/* A prefilled sheaf keeps what it was asked for. */
void
it_recall_meets_a_prefill(void)
{
	for (uint32_t i = 0; i < 2; i++) {
		begin(0);
		owner_begin(owner_prefills);
		memset(&prefill, 0, sizeof(prefill));
		prefill.skip = i;
		rig_always(steps_prefill);
		recall_of(bk);
		NEED(prefill.has_user, "slabd did not choose");
		NEED(pthread_join(prefill.thread, NULL) == 0, "no user");
		rig_always(NULL);
		HOLDS(prefill.n_got == RIG_CAPACITY, "a prefilled sheaf, after %u objects: %s", prefill.n_got, prefill.error);
		slabc_return(bk, prefilled);
		rig_judge("the sheaf was prefilled as slabd chose");
		end();
	}
}

static void
recall_elsewhere(void)
{
	rig_elsewhere(recall_once);
}

/* Nor is a sheaf prefilled that was recalled before it became the application's. */
void
it_recall_comes_before_a_prefill(void)
{
	begin(0);
	rig_get_some(bk, RIG_CAPACITY + HALF, owner.pv);
	slabc_free_bulk(bk, RIG_CAPACITY + HALF, owner.pv);
	rig_at(STEP_PREFILL_LOOKED, 0, recall_elsewhere);
	owner_prefills();
	NEED(rig_was_played(), "the spare was not looked at");
	for (int j = 0; j < RIG_CAPACITY; j++)
		HOLDS(slabc_alloc_from(bk, prefilled), "a prefilled sheaf, after %d objects: %s", j, slabc_last_error());
	slabc_return(bk, prefilled);
	rig_judge("recalled before the prefill");
	end();
}

/* A sheaf is revoked while a thread takes it from the barn: slabd's part runs beside, up to where it would take objects out. */

static struct {
	pthread_t thread;
	bool has_begun, is_overwritten;
	sem_t revoked, look, reached, finish;
} beside;

static __thread bool is_beside;

static void *
recall_beside(void *arg)
{
	is_beside = true;
	recall_of(bk);
	sem_post(&beside.revoked);
	sem_post(&beside.reached);
	return arg;
}

static void
steps_beside(enum step step)
{
	if (is_beside && step == STEP_RECALL_REVOKED && beside.is_overwritten) {
		sem_post(&beside.revoked);
		sem_wait(&beside.look);
	} else if (is_beside && step == STEP_TAKE_SIZED) {
		sem_post(&beside.reached);
		sem_wait(&beside.finish);
	} else if (step == STEP_BARN_OPENING && !beside.has_begun) {
		beside.has_begun = true;
		NEED(pthread_create(&beside.thread, NULL, recall_beside, NULL) == 0, "no thread");
		sem_wait(beside.is_overwritten ? &beside.revoked : &beside.reached);
	} else if (step == STEP_BARN_OPENED && beside.is_overwritten) {
		sem_post(&beside.look);
		sem_wait(&beside.reached);
		beside.is_overwritten = false;
	}
}

static void
play_opening(bool is_overwritten)
{
	void *p;

	begin(0);
	/* It lies in the barn as slabd lent it. */
	NEED(cache_refill(bk, CLIENT_FOR_EVER) == 0, "%s", slabc_last_error());
	beside.has_begun = false;
	beside.is_overwritten = is_overwritten;
	sem_init(&beside.revoked, 0, 0);
	sem_init(&beside.look, 0, 0);
	sem_init(&beside.reached, 0, 0);
	sem_init(&beside.finish, 0, 0);
	rig_always(steps_beside);
	p = slabc_alloc(bk);
	NEED(beside.has_begun, "no sheaf was opened");
	sem_post(&beside.finish);
	NEED(pthread_join(beside.thread, NULL) == 0, "no thread");
	rig_always(NULL);
	HOLDS(p, "a sheaf that was revoked when it was opened: %s", slabc_last_error());
	rig_judge_holder(bk, p, "popped from a sheaf that was revoked when it was opened");
	rig_judge("revoked while it was opened");
	end();
}

void
it_recall_meets_an_opening(void)
{
	play_opening(false);
}

void
it_recall_overwritten_by_an_opening(void)
{
	play_opening(true);
}

/* A running owner */

/* So many sheaves are enough if the rule is kept; if it is broken a fault is seldom more than a second away. */
enum { COLD_BYTES = 64 << 20, COLD_STORES = 40, MIN_TAKEN = 200, RUN_MS = 30000 };

static uint32_t is_over, n_pairs;

/* Stores to cold lines just before fill the store buffer, behind which busy = 1 then waits: without a barrier slabd does not see it. */
static void *
run_pairs(void *arg)
{
	char *cold = malloc(COLD_BYTES);
	uint64_t x = 88172645463325252u;

	NEED(cold, "no memory");
	memset(cold, 1, COLD_BYTES);
	while (!atomic_read(&is_over)) {
		void *p;

		for (int i = 0; i < COLD_STORES; i++) {
			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
			*(volatile char *)&cold[x % COLD_BYTES] = (char)x;
		}
		p = slabc_alloc(bk);
		if (p)
			slabc_free(bk, p);
		atomic_write(&n_pairs, atomic_read(&n_pairs) + 1);
	}
	free(cold);
	return arg;
}

static int64_t
milliseconds(const struct timespec *from, const struct timespec *to)
{
	return (to->tv_sec - from->tv_sec) * 1000 + (to->tv_nsec - from->tv_nsec) / 1000000;
}

void
it_recall_from_a_running_thread(void)
{
	struct timespec start, now;
	uint64_t n_taken;
	pthread_t thread;
	bool is_enough;

	begin(0);
	is_over = 0;
	NEED(pthread_create(&thread, NULL, run_pairs, NULL) == 0, "no thread");
	clock_gettime(CLOCK_MONOTONIC, &start);
	do {
		uint32_t n = atomic_read(&n_pairs);

		recall_of(bk);
		/* Who looks all the time keeps the refills out. */
		do
			clock_gettime(CLOCK_MONOTONIC, &now);
		while (atomic_read(&n_pairs) - n < 2 && milliseconds(&start, &now) < RUN_MS);
		n_taken = session_of(b)->n_recalled;
		is_enough = session_of(b)->n_faults > 0 || (step_mutant == MUTANT_NONE && n_taken >= MIN_TAKEN);
	} while (!is_enough && milliseconds(&start, &now) < RUN_MS);
	atomic_write(&is_over, 1);
	NEED(pthread_join(thread, NULL) == 0, "no owner");
	HOLDS(session_of(b)->n_faults == 0, "after %llu recalls from a running thread slabd finds %llu faults", (unsigned long long)n_taken,
		(unsigned long long)session_of(b)->n_faults);
	HOLDS(bk->shown->n_dropped == 0 && bk->shown->n_double_frees == 0,
		"after %llu recalls the running thread met objects that were not its own", (unsigned long long)n_taken);
	rig_judge("after %llu recalls from a running thread", (unsigned long long)n_taken);
	NEED(is_enough || step_mutant != MUTANT_NONE, "only %llu sheaves were taken", (unsigned long long)n_taken);
	end();
}
