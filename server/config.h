/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings: the command line over the configuration file over the defaults.
 *
 * The file is INI as systemd's units are:  [slabd] socket, threads;  [arena] size, page-kind, profile, reserve.  Sizes may end in K, M or G.
 */
#ifndef SLAB_SERVER_CONFIG_H
#define SLAB_SERVER_CONFIG_H

#include <stddef.h>

#include "server/slabd.h"

enum { CONFIG_E_HELP = 1, CONFIG_E_VERSION };

struct config {
	struct slabd_options options;
	char socket[108];
};

void config_init(struct config *config);

/* 0, CONFIG_E_HELP, CONFIG_E_VERSION; -EINVAL or what reading the file gave, with a sentence that names file, line, field and what is allowed. */
int config_parse(struct config *config, int argc, char **argv, char *why, size_t why_size);

#endif
