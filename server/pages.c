/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buddy allocator of one data segment: see pages.h.
 *
 * All state is in bitsets: free[k] has the free blocks of order k, absent the units that were given back, claimed those that are about to be
 * committed or are on their way back.  A page is in at most one free block; a page of a committed unit in none is handed out.  Two buddies
 * are never both free below unit_order: they are one block of the next order.
 *
 *     units committed = n_seen_units - members of absent - members of claimed
 *     n_free          = sum over k of members of free[k] << k
 *
 * A unit that is kept, for those who may still read there, is a free unit like another; its mark alone says that it may not go yet.
 *
 * Committing or giving back a unit is slow (zeroing 2 MiB), so it is done without the lock, but never two at a time: a thread that finds no
 * block while another commits would else commit a second unit for nothing, or fail at the limit although memory is about to come.  Freeing never
 * waits: a unit that comes free meanwhile is left to the thread that moves, which looks again before it ends (trim_locked).
 * A run of several units claims all of them first and then commits one after the other, so that others get their turns in between.
 */
#include "server/pages.h"

#include <errno.h>
#include <stdlib.h>

/* A caller's mistake with its own blocks would hand memory out twice: end here. */
static void
check_own(bool ok)
{
	if (!ok)
		abort();
}

static uint32_t
unit_pages(const struct pages *pages)
{
	return 1u << pages->unit_order;
}

static uint32_t
committed_units(const struct pages *pages)
{
	return pages->counters.n_committed >> pages->unit_order;
}

static bool
block_is_valid(const struct pages *pages, uint32_t first, uint32_t order)
{
	return order <= pages->unit_order && first < pages->n_pages && (first & ((1u << order) - 1)) == 0;
}

static bool
unit_is_committed(const struct pages *pages, uint32_t unit)
{
	return unit < pages->n_seen_units && !bitset_test(&pages->absent, unit) && !bitset_test(&pages->claimed, unit);
}

/* Order of the free block that the page lies in; -1: none. */
static int
free_order_of(const struct pages *pages, uint32_t page)
{
	uint32_t k;

	for (k = 0; k <= pages->unit_order; k++)
		if (bitset_test(&pages->free[k], page >> k))
			return (int)k;
	return -1;
}

/* The block of order `from` around `first` is nobody's: keeps the block of `order` at first, frees the rest in halves. */
static void
split_locked(struct pages *pages, uint32_t first, uint32_t order, uint32_t from)
{
	while (from > order) {
		from--;
		bitset_set(&pages->free[from], (first >> from) ^ 1);
	}
}

/* Merges the block, which is nobody's, with its free buddies and adds it to the free ones. */
static void
merge_locked(struct pages *pages, uint32_t first, uint32_t order)
{
	uint32_t block = first >> order;

	while (order < pages->unit_order && bitset_test(&pages->free[order], block ^ 1)) {
		bitset_clear(&pages->free[order], block ^ 1);
		block >>= 1;
		order++;
	}
	bitset_set(&pages->free[order], block);
}

/* Order of the largest block that begins at first and has no more than n_pages. */
static uint32_t
block_order(const struct pages *pages, uint32_t first, uint32_t n_pages)
{
	uint32_t order = pages->unit_order;

	while (!block_is_valid(pages, first, order) || 1u << order > n_pages)
		order--;
	return order;
}

/* Pages of committed units, nobody's so far, become free. */
static void
free_range_locked(struct pages *pages, uint32_t first, uint32_t n_pages)
{
	pages->counters.n_free += n_pages;
	while (n_pages > 0) {
		uint32_t order = block_order(pages, first, n_pages);

		merge_locked(pages, first, order);
		first += 1u << order;
		n_pages -= 1u << order;
	}
}

/* Takes a block out of the free ones; false: no free block is large enough. */
static bool
take_free_locked(struct pages *pages, uint32_t order, uint32_t *firstp)
{
	uint32_t k;

	for (k = order; k <= pages->unit_order; k++) {
		uint32_t block = bitset_first(&pages->free[k], 0);

		if (block == BITSET_NONE)
			continue;
		bitset_clear(&pages->free[k], block);
		*firstp = block << k;
		split_locked(pages, *firstp, order, k);
		pages->counters.n_free -= 1u << order;
		return true;
	}
	return false;
}

static void
moving_wait_locked(struct pages *pages)
{
	while (pages->is_moving)
		pthread_cond_wait(&pages->moved, &pages->lock);
}

/* Pages were freed: of their units, those that are free as a whole now. */
static void
mark_units_locked(struct pages *pages, uint32_t first, uint32_t n_pages)
{
	for (uint32_t unit = first >> pages->unit_order; unit <= (first + n_pages - 1) >> pages->unit_order; unit++) {
		if (!bitset_test(&pages->free[pages->unit_order], unit))
			continue;
		if (pages->marks)
			pages->marks[unit] = pages->ops->mark(pages->ctx);
		pages->may_trim = true;
	}
}

/* The lowest unit that is free and need not be kept; BITSET_NONE: there is none. */
static uint32_t
find_spare_locked(const struct pages *pages)
{
	const struct bitset *free_units = &pages->free[pages->unit_order];
	uint32_t unit = bitset_first(free_units, 0);
	uint64_t kept_from;

	if (unit == BITSET_NONE || !pages->marks)
		return unit;
	kept_from = pages->ops->kept_from(pages->ctx);
	while (unit != BITSET_NONE && pages->marks[unit] >= kept_from)
		unit = bitset_first(free_units, unit + 1);
	return unit;
}

/* Gives back what is free, beyond the reserve and not kept, unless somebody moves: then that thread does it at its end. */
static void
trim_locked(struct pages *pages)
{
	while (pages->may_trim && !pages->is_moving && committed_units(pages) > pages->reserve_units) {
		uint32_t unit = find_spare_locked(pages);

		if (unit == BITSET_NONE) {
			pages->may_trim = false;
			return;
		}
		bitset_clear(&pages->free[pages->unit_order], unit);
		pages->counters.n_free -= unit_pages(pages);
		pages->counters.n_committed -= unit_pages(pages);
		bitset_set(&pages->claimed, unit);
		pages->is_moving = true;
		pthread_mutex_unlock(&pages->lock);

		pages->ops->give_back(pages->ctx, unit << pages->unit_order, unit_pages(pages));

		pthread_mutex_lock(&pages->lock);
		bitset_clear(&pages->claimed, unit);
		bitset_set(&pages->absent, unit);
		pages->counters.n_given_back += unit_pages(pages);
		pages->is_moving = false;
		pthread_cond_broadcast(&pages->moved);
	}
}

/*
 * Commits a claimed unit, without the lock meanwhile; it is then committed and nobody's, or absent.  Nobody may be moving.  The caller calls
 * trim_locked() when it is done with the unit, for what came free meanwhile.
 */
static int
commit_claimed_locked(struct pages *pages, uint32_t unit)
{
	int r;

	pages->is_moving = true;
	pthread_mutex_unlock(&pages->lock);

	r = pages->ops->commit(pages->ctx, unit << pages->unit_order, unit_pages(pages));

	pthread_mutex_lock(&pages->lock);
	pages->is_moving = false;
	pthread_cond_broadcast(&pages->moved);
	bitset_clear(&pages->claimed, unit);
	pages->may_trim = true;
	if (pages->marks)
		pages->marks[unit] = 0;
	if (r < 0) {
		bitset_set(&pages->absent, unit);
		pages->counters.n_commit_fails++;
		return r;
	}
	pages->counters.n_committed += unit_pages(pages);
	return 0;
}

/* Commits the lowest absent unit, as commit_claimed_locked(). */
static int
commit_unit_locked(struct pages *pages, uint32_t *unitp)
{
	uint32_t unit = bitset_first(&pages->absent, 0);

	if (unit != BITSET_NONE)
		bitset_clear(&pages->absent, unit);
	else if (pages->n_seen_units < pages->n_pages >> pages->unit_order)
		unit = pages->n_seen_units++;
	else
		return -ENOSPC;
	bitset_set(&pages->claimed, unit);
	*unitp = unit;
	return commit_claimed_locked(pages, unit);
}

static int
alloc_locked(struct pages *pages, uint32_t order, uint32_t *firstp)
{
	uint32_t unit;
	int r;

	for (;;) {
		if (take_free_locked(pages, order, firstp))
			return 0;
		if (!pages->is_moving)
			break;
		moving_wait_locked(pages);
	}

	r = commit_unit_locked(pages, &unit);
	if (r < 0)
		/* Something may have been freed while we asked. */
		return take_free_locked(pages, order, firstp) ? 0 : r;
	*firstp = unit << pages->unit_order;
	split_locked(pages, *firstp, order, pages->unit_order);
	pages->counters.n_free += unit_pages(pages) - (1u << order);
	return 0;
}

/* Lowest of n units side by side of which nobody uses a page; BITSET_NONE: there are none. */
static uint32_t
find_units_locked(const struct pages *pages, uint32_t n)
{
	uint32_t unit, n_here = 0;

	for (unit = 0; unit < pages->n_seen_units && n_here < n; unit++) {
		bool is_unused = bitset_test(&pages->absent, unit) || bitset_test(&pages->free[pages->unit_order], unit);

		n_here = is_unused ? n_here + 1 : 0;
	}
	/* Those never seen are all unused. */
	return n_here == n || n - n_here <= (pages->n_pages >> pages->unit_order) - unit ? unit - n_here : BITSET_NONE;
}

/* Unused units are nobody else's from here on: taken out of the free ones, or claimed. */
static void
claim_units_locked(struct pages *pages, uint32_t first, uint32_t n)
{
	for (uint32_t unit = first; unit < first + n; unit++) {
		if (unit < pages->n_seen_units && bitset_test(&pages->free[pages->unit_order], unit)) {
			bitset_clear(&pages->free[pages->unit_order], unit);
			pages->counters.n_free -= unit_pages(pages);
			continue;
		}
		if (unit < pages->n_seen_units)
			bitset_clear(&pages->absent, unit);
		else
			pages->n_seen_units = unit + 1;
		bitset_set(&pages->claimed, unit);
	}
}

/* After a failure: what of them is committed becomes free, what is claimed absent. */
static void
unclaim_units_locked(struct pages *pages, uint32_t first, uint32_t n)
{
	for (uint32_t unit = first; unit < first + n; unit++) {
		if (unit_is_committed(pages, unit)) {
			free_range_locked(pages, unit << pages->unit_order, unit_pages(pages));
		} else if (bitset_test(&pages->claimed, unit)) {
			bitset_clear(&pages->claimed, unit);
			bitset_set(&pages->absent, unit);
		}
	}
}

/* A run of more than a unit; what its last unit has left over is free. */
static int
alloc_units_locked(struct pages *pages, uint32_t n_pages, uint32_t *firstp)
{
	uint32_t n_units = (n_pages + unit_pages(pages) - 1) >> pages->unit_order, first, unit;
	int r = 0;

	while ((first = find_units_locked(pages, n_units)) == BITSET_NONE) {
		if (!pages->is_moving)
			return -ENOSPC;
		moving_wait_locked(pages);
	}
	claim_units_locked(pages, first, n_units);
	for (unit = first; r == 0 && unit < first + n_units; unit++) {
		if (!bitset_test(&pages->claimed, unit))
			continue;
		moving_wait_locked(pages);
		r = commit_claimed_locked(pages, unit);
	}
	if (r < 0) {
		unclaim_units_locked(pages, first, n_units);
		return r;
	}
	*firstp = first << pages->unit_order;
	free_range_locked(pages, *firstp + n_pages, (n_units << pages->unit_order) - n_pages);
	return 0;
}

int
pages_init(struct pages *pages, uint32_t n_pages, uint32_t unit_order, uint32_t reserve_units, const struct pages_ops *ops, void *ctx)
{
	uint32_t k;
	int r;

	if (unit_order > PAGES_MAX_ORDER || n_pages == 0 || n_pages & ((1u << unit_order) - 1))
		return -EINVAL;

	*pages = (struct pages){.n_pages = n_pages, .unit_order = unit_order, .reserve_units = reserve_units, .ops = ops, .ctx = ctx};
	pthread_mutex_init(&pages->lock, NULL);
	pthread_cond_init(&pages->moved, NULL);
	r = bitset_init(&pages->absent, n_pages >> unit_order);
	if (r == 0)
		r = bitset_init(&pages->claimed, n_pages >> unit_order);
	for (k = 0; r == 0 && k <= unit_order; k++)
		r = bitset_init(&pages->free[k], n_pages >> k);
	if (r == 0 && ops->mark) {
		pages->marks = calloc(n_pages >> unit_order, sizeof *pages->marks);
		r = pages->marks ? 0 : -ENOMEM;
	}
	if (r < 0)
		pages_deinit(pages);
	return r;
}

void
pages_deinit(struct pages *pages)
{
	uint32_t k;

	for (k = 0; k <= PAGES_MAX_ORDER; k++)
		bitset_deinit(&pages->free[k]);
	bitset_deinit(&pages->absent);
	bitset_deinit(&pages->claimed);
	free(pages->marks);
	pthread_cond_destroy(&pages->moved);
	pthread_mutex_destroy(&pages->lock);
}

int
pages_reserve(struct pages *pages)
{
	int r = 0;

	pthread_mutex_lock(&pages->lock);
	for (;;) {
		uint32_t unit;

		moving_wait_locked(pages);
		if (committed_units(pages) >= pages->reserve_units)
			break;
		r = commit_unit_locked(pages, &unit);
		if (r < 0)
			break;
		bitset_set(&pages->free[pages->unit_order], unit);
		pages->counters.n_free += unit_pages(pages);
	}
	trim_locked(pages);
	pthread_mutex_unlock(&pages->lock);
	return r;
}

int
pages_alloc(struct pages *pages, uint32_t order, uint32_t *firstp)
{
	int r;

	if (order > pages->unit_order)
		return -EINVAL;
	pthread_mutex_lock(&pages->lock);
	r = alloc_locked(pages, order, firstp);
	trim_locked(pages);
	pthread_mutex_unlock(&pages->lock);
	return r;
}

int
pages_alloc_run(struct pages *pages, uint32_t n_pages, uint32_t *firstp)
{
	uint32_t order = 0;
	int r;

	if (n_pages == 0)
		return -EINVAL;
	if (n_pages > pages->n_pages)
		return -ENOSPC;
	while (order < pages->unit_order && 1u << order < n_pages)
		order++;
	pthread_mutex_lock(&pages->lock);
	if (n_pages > unit_pages(pages)) {
		r = alloc_units_locked(pages, n_pages, firstp);
	} else {
		r = alloc_locked(pages, order, firstp);
		if (r == 0)
			free_range_locked(pages, *firstp + n_pages, (1u << order) - n_pages);
	}
	trim_locked(pages);
	pthread_mutex_unlock(&pages->lock);
	return r;
}

/* All of the block is handed out. */
static void
check_taken_locked(const struct pages *pages, uint32_t first, uint32_t order)
{
	uint32_t k, n_pages = 1u << order;

	check_own(unit_is_committed(pages, first >> pages->unit_order));
	check_own(free_order_of(pages, first) < 0);
	for (k = 0; k < order; k++)
		check_own(bitset_first(&pages->free[k], first >> k) >= (first + n_pages) >> k);
}

void
pages_free(struct pages *pages, uint32_t first, uint32_t order)
{
	check_own(block_is_valid(pages, first, order));
	pthread_mutex_lock(&pages->lock);
	check_taken_locked(pages, first, order);
	merge_locked(pages, first, order);
	pages->counters.n_free += 1u << order;
	mark_units_locked(pages, first, 1u << order);
	trim_locked(pages);
	pthread_mutex_unlock(&pages->lock);
}

void
pages_free_run(struct pages *pages, uint32_t first, uint32_t n_pages)
{
	uint32_t page, order;

	check_own(n_pages > 0 && n_pages <= pages->n_pages && first <= pages->n_pages - n_pages);
	pthread_mutex_lock(&pages->lock);
	for (page = first; page < first + n_pages; page += 1u << order) {
		order = block_order(pages, page, first + n_pages - page);
		check_taken_locked(pages, page, order);
	}
	free_range_locked(pages, first, n_pages);
	mark_units_locked(pages, first, n_pages);
	trim_locked(pages);
	pthread_mutex_unlock(&pages->lock);
}

void
pages_trim(struct pages *pages)
{
	pthread_mutex_lock(&pages->lock);
	pages->may_trim = true;
	trim_locked(pages);
	pthread_mutex_unlock(&pages->lock);
}

bool
pages_try_hold(struct pages *pages)
{
	bool is_held;

	pthread_mutex_lock(&pages->lock);
	is_held = !pages->is_moving;
	pages->is_moving = true;
	pthread_mutex_unlock(&pages->lock);
	return is_held;
}

void
pages_let_go(struct pages *pages)
{
	pthread_mutex_lock(&pages->lock);
	pages->is_moving = false;
	pthread_cond_broadcast(&pages->moved);
	trim_locked(pages);
	pthread_mutex_unlock(&pages->lock);
}

/* The unit is committed, by what a predecessor says: free as a whole, so far. */
static void
adopt_unit_locked(struct pages *pages, uint32_t unit)
{
	while (pages->n_seen_units <= unit)
		bitset_set(&pages->absent, pages->n_seen_units++);
	bitset_clear(&pages->absent, unit);
	bitset_set(&pages->free[pages->unit_order], unit);
	pages->may_trim = true;
	pages->counters.n_committed += unit_pages(pages);
	pages->counters.n_free += unit_pages(pages);
}

int
pages_mark(struct pages *pages, uint32_t first, uint32_t order)
{
	uint32_t unit = first >> pages->unit_order;
	int k, r = -EBUSY;

	if (!block_is_valid(pages, first, order))
		return -EINVAL;
	pthread_mutex_lock(&pages->lock);
	if (!unit_is_committed(pages, unit))
		adopt_unit_locked(pages, unit);
	k = free_order_of(pages, first);
	if (k >= (int)order) {
		bitset_clear(&pages->free[k], first >> k);
		split_locked(pages, first, order, (uint32_t)k);
		pages->counters.n_free -= 1u << order;
		r = 0;
	}
	pthread_mutex_unlock(&pages->lock);
	return r;
}

int
pages_mark_run(struct pages *pages, uint32_t first, uint32_t n_pages)
{
	uint32_t page, order;
	int r = n_pages == 0 || n_pages > pages->n_pages || first > pages->n_pages - n_pages ? -EINVAL : 0;

	for (page = first; r == 0 && page < first + n_pages; page += 1u << order) {
		order = block_order(pages, page, first + n_pages - page);
		r = pages_mark(pages, page, order);
	}
	return r;
}

void
pages_mark_free(struct pages *pages)
{
	pthread_mutex_lock(&pages->lock);
	if (pages->n_seen_units)
		mark_units_locked(pages, 0, pages->n_seen_units << pages->unit_order);
	pthread_mutex_unlock(&pages->lock);
}

void
pages_adopt(struct pages *pages, uint32_t unit)
{
	check_own(unit < pages->n_pages >> pages->unit_order);
	pthread_mutex_lock(&pages->lock);
	check_own(!unit_is_committed(pages, unit));
	adopt_unit_locked(pages, unit);
	pthread_mutex_unlock(&pages->lock);
}

void
pages_hold(struct pages *pages)
{
	pthread_mutex_lock(&pages->lock);
	moving_wait_locked(pages);
	pages->is_moving = true;
	pthread_mutex_unlock(&pages->lock);
}

void
pages_release(struct pages *pages)
{
	pthread_mutex_lock(&pages->lock);
	pages->is_moving = false;
	pthread_cond_broadcast(&pages->moved);
	trim_locked(pages);
	pthread_mutex_unlock(&pages->lock);
}

bool
pages_next_hole(struct pages *pages, uint32_t from, uint32_t *firstp, uint32_t *n_pagesp)
{
	uint32_t n_units = pages->n_pages >> pages->unit_order, unit = from >> pages->unit_order, end;

	pthread_mutex_lock(&pages->lock);
	while (unit < n_units && unit_is_committed(pages, unit))
		unit++;
	for (end = unit; end < pages->n_seen_units && !unit_is_committed(pages, end); end++)
		;
	/* Those never seen are all holes. */
	if (end >= pages->n_seen_units)
		end = n_units;
	pthread_mutex_unlock(&pages->lock);
	*firstp = unit << pages->unit_order;
	*n_pagesp = (end - unit) << pages->unit_order;
	return end > unit;
}

void
pages_count(struct pages *pages, struct pages_counters *countersp)
{
	pthread_mutex_lock(&pages->lock);
	*countersp = pages->counters;
	pthread_mutex_unlock(&pages->lock);
}

uint32_t
pages_kept(struct pages *pages)
{
	const struct bitset *free_units = &pages->free[pages->unit_order];
	uint32_t n = 0, n_spare;

	if (!pages->marks)
		return 0;
	pthread_mutex_lock(&pages->lock);
	n_spare = committed_units(pages) > pages->reserve_units ? committed_units(pages) - pages->reserve_units : 0;
	for (uint32_t unit = bitset_first(free_units, 0); unit != BITSET_NONE && n < n_spare; unit = bitset_first(free_units, unit + 1))
		n++;
	pthread_mutex_unlock(&pages->lock);
	return n << pages->unit_order;
}

/* The free blocks of one order; adds their pages to *n_freep. */
static bool
check_order_locked(const struct pages *pages, uint32_t order, uint32_t *n_freep)
{
	uint32_t block, k;

	for (block = bitset_first(&pages->free[order], 0); block != BITSET_NONE; block = bitset_first(&pages->free[order], block + 1)) {
		if (!unit_is_committed(pages, block >> (pages->unit_order - order)))
			return false;
		if (order < pages->unit_order && bitset_test(&pages->free[order], block ^ 1))
			return false;
		for (k = order + 1; k <= pages->unit_order; k++)
			if (bitset_test(&pages->free[k], block >> (k - order)))
				return false;
		*n_freep += 1u << order;
	}
	return true;
}

bool
pages_check(struct pages *pages)
{
	uint32_t unit, n_free = 0, n_absent = 0, n_claimed = 0, k;
	bool ok = true;

	pthread_mutex_lock(&pages->lock);
	moving_wait_locked(pages);
	for (k = 0; ok && k <= pages->unit_order; k++)
		ok = check_order_locked(pages, k, &n_free);
	for (unit = bitset_first(&pages->absent, 0); unit != BITSET_NONE; unit = bitset_first(&pages->absent, unit + 1))
		n_absent++;
	for (unit = bitset_first(&pages->claimed, 0); unit != BITSET_NONE; unit = bitset_first(&pages->claimed, unit + 1)) {
		ok = ok && !bitset_test(&pages->absent, unit);
		n_claimed++;
	}
	ok = ok && n_free == pages->counters.n_free && pages->n_seen_units - n_absent - n_claimed == committed_units(pages);
	pthread_mutex_unlock(&pages->lock);
	return ok;
}
