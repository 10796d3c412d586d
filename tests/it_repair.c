/* SPDX-License-Identifier: Apache-2.0 */
/* What a wrong client drops (I8) is taken back (server/repair.h), and counts for quotas until then (server/quota.h). */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/harness.h"

CU_pSuite it_repair_suite(void);

enum { SHEAF = 1000, OBJECT = 64 };

/* Draws sheaves and writes their size to 0, at most so many; returns how many objects it got. */
static uint64_t
draw_and_drop(struct raw *raw, uint32_t cache, unsigned n_sheaves)
{
	union proto_request request = {.refill = {.cache = cache, .n_sheaves = 1, .capacity = SHEAF}};
	union proto_reply reply;
	uint64_t n = 0;

	for (unsigned i = 0; i < n_sheaves && raw_call(raw->fd, PROTO_OP_REFILL, &request, &reply, NULL) == PROTO_STATUS_OK; i++) {
		raw_sheaf(raw, reply.refill.slot)->size = 0;
		n += reply.refill.n_objects;
	}
	return n;
}

static int
slabctl_repair(struct harness *h, char *out, size_t size)
{
	char socket_argument[128], path[256];
	char *argv[] = {path, socket_argument, (char[]){"--json"}, (char[]){"audit"}, (char[]){"--repair"}, NULL};

	snprintf(path, sizeof path, "%s", harness_path("SLABCTL"));
	snprintf(socket_argument, sizeof socket_argument, "--socket=%s", h->socket);
	return harness_run(argv, NULL, out, size);
}

/* More than the audit can watch at a time, beside objects that are somewhere: those stay where they are. */
static void
it_lost_objects_are_taken_back(void)
{
	enum { N_SHEAVES = 5, N_HELD = 100 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "holds some");
	struct slabc_cache *k = harness_open_cache(c, "k", OBJECT, 0);
	void *pv[N_HELD];
	uint64_t n_out;
	char out[4096];
	struct raw raw;

	REQUIRE(slabc_alloc_bulk(k, N_HELD, pv) == 0);
	raw_attach(&raw, h->socket, "drops");
	CHECK(draw_and_drop(&raw, raw_cache_open(&raw, "k", OBJECT, 0), N_SHEAVES) == N_SHEAVES * SHEAF);
	n_out = harness_audit(h).n_out;
	CHECK(harness_audit(h).n_lost == N_SHEAVES * SHEAF);
	CHECK(slabctl_repair(h, out, sizeof out) == 1);
	CHECK(strstr(out, "\"n_repaired\": 5000") != NULL && strstr(out, "\"n_lost\": 5000") != NULL);
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_undecided == 0 && harness_audit(h).n_doubled == 0);
	CHECK(harness_audit(h).n_out == n_out - N_SHEAVES * SHEAF && harness_audit(h).n_held == N_HELD);
	CHECK(harness_status(h).n_repaired == N_SHEAVES * SHEAF);
	CHECK(harness_log_count(h, "cache 'k': 5000 objects, 320000 bytes, lay in no sheaf") == 1);
	CHECK(harness_log_count(h, "'drops') was lent 5000 that it has no more") == 1);
	CHECK(slabctl_repair(h, out, sizeof out) == 0);
	slabc_free_bulk(k, N_HELD, pv);
	slabc_close(c);
	raw_detach(&raw);
	CHECK(EVENTUALLY(harness_audit(h).n_out == 0));
}

/* A cache that nobody has open any more keeps nothing of it, and can be destroyed. */
static void
it_last_close_takes_back_what_is_lost(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	union proto_request request = {.destroy = {.name = "k", .commit = 1}};
	struct raw raw;

	raw_attach(&raw, h->socket, "drops");
	CHECK(draw_and_drop(&raw, raw_cache_open(&raw, "k", OBJECT, 0), 3) == 3 * SHEAF);
	raw_detach(&raw);
	CHECK(EVENTUALLY(harness_audit(h).n_out == 0));
	CHECK(harness_cache(h, "k").n_pages == 0);
	CHECK(harness_status(h).n_repaired == 3 * SHEAF);
	CHECK(harness_ask(h, PROTO_OP_DESTROY, &request, &(union proto_reply){0}) == PROTO_STATUS_OK);
}

/* An arena full of what was dropped serves the next who asks; the wrong one still lives. */
static void
it_full_arena_takes_back_what_is_lost(void)
{
	enum { PAGE = 4096, N_ARENA = 512 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--arena-size=2M --page-kind=4k");
	struct slabc *c = harness_open(h, "waits");
	struct slabc_cache *k = harness_open_cache(c, "other", PAGE, 0);
	static void *pv[N_ARENA];
	struct raw raw;
	unsigned n = 0;

	raw_attach(&raw, h->socket, "drops");
	CHECK(draw_and_drop(&raw, raw_cache_open(&raw, "k", OBJECT, 0), 100) > 30 * SHEAF);
	while (n < N_ARENA && (pv[n] = slabc_alloc(k)))
		n++;
	CHECK(n > N_ARENA * 9 / 10);
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	raw_detach(&raw);
	slabc_close(c);
}

/* Who adopts an arena takes them back as well, and counts them: by the same code. */
static void
it_next_slabd_takes_back_what_is_lost(void)
{
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k");
	struct slabc *c = harness_open(h, "holds one");
	struct slabc_cache *k = harness_open_cache(c, "k", OBJECT, 0);
	void *p = slabc_alloc(k);
	struct raw raw;

	REQUIRE(p != NULL);
	raw_attach(&raw, h->socket, "drops");
	CHECK(draw_and_drop(&raw, raw_cache_open(&raw, "k", OBJECT, 0), 3) == 3 * SHEAF);
	harness_kill_kept(h);
	CHECK(EVENTUALLY(harness_audit(h).n_undecided == 0));
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0 && harness_audit(h).n_held == 1);
	CHECK(harness_status(h).n_repaired == 3 * SHEAF);
	slabc_free(k, p);
	slabc_close(c);
	raw_detach(&raw);
}

/* What is dropped counts: at no time has a client dropped more than client-max. Nor does it cost others theirs. */
static void
it_dropping_is_no_way_round_the_quota(void)
{
	enum { MAX = 1 << 20, N_DROPPED = 900 * 1024 / OBJECT, N_PASSED = 40000 };
	CLEANUP(harness_free) struct harness *h = harness_slabd_config("[arena]\nsize = 16M\npage-kind = 4k\nclient-max = 1M\n");
	struct slabc *c = harness_open(h, "makes"), *other = harness_open(h, "frees");
	struct slabc_cache *k = harness_open_cache(c, "k", OBJECT, SLABC_SHARED);
	static void *pv[MAX / OBJECT + 1];
	uint64_t n_drawn = 0;
	struct raw raw;
	unsigned n = 0;

	for (unsigned i = 0; i < N_PASSED; i++) {
		void *p = slabc_alloc(k);

		REQUIRE(p != NULL);
		REQUIRE(slabc_free_ref(other, slabc_ref_of(c, p)) == 0);
	}
	raw_attach(&raw, h->socket, "drops");
	for (unsigned i = 0; i < 100; i++) {
		n_drawn += draw_and_drop(&raw, raw_cache_open(&raw, "k", OBJECT, SLABC_SHARED), 1);
		CHECK(harness_audit(h).n_lost * OBJECT <= MAX);
	}
	CHECK(n_drawn >= N_DROPPED);
	/* Who was lent much that others freed is not refused for what is lost. */
	while (n <= MAX / OBJECT && (pv[n] = slabc_alloc(k)))
		n++;
	CHECK(n == MAX / OBJECT);
	raw_detach(&raw);
	slabc_close(c);
	slabc_close(other);
	CHECK(EVENTUALLY(harness_status(h).n_sessions == 0));
	/* The last one's end is swept up after it, a portion a turn of the loop. */
	CHECK(EVENTUALLY(harness_audit(h).n_lost == 0));
}

/* Nor round user-max, by several sessions: what nobody has counts once for the user, whoever of them was lent it. */
static void
it_dropping_is_no_way_round_the_users_quota(void)
{
	enum { MAX = 1 << 20, N = 3, N_DROPPED = 900 * 1024 / OBJECT };
	CLEANUP(harness_free) struct harness *h = harness_slabd_config("[arena]\nsize = 16M\npage-kind = 4k\nuser-max = 1M\n");
	struct slabc *c = harness_open(h, "makes");
	struct slabc_cache *k = harness_open_cache(c, "k", OBJECT, 0);
	uint64_t n_drawn = 0;
	struct raw raw[N];
	unsigned n = 0;

	for (int i = 0; i < N; i++)
		raw_attach(&raw[i], h->socket, "drops");
	for (unsigned i = 0; i < 100; i++) {
		n_drawn += draw_and_drop(&raw[i % N], raw_cache_open(&raw[i % N], "k", OBJECT, 0), 1);
		CHECK(harness_audit(h).n_lost * OBJECT <= MAX);
	}
	CHECK(n_drawn >= N_DROPPED);
	while (n <= MAX / OBJECT && slabc_alloc(k))
		n++;
	CHECK(n > MAX / OBJECT * 9 / 10 && n <= MAX / OBJECT);
	for (int i = 0; i < N; i++)
		raw_detach(&raw[i]);
	slabc_close(c);
}

/* One makes, another frees, nobody's name is anywhere: what came back through the other is charged to nobody; what is in use is, to the maker. */
static void
it_quota_without_words_counts_what_is_in_use(void)
{
	enum { MAX = 1 << 20, N_PASSED = 100000 };
	CLEANUP(harness_free) struct harness *h = harness_slabd_config("[arena]\nsize = 16M\npage-kind = 4k\nclient-max = 1M\n");
	struct slabc *c = harness_open(h, "makes"), *other = harness_open(h, "frees");
	struct slabc_cache *k = harness_open_cache(c, "k", OBJECT, SLABC_NO_OWNER), *ok = harness_open_cache(other, "k", OBJECT, SLABC_NO_OWNER);
	void *known = slabc_alloc(harness_open_cache(c, "named", OBJECT, SLABC_SHARED));
	ptrdiff_t delta = (char *)slabc_deref(other, slabc_ref_of(c, known)) - (char *)known;
	unsigned n = 0;

	for (unsigned i = 0; i < N_PASSED; i++) {
		char *p = slabc_alloc(k);

		REQUIRE(p != NULL);
		slabc_free(ok, p + delta);
	}
	while (n <= MAX / OBJECT && slabc_alloc(k))
		n++;
	CHECK(n > MAX / OBJECT * 9 / 10 && n <= MAX / OBJECT);
	CHECK(errno == EDQUOT && strstr(slabc_last_error(), "as its share of what is in use of caches without owner words") != NULL);
	slabc_close(c);
	slabc_close(other);
}

struct churner {
	struct harness *h;
	unsigned seed;
};

/* Allocates, writes its name into it, and frees what nobody has written to since, of two caches; until it is told to stop. */
static void
churn(struct peer *me, void *arg)
{
	enum { N = 3000 };
	const struct churner *task = arg;
	struct slabc *c = harness_open(task->h, "works");
	struct slabc_cache *k[2] = {harness_open_cache(c, "k", OBJECT, 0), harness_open_cache(c, "other", 256, 0)};
	unsigned seed = task->seed, n_spoiled = 0, *p[N] = {NULL};
	unsigned long n_done = 0;
	char end;

	fcntl(me->in, F_SETFL, O_NONBLOCK);
	peer_tell(me, 'r');
	while (read(me->in, &end, 1) != 1) {
		for (int i = 0; i < 20000; i++, n_done++) {
			unsigned at = (unsigned)rand_r(&seed) % N;

			if (p[at]) {
				n_spoiled += *p[at] != task->seed + at;
				slabc_free(k[at % 2], p[at]);
				p[at] = NULL;
			} else {
				REQUIRE((p[at] = slabc_alloc(k[at % 2])) != NULL);
				*p[at] = task->seed + at;
			}
		}
		/* So whole sheaves go to slabd and come from it. */
		for (unsigned at = 0; at < N; at++) {
			n_spoiled += p[at] && *p[at] != task->seed + at;
			slabc_free(k[at % 2], p[at]);
			p[at] = NULL;
		}
	}
	peer_put(me, &n_spoiled, sizeof n_spoiled);
	peer_put(me, &n_done, sizeof n_done);
	fcntl(me->in, F_SETFL, 0);
	peer_await(me, 'e');
	slabc_close(c);
}

/* Beside clients that do nothing but allocate and free, what another drops is taken back, again and again, and nothing of theirs ever is. */
static void
it_repair_beside_clients_at_work(void)
{
	enum { N_CHURNERS = 3 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --threads=2");
	union proto_request request = {.audit = {.repair = 1}};
	uint64_t n_dropped = 0, n_repaired = 0, n_doubled = 0;
	struct churner tasks[N_CHURNERS];
	pid_t pids[N_CHURNERS];
	union proto_reply reply;
	struct raw raw;
	int64_t until;
	uint32_t k;

	for (unsigned i = 0; i < N_CHURNERS; i++) {
		tasks[i] = (struct churner){h, (i + 1) << 20};
		pids[i] = harness_spawn(h, churn, &tasks[i]);
		peer_await(harness_peer(h, pids[i]), 'r');
	}
	raw_attach(&raw, h->socket, "drops");
	k = raw_cache_open(&raw, "k", OBJECT, 0);
	until = harness_now_ns() + 3000000000;
	while (harness_now_ns() < until) {
		n_dropped += draw_and_drop(&raw, k, 1);
		REQUIRE(harness_ask(h, PROTO_OP_AUDIT, &request, &reply) == PROTO_STATUS_OK);
		n_repaired += reply.audit.n_repaired;
		n_doubled += reply.audit.n_doubled;
		CHECK(n_repaired <= n_dropped);
	}
	for (int i = 0; i < N_CHURNERS; i++) {
		unsigned long n_done;
		unsigned n_spoiled;

		peer_tell(harness_peer(h, pids[i]), 's');
		peer_get(harness_peer(h, pids[i]), &n_spoiled, sizeof n_spoiled);
		peer_get(harness_peer(h, pids[i]), &n_done, sizeof n_done);
		CHECK(n_spoiled == 0 && n_done > 20000);
	}
	printf(" %llu dropped ", (unsigned long long)n_dropped);
	/* At rest none is undecided any more. */
	CHECK(EVENTUALLY(harness_ask(h, PROTO_OP_AUDIT, &request, &reply) == PROTO_STATUS_OK && reply.audit.n_undecided == 0));
	CHECK(n_doubled == 0 && reply.audit.n_doubled == 0);
	CHECK(n_dropped > 0 && harness_status(h).n_repaired == n_dropped);
	/* Once for each power of two. */
	CHECK(harness_log_count(h, "lay in no sheaf") <= 32);
	for (int i = 0; i < N_CHURNERS; i++) {
		peer_tell(harness_peer(h, pids[i]), 'e');
		harness_join(h, pids[i]);
		harness_wait_reaped(h, pids[i]);
	}
	raw_detach(&raw);
	CHECK(EVENTUALLY(harness_audit(h).n_out == 0));
}

CU_pSuite
it_repair_suite(void)
{
	CU_pSuite suite = harness_suite("repair");

	CU_ADD_TEST(suite, it_lost_objects_are_taken_back);
	CU_ADD_TEST(suite, it_repair_beside_clients_at_work);
	CU_ADD_TEST(suite, it_last_close_takes_back_what_is_lost);
	CU_ADD_TEST(suite, it_full_arena_takes_back_what_is_lost);
	CU_ADD_TEST(suite, it_next_slabd_takes_back_what_is_lost);
	CU_ADD_TEST(suite, it_dropping_is_no_way_round_the_quota);
	CU_ADD_TEST(suite, it_dropping_is_no_way_round_the_users_quota);
	CU_ADD_TEST(suite, it_quota_without_words_counts_what_is_in_use);
	return suite;
}
