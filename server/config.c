/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libinih splits the lines; the reader that hands it one after the other counts them, and notes where a section begins, also one without
 * keys or one that comes twice, of which libinih says nothing.  Blanks that begin a line are dropped, for libinih would take the line as a
 * part of the one before.
 */
#include "server/config.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <grp.h>
#include <ini.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/cache.h"
#include "server/log.h"

static const uint64_t default_arena_bytes = 1ull << 30, ephemeral_arena_bytes = 64ull << 20;
static const uint32_t default_idle_s = 10, default_max_faults = 1000;
static const char byte_order_mark[] = "\xef\xbb\xbf";

/* libinih would cut a longer section's name. */
enum { MAX_SECTION_BYTES = 49 };

_Static_assert(sizeof "arena " - 1 + CONFIG_ARENA_NAME_BYTES - 1 <= MAX_SECTION_BYTES, "an arena's name fits into its section's");

/* Values */

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

static int
parse_u32(const char *value, uint64_t min, uint64_t max, uint32_t *numberp)
{
	uint64_t number;
	int r = parse_number(value, min, max, &number);

	if (r == 0)
		*numberp = (uint32_t)number;
	return r;
}

static int
parse_mode(const char *value, unsigned max, unsigned *modep)
{
	size_t n = strlen(value);
	unsigned long mode;

	if (n < 3 || n > 4 || strspn(value, "01234567") != n)
		return -EINVAL;
	mode = strtoul(value, NULL, 8);
	if (mode > max)
		return -EINVAL;
	*modep = (unsigned)mode;
	return 0;
}

/* (uid_t)-1 means "nobody in particular" to the kernel. */
static int
parse_user(const char *value, uid_t *uidp)
{
	const struct passwd *user = getpwnam(value);

	if (!user)
		return parse_u32(value, 0, UINT32_MAX - 1, uidp);
	*uidp = user->pw_uid;
	return 0;
}

static int
parse_group(const char *value, gid_t *gidp)
{
	const struct group *group = getgrnam(value);

	if (!group)
		return parse_u32(value, 0, UINT32_MAX - 1, gidp);
	*gidp = group->gr_gid;
	return 0;
}

/* Fields: of [slabd] (arena is NULL), then of an arena.  0, or -EINVAL. */

static int
set_socket(struct config *config, struct arena_options *arena, const char *value)
{
	(void)arena;
	if (strlen(value) == 0 || strlen(value) >= sizeof config->socket)
		return -EINVAL;
	strcpy(config->socket, value);
	return 0;
}

static int
set_socket_mode(struct config *config, struct arena_options *arena, const char *value)
{
	(void)arena;
	return parse_mode(value, 0777, &config->options.socket_mode) < 0 || config->options.socket_mode == 0 ? -EINVAL : 0;
}

static int
set_socket_group(struct config *config, struct arena_options *arena, const char *value)
{
	(void)arena;
	config->options.has_socket_group = true;
	return parse_group(value, &config->options.socket_group);
}

static int
set_threads(struct config *config, struct arena_options *arena, const char *value)
{
	(void)arena;
	return parse_u32(value, 1, SLABD_MAX_THREADS, &config->options.n_threads);
}

static int
set_log(struct config *config, struct arena_options *arena, const char *value)
{
	static const struct {
		const char *name;
		enum log_level level;
	} levels[] = {
		{"error", LOG_LEVEL_ERROR},
		{"warning", LOG_LEVEL_WARNING},
		{"notice", LOG_LEVEL_NOTICE},
		{"info", LOG_LEVEL_INFO},
	};

	(void)arena;
	for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++)
		if (strcmp(levels[i].name, value) == 0) {
			config->options.log_level = levels[i].level;
			return 0;
		}
	return -EINVAL;
}

static int
set_idle_after(struct config *config, struct arena_options *arena, const char *value)
{
	(void)arena;
	return parse_u32(value, 0, SLABD_MAX_IDLE_S, &config->options.idle_after_s);
}

static int
set_size(struct config *config, struct arena_options *arena, const char *value)
{
	(void)config;
	return parse_number(value, 2ull << 20, 32ull << 30, &arena->limit_bytes);
}

static int
set_reserve(struct config *config, struct arena_options *arena, const char *value)
{
	(void)config;
	return parse_number(value, 0, 32ull << 30, &arena->reserve_bytes);
}

static int
set_page_kind(struct config *config, struct arena_options *arena, const char *value)
{
	int ladder = ladder_parse(value);

	(void)config;
	if (ladder < 0)
		return -EINVAL;
	arena->page_kind = (unsigned)ladder;
	return 0;
}

static int
set_profile(struct config *config, struct arena_options *arena, const char *value)
{
	int profile = profile_parse(value);

	(void)config;
	if (profile < 0)
		return -EINVAL;
	arena->profile = (enum arena_profile)profile;
	return 0;
}

static int
set_owner(struct config *config, struct arena_options *arena, const char *value)
{
	(void)config;
	snprintf(arena->access.owner_name, sizeof arena->access.owner_name, "%s", value);
	return parse_user(value, &arena->access.owner);
}

static int
set_group(struct config *config, struct arena_options *arena, const char *value)
{
	(void)config;
	snprintf(arena->access.group_name, sizeof arena->access.group_name, "%s", value);
	return parse_group(value, &arena->access.group);
}

static int
set_mode(struct config *config, struct arena_options *arena, const char *value)
{
	(void)config;
	return parse_mode(value, 0777, &arena->access.mode) < 0 || !access_mode_is_valid(arena->access.mode) ? -EINVAL : 0;
}

static int
set_max_sessions(struct config *config, struct arena_options *arena, const char *value)
{
	(void)config;
	return parse_u32(value, 0, LAYOUT_MAX_CLIENTS, &arena->max_sessions);
}

static int
set_max_caches(struct config *config, struct arena_options *arena, const char *value)
{
	(void)config;
	return parse_u32(value, 0, LAYOUT_MAX_CACHES - 1, &arena->max_caches);
}

static int
set_client_max(struct config *config, struct arena_options *arena, const char *value)
{
	(void)config;
	return parse_number(value, 0, 32ull << 30, &arena->client_max);
}

static int
set_client_min(struct config *config, struct arena_options *arena, const char *value)
{
	(void)config;
	return parse_number(value, 0, 32ull << 30, &arena->client_min);
}

static int
set_debug(struct config *config, struct arena_options *arena, const char *value)
{
	(void)config;
	if (*value && (strlen(value) >= sizeof arena->debug || cache_parse_debug(value) < 0))
		return -EINVAL;
	strcpy(arena->debug, value);
	return 0;
}

static int
set_user_max(struct config *config, struct arena_options *arena, const char *value)
{
	(void)config;
	return parse_number(value, 0, 32ull << 30, &arena->user_max);
}

static int
set_node_policy(struct config *config, struct arena_options *arena, const char *value)
{
	(void)config;
	arena->is_node_strict = strcmp(value, "strict") == 0;
	return arena->is_node_strict || strcmp(value, "preferred") == 0 ? 0 : -EINVAL;
}

static int
set_max_orphans(struct config *config, struct arena_options *arena, const char *value)
{
	(void)config;
	return parse_number(value, 0, 32ull << 30, &arena->max_orphans);
}

static int
set_max_faults(struct config *config, struct arena_options *arena, const char *value)
{
	(void)config;
	return parse_u32(value, 0, 1000000000, &arena->max_faults);
}

struct field {
	const char *name;
	bool is_arena;
	int (*set)(struct config *config, struct arena_options *arena, const char *value);
	const char *allowed;
};

#define USER_ALLOWED "the name or number of a user that there is"
#define GROUP_ALLOWED "the name or number of a group that there is"

/* The numbers in these texts are checked by tests/it_config.c against what is accepted. */
static const struct field fields[] = {
	{"socket", false, set_socket, "a path of 1 to 107 bytes"},
	{"socket-mode", false, set_socket_mode, "an octal mode as for files, 0001 to 0777, such as 0660"},
	{"socket-group", false, set_socket_group, GROUP_ALLOWED},
	{"threads", false, set_threads, "1 to 64"},
	{"log", false, set_log, "error, warning, notice or info"},
	{"idle-after", false, set_idle_after, "0 (never) to 86400 seconds"},
	{"size", true, set_size, "2M to 32G, in bytes or with K, M or G"},
	{"reserve", true, set_reserve, "0 to 32G, in bytes or with K, M or G"},
	{"page-kind", true, set_page_kind, LADDER_ALLOWED},
	{"profile", true, set_profile, PROFILE_ALLOWED},
	{"owner", true, set_owner, USER_ALLOWED},
	{"group", true, set_group, GROUP_ALLOWED},
	{"mode", true, set_mode, "an octal mode of digits 0 (nothing), 4 (read-only) and 6 (read-write), such as 0640"},
	{"max-sessions", true, set_max_sessions, "0 (no limit) to 16382"},
	{"max-caches", true, set_max_caches, "0 (no limit) to 511"},
	{"client-max", true, set_client_max, "0 (no limit) to 32G, in bytes or with K, M or G"},
	{"client-min", true, set_client_min, "0 to 32G, in bytes or with K, M or G"},
	{"debug", true, set_debug, "letters of FZPU, or these and names of caches behind commas, such as FZ,message,tree*, in at most 127 bytes"},
	{"node-policy", true, set_node_policy, "preferred or strict"},
	{"user-max", true, set_user_max, "0 (no limit) to 32G, in bytes or with K, M or G"},
	{"max-orphans", true, set_max_orphans, "0 (no limit) to 32G, in bytes or with K, M or G"},
	{"max-faults", true, set_max_faults, "0 (no limit) to 1000000000"},
};

enum { N_FIELDS = sizeof fields / sizeof fields[0] };

static const struct field *
find_field(const char *name)
{
	for (size_t i = 0; i < N_FIELDS; i++)
		if (strcmp(fields[i].name, name) == 0)
			return &fields[i];
	return NULL;
}

/* "socket, threads": the fields of one kind of section. */
static void
list_fields(bool is_arena, char *text, size_t size)
{
	size_t used = 0;

	*text = '\0';
	for (size_t i = 0; i < N_FIELDS; i++)
		if (fields[i].is_arena == is_arena && used < size)
			used += (size_t)snprintf(text + used, size - used, "%s%s", used ? ", " : "", fields[i].name);
}

/* Arenas */

static int
find_arena(const struct config *config, const char *name)
{
	for (unsigned i = 0; i < config->options.n_arenas; i++)
		if (strcmp(config->names[i], name) == 0)
			return (int)i;
	return -1;
}

/* There is room, and the name is valid. */
static void
add_arena(struct config *config, const char *name, int line)
{
	unsigned i = config->options.n_arenas++;

	strcpy(config->names[i], name);
	config->lines[i] = (struct config_lines){.section = line};
	config->options.arenas[i] = (struct arena_options){
		.name = config->names[i], .limit_bytes = default_arena_bytes, .max_faults = default_max_faults};
	access_init(&config->options.arenas[i].access);
}

static bool
is_arena_name(const char *name)
{
	size_t n = strlen(name);

	if (n == 0 || n >= CONFIG_ARENA_NAME_BYTES)
		return false;
	for (size_t i = 0; i < n; i++)
		if (!isalnum((unsigned char)name[i]) && !strchr("._-", name[i]))
			return false;
	return true;
}

/* The file */

struct file {
	struct config *config;
	FILE *stream;
	char *line;
	size_t line_size;
	int n_lines;
	bool has_slabd;
	int section;              /* NO_SECTION, IN_SLABD, or the arena's index */
	bool has_field[N_FIELDS]; /* in this section */
	int error_line;           /* 0: none yet */
	char error[384];
};

enum { NO_SECTION = -2, IN_SLABD = -1 };

/* Keeps the first. */
__attribute__((format(printf, 2, 3))) static void
file_error(struct file *file, const char *format, ...)
{
	va_list args;

	if (file->error_line)
		return;
	file->error_line = file->n_lines;
	va_start(args, format);
	vsnprintf(file->error, sizeof file->error, format, args);
	va_end(args);
}

/* The line, from its '[' on. */
static void
begin_section(struct file *file, const char *line)
{
	struct config *config = file->config;
	size_t n = strcspn(line + 1, "]");
	char section[MAX_SECTION_BYTES + 1];
	const char *name;

	memset(file->has_field, 0, sizeof file->has_field);
	file->section = NO_SECTION;
	if (line[1 + n] != ']')
		return; /* libinih says so */
	if (n > MAX_SECTION_BYTES) {
		file_error(file, "a section's name has at most %d bytes, this one has %zu", MAX_SECTION_BYTES, n);
		return;
	}
	snprintf(section, sizeof section, "%.*s", (int)n, line + 1);
	if (strcmp(section, "slabd") == 0) {
		if (file->has_slabd)
			file_error(file, "[slabd] is there twice");
		file->has_slabd = true;
		file->section = IN_SLABD;
		return;
	}
	name = strcmp(section, "arena") == 0 ? "default" : section + sizeof "arena " - 1;
	if (strcmp(section, "arena") != 0 && strncmp(section, "arena ", sizeof "arena " - 1) != 0)
		file_error(file, "unknown section [%s]; there are [slabd], [arena] and [arena NAME]", section);
	else if (!is_arena_name(name))
		file_error(
			file, "[%s]: an arena's name has 1 to %d letters, digits, '.', '_' and '-'", section, CONFIG_ARENA_NAME_BYTES - 1);
	else if (find_arena(config, name) >= 0)
		file_error(file, "arena '%s' is there twice, first in line %d", name, config->lines[find_arena(config, name)].section);
	else if (config->options.n_arenas == SLABD_MAX_ARENAS)
		file_error(file, "there are at most %d arenas", SLABD_MAX_ARENAS);
	else {
		file->section = (int)config->options.n_arenas;
		add_arena(config, name, file->n_lines);
	}
}

/* What libinih reads from: a line at a time, as fgets() would. */
static char *
read_line(char *buf, int size, void *ctx)
{
	struct file *file = ctx;
	ssize_t n = getline(&file->line, &file->line_size, file->stream);
	const char *line = file->line;

	if (n < 0)
		return NULL;
	file->n_lines++;
	if (strlen(line) != (size_t)n)
		file_error(file, "a NUL byte");
	if (file->n_lines == 1 && strncmp(line, byte_order_mark, sizeof byte_order_mark - 1) == 0)
		line += sizeof byte_order_mark - 1;
	line += strspn(line, " \t");
	if (*line == '[')
		begin_section(file, line);
	if (snprintf(buf, (size_t)size, "%s", line) >= size)
		file_error(file, "a line has at most %d bytes", size - 2);
	return buf;
}

static int
on_field(void *ctx, const char *ini_section, const char *name, const char *value)
{
	struct file *file = ctx;
	struct config *config = file->config;
	const struct field *field = find_field(name);
	struct config_lines *lines = file->section >= 0 ? &config->lines[file->section] : NULL;

	if (file->error_line)
		return 0;
	if (file->section == NO_SECTION) {
		file_error(file, "'%s' stands in no section; there are [slabd], [arena] and [arena NAME]", name);
	} else if (!field || field->is_arena != (file->section >= 0)) {
		char of_slabd[96], of_arena[160];

		list_fields(false, of_slabd, sizeof of_slabd);
		list_fields(true, of_arena, sizeof of_arena);
		file_error(file, "unknown key '%s' in [%s]; there are [slabd] %s and [arena] %s", name, ini_section, of_slabd, of_arena);
	} else if (file->has_field[field - fields]) {
		file_error(file, "%s is there twice in [%s]", name, ini_section);
	} else if (field->set(config, lines ? &config->options.arenas[file->section] : NULL, value) < 0) {
		file_error(file, "%s = '%s': allowed is %s", name, value, field->allowed);
	} else {
		file->has_field[field - fields] = true;
		if (field->set == set_size)
			lines->size = file->n_lines;
		if (field->set == set_reserve)
			lines->reserve = file->n_lines;
	}
	return !file->error_line;
}

static int
read_file(struct config *config, const char *path, char *why, size_t why_size)
{
	struct file file = {.config = config, .section = NO_SECTION, .stream = fopen(path, "re")};
	int r;

	if (config->path) {
		snprintf(why, why_size, "--config is there twice");
		r = -EINVAL;
	} else if (!file.stream) {
		r = -errno;
		snprintf(why, why_size, "%s: %s", path, strerror(-r));
	} else {
		int line = ini_parse_stream(read_line, &file, on_field, &file);

		r = 0;
		/* A line that is nothing libinih only numbers. */
		if (line > 0 && (!file.error_line || line < file.error_line)) {
			file.error_line = line;
			snprintf(file.error, sizeof file.error, "neither [section] nor key = value");
		}
		if (ferror(file.stream)) {
			r = -EIO;
			snprintf(why, why_size, "%s: cannot be read", path);
		} else if (file.error_line) {
			r = -EINVAL;
			snprintf(why, why_size, "%s:%d: %s", path, file.error_line, file.error);
		}
	}
	if (file.stream)
		fclose(file.stream);
	free(file.line);
	config->path = path;
	return r;
}

/* The command line */

static const struct option options[] = {
	{"config", required_argument, NULL, 'c'},
	{"check-config", no_argument, NULL, 'C'},
	{"socket", required_argument, NULL, 's'},
	{"arena-size", required_argument, NULL, 'a'},
	{"reserve", required_argument, NULL, 'r'},
	{"page-kind", required_argument, NULL, 'p'},
	{"threads", required_argument, NULL, 't'},
	{"profile", required_argument, NULL, 'f'},
	{"start-empty", no_argument, NULL, 'E'},
	{"ephemeral", no_argument, NULL, 'e'},
	{"help", no_argument, NULL, 'h'},
	{"version", no_argument, NULL, 'V'},
	{0},
};

/* Options end where the command begins. */
static const char short_options[] = "+:hV";

/* The field of the file that an option stands for. */
static const struct field *
field_of(const struct option *option)
{
	return find_field(option->val == 'a' ? "size" : option->name);
}

static int
set_option(struct config *config, const struct option *option, const char *value, char *why, size_t why_size)
{
	const struct field *field = field_of(option);
	int i = find_arena(config, "default");

	if (field->is_arena && i < 0) {
		snprintf(why, why_size, "--%s is the default arena's, which %s does not have; add [arena]", option->name, config->path);
		return -EINVAL;
	}
	if (field->set(config, i < 0 ? NULL : &config->options.arenas[i], value) == 0)
		return 0;
	snprintf(why, why_size, "--%s=%s: allowed is %s", option->name, value, field->allowed);
	return -EINVAL;
}

/* Before anything can be wrong: whether there is a command, whose status must not be taken for that of an error, and what is refused. */
static void
look_ahead(struct config *config, int argc, char **argv)
{
	int c;

	optind = 0;
	opterr = 0;
	while ((c = getopt_long(argc, argv, short_options, options, NULL)) != -1)
		if (c == 'e')
			config->is_ephemeral = true;
	if (optind < argc && strcmp(argv[optind - 1], "--") == 0)
		config->command = argv + optind;
}

/* What stands behind the options, from argv[rest] on. */
static int
check_rest(const struct config *config, int argc, char **argv, int rest, char *why, size_t why_size)
{
	if (config->command && !config->is_ephemeral)
		snprintf(why, why_size, "'%s': only --ephemeral runs a command", config->command[0]);
	else if (rest < argc && !config->command)
		snprintf(why, why_size, "'%s' is no option; see --help%s", argv[rest],
			config->is_ephemeral ? " (a command stands after --)" : "");
	else if (config->is_ephemeral && rest == argc && strcmp(argv[rest - 1], "--") == 0)
		snprintf(why, why_size, "--ephemeral: no command stands after --");
	else
		return 0;
	return -EINVAL;
}

/* pass 0: what does not depend on the file; pass 1: the options, over it. */
static int
parse_options(struct config *config, int argc, char **argv, int pass, char *why, size_t why_size)
{
	int c, index, r = 0;
	bool is_check = false;

	optind = 0;
	opterr = 0;
	while (r == 0 && (c = getopt_long(argc, argv, short_options, options, &index)) != -1) {
		if (c == 'h')
			return CONFIG_E_HELP;
		if (c == 'V')
			return CONFIG_E_VERSION;
		if (c == ':' || c == '?') {
			snprintf(why, why_size, "%s %s; see --help", argv[optind - 1], c == ':' ? "wants a value" : "is no option");
			return -EINVAL;
		}
		if (config->is_ephemeral && (c == 's' || c == 'c')) {
			snprintf(why, why_size, "--%s cannot stand beside --ephemeral, which makes a socket of its own and reads no file",
				options[index].name);
			return -EINVAL;
		}
		if (c == 'C')
			is_check = true;
		else if (c == 'E')
			config->options.starts_empty = true;
		else if (c == 'c')
			r = pass == 0 ? read_file(config, optarg, why, why_size) : 0;
		else
			r = pass == 1 && c != 'e' ? set_option(config, &options[index], optarg, why, why_size) : 0;
	}
	if (r < 0)
		return r;
	r = check_rest(config, argc, argv, optind, why, why_size);
	return r == 0 && pass == 1 && is_check ? CONFIG_E_CHECK : r;
}

/* What can only be said of an arena's settings together. */
static int
check_arenas(const struct config *config, char *why, size_t why_size)
{
	char problem[256];

	for (unsigned i = 0; i < config->options.n_arenas; i++) {
		const struct config_lines *lines = &config->lines[i];
		int r = arena_check(&config->options.arenas[i], problem, sizeof problem);

		if (r == 0)
			continue;
		if (lines->section)
			snprintf(why, why_size, "%s:%d: [arena %s]: %s", config->path,
				lines->reserve ? lines->reserve
				: lines->size  ? lines->size
					       : lines->section,
				config->names[i], problem);
		else
			snprintf(why, why_size, "%s", problem);
		return r;
	}
	return 0;
}

/* A test suite wants no pages that somebody else may need, and no news but bad news. */
static void
set_ephemeral_defaults(struct config *config)
{
	config->options.arenas[0].limit_bytes = ephemeral_arena_bytes;
	config->options.arenas[0].page_kind = LADDER_4K;
	config->options.log_level = LOG_LEVEL_WARNING;
}

void
config_init(struct config *config)
{
	*config = (struct config){
		.options = {.n_threads = 1, .has_signals = true, .log_level = LOG_LEVEL_INFO, .idle_after_s = default_idle_s},
		.socket = "/run/slabd/slabd.sock",
	};
	config->options.socket = config->socket;
}

int
config_parse(struct config *config, int argc, char **argv, char *why, size_t why_size)
{
	int r, checked;

	look_ahead(config, argc, argv);
	r = parse_options(config, argc, argv, 0, why, why_size);
	if (r != 0)
		return r;
	if (config->options.n_arenas == 0)
		add_arena(config, "default", 0);
	if (config->is_ephemeral)
		set_ephemeral_defaults(config);
	r = parse_options(config, argc, argv, 1, why, why_size);
	if (r < 0)
		return r;
	checked = check_arenas(config, why, why_size);
	return checked < 0 ? checked : r;
}
