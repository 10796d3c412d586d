/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Readers: the sessions of an arena that may still look at memory whose objects were freed.
 *
 * Who resolved a reference has a pointer, reads, and asks only then whether that was right (slabc_valid()).  Where a hole in a segment
 * cannot be read, which is so on hugetlb pages, a unit of pages that came free must stay committed as long as such a session lives.
 * Sessions are numbered as they come.  A unit is marked with the last number when it comes free, which is after the page map says so:
 * sessions that came later resolve no reference into what was there.  So a unit may go if its mark is below the number of the oldest reader
 * (readers_oldest()).
 *
 * A session shows that it resolves references by a flag in its own segment, set before it does so for the first time.  Slabd changes the
 * page map and then reads the flag, the client sets the flag and then reads the page map, each with a full fence between: one of the two
 * sees what the other wrote (tests/model/readers.pml).  A session without a flag that slabd can read counts as a reader.
 */
#ifndef SLAB_SERVER_READERS_H
#define SLAB_SERVER_READERS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Of one session. */
struct reader {
	struct reader *next, **prevp; /* the older before the younger */
	uint64_t number;
	const uint32_t *flag; /* what the client can write; NULL: counts as a reader */
	bool has_resolved;    /* the flag was seen: what it says later changes nothing */
};

struct readers {
	pthread_mutex_t lock; /* a leaf; guards all of it */
	struct reader *first, **lastp;
	uint64_t n_ever;
};

void readers_init(struct readers *readers);
/* All must have left. */
void readers_deinit(struct readers *readers);

/* A session appears, before its client can read the page map; and ends. */
void readers_enter(struct readers *readers, struct reader *reader, const uint32_t *flag);
void readers_leave(struct readers *readers, struct reader *reader);

/* Where the flag is from now on; NULL: nowhere that can be read. */
void readers_move(struct readers *readers, struct reader *reader, const uint32_t *flag);

/* What a unit is marked with that comes free now, from 1 when there ever was a session. */
uint64_t readers_last(struct readers *readers);

/* Units marked with this or more are kept.  For units that came free before the call. */
uint64_t readers_oldest(struct readers *readers);

#endif
