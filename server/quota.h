/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quotas of an arena's clients: what one of them, or all of a user together, may have, in objects that they hold and in sheaves (client-max,
 * user-max), and what is kept for each that is connected (client-min).
 *
 * What a client has: the objects that name it, what lies in its sheaves and is set aside for it; and
 *
 *   without owner words   what is in use, OUT and idle nowhere, apportioned among those who were lent more than they gave back and have idle, by how much
 *                         more that is: who makes what others free is charged for what is in use, and not for what came back through them
 *   else                  what it was lent and does not have, up to what nobody was seen to have: it drops what its sheaves held.  Before anybody is refused
 *                         for that, the audit looks, and what is lost goes back (repair.h): who made what others have or freed is not charged for it.
 *
 * What a client has is found by walking words and sheaves; in between slabd goes by that and by what it has granted since, which can only
 * be more: so a walk comes only when the estimate says no to somebody who waits, and not each time to who does not take no for an answer.  What is kept for others is estimated by what went back as well, and counted
 * anew when the arena is nearly full and the last count is old. All calls: sessions_lock held for reading, and the session's work.
 */
#ifndef SLAB_SERVER_QUOTA_H
#define SLAB_SERVER_QUOTA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/session.h"

/*
 * How many of `want` bytes the session may be granted, which is what the estimate leaves; where that is less than `least` words are walked, and
 * what the client, or its user, has idle is called in: may_count.  0: not even `least`; then why names limit and holdings.  Of a user, sessions that
 * are served at the same moment may each go beyond by one grant.
 */
uint64_t quota_room(struct session *session, uint64_t least, uint64_t want, bool may_count, char *why, size_t why_size);

/* May so many bytes of fresh pages be used for the session?  false: what is left is kept for others, who have less than client-min. */
bool quota_may_carve(struct session *session, uint64_t bytes);

static inline void
quota_granted(struct session *session, uint64_t bytes)
{
	atomic_write(&session->quota.granted, session->quota.granted + bytes);
}

static inline void
quota_taken(struct session *session, uint64_t bytes)
{
	atomic_write(&session->quota.taken, session->quota.taken + bytes);
}

#endif
