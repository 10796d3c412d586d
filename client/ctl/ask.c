/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/ask.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/reach.h"
#include "client/slabclient.h"
#include "proto/channel.h"
#include "proto/codec.h"
#include "shm/layout.h"

void
ask_die(int status, const char *format, ...)
{
	va_list args;

	fputs("slabctl: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	_exit(status);
}

static void
open_socket(struct ask *ask)
{
	struct timeval timeout = {.tv_sec = ask->timeout_s};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char why[REACH_SENTENCE_BYTES];

	if (strlen(ask->socket) >= sizeof(address.sun_path))
		ask_die(ASK_EXIT_USAGE, "the socket's path is longer than %zu bytes: %s", sizeof(address.sun_path) - 1, ask->socket);
	strcpy(address.sun_path, ask->socket);
	ask->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (ask->fd < 0 || setsockopt(ask->fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) < 0 ||
		setsockopt(ask->fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) < 0)
		ask_die(ASK_EXIT_SLABD, "cannot make a socket: %s", strerror(errno));
	if (connect(ask->fd, (const struct sockaddr *)&address, sizeof(address)) == 0)
		return;
	if (errno == EAGAIN)
		ask_die(ASK_EXIT_SLABD, "cannot connect to %s: slabd accepts no connection within %d s. Is it stopped?", ask->socket,
			ask->timeout_s);
	reach_explain(ask->socket, ask->source, errno, why, sizeof(why));
	ask_die(ASK_EXIT_SLABD, "cannot connect to %s", why);
}

/* Every request that is about an arena has a field for its name. */
static void
name_arena(const struct ask *ask, enum proto_op op, union proto_request *request)
{
	const struct proto_field *f = proto_fields(op, PROTO_REQUEST);

	while (f->name != NULL && strcmp(f->name, "arena") != 0)
		f++;
	if (f->name == NULL || ask->arena == NULL)
		return;
	if (strlen(ask->arena) > f->max)
		ask_die(ASK_EXIT_USAGE, "an arena's name has at most %ju bytes", (uintmax_t)f->max);
	strcpy((char *)request + f->off, ask->arena);
}

void
ask_call_fds(struct ask *ask, enum proto_op op, const union proto_request *request, union proto_reply *reply, int *fds, unsigned *n_fdsp)
{
	static uint8_t packet[PROTO_MAX_PACKET];
	const char *socket_path = ask->socket, *op_name = proto_op_name(op);
	char sentence[PROTO_SENTENCE_BYTES];
	enum proto_status status;
	union proto_request named = *request;
	uint32_t id;
	ssize_t n;
	int r;

	name_arena(ask, op, &named);
	n = proto_pack_request(packet, sizeof(packet), op, ++ask->last_id, &named);
	if (n < 0)
		ask_die(ASK_EXIT_SLABD, "cannot ask for %s: %s", op_name, strerror((int)-n));
	r = channel_send(ask->fd, packet, (size_t)n, NULL, 0, 0);
	n = r < 0 ? r : channel_recv(ask->fd, packet, sizeof(packet), fds, n_fdsp, 0);
	if (n == -EAGAIN)
		ask_die(ASK_EXIT_SLABD, "no answer to %s from slabd at %s within %d s; --timeout sets how long to wait", op_name,
			socket_path, ask->timeout_s);
	if (n == 0 || n == -EPIPE || n == -ECONNRESET)
		ask_die(ASK_EXIT_SLABD, "slabd at %s closed the connection at %s; its log says why", socket_path, op_name);
	if (n < 0)
		ask_die(ASK_EXIT_SLABD, "no answer to %s from slabd at %s: %s", op_name, socket_path, strerror((int)-n));
	r = proto_unpack_reply(packet, (size_t)n, op, &id, &status, reply, sentence, sizeof(sentence));
	if (r < 0)
		ask_die(ASK_EXIT_SLABD, "slabd at %s gave no proper answer: %s", socket_path, sentence);
	if (status != PROTO_STATUS_OK)
		ask_die(ASK_EXIT_SLABD, "slabd at %s refused %s: %s (%s)", socket_path, op_name, sentence, proto_status_name(status));
	if (id != ask->last_id)
		ask_die(ASK_EXIT_SLABD, "slabd at %s answered request %u instead of %u", socket_path, id, ask->last_id);
}

void
ask_call(struct ask *ask, enum proto_op op, const union proto_request *request, union proto_reply *reply)
{
	ask_call_fds(ask, op, request, reply, NULL, NULL);
}

void
ask_await_end(struct ask *ask)
{
	char byte;

	if (recv(ask->fd, &byte, sizeof(byte), 0) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		ask_die(ASK_EXIT_SLABD, "slabd at %s said that it stops, and has not within %d s", ask->socket, ask->timeout_s);
}

static void
compare_versions(struct ask *ask)
{
	union proto_request request = {
		.hello = {.version = PROTO_VERSION, .layout_hash = layout_hash, .library = "slabctl " SLABC_VERSION}};
	union proto_reply reply;

	ask_call(ask, PROTO_OP_HELLO, &request, &reply);
	ask->nonce = reply.hello.nonce;
	if (reply.hello.version != PROTO_VERSION)
		ask_die(ASK_EXIT_SLABD, "slabd at %s (%s) speaks protocol %u, slabctl %s speaks %u: use those of one release", ask->socket,
			reply.hello.server, reply.hello.version, SLABC_VERSION, (unsigned)PROTO_VERSION);
	if (reply.hello.layout_hash != layout_hash)
		ask_die(ASK_EXIT_SLABD, "slabd at %s (%s) has layout %#jx, slabctl %s has %#jx: use those of one release", ask->socket,
			reply.hello.server, (uintmax_t)reply.hello.layout_hash, SLABC_VERSION, (uintmax_t)layout_hash);
}

void
ask_open(struct ask *ask)
{
	open_socket(ask);
	compare_versions(ask);
}

/* A list's place: numbers, or a name. */
struct place {
	uint64_t number;
	const char *name;
};

static struct place
place_of(enum proto_op op, const union proto_reply *reply)
{
	switch (op) {
	case PROTO_OP_CACHES:
		return (struct place){.number = reply->caches.cache};
	case PROTO_OP_CLIENTS:
		return (struct place){.number = reply->clients.client};
	case PROTO_OP_ARENAS:
		return (struct place){.number = reply->arenas.arena};
	case PROTO_OP_NODES:
		return (struct place){.number = reply->nodes.node};
	case PROTO_OP_INSPECT:
		return (struct place){.number = reply->inspect.arena};
	case PROTO_OP_ORPHANS:
		return (struct place){.number = (uint64_t)reply->orphans.cache << 32 | reply->orphans.client};
	default:
		return (struct place){.number = *reply->next_root.name != '\0', .name = reply->next_root.name};
	}
}

/* Makes the request go on from there.  false: it has been there already. */
static bool
go_on(enum proto_op op, union proto_request *request, struct place place)
{
	uint64_t before;

	if (op == PROTO_OP_NEXT_ROOT) {
		bool is_further = strcmp(place.name, request->next_root.after) > 0;

		strcpy(request->next_root.after, place.name);
		return is_further;
	}
	if (op == PROTO_OP_ORPHANS) {
		before = (uint64_t)request->orphans.after_cache << 32 | request->orphans.after_client;
		request->orphans.after_cache = (uint32_t)(place.number >> 32);
		request->orphans.after_client = (uint32_t)place.number;
	} else {
		uint32_t *afterp = op == PROTO_OP_CACHES    ? &request->caches.after
				   : op == PROTO_OP_CLIENTS ? &request->clients.after
				   : op == PROTO_OP_ARENAS  ? &request->arenas.after
				   : op == PROTO_OP_INSPECT ? &request->inspect.after
							    : &request->nodes.after;

		before = *afterp;
		*afterp = (uint32_t)place.number;
	}
	return place.number > before;
}

bool
ask_next(struct ask *ask, enum proto_op op, union proto_request *request, union proto_reply *reply)
{
	struct place place;

	ask_call(ask, op, request, reply);
	place = place_of(op, reply);
	if (place.number == 0)
		return false;
	if (!go_on(op, request, place))
		ask_die(ASK_EXIT_SLABD, "slabd at %s gave no proper answer: %s: an entry does not follow the one before", ask->socket,
			proto_op_name(op));
	return true;
}

uint32_t
ask_find_cache(struct ask *ask, const char *name)
{
	union proto_request request = {0};
	union proto_reply reply;

	while (ask_next(ask, PROTO_OP_CACHES, &request, &reply))
		if (strcmp(reply.caches.name, name) == 0)
			return reply.caches.cache;
	ask_die(ASK_EXIT_SLABD, "slabd at %s has no cache %s; slabctl caches lists them", ask->socket, name);
}
