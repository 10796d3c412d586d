/* SPDX-License-Identifier: Apache-2.0 */
#include "server/census.h"

#include <stdlib.h>
#include <string.h>

#include "server/cache.h"
#include "server/clock.h"
#include "server/slab.h"
#include "shm/word.h"

/* Words of a portion, which take a third of a millisecond; a slab passed by costs about as much as four words. */
enum { PORTION = 1 << 16, SLAB_COSTS = 4 };

static const uint64_t max_age_ns = 100000000, max_row_age_ns = 1000000000;

/* The slab's objects from that place on, so many at most.  Returns how many. */
static uint32_t
count_slab(struct arena *arena, const struct cache *k, struct census_place *place, struct stats_census *counts, uint32_t most)
{
	const struct slab *slab = &arena->slabs[place->number];
	uint64_t bytes = slab_object_bytes(arena, k, place->number);
	uint32_t n = 0;

	for (; place->object < atomic_read(&slab->n_objects) && n < most; place->object++, n++) {
		uint32_t word = atomic_read(&slab->first_word) + place->object, owner = word_owner(atomic_read(&arena->words[word]));

		if (slab_get(arena, word) != SLAB_OUT)
			continue;
		counts->n[owner]++;
		counts->bytes[owner] += bytes;
	}
	place->n_words += n;
	return n;
}

bool
census_part(struct arena *arena, struct census_place *place, struct stats_census *counts)
{
	for (uint32_t n = 0; n < PORTION; n += SLAB_COSTS) {
		const struct cache *k;
		uint32_t id;

		if (place->number > atomic_read_acquire(&arena->n_slabs))
			return true;
		id = atomic_read_acquire(&arena->slabs[place->number].cache);
		k = place->cache && id != place->cache ? NULL : arena_cache(arena, id);
		if (k && !(k->flags & LAYOUT_CACHE_NO_OWNER)) {
			n += count_slab(arena, k, place, counts, PORTION - n);
			/* Its other objects are the next portion's. */
			if (place->object < atomic_read(&arena->slabs[place->number].n_objects))
				return false;
		}
		place->number++;
		place->object = 0;
	}
	return place->number > atomic_read_acquire(&arena->n_slabs);
}

void
census_start(struct census_walk *walk, uint32_t cache)
{
	*walk = (struct census_walk){.place = {.cache = cache, .number = 1}, .started_ns = clock_now_ns()};
}

bool
census_step(struct arena *arena, struct census_walk *walk)
{
	if (!census_part(arena, &walk->place, &walk->counts))
		return false;
	walk->ended_ns = clock_now_ns();
	return true;
}

bool
census_is_fresh(const struct census_walk *walk, uint64_t asked_ns, bool is_row)
{
	uint64_t age = is_row ? max_row_age_ns : walk->place.n_words > PORTION ? max_age_ns : 0;

	return walk->ended_ns && (age ? walk->ended_ns + age >= asked_ns : walk->started_ns >= asked_ns);
}

struct census *
census_of(struct arena *arena)
{
	if (!arena->census)
		arena->census = calloc(1, sizeof *arena->census);
	return arena->census;
}

const struct stats_census *
census_get(struct arena *arena, struct census *census, uint64_t asked_ns, bool is_row)
{
	const struct census_walk *last = &census->walks[census->last];
	struct census_walk *next = &census->walks[!census->last];

	if (census_is_fresh(last, asked_ns, is_row))
		return &last->counts;
	if (!next->started_ns)
		census_start(next, 0);
	if (!census_step(arena, next))
		return NULL;
	/* The older one becomes the next. */
	census->walks[census->last].started_ns = 0;
	census->walks[census->last].ended_ns = 0;
	census->last = !census->last;
	return census_is_fresh(next, asked_ns, is_row) ? &next->counts : NULL;
}
