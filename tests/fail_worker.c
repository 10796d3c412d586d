/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small job for a slabd, or a library, of which calls fail (fail_at.h): fail_worker SOCKET TIMEOUT_MS.
 *
 * Opens, caches, allocates and frees more than one sheaf and one unit, publishes; a second client frees some of it, and is killed; adopts what it left, shrinks,
 * asks, closes.  Whatever fails is gone without.  Every object has a stamp of its own, so that one that is handed out twice shows.
 * Its end says how it went: 0 as it should, 1 with errors that the manual has, 2 with what no shortage excuses, which fail_at.said has.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/slabclient.h"
#include "tests/fail_at.h"

enum { N_OBJECTS = 3000, OBJECT_BYTES = 256, N_THEIRS = 100, RUN_BYTES = 300000, ENDED_WELL = 0, ENDED_SHORT = 1, ENDED_BADLY = 2, MAX_TIMEOUTS = 1, PATIENT_MS = 10000 };

static struct fail_at *at;
static const char *socket_path;
static int timeout_ms;
static unsigned n_errors, n_timeouts;

__attribute__((format(printf, 1, 2))) static void
wrong(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(at->said, sizeof at->said, format, args);
	va_end(args);
	_exit(ENDED_BADLY);
}

/* Errors that any call may have, by the manual; those of one call are its own. */
static const int common[] = {ENOMEM, ENOTCONN, ETIMEDOUT, EIO, 0};

/* A call has said so.  true: it went well.  errno is checked, and that there is a sentence. */
static bool
well(const char *call, int error, const int *own)
{
	const char *sentence = slabc_last_error();
	bool is_known = false;

	if (error == 0)
		return true;
	n_errors++;
	n_timeouts += error == ETIMEDOUT;
	for (const int *e = common; *e; e++)
		is_known = is_known || *e == error;
	for (const int *e = own; e && *e; e++)
		is_known = is_known || *e == error;
	if (!is_known)
		wrong("%s: errno %d (%s), which its manual has not; it says '%s'", call, error, strerror(error), sentence);
	if (!*sentence)
		wrong("%s: errno %d (%s), without a sentence", call, error, strerror(error));
	if (n_timeouts > MAX_TIMEOUTS)
		_exit(ENDED_SHORT);
	return false;
}

static const int open_errors[] = {EMFILE, 0};
static const int alloc_errors[] = {EDQUOT, 0};
static const int orphan_errors[] = {ESTALE, 0};

struct job {
	struct slabc *c;
	struct slabc_cache *k, *r; /* NULL: not to be had */
	uint64_t *pv[N_OBJECTS];
	unsigned n;
};

static void
stamp(uint64_t *p, unsigned i)
{
	p[0] = p[OBJECT_BYTES / 8 - 1] = (uint64_t)getpid() << 32 | i;
}

static void
check_stamp(const uint64_t *p, unsigned i)
{
	uint64_t wanted = (uint64_t)getpid() << 32 | i;

	if (p[0] != wanted || p[OBJECT_BYTES / 8 - 1] != wanted)
		wrong("object %u has another's stamp", i);
}

static bool
begin(struct job *job, const char *label)
{
	struct slabc_options options = SLABC_OPTIONS_INIT;
	struct slabc_cache_options reclaim = SLABC_CACHE_OPTIONS_INIT;

	reclaim.flags = SLABC_RECLAIM;
	options.socket = socket_path;
	options.label = label;
	options.timeout_ms = timeout_ms;
	*job = (struct job){0};
	if (!well("slabc_open", -slabc_open(&job->c, &options), open_errors))
		return false;
	if (!well("slabc_cache_open", -slabc_cache_open(job->c, "keep", OBJECT_BYTES, NULL, &job->k), alloc_errors))
		job->k = NULL;
	if (!well("slabc_cache_open", -slabc_cache_open(job->c, "reclaim", 64, &reclaim, &job->r), alloc_errors))
		job->r = NULL;
	return true;
}

static void
fill(struct job *job, unsigned n)
{
	while (job->k && job->n < n) {
		errno = 0;
		job->pv[job->n] = slabc_alloc(job->k);
		if (!well("slabc_alloc", job->pv[job->n] ? 0 : errno, alloc_errors))
			return;
		stamp(job->pv[job->n], job->n);
		job->n++;
	}
}

static void
empty(struct job *job, unsigned n)
{
	while (job->k && job->n > n) {
		job->n--;
		check_stamp(job->pv[job->n], job->n);
		errno = 0;
		slabc_free(job->k, job->pv[job->n]);
		well("slabc_free", errno, alloc_errors);
	}
}

static void
others(struct job *job)
{
	void *pv[40];
	struct slabc_sheaf *s;

	if (!job->r)
		return;
	if (well("slabc_alloc_bulk", -slabc_alloc_bulk(job->r, 40, pv), alloc_errors)) {
		errno = 0;
		slabc_free_bulk(job->r, 40, pv);
		well("slabc_free_bulk", errno, alloc_errors);
	}
	errno = 0;
	s = slabc_prefill(job->r, 10);
	if (well("slabc_prefill", s ? 0 : errno, alloc_errors)) {
		void *p = slabc_alloc_from(job->r, s);

		if (!p)
			wrong("a prefilled sheaf is empty: %s", slabc_last_error());
		slabc_free(job->r, p);
		slabc_return(job->r, s);
	}
}

static void
sized(struct job *job)
{
	static const size_t sizes[] = {100, RUN_BYTES};

	for (unsigned i = 0; i < 2; i++) {
		unsigned char *p, *q;

		errno = 0;
		p = slabc_malloc(job->c, sizes[i]);
		if (!well("slabc_malloc", p ? 0 : errno, alloc_errors))
			continue;
		p[0] = p[sizes[i] - 1] = 7;
		errno = 0;
		q = slabc_realloc(job->c, p, 2 * sizes[i]);
		if (well("slabc_realloc", q ? 0 : errno, alloc_errors))
			p = q;
		if (p[0] != 7)
			wrong("slabc_realloc() has lost what was in it");
		errno = 0;
		slabc_mfree(job->c, p);
		well("slabc_mfree", errno, alloc_errors);
	}
}

/* Takes over, and frees, what the first client published; allocates; and dies of SIGKILL. */
static void
second_client(slabc_ref ref)
{
	struct job *job = malloc(sizeof *job);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!job)
		_exit(ENDED_SHORT);
	if (begin(job, "second")) {
		fill(job, N_THEIRS);
		for (int i = 0; job->r && i < 100; i++) {
			errno = 0;
			if (!well("slabc_alloc", slabc_alloc(job->r) ? 0 : errno, alloc_errors))
				break;
		}
		for (unsigned i = 0; i < job->n; i += 2)
			slabc_ref_of(job->c, job->pv[i]);
		if (ref)
			well("slabc_free_ref", -slabc_free_ref(job->c, ref), orphan_errors);
	}
	if (n_errors)
		at->said[0] = '!';
	kill(getpid(), SIGKILL);
}

static void
with_second(struct job *job)
{
	slabc_ref ref = job->n > 0 ? slabc_ref_of(job->c, job->pv[job->n - 1]) : 0, found;
	int status;
	pid_t pid;

	if (ref && well("slabc_publish", -slabc_publish(job->c, "root", ref, SLABC_REPLACE), NULL)) {
		if (well("slabc_lookup", -slabc_lookup(job->c, "root", &found), NULL) && found != ref)
			wrong("slabc_lookup() has found another reference");
		well("slabc_unpublish", -slabc_unpublish(job->c, "root"), NULL);
	}
	pid = fork();
	if (pid == 0)
		second_client(ref);
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		wrong("no second client");
	if (WIFEXITED(status) && WEXITSTATUS(status) == ENDED_BADLY)
		_exit(ENDED_BADLY);
	if (WIFEXITED(status))
		n_errors++;
	else if (WTERMSIG(status) != SIGKILL)
		wrong("the second client has died of signal %d", WTERMSIG(status));
	if (at->said[0] == '!')
		n_errors++;
	at->said[0] = '\0';
	/* Freed by the second; if one of the two met errors, who knows: then it is left behind. */
	if (ref && (n_errors || slabc_deref(job->c, ref) == NULL))
		job->n--;
}

static void
adopt(struct job *job)
{
	static const struct timespec pause = {.tv_nsec = 1000000};
	slabc_ref ref = 0;
	unsigned n = 0;

	/* Slabd hears of its death a moment later. */
	for (int i = 0; job->k && n_errors == 0 && i < 100 && slabc_next_orphan(job->k, 0) == 0; i++)
		nanosleep(&pause, NULL);
	while (job->k && n++ < 2 * N_THEIRS) {
		errno = 0;
		ref = slabc_next_orphan(job->k, ref);
		if (!well("slabc_next_orphan", ref ? 0 : errno, NULL) || !ref)
			return;
		if (n % 2) {
			well("slabc_free_ref", -slabc_free_ref(job->c, ref), orphan_errors);
		} else {
			errno = 0;
			uint64_t *p = slabc_adopt_orphan(job->c, ref);

			if (well("slabc_adopt_orphan", p ? 0 : errno, orphan_errors))
				slabc_free(job->k, p);
		}
	}
}

static int
work(void)
{
	static struct job job;
	struct slabc_stats stats = SLABC_STATS_INIT;

	if (!begin(&job, "first"))
		return ENDED_SHORT;
	fill(&job, N_OBJECTS);
	empty(&job, N_OBJECTS / 3);
	fill(&job, N_OBJECTS / 2);
	others(&job);
	sized(&job);
	with_second(&job);
	adopt(&job);
	empty(&job, 10);
	if (job.k)
		well("slabc_cache_shrink", -slabc_cache_shrink(job.k), NULL);
	well("slabc_get_stats", -slabc_get_stats(job.c, &stats), NULL);
	/* Where nothing fails: a free that was put off counts as held, and is no error. */
	if (timeout_ms >= PATIENT_MS && n_errors == 0 && stats.bytes_held != (uint64_t)job.n * OBJECT_BYTES)
		wrong("it holds %llu bytes, and slabd says %llu", (unsigned long long)job.n * OBJECT_BYTES, (unsigned long long)stats.bytes_held);
	empty(&job, 0);
	slabc_cache_close(job.k);
	slabc_cache_close(job.r);
	slabc_close(job.c);
	return n_errors ? ENDED_SHORT : ENDED_WELL;
}

int
main(int argc, char **argv)
{
	const char *path = getenv("FAIL_AT_FILE");
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	int status;

	if (argc != 3 || fd < 0)
		return ENDED_BADLY;
	at = mmap(NULL, sizeof *at, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		return ENDED_BADLY;
	close(fd);
	socket_path = argv[1];
	timeout_ms = atoi(argv[2]);
	/* Its own start was no part of it. */
	memset(at->n_calls, 0, sizeof at->n_calls);
	__atomic_store_n(&at->call, at->call ? at->call : at->of_worker, __ATOMIC_SEQ_CST);
	status = work();
	if (at->of_worker)
		fail_none(at);
	return status;
}
