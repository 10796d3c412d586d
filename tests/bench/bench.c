/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench: measures one peer in one pattern once, and says so in one line of CSV (bench --columns names them).
 *
 *     bench --peer=slabd --socket=S --slabctl=build/release/slabctl --pattern=pair --processes=2 --seconds=0.5
 *     LD_PRELOAD=libtcmalloc_minimal.so.4 bench --peer=malloc --peer-name=tcmalloc --pattern=batch1k
 *     bench --trade --capacity=28 --processes=4 --socket=S --slabctl=...      the mixed pattern, with lock and message times
 *
 * Exit status 3: it did not finish, within its time and --give-up seconds.
 * run.sh, peers.sh and trade.sh start a slabd, repeat, take medians and compare.
 */
#define _GNU_SOURCE 1
#include "tests/bench/bench.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/slabclient.h"

enum { BENCH_EXIT_UNFINISHED = 3 };

static const char *const patterns[BENCH_N_PATTERNS] = {
	[BENCH_PAIR] = "pair",
	[BENCH_BATCH1K] = "batch1k",
	[BENCH_BATCH64K] = "batch64k",
	[BENCH_RANDOM4K] = "random4k",
	[BENCH_PIPE] = "pipe",
	[BENCH_MIXED] = "mixed",
	[BENCH_LIVE] = "live",
};

static struct peer_ops *peers;

/* What does not finish has no figures. */
static const char columns[] =
	"peer,pattern,processes,ns_per_unit,units_per_s,round_trips_per_unit,bytes_idle,slow_calls_per_unit,taken_per_live";
static const char trade_columns[] =
	"processes,capacity,units_per_s,ns_per_unit,round_trips_per_unit,locks_per_unit,contended_share,bytes_idle,"
	"lock_wait_share,message_share,run_queue_share,rest_share,lock_hold_ns,slow_calls_per_unit";

void
bench_add_peer(struct peer_ops *ops)
{
	ops->next = peers;
	peers = ops;
}

static const struct peer_ops *
peer_of(const char *name)
{
	for (const struct peer_ops *ops = peers; ops; ops = ops->next)
		if (strcmp(name, ops->name) == 0)
			return ops;
	return NULL;
}

static uint64_t
bytes_idle(const struct bench_counters *c)
{
	return (c->n_thread + c->n_process_barn + c->n_returned + c->n_node_barn) * c->object_bytes;
}

/* Bytes taken for a byte of live objects: as the peer says, or, slabd, its carved pages, words, map, ledger and session. */
static double
taken_per_live(const struct bench_options *opt, const struct bench_result *r)
{
	const struct bench_counters *c = &r->after;
	uint64_t n_slabd = c->n_pages * 4096 + c->words_bytes + c->map_bytes + c->ledger_bytes + c->session_bytes;

	if (opt->pattern != BENCH_LIVE)
		return 0;
	return (double)(r->n_bytes ? r->n_bytes : n_slabd) / ((double)BENCH_BATCH * opt->object_bytes);
}

static void
print_run(const struct bench_options *opt, const struct bench_result *r)
{
	printf("%s,%s,%u,%.2f,%.0f,%.9f,%" PRIu64 ",%.9f,%.4f\n", opt->peer_name, patterns[opt->pattern], opt->n_workers, r->ns_per_unit,
		r->units_per_s, (double)(r->after.n_refills - r->before.n_refills) / (double)r->n_units, bytes_idle(&r->after),
		(double)r->n_slow / (double)r->n_units, taken_per_live(opt, r));
}

/*
 * Shares of the workers' time.  Of the time in slow calls, what slabd waited for its list_lock is lock wait (slabd waits in the workers'
 * stead; several threads of it may wait at once), what the workers were ready to run but had no CPU is run queue, the rest is waiting for
 * messages.
 */
static void
print_trade(const struct bench_options *opt, const struct bench_result *r)
{
	double all = (double)r->worker_ns, slow = (double)r->slow_ns / all;
	double wait = (double)(r->after.lock_wait_ns - r->before.lock_wait_ns) / all;
	double delay = (double)r->run_delay_ns / all;
	double n_locks = (double)(r->after.lock_acquired - r->before.lock_acquired);
	double n_contended = (double)(r->after.lock_contended - r->before.lock_contended);
	double message;

	wait = wait < slow ? wait : slow;
	delay = delay < slow - wait ? delay : slow - wait;
	message = slow - wait - delay;
	printf("%u,", opt->n_workers);
	if (opt->capacity == SLABC_SHEAVES_NONE)
		printf("none,");
	else
		printf("%" PRIu64 ",", r->after.capacity ? r->after.capacity : opt->capacity);
	printf("%.0f,%.2f,%.9f,%.9f,%.6f,%" PRIu64 ",%.6f,%.6f,%.6f,%.6f,%.0f,%.9f\n", r->units_per_s, r->ns_per_unit,
		(double)(r->after.n_refills - r->before.n_refills) / (double)r->n_units, n_locks / (double)r->n_units,
		n_locks > 0 ? n_contended / n_locks : 0, bytes_idle(&r->after), wait, message, delay, 1 - slow,
		n_locks > 0 ? (double)(r->after.lock_hold_ns - r->before.lock_hold_ns) / n_locks : 0,
		(double)r->n_slow / (double)r->n_units);
}

static int
pattern_of(const char *name, enum bench_pattern *pp)
{
	for (int i = 0; i < BENCH_N_PATTERNS; i++) {
		if (strcmp(name, patterns[i]) == 0) {
			*pp = (enum bench_pattern)i;
			return 0;
		}
	}
	return -EINVAL;
}

/* A knob: "none" is SLABC_SHEAVES_NONE and SLABC_KNOB_NONE. */
static int
knob_of(const char *text, uint32_t *knobp)
{
	char *end;

	if (strcmp(text, "none") == 0) {
		*knobp = SLABC_KNOB_NONE;
		return 0;
	}
	*knobp = (uint32_t)strtoul(text, &end, 10);
	return end != text && *end == 0 ? 0 : -EINVAL;
}

/* One option of the command line, by its letter below. */
static int
option_set(struct bench_options *opt, int letter, const char *text)
{
	switch (letter) {
	case 'p':
		opt->peer = text;
		return peer_of(text) ? 0 : -EINVAL;
	case 'n':
		opt->peer_name = text;
		return 0;
	case 'a':
		return pattern_of(text, &opt->pattern);
	case 'w':
		opt->n_workers = (unsigned)strtoul(text, NULL, 10);
		return 0;
	case 't':
		opt->seconds = strtod(text, NULL);
		return 0;
	case 'W':
		opt->warm_up = strtod(text, NULL);
		return 0;
	case 'g':
		opt->give_up = strtod(text, NULL);
		return 0;
	case 'O':
		opt->has_no_owner = true;
		return 0;
	case 'c':
		return knob_of(text, &opt->capacity);
	case 'o':
		return knob_of(text, &opt->object_bytes);
	case 'm':
		opt->max_cached = strtoull(text, NULL, 10);
		return 0;
	case 'b':
		return knob_of(text, &opt->barn_full);
	case 's':
		opt->socket = text;
		return 0;
	case 'l':
		opt->slabctl = text;
		return 0;
	case 'k':
		opt->cache = text;
		return 0;
	case 'T':
		opt->is_trade = true;
		opt->pattern = BENCH_MIXED;
		return 0;
	default:
		return -EINVAL;
	}
}

static int
options_parse(struct bench_options *opt, int argc, char **argv)
{
	static const struct option longs[] = {{"peer", 1, NULL, 'p'}, {"peer-name", 1, NULL, 'n'}, {"pattern", 1, NULL, 'a'},
		{"processes", 1, NULL, 'w'}, {"seconds", 1, NULL, 't'}, {"warm-up", 1, NULL, 'W'}, {"capacity", 1, NULL, 'c'},
		{"socket", 1, NULL, 's'}, {"slabctl", 1, NULL, 'l'}, {"cache", 1, NULL, 'k'}, {"trade", 0, NULL, 'T'},
		{"object-bytes", 1, NULL, 'o'}, {"max-cached", 1, NULL, 'm'}, {"barn-full", 1, NULL, 'b'}, {"give-up", 1, NULL, 'g'},
		{"no-owner", 0, NULL, 'O'}, {"columns", 0, NULL, 'C'}, {NULL, 0, NULL, 0}};
	bool is_columns = false;
	int letter, r = 0;

	while (r == 0 && (letter = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (letter == 'C')
			is_columns = true;
		else
			r = option_set(opt, letter, optarg);
	}
	if (is_columns) {
		puts(opt->is_trade ? trade_columns : columns);
		exit(EXIT_SUCCESS);
	}
	if (!opt->peer)
		opt->peer = peer_of("slabd") ? "slabd" : peers->name;
	if (r < 0 || optind != argc || opt->n_workers < 1 || opt->n_workers > BENCH_MAX_WORKERS || !(opt->seconds > 0) ||
		!(opt->warm_up > 0))
		return -EINVAL;
	/* An object has a first word, a pipe two ends, and memory one user. */
	if (opt->object_bytes < sizeof(uint64_t) || (opt->pattern == BENCH_PIPE && opt->n_workers % 2 != 0) ||
		(opt->pattern == BENCH_LIVE && opt->n_workers != 1))
		return -EINVAL;
	return 0;
}

int
main(int argc, char **argv)
{
	struct bench_options opt = {
		.n_workers = 1, .seconds = 0.5, .warm_up = 0.5, .give_up = 60, .cache = "bench", .object_bytes = BENCH_OBJECT_BYTES};
	struct bench_result result = {0};
	int r;

	if (options_parse(&opt, argc, argv) < 0) {
		fprintf(stderr, "usage: bench [--peer=NAME] [--peer-name=NAME] [--pattern=pair|batch1k|batch64k|random4k|pipe|mixed|live]\n"
				"             [--processes=1..64 (pipe: even; live: 1)] [--seconds=0.5] [--warm-up=0.5] [--give-up=60] "
				"[--socket=PATH]\n"
				"             [--slabctl=PATH] [--cache=NAME] [--trade] [--columns]\n"
				"             slabd: [--no-owner] [--object-bytes=256] [--capacity=N|none] [--max-cached=BYTES] "
				"[--barn-full=N|none]\n"
				"peers here:");
		for (const struct peer_ops *ops = peers; ops; ops = ops->next)
			fprintf(stderr, " %s", ops->name);
		fprintf(stderr, "\n");
		return 2;
	}
	if (!opt.peer_name)
		opt.peer_name = opt.peer;
	if (!opt.socket)
		opt.socket = getenv("SLABD_SOCKET") ? getenv("SLABD_SOCKET") : SLABC_DEFAULT_SOCKET;
	r = bench_run(&opt, peer_of(opt.peer), &result);
	if (r == -ETIMEDOUT)
		printf("%s,%s,%u,,,,,,\n", opt.peer_name, patterns[opt.pattern], opt.n_workers);
	if (r < 0)
		return r == -ETIMEDOUT ? BENCH_EXIT_UNFINISHED : EXIT_FAILURE;
	if (opt.is_trade)
		print_trade(&opt, &result);
	else
		print_run(&opt, &result);
	return EXIT_SUCCESS;
}
