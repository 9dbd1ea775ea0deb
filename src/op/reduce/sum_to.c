/* SPDX-License-Identifier: Apache-2.0 */
/* sum_to.c - sums a tensor down to a shape it broadcasts from: what the gradient of a broadcast
 * operand needs.
 *
 * A dim that was broadcast and is sharded gives a partial sum: the gradient of a bias under data
 * parallelism. */
#include <string.h>

#include "op/index/index.h"

typedef struct sum_to_attributes {
    tsi_dims shape;
} sum_to_attributes;
static const tsi_attribute sum_to_table[] = {
    TSI_ATTR(sum_to_attributes, shape, DIMS, "shape", NULL), { 0 }
};

/* The output dim of input dim d, or -1 if it is summed away (or summed into extent 1: then *into is
 * its place). */
static int32_t kept_as(const tsi_op_call *call, int32_t d)
{
    const ts_shape *in = &call->in[0].shape, *out = &call->out[0].shape;
    int32_t e = d - (in->ndim - out->ndim);
    if (e < 0 || (out->extent[e] == 1 && in->extent[d] != 1)) return -1;
    return e;
}

static ts_status sum_to_infer(const tsi_op_call *call)
{
    const sum_to_attributes *a = call->attributes;
    const ts_shape *in = &call->in[0].shape;
    ts_shape out = { .ndim = a->shape.count };
    bool fits = a->shape.count >= 0 && a->shape.count <= in->ndim;
    for (int32_t e = 0; fits && e < a->shape.count; e++) {
        out.extent[e] = a->shape.value[e];
        int64_t wide = in->extent[e + in->ndim - a->shape.count];
        fits = out.extent[e] == wide || out.extent[e] == 1;
    }
    char from[96], to[96];
    if (!fits)
        return TSI_FAIL(TS_ERR_SHAPE, "sum_to: %s does not broadcast to %s",
                        tsi_shape_text(&out, to, sizeof to), tsi_shape_text(in, from, sizeof from));
    call->out[0] = (ts_meta){ .shape = out, .dtype = call->in[0].dtype };
    return TS_OK;
}

static void sum_to_rules(const tsi_op_call *call, tsi_rules *rules)
{
    for (int32_t d = 0; d < call->in[0].shape.ndim; d++) {
        int32_t e = kept_as(call, d);
        tsi_role *row = tsi_rules_add(rules);
        row[0] = TSI_S(d);
        row[1] = e >= 0 ? TSI_S(e) : TSI_P(TS_REDUCE_SUM);
    }
}

static ts_status sum_to_reference(const tsi_kernel_io *io)
{
    const tsi_block *in = &io->in[0].block, *out = &io->out[0].block;
    int64_t stride[TS_NDIM_MAX];
    unsigned char zero[16] = { 0 };
    TSI_TRY(io->device->fill(io->device, out, zero, NULL));
    tsi_broadcast_strides(out, in->ndim, in->extent, stride);
    ts_meta in_meta = *io->in[0].global, out_meta = *io->out[0].global;
    tsi_op_call call = { io->op, io->attributes, &in_meta, &out_meta, 1, 1 };
    for (int32_t d = 0; d < in->ndim; d++)
        if (kept_as(&call, d) < 0) stride[d] = 0; /* also where a short shard has one row left */
    tsi_loop loop = TSI_LOOP(in, in->stride, stride);
    ts_dtype dtype = (ts_dtype)in->dtype;
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop))
        tsi_element_add(dtype, tsi_block_at(out, loop.at[1]), tsi_block_at(in, loop.at[0]));
    return TS_OK;
}

static ts_status sum_to_grad(const tsi_grad_io *io)
{
    return tsi_grad_give(io, ts_expand(io->out_grad[0], io->in_meta[0].shape));
}

static bool sum_to_sample(tsi_sample *s)
{
    static const int64_t shape[][3] = { { 4 }, { 5, 1 }, { 1, 4 }, { 5, 4 } };
    static const int32_t ndim[] = { 1, 2, 2, 2 };
    sum_to_attributes *a = s->attributes;
    s->count = 1;
    s->in[0] = tsi_meta_f64(TS_SHAPE(5, 4));
    a->shape = (tsi_dims){ .count = ndim[s->variant % 4] };
    memcpy(a->shape.value, shape[s->variant % 4], sizeof shape[0]);
    return s->variant < 4;
}

const tsi_op_desc tsi_op_sum_to = {
    .name = "sum_to",
    .what = "the sum down to a shape that broadcasts to the input's",
    TSI_OPERANDS(1, 1, 1),
    .dtypes = ~(1u << TS_DTYPE_BOOL),
    TSI_ATTRIBUTES(sum_to_table, sum_to_attributes),
    .infer = sum_to_infer,
    .rules = sum_to_rules,
    .traits = { .flow = TSI_LINEAR_ALL },
    .reference = sum_to_reference,
    .grad = sum_to_grad,
    .sample = sum_to_sample,
};

ts_tensor *tsi_grad_unbroadcast(ts_tensor *grad, const ts_meta *operand)
{
    if (!grad) return NULL;
    ts_shape shape = ts_tensor_shape(grad);
    if (!tsi_shape_same(&shape, &operand->shape)) {
        sum_to_attributes a = { .shape = { .count = operand->shape.ndim } };
        for (int32_t d = 0; d < operand->shape.ndim; d++)
            a.shape.value[d] = operand->shape.extent[d];
        grad = tsi_op_make(&tsi_op_sum_to, &grad, 1, &a);
    }
    return ts_cast(grad, (ts_dtype)operand->dtype);
}
