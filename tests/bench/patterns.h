/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The patterns, once for each way to allocate: no guard, included by peers after
 *
 *   PATTERN(name)       a name of this way's own
 *   PATTERN_ALLOC(p)    an object, or the end of the process
 *   PATTERN_FREE(p, q)
 *
 * Each function is one chunk, long enough that reading the clock between two of them does not count.
 */

enum { PATTERN(CHUNK) = 4096 };

__attribute__((always_inline)) static inline void *
PATTERN(make)(struct peer *p, uint64_t first_word)
{
	uint64_t *q = (uint64_t *)PATTERN_ALLOC(p);

	(void)p;
	/* volatile: a compiler that knows malloc may not leave out the object. */
	*(volatile uint64_t *)q = first_word;
	return q;
}

static uint64_t
PATTERN(pair)(struct peer *p)
{
	for (uint64_t i = 0; i < PATTERN(CHUNK); i++)
		PATTERN_FREE(p, PATTERN(make)(p, i));
	return PATTERN(CHUNK);
}

static uint64_t
PATTERN(batch)(struct peer *p, struct bench_state *s, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		s->slots[i] = PATTERN(make)(p, i);
	for (unsigned i = 0; i < n; i++) {
		PATTERN_FREE(p, s->slots[i]);
		s->slots[i] = NULL;
	}
	return n;
}

static uint64_t
PATTERN(random)(struct peer *p, struct bench_state *s, void **slots, unsigned n_steps)
{
	uint64_t x = s->random;

	for (unsigned i = 0; i < n_steps; i++) {
		void **slot;

		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		slot = &slots[x % 4096];
		if (*slot) {
			PATTERN_FREE(p, *slot);
			*slot = NULL;
		} else {
			*slot = PATTERN(make)(p, i);
		}
	}
	s->random = x;
	return n_steps / 2;
}

static uint64_t
PATTERN(mixed)(struct peer *p, struct bench_state *s)
{
	/* The slots behind the burst's are the random part's. */
	return PATTERN(batch)(p, s, 512) + PATTERN(random)(p, s, s->slots + 4096, 1024);
}

static uint64_t
PATTERN(live)(struct peer *p, struct bench_state *s)
{
	for (unsigned i = 0; i < BENCH_BATCH; i++)
		if (!s->slots[i])
			s->slots[i] = PATTERN(make)(p, i);
	return BENCH_BATCH;
}

static uint64_t
PATTERN(chunk)(struct peer *p, struct bench_state *s, enum bench_pattern pattern)
{
	switch (pattern) {
	case BENCH_PAIR:
		return PATTERN(pair)(p);
	case BENCH_BATCH1K:
		return PATTERN(batch)(p, s, 1024) + PATTERN(batch)(p, s, 1024);
	case BENCH_BATCH64K:
		return PATTERN(batch)(p, s, BENCH_BATCH);
	case BENCH_RANDOM4K:
		return PATTERN(random)(p, s, s->slots, 2 * PATTERN(CHUNK));
	case BENCH_MIXED:
		return PATTERN(mixed)(p, s);
	case BENCH_LIVE:
		return PATTERN(live)(p, s);
	default:
		bench_die("pattern", EINVAL);
	}
}

static uint64_t
PATTERN(until)(struct peer *p, struct bench_state *s, enum bench_pattern pattern, uint64_t until_ns)
{
	uint64_t n = 0;

	do
		n += PATTERN(chunk)(p, s, pattern);
	while (bench_now_ns() < until_ns);
	return n;
}

#undef PATTERN
#undef PATTERN_ALLOC
#undef PATTERN_FREE
