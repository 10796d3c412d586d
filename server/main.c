/* SPDX-License-Identifier: Apache-2.0 */
/* slabd: reads its settings, serves in the foreground, and is the only file that exits. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/config.h"
#include "server/ephemeral.h"
#include "server/log.h"
#include "server/slabd.h"

static const char help[] = "usage: slabd [OPTION]...\n"
			   "       slabd --ephemeral [OPTION]... [-- COMMAND [ARG]...]\n"
			   "Owns shared memory and lends its objects to processes that link libslabclient. Runs in the foreground.\n"
			   "\n"
			   "  --config=FILE            settings, INI: [slabd], and [arena NAME] for each arena; SIGHUP reads it anew\n"
			   "  --check-config           only say whether the settings are right: exit status 0 or 1\n"
			   "  --socket=PATH            where clients connect (default /run/slabd/slabd.sock; systemd may pass a socket)\n"
			   "  --threads=N              event loops (default 1)\n"
			   "  --start-empty            give up what a dead slabd left with systemd or slabd-keeper, instead of adopting it\n"
			   "  --ephemeral              for a test suite: a private socket, SLABD_SOCKET=PATH on standard output, and an end with\n"
			   "                           the parent process; or, with SLABD_SOCKET in its environment, runs COMMAND and ends with it\n"
			   "  --help, --version\n"
			   "\n"
			   "Of the default arena:\n"
			   "  --arena-size=BYTES       limit of the memory lent out; K, M, G (default 1G; --ephemeral: 64M)\n"
			   "  --reserve=BYTES          of it, committed before slabd says that it is ready, and kept (default 0)\n"
			   "  --page-kind=LADDER       kinds of page, best first: some of 1g,huge,thp,4k (default auto: huge,thp,4k;\n"
			   "                           --ephemeral: 4k)\n"
			   "  --profile=NAME           knobs: default; kernel, the kernel's own numbers; tiny, nothing kept idle; server, "
			   "more with more CPUs\n";

/* Exit status if it may not, or cannot, adopt; and if the next slabd shall try. */
enum { EXIT_REFUSED = 3, EXIT_AGAIN = 4 };

/* What slabd was started with, and what it has reread since. */
struct settings {
	int argc;
	char **argv;
	struct config first;
	struct config again;
};

static int
reread(void *ctx, const struct slabd_options **optionsp, char *why, size_t why_size)
{
	struct settings *s = ctx;
	struct config *config = &s->again;
	int r;

	config_init(config);
	r = config_parse(config, s->argc, s->argv, why, why_size);
	*optionsp = &config->options;
	return r;
}

/* Exit status. */
static int
serve(struct config *config)
{
	struct ephemeral *ephemeral = NULL;
	struct slabd *slabd = NULL;
	char why[640];
	int r = 0, status;

	if (config->is_ephemeral)
		r = ephemeral_new(&ephemeral, config->command, &config->options, why, sizeof why);
	if (r == 0)
		r = slabd_new(&slabd, &config->options, why, sizeof why);
	if (r == 0 && ephemeral)
		r = ephemeral_start(ephemeral, slabd, why, sizeof why);
	if (r != 0) {
		log_error("%s", why);
		if (r == SLABD_E_REFUSED)
			log_error("slabd does not adopt, and nobody keeps what the dead slabd left; --start-empty begins without it");
	} else {
		r = slabd_run(slabd);
		if (r < 0)
			log_error("no thread or no memory to serve with: %s", strerror(-r));
	}
	slabd_free(slabd);
	status = r == SLABD_E_REFUSED ? EXIT_REFUSED : r == SLABD_E_AGAIN ? EXIT_AGAIN : r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
	if (config->command)
		status = ephemeral ? ephemeral_status(ephemeral) : EPHEMERAL_STATUS_FAILED;
	ephemeral_free(ephemeral);
	return status;
}

int
main(int argc, char **argv)
{
	static struct settings settings;
	struct config *config = &settings.first;
	char why[640];
	int r;

	/* A log that nobody reads any more must not end slabd. */
	signal(SIGPIPE, SIG_IGN);
	settings.argc = argc;
	settings.argv = argv;
	config_init(config);
	config->options.reread = reread;
	config->options.reread_ctx = &settings;
	r = config_parse(config, argc, argv, why, sizeof why);
	if (r == CONFIG_E_HELP || r == CONFIG_E_VERSION) {
		fputs(r == CONFIG_E_HELP ? help : "slabd " SLABD_VERSION "\n", stdout);
		return fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
	}
	if (r == CONFIG_E_CHECK) {
		printf("%s: ok\n", config->path ? config->path : "the command line");
		return fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
	}
	if (r < 0) {
		log_error("%s", why);
		return config->command ? EPHEMERAL_STATUS_FAILED : EXIT_FAILURE;
	}
	return serve(config);
}
