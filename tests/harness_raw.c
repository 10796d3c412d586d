/* SPDX-License-Identifier: Apache-2.0 */
/* The harness's other half: clients without the library, and the pool of huge pages. */
#include "tests/harness.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/channel.h"
#include "proto/codec.h"

#define HUGE_DIR "/sys/kernel/mm/hugepages/hugepages-2048kB/"

int
raw_connect(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), r;

	if (fd < 0)
		return -errno;
	snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
	if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
		return fd;
	r = -errno;
	close(fd);
	return r;
}

int
raw_send(int fd, enum proto_op op, uint32_t id, const union proto_request *request)
{
	unsigned char packet[4096];
	int n = proto_pack_request(packet, sizeof packet, op, id, request);

	return n < 0 ? n : channel_send(fd, packet, (size_t)n, NULL, 0, 0);
}

static int
receive(int fd, enum proto_op op, uint32_t id, union proto_reply *reply, char *sentence, int *fds, unsigned *n_fdsp)
{
	static unsigned char packet[PROTO_MAX_PACKET];
	int64_t until = harness_now_ns() / 1000000 + HARNESS_PATIENCE_MS;
	unsigned room = n_fdsp ? *n_fdsp : 0;
	char unused[PROTO_SENTENCE_BYTES];
	enum proto_status status;
	uint32_t came = 0;

	for (;;) {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		int64_t left = until - harness_now_ns() / 1000000;
		ssize_t n;
		int r;

		r = poll(&p, 1, left > 0 ? (int)left : 0);
		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0)
			return -1;
		if (n_fdsp)
			*n_fdsp = room;
		n = channel_recv(fd, packet, sizeof packet, fds, n_fdsp, MSG_DONTWAIT);
		if (n == -EAGAIN)
			continue;
		if (n <= 0)
			return -1;
		r = proto_unpack_reply(packet, (size_t)n, op, &came, &status, reply, sentence ? sentence : unused, PROTO_SENTENCE_BYTES);
		if (came != id)
			continue;
		return r < 0 ? -1 : (int)status;
	}
}

int
raw_receive(int fd, enum proto_op op, uint32_t id, union proto_reply *reply, char *sentence)
{
	return receive(fd, op, id, reply, sentence, NULL, NULL);
}

static int
call(int fd, enum proto_op op, const union proto_request *request, union proto_reply *reply, char *sentence, int *fds, unsigned *n_fdsp)
{
	static uint32_t last_id;
	uint32_t id = ++last_id;

	return raw_send(fd, op, id, request) < 0 ? -1 : receive(fd, op, id, reply, sentence, fds, n_fdsp);
}

int
raw_call(int fd, enum proto_op op, const union proto_request *request, union proto_reply *reply, char *sentence)
{
	return call(fd, op, request, reply, sentence, NULL, NULL);
}

int
raw_hello(int fd)
{
	union proto_request request = {.hello = {.version = PROTO_VERSION, .layout_hash = layout_hash, .library = "harness"}};
	union proto_reply reply;

	return raw_call(fd, PROTO_OP_HELLO, &request, &reply, NULL);
}

void
raw_attach(struct raw *raw, const char *path, const char *label)
{
	raw_attach_with(raw, path, label, 0);
}

void
raw_attach_with(struct raw *raw, const char *path, const char *label, uint32_t flags)
{
	union proto_request request = {.attach = {.arena = SLABC_DEFAULT_ARENA, .flags = flags}};
	union proto_reply reply;
	void *map;

	*raw = (struct raw){.fd = raw_connect(path), .n_fds = PROTO_MAX_FDS};
	REQUIRE(raw->fd >= 0);
	REQUIRE(raw_hello(raw->fd) == 0);
	snprintf(request.attach.label, sizeof request.attach.label, "%s", label);
	REQUIRE(call(raw->fd, PROTO_OP_ATTACH, &request, &reply, NULL, raw->fds, &raw->n_fds) == 0);
	raw->attach = reply.attach;
	REQUIRE(raw->n_fds == 3 + reply.attach.n_segments);
	map = mmap(NULL, reply.attach.arena_bytes, PROT_READ, MAP_SHARED, raw->fds[0], 0);
	REQUIRE(map != MAP_FAILED);
	raw->arena = map;
	raw->caches = (const struct layout_cache *)((const char *)map + LAYOUT_ARENA_CACHES_OFF);
	raw->pages = (const struct layout_page *)((const char *)map + LAYOUT_ARENA_PAGES_OFF);
	map = mmap(NULL, reply.attach.words_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, raw->fds[1], 0);
	REQUIRE(map != MAP_FAILED);
	raw->words = map;
	map = mmap(NULL, reply.attach.session_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, raw->fds[2], 0);
	REQUIRE(map != MAP_FAILED);
	raw->session = map;
	raw->slots = (struct layout_slot *)((char *)map + LAYOUT_SESSION_SLOTS_OFF);
}

void
raw_detach(struct raw *raw)
{
	union {
		const void *in;
		void *out;
	} arena = {.in = raw->arena};

	munmap(raw->session, raw->attach.session_bytes);
	munmap(raw->words, raw->attach.words_bytes);
	munmap(arena.out, raw->attach.arena_bytes);
	for (unsigned i = 0; i < raw->n_fds; i++)
		close(raw->fds[i]);
	close(raw->fd);
}

uint32_t
raw_cache_open(struct raw *raw, const char *name, uint64_t size, uint32_t flags)
{
	union proto_request request = {.cache_open = {.size = size, .flags = flags}};
	union proto_reply reply;

	snprintf(request.cache_open.name, sizeof request.cache_open.name, "%s", name);
	REQUIRE(raw_call(raw->fd, PROTO_OP_CACHE_OPEN, &request, &reply, NULL) == PROTO_STATUS_OK);
	return reply.cache_open.cache;
}

uint32_t
raw_prefill(struct raw *raw, uint32_t cache, uint32_t n)
{
	union proto_request request = {.refill = {.cache = cache, .n_sheaves = 1, .capacity = n}};
	union proto_reply reply;

	REQUIRE(raw_call(raw->fd, PROTO_OP_REFILL, &request, &reply, NULL) == PROTO_STATUS_OK);
	REQUIRE(reply.refill.n_objects == n);
	return reply.refill.slot;
}

struct sheaf *
raw_sheaf(const struct raw *raw, uint32_t slot)
{
	return (struct sheaf *)(raw->session + (size_t)raw->slots[slot].off * LAYOUT_SLOT_UNIT);
}

uint32_t *
raw_word(const struct raw *raw, uint32_t place)
{
	const struct layout_page *page = &raw->pages[place >> LAYOUT_PLACE_PAGE_SHIFT];
	uint64_t x = (uint64_t)((place << LAYOUT_PLACE_SHIFT) & (LAYOUT_PAGE_BYTES - 1)) * raw->caches[page->cache].recip + page->prod;

	return &raw->words[x >> 32];
}

/* The pool of huge pages.  The lock on its file keeps other tests of this machine away (test_segment.c takes it too). */

static struct {
	pid_t pid; /* 0: not taken */
	long n_before;
	int lock_fd;
	bool has_atexit;
} pool;

static long
number_read(const char *path)
{
	char text[32] = "";
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);

	if (fd >= 0)
		close(fd);
	return n > 0 ? strtol(text, NULL, 10) : -1;
}

/* Also from a signal handler. */
static bool
number_write(const char *path, long number)
{
	char digits[24];
	size_t n = sizeof digits;
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool ok;

	do
		digits[--n] = (char)('0' + number % 10);
	while ((number /= 10) > 0);
	ok = fd >= 0 && write(fd, digits + n, sizeof digits - n) > 0;
	if (fd >= 0)
		close(fd);
	return ok;
}

unsigned
hugepages_free(void)
{
	return (unsigned)number_read(HUGE_DIR "free_hugepages");
}

void
hugepages_put_back(void)
{
	if (pool.pid == 0 || pool.pid != getpid())
		return;
	number_write(HUGE_DIR "nr_hugepages", pool.n_before);
	close(pool.lock_fd);
	pool.pid = 0;
}

static bool
pool_set(unsigned n)
{
	long n_others = number_read(HUGE_DIR "nr_hugepages") - (long)hugepages_free();

	return number_write(HUGE_DIR "nr_hugepages", n_others + (long)n) && hugepages_free() == n;
}

bool
hugepages_take(unsigned n)
{
	if (geteuid() != 0) {
		skip("only root may set vm.nr_hugepages");
		return false;
	}
	if (pool.pid != getpid()) {
		pool.lock_fd = open(HUGE_DIR "nr_hugepages", O_RDONLY | O_CLOEXEC);
		if (pool.lock_fd < 0 || !EVENTUALLY(flock(pool.lock_fd, LOCK_EX | LOCK_NB) == 0)) {
			if (pool.lock_fd >= 0)
				close(pool.lock_fd);
			skip("the pool of huge pages is not there, or another test has it");
			return false;
		}
		pool.n_before = number_read(HUGE_DIR "nr_hugepages");
		pool.pid = getpid();
		if (!pool.has_atexit)
			atexit(hugepages_put_back);
		pool.has_atexit = true;
	}
	/* Programs that do not know of the lock take and give pages too: try again for a while. */
	if (number_read(HUGE_DIR "nr_overcommit_hugepages") == 0 && EVENTUALLY(pool_set(n)))
		return true;
	hugepages_put_back();
	skip("cannot set the pool of huge pages to %u free ones", n);
	return false;
}
