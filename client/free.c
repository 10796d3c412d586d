/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Free: the hot function, and what it refuses.
 *
 * Another client's object goes into the foreign sheaf, and is claimed later (foreign.c).  Any other is judged by its word (free_judge()), then
 * freed in one bracket (free_push()): close or claim the word, entry, size, clear (I1, I1b); so is another's where there is no foreign sheaf:
 * by reference, from a handler that interrupted the library, in a cache without sheaves, when none is to be had.  Room is made before the word
 * is touched: if no sheaf can be had the free is put off (owed.c).  What was refused is counted, and reported to slabd at each power of two.
 */
#include "client/internal.h"

enum {
	MAX_LOST_CLAIMS = 4096, /* of one free: who loses more often is being played with */
};

enum { FREE_E_FULL = 1, FREE_E_LOST = 2 };

/* What is to be freed. */
struct free_target {
	uint32_t *word;
	uint32_t place;
	uint32_t generation; /* of the reference; by pointer: as first read */
	bool is_exact;       /* by reference */
	bool has_generation;
	enum fault fault; /* why it was refused, if by pointer */
};

/* In an arena of several nodes: where the object lies decides into which sheaf it goes. */
static bool
free_noded(struct slabc_cache *k, struct thread_block *tb, void *p, uint32_t **wordp)
{
	struct thread_cache *t = &tb->cache[k->v.index];
	uint64_t place = (uint64_t)((char *)p - k->v.base) >> LAYOUT_PLACE_SHIFT;
	struct sheaf *s = node_is_away(k, t, (uint32_t)place) ? t->away : tb->main[k->v.index];

	if (!s)
		return false;
	return k->is_wordless ? sheaf_push_wordless(&k->v, s, sheaf_offset(&k->v, p), k->mark)
			      : sheaf_push_marked(&k->v, s, sheaf_offset(&k->v, p), k->mark, wordp);
}

/* For want of room, if that was it: from what the process has. */
static bool
free_quick(struct slabc_cache *k, void *p)
{
	struct thread_block *tb = thread_enter_quick(k);
	uint64_t off = sheaf_offset(&k->v, p);
	bool is_done = false;
	int error = errno;
	uint32_t *word;

	if (!tb)
		return false;
	if (thread_make_room_now(k, tb))
		is_done = k->is_wordless ? sheaf_push_wordless(&k->v, tb->main[k->v.index], off, k->mark)
					 : sheaf_push_marked(&k->v, tb->main[k->v.index], off, k->mark, &word);
	thread_leave();
	errno = error;
	return is_done;
}

/* What is neither for the main sheaf nor, its word known, for the foreign one.  word NULL: not looked for yet. */
static __attribute__((noinline)) void
free_rest(struct slabc_cache *k, void *p, uint32_t *word)
{
	struct thread_block *tb = tls.block;
	struct thread_cache *t = tb ? &tb->cache[k->v.index] : NULL;

	if (!word && !k->debug && free_quick(k, p))
		return;
	if (t && (k->mark & SHEAF_NODED) && free_noded(k, tb, p, &word))
		return;
	if (t && t->foreign) {
		bool is_inside;
		uint32_t w;

		if (!word)
			word = sheaf_word_at(&k->v, p, &is_inside);
		w = word ? atomic_read(word) : 0;
		if (sheaf_is_foreign(&k->v, w) &&
			sheaf_push_foreign(t->foreign, t->record, (uint32_t)((uint64_t)((char *)p - k->v.base) >> LAYOUT_PLACE_SHIFT), word, w))
			return;
	}
	thread_free_slow(k, p);
}

/* Another's object that has not come into the foreign sheaf: for want of room, if that was it, into a new one, from what the process has. */
static __attribute__((noinline)) void
free_foreign(struct slabc_cache *k, void *p, uint32_t *word)
{
	struct thread_block *tb = thread_enter_quick(k);
	bool is_done = false;
	int error = errno;

	if (tb) {
		struct thread_cache *t = &tb->cache[k->v.index];
		uint32_t w = atomic_read(word);

		is_done = sheaf_is_foreign(&k->v, w) && foreign_change_now(k, tb) &&
			  sheaf_push_foreign(t->foreign, t->record, (uint32_t)(sheaf_offset(&k->v, p) >> LAYOUT_PLACE_SHIFT), word, w);
		thread_leave();
		errno = error;
	}
	if (!is_done)
		free_rest(k, p, word);
}

/* What is not for the main sheaf: first of all what is for the foreign one. */
static __attribute__((noinline)) void
free_other(struct slabc_cache *k, void *p, uint32_t *word)
{
	struct thread_block *tb = tls.block;

	if (word && tb && tb->cache[k->v.index].foreign) {
		struct thread_cache *t = &tb->cache[k->v.index];
		uint32_t w = atomic_read(word);

		if (sheaf_is_foreign(&k->v, w)) {
			if (!sheaf_push_foreign(t->foreign, t->record, (uint32_t)(sheaf_offset(&k->v, p) >> LAYOUT_PLACE_SHIFT), word, w))
				free_foreign(k, p, word);
			return;
		}
	}
	free_rest(k, p, word);
}

CLIENT_HOT void
slabc_free(struct slabc_cache *k, void *p)
{
	uint32_t *word;

	if (!sheaf_free(&k->v, tls.main[k->v.index], &p, &word))
		free_other(k, p, word);
}

static uint64_t *
fault_counter(struct slabc_cache *k, enum fault kind)
{
	switch (kind) {
	case FAULT_DOUBLE:
		return &k->shown->n_double_frees;
	case FAULT_WILD:
		return &k->shown->n_wild_frees;
	case FAULT_MISALIGNED:
		return &k->shown->n_misaligned_frees;
	default:
		return &k->shown->n_refused_frees;
	}
}

/* Is it an object of another cache, whose handle should have been used? */
static const char *
other_cache(const struct slabc_cache *k, const void *p)
{
	uint64_t off = (uint64_t)((const char *)p - k->c->base);
	uint32_t cache, *word;

	if (off >= k->c->span || off % (1u << LAYOUT_PLACE_SHIFT) ||
		!ref_find_word(k->c, (uint32_t)(off >> LAYOUT_PLACE_SHIFT), &cache, &word) || cache == k->v.cache)
		return NULL;
	return k->c->caches[cache].name;
}

static int
fault_count(struct slabc_cache *k, enum fault kind, const void *p, uint64_t *np)
{
	static const char *const sentences[] = {
		[FAULT_NONE] = "",
		[FAULT_DOUBLE] = "it is free already, or being freed",
		[FAULT_WILD] = "it is no object of this cache",
		[FAULT_MISALIGNED] = "it points into an object, not at its first byte",
		[FAULT_REFUSED] = "another client holds it: it must be shared (slabc_ref_of), and in a SLABC_RECLAIM cache adopted or "
				  "freed by reference",
	};

	const char *other = kind == FAULT_WILD ? other_cache(k, p) : NULL;

	*np = atomic_add(fault_counter(k, kind), 1) + 1;
	if (other)
		return error_set(EINVAL, "free of %p in cache '%s' refused: it is no object of this cache: it is one of cache '%.47s'", p, k->name, other);
	return error_set(EINVAL, "free of %p in cache '%s' refused: %s", p, k->name, sentences[kind]);
}

int
thread_fault(struct slabc_cache *k, enum fault kind, const void *p)
{
	union proto_request request = {.fault = {.cache = k->v.cache, .kind = kind, .place = (uint64_t)((const char *)p - k->v.base)}};
	uint64_t n;
	int r = fault_count(k, kind, p, &n);

	request.fault.n = n;
	if (k->debug)
		debug_tell(k, kind, p, n);
	else if ((n & (n - 1)) == 0)
		session_post(k->c, PROTO_OP_FAULT, &request);
	return r;
}

static int
free_refuse(struct free_target *f, enum fault fault)
{
	f->fault = fault;
	if (!f->is_exact)
		return -EINVAL; /* thread_fault() has the sentence */
	return fault == FAULT_REFUSED ? error_set(EINVAL, "another client holds the object, and has not shared it")
				      : error_set(ESTALE, "the object has been freed since the reference was made");
}

/* May it be freed, the word being w? */
static int
free_judge(const struct slabc_cache *k, struct free_target *f, uint32_t w)
{
	if (word_owner(w) == 0 || word_state(w) == WORD_CLOSING)
		return free_refuse(f, FAULT_DOUBLE);
	if (!f->has_generation) {
		f->generation = word_generation(w);
		f->has_generation = true;
	}
	if (f->generation != word_generation(w) && !(MUTANT(POINTER_FREE) && f->is_exact))
		return free_refuse(f, FAULT_DOUBLE);
	if (word_owner(w) == k->v.me)
		return 0;
	if (word_state(w) != WORD_SHARED || (!f->is_exact && (k->flags & SLABC_RECLAIM)))
		return free_refuse(f, FAULT_REFUSED);
	return 0;
}

/* Two rules broken at will: the entry first, and the claim or the closing after it. */
static int
free_push_first(const struct free_target *f, struct sheaf *s, uint32_t n, uint32_t w)
{
	int r = 0;

	atomic_write(&s->entry[n], f->place);
	atomic_write_release(&s->size, n + 1);
	STEP(FREE_GROWN);
	if (!atomic_cas(f->word, &w, word_cleared(w))) {
		atomic_write_release(&s->size, n);
		r = FREE_E_LOST;
	}
	sheaf_leave(s);
	return r;
}

/* Frees into s from exactly w, which was judged.  FREE_E_FULL, FREE_E_LOST: the word is no longer w; nothing has changed. */
static int
free_push(struct slabc_cache *k, struct sheaf *s, const struct free_target *f, uint32_t w)
{
	bool is_foreign = word_owner(w) != k->v.me, is_owned = !is_foreign && word_state(w) == WORD_OWNED;
	uint32_t n, old = w;

	if (s == &no_sheaf)
		return FREE_E_FULL;
	sheaf_enter(s);
	n = atomic_read(&s->size);
	if (n >= thread_limit(k, s)) {
		sheaf_leave(s);
		return FREE_E_FULL;
	}
	STEP(CLAIM_READ);
	if ((MUTANT(PUSH_FIRST) && is_foreign) || (MUTANT(FREE_NOT_CLOSED) && !is_foreign && !is_owned))
		return free_push_first(f, s, n, w);
	if (is_owned) {
		/* Nobody else may take it: a plain store closes it. */
		atomic_write(f->word, word_with(w, k->v.me, WORD_CLOSING));
	} else if (!atomic_cas(
			   f->word, &old, MUTANT(CLAIM_TO_ZERO) && is_foreign ? word_cleared(w) : word_with(w, k->v.me, WORD_CLOSING))) {
		sheaf_leave(s);
		return FREE_E_LOST;
	}
	if (is_foreign)
		STEP(CLAIM_MADE);
	STEP(FREE_CLOSED);
	if (k->debug)
		debug_freed(k, f->place);
	atomic_write(&s->entry[n], f->place);
	/* order: SHEAF_SIZE release - the entry lies below the size that covers it */
	atomic_write_release(&s->size, n + 1);
	STEP(FREE_GROWN);
	/* order: WORD release - the object is in the sheaf before its word is clear */
	atomic_write_release(f->word, word_cleared(w));
	STEP(FREE_CLEARED);
	sheaf_leave(s);
	if (is_foreign)
		atomic_add(&k->shown->n_foreign_frees, 1);
	return 0;
}

/* Frees into s what has no word that would say whose it is, or whether it is free already. */
static int
free_push_wordless(struct slabc_cache *k, struct sheaf *s, const struct free_target *f)
{
	int r = FREE_E_FULL;
	uint32_t n;

	if (s == &no_sheaf)
		return FREE_E_FULL;
	sheaf_enter(s);
	n = atomic_read(&s->size);
	if (n < thread_limit(k, s)) {
		atomic_write(&s->entry[n], f->place);
		/* order: SHEAF_SIZE release - the entry lies below the size that covers it */
		atomic_write_release(&s->size, n + 1);
		r = 0;
	}
	sheaf_leave(s);
	return r;
}

/* Frees into s; a lost claim is made again while the life is the same and somebody holds it (I1b).  FREE_E_FULL, or a negative errno. */
static int
free_into(struct slabc_cache *k, struct sheaf *s, struct free_target *f)
{
	if (k->is_wordless)
		return free_push_wordless(k, s, f);
	for (uint32_t tries = 0; tries < MAX_LOST_CLAIMS; tries++) {
		/* order: WORD acquire - pairs with the release of whoever held it last */
		uint32_t w = atomic_read_acquire(f->word);
		int r = free_judge(k, f, w);

		if (r == 0 && k->debug)
			r = debug_check(k, f->place, f->word, w);
		if (r == 0)
			r = free_push(k, s, f, w);
		if (r != FREE_E_LOST)
			return r;
		if (MUTANT(NO_RETRY))
			return free_refuse(f, FAULT_DOUBLE);
	}
	return error_set(EIO, "the object's word changed %d times while it was being freed", MAX_LOST_CLAIMS);
}

static int
free_find(struct slabc_cache *k, const void *p, struct free_target *f)
{
	bool is_inside;

	*f = (struct free_target){.word = sheaf_word_at(&k->v, p, &is_inside)};
	if (!f->word)
		return free_refuse(f, is_inside ? FAULT_MISALIGNED : FAULT_WILD);
	f->place = (uint32_t)((uint64_t)((const char *)p - k->v.base) >> LAYOUT_PLACE_SHIFT);
	return 0;
}

/* Into the away sheaf, if the object is for it.  FREE_E_FULL: it is not, or none is to be had. */
static int
free_away(struct slabc_cache *k, struct thread_block *tb, struct free_target *f, int64_t *deadlinep)
{
	struct thread_cache *t = &tb->cache[k->v.index];
	int r = FREE_E_FULL;

	if (k->is_single || !node_is_away(k, t, f->place))
		return FREE_E_FULL;
	for (int tries = 0; tries < 3 && r == FREE_E_FULL; tries++) {
		if (t->away)
			r = free_into(k, t->away, f);
		if (r == FREE_E_FULL && !node_make_room(k, tb, deadlinep))
			break;
	}
	return r;
}

/* The free stops after its first half (owed.c): no room is to be had, for the reason that r and the sentence say. */
static int
free_put_off(struct slabc_cache *k, struct free_target *f, int r)
{
	if (r == -ENOTCONN || r == -ESTALE)
		return r;
	if (k->is_wordless)
		return owed_add(k, f->place);
	for (uint32_t tries = 0; tries < MAX_LOST_CLAIMS; tries++) {
		/* order: WORD acquire - pairs with the release of whoever held it last */
		uint32_t w = atomic_read_acquire(f->word), old = w;

		r = free_judge(k, f, w);
		if (r == 0 && k->debug)
			r = debug_check(k, f->place, f->word, w);
		if (r < 0)
			return r;
		if (!atomic_cas(f->word, &old, word_with(w, k->v.me, WORD_CLOSING)))
			continue;
		STEP(FREE_CLOSED);
		if (k->debug)
			debug_freed(k, f->place);
		r = owed_add(k, f->place);
		if (r < 0)
			atomic_write(f->word, word_with(w, k->v.me, word_state(w)));
		else if (word_owner(w) != k->v.me)
			atomic_add(&k->shown->n_foreign_frees, 1);
		return r;
	}
	return error_set(EIO, "the object's word changed %d times while it was being freed", MAX_LOST_CLAIMS);
}

/* Frees a target that was found. */
static int
free_target(struct slabc_cache *k, struct thread_block *tb, struct free_target *f, int64_t *deadlinep)
{
	int r = free_away(k, tb, f, deadlinep);

	if (r != FREE_E_FULL)
		return r;

	while ((r = free_into(k, tb->main[k->v.index], f)) == FREE_E_FULL) {
		r = thread_make_room(k, tb, deadlinep);
		if (r < 0)
			return free_put_off(k, f, r);
	}
	return r < 0 ? r : thread_settle(k, tb, deadlinep);
}

/* Into the foreign sheaf, if the object is for it.  FREE_E_FULL: it is not, or none is to be had: now, then. */
static int
free_later(struct slabc_cache *k, struct thread_block *tb, const struct free_target *f, int64_t *deadlinep)
{
	struct thread_cache *t = &tb->cache[k->v.index];

	if (!k->is_late)
		return FREE_E_FULL;
	/* Whatever keeps it from coming in twice is gone the third time, or another thread's doing. */
	for (int tries = 0; tries < 3; tries++) {
		uint32_t w = atomic_read(f->word);

		if (!sheaf_is_foreign(&k->v, w))
			break;
		if (t->foreign && sheaf_push_foreign(t->foreign, t->record, f->place, f->word, w))
			return 0;
		if (!foreign_make_room(k, tb, deadlinep))
			break;
	}
	return FREE_E_FULL;
}

int
thread_free_one(struct slabc_cache *k, struct thread_block *tb, void *p, int64_t *deadlinep)
{
	struct free_target f;
	int r = free_find(k, p, &f);

	if (r == 0)
		r = free_later(k, tb, &f, deadlinep);
	if (r == FREE_E_FULL)
		r = free_target(k, tb, &f, deadlinep);
	return f.fault ? thread_fault(k, f.fault, p) : r;
}

int
thread_free_exact(struct slabc_cache *k, struct thread_block *tb, uint32_t place, uint32_t *word, uint32_t generation, int64_t *deadlinep)
{
	struct free_target f = {.word = word, .place = place, .generation = generation, .is_exact = true, .has_generation = true};

	return free_target(k, tb, &f, deadlinep);
}

static int
nested_free(struct slabc_cache *k, void *p)
{
	struct thread_block *tb = tls.block;
	struct free_target f;
	struct sheaf *s;
	int32_t slot = CLIENT_NO_SLOT;
	uint64_t n;
	int r = free_find(k, p, &f);

	count_one(&k->shown->n_nested);
	if (r == 0 && !k->is_wordless)
		r = free_judge(k, &f, atomic_read(f.word));
	if (r == 0) {
		slot = barn_get(k, &k->shown->empty, LAYOUT_HOLDER_BORROWED, &s);
		if (slot == CLIENT_NO_SLOT)
			slot = barn_get(k, &k->shown->full, LAYOUT_HOLDER_BORROWED, &s);
		r = FREE_E_FULL;
		if (slot != CLIENT_NO_SLOT) {
			r = free_into(k, s, &f);
			thread_lend_back(k, (uint32_t)slot, s);
		}
	}
	if (r == FREE_E_FULL)
		r = tb && thread_defer(tb, k, p) ? 0
						 : error_set(EAGAIN,
							   "free in a signal handler that interrupted the library: no sheaf has room, "
							   "and %d frees are put off already",
							   CLIENT_MAX_DEFERRED);
	return f.fault ? fault_count(k, f.fault, p, &n) : r;
}

void
thread_free_slow(struct slabc_cache *k, void *p)
{
	int error = errno, r;
	struct thread_block *tb;
	int64_t deadline = 0;

	if (!p)
		return;
	r = cache_usable(k);
	if (r == 0 && !thread_enter(k)) {
		r = nested_free(k, p);
	} else if (r == 0) {
		r = thread_get(k, &tb);
		if (r == 0) {
			thread_drain(tb);
			owed_pay(k, tb);
			r = thread_free_one(k, tb, p, &deadline);
		}
		thread_leave();
	}
	errno = r < 0 ? -r : error;
}
