/* SPDX-License-Identifier: Apache-2.0 */
/* The online audit (design.md, I7): it finds what was planted, and nothing where nothing is, also while everybody works. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/harness.h"

CU_pSuite it_audit_suite(void);

static int
slabctl_audit(struct harness *h, char *out, size_t size)
{
	char socket_argument[128], path[256];
	char *argv[] = {path, socket_argument, (char[]){"audit"}, NULL};

	snprintf(path, sizeof path, "%s", harness_path("SLABCTL"));
	snprintf(socket_argument, sizeof socket_argument, "--socket=%s", h->socket);
	return harness_run(argv, NULL, out, size);
}

/* An object that a client dropped from its sheaf without naming it is in no place: one is lost, and slabctl audit exits 1. */
static void
it_planted_loss_is_found(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct proto_audit_reply audit;
	struct sheaf *sheaf;
	char out[4096];
	struct raw raw;
	uint32_t place;

	raw_attach(&raw, h->socket, "loses one");
	sheaf = raw_sheaf(&raw, raw_prefill(&raw, raw_cache_open(&raw, "k", 64, 0), 10));
	audit = harness_audit(h);
	CHECK(audit.n_lost == 0 && audit.n_doubled == 0 && audit.n_undecided == 0);
	CHECK(audit.n_out == 10 && audit.n_in_sheaves == 10);
	CHECK(slabctl_audit(h, out, sizeof out) == 0);

	place = sheaf->entry[sheaf->size - 1];
	sheaf->size--;
	audit = harness_audit(h);
	CHECK(audit.n_lost == 1);
	CHECK(audit.n_doubled == 0 && audit.n_undecided == 0);
	CHECK(audit.n_in_sheaves == 9);
	CHECK(audit.first_lost == place + 1ull);
	CHECK(slabctl_audit(h, out, sizeof out) == 1);
	CHECK(strstr(out, "n_lost") != NULL);
	/* Put back, all is well. */
	sheaf->size++;
	CHECK(harness_audit(h).n_lost == 0);
	raw_detach(&raw);
	CHECK(EVENTUALLY(harness_audit(h).n_out == 0));
}

/* One entry written twice into a sheaf: that object is doubled, and the one it overwrote lost. */
static void
it_planted_double_is_found(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct proto_audit_reply audit;
	struct sheaf *sheaf;
	char out[4096];
	struct raw raw;

	raw_attach(&raw, h->socket, "doubles one");
	sheaf = raw_sheaf(&raw, raw_prefill(&raw, raw_cache_open(&raw, "k", 64, 0), 10));
	sheaf->entry[3] = sheaf->entry[7];
	audit = harness_audit(h);
	CHECK(audit.n_doubled == 1);
	CHECK(audit.n_lost == 1);
	CHECK(audit.first_doubled == sheaf->entry[7] + 1ull);
	CHECK(slabctl_audit(h, out, sizeof out) == 1);
	raw_detach(&raw);
	/* What comes back is taken once, the second time is a fault; what was lost is taken back when nobody has the cache open any more. */
	CHECK(EVENTUALLY(harness_status(h).n_sessions == 0));
	CHECK(EVENTUALLY(harness_status(h).n_repaired == 1));
	audit = harness_audit(h);
	CHECK(audit.n_doubled == 0 && audit.n_lost == 0 && audit.n_out == 0);
	CHECK(harness_log_count(h, "'doubles one'): a sheaf entry that is not its to give back") == 1);
}

/* An object in a sheaf though its word names another client. */
static void
it_entry_that_another_holds_is_doubled(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "holds it");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	struct sheaf *sheaf;
	struct raw raw;
	slabc_ref ref = slabc_ref_of(c, slabc_alloc(k));
	uint32_t kept;

	raw_attach(&raw, h->socket, "claims it");
	sheaf = raw_sheaf(&raw, raw_prefill(&raw, raw_cache_open(&raw, "k", 64, 0), 10));
	kept = sheaf->entry[9];
	sheaf->entry[9] = (uint32_t)ref;
	CHECK(harness_audit(h).n_doubled == 1);
	sheaf->entry[9] = kept;
	CHECK(harness_audit(h).n_doubled == 0);
	CHECK(slabc_valid(c, ref) == 1);
	raw_detach(&raw);
	slabc_close(c);
}

enum { N_WORKERS = 4, N_HAND = 64 };

struct ring_task {
	struct harness *h;
	int in, out;
	unsigned number;
};

/* Allocates and sends on; adopts or just frees what comes; until its pipe from the test ends. */
static void
pass_on(struct peer *me, void *arg)
{
	struct ring_task *task = arg;
	struct slabc *c = harness_open(task->h, "worker");
	struct slabc_cache *k[2] = {harness_open_cache(c, "plain", 64, 0), harness_open_cache(c, "reclaim", 256, SLABC_RECLAIM)};
	unsigned seed = task->number, n_freed = 0;
	char end;

	fcntl(task->in, F_SETFL, O_NONBLOCK);
	fcntl(task->out, F_SETFL, O_NONBLOCK);
	fcntl(me->in, F_SETFL, O_NONBLOCK);
	peer_tell(me, 'r');
	while (read(me->in, &end, 1) != 1) {
		slabc_ref refs[N_HAND];
		ssize_t n;

		for (int i = 0; i < N_HAND; i++) {
			void *p = slabc_alloc(k[i % 2]), *q = slabc_alloc(k[i % 2]);

			CHECK(p && q);
			slabc_free(k[i % 2], q);
			refs[i] = slabc_ref_of(c, p);
			CHECK(refs[i] != 0);
		}
		/* A write of so much to a pipe is whole or not at all. */
		if (write(task->out, refs, sizeof refs) != (ssize_t)sizeof refs)
			for (int i = 0; i < N_HAND; i++)
				CHECK(slabc_free_ref(c, refs[i]) == 0);
		n = read(task->in, refs, sizeof refs);
		CHECK(n == (ssize_t)sizeof refs || (n < 0 && errno == EAGAIN));
		for (int i = 0; n > 0 && i < N_HAND; i++) {
			if (rand_r(&seed) % 2)
				CHECK(slabc_adopt(c, refs[i]) != NULL);
			CHECK(slabc_free_ref(c, refs[i]) == 0);
			n_freed++;
		}
	}
	peer_put(me, &n_freed, sizeof n_freed);
	fcntl(me->in, F_SETFL, 0);
	peer_await(me, 'e');
}

/* The workers of the ring, until they are told to stop. */
struct ring {
	struct ring_task tasks[N_WORKERS];
	int pipes[N_WORKERS][2];
	pid_t pids[N_WORKERS];
};

static void
ring_start(struct ring *ring, struct harness *h)
{
	for (int i = 0; i < N_WORKERS; i++)
		REQUIRE(pipe2(ring->pipes[i], O_CLOEXEC) == 0);
	for (unsigned i = 0; i < N_WORKERS; i++) {
		ring->tasks[i] = (struct ring_task){h, ring->pipes[i][0], ring->pipes[(i + 1) % N_WORKERS][1], i};
		ring->pids[i] = harness_spawn(h, pass_on, &ring->tasks[i]);
	}
	for (int i = 0; i < N_WORKERS; i++)
		peer_await(harness_peer(h, ring->pids[i]), 'r');
}

/* Returns how many objects they have passed on. */
static unsigned
ring_stop(struct ring *ring, struct harness *h)
{
	unsigned n_all = 0;

	for (int i = 0; i < N_WORKERS; i++)
		peer_tell(harness_peer(h, ring->pids[i]), 's');
	for (int i = 0; i < N_WORKERS; i++) {
		unsigned n_freed;

		peer_get(harness_peer(h, ring->pids[i]), &n_freed, sizeof n_freed);
		n_all += n_freed;
	}
	return n_all;
}

static void
ring_end(struct ring *ring, struct harness *h)
{
	for (int i = 0; i < N_WORKERS; i++) {
		peer_tell(harness_peer(h, ring->pids[i]), 'e');
		harness_join(h, ring->pids[i]);
		harness_wait_reaped(h, ring->pids[i]);
		close(ring->pipes[i][0]);
		close(ring->pipes[i][1]);
	}
}

static struct proto_audit_reply
repair(struct harness *h)
{
	union proto_request request = {.audit = {.repair = 1}};
	union proto_reply reply;

	CHECK(harness_ask(h, PROTO_OP_AUDIT, &request, &reply) == PROTO_STATUS_OK);
	return reply.audit;
}

/* Four processes allocate, pass and free for three seconds: every audit meanwhile, and every second one would take it back, finds nothing lost, nothing doubled; and at rest nothing
 * undecided. */
static void
it_live_audit_finds_nothing(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --threads=2");
	unsigned n_audits = 0, n_undecided = 0, n_lost = 0, n_doubled = 0;
	struct proto_audit_reply audit;
	struct ring ring;
	int64_t until;

	ring_start(&ring, h);
	until = harness_now_ns() + 3000000000;
	while (harness_now_ns() < until || (n_audits < 100 && harness_now_ns() < until + 20000000000)) {
		audit = n_audits % 2 ? repair(h) : harness_audit(h);
		n_lost += audit.n_lost != 0 || audit.n_repaired != 0;
		n_doubled += audit.n_doubled != 0;
		n_undecided += audit.n_undecided != 0;
		n_audits++;
		harness_pause(); /* audits without a gap would keep the refills from the lists */
	}
	printf(" %u audits, %u of them with undecided objects ", n_audits, n_undecided);
	CHECK(n_audits >= 100);
	CHECK(n_lost == 0);
	CHECK(n_doubled == 0);
	CHECK(ring_stop(&ring, h) > 10000);
	audit = harness_audit(h);
	CHECK(audit.n_lost == 0 && audit.n_doubled == 0 && audit.n_undecided == 0);
	ring_end(&ring, h);
	audit = harness_audit(h);
	CHECK(audit.n_lost == 0 && audit.n_doubled == 0 && audit.n_undecided == 0);
	CHECK(harness_audit_cache(h, "reclaim").n_out == 0);
	CHECK(harness_status(h).n_faults == 0);
}

/*
 * What is wrong is found while all the others work too: one object lost, one doubled, of the very cache.  An audit may be undecided about
 * it when it was held up; it never says more than there is, and many say it.
 */
static void
it_planted_faults_are_found_under_load(void)
{
	enum { N_AUDITS = 100 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --threads=2");
	unsigned n_found = 0, n_wrong = 0, n_undecided = 0;
	struct sheaf *sheaf;
	struct ring ring;
	struct raw raw;
	uint32_t lost;

	raw_attach(&raw, h->socket, "loses and doubles one");
	sheaf = raw_sheaf(&raw, raw_prefill(&raw, raw_cache_open(&raw, "plain", 64, 0), 10));
	lost = sheaf->entry[3];
	sheaf->entry[3] = sheaf->entry[7];
	ring_start(&ring, h);
	for (unsigned i = 0; i < N_AUDITS; i++) {
		struct proto_audit_reply audit = harness_audit(h);

		n_found += audit.n_lost == 1 && audit.n_doubled == 1 && audit.first_lost == lost + 1ull &&
			   audit.first_doubled == sheaf->entry[7] + 1ull;
		n_wrong += audit.n_lost > 1 || audit.n_doubled > 1;
		n_undecided += audit.n_undecided != 0;
		harness_pause();
	}
	printf(" %u of %d audits found both, %u had undecided objects ", n_found, N_AUDITS, n_undecided);
	CHECK(n_wrong == 0);
	CHECK(n_found >= N_AUDITS / 10);
	CHECK(ring_stop(&ring, h) > 0);
	sheaf->entry[3] = lost;
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	ring_end(&ring, h);
	raw_detach(&raw);
	CHECK(EVENTUALLY(harness_status(h).n_sessions == 0));
	CHECK(harness_audit(h).n_lost == 0);
}

/* A mapping of a data segment's descriptor, as every client has one. */
static volatile char *
map_data(const struct raw *raw, uint64_t bytes)
{
	void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, raw->fds[3], 0);

	REQUIRE(map != MAP_FAILED);
	return map;
}

/* Pages that a client punches out, or makes by touching holes, behind slabd: also both at once, as many, which no sum of blocks shows. */
static void
it_pages_punched_or_touched_are_found(void)
{
	enum { N_BYTES = 8 << 20 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct proto_audit_reply audit;
	volatile char *data;
	char out[4096];
	struct raw raw;
	uint32_t place;

	raw_attach(&raw, h->socket, "punches and touches");
	place = raw_sheaf(&raw, raw_prefill(&raw, raw_cache_open(&raw, "k", 4096, 0), 1))->entry[0];
	data = map_data(&raw, N_BYTES);
	data[(uint64_t)place << LAYOUT_PLACE_SHIFT] = 1;
	audit = harness_audit(h);
	CHECK(audit.bytes_missing == 0 && audit.bytes_extra == 0);

	/* Reading a hole is enough. */
	CHECK(data[N_BYTES - 4096] == 0);
	CHECK(data[N_BYTES - 8192 * 4] == 0);
	audit = harness_audit(h);
	CHECK(audit.bytes_missing == 0 && audit.bytes_extra == 2 * 4096);
	CHECK(harness_log_count(h, "8192 bytes of 4 KiB pages on node 0 that slabd had not committed were given back") == 1);
	CHECK(slabctl_audit(h, out, sizeof out) == 0);
	CHECK(harness_audit(h).bytes_extra == 0);
	CHECK(data[(uint64_t)place << LAYOUT_PLACE_SHIFT] == 1);

	REQUIRE(fallocate(raw.fds[3], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)place << LAYOUT_PLACE_SHIFT, 4096) == 0);
	data[N_BYTES - 4096] = 1;
	audit = harness_audit(h);
	CHECK(audit.bytes_missing == 4096 && audit.bytes_extra == 4096);
	CHECK(slabctl_audit(h, out, sizeof out) == 1);
	CHECK(strstr(out, "bytes_missing") != NULL);
	CHECK(harness_audit_cache(h, "k").bytes_missing == 0);
	/* Said once, as long as it stays so. */
	CHECK(harness_log_count(h, "4096 bytes of 4 KiB pages on node 0 are missing: a process of the arena has punched them out") == 1);
	/* Whoever touches it makes it anew, empty. */
	CHECK(data[(uint64_t)place << LAYOUT_PLACE_SHIFT] == 0);
	audit = harness_audit(h);
	CHECK(audit.bytes_missing == 0 && audit.bytes_extra == 0);
	munmap((void *)(uintptr_t)data, N_BYTES);
	raw_detach(&raw);
}

/* The same with 2 MiB pages, whose blocks the system counts by the page. */
static void
it_huge_pages_punched_or_touched_are_found(void)
{
	enum { HUGE = 2 << 20, N_BYTES = 4 * HUGE };
	struct proto_audit_reply audit;
	volatile char *data;
	struct raw raw;
	uint32_t place;

	if (!hugepages_take(4))
		return;
	{
		CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=huge");

		raw_attach(&raw, h->socket, "punches and touches");
		place = raw_sheaf(&raw, raw_prefill(&raw, raw_cache_open(&raw, "k", 4096, 0), 1))->entry[0];
		data = mmap(NULL, N_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, raw.fds[3], 0);
		REQUIRE(data != MAP_FAILED);
		audit = harness_audit(h);
		CHECK(audit.bytes_missing == 0 && audit.bytes_extra == 0);
		data[N_BYTES - 4096] = 1;
		CHECK(fallocate(raw.fds[3], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, ((off_t)place << LAYOUT_PLACE_SHIFT) / HUGE * HUGE, HUGE) == 0);
		audit = harness_audit(h);
		CHECK(audit.bytes_missing == HUGE && audit.bytes_extra == HUGE);
		audit = harness_audit(h);
		CHECK(audit.bytes_missing == HUGE && audit.bytes_extra == 0);
		munmap((void *)(uintptr_t)data, N_BYTES);
		raw_detach(&raw);
	}
	hugepages_put_back();
}

/* However many objects are lost, each is found: half a million of them, among as many that are not. */
static void
it_mass_loss_is_found(void)
{
	enum { N_SHEAVES = 500, N_EACH = 1000 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct proto_audit_reply audit;
	struct sheaf *lost[N_SHEAVES];
	struct raw raw;
	uint32_t cache;

	raw_attach(&raw, h->socket, "loses half a million");
	cache = raw_cache_open(&raw, "k", 64, 0);
	for (int i = 0; i < N_SHEAVES; i++) {
		lost[i] = raw_sheaf(&raw, raw_prefill(&raw, cache, N_EACH));
		raw_prefill(&raw, cache, N_EACH);
	}
	for (int i = 0; i < N_SHEAVES; i++)
		lost[i]->size = 0;
	audit = harness_audit(h);
	CHECK(audit.n_lost + audit.n_undecided == N_SHEAVES * N_EACH);
	CHECK(audit.n_in_sheaves == N_SHEAVES * N_EACH && audit.n_doubled == 0);
	/* On a machine that does other things some windows are too long. */
	CHECK(EVENTUALLY((audit = harness_audit(h)).n_undecided == 0));
	CHECK(audit.n_lost == N_SHEAVES * N_EACH);
	for (int i = 0; i < N_SHEAVES; i++)
		lost[i]->size = N_EACH;
	audit = harness_audit(h);
	CHECK(audit.n_lost == 0 && audit.n_doubled == 0 && audit.n_in_sheaves == 2 * N_SHEAVES * N_EACH);
	raw_detach(&raw);
}

CU_pSuite
it_audit_suite(void)
{
	CU_pSuite suite = harness_suite("audit");

	CU_ADD_TEST(suite, it_planted_loss_is_found);
	CU_ADD_TEST(suite, it_planted_double_is_found);
	CU_ADD_TEST(suite, it_entry_that_another_holds_is_doubled);
	CU_ADD_TEST(suite, it_pages_punched_or_touched_are_found);
	CU_ADD_TEST(suite, it_huge_pages_punched_or_touched_are_found);
	CU_ADD_TEST(suite, it_mass_loss_is_found);
	CU_ADD_TEST(suite, it_live_audit_finds_nothing);
	CU_ADD_TEST(suite, it_planted_faults_are_found_under_load);
	return suite;
}
