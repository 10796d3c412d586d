/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kill -9 of clients under load: nothing is lost, nothing is handed out twice, and nobody else sees an error.
 *
 * Workers (ghost_worker.c) allocate, free, share, pass on and adopt objects of three caches.  This process stops one at a random instant,
 * looks what it was in the midst of, kills it there, waits until slabd has reaped it, compares object by object with the ghost ledger
 * (ghost.c), takes what it left, asks slabd's audit, and starts another worker in its place.  At every tenth kill all workers are stopped
 * and everything is compared.
 *
 * This process has a session of its own; a worker, forked from it, closes the inherited handle and opens another.  slabd's barn is kept
 * small by a knob, so that what is freed also goes through the slabs; the third cache has none, nor an empty slab.
 *
 * With --recall slabd takes back what is idle, also from workers at work, again and again.
 * Usage: stress_kill [--kills=500] [--seed=N] [--workers=6] [--page-kind=4k] [--threads=1] [--recall]; $SLABD is the slabd to start, by default
 * build/release/slabd.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
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
#include "tests/ghost.h"

enum {
	WAIT_MS = 20000,    /* for anything: then the test has failed */
	MAX_GAP_US = 80000, /* between a worker's start and the next kill */
	SAMPLE_US = 2000,
	COMPARE_EVERY = 10, /* kills */
	MIN_RECALLED = 2, /* sheaves a kill */
	MIN_FOREIGN = 20, /* frees by pointer of others' objects, for each kill */
	MIN_UNSETTLED = 50, /* per cent of the victims, with such frees of which nobody but they knew */
	PROGRESS_EVERY = 50,
	AUDIT_TRIES = 20,   /* "undecided" means: look again */
	MIN_INSIDE = 90,    /* per cent of the workers' time */
	MIN_CAUGHT = 10,    /* per cent of the victims, CLOSING or named in a sheaf; of those that do not wait for slabd most of the time */
	MIN_DISCARDED = 20, /* slabs of the third cache, for each kill */
	N_CHECKS = 32,
	CACHED_SHEAVES = 8,
};

/* Knobs: of most caches a worker's barn must hold what its load swings by; while it waits for slabd it names nothing.  Two have stashes. */
static const uint32_t sheaf_capacity[GHOST_CACHES] = {252, 252, 1}, node_sheaves[GHOST_CACHES] = {16, 16, 0},
		      cpu_partial[GHOST_CACHES] = {0, 500, 3};

enum death_class { DEATH_CLOSING, DEATH_CLOSING_IN_SHEAF, DEATH_NAMED_IN_SHEAF, DEATH_OTHER, DEATH_NO_SESSION, DEATH_CLASSES };
static const char *const class_names[DEATH_CLASSES] = {
	"a word CLOSING", "a word CLOSING, and named in a sheaf", "named in a sheaf", "neither", "no session yet, or no longer"};

struct storm {
	uint32_t n_kills, n_workers;
	uint64_t seed, random;
	const char *page_kind;
	uint32_t n_threads; /* of slabd */
	bool recalls;       /* all that is idle, all the while */
	uint64_t n_recalled;
	char dir[64], socket[96], log[96];
	pid_t slabd;
	int control;
	uint32_t last_id;
	struct ghost *ghost;
	struct ghost_setup setup;
	struct ghost_view view;
	bool has_view;
	struct ghost_snapshot snapshot;
	pid_t worker[GHOST_MAX_LANES]; /* 0: none */
	/* What the dead, and those that ended, noted. */
	struct ghost_sums sums;
	uint64_t n_allocated[GHOST_CACHES], n_freed[GHOST_CACHES], n_gone[GHOST_CACHES];
	/* Figures. */
	uint64_t n_dead[DEATH_CLASSES], n_in_op[GHOST_OPS], n_others, n_others_caught; /* others: no churners */
	uint64_t n_unsettled;                                                          /* victims with frees of others' objects not yet claimed */
	uint64_t n_samples, n_samples_inside;                                          /* of all workers at random instants: in a call? */
	uint64_t n_audits, n_undecided_looks, n_comparisons;
	uint64_t max_reaped_ns, sum_reaped_ns, max_committed;
	struct {
		const char *sentence;
		bool is_good;
	} check[N_CHECKS];
	uint32_t n_checks;
};

static struct storm storm;

static uint64_t
now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void
pause_us(uint64_t us)
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
		kill(s->slabd, SIGKILL);
		waitpid(s->slabd, NULL, 0);
	}
}

/* Nothing more can be tested. */
static void die(struct storm *s, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));
static void
die(struct storm *s, const char *format, ...)
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

static void
check(struct storm *s, bool is_good, const char *sentence)
{
	s->check[s->n_checks].sentence = sentence;
	s->check[s->n_checks++].is_good = is_good;
}

/* slabd */

static void
slabd_start(struct storm *s)
{
	const char *program = getenv("SLABD") ? getenv("SLABD") : "build/release/slabd";
	char socket_option[128], page_option[64], threads_option[32];
	pid_t parent = getpid();

	strcpy(s->dir, "/tmp/stress_kill.XXXXXX");
	if (!mkdtemp(s->dir))
		die(s, "mkdtemp: %s", strerror(errno));
	snprintf(s->socket, sizeof s->socket, "%s/slabd.sock", s->dir);
	snprintf(s->log, sizeof s->log, "%s/slabd.log", s->dir);
	snprintf(socket_option, sizeof socket_option, "--socket=%s", s->socket);
	snprintf(page_option, sizeof page_option, "--page-kind=%s", s->page_kind);
	snprintf(threads_option, sizeof threads_option, "--threads=%u", s->n_threads);
	s->slabd = fork();
	if (s->slabd == 0) {
		int log = open(s->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (log < 0 || dup2(log, STDERR_FILENO) < 0 || getppid() != parent)
			_exit(127);
		execl(program, program, socket_option, page_option, threads_option, "--arena-size=128M", (char *)NULL);
		_exit(127);
	}
	if (s->slabd < 0)
		die(s, "fork: %s", strerror(errno));
}

static void
control_call(struct storm *s, enum proto_op op, const union proto_request *request, union proto_reply *reply)
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
		die(s, "slabd does not take %s: %s", proto_op_name(op), strerror(-r));
	if (poll(&p, 1, WAIT_MS) != 1)
		die(s, "slabd does not answer %s", proto_op_name(op));
	length = channel_recv(s->control, packet, sizeof packet, NULL, NULL, 0);
	if (length <= 0)
		die(s, "slabd has ended, instead of an answer to %s", proto_op_name(op));
	r = proto_unpack_reply(packet, (size_t)length, op, &id_here, &status, reply, sentence, sizeof sentence);
	if (r < 0 || id_here != id || status != PROTO_STATUS_OK)
		die(s, "slabd's answer to %s: %s", proto_op_name(op), sentence);
}

static void
control_open(struct storm *s)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	uint64_t end = now_ns() + WAIT_MS * UINT64_C(1000000);
	union proto_request request = {.hello = {.version = PROTO_VERSION, .layout_hash = layout_hash, .library = "stress_kill"}};
	union proto_reply reply;

	strcpy(address.sun_path, s->socket);
	s->control = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	while (connect(s->control, (struct sockaddr *)&address, sizeof address) < 0) {
		if (now_ns() > end || waitpid(s->slabd, NULL, WNOHANG) != 0)
			die(s, "slabd does not start; is $SLABD right?");
		pause_us(1000);
	}
	control_call(s, PROTO_OP_HELLO, &request, &reply);
}

/* Has slabd a session of this process that it has not reaped?  client: its id, if that is known, else 0. */
static bool
has_session(struct storm *s, pid_t pid, uint32_t client)
{
	union proto_request request = {.clients = {.after = client ? client % GHOST_SLOTS - 1 : 0}};
	union proto_reply reply;

	for (;;) {
		control_call(s, PROTO_OP_CLIENTS, &request, &reply);
		if (reply.clients.client == 0)
			return false;
		if (reply.clients.pid == (uint32_t)pid && strcmp(reply.clients.state, "dead") != 0)
			return true;
		if (client)
			return false;
		request.clients.after = reply.clients.client;
	}
}

static void
audit(struct storm *s, struct proto_audit_reply *a)
{
	union proto_request request = {0};
	union proto_reply reply;

	for (uint32_t tries = 0; tries < AUDIT_TRIES; tries++) {
		control_call(s, PROTO_OP_AUDIT, &request, &reply);
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

static uint64_t
committed(struct storm *s)
{
	union proto_request request = {0};
	union proto_reply reply;

	control_call(s, PROTO_OP_STATUS, &request, &reply);
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

static void
worker_start(struct storm *s, uint32_t lane)
{
	struct ghost_lane *l = &s->ghost->lane[lane];
	uint64_t seed = ghost_random(&s->random);
	pid_t parent = getpid(), pid;

	lane_clear(l);
	fflush(stdout);
	pid = fork();
	if (pid < 0)
		die(s, "fork: %s", strerror(errno));
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
	die(s, "worker %u, client %u, ended by itself (%s %d): %s", lane, s->ghost->lane[lane].client,
		WIFSIGNALED(status) ? "signal" : "status", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
		s->ghost->lane[lane].error);
}

/* Waits until the worker has stopped, or, is_end, ended; returns its status. */
static int
worker_wait(struct storm *s, uint32_t lane, bool is_end)
{
	uint64_t end = now_ns() + WAIT_MS * UINT64_C(1000000);
	int status;

	while (waitpid(s->worker[lane], &status, WNOHANG | (is_end ? 0 : WUNTRACED)) == 0) {
		if (now_ns() > end)
			die(s, "worker %u, pid %d, does not %s", lane, s->worker[lane], is_end ? "end" : "stop");
		pause_us(100);
	}
	if (is_end)
		return status;
	if (!WIFSTOPPED(status))
		worker_failed(s, lane, status);
	return status;
}

static void
workers_look(struct storm *s)
{
	int status;

	for (uint32_t i = 0; i < s->n_workers; i++)
		if (s->worker[i] && waitpid(s->worker[i], &status, WNOHANG) != 0)
			worker_failed(s, i, status);
	if (waitpid(s->slabd, &status, WNOHANG) != 0) {
		s->slabd = 0;
		die(s, "slabd has ended, status %x", (unsigned)status);
	}
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
	uint64_t end = now_ns() + WAIT_MS * UINT64_C(1000000);
	union proto_request request = {0};
	union proto_reply reply;

	for (;;) {
		control_call(s, PROTO_OP_CLIENTS, &request, &reply);
		if (reply.clients.client == 0)
			return;
		request.clients.after = reply.clients.client;
		if (strcmp(reply.clients.state, "dead") == 0 || !is_left_over(s, reply.clients.client_id))
			continue;
		if (now_ns() > end)
			die(s, "slabd does not end the closed session %u", reply.clients.client_id);
		pause_us(200);
		request.clients.after = 0;
	}
}

/* All stop; then nothing moves, and everything must agree. */
static void
compare_all(struct storm *s)
{
	struct proto_audit_reply a;
	uint64_t n_named;

	for (uint32_t i = 0; i < s->n_workers; i++)
		if (s->worker[i])
			kill(s->worker[i], SIGSTOP);
	for (uint32_t i = 0; i < s->n_workers; i++)
		if (s->worker[i])
			worker_wait(s, i, false);
	wait_closed(s);
	ghost_compare(&s->view, s->ghost, &s->sums);
	n_named = ghost_count_named(&s->view);
	audit(s, &a);
	/* A worker may have been stopped in its slabc_close(), and slabd be at it. */
	if (a.n_held + a.n_orphans != n_named && ghost_count_named(&s->view) == n_named)
		ghost_fail(&s->view, "%llu objects are named by words; slabd's audit says %llu held and %llu orphans",
			(unsigned long long)n_named, (unsigned long long)a.n_held, (unsigned long long)a.n_orphans);
	committed(s);
	s->n_comparisons++;
	for (uint32_t i = 0; i < s->n_workers; i++)
		if (s->worker[i])
			kill(s->worker[i], SIGCONT);
}

static enum death_class
classify(const struct ghost_death *death)
{
	if (!death->has_session)
		return DEATH_NO_SESSION;
	if (death->n_closing)
		return death->n_named_in_sheaf ? DEATH_CLOSING_IN_SHEAF : DEATH_CLOSING;
	return death->n_named_in_sheaf ? DEATH_NAMED_IN_SHEAF : DEATH_OTHER;
}

static void
recall(struct storm *s)
{
	union proto_request request = {0};
	union proto_reply reply;

	control_call(s, PROTO_OP_SHRINK, &request, &reply);
}

/* Time for the workers to work, and to look at them now and then. */
static void
gap(struct storm *s, uint64_t us)
{
	while (us > 0) {
		uint64_t step = 1 + ghost_random(&s->random) % (2 * SAMPLE_US);

		step = step < us ? step : us;
		us -= step;
		pause_us(step);
		if (s->recalls)
			recall(s);
		for (uint32_t i = 0; i < s->n_workers; i++)
			s->n_samples_inside += __atomic_load_n(&s->ghost->lane[i].is_inside, __ATOMIC_RELAXED);
		s->n_samples += s->n_workers;
	}
}

static void
kill_one(struct storm *s)
{
	uint32_t lane = (uint32_t)(ghost_random(&s->random) % s->n_workers);
	pid_t pid = s->worker[lane];
	struct proto_audit_reply a;
	struct ghost_death death;
	uint64_t start;

	gap(s, ghost_random(&s->random) % MAX_GAP_US);
	workers_look(s);
	/* Stopped, it is at the very instant at which it will die. */
	kill(pid, SIGSTOP);
	worker_wait(s, lane, false);
	ghost_snapshot(&s->view, s->ghost, lane, &s->snapshot);
	ghost_look(&s->view, pid, s->ghost->lane[lane].client, &death);
	s->n_dead[classify(&death)]++;
	s->n_unsettled += death.n_unsettled > 0;
	if (lane >= GHOST_CHURNERS) {
		s->n_others++;
		s->n_others_caught += classify(&death) < DEATH_OTHER;
	}
	s->n_in_op[s->snapshot.note.op]++;
	if (s->snapshot.client)
		ghost_end_session(s->ghost, s->snapshot.client);
	start = now_ns();
	kill(pid, SIGKILL);
	worker_wait(s, lane, true);
	s->worker[lane] = 0;
	while (has_session(s, pid, s->snapshot.client)) {
		if (now_ns() - start > WAIT_MS * UINT64_C(1000000))
			die(s, "slabd does not reap pid %d", pid);
		pause_us(200);
	}
	start = now_ns() - start;
	s->sum_reaped_ns += start;
	if (start > s->max_reaped_ns)
		s->max_reaped_ns = start;
	add_note(s, &s->snapshot.note);
	ghost_settle(&s->view, s->ghost, lane, &s->snapshot, &s->sums);
	lane_clear(&s->ghost->lane[lane]);
	audit(s, &a);
}

static void
storm_run(struct storm *s)
{
	uint64_t start = now_ns();

	for (uint32_t i = 1; i <= s->n_kills && s->view.n_failures == 0; i++) {
		uint64_t caught;

		kill_one(s);
		if (i % COMPARE_EVERY == 0)
			compare_all(s);
		for (uint32_t lane = 0; lane < s->n_workers; lane++)
			if (!s->worker[lane])
				worker_start(s, lane);
		if (i % PROGRESS_EVERY)
			continue;
		caught = s->n_dead[DEATH_CLOSING] + s->n_dead[DEATH_CLOSING_IN_SHEAF] + s->n_dead[DEATH_NAMED_IN_SHEAF];
		printf("%u kills in %.1f s: %llu with a word CLOSING or named in a sheaf, %llu objects compared, %llu audits, %llu KiB "
		       "committed\n",
			i, (double)(now_ns() - start) / 1e9, (unsigned long long)caught, (unsigned long long)s->sums.n_compared,
			(unsigned long long)s->n_audits, (unsigned long long)committed(s) / 1024);
		fflush(stdout);
	}
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
		.timeout_ms = WAIT_MS,
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
	o.timeout_ms = WAIT_MS;
	if (slabc_open(&c, &o) < 0)
		die(s, "slabc_open: %s", slabc_last_error());
	for (uint32_t i = 0; i < GHOST_CACHES; i++) {
		struct slabc_cache_options ko = s->setup.cache[i];

		ko.sheaf_capacity = sheaf_capacity[i];
		ko.barn_full = node_sheaves[i] ? node_sheaves[i] : SLABC_KNOB_NONE;
		ko.max_cached = CACHED_SHEAVES * sheaf_capacity[i] * s->setup.object_size[i];
		ko.cpu_partial = cpu_partial[i];
		if (i == GHOST_CHURN)
			ko.min_partial = ko.max_order = SLABC_KNOB_NONE;
		if (slabc_cache_open(c, s->setup.cache_name[i], s->setup.object_size[i], &ko, &k[i]) < 0)
			die(s, "slabc_cache_open: %s", slabc_last_error());
	}
	if (ghost_view_init(&s->view, c, k, s->setup.cache_name) < 0)
		die(s, "no view of the arena");
	s->has_view = true;
}

/* Tells the workers what to do, and waits until all do it. */
static void
phase_set(struct storm *s, uint32_t phase)
{
	uint64_t end = now_ns() + WAIT_MS * UINT64_C(1000000);

	__atomic_store_n(&s->ghost->phase, phase, __ATOMIC_RELEASE);
	for (uint32_t i = 0; i < s->n_workers; i++) {
		while (__atomic_load_n(&s->ghost->lane[i].phase, __ATOMIC_ACQUIRE) != phase) {
			if (phase != GHOST_PHASE_QUIT)
				workers_look(s);
			else if (waitid(P_PID, (id_t)s->worker[i], &(siginfo_t){0}, WEXITED | WNOHANG | WNOWAIT) < 0)
				die(s, "worker %u is not there", i);
			if (now_ns() > end)
				die(s, "worker %u does not come to an end: %s", i, s->ghost->lane[i].error);
			pause_us(200);
		}
	}
}

static void
storm_end(struct storm *s)
{
	phase_set(s, GHOST_PHASE_DRAIN);
	compare_all(s);
	phase_set(s, GHOST_PHASE_QUIT);
	for (uint32_t i = 0; i < s->n_workers; i++) {
		int status = worker_wait(s, i, true);

		if (status != 0)
			worker_failed(s, i, status);
		s->worker[i] = 0;
		add_note(s, ghost_now(&s->ghost->lane[i]));
	}
}

static void
check_accounts(struct storm *s)
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
	check(s, is_even, "every object of the ghost ledger is accounted for");
}

/* slabd notes what no correct client does; a kill must not look like it. */
static bool
log_is_clean(const struct storm *s)
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

/* Slabs that come and go are what kills are to meet. */
static void
check_churn(struct storm *s)
{
	union proto_request request = {.caches = {.after = s->view.cache[GHOST_CHURN] - 1}};
	union proto_reply reply;

	control_call(s, PROTO_OP_CACHES, &request, &reply);
	printf("cache %s: %llu slabs carved, %llu discarded; its lock was waited for %llu times of %llu\n", reply.caches.name,
		(unsigned long long)reply.caches.n_carved, (unsigned long long)reply.caches.n_discarded,
		(unsigned long long)reply.caches.lock_contended, (unsigned long long)reply.caches.lock_acquired);
	check(s, reply.caches.n_discarded >= (uint64_t)MIN_DISCARDED * s->n_kills, "slabs were discarded all the while");
}

/* Frees of others' objects by pointer, that take effect later, are what else kills are to meet. */
static void
check_foreign(struct storm *s)
{
	union proto_request request = {.caches = {.after = s->view.cache[GHOST_KEPT] - 1}};
	union proto_reply reply;

	control_call(s, PROTO_OP_CACHES, &request, &reply);
	printf("cache %s: %llu objects freed by another client than their owner; %llu victims had such frees of which nobody knew yet\n",
		reply.caches.name, (unsigned long long)reply.caches.n_foreign_frees, (unsigned long long)s->n_unsettled);
	check(s, reply.caches.n_foreign_frees >= (uint64_t)MIN_FOREIGN * s->n_kills, "others' objects were freed all the while");
	/* With recalls they are claimed at once. */
	check(s, s->recalls || s->n_unsettled * 100 >= (uint64_t)MIN_UNSETTLED * s->n_kills,
		"most victims died with frees of others' objects that nobody knew of");
}

static void
check_end(struct storm *s)
{
	uint64_t limit = 4u << 20, left;
	union proto_reply status_reply;
	struct proto_audit_reply a;
	int status;

	check_churn(s);
	check_foreign(s);
	slabc_close(s->view.c);
	s->has_view = false;
	audit(s, &a);
	check(s, a.n_out == 0 && a.n_held == 0 && a.n_orphans == 0 && a.n_in_sheaves == 0,
		"at the end no object is out, held or an orphan");
	check(s, !has_session(s, getpid(), 0), "a closed session is gone");
	/* Twice what may be held, in rings, in the clients' sheaves (main, spare, barn, given back and not yet fetched) and in slabd's
	 * barn. */
	for (uint32_t i = 0; i < GHOST_CACHES; i++)
		limit += 2 * s->setup.object_size[i] *
			 ((s->n_workers + 1) * (ghost_max_held(i) + s->n_workers * GHOST_RING_ROOM +
						       (2 + 2 * CACHED_SHEAVES) * sheaf_capacity[i] + cpu_partial[i]) +
				 node_sheaves[i] * sheaf_capacity[i]);
	left = committed(s);
	control_call(s, PROTO_OP_STATUS, &(union proto_request){0}, &status_reply);
	s->n_recalled = status_reply.status.n_recalled_sheaves;
	printf("recall: %llu sheaves taken from threads, %llu found busy, in %llu looks\n", (unsigned long long)s->n_recalled,
		(unsigned long long)status_reply.status.n_recall_busy, (unsigned long long)status_reply.status.n_recalls);
	printf("memory: %llu KiB committed at most, %llu at the end, %llu allowed\n", (unsigned long long)s->max_committed / 1024,
		(unsigned long long)left / 1024, (unsigned long long)limit / 1024);
	check(s, s->max_committed <= limit, "slabd's memory is bounded");
	kill(s->slabd, SIGTERM);
	for (uint32_t tries = 0; waitpid(s->slabd, &status, WNOHANG) == 0; tries++) {
		if (tries > WAIT_MS)
			die(s, "slabd does not end");
		pause_us(1000);
	}
	s->slabd = 0;
	if (s->recalls)
		check(s, s->n_recalled >= (uint64_t)MIN_RECALLED * s->n_kills, "sheaves were taken from workers all the while");
	check(s, status == 0, "slabd ends by itself, with status 0");
	check(s, log_is_clean(s), "slabd saw no fault of any client");
}

static bool
report(struct storm *s)
{
	uint64_t n_steps = 0;
	uint32_t n_failed = 0;

	for (uint32_t i = 0; i < s->n_workers; i++)
		n_steps += s->ghost->lane[i].n_steps;
	printf("victims by where they died:\n");
	for (uint32_t i = 0; i < DEATH_CLASSES; i++)
		printf("  %-38s %6llu\n", class_names[i], (unsigned long long)s->n_dead[i]);
	printf("of the %llu that were mostly not at the churn, %llu with a word CLOSING or named in a sheaf\n",
		(unsigned long long)s->n_others, (unsigned long long)s->n_others_caught);
	printf("victims by what they were at:");
	for (uint32_t i = 0; i < GHOST_OPS; i++) {
		uint64_t n = 0;
		bool is_first = true;

		for (uint32_t j = 0; j < GHOST_OPS; j++) {
			bool is_same = strcmp(ghost_op_names[i], ghost_op_names[j]) == 0;

			is_first &= !is_same || j >= i;
			n += is_same ? s->n_in_op[j] : 0;
		}
		if (is_first)
			printf("%s %s %llu", i ? "," : "", ghost_op_names[i], (unsigned long long)n);
	}
	printf("\n");
	printf("%llu steps, %.1f%% of the time inside calls; %llu objects compared, %llu comparisons with all stopped; %llu audits, %llu "
	       "of them undecided "
	       "and repeated\n",
		(unsigned long long)n_steps, s->n_samples ? 100.0 * (double)s->n_samples_inside / (double)s->n_samples : 0.0,
		(unsigned long long)s->sums.n_compared, (unsigned long long)s->n_comparisons, (unsigned long long)s->n_audits,
		(unsigned long long)s->n_undecided_looks);
	printf("from kill to reaped: %.1f ms on average, %.1f at most\n", (double)s->sum_reaped_ns / 1e6 / (s->n_kills ? s->n_kills : 1),
		(double)s->max_reaped_ns / 1e6);
	check(s, s->n_samples_inside * 100 > s->n_samples * MIN_INSIDE, "workers spend over 90% of their time inside calls");
	/* With recalls they wait for sheaves more often. */
	check(s, s->recalls || s->n_others_caught * 100 >= s->n_others * MIN_CAUGHT,
		"a tenth of the victims died with a word CLOSING or named in a sheaf");
	check(s, s->view.n_failures == 0, "0 lost, 0 doubled, in every audit and in every comparison with the ghost ledger");
	for (uint32_t i = 0; i < s->n_checks; i++) {
		if (!s->check[i].is_good)
			printf("FAILED: %s\n", s->check[i].sentence);
		n_failed += !s->check[i].is_good;
	}
	if (n_failed)
		print_log(s);
	printf("seed %llu; %u passed, %u failed\n", (unsigned long long)s->seed, s->n_checks - n_failed, n_failed);
	return n_failed == 0;
}

static bool
parse(struct storm *s, int argc, char **argv)
{
	static const struct option options[] = {{"kills", required_argument, NULL, 'k'}, {"seed", required_argument, NULL, 's'},
		{"workers", required_argument, NULL, 'w'}, {"page-kind", required_argument, NULL, 'p'},
		{"threads", required_argument, NULL, 't'}, {"recall", no_argument, NULL, 'r'}, {0}};
	int c;

	s->n_kills = 500;
	s->n_workers = 6;
	s->n_threads = 1;
	s->page_kind = "4k";
	s->seed = now_ns() % 1000000007 ^ (uint64_t)getpid() << 20;
	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (c == 'k')
			s->n_kills = (uint32_t)strtoul(optarg, NULL, 10);
		else if (c == 's')
			s->seed = strtoull(optarg, NULL, 10);
		else if (c == 'w')
			s->n_workers = (uint32_t)strtoul(optarg, NULL, 10);
		else if (c == 'p')
			s->page_kind = optarg;
		else if (c == 't')
			s->n_threads = (uint32_t)strtoul(optarg, NULL, 10);
		else if (c == 'r')
			s->recalls = true;
		else
			return false;
	}
	s->random = s->seed * 2 + 1;
	return optind == argc && s->n_workers >= 2 && s->n_workers <= GHOST_MAX_LANES;
}

int
main(int argc, char **argv)
{
	struct storm *s = &storm;
	bool is_good;

	if (!parse(s, argc, argv)) {
		fprintf(stderr, "usage: stress_kill [--kills=500] [--seed=N] [--workers=6 (2 to %d)] [--page-kind=4k] [--threads=1] [--recall]\n",
			GHOST_MAX_LANES);
		return EXIT_FAILURE;
	}
	printf("stress_kill: seed %llu, %u kills, %u workers, pages %s, %u loops%s\n", (unsigned long long)s->seed, s->n_kills, s->n_workers,
		s->page_kind, s->n_threads, s->recalls ? ", recalls" : "");
	s->ghost = mmap(NULL, sizeof *s->ghost, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (s->ghost == MAP_FAILED)
		die(s, "mmap: %s", strerror(errno));
	s->ghost->n_lanes = s->n_workers;
	slabd_start(s);
	setup_init(s);
	control_open(s);
	view_open(s);
	for (uint32_t i = 0; i < s->n_workers; i++)
		worker_start(s, i);
	storm_run(s);
	if (s->view.n_failures)
		die(s, "stopped at the first kill after which something was wrong");
	storm_end(s);
	check_accounts(s);
	check_end(s);
	is_good = report(s);
	ghost_view_deinit(&s->view);
	if (is_good) {
		unlink(s->log);
		unlink(s->socket);
		rmdir(s->dir);
	}
	return is_good ? EXIT_SUCCESS : EXIT_FAILURE;
}
