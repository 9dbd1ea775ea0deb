/* SPDX-License-Identifier: Apache-2.0 */
/* dropout.h - what dropout's kernels read. */
#ifndef TSI_OP_POINTWISE_DROPOUT_H
#define TSI_OP_POINTWISE_DROPOUT_H

typedef struct tsi_dropout_attributes {
    double p;
} tsi_dropout_attributes;

/* What is kept is multiplied by it. */
static inline double tsi_dropout_scale(double p)
{
    return p < 1.0 ? 1.0 / (1.0 - p) : 0.0;
}

#endif
