/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that spoil what they share with slabd and with others (design.md, I8): slots given back at any instant, words that name who does
 * not hold the object, pages that cannot be let go.  Nobody waits long, nothing is lost or doubled, no call goes on for ever.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "shm/word.h"
#include "tests/harness.h"

CU_pSuite it_spoil_suite(void);

/* Slots given back again and again */

struct hammer {
	struct raw raw;
	uint32_t cache;
	bool is_over; /* atomic */
};

enum { N_HAMMERED = 16, HAMMER_MS = 1000 };

/* Each slot's holder word says that it comes back, and each list names one, for ever. */
static void *
hammer_slots(void *arg)
{
	struct hammer *hammer = arg;
	struct layout_session_cache *lists =
		(struct layout_session_cache *)(void *)(hammer->raw.session + LAYOUT_SESSION_CACHES_OFF) + hammer->cache;

	for (uint32_t i = 0; !atomic_read(&hammer->is_over); i++) {
		uint32_t slot = i % N_HAMMERED;
		uint64_t head = (uint64_t)1 << 16 | (slot + 1);

		atomic_write(&hammer->raw.slots[slot].next, slot + 1);
		atomic_write(&hammer->raw.slots[slot].holder, i / N_HAMMERED % 2 ? LAYOUT_HOLDER_RETURNED : LAYOUT_HOLDER_BARN);
		atomic_write(&lists->returned, head);
		atomic_write(&lists->full, head);
		atomic_write(&lists->empty, head);
	}
	return NULL;
}

static void
be_hammer(struct peer *me, void *arg)
{
	struct harness *h = arg;
	struct hammer hammer = {.cache = 0};
	int64_t until = harness_now_ns() + HAMMER_MS * INT64_C(1000000);
	union proto_reply reply;
	pthread_t thread;

	raw_attach(&hammer.raw, h->socket, "hammer");
	hammer.cache = raw_cache_open(&hammer.raw, "k", 256, 0);
	CHECK(pthread_create(&thread, NULL, hammer_slots, &hammer) == 0);
	peer_tell(me, 's');
	for (uint32_t i = 0; harness_now_ns() < until; i++) {
		/* More than slabd keeps free: so it looks at what comes back while it fills the sheaf. */
		union proto_request refill = {
			.refill = {.cache = hammer.cache, .n_sheaves = 1 + i % 3, .capacity = i % 4 ? 900 + i % 100 : 0}};
		union proto_request flush = {.flush = {.cache = hammer.cache, .n_sheaves = 1}};
		int r = raw_call(hammer.raw.fd, PROTO_OP_REFILL, &refill, &reply, NULL);

		CHECK(r == PROTO_STATUS_OK || r == PROTO_STATUS_QUOTA || r == PROTO_STATUS_NO_MEMORY);
		CHECK(raw_call(hammer.raw.fd, PROTO_OP_FLUSH, &flush, &reply, NULL) == PROTO_STATUS_OK);
	}
	atomic_write(&hammer.is_over, true);
	pthread_join(thread, NULL);
	peer_tell(me, 'd');
	peer_await(me, 'e');
}

/*
 * A client whose slots all say, all the while, that they come back, and whose lists never end: each is taken as often as it was lent.  An
 * honest one works with the same cache meanwhile.
 */
static void
it_slots_given_back_at_any_instant(void)
{
	enum { N_WORK = 100 };
	CLEANUP(harness_free)
	struct harness *h = harness_slabd_config("[slabd]\nthreads = 2\n[arena]\npage-kind = 4k\nsize = 1G\nmax-faults = 0\n");
	struct slabc *c = harness_open(h, "honest");
	struct slabc_cache *k = harness_open_cache(c, "k", 256, 0);
	unsigned n_bad = 0, n_loops = 0, n_wrong = 0;
	struct proto_audit_reply audit;
	struct peer *peer;
	pid_t pid = harness_spawn(h, be_hammer, h);

	peer = harness_peer(h, pid);
	peer_await(peer, 's');
	for (struct pollfd p = {.fd = peer->in, .events = POLLIN}; poll(&p, 1, 0) == 0; n_loops++) {
		unsigned char *work[N_WORK];

		for (unsigned i = 0; i < N_WORK; i++) {
			REQUIRE((work[i] = slabc_alloc(k)) != NULL);
			memset(work[i], (int)i, 256);
		}
		for (unsigned i = 0; i < N_WORK; i++) {
			n_bad += work[i][0] != i || work[i][255] != i;
			errno = 0;
			slabc_free(k, work[i]);
			n_bad += errno != 0;
		}
		if (n_loops % 16 == 0) {
			audit = harness_audit(h);
			n_wrong += audit.n_lost != 0 || audit.n_doubled != 0;
		}
	}
	peer_await(peer, 'd');
	CHECK(n_bad == 0 && n_wrong == 0);
	audit = harness_audit(h);
	CHECK(audit.n_lost == 0 && audit.n_doubled == 0);
	CHECK(harness_client(h, pid).n_faults > 0);
	CHECK(harness_client_id(h, slabc_client_id(c)).n_faults == 0);
	harness_kill(h, pid, SIGKILL);
	harness_wait_reaped(h, pid);
	slabc_close(c);
	audit = harness_audit(h);
	CHECK(audit.n_out == 0 && audit.n_lost == 0 && audit.n_doubled == 0);
}

/* Words that name somebody */

/* Every word that names nobody names the raw client. */
static void
own_all_words(struct raw *raw, uint32_t n_words)
{
	for (uint32_t i = 0; i < n_words; i++)
		if (!(raw->words[i] & WORD_LOW_MASK))
			atomic_write(&raw->words[i], word_with(raw->words[i], raw->attach.client, WORD_OWNED));
}

/*
 * Every object that a client is lent has a word that names another: it drops them, a sheaf's worth a call, then says EIO, and does not take
 * the arena to its end.
 */
static void
it_words_that_somebody_owns(void)
{
	enum { N = 4000, N_WORDS = 64 * 1024 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=64M");
	struct slabc_cache_options options = SLABC_CACHE_OPTIONS_INIT;
	struct slabc *keeper = harness_open(h, "keeper"), *c = harness_open(h, "has been here");
	struct slabc_cache *k;
	uint64_t n_dropped = 0;
	void *pv[N];
	struct raw raw;

	options.min_partial = 1000;
	REQUIRE(slabc_cache_open(keeper, "k", 256, &options, &k) == 0);
	k = harness_open_cache(c, "k", 256, 0);
	REQUIRE(slabc_alloc_bulk(k, N, pv) == 0);
	slabc_free_bulk(k, N, pv);
	slabc_close(c);
	CHECK(harness_audit(h).n_out == 0 && harness_cache(h, "k").n_objects >= N);
	raw_attach(&raw, h->socket, "owns all");
	raw_cache_open(&raw, "k", 256, 0);
	own_all_words(&raw, N_WORDS);

	c = harness_open(h, "honest");
	k = harness_open_cache(c, "k", 256, 0);
	for (unsigned i = 1; i <= 4; i++) {
		errno = 0;
		if (i < 4)
			CHECK(slabc_alloc(k) == NULL && errno == EIO);
		else
			CHECK(slabc_alloc_bulk(k, 10, pv) == -EIO);
		CHECK(strstr(slabc_last_error(), "owned already") != NULL);
		/* A sheaf of 28 a call, and one too many. */
		n_dropped = harness_client_id(h, slabc_client_id(c)).n_dropped;
		CHECK(n_dropped == 29 * i);
	}
	slabc_close(c);
	raw_detach(&raw);
	slabc_close(keeper);
	CHECK(EVENTUALLY(harness_status(h).n_sessions == 0));
	CHECK(harness_audit(h).n_lost == 0);
}

/* Pages that cannot be let go */

enum { N_PINNING = 20 };

/* Sessions of which each leaves a page in a pipe: no process maps it, and the kernel, asked whether anybody could write it, waits. */
static void
pin_and_hang_up(struct peer *me, void *arg)
{
	struct harness *h = arg;

	peer_tell(me, 's');
	for (int i = 0; i < N_PINNING; i++) {
		struct iovec page;
		struct raw raw;
		int pipes[2];

		raw_attach(&raw, h->socket, "pins");
		CHECK(pipe2(pipes, O_CLOEXEC) == 0);
		page = (struct iovec){raw.session, LAYOUT_PAGE_BYTES};
		*(volatile char *)raw.session = *(volatile char *)raw.session;
		CHECK(vmsplice(pipes[1], &page, 1, 0) == LAYOUT_PAGE_BYTES);
		raw_detach(&raw);
	}
	peer_tell(me, 'd');
	peer_await(me, 'e');
}

/* Who makes slabd wait for the kernel does so once in a while, not with each session that hangs up: others are served. */
static void
it_pinned_pages_delay_nobody_twice(void)
{
	enum { SLOW_NS = 60000000 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --threads=1");
	int64_t longest = 0, start = harness_now_ns();
	unsigned n_slow = 0, n_asked = 0;
	pid_t pid = harness_spawn(h, pin_and_hang_up, h);
	struct peer *peer = harness_peer(h, pid);

	peer_await(peer, 's');
	for (struct pollfd p = {.fd = peer->in, .events = POLLIN}; poll(&p, 1, 0) == 0 || n_asked < 200; n_asked++) {
		int64_t before = harness_now_ns(), took;

		harness_status(h);
		took = harness_now_ns() - before;
		n_slow += took > SLOW_NS;
		longest = took > longest ? took : longest;
	}
	peer_await(peer, 'd');
	printf(" longest %.0f ms, %u slow of %u, all took %.0f ms ", (double)longest / 1e6, n_slow, n_asked,
		(double)(harness_now_ns() - start) / 1e6);
	CHECK(EVENTUALLY(harness_status(h).n_sessions == N_PINNING));
	CHECK(strcmp(harness_client(h, pid).state, "detached") == 0);
	/* Each time the kernel waits 0.15 s and more: so much for one, and not for twenty. */
	CHECK(n_slow > 0);
	CHECK(n_slow <= 3);
	CHECK(harness_now_ns() - start < INT64_C(1500000000));
	/* Their death needs no asking. */
	harness_kill(h, pid, SIGKILL);
	CHECK(EVENTUALLY(harness_status(h).n_sessions == 0));
	CHECK(harness_audit(h).n_lost == 0);
}

CU_pSuite
it_spoil_suite(void)
{
	CU_pSuite suite = harness_suite("spoil");

	CU_ADD_TEST(suite, it_slots_given_back_at_any_instant);
	CU_ADD_TEST(suite, it_words_that_somebody_owns);
	CU_ADD_TEST(suite, it_pinned_pages_delay_nobody_twice);
	return suite;
}
