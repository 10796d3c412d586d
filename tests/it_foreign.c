/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frees of others' objects by pointer, which take effect later (design.md, I1b): what becomes of them when who freed ends in any way, when its
 * owner does, when others free or adopt the object in between, when the cache is tuned or destroyed.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/harness.h"

CU_pSuite it_foreign_suite(void);

/* Two sheaves of 256-byte objects and a part of a third. */
enum { SIZE = 256, N = 28 * 2 + 11 };

struct consumer_task {
	struct harness *h;
	slabc_ref refs[N];
	bool closes, shrinks;
};

/* Frees all by pointer, then waits to be ended; or ends. */
static void
consume(struct peer *me, void *arg)
{
	struct consumer_task *task = arg;
	struct slabc *c = harness_open(task->h, "consumer");
	struct slabc_cache *k = harness_open_cache(c, "k", SIZE, 0);

	for (int i = 0; i < N; i++) {
		void *p;

		peer_get(me, &task->refs[i], sizeof task->refs[i]);
		p = slabc_deref(c, task->refs[i]);
		CHECK(p != NULL);
		errno = 0;
		slabc_free(k, p);
		CHECK(errno == 0);
	}
	if (task->shrinks)
		CHECK(slabc_cache_shrink(k) == 0);
	peer_tell(me, 'f');
	peer_await(me, 'e');
	if (task->closes)
		slabc_close(c);
	/* Else the process just ends. */
}

static void
make_objects(struct slabc *c, struct slabc_cache *k, slabc_ref *refs)
{
	for (int i = 0; i < N; i++) {
		void *p = slabc_alloc(k);

		REQUIRE(p != NULL && (refs[i] = slabc_ref_of(c, p)) != 0);
	}
}

static unsigned
count_standing(struct slabc *c, const slabc_ref *refs)
{
	unsigned n = 0;

	for (int i = 0; i < N; i++)
		n += (unsigned)slabc_valid(c, refs[i]);
	return n;
}

static void
check_clean(struct harness *h, uint64_t n_held)
{
	struct proto_audit_reply audit = harness_audit(h);

	CHECK(audit.n_held == n_held && audit.n_orphans == 0);
	CHECK(audit.n_lost == 0 && audit.n_doubled == 0 && audit.n_undecided == 0);
}

static pid_t
start_consumer(struct harness *h, struct consumer_task *task, const slabc_ref *refs)
{
	pid_t pid = harness_spawn(h, consume, task);

	for (int i = 0; i < N; i++)
		peer_put(harness_peer(h, pid), &refs[i], sizeof refs[i]);
	peer_await(harness_peer(h, pid), 'f');
	return pid;
}

/* However a consumer ends with a sheaf of frees that have not taken effect, they do; while it sleeps nothing is lost or in two places. */
static void
it_consumer_ends(void)
{
	enum { KILLED, STOPPED_AND_KILLED, ENDS, CLOSES, SHRINKS, WAYS };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "producer");
	struct slabc_cache *k = harness_open_cache(c, "k", SIZE, 0);
	slabc_ref refs[N];

	for (int way = 0; way < WAYS; way++) {
		struct consumer_task task = {.h = h, .closes = way == CLOSES, .shrinks = way == SHRINKS};
		unsigned n_standing;
		pid_t pid;

		make_objects(c, k, refs);
		pid = start_consumer(h, &task, refs);
		n_standing = count_standing(c, refs);
		/* At most a sheaf waits; a part of one does, unless its claims were asked for. */
		CHECK(n_standing <= harness_cache(h, "k").capacity);
		CHECK((n_standing > 0) == (way != SHRINKS));
		check_clean(h, n_standing);
		CHECK(harness_client(h, pid).n_foreign_frees == N - n_standing);
		CHECK(harness_client(h, pid).bytes_idle % SIZE == 0);
		if (way == STOPPED_AND_KILLED)
			harness_kill(h, pid, SIGSTOP);
		if (way <= STOPPED_AND_KILLED) {
			harness_kill(h, pid, SIGKILL);
		} else {
			peer_tell(harness_peer(h, pid), 'e');
			harness_join(h, pid);
		}
		harness_wait_reaped(h, pid);
		CHECK(count_standing(c, refs) == 0);
		check_clean(h, 0);
		CHECK(harness_cache(h, "k").n_foreign_frees == (uint64_t)(way + 1) * N);
	}
	slabc_close(c);
	CHECK(harness_audit(h).n_out == 0);
}

/* Exits: its frees take effect. */
static void *
free_and_end(void *arg)
{
	void **kv = arg;

	for (int i = 1; i <= N; i++)
		slabc_free(kv[0], kv[i]);
	return NULL;
}

static void
it_consumers_thread_ends(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *a = harness_open(h, "producer"), *b = harness_open(h, "consumer");
	struct slabc_cache *ka = harness_open_cache(a, "k", SIZE, 0), *kb = harness_open_cache(b, "k", SIZE, 0);
	slabc_ref refs[N];
	void *kv[N + 1] = {kb};
	pthread_t thread;

	make_objects(a, ka, refs);
	for (int i = 0; i < N; i++)
		REQUIRE((kv[i + 1] = slabc_deref(b, refs[i])) != NULL);
	REQUIRE(pthread_create(&thread, NULL, free_and_end, kv) == 0);
	pthread_join(thread, NULL);
	CHECK(count_standing(a, refs) == 0);
	check_clean(h, 0);
	/* Another thread of the process has them next. */
	for (int i = 0; i < N; i++)
		CHECK(slabc_alloc(kb) != NULL);
	slabc_close(a);
	slabc_close(b);
}

/* The owner dies before its objects are claimed: they are orphans by then, and claimed all the same. */
static void
it_owner_dies_first(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *b = harness_open(h, "consumer"), *a = harness_open(h, "producer");
	struct slabc_cache *kb = harness_open_cache(b, "k", SIZE, 0), *ka = harness_open_cache(a, "k", SIZE, 0);
	slabc_ref refs[N];
	uint64_t n_orphans;

	make_objects(a, ka, refs);
	for (int i = 0; i < N; i++)
		slabc_free(kb, slabc_deref(b, refs[i]));
	slabc_close(a);
	CHECK(EVENTUALLY(harness_status(h).n_ended_ever == 1));
	n_orphans = harness_audit(h).n_orphans;
	CHECK(n_orphans == count_standing(b, refs) && n_orphans > 0);
	CHECK(slabc_cache_shrink(kb) == 0);
	check_clean(h, 0);
	CHECK(harness_client_id(h, slabc_client_id(b)).n_foreign_frees == N);
	CHECK(harness_client_id(h, slabc_client_id(b)).n_double_frees == 0);
	slabc_close(b);
}

/* Two clients free what a third has; a fourth adopts some first: one has each object, and the losers are counted and named when it is found out. */
static void
it_one_of_several_wins(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *a = harness_open(h, "producer"), *b = harness_open(h, "client b"), *d = harness_open(h, "client d");
	struct slabc_cache *ka = harness_open_cache(a, "k", SIZE, 0), *kb = harness_open_cache(b, "k", SIZE, 0);
	struct slabc_cache *kd = harness_open_cache(d, "k", SIZE, 0);
	unsigned char *adopted[5];
	struct proto_clients_reply of_b, of_d;
	slabc_ref refs[N];

	make_objects(a, ka, refs);
	for (int i = 0; i < N; i++)
		slabc_free(kb, slabc_deref(b, refs[i]));
	for (int i = 0; i < 5; i++) {
		REQUIRE((adopted[i] = slabc_adopt(d, refs[N - 1 - i])) != NULL);
		adopted[i][SIZE - 1] = (unsigned char)i;
	}
	for (int i = 0; i < N - 5; i++) {
		void *p = slabc_deref(d, refs[i]);

		if (p)
			slabc_free(kd, p);
	}
	errno = 0;
	CHECK(slabc_cache_shrink(kd) == 0);
	CHECK(slabc_cache_shrink(kb) == 0);
	of_b = harness_client_id(h, slabc_client_id(b));
	of_d = harness_client_id(h, slabc_client_id(d));
	CHECK(of_b.n_foreign_frees + of_d.n_foreign_frees == N - 5);
	CHECK(of_d.n_double_frees == 0 && of_d.n_foreign_frees > 0);
	CHECK(of_b.n_double_frees == 5 + of_d.n_foreign_frees);
	CHECK(EVENTUALLY(harness_log_count(h, "'client b'): an object freed twice, cache 'k'") > 0));
	check_clean(h, 5);
	for (int i = 0; i < 5; i++) {
		CHECK(adopted[i][SIZE - 1] == i && slabc_valid(d, refs[N - 1 - i]));
		slabc_free(kd, adopted[i]);
	}
	check_clean(h, 0);
	slabc_close(a);
	slabc_close(b);
	slabc_close(d);
}

/* What a session has freed itself is not in use when it destroys the cache. */
static void
it_destroys_what_it_freed(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *a = harness_open(h, "producer"), *b = harness_open(h, "consumer");
	struct slabc_cache *ka = harness_open_cache(a, "k", SIZE, 0), *kb = harness_open_cache(b, "k", SIZE, 0);
	slabc_ref refs[N];

	make_objects(a, ka, refs);
	for (int i = 0; i < N; i++)
		slabc_free(kb, slabc_deref(b, refs[i]));
	slabc_cache_close(ka);
	CHECK(slabc_cache_destroy(b, "k") == 0);
	slabc_cache_close(kb);
	CHECK(harness_audit(h).n_out == 0);
	slabc_close(a);
	slabc_close(b);
}

/* Sheaves of all sizes: the sheaf and the record beside it grow and shrink, and never does one reach beyond the other. */
static void
it_tuned_amid_frees(void)
{
	static const uint64_t capacities[] = {28, 4, 60, 8, 508, 1, 1020, 28};
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *a = harness_open(h, "producer"), *b = harness_open(h, "consumer");
	struct slabc_cache *ka = harness_open_cache(a, "k", SIZE, 0), *kb = harness_open_cache(b, "k", SIZE, 0);
	uint64_t n_freed = 0;

	for (unsigned i = 0; i < 10 * sizeof capacities / sizeof capacities[0]; i++) {
		union proto_request request = {.tune = {.cache = harness_cache(h, "k").cache, .set = 1}};
		union proto_reply reply;
		slabc_ref refs[N];
		void *pv[N];

		request.tune.sheaf_capacity = (uint32_t)capacities[i % (sizeof capacities / sizeof capacities[0])];
		CHECK(harness_ask(h, PROTO_OP_TUNE, &request, &reply) == PROTO_STATUS_OK);
		make_objects(a, ka, refs);
		for (int j = 0; j < N; j++)
			REQUIRE((pv[j] = slabc_deref(b, refs[j])) != NULL);
		errno = 0;
		slabc_free_bulk(kb, N / 2, pv);
		for (int j = N / 2; j < N; j++)
			slabc_free(kb, pv[j]);
		CHECK(errno == 0);
		n_freed += N;
		CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	}
	CHECK(slabc_cache_shrink(kb) == 0);
	CHECK(harness_cache(h, "k").n_foreign_frees == n_freed);
	check_clean(h, 0);
	slabc_close(a);
	slabc_close(b);
	CHECK(harness_log_count(h, "not its to give back") == 0);
}

enum { N_OTHER = 12000 };

/* By a handle that does not wait. */
static void
alloc_others(struct slabc_cache *k, void **pv)
{
	for (int i = 0; i < N_OTHER; i++)
		REQUIRE(EVENTUALLY((pv[i] = slabc_alloc(k)) != NULL));
}

/* Two handles of a cache share the process barn, and learn of a tuning each by itself: one finds there what only the other expects. */
static void
it_tuned_beside_another_handle(void)
{
	static const uint32_t capacities[] = {28, 60, 124, 252};
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *a = harness_open(h, "producer"), *b = harness_open(h, "consumer");
	struct slabc_cache *ka = harness_open_cache(a, "k", SIZE, 0), *kb = harness_open_cache(b, "k", SIZE, 0);
	struct slabc_cache *kn = harness_open_cache(b, "k", SIZE, SLABC_NOWAIT);
	uint64_t n_freed = 0;

	for (unsigned i = 0; i < sizeof capacities / sizeof capacities[0]; i++) {
		union proto_request request = {.tune = {.cache = harness_cache(h, "k").cache, .set = 1, .sheaf_capacity = capacities[i]}};
		union proto_reply reply;
		static void *others[N_OTHER];
		slabc_ref refs[N];

		CHECK(harness_ask(h, PROTO_OP_TUNE, &request, &reply) == PROTO_STATUS_OK);
		alloc_others(kn, others);
		for (int j = 0; j < N_OTHER; j++)
			slabc_free(kn, others[j]);
		alloc_others(kn, others);
		for (int turn = 0; turn < 60; turn++) {
			make_objects(a, ka, refs);
			for (int j = 0; j < N; j++)
				slabc_free(kb, slabc_deref(b, refs[j]));
			n_freed += N;
		}
		for (int j = 0; j < N_OTHER; j++)
			slabc_free(kn, others[j]);
		CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	}
	CHECK(slabc_cache_shrink(kb) == 0);
	CHECK(harness_cache(h, "k").n_foreign_frees == n_freed);
	CHECK(harness_status(h).n_faults == 0);
	check_clean(h, 0);
	slabc_close(a);
	slabc_close(b);
}

CU_pSuite
it_foreign_suite(void)
{
	CU_pSuite suite = harness_suite("foreign");

	CU_ADD_TEST(suite, it_consumer_ends);
	CU_ADD_TEST(suite, it_consumers_thread_ends);
	CU_ADD_TEST(suite, it_owner_dies_first);
	CU_ADD_TEST(suite, it_one_of_several_wins);
	CU_ADD_TEST(suite, it_destroys_what_it_freed);
	CU_ADD_TEST(suite, it_tuned_amid_frees);
	CU_ADD_TEST(suite, it_tuned_beside_another_handle);
	return suite;
}
