/* SPDX-License-Identifier: Apache-2.0 */
/* Wrong clients (design.md, I8): whatever one sends or scribbles, slabd and the others go on, and the offender is named. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/channel.h"
#include "proto/codec.h"
#include "shm/word.h"
#include "tests/harness.h"

CU_pSuite it_hostile_suite(void);

/* The other side has hung up, ten seconds at most. */
static bool
is_hung_up(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	char c[PROTO_MAX_PACKET];
	ssize_t n;

	do
		n = poll(&p, 1, HARNESS_PATIENCE_MS) == 1 ? recv(fd, c, sizeof c, MSG_DONTWAIT) : -1;
	while (n > 0);
	return n == 0 || (n < 0 && errno == ECONNRESET);
}

static void
check_hung_up(const struct harness *h, const void *packet, size_t n)
{
	int fd = raw_connect(h->socket);

	CHECK(raw_hello(fd) == 0);
	CHECK(send(fd, packet, n, MSG_NOSIGNAL) == (ssize_t)n);
	if (!CHECK(is_hung_up(fd)))
		fprintf(stderr, "    after a packet of %zu bytes, %02x...\n", n, *(const unsigned char *)packet);
	close(fd);
}

/* Packets that are none of the protocol's: the connection ends, each is counted, nobody else notices, no memory is taken by announced
 * counts. */
static void
it_malformed_packets(void)
{
	static const struct {
		const char *bytes;
		size_t n;
	} packets[] = {
		{"\xc1", 1},                                 /* no type at all */
		{"\x90", 1},                                 /* empty array */
		{"\x01", 1},                                 /* no array */
		{"\x92\x10", 2},                             /* one value short */
		{"\x92\x10\x01\x01", 4},                     /* one byte over */
		{"\x92\xa1x\x01", 4},                        /* op is a string */
		{"\x92\x10\xa1x", 4},                        /* id is a string */
		{"\x92\xff\x01", 3},                         /* negative */
		{"\xdd\xff\xff\xff\xff", 5},                 /* array32 of four billion */
		{"\xdc\xff\xff\x10\x01", 5},                 /* array16 */
		{"\xdf\xff\xff\xff\xff\x01\x01", 7},         /* map32 */
		{"\x93\x11\x01\xdd\xff\xff\xff\xff", 8},     /* as a field */
		{"\x93\x11\x01\xdb\xff\xff\xff\xff", 8},     /* str32 */
		{"\x93\x11\x01\xc6\xff\xff\xff\xff", 8},     /* bin32 */
		{"\x93\x11\x01\xc9\xff\xff\xff\xff\x01", 9}, /* ext32 */
		{"\x93\x11\x01\xcd\x02\x00", 6},             /* CACHES after 512: over its limit */
		{"\x94\x10\x01\x01\x01", 5},                 /* STATUS with fields */
	};
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "honest");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	static unsigned char deep[PROTO_MAX_PACKET];
	unsigned n_sent = 0;

	for (; n_sent < sizeof packets / sizeof packets[0]; n_sent++)
		check_hung_up(h, packets[n_sent].bytes, packets[n_sent].n);
	memset(deep, 0x91, sizeof deep);
	check_hung_up(h, deep, 10);
	check_hung_up(h, deep, 5000);
	check_hung_up(h, deep, sizeof deep);
	memset(deep, 0x81, sizeof deep);
	check_hung_up(h, deep, sizeof deep);
	n_sent += 4;
	CHECK(harness_status(h).n_bad_packets == n_sent);
	CHECK(harness_log_count(h, "none of the protocol's") > 0);
	for (int i = 0; i < 1000; i++)
		CHECK(slabc_alloc(k) != NULL);
	slabc_close(c);
}

/* Every well-formed request, cut short at every byte. */
static void
it_truncated_packets(void)
{
	static const enum proto_op ops[] = {
		PROTO_OP_HELLO, PROTO_OP_ATTACH, PROTO_OP_CACHE_OPEN, PROTO_OP_REFILL, PROTO_OP_FAULT, PROTO_OP_CACHES};
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	union proto_request request = {0};
	unsigned n_sent = 0;

	for (unsigned i = 0; i < sizeof ops / sizeof ops[0]; i++) {
		unsigned char packet[1024];
		int n = proto_pack_request(packet, sizeof packet, ops[i], 7, &request);

		for (int cut = 1; cut < n; cut++, n_sent++)
			check_hung_up(h, packet, (size_t)cut);
	}
	CHECK(harness_status(h).n_bad_packets == n_sent);
}

/* Random bytes, and well-formed requests with a few bytes changed. */
static void
it_random_packets(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "honest");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	unsigned seed = harness_seed();

	for (int i = 0; i < 2000; i++) {
		union proto_request request = {0};
		unsigned char packet[1024];
		int n, fd = raw_connect(h->socket);

		CHECK(raw_hello(fd) == 0);
		n = proto_pack_request(packet, sizeof packet, (enum proto_op)(1 + rand_r(&seed) % 19), 1, &request);
		if (n <= 0 || i % 2)
			n = 1 + rand_r(&seed) % 100;
		for (int j = 0; j < (i % 2 ? n : 1 + rand_r(&seed) % 3); j++)
			packet[i % 2 ? j : rand_r(&seed) % n] = (unsigned char)rand_r(&seed);
		send(fd, packet, (size_t)n, MSG_NOSIGNAL);
		close(fd);
	}
	CHECK(harness_status(h).n_bad_packets > 0);
	for (int i = 0; i < 1000; i++)
		CHECK(slabc_alloc(k) != NULL);
	slabc_close(c);
	CHECK(harness_audit(h).n_lost == 0);
}

/* A packet above 64 KiB is refused whole, and the connection is still good; so is an op that does not exist. */
static void
it_oversized_packet_and_unknown_op(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	static unsigned char packet[PROTO_MAX_PACKET + 1];
	int fd = raw_connect(h->socket);
	union proto_request request = {0};
	union proto_reply reply;
	ssize_t n;

	CHECK(raw_hello(fd) == 0);
	memset(packet, 0x90, sizeof packet);
	CHECK(send(fd, packet, sizeof packet, MSG_NOSIGNAL) == (ssize_t)sizeof packet);
	CHECK(raw_call(fd, PROTO_OP_STATUS, &request, &reply, NULL) == PROTO_STATUS_OK);
	CHECK(reply.status.n_bad_packets == 1);
	CHECK(send(fd, "\x92\x63\x05", 3, 0) == 3); /* op 99, id 5 */
	n = recv(fd, packet, sizeof packet, 0);
	CHECK(n > 3 && packet[1] == PROTO_STATUS_UNKNOWN_OP && packet[2] == 5);
	CHECK(raw_call(fd, PROTO_OP_STATUS, &request, &reply, NULL) == PROTO_STATUS_OK);
	close(fd);
}

/* Since Linux 6.16. */
static bool
has_passrights(void)
{
	enum { SO_PASSRIGHTS_ = 83 };
	int off = 0, fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), r = setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS_, &off, sizeof off);

	close(fd);
	return r == 0;
}

/* Descriptors that nobody asked for do not stay open in slabd: where the kernel can, it does not even let them be sent. */
static void
it_stray_descriptors(void)
{
	static const unsigned counts[] = {1, 2, 100, 253};
	bool cannot_be_sent = has_passrights();
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	int pipes[2], fd = raw_connect(h->socket);
	union proto_request request = {0};
	union proto_reply reply;
	unsigned char packet[64];
	unsigned n_before, n_bad = 0;
	int length = proto_pack_request(packet, sizeof packet, PROTO_OP_STATUS, 9, &request);
	ssize_t r;

	REQUIRE(pipe2(pipes, O_CLOEXEC) == 0);
	CHECK(raw_hello(fd) == 0);
	harness_status(h);
	n_before = harness_count_fds(h->slabd);
	for (unsigned i = 0; i < sizeof counts / sizeof counts[0]; i++) {
		static union {
			struct cmsghdr head;
			char bytes[CMSG_SPACE(253 * sizeof(int))];
		} control;
		struct iovec iov = {packet, (size_t)length};
		struct msghdr m = {
			.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_SPACE(counts[i] * sizeof(int))};
		int fds[253];

		for (unsigned j = 0; j < counts[i]; j++)
			fds[j] = pipes[j % 2];
		control.head =
			(struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(counts[i] * sizeof(int))};
		memcpy(CMSG_DATA(&control.head), fds, counts[i] * sizeof(int));
		r = sendmsg(fd, &m, MSG_NOSIGNAL);
		CHECK(cannot_be_sent ? r < 0 && errno == EPERM : r == length);
		n_bad += r == length;
		CHECK(raw_call(fd, PROTO_OP_STATUS, &request, &reply, NULL) == PROTO_STATUS_OK);
		CHECK(reply.status.n_bad_packets == n_bad);
		CHECK(harness_count_fds(h->slabd) == n_before);
	}
	/* All copies of the reading end but ours are closed. */
	close(pipes[1]);
	CHECK(read(pipes[0], packet, 1) == 0);
	close(pipes[0]);
	close(fd);
}

static uint64_t
next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

struct scribble_task {
	struct harness *h;
	unsigned seed, n_rounds;
	uint32_t n_places;
	uint32_t places[64]; /* of objects that the honest client holds */
};

enum { SCRIBBLED_SHEAVES = 64 * 1024 };

/* Nonsense of one of four kinds over the session segment. */
static void
scribble(struct raw *raw, const struct scribble_task *task, uint64_t *state)
{
	size_t n_words = (LAYOUT_SESSION_SHEAVES_OFF + SCRIBBLED_SHEAVES) / 4, n = 0, from = 0;
	uint32_t *words = (uint32_t *)(void *)raw->session;

	switch (next_random(state) % 4) {
	case 0: /* everything */
		n = n_words;
		break;
	case 1: /* heads and lists */
		n = LAYOUT_SESSION_SLOTS_OFF / 4;
		break;
	case 2: /* slots: holder words, links, offsets */
		from = LAYOUT_SESSION_SLOTS_OFF / 4;
		n = 256 * sizeof(struct layout_slot) / 4;
		break;
	case 3: /* sheaves: sizes and entries */
		from = LAYOUT_SESSION_SHEAVES_OFF / 4;
		n = SCRIBBLED_SHEAVES / 4;
		break;
	}
	for (size_t i = from; i < from + n; i++) {
		uint64_t r = next_random(state);

		switch (r >> 32 & 7) {
		case 0:
			words[i] = (uint32_t)r;
			break;
		case 1:
			words[i] = (uint32_t)r % 64; /* holders, slots, sizes that could be */
			break;
		case 2:
		case 3: /* what the honest client holds */
			words[i] = task->places[(uint32_t)r % task->n_places];
			break;
		case 4:
			words[i] = 1u << 16 | ((uint32_t)r % 64); /* a list's head */
			break;
		default:
			break;
		}
	}
}

static void
be_hostile(struct peer *me, void *arg)
{
	struct scribble_task *task = arg;
	uint64_t state = task->seed * 2654435761u + 1;
	uint32_t caches[2];
	struct raw raw;

	raw_attach(&raw, task->h->socket, "scribbler");
	caches[0] = raw_cache_open(&raw, "k", 64, 0);
	caches[1] = raw_cache_open(&raw, "other", 200, SLABC_RECLAIM);
	peer_tell(me, 's');
	for (unsigned round = 0; round < task->n_rounds; round++) {
		union proto_reply reply;

		for (int i = 0; i < 4; i++) {
			union proto_request request = {
				.refill = {.cache = caches[next_random(&state) % 2],
					.n_sheaves = (uint32_t)next_random(&state) % 8,
					.capacity = next_random(&state) % 4 ? 0 : (uint32_t)next_random(&state) % 1020}};
			int r = raw_call(raw.fd, PROTO_OP_REFILL, &request, &reply, NULL);

			CHECK(r == PROTO_STATUS_OK || r == PROTO_STATUS_QUOTA || r == PROTO_STATUS_NO_MEMORY);
		}
		scribble(&raw, task, &state);
		for (int i = 0; i < 2; i++) {
			union proto_request request = {.flush = {.cache = caches[i], .n_sheaves = (uint32_t)next_random(&state)}};

			CHECK(raw_call(raw.fd, PROTO_OP_FLUSH, &request, &reply, NULL) == PROTO_STATUS_OK);
		}
		if (next_random(&state) % 8 == 0) {
			union proto_request request = {.cache_close = {.cache = caches[1]}};

			CHECK(raw_call(raw.fd, PROTO_OP_CACHE_CLOSE, &request, &reply, NULL) == PROTO_STATUS_OK);
			CHECK(raw_cache_open(&raw, "other", 200, SLABC_RECLAIM) == caches[1]);
		}
	}
	peer_tell(me, 'd');
	peer_await(me, 'e');
}

/*
 * A client that writes nonsense all over its session segment, asking and giving back in between, while an honest one works with the same
 * cache: slabd lives, the honest one sees no error and none of its objects becomes another's, and the scribbler is named.
 */
static void
it_scribbled_session_segment(void)
{
	enum { N_HELD = 64, N_WORK = 200 };
	CLEANUP(harness_free)
	struct harness *h = harness_slabd_config("[slabd]\nthreads = 2\n[arena]\npage-kind = 4k\nsize = 256M\nmax-faults = 0\n");
	struct slabc *c = harness_open(h, "honest");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	struct scribble_task task = {.h = h, .seed = harness_seed(), .n_rounds = 200, .n_places = N_HELD};
	unsigned char *held[N_HELD], *work[N_WORK] = {0};
	unsigned n_bad = 0, n_loops = 0;
	struct proto_audit_reply audit;
	struct proto_clients_reply client;
	struct peer *peer;
	pid_t pid;

	for (unsigned i = 0; i < N_HELD; i++) {
		REQUIRE((held[i] = slabc_alloc(k)) != NULL);
		memset(held[i], (int)i, 64);
		task.places[i] = (uint32_t)slabc_ref_of(c, held[i]);
	}
	pid = harness_spawn(h, be_hostile, &task);
	peer = harness_peer(h, pid);
	peer_await(peer, 's');
	for (struct pollfd p = {.fd = peer->in, .events = POLLIN}; poll(&p, 1, 0) == 0; n_loops++) {
		for (unsigned i = 0; i < N_WORK; i++) {
			REQUIRE((work[i] = slabc_alloc(k)) != NULL);
			memset(work[i], 0x80 + (int)(i % 64), 64);
		}
		for (unsigned i = 0; i < N_WORK; i++) {
			n_bad += work[i][0] != 0x80 + i % 64 || work[i][63] != 0x80 + i % 64;
			errno = 0;
			slabc_free(k, work[i]);
			n_bad += errno != 0;
		}
		if (n_loops % 16 == 0) {
			harness_audit(h);
			harness_client(h, pid);
			harness_cache(h, "k");
		}
	}
	peer_await(peer, 'd');
	CHECK(n_bad == 0);
	CHECK(n_loops > 0);
	client = harness_client(h, pid);
	CHECK(client.n_faults > 0);
	CHECK(harness_log_count(h, "'scribbler'): ") > 0);
	CHECK(harness_client_id(h, slabc_client_id(c)).n_faults == 0);
	CHECK(harness_client_id(h, slabc_client_id(c)).n_dropped == 0);
	CHECK(harness_status(h).n_faults == client.n_faults);
	harness_kill(h, pid, SIGKILL);
	harness_wait_reaped(h, pid);
	CHECK(harness_log_count(h, "'honest'): ") == 0);

	audit = harness_audit_cache(h, "k");
	CHECK(audit.n_doubled == 0);
	CHECK(audit.n_held == N_HELD);
	for (unsigned i = 0; i < N_HELD; i++)
		n_bad += held[i][0] != i || held[i][63] != i;
	CHECK(n_bad == 0);
	/* Everything that slabd gives out from now on is not among them. */
	for (int i = 0; i < 20000; i++) {
		unsigned char *p = slabc_alloc(k);

		REQUIRE(p != NULL);
		memset(p, 0xff, 64);
	}
	for (unsigned i = 0; i < N_HELD; i++)
		n_bad += held[i][0] != i || held[i][63] != i;
	CHECK(n_bad == 0);
	slabc_close(c);
}

struct reader_task {
	struct harness *h;
	slabc_ref ref;
};

/* Nothing of a descriptor may be written, whatever way it is tried. */
static void
check_unwritable(int fd, size_t bytes)
{
	char path[64];
	void *map;
	int again;

	CHECK(pwrite(fd, "x", 1, 0) < 0);
	CHECK(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EACCES);
	map = mmap(NULL, bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0);
	CHECK(map != MAP_FAILED);
	CHECK(mprotect(map, bytes, PROT_READ | PROT_WRITE) < 0 && errno == EACCES);
	munmap(map, bytes);
	CHECK(ftruncate(fd, 0) < 0);
	CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 2 << 20) < 0);
	CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) < 0);
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	again = open(path, O_RDWR | O_CLOEXEC);
	CHECK(again < 0 && errno == EACCES);
	again = open(path, O_WRONLY | O_CLOEXEC);
	CHECK(again < 0 && errno == EACCES);
	CHECK(chmod(path, 0666) < 0);
}

static void
read_only(struct peer *me, void *arg)
{
	struct reader_task *task = arg;
	struct slabc_options options = SLABC_OPTIONS_INIT;
	union proto_request request = {.attach = {.arena = "default", .label = "raw reader", .flags = SLABC_RDONLY}};
	unsigned char packet[4096];
	int fds[PROTO_MAX_FDS], fd, length;
	unsigned n_fds = PROTO_MAX_FDS;
	struct slabc_cache *k;
	struct slabc *c;
	const char *p;

	(void)me;
	CHECK(setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
	options.socket = task->h->socket;
	options.flags = SLABC_RDONLY;
	options.label = "reader";
	CHECK(slabc_open(&c, &options) == 0);
	p = slabc_deref(c, task->ref);
	CHECK(p != NULL && strcmp(p, "to be read") == 0);
	CHECK(slabc_valid(c, task->ref) == 1);
	CHECK(slabc_cache_open(c, "k", 64, NULL, &k) == -EACCES);
	errno = 0;
	CHECK(slabc_ref_of(c, p) == 0 && errno == EACCES);
	errno = 0;
	CHECK(slabc_adopt(c, task->ref) == NULL && errno == EACCES);
	CHECK(slabc_free_ref(c, task->ref) == -EACCES);
	CHECK(slabc_deref(c, task->ref + 1) == NULL && errno == ESTALE);

	/* What the library would have mapped. */
	fd = raw_connect(task->h->socket);
	CHECK(raw_hello(fd) == 0);
	length = proto_pack_request(packet, sizeof packet, PROTO_OP_ATTACH, 1, &request);
	CHECK(channel_send(fd, packet, (size_t)length, NULL, 0, 0) == 0);
	CHECK(channel_recv(fd, packet, sizeof packet, fds, &n_fds, 0) > 0);
	CHECK(n_fds >= 4);
	for (unsigned i = 0; i < n_fds; i++)
		check_unwritable(fds[i], 4096 * 512);
	/* Nor is anything done for it that writes. */
	request = (union proto_request){.cache_open = {.name = "k", .size = 64}};
	CHECK(raw_call(fd, PROTO_OP_CACHE_OPEN, &request, &(union proto_reply){0}, NULL) == PROTO_STATUS_ACCESS);
	request = (union proto_request){.refill = {.cache = 1, .n_sheaves = 1}};
	CHECK(raw_call(fd, PROTO_OP_REFILL, &request, &(union proto_reply){0}, NULL) == PROTO_STATUS_ACCESS);
	slabc_close(c);
}

/* A read-only client of another user resolves references, and has no way to write: no call, no descriptor, no mapping. */
static void
it_read_only_client_cannot_write(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd_config("[arena]\npage-kind = 4k\nmode = 0664\n");
	struct reader_task task = {.h = h};
	struct slabc *c = harness_open(h, "writer");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	char *p = slabc_alloc(k);

	if (geteuid() != 0) {
		skip("only root may become another user");
		slabc_close(c);
		return;
	}
	strcpy(p, "to be read");
	task.ref = slabc_ref_of(c, p);
	CHECK(chmod(h->socket, 0666) == 0);
	harness_join(h, harness_spawn(h, read_only, &task));
	CHECK(strcmp(p, "to be read") == 0);
	CHECK(slabc_valid(c, task.ref) == 1);
	slabc_close(c);
}

/* Seals that a client puts on its own session segment, so that slabd might not drain it. */

enum { N_SEALED_HELD = 40, N_SEALED_SHEAF = 60 };

struct sealer_task {
	struct harness *h;
	int seals;
	bool hangs_up; /* instead of dying with all of it mapped */
};

/* Holds some of a sheaf. */
static void
prefill_and_hold(struct raw *raw, uint32_t cache)
{
	struct sheaf *sheaf = raw_sheaf(raw, raw_prefill(raw, cache, N_SEALED_HELD + N_SEALED_SHEAF));

	for (int i = 0; i < N_SEALED_HELD; i++) {
		uint32_t *word = raw_word(raw, sheaf->entry[sheaf->size - 1]);

		*word = word_with(*word + WORD_GENERATION_ONE, raw->attach.client, WORD_OWNED);
		sheaf->size--;
	}
}

static void
seal_and_wait(struct peer *me, void *arg)
{
	struct sealer_task *task = arg;
	struct raw raw;

	raw_attach(&raw, task->h->socket, "sealer");
	prefill_and_hold(&raw, raw_cache_open(&raw, "reclaim", 64, SLABC_RECLAIM));
	prefill_and_hold(&raw, raw_cache_open(&raw, "kept", 64, 0));
	/* slabd maps it, and so do we: it cannot be made unwritable for either. */
	CHECK(fcntl(raw.fds[2], F_ADD_SEALS, F_SEAL_WRITE) < 0 && errno == EBUSY);
	CHECK(task->seals == 0 || fcntl(raw.fds[2], F_ADD_SEALS, task->seals) == 0);
	CHECK(ftruncate(raw.fds[2], 0) < 0 && errno == EPERM);
	peer_tell(me, 's');
	if (task->hangs_up) {
		peer_await(me, 'g');
		raw_detach(&raw);
		peer_tell(me, 'g');
	}
	peer_await(me, 'e');
}

static void
check_sealed(struct harness *h, unsigned n_so_far)
{
	struct proto_audit_reply audit = harness_audit(h);

	CHECK(audit.n_lost == 0 && audit.n_doubled == 0 && audit.n_undecided == 0);
	CHECK(audit.n_in_sheaves == 0 && audit.n_held == 0);
	CHECK(audit.n_orphans == n_so_far * N_SEALED_HELD);
	CHECK(harness_audit_cache(h, "reclaim").n_out == 0);
	CHECK(harness_audit_cache(h, "kept").n_out == n_so_far * N_SEALED_HELD);
}

/* Whatever seals a client has put on its session segment: when it dies, or hangs up, all comes back as from any other. */
static void
it_sealed_session_segment(void)
{
	static const int seals[] = {0, F_SEAL_FUTURE_WRITE, F_SEAL_SEAL, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL};
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --threads=2");
	unsigned n = 0;

	for (unsigned i = 0; i < 2 * sizeof seals / sizeof seals[0]; i++) {
		struct sealer_task task = {.h = h, .seals = seals[i / 2], .hangs_up = i % 2};
		pid_t pid = harness_spawn(h, seal_and_wait, &task);
		struct peer *peer = harness_peer(h, pid);

		peer_await(peer, 's');
		CHECK(harness_client(h, pid).n_held == 2 * N_SEALED_HELD);
		if (task.hangs_up) {
			peer_tell(peer, 'g');
			peer_await(peer, 'g');
			/* Of a segment that takes no more seals slabd cannot tell whether it is still mapped: that waits for the process's
			 * end. */
			if (task.seals == F_SEAL_SEAL)
				CHECK(EVENTUALLY(strcmp(harness_client(h, pid).state, "detached") == 0));
			else
				harness_wait_reaped(h, pid);
		}
		harness_kill(h, pid, SIGKILL);
		harness_wait_reaped(h, pid);
		check_sealed(h, ++n);
	}
	CHECK(harness_status(h).n_faults == 0);
	CHECK(harness_log_count(h, "could not be mapped") == 0);
}

/*
 * Who sends his request a byte at a time, be it one a minute: each is a packet, and the first of them none of the protocol's.  So nothing waits for the rest, and
 * what he had begun is over: before HELLO, after it, and in the midst of a session, which is kept while he maps it and can be resumed.
 */
static void
it_one_byte_at_a_time(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --threads=1");
	union proto_request request = {.hello = {.version = PROTO_VERSION, .layout_hash = layout_hash, .library = "harness"}};
	unsigned char packet[256];
	int length = proto_pack_request(packet, sizeof packet, PROTO_OP_HELLO, 1, &request), fd = raw_connect(h->socket);
	struct raw raw;

	REQUIRE(length > 1);
	CHECK(send(fd, packet, 1, MSG_NOSIGNAL) == 1);
	CHECK(is_hung_up(fd));
	/* The other bytes are for nobody. */
	CHECK(send(fd, packet + 1, (size_t)length - 1, MSG_NOSIGNAL) < 0);
	close(fd);
	for (int i = 0; i < length; i++)
		check_hung_up(h, packet + i, 1);
	/* An empty one is the end, too. */
	check_hung_up(h, packet, 0);
	raw_attach(&raw, h->socket, "slow");
	CHECK(send(raw.fd, packet, 1, MSG_NOSIGNAL) == 1);
	CHECK(is_hung_up(raw.fd));
	CHECK(EVENTUALLY(strcmp(harness_client_id(h, raw.attach.client_id).state, "detached") == 0));
	CHECK(harness_status(h).n_bad_packets == (unsigned)length + 2);
	raw_detach(&raw);
	CHECK(EVENTUALLY(harness_status(h).n_sessions == 0));
}

enum { MAX_SESSIONS = 40, N_ROUNDS = 5 };

/* All that he may have, again and again: one goes by BYE, the next by hanging up, and one by unmapping alone. */
static void
take_all_sessions(struct peer *me, void *arg)
{
	struct harness *h = arg;
	static struct raw raw[MAX_SESSIONS];
	union proto_request request = {.attach = {.arena = SLABC_DEFAULT_ARENA, .label = "one too many"}};
	char sentence[PROTO_SENTENCE_BYTES];
	union proto_reply reply;

	if (geteuid() == 0)
		REQUIRE(setgid(65534) == 0 && setuid(65534) == 0);
	for (int round = 0; round < N_ROUNDS; round++) {
		int fd;

		/* A session that has hung up counts until it has been reaped. */
		for (int i = 0; i < MAX_SESSIONS; i++)
			raw_attach(&raw[i], h->socket, "greedy");
		fd = raw_connect(h->socket);
		CHECK(raw_hello(fd) == 0);
		for (int i = 0; i < 100; i++)
			CHECK(raw_call(fd, PROTO_OP_ATTACH, &request, &reply, sentence) == PROTO_STATUS_QUOTA);
		CHECK(strstr(sentence, "max-sessions") != NULL);
		close(fd);
		peer_tell(me, 'f');
		peer_await(me, 'g');
		for (int i = 0; i < MAX_SESSIONS; i++)
			raw_detach(&raw[i]);
		peer_tell(me, 'd');
		peer_await(me, 'g');
	}
}

/* A user who takes all the sessions that he may have keeps none from others, and leaves nothing behind. */
static void
it_sessions_to_the_limit(void)
{
	CLEANUP(harness_free)
	struct harness *h = harness_slabd_config("[slabd]\nsocket-mode = 0666\n[arena]\npage-kind = 4k\nmode = 0666\nmax-sessions = 40\n");
	bool is_other = geteuid() == 0;
	unsigned n_files;
	struct slabc *c;
	pid_t pid;

	harness_status(h);
	n_files = harness_count_fds(h->slabd);
	pid = harness_spawn(h, take_all_sessions, h);
	for (int round = 0; round < N_ROUNDS; round++) {
		peer_await(harness_peer(h, pid), 'f');
		CHECK(harness_status(h).n_sessions == MAX_SESSIONS);
		/* Another user has as many for himself. */
		if (is_other) {
			c = harness_open(h, "another");
			CHECK(slabc_alloc(harness_open_cache(c, "k", 64, 0)) != NULL);
			slabc_close(c);
		}
		peer_tell(harness_peer(h, pid), 'g');
		peer_await(harness_peer(h, pid), 'd');
		CHECK(EVENTUALLY(harness_status(h).n_sessions == 0));
		peer_tell(harness_peer(h, pid), 'g');
	}
	harness_join(h, pid);
	CHECK(EVENTUALLY(harness_count_fds(h->slabd) == n_files));
	CHECK(harness_audit(h).n_lost == 0);
}

enum { N_FLOODERS = 3 };

static void
flood(struct peer *me, void *arg)
{
	struct harness *h = arg;
	struct raw raw;
	union proto_request request = {0};
	unsigned char packet[512];
	int length;

	raw_attach(&raw, h->socket, "never reads");
	length = proto_pack_request(packet, sizeof packet, PROTO_OP_STATUS, 3, &request);
	peer_tell(me, 'f');
	/* Blocks as soon as slabd no longer reads it. */
	for (;;)
		if (channel_send(raw.fd, packet, (size_t)length, NULL, 0, 0) < 0)
			break;
}

/* Clients that send requests and never read the answers delay nobody: one loop serves them and the honest one. */
static void
it_client_that_never_reads(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --threads=1");
	struct slabc *c = harness_open(h, "honest");
	struct slabc_cache *k = harness_open_cache(c, "k", 4096, 0);
	int64_t longest = 0, all = harness_now_ns();
	pid_t pids[N_FLOODERS];

	for (int i = 0; i < N_FLOODERS; i++) {
		pids[i] = harness_spawn(h, flood, h);
		peer_await(harness_peer(h, pids[i]), 'f');
	}
	for (int i = 0; i < 200; i++) {
		int64_t start = harness_now_ns();
		void *pv[20];

		harness_status(h);
		CHECK(slabc_alloc_bulk(k, 20, pv) == 0);
		if (harness_now_ns() - start > longest)
			longest = harness_now_ns() - start;
	}
	printf(" longest %.1f ms, 200 took %.0f ms ", (double)longest / 1e6, (double)(harness_now_ns() - all) / 1e6);
	CHECK(longest < 500000000);
	for (int i = 0; i < N_FLOODERS; i++) {
		CHECK(strcmp(harness_client(h, pids[i]).state, "live") == 0);
		harness_kill(h, pids[i], SIGKILL);
		harness_wait_reaped(h, pids[i]);
	}
	slabc_close(c);
	CHECK(harness_audit(h).n_lost == 0);
}

CU_pSuite
it_hostile_suite(void)
{
	CU_pSuite suite = harness_suite("hostile");

	CU_ADD_TEST(suite, it_malformed_packets);
	CU_ADD_TEST(suite, it_truncated_packets);
	CU_ADD_TEST(suite, it_random_packets);
	CU_ADD_TEST(suite, it_oversized_packet_and_unknown_op);
	CU_ADD_TEST(suite, it_stray_descriptors);
	CU_ADD_TEST(suite, it_scribbled_session_segment);
	CU_ADD_TEST(suite, it_read_only_client_cannot_write);
	CU_ADD_TEST(suite, it_sealed_session_segment);
	CU_ADD_TEST(suite, it_one_byte_at_a_time);
	CU_ADD_TEST(suite, it_sessions_to_the_limit);
	CU_ADD_TEST(suite, it_client_that_never_reads);
	return suite;
}
