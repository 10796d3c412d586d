/* SPDX-License-Identifier: Apache-2.0 */
/* Several arenas in one slabd: each with its own memory, caches, sessions and limits; asked about by name. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/channel.h"
#include "tests/harness.h"

CU_pSuite it_arenas_suite(void);

static const char two_arenas[] = "[arena]\nsize = 8M\npage-kind = 4k\n[arena video]\nsize = 16M\npage-kind = 4k\nprofile = tiny\n";

static int
try_open(const struct harness *h, const char *arena, struct slabc **cp)
{
	struct slabc_options options = SLABC_OPTIONS_INIT;

	options.socket = h->socket;
	options.arena = arena;
	options.label = arena;
	return slabc_open(cp, &options);
}

static enum proto_status
status_of(struct harness *h, const char *arena, struct proto_status_reply *reply)
{
	union proto_request request = {0};
	union proto_reply out = {0};
	enum proto_status status;

	snprintf(request.status.arena, sizeof request.status.arena, "%s", arena);
	status = harness_ask(h, PROTO_OP_STATUS, &request, &out);
	*reply = out.status;
	return status;
}

static struct proto_caches_reply
first_cache(struct harness *h, const char *arena)
{
	union proto_request request = {0};
	union proto_reply reply = {0};

	snprintf(request.caches.arena, sizeof request.caches.arena, "%s", arena);
	CHECK(harness_ask(h, PROTO_OP_CACHES, &request, &reply) == PROTO_STATUS_OK);
	return reply.caches;
}

static struct proto_clients_reply
first_client(struct harness *h, const char *arena)
{
	union proto_request request = {0};
	union proto_reply reply = {0};

	snprintf(request.clients.arena, sizeof request.clients.arena, "%s", arena);
	CHECK(harness_ask(h, PROTO_OP_CLIENTS, &request, &reply) == PROTO_STATUS_OK);
	return reply.clients;
}

static struct proto_audit_reply
audit_of(struct harness *h, const char *arena)
{
	union proto_request request = {0};
	union proto_reply reply = {0};

	snprintf(request.audit.arena, sizeof request.audit.arena, "%s", arena);
	CHECK(harness_ask(h, PROTO_OP_AUDIT, &request, &reply) == PROTO_STATUS_OK);
	return reply.audit;
}

/* A process may have a session in each; the same cache name is another cache there, ids begin anew, and nothing of one counts in the other.
 */
static void
it_arenas_are_apart(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd_config(two_arenas);
	struct slabc *d = NULL, *v = NULL;
	struct slabc_cache *kd, *kv;
	struct proto_status_reply sd, sv;
	slabc_ref ref;
	char *p, *q;

	REQUIRE(try_open(h, NULL, &d) == 0 && try_open(h, "video", &v) == 0);
	CHECK(slabc_client_id(d) == slabc_client_id(v)); /* each the first of its arena */
	kd = harness_open_cache(d, "k", 64, 0);
	kv = harness_open_cache(v, "k", 4096, 0);
	REQUIRE((p = slabc_alloc(kd)) && (q = slabc_alloc(kv)));
	strcpy(p, "default's");
	memset(q, 'v', 4096);
	CHECK(strcmp(p, "default's") == 0);

	CHECK(first_cache(h, "").object_size == 64 && first_cache(h, "default").object_size == 64);
	CHECK(first_cache(h, "video").object_size == 4096 && first_cache(h, "video").capacity == 0);
	CHECK(strcmp(first_client(h, "video").label, "video") == 0 && strcmp(first_client(h, "").label, "video") != 0);
	CHECK(first_client(h, "video").n_held == 1 && first_client(h, "video").bytes_held == 4096);
	CHECK(status_of(h, "", &sd) == PROTO_STATUS_OK && strcmp(sd.arena, "default") == 0 && sd.n_sessions == 1);
	CHECK(status_of(h, "video", &sv) == PROTO_STATUS_OK && strcmp(sv.arena, "video") == 0 && strcmp(sv.profile, "tiny") == 0);
	CHECK(sd.arena_bytes == 8 << 20 && sv.arena_bytes == 16 << 20);
	CHECK(audit_of(h, "video").n_held == 1 && audit_of(h, "").n_held == 1);
	CHECK(audit_of(h, "video").n_lost == 0 && audit_of(h, "").n_lost == 0);

	/* A reference of one means nothing in the other: here an object of theirs is no object. */
	ref = slabc_ref_of(d, p);
	errno = 0;
	CHECK(slabc_deref(d, ref) == p);
	CHECK(slabc_deref(v, ref) != p);
	errno = 0;
	slabc_free(kv, p);
	CHECK(errno == EINVAL);

	/* The one full, the other gives. */
	while (slabc_alloc(kd))
		;
	CHECK(errno == ENOMEM && strstr(slabc_last_error(), "'default'") != NULL);
	for (int i = 0; i < 2000; i++)
		CHECK(slabc_alloc(kv) != NULL);
	slabc_close(d);
	CHECK(status_of(h, "video", &sv) == PROTO_STATUS_OK && sv.n_sessions == 1);
	CHECK(slabc_alloc(kv) != NULL && memchr(q, 0, 4096) == NULL);
	slabc_close(v);
	CHECK(audit_of(h, "video").n_lost == 0 && audit_of(h, "video").n_doubled == 0);
}

/* A name that is none of them: the sentence lists those that there are. */
static void
it_unknown_arena_is_refused(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd_config(two_arenas);
	struct proto_status_reply status;
	struct slabc *c;

	CHECK(try_open(h, "audio", &c) == -ENOENT);
	CHECK(strstr(slabc_last_error(), "'audio'") != NULL && strstr(slabc_last_error(), "'default', 'video'") != NULL);
	CHECK(status_of(h, "audio", &status) == PROTO_STATUS_NO_ARENA);
}

/* No name: the one called default, else the only one, else there is no telling. */
static void
it_empty_name(void)
{
	static const struct {
		const char *config;
		const char *arena; /* NULL: refused */
	} cases[] = {
		{"[arena b]\nsize = 4M\n[arena]\nsize = 4M\n", "default"},
		{"[arena b]\nsize = 4M\n", "b"},
		{"", "default"},
		{"[arena b]\nsize = 4M\n[arena c]\nsize = 4M\n", NULL},
	};

	for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		CLEANUP(harness_free) struct harness *h = harness_slabd_config(cases[i].config);
		union proto_request request = {0};
		char sentence[PROTO_SENTENCE_BYTES] = "";
		struct proto_status_reply status;

		CHECK(status_of(h, "", &status) == (cases[i].arena ? PROTO_STATUS_OK : PROTO_STATUS_NO_ARENA));
		if (cases[i].arena) {
			CHECK(strcmp(status.arena, cases[i].arena) == 0);
			continue;
		}
		CHECK(raw_call(h->monitor, PROTO_OP_STATUS, &request, &(union proto_reply){0}, sentence) == PROTO_STATUS_NO_ARENA);
		CHECK(strstr(sentence, "which arena") != NULL && strstr(sentence, "'b', 'c'") != NULL);
	}
}

/* A connection with a session asks about that arena only. */
static void
it_session_stays_in_its_arena(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd_config(two_arenas);
	union proto_request request = {.attach = {.arena = "video", .label = "v"}};
	union proto_reply reply = {0};
	int fd = raw_connect(h->socket), fds[PROTO_MAX_FDS];
	unsigned n_fds = PROTO_MAX_FDS;
	unsigned char packet[4096];

	CHECK(raw_hello(fd) == 0);
	CHECK(raw_send(fd, PROTO_OP_ATTACH, 1, &request) == 0);
	CHECK(channel_recv(fd, packet, sizeof packet, fds, &n_fds, 0) > 0 && n_fds >= 4);
	for (unsigned i = 0; i < n_fds; i++)
		close(fds[i]);
	request = (union proto_request){0};
	CHECK(raw_call(fd, PROTO_OP_STATUS, &request, &reply, NULL) == PROTO_STATUS_OK && strcmp(reply.status.arena, "video") == 0);
	strcpy(request.status.arena, "video");
	CHECK(raw_call(fd, PROTO_OP_STATUS, &request, &reply, NULL) == PROTO_STATUS_OK);
	strcpy(request.status.arena, "default");
	CHECK(raw_call(fd, PROTO_OP_STATUS, &request, &reply, NULL) == PROTO_STATUS_STATE);
	close(fd);
}

/* slabctl's --arena, and its default. */
static void
it_slabctl_arena(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd_config(two_arenas);
	char ctl[256], socket_argument[128], arena[64], command[32], json[] = "--json", out[8192];
	char *argv[] = {ctl, socket_argument, arena, json, command, NULL};
	struct slabc *v = NULL;

	REQUIRE(try_open(h, "video", &v) == 0);
	harness_open_cache(v, "frames", 4096, 0);
	snprintf(ctl, sizeof ctl, "%s", harness_path("SLABCTL"));
	snprintf(socket_argument, sizeof socket_argument, "--socket=%s", h->socket);
	strcpy(arena, "--arena=video");
	strcpy(command, "caches");
	CHECK(harness_run(argv, NULL, out, sizeof out) == 0 && strstr(out, "frames") != NULL);
	strcpy(command, "status");
	CHECK(harness_run(argv, NULL, out, sizeof out) == 0 && strstr(out, "\"video\"") != NULL);
	strcpy(command, "clients");
	CHECK(harness_run(argv, NULL, out, sizeof out) == 0 && strstr(out, "\"label\": \"video\"") != NULL);
	strcpy(command, "audit");
	CHECK(harness_run(argv, NULL, out, sizeof out) == 0);
	strcpy(arena, "--arena=default");
	strcpy(command, "caches");
	CHECK(harness_run(argv, NULL, out, sizeof out) == 0 && strstr(out, "frames") == NULL);
	strcpy(arena, "--arena=none");
	CHECK(harness_run(argv, NULL, out, sizeof out) == 3 && strstr(out, "'default', 'video'") != NULL);
	strcpy(arena, "--json");
	strcpy(command, "arenas");
	CHECK(harness_run(argv, NULL, out, sizeof out) == 0 && strstr(out, "\"video\"") != NULL && strstr(out, "\"default\"") != NULL);
	slabc_close(v);
}

CU_pSuite
it_arenas_suite(void)
{
	CU_pSuite suite = harness_suite("arenas");

	CU_ADD_TEST(suite, it_arenas_are_apart);
	CU_ADD_TEST(suite, it_unknown_arena_is_refused);
	CU_ADD_TEST(suite, it_empty_name);
	CU_ADD_TEST(suite, it_session_stays_in_its_arena);
	CU_ADD_TEST(suite, it_slabctl_arena);
	return suite;
}
