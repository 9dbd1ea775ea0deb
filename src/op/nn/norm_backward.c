/* SPDX-License-Identifier: Apache-2.0 */
/* norm_backward.c - gradients of rms_norm and layer_norm with a weight, from what they computed:
 *
 *   v = (x - mean) scale,  g = dy weight
 *   dx = scale (g - mean(g) [layer_norm] - v mean(g v))      dw = sum(dy v)      db = sum(dy)
 *
 * inputs dy, x, weight, scale (and mean); outputs dx, dw (and db). dw and db are f32, or
 * f64 if the statistics are. Sharded leading dims leave them as partial sums; all of it is
 * linear in dy; sharded normalized dims reduce two numbers a row. */
#include <string.h>

#include "op/core/algorithm.h"
#include "op/nn/norm.h"
#include "op/reduce/reduce.h"

static const tsi_attribute back_table[] = {
    TSI_ATTR(tsi_norm_back, normalized, DIMS, "normalized", "[]"), { 0 }
};

enum { DY, X, WEIGHT, SCALE, MEAN };

static bool is_layer(const tsi_op_desc *op)
{
    return op == &tsi_op_layer_norm_backward;
}

static ts_status back_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                void *attributes)
{
    (void)op;
    (void)count;
    tsi_norm_back *a = attributes;
    a->normalized = (tsi_dims){ .count = in[WEIGHT].shape.ndim };
    memcpy(a->normalized.value, in[WEIGHT].shape.extent,
           (size_t)in[WEIGHT].shape.ndim * sizeof a->normalized.value[0]);
    return TS_OK;
}

static ts_status back_infer(const tsi_op_call *call)
{
    const ts_shape *x = &call->in[X].shape, *w = &call->in[WEIGHT].shape;
    int32_t first = x->ndim - w->ndim;
    bool fits = first >= 0 && w->ndim > 0 && tsi_shape_same(x, &call->in[DY].shape);
    for (int32_t d = 0; fits && d < w->ndim; d++)
        fits = w->extent[d] == x->extent[first + d];
    uint32_t inner = fits ? ((1u << x->ndim) - 1) & ~((1u << first) - 1) : 0;
    ts_shape rows = tsi_shape_reduce(x, inner, true);
    for (int32_t i = SCALE; fits && i < call->input_count; i++)
        fits = tsi_shape_same(&rows, &call->in[i].shape);
    char text[96], other[96];
    if (!fits)
        return TSI_FAIL(TS_ERR_SHAPE, "%s: x has shape %s, the weight %s; dy or the moments differ",
                        call->op->name, tsi_shape_text(x, text, sizeof text),
                        tsi_shape_text(w, other, sizeof other));
    for (int32_t i = 0; i < call->input_count; i++)
        if (tsi_dtype_category((ts_dtype)call->in[i].dtype) != TSI_CATEGORY_REAL)
            return TSI_FAIL(TS_ERR_DTYPE, "%s: is not defined for %s", call->op->name,
                            ts_dtype_name((ts_dtype)call->in[i].dtype));
    call->out[0] = call->in[X];
    for (int32_t o = 1; o < call->output_count; o++) {
        call->out[o] = call->in[WEIGHT];
        call->out[o].dtype = call->in[SCALE].dtype == TS_DTYPE_F64 ? TS_DTYPE_F64 : TS_DTYPE_F32;
    }
    return TS_OK;
}

static void back_rules(const tsi_op_call *call, tsi_rules *rules)
{
    int32_t n = call->input_count, first = call->in[X].shape.ndim - call->in[WEIGHT].shape.ndim;
    for (int32_t d = 0; d < first; d++) {
        tsi_role *row = tsi_rules_add(rules);
        row[DY] = row[X] = row[SCALE] = row[n] = TSI_S(d);
        if (n > MEAN) row[MEAN] = TSI_S(d);
        for (int32_t o = 1; o < call->output_count; o++)
            row[n + o] = TSI_P(TS_REDUCE_SUM);
    }
    for (int32_t d = first; d < call->in[X].shape.ndim; d++) {
        tsi_role *row = tsi_rules_add_with(rules, 1, 0);
        row[DY] = row[X] = row[n] = TSI_S(d);
        row[WEIGHT] = TSI_S(d - first);
        for (int32_t o = 1; o < call->output_count; o++)
            row[n + o] = TSI_S(d - first);
    }
    tsi_traits linear = { .flow = TSI_LINEAR_EACH, .linear_in = 1 };
    tsi_rules_partials(rules, &linear);
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* One row: outer has the places of dy, x, dx, scale and mean; inner those of dy, x, dx, weight, dw
 * and db. */
static void back_row(const tsi_kernel_io *io, const tsi_loop *outer, tsi_loop *inner)
{
    const tsi_block *dy = &io->in[DY].block, *x = &io->in[X].block, *w = &io->in[WEIGHT].block;
    bool layer = is_layer(io->op);
    double scale = tsi_block_real(&io->in[SCALE].block, outer->at[3]), sum = 0, product = 0;
    double mean = layer ? tsi_block_real(&io->in[MEAN].block, outer->at[4]) : 0.0;
    int64_t n = 0;
    for (bool more = tsi_loop_begin(inner); more; more = tsi_loop_next(inner), n++) {
        double g =
            tsi_block_real(dy, outer->at[0] + inner->at[0]) * tsi_block_real(w, inner->at[3]);
        sum += g;
        product += g * (tsi_block_real(x, outer->at[1] + inner->at[1]) - mean) * scale;
    }
    sum = layer ? sum / (double)n : 0.0;
    product /= (double)n;
    for (bool more = tsi_loop_begin(inner); more; more = tsi_loop_next(inner)) {
        double d = tsi_block_real(dy, outer->at[0] + inner->at[0]);
        double v = (tsi_block_real(x, outer->at[1] + inner->at[1]) - mean) * scale;
        tsi_block_set_real(&io->out[0].block, outer->at[2] + inner->at[2],
                           scale * (d * tsi_block_real(w, inner->at[3]) - sum - v * product));
        tsi_block_add_real(&io->out[1].block, inner->at[4], d * v);
        if (layer) tsi_block_add_real(&io->out[2].block, inner->at[5], d);
    }
}

static ts_status back_reference(const tsi_kernel_io *io)
{
    const tsi_block *dy = &io->in[DY].block, *x = &io->in[X].block, *dx = &io->out[0].block;
    int32_t inner_dims = io->in[WEIGHT].block.ndim, first = x->ndim - inner_dims;
    unsigned char zero[16] = { 0 };
    for (int32_t o = 1; o < io->output_count; o++)
        TSI_TRY(io->device->fill(io->device, &io->out[o].block, zero, NULL));
    if (tsi_block_count(x) == 0) return TS_OK;
    const int64_t *mean = io->in[is_layer(io->op) ? MEAN : SCALE].block.stride;
    const int64_t *db = io->out[io->output_count - 1].block.stride;
    tsi_loop outer = { .ndim = first,
                       .operand_count = 5,
                       .stride = { dy->stride, x->stride, dx->stride, io->in[SCALE].block.stride,
                                   mean } };
    memcpy(outer.extent, x->extent, sizeof outer.extent);
    tsi_loop inner = { .ndim = inner_dims,
                       .operand_count = 6,
                       .stride = { dy->stride + first, x->stride + first, dx->stride + first,
                                   io->in[WEIGHT].block.stride, io->out[1].block.stride, db } };
    memcpy(inner.extent, io->in[WEIGHT].block.extent, sizeof inner.extent);
    for (bool more = tsi_loop_begin(&outer); more; more = tsi_loop_next(&outer))
        back_row(io, &outer, &inner);
    return TS_OK;
}

/* ---- a sharded normalized dim ---------------------------------------------------------------- */

static int64_t back_bytes(const tsi_op_call *call, int64_t n)
{
    int64_t arrays = call->output_count > 2 ? 4 : 2;
    ts_meta rows = { .shape = call->in[SCALE].shape, .dtype = call->out[1].dtype };
    return tsi_algorithm_share(tsi_algorithm_bytes(&rows, arrays), n);
}

static ts_status back_two_phase(const tsi_algorithm_io *io)
{
    bool layer = is_layer(io->op);
    int32_t ndim = io->call->in[X].shape.ndim, first = ndim - io->call->in[WEIGHT].shape.ndim;
    int64_t inner[TS_NDIM_MAX], leading[TS_NDIM_MAX];
    for (int32_t d = 0; d < ndim; d++)
        *(d < first ? &leading[d] : &inner[d - first]) = d;
    ts_scope scope = tsi_algorithm_begin(io);
    ts_dtype wide = (ts_dtype)io->call->out[1].dtype;
    ts_tensor *dy = ts_cast(io->in[DY], wide), *x = ts_cast(io->in[X], wide), *out[3] = { NULL };
    ts_tensor *v = ts_mul(layer ? ts_sub(x, io->in[MEAN]) : x, io->in[SCALE]);
    ts_tensor *g = ts_mul(dy, ts_cast(io->in[WEIGHT], wide));
    ts_tensor *product = tsi_algorithm_settle(io, ts_mean(ts_mul(g, v), inner, ndim - first, 1));
    ts_tensor *dx = ts_sub(g, ts_mul(v, product));
    if (layer) dx = ts_sub(dx, tsi_algorithm_settle(io, ts_mean(g, inner, ndim - first, 1)));
    out[0] = ts_cast(ts_mul(dx, io->in[SCALE]), (ts_dtype)io->call->out[0].dtype);
    ts_tensor *dw = ts_mul(dy, v);
    out[1] = first ? ts_sum(dw, leading, first, 0) : dw;
    if (layer) out[2] = first ? ts_sum(dy, leading, first, 0) : dy;
    return tsi_algorithm_end(io, scope, out);
}

static const tsi_algorithm back_phases[] = { { "two-phase", back_two_phase, back_bytes }, { 0 } };

static bool sample_back(tsi_sample *s, int32_t inputs)
{
    s->count = inputs;
    s->in[DY] = s->in[X] = tsi_meta_f64(TS_SHAPE(2, 5, 4));
    s->in[WEIGHT] = tsi_meta_f64(TS_SHAPE(4));
    if (s->variant == 1) s->in[WEIGHT].shape = TS_SHAPE(5, 4);
    s->in[SCALE] = s->in[X];
    s->in[SCALE].shape.extent[2] = 1;
    if (s->variant == 1) s->in[SCALE].shape.extent[1] = 1;
    if (s->variant == 2) { /* everything is one row */
        s->in[DY].shape = s->in[X].shape = s->in[WEIGHT].shape;
        s->in[SCALE].shape = TS_SHAPE(1);
    }
    if (inputs > MEAN) s->in[MEAN] = s->in[SCALE];
    return s->variant < 3;
}

static bool sample_rms(tsi_sample *s)
{
    return sample_back(s, 4);
}

static bool sample_layer(tsi_sample *s)
{
    return sample_back(s, 5);
}

#define BACK                                                                                       \
    .attribute = back_table, .attribute_bytes = sizeof(tsi_norm_back), .flags = TSI_OP_NO_GRAD,    \
    .normalise = back_normalise, .infer = back_infer, .rules = back_rules,                         \
    .reference = back_reference, .algorithm = back_phases

const tsi_op_desc tsi_op_rms_norm_backward = {
    .name = "rms_norm_backward",
    .what = "gradients of rms_norm by x and by its weight",
    TSI_OPERANDS(4, 4, 2),
    BACK,
    .sample = sample_rms,
};
const tsi_op_desc tsi_op_layer_norm_backward = {
    .name = "layer_norm_backward",
    .what = "gradients of layer_norm by x, its weight and its bias",
    TSI_OPERANDS(5, 5, 3),
    BACK,
    .sample = sample_layer,
};
