/* SPDX-License-Identifier: Apache-2.0 */
/* cross_entropy.h - what weights of classes and smoothed labels add to cross_entropy (and weights
 * to nll_loss, whose costs are given), of operators:
 *
 *   term = (1 - s) w[label] (-log p[label]) + s / C sum over c of w[c] (-log p[c])
 *
 * and 0 for ignored labels. A mean divides by the sum of w[label]. */
#ifndef TSI_OP_CROSS_ENTROPY_H
#define TSI_OP_CROSS_ENTROPY_H

#include "op/op.h"

typedef struct tsi_label_weights {
    ts_tensor *counts;  /* 1 where the label counts, else 0 */
    ts_tensor *weights; /* the weight of its class, else 0; without weights the counts */
} tsi_label_weights;

/* `weight` NULL: all classes weigh 1. */
tsi_label_weights tsi_label_weights_of(ts_tensor *labels, ts_tensor *weight, int64_t ignore_index,
                                       ts_dtype dtype);
/* What the gradient of a mean is divided by: what all labels weigh, and 1 where none of them
 * counts, so that there is no gradient, while the loss is no number. */
ts_tensor *tsi_label_divisor(const tsi_label_weights *w);
/* The second part of the terms; partial where classes are sharded. */
ts_tensor *tsi_label_spread(ts_tensor *x, ts_tensor *lse, ts_tensor *weight, ts_tensor *counts,
                            double smoothing);
/* What it adds to the gradient of x; dy is divided by what all labels weigh where that is asked. */
ts_tensor *tsi_label_spread_grad(const tsi_grad_io *io, const tsi_label_weights *w, ts_tensor *dy);
/* -log p of every class, in the dtype of lse. */
ts_tensor *tsi_class_costs(ts_tensor *x, ts_tensor *lse);
/* The gradient of the weights (input 2), of `cost` for each class; `all`: what all labels weigh, of
 * a mean, else NULL. */
ts_tensor *tsi_class_weight_grad(const tsi_grad_io *io, const tsi_label_weights *w, ts_tensor *dy,
                                 ts_tensor *all, ts_tensor *cost, double smoothing);

#endif
