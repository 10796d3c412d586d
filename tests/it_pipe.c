/* SPDX-License-Identifier: Apache-2.0 */
/* Objects that go one way only: some processes allocate and never free, one frees what all of them made.  Memory does not grow beyond what lives. */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/harness.h"

CU_pSuite it_pipe_suite(void);

enum { N_PRODUCERS = 16, WINDOW = 4096, SIZE = 256 };

/* A ring of references from one producer to the consumer: all that is in it lives. */
struct ring {
	_Alignas(64) uint64_t n_put; /* W: producer (RING). R: consumer */
	_Alignas(64) uint64_t n_got; /* W: consumer (RING). R: producer */
	slabc_ref ref[WINDOW];
};

struct work {
	struct harness *h;
	struct ring *rings;
	uint64_t n_objects; /* of each producer */
};

struct producer {
	const struct work *work;
	struct ring *ring;
};

static void
produce(struct peer *me, void *arg)
{
	const struct producer *p = arg;
	struct slabc *c = harness_open(p->work->h, "producer");
	struct slabc_cache *k = harness_open_cache(c, "k", SIZE, SLABC_SHARED);

	(void)me;
	for (uint64_t n = 0; n < p->work->n_objects; n++) {
		uint64_t *object = slabc_alloc(k);

		REQUIRE(object != NULL);
		*object = n;
		/* order: RING acquire - pairs with consume(): the place has been read */
		while (n - atomic_read_acquire(&p->ring->n_got) >= WINDOW)
			sched_yield();
		p->ring->ref[n % WINDOW] = slabc_ref_of(c, object);
		/* order: RING release - the reference, and what it stands for */
		atomic_write_release(&p->ring->n_put, n + 1);
	}
	slabc_close(c);
}

/* Frees the oldest once a ring is full, so that WINDOW objects of each live all the time; in the end all. */
static void
consume(struct slabc *c, struct slabc_cache *k, struct ring *ring, uint64_t n_objects)
{
	/* order: RING acquire - pairs with produce() */
	uint64_t n_put = atomic_read_acquire(&ring->n_put), n = ring->n_got;

	while (n < n_put && (n_put - n == WINDOW || n_put == n_objects)) {
		uint64_t *object = slabc_deref(c, ring->ref[n % WINDOW]);

		REQUIRE(object != NULL && *object == n);
		slabc_free(k, object);
		n++;
	}
	/* order: RING release - the places have been read */
	atomic_write_release(&ring->n_got, n);
}

/* Bytes of memory that the arena takes: carved pages, and slabd's own. */
static uint64_t
taken_bytes(struct harness *h)
{
	struct proto_status_reply s = harness_status(h);

	return harness_cache(h, "k").n_pages * 4096 + s.words_bytes + s.map_bytes + s.ledger_bytes + s.session_bytes;
}

static void
run_pipe(unsigned n_producers, uint64_t n_objects, double most)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "consumer");
	struct slabc_cache *k = harness_open_cache(c, "k", SIZE, SLABC_SHARED);
	struct ring *rings = mmap(NULL, sizeof *rings * n_producers, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct work work = {h, rings, n_objects};
	uint64_t live = (uint64_t)n_producers * WINDOW * SIZE, taken = 0, n_done = 0;
	struct producer producers[N_PRODUCERS];
	pid_t pids[N_PRODUCERS];

	REQUIRE(rings != MAP_FAILED);
	for (unsigned i = 0; i < n_producers; i++) {
		producers[i] = (struct producer){&work, &rings[i]};
		pids[i] = harness_spawn(h, produce, &producers[i]);
	}
	while (n_done < n_objects * n_producers) {
		n_done = 0;
		for (unsigned i = 0; i < n_producers; i++) {
			consume(c, k, &rings[i], n_objects);
			n_done += rings[i].n_got;
		}
		/* While all are in the midst of it. */
		if (n_done > n_objects * n_producers / 2 && taken == 0)
			taken = taken_bytes(h);
		sched_yield();
	}
	for (unsigned i = 0; i < n_producers; i++)
		harness_join(h, pids[i]);
	printf(" taken %.3f of live ", (double)taken / (double)live);
	CHECK((double)taken <= most * (double)live);
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	CHECK(slabc_cache_shrink(k) == 0);
	CHECK(EVENTUALLY(harness_audit(h).n_out == 0));
	slabc_close(c);
	munmap(rings, sizeof *rings * n_producers);
}

/* However long it goes on, memory follows what lives: a twentieth part idle beside each client's few sheaves, and the sessions. */
static void
it_one_frees_what_sixteen_make(void)
{
	run_pipe(N_PRODUCERS, 40000, 1.2);
}

/* Few objects on their way between two: some MiB are idle for the sake of speed, and no more than that. */
static void
it_one_frees_what_another_makes(void)
{
	run_pipe(1, 300000, 6.0);
}

CU_pSuite
it_pipe_suite(void)
{
	CU_pSuite suite = harness_suite("pipe");

	CU_ADD_TEST(suite, it_one_frees_what_another_makes);
	CU_ADD_TEST(suite, it_one_frees_what_sixteen_make);
	return suite;
}
