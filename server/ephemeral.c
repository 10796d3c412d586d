/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything but the folder's making runs in loop 0.  The events are event_base_once(): the base frees those that have not come.
 *
 * The command is in our process group, so what a terminal sends (Ctrl-C) it gets by itself; other signals are passed on to it, and slabd
 * serves until it has ended.  Its descendants that outlive it are nobody's: they keep what they have mapped and get ENOTCONN.
 */
#include "server/ephemeral.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/log.h"
#include "server/slabd.h"

#define PREFIX "slabd-ephemeral."
#define SOCKET "sock"
#define LOCK SOCKET ".lock" /* the listener's */

enum {
	SOCKET_BYTES = sizeof((struct sockaddr_un *)0)->sun_path,
	DIR_BYTES = SOCKET_BYTES - sizeof SOCKET, /* and its slash */
	MAX_TRIES = 100,
	STATUS_NOT_EXECUTABLE = 126,
	STATUS_NOT_FOUND = 127,
	STATUS_SIGNAL = 128,
};

struct ephemeral {
	struct slabd *slabd;
	char dir[DIR_BYTES]; /* "": none yet */
	char socket[SOCKET_BYTES];
	int dir_fd;    /* its lock; -1: none */
	int parent_fd; /* pidfd; -1: it is not in our pid namespace */
	int signal_fd;
	char **command;
	pid_t command_pid; /* 0: not running */
	int command_fd;    /* pidfd */
	int status;
	sigset_t mask_before;
	struct rlimit files_before;
};

/* The folder */

/* -EAGAIN: who sweeps took it for a dead one's before we had locked it. */
static int
make_dir(struct ephemeral *e, const char *base)
{
	struct stat st;
	int r;

	if (snprintf(e->dir, sizeof e->dir, "%s/" PREFIX "XXXXXX", base) >= (int)sizeof e->dir) {
		e->dir[0] = '\0';
		return -ENAMETOOLONG;
	}
	if (!mkdtemp(e->dir)) {
		r = -errno;
		e->dir[0] = '\0';
		return r;
	}
	e->dir_fd = open(e->dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	/* Where folders cannot be locked nobody can sweep either. */
	if (e->dir_fd >= 0 && (flock(e->dir_fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) && fstat(e->dir_fd, &st) == 0 &&
		st.st_nlink > 0)
		return 0;
	r = e->dir_fd < 0 && errno != ENOENT ? -errno : -EAGAIN;
	if (e->dir_fd >= 0)
		close(e->dir_fd);
	e->dir_fd = -1;
	rmdir(e->dir);
	e->dir[0] = '\0';
	return r;
}

static void
remove_dir(int base_fd, const char *name, int fd)
{
	unlinkat(fd, SOCKET, 0);
	unlinkat(fd, LOCK, 0);
	unlinkat(base_fd, name, AT_REMOVEDIR);
}

/* Removes what this user's killed ones have left: their lock is free. */
static void
sweep(const char *base)
{
	DIR *dir = opendir(base);
	const struct dirent *entry;
	struct stat st;

	while (dir && (entry = readdir(dir)) != NULL) {
		int fd;

		if (strncmp(entry->d_name, PREFIX, sizeof PREFIX - 1) != 0)
			continue;
		fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (fd < 0)
			continue;
		if (fstat(fd, &st) == 0 && st.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0)
			remove_dir(dirfd(dir), entry->d_name, fd);
		close(fd);
	}
	if (dir)
		closedir(dir);
}

/* In the first folder that will do: a test's TMPDIR is often too deep for a socket, another user's XDG_RUNTIME_DIR closed. */
static int
find_dir(struct ephemeral *e, char *why, size_t why_size)
{
	const char *bases[] = {getenv("TMPDIR"), getenv("XDG_RUNTIME_DIR"), "/tmp"};
	int r = -ENOENT;

	for (unsigned i = 0; i < sizeof bases / sizeof bases[0]; i++) {
		/* The path is told in a line, to programs that may be in another folder. */
		if (!bases[i] || bases[i][0] != '/' || strchr(bases[i], '\n'))
			continue;
		r = -EAGAIN;
		for (unsigned n = 0; r == -EAGAIN && n < MAX_TRIES; n++)
			r = make_dir(e, bases[i]);
		if (r == 0) {
			sweep(bases[i]);
			snprintf(e->socket, sizeof e->socket, "%s/" SOCKET, e->dir);
			return 0;
		}
	}
	snprintf(why, why_size,
		"no folder for the socket in $TMPDIR, $XDG_RUNTIME_DIR or /tmp: %s; set TMPDIR to one that may be written, of %zu bytes at "
		"most",
		strerror(-r), DIR_BYTES - sizeof "/" PREFIX "XXXXXX");
	return r;
}

/* Parent and command */

static int
open_pidfd(pid_t pid)
{
	int fd = (int)syscall(SYS_pidfd_open, pid, 0);

	return fd < 0 ? -errno : fd;
}

/*
 * A parent that died before its pidfd was open shows in getppid(); before the first getppid(), in the ready line that nobody reads.  Of a
 * parent outside of our pid namespace (0: slabd is the namespace's first process, or was sent into it) nothing can be known: then a signal
 * ends slabd.
 */
static int
watch_parent(struct ephemeral *e, char *why, size_t why_size)
{
	pid_t parent = getppid();
	int fd = parent ? open_pidfd(parent) : -1;

	if (parent && (fd == -ESRCH || getppid() != parent)) {
		if (fd >= 0)
			close(fd);
		snprintf(why, why_size, "--ephemeral: the parent process has ended already");
		return -ESRCH;
	}
	if (parent && fd < 0) {
		snprintf(why, why_size, "--ephemeral: the parent process cannot be watched (pidfd_open): %s", strerror(-fd));
		return fd;
	}
	e->parent_fd = fd;
	return 0;
}

/* What is ignored (nohup, a shell's "&") stays so, but for SIGTERM. */
static int
take_signals(struct ephemeral *e)
{
	static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
	struct sigaction before;
	sigset_t set;

	sigemptyset(&set);
	for (unsigned i = 0; i < sizeof signals / sizeof signals[0]; i++)
		if (signals[i] == SIGTERM || (sigaction(signals[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN))
			sigaddset(&set, signals[i]);
	sigprocmask(SIG_BLOCK, &set, &e->mask_before);
	/* Ignored, it would take the command's status with it. */
	signal(SIGCHLD, SIG_DFL);
	e->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return e->signal_fd < 0 ? -errno : 0;
}

int
ephemeral_new(struct ephemeral **ephemeralp, char **command, struct slabd_options *options, char *why, size_t why_size)
{
	struct ephemeral *e = calloc(1, sizeof *e);
	int r;

	snprintf(why, why_size, "--ephemeral: no memory or no descriptors");
	if (!e)
		return -ENOMEM;
	e->dir_fd = e->parent_fd = e->signal_fd = e->command_fd = -1;
	e->command = command;
	e->status = EPHEMERAL_STATUS_FAILED;
	getrlimit(RLIMIT_NOFILE, &e->files_before);
	/* Whoever keeps descriptors here keeps them for another slabd (store.h). */
	unsetenv("FDSTORE");
	/* First, or a descriptor of ours would have its number. */
	r = command || fcntl(STDOUT_FILENO, F_GETFD) >= 0 ? 0 : -errno;
	if (r < 0)
		snprintf(why, why_size, "--ephemeral: standard output, where the socket's path is told, is closed");
	if (r == 0)
		r = watch_parent(e, why, why_size);
	if (r == 0)
		r = take_signals(e);
	if (r == 0)
		r = find_dir(e, why, why_size);
	if (r < 0) {
		ephemeral_free(e);
		return r;
	}
	/* A service manager that started the test suite has no business with us. */
	unsetenv("LISTEN_PID");
	unsetenv("LISTEN_FDS");
	unsetenv("LISTEN_FDNAMES");
	unsetenv("NOTIFY_SOCKET");
	options->socket = e->socket;
	options->socket_mode = 0600;
	options->has_signals = false;
	*ephemeralp = e;
	return 0;
}

static void
on_parent_ended(evutil_socket_t fd, short what, void *ctx)
{
	struct ephemeral *e = ctx;

	(void)fd;
	(void)what;
	/* As if its terminal had gone; nohup's command goes on. */
	if (e->command_pid)
		kill(e->command_pid, SIGHUP);
	else if (!e->command)
		slabd_stop(e->slabd);
}

static void
on_command_ended(evutil_socket_t fd, short what, void *ctx)
{
	struct ephemeral *e = ctx;
	int status;

	(void)fd;
	(void)what;
	if (waitpid(e->command_pid, &status, 0) == e->command_pid)
		e->status = WIFSIGNALED(status) ? STATUS_SIGNAL + WTERMSIG(status) : WEXITSTATUS(status);
	e->command_pid = 0;
	slabd_stop(e->slabd);
}

/* Has the command got it from the terminal, as we have? */
static bool
is_from_terminal(const struct ephemeral *e, const struct signalfd_siginfo *info)
{
	return (info->ssi_signo == SIGINT || info->ssi_signo == SIGQUIT) && info->ssi_code == SI_KERNEL &&
	       getpgid(e->command_pid) == getpgrp();
}

static void
on_signal(evutil_socket_t fd, short what, void *ctx)
{
	struct ephemeral *e = ctx;
	struct signalfd_siginfo info;

	(void)what;
	while (read(fd, &info, sizeof info) == (ssize_t)sizeof info) {
		if (!e->command)
			slabd_stop(e->slabd);
		else if (e->command_pid && !is_from_terminal(e, &info))
			kill(e->command_pid, (int)info.ssi_signo);
	}
	event_base_once(e->slabd->loops[0].base, fd, EV_READ, on_signal, e, NULL);
}

/* In the child: as we were started. */
static void
exec_command(const struct ephemeral *e, int fd)
{
	int error;

	signal(SIGPIPE, SIG_DFL);
	setrlimit(RLIMIT_NOFILE, &e->files_before);
	sigprocmask(SIG_SETMASK, &e->mask_before, NULL);
	execvp(e->command[0], e->command);
	error = errno;
	if (write(fd, &error, sizeof error) < 0)
		_exit(STATUS_NOT_FOUND);
	_exit(STATUS_NOT_EXECUTABLE);
}

/* slabd has one thread yet. */
static int
start_command(struct ephemeral *e, char *why, size_t why_size)
{
	int fds[2], error = 0;

	snprintf(why, why_size, "'%s' cannot be started: no memory, no processes or no descriptors", e->command[0]);
	if (setenv("SLABD_SOCKET", e->socket, 1) < 0 || pipe2(fds, O_CLOEXEC) < 0)
		return -errno;
	e->command_pid = fork();
	if (e->command_pid == 0)
		exec_command(e, fds[1]);
	error = e->command_pid < 0 ? errno : 0;
	close(fds[1]);
	if (e->command_pid < 0)
		e->command_pid = 0;
	/* Nothing comes if it could be executed. */
	else if (read(fds[0], &error, sizeof error) == (ssize_t)sizeof error) {
		waitpid(e->command_pid, NULL, 0);
		e->command_pid = 0;
		e->status = error == ENOENT ? STATUS_NOT_FOUND : STATUS_NOT_EXECUTABLE;
		snprintf(why, why_size, "'%s' cannot be executed: %s", e->command[0], strerror(error));
	}
	close(fds[0]);
	if (!e->command_pid)
		return -error;
	e->command_fd = open_pidfd(e->command_pid);
	return e->command_fd < 0 ? e->command_fd : 0;
}

/* Whoever reads to the end of our output has it now. */
static int
say_ready(struct ephemeral *e, char *why, size_t why_size)
{
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC), r = 0;

	if (dprintf(STDOUT_FILENO, "SLABD_SOCKET=%s\n", e->socket) < 0 || null < 0 || dup2(null, STDOUT_FILENO) < 0) {
		r = -errno;
		snprintf(why, why_size, "--ephemeral: the socket's path cannot be told on standard output: %s", strerror(-r));
	}
	if (null >= 0)
		close(null);
	return r;
}

int
ephemeral_start(struct ephemeral *e, struct slabd *slabd, char *why, size_t why_size)
{
	struct event_base *base = slabd->loops[0].base;
	int r;

	e->slabd = slabd;
	r = e->command ? start_command(e, why, why_size) : say_ready(e, why, why_size);
	if (r < 0)
		return r;
	if (event_base_once(base, e->signal_fd, EV_READ, on_signal, e, NULL) < 0 ||
		(e->parent_fd >= 0 && event_base_once(base, e->parent_fd, EV_READ, on_parent_ended, e, NULL) < 0) ||
		(e->command_fd >= 0 && event_base_once(base, e->command_fd, EV_READ, on_command_ended, e, NULL) < 0)) {
		snprintf(why, why_size, "--ephemeral: no memory");
		return -ENOMEM;
	}
	return 0;
}

int
ephemeral_status(const struct ephemeral *e)
{
	return e->status;
}

void
ephemeral_free(struct ephemeral *e)
{
	if (!e)
		return;
	/* slabd could not go on. */
	if (e->command_pid)
		kill(e->command_pid, SIGTERM);
	if (e->dir_fd >= 0)
		remove_dir(AT_FDCWD, e->dir, e->dir_fd);
	if (e->dir_fd >= 0)
		close(e->dir_fd);
	if (e->parent_fd >= 0)
		close(e->parent_fd);
	if (e->command_fd >= 0)
		close(e->command_fd);
	if (e->signal_fd >= 0)
		close(e->signal_fd);
	free(e);
}
