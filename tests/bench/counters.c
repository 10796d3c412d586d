/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of a cache, out of what `slabctl --json caches` says.
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

int
bench_counters_read(const struct bench_options *opt, struct bench_counters *out)
{
	char command[512];
	char *json, *object;

	if (!opt->slabctl || strcmp(opt->peer, "slabd") != 0)
		return 0;
	snprintf(command, sizeof(command), "timeout 20 '%s' --socket='%s' --json caches", opt->slabctl, opt->socket);
	json = counters_output(command);
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
	READ(lock_acquired);
	READ(lock_contended);
	READ(lock_wait_ns);
	READ(lock_hold_ns);
#undef READ
	free(json);
	return 0;
}
