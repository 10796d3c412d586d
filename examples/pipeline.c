/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pipeline: counts the words of real text with processes that share nothing but slabd's memory and rings of references.
 *
 *     files -> reader 0 --ring--> counter 0        an object a word: allocated in a reader, read and freed in a counter
 *              reader 1 --ring--> counter 1        (every reader has a ring to every counter; pipeline.h draws them)
 *              reader 2 --ring--> counter 2
 *
 * This file is the parent: it measures the text, makes the shared memfd, starts the others as programs of their own (/proc/self/exe with a
 * role, so that nothing is inherited but the memfd), watches them, adds up, and lets cat | tr | sort | uniq -c count the same text: all
 * must be equal.
 *
 * With --kill-counter it SIGKILLs counter 0 about midway, wherever that is, and starts a successor in its place.  The totals are exact all
 * the same, no word lost and none twice, and no object is left: pipeline.h says why.  The caches are plain ones, not SLABC_RECLAIM: words
 * shall outlive the reader that made them, and what a killed counter held is found through the ring, not freed behind its successor's back.
 *
 * Nothing hangs: each wait has an end, workers die with the parent, and after STALL_S seconds without progress all is called off.
 */
#define _GNU_SOURCE 1
#include "pipeline.h"

#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TEXT_FOLDER "/usr/share/common-licenses"

enum {
	STALL_S = 20,
	TICK_MS = 2,
	N_TOP = 5,
	MAX_WORKERS = AREA_MAX_READERS + AREA_MAX_COUNTERS,
};

extern char **environ;

struct options {
	uint64_t n_words;
	uint64_t n_readers;
	uint64_t n_counters;
	bool is_kill_run;
	const char *socket;
	char **files;
	size_t n_files;
	/* Of a worker; how the parent calls it. */
	const char *role;
	uint64_t number;
	uint64_t memfd;
	uint64_t size_bytes;
};

struct run {
	const struct options *opt;
	struct area *area;
	int memfd;
	uint64_t words_in_pass;
	pid_t workers[MAX_WORKERS]; /* readers, then counters; 0: has ended well */
	enum { KILL_NOT, KILL_DUE, KILL_SENT, KILL_SUCCEEDED } kill;
	uint64_t n_freed_by_killed;
	unsigned tenths_shown;
	bool is_tty;
};

static uint64_t
now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static int
say(const char *what, int error)
{
	fprintf(stderr, "pipeline: %s: %s\n", what, strerror(error));
	return -error;
}

static int
keep_regular(const struct dirent *d)
{
	char path[sizeof(TEXT_FOLDER) + sizeof(d->d_name) + 1];
	struct stat st;

	snprintf(path, sizeof(path), "%s/%s", TEXT_FOLDER, d->d_name);
	return lstat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static int
options_default_files(struct options *opt)
{
	struct dirent **names;
	int n = scandir(TEXT_FOLDER, &names, keep_regular, alphasort);

	if (n <= 0)
		return say("no files in " TEXT_FOLDER, n < 0 ? errno : ENOENT);
	opt->files = calloc((size_t)n, sizeof(*opt->files));
	if (!opt->files)
		return say("files", ENOMEM);
	for (int i = 0; i < n; i++) {
		if (asprintf(&opt->files[i], "%s/%s", TEXT_FOLDER, names[i]->d_name) < 0)
			return say("files", ENOMEM);
		free(names[i]);
	}
	free(names);
	opt->n_files = (size_t)n;
	return 0;
}

/* What the tables and the objects must be able to hold, from two passes over the text: a word may run from one into the next. */
static int
run_measure(struct run *run, struct area *a)
{
	struct text text = {0};
	size_t longest_bytes = 0;
	uint64_t n_words = 0;
	char c;

	if (text_load(&text, run->opt->files, run->opt->n_files) < 0)
		return -EIO;
	for (; text.n_passes < 2; n_words++) {
		size_t n_bytes = text_next(&text, &c, 1);

		if (n_bytes == 0)
			return say("the files have no word, or one without end", EINVAL);
		longest_bytes = n_bytes > longest_bytes ? n_bytes : longest_bytes;
	}
	free(text.bytes);
	if (n_words > UINT32_MAX / 4 || text.n_bytes > UINT32_MAX / 4)
		return say("the files", EFBIG);
	run->words_in_pass = n_words / 2;
	a->object_bytes = 64;
	if (longest_bytes > 64 - sizeof(struct word))
		a->object_bytes = (uint32_t)((longest_bytes + sizeof(struct word) + 7) & ~(size_t)7);
	if (longest_bytes > SLABC_MAX_OBJECT_BYTES - sizeof(struct word))
		return say("a word is too long for an object", EMSGSIZE);
	a->max_entries = (uint32_t)n_words + 8;
	a->max_text_bytes = (uint32_t)(2 * text.n_bytes + 8 * longest_bytes);
	for (a->index_slots = 64; a->index_slots < 2 * a->max_entries; a->index_slots *= 2)
		;
	return 0;
}

static int
run_make_area(struct run *run)
{
	struct area a = {0};

	if (run_measure(run, &a) < 0)
		return -EINVAL;
	a.n_readers = (uint32_t)run->opt->n_readers;
	a.n_counters = (uint32_t)run->opt->n_counters;
	a.n_words = run->opt->n_words;
	a.parent_pid = getpid();
	a.is_gated = run->opt->is_kill_run;
	area_layout(&a);
	run->memfd = memfd_create("pipeline", MFD_CLOEXEC);
	if (run->memfd < 0 || ftruncate(run->memfd, (off_t)a.size_bytes) < 0)
		return say("memfd", errno);
	run->area = area_map(run->memfd, a.size_bytes);
	if (!run->area)
		return say("mmap", errno);
	*run->area = a;
	return 0;
}

/* Asks slabd before anybody is started, so that its absence is said once. */
static int
run_try_slabd(struct run *run)
{
	struct slabc_options opt = SLABC_OPTIONS_INIT;
	struct slabc_cache *cache = NULL;
	struct slabc *c = NULL;
	char name[32];
	int r;

	opt.socket = run->opt->socket;
	area_cache_name(run->area, name, sizeof(name));
	r = slabc_open(&c, &opt);
	if (r == 0)
		r = slabc_cache_open(c, name, run->area->object_bytes, NULL, &cache);
	if (r < 0)
		say(slabc_last_error(), -r);
	slabc_close(c);
	return r;
}

/* Worker i: a reader, or after them a counter. */
static int
run_spawn(struct run *run, unsigned i, bool is_successor)
{
	bool is_reader = i < run->area->n_readers;
	size_t n = 0, n_files = is_reader ? run->opt->n_files : 0;
	char **argv = calloc(n_files + 8, sizeof(*argv));
	char args[5][64];
	char dashes[] = "--";
	posix_spawn_file_actions_t actions;
	char *socket = NULL;
	int r;

	if (!argv || (run->opt->socket && asprintf(&socket, "--socket=%s", run->opt->socket) < 0))
		return -ENOMEM;
	snprintf(args[0], sizeof(args[0]), "pipeline");
	snprintf(args[1], sizeof(args[1]), "--role=%s", is_reader ? "reader" : is_successor ? "successor" : "counter");
	snprintf(args[2], sizeof(args[2]), "--number=%u", is_reader ? i : i - run->area->n_readers);
	snprintf(args[3], sizeof(args[3]), "--memfd=%d", run->memfd);
	snprintf(args[4], sizeof(args[4]), "--size=%" PRIu64, run->area->size_bytes);
	for (; n < 5; n++)
		argv[n] = args[n];
	if (socket)
		argv[n++] = socket;
	argv[n++] = dashes;
	memcpy(argv + n, run->opt->files, n_files * sizeof(*argv));
	posix_spawn_file_actions_init(&actions);
	/* To itself: the one descriptor that is not closed by exec. */
	posix_spawn_file_actions_adddup2(&actions, run->memfd, run->memfd);
	r = posix_spawn(&run->workers[i], "/proc/self/exe", &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	free(socket);
	free(argv);
	if (r != 0)
		run->workers[i] = 0;
	return r != 0 ? say("posix_spawn", r) : 0;
}

static uint64_t
run_n_done(struct run *run)
{
	uint64_t n = 0;

	for (unsigned r = 0; r < run->area->n_readers; r++) {
		for (unsigned c = 0; c < run->area->n_counters; c++)
			n += __atomic_load_n(&area_ring(run->area, r, c)->tail, __ATOMIC_RELAXED);
	}
	return n;
}

static void
run_show(struct run *run, uint64_t n_done, uint64_t start_ms)
{
	double seconds = (double)(now_ms() - start_ms + 1) / 1000;
	unsigned percent = (unsigned)(n_done * 100 / run->area->n_words);

	if (!run->is_tty && percent / 10 <= run->tenths_shown)
		return;
	run->tenths_shown = percent / 10;
	printf("%s%3u%%  %10" PRIu64 " of %" PRIu64 " words  %6.2f s  %5.2f million words/s%s", run->is_tty ? "\r" : "", percent, n_done,
		run->area->n_words, seconds, (double)n_done / seconds / 1e6, run->is_tty ? "" : "\n");
	fflush(stdout);
}

/* A worker has ended: well, or by our hand, then its successor starts. Returns 0, or -errno: neither. */
static int
run_ended(struct run *run, unsigned i, int status)
{
	unsigned killed = run->area->n_readers;

	run->workers[i] = 0;
	if (status == 0)
		return 0;
	if (i != killed || run->kill != KILL_SENT || !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
		fprintf(stderr, "pipeline: %s %u ended with status %#x\n", i < killed ? "reader" : "counter", i < killed ? i : i - killed,
			(unsigned)status);
		return -ECHILD;
	}
	run->kill = KILL_SUCCEEDED;
	run->n_freed_by_killed = run->area->counters[0].n_freed;
	printf("%scounter 0 was killed after %" PRIu64 " words of its own; a successor takes its rings\n", run->is_tty ? "\n" : "",
		run->n_freed_by_killed);
	/* Relaxed: nothing comes with it; a reader that sees it late looks again after AREA_WAIT_MS. */
	__atomic_store_n(&run->area->is_gated, 0, __ATOMIC_RELAXED);
	for (unsigned r = 0; r < run->area->n_readers; r++)
		bell_ring(&run->area->readers[r].room);
	return run_spawn(run, i, true);
}

/* Returns how many workers there are, or -errno. */
static int
run_reap(struct run *run)
{
	int n = 0;

	for (unsigned i = 0; i < run->area->n_readers + run->area->n_counters; i++) {
		int status, r = 0;

		if (run->workers[i] != 0 && waitpid(run->workers[i], &status, WNOHANG) == run->workers[i])
			r = run_ended(run, i, status);
		if (r < 0)
			return r;
		n += run->workers[i] != 0;
	}
	return n;
}

/* At half of what the readers make before the gate at the latest: then there is always work left for the successor. */
static void
run_kill_when_due(struct run *run, uint64_t n_done)
{
	uint64_t n_due = 0;

	for (uint64_t r = 0; r < run->area->n_readers; r++)
		n_due += (run->area->n_words * (r + 1) / run->area->n_readers - run->area->n_words * r / run->area->n_readers) / 2;
	if (run->kill != KILL_DUE || n_done < n_due)
		return;
	run->kill = KILL_SENT;
	kill(run->workers[run->area->n_readers], SIGKILL);
}

/* Until all workers have ended well. Returns 0, or -errno: one did not, or nothing moves. */
static int
run_watch(struct run *run)
{
	struct timespec tick = {0, TICK_MS * 1000000L};
	uint64_t start_ms = now_ms(), moved_ms = start_ms, shown_ms = start_ms, n_before = 0;
	int n_workers = 1;

	while (n_workers > 0) {
		uint64_t n_done = run_n_done(run), ms = now_ms();

		run_kill_when_due(run, n_done);
		if (n_done != n_before)
			moved_ms = ms;
		n_before = n_done;
		if (ms - moved_ms > STALL_S * 1000)
			return say("no word moves", ETIMEDOUT);
		if (!run->is_tty || ms - shown_ms >= 50) {
			run_show(run, n_done, start_ms);
			shown_ms = ms;
		}
		n_workers = run_reap(run);
		if (n_workers > 0)
			nanosleep(&tick, NULL);
	}
	if (n_workers < 0)
		return n_workers;
	run_show(run, run_n_done(run), start_ms);
	printf("%s%.2f million words/s from the start of the processes to the end of the last\n", run->is_tty ? "\n" : "",
		(double)run->area->n_words / (double)(now_ms() - start_ms + 1) / 1e3);
	return 0;
}

static void
run_stop(struct run *run)
{
	__atomic_store_n(&run->area->is_stopped, 1, __ATOMIC_RELAXED);
	for (unsigned i = 0; i < MAX_WORKERS; i++) {
		if (run->workers[i] == 0)
			continue;
		kill(run->workers[i], SIGKILL);
		waitpid(run->workers[i], NULL, 0);
	}
}

/* Words made, taken out of the rings, freed by counters: the same number, but for what a kill may have left in doubt. */
static int
run_account(struct run *run)
{
	struct area *a = run->area;
	uint64_t n_made = 0, n_freed = 0, n_passed = run_n_done(run), n_slack = run->kill == KILL_SUCCEEDED ? 1 : 0;

	for (unsigned i = 0; i < a->n_readers; i++)
		n_made += a->readers[i].n_made;
	printf("objects made by readers, freed by counters (processes other than their makers):");
	for (unsigned i = 0; i < a->n_counters; i++) {
		const struct area_counter *c = &a->counters[i];

		printf(" %s%" PRIu64, i > 0 ? "+ " : "", c->n_freed);
		n_freed += c->n_freed;
		if (i == 0 && n_slack > 0)
			printf(" (killed: %" PRIu64 ", successor: %" PRIu64 ", %" PRIu64 " adopted, %" PRIu64 " found freed)",
				run->n_freed_by_killed, c->n_freed - run->n_freed_by_killed, c->n_adopted, c->n_found_freed);
	}
	n_freed += a->counters[0].n_found_freed;
	printf(" = %" PRIu64 " of %" PRIu64 "\n", n_passed, n_made);
	/* The killed one may have counted a free and not passed it: then its successor counts it again, as adopted or as found. */
	if (n_made != a->n_words || n_passed != a->n_words || n_freed < n_passed || n_freed > n_passed + n_slack)
		return say("made, passed and freed differ", EBADMSG);
	return 0;
}

static void
totals_show_top(const struct total *totals, size_t n)
{
	const struct total *above = NULL;

	printf("%zu distinct words; most often:", n);
	for (size_t k = 0; k < N_TOP && k < n; k++) {
		const struct total *best = NULL;

		/* Ties in the order of the words. */
		for (size_t i = 0; i < n; i++) {
			if (above && (totals[i].count > above->count || (totals[i].count == above->count && &totals[i] <= above)))
				continue;
			if (!best || totals[i].count > best->count)
				best = &totals[i];
		}
		if (!best)
			break;
		printf("  %.*s %" PRIu64, (int)(best->n_bytes < 40 ? best->n_bytes : 40), best->text, best->count);
		above = best;
	}
	printf("\n");
}

static int
run_check(struct run *run)
{
	struct total *totals = NULL;
	int64_t n = totals_of(run->area, &totals);
	uint64_t n_words = 0;
	int r;

	if (n < 0)
		return say("totals", (int)-n);
	for (int64_t i = 0; i < n; i++)
		n_words += totals[i].count;
	totals_show_top(totals, (size_t)n);
	r = run_account(run);
	if (r == 0)
		r = totals_verify(totals, (size_t)n, run->area->n_words, run->area->n_words / run->words_in_pass + 2, run->opt->files,
			run->opt->n_files);
	if (r == 0)
		printf("equal to cat | tr | sort | uniq -c: %" PRIu64 " of %" PRIu64 " words, %" PRId64 " distinct\n", n_words,
			run->area->n_words, n);
	free(totals);
	return r;
}

static int
parent_main(const struct options *opt)
{
	struct run run = {.opt = opt, .is_tty = isatty(STDOUT_FILENO) == 1, .kill = opt->is_kill_run ? KILL_DUE : KILL_NOT};
	int r;

	if (run_make_area(&run) < 0 || run_try_slabd(&run) < 0)
		return EXIT_FAILURE;
	printf("%" PRIu64 " words of %zu files, %u readers, %u counters, objects of %u bytes\n", opt->n_words, opt->n_files,
		run.area->n_readers, run.area->n_counters, run.area->object_bytes);
	fflush(stdout);
	r = 0;
	for (unsigned i = 0; r == 0 && i < run.area->n_readers + run.area->n_counters; i++)
		r = run_spawn(&run, i, false);
	if (r == 0)
		r = run_watch(&run);
	if (r < 0)
		run_stop(&run);
	else
		r = run_check(&run);
	return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

static int
worker_main(const struct options *opt)
{
	struct role role = {.number = (unsigned)opt->number, .socket = opt->socket, .is_successor = strcmp(opt->role, "successor") == 0};
	struct text text = {0};
	int r;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	role.area = area_map((int)opt->memfd, opt->size_bytes);
	if (!role.area)
		return -say("mmap", errno);
	if (getppid() != role.area->parent_pid)
		return EXIT_FAILURE;
	if (strcmp(opt->role, "reader") != 0)
		return counter_main(&role);
	if (text_load(&text, opt->files, opt->n_files) < 0)
		return EXIT_FAILURE;
	role.text = &text;
	r = reader_main(&role);
	free(text.bytes);
	return r;
}

static int
number_of(const char *name, const char *text, uint64_t max, uint64_t *np)
{
	char *end;

	errno = 0;
	*np = strtoull(text, &end, 10);
	if (errno == 0 && end != text && *end == 0 && text[0] != '-' && *np >= 1 && *np <= max)
		return 0;
	fprintf(stderr, "pipeline: --%s=%s: must be 1 to %" PRIu64 "\n", name, text, max);
	return -EINVAL;
}

static int
options_parse(struct options *opt, int argc, char **argv)
{
	static const struct option longs[] = {{"readers", 1, NULL, 'r'}, {"counters", 1, NULL, 'c'}, {"words", 1, NULL, 'w'},
		{"kill-counter", 0, NULL, 'k'}, {"socket", 1, NULL, 's'}, {"help", 0, NULL, 'h'}, {"role", 1, NULL, 'R'},
		{"number", 1, NULL, 'N'}, {"memfd", 1, NULL, 'M'}, {"size", 1, NULL, 'S'}, {NULL, 0, NULL, 0}};
	int c, r = 0;

	while (r == 0 && (c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == 'r')
			r = number_of("readers", optarg, AREA_MAX_READERS, &opt->n_readers);
		else if (c == 'c')
			r = number_of("counters", optarg, AREA_MAX_COUNTERS, &opt->n_counters);
		else if (c == 'w')
			r = number_of("words", optarg, AREA_MAX_WORDS, &opt->n_words);
		else if (c == 'k')
			opt->is_kill_run = true;
		else if (c == 's')
			opt->socket = optarg;
		else if (c == 'R')
			opt->role = optarg;
		else if (c == 'N')
			opt->number = strtoull(optarg, NULL, 10);
		else if (c == 'M')
			opt->memfd = strtoull(optarg, NULL, 10);
		else if (c == 'S')
			opt->size_bytes = strtoull(optarg, NULL, 10);
		else
			r = -EINVAL;
	}
	opt->files = argv + optind;
	opt->n_files = (size_t)(argc - optind);
	return r;
}

int
main(int argc, char **argv)
{
	struct options opt = {.n_words = 1000000, .n_readers = 3, .n_counters = 3};
	int r;

	if (options_parse(&opt, argc, argv) < 0) {
		fprintf(stderr, "usage: pipeline [--readers=N] [--counters=M] [--words=W] [--kill-counter] [--socket=PATH] [FILE...]\n"
				"Counts W words of the files (" TEXT_FOLDER ") by processes that pass each word as an object of slabd.\n");
		return 2;
	}
	if (opt.role)
		return worker_main(&opt);
	if (opt.n_files > 0)
		return parent_main(&opt);
	if (options_default_files(&opt) < 0)
		return EXIT_FAILURE;
	r = parent_main(&opt);
	for (size_t i = 0; i < opt.n_files; i++)
		free(opt.files[i]);
	free(opt.files);
	return r;
}
