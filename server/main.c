/* SPDX-License-Identifier: Apache-2.0 */
/* slabd: reads its settings, serves in the foreground, and is the only file that exits. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/config.h"
#include "server/log.h"
#include "server/slabd.h"

static const char help[] =
	"usage: slabd [OPTION]...\n"
	"Owns shared memory and lends its objects to processes that link libslabclient. Runs in the foreground.\n"
	"\n"
	"  --config=FILE            settings, INI: [slabd] socket, threads; [arena] size, reserve, page-kind, profile\n"
	"  --socket=PATH            where clients connect (default /run/slabd/slabd.sock; systemd may pass a socket)\n"
	"  --arena-size=BYTES       limit of the memory lent out; K, M, G (default 1G)\n"
	"  --reserve=BYTES          of it, committed before slabd says that it is ready, and kept (default 0)\n"
	"  --page-kind=KIND         auto: 2 MiB pages, else 4 KiB ones; huge: only the first; 4k: only the latter\n"
	"  --threads=N              event loops (default 1)\n"
	"  --profile=NAME           knobs: default; kernel, the kernel's own numbers; tiny, nothing kept idle\n"
	"  --help, --version\n";

int
main(int argc, char **argv)
{
	struct slabd *slabd = NULL;
	struct config config;
	char why[512];
	int r;

	/* A log that nobody reads any more must not end slabd. */
	signal(SIGPIPE, SIG_IGN);
	config_init(&config);
	r = config_parse(&config, argc, argv, why, sizeof why);
	if (r == CONFIG_E_HELP || r == CONFIG_E_VERSION) {
		fputs(r == CONFIG_E_HELP ? help : "slabd " SLABD_VERSION "\n", stdout);
		return fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
	}
	if (r == 0)
		r = slabd_new(&slabd, &config.options, why, sizeof why);
	if (r < 0) {
		log_error("%s", why);
		return EXIT_FAILURE;
	}
	r = slabd_run(slabd);
	if (r < 0)
		log_error("%s", strerror(-r));
	slabd_free(slabd);
	return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
