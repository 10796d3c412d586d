/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fail_rig.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORKER_S = 40, SETTLE_MS = 10, HELLO_MS = 200 };

const char usual_options[] = "--page-kind=4k --arena-size=64M --threads=2";
const char *slabd_options = usual_options;
struct fail_at *at, *to_worker;
char at_path[64];
static char to_worker_path[64];
struct fail_run run;

static struct fail_at *
make_orders(char path[64])
{
	int fd = memfd_create("fail_at", MFD_CLOEXEC);
	void *map = fd < 0 || ftruncate(fd, sizeof(struct fail_at)) < 0
			    ? MAP_FAILED
			    : mmap(NULL, sizeof(struct fail_at), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	snprintf(path, 64, "/proc/%d/fd/%d", getpid(), fd);
	return map == MAP_FAILED ? NULL : map;
}

bool
rig_init(void)
{
	at = make_orders(at_path);
	to_worker = make_orders(to_worker_path);
	return at && to_worker;
}

bool
holds(bool ok, const char *format, ...)
{
	va_list args;

	if (!ok) {
		fprintf(stderr, "\n    %s, %s number %u%s, errno %d (%s): ", run.side, fail_names[run.call], run.k, run.is_lasting ? " and all after it" : "",
			run.error, strerror(run.error));
		va_start(args, format);
		vfprintf(stderr, format, args);
		va_end(args);
		fputc('\n', stderr);
	}
	CHECK(ok);
	return ok;
}

/* Programs */

const char *
library_path(void)
{
	static char path[128];

	snprintf(path, sizeof path, "%s/tests/fail_at.so", getenv("BUILD") ? getenv("BUILD") : "build/release");
	return path;
}

static void
preload(void)
{
	setenv("LD_PRELOAD", library_path(), 1);
}

static const char *
worker_path(void)
{
	static char path[256];

	snprintf(path, sizeof path, "%s/tests/fail_worker", getenv("BUILD") ? getenv("BUILD") : "build/release");
	return path;
}

/* The job.  Returns its exit status; above OURS: a signal. */
int
work(const struct harness *h, int timeout_ms, bool is_preloaded)
{
	char timeout[16];
	int status = 0;
	pid_t pid;

	snprintf(timeout, sizeof timeout, "%d", timeout_ms);
	pid = fork();
	REQUIRE(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		signal(SIGALRM, SIG_DFL);
		alarm(WORKER_S);
		setenv("FAIL_AT_FILE", to_worker_path, 1);
		if (is_preloaded)
			preload();
		execl(worker_path(), worker_path(), h->socket, timeout, NULL);
		_exit(127);
	}
	REQUIRE(waitpid(pid, &status, 0) == pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : OURS + WTERMSIG(status);
}

static void
exec_slabd(const struct harness *h)
{
	char copy[128], socket_option[128], *argv[16], *save = NULL;
	int fd = open(h->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	unsigned n = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGALRM, SIG_DFL);
	signal(SIGPIPE, SIG_DFL);
	if (fd < 0 || dup2(fd, STDERR_FILENO) < 0)
		_exit(127);
	setenv("FAIL_AT_FILE", at_path, 1);
	preload();
	snprintf(copy, sizeof copy, "%s", slabd_options);
	snprintf(socket_option, sizeof socket_option, "--socket=%s", h->socket);
	argv[n++] = (char *)(uintptr_t)harness_path("SLABD");
	argv[n++] = socket_option;
	for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save))
		argv[n++] = word;
	argv[n] = NULL;
	execv(argv[0], argv);
	_exit(127);
}

/* A connection that asks, instead of one that was a victim. */
bool
has_monitor(struct harness *h)
{
	union proto_request request = {0}, hello = {.hello = {.version = PROTO_VERSION, .layout_hash = layout_hash, .library = "fail"}};
	struct pollfd p = {.events = POLLIN};
	union proto_reply reply;

	if (h->monitor >= 0 && raw_call(h->monitor, PROTO_OP_STATUS, &request, &reply, NULL) == PROTO_STATUS_OK)
		return true;
	if (h->monitor >= 0)
		close(h->monitor);
	h->monitor = raw_connect(h->socket);
	if (h->monitor < 0)
		return false;
	p.fd = h->monitor;
	/* It may meet the failure itself, which has then had its time. */
	if (raw_send(h->monitor, PROTO_OP_HELLO, 1, &hello) < 0 || poll(&p, 1, HELLO_MS) != 1)
		fail_none(at);
	if (raw_receive(h->monitor, PROTO_OP_HELLO, 1, &reply, NULL) == 0)
		return true;
	fail_none(at);
	close(h->monitor);
	h->monitor = -1;
	return false;
}

/* A slabd, perhaps with an order from its first call on.  false: it ended, *statusp is its exit status, above OURS a signal. */
bool
start(struct harness *h, int *statusp)
{
	int status = 0;

	fflush(NULL);
	h->slabd = fork();
	REQUIRE(h->slabd >= 0);
	if (h->slabd == 0)
		exec_slabd(h);
	if (EVENTUALLY(waitpid(h->slabd, &status, WNOHANG) != 0 || has_monitor(h)) && h->monitor >= 0)
		return true;
	if (status == 0 && waitpid(h->slabd, &status, WNOHANG) == 0) {
		holds(false, "slabd neither ends nor answers");
		kill(h->slabd, SIGKILL);
		waitpid(h->slabd, &status, 0);
	}
	h->slabd = 0;
	*statusp = WIFEXITED(status) ? WEXITSTATUS(status) : OURS + WTERMSIG(status);
	return false;
}

bool
is_alive(struct harness *h)
{
	int status = 0;

	if (h->slabd == 0 || waitpid(h->slabd, &status, WNOHANG) == 0)
		return h->slabd != 0;
	h->slabd = 0;
	holds(false, "slabd has ended: status %d, signal %d", WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
	return false;
}

/* What must be so */

struct sums {
	uint64_t n_objects, n_free, n_barn, n_allocated, bytes_in_slabs;
	uint64_t n_held, n_orphans;
	uint64_t committed_bytes, free_bytes;
	unsigned n_caches, n_clients;
};

static void
add_caches(struct harness *h, struct sums *s)
{
	union proto_request request = {0};
	union proto_reply reply;

	while (harness_ask(h, PROTO_OP_CACHES, &request, &reply) == PROTO_STATUS_OK && reply.caches.cache) {
		s->n_objects += reply.caches.n_objects;
		s->n_free += reply.caches.n_free;
		s->n_barn += reply.caches.n_node_barn;
		s->n_allocated += reply.caches.n_allocated;
		s->bytes_in_slabs += reply.caches.n_pages * LAYOUT_PAGE_BYTES;
		s->n_caches++;
		request.caches.after = reply.caches.cache;
	}
}

static void
add_clients(struct harness *h, struct sums *s)
{
	union proto_request request = {0};
	union proto_reply reply;

	while (harness_ask(h, PROTO_OP_CLIENTS, &request, &reply) == PROTO_STATUS_OK && reply.clients.client) {
		s->n_held += reply.clients.n_held;
		s->n_orphans += reply.clients.n_orphans;
		s->n_clients += strcmp(reply.clients.state, "dead") != 0;
		request.clients.after = reply.clients.client;
	}
}

static void
add_nodes(struct harness *h, struct sums *s)
{
	union proto_request request = {0};
	union proto_reply reply;

	while (harness_ask(h, PROTO_OP_NODES, &request, &reply) == PROTO_STATUS_OK && reply.nodes.node) {
		s->committed_bytes += reply.nodes.huge_bytes + reply.nodes.small_bytes;
		s->free_bytes += reply.nodes.free_bytes;
		request.nodes.after = reply.nodes.node;
	}
}

#define SAME(a, b) holds((a) == (b), "%s: " #a " %llu, " #b " %llu", when, (unsigned long long)(a), (unsigned long long)(b))

/* Everything that slabd counts, against what it finds when it looks. */
bool
recount(struct harness *h, const char *when)
{
	struct proto_audit_reply audit = harness_audit(h);
	struct proto_status_reply status = harness_status(h);
	struct sums sums = {0};
	bool ok;

	add_caches(h, &sums);
	add_clients(h, &sums);
	add_nodes(h, &sums);
	ok = SAME(audit.n_lost, 0u) & SAME(audit.n_doubled, 0u) & SAME(audit.n_undecided, 0u);
	ok &= SAME(audit.bytes_missing, 0u) & SAME(audit.bytes_extra, 0u);
	ok &= SAME(audit.n_objects, audit.n_free + audit.n_barn + audit.n_out);
	ok &= SAME(audit.n_out, audit.n_in_sheaves + audit.n_in_stashes + audit.n_held + audit.n_orphans);
	ok &= SAME(sums.n_objects, audit.n_objects) & SAME(sums.n_free, audit.n_free) & SAME(sums.n_barn, audit.n_barn);
	ok &= SAME(sums.n_allocated, audit.n_held + audit.n_orphans);
	ok &= SAME(sums.n_held, audit.n_held) & SAME(sums.n_orphans, audit.n_orphans);
	ok &= SAME(status.n_caches, sums.n_caches) & SAME(status.n_sessions, sums.n_clients);
	ok &= SAME(status.n_sessions_ever, status.n_ended_ever + status.n_sessions);
	ok &= SAME(status.committed_bytes, sums.committed_bytes);
	ok &= SAME(status.committed_bytes, status.bytes_huge + status.bytes_1g + status.bytes_thp + status.bytes_4k);
	ok &= SAME(sums.committed_bytes, sums.free_bytes + sums.bytes_in_slabs);
	return ok;
}

/* What is left goes: orphans, and then the caches; nothing is committed then. */
bool
clear(struct harness *h)
{
	const char *when = "all caches destroyed";
	union proto_request request = {0};
	union proto_reply reply;
	struct proto_status_reply status;

	while (harness_ask(h, PROTO_OP_RECLAIM, &request, &reply) == PROTO_STATUS_OK && reply.reclaim.next)
		request.reclaim.from = reply.reclaim.next;
	for (request = (union proto_request){0}; harness_ask(h, PROTO_OP_CACHES, &request, &reply) == PROTO_STATUS_OK && reply.caches.cache;) {
		union proto_request destroy = {.destroy = {.commit = 1}};

		request.caches.after = reply.caches.cache;
		strcpy(destroy.destroy.name, reply.caches.name);
		holds(harness_ask(h, PROTO_OP_DESTROY, &destroy, &reply) == PROTO_STATUS_OK, "cache '%s' cannot be destroyed", destroy.destroy.name);
	}
	status = harness_status(h);
	return SAME(status.n_caches, 0u) & SAME(status.committed_bytes, 0u);
}

bool
is_quiet(struct harness *h)
{
	struct proto_status_reply status = harness_status(h);

	return status.n_sessions == 0;
}

/* After a job under an order, which is over. */
bool
check_after(struct harness *h, int status, unsigned n_fds)
{
	bool ok = is_alive(h);

	if (!ok)
		return false;
	ok &= holds(status <= OURS, "the client has died of signal %d", status - OURS);
	ok &= holds(status < 2 || status > OURS, "the client: %s", to_worker->said[0] ? to_worker->said : "exit status 2 and more");
	ok &= holds(EVENTUALLY(has_monitor(h)), "slabd does not answer");
	ok &= holds(EVENTUALLY(is_quiet(h)), "a session is left");
	if (!ok)
		return false;
	ok &= recount(h, "after the shortage");
	to_worker->said[0] = '\0';
	status = work(h, PATIENT_MS, false);
	ok &= holds(status == 0, "a fresh client cannot do the job: status %d %s", status, to_worker->said);
	ok &= holds(EVENTUALLY(is_quiet(h)), "the fresh client's session is left");
	ok &= recount(h, "after the fresh client") & clear(h);
	ok &= holds(EVENTUALLY(harness_count_fds(h->slabd) == n_fds), "slabd has %u descriptors, it had %u", harness_count_fds(h->slabd), n_fds);
	return ok & is_alive(h);
}

/* Once connections that were victims are gone. */
unsigned
count_settled_fds(const struct harness *h)
{
	unsigned before, n = 0;

	do {
		before = n;
		for (int i = 0; i < SETTLE_MS; i++)
			harness_pause();
		n = harness_count_fds(h->slabd);
	} while (n != before);
	return n;
}
