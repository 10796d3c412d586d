/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What fuzz targets have in common.  A target defines LLVMFuzzerTestOneInput() and nothing else: libFuzzer and AFL++ (afl-clang-fast -fsanitize=fuzzer) bring
 * main(); without them main.c has one that hands it files.
 */
#ifndef SLAB_TESTS_FUZZ_FUZZ_H
#define SLAB_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* What must hold whatever the input is: its failing is a finding. */
#define FUZZ_CHECK(condition)                                                                                                              \
	do {                                                                                                                               \
		if (!(condition)) {                                                                                                        \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                                    \
			abort();                                                                                                           \
		}                                                                                                                          \
	} while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
