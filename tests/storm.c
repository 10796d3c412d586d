/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/storm.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto/channel.h"
#include "proto/codec.h"

enum { AUDIT_TRIES = 20 /* "undecided" means: look again */ };

const uint32_t storm_sheaf_capacity[GHOST_CACHES] = {252, 252, 1}, storm_node_sheaves[GHOST_CACHES] = {16, 16, 0},
	       storm_cpu_partial[GHOST_CACHES] = {0, 500, 3};

uint64_t
storm_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void
storm_pause_us(uint64_t us)
{
	struct timespec t = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};

	while (nanosleep(&t, &t) < 0 && errno == EINTR)
		continue;
}

static void
print_log(const struct storm *s)
{
	char line[512];
	FILE *log = fopen(s->log, "re");

	if (!log)
		return;
	if (fseek(log, -4000, SEEK_END) < 0)
		rewind(log);
	printf("--- the end of %s\n", s->log);
	while (fgets(line, sizeof line, log))
		fputs(line, stdout);
	printf("---\n");
	fclose(log);
}

static void
kill_all(struct storm *s)
{
	for (uint32_t i = 0; i < s->n_workers; i++) {
		if (s->worker[i] > 0) {
			kill(s->worker[i], SIGKILL);
			waitpid(s->worker[i], NULL, 0);
		}
	}
	if (s->slabd > 0) {
		kill(-s->slabd, SIGKILL);
		waitpid(s->slabd, NULL, 0);
	}
}

void
storm_die(struct storm *s, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	printf("FAILED: ");
	vprintf(format, args);
	printf("\n");
	va_end(args);
	kill_all(s);
	print_log(s);
	printf("seed %llu; 0 passed, 1 failed\n", (unsigned long long)s->seed);
	exit(EXIT_FAILURE);
}

void
storm_check(struct storm *s, bool is_good, const char *sentence)
{
	s->check[s->n_checks].sentence = sentence;
	s->check[s->n_checks++].is_good = is_good;
}

/* slabd */

/* In a process group of its own, so that what is under the keeper goes with it. */
static void
exec_slabd(const struct storm *s, pid_t parent)
{
	char socket_option[128], page_option[64], threads_option[32];
	const char *slabd = getenv("SLABD") ? getenv("SLABD") : "build/release/slabd";
	const char *keeper = getenv("SLABD_KEEPER") ? getenv("SLABD_KEEPER") : "build/release/slabd-keeper";
	const char *argv[] = {keeper, slabd, socket_option, page_option, threads_option, "--arena-size=128M", NULL};
	const char *const *from = s->is_kept ? argv : argv + 1;
	int log = open(s->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

	snprintf(socket_option, sizeof socket_option, "--socket=%s", s->socket);
	snprintf(page_option, sizeof page_option, "--page-kind=%s", s->page_kind);
	snprintf(threads_option, sizeof threads_option, "--threads=%u", s->n_threads);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setpgid(0, 0);
	if (log < 0 || dup2(log, STDERR_FILENO) < 0 || getppid() != parent)
		_exit(127);
	execv(from[0], (char *const *)(uintptr_t)from);
	_exit(127);
}

static void
slabd_start(struct storm *s)
{
	pid_t parent = getpid();

	snprintf(s->dir, sizeof s->dir, "/tmp/%s.XXXXXX", s->name);
	if (!mkdtemp(s->dir))
		storm_die(s, "mkdtemp: %s", strerror(errno));
	snprintf(s->socket, sizeof s->socket, "%s/slabd.sock", s->dir);
	snprintf(s->log, sizeof s->log, "%s/slabd.log", s->dir);
	s->slabd = fork();
	if (s->slabd == 0)
		exec_slabd(s, parent);
	if (s->slabd < 0)
		storm_die(s, "fork: %s", strerror(errno));
	setpgid(s->slabd, s->slabd);
}

void
storm_call(struct storm *s, enum proto_op op, const union proto_request *request, union proto_reply *reply)
{
	static unsigned char packet[PROTO_MAX_PACKET];
	char sentence[PROTO_SENTENCE_BYTES];
	struct pollfd p = {.fd = s->control, .events = POLLIN};
	enum proto_status status;
	uint32_t id = ++s->last_id, id_here;
	int n = proto_pack_request(packet, sizeof packet, op, id, request), r;
	ssize_t length;

	r = n < 0 ? n : channel_send(s->control, packet, (size_t)n, NULL, 0, 0);
	if (r < 0)
		storm_die(s, "slabd does not take %s: %s", proto_op_name(op), strerror(-r));
	if (poll(&p, 1, STORM_WAIT_MS) != 1)
		storm_die(s, "slabd does not answer %s", proto_op_name(op));
	length = channel_recv(s->control, packet, sizeof packet, NULL, NULL, 0);
	if (length <= 0)
		storm_die(s, "slabd has ended, instead of an answer to %s", proto_op_name(op));
	r = proto_unpack_reply(packet, (size_t)length, op, &id_here, &status, reply, sentence, sizeof sentence);
	if (r < 0 || id_here != id || status != PROTO_STATUS_OK)
		storm_die(s, "slabd's answer to %s: %s", proto_op_name(op), sentence);
}

void
storm_control_open(struct storm *s)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	uint64_t end = storm_now_ns() + STORM_WAIT_MS * UINT64_C(1000000);
	union proto_request request = {.hello = {.version = PROTO_VERSION, .layout_hash = layout_hash, .library = "storm"}};
	union proto_reply reply;

	if (s->control >= 0)
		close(s->control);
	strcpy(address.sun_path, s->socket);
	s->control = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	while (connect(s->control, (struct sockaddr *)&address, sizeof address) < 0) {
		if (storm_now_ns() > end || waitpid(s->slabd, NULL, WNOHANG) != 0)
			storm_die(s, "slabd does not start; is $SLABD right?");
		storm_pause_us(1000);
	}
	storm_call(s, PROTO_OP_HELLO, &request, &reply);
}

bool
storm_has_session(struct storm *s, pid_t pid, uint32_t client)
{
	union proto_request request = {.clients = {.after = client ? client % GHOST_SLOTS - 1 : 0}};
	union proto_reply reply;

	for (;;) {
		storm_call(s, PROTO_OP_CLIENTS, &request, &reply);
		if (reply.clients.client == 0)
			return false;
		if (reply.clients.pid == (uint32_t)pid && strcmp(reply.clients.state, "dead") != 0)
			return true;
		if (client)
			return false;
		request.clients.after = reply.clients.client;
	}
}

void
storm_audit(struct storm *s, struct proto_audit_reply *a)
{
	union proto_request request = {0};
	union proto_reply reply;

	for (uint32_t tries = 0; tries < AUDIT_TRIES; tries++) {
		storm_call(s, PROTO_OP_AUDIT, &request, &reply);
		*a = reply.audit;
		s->n_audits++;
		if (a->n_undecided == 0 || a->n_lost || a->n_doubled)
			break;
		s->n_undecided_looks++;
	}
	if (a->n_lost || a->n_doubled || a->n_undecided)
		ghost_fail(&s->view, "audit: %llu lost (the first at place %lld), %llu doubled (%lld), %llu undecided after %u looks",
			(unsigned long long)a->n_lost, (long long)a->first_lost - 1, (unsigned long long)a->n_doubled,
			(long long)a->first_doubled - 1, (unsigned long long)a->n_undecided, AUDIT_TRIES);
}

uint64_t
storm_committed(struct storm *s)
{
	union proto_request request = {0};
	union proto_reply reply;

	storm_call(s, PROTO_OP_STATUS, &request, &reply);
	if (reply.status.committed_bytes > s->max_committed)
		s->max_committed = reply.status.committed_bytes;
	return reply.status.committed_bytes;
}

/* Workers */

/* Nobody is at work on the lane. */
static void
lane_clear(struct ghost_lane *lane)
{
	lane->note[0] = lane->note[1] = (struct ghost_note){.op = GHOST_OPEN};
	lane->phase = GHOST_PHASE_WORK;
	lane->is_inside = 0;
}

void
storm_worker_start(struct storm *s, uint32_t lane)
{
	struct ghost_lane *l = &s->ghost->lane[lane];
	uint64_t seed = ghost_random(&s->random);
	pid_t parent = getpid(), pid;

	lane_clear(l);
	fflush(stdout);
	pid = fork();
	if (pid < 0)
		storm_die(s, "fork: %s", strerror(errno));
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(127);
		/* The parent's own session is of no use here; a worker opens its own. */
		if (s->has_view)
			slabc_close(s->view.c);
		close(s->control);
		ghost_worker_run(s->ghost, lane, &s->setup, seed);
	}
	s->worker[lane] = pid;
}

static void
worker_failed(struct storm *s, uint32_t lane, int status)
{
	s->worker[lane] = 0;
	storm_die(s, "worker %u, client %u, ended by itself (%s %d): %s", lane, s->ghost->lane[lane].client,
		WIFSIGNALED(status) ? "signal" : "status", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
		s->ghost->lane[lane].error);
}

/* Waits until the worker has stopped, or, is_end, ended; returns its status. */
static int
worker_wait(struct storm *s, uint32_t lane, bool is_end)
{
	uint64_t end = storm_now_ns() + STORM_WAIT_MS * UINT64_C(1000000);
	int status;

	while (waitpid(s->worker[lane], &status, WNOHANG | (is_end ? 0 : WUNTRACED)) == 0) {
		if (storm_now_ns() > end)
			storm_die(s, "worker %u, pid %d, does not %s", lane, s->worker[lane], is_end ? "end" : "stop");
		storm_pause_us(100);
	}
	if (is_end)
		return status;
	if (!WIFSTOPPED(status))
		worker_failed(s, lane, status);
	return status;
}

void
storm_workers_look(struct storm *s)
{
	int status;

	for (uint32_t i = 0; i < s->n_workers; i++)
		if (s->worker[i] && waitpid(s->worker[i], &status, WNOHANG) != 0)
			worker_failed(s, i, status);
	if (waitpid(s->slabd, &status, WNOHANG) != 0) {
		s->slabd = 0;
		storm_die(s, "slabd has ended, status %x", (unsigned)status);
	}
}

void
storm_worker_stop(struct storm *s, uint32_t lane)
{
	kill(s->worker[lane], SIGSTOP);
	worker_wait(s, lane, false);
	s->is_stopped[lane] = true;
}

void
storm_worker_go_on(struct storm *s, uint32_t lane)
{
	kill(s->worker[lane], SIGCONT);
	s->is_stopped[lane] = false;
}

static void
add_note(struct storm *s, const struct ghost_note *note)
{
	for (uint32_t i = 0; i < GHOST_CACHES; i++) {
		s->n_allocated[i] += note->n_allocated[i];
		s->n_freed[i] += note->n_freed[i];
		s->n_gone[i] += note->n_gone[i];
	}
}

/* Is it a session that was closed, by a worker that is no longer in the call? */
static bool
is_left_over(const struct storm *s, uint32_t client)
{
	for (uint32_t i = 0; i < s->n_workers; i++)
		if (s->ghost->lane[i].client == client && ghost_now(&s->ghost->lane[i])->op != GHOST_OPEN)
			return false;
	return ghost_has_ended(s->ghost, client);
}

/* What a worker has closed may still be in slabd's queue. */
static void
wait_closed(struct storm *s)
{
	uint64_t end = storm_now_ns() + STORM_WAIT_MS * UINT64_C(1000000);
	union proto_request request = {0};
	union proto_reply reply;

	for (;;) {
		storm_call(s, PROTO_OP_CLIENTS, &request, &reply);
		if (reply.clients.client == 0)
			return;
		request.clients.after = reply.clients.client;
		if (strcmp(reply.clients.state, "dead") == 0 || !is_left_over(s, reply.clients.client_id))
			continue;
		if (storm_now_ns() > end)
			storm_die(s, "slabd does not end the closed session %u", reply.clients.client_id);
		storm_pause_us(200);
		request.clients.after = 0;
	}
}

void
storm_compare_all(struct storm *s)
{
	struct proto_audit_reply a;
	uint64_t n_named;

	bool was_stopped[GHOST_MAX_LANES];

	memcpy(was_stopped, s->is_stopped, sizeof was_stopped);
	for (uint32_t i = 0; i < s->n_workers; i++)
		if (s->worker[i] && !was_stopped[i])
			kill(s->worker[i], SIGSTOP);
	for (uint32_t i = 0; i < s->n_workers; i++)
		if (s->worker[i] && !was_stopped[i])
			worker_wait(s, i, false);
	wait_closed(s);
	ghost_compare(&s->view, s->ghost, &s->sums);
	n_named = ghost_count_named(&s->view);
	storm_audit(s, &a);
	/* A worker may have been stopped in its slabc_close(), and slabd be at it. */
	if (a.n_held + a.n_orphans != n_named && ghost_count_named(&s->view) == n_named)
		ghost_fail(&s->view, "%llu objects are named by words; slabd's audit says %llu held and %llu orphans",
			(unsigned long long)n_named, (unsigned long long)a.n_held, (unsigned long long)a.n_orphans);
	storm_committed(s);
	s->n_comparisons++;
	for (uint32_t i = 0; i < s->n_workers; i++)
		if (s->worker[i] && !was_stopped[i])
			kill(s->worker[i], SIGCONT);
}

pid_t
storm_kill(struct storm *s, uint32_t lane, struct ghost_death *death)
{
	pid_t pid = s->worker[lane];

	/* Stopped, it is at the very instant at which it will die. */
	if (!s->is_stopped[lane])
		storm_worker_stop(s, lane);
	ghost_snapshot(&s->view, s->ghost, lane, &s->snapshot);
	ghost_look(&s->view, pid, s->ghost->lane[lane].client, death);
	if (s->snapshot.client)
		ghost_end_session(s->ghost, s->snapshot.client);
	s->killed_ns = storm_now_ns();
	kill(pid, SIGKILL);
	worker_wait(s, lane, true);
	s->worker[lane] = 0;
	s->is_stopped[lane] = false;
	return pid;
}

void
storm_settle(struct storm *s, uint32_t lane, pid_t pid)
{
	struct proto_audit_reply a;
	uint64_t took;

	while (storm_has_session(s, pid, s->snapshot.client)) {
		if (storm_now_ns() - s->killed_ns > STORM_WAIT_MS * UINT64_C(1000000))
			storm_die(s, "slabd does not reap pid %d", pid);
		storm_pause_us(200);
	}
	took = storm_now_ns() - s->killed_ns;
	s->sum_reaped_ns += took;
	if (took > s->max_reaped_ns)
		s->max_reaped_ns = took;
	add_note(s, &s->snapshot.note);
	ghost_settle(&s->view, s->ghost, lane, &s->snapshot, &s->sums);
	lane_clear(&s->ghost->lane[lane]);
	storm_audit(s, &a);
}

/* Beginning and end */

static void
setup_init(struct storm *s)
{
	s->setup = (struct ghost_setup){
		.socket = s->socket,
		.cache_name = {"ghost-kept", "ghost-reclaim", "ghost-churn"},
		.object_size = {32, 48, 4096}, /* small, so that the test's own part of the time is; at least 32, see ghost_view.mark */
		.cache = {SLABC_CACHE_OPTIONS_INIT, SLABC_CACHE_OPTIONS_INIT, SLABC_CACHE_OPTIONS_INIT},
		.timeout_ms = STORM_WAIT_MS,
	};
	s->setup.cache[GHOST_RECLAIM].flags = s->setup.cache[GHOST_CHURN].flags = SLABC_RECLAIM;
}

static void
view_open(struct storm *s)
{
	struct slabc_options o = SLABC_OPTIONS_INIT;
	struct slabc_cache *k[GHOST_CACHES];
	struct slabc *c;

	o.socket = s->socket;
	o.timeout_ms = STORM_WAIT_MS;
	if (slabc_open(&c, &o) < 0)
		storm_die(s, "slabc_open: %s", slabc_last_error());
	for (uint32_t i = 0; i < GHOST_CACHES; i++) {
		struct slabc_cache_options ko = s->setup.cache[i];

		ko.sheaf_capacity = storm_sheaf_capacity[i];
		ko.barn_full = storm_node_sheaves[i] ? storm_node_sheaves[i] : SLABC_KNOB_NONE;
		ko.max_cached = STORM_CACHED_SHEAVES * storm_sheaf_capacity[i] * s->setup.object_size[i];
		ko.cpu_partial = storm_cpu_partial[i];
		if (i == GHOST_CHURN)
			ko.min_partial = ko.max_order = SLABC_KNOB_NONE;
		if (slabc_cache_open(c, s->setup.cache_name[i], s->setup.object_size[i], &ko, &k[i]) < 0)
			storm_die(s, "slabc_cache_open: %s", slabc_last_error());
	}
	if (ghost_view_init(&s->view, c, k, s->setup.cache_name) < 0)
		storm_die(s, "no view of the arena");
	s->has_view = true;
}

void
storm_begin(struct storm *s)
{
	s->control = -1;
	s->ghost = mmap(NULL, sizeof *s->ghost, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (s->ghost == MAP_FAILED)
		storm_die(s, "mmap: %s", strerror(errno));
	s->ghost->n_lanes = s->n_workers;
	slabd_start(s);
	setup_init(s);
	storm_control_open(s);
	view_open(s);
	for (uint32_t i = 0; i < s->n_workers; i++)
		storm_worker_start(s, i);
}

/* Tells the workers what to do, and waits until all do it. */
static void
phase_set(struct storm *s, uint32_t phase)
{
	uint64_t end = storm_now_ns() + STORM_WAIT_MS * UINT64_C(1000000);

	__atomic_store_n(&s->ghost->phase, phase, __ATOMIC_RELEASE);
	for (uint32_t i = 0; i < s->n_workers; i++) {
		while (__atomic_load_n(&s->ghost->lane[i].phase, __ATOMIC_ACQUIRE) != phase) {
			if (phase != GHOST_PHASE_QUIT)
				storm_workers_look(s);
			else if (waitid(P_PID, (id_t)s->worker[i], &(siginfo_t){0}, WEXITED | WNOHANG | WNOWAIT) < 0)
				storm_die(s, "worker %u is not there", i);
			if (storm_now_ns() > end)
				storm_die(s, "worker %u does not come to an end: %s", i, s->ghost->lane[i].error);
			storm_pause_us(200);
		}
	}
}

void
storm_end(struct storm *s)
{
	phase_set(s, GHOST_PHASE_DRAIN);
	storm_compare_all(s);
	phase_set(s, GHOST_PHASE_QUIT);
	for (uint32_t i = 0; i < s->n_workers; i++) {
		int status = worker_wait(s, i, true);

		if (status != 0)
			worker_failed(s, i, status);
		s->worker[i] = 0;
		add_note(s, ghost_now(&s->ghost->lane[i]));
	}
}

void
storm_check_accounts(struct storm *s)
{
	static const char *const names[GHOST_CACHES] = {"kept", "SLABC_RECLAIM", "churn"};
	bool is_even = true;

	for (uint32_t i = 0; i < GHOST_CACHES; i++) {
		uint64_t allocated = s->n_allocated[i] + s->sums.n_allocated[i], freed = s->n_freed[i] + s->sums.n_freed[i];
		uint64_t gone = s->n_gone[i] + s->sums.n_gone[i], adopted = s->sums.n_adopted[i];
		int64_t lost = (int64_t)(allocated - freed - gone - adopted);

		printf("cache %-13s %12llu allocated = %llu freed + %llu reclaimed + %llu adopted from the dead%s\n", names[i],
			(unsigned long long)allocated, (unsigned long long)freed, (unsigned long long)gone, (unsigned long long)adopted,
			lost ? ", and they are NOT" : "");
		if (lost)
			printf("    %lld unaccounted for\n", (long long)lost);
		is_even &= lost == 0;
	}
	storm_check(s, is_even, "every object of the ghost ledger is accounted for");
}

bool
storm_log_is_clean(const struct storm *s)
{
	char line[512];
	FILE *log = fopen(s->log, "re");
	bool is_clean = log != NULL;

	while (log && fgets(line, sizeof line, log)) {
		if (!strstr(line, "such faults") && !strstr(line, "none of the protocol's"))
			continue;
		printf("FAILED: %s", line);
		is_clean = false;
	}
	if (log)
		fclose(log);
	return is_clean;
}

void
storm_check_empty(struct storm *s)
{
	struct proto_audit_reply a;

	storm_audit(s, &a);
	storm_check(s, a.n_out == 0 && a.n_held == 0 && a.n_orphans == 0 && a.n_in_sheaves == 0,
		"at the end no object is out, held or an orphan");
	storm_check(s, !storm_has_session(s, getpid(), 0), "a closed session is gone");
}

int
storm_slabd_stop(struct storm *s)
{
	int status;

	kill(s->slabd, SIGTERM);
	for (uint32_t tries = 0; waitpid(s->slabd, &status, WNOHANG) == 0; tries++) {
		if (tries > STORM_WAIT_MS)
			storm_die(s, "slabd does not end");
		storm_pause_us(1000);
	}
	s->slabd = 0;
	return status;
}

bool
storm_report(struct storm *s)
{
	uint32_t n_failed = 0;

	for (uint32_t i = 0; i < s->n_checks; i++) {
		if (!s->check[i].is_good)
			printf("FAILED: %s\n", s->check[i].sentence);
		n_failed += !s->check[i].is_good;
	}
	if (n_failed)
		print_log(s);
	printf("seed %llu; %u passed, %u failed\n", (unsigned long long)s->seed, s->n_checks - n_failed, n_failed);
	ghost_view_deinit(&s->view);
	if (n_failed)
		return false;
	unlink(s->log);
	unlink(s->socket);
	rmdir(s->dir);
	return true;
}
