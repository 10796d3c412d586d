/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that die at each instruction of the library as it is built for use: kill_step [--all] [ACT].
 *
 * Each act (kill_acts.c) is played once under ptrace, one instruction at a time, from the first of its call to the last: that is its path.
 * Then it is played again and again, each time run to an instruction of the path, by a breakpoint there and the number of times it was
 * passed before, or by one shortly before it and single steps, and killed before that instruction is carried out; the stand judges after
 * each (kill_rig.h). As it is, in a kind of cache drawn by lot (short acts: in each), at N_SAMPLE of the library's instructions drawn by
 * lot, or, of a path of at most N_SHORT, at every one.  With --all in each kind at every one, the MAX_PASSES first times that it is come
 * to.  Other libraries' write nothing that is shared but what the library has them write. Not in kinds whose paths are mostly other
 * libraries': debug caches look up symbols, those without sheaves pack messages.
 *
 * The signal of a nested act is delivered in between, so that its handler is on the path.  $SLAB_SEED is where a sample that failed begins.
 */
#include <errno.h>
#include <link.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>

#include <CUnit/Basic.h>

#include "shm/atomic.h"
#include "tests/kill_rig.h"

enum {
	N_SAMPLE = 16,
	N_SHORT = 300, /* instructions of the library's */
	N_KINDS = 3,
	MAX_PASSES = 2,
	MAX_PATH = 1 << 20,
	MAX_SEEN = 1 << 17, /* different instructions of a path, and room */
	MAX_STEPS = 3000,   /* from a breakpoint, of which a pass costs as much as so many of them: */
	STEPS_A_PASS = 3,
	MAX_NEST = 400,
	LONG_S = 4 * 3600,
	BREAKPOINT = 0xcc,
};

static bool is_all;
static const char *only;
static unsigned seed;
static uint64_t text, text_end; /* the library's instructions */

/* The path of the act that is played. */
static struct {
	uint32_t n, nest; /* nest: before this one the signal comes; n: none does */
	uint64_t at[MAX_PATH];
	uint32_t passes[MAX_PATH];       /* how often it was passed before */
	uint32_t n_ours, ours[MAX_PATH]; /* which of them are the library's */
} path;

/* In the victim */

static void
begin(void)
{
	atomic_write(&kill_stage->tid, (uint32_t)gettid());
	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0)
		_exit(1);
	syscall(SYS_tgkill, getpid(), gettid(), SIGSTOP);
}

static void
end(void)
{
	atomic_write_release(&kill_stage->is_done, 1);
}

/* The tracer */

static bool
is_done(const struct kill_stand *s)
{
	return atomic_read_acquire(&s->stages[0].is_done) != 0;
}

/* Lets the victim go on by one instruction, or, PTRACE_CONT, to a signal. false: it has come to the end of the path. */
static bool
go(struct kill_stand *s, pid_t tid, enum __ptrace_request how, int sig)
{
	int status;

	if (ptrace(how, tid, NULL, (void *)(uintptr_t)sig) < 0 || waitpid(tid, &status, __WALL) != tid)
		return false;
	return WIFSTOPPED(status) && !is_done(s);
}

static uint64_t
where(pid_t tid)
{
	struct user_regs_struct regs;

	return ptrace(PTRACE_GETREGS, tid, NULL, &regs) < 0 ? 0 : regs.rip;
}

/* A victim that stands before the first instruction. */
static pid_t
start(struct kill_stand *s, uint32_t act, uint32_t kind)
{
	int status = 0;
	pid_t pid, tid;

	kill_prepare(s, 0, act, kind);
	pid = kill_start(s, 0, begin, end);
	while (atomic_read(&s->stages[0].tid) == 0 && waitpid(pid, &status, WNOHANG) == 0) {
		kill_serve(s, 0);
		harness_pause();
	}
	tid = (pid_t)atomic_read(&s->stages[0].tid);
	REQUIRE(tid != 0 && waitpid(tid, &status, __WALL) == tid && WIFSTOPPED(status));
	return pid;
}

static void
finish(struct kill_stand *s, pid_t pid, const char *story)
{
	pid_t tid = (pid_t)s->stages[0].tid;
	int status = 0;

	kill(pid, SIGKILL);
	/* A traced thread is waited for by itself, if it has not ended before. */
	while (tid != pid && waitpid(tid, &status, __WALL) == tid && WIFSTOPPED(status))
		continue;
	while (waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status))
		continue;
	if (!CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))
		printf("\n    %s: the victim ended by itself\n", story);
	kill_judge(s, &pid, 1, story);
}

/* How often it was counted before. */
static uint32_t
count_pass(uint64_t at)
{
	static struct {
		uint64_t at;
		uint32_t n;
	} seen[MAX_SEEN];
	uint32_t i = (uint32_t)(at * UINT64_C(0x9e3779b97f4a7c15) >> 40) % MAX_SEEN;

	if (at == 0)
		memset(seen, 0, sizeof seen);
	while (seen[i].at && seen[i].at != at)
		i = (i + 1) % MAX_SEEN;
	seen[i].at = at;
	return seen[i].n++;
}

/* Fills in the path. */
static void
trace(struct kill_stand *s, uint32_t act, uint32_t kind)
{
	pid_t pid = start(s, act, kind), tid = (pid_t)s->stages[0].tid;
	char story[80];
	bool goes = go(s, tid, PTRACE_SINGLESTEP, 0);

	path.nest = kill_acts[act].is_nested ? (uint32_t)rand_r(&seed) % MAX_NEST : UINT32_MAX;
	path.n_ours = 0;
	count_pass(0);
	for (path.n = 0; goes && path.n < MAX_PATH; path.n++) {
		path.at[path.n] = where(tid);
		path.passes[path.n] = count_pass(path.at[path.n]);
		if (path.at[path.n] >= text && path.at[path.n] < text_end)
			path.ours[path.n_ours++] = path.n;
		goes = go(s, tid, PTRACE_SINGLESTEP, path.n == path.nest ? KILL_SIGNAL : 0);
	}
	CHECK(path.n > 0 && path.n < MAX_PATH);
	snprintf(story, sizeof story, "%s, %s, to its end", kill_acts[act].name, kill_kinds[kind].name);
	finish(s, pid, story);
}

/* Runs to the path's instruction k, standing at `from`, by a breakpoint.  false: the end came first, since workers had meddled. */
static bool
break_at(struct kill_stand *s, pid_t tid, uint32_t from, uint32_t k)
{
	void *at = (void *)(uintptr_t)path.at[k];
	struct user_regs_struct regs;
	uint32_t left = 0;
	long was;

	for (uint32_t i = from; i < k; i++)
		left += path.at[i] == path.at[k];
	for (left += where(tid) != path.at[k]; left > 0; left--) {
		if (where(tid) == path.at[k] && !go(s, tid, PTRACE_SINGLESTEP, 0))
			return false;
		/* A repeated instruction is at itself again. */
		if (where(tid) == path.at[k])
			continue;
		errno = 0;
		was = ptrace(PTRACE_PEEKTEXT, tid, at, NULL);
		if (errno || ptrace(PTRACE_POKETEXT, tid, at, (void *)((was & ~0xffl) | BREAKPOINT)) < 0 || !go(s, tid, PTRACE_CONT, 0))
			return false;
		if (ptrace(PTRACE_POKETEXT, tid, at, (void *)was) < 0 || ptrace(PTRACE_GETREGS, tid, NULL, &regs) < 0)
			return false;
		regs.rip--;
		ptrace(PTRACE_SETREGS, tid, NULL, &regs);
	}
	return true;
}

/* Likewise: first to one shortly before it that is seldom passed, then step by step. */
static bool
run_to(struct kill_stand *s, pid_t tid, uint32_t from, uint32_t k)
{
	uint32_t best = k;

	for (uint32_t i = k; i >= from && k - i < MAX_STEPS; i--) {
		if (path.passes[i] * STEPS_A_PASS + (k - i) < path.passes[best] * STEPS_A_PASS + (k - best))
			best = i;
		if (i == 0)
			break;
	}
	if (!break_at(s, tid, from, best))
		return false;
	for (; best < k; best++)
		if (!go(s, tid, PTRACE_SINGLESTEP, 0))
			return false;
	return true;
}

/* Killed before the k-th instruction of the path. */
static void
play_one(struct kill_stand *s, uint32_t act, uint32_t kind, uint32_t k)
{
	pid_t pid = start(s, act, kind), tid = (pid_t)s->stages[0].tid;
	char story[120];
	bool is_there = go(s, tid, PTRACE_SINGLESTEP, 0);

	if (k <= path.nest) {
		is_there = is_there && run_to(s, tid, 0, k);
	} else {
		is_there = is_there && run_to(s, tid, 0, path.nest) && go(s, tid, PTRACE_SINGLESTEP, KILL_SIGNAL);
		is_there = is_there && run_to(s, tid, path.nest + 1, k);
	}
	snprintf(story, sizeof story, "%s, %s, before instruction %u of %u%s", kill_acts[act].name, kill_kinds[kind].name, k, path.n,
		is_there ? "" : ", which it did not come to");
	s->n_elsewhere += !is_there;
	finish(s, pid, story);
}

static bool
goes_on(void)
{
	return CU_get_number_of_failures() < 10;
}

static void
play_act(struct kill_stand *s, uint32_t act, uint32_t kind)
{
	uint64_t n_before = s->n_kills;

	/* The watchdog's time is an act's. */
	alarm(is_all ? LONG_S : HARNESS_TIMEOUT_S);
	trace(s, act, kind);
	for (uint32_t i = 0; is_all && i < path.n_ours && goes_on(); i++)
		if (path.passes[path.ours[i]] < MAX_PASSES)
			play_one(s, act, kind, path.ours[i]);
	for (uint32_t i = 0; !is_all && i < path.n_ours && (i < N_SAMPLE || path.n_ours <= N_SHORT) && goes_on(); i++)
		play_one(s, act, kind, path.ours[path.n_ours <= N_SHORT ? i : (uint32_t)rand_r(&seed) % path.n_ours]);
	printf("\n    %s, %s: a path of %u instructions, %u of them the library's; %llu kills", kill_acts[act].name, kill_kinds[kind].name,
		path.n, path.n_ours, (unsigned long long)(s->n_kills - n_before));
}

static void
it_killed_at_instructions(void)
{
	const struct sched_param first = {.sched_priority = 1}, usual = {0};
	struct kill_stand s;
	cpu_set_t all, here;
	uint32_t kind;

	printf(" seed %u", seed);
	kill_stand_up(&s, NULL, "--page-kind=4k --arena-size=16M --threads=1");
	/* This process and its victims, which take turns at each instruction: on one processor, and before others. */
	sched_getaffinity(0, sizeof all, &all);
	CPU_ZERO(&here);
	CPU_SET(sched_getcpu(), &here);
	sched_setaffinity(0, sizeof here, &here);
	sched_setscheduler(0, SCHED_FIFO, &first);
	for (uint32_t act = 0; act < kill_n_acts && goes_on(); act++) {
		if (only && strcmp(only, kill_acts[act].name) != 0)
			continue;
		kind = (uint32_t)rand_r(&seed) % N_KINDS;
		for (uint32_t i = 0; i < N_KINDS && goes_on(); i++)
			if (i == 0 || is_all || kill_acts[act].is_short)
				play_act(&s, act, (kind + i) % N_KINDS);
	}
	sched_setscheduler(0, SCHED_OTHER, &usual);
	sched_setaffinity(0, sizeof all, &all);
	printf("\n    %llu came to their end elsewhere;", (unsigned long long)s.n_elsewhere);
	CHECK(s.n_elsewhere * 4 < s.n_kills);
	kill_stand_down(&s);
}

/* Where the library's instructions are. */
static int
find_text(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)size;
	(void)arg;
	for (unsigned i = 0; strstr(info->dlpi_name, "libslabclient") && i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];

		if (p->p_type != PT_LOAD || !(p->p_flags & PF_X))
			continue;
		text = info->dlpi_addr + p->p_vaddr;
		text_end = text + p->p_memsz;
	}
	return 0;
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
		fprintf(stderr, "usage: kill_step [--all] [ACT]\n");
		return 2;
	}
	dl_iterate_phdr(find_text, NULL);
	if (CU_initialize_registry() != CUE_SUCCESS)
		return 1;
	seed = harness_seed();
	suite = harness_suite("kill at instructions");
	CU_ADD_TEST(suite, it_killed_at_instructions);
	CU_basic_set_mode(CU_BRM_VERBOSE);
	CU_basic_run_tests();
	n_failures = CU_get_number_of_failures() + CU_get_number_of_suites_failed();
	skip_print();
	CU_cleanup_registry();
	return n_failures ? 1 : 0;
}
