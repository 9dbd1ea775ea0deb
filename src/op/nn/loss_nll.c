/* SPDX-License-Identifier: Apache-2.0 */
/* loss_nll.c - nll_loss: the negative log-probability of labels.
 *
 * x [.., C] holds log-probabilities, labels [..], and classes may have weights [C]. Labels equal to
 * ignore_index count for nothing; a mean divides by what the others weigh on all ranks, which the
 * algorithm adds up where labels are sharded. A rank that does not hold a label's class, or its
 * weight, contributes 0, so sharded classes give a partial sum. */
#include <math.h>
#include <string.h>

#include "op/core/algorithm.h"
#include "op/core/common.h"
#include "op/nn/attributes.h"
#include "op/nn/cross_entropy.h"

static const char *const reductions[] = { "mean", "sum", "none", NULL };
static const tsi_attribute nll_table[] = {
    TSI_ATTR(tsi_nll_attributes, ignore_index, INT, "ignore_index", "-100"),
    TSI_ATTR_ONE_OF(tsi_nll_attributes, reduction, "reduction", "\"mean\"", reductions),
    { 0 },
};

static ts_status check_weight(const ts_meta *x, const ts_meta *weight)
{
    char text[96];
    int64_t classes = x->shape.extent[x->shape.ndim - 1];
    if (weight->shape.ndim != 1 || weight->shape.extent[0] != classes)
        return TSI_FAIL(TS_ERR_SHAPE, "nll_loss: weights of shape %s do not fit %lld classes",
                        tsi_shape_text(&weight->shape, text, sizeof text), (long long)classes);
    if (tsi_dtype_category((ts_dtype)weight->dtype) != TSI_CATEGORY_REAL)
        return TSI_FAIL(TS_ERR_DTYPE, "nll_loss: weights are reals, not %s",
                        ts_dtype_name((ts_dtype)weight->dtype));
    return TS_OK;
}

static ts_status nll_infer(const tsi_op_call *call)
{
    const tsi_nll_attributes *a = call->attributes;
    const ts_shape *x = &call->in[0].shape, *labels = &call->in[1].shape;
    char one[96], other[96];
    if (!tsi_shape_is_rows(labels, x))
        return TSI_FAIL(TS_ERR_SHAPE, "nll_loss: labels of shape %s do not fit inputs of shape %s",
                        tsi_shape_text(labels, other, sizeof other),
                        tsi_shape_text(x, one, sizeof one));
    if (tsi_dtype_category((ts_dtype)call->in[1].dtype) != TSI_CATEGORY_INT)
        return TSI_FAIL(TS_ERR_DTYPE, "nll_loss: labels are integers, not %s",
                        ts_dtype_name((ts_dtype)call->in[1].dtype));
    if (tsi_dtype_category((ts_dtype)call->in[0].dtype) != TSI_CATEGORY_REAL)
        return TSI_FAIL(TS_ERR_DTYPE, "nll_loss: is defined for reals, not %s",
                        ts_dtype_name((ts_dtype)call->in[0].dtype));
    if (call->input_count == 3) TSI_TRY(check_weight(&call->in[0], &call->in[2]));
    call->out[0] = (ts_meta){ .shape = a->reduction == 2 ? *labels : TS_SHAPE_SCALAR,
                              .dtype = call->in[0].dtype };
    return TS_OK;
}

/* Cut classes: of the log-probabilities, of the weights, of both. A mean divides by all weights, so
 * there each rank needs them. */
static void class_rules(tsi_rules *rules, int32_t last, bool weighed, bool mean)
{
    int32_t out = weighed ? 3 : 2;
    for (int32_t cut = 1; cut <= (weighed && !mean ? 3 : 1); cut++) {
        tsi_role *row = tsi_rules_add(rules);
        if (cut & 1) row[0] = TSI_S(last);
        if (cut & 2) row[2] = TSI_S(0);
        row[out] = TSI_P(TS_REDUCE_SUM);
    }
}

static void nll_rules(const tsi_op_call *call, tsi_rules *rules)
{
    const tsi_nll_attributes *a = call->attributes;
    int32_t last = call->in[1].shape.ndim, out = call->input_count;
    bool weighed = out == 3, mean = a->reduction == 0;
    for (int32_t d = 0; d < last; d++) {
        tsi_role *row = tsi_rules_add_with(rules, mean ? 1 : 0, 0);
        row[0] = row[1] = TSI_S(d);
        row[out] = a->reduction == 2 ? TSI_S(d) : TSI_P(TS_REDUCE_SUM);
    }
    class_rules(rules, last, weighed, mean);
    tsi_traits linear = { .flow = TSI_LINEAR_EACH, .linear_in = weighed && !mean ? 5 : 1 };
    if (a->reduction == 2 && !weighed) linear.mono[0] = TSI_MONO_DOWN;
    tsi_rules_partials(rules, &linear);
}

/* What a rank holds of class `label` along a dim of an operand; 0 where it is another rank's. */
static double held_of(const tsi_operand *x, int32_t dim, int64_t at, int64_t label)
{
    if (x->region) label = tsi_span_list_find(&x->region->dim[dim], label);
    if (label < 0) return 0;
    return tsi_block_real(&x->block, at + label * x->block.stride[dim]);
}

static ts_status nll_reference(const tsi_kernel_io *io)
{
    const tsi_nll_attributes *a = io->attributes;
    const tsi_operand *x = &io->in[0], *weight = io->input_count == 3 ? &io->in[2] : NULL;
    const tsi_block *labels = &io->in[1].block, *out = &io->out[0].block;
    static const int64_t still[TS_NDIM_MAX];
    int32_t last = x->block.ndim - 1;
    int64_t classes = x->global->shape.extent[last];
    tsi_loop loop =
        TSI_LOOP(labels, x->block.stride, labels->stride, a->reduction == 2 ? out->stride : still);
    double total = 0, weighed = 0;
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        int64_t label = tsi_block_int(labels, loop.at[1]);
        bool counts = label != a->ignore_index;
        if (counts && (label < 0 || label >= classes))
            return TSI_FAIL(TS_ERR_ARG, "nll_loss: label %lld is out of range for %lld classes",
                            (long long)label, (long long)classes);
        double weighs = !counts ? 0 : weight ? held_of(weight, 0, 0, label) : 1;
        double term = counts ? -weighs * held_of(x, last, loop.at[0], label) : 0;
        total += term;
        weighed += weighs;
        if (a->reduction == 2) tsi_block_set_real(out, loop.at[2], term);
    }
    if (a->reduction == 0) total /= weighed; /* nothing counts: not a number */
    if (a->reduction != 2) tsi_store_real((ts_dtype)out->dtype, out->data, total);
    return TS_OK;
}

/* ---- sharded labels -------------------------------------------------------------------------- */

static ts_status nll_counted(const tsi_algorithm_io *io)
{
    tsi_nll_attributes sums = *(const tsi_nll_attributes *)io->attributes;
    sums.reduction = 1;
    ts_scope scope = tsi_algorithm_begin(io);
    ts_tensor *sum = tsi_op_make(&tsi_op_nll_loss, io->in, io->input_count, &sums);
    ts_tensor *weight = io->input_count == 3 ? io->in[2] : NULL;
    tsi_label_weights w = tsi_label_weights_of(io->in[1], weight, sums.ignore_index, TS_DTYPE_F64);
    ts_tensor *all = tsi_algorithm_settle(io, ts_sum(w.weights, NULL, 0, 0));
    ts_tensor *y =
        ts_cast(ts_div(ts_cast(sum, TS_DTYPE_F64), all), (ts_dtype)io->call->out[0].dtype);
    return tsi_algorithm_end(io, scope, &y);
}

static int64_t nll_bytes(const tsi_op_call *call, int64_t n)
{
    (void)call;
    return tsi_algorithm_share(2 * 8, n);
}

static const tsi_algorithm nll_algorithms[] = { { "count labels", nll_counted, nll_bytes }, { 0 } };

/* ---- gradient and row ------------------------------------------------------------------------ */

static ts_status nll_grad(const tsi_grad_io *io)
{
    const tsi_nll_attributes *a = io->attributes;
    ts_tensor *labels = io->in[1], *dy = io->out_grad[0];
    ts_tensor *weight = io->input_count == 3 ? io->in[2] : NULL;
    int32_t last = io->in_meta[1].shape.ndim;
    /* The sum of all weights is no number of few bits: f16 ends at 65504 labels. */
    ts_dtype wide = ts_tensor_dtype(dy) == TS_DTYPE_F64 ? TS_DTYPE_F64 : TS_DTYPE_F32;
    tsi_label_weights w = tsi_label_weights_of(labels, weight, a->ignore_index, wide);
    ts_tensor *all = a->reduction == 0 ? tsi_label_divisor(&w) : NULL;
    if (all) dy = ts_div(dy, all);
    if (io->needs & 1) {
        ts_tensor *share = ts_cast(ts_neg(ts_mul(w.weights, dy)), (ts_dtype)io->in_meta[0].dtype);
        ts_tensor *at = ts_mul(labels, ts_cast(w.counts, ts_tensor_dtype(labels)));
        io->in_grad[0] = ts_gather_backward(ts_unsqueeze(share, last), last, ts_unsqueeze(at, last),
                                            io->in_meta[0].shape);
    }
    if (io->needs & 4)
        io->in_grad[2] = tsi_class_weight_grad(io, &w, dy, all, ts_neg(io->in[0]), 0);
    return ts_rank_status(io->rank);
}

static bool sample_nll(tsi_sample *s)
{
    s->count = s->variant < 3 ? 2 : 3;
    s->in[0] = tsi_meta_f64(TS_SHAPE(5, 6));
    s->in[1] = (ts_meta){ .shape = TS_SHAPE(5), .dtype = TS_DTYPE_I64 };
    s->in[2] = tsi_meta_f64(TS_SHAPE(6));
    *(tsi_nll_attributes *)s->attributes =
        (tsi_nll_attributes){ .ignore_index = 2, .reduction = s->variant % 3 };
    return s->variant < 6;
}

const tsi_op_desc tsi_op_nll_loss = {
    .name = "nll_loss",
    .what = "negative log-probability of labels over the last dim; classes may have weights",
    .dtypes = TSI_DTYPES_REAL,
    TSI_OPERANDS(2, 3, 1),
    .saves = 7,
    TSI_ATTRIBUTES(nll_table, tsi_nll_attributes),
    .infer = nll_infer,
    .rules = nll_rules,
    .reference = nll_reference,
    .algorithm = nll_algorithms,
    .grad = nll_grad,
    .sample = sample_nll,
};

static ts_tensor *nll_make(ts_tensor *const *in, int32_t count, const tsi_nll_attributes *a)
{
    bool known = a->reduction >= TS_LOSS_MEAN && a->reduction <= TS_LOSS_NONE;
    if (known || !in[0]) return tsi_op_make(&tsi_op_nll_loss, in, count, a);
    if (tsi_rank_enter(in[0]->rank) == TS_OK)
        TSI_FAIL(TS_ERR_ARG, "nll_loss: reduction %d has no meaning here", (int)a->reduction);
    return NULL;
}

ts_tensor *(ts_nll_loss)(ts_tensor *x, ts_tensor *labels, const ts_loss_options *options)
{
    ts_tensor *in[] = { x, labels };
    tsi_nll_attributes a = { .ignore_index = -100 };
    if (options) a.reduction = options->reduction;
    return nll_make(in, 2, &a);
}

ts_tensor *(ts_nll_loss_with)(ts_tensor *x, ts_tensor *labels,
                              const ts_cross_entropy_options *options)
{
    ts_cross_entropy_options o = TS_CROSS_ENTROPY_OPTIONS_INIT;
    if (options)
        memcpy(&o, options, options->struct_size < sizeof o ? options->struct_size : sizeof o);
    ts_tensor *in[] = { x, labels, o.weight };
    tsi_nll_attributes a = { .ignore_index = o.ignore_index, .reduction = o.reduction };
    if (o.label_smoothing == 0.0) return nll_make(in, o.weight ? 3 : 2, &a);
    if (x && tsi_rank_enter(x->rank) == TS_OK)
        TSI_FAIL(TS_ERR_ARG, "nll_loss: label smoothing %g is cross_entropy's alone",
                 o.label_smoothing);
    return NULL;
}
