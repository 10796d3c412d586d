/* SPDX-License-Identifier: Apache-2.0 */
/*
 * So many pairs of allocation, write and free, for check-instructions.sh to count the instructions of (callgrind).  Built with
 * -include slabclient-inline.h too.
 *
 * usage: instructions words | wordless PAIRS
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/slabclient.h"

__attribute__((noinline)) static int
pairs(struct slabc_cache *k, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		uint64_t *p = slabc_alloc(k);

		if (!p)
			return -1;
		*p = i;
		slabc_free(k, p);
	}
	return 0;
}

int
main(int argc, char **argv)
{
	struct slabc_cache_options o = SLABC_CACHE_OPTIONS_INIT;
	struct slabc_cache *k;
	struct slabc *c;

	if (argc != 3) {
		fprintf(stderr, "usage: instructions words | wordless PAIRS\n");
		return 2;
	}
	o.flags = strcmp(argv[1], "wordless") == 0 ? SLABC_NO_OWNER : 0;
	if (slabc_open(&c, NULL) < 0 || slabc_cache_open(c, argv[1], 256, &o, &k) < 0 || pairs(k, strtoull(argv[2], NULL, 10)) < 0) {
		fprintf(stderr, "instructions: %s\n", slabc_last_error());
		return 1;
	}
	slabc_cache_close(k);
	slabc_close(c);
	return 0;
}
