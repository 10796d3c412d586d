/* SPDX-License-Identifier: Apache-2.0 */
#include "server/config.h"

#include <errno.h>
#include <getopt.h>
#include <ini.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t default_arena_bytes = 1ull << 30;

void
config_init(struct config *config)
{
	*config = (struct config){
		.options = {
			.n_threads = 1,
			.has_signals = true,
			.arena = {.name = "default", .limit_bytes = default_arena_bytes},
		},
		.socket = "/run/slabd/slabd.sock",
	};
}

static int
parse_number(const char *value, uint64_t min, uint64_t max, uint64_t *numberp)
{
	static const char units[] = "KMG";
	unsigned long long number;
	const char *unit;
	char *end;

	if (*value < '0' || *value > '9')
		return -EINVAL;
	errno = 0;
	number = strtoull(value, &end, 10);
	if (errno)
		return -EINVAL;
	unit = *end ? strchr(units, *end) : NULL;
	if (unit) {
		unsigned shift = 10 * (unsigned)(unit - units + 1);

		if (number > UINT64_MAX >> shift)
			return -EINVAL;
		number <<= shift;
		end++;
	}
	if (*end || number < min || number > max)
		return -EINVAL;
	*numberp = number;
	return 0;
}

/* One field, wherever it comes from; on -EINVAL allowed says what would have done. */
static int
set(struct config *config, const char *field, const char *value, char *allowed, size_t allowed_size)
{
	struct slabd_options *o = &config->options;
	uint64_t number;
	int r = 0;

	if (strcmp(field, "socket") == 0) {
		snprintf(allowed, allowed_size, "a path of 1 to %zu bytes", sizeof config->socket - 1);
		if (strlen(value) == 0 || strlen(value) >= sizeof config->socket)
			return -EINVAL;
		strcpy(config->socket, value);
	} else if (strcmp(field, "threads") == 0) {
		snprintf(allowed, allowed_size, "1 to %d", SLABD_MAX_THREADS);
		r = parse_number(value, 1, SLABD_MAX_THREADS, &number);
		if (r == 0)
			o->n_threads = (unsigned)number;
	} else if (strcmp(field, "size") == 0) {
		snprintf(allowed, allowed_size, "2M to 32G, in bytes or with K, M or G");
		r = parse_number(value, 2ull << 20, 32ull << 30, &o->arena.limit_bytes);
	} else if (strcmp(field, "reserve") == 0) {
		snprintf(allowed, allowed_size, "0 to 32G, in bytes or with K, M or G");
		r = parse_number(value, 0, 32ull << 30, &o->arena.reserve_bytes);
	} else if (strcmp(field, "page-kind") == 0) {
		snprintf(allowed, allowed_size, "auto, huge or 4k");
		r = slabd_page_kind_parse(value);
		if (r >= 0)
			o->arena.page_kind = (enum arena_page_kind)r;
	} else if (strcmp(field, "profile") == 0) {
		snprintf(allowed, allowed_size, "default, kernel or tiny");
		r = slabd_profile_parse(value);
		if (r >= 0)
			o->arena.profile = (enum arena_profile)r;
	} else {
		return -ENOENT;
	}
	return r < 0 ? -EINVAL : 0;
}

/* inih tells the line of the first error afterwards. */
struct file {
	struct config *config;
	char error[256]; /* of the first one */
};

static int
on_field(void *ctx, const char *section, const char *name, const char *value)
{
	bool is_slabd = strcmp(section, "slabd") == 0, is_arena = strcmp(section, "arena") == 0;
	bool is_of_slabd = strcmp(name, "socket") == 0 || strcmp(name, "threads") == 0;
	struct file *file = ctx;
	char allowed[64];
	int r = -ENOENT;

	if (file->error[0])
		return 0;
	if ((is_slabd && is_of_slabd) || (is_arena && !is_of_slabd))
		r = set(file->config, name, value, allowed, sizeof allowed);
	if (r == -ENOENT)
		snprintf(file->error, sizeof file->error,
			"unknown key '%s' in [%s]; there are [slabd] socket, threads and [arena] size, reserve, page-kind, profile", name, section);
	else if (r < 0)
		snprintf(file->error, sizeof file->error, "%s = '%s': allowed is %s", name, value, allowed);
	return r == 0;
}

static int
read_file(struct config *config, const char *path, char *why, size_t why_size)
{
	struct file file = {.config = config};
	int r;

	r = ini_parse(path, on_field, &file);
	if (r < 0) {
		snprintf(why, why_size, "%s: %s", path, strerror(errno));
		return -EIO;
	}
	if (r > 0) {
		snprintf(why, why_size, "%s:%d: %s", path, r, file.error[0] ? file.error : "neither [section] nor key = value");
		return -EINVAL;
	}
	return 0;
}

static const struct option options[] = {
	{"config", required_argument, NULL, 'c'},
	{"socket", required_argument, NULL, 's'},
	{"arena-size", required_argument, NULL, 'a'},
	{"reserve", required_argument, NULL, 'r'},
	{"page-kind", required_argument, NULL, 'p'},
	{"threads", required_argument, NULL, 't'},
	{"profile", required_argument, NULL, 'f'},
	{"help", no_argument, NULL, 'h'},
	{"version", no_argument, NULL, 'V'},
	{0},
};

/* The field of the file that an option stands for. */
static const char *
field_of(int option)
{
	switch (option) {
	case 's':
		return "socket";
	case 'a':
		return "size";
	case 'r':
		return "reserve";
	case 'p':
		return "page-kind";
	case 't':
		return "threads";
	default:
		return "profile";
	}
}

/* pass 0: what does not depend on the file; pass 1: the options, over it. */
static int
parse_options(struct config *config, int argc, char **argv, int pass, char *why, size_t why_size)
{
	int c, index, r;

	optind = 0;
	opterr = 0;
	while ((c = getopt_long(argc, argv, ":hV", options, &index)) != -1) {
		char allowed[64];

		if (c == 'h')
			return CONFIG_E_HELP;
		if (c == 'V')
			return CONFIG_E_VERSION;
		if (c == ':' || c == '?') {
			snprintf(why, why_size, "%s %s; see --help", argv[optind - 1], c == ':' ? "wants a value" : "is no option");
			return -EINVAL;
		}
		if (c == 'c') {
			r = pass == 0 ? read_file(config, optarg, why, why_size) : 0;
			if (r < 0)
				return r;
			continue;
		}
		r = pass == 1 ? set(config, field_of(c), optarg, allowed, sizeof allowed) : 0;
		if (r < 0) {
			snprintf(why, why_size, "--%s=%s: allowed is %s", options[index].name, optarg, allowed);
			return r;
		}
	}
	if (optind < argc) {
		snprintf(why, why_size, "'%s' is no option; see --help", argv[optind]);
		return -EINVAL;
	}
	return 0;
}

int
config_parse(struct config *config, int argc, char **argv, char *why, size_t why_size)
{
	int r;

	for (int pass = 0; pass < 2; pass++) {
		r = parse_options(config, argc, argv, pass, why, why_size);
		if (r != 0)
			return r;
	}
	config->options.socket = config->socket;
	return 0;
}
