/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NUMA nodes: see topology.h.
 *
 * Only here is libnuma asked.  The rules (which nodes count, who belongs to whom, what is near) are in topology_init_from() and work on any
 * source, so that machines with several nodes are tested on one with a single node.
 */
#include "server/topology.h"

#include <errno.h>
#include <numa.h>
#include <stdlib.h>
#include <unistd.h>

static bool
numa_has_memory(uint32_t os_node)
{
	return numa_bitmask_isbitset(numa_all_nodes_ptr, os_node) && numa_node_size64((int)os_node, NULL) > 0;
}

static int
numa_get_distance(uint32_t os_from, uint32_t os_to)
{
	return numa_distance((int)os_from, (int)os_to);
}

static int
numa_get_node_of_cpu(uint32_t cpu)
{
	return numa_node_of_cpu((int)cpu);
}

static bool
single_has_memory(uint32_t os_node)
{
	return os_node == 0;
}

static int
single_distance(uint32_t os_from, uint32_t os_to)
{
	return os_from == os_to ? 10 : 0;
}

static int
single_node_of_cpu(uint32_t cpu)
{
	(void)cpu;
	return 0;
}

/* Distance with the unknown as the farthest. */
static int
distance(const struct topology_source *source, uint32_t os_from, uint32_t os_to)
{
	int d = source->distance(os_from, os_to);

	return d > 0 ? d : INT32_MAX;
}

/* The node nearest to a kernel node; of equals the lowest. */
static uint32_t
nearest(const struct topology *topology, const struct topology_source *source, uint32_t os_node)
{
	uint32_t node, best = 0;

	for (node = 1; node < topology->n_nodes; node++)
		if (distance(source, os_node, topology->os_node[node]) < distance(source, os_node, topology->os_node[best]))
			best = node;
	return best;
}

/* Fills the row of a node: insertion keeps equals in the order of their numbers. */
static void
sort_row(struct topology *topology, const struct topology_source *source, uint32_t from)
{
	uint8_t *row = topology->order[from];
	uint32_t n = 0, node;

	row[n++] = (uint8_t)from;
	for (node = 0; node < topology->n_nodes; node++) {
		uint32_t at = n;
		int d;

		if (node == from)
			continue;
		d = distance(source, topology->os_node[from], topology->os_node[node]);
		while (at > 1 && distance(source, topology->os_node[from], topology->os_node[row[at - 1]]) > d) {
			row[at] = row[at - 1];
			at--;
		}
		row[at] = (uint8_t)node;
		n++;
	}
}

int
topology_init_from(struct topology *topology, const struct topology_source *source)
{
	uint32_t n_os_nodes = source->n_os_nodes, os_node, node, cpu;

	*topology = (struct topology){.n_os_cpus = source->n_os_cpus};
	if (n_os_nodes > TOPOLOGY_MAX_OS_NODES)
		return -E2BIG;
	for (os_node = 0; os_node < n_os_nodes; os_node++) {
		if (!source->has_memory(os_node))
			continue;
		if (topology->n_nodes == LAYOUT_MAX_NODES)
			return -E2BIG;
		topology->os_node[topology->n_nodes++] = os_node;
	}
	if (topology->n_nodes == 0)
		topology->n_nodes = 1; /* nobody says where memory is: the kernel's node 0 */

	for (os_node = 0; os_node < n_os_nodes; os_node++)
		topology->by_os_node[os_node] = (uint8_t)nearest(topology, source, os_node);
	for (node = 0; node < topology->n_nodes; node++) {
		topology->by_os_node[topology->os_node[node]] = (uint8_t)node;
		sort_row(topology, source, node);
	}

	topology->by_cpu = calloc(source->n_os_cpus ? source->n_os_cpus : 1, sizeof(*topology->by_cpu));
	if (!topology->by_cpu)
		return -ENOMEM;
	for (cpu = 0; cpu < source->n_os_cpus; cpu++) {
		int of = source->node_of_cpu(cpu);

		if (of < 0)
			continue;
		topology->by_cpu[cpu] = (uint8_t)topology_node_of_os_node(topology, (uint32_t)of);
		topology->n_cpus[topology->by_cpu[cpu]]++;
	}
	return 0;
}

int
topology_init(struct topology *topology)
{
	struct topology_source source = {
		.n_os_nodes = 1, .has_memory = single_has_memory, .distance = single_distance, .node_of_cpu = single_node_of_cpu};

	if (numa_available() < 0) {
		source.n_os_cpus = topology_online_cpus();
		return topology_init_from(topology, &source);
	}
	source = (struct topology_source){
		.n_os_nodes = (uint32_t)numa_max_node() + 1,
		.n_os_cpus = (uint32_t)numa_num_configured_cpus(),
		.has_memory = numa_has_memory,
		.distance = numa_get_distance,
		.node_of_cpu = numa_get_node_of_cpu,
	};
	return topology_init_from(topology, &source);
}

void
topology_deinit(struct topology *topology)
{
	free(topology->by_cpu);
	topology->by_cpu = NULL;
}

uint32_t
topology_node_of_os_node(const struct topology *topology, uint32_t os_node)
{
	return os_node < TOPOLOGY_MAX_OS_NODES ? topology->by_os_node[os_node] : 0;
}

uint32_t
topology_node_of_cpu(const struct topology *topology, uint32_t cpu)
{
	return cpu < topology->n_os_cpus ? topology->by_cpu[cpu] : 0;
}

int
topology_bind_node(const struct topology *topology, uint32_t node)
{
	return topology->n_nodes == 1 ? -1 : (int)topology->os_node[node];
}

uint32_t
topology_online_cpus(void)
{
	long n = sysconf(_SC_NPROCESSORS_ONLN);

	return n < 1 ? 1 : (uint32_t)n;
}
