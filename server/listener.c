/* SPDX-License-Identifier: Apache-2.0 */
#include "server/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "server/log.h"
#include "server/slabd.h"

enum { ACCEPTS_A_TURN = 64, PAUSE_MS = 100, DEFAULT_SOCKET_MODE = 0660, LISTENER_SO_PASSRIGHTS = 83 };

struct listener {
	struct slabd *slabd;
	int fd;
	int lock_fd;
	char *path; /* NULL: systemd's */
	bool is_bound;
	bool is_kept; /* in the store, for the next slabd */
	bool is_waiting; /* for descriptors, and it was said */
	struct event *readable;
	struct event *resume;
};

/* Out of descriptors: the queue waits a moment instead of spinning. */
static void
on_resume(evutil_socket_t fd, short what, void *ctx)
{
	static const struct timeval pause = {0, PAUSE_MS * 1000};
	struct listener *listener = ctx;

	(void)fd;
	(void)what;
	if (event_add(listener->readable, NULL) < 0)
		event_add(listener->resume, &pause);
}

static void
on_readable(evutil_socket_t fd, short what, void *ctx)
{
	struct listener *listener = ctx;
	struct timeval pause = {0, PAUSE_MS * 1000};

	(void)what;
	for (int i = 0; i < ACCEPTS_A_TURN; i++) {
		int conn = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (conn >= 0) {
			slabd_accept(listener->slabd, conn);
			continue;
		}
		if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
			if (!listener->is_waiting)
				log_warning("connections have to wait: %s; raise LimitNOFILE=", strerror(errno));
			listener->is_waiting = true;
			if (event_add(listener->resume, &pause) == 0)
				event_del(listener->readable);
		} else if (errno == EAGAIN) {
			listener->is_waiting = false;
		}
		return;
	}
}

static int
take_lock(struct listener *listener, char *why, size_t why_size)
{
	char path[sizeof((struct sockaddr_un *)0)->sun_path + 8];

	snprintf(path, sizeof path, "%s.lock", listener->path);
	listener->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (listener->lock_fd < 0) {
		int r = -errno;

		int n = snprintf(why, why_size, "no socket at %s: %s", listener->path, strerror(-r));
		const char *name = strrchr(listener->path, '/');

		if (r == -ENOENT && name && (size_t)n < why_size)
			snprintf(why + n, why_size - (size_t)n, "; its folder is not there: mkdir -p %.*s, under systemd systemd-tmpfiles --create",
				(int)(name - listener->path), listener->path);
		return r;
	}
	if (flock(listener->lock_fd, LOCK_EX | LOCK_NB) < 0) {
		snprintf(why, why_size, "another slabd has %s (its lock %s.lock is taken); stop it, or choose another --socket", listener->path,
			listener->path);
		return -EADDRINUSE;
	}
	return 0;
}

/* Removes what is at the path if it is a socket that nobody listens on. */
static int
clear_path(const char *path, const struct sockaddr_un *address, char *why, size_t why_size)
{
	struct stat st;
	int fd, r;

	if (lstat(path, &st) < 0)
		return 0;
	if (!S_ISSOCK(st.st_mode)) {
		snprintf(why, why_size, "%s is there and no socket; it is left alone", path);
		return -EEXIST;
	}
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0) {
		r = -errno;
		snprintf(why, why_size, "no socket: %s", strerror(-r));
		return r;
	}
	r = connect(fd, (const struct sockaddr *)address, sizeof *address) < 0 ? errno : 0;
	close(fd);
	if (r != ECONNREFUSED) {
		snprintf(why, why_size, "somebody listens on %s (%s); stop it, or choose another --socket", path, r ? strerror(r) : "it answered");
		return -EADDRINUSE;
	}
	log_notice("%s was left behind by a dead slabd: taken over", path);
	if (unlink(path) < 0) {
		r = -errno;
		snprintf(why, why_size, "%s: %s", path, strerror(-r));
		return r;
	}
	return 0;
}

/* The socket that a dead slabd listened on at the path, with who has connected since; false: there is none, or the path is no longer its. */
static bool
take_kept(struct listener *listener)
{
	struct sockaddr_un address = {0};
	socklen_t length = sizeof address;
	struct stat st;
	int fd = store_take(&listener->slabd->store, STORE_CONTROL);

	if (fd < 0)
		return false;
	if (getsockname(fd, (struct sockaddr *)&address, &length) < 0 || address.sun_family != AF_UNIX ||
		strcmp(address.sun_path, listener->path) != 0 || lstat(listener->path, &st) < 0 || !S_ISSOCK(st.st_mode)) {
		close(fd);
		store_drop(&listener->slabd->store, STORE_CONTROL, 1);
		return false;
	}
	listener->fd = fd;
	listener->is_bound = listener->is_kept = true;
	return true;
}

static int
listen_at(struct listener *listener, const struct slabd_options *options, char *why, size_t why_size)
{
	const char *path = options->socket;
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	mode_t mask;
	int r;

	if (strlen(path) == 0 || strlen(path) >= sizeof address.sun_path) {
		snprintf(why, why_size, "a socket's path has 1 to %zu bytes, '%s' has %zu", sizeof address.sun_path - 1, path, strlen(path));
		return -ENAMETOOLONG;
	}
	strcpy(address.sun_path, path);
	listener->path = strdup(path);
	if (!listener->path)
		return -ENOMEM;
	r = take_lock(listener, why, why_size);
	if (r == 0 && take_kept(listener))
		return 0;
	if (r == 0)
		r = clear_path(path, &address, why, why_size);
	if (r < 0) {
		free(listener->path);
		listener->path = NULL;
		return r;
	}
	listener->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	/* Nobody gets in before group and mode are what they should be. */
	mask = umask(0777);
	r = listener->fd < 0 || bind(listener->fd, (struct sockaddr *)&address, sizeof address) < 0 ? -errno : 0;
	umask(mask);
	listener->is_bound = r == 0;
	if (r < 0) {
		snprintf(why, why_size, "%s: %s", path, strerror(-r));
		return r;
	}
	if (options->has_socket_group && lchown(path, (uid_t)-1, options->socket_group) < 0) {
		r = -errno;
		snprintf(why, why_size, "%s: cannot be given to group %u (socket-group): %s", path, options->socket_group, strerror(-r));
	} else if (chmod(path, options->socket_mode ? options->socket_mode : DEFAULT_SOCKET_MODE) < 0 ||
		   listen(listener->fd, SOMAXCONN) < 0) {
		r = -errno;
		snprintf(why, why_size, "%s: %s", path, strerror(-r));
	}
	if (r == 0)
		listener->is_kept = store_keep(&listener->slabd->store, STORE_CONTROL, &listener->fd, 1) == 0;
	return r;
}

int
listener_new(struct listener **listenerp, struct slabd *slabd, const struct slabd_options *options, char *why, size_t why_size)
{
	struct listener *listener = calloc(1, sizeof *listener);
	int n = slabd->store.n_passed, r = 0, on = 1, off = 0;

	if (!listener)
		return -ENOMEM;
	listener->slabd = slabd;
	listener->fd = listener->lock_fd = -1;
	if (n > 1 || (n == 1 && sd_is_socket_unix(slabd->store.passed_fd, SOCK_SEQPACKET, 1, NULL, 0) <= 0)) {
		snprintf(why, why_size, "systemd passed %d descriptors; one is wanted, of ListenSequentialPacket=", n);
		r = -EINVAL;
	} else if (n == 1) {
		listener->fd = slabd->store.passed_fd;
		r = fcntl(listener->fd, F_SETFL, fcntl(listener->fd, F_GETFL) | O_NONBLOCK) < 0 ? -errno : 0;
	} else {
		r = listen_at(listener, options, why, why_size);
	}
	/*
	 * Nobody may pass us a descriptor: to close a stranger's last one can take as long as he likes (SO_LINGER).  Before Linux 6.16 there is no such
	 * option, and such packets are refused after the fact (channel.h).
	 */
	if (r == 0 && !slabd->options.is_old_kernel)
		setsockopt(listener->fd, SOL_SOCKET, LISTENER_SO_PASSRIGHTS, &off, sizeof off);
	/* Here, so that no packet of an accepted connection comes without it. */
	if (r == 0 && slabd->options.is_old_kernel && setsockopt(listener->fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) < 0)
		r = -errno;
	if (r == 0) {
		listener->readable = event_new(slabd->loops[0].base, listener->fd, EV_READ | EV_PERSIST, on_readable, listener);
		listener->resume = evtimer_new(slabd->loops[0].base, on_resume, listener);
		if (!listener->readable || !listener->resume || event_add(listener->readable, NULL) < 0)
			r = -ENOMEM;
	}
	if (r < 0) {
		listener_free(listener);
		return r;
	}
	*listenerp = listener;
	return 0;
}

void
listener_leave(struct listener *listener)
{
	if (!listener->is_kept)
		return;
	listener->is_kept = listener->is_bound = false;
}

void
listener_free(struct listener *listener)
{
	if (!listener)
		return;
	if (listener->readable)
		event_free(listener->readable);
	if (listener->resume)
		event_free(listener->resume);
	if (listener->is_kept)
		store_drop(&listener->slabd->store, STORE_CONTROL, 1);
	if (listener->is_bound)
		unlink(listener->path);
	if (listener->fd >= 0)
		close(listener->fd);
	/* The lock file stays: to unlink it would let two starters lock two files. */
	if (listener->lock_fd >= 0)
		close(listener->lock_fd);
	free(listener->path);
	free(listener);
}
