/* SPDX-License-Identifier: Apache-2.0 */
/* Monotonic time in ns: for counters, windows and pauses; never for whether somebody is alive (I5). */
#ifndef SLAB_SERVER_CLOCK_H
#define SLAB_SERVER_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t
clock_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
