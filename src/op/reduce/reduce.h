/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.h - what operators over some dims of one input share: attributes, loops over the reduced
 * dims. */
#ifndef TSI_OP_REDUCE_H
#define TSI_OP_REDUCE_H

#include "op/core/common.h"

typedef struct tsi_reduce_attributes {
    tsi_dims dims; /* empty: all */
    int32_t keepdim, correction;
    double p; /* vector_norm */
} tsi_reduce_attributes;

extern const tsi_attribute tsi_reduce_table[]; /* dims, keepdim */

ts_status tsi_reduce_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t input_count,
                               void *attributes);
/* The result's shape; its dtype is the input's. */
ts_status tsi_reduce_infer(const tsi_op_call *call);
/* Kept dims stay cut; where a reduced dim is cut, algorithm 1 combines what the ranks found. */
void tsi_reduce_rules_steps(const tsi_op_call *call, tsi_rules *rules);
uint32_t tsi_reduce_mask(const void *attributes);

/* Visits every element of the result and, inside, every element that is reduced into it. */
typedef struct tsi_reduce_loops {
    tsi_loop outer, inner; /* operand 0: input, operand 1: result (outer only) */
    int64_t stride[3][TS_NDIM_MAX];
} tsi_reduce_loops;
void tsi_reduce_loops_make(const tsi_block *in, const tsi_block *out, uint32_t mask, bool keepdim,
                           tsi_reduce_loops *loops);

bool tsi_sample_reduce(tsi_sample *s);
/* A gradient of the reduced shape as one that broadcasts against the input: reduced dims are 1
 * again. */
ts_tensor *tsi_grad_unreduce(ts_tensor *grad, const ts_meta *in, const void *attributes);

typedef struct tsi_stat_attributes {
    tsi_reduce_attributes over; /* first: the reductions' helpers read it */
    double correction;          /* the squares are divided by count - correction */
} tsi_stat_attributes;
/* count - correction, of the whole tensor, never below 0. */
double tsi_stat_divisor(const ts_meta *in, const tsi_stat_attributes *a);

typedef struct tsi_histc_attributes {
    int64_t bins;
    double min, max;
} tsi_histc_attributes;

#endif
