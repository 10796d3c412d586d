/* SPDX-License-Identifier: Apache-2.0 */
/*
 * So many pairs of allocation, write and free, for check-instructions.sh to count the instructions of (callgrind), and check-request.sh the system
 * calls too.  Built with -include slabclient-inline.h too.
 *
 * usage: instructions words | wordless | single | many PAIRS
 *
 *   single  a cache without sheaves: an allocation is a request, REFILL, and a free is one, FLUSH
 *   many    a pair is a sheaf of 896 objects that comes and goes: one request
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/slabclient.h"

enum { MANY = 896 };

static int
sheaves(struct slabc_cache *k, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		struct slabc_sheaf *s = slabc_prefill(k, MANY);

		if (!s)
			return -1;
		slabc_return(k, s);
	}
	return 0;
}

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
	struct slabc_options so = SLABC_OPTIONS_INIT;
	struct slabc_cache *k;
	struct slabc *c;

	if (argc != 3) {
		fprintf(stderr, "usage: instructions words | wordless | single | many PAIRS\n");
		return 2;
	}
	o.flags = strcmp(argv[1], "wordless") == 0 ? SLABC_NO_OWNER : 0;
	if (strcmp(argv[1], "single") == 0)
		o.sheaf_capacity = SLABC_SHEAVES_NONE;
	/* Under valgrind slabd is slow too. */
	so.timeout_ms = 20000;
	if (slabc_open(&c, &so) < 0 || slabc_cache_open(c, argv[1], 256, &o, &k) < 0 ||
		(strcmp(argv[1], "many") == 0 ? sheaves : pairs)(k, strtoull(argv[2], NULL, 10)) < 0) {
		fprintf(stderr, "instructions: %s\n", slabc_last_error());
		return 1;
	}
	slabc_cache_close(k);
	slabc_close(c);
	return 0;
}
