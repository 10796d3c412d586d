/* SPDX-License-Identifier: Apache-2.0 */
/* Frees that are refused and leave the object alone; frees of others' objects; references and what makes them stale. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

CU_pSuite it_free_suite(void);

/* Two clients of one slabd, in this process, with the same cache. */
struct pair {
	struct slabc *a, *b;
	struct slabc_cache *ka, *kb;
};

static struct pair
open_pair(struct harness *h, size_t size, unsigned flags)
{
	struct pair t = {.a = harness_open(h, "client a"), .b = harness_open(h, "client b")};

	t.ka = harness_open_cache(t.a, "k", size, flags);
	t.kb = harness_open_cache(t.b, "k", size, flags);
	return t;
}

static void
close_pair(struct harness *h, struct pair *t)
{
	slabc_close(t->a);
	slabc_close(t->b);
	CHECK(harness_audit(h).n_lost == 0);
	CHECK(harness_audit(h).n_doubled == 0);
}

static struct proto_clients_reply
client_of(struct harness *h, struct slabc *c)
{
	return harness_client_id(h, slabc_client_id(c));
}

/* A free that must be refused with EINVAL and a sentence. */
static void
check_refused(struct slabc_cache *k, void *p, const char *sentence)
{
	errno = 0;
	slabc_free(k, p);
	CHECK(errno == EINVAL);
	CHECK(strstr(slabc_last_error(), sentence) != NULL);
}

/* The second free of an object is refused, counted, and logged under the client's label; the object is had by one taker only. */
static void
it_double_free(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct pair t = open_pair(h, 64, 0);
	void *p = slabc_alloc(t.ka), *q, *r;

	errno = 77;
	slabc_free(t.ka, p);
	slabc_free(t.ka, NULL);
	CHECK(errno == 77);
	check_refused(t.ka, p, "free already");
	CHECK(client_of(h, t.a).n_double_frees == 1);
	CHECK(client_of(h, t.b).n_double_frees == 0);
	CHECK(EVENTUALLY(harness_log_count(h, "'client a'): an object freed twice, cache 'k', at place ") == 1));
	CHECK(client_of(h, t.a).n_faults == 1);
	q = slabc_alloc(t.ka);
	r = slabc_alloc(t.ka);
	CHECK(q && r && q != r);
	CHECK(harness_audit(h).n_doubled == 0);
	close_pair(h, &t);
}

/* What is no object of the cache is refused: stack, heap, another cache's object, which stays its holder's. */
static void
it_wild_free(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct pair t = open_pair(h, 64, 0);
	struct slabc_cache *other = harness_open_cache(t.a, "other", 64, 0);
	char on_stack[64], *on_heap = malloc(64), *p = slabc_alloc(other), *q = slabc_alloc(t.ka);

	memset(p, 'x', 64);
	check_refused(t.ka, on_stack, "no object of this cache");
	check_refused(t.ka, on_heap, "no object of this cache");
	check_refused(t.ka, p, "no object of this cache: it is one of cache 'other'");
	/* Beside the arena's range, and in a page of it where nothing lies. */
	check_refused(t.ka, q + (1ull << 40), "no object of this cache");
	check_refused(t.ka, q + (100ull << 20), "no object of this cache");
	CHECK(client_of(h, t.a).n_wild_frees == 5);
	CHECK(EVENTUALLY(
		harness_log_count(h,
			"'client a'): a free of what is no object of the cache, cache 'k', at an address outside the arena; 1 of") == 1));
	CHECK(EVENTUALLY(harness_log_count(h, "'client a'): a free of what is no object of the cache") == 3));
	CHECK(harness_audit_cache(h, "other").n_held == 1);
	CHECK(p[0] == 'x' && p[63] == 'x');
	errno = 0;
	slabc_free(other, p);
	CHECK(errno == 0);
	free(on_heap);
	close_pair(h, &t);
}

/* A pointer into an object is refused, wherever it points. */
static void
it_misaligned_free(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct pair t = open_pair(h, 72, 0);
	unsigned n = 0;
	char *p;

	for (int i = 0; i < 100; i++) {
		REQUIRE((p = slabc_alloc(t.ka)) != NULL);
		for (int off = 1; off < 72; off++, n++)
			check_refused(t.ka, p + off, "points into an object");
	}
	CHECK(client_of(h, t.a).n_misaligned_frees == n);
	CHECK(EVENTUALLY(harness_log_count(h, "'client a'): a free inside an object") >= 1));
	CHECK(harness_audit(h).n_held == 100);
	close_pair(h, &t);
}

/*
 * The rest of a slab that is too small for an object is no object, also where the words behind it are another slab's: a slab of 2,040-byte
 * objects has 16 of them, as many as its run of words, and 128 bytes over.
 */
static void
it_free_of_a_slabs_rest(void)
{
	enum { N = 64 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc_cache_options options = SLABC_CACHE_OPTIONS_INIT;
	struct slabc *c = harness_open(h, "the rest");
	struct slabc_cache *k;
	char *p[N], *lowest;

	options.min_order = options.max_order = 3;
	REQUIRE(slabc_cache_open(c, "k", 2040, &options, &k) == 0);
	CHECK(harness_cache(h, "k").objects_per_slab == 16);
	for (int i = 0; i < N; i++)
		REQUIRE((p[i] = slabc_alloc(k)) != NULL);
	lowest = p[0];
	for (int i = 1; i < N; i++)
		lowest = p[i] < lowest ? p[i] : lowest;
	for (int slab = 0; slab < N / 16; slab++) {
		errno = 0;
		slabc_free(k, lowest + slab * 32768 + 16 * 2040);
		CHECK(errno == EINVAL);
	}
	CHECK(harness_audit(h).n_held == N);
	for (int i = 0; i < N; i++)
		slabc_free(k, p[i]);
	CHECK(harness_audit(h).n_held == 0);
	CHECK(harness_audit(h).n_lost == 0);
	CHECK(harness_audit(h).n_doubled == 0);
	slabc_close(c);
	CHECK(harness_log_count(h, "not its to give back") == 0);
}

/* In b's mapping, without making a reference of p itself. */
static void *
at_b(struct pair *t, void *p)
{
	char *known = slabc_alloc(t->ka), *there;

	REQUIRE(known != NULL);
	there = slabc_deref(t->b, slabc_ref_of(t->a, known));
	REQUIRE(there != NULL);
	slabc_free(t->ka, known);
	return there + ((char *)p - known);
}

/* Another client's object that it has not shared is not to be freed, nor referred to, nor adopted. */
static void
it_free_of_anothers_owned_object(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct pair t = open_pair(h, 64, 0);
	char *p = slabc_alloc(t.ka), *pb = at_b(&t, p);

	memset(p, 'a', 64);
	check_refused(t.kb, pb, "another client holds it");
	CHECK(client_of(h, t.b).n_refused_frees == 1);
	CHECK(client_of(h, t.a).n_refused_frees == 0);
	CHECK(EVENTUALLY(harness_log_count(h, "'client b'): a free of another client's object") == 1));
	errno = 0;
	CHECK(slabc_ref_of(t.b, pb) == 0 && errno == EINVAL);
	CHECK(client_of(h, t.a).n_held == 1);
	CHECK(p[0] == 'a' && p[63] == 'a');
	errno = 0;
	slabc_free(t.ka, p);
	CHECK(errno == 0);
	close_pair(h, &t);
}

/* In a SLABC_RECLAIM cache a foreign free by pointer is refused, for a pointer has no generation; adopted or by reference it works. */
static void
it_reclaim_cache_refuses_foreign_free_by_pointer(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct pair t = open_pair(h, 64, SLABC_RECLAIM);
	void *p = slabc_alloc(t.ka), *q = slabc_alloc(t.ka), *pb;
	slabc_ref ref = slabc_ref_of(t.a, p);

	pb = slabc_deref(t.b, ref);
	REQUIRE(pb != NULL);
	check_refused(t.kb, pb, "SLABC_RECLAIM");
	CHECK(client_of(h, t.b).n_refused_frees == 1);
	CHECK(slabc_valid(t.a, ref) == 1);
	CHECK(slabc_adopt(t.b, ref) == pb);
	/* a has lost it. */
	check_refused(t.ka, p, "another client holds it");
	errno = 0;
	slabc_free(t.kb, pb);
	CHECK(errno == 0);
	CHECK(slabc_free_ref(t.b, slabc_ref_of(t.a, q)) == 0);
	CHECK(harness_audit(h).n_held == 0);
	close_pair(h, &t);
}

/* b has freed n of a's objects by pointer: all but at most one sheaf of them have gone; none is lost, and none in two places. */
static void
check_late(struct harness *h, struct pair *t, uint64_t n)
{
	uint64_t n_gone = client_of(h, t->b).n_foreign_frees, capacity = harness_cache(h, "k").capacity;
	struct proto_audit_reply audit = harness_audit(h);

	CHECK(n_gone <= n && n_gone + capacity >= n);
	CHECK(audit.n_held == 500 - n_gone);
	CHECK(audit.n_lost == 0 && audit.n_doubled == 0);
}

/* Another client's shared object is freed by pointer, and counted; bulk too.  It takes effect after at most one sheaf of further ones. */
static void
it_foreign_free(void)
{
	enum { N = 500 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct pair t = open_pair(h, 64, 0);
	void *p[N], *pb[N];

	for (int i = 0; i < N; i++) {
		REQUIRE((p[i] = slabc_alloc(t.ka)) != NULL);
		REQUIRE((pb[i] = slabc_deref(t.b, slabc_ref_of(t.a, p[i]))) != NULL);
	}
	errno = 77;
	for (int i = 0; i < N / 2; i++)
		slabc_free(t.kb, pb[i]);
	CHECK(errno == 77);
	check_late(h, &t, N / 2);
	slabc_free_bulk(t.kb, N / 2, pb + N / 2);
	CHECK(errno == 77);
	check_late(h, &t, N);
	check_refused(t.ka, p[0], "free already");
	CHECK(slabc_cache_shrink(t.kb) == 0);
	CHECK(client_of(h, t.b).n_foreign_frees == N);
	CHECK(harness_cache(h, "k").n_foreign_frees == N);
	CHECK(harness_audit(h).n_held == 0);
	/* They may be b's next objects. */
	for (int i = 0; i < N; i++)
		CHECK(slabc_alloc(t.kb) != NULL);
	close_pair(h, &t);
}

/* A reference is good in every client until the object is freed; then it is stale, for ever, whatever comes to lie there. */
static void
it_reference_until_freed(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct pair t = open_pair(h, 64, 0);
	char *p = slabc_alloc(t.ka), *q;
	slabc_ref ref, again;

	strcpy(p, "what a wrote");
	ref = slabc_ref_of(t.a, p);
	CHECK(ref != 0);
	CHECK(slabc_ref_of(t.a, p) == ref);
	CHECK(slabc_deref(t.a, ref) == p);
	CHECK(strcmp(slabc_deref(t.b, ref), "what a wrote") == 0);
	CHECK(slabc_valid(t.b, ref) == 1);
	errno = 0;
	CHECK(slabc_ref_of(t.a, p + 8) == 0 && errno == EINVAL);
	errno = 0;
	CHECK(slabc_ref_of(t.a, &ref) == 0 && errno == EINVAL);

	slabc_free(t.ka, p);
	for (int round = 0; round < 3; round++) {
		errno = 0;
		CHECK(slabc_deref(t.b, ref) == NULL && errno == ESTALE);
		CHECK(slabc_valid(t.b, ref) == 0 && slabc_valid(t.a, ref) == 0);
		errno = 0;
		CHECK(slabc_adopt(t.b, ref) == NULL && errno == ESTALE);
		CHECK(slabc_free_ref(t.a, ref) == -ESTALE);
		CHECK(slabc_free_ref(t.b, ref) == -ESTALE);
		/* The same place, another life. */
		q = slabc_alloc(t.ka);
		CHECK(q == p);
		again = slabc_ref_of(t.a, q);
		CHECK(again != ref && slabc_valid(t.b, again) == 1);
		slabc_free(t.ka, q);
	}
	CHECK(slabc_valid(t.b, 0) == 0);
	errno = 0;
	CHECK(slabc_deref(t.b, 0) == NULL && errno == ESTALE);
	close_pair(h, &t);
}

/* A reference into a page that went back and serves another cache is stale; nothing faults, and the new object is left alone. */
static void
it_reference_after_page_changed_hands(void)
{
	enum { N = 64 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=2M");
	struct slabc_cache_options options = SLABC_CACHE_OPTIONS_INIT;
	struct pair t = {.a = harness_open(h, "client a"), .b = harness_open(h, "client b")};
	struct slabc_cache *first, *second;
	unsigned n_same_place = 0;
	slabc_ref refs[N];
	void *p[N];

	options.min_partial = options.barn_full = SLABC_KNOB_NONE;
	REQUIRE(slabc_cache_open(t.a, "first", 64, &options, &first) == 0);
	for (int i = 0; i < N; i++)
		refs[i] = slabc_ref_of(t.a, p[i] = slabc_alloc(first));
	for (int i = 0; i < N; i++)
		slabc_free(first, p[i]);
	slabc_cache_close(first);
	CHECK(harness_status(h).committed_bytes == 0);
	for (int i = 0; i < N; i++) {
		errno = 0;
		CHECK(slabc_deref(t.b, refs[i]) == NULL && errno == ESTALE);
	}
	REQUIRE(slabc_cache_open(t.a, "second", 64, &options, &second) == 0);
	for (int i = 0; i < 4 * N; i++) {
		void *q = slabc_alloc(second);

		REQUIRE(q != NULL);
		memset(q, 0x5a, 64);
		slabc_ref_of(t.a, q);
		for (int j = 0; j < N; j++)
			n_same_place += q == p[j];
	}
	CHECK(n_same_place > 0);
	for (int i = 0; i < N; i++) {
		CHECK(slabc_valid(t.b, refs[i]) == 0);
		errno = 0;
		CHECK(slabc_adopt(t.b, refs[i]) == NULL && errno == ESTALE);
		CHECK(slabc_free_ref(t.b, refs[i]) == -ESTALE);
	}
	CHECK(harness_audit_cache(h, "second").n_held == 4 * N);
	close_pair(h, &t);
}

/* slabc_free_ref() frees one's own and others' shared objects exactly once. */
static void
it_free_by_reference(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct pair t = open_pair(h, 64, 0);
	void *p = slabc_alloc(t.ka);
	slabc_ref ref = slabc_ref_of(t.a, p);

	errno = 77;
	CHECK(slabc_free_ref(t.b, ref) == 0);
	CHECK(errno == 77);
	CHECK(slabc_free_ref(t.a, ref) == -ESTALE);
	CHECK(client_of(h, t.b).n_foreign_frees == 1);
	p = slabc_alloc(t.ka);
	CHECK(slabc_free_ref(t.a, slabc_ref_of(t.a, p)) == 0);
	CHECK(harness_audit(h).n_held == 0);
	/* A session that never opened the cache can free too. */
	slabc_close(t.b);
	t.b = harness_open(h, "client b");
	p = slabc_alloc(t.ka);
	CHECK(slabc_free_ref(t.b, slabc_ref_of(t.a, p)) == 0);
	CHECK(harness_audit(h).n_held == 0);
	close_pair(h, &t);
}

struct producer_task {
	struct harness *h;
	unsigned n;
};

static void
produce_then_wait(struct peer *me, void *arg)
{
	struct producer_task *task = arg;
	struct slabc *c = harness_open(task->h, "producer");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);

	for (unsigned i = 0; i < task->n; i++) {
		unsigned *p = slabc_alloc(k);
		slabc_ref ref;

		CHECK(p != NULL);
		for (int j = 0; j < 16; j++)
			p[j] = i;
		ref = slabc_ref_of(c, p);
		CHECK(ref != 0);
		peer_put(me, &ref, sizeof ref);
	}
	peer_await(me, 'e');
}

/* What a dead producer sent is adopted, whole, and then the adopter's own. */
static void
it_adopt_from_the_dead(void)
{
	enum { N = 1000 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct producer_task task = {h, N};
	struct slabc *c = harness_open(h, "consumer");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	pid_t pid = harness_spawn(h, produce_then_wait, &task);
	slabc_ref refs[N];
	unsigned n_bad = 0;

	for (int i = 0; i < N; i++)
		peer_get(harness_peer(h, pid), &refs[i], sizeof refs[i]);
	harness_kill(h, pid, SIGKILL);
	harness_wait_reaped(h, pid);
	CHECK(harness_audit(h).n_orphans == N);
	for (unsigned i = 0; i < N; i++) {
		unsigned *p = slabc_adopt(c, refs[i]);

		REQUIRE(p != NULL);
		for (int j = 0; j < 16; j++)
			n_bad += p[j] != i;
		slabc_free(k, p);
	}
	CHECK(n_bad == 0);
	CHECK(harness_audit(h).n_orphans == 0);
	CHECK(harness_audit(h).n_held == 0);
	slabc_close(c);
	CHECK(harness_audit(h).n_lost == 0);
}

enum { N_RACE = 3000 };

struct race_task {
	struct harness *h;
	slabc_ref *refs;
	bool adopts;
};

static void
race(struct peer *me, void *arg)
{
	struct race_task *task = arg;
	struct slabc *c = harness_open(task->h, "racer");
	unsigned n_won = 0;

	harness_open_cache(c, "k", 64, 0);
	peer_tell(me, 'r');
	peer_await(me, 'g');
	for (int i = 0; i < N_RACE; i++) {
		int r;

		if (task->adopts && !slabc_adopt(c, task->refs[i]))
			CHECK(errno == ESTALE);
		r = slabc_free_ref(c, task->refs[i]);
		CHECK(r == 0 || r == -ESTALE);
		n_won += r == 0;
	}
	peer_put(me, &n_won, sizeof n_won);
	peer_await(me, 'e');
	slabc_close(c);
}

/* Two clients that adopt and free the same objects at the same time: each object is freed by exactly one of them. */
static void
it_two_adopters_race(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "maker");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	static slabc_ref refs[N_RACE];

	for (int round = 0; round < 4; round++) {
		struct race_task task = {h, refs, round % 2 == 0};
		unsigned n_won[2];
		pid_t pids[2];

		for (int i = 0; i < N_RACE; i++)
			REQUIRE((refs[i] = slabc_ref_of(c, slabc_alloc(k))) != 0);
		for (int i = 0; i < 2; i++)
			pids[i] = harness_spawn(h, race, &task);
		for (int i = 0; i < 2; i++)
			peer_await(harness_peer(h, pids[i]), 'r');
		for (int i = 0; i < 2; i++)
			peer_tell(harness_peer(h, pids[i]), 'g');
		for (int i = 0; i < 2; i++)
			peer_get(harness_peer(h, pids[i]), &n_won[i], sizeof n_won[i]);
		CHECK(n_won[0] + n_won[1] == N_RACE);
		CHECK(harness_audit(h).n_held == 0);
		CHECK(harness_audit(h).n_doubled == 0);
		CHECK(harness_audit(h).n_lost == 0);
		for (int i = 0; i < 2; i++) {
			peer_tell(harness_peer(h, pids[i]), 'e');
			harness_join(h, pids[i]);
		}
	}
	slabc_close(c);
}

CU_pSuite
it_free_suite(void)
{
	CU_pSuite suite = harness_suite("free");

	CU_ADD_TEST(suite, it_double_free);
	CU_ADD_TEST(suite, it_wild_free);
	CU_ADD_TEST(suite, it_misaligned_free);
	CU_ADD_TEST(suite, it_free_of_a_slabs_rest);
	CU_ADD_TEST(suite, it_free_of_anothers_owned_object);
	CU_ADD_TEST(suite, it_reclaim_cache_refuses_foreign_free_by_pointer);
	CU_ADD_TEST(suite, it_foreign_free);
	CU_ADD_TEST(suite, it_reference_until_freed);
	CU_ADD_TEST(suite, it_reference_after_page_changed_hands);
	CU_ADD_TEST(suite, it_free_by_reference);
	CU_ADD_TEST(suite, it_adopt_from_the_dead);
	CU_ADD_TEST(suite, it_two_adopters_race);
	return suite;
}
