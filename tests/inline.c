/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program with the fast path inlined (check-inline.sh builds it in several ways, and with the header of another layout): two threads hold
 * 100 objects at a time of a cache with owner words and of one without, and see that nobody else writes them.  Says how many calls were
 * made, and how many of them reached the library, whose two functions are wrapped (ld --wrap).
 *
 * usage: inline      exit status 0: all objects were the caller's alone
 */
#include "slabclient-inline.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>

enum { ROUNDS = 200, HELD = 100, THREADS = 2, CACHES = 2 };

static unsigned n_calls, n_library_calls;
static struct slabc_cache *caches[CACHES];

#ifdef __cplusplus
extern "C" {
#endif

void *__real_slabc_alloc(struct slabc_cache *k);
void __real_slabc_free(struct slabc_cache *k, void *p);
void *__wrap_slabc_alloc(struct slabc_cache *k);
void __wrap_slabc_free(struct slabc_cache *k, void *p);
int inline_main(void);

void *
__wrap_slabc_alloc(struct slabc_cache *k)
{
	__atomic_fetch_add(&n_library_calls, 1, __ATOMIC_RELAXED);
	return __real_slabc_alloc(k);
}

void
__wrap_slabc_free(struct slabc_cache *k, void *p)
{
	__atomic_fetch_add(&n_library_calls, 1, __ATOMIC_RELAXED);
	__real_slabc_free(k, p);
}

#ifdef __cplusplus
}
#endif

/* 0, or what went wrong. */
static intptr_t
hold(struct slabc_cache *k, uintptr_t thread)
{
	uintptr_t *held[HELD];

	for (uintptr_t i = 0; i < HELD; i++) {
		held[i] = (uintptr_t *)slabc_alloc(k);
		if (!held[i])
			return 1;
		held[i][0] = thread;
		held[i][31] = i;
	}
	for (uintptr_t i = 0; i < HELD; i++) {
		if (held[i][0] != thread || held[i][31] != i)
			return 2;
		slabc_free(k, held[i]);
	}
	__atomic_fetch_add(&n_calls, 2 * HELD, __ATOMIC_RELAXED);
	return 0;
}

static void *
work(void *number)
{
	intptr_t r = 0;

	for (int i = 0; r == 0 && i < ROUNDS; i++)
		for (int j = 0; r == 0 && j < CACHES; j++)
			r = hold(caches[j], (uintptr_t)number);
	return (void *)r;
}

int
inline_main(void)
{
	struct slabc_cache_options o = SLABC_CACHE_OPTIONS_INIT;
	pthread_t threads[THREADS];
	struct slabc *c;
	void *r;

	o.flags = SLABC_NO_OWNER;
	if (slabc_open(&c, NULL) < 0 || slabc_cache_open(c, "inline", 256, NULL, &caches[0]) < 0 ||
		slabc_cache_open(c, "inline.wordless", 256, &o, &caches[1]) < 0) {
		fprintf(stderr, "inline: %s\n", slabc_last_error());
		return 1;
	}
	for (uintptr_t i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, work, (void *)(i + 1)) != 0)
			return 1;
	for (int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], &r);
		if (r) {
			fprintf(stderr, "inline: %s\n", (intptr_t)r == 1 ? slabc_last_error() : "an object was written by another");
			return 1;
		}
	}
	slabc_cache_close(caches[0]);
	slabc_cache_close(caches[1]);
	slabc_close(c);
	printf("%u calls, %u of them in the library\n", n_calls, n_library_calls);
	return 0;
}

#ifndef PLUGIN
int
main(void)
{
	return inline_main();
}
#endif
