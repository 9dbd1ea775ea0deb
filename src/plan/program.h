/* SPDX-License-Identifier: Apache-2.0 */
/* program.h - the body of the public value (tessera/program.h): a step (plan/step.h). */
#ifndef TSI_PLAN_PROGRAM_H
#define TSI_PLAN_PROGRAM_H

#include "plan/collective_cost.h"
#include "plan/step.h"
#include "tessera/program.h"

struct ts_program {
    tsi_step *step; /* owned */
};

/* On failure the step goes. */
ts_status tsi_program_make(tsi_step *step /* takes */, ts_program **out);

enum { TSI_NCCL_NODE = 8 };       /* ranks of a node, as TS_COSTS_* say */
typedef struct tsi_program_cost { /* what a simulation needs, from public options */
    tsi_step_cost cost;
    tsi_links links;
    double moving;
    tsi_nvidia machine; /* whose collectives they are, if not those of the links */
} tsi_program_cost;
/* cost points into *out: it is not moved afterwards. */
ts_status tsi_program_cost_of(const ts_program_costs *costs, int64_t ranks, tsi_program_cost *out);
/* moving: as ts_program_costs has it. */
void tsi_program_times_of(const tsi_step *step, const tsi_step_times *times, double moving,
                          ts_program_times *out);

#endif
