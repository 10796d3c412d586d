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
 * Every touch of size and entries lies between busy = 1 and busy = 0, so a signal handler, and slabd (after a membarrier), can tell.
 * A sheaf of a cache without owner words has SHEAF_WORDLESS in busy as long as it may be used: so the paths with words, whose first look is at
 * busy, are slow for it, and pay nothing for there being others.  SHEAF_DEBUG in a sheaf of a debug cache is for that alone.
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

enum { SHEAF_BUSY = 1, SHEAF_WORDLESS = 2, SHEAF_DEBUG = 16 };

struct sheaf {
	/* SHEAF_BUSY while its owner is at work on it; SHEAF_WORDLESS, SHEAF_DEBUG.  W: owner. R: owner's signal handlers, slabd. */
	uint32_t busy;
	/* Allocation is slow at and below this size.  W: slabd, owner when it takes the sheaf. R: owner. */
	uint32_t floor;
	/* Free is slow at and above this size.  W: slabd, owner when it takes the sheaf. R: owner. */
	uint32_t limit;
	/* Entries in use.  W: holder (SHEAF_SIZE). R: holder, slabd. */
	uint32_t size;
	/* Places.  W: holder, before the size that covers them. R: holder, slabd. */
	uint32_t entry[];
};

/* What the hot path needs to know of a cache, the beginning of its handle (client/internal.h). */
struct sheaf_view {
	char *base;                      /* this process's address of place 0 */
	uint64_t span;                   /* bytes of place space */
	const struct layout_page *pages; /* page map */
	uint32_t *words;                 /* word table */
	uint64_t recip;                  /* ceil(2^32 / object_bytes); 64 bits, to be multiplied with as it is */
	uint32_t me;                     /* owner slot */
	uint32_t birth;                  /* added to an unowned word by an allocation: one generation, me, state at birth */
	uint32_t index;                  /* of the handle, in a thread's table of sheaves */
	uint32_t object_bytes;           /* that its user has */
	uint16_t cache;                  /* id in the arena */
};

/* The i-th entry; spelled out, since so it is one address and not a sum. */
static inline uint32_t *
sheaf_entry(struct sheaf *s, size_t i)
{
	return (uint32_t *)(void *)((char *)s + i * sizeof(uint32_t) + offsetof(struct sheaf, entry));
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
	atomic_write_release(&s->busy, atomic_read(&s->busy) & ~(uint32_t)SHEAF_BUSY);
}

static inline size_t
sheaf_bytes(uint32_t capacity)
{
	return sizeof(struct sheaf) + (size_t)capacity * sizeof(uint32_t);
}

/* The word of the object at place, which must be one of the view's cache (an entry of one's own sheaf is). */
static inline uint32_t *
sheaf_word(const struct sheaf_view *v, uint32_t place)
{
	uint64_t x = (uint64_t)((place << LAYOUT_PLACE_SHIFT) & (LAYOUT_PAGE_BYTES - 1)) * v->recip;

	return &v->words[(x + v->pages[place >> LAYOUT_PLACE_PAGE_SHIFT].prod) >> 32];
}

/* The word of the object that starts at p; NULL if p is no object of the cache: *insidep then says whether it points into one. */
static inline uint32_t *
sheaf_word_at(const struct sheaf_view *v, const void *p, bool *insidep)
{
	uint64_t off = (uint64_t)((const char *)p - v->base);
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

/* Allocates from the thread's main sheaf.  NULL: slow path (empty, revoked, nested, or a top entry whose word is owned). */
static inline void *
sheaf_pop(const struct sheaf_view *v, struct sheaf *s)
{
	uint32_t place, w, *word;
	size_t n; /* so wide that it is an index as it is */
	char *p;

	if (__builtin_expect(atomic_peek(&s->busy) != 0 && !MUTANT(NO_GUARD), 0))
		return NULL;
	atomic_write(&s->busy, 1);
	atomic_compiler_barrier();
	n = atomic_read(&s->size);
	if (__builtin_expect(n <= atomic_peek(&s->floor), 0))
		goto slow;
	place = atomic_read(sheaf_entry(s, n - 1));
	word = sheaf_word(v, place);
	w = atomic_read(word);
	if (__builtin_expect((w & WORD_LOW_MASK) != 0, 0))
		goto slow;
	STEP(ALLOC_ENTERED);
	if (MUTANT(SHRINK_FIRST)) {
		atomic_write(&s->size, (uint32_t)n - 1);
		STEP(ALLOC_NAMED);
	}
	atomic_write(word, w + v->birth);
	STEP(ALLOC_NAMED);
	/* order: SHEAF_SIZE release - the word names the owner before the sheaf lets go */
	atomic_write_release(&s->size, (uint32_t)n - 1);
	STEP(ALLOC_SHRUNK);
	atomic_write_release(&s->busy, 0);
	p = v->base + ((uint64_t)place << LAYOUT_PLACE_SHIFT);
	/* Spares the caller's test. */
	if (!p)
		__builtin_unreachable();
	return p;
slow:
	atomic_write_release(&s->busy, 0);
	return NULL;
}

/* Frees one's own OWNED object into the thread's main sheaf.  false: slow path (full, revoked, nested, SHARED, another's, or no object). */
static inline bool
sheaf_push(const struct sheaf_view *v, struct sheaf *s, void *p)
{
	uint64_t off = (uint64_t)((char *)p - v->base);
	const struct layout_page *page;
	uint32_t t, *word;
	uint64_t x;
	size_t n;

	if (__builtin_expect(atomic_peek(&s->busy) != 0 && !MUTANT(NO_GUARD), 0))
		return false;
	atomic_write(&s->busy, 1);
	atomic_compiler_barrier();
	n = atomic_read(&s->size);
	if (__builtin_expect(n >= atomic_peek(&s->limit) || off >= v->span, 0))
		goto slow;
	page = &v->pages[off >> LAYOUT_PAGE_SHIFT];
	x = (off & (LAYOUT_PAGE_BYTES - 1)) * v->recip + page->prod;
	if (__builtin_expect(atomic_read(&page->cache) != v->cache || (uint32_t)x >= (uint32_t)v->recip, 0))
		goto slow;
	word = &v->words[x >> 32];
	STEP(FREE_ENTERED);
	t = atomic_read(word) - v->me;
	if (__builtin_expect((t & WORD_LOW_MASK) != 0, 0))
		goto slow;
	if (MUTANT(CLEAR_FIRST)) {
		atomic_write(word, t);
		STEP(FREE_GROWN);
	}
	atomic_write(sheaf_entry(s, n), (uint32_t)(off >> LAYOUT_PLACE_SHIFT));
	/* order: SHEAF_SIZE release - the entry lies below the size that covers it */
	atomic_write_release(&s->size, (uint32_t)n + 1);
	STEP(FREE_GROWN);
	/* order: WORD release - the object is in the sheaf before its word is clear; what the owner wrote is visible to the next one */
	atomic_write_release(word, t);
	STEP(FREE_CLEARED);
	atomic_write_release(&s->busy, 0);
	return true;
slow:
	atomic_write_release(&s->busy, 0);
	return false;
}

/* The same two for a cache without owner words; called when busy is SHEAF_WORDLESS, which they look at first. */
static inline void *
sheaf_pop_wordless(const struct sheaf_view *v, struct sheaf *s)
{
	uint32_t place;
	size_t n;
	char *p;

	if (__builtin_expect(atomic_peek(&s->busy) != SHEAF_WORDLESS, 0))
		return NULL;
	atomic_write(&s->busy, SHEAF_WORDLESS | SHEAF_BUSY);
	atomic_compiler_barrier();
	n = atomic_read(&s->size);
	if (__builtin_expect(n <= atomic_peek(&s->floor), 0)) {
		atomic_write_release(&s->busy, SHEAF_WORDLESS);
		return NULL;
	}
	place = atomic_read(sheaf_entry(s, n - 1));
	atomic_write_release(&s->size, (uint32_t)n - 1);
	atomic_write_release(&s->busy, SHEAF_WORDLESS);
	p = v->base + ((uint64_t)place << LAYOUT_PLACE_SHIFT);
	if (!p)
		__builtin_unreachable();
	return p;
}

/* Anybody's object: nobody can say whose it is, or whether it is free already. */
static inline bool
sheaf_push_wordless(const struct sheaf_view *v, struct sheaf *s, void *p)
{
	uint64_t off = (uint64_t)((char *)p - v->base);
	const struct layout_page *page;
	uint64_t x;
	size_t n;

	if (__builtin_expect(atomic_peek(&s->busy) != SHEAF_WORDLESS, 0))
		return false;
	atomic_write(&s->busy, SHEAF_WORDLESS | SHEAF_BUSY);
	atomic_compiler_barrier();
	n = atomic_read(&s->size);
	if (__builtin_expect(n >= atomic_peek(&s->limit) || off >= v->span, 0))
		goto slow;
	page = &v->pages[off >> LAYOUT_PAGE_SHIFT];
	x = (off & (LAYOUT_PAGE_BYTES - 1)) * v->recip + page->prod;
	if (__builtin_expect(atomic_read(&page->cache) != v->cache || (uint32_t)x >= (uint32_t)v->recip, 0))
		goto slow;
	atomic_write(sheaf_entry(s, n), (uint32_t)(off >> LAYOUT_PLACE_SHIFT));
	/* order: SHEAF_SIZE release - the entry lies below the size that covers it */
	atomic_write_release(&s->size, (uint32_t)n + 1);
	atomic_write_release(&s->busy, SHEAF_WORDLESS);
	return true;
slow:
	atomic_write_release(&s->busy, SHEAF_WORDLESS);
	return false;
}

#endif
