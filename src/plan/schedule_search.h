/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_search.h - the parts of a search for a schedule.
 *
 * Micro-batches are alike, so some best order takes them in order in every stage: the k-th forward
 * of a stage is that of micro-batch k, and so are its gradients. A state of the search is then how
 * many of each kind every stage has done, and when what is on its way arrives. */
#ifndef TSI_PLAN_SCHEDULE_SEARCH_H
#define TSI_PLAN_SCHEDULE_SEARCH_H

#include "plan/schedule.h"

typedef struct tsi_problem {
    int32_t P, G, M;
    int32_t *rank_of;    /* [stage] */
    int32_t *way;        /* [2 * stage]: the channel its outputs and gradients take; -1: none */
    ts_stage_cost *cost; /* [stage] */
    double *work;        /* [rank]: all of it */
    double *before;      /* [stage]: a forward cannot begin earlier */
    double *after;       /* [stage]: from the end of an input gradient to the end of the step */
    double memory_max;   /* 0: no cap */
    double bound;        /* no order on these ranks is shorter */
    tsi_arena memory;
} tsi_problem;

ts_status tsi_problem_make(const ts_schedule *placed, const ts_schedule_costs *costs,
                           double memory_max, tsi_problem *out);
void tsi_problem_release(tsi_problem *problem);

/* ---- list scheduling (schedule_greedy.c) ----------------------------------------------------- */
/* What a rank prefers when it is free. */
typedef struct tsi_policy {
    double *cap;     /* [rank]: it keeps at most so much */
    double patience; /* waits instead of a weight gradient for what comes within this share of it */
    bool deeper_first;  /* of forwards on several stages; else the earlier stage */
    bool forward_first; /* a forward before an input gradient, while the cap allows */
} tsi_policy;

typedef struct tsi_greedy tsi_greedy; /* memory of a run, used again and again */
ts_status tsi_greedy_open(const tsi_problem *problem, tsi_greedy **out);
void tsi_greedy_close(tsi_greedy *greedy); /* accepts NULL */
/* The makespan; < 0: the caps leave no way on, or it would be at least `most`. */
double tsi_greedy_run(tsi_greedy *greedy, const tsi_policy *policy, double most);
/* What the last run did. */
ts_status tsi_greedy_schedule(const tsi_greedy *greedy, ts_schedule **out);

/* ---- exactly (schedule_exact.c) -------------------------------------------------------------- */
/* A shortest schedule where one is shorter than `most`; *out NULL: none is, or there are too many
 * states to tell. */
ts_status tsi_schedule_exact(const tsi_problem *problem, double most, ts_schedule **out);

#endif
