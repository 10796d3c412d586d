/* SPDX-License-Identifier: Apache-2.0 */
#include "server/presence.h"

#include "server/log.h"
#include "server/pages.h"
#include "shm/segment.h"

static void
punch_holes(struct arena_segment *s)
{
	uint32_t first = 0, n_pages = 0;

	while (pages_next_hole(&s->pages, first + n_pages, &first, &n_pages)) {
		struct segment_extent extent = arena_extent(s, first, n_pages);

		segment_give_back(&extent);
	}
}

static uint64_t
resident(const struct arena_segment *s)
{
	int64_t bytes = segment_resident(s->fd);

	return bytes > 0 ? (uint64_t)bytes : 0;
}

static uint64_t
more_than(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

/* What is missing is said once, as long as it stays so; what was given back may come again. */
static void
say(struct arena_segment *s, uint64_t missing, uint64_t extra)
{
	const struct arena *arena = s->arena;
	unsigned node = arena->topology.os_node[s->node];

	if (missing && missing != s->said_missing)
		log_warning("arena '%s': %llu bytes of %s on node %u are missing: a process of the arena has punched them out, and what they held is lost",
			arena->name, (unsigned long long)missing, arena_kind_name(s), node);
	s->said_missing = missing;
	if (extra)
		log_notice("arena '%s': %llu bytes of %s on node %u that slabd had not committed were given back: a process of the arena has touched a hole",
			arena->name, (unsigned long long)extra, arena_kind_name(s), node);
}

static void
check_segment(struct arena_segment *s, struct presence *presence)
{
	uint64_t before, after, committed, missing, extra;
	struct pages_counters c;

	pages_hold(&s->pages);
	arena_let_go(s);
	pages_count(&s->pages, &c);
	committed = (uint64_t)c.n_committed * LAYOUT_PAGE_BYTES;
	before = resident(s);
	punch_holes(s);
	after = resident(s);
	missing = more_than(committed, after);
	extra = more_than(before, after);
	say(s, missing, extra);
	pages_release(&s->pages);
	presence->bytes_missing += missing;
	presence->bytes_extra += extra;
}

void
presence_check(struct arena *arena, struct presence *presence)
{
	*presence = (struct presence){0};
	for (unsigned i = 0; i < arena->n_segments; i++)
		check_segment(&arena->segments[i], presence);
}
