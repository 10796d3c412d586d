/* SPDX-License-Identifier: Apache-2.0 */
/* A session's numbers; shrinking, destroying and tuning caches, by programs and by slabctl. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/internal.h"
#include "shm/barn.h"
#include "shm/word.h"
#include "tests/harness.h"

CU_pSuite it_admin_suite(void);

static int
slabctl(struct harness *h, char *out, size_t size, const char *first, const char *second, const char *third, const char *fourth)
{
	char path[128], socket_argument[128], copies[4][64] = {"", "", "", ""};
	char *argv[] = {
		path, socket_argument, copies[0], second ? copies[1] : NULL, third ? copies[2] : NULL, fourth ? copies[3] : NULL, NULL};

	snprintf(path, sizeof path, "%s", harness_path("SLABCTL"));
	snprintf(socket_argument, sizeof socket_argument, "--socket=%s", h->socket);
	snprintf(copies[0], sizeof copies[0], "%s", first);
	snprintf(copies[1], sizeof copies[1], "%s", second ? second : "");
	snprintf(copies[2], sizeof copies[2], "%s", third ? third : "");
	snprintf(copies[3], sizeof copies[3], "%s", fourth ? fourth : "");
	return harness_run(argv, NULL, out, size);
}

/* What a session is told of itself is so, whatever it thinks the struct's size is. */
static void
it_session_stats(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=64M");
	struct slabc *c = harness_open(h, "stats");
	struct slabc_cache *k = harness_open_cache(c, "k", 256, 0), *other = harness_open_cache(c, "other", 64, 0);
	struct slabc_stats s = SLABC_STATS_INIT;
	struct {
		struct slabc_stats known;
		uint64_t newer;
	} larger = {.known = {.size = sizeof larger}, .newer = 77};
	struct slabc_stats smaller = {.size = offsetof(struct slabc_stats, bytes_held), .bytes_held = 77};
	void *p[100];

	REQUIRE(slabc_alloc_bulk(k, 100, p) == 0);
	slabc_free(other, slabc_alloc(other));
	slabc_free(k, (char *)p[0] + 8);
	CHECK(slabc_get_stats(c, &s) == 0);
	CHECK(s.size == sizeof s);
	CHECK(s.arena_bytes == 64 << 20 && s.committed_bytes >= 100 * 256 && s.committed_bytes <= s.arena_bytes);
	CHECK(s.bytes_held == 100 * 256);
	CHECK(s.bytes_idle > 0);
	CHECK(s.n_refills >= 2 && s.n_bad_frees == 1 && s.n_foreign_frees == 0 && s.n_dropped == 0 && s.n_nested == 0);
	CHECK(s.n_threads == 1 && s.n_caches == 2);
	CHECK(slabc_get_stats(c, &larger.known) == 0);
	CHECK(larger.known.bytes_held == 100 * 256 && larger.newer == 0 && larger.known.size == sizeof larger);
	CHECK(slabc_get_stats(c, &smaller) == 0);
	CHECK(smaller.arena_bytes == 64 << 20 && smaller.bytes_held == 77);
	s.size = 3;
	CHECK(slabc_get_stats(c, &s) == -EINVAL);
	slabc_close(c);
}

/* Frees what it allocates, so that it lies idle, and stays. */
static void
be_idle(struct peer *me, void *arg)
{
	struct slabc *c = harness_open(arg, "idle");
	struct slabc_cache *k = harness_open_cache(c, "k", 256, 0);
	void *p[3000];

	REQUIRE(slabc_alloc_bulk(k, 3000, p) == 0);
	slabc_free_bulk(k, 3000, p);
	peer_tell(me, 'i');
	peer_await(me, 'e');
	REQUIRE(slabc_alloc_bulk(k, 3000, p) == 0);
	slabc_free_bulk(k, 3000, p);
}

/* Shrinking gives back what is idle here, in slabd, and in other clients' barns and threads; and all go on. */
static void
it_shrink_gives_back_what_is_idle(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "shrinks");
	struct slabc_cache *k = harness_open_cache(c, "k", 256, 0);
	pid_t pid = harness_spawn(h, be_idle, h);
	struct proto_caches_reply before, after;
	void *p[5000];

	peer_await(harness_peer(h, pid), 'i');
	REQUIRE(slabc_alloc_bulk(k, 5000, p) == 0);
	slabc_free_bulk(k, 5000, p);
	before = harness_cache(h, "k");
	CHECK(before.n_objects >= 5000 && before.n_process_barn > 1000);
	CHECK(slabc_cache_shrink(k) == 0);
	after = harness_cache(h, "k");
	CHECK(after.n_process_barn == 0 && after.n_node_barn == 0 && after.n_returned == 0);
	/* The other one's main, spare and rack too: of two threads' no more than that. */
	CHECK(before.n_thread > 4 * before.capacity && before.n_thread <= 2 * (2 + CLIENT_RACK) * before.capacity);
	CHECK(after.n_thread == 0 && after.n_slabs == 0 && after.n_pages == 0);
	CHECK(after.n_recalled > 2 && after.n_recalled <= 2 + CLIENT_RACK);
	CHECK(slabc_alloc(k) != NULL);
	peer_tell(harness_peer(h, pid), 'e');
	harness_join(h, pid);
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	slabc_close(c);
}

static void
hold_open(struct peer *me, void *arg)
{
	struct slabc *c = harness_open(arg, "holds it open");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	void *p[7];

	REQUIRE(slabc_alloc_bulk(k, 7, p) == 0);
	peer_tell(me, 'h');
	peer_await(me, 'f');
	slabc_free_bulk(k, 7, p);
	peer_tell(me, 'f');
	peer_await(me, 'c');
	REQUIRE(slabc_alloc(k) != NULL);
	slabc_cache_close(k);
	peer_tell(me, 'c');
	peer_await(me, 'e');
}

/* A cache that is needed is not destroyed: who says so names the count and who has most, or who has it open; and nothing has changed. */
static void
it_needed_cache_is_not_destroyed(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "destroys");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	pid_t pid = harness_spawn(h, hold_open, h);
	struct slabc_sheaf *sheaf;
	char expected[64];
	slabc_ref ref;
	void *p[3];

	peer_await(harness_peer(h, pid), 'h');
	CHECK(slabc_cache_destroy(c, "none") == -ENOENT);
	CHECK(slabc_cache_destroy(c, "") == -EINVAL);
	CHECK(slabc_cache_destroy(c, "a name that is longer than any name of a cache may be") == -ENAMETOOLONG);
	REQUIRE(slabc_alloc_bulk(k, 3, p) == 0);
	CHECK(slabc_cache_destroy(c, "k") == -EBUSY);
	CHECK(strstr(slabc_last_error(), "10 objects") != NULL);
	snprintf(expected, sizeof expected, "client %u (pid %d, 'holds it open')", harness_client(h, pid).client_id, pid);
	CHECK(strstr(slabc_last_error(), expected) != NULL);
	slabc_free_bulk(k, 3, p);
	peer_tell(harness_peer(h, pid), 'f');
	peer_await(harness_peer(h, pid), 'f');
	CHECK(slabc_cache_destroy(c, "k") == -EBUSY);
	CHECK(strstr(slabc_last_error(), "open in 1 other") != NULL && strstr(slabc_last_error(), expected) != NULL);
	/* Closed there, but one is not freed. */
	peer_tell(harness_peer(h, pid), 'c');
	peer_await(harness_peer(h, pid), 'c');
	CHECK(slabc_cache_destroy(c, "k") == -EBUSY);
	CHECK(strstr(slabc_last_error(), "1 objects") != NULL);
	harness_kill(h, pid, SIGKILL);
	harness_wait_reaped(h, pid);
	CHECK(slabc_cache_destroy(c, "k") == -EBUSY);
	CHECK(strstr(slabc_last_error(), "orphans") != NULL);
	ref = slabc_next_orphan(k, 0);
	REQUIRE(slabc_adopt_orphan(c, ref) != NULL);
	slabc_free(k, slabc_deref(c, ref));
	/* Set aside by the application. */
	sheaf = slabc_prefill(k, 20);
	REQUIRE(sheaf != NULL);
	CHECK(slabc_cache_destroy(c, "k") == -EBUSY);
	CHECK(strstr(slabc_last_error(), "idle") != NULL);
	/* The handle was good all the time. */
	REQUIRE((p[0] = slabc_alloc(k)) != NULL);
	slabc_free(k, p[0]);
	slabc_return(k, sheaf);
	CHECK(slabc_cache_destroy(c, "k") == 0);
	slabc_close(c);
}

static void *
alloc_and_free(void *arg)
{
	struct slabc_cache *k = arg;
	void *p[300];

	if (slabc_alloc_bulk(k, 300, p) < 0)
		return (void *)1;
	slabc_free_bulk(k, 300, p);
	return NULL;
}

/* The handle of a destroyed cache does nothing any more but be closed, in every thread; what pointed to its objects is stale; others are as
 * they were. */
static void
it_destroyed_cache_is_gone(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "destroys");
	struct slabc_cache *before = harness_open_cache(c, "before", 64, 0), *k = harness_open_cache(c, "k", 64, 0),
			   *after = harness_open_cache(c, "after", 64, 0), *again, *second = NULL;
	struct slabc_cache_options nowait = SLABC_CACHE_OPTIONS_INIT;
	slabc_ref ref, found;
	pthread_t thread;
	void *p, *pv[4], *result = NULL;

	nowait.flags = SLABC_NOWAIT;
	REQUIRE(slabc_cache_open(c, "k", 64, &nowait, &second) == 0);
	REQUIRE(pthread_create(&thread, NULL, alloc_and_free, k) == 0);
	pthread_join(thread, &result);
	CHECK(result == NULL);
	p = slabc_alloc(k);
	ref = slabc_ref_of(c, p);
	CHECK(slabc_publish(c, "root", ref, 0) == 0);
	/* By reference, and so by a handle of the session's own. */
	CHECK(slabc_free_ref(c, ref) == 0);
	REQUIRE((p = slabc_alloc(k)) != NULL);
	ref = slabc_ref_of(c, p);
	slabc_free(k, p);
	REQUIRE(slabc_alloc(before) != NULL && slabc_alloc(after) != NULL);
	CHECK(slabc_cache_destroy(c, "k") == 0);
	CHECK(harness_cache(h, "k").cache == 0);
	CHECK(harness_cache(h, "before").cache == 1 && harness_cache(h, "after").cache == 3);
	CHECK(harness_status(h).n_caches == 2);
	CHECK(harness_audit(h).n_held == 2);
	CHECK(slabc_deref(c, ref) == NULL && errno == ESTALE);
	CHECK(slabc_lookup(c, "root", &found) == -ENOENT);
	errno = 0;
	CHECK(slabc_alloc(k) == NULL && errno == ENOENT);
	CHECK(strstr(slabc_last_error(), "destroyed") != NULL);
	CHECK(slabc_alloc(second) == NULL && errno == ENOENT);
	CHECK(slabc_alloc_bulk(k, 4, pv) == -ENOENT);
	CHECK(slabc_prefill(k, 4) == NULL && errno == ENOENT);
	CHECK(slabc_cache_shrink(k) == -ENOENT);
	CHECK(slabc_next_orphan(k, 0) == 0 && errno == ENOENT);
	errno = 0;
	slabc_free(k, p);
	CHECK(errno != 0);
	REQUIRE(pthread_create(&thread, NULL, alloc_and_free, k) == 0);
	pthread_join(thread, &result);
	CHECK(result != NULL);
	CHECK(slabc_cache_destroy(c, "k") == -ENOENT);
	/* The name is free for another, of another size. */
	again = harness_open_cache(c, "k", 1000, SLABC_RECLAIM);
	REQUIRE((p = slabc_alloc(again)) != NULL);
	errno = 0;
	slabc_free(k, p);
	CHECK(errno != 0);
	CHECK(harness_cache(h, "k").n_allocated == 1);
	slabc_cache_close(k);
	slabc_free(again, p);
	CHECK(slabc_alloc(before) != NULL && slabc_alloc(after) != NULL && slabc_alloc(again) != NULL);
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	/* "second" is left to it. */
	slabc_close(c);
}

/* Ids come round: a cache gets the id of a destroyed one, whose handle is still there and means nothing; counters begin anew. */
static void
it_ids_come_round(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "destroys"), *other = harness_open(h, "had it open");
	struct slabc_cache *stale = harness_open_cache(c, "first", 8, 0), *k = NULL, *had = harness_open_cache(other, "first", 8, 0);
	uint32_t id = harness_cache(h, "first").cache, n_before = 0;
	struct proto_caches_reply cache;
	char name[16];
	void *p;

	slabc_free(stale, slabc_alloc(stale));
	slabc_free(had, slabc_alloc(had));
	slabc_cache_close(had);
	REQUIRE(slabc_cache_destroy(c, "first") == 0);
	for (int i = 0; i < 2 * LAYOUT_MAX_CACHES; i++, n_before++) {
		snprintf(name, sizeof name, "k%d", i);
		k = harness_open_cache(c, name, 1024 + (size_t)(i % 7) * 8, 0);
		if (harness_cache(h, name).cache == id)
			break;
		REQUIRE((p = slabc_alloc(k)) != NULL);
		slabc_free(k, p);
		if (i % 2)
			slabc_cache_close(k);
		REQUIRE(slabc_cache_destroy(c, name) == 0);
		if (i % 2 == 0)
			slabc_cache_close(k);
	}
	cache = harness_cache(h, name);
	REQUIRE(cache.cache == id);
	/* As late as can be. */
	CHECK(n_before == LAYOUT_MAX_CACHES - 2);
	CHECK(harness_status(h).n_caches == 1);
	CHECK(cache.n_refills == 0 && cache.n_objects == 0 && cache.n_openers == 1);
	REQUIRE((p = slabc_alloc(k)) != NULL);
	memset(p, 0x5a, 1024);
	errno = 0;
	slabc_free(stale, p);
	CHECK(errno != 0);
	CHECK(slabc_alloc(stale) == NULL && errno == ENOENT);
	CHECK(harness_cache(h, name).n_allocated == 1);
	slabc_free(k, p);
	had = harness_open_cache(other, name, 0, 0);
	REQUIRE((p = slabc_alloc(had)) != NULL);
	slabc_free(had, p);
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	slabc_cache_close(stale);
	slabc_close(other);
	slabc_close(c);
}

/* A client that closed a cache and keeps its sheaves all the same cannot use them for the next cache of that id, nor bring slabd down with
 * them. */
static void
it_kept_slots_of_a_destroyed_cache(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "destroys");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	union proto_request request = {0};
	union proto_reply reply;
	struct sheaf *sheaf;
	uint32_t cache, slot;
	struct raw raw;

	raw_attach(&raw, h->socket, "keeps slots");
	cache = raw_cache_open(&raw, "k", 64, 0);
	slot = raw_prefill(&raw, cache, 8);
	request.cache_close.cache = cache;
	CHECK(raw_call(raw.fd, PROTO_OP_CACHE_CLOSE, &request, &reply, NULL) == PROTO_STATUS_OK);
	CHECK(slabc_cache_destroy(c, "k") == -EBUSY);
	/* Emptied by hand: its objects go home, the slot stays with the client. */
	sheaf = raw_sheaf(&raw, slot);
	raw.slots[slot].next = 0;
	raw.slots[slot].holder = LAYOUT_HOLDER_BARN;
	((struct layout_session_cache *)(raw.session + LAYOUT_SESSION_CACHES_OFF))[cache].full = 1u << 16 | (slot + 1);
	CHECK(slabc_cache_destroy(c, "k") == 0);
	CHECK(harness_cache(h, "k").cache == 0);
	sheaf->size = 8;
	raw.slots[slot].holder = LAYOUT_HOLDER_RETURNED;
	((struct layout_session_cache *)(raw.session + LAYOUT_SESSION_CACHES_OFF))[cache].returned = 1u << 16 | (slot + 1);
	/* Nothing that the session asks or that slabd does with it meets a cache that is not there. */
	request.refill = (struct proto_refill_request){.cache = cache, .n_sheaves = 1};
	CHECK(raw_call(raw.fd, PROTO_OP_REFILL, &request, &reply, NULL) == PROTO_STATUS_NO_CACHE);
	slabc_cache_close(k);
	k = harness_open_cache(c, "k", 64, 0);
	CHECK(slabc_alloc(k) != NULL && slabc_cache_shrink(k) == 0);
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	raw_detach(&raw);
	CHECK(EVENTUALLY(harness_status(h).n_sessions == 1));
	CHECK(slabc_alloc(k) != NULL);
	slabc_close(c);
}

static enum proto_status
tune(struct harness *h, const char *name, struct proto_tune_request knobs, struct proto_tune_reply *outp)
{
	union proto_request request = {.tune = knobs};
	union proto_reply reply = {0};
	enum proto_status status;

	request.tune.cache = harness_cache(h, name).cache;
	status = harness_ask(h, PROTO_OP_TUNE, &request, &reply);
	if (outp)
		*outp = reply.tune;
	return status;
}

static uint32_t
raw_refill(struct raw *raw, uint32_t cache, uint32_t *slotp)
{
	union proto_request request = {.refill = {.cache = cache, .n_sheaves = 1}};
	union proto_reply reply = {0};

	CHECK(raw_call(raw->fd, PROTO_OP_REFILL, &request, &reply, NULL) == PROTO_STATUS_OK);
	*slotp = reply.refill.slot;
	return reply.refill.n_objects;
}

/* The sheaf just got is a thread's. */
static void
raw_use(struct raw *raw, uint32_t cache, uint32_t slot)
{
	((struct layout_session_cache *)(void *)(raw->session + LAYOUT_SESSION_CACHES_OFF))[cache].full = 0;
	raw->slots[slot].holder = LAYOUT_HOLDER_THREAD;
}

static void
raw_flush(struct raw *raw, uint32_t cache, uint32_t slot)
{
	union proto_request request = {.flush = {.cache = cache, .n_sheaves = 1}};
	struct layout_session_cache *lists = (struct layout_session_cache *)(raw->session + LAYOUT_SESSION_CACHES_OFF) + cache;
	union proto_reply reply;

	lists->full = 0;
	raw->slots[slot].next = 0;
	raw->slots[slot].holder = LAYOUT_HOLDER_RETURNED;
	lists->returned = (uint64_t)1 << 16 | (slot + 1);
	CHECK(raw_call(raw->fd, PROTO_OP_FLUSH, &request, &reply, NULL) == PROTO_STATUS_OK);
}

/* Sheaves have the new capacity from the next refill on, also where those of the old one lie in slabd's barn; that is mixed, and nothing is
 * lost. */
static void
it_capacity_is_tuned(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	static const uint32_t capacities[] = {100, 7, 200, 1, 1020, 60};
	struct proto_tune_reply out;
	uint32_t cache, slots[6], n;
	struct raw raw;

	raw_attach(&raw, h->socket, "raw");
	cache = raw_cache_open(&raw, "k", 64, 0);
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 6; i++) {
			CHECK(tune(h, "k", (struct proto_tune_request){.set = 1, .sheaf_capacity = capacities[i]}, &out) ==
				PROTO_STATUS_OK);
			CHECK(out.sheaf_capacity == capacities[i] && harness_cache(h, "k").capacity == capacities[i]);
			n = raw_refill(&raw, cache, &slots[i]);
			raw_use(&raw, cache, slots[i]);
			/* From the barn: a sheaf of an older, smaller capacity comes as it is. */
			CHECK(n > 0 && n <= capacities[i] && (round > 0 || n == capacities[i]));
			CHECK(raw.slots[slots[i]].capacity >= n && raw_sheaf(&raw, slots[i])->size == n);
			CHECK(raw.slots[slots[i]].capacity == capacities[i]);
		}
		for (int i = 0; i < 6; i++)
			raw_flush(&raw, cache, slots[i]);
		CHECK(harness_audit(h).n_out == 0);
		CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	}
	CHECK(harness_client_id(h, raw.attach.client_id).n_faults == 0);
	raw_detach(&raw);
}

/* A sheaf that went into slabd's barn at a larger capacity is granted at a smaller one: as much of it as fits, the rest to its slabs. */
static void
it_large_sheaves_in_the_barn(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	uint32_t cache, slot;
	struct raw raw;

	raw_attach(&raw, h->socket, "raw");
	cache = raw_cache_open(&raw, "k", 64, 0);
	CHECK(tune(h, "k", (struct proto_tune_request){.set = 1, .sheaf_capacity = 500}, NULL) == PROTO_STATUS_OK);
	CHECK(raw_refill(&raw, cache, &slot) == 500);
	raw_flush(&raw, cache, slot);
	CHECK(harness_cache(h, "k").n_node_barn == 500);
	CHECK(tune(h, "k", (struct proto_tune_request){.set = 1, .sheaf_capacity = 30}, NULL) == PROTO_STATUS_OK);
	CHECK(raw_refill(&raw, cache, &slot) == 30);
	CHECK(raw_sheaf(&raw, slot)->size == 30 && raw.slots[slot].capacity == 30);
	CHECK(harness_cache(h, "k").n_node_barn == 0);
	CHECK(harness_audit(h).n_out == 30);
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	raw_detach(&raw);
}

/* A client that does nothing keeps no more than a lowered max_cached, and no sheaf of another capacity, once the tuning is answered; it
 * keeps the newest. */
static void
it_lowered_limits_hold_at_once(void)
{
	enum { N = 20 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "sleeps");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	uint32_t cache, slots[N];
	struct layout_session_cache *lists;
	static void *p[20000];
	int32_t newest;
	struct raw raw;

	REQUIRE(slabc_alloc_bulk(k, 20000, p) == 0);
	slabc_free_bulk(k, 20000, p);
	/* And a client whose list is in the test's hands. */
	raw_attach(&raw, h->socket, "raw");
	cache = raw_cache_open(&raw, "k", 64, 0);
	lists = (struct layout_session_cache *)(void *)(raw.session + LAYOUT_SESSION_CACHES_OFF) + cache;
	for (int i = 0; i < N; i++)
		raw_refill(&raw, cache, &slots[i]);
	CHECK(barn_count(lists->full) == N);
	CHECK(harness_cache(h, "k").n_process_barn > 10000);
	/* Eight sheaves each, of the capacity that it has. */
	CHECK(tune(h, "k", (struct proto_tune_request){.set = 8, .max_cached = 8ull * 64 * harness_cache(h, "k").capacity}, NULL) ==
		PROTO_STATUS_OK);
	CHECK(harness_cache(h, "k").n_process_barn == 2 * 8 * harness_cache(h, "k").capacity);
	CHECK(barn_count(lists->full) == 8);
	for (int i = 0; i < N; i++)
		CHECK((raw.slots[slots[i]].holder == LAYOUT_HOLDER_BARN) == (i >= N - 8));
	newest = barn_pop(&lists->full, raw.slots, LAYOUT_MAX_SLOTS);
	CHECK(newest == (int32_t)slots[N - 1]);
	barn_push(&lists->full, raw.slots, (uint32_t)newest);
	/* A byte: one sheaf. */
	CHECK(tune(h, "k", (struct proto_tune_request){.set = 8, .max_cached = 1}, NULL) == PROTO_STATUS_OK);
	CHECK(harness_cache(h, "k").n_process_barn == 2 * harness_cache(h, "k").capacity);
	CHECK(raw.slots[slots[N - 1]].holder == LAYOUT_HOLDER_BARN);
	/* A refill asks by the new limit, also when the one before it asked for many. */
	for (uint32_t i = 0; i < 4 * harness_cache(h, "k").capacity; i++) {
		REQUIRE((p[i] = slabc_alloc(k)) != NULL);
		CHECK(harness_cache(h, "k").n_process_barn <= 2 * harness_cache(h, "k").capacity);
	}
	for (uint32_t i = 0; i < 4 * harness_cache(h, "k").capacity; i++) {
		slabc_free(k, p[i]);
		CHECK(harness_cache(h, "k").n_process_barn <= 2 * harness_cache(h, "k").capacity);
	}
	/* Another capacity: none of the old. */
	CHECK(tune(h, "k", (struct proto_tune_request){.set = 1, .sheaf_capacity = 10}, NULL) == PROTO_STATUS_OK);
	CHECK(harness_cache(h, "k").n_process_barn == 0 && barn_count(lists->full) == 0);
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	/* All go on. */
	REQUIRE(slabc_alloc_bulk(k, 20000, p) == 0);
	slabc_free_bulk(k, 20000, p);
	CHECK(harness_cache(h, "k").n_process_barn <= 10);
	CHECK(raw_refill(&raw, cache, &slots[0]) == 10);
	CHECK(harness_client_id(h, raw.attach.client_id).n_faults == 0 && harness_client_id(h, slabc_client_id(c)).n_faults == 0);
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	raw_detach(&raw);
	slabc_close(c);
}

/* A program learns of a new capacity when it refills, and its barn then keeps sheaves of that one; the old ones go. */
static void
it_clients_learn_the_capacity(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "learns");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	struct proto_caches_reply cache;
	static void *p[4000];

	for (int i = 0; i < 2; i++) {
		CHECK(tune(h, "k", (struct proto_tune_request){.set = 1, .sheaf_capacity = i ? 300 : 10}, NULL) == PROTO_STATUS_OK);
		for (int n = 0; n < 3; n++) {
			REQUIRE(slabc_alloc_bulk(k, 4000, p) == 0);
			slabc_free_bulk(k, 4000, p);
		}
		cache = harness_cache(h, "k");
		CHECK(cache.n_thread <= (2 + CLIENT_RACK) * cache.capacity);
		CHECK(cache.n_process_barn + cache.n_thread > 3800);
		CHECK(cache.n_thread + cache.n_process_barn + cache.n_returned + cache.n_node_barn + cache.n_free == cache.n_objects);
	}
	/* Ten thousand idle bytes, not more, once it has learnt that too. */
	CHECK(tune(h, "k", (struct proto_tune_request){.set = 1 | 8, .sheaf_capacity = 16, .max_cached = 10240}, NULL) == PROTO_STATUS_OK);
	for (int n = 0; n < 3; n++) {
		REQUIRE(slabc_alloc_bulk(k, 4000, p) == 0);
		slabc_free_bulk(k, 4000, p);
	}
	CHECK(harness_cache(h, "k").n_process_barn <= 10240 / 64);
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	CHECK(harness_client_id(h, slabc_client_id(c)).n_faults == 0);
	slabc_close(c);
}

static void
leave_without_words(struct peer *me, void *arg)
{
	struct slabc *c = harness_open(arg, "leaves");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, SLABC_NO_OWNER);

	for (int i = 0; i < 50; i++)
		REQUIRE(slabc_alloc(k) != NULL);
	peer_tell(me, 'h');
	peer_await(me, 'e');
}

/* What the dead left of a cache without owner words stays until the cache is destroyed, which then goes; what the living hold keeps it. */
static void
it_cache_without_words_is_destroyed(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "destroys");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, SLABC_NO_OWNER);
	uint64_t committed = harness_status(h).committed_bytes;
	pid_t pid = harness_spawn(h, leave_without_words, h);
	void *p;

	peer_await(harness_peer(h, pid), 'h');
	harness_kill(h, pid, SIGKILL);
	harness_wait_reaped(h, pid);
	REQUIRE((p = slabc_alloc(k)) != NULL);
	CHECK(slabc_next_orphan(k, 0) == 0 && errno == ENOTSUP);
	CHECK(slabc_give(c, p, slabc_client_id(c)) == -ENOTSUP);
	CHECK(slabc_cache_destroy(c, "k") == -EBUSY);
	CHECK(strstr(slabc_last_error(), "1 objects") != NULL);
	slabc_free(k, p);
	CHECK(harness_cache(h, "k").n_left == 50);
	CHECK(slabc_cache_destroy(c, "k") == 0);
	CHECK(harness_cache(h, "k").cache == 0);
	CHECK(harness_status(h).committed_bytes == committed);
	slabc_close(c);
}

/* Large objects are runs of pages of a hidden cache: the dead leave them, they are listed with their bytes, adopted and reclaimed, like
 * others. */
static void
it_runs_are_orphans_too(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=64M");
	struct slabc *dead = harness_open(h, "dead"), *c = harness_open(h, "heir");
	union proto_request request = {0};
	union proto_reply reply = {0};
	uint64_t n_freed = 0;
	void *p[3];

	for (int i = 0; i < 3; i++)
		REQUIRE((p[i] = slabc_malloc(dead, 1000000)) != NULL);
	CHECK(slabc_publish(dead, "large", slabc_ref_of(dead, p[0]), 0) == 0);
	slabc_close(dead);
	CHECK(harness_ask(h, PROTO_OP_ORPHANS, &request, &reply) == PROTO_STATUS_OK);
	CHECK(reply.orphans.n_orphans == 3 && reply.orphans.bytes == 3 * 245 * 4096);
	CHECK(slabc_lookup(c, "large", &request.adopt_orphan.ref) == 0);
	REQUIRE((p[0] = slabc_adopt_orphan(c, request.adopt_orphan.ref)) != NULL);
	request.reclaim = (struct proto_reclaim_request){0};
	CHECK(harness_ask(h, PROTO_OP_RECLAIM, &request, &reply) == PROTO_STATUS_OK);
	n_freed = reply.reclaim.n_freed;
	CHECK(n_freed == 2 && reply.reclaim.bytes == 2 * 245 * 4096);
	CHECK(slabc_cache_destroy(c, "malloc.large") == -EBUSY);
	slabc_mfree(c, p[0]);
	CHECK(slabc_cache_destroy(c, "malloc.large") == 0);
	REQUIRE((p[0] = slabc_malloc(c, 1000000)) != NULL);
	slabc_mfree(c, p[0]);
	/* A size class, too: the library forgets the handle that it keeps, and opens another. */
	REQUIRE((p[0] = slabc_malloc(c, 100)) != NULL);
	slabc_mfree(c, p[0]);
	CHECK(slabc_cache_destroy(c, "malloc.128") == 0);
	REQUIRE((p[0] = slabc_malloc(c, 100)) != NULL);
	slabc_mfree(c, p[0]);
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	slabc_close(c);
}

struct churn {
	struct slabc_cache *k;
	uint32_t stop;
	unsigned seed;
	unsigned long n;
	unsigned n_failed;
};

static void *
churn(void *arg)
{
	struct churn *churn = arg;
	enum { N = 700 };
	unsigned *p[N] = {NULL};
	unsigned seed = churn->seed;

	while (!atomic_read(&churn->stop)) {
		unsigned i = (unsigned)rand_r(&seed) % N;

		if (p[i]) {
			churn->n_failed += *p[i] != i + churn->seed;
			slabc_free(churn->k, p[i]);
			p[i] = NULL;
		} else if ((p[i] = slabc_alloc(churn->k)) != NULL) {
			*p[i] = i + churn->seed;
			churn->n++;
		} else {
			churn->n_failed++;
		}
	}
	for (unsigned i = 0; i < N; i++)
		slabc_free(churn->k, p[i]);
	return NULL;
}

/* Knobs are turned to and fro under the feet of busy threads of two clients: none fails, none sees another's object, and in the end all is
 * there. */
static void
it_tuning_stops_nobody(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --threads=2");
	struct slabc *c[2] = {harness_open(h, "busy"), harness_open(h, "busy too")};
	struct churn churns[4];
	unsigned seed = harness_seed();
	struct proto_caches_reply cache;
	pthread_t threads[4];

	for (int i = 0; i < 4; i++) {
		churns[i] = (struct churn){.k = harness_open_cache(c[i % 2], "k", 64, 0), .seed = 1000u * (unsigned)i + 7};
		REQUIRE(pthread_create(&threads[i], NULL, churn, &churns[i]) == 0);
	}
	for (int i = 0; i < 150; i++) {
		struct proto_tune_request knobs = {.set = 1 + (unsigned)rand_r(&seed) % 63,
			.sheaf_capacity = (unsigned)rand_r(&seed) % 300,
			.barn_full = i % 3 ? (unsigned)rand_r(&seed) % 20 : LAYOUT_KNOB_NONE,
			.min_partial = i % 5 ? (unsigned)rand_r(&seed) % 20 : LAYOUT_KNOB_NONE,
			.max_cached = (unsigned)rand_r(&seed) % 100000,
			.cpu_partial = i % 4 ? (unsigned)rand_r(&seed) % 500 : LAYOUT_KNOB_NONE,
			.barn_empty = i % 3 ? (unsigned)rand_r(&seed) % 30 : LAYOUT_KNOB_NONE};

		CHECK(tune(h, "k", knobs, NULL) == PROTO_STATUS_OK);
		if (i % 10 == 0)
			CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	}
	for (int i = 0; i < 4; i++)
		atomic_write(&churns[i].stop, 1);
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		CHECK(churns[i].n_failed == 0 && churns[i].n > 100);
	}
	cache = harness_cache(h, "k");
	CHECK(cache.n_allocated == 0);
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0 && harness_audit(h).n_held == 0);
	CHECK(harness_client_id(h, slabc_client_id(c[0])).n_faults == 0 && harness_client_id(h, slabc_client_id(c[1])).n_faults == 0);
	slabc_close(c[0]);
	CHECK(slabc_cache_destroy(c[1], "k") == 0);
	slabc_close(c[1]);
}

/* The other knobs: what is more than they let goes at once; what cannot be is refused by name, and nothing has changed. */
static void
it_knobs_are_tuned(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "k");
	struct slabc_cache_options none = SLABC_CACHE_OPTIONS_INIT;
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0), *single = NULL;
	union proto_request request = {.tune = {.set = 1, .sheaf_capacity = LAYOUT_MAX_SHEAF + 1}};
	char sentence[PROTO_SENTENCE_BYTES] = "";
	struct proto_caches_reply before, after;
	union proto_reply reply;
	static void *p[20000];
	void *large;

	none.sheaf_capacity = SLABC_SHEAVES_NONE;
	REQUIRE(slabc_cache_open(c, "single", 64, &none, &single) == 0);
	REQUIRE(slabc_alloc_bulk(k, 20000, p) == 0);
	CHECK(tune(h, "k", (struct proto_tune_request){.set = 8, .max_cached = 4096}, NULL) == PROTO_STATUS_OK);
	slabc_free_bulk(k, 20000, p);
	before = harness_cache(h, "k");
	CHECK(before.n_node_barn > 5000 && before.min_partial > 0);
	CHECK(tune(h, "k", (struct proto_tune_request){.set = 2, .barn_full = 3}, NULL) == PROTO_STATUS_OK);
	after = harness_cache(h, "k");
	CHECK(after.n_node_barn <= 3 * after.capacity && after.barn_full == 3 && after.min_partial == before.min_partial);
	CHECK(tune(h, "k", (struct proto_tune_request){.set = 2 | 4, .barn_full = LAYOUT_KNOB_NONE, .min_partial = LAYOUT_KNOB_NONE},
		      NULL) == PROTO_STATUS_OK);
	after = harness_cache(h, "k");
	CHECK(after.n_node_barn == 0 && after.barn_full == 0 && after.min_partial == 0 && after.n_pages < before.n_pages);
	/* What a cache has no use for is refused, not ignored. */
	CHECK(tune(h, "single", (struct proto_tune_request){.set = 2, .barn_full = 3}, NULL) == PROTO_STATUS_INVALID);
	REQUIRE((large = slabc_malloc(c, 100000)) != NULL);
	CHECK(tune(h, "malloc.large", (struct proto_tune_request){.set = 16, .cpu_partial = 3}, NULL) == PROTO_STATUS_INVALID);
	slabc_mfree(c, large);
	/* 0: by formula again. */
	CHECK(tune(h, "k", (struct proto_tune_request){.set = 63}, NULL) == PROTO_STATUS_OK);
	after = harness_cache(h, "k");
	CHECK(after.cpu_partial == 0 && after.n_stash == 0);
	CHECK(after.barn_full > 10 && after.min_partial == before.min_partial && after.capacity == before.capacity &&
		after.max_cached > 4096);

	request.tune.cache = after.cache;
	CHECK(raw_call(h->monitor, PROTO_OP_TUNE, &request, &reply, sentence) == PROTO_STATUS_INVALID);
	CHECK(strstr(sentence, "sheaf_capacity 1021") != NULL && strstr(sentence, "1020") != NULL);
	CHECK(tune(h, "k", (struct proto_tune_request){.set = 1, .sheaf_capacity = LAYOUT_KNOB_NONE}, NULL) == PROTO_STATUS_INVALID);
	CHECK(tune(h, "single", (struct proto_tune_request){.set = 1, .sheaf_capacity = 10}, NULL) == PROTO_STATUS_INVALID);
	CHECK(tune(h, "k", (struct proto_tune_request){.set = 64}, NULL) == PROTO_STATUS_INVALID);
	CHECK(tune(h, "k", (struct proto_tune_request){.set = 5, .sheaf_capacity = 10, .min_partial = 2000000}, NULL) ==
		PROTO_STATUS_INVALID);
	CHECK(tune(h, "k", (struct proto_tune_request){.set = 32, .barn_empty = 16385}, NULL) == PROTO_STATUS_INVALID);
	CHECK(tune(h, "none", (struct proto_tune_request){.set = 1, .sheaf_capacity = 10}, NULL) == PROTO_STATUS_NO_CACHE);
	CHECK(harness_cache(h, "k").capacity == before.capacity);
	slabc_close(c);
}

/*
 * What slabd sets aside for a client has a column of its own, is idle memory of that client, and goes back when the knob is turned down,
 * when somebody shrinks the cache, when the client closes it, and when it dies.
 */
static void
it_stashes_are_counted_and_given_back(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc_cache_options options = SLABC_CACHE_OPTIONS_INIT;
	struct slabc *c = harness_open(h, "has some"), *other = harness_open(h, "has none");
	struct slabc_cache *k = NULL, *its = NULL;
	struct proto_caches_reply cache;
	struct slabc_stats stats = {.size = sizeof stats};
	static void *p[2000];
	uint64_t bytes_idle, n_stash;

	options.sheaf_capacity = 30;
	options.cpu_partial = 200;
	options.barn_full = SLABC_KNOB_NONE;
	REQUIRE(slabc_cache_open(c, "k", 64, &options, &k) == 0);
	REQUIRE(slabc_cache_open(other, "k", 64, NULL, &its) == 0);
	/* Leaves its slabs partial, and what it freed where others get it. */
	REQUIRE(slabc_alloc_bulk(its, 2000, p) == 0);
	for (int i = 0; i < 2000; i += 2)
		slabc_free(its, p[i]);
	REQUIRE(slabc_cache_shrink(its) == 0);
	REQUIRE(slabc_alloc(k) != NULL);
	cache = harness_cache(h, "k");
	CHECK(cache.cpu_partial == 200 && cache.n_stash > 0 && cache.n_stash <= 200);
	CHECK(cache.n_allocated == 1001 && strcmp(cache.policy, "slub") == 0);
	CHECK(cache.n_allocated + cache.n_thread + cache.n_process_barn + cache.n_returned + cache.n_app + cache.n_stash +
			cache.n_node_barn + cache.n_free ==
		cache.n_objects);
	CHECK(harness_audit(h).n_in_stashes == cache.n_stash && harness_audit(h).n_lost == 0);
	CHECK(harness_client_id(h, slabc_client_id(c)).bytes_idle == (cache.n_stash + cache.n_thread + cache.n_process_barn) * 64);
	REQUIRE(slabc_get_stats(c, &stats) == 0);
	bytes_idle = stats.bytes_idle;
	CHECK(tune(h, "k", (struct proto_tune_request){.set = 16, .cpu_partial = 20}, NULL) == PROTO_STATUS_OK);
	CHECK(harness_cache(h, "k").n_stash == 20 && harness_cache(h, "k").cpu_partial == 20);
	REQUIRE(slabc_get_stats(c, &stats) == 0);
	CHECK(stats.bytes_idle == bytes_idle - (cache.n_stash - 20) * 64);
	REQUIRE(slabc_cache_shrink(its) == 0);
	CHECK(harness_cache(h, "k").n_stash == 0);
	REQUIRE(slabc_prefill(k, 100) != NULL);
	n_stash = harness_cache(h, "k").n_stash; /* from as few slabs as the kernel would take */
	CHECK(n_stash > 0 && n_stash <= 20);
	CHECK(tune(h, "k", (struct proto_tune_request){.set = 16, .cpu_partial = LAYOUT_KNOB_NONE}, NULL) == PROTO_STATUS_OK);
	CHECK(harness_cache(h, "k").n_stash == 0);
	CHECK(tune(h, "k", (struct proto_tune_request){.set = 16, .cpu_partial = 20}, NULL) == PROTO_STATUS_OK);
	REQUIRE(slabc_prefill(k, 100) != NULL);
	n_stash = harness_cache(h, "k").n_stash;
	CHECK(n_stash > 0 && n_stash <= 20);
	slabc_close(c);
	CHECK(EVENTUALLY(harness_cache(h, "k").n_stash == 0));
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0 && harness_audit(h).n_in_stashes == 0);
	slabc_close(other);
}

/* As a user who may read and write the arena, being of its group, but not administer it. */
static void
try_to_administer(struct peer *me, void *arg)
{
	static const enum proto_op ops[] = {PROTO_OP_SHRINK, PROTO_OP_TUNE, PROTO_OP_RECLAIM, PROTO_OP_DESTROY};
	struct harness *h = arg;
	char sentence[PROTO_SENTENCE_BYTES];
	union proto_reply reply;
	int fd;

	(void)me;
	CHECK(setresuid(65534, 65534, 65534) == 0);
	fd = raw_connect(h->socket);
	REQUIRE(fd >= 0);
	CHECK(raw_hello(fd) == 0);
	for (int i = 0; i < 4; i++) {
		union proto_request request = {0};

		if (ops[i] == PROTO_OP_DESTROY) {
			strcpy(request.destroy.name, "k");
			request.destroy.commit = 1;
		} else if (ops[i] == PROTO_OP_TUNE) {
			request.tune = (struct proto_tune_request){.cache = 1, .set = 2, .barn_full = 1};
		}
		CHECK(raw_call(fd, ops[i], &request, &reply, sentence) == PROTO_STATUS_ACCESS);
		CHECK(strstr(sentence, "65534") != NULL && strstr(sentence, "default") != NULL);
	}
	CHECK(raw_call(fd, PROTO_OP_ORPHANS, &(union proto_request){0}, &reply, sentence) == PROTO_STATUS_OK);
	close(fd);
}

/* Who is neither root nor slabd's user may look, and use, and not administer; and is told so. */
static void
it_administering_is_for_few(void)
{
	CLEANUP(harness_free) struct harness *h = NULL;
	struct slabc *c;
	uint32_t before;
	pid_t pid;

	if (geteuid() != 0) {
		skip("only root can become another user");
		return;
	}
	h = harness_slabd("--page-kind=4k");
	c = harness_open(h, "k");
	harness_open_cache(c, "k", 64, 0);
	before = harness_cache(h, "k").barn_full;
	pid = harness_spawn(h, try_to_administer, h);
	harness_join(h, pid);
	CHECK(harness_cache(h, "k").barn_full == before);
	slabc_close(c);
}

/* Slabctl does all of this from the command line, in text and JSON, and its exit status says how it went. */
static void
it_slabctl_administers(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "k");
	struct slabc_cache *k = harness_open_cache(c, "k", 256, 0), *other = harness_open_cache(c, "other", 64, 0);
	char out[8192], id[32], client[48];
	void *p[3000];

	snprintf(id, sizeof id, "%u", slabc_client_id(c));
	REQUIRE(slabc_alloc_bulk(k, 3000, p) == 0);
	CHECK(slabc_publish(c, "queue/head", slabc_ref_of(c, p[0]), 0) == 0);
	CHECK(slabc_publish(c, "table \"x\"", slabc_ref_of(c, p[1]), 0) == 0);
	CHECK(slabctl(h, out, sizeof out, "roots", NULL, NULL, NULL) == 0);
	CHECK(strstr(out, "queue/head") != NULL && strstr(out, "table \"x\"") != NULL && strstr(out, id) != NULL);
	CHECK(slabctl(h, out, sizeof out, "roots", "queue/", "--json", NULL) == 0);
	CHECK(strstr(out, "\"name\": \"queue/head\", \"cache_name\": \"k\"") != NULL && strstr(out, "table") == NULL);
	CHECK(strstr(out, "\"ref\": \"0x01") != NULL);
	/* Tuning. */
	CHECK(slabctl(h, out, sizeof out, "tune", "k", "sheaf_capacity=33", "max_cached=2M") == 0);
	CHECK(harness_cache(h, "k").capacity == 33 && harness_cache(h, "k").max_cached == 2 << 20);
	CHECK(slabctl(h, out, sizeof out, "tune", "k", "barn_full=none", NULL) == 0);
	CHECK(slabctl(h, out, sizeof out, "tune", "k", "cpu_partial=none", NULL) == 0);
	CHECK(strstr(out, "barn_full       none\n") && strstr(out, "cpu_partial     none\n") && strstr(out, "sheaf_capacity  33\n"));
	CHECK(slabctl(h, out, sizeof out, "tune", "k", "max_order=2", NULL) == 2 && strstr(out, "max_order is set when a cache is made"));
	CHECK(slabctl(h, out, sizeof out, "--json", "tune", "k", "barn_full=none") == 0);
	CHECK(strstr(out, "\"barn_full\": 0") != NULL && strstr(out, "\"sheaf_capacity\": 33") != NULL);
	CHECK(slabctl(h, out, sizeof out, "tune", "k", "sheaf_capacity=5000", NULL) == 3 && strstr(out, "1020") != NULL);
	CHECK(slabctl(h, out, sizeof out, "tune", "k", "sheaf_capacity=0", NULL) == 2);
	CHECK(slabctl(h, out, sizeof out, "tune", "k", "sheaf_capacity=none", NULL) == 2);
	CHECK(slabctl(h, out, sizeof out, "tune", "k", "color=red", NULL) == 2 && strstr(out, "color=red") != NULL);
	CHECK(slabctl(h, out, sizeof out, "tune", "none", "barn_full=1", NULL) == 3);
	CHECK(slabctl(h, out, sizeof out, "tune", "k", NULL, NULL) == 2);
	/* Orphans: a second session of this process dies. */
	CHECK(slabctl(h, out, sizeof out, "orphans", "--none", NULL, NULL) == 0);
	slabc_close(c);
	/* For a script: what should not be there is. */
	CHECK(slabctl(h, out, sizeof out, "orphans", "--none", NULL, NULL) == 1 && strstr(out, "3000") != NULL);
	CHECK(slabctl(h, out, sizeof out, "orphans", "--none", "--older-than=1h", NULL) == 0);
	CHECK(slabctl(h, out, sizeof out, "orphans", "reclaim", "--none", NULL) == 2);
	CHECK(slabctl(h, out, sizeof out, "caches", "--none", NULL, NULL) == 2);
	CHECK(slabctl(h, out, sizeof out, "orphans", "--cache=other", "--none", NULL) == 0);
	CHECK(slabctl(h, out, sizeof out, "orphans", "--cache=typo", NULL, NULL) == 3 && strstr(out, "no cache typo"));
	CHECK(slabctl(h, out, sizeof out, "orphans", "reclaim", "--client=99999", NULL) == 3 && strstr(out, "no dead client 99999"));
	CHECK(slabctl(h, out, sizeof out, "orphans", NULL, NULL, NULL) == 0);
	CHECK(strstr(out, id) != NULL && strstr(out, "3000") != NULL && strstr(out, " s\n") != NULL);
	CHECK(slabctl(h, out, sizeof out, "orphans", "--older-than=1h", "--json", NULL) == 0 && strcmp(out, "[\n]\n") == 0);
	CHECK(slabctl(h, out, sizeof out, "orphans", "reclaim", NULL, NULL) == 2);
	CHECK(slabctl(h, out, sizeof out, "orphans", "reclaim", "--older-than=1h", NULL) == 0 && strstr(out, "n_freed  0") != NULL);
	CHECK(slabctl(h, out, sizeof out, "destroy", "k", NULL, NULL) == 3 && strstr(out, "3000 objects") != NULL &&
		strstr(out, "BUSY") != NULL);
	snprintf(client, sizeof client, "--client=%s", id);
	CHECK(slabctl(h, out, sizeof out, "orphans", "reclaim", client, "--json") == 0 && strstr(out, "\"n_freed\": 3000") != NULL);
	CHECK(slabctl(h, out, sizeof out, "orphans", "adopt", NULL, NULL) == 2);
	CHECK(slabctl(h, out, sizeof out, "shrink", "k", "--json", NULL) == 0 && strstr(out, "\"n_pages\": ") != NULL);
	CHECK(slabctl(h, out, sizeof out, "shrink", NULL, NULL, NULL) == 0);
	CHECK(slabctl(h, out, sizeof out, "shrink", "none", NULL, NULL) == 3);
	CHECK(harness_cache(h, "k").n_slabs == 0);
	CHECK(slabctl(h, out, sizeof out, "destroy", "k", NULL, NULL) == 0 && strstr(out, "k") != NULL);
	CHECK(slabctl(h, out, sizeof out, "destroy", "k", NULL, NULL) == 3);
	CHECK(slabctl(h, out, sizeof out, "destroy", "other", "--json", NULL) == 0 && strstr(out, "\"destroyed\": \"other\"") != NULL);
	CHECK(slabctl(h, out, sizeof out, "caches", "--json", NULL, NULL) == 0 && strcmp(out, "[\n]\n") == 0);
	CHECK(slabctl(h, out, sizeof out, "arenas", "--json", NULL, NULL) == 0 && strstr(out, "\"name\": \"default\"") != NULL);
	CHECK(slabctl(h, out, sizeof out, "nodes", NULL, NULL, NULL) == 0 && strstr(out, "givenback") != NULL);
	CHECK(slabctl(h, out, sizeof out, "nodes", "--json", NULL, NULL) == 0 && strstr(out, "\"node\": 1}") != NULL);
	CHECK(slabctl(h, out, sizeof out, "nodes", "more", NULL, NULL) == 2);
	CHECK(slabctl(h, out, sizeof out, "nodes", "--cache=k", NULL, NULL) == 2);
	(void)other;
}

/* Sheaves that a client gives back while it empties the 20 of its process barn. */
static uint64_t
flushes_while_emptying(struct harness *h, struct slabc_cache *k)
{
	static void *p[20 * 10];
	uint64_t before, n;

	REQUIRE(slabc_alloc_bulk(k, sizeof p / sizeof p[0], p) == 0);
	slabc_free_bulk(k, sizeof p / sizeof p[0], p);
	/* Nor does it borrow more than that at a time. */
	CHECK(barn_count(atomic_read(&k->shown->empty)) <= harness_cache(h, "k").barn_empty);
	before = harness_cache(h, "k").n_flushes;
	REQUIRE(slabc_alloc_bulk(k, sizeof p / sizeof p[0], p) == 0);
	n = harness_cache(h, "k").n_flushes - before;
	CHECK(barn_count(atomic_read(&k->shown->empty)) <= harness_cache(h, "k").barn_empty);
	slabc_free_bulk(k, sizeof p / sizeof p[0], p);
	/* All goes back, empty sheaves too. */
	CHECK(slabc_cache_shrink(k) == 0);
	return n;
}

/* A process keeps as many sheaves without objects as barn_empty says, asked for at creation or tuned; what is emptied beyond that goes back. */
static void
it_empty_sheaves_are_bounded(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc_cache_options options = SLABC_CACHE_OPTIONS_INIT;
	struct slabc *c = harness_open(h, "k");
	struct slabc_cache *k = NULL;
	uint64_t n;

	options.sheaf_capacity = 10;
	options.barn_empty = 3;
	/* Of so small a barn nothing is asked for ahead, which would take empty sheaves whenever slabd comes to it. */
	options.max_cached = 24 * 640;
	REQUIRE(slabc_cache_open(c, "k", 64, &options, &k) == 0);
	CHECK(harness_cache(h, "k").barn_empty == 3);
	n = flushes_while_emptying(h, k);
	CHECK(n >= 20 - 3 - 2 && n <= 20 - 3);
	CHECK(tune(h, "k", (struct proto_tune_request){.set = 32, .barn_empty = LAYOUT_KNOB_NONE}, NULL) == PROTO_STATUS_OK);
	CHECK(harness_cache(h, "k").barn_empty == 0);
	n = flushes_while_emptying(h, k);
	CHECK(n >= 20 - 2 && n <= 20);
	/* By default as many as max_cached lets it keep with objects, and that goes on when max_cached is tuned. */
	CHECK(tune(h, "k", (struct proto_tune_request){.set = 8 | 32}, NULL) == PROTO_STATUS_OK);
	CHECK(harness_cache(h, "k").barn_empty == 16384);
	CHECK(tune(h, "k", (struct proto_tune_request){.set = 8, .max_cached = 100 * 640}, NULL) == PROTO_STATUS_OK);
	CHECK(harness_cache(h, "k").barn_empty == 100);
	CHECK(flushes_while_emptying(h, k) == 0);
	slabc_close(c);
}

CU_pSuite
it_admin_suite(void)
{
	CU_pSuite suite = harness_suite("admin");

	CU_ADD_TEST(suite, it_session_stats);
	CU_ADD_TEST(suite, it_shrink_gives_back_what_is_idle);
	CU_ADD_TEST(suite, it_needed_cache_is_not_destroyed);
	CU_ADD_TEST(suite, it_destroyed_cache_is_gone);
	CU_ADD_TEST(suite, it_ids_come_round);
	CU_ADD_TEST(suite, it_kept_slots_of_a_destroyed_cache);
	CU_ADD_TEST(suite, it_cache_without_words_is_destroyed);
	CU_ADD_TEST(suite, it_runs_are_orphans_too);
	CU_ADD_TEST(suite, it_capacity_is_tuned);
	CU_ADD_TEST(suite, it_large_sheaves_in_the_barn);
	CU_ADD_TEST(suite, it_clients_learn_the_capacity);
	CU_ADD_TEST(suite, it_lowered_limits_hold_at_once);
	CU_ADD_TEST(suite, it_tuning_stops_nobody);
	CU_ADD_TEST(suite, it_knobs_are_tuned);
	CU_ADD_TEST(suite, it_empty_sheaves_are_bounded);
	CU_ADD_TEST(suite, it_stashes_are_counted_and_given_back);
	CU_ADD_TEST(suite, it_administering_is_for_few);
	CU_ADD_TEST(suite, it_slabctl_administers);
	return suite;
}
