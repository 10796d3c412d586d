/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channel: send, sendmsg and recvmsg with the care that descriptors from strangers need.
 *
 * The kernel is given room for exactly the descriptors that were asked for: those beyond are never installed, it only says MSG_CTRUNC.
 * Those it did install before it found that the packet does not fit are closed here.
 */
#include "proto/channel.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "proto/proto.h"

union control {
	char bytes[CMSG_SPACE(PROTO_MAX_FDS * sizeof(int))];
	struct cmsghdr align;
};

static ssize_t
send_with_fds(int fd, const void *buf, size_t n, const int *fds, unsigned n_fds, int flags)
{
	union control control = {{0}};
	union {
		const void *in;
		void *out; /* sendmsg() reads only, but its struct is also recvmsg()'s */
	} data = {.in = buf};
	struct iovec iov = {.iov_base = data.out, .iov_len = n};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_SPACE(n_fds * sizeof(int))};
	struct cmsghdr *cmsg = &control.align;

	cmsg->cmsg_level = SOL_SOCKET;
	cmsg->cmsg_type = SCM_RIGHTS;
	cmsg->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
	memcpy(CMSG_DATA(cmsg), fds, n_fds * sizeof(int));
	return sendmsg(fd, &msg, flags);
}

int
channel_send(int fd, const void *buf, size_t n, const int *fds, unsigned n_fds, int flags)
{
	ssize_t sent;

	if (n == 0 || n_fds > PROTO_MAX_FDS)
		return -EINVAL;
	flags |= MSG_NOSIGNAL;
	do
		sent = n_fds > 0 ? send_with_fds(fd, buf, n, fds, n_fds, flags) : send(fd, buf, n, flags);
	while (sent < 0 && errno == EINTR);
	return sent < 0 ? -errno : 0;
}

/* Moves at most room descriptors out of msg, and closes any beyond.  Returns how many were moved. */
static unsigned
take_fds(struct msghdr *msg, int *fds, unsigned room)
{
	struct cmsghdr *cmsg;
	unsigned n = 0;

	for (cmsg = CMSG_FIRSTHDR(msg); cmsg != NULL; cmsg = CMSG_NXTHDR(msg, cmsg)) {
		size_t i, n_here = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS)
			continue;
		for (i = 0; i < n_here; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(cmsg) + i * sizeof(int), sizeof(fd));
			if (n < room)
				fds[n++] = fd;
			else
				close(fd);
		}
	}
	return n;
}

/* is_once: a signal ends it. */
static ssize_t
receive(int fd, void *buf, size_t size, int *fds, unsigned *n_fdsp, int flags, bool is_once)
{
	union control control;
	struct iovec iov = {.iov_base = buf, .iov_len = size};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	unsigned room = n_fdsp != NULL ? *n_fdsp : 0, n_fds;
	ssize_t n;

	if (room > PROTO_MAX_FDS)
		room = PROTO_MAX_FDS;
	do {
		if (room > 0) {
			msg.msg_control = &control;
			msg.msg_controllen = CMSG_LEN(room * sizeof(int)); /* no padding: that would be room for one more */
		}
		n = recvmsg(fd, &msg, flags | MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR && !is_once);
	if (n < 0)
		return -errno;

	n_fds = take_fds(&msg, fds, room);
	if (n > 0 && (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0) {
		if (n_fdsp != NULL)
			*n_fdsp = n_fds;
		return n;
	}
	for (unsigned i = 0; i < n_fds; i++)
		close(fds[i]);
	if (n_fdsp != NULL)
		*n_fdsp = 0;
	if (n == 0)
		return 0;
	/* Cut, though there was room left: the kernel could not install one. */
	if ((msg.msg_flags & MSG_TRUNC) == 0 && n_fds < room)
		return -EMFILE;
	return -EMSGSIZE;
}

ssize_t
channel_recv(int fd, void *buf, size_t size, int *fds, unsigned *n_fdsp, int flags)
{
	return receive(fd, buf, size, fds, n_fdsp, flags, false);
}

ssize_t
channel_wait(int fd, void *buf, size_t size, int *fds, unsigned *n_fdsp)
{
	return receive(fd, buf, size, fds, n_fdsp, 0, true);
}

ssize_t
channel_recv_from(int fd, void *buf, size_t size, struct ucred *senderp, int flags)
{
	union {
		char bytes[CMSG_SPACE(sizeof(struct ucred))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {.iov_base = buf, .iov_len = size};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	struct cmsghdr *cmsg;
	bool has_fds = false;
	ssize_t n;

	do {
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control);
		n = recvmsg(fd, &msg, flags | MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	senderp->pid = 0;
	for (cmsg = CMSG_FIRSTHDR(&msg); cmsg != NULL; cmsg = CMSG_NXTHDR(&msg, cmsg)) {
		if (cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_CREDENTIALS)
			memcpy(senderp, CMSG_DATA(cmsg), sizeof(*senderp));
		has_fds = has_fds || (cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_RIGHTS);
	}
	take_fds(&msg, NULL, 0);
	if (n > 0 && (has_fds || (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0))
		return -EMSGSIZE;
	return n;
}
