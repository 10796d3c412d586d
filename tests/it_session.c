/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: who may open one, what each refusal says, and when a session ends (design.md I5) and when it does not. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/codec.h"
#include "tests/harness.h"

CU_pSuite it_session_suite(void);

static int
try_open(const char *path, const char *arena)
{
	struct slabc_options options = SLABC_OPTIONS_INIT;
	struct slabc *c = NULL;
	int r;

	options.socket = path;
	options.arena = arena;
	r = slabc_open(&c, &options);
	if (r == 0)
		slabc_close(c);
	return r;
}

/* A session is there from slabc_open() to slabc_close(), under its label, and not an instant longer. */
static void
it_open_and_close(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "a label");
	struct proto_clients_reply client = harness_client(h, getpid());

	CHECK(strcmp(client.label, "a label") == 0);
	CHECK(strcmp(client.state, "live") == 0);
	CHECK(client.client_id == slabc_client_id(c));
	CHECK(client.uid == getuid());
	CHECK(harness_status(h).n_sessions == 1);
	slabc_close(c);
	slabc_close(NULL);
	CHECK(harness_status(h).n_sessions == 0);
	CHECK(harness_status(h).n_ended_ever == 1);
}

/* A path at which there is nothing: ENOENT, and the sentence has the path. */
static void
it_wrong_path_is_named(void)
{
	CHECK(try_open("/tmp/there is no slabd here", NULL) == -ENOENT);
	CHECK(strstr(slabc_last_error(), "/tmp/there is no slabd here") != NULL);
}

static void
open_as_nobody(struct peer *me, void *arg)
{
	struct harness *h = arg;

	(void)me;
	CHECK(setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
	CHECK(try_open(h->socket, NULL) == -EACCES);
	CHECK(strstr(slabc_last_error(), h->socket) != NULL);
}

/* The socket's mode decides who may open a session. */
static void
it_no_permission(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");

	if (geteuid() != 0) {
		skip("only root may become another user");
		return;
	}
	CHECK(chmod(h->socket, 0600) == 0);
	harness_join(h, harness_spawn(h, open_as_nobody, h));
}

/* A socket that nobody listens on: ECONNREFUSED, not a hang. */
static void
it_nobody_listens(void)
{
	CLEANUP(harness_free) struct harness *h = harness_new();
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof address.sun_path, "%s", h->socket);
	CHECK(bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
	close(fd);
	CHECK(try_open(h->socket, NULL) == -ECONNREFUSED);
	CHECK(strstr(slabc_last_error(), h->socket) != NULL);
}

/* Another protocol version is refused in a sentence with both numbers; another layout in one with both hashes. */
static void
it_other_versions_are_refused_by_name(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	union proto_request request = {.hello = {.version = PROTO_VERSION + 7, .layout_hash = layout_hash, .library = "some library"}};
	char sentence[PROTO_SENTENCE_BYTES], number[40];
	union proto_reply reply;
	int fd = raw_connect(h->socket);

	CHECK(raw_call(fd, PROTO_OP_HELLO, &request, &reply, sentence) == PROTO_STATUS_VERSION);
	snprintf(number, sizeof number, "version %d,", PROTO_VERSION);
	CHECK(strstr(sentence, number) != NULL);
	snprintf(number, sizeof number, "version %d", PROTO_VERSION + 7);
	CHECK(strstr(sentence, number) != NULL);
	CHECK(strstr(sentence, "some library") != NULL);

	request.hello.version = PROTO_VERSION;
	request.hello.layout_hash = layout_hash + 1;
	CHECK(raw_call(fd, PROTO_OP_HELLO, &request, &reply, sentence) == PROTO_STATUS_LAYOUT);
	snprintf(number, sizeof number, "%016llx", (unsigned long long)layout_hash);
	CHECK(strstr(sentence, number) != NULL);
	snprintf(number, sizeof number, "%016llx", (unsigned long long)layout_hash + 1);
	CHECK(strstr(sentence, number) != NULL);
	/* Neither has let it in. */
	CHECK(raw_call(fd, PROTO_OP_STATUS, &request, &reply, sentence) == PROTO_STATUS_STATE);
	close(fd);
}

/* An arena that is not there is refused in a sentence that names it and the one there is. */
static void
it_unknown_arena(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");

	CHECK(try_open(h->socket, "nowhere") == -ENOENT);
	CHECK(strstr(slabc_last_error(), "'nowhere'") != NULL);
	CHECK(strstr(slabc_last_error(), "'default'") != NULL);
}

/* One connection, one session; and the first one is unharmed by the second try. */
static void
it_second_attach_is_refused(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	union proto_request request = {.attach = {.arena = "default", .label = "twice"}};
	union proto_reply reply;
	struct raw raw;

	raw_attach(&raw, h->socket, "twice");
	CHECK(raw_call(raw.fd, PROTO_OP_ATTACH, &request, &reply, NULL) == PROTO_STATUS_STATE);
	CHECK(harness_status(h).n_sessions == 1);
	CHECK(raw_cache_open(&raw, "k", 64, 0) == 1);
	raw_detach(&raw);
}

/* Before HELLO nothing is done; before ATTACH nothing of a session's. Both are answered, not hung up on. */
static void
it_order_of_calls(void)
{
	static const enum proto_op ops[] = {PROTO_OP_ATTACH, PROTO_OP_CACHE_OPEN, PROTO_OP_CACHE_CLOSE, PROTO_OP_REFILL, PROTO_OP_FLUSH,
		PROTO_OP_FAULT, PROTO_OP_STATUS, PROTO_OP_CACHES, PROTO_OP_CLIENTS, PROTO_OP_AUDIT, PROTO_OP_BYE};
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	union proto_request request = {0};
	union proto_reply reply;
	int fd = raw_connect(h->socket);

	for (unsigned i = 0; i < sizeof ops / sizeof ops[0]; i++)
		CHECK(raw_call(fd, ops[i], &request, &reply, NULL) == PROTO_STATUS_STATE);
	CHECK(raw_hello(fd) == PROTO_STATUS_OK);
	for (unsigned i = 1; i < 6; i++)
		CHECK(raw_call(fd, ops[i], &request, &reply, NULL) == PROTO_STATUS_STATE);
	CHECK(raw_call(fd, PROTO_OP_STATUS, &request, &reply, NULL) == PROTO_STATUS_OK);
	close(fd);
}

/* BYE ends a session that is no longer mapped, and no other; a REFILL that came right behind it gets nothing, nor does anything else. */
static void
it_nothing_after_bye(void)
{
	static const enum proto_op ops[] = {PROTO_OP_REFILL, PROTO_OP_FLUSH, PROTO_OP_CACHE_OPEN, PROTO_OP_CACHE_CLOSE, PROTO_OP_REFILL};
	enum { N = sizeof ops / sizeof ops[0] };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	union proto_request request = {0};
	union proto_reply reply;
	struct raw raw;
	uint32_t cache;

	raw_attach(&raw, h->socket, "says bye");
	cache = raw_cache_open(&raw, "k", 64, 0);
	raw_prefill(&raw, cache, 10);
	CHECK(raw_call(raw.fd, PROTO_OP_BYE, &request, &reply, NULL) == PROTO_STATUS_STATE);
	raw_prefill(&raw, cache, 10);
	CHECK(harness_audit(h).n_out == 20);
	/* Something else in its place. */
	REQUIRE(mmap(raw.session, raw.attach.session_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
		raw.session);
	CHECK(raw_send(raw.fd, PROTO_OP_BYE, 100, &request) == 0);
	for (uint32_t i = 0; i < N; i++) {
		memset(&request, 0, sizeof request);
		if (ops[i] == PROTO_OP_REFILL)
			request.refill = (struct proto_refill_request){.cache = cache, .n_sheaves = 1};
		else if (ops[i] == PROTO_OP_FLUSH)
			request.flush.cache = cache;
		else if (ops[i] == PROTO_OP_CACHE_OPEN)
			request.cache_open = (struct proto_cache_open_request){.name = "other", .size = 64};
		else
			request.cache_close.cache = cache;
		CHECK(raw_send(raw.fd, ops[i], 101 + i, &request) == 0);
	}
	CHECK(raw_receive(raw.fd, PROTO_OP_BYE, 100, &reply, NULL) == PROTO_STATUS_OK);
	for (uint32_t i = 0; i < N; i++)
		CHECK(raw_receive(raw.fd, ops[i], 101 + i, &reply, NULL) == PROTO_STATUS_STATE);
	CHECK(harness_audit(h).n_out == 0);
	CHECK(harness_status(h).n_sessions == 0);
	CHECK(harness_status(h).n_caches == 1);
	/* Nor has it its socket for ever: it is as one that has said nothing. */
	CHECK(EVENTUALLY(recv(raw.fd, &cache, sizeof cache, MSG_DONTWAIT) == 0));
	raw_detach(&raw);
}

/* Connections that say nothing cost others nothing. */
static void
it_thousand_silent_connections(void)
{
	enum { N = 1000 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --threads=2");
	struct rlimit before, limit;
	struct slabc_cache *k;
	static int fds[N];
	struct slabc *c;

	getrlimit(RLIMIT_NOFILE, &before);
	limit = (struct rlimit){.rlim_cur = before.rlim_max, .rlim_max = before.rlim_max};
	if (before.rlim_max < N + 100) {
		skip("only %llu descriptors are allowed", (unsigned long long)before.rlim_max);
		return;
	}
	setrlimit(RLIMIT_NOFILE, &limit);
	for (int i = 0; i < N; i++)
		CHECK((fds[i] = raw_connect(h->socket)) >= 0);
	c = harness_open(h, "works");
	k = harness_open_cache(c, "k", 256, 0);
	for (int i = 0; i < 10; i++) {
		void *pv[1000];

		CHECK(slabc_alloc_bulk(k, 1000, pv) == 0);
		slabc_free_bulk(k, 1000, pv);
	}
	slabc_close(c);
	for (int i = 0; i < N; i++)
		close(fds[i]);
	setrlimit(RLIMIT_NOFILE, &before);
	/* Slabd lets go of them too. */
	CHECK(EVENTUALLY(harness_count_fds(h->slabd) < 100));
}

/* Who connects and says nothing is closed after a while, without anybody asking. */
static void
it_silent_connection_is_closed(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	int silent = raw_connect(h->socket), talks = raw_connect(h->socket);
	char buf[1];

	REQUIRE(silent >= 0 && talks >= 0);
	REQUIRE(raw_hello(talks) == PROTO_STATUS_OK);
	CHECK(EVENTUALLY(recv(silent, buf, 1, MSG_DONTWAIT) == 0));
	CHECK(recv(talks, buf, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
	close(silent);
	close(talks);
}

/* Few descriptors: neither the silent nor those who only say HELLO keep a newcomer with a session out, and the latter are told their limit. */
static void
it_strangers_are_bounded(void)
{
	enum { N_FILES = 128, LIMIT = N_FILES / 4 };
	CLEANUP(harness_free) struct harness *h = harness_new();
	struct slabc_options options = SLABC_OPTIONS_INIT;
	int fds[2 * N_FILES];
	struct slabc *c;

	h->n_files = N_FILES;
	REQUIRE(harness_start(h, NULL, "--page-kind=4k"));
	for (int i = 0; i < 2 * N_FILES; i++)
		REQUIRE((fds[i] = raw_connect(h->socket)) >= 0);
	c = harness_open(h, "newcomer");
	slabc_close(c);
	for (int i = 0; i < 2 * N_FILES; i++)
		close(fds[i]);
	/* The harness has one. */
	for (int i = 1; i < LIMIT; i++) {
		REQUIRE((fds[i] = raw_connect(h->socket)) >= 0);
		REQUIRE(raw_hello(fds[i]) == PROTO_STATUS_OK);
	}
	options.socket = h->socket;
	CHECK(slabc_open(&c, &options) == -EDQUOT);
	CHECK(strstr(slabc_last_error(), "connections without a session") != NULL);
	close(fds[1]);
	CHECK(EVENTUALLY(slabc_open(&c, &options) == 0));
	slabc_close(c);
	for (int i = 2; i < LIMIT; i++)
		close(fds[i]);
}

/* A client that hangs up while slabd works for it costs nobody anything. */
static void
it_client_closes_mid_request(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");

	for (int i = 0; i < 50; i++) {
		union proto_request request = {0};
		struct raw raw;

		raw_attach(&raw, h->socket, "hangs up");
		request.refill.cache = raw_cache_open(&raw, "k", 512, 0);
		request.refill.n_sheaves = 64;
		for (uint32_t j = 0; j < 10; j++)
			CHECK(raw_send(raw.fd, PROTO_OP_REFILL, j + 1000, &request) == 0);
		raw_detach(&raw);
	}
	CHECK(EVENTUALLY(harness_status(h).n_sessions == 0));
	CHECK(harness_audit(h).n_out == 0);
	CHECK(harness_audit(h).n_lost == 0);
}

struct family {
	struct harness *h;
	struct slabc *c;
	struct slabc_cache *k;
	unsigned char *p[100];
	slabc_ref ref;
};

static void
be_a_forked_child(struct peer *me, void *arg)
{
	struct family *f = arg;
	struct slabc_sheaf *s = NULL;
	struct slabc_cache *k;
	struct slabc *c;
	void *pv[4];

	(void)me;
	for (int i = 0; i < 2; i++) {
		errno = 0;
		CHECK(slabc_alloc(f->k) == NULL && errno == ENOTCONN);
		errno = 0;
		CHECK(slabc_zalloc(f->k) == NULL && errno == ENOTCONN);
		errno = 0;
		slabc_free(f->k, f->p[0]);
		CHECK(errno == ENOTCONN);
		CHECK(slabc_alloc_bulk(f->k, 4, pv) == -ENOTCONN);
		errno = 0;
		slabc_free_bulk(f->k, 1, (void **)&f->p[0]);
		CHECK(errno == ENOTCONN);
		errno = 0;
		CHECK(slabc_prefill(f->k, 4) == NULL && errno == ENOTCONN);
		CHECK(slabc_refill(f->k, &s, 4) == -ENOTCONN);
		errno = 0;
		CHECK(slabc_ref_of(f->c, f->p[0]) == 0 && errno == ENOTCONN);
		errno = 0;
		CHECK(slabc_deref(f->c, f->ref) == NULL && errno == ENOTCONN);
		CHECK(slabc_valid(f->c, f->ref) == 0);
		errno = 0;
		CHECK(slabc_adopt(f->c, f->ref) == NULL && errno == ENOTCONN);
		CHECK(slabc_free_ref(f->c, f->ref) == -ENOTCONN);
		CHECK(slabc_cache_open(f->c, "k", 64, NULL, &k) == -ENOTCONN);
		CHECK(strstr(slabc_last_error(), "fork") != NULL);
	}
	slabc_cache_close(f->k);
	slabc_close(f->c);
	c = harness_open(f->h, "child");
	k = harness_open_cache(c, "k", 64, 0);
	for (int i = 0; i < 1000; i++) {
		unsigned char *p = slabc_alloc(k);

		CHECK(p != NULL);
		memset(p, 0xcc, 64);
		if (i % 2)
			slabc_free(k, p);
	}
	slabc_cache_close(k);
	slabc_close(c);
}

/* In a forked child every call says ENOTCONN until it opens a session of its own; the parent notices nothing, neither then nor at the
 * child's end. */
static void
it_fork(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	static struct family f;

	f.h = h;
	f.c = harness_open(h, "parent");
	f.k = harness_open_cache(f.c, "k", 64, 0);
	for (int i = 0; i < 100; i++) {
		REQUIRE((f.p[i] = slabc_alloc(f.k)) != NULL);
		memset(f.p[i], i, 64);
	}
	f.ref = slabc_ref_of(f.c, f.p[1]);
	harness_join(h, harness_spawn(h, be_a_forked_child, &f));
	for (int i = 0; i < 100; i++)
		CHECK(f.p[i][0] == i && f.p[i][63] == i);
	CHECK(strcmp(harness_client(h, getpid()).state, "live") == 0);
	CHECK(harness_client(h, getpid()).n_held == 100);
	for (int i = 0; i < 100; i++)
		slabc_free(f.k, f.p[i]);
	for (int i = 0; i < 5000; i++)
		CHECK(slabc_alloc(f.k) != NULL);
	slabc_close(f.c);
	CHECK(harness_audit(h).n_lost == 0);
	CHECK(harness_audit(h).n_doubled == 0);
}

struct client_task {
	struct harness *h;
	const char *cache;
	size_t size;
	unsigned flags;
	unsigned n;
};

/* Holds n objects and says so. */
static struct slabc *
hold(const struct client_task *task, const char *label)
{
	struct slabc *c = harness_open(task->h, label);
	struct slabc_cache *k = harness_open_cache(c, task->cache, task->size, task->flags);

	for (unsigned i = 0; i < task->n; i++)
		CHECK(slabc_alloc(k) != NULL);
	return c;
}

static void
hold_then_exec(struct peer *me, void *arg)
{
	hold(arg, "will exec");
	peer_tell(me, 'h');
	peer_await(me, 'e');
	/* The pipe must outlive exec, for cat to wait on. */
	dup2(me->in, STDIN_FILENO);
	execlp("cat", "cat", (char *)NULL);
	CHECK(!"exec");
}

/* A program that execs another has ended its session, though its process number lives on. */
static void
it_exec_ends_the_session(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct client_task task = {h, "k", 64, SLABC_RECLAIM, 500};
	pid_t pid = harness_spawn(h, hold_then_exec, &task);

	peer_await(harness_peer(h, pid), 'h');
	CHECK(harness_client(h, pid).n_held == 500);
	peer_tell(harness_peer(h, pid), 'e');
	harness_wait_reaped(h, pid);
	CHECK(kill(pid, 0) == 0 && waitpid(pid, NULL, WNOHANG) == 0);
	CHECK(harness_audit(h).n_out == 0);
	harness_kill(h, pid, SIGKILL);
}

static void
hold_with_a_child_that_has_the_socket(struct peer *me, void *arg)
{
	char c;

	hold(arg, "dies first");
	if (fork() == 0) {
		/* Says so, and lives until the test ends. */
		peer_tell(me, 'c');
		while (read(me->in, &c, 1) > 0)
			continue;
		_exit(0);
	}
	pause();
}

/* Who is dead is dead, though a child of his keeps his socket open: the pidfd tells. */
static void
it_inherited_socket_keeps_nobody_alive(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct client_task task = {h, "k", 64, SLABC_RECLAIM, 500};
	pid_t pid = harness_spawn(h, hold_with_a_child_that_has_the_socket, &task);
	int64_t start;

	peer_await(harness_peer(h, pid), 'c');
	CHECK(harness_client(h, pid).n_held == 500);
	start = harness_now_ns();
	harness_kill(h, pid, SIGKILL);
	harness_wait_reaped(h, pid);
	CHECK(harness_now_ns() - start < 1000000000);
	CHECK(harness_audit(h).n_out == 0);
	/* The grandchild is still there. */
	CHECK(kill(-pid, 0) == 0);
}

/* Opening and closing leaves nothing, on either side. */
static void
it_hundred_sessions_leave_nothing(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	unsigned n_mine, n_slabd;

	harness_status(h);
	n_mine = harness_count_fds(getpid());
	n_slabd = harness_count_fds(h->slabd);
	for (int i = 0; i < 100; i++) {
		struct slabc *c = harness_open(h, "again");
		struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);

		CHECK(slabc_alloc(k) != NULL);
		slabc_free(k, slabc_alloc(k));
		slabc_close(c);
	}
	CHECK(harness_count_fds(getpid()) == n_mine);
	CHECK(EVENTUALLY(harness_count_fds(h->slabd) == n_slabd));
	CHECK(harness_status(h).n_sessions == 0);
	CHECK(harness_status(h).n_sessions_ever == 100);
	CHECK(harness_audit(h).n_orphans == 100);
}

static void
hold_then_close_everything(struct peer *me, void *arg)
{
	struct client_task *task = arg;
	struct slabc *c = harness_open(task->h, "detached");
	struct slabc_cache *k = harness_open_cache(c, task->cache, task->size, task->flags);

	for (unsigned i = 0; i < task->n; i++)
		CHECK(slabc_alloc(k) != NULL);
	for (int fd = 0; fd < 1024; fd++)
		if (fd != me->in && fd != me->out && fd != STDERR_FILENO)
			close(fd);
	peer_tell(me, 'c');
	peer_await(me, 'u');
	/* What is cached still works. */
	for (int i = 0; i < 1000; i++) {
		void *p = slabc_alloc(k);

		CHECK(p != NULL);
		memset(p, 1, task->size);
		slabc_free(k, p);
	}
	peer_tell(me, 'd');
	peer_await(me, 'e');
}

/* A program that closes descriptors it does not know is not dead: its session is kept until it ends. */
static void
it_closed_descriptors_are_no_death(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct client_task task = {h, "k", 64, SLABC_RECLAIM, 5};
	pid_t pid = harness_spawn(h, hold_then_close_everything, &task);
	struct peer *peer = harness_peer(h, pid);
	int64_t until;

	peer_await(peer, 'c');
	CHECK(EVENTUALLY(strcmp(harness_client(h, pid).state, "detached") == 0));
	peer_tell(peer, 'u');
	peer_await(peer, 'd');
	/* Slabd looks again each second; the session must outlive a look. */
	for (until = harness_now_ns() + 1500000000; harness_now_ns() < until; harness_pause())
		if (harness_client(h, pid).n_held != 5)
			break;
	CHECK(strcmp(harness_client(h, pid).state, "detached") == 0);
	CHECK(harness_client(h, pid).n_held == 5);
	peer_tell(peer, 'e');
	harness_join(h, pid);
	harness_wait_reaped(h, pid);
	CHECK(harness_audit(h).n_out == 0);
}

static void *
alloc_and_free(void *arg)
{
	struct slabc_cache *k = arg;
	void *p[200];

	for (int i = 0; i < 200; i++)
		p[i] = slabc_alloc(k);
	for (int i = 0; i < 200; i++)
		slabc_free(k, p[i]);
	return p[0] ? k : NULL;
}

/* Threads come and go: what they had cached goes to the barns when they end. */
static void
it_threads_come_and_go(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "threads");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	struct proto_caches_reply cache;
	pthread_t threads[64];
	void *result;

	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < 64; i++)
			REQUIRE(pthread_create(&threads[i], NULL, alloc_and_free, k) == 0);
		for (int i = 0; i < 64; i++)
			CHECK(pthread_join(threads[i], &result) == 0 && result == k);
	}
	CHECK(harness_client(h, getpid()).n_threads == 0);
	cache = harness_cache(h, "k");
	CHECK(cache.n_thread == 0);
	CHECK(cache.n_allocated == 0);
	CHECK(cache.n_process_barn + cache.n_node_barn + cache.n_returned + cache.n_free == cache.n_objects);
	CHECK(cache.n_process_barn + cache.n_node_barn > 0);
	CHECK(harness_audit(h).n_lost == 0);
	slabc_close(c);
}

/* The library may be loaded at run time, by a program of threads that was not linked with it. */
static void
it_dlopen(void)
{
	static const char program[] =
		"#include <client/slabclient.h>\n"
		"#include <dlfcn.h>\n#include <pthread.h>\n#include <stdio.h>\n#include <string.h>\n"
		"static void *(*a)(struct slabc_cache *);\nstatic void (*f)(struct slabc_cache *, void *);\nstatic struct slabc_cache *k;\n"
		"static void *work(void *n) { void *p[300]; int i;\n"
		"  for (i = 0; i < 300; i++) { p[i] = a(k); if (!p[i]) return n; memset(p[i], i, 100); }\n"
		"  for (i = 0; i < 300; i++) f(k, p[i]);\n  return NULL; }\n"
		"static void *get(void *l, const char *n) { void *p = dlsym(l, n); if (!p) printf(\"no %s\\n\", n); return p; }\n"
		"int main(int argc, char **argv) { struct slabc_options o = SLABC_OPTIONS_INIT; struct slabc *c; pthread_t t[8]; void *r; "
		"int i, bad = 0;\n"
		"  void *l = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL); if (!l) { puts(dlerror()); return 1; } (void)argc;\n"
		"  int (*open)(struct slabc **, const struct slabc_options *);\n"
		"  int (*cache_open)(struct slabc *, const char *, size_t, const struct slabc_cache_options *, struct slabc_cache **);\n"
		"  void (*close)(struct slabc *);\n"
		"  *(void **)&open = get(l, \"slabc_open\"); *(void **)&cache_open = get(l, \"slabc_cache_open\");\n"
		"  *(void **)&close = get(l, \"slabc_close\"); *(void **)&a = get(l, \"slabc_alloc\"); *(void **)&f = get(l, "
		"\"slabc_free\");\n"
		"  o.socket = argv[2]; if (open(&c, &o) || cache_open(c, \"k\", 100, 0, &k)) return 2;\n"
		"  for (i = 0; i < 8; i++) pthread_create(&t[i], 0, work, t);\n"
		"  for (i = 0; i < 8; i++) { pthread_join(t[i], &r); bad += r != 0; }\n"
		"  bad += work(t) != 0; close(c); dlclose(l); return bad ? 3 : 0; }\n";
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	char source[128], binary[128], out[2048], include[64] = "-I.", *lib = realpath(harness_path("SLABCLIENT_LIB"), NULL);
	char *compile[] = {(char[]){"cc"}, include, (char[]){"-o"}, binary, source, (char[]){"-pthread"}, (char[]){"-ldl"}, NULL};
	char *run[] = {binary, lib, h->socket, NULL};
	FILE *file;
	int r;

	REQUIRE(lib != NULL);
	snprintf(source, sizeof source, "%s/plain.c", h->dir);
	snprintf(binary, sizeof binary, "%s/plain", h->dir);
	file = fopen(source, "we");
	REQUIRE(file && fputs(program, file) >= 0 && fclose(file) == 0);
	r = harness_run(compile, NULL, out, sizeof out);
	if (r == 127) {
		skip_without("C compiler");
	} else {
		CHECK(r == 0);
		CHECK(harness_run(run, NULL, out, sizeof out) == 0);
		if (out[0])
			fprintf(stderr, "%s", out);
		CHECK(harness_audit(h).n_out == 0);
		CHECK(harness_cache(h, "k").n_carved > 0);
	}
	free(lib);
}

/* Without slabd a client goes on with what it has cached, then says ENOTCONN; frees never crash. */
static void
it_slabd_is_killed(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "goes on");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0), *other;
	static unsigned char *p[100000];
	unsigned n, n_cached;

	for (n = 0; n < 500; n++) {
		REQUIRE((p[n] = slabc_alloc(k)) != NULL);
		memset(p[n], (int)n, 64);
	}
	n_cached = (unsigned)(harness_cache(h, "k").n_thread + harness_cache(h, "k").n_process_barn);
	CHECK(n_cached > 0);
	harness_kill_slabd(h);
	for (; n < 100000; n++) {
		errno = 0;
		p[n] = slabc_alloc(k);
		if (!p[n])
			break;
		memset(p[n], (int)n, 64);
	}
	CHECK(errno == ENOTCONN);
	CHECK(strstr(slabc_last_error(), "slabd") != NULL);
	CHECK(n == 500 + n_cached);
	for (unsigned i = 0; i < n; i++)
		CHECK(p[i][0] == (unsigned char)i && p[i][63] == (unsigned char)i);
	for (unsigned i = 0; i < n; i++)
		slabc_free(k, p[i]);
	/* What found room in a sheaf may be had again. */
	CHECK(slabc_alloc(k) != NULL);
	CHECK(slabc_cache_open(c, "other", 64, NULL, &other) == -ENOTCONN);
	slabc_cache_close(k);
	slabc_close(c);
	CHECK(try_open(h->socket, NULL) == -ECONNREFUSED);
}

CU_pSuite
it_session_suite(void)
{
	CU_pSuite suite = harness_suite("session");

	CU_ADD_TEST(suite, it_open_and_close);
	CU_ADD_TEST(suite, it_wrong_path_is_named);
	CU_ADD_TEST(suite, it_no_permission);
	CU_ADD_TEST(suite, it_nobody_listens);
	CU_ADD_TEST(suite, it_other_versions_are_refused_by_name);
	CU_ADD_TEST(suite, it_unknown_arena);
	CU_ADD_TEST(suite, it_second_attach_is_refused);
	CU_ADD_TEST(suite, it_order_of_calls);
	CU_ADD_TEST(suite, it_nothing_after_bye);
	CU_ADD_TEST(suite, it_thousand_silent_connections);
	CU_ADD_TEST(suite, it_silent_connection_is_closed);
	CU_ADD_TEST(suite, it_strangers_are_bounded);
	CU_ADD_TEST(suite, it_client_closes_mid_request);
	CU_ADD_TEST(suite, it_fork);
	CU_ADD_TEST(suite, it_exec_ends_the_session);
	CU_ADD_TEST(suite, it_inherited_socket_keeps_nobody_alive);
	CU_ADD_TEST(suite, it_hundred_sessions_leave_nothing);
	CU_ADD_TEST(suite, it_closed_descriptors_are_no_death);
	CU_ADD_TEST(suite, it_threads_come_and_go);
	CU_ADD_TEST(suite, it_dlopen);
	CU_ADD_TEST(suite, it_slabd_is_killed);
	return suite;
}
