/* SPDX-License-Identifier: Apache-2.0 */
/* What the dead leave and who takes it; what the living give each other (design.md, section 5; tests/model/give_slot.pml,
 * owned_shared.pml). */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "shm/word.h"
#include "tests/harness.h"

CU_pSuite it_orphan_suite(void);

/* A client that holds n objects of a cache, value i in the i-th, and dies when it is killed. */
struct holder {
	struct harness *h;
	const char *label;
	const char *cache;
	unsigned flags;
	unsigned n;
	unsigned n_shared; /* of these are shared by it */
};

static void
hold(struct peer *me, void *arg)
{
	const struct holder *holder = arg;
	struct slabc *c = harness_open(holder->h, holder->label);
	struct slabc_cache *k = harness_open_cache(c, holder->cache, 64, holder->flags);
	uint32_t id = slabc_client_id(c);

	for (unsigned i = 0; i < holder->n; i++) {
		unsigned *p = slabc_alloc(k);

		CHECK(p != NULL);
		*p = i;
		if (i < holder->n_shared)
			CHECK(slabc_ref_of(c, p) != 0);
	}
	peer_put(me, &id, sizeof id);
	peer_await(me, 'e');
}

/* Returns its client id. */
static uint32_t
leave_orphans(struct harness *h, const char *label, const char *cache, unsigned n)
{
	struct holder holder = {h, label, cache, 0, n, n / 2};
	pid_t pid = harness_spawn(h, hold, &holder);
	uint32_t id = 0;

	peer_get(harness_peer(h, pid), &id, sizeof id);
	harness_kill(h, pid, SIGKILL);
	harness_wait_reaped(h, pid);
	return id;
}

/* Each orphan of a cache is shown once, by place, those it shared and those it had to itself; what the living hold, and other caches', is
 * not. */
static void
it_orphans_are_shown_by_place(void)
{
	enum { N = 500 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "heir");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0), *other = harness_open_cache(c, "other", 64, 0);
	bool has_seen[2 * N] = {false};
	slabc_ref ref = 0, last = 0;
	unsigned n = 0;

	CHECK(slabc_next_orphan(k, 0) == 0);
	for (int i = 0; i < 100; i++)
		REQUIRE(slabc_alloc(k) != NULL);
	leave_orphans(h, "first", "k", N);
	leave_orphans(h, "elsewhere", "other", 7);
	leave_orphans(h, "second", "k", N);
	while ((ref = slabc_next_orphan(k, ref)) != 0 && n < 3 * N) {
		const unsigned *p = slabc_deref(c, ref);

		CHECK((uint32_t)ref > (uint32_t)last || n == 0);
		REQUIRE(p != NULL && *p < N);
		CHECK(!has_seen[*p] || !has_seen[N + *p]);
		has_seen[*p + (has_seen[*p] ? N : 0)] = true;
		last = ref;
		n++;
	}
	CHECK(n == 2 * N);
	CHECK(harness_audit_cache(h, "k").n_orphans == 2 * N);
	for (n = 0, ref = 0; (ref = slabc_next_orphan(other, ref)) != 0;)
		n++;
	CHECK(n == 7);
	slabc_close(c);
}

/* An orphan is adopted once: the second who was shown it does not get it, neither from the first nor after that one freed it. */
static void
it_orphan_is_adopted_once(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c[2] = {harness_open(h, "heir"), harness_open(h, "other heir")};
	struct slabc_cache *k[2] = {harness_open_cache(c[0], "k", 64, 0), harness_open_cache(c[1], "k", 64, 0)};
	slabc_ref ref, again;
	unsigned *p;

	leave_orphans(h, "dead", "k", 3);
	ref = slabc_next_orphan(k[0], 0);
	again = slabc_next_orphan(k[1], 0);
	CHECK(ref != 0 && ref == again);
	p = slabc_adopt_orphan(c[0], ref);
	REQUIRE(p != NULL);
	CHECK(p == slabc_deref(c[0], ref));
	errno = 0;
	CHECK(slabc_adopt_orphan(c[1], again) == NULL && errno == ESTALE);
	CHECK(slabc_adopt_orphan(c[0], again) == NULL && errno == ESTALE);
	CHECK(slabc_next_orphan(k[1], 0) != ref);
	errno = 0;
	slabc_free(k[0], p);
	CHECK(errno == 0);
	CHECK(slabc_adopt_orphan(c[1], again) == NULL && errno == ESTALE);
	/* What somebody who lives shares is taken by slabc_adopt() only. */
	p = slabc_alloc(k[0]);
	ref = slabc_ref_of(c[0], p);
	CHECK(slabc_adopt_orphan(c[1], ref) == NULL && errno == ESTALE);
	CHECK(slabc_adopt(c[1], ref) != NULL);
	CHECK(slabc_adopt_orphan(c[1], 0) == NULL && errno == ESTALE);
	CHECK(harness_audit(h).n_orphans == 2);
	slabc_close(c[0]);
	slabc_close(c[1]);
}

struct heir {
	struct harness *h;
	unsigned n;
};

static void
adopt_all(struct peer *me, void *arg)
{
	const struct heir *heir = arg;
	struct slabc *c = harness_open(heir->h, "heir");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	unsigned n = 0, *values = calloc(heir->n, sizeof *values);
	slabc_ref ref = 0;

	CHECK(values != NULL);
	peer_tell(me, 'r');
	peer_await(me, 'g');
	while ((ref = slabc_next_orphan(k, ref)) != 0) {
		const unsigned *p = slabc_adopt_orphan(c, ref);

		if (p)
			values[n++] = *p;
		else
			CHECK(errno == ESTALE);
	}
	peer_put(me, &n, sizeof n);
	peer_put(me, values, n * sizeof *values);
	peer_await(me, 'e');
}

/* Three heirs run through the same orphans, in two of slabd's loops: each orphan goes to exactly one. */
static void
it_heirs_race(void)
{
	enum { N = 400, N_HEIRS = 3 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --threads=2");
	struct heir heir = {h, N};
	unsigned n[N_HEIRS], values[N], n_total = 0;
	bool has_seen[N] = {false};
	pid_t pids[N_HEIRS];

	leave_orphans(h, "dead", "k", N);
	for (int i = 0; i < N_HEIRS; i++) {
		pids[i] = harness_spawn(h, adopt_all, &heir);
		peer_await(harness_peer(h, pids[i]), 'r');
	}
	for (int i = 0; i < N_HEIRS; i++)
		peer_tell(harness_peer(h, pids[i]), 'g');
	for (int i = 0; i < N_HEIRS; i++) {
		peer_get(harness_peer(h, pids[i]), &n[i], sizeof n[i]);
		REQUIRE(n[i] <= N);
		peer_get(harness_peer(h, pids[i]), values, n[i] * sizeof values[0]);
		for (unsigned j = 0; j < n[i]; j++) {
			REQUIRE(values[j] < N);
			CHECK(!has_seen[values[j]]);
			has_seen[values[j]] = true;
		}
		n_total += n[i];
	}
	CHECK(n_total == N);
	CHECK(harness_audit(h).n_orphans == 0);
	CHECK(harness_audit(h).n_held == N);
	for (int i = 0; i < N_HEIRS; i++) {
		peer_tell(harness_peer(h, pids[i]), 'e');
		harness_join(h, pids[i]);
	}
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
}

/* A gift is the receiver's: it frees it, the giver cannot; it is shared from then on, so others can adopt it. */
static void
it_give(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c[3] = {harness_open(h, "giver"), harness_open(h, "receiver"), harness_open(h, "third")};
	struct slabc_cache *k[3];
	slabc_ref ref;
	void *p, *q;

	for (int i = 0; i < 3; i++)
		k[i] = harness_open_cache(c[i], "k", 64, SLABC_RECLAIM);
	p = slabc_alloc(k[0]);
	memset(p, 0xab, 64);
	CHECK(slabc_give(c[0], p, slabc_client_id(c[1])) == 0);
	CHECK(harness_client_id(h, slabc_client_id(c[0])).n_held == 0);
	CHECK(harness_client_id(h, slabc_client_id(c[1])).n_held == 1);
	errno = 0;
	slabc_free(k[0], p);
	CHECK(errno == EINVAL);
	CHECK(slabc_give(c[0], p, slabc_client_id(c[1])) == -EINVAL);
	/* The same place there: sessions of one process map the arena at different addresses. */
	ref = slabc_ref_of(c[0], p);
	CHECK(ref != 0);
	q = slabc_deref(c[1], ref);
	REQUIRE(q != NULL);
	CHECK(*(unsigned char *)q == 0xab);
	CHECK(slabc_adopt(c[2], ref) != NULL);
	CHECK(slabc_give(c[2], slabc_deref(c[2], ref), slabc_client_id(c[1])) == 0);
	errno = 0;
	slabc_free(k[1], q);
	CHECK(errno == 0);
	CHECK(slabc_give(c[1], q, slabc_client_id(c[0])) == -EINVAL);
	CHECK(slabc_give(c[0], (char *)slabc_alloc(k[0]) + 8, slabc_client_id(c[1])) == -EINVAL);
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	for (int i = 0; i < 3; i++)
		slabc_close(c[i]);
}

/* Who does not live, by slot and life, gets nothing: the object stays the giver's, as it was. */
static void
it_give_to_nobody(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc_options options = SLABC_OPTIONS_INIT;
	struct slabc *c = harness_open(h, "giver"), *gone = harness_open(h, "gone"), *reader = NULL, *other = harness_open(h, "other");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	uint32_t gone_id = slabc_client_id(gone), ids[4];
	union proto_request request = {0};
	union proto_reply reply;
	struct raw raw;
	void *p = slabc_alloc(k);

	slabc_close(gone);
	options.socket = h->socket;
	options.flags = SLABC_RDONLY;
	REQUIRE(slabc_open(&reader, &options) == 0);
	ids[0] = gone_id;
	ids[1] = 0;
	ids[2] = UINT32_MAX;
	ids[3] = slabc_client_id(other) + (1u << 14); /* its next life */
	for (int i = 0; i < 4; i++) {
		CHECK(slabc_give(c, p, ids[i]) == -ESRCH);
		CHECK(strstr(slabc_last_error(), "client") != NULL);
	}
	CHECK(slabc_give(c, p, slabc_client_id(reader)) == -EACCES);
	CHECK(slabc_give(reader, p, slabc_client_id(c)) == -EACCES);
	/* slabd itself looks whose it is: a client without the library gives what it does not have. */
	raw_attach(&raw, h->socket, "gives what it has not");
	request.give.client_id = slabc_client_id(other);
	request.give.ref = slabc_ref_of(c, p);
	CHECK(raw_call(raw.fd, PROTO_OP_GIVE, &request, &reply, NULL) == PROTO_STATUS_INVALID);
	raw_detach(&raw);
	CHECK(harness_client_id(h, slabc_client_id(c)).n_held == 1);
	errno = 0;
	slabc_free(k, p);
	CHECK(errno == 0);
	slabc_close(reader);
	slabc_close(other);
	slabc_close(c);
}

static void
receive_until_killed(struct peer *me, void *arg)
{
	struct slabc *c = harness_open(arg, "receiver");
	uint32_t id = slabc_client_id(c);

	harness_open_cache(c, "k", 64, SLABC_RECLAIM);
	peer_put(me, &id, sizeof id);
	peer_await(me, 'e');
}

/* A receiver that is killed while it is given things: each is freed with it, or still the giver's. Nothing ever names the dead. */
static void
it_receiver_dies_amid_gifts(void)
{
	enum { N_DEATHS = 25, N_BALLAST = 100000 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --threads=2");
	struct slabc *c = harness_open(h, "giver");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, SLABC_RECLAIM);
	unsigned seed = harness_seed(), n_given = 0;
	void **ballast = calloc(N_BALLAST, sizeof *ballast);

	/* So that the reaper has words to walk. */
	REQUIRE(ballast != NULL && slabc_alloc_bulk(k, N_BALLAST, ballast) == 0);
	for (int i = 0; i < N_DEATHS; i++) {
		pid_t pid = harness_spawn(h, receive_until_killed, h);
		struct proto_audit_reply audit;
		int64_t death;
		uint32_t id = 0;
		int r = 0;

		peer_get(harness_peer(h, pid), &id, sizeof id);
		death = harness_now_ns() + rand_r(&seed) % 3000000;
		while (r == 0) {
			void *p = slabc_alloc(k);

			REQUIRE(p != NULL);
			r = slabc_give(c, p, id);
			n_given += r == 0;
			if (r < 0) {
				CHECK(r == -ESRCH);
				slabc_free(k, p);
			}
			/* Not waited for: gifts go on while it is reaped. */
			if (death && harness_now_ns() > death) {
				CHECK(kill(pid, SIGKILL) == 0);
				death = 0;
			}
		}
		harness_kill(h, pid, SIGKILL);
		harness_wait_reaped(h, pid);
		audit = harness_audit(h);
		CHECK(audit.n_orphans == 0 && audit.n_held == N_BALLAST && audit.n_lost == 0 && audit.n_doubled == 0);
	}
	CHECK(n_given > N_DEATHS);
	slabc_free_bulk(k, N_BALLAST, ballast);
	free(ballast);
	slabc_close(c);
}

static struct proto_orphans_reply
orphans_after(struct harness *h, uint32_t cache, uint32_t client)
{
	union proto_request request = {.orphans = {.after_cache = cache, .after_client = client}};
	union proto_reply reply = {0};

	CHECK(harness_ask(h, PROTO_OP_ORPHANS, &request, &reply) == PROTO_STATUS_OK);
	return reply.orphans;
}

/* The dead are listed with what they left in which cache, by the name they had, and since when. */
static void
it_dead_are_listed_with_age(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "lives");
	uint32_t ids[2];
	struct proto_orphans_reply o[4];
	int64_t start = harness_now_ns(), aged;

	harness_open_cache(c, "a", 64, 0);
	harness_open_cache(c, "b", 64, 0);
	CHECK(orphans_after(h, 0, 0).cache == 0);
	ids[0] = leave_orphans(h, "first dead", "b", 5);
	ids[1] = leave_orphans(h, "second dead", "a", 3);
	leave_orphans(h, "third dead", "b", 2);
	while (harness_now_ns() - start < 50000000)
		harness_pause();
	o[0] = orphans_after(h, 0, 0);
	o[1] = orphans_after(h, o[0].cache, o[0].client);
	o[2] = orphans_after(h, o[1].cache, o[1].client);
	o[3] = orphans_after(h, o[2].cache, o[2].client);
	aged = (harness_now_ns() - start) / 1000000;
	CHECK(strcmp(o[0].cache_name, "a") == 0 && o[0].n_orphans == 3 && strcmp(o[0].label, "second dead") == 0 &&
		o[0].client_id == ids[1]);
	CHECK(strcmp(o[1].cache_name, "b") == 0 && o[1].n_orphans == 5 && strcmp(o[1].label, "first dead") == 0 &&
		o[1].client_id == ids[0]);
	CHECK(strcmp(o[2].cache_name, "b") == 0 && o[2].n_orphans == 2 && strcmp(o[2].label, "third dead") == 0);
	CHECK(o[3].cache == 0);
	CHECK(o[0].bytes == 3 * 64 && o[0].pid != 0);
	CHECK(o[1].age_ms >= o[2].age_ms && o[1].age_ms <= (uint64_t)aged);
	CHECK(strcmp(harness_client_id(h, ids[0]).label, "first dead") == 0);
	CHECK(strcmp(harness_client_id(h, ids[0]).state, "dead") == 0);
	slabc_close(c);
}

static uint64_t
reclaim(struct harness *h, uint32_t cache, uint32_t client_id, uint64_t older_than_ms)
{
	union proto_request request = {.reclaim = {.cache = cache, .client_id = client_id, .older_than_ms = older_than_ms}};
	union proto_reply reply = {0};
	uint64_t n = 0;

	do {
		CHECK(harness_ask(h, PROTO_OP_RECLAIM, &request, &reply) == PROTO_STATUS_OK);
		n += reply.reclaim.n_freed;
		request.reclaim.from = reply.reclaim.next;
	} while (reply.reclaim.next != 0);
	return n;
}

/* Orphans are freed by client, by cache and by age, and nothing but orphans. */
static void
it_orphans_are_reclaimed(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "lives");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	uint32_t ids[3];
	slabc_ref ref;

	harness_open_cache(c, "other", 64, 0);
	for (int i = 0; i < 100; i++)
		REQUIRE(slabc_alloc(k) != NULL);
	ids[0] = leave_orphans(h, "a", "k", 5000);
	ids[1] = leave_orphans(h, "b", "k", 70);
	ids[2] = leave_orphans(h, "b", "other", 30);
	ref = slabc_next_orphan(k, 0);
	CHECK(slabc_adopt_orphan(c, ref) != NULL);
	CHECK(reclaim(h, 0, 0, 3600000) == 0);
	CHECK(reclaim(h, 0, slabc_client_id(c), 0) == 0);
	CHECK(reclaim(h, 0, ids[0] + (1u << 14), 0) == 0);
	CHECK(reclaim(h, 0, ids[1], 0) == 70);
	CHECK(reclaim(h, harness_cache(h, "other").cache, ids[0], 0) == 0);
	CHECK(reclaim(h, harness_cache(h, "k").cache, 0, 0) == 4999);
	CHECK(slabc_next_orphan(k, 0) == 0);
	CHECK(harness_audit(h).n_orphans == 30);
	CHECK(reclaim(h, 0, ids[2], 0) == 30);
	CHECK(harness_audit(h).n_orphans == 0);
	CHECK(harness_audit(h).n_held == 101);
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	slabc_close(c);
}

struct reclaimer {
	struct harness *h;
	unsigned n;
};

static void
adopt_until_none(struct peer *me, void *arg)
{
	struct slabc *c = harness_open(arg, "heir");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	unsigned n = 0, n_spoilt = 0;
	slabc_ref ref = 0;

	peer_tell(me, 'r');
	while ((ref = slabc_next_orphan(k, ref)) != 0) {
		unsigned *p = slabc_adopt_orphan(c, ref);

		if (!p)
			continue;
		n_spoilt += !slabc_valid(c, ref);
		n++;
	}
	peer_put(me, &n, sizeof n);
	peer_put(me, &n_spoilt, sizeof n_spoilt);
	peer_await(me, 'e');
}

/* Reclaimed while they are being adopted: each is either freed or an heir's. */
static void
it_reclaim_races_with_heirs(void)
{
	enum { N = 2000 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --threads=2");
	struct slabc *c = harness_open(h, "keeps the cache");
	unsigned n = 0, n_spoilt = 0;
	uint64_t n_freed;
	pid_t pid;

	harness_open_cache(c, "k", 64, 0);
	leave_orphans(h, "dead", "k", N);
	pid = harness_spawn(h, adopt_until_none, h);
	peer_await(harness_peer(h, pid), 'r');
	CHECK(EVENTUALLY(harness_client(h, pid).n_held > 20));
	n_freed = reclaim(h, 0, 0, 0);
	peer_get(harness_peer(h, pid), &n, sizeof n);
	peer_get(harness_peer(h, pid), &n_spoilt, sizeof n_spoilt);
	CHECK(n + n_freed == N);
	CHECK(n_spoilt == 0);
	CHECK(harness_audit(h).n_held == n);
	CHECK(harness_audit(h).n_orphans == 0 && harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	peer_tell(harness_peer(h, pid), 'e');
	harness_join(h, pid);
	slabc_close(c);
}

static uint64_t
n_dropped(struct harness *h)
{
	union proto_request request = {0};
	union proto_reply reply;

	REQUIRE(harness_ask(h, PROTO_OP_ARENAS, &request, &reply) == PROTO_STATUS_OK);
	return reply.arenas.n_orphans_dropped;
}

/*
 * What the dead leave beyond max-orphans is freed, to the object, of who died first; what the living have, and what is adopted, does not
 * count.  A limit that comes later is heeded at the next end.
 */
static void
it_orphans_are_bounded(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd_config("[arena]\nsize = 16M\npage-kind = 4k\nmax-orphans = 64000\n");
	struct slabc *c = harness_open(h, "lives");
	struct slabc_cache *k = harness_open_cache(c, "a", 64, 0);
	uint32_t first, second, third;
	static void *pv[2000];

	REQUIRE(slabc_alloc_bulk(k, 2000, pv) == 0);
	first = leave_orphans(h, "first", "a", 300);
	second = leave_orphans(h, "second", "b", 600);
	CHECK(harness_client_id(h, first).n_orphans == 300 && harness_client_id(h, second).n_orphans == 600);
	CHECK(slabc_adopt_orphan(c, slabc_next_orphan(k, 0)) != NULL);
	/* 299 + 600 + 350 of 1000: 249 are too many. */
	third = leave_orphans(h, "third", "a", 350);
	CHECK(EVENTUALLY(n_dropped(h) == 249));
	CHECK(harness_client_id(h, first).n_orphans == 50 && harness_client_id(h, second).n_orphans == 600);
	CHECK(harness_client_id(h, third).n_orphans == 350);
	CHECK(harness_log_count(h, "max-orphans, 64000 bytes: 249 objects of cache 'a', 15936 bytes, are freed") == 1);
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_held == 2001);
	harness_reload(h, "[arena]\nsize = 16M\npage-kind = 4k\nmax-orphans = 6400\n");
	CHECK(harness_audit(h).n_orphans == 1000);
	/* All of the older ones, and most of its own. */
	leave_orphans(h, "fourth", "b", 200);
	CHECK(EVENTUALLY(n_dropped(h) == 249 + 1100));
	CHECK(harness_audit(h).n_orphans == 100 && harness_audit_cache(h, "b").n_orphans == 100);
	harness_reload(h, "[arena]\nsize = 16M\npage-kind = 4k\n");
	leave_orphans(h, "fifth", "b", 2000);
	CHECK(harness_audit(h).n_orphans == 2100 && n_dropped(h) == 249 + 1100);
	slabc_close(c);
	CHECK(harness_audit(h).n_lost == 0 && harness_status(h).n_faults == 0);
}

CU_pSuite
it_orphan_suite(void)
{
	CU_pSuite suite = harness_suite("orphan");

	CU_ADD_TEST(suite, it_orphans_are_shown_by_place);
	CU_ADD_TEST(suite, it_orphan_is_adopted_once);
	CU_ADD_TEST(suite, it_heirs_race);
	CU_ADD_TEST(suite, it_give);
	CU_ADD_TEST(suite, it_give_to_nobody);
	CU_ADD_TEST(suite, it_receiver_dies_amid_gifts);
	CU_ADD_TEST(suite, it_dead_are_listed_with_age);
	CU_ADD_TEST(suite, it_orphans_are_reclaimed);
	CU_ADD_TEST(suite, it_orphans_are_bounded);
	CU_ADD_TEST(suite, it_reclaim_races_with_heirs);
	return suite;
}
