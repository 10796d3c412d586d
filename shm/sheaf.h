/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sheaf: a LIFO array of places that one thread owns, and the two operations that nearly every call is made of.
 *
 *     0      4      8      12     16
 *     +------+------+------+------+------+------+-- ... --+
 *     | busy | floor| limit| size | e[0] | e[1] |  e[capacity - 1]       28 entries and the header: two cache lines
 *     +------+------+------+------+------+------+-- ... --+
 *
 * floor <= size <= limit while it may be used: 0 and the capacity.  A revoked sheaf has floor ~0 and limit 0, so that the bounds test is the
 * test for revocation; a thread without a sheaf points at a sentinel with size 0 and limit 0.
 * The owner reads the size before the bound: so a sheaf that slabd has emptied stays revoked until its owner has let go of it
 * (LAYOUT_HOLDER_RECALLED), since an owner that stopped between the two would else go by the size from before (tests/model/recall.pml).
 * Every touch of size and entries lies between busy = 1 and busy = 0, so a signal handler, and slabd (after a membarrier), can tell.
 * A sheaf of a cache without owner words has SHEAF_WORDLESS in busy as long as it may be used: so the paths with words, whose first look is at
 * busy, are slow for it, and pay nothing for there being others.  So has one in an arena of several nodes SHEAF_NODED: who frees asks first where
 * the object lies; and one of a debug cache SHEAF_DEBUG.
 *
 * A foreign sheaf has SHEAF_UNSETTLED in busy: what was freed here and is another client's, not yet claimed (I1b; tests/model/foreign_sheaf.pml).
 * Beside it lies a record, a slot whose i-th entry is the i-th object's word exactly as it was read at the free; its number + 1 is in the foreign
 * slot's layout_slot.next, and its size is always 0.  While SHEAF_UNSETTLED is set, an entry is no place of its object, only the wish to claim it.
 *
 * I1 (design.md, section 5; tests/model/alloc_free_kill.pml), in the order of the stores:
 *   allocation  word names the owner, THEN size shrinks.   free  (SHARED: word CLOSING, THEN) entry, size grows, THEN word is cleared.
 * So a kill between any two stores leaves the object named, or in the sheaf, or both; never neither.
 *
 * This file touches no lock and makes no call; what does not fit the fast path returns "slow" and has changed nothing.
 */
#ifndef SLAB_SHM_SHEAF_H
#define SLAB_SHM_SHEAF_H

#include "shm/atomic.h"
#include "shm/layout.h"
#include "shm/step.h"
#include "shm/word.h"

enum {
	SHEAF_BUSY = LAYOUT_SHEAF_BUSY,
	SHEAF_WORDLESS = LAYOUT_SHEAF_WORDLESS,
	SHEAF_UNSETTLED = LAYOUT_SHEAF_UNSETTLED,
	SHEAF_NODED = LAYOUT_SHEAF_NODED,
	SHEAF_DEBUG = LAYOUT_SHEAF_DEBUG,
};
#define SHEAF_REVOKED UINT32_MAX /* floor */

/* In an unsettled sheaf, where a claim was lost: the last place of the largest place space, where no object starts. */
#define SHEAF_TOMBSTONE 0xffffffffu

struct sheaf {
	/* SHEAF_BUSY while its owner is at work on it; and the sheaf's mark: 0, or SHEAF_ of the others.  W: owner; slabd, of a sheaf it has. R: owner's signal handlers, slabd. */
	uint32_t busy;
	/* Allocation is slow at and below this size.  W: slabd, owner when it takes the sheaf. R: owner. */
	uint32_t floor;
	/* Free is slow at and above this size; 0 in one that slabd has handed out and nobody opened.  W: slabd, owner when it takes the sheaf. R: owner. */
	uint32_t limit;
	/* Entries in use.  W: holder (SHEAF_SIZE). R: holder, slabd. */
	uint32_t size;
	/* Places.  W: holder, before the size that covers them. R: holder, slabd. */
	uint32_t entry[];
};

/* Makes gcc forget how x came about: what it is used for next is one address again, and no sum kept in a register. */
#define SHEAF_HIDE(x) __asm__("" : "+r"(x))

/* What the hot path needs to know of a cache, the beginning of its handle (client/internal.h). */
struct sheaf_view {
	uint32_t index;                  /* of the handle, in a thread's table of sheaves; first for ever (client/inline.c) */
	uint32_t me;                     /* owner slot */
	char *base;                      /* this process's address of place 0 */
	uint64_t span;                   /* bytes of place space */
	const struct layout_page *pages; /* page map */
	uint32_t *words;                 /* word table */
	uint64_t recip;                  /* ceil(2^32 / object_bytes); 64 bits, to be multiplied with as it is */
	uint32_t birth;                  /* added to an unowned word by an allocation: one generation, me, state at birth */
	uint32_t object_bytes;           /* that its user has */
	uint16_t cache;                  /* id in the arena */
};

/* The i-th entry; spelled out, since so it is one address and not a sum. */
static inline uint32_t *
sheaf_entry(struct sheaf *s, size_t i)
{
	return (uint32_t *)(void *)((char *)s + i * sizeof(uint32_t) + sizeof(struct sheaf));
}

/* The bracket around every touch of a sheaf of either kind. */
static inline void
sheaf_enter(struct sheaf *s)
{
	atomic_write(&s->busy, atomic_read(&s->busy) | SHEAF_BUSY);
	atomic_compiler_barrier();
}

static inline void
sheaf_leave(struct sheaf *s)
{
	/* order: BUSY release - what was done in between is visible to slabd when it finds the sheaf left; so in sheaf_pop() and its like */
	atomic_write_release(&s->busy, atomic_read(&s->busy) & ~(uint32_t)SHEAF_BUSY);
}

static inline size_t
sheaf_bytes(uint32_t capacity)
{
	return sizeof(struct sheaf) + (size_t)capacity * sizeof(uint32_t);
}

/* Which word stands for the object at that offset, which must be one of the view's cache (an entry of one's own sheaf is). */
static inline uint64_t
sheaf_word_index(const struct sheaf_view *v, uint64_t off)
{
	uint64_t x = (off & (LAYOUT_PAGE_BYTES - 1)) * v->recip;

	return (x + v->pages[off >> LAYOUT_PAGE_SHIFT].prod) >> 32;
}

static inline uint32_t *
sheaf_word(const struct sheaf_view *v, uint32_t place)
{
	return &v->words[sheaf_word_index(v, (uint64_t)place << LAYOUT_PLACE_SHIFT)];
}

/* Where p lies in the place space; outside of it: at span or beyond. */
static inline uint64_t
sheaf_offset(const struct sheaf_view *v, const void *p)
{
	return (uint64_t)((const char *)p - v->base);
}

/* The word of the object that starts at p; NULL if p is no object of the cache: *insidep then says whether it points into one. */
static inline uint32_t *
sheaf_word_at(const struct sheaf_view *v, const void *p, bool *insidep)
{
	uint64_t off = sheaf_offset(v, p);
	const struct layout_page *page;
	uint64_t x;

	*insidep = false;
	if (off >= v->span)
		return NULL;
	page = &v->pages[off >> LAYOUT_PAGE_SHIFT];
	if (atomic_read(&page->cache) != v->cache)
		return NULL;
	x = (off & (LAYOUT_PAGE_BYTES - 1)) * v->recip + page->prod;
	*insidep = true;
	if ((uint32_t)x >= (uint32_t)v->recip)
		return NULL;
	return &v->words[x >> 32];
}

/* Allocates from a sheaf with that mark, the thread's main.  NULL: slow path (empty, revoked, nested, or a top entry whose word is owned). */
static inline void *
sheaf_pop_marked(const struct sheaf_view *v, struct sheaf *s, uint32_t mark)
{
	uint64_t n, i, place; /* so wide that they are indexes as they are */
	uint32_t w, *words;
	char *p;

	if (__builtin_expect(atomic_peek(&s->busy) != mark && !MUTANT(NO_GUARD), 0))
		return NULL;
	STEP(ALLOC_LOOKED);
	if (!MUTANT(LOOK_FIRST))
		atomic_write(&s->busy, mark | SHEAF_BUSY);
	atomic_compiler_barrier();
	n = atomic_peek(&s->size);
	if (__builtin_expect(n <= atomic_peek(&s->floor), 0))
		goto slow;
	n--;
	SHEAF_HIDE(n);
	place = atomic_peek(sheaf_entry(s, n));
	i = sheaf_word_index(v, place << LAYOUT_PLACE_SHIFT);
	SHEAF_HIDE(place);
	words = v->words;
	w = atomic_peek(&words[i]);
	if (__builtin_expect((w & WORD_LOW_MASK) != 0, 0))
		goto slow;
	SHEAF_HIDE(i);
	STEP(ALLOC_ENTERED);
	if (MUTANT(LOOK_FIRST))
		atomic_write(&s->busy, mark | SHEAF_BUSY);
	if (MUTANT(SHRINK_FIRST)) {
		atomic_write(&s->size, (uint32_t)n);
		STEP(ALLOC_NAMED);
	}
	atomic_poke(&words[i], w + v->birth);
	STEP(ALLOC_NAMED);
	/* order: SHEAF_SIZE release - the word names the owner before the sheaf lets go */
	atomic_write_release(&s->size, (uint32_t)n);
	STEP(ALLOC_SHRUNK);
	atomic_write_release(&s->busy, mark);
	p = v->base + (place << LAYOUT_PLACE_SHIFT);
	/* Spares the caller's test. */
	if (!p)
		__builtin_unreachable();
	return p;
slow:
	atomic_write_release(&s->busy, mark);
	return NULL;
}

static inline void *
sheaf_pop(const struct sheaf_view *v, struct sheaf *s)
{
	return sheaf_pop_marked(v, s, 0);
}

/*
 * Frees one's own OWNED object, at sheaf_offset(), into a sheaf with that mark, the thread's main.  false: slow path (full, revoked, nested, SHARED, another's, or no object); *missp is then
 * the object's word, if it came so far, else NULL.
 */
static inline bool
sheaf_push_marked(const struct sheaf_view *v, struct sheaf *s, uint64_t off, uint32_t mark, uint32_t **missp)
{
	const struct layout_page *page;
	uint64_t n, x;
	uint32_t t, *words;

	if (__builtin_expect(atomic_peek(&s->busy) != mark && !MUTANT(NO_GUARD), 0)) {
		*missp = NULL;
		return false;
	}
	STEP(FREE_LOOKED);
	atomic_write(&s->busy, mark | SHEAF_BUSY);
	atomic_compiler_barrier();
	n = atomic_peek(&s->size);
	SHEAF_HIDE(n);
	if (__builtin_expect((uint32_t)n >= atomic_peek(&s->limit) || off >= v->span, 0))
		goto slow;
	page = &v->pages[off >> LAYOUT_PAGE_SHIFT];
	x = (off & (LAYOUT_PAGE_BYTES - 1)) * v->recip + page->prod;
	if (__builtin_expect(atomic_read(&page->cache) != v->cache || (uint32_t)x >= (uint32_t)v->recip, 0))
		goto slow;
	words = v->words;
	x >>= 32;
	STEP(FREE_ENTERED);
	t = atomic_peek(&words[x]) - v->me;
	if (__builtin_expect((t & WORD_LOW_MASK) != 0, 0)) {
		atomic_write_release(&s->busy, mark);
		SHEAF_HIDE(x);
		*missp = &words[x];
		return false;
	}
	SHEAF_HIDE(x);
	if (MUTANT(CLEAR_FIRST)) {
		atomic_write(&words[x], t);
		STEP(FREE_GROWN);
	}
	atomic_poke(sheaf_entry(s, n), (uint32_t)(off >> LAYOUT_PLACE_SHIFT));
	/* order: SHEAF_SIZE release - the entry lies below the size that covers it */
	atomic_write_release(&s->size, (uint32_t)n + 1);
	if (MUTANT(CLEAR_AFTER_LEAVE))
		atomic_write_release(&s->busy, mark);
	STEP(FREE_GROWN);
	/* order: WORD release - the object is in the sheaf before its word is clear; what the owner wrote is visible to the next one */
	atomic_write_release(&words[x], t);
	STEP(FREE_CLEARED);
	atomic_write_release(&s->busy, mark);
	return true;
slow:
	atomic_write_release(&s->busy, mark);
	*missp = NULL;
	return false;
}

static inline bool
sheaf_push(const struct sheaf_view *v, struct sheaf *s, uint64_t off, uint32_t **missp)
{
	return sheaf_push_marked(v, s, off, 0, missp);
}

/* Does the word name another client that shares the object?  Only such a one may be claimed. */
static inline bool
sheaf_is_foreign(const struct sheaf_view *v, uint32_t w)
{
	return word_state(w) == WORD_SHARED && word_owner(w) != 0 && word_owner(w) != v->me;
}

/*
 * Puts another client's object into the thread's foreign sheaf, to be claimed later from exactly w.  No locked instruction: the line of the word
 * is only asked for.  false: slow path (full, revoked, nested); nothing has changed.
 */
static inline bool
sheaf_push_foreign(struct sheaf *s, struct sheaf *record, uint32_t place, const uint32_t *word, uint32_t w)
{
	size_t n;

	if (__builtin_expect(atomic_peek(&s->busy) != SHEAF_UNSETTLED, 0))
		return false;
	atomic_write(&s->busy, SHEAF_UNSETTLED | SHEAF_BUSY);
	atomic_compiler_barrier();
	n = atomic_read(&s->size);
	if (__builtin_expect(n >= atomic_peek(&s->limit), 0)) {
		atomic_write_release(&s->busy, SHEAF_UNSETTLED);
		return false;
	}
	atomic_prefetch_write(word);
	if (MUTANT(SIZE_FIRST)) {
		atomic_write(&s->size, (uint32_t)n + 1);
		STEP(FOREIGN_RECORDED);
	}
	atomic_write(sheaf_entry(record, n), w);
	atomic_write(sheaf_entry(s, n), place);
	STEP(FOREIGN_RECORDED);
	/* order: SHEAF_SIZE release - entry and recorded word lie below the size that covers them */
	atomic_write_release(&s->size, (uint32_t)n + 1);
	STEP(FOREIGN_GROWN);
	atomic_write_release(&s->busy, SHEAF_UNSETTLED);
	return true;
}

/* Pop and push for a cache without owner words; called when busy may be that mark, SHEAF_WORDLESS or with it SHEAF_NODED, which they look at first. */
static inline void *
sheaf_pop_wordless(const struct sheaf_view *v, struct sheaf *s, uint32_t mark)
{
	uint64_t n, place;
	char *p;

	if (__builtin_expect(atomic_peek(&s->busy) != mark, 0))
		return NULL;
	atomic_write(&s->busy, mark | SHEAF_BUSY);
	atomic_compiler_barrier();
	n = atomic_peek(&s->size);
	if (__builtin_expect(n <= atomic_peek(&s->floor), 0)) {
		atomic_write_release(&s->busy, mark);
		return NULL;
	}
	n--;
	SHEAF_HIDE(n);
	place = atomic_peek(sheaf_entry(s, n));
	atomic_write_release(&s->size, (uint32_t)n);
	atomic_write_release(&s->busy, mark);
	p = v->base + (place << LAYOUT_PLACE_SHIFT);
	if (!p)
		__builtin_unreachable();
	return p;
}

/* Anybody's object: nobody can say whose it is, or whether it is free already. */
static inline bool
sheaf_push_wordless(const struct sheaf_view *v, struct sheaf *s, uint64_t off, uint32_t mark)
{
	const struct layout_page *page;
	uint64_t n, x;

	if (__builtin_expect(atomic_peek(&s->busy) != mark, 0))
		return false;
	atomic_write(&s->busy, mark | SHEAF_BUSY);
	atomic_compiler_barrier();
	n = atomic_peek(&s->size);
	SHEAF_HIDE(n);
	if (__builtin_expect((uint32_t)n >= atomic_peek(&s->limit) || off >= v->span, 0))
		goto slow;
	page = &v->pages[off >> LAYOUT_PAGE_SHIFT];
	x = (off & (LAYOUT_PAGE_BYTES - 1)) * v->recip + page->prod;
	if (__builtin_expect(atomic_read(&page->cache) != v->cache || (uint32_t)x >= (uint32_t)v->recip, 0))
		goto slow;
	atomic_poke(sheaf_entry(s, n), (uint32_t)(off >> LAYOUT_PLACE_SHIFT));
	/* order: SHEAF_SIZE release - the entry lies below the size that covers it */
	atomic_write_release(&s->size, (uint32_t)n + 1);
	atomic_write_release(&s->busy, mark);
	return true;
slow:
	atomic_write_release(&s->busy, mark);
	return false;
}

/* The two of the public interface, for a cache of either kind: the library's, and by slabclient-inline.h a program's own. */
static inline void *
sheaf_alloc(const struct sheaf_view *v, struct sheaf *s)
{
	void *p = sheaf_pop(v, s);

	if (__builtin_expect(p != NULL, 1))
		return p;
	/* What comes here reads again, so that it costs the path above no register. */
	atomic_compiler_barrier();
	return sheaf_pop_wordless(v, s, SHEAF_WORDLESS);
}

/* false: slow; *pp is p, but not from a register that was kept for it; *missp as sheaf_push_marked()'s. */
static inline bool
sheaf_free(const struct sheaf_view *v, struct sheaf *s, void **pp, uint32_t **missp)
{
	uint64_t off = sheaf_offset(v, *pp);

	if (__builtin_expect(sheaf_push(v, s, off, missp), 1))
		return true;
	atomic_compiler_barrier();
	SHEAF_HIDE(off);
	if (sheaf_push_wordless(v, s, off, SHEAF_WORDLESS))
		return true;
	*pp = (void *)((uintptr_t)v->base + off); /* p may be NULL, or anything */
	return false;
}

#endif
