/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Orphans and gifts at their instants (tests/model/README.md, rules 9 and 14): who takes what the dead left, and who is given something
 * while it dies.
 */
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "server/orphan.h"
#include "server/session.h"
#include "tests/steps_rig.h"

/* A reaper that is not held back begins within that. */
enum { REAPER_MS = 1500 };

static struct slabc *b, *c;
static slabc_ref the_ref;
static void *got[2];
static struct actor receiver;

static void
owner_of_one(struct stage *stage)
{
	struct slabc *s = rig_open(stage->socket);
	struct slabc_cache *k = rig_open_cache(s, stage->flags);

	stage->client = s->me;
	stage->ref = rig_share(s, rig_get(k));
	stage_reached(stage);
}

/* The dead one's object; b's handle of the cache. */
static struct slabc_cache *
leave_orphan(struct actor *a, unsigned n_loops)
{
	struct slabc_cache *k;

	actor_fork(a, owner_of_one);
	rig_start(n_loops);
	b = rig_open(rig.socket);
	k = rig_open_cache(b, 0);
	actor_go(a);
	actor_reached(a);
	the_ref = a->stage->ref;
	actor_kill(a);
	rig_wait_ended(1);
	rig_wait_connections(1);
	NEED(slabc_next_orphan(k, 0) == the_ref, "the orphan is not shown");
	got[0] = got[1] = NULL;
	return k;
}

static void
c_adopts(void)
{
	got[1] = slabc_adopt_orphan(c, the_ref);
}

static void
c_adopts_elsewhere(void)
{
	rig_elsewhere(c_adopts);
}

/* Two were shown the same orphan, and slabd's loops take their requests at the same instant. */
void
it_one_heir_gets_the_orphan(void)
{
	struct slabc_cache *k, *ck;
	struct actor a;

	k = leave_orphan(&a, 2);
	c = rig_open(rig.socket);
	ck = rig_open_cache(c, 0);
	rig_at(STEP_ORPHAN_READ, 0, c_adopts_elsewhere);
	got[0] = slabc_adopt_orphan(b, the_ref);
	NEED(rig_was_played(), "nobody adopted");
	HOLDS((got[0] != NULL) + (got[1] != NULL) == 1, "an orphan was adopted by %d heirs", (got[0] != NULL) + (got[1] != NULL));
	rig_judge_holder(got[0] ? k : ck, got[0] ? got[0] : got[1], "adopted by one of two heirs");
	rig_judge("two heirs at once");
	slabc_close(b);
	slabc_close(c);
	actor_free(&a);
	rig_stop();
}

/* An administrator frees orphans at the instant at which an heir takes one. */
void
it_heir_wins_over_freeing_orphans(void)
{
	const struct orphan_filter all = {0};
	struct slabc_cache *ck;
	uint64_t n, bytes;
	struct actor a;

	leave_orphan(&a, 1);
	c = rig_open(rig.socket);
	ck = rig_open_cache(c, 0);
	rig_at(STEP_ORPHAN_READ, 0, c_adopts_elsewhere);
	orphan_reclaim(rig.arena, &all, 0, &n, &bytes);
	NEED(rig_was_played(), "no orphan was met");
	HOLDS(n + (got[1] != NULL) == 1, "an orphan was freed %llu times and adopted %d times", (unsigned long long)n, got[1] != NULL);
	if (got[1])
		rig_judge_holder(ck, got[1], "adopted while orphans were freed");
	rig_judge("orphans freed while one was adopted");
	slabc_close(b);
	slabc_close(c);
	actor_free(&a);
	rig_stop();
}

/* A child of its own keeps the socket open, so that slabd learns of its death from the pidfd, and at once. */
static void
receives(struct stage *stage)
{
	struct slabc *s = rig_open(stage->socket);

	rig_open_cache(s, stage->flags);
	stage->client = s->me;
	stage->n_held = s->id;
	if (fork() == 0) {
		stage_wait_more(stage);
		_exit(0);
	}
	stage_reached(stage);
	pause();
}

static uint32_t is_walked;

static void
note_walked(enum step step)
{
	if (step == STEP_REAP_WALKED)
		atomic_write(&is_walked, 1);
}

static void
receiver_dies(void)
{
	static const struct timespec pause = {.tv_nsec = 1000000};
	/* It stays in the arena until the gift, which holds sessions_lock, is made. */
	struct session *session = rig.arena->sessions[receiver.stage->client];

	actor_kill(&receiver);
	for (int i = 0; i < REAPER_MS && atomic_read(&session->state) != SESSION_DYING; i++)
		nanosleep(&pause, NULL);
	if (atomic_read(&session->state) != SESSION_DYING)
		return; /* it waits for the gift, as it should */
	for (int i = 0; !atomic_read(&is_walked); i++) {
		NEED(i < RIG_WAIT_S * 1000, "the words are not walked");
		nanosleep(&pause, NULL);
	}
}

/* The receiver was alive when slabd looked, and dies before its name is written: its reaper must come after. */
void
it_gift_meets_the_reaper(void)
{
	uint32_t n_not_shared;
	struct slabc_cache *k;
	void *p;
	int r;

	actor_fork(&receiver, receives);
	receiver.stage->flags = SLABC_RECLAIM;
	rig_start(2);
	b = rig_open(rig.socket);
	k = rig_open_cache(b, SLABC_RECLAIM);
	p = rig_get(k);
	actor_go(&receiver);
	actor_reached(&receiver);
	is_walked = 0;
	rig_always(note_walked);
	rig_at(STEP_GIVE_CHECKED, 0, receiver_dies);
	r = slabc_give(b, p, receiver.stage->n_held);
	NEED(rig_was_played() && r == 0, "nothing was given: %s", slabc_last_error());
	rig_wait_ended(1);
	actor_more(&receiver);
	HOLDS(account_of_client(receiver.stage->client, &n_not_shared) == 0, "an object names a client that died before it was given it");
	rig_judge("given to one who died");
	slabc_close(b);
	actor_free(&receiver);
	rig_stop();
}
