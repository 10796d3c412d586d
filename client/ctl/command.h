/* SPDX-License-Identifier: Apache-2.0 */
/* Slabctl's commands.  Each reads its arguments, then asks, then prints; returns the exit status. */
#ifndef SLAB_CLIENT_CTL_COMMAND_H
#define SLAB_CLIENT_CTL_COMMAND_H

#include <stdbool.h>
#include <stdint.h>

#include "client/ctl/ask.h"
#include "client/ctl/show.h"
#include "client/ctl/table.h"

/* Options that a command knows, beside those that all know. */
enum {
	COMMAND_CACHE = 1,
	COMMAND_CLIENT = 2,
	COMMAND_AGE = 4,
	COMMAND_REPAIR = 16,
	COMMAND_NONE = 8,
	COMMAND_WAITS = 16, /* --timeout is for all of it */

	COMMAND_MAX_KNOBS = 6,
};

struct ctl;

struct command {
	const char *name;
	int (*run)(struct ctl *ctl);
	unsigned min_args;
	unsigned max_args;
	const char *args; /* what they are; NULL: none */
	unsigned options; /* COMMAND_ */
	struct show show;
};

/* What was asked for on the command line. */
struct ctl {
	struct ask ask;
	enum table_form form;
	const struct command *command;
	char **args;
	unsigned n_args;
	const char *cache;  /* NULL: all */
	uint32_t client_id; /* 0: all */
	uint64_t older_than_ms;
	bool has_age;
	bool repairs;
	bool is_none_wanted; /* what is listed is too many */
	int wait_s; /* COMMAND_WAITS: at most; 0: for ever */
};

int command_record(struct ctl *ctl);
int command_list(struct ctl *ctl);
int command_audit(struct ctl *ctl);
int command_roots(struct ctl *ctl);
int command_orphans(struct ctl *ctl);
int command_shrink(struct ctl *ctl);
int command_destroy(struct ctl *ctl);
int command_tune(struct ctl *ctl);
int command_inspect(struct ctl *ctl);
int command_leaks(struct ctl *ctl); /* leaks.c */
int command_drain(struct ctl *ctl); /* drain.c */

/* "90", "90s", "5m", "2h", "7d": milliseconds. Anything else is an error of usage. */
uint64_t command_parse_age(const char *text);

#endif
