/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each request of proto/ops.def does: one request_<op> a line of that table.
 *
 *   request.c         the session's own: HELLO to BYE, and monitoring
 *   request_root.c    roots; what goes from one client to another: orphans, gifts
 *   request_access.c  which arena, and who may
 *   request_admin.c   shrinking, destroying, tuning; what administrators list
 */
#ifndef SLAB_SERVER_REQUEST_H
#define SLAB_SERVER_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "proto/proto.h"
#include "server/access.h"

struct arena;
struct cache;
struct conn;

/* At the beginning all is 0 up to `out`; of the rest, which is large and mostly not used, what the reply to the op has, and `why` is empty. */
struct request {
	struct conn *conn;
	struct arena *arena; /* set before request_<op> is called, but for HELLO, ATTACH, RESUME, BYE, ARENAS, INSPECT and DRAIN (request_access.c) */
	bool is_waited; /* the peer wants a reply */
	bool is_heavy;  /* it turned out so: REQUEST_E_HEAVY */
	bool is_moved;
	const union proto_request *in;
	unsigned n_fds;
	uint32_t id;
	int own_fd; /* one of them that is closed once it has been sent; -1: none */
	uint64_t asked_ns; /* of a task: when it came; and what it keeps from one portion to the next, with the call that frees it (task.h) */
	void *walk;
	void (*end_walk)(void *walk);
	union proto_reply out;
	int fds[PROTO_MAX_FDS];
	char why[PROTO_SENTENCE_BYTES];
};

#define REFUSE(request, status, ...)                                                                                                       \
	do {                                                                                                                               \
		snprintf((request)->why, sizeof(request)->why, __VA_ARGS__);                                                               \
		return (status);                                                                                                           \
	} while (0)

/* No status: the task has more to do, and request_<op> is called again. */
#define REQUEST_GO_ON ((enum proto_status)0x10000)

/*
 * It took long (a quota was counted): others' packets come before this connection's next.  The connection's socket was given to another, which answers.
 * It was answered: who waits for an answer has sent nothing behind it, so that it is not worth a look.
 */
enum { REQUEST_E_HEAVY = 1, REQUEST_E_MOVED, REQUEST_E_ANSWERED };

/*
 * Handles a packet and answers it, or makes a task of it.  0; REQUEST_E_; -EBADMSG: it is none of the protocol's, the connection must
 * go (it was answered if it had an id).
 */
int request_handle(struct conn *conn, const void *packet, size_t n);

/* A task's parts of that: dispatch until it is not REQUEST_GO_ON, then the answer. */
void request_init(struct request *q, struct conn *conn);
enum proto_status request_dispatch(struct request *q, enum proto_op op);
int request_answer(struct request *q, enum proto_op op, uint32_t id, enum proto_status status);

/* What the functions of slabd return, as a status. */
enum proto_status request_status_of(int r);
/* OK: there is a session, and it may write. */
enum proto_status request_need_writable(struct request *q);

/* request_access.c: OK, or a refusal whose sentence says what would change it. */
enum proto_status request_find_arena(struct request *q, const char *name, struct arena **arenap);
enum proto_status request_need_access(struct request *q, struct arena *arena, enum access_want want);
/* The peer is root, slabd's own user, or the arena's owner. */
enum proto_status request_need_admin(struct request *q);
/* Sets the request's arena: the session's, else the one that its field `arena` names, which the peer may read. */
enum proto_status request_pick_arena(struct request *q, enum proto_op op);
/* ARENAS: owner, group, mode, limits, and what the asker may. */
enum proto_status request_show_access(struct request *q, struct arena *arena);

/* request_root.c */
enum proto_status request_publish(struct request *q);
enum proto_status request_unpublish(struct request *q);
enum proto_status request_lookup(struct request *q);
enum proto_status request_next_root(struct request *q);
enum proto_status request_next_orphan(struct request *q);
enum proto_status request_adopt_orphan(struct request *q);
enum proto_status request_give(struct request *q);
enum proto_status request_session_stats(struct request *q);

/* request_admin.c */
enum proto_status request_shrink(struct request *q);
enum proto_status request_destroy(struct request *q);
enum proto_status request_tune(struct request *q);
enum proto_status request_orphans(struct request *q);
enum proto_status request_reclaim(struct request *q);
enum proto_status request_arenas(struct request *q);
enum proto_status request_nodes(struct request *q);
enum proto_status request_inspect(struct request *q);
enum proto_status request_drain(struct request *q);

#endif
