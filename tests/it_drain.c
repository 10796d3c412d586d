/* SPDX-License-Identifier: Apache-2.0 */
/* slabctl drain: no new sessions, those that there are end in their own time, and slabd stops, and leaves nothing behind; or all is as before. */
#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "tests/harness.h"

CU_pSuite it_drain_suite(void);

enum { OUT_BYTES = 8192, MAX_NAMES = 64 };

static int
open_in(const struct harness *h, const char *arena, const char *label, struct slabc **cp)
{
	struct slabc_options o = SLABC_OPTIONS_INIT;

	o.socket = h->socket;
	o.arena = arena;
	o.label = label;
	o.timeout_ms = HARNESS_PATIENCE_MS;
	return slabc_open(cp, &o);
}

static int
open_one(const struct harness *h, const char *label, struct slabc **cp)
{
	return open_in(h, "default", label, cp);
}

/* slabctl drain, in a process of its own that says how it ended. */
struct drain {
	struct harness *h;
	const char *arguments; /* at most two, parted at a blank */
	int status;
	char out[OUT_BYTES];
};

static void
run_drain(struct peer *me, void *arg)
{
	struct drain *d = arg;
	char program[256], socket_argument[128], copy[64], *argv[6] = {program, socket_argument}, *save = NULL;
	unsigned n = 2;

	snprintf(program, sizeof program, "%s", harness_path("SLABCTL"));
	snprintf(socket_argument, sizeof socket_argument, "--socket=%s", d->h->socket);
	snprintf(copy, sizeof copy, "%s", d->arguments);
	for (char *word = strtok_r(copy, " ", &save); word && n < 5; word = strtok_r(NULL, " ", &save))
		argv[n++] = word;
	d->status = harness_run(argv, NULL, d->out, sizeof d->out);
	peer_put(me, d, sizeof *d);
}

static pid_t
start_drain(struct drain *d)
{
	pid_t pid = harness_spawn(d->h, run_drain, d);

	CHECK(EVENTUALLY(harness_log_count(d->h, "wants no new sessions") > 0));
	return pid;
}

static void
end_drain(struct drain *d, pid_t pid)
{
	peer_get(harness_peer(d->h, pid), d, sizeof *d);
	harness_join(d->h, pid);
}

static int
wait_slabd(struct harness *h)
{
	int status = -1;

	close(h->monitor);
	h->monitor = -1;
	CHECK(EVENTUALLY(waitpid(h->slabd, &status, WNOHANG) == h->slabd));
	h->slabd = 0;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

/* Has a session until it is told to end. */
static void
stay(struct peer *me, void *arg)
{
	struct slabc *c = NULL;
	struct slabc_cache *k;
	void *p;

	CHECK(open_one(arg, "stays", &c) == 0);
	k = harness_open_cache(c, "k", 64, 0);
	peer_tell(me, 'r');
	peer_await(me, 'a');
	/* While it drains its sessions have all that they had. */
	CHECK((p = slabc_alloc(k)) != NULL && slabc_cache_shrink(k) == 0);
	k = harness_open_cache(c, "other", 128, 0);
	CHECK(slabc_alloc(k) != NULL);
	peer_tell(me, 'o');
	peer_await(me, 'e');
	slabc_close(c);
}

static void
it_drain_waits_for_the_last(void)
{
	static struct drain d;
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --threads=2");
	pid_t pids[2] = {harness_spawn(h, stay, h), harness_spawn(h, stay, h)}, pid;
	struct slabc *c = NULL;

	for (int i = 0; i < 2; i++)
		peer_await(harness_peer(h, pids[i]), 'r');
	d = (struct drain){.h = h, .arguments = "drain"};
	pid = start_drain(&d);
	CHECK(open_one(h, "late", &c) == -EBUSY && strstr(slabc_last_error(), "it drains"));
	for (int i = 0; i < 2; i++) {
		peer_tell(harness_peer(h, pids[i]), 'a');
		peer_await(harness_peer(h, pids[i]), 'o');
	}
	peer_tell(harness_peer(h, pids[0]), 'e');
	harness_join(h, pids[0]);
	CHECK(EVENTUALLY(harness_status(h).n_sessions == 1));
	CHECK(open_one(h, "late", &c) == -EBUSY);
	/* A death is an end as well. */
	harness_kill(h, pids[1], SIGKILL);
	end_drain(&d, pid);
	CHECK(d.status == 0 && strstr(d.out, "2 sessions are left"));
	CHECK(wait_slabd(h) == 0);
	CHECK(access(h->socket, F_OK) < 0);
	CHECK(harness_log_count(h, "drained: stopping") == 1);
}

/* Its time over, it says who is left, and slabd serves as before. */
static void
it_drain_has_its_time(void)
{
	static struct drain d;
	CLEANUP(harness_free) struct harness *h =
		harness_slabd_config("[arena]\nsize = 8M\npage-kind = 4k\n[arena second]\nsize = 8M\npage-kind = 4k\n");
	struct slabc *c = NULL, *late = NULL;
	char said[64];
	pid_t pid;

	REQUIRE(open_in(h, "second", "a worker", &c) == 0);
	d = (struct drain){.h = h, .arguments = "--timeout=1 drain"};
	pid = start_drain(&d);
	end_drain(&d, pid);
	CHECK(d.status == 1 && strstr(d.out, "second") && strstr(d.out, "a worker") && strstr(d.out, "slabd is not drained"));
	snprintf(said, sizeof said, "%d", getpid());
	CHECK(strstr(d.out, said) != NULL);
	CHECK(EVENTUALLY(open_one(h, "late", &late) == 0));
	CHECK(harness_log_count(h, "sessions are taken again") == 1);
	slabc_close(late);
	slabc_close(c);
}

/* Two want it: it lasts until both are gone, in whatever way. */
static void
it_drain_ends_with_who_wants_it(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --threads=2");
	union proto_request request = {0};
	union proto_reply reply = {0};
	struct slabc *c = NULL, *late = NULL;
	int fds[2];

	REQUIRE(open_one(h, "holds", &c) == 0);
	for (int i = 0; i < 2; i++) {
		REQUIRE((fds[i] = raw_connect(h->socket)) >= 0 && raw_hello(fds[i]) == 0);
		for (int again = 0; again < 3; again++)
			CHECK(raw_call(fds[i], PROTO_OP_DRAIN, &request, &reply, NULL) == PROTO_STATUS_OK && reply.drain.n_sessions == 1);
	}
	CHECK(open_one(h, "late", &late) == -EBUSY);
	close(fds[0]);
	/* The loop has seen that before it answers this, or the other loop has. */
	for (int i = 0; i < 20; i++)
		CHECK(harness_status(h).n_sessions == 1 && open_one(h, "late", &late) == -EBUSY);
	CHECK(harness_log_count(h, "sessions are taken again") == 0);
	close(fds[1]);
	CHECK(EVENTUALLY(open_one(h, "late", &late) == 0));
	CHECK(harness_log_count(h, "wants no new sessions") == 1);
	slabc_close(late);
	slabc_close(c);
}

/* Who keeps slabd's descriptors, as a service manager does: their names, and what slabd says. */
struct manager {
	int fd;
	unsigned n;
	char names[MAX_NAMES][32];
	unsigned n_draining, n_stopping;
};

static void
manager_start(struct manager *m, const struct harness *h)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	*m = (struct manager){.fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
	snprintf(address.sun_path, sizeof address.sun_path, "%s/notify", h->dir);
	REQUIRE(m->fd >= 0 && bind(m->fd, (struct sockaddr *)&address, sizeof address) == 0);
	setenv("NOTIFY_SOCKET", address.sun_path, 1);
	setenv("FDSTORE", "100", 1);
}

static void
manager_hear(struct manager *m)
{
	char text[4096], name[32];
	const char *at;
	ssize_t n;

	/* Descriptors that come with it are closed by the kernel, as there is no room for them. */
	while ((n = recv(m->fd, text, sizeof text - 1, 0)) > 0) {
		text[n] = '\0';
		m->n_draining += strstr(text, "STATUS=Draining") != NULL;
		m->n_stopping += strstr(text, "STOPPING=1") != NULL;
		at = strstr(text, "FDNAME=");
		if (!at)
			continue;
		snprintf(name, sizeof name, "%.*s", (int)strcspn(at + 7, "\n"), at + 7);
		if (strstr(text, "FDSTORE=1") && CHECK(m->n < MAX_NAMES))
			strcpy(m->names[m->n++], name);
		for (unsigned i = 0; strstr(text, "FDSTOREREMOVE=1") && i < m->n; i++)
			while (i < m->n && strcmp(m->names[i], name) == 0)
				memmove(m->names[i], m->names[--m->n], sizeof m->names[i]);
	}
}

/* A manager that would start the next one has nothing left for it, be there orphans and roots; one that was only stopped leaves all. */
static void
it_drained_slabd_leaves_nothing(void)
{
	static struct drain d;
	static struct manager m;

	for (int is_drained = 0; is_drained < 2; is_drained++) {
		CLEANUP(harness_free) struct harness *h = harness_new();
		struct slabc *c = NULL;
		struct slabc_cache *k;
		bool is_started;
		pid_t pid;
		void *p;

		manager_start(&m, h);
		is_started = harness_start(h, NULL, "--page-kind=4k");
		unsetenv("NOTIFY_SOCKET");
		unsetenv("FDSTORE");
		REQUIRE(is_started && open_one(h, "leaves", &c) == 0);
		k = harness_open_cache(c, "k", 64, 0);
		REQUIRE((p = slabc_alloc(k)) && slabc_publish(c, "root", slabc_ref_of(c, p), 0) == 0);
		slabc_close(c);
		CHECK(EVENTUALLY(harness_status(h).n_sessions == 0));
		manager_hear(&m);
		CHECK(m.n >= 5 && m.n_draining == 0);
		if (is_drained) {
			d = (struct drain){.h = h, .arguments = "--json drain"};
			pid = start_drain(&d);
			end_drain(&d, pid);
			CHECK(d.status == 0 && strcmp(d.out, "[\n]\n") == 0);
			CHECK(wait_slabd(h) == 0);
		} else {
			CHECK(harness_stop_slabd(h, SIGTERM) == 0);
		}
		manager_hear(&m);
		CHECK(is_drained ? m.n == 0 : m.n >= 4);
		CHECK(m.n_draining == (unsigned)is_drained && m.n_stopping == 1);
		close(m.fd);
	}
}

/* The keeper ends with a drained slabd, and does not start another. */
static void
it_drain_ends_the_keeper(void)
{
	static struct drain d;
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k");
	pid_t pid;

	d = (struct drain){.h = h, .arguments = "drain"};
	pid = start_drain(&d);
	end_drain(&d, pid);
	CHECK(d.status == 0);
	CHECK(wait_slabd(h) == 0);
	CHECK(harness_log_count(h, "serving arena") == 1);
	CHECK(access(h->socket, F_OK) < 0);
}

/* A slabd that is killed while it drains is adopted like any other; the drain ends with its connection. */
static void
it_drain_is_not_for_the_next_slabd(void)
{
	static struct drain d;
	CLEANUP(harness_free) struct harness *h = harness_keeper(NULL, "--page-kind=4k");
	struct slabc *c = NULL, *late = NULL;
	struct slabc_cache *k;
	pid_t pid;

	REQUIRE(open_one(h, "goes on", &c) == 0);
	k = harness_open_cache(c, "k", 64, 0);
	d = (struct drain){.h = h, .arguments = "drain"};
	pid = start_drain(&d);
	harness_kill_kept(h);
	end_drain(&d, pid);
	CHECK(d.status == 3 && strstr(d.out, "closed the connection"));
	CHECK(slabc_alloc(k) != NULL);
	CHECK(open_one(h, "late", &late) == 0);
	slabc_close(late);
	slabc_close(c);
}

static void
be_nobody(struct peer *me, void *arg)
{
	const struct harness *h = arg;
	union proto_request request = {0};
	union proto_reply reply;
	int fd;

	(void)me;
	CHECK(setgroups(0, NULL) == 0 && setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
	fd = raw_connect(h->socket);
	CHECK(fd >= 0 && raw_hello(fd) == 0);
	CHECK(raw_call(fd, PROTO_OP_DRAIN, &request, &reply, NULL) == PROTO_STATUS_ACCESS);
	close(fd);
}

/* Nor for who owns but one of two arenas, nor for one who has a session himself. */
static void
it_drain_is_for_administrators(void)
{
	CLEANUP(harness_free) struct harness *h = NULL;
	union proto_request request = {0};
	union proto_reply reply;
	struct raw raw;

	if (geteuid() != 0) {
		skip("only root can be another user");
		return;
	}
	h = harness_slabd_config("[slabd]\nsocket-mode = 0666\n[arena]\nsize = 8M\npage-kind = 4k\nowner = nobody\n[arena b]\nsize = 8M\npage-kind = 4k\n");
	harness_join(h, harness_spawn(h, be_nobody, h));
	raw_attach(&raw, h->socket, "raw");
	CHECK(raw_call(raw.fd, PROTO_OP_DRAIN, &request, &reply, NULL) == PROTO_STATUS_STATE);
	raw_detach(&raw);
	CHECK(harness_log_count(h, "wants no new sessions") == 0);
}

CU_pSuite
it_drain_suite(void)
{
	CU_pSuite suite = harness_suite("drain");

	CU_ADD_TEST(suite, it_drain_waits_for_the_last);
	CU_ADD_TEST(suite, it_drain_has_its_time);
	CU_ADD_TEST(suite, it_drain_ends_with_who_wants_it);
	CU_ADD_TEST(suite, it_drained_slabd_leaves_nothing);
	CU_ADD_TEST(suite, it_drain_ends_the_keeper);
	CU_ADD_TEST(suite, it_drain_is_not_for_the_next_slabd);
	CU_ADD_TEST(suite, it_drain_is_for_administrators);
	return suite;
}
