/* SPDX-License-Identifier: Apache-2.0 */
/* add_norm.c - a residual and the norm of the sum, in one pass over memory, and their gradient:
 *
 *   sum = x + r,   y = rms_norm(sum, weight),   scale = 1 / rms, one a row
 *   d of x and of r = dsum + rms_norm_backward(dy),   d of the weight as there
 *
 * The sum is rounded to its dtype before it is normalised: y has the bits of add, then rms_norm.
 * Leading dims may stay sharded; the last dim and the weight are whole. */
#include <string.h>

#include "op/core/common.h"
#include "op/core/kernel.h"
#include "op/nn/add_norm.h"
#include "op/nn/attributes.h"

static const tsi_attribute add_table[] = { TSI_ATTR(tsi_add_norm, eps, REAL, "eps", "1e-05"),
                                           { 0 } };

enum { X, R, WEIGHT };                    /* inputs of add_rms_norm */
enum { DSUM, DY, SUM, WEIGHT_OF, SCALE }; /* and of its gradient */

/* `rows` has one number for each row of x. */
static bool is_rows_of(const ts_shape *rows, const ts_shape *x)
{
    ts_shape want = *x;
    want.extent[x->ndim - 1] = 1;
    return tsi_shape_same(rows, &want);
}

static ts_status check(const tsi_op_call *call, int32_t x, int32_t weight, bool fits)
{
    const ts_shape *shape = &call->in[x].shape, *w = &call->in[weight].shape;
    char text[96], other[96];
    fits =
        fits && shape->ndim > 0 && w->ndim == 1 && w->extent[0] == shape->extent[shape->ndim - 1];
    if (!fits)
        return TSI_FAIL(TS_ERR_SHAPE, "%s: x has shape %s, the weight %s, or another input differs",
                        call->op->name, tsi_shape_text(shape, text, sizeof text),
                        tsi_shape_text(w, other, sizeof other));
    return tsi_check_reals(call);
}

/* ---- forward --------------------------------------------------------------------------------- */

static ts_status add_infer(const tsi_op_call *call)
{
    const ts_meta *x = &call->in[X], *r = &call->in[R];
    TSI_TRY(check(call, X, WEIGHT, tsi_shape_same(&x->shape, &r->shape)));
    ts_dtype dtype = tsi_dtype_promote((ts_dtype)x->dtype, (ts_dtype)r->dtype);
    call->out[0] = call->out[1] = (ts_meta){ .shape = x->shape, .dtype = (int32_t)dtype };
    call->out[2] = (ts_meta){ .shape = x->shape,
                              .dtype = dtype == TS_DTYPE_F64 ? TS_DTYPE_F64 : TS_DTYPE_F32 };
    call->out[2].shape.extent[x->shape.ndim - 1] = 1;
    return TS_OK;
}

static void add_rules(const tsi_op_call *call, tsi_rules *rules)
{
    int32_t n = call->input_count;
    for (int32_t d = 0; d + 1 < call->in[X].shape.ndim; d++) {
        tsi_role *row = tsi_rules_add(rules);
        row[X] = row[R] = row[n] = row[n + 1] = row[n + 2] = TSI_S(d);
    }
    const tsi_role pending[] = { TSI_P(TS_REDUCE_SUM), TSI_P(TS_REDUCE_AVG) };
    for (int k = 0; k < 2; k++) { /* of the weight: the norm alone is linear in it */
        tsi_role *row = tsi_rules_add(rules);
        row[WEIGHT] = row[n + 1] = pending[k];
    }
}

/* A call inside of one: memory is the host's here, on whatever device the call was made. */
static ts_status run_inner(tsi_kernel_fn kernel, tsi_kernel_io *io)
{
    io->device = tsi_device_host();
    io->queue = NULL;
    return tsi_kernel_run(kernel, io);
}

ts_status tsi_add_rms_norm_by(const tsi_kernel_io *io, tsi_kernel_fn add, tsi_kernel_fn norm)
{
    const tsi_operand whole = { io->out[0].block, io->in[X].global, io->in[X].region, NULL };
    const tsi_operand factors[] = { whole, io->in[WEIGHT] };
    int32_t last = io->in[X].global->shape.ndim - 1;
    tsi_norm_attributes a = { .eps = ((const tsi_add_norm *)io->attributes)->eps };
    a.normalized = (tsi_dims){ .count = 1, .value = { io->in[X].global->shape.extent[last] } };
    tsi_kernel_io sum = *io, y = *io;
    ts_number alpha = ts_number_real(1.0);
    sum.op = &tsi_op_add;
    sum.attributes = &alpha;
    sum.input_count = 2;
    sum.output_count = 1;
    TSI_TRY(run_inner(add, &sum));
    y.op = &tsi_op_rms_norm;
    y.attributes = &a;
    y.in = factors;
    y.out = io->out + 1;
    y.input_count = y.output_count = 2;
    return run_inner(norm, &y);
}

static ts_status add_reference(const tsi_kernel_io *io)
{
    return tsi_add_rms_norm_by(io, NULL, NULL);
}

/* ---- backward -------------------------------------------------------------------------------- */

static ts_status back_infer(const tsi_op_call *call)
{
    const ts_shape *x = &call->in[SUM].shape;
    bool fits = x->ndim > 0 && tsi_shape_same(x, &call->in[DSUM].shape) &&
                tsi_shape_same(x, &call->in[DY].shape) && is_rows_of(&call->in[SCALE].shape, x);
    TSI_TRY(check(call, SUM, WEIGHT_OF, fits));
    call->out[0] = call->in[SUM];
    call->out[1] = call->in[WEIGHT_OF];
    call->out[1].dtype = call->in[SCALE].dtype == TS_DTYPE_F64 ? TS_DTYPE_F64 : TS_DTYPE_F32;
    return TS_OK;
}

static void back_rules(const tsi_op_call *call, tsi_rules *rules)
{
    int32_t n = call->input_count;
    for (int32_t d = 0; d + 1 < call->in[SUM].shape.ndim; d++) {
        tsi_role *row = tsi_rules_add(rules);
        row[DSUM] = row[DY] = row[SUM] = row[SCALE] = row[n] = TSI_S(d);
        row[n + 1] = TSI_P(TS_REDUCE_SUM);
    }
}

ts_status tsi_add_rms_norm_backward_by(const tsi_kernel_io *io, tsi_kernel_fn back,
                                       tsi_kernel_fn add)
{
    const tsi_operand dx_sum = { io->out[0].block, io->in[SUM].global, io->in[SUM].region, NULL };
    const tsi_operand sum[] = { dx_sum, io->in[DSUM] };
    tsi_norm_back a = { { 0 } };
    int32_t last = io->in[SUM].global->shape.ndim - 1;
    a.normalized = (tsi_dims){ .count = 1, .value = { io->in[SUM].global->shape.extent[last] } };
    tsi_kernel_io dx = *io, total = *io;
    ts_number alpha = ts_number_real(1.0);
    dx.op = &tsi_op_rms_norm_backward;
    dx.attributes = &a;
    dx.in = io->in + DY;
    dx.input_count = 4;
    dx.in_place = 0;
    TSI_TRY(run_inner(back, &dx));
    total.op = &tsi_op_add;
    total.attributes = &alpha;
    total.in = sum;
    total.input_count = 2;
    total.output_count = 1;
    total.in_place = 1;
    return run_inner(add, &total);
}

static ts_status back_reference(const tsi_kernel_io *io)
{
    return tsi_add_rms_norm_backward_by(io, NULL, NULL);
}

ts_status tsi_add_norm_backward(ts_tensor *const in[5], ts_tensor *out[2])
{
    ts_tensor *made[TSI_OUTPUT_MAX] = { NULL };
    tsi_op_args args = { &tsi_op_add_rms_norm_backward, in, 5, 0, NULL };
    TSI_TRY(tsi_op_run(&args, made));
    out[0] = made[0];
    out[1] = made[1];
    return TS_OK;
}

/* Without a gradient of the sum, or of y, it is that of rms_norm, or of add. */
static ts_status add_grad(const tsi_grad_io *io)
{
    ts_tensor *dsum = io->out_grad[0], *dy = io->out_grad[1], *out[TSI_OUTPUT_MAX] = { NULL };
    ts_tensor *in[] = { dsum, dy, io->out[0], io->in[WEIGHT], io->out[2] };
    if (dsum && dy) {
        TSI_TRY(tsi_add_norm_backward(in, out));
    } else if (dy) {
        tsi_norm_back a = { { 0 } };
        tsi_op_args args = { &tsi_op_rms_norm_backward, in + 1, 4, 0, &a };
        TSI_TRY(tsi_op_run(&args, out));
    } else {
        out[0] = dsum;
    }
    for (int32_t i = X; i <= R; i++)
        if (io->needs >> i & 1) io->in_grad[i] = ts_cast(out[0], (ts_dtype)io->in_meta[i].dtype);
    if (io->needs >> WEIGHT & 1 && out[1])
        io->in_grad[WEIGHT] = ts_cast(out[1], (ts_dtype)io->in_meta[WEIGHT].dtype);
    return ts_rank_status(io->rank);
}

/* ---- samples and rows ------------------------------------------------------------------------ */

static void meta_of(ts_meta *meta, int32_t ndim, const int64_t *extent)
{
    *meta = (ts_meta){ .shape = { .ndim = ndim }, .dtype = TS_DTYPE_F64 };
    memcpy(meta->shape.extent, extent, (size_t)ndim * sizeof *extent);
}

static const int64_t sample_x[] = { 2, 5, 4 }, sample_scale[] = { 2, 5, 1 };

static bool sample_add(tsi_sample *s)
{
    if (s->variant > 2) return false;
    int32_t ndim = 3 - s->variant;
    *(tsi_add_norm *)s->attributes = (tsi_add_norm){ .eps = 1e-5 };
    s->count = 3;
    meta_of(&s->in[X], ndim, sample_x + s->variant);
    meta_of(&s->in[R], ndim, sample_x + s->variant);
    meta_of(&s->in[WEIGHT], 1, sample_x + 2);
    return true;
}

static bool sample_back(tsi_sample *s)
{
    if (s->variant > 2) return false;
    int32_t ndim = 3 - s->variant;
    s->count = 5;
    for (int32_t i = DSUM; i <= SUM; i++)
        meta_of(&s->in[i], ndim, sample_x + s->variant);
    meta_of(&s->in[WEIGHT_OF], 1, sample_x + 2);
    meta_of(&s->in[SCALE], ndim, sample_scale + s->variant);
    return true;
}

const tsi_op_desc tsi_op_add_rms_norm = {
    .name = "add_rms_norm",
    .what = "x + r, and its rms_norm with a weight",
    .dtypes = TSI_DTYPES_REAL,
    TSI_OPERANDS(3, 3, 3),
    .flags = TSI_OP_CHEAP,
    .saves = 1 << WEIGHT | (uint64_t)5 << TSI_SAVE_OUT,
    .aside = 4,
    TSI_ATTRIBUTES(add_table, tsi_add_norm),
    .infer = add_infer,
    .rules = add_rules,
    .reference = add_reference,
    .grad = add_grad,
    .sample = sample_add,
};
const tsi_op_desc tsi_op_add_rms_norm_backward = {
    .name = "add_rms_norm_backward",
    .what = "a gradient plus that of rms_norm by x, and that by its weight",
    .dtypes = TSI_DTYPES_REAL,
    TSI_OPERANDS(5, 5, 2),
    .flags = TSI_OP_NO_GRAD,
    .infer = back_infer,
    .rules = back_rules,
    .reference = back_reference,
    .sample = sample_back,
};

ts_tensor *(ts_add_rms_norm)(ts_tensor *x, ts_tensor *r, ts_tensor *weight, double epsilon,
                             ts_tensor **sum)
{
    ts_tensor *in[] = { x, r, weight }, *out[TSI_OUTPUT_MAX] = { NULL };
    tsi_op_args args = { &tsi_op_add_rms_norm, in, 3, 0, &(tsi_add_norm){ epsilon } };
    if (sum) *sum = NULL;
    if (tsi_op_run(&args, out) != TS_OK) return NULL;
    if (sum) *sum = out[0];
    return out[1];
}
