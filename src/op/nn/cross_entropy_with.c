/* SPDX-License-Identifier: Apache-2.0 */
/* cross_entropy_with.c - weights of classes and smoothed labels; see cross_entropy.h. */
#include "op/nn/cross_entropy.h"

#include <math.h>

#include "op/core/common.h"
#include "op/nn/attributes.h"

/* The labels' dtype, or i64 if it cannot hold the number, which would wrap to that of a class. */
static ts_dtype dtype_of_ignored(ts_dtype labels, int64_t ignore_index)
{
    int64_t held = 0;
    tsi_store_int(labels, &held, ignore_index);
    return tsi_load_int(labels, &held) == ignore_index ? labels : TS_DTYPE_I64;
}

tsi_label_weights tsi_label_weights_of(ts_tensor *labels, ts_tensor *weight, int64_t ignore_index,
                                       ts_dtype dtype)
{
    ts_tensor *ignored = ts_full_number(ts_number_int(ignore_index), ts_tensor_mesh(labels),
                                        dtype_of_ignored(ts_tensor_dtype(labels), ignore_index),
                                        TS_SHAPE_SCALAR, NULL);
    ts_tensor *is_class = ts_ne(labels, ignored), *counts = ts_cast(is_class, dtype);
    if (!weight) return (tsi_label_weights){ counts, counts };
    ts_shape shape = ts_tensor_shape(labels), flat = TS_SHAPE(ts_shape_count(&shape));
    ts_tensor *safe = ts_where(is_class, labels, ts_zeros_like(labels));
    ts_tensor *w = ts_index_select(weight, 0, ts_reshape(safe, flat));
    return (tsi_label_weights){ counts, ts_mul(ts_reshape(ts_cast(w, dtype), shape), counts) };
}

ts_tensor *tsi_label_divisor(const tsi_label_weights *w)
{
    ts_tensor *all = ts_sum(w->weights, NULL, 0, 0);
    if (w->weights == w->counts) return ts_clamp(all, 1.0, (double)NAN);
    return ts_add(all, ts_eq_scalar(ts_sum(w->counts, NULL, 0, 0), 0.0)); /* weights may be 0 */
}

ts_tensor *tsi_class_costs(ts_tensor *x, ts_tensor *lse)
{
    return ts_sub(ts_unsqueeze(lse, ts_tensor_shape(lse).ndim), ts_cast(x, ts_tensor_dtype(lse)));
}

static double share_of(ts_tensor *x, double smoothing)
{
    ts_shape shape = ts_tensor_shape(x);
    return shape.ndim ? smoothing / (double)shape.extent[shape.ndim - 1] : 0;
}

ts_tensor *tsi_label_spread(ts_tensor *x, ts_tensor *lse, ts_tensor *weight, ts_tensor *counts,
                            double smoothing)
{
    int64_t last = ts_tensor_shape(lse).ndim;
    ts_tensor *all = tsi_class_costs(x, lse);
    if (weight) all = ts_mul(all, ts_cast(weight, ts_tensor_dtype(lse)));
    return ts_mul(ts_scale(ts_sum(all, &last, 1, 0), share_of(x, smoothing)), counts);
}

/* dy s / C (p[c] sum of w - w[c]) */
ts_tensor *tsi_label_spread_grad(const tsi_grad_io *io, const tsi_label_weights *w, ts_tensor *dy)
{
    const tsi_cross_entropy_attributes *a = io->attributes;
    ts_tensor *x = io->in[0], *lse = io->out[1];
    ts_shape shape = ts_tensor_shape(x);
    ts_tensor *p = ts_exp(ts_neg(tsi_class_costs(x, lse))), *slope = NULL;
    if (io->input_count == 3) {
        ts_tensor *weight = ts_cast(io->in[2], ts_tensor_dtype(lse));
        slope = ts_sub(ts_mul(p, ts_sum(weight, NULL, 0, 0)), weight);
    } else {
        slope = ts_add_scalar(ts_scale(p, (double)shape.extent[shape.ndim - 1]), -1);
    }
    ts_tensor *scale = ts_scale(ts_mul(w->counts, dy), share_of(x, a->label_smoothing));
    return ts_cast(ts_mul(slope, ts_unsqueeze(scale, shape.ndim - 1)), ts_tensor_dtype(x));
}

/* The sum over all labels of dy { (1 - s) cost at the label, s / C cost[c] at each class }; of a
 * mean also what its divisor adds, -dy loss at the label. Without smoothing the second part is left
 * out, not multiplied by 0: the cost of a class that cannot be is infinite. */
ts_tensor *tsi_class_weight_grad(const tsi_grad_io *io, const tsi_label_weights *w, ts_tensor *dy,
                                 ts_tensor *all, ts_tensor *cost, double smoothing)
{
    ts_tensor *labels = io->in[1], *scale = ts_mul(w->counts, dy);
    int64_t last = io->in_meta[1].shape.ndim;
    ts_tensor *own = ts_scale(ts_pick(cost, labels), 1 - smoothing);
    ts_tensor *every = smoothing > 0 ? ts_scale(cost, share_of(cost, smoothing)) : NULL;
    ts_tensor *at_label = own;
    if (all) { /* the loss: what the weights make of both parts, divided */
        ts_tensor *weight = ts_cast(io->in[2], ts_tensor_dtype(cost));
        ts_tensor *terms = ts_mul(own, w->weights);
        if (every)
            terms = ts_add(terms, ts_mul(ts_sum(ts_mul(every, weight), &last, 1, 0), w->counts));
        at_label = ts_sub(own, ts_div(ts_sum(terms, NULL, 0, 0), all));
    }
    const int64_t classes = io->in_meta[0].shape.extent[last];
    ts_tensor *in[] = { ts_mul(scale, at_label), labels };
    ts_tensor *each = tsi_op_make(&tsi_op_pick_backward, in, 2, &classes);
    if (every) each = ts_add(each, ts_mul(every, ts_unsqueeze(scale, (int32_t)last)));
    return tsi_grad_unbroadcast(each, &io->in_meta[2]);
}
