/* SPDX-License-Identifier: Apache-2.0 */
/* cross_entropy_with.c - cross-entropy with weights of classes and smoothed labels, of operators.
 *
 *   term = (1 - s) w[label] (-log p[label]) + s / C sum over c of w[c] (-log p[c])
 *
 * and 0 for ignored labels. A mean divides by the sum of w[label]. Without weights and smoothing it
 * is the fused operator. */
#include <string.h>

#include "op/core/common.h"
#include "tensor/scope.h"

static ts_status check_options(const ts_cross_entropy_options *o, ts_tensor *logits)
{
    ts_shape x = ts_tensor_shape(logits);
    int64_t classes = x.ndim ? x.extent[x.ndim - 1] : 0;
    if (!(o->label_smoothing >= 0 && o->label_smoothing <= 1))
        return TSI_FAIL(TS_ERR_ARG, "cross_entropy: label smoothing %g is not in 0 .. 1",
                        o->label_smoothing);
    if (o->reduction < TS_LOSS_MEAN || o->reduction > TS_LOSS_NONE)
        return TSI_FAIL(TS_ERR_ARG, "cross_entropy: reduction %d has no meaning here",
                        o->reduction);
    ts_shape w = ts_tensor_shape(o->weight);
    char text[96];
    if (o->weight && (w.ndim != 1 || w.extent[0] != classes))
        return TSI_FAIL(TS_ERR_SHAPE, "cross_entropy: weights of shape %s do not fit %lld classes",
                        tsi_shape_text(&w, text, sizeof text), (long long)classes);
    return TS_OK;
}

/* 1 where the label counts, in the dtype of the loss. */
static ts_tensor *counted(ts_tensor *labels, int64_t ignore_index, ts_dtype dtype,
                          ts_tensor **is_class)
{
    ts_tensor *ignored = ts_full_number(ts_number_int(ignore_index), ts_tensor_mesh(labels),
                                        ts_tensor_dtype(labels), TS_SHAPE_SCALAR, NULL);
    *is_class = ts_ne(labels, ignored);
    return ts_cast(*is_class, dtype);
}

/* The weight of each label, 0 where it does not count. */
static ts_tensor *label_weights(const ts_cross_entropy_options *o, ts_tensor *labels,
                                ts_tensor *is_class, ts_tensor *counts)
{
    if (!o->weight) return counts;
    ts_shape shape = ts_tensor_shape(labels), flat = TS_SHAPE(ts_shape_count(&shape));
    ts_tensor *safe = ts_where(is_class, labels, ts_zeros_like(labels));
    ts_tensor *w = ts_index_select(o->weight, 0, ts_reshape(safe, flat));
    return ts_mul(ts_reshape(ts_cast(w, ts_tensor_dtype(counts)), shape), counts);
}

static ts_tensor *weighted(ts_tensor *logits, ts_tensor *labels, const ts_cross_entropy_options *o)
{
    ts_shape x = ts_tensor_shape(logits);
    int64_t last = x.ndim - 1, classes = x.extent[last];
    ts_dtype dtype = ts_tensor_dtype(logits) == TS_DTYPE_F64 ? TS_DTYPE_F64 : TS_DTYPE_F32;
    ts_tensor *is_class = NULL, *counts = counted(labels, o->ignore_index, dtype, &is_class);
    ts_tensor *weights = label_weights(o, labels, is_class, counts);
    ts_tensor *logp = ts_log_softmax(ts_cast(logits, dtype), (int32_t)last);
    double s = o->label_smoothing;
    ts_tensor *terms = ts_mul(ts_scale(ts_pick(logp, labels), s - 1), weights);
    if (s > 0) {
        ts_tensor *all = o->weight ? ts_mul(logp, ts_cast(o->weight, dtype)) : logp;
        ts_tensor *spread = ts_scale(ts_sum(all, &last, 1, 0), -s / (double)classes);
        terms = ts_add(terms, ts_mul(spread, counts));
    }
    if (o->reduction == TS_LOSS_NONE) return terms;
    ts_tensor *sum = ts_sum(terms, NULL, 0, 0);
    return o->reduction == TS_LOSS_SUM ? sum : ts_div(sum, ts_sum(weights, NULL, 0, 0));
}

ts_tensor *(ts_cross_entropy_with)(ts_tensor *logits, ts_tensor *labels,
                                   const ts_cross_entropy_options *options)
{
    ts_cross_entropy_options o = TS_CROSS_ENTROPY_OPTIONS_INIT;
    if (options)
        memcpy(&o, options, options->struct_size < sizeof o ? options->struct_size : sizeof o);
    if (!logits || !labels) return (ts_cross_entropy)(logits, labels);
    if (tsi_rank_enter(logits->rank) != TS_OK || check_options(&o, logits) != TS_OK) return NULL;
    /* The fused operator checks labels; it also is the loss where nothing else is asked. */
    ts_tensor *plain = tsi_cross_entropy_make(logits, labels, o.ignore_index, o.reduction);
    if (!plain || (!o.weight && o.label_smoothing == 0)) return plain;
    ts_tensor_drop(plain);
    ts_scope inner = tsi_scope_inner(logits);
    return ts_scope_leave(inner, weighted(logits, labels, &o));
}
