/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger and the page map that clients see of it.
 *
 * Descriptors come from a dense pool, so that the bookkeeping follows the slabs in use and not the address space.  A page that changes hands
 * gets its new incarnation first; the words keep their generations, whatever they stand for next (tests/model/page_reuse.pml).
 */
#include "server/slab.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "server/arena.h"
#include "server/cache.h"
#include "shm/atomic.h"
#include "shm/step.h"
#include "shm/word.h"

/* Under ledger_lock.  0: none left. */
static uint32_t
descriptor_take(struct arena *arena)
{
	uint32_t number = arena->free_slab;

	if (number) {
		arena->free_slab = arena->slabs[number].next;
		return number;
	}
	if (arena->n_slabs >= arena->max_slabs)
		return 0;
	number = arena->n_slabs + 1;
	/* Its cache is 0: never written. */
	atomic_write_release(&arena->ledger->n_slabs, number);
	atomic_write_release(&arena->n_slabs, number);
	return number;
}

/* What the page map says of the slab's i-th page. */
static uint64_t
prod_of(const struct slab *slab, const struct cache *cache, uint32_t i)
{
	uint64_t in_slab = slab->order != SLAB_RUN ? ((uint64_t)i * LAYOUT_PAGE_BYTES - cache->head) * cache->recip : i ? slab->n_pages : 0;

	return in_slab + ((uint64_t)slab->first_word << 32);
}

static void
map_slab(struct arena *arena, const struct cache *cache, uint32_t number)
{
	const struct slab *slab = &arena->slabs[number];
	uint32_t segment = arena_segment_of(arena, slab->first_page);

	for (uint32_t i = 0; i < slab_pages(slab); i++) {
		struct layout_page *page = &arena->page_map[slab->first_page + i];

		atomic_write(&page->prod, prod_of(slab, cache, i));
		atomic_write(&page->slab, number);
		atomic_write(&page->segment, (uint8_t)(segment + 1));
		/* order: PAGE_MAP release - the entry is whole before it names the cache */
		atomic_write_release(&page->cache, cache->id);
	}
}

/*
 * Words of a slab: one for each place that the page map takes for an object's start, the tail that holds no whole object included, so that a
 * client's wild pointer there meets a word of this slab that is never owned.
 */
static uint32_t
n_words_of(const struct cache *cache, unsigned order)
{
	return order == SLAB_RUN ? 1 : ((LAYOUT_PAGE_BYTES << order) - cache->head + cache->object_bytes - 1) / cache->object_bytes;
}

/*
 * A word starts its life at a generation drawn for the arena: references that outlived another slabd, in a pipe or a file, do not resolve in this
 * one.  ledger_lock held.
 */
static void
seed_words(struct arena *arena, uint64_t end)
{
	struct ledger_head *ledger = arena->ledger;

	/* The next slabd may give the last one its generation again: nobody can have used it. */
	for (; ledger->n_seeded < end; atomic_write_release(&ledger->n_seeded, ledger->n_seeded + 1))
		atomic_write(&arena->words[ledger->n_seeded], word_cleared(ledger->first_generation));
}

/* Makes a slab of pages that are the caller's, described but for its words. 0 and *slabp, or -EOVERFLOW: no words, or no descriptor. */
static int
make(struct arena *arena, struct cache *cache, struct slab made, uint32_t *slabp)
{
	uint32_t n_words = n_words_of(cache, made.order), number;
	struct slab *slab;

	if (words_alloc(&arena->words_runs, n_words, &made.first_word) < 0)
		return -EOVERFLOW;
	pthread_mutex_lock(&arena->ledger_lock);
	number = descriptor_take(arena);
	if (!(cache->flags & LAYOUT_CACHE_NO_OWNER))
		seed_words(arena, (uint64_t)made.first_word + n_words);
	pthread_mutex_unlock(&arena->ledger_lock);
	if (!number) {
		words_free(&arena->words_runs, made.first_word, n_words);
		return -EOVERFLOW;
	}
	if (MUTANT(GENERATION_RESET))
		memset(&arena->words[made.first_word], 0, made.n_objects * sizeof(uint32_t));
	slab = &arena->slabs[number];
	/* Walkers may look at a descriptor that was another slab's a moment ago; cache comes last. */
	atomic_write(&slab->first_page, made.first_page);
	atomic_write(&slab->first_word, made.first_word);
	atomic_write(&slab->n_pages, made.n_pages);
	atomic_write(&slab->n_free, made.n_free);
	atomic_write(&slab->n_objects, made.n_objects);
	atomic_write(&slab->order, made.order);
	atomic_write(&slab->node, made.node);
	for (uint32_t i = 0; i < made.n_objects; i += 16)
		atomic_write(&arena->bits[(made.first_word + i) / 16], 0);
	STEP(SLAB_DESCRIBED);
	/* The descriptor is in use from here on: walkers look at cache first. */
	atomic_write_release(&slab->cache, cache->id);
	STEP(SLAB_NAMED);
	map_slab(arena, cache, number);
	*slabp = number;
	return 0;
}

int
slab_new(struct arena *arena, struct cache *cache, unsigned node, uint32_t *slabp)
{
	unsigned order = cache->order;
	uint32_t page, n_objects;
	int r;

	r = arena_pages_alloc(arena, node, order, &page);
	if (r < 0 && cache->min_order < order) {
		order = cache->min_order;
		r = arena_pages_alloc(arena, node, order, &page);
	}
	if (r < 0)
		return r;
	n_objects = order == cache->order ? cache->n_slab_objects : cache_objects(cache, order);
	r = make(arena, cache,
		(struct slab){
			.first_page = page,
			.n_free = (uint16_t)n_objects,
			.n_objects = (uint16_t)n_objects,
			.order = (uint8_t)order,
			.node = (uint8_t)node,
		},
		slabp);
	if (r < 0)
		arena_pages_free(arena, page, order);
	return r;
}

int
slab_new_run(struct arena *arena, struct cache *cache, unsigned node, uint32_t n_pages, uint32_t *slabp)
{
	uint32_t page;
	int r = arena_run_alloc(arena, node, n_pages, &page);

	if (r < 0)
		return r;
	r = make(arena, cache,
		(struct slab){
			.first_page = page,
			.n_pages = n_pages,
			.n_free = 1,
			.n_objects = 1,
			.order = SLAB_RUN,
			.node = (uint8_t)node,
		},
		slabp);
	if (r < 0)
		arena_run_free(arena, page, n_pages);
	return r;
}

static void
unmap_page(struct layout_page *page)
{
	/* order: PAGE_MAP release - whoever sees the page in its next life sees that it is another one */
	atomic_write_release(&page->incarnation, (uint8_t)(page->incarnation + 1));
	STEP(MAP_BUMPED);
	atomic_write_release(&page->cache, 0);
}

void
slab_retire(struct arena *arena, uint32_t number)
{
	struct slab *slab = &arena->slabs[number];

	atomic_write(&slab->cache, 0);
	/* In this order for a kill, too: an adopter takes the rest off the map (ledger.h). */
	atomic_compiler_barrier();
	STEP(SLAB_RETIRED);
	for (uint32_t i = 0; i < slab_pages(slab); i++)
		unmap_page(&arena->page_map[slab->first_page + i]);
}

void
slab_free(struct arena *arena, const struct cache *cache, uint32_t number)
{
	struct slab *slab = &arena->slabs[number];
	uint32_t page = slab->first_page, word = slab->first_word, n_pages = slab_pages(slab);
	unsigned order = slab->order;

	pthread_mutex_lock(&arena->ledger_lock);
	slab->next = arena->free_slab;
	arena->free_slab = number;
	pthread_mutex_unlock(&arena->ledger_lock);
	words_free(&arena->words_runs, word, n_words_of(cache, order));
	if (order == SLAB_RUN)
		arena_run_free(arena, page, n_pages);
	else
		arena_pages_free(arena, page, order);
}

/* The descriptor's numbers lie within what they are numbers of. */
static bool
is_bounded(const struct arena *arena, const struct slab *slab, const struct cache *cache)
{
	bool is_run = cache->flags & LAYOUT_CACHE_RUNS;

	return (slab->order == SLAB_RUN) == is_run && (is_run || slab->order <= LAYOUT_MAX_ORDER) && slab->node < arena->topology.n_nodes &&
	       slab->n_objects > 0 &&
	       (is_run ? slab->n_objects == 1 && slab->n_pages > 0
		       : slab->n_objects <= LAYOUT_MAX_SLAB_OBJECTS &&
				 cache->head + (uint64_t)slab->n_objects * cache->object_bytes <= (uint64_t)LAYOUT_PAGE_BYTES << slab->order);
}

/* Either nothing is said of the page yet, or what should be. */
static bool
is_mapped_right(const struct arena *arena, const struct cache *cache, uint32_t number, uint32_t i)
{
	const struct slab *slab = &arena->slabs[number];
	const struct layout_page *page = &arena->page_map[slab->first_page + i];

	return !page->cache || (page->cache == cache->id && page->slab == number && page->prod == prod_of(slab, cache, i));
}

int
slab_verify(struct arena *arena, uint32_t number, char *why, size_t why_size)
{
	const struct slab *slab = &arena->slabs[number];
	const struct cache *cache = arena_cache(arena, slab->cache);
	const char *wrong = NULL;

	if (!slab->cache)
		return 0;
	if (!cache || !is_bounded(arena, slab, cache))
		wrong = "descriptor";
	else if (arena_adopt_pages(arena, slab->node, slab->first_page, slab_pages(slab)) < 0)
		wrong = "pages";
	else if (words_mark(&arena->words_runs, slab->first_word, n_words_of(cache, slab->order)) < 0)
		wrong = "words";
	for (uint32_t i = 0; !wrong && i < slab_pages(slab); i++)
		if (!is_mapped_right(arena, cache, number, i))
			wrong = "page map";
	for (uint32_t i = 0; !wrong && i < slab->n_objects; i++)
		if (slab_get(arena, slab->first_word + i) > SLAB_OUT)
			wrong = "objects' states";
	if (!wrong)
		return 0;
	snprintf(why, why_size, "%s of slab %u (cache %u, order %u, node %u, %u objects, page %u, word %u)", wrong, number, slab->cache, slab->order,
		slab->node, slab->n_objects, slab->first_page, slab->first_word);
	return -EBADMSG;
}

void
slab_adopt(struct arena *arena, uint32_t number)
{
	struct slab *slab = &arena->slabs[number];
	struct cache *cache = arena_cache(arena, slab->cache);
	uint32_t n_free = 0;

	if (!cache) {
		slab->next = arena->free_slab;
		arena->free_slab = number;
		return;
	}
	map_slab(arena, cache, number);
	for (uint32_t i = 0; i < slab->n_objects; i++) {
		/* The sheaf that it lay in is forgotten. */
		if (slab_get(arena, slab->first_word + i) == SLAB_BARN)
			slab_set(arena, slab->first_word + i, SLAB_FREE);
		n_free += slab_get(arena, slab->first_word + i) == SLAB_FREE;
	}
	slab->n_free = (uint16_t)n_free;
	if (slab->order == SLAB_RUN && n_free) {
		slab_retire(arena, number);
		slab_free(arena, cache, number);
		return;
	}
	node_adopt_slab(arena, &cache->nodes[slab->node], number);
}

void
slab_sweep_map(struct arena *arena, uint32_t first_page, uint32_t n_pages)
{
	for (uint32_t i = first_page; i < first_page + n_pages; i++) {
		struct layout_page *page = &arena->page_map[i];
		const struct slab *slab = &arena->slabs[page->slab <= arena->n_slabs ? page->slab : 0];

		if (page->cache && (slab->cache != page->cache || i - slab->first_page >= slab_pages(slab)))
			unmap_page(page);
	}
}

bool
slab_find(const struct arena *arena, const struct cache *cache, uint32_t place, struct slab_object *op)
{
	uint32_t number = place >> LAYOUT_PLACE_PAGE_SHIFT;
	const struct layout_page *page;
	uint64_t x;

	if (number >= arena->n_pages)
		return false;
	page = &arena->page_map[number];
	if (atomic_read_acquire(&page->cache) != cache->id)
		return false;
	x = (uint64_t)((place << LAYOUT_PLACE_SHIFT) & (LAYOUT_PAGE_BYTES - 1)) * cache->recip + page->prod;
	if ((uint32_t)x >= cache->recip)
		return false;
	op->word = (uint32_t)(x >> 32);
	op->slab = page->slab;
	/* The tail of a slab that holds no whole object more. */
	return op->word - arena->slabs[op->slab].first_word < arena->slabs[op->slab].n_objects;
}

uint32_t
slab_place(const struct arena *arena, const struct cache *cache, uint32_t number, uint32_t i)
{
	return (arena->slabs[number].first_page << LAYOUT_PLACE_PAGE_SHIFT) + ((cache->head + i * cache->object_bytes) >> LAYOUT_PLACE_SHIFT);
}

uint64_t
slab_object_bytes(const struct arena *arena, const struct cache *cache, uint32_t number)
{
	const struct slab *slab = &arena->slabs[number];

	return slab->order == SLAB_RUN ? (uint64_t)slab->n_pages * LAYOUT_PAGE_BYTES : cache->object_bytes;
}
