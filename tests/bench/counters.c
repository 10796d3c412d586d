/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of a cache and its arena, out of what `slabctl --json caches` and `status` say.
 *
 * No JSON library: a cache's object is the innermost pair of braces round its "name", numbers in it are found by their key.
 */
#define _GNU_SOURCE 1
#include "tests/bench/bench.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All that the command writes, with a NUL; NULL: it failed. */
static char *
counters_output(const char *command)
{
	size_t n_bytes = 0, n_room = 1 << 20;
	char *bytes = malloc(n_room);
	FILE *f = bytes ? popen(command, "re") : NULL;

	if (!f) {
		free(bytes);
		return NULL;
	}
	n_bytes = fread(bytes, 1, n_room - 1, f);
	bytes[n_bytes] = 0;
	if (pclose(f) == 0)
		return bytes;
	free(bytes);
	return NULL;
}

/* Cuts the text down to the object that has this name; NULL: there is none. */
static char *
counters_object(char *json, const char *name)
{
	char quoted[80];
	char *at = json, *start, *end;

	snprintf(quoted, sizeof(quoted), "\"%s\"", name);
	at = strstr(json, quoted);
	if (!at)
		return NULL;
	for (start = at; start > json && *start != '{'; start--)
		;
	end = strchr(at, '}');
	if (*start != '{' || !end)
		return NULL;
	*end = 0;
	return start;
}

static uint64_t
counters_number(const char *object, const char *key)
{
	char quoted[80];
	const char *at;

	snprintf(quoted, sizeof(quoted), "\"%s\":", key);
	at = strstr(object, quoted);
	return at ? strtoull(at + strlen(quoted), NULL, 10) : 0;
}

static char *
counters_ask(const struct bench_options *opt, const char *what, char command[512])
{
	snprintf(command, 512, "timeout 20 '%s' --socket='%s' --json %s", opt->slabctl, opt->socket, what);
	return counters_output(command);
}

/* What slabd has beside its pages. */
static int
counters_of_arena(const struct bench_options *opt, struct bench_counters *out)
{
	char command[512];
	char *json = counters_ask(opt, "status", command);

	if (!json) {
		fprintf(stderr, "bench: %s: failed\n", command);
		return -EIO;
	}
	out->words_bytes = counters_number(json, "words_bytes");
	out->map_bytes = counters_number(json, "map_bytes");
	out->ledger_bytes = counters_number(json, "ledger_bytes");
	out->session_bytes = counters_number(json, "session_bytes");
	free(json);
	return 0;
}

int
bench_counters_read(const struct bench_options *opt, struct bench_counters *out)
{
	char command[512];
	char *json, *object;

	if (!opt->slabctl || strncmp(opt->peer, "slabd", 5) != 0)
		return 0;
	json = counters_ask(opt, "caches", command);
	object = json ? counters_object(json, opt->cache) : NULL;
	if (!object) {
		fprintf(stderr, "bench: %s: %s\n", command, json ? "no such cache" : "failed");
		free(json);
		return -EIO;
	}
#define READ(key) out->key = counters_number(object, #key)
	READ(object_bytes);
	READ(capacity);
	READ(n_thread);
	READ(n_process_barn);
	READ(n_returned);
	READ(n_node_barn);
	READ(n_refills);
	READ(n_flushes);
	READ(n_sheaves_granted);
	READ(n_pages);
	READ(lock_acquired);
	READ(lock_contended);
	READ(lock_wait_ns);
	READ(lock_hold_ns);
#undef READ
	free(json);
	return opt->pattern == BENCH_LIVE ? counters_of_arena(opt, out) : 0;
}
