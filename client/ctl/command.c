/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/command.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shm/layout.h"

/* A number, and what follows it; false: there is none, or it does not fit. */
static bool
parse_number(const char *text, uint64_t *np, const char **endp)
{
	char *end;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	*np = strtoull(text, &end, 10);
	*endp = end;
	return errno == 0;
}

/* Multiplies by what the only letter left stands for; false: no such letter, or it does not fit. */
static bool
apply_unit(const char *letter, const char *letters, const uint64_t *factors, uint64_t *np)
{
	const char *at = *letter != '\0' ? strchr(letters, *letter) : NULL;

	if (*letter == '\0')
		return true;
	return at != NULL && letter[1] == '\0' && !__builtin_mul_overflow(*np, factors[at - letters], np);
}

uint64_t
command_parse_age(const char *text)
{
	static const uint64_t factors[] = {1, 60, 3600, 86400};
	const char *rest;
	uint64_t n;

	if (!parse_number(text, &n, &rest) || !apply_unit(rest, "smhd", factors, &n) || __builtin_mul_overflow(n, UINT64_C(1000), &n))
		ask_die(ASK_EXIT_USAGE, "--older-than is a time in seconds, or with s, m, h or d behind it, not \"%s\"", text);
	return n;
}

int
command_record(struct ctl *ctl)
{
	union proto_request request = {0};
	union proto_reply reply;
	struct show_table t;

	ask_open(&ctl->ask);
	ask_call(&ctl->ask, ctl->command->show.op, &request, &reply);
	show_init(&t, &ctl->command->show);
	show_add(&t, &reply);
	table_print_record(t.table, ctl->form, stdout);
	show_deinit(&t);
	return EXIT_SUCCESS;
}

/* The list that the request is about, from where it stands.  Returns how many were wanted. */
static uint64_t
print_list(struct ctl *ctl, union proto_request *request, bool (*is_wanted)(const struct ctl *ctl, const union proto_reply *reply))
{
	union proto_reply reply;
	struct show_table t;
	uint64_t n = 0;

	show_init(&t, &ctl->command->show);
	while (ask_next(&ctl->ask, ctl->command->show.op, request, &reply)) {
		if (is_wanted != NULL && !is_wanted(ctl, &reply))
			continue;
		show_add(&t, &reply);
		n++;
	}
	table_print_rows(t.table, ctl->form, stdout);
	show_deinit(&t);
	return n;
}

int
command_list(struct ctl *ctl)
{
	union proto_request request = {0};

	ask_open(&ctl->ask);
	print_list(ctl, &request, NULL);
	return EXIT_SUCCESS;
}

int
command_inspect(struct ctl *ctl)
{
	union proto_request request = {0};

	ask_open(&ctl->ask);
	return print_list(ctl, &request, NULL) > 0 ? ASK_EXIT_FOUND : EXIT_SUCCESS;
}

/* What changed too fast, or was looked at too slowly, is looked at anew, so often at most. */
enum { MAX_AUDITS = 4 };

/* What was lost, and taken back before the last audit, that one has not seen. */
static void
ask_audits(struct ctl *ctl, const union proto_request *request, union proto_reply *reply)
{
	uint64_t n_back = 0, first_back = 0;

	for (int i = 0; i < MAX_AUDITS && (i == 0 || reply->audit.n_undecided > 0); i++) {
		ask_call(&ctl->ask, PROTO_OP_AUDIT, request, reply);
		if (n_back == 0 && reply->audit.n_repaired > 0)
			first_back = reply->audit.first_lost;
		reply->audit.n_lost += n_back;
		reply->audit.n_repaired += n_back;
		n_back = reply->audit.n_repaired;
	}
	if (first_back != 0)
		reply->audit.first_lost = first_back;
}

int
command_audit(struct ctl *ctl)
{
	union proto_request request = {.audit = {.repair = ctl->repairs}};
	union proto_reply reply;
	struct show_table t;

	ask_open(&ctl->ask);
	if (ctl->cache != NULL)
		request.audit.cache = ask_find_cache(&ctl->ask, ctl->cache);
	ask_audits(ctl, &request, &reply);
	show_init(&t, &ctl->command->show);
	show_add(&t, &reply);
	table_print_record(t.table, ctl->form, stdout);
	show_deinit(&t);
	if (reply.audit.n_lost > 0 || reply.audit.n_doubled > 0 || reply.audit.bytes_missing > 0)
		return ASK_EXIT_FOUND;
	return reply.audit.n_undecided > 0 ? ASK_EXIT_UNDECIDED : EXIT_SUCCESS;
}

int
command_roots(struct ctl *ctl)
{
	union proto_request request = {0};

	if (ctl->n_args > 0) {
		if (strlen(ctl->args[0]) >= sizeof(request.next_root.prefix))
			ask_die(ASK_EXIT_USAGE, "a root's name has at most %zu bytes", sizeof(request.next_root.prefix) - 1);
		strcpy(request.next_root.prefix, ctl->args[0]);
	}
	ask_open(&ctl->ask);
	print_list(ctl, &request, NULL);
	return EXIT_SUCCESS;
}

static bool
is_wanted_orphan(const struct ctl *ctl, const union proto_reply *reply)
{
	const struct proto_orphans_reply *o = &reply->orphans;

	return (ctl->cache == NULL || strcmp(ctl->cache, o->cache_name) == 0) && (ctl->client_id == 0 || ctl->client_id == o->client_id) &&
	       o->age_ms >= ctl->older_than_ms;
}

/* A record of two numbers. */
static void
print_pair(struct ctl *ctl, const char *key, uint64_t n, uint64_t bytes)
{
	const struct table_column columns[] = {{.key = key, .heading = key}, {.key = "bytes", .heading = "bytes"}};
	struct table *table = table_new(columns, 2);

	if (table == NULL || table_add_number(table, n) < 0 || table_add_number(table, bytes) < 0)
		ask_die(ASK_EXIT_SLABD, "%s", strerror(ENOMEM));
	table_print_record(table, ctl->form, stdout);
	table_free(table);
}

/* A client that lives, or left nothing, or never was: what is said to be reclaimed of it is a mistake. */
static void
find_dead_client(struct ctl *ctl)
{
	union proto_request request = {0};
	union proto_reply reply;

	while (ask_next(&ctl->ask, PROTO_OP_ORPHANS, &request, &reply))
		if (reply.orphans.client_id == ctl->client_id)
			return;
	ask_die(ASK_EXIT_SLABD, "slabd at %s has no dead client %u whose objects it keeps; slabctl orphans lists them", ctl->ask.socket,
		ctl->client_id);
}

static int
reclaim(struct ctl *ctl)
{
	union proto_request request = {.reclaim = {.client_id = ctl->client_id, .older_than_ms = ctl->older_than_ms}};
	uint64_t n_freed = 0, bytes = 0;
	union proto_reply reply;

	if (ctl->cache == NULL && ctl->client_id == 0 && !ctl->has_age)
		ask_die(ASK_EXIT_USAGE, "which orphans? Give --cache, --client or --older-than; --older-than=0 is all of them");
	ask_open(&ctl->ask);
	if (ctl->cache != NULL)
		request.reclaim.cache = ask_find_cache(&ctl->ask, ctl->cache);
	if (ctl->client_id != 0)
		find_dead_client(ctl);
	do {
		ask_call(&ctl->ask, PROTO_OP_RECLAIM, &request, &reply);
		n_freed += reply.reclaim.n_freed;
		bytes += reply.reclaim.bytes;
		if (reply.reclaim.next != 0 && reply.reclaim.next <= request.reclaim.from)
			ask_die(ASK_EXIT_SLABD, "slabd at %s gave no proper answer: reclaim: %u does not follow %u", ctl->ask.socket,
				reply.reclaim.next, request.reclaim.from);
		request.reclaim.from = reply.reclaim.next;
	} while (request.reclaim.from != 0);
	print_pair(ctl, "n_freed", n_freed, bytes);
	return EXIT_SUCCESS;
}

int
command_orphans(struct ctl *ctl)
{
	union proto_request request = {0};
	bool is_reclaim = ctl->n_args > 0 && strcmp(ctl->args[0], "reclaim") == 0;

	if (is_reclaim && ctl->is_none_wanted)
		ask_die(ASK_EXIT_USAGE, "--none is for the list of orphans");
	if (is_reclaim)
		return reclaim(ctl);
	if (ctl->n_args > 0)
		ask_die(ASK_EXIT_USAGE, "orphans are listed, or reclaimed: slabctl orphans [reclaim], not \"%s\"", ctl->args[0]);
	ask_open(&ctl->ask);
	if (ctl->cache != NULL)
		ask_find_cache(&ctl->ask, ctl->cache);
	return print_list(ctl, &request, is_wanted_orphan) > 0 && ctl->is_none_wanted ? ASK_EXIT_FOUND : EXIT_SUCCESS;
}

int
command_shrink(struct ctl *ctl)
{
	union proto_request request = {0};
	union proto_reply reply;

	ask_open(&ctl->ask);
	if (ctl->n_args > 0)
		request.shrink.cache = ask_find_cache(&ctl->ask, ctl->args[0]);
	ask_call(&ctl->ask, PROTO_OP_SHRINK, &request, &reply);
	print_pair(ctl, "n_pages", reply.shrink.n_pages, reply.shrink.n_pages * LAYOUT_PAGE_BYTES);
	return EXIT_SUCCESS;
}

int
command_destroy(struct ctl *ctl)
{
	static const struct table_column columns[] = {{.key = "destroyed", .heading = "destroyed", .is_string = true}};
	union proto_request request = {.destroy = {.commit = 1}};
	struct table *table = table_new(columns, 1);
	union proto_reply reply;

	if (strlen(ctl->args[0]) >= sizeof(request.destroy.name))
		ask_die(ASK_EXIT_USAGE, "a cache's name has at most %zu bytes", sizeof(request.destroy.name) - 1);
	strcpy(request.destroy.name, ctl->args[0]);
	ask_open(&ctl->ask);
	ask_call(&ctl->ask, PROTO_OP_DESTROY, &request, &reply);
	if (table == NULL || table_add_string(table, ctl->args[0]) < 0)
		ask_die(ASK_EXIT_SLABD, "%s", strerror(ENOMEM));
	table_print_record(table, ctl->form, stdout);
	table_free(table);
	return EXIT_SUCCESS;
}

/* One knob, by its bit in the request's field set. */
struct knob {
	const char *name;
	size_t off;
	bool is_bytes;
	bool may_be_none;
};

static const struct knob knobs[COMMAND_MAX_KNOBS] = {
	{"sheaf_capacity", offsetof(struct proto_tune_request, sheaf_capacity), false, false},
	{"barn_full", offsetof(struct proto_tune_request, barn_full), false, true},
	{"min_partial", offsetof(struct proto_tune_request, min_partial), false, true},
	{"max_cached", offsetof(struct proto_tune_request, max_cached), true, false},
	{"cpu_partial", offsetof(struct proto_tune_request, cpu_partial), false, true},
	{"barn_empty", offsetof(struct proto_tune_request, barn_empty), false, true},
};

static uint64_t
parse_value(const struct knob *knob, const char *text)
{
	static const uint64_t factors[] = {1024, 1024 * 1024, 1024 * 1024 * 1024};
	const char *rest;
	uint64_t n;

	if (strcmp(text, "default") == 0)
		return 0;
	if (strcmp(text, "none") == 0 && knob->may_be_none)
		return LAYOUT_KNOB_NONE;
	/* 0 would stand for the default. */
	if (!parse_number(text, &n, &rest) || !apply_unit(rest, knob->is_bytes ? "KMG" : "", factors, &n) || n == 0 ||
		(!knob->is_bytes && n >= LAYOUT_KNOB_NONE))
		ask_die(ASK_EXIT_USAGE, "%s is %s from 1, or default%s, not \"%s\"", knob->name,
			knob->is_bytes ? "a number of bytes (K, M, G)" : "a number", knob->may_be_none ? ", or none" : "", text);
	return n;
}

static void
parse_knob(struct proto_tune_request *request, const char *text)
{
	static const char *const fixed[] = {"align", "flags", "sheaf_round_up", "min_order", "max_order", "min_objects", "policy"};
	const char *equals = strchr(text, '=');
	size_t length = equals != NULL ? (size_t)(equals - text) : strlen(text);

	for (unsigned i = 0; i < COMMAND_MAX_KNOBS; i++) {
		uint64_t value;

		if (strlen(knobs[i].name) != length || strncmp(knobs[i].name, text, length) != 0)
			continue;
		if (equals == NULL)
			break;
		value = parse_value(&knobs[i], equals + 1);
		request->set |= 1u << i;
		if (knobs[i].is_bytes)
			memcpy((char *)request + knobs[i].off, &value, sizeof(value));
		else
			memcpy((char *)request + knobs[i].off, &(uint32_t){(uint32_t)value}, sizeof(uint32_t));
		return;
	}
	for (unsigned i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++)
		if (strlen(fixed[i]) == length && strncmp(fixed[i], text, length) == 0)
			ask_die(ASK_EXIT_USAGE,
				"%s is set when a cache is made, and stays; what can be tuned is sheaf_capacity=, barn_full=, "
				"min_partial=, max_cached=, cpu_partial= and barn_empty=",
				fixed[i]);
	ask_die(ASK_EXIT_USAGE, "a knob is sheaf_capacity=, barn_full=, min_partial=, max_cached=, cpu_partial= or barn_empty=, not \"%s\"", text);
}

int
command_tune(struct ctl *ctl)
{
	union proto_request request = {0};
	union proto_reply reply;
	struct show_table t;

	for (unsigned i = 1; i < ctl->n_args; i++)
		parse_knob(&request.tune, ctl->args[i]);
	ask_open(&ctl->ask);
	request.tune.cache = ask_find_cache(&ctl->ask, ctl->args[0]);
	ask_call(&ctl->ask, PROTO_OP_TUNE, &request, &reply);
	show_init(&t, &ctl->command->show);
	show_add(&t, &reply);
	table_print_record(t.table, ctl->form, stdout);
	show_deinit(&t);
	return EXIT_SUCCESS;
}
