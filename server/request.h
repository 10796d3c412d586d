/* SPDX-License-Identifier: Apache-2.0 */
/* What each request of proto/ops.def does: one request_<op> a line of that table. */
#ifndef SLAB_SERVER_REQUEST_H
#define SLAB_SERVER_REQUEST_H

#include <stddef.h>

struct conn;

/* Handles a packet and answers it.  0; -EBADMSG: it is none of the protocol's, the connection must go (it was answered if it had an id). */
int request_handle(struct conn *conn, const void *packet, size_t n);

#endif
