/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drain: slabd takes no new sessions, and stops when those that it has have ended (DRAIN; slabctl drain).
 *
 * It lasts as long as a connection that has asked for it stands, so that nobody can begin one and forget it.  That none is left is said once and for all:
 * who attaches looks in the hold of sessions_lock in which he would be counted.
 */
#ifndef SLAB_SERVER_DRAIN_H
#define SLAB_SERVER_DRAIN_H

#include <stdint.h>

struct conn;
struct slabd;

/* The connection wants it drained; does not any more.  Either may be said again. */
void drain_hold(struct conn *conn);
void drain_release(struct conn *conn);

/* Sessions left in all arenas. */
uint32_t drain_count(struct slabd *slabd);
/* None is: slabd stops, and nothing is kept for the next one. */
void drain_finish(struct slabd *slabd);

#endif
