/* SPDX-License-Identifier: Apache-2.0 */
/* Roots: names for references, seen by all, gone with their objects; and waiting for one without asking again and again. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "proto/channel.h"
#include "proto/codec.h"
#include "server/watch.h"
#include "tests/harness.h"

CU_pSuite it_root_suite(void);

/* Waits for a root in a process or thread of its own. */
struct waiter {
	struct harness *h;
	struct slabc *c;
	const char *name;
	int timeout_ms;
	int r;
	int error;
	slabc_ref ref;
	long n_switches;
	int64_t took_ns;
};

static slabc_ref
make_object(struct slabc *c, struct slabc_cache *k, int value)
{
	int *p = slabc_alloc(k);

	REQUIRE(p != NULL);
	*p = value;
	return slabc_ref_of(c, p);
}

/* A child finds what is published, reads it, and publishes for the parent. */
static void
find_and_answer(struct peer *me, void *arg)
{
	struct harness *h = arg;
	struct slabc *c = harness_open(h, "finder");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	slabc_ref ref = 0;
	int *p;

	CHECK(slabc_lookup(c, "to the child", &ref) == 0);
	p = slabc_deref(c, ref);
	CHECK(p != NULL && *p == 17);
	CHECK(slabc_publish(c, "to the parent", make_object(c, k, 18), 0) == 0);
	peer_tell(me, 'p');
	peer_await(me, 'e');
}

/* A name leads every process of the arena to the same object; taken names, replaced ones, missing ones and bad ones are told apart. */
static void
it_names_lead_to_objects(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "root");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	slabc_ref ref = make_object(c, k, 17), other = make_object(c, k, 19), found = 0;
	char name[SLABC_MAX_ROOT_NAME + 2];
	pid_t pid;
	int *p;

	CHECK(slabc_lookup(c, "to the child", &found) == -ENOENT);
	CHECK(strstr(slabc_last_error(), "to the child") != NULL);
	CHECK(slabc_publish(c, "to the child", ref, 0) == 0);
	CHECK(slabc_publish(c, "to the child", other, 0) == -EEXIST);
	CHECK(slabc_publish(c, "to the child", other, SLABC_REPLACE) == 0);
	CHECK(slabc_lookup(c, "to the child", &found) == 0 && found == other);
	CHECK(slabc_publish(c, "to the child", ref, SLABC_REPLACE) == 0);
	pid = harness_spawn(h, find_and_answer, h);
	peer_await(harness_peer(h, pid), 'p');
	CHECK(slabc_lookup(c, "to the parent", &found) == 0);
	p = slabc_deref(c, found);
	CHECK(p != NULL && *p == 18);
	CHECK(slabc_unpublish(c, "to the parent") == 0);
	CHECK(slabc_unpublish(c, "to the parent") == -ENOENT);
	CHECK(slabc_lookup(c, "to the parent", &found) == -ENOENT);
	/* Names. */
	memset(name, '\xff', sizeof name);
	name[SLABC_MAX_ROOT_NAME + 1] = '\0';
	CHECK(slabc_publish(c, name, ref, 0) == -ENAMETOOLONG);
	CHECK(slabc_lookup(c, name, &found) == -ENAMETOOLONG);
	name[SLABC_MAX_ROOT_NAME] = '\0';
	CHECK(slabc_publish(c, name, ref, 0) == 0);
	CHECK(slabc_lookup(c, name, &found) == 0 && found == ref);
	CHECK(slabc_publish(c, "", ref, 0) == -EINVAL);
	CHECK(slabc_publish(c, "\n\"/\\", ref, 0) == 0);
	CHECK(slabc_publish(c, "a", ref, 2) == -EINVAL);
	peer_tell(harness_peer(h, pid), 'e');
	harness_join(h, pid);
	slabc_close(c);
}

/* A root is gone when its object is: freed, used anew, its page given back; its name can then be given without SLABC_REPLACE. */
static void
it_roots_are_weak(void)
{
	enum { N = 200 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "root");
	struct slabc_cache *k = harness_open_cache(c, "k", 256, 0);
	slabc_ref refs[N], found = 0;
	char name[SLABC_MAX_ROOT_NAME + 1];
	void *p[N];

	for (int i = 0; i < N; i++) {
		REQUIRE((p[i] = slabc_alloc(k)) != NULL);
		refs[i] = slabc_ref_of(c, p[i]);
		snprintf(name, sizeof name, "root %d", i);
		CHECK(slabc_publish(c, name, refs[i], 0) == 0);
	}
	slabc_free(k, p[0]);
	CHECK(slabc_lookup(c, "root 0", &found) == -ENOENT);
	CHECK(slabc_publish(c, "dead", refs[0], 0) == -ESTALE);
	slabc_free(k, p[1]);
	REQUIRE(slabc_alloc(k) == p[1]); /* the same place */
	CHECK(slabc_lookup(c, "root 1", &found) == -ENOENT);
	CHECK(slabc_publish(c, "private", refs[1] + (UINT64_C(1) << 32), 0) == -EINVAL); /* its new life, which is not shared */
	CHECK(slabc_publish(c, "root 0", refs[2], 0) == 0);
	CHECK(slabc_lookup(c, "root 0", &found) == 0 && found == refs[2]);
	for (int i = 1; i < N; i++)
		slabc_free(k, p[i]);
	slabc_cache_close(k);
	/* Nothing of the pages is left, and nothing of the roots. */
	CHECK(harness_cache(h, "k").n_slabs == 0);
	CHECK(slabc_next_root(c, NULL, NULL, name, &found) == -ENOENT);
	slabc_close(c);
}

/* Roots are listed in the order of bytes, by prefix, those only that stand. */
static void
it_roots_are_listed(void)
{
	static const char *const names[] = {"zz", "queue/b", "queue/a", "queue", "queue/\xc3\xa9", "queue/a/1"};
	static const char *const in_order[] = {"queue/a/1", "queue/b", "queue/\xc3\xa9"};
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "root");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	char name[SLABC_MAX_ROOT_NAME + 1] = "";
	slabc_ref ref = 0;
	void *p[6];
	int n = 0;

	for (int i = 0; i < 6; i++) {
		REQUIRE((p[i] = slabc_alloc(k)) != NULL);
		CHECK(slabc_publish(c, names[i], slabc_ref_of(c, p[i]), 0) == 0);
	}
	slabc_free(k, p[2]);
	while (slabc_next_root(c, "queue/", name, name, &ref) == 0 && n < 6) {
		CHECK(n < 3 && strcmp(name, in_order[n]) == 0);
		CHECK(slabc_deref(c, ref) != NULL);
		n++;
	}
	CHECK(n == 3);
	CHECK(slabc_next_root(c, NULL, NULL, name, &ref) == 0 && strcmp(name, "queue") == 0);
	CHECK(slabc_next_root(c, "", "queue/\xc3\xa9", name, &ref) == 0 && strcmp(name, "zz") == 0);
	CHECK(slabc_next_root(c, "", "zz", name, &ref) == -ENOENT);
	slabc_close(c);
}

/* A read-only session finds roots, waits for them and lists them; it cannot name anything. */
static void
it_readonly_may_look_up(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc_options options = SLABC_OPTIONS_INIT;
	struct slabc *c = harness_open(h, "root"), *reader = NULL;
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	slabc_ref ref = make_object(c, k, 5), found = 0;
	char name[SLABC_MAX_ROOT_NAME + 1];

	options.socket = h->socket;
	options.flags = SLABC_RDONLY;
	REQUIRE(slabc_open(&reader, &options) == 0);
	CHECK(slabc_publish(c, "five", ref, 0) == 0);
	CHECK(slabc_lookup(reader, "five", &found) == 0 && *(const int *)slabc_deref(reader, found) == 5);
	CHECK(slabc_lookup_wait(reader, "five", &found, -1) == 0 && found == ref);
	CHECK(slabc_lookup_wait(reader, "six", &found, 20) == -ETIMEDOUT);
	CHECK(slabc_next_root(reader, NULL, NULL, name, &found) == 0 && strcmp(name, "five") == 0);
	CHECK(slabc_publish(reader, "six", ref, 0) == -EACCES);
	CHECK(slabc_unpublish(reader, "five") == -EACCES);
	slabc_close(reader);
	slabc_close(c);
}

static void *
wait_in_thread(void *arg)
{
	struct waiter *w = arg;
	struct rusage before, after;
	int64_t start = harness_now_ns();

	getrusage(RUSAGE_THREAD, &before);
	w->r = slabc_lookup_wait(w->c, w->name, &w->ref, w->timeout_ms);
	getrusage(RUSAGE_THREAD, &after);
	w->n_switches = after.ru_nvcsw - before.ru_nvcsw;
	w->took_ns = harness_now_ns() - start;
	return NULL;
}

/*
 * A thread waits for a root: it wakes when that is published, not before, and does not look in between; the session's other threads ask
 * slabd meanwhile as if nobody waited.
 */
static void
it_waiting_is_not_polling(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "root");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	struct waiter w = {.c = c, .name = "late", .timeout_ms = 8000};
	unsigned n_fds = harness_count_fds(h->slabd), n_calls = 0;
	slabc_ref ref = make_object(c, k, 1), found;
	pthread_t thread;
	int64_t until;

	REQUIRE(pthread_create(&thread, NULL, wait_in_thread, &w) == 0);
	CHECK(EVENTUALLY(harness_count_fds(h->slabd) == n_fds + 1));
	for (until = harness_now_ns() + 300000000; harness_now_ns() < until; n_calls++) {
		CHECK(slabc_lookup(c, "another", &found) == -ENOENT);
		CHECK(slabc_publish(c, "yet another", ref, SLABC_REPLACE) == 0);
	}
	CHECK(n_calls > 50);
	CHECK(slabc_publish(c, "late", ref, 0) == 0);
	pthread_join(thread, NULL);
	CHECK(w.r == 0 && w.ref == ref);
	CHECK(w.took_ns >= 300000000 && w.took_ns < 8000000000);
	/* Twice for slabd, once for the root, and some for the lock of the session's requests. */
	CHECK(w.n_switches < 20);
	CHECK(EVENTUALLY(harness_count_fds(h->slabd) == n_fds));
	slabc_close(c);
}

/* It ends by its deadline, to the millisecond; with 0 it does not wait; what is there needs no waiting. */
static void
it_waiting_ends_in_time(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "root");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	unsigned n_fds = harness_count_fds(h->slabd);
	slabc_ref ref = make_object(c, k, 1), found = 0;
	int64_t start = harness_now_ns();

	CHECK(slabc_lookup_wait(c, "never", &found, 100) == -ETIMEDOUT);
	CHECK(harness_now_ns() - start >= 100000000 && harness_now_ns() - start < 2000000000);
	CHECK(strstr(slabc_last_error(), "never") != NULL);
	CHECK(slabc_lookup_wait(c, "never", &found, 0) == -ETIMEDOUT);
	CHECK(slabc_lookup_wait(c, "never", &found, -2) == -EINVAL);
	CHECK(EVENTUALLY(harness_count_fds(h->slabd) == n_fds));
	CHECK(slabc_publish(c, "there", ref, 0) == 0);
	CHECK(slabc_lookup_wait(c, "there", &found, -1) == 0 && found == ref);
	CHECK(slabc_lookup_wait(c, "there", &found, 0) == 0 && found == ref);
	slabc_close(c);
}

static void
wait_for_ever(struct peer *me, void *arg)
{
	struct waiter *w = arg;
	slabc_ref ref;

	w->c = harness_open(w->h, "waits");
	peer_tell(me, 'w');
	w->r = slabc_lookup_wait(w->c, w->name, &ref, -1);
	peer_put(me, &w->r, sizeof w->r);
	peer_await(me, 'e');
}

/* A client that dies while it waits leaves nothing behind in slabd; when slabd dies, who waits is told. */
static void
it_waiting_ends_with_either_side(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	unsigned n_fds = harness_count_fds(h->slabd);
	struct waiter w = {.h = h, .name = "never"};
	pid_t pids[3];
	int r = 0;

	for (int i = 0; i < 3; i++) {
		pids[i] = harness_spawn(h, wait_for_ever, &w);
		peer_await(harness_peer(h, pids[i]), 'w');
	}
	/* Socket, pidfd, session segment, and the waiting. */
	CHECK(EVENTUALLY(harness_count_fds(h->slabd) == n_fds + 3 * 4));
	harness_kill(h, pids[0], SIGKILL);
	CHECK(EVENTUALLY(harness_count_fds(h->slabd) == n_fds + 2 * 4));
	harness_kill(h, pids[1], SIGKILL);
	CHECK(EVENTUALLY(harness_count_fds(h->slabd) == n_fds + 4));
	harness_kill_slabd(h);
	peer_get(harness_peer(h, pids[2]), &r, sizeof r);
	CHECK(r == -ENOTCONN);
	peer_tell(harness_peer(h, pids[2]), 'e');
	harness_join(h, pids[2]);
}

static void
hold_copies(struct peer *me, void *arg)
{
	(void)arg;
	peer_tell(me, 'h');
	peer_await(me, 'e');
}

/* A child forked while a thread waits has a copy of what it waits on; slabd forgets the waiting all the same when it is over. */
static void
it_forked_child_does_not_prolong_waiting(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "root");
	struct waiter w = {.c = c, .name = "never", .timeout_ms = 400};
	unsigned n_fds = harness_count_fds(h->slabd);
	pthread_t thread;
	pid_t pid;

	REQUIRE(pthread_create(&thread, NULL, wait_in_thread, &w) == 0);
	CHECK(EVENTUALLY(harness_count_fds(h->slabd) == n_fds + 1));
	pid = harness_spawn(h, hold_copies, NULL);
	peer_await(harness_peer(h, pid), 'h');
	pthread_join(thread, NULL);
	CHECK(w.r == -ETIMEDOUT);
	CHECK(EVENTUALLY(harness_count_fds(h->slabd) == n_fds));
	peer_tell(harness_peer(h, pid), 'e');
	harness_join(h, pid);
	slabc_close(c);
}

/* The reply to a raw LOOKUP, with its descriptor if it has one (else -1). */
static int
raw_lookup(int fd, const char *name, uint64_t *refp, int *waitp)
{
	union proto_request request = {.lookup = {.wait = 1}};
	unsigned char packet[4096];
	char sentence[PROTO_SENTENCE_BYTES];
	enum proto_status status;
	union proto_reply reply = {0};
	unsigned n_fds = 1;
	uint32_t id;
	ssize_t n;

	snprintf(request.lookup.name, sizeof request.lookup.name, "%s", name);
	REQUIRE(raw_send(fd, PROTO_OP_LOOKUP, 1, &request) == 0);
	n = channel_recv(fd, packet, sizeof packet, waitp, &n_fds, 0);
	REQUIRE(n > 0);
	REQUIRE(proto_unpack_reply(packet, (size_t)n, PROTO_OP_LOOKUP, &id, &status, &reply, sentence, sizeof sentence) == 0);
	if (n_fds == 0)
		*waitp = -1;
	*refp = reply.lookup.ref;
	return (int)status;
}

/* A client cannot wait more often than slabd lets it, and its connection's end ends all of it. */
static void
it_waits_are_bounded(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	unsigned n_fds = harness_count_fds(h->slabd);
	int waits[WATCH_MAX], one;
	struct raw raw;
	uint64_t ref;

	raw_attach(&raw, h->socket, "greedy");
	for (int i = 0; i < WATCH_MAX; i++)
		REQUIRE(raw_lookup(raw.fd, "x", &ref, &waits[i]) == PROTO_STATUS_OK && waits[i] >= 0 && ref == 0);
	CHECK(raw_lookup(raw.fd, "x", &ref, &one) == PROTO_STATUS_TOO_MANY && one < 0);
	close(waits[0]);
	CHECK(EVENTUALLY(raw_lookup(raw.fd, "x", &ref, &waits[0]) == PROTO_STATUS_OK));
	CHECK(EVENTUALLY(harness_count_fds(h->slabd) == n_fds + 3 + WATCH_MAX));
	/* Who writes where he should wait, waits no more. */
	CHECK(send(waits[1], "x", 1, MSG_NOSIGNAL) == 1);
	CHECK(EVENTUALLY(harness_count_fds(h->slabd) == n_fds + 3 + WATCH_MAX - 1));
	raw_detach(&raw);
	CHECK(EVENTUALLY(harness_count_fds(h->slabd) == n_fds));
	for (int i = 0; i < WATCH_MAX; i++)
		close(waits[i]);
}

struct publisher {
	struct slabc *c;
	struct slabc_cache *k;
	int n;
	int turn; /* the root that is about to be waited for; atomic */
	unsigned seed;
};

static void *
publish_in_turn(void *arg)
{
	struct publisher *p = arg;

	for (int i = 0; i < p->n; i++) {
		slabc_ref ref = make_object(p->c, p->k, i);
		int64_t until;
		char name[32];

		snprintf(name, sizeof name, "%d", i);
		while (atomic_read(&p->turn) < i)
			continue;
		for (until = harness_now_ns() + rand_r(&p->seed) % 60000; harness_now_ns() < until;)
			continue;
		if (slabc_publish(p->c, name, ref, 0) != 0)
			return (void *)1;
	}
	return NULL;
}

/* However close waiting and publishing come together, by loops and threads of their own, no wake-up is missed. */
static void
it_no_wakeup_is_missed(void)
{
	enum { N = 2000 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --threads=2");
	struct slabc *c[2] = {harness_open(h, "waits"), harness_open(h, "publishes")};
	struct publisher p = {.c = c[1], .k = harness_open_cache(c[1], "k", 64, 0), .n = N, .seed = harness_seed()};
	void *failed = NULL;
	pthread_t thread;

	REQUIRE(pthread_create(&thread, NULL, publish_in_turn, &p) == 0);
	for (int i = 0; i < N; i++) {
		slabc_ref ref = 0;
		char name[32];
		int *value;

		snprintf(name, sizeof name, "%d", i);
		atomic_write(&p.turn, i);
		REQUIRE(slabc_lookup_wait(c[0], name, &ref, 10000) == 0);
		value = slabc_deref(c[0], ref);
		CHECK(value != NULL && *value == i);
	}
	pthread_join(thread, &failed);
	CHECK(failed == NULL);
	slabc_close(c[0]);
	slabc_close(c[1]);
}

CU_pSuite
it_root_suite(void)
{
	CU_pSuite suite = harness_suite("root");

	CU_ADD_TEST(suite, it_names_lead_to_objects);
	CU_ADD_TEST(suite, it_roots_are_weak);
	CU_ADD_TEST(suite, it_roots_are_listed);
	CU_ADD_TEST(suite, it_readonly_may_look_up);
	CU_ADD_TEST(suite, it_waiting_is_not_polling);
	CU_ADD_TEST(suite, it_waiting_ends_in_time);
	CU_ADD_TEST(suite, it_waiting_ends_with_either_side);
	CU_ADD_TEST(suite, it_forked_child_does_not_prolong_waiting);
	CU_ADD_TEST(suite, it_waits_are_bounded);
	CU_ADD_TEST(suite, it_no_wakeup_is_missed);
	return suite;
}
