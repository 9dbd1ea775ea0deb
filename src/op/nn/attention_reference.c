/* SPDX-License-Identifier: Apache-2.0 */
/* attention_reference.c - attention and its gradient pair by pair: the oracle, and what runs in
 * f64.
 *
 *   s = cap(scale q k^T) + bias     p = e^(s - lse) over the keys that are seen     out = p v
 *   ds = p (dp - delta)             through the cap: ds (1 - tanh^2)
 *
 * INV: a query that sees nothing gives zeros and lse = -inf, and takes no part in any gradient. */
#include <math.h>

#include "base/rank.h"
#include "mask/mask.h"
#include "op/core/common.h"
#include "op/nn/attention.h"

/* What a rank holds of q and k, as loops need it. */
typedef struct attention_view {
    const tsi_kernel_io *io;
    const ts_mask *mask; /* retained; NULL: causal, or all */
    double scale;
    int64_t group;  /* heads per group, globally */
    int64_t offset; /* of queries: S - T */
    bool causal;
    tsi_attention_drop drop;
} attention_view;

typedef struct pair { /* local indices of one query and its group */
    int64_t b, h, g, i;
} pair;

static ts_status view_of(const tsi_kernel_io *io, attention_view *out)
{
    const tsi_attention_attributes *a = io->attributes;
    const ts_shape *q = &io->in[0].global->shape, *k = &io->in[1].global->shape;
    *out = (attention_view){ .io = io, .scale = a->scale, .causal = a->causal };
    out->group = q->extent[1] / k->extent[1];
    out->offset = k->extent[2] - q->extent[2];
    out->drop = tsi_attention_drop_of(a, q, k);
    if (!a->mask[0]) return TS_OK;
    out->mask = tsi_mask_find(io->rank->world, a->mask);
    return out->mask ? TS_OK : TS_ERR_ARG;
}

/* The local group of k that a local head of q uses. */
static int64_t group_of(const attention_view *view, int64_t head)
{
    int64_t group = tsi_operand_global(&view->io->in[0], 1, head) / view->group;
    const tsi_operand *k = &view->io->in[1];
    return tsi_operand_local(k, 1, group);
}

static bool sees(const attention_view *view, const pair *p, int64_t j)
{
    const tsi_operand *q = &view->io->in[0];
    int64_t query = tsi_operand_global(q, 2, p->i) + view->offset;
    int64_t key = tsi_operand_global(&view->io->in[1], 2, j);
    if (!view->mask) return !view->causal || key <= query;
    tsi_mask_at at = { tsi_operand_global(q, 0, p->b), tsi_operand_global(q, 1, p->h) };
    return tsi_mask_sees(view->mask, at, query, key);
}

/* What a weight is multiplied by. */
static double kept(const attention_view *view, const pair *p, int64_t j)
{
    const tsi_operand *q = &view->io->in[0];
    if (view->drop.below == 0) return 1.0;
    return tsi_attention_keeps(&view->drop, tsi_operand_global(q, 0, p->b),
                               tsi_operand_global(q, 1, p->h), tsi_operand_global(q, 2, p->i),
                               tsi_operand_global(&view->io->in[1], 2, j))
               ? view->drop.factor
               : 0.0;
}

/* ---- elements -------------------------------------------------------------------------------- */

static double at4(const tsi_block *x, int64_t b, int64_t h, int64_t t, int64_t d)
{
    return tsi_block_real(x, b * x->stride[0] + h * x->stride[1] + t * x->stride[2] +
                                 d * x->stride[3]);
}

static void put4(const tsi_block *x, int64_t b, int64_t h, int64_t t, int64_t d, double value)
{
    tsi_block_set_real(x, b * x->stride[0] + h * x->stride[1] + t * x->stride[2] + d * x->stride[3],
                       value);
}

static void add4(const tsi_block *x, int64_t b, int64_t h, int64_t t, int64_t d, double value)
{
    put4(x, b, h, t, d, at4(x, b, h, t, d) + value);
}

static void *lse_at(const tsi_block *lse, const pair *p)
{
    return tsi_block_at(lse, p->b * lse->stride[0] + p->h * lse->stride[1] + p->i * lse->stride[2]);
}

/* A score; *slope is its derivative by q k^T. */
static double score(const attention_view *view, const pair *p, int64_t j, double *slope)
{
    const tsi_block *q = &view->io->in[0].block, *k = &view->io->in[1].block;
    double sum = 0, cap = view->mask ? view->mask->cap : 0;
    for (int64_t d = 0; d < q->extent[3]; d++)
        sum += at4(q, p->b, p->h, p->i, d) * at4(k, p->b, p->g, j, d);
    sum *= view->scale;
    *slope = view->scale;
    if (cap > 0) {
        double t = tanh(sum / cap);
        *slope *= 1.0 - t * t;
        sum = cap * t;
    }
    if (!view->mask || !view->mask->alibi) return sum;
    const tsi_operand *in = view->io->in;
    int64_t apart =
        tsi_operand_global(&in[1], 2, j) - tsi_operand_global(&in[0], 2, p->i) - view->offset;
    return sum + (double)apart * tsi_mask_slope(tsi_operand_global(&in[0], 1, p->h),
                                                in[0].global->shape.extent[1]);
}

/* ---- forward --------------------------------------------------------------------------------- */

static void attend(const attention_view *view, const pair *p)
{
    const tsi_block *v = &view->io->in[2].block, *out = &view->io->out[0].block,
                    *lse = &view->io->out[1].block;
    int64_t keys = view->io->in[1].block.extent[2], seen = 0;
    double top = -INFINITY, sum = 0, slope, before = -INFINITY;
    if (view->io->adds) before = tsi_load_real((ts_dtype)lse->dtype, lse_at(lse, p));
    bool goes_on = !(isinf(before) && before < 0);
    if (goes_on) top = before;
    for (int64_t j = 0; j < keys; j++)
        if (sees(view, p, j)) {
            top = fmax(top, score(view, p, j, &slope));
            seen++;
        }
    if (goes_on) sum = exp(before - top);
    double shrink = sum;
    for (int64_t j = 0; j < keys; j++)
        if (sees(view, p, j)) sum += exp(score(view, p, j, &slope) - top);
    for (int64_t e = 0; e < out->extent[3]; e++)
        put4(out, p->b, p->h, p->i, e,
             goes_on ? at4(out, p->b, p->h, p->i, e) * (shrink / sum) : 0.0);
    for (int64_t j = 0; j < keys; j++) {
        if (!sees(view, p, j)) continue;
        double weight = exp(score(view, p, j, &slope) - top) / sum * kept(view, p, j);
        for (int64_t e = 0; e < out->extent[3]; e++)
            add4(out, p->b, p->h, p->i, e, weight * at4(v, p->b, p->g, j, e));
    }
    tsi_store_real((ts_dtype)lse->dtype, lse_at(lse, p),
                   seen > 0 || goes_on ? top + log(sum) : -(double)INFINITY);
}

static void each_query(const attention_view *view,
                       void (*run)(const attention_view *view, const pair *p))
{
    const tsi_block *q = &view->io->in[0].block;
    for (int64_t b = 0; b < q->extent[0]; b++)
        for (int64_t h = 0; h < q->extent[1]; h++)
            for (int64_t i = 0; i < q->extent[2]; i++)
                run(view, &(pair){ b, h, group_of(view, h), i });
}

ts_status tsi_attention_reference(const tsi_kernel_io *io)
{
    attention_view view;
    TSI_TRY(view_of(io, &view));
    each_query(&view, attend);
    ts_mask_release(view.mask);
    return TS_OK;
}

/* ---- backward: inputs q, k, v, out, lse, d_out -> dq, dk, dv --------------------------------- */

static void attend_back(const attention_view *view, const pair *p)
{
    const tsi_kernel_io *io = view->io;
    const tsi_block *q = &io->in[0].block, *k = &io->in[1].block, *v = &io->in[2].block,
                    *out = &io->in[3].block, *lse = &io->in[4].block, *d_out = &io->in[5].block;
    const tsi_block *dq = &io->out[0].block, *dk = &io->out[1].block, *dv = &io->out[2].block;
    int64_t depth = q->extent[3], width = v->extent[3];
    double base = tsi_load_real((ts_dtype)lse->dtype, lse_at(lse, p)), delta = 0;
    if (isinf(base) && base < 0) return; /* it sees nothing */
    for (int64_t e = 0; e < width; e++)
        delta += at4(out, p->b, p->h, p->i, e) * at4(d_out, p->b, p->h, p->i, e);
    for (int64_t j = 0; j < k->extent[2]; j++) {
        if (!sees(view, p, j)) continue;
        double slope, weight = exp(score(view, p, j, &slope) - base), dp = 0;
        double keep = kept(view, p, j);
        for (int64_t e = 0; e < width; e++) {
            double grad = at4(d_out, p->b, p->h, p->i, e);
            dp += grad * at4(v, p->b, p->g, j, e);
            add4(dv, p->b, p->g, j, e, weight * keep * grad);
        }
        double ds = weight * (dp * keep - delta) * slope;
        for (int64_t d = 0; d < depth; d++) {
            add4(dq, p->b, p->h, p->i, d, ds * at4(k, p->b, p->g, j, d));
            add4(dk, p->b, p->g, j, d, ds * at4(q, p->b, p->h, p->i, d));
        }
    }
}

ts_status tsi_attention_backward_reference(const tsi_kernel_io *io)
{
    attention_view view;
    unsigned char zero[16] = { 0 };
    for (int32_t o = io->adds ? 1 : 0; o < 3; o++)
        TSI_TRY(io->device->fill(io->device, &io->out[o].block, zero, NULL));
    TSI_TRY(view_of(io, &view));
    each_query(&view, attend_back);
    ts_mask_release(view.mask);
    return TS_OK;
}
