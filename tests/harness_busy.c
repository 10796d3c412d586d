/* SPDX-License-Identifier: Apache-2.0 */
/* Clients that are busy while slabd is killed, again and again, and what must hold then. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>

#include "tests/harness.h"

enum { MAX_HELD = 600, OBJECT_BYTES = 256, MAX_TIMES = 1000 };

static struct busy_task {
	struct harness *h;
	unsigned number;
	unsigned timeout_s;
} busy_tasks[HARNESS_MAX_BUSY];

static int
is_told(const struct peer *me)
{
	fd_set set;
	struct timeval none = {0};

	FD_ZERO(&set);
	FD_SET(me->in, &set);
	return select(me->in + 1, &set, NULL, NULL, &none) == 1;
}

static uint32_t
draw(uint32_t *x)
{
	*x ^= *x << 13;
	*x ^= *x >> 17;
	return *x ^= *x << 5;
}

/* Allocates and frees, in ones and in bulk, prefills, runs, shares and publishes until it is told: each object is its own, and no call fails. */
static void
be_busy(struct peer *me, void *arg)
{
	const struct busy_task *task = arg;
	struct slabc *c = harness_open(task->h, "busy");
	struct slabc_cache *k = harness_open_cache(c, "busy", OBJECT_BYTES, 0), *other = harness_open_cache(c, "other", 64, 0);
	static uint32_t *held[MAX_HELD];
	uint32_t x = 77 + task->number * 1000003, n_turns = 0;
	void *bulk[64];
	char name[32];

	alarm(task->timeout_s);
	snprintf(name, sizeof name, "root%u", task->number);
	peer_tell(me, 'r');
	while (!is_told(me)) {
		uint32_t i = draw(&x) % MAX_HELD, what = draw(&x) % 2000;

		if (held[i]) {
			CHECK(held[i][0] == (task->number << 16 | i) && held[i][OBJECT_BYTES / 4 - 1] == held[i][0]);
			slabc_free(k, held[i]);
			held[i] = NULL;
		} else {
			held[i] = slabc_alloc(k);
			CHECK(held[i] != NULL);
			held[i][0] = held[i][OBJECT_BYTES / 4 - 1] = task->number << 16 | i;
		}
		if (what == 0 && held[i]) {
			slabc_ref ref = slabc_ref_of(c, held[i]), found = 0;

			CHECK(slabc_publish(c, name, ref, SLABC_REPLACE) == 0);
			CHECK(slabc_lookup(c, name, &found) == 0 && found == ref);
			CHECK(slabc_unpublish(c, name) == 0);
		} else if (what == 1) {
			struct slabc_sheaf *s = slabc_prefill(k, 40);
			void *p;

			CHECK(s != NULL);
			CHECK((p = slabc_alloc_from(k, s)) != NULL);
			slabc_return(k, s);
			slabc_free(k, p);
		} else if (what == 2) {
			void *p = slabc_malloc(c, 100000);

			CHECK(p != NULL);
			slabc_mfree(c, p);
		} else if (what < 40) {
			CHECK(slabc_alloc_bulk(other, 64, bulk) == 0);
			slabc_free_bulk(other, 64, bulk);
		} else if (what == 41) {
			CHECK(slabc_cache_shrink(k) == 0);
		}
		n_turns++;
	}
	peer_await(me, 's');
	peer_put(me, &n_turns, sizeof n_turns);
	for (uint32_t i = 0; i < MAX_HELD; i++)
		slabc_free(k, held[i]);
	slabc_cache_close(k);
	slabc_cache_close(other);
	slabc_close(c);
	peer_await(me, 'e');
}

void
harness_start_busy(struct harness *h, unsigned timeout_s, unsigned n, pid_t *pids)
{
	REQUIRE(n <= HARNESS_MAX_BUSY);
	for (unsigned i = 0; i < n; i++) {
		busy_tasks[i] = (struct busy_task){h, i, timeout_s};
		pids[i] = harness_spawn(h, be_busy, &busy_tasks[i]);
	}
	for (unsigned i = 0; i < n; i++)
		peer_await(harness_peer(h, pids[i]), 'r');
}

void
harness_stop_busy(struct harness *h, unsigned n, const pid_t *pids)
{
	uint32_t n_turns;

	for (unsigned i = 0; i < n; i++)
		peer_tell(harness_peer(h, pids[i]), 's');
	for (unsigned i = 0; i < n; i++) {
		peer_get(harness_peer(h, pids[i]), &n_turns, sizeof n_turns);
		CHECK(n_turns > 0);
	}
	for (unsigned i = 0; i < n; i++)
		peer_tell(harness_peer(h, pids[i]), 'e');
	for (unsigned i = 0; i < n; i++)
		harness_join(h, pids[i]);
}

void
harness_check_audit(struct harness *h)
{
	struct proto_audit_reply audit = harness_audit(h);

	CHECK(audit.n_lost == 0);
	CHECK(audit.n_doubled == 0);
	CHECK(audit.n_undecided == 0);
}

bool
harness_has_committed_right(struct harness *h)
{
	struct proto_status_reply status = harness_status(h);

	return status.committed_bytes == status.bytes_4k;
}

void
harness_check_at_rest(struct harness *h)
{
	CHECK(EVENTUALLY(harness_status(h).n_sessions == 0));
	harness_check_audit(h);
	CHECK(harness_audit(h).n_out == 0 && harness_audit(h).n_barn == 0);
	CHECK(EVENTUALLY(harness_count_kept(h) == 0));
	CHECK(EVENTUALLY(harness_has_committed_right(h)));
}

static int
by_size(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

/* What slabd says that its adoptions took; how many. */
static unsigned
read_adoptions(const struct harness *h, int64_t *ns)
{
	FILE *log = fopen(h->log, "re");
	char line[512];
	unsigned n = 0;

	while (log && n < MAX_TIMES && fgets(line, sizeof line, log)) {
		const char *at = strstr(line, "adopted from slabd") ? strstr(line, "way, in ") : NULL;
		long long us;

		if (at && sscanf(at, "way, in %lld us", &us) == 1)
			ns[n++] = us * 1000;
	}
	if (log)
		fclose(log);
	return n;
}

static void
print_times(const char *what, int64_t *ns, unsigned n)
{
	qsort(ns, n, sizeof *ns, by_size);
	if (n > 0)
		printf("%s median %.1f ms, longest %.1f ms", what, (double)ns[n / 2] / 1e6, (double)ns[n - 1] / 1e6);
}

int64_t
harness_print_times(const struct harness *h, int64_t *ns, unsigned n)
{
	static int64_t adoptions[MAX_TIMES];

	printf(" %u kills", n);
	print_times(", from SIGKILL to serving:", ns, n);
	print_times("; of it adopting:", adoptions, read_adoptions(h, adoptions));
	printf(" ");
	return ns[n / 2];
}

int64_t
harness_time_kill(struct harness *h)
{
	pid_t pid = (pid_t)harness_status(h).pid;
	int64_t start = harness_now_ns();

	REQUIRE(kill(pid, SIGKILL) == 0);
	harness_wait_kept(h, pid);
	return harness_now_ns() - start;
}

void
harness_storm(const struct storm *storm)
{
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, storm->arguments);
	static int64_t times[MAX_TIMES];
	pid_t pids[HARNESS_MAX_BUSY];
	unsigned seed = harness_seed();

	REQUIRE(storm->n_kills > 0 && storm->n_kills <= MAX_TIMES);
	alarm(storm->timeout_s);
	harness_start_busy(h, storm->timeout_s, storm->n_busy, pids);
	for (unsigned i = 0; i < storm->n_kills; i++) {
		int64_t until = harness_now_ns() + INT64_C(1000000) * (storm->least_ms + (unsigned)rand_r(&seed) % storm->more_ms);

		while (harness_now_ns() < until)
			harness_pause();
		times[i] = harness_time_kill(h);
		harness_check_audit(h);
	}
	harness_stop_busy(h, storm->n_busy, pids);
	harness_check_at_rest(h);
	harness_print_times(h, times, storm->n_kills);
}
