/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of the things of a client that dies: idle objects, held ones, those it was freeing, its name (design.md, section 5). */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/word.h"
#include "tests/harness.h"

CU_pSuite it_death_suite(void);

struct holder_task {
	struct harness *h;
	unsigned n_reclaim, n_kept, n_idle;
	bool sends_refs;
};

/* Holds objects of a SLABC_RECLAIM cache and of a plain one, has idle ones of both, and says so. */
static void
hold(struct peer *me, void *arg)
{
	struct holder_task *task = arg;
	struct slabc *c = harness_open(task->h, "holder");
	struct slabc_cache *reclaim = harness_open_cache(c, "reclaim", 64, SLABC_RECLAIM), *kept = harness_open_cache(c, "kept", 64, 0);
	void **idle = calloc(2 * task->n_idle + 1, sizeof *idle);

	if (task->n_idle) {
		CHECK(slabc_alloc_bulk(reclaim, task->n_idle, idle) == 0);
		CHECK(slabc_alloc_bulk(kept, task->n_idle, idle + task->n_idle) == 0);
	}
	for (unsigned i = 0; i < task->n_reclaim; i++) {
		void *p = slabc_alloc(reclaim);

		CHECK(p != NULL);
		memset(p, 0xee, 64);
	}
	for (unsigned i = 0; i < task->n_kept; i++) {
		unsigned *p = slabc_alloc(kept);
		slabc_ref ref;

		CHECK(p != NULL);
		for (int j = 0; j < 16; j++)
			p[j] = i;
		if (!task->sends_refs)
			continue;
		ref = slabc_ref_of(c, p);
		peer_put(me, &ref, sizeof ref);
	}
	if (task->n_idle) {
		slabc_free_bulk(reclaim, task->n_idle, idle);
		slabc_free_bulk(kept, task->n_idle, idle + task->n_idle);
	}
	peer_tell(me, 'h');
	peer_await(me, 'g');
	for (int i = 0; i < 1000; i++)
		slabc_free(reclaim, slabc_alloc(reclaim));
	peer_tell(me, 'd');
	peer_await(me, 'e');
}

/*
 * A SIGKILLed client: its sheaves come back, what it held is freed in a SLABC_RECLAIM cache and kept, whole and adoptable, in another; a
 * client that works meanwhile sees no error.
 */
static void
it_killed_client(void)
{
	enum { N = 1000 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct holder_task task = {h, N, N, 500, true};
	struct slabc *c = harness_open(h, "survivor");
	struct slabc_cache *reclaim = harness_open_cache(c, "reclaim", 64, SLABC_RECLAIM), *kept = harness_open_cache(c, "kept", 64, 0);
	pid_t pid = harness_spawn(h, hold, &task);
	struct proto_audit_reply audit;
	unsigned *mine[N], n_bad = 0;
	slabc_ref refs[N];

	for (int i = 0; i < N; i++)
		peer_get(harness_peer(h, pid), &refs[i], sizeof refs[i]);
	peer_await(harness_peer(h, pid), 'h');
	for (int i = 0; i < N; i++)
		REQUIRE((mine[i] = slabc_alloc(i % 2 ? reclaim : kept)) != NULL);
	CHECK(harness_client(h, pid).n_held == 2 * N);
	harness_kill(h, pid, SIGKILL);
	for (int i = 0; i < 20000; i++) {
		unsigned *p = slabc_alloc(i % 2 ? reclaim : kept);

		REQUIRE(p != NULL);
		*p = 1;
		errno = 0;
		slabc_free(i % 2 ? reclaim : kept, p);
		CHECK(errno == 0);
	}
	harness_wait_reaped(h, pid);

	audit = harness_audit_cache(h, "reclaim");
	CHECK(audit.n_held == N / 2);
	CHECK(audit.n_orphans == 0);
	CHECK(audit.n_out == audit.n_held + audit.n_in_sheaves);
	CHECK(audit.n_lost == 0 && audit.n_doubled == 0);
	audit = harness_audit_cache(h, "kept");
	CHECK(audit.n_held == N / 2);
	CHECK(audit.n_orphans == N);
	CHECK(audit.n_out == audit.n_held + audit.n_orphans + audit.n_in_sheaves);
	CHECK(audit.n_lost == 0 && audit.n_doubled == 0);
	/* Nothing idle is left but the survivor's own. */
	CHECK(harness_cache(h, "reclaim").n_openers == 1);

	for (unsigned i = 0; i < N; i++) {
		unsigned *p = slabc_deref(c, refs[i]);

		REQUIRE(p != NULL);
		for (int j = 0; j < 16; j++)
			n_bad += p[j] != i;
		if (i % 2)
			CHECK(slabc_adopt(c, refs[i]) == p);
		errno = 0;
		slabc_free(kept, p); /* an orphan is freed by pointer too: it is shared */
		CHECK(errno == 0);
	}
	CHECK(n_bad == 0);
	CHECK(slabc_cache_shrink(kept) == 0);
	CHECK(harness_audit(h).n_orphans == 0);
	for (int i = 0; i < N; i++)
		slabc_free(i % 2 ? reclaim : kept, mine[i]);
	slabc_close(c);
	audit = harness_audit(h);
	CHECK(audit.n_out == 0 && audit.n_lost == 0 && audit.n_doubled == 0);
}

/* The dead are listed while objects are kept under their name, and say how many. */
static void
it_orphans_are_listed(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct holder_task task = {h, 10, 77, 0, false};
	struct slabc *keeper = harness_open(h, "keeps the caches open");
	pid_t pid = harness_spawn(h, hold, &task);
	struct proto_clients_reply before, after;

	harness_open_cache(keeper, "kept", 64, 0);
	peer_await(harness_peer(h, pid), 'h');
	before = harness_client(h, pid);
	CHECK(before.n_held == 87 && before.n_orphans == 0);
	CHECK(before.bytes_held == 87 * 64);
	harness_kill(h, pid, SIGKILL);
	harness_wait_reaped(h, pid);
	after = harness_client_id(h, before.client_id);
	CHECK(strcmp(after.state, "dead") == 0);
	CHECK(after.n_orphans == 77 && after.n_held == 0);
	slabc_close(keeper);
}

static void
close_then_die(struct peer *me, void *arg)
{
	struct harness *h = arg;
	struct raw raw;

	raw_attach(&raw, h->socket, "amid a free");
	for (int i = 0; i < 2; i++) {
		uint32_t cache = raw_cache_open(&raw, i ? "reclaim" : "kept", 64, i ? SLABC_RECLAIM : 0),
			 slot = raw_prefill(&raw, cache, 10);
		struct sheaf *sheaf = raw_sheaf(&raw, slot);

		/* Allocated, and then closed: nine by hand, one stays idle. */
		while (sheaf->size > 1) {
			uint32_t *word = raw_word(&raw, sheaf->entry[sheaf->size - 1]);

			*word = word_with(*word + WORD_GENERATION_ONE, raw.attach.client, WORD_CLOSING);
			sheaf->size--;
		}
	}
	peer_tell(me, 'c');
	peer_await(me, 'e');
}

/* A free that had begun (word CLOSING, object in no sheaf) when its client died is finished, whatever the cache does with held objects. */
static void
it_closed_frees_are_finished(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	pid_t pid = harness_spawn(h, close_then_die, h);
	struct proto_audit_reply audit;

	peer_await(harness_peer(h, pid), 'c');
	CHECK(harness_audit(h).n_held == 18);
	harness_kill(h, pid, SIGKILL);
	harness_wait_reaped(h, pid);
	audit = harness_audit(h);
	CHECK(audit.n_out == 0);
	CHECK(audit.n_orphans == 0 && audit.n_lost == 0 && audit.n_doubled == 0);
}

/* A slot that words still name is not given to another client, however many come and go. */
static void
it_named_slot_is_not_reused(void)
{
	enum { N = LAYOUT_MAX_CLIENTS + 100 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct holder_task task = {h, 0, 5, 0, false};
	struct slabc *keeper = harness_open(h, "keeps the caches open");
	pid_t pid = harness_spawn(h, hold, &task);
	uint32_t named, client_id;
	unsigned n_reused = 0;

	harness_open_cache(keeper, "kept", 64, 0);
	peer_await(harness_peer(h, pid), 'h');
	named = harness_client(h, pid).client;
	client_id = harness_client(h, pid).client_id;
	harness_kill(h, pid, SIGKILL);
	harness_wait_reaped(h, pid);
	for (int i = 0; i < N; i++) {
		union proto_request request = {.attach = {.arena = "default", .label = "passes by", .flags = SLABC_RDONLY}};
		union proto_reply reply = {0};
		int fd = raw_connect(h->socket);

		REQUIRE(raw_hello(fd) == 0);
		/* With id 0: no reply, no descriptors. */
		REQUIRE(raw_send(fd, PROTO_OP_ATTACH, 0, &request) == 0);
		REQUIRE(raw_call(fd, PROTO_OP_BYE, &request, &reply, NULL) == 0);
		close(fd);
		if (i % 1000 == 0 || i > LAYOUT_MAX_CLIENTS - 20)
			n_reused += strcmp(harness_client_id(h, client_id).state, "dead") != 0;
	}
	CHECK(harness_status(h).n_sessions_ever > LAYOUT_MAX_CLIENTS);
	CHECK(n_reused == 0);
	CHECK(harness_client_id(h, client_id).client == named);
	CHECK(harness_client_id(h, client_id).n_orphans == 5);
	CHECK(harness_audit(h).n_orphans == 5);
	slabc_close(keeper);
}

/* Too many dead, and slabd takes the name off what is kept: then it is adopted and freed by reference as before, and by nobody twice. */
static void
it_nameless_orphan_is_adopted(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *maker = harness_open(h, "maker"), *taker = harness_open(h, "taker");
	struct slabc_cache *k = harness_open_cache(maker, "k", 64, 0);
	char *p = slabc_alloc(k), *q = slabc_alloc(k), *got;
	slabc_ref ref = slabc_ref_of(maker, p), other = slabc_ref_of(maker, q);
	struct raw raw;

	REQUIRE(ref && other);
	strcpy(p, "kept");
	harness_open_cache(taker, "k", 64, 0);
	slabc_close(maker);
	CHECK(EVENTUALLY(harness_audit(h).n_orphans == 2));
	/* What session.c's forget_name() does (test_grant.c has that). */
	raw_attach(&raw, h->socket, "forgets");
	for (int i = 0; i < 2; i++) {
		uint32_t *word = raw_word(&raw, (uint32_t)(i ? other : ref));

		CHECK(word_state(*word) == WORD_SHARED);
		*word = word_with(*word, WORD_ORPHAN, word_state(*word));
	}
	CHECK(harness_audit(h).n_orphans == 2 && harness_audit(h).n_held == 0);
	got = slabc_deref(taker, ref);
	REQUIRE(got != NULL);
	CHECK(strcmp(got, "kept") == 0);
	CHECK(slabc_adopt(taker, ref) == got);
	CHECK(harness_audit(h).n_held == 1 && harness_audit(h).n_orphans == 1);
	CHECK(slabc_free_ref(taker, ref) == 0);
	CHECK(slabc_free_ref(taker, ref) == -ESTALE);
	CHECK(slabc_free_ref(taker, other) == 0);
	CHECK(slabc_adopt(taker, other) == NULL && errno == ESTALE);
	CHECK(harness_audit(h).n_orphans == 0);
	raw_detach(&raw);
	slabc_close(taker);
	CHECK(EVENTUALLY(harness_audit(h).n_out == 0));
	CHECK(harness_audit(h).n_lost == 0);
}

/* 100,000 objects of a dead client are back, the dead gone from the list, and nobody waits. */
static void
it_hundred_thousand_objects_come_back(void)
{
	enum { N = 100000 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct holder_task task = {h, N, 0, 0, false};
	pid_t pid = harness_spawn(h, hold, &task);
	int64_t start;

	peer_await(harness_peer(h, pid), 'h');
	CHECK(harness_audit(h).n_held == N);
	start = harness_now_ns();
	harness_kill(h, pid, SIGKILL);
	harness_wait_reaped(h, pid);
	printf(" %.1f ms ", (double)(harness_now_ns() - start) / 1e6);
	CHECK(harness_audit(h).n_out == 0);
	CHECK(harness_cache(h, "reclaim").n_out == 0);
	CHECK(harness_audit(h).n_lost == 0);
}

/* Two that die at the same time: each one's things come back once. */
static void
it_two_die_at_once(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --threads=2");
	struct slabc *keeper = harness_open(h, "keeps the caches open");
	struct slabc_cache *k = harness_open_cache(keeper, "kept", 64, 0);

	for (int round = 0; round < 10; round++) {
		struct holder_task task = {h, 300, 300, 200, false};
		struct proto_audit_reply audit;
		pid_t pids[2];

		for (int i = 0; i < 2; i++)
			pids[i] = harness_spawn(h, hold, &task);
		for (int i = 0; i < 2; i++)
			peer_await(harness_peer(h, pids[i]), 'h');
		CHECK(kill(pids[0], SIGSTOP) == 0); /* so that both ends are one instant apart */
		for (int i = 0; i < 2; i++)
			CHECK(kill(pids[i], SIGKILL) == 0);
		for (int i = 0; i < 2; i++) {
			harness_wait_reaped(h, pids[i]);
			harness_kill(h, pids[i], SIGKILL);
		}
		audit = harness_audit(h);
		CHECK(audit.n_orphans == 600u * (unsigned)(round + 1));
		CHECK(audit.n_held == 0 && audit.n_lost == 0 && audit.n_doubled == 0);
	}
	slabc_free(k, slabc_alloc(k));
	slabc_close(keeper);
}

/* Many that die together, so that slabd learns of all at once: everything is back, by one walk over the words and not by one for each. */
static void
it_many_die_at_once(void)
{
	enum { N = 64, N_HELD = 50 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct holder_task task = {h, N_HELD, N_HELD, 20, false};
	struct slabc *keeper = harness_open(h, "keeps the caches open");
	struct slabc_cache *k = harness_open_cache(keeper, "kept", 64, 0), *reclaim = harness_open_cache(keeper, "reclaim", 64, SLABC_RECLAIM);
	struct proto_audit_reply audit;
	pid_t pids[N];

	for (int i = 0; i < N; i++) {
		pids[i] = harness_spawn(h, hold, &task);
		peer_await(harness_peer(h, pids[i]), 'h');
	}
	CHECK(harness_audit(h).n_held == 2 * N * N_HELD);
	CHECK(kill(h->slabd, SIGSTOP) == 0);
	for (int i = 0; i < N; i++)
		harness_kill(h, pids[i], SIGKILL);
	CHECK(kill(h->slabd, SIGCONT) == 0);
	for (int i = 0; i < N; i++)
		harness_wait_reaped(h, pids[i]);
	CHECK(harness_log_count(h, "have ended together: one walk") == 1);
	CHECK(harness_log_count(h, "64 clients of arena 'default' have ended together") == 1);
	CHECK(harness_audit_cache(h, "reclaim").n_out == 0);
	audit = harness_audit(h);
	CHECK(audit.n_orphans == N * N_HELD);
	CHECK(audit.n_held == 0 && audit.n_in_sheaves == 0);
	CHECK(audit.n_lost == 0 && audit.n_doubled == 0 && audit.n_undecided == 0);
	slabc_free(k, slabc_alloc(k));
	slabc_free(reclaim, slabc_alloc(reclaim));
	slabc_close(keeper);
}

/* A stopped client is alive: nothing of its is touched, others work, and it goes on as if nothing had been. */
static void
it_stopped_is_alive(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct holder_task task = {h, 100, 100, 100, false};
	struct slabc *c = harness_open(h, "other");
	struct slabc_cache *k = harness_open_cache(c, "reclaim", 64, SLABC_RECLAIM);
	pid_t pid = harness_spawn(h, hold, &task);
	int64_t until;

	peer_await(harness_peer(h, pid), 'h');
	harness_kill(h, pid, SIGSTOP);
	for (until = harness_now_ns() + 300000000; harness_now_ns() < until;) {
		void *pv[500];

		CHECK(slabc_alloc_bulk(k, 500, pv) == 0);
		slabc_free_bulk(k, 500, pv);
	}
	CHECK(strcmp(harness_client(h, pid).state, "live") == 0);
	CHECK(harness_client(h, pid).n_held == 200);
	harness_kill(h, pid, SIGCONT);
	peer_tell(harness_peer(h, pid), 'g');
	peer_await(harness_peer(h, pid), 'd');
	CHECK(harness_client(h, pid).n_held == 200);
	peer_tell(harness_peer(h, pid), 'e');
	harness_join(h, pid);
	slabc_close(c);
	CHECK(harness_audit(h).n_lost == 0);
	CHECK(harness_audit(h).n_doubled == 0);
}

static void
alloc_until_killed(struct peer *me, void *arg)
{
	struct holder_task *task = arg;
	struct slabc *c = harness_open(task->h, "busy");
	struct slabc_cache *k[2] = {harness_open_cache(c, "reclaim", 64, SLABC_RECLAIM), harness_open_cache(c, "kept", 64, 0)};
	static void *p[2000];
	unsigned seed = (unsigned)getpid();

	peer_tell(me, 'h');
	for (;;) {
		unsigned i = (unsigned)rand_r(&seed) % 2000;

		if (p[i]) {
			slabc_free(k[i % 2], p[i]);
			p[i] = NULL;
		} else {
			p[i] = slabc_alloc(k[i % 2]);
			CHECK(p[i] != NULL);
			if (seed % 4 == 0)
				slabc_ref_of(c, p[i]);
		}
	}
}

/* Killed at any instant, twenty-five times: nothing is lost, nothing doubled, and the reclaiming cache is empty. */
static void
it_killed_at_any_instant(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct holder_task task = {.h = h};
	struct slabc *c = harness_open(h, "keeps the caches open");
	unsigned seed = harness_seed();

	harness_open_cache(c, "kept", 64, 0);
	harness_open_cache(c, "reclaim", 64, SLABC_RECLAIM);
	for (int i = 0; i < 25; i++) {
		struct proto_audit_reply audit;
		int64_t until;
		pid_t pid = harness_spawn(h, alloc_until_killed, &task);

		peer_await(harness_peer(h, pid), 'h');
		for (until = harness_now_ns() + rand_r(&seed) % 20000000; harness_now_ns() < until;)
			continue;
		harness_kill(h, pid, SIGKILL);
		harness_wait_reaped(h, pid);
		audit = harness_audit_cache(h, "reclaim");
		CHECK(audit.n_out == 0 && audit.n_lost == 0 && audit.n_doubled == 0);
		audit = harness_audit_cache(h, "kept");
		CHECK(audit.n_out == audit.n_orphans && audit.n_lost == 0 && audit.n_doubled == 0);
	}
	slabc_close(c);
}

CU_pSuite
it_death_suite(void)
{
	CU_pSuite suite = harness_suite("death");

	CU_ADD_TEST(suite, it_killed_client);
	CU_ADD_TEST(suite, it_orphans_are_listed);
	CU_ADD_TEST(suite, it_closed_frees_are_finished);
	CU_ADD_TEST(suite, it_named_slot_is_not_reused);
	CU_ADD_TEST(suite, it_nameless_orphan_is_adopted);
	CU_ADD_TEST(suite, it_hundred_thousand_objects_come_back);
	CU_ADD_TEST(suite, it_two_die_at_once);
	CU_ADD_TEST(suite, it_many_die_at_once);
	CU_ADD_TEST(suite, it_stopped_is_alive);
	CU_ADD_TEST(suite, it_killed_at_any_instant);
	return suite;
}
