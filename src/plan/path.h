/* SPDX-License-Identifier: Apache-2.0 */
/* path.h - sequences of collectives: what the searches return.
 *
 * search.c finds the cheapest sequence under a topology; reference.c reproduces the two planners of
 * the reference, step by step. All of them walk states of space.h; none knows ranks. */
#ifndef TSI_PLAN_PATH_H
#define TSI_PLAN_PATH_H

#include "plan/space.h"
#include "plan/topology.h"

enum { TSI_PATH_MAX = 48 };

typedef struct tsi_path_step {
    int32_t kind; /* ts_step_kind */
    uint32_t axes;
    tsi_state to;
    double time_us;
    int64_t bytes; /* received, all ranks */
} tsi_path_step;

typedef struct tsi_path {
    int32_t count;
    int32_t found;   /* 0: the search stopped at `limit`, or at `states` */
    tsi_state first; /* where the first step starts */
    double time_us;  /* of the path; not found: a lower bound on any */
    double bytes;    /* as the search counts them (even blocks) */
    int64_t states;
    tsi_path_step step[TSI_PATH_MAX];
} tsi_path;

/* Costs of edges are multiples of 2^-26 us and of 2^-10 bytes: their sums are exact, so that two
 * orders of the same steps cost the same bits and ties are decided by the second cost. */
#define TSI_TICK_US 0x1p-26
#define TSI_TICK_BYTES 0x1p-10
static inline double tsi_grid_us(double us)
{
    const double shift = 0x1.8p52 * TSI_TICK_US;
    return us + shift - shift;
}
static inline double tsi_grid_bytes(double bytes)
{
    const double shift = 0x1.8p52 * TSI_TICK_BYTES;
    return bytes + shift - shift;
}

typedef struct tsi_search {
    const tsi_space *space;
    const tsi_links *links;
    double limit_us;    /* give up beyond this time; HUGE_VAL: never */
    double limit_bytes; /* give up beyond these bytes; HUGE_VAL: never */
    int64_t state_limit;
    bool bytes_first; /* least bytes, then least time; else the other way round */
    bool merged;      /* may groups of several axes be used? */
} tsi_search;

/* From space->src to space->dst, both without unit axes and with equal partial axes where dst is
 * partial. */
ts_status tsi_search_run(const tsi_search *search, tsi_path *out);

/* The reference's own plans: every axis counts, also those of size 1. */
ts_status tsi_reference_greedy(const tsi_space *space, tsi_path *out);
ts_status tsi_reference_graph(const tsi_space *space, tsi_path *out);

/* Kind of the step that takes one axis from a code to another; -1: there is none. */
int32_t tsi_path_kind_of(int32_t from, int32_t to);
ts_status tsi_path_add(tsi_path *path, int32_t kind, uint32_t axes, tsi_state to);

#endif
