/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The malloc family.
 *
 * Up to 8,192 bytes an object comes from the cache "malloc.<size>" of its class, an ordinary one; above that from "malloc.large", whose
 * objects are runs of pages that slabd carves and takes back one by one.  The classes are kmalloc's: powers of two, aligned to themselves
 * up to a page, and 96 (to 32 bytes) and 192 (to 64).  A session opens these caches at their first use and keeps their handles; after that
 * an allocation is a look into a table and slabc_alloc().
 *
 * A free or a measurement needs no size: the page map says of which cache an object is, and the second page of a run how long it is.
 */
#include "client/internal.h"

#include <stdio.h>
#include <string.h>

enum { MAX_CLASS_BYTES = 8192, RUNS = CLIENT_N_CLASSES };

static const uint16_t class_bytes[CLIENT_N_CLASSES] = {8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, MAX_CLASS_BYTES};

/* An object of any cache. */
struct sized_object {
	uint32_t cache;
	size_t bytes;
	bool is_run;
	bool is_refused; /* a free of it would be: another client holds it */
};

/* The smallest class for n bytes, at most MAX_CLASS_BYTES. */
static unsigned
class_of(size_t n)
{
	/* By (n - 1) / 8, up to 192. */
	static const uint8_t small[] = {0, 1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 6};

	if (n <= 192)
		return small[(n ? n - 1 : 0) / 8];
	/* From 256, number 7, on they double. */
	return (unsigned)(8 * sizeof(long)) - (unsigned)__builtin_clzl(n - 1) - 1;
}

/* What all objects of a class are aligned to. */
static size_t
class_align(unsigned class)
{
	size_t lowest_bit = class_bytes[class] & -(size_t)class_bytes[class];

	return lowest_bit < LAYOUT_PAGE_BYTES ? lowest_bit : LAYOUT_PAGE_BYTES;
}

/* Only from inside. */
static int
sized_open(struct slabc *c, unsigned class, struct slabc_cache **kp)
{
	struct slabc_cache_options o = SLABC_CACHE_OPTIONS_INIT;
	char name[32];
	int r;

	if (class == RUNS) {
		o.align = LAYOUT_PAGE_BYTES;
		r = cache_own_named(c, "malloc.large", LAYOUT_PAGE_BYTES, &o, LAYOUT_CACHE_RUNS, kp);
	} else {
		snprintf(name, sizeof(name), "malloc.%u", class_bytes[class]);
		o.align = class_align(class);
		r = cache_own_named(c, name, class_bytes[class], &o, 0, kp);
	}
	if (r == 0)
		/* order: OWN release - the handle is complete */
		atomic_write_release(&c->sized[class], *kp);
	return r;
}

static void *
class_alloc_first(struct slabc *c, unsigned class)
{
	struct slabc_cache *k;
	int error = errno, r;

	if (!thread_enter(NULL))
		return error_null(error_set(EAGAIN, "the first allocation of its size, in a signal handler that interrupted the library"));
	r = sized_open(c, class, &k);
	thread_leave();
	if (r < 0)
		return error_null(r);
	errno = error;
	return slabc_alloc(k);
}

static void *
class_alloc(struct slabc *c, unsigned class)
{
	/* order: OWN acquire - pairs with sized_open() */
	struct slabc_cache *k = atomic_read_acquire(&c->sized[class]);

	return __builtin_expect(k != NULL, 1) ? slabc_alloc(k) : class_alloc_first(c, class);
}

/* Only from inside. */
static int
run_take(struct slabc *c, uint32_t n_pages, void **pp)
{
	/* order: OWN acquire - pairs with sized_open() */
	struct slabc_cache *k = atomic_read_acquire(&c->sized[RUNS]);
	int64_t deadline = 0;
	struct sheaf *s;
	uint32_t slot;
	int r = k ? session_usable(c) : sized_open(c, RUNS, &k);

	if (r == 0)
		r = cache_prefill(k, 1, n_pages, &slot, session_deadline(c, &deadline));
	if (r < 0)
		return r;
	s = mapping_sheaf(k->c, slot);
	sheaf_open(k, s, slot);
	*pp = sheaf_take(k, s);
	if (!*pp && thread_drop_top(k, s))
		r = error_set(
			EIO, "cache '%s': a fresh run was owned already; some client of the arena writes words it should not", k->name);
	app_put(k, slot, s);
	return r;
}

static void *
run_alloc(struct slabc *c, size_t n)
{
	int error = errno, r;
	void *p = NULL;

	if (n > PTRDIFF_MAX || n > c->span)
		return error_null(
			error_set(ENOMEM, "%zu bytes are more than the arena may have: its limit is below %llu bytes (--arena-size)", n,
				(unsigned long long)c->span));
	if (!thread_enter(NULL))
		return error_null(error_set(EAGAIN, "allocation of a run of pages in a signal handler that interrupted the library"));
	r = run_take(c, (uint32_t)((n + LAYOUT_PAGE_BYTES - 1) / LAYOUT_PAGE_BYTES), &p);
	thread_leave();
	if (r < 0)
		return error_null(r);
	errno = error;
	return p;
}

void *
slabc_malloc(struct slabc *c, size_t n)
{
	return n <= MAX_CLASS_BYTES ? class_alloc(c, class_of(n)) : run_alloc(c, n);
}

void *
slabc_calloc(struct slabc *c, size_t n, size_t size)
{
	size_t bytes;
	void *p;

	if (__builtin_mul_overflow(n, size, &bytes))
		return error_null(error_set(ENOMEM, "%zu objects of %zu bytes are more than there is of anything", n, size));
	p = slabc_malloc(c, bytes);
	return p ? memset(p, 0, bytes) : NULL;
}

void *
slabc_memalign(struct slabc *c, size_t align, size_t n)
{
	unsigned class;

	if (align == 0 || align & (align - 1) || align > LAYOUT_PAGE_BYTES)
		return error_null(error_set(EINVAL, "align %zu is no power of two up to %d", align, LAYOUT_PAGE_BYTES));
	if (n > MAX_CLASS_BYTES)
		return run_alloc(c, n);
	for (class = class_of(n); class_align(class) < align; class ++)
		;
	return class_alloc(c, class);
}

/* A run's second page says how long it is. */
static size_t
run_bytes(const struct slabc *c, uint32_t first)
{
	const struct layout_page *page = &c->pages[first];

	if (first + 1 >= c->arena->n_pages || atomic_read(&page[1].cache) != atomic_read(&page[0].cache) ||
		page[1].prod >> 32 != page[0].prod >> 32)
		return LAYOUT_PAGE_BYTES;
	return (size_t)(uint32_t)page[1].prod * LAYOUT_PAGE_BYTES;
}

/* The object that starts at p, if somebody holds it. */
static int
object_find(const struct slabc *c, const void *p, struct sized_object *o)
{
	uint64_t off = (uint64_t)((const char *)p - c->base);
	uint32_t place = (uint32_t)(off >> LAYOUT_PLACE_SHIFT), *word, w, flags;

	if (off >= c->span || off % (1u << LAYOUT_PLACE_SHIFT) || !ref_find_word(c, place, &o->cache, &word))
		return error_set(EINVAL, "%p is not the first byte of an object of this arena", p);
	flags = c->caches[o->cache].flags;
	o->is_run = flags & LAYOUT_CACHE_RUNS;
	o->is_refused = false;
	if (!(flags & LAYOUT_CACHE_NO_OWNER)) {
		/* order: WORD acquire - what the holder wrote */
		w = atomic_read_acquire(word);
		if (!word_is_live(w))
			return error_set(EINVAL, "%p is an object that nobody holds", p);
		o->is_refused = word_owner(w) != c->me && (word_state(w) != WORD_SHARED || flags & LAYOUT_CACHE_RECLAIM);
	}
	o->bytes = o->is_run ? run_bytes(c, place >> LAYOUT_PLACE_PAGE_SHIFT)
		   : flags & LAYOUT_CACHE_DEBUG ? c->caches[o->cache].object_size
						: c->caches[o->cache].object_bytes;
	return 0;
}

/* Stays where it is: it fits, and no run is more than twice as long as it need be. */
static bool
fits(const struct sized_object *o, size_t n)
{
	return n <= o->bytes && !(o->is_run && n <= o->bytes / 2);
}

static int
realloc_check(struct slabc *c, const void *p, size_t n, struct sized_object *o)
{
	int r = session_writable(c);

	if (r == 0 && n > PTRDIFF_MAX)
		r = error_set(ENOMEM, "%zu bytes are more than there is of anything", n);
	if (r == 0)
		r = object_find(c, p, o);
	if (r == 0 && o->is_refused)
		r = error_set(EINVAL, "%p is another client's: it must be shared (slabc_ref_of), and in a SLABC_RECLAIM cache adopted", p);
	return r;
}

void *
slabc_realloc(struct slabc *c, void *p, size_t n)
{
	struct sized_object o;
	int error = errno, r;
	void *moved;

	if (!p)
		return slabc_malloc(c, n);
	if (n == 0) {
		slabc_mfree(c, p);
		return NULL;
	}
	r = realloc_check(c, p, n, &o);
	if (r < 0)
		return error_null(r);
	if (fits(&o, n))
		return p;
	moved = slabc_malloc(c, n);
	if (!moved && n > o.bytes)
		return NULL;
	if (!moved) {
		errno = error;
		return p;
	}
	memcpy(moved, p, n < o.bytes ? n : o.bytes);
	slabc_mfree(c, p);
	return moved;
}

/* Of what is an object of no cache, counted as cache 0's. */
static int
wild_fault(struct slabc *c, const void *p)
{
	union proto_request request = {.fault = {.kind = FAULT_WILD, .place = (uint64_t)((const char *)p - c->base)}};
	uint64_t n = atomic_add(&c->session_caches[0].n_wild_frees, 1) + 1;

	request.fault.n = n;
	if ((n & (n - 1)) == 0 && !tls.in_library)
		session_post(c, PROTO_OP_FAULT, &request);
	return error_set(EINVAL, "free of %p refused: it is no object of this arena", p);
}

/* The cache of the page that p points into; 0: none. */
static uint32_t
cache_at(const struct slabc *c, const void *p)
{
	uint64_t off = (uint64_t)((const char *)p - c->base);
	/* order: PAGE_MAP acquire - a cache that a page names is described */
	uint32_t cache = off < c->span ? atomic_read_acquire(&c->pages[off >> LAYOUT_PAGE_SHIFT].cache) : 0;

	return cache < LAYOUT_MAX_CACHES ? cache : 0;
}

/* The session's first free in that cache, or a free of what is in none (0). */
static void
mfree_first(struct slabc *c, void *p, uint32_t cache)
{
	int error = errno, r = session_writable(c);
	struct slabc_cache *k;

	if (!p)
		return;
	if (r == 0 && cache == 0) {
		r = wild_fault(c, p);
	} else if (r == 0 && thread_enter(NULL)) {
		r = cache_own(c, cache, &k);
		thread_leave();
	} else if (r == 0) {
		r = error_set(EAGAIN, "the session's first slabc_mfree() in a cache, in a signal handler that interrupted the library");
	}
	errno = r < 0 ? -r : error;
	if (r == 0)
		slabc_free(k, p);
}

void
slabc_mfree(struct slabc *c, void *p)
{
	uint32_t cache = cache_at(c, p);
	/* order: OWN acquire - pairs with own_set(); there is none of cache 0 */
	struct slabc_cache *k = atomic_read_acquire(&c->own[cache]);

	if (__builtin_expect(k != NULL, 1))
		slabc_free(k, p);
	else
		mfree_first(c, p, cache);
}

size_t
slabc_usable_size(struct slabc *c, const void *p)
{
	struct sized_object o;
	int r = session_usable(c);

	if (r == 0)
		r = object_find(c, p, &o);
	if (r == 0)
		return o.bytes;
	errno = -r;
	return 0;
}
