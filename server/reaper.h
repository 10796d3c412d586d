/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is done for the dead (design.md, section 5): sheaves drained first, then the words that name them walked.
 */
#ifndef SLAB_SERVER_REAPER_H
#define SLAB_SERVER_REAPER_H

#include "server/session.h"

/*
 * Ends sessions whose processes are dead or no longer map them, all of one arena, listed by next_dying: their idle objects go back, the frees
 * they had begun are finished, the objects they held are freed (LAYOUT_CACHE_RECLAIM) or kept, SHARED, under their names.  The sessions are
 * gone afterwards.  One walk over the words serves all; returns how many it looked at.  Takes sessions_lock.
 */
uint64_t reaper_reap(struct session *first);

#endif
