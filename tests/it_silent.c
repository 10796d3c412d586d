/* SPDX-License-Identifier: Apache-2.0 */
/* A slabd that is stopped: frees do without it.  A program that closes the session's socket. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "tests/harness.h"

CU_pSuite it_silent_suite(void);

enum { N_OBJECTS = 300, N_BULK = 1 << 20, TIMEOUT_MS = 50 };

static struct slabc *
open_impatient(const struct harness *h)
{
	struct slabc_options options = SLABC_OPTIONS_INIT;
	struct slabc *c = NULL;

	options.socket = h->socket;
	options.timeout_ms = TIMEOUT_MS;
	REQUIRE(slabc_open(&c, &options) == 0);
	return c;
}

/* Small sheaves, or none: there is little room for frees. */
static struct slabc_cache *
open_narrow(struct slabc *c, uint32_t flags, uint32_t capacity)
{
	struct slabc_cache_options options = SLABC_CACHE_OPTIONS_INIT;
	struct slabc_cache *k = NULL;

	options.flags = flags;
	options.sheaf_capacity = capacity;
	options.max_cached = 1;
	REQUIRE(slabc_cache_open(c, "k", 64, &options, &k) == 0);
	return k;
}

static const uint32_t capacities[] = {SLABC_SHEAVES_NONE, 4};

/* By calls that leave the fast path: so what is owed is made good. */
static bool
is_all_given_back(struct harness *h, struct slabc_cache *k)
{
	void *p[16];

	for (int i = 0; i < 16; i++)
		p[i] = slabc_alloc(k);
	for (int i = 0; i < 16; i++)
		slabc_free(k, p[i]);
	return harness_audit(h).n_held == 0;
}

struct bulk {
	struct slabc_cache *k;
	void **pv;
	int r;
	bool is_told; /* the sentence is that of what went wrong first */
};

static void *
allocate(void *arg)
{
	struct bulk *bulk = arg;

	bulk->r = slabc_alloc_bulk(bulk->k, N_BULK, bulk->pv);
	bulk->is_told = strstr(slabc_last_error(), "longer than timeout_ms") != NULL;
	return NULL;
}

/* "n objects, or none": also when slabd falls silent amid the call. */
static void
it_bulk_undone_without_slabd(void)
{
	for (unsigned i = 0; i < 2; i++) {
		CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
		struct slabc *c = open_impatient(h);
		struct bulk bulk = {.k = open_narrow(c, 0, capacities[i]), .pv = calloc(N_BULK, sizeof(void *))};
		pthread_t thread;

		REQUIRE(bulk.pv && pthread_create(&thread, NULL, allocate, &bulk) == 0);
		CHECK(EVENTUALLY(harness_audit(h).n_held > N_OBJECTS));
		CHECK(kill(h->slabd, SIGSTOP) == 0);
		pthread_join(thread, NULL);
		CHECK(kill(h->slabd, SIGCONT) == 0);
		CHECK(bulk.r == -ETIMEDOUT && bulk.is_told);
		free(bulk.pv);
		CHECK(EVENTUALLY(is_all_given_back(h, bulk.k)));
		CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
		slabc_close(c);
	}
}

/* All frees succeed, and one at most waits; a second one is a double free; once slabd answers again all is given back. */
static void
check_frees(uint32_t flags, uint32_t capacity)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = open_impatient(h);
	struct slabc_cache *k = open_narrow(c, flags, capacity);
	void *p[N_OBJECTS];
	int64_t start;

	for (int i = 0; i < N_OBJECTS; i++)
		REQUIRE((p[i] = slabc_alloc(k)) != NULL);
	CHECK(kill(h->slabd, SIGSTOP) == 0);
	start = harness_now_ns();
	errno = 0;
	for (int i = 0; i < N_OBJECTS / 2; i++)
		slabc_free(k, p[i]);
	slabc_free_bulk(k, N_OBJECTS / 2, p + N_OBJECTS / 2);
	CHECK(errno == 0);
	CHECK(harness_now_ns() - start < (int64_t)TIMEOUT_MS * 1000000 * N_OBJECTS / 4);
	if (!(flags & SLABC_NO_OWNER)) {
		slabc_free(k, p[N_OBJECTS - 1]);
		CHECK(errno == EINVAL);
	}
	CHECK(kill(h->slabd, SIGCONT) == 0);
	CHECK(EVENTUALLY(is_all_given_back(h, k)));
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	slabc_close(c);
}

static void
it_frees_without_slabd(void)
{
	for (unsigned i = 0; i < 2; i++) {
		check_frees(0, capacities[i]);
		check_frees(SLABC_SHARED, capacities[i]);
		check_frees(SLABC_NO_OWNER, capacities[i]);
	}
	check_frees(SLABC_DEBUG, 4);
}

/* What is owed is had again without slabd; shrinking and closing give back what is left. */
static void
it_owed_is_used_again(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = open_impatient(h);
	struct slabc_cache *k = open_narrow(c, 0, 4);
	void *p[N_OBJECTS];

	for (int i = 0; i < N_OBJECTS; i++)
		REQUIRE((p[i] = slabc_alloc(k)) != NULL);
	CHECK(kill(h->slabd, SIGSTOP) == 0);
	slabc_free_bulk(k, N_OBJECTS, p);
	for (int i = 0; i < N_OBJECTS / 2; i++) {
		REQUIRE((p[i] = slabc_alloc(k)) != NULL);
		memset(p[i], i, 64);
	}
	slabc_free_bulk(k, N_OBJECTS / 2, p);
	CHECK(kill(h->slabd, SIGCONT) == 0);
	CHECK(slabc_cache_shrink(k) == 0);
	CHECK(harness_audit(h).n_held == 0);
	for (int i = 0; i < N_OBJECTS; i++)
		REQUIRE((p[i] = slabc_alloc(k)) != NULL);
	CHECK(kill(h->slabd, SIGSTOP) == 0);
	slabc_free_bulk(k, N_OBJECTS, p);
	CHECK(kill(h->slabd, SIGCONT) == 0);
	slabc_cache_close(k);
	CHECK(harness_audit(h).n_held == 0 && harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	slabc_close(c);
}

static void
free_and_wait(struct peer *me, void *arg)
{
	struct slabc *c = open_impatient(arg);
	struct slabc_cache *k = open_narrow(c, 0, SLABC_SHEAVES_NONE);
	void *p[N_OBJECTS];

	for (int i = 0; i < N_OBJECTS; i++)
		REQUIRE((p[i] = slabc_alloc(k)) != NULL);
	peer_tell(me, 'a');
	peer_await(me, 's');
	slabc_free_bulk(k, N_OBJECTS, p);
	peer_tell(me, 'f');
	peer_await(me, 'e');
}

/* A free is a free: what its maker owes when he is killed becomes no orphan. */
static void
it_owed_by_the_dead(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	pid_t pid = harness_spawn(h, free_and_wait, h);

	peer_await(harness_peer(h, pid), 'a');
	CHECK(harness_audit(h).n_held == N_OBJECTS);
	CHECK(kill(h->slabd, SIGSTOP) == 0);
	peer_tell(harness_peer(h, pid), 's');
	peer_await(harness_peer(h, pid), 'f');
	harness_kill(h, pid, SIGKILL);
	CHECK(kill(h->slabd, SIGCONT) == 0);
	harness_wait_reaped(h, pid);
	CHECK(harness_audit(h).n_held == 0 && harness_audit(h).n_orphans == 0 && harness_audit(h).n_lost == 0);
}

/* Another's object, by reference: the free is this client's from then on. */
static void
it_free_by_reference_without_slabd(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *a = open_impatient(h), *b = open_impatient(h);
	struct slabc_cache *ka = open_narrow(a, 0, SLABC_SHEAVES_NONE), *kb = open_narrow(b, 0, SLABC_SHEAVES_NONE);
	slabc_ref refs[N_OBJECTS];
	void *p[N_OBJECTS];

	for (int i = 0; i < N_OBJECTS; i++) {
		REQUIRE((p[i] = slabc_alloc(ka)) != NULL);
		REQUIRE((refs[i] = slabc_ref_of(a, p[i])) != 0);
	}
	slabc_free(kb, slabc_alloc(kb));
	REQUIRE(slabc_free_ref(b, refs[0]) == 0); /* b has its own handle */
	CHECK(kill(h->slabd, SIGSTOP) == 0);
	for (int i = 1; i < N_OBJECTS; i++) {
		CHECK(slabc_free_ref(b, refs[i]) == 0);
		CHECK(slabc_free_ref(a, refs[i]) == -ESTALE);
	}
	CHECK(kill(h->slabd, SIGCONT) == 0);
	slabc_close(b);
	slabc_close(a);
	CHECK(harness_audit(h).n_held == 0 && harness_audit(h).n_orphans == 0 && harness_audit(h).n_lost == 0);
}

/* The program has closed the session's socket, and its next one has that number: nothing is written into it, read from it, or closed. */
static void
it_socket_with_the_sessions_number(void)
{
	static const char text[] = "for the program";
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	int session = dup(STDIN_FILENO), pair[2], mine;
	struct slabc_cache *k;
	struct slabc *c;
	char buf[256];

	/* The lowest number that is free will be the socket's. */
	REQUIRE(session >= 0 && close(session) == 0);
	c = open_impatient(h);
	k = open_narrow(c, 0, 4);
	REQUIRE(slabc_alloc(k) != NULL);
	REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
	mine = pair[1];
	REQUIRE(dup2(pair[0], session) == session);
	REQUIRE(write(mine, text, sizeof text) == (ssize_t)sizeof text);
	for (int i = 0; i < 100000 && slabc_alloc(k); i++)
		continue;
	CHECK(errno == ENOTCONN && strstr(slabc_last_error(), "the program has closed descriptor"));
	slabc_close(c);
	CHECK(recv(mine, buf, sizeof buf, MSG_DONTWAIT) < 0 && errno == EAGAIN);
	CHECK(fcntl(session, F_GETFD) >= 0);
	CHECK(recv(session, buf, sizeof buf, MSG_DONTWAIT) == (ssize_t)sizeof text);
	close(session);
	close(pair[0]);
	close(mine);
	CHECK(EVENTUALLY(harness_audit(h).n_lost == 0));
}

struct waiter {
	struct slabc *c;
	struct slabc_cache *k;
	pid_t tid;
	int error;
};

static void *
open_one(void *arg)
{
	struct waiter *w = arg;

	atomic_write(&w->tid, (pid_t)syscall(SYS_gettid));
	w->error = -slabc_cache_open(w->c, "other", 64, NULL, &w->k);
	return NULL;
}

/* Has that thread of ours begun to wait in recvmsg()? */
static bool
is_receiving(pid_t tid)
{
	char path[64], said[64] = "";
	FILE *f;

	snprintf(path, sizeof path, "/proc/self/task/%d/syscall", tid);
	f = fopen(path, "r");
	if (!f)
		return false;
	if (!fgets(said, sizeof said, f))
		*said = '\0';
	fclose(f);
	return atol(said) == SYS_recvmsg;
}

static void
close_amid_a_wait(bool is_answered)
{
	static const char text[] = "for the program";
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	int session = dup(STDIN_FILENO), pair[2];
	struct slabc_options options = SLABC_OPTIONS_INIT;
	struct waiter w = {0};
	pthread_t thread;
	char buf[256];

	REQUIRE(session >= 0 && close(session) == 0);
	options.socket = h->socket;
	options.timeout_ms = 60000;
	REQUIRE(slabc_open(&w.c, &options) == 0);
	REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
	REQUIRE(write(pair[1], text, sizeof text) == (ssize_t)sizeof text);
	kill(h->slabd, SIGSTOP);
	REQUIRE(pthread_create(&thread, NULL, open_one, &w) == 0);
	CHECK(EVENTUALLY(atomic_read(&w.tid) && is_receiving(atomic_read(&w.tid))));
	REQUIRE(dup2(pair[0], session) == session);
	if (is_answered)
		kill(h->slabd, SIGCONT);
	pthread_join(thread, NULL);
	kill(h->slabd, SIGCONT);
	CHECK(w.error == ENOTCONN || (is_answered && w.error == 0));
	slabc_close(w.c);
	CHECK(recv(pair[1], buf, sizeof buf, MSG_DONTWAIT) < 0 && errno == EAGAIN);
	CHECK(recv(session, buf, sizeof buf, MSG_DONTWAIT) == (ssize_t)sizeof text);
	close(session);
	close(pair[0]);
	close(pair[1]);
}

/*
 * The same while a request waits: the answer comes from the socket that it was sent to, or the connection has ended; what has the number since is not
 * read from.
 */
static void
it_socket_closed_amid_a_wait(void)
{
	close_amid_a_wait(true);
	close_amid_a_wait(false);
}

static void
on_alarm(int number)
{
	(void)number;
}

/* A program whose timer ticks all the time has its timeout all the same. */
static void
it_signals_amid_a_wait(void)
{
	static const struct itimerval ticking = {{0, 2000}, {0, 2000}}, off;
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc_options options = SLABC_OPTIONS_INIT;
	struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART}, old;
	struct slabc_cache *k = NULL;
	struct slabc *c = NULL;
	struct timespec before, after;
	int64_t took_ms;

	options.socket = h->socket;
	options.timeout_ms = 1000;
	REQUIRE(slabc_open(&c, &options) == 0);
	sigaction(SIGALRM, &action, &old);
	kill(h->slabd, SIGSTOP);
	setitimer(ITIMER_REAL, &ticking, NULL);
	clock_gettime(CLOCK_MONOTONIC, &before);
	CHECK(slabc_cache_open(c, "k", 64, NULL, &k) == -ETIMEDOUT);
	clock_gettime(CLOCK_MONOTONIC, &after);
	setitimer(ITIMER_REAL, &off, NULL);
	kill(h->slabd, SIGCONT);
	sigaction(SIGALRM, &old, NULL);
	took_ms = (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000;
	CHECK(took_ms >= 1000 && took_ms < 5000);
	slabc_close(c);
}

/* What is owed when slabd dies is nothing lost for the next one, who gets it. */
static void
it_owed_over_a_restart(void)
{
	for (unsigned i = 0; i < 2; i++) {
		CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k");
		struct slabc *c = open_impatient(h);
		struct slabc_cache *k = open_narrow(c, 0, capacities[i]);
		pid_t pid = (pid_t)harness_status(h).pid;
		void *p[N_OBJECTS];
		int64_t start;

		for (int j = 0; j < N_OBJECTS; j++)
			REQUIRE(EVENTUALLY((p[j] = slabc_alloc(k)) != NULL));
		/* The keeper, too: nobody starts the next. */
		REQUIRE(kill(h->slabd, SIGSTOP) == 0 && kill(pid, SIGKILL) == 0);
		start = harness_now_ns();
		errno = 0;
		for (int j = 0; j < N_OBJECTS; j++)
			slabc_free(k, p[j]);
		CHECK(errno == 0);
		CHECK(harness_now_ns() - start < (int64_t)TIMEOUT_MS * 1000000 * N_OBJECTS / 4);
		REQUIRE(kill(h->slabd, SIGCONT) == 0);
		harness_wait_kept(h, pid);
		CHECK(harness_audit(h).n_held > 0 && harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
		CHECK(EVENTUALLY(is_all_given_back(h, k)));
		CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
		slabc_close(c);
	}
}

/* A session that the next slabd has, and whose client has not come back yet, does not go for silent newcomers of its user. */
static void
it_adopted_session_is_not_silent(void)
{
	enum { N_SILENT = 300 };
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k");
	struct slabc *c = open_impatient(h);
	struct slabc_cache *k = open_narrow(c, 0, 4);
	int silent[N_SILENT];

	harness_kill_kept(h);
	for (int i = 0; i < N_SILENT; i++)
		silent[i] = raw_connect(h->socket);
	CHECK(harness_status(h).n_sessions == 1);
	CHECK(EVENTUALLY(slabc_alloc(k) != NULL));
	for (int i = 0; i < N_SILENT; i++)
		if (silent[i] >= 0)
			close(silent[i]);
	slabc_close(c);
}

CU_pSuite
it_silent_suite(void)
{
	CU_pSuite suite = harness_suite("silent");

	CU_ADD_TEST(suite, it_bulk_undone_without_slabd);
	CU_ADD_TEST(suite, it_frees_without_slabd);
	CU_ADD_TEST(suite, it_owed_is_used_again);
	CU_ADD_TEST(suite, it_owed_by_the_dead);
	CU_ADD_TEST(suite, it_free_by_reference_without_slabd);
	CU_ADD_TEST(suite, it_socket_with_the_sessions_number);
	CU_ADD_TEST(suite, it_socket_closed_amid_a_wait);
	CU_ADD_TEST(suite, it_signals_amid_a_wait);
	CU_ADD_TEST(suite, it_owed_over_a_restart);
	CU_ADD_TEST(suite, it_adopted_session_is_not_silent);
	return suite;
}
