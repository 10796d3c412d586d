/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel's formulas for slab orders and sheaf capacities, in the form they have since v6.7 (orders) and v7.0 (sheaves).
 *
 * Where ours differ: an order is limited so that a slab holds at most LAYOUT_MAX_SLAB_OBJECTS (the kernel's limit is 32,767), and a sheaf
 * holds at most LAYOUT_MAX_SHEAF.
 */
#include "server/geometry.h"

#include <errno.h>
#include <stddef.h>

/* The page map divides by a reciprocal, which is exact below this product (layout.h). */
_Static_assert((LAYOUT_PAGE_BYTES << LAYOUT_MAX_ORDER) * 1ull * LAYOUT_MAX_SLOT_BYTES < 1ull << 32, "object bytes * slab bytes < 2^32");
/* So every object size has an order. */
_Static_assert(LAYOUT_MAX_SLOT_BYTES <= LAYOUT_PAGE_BYTES << LAYOUT_MAX_ORDER, "the largest object fits into the largest slab");

enum {
	SHEAF_HEADER_BYTES = 32, /* of the kernel's slab_sheaf: the capacities are made for it */
	SHEAF_ENTRY_BYTES = 8,
};

static const uint32_t kmalloc_sizes[] = {8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 8192};

_Static_assert(SHEAF_HEADER_BYTES + SHEAF_ENTRY_BYTES * LAYOUT_MAX_SHEAF == 8192, "the largest sheaf fills the largest kmalloc size");

static bool
size_is_valid(uint32_t size)
{
	return size > 0 && size <= LAYOUT_MAX_SLOT_BYTES;
}

static uint32_t
slab_bytes(uint32_t order)
{
	return (uint32_t)LAYOUT_PAGE_BYTES << order;
}

/* The kernel's get_order(): smallest order of at least so many bytes. */
static uint32_t
order_of_bytes(uint64_t bytes)
{
	uint32_t order = 0;

	while (slab_bytes(order) < bytes)
		order++;
	return order;
}

static uint32_t
min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static uint32_t
max_u32(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

uint32_t
geometry_min_objects(uint32_t n_cpus)
{
	uint32_t fls = n_cpus ? 32 - (uint32_t)__builtin_clz(n_cpus) : 0;

	return 4 * (fls + 1);
}

int
geometry_order(uint32_t size, uint32_t min_order, uint32_t max_order, uint32_t min_objects)
{
	uint32_t start, order, fraction;

	if (!size_is_valid(size) || min_order > max_order || max_order > LAYOUT_MAX_ORDER)
		return -EINVAL;

	while (max_order > 0 && slab_bytes(max_order) / size > LAYOUT_MAX_SLAB_OBJECTS)
		max_order--;
	min_order = min_u32(min_order, max_order);

	min_objects = min_u32(max_u32(min_objects, 1), max_u32(slab_bytes(max_order) / size, 1));
	start = max_u32(min_order, order_of_bytes((uint64_t)min_objects * size));

	/* Doubling a slab never wastes a larger part of it, so fewer objects need not be tried. */
	for (fraction = 16; fraction > 1; fraction /= 2)
		for (order = start; order <= max_order; order++)
			if (slab_bytes(order) % size <= slab_bytes(order) / fraction)
				return (int)order;

	return (int)order_of_bytes(size);
}

int
geometry_min_order_for(uint32_t size)
{
	return size_is_valid(size) ? (int)order_of_bytes(size) : -EINVAL;
}

uint32_t
geometry_objects(uint32_t size, uint32_t order)
{
	if (!size_is_valid(size) || order > LAYOUT_MAX_ORDER)
		return 0;
	return min_u32(slab_bytes(order) / size, LAYOUT_MAX_SLAB_OBJECTS);
}

uint32_t
geometry_sheaf_capacity(uint32_t size)
{
	if (size >= LAYOUT_PAGE_BYTES)
		return 4;
	if (size >= 1024)
		return 12;
	if (size >= 256)
		return 26;
	return 60;
}

uint32_t
geometry_round_up(uint32_t capacity)
{
	uint32_t bytes;
	size_t i = 0;

	if (capacity == 0)
		return 0;
	bytes = SHEAF_HEADER_BYTES + SHEAF_ENTRY_BYTES * min_u32(capacity, LAYOUT_MAX_SHEAF);
	while (kmalloc_sizes[i] < bytes)
		i++;
	return (kmalloc_sizes[i] - SHEAF_HEADER_BYTES) / SHEAF_ENTRY_BYTES;
}

uint32_t
geometry_sheaf_request(uint32_t size, uint32_t requested, bool round_up)
{
	uint32_t heuristic = geometry_sheaf_capacity(size);

	requested = min_u32(requested, LAYOUT_MAX_SHEAF);
	if (round_up)
		return geometry_round_up(max_u32(heuristic, requested));
	return max_u32(geometry_round_up(heuristic), requested);
}

uint32_t
geometry_min_partial(uint32_t size, uint32_t min, uint32_t max)
{
	uint32_t ilog2 = size ? 31 - (uint32_t)__builtin_clz(size) : 0;

	return min_u32(max_u32(ilog2 / 2, min), max);
}

uint32_t
geometry_cpu_partial(uint32_t size)
{
	if (size >= LAYOUT_PAGE_BYTES)
		return 6;
	if (size >= 1024)
		return 24;
	if (size >= 256)
		return 52;
	return 120;
}

uint32_t
geometry_cpu_partial_slabs(uint32_t cpu_partial, uint32_t n_slab_objects)
{
	return (2 * cpu_partial + n_slab_objects - 1) / n_slab_objects;
}
