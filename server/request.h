/* SPDX-License-Identifier: Apache-2.0 */
/* What each request of proto/ops.def does: one request_<op> a line of that table. */
#ifndef SLAB_SERVER_REQUEST_H
#define SLAB_SERVER_REQUEST_H

#include <stddef.h>

struct conn;

/* It looked at the whole arena: the other connections of the loop come first now. */
enum { REQUEST_E_HEAVY = 1 };

/* Handles a packet and answers it.  0, REQUEST_E_HEAVY; -EBADMSG: it is none of the protocol's, the connection must go (it was answered if it had an id). */
int request_handle(struct conn *conn, const void *packet, size_t n);

#endif
