/* SPDX-License-Identifier: Apache-2.0 */
/* Readers: memory on hugetlb pages stays readable for who resolved a reference into it, though the object was freed and the pool is empty;
 * no longer than that, and for nobody else. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shm/segment.h"
#include "tests/harness.h"

CU_pSuite it_readers_suite(void);

enum {
	PAGE = 4096,
	HUGE_BYTES = 2 << 20,
	POOL = 3,
	N_UNITS = 2,
	N_OBJECTS = N_UNITS * HUGE_BYTES / PAGE - 64, /* a few less than fill them: some are asked for ahead */
	N_LATER = N_UNITS * HUGE_BYTES / 2 / PAGE, /* of another cache: fewer than fill them */
};

/* What a child does with the reference that it gets. */
struct ask {
	struct harness *h;
	unsigned flags; /* SLABC_RDONLY */
	enum { RESOLVES, RESOLVES_STALE, LOOKS } how;
};

static struct slabc *
open_with(const struct harness *h, unsigned flags)
{
	struct slabc_options options = SLABC_OPTIONS_INIT;
	struct slabc *c = NULL;

	options.socket = h->socket;
	options.flags = flags;
	options.timeout_ms = 10000;
	REQUIRE(slabc_open(&c, &options) == 0);
	return c;
}

/* Without a resolving call: what these say needs no page of the object. */
static void
look_only(struct slabc *c, slabc_ref ref)
{
	slabc_ref same = 0;

	CHECK(slabc_valid(c, ref) == 1);
	CHECK(slabc_lookup(c, "the object", &same) == 0 && same == ref);
}

static void
reader(struct peer *me, void *arg)
{
	const struct ask *ask = arg;
	struct slabc *c = open_with(ask->h, ask->flags);
	const volatile unsigned char *p = NULL;
	slabc_ref ref;

	peer_tell(me, 'o');
	peer_get(me, &ref, sizeof ref);
	if (ask->how == RESOLVES) {
		REQUIRE((p = slabc_deref(c, ref)) != NULL);
		CHECK(p[0] == 77 && p[PAGE - 1] == 77 && slabc_valid(c, ref) == 1);
	} else if (ask->how == RESOLVES_STALE) {
		errno = 0;
		CHECK(slabc_deref(c, ref) == NULL && errno == ESTALE);
	} else {
		look_only(c, ref);
	}
	peer_tell(me, 'r');
	peer_await(me, 'f');
	/* It was freed: what lies there may be read, and slabc_valid() says that it is not what was meant. */
	for (unsigned i = 0; p && i < PAGE; i += 64)
		(void)p[i];
	CHECK(slabc_valid(c, ref) == 0);
	peer_tell(me, 'v');
	peer_await(me, 'c');
	slabc_close(c);
	peer_tell(me, 'e');
	peer_await(me, 'x');
}

static struct peer *
start_reader(struct ask *ask, pid_t *pidp)
{
	struct peer *peer;

	*pidp = harness_spawn(ask->h, reader, ask);
	peer = harness_peer(ask->h, *pidp);
	peer_await(peer, 'o');
	return peer;
}

static void
close_reader(struct harness *h, struct peer *peer, pid_t pid)
{
	peer_tell(peer, 'c');
	peer_await(peer, 'e');
	peer_tell(peer, 'x');
	harness_join(h, pid);
}

/* What the pool has left, in somebody else's hands. */
static int
hog(void)
{
	unsigned n = hugepages_free();
	int fd;

	if (n == 0)
		return -1;
	fd = segment_create("hog", (uint64_t)n * HUGE_BYTES, LAYOUT_PAGES_HUGE, 0);
	REQUIRE(fd >= 0);
	REQUIRE(fallocate(fd, 0, 0, (off_t)n * HUGE_BYTES) == 0);
	REQUIRE(hugepages_free() == 0);
	return fd;
}

struct owner {
	struct slabc *c;
	struct slabc_cache *k;
	void *pv[N_OBJECTS];
	slabc_ref ref;
	unsigned n_units; /* that it takes: N_UNITS, but one more where it was moved from one node to another */
};

/* Objects that fill the units; the first is shared, under a name. */
static void
own(struct owner *o, struct harness *h)
{
	o->c = open_with(h, 0);
	o->k = harness_open_cache(o->c, "k", PAGE, 0);
	for (unsigned i = 0; i < N_OBJECTS; i++) {
		REQUIRE((o->pv[i] = slabc_alloc(o->k)) != NULL);
		memset(o->pv[i], 77, PAGE);
	}
	REQUIRE((o->ref = slabc_ref_of(o->c, o->pv[0])) != 0);
	CHECK(slabc_publish(o->c, "the object", o->ref, SLABC_REPLACE) == 0);
	o->n_units = (unsigned)((harness_status(h).committed_bytes + HUGE_BYTES - 1) / HUGE_BYTES);
	CHECK(o->n_units == N_UNITS || (o->n_units == POOL && harness_status(h).n_nodes > 1));
}

static void
disown(struct owner *o)
{
	for (unsigned i = 0; i < N_OBJECTS; i++)
		slabc_free(o->k, o->pv[i]);
	CHECK(slabc_cache_shrink(o->k) == 0);
	slabc_cache_close(o->k);
}

static void
check_kept(struct harness *h, uint64_t n_units)
{
	struct proto_status_reply status = harness_status(h);
	uint64_t kept_bytes = 0, free_bytes = 0;

	CHECK(status.kept_bytes == n_units * HUGE_BYTES);
	CHECK(status.committed_bytes == n_units * HUGE_BYTES && status.bytes_huge == n_units * HUGE_BYTES);
	for (uint32_t node = 0; node < status.n_nodes; node++) {
		union proto_request request = {.nodes = {.after = node}};
		union proto_reply reply = {0};

		CHECK(harness_ask(h, PROTO_OP_NODES, &request, &reply) == PROTO_STATUS_OK);
		kept_bytes += reply.nodes.kept_bytes;
		free_bytes += reply.nodes.free_bytes;
	}
	CHECK(kept_bytes == n_units * HUGE_BYTES && free_bytes == n_units * HUGE_BYTES);
}

/* One such reader, with the pool emptied behind its back. */
static void
one_reader(unsigned flags, bool is_killed)
{
	static struct owner o;
	struct peer *peer;
	int hog_fd;
	pid_t pid;

	if (!hugepages_take(POOL))
		return;
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=huge --arena-size=64M");
	struct ask ask = {.h = h, .flags = flags, .how = RESOLVES};

	own(&o, h);
	peer = start_reader(&ask, &pid);
	peer_put(peer, &o.ref, sizeof o.ref);
	peer_await(peer, 'r');
	disown(&o);
	check_kept(h, o.n_units);
	hog_fd = hog();
	/* A SIGBUS would end the child here. */
	peer_tell(peer, 'f');
	peer_await(peer, 'v');
	check_kept(h, o.n_units);
	if (is_killed)
		harness_kill(h, pid, SIGKILL);
	else
		close_reader(h, peer, pid);
	CHECK(EVENTUALLY(hugepages_free() == o.n_units));
	check_kept(h, 0);
	if (hog_fd >= 0)
		close(hog_fd);
	slabc_close(o.c);
	CHECK(harness_audit(h).n_lost == 0);
}

/* The reader of a freed object reads it, with the pool empty, and is told that it is stale; when it closes, the pages are the pool's again.
 */
static void
it_reader_of_a_freed_object(void)
{
	one_reader(0, false);
}

/* They are also when it is killed. */
static void
it_killed_reader_keeps_nothing(void)
{
	one_reader(0, true);
}

/* A read-only session has nowhere to say whether it reads. */
static void
it_readonly_session_counts_as_reader(void)
{
	one_reader(SLABC_RDONLY, false);
}

/* A session that only looks at references keeps nothing, and neither does the owner: the pages go at once. */
static void
it_looking_keeps_nothing(void)
{
	static struct owner o;
	struct peer *peer;
	pid_t pid;

	if (!hugepages_take(POOL))
		return;
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=huge --arena-size=64M");
	struct ask ask = {.h = h, .how = LOOKS};

	own(&o, h);
	peer = start_reader(&ask, &pid);
	peer_put(peer, &o.ref, sizeof o.ref);
	peer_await(peer, 'r');
	disown(&o);
	check_kept(h, 0);
	CHECK(EVENTUALLY(hugepages_free() == POOL));
	peer_tell(peer, 'f');
	peer_await(peer, 'v');
	close_reader(h, peer, pid);
	slabc_close(o.c);
}

/* A reader that came after the free cannot come to what was there: the pages go with the last of those that could. */
static void
it_later_reader_keeps_nothing(void)
{
	static struct owner o;
	struct peer *early, *late;
	pid_t early_pid, late_pid;

	if (!hugepages_take(POOL))
		return;
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=huge --arena-size=64M");
	struct ask ask = {.h = h, .how = RESOLVES}, ask_late = {.h = h, .how = RESOLVES_STALE};

	own(&o, h);
	early = start_reader(&ask, &early_pid);
	peer_put(early, &o.ref, sizeof o.ref);
	peer_await(early, 'r');
	disown(&o);
	late = start_reader(&ask_late, &late_pid);
	peer_put(late, &o.ref, sizeof o.ref);
	peer_await(late, 'r');
	check_kept(h, o.n_units);
	peer_tell(early, 'f');
	peer_await(early, 'v');
	close_reader(h, early, early_pid);
	CHECK(EVENTUALLY(hugepages_free() == POOL));
	check_kept(h, 0);
	peer_tell(late, 'f');
	peer_await(late, 'v');
	close_reader(h, late, late_pid);
	slabc_close(o.c);
}

/* What is kept serves other caches, in the place of pages that the pool no longer has. */
static void
it_kept_pages_are_used_again(void)
{
	static struct owner o;
	static unsigned char *pv[N_LATER];
	struct slabc_cache *k;
	struct peer *peer;
	int hog_fd;
	pid_t pid;

	if (!hugepages_take(POOL))
		return;
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=huge --arena-size=64M");
	struct ask ask = {.h = h, .how = RESOLVES};

	own(&o, h);
	peer = start_reader(&ask, &pid);
	peer_put(peer, &o.ref, sizeof o.ref);
	peer_await(peer, 'r');
	disown(&o);
	hog_fd = hog();
	k = harness_open_cache(o.c, "another", PAGE, 0);
	for (unsigned i = 0; i < N_LATER; i++) {
		REQUIRE((pv[i] = slabc_alloc(k)) != NULL);
		memset(pv[i], (int)(i % 251), PAGE);
	}
	CHECK(harness_status(h).committed_bytes == (uint64_t)o.n_units * HUGE_BYTES &&
		harness_status(h).kept_bytes < (uint64_t)o.n_units * HUGE_BYTES);
	CHECK(harness_status(h).n_misplaced == 0);
	peer_tell(peer, 'f');
	peer_await(peer, 'v');
	for (unsigned i = 0; i < N_LATER; i++) {
		CHECK(pv[i][0] == i % 251 && pv[i][PAGE - 1] == i % 251);
		slabc_free(k, pv[i]);
	}
	slabc_cache_close(k);
	check_kept(h, o.n_units);
	close_reader(h, peer, pid);
	CHECK(EVENTUALLY(hugepages_free() == o.n_units));
	check_kept(h, 0);
	if (hog_fd >= 0)
		close(hog_fd);
	slabc_close(o.c);
	CHECK(harness_audit(h).n_lost == 0);
}

/* A hole in 4 KiB pages can be read: they go at once, as they always did. */
static void
it_small_pages_go_at_once(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=64M");
	struct ask ask = {.h = h, .how = RESOLVES};
	static struct owner o;
	struct peer *peer;
	pid_t pid;

	own(&o, h);
	peer = start_reader(&ask, &pid);
	peer_put(peer, &o.ref, sizeof o.ref);
	peer_await(peer, 'r');
	disown(&o);
	check_kept(h, 0);
	peer_tell(peer, 'f');
	peer_await(peer, 'v');
	close_reader(h, peer, pid);
	slabc_close(o.c);
}

CU_pSuite
it_readers_suite(void)
{
	CU_pSuite suite = harness_suite("readers");

	CU_ADD_TEST(suite, it_reader_of_a_freed_object);
	CU_ADD_TEST(suite, it_killed_reader_keeps_nothing);
	CU_ADD_TEST(suite, it_readonly_session_counts_as_reader);
	CU_ADD_TEST(suite, it_looking_keeps_nothing);
	CU_ADD_TEST(suite, it_later_reader_keeps_nothing);
	CU_ADD_TEST(suite, it_kept_pages_are_used_again);
	CU_ADD_TEST(suite, it_small_pages_go_at_once);
	return suite;
}
