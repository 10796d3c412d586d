/* SPDX-License-Identifier: Apache-2.0 */
/* What clients keep idle is called in: when memory is short, when asked, and when it has been idle for long. */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "tests/harness.h"

CU_pSuite it_recall_suite(void);

/* An arena of 64 objects, of which the pool is half; a sheaf holds half the pool. */
enum { OBJECT_BYTES = 32768, N_ARENA = 64, N_POOL = 32, CAPACITY = 16, N_ROUNDS = 21, LIMIT_US = 50000 };

static struct slabc_cache *
open_pool(struct slabc *c, unsigned flags)
{
	struct slabc_cache_options o = SLABC_CACHE_OPTIONS_INIT;
	struct slabc_cache *k = NULL;

	o.flags = flags;
	o.sheaf_capacity = CAPACITY;
	REQUIRE(slabc_cache_open(c, "pool", OBJECT_BYTES, &o, &k) == 0);
	return k;
}

/* The half that is not the pool. */
static struct slabc_cache *
hold_rest(struct slabc *c, unsigned flags)
{
	struct slabc_cache *k = open_pool(c, flags);
	static void *pv[N_ARENA - N_POOL];

	REQUIRE(slabc_alloc_bulk(k, N_ARENA - N_POOL, pv) == 0);
	return k;
}

/* Has the whole pool idle whenever it is told so, in its thread's two sheaves. */
struct keeper {
	struct harness *h;
	unsigned flags;
	bool is_filtered; /* no membarrier */
};

static void
refuse_membarrier(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = {.len = sizeof code / sizeof code[0], .filter = code};

	REQUIRE(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	REQUIRE(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
}

static void
keep_idle(struct peer *me, void *arg)
{
	struct keeper *keeper = arg;
	struct slabc_cache *k;
	void *pv[N_POOL];
	char step;

	if (keeper->is_filtered)
		refuse_membarrier();
	k = open_pool(harness_open(keeper->h, "keeper"), keeper->flags);
	for (;;) {
		peer_get(me, &step, 1);
		if (step == 'e')
			return;
		REQUIRE(slabc_alloc_bulk(k, N_POOL, pv) == 0);
		for (int i = 0; i < N_POOL; i++)
			memset(pv[i], 'a', OBJECT_BYTES);
		slabc_free_bulk(k, N_POOL, pv);
		peer_tell(me, 'i');
	}
}

static void
stop(pid_t pid)
{
	siginfo_t info;

	REQUIRE(kill(pid, SIGSTOP) == 0);
	REQUIRE(waitid(P_PID, (id_t)pid, &info, WSTOPPED | WNOWAIT) == 0);
}

static int
by_number(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

/* Gets the pool and gives it back, as often as the keeper wants it idle again; the median of the times that it takes to get it. */
static int64_t
get_pool_again_and_again(struct harness *h, pid_t keeper, struct slabc_cache *k, bool is_stopped)
{
	int64_t us[N_ROUNDS];
	void *pv[N_POOL];

	for (int i = 0; i < N_ROUNDS; i++) {
		int64_t start;

		peer_tell(harness_peer(h, keeper), 'i');
		peer_await(harness_peer(h, keeper), 'i');
		if (is_stopped)
			stop(keeper);
		start = harness_now_ns();
		REQUIRE(slabc_alloc_bulk(k, N_POOL, pv) == 0);
		us[i] = (harness_now_ns() - start) / 1000;
		for (int j = 0; j < N_POOL; j++)
			memset(pv[j], 'b', OBJECT_BYTES);
		slabc_free_bulk(k, N_POOL, pv);
		REQUIRE(slabc_cache_shrink(k) == 0);
		if (is_stopped)
			REQUIRE(kill(keeper, SIGCONT) == 0);
	}
	qsort(us, N_ROUNDS, sizeof us[0], by_number);
	return us[N_ROUNDS / 2];
}

/* The pool serves the next client though the one before sleeps on it; and it goes on when it wakes. */
static void
serve_the_next(unsigned flags, bool is_stopped)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=2M");
	struct slabc *rest = harness_open(h, "rest"), *c = harness_open(h, "next");
	struct keeper keeper = {.h = h, .flags = flags};
	pid_t pid = harness_spawn(h, keep_idle, &keeper);
	struct proto_clients_reply client;
	int64_t us;

	hold_rest(rest, flags);
	us = get_pool_again_and_again(h, pid, open_pool(c, flags), is_stopped);
	printf("(%d objects of %s client, p50: %lld us) ", N_POOL, is_stopped ? "a stopped" : "a sleeping", (long long)us);
	CHECK(us < LIMIT_US);
	client = harness_client(h, pid);
	CHECK(client.n_recalled == 2 * N_ROUNDS && client.flags == 0);
	CHECK(harness_status(h).n_recalled_sheaves >= 2 * N_ROUNDS && harness_status(h).n_recall_busy == 0);
	CHECK(strcmp(harness_status(h).recall, "ok") == 0);
	peer_tell(harness_peer(h, pid), 'e');
	harness_join(h, pid);
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0 && harness_status(h).n_faults == 0);
	slabc_close(c);
	slabc_close(rest);
}

static void
it_sleeper_serves_the_next(void)
{
	serve_the_next(0, false);
}

static void
it_stopped_serves_the_next(void)
{
	serve_the_next(0, true);
}

static void
it_sleeper_without_words_serves_the_next(void)
{
	serve_the_next(SLABC_NO_OWNER, true);
}

/* A client without the library, played as a thread: sheaves of its barn in its hands, entered or not. */
struct played {
	struct raw raw;
	uint32_t slots[2];
	struct sheaf *sheaves[2];
};

static void
play_thread(struct played *p, struct harness *h)
{
	union proto_request request = {.refill = {.n_sheaves = 1}};
	union proto_reply reply;
	uint32_t cache;

	raw_attach_with(&p->raw, h->socket, "played", PROTO_ATTACH_RECALLABLE);
	cache = raw_cache_open(&p->raw, "pool", OBJECT_BYTES, 0);
	request.refill.cache = cache;
	for (unsigned i = 0; i < 2; i++) {
		REQUIRE(raw_call(p->raw.fd, PROTO_OP_REFILL, &request, &reply, NULL) == 0);
		REQUIRE(reply.refill.n_sheaves == 1 && reply.refill.n_objects == N_POOL / 2);
	}
	for (unsigned slot = 0, n = 0; n < 2; slot++) {
		if (p->raw.slots[slot].holder != LAYOUT_HOLDER_BARN)
			continue;
		p->slots[n] = slot;
		p->sheaves[n] = raw_sheaf(&p->raw, slot);
		p->raw.slots[slot].holder = LAYOUT_HOLDER_THREAD + 7;
		p->sheaves[n]->floor = 0;
		p->sheaves[n]->limit = CAPACITY;
		p->sheaves[n++]->busy = 0;
	}
}

/* Stopped in the midst of one sheaf, it keeps that one: counted, and had as soon as it has gone on. With a bit in busy that slabd does not
 * know too. */
static void
it_stopped_inside_keeps_one_sheaf(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=2M");
	struct slabc *rest = harness_open(h, "rest"), *c = harness_open(h, "next");
	struct slabc_cache *k;
	struct played played;
	struct proto_clients_reply client;
	void *pv[N_POOL];

	hold_rest(rest, 0);
	k = open_pool(c, 0);
	play_thread(&played, h);
	for (unsigned i = 0; i < 2; i++) {
		uint32_t busy = i ? 0x8000 : SHEAF_BUSY;

		played.sheaves[0]->busy = busy;
		CHECK(slabc_alloc_bulk(k, N_POOL, pv) == -ENOMEM);
		if (busy == SHEAF_BUSY) {
			CHECK(slabc_alloc_bulk(k, N_POOL - CAPACITY, pv) == 0);
			CHECK(harness_status(h).n_recall_busy > 0 && harness_status(h).n_recalled_sheaves == 1);
		}
		client = harness_client_id(h, played.raw.attach.client_id);
		CHECK(client.n_recalled == 1 && client.bytes_idle == CAPACITY * OBJECT_BYTES);
		CHECK(played.sheaves[0]->size == CAPACITY && played.sheaves[0]->floor == 0 && played.sheaves[0]->limit == CAPACITY);
		CHECK(played.raw.slots[played.slots[0]].holder == LAYOUT_HOLDER_THREAD + 7);
		CHECK(played.raw.slots[played.slots[1]].holder == LAYOUT_HOLDER_RECALLED && played.sheaves[1]->size == 0);
	}
	played.sheaves[0]->busy = 0;
	CHECK(slabc_alloc_bulk(k, CAPACITY, pv + CAPACITY) == 0);
	CHECK(harness_client_id(h, played.raw.attach.client_id).n_recalled == 2);
	raw_detach(&played.raw);
	slabc_close(c);
	slabc_close(rest);
}

/* Where nothing can be had the caller hears that soon: which limit it is, and who keeps most. */
static void
it_shortage_is_an_error_in_time(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=2M");
	struct slabc *rest = harness_open(h, "rest"), *c = harness_open(h, "next");
	struct slabc_cache *k;
	struct played played;
	char who[64];
	int64_t start;

	hold_rest(rest, 0);
	k = open_pool(c, 0);
	play_thread(&played, h);
	played.sheaves[0]->busy = played.sheaves[1]->busy = SHEAF_BUSY;
	start = harness_now_ns();
	errno = 0;
	CHECK(slabc_alloc(k) == NULL && errno == ENOMEM);
	CHECK(harness_now_ns() - start < 1000000000);
	snprintf(who, sizeof who, "client %u (pid %d, 'played')", played.raw.attach.client_id, getpid());
	CHECK(strstr(slabc_last_error(), "its limit is 2097152 bytes (--arena-size)") != NULL);
	CHECK(strstr(slabc_last_error(), who) != NULL && strstr(slabc_last_error(), "keeps most idle, 1048576 bytes") != NULL);
	raw_detach(&played.raw);
	slabc_close(c);
	slabc_close(rest);
}

/* A client that may not use membarrier keeps its threads' sheaves; slabd says so, and calls in the rest. */
static void
it_unregistered_keeps_its_sheaves(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=2M");
	struct slabc *rest = harness_open(h, "rest"), *c = harness_open(h, "next");
	struct keeper keeper = {.h = h, .is_filtered = true};
	char program[256], option[128], out[8192], *argv[] = {program, option, (char[]){"clients"}, (char[]){"--json"}, NULL};
	pid_t pid = harness_spawn(h, keep_idle, &keeper);
	struct slabc_cache *k;

	hold_rest(rest, 0);
	k = open_pool(c, 0);
	peer_tell(harness_peer(h, pid), 'i');
	peer_await(harness_peer(h, pid), 'i');
	errno = 0;
	CHECK(slabc_alloc(k) == NULL && errno == ENOMEM);
	CHECK(strstr(slabc_last_error(), "'keeper') keeps most idle, 1048576 bytes") != NULL);
	CHECK(harness_client(h, pid).flags == PROTO_CLIENT_NO_RECALL && harness_client(h, pid).n_recalled == 0);
	CHECK(harness_client_id(h, slabc_client_id(c)).flags == 0);
	snprintf(option, sizeof option, "--socket=%s", h->socket);
	snprintf(program, sizeof program, "%s", harness_path("SLABCTL"));
	CHECK(harness_run(argv, NULL, out, sizeof out) == 0 && strstr(out, "\"norecall\"") != NULL);
	/* And it goes on. */
	peer_tell(harness_peer(h, pid), 'i');
	peer_await(harness_peer(h, pid), 'i');
	peer_tell(harness_peer(h, pid), 'e');
	harness_join(h, pid);
	harness_wait_reaped(h, pid);
	CHECK(slabc_alloc(k) != NULL);
	slabc_close(c);
	slabc_close(rest);
}

static void
serve_filtered(struct peer *me, void *arg)
{
	void *pv[N_ARENA];

	(void)me;
	(void)arg;
	refuse_membarrier();
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=2M");
	struct slabc *c = harness_open(h, "served");
	struct slabc_cache *k = open_pool(c, 0);

	REQUIRE(strcmp(harness_status(h).recall, strerror(EPERM)) == 0);
	REQUIRE(harness_log_count(h, "membarrier: Operation not permitted") == 1);
	REQUIRE(slabc_alloc_bulk(k, N_ARENA, pv) == 0);
	slabc_free_bulk(k, N_ARENA, pv);
	REQUIRE(slabc_cache_shrink(k) == 0);
	REQUIRE(harness_status(h).n_recalls == 0);
	slabc_close(c);
}

/* slabd itself under such a filter serves, and says what it cannot do. */
static void
it_slabd_without_membarrier_serves(void)
{
	CLEANUP(harness_free) struct harness *h = harness_new();

	harness_join(h, harness_spawn(h, serve_filtered, NULL));
}

/* Decay */

static void
be_steady(struct peer *me, void *arg)
{
	struct slabc_cache *k = harness_open_cache(harness_open(arg, "steady"), "steady", 64, 0);
	char step = 0;

	slabc_free(k, slabc_alloc(k));
	peer_tell(me, 's');
	REQUIRE(fcntl(me->in, F_SETFL, O_NONBLOCK) == 0);
	/* At nearly every look nothing is going on: the generation alone tells. */
	while (read(me->in, &step, 1) < 0) {
		slabc_free(k, slabc_alloc(k));
		usleep(1000);
	}
}

/* What has been idle for long goes back, from threads and barn; who works steadily does not notice. */
static void
it_idle_goes_back(void)
{
	enum { N = 4096 };
	CLEANUP(harness_free) struct harness *h = harness_slabd_config("[slabd]\nidle-after = 1\n[arena]\nsize = 16M\npage-kind = 4k\n");
	struct slabc *c = harness_open(h, "idle");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0), *bare = harness_open_cache(c, "bare", 64, SLABC_NO_OWNER);
	pid_t pid = harness_spawn(h, be_steady, h);
	struct proto_caches_reply before, steady;
	static void *pv[N];
	int64_t start;

	peer_await(harness_peer(h, pid), 's');
	steady = harness_cache(h, "steady");
	REQUIRE(slabc_alloc_bulk(k, N, pv) == 0);
	slabc_free_bulk(k, N, pv);
	slabc_free(bare, slabc_alloc(bare));
	start = harness_now_ns();
	before = harness_cache(h, "k");
	CHECK(before.n_thread > 0 && before.n_process_barn > 0);
	CHECK(EVENTUALLY(harness_cache(h, "k").n_thread == 0 && harness_cache(h, "k").n_process_barn == 0));
	CHECK(harness_now_ns() - start > 700000000);
	/* Of what has no word nobody knows how long it has been there. */
	CHECK(harness_cache(h, "bare").n_thread > 0);
	CHECK(harness_cache(h, "steady").n_recalled == 0 && harness_cache(h, "steady").n_refills == steady.n_refills);
	REQUIRE(slabc_alloc_bulk(k, N, pv) == 0);
	slabc_free_bulk(k, N, pv);
	/* 0: never. */
	harness_reload(h, "[slabd]\nidle-after = 0\n[arena]\nsize = 16M\npage-kind = 4k\n");
	peer_tell(harness_peer(h, pid), 'e');
	harness_join(h, pid);
	usleep(1600000);
	CHECK(harness_cache(h, "k").n_thread > 0);
	CHECK(harness_audit(h).n_lost == 0 && harness_status(h).n_faults == 0);
	slabc_close(c);
}

/* Sheaves that one refill of a client with nothing idle brings. */
static uint64_t
refill_one(struct harness *h, struct slabc_cache *k)
{
	uint64_t before = harness_cache(h, "k").n_sheaves_granted;

	CHECK(slabc_alloc(k) != NULL);
	return harness_cache(h, "k").n_sheaves_granted - before;
}

/* A client that learned to ask for much, and of which it then went unused, asks for half as much each time. */
static void
it_unused_is_asked_for_no_more(void)
{
	enum { N = 40000, SIZE = 64 };
	CLEANUP(harness_free) struct harness *h = harness_slabd_config("[slabd]\nidle-after = 1\n[arena]\nsize = 64M\npage-kind = 4k\n");
	struct slabc *c = harness_open(h, "asks");
	struct slabc_cache *k = harness_open_cache(c, "k", SIZE, 0);
	static void *pv[N];
	uint64_t n[3];

	for (unsigned i = 0; i < N; i++)
		REQUIRE((pv[i] = slabc_alloc(k)) != NULL);
	/* Every slab stays, half free: what a refill asks for is there. */
	for (unsigned i = 0; i < N; i += 2)
		slabc_free(k, pv[i]);
	for (unsigned i = 0; i < 3; i++) {
		CHECK(EVENTUALLY(harness_cache(h, "k").n_thread + harness_cache(h, "k").n_process_barn == 0));
		n[i] = refill_one(h, k);
	}
	printf(" %llu, %llu, %llu sheaves ", (unsigned long long)n[0], (unsigned long long)n[1], (unsigned long long)n[2]);
	CHECK(n[0] >= 8 && n[1] <= n[0] / 2 && n[2] <= n[1] / 2 + 1 && n[2] >= 1);
	slabc_close(c);
	CHECK(harness_audit(h).n_lost == 0 && harness_status(h).n_faults == 0);
}

/* Quotas */

static unsigned
alloc_until_refused(struct slabc_cache *k, void **pv, unsigned max, int error)
{
	unsigned n = 0;

	errno = 0;
	while (n < max && (pv[n] = slabc_alloc(k)))
		n++;
	CHECK(n < max && errno == error);
	return n;
}

/* client-max: to the object, whatever is idle elsewhere; an error that names it; and others have theirs. */
static void
it_client_has_its_maximum(void)
{
	enum { PAGE = 4096, N_MAX = 256, N_MORE = 300 };
	CLEANUP(harness_free) struct harness *h = harness_slabd_config("[arena]\nsize = 16M\npage-kind = 4k\nclient-max = 1M\n");
	struct slabc *c = harness_open(h, "has much"), *other = harness_open(h, "other");
	struct slabc_cache *k = harness_open_cache(c, "k", PAGE, SLABC_SHARED), *idle = harness_open_cache(c, "idle", PAGE, 0);
	struct slabc_cache *ok = harness_open_cache(other, "k", PAGE, SLABC_SHARED);
	static void *pv[N_MORE], *opv[N_MORE];
	unsigned n;

	REQUIRE(slabc_alloc_bulk(idle, 200, pv) == 0);
	slabc_free_bulk(idle, 200, pv);
	n = alloc_until_refused(k, pv, N_MORE, EDQUOT);
	CHECK(n == N_MAX);
	CHECK(strstr(slabc_last_error(), "1048576 bytes of arena 'default' (client-max): 1048576 in objects, 0 idle") != NULL);
	CHECK(slabc_prefill(k, 2) == NULL && errno == EDQUOT);
	CHECK(slabc_malloc(c, 1 << 20) == NULL && errno == EDQUOT);
	CHECK(alloc_until_refused(ok, opv, N_MORE, EDQUOT) == N_MAX);
	/* What another client frees is no longer one's own. */
	CHECK(slabc_free_ref(other, slabc_ref_of(c, pv[0])) == 0);
	slabc_free(k, pv[1]);
	CHECK(alloc_until_refused(k, pv, N_MORE, EDQUOT) == 2);
	CHECK(harness_client_id(h, slabc_client_id(c)).bytes_held == 1 << 20 &&
		harness_client_id(h, slabc_client_id(c)).bytes_max == 1 << 20);
	harness_reload(h, "[arena]\nsize = 16M\npage-kind = 4k\nclient-max = 2M\n");
	CHECK(slabc_alloc(k) != NULL);
	slabc_close(c);
	slabc_close(other);
	CHECK(harness_audit(h).n_lost == 0 && harness_status(h).n_faults == 0);
}

/* Another user, who takes as many objects as he gets. */
static void
take_as_nobody(struct peer *me, void *arg)
{
	enum { UID = 65534, N_MORE = 300 };
	struct harness *h = arg;
	static void *pv[N_MORE];
	struct slabc *c;
	unsigned n;

	REQUIRE(setresgid(UID, UID, UID) == 0 && setresuid(UID, UID, UID) == 0);
	c = harness_open(h, "another's");
	n = alloc_until_refused(harness_open_cache(c, "k", 4096, SLABC_SHARED), pv, N_MORE, EDQUOT);
	CHECK(strstr(slabc_last_error(), "user 65534 has his 1048576 bytes of arena 'default' (user-max): 1048576 in 1 sessions") != NULL);
	peer_put(me, &n, sizeof n);
	peer_await(me, 'e');
	slabc_close(c);
}

/* user-max: two sessions of a user have it together, whatever one of them keeps idle; another user has his own; client-max stays. */
static void
it_user_has_his_maximum(void)
{
	enum { PAGE = 4096, N_MAX = 256, N_MORE = 300 };
	struct harness *h;
	struct slabc *c[2];
	struct slabc_cache *k[2];
	static void *pv[2][N_MORE];
	unsigned n;
	pid_t pid;

	if (geteuid() != 0) {
		skip("another user: only root can become one");
		return;
	}
	h = harness_slabd_config("[slabd]\nsocket-mode = 0666\n[arena]\nsize = 16M\npage-kind = 4k\nmode = 0666\nuser-max = 1M\n");
	REQUIRE(chmod(h->dir, 0755) == 0);
	for (int i = 0; i < 2; i++) {
		c[i] = harness_open(h, i ? "second" : "first");
		k[i] = harness_open_cache(c[i], "k", PAGE, SLABC_SHARED);
	}
	/* 100 held and 100 idle in the first: the second has what is not held. */
	REQUIRE(slabc_alloc_bulk(k[0], 200, pv[0]) == 0);
	slabc_free_bulk(k[0], 100, pv[0] + 100);
	CHECK(alloc_until_refused(k[1], pv[1], N_MORE, EDQUOT) == N_MAX - 100);
	CHECK(strstr(slabc_last_error(), "(user-max): 1048576 in 2 sessions, 638976 of them in this one") != NULL);
	CHECK(alloc_until_refused(k[0], pv[0] + 100, N_MORE, EDQUOT) == 0);
	pid = harness_spawn(h, take_as_nobody, h);
	peer_get(harness_peer(h, pid), &n, sizeof n);
	CHECK(n == N_MAX);
	/* What one frees the other may have. */
	slabc_free_bulk(k[0], 3, pv[0]);
	CHECK(alloc_until_refused(k[1], pv[1], N_MORE, EDQUOT) == 3);
	harness_reload(h, "[slabd]\nsocket-mode = 0666\n[arena]\nsize = 16M\npage-kind = 4k\nmode = 0666\nuser-max = 2M\nclient-max = 1M\n");
	CHECK(alloc_until_refused(k[1], pv[1], N_MORE, EDQUOT) == N_MAX - (N_MAX - 100) - 3);
	CHECK(strstr(slabc_last_error(), "(client-max)") != NULL);
	peer_tell(harness_peer(h, pid), 'e');
	harness_join(h, pid);
	slabc_close(c[0]);
	slabc_close(c[1]);
	CHECK(harness_audit(h).n_lost == 0 && harness_status(h).n_faults == 0);
	harness_free(h);
}

/* client-min: who is connected and has less can always have it, whatever others ask for. */
static void
it_client_gets_its_minimum(void)
{
	enum { N_MIN = 16 };
	CLEANUP(harness_free) struct harness *h = harness_slabd_config("[arena]\nsize = 2M\npage-kind = 4k\nclient-min = 512K\n");
	struct slabc *greedy = harness_open(h, "greedy"), *modest = harness_open(h, "modest");
	struct slabc_cache *gk = open_pool(greedy, 0), *mk = open_pool(modest, 0);
	void *pv[N_ARENA + 1], *mpv[N_ARENA + 1];

	CHECK(alloc_until_refused(gk, pv, N_ARENA + 1, ENOMEM) == N_ARENA - N_MIN);
	CHECK(strstr(slabc_last_error(), "kept for clients that have less than client-min, 524288 bytes") != NULL);
	CHECK(slabc_malloc(greedy, 100000) == NULL && errno == ENOMEM);
	CHECK(alloc_until_refused(mk, mpv, N_ARENA + 1, ENOMEM) == N_MIN);
	/* What one has beyond one's minimum goes to who asks first; what has come back is promised again. */
	slabc_free_bulk(gk, 2, pv);
	slabc_cache_shrink(gk);
	CHECK(slabc_alloc(mk) != NULL);
	slabc_free_bulk(mk, 4, mpv);
	slabc_cache_shrink(mk);
	CHECK(alloc_until_refused(gk, pv, N_ARENA + 1, ENOMEM) <= 2);
	slabc_close(modest);
	CHECK(harness_audit(h).n_lost == 0 && harness_status(h).n_faults == 0);
	slabc_close(greedy);
}

CU_pSuite
it_recall_suite(void)
{
	CU_pSuite suite = harness_suite("recall");

	CU_ADD_TEST(suite, it_sleeper_serves_the_next);
	CU_ADD_TEST(suite, it_stopped_serves_the_next);
	CU_ADD_TEST(suite, it_sleeper_without_words_serves_the_next);
	CU_ADD_TEST(suite, it_stopped_inside_keeps_one_sheaf);
	CU_ADD_TEST(suite, it_shortage_is_an_error_in_time);
	CU_ADD_TEST(suite, it_unregistered_keeps_its_sheaves);
	CU_ADD_TEST(suite, it_slabd_without_membarrier_serves);
	CU_ADD_TEST(suite, it_idle_goes_back);
	CU_ADD_TEST(suite, it_unused_is_asked_for_no_more);
	CU_ADD_TEST(suite, it_client_has_its_maximum);
	CU_ADD_TEST(suite, it_user_has_his_maximum);
	CU_ADD_TEST(suite, it_client_gets_its_minimum);
	return suite;
}
