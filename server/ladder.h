/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page ladder: kinds of page behind an arena, best first.  A ladder is a set of them, tried from the largest down.
 *
 * THP and 4K lie in one segment: a transparent huge page is a unit of 4 KiB pages that the kernel made one of, and a unit of which it could
 * not is used as it is.  So THP without 4K is the same as with it.
 */
#ifndef SLAB_SERVER_LADDER_H
#define SLAB_SERVER_LADDER_H

#include <stddef.h>

enum {
	LADDER_DEFAULT = 0, /* stands for LADDER_AUTO */
	LADDER_1G = 1,      /* hugetlb; never taken unless asked for */
	LADDER_HUGE = 2,    /* hugetlb, 2 MiB */
	LADDER_THP = 4,
	LADDER_4K = 8,
	LADDER_AUTO = LADDER_HUGE | LADDER_THP | LADDER_4K,

	LADDER_NAME_BYTES = 16,
};

#define LADDER_ALLOWED "auto, or from the largest down some of 1g,huge,thp,4k"

/* "auto", "huge,4k": the set; -1: no such ladder. */
int ladder_parse(const char *name);
/* name has LADDER_NAME_BYTES. */
void ladder_name(unsigned ladder, char *name);

#endif
