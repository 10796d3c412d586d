/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of a session: one packet out, one packet back.
 *
 * One request is under way at a time (slabc.requests); its reply is known by its id.  A request that was given up leaves a late reply,
 * which is skipped when the next one looks for its own; what a skipped refill brought lies in the process barn already, and a late
 * prefilled sheaf is given back.  The two kinds whose late reply matters carry it in their id: bits 31 and 30, and the cache.
 *
 * Sending never blocks.  Waiting for a reply lies in recvmsg() itself at first, which spares a round trip three system calls; after BLOCK_NS, or where the
 * deadline is near, it is poll() up to that.  When the connection ends, the next request connects anew, if the next slabd may know the session
 * (reconnect.c), and is sent again; else the session is dead for good: what needs slabd then says ENOTCONN, what does not goes on.
 * A program that closes all its descriptors closes ours too, and its next socket may have our number: before each request, and after each wait in which
 * it could do so, the descriptor is looked at, and what is not ours is neither written, read nor closed: the connection has ended.  What recvmsg() waits
 * for comes from the file with which it began, whatever has the number since.
 */
#include "client/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/single_threaded.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "client/reach.h"
#include "proto/channel.h"
#include "proto/codec.h"

#define ID_NOWAIT 0x80000000u
#define ID_PREFILL 0x40000000u
#define ID_CACHE_SHIFT 21
#define ID_CACHE_MASK (LAYOUT_MAX_CACHES - 1u)
#define ID_COUNT_MASK ((1u << ID_CACHE_SHIFT) - 1)

/* A SLABC_NOWAIT refill tries for so long to connect, and then not for so long. */
#define TRY_NS INT64_C(5000000)
#define TRY_AGAIN_NS INT64_C(20000000)
/* Who has given up a request asks no more for so long, should the late reply not come. */
#define SILENCE_NS INT64_C(10000000000)

/* A wait for a reply lies in recvmsg() for so long, unless the deadline is nearer than twice that: the clock of SO_RCVTIMEO is a coarse one. */
#define BLOCK_NS INT64_C(200000000)

#define PACKET_BYTES 1024 /* no reply that a library asks for is larger */

int64_t
session_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t
session_deadline(const struct slabc *c, int64_t *deadlinep)
{
	if (*deadlinep == 0)
		*deadlinep = c->timeout_ms < 0 ? CLIENT_FOR_EVER : session_now_ns() + (int64_t)c->timeout_ms * 1000000;
	return *deadlinep;
}

int
session_timed_out(const struct slabc *c, const char *what)
{
	return error_set(ETIMEDOUT, "%s took longer than timeout_ms %d: slabd is busy or stopped; raise struct slabc_options' timeout_ms",
		what, c->timeout_ms);
}

bool
session_owns_fd(const struct slabc *c)
{
	struct stat st;

	return fstat(c->fd, &st) == 0 && st.st_dev == atomic_read(&c->fd_dev) && st.st_ino == atomic_read(&c->fd_ino);
}

int
session_lost(struct slabc *c)
{
	atomic_write(&c->is_dead, 1);
	if (!session_owns_fd(c))
		return error_set(ENOTCONN,
			"the program has closed descriptor %d, the session's connection to slabd; close this session and open a new one", c->fd);
	return error_set(
		ENOTCONN, "the connection to slabd has ended: it was stopped or has restarted; close this session and open a new one");
}

/* Waits for the socket.  No longer than until the deadline, however often it is ready and is not after all. */
static int
wait_for(struct slabc *c, short events, int64_t deadline, const char *what)
{
	for (;;) {
		struct pollfd p = {.fd = c->fd, .events = events};
		int64_t left_ms = -1;
		int r;

		if (deadline != CLIENT_FOR_EVER) {
			left_ms = (deadline - session_now_ns() + 999999) / 1000000;
			if (left_ms <= 0)
				left_ms = 0;
			if (left_ms > INT_MAX)
				left_ms = INT_MAX;
		}
		r = poll(&p, 1, (int)left_ms);
		if (r > 0 && !session_owns_fd(c))
			return session_lost(c);
		if (r >= 0 && left_ms == 0)
			return session_timed_out(c, what);
		if (r > 0)
			return 0;
		if (r < 0 && errno != EINTR)
			return error_set(errno, "poll: %s", strerror(errno));
	}
}

void
session_let_block(int fd)
{
	const struct timeval block = {.tv_usec = BLOCK_NS / 1000};

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &block, sizeof(block));
	fcntl(fd, F_SETFL, 0);
}

int
session_connect(struct slabc *c, const char *path, const char *source, int64_t deadline)
{
	static const struct timespec pause = {.tv_nsec = 1000000};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char why[REACH_SENTENCE_BYTES];
	int r;

	if (strlen(path) >= sizeof(address.sun_path))
		return error_set(EINVAL, "socket path (%s) of %zu bytes: at most %zu fit an address", source, strlen(path),
			sizeof(address.sun_path) - 1);
	strcpy(address.sun_path, path);
	atomic_write(&c->is_dead, 0);
	session_disconnect(c);
	c->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (c->fd < 0)
		return error_set(errno, "socket: %s", strerror(errno));
	r = session_note_fd(c);
	if (r < 0)
		return error_set(-r, "fstat: %s", strerror(-r));
	while (connect(c->fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		int error = errno;

		if (error == EINTR)
			continue;
		if (error != EAGAIN) { /* backlog full: no poll() tells when it is not */
			reach_explain(path, source, error, why, sizeof(why));
			return error_set(error, "%s", why);
		}
		if (session_now_ns() >= deadline)
			return session_timed_out(c, "connecting");
		nanosleep(&pause, NULL);
	}
	session_let_block(c->fd);
	return 0;
}

void
session_disconnect(struct slabc *c)
{
	if (c->fd >= 0 && session_owns_fd(c))
		close(c->fd);
	c->fd = -1;
}

/* A descriptor that the program has closed is a connection that has ended. requests held. */
static void
look_at_socket(struct slabc *c)
{
	if (!session_owns_fd(c))
		atomic_write(&c->is_dead, 1);
}

static int
lock_requests(struct slabc *c, int64_t deadline)
{
	struct timespec until = {.tv_sec = deadline / 1000000000, .tv_nsec = deadline % 1000000000};

#ifdef __SANITIZE_THREAD__
	deadline = CLIENT_FOR_EVER; /* gcc 12's TSan does not see pthread_mutex_clocklock() */
#endif
	if (deadline == CLIENT_FOR_EVER)
		pthread_mutex_lock(&c->requests);
	else if (pthread_mutex_clocklock(&c->requests, CLOCK_MONOTONIC, &until) != 0)
		return session_timed_out(c, "waiting for another thread's request");
	return 0;
}

static uint32_t
next_id(struct slabc *c)
{
	c->last_id = c->last_id % ID_COUNT_MASK + 1;
	return c->last_id;
}

/* Sends a request.  -EAGAIN, without a sentence: flags say MSG_DONTWAIT and there is no room. */
static int
send_request(struct slabc *c, enum proto_op op, uint32_t id, const union proto_request *request, bool is_waiting, int64_t deadline)
{
	unsigned char packet[PACKET_BYTES];
	int n = proto_pack_request(packet, sizeof(packet), op, id, request), r;

	if (n < 0)
		return error_set(EINVAL, "a field of %s is over its limit", proto_op_name(op));
	for (;;) {
		r = channel_send(c->fd, packet, (size_t)n, NULL, 0, MSG_DONTWAIT);
		if (r == 0)
			return 0;
		if (r != -EAGAIN)
			return session_lost(c);
		if (!is_waiting)
			return -EAGAIN;
		r = wait_for(c, POLLOUT, deadline, proto_op_name(op));
		if (r < 0)
			return r;
	}
}

/* A reply that nobody waits for any more. requests held. */
static void
skip_reply(struct slabc *c, const void *packet, size_t n, uint32_t id)
{
	uint32_t cache = id >> ID_CACHE_SHIFT & ID_CACHE_MASK, unused;
	char sentence[PROTO_SENTENCE_BYTES];
	enum proto_status status;
	union proto_reply reply;

	if ((id & (ID_NOWAIT | ID_PREFILL)) == 0)
		return;
	if (proto_unpack_reply(packet, n, PROTO_OP_REFILL, &unused, &status, &reply, sentence, sizeof(sentence)) < 0)
		status = PROTO_STATUS_IO;
	if (id & ID_NOWAIT) {
		c->nowait[cache] = status == PROTO_STATUS_OK ? NOWAIT_CAME : -proto_status_errno(status);
	} else if (status == PROTO_STATUS_OK && mapping_sheaf(c, reply.refill.slot)) {
		slot_give_back(c, cache, reply.refill.slot, LAYOUT_HOLDER_APP);
	}
}

/* A packet; is_waiting: waits for one, but not for ever.  -EAGAIN: there is none yet.  -EINTR: a signal came.  -ENOTCONN: the descriptor is not ours any more. */
static ssize_t
receive_packet(struct slabc *c, void *packet, int *fds, unsigned *n_fdsp, bool is_waiting)
{
	ssize_t n;

	/* Who has but one thread can have closed nothing since the request was sent. */
	if (is_waiting && !__libc_single_threaded && !session_owns_fd(c))
		return session_lost(c);
	if (!is_waiting)
		return channel_recv(c->fd, packet, PACKET_BYTES, fds, n_fdsp, MSG_DONTWAIT);
	n = channel_wait(c->fd, packet, PACKET_BYTES, fds, n_fdsp);
	return (n != -EAGAIN && n != -EINTR) || session_owns_fd(c) ? n : session_lost(c);
}

/* Receives until the reply to id is there, or, id 0, until there is no packet: -EAGAIN. */
static int
receive_reply(struct slabc *c, enum proto_op op, uint32_t id, union proto_reply *reply, int *fds, unsigned *n_fdsp, int64_t deadline)
{
	unsigned char packet[PACKET_BYTES];
	char sentence[PROTO_SENTENCE_BYTES];
	unsigned room = n_fdsp ? *n_fdsp : 0;
	enum proto_status status;
	uint32_t id_here;
	ssize_t n;
	int r;

	for (;;) {
		if (n_fdsp)
			*n_fdsp = room;
		n = receive_packet(c, packet, fds, n_fdsp,
			id != 0 && (deadline == CLIENT_FOR_EVER || deadline - session_now_ns() > 2 * BLOCK_NS));
		if (n == -EINTR)
			continue;
		if (n == -EAGAIN) {
			if (id == 0)
				return -EAGAIN;
			r = wait_for(c, POLLIN, deadline, proto_op_name(op));
			if (r < 0)
				return r;
			continue;
		}
		if (n == -EMFILE)
			return error_set(EMFILE, "slabd's segments could not be taken over, for want of descriptors: raise RLIMIT_NOFILE");
		if (n == -EMSGSIZE) /* no reply of ours */
			continue;
		if (n <= 0)
			return session_lost(c);
		atomic_write(&c->given_up_ns, 0);
		r = proto_unpack_reply(packet, (size_t)n, op, &id_here, &status, reply, sentence, sizeof(sentence));
		if (id_here == id && id != 0)
			break;
		skip_reply(c, packet, (size_t)n, id_here);
		for (unsigned i = 0; n_fdsp && i < *n_fdsp; i++)
			close(fds[i]);
	}
	if (r == 0 && status == PROTO_STATUS_OK)
		return 0;
	for (unsigned i = 0; n_fdsp && i < *n_fdsp; i++)
		close(fds[i]);
	if (n_fdsp)
		*n_fdsp = 0;
	if (r < 0)
		return error_set(EPROTO, "slabd's answer makes no sense: %s", sentence);
	return error_set(-proto_status_errno(status), "%s", sentence);
}

int
session_exchange(struct slabc *c, enum proto_op op, const union proto_request *request, union proto_reply *reply, int *fds, unsigned *n_fdsp,
	int64_t deadline)
{
	bool is_prefill = op == PROTO_OP_REFILL && request->refill.capacity > 0;
	uint32_t id = next_id(c);
	int r;

	if (is_prefill)
		id |= ID_PREFILL | request->refill.cache << ID_CACHE_SHIFT;
	r = send_request(c, op, id, request, true, deadline);
	if (r < 0)
		return r;
	STEP(REFILL_SENT);
	r = receive_reply(c, op, id, reply, fds, n_fdsp, deadline);
	if (r == 0 && is_prefill)
		atomic_write(&c->is_with_app[reply->refill.slot], 1);
	return r;
}

int
session_hello(struct slabc *c, uint64_t *noncep, int64_t deadline)
{
	union proto_request request = {.hello = {.version = PROTO_VERSION, .layout_hash = layout_hash}};
	union proto_reply reply;
	int r;

	snprintf(request.hello.library, sizeof(request.hello.library), "libslabclient %s", SLABC_VERSION);
	r = session_exchange(c, PROTO_OP_HELLO, &request, &reply, NULL, NULL, deadline);
	if (r < 0)
		return r;
	if (reply.hello.version != PROTO_VERSION || reply.hello.layout_hash != layout_hash)
		return error_set(EPROTO,
			"%s speaks protocol %u with layout %016llx, libslabclient " SLABC_VERSION " protocol %d with layout %016llx",
			reply.hello.server, reply.hello.version, (unsigned long long)reply.hello.layout_hash, PROTO_VERSION,
			(unsigned long long)layout_hash);
	*noncep = reply.hello.nonce;
	return 0;
}

int
session_call_fds(struct slabc *c, enum proto_op op, const union proto_request *request, union proto_reply *reply, int *fds,
	unsigned *n_fdsp, int64_t deadline)
{
	unsigned room = n_fdsp ? *n_fdsp : 0, n_sent = 0;
	int r = lock_requests(c, deadline);

	if (r < 0)
		return r;
	do {
		look_at_socket(c);
		r = session_ready(c, deadline);
		if (r < 0)
			break;
		if (n_fdsp)
			*n_fdsp = room;
		r = session_exchange(c, op, request, reply, fds, n_fdsp, deadline);
		n_sent++;
	} while (r < 0 && atomic_read(&c->is_dead) && c->token);
	if (r < 0 && n_sent > 1)
		r = session_judge_resent(c, op, request, r, deadline);
	if (r == -ETIMEDOUT)
		atomic_write(&c->given_up_ns, session_now_ns());
	pthread_mutex_unlock(&c->requests);
	return r;
}

bool
session_is_silent(struct slabc *c)
{
	int64_t since = atomic_read(&c->given_up_ns);
	struct pollfd p = {.fd = c->fd, .events = POLLIN};

	return since != 0 && session_now_ns() - since < SILENCE_NS && poll(&p, 1, 0) == 0;
}

int
session_call(struct slabc *c, enum proto_op op, const union proto_request *request, union proto_reply *reply, int64_t deadline)
{
	return session_call_fds(c, op, request, reply, NULL, NULL, deadline);
}

int
session_ask(struct slabc *c, enum proto_op op, const union proto_request *request, union proto_reply *reply)
{
	int error = errno, r;
	int64_t deadline = 0;

	if (!thread_enter(NULL))
		return error_set(EAGAIN, "a call that asks slabd, in a signal handler that interrupted the library");
	r = session_call(c, op, request, reply, session_deadline(c, &deadline));
	thread_leave();
	errno = error;
	return r;
}

bool
session_post(struct slabc *c, enum proto_op op, const union proto_request *request)
{
	return !atomic_read(&c->is_dead) && session_owns_fd(c) && send_request(c, op, 0, request, false, 0) == 0;
}

/* A look whether slabd is back, which takes no longer than it must.  -EAGAIN: not yet. */
static int
try_ready(struct slabc *c)
{
	int64_t now = session_now_ns();
	int r = -ETIMEDOUT;

	if (!c->token || now >= c->retry_ns)
		r = session_ready(c, now + TRY_NS);
	if (r != -ETIMEDOUT)
		return r;
	if (now >= c->retry_ns)
		c->retry_ns = session_now_ns() + TRY_AGAIN_NS;
	return error_set(EAGAIN, "nothing is cached, and slabd is being restarted");
}

int
session_refill_nowait(struct slabc *c, const union proto_request *request)
{
	int *statep = &c->nowait[request->refill.cache];
	union proto_reply reply;
	int r = 0;

	if (pthread_mutex_trylock(&c->requests) != 0)
		return error_set(EAGAIN, "nothing is cached, and another thread's request to slabd is under way");
	look_at_socket(c);
	if (atomic_read(&c->is_dead))
		r = try_ready(c);
	if (r < 0) {
		pthread_mutex_unlock(&c->requests);
		return r;
	}
	r = receive_reply(c, PROTO_OP_REFILL, 0, &reply, NULL, NULL, 0);
	if (r == -EAGAIN && *statep == NOWAIT_CAME) {
		*statep = NOWAIT_IDLE;
		r = 0;
	} else if (r == -EAGAIN && *statep > 0) {
		r = error_set(*statep, "slabd could not refill the cache: %s", strerror(*statep));
		*statep = NOWAIT_IDLE;
	} else if (r == -EAGAIN) {
		uint32_t id = next_id(c) | ID_NOWAIT | request->refill.cache << ID_CACHE_SHIFT;

		if (*statep == NOWAIT_IDLE) {
			r = send_request(c, PROTO_OP_REFILL, id, request, false, 0);
			if (r == 0)
				*statep = NOWAIT_SENT;
		}
		if (r == 0 || r == -EAGAIN)
			r = error_set(EAGAIN, "nothing is cached; a refill is on its way");
	}
	if (r < 0 && atomic_read(&c->is_dead) && c->token && !c->is_stale)
		r = error_set(EAGAIN, "nothing is cached, and slabd is being restarted");
	pthread_mutex_unlock(&c->requests);
	return r;
}
