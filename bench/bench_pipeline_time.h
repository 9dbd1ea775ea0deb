/* SPDX-License-Identifier: Apache-2.0 */
/* bench_pipeline_time.h - how long the lists of a pipeline's ranks take with given times of their
 * actions, messages included. */
#ifndef BENCH_PIPELINE_TIME_H
#define BENCH_PIPELINE_TIME_H

#include "tessera/schedule.h"

typedef struct bench_list { /* of one rank: what it executes */
    ts_cell *cell;
    int64_t count;
} bench_list;

typedef double (*bench_cost_fn)(const void *context, const ts_cell *cell);

/* Every rank runs its list in order, an action takes its cost, and a forward or gradient begins
 * when the sends of what it received have ended. The time until the last one ends; -1: no memory,
 * or the lists wait for each other. */
double bench_lists_time(const bench_list *list, int64_t ranks, bench_cost_fn cost,
                        const void *context);

#endif
