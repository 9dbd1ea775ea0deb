/* SPDX-License-Identifier: Apache-2.0 */
/* step_graph.h - what waits for what in a step: one graph for the proof and for the simulation.
 *
 * Nodes are meetings: an action alone, or all actions that begin and end together (a collective; a
 * send with its receive, unless sends are buffered). An edge says that one action begins after
 * another has ended. A step has no choices, so it ends in a deadlock exactly if the graph has a
 * cycle, whatever the order of events. */
#ifndef TSI_PLAN_STEP_GRAPH_H
#define TSI_PLAN_STEP_GRAPH_H

#include "plan/step.h"

typedef enum tsi_edge_why {
    TSI_EDGE_QUEUE,   /* before it on the same queue */
    TSI_EDGE_ISSUE,   /* above it on main */
    TSI_EDGE_CHANNEL, /* before it on the same channel */
    TSI_EDGE_WAIT,    /* what a wait waits for */
    TSI_EDGE_MESSAGE  /* the buffered send of a receive */
} tsi_edge_why;

typedef struct tsi_step_edge {
    int32_t from, to; /* numbers of actions */
    int32_t why;      /* tsi_edge_why */
} tsi_step_edge;

typedef struct tsi_step_graph {
    const tsi_step *step;
    tsi_findings *found; /* where sentences go; NULL: the first is an error */
    bool broken;         /* something does not pair up */
    int32_t count;       /* of actions; number = first[rank] + index */
    int32_t *first;      /* [ranks + 1] */
    int32_t *meet;       /* by number: the action that stands for its meeting */
    tsi_step_edge *edge;
    int64_t edge_count, edge_capacity;
    int64_t *edge_first; /* by number n: edges into meeting n are edge_first[n] .. [n + 1] */
    int32_t *order;      /* meetings, each after all it waits for */
    int32_t order_count;
    tsi_arena memory;
} tsi_step_graph;

/* Fails with a sentence where actions do not pair up or the graph has a cycle; with `found`, these
 * go there, and the graph is broken. The caller releases the graph, whatever was returned. */
ts_status tsi_step_graph_make(const tsi_step *step, bool buffered, tsi_findings *found,
                              tsi_step_graph *out);
void tsi_step_graph_release(tsi_step_graph *graph);
int64_t tsi_step_graph_rank(const tsi_step_graph *graph, int32_t number);
void tsi_step_graph_cite(const tsi_step_graph *graph, int32_t number, tsi_text *text);

/* ---- parts (step_pairs.c, step_graph.c) ------------------------------------------------------ */
ts_status tsi_step_graph_pairs(tsi_step_graph *graph, bool buffered);
ts_status tsi_step_graph_edge(tsi_step_graph *graph, int32_t from, int32_t to, tsi_edge_why why);
/* Adds the sentence to what was found; without that, TS_ERR_ARG with what it says. Releases it. */
ts_status tsi_step_refuse(tsi_findings *found, tsi_finding_kind kind, tsi_text *sentence);

#endif
