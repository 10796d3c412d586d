/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connection: a peer's socket, its session once it has attached, and how slabd learns of the peer's end.
 *
 *   socket's end, process dead (pidfd)                    -> reaped
 *   socket's end or BYE, session segment no longer mapped -> reaped (exec, slabc_close)
 *   socket's end, segment still mapped                    -> DETACHED: watched until one of the two above holds, or its client takes it up again
 *
 * Who is to be reaped waits, its socket closed, until a turn of the loop brings no more of them, and some turns at most: one walk over the
 * words then serves all.
 *
 * Death is what the kernel says, never a timer (I5): the timer of a detached session only asks again.
 * Everything here runs in the connection's loop.
 */
#ifndef SLAB_SERVER_CONN_H
#define SLAB_SERVER_CONN_H

#include <sys/socket.h>

#include "proto/proto.h"
#include "server/session.h"
#include "server/slabd.h"

/* glibc 2.36 does not have it. */
#define CONN_SO_PEERPIDFD 77

struct conn {
	struct loop *loop;
	struct conn *next;
	struct conn **prevp;
	int fd; /* -1: the socket has ended */
	int pidfd;
	struct ucred peer;
	uid_t peer_uid; /* that connected: whom it is counted for */
	struct event *readable;
	struct event *writable; /* while a reply waits for room */
	struct event *died;
	struct event *again; /* a detached session: look again */
	unsigned again_s;    /* after so long */
	bool has_hello;
	bool is_stranger; /* counted by server/strangers.h; or over its limit, and to be told so */
	bool is_over_limit;
	bool is_refusal_logged;
	bool is_draining; /* it wants slabd drained (drain.h) */
	struct ucred sender; /* of the packet being handled; pid 0: not known */
	uint64_t nonce;      /* 0: none was given out */
	struct session *session;
	bool is_dying; /* in the loop's list */
	struct conn *next_dying;
	struct watch *watches; /* for roots (watch.h) */
	unsigned n_watches;
	struct task *task; /* nothing more is read until it has been answered (task.h); NULL: none */
	/* A reply the peer has not made room for; nothing more is read from it until it went. */
	size_t n_pending;
	unsigned char *pending;
};

/* Takes the descriptor over, also on failure. */
void conn_new(struct loop *loop, int fd);

/* A session that a dead slabd left, whose process lives: DETACHED. pidfd is taken over.  0, or -ENOMEM. */
int conn_adopt(struct loop *loop, struct session *session, int pidfd);

/*
 * A connection that says it is the same process's, and wants a DETACHED session of this loop back: it becomes the session's, if token and process are
 * right, or is told what is wrong.
 */
void conn_take_up(struct loop *loop, const struct loop_message *message);

/* A session of this loop's has made more faults than the arena lets it: it ends as if its process had died. */
void conn_evict(struct loop *loop, const struct loop_message *message);

/* At the end of the loop: the session is left as it is. */
void conn_free(struct conn *conn);

/* Sends a reply, or keeps it until there is room. */
void conn_send(struct conn *conn, const void *buf, size_t n, const int *fds, unsigned n_fds);

/* Nothing is read from the peer between the two. */
void conn_pause(struct conn *conn);
/* Negative: it cannot, and must be hung up. */
int conn_resume(struct conn *conn);

/* The peer has hung up, or must go; the connection may be gone after it. */
void conn_hang_up(struct conn *conn);

/*
 * Which process is the peer?  With SO_PEERPIDFD the kernel says.  Without it: at HELLO a pidfd is opened of whoever sent that, and ATTACH must come
 * from the same process and bring the nonce of HELLO's reply: so it lived on when the pidfd was opened, and its number is still its own.
 */
int conn_open_nonce(struct conn *conn);
/* The process behind the session to come is known, and watched: 0; -EPERM: it is not the one that said HELLO; or what the system said. */
int conn_watch_death(struct conn *conn, uint64_t nonce);

/* It has a session from here on. */
void conn_has_session(struct conn *conn);
/* It has none any more: as one that has just connected, and must say HELLO again. */
void conn_is_stranger_again(struct conn *conn);

/* The client says that it has unmapped its session: true if that is so; the session has ended then. */
bool conn_end_session(struct conn *conn);

#endif
