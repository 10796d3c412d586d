/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers of the bench, and the parent's side of them.
 *
 *     parent                         worker (a process; in the malloc peer's pipe a thread), pinned to a CPU, round robin
 *     fork, wait for phase 1         open the peer, do the pattern for warm_up seconds                            phase 1
 *     counters, go                   do it for the whole time                                                     phase 2
 *     counters, leave                free, close, end
 *
 * Sessions are open at both readings of the counters, so idle objects are seen where they lie.  Each wait has an end; a worker that dies,
 * or does not come back, ends the run.  Workers die with the parent.
 */
#define _GNU_SOURCE 1
#include "tests/bench/bench.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* WAIT_S: for what a parent or worker does beside the pattern. */
enum { WORKER_POLL_US = 200, PARENT_POLL_US = 2000, WAIT_S = 60 };

struct shared {
	_Alignas(BENCH_LINE) uint32_t go; /* 1: measure, 2: leave.  W: parent (GO). R: workers */
	struct bench_worker workers[BENCH_MAX_WORKERS];
	struct bench_ring rings[BENCH_MAX_WORKERS / 2];
};

struct worker {
	const struct bench_options *opt;
	const struct peer_ops *ops;
	struct shared *shared;
	unsigned number;
	pid_t pid;
	pthread_t thread;
};

struct bench {
	const struct bench_options *opt;
	struct shared *shared;
	struct worker workers[BENCH_MAX_WORKERS];
	unsigned n_started;
	bool is_threads;
};

uint64_t
bench_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * BENCH_SECOND_NS + (uint64_t)ts.tv_nsec;
}

_Noreturn void
bench_die(const char *what, int error)
{
	fprintf(stderr, "bench: %s: %s\n", what, strerror(error));
	_exit(EXIT_FAILURE);
}

/* The worker's CPU: of those that we may use, the one with its number, round robin. */
static void
worker_pin(unsigned number)
{
	cpu_set_t may, one;
	int n;

	if (sched_getaffinity(0, sizeof(may), &may) < 0)
		bench_die("sched_getaffinity", errno);
	n = (int)(number % (unsigned)CPU_COUNT(&may));
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &may) || n-- > 0)
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		if (sched_setaffinity(0, sizeof(one), &one) < 0)
			bench_die("sched_setaffinity", errno);
		return;
	}
}

/* Time this thread was ready to run and had no CPU; 0 where the kernel does not say. */
static uint64_t
worker_run_delay_ns(void)
{
	unsigned long long on_cpu, delay = 0;
	FILE *f = fopen("/proc/thread-self/schedstat", "re");

	if (!f)
		return 0;
	if (fscanf(f, "%llu %llu", &on_cpu, &delay) != 2)
		delay = 0;
	fclose(f);
	return delay;
}

static struct bench_state *
worker_state(const struct worker *w)
{
	struct bench_state *s = calloc(1, sizeof(*s));
	uint64_t ns = bench_now_ns(), ticks = bench_ticks();

	if (!s)
		bench_die("calloc", errno);
	s->shared = &w->shared->workers[w->number];
	s->random = 88172645463325252u + w->number * 7919u;
	s->is_timed = w->opt->is_trade;
	if (w->opt->pattern == BENCH_PIPE) {
		s->ring = &w->shared->rings[w->number / 2];
		s->is_producer = w->number % 2 == 0;
	}
	while (bench_now_ns() - ns < 5000000)
		;
	s->ns_per_tick = (double)(bench_now_ns() - ns) / (double)(bench_ticks() - ticks);
	s->slow_ticks = (uint64_t)(BENCH_SLOW_NS / s->ns_per_tick);
	/* Touched before it counts. */
	memset(s->slots, 0, sizeof(s->slots));
	return s;
}

static void
worker_wait(const struct worker *w, uint32_t go)
{
	uint64_t until_ns = bench_now_ns() + (uint64_t)((WAIT_S + w->opt->give_up) * 1e9);

	/* order: GO acquire - pairs with bench_go() */
	while (__atomic_load_n(&w->shared->go, __ATOMIC_ACQUIRE) < go) {
		usleep(WORKER_POLL_US);
		if (bench_now_ns() > until_ns)
			bench_die("the parent does not say go", ETIMEDOUT);
	}
}

static void
worker_end_phase(struct bench_worker *shared)
{
	/* order: PHASE release - results are visible before the phase that made them */
	__atomic_store_n(&shared->n_phases, shared->n_phases + 1, __ATOMIC_RELEASE);
}

static void
worker_do(const struct worker *w)
{
	uint64_t ns = (uint64_t)(w->opt->seconds * 1e9);
	uint64_t start_ns, delay_ns;
	struct bench_state *s;
	struct peer *p;

	worker_pin(w->number);
	s = worker_state(w);
	p = w->ops->open(w->opt, w->number);
	w->ops->run(p, s, w->opt->pattern, bench_now_ns() + (uint64_t)(w->opt->warm_up * 1e9));
	worker_end_phase(s->shared);
	worker_wait(w, 1);
	s->shared->n_slow = 0;
	s->shared->slow_ns = 0;
	delay_ns = worker_run_delay_ns();
	start_ns = bench_now_ns();
	s->shared->n_units = w->ops->run(p, s, w->opt->pattern, start_ns + ns);
	s->shared->ns = bench_now_ns() - start_ns;
	s->shared->run_delay_ns = worker_run_delay_ns() - delay_ns;
	s->shared->n_bytes = w->opt->pattern == BENCH_LIVE && w->ops->bytes ? w->ops->bytes(p) : 0;
	worker_end_phase(s->shared);
	worker_wait(w, 2);
	w->ops->close(p);
	free(s);
}

static void *
worker_thread(void *arg)
{
	worker_do(arg);
	return NULL;
}

static int
bench_start_worker(struct bench *b, struct worker *w)
{
	pid_t parent = getpid();

	if (b->is_threads)
		return -pthread_create(&w->thread, NULL, worker_thread, w);
	w->pid = fork();
	if (w->pid < 0)
		return -errno;
	if (w->pid > 0)
		return 0;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(EXIT_FAILURE);
	worker_do(w);
	_exit(EXIT_SUCCESS);
}

static void
bench_go(struct bench *b, uint32_t go)
{
	/* order: GO release - nothing but the number itself */
	__atomic_store_n(&b->shared->go, go, __ATOMIC_RELEASE);
}

/* Until all have ended so many phases; a process that ended before is an error. */
static int
bench_wait(struct bench *b, uint32_t n_phases)
{
	uint64_t until_ns = bench_now_ns() + (uint64_t)((b->opt->give_up + 3 * (b->opt->seconds + b->opt->warm_up)) * 1e9);
	unsigned n_there = 0;

	while (n_there < b->n_started) {
		if (bench_now_ns() > until_ns) {
			fprintf(stderr, "bench: %u of %u workers do not come back\n", b->n_started - n_there, b->n_started);
			return -ETIMEDOUT;
		}
		usleep(PARENT_POLL_US);
		n_there = 0;
		for (unsigned i = 0; i < b->n_started; i++) {
			/* order: PHASE acquire - pairs with worker_end_phase() */
			n_there += __atomic_load_n(&b->shared->workers[i].n_phases, __ATOMIC_ACQUIRE) >= n_phases;
			if (b->workers[i].pid > 0 && waitpid(b->workers[i].pid, NULL, WNOHANG) == b->workers[i].pid) {
				b->workers[i].pid = 0;
				return -ECHILD;
			}
		}
	}
	return 0;
}

/* Ends the workers: they have been told to leave, or else are killed. */
static int
bench_stop(struct bench *b, int r)
{
	uint64_t until_ns = bench_now_ns() + WAIT_S * BENCH_SECOND_NS;

	for (unsigned i = 0; i < b->n_started; i++) {
		struct worker *w = &b->workers[i];
		int status = 0;
		pid_t pid = 0;

		/* A thread whose partners failed may never end; our own end ends it. */
		if (b->is_threads && r == 0)
			pthread_join(w->thread, NULL);
		if (w->pid <= 0)
			continue;
		while (r == 0 && pid == 0) {
			pid = waitpid(w->pid, &status, WNOHANG);
			if (pid == 0 && bench_now_ns() > until_ns)
				r = -ETIMEDOUT;
			if (pid == 0)
				usleep(WORKER_POLL_US);
		}
		if (pid == 0) {
			kill(w->pid, SIGKILL);
			waitpid(w->pid, NULL, 0);
		} else if (status != 0) {
			r = -ECHILD;
		}
	}
	return r;
}

static void
bench_add_up(const struct bench *b, struct bench_result *result)
{
	double ns = 0;

	for (unsigned i = 0; i < b->n_started; i++) {
		const struct bench_worker *w = &b->shared->workers[i];

		if (b->opt->pattern == BENCH_PIPE && i % 2 == 0)
			continue;
		result->n_units += w->n_units;
		result->units_per_s += (double)w->n_units * 1e9 / (double)w->ns;
		result->worker_ns += w->ns;
		result->n_slow += w->n_slow;
		result->slow_ns += w->slow_ns;
		result->run_delay_ns += w->run_delay_ns;
		result->n_bytes += w->n_bytes;
		ns += (double)w->ns;
	}
	result->ns_per_unit = ns / (double)result->n_units;
}

int
bench_run(const struct bench_options *opt, const struct peer_ops *ops, struct bench_result *result)
{
	struct bench *b = calloc(1, sizeof(*b));
	int r = 0;

	if (!b)
		return -ENOMEM;
	b->opt = opt;
	b->is_threads = opt->pattern == BENCH_PIPE && !ops->is_shared;
	b->shared = mmap(NULL, sizeof(*b->shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (b->shared == MAP_FAILED)
		bench_die("mmap", errno);
	if (ops->prepare)
		ops->prepare(opt);
	for (unsigned i = 0; r == 0 && i < opt->n_workers; i++) {
		b->workers[i] = (struct worker){.opt = opt, .ops = ops, .shared = b->shared, .number = i};
		r = bench_start_worker(b, &b->workers[i]);
		b->n_started += r == 0;
	}
	if (r == 0)
		r = bench_wait(b, 1);
	if (r == 0)
		r = bench_counters_read(opt, &result->before);
	bench_go(b, 1);
	if (r == 0)
		r = bench_wait(b, 2);
	if (r == 0)
		r = bench_counters_read(opt, &result->after);
	bench_go(b, 2);
	r = bench_stop(b, r);
	if (r == 0)
		bench_add_up(b, result);
	else
		fprintf(stderr, "bench: a worker failed: %s\n", strerror(-r));
	munmap(b->shared, sizeof(*b->shared));
	free(b);
	return r;
}
