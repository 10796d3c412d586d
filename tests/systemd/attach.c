/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client for tests that are shell scripts: attaches to an arena, allocates, writes and frees an object unless it is --read-only, and says
 * "ok", or the library's sentence.  If told --hold, does so again for each line on standard input, until the end of that.
 */
#include <stdio.h>
#include <string.h>

#include "client/slabclient.h"

int
main(int argc, char **argv)
{
	struct slabc_options options = SLABC_OPTIONS_INIT;
	struct slabc_cache *k = NULL;
	struct slabc *c = NULL;
	int holds = 0;
	char *p, line[16];

	options.label = "attach";
	options.timeout_ms = 20000;
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--read-only") == 0)
			options.flags = SLABC_RDONLY;
		else if (strcmp(argv[i], "--hold") == 0)
			holds = 1;
		else
			options.arena = argv[i];
	}
	if (slabc_open(&c, &options) < 0)
		goto failed;
	do {
		if (!options.flags) {
			if (slabc_cache_open(c, "attach", 256, NULL, &k) < 0 || !(p = slabc_alloc(k)))
				goto failed;
			memset(p, 1, 256);
			slabc_free(k, p);
			if (slabc_cache_shrink(k) < 0)
				goto failed;
			slabc_cache_close(k);
		}
		puts("ok");
		fflush(stdout);
	} while (holds && fgets(line, sizeof(line), stdin));
	slabc_close(c);
	return 0;
failed:
	puts(slabc_last_error());
	slabc_close(c);
	return 1;
}
