/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slabctl: asks slabd what it knows, and prints it.
 *
 * Each command is one monitoring op; a list is walked by asking for what comes after the last answer.  A reply's fields become a table's
 * columns by the protocol's own field list, so a field added to ops.def shows up here by itself.
 * Exit status: 0; 1: the audit found objects lost or doubled; 2: usage; 3: slabd cannot be asked, or refused.
 */
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/ctl/table.h"
#include "client/slabclient.h"
#include "proto/channel.h"
#include "proto/codec.h"
#include "shm/layout.h"

enum {
	EXIT_LOST = 1,
	EXIT_USAGE = 2,
	EXIT_SLABD = 3,

	DEFAULT_TIMEOUT_S = 5,
	MAX_TIMEOUT_S = 86400,
};

/* A reply's field that text shows in this place, under this heading; the others follow, in JSON only. */
struct view {
	size_t off;
	const char *heading;
};

struct command {
	const char *name;
	enum proto_op op;
	const struct view *view;       /* ends with a heading of NULL */
	const char *const *flag_names; /* of the field "flags", from bit 0; ends with NULL */
	bool is_list;
};

struct options {
	const char *socket;
	const char *cache; /* NULL: all */
	int timeout_s;
	enum table_form form;
	const struct command *command;
};

/* What is asked, and whom. */
struct session {
	const struct options *options;
	int fd;
	uint32_t last_id;
};

#define VIEW(reply, field) offsetof(struct proto_##reply##_reply, field)

static const struct view caches_view[] = {
	{VIEW(caches, name), "name"},
	{VIEW(caches, object_size), "objsize"},
	{VIEW(caches, n_objects), "objects"},
	{VIEW(caches, n_allocated), "allocated"},
	{VIEW(caches, n_thread), "threads"},
	{VIEW(caches, n_process_barn), "procbarns"},
	{VIEW(caches, n_node_barn), "nodebarns"},
	{VIEW(caches, n_free), "free"},
	{VIEW(caches, n_slabs), "slabs"},
	{VIEW(caches, order), "order"},
	{VIEW(caches, objects_per_slab), "objs/slab"},
	{VIEW(caches, capacity), "capacity"},
	{VIEW(caches, n_partial), "partial"},
	{VIEW(caches, flags), "flags"},
	{0, NULL},
};

static const struct view clients_view[] = {
	{VIEW(clients, client_id), "id"},
	{VIEW(clients, pid), "pid"},
	{VIEW(clients, uid), "uid"},
	{VIEW(clients, label), "label"},
	{VIEW(clients, state), "state"},
	{VIEW(clients, n_threads), "threads"},
	{VIEW(clients, n_held), "held"},
	{VIEW(clients, bytes_held), "heldbytes"},
	{VIEW(clients, bytes_idle), "idlebytes"},
	{VIEW(clients, n_orphans), "orphans"},
	{VIEW(clients, n_refills), "refills"},
	{VIEW(clients, n_flushes), "flushes"},
	{VIEW(clients, n_faults), "faults"},
	{VIEW(clients, flags), "flags"},
	{0, NULL},
};

static const struct view audit_view[] = {
	{VIEW(audit, n_out), "n_out"},
	{VIEW(audit, n_lost), "n_lost"},
	{VIEW(audit, n_doubled), "n_doubled"},
	{VIEW(audit, n_orphans), "n_orphans"},
	{VIEW(audit, n_undecided), "n_undecided"},
	{0, NULL},
};

static const struct view no_view[] = {{0, NULL}};

/* SLABC_RECLAIM and so on; SLABC_RDONLY. */
static const char *const cache_flags[] = {"reclaim", "shared", "nowait", NULL};
static const char *const session_flags[] = {"rdonly", NULL};

static const struct command commands[] = {
	{"status", PROTO_OP_STATUS, no_view, NULL, false},
	{"caches", PROTO_OP_CACHES, caches_view, cache_flags, true},
	{"clients", PROTO_OP_CLIENTS, clients_view, session_flags, true},
	{"audit", PROTO_OP_AUDIT, audit_view, NULL, false},
};

static const char help[] = "Usage: slabctl [OPTION]... COMMAND\n"
			   "\n"
			   "Commands:\n"
			   "  status           slabd, its arena and the memory behind it\n"
			   "  caches           a line for each cache, as in /proc/slabinfo\n"
			   "  clients          a line for each client\n"
			   "  audit            look for objects that are in no place, or in two\n"
			   "\n"
			   "Options:\n"
			   "  --socket=PATH    slabd's socket; default: $SLABD_SOCKET, else " SLABC_DEFAULT_SOCKET "\n"
			   "  --json           print JSON, with all fields\n"
			   "  --cache=NAME     audit only this cache\n"
			   "  --timeout=SECONDS  how long to wait for each answer; default: 5\n"
			   "  --help, --version\n"
			   "\n"
			   "Exit status: 0; 1: the audit found lost or doubled objects; 2: usage; 3: no answer from slabd, or a refusal.\n";

/* Output not yet written is dropped: half an answer is worse than none. */
__attribute__((noreturn, format(printf, 2, 3))) static void
die(int status, const char *format, ...)
{
	va_list args;

	fputs("slabctl: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	_exit(status);
}

/* ---- talking to slabd ---- */

static void
session_connect(struct session *s)
{
	const struct options *o = s->options;
	struct timeval timeout = {.tv_sec = o->timeout_s};
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	if (strlen(o->socket) >= sizeof(address.sun_path))
		die(EXIT_USAGE, "the socket's path is longer than %zu bytes: %s", sizeof(address.sun_path) - 1, o->socket);
	strcpy(address.sun_path, o->socket);
	s->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (s->fd < 0 || setsockopt(s->fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) < 0 ||
		setsockopt(s->fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) < 0)
		die(EXIT_SLABD, "cannot make a socket: %s", strerror(errno));
	if (connect(s->fd, (const struct sockaddr *)&address, sizeof(address)) == 0)
		return;
	switch (errno) {
	case ENOENT:
	case ECONNREFUSED:
		die(EXIT_SLABD, "cannot connect to %s: %s. Is slabd running? --socket or SLABD_SOCKET names another socket", o->socket,
			strerror(errno));
	case EACCES:
		die(EXIT_SLABD, "cannot connect to %s: %s. The socket's owner, group and mode say who may", o->socket, strerror(errno));
	case EAGAIN:
		die(EXIT_SLABD, "cannot connect to %s: slabd accepts no connection within %d s. Is it stopped?", o->socket, o->timeout_s);
	default:
		die(EXIT_SLABD, "cannot connect to %s: %s. Is it slabd's socket?", o->socket, strerror(errno));
	}
}

/* Asks and waits; comes back only with an answer that says OK. */
static void
session_call(struct session *s, enum proto_op op, const union proto_request *request, union proto_reply *reply)
{
	static uint8_t packet[PROTO_MAX_PACKET];
	const char *socket_path = s->options->socket, *op_name = proto_op_name(op);
	char sentence[PROTO_SENTENCE_BYTES];
	enum proto_status status;
	uint32_t id;
	ssize_t n;
	int r;

	n = proto_pack_request(packet, sizeof(packet), op, ++s->last_id, request);
	if (n < 0)
		die(EXIT_SLABD, "cannot ask for %s: %s", op_name, strerror((int)-n));
	r = channel_send(s->fd, packet, (size_t)n, NULL, 0, 0);
	n = r < 0 ? r : channel_recv(s->fd, packet, sizeof(packet), NULL, NULL, 0);
	if (n == -EAGAIN)
		die(EXIT_SLABD, "no answer to %s from slabd at %s within %d s; --timeout sets how long to wait", op_name, socket_path,
			s->options->timeout_s);
	if (n == 0 || n == -EPIPE || n == -ECONNRESET)
		die(EXIT_SLABD, "slabd at %s closed the connection at %s; its log says why", socket_path, op_name);
	if (n < 0)
		die(EXIT_SLABD, "no answer to %s from slabd at %s: %s", op_name, socket_path, strerror((int)-n));
	r = proto_unpack_reply(packet, (size_t)n, op, &id, &status, reply, sentence, sizeof(sentence));
	if (r < 0)
		die(EXIT_SLABD, "slabd at %s gave no proper answer: %s", socket_path, sentence);
	if (status != PROTO_STATUS_OK)
		die(EXIT_SLABD, "slabd at %s refused %s: %s (%s)", socket_path, op_name, sentence, proto_status_name(status));
	if (id != s->last_id)
		die(EXIT_SLABD, "slabd at %s answered request %u instead of %u", socket_path, id, s->last_id);
}

/* slabd refuses what does not match; so do we, in case it is the older one and does not know better. */
static void
session_hello(struct session *s)
{
	union proto_request request = {
		.hello = {.version = PROTO_VERSION, .layout_hash = layout_hash, .library = "slabctl " SLABC_VERSION}};
	union proto_reply reply;

	session_call(s, PROTO_OP_HELLO, &request, &reply);
	if (reply.hello.version != PROTO_VERSION)
		die(EXIT_SLABD, "slabd at %s (%s) speaks protocol %u, slabctl %s speaks %u: use those of one release", s->options->socket,
			reply.hello.server, reply.hello.version, SLABC_VERSION, (unsigned)PROTO_VERSION);
	if (reply.hello.layout_hash != layout_hash)
		die(EXIT_SLABD, "slabd at %s (%s) has layout %#jx, slabctl %s has %#jx: use those of one release", s->options->socket,
			reply.hello.server, (uintmax_t)reply.hello.layout_hash, SLABC_VERSION, (uintmax_t)layout_hash);
}

/* The entry of a list after the one in request, which then names it. false: no more. */
static bool
session_next(struct session *s, enum proto_op op, union proto_request *request, union proto_reply *reply)
{
	uint32_t *afterp = op == PROTO_OP_CACHES ? &request->caches.after : &request->clients.after, got;

	session_call(s, op, request, reply);
	got = op == PROTO_OP_CACHES ? reply->caches.cache : reply->clients.client;
	if (got == 0)
		return false;
	if (got <= *afterp)
		die(EXIT_SLABD, "slabd at %s gave no proper answer: %s: %u does not follow %u", s->options->socket, proto_op_name(op), got,
			*afterp);
	*afterp = got;
	return true;
}

static uint32_t
session_find_cache(struct session *s, const char *name)
{
	union proto_request request = {.caches = {.after = 0}};
	union proto_reply reply;

	while (session_next(s, PROTO_OP_CACHES, &request, &reply))
		if (strcmp(reply.caches.name, name) == 0)
			return reply.caches.cache;
	die(EXIT_SLABD, "slabd at %s has no cache %s; slabctl caches lists them", s->options->socket, name);
}

/* ---- showing ---- */

static bool
is_flags(const struct command *command, const struct proto_field *f)
{
	return command->flag_names != NULL && strcmp(f->name, "flags") == 0;
}

/* Fills columns and, side by side, the fields they show: those of the view first.  Returns how many. */
static size_t
command_columns(const struct command *command, struct table_column *columns, const struct proto_field **shown)
{
	const struct proto_field *fields = proto_fields(command->op, PROTO_REPLY), *f;
	const struct view *v;
	size_t n = 0;

	for (v = command->view; v->heading != NULL; v++) {
		for (f = fields; f->off != v->off; f++)
			;
		columns[n].heading = v->heading;
		shown[n++] = f;
	}
	for (f = fields; f->name != NULL; f++) {
		for (v = command->view; v->heading != NULL && v->off != f->off; v++)
			;
		if (v->heading != NULL)
			continue;
		columns[n].heading = NULL;
		shown[n++] = f;
	}
	for (size_t i = 0; i < n; i++) {
		columns[i].key = shown[i]->name;
		columns[i].is_string = shown[i]->type == PROTO_STR || is_flags(command, shown[i]);
	}
	return n;
}

/* "reclaim,shared"; bits without a name as a number; "-" for none. */
static void
flags_text(uint32_t flags, const char *const *names, char *text, size_t size)
{
	FILE *out = fmemopen(text, size, "w");
	const char *separator = "";

	if (out == NULL)
		die(EXIT_SLABD, "no memory");
	for (unsigned bit = 0; names[bit] != NULL; bit++)
		if ((flags & 1u << bit) != 0) {
			fprintf(out, "%s%s", separator, names[bit]);
			flags &= ~(1u << bit);
			separator = ",";
		}
	if (flags != 0)
		fprintf(out, "%s%#x", separator, flags);
	else if (*separator == '\0')
		fputc('-', out);
	fclose(out);
}

static void
add_row(struct table *table, const struct command *command, const struct proto_field **shown, size_t n, const union proto_reply *reply)
{
	for (size_t i = 0; i < n; i++) {
		const char *at = (const char *)reply + shown[i]->off;
		uint64_t u64;
		uint32_t u32;
		char text[64];
		int r;

		memcpy(&u32, at, sizeof(u32));
		if (shown[i]->type == PROTO_STR) {
			r = table_add_string(table, at);
		} else if (is_flags(command, shown[i])) {
			flags_text(u32, command->flag_names, text, sizeof(text));
			r = table_add_string(table, text);
		} else if (shown[i]->type == PROTO_U32) {
			r = table_add_number(table, u32);
		} else {
			memcpy(&u64, at, sizeof(u64));
			r = table_add_number(table, u64);
		}
		if (r < 0)
			die(EXIT_SLABD, "%s", strerror(-r));
	}
}

/* Returns the exit status. */
static int
run(struct session *s)
{
	const struct options *o = s->options;
	const struct command *command = o->command;
	struct table_column columns[PROTO_MAX_VALUES];
	const struct proto_field *shown[PROTO_MAX_VALUES];
	size_t n = command_columns(command, columns, shown);
	struct table *table = table_new(columns, n);
	union proto_request request = {0};
	union proto_reply reply;

	if (table == NULL)
		die(EXIT_SLABD, "%s", strerror(ENOMEM));
	if (command->is_list) {
		while (session_next(s, command->op, &request, &reply))
			add_row(table, command, shown, n, &reply);
		table_print_rows(table, o->form, stdout);
	} else {
		if (o->cache != NULL)
			request.audit.cache = session_find_cache(s, o->cache);
		session_call(s, command->op, &request, &reply);
		add_row(table, command, shown, n, &reply);
		table_print_record(table, o->form, stdout);
	}
	table_free(table);
	if (fflush(stdout) != 0)
		die(EXIT_SLABD, "cannot write the output: %s", strerror(errno));
	return command->op == PROTO_OP_AUDIT && (reply.audit.n_lost > 0 || reply.audit.n_doubled > 0) ? EXIT_LOST : EXIT_SUCCESS;
}

/* ---- the command line ---- */

static int
parse_timeout(const char *text)
{
	char *end;
	long seconds;

	errno = 0;
	seconds = strtol(text, &end, 10);
	if (errno != 0 || end == text || *end != '\0' || seconds < 1 || seconds > MAX_TIMEOUT_S)
		die(EXIT_USAGE, "--timeout is a number of seconds from 1 to %d, not \"%s\"", MAX_TIMEOUT_S, text);
	return (int)seconds;
}

static const struct command *
parse_command(const char *name)
{
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	die(EXIT_USAGE, "no command is called \"%s\"; see slabctl --help", name);
}

static void
parse(struct options *o, int argc, char **argv)
{
	static const struct option long_options[] = {
		{"socket", required_argument, NULL, 's'},
		{"json", no_argument, NULL, 'j'},
		{"cache", required_argument, NULL, 'c'},
		{"timeout", required_argument, NULL, 't'},
		{"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'V'},
		{NULL, 0, NULL, 0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "h", long_options, NULL)) != -1)
		switch (c) {
		case 's':
			o->socket = optarg;
			break;
		case 'j':
			o->form = TABLE_JSON;
			break;
		case 'c':
			o->cache = optarg;
			break;
		case 't':
			o->timeout_s = parse_timeout(optarg);
			break;
		case 'h':
			fputs(help, stdout);
			exit(EXIT_SUCCESS);
		case 'V':
			printf("slabctl %s (protocol %u, layout %u)\n", SLABC_VERSION, (unsigned)PROTO_VERSION, (unsigned)LAYOUT_VERSION);
			exit(EXIT_SUCCESS);
		default:
			exit(EXIT_USAGE); /* getopt_long() has said why */
		}
	if (argc - optind != 1)
		die(EXIT_USAGE, "one command is needed: status, caches, clients or audit; see slabctl --help");
	o->command = parse_command(argv[optind]);
	if (o->cache != NULL && o->command->op != PROTO_OP_AUDIT)
		die(EXIT_USAGE, "--cache goes with audit only");
}

int
main(int argc, char **argv)
{
	const char *socket_path = getenv("SLABD_SOCKET");
	struct options options = {.socket = socket_path != NULL ? socket_path : SLABC_DEFAULT_SOCKET, .timeout_s = DEFAULT_TIMEOUT_S};
	struct session session = {.options = &options};

	parse(&options, argc, argv);
	session_connect(&session);
	session_hello(&session);
	return run(&session);
}
