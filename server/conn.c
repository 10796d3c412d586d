/* SPDX-License-Identifier: Apache-2.0 */
#include "server/conn.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "proto/channel.h"
#include "proto/codec.h"
#include "server/clock.h"
#include "server/drain.h"
#include "server/log.h"
#include "server/reaper.h"
#include "server/request.h"
#include "server/sweep.h"
#include "server/task.h"
#include "server/watch.h"

/* Packets handled before the other connections of the loop have their turn. */
enum { PACKETS_A_TURN = 16, HELLO_S = 2, LOOK_AGAIN_S = 1, LOOK_AGAIN_MAX_S = 64, SLOW_ASKING_NS = 50000000 };

/* For which the dead wait for others: a millisecond each, in which the loop does what there is to do. */
enum { MAX_REAP_TURNS = 8, REAP_TURN_US = 1 };

/* linux/magic.h has it since 6.9. */
enum { PID_FS_MAGIC = 0x50494446 };

static const uint64_t slow_pause_ns = 5000000000u;

static void
conn_close_socket(struct conn *conn)
{
	if (conn->fd < 0)
		return;
	task_cancel(conn);
	watch_end_all(conn);
	drain_release(conn);
	if (conn->readable)
		event_free(conn->readable);
	if (conn->writable)
		event_free(conn->writable);
	close(conn->fd);
	conn->fd = -1;
	conn->n_pending = 0;
}

static bool
is_dead(const struct conn *conn)
{
	struct pollfd p = {.fd = conn->pidfd, .events = POLLIN};

	return conn->pidfd >= 0 && poll(&p, 1, 0) == 1 && (p.revents & POLLIN);
}

/* The sessions of that arena in the loop's list, parted from their connections. */
static struct session *
take_dying(struct loop *loop, const struct arena *arena)
{
	struct session *first = NULL;

	for (struct conn *conn = loop->dying; conn; conn = conn->next_dying) {
		struct session *session = conn->session;

		if (!session || session->arena != arena)
			continue;
		conn->session = NULL;
		session->next_dying = first;
		first = session;
	}
	return first;
}

static void
reap_dying(struct loop *loop)
{
	for (struct conn *conn = loop->dying; conn; conn = conn->next_dying)
		if (conn->session)
			reaper_reap(take_dying(loop, conn->session->arena));
	while (loop->dying) {
		struct conn *conn = loop->dying;

		loop->dying = conn->next_dying;
		conn_free(conn);
	}
	loop->n_dying = 0;
	sweep_wake(loop);
}

static void
on_reap_turn(evutil_socket_t fd, short what, void *ctx)
{
	static const struct timeval turn = {0, REAP_TURN_US};
	struct loop *loop = ctx;
	bool has_more = loop->n_dying > loop->n_dying_seen;

	(void)fd;
	(void)what;
	loop->n_dying_seen = loop->n_dying;
	if (!has_more || ++loop->n_reap_turns >= MAX_REAP_TURNS || event_base_once(loop->base, -1, EV_TIMEOUT, on_reap_turn, loop, &turn) < 0)
		reap_dying(loop);
}

/* The session has ended: with others it is reaped, and the connection is gone then. */
static void
reap_soon(struct conn *conn)
{
	static const struct timeval turn = {0, REAP_TURN_US};
	struct loop *loop = conn->loop;

	if (conn->is_dying)
		return;
	conn_close_socket(conn);
	conn->is_dying = true;
	conn->next_dying = loop->dying;
	loop->dying = conn;
	if (loop->n_dying++ > 0)
		return;
	loop->n_dying_seen = 1;
	loop->n_reap_turns = 0;
	if (event_base_once(loop->base, -1, EV_TIMEOUT, on_reap_turn, loop, &turn) < 0)
		reap_dying(loop);
}

/* Is the process dead, or does it no longer map its session? */
static bool
has_ended(struct conn *conn)
{
	struct slabd *slabd = conn->loop->slabd;
	uint64_t now = clock_now_ns();

	if (is_dead(conn))
		return true;
	if (atomic_read(&slabd->slow_uid) == conn->peer.uid && now < atomic_read(&slabd->slow_until_ns))
		return false;
	if (!session_is_mapped_by_client(conn->session))
		return true;
	if (conn->session->asking_ns > SLOW_ASKING_NS) {
		atomic_write(&slabd->slow_uid, conn->peer.uid);
		atomic_write(&slabd->slow_until_ns, now + slow_pause_ns);
	}
	return false;
}

bool
conn_end_session(struct conn *conn)
{
	struct session *session = conn->session;

	if (!session)
		return true;
	if (!has_ended(conn))
		return false;
	conn->session = NULL;
	reaper_reap(session);
	sweep_wake(conn->loop);
	return true;
}

/* The socket has ended. */
static void
end(struct conn *conn)
{
	struct timeval again = {LOOK_AGAIN_S, 0};

	conn_close_socket(conn);
	if (!conn->session) {
		conn_free(conn);
		return;
	}
	if (has_ended(conn)) {
		reap_soon(conn);
		return;
	}
	atomic_write(&conn->session->state, SESSION_DETACHED);
	log_info("client %u (pid %d) has closed its socket and still maps its session: kept until it ends", conn->session->id, conn->peer.pid);
	conn->again_s = LOOK_AGAIN_S;
	event_add(conn->again, &again);
}

static void
on_died(evutil_socket_t fd, short what, void *ctx)
{
	struct conn *conn = ctx;

	(void)fd;
	(void)what;
	if (conn->session)
		reap_soon(conn);
	else
		conn_free(conn);
}

static void
on_again(evutil_socket_t fd, short what, void *ctx)
{
	struct conn *conn = ctx;
	struct timeval again;

	(void)fd;
	(void)what;
	/* Who has connected and says nothing. */
	if (conn->fd >= 0) {
		if (!conn->has_hello)
			conn_free(conn);
		return;
	}
	/* Less and less often: who lives on without his socket may do so for long, and his death shows at once. */
	if (conn->again_s < LOOK_AGAIN_MAX_S)
		conn->again_s *= 2;
	again = (struct timeval){conn->again_s, 0};
	if (conn->is_dying)
		return;
	if (has_ended(conn))
		reap_soon(conn);
	else
		event_add(conn->again, &again);
}

/* Told at each power of two: nobody shall fill the log. */
static void
note_bad_packet(const struct conn *conn, const char *what)
{
	uint64_t n = atomic_add(&conn->loop->slabd->n_bad_packets, 1) + 1;

	if ((n & (n - 1)) == 0)
		log_warning("pid %d, uid %u: %s; %llu bad packets in all", conn->peer.pid, conn->peer.uid, what, (unsigned long long)n);
}

static void
on_readable(evutil_socket_t fd, short what, void *ctx)
{
	struct conn *conn = ctx;

	(void)what;
	for (int i = 0; i < PACKETS_A_TURN && conn->n_pending == 0 && !conn->task; i++) {
		unsigned char packet[PROTO_MAX_PACKET];
		ssize_t n = channel_recv_from(fd, packet, sizeof packet, &conn->sender, MSG_DONTWAIT);
		int r;

		if (n == -EAGAIN)
			return;
		r = n > 0 ? request_handle(conn, packet, (size_t)n) : 0;
		if (n > 0 && (r == REQUEST_E_HEAVY || r == REQUEST_E_ANSWERED))
			return;
		if (n > 0 && r == REQUEST_E_MOVED) {
			/* Its socket is another loop's. */
			event_free(conn->readable);
			event_free(conn->writable);
			conn->fd = -1;
			conn_free(conn);
			return;
		}
		if (n > 0 && r == 0)
			continue;
		if (n == -EMSGSIZE || n == -EMFILE || n > 0)
			note_bad_packet(conn,
				n > 0 ? "a packet that is none of the protocol's; the connection is closed" :
					"a packet too long, or with descriptors nobody asked for; it is ignored");
		if (n == -EMSGSIZE || n == -EMFILE)
			continue;
		end(conn);
		return;
	}
}

static void
on_writable(evutil_socket_t fd, short what, void *ctx)
{
	struct conn *conn = ctx;
	int r = channel_send(fd, conn->pending, conn->n_pending, NULL, 0, MSG_DONTWAIT);

	(void)what;
	if (r == -EAGAIN && event_add(conn->writable, NULL) == 0)
		return;
	conn->n_pending = 0;
	/* What cannot be watched any more would wait for ever. */
	if (r < 0 || event_add(conn->readable, NULL) < 0)
		end(conn);
}

void
conn_send(struct conn *conn, const void *buf, size_t n, const int *fds, unsigned n_fds)
{
	int r = channel_send(conn->fd, buf, n, fds, n_fds, MSG_DONTWAIT);
	void *pending;

	if (r == 0)
		return;
	/* A peer that asks and does not read waits; what cannot be sent at all, descriptors included, is told by the connection's end. */
	pending = r == -EAGAIN && n_fds == 0 ? realloc(conn->pending, n) : NULL;
	if (pending)
		conn->pending = pending;
	if (!pending || event_add(conn->writable, NULL) < 0) {
		shutdown(conn->fd, SHUT_RDWR);
		return;
	}
	memcpy(conn->pending, buf, n);
	conn->n_pending = n;
	event_del(conn->readable);
}

void
conn_pause(struct conn *conn)
{
	event_del(conn->readable);
}

int
conn_resume(struct conn *conn)
{
	return event_add(conn->readable, NULL) < 0 ? -ENOMEM : 0;
}

void
conn_hang_up(struct conn *conn)
{
	end(conn);
}

int
conn_open_nonce(struct conn *conn)
{
	if (!conn->loop->slabd->options.is_old_kernel || conn->nonce)
		return 0;
	conn->pidfd = (int)syscall(SYS_pidfd_open, conn->sender.pid, 0);
	if (conn->pidfd < 0)
		return -errno;
	conn->peer = conn->sender;
	while (!conn->nonce)
		if (getrandom(&conn->nonce, sizeof conn->nonce, 0) != (ssize_t)sizeof conn->nonce)
			return -EIO;
	return 0;
}

int
conn_watch_death(struct conn *conn, uint64_t nonce)
{
	socklen_t length = sizeof conn->pidfd;

	if (conn->died)
		return 0;
	if (conn->loop->slabd->options.is_old_kernel) {
		if (conn->sender.pid != conn->peer.pid || nonce != conn->nonce)
			return -EPERM;
	} else if (conn->pidfd < 0 && getsockopt(conn->fd, SOL_SOCKET, CONN_SO_PEERPIDFD, &conn->pidfd, &length) < 0) {
		return -errno;
	}
	conn->died = event_new(conn->loop->base, conn->pidfd, EV_READ, on_died, conn);
	if (conn->died && event_add(conn->died, NULL) == 0)
		return 0;
	if (conn->died)
		event_free(conn->died);
	conn->died = NULL;
	return -ENOMEM;
}

void
conn_has_session(struct conn *conn)
{
	if (conn->is_stranger)
		strangers_put(&conn->loop->slabd->strangers, conn->peer_uid);
	conn->is_stranger = false;
}

void
conn_is_stranger_again(struct conn *conn)
{
	struct timeval patience = {HELLO_S, 0};

	conn->is_stranger = strangers_take(&conn->loop->slabd->strangers, conn->peer_uid);
	conn->is_over_limit = !conn->is_stranger;
	conn->has_hello = false;
	if (event_add(conn->again, &patience) < 0)
		shutdown(conn->fd, SHUT_RDWR);
}

/* Closes the oldest of the loop that has said nothing yet, of the same user or of any.  false: there is none. */
static bool
evict_silent(const struct conn *newcomer, bool is_any_user)
{
	struct conn *oldest = NULL;

	for (struct conn *conn = newcomer->next; conn; conn = conn->next)
		if (!conn->has_hello && (is_any_user || conn->peer_uid == newcomer->peer_uid))
			oldest = conn;
	if (oldest)
		conn_free(oldest);
	return oldest != NULL;
}

/*
 * Where a user has as many as he may, or descriptors are few, who has been silent longest goes.  If nobody is silent it is told so when it says HELLO,
 * unless descriptors are few.
 */
static bool
may_stay(struct conn *conn)
{
	struct strangers *strangers = &conn->loop->slabd->strangers;
	struct timeval patience = {HELLO_S, 0};

	conn->peer_uid = conn->peer.uid;
	if (strangers_are_many(strangers, conn->fd))
		evict_silent(conn, true);
	conn->is_stranger = strangers_take(strangers, conn->peer_uid) ||
			    (evict_silent(conn, false) && strangers_take(strangers, conn->peer_uid));
	conn->is_over_limit = !conn->is_stranger;
	if (conn->is_over_limit && strangers_are_many(strangers, conn->fd))
		return false;
	return event_add(conn->again, &patience) == 0;
}

/* In the loop's list, without a socket. */
static struct conn *
conn_make(struct loop *loop)
{
	struct conn *conn = calloc(1, sizeof *conn);

	if (!conn)
		return NULL;
	conn->loop = loop;
	conn->fd = -1;
	conn->pidfd = -1;
	conn->again = evtimer_new(loop->base, on_again, conn);
	conn->next = loop->conns;
	conn->prevp = &loop->conns;
	if (conn->next)
		conn->next->prevp = &conn->next;
	loop->conns = conn;
	atomic_add(&loop->n_conns, 1);
	return conn;
}

/* The socket is the connection's.  false: there is no memory for it. */
static bool
conn_open_socket(struct conn *conn, int fd)
{
	socklen_t length = sizeof conn->peer;

	conn->fd = fd;
	conn->readable = event_new(conn->loop->base, fd, EV_READ | EV_PERSIST, on_readable, conn);
	conn->writable = event_new(conn->loop->base, fd, EV_WRITE, on_writable, conn);
	return conn->readable && conn->writable && conn->again && event_add(conn->readable, NULL) == 0 &&
	       getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &conn->peer, &length) == 0;
}

void
conn_new(struct loop *loop, int fd)
{
	struct conn *conn = conn_make(loop);

	if (!conn)
		close(fd);
	else if (!conn_open_socket(conn, fd) || !may_stay(conn))
		conn_free(conn);
}

int
conn_adopt(struct loop *loop, struct session *session, int pidfd)
{
	static const struct timeval again = {LOOK_AGAIN_S, 0};
	struct conn *conn = conn_make(loop);

	if (!conn) {
		close(pidfd);
		return -ENOMEM;
	}
	conn->pidfd = pidfd;
	conn->peer = (struct ucred){session->pid, session->uid, session->gid};
	conn->session = session;
	/* To the dead slabd it did. */
	conn->has_hello = true;
	conn->again_s = LOOK_AGAIN_S;
	session->loop = (unsigned)(loop - loop->slabd->loops);
	conn->died = event_new(loop->base, pidfd, EV_READ, on_died, conn);
	/* Of a read-only one no mapping tells whether it has ended, so only its process's death does. */
	if (!conn->again || !conn->died || event_add(conn->died, NULL) < 0 || (!session->is_readonly && event_add(conn->again, &again) < 0)) {
		conn_free(conn);
		return -ENOMEM;
	}
	return 0;
}

/* The session's connection in this loop, in which nothing of it is changed but by the loop. */
static struct conn *
find(const struct loop *loop, const struct loop_message *m)
{
	for (struct conn *conn = loop->conns; conn; conn = conn->next)
		if (conn->session && conn->session->arena == m->arena && conn->session->id == m->client_id)
			return conn;
	return NULL;
}

/*
 * Is the peer of the new socket the session's process?  That one lives, so its number is nobody else's, and was not when the peer connected; a process of
 * another PID namespace, which has no number here, is known by its pidfd, where these have inodes of their own (Linux 6.9).
 */
static bool
is_same_process(const struct conn *conn, const struct loop_message *m)
{
	socklen_t length = sizeof(int);
	struct stat mine, its;
	struct statfs fs;
	int pidfd;
	bool is_same;

	if (m->pid != 0 || conn->session->pid != 0)
		return conn->session->pid == m->pid;
	if (getsockopt(m->fd, SOL_SOCKET, CONN_SO_PEERPIDFD, &pidfd, &length) < 0)
		return false;
	is_same = fstatfs(pidfd, &fs) == 0 && fs.f_type == PID_FS_MAGIC && fstat(pidfd, &its) == 0 && fstat(conn->pidfd, &mine) == 0 &&
		  its.st_dev == mine.st_dev && its.st_ino == mine.st_ino;
	close(pidfd);
	return is_same;
}

static enum proto_status
check_resume(const struct conn *conn, const struct loop_message *m, char *why, size_t why_size)
{
	/* One that waits to be reaped has ended, though its process may live: it no longer maps it. */
	if (!conn || conn->is_dying || is_dead(conn)) {
		snprintf(why, why_size, "there is no session of client %u here", m->client_id);
		return PROTO_STATUS_STALE;
	}
	if (!conn->session->token || conn->session->token != m->token || !is_same_process(conn, m)) {
		snprintf(why, why_size, "the session of client %u is another process's", m->client_id);
		return PROTO_STATUS_ACCESS;
	}
	if (conn->fd >= 0) {
		snprintf(why, why_size, "the session of client %u has its connection still", m->client_id);
		return PROTO_STATUS_BUSY;
	}
	/* Was there no memory to map it when it was last looked at? */
	if (!conn->session->is_readonly && !conn->session->map && !session_is_mapped_by_client(conn->session)) {
		snprintf(why, why_size, "client %u no longer maps its session", m->client_id);
		return PROTO_STATUS_STALE;
	}
	if (!conn->session->is_readonly && !conn->session->map) {
		snprintf(why, why_size, "slabd has no memory to map the session of client %u", m->client_id);
		return PROTO_STATUS_BUSY;
	}
	return PROTO_STATUS_OK;
}

void
conn_take_up(struct loop *loop, const struct loop_message *m)
{
	char why[PROTO_SENTENCE_BYTES];
	unsigned char buf[512];
	union proto_reply reply = {0};
	struct conn *conn = find(loop, m);
	enum proto_status status = check_resume(conn, m, why, sizeof why);
	int n;

	if (status == PROTO_STATUS_OK)
		event_del(conn->again);
	else
		conn = conn_make(loop);
	if (!conn) {
		close(m->fd);
		return;
	}
	if (!conn_open_socket(conn, m->fd)) {
		if (conn->session)
			end(conn);
		else
			conn_free(conn);
		return;
	}
	conn->has_hello = true;
	if (status == PROTO_STATUS_OK) {
		session_resume(conn->session);
		log_info("client %u (pid %d) has taken its session up again", conn->session->id, conn->peer.pid);
		n = proto_pack_reply(buf, sizeof buf, PROTO_OP_RESUME, m->request_id, &reply);
	} else {
		/* It counts as before. */
		conn->peer_uid = conn->peer.uid;
		conn->is_stranger = strangers_take(&loop->slabd->strangers, conn->peer_uid);
		if (!conn->is_stranger) {
			conn_free(conn);
			return;
		}
		n = proto_pack_error(buf, sizeof buf, m->request_id, status, why);
	}
	if (n > 0)
		conn_send(conn, buf, (size_t)n, NULL, 0);
}

/*
 * Its process may go on in what it maps: its segment is nobody's then, and in the arena's words it can spoil no more than before.  A thread of it that was in
 * the midst of something finds its sheaves empty, asks for another, and is told that the session is gone.
 */
void
conn_evict(struct loop *loop, const struct loop_message *m)
{
	struct conn *conn = find(loop, m);
	const struct session *session;

	if (!conn || conn->is_dying)
		return;
	session = conn->session;
	log_warning("client %u (pid %d, uid %u, '%s') is evicted: it did %llu things that only a faulty client does, and max-faults of arena '%s' is %u",
		session->id, session->pid, session->uid, session->label, (unsigned long long)atomic_read(&session->n_own_faults), m->arena->name,
		atomic_read(&m->arena->options.max_faults));
	atomic_add(&m->arena->n_evicted, 1);
	reap_soon(conn);
}

void
conn_free(struct conn *conn)
{
	*conn->prevp = conn->next;
	if (conn->next)
		conn->next->prevp = conn->prevp;
	atomic_add(&conn->loop->n_conns, -1u);
	conn_has_session(conn);
	task_cancel(conn);
	watch_end_all(conn);
	drain_release(conn);
	if (conn->fd >= 0) {
		if (conn->readable)
			event_free(conn->readable);
		if (conn->writable)
			event_free(conn->writable);
		close(conn->fd);
	}
	if (conn->died)
		event_free(conn->died);
	if (conn->again)
		event_free(conn->again);
	if (conn->pidfd >= 0)
		close(conn->pidfd);
	free(conn->pending);
	free(conn);
}
