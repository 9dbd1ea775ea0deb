/* SPDX-License-Identifier: Apache-2.0 */
/* cross_entropy.c - the negative log-likelihood of labels under the softmax of logits, fused.
 *
 * logits [.., C], labels [..]. Leading dims may stay sharded: a mean divides by the global number
 * of counted labels, so the terms of the ranks add up. Classes may be sharded too (the
 * loss-parallel head): the largest logit and the sum of exponentials are reduced, the logits stay.
 * Labels equal to ignore_index count for nothing. Classes may have weights, and labels be smoothed
 * (cross_entropy_with.c); nothing is fused then but the reference. */
#include <math.h>
#include <string.h>

#include "base/intmath.h"
#include "op/core/algorithm.h"
#include "op/core/common.h"
#include "op/core/kernel.h"
#include "op/nn/attributes.h"
#include "op/nn/cross_entropy.h"

static const char *const reductions[] = { "mean", "sum", "none", NULL };
static const tsi_attribute ce_table[] = {
    TSI_ATTR(tsi_cross_entropy_attributes, ignore_index, INT, "ignore_index", "-100"),
    TSI_ATTR_ONE_OF(tsi_cross_entropy_attributes, reduction, "reduction", "\"mean\"", reductions),
    TSI_ATTR(tsi_cross_entropy_attributes, label_smoothing, REAL, "label_smoothing", "0"),
    { 0 },
};

/* Has the input one number for each row of input 0, and labels that are integers? */
static ts_status check_rows(const tsi_op_call *call, int32_t input)
{
    const ts_shape *x = &call->in[0].shape, *rows = &call->in[input].shape;
    char one[96], other[96];
    if (!tsi_shape_is_rows(rows, x))
        return TSI_FAIL(TS_ERR_SHAPE, "%s: input %d of shape %s does not fit rows of shape %s",
                        call->op->name, (int)input, tsi_shape_text(rows, other, sizeof other),
                        tsi_shape_text(x, one, sizeof one));
    ts_dtype dtype = (ts_dtype)call->in[input].dtype;
    bool whole = tsi_dtype_category(dtype) == TSI_CATEGORY_INT;
    if (input == 1 && !whole)
        return TSI_FAIL(TS_ERR_DTYPE, "%s: labels are integers, not %s", call->op->name,
                        ts_dtype_name(dtype));
    return TS_OK;
}

static ts_status check_weights(const tsi_op_call *call)
{
    double smoothing = ((const tsi_cross_entropy_attributes *)call->attributes)->label_smoothing;
    const ts_shape *x = &call->in[0].shape, *w = &call->in[2].shape;
    if (!(smoothing >= 0 && smoothing <= 1))
        return TSI_FAIL(TS_ERR_ARG, "cross_entropy: label smoothing %g is not in 0 .. 1",
                        smoothing);
    if (call->input_count < 3) return TS_OK;
    char text[96];
    int64_t classes = x->extent[x->ndim - 1];
    if (w->ndim != 1 || w->extent[0] != classes)
        return TSI_FAIL(TS_ERR_SHAPE, "cross_entropy: weights of shape %s do not fit %lld classes",
                        tsi_shape_text(w, text, sizeof text), (long long)classes);
    ts_dtype dtype = (ts_dtype)call->in[2].dtype;
    if (tsi_dtype_category(dtype) != TSI_CATEGORY_REAL)
        return TSI_FAIL(TS_ERR_DTYPE, "cross_entropy: weights are reals, not %s",
                        ts_dtype_name(dtype));
    return TS_OK;
}

/* Outputs: the loss (with mean and sum: as a sum over all labels, a scalar), and log-sum-exp per
 * label. */
static ts_status ce_infer(const tsi_op_call *call)
{
    const tsi_cross_entropy_attributes *a = call->attributes;
    const ts_shape *labels = &call->in[1].shape;
    TSI_TRY(check_rows(call, 1));
    TSI_TRY(check_weights(call));
    int32_t wide = call->in[0].dtype == TS_DTYPE_F64 ? TS_DTYPE_F64 : TS_DTYPE_F32;
    call->out[0] = (ts_meta){ .shape = *labels, .dtype = wide };
    if (a->reduction != 2) call->out[0].shape = TS_SHAPE_SCALAR;
    call->out[1] = (ts_meta){ .shape = *labels, .dtype = wide };
    return TS_OK;
}

static void ce_rules(const tsi_op_call *call, tsi_rules *rules)
{
    const tsi_cross_entropy_attributes *a = call->attributes;
    int32_t last = call->in[1].shape.ndim, loss = call->input_count;
    rules->nests = true; /* sharded classes count labels, too */
    /* A mean over labels needs their global number: it is counted by the algorithm. */
    for (int32_t d = 0; d < last; d++) {
        tsi_role *row = tsi_rules_add_with(rules, a->reduction == 0 ? 1 : 0, 0);
        row[0] = row[1] = row[loss + 1] = TSI_S(d);
        row[loss] = a->reduction == 2 ? TSI_S(d) : TSI_P(TS_REDUCE_SUM);
    }
    for (int k = 0; loss == 3 && a->reduction != 0 && k < 2; k++) { /* linear in the weights */
        tsi_role *row = tsi_rules_add(rules);
        row[2] = row[loss] = TSI_P(k ? TS_REDUCE_AVG : TS_REDUCE_SUM);
    }
    if (call->in[0].shape.extent[last] == 0) return; /* there is no largest of no classes */
    tsi_role *row = tsi_rules_add_with(rules, 2, 0);
    row[0] = TSI_S(last);
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* log-sum-exp of one row, and the logit of the label. */
static double row_lse(const tsi_block *x, int64_t at, int64_t label, double *chosen)
{
    int32_t last = x->ndim - 1;
    double top = -INFINITY, sum = 0;
    for (int64_t c = 0; c < x->extent[last]; c++) {
        double v = tsi_block_real(x, at + c * x->stride[last]);
        if (v > top) top = v;
        if (c == label) *chosen = v;
    }
    for (int64_t c = 0; c < x->extent[last]; c++)
        sum += exp(tsi_block_real(x, at + c * x->stride[last]) - top);
    return top + log(sum);
}

/* Where the labels are cut only some ranks may see it: then peers must be told. */
static ts_status refuse_label(bool cut, int64_t label, int64_t classes)
{
    return TSI_FAIL_BLAST(cut ? TS_BLAST_LOCAL : TS_BLAST_AGREED, TS_ERR_ARG,
                          "cross_entropy: label %lld is out of range for %lld classes",
                          (long long)label, (long long)classes);
}

static double weight_at(const tsi_operand *weight, int64_t label)
{
    if (!weight) return 1.0;
    return tsi_block_real(&weight->block, label * weight->block.stride[0]);
}

/* The sum over all classes of their weights times -log p. */
static double spread_of(const tsi_block *x, int64_t at, const tsi_operand *weight, double lse)
{
    int32_t last = x->ndim - 1;
    double sum = 0;
    for (int64_t c = 0; c < x->extent[last]; c++)
        sum += weight_at(weight, c) * (lse - tsi_block_real(x, at + c * x->stride[last]));
    return sum;
}

static ts_status ce_reference(const tsi_kernel_io *io)
{
    const tsi_cross_entropy_attributes *a = io->attributes;
    const tsi_operand *weight = io->input_count == 3 ? &io->in[2] : NULL;
    double s = a->label_smoothing, counted = 0;
    const tsi_block *x = &io->in[0].block, *labels = &io->in[1].block, *loss = &io->out[0].block,
                    *lse = &io->out[1].block;
    tsi_loop loop = TSI_LOOP(labels, x->stride, labels->stride, lse->stride, loss->stride);
    int64_t zero_stride[TS_NDIM_MAX] = { 0 }, classes = x->extent[x->ndim - 1];
    if (a->reduction != 2) loop.stride[3] = zero_stride;
    double total = 0;
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        int64_t label = tsi_block_int(labels, loop.at[1]);
        bool counts = label != a->ignore_index;
        if (counts && (label < 0 || label >= classes))
            return refuse_label(io->in[1].region != NULL || a->peers, label, classes);
        double chosen = 0, value = row_lse(x, loop.at[0], label, &chosen);
        tsi_block_set_real(lse, loop.at[2], value);
        double w = counts ? weight_at(weight, label) : 0.0;
        double term = counts ? (1.0 - s) * w * (value - chosen) : 0.0;
        if (counts && s > 0) term += s / (double)classes * spread_of(x, loop.at[0], weight, value);
        total += term;
        counted += w;
        if (a->reduction == 2) tsi_block_set_real(loss, loop.at[3], term);
    }
    if (a->reduction == 0) total /= counted; /* 0 / 0: nothing counts, not a number */
    if (a->reduction != 2) tsi_store_real((ts_dtype)loss->dtype, loss->data, total);
    return TS_OK;
}

/* ---- algorithms ------------------------------------------------------------------------------ */

/* Sharded positions: local sums, divided by what all labels weigh. */
static ts_status by_positions(const tsi_algorithm_io *io)
{
    const tsi_cross_entropy_attributes *a = io->attributes;
    ts_scope scope = tsi_algorithm_begin(io);
    tsi_cross_entropy_attributes sums = *a;
    sums.reduction = 1;
    ts_tensor *part[TSI_OUTPUT_MAX] = { NULL }, *out[2] = { NULL };
    tsi_op_args args = { &tsi_op_cross_entropy, io->in, io->input_count, 0, &sums };
    if (tsi_op_run(&args, part) == TS_OK) {
        tsi_label_weights w =
            tsi_label_weights_of(io->in[1], io->input_count == 3 ? io->in[2] : NULL,
                                 a->ignore_index, (ts_dtype)io->call->out[0].dtype);
        ts_tensor *all = ts_sum(w.weights, NULL, 0, 0);
        out[0] = ts_div(part[0], tsi_algorithm_settle(io, all));
        out[1] = part[1];
    }
    return tsi_algorithm_end(io, scope, out);
}

static int64_t position_bytes(const tsi_op_call *call, int64_t n)
{
    (void)call;
    return tsi_algorithm_share(2 * 8, n);
}

/* Labels that are no class and are not ignored: pick would take them for another rank's. */
static ts_status check_labels(void *context, const tsi_block *labels)
{
    const tsi_algorithm_io *io = context;
    const tsi_cross_entropy_attributes *a = io->attributes;
    int64_t classes = io->call->in[0].shape.extent[io->call->in[1].shape.ndim];
    tsi_loop loop = tsi_loop_over(labels);
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        int64_t label = tsi_block_int(labels, loop.at[0]);
        if (label != a->ignore_index && (label < 0 || label >= classes))
            return refuse_label(io->in[1]->layout->axes_cut != 0, label, classes);
    }
    return TS_OK;
}

/* Of the classes that the rank has, by the kernel for rows that are not cut: nothing of the size of
 * the logits is made. */
static ts_tensor *lse_here(const tsi_algorithm_io *io)
{
    ts_tensor *x = ts_tensor_local(io->in[0]), *out[TSI_OUTPUT_MAX] = { NULL };
    if (!x) return NULL;
    ts_mesh *self = ts_mesh_self(io->rank);
    ts_shape rows = ts_tensor_shape(x);
    int64_t classes = rows.extent[--rows.ndim];
    if (classes == 0) return ts_full(-INFINITY, self, (ts_dtype)io->call->out[1].dtype, rows, NULL);
    tsi_cross_entropy_attributes sums = { .ignore_index = 0, .reduction = 1 };
    ts_tensor *in[] = { x, ts_zeros(self, TS_DTYPE_I64, rows, NULL) }; /* all ignored */
    tsi_op_args args = { &tsi_op_cross_entropy, in, 2, 0, &sums };
    return in[1] && tsi_op_run(&args, out) == TS_OK ? out[1] : NULL;
}

/* The rank's numbers for rows as its term on the axes that cut the classes. */
static ts_tensor *term_of_rows(const tsi_algorithm_io *io, ts_tensor *block, ts_reduce reduce)
{
    const ts_layout *labels = io->in[1]->layout;
    ts_placement place[TS_NDIM_MAX];
    if (!block) return NULL;
    for (int32_t k = 0; k < labels->sharding->ndim; k++) {
        place[k] = labels->sharding->place[k];
        if (io->axes >> k & 1)
            place[k] = (ts_placement){
                .kind = TS_PLACE_PARTIAL, .reduce = (int32_t)reduce, .factor = 1, .align = 1
            };
    }
    const ts_sharding *terms = tsi_sharding_intern(labels->sharding->mesh, place);
    const ts_layout *layout = terms ? tsi_layout_intern(terms, &labels->shape) : NULL;
    ts_tensor *t = NULL;
    if (layout)
        t = tsi_tensor_make(io->mesh, layout, (ts_dtype)block->dtype,
                            tsi_array_retain(block->array), NULL);
    ts_layout_release(layout);
    ts_sharding_release(terms);
    return t;
}

/* Of all classes: those of the ranks meet as numbers for rows. */
static ts_tensor *lse_of_ranks(const tsi_algorithm_io *io)
{
    ts_tensor *here = lse_here(io);
    ts_tensor *top = tsi_algorithm_settle(io, term_of_rows(io, here, TS_REDUCE_MAX));
    if (!top) return NULL;
    ts_tensor *part = ts_exp(ts_sub(here, ts_tensor_local(top)));
    return ts_add(top, ts_log(tsi_algorithm_settle(io, term_of_rows(io, part, TS_REDUCE_SUM))));
}

/* Sharded classes: the label's logit is on one rank; the others contribute zero. */
static ts_status by_classes(const tsi_algorithm_io *io)
{
    const tsi_cross_entropy_attributes *a = io->attributes;
    ts_scope scope = tsi_algorithm_begin(io);
    ts_dtype wide = (ts_dtype)io->call->out[0].dtype;
    tsi_block labels = tsi_array_block(io->in[1]->array);
    tsi_algorithm_io copy = *io;
    (void)tsi_host_run(io->rank, io->op->name, &labels, 1, 0, check_labels, &copy);
    ts_tensor *lse = lse_of_ranks(io), *out[2];
    ts_tensor *chosen = ts_cast(tsi_algorithm_settle(io, ts_pick(io->in[0], io->in[1])), wide);
    ts_tensor *weight = io->input_count == 3 ? io->in[2] : NULL;
    tsi_label_weights w = tsi_label_weights_of(io->in[1], weight, a->ignore_index, wide);
    ts_tensor *terms = ts_mul(ts_scale(ts_sub(lse, chosen), 1.0 - a->label_smoothing), w.weights);
    if (a->label_smoothing > 0)
        terms = ts_add(
            terms, tsi_algorithm_settle(io, tsi_label_spread(ts_cast(io->in[0], wide), lse, weight,
                                                             w.counts, a->label_smoothing)));
    out[1] = lse;
    out[0] = terms;
    if (a->reduction != 2) out[0] = ts_sum(terms, NULL, 0, 0);
    if (a->reduction == 0) { /* positions may be cut on other axes */
        ts_tensor *all = ts_sum(w.weights, NULL, 0, 0);
        out[0] = ts_div(out[0], all ? tsi_algorithm_whole(all, UINT32_MAX) : NULL);
    }
    return tsi_algorithm_end(io, scope, out);
}

static int64_t class_bytes(const tsi_op_call *call, int64_t n)
{
    ts_meta each = { .shape = call->in[1].shape, .dtype = call->out[0].dtype };
    ts_meta chosen = { .shape = call->in[1].shape, .dtype = call->in[0].dtype };
    int64_t sums = tsi_algorithm_bytes(&each, 2 * 2);
    return tsi_algorithm_share(tsi_add_most(sums, tsi_algorithm_bytes(&chosen, 2)), n);
}

static const tsi_algorithm ce_algorithms[] = { { "count labels", by_positions, position_bytes },
                                               { "sharded classes", by_classes, class_bytes },
                                               { 0 } };

/* ---- the label's logit ----------------------------------------------------------------------- */

/* x [.., C], labels [..] -> x[.., label], 0 where the label is no class, or another rank's. */
static ts_status pick_infer(const tsi_op_call *call)
{
    TSI_TRY(check_rows(call, 1));
    call->out[0] = (ts_meta){ .shape = call->in[1].shape, .dtype = call->in[0].dtype };
    return TS_OK;
}

static void pick_rules(const tsi_op_call *call, tsi_rules *rules)
{
    int32_t last = call->in[1].shape.ndim;
    for (int32_t d = 0; d < last; d++) {
        tsi_role *row = tsi_rules_add(rules);
        row[0] = row[1] = row[2] = TSI_S(d);
    }
    tsi_role *row = tsi_rules_add(rules);
    row[0] = TSI_S(last);
    row[2] = TSI_P(TS_REDUCE_SUM);
    for (int reduce = TS_REDUCE_SUM; reduce <= TS_REDUCE_OR; reduce++) { /* a selection */
        row = tsi_rules_add(rules);
        row[0] = row[2] = TSI_P(reduce);
    }
}

static ts_status pick_reference(const tsi_kernel_io *io)
{
    const tsi_block *x = &io->in[0].block, *labels = &io->in[1].block, *out = &io->out[0].block;
    int32_t last = x->ndim - 1;
    tsi_loop loop = TSI_LOOP(labels, x->stride, labels->stride, out->stride);
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        int64_t label = tsi_block_int(labels, loop.at[1]);
        bool valid = label >= 0 && label < io->in[0].global->shape.extent[last];
        if (valid && io->in[0].region)
            label = tsi_span_list_find(&io->in[0].region->dim[last], label);
        double value = 0;
        if (valid && label >= 0) value = tsi_block_real(x, loop.at[0] + label * x->stride[last]);
        tsi_block_set_real(out, loop.at[2], value);
    }
    return TS_OK;
}

static bool sample_labels(tsi_sample *s)
{
    s->count = 2;
    s->in[0] = tsi_meta_f64(s->variant == 2 ? TS_SHAPE(2, 3, 6) : TS_SHAPE(5, 6));
    s->in[1] = (ts_meta){ .shape = s->in[0].shape, .dtype = TS_DTYPE_I64 };
    s->in[1].shape.extent[--s->in[1].shape.ndim] = 0;
    return s->variant < 3;
}

/* Of cross_entropy: also with weights and smoothing. */
static bool sample_weighted(tsi_sample *s)
{
    (void)tsi_sample_as(s, s->variant % 3, sample_labels);
    tsi_cross_entropy_attributes *a = s->attributes;
    *a = (tsi_cross_entropy_attributes){ .ignore_index = 2, .reduction = s->variant % 3 };
    if (s->variant < 3) return true;
    const ts_shape *x = &s->in[0].shape;
    s->in[2] = tsi_meta_f64(TS_SHAPE(x->extent[x->ndim - 1]));
    s->count = 3;
    a->label_smoothing = s->variant == 4 ? 0 : 0.25;
    return s->variant < 6;
}

/* dy [..], labels [..] -> [.., C]: dy at the label, else 0. */
typedef struct pick_attributes {
    int64_t classes;
} pick_attributes;
static const tsi_attribute pick_table[] = {
    TSI_ATTR(pick_attributes, classes, INT, "classes", NULL), { 0 }
};

static ts_status pick_backward_infer(const tsi_op_call *call)
{
    int64_t classes = ((const pick_attributes *)call->attributes)->classes;
    const ts_shape *dy = &call->in[0].shape, *labels = &call->in[1].shape;
    char one[96], other[96];
    if (!tsi_shape_same(dy, labels) || dy->ndim >= TS_NDIM_MAX || classes < 0)
        return TSI_FAIL(TS_ERR_SHAPE,
                        "pick_backward: a gradient of shape %s does not fit labels of shape %s and "
                        "%lld classes",
                        tsi_shape_text(dy, one, sizeof one),
                        tsi_shape_text(labels, other, sizeof other), (long long)classes);
    call->out[0] = call->in[0];
    call->out[0].shape.extent[call->out[0].shape.ndim++] = classes;
    return TS_OK;
}

static void pick_backward_rules(const tsi_op_call *call, tsi_rules *rules)
{
    for (int32_t d = 0; d < call->in[1].shape.ndim; d++) {
        tsi_role *row = tsi_rules_add(rules);
        row[0] = row[1] = row[2] = TSI_S(d);
    }
    tsi_traits linear = { .flow = TSI_LINEAR_EACH, .linear_in = 1 };
    tsi_rules_partials(rules, &linear);
}

static ts_status pick_backward_reference(const tsi_kernel_io *io)
{
    const tsi_block *dy = &io->in[0].block, *labels = &io->in[1].block, *out = &io->out[0].block;
    int32_t last = out->ndim - 1;
    tsi_loop loop = TSI_LOOP(labels, dy->stride, labels->stride, out->stride);
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        int64_t label = tsi_block_int(labels, loop.at[1]);
        double value = tsi_block_real(dy, loop.at[0]);
        for (int64_t c = 0; c < out->extent[last]; c++)
            tsi_block_set_real(out, loop.at[2] + c * out->stride[last], c == label ? value : 0.0);
    }
    return TS_OK;
}

static ts_status pick_grad(const tsi_grad_io *io)
{
    const ts_shape *x = &io->in_meta[0].shape;
    pick_attributes a = { x->extent[x->ndim - 1] };
    ts_tensor *in[] = { io->out_grad[0], io->in[1] };
    if (io->needs & 1) io->in_grad[0] = tsi_op_make(&tsi_op_pick_backward, in, 2, &a);
    return ts_rank_status(io->rank);
}

static bool sample_pick_backward(tsi_sample *s)
{
    bool more = sample_labels(s);
    ((pick_attributes *)s->attributes)->classes = s->in[0].shape.extent[s->in[0].shape.ndim - 1];
    s->in[0].shape = s->in[1].shape;
    return more;
}

const tsi_op_desc tsi_op_pick_backward = {
    .name = "pick_backward",
    .what = "the gradient of pick: dy at the label, else zero",
    TSI_OPERANDS(2, 2, 1),
    .flags = TSI_OP_NO_GRAD,
    .dtypes = 1u << TS_DTYPE_F64 | 1u << TS_DTYPE_F32 | 1u << TS_DTYPE_BF16 | 1u << TS_DTYPE_F16,
    TSI_ATTRIBUTES(pick_table, pick_attributes),
    .infer = pick_backward_infer,
    .rules = pick_backward_rules,
    .reference = pick_backward_reference,
    .sample = sample_pick_backward,
};

const tsi_op_desc tsi_op_pick = {
    .name = "pick",
    .what = "the element of the last dim that an index names, 0 if it names none",
    TSI_OPERANDS(2, 2, 1),
    .saves = 2,
    .dtypes = TSI_DTYPES_ORDERED,
    .infer = pick_infer,
    .rules = pick_rules,
    .reference = pick_reference,
    .grad = pick_grad,
    .sample = sample_labels,
};

/* ---- the gradient ---------------------------------------------------------------------------- */

/* dx = (softmax(x) - onehot(label)) * g, where g per label is dy over the count, 0 where the label
 * is ignored. */
static ts_status ceb_infer(const tsi_op_call *call)
{
    for (int32_t i = 1; i < 4; i++)
        TSI_TRY(check_rows(call, i));
    call->out[0] = call->in[0];
    return TS_OK;
}

/* inputs: x, labels, lse, g */
static void ceb_rules(const tsi_op_call *call, tsi_rules *rules)
{
    int32_t last = call->in[1].shape.ndim;
    for (int32_t d = 0; d < last; d++) {
        tsi_role *row = tsi_rules_add(rules);
        row[0] = row[1] = row[2] = row[3] = row[4] = TSI_S(d);
    }
    tsi_role *row = tsi_rules_add(rules);
    row[0] = row[4] = TSI_S(last);
    tsi_traits linear = { .flow = TSI_LINEAR_EACH, .linear_in = 8 };
    tsi_rules_partials(rules, &linear);
}

static ts_status ceb_reference(const tsi_kernel_io *io)
{
    const tsi_block *x = &io->in[0].block, *labels = &io->in[1].block, *lse = &io->in[2].block,
                    *g = &io->in[3].block, *out = &io->out[0].block;
    int32_t last = x->ndim - 1;
    tsi_loop loop =
        TSI_LOOP(labels, x->stride, labels->stride, lse->stride, g->stride, out->stride);
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        int64_t label = tsi_block_int(labels, loop.at[1]);
        if (io->in[0].region && label >= 0)
            label = tsi_span_list_find(&io->in[0].region->dim[last], label);
        double base = tsi_block_real(lse, loop.at[2]);
        double scale = tsi_block_real(g, loop.at[3]);
        for (int64_t c = 0; c < x->extent[last]; c++) {
            double v = tsi_block_real(x, loop.at[0] + c * x->stride[last]);
            double p = scale == 0.0 ? 0.0 : (exp(v - base) - (c == label ? 1.0 : 0.0)) * scale;
            tsi_block_set_real(out, loop.at[4] + c * out->stride[last], p);
        }
    }
    return TS_OK;
}

static bool sample_ceb(tsi_sample *s)
{
    bool more = sample_labels(s);
    s->in[2] = s->in[3] = tsi_meta_f64(s->in[1].shape);
    s->count = 4;
    return more;
}

const tsi_op_desc tsi_op_cross_entropy_backward = {
    .name = "cross_entropy_backward",
    .what = "(softmax(x) - onehot(label)) times a factor per label",
    TSI_OPERANDS(4, 4, 1),
    .flags = TSI_OP_NO_GRAD | TSI_OP_IN_PLACE, /* a logit is read before it is written */
    .dtypes = 1u << TS_DTYPE_F64 | 1u << TS_DTYPE_F32 | 1u << TS_DTYPE_BF16 | 1u << TS_DTYPE_F16,
    .infer = ceb_infer,
    .rules = ceb_rules,
    .reference = ceb_reference,
    .sample = sample_ceb,
};

/* Are logits read by nobody after this, and may they stay where they are? Every rank answers alike:
 * programs and layouts are the same. */
static bool logits_are_spent(const tsi_grad_io *io)
{
    const tsi_cross_entropy_attributes *a = io->attributes;
    const ts_layout *layout = io->in[0]->layout;
    bool read_again = a->label_smoothing > 0 || io->needs & 4;
    for (int32_t k = 0; k < layout->sharding->ndim; k++) {
        const ts_placement *p = &layout->sharding->place[k];
        if (tsi_placement_cuts(p) && p->dim != p->dim_last) return false;
    }
    return io->last && !read_again && layout->axes_partial == 0;
}

/* Logits that are spent become their gradient: they are the largest tensor of a step. */
static ts_tensor *logits_grad(const tsi_grad_io *io, ts_tensor *labels, ts_tensor *scale)
{
    const tsi_op_desc *op = &tsi_op_cross_entropy_backward;
    ts_tensor *in[] = { io->in[0], labels, io->out[1], scale };
    return logits_are_spent(io) ? tsi_op_make_over(op, in, 4, NULL) : tsi_op_make(op, in, 4, NULL);
}

static ts_status ce_grad(const tsi_grad_io *io)
{
    const tsi_cross_entropy_attributes *a = io->attributes;
    ts_tensor *labels = io->in[1], *dy = io->out_grad[0];
    ts_tensor *weight = io->input_count == 3 ? io->in[2] : NULL;
    tsi_label_weights w =
        tsi_label_weights_of(labels, weight, a->ignore_index, ts_tensor_dtype(dy));
    ts_tensor *all = a->reduction == 0 ? tsi_label_divisor(&w) : NULL;
    if (all) dy = ts_div(dy, all);
    double rest = 1.0 - a->label_smoothing;
    ts_tensor *scale = ts_mul(w.weights, rest == 1.0 ? dy : ts_scale(dy, rest));
    if (io->needs & 1) {
        ts_tensor *dx = logits_grad(io, labels, scale);
        if (a->label_smoothing > 0) dx = ts_add(dx, tsi_label_spread_grad(io, &w, dy));
        io->in_grad[0] = dx;
    }
    if (io->needs & 4)
        io->in_grad[2] = tsi_class_weight_grad(
            io, &w, dy, all, tsi_class_costs(io->in[0], io->out[1]), a->label_smoothing);
    return ts_rank_status(io->rank);
}

const tsi_op_desc tsi_op_cross_entropy = {
    .name = "cross_entropy",
    .what = "negative log-likelihood of labels under the softmax of the last dim; classes may have "
            "weights",
    TSI_OPERANDS(2, 3, 2),
    .dtypes = TSI_DTYPES_REAL,
    .saves = 7 | (uint64_t)2 << TSI_SAVE_OUT,
    .aside = 2,
    TSI_ATTRIBUTES(ce_table, tsi_cross_entropy_attributes),
    .infer = ce_infer,
    .rules = ce_rules,
    .reference = ce_reference,
    .algorithm = ce_algorithms,
    .grad = ce_grad,
    .sample = sample_weighted,
};

/* ---- makers ---------------------------------------------------------------------------------- */

TSI_MAKER2(pick)

ts_tensor *(ts_cross_entropy_with)(ts_tensor *logits, ts_tensor *labels,
                                   const ts_cross_entropy_options *options)
{
    ts_cross_entropy_options o = TS_CROSS_ENTROPY_OPTIONS_INIT;
    if (options)
        memcpy(&o, options, options->struct_size < sizeof o ? options->struct_size : sizeof o);
    ts_tensor *in[] = { logits, labels, o.weight }, *out[TSI_OUTPUT_MAX] = { NULL };
    tsi_cross_entropy_attributes a = { .ignore_index = o.ignore_index,
                                       .label_smoothing = o.label_smoothing,
                                       .reduction = o.reduction };
    if (logits && (o.reduction < TS_LOSS_MEAN || o.reduction > TS_LOSS_NONE)) {
        if (tsi_rank_enter(logits->rank) == TS_OK)
            TSI_FAIL(TS_ERR_ARG, "cross_entropy: reduction %d has no meaning here", o.reduction);
        return NULL;
    }
    tsi_op_args args = { &tsi_op_cross_entropy, in, o.weight ? 3 : 2, 0, &a };
    return tsi_op_run(&args, out) == TS_OK ? out[0] : NULL;
}

ts_tensor *(ts_cross_entropy)(ts_tensor *logits, ts_tensor *labels)
{
    return (ts_cross_entropy_with)(logits, labels, NULL);
}

ts_tensor *(ts_cross_entropy_sum)(ts_tensor *logits, ts_tensor *labels)
{
    ts_cross_entropy_options o = TS_CROSS_ENTROPY_OPTIONS_INIT;
    o.reduction = TS_LOSS_SUM;
    return (ts_cross_entropy_with)(logits, labels, &o);
}
