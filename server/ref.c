/* SPDX-License-Identifier: Apache-2.0 */
#include "server/ref.h"

#include "server/arena.h"
#include "shm/atomic.h"
#include "shm/word.h"

bool
ref_find(const struct arena *arena, uint64_t ref, struct ref_object *op)
{
	uint32_t place = (uint32_t)ref, segment = (uint32_t)(ref >> 56) - 1, number = place >> LAYOUT_PLACE_PAGE_SHIFT, recip;
	const struct layout_page *page;
	uint8_t incarnation;
	uint64_t x, prod;

	*op = (struct ref_object){.place = place};
	if (segment >= arena->n_segments || number - arena->segments[segment].first_page >= arena->segments[segment].n_pages)
		return false;
	page = &arena->page_map[number];
	/* order: PAGE_MAP acquire - as in client/ref.c: cache first, incarnation last */
	op->cache = atomic_read_acquire(&page->cache);
	if (op->cache == 0 || op->cache >= LAYOUT_MAX_CACHES)
		return false;
	op->flags = atomic_read(&arena->shown[op->cache].flags);
	recip = atomic_read(&arena->shown[op->cache].recip);
	prod = atomic_read_acquire(&page->prod);
	incarnation = atomic_read_acquire(&page->incarnation);
	x = (uint64_t)((place << LAYOUT_PLACE_SHIFT) & (LAYOUT_PAGE_BYTES - 1)) * recip + prod;
	if ((uint32_t)x >= recip || x >> 32 >= arena->words_bytes / sizeof(uint32_t) || incarnation != (uint8_t)(ref >> 48) ||
		op->flags & LAYOUT_CACHE_NO_OWNER)
		return false;
	op->index = (uint32_t)(x >> 32);
	/* order: WORD acquire - pairs with the last holder's release */
	op->word = atomic_read_acquire(&arena->words[op->index]);
	return word_generation(op->word) == ((uint32_t)(ref >> 32) & 0xffff) && word_is_live(op->word);
}

uint64_t
ref_make(const struct arena *arena, uint32_t place, uint32_t w)
{
	uint32_t page = place >> LAYOUT_PLACE_PAGE_SHIFT;
	uint64_t segment = arena_segment_of(arena, page);
	uint8_t incarnation = atomic_read(&arena->page_map[page].incarnation);

	return (segment + 1) << 56 | (uint64_t)incarnation << 48 | (uint64_t)word_generation(w) << 32 | place;
}
