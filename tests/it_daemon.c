/* SPDX-License-Identifier: Apache-2.0 */
/* slabd as a program: its socket's path, its settings, its end, and what systemd hands to it and hears from it. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness.h"

CU_pSuite it_daemon_suite(void);

enum { OUT_BYTES = 4096 };

/* Runs slabd to its end with one or two arguments; its output in out. */
static int
run_slabd(const char *first, const char *second, char *out)
{
	char path[256], argument[2][256];
	char *argv[] = {path, argument[0], second ? argument[1] : NULL, NULL};

	snprintf(path, sizeof path, "%s", harness_path("SLABD"));
	snprintf(argument[0], sizeof argument[0], "%s", first);
	snprintf(argument[1], sizeof argument[1], "%s", second ? second : "");
	return harness_run(argv, NULL, out, OUT_BYTES);
}

static int
run_slabd_at(const struct harness *h, char *out)
{
	char argument[128];

	snprintf(argument, sizeof argument, "--socket=%s", h->socket);
	return run_slabd(argument, NULL, out);
}

/* A second slabd on the same socket is refused in a sentence, and the first one serves on. */
static void
it_started_twice(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "before");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	char out[OUT_BYTES];

	CHECK(slabc_alloc(k) != NULL);
	CHECK(run_slabd_at(h, out) == 1);
	CHECK(strstr(out, "another slabd has") != NULL && strstr(out, h->socket) != NULL);
	CHECK(strstr(out, "--socket") != NULL);
	for (int i = 0; i < 1000; i++)
		CHECK(slabc_alloc(k) != NULL);
	slabc_close(c);
	slabc_close(harness_open(h, "after"));
}

/* What a killed slabd left at the path is taken over; somebody else's listening socket is not. */
static void
it_stale_socket_is_taken_over(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char out[OUT_BYTES];
	int fd;

	harness_kill_slabd(h);
	CHECK(access(h->socket, F_OK) == 0);
	REQUIRE(harness_start(h, NULL, "--page-kind=4k"));
	CHECK(harness_log_count(h, "taken over") == 1);
	slabc_close(harness_open(h, "after"));
	CHECK(harness_stop_slabd(h, SIGTERM) == 0);

	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	snprintf(address.sun_path, sizeof address.sun_path, "%s", h->socket);
	REQUIRE(bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 5) == 0);
	CHECK(run_slabd_at(h, out) == 1);
	CHECK(strstr(out, "somebody listens") != NULL);
	CHECK(access(h->socket, F_OK) == 0);
	close(fd);
}

/* A file that is no socket is not slabd's to remove; nor is a folder. */
static void
it_file_at_the_path_is_left_alone(void)
{
	CLEANUP(harness_free) struct harness *h = harness_new();
	char out[OUT_BYTES], text[16] = "";
	FILE *file = fopen(h->socket, "we");

	REQUIRE(file && fputs("precious", file) >= 0 && fclose(file) == 0);
	CHECK(run_slabd_at(h, out) == 1);
	CHECK(strstr(out, "no socket; it is left alone") != NULL);
	file = fopen(h->socket, "re");
	CHECK(file && fgets(text, sizeof text, file) && strcmp(text, "precious") == 0);
	fclose(file);
	CHECK(unlink(h->socket) == 0 && mkdir(h->socket, 0700) == 0);
	CHECK(run_slabd_at(h, out) == 1);
	CHECK(strstr(out, "no socket; it is left alone") != NULL);
}

/* An error in the file is told with file, line, field and what is allowed; on the command line with the option. */
static void
it_settings_errors_are_named(void)
{
	static const struct {
		const char *text;
		int line;
		const char *words[3];
	} files[] = {
		{"[slabd]\nlog = info\nthreads = many\n", 3, {"threads", "'many'", "1 to 64"}},
		{"[slabd]\nthreads = 65\n", 2, {"threads", "'65'", "1 to 64"}},
		{"[slabd]\nthreads = 0\n", 2, {"threads", "'0'", "1 to 64"}},
		{"# a comment\n[arena]\nsize = 1T\n", 3, {"size", "'1T'", "2M to 32G"}},
		{"[arena]\nsize = -1\n", 2, {"size", "'-1'", "2M to 32G"}},
		{"[arena]\nreserve = 33G\n", 2, {"reserve", "'33G'", "0 to 32G"}},
		{"[arena]\npage-kind = large\n", 2, {"page-kind", "'large'", "1g,huge,thp,4k"}},
		{"[arena]\n\n\nprofile = fast\n", 4, {"profile", "'fast'", "default, kernel, tiny or server"}},
		{"[slabd]\nsocket =\n", 2, {"socket", "''", "a path of 1 to 107 bytes"}},
		{"[slabd]\nsize = 1G\n", 2, {"unknown key 'size'", "[slabd]", "[arena] size"}},
		{"[other]\nsize = 1G\n", 1, {"unknown section", "[other]", "there are"}},
		{"[arena]\ncolour = red\n", 2, {"unknown key 'colour'", "[arena]", "profile"}},
		{"[arena]\nnothing\n", 2, {"nothing", "[section]", "key = value"}},
	};
	static const struct {
		const char *option;
		const char *words[2];
	} options[] = {
		{"--threads=many", {"--threads=many", "1 to 64"}},
		{"--arena-size=1", {"--arena-size=1", "2M to 32G"}},
		{"--page-kind=", {"--page-kind=", "1g,huge,thp,4k"}},
		{"--profile=x", {"--profile=x", "default, kernel, tiny or server"}},
		{"--nothing", {"--nothing", "--help"}},
		{"stray", {"'stray'", "--help"}},
		{"--config=/there/is/none", {"/there/is/none", "No such file"}},
	};
	CLEANUP(harness_free) struct harness *h = harness_new();
	char path[128], argument[160], place[160], out[OUT_BYTES];

	snprintf(path, sizeof path, "%s/slabd.conf", h->dir);
	snprintf(argument, sizeof argument, "--config=%s", path);
	for (unsigned i = 0; i < sizeof files / sizeof files[0]; i++) {
		FILE *file = fopen(path, "we");
		bool ok;

		REQUIRE(file && fputs(files[i].text, file) >= 0 && fclose(file) == 0);
		ok = CHECK(run_slabd(argument, NULL, out) == 1);
		snprintf(place, sizeof place, "%s:%d:", path, files[i].line);
		ok = CHECK(strstr(out, place) != NULL) && ok;
		/* Of a line that is nothing at all only the place can be told. */
		for (unsigned j = files[i].words[0][0] == 'n' ? 1 : 0; j < 3; j++)
			ok = CHECK(strstr(out, files[i].words[j]) != NULL) && ok;
		if (!ok)
			fprintf(stderr, "    file %u: %s", i, out);
	}
	for (unsigned i = 0; i < sizeof options / sizeof options[0]; i++) {
		CHECK(run_slabd(options[i].option, NULL, out) == 1);
		if (!CHECK(strstr(out, options[i].words[0]) != NULL && strstr(out, options[i].words[1]) != NULL))
			fprintf(stderr, "    %s: %s", options[i].option, out);
	}
	CHECK(run_slabd("--help", NULL, out) == 0 && strstr(out, "--arena-size") != NULL);
	CHECK(run_slabd("--version", NULL, out) == 0 && strncmp(out, "slabd ", 6) == 0);
}

/* The file's settings hold; the command line's go over them, wherever they stand. */
static void
it_command_line_over_file(void)
{
	CLEANUP(harness_free) struct harness *h = harness_new();
	struct proto_status_reply status;
	char arguments[256], path[128];
	FILE *file;

	snprintf(path, sizeof path, "%s/slabd.conf", h->dir);
	file = fopen(path, "we");
	REQUIRE(file != NULL);
	fprintf(file, "[slabd]\nthreads = 3\n[arena]\nsize = 64M\npage-kind = 4k ; small\nprofile = kernel\nreserve = 1M\n");
	fclose(file);
	snprintf(arguments, sizeof arguments, "--profile=tiny --config=%s --arena-size=32M", path);
	REQUIRE(harness_start(h, NULL, arguments));
	status = harness_status(h);
	CHECK(status.n_threads == 3);
	CHECK(status.arena_bytes == 32u << 20);
	CHECK(strcmp(status.page_kind, "4k") == 0);
	CHECK(strcmp(status.profile, "tiny") == 0);
	CHECK(status.reserve_bytes == 1u << 20);
}

/* SIGTERM and SIGINT: a clean end with clients connected, the socket file gone, and the clients go on with what they have. */
static void
it_signals_end_it_cleanly(void)
{
	static const int signals[] = {SIGTERM, SIGINT};

	for (int i = 0; i < 2; i++) {
		CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --threads=%d", i + 1);
		struct slabc *c = harness_open(h, "connected");
		struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
		char *p = slabc_alloc(k);

		REQUIRE(p != NULL);
		strcpy(p, "stays");
		CHECK(harness_stop_slabd(h, signals[i]) == 0);
		CHECK(access(h->socket, F_OK) < 0 && errno == ENOENT);
		CHECK(strcmp(p, "stays") == 0);
		slabc_free(k, p);
		CHECK(slabc_alloc(k) == p);
		slabc_close(c);
	}
}

static void
connect_when_ready(struct peer *me, void *arg)
{
	struct harness *h = arg;
	int notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), fd;
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char text[512] = "";
	int64_t start;

	snprintf(address.sun_path, sizeof address.sun_path, "%s/notify", h->dir);
	CHECK(bind(notify, (struct sockaddr *)&address, sizeof address) == 0);
	peer_tell(me, 'l');
	while (recv(notify, text, sizeof text - 1, 0) > 0 && !strstr(text, "READY=1"))
		memset(text, 0, sizeof text);
	/* Whoever hears it may connect, and is answered at once. */
	start = harness_now_ns();
	fd = raw_connect(h->socket);
	CHECK(fd >= 0);
	CHECK(raw_hello(fd) == 0);
	CHECK(harness_now_ns() - start < 100000000);
	CHECK(harness_status(h).committed_bytes >= 32u << 20);
	close(fd);
	peer_tell(me, 'r');
	while (recv(notify, text, sizeof text - 1, 0) > 0 && !strstr(text, "STOPPING=1"))
		memset(text, 0, sizeof text);
}

/* READY=1 is said when the reserve is committed and the socket answers; STOPPING=1 at the end. */
static void
it_tells_systemd_when_ready(void)
{
	CLEANUP(harness_free) struct harness *h = harness_new();
	pid_t pid = harness_spawn(h, connect_when_ready, h);
	char path[128];

	peer_await(harness_peer(h, pid), 'l');
	snprintf(path, sizeof path, "%s/notify", h->dir);
	setenv("NOTIFY_SOCKET", path, 1);
	CHECK(harness_start(h, NULL, "--page-kind=4k --arena-size=64M --reserve=32M"));
	unsetenv("NOTIFY_SOCKET");
	peer_await(harness_peer(h, pid), 'r');
	CHECK(harness_stop_slabd(h, SIGTERM) == 0);
	harness_join(h, pid);
}

/* Starts slabd with a descriptor as systemd's socket activation does. */
static void
start_with_fd(struct harness *h, int fd)
{
	h->slabd = fork();
	REQUIRE(h->slabd >= 0);
	if (h->slabd == 0) {
		int log = open(h->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
		char pid[16];

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		signal(SIGALRM, SIG_DFL);
		snprintf(pid, sizeof pid, "%d", getpid());
		setenv("LISTEN_PID", pid, 1);
		setenv("LISTEN_FDS", "1", 1);
		/* 3 may be the log's own number. */
		if (log < 0 || dup2(log, STDERR_FILENO) < 0 || dup2(fd, 3) < 0)
			_exit(127);
		fcntl(3, F_SETFD, 0);
		execl(harness_path("SLABD"), "slabd", "--page-kind=4k", "--socket=/there/is/no/such/folder/sock", (char *)NULL);
		_exit(127);
	}
}

static int
listen_at(const struct harness *h, int type)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof address.sun_path, "%s", h->socket);
	REQUIRE(bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 5) == 0);
	return fd;
}

/* A folder that is not there: how it comes to be. */
static void
it_missing_folder_is_made_how(void)
{
	CLEANUP(harness_free) struct harness *h = harness_new();
	char out[1024], socket_argument[160], expected[192], *argv[3];

	argv[0] = strdup(harness_path("SLABD"));
	argv[1] = socket_argument;
	argv[2] = NULL;
	snprintf(socket_argument, sizeof socket_argument, "--socket=%s/run/sock", h->dir);
	snprintf(expected, sizeof expected, "mkdir -p %s/run, under systemd systemd-tmpfiles --create", h->dir);
	CHECK(harness_run(argv, NULL, out, sizeof out) == 1);
	CHECK(strstr(out, expected) != NULL);
	free(argv[0]);
}

/* A socket that systemd passes is used, also by those who connected before slabd was there, and its file is systemd's to remove. */
static void
it_socket_activation(void)
{
	CLEANUP(harness_free) struct harness *h = harness_new();
	int fd = listen_at(h, SOCK_SEQPACKET), early = raw_connect(h->socket);
	struct slabc *c;

	CHECK(early >= 0);
	start_with_fd(h, fd);
	close(fd);
	CHECK(raw_hello(early) == 0);
	c = harness_open(h, "activated");
	CHECK(slabc_alloc(harness_open_cache(c, "k", 64, 0)) != NULL);
	slabc_close(c);
	close(early);
	CHECK(harness_stop_slabd(h, SIGTERM) == 0);
	CHECK(access(h->socket, F_OK) == 0);
}

/* A stream socket is no use: slabd says what it wants instead of going on. */
static void
it_stream_socket_is_refused(void)
{
	CLEANUP(harness_free) struct harness *h = harness_new();
	int fd = listen_at(h, SOCK_STREAM), status = 0;

	start_with_fd(h, fd);
	close(fd);
	CHECK(EVENTUALLY(waitpid(h->slabd, &status, WNOHANG) == h->slabd));
	h->slabd = 0;
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	CHECK(harness_log_count(h, "ListenSequentialPacket=") == 1);
}

/*
 * References that outlived a slabd, in a pipe or a file, do not resolve to other objects under the next one: each arena draws its first generation.
 * (One chance in 65,536 that two draw the same.)
 */
static void
it_references_of_another_slabd_are_stale(void)
{
	static slabc_ref before[1000];
	unsigned n_stale = 0;

	for (int life = 0; life < 2; life++) {
		CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
		struct slabc *c = harness_open(h, "maker");
		struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);

		for (int i = 0; i < 1000; i++) {
			slabc_ref ref = slabc_ref_of(c, slabc_alloc(k));

			CHECK(ref != 0);
			if (life == 0)
				before[i] = ref;
		}
		for (int i = 0; i < 1000 && life == 1; i++)
			n_stale += slabc_deref(c, before[i]) == NULL && errno == ESTALE;
		slabc_close(c);
	}
	CHECK(n_stale == 1000);
}

/* Sessions, and faults that they report: two thousand lines and more, of which slabd answers each one's request. */
static void
provoke_log(const struct harness *h)
{
	enum { N_SESSIONS = 8, N_FAULTS = 250 };

	for (int i = 0; i < N_SESSIONS; i++) {
		union proto_request request = {.fault = {.kind = 1, .n = 1}};
		union proto_reply reply;
		struct raw raw;

		raw_attach(&raw, h->socket, "talks a lot");
		for (int j = 0; j < N_FAULTS; j++)
			REQUIRE(raw_call(raw.fd, PROTO_OP_FAULT, &request, &reply, NULL) == PROTO_STATUS_OK);
		raw_detach(&raw);
	}
}

/* Slabd's log is a pipe: nobody reads it, and it is full; then its reader has gone.  Slabd serves on, and ends as it should. */
static void
it_log_without_a_reader(void)
{
	enum { PIPE_BYTES = 4096 };
	CLEANUP(harness_free) struct harness *h = harness_new();
	int fd, n_bytes = 0;

	REQUIRE(mkfifo(h->log, 0600) == 0);
	fd = open(h->log, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	REQUIRE(fd >= 0 && fcntl(fd, F_SETPIPE_SZ, PIPE_BYTES) == PIPE_BYTES);
	CHECK(harness_start(h, NULL, "--page-kind=4k --threads=2"));
	/* What the harness would print of it, it would wait for. */
	CHECK(unlink(h->log) == 0);
	provoke_log(h);
	CHECK(ioctl(fd, FIONREAD, &n_bytes) == 0 && n_bytes > 0);
	CHECK(EVENTUALLY(harness_status(h).n_sessions == 0));
	close(fd);
	provoke_log(h);
	CHECK(EVENTUALLY(harness_status(h).n_sessions == 0));
	CHECK(harness_audit(h).n_lost == 0);
}

CU_pSuite
it_daemon_suite(void)
{
	CU_pSuite suite = harness_suite("daemon");

	CU_ADD_TEST(suite, it_missing_folder_is_made_how);
	CU_ADD_TEST(suite, it_started_twice);
	CU_ADD_TEST(suite, it_stale_socket_is_taken_over);
	CU_ADD_TEST(suite, it_file_at_the_path_is_left_alone);
	CU_ADD_TEST(suite, it_settings_errors_are_named);
	CU_ADD_TEST(suite, it_command_line_over_file);
	CU_ADD_TEST(suite, it_signals_end_it_cleanly);
	CU_ADD_TEST(suite, it_tells_systemd_when_ready);
	CU_ADD_TEST(suite, it_socket_activation);
	CU_ADD_TEST(suite, it_stream_socket_is_refused);
	CU_ADD_TEST(suite, it_references_of_another_slabd_are_stale);
	CU_ADD_TEST(suite, it_log_without_a_reader);
	return suite;
}
