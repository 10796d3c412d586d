/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The record of a foreign sheaf that slabd takes by revocation (tests/model/foreign_revoked.pml): the thread, which fills the same record
 * again and again, may not do so before slabd has read it.
 *
 * The owner is `b`, who frees is a thread of `c`.
 */
#include <semaphore.h>

#include "server/recall.h"
#include "server/session.h"
#include "tests/steps_rig.h"

enum { N_FILLING = 4 };

static struct slabc *b, *c;
static struct slabc_cache *bk, *ck;
static slabc_ref fillings[2 * N_FILLING];
static sem_t next_turn, turn_over;
static pthread_t filling_thread;

static void
free_some(int from)
{
	for (int i = from; i < from + N_FILLING; i++) {
		void *p = slabc_deref(c, fillings[i]);

		NEED(p, "%s", slabc_last_error());
		errno = 0;
		slabc_free(ck, p);
		NEED(errno == 0, "%s", slabc_last_error());
	}
}

static void
let_thread_go_on(void)
{
	sem_post(&next_turn);
	sem_wait(&turn_over);
}

static void
end_turn(void)
{
	sem_post(&turn_over);
	sem_wait(&next_turn);
}

static void *
fills_twice(void *arg)
{
	free_some(0);
	end_turn();
	free_some(N_FILLING);
	end_turn();
	NEED(slabc_cache_shrink(ck) == 0, "%s", slabc_last_error());
	return arg;
}

static void *
fills_once(void *arg)
{
	free_some(0);
	end_turn();
	return arg;
}

static void
recall_all(void)
{
	pthread_rwlock_rdlock(&rig.arena->sessions_lock);
	recall_shrink(rig.arena, NULL, arena_cache(rig.arena, ck->v.cache));
	pthread_rwlock_unlock(&rig.arena->sessions_lock);
	NEED(rig_was_played(), "no sheaf was recalled");
}

/* c's thread has filled a foreign sheaf once. */
static void
begin_filling(void *(*fills)(void *arg), int n)
{
	rig_start(1);
	b = rig_open(rig.socket);
	c = rig_open(rig.socket);
	bk = rig_open_cache(b, 0);
	ck = rig_open_cache(c, 0);
	sem_init(&next_turn, 0, 0);
	sem_init(&turn_over, 0, 0);
	for (int i = 0; i < n; i++)
		fillings[i] = rig_share(b, rig_get(bk));
	NEED(pthread_create(&filling_thread, NULL, fills, NULL) == 0, "no thread");
	sem_wait(&turn_over);
}

static void
end_filling(int n, const char *story)
{
	for (int i = 0; i < n; i++)
		HOLDS(!slabc_valid(b, fillings[i]), "%s: free %d of %d is lost", story, i, n);
	HOLDS(ck->shown->n_double_frees == 0, "%s: %llu double frees are counted", story, (unsigned long long)ck->shown->n_double_frees);
	HOLDS(atomic_read(&rig.arena->sessions[c->me]->n_faults) == 0, "%s: a fault was counted", story);
	rig_judge("%s", story);
	slabc_close(b);
	slabc_close(c);
	rig_stop();
}

/* slabd has taken the sheaf, and not yet read the record: who frees on claims at once, and leaves the record as it is. */
void
it_record_is_slabds_until_it_is_read(void)
{
	begin_filling(fills_twice, 2 * N_FILLING);
	rig_at(STEP_RECALL_TAKEN, 0, let_thread_go_on);
	recall_all();
	sem_post(&next_turn);
	pthread_join(filling_thread, NULL);
	end_filling(2 * N_FILLING, "freed on while slabd was at the foreign sheaf");
}

static void
let_thread_end(void)
{
	sem_post(&next_turn);
	pthread_join(filling_thread, NULL);
}

/* The same, and the thread ends: slabd, which never comes to read it while that waits, still finds it. */
void
it_record_of_an_ended_thread_is_left_alone(void)
{
	begin_filling(fills_once, N_FILLING);
	rig_at(STEP_RECALL_TAKEN, 0, let_thread_end);
	recall_all();
	end_filling(N_FILLING, "the thread ended while slabd was at its foreign sheaf");
}
