/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A steady load between two marks that strace sees (check-fastpath.sh): once warm, allocation and free make no system call.
 *
 * usage: steady batch1k | random4k      exit status 0: the load ran; the judge is who traces it
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/slabclient.h"

enum { SLOTS = 4096, BATCH = 1000, STEPS = 2000000 };

static void *held[SLOTS];

static int
batch1k(struct slabc_cache *k, int units)
{
	for (int done = 0; done < units; done += BATCH) {
		for (int i = 0; i < BATCH; i++)
			if (!(held[i] = slabc_alloc(k)))
				return -1;
		for (int i = 0; i < BATCH; i++)
			slabc_free(k, held[i]);
	}
	return 0;
}

static int
random4k(struct slabc_cache *k, int steps)
{
	static uint64_t x = 88172645463325252u;

	for (int i = 0; i < steps; i++) {
		uint64_t j;

		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		j = x % SLOTS;
		if (held[j]) {
			slabc_free(k, held[j]);
			held[j] = NULL;
		} else if (!(held[j] = slabc_alloc(k))) {
			return -1;
		}
	}
	return 0;
}

int
main(int argc, char **argv)
{
	int (*load)(struct slabc_cache *, int);
	struct slabc_cache *k;
	struct slabc *c;

	if (argc != 2 || (strcmp(argv[1], "batch1k") != 0 && strcmp(argv[1], "random4k") != 0)) {
		fprintf(stderr, "usage: steady batch1k | random4k\n");
		return 2;
	}
	load = argv[1][0] == 'b' ? batch1k : random4k;
	if (slabc_open(&c, NULL) < 0 || slabc_cache_open(c, "steady", 256, NULL, &k) < 0 || load(k, STEPS / 2) < 0) {
		fprintf(stderr, "steady: %s\n", slabc_last_error());
		return 1;
	}
	syscall(SYS_getppid);
	if (load(k, STEPS) < 0)
		return 1;
	syscall(SYS_getppid);
	slabc_close(c);
	return 0;
}
