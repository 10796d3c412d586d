/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who lives is never reaped (design.md, I5): stopped, in a debugger, busy with itself, without its first thread, whatever the clock says.
 *
 * All the while another client wants all memory there is, and slabd calls in what is idle: what the silent one holds stays as it is, and it goes on where
 * it was.  $SLAB_ALIVE_S: for how many seconds a client is stopped, by default one (check-long: minutes).
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include "tests/harness.h"

CU_pSuite it_alive_suite(void);

enum { N_HELD = 100, N_LOOSE = 400, N_BIG = 2048, BIG_BYTES = 4096, WORK_BYTES = 64, WORDS = WORK_BYTES / 4 };

/* An arena of 4 MiB: who wants all of it gets less than N_BIG objects. */
static const char small_arena[] = "--page-kind=4k --arena-size=4M --threads=2";

/* Shared with the child. */
struct working {
	struct harness *h;
	uint32_t n_turns, is_told, is_spinning;
};

static struct working *
working_new(struct harness *h)
{
	struct working *w = mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	REQUIRE(w != MAP_FAILED);
	w->h = h;
	return w;
}

static void
working_free_at(struct working **wp)
{
	munmap(*wp, sizeof **wp);
}

static uint32_t
look(const uint32_t *p)
{
	return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

static bool
has_turned(const struct working *w, uint32_t since)
{
	return look(&w->n_turns) > since;
}

static void
fill(uint32_t *p, uint32_t with)
{
	for (unsigned i = 0; i < WORDS; i++)
		p[i] = with;
}

static bool
is_whole(const uint32_t *p, uint32_t with)
{
	for (unsigned i = 0; i < WORDS; i++)
		if (p[i] != with)
			return false;
	return true;
}

/* What a client has: objects that it holds, of both kinds, and some that come and go. */
struct hand {
	struct slabc *c;
	struct slabc_cache *k[2]; /* kept, reclaimed */
	uint32_t *held[2][N_HELD], *loose[2][N_LOOSE];
};

static struct hand *
hand_open(const struct harness *h, const char *label)
{
	struct hand *hand = calloc(1, sizeof *hand);

	REQUIRE(hand != NULL);
	hand->c = harness_open(h, label);
	hand->k[0] = harness_open_cache(hand->c, "kept", WORK_BYTES, 0);
	hand->k[1] = harness_open_cache(hand->c, "reclaimed", WORK_BYTES, SLABC_RECLAIM);
	for (unsigned i = 0; i < 2 * N_HELD; i++) {
		uint32_t *p = slabc_alloc(hand->k[i % 2]);

		REQUIRE(p != NULL);
		fill(p, i);
		hand->held[i % 2][i / 2] = p;
	}
	return hand;
}

/* Allocates or frees one; memory may be short. */
static void
hand_turn(struct hand *hand, uint32_t i)
{
	uint32_t **p = &hand->loose[i % 2][i / 2 % N_LOOSE];

	if (*p) {
		CHECK(is_whole(*p, (uint32_t)(p - &hand->loose[0][0])));
		slabc_free(hand->k[i % 2], *p);
		*p = NULL;
		return;
	}
	errno = 0;
	*p = slabc_alloc(hand->k[i % 2]);
	CHECK(*p != NULL || errno == ENOMEM);
	if (*p)
		fill(*p, (uint32_t)(p - &hand->loose[0][0]));
}

static void
hand_check(const struct hand *hand)
{
	for (unsigned i = 0; i < 2 * N_HELD; i++)
		CHECK(is_whole(hand->held[i % 2][i / 2], i));
}

static void
hand_close(struct hand *hand)
{
	hand_check(hand);
	errno = 0;
	for (unsigned kind = 0; kind < 2; kind++) {
		slabc_free_bulk(hand->k[kind], N_HELD, (void **)hand->held[kind]);
		slabc_free_bulk(hand->k[kind], N_LOOSE, (void **)hand->loose[kind]);
	}
	CHECK(errno == 0);
	slabc_close(hand->c);
	free(hand);
}

/* Works until it is told to end, or to spin: then without a call. */
static void
work(struct peer *me, void *arg)
{
	struct working *w = arg;
	struct hand *hand = hand_open(w->h, "works");

	alarm(0); /* the test's own counts */
	peer_tell(me, 'r');
	for (uint32_t i = 0; !look(&w->is_told); i++) {
		hand_turn(hand, i * 2654435761u >> 8);
		if (i % 1024 == 0)
			hand_check(hand);
		__atomic_add_fetch(&w->n_turns, 1, __ATOMIC_RELEASE);
		if (!look(&w->is_spinning))
			continue;
		peer_tell(me, 's');
		while (look(&w->is_spinning))
			continue;
	}
	hand_close(hand);
}

static void
end_work(struct harness *h, struct working *w, pid_t pid)
{
	__atomic_store_n(&w->is_told, 1, __ATOMIC_RELEASE);
	harness_join(h, pid);
}

static unsigned
alive_s(void)
{
	const char *s = getenv("SLAB_ALIVE_S");

	return s ? (unsigned)strtoul(s, NULL, 10) : 1;
}

/* Somebody wants all memory, until there is none, and slabd calls in what others keep idle. */
static void
press(struct harness *h, struct slabc_cache *k)
{
	static void *pv[N_BIG];
	union proto_request request = {0};
	union proto_reply reply;
	unsigned n = 0;

	while (n < N_BIG && (pv[n] = slabc_alloc(k)))
		n++;
	CHECK(n > 0 && n < N_BIG && errno == ENOMEM);
	slabc_free_bulk(k, n, pv);
	CHECK(harness_ask(h, PROTO_OP_SHRINK, &request, &reply) == PROTO_STATUS_OK);
}

static void
press_for(struct harness *h, struct slabc_cache *k, unsigned ms)
{
	for (int64_t until = harness_now_ns() + ms * INT64_C(1000000); harness_now_ns() < until;)
		press(h, k);
}

static void
check_lives(struct harness *h, pid_t pid)
{
	struct proto_clients_reply client = harness_client(h, pid);

	CHECK(strcmp(client.state, "live") == 0);
	CHECK(client.n_held >= 2 * N_HELD);
}

static void
check_at_rest(struct harness *h)
{
	struct proto_audit_reply audit;

	CHECK(EVENTUALLY(harness_status(h).n_sessions == 0));
	audit = harness_audit(h);
	CHECK(audit.n_out == 0 && audit.n_lost == 0 && audit.n_doubled == 0 && audit.n_undecided == 0);
}

/* Stopped at twenty instants for a moment, then for long. */
static void
it_stopped_under_load(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("%s", small_arena);
	CLEANUP(working_free) struct working *w = working_new(h), *other = working_new(h);
	pid_t pid = harness_spawn(h, work, w), busy = harness_spawn(h, work, other);
	struct slabc *c = harness_open(h, "presses");
	struct slabc_cache *k = harness_open_cache(c, "big", BIG_BYTES, 0);
	uint32_t n_turns;

	alarm(HARNESS_TIMEOUT_S + alive_s());
	peer_await(harness_peer(h, pid), 'r');
	peer_await(harness_peer(h, busy), 'r');
	for (unsigned i = 0; i <= 20; i++) {
		n_turns = look(&w->n_turns);
		CHECK(EVENTUALLY(has_turned(w, n_turns)));
		harness_kill(h, pid, SIGSTOP);
		REQUIRE(waitpid(pid, NULL, WUNTRACED) == pid);
		press_for(h, k, i == 20 ? alive_s() * 1000 : 5);
		check_lives(h, pid);
		CHECK(harness_audit(h).n_lost == 0);
		harness_kill(h, pid, SIGCONT);
	}
	n_turns = look(&w->n_turns);
	CHECK(EVENTUALLY(has_turned(w, n_turns + 1000)));
	CHECK(harness_status(h).n_ended_ever == 0);
	end_work(h, w, pid);
	end_work(h, other, busy);
	slabc_close(c);
	check_at_rest(h);
}

/*
 * In the hands of a debugger: stopped by it, then led step by step through its calls, while its sheaves are called in; not for so long that it gives up,
 * since it may lose each sheaf before it comes to use it.
 */
static void
it_traced_is_alive(void)
{
	enum { STEP_MS = 1500, PRESS_EVERY = 1499 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("%s", small_arena);
	CLEANUP(working_free) struct working *w = working_new(h);
	pid_t pid = harness_spawn(h, work, w);
	struct slabc *c = harness_open(h, "presses");
	struct slabc_cache *k = harness_open_cache(c, "big", BIG_BYTES, 0);
	unsigned n_steps = 0;
	uint32_t n_turns;
	int64_t until;
	int status;

	peer_await(harness_peer(h, pid), 'r');
	if (ptrace(PTRACE_SEIZE, pid, NULL, NULL) < 0) {
		skip("no process may be traced here: %s", strerror(errno));
	} else {
		REQUIRE(ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) == 0 && waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
		press_for(h, k, 300);
		check_lives(h, pid);
		for (until = harness_now_ns() + STEP_MS * INT64_C(1000000); harness_now_ns() < until; n_steps++) {
			REQUIRE(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) == 0 && waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
			if (n_steps % PRESS_EVERY == 0)
				press(h, k);
		}
		CHECK(n_steps > 1);
		check_lives(h, pid);
		REQUIRE(ptrace(PTRACE_DETACH, pid, NULL, NULL) == 0);
	}
	n_turns = look(&w->n_turns);
	CHECK(EVENTUALLY(has_turned(w, n_turns + 1000)));
	end_work(h, w, pid);
	slabc_close(c);
	check_at_rest(h);
}

/* A loop without a call: its idle sheaves are called in, and nothing else is taken. */
static void
it_busy_loop_is_alive(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("%s", small_arena);
	CLEANUP(working_free) struct working *w = working_new(h);
	pid_t pid = harness_spawn(h, work, w);
	struct slabc *c = harness_open(h, "presses");
	struct slabc_cache *k = harness_open_cache(c, "big", BIG_BYTES, 0);
	uint64_t n_held;

	peer_await(harness_peer(h, pid), 'r');
	__atomic_store_n(&w->is_spinning, 1, __ATOMIC_RELEASE);
	peer_await(harness_peer(h, pid), 's');
	n_held = harness_client(h, pid).n_held;
	press_for(h, k, 500);
	check_lives(h, pid);
	CHECK(harness_client(h, pid).n_held == n_held);
	CHECK(EVENTUALLY(harness_audit(h).n_in_sheaves == 0));
	__atomic_store_n(&w->is_spinning, 0, __ATOMIC_RELEASE);
	end_work(h, w, pid);
	slabc_close(c);
	check_at_rest(h);
}

/* Does the process have that file mapped? */
static bool
has_loaded(pid_t pid, const char *name)
{
	char path[64], line[512];
	bool has = false;
	FILE *file;

	snprintf(path, sizeof path, "/proc/%d/maps", pid);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof line, file))
		has = has || strstr(line, name);
	if (file)
		fclose(file);
	return has;
}

/* The clock jumps by years at each look at it: nobody has been silent for long, no wait is shorter or longer, and who dies is seen to. */
static void
it_clock_jumps(void)
{
#ifdef __SANITIZE_ADDRESS__
	skip_without("preloading before the sanitizer");
#else
	CLEANUP(harness_free) struct harness *h = NULL;
	CLEANUP(working_free) struct working *w = working_new(NULL);
	char socket_option[128], program[256], jumps[300], out[4096];
	char *argv[] = {program, socket_option, (char[]){"status"}, NULL}, *real = realpath(harness_path("SLABD"), NULL);
	struct slabc *c;
	struct slabc_cache *k;
	uint32_t n_turns;
	pid_t pid;
	int fd;

	REQUIRE(real != NULL);
	snprintf(jumps, sizeof jumps, "%.*s/tests/jumps.so", (int)(strrchr(real, '/') - real), real);
	free(real);
	snprintf(program, sizeof program, "%s", harness_path("SLABCTL"));
	setenv("LD_PRELOAD", jumps, 1);
	h = harness_slabd("%s", small_arena);
	snprintf(socket_option, sizeof socket_option, "--socket=%s", h->socket);
	CHECK(harness_run(argv, NULL, out, sizeof out) == 0);
	unsetenv("LD_PRELOAD");
	REQUIRE(has_loaded(h->slabd, "jumps.so"));
	w->h = h;
	pid = harness_spawn(h, work, w);
	c = harness_open(h, "presses");
	k = harness_open_cache(c, "big", BIG_BYTES, 0);
	peer_await(harness_peer(h, pid), 'r');
	fd = raw_connect(h->socket);
	harness_kill(h, pid, SIGSTOP);
	press_for(h, k, 1000);
	check_lives(h, pid);
	/* It may take its two seconds for its HELLO. */
	CHECK(raw_hello(fd) == PROTO_STATUS_OK);
	close(fd);
	harness_kill(h, pid, SIGCONT);
	n_turns = look(&w->n_turns);
	CHECK(EVENTUALLY(has_turned(w, n_turns + 1000)));
	harness_kill(h, pid, SIGKILL);
	harness_wait_reaped(h, pid);
	CHECK(harness_status(h).n_ended_ever == 1);
	slabc_close(c);
#endif
}

/* In a time namespace, where CLOCK_MONOTONIC is a day ahead of slabd's. */
static void
work_in_another_time(struct peer *me, void *arg)
{
	char offsets[] = "monotonic 86400 0";
	int fd, status = 0;
	pid_t pid;

	if (unshare(CLONE_NEWTIME) < 0 || (fd = open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC)) < 0 ||
		write(fd, offsets, sizeof offsets - 1) < 0) {
		peer_tell(me, 'n');
		return;
	}
	close(fd);
	peer_tell(me, 't');
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		peer_put(me, &(pid_t){getpid()}, sizeof pid);
		work(me, arg);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void
it_time_namespaces(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("%s", small_arena);
	CLEANUP(working_free) struct working *w = working_new(h);
	pid_t pid = harness_spawn(h, work_in_another_time, w), inner;
	struct peer *peer = harness_peer(h, pid);
	struct slabc *c = harness_open(h, "presses");
	struct slabc_cache *k = harness_open_cache(c, "big", BIG_BYTES, 0);
	char answer;

	peer_get(peer, &answer, 1);
	if (answer == 'n') {
		skip_without("time namespaces");
		harness_join(h, pid);
	} else {
		peer_get(peer, &inner, sizeof inner);
		peer_await(peer, 'r');
		press_for(h, k, 300);
		check_lives(h, inner);
		end_work(h, w, pid);
	}
	slabc_close(c);
	check_at_rest(h);
}

/* Of a process whose first thread has ended and others have not, /proc says that it is a zombie. */
static bool
is_headless(void)
{
	char text[128] = "";
	FILE *file = fopen("/proc/self/stat", "re");
	const char *name_end;

	if (!file)
		return false;
	name_end = fgets(text, sizeof text, file) ? strrchr(text, ')') : NULL;
	fclose(file);
	return name_end && name_end[2] == 'Z';
}

/* Its first thread ends, and another goes on, and opens sessions. */
static void *
be_second(void *arg)
{
	static struct peer me;
	struct working *w = ((void **)arg)[1];

	me = *(struct peer *)((void **)arg)[0];
	CHECK(EVENTUALLY(is_headless()));
	hand_close(hand_open(w->h, "opened later"));
	work(&me, w);
	_exit(0);
}

static void
end_first_thread(struct peer *me, void *arg)
{
	static void *pair[2];
	pthread_t thread;

	pair[0] = me;
	pair[1] = arg;
	REQUIRE(pthread_create(&thread, NULL, be_second, pair) == 0);
	pthread_exit(NULL);
}

static void
it_first_thread_ends(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("%s", small_arena);
	CLEANUP(working_free) struct working *w = working_new(h);
	pid_t pid = harness_spawn(h, end_first_thread, w);
	struct slabc *c = harness_open(h, "presses");
	struct slabc_cache *k = harness_open_cache(c, "big", BIG_BYTES, 0);

	peer_await(harness_peer(h, pid), 'r');
	press_for(h, k, 300);
	check_lives(h, pid);
	end_work(h, w, pid);
	slabc_close(c);
	check_at_rest(h);
}

CU_pSuite
it_alive_suite(void)
{
	CU_pSuite suite = harness_suite("alive");

	CU_ADD_TEST(suite, it_stopped_under_load);
	CU_ADD_TEST(suite, it_traced_is_alive);
	CU_ADD_TEST(suite, it_busy_loop_is_alive);
	CU_ADD_TEST(suite, it_clock_jumps);
	CU_ADD_TEST(suite, it_time_namespaces);
	CU_ADD_TEST(suite, it_first_thread_ends);
	return suite;
}
