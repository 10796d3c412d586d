/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slabctl: asks slabd what it knows, and prints it; administers caches and orphans.
 *
 * Each command is an op or a few; a list is walked by asking for what comes after the last answer.
 * Exit status: 0; 1: the audit found objects lost or doubled, or pages missing, orphans --none some, inspect any, or drain's time is over; 2: usage;
 * 3: slabd cannot be asked, or refused; 4: the audit could not judge all objects.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ask.h"
#include "client/ctl/command.h"
#include "client/ctl/show.h"
#include "client/slabclient.h"
#include "shm/layout.h"

enum { DEFAULT_TIMEOUT_S = 5, AUDIT_TIMEOUT_S = 60, MAX_TIMEOUT_S = 86400 };

static const struct show_view caches_view[] = {
	{SHOW(caches, name), "name"},
	{SHOW(caches, object_size), "objsize"},
	{SHOW(caches, n_objects), "objects"},
	{SHOW(caches, n_allocated), "allocated"},
	{SHOW(caches, n_thread), "threads"},
	{SHOW(caches, n_process_barn), "procbarns"},
	{SHOW(caches, n_node_barn), "nodebarns"},
	{SHOW(caches, n_stash), "stashes"},
	{SHOW(caches, n_returned), "returned"},
	{SHOW(caches, n_app), "app"},
	{SHOW(caches, n_free), "free"},
	{SHOW(caches, n_slabs), "slabs"},
	{SHOW(caches, order), "order"},
	{SHOW(caches, objects_per_slab), "objs/slab"},
	{SHOW(caches, capacity), "capacity"},
	{SHOW(caches, n_partial), "partial"},
	{SHOW(caches, n_left), "left"},
	{SHOW(caches, policy), "policy"},
	{SHOW(caches, flags), "flags"},
	{0, NULL},
};

static const struct show_view clients_view[] = {
	{SHOW(clients, client_id), "id"},
	{SHOW(clients, pid), "pid"},
	{SHOW(clients, uid), "uid"},
	{SHOW(clients, label), "label"},
	{SHOW(clients, state), "state"},
	{SHOW(clients, n_threads), "threads"},
	{SHOW(clients, n_held), "held"},
	{SHOW(clients, bytes_held), "heldbytes"},
	{SHOW(clients, bytes_idle), "idlebytes"},
	{SHOW(clients, n_orphans), "orphans"},
	{SHOW(clients, bytes_orphans), "orphanbytes"},
	{SHOW(clients, n_refills), "refills"},
	{SHOW(clients, n_flushes), "flushes"},
	{SHOW(clients, n_faults), "faults"},
	{SHOW(clients, flags), "flags"},
	{0, NULL},
};

static const struct show_view audit_view[] = {
	{SHOW(audit, n_out), "n_out"},
	{SHOW(audit, n_lost), "n_lost"},
	{SHOW(audit, n_doubled), "n_doubled"},
	{SHOW(audit, n_orphans), "n_orphans"},
	{SHOW(audit, n_undecided), "n_undecided"},
	{SHOW(audit, n_passed), "n_passed"},
	{SHOW(audit, n_left), "n_left"},
	{SHOW(audit, bytes_missing), "bytes_missing"},
	{SHOW(audit, bytes_extra), "bytes_extra"},
	{SHOW(audit, n_repaired), "n_repaired"},
	{0, NULL},
};

static const struct show_view roots_view[] = {
	{SHOW(next_root, name), "name"},
	{SHOW(next_root, cache_name), "cache"},
	{SHOW(next_root, client_id), "holder"},
	{SHOW(next_root, ref), "ref"},
	{0, NULL},
};

static const struct show_view orphans_view[] = {
	{SHOW(orphans, cache_name), "cache"},
	{SHOW(orphans, client_id), "client"},
	{SHOW(orphans, label), "label"},
	{SHOW(orphans, pid), "pid"},
	{SHOW(orphans, n_orphans), "orphans"},
	{SHOW(orphans, bytes), "bytes"},
	{SHOW(orphans, age_ms), "age"},
	{0, NULL},
};

static const struct show_view arenas_view[] = {
	{SHOW(arenas, name), "name"},
	{SHOW(arenas, limit_bytes), "limit"},
	{SHOW(arenas, committed_bytes), "committed"},
	{SHOW(arenas, reserve_bytes), "reserve"},
	{SHOW(arenas, page_kind), "pages"},
	{SHOW(arenas, profile), "profile"},
	{SHOW(arenas, n_sessions), "sessions"},
	{SHOW(arenas, n_caches), "caches"},
	{SHOW(arenas, n_roots), "roots"},
	{SHOW(arenas, owner), "owner"},
	{SHOW(arenas, group), "group"},
	{SHOW(arenas, mode), "mode"},
	{SHOW(arenas, may), "you may"},
	{0, NULL},
};

static const struct show_view nodes_view[] = {
	{SHOW(nodes, os_node), "node"},
	{SHOW(nodes, huge_bytes), "huge"},
	{SHOW(nodes, small_bytes), "small"},
	{SHOW(nodes, free_bytes), "free"},
	{SHOW(nodes, kept_bytes), "kept"},
	{SHOW(nodes, given_back_bytes), "givenback"},
	{SHOW(nodes, n_commit_fails), "commitfails"},
	{SHOW(nodes, n_from_elsewhere), "elsewhere"},
	{0, NULL},
};

static const struct show_view inspect_view[] = {
	{SHOW(inspect, name), "name"},
	{SHOW(inspect, server), "left by"},
	{SHOW(inspect, layout_version), "version"},
	{SHOW(inspect, layout_hash), "layout"},
	{SHOW(inspect, ledger_hash), "ledger"},
	{SHOW(inspect, n_segments), "segments"},
	{SHOW(inspect, bytes), "bytes"},
	{SHOW(inspect, n_sessions), "sessions"},
	{SHOW(inspect, n_clients), "clients"},
	{SHOW(inspect, n_caches), "caches"},
	{SHOW(inspect, failed), "failed"},
	{0, NULL},
};

/* SLABC_RECLAIM and so on; PROTO_CLIENT_. */
static const char *const cache_flags[] = {"reclaim", "shared", "nowait", "no_owner", "runs", "debug", "sanity", "red_zone", "poison", "user", NULL};
static const char *const session_flags[] = {"rdonly", "norecall", NULL};
static const char *const may_names[] = {"read", "write", "administer", NULL};

static const struct command commands[] = {
	{.name = "status", .run = command_record, .show = {PROTO_OP_STATUS, NULL, NULL}},
	{.name = "caches", .run = command_list, .show = {PROTO_OP_CACHES, caches_view, cache_flags}},
	{.name = "clients", .run = command_list, .show = {PROTO_OP_CLIENTS, clients_view, session_flags}},
	{.name = "audit", .run = command_audit, .options = COMMAND_CACHE | COMMAND_REPAIR, .show = {PROTO_OP_AUDIT, audit_view, NULL}},
	{.name = "roots", .run = command_roots, .max_args = 1, .args = "[PREFIX]", .show = {PROTO_OP_NEXT_ROOT, roots_view, NULL}},
	{.name = "orphans",
		.run = command_orphans,
		.max_args = 1,
		.args = "[reclaim]",
		.options = COMMAND_CACHE | COMMAND_CLIENT | COMMAND_AGE | COMMAND_NONE,
		.show = {PROTO_OP_ORPHANS, orphans_view, NULL}},
	{.name = "leaks", .run = command_leaks, .max_args = 1, .args = "[CACHE]"},
	{.name = "shrink", .run = command_shrink, .max_args = 1, .args = "[CACHE]"},
	{.name = "destroy", .run = command_destroy, .min_args = 1, .max_args = 1, .args = "CACHE"},
	{.name = "tune",
		.run = command_tune,
		.min_args = 2,
		.max_args = 1 + COMMAND_MAX_KNOBS,
		.args = "CACHE KNOB=VALUE...",
		.show = {PROTO_OP_TUNE, NULL, NULL}},
	{.name = "arenas", .run = command_list, .show = {PROTO_OP_ARENAS, arenas_view, may_names}},
	{.name = "nodes", .run = command_list, .show = {PROTO_OP_NODES, nodes_view, NULL}},
	{.name = "inspect", .run = command_inspect, .show = {PROTO_OP_INSPECT, inspect_view, NULL}},
	{.name = "drain", .run = command_drain, .options = COMMAND_WAITS, .show = {PROTO_OP_DRAIN, NULL, NULL}},
};

static const char help[] =
	"Usage: slabctl [OPTION]... COMMAND [ARGUMENT]...\n"
	"\n"
	"Commands:\n"
	"  status           slabd, its arena and the memory behind it\n"
	"  arenas, nodes    a line for each arena, or for each NUMA node of one\n"
	"  caches           a line for each cache, as in /proc/slabinfo\n"
	"  clients          a line for each client\n"
	"  roots [PREFIX]   the named objects\n"
	"  orphans          what clients left that have died, a line for each and its cache\n"
	"  leaks [CACHE]    who holds how much, of which cache and, in debug caches, from which call site\n"
	"  audit            look for objects that are in no place, or in two\n"
	"  inspect          what a slabd that refuses to adopt has found, a line for each arena\n"
	"\n"
	"For root, slabd's own user, and the arena's owner:\n"
	"  orphans reclaim  free orphans: those of --cache, of --client, or --older-than; one of these must be given\n"
	"  shrink [CACHE]   give back what lies idle, of a cache or of all\n"
	"  destroy CACHE    end a cache that nobody has open and nobody needs\n"
	"  tune CACHE KNOB=VALUE...  change sheaf_capacity, barn_full, min_partial, max_cached, cpu_partial, barn_empty; VALUE may be default, or none\n"
	"  drain            take no new sessions, wait until there are none, and stop slabd; ended before, nothing has changed\n"
	"\n"
	"Options:\n"
	"  --socket=PATH    slabd's socket; default: $SLABD_SOCKET, else " SLABC_DEFAULT_SOCKET "\n"
	"  --arena=NAME     which arena; default: the one called default, else the only one\n"
	"  --json           print JSON, with all fields\n"
	"  --cache=NAME     audit, orphans: only this cache\n"
	"  --repair         audit, by who may do the latter: take back what is lost\n"
	"  --client=ID      orphans: only of this client\n"
	"  --none           orphans: exit status 1 if there are any\n"
	"  --older-than=TIME  orphans: only of clients that died so long ago; seconds, or with s, m, h, d\n"
	"  --timeout=SECONDS  how long to wait for each answer; default: 5; audit: 60; drain: how long for the sessions, default: for ever\n"
	"  --help, --version\n"
	"\n"
	"Exit status: 0; 1: the audit found lost or doubled objects, or missing pages, orphans --none some, or inspect any, or sessions are left after\n"
	"drain's time; 2: usage; 3: no answer from slabd, or a refusal; 4: the audit could not judge all objects.\n";

static int
parse_timeout(const char *text)
{
	char *end;
	long seconds;

	errno = 0;
	seconds = strtol(text, &end, 10);
	if (errno != 0 || end == text || *end != '\0' || seconds < 1 || seconds > MAX_TIMEOUT_S)
		ask_die(ASK_EXIT_USAGE, "--timeout is a number of seconds from 1 to %d, not \"%s\"", MAX_TIMEOUT_S, text);
	return (int)seconds;
}

static uint32_t
parse_client(const char *text)
{
	char *end;
	unsigned long id;

	errno = 0;
	id = strtoul(text, &end, 10);
	if (errno != 0 || *text < '0' || *text > '9' || *end != '\0' || id < 1 || id > UINT32_MAX)
		ask_die(ASK_EXIT_USAGE, "--client is an id as slabctl clients shows it, not \"%s\"", text);
	return (uint32_t)id;
}

static const struct command *
parse_command(const char *name)
{
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	ask_die(ASK_EXIT_USAGE, "no command is called \"%s\"; see slabctl --help", name);
}

/* Options and arguments that the command does not know. */
static void
check(const struct ctl *ctl)
{
	const struct command *command = ctl->command;

	if (ctl->n_args < command->min_args || ctl->n_args > command->max_args)
		ask_die(ASK_EXIT_USAGE, "usage: slabctl %s %s; see slabctl --help", command->name,
			command->args != NULL ? command->args : "");
	if (ctl->cache != NULL && (command->options & COMMAND_CACHE) == 0)
		ask_die(ASK_EXIT_USAGE, "--cache goes with audit and orphans only");
	if (ctl->client_id != 0 && (command->options & COMMAND_CLIENT) == 0)
		ask_die(ASK_EXIT_USAGE, "--client goes with orphans only");
	if (ctl->has_age && (command->options & COMMAND_AGE) == 0)
		ask_die(ASK_EXIT_USAGE, "--older-than goes with orphans only");
	if (ctl->repairs && (command->options & COMMAND_REPAIR) == 0)
		ask_die(ASK_EXIT_USAGE, "--repair goes with audit only");
	if (ctl->is_none_wanted && (command->options & COMMAND_NONE) == 0)
		ask_die(ASK_EXIT_USAGE, "--none goes with orphans only");
}

static void
take_option(struct ctl *ctl, int c)
{
	switch (c) {
	case 's':
		ctl->ask.socket = optarg;
		ctl->ask.source = "--socket";
		break;
	case 'j':
		ctl->form = TABLE_JSON;
		break;
	case 'c':
		ctl->cache = optarg;
		break;
	case 'i':
		ctl->client_id = parse_client(optarg);
		break;
	case 'o':
		ctl->has_age = true;
		ctl->older_than_ms = command_parse_age(optarg);
		break;
	case 'r':
		ctl->repairs = true;
		break;
	case 'n':
		ctl->is_none_wanted = true;
		break;
	case 'A':
		ctl->ask.arena = optarg;
		break;
	case 't':
		ctl->ask.timeout_s = parse_timeout(optarg);
		break;
	case 'h':
		fputs(help, stdout);
		exit(EXIT_SUCCESS);
	case 'V':
		printf("slabctl %s (protocol %u, layout %u)\n", SLABC_VERSION, (unsigned)PROTO_VERSION, (unsigned)LAYOUT_VERSION);
		exit(EXIT_SUCCESS);
	default:
		exit(ASK_EXIT_USAGE); /* getopt_long() has said why */
	}
}

static void
parse(struct ctl *ctl, int argc, char **argv)
{
	static const struct option long_options[] = {
		{"socket", required_argument, NULL, 's'},
		{"json", no_argument, NULL, 'j'},
		{"cache", required_argument, NULL, 'c'},
		{"client", required_argument, NULL, 'i'},
		{"older-than", required_argument, NULL, 'o'},
		{"repair", no_argument, NULL, 'r'},
		{"none", no_argument, NULL, 'n'},
		{"arena", required_argument, NULL, 'A'},
		{"timeout", required_argument, NULL, 't'},
		{"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'V'},
		{NULL, 0, NULL, 0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "h", long_options, NULL)) != -1)
		take_option(ctl, c);
	if (optind == argc)
		ask_die(ASK_EXIT_USAGE, "a command is needed, such as status or caches; see slabctl --help");
	ctl->command = parse_command(argv[optind++]);
	ctl->args = argv + optind;
	ctl->n_args = (unsigned)(argc - optind);
	check(ctl);
}

int
main(int argc, char **argv)
{
	const char *socket_path = getenv("SLABD_SOCKET");
	struct ctl ctl = {
		.ask = {.socket = SLABC_DEFAULT_SOCKET, .source = "the default; $SLABD_SOCKET is not set"},
		.form = TABLE_TEXT,
	};
	int status;

	if (socket_path != NULL && *socket_path != '\0') {
		ctl.ask.socket = socket_path;
		ctl.ask.source = "$SLABD_SOCKET";
	}
	parse(&ctl, argc, argv);
	if (ctl.command->options & COMMAND_WAITS) {
		ctl.wait_s = ctl.ask.timeout_s;
		ctl.ask.timeout_s = 0;
	}
	if (ctl.ask.timeout_s == 0)
		ctl.ask.timeout_s = ctl.command->show.op == PROTO_OP_AUDIT ? AUDIT_TIMEOUT_S : DEFAULT_TIMEOUT_S;
	status = ctl.command->run(&ctl);
	if (fflush(stdout) != 0)
		ask_die(ASK_EXIT_SLABD, "cannot write the output: %s", strerror(errno));
	return status;
}
