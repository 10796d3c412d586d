/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/skip.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include <CUnit/CUnit.h>
#include <CUnit/TestRun.h>

enum { MAX_REASONS = 64 };

static char reasons[MAX_REASONS][200];
static unsigned n_skipped;

static void
note(const char *reason)
{
	CU_pTest test = CU_get_current_test();

	printf(" skipped: %s ", reason);
	if (n_skipped < MAX_REASONS)
		snprintf(reasons[n_skipped], sizeof reasons[0], "%.72s: %s", test ? test->pName : "?", reason);
	n_skipped++;
}

void
skip(const char *format, ...)
{
	char reason[120];
	va_list args;

	va_start(args, format);
	vsnprintf(reason, sizeof reason, format, args);
	va_end(args);
	note(reason);
	if (geteuid() == 0)
		CU_FAIL("root has nothing to skip");
}

void
skip_without(const char *program)
{
	char reason[120];

	snprintf(reason, sizeof reason, "no %s", program);
	note(reason);
}

void
skip_print(void)
{
	printf("skipped: %u", n_skipped);
	for (unsigned i = 0; i < n_skipped && i < MAX_REASONS; i++)
		printf("%s%s", i ? "; " : " (", reasons[i]);
	printf("%s\n", n_skipped ? ")" : "");
}
