/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Roots: names for references, kept by slabd.
 *
 * Each call is one request.  slabc_lookup_wait() does not hold the session's socket while it waits: where there is no root yet, slabd's
 * answer brings one end of a pair of sockets, on which it says that the name was published (or, by its end, that slabd is gone).  The
 * thread waits there, outside of the library, so that its signal handlers and all other threads go on as ever, and looks again.  Shutting
 * the end down, not only closing it, tells slabd that nobody waits, also if a forked child still has a copy.
 */
#include "client/internal.h"

#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int
copy_name(char *to, const char *name)
{
	if (!name || !*name)
		return error_set(EINVAL, "name of a root: 1 to %d bytes", SLABC_MAX_ROOT_NAME);
	if (strlen(name) > SLABC_MAX_ROOT_NAME)
		return error_set(ENAMETOOLONG, "name of a root: %zu bytes, at most %d", strlen(name), SLABC_MAX_ROOT_NAME);
	strcpy(to, name);
	return 0;
}

int
slabc_publish(struct slabc *c, const char *name, slabc_ref ref, unsigned flags)
{
	union proto_request request = {.publish = {.ref = ref, .flags = flags}};
	union proto_reply reply;
	int r = session_writable(c);

	if (r == 0)
		r = copy_name(request.publish.name, name);
	return r < 0 ? r : session_ask(c, PROTO_OP_PUBLISH, &request, &reply);
}

int
slabc_unpublish(struct slabc *c, const char *name)
{
	union proto_request request = {0};
	union proto_reply reply;
	int r = session_writable(c);

	if (r == 0)
		r = copy_name(request.unpublish.name, name);
	return r < 0 ? r : session_ask(c, PROTO_OP_UNPUBLISH, &request, &reply);
}

int
slabc_lookup(struct slabc *c, const char *name, slabc_ref *refp)
{
	union proto_request request = {0};
	union proto_reply reply;
	int r = session_usable(c);

	if (r == 0)
		r = copy_name(request.lookup.name, name);
	if (r == 0)
		r = session_ask(c, PROTO_OP_LOOKUP, &request, &reply);
	if (r == 0)
		*refp = reply.lookup.ref;
	return r;
}

static int
too_late(const char *name, int timeout_ms)
{
	return error_set(ETIMEDOUT, "no root '%.120s' was published within %d ms", name, timeout_ms);
}

/* Until slabd says something, or the deadline. */
static int
wait_for_word(int fd, const char *name, int timeout_ms, int64_t deadline)
{
	for (;;) {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		int64_t left_ms = -1;
		int r;

		if (deadline != CLIENT_FOR_EVER) {
			left_ms = (deadline - session_now_ns() + 999999) / 1000000;
			if (left_ms <= 0)
				return too_late(name, timeout_ms);
			if (left_ms > INT_MAX)
				left_ms = INT_MAX;
		}
		r = poll(&p, 1, (int)left_ms);
		if (r > 0)
			return 0;
		if (r < 0 && errno != EINTR)
			return error_set(errno, "poll: %s", strerror(errno));
	}
}

/* Looks once.  1: *fdp is where to wait. */
static int
look(struct slabc *c, const union proto_request *request, int64_t until, slabc_ref *refp, int *fdp)
{
	union proto_reply reply;
	int64_t deadline = 0;
	unsigned n_fds = 1;
	int r;

	if (!thread_enter(NULL))
		return error_set(EAGAIN, "slabc_lookup_wait() in a signal handler that interrupted the library");
	session_deadline(c, &deadline);
	r = session_call_fds(c, PROTO_OP_LOOKUP, request, &reply, fdp, &n_fds, until < deadline ? until : deadline);
	thread_leave();
	if (r < 0)
		return r;
	if (reply.lookup.ref != 0) {
		if (n_fds > 0)
			close(*fdp);
		*refp = reply.lookup.ref;
		return 0;
	}
	return n_fds > 0 ? 1 : error_set(EPROTO, "slabd lets the call wait, and does not say where");
}

int
slabc_lookup_wait(struct slabc *c, const char *name, slabc_ref *refp, int timeout_ms)
{
	union proto_request request = {.lookup = {.wait = 1}};
	int64_t until = timeout_ms < 0 ? CLIENT_FOR_EVER : session_now_ns() + (int64_t)timeout_ms * 1000000;
	int error = errno, fd, r = session_usable(c);

	if (r == 0 && timeout_ms < -1)
		r = error_set(EINVAL, "timeout_ms %d: -1 (for ever), 0 or more", timeout_ms);
	if (r == 0)
		r = copy_name(request.lookup.name, name);
	if (r == 0 && timeout_ms == 0) {
		r = slabc_lookup(c, name, refp);
		return r == -ENOENT ? too_late(name, 0) : r;
	}
	while (r == 0) {
		r = look(c, &request, until, refp, &fd);
		if (r == 0) {
			errno = error;
			return 0;
		}
		if (r < 0)
			break;
		r = wait_for_word(fd, name, timeout_ms, until);
		shutdown(fd, SHUT_RDWR);
		close(fd);
		if (r == 0)
			r = session_usable(c);
	}
	return r;
}

int
slabc_next_root(struct slabc *c, const char *prefix, const char *after, char *name, slabc_ref *refp)
{
	union proto_request request = {0};
	union proto_reply reply;
	int r = session_usable(c);

	if (r < 0)
		return r;
	if (prefix && *prefix)
		r = copy_name(request.next_root.prefix, prefix);
	if (r == 0 && after && *after)
		r = copy_name(request.next_root.after, after);
	if (r == 0)
		r = session_ask(c, PROTO_OP_NEXT_ROOT, &request, &reply);
	if (r < 0)
		return r;
	if (!*reply.next_root.name)
		return error_set(ENOENT, "no more roots");
	memcpy(name, reply.next_root.name, sizeof(reply.next_root.name));
	*refp = reply.next_root.ref;
	return 0;
}
