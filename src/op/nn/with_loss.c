/* SPDX-License-Identifier: Apache-2.0 */
/* with_loss.c - a tensor that takes a loss along: forward it is x itself; backward the loss gets
 * its gradient, a given factor, as if it had been added to what the tape ends in.
 *
 * So a layer's own loss (of a router, for one) needs no way out of the layer: not through blocks
 * that pass one tensor on, nor through stages of other ranks, nor out of a function that runs
 * again. The loss may be a pending sum: its terms get the same gradient each. */
#include "op/core/common.h"

typedef struct with_attributes {
    double factor;
} with_attributes;
static const tsi_attribute with_table[] = { TSI_ATTR(with_attributes, factor, REAL, "factor", "1"),
                                            { 0 } };

static ts_status with_infer(const tsi_op_call *call)
{
    char text[96];
    if (ts_shape_count(&call->in[1].shape) != 1)
        return TSI_FAIL(TS_ERR_SHAPE, "with_loss: a loss is one number, not %s",
                        tsi_shape_text(&call->in[1].shape, text, sizeof text));
    call->out[0] = call->in[0];
    return TS_OK;
}

/* x as it is, and the loss as it is. */
static void with_rules(const tsi_op_call *call, tsi_rules *rules)
{
    const tsi_role losses[] = { TSI_ROLE_R, TSI_P(TS_REDUCE_SUM) };
    for (int32_t d = -1; d < call->in[0].shape.ndim; d++)
        for (int i = 0; i < 2; i++) {
            tsi_role *row = tsi_rules_add(rules);
            row[0] = row[2] = d < 0 ? TSI_ROLE_R : TSI_S(d);
            row[1] = losses[i];
        }
}

static ts_status with_reference(const tsi_kernel_io *io)
{
    return io->device->copy(io->device, &io->out[0].block, &io->in[0].block, io->queue);
}

static ts_status with_grad(const tsi_grad_io *io)
{
    const with_attributes *at = io->attributes;
    if (io->needs & 1) io->in_grad[0] = io->out_grad[0];
    if (io->needs & 2)
        io->in_grad[1] = (ts_full)(at->factor, io->out_grad[0]->mesh,
                                   (ts_dtype)io->in_meta[1].dtype, io->in_meta[1].shape, NULL);
    return ts_rank_status(io->rank);
}

static bool sample_with(tsi_sample *s)
{
    s->count = 2;
    s->in[0] = tsi_meta_f64(TS_SHAPE(5, 3));
    s->in[1] = tsi_meta_f64(TS_SHAPE_SCALAR);
    ((with_attributes *)s->attributes)->factor = 1;
    return s->variant < 1;
}

const tsi_op_desc tsi_op_with_loss = {
    .name = "with_loss",
    .what = "x, which takes a loss along: backward the loss gets the factor as its gradient",
    TSI_OPERANDS(2, 2, 1),
    .flags = TSI_OP_MOVES,
    .dtypes = TSI_DTYPES_REAL,
    TSI_ATTRIBUTES(with_table, with_attributes),
    .infer = with_infer,
    .rules = with_rules,
    .reference = with_reference,
    .grad = with_grad,
    .sample = sample_with,
};

ts_tensor *(ts_with_loss)(ts_tensor *x, ts_tensor *loss, double factor)
{
    ts_tensor *in[] = { x, loss };
    with_attributes at = { factor };
    return tsi_op_make(&tsi_op_with_loss, in, 2, &at);
}
