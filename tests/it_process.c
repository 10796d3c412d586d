/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which process is a session's, and when that has ended (design.md, I5): exec, programs that close descriptors they do not know, numbers that are used
 * again or mean other processes elsewhere, children that keep the socket.  Also with a slabd that is killed in between.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "tests/harness.h"

CU_pSuite it_process_suite(void);

enum { N_HELD = 50, OBJECT_BYTES = 64 };

/* What a client tells of itself. */
struct identity {
	pid_t pid; /* as it sees it */
	uint32_t client_id;
	uint64_t token; /* raw ones */
};

static struct slabc *
hold(const struct harness *h, const char *label, struct slabc_cache **kp)
{
	struct slabc *c = harness_open(h, label);

	*kp = harness_open_cache(c, "k", OBJECT_BYTES, SLABC_RECLAIM);
	for (unsigned i = 0; i < N_HELD; i++)
		CHECK(slabc_alloc(*kp) != NULL);
	return c;
}

/* The descriptor of a session's socket: the only one of its kind that the process has from a number on; -1: none. */
static int
find_socket(void)
{
	char path[64], link[64];

	for (int fd = 3; fd < 256; fd++) {
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		if (readlink(path, link, sizeof link) > 7 && strncmp(link, "socket:", 7) == 0)
			return fd;
	}
	return -1;
}

static bool
is_there(struct harness *h, uint32_t client_id)
{
	struct proto_clients_reply client = harness_client_id(h, client_id);

	return client.client && strcmp(client.state, "dead") != 0;
}

static void
check_whole(struct harness *h, uint64_t n_held)
{
	struct proto_audit_reply audit = harness_audit(h);

	CHECK(audit.n_held == n_held);
	CHECK(audit.n_lost == 0 && audit.n_doubled == 0 && audit.n_undecided == 0);
}

/* The keeper stops, and slabd dies; nobody starts the next before go_on(). Its pid. */
static pid_t
stop_and_kill(struct harness *h)
{
	pid_t pid = (pid_t)harness_status(h).pid;

	/* What the keeper was sent it has. */
	CHECK(harness_audit(h).n_lost == 0);
	REQUIRE(kill(h->slabd, SIGSTOP) == 0 && kill(pid, SIGKILL) == 0);
	return pid;
}

static void
go_on(struct harness *h, pid_t before)
{
	REQUIRE(kill(h->slabd, SIGCONT) == 0);
	harness_wait_kept(h, before);
}

/* exec */

struct exec_task {
	struct harness *h;
	bool is_passed_on; /* the socket, to the new program */
	bool is_by_thread;
	struct peer *me;
};

static void *
become_cat(void *arg)
{
	struct exec_task *task = arg;

	dup2(task->me->in, STDIN_FILENO);
	dup2(task->me->out, STDOUT_FILENO);
	execlp("cat", "cat", (char *)NULL);
	_exit(127);
}

static void
hold_then_exec(struct peer *me, void *arg)
{
	struct exec_task *task = arg;
	struct slabc_cache *k;
	pthread_t thread;

	hold(task->h, "will exec", &k);
	task->me = me;
	if (task->is_passed_on)
		CHECK(fcntl(find_socket(), F_SETFD, 0) == 0);
	peer_tell(me, 'h');
	peer_await(me, 'e');
	if (task->is_by_thread && pthread_create(&thread, NULL, become_cat, task) == 0)
		pause();
	become_cat(task);
}

/* It is cat by now: it says what it is told. */
static void
wait_for_cat(struct harness *h, pid_t pid)
{
	peer_tell(harness_peer(h, pid), 'e');
	peer_tell(harness_peer(h, pid), 'c');
	peer_await(harness_peer(h, pid), 'c');
}

/* By another thread than the first, whose pid the process has all the same. */
static void
it_exec_by_a_thread(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct exec_task task = {.h = h, .is_by_thread = true};
	pid_t pid = harness_spawn(h, hold_then_exec, &task);

	peer_await(harness_peer(h, pid), 'h');
	check_whole(h, N_HELD);
	wait_for_cat(h, pid);
	harness_wait_reaped(h, pid);
	check_whole(h, 0);
	CHECK(waitpid(pid, NULL, WNOHANG) == 0);
	harness_kill(h, pid, SIGKILL);
}

/* A program that was passed the socket keeps the session as it was, until it ends; it cannot be told from one that works on. */
static void
it_exec_with_the_socket(void)
{
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k");
	struct exec_task task = {.h = h, .is_passed_on = true};
	pid_t pids[2];

	for (int i = 0; i < 2; i++) {
		pids[i] = harness_spawn(h, hold_then_exec, &task);
		peer_await(harness_peer(h, pids[i]), 'h');
		wait_for_cat(h, pids[i]);
		CHECK(strcmp(harness_client(h, pids[i]).state, "live") == 0);
	}
	check_whole(h, 2 * N_HELD);
	harness_kill(h, pids[0], SIGKILL);
	harness_wait_reaped(h, pids[0]);
	CHECK(strcmp(harness_client(h, pids[1]).state, "live") == 0);
	check_whole(h, N_HELD);
	/* The next slabd has no socket of its, and finds that nobody maps its session. */
	harness_kill_kept(h);
	harness_wait_reaped(h, pids[1]);
	check_whole(h, 0);
	CHECK(waitpid(pids[1], NULL, WNOHANG) == 0);
	harness_kill(h, pids[1], SIGKILL);
}

/* Between two slabds. */
static void
it_exec_without_slabd(void)
{
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k");
	struct exec_task task = {.h = h};
	pid_t pid = harness_spawn(h, hold_then_exec, &task), before;

	peer_await(harness_peer(h, pid), 'h');
	check_whole(h, N_HELD);
	before = stop_and_kill(h);
	wait_for_cat(h, pid);
	go_on(h, before);
	harness_wait_reaped(h, pid);
	check_whole(h, 0);
	CHECK(waitpid(pid, NULL, WNOHANG) == 0);
	harness_kill(h, pid, SIGKILL);
}

/* Children that exec are others. */
static void
run_others(struct peer *me, void *arg)
{
	struct exec_task *task = arg;
	struct slabc_cache *k;
	struct slabc *c = hold(task->h, "runs others", &k);
	void *p;

	for (int i = 0; i < 10; i++) {
		CHECK(system("exec true") == 0);
		CHECK((p = slabc_alloc(k)) != NULL && slabc_cache_shrink(k) == 0);
		slabc_free(k, p);
	}
	peer_tell(me, 'd');
	peer_await(me, 'e');
	slabc_close(c);
}

static void
it_children_exec(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct exec_task task = {.h = h};
	pid_t pid = harness_spawn(h, run_others, &task);

	peer_await(harness_peer(h, pid), 'd');
	CHECK(strcmp(harness_client(h, pid).state, "live") == 0);
	check_whole(h, N_HELD);
	CHECK(harness_status(h).n_ended_ever == 0);
	peer_tell(harness_peer(h, pid), 'e');
	harness_join(h, pid);
	check_whole(h, 0);
}

/* close_range(3, ~0) */

struct close_task {
	struct harness *h;
};

/* All but the two pipes, that become 0 and 1. */
static void
close_all(struct peer *me)
{
	REQUIRE(dup2(me->in, 0) == 0 && dup2(me->out, 1) == 1);
	me->in = 0;
	me->out = 1;
	REQUIRE(close_range(3, ~0u, 0) == 0);
	CHECK(find_socket() < 0);
}

static void
close_all_and_go_on(struct peer *me, void *arg)
{
	struct close_task *task = arg;
	struct slabc_cache *k, *other;
	struct slabc *c = hold(task->h, "closes all", &k);
	void *p = slabc_alloc(k), *q;
	int number = find_socket(), pair[2];
	char unwanted;

	close_all(me);
	/* Its own descriptors come to have the number, and are of the same kind: nobody but it may write, read or close them. */
	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
	CHECK((number == pair[0] || dup2(pair[0], number) == number) && pair[1] != number && send(pair[1], "x", 1, 0) == 1);
	peer_tell(me, 'c');
	peer_await(me, 'u');
	/* What is cached needs nobody. */
	CHECK((q = slabc_alloc(k)) != NULL);
	slabc_free(k, q);
	peer_tell(me, 'u');
	peer_await(me, 'a');
	CHECK(slabc_cache_open(c, "other", 64, NULL, &other) == 0 && (q = slabc_alloc(other)) != NULL);
	slabc_free(other, q);
	slabc_free(k, p);
	peer_tell(me, 'd');
	peer_await(me, 'e');
	slabc_close(c);
	CHECK(recv(number, &unwanted, 1, MSG_DONTWAIT) == 1);
	CHECK(recv(pair[1], &unwanted, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
}

/* It goes on from its sheaves, and takes its session up again when it needs slabd: the one that there was, or the next. */
static void
closes_all(bool is_slabd_killed)
{
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k");
	struct close_task task = {.h = h};
	pid_t pid = harness_spawn(h, close_all_and_go_on, &task);
	struct peer *peer = harness_peer(h, pid);
	pid_t before = 0;

	peer_await(peer, 'c');
	CHECK(EVENTUALLY(strcmp(harness_client(h, pid).state, "detached") == 0));
	if (is_slabd_killed)
		before = stop_and_kill(h);
	peer_tell(peer, 'u');
	peer_await(peer, 'u');
	if (is_slabd_killed)
		go_on(h, before);
	CHECK(strcmp(harness_client(h, pid).state, "detached") == 0);
	check_whole(h, N_HELD + 1);
	peer_tell(peer, 'a');
	peer_await(peer, 'd');
	CHECK(strcmp(harness_client(h, pid).state, "live") == 0);
	check_whole(h, N_HELD);
	peer_tell(peer, 'e');
	harness_join(h, pid);
	harness_wait_reaped(h, pid);
	check_whole(h, 0);
}

static void
it_closes_all(void)
{
	closes_all(false);
}

static void
it_closes_all_and_slabd_is_killed(void)
{
	closes_all(true);
}

/* Needs slabd all the while. */
static void *
refill(void *arg)
{
	struct slabc_cache *k = arg;
	void *p[200];

	for (unsigned i = 0; i < 400; i++) {
		if (slabc_alloc_bulk(k, 200, p) < 0) {
			fprintf(stderr, "    %s\n", slabc_last_error());
			return NULL;
		}
		slabc_free_bulk(k, 200, p);
		if (slabc_cache_shrink(k) < 0) {
			fprintf(stderr, "    %s\n", slabc_last_error());
			return NULL;
		}
	}
	return k;
}

static void
close_all_amid_requests(struct peer *me, void *arg)
{
	struct close_task *task = arg;
	struct slabc_cache *k;
	struct slabc *c = hold(task->h, "closes all the time", &k);
	void *result = NULL;
	pthread_t thread;

	close_all(me);
	REQUIRE(pthread_create(&thread, NULL, refill, k) == 0);
	while (pthread_tryjoin_np(thread, &result) != 0) {
		harness_pause();
		CHECK(close_range(3, ~0u, 0) == 0);
	}
	CHECK(result == k);
	slabc_close(c);
}

/* Also amid another thread's requests: each of them is answered. */
static void
it_closes_all_amid_requests(void)
{
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k");
	struct close_task task = {.h = h};
	pid_t pid = harness_spawn(h, close_all_amid_requests, &task);

	harness_join(h, pid);
	CHECK(harness_log_count(h, "has taken its session up again") > 0);
	harness_wait_reaped(h, pid);
	check_whole(h, 0);
}

/* Who asks for his session again when slabd has found that it has ended, and has not reaped it yet: it is no more. */
static void
it_resume_comes_too_late(void)
{
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k");
	pid_t slabd = (pid_t)harness_status(h).pid;
	union proto_request request = {0};
	union proto_reply reply;
	struct raw raw;
	int fd;

	raw_attach(&raw, h->socket, "too late");
	raw_prefill(&raw, raw_cache_open(&raw, "k", OBJECT_BYTES, SLABC_RECLAIM), N_HELD);
	fd = raw_connect(h->socket);
	REQUIRE(fd >= 0 && raw_hello(fd) == PROTO_STATUS_OK);
	/* Slabd sees both at once. */
	REQUIRE(kill(slabd, SIGSTOP) == 0);
	REQUIRE(munmap(raw.session, raw.attach.session_bytes) == 0 && close(raw.fd) == 0);
	request.resume = (struct proto_resume_request){.client_id = raw.attach.client_id, .token = raw.attach.token};
	REQUIRE(raw_send(fd, PROTO_OP_RESUME, 7, &request) == 0 && raw_send(fd, PROTO_OP_BYE, 8, &request) == 0);
	REQUIRE(kill(slabd, SIGCONT) == 0);
	CHECK(raw_receive(fd, PROTO_OP_RESUME, 7, &reply, NULL) == PROTO_STATUS_STALE);
	close(fd);
	CHECK(EVENTUALLY(!is_there(h, raw.attach.client_id)));
	check_whole(h, 0);
	CHECK((pid_t)harness_status(h).pid == slabd);
	/* raw_detach() of what is left. */
	REQUIRE((raw.session = mmap(NULL, raw.attach.session_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) != MAP_FAILED);
	raw.fd = dup(STDERR_FILENO);
	raw_detach(&raw);
}

/* Numbers */

/* A child with a number of one's choice; -1: not here. It is none of the library's business that there is no handler of forks. */
static pid_t
clone_as(pid_t pid)
{
	struct clone_args args = {.exit_signal = SIGCHLD, .set_tid = (uintptr_t)&pid, .set_tid_size = 1};

	return (pid_t)syscall(SYS_clone3, &args, sizeof args);
}

/*
 * The parent of both: makes the first, ends it when it is told so, and makes the second in its place, under the number of the first.  'n': it cannot be done.
 * Each is a raw client, and says who it is.  The second is told the identity of the first, and asks for its session before it opens one.
 */
struct twin_task {
	struct harness *h;
	bool is_thief;
};

static int
ask_resume(const struct harness *h, const struct identity *id)
{
	union proto_request request = {.resume = {.client_id = id->client_id, .token = id->token}};
	union proto_reply reply;
	int fd = raw_connect(h->socket), status;

	REQUIRE(fd >= 0 && raw_hello(fd) == 0);
	status = raw_call(fd, PROTO_OP_RESUME, &request, &reply, NULL);
	close(fd);
	return status;
}

static void
be_twin(struct peer *me, const struct harness *h, const char *label, const struct identity *other)
{
	struct identity id = {.pid = getpid()};
	int status;
	struct raw raw;

	if (other) {
		status = ask_resume(h, other);
		peer_put(me, &status, sizeof status);
	}
	raw_attach(&raw, h->socket, label);
	raw_prefill(&raw, raw_cache_open(&raw, "k", OBJECT_BYTES, SLABC_RECLAIM), N_HELD);
	id.client_id = raw.attach.client_id;
	id.token = raw.attach.token;
	peer_put(me, &id, sizeof id);
	pause();
	_exit(0);
}

static void
raise_twins(struct peer *me, void *arg)
{
	struct twin_task *task = arg;
	struct identity first;
	pid_t pid = fork(), second;

	CHECK(pid >= 0);
	if (pid == 0)
		be_twin(me, task->h, "first", NULL);
	/* Back from the test, when the time has come. */
	peer_get(me, &first, sizeof first);
	CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
	second = clone_as(pid);
	if (second == 0)
		be_twin(me, task->h, "second", task->is_thief ? &first : NULL);
	peer_tell(me, second == pid ? 'y' : 'n');
	peer_await(me, 'e');
	if (second > 0)
		CHECK(kill(second, SIGKILL) == 0 && waitpid(second, NULL, 0) == second);
}

/* The number is the second one's before slabd hears of the first one's death: the first is reaped, and the second is not taken for it. */
static void
it_pid_is_used_again(void)
{
	for (int n_threads = 1; n_threads <= 2; n_threads++) {
		CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --threads=%d", n_threads);
		struct twin_task task = {.h = h};
		pid_t pid = harness_spawn(h, raise_twins, &task);
		struct peer *peer = harness_peer(h, pid);
		struct identity first, second;
		char answer;

		peer_get(peer, &first, sizeof first);
		REQUIRE(kill(h->slabd, SIGSTOP) == 0);
		peer_put(peer, &first, sizeof first);
		peer_get(peer, &answer, 1);
		REQUIRE(kill(h->slabd, SIGCONT) == 0);
		if (answer != 'y') {
			skip("a process cannot be given a number here");
		} else {
			peer_get(peer, &second, sizeof second);
			CHECK(second.pid == first.pid && second.client_id != first.client_id);
			CHECK(EVENTUALLY(!is_there(h, first.client_id)));
			CHECK(is_there(h, second.client_id) && harness_client_id(h, second.client_id).pid == (uint32_t)second.pid);
			CHECK(harness_status(h).n_sessions == 1 && harness_audit(h).n_out == N_HELD);
		}
		peer_tell(peer, 'e');
		harness_join(h, pid);
		CHECK(EVENTUALLY(harness_status(h).n_sessions == 0));
		check_whole(h, 0);
	}
}

/* And while there is no slabd: the next one tells them apart, and does not give the second the session of the first, though it knows the token. */
static void
it_pid_is_used_again_meanwhile(void)
{
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k");
	struct twin_task task = {.h = h, .is_thief = true};
	pid_t pid = harness_spawn(h, raise_twins, &task), before;
	struct peer *peer = harness_peer(h, pid);
	struct identity first, second;
	int status = 0;
	char answer;

	peer_get(peer, &first, sizeof first);
	before = stop_and_kill(h);
	peer_put(peer, &first, sizeof first);
	peer_get(peer, &answer, 1);
	go_on(h, before);
	if (answer != 'y') {
		skip("a process cannot be given a number here");
	} else {
		peer_get(peer, &status, sizeof status);
		CHECK(status == PROTO_STATUS_STALE);
		peer_get(peer, &second, sizeof second);
		CHECK(second.pid == first.pid && second.client_id != first.client_id);
		CHECK(EVENTUALLY(!is_there(h, first.client_id)));
		CHECK(is_there(h, second.client_id));
		CHECK(harness_audit(h).n_out == N_HELD);
	}
	peer_tell(peer, 'e');
	harness_join(h, pid);
	CHECK(EVENTUALLY(harness_status(h).n_sessions == 0));
	check_whole(h, 0);
}

/* PID namespaces */

/* In a namespace of its own, where it is number 1. */
static void
live_elsewhere(struct peer *me, void *arg)
{
	struct twin_task *task = arg;
	int status = 0;
	pid_t pid;

	if (unshare(CLONE_NEWPID) < 0) {
		peer_tell(me, 'n');
		return;
	}
	peer_tell(me, 'y');
	pid = fork();
	if (pid == 0)
		be_twin(me, task->h, "elsewhere", NULL);
	CHECK(pid > 0);
	peer_put(me, &pid, sizeof pid);
	CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

struct elsewhere {
	pid_t parent, pid;
	struct identity id;
};

static bool
elsewhere_start(struct harness *h, struct twin_task *task, struct elsewhere *e)
{
	struct peer *peer;
	char answer;

	e->parent = harness_spawn(h, live_elsewhere, task);
	peer = harness_peer(h, e->parent);
	peer_get(peer, &answer, 1);
	if (answer == 'n')
		harness_join(h, e->parent);
	if (answer == 'n' || !CHECK(answer == 'y'))
		return false;
	/* Parent and child write as they come. */
	peer_get(peer, &e->pid, sizeof e->pid);
	peer_get(peer, &e->id, sizeof e->id);
	return true;
}

static void
elsewhere_kill(struct harness *h, const struct elsewhere *e)
{
	CHECK(kill(e->pid, SIGKILL) == 0);
	harness_join(h, e->parent);
}

/* Two that are both number 1 where they live: the right one is reaped.  slabd shows them by the numbers that they have where it lives. */
static void
it_equal_pids_in_two_namespaces(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct twin_task task = {.h = h};
	struct elsewhere e[2];

	if (!elsewhere_start(h, &task, &e[0])) {
		skip_without("PID namespaces");
		return;
	}
	REQUIRE(elsewhere_start(h, &task, &e[1]));
	for (int i = 0; i < 2; i++) {
		CHECK(e[i].id.pid == 1);
		CHECK(harness_client_id(h, e[i].id.client_id).pid == (uint32_t)e[i].pid);
	}
	CHECK(harness_audit(h).n_out == 2 * N_HELD);
	elsewhere_kill(h, &e[1]);
	CHECK(EVENTUALLY(!is_there(h, e[1].id.client_id)));
	CHECK(is_there(h, e[0].id.client_id));
	CHECK(harness_audit(h).n_out == N_HELD);
	elsewhere_kill(h, &e[0]);
	CHECK(EVENTUALLY(!is_there(h, e[0].id.client_id)));
	check_whole(h, 0);
}

/* The process under the keeper, by the number that it has here. */
static pid_t
child_of(pid_t parent)
{
	char path[64];
	int pid = 0;
	FILE *file;

	snprintf(path, sizeof path, "/proc/%d/task/%d/children", parent, parent);
	file = fopen(path, "re");
	CHECK(file && fscanf(file, "%d", &pid) == 1);
	if (file)
		fclose(file);
	return pid;
}

/* The keeper is number 1 of a namespace of its own; NULL: there are none. */
static struct harness *
keeper_elsewhere(void)
{
	int here = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
	struct harness *h;

	REQUIRE(here >= 0);
	if (unshare(CLONE_NEWPID) < 0) {
		close(here);
		return NULL;
	}
	h = harness_keeper(NULL, "--page-kind=4k");
	REQUIRE(setns(here, CLONE_NEWPID) == 0);
	close(here);
	h->n_fds_before = harness_count_fds(getpid()) - (h->monitor >= 0);
	return h;
}

struct thief_task {
	struct harness *h;
	struct identity victim;
};

static void
be_raw(struct peer *me, void *arg)
{
	struct thief_task *task = arg;

	be_twin(me, task->h, "raw", NULL);
}

static void
steal(struct peer *me, void *arg)
{
	struct thief_task *task = arg;

	(void)me;
	CHECK(ask_resume(task->h, &task->victim) == PROTO_STATUS_ACCESS);
}

/*
 * To a slabd in a PID namespace of its own all that live outside have no number: the right one is reaped, each takes up its own session with the next slabd,
 * and nobody another's, though he knows its token.
 */
static void
it_slabd_sees_no_pids(void)
{
	CLEANUP(harness_free) struct harness *h = keeper_elsewhere();
	struct thief_task task = {.h = h};
	struct identity id[2];
	struct slabc_cache *k;
	struct slabc *c;
	pid_t pids[2], before;

	if (!h) {
		skip_without("PID namespaces");
		return;
	}
	c = hold(h, "library", &k);
	for (int i = 0; i < 2; i++) {
		pids[i] = harness_spawn(h, be_raw, &task);
		peer_get(harness_peer(h, pids[i]), &id[i], sizeof id[i]);
		CHECK(harness_client_id(h, id[i].client_id).pid == 0);
	}
	harness_kill(h, pids[1], SIGKILL);
	CHECK(EVENTUALLY(!is_there(h, id[1].client_id)));
	CHECK(is_there(h, id[0].client_id) && is_there(h, slabc_client_id(c)));
	check_whole(h, N_HELD);
	before = (pid_t)harness_status(h).pid;
	REQUIRE(kill(child_of(h->slabd), SIGKILL) == 0);
	harness_wait_kept(h, before);
	task.victim = id[0];
	harness_join(h, harness_spawn(h, steal, &task));
	CHECK(strcmp(harness_client_id(h, id[0].client_id).state, "detached") == 0);
	CHECK(slabc_cache_shrink(k) == 0);
	CHECK(strcmp(harness_client_id(h, slabc_client_id(c)).state, "live") == 0);
	harness_kill(h, pids[0], SIGKILL);
	CHECK(EVENTUALLY(!is_there(h, id[0].client_id)));
	slabc_close(c);
	check_whole(h, 0);
}

/* Children */

static void
die_before_a_child(struct peer *me, void *arg)
{
	struct close_task *task = arg;
	struct slabc_cache *k, *mine;
	struct slabc *c = hold(task->h, "dies first", &k);
	uint32_t id = slabc_client_id(c);
	struct pollfd p = {.events = POLLIN};

	peer_put(me, &id, sizeof id);
	if (fork() > 0)
		pause();
	p.fd = find_socket();
	CHECK(p.fd >= 0);
	peer_tell(me, 'c');
	peer_await(me, 'd');
	/* Its parent is dead: slabd has closed the socket that it has inherited. */
	CHECK(poll(&p, 1, HARNESS_PATIENCE_MS) == 1 && p.revents & POLLHUP);
	errno = 0;
	CHECK(slabc_alloc(k) == NULL && errno == ENOTCONN && strstr(slabc_last_error(), "fork"));
	CHECK(slabc_cache_shrink(k) == -ENOTCONN);
	slabc_close(c);
	c = hold(task->h, "its own", &mine);
	slabc_close(c);
	peer_tell(me, 'o');
	_exit(0);
}

/* The parent is reaped at once, though its child has the socket still, which goes on with a session of its own. */
static void
it_child_outlives_its_parent(void)
{
	enum { N_ROUNDS = 20, LIMIT_NS = 10000000, ANY_LIMIT_NS = 1000000000 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct close_task task = {.h = h};
	int64_t best = ANY_LIMIT_NS;

	for (int i = 0; i < N_ROUNDS; i++) {
		pid_t pid = harness_spawn(h, die_before_a_child, &task);
		struct peer *peer = harness_peer(h, pid);
		int64_t start, took;
		uint32_t id;

		peer_get(peer, &id, sizeof id);
		peer_await(peer, 'c');
		check_whole(h, N_HELD);
		start = harness_now_ns();
		REQUIRE(kill(pid, SIGKILL) == 0);
		while (is_there(h, id) && harness_now_ns() - start < ANY_LIMIT_NS)
			continue;
		took = harness_now_ns() - start;
		CHECK(took < ANY_LIMIT_NS);
		best = took < best ? took : best;
		harness_kill(h, pid, SIGKILL);
		check_whole(h, 0);
		peer_tell(peer, 'd');
		peer_await(peer, 'o');
	}
	printf(" %.1f ms ", (double)best / 1e6);
	CHECK(best <= LIMIT_NS);
	check_whole(h, 0);
}

CU_pSuite
it_process_suite(void)
{
	CU_pSuite suite = harness_suite("process");

	CU_ADD_TEST(suite, it_exec_by_a_thread);
	CU_ADD_TEST(suite, it_exec_with_the_socket);
	CU_ADD_TEST(suite, it_exec_without_slabd);
	CU_ADD_TEST(suite, it_children_exec);
	CU_ADD_TEST(suite, it_closes_all);
	CU_ADD_TEST(suite, it_closes_all_and_slabd_is_killed);
	CU_ADD_TEST(suite, it_closes_all_amid_requests);
	CU_ADD_TEST(suite, it_resume_comes_too_late);
	CU_ADD_TEST(suite, it_pid_is_used_again);
	CU_ADD_TEST(suite, it_pid_is_used_again_meanwhile);
	CU_ADD_TEST(suite, it_equal_pids_in_two_namespaces);
	CU_ADD_TEST(suite, it_slabd_sees_no_pids);
	CU_ADD_TEST(suite, it_child_outlives_its_parent);
	return suite;
}
