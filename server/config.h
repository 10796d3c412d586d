/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings: the command line over the configuration file over the defaults.
 *
 * The file is INI as systemd's units are: [slabd], and [arena NAME] for each arena, where [arena] is the one called default.  A file
 * without arenas, and no file, means that one arena; the command line's arena options are the default arena's.  An unknown key or section,
 * a key or section that comes twice, a value that cannot be: each is an error with file, line, field and what is allowed.  Users and groups
 * are looked up here, once.  --ephemeral has other defaults, and neither file nor socket.
 */
#ifndef SLAB_SERVER_CONFIG_H
#define SLAB_SERVER_CONFIG_H

#include <stddef.h>

#include "server/slabd.h"

enum { CONFIG_E_HELP = 1, CONFIG_E_VERSION, CONFIG_E_CHECK, CONFIG_ARENA_NAME_BYTES = 41 };

/* Where the file says it; 0: nowhere. */
struct config_lines {
	int section;
	int size;
	int reserve;
};

struct config {
	struct slabd_options options; /* points into the rest */
	char socket[108];
	char names[SLABD_MAX_ARENAS][CONFIG_ARENA_NAME_BYTES];
	struct config_lines lines[SLABD_MAX_ARENAS];
	const char *path; /* of the file; NULL: none */
	bool is_ephemeral;
	char **command; /* what stands after "--", also after an error; NULL: nothing */
};

void config_init(struct config *config);

/*
 * 0; CONFIG_E_HELP, CONFIG_E_VERSION, CONFIG_E_CHECK: that was asked for, and for the last all is well; or a negative errno, with a
 * sentence. Not thread-safe (users and groups).
 */
int config_parse(struct config *config, int argc, char **argv, char *why, size_t why_size);

#endif
