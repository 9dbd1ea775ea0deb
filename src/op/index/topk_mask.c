/* SPDX-License-Identifier: Apache-2.0 */
/* topk_mask.c - 1 where an element is among the k largest of the last dim, else 0: what a router of
 * experts chooses.
 *
 * Ties go to the smaller index. Leading dims may stay sharded; the last one is gathered, being as
 * short as there are experts. */
#include <string.h>

#include "op/core/common.h"

typedef struct topk_mask_attributes {
    int64_t k;
} topk_mask_attributes;
static const tsi_attribute topk_mask_table[] = { TSI_ATTR(topk_mask_attributes, k, INT, "k", NULL),
                                                 { 0 } };

static ts_status topk_mask_infer(const tsi_op_call *call)
{
    int64_t k = ((const topk_mask_attributes *)call->attributes)->k;
    const ts_shape *x = &call->in[0].shape;
    if (x->ndim < 1 || k < 0 || k > x->extent[x->ndim - 1])
        return TSI_FAIL(TS_ERR_ARG, "topk_mask: %lld of %lld cannot be chosen", (long long)k,
                        x->ndim ? (long long)x->extent[x->ndim - 1] : 0LL);
    call->out[0] = call->in[0];
    return TS_OK;
}

static void topk_mask_rules(const tsi_op_call *call, tsi_rules *rules)
{
    tsi_rules_batch(rules, call->in[0].shape.ndim, 1u << (call->in[0].shape.ndim - 1));
}

/* How many of the row come before element c: larger ones, and equal ones of smaller index. */
static int64_t rank_of(const tsi_block *x, int64_t at, int64_t c)
{
    int32_t last = x->ndim - 1;
    double mine = tsi_block_real(x, at + c * x->stride[last]);
    int64_t before = 0;
    for (int64_t i = 0; i < x->extent[last]; i++) {
        double other = tsi_block_real(x, at + i * x->stride[last]);
        before += other > mine || (other == mine && i < c);
    }
    return before;
}

static ts_status topk_mask_reference(const tsi_kernel_io *io)
{
    const tsi_block *x = &io->in[0].block, *out = &io->out[0].block;
    int64_t k = ((const topk_mask_attributes *)io->attributes)->k;
    int32_t last = x->ndim - 1;
    tsi_loop loop = { .ndim = last, .operand_count = 2, .stride = { x->stride, out->stride } };
    memcpy(loop.extent, x->extent, sizeof loop.extent);
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop))
        for (int64_t c = 0; c < x->extent[last]; c++)
            tsi_block_set_real(out, loop.at[1] + c * out->stride[last],
                               rank_of(x, loop.at[0], c) < k ? 1.0 : 0.0);
    return TS_OK;
}

static bool sample_topk_mask(tsi_sample *s)
{
    s->count = 1;
    s->in[0] = tsi_meta_f64(TS_SHAPE(5, 6));
    ((topk_mask_attributes *)s->attributes)->k = 2 + s->variant;
    return s->variant < 2;
}

const tsi_op_desc tsi_op_topk_mask = {
    .name = "topk_mask",
    .what = "1 where an element is among the k largest of the last dim, else 0",
    .dtypes = TSI_DTYPES_ORDERED,
    TSI_OPERANDS(1, 1, 1),
    .flags = TSI_OP_NO_GRAD | TSI_OP_FREE,
    TSI_ATTRIBUTES(topk_mask_table, topk_mask_attributes),
    .infer = topk_mask_infer,
    .rules = topk_mask_rules,
    .reference = topk_mask_reference,
    .sample = sample_topk_mask,
};

ts_tensor *(ts_topk_mask)(ts_tensor *x, int64_t k)
{
    return tsi_op_make(&tsi_op_topk_mask, &x, 1, &k);
}
