/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kill -9 of clients under load: nothing is lost, nothing is handed out twice, and nobody else sees an error.
 *
 * Workers (ghost_worker.c) allocate, free, share, pass on and adopt objects of three caches.  This process stops one at a random instant,
 * looks what it was in the midst of, kills it there, waits until slabd has reaped it, compares object by object with the ghost ledger
 * (ghost.c), takes what it left, asks slabd's audit, and starts another worker in its place (storm.c).  At every tenth kill all workers are stopped
 * and everything is compared.  slabd's barn is kept small by a knob, so that what is freed also goes through the slabs; the third cache has none, nor an
 * empty slab.
 *
 * With --recall slabd takes back what is idle, also from workers at work, again and again.
 * Usage: stress_kill [--kills=500] [--seed=N] [--workers=6] [--page-kind=4k] [--threads=1] [--recall]; $SLABD is the slabd to start, by default
 * build/release/slabd.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/storm.h"

enum {
	MAX_GAP_US = 80000, /* between a worker's start and the next kill */
	SAMPLE_US = 2000,
	COMPARE_EVERY = 10, /* kills */
	MIN_RECALLED = 2, /* sheaves a kill */
	MIN_FOREIGN = 20, /* frees by pointer of others' objects, for each kill */
	MIN_UNSETTLED = 50, /* per cent of the victims, with such frees of which nobody but they knew */
	PROGRESS_EVERY = 50,
	MIN_INSIDE = 90,    /* per cent of the workers' time */
	MIN_CAUGHT = 10,    /* per cent of the victims, CLOSING or named in a sheaf; of those that do not wait for slabd most of the time */
	MIN_DISCARDED = 20, /* slabs of the third cache, for each kill */
};

enum death_class { DEATH_CLOSING, DEATH_CLOSING_IN_SHEAF, DEATH_NAMED_IN_SHEAF, DEATH_OTHER, DEATH_NO_SESSION, DEATH_CLASSES };
static const char *const class_names[DEATH_CLASSES] = {
	"a word CLOSING", "a word CLOSING, and named in a sheaf", "named in a sheaf", "neither", "no session yet, or no longer"};

struct stress {
	struct storm storm;
	uint32_t n_kills;
	bool recalls; /* all that is idle, all the while */
	uint64_t n_recalled;
	/* Figures. */
	uint64_t n_dead[DEATH_CLASSES], n_in_op[GHOST_OPS], n_others, n_others_caught; /* others: no churners */
	uint64_t n_unsettled;                                                          /* victims with frees of others' objects not yet claimed */
	uint64_t n_samples, n_samples_inside;                                          /* of all workers at random instants: in a call? */
};

static struct stress stress = {.storm = {.name = "stress_kill"}};

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

	storm_call(s, PROTO_OP_SHRINK, &request, &reply);
}

/* Time for the workers to work, and to look at them now and then. */
static void
gap(struct stress *t, uint64_t us)
{
	struct storm *s = &t->storm;

	while (us > 0) {
		uint64_t step = 1 + ghost_random(&s->random) % (2 * SAMPLE_US);

		step = step < us ? step : us;
		us -= step;
		storm_pause_us(step);
		if (t->recalls)
			recall(s);
		for (uint32_t i = 0; i < s->n_workers; i++)
			t->n_samples_inside += __atomic_load_n(&s->ghost->lane[i].is_inside, __ATOMIC_RELAXED);
		t->n_samples += s->n_workers;
	}
}

static void
kill_one(struct stress *t)
{
	struct storm *s = &t->storm;
	uint32_t lane = (uint32_t)(ghost_random(&s->random) % s->n_workers);
	struct ghost_death death;
	pid_t pid;

	gap(t, ghost_random(&s->random) % MAX_GAP_US);
	storm_workers_look(s);
	pid = storm_kill(s, lane, &death);
	t->n_dead[classify(&death)]++;
	t->n_unsettled += death.n_unsettled > 0;
	if (lane >= GHOST_CHURNERS) {
		t->n_others++;
		t->n_others_caught += classify(&death) < DEATH_OTHER;
	}
	t->n_in_op[s->snapshot.note.op]++;
	storm_settle(s, lane, pid);
}

static void
run(struct stress *t)
{
	struct storm *s = &t->storm;
	uint64_t start = storm_now_ns();

	for (uint32_t i = 1; i <= t->n_kills && s->view.n_failures == 0; i++) {
		uint64_t caught;

		kill_one(t);
		if (i % COMPARE_EVERY == 0)
			storm_compare_all(s);
		for (uint32_t lane = 0; lane < s->n_workers; lane++)
			if (!s->worker[lane])
				storm_worker_start(s, lane);
		if (i % PROGRESS_EVERY)
			continue;
		caught = t->n_dead[DEATH_CLOSING] + t->n_dead[DEATH_CLOSING_IN_SHEAF] + t->n_dead[DEATH_NAMED_IN_SHEAF];
		printf("%u kills in %.1f s: %llu with a word CLOSING or named in a sheaf, %llu objects compared, %llu audits, %llu KiB "
		       "committed\n",
			i, (double)(storm_now_ns() - start) / 1e9, (unsigned long long)caught, (unsigned long long)s->sums.n_compared,
			(unsigned long long)s->n_audits, (unsigned long long)storm_committed(s) / 1024);
		fflush(stdout);
	}
}

/* Slabs that come and go are what kills are to meet. */
static void
check_churn(struct stress *t)
{
	struct storm *s = &t->storm;
	union proto_request request = {.caches = {.after = s->view.cache[GHOST_CHURN] - 1}};
	union proto_reply reply;

	storm_call(s, PROTO_OP_CACHES, &request, &reply);
	printf("cache %s: %llu slabs carved, %llu discarded; its lock was waited for %llu times of %llu\n", reply.caches.name,
		(unsigned long long)reply.caches.n_carved, (unsigned long long)reply.caches.n_discarded,
		(unsigned long long)reply.caches.lock_contended, (unsigned long long)reply.caches.lock_acquired);
	storm_check(s, reply.caches.n_discarded >= (uint64_t)MIN_DISCARDED * t->n_kills, "slabs were discarded all the while");
}

/* Frees of others' objects by pointer, that take effect later, are what else kills are to meet. */
static void
check_foreign(struct stress *t)
{
	struct storm *s = &t->storm;
	union proto_request request = {.caches = {.after = s->view.cache[GHOST_KEPT] - 1}};
	union proto_reply reply;

	storm_call(s, PROTO_OP_CACHES, &request, &reply);
	printf("cache %s: %llu objects freed by another client than their owner; %llu victims had such frees of which nobody knew yet\n",
		reply.caches.name, (unsigned long long)reply.caches.n_foreign_frees, (unsigned long long)t->n_unsettled);
	storm_check(s, reply.caches.n_foreign_frees >= (uint64_t)MIN_FOREIGN * t->n_kills, "others' objects were freed all the while");
	/* With recalls they are claimed at once. */
	storm_check(s, t->recalls || t->n_unsettled * 100 >= (uint64_t)MIN_UNSETTLED * t->n_kills,
		"most victims died with frees of others' objects that nobody knew of");
}

static void
check_end(struct stress *t)
{
	struct storm *s = &t->storm;
	uint64_t limit = 4u << 20, left;
	union proto_reply status_reply;
	int status;

	check_churn(t);
	check_foreign(t);
	slabc_close(s->view.c);
	s->has_view = false;
	storm_check_empty(s);
	/* Twice what may be held, in rings, in the clients' sheaves (main, spare, barn, given back and not yet fetched) and in slabd's
	 * barn. */
	for (uint32_t i = 0; i < GHOST_CACHES; i++)
		limit += 2 * s->setup.object_size[i] *
			 ((s->n_workers + 1) * (ghost_max_held(i) + s->n_workers * GHOST_RING_ROOM +
						       (2 + 2 * STORM_CACHED_SHEAVES) * storm_sheaf_capacity[i] + storm_cpu_partial[i]) +
				 storm_node_sheaves[i] * storm_sheaf_capacity[i]);
	left = storm_committed(s);
	storm_call(s, PROTO_OP_STATUS, &(union proto_request){0}, &status_reply);
	/* Else what the kills lost would go unseen: the last to close a cache takes it back. */
	storm_check(s, status_reply.status.n_repaired == 0, "nothing was lost and taken back");
	t->n_recalled = status_reply.status.n_recalled_sheaves;
	printf("recall: %llu sheaves taken from threads, %llu found busy, in %llu looks\n", (unsigned long long)t->n_recalled,
		(unsigned long long)status_reply.status.n_recall_busy, (unsigned long long)status_reply.status.n_recalls);
	printf("memory: %llu KiB committed at most, %llu at the end, %llu allowed\n", (unsigned long long)s->max_committed / 1024,
		(unsigned long long)left / 1024, (unsigned long long)limit / 1024);
	storm_check(s, s->max_committed <= limit, "slabd's memory is bounded");
	status = storm_slabd_stop(s);
	if (t->recalls)
		storm_check(s, t->n_recalled >= (uint64_t)MIN_RECALLED * t->n_kills, "sheaves were taken from workers all the while");
	storm_check(s, status == 0, "slabd ends by itself, with status 0");
	storm_check(s, storm_log_is_clean(s), "slabd saw no fault of any client");
}

static void
report(struct stress *t)
{
	struct storm *s = &t->storm;
	uint64_t n_steps = 0;

	for (uint32_t i = 0; i < s->n_workers; i++)
		n_steps += s->ghost->lane[i].n_steps;
	printf("victims by where they died:\n");
	for (uint32_t i = 0; i < DEATH_CLASSES; i++)
		printf("  %-38s %6llu\n", class_names[i], (unsigned long long)t->n_dead[i]);
	printf("of the %llu that were mostly not at the churn, %llu with a word CLOSING or named in a sheaf\n",
		(unsigned long long)t->n_others, (unsigned long long)t->n_others_caught);
	printf("victims by what they were at:");
	for (uint32_t i = 0; i < GHOST_OPS; i++) {
		uint64_t n = 0;
		bool is_first = true;

		for (uint32_t j = 0; j < GHOST_OPS; j++) {
			bool is_same = strcmp(ghost_op_names[i], ghost_op_names[j]) == 0;

			is_first &= !is_same || j >= i;
			n += is_same ? t->n_in_op[j] : 0;
		}
		if (is_first)
			printf("%s %s %llu", i ? "," : "", ghost_op_names[i], (unsigned long long)n);
	}
	printf("\n");
	printf("%llu steps, %.1f%% of the time inside calls; %llu objects compared, %llu comparisons with all stopped; %llu audits, %llu "
	       "of them undecided "
	       "and repeated\n",
		(unsigned long long)n_steps, t->n_samples ? 100.0 * (double)t->n_samples_inside / (double)t->n_samples : 0.0,
		(unsigned long long)s->sums.n_compared, (unsigned long long)s->n_comparisons, (unsigned long long)s->n_audits,
		(unsigned long long)s->n_undecided_looks);
	printf("from kill to reaped: %.1f ms on average, %.1f at most\n", (double)s->sum_reaped_ns / 1e6 / (t->n_kills ? t->n_kills : 1),
		(double)s->max_reaped_ns / 1e6);
	storm_check(s, t->n_samples_inside * 100 > t->n_samples * MIN_INSIDE, "workers spend over 90% of their time inside calls");
	/* With recalls they wait for sheaves more often. */
	storm_check(s, t->recalls || t->n_others_caught * 100 >= t->n_others * MIN_CAUGHT,
		"a tenth of the victims died with a word CLOSING or named in a sheaf");
	storm_check(s, s->view.n_failures == 0, "0 lost, 0 doubled, in every audit and in every comparison with the ghost ledger");
}

static bool
parse(struct stress *t, int argc, char **argv)
{
	struct storm *s = &t->storm;
	static const struct option options[] = {{"kills", required_argument, NULL, 'k'}, {"seed", required_argument, NULL, 's'},
		{"workers", required_argument, NULL, 'w'}, {"page-kind", required_argument, NULL, 'p'},
		{"threads", required_argument, NULL, 't'}, {"recall", no_argument, NULL, 'r'}, {0}};
	int c;

	t->n_kills = 500;
	s->n_workers = 6;
	s->n_threads = 1;
	s->page_kind = "4k";
	s->seed = storm_now_ns() % 1000000007 ^ (uint64_t)getpid() << 20;
	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (c == 'k')
			t->n_kills = (uint32_t)strtoul(optarg, NULL, 10);
		else if (c == 's')
			s->seed = strtoull(optarg, NULL, 10);
		else if (c == 'w')
			s->n_workers = (uint32_t)strtoul(optarg, NULL, 10);
		else if (c == 'p')
			s->page_kind = optarg;
		else if (c == 't')
			s->n_threads = (uint32_t)strtoul(optarg, NULL, 10);
		else if (c == 'r')
			t->recalls = true;
		else
			return false;
	}
	s->random = s->seed * 2 + 1;
	return optind == argc && s->n_workers >= 2 && s->n_workers <= GHOST_MAX_LANES;
}

int
main(int argc, char **argv)
{
	struct stress *t = &stress;
	struct storm *s = &t->storm;

	if (!parse(t, argc, argv)) {
		fprintf(stderr, "usage: stress_kill [--kills=500] [--seed=N] [--workers=6 (2 to %d)] [--page-kind=4k] [--threads=1] [--recall]\n",
			GHOST_MAX_LANES);
		return EXIT_FAILURE;
	}
	printf("stress_kill: seed %llu, %u kills, %u workers, pages %s, %u loops%s\n", (unsigned long long)s->seed, t->n_kills, s->n_workers,
		s->page_kind, s->n_threads, t->recalls ? ", recalls" : "");
	storm_begin(s);
	run(t);
	if (s->view.n_failures)
		storm_die(s, "stopped at the first kill after which something was wrong");
	storm_end(s);
	storm_check_accounts(s);
	check_end(t);
	report(t);
	return storm_report(s) ? EXIT_SUCCESS : EXIT_FAILURE;
}
