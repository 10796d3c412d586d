/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocation and free: the two hot functions, and what they fall back to.
 *
 * Layers, fastest first: main sheaf, spare sheaf, process barn, slabd.  Main and spare are the thread's (holder THREAD + number); they are touched only
 * between busy = 1 and busy = 0, since a signal handler, or slabd after a revocation, may want the same sheaf.  A sheaf is put in main's place before
 * the old one is handed on, so a handler always finds a usable main, a busy one, or none.
 *
 * A free that the hot path refuses is judged by its word (free_judge()), then made in one bracket (free_push()): close or claim the word, entry,
 * size, clear (I1, I1b).  Room is made before the word is touched: if no sheaf can be had the object stays as it was.
 *
 * Nested calls (thread_enter() said no) take no lock, send nothing and wait for nobody: they borrow a sheaf of the process barn for one object.
 */
#include "client/internal.h"

#include <string.h>
#include <time.h>

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

void *
slabc_alloc(struct slabc_cache *k)
{
	void *p = sheaf_pop(&k->v, tls.main[k->v.index]);

	if (__builtin_expect(p != NULL, 1))
		return p;
	return thread_alloc_slow(k);
}

void
slabc_free(struct slabc_cache *k, void *p)
{
	if (__builtin_expect(sheaf_push(&k->v, tls.main[k->v.index], p), 1))
		return;
	thread_free_slow(k, p);
}

void *
slabc_zalloc(struct slabc_cache *k)
{
	void *p = slabc_alloc(k);

	return p ? memset(p, 0, k->v.object_bytes) : NULL;
}

/* Sheaves of the thread */

uint32_t
thread_limit(const struct slabc_cache *k, const struct sheaf *s)
{
	if (s == &no_sheaf || atomic_read(&s->floor) == UINT32_MAX)
		return 0;
	return k->is_single ? 1 : atomic_read(&s->limit);
}

static bool
has_room(const struct slabc_cache *k, struct sheaf *s)
{
	int32_t n = sheaf_look(s);

	return n >= 0 && (uint32_t)n < thread_limit(k, s);
}

/* Main and spare change places. */
static void
swap_spare(struct slabc_cache *k, struct thread_block *tb)
{
	struct thread_cache *t = &tb->cache[k->v.index];
	struct sheaf *s = t->spare;
	int32_t slot = t->spare_slot;

	t->spare_slot = t->main_slot;
	t->spare = t->main_slot == CLIENT_NO_SLOT ? NULL : tb->main[k->v.index];
	t->main_slot = slot;
	atomic_write(&tb->main[k->v.index], s);
	STEP(SWAP);
}

/* A new main sheaf.  The old one becomes the spare, and the old spare goes on to the barn; or, is_spare_kept, the old one goes. */
static void
put_main(struct slabc_cache *k, struct thread_block *tb, int32_t slot, struct sheaf *s, bool is_spare_kept)
{
	struct thread_cache *t = &tb->cache[k->v.index];
	struct sheaf *going = tb->main[k->v.index];
	int32_t going_slot = t->main_slot;

	t->main_slot = slot;
	atomic_write(&tb->main[k->v.index], s);
	if (!k->is_single && going_slot != CLIENT_NO_SLOT && !(is_spare_kept && t->spare)) {
		struct sheaf *old_main = going;
		int32_t old_slot = going_slot;

		going = t->spare;
		going_slot = t->spare_slot;
		t->spare = old_main;
		t->spare_slot = old_slot;
	}
	if (going_slot != CLIENT_NO_SLOT)
		barn_put(k, (uint32_t)going_slot, going, thread_holder(tb));
}

static int
check_deadline(const struct slabc_cache *k, int64_t deadline)
{
	if (deadline == CLIENT_FOR_EVER || session_now_ns() < deadline)
		return 0;
	return error_set(ETIMEDOUT, "cache '%s': no sheaf was to be had within timeout_ms %d; raise struct slabc_options' timeout_ms", k->name,
		k->c->timeout_ms);
}

/* Main is revoked: slabd is about to take its objects, has taken the sheaf, or was killed in between. */
static int
wait_revoked(struct slabc_cache *k, struct thread_block *tb, int64_t deadline)
{
	static const struct timespec pause = {.tv_nsec = 50000};
	struct thread_cache *t = &tb->cache[k->v.index];
	int r = 0;

	if (atomic_read(&k->c->slots[t->main_slot].holder) != thread_holder(tb)) {
		t->main_slot = CLIENT_NO_SLOT;
		atomic_write(&tb->main[k->v.index], &no_sheaf);
	} else {
		r = check_deadline(k, deadline);
		if (r == 0)
			nanosleep(&pause, NULL);
	}
	return r;
}

/* Allocation */

bool
thread_drop_top(struct slabc_cache *k, struct sheaf *s)
{
	bool is_dropped = false;
	uint32_t n;

	if (s == &no_sheaf)
		return false;
	atomic_write(&s->busy, 1);
	atomic_compiler_barrier();
	n = atomic_read(&s->size);
	if (n > atomic_read(&s->floor) && (atomic_read(sheaf_word(&k->v, atomic_read(&s->entry[n - 1]))) & WORD_LOW_MASK) != 0) {
		/* order: SHEAF_SIZE release - as in sheaf_pop(): the word names who has it */
		atomic_write_release(&s->size, n - 1);
		count_one(&k->shown->n_dropped);
		is_dropped = true;
	}
	atomic_write_release(&s->busy, 0);
	return is_dropped;
}

int
thread_fetch(struct slabc_cache *k, struct thread_block *tb, uint32_t *n_droppedp, int64_t deadline)
{
	struct thread_cache *t = &tb->cache[k->v.index];
	int32_t n, slot;
	struct sheaf *s;
	int r;

	while ((n = sheaf_look(tb->main[k->v.index])) != 0) {
		if (n > 0 && !thread_drop_top(k, tb->main[k->v.index]))
			return 0;
		if (n > 0 && ++*n_droppedp > k->capacity)
			return error_set(EIO, "cache '%s': %u sheaf entries in a row were owned already; some client of the arena writes words it "
					      "should not", k->name, *n_droppedp);
		if (n < 0) {
			r = wait_revoked(k, tb, deadline);
			if (r < 0)
				return r;
		}
	}
	if (t->spare && sheaf_look(t->spare) > 0) {
		swap_spare(k, tb);
		return 0;
	}
	for (;;) {
		slot = barn_get(k, &k->shown->full, thread_holder(tb), &s);
		if (slot != CLIENT_NO_SLOT) {
			count_one(&k->shown->n_barn_gets);
			put_main(k, tb, slot, s, true);
			return 0;
		}
		r = check_deadline(k, deadline);
		if (r == 0)
			r = cache_refill(k, deadline);
		if (r < 0)
			return r;
	}
}

int
thread_alloc_one(struct slabc_cache *k, struct thread_block *tb, int64_t deadline, void **pp)
{
	uint32_t n_dropped = 0;

	for (;;) {
		int r;

		*pp = sheaf_pop(&k->v, tb->main[k->v.index]);
		if (*pp)
			return 0;
		r = thread_fetch(k, tb, &n_dropped, deadline);
		if (r < 0)
			return r;
	}
}

/* Gives a borrowed sheaf back to the barn. */
static void
nested_put(struct slabc_cache *k, uint32_t slot, struct sheaf *s)
{
	struct layout_slot *slots = k->c->slots;
	bool is_returned;
	uint32_t size;

	atomic_write(&s->busy, 1);
	atomic_compiler_barrier();
	size = atomic_read(&s->size);
	is_returned = k->is_single && size > 0;
	barn_hand(&slots[slot], is_returned ? LAYOUT_HOLDER_RETURNED : LAYOUT_HOLDER_BARN);
	STEP(BARN_HANDED);
	barn_push(is_returned ? &k->shown->returned : size > 0 ? &k->shown->full : &k->shown->empty, slots, slot);
}

static void *
nested_alloc(struct slabc_cache *k)
{
	struct thread_block *tb = tls.block;
	struct sheaf *s;
	int32_t slot;
	void *p = NULL;

	count_one(&k->shown->n_nested);
	slot = tb ? barn_get(k, &k->shown->full, thread_holder(tb), &s) : CLIENT_NO_SLOT;
	if (slot != CLIENT_NO_SLOT) {
		p = sheaf_pop(&k->v, s);
		nested_put(k, (uint32_t)slot, s);
	}
	if (!p)
		return error_null(error_set(EAGAIN, "allocation in a signal handler that interrupted the library, and the process barn is empty"));
	return p;
}

void *
thread_alloc_slow(struct slabc_cache *k)
{
	int error = errno, r = session_usable(k->c);
	struct thread_block *tb;
	void *p = NULL;

	if (r < 0)
		return error_null(r);
	if (!thread_enter(k))
		return nested_alloc(k);
	r = thread_get(k, &tb);
	if (r == 0) {
		thread_drain(tb);
		r = thread_alloc_one(k, tb, session_deadline(k->c), &p);
	}
	thread_leave();
	if (r < 0)
		return error_null(r);
	errno = error;
	return p;
}

/* Free */

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

static int
fault_count(struct slabc_cache *k, enum fault kind, const void *p, uint64_t *np)
{
	static const char *const sentences[] = {
		[FAULT_NONE] = "",
		[FAULT_DOUBLE] = "it is free already, or being freed",
		[FAULT_WILD] = "it is no object of this cache",
		[FAULT_MISALIGNED] = "it points into an object, not at its first byte",
		[FAULT_REFUSED] = "another client holds it: it must be shared (slabc_ref_of), and in a SLABC_RECLAIM cache adopted or freed by reference",
	};

	*np = atomic_add(fault_counter(k, kind), 1) + 1;
	return error_set(EINVAL, "free of %p in cache '%s' refused: %s", p, k->name, sentences[kind]);
}

int
thread_fault(struct slabc_cache *k, enum fault kind, const void *p)
{
	union proto_request request = {.fault = {.cache = k->v.cache, .kind = kind, .place = (uint64_t)((const char *)p - k->v.base)}};
	uint64_t n;
	int r = fault_count(k, kind, p, &n);

	if ((n & (n - 1)) == 0)
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
	atomic_write_release(&s->busy, 0);
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
	atomic_write(&s->busy, 1);
	atomic_compiler_barrier();
	n = atomic_read(&s->size);
	if (n >= thread_limit(k, s)) {
		atomic_write_release(&s->busy, 0);
		return FREE_E_FULL;
	}
	STEP(CLAIM_READ);
	if ((MUTANT(PUSH_FIRST) && is_foreign) || (MUTANT(FREE_NOT_CLOSED) && !is_foreign && !is_owned))
		return free_push_first(f, s, n, w);
	if (is_owned) {
		/* Nobody else may take it: a plain store closes it. */
		atomic_write(f->word, word_with(w, k->v.me, WORD_CLOSING));
	} else if (!atomic_cas(f->word, &old,
			   MUTANT(CLAIM_TO_ZERO) && is_foreign ? word_cleared(w) : word_with(w, k->v.me, WORD_CLOSING))) {
		atomic_write_release(&s->busy, 0);
		return FREE_E_LOST;
	}
	if (is_foreign)
		STEP(CLAIM_MADE);
	STEP(FREE_CLOSED);
	atomic_write(&s->entry[n], f->place);
	/* order: SHEAF_SIZE release - the entry lies below the size that covers it */
	atomic_write_release(&s->size, n + 1);
	STEP(FREE_GROWN);
	/* order: WORD release - the object is in the sheaf before its word is clear */
	atomic_write_release(f->word, word_cleared(w));
	STEP(FREE_CLEARED);
	atomic_write_release(&s->busy, 0);
	if (is_foreign)
		atomic_add(&k->shown->n_foreign_frees, 1);
	return 0;
}

/* Frees into s; a lost claim is made again while the life is the same and somebody holds it (I1b).  FREE_E_FULL, or a negative errno. */
static int
free_into(struct slabc_cache *k, struct sheaf *s, struct free_target *f)
{
	for (uint32_t tries = 0; tries < MAX_LOST_CLAIMS; tries++) {
		/* order: WORD acquire - pairs with the release of whoever held it last */
		uint32_t w = atomic_read_acquire(f->word);
		int r = free_judge(k, f, w);

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

/* An empty sheaf from the barn, or from slabd; failing that, one that is not full. */
static int
find_room(struct slabc_cache *k, struct thread_block *tb, int64_t deadline, int32_t *slotp, struct sheaf **sheafp)
{
	int r;

	*slotp = barn_get(k, &k->shown->empty, thread_holder(tb), sheafp);
	if (*slotp != CLIENT_NO_SLOT)
		return 0;
	r = check_deadline(k, deadline);
	if (r == 0)
		r = cache_lend(k, deadline);
	if (r == 0) {
		/* Another thread may be faster: the caller comes again. */
		*slotp = barn_get(k, &k->shown->empty, thread_holder(tb), sheafp);
		return 0;
	}
	*slotp = barn_get(k, &k->shown->full, thread_holder(tb), sheafp);
	if (*slotp != CLIENT_NO_SLOT && has_room(k, *sheafp))
		return 0;
	if (*slotp != CLIENT_NO_SLOT)
		nested_put(k, (uint32_t)*slotp, *sheafp);
	return r;
}

int
thread_make_room(struct slabc_cache *k, struct thread_block *tb, int64_t deadline)
{
	struct thread_cache *t = &tb->cache[k->v.index];

	for (;;) {
		struct sheaf *s = tb->main[k->v.index];
		int32_t slot;
		int r = 0;

		if (has_room(k, s))
			return 0;
		if (sheaf_look(s) < 0) {
			r = wait_revoked(k, tb, deadline);
		} else if (!k->is_single && t->spare && has_room(k, t->spare)) {
			swap_spare(k, tb);
		} else {
			r = find_room(k, tb, deadline, &slot, &s);
			if (r == 0 && slot != CLIENT_NO_SLOT)
				put_main(k, tb, slot, s, false);
		}
		if (r < 0)
			return r;
	}
}

int
thread_settle(struct slabc_cache *k, struct thread_block *tb, int64_t deadline)
{
	union proto_request request = {.flush = {.cache = k->v.cache, .n_sheaves = 1}};
	struct thread_cache *t = &tb->cache[k->v.index];
	struct sheaf *s = tb->main[k->v.index];
	int32_t slot = t->main_slot;
	union proto_reply reply;

	if (!k->is_single || slot == CLIENT_NO_SLOT)
		return 0;
	atomic_write(&tb->main[k->v.index], &no_sheaf);
	t->main_slot = CLIENT_NO_SLOT;
	if (!barn_put(k, (uint32_t)slot, s, thread_holder(tb)))
		return 0;
	/* The object lies where slabd finds it, whether this message arrives or not. */
	atomic_write(&k->n_unrung, 0);
	session_call(k->c, PROTO_OP_FLUSH, &request, &reply, deadline);
	return 0;
}

/* Frees a target that was found. */
static int
free_target(struct slabc_cache *k, struct thread_block *tb, struct free_target *f, int64_t deadline)
{
	int r;

	while ((r = free_into(k, tb->main[k->v.index], f)) == FREE_E_FULL) {
		r = thread_make_room(k, tb, deadline);
		if (r < 0)
			return r;
	}
	return r < 0 ? r : thread_settle(k, tb, deadline);
}

int
thread_free_one(struct slabc_cache *k, struct thread_block *tb, void *p, int64_t deadline)
{
	struct free_target f;
	int r = free_find(k, p, &f);

	if (r == 0)
		r = free_target(k, tb, &f, deadline);
	return f.fault ? thread_fault(k, f.fault, p) : r;
}

int
thread_free_exact(struct slabc_cache *k, struct thread_block *tb, uint32_t place, uint32_t *word, uint32_t generation, int64_t deadline)
{
	struct free_target f = {.word = word, .place = place, .generation = generation, .is_exact = true, .has_generation = true};

	return free_target(k, tb, &f, deadline);
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
	if (r == 0)
		r = free_judge(k, &f, atomic_read(f.word));
	if (r == 0) {
		if (tb)
			slot = barn_get(k, &k->shown->empty, thread_holder(tb), &s);
		if (tb && slot == CLIENT_NO_SLOT)
			slot = barn_get(k, &k->shown->full, thread_holder(tb), &s);
		r = FREE_E_FULL;
		if (slot != CLIENT_NO_SLOT) {
			r = free_into(k, s, &f);
			nested_put(k, (uint32_t)slot, s);
		}
	}
	if (r == FREE_E_FULL)
		r = tb && thread_defer(tb, k, p) ? 0 : error_set(EAGAIN, "free in a signal handler that interrupted the library: no sheaf has room, "
									   "and %d frees are put off already", CLIENT_MAX_DEFERRED);
	return f.fault ? fault_count(k, f.fault, p, &n) : r;
}

void
thread_free_slow(struct slabc_cache *k, void *p)
{
	int error = errno, r;
	struct thread_block *tb;

	if (!p)
		return;
	r = session_usable(k->c);
	if (r == 0 && !thread_enter(k)) {
		r = nested_free(k, p);
	} else if (r == 0) {
		r = thread_get(k, &tb);
		if (r == 0) {
			thread_drain(tb);
			r = thread_free_one(k, tb, p, session_deadline(k->c));
		}
		thread_leave();
	}
	errno = r < 0 ? -r : error;
}
