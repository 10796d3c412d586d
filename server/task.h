/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Task: a request that looks at much, carried out a portion at a time, so that nobody else waits for longer than a portion takes.
 *
 * A turn of the loop runs one portion, of about a millisecond, of one task, whatever its connections ask for.  Users take turns, and so do the
 * tasks of a user; of those that keep memory of their own while they run (an audit, a count of one cache) a user has one under way, the others wait
 * for it.  The packets that follow on the connection wait until the task has been answered; the connection's end, or a hangup, which is
 * looked for before each portion, cancels it.  No lock is held between two portions.
 *
 * A handler that has more to do returns REQUEST_GO_ON, having put what it needs into request.walk, and is called again with the same request.
 */
#ifndef SLAB_SERVER_TASK_H
#define SLAB_SERVER_TASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/proto.h"

struct conn;
struct loop;

enum { TASK_PORTION_NS = 1000000 };

/* Is this request carried out as a task?  Without an id it is none: nobody waits for it, and it is not done at all. */
bool task_is_one(enum proto_op op);

/* Nothing more is read from the connection until the task has been answered.  -ENOMEM. */
int task_new(struct conn *conn, enum proto_op op, uint32_t id, const union proto_request *in);

/* The connection's task, if it has one. */
void task_cancel(struct conn *conn);

/* At the end of the loop, which has no tasks any more. */
void task_deinit(struct loop *loop);

#endif
