/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slabd-keeper: holds slabd's descriptors while there is no slabd, where systemd does not.
 *
 * It is the part of a service manager that slabd needs (server/store.h): it starts slabd, takes descriptors that come by FDSTORE=1 on $NOTIFY_SOCKET, and
 * gives them to the next slabd as $LISTEN_FDS when this one has died.  So slabd speaks to it as it does to systemd.
 *
 *   slabd is killed, or fails after it was ready    the next one is started, at once at first, then after 10 ms, 20 ms ... 1 s
 *   slabd ends with status 0, or since it was told  so does the keeper, with all that it holds
 *   slabd fails before it was ever ready            the keeper ends with its status
 *
 * A slabd that does not adopt what is held is ready and waits (server/slabd.h).  SIGTERM, SIGINT and SIGHUP are passed on.  Under a service manager of its own it passes on what it gets (sockets) and what slabd says (READY=1).
 * One process, one thread, libc only; the fewer lines it has, the fewer ways there are for it to die.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	LISTEN_START = 3,
	MAX_FDS = 14000, /* server/store.h's STORE_MAX: their names must fit one environment variable */
	MAX_MESSAGE = 4096,
	MAX_MESSAGE_FDS = 253, /* the kernel's */
	NAME_BYTES = 64,
	FIRST_PAUSE_MS = 10,
	MAX_PAUSE_MS = 1000,
};

struct held {
	char name[NAME_BYTES];
	int fd;
};

static struct held *held;
static unsigned n_held;
static int notify_fd;
static char notify_path[64];
static const char *outer; /* $NOTIFY_SOCKET of our own; NULL: none */

__attribute__((format(printf, 1, 2))) static void
say(const char *format, ...)
{
	char line[512];
	va_list args;
	int n = snprintf(line, sizeof line, "slabd-keeper: ");

	va_start(args, format);
	n += vsnprintf(line + n, sizeof line - (size_t)n - 1, format, args);
	va_end(args);
	if (n > (int)sizeof line - 2)
		n = (int)sizeof line - 2;
	line[n++] = '\n';
	if (write(STDERR_FILENO, line, (size_t)n) < 0)
		return;
}

static int64_t
now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* What is held */

static void
hold(const char *name, int fd)
{
	if (n_held == MAX_FDS) {
		say("there are %d descriptors already: one called %s is not held, and slabd will not be able to adopt", MAX_FDS, name);
		close(fd);
		return;
	}
	snprintf(held[n_held].name, NAME_BYTES, "%s", name);
	held[n_held++].fd = fd;
}

static void
drop(const char *name)
{
	unsigned n = 0;

	for (unsigned i = 0; i < n_held; i++) {
		if (strcmp(held[i].name, name) == 0)
			close(held[i].fd);
		else
			held[n++] = held[i];
	}
	n_held = n;
}

/* What a service manager passes to us is for slabd, each time anew. */
static void
take_passed(void)
{
	const char *pid = getenv("LISTEN_PID"), *fds = getenv("LISTEN_FDS"), *given = getenv("LISTEN_FDNAMES");
	char *names = strdup(given ? given : ""), *name = names;

	for (int i = 0; names && pid && fds && atoi(pid) == getpid() && i < atoi(fds); i++) {
		char *end = name ? strchr(name, ':') : NULL;

		if (end)
			*end = '\0';
		hold(name && *name ? name : "unknown", LISTEN_START + i);
		name = end ? end + 1 : NULL;
	}
	free(names);
}

/* Messages of slabd */

/* The value of a line NAME=value; false: there is none. */
static bool
get_line(const char *message, const char *name, char *value, size_t size)
{
	size_t length = strlen(name);

	for (const char *line = message; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
		if (strncmp(line, name, length) != 0 || line[length] != '=')
			continue;
		snprintf(value, size, "%.*s", (int)strcspn(line + length + 1, "\n"), line + length + 1);
		return true;
	}
	return false;
}

/* To our own manager, as from us. */
static void
pass_on(const char *message, size_t n)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	size_t length = outer ? strlen(outer) : 0;

	if (length == 0 || length >= sizeof address.sun_path)
		return;
	memcpy(address.sun_path, outer, length);
	if (address.sun_path[0] == '@')
		address.sun_path[0] = '\0';
	sendto(notify_fd, message, n, MSG_NOSIGNAL, (struct sockaddr *)&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length));
}

static void
handle(const char *message, size_t n, int *fds, unsigned n_fds, bool *is_readyp)
{
	char name[NAME_BYTES] = "stored", value[8];
	bool is_store = get_line(message, "FDSTORE", value, sizeof value);

	get_line(message, "FDNAME", name, sizeof name);
	for (unsigned i = 0; i < n_fds; i++) {
		if (is_store)
			hold(name, fds[i]);
		else
			close(fds[i]);
	}
	if (is_store)
		return;
	if (get_line(message, "FDSTOREREMOVE", value, sizeof value)) {
		drop(name);
		return;
	}
	if (get_line(message, "READY", value, sizeof value))
		*is_readyp = true;
	pass_on(message, n);
}

/* One message.  false: there is none. */
static bool
receive(pid_t slabd, bool *is_readyp)
{
	char message[MAX_MESSAGE];
	union {
		char bytes[CMSG_SPACE(MAX_MESSAGE_FDS * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {.iov_base = message, .iov_len = sizeof message - 1};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	struct ucred sender = {0};
	int fds[MAX_MESSAGE_FDS];
	unsigned n_fds = 0;
	ssize_t n;

	do
		n = recvmsg(notify_fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return false;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_CREDENTIALS)
			memcpy(&sender, CMSG_DATA(c), sizeof sender);
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
			n_fds = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
			memcpy(fds, CMSG_DATA(c), n_fds * sizeof(int));
		}
	}
	if (msg.msg_flags & MSG_CTRUNC)
		say("a descriptor could not be taken (RLIMIT_NOFILE?): slabd will not be able to adopt");
	message[n] = '\0';
	if (sender.pid == slabd) {
		handle(message, (size_t)n, fds, n_fds, is_readyp);
	} else {
		for (unsigned i = 0; i < n_fds; i++)
			close(fds[i]);
	}
	return true;
}

static int
open_notify(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int on = 1, length;

	notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	/* In no folder, where it could be left behind; by credentials nobody but slabd is heard. */
	length = snprintf(notify_path, sizeof notify_path, "@slabd-keeper/%d/%llx", getpid(), (unsigned long long)now_ms());
	memcpy(address.sun_path + 1, notify_path + 1, (size_t)length - 1);
	if (notify_fd < 0 || setsockopt(notify_fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) < 0 ||
		bind(notify_fd, (struct sockaddr *)&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)length)) < 0) {
		say("no socket: %s", strerror(errno));
		return -1;
	}
	return 0;
}

/* slabd */

/* In the child: descriptors 3 and on are those that are held. */
static void
place_fds(void)
{
	int first_above = LISTEN_START + (int)n_held;

	/* Out of the way first, so that none is written over before it is placed. */
	for (unsigned i = 0; i < n_held; i++) {
		held[i].fd = fcntl(held[i].fd, F_DUPFD_CLOEXEC, first_above);
		if (held[i].fd < 0)
			_exit(127);
	}
	for (unsigned i = 0; i < n_held; i++)
		if (dup2(held[i].fd, LISTEN_START + (int)i) < 0)
			_exit(127);
}

static void
exec_slabd(char **argv, const sigset_t *signals)
{
	char *names = malloc((size_t)n_held * NAME_BYTES + 1), *end = names, number[16];

	if (!names)
		_exit(127);
	*end = '\0';
	for (unsigned i = 0; i < n_held; i++)
		end += sprintf(end, "%s%s", i ? ":" : "", held[i].name);
	place_fds();
	setenv("NOTIFY_SOCKET", notify_path, 1);
	snprintf(number, sizeof number, "%d", MAX_FDS);
	setenv("FDSTORE", number, 1);
	snprintf(number, sizeof number, "%d", getpid());
	setenv("LISTEN_PID", number, 1);
	snprintf(number, sizeof number, "%u", n_held);
	setenv("LISTEN_FDS", number, 1);
	setenv("LISTEN_FDNAMES", names, 1);
	/* None is a mistake to sd_listen_fds(). */
	if (n_held == 0)
		unsetenv("LISTEN_FDS");
	sigprocmask(SIG_UNBLOCK, signals, NULL);
	execvp(argv[0], argv);
	say("%s: %s", argv[0], strerror(errno));
	_exit(127);
}

/* Its pidfd; -1: none. */
static int
start(char **argv, const sigset_t *signals, pid_t *pidp)
{
	int fd;

	*pidp = fork();
	if (*pidp == 0)
		exec_slabd(argv, signals);
	fd = *pidp < 0 ? -1 : (int)syscall(SYS_pidfd_open, *pidp, 0);
	if (fd < 0)
		say("slabd cannot be started: %s", strerror(errno));
	return fd;
}

/* Until slabd has ended, all of whose messages are then handled.  Its status as waitpid() has it. */
static int
attend(pid_t slabd, int pidfd, int signal_fd, bool *is_readyp, bool *is_stoppingp)
{
	struct pollfd p[] = {{.fd = notify_fd, .events = POLLIN}, {.fd = pidfd, .events = POLLIN}, {.fd = signal_fd, .events = POLLIN}};
	struct signalfd_siginfo info;
	int status = 0;

	do {
		poll(p, 3, -1);
		while (receive(slabd, is_readyp))
			continue;
		if (p[2].revents && read(signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
			*is_stoppingp = *is_stoppingp || info.ssi_signo != SIGHUP;
			kill(slabd, (int)info.ssi_signo);
		}
	} while (!p[1].revents);
	while (receive(slabd, is_readyp))
		continue;
	waitpid(slabd, &status, 0);
	return status;
}

/* Waits, and listens to signals: true: go on; false: the end. */
static bool
rest(int signal_fd, int ms)
{
	struct pollfd p = {.fd = signal_fd, .events = POLLIN};
	struct signalfd_siginfo info;

	if (poll(&p, 1, ms) <= 0 || read(signal_fd, &info, sizeof info) != (ssize_t)sizeof info)
		return true;
	return info.ssi_signo == SIGHUP;
}

static int
keep(char **argv, int signal_fd, const sigset_t *signals)
{
	bool was_ready = false;
	int pause_ms = 0;

	for (;;) {
		bool is_ready = false, is_stopping = false;
		int64_t started = now_ms();
		pid_t slabd;
		int pidfd = start(argv, signals, &slabd), status;

		if (pidfd < 0)
			return EXIT_FAILURE;
		status = attend(slabd, pidfd, signal_fd, &is_ready, &is_stopping);
		close(pidfd);
		was_ready = was_ready || is_ready;
		if (WIFEXITED(status) && (WEXITSTATUS(status) == 0 || is_stopping || !was_ready))
			return WEXITSTATUS(status);
		if (is_stopping)
			return EXIT_FAILURE;
		say("slabd %d %s %d; the next one gets its %u descriptors", slabd, WIFSIGNALED(status) ? "was killed by signal" : "ended with status",
			WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), n_held);
		/* Who served for a while is not one that dies again and again. */
		pause_ms = now_ms() - started > MAX_PAUSE_MS ? 0 : pause_ms ? pause_ms * 2 : FIRST_PAUSE_MS;
		if (pause_ms > MAX_PAUSE_MS)
			pause_ms = MAX_PAUSE_MS;
		if (pause_ms && !rest(signal_fd, pause_ms))
			return EXIT_FAILURE;
	}
}

int
main(int argc, char **argv)
{
	struct rlimit limit;
	sigset_t signals;
	int first = 1, signal_fd;

	if (argc > 1 && strcmp(argv[1], "--help") == 0) {
		puts("usage: slabd-keeper [--] slabd [OPTION]...\n"
		     "Runs slabd, and keeps what its clients need while it is restarted after a crash.\n\n"
		     "  --help, --version");
		return EXIT_SUCCESS;
	}
	if (argc > 1 && strcmp(argv[1], "--version") == 0) {
		puts("slabd-keeper 0.1.0");
		return EXIT_SUCCESS;
	}
	if (argc > 1 && strcmp(argv[1], "--") == 0)
		first++;
	if (first >= argc || argv[first][0] == '-') {
		say("usage: slabd-keeper [--] slabd [OPTION]...");
		return EXIT_FAILURE;
	}
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	held = calloc(MAX_FDS, sizeof *held);
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGHUP);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	signal(SIGPIPE, SIG_IGN);
	signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
	if (!held || signal_fd < 0 || open_notify() < 0)
		return EXIT_FAILURE;
	outer = getenv("NOTIFY_SOCKET") ? strdup(getenv("NOTIFY_SOCKET")) : NULL;
	take_passed();
	return keep(argv + first, signal_fd, &signals);
}
