/* SPDX-License-Identifier: Apache-2.0 */
/* The pages of an arena that a dead slabd left: by the ledger's units, which of them are committed, and by its slabs, which are in use. */
#include <errno.h>

#include "server/arena.h"

int
arena_adopt_pages(struct arena *arena, unsigned node, uint32_t page, uint32_t n_pages)
{
	for (unsigned i = 0; i < arena->n_segments; i++) {
		struct arena_segment *s = &arena->segments[i];
		uint32_t first = page - s->first_page;

		if (page < s->first_page || first >= s->n_pages)
			continue;
		if (s->node != node || n_pages > s->n_pages - first)
			return -EBADMSG;
		for (uint32_t unit = first >> s->unit_order; unit <= (first + n_pages - 1) >> s->unit_order; unit++)
			if (s->units[unit] != LEDGER_UNIT_COMMITTED && s->units[unit] != LEDGER_UNIT_COLLAPSED)
				return -EBADMSG;
		return pages_mark_run(&s->pages, first, n_pages) < 0 ? -EBADMSG : 0;
	}
	return -EBADMSG;
}

int
arena_adopt_units(struct arena_segment *s)
{
	uint32_t unit_pages = 1u << s->unit_order;

	for (uint32_t unit = 0; unit < s->n_pages >> s->unit_order; unit++) {
		if (s->units[unit] > LEDGER_UNIT_GIVING || (s->units[unit] == LEDGER_UNIT_COLLAPSED && !s->is_thp))
			return -EBADMSG;
		if (s->units[unit] != LEDGER_UNIT_COMMITTED && s->units[unit] != LEDGER_UNIT_COLLAPSED)
			continue;
		pages_adopt(&s->pages, unit);
		s->arena->committed_bytes += (uint64_t)unit_pages * LAYOUT_PAGE_BYTES;
		if (s->units[unit] != LEDGER_UNIT_COLLAPSED) {
			/* It waited, or the kernel had none: it is asked again, once. */
			if (s->is_thp)
				bitset_set(&s->waiting, unit);
			continue;
		}
		bitset_set(&s->collapsed, unit);
		s->arena->thp_bytes += (uint64_t)unit_pages * LAYOUT_PAGE_BYTES;
	}
	return 0;
}

void
arena_adopt_finish(struct arena_segment *s)
{
	uint64_t unit_bytes = (uint64_t)LAYOUT_PAGE_BYTES << s->unit_order;

	/* Whoever lives may have looked into it. */
	pages_mark_free(&s->pages);
	for (uint32_t unit = 0; unit < s->n_pages >> s->unit_order; unit++) {
		if (s->units[unit] != LEDGER_UNIT_COMMITTING && s->units[unit] != LEDGER_UNIT_GIVING)
			continue;
		atomic_write_release(&s->units[unit], LEDGER_UNIT_GIVING);
		atomic_add(&s->n_going, 1);
		atomic_add(&s->arena->committed_bytes, unit_bytes);
	}
	arena_let_go(s);
}
