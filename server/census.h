/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Census: who holds how much, found by reading the words of all objects, a portion at a time.
 *
 * The one of all caches is the arena's: whoever asks moves the same walk on, and all take what it found.  A walk over more than 65,536 words serves also those
 * who ask within 100 ms of its end; a smaller one is taken anew for each, since it costs no more than a portion.  So numbers of a large arena may be as old
 * as that, and what is allocated or freed while the walk goes on is seen or not.
 */
#ifndef SLAB_SERVER_CENSUS_H
#define SLAB_SERVER_CENSUS_H

#include <stdbool.h>
#include <stdint.h>

#include "server/stats.h"

/* Where a walk stands. */
struct census_place {
	uint32_t cache;  /* whose words are read; 0: of all */
	uint32_t number; /* the slab, from 1, and the object in it, that come next */
	uint32_t object;
	uint64_t n_words; /* seen */
};

struct census_walk {
	struct stats_census counts;
	struct census_place place;
	uint64_t started_ns; /* 0: it is not under way */
	uint64_t ended_ns;   /* 0: it has not ended */
};

/* An arena's.  registry_lock guards it. */
struct census {
	struct census_walk walks[2]; /* the last that ended, and the one under way */
	unsigned last;
	struct census_walk of_cache; /* the last that ended of those of a single cache */
};

/* Adds a portion to the counts.  false: there is more.  sessions_lock held for reading. */
bool census_part(struct arena *arena, struct census_place *place, struct stats_census *counts);

void census_start(struct census_walk *walk, uint32_t cache);
/* As census_part(). */
bool census_step(struct arena *arena, struct census_walk *walk);

/* May it answer who asked then?  row: the question goes on where another left off, of which the answers shall fit together. */
bool census_is_fresh(const struct census_walk *walk, uint64_t asked_ns, bool is_row);

/* The arena's; NULL: it has none, and no memory for it. registry_lock held. */
struct census *census_of(struct arena *arena);

/* What all hold; NULL: not yet, ask again; this has been a portion.  Both locks held. */
const struct stats_census *census_get(struct arena *arena, struct census *census, uint64_t asked_ns, bool is_row);

#endif
