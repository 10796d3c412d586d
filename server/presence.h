/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Presence: is in an arena's data segments what slabd committed, and nothing else?
 *
 * Every client that may write has the segments' descriptors, so it can punch pages out behind slabd, or make some in a hole by touching it.  So
 * the system's count of a segment's blocks is compared with slabd's own.  All holes are punched anew, since only what that gives back was not
 * slabd's: what is then less than slabd committed is missing, however much lay elsewhere.
 * A hole that was touched is nobody's crime: who reads an object while another frees it (slabc_valid() tells him) may do so on pages of 4 KiB.
 */
#ifndef SLAB_SERVER_PRESENCE_H
#define SLAB_SERVER_PRESENCE_H

#include <stdint.h>

#include "server/arena.h"

struct presence {
	uint64_t bytes_missing; /* committed, and not there */
	uint64_t bytes_extra;   /* there, and not committed: given back to the system by this */
};

/* Of all segments; logs what differs.  Commits of a segment wait meanwhile. */
void presence_check(struct arena *arena, struct presence *presence);

#endif
