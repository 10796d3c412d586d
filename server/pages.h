/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buddy allocator of the pages of one data segment.
 *
 * Pages are numbered from 0 in the segment.  A block of order k is 2^k pages at a multiple of 2^k.  The segment is committed to the system and
 * given back in units of 2^unit_order pages (a huge page, or a batch of small ones); a block never spans units, and only pages of committed
 * units are handed out.  A run is any number of pages side by side, which may span units.
 */
#ifndef SLAB_SERVER_PAGES_H
#define SLAB_SERVER_PAGES_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/bitset.h"

/* A unit of 1 GiB. */
enum { PAGES_MAX_ORDER = 18 };

/*
 * How units come and go.  Called without the lock, one call at a time for a segment; they may block, and must not call back into these pages.
 * commit: 0, or a negative errno, and then nothing of the unit is committed (the limit of the arena is checked here: -ENOMEM).
 */
struct pages_ops {
	int (*commit)(void *ctx, uint32_t first_page, uint32_t n_pages);
	void (*give_back)(void *ctx, uint32_t first_page, uint32_t n_pages);
	/*
	 * NULL, both: whatever is free may go.  mark: a number from 1, never less than before, for a unit that has come free now.  kept_from: units marked
	 * with that or more stay committed, free as they are.  Called with the lock.
	 */
	uint64_t (*mark)(void *ctx);
	uint64_t (*kept_from)(void *ctx);
};

struct pages_counters {
	uint32_t n_committed;    /* pages, free ones too */
	uint32_t n_free;         /* pages committed and not handed out */
	uint64_t n_given_back;   /* pages, since the start */
	uint64_t n_commit_fails; /* commits refused, since the start */
};

struct pages {
	pthread_mutex_t lock; /* guards everything below */
	pthread_cond_t moved; /* is_moving became false */
	const struct pages_ops *ops;
	void *ctx;
	uint32_t n_pages;
	uint32_t unit_order;
	/* Units that stay committed once they are. */
	uint32_t reserve_units;
	/* Units below this were committed at some time, units from it on never. */
	uint32_t n_seen_units;
	/* Units below n_seen_units that are not committed. */
	struct bitset absent;
	/* Units neither absent nor committed: a thread is about to commit them, or gives them back. */
	struct bitset claimed;
	/* Free blocks by order, a bit for each block of that order. */
	struct bitset free[PAGES_MAX_ORDER + 1];
	/* By unit: what ops->mark said when it last came free as a whole since it was committed, else 0.  NULL: ops marks none. */
	uint64_t *marks;
	/* Since nothing was found that could go, a unit came free or was committed, or pages_trim() was called. */
	bool may_trim;
	/* A call of ops is being made, of a claimed unit; or pages_try_hold(). */
	bool is_moving;
	struct pages_counters counters;
};

/* -EINVAL: unit_order > PAGES_MAX_ORDER, or n_pages is 0 or no multiple of a unit; -ENOMEM.  Nothing is committed yet. */
int pages_init(struct pages *pages, uint32_t n_pages, uint32_t unit_order, uint32_t reserve_units, const struct pages_ops *ops, void *ctx);

/* Gives nothing back: the segment goes as a whole. */
void pages_deinit(struct pages *pages);

/* Commits units until the reserve is there.  -ENOSPC: the segment is smaller than that; else what commit said.  What was committed stays. */
int pages_reserve(struct pages *pages);

/*
 * Takes the lowest free block of the smallest order that suffices; commits the lowest absent unit when there is none.  Blocks that are there
 * are handed out while another thread commits; who needs a unit himself waits for that call and looks again.
 * -EINVAL: order > unit_order; -ENOSPC: the segment is full; else what commit said.  On error nothing has changed.
 */
int pages_alloc(struct pages *pages, uint32_t order, uint32_t *firstp);

/*
 * Frees a block.  A unit that is free as a whole and not to be kept is given back while more than the reserve is committed: by this call, or by
 * the thread whose call of ops is under way.  Nobody may be able to come to the pages any more; ops may know of some who are there still.
 */
void pages_free(struct pages *pages, uint32_t first, uint32_t order);

/*
 * The same for a run of n_pages: at most a unit comes out of one block, more begins with a unit, the lowest that will do; what is left over of
 * a block or unit is free.  Units are committed one by one, so that others need not wait for all of them; if one fails, those before it go back.
 * -EINVAL: n_pages is 0; -ENOSPC: no such run is left; else what commit said.  On error nothing has changed.
 */
int pages_alloc_run(struct pages *pages, uint32_t n_pages, uint32_t *firstp);
void pages_free_run(struct pages *pages, uint32_t first, uint32_t n_pages);

/* What ops->kept_from says has changed: gives back what was kept, as pages_free(). */
void pages_trim(struct pages *pages);

/*
 * Until pages_let_go() no unit comes or goes, as if a call of ops were under way: blocks that are there are handed out and freed, who needs a unit waits.
 * false: one is under way.
 */
bool pages_try_hold(struct pages *pages);
void pages_let_go(struct pages *pages);

/*
 * Claims a block of which a predecessor says that it is in use; its unit counts as committed from then on, without a call of ops.
 * -EINVAL: no such block; -EBUSY: part of it is taken already.  Before pages_reserve() and the first pages_alloc().
 */
int pages_mark(struct pages *pages, uint32_t first, uint32_t order);

/* The same for a run of pages.  And: the unit is committed, by what a predecessor says; free, as a whole, until part of it is claimed. */
int pages_mark_run(struct pages *pages, uint32_t first, uint32_t n_pages);
void pages_adopt(struct pages *pages, uint32_t unit);
/* Units that are free are marked as if they had come free now. */
void pages_mark_free(struct pages *pages);
/*
 * Nothing is committed or given back between the two, but by who holds them: callers that need a unit wait.  Other blocks come and go meanwhile.
 */
void pages_hold(struct pages *pages);
void pages_release(struct pages *pages);

/* Held.  The first run of pages from `from` on of which slabd has committed none: its first page and length; false: there is no more. */
bool pages_next_hole(struct pages *pages, uint32_t from, uint32_t *firstp, uint32_t *n_pagesp);

void pages_count(struct pages *pages, struct pages_counters *countersp);

/* Pages that would go, were it not for ops->kept_from: whole units, free, beyond the reserve.  Takes time by the number of them. */
uint32_t pages_kept(struct pages *pages);

/*
 * Walks everything: free blocks lie in committed units, do not overlap, are merged as far as they can be, and add up to the counters.
 * Takes time by the number of free blocks and units.
 */
bool pages_check(struct pages *pages);

#endif
