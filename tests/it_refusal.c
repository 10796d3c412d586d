/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A slabd that does not adopt: it says why, serves nobody, and keeps what it found until somebody has decided; clients wait up to their deadlines, and go
 * on when a slabd comes that does adopt (design.md, I6).  A slabd of another layout is such a one: this one's binary with another hash in it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "server/ledger.h"
#include "tests/harness.h"

CU_pSuite it_refusal_suite(void);

enum { OUT_BYTES = 1 << 14, SHORT_MS = 300, BINARY_BYTES = 64 << 20 };

static struct slabc *
open_with(const struct harness *h, const char *arena, int timeout_ms)
{
	struct slabc_options o = SLABC_OPTIONS_INIT;
	struct slabc *c = NULL;

	o.socket = h->socket;
	o.arena = arena;
	o.label = "waits";
	o.timeout_ms = timeout_ms;
	REQUIRE(slabc_open(&c, &o) == 0);
	return c;
}

/* slabctl's exit status. */
static int
run_ctl(const struct harness *h, const char *path, char *out, char *command, char *argument)
{
	char program[256], socket_argument[128], *argv[] = {program, socket_argument, command, argument, NULL};

	snprintf(program, sizeof program, "%s", path);
	snprintf(socket_argument, sizeof socket_argument, "--socket=%s", h->socket);
	return harness_run(argv, NULL, out, OUT_BYTES);
}

static int
ctl(const struct harness *h, char *out, char *command, char *argument)
{
	return run_ctl(h, harness_path("SLABCTL"), out, command, argument);
}

/* The ledger that the keeper has of the arena of that name. */
static int
open_ledger(const struct harness *h, const char *arena)
{
	struct ledger_head head;

	for (unsigned nth = 0;; nth++) {
		int fd = harness_open_held(h, "slabd:ledger", nth);

		REQUIRE(fd >= 0 && pread(fd, &head, sizeof head, 0) == (ssize_t)sizeof head);
		if (strcmp(head.name, arena) == 0)
			return fd;
		close(fd);
	}
}

/* A bit of the byte is turned. */
static void
spoil(int fd, uint64_t off)
{
	unsigned char byte;

	REQUIRE(pread(fd, &byte, 1, (off_t)off) == 1);
	byte ^= 0x40;
	REQUIRE(pwrite(fd, &byte, 1, (off_t)off) == 1);
}

static struct harness *
harness_two_arenas(void)
{
	struct harness *h = harness_new();
	char config[128];

	h->is_kept = true;
	harness_write_config(h, "[arena]\nsize = 16M\npage-kind = 4k\n[arena video]\nsize = 16M\npage-kind = 4k\n");
	snprintf(config, sizeof config, "--config=%s", harness_config(h));
	REQUIRE(harness_start(h, NULL, config));
	return h;
}

/* Nobody is served, and each is told so in his way. */
static void
check_serves_nobody(struct harness *h, struct slabc_cache *k)
{
	static char out[OUT_BYTES];
	struct slabc_options o = SLABC_OPTIONS_INIT;
	union proto_request request = {0};
	union proto_reply reply;
	struct slabc *c = NULL;

	o.socket = h->socket;
	CHECK(slabc_open(&c, &o) == -EBUSY && strstr(slabc_last_error(), "has not adopted") && strstr(slabc_last_error(), "slabctl inspect"));
	CHECK(slabc_cache_shrink(k) == -ETIMEDOUT);
	CHECK(ctl(h, out, "status", NULL) == 3 && strstr(out, "serves nobody"));
	CHECK(ctl(h, out, "drain", NULL) == 3 && strstr(out, "serves nobody"));
	/* What there was before has ended. */
	close(h->monitor);
	h->monitor = -1;
	CHECK(harness_ask(h, PROTO_OP_STATUS, &request, &reply) == PROTO_STATUS_BUSY);
	CHECK(harness_ask(h, PROTO_OP_ARENAS, &request, &reply) == PROTO_STATUS_BUSY);
	CHECK(harness_ask(h, PROTO_OP_AUDIT, &request, &reply) == PROTO_STATUS_BUSY);
}

/* One of two arenas does not verify: none is changed, and slabctl has both. */
static void
it_inspect_says_which_check_failed(void)
{
	static char out[OUT_BYTES];
	CLEANUP(harness_free) struct harness *h = harness_two_arenas();
	struct slabc *c = open_with(h, "default", SHORT_MS), *d = open_with(h, "video", SHORT_MS);
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0), *frames = harness_open_cache(d, "frames", 4096, 0);
	struct ledger_head before, after;
	uint32_t *p = slabc_alloc(k), *q = slabc_alloc(frames);
	pid_t pid;
	int fd, sound;

	REQUIRE(p && q);
	*p = 7;
	REQUIRE(slabc_publish(d, "first", slabc_ref_of(d, q), 0) == 0);
	CHECK(ctl(h, out, "inspect", NULL) == 0 && strstr(out, "failed"));
	pid = harness_stop_and_kill(h);
	fd = open_ledger(h, "video");
	sound = open_ledger(h, "default");
	spoil(fd, offsetof(struct ledger_head, n_slabs) + 3);
	REQUIRE(pread(sound, &before, sizeof before, 0) == (ssize_t)sizeof before);
	kill(h->slabd, SIGCONT);
	CHECK(EVENTUALLY(harness_log_count(h, "slabd does not adopt") == 1));
	CHECK(harness_log_count(h, "ledger: a count is above its limit") == 1 && harness_log_count(h, "adopted from slabd") == 0);
	REQUIRE(pread(sound, &after, sizeof after, 0) == (ssize_t)sizeof after);
	CHECK(memcmp(&before, &after, sizeof before) == 0);
	CHECK(ctl(h, out, "--json", "inspect") == 1);
	CHECK(strstr(out, "\"name\": \"default\"") && strstr(out, "\"failed\": \"\""));
	CHECK(strstr(out, "\"name\": \"video\"") && strstr(out, "\"failed\": \"ledger: a count is above its limit\""));
	CHECK(strstr(out, "\"n_caches\": 1,") && strstr(out, "\"n_clients\": 1,") && strstr(out, "\"n_sessions\": 1,") && strstr(out, "\"n_roots\": 1"));
	CHECK(strstr(out, "\"server\": \"slabd 0.1.0\"") && strstr(out, "\"layout_version\": 1,"));
	CHECK(ctl(h, out, "inspect", NULL) == 1 && strstr(out, "a count is above its limit"));
	check_serves_nobody(h, k);
	/* It can be killed like any other, and the next one refuses as well. */
	REQUIRE(harness_child(h) > 0 && kill(harness_child(h), SIGKILL) == 0);
	CHECK(EVENTUALLY(harness_log_count(h, "slabd does not adopt") == 2));
	REQUIRE(ctl(h, out, "--json", "inspect") == 1);
	spoil(fd, offsetof(struct ledger_head, n_slabs) + 3);
	REQUIRE(kill(h->slabd, SIGHUP) == 0);
	harness_wait_kept(h, pid);
	CHECK(harness_log_count(h, "adopted from slabd") == 2);
	CHECK(ctl(h, out, "inspect", NULL) == 0);
	CHECK(slabc_cache_shrink(k) == 0 && *p == 7 && slabc_alloc(k) && slabc_alloc(frames));
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	close(fd);
	close(sound);
	slabc_close(c);
	slabc_close(d);
}

/* A predecessor that lives has the ledgers, and the store has them too: nothing is looked into. */
static void
it_waits_beside_a_living_predecessor(void)
{
	static char out[OUT_BYTES];
	CLEANUP(harness_free) struct harness *h = harness_new();
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	char path[96], said[64];
	FILE *script;

	snprintf(address.sun_path, sizeof address.sun_path, "%s/notify", h->dir);
	REQUIRE(notify >= 0 && pidfd >= 0 && fcntl(pidfd, F_SETFD, 0) == 0 && bind(notify, (struct sockaddr *)&address, sizeof address) == 0);
	snprintf(path, sizeof path, "%s/start", h->dir);
	script = fopen(path, "we");
	REQUIRE(script != NULL);
	fprintf(script, "exec 3<&%d 4</dev/null\nexport LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=+P%x:+0l FDSTORE=100 NOTIFY_SOCKET=%s/notify\nexec %s \"$@\"\n",
		pidfd, (unsigned)getpid(), h->dir, harness_path("SLABD"));
	REQUIRE(fclose(script) == 0);
	snprintf(h->program, sizeof h->program, "/bin/sh %s", path);
	REQUIRE(harness_start(h, NULL, "--page-kind=4k"));
	snprintf(said, sizeof said, "slabd %d, which has the ledgers, is alive", getpid());
	CHECK(harness_log_count(h, said) == 1);
	CHECK(ctl(h, out, "inspect", NULL) == 1 && strstr(out, said));
	CHECK(ctl(h, out, "status", NULL) == 3 && strstr(out, said));
	CHECK(harness_stop_slabd(h, SIGTERM) == 3);
	close(pidfd);
	close(notify);
}

/* Another binary */

/* In the place of the file. */
static void
replace_file(const char *path, const char *bytes, size_t n)
{
	char next[128];
	int fd;

	snprintf(next, sizeof next, "%s.next", path);
	fd = open(next, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
	REQUIRE(fd >= 0 && write(fd, bytes, n) == (ssize_t)n && close(fd) == 0);
	REQUIRE(rename(next, path) == 0);
}

static size_t
read_file(const char *path, char *bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, bytes, BINARY_BYTES);

	REQUIRE(n > 0 && n < BINARY_BYTES);
	close(fd);
	return (size_t)n;
}

/* A copy of the program at the path in which that hash is another. */
static void
put_other(const char *path, const char *program, uint64_t hash)
{
	char *bytes = malloc(BINARY_BYTES), *at;
	uint64_t other = hash + 1;
	unsigned n_found = 0;
	size_t n;

	REQUIRE(bytes != NULL);
	n = read_file(program, bytes);
	for (at = bytes; (at = memmem(at, n - (size_t)(at - bytes), &hash, sizeof hash)); n_found++)
		memcpy(at, &other, sizeof other);
	CHECK(n_found == (hash != 0));
	replace_file(path, bytes, n);
	free(bytes);
}

static void
put_same(const char *path, const char *program)
{
	char *bytes = malloc(BINARY_BYTES);

	REQUIRE(bytes != NULL);
	replace_file(path, bytes, read_file(program, bytes));
	free(bytes);
}

/* The next slabd is another program than the one before, as after an upgrade. */
static void
die_and_refuse(struct harness *h)
{
	unsigned n = harness_log_count(h, "slabd does not adopt");

	REQUIRE(kill((pid_t)harness_status(h).pid, SIGKILL) == 0);
	CHECK(EVENTUALLY(harness_log_count(h, "slabd does not adopt") == n + 1));
}

static struct harness *
harness_replaceable(char *path, size_t size)
{
	struct harness *h = harness_new();

	snprintf(path, size, "%s/slabd", h->dir);
	put_same(path, harness_path("SLABD"));
	h->is_kept = true;
	snprintf(h->program, sizeof h->program, "%s", path);
	REQUIRE(harness_start(h, NULL, "--page-kind=4k"));
	return h;
}

/* The same layout adopts; another is refused by name, and its clients wait for the old one. */
static void
it_upgrade_of_another_layout_is_refused(void)
{
	static char out[OUT_BYTES];
	char path[96], other_ctl[96], said[64];
	CLEANUP(harness_free) struct harness *h = harness_replaceable(path, sizeof path);
	struct slabc *c = open_with(h, "default", SHORT_MS);
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	uint32_t *p = slabc_alloc(k);
	pid_t pid = (pid_t)harness_status(h).pid;

	REQUIRE(p != NULL);
	*p = 4711;
	put_same(path, harness_path("SLABD"));
	pid = harness_kill_kept(h);
	CHECK(harness_log_count(h, "adopted from slabd") == 1 && slabc_cache_shrink(k) == 0);

	put_other(path, harness_path("SLABD"), layout_hash);
	die_and_refuse(h);
	CHECK(harness_log_count(h, "layout: the ledger is of layout") == 1);
	snprintf(said, sizeof said, "is of layout %016llx", (unsigned long long)layout_hash + 1);
	CHECK(harness_log_count(h, said) == 1 && harness_log_count(h, "version 1 (slabd 0.1.0)") == 1);
	/* Its own slabctl sees whose it is, ours and our clients are told to wait. */
	snprintf(other_ctl, sizeof other_ctl, "%s/slabctl", h->dir);
	put_other(other_ctl, harness_path("SLABCTL"), layout_hash);
	CHECK(run_ctl(h, other_ctl, out, "--json", "inspect") == 1 && strstr(out, "\"failed\": \"layout: the ledger is of"));
	snprintf(said, sizeof said, "\"layout_hash\": \"0x%016llx\"", (unsigned long long)layout_hash);
	CHECK(strstr(out, said) && strstr(out, "\"n_sessions\": 1,") && strstr(out, "\"name\": \"\""));
	CHECK(ctl(h, out, "inspect", NULL) == 3 && strstr(out, "serves nobody"));
	CHECK(slabc_cache_shrink(k) == -ETIMEDOUT);
	put_same(path, harness_path("SLABD"));
	REQUIRE(kill(h->slabd, SIGHUP) == 0);
	harness_wait_kept(h, pid);
	CHECK(slabc_cache_shrink(k) == 0 && *p == 4711);
	slabc_free(k, p);
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	slabc_close(c);
}

/* The same for the ledger alone, which no client sees; and a stop is what gives it up. */
static void
it_upgrade_of_another_ledger_is_refused(void)
{
	static char out[OUT_BYTES];
	char path[96], said[64];
	CLEANUP(harness_free) struct harness *h = harness_replaceable(path, sizeof path);
	struct slabc *c = open_with(h, "default", SHORT_MS);
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	int fd = open_ledger(h, "default");
	struct ledger_head head;

	REQUIRE(slabc_alloc(k) && pread(fd, &head, sizeof head, 0) == (ssize_t)sizeof head);
	close(fd);
	CHECK(head.layout_hash == layout_hash && head.layout_version == LAYOUT_VERSION);
	put_other(path, harness_path("SLABD"), head.ledger_hash);
	die_and_refuse(h);
	snprintf(said, sizeof said, "\"ledger_hash\": \"0x%016llx\"", (unsigned long long)head.ledger_hash);
	CHECK(ctl(h, out, "--json", "inspect") == 1 && strstr(out, said) && strstr(out, "\"failed\": \"layout: the ledger is of"));
	check_serves_nobody(h, k);
	CHECK(harness_stop_slabd(h, SIGTERM) == 3);
	CHECK(access(h->socket, F_OK) < 0);
	CHECK(slabc_cache_shrink(k) == -ETIMEDOUT);
	slabc_close(c);
}

CU_pSuite
it_refusal_suite(void)
{
	CU_pSuite suite = harness_suite("refusal");

	CU_ADD_TEST(suite, it_inspect_says_which_check_failed);
	CU_ADD_TEST(suite, it_waits_beside_a_living_predecessor);
	CU_ADD_TEST(suite, it_upgrade_of_another_layout_is_refused);
	CU_ADD_TEST(suite, it_upgrade_of_another_ledger_is_refused);
	return suite;
}
