/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many objects in one call, and sheaves filled in advance.
 *
 * Bulk calls work in portions of what the main sheaf has, or has room for, at most CLIENT_PORTION: one bracket, one size store a portion.
 * The order is that of single calls (I1): all words named, then the size; all words closed, entries, the size, then the words cleared.  A
 * portion is cleared before its sheaf can change hands.  Others' objects go into the foreign sheaf as they are met;
 * what lies on another node is freed by itself.
 *
 * A prefilled sheaf is a slot with holder APP; struct slabc_sheaf is the application's, made with malloc.
 */
#include "client/internal.h"

#include <stdio.h>
#include <stdlib.h>

/* A free that a portion leaves to the single path, or reports. */
struct rest {
	void *p;
	bool is_double;
};

/* Objects of one portion of a bulk free. */
struct portion {
	uint32_t n;
	uint32_t place[CLIENT_PORTION];
	uint32_t *word[CLIENT_PORTION];
	uint32_t n_rest;
	struct rest rest[CLIENT_PORTION];
	bool is_foreign_full; /* the single path makes room for the next ones */
};

uint32_t
bulk_pop(struct slabc_cache *k, struct sheaf *s, uint32_t n, void **pv)
{
	uint32_t size, floor, n_named;

	if (s == &no_sheaf)
		return 0;
	sheaf_enter(s);
	size = atomic_read(&s->size);
	floor = atomic_read(&s->floor);
	n = size <= floor ? 0 : n < size - floor ? n : size - floor;
	if (MUTANT(SHRINK_FIRST)) {
		atomic_write(&s->size, size - n);
		STEP(BULK_ALLOC_NAMED);
	}
	for (n_named = 0; n_named < n; n_named++) {
		uint32_t place = atomic_read(&s->entry[size - 1 - n_named]);

		if (!k->is_wordless) {
			uint32_t *word = sheaf_word(&k->v, place), w = atomic_read(word);

			if ((w & WORD_LOW_MASK) != 0)
				break;
			atomic_write(word, w + k->v.birth);
		}
		pv[n_named] = k->v.base + ((uint64_t)place << LAYOUT_PLACE_SHIFT);
	}
	STEP(BULK_ALLOC_NAMED);
	/* order: SHEAF_SIZE release - the words name the owner before the sheaf lets go */
	if (n > 0)
		atomic_write_release(&s->size, size - n_named);
	sheaf_leave(s);
	for (uint32_t i = 0; k->debug && i < n_named; i++)
		debug_allocated(k, pv[i]);
	return n_named;
}

static int
alloc_bulk(struct slabc_cache *k, struct thread_block *tb, size_t n, void **pv, size_t *n_donep)
{
	int64_t deadline = 0;
	uint32_t n_dropped = 0;

	while (*n_donep < n) {
		size_t left = n - *n_donep;
		uint32_t n_here =
			bulk_pop(k, tb->main[k->v.index], left < CLIENT_PORTION ? (uint32_t)left : CLIENT_PORTION, pv + *n_donep);

		*n_donep += n_here;
		if (n_here == 0) {
			int r = thread_fetch(k, tb, &n_dropped, &deadline);

			if (r < 0)
				return r;
		} else {
			deadline = 0; /* each wait for slabd has its own */
		}
	}
	return 0;
}

static uint32_t
place_of(const struct slabc_cache *k, const void *p)
{
	return (uint32_t)((uint64_t)((const char *)p - k->v.base) >> LAYOUT_PLACE_SHIFT);
}

/* One object of a bulk free: closes its word if it is the client's own.  false: it is in the foreign sheaf, or goes to the rest. */
static bool
close_one(const struct slabc_cache *k, struct thread_cache *t, struct portion *portion, void *p, uint32_t *word)
{
	/* order: WORD acquire - what the last holder wrote */
	uint32_t w = word ? atomic_read_acquire(word) : 0;
	bool is_mine = word_owner(w) == k->v.me && !k->debug; /* a debug cache's frees are single */

	if (is_mine && word_state(w) == WORD_OWNED) {
		atomic_write(word, word_with(w, k->v.me, WORD_CLOSING));
		return true;
	}
	if (is_mine && word_state(w) != WORD_CLOSING && atomic_cas(word, &w, word_with(w, k->v.me, WORD_CLOSING)))
		return true;
	if (sheaf_is_foreign(&k->v, w)) {
		if (t->foreign && sheaf_push_foreign(t->foreign, t->record, place_of(k, p), word, w))
			return false;
		portion->is_foreign_full = k->is_late;
	}
	/* A pointer that comes twice is met CLOSING here; later it would be found free, or another's. */
	portion->rest[portion->n_rest++] = (struct rest){.p = p, .is_double = is_mine && word_state(w) == WORD_CLOSING};
	return false;
}

/* Closes what of pv is the client's own, up to the room in s.  Returns how many of pv were looked at. s is busy. */
static size_t
close_portion(const struct slabc_cache *k, struct thread_cache *t, struct portion *portion, uint32_t room, size_t n, void **pv)
{
	size_t i;

	for (i = 0; i < n && portion->n < room && portion->n_rest < CLIENT_PORTION && !portion->is_foreign_full; i++) {
		bool is_inside;
		uint32_t *word;

		if (!pv[i])
			continue;
		word = sheaf_word_at(&k->v, pv[i], &is_inside);
		if (word && node_is_away(k, t, place_of(k, pv[i]))) {
			portion->rest[portion->n_rest++] = (struct rest){.p = pv[i]};
			continue;
		}
		if (!(k->is_wordless && word) && !close_one(k, t, portion, pv[i], word))
			continue;
		portion->word[portion->n] = word;
		portion->place[portion->n++] = place_of(k, pv[i]);
	}
	return i;
}

static void
clear_portion(const struct slabc_cache *k, const struct portion *portion)
{
	for (uint32_t i = 0; i < portion->n && !k->is_wordless; i++) {
		/* order: WORD release - as in sheaf_push() */
		atomic_write_release(portion->word[i], word_cleared(atomic_read(portion->word[i])));
		if (i == 0)
			STEP(BULK_FREE_CLEARING);
	}
}

/* A rule broken at will: the sheaf goes to the barn, and then the words are cleared. */
static void
hand_over_first(struct slabc_cache *k, struct thread_block *tb, struct sheaf *s)
{
	struct thread_cache *t = &tb->cache[k->v.index];
	int32_t slot = t->main_slot;

	t->main_slot = CLIENT_NO_SLOT;
	atomic_write(&tb->main[k->v.index], &no_sheaf);
	barn_put(k, (uint32_t)slot, s, thread_holder(tb));
}

/* One bracket: as many of pv as main has room for.  Returns how many were looked at; 0: no room. */
static size_t
push_portion(struct slabc_cache *k, struct thread_block *tb, struct portion *portion, size_t n, void **pv)
{
	struct sheaf *s = tb->main[k->v.index];
	uint32_t size, limit, room;
	size_t n_seen = 0;

	portion->n = portion->n_rest = 0;
	portion->is_foreign_full = false;
	if (s == &no_sheaf)
		return 0;
	sheaf_enter(s);
	size = atomic_read(&s->size);
	limit = thread_limit(k, s);
	room = size < limit ? limit - size : 0;
	if (room > CLIENT_PORTION)
		room = CLIENT_PORTION;
	n_seen = close_portion(k, &tb->cache[k->v.index], portion, room, n, pv);
	STEP(FREE_CLOSED);
	if (MUTANT(CLEAR_FIRST)) {
		clear_portion(k, portion);
		STEP(BULK_FREE_GROWN);
	}
	for (uint32_t i = 0; i < portion->n; i++)
		atomic_write(&s->entry[size + i], portion->place[i]);
	/* order: SHEAF_SIZE release - the entries lie below the size that covers them */
	if (portion->n > 0)
		atomic_write_release(&s->size, size + portion->n);
	STEP(BULK_FREE_GROWN);
	if (MUTANT(HAND_OVER_BEFORE_CLEAR) && portion->n > 0 && size + portion->n == limit) {
		hand_over_first(k, tb, s);
		clear_portion(k, portion);
		return n_seen;
	}
	if (!MUTANT(CLEAR_FIRST))
		clear_portion(k, portion);
	sheaf_leave(s);
	return n_seen;
}

/* There is no room: each goes its own way, and what finds none is put off. */
static int
free_each(struct slabc_cache *k, struct thread_block *tb, size_t n, void **pv)
{
	int result = 0;

	for (size_t i = 0; i < n; i++) {
		int64_t deadline = 0;
		int r = pv[i] ? thread_free_one(k, tb, pv[i], &deadline) : 0;

		if (r < 0)
			result = r;
	}
	return result;
}

static int
free_bulk(struct slabc_cache *k, struct thread_block *tb, size_t n, void **pv)
{
	int64_t deadline = 0;
	int r, result = 0;

	for (size_t n_done = 0; n_done < n;) {
		struct portion portion;
		size_t n_seen = push_portion(k, tb, &portion, n - n_done, pv + n_done);

		n_done += n_seen;
		for (uint32_t i = 0; i < portion.n_rest; i++) {
			r = portion.rest[i].is_double ? thread_fault(k, FAULT_DOUBLE, portion.rest[i].p)
						      : thread_free_one(k, tb, portion.rest[i].p, &deadline);
			if (r < 0)
				result = r;
		}
		if (portion.n > 0)
			thread_settle(k, tb, &deadline);
		if (n_seen == 0) {
			if (thread_make_room(k, tb, &deadline) < 0)
				return free_each(k, tb, n - n_done, pv + n_done);
		} else {
			deadline = 0;
		}
	}
	return result;
}

/* All or none: what was given so far goes back; where that finds no room, slabd being silent, it is owed (owed.c). */
static int
alloc_or_undo(struct slabc_cache *k, struct thread_block *tb, size_t n, void **pv)
{
	size_t n_done = 0;
	int r;

	r = alloc_bulk(k, tb, n, pv, &n_done);
	if (r < 0) {
		char sentence[CLIENT_SENTENCE_BYTES];

		snprintf(sentence, sizeof(sentence), "%s", slabc_last_error());
		free_bulk(k, tb, n_done, pv);
		error_set(-r, "%s", sentence);
	}
	return r;
}

/* Made by single calls: a cache without sheaves, or a nested call. */
static int
alloc_each(struct slabc_cache *k, size_t n, void **pv, size_t *n_donep)
{
	for (; *n_donep < n; ++*n_donep) {
		pv[*n_donep] = slabc_alloc(k);
		if (!pv[*n_donep])
			return -errno;
	}
	return 0;
}

int
slabc_alloc_bulk(struct slabc_cache *k, size_t n, void **pv)
{
	int error = errno, r;
	struct thread_block *tb;
	size_t n_done = 0;

	if (n == 0)
		return 0;
	r = cache_usable(k);
	if (r < 0)
		return r;
	if (thread_enter(k)) {
		r = thread_get(k, &tb);
		if (r == 0) {
			thread_drain(tb);
			owed_pay(k, tb);
			r = alloc_or_undo(k, tb, n, pv);
		}
		thread_leave();
	} else {
		r = alloc_each(k, n, pv, &n_done);
		if (r < 0)
			slabc_free_bulk(k, n_done, pv);
	}
	errno = error;
	return r;
}

void
slabc_free_bulk(struct slabc_cache *k, size_t n, void **pv)
{
	int error = errno, r = cache_usable(k);
	struct thread_block *tb;

	if (n == 0)
		return;
	if (r == 0 && thread_enter(k)) {
		r = thread_get(k, &tb);
		if (r == 0) {
			thread_drain(tb);
			owed_pay(k, tb);
			r = free_bulk(k, tb, n, pv);
		}
		thread_leave();
	} else if (r == 0) {
		errno = 0;
		for (size_t i = 0; i < n; i++)
			slabc_free(k, pv[i]);
		r = -errno;
	}
	errno = r < 0 ? -r : error;
}

/* Prefilled sheaves */

/* The holder's sheaf becomes the application's; false: slabd has it. */
static bool
app_give(struct slabc_cache *k, uint32_t holder, int32_t slot)
{
	atomic_write(&k->c->is_with_app[slot], 1);
	if (barn_take(&k->c->slots[slot], holder, LAYOUT_HOLDER_APP))
		return true;
	atomic_write(&k->c->is_with_app[slot], 0);
	return false;
}

void
app_put(struct slabc_cache *k, uint32_t slot, struct sheaf *s)
{
	/* While a sheaf is the application's, and not known to be, reconnect.c would give it back. */
	if (!barn_take(&k->c->slots[slot], LAYOUT_HOLDER_APP, LAYOUT_HOLDER_BORROWED))
		return;
	atomic_write(&k->c->is_with_app[slot], 0);
	barn_put(k, slot, s, LAYOUT_HOLDER_BORROWED);
}

/* A sheaf of the usual size with n objects: the thread's spare, or one of the barn. */
static int32_t
take_cached(struct slabc_cache *k, struct thread_block *tb, uint32_t n, struct sheaf **sheafp)
{
	struct thread_cache *t = &tb->cache[k->v.index];
	int32_t slot = t->spare_slot;

	if (slot != CLIENT_NO_SLOT && sheaf_look(t->spare) >= (int32_t)n) {
		struct sheaf *s = t->spare;

		STEP(PREFILL_LOOKED);
		t->spare = NULL;
		t->spare_slot = CLIENT_NO_SLOT;
		if (sheaf_shut(k, (uint32_t)slot, s, thread_holder(tb)) && app_give(k, thread_holder(tb), slot)) {
			sheaf_open(k, s, (uint32_t)slot);
			*sheafp = s;
			return slot;
		}
	}
	/* Not as the thread's: slabd could call it in. */
	slot = barn_get(k, &k->shown->full, LAYOUT_HOLDER_BORROWED, sheafp);
	if (slot == CLIENT_NO_SLOT)
		return slot;
	if (sheaf_look(*sheafp) >= (int32_t)n && app_give(k, LAYOUT_HOLDER_BORROWED, slot))
		return slot;
	barn_put(k, (uint32_t)slot, *sheafp, LAYOUT_HOLDER_BORROWED);
	return CLIENT_NO_SLOT;
}

/* Only from inside. */
static int
prefill(struct slabc_cache *k, size_t n, struct slabc_sheaf *made)
{
	struct thread_block *tb;
	int32_t slot = CLIENT_NO_SLOT;
	int64_t deadline = 0;
	int r;

	if (n < 1 || n > SLABC_MAX_PREFILL)
		return error_set(EINVAL, "prefill of %zu objects: 1 to %d", n, SLABC_MAX_PREFILL);
	r = thread_get(k, &tb);
	if (r < 0)
		return r;
	thread_drain(tb);
	owed_pay(k, tb);
	*made = (struct slabc_sheaf){.k = k};
	if (!k->is_single && n <= atomic_read(&k->capacity))
		slot = take_cached(k, tb, (uint32_t)n, &made->sheaf);
	if (slot != CLIENT_NO_SLOT) {
		made->slot = (uint32_t)slot;
		return 0;
	}
	r = cache_prefill(k, (uint32_t)n, 0, &made->slot, session_deadline(k->c, &deadline));
	if (r < 0)
		return r;
	made->sheaf = mapping_sheaf(k->c, made->slot);
	sheaf_open(k, made->sheaf, made->slot);
	return 0;
}

static int
prefill_checked(struct slabc_cache *k, size_t n, struct slabc_sheaf *made)
{
	int r = cache_usable(k);

	if (r < 0)
		return r;
	if (!thread_enter(k))
		return error_set(EAGAIN, "prefill in a signal handler that interrupted the library");
	r = prefill(k, n, made);
	thread_leave();
	return r;
}

struct slabc_sheaf *
slabc_prefill(struct slabc_cache *k, size_t n)
{
	struct slabc_sheaf *s = malloc(sizeof(*s));
	int error = errno, r;

	if (!s)
		return error_null(error_set(ENOMEM, "no memory for a prefilled sheaf"));
	r = prefill_checked(k, n, s);
	if (r < 0) {
		free(s);
		return error_null(r);
	}
	errno = error;
	return s;
}

/* A prefilled sheaf gave nothing: is there an object in it? */
static bool
is_worth_trying(struct slabc_cache *k, struct sheaf *s, uint32_t *triesp)
{
	int32_t n = sheaf_look(s);

	if (n == 0 || ++*triesp > CLIENT_REVOKED_TRIES)
		return false;
	/* It was the thread's spare when slabd chose it: slabd will find that it has changed hands, and let it be. */
	if (n < 0)
		sheaf_pause();
	else
		thread_drop_top(k, s);
	return true;
}

void *
slabc_alloc_from(struct slabc_cache *k, struct slabc_sheaf *s)
{
	uint32_t tries = 0;
	int r = cache_usable(k);
	void *p;

	if (r < 0)
		return error_null(r);
	if (!s || s->k != k)
		return error_null(error_set(EINVAL, "the sheaf is of another cache"));
	do {
		p = sheaf_take(k, s->sheaf);
		if (p)
			return p;
	} while (is_worth_trying(k, s->sheaf, &tries));
	return error_null(error_set(ENOMEM, "the prefilled sheaf is empty: slabc_refill() it"));
}

void
slabc_return(struct slabc_cache *k, struct slabc_sheaf *s)
{
	int error = errno;

	if (!s)
		return;
	if (cache_usable(k) == 0 && thread_enter(k)) {
		app_put(k, s->slot, s->sheaf);
		thread_leave();
	}
	free(s);
	errno = error;
}

int
slabc_refill(struct slabc_cache *k, struct slabc_sheaf **sp, size_t n)
{
	struct slabc_sheaf made, *s = *sp;
	int error = errno, r = cache_usable(k);

	if (r < 0)
		return r;
	if (!s) {
		s = slabc_prefill(k, n);
		if (!s)
			return -errno;
		*sp = s;
		return 0;
	}
	if (s->k != k)
		return error_set(EINVAL, "the sheaf is of another cache");
	if (n <= SLABC_MAX_PREFILL && atomic_read(&s->sheaf->size) >= n)
		return 0;
	r = prefill_checked(k, n, &made);
	if (r < 0)
		return r;
	if (thread_enter(k)) {
		app_put(k, s->slot, s->sheaf);
		thread_leave();
	}
	*s = made;
	errno = error;
	return 0;
}
