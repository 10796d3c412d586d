/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The listening socket: systemd's, or one of our own at a path.
 *
 * A path that somebody listens on is refused; a socket file that nobody listens on is taken over.  A lock file beside it settles who is first.
 */
#ifndef SLAB_SERVER_LISTENER_H
#define SLAB_SERVER_LISTENER_H

#include <stddef.h>

struct listener;
struct slabd;
struct slabd_options;

/* 0, or a negative errno with a sentence: -EADDRINUSE somebody listens, others as the system says. */
int listener_new(struct listener **listenerp, struct slabd *slabd, const struct slabd_options *options, char *why, size_t why_size);
/* Removes the socket file, if it is ours. NULL is ignored. */
/* Before that: path and socket stay for the next slabd. */
void listener_leave(struct listener *listener);
void listener_free(struct listener *listener);

#endif
