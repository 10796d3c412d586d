/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two ends of a pipe, once for each peer: no guard, included after
 *
 *   PIPE_SEND(p, q)     the object q as 64 bits for the other side
 *   PIPE_RECEIVE(p, x)  the object there; NULL: gone
 *   PIPE_ALLOC(p), PIPE_FREE(p, q)
 *
 * Head and tail move by BENCH_PUBLISH; each side keeps what it last saw of the other's.  The clock is read seldom, but also while a side
 * waits, so a partner that has died ends the wait.  A phase ends when the producer says so and the ring is empty: the consumer's time is
 * the pipe's.
 */

enum { PIPE_YIELD_EVERY = 256, PIPE_CLOCK_EVERY = 32, PIPE_GONE_S = 20 };

/* true: it has yielded, for slabd needs a CPU too, and both are ours. */
static inline bool
pipe_relax(unsigned *n_spinsp)
{
	if (++*n_spinsp % PIPE_YIELD_EVERY != 0) {
		bench_pause();
		return false;
	}
	sched_yield();
	return true;
}

/* Sleepless until the ring has room for a batch; false: not before the end of the phase. */
static bool
pipe_wait_room(const struct bench_ring *r, uint64_t head, uint64_t *roomp, uint64_t until_ns)
{
	unsigned n_spins = 0;

	while (*roomp - head < BENCH_PUBLISH) {
		/* order: RING_TAIL acquire - pairs with pipe_consume(): the slots were read */
		*roomp = __atomic_load_n(&r->tail, __ATOMIC_ACQUIRE) + BENCH_RING;
		if (*roomp - head < BENCH_PUBLISH && pipe_relax(&n_spins) && bench_now_ns() >= until_ns)
			return false;
	}
	return true;
}

static uint64_t
pipe_produce(struct peer *p, struct bench_state *s, uint64_t until_ns)
{
	struct bench_ring *r = s->ring;
	uint64_t head = r->head, first = head, room = head;
	unsigned n_batches = 0;

	(void)p;
	while (pipe_wait_room(r, head, &room, until_ns)) {
		for (unsigned i = 0; i < BENCH_PUBLISH; i++) {
			uint64_t *q = (uint64_t *)PIPE_ALLOC(p);

			*(volatile uint64_t *)q = s->sequence++;
			r->slot[head++ % BENCH_RING] = PIPE_SEND(p, q);
		}
		/* order: RING_HEAD release - objects and slots are written before head covers them */
		__atomic_store_n(&r->head, head, __ATOMIC_RELEASE);
		if (++n_batches % PIPE_CLOCK_EVERY == 0 && bench_now_ns() >= until_ns)
			break;
	}
	/* order: RING_CLOSED release - the last head is visible before the end of the phase */
	__atomic_store_n(&r->n_closed, ++s->n_phases, __ATOMIC_RELEASE);
	return head - first;
}

static uint64_t
pipe_consume(struct peer *p, struct bench_state *s, uint64_t until_ns)
{
	struct bench_ring *r = s->ring;
	uint64_t tail = r->tail, first = tail;
	unsigned n_spins = 0;

	(void)p;
	s->n_phases++;
	for (;;) {
		/* order: RING_CLOSED acquire - pairs with pipe_produce(): head, read next, is the phase's last if this is set */
		bool is_closed = __atomic_load_n(&r->n_closed, __ATOMIC_ACQUIRE) >= s->n_phases;
		/* order: RING_HEAD acquire - pairs with pipe_produce() */
		uint64_t head = __atomic_load_n(&r->head, __ATOMIC_ACQUIRE);

		if (head == tail && is_closed)
			return tail - first;
		if (head == tail) {
			if (pipe_relax(&n_spins) && bench_now_ns() > until_ns + PIPE_GONE_S * BENCH_SECOND_NS)
				bench_die("the producer is gone", ETIMEDOUT);
			continue;
		}
		for (unsigned i = 0; i < BENCH_PUBLISH && tail != head; i++) {
			volatile uint64_t *q = (volatile uint64_t *)PIPE_RECEIVE(p, r->slot[tail++ % BENCH_RING]);

			if (!q || *q != s->sequence)
				bench_die("an object of the pipe is gone, or another one", q ? EBADMSG : errno);
			s->sequence++;
			PIPE_FREE(p, (uint64_t *)(uintptr_t)q);
		}
		/* order: RING_TAIL release - slots are read before they may be written again */
		__atomic_store_n(&r->tail, tail, __ATOMIC_RELEASE);
	}
}

static uint64_t
pipe_until(struct peer *p, struct bench_state *s, uint64_t until_ns)
{
	return s->is_producer ? pipe_produce(p, s, until_ns) : pipe_consume(p, s, until_ns);
}
