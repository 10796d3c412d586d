/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slabd that is killed at a step (shm/step.h): die_at STEP SKIP MARKER OPTION...
 *
 * It ends by SIGKILL the first time, after SKIP times, that it is at the step, and makes the file MARKER; where that is there already it serves on.  Built
 * with SLAB_STEPS; tests/it_adopt.c runs it under slabd-keeper.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/config.h"
#include "server/log.h"
#include "shm/step.h"

static const char *marker;
static enum step fatal_step;
static int n_left;

static void
on_step(enum step step)
{
	if (step != fatal_step || n_left-- > 0)
		return;
	close(open(marker, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
	kill(getpid(), SIGKILL);
}

int
main(int argc, char **argv)
{
	static struct config config;
	struct slabd *slabd;
	char why[640];
	int r;

	if (argc < 4)
		return 2;
	while (fatal_step < STEP_COUNT && strcmp(step_names[fatal_step], argv[1]) != 0)
		fatal_step++;
	if (fatal_step == STEP_COUNT) {
		fprintf(stderr, "die_at: no step %s\n", argv[1]);
		return 2;
	}
	n_left = atoi(argv[2]);
	marker = argv[3];
	if (access(marker, F_OK) < 0)
		step_hook = on_step;
	config_init(&config);
	r = config_parse(&config, argc - 3, argv + 3, why, sizeof why);
	if (r == 0)
		r = slabd_new(&slabd, &config.options, why, sizeof why);
	if (r != 0) {
		log_error("%s", why);
		return r == SLABD_E_REFUSED ? 3 : 1;
	}
	r = slabd_run(slabd);
	slabd_free(slabd);
	return r == SLABD_E_REFUSED ? 3 : r != 0;
}
