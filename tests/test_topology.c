/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes: the machine's own, and invented machines with holes in their numbers and nodes without memory. */
#include <errno.h>
#include <string.h>

#include <CUnit/CUnit.h>

#include "server/topology.h"

CU_pSuite test_topology_suite(void);

/* Kernel nodes 0 (no memory), 2, 3, 7; 1, 4, 5, 6 do not exist.  3 and 7 are near each other, 0 is near 7, the way from 2 to 3 is not known; CPU 5 is missing. */
static bool
four_has_memory(uint32_t os_node)
{
	return os_node == 2 || os_node == 3 || os_node == 7;
}

static int
four_distance(uint32_t from, uint32_t to)
{
	static const int near[8][8] = {
		[0] = {10, 0, 30, 30, 0, 0, 0, 20},
		[2] = {30, 0, 10, 0, 0, 0, 0, 40},
		[3] = {30, 0, 40, 10, 0, 0, 0, 15},
		[7] = {20, 0, 40, 15, 0, 0, 0, 10},
	};

	return near[from][to];
}

static int
four_node_of_cpu(uint32_t cpu)
{
	static const int nodes[] = {0, 0, 2, 3, 7, -1, 7, 7};

	return nodes[cpu];
}

static const struct topology_source four = {
	.n_os_nodes = 8, .n_os_cpus = 8, .has_memory = four_has_memory, .distance = four_distance, .node_of_cpu = four_node_of_cpu};

static void
test_memoryless_nodes_belong_to_the_nearest(void)
{
	static const uint8_t rows[3][3] = {{0, 2, 1}, {1, 2, 0}, {2, 1, 0}};
	static const uint32_t by_cpu[] = {2, 2, 0, 1, 2, 0, 2, 2};
	struct topology topology;
	uint32_t i;

	CU_ASSERT_EQUAL_FATAL(topology_init_from(&topology, &four), 0);
	CU_ASSERT_EQUAL_FATAL(topology.n_nodes, 3);
	CU_ASSERT(topology.os_node[0] == 2 && topology.os_node[1] == 3 && topology.os_node[2] == 7);
	CU_ASSERT_EQUAL(topology_node_of_os_node(&topology, 0), 2);
	CU_ASSERT_EQUAL(topology_node_of_os_node(&topology, 2), 0);
	CU_ASSERT_EQUAL(topology_node_of_os_node(&topology, 3), 1);
	CU_ASSERT_EQUAL(topology_node_of_os_node(&topology, 7), 2);
	CU_ASSERT_EQUAL(topology_node_of_os_node(&topology, 1u << 20), 0);
	for (i = 0; i < 8; i++)
		CU_ASSERT_EQUAL(topology_node_of_cpu(&topology, i), by_cpu[i]);
	CU_ASSERT_EQUAL(topology_node_of_cpu(&topology, 8), 0);
	CU_ASSERT(topology.n_cpus[0] == 1 && topology.n_cpus[1] == 1 && topology.n_cpus[2] == 5);
	for (i = 0; i < 3; i++) {
		CU_ASSERT_EQUAL(memcmp(topology.order[i], rows[i], 3), 0);
		CU_ASSERT_EQUAL(topology_bind_node(&topology, i), (int)topology.os_node[i]);
	}
	topology_deinit(&topology);
}

static bool
all_have_memory(uint32_t os_node)
{
	return os_node < TOPOLOGY_MAX_OS_NODES;
}

static bool
none_has_memory(uint32_t os_node)
{
	return os_node >= TOPOLOGY_MAX_OS_NODES;
}

static int
ring_distance(uint32_t from, uint32_t to)
{
	uint32_t d = from < to ? to - from : from - to;

	return 10 + (int)(d < 64 - d ? d : 64 - d);
}

static int
any_node_of_cpu(uint32_t cpu)
{
	return (int)(cpu % 64);
}

static void
test_limits(void)
{
	struct topology_source ring = {.n_os_nodes = 64,
		.n_os_cpus = 256,
		.has_memory = all_have_memory,
		.distance = ring_distance,
		.node_of_cpu = any_node_of_cpu};
	struct topology topology;
	uint32_t node, i;

	CU_ASSERT_EQUAL_FATAL(topology_init_from(&topology, &ring), 0);
	CU_ASSERT_EQUAL(topology.n_nodes, 64);
	for (node = 0; node < 64; node++) {
		uint64_t seen = 0;

		CU_ASSERT_EQUAL(topology.order[node][0], node);
		for (i = 0; i < 64; i++) {
			seen |= 1ull << topology.order[node][i];
			CU_ASSERT(
				i == 0 || ring_distance(node, topology.order[node][i - 1]) <= ring_distance(node, topology.order[node][i]));
		}
		CU_ASSERT_EQUAL(seen, ~0ull);
		CU_ASSERT_EQUAL(topology.n_cpus[node], 4);
	}
	topology_deinit(&topology);

	ring.n_os_nodes = 65;
	CU_ASSERT_EQUAL(topology_init_from(&topology, &ring), -E2BIG);
	topology_deinit(&topology);
	ring.n_os_nodes = TOPOLOGY_MAX_OS_NODES + 1;
	CU_ASSERT_EQUAL(topology_init_from(&topology, &ring), -E2BIG);
	topology_deinit(&topology);

	ring.n_os_nodes = 2;
	ring.has_memory = none_has_memory;
	CU_ASSERT_EQUAL_FATAL(topology_init_from(&topology, &ring), 0);
	CU_ASSERT_EQUAL(topology.n_nodes, 1);
	CU_ASSERT_EQUAL(topology.os_node[0], 0);
	CU_ASSERT_EQUAL(topology_bind_node(&topology, 0), -1);
	topology_deinit(&topology);
}

static void
test_this_machine(void)
{
	struct topology topology;
	uint32_t n_cpus = 0, node;

	CU_ASSERT_EQUAL_FATAL(topology_init(&topology), 0);
	CU_ASSERT(topology.n_nodes >= 1 && topology.n_nodes <= LAYOUT_MAX_NODES);
	for (node = 0; node < topology.n_nodes; node++) {
		CU_ASSERT_EQUAL(topology.order[node][0], node);
		CU_ASSERT_EQUAL(topology_node_of_os_node(&topology, topology.os_node[node]), node);
		n_cpus += topology.n_cpus[node];
	}
	CU_ASSERT(topology_online_cpus() >= 1);
	CU_ASSERT(n_cpus >= topology_online_cpus());
	topology_deinit(&topology);
}

CU_pSuite
test_topology_suite(void)
{
	CU_pSuite suite = CU_add_suite("topology", NULL, NULL);

	CU_ADD_TEST(suite, test_memoryless_nodes_belong_to_the_nearest);
	CU_ADD_TEST(suite, test_limits);
	CU_ADD_TEST(suite, test_this_machine);
	return suite;
}
