/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that die at each step (shm/step.h) of the library: kill_points [--all] [ACT].
 *
 * Each act (kill_acts.c) in each kind of cache is played once to its end, which lists the steps it comes to, and then again and again: each
 * time its client kills itself at one of them, beside workers and under a slabd of one loop or four and of each page kind; the stand judges
 * (kill_rig.h). As it is, at the first stand each act dies once at each step it has, at a pass drawn by lot, and at the others a sample
 * does; with --all every pass of every step of every act in every kind of cache at every stand.  A step of the client's sources
 * (client_steps.def, made of them) that no act comes to is a failure.
 *
 * Two and eight die together, by one signal, each at a step of its own; and slabd (die_at.c) dies while it reaps eight, which the next one
 * judges. Built with SLAB_STEPS; $SLAB_SEED is where a sample that failed begins.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <CUnit/Basic.h>

#include "shm/atomic.h"
#include "shm/step.h"
#include "tests/kill_rig.h"

enum {
	N_SAMPLE = 60,
	N_TOGETHER = 12,
	N_TOGETHER_ALL = 200,
	TOGETHER_MS = 1,
	LONG_S = 2 * 3600,
	MAX_NEST = 60,
	NONE = STEP_COUNT, /* in place of a step: it comes to the end */
};

static bool is_all;
static const char *only;
static unsigned seed;
static bool met[STEP_COUNT];

static const enum step client_steps[] = {
#define X(step) STEP_##step,
#include "client_steps.def"
#undef X
};

/* In the victim */

static bool is_armed;
static uint32_t n_passed;

static void
on_step(enum step step)
{
	struct kill_stage *stage = kill_stage;
	uint32_t number;

	if (!atomic_read(&is_armed))
		return;
	number = atomic_add(&n_passed, 1);
	if (kill_acts[stage->act].is_nested && number == stage->nest)
		raise(KILL_SIGNAL);
	if (stage->step == NONE) {
		if (number < KILL_MAX_TRACE)
			stage->trace[number] = (uint16_t)step;
		stage->n_trace = number + 1;
		return;
	}
	if (step != (enum step)stage->step || stage->pass-- != 0)
		return;
	atomic_write_release(&stage->has_arrived, 1);
	while (stage->is_waiting)
		pause();
	kill(getpid(), SIGKILL);
}

static void
begin(void)
{
	step_hook = on_step;
	atomic_write(&is_armed, true);
}

static void
end(void)
{
	atomic_write(&is_armed, false);
	atomic_write_release(&kill_stage->is_done, 1);
	while (kill_stage->is_waiting)
		pause();
	kill(getpid(), SIGKILL);
}

/* The driver */

static uint32_t
below(uint32_t n)
{
	return (uint32_t)rand_r(&seed) % n;
}

/* Waits until the victim has killed itself; a hanging one ends by its alarm. */
static bool
wait_dead(struct kill_stand *s, uint32_t i, pid_t pid)
{
	int flags = kill_acts[s->stages[i].act].is_recalled ? WNOHANG : 0, status = 0, r;

	while ((r = waitpid(pid, &status, flags)) == 0) {
		kill_serve(s, i);
		harness_pause();
	}
	return r == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

/* Dies at the pass of the step, or, NONE, after all. */
static void
play_one(struct kill_stand *s, uint32_t act, uint32_t kind, uint32_t step, uint32_t pass, uint32_t nest)
{
	struct kill_stage *stage = &s->stages[0];
	char story[160];
	pid_t pid;

	kill_prepare(s, 0, act, kind);
	stage->step = step;
	stage->pass = pass;
	stage->nest = nest;
	pid = kill_start(s, 0, begin, end);
	snprintf(story, sizeof story, "%s, %s, at %s, pass %u", kill_acts[act].name, kill_kinds[stage->kind].name,
		step == NONE ? "the end" : step_names[step], pass);
	if (!CHECK(wait_dead(s, 0, pid)))
		printf("\n    %s: the victim ended by itself\n", story);
	if (stage->has_arrived)
		met[step] = true;
	kill_judge(s, &pid, 1, story);
}

/* The steps that an act comes to, in their order.  Workers meddle: the next time they may be a few more or less. */
struct trace {
	bool is_known;
	uint32_t n, nest;
	uint16_t step[KILL_MAX_TRACE];
};
static struct trace traces[KILL_MAX_ACTS][KILL_KINDS];

static const struct trace *
trace_of(struct kill_stand *s, uint32_t act, uint32_t kind)
{
	struct trace *t = &traces[act][kind];

	if (t->is_known)
		return t;
	t->is_known = true;
	t->nest = below(MAX_NEST);
	play_one(s, act, kind, NONE, 0, t->nest);
	t->n = s->stages[0].n_trace;
	CHECK(t->n <= KILL_MAX_TRACE);
	memcpy(t->step, s->stages[0].trace, sizeof t->step);
	return t;
}

/* An entry by lot, or, there is none, what makes the victim come to the end. */
static uint32_t
entry_of(const struct trace *t)
{
	return t->n ? below(t->n) : 0;
}

/* How often the step of the trace's entry i came before it. */
static uint32_t
pass_of(const struct trace *t, uint32_t i)
{
	uint32_t n = 0;

	for (uint32_t j = 0; j < i; j++)
		n += t->step[j] == t->step[i];
	return n;
}

static void
play_entry(struct kill_stand *s, uint32_t act, uint32_t kind, const struct trace *t, uint32_t i)
{
	play_one(s, act, kind, t->n ? t->step[i] : NONE, pass_of(t, i), t->nest);
}

/* An act by lot. */
static uint32_t
some_act(void)
{
	uint32_t act = below(kill_n_acts);

	for (uint32_t i = 0; only && i < kill_n_acts; i++)
		if (strcmp(only, kill_acts[i].name) == 0)
			act = i;
	return act;
}

static bool
goes_on(void)
{
	/* The first few say enough. */
	return CU_get_number_of_failures() < 10;
}

/* The kinds that the lot left out: at each step that no kind had which was played. */
static void
play_unmet(struct kill_stand *s)
{
	for (uint32_t act = 0; act < kill_n_acts; act++) {
		for (uint32_t kind = 0; kind < KILL_KINDS && !only; kind++) {
			const struct trace *t = trace_of(s, act, kind);

			for (uint32_t i = 0; i < t->n && goes_on(); i++)
				if (!met[t->step[i]])
					play_entry(s, act, kind, t, i);
		}
	}
}

/* Each act once at each step it has, kinds of caches by turns. */
static void
play_each_step(struct kill_stand *s)
{
	for (uint32_t act = 0; act < kill_n_acts; act++) {
		uint32_t kind = below(KILL_KINDS);

		if (only && act != some_act())
			continue;
		for (uint32_t n_kinds = 0; n_kinds < 2 && goes_on(); n_kinds++, kind = (kind + 2) % KILL_KINDS) {
			const struct trace *t = trace_of(s, act, kind);
			uint32_t n_passes[STEP_COUNT] = {0};

			for (uint32_t i = 0; i < t->n; i++)
				n_passes[t->step[i]]++;
			for (uint32_t step = 0; step < STEP_COUNT && goes_on(); step++)
				if (n_passes[step])
					play_one(s, act, kind, step, below(n_passes[step]), t->nest);
		}
	}
	play_unmet(s);
}

static void
play_sample(struct kill_stand *s)
{
	for (uint32_t i = 0; i < N_SAMPLE && goes_on(); i++) {
		uint32_t act = some_act(), kind = below(KILL_KINDS);
		const struct trace *t = trace_of(s, act, kind);

		play_entry(s, act, kind, t, entry_of(t));
	}
}

static void
play_all(struct kill_stand *s)
{
	for (uint32_t act = 0; act < kill_n_acts; act++) {
		if (only && act != some_act())
			continue;
		for (uint32_t kind = 0; kind < KILL_KINDS; kind++) {
			const struct trace *t = trace_of(s, act, kind);

			for (uint32_t i = 0; i < t->n && goes_on(); i++)
				play_entry(s, act, kind, t, i);
		}
	}
}

static void
play_at(const char *arguments, void (*play)(struct kill_stand *s))
{
	struct kill_stand s;

	if (is_all)
		alarm(LONG_S);
	printf(" seed %u", seed);
	kill_stand_up(&s, NULL, arguments);
	(is_all ? play_all : play)(&s);
	kill_stand_down(&s);
}

static void
it_small_pages_one_loop(void)
{
	play_at("--page-kind=4k --arena-size=16M --threads=1", play_each_step);
}

static void
it_small_pages_four_loops(void)
{
	play_at("--page-kind=4k --arena-size=16M --threads=4", play_sample);
}

static void
it_huge_pages_one_loop(void)
{
	if (hugepages_take(8))
		play_at("--page-kind=huge --arena-size=16M --threads=1", play_sample);
}

static void
it_huge_pages_four_loops(void)
{
	if (hugepages_take(8))
		play_at("--page-kind=huge --arena-size=16M --threads=4", play_sample);
}

static void
it_transparent_huge_pages_one_loop(void)
{
	play_at("--page-kind=thp,4k --arena-size=16M --threads=1", play_sample);
}

static void
it_transparent_huge_pages_four_loops(void)
{
	play_at("--page-kind=thp,4k --arena-size=16M --threads=4", play_sample);
}

/* Last of those: a step of the client's that nobody died at is not tested. */
static void
it_died_at_every_step_of_the_client(void)
{
	unsigned n = 0;

	for (size_t i = 0; i < sizeof client_steps / sizeof client_steps[0]; i++) {
		n += met[client_steps[i]];
		if (!CHECK(met[client_steps[i]]))
			printf("    no act died at %s\n", step_names[client_steps[i]]);
	}
	printf(" %u steps", n);
}

/* Several at once */

/* n victims are to come each to a step of its own, and to wait there.  is_quiet: nobody dies before that. */
static void
line_up(struct kill_stand *s, uint32_t n, bool is_quiet)
{
	const struct trace *t;
	uint32_t act[KILL_VICTIMS], kind[KILL_VICTIMS];

	/* First the traces: they need a stage. */
	for (uint32_t i = 0; i < n; i++) {
		do {
			act[i] = some_act();
			kind[i] = below(KILL_KINDS);
		} while (is_quiet && (kill_acts[act[i]].has_orphans || !traces[act[i]][kind[i]].is_known));
		trace_of(s, act[i], kind[i]);
	}
	for (uint32_t i = 0; i < n; i++) {
		uint32_t at;

		t = trace_of(s, act[i], kind[i]);
		at = entry_of(t);
		kill_prepare(s, i, act[i], kind[i]);
		s->stages[i].step = t->n ? t->step[at] : NONE;
		s->stages[i].pass = pass_of(t, at);
		s->stages[i].nest = t->nest;
		s->stages[i].is_waiting = 1;
	}
}

static void
start_all(struct kill_stand *s, uint32_t n, pid_t *pids)
{
	for (uint32_t i = 0; i < n; i++) {
		pids[i] = kill_start(s, i, begin, end);
		/* One group, so that one signal ends all. */
		REQUIRE(setpgid(pids[i], pids[0]) == 0);
	}
	for (uint32_t i = 0; i < n; i++)
		CHECK(EVENTUALLY(
			(kill_serve(s, i), atomic_read_acquire(&s->stages[i].has_arrived) || atomic_read_acquire(&s->stages[i].is_done))));
}

/* How long the signal took to be sent to all; the dying do not come before this process, if it may say so. */
static int64_t
kill_group(uint32_t n, const pid_t *pids)
{
	const struct sched_param first = {.sched_priority = 1}, usual = {0};
	int64_t start, took_ns;
	int status;

	sched_setscheduler(0, SCHED_FIFO, &first);
	start = harness_now_ns();
	CHECK(kill(-pids[0], SIGKILL) == 0);
	took_ns = harness_now_ns() - start;
	sched_setscheduler(0, SCHED_OTHER, &usual);
	for (uint32_t i = 0; i < n; i++)
		CHECK(waitpid(pids[i], &status, 0) == pids[i] && WIFSIGNALED(status));
	return took_ns;
}

static void
die_together(const char *arguments, uint32_t n)
{
	struct kill_stand s;
	pid_t pids[KILL_VICTIMS];
	char story[64];
	unsigned n_in_time = 0, n_rounds = is_all ? N_TOGETHER_ALL : N_TOGETHER;

	if (is_all)
		alarm(LONG_S);
	printf(" seed %u", seed);
	kill_stand_up(&s, NULL, arguments);
	for (uint32_t round = 0; round < n_rounds && goes_on(); round++) {
		line_up(&s, n, false);
		start_all(&s, n, pids);
		n_in_time += kill_group(n, pids) < TOGETHER_MS * INT64_C(1000000);
		snprintf(story, sizeof story, "%u together, round %u", n, round);
		kill_judge(&s, pids, n, story);
	}
	printf(" %u of %u times within a millisecond", n_in_time, n_rounds);
	CHECK(n_in_time * 2 > n_rounds || !goes_on());
	kill_stand_down(&s);
}

static void
it_two_die_together(void)
{
	die_together("--page-kind=4k --arena-size=16M --threads=1", 2);
}

static void
it_eight_die_together(void)
{
	die_together("--page-kind=4k --arena-size=16M --threads=4", 8);
}

/* Slabd dies while it reaps */

static void
reaper_dies(const char *path, const char *step, unsigned skip)
{
	struct kill_stand s;
	pid_t pids[KILL_VICTIMS], before;
	char program[300], story[80], marker[128];

	snprintf(marker, sizeof marker, "/tmp/kill_points.%d.died", getpid());
	unlink(marker);
	snprintf(program, sizeof program, "%s %s %u %s", path, step, skip, marker);
	snprintf(story, sizeof story, "slabd died at %s %u", step, skip);
	kill_stand_up(&s, program, "--page-kind=4k --arena-size=16M --threads=1");
	before = (pid_t)harness_status(s.h).pid;
	line_up(&s, KILL_VICTIMS, true);
	start_all(&s, KILL_VICTIMS, pids);
	kill_group(KILL_VICTIMS, pids);
	if (!CHECK(EVENTUALLY(access(marker, F_OK) == 0)))
		printf("    never at %s %u\n", step, skip);
	harness_wait_kept(s.h, before);
	kill_judge(&s, pids, KILL_VICTIMS, story);
	kill_stand_down(&s);
	unlink(marker);
}

static void
it_reaper_dies_half_way(void)
{
	static const struct {
		const char *step;
		unsigned n; /* passes that there are at least */
	} deaths[] = {{"REAP_ORDINARY", 1}, {"REAP_DRAINED", 1}, {"REAP_WALKED", 1}, {"RECLAIM_READ", 12}, {"SESSION_ENDED", 3}};
	const char *path = getenv("SLABD_DIE_AT") ? getenv("SLABD_DIE_AT") : "build/steps/tests/die_at";
	unsigned n_times = is_all ? 20 : 1;

	if (is_all)
		alarm(LONG_S);
	printf(" seed %u", seed);
	for (unsigned time = 0; time < n_times; time++)
		for (size_t i = 0; i < sizeof deaths / sizeof deaths[0] && goes_on(); i++)
			reaper_dies(path, deaths[i].step, below(deaths[i].n));
}

int
main(int argc, char **argv)
{
	CU_pSuite suite;
	unsigned n_failures;

	setvbuf(stdout, NULL, _IOLBF, 0);
	is_all = argc > 1 && strcmp(argv[1], "--all") == 0;
	only = argv[1 + is_all];
	if (argc > 2 + is_all || (only && only[0] == '-')) {
		fprintf(stderr, "usage: kill_points [--all] [ACT]\n");
		return 2;
	}
	if (CU_initialize_registry() != CUE_SUCCESS)
		return 1;
	seed = harness_seed();
	suite = harness_suite("kill points");
	CU_ADD_TEST(suite, it_small_pages_one_loop);
	CU_ADD_TEST(suite, it_small_pages_four_loops);
	CU_ADD_TEST(suite, it_huge_pages_one_loop);
	CU_ADD_TEST(suite, it_huge_pages_four_loops);
	CU_ADD_TEST(suite, it_transparent_huge_pages_one_loop);
	CU_ADD_TEST(suite, it_transparent_huge_pages_four_loops);
	if (!only)
		CU_ADD_TEST(suite, it_died_at_every_step_of_the_client);
	CU_ADD_TEST(suite, it_two_die_together);
	CU_ADD_TEST(suite, it_eight_die_together);
	CU_ADD_TEST(suite, it_reaper_dies_half_way);
	CU_basic_set_mode(CU_BRM_VERBOSE);
	CU_basic_run_tests();
	n_failures = CU_get_number_of_failures() + CU_get_number_of_suites_failed();
	skip_print();
	CU_cleanup_registry();
	return n_failures ? 1 : 0;
}
