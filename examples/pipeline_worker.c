/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Readers and counters: processes of their own, each with its own session, that meet in slabd's memory.
 *
 * A reader makes an object of each word of its share, asks for its reference and puts that into the ring of the counter that the word's
 * hash names. It leaves when it has put the last one: what it made stays, under its name, as an orphan of a default cache, until a counter
 * has freed it. (SLABC_RECLAIM would be wrong here: with the reader's end its words would be freed under the counters' hands.)
 *
 * A counter resolves, reads, counts, frees, and moves the ring's tail, in this order.  Where it stands is in the memfd, what it holds is
 * known to slabd: so it keeps nothing that a successor cannot find.  The successor looks at the first reference of each ring with care
 * (counter_handle_again): all but one of them are untouched, and that one was perhaps counted, perhaps freed.
 *
 * A counter's free of a reader's object may take effect a little later, in a batch (slabc_free); when the counter dies, slabd finishes it.
 */
#include "pipeline.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct worker {
	const struct role *role;
	struct area *area;
	struct slabc *c;
	struct slabc_cache *cache;
	char name[32];
};

static int
worker_fail(const struct worker *w, const char *what, int error)
{
	fprintf(stderr, "pipeline: %s: %s: %s (%s)\n", w->name, what, strerror(error), slabc_last_error());
	return -error;
}

static int
worker_open(struct worker *w, const struct role *role, const char *kind)
{
	struct slabc_options opt = SLABC_OPTIONS_INIT;
	char cache[32];
	int r;

	w->role = role;
	w->area = role->area;
	snprintf(w->name, sizeof(w->name), "%s %u", kind, role->number);
	opt.socket = role->socket;
	opt.label = w->name;
	opt.timeout_ms = 10000;
	r = slabc_open(&w->c, &opt);
	if (r < 0)
		return worker_fail(w, "slabc_open", -r);
	area_cache_name(w->area, cache, sizeof(cache));
	r = slabc_cache_open(w->c, cache, w->area->object_bytes, NULL, &w->cache);
	if (r < 0)
		return worker_fail(w, "slabc_cache_open", -r);
	return 0;
}

static bool
worker_is_stopped(const struct worker *w)
{
	return __atomic_load_n(&w->area->is_stopped, __ATOMIC_RELAXED) != 0;
}

/* A reader's side of its rings: head as it will be, ahead of what is shown by up to a batch. */
struct reader {
	struct worker w;
	uint64_t head[AREA_MAX_COUNTERS];
	uint64_t shown[AREA_MAX_COUNTERS];
	uint64_t room[AREA_MAX_COUNTERS]; /* head may grow to here, as last seen */
};

static void
reader_publish(struct reader *rd, unsigned counter)
{
	struct area *a = rd->w.area;

	if (rd->shown[counter] == rd->head[counter])
		return;
	/* order: RING_HEAD release - references, and the words they name, are there before head covers them */
	__atomic_store_n(&area_ring(a, rd->w.role->number, counter)->head, rd->head[counter], __ATOMIC_RELEASE);
	rd->shown[counter] = rd->head[counter];
	bell_ring(&a->counters[counter].work);
}

static void
reader_publish_all(struct reader *rd)
{
	for (unsigned i = 0; i < rd->w.area->n_counters; i++)
		reader_publish(rd, i);
}

static bool
reader_has_room(struct reader *rd, unsigned counter)
{
	struct ring *ring = area_ring(rd->w.area, rd->w.role->number, counter);

	/* order: RING_TAIL acquire - pairs with counter_pass(): the slot was read before it is written again */
	rd->room[counter] = __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE) + AREA_RING_ENTRIES;
	return rd->head[counter] < rd->room[counter];
}

/* Sleeps until the ring has room, or the gate is open; false: the parent has stopped the work. */
static bool
reader_wait(struct reader *rd, const unsigned *full_counter)
{
	struct area *a = rd->w.area;
	struct bell *bell = &a->readers[rd->w.role->number].room;

	reader_publish_all(rd);
	for (;;) {
		uint32_t heard = bell_listen(bell);

		if (full_counter ? reader_has_room(rd, *full_counter) : !__atomic_load_n(&a->is_gated, __ATOMIC_RELAXED)) {
			bell_wake_up(bell);
			return true;
		}
		if (worker_is_stopped(&rd->w))
			return false;
		bell_sleep(bell, heard);
	}
}

/* Makes the word an object and puts its reference into the ring of its counter. */
static int
reader_put(struct reader *rd, const char *text, uint32_t n_bytes)
{
	struct area *a = rd->w.area;
	unsigned counter = (unsigned)(text_hash(text, n_bytes) % a->n_counters);
	struct word *word;
	slabc_ref ref;

	if (rd->head[counter] == rd->room[counter] && !reader_has_room(rd, counter) && !reader_wait(rd, &counter))
		return -ECANCELED;
	word = slabc_alloc(rd->w.cache);
	if (!word)
		return worker_fail(&rd->w, "slabc_alloc", errno);
	word->n_bytes = n_bytes;
	memcpy(word->text, text, n_bytes);
	ref = slabc_ref_of(rd->w.c, word);
	if (ref == 0)
		return worker_fail(&rd->w, "slabc_ref_of", errno);
	area_ring(a, rd->w.role->number, counter)->slot[rd->head[counter] % AREA_RING_ENTRIES] = ref;
	rd->head[counter]++;
	if (rd->head[counter] - rd->shown[counter] == AREA_PUBLISH_BATCH)
		reader_publish(rd, counter);
	return 0;
}

/* Words n_words * number / n_readers up to the next reader's first one. */
static int
reader_read(struct reader *rd)
{
	struct area *a = rd->w.area;
	struct area_reader *me = &a->readers[rd->w.role->number];
	uint64_t first = a->n_words * rd->w.role->number / a->n_readers;
	uint64_t share = a->n_words * (rd->w.role->number + 1) / a->n_readers - first;
	size_t max_bytes = a->object_bytes - sizeof(struct word);
	char text[SLABC_MAX_OBJECT_BYTES];

	for (uint64_t i = 0; i < first; i++)
		text_next(rd->w.role->text, text, max_bytes);
	for (uint64_t i = 0; i < share; i++) {
		size_t n_bytes = text_next(rd->w.role->text, text, max_bytes);
		int r;

		if (n_bytes == 0 || n_bytes > max_bytes)
			return worker_fail(&rd->w, "the files have changed", EIO);
		if (i == share * 3 / 4 && !reader_wait(rd, NULL))
			return -ECANCELED;
		r = reader_put(rd, text, (uint32_t)n_bytes);
		if (r < 0)
			return r;
		__atomic_store_n(&me->n_made, me->n_made + 1, __ATOMIC_RELAXED);
	}
	reader_publish_all(rd);
	for (unsigned i = 0; i < a->n_counters; i++) {
		/* order: RING_CLOSED release - the last head is visible to who sees the ring closed */
		__atomic_store_n(&area_ring(a, rd->w.role->number, i)->is_closed, 1, __ATOMIC_RELEASE);
		bell_ring(&a->counters[i].work);
	}
	return 0;
}

int
reader_main(const struct role *role)
{
	struct reader rd = {0};
	int r;

	r = worker_open(&rd.w, role, "reader");
	if (r == 0)
		r = reader_read(&rd);
	slabc_close(rd.w.c);
	return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* A counter's way through one ring. */
struct lane {
	struct ring *ring;
	uint64_t tail;
	bool is_first; /* a predecessor may have begun with what is at tail */
};

struct counter {
	struct worker w;
	struct lane lanes[AREA_MAX_READERS];
};

static void
counter_pass(struct lane *lane)
{
	/* order: RING_TAIL release - the object was counted and freed, and its slot read, before anybody sees it passed */
	__atomic_store_n(&lane->ring->tail, ++lane->tail, __ATOMIC_RELEASE);
}

static int
counter_finish(struct counter *ct, unsigned reader, struct word *word)
{
	struct lane *lane = &ct->lanes[reader];
	struct area_counter *me = &ct->w.area->counters[ct->w.role->number];
	int r;

	r = table_count(ct->w.area, ct->w.role->number, reader, lane->tail, word);
	if (r < 0)
		return worker_fail(&ct->w, "table full: the files have changed", -r);
	errno = 0;
	slabc_free(ct->w.cache, word);
	if (errno != 0)
		return worker_fail(&ct->w, "slabc_free", errno);
	__atomic_store_n(&me->n_freed, me->n_freed + 1, __ATOMIC_RELAXED);
	counter_pass(lane);
	return 0;
}

/*
 * The first reference of a ring, where a predecessor may have stopped at any instruction.  It cannot be read as it is: the predecessor's
 * free may be under way, and slabd finishes it at a time of its own.  So become its owner, or learn that it is gone.
 *
 *   adopted: ours alone; counted unless its cell says so, and freed.
 *   ESTALE:  freed already, so it was counted; passed.
 */
static int
counter_handle_again(struct counter *ct, unsigned reader, slabc_ref ref)
{
	struct area_counter *me = &ct->w.area->counters[ct->w.role->number];
	struct word *word = slabc_adopt(ct->w.c, ref);

	if (word) {
		me->n_adopted++;
		return counter_finish(ct, reader, word);
	}
	if (errno != ESTALE)
		return worker_fail(&ct->w, "slabc_adopt", errno);
	me->n_found_freed++;
	counter_pass(&ct->lanes[reader]);
	return 0;
}

static int
counter_handle(struct counter *ct, unsigned reader, slabc_ref ref)
{
	struct lane *lane = &ct->lanes[reader];
	struct word *word;

	if (lane->is_first) {
		lane->is_first = false;
		return counter_handle_again(ct, reader, ref);
	}
	word = slabc_deref(ct->w.c, ref);
	if (!word)
		return worker_fail(&ct->w, "slabc_deref", errno);
	return counter_finish(ct, reader, word);
}

/* Handles what is there, at most a batch. Returns how many, or -errno; *is_donep: closed and empty. */
static int
counter_look(struct counter *ct, unsigned reader, bool *is_donep)
{
	struct lane *lane = &ct->lanes[reader];
	/* order: RING_CLOSED acquire - pairs with reader_read(): head, read next, is the last one if this is set */
	bool is_closed = __atomic_load_n(&lane->ring->is_closed, __ATOMIC_ACQUIRE) != 0;
	/* order: RING_HEAD acquire - pairs with reader_publish() */
	uint64_t head = __atomic_load_n(&lane->ring->head, __ATOMIC_ACQUIRE);
	int n = 0;

	for (; lane->tail != head && n < AREA_HANDLE_BATCH; n++) {
		int r = counter_handle(ct, reader, lane->ring->slot[lane->tail % AREA_RING_ENTRIES]);

		if (r < 0)
			return r;
	}
	if (n > 0)
		bell_ring(&ct->w.area->readers[reader].room);
	*is_donep = is_closed && lane->tail == head;
	return n;
}

/* One look at every ring. Returns how many references were handled, or -errno; *is_donep: every ring is closed and empty. */
static int
counter_round(struct counter *ct, bool *is_donep)
{
	int n_handled = 0;

	*is_donep = true;
	for (unsigned i = 0; i < ct->w.area->n_readers; i++) {
		bool is_done;
		int n = counter_look(ct, i, &is_done);

		if (n < 0)
			return n;
		n_handled += n;
		*is_donep = *is_donep && is_done;
	}
	return n_handled;
}

/* Sleeps if a look after saying so finds nothing either. As counter_round(). */
static int
counter_wait(struct counter *ct, bool *is_donep)
{
	struct bell *bell = &ct->w.area->counters[ct->w.role->number].work;
	uint32_t heard = bell_listen(bell);
	int n = counter_round(ct, is_donep);

	if (n != 0 || *is_donep)
		bell_wake_up(bell);
	else
		bell_sleep(bell, heard);
	return n;
}

static int
counter_count(struct counter *ct)
{
	struct area *a = ct->w.area;
	bool is_done = false;

	for (unsigned i = 0; i < a->n_readers; i++) {
		ct->lanes[i].ring = area_ring(a, i, ct->w.role->number);
		ct->lanes[i].tail = ct->lanes[i].ring->tail;
		ct->lanes[i].is_first = ct->w.role->is_successor;
	}
	while (!is_done) {
		int n = counter_round(ct, &is_done);

		if (n == 0 && !is_done)
			n = counter_wait(ct, &is_done);
		if (n < 0)
			return n;
		if (worker_is_stopped(&ct->w))
			return -ECANCELED;
	}
	return 0;
}

int
counter_main(const struct role *role)
{
	struct counter ct = {0};
	int r;

	r = worker_open(&ct.w, role, "counter");
	if (r == 0)
		r = counter_count(&ct);
	slabc_close(ct.w.c);
	return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
