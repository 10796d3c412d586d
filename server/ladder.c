/* SPDX-License-Identifier: Apache-2.0 */
#include "server/ladder.h"

#include <string.h>

static const char *const rungs[] = {"1g", "huge", "thp", "4k"};

enum { N_RUNGS = sizeof rungs / sizeof rungs[0] };

/* Each rung is the next of those that are left, so none comes twice, or before a larger one. */
int
ladder_parse(const char *name)
{
	unsigned ladder = 0, i = 0;

	if (strcmp(name, "auto") == 0)
		return LADDER_DEFAULT;
	for (;;) {
		size_t n;

		name += strspn(name, " ");
		n = strcspn(name, ", ");
		while (i < N_RUNGS && (strlen(rungs[i]) != n || strncmp(rungs[i], name, n) != 0))
			i++;
		if (i == N_RUNGS)
			return -1;
		ladder |= 1u << i++;
		name += n;
		name += strspn(name, " ");
		if (*name == '\0')
			return (int)ladder;
		if (*name++ != ',')
			return -1;
	}
}

void
ladder_name(unsigned ladder, char *name)
{
	*name = '\0';
	if (ladder == LADDER_DEFAULT)
		strcpy(name, "auto");
	for (unsigned i = 0; i < N_RUNGS; i++)
		if (ladder >> i & 1) {
			if (*name)
				strcat(name, ",");
			strcat(name, rungs[i]);
		}
}
