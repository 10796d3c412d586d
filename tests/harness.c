/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The test process has one thread of its own making at a time that calls in here, and any number of harnesses, which are listed so that the
 * watchdog and harness_teardown() find them.  The watchdog (SIGALRM) first kills what the test waits for, so that the test fails by its own
 * checks and the next one runs; if that does not help it ends the process.
 */
#include "tests/harness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_HARNESSES = 8, MAX_ARGUMENTS = 32, GRACE_S = 15, RUN_TIMEOUT_S = 20, LOG_LINES = 30, CHILD_FAILED = 97 };

static pid_t test_pid;
static struct harness *harnesses[MAX_HARNESSES];
static char test_name[128];
static volatile sig_atomic_t n_alarms;

bool
harness_check(bool ok, const char *file, int line, const char *condition, bool is_fatal)
{
	if (test_pid == 0 || getpid() == test_pid) {
		CU_assertImplementation(ok ? CU_TRUE : CU_FALSE, (unsigned)line, condition, file, "", is_fatal ? CU_TRUE : CU_FALSE);
		return ok;
	}
	if (ok)
		return true;
	fprintf(stderr, "\n    child %d of %s, %s:%d: %s (errno %d, last error: %s)\n", getpid(), test_name, file, line, condition, errno,
		slabc_last_error());
	fflush(stderr);
	_exit(CHILD_FAILED);
}

int64_t
harness_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void
harness_pause(void)
{
	static const struct timespec pause = {.tv_nsec = 1000000};

	nanosleep(&pause, NULL);
}

unsigned
harness_seed(void)
{
	const char *text = getenv("SLAB_SEED");
	unsigned seed = text ? (unsigned)strtoul(text, NULL, 0) : (unsigned)time(NULL);

	printf(" seed %u ", seed);
	return seed;
}

unsigned
harness_count_fds(pid_t pid)
{
	char path[64];
	unsigned n = 0;
	DIR *dir;

	snprintf(path, sizeof path, "/proc/%d/fd", pid);
	dir = opendir(path);
	if (!dir)
		return 0;
	while (readdir(dir))
		n++;
	closedir(dir);
	return n - (pid == getpid() ? 3 : 2);
}

const char *
harness_path(const char *variable)
{
	const char *path = getenv(variable);

	if (path)
		return path;
	return strcmp(variable, "SLABD") == 0     ? "build/release/slabd"
	       : strcmp(variable, "SLABD_KEEPER") == 0 ? "build/release/slabd-keeper"
	       : strcmp(variable, "SLABCTL") == 0 ? "build/release/slabctl"
						  : "build/release/libslabclient.so";
}

/* The watchdog */

static void
on_alarm(int sig)
{
	static const char first[] = "\n    TIMEOUT in ", second[] = ": what it waits for is killed\n",
			  last[] = ": still hanging, giving up\n";

	(void)sig;
	if (write(STDERR_FILENO, first, sizeof first - 1) < 0 || write(STDERR_FILENO, test_name, strlen(test_name)) < 0)
		_exit(1);
	if (n_alarms++ > 0) {
		if (write(STDERR_FILENO, last, sizeof last - 1) < 0)
			_exit(1);
		hugepages_put_back();
		_exit(1);
	}
	if (write(STDERR_FILENO, second, sizeof second - 1) < 0)
		_exit(1);
	for (unsigned i = 0; i < MAX_HARNESSES; i++) {
		if (!harnesses[i])
			continue;
		for (unsigned j = 0; j < harnesses[i]->n_peers; j++)
			if (!harnesses[i]->peers[j].is_ended)
				kill(-harnesses[i]->peers[j].pid, SIGKILL);
		if (harnesses[i]->slabd)
			kill(harnesses[i]->is_kept ? -harnesses[i]->slabd : harnesses[i]->slabd, SIGKILL);
	}
	alarm(GRACE_S);
}

static void
on_end(int sig)
{
	hugepages_put_back();
	signal(sig, SIG_DFL);
	raise(sig);
}

static void
setup(void)
{
	static const int ends[] = {SIGINT, SIGTERM, SIGABRT, SIGSEGV, SIGBUS, SIGHUP};
	CU_pTest test = CU_get_current_test();

	test_pid = getpid();
	snprintf(test_name, sizeof test_name, "%s", test ? test->pName : "?");
	n_alarms = 0;
	signal(SIGALRM, on_alarm);
	signal(SIGPIPE, SIG_IGN);
	for (unsigned i = 0; i < sizeof ends / sizeof ends[0]; i++)
		signal(ends[i], on_end);
	fflush(NULL);
	alarm(HARNESS_TIMEOUT_S);
}

void
harness_teardown(void)
{
	alarm(0);
	if (n_alarms)
		CU_FAIL("the test took too long");
	/* A fatal failure has left these behind: their ends say nothing more. */
	for (unsigned i = 0; i < MAX_HARNESSES; i++) {
		if (!harnesses[i])
			continue;
		harness_kill_slabd(harnesses[i]);
		harness_free(harnesses[i]);
	}
	hugepages_put_back();
}

CU_pSuite
harness_suite(const char *name)
{
	return CU_add_suite_with_setup_and_teardown(name, NULL, NULL, setup, harness_teardown);
}

/* slabd */

struct harness *
harness_new(void)
{
	struct harness *h = calloc(1, sizeof *h);
	unsigned i = 0;

	REQUIRE(h != NULL);
	while (i < MAX_HARNESSES && harnesses[i])
		i++;
	REQUIRE(i < MAX_HARNESSES);
	h->monitor = -1;
	h->n_fds_before = harness_count_fds(getpid());
	h->n_failures_before = CU_get_number_of_failures();
	strcpy(h->dir, "/tmp/slabd-it-XXXXXX");
	REQUIRE(mkdtemp(h->dir) != NULL);
	/* So that other users reach the socket. */
	REQUIRE(chmod(h->dir, 0755) == 0);
	snprintf(h->socket, sizeof h->socket, "%s/sock", h->dir);
	snprintf(h->log, sizeof h->log, "%s/log", h->dir);
	harnesses[i] = h;
	return h;
}

/* In the child. */
static void
exec_slabd(const struct harness *h, const char *arguments)
{
	char copy[1024], socket_argument[128], program[sizeof h->program], *argv[MAX_ARGUMENTS], *save = NULL;
	int fd = open(h->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	const struct rlimit files = {.rlim_cur = h->n_files, .rlim_max = h->n_files};
	unsigned n = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGALRM, SIG_DFL);
	signal(SIGPIPE, SIG_DFL);
	if (h->n_files && setrlimit(RLIMIT_NOFILE, &files) < 0)
		_exit(127);
	if (fd < 0 || dup2(fd, STDERR_FILENO) < 0)
		_exit(127);
	snprintf(copy, sizeof copy, "%s", arguments);
	snprintf(socket_argument, sizeof socket_argument, "--socket=%s", h->socket);
	/* A group of its own, so that what is under the keeper goes with it. */
	if (h->is_kept) {
		setsid();
		argv[n++] = strdup(harness_path("SLABD_KEEPER"));
	}
	snprintf(program, sizeof program, "%s", h->program[0] ? h->program : harness_path("SLABD"));
	for (char *word = strtok_r(program, " ", &save); word && n < MAX_ARGUMENTS - 2; word = strtok_r(NULL, " ", &save))
		argv[n++] = word;
	argv[n++] = socket_argument;
	for (char *word = strtok_r(copy, " ", &save); word && n < MAX_ARGUMENTS - 1; word = strtok_r(NULL, " ", &save))
		argv[n++] = word;
	argv[n] = NULL;
	execv(argv[0], argv);
	perror(argv[0]);
	_exit(127);
}

bool
harness_start(struct harness *h, int *statusp, const char *arguments)
{
	int status = 0;
	int fd = -1;
	bool answers;

	fflush(NULL);
	h->slabd = fork();
	REQUIRE(h->slabd >= 0);
	if (h->slabd == 0)
		exec_slabd(h, arguments);
	/* A connection is made before slabd is ready, its HELLO answered after. */
	answers =
		EVENTUALLY(waitpid(h->slabd, &status, WNOHANG) != 0 || (fd = raw_connect(h->socket)) >= 0) && fd >= 0 && raw_hello(fd) == 0;
	if (answers) {
		h->monitor = fd;
		return true;
	}
	if (fd >= 0)
		close(fd);
	/* Reaped above, or about to end. */
	if (!EVENTUALLY(waitpid(h->slabd, &status, WNOHANG) != 0)) {
		kill(h->slabd, SIGKILL);
		waitpid(h->slabd, &status, 0);
	}
	h->slabd = 0;
	if (statusp)
		*statusp = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
	return false;
}

/* Its last lines. */
static void
print_log(const struct harness *h)
{
	FILE *file = fopen(h->log, "re");
	static char lines[LOG_LINES][256];
	unsigned n = 0;

	while (file && fgets(lines[n % LOG_LINES], sizeof lines[0], file))
		n++;
	for (unsigned i = n > LOG_LINES ? n - LOG_LINES : 0; i < n; i++)
		fprintf(stderr, "    | %.*s\n", (int)strcspn(lines[i % LOG_LINES], "\n"), lines[i % LOG_LINES]);
	if (file)
		fclose(file);
}

struct harness *
harness_slabd(const char *arguments, ...)
{
	struct harness *h = harness_new();
	char text[1024];
	va_list args;

	va_start(args, arguments);
	vsnprintf(text, sizeof text, arguments, args);
	va_end(args);
	if (!harness_start(h, NULL, text)) {
		print_log(h);
		REQUIRE(!"slabd answers");
	}
	return h;
}

struct harness *
harness_keeper(const char *program, const char *arguments)
{
	struct harness *h = harness_new();

	h->is_kept = true;
	if (program)
		snprintf(h->program, sizeof h->program, "%s", program);
	if (!harness_start(h, NULL, arguments)) {
		print_log(h);
		REQUIRE(!"slabd answers");
	}
	return h;
}

/* Another process answers than that one? */
static bool
answers_anew(struct harness *h, pid_t before)
{
	union proto_request request = {0};
	union proto_reply reply = {0};

	if (h->monitor >= 0)
		close(h->monitor);
	h->monitor = raw_connect(h->socket);
	if (h->monitor >= 0 && raw_hello(h->monitor) == 0 && raw_call(h->monitor, PROTO_OP_STATUS, &request, &reply, NULL) == PROTO_STATUS_OK)
		return (pid_t)reply.status.pid != before;
	if (h->monitor >= 0)
		close(h->monitor);
	h->monitor = -1;
	return false;
}

void
harness_wait_kept(struct harness *h, pid_t before)
{
	if (!EVENTUALLY(answers_anew(h, before))) {
		print_log(h);
		REQUIRE(!"the next slabd answers");
	}
}

pid_t
harness_kill_kept(struct harness *h)
{
	pid_t pid = (pid_t)harness_status(h).pid;

	REQUIRE(kill(pid, SIGKILL) == 0);
	harness_wait_kept(h, pid);
	return (pid_t)harness_status(h).pid;
}

const char *
harness_config(const struct harness *h)
{
	static char path[96];

	snprintf(path, sizeof path, "%s/slabd.conf", h->dir);
	return path;
}

void
harness_write_config(const struct harness *h, const char *text)
{
	FILE *file = fopen(harness_config(h), "we");

	REQUIRE(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

struct harness *
harness_slabd_config(const char *text)
{
	struct harness *h = harness_new();
	char argument[128];

	harness_write_config(h, text);
	snprintf(argument, sizeof argument, "--config=%s", harness_config(h));
	if (!harness_start(h, NULL, argument)) {
		print_log(h);
		REQUIRE(!"slabd answers");
	}
	return h;
}

void
harness_reload(struct harness *h, const char *text)
{
	unsigned n = harness_log_count(h, "reload: done") + harness_log_count(h, "the settings stay as they are");

	harness_write_config(h, text);
	REQUIRE(kill(h->slabd, SIGHUP) == 0);
	CHECK(EVENTUALLY(harness_log_count(h, "reload: done") + harness_log_count(h, "the settings stay as they are") > n));
}

static int
wait_bounded(pid_t pid, int *statusp)
{
	int r = 0;

	*statusp = 0;
	return EVENTUALLY((r = waitpid(pid, statusp, WNOHANG)) != 0) ? r : 0;
}

int
harness_stop_slabd(struct harness *h, int sig)
{
	int status = 0, r;

	if (h->monitor >= 0)
		close(h->monitor);
	h->monitor = -1;
	if (!h->slabd)
		return 0;
	kill(h->is_kept && sig == SIGKILL ? -h->slabd : h->slabd, sig);
	r = wait_bounded(h->slabd, &status);
	CHECK(r == h->slabd);
	if (r == 0) {
		kill(h->slabd, SIGKILL);
		waitpid(h->slabd, &status, 0);
	}
	if (h->is_kept)
		kill(-h->slabd, SIGKILL);
	h->slabd = 0;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

void
harness_kill_slabd(struct harness *h)
{
	h->is_killed = true;
	harness_stop_slabd(h, SIGKILL);
}

static int
remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static void
end_peer(struct peer *peer)
{
	int status = 0;

	if (!peer->is_ended) {
		if (waitpid(peer->pid, &status, WNOHANG) == peer->pid) {
			CHECK(status == 0);
		} else {
			kill(-peer->pid, SIGKILL);
			waitpid(peer->pid, &status, 0);
		}
		peer->is_ended = true;
	}
	/* Its own children, if it had any. */
	kill(-peer->pid, SIGKILL);
	close(peer->in);
	close(peer->out);
}

void
harness_free(struct harness *h)
{
	bool is_killed;

	if (!h)
		return;
	for (unsigned i = 0; i < h->n_peers; i++)
		end_peer(&h->peers[i]);
	is_killed = h->is_killed || h->slabd == 0;
	CHECK(harness_stop_slabd(h, SIGTERM) == 0 || is_killed);
	if (CU_get_number_of_failures() > h->n_failures_before)
		print_log(h);
	nftw(h->dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
	CHECK(access(h->dir, F_OK) < 0);
	/* A test that was left in the midst has sessions open. */
	if (CU_get_number_of_failures() == h->n_failures_before)
		CHECK(harness_count_fds(getpid()) == h->n_fds_before);
	for (unsigned i = 0; i < MAX_HARNESSES; i++)
		if (harnesses[i] == h)
			harnesses[i] = NULL;
	free(h);
}

void
harness_free_at(struct harness **hp)
{
	harness_free(*hp);
}

unsigned
harness_log_count(const struct harness *h, const char *text)
{
	FILE *file = fopen(h->log, "re");
	char line[2048];
	unsigned n = 0;

	while (file && fgets(line, sizeof line, file))
		n += strstr(line, text) != NULL;
	if (file)
		fclose(file);
	return n;
}

int
harness_run(char *const argv[], char *const env[], char *out, size_t size)
{
	int fds[2], status = -1;
	size_t used = 0;
	ssize_t n;
	pid_t pid;

	REQUIRE(pipe2(fds, O_CLOEXEC) == 0);
	fflush(NULL);
	pid = fork();
	REQUIRE(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		signal(SIGALRM, SIG_DFL);
		alarm(RUN_TIMEOUT_S);
		for (unsigned i = 0; env && env[i]; i++)
			putenv(env[i]);
		dup2(fds[1], STDOUT_FILENO);
		dup2(fds[1], STDERR_FILENO);
		execvp(argv[0], argv);
		_exit(127);
	}
	close(fds[1]);
	while (used < size - 1 && (n = read(fds[0], out + used, size - 1 - used)) > 0)
		used += (size_t)n;
	out[used] = '\0';
	close(fds[0]);
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Peers */

pid_t
harness_spawn(struct harness *h, harness_fn *fn, void *arg)
{
	struct peer *peer = &h->peers[h->n_peers], me;
	int to[2], from[2];

	REQUIRE(h->n_peers < HARNESS_MAX_PEERS);
	REQUIRE(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0);
	fflush(NULL);
	peer->pid = fork();
	REQUIRE(peer->pid >= 0);
	if (peer->pid == 0) {
		signal(SIGALRM, SIG_DFL);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		setsid();
		alarm(HARNESS_TIMEOUT_S);
		/* The others' pipes would be held open, and their ends not be seen. */
		for (unsigned i = 0; i < h->n_peers; i++) {
			close(h->peers[i].in);
			close(h->peers[i].out);
		}
		close(to[1]);
		close(from[0]);
		if (h->monitor >= 0)
			close(h->monitor);
		h->monitor = -1;
		me = (struct peer){.pid = getpid(), .in = to[0], .out = from[1]};
		fn(&me, arg);
		_exit(0);
	}
	/* As in the child: whoever comes first. */
	close(to[0]);
	close(from[1]);
	peer->in = from[0];
	peer->out = to[1];
	peer->is_ended = false;
	h->n_peers++;
	return peer->pid;
}

struct peer *
harness_peer(struct harness *h, pid_t pid)
{
	for (unsigned i = 0; i < h->n_peers; i++)
		if (h->peers[i].pid == pid)
			return &h->peers[i];
	REQUIRE(!"no such child");
	return NULL;
}

void
harness_join(struct harness *h, pid_t pid)
{
	struct peer *peer = harness_peer(h, pid);
	int status = 0;

	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(status == 0);
	peer->is_ended = true;
}

void
harness_kill(struct harness *h, pid_t pid, int sig)
{
	struct peer *peer = harness_peer(h, pid);
	int status = 0;

	CHECK(kill(pid, sig) == 0);
	if (sig != SIGKILL)
		return;
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	peer->is_ended = true;
}

void
harness_wait_reaped(struct harness *h, pid_t pid)
{
	CHECK(EVENTUALLY(harness_client(h, pid).client == 0));
}

void
peer_put(struct peer *peer, const void *data, size_t n)
{
	const char *p = data;

	while (n > 0) {
		ssize_t r = write(peer->out, p, n);

		if (r < 0 && errno == EINTR)
			continue;
		REQUIRE(r > 0);
		p += r;
		n -= (size_t)r;
	}
}

void
peer_get(struct peer *peer, void *data, size_t n)
{
	char *p = data;

	while (n > 0) {
		ssize_t r = read(peer->in, p, n);

		if (r < 0 && errno == EINTR)
			continue;
		REQUIRE(r > 0);
		p += r;
		n -= (size_t)r;
	}
}

void
peer_tell(struct peer *peer, char step)
{
	peer_put(peer, &step, 1);
}

void
peer_await(struct peer *peer, char step)
{
	char came = 0;

	peer_get(peer, &came, 1);
	REQUIRE(came == step);
}

/* Asking */

enum proto_status
harness_ask(struct harness *h, enum proto_op op, const union proto_request *request, union proto_reply *reply)
{
	int r;

	if (h->monitor < 0) {
		h->monitor = raw_connect(h->socket);
		REQUIRE(h->monitor >= 0);
		REQUIRE(raw_hello(h->monitor) == 0);
	}
	r = raw_call(h->monitor, op, request, reply, NULL);
	REQUIRE(r >= 0);
	return (enum proto_status)r;
}

struct proto_status_reply
harness_status(struct harness *h)
{
	union proto_request request = {0};
	union proto_reply reply = {0};

	CHECK(harness_ask(h, PROTO_OP_STATUS, &request, &reply) == PROTO_STATUS_OK);
	return reply.status;
}

struct proto_caches_reply
harness_cache(struct harness *h, const char *name)
{
	union proto_request request = {0};
	union proto_reply reply = {0};

	do {
		CHECK(harness_ask(h, PROTO_OP_CACHES, &request, &reply) == PROTO_STATUS_OK);
		request.caches.after = reply.caches.cache;
	} while (reply.caches.cache && strcmp(reply.caches.name, name) != 0);
	return reply.caches;
}

static struct proto_audit_reply
audit(struct harness *h, uint32_t cache)
{
	union proto_request request = {.audit = {.cache = cache}};
	union proto_reply reply = {0};

	CHECK(harness_ask(h, PROTO_OP_AUDIT, &request, &reply) == PROTO_STATUS_OK);
	CHECK(reply.audit.n_objects == reply.audit.n_free + reply.audit.n_barn + reply.audit.n_out);
	return reply.audit;
}

struct proto_audit_reply
harness_audit(struct harness *h)
{
	return audit(h, 0);
}

struct proto_audit_reply
harness_audit_cache(struct harness *h, const char *name)
{
	uint32_t cache = harness_cache(h, name).cache;

	CHECK(cache != 0);
	return audit(h, cache);
}

/* pid 0: by id. */
static struct proto_clients_reply
find_client(struct harness *h, pid_t pid, uint32_t client_id)
{
	union proto_request request = {0};
	union proto_reply reply = {0};

	do {
		CHECK(harness_ask(h, PROTO_OP_CLIENTS, &request, &reply) == PROTO_STATUS_OK);
		request.clients.after = reply.clients.client;
	} while (reply.clients.client && (pid ? reply.clients.pid != (uint32_t)pid || strcmp(reply.clients.state, "dead") == 0
					      : reply.clients.client_id != client_id));
	return reply.clients;
}

struct proto_clients_reply
harness_client(struct harness *h, pid_t pid)
{
	return find_client(h, pid, 0);
}

struct proto_clients_reply
harness_client_id(struct harness *h, uint32_t client_id)
{
	return find_client(h, 0, client_id);
}

struct slabc *
harness_open(const struct harness *h, const char *label)
{
	struct slabc_options options = SLABC_OPTIONS_INIT;
	struct slabc *c = NULL;

	options.socket = h->socket;
	options.label = label;
	options.timeout_ms = 10000;
	REQUIRE(slabc_open(&c, &options) == 0);
	return c;
}

struct slabc_cache *
harness_open_cache(struct slabc *c, const char *name, size_t size, unsigned flags)
{
	struct slabc_cache_options options = SLABC_CACHE_OPTIONS_INIT;
	struct slabc_cache *k = NULL;

	options.flags = flags;
	REQUIRE(slabc_cache_open(c, name, size, &options, &k) == 0);
	return k;
}
