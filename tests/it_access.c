/* SPDX-License-Identifier: Apache-2.0 */
/* Who may attach, read-only or read-write: owner, group and mode, by what the kernel says of the peer; and limits for each user. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/harness.h"

CU_pSuite it_access_suite(void);

enum { OWNER = 1001, USER = 1002, GROUP = 2001, OTHER_GROUP = 3000 };

/* Makes this child another user. n_groups supplementary ones. */
static void
become(uid_t uid, gid_t gid, size_t n_groups, const gid_t *groups)
{
	CHECK(setgroups(n_groups, groups) == 0);
	CHECK(setresgid(gid, gid, gid) == 0 && setresuid(uid, uid, uid) == 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static int
try_open(const struct harness *h, const char *arena, unsigned flags, struct slabc **cp)
{
	struct slabc_options options = SLABC_OPTIONS_INIT;

	options.socket = h->socket;
	options.arena = arena;
	options.flags = flags;
	options.label = "tries";
	return slabc_open(cp, &options);
}

struct attempt {
	struct harness *h;
	uid_t uid;
	gid_t gid;
	size_t n_groups;
	gid_t groups[40];
	const char *arena;
	bool may_read;
	bool may_write;
	unsigned may;         /* ARENAS' bits */
	const char *words[4]; /* in the refusal */
};

static void
attempt(struct peer *me, void *arg)
{
	const struct attempt *a = arg;
	union proto_request request = {0};
	union proto_reply reply = {0};
	struct slabc *c = NULL;
	int fd;

	(void)me;
	become(a->uid, a->gid, a->n_groups, a->groups);
	CHECK(try_open(a->h, a->arena, SLABC_RDONLY, &c) == (a->may_read ? 0 : -EACCES));
	if (a->may_read)
		slabc_close(c);
	else
		for (unsigned i = 0; i < 4 && a->words[i]; i++)
			CHECK(strstr(slabc_last_error(), a->words[i]) != NULL);
	CHECK(try_open(a->h, a->arena, 0, &c) == (a->may_write ? 0 : -EACCES));
	if (a->may_write)
		slabc_close(c);
	else
		for (unsigned i = 0; i < 4 && a->words[i]; i++)
			CHECK(strstr(slabc_last_error(), a->words[i]) != NULL);
	/* Monitoring is reading; what arenas there are everybody may know. */
	fd = raw_connect(a->h->socket);
	CHECK(raw_hello(fd) == 0);
	strcpy(request.status.arena, a->arena);
	CHECK(raw_call(fd, PROTO_OP_STATUS, &request, &reply, NULL) == (a->may_read ? PROTO_STATUS_OK : PROTO_STATUS_ACCESS));
	request = (union proto_request){0};
	do {
		CHECK(raw_call(fd, PROTO_OP_ARENAS, &request, &reply, NULL) == PROTO_STATUS_OK);
		CHECK(reply.arenas.arena != 0);
		request.arenas.after = reply.arenas.arena;
	} while (strcmp(reply.arenas.name, a->arena) != 0);
	CHECK(reply.arenas.may == a->may);
	close(fd);
}

/* Owner, group by gid and by supplementary group, and others; one class of the mode counts, as for files; root may always. */
static void
it_mode_decides(void)
{
	static const char config[] = "[slabd]\nsocket-mode = 0666\n"
				     "[arena a]\nowner = 1001\ngroup = 2001\nmode = 0640\nsize = 4M\n"
				     "[arena public]\nowner = 1001\ngroup = 2001\nmode = 0664\nsize = 4M\n"
				     "[arena odd]\nowner = 1001\ngroup = 2001\nmode = 0066\nsize = 4M\n"
				     "[arena nongroup]\nowner = 1001\ngroup = 2001\nmode = 0606\nsize = 4M\n";
	static struct attempt attempts[] = {
		{.uid = OWNER, .gid = OTHER_GROUP, .arena = "a", .may_read = true, .may_write = true, .may = 7},
		{.uid = USER,
			.gid = GROUP,
			.arena = "a",
			.may_read = true,
			.may = 1,
			.words = {"uid 1002 may only read arena 'a'",
				"owner 1001, group 2001, mode 0640, of which the group's digit (4) counts", "SLABC_RDONLY", "mode="}},
		{.uid = USER,
			.gid = OTHER_GROUP,
			.n_groups = 3,
			.groups = {4000, GROUP, 4001},
			.arena = "a",
			.may_read = true,
			.may = 1,
			.words = {"uid 1002 may only read arena 'a'", "the group's digit", "SLABC_RDONLY", "[arena a]"}},
		{.uid = USER,
			.gid = OTHER_GROUP,
			.n_groups = 2,
			.groups = {4000, 4001},
			.arena = "a",
			.words = {"uid 1002 may not", "arena 'a'", "0640, of which others' digit (0) counts", "join the group"}},
		{.uid = USER, .gid = OTHER_GROUP, .arena = "a", .words = {"uid 1002 may not", "mode 0640", "[arena a]", NULL}},
		{.uid = 0, .gid = OTHER_GROUP, .arena = "a", .may_read = true, .may_write = true, .may = 7},
		{.uid = USER,
			.gid = OTHER_GROUP,
			.arena = "public",
			.may_read = true,
			.may = 1,
			.words = {"may only read", "'public'", NULL}},
		{.uid = USER, .gid = GROUP, .arena = "public", .may_read = true, .may_write = true, .may = 3},
		/* The owner's own class says no, whatever the others' say. */
		{.uid = OWNER,
			.gid = GROUP,
			.arena = "odd",
			.may = 4,
			.words = {"uid 1001 may not", "mode 0066, of which the owner's digit (0) counts", NULL}},
		{.uid = USER,
			.gid = OTHER_GROUP,
			.n_groups = 1,
			.groups = {GROUP},
			.arena = "nongroup",
			.words = {"the group's digit", NULL}},
		{.uid = USER, .gid = OTHER_GROUP, .arena = "nongroup", .may_read = true, .may_write = true, .may = 3},
	};
	CLEANUP(harness_free) struct harness *h = harness_slabd_config(config);
	unsigned n_refused = 0;

	if (geteuid() != 0) {
		skip("only root may become another user");
		return;
	}
	for (unsigned i = 0; i < sizeof attempts / sizeof attempts[0]; i++) {
		attempts[i].h = h;
		harness_join(h, harness_spawn(h, attempt, &attempts[i]));
		/* Two sessions and a question. */
		n_refused += !attempts[i].may_write + 2 * !attempts[i].may_read;
	}
	CHECK(harness_log_count(h, "refused: uid") == n_refused);
	CHECK(harness_log_count(h, "refused: uid 1002 may only read arena 'a'") == 2);
}

/* Opens path, which fails: the sentence has what, and who named the path. */
static void
check_unreachable(const char *path, const char *source, int error, const char *what)
{
	struct slabc_options options = SLABC_OPTIONS_INIT;
	struct slabc *c;

	options.socket = path;
	CHECK(slabc_open(&c, &options) == -error);
	CHECK(strstr(slabc_last_error(), source) && strstr(slabc_last_error(), what));
}

static void
meet_the_socket(struct peer *me, void *arg)
{
	const struct harness *h = arg;

	(void)me;
	become(USER, OTHER_GROUP, 0, NULL);
	check_unreachable(
		h->socket, "(options.socket)", EACCES, "it is for group 2001 (mode 0660): usermod -aG 2001 USER, and log in again");
}

static void
meet_the_owners_socket(struct peer *me, void *arg)
{
	const struct harness *h = arg;

	(void)me;
	become(USER, OTHER_GROUP, 0, NULL);
	check_unreachable(h->socket, "(options.socket)", EACCES, "its mode 0600 is for its owner alone");
}

/* Who cannot even connect is told what is wrong with the socket, and where its path came from. */
static void
it_unreachable_sockets_are_explained(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=4M");
	char missing[128];

	snprintf(missing, sizeof missing, "%s/none", h->dir);
	check_unreachable(missing, "(options.socket)", ENOENT, "is slabd running?");
	check_unreachable(h->log, "(options.socket)", ECONNREFUSED, "it is no socket");
	setenv("SLABD_SOCKET", h->log, 1);
	check_unreachable(NULL, "($SLABD_SOCKET)", ECONNREFUSED, "it is no socket");
	unsetenv("SLABD_SOCKET");
	if (geteuid() != 0) {
		skip("only root may become another user");
		return;
	}
	CHECK(chmod(h->dir, 0755) == 0 && chown(h->socket, 0, GROUP) == 0 && chmod(h->socket, 0660) == 0);
	harness_join(h, harness_spawn(h, meet_the_socket, h));
	CHECK(chmod(h->socket, 0600) == 0);
	harness_join(h, harness_spawn(h, meet_the_owners_socket, h));
}

/* More supplementary groups than a first guess has room for. */
static void
it_many_groups(void)
{
	CLEANUP(harness_free)
	struct harness *h =
		harness_slabd_config("[slabd]\nsocket-mode = 0666\n[arena a]\nowner = 1001\ngroup = 2001\nmode = 0660\nsize = 4M\n");
	static struct attempt a = {
		.uid = USER, .gid = OTHER_GROUP, .n_groups = 40, .arena = "a", .may_read = true, .may_write = true, .may = 3};

	if (geteuid() != 0) {
		skip("only root may become another user");
		return;
	}
	a.h = h;
	for (unsigned i = 0; i < 40; i++)
		a.groups[i] = 5000 + i;
	a.groups[39] = GROUP;
	harness_join(h, harness_spawn(h, attempt, &a));
}

static void
knock(struct peer *me, void *arg)
{
	union proto_request request = {.attach = {.arena = "default", .label = "knocks"}};
	struct harness *h = arg;
	char sentence[PROTO_SENTENCE_BYTES];
	int fd;

	(void)me;
	become(USER, OTHER_GROUP, 0, NULL);
	fd = raw_connect(h->socket);
	CHECK(raw_hello(fd) == 0);
	for (int i = 0; i < 100; i++)
		CHECK(raw_call(fd, PROTO_OP_ATTACH, &request, &(union proto_reply){0}, sentence) == PROTO_STATUS_ACCESS);
	CHECK(strstr(sentence, "uid 1002") != NULL);
	/* Nor does anything else open the arena's door. */
	request = (union proto_request){0};
	CHECK(raw_call(fd, PROTO_OP_CACHES, &request, &(union proto_reply){0}, NULL) == PROTO_STATUS_ACCESS);
	CHECK(raw_call(fd, PROTO_OP_CLIENTS, &request, &(union proto_reply){0}, NULL) == PROTO_STATUS_ACCESS);
	CHECK(raw_call(fd, PROTO_OP_AUDIT, &request, &(union proto_reply){0}, NULL) == PROTO_STATUS_ACCESS);
	request.audit.repair = 1;
	CHECK(raw_call(fd, PROTO_OP_AUDIT, &request, &(union proto_reply){0}, NULL) == PROTO_STATUS_ACCESS);
	request = (union proto_request){.refill = {.cache = 1, .n_sheaves = 1}};
	CHECK(raw_call(fd, PROTO_OP_REFILL, &request, &(union proto_reply){0}, NULL) == PROTO_STATUS_STATE);
	close(fd);
}

/* Who is refused again and again is logged once, counted each time, and gets nothing. */
static void
it_knocking_does_not_flood_the_log(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd_config("[slabd]\nsocket-mode = 0666\n[arena]\nsize = 4M\n");
	union proto_request request = {0};
	union proto_reply reply = {0};

	if (geteuid() != 0) {
		skip("only root may become another user");
		return;
	}
	harness_join(h, harness_spawn(h, knock, h));
	CHECK(harness_log_count(h, "refused: uid 1002") == 1);
	CHECK(harness_ask(h, PROTO_OP_ARENAS, &request, &reply) == PROTO_STATUS_OK);
	CHECK(reply.arenas.n_refused == 104);
}

static void
take_all(struct peer *me, void *arg)
{
	struct slabc *c[3] = {0};
	struct harness *h = arg;

	become(USER, GROUP, 0, NULL);
	CHECK(try_open(h, "default", 0, &c[0]) == 0 && try_open(h, "default", SLABC_RDONLY, &c[1]) == 0);
	CHECK(try_open(h, "default", 0, &c[2]) == -EDQUOT);
	CHECK(strstr(slabc_last_error(), "uid 1002 has its 2 sessions") != NULL);
	CHECK(strstr(slabc_last_error(), "max-sessions= in [arena default]") != NULL);
	/* Another arena counts for itself. */
	CHECK(try_open(h, "other", 0, &c[2]) == 0);
	slabc_close(c[2]);
	peer_tell(me, 't');
	peer_await(me, 'g');
	slabc_close(c[1]);
	CHECK(try_open(h, "default", 0, &c[1]) == 0);
}

/* A user has so many sessions in an arena and no more; others are not concerned; what ends makes room. */
static void
it_sessions_of_one_user(void)
{
	CLEANUP(harness_free)
	struct harness *h = harness_slabd_config("[slabd]\nsocket-mode = 0666\n[arena]\nsize = 4M\ngroup = 2001\nmax-sessions = 2\n[arena "
						 "other]\nsize = 4M\ngroup = 2001\n");
	struct slabc *c[2];
	pid_t pid;

	if (geteuid() != 0) {
		skip("only root may become another user");
		return;
	}
	pid = harness_spawn(h, take_all, h);
	peer_await(harness_peer(h, pid), 't');
	c[0] = harness_open(h, "root's");
	c[1] = harness_open(h, "root's");
	CHECK(harness_log_count(h, "refused: uid 1002 has its 2 sessions") == 1);
	peer_tell(harness_peer(h, pid), 'g');
	harness_join(h, pid);
	slabc_close(c[0]);
	slabc_close(c[1]);
}

static void
hold_and_reopen(struct peer *me, void *arg)
{
	struct harness *h = arg;
	struct slabc *c = NULL, *again = NULL;
	struct slabc_cache *k;

	become(USER, GROUP, 0, NULL);
	CHECK(try_open(h, "default", 0, &c) == 0);
	k = harness_open_cache(c, "k", 64, 0);
	peer_tell(me, 'o');
	peer_await(me, 'r');
	/* What is open stays open, and works; the next one is refused. */
	CHECK(slabc_alloc(k) != NULL);
	CHECK(try_open(h, "default", 0, &again) == -EACCES);
	CHECK(try_open(h, "default", SLABC_RDONLY, &again) == 0);
	slabc_close(again);
	peer_tell(me, 'd');
	peer_await(me, 'r');
	CHECK(try_open(h, "default", 0, &again) == 0);
}

/* A reload changes who may attach from then on. */
static void
it_reload_changes_access(void)
{
	CLEANUP(harness_free)
	struct harness *h = harness_slabd_config("[slabd]\nsocket-mode = 0666\n[arena]\nsize = 4M\ngroup = 2001\nmode = 0660\n");
	pid_t pid;

	if (geteuid() != 0) {
		skip("only root may become another user");
		return;
	}
	pid = harness_spawn(h, hold_and_reopen, h);
	peer_await(harness_peer(h, pid), 'o');
	harness_reload(h, "[slabd]\nsocket-mode = 0666\n[arena]\nsize = 4M\ngroup = 2001\nmode = 0640\n");
	peer_tell(harness_peer(h, pid), 'r');
	peer_await(harness_peer(h, pid), 'd');
	harness_reload(h, "[slabd]\nsocket-mode = 0666\n[arena]\nsize = 4M\nowner = 1002\ngroup = 1\nmode = 0600\n");
	peer_tell(harness_peer(h, pid), 'r');
	harness_join(h, pid);
}

CU_pSuite
it_access_suite(void)
{
	CU_pSuite suite = harness_suite("access");

	CU_ADD_TEST(suite, it_mode_decides);
	CU_ADD_TEST(suite, it_unreachable_sockets_are_explained);
	CU_ADD_TEST(suite, it_many_groups);
	CU_ADD_TEST(suite, it_knocking_does_not_flood_the_log);
	CU_ADD_TEST(suite, it_sessions_of_one_user);
	CU_ADD_TEST(suite, it_reload_changes_access);
	return suite;
}
