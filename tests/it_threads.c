/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of one process: many of them, what they keep idle, what passes between them without slabd; and processes made under their feet.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "client/internal.h"
#include "tests/harness.h"

CU_pSuite it_threads_suite(void);

enum { MAX_THREADS = 200, HELD = 40, TURNS = 60 };

/* Threads that allocate, check and free until they are told to stop; each holds HELD objects in the midst of each turn. */
struct crowd {
	struct slabc_cache *k;
	unsigned n;
	uint32_t is_over;
	uint32_t is_resting; /* between two turns, all that were freed in their sheaves */
	uint32_t n_resting;
	uint64_t n_turns;
	unsigned n_bad;
	pthread_t threads[MAX_THREADS];
};

static void *
belong_to_crowd(void *arg)
{
	struct crowd *crowd = arg;
	uintptr_t *p[HELD];

	for (unsigned turn = 0; turn < TURNS || !atomic_read(&crowd->is_over); turn++) {
		unsigned n = 0;

		if (turn > 0 && atomic_read(&crowd->is_resting)) {
			atomic_add(&crowd->n_resting, 1);
			while (atomic_read(&crowd->is_resting))
				sched_yield();
		}
		while (n < HELD && (p[n] = slabc_alloc(crowd->k))) {
			*p[n] = (uintptr_t)&p[n];
			n++;
		}
		sched_yield();
		if (n < HELD)
			atomic_add(&crowd->n_bad, 1);
		for (unsigned i = 0; i < n; i++) {
			if (*p[i] != (uintptr_t)&p[i])
				atomic_add(&crowd->n_bad, 1);
			slabc_free(crowd->k, p[i]);
		}
		atomic_add(&crowd->n_turns, 1);
	}
	return NULL;
}

static void
crowd_start(struct crowd *crowd, struct slabc_cache *k, unsigned n)
{
	*crowd = (struct crowd){.k = k, .n = n};
	for (unsigned i = 0; i < n; i++)
		REQUIRE(pthread_create(&crowd->threads[i], NULL, belong_to_crowd, crowd) == 0);
}

static void
crowd_end(struct crowd *crowd)
{
	atomic_write(&crowd->is_over, 1);
	for (unsigned i = 0; i < crowd->n; i++)
		REQUIRE(pthread_join(crowd->threads[i], NULL) == 0);
	CHECK(crowd->n_bad == 0);
}

/* 1, 8 and 200 threads: a thread keeps main, spare and a rack of sheaves of a cache idle at most, which slabctl shows; at its end nothing. */
static void
it_idle_memory_of_threads_is_bounded(void)
{
	static const unsigned numbers[] = {1, 8, MAX_THREADS};
	static struct crowd crowd;

	for (unsigned i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
		CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
		struct slabc *c = harness_open(h, "crowd");
		struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
		struct proto_caches_reply cache;

		crowd_start(&crowd, k, numbers[i]);
		while (atomic_read(&crowd.n_turns) < numbers[i] * TURNS / 2)
			sched_yield();
		/* Counted while nothing moves. */
		atomic_write(&crowd.is_resting, 1);
		while (atomic_read(&crowd.n_resting) < numbers[i])
			sched_yield();
		cache = harness_cache(h, "k");
		CHECK(cache.n_thread > 0 && cache.n_thread <= (uint64_t)numbers[i] * (2 + CLIENT_RACK) * cache.capacity);
		CHECK(cache.n_allocated == 0);
		CHECK(harness_client(h, getpid()).n_threads == numbers[i]);
		atomic_write(&crowd.is_resting, 0);
		crowd_end(&crowd);
		cache = harness_cache(h, "k");
		CHECK(cache.n_thread == 0 && cache.n_allocated == 0);
		CHECK(harness_client(h, getpid()).n_threads == 0);
		CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
		slabc_close(c);
	}
}

/* What one thread allocates and another frees goes round by the process barn: nothing is asked of slabd. */
struct belt {
	struct slabc_cache *k;
	void *objects[256];
	uint32_t n_put, n_got;
	unsigned n_objects;
};

static void *
free_from_belt(void *arg)
{
	struct belt *belt = arg;

	for (uint32_t n = 0; n < belt->n_objects; n++) {
		/* order: BELT acquire - pairs with put_on_belt(): the object's address */
		while (atomic_read_acquire(&belt->n_put) == n)
			sched_yield();
		slabc_free(belt->k, belt->objects[n % 256]);
		/* order: BELT release - its place on the belt has been read */
		atomic_write_release(&belt->n_got, n + 1);
	}
	return NULL;
}

static void
put_on_belt(struct belt *belt, uint32_t first, uint32_t end)
{
	for (uint32_t n = first; n < end; n++) {
		/* order: BELT acquire - pairs with free_from_belt() */
		while (n - atomic_read_acquire(&belt->n_got) >= 256)
			sched_yield();
		REQUIRE((belt->objects[n % 256] = slabc_alloc(belt->k)) != NULL);
		/* order: BELT release - the object lies on the belt */
		atomic_write_release(&belt->n_put, n + 1);
	}
}

static void
it_threads_exchange_without_slabd(void)
{
	enum { N_SETTLING = 300000, N_COUNTED = 300000 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "belt");
	struct belt belt = {.k = harness_open_cache(c, "k", 256, 0), .n_objects = N_SETTLING + N_COUNTED};
	struct slabc_stats before = SLABC_STATS_INIT, after = SLABC_STATS_INIT;
	pthread_t thread;

	REQUIRE(pthread_create(&thread, NULL, free_from_belt, &belt) == 0);
	/* Until both have in hand what they keep. */
	put_on_belt(&belt, 0, N_SETTLING);
	REQUIRE(slabc_get_stats(c, &before) == 0);
	put_on_belt(&belt, N_SETTLING, belt.n_objects);
	REQUIRE(slabc_get_stats(c, &after) == 0);
	REQUIRE(pthread_join(thread, NULL) == 0);
	CHECK(after.n_refills - before.n_refills <= 2 && after.n_flushes - before.n_flushes <= 2);
	CHECK(harness_audit(h).n_lost == 0);
	slabc_close(c);
}

/* fork, vfork, posix_spawn and exec while threads are in the midst of their calls: children start, and the threads notice nothing. */
static void
run_true(unsigned how)
{
	static char name[] = "true";
	char *argv[] = {name, NULL};
	int status = -1;
	pid_t pid = -1;

	if (how == 0) {
		pid = fork();
		if (pid == 0) /* a child that only leaves, and one that starts another program */
			_exit(0);
	} else if (how == 1) {
		pid = fork();
		if (pid == 0) {
			execvp(name, argv);
			_exit(1);
		}
	} else if (how == 2) {
		pid = vfork();
		if (pid == 0) {
			execvp(name, argv);
			_exit(1);
		}
	} else {
		REQUIRE(posix_spawnp(&pid, name, NULL, NULL, argv, environ) == 0);
	}
	REQUIRE(pid > 0 && waitpid(pid, &status, 0) == pid);
	CHECK(status == 0);
}

static void
it_children_under_load(void)
{
	static struct crowd crowd;
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "parent");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	uint64_t n_turns;

	crowd_start(&crowd, k, 4);
	for (unsigned i = 0; i < 40; i++)
		run_true(i % 4);
	n_turns = atomic_read(&crowd.n_turns);
	CHECK(EVENTUALLY(atomic_read(&crowd.n_turns) > n_turns + 8));
	crowd_end(&crowd);
	CHECK(harness_status(h).n_sessions == 1);
	CHECK(harness_cache(h, "k").n_allocated == 0);
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	slabc_close(c);
}

/* Handlers that allocate and free, at any instant of any of the threads. */
static struct slabc_cache *handler_cache;
static uint32_t n_handled, n_refused;

static void
use_in_handler(int sig)
{
	int error = errno;
	void *p = slabc_alloc(handler_cache);

	(void)sig;
	errno = 0;
	if (p)
		slabc_free(handler_cache, p);
	if (p && errno)
		atomic_add(&n_refused, 1);
	errno = error;
	atomic_add(&n_handled, 1);
}

static void
it_handlers_of_many_threads(void)
{
	static struct crowd crowd;
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "handlers");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	struct sigaction action = {.sa_handler = use_in_handler, .sa_flags = SA_RESTART}, old;
	struct proto_caches_reply cache;

	handler_cache = k;
	n_handled = n_refused = 0;
	REQUIRE(sigaction(SIGUSR1, &action, &old) == 0);
	crowd_start(&crowd, k, 8);
	/* Equal signals on their way are one: so it takes turns. */
	for (unsigned i = 0; atomic_read(&n_handled) < 2000; i++) {
		REQUIRE(pthread_kill(crowd.threads[i % 8], SIGUSR1) == 0);
		sched_yield();
	}
	crowd_end(&crowd);
	CHECK(sigaction(SIGUSR1, &old, NULL) == 0);
	cache = harness_cache(h, "k");
	CHECK(n_refused == 0);
	CHECK(cache.n_allocated == 0 && cache.n_thread == 0);
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	slabc_close(c);
}

CU_pSuite
it_threads_suite(void)
{
	CU_pSuite suite = harness_suite("threads");

	CU_ADD_TEST(suite, it_idle_memory_of_threads_is_bounded);
	CU_ADD_TEST(suite, it_threads_exchange_without_slabd);
	CU_ADD_TEST(suite, it_children_under_load);
	CU_ADD_TEST(suite, it_handlers_of_many_threads);
	return suite;
}
