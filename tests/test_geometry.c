/* SPDX-License-Identifier: Apache-2.0 */
/* Golden values of the kernel's formulas (the kernel reference, sections 2 to 4.1). */
#include <errno.h>
#include <stddef.h>

#include <CUnit/CUnit.h>

#include "server/geometry.h"

CU_pSuite test_geometry_suite(void);

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

static void
test_min_objects_by_cpus(void)
{
	static const uint32_t golden[][2] = {
		{1, 8}, {2, 12}, {4, 16}, {8, 20}, {16, 24}, {32, 28}, {64, 32}, {112, 32}, {128, 36}, {224, 36}, {256, 40}};
	size_t i;

	for (i = 0; i < N_ELEMS(golden); i++)
		CU_ASSERT_EQUAL(geometry_min_objects(golden[i][0]), golden[i][1]);
}

/* The table of orders and objects for 4, 16 and 224 CPUs, and the orders of SLUB_TINY. */
static void
test_golden_orders(void)
{
	static const uint32_t cpus[] = {4, 16, 224};
	static const struct {
		uint32_t size;
		int order[3];
		uint32_t objects[3];
		int tiny;
	} golden[] = {
		{64, {0, 0, 0}, {64, 64, 64}, 0},
		{128, {0, 0, 1}, {32, 32, 64}, 0},
		{192, {0, 1, 1}, {21, 42, 42}, 0},
		{256, {0, 1, 2}, {16, 32, 64}, 0},
		{512, {1, 2, 3}, {16, 32, 64}, 1},
		{1024, {2, 3, 3}, {16, 32, 32}, 1},
		{2048, {3, 3, 3}, {16, 16, 16}, 1},
		{4096, {3, 3, 3}, {8, 8, 8}, 1},
		{8192, {3, 3, 3}, {4, 4, 4}, 1},
		{640, {2, 2, 3}, {25, 25, 51}, 1},
	};
	size_t i, c;

	for (i = 0; i < N_ELEMS(golden); i++) {
		uint32_t size = golden[i].size;

		for (c = 0; c < N_ELEMS(cpus); c++) {
			int order = geometry_order(size, 0, GEOMETRY_MAX_ORDER, geometry_min_objects(cpus[c]));

			CU_ASSERT_EQUAL(order, golden[i].order[c]);
			CU_ASSERT_EQUAL(geometry_objects(size, (uint32_t)order), golden[i].objects[c]);
		}
		CU_ASSERT_EQUAL(geometry_order(size, 0, 1, geometry_min_objects(4)), golden[i].tiny);
	}
}

/* The kernel's calculate_order() of v6.5, without its part above the maximal order. */
static int
order_of_v6_5(uint32_t size, uint32_t max_order, uint32_t min_objects)
{
	uint32_t objects = min_objects, max_objects = (4096u << max_order) / size, fraction, order;

	for (objects = objects < max_objects ? objects : max_objects; objects > 1; objects--)
		for (fraction = 16; fraction >= 4; fraction /= 2)
			for (order = 0; order <= max_order; order++)
				if (4096u << order >= objects * size && (4096u << order) % size <= (4096u << order) / fraction)
					return (int)order;
	for (order = 0; order <= max_order; order++)
		if (4096u << order >= size)
			return (int)order;
	return -1;
}

/* Of all sizes only 10,928..12,280 changed between v6.5 and the newest kernel: from order 2 to order 3. */
static void
test_orders_that_changed_since_v6_5(void)
{
	static const uint32_t cpus[] = {4, 224};
	uint32_t size;
	size_t c;

	for (c = 0; c < N_ELEMS(cpus); c++) {
		for (size = 8; size <= LAYOUT_MAX_OBJECT_BYTES; size += 8) {
			uint32_t min_objects = geometry_min_objects(cpus[c]);
			int order = geometry_order(size, 0, GEOMETRY_MAX_ORDER, min_objects);
			int old = order_of_v6_5(size, GEOMETRY_MAX_ORDER, min_objects);

			if (size >= 10928 && size <= 12280) {
				CU_ASSERT_EQUAL(order, 3);
				CU_ASSERT_EQUAL(old, 2);
			} else {
				CU_ASSERT_EQUAL(order, old);
			}
		}
	}
}

static void
test_order_limits(void)
{
	uint32_t size, max_order;

	CU_ASSERT_EQUAL(geometry_order(0, 0, 3, 16), -EINVAL);
	CU_ASSERT_EQUAL(geometry_order(LAYOUT_MAX_SLOT_BYTES + 1, 0, 3, 16), -EINVAL);
	CU_ASSERT_EQUAL(geometry_order(64, 2, 1, 16), -EINVAL);
	CU_ASSERT_EQUAL(geometry_order(64, 0, LAYOUT_MAX_ORDER + 1, 16), -EINVAL);
	CU_ASSERT_EQUAL(geometry_order(64, 2, 3, 16), 2);
	CU_ASSERT_EQUAL(geometry_order(64, 0, 3, 0), 0);
	/* A sixteenth is tried on all orders before an eighth. */
	CU_ASSERT_EQUAL(geometry_order(1250, 0, 3, 1), 2);
	CU_ASSERT_EQUAL(geometry_order(1250, 0, 1, 1), 0);
	/* One object is larger than the maximal order. */
	CU_ASSERT_EQUAL(geometry_order(32768, 0, 1, 16), 3);
	/* More objects than a slab may have. */
	CU_ASSERT_EQUAL(geometry_order(8, 4, 4, 16), 3);
	CU_ASSERT_EQUAL(geometry_objects(8, 4), LAYOUT_MAX_SLAB_OBJECTS);
	CU_ASSERT_EQUAL(geometry_objects(8192, 0), 0);
	CU_ASSERT_EQUAL(geometry_objects(64, LAYOUT_MAX_ORDER + 1), 0);
	CU_ASSERT_EQUAL(geometry_objects(0, 0), 0);

	for (max_order = 0; max_order <= LAYOUT_MAX_ORDER; max_order++) {
		for (size = 8; size <= LAYOUT_MAX_SLOT_BYTES; size += 8) {
			int order = geometry_order(size, 0, max_order, 40);

			CU_ASSERT_FATAL(order >= 0 && order <= LAYOUT_MAX_ORDER);
			CU_ASSERT((4096u << order) / size >= 1 && (4096u << order) / size <= LAYOUT_MAX_SLAB_OBJECTS);
			CU_ASSERT((uint64_t)size * (4096u << order) < 1ull << 32);
		}
	}
}

static void
test_fallback_order_holds_one_object(void)
{
	uint32_t size;

	CU_ASSERT_EQUAL(geometry_min_order_for(0), -EINVAL);
	CU_ASSERT_EQUAL(geometry_min_order_for(LAYOUT_MAX_SLOT_BYTES + 1), -EINVAL);
	CU_ASSERT_EQUAL(geometry_min_order_for(4096), 0);
	CU_ASSERT_EQUAL(geometry_min_order_for(4104), 1);
	for (size = 1; size <= LAYOUT_MAX_SLOT_BYTES; size++) {
		uint32_t order = (uint32_t)geometry_min_order_for(size);

		CU_ASSERT(4096u << order >= size && (order == 0 || 4096u << (order - 1) < size));
	}
}

static void
test_sheaf_heuristic(void)
{
	static const struct {
		uint32_t size, heuristic, rounded;
	} golden[] = {
		{8, 60, 60},
		{255, 60, 60},
		{256, 26, 28},
		{1023, 26, 28},
		{1024, 12, 12},
		{4095, 12, 12},
		{4096, 4, 4},
		{32768, 4, 4},
	};
	size_t i;

	for (i = 0; i < N_ELEMS(golden); i++) {
		CU_ASSERT_EQUAL(geometry_sheaf_capacity(golden[i].size), golden[i].heuristic);
		CU_ASSERT_EQUAL(geometry_round_up(golden[i].heuristic), golden[i].rounded);
		CU_ASSERT_EQUAL(geometry_sheaf_request(golden[i].size, 0, false), golden[i].rounded);
		CU_ASSERT_EQUAL(geometry_sheaf_request(golden[i].size, 0, true), golden[i].rounded);
	}
}

static void
test_round_up_map(void)
{
	static const uint32_t steps[] = {4, 8, 12, 20, 28, 60, 124, 252, 508, 1020};
	uint32_t capacity;
	size_t i = 0;

	CU_ASSERT_EQUAL(geometry_round_up(0), 0);
	for (capacity = 1; capacity <= LAYOUT_MAX_SHEAF; capacity++) {
		if (capacity > steps[i])
			i++;
		CU_ASSERT_EQUAL(geometry_round_up(capacity), steps[i]);
	}
	CU_ASSERT_EQUAL(i, N_ELEMS(steps) - 1);
	CU_ASSERT_EQUAL(geometry_round_up(LAYOUT_MAX_SHEAF + 1), LAYOUT_MAX_SHEAF);
	CU_ASSERT_EQUAL(geometry_round_up(UINT32_MAX), LAYOUT_MAX_SHEAF);
}

/* maple_node (256 bytes, asks for 32) has 28 without asking, 32 before the round-up patch and 60 after it. */
static void
test_explicit_request(void)
{
	CU_ASSERT_EQUAL(geometry_sheaf_request(256, 0, false), 28);
	CU_ASSERT_EQUAL(geometry_sheaf_request(256, 32, false), 32);
	CU_ASSERT_EQUAL(geometry_sheaf_request(256, 32, true), 60);
	/* Below the heuristic a request changes nothing. */
	CU_ASSERT_EQUAL(geometry_sheaf_request(256, 10, false), 28);
	CU_ASSERT_EQUAL(geometry_sheaf_request(256, 10, true), 28);
	/* Between the heuristic and its rounding the rounding wins. */
	CU_ASSERT_EQUAL(geometry_sheaf_request(256, 27, false), 28);
	CU_ASSERT_EQUAL(geometry_sheaf_request(64, 5000, false), LAYOUT_MAX_SHEAF);
	CU_ASSERT_EQUAL(geometry_sheaf_request(64, 5000, true), LAYOUT_MAX_SHEAF);
}

static void
test_min_partial(void)
{
	static const uint32_t golden[][2] = {{8, 5}, {64, 5}, {2048, 5}, {4095, 5}, {4096, 6}, {16383, 6}, {16384, 7}, {32768, 7}};
	size_t i;

	for (i = 0; i < N_ELEMS(golden); i++)
		CU_ASSERT_EQUAL(geometry_min_partial(golden[i][0], GEOMETRY_MIN_PARTIAL_MIN, GEOMETRY_MIN_PARTIAL_MAX), golden[i][1]);
	CU_ASSERT_EQUAL(geometry_min_partial(UINT32_MAX, GEOMETRY_MIN_PARTIAL_MIN, GEOMETRY_MIN_PARTIAL_MAX), 10);
	CU_ASSERT_EQUAL(geometry_min_partial(4096, 0, 0), 0);
}

/* Objects set aside for a CPU, by size; the slabs that they are taken to lie in are those that S1 names for kmalloc-512: 2 at order 3, 4 at 2. */
static void
test_cpu_partial(void)
{
	static const uint32_t golden[][2] = {{1, 120}, {64, 120}, {255, 120}, {256, 52}, {512, 52}, {1023, 52}, {1024, 24}, {4095, 24},
		{4096, 6}, {32768, 6}};
	static const uint32_t slabs[][3] = {{52, 64, 2}, {52, 32, 4}, {120, 64, 4}, {24, 4, 12}, {6, 1, 12}, {0, 64, 0}, {1, 4096, 1}};
	size_t i;

	for (i = 0; i < N_ELEMS(golden); i++)
		CU_ASSERT_EQUAL(geometry_cpu_partial(golden[i][0]), golden[i][1]);
	for (i = 0; i < N_ELEMS(slabs); i++)
		CU_ASSERT_EQUAL(geometry_cpu_partial_slabs(slabs[i][0], slabs[i][1]), slabs[i][2]);
}

CU_pSuite
test_geometry_suite(void)
{
	CU_pSuite suite = CU_add_suite("geometry", NULL, NULL);

	CU_ADD_TEST(suite, test_min_objects_by_cpus);
	CU_ADD_TEST(suite, test_golden_orders);
	CU_ADD_TEST(suite, test_orders_that_changed_since_v6_5);
	CU_ADD_TEST(suite, test_order_limits);
	CU_ADD_TEST(suite, test_fallback_order_holds_one_object);
	CU_ADD_TEST(suite, test_sheaf_heuristic);
	CU_ADD_TEST(suite, test_round_up_map);
	CU_ADD_TEST(suite, test_explicit_request);
	CU_ADD_TEST(suite, test_min_partial);
	CU_ADD_TEST(suite, test_cpu_partial);
	return suite;
}
