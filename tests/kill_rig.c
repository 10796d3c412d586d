/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kill_rig.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "shm/atomic.h"
#include "shm/word.h"

enum { LANE_SLOTS = 60, LANE_BULK = 24, AUDIT_TRIES = 20, RECOUNT_TRIES = 50, N_ORPHANS = 2 };

/* What a worker holds: written before a free begins, and after an allocation has returned. */
struct kill_lane {
	uint32_t client;
	uint32_t n_turns;
	uint32_t kind;              /* that it works with */
	uint32_t place[LANE_SLOTS]; /* + 1; 0: none */
};

/* Workers */

static uint32_t
draw(uint32_t *x)
{
	*x ^= *x << 13;
	*x ^= *x >> 17;
	return *x ^= *x << 5;
}

struct work {
	struct slabc *c;
	struct slabc_cache *k;
	char *base;
	struct kill_lane *lane;
};

static uint64_t *
object_at(const struct work *w, uint32_t place)
{
	return (uint64_t *)(void *)(w->base + ((uint64_t)place << LAYOUT_PLACE_SHIFT));
}

static void
take_one(struct work *w, uint32_t slot)
{
	uint64_t *p = slabc_alloc(w->k);
	uint32_t place;

	CHECK(p != NULL);
	place = (uint32_t)((uint64_t)((char *)p - w->base) >> LAYOUT_PLACE_SHIFT);
	p[0] = p[KILL_OBJECT_BYTES / 8 - 1] = (uint64_t)w->lane->client << 32 | place;
	atomic_write_release(&w->lane->place[slot], place + 1);
}

/* Nobody else has written to it. */
static void
free_one(struct work *w, uint32_t slot)
{
	uint32_t place = w->lane->place[slot] - 1;
	uint64_t *p = object_at(w, place), mine = (uint64_t)w->lane->client << 32 | place;

	CHECK(p[0] == mine && p[KILL_OBJECT_BYTES / 8 - 1] == mine);
	atomic_write_release(&w->lane->place[slot], 0);
	errno = 0;
	slabc_free(w->k, p);
	CHECK(errno == 0);
}

static void
do_bulk(struct work *w)
{
	void *pv[LANE_BULK];

	CHECK(slabc_alloc_bulk(w->k, LANE_BULK, pv) == 0);
	for (int i = 0; i < LANE_BULK; i++)
		memset(pv[i], i, KILL_OBJECT_BYTES);
	for (int i = 0; i < LANE_BULK; i++)
		CHECK(*(unsigned char *)pv[i] == i);
	slabc_free_bulk(w->k, LANE_BULK, pv);
}

struct work_task {
	struct kill_stand *s;
	uint32_t number;
};

static void
start_work(struct work *w, const struct kill_stand *s, uint32_t kind)
{
	void *p;

	w->c = harness_open(s->h, "worker");
	w->k = kill_open_cache(w->c, kind);
	w->lane->kind = kind;
	p = slabc_alloc(w->k);
	CHECK(p != NULL);
	w->base = (char *)p - ((uint64_t)(uint32_t)slabc_ref_of(w->c, p) << LAYOUT_PLACE_SHIFT);
	slabc_free(w->k, p);
	atomic_write_release(&w->lane->client, slabc_client_id(w->c));
}

/* One cache after the other: what victims die in is worked at all the while. */
static void
work(struct peer *me, void *arg)
{
	const struct work_task *task = arg;
	struct work w = {.lane = &task->s->lanes[task->number]};
	uint32_t x = 4711 + 7 * task->number, kind = task->number;

	alarm(0);
	start_work(&w, task->s, kind);
	peer_tell(me, 'r');
	for (;;) {
		uint32_t slot = draw(&x) % LANE_SLOTS, what = draw(&x) % 4096;

		if (w.lane->place[slot])
			free_one(&w, slot);
		else
			take_one(&w, slot);
		if (what < 128)
			do_bulk(&w);
		w.lane->n_turns++;
		/* The end of a session is a reason to reap, which slabd is to die in later. */
		if (what > 0 || task->s->h->is_kept)
			continue;
		for (slot = 0; slot < LANE_SLOTS; slot++)
			if (w.lane->place[slot])
				free_one(&w, slot);
		slabc_close(w.c);
		kind = (kind + 1) % KILL_KINDS;
		start_work(&w, task->s, kind);
	}
}

/* The stand */

static uint64_t
count_all(struct kill_stand *s)
{
	struct slabc *c = harness_open(s->h, "all");
	struct slabc_cache *k = kill_open_cache(c, 0);
	uint64_t n = 0;

	while (slabc_alloc(k))
		n++;
	CHECK(errno == ENOMEM);
	slabc_close(c);
	CHECK(EVENTUALLY(harness_audit_cache(s->h, "kill0").n_out == 0));
	return n;
}

static void
open_owner(struct kill_stand *s)
{
	void *p;

	s->c = harness_open(s->h, "owner");
	for (uint32_t i = 0; i < KILL_KINDS; i++)
		s->k[i] = kill_open_cache(s->c, i);
	p = slabc_alloc(s->k[0]);
	s->base = (char *)p - ((uint64_t)(uint32_t)slabc_ref_of(s->c, p) << LAYOUT_PLACE_SHIFT);
	slabc_free(s->k[0], p);
}

void
kill_stand_up(struct kill_stand *s, const char *program, const char *arguments)
{
	struct work_task task = {.s = s};

	*s = (struct kill_stand){0};
	s->h = program ? harness_keeper(program, arguments) : harness_slabd("%s", arguments);
	s->recount = recount_open((pid_t)harness_status(s->h).pid);
	s->lanes = mmap(NULL, KILL_WORKERS * sizeof *s->lanes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	s->stages = mmap(NULL, KILL_VICTIMS * sizeof *s->stages, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	REQUIRE(s->recount && s->lanes != MAP_FAILED && s->stages != MAP_FAILED);
	/* One that is to die would do so here already. */
	if (!program)
		s->n_all = count_all(s);
	for (task.number = 0; task.number < KILL_WORKERS; task.number++) {
		s->workers[task.number] = harness_spawn(s->h, work, &task);
		peer_await(harness_peer(s->h, s->workers[task.number]), 'r');
	}
	open_owner(s);
}

static void
free_orphans(struct kill_stand *s)
{
	union proto_request request = {0};
	union proto_reply reply = {0};

	do {
		CHECK(harness_ask(s->h, PROTO_OP_RECLAIM, &request, &reply) == PROTO_STATUS_OK);
		request.reclaim.from = reply.reclaim.next;
	} while (reply.reclaim.next);
}

void
kill_stand_down(struct kill_stand *s)
{
	struct recount_sums sums;

	for (uint32_t i = 0; i < KILL_WORKERS; i++) {
		CHECK(EVENTUALLY(atomic_read(&s->lanes[i].n_turns) > 0));
		harness_kill(s->h, s->workers[i], SIGKILL);
		harness_wait_reaped(s->h, s->workers[i]);
	}
	slabc_close(s->c);
	CHECK(EVENTUALLY(harness_status(s->h).n_sessions == 0));
	free_orphans(s);
	CHECK(EVENTUALLY(harness_audit(s->h).n_out == 0));
	/* At rest the two count the same objects. */
	recount_at(s->recount, (pid_t)harness_status(s->h).pid);
	recount_take(s->recount, &sums);
	CHECK(sums.n_objects == harness_audit(s->h).n_objects && sums.n_out == 0 && sums.n_in_sheaves == 0 && sums.first[0] == '\0');
	if (s->n_all)
		CHECK(count_all(s) == s->n_all);
	printf(" %llu kills, %llu recounts, %llu of them again ", (unsigned long long)s->n_kills, (unsigned long long)s->n_recounts,
		(unsigned long long)s->n_again);
	recount_close(s->recount);
	munmap(s->lanes, KILL_WORKERS * sizeof *s->lanes);
	munmap(s->stages, KILL_VICTIMS * sizeof *s->stages);
	harness_free(s->h);
}

/* Victims */

static pid_t
fork_victim(struct kill_stand *s)
{
	pid_t pid;

	fflush(NULL);
	pid = fork();
	REQUIRE(pid >= 0);
	if (pid == 0) {
		signal(SIGALRM, SIG_DFL);
		alarm(HARNESS_TIMEOUT_S / 2);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(s->h->monitor);
		slabc_close(s->c);
	}
	return pid;
}

/* Somebody makes them, and dies. */
static void
leave_orphans(struct kill_stand *s, struct kill_stage *stage)
{
	pid_t pid = fork_victim(s);
	int status;

	if (pid == 0) {
		struct slabc *c = harness_open(s->h, "ancestor");
		struct slabc_cache *k = kill_open_cache(c, stage->kind);

		for (uint32_t i = 0; i < N_ORPHANS; i++)
			stage->refs[i] = slabc_ref_of(c, slabc_alloc(k));
		raise(SIGKILL);
	}
	REQUIRE(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
	harness_wait_reaped(s->h, pid);
}

void
kill_prepare(struct kill_stand *s, uint32_t i, uint32_t act, uint32_t kind)
{
	struct kill_stage *stage = &s->stages[i];

	if (kill_acts[act].has_orphans && kill_kinds[kind].flags & SLABC_RECLAIM)
		kind = 1;
	memset(stage, 0, offsetof(struct kill_stage, trace));
	stage->act = act;
	stage->kind = kind;
	stage->owner = slabc_client_id(s->c);
	strcpy(stage->socket, s->h->socket);
	stage->n_refs = kill_acts[act].n_refs;
	if (kill_acts[act].has_orphans)
		leave_orphans(s, stage);
	for (uint32_t j = 0; j < stage->n_refs && !kill_acts[act].has_orphans; j++) {
		void *p = slabc_alloc(s->k[kind]);

		REQUIRE(p != NULL);
		stage->refs[j] = slabc_ref_of(s->c, p);
	}
}

pid_t
kill_start(struct kill_stand *s, uint32_t i, void (*begin)(void), void (*end)(void))
{
	pid_t pid = fork_victim(s);

	if (pid == 0)
		kill_play(&s->stages[i], begin, end);
	return pid;
}

void
kill_serve(struct kill_stand *s, uint32_t i)
{
	if (!atomic_read_acquire(&s->stages[i].wants_recall) || s->stages[i].is_recalled)
		return;
	CHECK(harness_ask(s->h, PROTO_OP_SHRINK, &(union proto_request){0}, &(union proto_reply){0}) == PROTO_STATUS_OK);
	atomic_write_release(&s->stages[i].is_recalled, 1);
}

/* Judging */

/* All threads of the process, which is another's child, have stopped. */
static bool
has_stopped(pid_t pid)
{
	char path[320], text[512];
	bool is_stopped = true;
	struct dirent *e;
	DIR *dir;

	snprintf(path, sizeof path, "/proc/%d/task", pid);
	dir = opendir(path);
	while (dir && is_stopped && (e = readdir(dir))) {
		const char *state;
		FILE *file;

		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "/proc/%d/task/%s/stat", pid, e->d_name);
		file = fopen(path, "re");
		state = file && fgets(text, sizeof text, file) ? strrchr(text, ')') : NULL;
		is_stopped = !state || state[2] == 'T';
		if (file)
			fclose(file);
	}
	if (dir)
		closedir(dir);
	return is_stopped;
}

/* SIGSTOP, and that it holds; or SIGCONT. */
static void
signal_all(struct kill_stand *s, int sig)
{
	int status;

	if (sig == SIGSTOP)
		s->slabd = (pid_t)harness_status(s->h).pid;
	for (uint32_t i = 0; i < KILL_WORKERS; i++)
		kill(s->workers[i], sig);
	kill(s->slabd, sig);
	if (sig != SIGSTOP)
		return;
	for (uint32_t i = 0; i < KILL_WORKERS; i++)
		REQUIRE(waitpid(s->workers[i], &status, WUNTRACED) == s->workers[i] && WIFSTOPPED(status));
	if (s->h->is_kept)
		REQUIRE(EVENTUALLY(has_stopped(s->slabd)));
	else
		REQUIRE(waitpid(s->slabd, &status, WUNTRACED) == s->slabd && WIFSTOPPED(status));
}

/* Does that client hold the object, by the ledger and its word? */
static bool
is_held(const struct kill_stand *s, uint32_t place, uint32_t client)
{
	enum slab_state state;
	uint32_t w;

	return recount_find(s->recount, place, &state, &w) && state == SLAB_OUT && word_owner(w) == (client & WORD_OWNER_MASK);
}

/* Everything that a worker says it holds, and little else, is named its own. */
static void
judge_lane(const struct kill_stand *s, const struct kill_lane *lane, char *first, size_t size)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < LANE_SLOTS; i++) {
		n += lane->place[i] != 0;
		if (lane->place[i] && !is_held(s, lane->place[i] - 1, lane->client) && !first[0])
			snprintf(first, size, "place %#x, which worker %u holds, is not its own", lane->place[i] - 1, lane->client);
	}
	if (recount_named(s->recount, lane->client) > n + LANE_BULK && !first[0])
		snprintf(first, size, "%u words name worker %u, which holds %u objects", recount_named(s->recount, lane->client),
			lane->client, n);
}

/* Is that object of the owner's still its own? */
static bool
is_owners(const struct kill_stand *s, const struct kill_stage *stage, slabc_ref ref)
{
	enum slab_state state;
	uint32_t w;

	return is_held(s, (uint32_t)ref, stage->owner) && recount_find(s->recount, (uint32_t)ref, &state, &w) &&
	       word_generation(w) == (ref >> 32 & 0xffff);
}

static void
judge_victim(const struct kill_stand *s, const struct kill_stage *stage, char *first, size_t size)
{
	bool is_kept = !(kill_kinds[stage->kind].flags & SLABC_RECLAIM) && strcmp(kill_acts[stage->act].name, "sized") != 0;

	for (uint32_t i = 0; is_kept && i < stage->n_held; i++)
		if (!is_held(s, stage->held[i], stage->client) && !first[0])
			snprintf(first, size, "place %#x, which the dead client %u held, is no orphan of its", stage->held[i],
				stage->client);
	for (uint32_t i = 0; i < stage->n_refs && !kill_acts[stage->act].has_orphans; i++) {
		bool is_there = is_owners(s, stage, stage->refs[i]);

		if (i < stage->n_gone && is_there && !first[0])
			snprintf(first, size, "object %u, which the dead had freed or adopted, is still its owner's", i);
		if (i >= stage->n_begun && !is_there && !first[0])
			snprintf(first, size, "object %u has gone, and nobody freed it", i);
	}
}

/* true: everything agrees. */
static bool
count_once(struct kill_stand *s, uint32_t n, char *first, size_t size)
{
	struct recount_sums sums;

	signal_all(s, SIGSTOP);
	recount_at(s->recount, s->slabd);
	recount_take(s->recount, &sums);
	snprintf(first, size, "%s", sums.first);
	for (uint32_t i = 0; i < KILL_WORKERS; i++)
		judge_lane(s, &s->lanes[i], first, size);
	for (uint32_t i = 0; i < n; i++)
		judge_victim(s, &s->stages[i], first, size);
	s->n_recounts++;
	signal_all(s, SIGCONT);
	return first[0] == '\0';
}

/* What they left: the owner's objects, gifts, orphans; a name is gone with its object. */
static void
clear_up(struct kill_stand *s, uint32_t n)
{
	char name[32];
	slabc_ref ref;

	for (uint32_t i = 0; i < n; i++) {
		const struct kill_stage *stage = &s->stages[i];

		for (uint32_t j = 0; j < stage->n_refs; j++)
			if (is_owners(s, stage, stage->refs[j]))
				CHECK(slabc_free_ref(s->c, stage->refs[j]) == 0);
		if (stage->given && is_held(s, stage->given - 1, stage->owner))
			slabc_free(s->k[stage->kind], s->base + ((uint64_t)(stage->given - 1) << LAYOUT_PLACE_SHIFT));
	}
	free_orphans(s);
	for (uint32_t i = 0; i < n; i++) {
		snprintf(name, sizeof name, KILL_ROOT, s->stages[i].client);
		CHECK(slabc_lookup(s->c, name, &ref) == -ENOENT);
	}
}

bool
kill_judge(struct kill_stand *s, const pid_t *pids, uint32_t n, const char *story)
{
	struct proto_audit_reply audit = {0};
	char first[200] = "";
	bool is_good;

	for (uint32_t i = 0; i < n; i++)
		harness_wait_reaped(s->h, pids[i]);
	s->n_kills += n;
	for (unsigned tries = 0; tries < AUDIT_TRIES; tries++) {
		audit = harness_audit(s->h);
		if (audit.n_undecided == 0 || audit.n_lost || audit.n_doubled)
			break;
	}
	is_good = CHECK(audit.n_lost == 0 && audit.n_doubled == 0 && audit.n_undecided == 0);
	/* Slabd may have been in the midst of something. */
	for (unsigned tries = 0; tries < RECOUNT_TRIES && !count_once(s, n, first, sizeof first); tries++) {
		s->n_again++;
		harness_pause();
	}
	is_good &= CHECK(first[0] == '\0');
	if (!is_good)
		printf("\n    %s: %s; audit: %llu lost, %llu doubled, %llu undecided\n", story, first, (unsigned long long)audit.n_lost,
			(unsigned long long)audit.n_doubled, (unsigned long long)audit.n_undecided);
	clear_up(s, n);
	return is_good;
}
