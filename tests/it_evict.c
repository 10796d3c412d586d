/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eviction (design.md, I8): who goes on writing nonsense into his own session segment is named, and after max-faults of these his session ends as if his
 * process had died.  What others can have spoilt counts for nothing.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/word.h"
#include "tests/harness.h"

CU_pSuite it_evict_suite(void);

enum { MAX_FAULTS = 50, N_HELD = 10, N_SHEAF = 40 };

#define CONFIG "[slabd]\nthreads = 2\n[arena]\npage-kind = 4k\nsize = 64M\nmax-faults = 50\n"

/* As on a slabd of that configuration. */
static struct proto_arenas_reply
arena_of(struct harness *h)
{
	union proto_request request = {0};
	union proto_reply reply = {0};

	CHECK(harness_ask(h, PROTO_OP_ARENAS, &request, &reply) == PROTO_STATUS_OK);
	return reply.arenas;
}

/* A list that never ends, of a slot that it has not, given back for ever: a fault each time slabd looks. */
static void
loop_list(char *session, uint32_t cache)
{
	struct layout_slot *slots = (struct layout_slot *)(void *)(session + LAYOUT_SESSION_SLOTS_OFF);
	struct layout_session_cache *lists = (struct layout_session_cache *)(void *)(session + LAYOUT_SESSION_CACHES_OFF) + cache;

	atomic_write(&slots[0].holder, LAYOUT_HOLDER_RETURNED);
	atomic_write(&slots[0].next, 1);
	atomic_write(&lists->returned, (uint64_t)1 << 16 | 1);
}

static bool
is_hung_up(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	char c;

	return poll(&p, 1, HARNESS_PATIENCE_MS) == 1 && recv(fd, &c, 1, MSG_DONTWAIT) <= 0;
}

/* Holds some objects of a sheaf of a RECLAIM cache, and has a first slot that is slabd's again. */
static uint32_t
begin(struct raw *raw, struct harness *h, const char *label)
{
	union proto_request flush = {0};
	union proto_reply reply;
	uint32_t cache, slot;

	raw_attach(raw, h->socket, label);
	cache = raw_cache_open(raw, "k", 64, SLABC_RECLAIM);
	slot = raw_prefill(raw, cache, 1);
	CHECK(slot == 0);
	atomic_write(&raw->slots[0].holder, LAYOUT_HOLDER_RETURNED);
	atomic_write(&((struct layout_session_cache *)(void *)(raw->session + LAYOUT_SESSION_CACHES_OFF) + cache)->returned, 1u << 16 | 1);
	flush.flush.cache = cache;
	CHECK(raw_call(raw->fd, PROTO_OP_FLUSH, &flush, &reply, NULL) == PROTO_STATUS_OK);
	slot = raw_prefill(raw, cache, N_SHEAF);
	for (int i = 0; i < N_HELD; i++) {
		struct sheaf *sheaf = raw_sheaf(raw, slot);
		uint32_t *word = raw_word(raw, sheaf->entry[sheaf->size - 1]);

		*word = word_with(*word + WORD_GENERATION_ONE, raw->attach.client, WORD_OWNED);
		sheaf->size--;
	}
	return cache;
}

struct task {
	struct harness *h;
	uint32_t old_id;
	bool is_silent; /* others make slabd look */
};

static void
be_faulty(struct peer *me, void *arg)
{
	struct task *task = arg;
	union proto_request request = {0};
	union proto_reply reply;
	struct raw raw, again;
	uint32_t cache = begin(&raw, task->h, "faulty");

	peer_put(me, &raw.attach.client_id, sizeof raw.attach.client_id);
	peer_await(me, 'g');
	loop_list(raw.session, cache);
	peer_tell(me, 'l');
	request.flush.cache = cache;
	while (!task->is_silent && raw_call(raw.fd, PROTO_OP_FLUSH, &request, &reply, NULL) >= 0)
		;
	CHECK(is_hung_up(raw.fd));
	/* It cannot have that session back, and may have another. */
	again = (struct raw){.fd = raw_connect(task->h->socket)};
	CHECK(raw_hello(again.fd) == 0);
	request = (union proto_request){.resume = {.arena = SLABC_DEFAULT_ARENA, .client_id = raw.attach.client_id, .token = raw.attach.token}};
	CHECK(raw_call(again.fd, PROTO_OP_RESUME, &request, &reply, NULL) == PROTO_STATUS_STALE);
	close(again.fd);
	begin(&again, task->h, "another");
	/* And goes on in the old segment, which is nobody's. */
	loop_list(raw.session, cache);
	peer_tell(me, 'd');
	peer_await(me, 'e');
}

static void
check_eviction(bool is_silent)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd_config(CONFIG);
	struct task task = {.h = h, .is_silent = is_silent};
	struct slabc *c = harness_open(h, "honest");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, SLABC_RECLAIM);
	void *p = slabc_alloc(k);
	pid_t pid = harness_spawn(h, be_faulty, &task);
	struct peer *peer = harness_peer(h, pid);
	struct proto_audit_reply audit;
	uint32_t id;

	peer_get(peer, &id, sizeof id);
	CHECK(harness_client_id(h, id).n_held == N_HELD && harness_client_id(h, id).n_faults == 0);
	peer_tell(peer, 'g');
	peer_await(peer, 'l');
	if (is_silent)
		CHECK(EVENTUALLY(slabc_cache_shrink(k) == 0 && harness_log_count(h, "'faulty') is evicted") == 1));
	peer_await(peer, 'd');
	CHECK(harness_log_count(h, "'faulty') is evicted: it did ") == 1);
	CHECK(harness_log_count(h, "max-faults of arena 'default' is 50") == 1);
	CHECK(EVENTUALLY(harness_log_count(h, "'faulty') has ended: 10 of its objects freed") == 1));
	CHECK(arena_of(h).n_evicted == 1);
	CHECK(harness_client_id(h, id).client_id != id);
	/* The honest one and the other session of the same process are as they were. */
	CHECK(harness_client_id(h, slabc_client_id(c)).n_faults == 0);
	CHECK(strcmp(harness_client(h, pid).label, "another") == 0 && harness_client(h, pid).n_held == N_HELD);
	audit = harness_audit(h);
	CHECK(audit.n_lost == 0 && audit.n_doubled == 0 && audit.n_undecided == 0 && audit.n_held == N_HELD + 1);
	slabc_free(k, p);
	harness_kill(h, pid, SIGKILL);
	harness_wait_reaped(h, pid);
	slabc_close(c);
	audit = harness_audit(h);
	CHECK(audit.n_out == 0 && audit.n_lost == 0);
}

static void
it_faulty_client_is_evicted(void)
{
	check_eviction(false);
}

/* Also one that says nothing, whose faults slabd meets when it works for others. */
static void
it_silent_faulty_client_is_evicted(void)
{
	check_eviction(true);
}

/* The library's own mapping of its session segment. */
static char *
find_session_map(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long start, found = 0;
	char line[512];

	while (maps && fgets(line, sizeof line, maps))
		if (strstr(line, "slabd:session") && sscanf(line, "%lx-", &start) == 1)
			found = start;
	if (maps)
		fclose(maps);
	return (char *)found;
}

static void
spoil_library(struct peer *me, void *arg)
{
	struct harness *h = arg;
	struct slabc *c = harness_open(h, "spoilt");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	char *session = find_session_map();
	unsigned n = 0;
	void *p;

	REQUIRE(session != NULL);
	/* A slot that is slabd's: one that has gone back. */
	CHECK(slabc_alloc(k) != NULL);
	CHECK(slabc_cache_shrink(k) == 0);
	errno = 0;
	do {
		/* Sheaves larger than they may be, all of them, given back. */
		struct layout_slot *slots = (struct layout_slot *)(void *)(session + LAYOUT_SESSION_SLOTS_OFF);
		struct layout_session *head = (struct layout_session *)(void *)session;

		for (uint32_t slot = 0; slot < head->n_slots && slot < LAYOUT_MAX_SLOTS; slot++)
			((struct sheaf *)(void *)(session + (size_t)slots[slot].off * LAYOUT_SLOT_UNIT))->size = UINT32_MAX;
		slabc_cache_shrink(k);
		p = NULL;
		errno = 0;
		for (int i = 0; i < 100 && (p = slabc_zalloc(k)); i++)
			;
	} while (++n < 1000 && (p || errno != ENOTCONN));
	CHECK(!p && errno == ENOTCONN);
	slabc_close(c);
	/* A new one is as good as any. */
	c = harness_open(h, "new");
	k = harness_open_cache(c, "k", 64, 0);
	CHECK(slabc_alloc(k) != NULL);
	slabc_close(c);
	peer_tell(me, 'd');
}

/* An evicted program is told by its calls, as if its session had been lost. */
static void
it_evicted_program_is_told(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd_config(CONFIG);
	pid_t pid = harness_spawn(h, spoil_library, h);

	peer_await(harness_peer(h, pid), 'd');
	harness_join(h, pid);
	CHECK(harness_log_count(h, "'spoilt') is evicted") == 1);
	CHECK(EVENTUALLY(harness_status(h).n_sessions == 0));
	CHECK(arena_of(h).n_evicted == 1);
}

/* Objects that are not his to give back: others of the arena can have brought that about, by giving them back first.  It is counted, and he stays. */
static void
it_who_may_be_a_victim_is_not_evicted(void)
{
	enum { N = 10 * MAX_FAULTS };
	CLEANUP(harness_free) struct harness *h = harness_slabd_config(CONFIG);
	struct layout_session_cache *lists;
	union proto_request flush = {0};
	union proto_reply reply;
	struct sheaf *sheaf;
	struct raw raw;
	uint32_t cache, slot, place;

	raw_attach(&raw, h->socket, "victim");
	cache = raw_cache_open(&raw, "k", 64, 0);
	lists = (struct layout_session_cache *)(void *)(raw.session + LAYOUT_SESSION_CACHES_OFF) + cache;
	slot = raw_prefill(&raw, cache, N);
	sheaf = raw_sheaf(&raw, slot);
	place = sheaf->entry[0];
	for (uint32_t i = 0; i < N; i++)
		sheaf->entry[i] = place;
	atomic_write(&raw.slots[slot].holder, LAYOUT_HOLDER_RETURNED);
	atomic_write(&lists->returned, (uint64_t)1 << 16 | (slot + 1));
	flush.flush.cache = cache;
	CHECK(raw_call(raw.fd, PROTO_OP_FLUSH, &flush, &reply, NULL) == PROTO_STATUS_OK);
	CHECK(harness_client_id(h, raw.attach.client_id).n_faults == N - 1);
	CHECK(raw_call(raw.fd, PROTO_OP_FLUSH, &flush, &reply, NULL) == PROTO_STATUS_OK);
	CHECK(strcmp(harness_client_id(h, raw.attach.client_id).state, "live") == 0);
	CHECK(harness_log_count(h, "is evicted") == 0 && arena_of(h).n_evicted == 0);
	raw_detach(&raw);
}

CU_pSuite
it_evict_suite(void)
{
	CU_pSuite suite = harness_suite("evict");

	CU_ADD_TEST(suite, it_faulty_client_is_evicted);
	CU_ADD_TEST(suite, it_silent_faulty_client_is_evicted);
	CU_ADD_TEST(suite, it_evicted_program_is_told);
	CU_ADD_TEST(suite, it_who_may_be_a_victim_is_not_evicted);
	return suite;
}
