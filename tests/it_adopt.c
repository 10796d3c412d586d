/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slabd is killed, and its clients do not notice: what the next slabd adopts, whom it knows again, and when it refuses (design.md, I6).
 *
 * Slabd runs under slabd-keeper here; tests/check-systemd.sh has the same with systemd.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
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

enum { N_BUSY = 8, N_KILLS = 20, MAX_HELD = 600, OBJECT_BYTES = 256 };

/* Busy clients */

static struct busy_task {
	struct harness *h;
	unsigned number;
} busy_tasks[N_BUSY];

static int
is_told(const struct peer *me)
{
	fd_set set;
	struct timeval none = {0};

	FD_ZERO(&set);
	FD_SET(me->in, &set);
	return select(me->in + 1, &set, NULL, NULL, &none) == 1;
}

static struct slabc *
open_patient(const struct harness *h, const char *label)
{
	struct slabc_options o = SLABC_OPTIONS_INIT;
	struct slabc *c = NULL;

	o.socket = h->socket;
	o.label = label;
	o.timeout_ms = HARNESS_PATIENCE_MS;
	REQUIRE(slabc_open(&c, &o) == 0);
	return c;
}

static uint32_t
draw(uint32_t *x)
{
	*x ^= *x << 13;
	*x ^= *x >> 17;
	return *x ^= *x << 5;
}

/* Allocates and frees, in ones and in bulk, prefills, runs, shares and publishes until it is told: each object is its own, and no call fails. */
static void
be_busy(struct peer *me, void *arg)
{
	const struct busy_task *task = arg;
	struct slabc *c = open_patient(task->h, "busy");
	struct slabc_cache *k = harness_open_cache(c, "busy", OBJECT_BYTES, 0), *other = harness_open_cache(c, "other", 64, 0);
	static uint32_t *held[MAX_HELD];
	uint32_t x = 77 + task->number * 1000003, n_turns = 0;
	void *bulk[64];
	char name[32];

	snprintf(name, sizeof name, "root%u", task->number);
	peer_tell(me, 'r');
	while (!is_told(me)) {
		uint32_t i = draw(&x) % MAX_HELD, what = draw(&x) % 2000;

		if (held[i]) {
			CHECK(held[i][0] == (task->number << 16 | i) && held[i][OBJECT_BYTES / 4 - 1] == held[i][0]);
			slabc_free(k, held[i]);
			held[i] = NULL;
		} else {
			held[i] = slabc_alloc(k);
			CHECK(held[i] != NULL);
			held[i][0] = held[i][OBJECT_BYTES / 4 - 1] = task->number << 16 | i;
		}
		if (what == 0 && held[i]) {
			slabc_ref ref = slabc_ref_of(c, held[i]), found = 0;

			CHECK(slabc_publish(c, name, ref, SLABC_REPLACE) == 0);
			CHECK(slabc_lookup(c, name, &found) == 0 && found == ref);
			CHECK(slabc_unpublish(c, name) == 0);
		} else if (what == 1) {
			struct slabc_sheaf *s = slabc_prefill(k, 40);
			void *p;

			CHECK(s != NULL);
			CHECK((p = slabc_alloc_from(k, s)) != NULL);
			slabc_return(k, s);
			slabc_free(k, p);
		} else if (what == 2) {
			void *p = slabc_malloc(c, 100000);

			CHECK(p != NULL);
			slabc_mfree(c, p);
		} else if (what < 40) {
			CHECK(slabc_alloc_bulk(other, 64, bulk) == 0);
			slabc_free_bulk(other, 64, bulk);
		} else if (what == 41) {
			CHECK(slabc_cache_shrink(k) == 0);
		}
		n_turns++;
	}
	peer_await(me, 's');
	peer_put(me, &n_turns, sizeof n_turns);
	for (uint32_t i = 0; i < MAX_HELD; i++)
		slabc_free(k, held[i]);
	slabc_cache_close(k);
	slabc_cache_close(other);
	slabc_close(c);
	peer_await(me, 'e');
}

static void
start_busy(struct harness *h, unsigned n, pid_t *pids)
{
	for (unsigned i = 0; i < n; i++) {
		busy_tasks[i] = (struct busy_task){h, i};
		pids[i] = harness_spawn(h, be_busy, &busy_tasks[i]);
	}
	for (unsigned i = 0; i < n; i++)
		peer_await(harness_peer(h, pids[i]), 'r');
}

static void
stop_busy(struct harness *h, unsigned n, const pid_t *pids)
{
	uint32_t n_turns;

	for (unsigned i = 0; i < n; i++)
		peer_tell(harness_peer(h, pids[i]), 's');
	for (unsigned i = 0; i < n; i++) {
		peer_get(harness_peer(h, pids[i]), &n_turns, sizeof n_turns);
		CHECK(n_turns > 0);
	}
	for (unsigned i = 0; i < n; i++)
		peer_tell(harness_peer(h, pids[i]), 'e');
	for (unsigned i = 0; i < n; i++)
		harness_join(h, pids[i]);
}

/* Session segments that the keeper has. */
static unsigned
count_kept(const struct harness *h)
{
	char path[320], link[64];
	struct dirent *e;
	unsigned n = 0;
	DIR *dir;

	snprintf(path, sizeof path, "/proc/%d/fd", h->slabd);
	dir = opendir(path);
	while (dir && (e = readdir(dir))) {
		ssize_t length;

		snprintf(path, sizeof path, "/proc/%d/fd/%s", h->slabd, e->d_name);
		length = readlink(path, link, sizeof link);
		n += length > 20 && strncmp(link, "/memfd:slabd:session", 20) == 0;
	}
	if (dir)
		closedir(dir);
	return n;
}

static void
check_audit(struct harness *h)
{
	struct proto_audit_reply audit = harness_audit(h);

	CHECK(audit.n_lost == 0);
	CHECK(audit.n_doubled == 0);
	CHECK(audit.n_undecided == 0);
}

/* What slabd says it has committed is what the segments have. */
static bool
has_committed_right(struct harness *h)
{
	struct proto_status_reply status = harness_status(h);

	return status.committed_bytes == status.bytes_4k;
}

/* All have gone: nothing is out, or in a barn, nothing more is kept for anybody, and no page is committed that is not counted. */
static void
check_at_rest(struct harness *h)
{
	CHECK(EVENTUALLY(harness_status(h).n_sessions == 0));
	check_audit(h);
	CHECK(harness_audit(h).n_out == 0 && harness_audit(h).n_barn == 0);
	CHECK(EVENTUALLY(count_kept(h) == 0));
	CHECK(EVENTUALLY(has_committed_right(h)));
}

static void
it_clients_go_on(void)
{
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k");
	pid_t pids[2];

	start_busy(h, 2, pids);
	CHECK(EVENTUALLY(count_kept(h) == 2));
	harness_kill_kept(h);
	CHECK(harness_log_count(h, "adopted from slabd") == 1);
	check_audit(h);
	CHECK(EVENTUALLY(harness_log_count(h, "has taken its session up again") == 2));
	check_audit(h);
	stop_busy(h, 2, pids);
	check_at_rest(h);
}

/* One kill after the other, some of them in the midst of an adoption. */
static void
storm(const char *arguments, unsigned n_kills)
{
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, arguments);
	pid_t pids[N_BUSY];
	unsigned seed = harness_seed();

	start_busy(h, N_BUSY, pids);
	for (unsigned i = 0; i < n_kills; i++) {
		for (unsigned ms = (unsigned)rand_r(&seed) % 60; ms > 0; ms--)
			harness_pause();
		harness_kill_kept(h);
		check_audit(h);
	}
	stop_busy(h, N_BUSY, pids);
	check_at_rest(h);
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

/* The keeper stops, and slabd dies: nobody starts the next until go_on(). Its pid. */
static pid_t
stop_and_kill(struct harness *h)
{
	pid_t pid = (pid_t)harness_status(h).pid;

	/* What it was sent it has. */
	CHECK(EVENTUALLY(count_kept(h) == harness_status(h).n_sessions));
	REQUIRE(kill(h->slabd, SIGSTOP) == 0);
	REQUIRE(kill(pid, SIGKILL) == 0);
	return pid;
}

static void
go_on(struct harness *h, pid_t before)
{
	REQUIRE(kill(h->slabd, SIGCONT) == 0);
	harness_wait_kept(h, before);
}

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
	struct slabc *c = open_patient(task->h, "kept");
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
	struct slabc *c = open_patient(h, "neighbour");
	struct slabc_cache *k = harness_open_cache(c, "kept", 64, 0);

	for (int i = 0; i < 2; i++) {
		peer_get(harness_peer(h, pids[i]), &kept.ref, sizeof kept.ref);
		peer_get(harness_peer(h, pids[i]), &kept.client_id, sizeof kept.client_id);
	}
	REQUIRE(harness_audit_cache(h, "reclaimed").n_held == 500);
	before = stop_and_kill(h);
	harness_kill(h, pids[0], SIGKILL);
	harness_kill(h, pids[1], SIGKILL);
	go_on(h, before);
	CHECK(harness_log_count(h, "has ended: 500 of its objects freed") == 1);
	CHECK(harness_log_count(h, "has ended: 500 kept for who adopts them") == 1);
	CHECK(harness_audit_cache(h, "kept").n_orphans == 500 && harness_audit_cache(h, "reclaimed").n_out == 0);
	check_audit(h);
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
	struct slabc *c = open_patient(h, "names");
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
	check_audit(h);
	slabc_close(c);
}

/* Knobs, as they were tuned; a cache without owner words, whose lost objects nobody can tell; what was set aside for a client comes back. */
static void
it_caches_stay(void)
{
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k");
	struct slabc *c = open_patient(h, "caches");
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
	other = open_patient(h, "other");
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
	check_audit(h);
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
	struct slabc *c = open_patient(h, "writer"), *reader = NULL;
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
	struct slabc *c = open_patient(arg, "waiter");
	slabc_ref ref = 0;

	peer_tell(me, 'w');
	CHECK(slabc_lookup_wait(c, "late", &ref, HARNESS_PATIENCE_MS) == 0 && ref != 0);
	slabc_close(c);
}

static void
it_waiting_for_a_name(void)
{
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k");
	struct slabc *c = open_patient(h, "publisher");
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
	before = stop_and_kill(h);
	start = harness_now_ns();
	CHECK(slabc_alloc(k) == NULL && errno == ETIMEDOUT);
	CHECK(harness_now_ns() - start > INT64_C(250000000));
	CHECK(slabc_cache_open(c, "other", 64, NULL, &other) == -ETIMEDOUT);
	start = harness_now_ns();
	CHECK(slabc_alloc(nowait) == NULL && errno == EAGAIN);
	CHECK(harness_now_ns() - start < INT64_C(200000000));
	go_on(h, before);
	CHECK((p = slabc_alloc(k)) != NULL);
	slabc_free(k, p);
	CHECK(EVENTUALLY((p = slabc_alloc(nowait)) != NULL || errno != EAGAIN) && p != NULL);
	slabc_free(nowait, p);
	CHECK(slabc_cache_open(c, "other", 64, NULL, &other) == 0);
	slabc_close(c);
	check_at_rest(h);
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
	struct slabc *c = open_patient(arg, "closes all");
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
	check_audit(h);
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
	c = open_patient(h, "user");
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

/* The keeper's descriptor of the memory of that name, opened anew; -1: none. */
static int
open_held(const struct harness *h, const char *name)
{
	char path[320], link[64] = {0};
	struct dirent *e;
	DIR *dir;
	int fd = -1;

	snprintf(path, sizeof path, "/proc/%d/fd", h->slabd);
	dir = opendir(path);
	while (dir && (e = readdir(dir)) && fd < 0) {
		ssize_t n;

		snprintf(path, sizeof path, "/proc/%d/fd/%s", h->slabd, e->d_name);
		n = readlink(path, link, sizeof link - 1);
		if (n > 0 && strncmp(link, "/memfd:", 7) == 0 && strncmp(link + 7, name, strlen(name)) == 0)
			fd = open(path, O_RDWR | O_CLOEXEC);
	}
	if (dir)
		closedir(dir);
	return fd;
}

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
	struct slabc *c = open_patient(h, "witness");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	void *p = slabc_alloc(k);
	pid_t before = (pid_t)harness_status(h).pid;
	unsigned n_refused = 0;

	REQUIRE(p != NULL);
	for (size_t i = 0; i < sizeof spoils / sizeof spoils[0]; i++) {
		unsigned char byte, other;
		int fd;

		before = stop_and_kill(h);
		fd = open_held(h, spoils[i].memory);
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
		check_audit(h);
	}
	slabc_free(k, p);
	slabc_close(c);
	check_at_rest(h);
}

/* The whole descriptor table, and each slab's fields, against what any byte of them may be: slabd adopts or refuses, and does neither by a crash. */
static void
it_any_byte_may_be_wrong(void)
{
	enum { N = 20 };
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k --arena-size=8M");
	struct slabc *c = open_patient(h, "witness");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	unsigned seed = harness_seed(), n_refused = 0;
	struct ledger_head head;

	REQUIRE(slabc_alloc(k) != NULL);
	for (int i = 0; i < N; i++) {
		pid_t before = stop_and_kill(h);
		unsigned char byte, other;
		uint64_t off;
		int fd = open_held(h, "slabd:ledger");

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
	struct slabc *c = open_patient(h, "witness");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	struct layout_page page = {0}, stray = {.slab = 77, .cache = 1};
	uint64_t page_off = LAYOUT_ARENA_PAGES_OFF + 15 * sizeof page;
	int ledger, arena, data;
	pid_t before;

	REQUIRE(slabc_alloc(k) != NULL);
	CHECK(EVENTUALLY(has_committed_right(h)));
	before = stop_and_kill(h);
	ledger = open_held(h, "slabd:ledger");
	arena = open_held(h, "slabd:arena");
	data = open_held(h, "slabd:data");
	REQUIRE(ledger >= 0 && arena >= 0 && data >= 0);
	REQUIRE(fallocate(data, 0, (off_t)COMING * UNIT_BYTES, 2 * UNIT_BYTES) == 0);
	REQUIRE(pwrite(ledger, states, 2, (off_t)(UNITS_OFF + COMING)) == 2);
	/* The last page of the unit in use is nobody's. */
	REQUIRE(pread(arena, &page, sizeof page, (off_t)page_off) == (ssize_t)sizeof page && page.cache == 0);
	stray.incarnation = page.incarnation;
	REQUIRE(pwrite(arena, &stray, sizeof stray, (off_t)page_off) == (ssize_t)sizeof stray);
	go_on(h, before);
	CHECK(has_committed_right(h));
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

static void
it_stale_after_an_empty_start(void)
{
	CLEANUP(harness_free) struct harness *h = harness_emptying();
	struct slabc *c = open_patient(h, "stale");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0), *other;
	uint32_t *p = slabc_alloc(k), *more;
	struct slabc_stats stats = SLABC_STATS_INIT;
	slabc_ref ref;
	char path[128];

	*p = 5;
	ref = slabc_ref_of(c, p);
	snprintf(path, sizeof path, "%s/empty", h->dir);
	close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
	harness_kill_kept(h);
	CHECK(harness_status(h).n_sessions == 0);
	/* What it has cached goes first. */
	do {
		errno = 0;
		more = slabc_alloc(k);
	} while (more);
	CHECK(errno == ESTALE && strstr(slabc_last_error(), "open a new one"));
	CHECK(slabc_cache_open(c, "other", 64, NULL, &other) == -ESTALE);
	CHECK(slabc_publish(c, "name", ref, 0) == -ESTALE && slabc_lookup(c, "name", &ref) == -ESTALE);
	CHECK(slabc_get_stats(c, &stats) == -ESTALE && slabc_cache_shrink(k) == -ESTALE && slabc_cache_destroy(c, "k") == -ESTALE);
	CHECK(slabc_malloc(c, 100) == NULL && errno == ESTALE);
	CHECK(slabc_prefill(k, 10) == NULL && errno == ESTALE);
	CHECK(*p == 5);
	slabc_close(c);
	c = open_patient(h, "new");
	k = harness_open_cache(c, "k", 64, 0);
	CHECK(slabc_alloc(k) != NULL);
	slabc_close(c);
}

/* Speed: 32 GiB of address space, most of it never touched. */
static void
it_adopts_32_gib_in_100_ms(void)
{
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k --arena-size=32G");
	struct slabc *c = open_patient(h, "large");
	struct slabc_cache *k = harness_open_cache(c, "k", 4096, 0);
	static void *p[4000];
	unsigned long us = 0;
	char line[512];
	FILE *log;

	REQUIRE(slabc_alloc_bulk(k, 4000, p) == 0);
	harness_kill_kept(h);
	log = fopen(h->log, "re");
	while (log && fgets(line, sizeof line, log))
		if (strstr(line, "adopted from slabd"))
			sscanf(strstr(line, "way, in "), "way, in %lu us", &us);
	if (log)
		fclose(log);
	printf(" %lu us ", us);
	CHECK(us > 0 && us < 100000);
	slabc_free_bulk(k, 4000, p);
	slabc_close(c);
	check_at_rest(h);
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
};

/* Comes and goes with a cache of its own: slabs, units and sessions do, too. */
static void
come_and_go(struct peer *me, void *arg)
{
	struct harness *h = arg;
	static void *p[3000];

	for (int turn = 0; turn < 3; turn++) {
		struct slabc *c = open_patient(h, "comes and goes");
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
	c = open_patient(h, "witness");
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
	check_audit(h);
	if (!CHECK(EVENTUALLY(has_committed_right(h))) || !CHECK(count_kept(h) == 0))
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
		struct slabc *c = open_patient(h, "deaf"), *d = NULL;
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
			d = open_patient(h, "receiver");
			CHECK(slabc_give(c, p, slabc_client_id(d)) == 0);
			CHECK(slabc_give(c, p, slabc_client_id(d)) == -EINVAL);
			break;
		}
		if (!CHECK(access(marker, F_OK) == 0))
			printf("    nobody died in %u\n", what);
		harness_wait_kept(h, 0);
		/* Of the sheaf that was granted and not heard of nothing is with the program. */
		CHECK(what != 0 || (harness_cache(h, "k").n_app == 40 && EVENTUALLY(slabc_cache_shrink(k) == 0 && harness_cache(h, "k").n_returned == 0)));
		check_audit(h);
		slabc_close(d);
		slabc_close(c);
	}
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
	die_at_some(23, 13);
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
	CU_ADD_TEST(suite, it_adopts_32_gib_in_100_ms);
	CU_ADD_TEST(suite, it_lost_answers_are_made_good);
	CU_ADD_TEST(suite, it_killed_at_grant_and_take_back);
	CU_ADD_TEST(suite, it_killed_at_reaping_and_slabs);
	CU_ADD_TEST(suite, it_killed_at_units_and_sessions);
	return suite;
}
