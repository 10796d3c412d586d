/* SPDX-License-Identifier: Apache-2.0 */
/*
 * References through a ring in a memfd: one producer, one consumer, futexes, and a producer that dies.
 *
 * A reference is a plain 64-bit word, so the ring is an array; head's release makes the object's contents visible with its reference.  A
 * futex cannot be polled beside a pidfd, and nobody wakes the consumer for the dead: so it sleeps for at most RING_NAP_MS, then asks the
 * pidfd.  The nap is no verdict: a slow producer is alive.  What the dead one put in is still there, and adopted; what it had not yet put
 * in is an orphan.
 */
#define _GNU_SOURCE 1
#include <slabclient.h>

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RING_SLOTS = 64, RING_MESSAGES = 1000, RING_NAP_MS = 50, RING_ALARM_S = 10 };

struct ring {
	uint32_t head; /* put in so far; only the producer writes it */
	uint32_t tail; /* taken out so far; only the consumer does */
	slabc_ref slot[RING_SLOTS];
};

static _Noreturn void
ring_fail(const char *what, int error)
{
	fprintf(stderr, "ring: %s: %s (%s)\n", what, strerror(error), slabc_last_error());
	exit(EXIT_FAILURE);
}

static struct slabc *
ring_open(struct slabc_cache **kp)
{
	struct slabc *c;
	int r = slabc_open(&c, NULL);

	if (r < 0 || (r = slabc_cache_open(c, "ring.number", sizeof(uint64_t), NULL, kp)) < 0)
		ring_fail("open", -r);
	return c;
}

/* One more at one's own end, and the other side woken. */
static void
ring_advance(uint32_t *end)
{
	__atomic_store_n(end, *end + 1, __ATOMIC_RELEASE);
	syscall(SYS_futex, end, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* Sleeps while the other side's end is as it was seen, but not for long. */
static void
ring_nap(uint32_t *end, uint32_t seen)
{
	struct timespec nap = {0, RING_NAP_MS * 1000000L};

	syscall(SYS_futex, end, FUTEX_WAIT, seen, &nap, NULL, 0);
}

static _Noreturn void
producer_main(struct ring *ring, pid_t consumer)
{
	struct slabc_cache *cache;
	struct slabc *c;
	uint32_t tail;

	alarm(RING_ALARM_S);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != consumer)
		ring_fail("the consumer has ended", ESRCH);
	c = ring_open(&cache);
	for (uint64_t i = 0;; i++) {
		uint64_t *number = slabc_alloc(cache);

		if (!number)
			ring_fail("slabc_alloc", errno);
		*number = i;
		if (i == RING_MESSAGES)
			raise(SIGKILL); /* with one made and not put in */
		while (ring->head - (tail = __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE)) == RING_SLOTS)
			ring_nap(&ring->tail, tail);
		ring->slot[ring->head % RING_SLOTS] = slabc_ref_of(c, number);
		ring_advance(&ring->head);
	}
}

/* The next reference; 0: there is none, and the producer is dead. */
static slabc_ref
consumer_next(struct ring *ring, int pidfd)
{
	for (bool is_dead = false;;) {
		uint32_t head = __atomic_load_n(&ring->head, __ATOMIC_ACQUIRE);
		struct pollfd p = {pidfd, POLLIN, 0};

		if (head != ring->tail)
			return ring->slot[ring->tail % RING_SLOTS];
		if (is_dead) /* known before head was looked at: it was the last one */
			return 0;
		is_dead = poll(&p, 1, 0) == 1;
		if (!is_dead)
			ring_nap(&ring->head, head);
	}
}

static void
consumer_take(struct slabc_cache *cache, uint64_t *number, uint64_t expected)
{
	if (!number || *number != expected)
		ring_fail("not the number that was due", number ? EBADMSG : errno);
	errno = 0;
	slabc_free(cache, number);
	if (errno != 0)
		ring_fail("slabc_free", errno);
}

int
main(void)
{
	int memfd = memfd_create("ring", MFD_CLOEXEC), pidfd;
	pid_t consumer = getpid(), producer;
	struct slabc_cache *cache;
	struct ring *ring;
	struct slabc *c;
	slabc_ref ref;
	uint64_t n = 0;

	alarm(RING_ALARM_S);
	if (memfd < 0 || ftruncate(memfd, sizeof(*ring)) < 0)
		ring_fail("memfd_create", errno);
	ring = mmap(NULL, sizeof(*ring), PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
	if (ring == MAP_FAILED || (producer = fork()) < 0)
		ring_fail("mmap, fork", errno);
	if (producer == 0)
		producer_main(ring, consumer);
	pidfd = (int)syscall(SYS_pidfd_open, producer, 0);
	if (pidfd < 0)
		ring_fail("pidfd_open", errno);
	c = ring_open(&cache);
	for (; (ref = consumer_next(ring, pidfd)) != 0; ring_advance(&ring->tail))
		consumer_take(cache, slabc_adopt(c, ref), n++);
	if (n != RING_MESSAGES)
		ring_fail("references are missing", ENODATA);
	/* slabd sees the death by a pidfd of its own, perhaps a moment later. */
	while ((ref = slabc_next_orphan(cache, 0)) == 0)
		usleep(1000);
	consumer_take(cache, slabc_adopt_orphan(c, ref), n);
	waitpid(producer, NULL, 0);
	printf("ring: %llu references went through, the producer was killed, its last object was found as an orphan\n",
		(unsigned long long)n);
	slabc_close(c);
	return EXIT_SUCCESS;
}
