/* SPDX-License-Identifier: Apache-2.0 */
#include "server/slabd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "server/conn.h"
#include "server/listener.h"
#include "server/log.h"

static const char *const profile_names[] = {"default", "kernel", "tiny"};
static const char *const page_kind_names[] = {"auto", "huge", "4k"};

static int
find_name(const char *const *names, int n, const char *name)
{
	for (int i = 0; i < n; i++)
		if (strcmp(names[i], name) == 0)
			return i;
	return -1;
}

const char *
slabd_profile_name(enum arena_profile profile)
{
	return profile_names[profile];
}

int
slabd_profile_parse(const char *name)
{
	return find_name(profile_names, 3, name);
}

const char *
slabd_page_kind_name(enum arena_page_kind kind)
{
	return page_kind_names[kind];
}

int
slabd_page_kind_parse(const char *name)
{
	return find_name(page_kind_names, 3, name);
}

/* What other threads ask of the loop. */
static void
on_wake(evutil_socket_t fd, short what, void *ctx)
{
	struct loop *loop = ctx;
	int conn;

	(void)what;
	while (read(fd, &conn, sizeof conn) == (ssize_t)sizeof conn) {
		if (conn < 0)
			event_base_loopbreak(loop->base);
		else
			conn_new(loop, conn);
	}
}

static int
loop_init(struct loop *loop, struct slabd *slabd)
{
	struct event_config *config;

	loop->slabd = slabd;
	if (pipe2(loop->pipe, O_CLOEXEC | O_NONBLOCK) < 0)
		return -errno;
	config = event_config_new();
	if (!config)
		return -ENOMEM;
	event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK);
	loop->base = event_base_new_with_config(config);
	event_config_free(config);
	if (!loop->base)
		return -ENOMEM;
	loop->wake = event_new(loop->base, loop->pipe[0], EV_READ | EV_PERSIST, on_wake, loop);
	return !loop->wake || event_add(loop->wake, NULL) < 0 ? -ENOMEM : 0;
}

static void
loop_deinit(struct loop *loop)
{
	int conn;

	while (loop->conns)
		conn_free(loop->conns);
	while (loop->pipe[1] > 0 && read(loop->pipe[0], &conn, sizeof conn) == (ssize_t)sizeof conn)
		if (conn >= 0)
			close(conn);
	if (loop->wake)
		event_free(loop->wake);
	if (loop->base)
		event_base_free(loop->base);
	if (loop->pipe[1] > 0) {
		close(loop->pipe[0]);
		close(loop->pipe[1]);
	}
}

/* false: the loop is behind by a pipe's worth of connections.  Four bytes to a pipe are written whole or not at all. */
static bool
loop_send(struct loop *loop, int fd)
{
	return write(loop->pipe[1], &fd, sizeof fd) == (ssize_t)sizeof fd;
}

void
slabd_accept(struct slabd *slabd, int fd)
{
	struct loop *best = &slabd->loops[0];

	for (unsigned i = 1; i < slabd->n_loops; i++)
		if (atomic_read(&slabd->loops[i].n_conns) < atomic_read(&best->n_conns))
			best = &slabd->loops[i];
	if (best == &slabd->loops[0] || !loop_send(best, fd))
		conn_new(&slabd->loops[0], fd);
}

/* One descriptor a connection, two a session, and its segments: as many as the hard limit lets. */
static void
raise_file_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

/* Does the kernel have SO_PEERPIDFD (Linux 6.5)? */
static bool
has_peerpidfd(void)
{
	int pair[2], pidfd = -1;
	socklen_t length = sizeof pidfd;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return false;
	if (getsockopt(pair[0], SOL_SOCKET, CONN_SO_PEERPIDFD, &pidfd, &length) < 0)
		pidfd = -1;
	close(pair[0]);
	close(pair[1]);
	if (pidfd >= 0)
		close(pidfd);
	return pidfd >= 0;
}

int
slabd_new(struct slabd **slabdp, const struct slabd_options *options, char *why, size_t why_size)
{
	struct slabd *slabd = calloc(1, sizeof *slabd);
	int r = 0;

	snprintf(why, why_size, "no memory or no descriptors for slabd");
	if (!slabd)
		return -ENOMEM;
	slabd->options = *options;
	slabd->options.is_old_kernel = options->is_old_kernel || !has_peerpidfd();
	clock_gettime(CLOCK_MONOTONIC, &slabd->started);
	raise_file_limit();
	for (; slabd->n_loops < options->n_threads && r == 0; slabd->n_loops++)
		r = loop_init(&slabd->loops[slabd->n_loops], slabd);
	/* The socket first: who is second on it must not commit memory. */
	if (r == 0)
		r = listener_new(&slabd->listener, slabd, options->socket, why, why_size);
	if (r == 0)
		r = arena_new(&slabd->arena, &options->arena, why, why_size);
	if (r < 0) {
		slabd_free(slabd);
		return r;
	}
	*slabdp = slabd;
	return 0;
}

static void
on_signal(evutil_socket_t sig, short what, void *ctx)
{
	struct slabd *slabd = ctx;

	(void)what;
	log_notice("signal %d: stopping", (int)sig);
	sd_notify(0, "STOPPING=1");
	slabd_stop(slabd);
}

static void *
loop_thread(void *ctx)
{
	struct loop *loop = ctx;

	event_base_dispatch(loop->base);
	return NULL;
}

static void
tell_ready(const struct slabd *slabd)
{
	const struct arena *arena = slabd->arena;

	sd_notifyf(0, "READY=1\nSTATUS=Serving arena '%s', %llu bytes, pages %s", arena->name, (unsigned long long)arena->options.limit_bytes,
		slabd_page_kind_name(arena->options.page_kind));
	log_notice("%s: serving arena '%s', %llu bytes, pages %s, %u threads, profile %s", SLABD_VERSION, arena->name,
		(unsigned long long)arena->options.limit_bytes, slabd_page_kind_name(arena->options.page_kind), slabd->n_loops,
		slabd_profile_name(arena->options.profile));
}

int
slabd_run(struct slabd *slabd)
{
	struct event *term = NULL, *interrupt = NULL;
	unsigned n_started = 1;
	sigset_t all, before;
	int r = 0;

	/* Signals are loop 0's. */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	for (; n_started < slabd->n_loops && r == 0; n_started++)
		r = pthread_create(&slabd->loops[n_started].thread, NULL, loop_thread, &slabd->loops[n_started]);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (r) {
		n_started--;
		slabd_stop(slabd);
	} else {
		tell_ready(slabd);
	}
	if (slabd->options.has_signals) {
		term = evsignal_new(slabd->loops[0].base, SIGTERM, on_signal, slabd);
		interrupt = evsignal_new(slabd->loops[0].base, SIGINT, on_signal, slabd);
		event_add(term, NULL);
		event_add(interrupt, NULL);
	}
	event_base_dispatch(slabd->loops[0].base);
	for (unsigned i = 1; i < n_started; i++)
		pthread_join(slabd->loops[i].thread, NULL);
	if (term)
		event_free(term);
	if (interrupt)
		event_free(interrupt);
	return -r;
}

void
slabd_stop(struct slabd *slabd)
{
	for (unsigned i = 0; i < slabd->n_loops; i++) {
		struct pollfd room = {.fd = slabd->loops[i].pipe[1], .events = POLLOUT};

		while (!loop_send(&slabd->loops[i], -1) && errno == EAGAIN)
			poll(&room, 1, 1000);
	}
}

void
slabd_free(struct slabd *slabd)
{
	if (!slabd)
		return;
	listener_free(slabd->listener);
	for (unsigned i = 0; i < slabd->n_loops; i++)
		loop_deinit(&slabd->loops[i]);
	while (slabd->arena && slabd->arena->first_session)
		session_end(slabd->arena->first_session, false);
	arena_free(slabd->arena);
	free(slabd);
}
