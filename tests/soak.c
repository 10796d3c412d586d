/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An hour of everything at once: nothing is lost or doubled, nobody sees an error, and memory, descriptors and latency stay what they are.
 *
 * Workers with ghost ledgers (storm.c) are killed, and stopped for a while, amid shrinks, changed knobs and caches that come and go, by slabctl; slabd is
 * killed in the middle third of the time, also while it has a death to see to, and adopted.  In the first third and in the last it lives on: there a leak
 * of its own shows.  A prober asks for a sheaf and gives it back, over and over again, and notes how long that takes.
 *
 * What is measured is sampled at even intervals, while all workers are stopped and after a shrink.  Judged are medians, of
 * latency the lower quartiles: of the last third of a row beside its first third.
 * Usage: soak [--seconds=3600] [--seed=N] [--workers=6] [--threads=2]; $SOAK_S is the default of --seconds; $SLABD, $SLABD_KEEPER, $SLABCTL.
 */
#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/storm.h"

enum {
	N_SAMPLES = 90,
	MAX_GAP_US = 150000,  /* between two disturbances */
	MAX_STOPPED = 3,      /* workers at a time */
	BUCKETS_AN_OCTAVE = 8, /* of latency */
	N_BUCKETS = 40 * BUCKETS_AN_OCTAVE,
	PROBE_OBJECTS = 40,
	PROBE_PAUSE_US = 500,
	TEMPORARY_OBJECTS = 300,
	PATH_BYTES = 300,
	REFUSED = 3, /* slabctl's exit status */
	SLABD_ONE_IN = 4,
};

/* What may have grown from the first third to the last: a part of it, and so much more; one_in: 2 judges the median. */
struct allowance {
	double factor, more;
	uint32_t one_in;
};
static const struct allowance heap_allowance = {1.1, 512, 2} /* KiB */, fd_allowance = {1, 10, 2}, memory_allowance = {1.25, 1024, 2} /* KiB */,
			      /* Client slots are used in turn: the ledger's some 200 bytes for each are touched in the end. */
	table_allowance = {1.25, 1024 + LAYOUT_MAX_CLIENTS * 208 / 1024, 2} /* KiB */,
			      /* Of the quiet quarter: what else the machine does makes many a window slow, and what slabd does, all. */
	latency_allowance = {2, 1000, 4} /* us */;

enum row { ROW_HEAP_KIB, ROW_FDS, ROW_KEPT_FDS, ROW_COMMITTED_KIB, ROW_MEMORY_KIB, ROW_P50_US, ROW_P99_US, N_ROWS };

enum event { EVENT_KILL, EVENT_STOP, EVENT_SHRINK, EVENT_TUNE, EVENT_CACHE, EVENT_SLABD, N_EVENTS };
/* Of 100.  slabd is killed every SLABD_ONE_IN'th time in the middle third. */
static const uint32_t event_weight[N_EVENTS] = {50, 18, 12, 12, 8, 0};
static const char *const event_names[N_EVENTS] = {"kills", "stops", "shrinks", "changed knobs", "caches", "kills of slabd"};

/* Shared with the prober, which counts in the half that it is told. */
struct probe {
	uint32_t half, is_at_end;
	uint32_t n[2][N_BUCKETS];
	uint64_t n_probes;
	char error[256];
};

struct soak {
	struct storm storm;
	uint64_t seconds, start_ns;
	pid_t daemon; /* slabd itself */
	uint64_t n_events[N_EVENTS], n_amid; /* of slabd's, those with a death to see to */
	uint32_t n_temporary;
	struct probe *probe;
	pid_t prober;
	double row[N_ROWS][N_SAMPLES + 1];
	uint32_t n_samples;
};

static struct soak soak = {.storm = {.name = "soak", .is_kept = true, .page_kind = "4k"}};

/* The prober */

/* Buckets of latency: the first are 1/8 us wide, and each eight further ones twice as wide. */
static uint32_t
bucket_of(uint64_t ns)
{
	uint64_t n = ns / (1000 / BUCKETS_AN_OCTAVE) + BUCKETS_AN_OCTAVE;
	uint32_t octave = (uint32_t)(63 - __builtin_clzll(n)) - 3, bucket = octave * BUCKETS_AN_OCTAVE + (uint32_t)(n >> octave) - BUCKETS_AN_OCTAVE;

	return bucket < N_BUCKETS ? bucket : N_BUCKETS - 1;
}

static double
bucket_us(uint32_t bucket)
{
	uint64_t octave = bucket / BUCKETS_AN_OCTAVE, n = (bucket % BUCKETS_AN_OCTAVE + BUCKETS_AN_OCTAVE + 1) << octave;

	return (double)(n - BUCKETS_AN_OCTAVE) / BUCKETS_AN_OCTAVE;
}

static void
probe(struct probe *p, const char *socket)
{
	struct slabc_options o = SLABC_OPTIONS_INIT;
	struct slabc_cache *k = NULL;
	struct slabc *c = NULL;
	int r;

	o.socket = socket;
	o.label = "prober";
	o.timeout_ms = STORM_WAIT_MS;
	r = slabc_open(&c, &o);
	if (r == 0)
		r = slabc_cache_open(c, "probe", 64, NULL, &k);
	while (r == 0 && !__atomic_load_n(&p->is_at_end, __ATOMIC_ACQUIRE)) {
		uint64_t start = storm_now_ns();
		struct slabc_sheaf *sheaf = slabc_prefill(k, PROBE_OBJECTS);
		void *object = sheaf ? slabc_alloc_from(k, sheaf) : NULL;

		p->n[__atomic_load_n(&p->half, __ATOMIC_RELAXED) & 1][bucket_of(storm_now_ns() - start)]++;
		r = object ? 0 : -errno;
		slabc_free(k, object);
		slabc_return(k, sheaf);
		p->n_probes++;
		storm_pause_us(PROBE_PAUSE_US);
	}
	if (r < 0)
		snprintf(p->error, sizeof p->error, "%s", slabc_last_error());
	slabc_close(c);
	_exit(r < 0);
}

static void
prober_start(struct soak *k)
{
	pid_t parent = getpid();

	k->probe = mmap(NULL, sizeof *k->probe, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (k->probe == MAP_FAILED)
		storm_die(&k->storm, "mmap: %s", strerror(errno));
	fflush(stdout);
	k->prober = fork();
	if (k->prober < 0)
		storm_die(&k->storm, "fork: %s", strerror(errno));
	if (k->prober)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(127);
	slabc_close(k->storm.view.c);
	close(k->storm.control);
	probe(k->probe, k->storm.socket);
}

static void
prober_look(struct soak *k)
{
	if (waitpid(k->prober, NULL, WNOHANG) != 0) {
		k->prober = 0;
		storm_die(&k->storm, "the prober has ended: %s", k->probe->error);
	}
}

/* Of the half that is full; which is then empty. */
static double
percentile(uint32_t *n, double part)
{
	uint64_t sum = 0, seen = 0;
	uint32_t i = 0;

	for (uint32_t j = 0; j < N_BUCKETS; j++)
		sum += n[j];
	while (i < N_BUCKETS - 1 && (double)(seen += n[i]) < part * (double)sum)
		i++;
	return bucket_us(i);
}

/* What /proc says */

static double
heap_kib(pid_t pid)
{
	char path[PATH_BYTES], line[128];
	unsigned long kib = 0;
	FILE *file;

	snprintf(path, sizeof path, "/proc/%d/status", pid);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof line, file))
		sscanf(line, "RssAnon: %lu kB", &kib);
	if (file)
		fclose(file);
	return (double)kib;
}

/* Descriptors; and what memory there is behind those that are memory. */
static double
count_fds(pid_t pid, double *kibp)
{
	char path[PATH_BYTES], link[64];
	struct dirent *e;
	struct stat st;
	double n = 0;
	DIR *dir;

	snprintf(path, sizeof path, "/proc/%d/fd", pid);
	dir = opendir(path);
	for (*kibp = 0; dir && (e = readdir(dir)); n += e->d_name[0] != '.') {
		ssize_t length;

		snprintf(path, sizeof path, "/proc/%d/fd/%s", pid, e->d_name);
		length = readlink(path, link, sizeof link - 1);
		if (length > 7 && strncmp(link, "/memfd:", 7) == 0 && stat(path, &st) == 0)
			*kibp += (double)st.st_blocks / 2;
	}
	if (dir)
		closedir(dir);
	return n;
}

/* Objects in use, of all caches: what workers hold, and what is on its way between them, which takes its time to level out. */
static double
in_use_kib(struct soak *k)
{
	union proto_request request = {0};
	union proto_reply reply;
	double bytes = 0;

	do {
		storm_call(&k->storm, PROTO_OP_CACHES, &request, &reply);
		bytes += (double)reply.caches.n_out * (double)reply.caches.object_size;
		request.caches.after = reply.caches.cache;
	} while (reply.caches.cache);
	return bytes / 1024;
}

static void
measure(struct soak *k)
{
	struct storm *s = &k->storm;
	uint32_t half = k->probe->half & 1, i = k->n_samples++;
	double unused, in_use = in_use_kib(k), committed = (double)storm_committed(s) / 1024;

	__atomic_store_n(&k->probe->half, !half, __ATOMIC_RELAXED);
	k->row[ROW_HEAP_KIB][i] = heap_kib(k->daemon);
	k->row[ROW_FDS][i] = count_fds(k->daemon, &unused);
	k->row[ROW_KEPT_FDS][i] = count_fds(s->slabd, &k->row[ROW_MEMORY_KIB][i]);
	k->row[ROW_MEMORY_KIB][i] -= committed;
	k->row[ROW_COMMITTED_KIB][i] = committed - in_use;
	k->row[ROW_P50_US][i] = percentile(k->probe->n[half], 0.5);
	k->row[ROW_P99_US][i] = percentile(k->probe->n[half], 0.99);
	memset(k->probe->n[half], 0, sizeof k->probe->n[half]);
	if (k->n_samples % (N_SAMPLES / 9) == 0) {
		printf("%5.0f s: %llu kills, %llu of slabd; heap %.0f KiB, %.0f descriptors, the keeper %.0f; in use %.0f KiB, %.0f more committed, tables "
		       "%.0f; a refill %.0f us, p99 %.0f\n",
			(double)(storm_now_ns() - k->start_ns) / 1e9, (unsigned long long)k->n_events[EVENT_KILL], (unsigned long long)k->n_events[EVENT_SLABD],
			k->row[ROW_HEAP_KIB][i], k->row[ROW_FDS][i], k->row[ROW_KEPT_FDS][i], in_use, k->row[ROW_COMMITTED_KIB][i], k->row[ROW_MEMORY_KIB][i],
			k->row[ROW_P50_US][i], k->row[ROW_P99_US][i]);
		fflush(stdout);
	}
}

/* All stopped, and nothing idle, so that it is the same each time whatever the knobs are. */
static void
sample(struct soak *k)
{
	struct storm *s = &k->storm;
	bool was_stopped[GHOST_MAX_LANES];
	union proto_reply reply;

	memcpy(was_stopped, s->is_stopped, sizeof was_stopped);
	for (uint32_t i = 0; i < s->n_workers; i++)
		if (!was_stopped[i])
			storm_worker_stop(s, i);
	storm_call(s, PROTO_OP_SHRINK, &(union proto_request){0}, &reply);
	storm_compare_all(s);
	measure(k);
	for (uint32_t i = 0; i < s->n_workers; i++)
		if (!was_stopped[i])
			storm_worker_go_on(s, i);
}

/* Disturbances */

static uint32_t
below(struct soak *k, uint32_t n)
{
	return (uint32_t)(ghost_random(&k->storm.random) % n);
}

/* slabctl COMMAND [ARGUMENT]..., to NULL; it must end so. */
static void
slabctl(struct soak *k, int expected, const char *command, const char *a, const char *b, const char *c)
{
	const char *program = getenv("SLABCTL") ? getenv("SLABCTL") : "build/release/slabctl";
	char socket_option[128];
	pid_t pid;
	int status = 0;

	snprintf(socket_option, sizeof socket_option, "--socket=%s", k->storm.socket);
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		if (!freopen("/dev/null", "w", stdout) || (expected && !freopen("/dev/null", "w", stderr)))
			_exit(127);
		execl(program, program, socket_option, "--timeout=20", command, a, b, c, (char *)NULL);
		_exit(127);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		storm_die(&k->storm, "slabctl: %s", strerror(errno));
	if (!WIFEXITED(status) || WEXITSTATUS(status) != expected)
		storm_die(&k->storm, "slabctl %s %s: status %x, not exit with %d", command, a ? a : "", (unsigned)status, expected);
}

/* Of a worker that runs, or one that is stopped. */
static uint32_t
any_lane(struct soak *k)
{
	return below(k, k->storm.n_workers);
}

static void
kill_worker(struct soak *k)
{
	struct ghost_death death;
	uint32_t lane = any_lane(k);

	storm_settle(&k->storm, lane, storm_kill(&k->storm, lane, &death));
	storm_worker_start(&k->storm, lane);
}

/* A worker is stopped, and stays so until its turn comes again, or too many are, or it is killed. */
static void
stop_or_go_on(struct soak *k)
{
	struct storm *s = &k->storm;
	uint32_t lane = any_lane(k), n = 0;

	if (s->is_stopped[lane]) {
		storm_worker_go_on(s, lane);
		return;
	}
	storm_worker_stop(s, lane);
	for (uint32_t i = 0; i < s->n_workers; i++)
		n += s->is_stopped[i];
	for (uint32_t i = 1; n > MAX_STOPPED && i < s->n_workers; i++) {
		uint32_t other = (lane + i) % s->n_workers;

		if (!s->is_stopped[other])
			continue;
		storm_worker_go_on(s, other);
		n--;
	}
}

static void
tune(struct soak *k)
{
	uint32_t cache = below(k, GHOST_CACHES);
	char a[64], b[64];

	switch (below(k, 4)) {
	case 0:
		snprintf(a, sizeof a, "sheaf_capacity=%u", 1 + below(k, cache == GHOST_CHURN ? 4 : 500));
		snprintf(b, sizeof b, "cpu_partial=%u", below(k, 600) + 1);
		break;
	case 1:
		snprintf(a, sizeof a, "barn_full=%u", 1 + below(k, 32));
		snprintf(b, sizeof b, "min_partial=%u", 1 + below(k, 8));
		break;
	case 2:
		snprintf(a, sizeof a, "max_cached=%uK", 4 + below(k, 400));
		snprintf(b, sizeof b, "barn_empty=%u", 1 + below(k, 40));
		break;
	default:
		strcpy(a, "sheaf_capacity=default");
		strcpy(b, "max_cached=default");
	}
	slabctl(k, 0, "tune", k->storm.setup.cache_name[cache], a, b);
}

/* A cache of its own comes, is filled, tuned and emptied, and goes: by slabctl, which does not end one that somebody has open. */
static void
come_and_go(struct soak *k)
{
	struct storm *s = &k->storm;
	struct slabc_cache_options o = SLABC_CACHE_OPTIONS_INIT;
	void *objects[TEMPORARY_OBJECTS];
	struct slabc_cache *cache;
	char name[32];

	snprintf(name, sizeof name, "temporary-%u", k->n_temporary++);
	o.flags = below(k, 2) ? SLABC_RECLAIM : 0;
	if (slabc_cache_open(s->view.c, name, 8 + below(k, 3000), &o, &cache) < 0 || slabc_alloc_bulk(cache, TEMPORARY_OBJECTS, objects) < 0)
		storm_die(s, "%s: %s", name, slabc_last_error());
	slabctl(k, 0, "tune", name, "barn_full=2", NULL);
	slabc_free_bulk(cache, TEMPORARY_OBJECTS, objects);
	if (below(k, 2))
		slabctl(k, REFUSED, "destroy", name, NULL, NULL);
	if (below(k, 2)) {
		if (slabc_cache_destroy(s->view.c, name) < 0)
			storm_die(s, "%s: %s", name, slabc_last_error());
		slabc_cache_close(cache);
	} else {
		slabc_cache_close(cache);
		slabctl(k, 0, "destroy", name, NULL, NULL);
	}
}

/* How often an adopting slabd could not say of some objects that they are lost. */
static unsigned
count_unsaid(const struct soak *k)
{
	FILE *log = fopen(k->storm.log, "re");
	char line[512];
	unsigned n = 0;

	while (log && fgets(line, sizeof line, log))
		n += strstr(line, "it cannot be said that they are lost") != NULL;
	if (log)
		fclose(log);
	return n;
}

/* slabd's process; waits until it is not `before`. */
static void
meet_slabd(struct soak *k, pid_t before)
{
	uint64_t end = storm_now_ns() + STORM_WAIT_MS * UINT64_C(1000000);
	union proto_reply reply;

	do {
		storm_control_open(&k->storm);
		storm_call(&k->storm, PROTO_OP_STATUS, &(union proto_request){0}, &reply);
		k->daemon = (pid_t)reply.status.pid;
		if (storm_now_ns() > end)
			storm_die(&k->storm, "slabd does not come back");
	} while (k->daemon == before);
}

static void
kill_slabd(struct soak *k)
{
	pid_t before = k->daemon;
	struct pollfd death = {.fd = (int)syscall(SYS_pidfd_open, before, 0), .events = POLLIN};

	/* No connection may reach it any more. */
	kill(before, SIGKILL);
	if (poll(&death, 1, STORM_WAIT_MS) != 1)
		storm_die(&k->storm, "slabd, pid %d, does not die", before);
	close(death.fd);
	meet_slabd(k, before);
	k->n_events[EVENT_SLABD]++;
}

/*
 * Killed, and with it, every other time, a worker, whose end the next one sees to.  What an adopting slabd cannot judge, since it was kept from its work for
 * too long between two looks, the one after it must.
 */
static void
replace_slabd(struct soak *k)
{
	struct storm *s = &k->storm;
	uint32_t lane = any_lane(k);
	struct ghost_death death;
	unsigned n_unsaid;
	pid_t pid = 0;

	if (below(k, 2)) {
		pid = storm_kill(s, lane, &death);
		storm_pause_us(below(k, 2000));
		k->n_amid++;
	}
	do {
		n_unsaid = count_unsaid(k);
		kill_slabd(k);
	} while (count_unsaid(k) != n_unsaid);
	if (!pid)
		return;
	storm_settle(s, lane, pid);
	storm_worker_start(s, lane);
}

static void
disturb(struct soak *k)
{
	uint64_t at = storm_now_ns() - k->start_ns, all = k->seconds * UINT64_C(1000000000);
	uint32_t choice = below(k, 100), event = 0;

	while (choice >= event_weight[event])
		choice -= event_weight[event++];
	if (below(k, SLABD_ONE_IN) == 0 && at > all / 3 && at < all / 3 * 2)
		event = EVENT_SLABD;
	switch (event) {
	case EVENT_KILL:
		kill_worker(k);
		break;
	case EVENT_STOP:
		stop_or_go_on(k);
		break;
	case EVENT_SHRINK:
		slabctl(k, 0, "shrink", below(k, 2) ? k->storm.setup.cache_name[below(k, GHOST_CACHES)] : NULL, NULL, NULL);
		break;
	case EVENT_TUNE:
		tune(k);
		break;
	case EVENT_CACHE:
		come_and_go(k);
		break;
	default:
		replace_slabd(k);
		return;
	}
	k->n_events[event]++;
}

static void
run(struct soak *k)
{
	struct storm *s = &k->storm;
	uint64_t all = k->seconds * UINT64_C(1000000000);

	k->start_ns = storm_now_ns();
	while (storm_now_ns() - k->start_ns < all) {
		storm_pause_us(below(k, MAX_GAP_US));
		storm_workers_look(s);
		prober_look(k);
		disturb(k);
		if (s->view.n_failures)
			storm_die(s, "stopped at the first disturbance after which something was wrong");
		if (k->n_samples < N_SAMPLES && storm_now_ns() - k->start_ns > all / N_SAMPLES * (k->n_samples + 1))
			sample(k);
	}
	for (uint32_t lane = 0; lane < s->n_workers; lane++)
		if (s->is_stopped[lane])
			storm_worker_go_on(s, lane);
}

/* The end */

static int
compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double
in_order(const double *row, uint32_t n, uint32_t one_in)
{
	double sorted[N_SAMPLES + 1];

	memcpy(sorted, row, n * sizeof *row);
	qsort(sorted, n, sizeof *sorted, compare_doubles);
	return n ? sorted[n / one_in] : 0;
}

/* From the first third of these samples to the last, without the first tenth, in which what is used for the first time comes. */
static void
judge(struct soak *k, enum row row, uint32_t from, uint32_t to, const struct allowance *allowed, const char *sentence)
{
	uint32_t first = from + (to - from) / 10, third = (to - first) / 3;
	double begin = in_order(&k->row[row][first], third, allowed->one_in),
	       end = in_order(&k->row[row][to - third], third, allowed->one_in);

	printf("  %-62s %10.0f -> %.0f\n", sentence, begin, end);
	storm_check(&k->storm, third > 0 && end <= begin * allowed->factor + allowed->more, sentence);
}

static void
check_trends(struct soak *k)
{
	uint32_t n = k->n_samples;

	printf("medians, of latency the lower quartile, of the first third and of the last:\n");
	judge(k, ROW_HEAP_KIB, 0, n / 3, &heap_allowance, "slabd's heap in its first life is bounded (KiB)");
	judge(k, ROW_HEAP_KIB, n - n / 3, n, &heap_allowance, "slabd's heap in its last life is bounded (KiB)");
	judge(k, ROW_FDS, 0, n / 3, &fd_allowance, "so are its descriptors in the first");
	judge(k, ROW_FDS, n - n / 3, n, &fd_allowance, "and in the last");
	judge(k, ROW_KEPT_FDS, 0, n / 3, &fd_allowance, "and those that it has kept in the first");
	judge(k, ROW_KEPT_FDS, n - n / 3, n, &fd_allowance, "and in the last");
	judge(k, ROW_KEPT_FDS, 0, n, &fd_allowance, "and over all of them");
	judge(k, ROW_COMMITTED_KIB, 0, n, &memory_allowance, "memory that is committed and not in use is bounded (KiB)");
	judge(k, ROW_MEMORY_KIB, 0, n, &table_allowance, "memory of tables and sessions is bounded (KiB)");
	judge(k, ROW_P50_US, 0, n, &latency_allowance, "a refill takes no longer (us)");
	judge(k, ROW_P99_US, 0, n, &latency_allowance, "and 99 of 100 take no longer (us)");
}

static void
end(struct soak *k)
{
	struct storm *s = &k->storm;
	bool has_all = true;
	int status;

	storm_end(s);
	__atomic_store_n(&k->probe->is_at_end, 1, __ATOMIC_RELEASE);
	if (waitpid(k->prober, &status, 0) != k->prober || status != 0)
		storm_die(s, "the prober: %s", k->probe->error);
	storm_check_accounts(s);
	check_trends(k);
	slabc_close(s->view.c);
	s->has_view = false;
	storm_check_empty(s);
	storm_check(s, storm_slabd_stop(s) == 0, "slabd ends by itself, with status 0");
	storm_check(s, storm_log_is_clean(s), "slabd saw no fault of any client");
	storm_check(s, s->view.n_failures == 0, "0 lost, 0 doubled, in every audit and in every comparison with the ghost ledger");
	for (uint32_t i = 0; i < N_EVENTS; i++)
		has_all = has_all && k->n_events[i];
	storm_check(s, has_all && k->n_amid, "everything has happened that is to happen");
	printf("soak: %llu s", (unsigned long long)k->seconds);
	for (uint32_t i = 0; i < N_EVENTS; i++)
		printf(", %llu %s", (unsigned long long)k->n_events[i], event_names[i]);
	printf(" (%llu amid a death); %llu refills timed, %llu audits, %llu objects compared; 0 lost, 0 doubled\n", (unsigned long long)k->n_amid,
		(unsigned long long)k->probe->n_probes, (unsigned long long)s->n_audits, (unsigned long long)s->sums.n_compared);
}

static bool
parse(struct soak *k, int argc, char **argv)
{
	static const struct option options[] = {{"seconds", required_argument, NULL, 't'}, {"seed", required_argument, NULL, 's'},
		{"workers", required_argument, NULL, 'w'}, {"threads", required_argument, NULL, 'l'}, {0}};
	struct storm *s = &k->storm;
	int c;

	k->seconds = getenv("SOAK_S") ? strtoull(getenv("SOAK_S"), NULL, 10) : 3600;
	s->n_workers = 6;
	s->n_threads = 2;
	s->seed = storm_now_ns() % 1000000007 ^ (uint64_t)getpid() << 20;
	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (c == 't')
			k->seconds = strtoull(optarg, NULL, 10);
		else if (c == 's')
			s->seed = strtoull(optarg, NULL, 10);
		else if (c == 'w')
			s->n_workers = (uint32_t)strtoul(optarg, NULL, 10);
		else if (c == 'l')
			s->n_threads = (uint32_t)strtoul(optarg, NULL, 10);
		else
			return false;
	}
	s->random = s->seed * 2 + 1;
	return optind == argc && k->seconds >= 60 && s->n_workers > MAX_STOPPED && s->n_workers <= GHOST_MAX_LANES;
}

int
main(int argc, char **argv)
{
	struct soak *k = &soak;

	if (!parse(k, argc, argv)) {
		fprintf(stderr, "usage: soak [--seconds=3600 (60 at least)] [--seed=N] [--workers=6 (%d to %d)] [--threads=2]\n", MAX_STOPPED + 1,
			GHOST_MAX_LANES);
		return EXIT_FAILURE;
	}
	printf("soak: %llu s, seed %llu, %u workers, %u loops\n", (unsigned long long)k->seconds, (unsigned long long)k->storm.seed, k->storm.n_workers,
		k->storm.n_threads);
	storm_begin(&k->storm);
	prober_start(k);
	meet_slabd(k, 0);
	run(k);
	end(k);
	return storm_report(&k->storm) ? EXIT_SUCCESS : EXIT_FAILURE;
}
