/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that look at much (server/task.h): whoever asks for them, in whatever mass, keeps nobody else waiting. */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/harness.h"

CU_pSuite it_turns_suite(void);

enum { N_OBJECTS = 4000000, BULK = 1000, N_FLOODERS = 3, N_TRIES = 5 };

static const int64_t max_wait_ns = 100000000, try_ns = 1000000000;

struct flood {
	struct harness *h;
	enum proto_op op;
	uint32_t id; /* of each request: 0, and nobody waits */
	uint32_t repair;
};

/* Sends as fast as slabd reads, and takes what answers there are; until the test kills it. */
static void
flood(struct peer *me, void *arg)
{
	const struct flood *f = arg;
	union proto_request request = {0};
	union proto_reply reply;
	struct raw raw;

	if (f->op == PROTO_OP_AUDIT)
		request.audit.repair = f->repair;
	raw_attach(&raw, f->h->socket, "floods");
	raw_cache_open(&raw, "many", 16, 0);
	if (f->op == PROTO_OP_DESTROY)
		snprintf(request.destroy.name, sizeof request.destroy.name, "many");
	peer_tell(me, 'r');
	while (raw_send(raw.fd, f->op, f->id, &request) == 0)
		if (f->id)
			raw_receive(raw.fd, f->op, f->id, &reply, NULL);
}

/* The longest that one who asks for an object waits, in a second.  The cache has no sheaves. */
static int64_t
worst_alloc_ns(struct slabc_cache *k)
{
	int64_t end = harness_now_ns() + try_ns, worst = 0, start;

	while ((start = harness_now_ns()) < end) {
		void *p = slabc_alloc(k);
		int64_t waited = harness_now_ns() - start;

		CHECK(p != NULL);
		worst = waited > worst ? waited : worst;
		slabc_free(k, p);
	}
	return worst;
}

/* Four million objects, and three clients who do nothing but ask for walks over them. */
static void
it_floods_keep_nobody_waiting(void)
{
	static const struct {
		enum proto_op op;
		uint32_t id;
		uint32_t repair;
	} floods[] = {{PROTO_OP_AUDIT, 1, 0}, {PROTO_OP_AUDIT, 1, 1}, {PROTO_OP_CLIENTS, 1, 0}, {PROTO_OP_ORPHANS, 1, 0}, {PROTO_OP_SESSION_STATS, 1, 0},
		{PROTO_OP_DESTROY, 1, 0}, {PROTO_OP_ORPHANS, 0, 0}, {PROTO_OP_DESTROY, 0, 0}};
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "has many");
	struct slabc_cache *k = harness_open_cache(c, "many", 16, 0);
	struct slabc_stats stats = SLABC_STATS_INIT;
	static void *pv[BULK];
	struct slabc_cache_options options = SLABC_CACHE_OPTIONS_INIT;
	struct slabc_cache *few;

	for (int i = 0; i < N_OBJECTS / BULK; i++)
		REQUIRE(slabc_alloc_bulk(k, BULK, pv) == 0);
	options.sheaf_capacity = SLABC_SHEAVES_NONE;
	REQUIRE(slabc_cache_open(c, "few", 64, &options, &few) == 0);
	for (unsigned i = 0; i < sizeof floods / sizeof floods[0]; i++) {
		struct flood f = {h, floods[i].op, floods[i].id, floods[i].repair};
		int64_t worst = INT64_MAX, now;
		pid_t pids[N_FLOODERS];

		for (int j = 0; j < N_FLOODERS; j++) {
			pids[j] = harness_spawn(h, flood, &f);
			peer_await(harness_peer(h, pids[j]), 'r');
		}
		/* The machine may be what keeps a try waiting. */
		for (int j = 0; j < N_TRIES && worst > max_wait_ns; j++) {
			now = worst_alloc_ns(few);
			worst = now < worst ? now : worst;
		}
		printf(" op %d: %.1f ms ", (int)f.op, (double)worst / 1e6);
		CHECK(worst <= max_wait_ns);
		/* In its time. */
		CHECK(slabc_get_stats(c, &stats) == 0 && stats.bytes_held >= N_OBJECTS * 16ull);
		for (int j = 0; j < N_FLOODERS; j++)
			harness_kill(h, pids[j], SIGKILL);
		/* Nothing of what the dead asked for is done after them. */
		now = harness_now_ns();
		harness_status(h);
		CHECK(harness_now_ns() - now < try_ns);
	}
	slabc_close(c);
}

CU_pSuite
it_turns_suite(void)
{
	CU_pSuite suite = harness_suite("turns");

	CU_ADD_TEST(suite, it_floods_keep_nobody_waiting);
	return suite;
}
