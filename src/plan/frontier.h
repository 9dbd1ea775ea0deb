/* SPDX-License-Identifier: Apache-2.0 */
/* frontier.h - the open and closed nodes of a shortest-path search over placement states.
 *
 * Costs are pairs compared in order. The heap is lazy: a node that is improved is pushed again and
 * its older entries are skipped by their number. Ties go to the entry pushed first, so a search is
 * a pure function of the order in which its edges are made. Functions return false when memory ran
 * out (recorded by the caller). */
#ifndef TSI_PLAN_FRONTIER_H
#define TSI_PLAN_FRONTIER_H

#include <stdbool.h>
#include <stdint.h>

#include "plan/space.h"

typedef struct tsi_node {
    tsi_state state;
    double cost[2];  /* of the best known way here */
    uint32_t parent; /* index of a node; itself for the start */
    uint32_t entry;  /* number of the heap entry that counts */
    uint16_t axes;
    uint8_t kind; /* ts_step_kind of the edge that came here */
    uint8_t closed;
    uint32_t refined; /* the caller's: the entry's key was made exact */
} tsi_node;

typedef struct tsi_heap_entry {
    double key[2];
    uint32_t entry, node;
} tsi_heap_entry;

typedef struct tsi_frontier {
    tsi_node *node;
    uint32_t node_count, node_capacity;
    uint32_t *table; /* node index + 1; 0: free */
    uint32_t table_mask, entry_next;
    tsi_heap_entry *heap;
    uint32_t heap_count, heap_capacity;
} tsi_frontier;

bool tsi_frontier_open(tsi_frontier *frontier);
void tsi_frontier_close(tsi_frontier *frontier);
/* A way to `state` of cost (c0, c1), with `h` the least that is still to come. */
bool tsi_frontier_relax(tsi_frontier *frontier, tsi_state state, uint32_t parent, int32_t kind,
                        uint32_t axes, const double cost[2], const double h[2]);
/* Closes and gives the best open node, and its key; -1: none is left. */
int64_t tsi_frontier_pop(tsi_frontier *frontier, double key[2]);
/* Opens a node just closed again, with a larger key. */
bool tsi_frontier_raise(tsi_frontier *frontier, uint32_t node, const double key[2]);

#endif
