/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Profiles: the numbers from which a cache's knobs come when its opener asks for none (design.md, section 6).
 *
 * The profile `server` grows with the machine: by a scale of 1 + the smaller of log2(CPUs) and log2(arena / 256 MiB), at most 8.  Both must
 * grow: many CPUs with little memory cannot afford idle objects, and few CPUs do not contend.
 */
#ifndef SLAB_SERVER_PROFILE_H
#define SLAB_SERVER_PROFILE_H

#include <stdbool.h>
#include <stdint.h>

enum arena_profile { ARENA_PROFILE_DEFAULT, ARENA_PROFILE_KERNEL, ARENA_PROFILE_TINY, ARENA_PROFILE_SERVER };

enum { PROFILE_MIN_EMPTY = 64 };

struct profile {
	const char *name;
	bool is_sheafless;
	bool is_kernel_capacity; /* a sheaf_capacity below the formula's is raised to it */
	/* Knobs, already scaled. */
	uint32_t capacity_factor; /* of the formula's sheaf */
	uint32_t max_order;
	uint32_t objects_factor; /* of the formula's min_objects */
	uint32_t partial_factor; /* of the formula's min_partial, before the next two limit it */
	uint32_t min_partial_min;
	uint32_t min_partial_max;
	uint32_t cpu_partial_factor; /* of the formula's cpu_partial; 0: no client has a stash */
	uint32_t barn_full; /* sheaves; 0: as many as barn_bytes hold */
	uint64_t barn_bytes;
	uint32_t barn_empty; /* sheaves; 0: as many as a client may keep with objects, and PROFILE_MIN_EMPTY at least */
	uint64_t max_cached;
};

/* For a machine of n_cpus and an arena of limit_bytes. */
struct profile profile_of(enum arena_profile profile, uint32_t n_cpus, uint64_t limit_bytes);

#define PROFILE_ALLOWED "default, kernel, tiny or server"

const char *profile_name(enum arena_profile profile);
/* -1: no such profile. */
int profile_parse(const char *name);

#endif
