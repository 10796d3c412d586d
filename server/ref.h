/* SPDX-License-Identifier: Apache-2.0 */
/*
 * References, as slabd follows them: 64 bits that a client sends (client/ref.c draws them).
 *
 * Followed as a client does, from the page map and the word, without a lock: what comes out holds at this instant, and whoever changes the
 * word does it by compare-and-swap from exactly what was read.
 */
#ifndef SLAB_SERVER_REF_H
#define SLAB_SERVER_REF_H

#include <stdbool.h>
#include <stdint.h>

struct arena;

/* Where a reference leads. */
struct ref_object {
	uint32_t place;
	uint32_t index; /* of its word */
	uint32_t word;  /* as it was read */
	uint32_t cache; /* id */
	uint32_t flags; /* of the cache */
};

/* false: stale, or no reference at all; nobody holds such an object, or it is being freed.  Of a cache without owner words: always false
 * but for op's cache and flags. */
bool ref_find(const struct arena *arena, uint64_t ref, struct ref_object *op);

/* The reference of the object at place, whose word is w. */
uint64_t ref_make(const struct arena *arena, uint32_t place, uint32_t w);

#endif
