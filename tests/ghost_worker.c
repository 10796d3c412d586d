/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ghost ledger, the writing side: a worker of stress_kill under its mixed load.
 *
 * Each step picks a call, notes what it is about to do, does it, and notes what came of it; the objects' addresses go from the library
 * straight into the lane.  Whatever an operation may not legitimately answer ends the worker with a sentence in its lane.
 *
 * The workers are to spend their time inside of calls, so that this is where they are killed: a flag in the lane says so to whoever looks
 * at random instants (reading a clock around each call would take a tenth of the time by itself).  Runs of single calls are one call to it,
 * with the one store that each notes its progress by.
 */
#include "tests/ghost.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shm/atomic.h"

enum { MAX_BULK = 64 };

struct worker {
	struct ghost *ghost;
	struct ghost_lane *lane;
	struct ghost_note note; /* the valid one, or the next */
	const struct ghost_setup *setup;
	struct slabc *c;
	struct slabc_cache *k[GHOST_CACHES];
	uint32_t index; /* of the lane */
	uint64_t random;
};

uint64_t
ghost_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state * 0x2545f4914f6cdd1du;
}

/* 0 to n - 1. */
static uint32_t
below(struct worker *w, uint32_t n)
{
	return (uint32_t)((ghost_random(&w->random) >> 32) * n >> 32);
}

/* Objects of a step: 1 to GHOST_MAX_BATCH, half of them the most. */
static uint32_t
batch(struct worker *w)
{
	uint32_t n = below(w, 2 * GHOST_MAX_BATCH) + 1;

	return n < GHOST_MAX_BATCH ? n : GHOST_MAX_BATCH;
}

/* Of these, objects of one bulk call. */
static uint32_t
portion(uint32_t n_left)
{
	return n_left > MAX_BULK ? MAX_BULK : n_left;
}

/* A call, or a run of them, begins and ends. */
static void
enter(struct worker *w)
{
	atomic_write_release(&w->lane->is_inside, 1);
}

static void
leave(struct worker *w)
{
	atomic_write_release(&w->lane->is_inside, 0);
}

static void fail(struct worker *w, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));
static void
fail(struct worker *w, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(w->lane->error, sizeof w->lane->error, format, args);
	va_end(args);
	_exit(1);
}

/* Notes */

static void
begin(struct worker *w, enum ghost_op op, uint32_t cache, uint32_t first, uint32_t n)
{
	w->note.op = op;
	w->note.cache = cache;
	w->note.first = first;
	w->note.n = n;
	ghost_commit(w->lane, &w->note);
}

static void
idle(struct worker *w)
{
	w->note.op = GHOST_IDLE;
	ghost_commit(w->lane, &w->note);
}

/* The lane no longer has the window; the last ones come into its place. */
static void
close_gap(struct worker *w)
{
	uint32_t cache = w->note.cache, first = w->note.first, end = first + w->note.n, n_held = w->note.n_held[cache];
	uint32_t n_behind = n_held - end, n_moved = n_behind < w->note.n ? n_behind : w->note.n;
	void **held = w->lane->held[cache];

	w->note.op = GHOST_GAP;
	ghost_commit(w->lane, &w->note);
	memcpy(&held[first], &held[n_held - n_moved], n_moved * sizeof held[0]);
	w->note.n_held[cache] -= w->note.n;
	idle(w);
}

/* A window of up to n held objects; n 0: there is none. */
static uint32_t
pick_window(struct worker *w, uint32_t cache, uint32_t n, uint32_t *firstp)
{
	uint32_t n_held = w->note.n_held[cache];

	if (n > n_held)
		n = n_held;
	*firstp = n ? below(w, n_held - n + 1) : 0;
	return n;
}

/* Stamps */

static struct ghost_stamp *
stamp_of(void *p)
{
	return p;
}

/* The loops over stamps are the test's largest part of the time: what they need is in locals. */
static void
put_stamps(const struct worker *w, void **pv, uint32_t n, const slabc_ref *refs)
{
	uint64_t client = (uint64_t)w->lane->client << 32;
	uintptr_t base = w->lane->base;

	for (uint32_t i = 0; i < n; i++)
		*stamp_of(pv[i]) = (struct ghost_stamp){.who = client | ((uintptr_t)pv[i] - base) >> LAYOUT_PLACE_SHIFT, .ref = refs[i]};
}

static void
check_stamps(struct worker *w, void **pv, uint32_t n)
{
	uint64_t client = (uint64_t)w->lane->client << 32, differences = 0;
	uintptr_t base = w->lane->base;

	for (uint32_t i = 0; i < n; i++)
		differences |= stamp_of(pv[i])->who ^ (client | ((uintptr_t)pv[i] - base) >> LAYOUT_PLACE_SHIFT);
	for (uint32_t i = 0; differences && i < n; i++)
		if (stamp_of(pv[i])->who != ghost_who(w->lane->client, ghost_place(w->lane, pv[i])))
			fail(w, "an object of mine, place %u, has the stamp %016llx; I am client %u", ghost_place(w->lane, pv[i]),
				(unsigned long long)stamp_of(pv[i])->who, w->lane->client);
}

static void
make_refs(struct worker *w, void **pv, uint32_t n, slabc_ref *refs)
{
	uint32_t n_missing = 0;

	enter(w);
	for (uint32_t i = 0; i < n; i++) {
		refs[i] = slabc_ref_of(w->c, pv[i]);
		n_missing += refs[i] == 0;
	}
	leave(w);
	if (n_missing)
		fail(w, "slabc_ref_of %u objects of mine: %s", n_missing, slabc_last_error());
}

/* Allocation */

static uint32_t
room(const struct worker *w, uint32_t cache, uint32_t n)
{
	uint32_t max = ghost_max_held(cache), left = max - w->note.n_held[cache];

	return n < left ? n : left;
}

/* Most are shared from the start. */
static void
stamp_new(struct worker *w, uint32_t cache, uint32_t first, uint32_t n)
{
	void **held = &w->lane->held[cache][first];
	slabc_ref refs[GHOST_MAX_BATCH] = {0};

	w->note.n_held[cache] += n;
	w->note.n_allocated[cache] += n;
	begin(w, GHOST_STAMP, cache, first, n);
	if (below(w, 8))
		make_refs(w, held, n, refs);
	put_stamps(w, held, n, refs);
	idle(w);
}

static void
do_alloc(struct worker *w, uint32_t cache)
{
	uint32_t first = w->note.n_held[cache], n = room(w, cache, batch(w));
	int r = 0;

	if (n == 0)
		return;
	begin(w, GHOST_ALLOC, cache, first, n);
	enter(w);
	for (uint32_t done = 0; r == 0 && done < n; done += portion(n - done))
		r = slabc_alloc_bulk(w->k[cache], portion(n - done), &w->lane->held[cache][first + done]);
	leave(w);
	if (r < 0)
		fail(w, "slabc_alloc_bulk of %u: %s", n, slabc_last_error());
	stamp_new(w, cache, first, n);
}

/* One by one; or from a sheaf filled in advance. */
static void
do_alloc_each(struct worker *w, uint32_t cache, bool is_prefilled)
{
	uint32_t first = w->note.n_held[cache], n = room(w, cache, 1 + below(w, 32));
	void **held = &w->lane->held[cache][first];
	struct slabc_sheaf *sheaf = NULL;
	int r = 0;

	if (n == 0)
		return;
	memset(held, 0, n * sizeof held[0]);
	begin(w, GHOST_ALLOC_EACH, cache, first, n);
	enter(w);
	if (is_prefilled) {
		sheaf = slabc_prefill(w->k[cache], 1 + below(w, n));
		if (sheaf)
			r = slabc_refill(w->k[cache], &sheaf, n + below(w, 28));
		if (!sheaf || r < 0)
			fail(w, "a prefilled sheaf of %u: %s", n, slabc_last_error());
	}
	for (uint32_t i = 0; i < n; i++) {
		void *p = sheaf ? slabc_alloc_from(w->k[cache], sheaf) : slabc_alloc(w->k[cache]);

		if (!p)
			fail(w, "%s: %s", sheaf ? "slabc_alloc_from" : "slabc_alloc", slabc_last_error());
		atomic_write_release(&held[i], p);
	}
	slabc_return(w->k[cache], sheaf);
	leave(w);
	stamp_new(w, cache, first, n);
}

/* Free */

static void
do_free(struct worker *w, uint32_t cache, uint32_t n)
{
	void **held = w->lane->held[cache];
	uint32_t first;

	n = pick_window(w, cache, n, &first);
	if (n == 0)
		return;
	check_stamps(w, &held[first], n);
	begin(w, GHOST_FREE, cache, first, n);
	errno = 0;
	enter(w);
	for (uint32_t done = 0; done < n; done += portion(n - done))
		slabc_free_bulk(w->k[cache], portion(n - done), &held[first + done]);
	leave(w);
	if (errno)
		fail(w, "slabc_free_bulk of %u: %s", n, slabc_last_error());
	w->note.n_freed[cache] += n;
	close_gap(w);
}

static void
do_free_each(struct worker *w, uint32_t cache)
{
	void **held = w->lane->held[cache];
	uint32_t first, n = pick_window(w, cache, 1 + below(w, 32), &first);
	bool by_ref = below(w, 2);

	if (n == 0)
		return;
	check_stamps(w, &held[first], n);
	atomic_write(&w->lane->progress, 0);
	begin(w, GHOST_FREE_EACH, cache, first, n);
	errno = 0;
	enter(w);
	for (uint32_t i = 0; i < n; i++) {
		void *p = held[first + i];
		slabc_ref ref = by_ref ? stamp_of(p)->ref : 0;

		if (ref) {
			if (slabc_free_ref(w->c, ref) < 0)
				fail(w, "slabc_free_ref of an object of mine: %s", slabc_last_error());
		} else {
			slabc_free(w->k[cache], p);
		}
		atomic_write_release(&w->lane->progress, i + 1);
	}
	leave(w);
	if (errno)
		fail(w, "slabc_free of an object of mine: %s", slabc_last_error());
	w->note.n_freed[cache] += n;
	close_gap(w);
}

/* References */

static void
share_window(struct worker *w, uint32_t cache, uint32_t first, uint32_t n, slabc_ref *refs)
{
	void **held = &w->lane->held[cache][first];

	begin(w, GHOST_SHARE, cache, first, n);
	make_refs(w, held, n, refs);
	for (uint32_t i = 0; i < n; i++)
		stamp_of(held[i])->ref = refs[i];
	idle(w);
}

static void
do_share(struct worker *w, uint32_t cache)
{
	slabc_ref refs[GHOST_MAX_BATCH];
	uint32_t first, n = pick_window(w, cache, 1 + below(w, GHOST_MAX_BATCH), &first);

	if (n)
		share_window(w, cache, first, n, refs);
}

/* References to one's own objects must stand. */
static void
do_look(struct worker *w, uint32_t cache)
{
	uint32_t first, n = pick_window(w, cache, GHOST_MAX_BATCH, &first), n_wrong = 0;
	void **held = &w->lane->held[cache][first];

	begin(w, GHOST_LOOK, cache, first, n);
	enter(w);
	for (uint32_t i = 0; i < n; i++) {
		slabc_ref ref = stamp_of(held[i])->ref;

		if (ref && (slabc_deref(w->c, ref) != held[i] || !slabc_valid(w->c, ref) || slabc_adopt(w->c, ref) != held[i]))
			n_wrong++;
	}
	leave(w);
	if (n_wrong)
		fail(w, "%u references of objects of mine do not stand: %s", n_wrong, slabc_last_error());
	idle(w);
}

/* Rings */

static void
do_pass(struct worker *w, uint32_t cache)
{
	uint32_t to = (w->index + 1 + below(w, w->ghost->n_lanes - 1)) % w->ghost->n_lanes, first, n;
	struct ghost_ring *ring = &w->ghost->ring[w->index][to];
	uint32_t head = ring->head, left = GHOST_RING_ROOM - (head - atomic_read_acquire(&ring->tail));
	slabc_ref refs[GHOST_MAX_BATCH];

	n = 1 + below(w, 32);
	n = pick_window(w, cache, n < left ? n : left, &first);
	if (n == 0)
		return;
	check_stamps(w, &w->lane->held[cache][first], n);
	share_window(w, cache, first, n, refs);
	for (uint32_t i = 0; i < n; i++)
		ring->item[(head + i) % GHOST_RING_ROOM] = (struct ghost_item){.ref = refs[i], .sender = w->lane->client, .cache = cache};
	w->note.from = w->index;
	w->note.to = to;
	w->note.at = head;
	begin(w, GHOST_PASS, cache, first, n);
	atomic_write_release(&ring->head, head + n);
	close_gap(w);
}

/* Who passed it on has ended: then an object that is reclaimed may be gone. Else nothing excuses it. */
static void
must_be_gone(struct worker *w, const struct ghost_item *item, int error)
{
	if (error != ESTALE || !ghost_is_reclaimed(item->cache) || !ghost_has_ended(w->ghost, item->sender))
		fail(w, "object %016llx of cache %u, passed on by client %u, which is %s: %s", (unsigned long long)item->ref, item->cache,
			item->sender, ghost_has_ended(w->ghost, item->sender) ? "dead" : "alive", slabc_last_error());
	w->note.n_gone[item->cache]++;
}

/* must_stand: nobody but this worker could have freed it. */
static void
check_item(struct worker *w, const struct ghost_item *item, void *p, bool must_stand)
{
	struct ghost_stamp stamp = *stamp_of(p);

	if (ghost_place(w->lane, p) == (uint32_t)item->ref && stamp.who == ghost_who(item->sender, (uint32_t)item->ref) &&
		stamp.ref == item->ref)
		return;
	/* Else it may have been reclaimed meanwhile: the free will say so. */
	if (must_stand || slabc_valid(w->c, item->ref))
		fail(w, "object %016llx at place %u, passed on by client %u, has the stamp %016llx %016llx", (unsigned long long)item->ref,
			ghost_place(w->lane, p), item->sender, (unsigned long long)stamp.who, (unsigned long long)stamp.ref);
}

static void
adopt_items(struct worker *w, const struct ghost_item *items, uint32_t cache, uint32_t n)
{
	void *got[GHOST_MAX_BATCH];
	int error[GHOST_MAX_BATCH];
	uint32_t n_got = 0;

	enter(w);
	for (uint32_t i = 0; i < n; i++) {
		got[i] = slabc_adopt(w->c, items[i].ref);
		error[i] = got[i] ? 0 : errno;
	}
	leave(w);
	for (uint32_t i = 0; i < n; i++) {
		if (!got[i]) {
			must_be_gone(w, &items[i], error[i]);
			continue;
		}
		check_item(w, &items[i], got[i], true);
		stamp_of(got[i])->who = ghost_who(w->lane->client, (uint32_t)items[i].ref);
		w->lane->held[cache][w->note.n_held[cache] + n_got++] = got[i];
	}
	w->note.n_held[cache] += n_got;
}

static void
consume_by_ref(struct worker *w, const struct ghost_item *items, uint32_t cache, uint32_t n)
{
	void *got[GHOST_MAX_BATCH];
	int result[GHOST_MAX_BATCH];

	enter(w);
	for (uint32_t i = 0; i < n; i++)
		got[i] = slabc_deref(w->c, items[i].ref);
	leave(w);
	for (uint32_t i = 0; i < n; i++)
		if (got[i])
			check_item(w, &items[i], got[i], cache == GHOST_KEPT);
	enter(w);
	for (uint32_t i = 0; i < n; i++)
		result[i] = slabc_free_ref(w->c, items[i].ref);
	leave(w);
	for (uint32_t i = 0; i < n; i++) {
		if (result[i] < 0)
			must_be_gone(w, &items[i], -result[i]);
		else
			w->note.n_freed[cache]++;
	}
}

/* Of the default cache: whose maker died is there all the same. */
static void
consume_by_pointer(struct worker *w, const struct ghost_item *items, uint32_t n, bool is_bulk)
{
	void *got[GHOST_MAX_BATCH];

	enter(w);
	for (uint32_t i = 0; i < n; i++) {
		got[i] = slabc_deref(w->c, items[i].ref);
		if (!got[i])
			must_be_gone(w, &items[i], errno);
	}
	leave(w);
	for (uint32_t i = 0; i < n; i++)
		check_item(w, &items[i], got[i], true);
	errno = 0;
	enter(w);
	if (is_bulk)
		slabc_free_bulk(w->k[GHOST_KEPT], n, got);
	for (uint32_t i = 0; !is_bulk && i < n; i++)
		slabc_free(w->k[GHOST_KEPT], got[i]);
	leave(w);
	if (errno)
		fail(w, "free of objects of client %u: %s", items[0].sender, slabc_last_error());
	/* Valid with the next commit, by which they are out of the ring. */
	for (uint32_t i = 0; i < n; i++)
		w->lane->late[w->note.n_late++ % GHOST_MAX_LATE] = items[i].ref;
	w->note.n_freed[GHOST_KEPT] += n;
}

/* Takes some from the ring; false: it is empty. */
static bool
take_from(struct worker *w, uint32_t from)
{
	struct ghost_ring *ring = &w->ghost->ring[from][w->index];
	uint32_t tail = ring->tail, n_there = atomic_read_acquire(&ring->head) - tail, n = 0, kind = below(w, 4), cache;
	struct ghost_item items[GHOST_MAX_BATCH];
	bool adopts;

	while (n < n_there && n < GHOST_MAX_BATCH) {
		items[n] = ring->item[(tail + n) % GHOST_RING_ROOM];
		if (items[n].cache != items[0].cache)
			break;
		n++;
	}
	if (n == 0)
		return false;
	cache = items[0].cache;
	adopts = kind == 0 && room(w, cache, n) == n && w->ghost->phase == GHOST_PHASE_WORK;
	w->note.from = from;
	w->note.to = w->index;
	w->note.at = tail;
	begin(w, adopts ? GHOST_ADOPT : GHOST_CONSUME, cache, 0, n);
	if (adopts)
		adopt_items(w, items, cache, n);
	else if (cache == GHOST_KEPT && kind >= 2)
		consume_by_pointer(w, items, n, kind == 2);
	else
		consume_by_ref(w, items, cache, n);
	w->note.op = GHOST_TAKEN;
	ghost_commit(w->lane, &w->note);
	atomic_write_release(&ring->tail, tail + n);
	idle(w);
	return true;
}

/* Looks into two of the rings, or all. */
static bool
do_take(struct worker *w, bool is_thorough)
{
	uint32_t start = below(w, w->ghost->n_lanes);

	for (uint32_t i = 0; i < (is_thorough ? w->ghost->n_lanes : 2); i++)
		if (take_from(w, (start + i) % w->ghost->n_lanes))
			return true;
	return false;
}

/* Sessions */

static void
open_caches(struct worker *w)
{
	for (uint32_t i = 0; i < GHOST_CACHES; i++)
		if (slabc_cache_open(w->c, w->setup->cache_name[i], w->setup->object_size[i], &w->setup->cache[i], &w->k[i]) < 0)
			fail(w, "slabc_cache_open: %s", slabc_last_error());
}

static void
do_open(struct worker *w)
{
	struct slabc_options o = SLABC_OPTIONS_INIT;
	slabc_ref ref = 0;
	void *p;

	enter(w);
	o.socket = w->setup->socket;
	o.timeout_ms = w->setup->timeout_ms;
	if (slabc_open(&w->c, &o) < 0)
		fail(w, "slabc_open: %s", slabc_last_error());
	open_caches(w);
	leave(w);
	w->lane->client = slabc_client_id(w->c);
	/* Where place 0 is: an object that the lane need not know, as it is reclaimed. */
	w->lane->held[GHOST_RECLAIM][0] = NULL;
	begin(w, GHOST_ALLOC_EACH, GHOST_RECLAIM, 0, 1);
	p = slabc_alloc(w->k[GHOST_RECLAIM]);
	if (p)
		ref = slabc_ref_of(w->c, p);
	if (!ref)
		fail(w, "the first object: %s", slabc_last_error());
	w->lane->base = (uintptr_t)p - ((uintptr_t)(uint32_t)ref << LAYOUT_PLACE_SHIFT);
	slabc_free(w->k[GHOST_RECLAIM], p);
	idle(w);
}

static void
free_all(struct worker *w, uint32_t cache)
{
	while (w->note.n_held[cache])
		do_free(w, cache, GHOST_MAX_BATCH);
}

/* Ends the session as a death would, with the objects to be reclaimed still held; but the others' orphans would be nobody's. */
static void
do_close(struct worker *w)
{
	free_all(w, GHOST_KEPT);
	begin(w, GHOST_CLOSE, GHOST_RECLAIM, 0, 0);
	ghost_end_session(w->ghost, w->lane->client);
	enter(w);
	slabc_close(w->c);
	leave(w);
	for (uint32_t cache = 0; cache < GHOST_CACHES; cache++) {
		w->note.n_gone[cache] += w->note.n_held[cache];
		w->note.n_held[cache] = 0;
	}
	begin(w, GHOST_OPEN, 0, 0, 0);
}

static void
do_reopen_cache(struct worker *w, uint32_t cache)
{
	enter(w);
	slabc_cache_close(w->k[cache]);
	open_caches(w);
	/* The others were opened once more. */
	for (uint32_t i = 0; i < GHOST_CACHES; i++)
		if (i != cache)
			slabc_cache_close(w->k[i]);
	leave(w);
}

static void
do_one(struct worker *w, bool is_draining)
{
	/* Who spends most of the time with the churn waits for slabd's lock there; the others are to be killed elsewhere. */
	uint32_t one_in = w->index < GHOST_CHURNERS ? 24 : 6400, choice = below(w, 100000);
	uint32_t cache = below(w, one_in) ? below(w, 2) : GHOST_CHURN;

	if (choice < 68000 && below(w, ghost_max_held(cache)) >= w->note.n_held[cache])
		do_alloc(w, cache);
	else if (choice < 68000)
		do_free(w, cache, batch(w));
	else if (choice < 70000)
		do_alloc_each(w, cache, false);
	else if (choice < 70500)
		do_alloc_each(w, cache, true);
	else if (choice < 72000)
		do_free_each(w, cache);
	else if (choice < 73000)
		do_share(w, cache);
	else if (choice < 95000)
		do_look(w, cache);
	else if (choice < 97000 && !is_draining)
		do_pass(w, cache);
	else if (choice < 99999)
		do_take(w, is_draining);
	else if (below(w, 8))
		do_reopen_cache(w, cache);
	else {
		do_close(w);
		do_open(w);
	}
}

void
ghost_worker_run(struct ghost *ghost, uint32_t lane, const struct ghost_setup *setup, uint64_t seed)
{
	struct worker w = {.ghost = ghost, .lane = &ghost->lane[lane], .setup = setup, .index = lane, .random = seed | 1};
	uint32_t phase;

	w.note = *ghost_now(w.lane);
	do_open(&w);
	while ((phase = atomic_read_acquire(&ghost->phase)) != GHOST_PHASE_QUIT) {
		do_one(&w, phase == GHOST_PHASE_DRAIN);
		w.lane->n_steps++;
		if (w.lane->phase != phase)
			atomic_write_release(&w.lane->phase, phase);
	}
	while (do_take(&w, true))
		continue;
	for (uint32_t cache = 0; cache < GHOST_CACHES; cache++)
		free_all(&w, cache);
	do_close(&w);
	atomic_write_release(&w.lane->phase, GHOST_PHASE_QUIT);
	_exit(0);
}
