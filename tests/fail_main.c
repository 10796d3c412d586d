/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shortage at every call: slabd, and then the library, in which the k-th call of a function of libc fails, for each k until none is left to fail (fail_at.h).
 *
 * A run: a job (fail_worker.c) while the order stands; then, the shortage being over: slabd lives; the job ended by errors that the manual has, not by a signal;
 * the session is gone; every counter is what a recount finds (recount()); slabd has no descriptor more than before; and a fresh client does the job in full.
 * Starts: slabd's own start while the order stands ends with a sentence, or slabd serves as ever.
 *
 * fail [--all] [--seed=N] [WORD]...: of functions called often a sample of ks, or all; only those where "slabd: mmap" and so on has one of the words.
 */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <CUnit/Basic.h>

#include "tests/fail_rig.h"

enum { MAX_ERRORS = 4, SAMPLE = 3, FEW = 4, HASTY_MS = 200 };

static bool does_all;
static unsigned seed, n_runs_all, n_failed_all;

/* Runs */

struct plan {
	enum fail_call call;
	int errors[MAX_ERRORS]; /* 0: no more */
};

static const struct plan plans[] = {
	{FAIL_memfd_create, {ENOMEM, EMFILE, EPERM, EINVAL}},
	{FAIL_fallocate, {ENOSPC, ENOMEM, EINTR}},
	{FAIL_ftruncate, {ENOMEM}},
	{FAIL_fchmod, {EPERM}},
	{FAIL_fcntl, {EPERM}},
	{FAIL_fstat, {ENOMEM}},
	{FAIL_mmap, {ENOMEM}},
	{FAIL_munmap, {ENOMEM}},
	{FAIL_madvise, {ENOMEM}},
	{FAIL_malloc, {ENOMEM}},
	{FAIL_calloc, {ENOMEM}},
	{FAIL_realloc, {ENOMEM}},
	{FAIL_posix_memalign, {ENOMEM}},
	{FAIL_open, {EMFILE}},
	{FAIL_fopen, {EMFILE}},
	{FAIL_read, {EIO}},
	{FAIL_write, {ENOSPC, EAGAIN}},
	{FAIL_sendmsg, {ENOBUFS, EAGAIN, EINTR}},
	{FAIL_recvmsg, {ENOMEM, EINTR}},
	{FAIL_socket, {EMFILE}},
	{FAIL_connect, {EAGAIN}},
	{FAIL_bind, {ENOMEM}},
	{FAIL_listen, {ENOMEM}},
	{FAIL_accept4, {EMFILE, ENOMEM, ECONNABORTED}},
	{FAIL_getsockopt, {EMFILE}},
	{FAIL_poll, {ENOMEM}},
	{FAIL_pipe2, {EMFILE}},
	{FAIL_socketpair, {EMFILE}},
	{FAIL_dup3, {EMFILE}},
	{FAIL_epoll_create1, {EMFILE}},
	{FAIL_epoll_ctl, {ENOMEM, ENOSPC}},
	{FAIL_timerfd_create, {EMFILE}},
	{FAIL_eventfd, {EMFILE}},
	{FAIL_getrandom, {ENOSYS}},
	{FAIL_pthread_create, {EAGAIN}},
	{FAIL_pidfd_open, {EMFILE}},
	{FAIL_membarrier, {ENOMEM, EPERM}},
	{FAIL_set_mempolicy, {ENOMEM}},
	{FAIL_get_mempolicy, {EFAULT}},
	{FAIL_move_pages, {ENOMEM}},
};

enum { N_PLANS = sizeof plans / sizeof plans[0] };

/* The slabd of runs. */
static struct harness *h_runs;
static unsigned n_fds_runs;
static uint32_t n_calls_made[FAIL_COUNT]; /* of each function, in the last run */

static void
drop_slabd(void)
{
	if (h_runs && h_runs->slabd == 0)
		h_runs->is_killed = true;
	harness_free(h_runs);
	h_runs = NULL;
}

static void
need_slabd(void)
{
	int status = 0;

	if (h_runs)
		return;
	fail_none(at);
	h_runs = harness_new();
	REQUIRE(start(h_runs, &status));
	n_fds_runs = harness_count_fds(h_runs->slabd);
	/* Once without a shortage: what is made at the first use is there. */
	REQUIRE(work(h_runs, PATIENT_MS, false) == 0);
	REQUIRE(EVENTUALLY(is_quiet(h_runs)));
	REQUIRE(clear(h_runs));
	REQUIRE(EVENTUALLY(harness_count_fds(h_runs->slabd) == n_fds_runs));
}

static void
end_order(struct fail_at *orders)
{
	fail_none(orders);
	orders->of_worker = FAIL_NOTHING;
	memcpy(n_calls_made, orders->n_calls, sizeof n_calls_made);
}

/* Each returns how many calls failed. */
static uint32_t
run_slabd(void)
{
	int status;

	need_slabd();
	fail_order(at, run.call, run.k, run.error, run.is_lasting);
	status = work(h_runs, HASTY_MS, false);
	end_order(at);
	if (!check_after(h_runs, status, n_fds_runs))
		drop_slabd();
	return at->n_failed;
}

static uint32_t
run_client(void)
{
	uint32_t n_failed;
	int status;

	need_slabd();
	fail_order(to_worker, FAIL_NOTHING, run.k, run.error, run.is_lasting);
	to_worker->of_worker = run.call;
	status = work(h_runs, HASTY_MS, true);
	end_order(to_worker);
	n_failed = to_worker->n_failed;
	if (!check_after(h_runs, status, n_fds_runs))
		drop_slabd();
	return n_failed;
}

static uint32_t
run_start(void)
{
	uint32_t n_failed;
	struct harness *h;
	int status = 0;
	bool ok;

	need_slabd();
	h = harness_new();
	fail_order(at, run.call, run.k, run.error, run.is_lasting);
	ok = start(h, &status);
	end_order(at);
	n_failed = at->n_failed;
	if (ok) {
		holds(EVENTUALLY(has_monitor(h)), "slabd does not answer");
		/* By less, or more, than others have: it has done without something since then. */
		check_after(h, 0, count_settled_fds(h));
		holds(harness_stop_slabd(h, SIGTERM) == 0, "it does not end well");
	} else {
		h->is_killed = true;
		/* libnuma reads the machine's nodes into what it does not look at: numa_node_of_cpu(). */
		if (run.call == FAIL_calloc && status == OURS + SIGSEGV && harness_log_count(h, "") == 0)
			status = 1;
		else
			holds(harness_log_count(h, ":") > 0 || run.call == FAIL_poll || run.call == FAIL_write, "its start ends without a sentence");
		holds(status == 1 || status == 3, "its start ends with status %d", status);
	}
	harness_free(h);
	return n_failed;
}

static unsigned
draw(unsigned below)
{
	seed = seed * 1103515245u + 12345u;
	return (seed >> 8) % below;
}

/* Another k; false: there is none any more. */
static bool
next_k(uint32_t n_calls, unsigned n_done, uint32_t n_failed)
{
	if (does_all || n_calls <= FEW) {
		if (n_done > 0 && n_failed == 0)
			return false;
		run.k = n_done + 1;
		return true;
	}
	run.k = 1 + draw(n_calls);
	return n_done < SAMPLE;
}

/* One error of the plan; of a sample any, and once or lasting.  (A call that is interrupted each time is no shortage.) */
static void
choose(const struct plan *plan, unsigned nth)
{
	unsigned n = 0;

	while (n < MAX_ERRORS && plan->errors[n])
		n++;
	run.error = plan->errors[(does_all ? nth / 2 : draw(n)) % n];
	run.is_lasting = run.error != EINTR && (does_all ? nth % 2 : draw(2));
}

static unsigned
count_choices(const struct plan *plan)
{
	unsigned n = 0;

	while (n < MAX_ERRORS && plan->errors[n])
		n++;
	return does_all ? 2 * n : 1;
}

/* words[]: of the command line; none: all. */
static char **words;
static int n_words;

static bool
is_wanted(const char *side, enum fail_call call)
{
	char name[64];

	snprintf(name, sizeof name, "%s: %s", side, fail_names[call]);
	for (int i = 0; i < n_words; i++)
		if (strstr(name, words[i]))
			return true;
	return n_words == 0;
}

static void
sweep(uint32_t (*do_run)(void), const struct plan *plan, unsigned nth, uint32_t n_calls)
{
	uint32_t n_failed = 1;

	for (unsigned n = 0; next_k(n_calls, n, n_failed); n++) {
		if (n == 0 || !does_all)
			choose(plan, nth);
		alarm(HARNESS_TIMEOUT_S);
		n_failed = do_run();
		n_runs_all++;
		n_failed_all += n_failed > 0;
	}
}

/* All functions, of the one whose calls fail. */
static void
fail_side(const char *side, uint32_t (*do_run)(void))
{
	static uint32_t n_calls[FAIL_COUNT];

	h_runs = NULL; /* a test that was left in the midst of it has had its own put away */
	run.side = side;
	run.call = FAIL_NOTHING;
	/* How many are there to fail? */
	do_run();
	memcpy(n_calls, n_calls_made, sizeof n_calls);
	for (unsigned i = 0; i < N_PLANS; i++) {
		run.call = plans[i].call;
		if (!n_calls[run.call] || !is_wanted(side, run.call))
			continue;
		printf("%s %u, ", fail_names[run.call], n_calls[run.call]);
		for (unsigned nth = 0; nth < count_choices(&plans[i]); nth++)
			sweep(do_run, &plans[i], nth, n_calls[run.call]);
	}
	drop_slabd();
}

static void
fail_start(void)
{
	fail_side("start", run_start);
}

static void
fail_slabd(void)
{
	fail_side("slabd", run_slabd);
}

static void
fail_client(void)
{
	fail_side("client", run_client);
}

/* memfd_create() of each kind of page: the next kind, or a sentence; both say what it said. */
static void
fail_ladder(void)
{
	static const int errors[] = {EINVAL, ENOSYS, EPERM, ENOMEM};

	run.side = "ladder";
	run.call = FAIL_memfd_create;
	for (unsigned i = 0; i < 2 * sizeof errors / sizeof errors[0]; i++) {
		struct harness *h = harness_new();
		int status = 0;

		run.error = errors[i / 2];
		run.is_lasting = i % 2;
		/* With EINVAL it is asked again, without a flag of newer kernels. */
		run.k = 1;
		slabd_options = "--arena-size=64M";
		fail_order(at, FAIL_memfd_create, 1, run.error, run.is_lasting);
		if (start(h, &status)) {
			holds(!run.is_lasting, "slabd serves without a segment");
			holds(run.error == EINVAL || strstr(harness_status(h).page_note, strerror(run.error)) != NULL, "STATUS says '%s'",
				harness_status(h).page_note);
			fail_none(at);
			holds(work(h, PATIENT_MS, false) == 0, "no job can be done");
			holds(harness_stop_slabd(h, SIGTERM) == 0, "it does not end well");
		} else {
			h->is_killed = true;
			holds(run.is_lasting && status == 1, "it ends with status %d", status);
			holds(harness_log_count(h, strerror(run.error)) > 0, "no sentence has it");
			holds(run.error == ENOMEM || harness_log_count(h, "memfd_create") > 0, "no sentence names it");
		}
		fail_none(at);
		slabd_options = usual_options;
		harness_free(h);
	}
}

/* Nobody keeps slabd's descriptors for the next one any more, from the k-th that it would have kept: said once, and it serves on. */
static void
fail_store(void)
{
	char program[256];

	run.side = "kept slabd";
	run.call = FAIL_sd_pid_notify_with_fds;
	run.error = ENOBUFS;
	snprintf(program, sizeof program, "/usr/bin/env LD_PRELOAD=%s FAIL_AT_FILE=%s %s", library_path(), at_path, harness_path("SLABD"));
	for (run.k = 1, at->n_failed = 1; at->n_failed > 0; run.k++) {
		struct harness *h;

		run.is_lasting = run.k % 2;
		fail_order(at, run.call, run.k, run.error, run.is_lasting);
		h = harness_keeper(program, usual_options);
		holds(work(h, PATIENT_MS, false) == 0, "no job can be done");
		fail_none(at);
		holds(EVENTUALLY(is_quiet(h)), "a session is left");
		recount(h, "after the job");
		clear(h);
		/* (What only tells, or takes out, may fail too.) */
		holds(harness_log_count(h, "the descriptor store is gone") <= (at->n_failed > 0), "it is said more than once, or of nothing");
		holds(run.k > 1 || harness_log_count(h, "the descriptor store is gone") == 1, "it is not said");
		harness_free(h);
	}
	holds(run.k > 4, "slabd keeps nothing");
}

/* Closes its socket, with objects idle in a sheaf and its segment mapped, and waits to be killed. */
static void
hang_up_and_stay(struct peer *me, void *arg)
{
	const struct harness *h = arg;
	struct raw raw;

	raw_attach(&raw, h->socket, "stays");
	raw_prefill(&raw, raw_cache_open(&raw, "k", 64, 0), 20);
	peer_tell(me, 'a');
	peer_await(me, 'c');
	close(raw.fd);
	peer_tell(me, 'c');
	peer_await(me, 'e');
}

/* Slabd looked whether a client maps its session still, and could not map it again itself: when the client dies nothing of it is lost. */
static void
fail_to_map_again(void)
{
	pid_t pid;

	h_runs = NULL;
	run.side = "slabd, mapping again";
	run.call = FAIL_mmap;
	run.error = ENOMEM;
	run.is_lasting = false;
	need_slabd();
	/* The private mapping, and the shared one. */
	for (run.k = 1; run.k <= 2; run.k++) {
		pid = harness_spawn(h_runs, hang_up_and_stay, h_runs);
		peer_await(harness_peer(h_runs, pid), 'a');
		fail_order(at, FAIL_mmap, run.k, ENOMEM, false);
		peer_tell(harness_peer(h_runs, pid), 'c');
		peer_await(harness_peer(h_runs, pid), 'c');
		holds(EVENTUALLY(at->n_failed == 1), "slabd has not looked");
		holds(harness_audit(h_runs).n_objects > 0, "slabd does not answer");
		harness_kill(h_runs, pid, SIGKILL);
		holds(EVENTUALLY(is_quiet(h_runs)), "its session is left");
		recount(h_runs, "after its death");
		clear(h_runs);
	}
	fail_none(at);
	drop_slabd();
}

int
main(int argc, char **argv)
{
	CU_pSuite suite;
	unsigned n_failures;

	setvbuf(stdout, NULL, _IOLBF, 0);
	seed = (unsigned)time(NULL);
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--all") == 0)
			does_all = true;
		else if (strncmp(argv[i], "--seed=", 7) == 0)
			seed = (unsigned)strtoul(argv[i] + 7, NULL, 0);
		else
			argv[1 + n_words++] = argv[i];
	}
	words = argv + 1;
	printf("seed %u\n", seed);
	if (!rig_init() || CU_initialize_registry() != CUE_SUCCESS)
		return 1;
	suite = harness_suite("shortage");
	CU_ADD_TEST(suite, fail_start);
	CU_ADD_TEST(suite, fail_slabd);
	CU_ADD_TEST(suite, fail_client);
	CU_ADD_TEST(suite, fail_ladder);
	CU_ADD_TEST(suite, fail_store);
	CU_ADD_TEST(suite, fail_to_map_again);
	CU_basic_set_mode(CU_BRM_VERBOSE);
	CU_basic_run_tests();
	printf("%u runs, in %u of them a call failed\n", n_runs_all, n_failed_all);
	n_failures = CU_get_number_of_failures() + CU_get_number_of_suites_failed();
	CU_cleanup_registry();
	return n_failures ? 1 : 0;
}
