/* SPDX-License-Identifier: Apache-2.0 */
/* slabd --ephemeral: what a test suite that starts it, or that it runs, may rely on; above all that nothing stays when it is over. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pthread.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness.h"

CU_pSuite it_ephemeral_suite(void);

enum { OUT_BYTES = 4096, MAX_ARGUMENTS = 8, OTHER_USER = 65534 };

/* A slabd --ephemeral, or whoever executes it, with the test at both ends of its standard streams. */
struct run {
	pid_t pid;
	int in, out;
	char line[256]; /* the first of its output */
	const char *socket;
};

static unsigned
count_folders(const struct harness *h)
{
	DIR *dir = opendir(h->dir);
	const struct dirent *entry;
	unsigned n = 0;

	REQUIRE(dir != NULL);
	while ((entry = readdir(dir)) != NULL)
		n += strncmp(entry->d_name, "slabd-ephemeral.", 16) == 0;
	closedir(dir);
	return n;
}

/* Becomes slabd --ephemeral with the arguments; its folder is made in the harness's. */
static void
exec_ephemeral(const struct harness *h, const char *const *arguments)
{
	const char *argv[MAX_ARGUMENTS + 3] = {harness_path("SLABD"), "--ephemeral"};

	for (unsigned i = 0; i < MAX_ARGUMENTS && arguments[i]; i++)
		argv[2 + i] = arguments[i];
	setenv("TMPDIR", h->dir, 1);
	setenv("SLABCTL", harness_path("SLABCTL"), 1);
	signal(SIGALRM, SIG_DFL);
	/* Whatever make was started by. */
	signal(SIGINT, SIG_DFL);
	signal(SIGPIPE, SIG_DFL);
	execv(argv[0], (char *const *)(uintptr_t)argv);
	_exit(127);
}

/* The output's first line; "" at its end. */
static void
read_line(int fd, char *line, size_t size)
{
	size_t n = 0;

	while (n < size - 1 && read(fd, line + n, 1) == 1 && line[n] != '\n')
		n++;
	line[n] = '\0';
}

static void
run_as(struct run *run, struct harness *h, uid_t uid, const char *const *arguments)
{
	int in[2], out[2];

	REQUIRE(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
	fflush(NULL);
	run->pid = fork();
	REQUIRE(run->pid >= 0);
	if (run->pid == 0) {
		dup2(in[0], STDIN_FILENO);
		dup2(out[1], STDOUT_FILENO);
		if (uid && (setgroups(0, NULL) < 0 || setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0))
			_exit(127);
		exec_ephemeral(h, arguments);
	}
	close(in[0]);
	close(out[1]);
	run->in = in[1];
	run->out = out[0];
	read_line(run->out, run->line, sizeof run->line);
	run->socket = strncmp(run->line, "SLABD_SOCKET=", 13) == 0 ? run->line + 13 : "";
	snprintf(h->socket, sizeof h->socket, "%s", run->socket);
}

#define RUN(run, h, ...) run_as(run, h, 0, (const char *const[]){__VA_ARGS__, NULL})
/* A command that does this, says where its slabd is, and does that. */
#define RUN_SHELL(run, h, first, then) RUN(run, h, "--", "sh", "-c", first " echo SLABD_SOCKET=$SLABD_SOCKET; " then)

/* 1000 and the signal if it died of one; -1: it has not ended. */
static int
wait_for(struct run *run)
{
	int status = 0;
	bool has_ended = EVENTUALLY(waitpid(run->pid, &status, WNOHANG) == run->pid);

	if (!has_ended) {
		kill(run->pid, SIGKILL);
		waitpid(run->pid, NULL, 0);
	}
	if (run->in >= 0)
		close(run->in);
	close(run->out);
	return !has_ended ? -1 : WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static int
end(struct run *run, int sig)
{
	kill(run->pid, sig);
	return wait_for(run);
}

/* One line says where; then its output is at its end, the socket answers, nobody else may come near it, and SIGTERM leaves nothing. */
static void
it_ready_line_and_private_socket(void)
{
	static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};

	for (unsigned i = 0; i < sizeof signals / sizeof signals[0]; i++) {
		CLEANUP(harness_free) struct harness *h = harness_new();
		struct proto_status_reply status;
		struct pollfd rest = {.events = POLLIN};
		char dir[128], byte;
		struct run run;
		struct stat st;
		struct slabc *c;

		RUN(&run, h, "--threads=2");
		CHECK(strncmp(run.socket, h->dir, strlen(h->dir)) == 0);
		rest.fd = run.out;
		CHECK(poll(&rest, 1, HARNESS_PATIENCE_MS) == 1 && read(run.out, &byte, 1) == 0);
		snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(run.socket, '/') - run.socket), run.socket);
		CHECK(stat(dir, &st) == 0 && (st.st_mode & 07777) == 0700 && st.st_uid == geteuid());
		CHECK(stat(run.socket, &st) == 0 && S_ISSOCK(st.st_mode) && (st.st_mode & 07777) == 0600);
		c = harness_open(h, "suite");
		CHECK(slabc_alloc(harness_open_cache(c, "k", 64, 0)) != NULL);
		slabc_close(c);
		status = harness_status(h);
		CHECK(status.arena_bytes == 64u << 20 && strcmp(status.page_kind, "4k") == 0 && status.n_threads == 2);
		CHECK(end(&run, signals[i]) == 0);
		CHECK(count_folders(h) == 0);
		close(h->monitor);
		h->monitor = -1;
	}
}

/* What the command line says goes over the defaults. */
static void
it_takes_the_arena_options(void)
{
	CLEANUP(harness_free) struct harness *h = harness_new();
	struct proto_status_reply status;
	struct run run;

	RUN(&run, h, "--arena-size=8M", "--page-kind=thp,4k", "--profile=tiny", "--reserve=2M");
	status = harness_status(h);
	CHECK(status.arena_bytes == 8u << 20 && strcmp(status.page_kind, "thp,4k") == 0);
	CHECK(strcmp(status.profile, "tiny") == 0 && status.reserve_bytes == 2u << 20);
	CHECK(end(&run, SIGTERM) == 0);
}

static void
other_user(struct peer *me, void *arg)
{
	const struct harness *h = arg;

	(void)me;
	CHECK(setgroups(0, NULL) == 0 && setresgid(OTHER_USER, OTHER_USER, OTHER_USER) == 0 &&
		setresuid(OTHER_USER, OTHER_USER, OTHER_USER) == 0);
	CHECK(raw_connect(h->socket) == -EACCES);
}

/* A user who owns nothing runs one, with memory and all; and cannot reach root's. */
static void
it_users_apart(void)
{
	static char install[] = "install", mode[] = "-m755";
	CLEANUP(harness_free) struct harness *h = NULL;
	char slabd[256], copy[96], out[OUT_BYTES], *before = getenv("SLABD");
	struct run run;
	struct slabc *c;

	if (geteuid() != 0) {
		skip("only root may become another user");
		return;
	}
	h = harness_new();
	snprintf(slabd, sizeof slabd, "%s", harness_path("SLABD"));
	RUN(&run, h, "--threads=1");
	harness_join(h, harness_spawn(h, other_user, h));
	CHECK(end(&run, SIGTERM) == 0);

	/* The build may lie where others cannot look. */
	snprintf(copy, sizeof copy, "%s/slabd", h->dir);
	CHECK(harness_run((char *const[]){install, mode, slabd, copy, NULL}, NULL, out, sizeof out) == 0);
	REQUIRE(chmod(h->dir, 01777) == 0);
	setenv("SLABD", copy, 1);
	run_as(&run, h, OTHER_USER, (const char *const[]){"--reserve=2M", NULL});
	if (before)
		setenv("SLABD", before, 1);
	else
		unsetenv("SLABD");
	c = harness_open(h, "suite");
	CHECK(slabc_alloc(harness_open_cache(c, "k", 64, 0)) != NULL);
	CHECK(end(&run, SIGTERM) == 0);
	slabc_close(c);
	CHECK(count_folders(h) == 0);
}

struct parent {
	struct harness *h;
	const char *const *arguments;
	bool is_nohup;
	bool in_thread;
	struct run run;
};

static void *
start_in_thread(void *ctx)
{
	struct parent *parent = ctx;

	run_as(&parent->run, parent->h, 0, parent->arguments);
	return NULL;
}

/* Starts a slabd, tells the test, and lives on. */
static void
be_parent(struct peer *me, void *arg)
{
	struct parent *parent = arg;
	pthread_t thread;

	signal(SIGHUP, parent->is_nohup ? SIG_IGN : SIG_DFL);
	if (parent->in_thread)
		CHECK(pthread_create(&thread, NULL, start_in_thread, parent) == 0 && pthread_join(thread, NULL) == 0);
	else
		start_in_thread(parent);
	peer_put(me, &parent->run, sizeof parent->run);
	peer_put(me, parent->h->socket, sizeof parent->h->socket);
	peer_await(me, 'e');
}

/* The parent's pid; its slabd's pidfd. */
static pid_t
spawn_parent(struct parent *parent, int *pidfdp)
{
	struct harness *h = parent->h;
	pid_t pid = harness_spawn(h, be_parent, parent);

	peer_get(harness_peer(h, pid), &parent->run, sizeof parent->run);
	peer_get(harness_peer(h, pid), h->socket, sizeof h->socket);
	*pidfdp = (int)syscall(SYS_pidfd_open, parent->run.pid, 0);
	REQUIRE(*pidfdp >= 0);
	return pid;
}

static bool
has_ended(int pidfd, int timeout_ms)
{
	struct pollfd p = {.fd = pidfd, .events = POLLIN};

	return poll(&p, 1, timeout_ms) == 1;
}

/* Its parent killed, or just done: it ends, with folder and arena.  The end of the parent's thread that started it is nothing. */
static void
it_ends_with_its_parent(void)
{
	for (int i = 0; i < 3; i++) {
		CLEANUP(harness_free) struct harness *h = harness_new();
		struct parent parent = {.h = h, .arguments = (const char *const[]){"--arena-size=8M", NULL}, .in_thread = i == 2};
		int pidfd;
		pid_t pid = spawn_parent(&parent, &pidfd);
		struct slabc *c = harness_open(h, "stray");
		struct slabc_cache *k = harness_open_cache(c, "k", 64, 0), *other;
		char *p = slabc_alloc(k);

		CHECK(p != NULL && !has_ended(pidfd, 0));
		if (i == 0) {
			peer_tell(harness_peer(h, pid), 'e');
			harness_join(h, pid);
		} else {
			harness_kill(h, pid, SIGKILL);
		}
		CHECK(has_ended(pidfd, HARNESS_PATIENCE_MS));
		CHECK(count_folders(h) == 0);
		CHECK(slabc_cache_open(c, "other", 64, NULL, &other) == -ENOTCONN);
		strcpy(p, "still mine");
		slabc_close(c);
		close(pidfd);
	}
}

/* A command whose slabd's parent has died is told as by a terminal that has gone, unless nohup is in force. */
static void
it_command_is_told_of_the_parents_end(void)
{
	static const char *const arguments[] = {
		"--", "sh", "-c", "echo SLABD_SOCKET=$SLABD_SOCKET; read line <$TMPDIR/fifo; echo $line >$TMPDIR/said", NULL};

	for (int i = 0; i < 2; i++) {
		CLEANUP(harness_free) struct harness *h = harness_new();
		struct parent parent = {.h = h, .arguments = arguments, .is_nohup = i == 1};
		char fifo[128], said[128];
		int pidfd, fd = -1;
		pid_t pid;

		snprintf(fifo, sizeof fifo, "%s/fifo", h->dir);
		snprintf(said, sizeof said, "%s/said", h->dir);
		REQUIRE(mkfifo(fifo, 0600) == 0 && (fd = open(fifo, O_RDWR | O_CLOEXEC)) >= 0);
		pid = spawn_parent(&parent, &pidfd);
		harness_kill(h, pid, SIGKILL);
		/* The loop that answers this has seen the parent's end before. */
		if (i == 1) {
			int conn = raw_connect(h->socket);

			CHECK(conn >= 0 && raw_hello(conn) == 0);
			close(conn);
			CHECK(write(fd, "on\n", 3) == 3);
		}
		CHECK(has_ended(pidfd, HARNESS_PATIENCE_MS));
		CHECK((access(said, F_OK) == 0) == (i == 1));
		CHECK(count_folders(h) == 0);
		close(pidfd);
		close(fd);
	}
}

/* The command finds the arena, and its exit status is slabd's, as a shell would have it. */
static void
it_runs_a_command(void)
{
	static const struct {
		const char *script;
		int status;
	} scripts[] = {
		{"exit 0", 0},
		{"exit 3", 3},
		{"test -S $SLABD_SOCKET && $SLABCTL audit >/dev/null && exit 4", 4},
		{"kill -KILL $$", 128 + SIGKILL},
		{"kill -SEGV $$", 128 + SIGSEGV},
		{"exec /there/is/none", 127},
	};
	CLEANUP(harness_free) struct harness *h = harness_new();
	struct run run;

	for (unsigned i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
		RUN(&run, h, "--arena-size=8M", "--", "sh", "-c", scripts[i].script);
		if (!CHECK(wait_for(&run) == scripts[i].status))
			fprintf(stderr, "    script %u\n", i);
	}
	RUN(&run, h, "--", "there-is-none");
	CHECK(wait_for(&run) == 127);
	RUN(&run, h, "--", "/etc/passwd");
	CHECK(wait_for(&run) == 126);
	/* Slabd's own failure is told from the command's. */
	RUN(&run, h, "--arena-size=8M", "--reserve=16M", "--", "true");
	CHECK(wait_for(&run) == 125);
	CHECK(count_folders(h) == 0);
}

/*
 * The command starts as it would without slabd: signals, descriptors, and their limit, which slabd raises for itself.  A socket that a
 * service manager passed is not slabd's here.
 */
static void
it_command_is_left_as_it_was(void)
{
	static char script[] = "ulimit -Sn 256; LISTEN_PID=$$ LISTEN_FDS=1 exec $RUN sh -c '"
			       "ulimit -Sn; grep -E \"^Sig(Blk|Ign)\" /proc/self/status; ls /proc/$$/fd'";
	static char shell[] = "sh", option[] = "-c", directly[] = "RUN=";
	static const int signals[] = {SIGINT, SIGQUIT, SIGHUP, SIGPIPE, SIGCHLD};
	CLEANUP(harness_free) struct harness *h = harness_new();
	char run[256], dir[96], out[OUT_BYTES], wanted[OUT_BYTES];
	struct sigaction before[5], plain = {.sa_handler = SIG_DFL};
	char *const argv[] = {shell, option, script, NULL};

	snprintf(run, sizeof run, "RUN=%s --ephemeral --", harness_path("SLABD"));
	snprintf(dir, sizeof dir, "TMPDIR=%s", h->dir);
	for (int i = 0; i < 5; i++)
		sigaction(signals[i], &plain, &before[i]);
	CHECK(harness_run(argv, (char *const[]){directly, NULL}, wanted, sizeof wanted) == 0);
	CHECK(harness_run(argv, (char *const[]){run, dir, NULL}, out, sizeof out) == 0);
	for (int i = 0; i < 5; i++)
		sigaction(signals[i], &before[i], NULL);
	CHECK(strncmp(out, "256\n", 4) == 0);
	if (!CHECK(strcmp(out, wanted) == 0))
		fprintf(stderr, "    %s    and directly\n    %s", out, wanted);
}

/* A signal to slabd is the command's: it may clean up, with its arena there, and slabd ends with it. */
static void
it_signals_go_to_the_command(void)
{
	CLEANUP(harness_free) struct harness *h = harness_new();
	struct run run;

	RUN_SHELL(&run, h, "trap '$SLABCTL status >/dev/null && exit 7' TERM;", "for i in $(seq 1000); do sleep 0.01; done");
	CHECK(end(&run, SIGTERM) == 7);
	RUN_SHELL(&run, h, "trap '$SLABCTL status >/dev/null && exit 8' INT;", "for i in $(seq 1000); do sleep 0.01; done");
	CHECK(end(&run, SIGINT) == 8);
	RUN_SHELL(&run, h, "", "exec sleep 60");
	CHECK(end(&run, SIGTERM) == 128 + SIGTERM);
	CHECK(count_folders(h) == 0);
}

/* Ctrl-C reaches the command from the terminal: slabd does not tell it again, unless the command has left the terminal's group. */
static void
it_terminal_signals_once(void)
{
	/* No child between the signals: a shell that waits for one would count two as one. */
	static const char script[] =
		"i=0; trap 'n=x$n; i=0; echo $n' INT; echo ready; "
		"until [ $i -gt 2000000 ] || { [ $i -gt 100000 ] && [ ${#n} -ge 5 ]; }; do i=$((i+1)); done; exit ${#n}";
	static const char *const prefixes[] = {"env", "setsid"};

	for (int i = 0; i < 2; i++) {
		CLEANUP(harness_free) struct harness *h = harness_new();
		const char *const arguments[] = {"--", prefixes[i], "sh", "-c", script, NULL};
		struct run run = {.in = -1};

		fflush(NULL);
		run.pid = forkpty(&run.out, NULL, NULL, NULL);
		REQUIRE(run.pid >= 0);
		if (run.pid == 0)
			exec_ephemeral(h, arguments);
		fcntl(run.out, F_SETFD, FD_CLOEXEC);
		read_line(run.out, run.line, sizeof run.line);
		CHECK(strncmp(run.line, "ready", 5) == 0);
		for (int n = 0; n < 5; n++) {
			CHECK(write(run.out, "\x03", 1) == 1);
			read_line(run.out, run.line, sizeof run.line);
		}
		CHECK(wait_for(&run) == 5);
	}
}

/* What the command has left running loses the arena with it, and nothing else. */
static void
it_arena_ends_with_the_command(void)
{
	CLEANUP(harness_free) struct harness *h = harness_new();
	struct slabc_cache *k, *other;
	struct slabc *c;
	struct run run;
	char *p;

	RUN_SHELL(&run, h, "", "read line; exit 5");
	c = harness_open(h, "stray");
	k = harness_open_cache(c, "k", 64, 0);
	p = slabc_alloc(k);
	REQUIRE(p != NULL);
	strcpy(p, "stays");
	CHECK(write(run.in, "\n", 1) == 1);
	CHECK(wait_for(&run) == 5);
	CHECK(count_folders(h) == 0);
	CHECK(strcmp(p, "stays") == 0);
	CHECK(slabc_cache_open(c, "other", 64, NULL, &other) == -ENOTCONN);
	slabc_close(c);
}

/* Two at once have two sockets and two arenas. */
static void
it_two_do_not_meet(void)
{
	CLEANUP(harness_free) struct harness *h = harness_new();
	struct slabc_cache *k;
	struct run first, second;
	struct slabc *c, *d;

	RUN(&first, h, "--arena-size=8M");
	c = harness_open(h, "first");
	harness_open_cache(c, "k", 64, 0);
	RUN(&second, h, "--arena-size=8M");
	CHECK(strcmp(first.socket, second.socket) != 0 && count_folders(h) == 2);
	d = harness_open(h, "second");
	CHECK(slabc_cache_open(d, "k", 0, NULL, &k) == -ENOENT);
	CHECK(end(&second, SIGTERM) == 0);
	CHECK(slabc_cache_open(c, "k", 0, NULL, &k) == 0);
	CHECK(end(&first, SIGTERM) == 0);
	slabc_close(c);
	slabc_close(d);
}

/* A killed one leaves its folder to the next, which does not touch what is in use. */
static void
it_next_one_sweeps(void)
{
	CLEANUP(harness_free) struct harness *h = harness_new();
	struct run killed, living, next;
	char foreign[128];

	RUN(&living, h, "--arena-size=8M");
	RUN(&killed, h, "--arena-size=8M");
	CHECK(end(&killed, SIGKILL) == 1000 + SIGKILL);
	CHECK(access(killed.socket, F_OK) == 0);
	/* Somebody put something into it: it stays. */
	snprintf(foreign, sizeof foreign, "%s/slabd-ephemeral.foreign", h->dir);
	CHECK(mkdir(foreign, 0700) == 0);
	strcat(foreign, "/precious");
	CHECK(close(open(foreign, O_CREAT | O_WRONLY | O_CLOEXEC, 0600)) == 0);
	RUN(&next, h, "--arena-size=8M");
	CHECK(access(killed.socket, F_OK) < 0 && access(living.socket, F_OK) == 0 && access(foreign, F_OK) == 0);
	CHECK(count_folders(h) == 3);
	slabc_close(harness_open(h, "next"));
	CHECK(end(&next, SIGTERM) == 0);
	CHECK(end(&living, SIGTERM) == 0);
	CHECK(count_folders(h) == 1);
}

/* A TMPDIR that is too deep for a socket is not the end. */
static void
it_finds_another_folder(void)
{
	static char shell[] = "sh", option[] = "-c",
		    script[] = "TMPDIR=$(printf /%0100d 0) XDG_RUNTIME_DIR=$DIR exec \"$SLABD\" --ephemeral -- sh -c 'echo $SLABD_SOCKET'";
	CLEANUP(harness_free) struct harness *h = harness_new();
	char slabd[256], dir[96], out[OUT_BYTES];

	snprintf(slabd, sizeof slabd, "SLABD=%s", harness_path("SLABD"));
	snprintf(dir, sizeof dir, "DIR=%s", h->dir);
	CHECK(harness_run((char *const[]){shell, option, script, NULL}, (char *const[]){slabd, dir, NULL}, out, sizeof out) == 0);
	CHECK(strncmp(out, h->dir, strlen(h->dir)) == 0);
}

/* What does not go together is refused, by name. */
static void
it_refuses_what_does_not_fit(void)
{
	static char ephemeral[] = "--ephemeral", dashes[] = "--", socket_option[] = "--socket=/tmp/s", config[] = "--config=/dev/null",
		    truth[] = "true", size[] = "--arena-size=1";
	static const struct {
		char *arguments[4];
		int status;
		const char *words[2];
	} cases[] = {
		{{ephemeral, socket_option}, 1, {"--socket", "--ephemeral"}},
		{{config, ephemeral}, 1, {"--config", "--ephemeral"}},
		{{ephemeral, config, dashes, truth}, 125, {"--config", "--ephemeral"}},
		{{ephemeral, size, dashes, truth}, 125, {"--arena-size=1", "allowed"}},
		{{ephemeral, truth}, 1, {"'true'", "after --"}},
		{{ephemeral, dashes}, 1, {"no command", "--ephemeral"}},
		{{dashes, truth}, 125, {"'true'", "--ephemeral"}},
	};
	char slabd[256], out[OUT_BYTES];

	snprintf(slabd, sizeof slabd, "%s", harness_path("SLABD"));
	for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		char *const argv[] = {
			slabd, cases[i].arguments[0], cases[i].arguments[1], cases[i].arguments[2], cases[i].arguments[3], NULL};
		bool ok = CHECK(harness_run(argv, NULL, out, sizeof out) == cases[i].status);

		if (!CHECK(strstr(out, cases[i].words[0]) && strstr(out, cases[i].words[1])) || !ok)
			fprintf(stderr, "    case %u: %s", i, out);
	}
}

/* A line that nobody can read: an end that says so. */
static void
it_ready_line_that_nobody_reads(void)
{
	static char shell[] = "sh", option[] = "-c", closed[] = "exec \"$SLABD\" --ephemeral >&-",
		    full[] = "exec \"$SLABD\" --ephemeral >/dev/full";
	CLEANUP(harness_free) struct harness *h = harness_new();
	char slabd[256], dir[96], out[OUT_BYTES];

	snprintf(slabd, sizeof slabd, "SLABD=%s", harness_path("SLABD"));
	snprintf(dir, sizeof dir, "TMPDIR=%s", h->dir);
	for (int i = 0; i < 2; i++) {
		char *const argv[] = {shell, option, i ? full : closed, NULL};

		CHECK(harness_run(argv, (char *const[]){slabd, dir, NULL}, out, sizeof out) == 1);
		CHECK(strstr(out, i ? "cannot be told on standard output"
				    : "standard output, where the socket's path is told, is closed") != NULL);
		CHECK(count_folders(h) == 0);
	}
}

/* Too few descriptors for slabd itself: it says so, and does not end as if the command had. */
static void
it_says_that_descriptors_are_few(void)
{
	static char shell[] = "sh", option[] = "-c";
	CLEANUP(harness_free) struct harness *h = harness_new();
	char slabd[256], dir[96], out[OUT_BYTES];

	snprintf(slabd, sizeof slabd, "SLABD=%s", harness_path("SLABD"));
	snprintf(dir, sizeof dir, "TMPDIR=%s", h->dir);
	for (int n = 10; n <= 50; n += 10) {
		char command[128];
		char *const argv[] = {shell, option, command, NULL};

		snprintf(command, sizeof command, "ulimit -n %d; exec \"$SLABD\" --ephemeral -- true", n);
		CHECK(harness_run(argv, (char *const[]){slabd, dir, NULL}, out, sizeof out) == 125);
		CHECK(strstr(out, "RLIMIT_NOFILE") != NULL);
		CHECK(count_folders(h) == 0);
	}
}

CU_pSuite
it_ephemeral_suite(void)
{
	CU_pSuite suite = harness_suite("ephemeral");

	CU_ADD_TEST(suite, it_ready_line_and_private_socket);
	CU_ADD_TEST(suite, it_takes_the_arena_options);
	CU_ADD_TEST(suite, it_users_apart);
	CU_ADD_TEST(suite, it_ends_with_its_parent);
	CU_ADD_TEST(suite, it_command_is_told_of_the_parents_end);
	CU_ADD_TEST(suite, it_runs_a_command);
	CU_ADD_TEST(suite, it_command_is_left_as_it_was);
	CU_ADD_TEST(suite, it_signals_go_to_the_command);
	CU_ADD_TEST(suite, it_terminal_signals_once);
	CU_ADD_TEST(suite, it_arena_ends_with_the_command);
	CU_ADD_TEST(suite, it_two_do_not_meet);
	CU_ADD_TEST(suite, it_next_one_sweeps);
	CU_ADD_TEST(suite, it_finds_another_folder);
	CU_ADD_TEST(suite, it_refuses_what_does_not_fit);
	CU_ADD_TEST(suite, it_ready_line_that_nobody_reads);
	CU_ADD_TEST(suite, it_says_that_descriptors_are_few);
	return suite;
}
