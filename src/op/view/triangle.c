/* SPDX-License-Identifier: Apache-2.0 */
/* triangle.c - tril and triu: zeros on one side of a diagonal of the last two dims.
 *
 * A rank knows which rows and columns it holds, so any cut stays, and so does every pending
 * reduction: zeros combine to zero. */
#include <string.h>

#include "op/core/common.h"
#include "op/view/attributes.h"

static const tsi_attribute triangle_table[] = {
    TSI_ATTR(tsi_triangle_attributes, diagonal, INT, "diagonal", "0"), { 0 }
};

static ts_status triangle_infer(const tsi_op_call *call)
{
    if (call->in[0].shape.ndim < 2)
        return TSI_FAIL(TS_ERR_SHAPE, "%s: needs two dims, the tensor has %d", call->op->name,
                        call->in[0].shape.ndim);
    return tsi_infer_like(call);
}

static void triangle_rules(const tsi_op_call *call, tsi_rules *rules)
{
    tsi_rules_batch(rules, call->in[0].shape.ndim, 0);
}

static ts_status triangle_reference(const tsi_kernel_io *io)
{
    const tsi_operand *x = &io->in[0];
    const tsi_block *in = &x->block, *out = &io->out[0].block;
    int64_t diagonal = ((const tsi_triangle_attributes *)io->attributes)->diagonal;
    bool lower = io->op == &tsi_op_tril;
    int32_t last = in->ndim - 1;
    size_t size = ts_dtype_size((ts_dtype)in->dtype);
    tsi_loop loop = TSI_LOOP(in, in->stride, out->stride);
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        int64_t row = tsi_operand_global(x, last - 1, loop.index[last - 1]);
        int64_t off = tsi_operand_global(x, last, loop.index[last]) - row;
        bool kept = lower ? off <= diagonal : off >= diagonal;
        void *to = tsi_block_at(out, loop.at[1]);
        if (!kept)
            memset(to, 0, size);
        else if (!io->in_place)
            memcpy(to, tsi_block_at(in, loop.at[0]), size);
    }
    return TS_OK;
}

static ts_status triangle_grad(const tsi_grad_io *io)
{
    return tsi_grad_give(io, tsi_op_make(io->op, io->out_grad, 1, io->attributes));
}

static bool sample_triangle(tsi_sample *s)
{
    s->count = 1;
    s->in[0] = tsi_meta_f64(TS_SHAPE(5, 4));
    if (s->variant == 2) s->in[0].shape = TS_SHAPE(2, 3, 5);
    ((tsi_triangle_attributes *)s->attributes)->diagonal = s->variant == 1 ? -2 : s->variant;
    return s->variant < 3;
}

#define TRIANGLE                                                                                   \
    .input_min = 1, .input_max = 1, .output_count = 1, .flags = TSI_OP_IN_PLACE,                   \
    .traits = { .flow = TSI_SELECT }, .attribute = triangle_table,                                 \
    .attribute_bytes = sizeof(tsi_triangle_attributes), .infer = triangle_infer,                   \
    .rules = triangle_rules, .reference = triangle_reference, .grad = triangle_grad,               \
    .sample = sample_triangle

const tsi_op_desc tsi_op_tril = {
    .name = "tril",
    .what = "zeros above a diagonal of the last two dims",
    TRIANGLE,
};
const tsi_op_desc tsi_op_triu = {
    .name = "triu",
    .what = "zeros below a diagonal of the last two dims",
    TRIANGLE,
};

/* ---- makers ---------------------------------------------------------------------------------- */

static ts_tensor *triangle(const tsi_op_desc *op, ts_tensor *x, int64_t diagonal, int32_t in_place)
{
    tsi_triangle_attributes a = { diagonal };
    tsi_op_args args = { op, &x, 1, in_place, &a };
    ts_tensor *out[TSI_OUTPUT_MAX];
    return tsi_op_run(&args, out) == TS_OK ? out[0] : NULL;
}

ts_tensor *(ts_tril)(ts_tensor *x, int64_t diagonal)
{
    return triangle(&tsi_op_tril, x, diagonal, 0);
}

ts_tensor *(ts_triu)(ts_tensor *x, int64_t diagonal)
{
    return triangle(&tsi_op_triu, x, diagonal, 0);
}

ts_tensor *(ts_tril_)(ts_tensor *x, int64_t diagonal)
{
    return triangle(&tsi_op_tril, x, diagonal, 1);
}

ts_tensor *(ts_triu_)(ts_tensor *x, int64_t diagonal)
{
    return triangle(&tsi_op_triu, x, diagonal, 1);
}
