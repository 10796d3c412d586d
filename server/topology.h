/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine's NUMA nodes as slabd sees them.
 *
 * A node is an index below n_nodes and stands for a kernel node with memory that this process may use, in the order of the kernel's numbers.
 * CPUs and kernel nodes without memory belong to the nearest node that has some.  A machine without NUMA is one node, the kernel's 0.
 * Read once: memory that comes or goes later is not seen.
 */
#ifndef SLAB_SERVER_TOPOLOGY_H
#define SLAB_SERVER_TOPOLOGY_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/layout.h"

enum { TOPOLOGY_MAX_OS_NODES = 1024 };

/* Where the facts come from: libnuma, or a test's invention. */
struct topology_source {
	/* Kernel node numbers, and CPU numbers, are below these. */
	uint32_t n_os_nodes;
	uint32_t n_os_cpus;
	bool (*has_memory)(uint32_t os_node);
	/* Larger is farther; 0: unknown. */
	int (*distance)(uint32_t os_from, uint32_t os_to);
	/* Kernel node of a CPU; -1: no such CPU. */
	int (*node_of_cpu)(uint32_t cpu);
};

struct topology {
	uint32_t n_nodes;
	/* By node: the kernel's number, and how many CPUs belong to it. */
	uint32_t os_node[LAYOUT_MAX_NODES];
	uint32_t n_cpus[LAYOUT_MAX_NODES];
	/* By node: all nodes from near to far, itself first. */
	uint8_t order[LAYOUT_MAX_NODES][LAYOUT_MAX_NODES];
	/* Node by the kernel's number. */
	uint8_t by_os_node[TOPOLOGY_MAX_OS_NODES];
	/* Node by CPU, for CPUs below n_os_cpus. */
	uint8_t *by_cpu;
	uint32_t n_os_cpus;
};

/* Asks libnuma.  -ENOMEM; -E2BIG: more nodes than LAYOUT_MAX_NODES. */
int topology_init(struct topology *topology);
int topology_init_from(struct topology *topology, const struct topology_source *source);
void topology_deinit(struct topology *topology);

/* Node of a kernel node or CPU; 0 for numbers that the kernel did not have at the start. */
uint32_t topology_node_of_os_node(const struct topology *topology, uint32_t os_node);
uint32_t topology_node_of_cpu(const struct topology *topology, uint32_t cpu);

/* What segment_commit() wants to hear for this node: the kernel's number, or -1 on a machine of one node, where nothing need be bound. */
int topology_bind_node(const struct topology *topology, uint32_t node);

/* At least 1. */
uint32_t topology_online_cpus(void);

#endif
