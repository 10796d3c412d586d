/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slabctl drain: asks again and again until no session is left, and says on the way, on standard error, who is.
 *
 * Slabd drains as long as this connection stands: when slabctl ends, in whatever way, all is as before.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/ctl/command.h"

enum { PAUSE_MS = 100, MAX_NAMED = 5 };

static const struct table_column columns[] = {
	{.key = "arena", .heading = "arena", .is_string = true},
	{.key = "client_id", .heading = "id"},
	{.key = "pid", .heading = "pid"},
	{.key = "uid", .heading = "uid"},
	{.key = "label", .heading = "label", .is_string = true},
	{.key = "state", .heading = "state", .is_string = true},
};

static int64_t
now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int
add_client(struct table *table, const char *arena, const struct proto_clients_reply *c)
{
	return table_add_string(table, arena) | table_add_number(table, c->client_id) | table_add_number(table, c->pid) | table_add_number(table, c->uid) |
	       table_add_string(table, c->label) | table_add_string(table, c->state);
}

/* Those who have a session in an arena. */
static void
list_clients(struct ctl *ctl, const char *arena, struct table *table, unsigned *np, bool is_said)
{
	union proto_request request = {0};
	union proto_reply reply;

	ctl->ask.arena = arena;
	while (ask_next(&ctl->ask, PROTO_OP_CLIENTS, &request, &reply)) {
		const struct proto_clients_reply *c = &reply.clients;

		if (strcmp(c->state, "dead") == 0)
			continue;
		if (add_client(table, arena, c) < 0)
			ask_die(ASK_EXIT_SLABD, "%s", strerror(ENOMEM));
		if (is_said && *np < MAX_NAMED)
			fprintf(stderr, "%s pid %u", *np ? "," : ":", c->pid);
		++*np;
	}
	ctl->ask.arena = NULL;
}

static struct table *
make_table(void)
{
	struct table *table = table_new(columns, sizeof(columns) / sizeof(columns[0]));

	if (table == NULL)
		ask_die(ASK_EXIT_SLABD, "%s", strerror(ENOMEM));
	return table;
}

/* Of all arenas. */
static struct table *
list_left(struct ctl *ctl, unsigned *np, bool is_said)
{
	struct table *table = make_table();
	union proto_request request = {0};
	union proto_reply reply;

	*np = 0;
	while (ask_next(&ctl->ask, PROTO_OP_ARENAS, &request, &reply)) {
		char name[sizeof(reply.arenas.name)];

		strcpy(name, reply.arenas.name);
		list_clients(ctl, name, table, np, is_said);
	}
	return table;
}

static void
say_left(struct ctl *ctl, uint32_t n_sessions)
{
	unsigned n;

	fprintf(stderr, "slabctl: %u session%s left", n_sessions, n_sessions == 1 ? " is" : "s are");
	table_free(list_left(ctl, &n, true));
	fputs(n > MAX_NAMED ? " and others\n" : "\n", stderr);
}

/* How it ended: what is left, which is nothing if all went well. */
static void
print_left(struct ctl *ctl, struct table *table, unsigned n)
{
	if (n > 0 || ctl->form == TABLE_JSON)
		table_print_rows(table, ctl->form, stdout);
	table_free(table);
}

int
command_drain(struct ctl *ctl)
{
	static const struct timespec pause = {.tv_nsec = PAUSE_MS * 1000000};
	int64_t until_ms = ctl->wait_s > 0 ? now_ms() + (int64_t)ctl->wait_s * 1000 : INT64_MAX;
	union proto_request request = {0};
	union proto_reply reply;
	uint32_t n_said = 0;
	unsigned n;

	ask_open(&ctl->ask);
	for (;;) {
		ask_call(&ctl->ask, PROTO_OP_DRAIN, &request, &reply);
		if (reply.drain.n_sessions == 0)
			break;
		if (now_ms() >= until_ms) {
			struct table *table = list_left(ctl, &n, false);

			print_left(ctl, table, n);
			fprintf(stderr, "slabctl: after %d s %u sessions are left; slabd is not drained, and takes new ones again\n", ctl->wait_s,
				reply.drain.n_sessions);
			return ASK_EXIT_FOUND;
		}
		if (reply.drain.n_sessions != n_said)
			say_left(ctl, reply.drain.n_sessions);
		n_said = reply.drain.n_sessions;
		nanosleep(&pause, NULL);
	}
	ask_await_end(&ctl->ask);
	print_left(ctl, make_table(), 0);
	return EXIT_SUCCESS;
}
