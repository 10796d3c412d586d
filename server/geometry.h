/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How large slabs and sheaves are: the kernel's formulas (slub.c: calculate_order, calculate_sheaf_capacity; four-KiB pages).
 *
 * Pure arithmetic: nothing here knows the machine or a cache.  A size is what an object takes of its slab, 1..LAYOUT_MAX_SLOT_BYTES.
 */
#ifndef SLAB_SERVER_GEOMETRY_H
#define SLAB_SERVER_GEOMETRY_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/layout.h"

enum {
	GEOMETRY_MAX_ORDER = 3,       /* the kernel's slub_max_order; 1 under SLUB_TINY */
	GEOMETRY_MIN_PARTIAL_MIN = 5, /* the kernel's MIN_PARTIAL and MAX_PARTIAL; both 0 under SLUB_TINY */
	GEOMETRY_MIN_PARTIAL_MAX = 10,
};

/* Objects that a slab should hold at least on a machine of so many CPUs. */
uint32_t geometry_min_objects(uint32_t n_cpus);

/*
 * Order of the slabs of a cache; min_objects 0 counts as 1.  Where no order up to max_order fits, the smallest order that holds one object,
 * even above max_order; lower than min_order only where a slab would hold more than LAYOUT_MAX_SLAB_OBJECTS.
 * -EINVAL: no such object size, min_order > max_order, or max_order > LAYOUT_MAX_ORDER.
 */
int geometry_order(uint32_t size, uint32_t min_order, uint32_t max_order, uint32_t min_objects);

/* Smallest order that holds one object: what a run falls back to when no block of the chosen order is left.  -EINVAL: no such size. */
int geometry_min_order_for(uint32_t size);

/* Objects in a slab of that order, at most LAYOUT_MAX_SLAB_OBJECTS; 0: none fits. */
uint32_t geometry_objects(uint32_t size, uint32_t order);

/* Sheaf capacity by object size, before rounding up: 60, 26, 12 or 4. */
uint32_t geometry_sheaf_capacity(uint32_t size);

/* The capacity that fills the kmalloc size in which a sheaf of `capacity` would lie; at most LAYOUT_MAX_SHEAF; 0 stays 0. */
uint32_t geometry_round_up(uint32_t capacity);

/*
 * Sheaf capacity of a cache that asked for `requested` (0: did not ask).  round_up says whether a request is rounded up like the heuristic:
 * false is the kernel of v7.0, true the kernel with "round up sheaf size to kmalloc size for explicit sheaf_capacity".
 */
uint32_t geometry_sheaf_request(uint32_t size, uint32_t requested, bool round_up);

/* Empty slabs kept on a node's partial list: clamp(ilog2(size) / 2, min, max). */
uint32_t geometry_min_partial(uint32_t size, uint32_t min, uint32_t max);

/* Objects set aside for a CPU, by object size: 120, 52, 24 or 6 (the kernel's cpu_partial, v5.16 to v6.19). */
uint32_t geometry_cpu_partial(uint32_t size);

/* The slabs that so many objects are taken to lie in, each half full. */
uint32_t geometry_cpu_partial_slabs(uint32_t cpu_partial, uint32_t n_slab_objects);

#endif
