/* SPDX-License-Identifier: Apache-2.0 */
#include "server/profile.h"

#include <stddef.h>
#include <string.h>

#include "server/geometry.h"

enum { TINY_MAX_ORDER = 1, KERNEL_BARN_FULL = 10, KERNEL_BARN_EMPTY = 10, SERVER_MIN_PARTIAL_MAX = 64, SERVER_MAX_SCALE = 8 };

static const uint64_t server_arena_unit = 256ull << 20;
static const uint64_t mib = 1ull << 20;

/*
 * What each number is, and why server's differ from default's.  S1: 224 threads contending for list_lock (slub-reference.md, 4.4): partial lists of up to
 * 64 slabs gave +11 to 13%, order 4 instead of 3 a further +25 to 36% (it is slabs for each lock hold that cost, so larger slabs carry further),
 * larger per-CPU parts a further +12 to 37%; all of it only on large machines, small ones care for footprint, hence the scale.
 *
 *                         default        kernel         tiny     server
 *   sheaf                 formula        formula        none     formula * scale     a refill carries more, list_lock is taken less often
 *   max_order             3              3              1        4                   S1: more objects for each slab that is taken
 *   min_objects           formula        formula        formula  formula * 2         orders rise with CPUs already; this lets mid sizes reach 4
 *   min_partial           formula 5..10  formula 5..10  0        formula * scale, 5..64   S1: fewer slabs given back and carved anew
 *   cpu_partial           0              formula 6..120 0        formula * scale     S1: a client's refills come from what it has aside
 *   barn_full             16 MiB         10 sheaves     0        16 MiB * scale      whole sheaves go between clients without a slab touched
 *   barn_empty           as max_cached  10 sheaves     -        as max_cached        a burst of frees finds sheaves to go into; 64 at least
 *   max_cached            32 MiB         32 MiB         32 MiB   32 MiB * scale      bursts stay within the process
 */
static const struct profile profiles[] = {
	[ARENA_PROFILE_DEFAULT] = {"default", false, false, 1, GEOMETRY_MAX_ORDER, 1, 1, GEOMETRY_MIN_PARTIAL_MIN, GEOMETRY_MIN_PARTIAL_MAX, 0,
		0, 16 * mib, 0, 32 * mib},
	[ARENA_PROFILE_KERNEL] = {"kernel", false, true, 1, GEOMETRY_MAX_ORDER, 1, 1, GEOMETRY_MIN_PARTIAL_MIN, GEOMETRY_MIN_PARTIAL_MAX,
		1, KERNEL_BARN_FULL, 0, KERNEL_BARN_EMPTY, 32 * mib},
	[ARENA_PROFILE_TINY] = {"tiny", true, false, 1, TINY_MAX_ORDER, 1, 1, 0, 0, 0, KERNEL_BARN_FULL, 0, KERNEL_BARN_EMPTY, 32 * mib},
	[ARENA_PROFILE_SERVER] = {"server", false, false, 1, LAYOUT_MAX_ORDER, 2, 1, GEOMETRY_MIN_PARTIAL_MIN, SERVER_MIN_PARTIAL_MAX, 1,
		0, 16 * mib, 0, 32 * mib},
};

enum { N_PROFILES = sizeof profiles / sizeof profiles[0] };

static uint32_t
log2_of(uint64_t n)
{
	return n ? 63 - (uint32_t)__builtin_clzll(n) : 0;
}

struct profile
profile_of(enum arena_profile profile, uint32_t n_cpus, uint64_t limit_bytes)
{
	struct profile p = profiles[profile];
	uint32_t cpus = log2_of(n_cpus), memory = log2_of(limit_bytes / server_arena_unit), scale;

	if (profile != ARENA_PROFILE_SERVER)
		return p;
	scale = 1 + (cpus < memory ? cpus : memory);
	if (scale > SERVER_MAX_SCALE)
		scale = SERVER_MAX_SCALE;
	p.capacity_factor *= scale;
	p.partial_factor *= scale;
	p.cpu_partial_factor *= scale;
	p.barn_bytes *= scale;
	p.max_cached *= scale;
	return p;
}

const char *
profile_name(enum arena_profile profile)
{
	return profiles[profile].name;
}

int
profile_parse(const char *name)
{
	for (int i = 0; i < N_PROFILES; i++)
		if (strcmp(profiles[i].name, name) == 0)
			return i;
	return -1;
}
