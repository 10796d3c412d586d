/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocator of runs of words in an arena's word table.
 *
 * A run is a power of two of words, 16 to 4,096.  The table is divided into blocks of 4,096 words; a block in use serves runs of one size, a
 * block without runs serves any size again.  The lowest block with room goes first, so that the part of the table ever touched stays small.
 * The words themselves are never looked at: their generations outlive the runs.
 */
#ifndef SLAB_SERVER_WORDS_H
#define SLAB_SERVER_WORDS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/bitset.h"

enum {
	WORDS_BLOCK = 4096, /* words */
	WORDS_MIN_RUN = 16,
	WORDS_MAX_RUN = WORDS_BLOCK,
	WORDS_N_SIZES = 9, /* 16, 32 .. 4096 */
};

struct words_block;

struct words_counters {
	uint64_t n_words;      /* in runs handed out, rounded as they are */
	uint64_t n_high_water; /* words from this on were never handed out */
	uint32_t n_blocks;     /* with a run in use */
};

struct words {
	pthread_mutex_t lock; /* guards everything below */
	/* By block; pages of it cost memory only below the high water. */
	struct words_block *blocks;
	size_t blocks_bytes;
	uint32_t n_blocks;
	/* Blocks below this had a run at some time, blocks from it on never. */
	uint32_t n_seen_blocks;
	/* Blocks below n_seen_blocks without a run. */
	struct bitset idle;
	/* Blocks in use with room for a run of that size. */
	struct bitset partial[WORDS_N_SIZES];
	struct words_counters counters;
};

/* Words beyond the last whole block stay unused.  -EINVAL: less than a block, or more than 2^32; -ENOMEM. */
int words_init(struct words *words, uint64_t n_words);
void words_deinit(struct words *words);

/* Run of at least n words.  -EINVAL: n is 0 or above WORDS_MAX_RUN; -ENOSPC: no room. */
int words_alloc(struct words *words, uint32_t n, uint32_t *firstp);

/* n as it was given to words_alloc(). */
void words_free(struct words *words, uint32_t first, uint32_t n);

/* Claims a run that a predecessor handed out.  -EINVAL: no such run; -EBUSY: taken, or the block serves another size. */
int words_mark(struct words *words, uint32_t first, uint32_t n);

void words_count(struct words *words, struct words_counters *countersp);

/* Walks the blocks: bitmaps, sets and counters say the same. */
bool words_check(struct words *words);

#endif
