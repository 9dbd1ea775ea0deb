/* SPDX-License-Identifier: Apache-2.0 */
/* collective_cost.h - how long the reference's library takes for a collective on NVIDIA machines:
 * the least of its algorithms (ring, tree) and protocols (LL, LL128, Simple), by its own constants.
 *
 *   T = base + (k - x) intra + x inter + N / bandwidth
 *
 * N is the whole tensor: what a gather gives, what a reduction takes. Programs are simulated and
 * reordered by it where they are asked to (ts_program_costs.collectives); plans and everything else
 * have a topology (plan/topology.h). */
#ifndef TSI_PLAN_COLLECTIVE_COST_H
#define TSI_PLAN_COLLECTIVE_COST_H

#include <stdint.h>

typedef enum tsi_nvidia { TSI_V100, TSI_A100, TSI_H100, TSI_B200, TSI_NVIDIA_COUNT } tsi_nvidia;
typedef enum tsi_collective {
    TSI_COLLECTIVE_GATHER,
    TSI_COLLECTIVE_REDUCE,
    TSI_COLLECTIVE_ALL_REDUCE,
    TSI_COLLECTIVE_ALL_TO_ALL,
    TSI_COLLECTIVE_MESSAGE
} tsi_collective;

typedef struct tsi_collective_cost {
    double us;
    const char *algorithm, *protocol; /* "ring", "tree"; "LL", "LL128", "Simple" */
} tsi_collective_cost;

/* Of `ranks` ranks, `per_node` of them on a node. */
tsi_collective_cost tsi_collective_cost_of(tsi_nvidia machine, tsi_collective kind, int64_t ranks,
                                           int64_t per_node, double bytes);
/* The least message that has the share e (0 to 1) of the bandwidth: the floor of a bucket. */
double tsi_collective_floor(tsi_nvidia machine, tsi_collective kind, int64_t ranks,
                            int64_t per_node, double share);

#endif
