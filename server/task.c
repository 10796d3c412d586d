/* SPDX-License-Identifier: Apache-2.0 */
#include "server/task.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>

#include "server/clock.h"
#include "server/conn.h"
#include "server/request.h"

struct task {
	struct request request;
	union proto_request in;
	enum proto_op op;
	uint32_t id;
	bool is_waiting; /* for another of the same user, which keeps memory */
	struct task *next;
};

bool
task_is_one(enum proto_op op)
{
	switch (op) {
	case PROTO_OP_STATUS:
	case PROTO_OP_CACHES:
	case PROTO_OP_CLIENTS:
	case PROTO_OP_AUDIT:
	case PROTO_OP_NEXT_ORPHAN:
	case PROTO_OP_SESSION_STATS:
	case PROTO_OP_DESTROY:
	case PROTO_OP_ORPHANS:
	case PROTO_OP_RECLAIM:
		return true;
	default:
		return false;
	}
}

static bool
keeps_memory(const struct task *task)
{
	return task->op == PROTO_OP_AUDIT || task->op == PROTO_OP_ORPHANS || task->op == PROTO_OP_DESTROY;
}

static uint32_t
uid_of(const struct task *task)
{
	return task->request.conn->peer.uid;
}

/* Where the first such task is; where the list ends if there is none. */
static struct task **
find_keeper(struct loop *loop, uint32_t uid)
{
	struct task **p = &loop->tasks;

	while (*p && !(keeps_memory(*p) && uid_of(*p) == uid))
		p = &(*p)->next;
	return p;
}

static void
append(struct loop *loop, struct task *task)
{
	struct task **p = &loop->tasks;

	while (*p)
		p = &(*p)->next;
	task->next = NULL;
	*p = task;
}

/* Takes it off the list; the next one that waited for it goes on in its stead. */
static void
take_off(struct loop *loop, struct task *task)
{
	struct task **p = &loop->tasks, *next;

	while (*p != task)
		p = &(*p)->next;
	*p = task->next;
	if (!keeps_memory(task) || task->is_waiting)
		return;
	next = *find_keeper(loop, uid_of(task));
	if (next)
		next->is_waiting = false;
}

/* The first of another user than was served last; else the first. */
static struct task *
choose(const struct loop *loop)
{
	struct task *first = NULL;

	for (struct task *task = loop->tasks; task; task = task->next) {
		if (task->is_waiting)
			continue;
		if (uid_of(task) != loop->last_uid)
			return task;
		if (!first)
			first = task;
	}
	return first;
}

static void
task_free(struct task *task)
{
	if (task->request.walk)
		task->request.end_walk(task->request.walk);
	free(task);
}

static bool
has_hung_up(const struct conn *conn)
{
	struct pollfd p = {.fd = conn->fd};

	/* Both ways; who only has said his last may wait for the answer. */
	return poll(&p, 1, 0) == 1;
}

static void
run(struct loop *loop, struct task *task)
{
	struct conn *conn = task->request.conn;
	enum proto_status status;

	loop->last_uid = uid_of(task);
	if (has_hung_up(conn)) {
		conn_hang_up(conn);
		return;
	}
	status = request_dispatch(&task->request, task->op);
	if (status == REQUEST_GO_ON) {
		/* To the end of the list, without waking who waits for it. */
		struct task **p = &loop->tasks;

		while (*p != task)
			p = &(*p)->next;
		*p = task->next;
		append(loop, task);
		return;
	}
	conn->task = NULL;
	take_off(loop, task);
	if (conn_resume(conn) < 0 || request_answer(&task->request, task->op, task->id, status) < 0)
		conn_hang_up(conn);
	task_free(task);
}

static void
on_turn(evutil_socket_t fd, short what, void *ctx)
{
	static const struct timeval at_once;
	struct loop *loop = ctx;
	struct task *task = choose(loop);

	(void)fd;
	(void)what;
	if (task)
		run(loop, task);
	/* A timer, not an active event: that would come before the sockets are looked at. */
	if (loop->tasks)
		event_add(loop->turn, &at_once);
}

int
task_new(struct conn *conn, enum proto_op op, uint32_t id, const union proto_request *in)
{
	static const struct timeval at_once;
	struct loop *loop = conn->loop;
	struct task *task = calloc(1, sizeof *task);

	if (!loop->turn)
		loop->turn = evtimer_new(loop->base, on_turn, loop);
	if (!task || !loop->turn || event_add(loop->turn, &at_once) < 0) {
		free(task);
		return -ENOMEM;
	}
	task->op = op;
	task->id = id;
	task->in = *in;
	request_init(&task->request, conn);
	task->request.in = &task->in;
	task->request.asked_ns = clock_now_ns();
	task->request.is_waited = true;
	task->is_waiting = keeps_memory(task) && *find_keeper(loop, uid_of(task));
	append(loop, task);
	conn->task = task;
	conn_pause(conn);
	return 0;
}

void
task_cancel(struct conn *conn)
{
	struct task *task = conn->task;

	if (!task)
		return;
	conn->task = NULL;
	take_off(conn->loop, task);
	task_free(task);
}

void
task_deinit(struct loop *loop)
{
	if (loop->turn)
		event_free(loop->turn);
	loop->turn = NULL;
}
