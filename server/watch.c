/* SPDX-License-Identifier: Apache-2.0 */
#include "server/watch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/conn.h"
#include "server/root.h"

struct watch {
	struct watch *next, **prevp; /* the connection's */
	struct conn *conn;
	struct arena *arena;
	struct event *gone;
	struct root_watch root;
};

static void
watch_free(struct watch *watch)
{
	root_unwatch(watch->arena, &watch->root);
	if (watch->gone)
		event_free(watch->gone);
	close(watch->root.fd);
	free(watch);
}

static void
watch_end(struct watch *watch)
{
	*watch->prevp = watch->next;
	if (watch->next)
		watch->next->prevp = watch->prevp;
	watch->conn->n_watches--;
	watch_free(watch);
}

/* The client has closed its end, or writes, which it has no business to do. */
static void
on_gone(evutil_socket_t fd, short what, void *ctx)
{
	(void)fd;
	(void)what;
	watch_end(ctx);
}

int
watch_new(struct conn *conn, struct arena *arena, const char *name, uint64_t *refp, int *fdp)
{
	struct watch *watch;
	int pair[2], r;

	if (conn->n_watches >= WATCH_MAX)
		return -EAGAIN;
	watch = calloc(1, sizeof *watch);
	if (!watch)
		return -ENOMEM;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0) {
		r = -errno;
		free(watch);
		return r;
	}
	/* Sessions come first. */
	if (strangers_are_many(&conn->loop->slabd->strangers, pair[1])) {
		close(pair[0]);
		close(pair[1]);
		free(watch);
		return -EMFILE;
	}
	watch->conn = conn;
	watch->arena = arena;
	watch->root.fd = pair[0];
	snprintf(watch->root.name, sizeof watch->root.name, "%s", name);
	watch->gone = event_new(conn->loop->base, pair[0], EV_READ, on_gone, watch);
	if (!watch->gone || event_add(watch->gone, NULL) < 0)
		r = -ENOMEM;
	else
		r = root_watch(arena, &watch->root, refp) ? 0 : 1;
	if (r != 1) {
		close(pair[1]);
		watch_free(watch);
		return r;
	}
	watch->next = conn->watches;
	watch->prevp = &conn->watches;
	if (watch->next)
		watch->next->prevp = &watch->next;
	conn->watches = watch;
	conn->n_watches++;
	*fdp = pair[1];
	return 1;
}

void
watch_end_all(struct conn *conn)
{
	while (conn->watches)
		watch_end(conn->watches);
}
