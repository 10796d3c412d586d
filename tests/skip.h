/* SPDX-License-Identifier: Apache-2.0 */
/* Tests, or parts of them, that cannot be done on this machine: said at once, counted, and listed at the end of a run. */
#ifndef SLAB_TESTS_SKIP_H
#define SLAB_TESTS_SKIP_H

/* Says why the running test, or a part of it, is not done.  Root can do them all: there the test has failed. */
void skip(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A program that slabd does without is not installed: no failure, for root neither. */
void skip_without(const char *program);

/* "skipped: 2 (test: reason; test: reason)" */
void skip_print(void);

#endif
