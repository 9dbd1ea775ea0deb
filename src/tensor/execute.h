/* SPDX-License-Identifier: Apache-2.0 */
/* execute.h - running a plan on real blocks. */
#ifndef TSI_TENSOR_EXECUTE_H
#define TSI_TENSOR_EXECUTE_H

#include "tensor/move.h"
#include "tensor/program.h"

typedef struct tsi_execution {
    ts_rank *rank;
    ts_plan *plan;
    tsi_array *from;  /* this rank's source block (an empty one outside the source mesh) */
    tsi_array *to;    /* this rank's target block, not yet filled */
    const char *name; /* for events */
    ts_work **work;   /* not NULL: the last exchange may stay in flight */
} tsi_execution;

/* [coll] over both meshes of the plan. Blocks in flight (staging included) are added to
 * hold[0..*hold_count) with a reference each, to be released when the work is complete. */
ts_status tsi_execute(const tsi_execution *execution, tsi_array **hold, int32_t *hold_count);

#endif
