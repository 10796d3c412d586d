/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is done for the dead (design.md, section 5): sheaves drained first, then the words that name them walked.
 */
#ifndef SLAB_SERVER_REAPER_H
#define SLAB_SERVER_REAPER_H

#include "server/session.h"

/*
 * Ends a session whose process is dead or no longer maps it: its idle objects go back, the frees it had begun are finished, the objects it held
 * are freed (LAYOUT_CACHE_RECLAIM) or kept, SHARED, under its name.  The session is gone afterwards.  Takes sessions_lock.
 */
void reaper_reap(struct session *session);

#endif
