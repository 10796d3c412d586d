/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slabd is killed, and its clients do not notice: what the next slabd adopts, whom it knows again, and when it refuses (design.md, I6).
 *
 * Slabd runs under slabd-keeper here; tests/check-systemd.sh has the same with systemd.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "server/ledger.h"
#include "server/slab.h"
#include "shm/word.h"
#include "tests/harness.h"

CU_pSuite it_adopt_suite(void);

enum { N_KILLS = 20 };

static void
it_clients_go_on(void)
{
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k");
	pid_t pids[2];

	harness_start_busy(h, HARNESS_TIMEOUT_S, 2, pids);
	CHECK(EVENTUALLY(harness_count_kept(h) == 2));
	harness_kill_kept(h);
	CHECK(harness_log_count(h, "adopted from slabd") == 1);
	harness_check_audit(h);
	CHECK(EVENTUALLY(harness_log_count(h, "has taken its session up again") == 2));
	harness_check_audit(h);
	harness_stop_busy(h, 2, pids);
	harness_check_at_rest(h);
}

/* One kill after the other, some of them in the midst of an adoption. */
static void
storm(const char *arguments, unsigned n_kills)
{
	const struct storm storm = {.arguments = arguments, .n_busy = 8, .n_kills = n_kills, .more_ms = 60, .timeout_s = HARNESS_TIMEOUT_S};

	harness_storm(&storm);
}

static void
it_twenty_kills_in_a_row(void)
{
	storm("--page-kind=4k --arena-size=256M", N_KILLS);
}

static void
it_kills_with_two_loops(void)
{
	storm("--page-kind=4k --arena-size=256M --threads=2 --profile=kernel", N_KILLS / 2);
}

/* Little memory: pages come and go all the time. */
static void
it_kills_in_want(void)
{
	storm("--page-kind=4k --arena-size=8M --profile=tiny", N_KILLS / 2);
}

/* Without slabd for a moment */

struct keeping_task {
	struct harness *h;
	unsigned n;
	bool is_reclaimed;
	slabc_ref ref;
	uint32_t client_id;
};

static void
keep_some(struct peer *me, void *arg)
{
	struct keeping_task *task = arg;
	struct slabc *c = harness_open(task->h, "kept");
	struct slabc_cache *k = harness_open_cache(c, task->is_reclaimed ? "reclaimed" : "kept", 64, task->is_reclaimed ? SLABC_RECLAIM : 0);

	for (unsigned i = 0; i < task->n; i++) {
		uint32_t *p = slabc_alloc(k);

		CHECK(p != NULL);
		*p = 4711 + i;
		task->ref = slabc_ref_of(c, p);
	}
	task->client_id = slabc_client_id(c);
	peer_put(me, &task->ref, sizeof task->ref);
	peer_put(me, &task->client_id, sizeof task->client_id);
	peer_await(me, 'e');
}

/* A client that dies while there is no slabd is reaped by the next; its neighbour's request waits for that one. */
static void
it_client_dies_meanwhile(void)
{
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k");
	struct keeping_task kept = {.h = h, .n = 500}, reclaimed = {.h = h, .n = 500, .is_reclaimed = true};
	pid_t pids[2] = {harness_spawn(h, keep_some, &kept), harness_spawn(h, keep_some, &reclaimed)}, before;
	struct slabc *c = harness_open(h, "neighbour");
	struct slabc_cache *k = harness_open_cache(c, "kept", 64, 0);

	for (int i = 0; i < 2; i++) {
		peer_get(harness_peer(h, pids[i]), &kept.ref, sizeof kept.ref);
		peer_get(harness_peer(h, pids[i]), &kept.client_id, sizeof kept.client_id);
	}
	REQUIRE(harness_audit_cache(h, "reclaimed").n_held == 500);
	before = harness_stop_and_kill(h);
	harness_kill(h, pids[0], SIGKILL);
	harness_kill(h, pids[1], SIGKILL);
	harness_go_on(h, before);
	CHECK(harness_log_count(h, "has ended: 500 of its objects freed") == 1);
	CHECK(harness_log_count(h, "has ended: 500 kept for who adopts them") == 1);
	CHECK(harness_audit_cache(h, "kept").n_orphans == 500 && harness_audit_cache(h, "reclaimed").n_out == 0);
	harness_check_audit(h);
	CHECK(slabc_alloc(k) != NULL);
	slabc_close(c);
}

/* Names, orphans and the lives of client slots are the next slabd's too. */
static void
it_names_and_orphans_stay(void)
{
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k");
	struct keeping_task kept = {.h = h, .n = 3};
	pid_t pid = harness_spawn(h, keep_some, &kept);
	struct slabc *c = harness_open(h, "names");
	struct slabc_cache *k = harness_open_cache(c, "kept", 64, 0);
	slabc_ref mine = slabc_ref_of(c, slabc_alloc(k)), found = 0, gone;
	union proto_request request = {0};
	union proto_reply reply;
	char name[32];

	peer_get(harness_peer(h, pid), &kept.ref, sizeof kept.ref);
	peer_get(harness_peer(h, pid), &kept.client_id, sizeof kept.client_id);
	for (int i = 0; i < 200; i++) {
		snprintf(name, sizeof name, "name %d", i);
		REQUIRE(slabc_publish(c, name, i % 2 ? mine : kept.ref, 0) == 0);
	}
	for (int i = 0; i < 200; i += 4) {
		snprintf(name, sizeof name, "name %d", i);
		REQUIRE(slabc_unpublish(c, name) == 0);
	}
	harness_kill(h, pid, SIGKILL);
	harness_wait_reaped(h, pid);
	harness_kill_kept(h);
	for (int i = 0; i < 200; i++) {
		snprintf(name, sizeof name, "name %d", i);
		CHECK(slabc_lookup(c, name, &found) == (i % 4 ? 0 : -ENOENT));
		CHECK(i % 4 == 0 || found == (i % 2 ? mine : kept.ref));
	}
	CHECK(harness_ask(h, PROTO_OP_ORPHANS, &request, &reply) == PROTO_STATUS_OK);
	CHECK(reply.orphans.n_orphans == 3 && reply.orphans.client_id == kept.client_id && reply.orphans.pid == (uint32_t)pid);
	CHECK(strcmp(reply.orphans.label, "kept") == 0 && strcmp(reply.orphans.cache_name, "kept") == 0);
	gone = slabc_next_orphan(k, 0);
	CHECK(gone != 0);
	CHECK(slabc_adopt_orphan(c, kept.ref) != NULL && *(uint32_t *)slabc_deref(c, kept.ref) == 4711 + 2);
	/* Its life is not one that somebody has had. */
	CHECK(slabc_publish(c, "name 0", mine, 0) == 0);
	harness_check_audit(h);
	slabc_close(c);
}

/* Knobs, as they were tuned; a cache without owner words, whose lost objects nobody can tell; what was set aside for a client comes back. */
static void
it_caches_stay(void)
{
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k");
	struct slabc *c = harness_open(h, "caches");
	struct slabc_cache_options o = SLABC_CACHE_OPTIONS_INIT;
	struct slabc_cache *k, *again, *its;
	struct proto_caches_reply before, after;
	struct slabc *other;
	union proto_request request = {0};
	union proto_reply reply;
	enum { MANY = 40000 };
	static void *many[MANY];
	void *p[100];

	o.cpu_partial = 500;
	o.sheaf_capacity = 30;
	o.align = 64;
	o.barn_full = SLABC_KNOB_NONE;
	REQUIRE(slabc_cache_open(c, "stash", 192, &o, &k) == 0);
	/* Slabs that are partial, and what they have free where a refill sets it aside. */
	other = harness_open(h, "other");
	its = harness_open_cache(other, "stash", 0, 0);
	REQUIRE(slabc_alloc_bulk(its, 2000, many) == 0);
	for (int i = 0; i < 2000; i += 2)
		slabc_free(its, many[i]);
	REQUIRE(slabc_cache_shrink(its) == 0);
	REQUIRE((p[0] = slabc_alloc(k)) != NULL);
	request.tune = (struct proto_tune_request){.cache = harness_cache(h, "stash").cache, .set = 4, .min_partial = 77};
	REQUIRE(harness_ask(h, PROTO_OP_TUNE, &request, &reply) == PROTO_STATUS_OK);
	before = harness_cache(h, "stash");
	CHECK(before.n_stash > 0);
	harness_kill_kept(h);
	after = harness_cache(h, "stash");
	CHECK(after.n_stash == 0 && after.n_allocated == 1001);
	CHECK(harness_log_count(h, " objects taken back that were under way") == 1 && harness_log_count(h, ", 0 objects taken back") == 0);
	CHECK(after.capacity == 30 && after.min_partial == 77 && after.align == 64 && after.object_size == 192 && after.cpu_partial == 500);
	CHECK(after.cache == before.cache && after.n_openers == 2 && after.max_cached == before.max_cached && after.barn_full == before.barn_full);
	CHECK(slabc_cache_open(c, "stash", 192, &o, &again) == 0 && again == k);
	CHECK(slabc_cache_open(c, "stash", 200, &o, &again) == -EEXIST);
	harness_check_audit(h);
	slabc_close(other);
	/* Whole sheaves in slabd's hands are none any more: their objects are free. */
	k = harness_open_cache(c, "barn", 256, 0);
	REQUIRE(slabc_alloc_bulk(k, MANY, many) == 0);
	slabc_free_bulk(k, MANY, many);
	REQUIRE(EVENTUALLY(harness_cache(h, "barn").n_node_barn > 0));
	before = harness_cache(h, "barn");
	harness_kill_kept(h);
	after = harness_cache(h, "barn");
	CHECK(after.n_node_barn == 0 && harness_audit_cache(h, "barn").n_barn == 0 && after.n_allocated == 0);
	CHECK(after.n_free >= before.n_node_barn || after.n_objects < before.n_objects);
	k = harness_open_cache(c, "wordless", 64, SLABC_NO_OWNER);
	REQUIRE(slabc_alloc_bulk(k, 100, p) == 0);
	before = harness_cache(h, "wordless");
	harness_kill_kept(h);
	after = harness_cache(h, "wordless");
	CHECK(after.n_left == 0 && after.n_allocated == 100 && before.n_out == after.n_out);
	REQUIRE(slabc_alloc(k) != NULL);
	slabc_close(c);
	CHECK(EVENTUALLY(harness_cache(h, "wordless").n_left == 101));
	harness_kill_kept(h);
	CHECK(harness_cache(h, "wordless").n_left == 101);
}

/* Somebody who only reads goes on, too. */
static void
it_readers_go_on(void)
{
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k");
	struct slabc *c = harness_open(h, "writer"), *reader = NULL;
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	struct slabc_options o = SLABC_OPTIONS_INIT;
	uint32_t *p = slabc_alloc(k), *seen;
	slabc_ref ref = slabc_ref_of(c, p), found = 0;

	*p = 99;
	o.socket = h->socket;
	o.flags = SLABC_RDONLY;
	o.timeout_ms = HARNESS_PATIENCE_MS;
	REQUIRE(slabc_open(&reader, &o) == 0);
	harness_kill_kept(h);
	REQUIRE(slabc_publish(c, "r", ref, 0) == 0);
	CHECK(slabc_lookup(reader, "r", &found) == 0 && found == ref);
	CHECK((seen = slabc_deref(reader, found)) && *seen == 99);
	slabc_close(reader);
	slabc_close(c);
}

/* Who waits for a name waits on, with the next slabd. */
static void
wait_for_name(struct peer *me, void *arg)
{
	struct slabc *c = harness_open(arg, "waiter");
	slabc_ref ref = 0;

	peer_tell(me, 'w');
	CHECK(slabc_lookup_wait(c, "late", &ref, HARNESS_PATIENCE_MS) == 0 && ref != 0);
	slabc_close(c);
}

static void
it_waiting_for_a_name(void)
{
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k");
	struct slabc *c = harness_open(h, "publisher");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	slabc_ref ref = slabc_ref_of(c, slabc_alloc(k));
	pid_t pid = harness_spawn(h, wait_for_name, h);

	peer_await(harness_peer(h, pid), 'w');
	harness_kill_kept(h);
	CHECK(slabc_publish(c, "late", ref, 0) == 0);
	harness_join(h, pid);
	slabc_close(c);
}

/* The time a call may take is kept while there is no slabd; SLABC_NOWAIT says EAGAIN, and gets its objects when there is one. */
static void
it_deadlines_are_kept(void)
{
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k");
	struct slabc_options o = SLABC_OPTIONS_INIT;
	struct slabc *c = NULL;
	struct slabc_cache *k, *nowait, *other;
	int64_t start;
	pid_t before;
	void *p;

	o.socket = h->socket;
	o.timeout_ms = 300;
	REQUIRE(slabc_open(&c, &o) == 0);
	k = harness_open_cache(c, "k", 64, 0);
	nowait = harness_open_cache(c, "nowait", 64, SLABC_NOWAIT);
	before = harness_stop_and_kill(h);
	start = harness_now_ns();
	CHECK(slabc_alloc(k) == NULL && errno == ETIMEDOUT);
	CHECK(harness_now_ns() - start > INT64_C(250000000));
	CHECK(slabc_cache_open(c, "other", 64, NULL, &other) == -ETIMEDOUT);
	start = harness_now_ns();
	CHECK(slabc_alloc(nowait) == NULL && errno == EAGAIN);
	CHECK(harness_now_ns() - start < INT64_C(200000000));
	harness_go_on(h, before);
	CHECK((p = slabc_alloc(k)) != NULL);
	slabc_free(k, p);
	CHECK(EVENTUALLY((p = slabc_alloc(nowait)) != NULL || errno != EAGAIN) && p != NULL);
	slabc_free(nowait, p);
	CHECK(slabc_cache_open(c, "other", 64, NULL, &other) == 0);
	slabc_close(c);
	harness_check_at_rest(h);
}

/* More connect at once than a user may have without a session: who is turned away tries again, and has not lost his. */
static void
it_many_connect_at_once(void)
{
	enum { FILES = 200, LIMIT = FILES / 4 };
	CLEANUP(harness_free) struct harness *h = harness_new();
	struct slabc_options o = SLABC_OPTIONS_INIT;
	struct slabc *c = NULL;
	struct slabc_cache *k;
	int fds[LIMIT];
	void *p;

	h->is_kept = true;
	h->n_files = FILES;
	REQUIRE(harness_start(h, NULL, "--page-kind=4k"));
	o.socket = h->socket;
	o.timeout_ms = 200;
	REQUIRE(slabc_open(&c, &o) == 0);
	k = harness_open_cache(c, "k", 64, 0);
	REQUIRE((p = slabc_alloc(k)) != NULL);
	harness_kill_kept(h);
	/* With the harness's own there is no room for another. */
	for (int i = 0; i < LIMIT - 1; i++)
		REQUIRE((fds[i] = raw_connect(h->socket)) >= 0 && raw_hello(fds[i]) == 0);
	CHECK(slabc_cache_shrink(k) == -ETIMEDOUT);
	for (int i = 0; i < LIMIT - 1; i++)
		close(fds[i]);
	CHECK(EVENTUALLY(slabc_cache_shrink(k) == 0));
	slabc_free(k, p);
	slabc_close(c);
	harness_check_at_rest(h);
}

/* Who may have a session back */

struct thief_task {
	struct harness *h;
	uint32_t client_id;
	uint64_t token;
};

static int
ask_resume(const struct harness *h, uint32_t client_id, uint64_t token)
{
	union proto_request request = {.resume = {.client_id = client_id, .token = token}};
	union proto_reply reply;
	int fd = raw_connect(h->socket), status;

	REQUIRE(fd >= 0 && raw_hello(fd) == 0);
	status = raw_call(fd, PROTO_OP_RESUME, &request, &reply, NULL);
	close(fd);
	return status;
}

static void
steal(struct peer *me, void *arg)
{
	const struct thief_task *task = arg;

	(void)me;
	CHECK(ask_resume(task->h, task->client_id, task->token) == PROTO_STATUS_ACCESS);
}

static void
it_token_and_process_must_be_right(void)
{
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k --threads=2");
	struct thief_task task = {.h = h};
	union proto_request request = {0};
	union proto_reply reply;
	struct raw raw;
	int fd;

	raw_attach(&raw, h->socket, "raw");
	task.client_id = raw.attach.client_id;
	task.token = raw.attach.token;
	REQUIRE(task.token != 0);
	CHECK(ask_resume(h, task.client_id, task.token) == PROTO_STATUS_BUSY);
	harness_kill_kept(h);
	CHECK(ask_resume(h, task.client_id, task.token + 1) == PROTO_STATUS_ACCESS);
	CHECK(ask_resume(h, task.client_id, 0) == PROTO_STATUS_ACCESS);
	CHECK(ask_resume(h, task.client_id + (1 << 14), task.token) == PROTO_STATUS_STALE);
	CHECK(ask_resume(h, 0, task.token) == PROTO_STATUS_STALE);
	harness_join(h, harness_spawn(h, steal, &task));
	CHECK(strcmp(harness_client(h, getpid()).state, "detached") == 0);
	fd = raw_connect(h->socket);
	REQUIRE(fd >= 0 && raw_hello(fd) == 0);
	request.resume.client_id = task.client_id;
	request.resume.token = task.token;
	CHECK(raw_call(fd, PROTO_OP_RESUME, &request, &reply, NULL) == PROTO_STATUS_OK);
	CHECK(strcmp(harness_client(h, getpid()).state, "live") == 0);
	request.cache_open = (struct proto_cache_open_request){.name = "k", .size = 64};
	CHECK(raw_call(fd, PROTO_OP_CACHE_OPEN, &request, &reply, NULL) == PROTO_STATUS_OK);
	CHECK(ask_resume(h, task.client_id, task.token) == PROTO_STATUS_BUSY);
	close(fd);
	raw_detach(&raw);
	CHECK(EVENTUALLY(harness_status(h).n_sessions == 0));
}

/* A program that closes all descriptors takes its session up again with the same slabd; its own file under the old number is left alone. */
static void
close_and_go_on(struct peer *me, void *arg)
{
	struct slabc *c = harness_open(arg, "closes all");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0), *other;
	char path[64], link[64];
	void *p;
	int number = -1, file;

	CHECK((p = slabc_alloc(k)) != NULL);
	for (int fd = 3; fd < 100; fd++) {
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		if (readlink(path, link, sizeof link) > 7 && strncmp(link, "socket:", 7) == 0)
			close(number = fd);
	}
	CHECK(number >= 0);
	file = open("/dev/null", O_WRONLY | O_CLOEXEC);
	CHECK(dup2(file, number) == number);
	CHECK(slabc_cache_open(c, "other", 64, NULL, &other) == 0 && slabc_alloc(other) != NULL);
	slabc_free(k, p);
	CHECK(write(number, "x", 1) == 1);
	slabc_close(c);
	CHECK(write(number, "x", 1) == 1);
	(void)me;
}

static void
it_program_closes_all(void)
{
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k");
	pid_t pid = harness_spawn(h, close_and_go_on, h);

	harness_join(h, pid);
	CHECK(harness_log_count(h, "has taken its session up again") == 1);
	harness_check_audit(h);
}

/* The keeper */

static void
it_keeper_is_killed(void)
{
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k");
	struct slabc_options o = SLABC_OPTIONS_INIT;
	struct slabc *c = NULL, *later = NULL;
	struct slabc_cache *k, *other;
	pid_t slabd = (pid_t)harness_status(h).pid;
	int status;

	o.socket = h->socket;
	o.timeout_ms = 200;
	REQUIRE(slabc_open(&c, &o) == 0);
	k = harness_open_cache(c, "k", 64, 0);
	kill(h->slabd, SIGKILL);
	REQUIRE(waitpid(h->slabd, &status, 0) == h->slabd);
	/* slabd serves on, and says once that nobody keeps anything for it. */
	CHECK(slabc_alloc(k) != NULL);
	REQUIRE(slabc_open(&later, &o) == 0);
	CHECK(slabc_cache_open(later, "k", 64, NULL, &other) == 0 && slabc_alloc(other) != NULL);
	CHECK(harness_log_count(h, "the descriptor store is gone") == 1);
	close(h->monitor);
	h->monitor = -1;
	kill(slabd, SIGKILL);
	CHECK(EVENTUALLY(slabc_cache_shrink(other) == -ENOTCONN));
	CHECK(slabc_cache_shrink(k) == -ETIMEDOUT);
	slabc_close(later);
	slabc_close(c);
	h->slabd = 0;
}

/* SIGHUP and SIGTERM are slabd's; a slabd that cannot start is not started again and again. */
static void
it_keeper_passes_on(void)
{
	CLEANUP(harness_free) struct harness *h = harness_new();
	char *argv[] = {strdup(harness_path("SLABD_KEEPER")), strdup(harness_path("SLABD")), strdup("--arena-size=5"), NULL};
	char out[2048], config[128];
	int status;

	CHECK(harness_run(argv, NULL, out, sizeof out) == 1 && strstr(out, "--arena-size=5"));
	argv[1] = strdup("--help");
	CHECK(harness_run(argv, NULL, out, sizeof out) == 0 && strstr(out, "usage: slabd-keeper"));
	argv[1] = strdup("/nonexistent/slabd");
	CHECK(harness_run(argv, NULL, out, sizeof out) == 127 && strstr(out, "No such file"));
	argv[1] = NULL;
	CHECK(harness_run(argv, NULL, out, sizeof out) == 1 && strstr(out, "usage"));
	h->is_kept = true;
	harness_write_config(h, "[arena]\nsize = 16M\npage-kind = 4k\n");
	snprintf(config, sizeof config, "--config=%s", harness_config(h));
	REQUIRE(harness_start(h, &status, config));
	harness_reload(h, "[arena]\nsize = 16M\npage-kind = 4k\nmode = 0600\n");
	CHECK(harness_stop_slabd(h, SIGTERM) == 0);
	CHECK(access(h->socket, F_OK) < 0);
}

/* Slabd with this process's pidfd under that name among the descriptors that were left; its exit status. */
static int
start_with_left(const struct harness *h, const char *name, char *out, size_t size)
{
	char *argv[] = {strdup("/bin/sh"), strdup("-c"), NULL, NULL};
	char socket[128], names[64], command[512];
	int fd = (int)syscall(SYS_pidfd_open, getpid(), 0), status;

	/* The shell is the process that LISTEN_PID names, and becomes slabd; this descriptor is its 3. */
	REQUIRE(fd >= 0 && fcntl(fd, F_SETFD, 0) == 0);
	snprintf(socket, sizeof socket, "%s/other", h->dir);
	snprintf(names, sizeof names, "%s", name);
	snprintf(command, sizeof command, "exec 3<&%d; LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=%s exec %s --socket=%s --page-kind=4k", fd, names,
		harness_path("SLABD"), socket);
	argv[2] = command;
	status = harness_run(argv, NULL, out, size);
	close(fd);
	return status;
}

/* At most one writes the ledgers: who finds that the one before lives does not start. */
static void
it_predecessor_must_be_dead(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	char name[32], said[64], out[2048];

	snprintf(name, sizeof name, "+P%x", (unsigned)getpid());
	snprintf(said, sizeof said, "slabd %d, which has the ledgers, is alive", getpid());
	CHECK(start_with_left(h, name, out, sizeof out) == 3);
	CHECK(strstr(out, said) != NULL);
	/* And what was kept without its ledger is no arena. */
	CHECK(start_with_left(h, "+0s1", out, sizeof out) == 3);
	CHECK(strstr(out, "ledger: its descriptor is not in the store") != NULL);
}

/* A new start by other settings: an arena that somebody uses stays as it is, an empty one is made anew. */
static void
it_settings_change_meanwhile(void)
{
	CLEANUP(harness_free) struct harness *h = harness_new();
	struct slabc *c;
	struct slabc_cache *k;
	char config[128];
	int status;

	h->is_kept = true;
	harness_write_config(h, "[arena]\nsize = 16M\npage-kind = 4k\n");
	snprintf(config, sizeof config, "--config=%s", harness_config(h));
	REQUIRE(harness_start(h, &status, config));
	c = harness_open(h, "user");
	k = harness_open_cache(c, "k", 64, SLABC_RECLAIM);
	CHECK(slabc_alloc(k) != NULL);
	harness_write_config(h, "[arena]\nsize = 32M\nreserve = 4M\npage-kind = 4k\n[arena more]\nsize = 8M\npage-kind = 4k\n");
	harness_kill_kept(h);
	CHECK(harness_status(h).arena_bytes == 16 << 20);
	CHECK(harness_log_count(h, "was adopted with the size, reserve, page-kind and profile that it had") == 1);
	CHECK(slabc_alloc(k) != NULL);
	slabc_close(c);
	CHECK(EVENTUALLY(harness_status(h).n_sessions == 0));
	harness_kill_kept(h);
	CHECK(harness_status(h).arena_bytes == 32 << 20 && harness_status(h).committed_bytes == 4 << 20);
	harness_kill_kept(h);
	CHECK(harness_status(h).committed_bytes == 4 << 20);
	harness_write_config(h, "[arena]\nsize = 32M\nreserve = 4M\npage-kind = 4k\n");
	harness_kill_kept(h);
	CHECK(harness_log_count(h, "arena 'more' was left by a dead slabd, and is not in the settings") == 1);
}

/* Refusals */

static uint64_t
round_page(uint64_t n)
{
	return (n + LAYOUT_PAGE_BYTES - 1) / LAYOUT_PAGE_BYTES * LAYOUT_PAGE_BYTES;
}

#define CACHES_OFF round_page(sizeof(struct ledger_head))
#define CLIENTS_OFF (CACHES_OFF + round_page(LAYOUT_MAX_CACHES * sizeof(struct ledger_cache)))
#define N_CLIENTS (LAYOUT_MAX_CLIENTS + 1)
#define UNITS_OFF                                                                                                                          \
	(CLIENTS_OFF + round_page(N_CLIENTS * sizeof(struct ledger_client)) + round_page(N_CLIENTS * sizeof(uint32_t)) +                   \
		round_page(N_CLIENTS) + round_page(N_CLIENTS * sizeof(struct session_dead)) + round_page(ROOT_MAX * sizeof(struct root)))

static void
it_refuses_what_is_not_sound(void)
{
	const struct {
		const char *memory;
		uint64_t off;
		const char *said;
	} spoils[] = {
		{"slabd:ledger", offsetof(struct ledger_head, magic), "ledger: it does not begin as one"},
		{"slabd:ledger", offsetof(struct ledger_head, layout_hash) + 3, "layout: the ledger is of layout"},
		{"slabd:ledger", offsetof(struct ledger_head, ledger_hash) + 3, "layout: the ledger is of layout"},
		{"slabd:ledger", offsetof(struct ledger_head, layout_version), "layout: the ledger is of layout"},
		{"slabd:ledger", offsetof(struct ledger_head, ledger_bytes) + 2, "ledger: its size is"},
		{"slabd:ledger", offsetof(struct ledger_head, words_bytes) + 2, "ledger: its size is"},
		{"slabd:ledger", offsetof(struct ledger_head, n_segments), "ledger: the table of data segments"},
		{"slabd:ledger", offsetof(struct ledger_head, segments) + offsetof(struct ledger_segment, n_pages), "ledger: the table of data segments"},
		{"slabd:ledger", offsetof(struct ledger_head, n_slabs) + 3, "ledger: a count is above its limit"},
		{"slabd:ledger", CACHES_OFF + sizeof(struct ledger_cache) + offsetof(struct ledger_cache, object_bytes), "caches: cache 1 has"},
		{"slabd:ledger", CLIENTS_OFF + sizeof(struct ledger_client) + offsetof(struct ledger_client, state), "sessions: client 1 is in a state"},
		{"slabd:ledger", CLIENTS_OFF + sizeof(struct ledger_client) + offsetof(struct ledger_client, is_readonly), "sessions: "},
		{"slabd:arena", LAYOUT_ARENA_PAGES_OFF + offsetof(struct layout_page, prod), "slabs: page map of slab 1"},
		{"slabd:arena", offsetof(struct layout_arena, n_pages), "arena segment: it is not the ledger's"},
	};
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k --arena-size=8M");
	struct slabc *c = harness_open(h, "witness");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	void *p = slabc_alloc(k);
	pid_t before = (pid_t)harness_status(h).pid;
	unsigned n_refused = 0;

	REQUIRE(p != NULL);
	for (size_t i = 0; i < sizeof spoils / sizeof spoils[0]; i++) {
		unsigned char byte, other;
		int fd;

		before = harness_stop_and_kill(h);
		fd = harness_open_held(h, spoils[i].memory, 0);
		REQUIRE(fd >= 0 && pread(fd, &byte, 1, (off_t)spoils[i].off) == 1);
		other = byte ^ 0x7f;
		REQUIRE(pwrite(fd, &other, 1, (off_t)spoils[i].off) == 1);
		n_refused++;
		kill(h->slabd, SIGCONT);
		CHECK(EVENTUALLY(harness_log_count(h, "slabd does not adopt") == n_refused));
		if (!CHECK(harness_log_count(h, spoils[i].said) > 0))
			printf("    spoil %zu\n", i);
		/* Mended, and tried again: all is as it was. */
		REQUIRE(pwrite(fd, &byte, 1, (off_t)spoils[i].off) == 1);
		close(fd);
		kill(h->slabd, SIGHUP);
		harness_wait_kept(h, before);
		CHECK(slabc_publish(c, "alive", slabc_ref_of(c, p), SLABC_REPLACE) == 0);
		harness_check_audit(h);
	}
	slabc_free(k, p);
	slabc_close(c);
	harness_check_at_rest(h);
}

/* The whole descriptor table, and each slab's fields, against what any byte of them may be: slabd adopts or refuses, and does neither by a crash. */
static void
it_any_byte_may_be_wrong(void)
{
	enum { N = 20 };
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k --arena-size=8M");
	struct slabc *c = harness_open(h, "witness");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	unsigned seed = harness_seed(), n_refused = 0;
	struct ledger_head head;

	REQUIRE(slabc_alloc(k) != NULL);
	for (int i = 0; i < N; i++) {
		pid_t before = harness_stop_and_kill(h);
		unsigned char byte, other;
		uint64_t off;
		int fd = harness_open_held(h, "slabd:ledger", 0);

		REQUIRE(fd >= 0 && pread(fd, &head, sizeof head, 0) == (ssize_t)sizeof head);
		off = UNITS_OFF + round_page(head.n_units) + sizeof(struct slab) + (unsigned)rand_r(&seed) % sizeof(struct slab);
		REQUIRE(pread(fd, &byte, 1, (off_t)off) == 1);
		other = byte ^ (unsigned char)(1 + rand_r(&seed) % 255);
		REQUIRE(pwrite(fd, &other, 1, (off_t)off) == 1);
		kill(h->slabd, SIGCONT);
		CHECK(EVENTUALLY(harness_log_count(h, "slabd does not adopt") > n_refused || harness_log_count(h, "adopted from slabd") > (unsigned)i));
		if (harness_log_count(h, "slabd does not adopt") > n_refused) {
			n_refused++;
			REQUIRE(pwrite(fd, &byte, 1, (off_t)off) == 1);
			kill(h->slabd, SIGHUP);
		}
		close(fd);
		harness_wait_kept(h, before);
	}
	CHECK(harness_log_count(h, "was killed by signal 11") == 0 && harness_log_count(h, "was killed by signal 6") == 0);
	CHECK(n_refused > 0);
	slabc_close(c);
}

/* A kill between the stores that make or unmake units of pages and page map entries, played in the ledger: what was coming or going goes. */
static void
it_undoes_what_was_half_done(void)
{
	enum { UNIT_BYTES = 65536, COMING = 126, GOING = 127 };
	static const uint8_t states[] = {LEDGER_UNIT_COMMITTING, LEDGER_UNIT_GIVING};
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k --arena-size=8M");
	struct slabc *c = harness_open(h, "witness");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	struct layout_page page = {0}, stray = {.slab = 77, .cache = 1};
	uint64_t page_off = LAYOUT_ARENA_PAGES_OFF + 15 * sizeof page;
	int ledger, arena, data;
	pid_t before;

	REQUIRE(slabc_alloc(k) != NULL);
	CHECK(EVENTUALLY(harness_has_committed_right(h)));
	before = harness_stop_and_kill(h);
	ledger = harness_open_held(h, "slabd:ledger", 0);
	arena = harness_open_held(h, "slabd:arena", 0);
	data = harness_open_held(h, "slabd:data", 0);
	REQUIRE(ledger >= 0 && arena >= 0 && data >= 0);
	REQUIRE(fallocate(data, 0, (off_t)COMING * UNIT_BYTES, 2 * UNIT_BYTES) == 0);
	REQUIRE(pwrite(ledger, states, 2, (off_t)(UNITS_OFF + COMING)) == 2);
	/* The last page of the unit in use is nobody's. */
	REQUIRE(pread(arena, &page, sizeof page, (off_t)page_off) == (ssize_t)sizeof page && page.cache == 0);
	stray.incarnation = page.incarnation;
	REQUIRE(pwrite(arena, &stray, sizeof stray, (off_t)page_off) == (ssize_t)sizeof stray);
	harness_go_on(h, before);
	CHECK(harness_has_committed_right(h));
	REQUIRE(pread(arena, &page, sizeof page, (off_t)page_off) == (ssize_t)sizeof page);
	CHECK(page.cache == 0 && page.incarnation != stray.incarnation);
	close(ledger);
	close(arena);
	close(data);
	slabc_close(c);
	CHECK(EVENTUALLY(harness_status(h).n_sessions == 0));
}

/* A script that starts slabd, with --start-empty once a file is there. */
static struct harness *
harness_emptying(void)
{
	struct harness *h = harness_new();
	char path[128];
	FILE *file;

	snprintf(path, sizeof path, "%s/start", h->dir);
	file = fopen(path, "we");
	REQUIRE(file != NULL);
	fprintf(file, "#!/bin/sh\n[ -e %s/empty ] && set -- \"$@\" --start-empty\nexec %s \"$@\"\n", h->dir, harness_path("SLABD"));
	REQUIRE(fclose(file) == 0 && chmod(path, 0755) == 0);
	h->is_kept = true;
	snprintf(h->program, sizeof h->program, "%s", path);
	REQUIRE(harness_start(h, NULL, "--page-kind=4k"));
	return h;
}

/* Every call says so, but those that need nobody: what is cached can be had, and freed. */
static void
check_stale(struct slabc *c, struct slabc_cache *k, void *p, slabc_ref ref)
{
	slabc_ref found;
	struct slabc_stats stats = SLABC_STATS_INIT;
	struct slabc_sheaf *s = NULL;
	struct slabc_cache *other;
	char name[256];
	void *many[2000], *one = NULL, *last;

	/* What it has cached goes first. */
	do {
		last = one;
		errno = 0;
		one = slabc_alloc(k);
	} while (one);
	CHECK(errno == ESTALE && strstr(slabc_last_error(), "open a new one"));
	CHECK(slabc_zalloc(k) == NULL && errno == ESTALE);
	CHECK(slabc_alloc_bulk(k, 2000, many) == -ESTALE);
	CHECK(slabc_prefill(k, 10) == NULL && errno == ESTALE);
	CHECK(slabc_refill(k, &s, 10) == -ESTALE);
	CHECK(slabc_cache_open(c, "other", 64, NULL, &other) == -ESTALE);
	CHECK(slabc_cache_shrink(k) == -ESTALE && slabc_cache_destroy(c, "k") == -ESTALE);
	CHECK(slabc_malloc(c, 100) == NULL && errno == ESTALE);
	CHECK(slabc_calloc(c, 2, 50) == NULL && errno == ESTALE);
	CHECK(slabc_memalign(c, 64, 100) == NULL && errno == ESTALE);
	CHECK(slabc_realloc(c, p, 5000) == NULL && errno == ESTALE);
	CHECK(slabc_give(c, p, 16386) == -ESTALE);
	CHECK(slabc_publish(c, "name", ref, 0) == -ESTALE && slabc_unpublish(c, "name") == -ESTALE);
	CHECK(slabc_lookup(c, "name", &found) == -ESTALE && slabc_lookup_wait(c, "name", &found, 1000) == -ESTALE);
	CHECK(slabc_next_root(c, "", "", name, &found) == -ESTALE);
	CHECK(slabc_next_orphan(k, 0) == 0 && errno == ESTALE);
	CHECK(slabc_adopt_orphan(c, ref) == NULL && errno == ESTALE);
	CHECK(slabc_get_stats(c, &stats) == -ESTALE);
	CHECK(slabc_valid(c, ref) == 0);
	CHECK(slabc_adopt(c, ref) == NULL && errno == ESTALE);
	CHECK(slabc_free_ref(c, ref) == -ESTALE);
	CHECK(slabc_usable_size(c, p) == 0 && errno == ESTALE);
	errno = 0;
	slabc_free(k, p);
	CHECK(errno == ESTALE);
	/* Memory is memory, and what no other has ever seen goes into the sheaf and comes from there. */
	errno = 0;
	CHECK(slabc_deref(c, ref) == p);
	slabc_free(k, last);
	CHECK(slabc_alloc(k) == last && errno == 0);
}

static void
it_stale_after_an_empty_start(void)
{
	CLEANUP(harness_free) struct harness *h = harness_emptying();
	struct slabc *c = harness_open(h, "stale"), *again;
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	uint32_t *p = slabc_alloc(k);
	slabc_ref ref = 0;
	char path[128];

	REQUIRE(p != NULL && (ref = slabc_ref_of(c, p)) != 0);
	*p = 5;
	snprintf(path, sizeof path, "%s/empty", h->dir);
	close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
	harness_kill_kept(h);
	CHECK(harness_status(h).n_sessions == 0);
	check_stale(c, k, p, ref);
	/* Another one beside it, and then alone. */
	again = harness_open(h, "new");
	k = harness_open_cache(again, "k", 64, 0);
	CHECK(slabc_alloc(k) != NULL);
	slabc_close(c);
	CHECK(slabc_alloc(k) != NULL);
	slabc_close(again);
}

/* The arena alone is gone: the next slabd's settings do not have it. */
static void
it_stale_without_its_arena(void)
{
	CLEANUP(harness_free) struct harness *h = harness_new();
	struct slabc_options o = SLABC_OPTIONS_INIT;
	struct slabc *c = NULL, *other;
	struct slabc_cache *k;
	char config[128];
	slabc_ref ref = 0;
	uint32_t *p;

	h->is_kept = true;
	harness_write_config(h, "[arena]\nsize = 8M\npage-kind = 4k\n[arena more]\nsize = 8M\npage-kind = 4k\n");
	snprintf(config, sizeof config, "--config=%s", harness_config(h));
	REQUIRE(harness_start(h, NULL, config));
	other = harness_open(h, "other");
	o.socket = h->socket;
	o.arena = "more";
	o.timeout_ms = HARNESS_PATIENCE_MS;
	REQUIRE(slabc_open(&c, &o) == 0);
	k = harness_open_cache(c, "k", 64, 0);
	REQUIRE((p = slabc_alloc(k)) != NULL && (ref = slabc_ref_of(c, p)) != 0);
	harness_write_config(h, "[arena]\nsize = 8M\npage-kind = 4k\n");
	harness_kill_kept(h);
	check_stale(c, k, p, ref);
	slabc_close(c);
	CHECK(slabc_open(&c, &o) == -ENOENT);
	o.arena = "default";
	REQUIRE(slabc_open(&c, &o) == 0);
	CHECK(slabc_alloc(harness_open_cache(c, "k", 64, 0)) != NULL && slabc_alloc(harness_open_cache(other, "k", 64, 0)) != NULL);
	slabc_close(c);
	slabc_close(other);
}

/* 32 GiB of address space, most of it never touched; make check-long asks how long it may take. */
static void
it_adopts_32_gib(void)
{
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k --arena-size=32G");
	struct slabc *c = harness_open(h, "large");
	struct slabc_cache *k = harness_open_cache(c, "k", 4096, 0);
	static void *p[4000];
	int64_t time;

	REQUIRE(slabc_alloc_bulk(k, 4000, p) == 0);
	time = harness_time_kill(h);
	CHECK(harness_log_count(h, "adopted from slabd") == 1);
	harness_check_audit(h);
	slabc_free_bulk(k, 4000, p);
	slabc_close(c);
	harness_check_at_rest(h);
	harness_print_times(h, &time, 1);
}

/* Killed at each step */

static struct {
	const char *step;
	unsigned skip;
} const deaths[] = {
	{"GRANT_MARKED", 0}, {"GRANT_MARKED", 500}, {"GRANT_WRITTEN", 3}, {"GRANT_SIZED", 0}, {"GRANT_SIZED", 9}, {"TAKE_SIZED", 4},
	{"TAKE_CHECKED", 0}, {"TAKE_CHECKED", 77}, {"TAKE_CLEARED", 0}, {"TAKE_CLEARED", 100}, {"TAKE_REMOVED", 0}, {"TAKE_REMOVED", 31},
	{"REAP_DRAINED", 0}, {"RECLAIM_READ", 0}, {"RECLAIM_READ", 7}, {"MAP_BUMPED", 0}, {"MAP_BUMPED", 3}, {"SLAB_DESCRIBED", 0},
	{"SLAB_DESCRIBED", 5}, {"SLAB_NAMED", 0}, {"SLAB_NAMED", 8}, {"SLAB_RETIRED", 0}, {"SLAB_RETIRED", 2}, {"UNIT_COMMITTING", 0},
	{"UNIT_COMMITTING", 3}, {"UNIT_CHANGED", 0}, {"UNIT_CHANGED", 4}, {"UNIT_GIVING", 0}, {"UNIT_GIVING", 1}, {"SESSION_KEPT", 1},
	{"SESSION_ENTERED", 1}, {"SESSION_ENDED", 0}, {"RECALL_REVOKED", 0}, {"RECALL_TAKEN", 0}, {"REAP_ORDINARY", 0}, {"REAP_WALKED", 0},
	{"TAKE_REMOVED", 2600}, {"TAKE_CLEARED", 2700}, {"TAKE_REMOVED", 2850},
};

/* Comes and goes with a cache of its own: slabs, units and sessions do, too. */
static void
come_and_go(struct peer *me, void *arg)
{
	struct harness *h = arg;
	static void *p[3000];

	for (int turn = 0; turn < 3; turn++) {
		struct slabc *c = harness_open(h, "comes and goes");
		struct slabc_cache *k = harness_open_cache(c, "turns", 128, SLABC_RECLAIM), *kept = harness_open_cache(c, "kept", 512, 0);
		struct slabc_sheaf *s;

		CHECK(slabc_alloc_bulk(k, 3000, p) == 0);
		memset(p[2999], turn, 128);
		slabc_free_bulk(k, 2000, p);
		CHECK((s = slabc_prefill(k, 50)) != NULL);
		CHECK(slabc_cache_shrink(k) == 0);
		slabc_return(k, s);
		CHECK(slabc_ref_of(c, slabc_alloc(kept)) != 0);
		CHECK((p[0] = slabc_malloc(c, 200000)) != NULL);
		slabc_mfree(c, p[0]);
		/* A third of the objects is held at the end. */
		slabc_close(c);
	}
	peer_tell(me, 'd');
	peer_await(me, 'e');
}

static void
die_at(const char *path, unsigned i)
{
	CLEANUP(harness_free) struct harness *h = harness_new();
	struct slabc *c;
	struct slabc_cache *k;
	char marker[128];
	pid_t pid;
	void *p;

	snprintf(marker, sizeof marker, "%s/died", h->dir);
	snprintf(h->program, sizeof h->program, "%s %s %u %s", path, deaths[i].step, deaths[i].skip, marker);
	h->is_kept = true;
	REQUIRE(harness_start(h, NULL, "--page-kind=4k --arena-size=64M"));
	c = harness_open(h, "witness");
	k = harness_open_cache(c, "turns", 128, SLABC_RECLAIM);
	CHECK((p = slabc_alloc(k)) != NULL);
	pid = harness_spawn(h, come_and_go, h);
	peer_await(harness_peer(h, pid), 'd');
	if (!CHECK(access(marker, F_OK) == 0))
		printf("    never at %s %u\n", deaths[i].step, deaths[i].skip);
	harness_wait_kept(h, 0);
	/* Its last session may be looked at a second later only. */
	CHECK(EVENTUALLY(harness_status(h).n_sessions == 1));
	if (!CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0 && harness_audit(h).n_undecided == 0))
		printf("    at %s %u\n", deaths[i].step, deaths[i].skip);
	/* Nothing has been taken back a second time, or would have been, had it been lent again. */
	if (!CHECK(harness_log_count(h, "are in two places") == 0 && harness_log_count(h, "such faults") == 0))
		printf("    at %s %u\n", deaths[i].step, deaths[i].skip);
	slabc_free(k, p);
	/* Of its thread's sheaf none is left revoked. */
	if (!CHECK((p = slabc_alloc(k)) != NULL))
		printf("    at %s %u: %s\n", deaths[i].step, deaths[i].skip, slabc_last_error());
	slabc_free(k, p);
	slabc_cache_close(k);
	if (!CHECK(EVENTUALLY(harness_audit_cache(h, "turns").n_out == 0)) || !CHECK(harness_audit_cache(h, "kept").n_orphans == 3))
		printf("    at %s %u: %u out, %u orphans\n", deaths[i].step, deaths[i].skip, (unsigned)harness_audit_cache(h, "turns").n_out,
			(unsigned)harness_audit_cache(h, "kept").n_orphans);
	slabc_close(c);
	peer_tell(harness_peer(h, pid), 'e');
	harness_join(h, pid);
	/* And that one's ledger can be adopted as well. */
	harness_kill_kept(h);
	harness_check_audit(h);
	if (!CHECK(EVENTUALLY(harness_has_committed_right(h))) || !CHECK(harness_count_kept(h) == 0))
		printf("    at %s %u\n", deaths[i].step, deaths[i].skip);
}

/* Answers that were lost: the request was carried out, and slabd killed before it said so. */

/* The next request but n kills slabd.  The harness has made one, HELLO. */
static struct harness *
harness_mute_after(const char *path, unsigned n)
{
	struct harness *h = harness_new();

	snprintf(h->program, sizeof h->program, "%s REQUEST_DONE %u %s/died", path, n + 1, h->dir);
	h->is_kept = true;
	REQUIRE(harness_start(h, NULL, "--page-kind=4k --arena-size=64M"));
	return h;
}

static void
it_lost_answers_are_made_good(void)
{
	enum { HELLO, ATTACH, OPEN, FIRST };
	const char *path = getenv("SLABD_DIE_AT") ? getenv("SLABD_DIE_AT") : "build/steps/tests/die_at";
	char marker[128];

	if (access(path, X_OK) < 0) {
		skip_without(path);
		return;
	}
	for (unsigned what = 0; what < 5; what++) {
		/* What they ask before: nothing, a refill, and PUBLISH, or DESTROY's look, or HELLO and ATTACH of a second session. */
		static const unsigned n_before[] = {0, 1, 2, 1, 3};
		CLEANUP(harness_free) struct harness *h = harness_mute_after(path, FIRST + n_before[what]);
		struct slabc *c = harness_open(h, "deaf"), *d = NULL;
		struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
		struct slabc_sheaf *s;
		slabc_ref ref = 0;
		void *p = NULL;

		if (what == 1 || what == 2 || what == 4) {
			REQUIRE((p = slabc_alloc(k)) != NULL);
			ref = slabc_ref_of(c, p);
		}
		snprintf(marker, sizeof marker, "%s/died", h->dir);
		switch (what) {
		case 0:
			CHECK((s = slabc_prefill(k, 40)) != NULL);
			break;
		case 1:
			CHECK(slabc_publish(c, "name", ref, 0) == 0);
			CHECK(slabc_publish(c, "name", ref, 0) == -EEXIST);
			break;
		case 2:
			CHECK(slabc_publish(c, "name", ref, 0) == 0);
			CHECK(slabc_unpublish(c, "name") == 0);
			CHECK(slabc_unpublish(c, "name") == -ENOENT);
			break;
		case 3:
			CHECK(slabc_cache_destroy(c, "k") == 0);
			CHECK(slabc_cache_destroy(c, "k") == -ENOENT);
			break;
		case 4:
			d = harness_open(h, "receiver");
			CHECK(slabc_give(c, p, slabc_client_id(d)) == 0);
			CHECK(slabc_give(c, p, slabc_client_id(d)) == -EINVAL);
			break;
		}
		if (!CHECK(access(marker, F_OK) == 0))
			printf("    nobody died in %u\n", what);
		harness_wait_kept(h, 0);
		/* Of the sheaf that was granted and not heard of nothing is with the program. */
		CHECK(what != 0 || (harness_cache(h, "k").n_app == 40 && EVENTUALLY(slabc_cache_shrink(k) == 0 && harness_cache(h, "k").n_returned == 0)));
		harness_check_audit(h);
		slabc_close(d);
		slabc_close(c);
	}
}

/* A revocation under way when slabd is killed: the next one withdraws it, or finishes it if the sheaf was taken; its thread sleeps meanwhile. */

enum { N_ASLEEP = 30 };

static void
sleep_on_it(struct peer *me, void *arg)
{
	struct slabc_cache_options o = SLABC_CACHE_OPTIONS_INIT;
	struct slabc_options options = SLABC_OPTIONS_INIT;
	const struct harness *h = arg;
	struct slabc *c = NULL;
	struct slabc_cache *k = NULL;
	void *p[N_ASLEEP], *more[N_ASLEEP];

	options.socket = h->socket;
	options.timeout_ms = HARNESS_PATIENCE_MS;
	o.sheaf_capacity = 2 * N_ASLEEP;
	CHECK(slabc_open(&c, &options) == 0 && slabc_cache_open(c, "asleep", 64, &o, &k) == 0);
	CHECK(slabc_alloc_bulk(k, N_ASLEEP, p) == 0);
	slabc_free_bulk(k, N_ASLEEP, p);
	peer_tell(me, 'r');
	/* First without slabd, then with it. */
	peer_await(me, 'a');
	for (int i = 0; i < N_ASLEEP; i++)
		CHECK((more[i] = slabc_alloc(k)) != NULL);
	peer_tell(me, 'd');
	peer_await(me, 'e');
	for (int i = 0; i < N_ASLEEP; i++)
		slabc_free(k, more[i]);
	slabc_close(c);
}

/* It says something while slabd is stopped, soon. */
static bool
is_heard(const struct peer *peer)
{
	struct pollfd p = {.fd = peer->in, .events = POLLIN};

	return poll(&p, 1, HARNESS_PATIENCE_MS / 4) == 1;
}

static void
die_while_revoking(const char *path, const char *step, bool is_taken)
{
	CLEANUP(harness_free) struct harness *h = harness_new();
	union proto_request request = {0};
	struct proto_caches_reply before, after;
	char marker[128];
	pid_t pid, slabd;
	int fd;

	snprintf(marker, sizeof marker, "%s/died", h->dir);
	snprintf(h->program, sizeof h->program, "%s %s 0 %s", path, step, marker);
	h->is_kept = true;
	REQUIRE(harness_start(h, NULL, "--page-kind=4k --arena-size=64M"));
	pid = harness_spawn(h, sleep_on_it, h);
	peer_await(harness_peer(h, pid), 'r');
	before = harness_cache(h, "asleep");
	slabd = (pid_t)harness_status(h).pid;
	REQUIRE(before.n_thread >= N_ASLEEP);
	request.shrink.cache = before.cache;
	REQUIRE((fd = raw_connect(h->socket)) >= 0 && raw_hello(fd) == 0);
	REQUIRE(raw_send(fd, PROTO_OP_SHRINK, 7, &request) == 0);
	CHECK(EVENTUALLY(access(marker, F_OK) == 0));
	close(fd);
	harness_wait_kept(h, slabd);
	harness_check_audit(h);
	after = harness_cache(h, "asleep");
	slabd = (pid_t)harness_status(h).pid;
	if (is_taken) {
		CHECK(after.n_thread < before.n_thread && after.n_free + after.n_stash > before.n_free + before.n_stash);
		peer_tell(harness_peer(h, pid), 'a');
		peer_await(harness_peer(h, pid), 'd');
	} else {
		/* The sheaf is as it was, so much so that it needs no slabd. */
		CHECK(after.n_thread == before.n_thread && after.n_free == before.n_free);
		REQUIRE(kill(slabd, SIGSTOP) == 0);
		peer_tell(harness_peer(h, pid), 'a');
		CHECK(is_heard(harness_peer(h, pid)));
		REQUIRE(kill(slabd, SIGCONT) == 0);
		peer_await(harness_peer(h, pid), 'd');
	}
	harness_check_audit(h);
	CHECK(harness_audit_cache(h, "asleep").n_held == N_ASLEEP);
	peer_tell(harness_peer(h, pid), 'e');
	harness_join(h, pid);
	CHECK(EVENTUALLY(harness_audit_cache(h, "asleep").n_out == 0));
	harness_check_audit(h);
}

static void
it_revocations_are_withdrawn_or_finished(void)
{
	const char *path = getenv("SLABD_DIE_AT") ? getenv("SLABD_DIE_AT") : "build/steps/tests/die_at";

	if (access(path, X_OK) < 0) {
		skip_without(path);
		return;
	}
	die_while_revoking(path, "RECALL_REVOKED", false);
	die_while_revoking(path, "RECALL_TAKEN", true);
	die_while_revoking(path, "TAKE_CHECKED", true);
	die_while_revoking(path, "TAKE_REMOVED", true);
}

static void
die_at_some(unsigned from, unsigned n)
{
	const char *path = getenv("SLABD_DIE_AT") ? getenv("SLABD_DIE_AT") : "build/steps/tests/die_at";

	if (access(path, X_OK) < 0) {
		skip_without(path);
		return;
	}
	for (unsigned i = from; i < from + n && i < sizeof deaths / sizeof deaths[0]; i++)
		die_at(path, i);
}

static void
it_killed_at_grant_and_take_back(void)
{
	die_at_some(0, 12);
}

static void
it_killed_at_reaping_and_slabs(void)
{
	die_at_some(12, 11);
}

static void
it_killed_at_units_and_sessions(void)
{
	die_at_some(23, 16);
}

CU_pSuite
it_adopt_suite(void)
{
	CU_pSuite suite = harness_suite("adopt");

	CU_ADD_TEST(suite, it_clients_go_on);
	CU_ADD_TEST(suite, it_twenty_kills_in_a_row);
	CU_ADD_TEST(suite, it_kills_with_two_loops);
	CU_ADD_TEST(suite, it_kills_in_want);
	CU_ADD_TEST(suite, it_client_dies_meanwhile);
	CU_ADD_TEST(suite, it_names_and_orphans_stay);
	CU_ADD_TEST(suite, it_caches_stay);
	CU_ADD_TEST(suite, it_readers_go_on);
	CU_ADD_TEST(suite, it_waiting_for_a_name);
	CU_ADD_TEST(suite, it_deadlines_are_kept);
	CU_ADD_TEST(suite, it_many_connect_at_once);
	CU_ADD_TEST(suite, it_token_and_process_must_be_right);
	CU_ADD_TEST(suite, it_program_closes_all);
	CU_ADD_TEST(suite, it_keeper_is_killed);
	CU_ADD_TEST(suite, it_keeper_passes_on);
	CU_ADD_TEST(suite, it_predecessor_must_be_dead);
	CU_ADD_TEST(suite, it_settings_change_meanwhile);
	CU_ADD_TEST(suite, it_refuses_what_is_not_sound);
	CU_ADD_TEST(suite, it_any_byte_may_be_wrong);
	CU_ADD_TEST(suite, it_undoes_what_was_half_done);
	CU_ADD_TEST(suite, it_stale_after_an_empty_start);
	CU_ADD_TEST(suite, it_stale_without_its_arena);
	CU_ADD_TEST(suite, it_adopts_32_gib);
	CU_ADD_TEST(suite, it_lost_answers_are_made_good);
	CU_ADD_TEST(suite, it_revocations_are_withdrawn_or_finished);
	CU_ADD_TEST(suite, it_killed_at_grant_and_take_back);
	CU_ADD_TEST(suite, it_killed_at_reaping_and_slabs);
	CU_ADD_TEST(suite, it_killed_at_units_and_sessions);
	return suite;
}
