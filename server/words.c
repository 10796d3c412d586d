/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocator of runs in the word table: see words.h.
 *
 *     block in use   partial[size] has it iff a run of it is free, n_used > 0
 *     block idle     in `idle`, n_used = 0; its size means nothing
 *     block unseen   at or above n_seen_blocks: like idle, but never touched; taken only when no idle block is left
 *
 * Blocks in use are filled before idle ones are taken, also where an idle one lies lower: fewer blocks in use means more that any size can have.
 * A block's record is a quarter percent of its words.
 */
#include "server/words.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#define MAX_RUNS (WORDS_BLOCK / WORDS_MIN_RUN)

struct words_block {
	/* A bit a run. */
	uint64_t used[MAX_RUNS / 64];
	uint16_t n_used;
	/* Runs are WORDS_MIN_RUN << size words. */
	uint8_t size;
};

_Static_assert(sizeof(struct words_block) * 100 < WORDS_BLOCK * sizeof(uint32_t), "less than 1% of the words");
_Static_assert(WORDS_MIN_RUN << (WORDS_N_SIZES - 1) == WORDS_MAX_RUN, "sizes");

/* A caller's mistake with its own runs would give two objects one word: end here. */
static void
check_own(bool ok)
{
	if (!ok)
		abort();
}

static bool
n_is_valid(uint32_t n)
{
	return n > 0 && n <= WORDS_MAX_RUN;
}

static uint32_t
size_of(uint32_t n)
{
	uint32_t size = 0;

	while ((uint32_t)WORDS_MIN_RUN << size < n)
		size++;
	return size;
}

static uint32_t
run_words(uint32_t size)
{
	return (uint32_t)WORDS_MIN_RUN << size;
}

static uint32_t
block_runs(uint32_t size)
{
	return MAX_RUNS >> size;
}

static bool
run_is_used(const struct words_block *block, uint32_t run)
{
	return block->used[run / 64] >> run % 64 & 1;
}

/* Lowest free run of a block that has one. */
static uint32_t
run_find(const struct words_block *block)
{
	uint32_t i = 0;

	while (block->used[i] == ~0ull)
		i++;
	return i * 64 + (uint32_t)__builtin_ctzll(~block->used[i]);
}

/* An idle block begins to serve a size. */
static void
block_start_locked(struct words *words, uint32_t b, uint32_t size)
{
	bitset_clear(&words->idle, b);
	words->blocks[b] = (struct words_block){.size = (uint8_t)size};
	bitset_set(&words->partial[size], b);
	words->counters.n_blocks++;
}

static void
block_see_locked(struct words *words)
{
	bitset_set(&words->idle, words->n_seen_blocks++);
	words->counters.n_high_water = (uint64_t)words->n_seen_blocks * WORDS_BLOCK;
}

static void
run_take_locked(struct words *words, uint32_t b, uint32_t run)
{
	struct words_block *block = &words->blocks[b];

	block->used[run / 64] |= 1ull << run % 64;
	block->n_used++;
	if (block->n_used == block_runs(block->size))
		bitset_clear(&words->partial[block->size], b);
	words->counters.n_words += run_words(block->size);
}

static void
run_drop_locked(struct words *words, uint32_t b, uint32_t run)
{
	struct words_block *block = &words->blocks[b];

	block->used[run / 64] &= ~(1ull << run % 64);
	block->n_used--;
	words->counters.n_words -= run_words(block->size);
	if (block->n_used > 0) {
		bitset_set(&words->partial[block->size], b);
		return;
	}
	bitset_clear(&words->partial[block->size], b);
	bitset_set(&words->idle, b);
	words->counters.n_blocks--;
}

/* A block with room for a run of that size, or BITSET_NONE. */
static uint32_t
block_find_locked(struct words *words, uint32_t size)
{
	uint32_t b = bitset_first(&words->partial[size], 0);

	if (b != BITSET_NONE)
		return b;
	if (bitset_first(&words->idle, 0) == BITSET_NONE && words->n_seen_blocks < words->n_blocks)
		block_see_locked(words);
	b = bitset_first(&words->idle, 0);
	if (b != BITSET_NONE)
		block_start_locked(words, b, size);
	return b;
}

int
words_init(struct words *words, uint64_t n_words)
{
	uint32_t i;
	void *map;
	int r;

	if (n_words < WORDS_BLOCK || n_words > 1ull << 32)
		return -EINVAL;

	*words = (struct words){.n_blocks = (uint32_t)(n_words / WORDS_BLOCK)};
	pthread_mutex_init(&words->lock, NULL);
	r = bitset_init(&words->idle, words->n_blocks);
	for (i = 0; r == 0 && i < WORDS_N_SIZES; i++)
		r = bitset_init(&words->partial[i], words->n_blocks);
	if (r == 0) {
		words->blocks_bytes = words->n_blocks * sizeof(*words->blocks);
		map = mmap(NULL, words->blocks_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (map == MAP_FAILED)
			r = -errno;
		else
			words->blocks = map;
	}
	if (r < 0)
		words_deinit(words);
	return r;
}

void
words_deinit(struct words *words)
{
	uint32_t i;

	if (words->blocks)
		munmap(words->blocks, words->blocks_bytes);
	words->blocks = NULL;
	for (i = 0; i < WORDS_N_SIZES; i++)
		bitset_deinit(&words->partial[i]);
	bitset_deinit(&words->idle);
	pthread_mutex_destroy(&words->lock);
}

int
words_alloc(struct words *words, uint32_t n, uint32_t *firstp)
{
	uint32_t size, b, run;

	if (!n_is_valid(n))
		return -EINVAL;
	size = size_of(n);
	pthread_mutex_lock(&words->lock);
	b = block_find_locked(words, size);
	if (b != BITSET_NONE) {
		run = run_find(&words->blocks[b]);
		run_take_locked(words, b, run);
		*firstp = b * WORDS_BLOCK + run * run_words(size);
	}
	pthread_mutex_unlock(&words->lock);
	return b == BITSET_NONE ? -ENOSPC : 0;
}

void
words_free(struct words *words, uint32_t first, uint32_t n)
{
	uint32_t b = first / WORDS_BLOCK, size, run;

	check_own(n_is_valid(n));
	size = size_of(n);
	run = first % WORDS_BLOCK / run_words(size);
	check_own(first % run_words(size) == 0);
	pthread_mutex_lock(&words->lock);
	check_own(b < words->n_seen_blocks && !bitset_test(&words->idle, b));
	check_own(words->blocks[b].size == size && run_is_used(&words->blocks[b], run));
	run_drop_locked(words, b, run);
	pthread_mutex_unlock(&words->lock);
}

int
words_mark(struct words *words, uint32_t first, uint32_t n)
{
	uint32_t b = first / WORDS_BLOCK, size, run;
	int r = -EBUSY;

	if (!n_is_valid(n) || b >= words->n_blocks)
		return -EINVAL;
	size = size_of(n);
	if (first % run_words(size) != 0)
		return -EINVAL;
	run = first % WORDS_BLOCK / run_words(size);
	pthread_mutex_lock(&words->lock);
	while (words->n_seen_blocks <= b)
		block_see_locked(words);
	if (bitset_test(&words->idle, b))
		block_start_locked(words, b, size);
	if (words->blocks[b].size == size && !run_is_used(&words->blocks[b], run)) {
		run_take_locked(words, b, run);
		r = 0;
	}
	pthread_mutex_unlock(&words->lock);
	return r;
}

void
words_count(struct words *words, struct words_counters *countersp)
{
	pthread_mutex_lock(&words->lock);
	*countersp = words->counters;
	pthread_mutex_unlock(&words->lock);
}

/* A block in use: its bitmap, its count, and the sets that have it. */
static bool
check_block_locked(const struct words *words, uint32_t b)
{
	const struct words_block *block = &words->blocks[b];
	uint32_t size, n_used = 0, i;

	if (block->size >= WORDS_N_SIZES)
		return false;
	for (i = 0; i < MAX_RUNS / 64; i++)
		n_used += (uint32_t)__builtin_popcountll(block->used[i]);
	for (i = block_runs(block->size); i < MAX_RUNS; i++)
		if (run_is_used(block, i))
			return false;
	for (size = 0; size < WORDS_N_SIZES; size++)
		if (bitset_test(&words->partial[size], b) != (size == block->size && n_used < block_runs(size)))
			return false;
	return n_used == block->n_used && n_used > 0;
}

bool
words_check(struct words *words)
{
	uint32_t b, size, n_blocks = 0;
	uint64_t n_words = 0;
	bool ok = true;

	pthread_mutex_lock(&words->lock);
	for (b = 0; ok && b < words->n_seen_blocks; b++) {
		if (bitset_test(&words->idle, b)) {
			for (size = 0; size < WORDS_N_SIZES; size++)
				ok = ok && !bitset_test(&words->partial[size], b);
			continue;
		}
		ok = check_block_locked(words, b);
		n_blocks++;
		n_words += (uint64_t)words->blocks[b].n_used * run_words(words->blocks[b].size);
	}
	ok = ok && n_blocks == words->counters.n_blocks && n_words == words->counters.n_words;
	pthread_mutex_unlock(&words->lock);
	return ok;
}
