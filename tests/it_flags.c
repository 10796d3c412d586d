/* SPDX-License-Identifier: Apache-2.0 */
/* Cache flags: what each promises, and what it gives up. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/harness.h"

CU_pSuite it_flags_suite(void);

static bool
last_error_has(const char *text)
{
	return strstr(slabc_last_error(), text) != NULL;
}

static int
try_flags(struct slabc *c, const char *name, unsigned flags)
{
	struct slabc_cache_options options = SLABC_CACHE_OPTIONS_INIT;
	struct slabc_cache *k;

	options.flags = flags;
	return slabc_cache_open(c, name, 64, &options, &k);
}

/* SLABC_NO_OWNER */

enum { N = 3000 };

static int
by_address(const void *a, const void *b)
{
	const char *const *p = a, *const *q = b;

	return (*p > *q) - (*p < *q);
}

/* N objects, all different, each keeping what is written into it. */
static bool
are_objects(void **p, size_t bytes)
{
	void *sorted[N];
	bool ok = true;

	for (int i = 0; i < N; i++)
		memset(p[i], i, bytes);
	for (int i = 0; i < N; i++)
		ok = ok && ((unsigned char *)p[i])[0] == (unsigned char)i && ((unsigned char *)p[i])[bytes - 1] == (unsigned char)i;
	memcpy(sorted, p, sizeof sorted);
	qsort(sorted, N, sizeof sorted[0], by_address);
	for (int i = 1; i < N; i++)
		ok = ok && (size_t)((char *)sorted[i] - (char *)sorted[i - 1]) >= bytes;
	return ok;
}

/* All ways to allocate and to free, with sheaves and without: objects are distinct, and all come back. */
static void
use_without_words(struct harness *h, const char *name, uint32_t capacity)
{
	struct slabc_cache_options options = SLABC_CACHE_OPTIONS_INIT;
	struct slabc *c = harness_open(h, "bare");
	struct slabc_sheaf *s;
	struct slabc_cache *k;
	static void *p[N];

	options.flags = SLABC_NO_OWNER;
	options.sheaf_capacity = capacity;
	REQUIRE(slabc_cache_open(c, name, 48, &options, &k) == 0);
	for (int i = 0; i < N / 2; i++)
		REQUIRE((p[i] = slabc_alloc(k)) != NULL);
	REQUIRE((s = slabc_prefill(k, 100)) != NULL);
	for (int i = N / 2; i < N / 2 + 100; i++)
		REQUIRE((p[i] = slabc_alloc_from(k, s)) != NULL);
	CHECK(slabc_alloc_from(k, s) == NULL);
	CHECK(slabc_refill(k, &s, 50) == 0);
	slabc_return(k, s);
	CHECK(slabc_alloc_bulk(k, N - N / 2 - 100, p + N / 2 + 100) == 0);
	CHECK(are_objects(p, 48));
	CHECK(harness_cache(h, name).n_allocated == N);
	errno = EBADF;
	for (int i = 0; i < N / 3; i++)
		slabc_free(k, p[i]);
	slabc_free_bulk(k, (size_t)(N - N / 3), p + N / 3);
	CHECK(errno == EBADF);
	CHECK(harness_cache(h, name).n_allocated == 0);
	CHECK(harness_cache(h, name).n_left == 0);
	slabc_close(c);
	CHECK(harness_cache(h, name).n_out == 0);
}

static void
it_no_owner_allocates_and_frees(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");

	use_without_words(h, "sheaves", 0);
	use_without_words(h, "single", SLABC_SHEAVES_NONE);
	use_without_words(h, "small", 3);
}

/* The words of such a cache are neither written nor read by anybody: they cost no memory. */
static void
it_no_owner_has_no_words(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "bare");
	struct slabc_cache *k = harness_open_cache(c, "bare", 8, SLABC_NO_OWNER), *with = harness_open_cache(c, "with", 8, 0);
	static void *p[100000];
	uint64_t before = harness_status(h).words_bytes;

	CHECK(slabc_alloc_bulk(k, 100000, p) == 0);
	CHECK(harness_audit(h).n_lost == 0);
	CHECK(harness_client_id(h, slabc_client_id(c)).n_held == 0);
	slabc_free_bulk(k, 100000, p);
	slabc_cache_close(k);
	CHECK(harness_cache(h, "bare").n_out == 0);
	CHECK(harness_status(h).words_bytes == before);
	CHECK(slabc_alloc_bulk(with, 100000, p) == 0);
	CHECK(harness_status(h).words_bytes >= before + 400000);
	slabc_close(c);
}

/* A free of what is no object, or inside one, is refused all the same; one that is free already is noticed by slabd, which takes it back
 * once. */
static void
it_no_owner_bad_frees(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "bare");
	struct slabc_cache *k = harness_open_cache(c, "bare", 64, SLABC_NO_OWNER),
			   *other = harness_open_cache(c, "other", 64, SLABC_NO_OWNER);
	char *p = slabc_alloc(k), *q = slabc_alloc(other);
	void *bad[] = {p + 8, q, &p, p + 64 * 100000};
	uint64_t n_faults;

	for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		errno = 0;
		slabc_free(k, bad[i]);
		CHECK(errno == EINVAL);
		errno = 0;
		slabc_free_bulk(k, 1, &bad[i]);
		CHECK(errno == EINVAL);
	}
	CHECK(harness_client_id(h, slabc_client_id(c)).n_misaligned_frees == 2);
	CHECK(harness_client_id(h, slabc_client_id(c)).n_wild_frees == 6);
	CHECK(EVENTUALLY((n_faults = harness_client_id(h, slabc_client_id(c)).n_faults) == 8));
	errno = 0;
	slabc_free(k, p);
	slabc_free(k, p);
	CHECK(errno == 0); /* given up: nobody here can know */
	slabc_cache_close(k);
	CHECK(harness_cache(h, "bare").n_out == 0 && harness_cache(h, "bare").n_left == 0);
	CHECK(harness_client_id(h, slabc_client_id(c)).n_faults == n_faults + 1);
	slabc_close(c);
}

/* What needs words is ENOTSUP, or not to be had: flags, adoption, frees by reference, looking again. */
static void
it_no_owner_gives_up(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *a = harness_open(h, "a"), *b = harness_open(h, "b");
	struct slabc_cache_options options = SLABC_CACHE_OPTIONS_INIT;
	struct slabc_cache *k, *kb;
	char *p, *seen, *others[8];
	slabc_ref ref;

	CHECK(try_flags(a, "reclaim", SLABC_NO_OWNER | SLABC_RECLAIM) == -ENOTSUP);
	CHECK(last_error_has("SLABC_RECLAIM"));
	CHECK(try_flags(a, "shared", SLABC_NO_OWNER | SLABC_SHARED) == -ENOTSUP);
	CHECK(harness_status(h).n_caches == 0);
	options.flags = SLABC_NO_OWNER;
	options.sheaf_capacity = SLABC_SHEAVES_NONE;
	options.min_partial = SLABC_KNOB_NONE;
	REQUIRE(slabc_cache_open(a, "bare", 64, &options, &k) == 0);
	CHECK(try_flags(b, "bare", 0) == -EEXIST);
	kb = harness_open_cache(b, "bare", 64, SLABC_NO_OWNER);
	REQUIRE((p = slabc_alloc(k)) != NULL);
	strcpy(p, "bare");
	/* A reference means the same everywhere. */
	REQUIRE((ref = slabc_ref_of(a, p)) != 0);
	CHECK(slabc_ref_of(a, p + 8) == 0 && errno == EINVAL);
	REQUIRE((seen = slabc_deref(b, ref)) != NULL && strcmp(seen, "bare") == 0);
	CHECK(slabc_usable_size(b, seen) == 64);
	errno = 0;
	CHECK(slabc_valid(b, ref) == 0 && errno == ENOTSUP);
	errno = 0;
	CHECK(slabc_adopt(b, ref) == NULL && errno == ENOTSUP);
	CHECK(last_error_has("SLABC_NO_OWNER") && last_error_has("'bare'"));
	CHECK(slabc_free_ref(b, ref) == -ENOTSUP);
	/* Anybody frees anything; the reference goes on leading there, whoever has the place next, as long as the page is the cache's. */
	for (int i = 0; i < 8; i++)
		REQUIRE((others[i] = slabc_alloc(k)) != NULL);
	errno = 0;
	slabc_free(kb, seen);
	CHECK(errno == 0);
	CHECK(slabc_deref(b, ref) == seen);
	for (int i = 0; i < 8; i++)
		slabc_free(k, others[i]);
	CHECK(harness_cache(h, "bare").n_slabs == 0);
	errno = 0;
	CHECK(slabc_deref(b, ref) == NULL && errno == ESTALE);
	errno = 0;
	CHECK(slabc_adopt(b, ref) == NULL && errno == ESTALE);
	slabc_close(a);
	slabc_close(b);
}

struct bare_task {
	struct harness *h;
	int n;
};

static void
hold_bare(struct peer *me, void *arg)
{
	struct bare_task *task = arg;
	struct slabc *c = harness_open(task->h, "holder");
	struct slabc_cache *k = harness_open_cache(c, "bare", 64, SLABC_NO_OWNER);
	slabc_ref refs[500];
	void *p, *idle[100];

	for (int i = 0; i < task->n; i++) {
		REQUIRE((p = slabc_alloc(k)) != NULL);
		refs[i] = slabc_ref_of(c, p);
	}
	/* And idle ones. */
	CHECK(slabc_alloc_bulk(k, 100, idle) == 0);
	slabc_free_bulk(k, 100, idle);
	peer_put(me, refs, sizeof refs);
	peer_await(me, 'x');
}

/*
 * The audit passes such a cache by.  What a dead client had idle comes back; what it held stays, counted, also against somebody who frees
 * some of it; what the living hold is not counted.
 */
static void
it_no_owner_outlives_the_dead(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct bare_task task = {.h = h, .n = 500};
	struct slabc *c = harness_open(h, "living");
	struct slabc_cache *k = harness_open_cache(c, "bare", 64, SLABC_NO_OWNER), *plain = harness_open_cache(c, "plain", 64, 0);
	struct proto_audit_reply audit;
	slabc_ref refs[500];
	void *mine[50];
	pid_t pid = harness_spawn(h, hold_bare, &task);
	uint32_t id;

	CHECK(slabc_alloc(plain) != NULL);
	for (int i = 0; i < 50; i++)
		REQUIRE((mine[i] = slabc_alloc(k)) != NULL);
	peer_get(harness_peer(h, pid), refs, sizeof refs);
	audit = harness_audit(h);
	CHECK(audit.n_held == 1 && audit.n_out == harness_cache(h, "plain").n_out);
	CHECK(audit.n_passed == harness_cache(h, "bare").n_out && audit.n_passed >= 650);
	CHECK(audit.n_left == 0);
	harness_kill(h, pid, SIGKILL);
	harness_wait_reaped(h, pid);
	CHECK(harness_cache(h, "bare").n_allocated == 550);
	CHECK(harness_cache(h, "bare").n_left == 500);
	audit = harness_audit(h);
	CHECK(audit.n_left == 500 && audit.n_lost == 0 && audit.n_orphans == 0);
	CHECK(harness_audit_cache(h, "bare").n_left == 500);
	CHECK(harness_audit_cache(h, "plain").n_left == 0 && harness_audit_cache(h, "plain").n_passed == 0);
	CHECK(harness_log_count(h, "500 without owner words not given back") == 1);
	/* What the living have is against destroying the cache, what the dead left is not. */
	CHECK(slabc_cache_destroy(c, "bare") == -EBUSY);
	CHECK(last_error_has("50 objects") && last_error_has("SLABC_NO_OWNER"));
	/* Not reclaimed, whole, and to be freed by whoever knows of them; then they are no longer left. */
	for (int i = 0; i < 500; i++) {
		void *p = slabc_deref(c, refs[i]);

		REQUIRE(p != NULL);
		if (i < 200)
			slabc_free(k, p);
	}
	for (int i = 0; i < 50; i++)
		slabc_free(k, mine[i]);
	CHECK(harness_cache(h, "bare").n_allocated == 300 && harness_cache(h, "bare").n_left == 300);
	id = harness_cache(h, "bare").cache;
	CHECK(slabc_cache_destroy(c, "bare") == 0);
	CHECK(harness_cache(h, "bare").cache == 0);
	slabc_cache_close(k);
	/* Its id, which comes round in the end, begins anew. */
	for (int i = 0; i < LAYOUT_MAX_CACHES; i++) {
		k = harness_open_cache(c, "next", 64, SLABC_NO_OWNER);
		if (harness_cache(h, "next").cache == id)
			break;
		CHECK(slabc_cache_destroy(c, "next") == 0);
		slabc_cache_close(k);
	}
	REQUIRE((mine[0] = slabc_alloc(k)) != NULL);
	slabc_close(c);
	CHECK(harness_cache(h, "next").n_left == 1 && harness_cache(h, "next").n_out == 1);
}

/* Allocates and frees without end, each object marked while it is held. */
static void
churn_bare(struct peer *me, void *arg)
{
	struct slabc *c = harness_open(arg, "churn");
	struct slabc_cache *k = harness_open_cache(c, "bare", 64, SLABC_NO_OWNER);
	unsigned seed = (unsigned)getpid();
	uint64_t *p[64] = {0};

	peer_tell(me, 'r');
	for (;;) {
		unsigned i = (unsigned)rand_r(&seed) % 64;

		if (p[i]) {
			REQUIRE(*p[i] == ((uint64_t)getpid() << 32 | i)); /* nobody else was given it */
			slabc_free(k, p[i]);
			p[i] = NULL;
		} else if ((p[i] = slabc_alloc(k))) {
			*p[i] = (uint64_t)getpid() << 32 | i;
		}
	}
}

/* Killed at any instant, clients leave at most what they held and one object each; nobody is given what another holds. */
static void
it_no_owner_killed_at_any_instant(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	unsigned seed = harness_seed();
	pid_t witness = harness_spawn(h, churn_bare, h);

	peer_await(harness_peer(h, witness), 'r');
	for (int i = 0; i < 25; i++) {
		pid_t pid = harness_spawn(h, churn_bare, h);
		int64_t until = harness_now_ns() + rand_r(&seed) % 10 * 1000000;
		struct proto_caches_reply cache;

		peer_await(harness_peer(h, pid), 'r');
		while (harness_now_ns() < until)
			continue;
		harness_kill(h, pid, SIGKILL);
		harness_wait_reaped(h, pid);
		cache = harness_cache(h, "bare");
		CHECK(cache.n_left <= (uint64_t)(i + 1) * 65);
	}
	/* It would have ended with a failure if it had met another's mark. */
	CHECK(kill(witness, 0) == 0 && harness_client(h, witness).client != 0);
	harness_kill(h, witness, SIGKILL);
	harness_wait_reaped(h, witness);
	CHECK(harness_cache(h, "bare").n_out == harness_cache(h, "bare").n_left);
	CHECK(harness_log_count(h, "such faults") == 0);
}

enum { N_SIGNALS = 5000 };

static struct slabc_cache *handler_cache;
static volatile sig_atomic_t n_handled, n_handler_bad;
static uint64_t *volatile handler_holds;

/* One time it allocates and marks, the next time it frees; so what it interrupts finds the sheaf another than it was. */
static void
allocate_in_handler(int sig)
{
	uint64_t *p = handler_holds;
	int error = errno;

	(void)sig;
	if (p) {
		n_handler_bad += *p != 0;
		slabc_free(handler_cache, p);
		handler_holds = NULL;
	} else {
		handler_holds = p = slabc_alloc(handler_cache);
		n_handler_bad += !p && errno != EAGAIN;
		if (p)
			*p = 0;
	}
	n_handled++;
	errno = error;
}

static bool
churn_until_handled(void)
{
	uint64_t *p[40];
	bool ok = true;

	while (ok && n_handled < N_SIGNALS) {
		for (uint64_t i = 0; ok && i < 40; i++) {
			p[i] = slabc_alloc(handler_cache);
			ok = p[i] != NULL;
			if (ok)
				*p[i] = i + 1;
		}
		for (uint64_t i = 0; ok && i < 40; i++) {
			ok = *p[i] == i + 1;
			slabc_free(handler_cache, p[i]);
		}
	}
	return ok;
}

/* Signal handlers that interrupt a thread in the midst of a sheaf: busy guards these sheaves like others. */
static void
it_no_owner_signal_handlers(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "handlers");
	struct sigaction action = {.sa_handler = allocate_in_handler, .sa_flags = SA_RESTART}, old;
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
	struct itimerspec often = {{0, 20000}, {0, 20000}};
	timer_t timer;

	handler_cache = harness_open_cache(c, "bare", 64, SLABC_NO_OWNER);
	handler_holds = NULL;
	n_handled = n_handler_bad = 0;
	CHECK(sigaction(SIGUSR1, &action, &old) == 0);
	REQUIRE(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &often, NULL) == 0);
	CHECK(churn_until_handled());
	CHECK(timer_delete(timer) == 0 && sigaction(SIGUSR1, &old, NULL) == 0);
	CHECK(n_handler_bad == 0);
	/* Frees that were put off are made; the handler may hold one; nothing else is out, and nothing was in a sheaf twice. */
	slabc_close(c);
	CHECK(harness_cache(h, "bare").n_out == (handler_holds != NULL));
	CHECK(harness_log_count(h, "such faults") == 0);
}

/* A hostile client's sheaf gives back nothing that was not lent: also where no word could say so. */
static void
it_no_owner_hostile_sheaf(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "victim");
	struct slabc_cache *k = harness_open_cache(c, "bare", 64, SLABC_NO_OWNER), *plain = harness_open_cache(c, "plain", 64, 0);
	void *p = slabc_alloc(plain);
	uint32_t cache, slot;
	struct sheaf *sheaf;
	struct raw raw;

	CHECK(slabc_alloc(k) != NULL && p != NULL);
	raw_attach(&raw, h->socket, "hostile");
	cache = raw_cache_open(&raw, "bare", 64, SLABC_NO_OWNER);
	slot = raw_prefill(&raw, cache, 20);
	sheaf = raw_sheaf(&raw, slot);
	sheaf->entry[1] = sheaf->entry[0];                             /* twice */
	sheaf->entry[2] = UINT32_MAX;                                  /* nowhere */
	sheaf->entry[3] += 1;                                          /* inside an object */
	sheaf->entry[4] = (uint32_t)(slabc_ref_of(c, p) & UINT32_MAX); /* another cache's */
	raw_detach(&raw);
	CHECK(EVENTUALLY(harness_status(h).n_ended_ever == 1));
	/* 16 of the 20 came back; four are counted as left. */
	CHECK(harness_cache(h, "bare").n_left == 4);
	CHECK(harness_audit(h).n_held == 1 && harness_audit(h).n_doubled == 0);
	CHECK(harness_log_count(h, "not its to give back") > 0);
	slabc_close(c);
}

/* SLABC_SHARED, SLABC_RECLAIM, SLABC_NOWAIT */

struct pass_task {
	struct harness *h;
	unsigned flags;
};

static void
hold_and_tell(struct peer *me, void *arg)
{
	struct pass_task *task = arg;
	struct slabc *c = harness_open(task->h, "holder");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, task->flags);
	void *p[10];
	slabc_ref first;

	for (int i = 0; i < 10; i++) {
		REQUIRE((p[i] = slabc_alloc(k)) != NULL);
		snprintf(p[i], 64, "object %d", i);
	}
	/* Only the first is named to the other side; it finds the rest by their distance. */
	first = slabc_ref_of(c, p[0]);
	for (int i = 1; i < 10; i++)
		p[i] = (void *)((char *)p[i] - (char *)p[0]);
	peer_put(me, &first, sizeof first);
	peer_put(me, p, sizeof p);
	peer_await(me, 'x');
}

/* SLABC_SHARED: others may make references and adopt though the maker never did; without it only what the maker shared. Dead, all are kept.
 */
static void
it_shared_is_for_all(void)
{
	for (unsigned shared = 0; shared < 2; shared++) {
		CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
		struct pass_task task = {h, shared ? SLABC_SHARED : 0};
		struct slabc *c = harness_open(h, "other");
		struct slabc_cache *k = harness_open_cache(c, "k", 64, task.flags);
		pid_t pid = harness_spawn(h, hold_and_tell, &task);
		slabc_ref first, ref;
		char *p, text[64];
		void *off[10];

		peer_get(harness_peer(h, pid), &first, sizeof first);
		peer_get(harness_peer(h, pid), off, sizeof off);
		REQUIRE((p = slabc_deref(c, first)) != NULL);
		for (int i = 1; i < 4; i++) {
			errno = 0;
			ref = slabc_ref_of(c, p + (ptrdiff_t)off[i]);
			CHECK(shared ? ref != 0 : ref == 0 && errno == EINVAL);
			CHECK((slabc_adopt(c, ref) != NULL) == shared);
		}
		CHECK(harness_client_id(h, slabc_client_id(c)).n_held == (shared ? 3 : 0));
		harness_kill(h, pid, SIGKILL);
		harness_wait_reaped(h, pid);
		CHECK(harness_audit(h).n_orphans == (shared ? 7 : 10));
		for (int i = shared ? 4 : 1; i < 10; i++) {
			char *q = p + (ptrdiff_t)off[i];

			snprintf(text, sizeof text, "object %d", i);
			CHECK(strcmp(q, text) == 0);
			CHECK(slabc_adopt(c, slabc_ref_of(c, q)) == q);
			slabc_free(k, q);
		}
		CHECK(harness_audit(h).n_orphans == 1 && harness_audit(h).n_lost == 0);
		slabc_close(c);
	}
}

/* SLABC_RECLAIM: what a dead client held is free for others, but for what was adopted before; its references are stale. */
static void
it_reclaim_frees(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct pass_task task = {h, SLABC_RECLAIM};
	struct slabc *c = harness_open(h, "other");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, SLABC_RECLAIM);
	pid_t pid = harness_spawn(h, hold_and_tell, &task);
	slabc_ref first;
	void *off[10];
	char *p;

	peer_get(harness_peer(h, pid), &first, sizeof first);
	peer_get(harness_peer(h, pid), off, sizeof off);
	REQUIRE((p = slabc_adopt(c, first)) != NULL);
	harness_kill(h, pid, SIGKILL);
	harness_wait_reaped(h, pid);
	CHECK(harness_audit(h).n_held == 1 && harness_audit(h).n_orphans == 0 && harness_audit(h).n_lost == 0);
	CHECK(strcmp(p, "object 0") == 0 && slabc_valid(c, first) == 1);
	slabc_free(k, p);
	CHECK(slabc_valid(c, first) == 0);
	slabc_close(c);
	CHECK(harness_audit(h).n_out == 0);
}

/* SLABC_NOWAIT: what slabd refused is told by a later call; frees wait for nobody to be lent room; the flag is one opener's own. */
static void
it_nowait_tells_of_a_refusal(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=2M");
	struct slabc *c = harness_open(h, "nowait");
	struct slabc_cache *k = harness_open_cache(c, "k", 4096, SLABC_NOWAIT), *waits = harness_open_cache(c, "k", 4096, 0);
	static void *p[600];
	int n = 0;

	CHECK(k != waits);
	REQUIRE((p[n++] = slabc_alloc(waits)) != NULL);
	do {
		p[n] = slabc_alloc(k);
		if (p[n])
			n++;
		else
			REQUIRE(errno == EAGAIN || errno == ENOMEM);
	} while (n < 600 && (p[n - 1] == NULL || errno != ENOMEM || slabc_alloc(waits) != NULL));
	CHECK(n > 400 && n <= 512);
	errno = 0;
	for (int i = 0; i < n; i++)
		slabc_free(i % 2 ? k : waits, p[i]);
	CHECK(errno == 0);
	CHECK(EVENTUALLY(slabc_alloc(k) != NULL));
	slabc_close(c);
	CHECK(harness_audit(h).n_lost == 0);
}

CU_pSuite
it_flags_suite(void)
{
	CU_pSuite suite = harness_suite("flags");

	CU_ADD_TEST(suite, it_no_owner_allocates_and_frees);
	CU_ADD_TEST(suite, it_no_owner_has_no_words);
	CU_ADD_TEST(suite, it_no_owner_bad_frees);
	CU_ADD_TEST(suite, it_no_owner_gives_up);
	CU_ADD_TEST(suite, it_no_owner_outlives_the_dead);
	CU_ADD_TEST(suite, it_no_owner_killed_at_any_instant);
	CU_ADD_TEST(suite, it_no_owner_signal_handlers);
	CU_ADD_TEST(suite, it_no_owner_hostile_sheaf);
	CU_ADD_TEST(suite, it_shared_is_for_all);
	CU_ADD_TEST(suite, it_reclaim_frees);
	CU_ADD_TEST(suite, it_nowait_tells_of_a_refusal);
	return suite;
}
