/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watch: a connection's wait for a root (slabc_lookup_wait).
 *
 * The client gets one end of a pair of sockets.  A byte on it says that the name was published; its closing, at slabd's side, that slabd is
 * gone.  When the client closes its end, or the connection ends, the watch is gone: no timer, and nothing that outlives the client.
 * Everything here runs in the connection's loop; whoever publishes only sends the byte.
 */
#ifndef SLAB_SERVER_WATCH_H
#define SLAB_SERVER_WATCH_H

#include <stdint.h>

enum { WATCH_MAX = 64 }; /* of a connection */

struct arena;
struct conn;
struct watch;

/*
 * Looks for the root, and waits if there is none.  0: it is there, *refp has it. 1: *fdp is the client's end, to be sent and closed.
 * -EAGAIN: the connection has its WATCH_MAX; -ENOMEM, -EMFILE.
 */
int watch_new(struct conn *conn, struct arena *arena, const char *name, uint64_t *refp, int *fdp);

/* All of the connection's. */
void watch_end_all(struct conn *conn);

#endif
