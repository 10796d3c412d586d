/* SPDX-License-Identifier: Apache-2.0 */
/*
 * References: 64 bits that say the same in every process of the arena.
 *
 *     63          56 55               48 47           32 31            0
 *    +--------------+-------------------+---------------+---------------+
 *    | segment + 1  | page incarnation  |  generation   |     place     |
 *    +--------------+-------------------+---------------+---------------+
 *
 * A reference stands while its page is in the same life and the object's word has the same generation and names a holder who is not freeing
 * it. The page map is read cache first (acquire), incarnation last, as slabd writes them in the opposite order; then the word. The word
 * changes hands by compare-and-swap only, from exactly what was read (I1b).  Nothing here takes a lock but slabc_free_ref().
 *
 * An object without a word (SLABC_NO_OWNER) has generation 0 in its references, and they are followed as long as the page is in the same life:
 * that the object is still the one that was meant, nobody checks.  What would need to know it says ENOTSUP.
 */
#include "client/internal.h"

enum { MAX_LOST_CLAIMS = 4096 };

/* Incarnation and segment of a page map's entry, as a reference has them in its upper 16 bits. */
typedef uint16_t __attribute__((may_alias)) page_life;
_Static_assert(offsetof(struct layout_page, incarnation) % sizeof(page_life) == 0 &&
	offsetof(struct layout_page, segment) == offsetof(struct layout_page, incarnation) + 1 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "page_life");

/* Where a reference leads. */
struct place_found {
	uint32_t *word;
	uint32_t place;
	uint32_t generation;
	uint32_t cache;
	void *p;
};

static int
stale(const char *why)
{
	return error_set(ESTALE, "the reference is stale: %s", why);
}

/* Inlined where every object of a pipe comes by: slabc_ref_of(), slabc_deref(). */
__attribute__((always_inline)) static inline bool
find_word(const struct slabc *c, uint32_t place, uint32_t *cachep, uint32_t **wordp, page_life *lifep)
{
	const struct layout_page *page = &c->pages[place >> LAYOUT_PLACE_PAGE_SHIFT];
	/* order: PAGE_MAP acquire - pairs with slabd's last store of the entry, the cache id */
	uint32_t cache = atomic_read_acquire(&page->cache), recip;
	uint64_t x, prod;

	if (cache - 1 >= LAYOUT_MAX_CACHES - 1)
		return false;
	recip = atomic_read(&c->caches[cache].recip);
	/* order: PAGE_MAP acquire - the incarnation is read after what it vouches for */
	prod = atomic_read_acquire(&page->prod);
	*lifep = atomic_read_acquire((const page_life *)&page->incarnation);
	x = (uint64_t)((place << LAYOUT_PLACE_SHIFT) & (LAYOUT_PAGE_BYTES - 1)) * recip + prod;
	if ((uint32_t)x >= recip || x >> 32 >= c->n_words)
		return false;
	*cachep = cache;
	*wordp = &c->words[x >> 32];
	return true;
}

bool
ref_find_word(const struct slabc *c, uint32_t place, uint32_t *cachep, uint32_t **wordp)
{
	page_life life;

	return find_word(c, place, cachep, wordp, &life);
}

/* Follows a reference as far as the word, which the caller reads. */
__attribute__((always_inline)) static inline bool
follow(const struct slabc *c, slabc_ref ref, struct place_found *found)
{
	page_life life;

	found->place = (uint32_t)ref;
	found->generation = (uint32_t)(ref >> 32) & 0xffff;
	if ((uint64_t)found->place << LAYOUT_PLACE_SHIFT >= c->span || !find_word(c, found->place, &found->cache, &found->word, &life))
		return false;
	if (life != ref >> 48 && !MUTANT(NO_INCARNATION))
		return false;
	found->p = c->base + ((uint64_t)found->place << LAYOUT_PLACE_SHIFT);
	STEP(DEREF_READ);
	return true;
}

static bool
find_ref(const struct slabc *c, slabc_ref ref, struct place_found *found)
{
	return follow(c, ref, found);
}

uint32_t
ref_owner(const struct slabc *c, slabc_ref ref)
{
	struct place_found found;
	uint32_t w;

	if (!find_ref(c, ref, &found))
		return 0;
	w = atomic_read(found.word);
	return word_generation(w) == found.generation ? word_owner(w) : 0;
}

static int
wordless(const struct slabc *c, uint32_t cache, const char *what)
{
	return error_set(ENOTSUP, "cache '%.47s' was made with SLABC_NO_OWNER: its objects cannot be %s", c->caches[cache].name, what);
}

static bool
word_stands(uint32_t w, uint32_t generation)
{
	return word_generation(w) == generation && word_is_live(w);
}

/* Makes the word say SHARED, if it names a holder who lets it. */
static int
share(const struct slabc *c, const void *p, uint32_t *word, uint32_t *wp)
{
	/* order: WORD acquire - what the holder wrote */
	uint32_t w = atomic_read_acquire(word);

	for (uint32_t tries = 0; tries < MAX_LOST_CLAIMS; tries++) {
		*wp = w;
		if (!word_is_live(w))
			return error_set(EINVAL, "a reference of %p, which nobody holds: it was freed", p);
		if (word_state(w) == WORD_SHARED)
			return 0;
		if (word_owner(w) != c->me)
			return error_set(EINVAL, "a reference of %p, which another client holds and has not shared", p);
		/* order: WORD release - what was written into the object is there for who resolves the reference */
		*wp = word_with(w, c->me, WORD_SHARED);
		STEP(SHARE_READ);
		if (atomic_cas(word, &w, *wp))
			return 0;
	}
	return error_set(EIO, "the object's word changed %d times", MAX_LOST_CLAIMS);
}

static inline slabc_ref
make(uint32_t place, page_life life, uint32_t w)
{
	return (uint64_t)life << 48 | (uint64_t)word_generation(w) << 32 | place;
}

/* What is not SHARED already, or cannot be. */
static __attribute__((noinline)) slabc_ref
ref_of(struct slabc *c, const void *p)
{
	uint64_t off = (uint64_t)((const char *)p - c->base);
	uint32_t place = (uint32_t)(off >> LAYOUT_PLACE_SHIFT), cache, w = 0, *word;
	page_life life = 0;
	int r = session_writable(c);

	if (r == 0) {
		if (off >= c->span || off % (1u << LAYOUT_PLACE_SHIFT) || !find_word(c, place, &cache, &word, &life))
			r = error_set(EINVAL, "%p is not the first byte of an object of this arena", p);
		else if (!cache_is_wordless(c, cache))
			r = share(c, p, word, &w);
	}
	if (r == 0) {
		return make(place, life, w);
	}
	errno = -r;
	return 0;
}

slabc_ref
slabc_ref_of(struct slabc *c, const void *p)
{
	uint64_t off = (uint64_t)((const char *)p - c->base);
	uint32_t place = (uint32_t)(off >> LAYOUT_PLACE_SHIFT), cache, w, *word;
	page_life life;

	if (__builtin_expect(!c->is_readonly && !atomic_read(&c->is_forked) && off < c->span && off % (1u << LAYOUT_PLACE_SHIFT) == 0 &&
				     find_word(c, place, &cache, &word, &life),
		    1)) {
		/* order: WORD acquire - what the holder wrote */
		w = atomic_read_acquire(word);
		if (word_state(w) == WORD_SHARED && word_owner(w) != 0 && !cache_is_wordless(c, cache))
			return make(place, life, w);
	}
	return ref_of(c, p);
}

/*
 * Before the session resolves its first reference: from here on slabd leaves hugetlb pages that come free where they are, since this process may be
 * reading them.  (A read-only session has no segment to say so in: slabd takes it for a reader.)
 */
static void
become_reader(struct slabc *c)
{
	if (c->session) {
		atomic_write(&c->session->has_resolved, 1);
		/* order: READER release - slabd sees the flag, or the page map is read as slabd changed it; pairs with readers_oldest() */
		atomic_fence_full();
	}
	/* order: READER_SHOWN release - the fence lies before what other threads resolve */
	atomic_write_release(&c->is_reader, 1);
}

static __attribute__((noinline)) void *
not_followed(const struct slabc *c)
{
	int r = session_usable(c);

	return error_null(r < 0 ? r : stale("the object was freed, or is another one now"));
}

void *
slabc_deref(struct slabc *c, slabc_ref ref)
{
	struct place_found found;

	/* order: READER_SHOWN acquire - pairs with become_reader() */
	if (__builtin_expect(!atomic_read_acquire(&c->is_reader), 0)) {
		if (atomic_read(&c->is_forked))
			return not_followed(c);
		if (!MUTANT(SHOW_LATE))
			become_reader(c);
	}
	/* order: WORD acquire - pairs with the holder's sharing of it */
	if (__builtin_expect(!follow(c, ref, &found) ||
				     (!word_stands(atomic_read_acquire(found.word), found.generation) && !cache_is_wordless(c, found.cache)),
		    0))
		return not_followed(c);
	return found.p;
}

int
slabc_valid(struct slabc *c, slabc_ref ref)
{
	struct place_found found;

	if (session_usable(c) < 0)
		return 0;
	/* order: WORD acquire - what the caller read of the object was read before the word is */
	atomic_fence_acquire();
	if (!find_ref(c, ref, &found))
		return 0;
	if (word_stands(atomic_read_acquire(found.word), found.generation))
		return 1;
	if (cache_is_wordless(c, found.cache))
		errno = -wordless(c, found.cache, "checked");
	return 0;
}

static int
adopt(struct slabc *c, slabc_ref ref, void **pp)
{
	struct place_found found;
	uint32_t w;
	int r = session_writable(c);

	if (r < 0)
		return r;
	if (!find_ref(c, ref, &found))
		return stale("the object's page is another one now");
	if (cache_is_wordless(c, found.cache))
		return wordless(c, found.cache, "adopted");
	/* order: WORD acquire - what the last holder wrote */
	w = atomic_read_acquire(found.word);
	for (uint32_t tries = 0; tries < MAX_LOST_CLAIMS; tries++) {
		*pp = found.p;
		if (!word_stands(w, found.generation))
			return stale("the object was freed, or is another one now");
		if (word_owner(w) == c->me)
			return 0;
		if (word_state(w) != WORD_SHARED)
			return error_set(EINVAL, "adoption of an object that its holder has not shared");
		STEP(CLAIM_READ);
		if (atomic_cas(found.word, &w, word_with(w, c->me, WORD_SHARED))) {
			STEP(CLAIM_MADE);
			return 0;
		}
		if (MUTANT(NO_RETRY))
			return stale("another client took it");
	}
	return error_set(EIO, "the object's word changed %d times while it was being adopted", MAX_LOST_CLAIMS);
}

void *
slabc_adopt(struct slabc *c, slabc_ref ref)
{
	void *p = NULL;
	int r = adopt(c, ref, &p);

	return r < 0 ? error_null(r) : p;
}

/* Only from inside. */
static int
free_ref(struct slabc *c, slabc_ref ref)
{
	struct place_found found;
	struct thread_block *tb;
	struct slabc_cache *k;
	int64_t deadline = 0;
	int r;

	if (!find_ref(c, ref, &found))
		return stale("the object's page is another one now");
	if (cache_is_wordless(c, found.cache))
		return wordless(c, found.cache, "freed by reference; free them by pointer");
	/* Before a handle is opened for it.  order: WORD acquire - as in adopt() */
	if (!word_stands(atomic_read_acquire(found.word), found.generation) && !MUTANT(POINTER_FREE))
		return stale("the object was freed, or is another one now");
	r = cache_own(c, found.cache, &k);
	if (r == 0)
		r = thread_get(k, &tb);
	if (r < 0)
		return r;
	if (thread_is_amid(k))
		return error_set(EAGAIN, "slabc_free_ref() in a signal handler that interrupted its cache");
	thread_drain(tb);
	owed_pay(k, tb);
	return thread_free_exact(k, tb, found.place, found.word, found.generation, &deadline);
}

int
slabc_free_ref(struct slabc *c, slabc_ref ref)
{
	int error = errno, r = session_writable(c);

	if (r < 0)
		return r;
	if (!thread_enter(NULL))
		return error_set(EAGAIN, "slabc_free_ref() in a signal handler that interrupted the library");
	r = free_ref(c, ref);
	thread_leave();
	if (r == 0)
		errno = error;
	return r;
}

int
ref_peek(const struct slabc *c, const void *p, slabc_ref *refp)
{
	uint64_t off = (uint64_t)((const char *)p - c->base);
	uint32_t place = (uint32_t)(off >> LAYOUT_PLACE_SHIFT), cache, w, *word;
	page_life life;

	if (off >= c->span || off % (1u << LAYOUT_PLACE_SHIFT) || !find_word(c, place, &cache, &word, &life))
		return error_set(EINVAL, "%p is not the first byte of an object of this arena", p);
	if (c->caches[cache].flags & SLABC_NO_OWNER)
		return error_set(ENOTSUP, "the object's cache has no object words (SLABC_NO_OWNER): nothing says whose it is");
	w = atomic_read(word);
	if (word_owner(w) != c->me || !word_is_live(w))
		return error_set(EINVAL, "%p is not this session's: another client holds it, or nobody", p);
	*refp = make(place, life, w);
	return 0;
}

int
ref_resolve(const struct slabc *c, slabc_ref ref, void **pp)
{
	struct place_found found;

	if (!find_ref(c, ref, &found))
		return stale("the object's page is another one now");
	if (cache_is_wordless(c, found.cache))
		return wordless(c, found.cache, "adopted");
	/* order: WORD acquire - as in slabc_deref() */
	if (!word_stands(atomic_read_acquire(found.word), found.generation))
		return stale("the object was freed, or is another one now");
	*pp = found.p;
	return 0;
}
