/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One packet and its descriptors over a SOCK_SEQPACKET socket.
 *
 * flags: MSG_DONTWAIT or 0.  Errors of the system come as they are (-EAGAIN, -EPIPE, -ECONNRESET); EINTR is tried again.
 */
#ifndef SLAB_PROTO_CHANNEL_H
#define SLAB_PROTO_CHANNEL_H

#include <stddef.h>
#include <sys/types.h>

struct ucred;

/* 0.  The descriptors stay the caller's.  -EINVAL: an empty packet (it would read as the end), or more than PROTO_MAX_FDS descriptors. */
int channel_send(int fd, const void *buf, size_t n, const int *fds, unsigned n_fds, int flags);

/*
 * Returns the packet's length; 0 at the end.  *n_fdsp: in the room in fds, out how many came; these are the caller's, close-on-exec.
 * n_fdsp NULL: none are wanted.
 *
 * A packet that does not fit is consumed and refused whole, and no descriptor of it stays open; the connection is still good.
 * -EMSGSIZE: too many bytes, or descriptors that nobody asked for.  -EMFILE: this process may not open as many descriptors as came.
 */
ssize_t channel_recv(int fd, void *buf, size_t size, int *fds, unsigned *n_fdsp, int flags);

/* As channel_recv(), for a packet that is waited for: as long as SO_RCVTIMEO has it, then -EAGAIN; or until a signal comes: -EINTR. */
ssize_t channel_wait(int fd, void *buf, size_t size, int *fds, unsigned *n_fdsp);

/* As channel_recv() without descriptors.  senderp: who sent the packet, if the socket has SO_PASSCRED; else its pid is 0. */
ssize_t channel_recv_from(int fd, void *buf, size_t size, struct ucred *senderp, int flags);

#endif
