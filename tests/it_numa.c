/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placement on a machine of two nodes with memory and CPUs, the kernel's 0 and 1: whose client gets which node's memory.
 *
 * Where there are no such nodes the suite is not there (tests/check-numa.sh boots a guest that has them).  A client is a process bound to
 * the CPUs of one node; where a page lies the kernel says, to whoever maps it.
 */
#include <errno.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/harness.h"

CU_pSuite it_numa_suite(void);

enum { N_NODES = 2, PAGE = 4096, HUGE_BYTES = 2 << 20, MAX_OBJECTS = 8192, POOL = 8 };

#define NODE_DIR "/sys/devices/system/node/node%u/"
#define POOL_DIR NODE_DIR "hugepages/hugepages-2048kB/"

static long
node_number(const char *format, unsigned node)
{
	char path[128];
	FILE *file;
	long n = -1;

	snprintf(path, sizeof path, format, node);
	file = fopen(path, "re");
	if (file && fscanf(file, "%ld", &n) != 1)
		n = -1;
	if (file)
		fclose(file);
	return n;
}

/* Those of the first range that the kernel lists; false: it has none. */
static bool
cpus_of(unsigned node, cpu_set_t *set)
{
	unsigned from, to;
	char path[128];
	FILE *file;
	int n;

	snprintf(path, sizeof path, NODE_DIR "cpulist", node);
	file = fopen(path, "re");
	if (!file)
		return false;
	n = fscanf(file, "%u-%u", &from, &to);
	fclose(file);
	CPU_ZERO(set);
	for (unsigned cpu = from; n > 0 && cpu <= (n == 2 ? to : from) && cpu < CPU_SETSIZE; cpu++)
		CPU_SET(cpu, set);
	return n > 0;
}

static bool
pool_set(unsigned node, unsigned n)
{
	char path[128];
	FILE *file;

	snprintf(path, sizeof path, POOL_DIR "nr_hugepages", node);
	file = fopen(path, "we");
	if (file) {
		fprintf(file, "%u\n", n);
		fclose(file);
	}
	return node_number(POOL_DIR "free_hugepages", node) == (long)n;
}

/* Both nodes' pools; put back at the end of the test as one pool. */
static bool
pools_take(unsigned on_0, unsigned on_1)
{
	if (!hugepages_take(0))
		return false;
	return CHECK(pool_set(0, on_0) && pool_set(1, on_1));
}

/* Where the page lies that p points into; -1: the kernel does not say. */
static int
node_of(const volatile void *p)
{
	int node = -1;

	return syscall(SYS_get_mempolicy, &node, NULL, 0, p, MPOL_F_NODE | MPOL_F_ADDR) == 0 ? node : -1;
}

/* A client on a node. */
struct job {
	struct harness *h;
	unsigned node;
	unsigned n; /* objects of a page */
	const char *cache;
	bool is_refused; /* it wants more than it gets */
};

struct seen {
	unsigned n_on[N_NODES];
	slabc_ref ref; /* of the first */
};

static void
bind_to(unsigned node)
{
	cpu_set_t set;
	unsigned cpu, here;

	REQUIRE(cpus_of(node, &set));
	REQUIRE(sched_setaffinity(0, sizeof set, &set) == 0);
	REQUIRE(getcpu(&cpu, &here) == 0 && here == node);
}

static void
client(struct peer *me, void *arg)
{
	static unsigned char *pv[MAX_OBJECTS];
	const struct job *job = arg;
	struct seen seen = {0};
	struct slabc_cache *k;
	struct slabc *c;
	unsigned n = 0;

	bind_to(job->node);
	c = harness_open(job->h, "on a node");
	k = harness_open_cache(c, job->cache, PAGE, 0);
	for (; n < job->n; n++) {
		int node;

		pv[n] = slabc_alloc(k);
		if (!pv[n] && job->is_refused)
			break;
		REQUIRE(pv[n] != NULL);
		memset(pv[n], 77, PAGE);
		node = node_of(pv[n]);
		REQUIRE(node >= 0 && node < N_NODES);
		seen.n_on[node]++;
	}
	if (job->is_refused)
		CHECK(n < job->n && errno == ENOMEM && strstr(slabc_last_error(), "node 1 alone may serve this client (node-policy=strict"));
	REQUIRE((seen.ref = slabc_ref_of(c, pv[0])) != 0);
	peer_put(me, &seen, sizeof seen);
	peer_await(me, 'f');
	for (unsigned i = 0; i < n; i++)
		slabc_free(k, pv[i]);
	slabc_cache_close(k);
	peer_tell(me, 'e');
	peer_await(me, 'x');
	slabc_close(c);
}

static struct peer *
start(struct job *job, struct seen *seen)
{
	struct peer *peer = harness_peer(job->h, harness_spawn(job->h, client, job));

	peer_get(peer, seen, sizeof *seen);
	return peer;
}

static void
stop(struct harness *h, struct peer *peer)
{
	pid_t pid = peer->pid;

	peer_tell(peer, 'f');
	peer_await(peer, 'e');
	peer_tell(peer, 'x');
	harness_join(h, pid);
}

/* What `slabctl nodes` says of the i-th. */
static struct proto_nodes_reply
node_reply(struct harness *h, unsigned i)
{
	union proto_request request = {.nodes = {.after = i}};
	union proto_reply reply = {0};

	CHECK(harness_ask(h, PROTO_OP_NODES, &request, &reply) == PROTO_STATUS_OK);
	CHECK(reply.nodes.node == i + 1 && reply.nodes.os_node == i);
	return reply.nodes;
}

/* A client has its node's memory, whose client was there before, and at the second time too, after the pages went back. */
static void
each_has_its_own(const char *page_kind)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=%s --arena-size=64M", page_kind);

	CHECK(harness_status(h).n_nodes == N_NODES);
	for (unsigned round = 0; round < 2; round++) {
		struct job jobs[N_NODES];
		struct peer *peers[N_NODES];
		struct seen seen;

		for (unsigned i = 0; i < N_NODES; i++) {
			/* In the second round the other one comes first. */
			unsigned node = i ^ round;

			jobs[node] = (struct job){.h = h, .node = node, .n = 1000 + node, .cache = "k"};
			peers[node] = start(&jobs[node], &seen);
			CHECK(seen.n_on[node] == 1000 + node && seen.n_on[!node] == 0);
			CHECK(node_reply(h, node).huge_bytes + node_reply(h, node).small_bytes >= 1000u * PAGE);
		}
		CHECK(harness_status(h).n_misplaced == 0);
		for (unsigned node = 0; node < N_NODES; node++)
			stop(h, peers[node]);
		CHECK(EVENTUALLY(harness_status(h).committed_bytes == 0));
	}
	CHECK(node_reply(h, 0).given_back_bytes > 0 && node_reply(h, 1).given_back_bytes > 0);
	CHECK(harness_audit(h).n_lost == 0);
}

static void
it_small_pages_lie_on_the_clients_node(void)
{
	each_has_its_own("4k");
}

static void
it_transparent_pages_lie_on_the_clients_node(void)
{
	each_has_its_own("thp,4k");
}

static void
it_huge_pages_lie_on_the_clients_node(void)
{
	if (pools_take(POOL, POOL))
		each_has_its_own("huge");
}

/* A client whose node has no huge page left gets them from the other node, and each page is where slabd counts it. */
static void
it_full_node_is_helped_by_the_other(void)
{
	struct seen seen;
	struct peer *peer;
	unsigned n_helped;

	if (!pools_take(POOL, 4))
		return;
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=huge --arena-size=64M");
	struct job job = {.h = h, .node = 1, .n = 6 * HUGE_BYTES / PAGE, .cache = "k"};

	peer = start(&job, &seen);
	CHECK(seen.n_on[1] == 4 * HUGE_BYTES / PAGE && seen.n_on[0] == 2 * HUGE_BYTES / PAGE);
	/* What was granted ahead lies there too. */
	n_helped = (unsigned)(node_reply(h, 0).huge_bytes / HUGE_BYTES);
	CHECK(node_reply(h, 1).huge_bytes == 4u * HUGE_BYTES && n_helped >= 2);
	CHECK(node_number(POOL_DIR "free_hugepages", 1) == 0 && node_number(POOL_DIR "free_hugepages", 0) == POOL - (long)n_helped);
	CHECK(node_reply(h, 1).n_commit_fails > 0 && node_reply(h, 0).n_commit_fails == 0);
	CHECK(node_reply(h, 1).n_from_elsewhere >= 2 * HUGE_BYTES / PAGE && node_reply(h, 0).n_from_elsewhere == 0);
	CHECK(harness_log_count(h, "node 1 has no memory for its clients: they get objects on node 0") == 1);
	CHECK(harness_status(h).n_misplaced == 0);
	stop(h, peer);
	CHECK(EVENTUALLY(node_number(POOL_DIR "free_hugepages", 1) == 4 && node_number(POOL_DIR "free_hugepages", 0) == POOL));
}

/* By node-policy=strict it gets none from there, but an error that names its node; clients of the other node have theirs. */
static void
it_strict_keeps_to_its_node(void)
{
	struct seen seen[2];
	struct peer *peers[2];

	if (!pools_take(POOL, 2))
		return;
	CLEANUP(harness_free)
	struct harness *h = harness_slabd_config("[arena]\nsize = 64M\npage-kind = huge\nnode-policy = strict\n");
	struct job refused = {.h = h, .node = 1, .n = 6 * HUGE_BYTES / PAGE, .cache = "k", .is_refused = true};
	struct job other = {.h = h, .node = 0, .n = 4 * HUGE_BYTES / PAGE, .cache = "k"};

	peers[0] = start(&refused, &seen[0]);
	CHECK(seen[0].n_on[1] == 2 * HUGE_BYTES / PAGE && seen[0].n_on[0] == 0);
	peers[1] = start(&other, &seen[1]);
	CHECK(seen[1].n_on[0] == other.n && seen[1].n_on[1] == 0);
	CHECK(node_reply(h, 0).n_from_elsewhere == 0 && node_reply(h, 1).n_from_elsewhere == 0);
	stop(h, peers[0]);
	stop(h, peers[1]);
}

/* Of a ladder, the node's own small pages come before the other node's huge ones. */
static void
it_own_small_pages_come_before_others_huge_ones(void)
{
	struct seen seen;
	struct peer *peer;

	if (!pools_take(POOL, 2))
		return;
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=huge,4k --arena-size=64M");
	struct job job = {.h = h, .node = 1, .n = 4 * HUGE_BYTES / PAGE, .cache = "k"};

	peer = start(&job, &seen);
	CHECK(seen.n_on[1] == job.n && seen.n_on[0] == 0);
	CHECK(node_reply(h, 1).huge_bytes == 2u * HUGE_BYTES && node_reply(h, 1).small_bytes >= 2u * HUGE_BYTES);
	CHECK(node_reply(h, 0).huge_bytes == 0 && node_reply(h, 0).small_bytes == 0);
	stop(h, peer);
}

/* Each node carries its part of the reserve. */
static void
it_reserve_is_shared_among_the_nodes(void)
{
	if (!pools_take(POOL, POOL))
		return;
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=huge --arena-size=64M --reserve=16M");

	for (unsigned node = 0; node < N_NODES; node++) {
		CHECK(node_reply(h, node).huge_bytes == 8u << 20);
		CHECK(node_number(POOL_DIR "free_hugepages", node) == POOL - 4);
	}
	CHECK(harness_status(h).n_misplaced == 0);
}

struct reading {
	struct harness *h;
	slabc_ref ref;
};

static void
read_far(struct peer *me, void *arg)
{
	const struct reading *reading = arg;
	const volatile unsigned char *p;
	struct slabc *c;

	bind_to(0);
	c = harness_open(reading->h, "reads from afar");
	REQUIRE((p = slabc_deref(c, reading->ref)) != NULL);
	CHECK(p[0] == 77 && node_of(p) == 1);
	peer_tell(me, 'r');
	peer_await(me, 'f');
	/* It was freed, and used again: it has not moved. */
	(void)p[0];
	CHECK(slabc_valid(c, reading->ref) == 0 && node_of(p) == 1);
	slabc_close(c);
}

/* Pages that are kept for a reader on the other node stay where they are, and serve the clients of their own node again. */
static void
it_kept_pages_stay_on_their_node(void)
{
	struct peer *peer, *far;
	struct seen seen;

	if (!pools_take(POOL, 2))
		return;
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=huge --arena-size=64M");
	struct job job = {.h = h, .node = 1, .n = 2 * HUGE_BYTES / PAGE, .cache = "k"};
	struct job again = {.h = h, .node = 1, .n = HUGE_BYTES / PAGE, .cache = "again"};
	struct reading reading = {.h = h};

	peer = start(&job, &seen);
	CHECK(seen.n_on[1] == job.n);
	reading.ref = seen.ref;
	far = harness_peer(h, harness_spawn(h, read_far, &reading));
	peer_await(far, 'r');
	stop(h, peer);
	CHECK(EVENTUALLY(node_reply(h, 1).kept_bytes == 2u * HUGE_BYTES) && node_reply(h, 0).kept_bytes == 0);
	peer = start(&again, &seen);
	CHECK(seen.n_on[1] == again.n && seen.n_on[0] == 0);
	peer_tell(far, 'f');
	harness_join(h, far->pid);
	stop(h, peer);
	CHECK(EVENTUALLY(node_number(POOL_DIR "free_hugepages", 1) == 2));
	CHECK(harness_status(h).kept_bytes == 0 && harness_status(h).n_misplaced == 0);
}

/* The table has a line a node, by the kernel's numbers. */
static void
it_nodes_are_shown(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=64M --reserve=8M");
	char out[4096], slabctl[128], socket[128];
	char *argv[] = {slabctl, socket, (char[]){"nodes"}, NULL};
	unsigned line[N_NODES];
	unsigned long long huge, small[N_NODES];
	char *next;

	snprintf(slabctl, sizeof slabctl, "%s", harness_path("SLABCTL"));
	snprintf(socket, sizeof socket, "--socket=%s", h->socket);
	REQUIRE(harness_run(argv, NULL, out, sizeof out) == 0);
	REQUIRE((next = strchr(out, '\n')) != NULL);
	for (unsigned i = 0; i < N_NODES; i++) {
		REQUIRE(next && sscanf(next + 1, "%u %llu %llu", &line[i], &huge, &small[i]) == 3);
		CHECK(line[i] == i && huge == 0 && small[i] == 4u << 20);
		next = strchr(next + 1, '\n');
	}
}

CU_pSuite
it_numa_suite(void)
{
	CU_pSuite suite;
	cpu_set_t set;

	for (unsigned node = 0; node < N_NODES; node++)
		if (!cpus_of(node, &set) || node_number(POOL_DIR "nr_hugepages", node) < 0)
			return NULL;
	suite = harness_suite("numa");
	CU_ADD_TEST(suite, it_small_pages_lie_on_the_clients_node);
	CU_ADD_TEST(suite, it_transparent_pages_lie_on_the_clients_node);
	CU_ADD_TEST(suite, it_huge_pages_lie_on_the_clients_node);
	CU_ADD_TEST(suite, it_full_node_is_helped_by_the_other);
	CU_ADD_TEST(suite, it_strict_keeps_to_its_node);
	CU_ADD_TEST(suite, it_own_small_pages_come_before_others_huge_ones);
	CU_ADD_TEST(suite, it_reserve_is_shared_among_the_nodes);
	CU_ADD_TEST(suite, it_kept_pages_stay_on_their_node);
	CU_ADD_TEST(suite, it_nodes_are_shown);
	return suite;
}
