/* SPDX-License-Identifier: Apache-2.0 */
/* attention_bias.c - attention with a dense bias or mask that is a tensor: the last resort, where
 * scores of all pairs exist.
 *
 *   s = cap(scale q k^T) + alibi + bias   hidden pairs: -inf   m = max(rows of s), at least -1e30
 *   e = exp(s - m)    l = rows of e    out = (kept e) v / l    lse = m + log l
 *
 * It is made of other operators, so that it is cut, and differentiated by q, k, v and bias, as they
 * are. INV: a query that sees nothing gives zeros and lse = -inf, and no NaN on the way back. */
#include "op/nn/attention_bias.h"

#include <math.h>

#include "base/rank.h"
#include "mask/mask.h"
#include "op/core/common.h"
#include "tensor/scope.h"
#include "tessera/op.h"

typedef struct pairs { /* what is known of each pair without tensors */
    const ts_mask *mask;
    int64_t offset, heads;
    tsi_attention_drop drop;
} pairs;

static tsi_mask_at at_of(const int64_t *global)
{
    return (tsi_mask_at){ global[0], global[1] };
}

static ts_status hidden_at(const int64_t *global, void *element, void *context)
{
    const pairs *p = context;
    *(unsigned char *)element =
        !tsi_mask_sees(p->mask, at_of(global), global[2] + p->offset, global[3]);
    return TS_OK;
}

static ts_status alibi_at(const int64_t *global, void *element, void *context)
{
    const pairs *p = context;
    *(double *)element =
        (double)(global[3] - global[2] - p->offset) * tsi_mask_slope(global[1], p->heads);
    return TS_OK;
}

static ts_status kept_at(const int64_t *global, void *element, void *context)
{
    const pairs *p = context;
    bool keeps = tsi_attention_keeps(&p->drop, global[0], global[1], global[2], global[3]);
    *(double *)element = keeps ? p->drop.factor : 0.0;
    return TS_OK;
}

/* A tensor of all pairs that is cut as scores are. */
static ts_tensor *of_pairs(ts_tensor *score, ts_dtype dtype, ts_element_fn fn, pairs *p)
{
    if (!score) return NULL;
    const ts_sharding *have = score->layout->sharding;
    ts_placement place[TS_NDIM_MAX];
    for (int32_t k = 0; k < have->ndim; k++) {
        place[k] = have->place[k];
        if (tsi_placement_partial(&place[k]))
            place[k] = (ts_placement){ .kind = TS_PLACE_REPLICATE, .factor = 1, .align = 1 };
    }
    const ts_sharding *where = tsi_sharding_intern(have->mesh, place);
    ts_meta meta = { .shape = ts_tensor_shape(score), .dtype = (int32_t)dtype };
    ts_tensor *made = where ? (ts_from_function)(fn, p, where, meta) : NULL;
    ts_sharding_release(where);
    return made;
}

static ts_tensor *scores_of(ts_tensor *const in[4], double scale, ts_dtype wide, pairs *p)
{
    ts_tensor *s = ts_mul_scalar(ts_matmul(in[0], ts_transpose(in[1], 2, 3)), scale);
    if (p->mask->cap > 0)
        s = ts_mul_scalar(ts_tanh(ts_mul_scalar(s, 1.0 / p->mask->cap)), p->mask->cap);
    if (p->mask->alibi) s = ts_add(s, ts_cast(of_pairs(s, TS_DTYPE_F64, alibi_at, p), wide));
    if (ts_tensor_dtype(in[3]) == TS_DTYPE_BOOL)
        s = ts_masked_fill(s, ts_logical_not(in[3]), -(double)INFINITY);
    else
        s = ts_add(s, ts_cast(in[3], wide));
    if (tsi_mask_is_full(p->mask)) return s;
    return ts_masked_fill(s, of_pairs(s, TS_DTYPE_BOOL, hidden_at, p), -(double)INFINITY);
}

/* The largest score of each query, which is no function of them as far as gradients go. Where there
 * are no keys it is any number. */
static ts_tensor *tops_of(ts_rank *rank, ts_tensor *s)
{
    const int64_t keys[] = { 3 };
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.no_grad = 1;
    ts_scope scope = ts_scope_open_with(rank, &options);
    bool none = s && ts_tensor_shape(s).extent[3] == 0;
    ts_tensor *top = none ? ts_sum(s, keys, 1, 1) : ts_amax(s, keys, 1, 1);
    top = ts_clamp(top, -1e30, (double)NAN);
    top = top ? ts_scope_pass(scope, top) : NULL;
    ts_scope_close(scope);
    return top;
}

static ts_status check(ts_tensor *const in[4])
{
    ts_shape q = ts_tensor_shape(in[0]), k = ts_tensor_shape(in[1]), v = ts_tensor_shape(in[2]);
    ts_shape b = ts_tensor_shape(in[3]);
    bool fits = q.ndim == 4 && k.ndim == 4 && v.ndim == 4 && k.extent[1] > 0 &&
                q.extent[0] == k.extent[0] && k.extent[0] == v.extent[0] &&
                k.extent[1] == v.extent[1] && k.extent[2] == v.extent[2] &&
                q.extent[3] == k.extent[3] && q.extent[1] % k.extent[1] == 0 && b.ndim == 4;
    const int64_t all[] = { q.extent[0], q.extent[1], q.extent[2], k.extent[2] };
    for (int32_t d = 0; d < 4; d++)
        fits = fits && (b.extent[d] == 1 || b.extent[d] == all[d]);
    char text[4][96];
    if (fits) return TS_OK;
    return TSI_FAIL(
        TS_ERR_SHAPE,
        "attention: q %s, k %s, v %s and a bias %s do not fit: [B, H, T, D], "
        "[B, G, S, D], [B, G, S, E] with H a multiple of G, and [B, H, T, S] or 1",
        tsi_shape_text(&q, text[0], sizeof text[0]), tsi_shape_text(&k, text[1], sizeof text[1]),
        tsi_shape_text(&v, text[2], sizeof text[2]), tsi_shape_text(&b, text[3], sizeof text[3]));
}

ts_status tsi_attention_biased(ts_tensor *const given[4], const tsi_attention_attributes *a,
                               ts_tensor *out[2])
{
    out[0] = out[1] = NULL;
    for (int i = 0; i < 4; i++)
        if (!given[i]) return TS_ERR_NULL; /* whoever failed has told */
    TSI_TRY(check(given));
    ts_shape q = ts_tensor_shape(given[0]), k = ts_tensor_shape(given[1]);
    ts_rank *rank = given[0]->rank;
    ts_dtype dtype = (ts_dtype)ts_tensor_dtype(given[0]);
    ts_dtype wide = dtype == TS_DTYPE_F64 ? TS_DTYPE_F64 : TS_DTYPE_F32;
    pairs p = { .offset = k.extent[2] - q.extent[2], .heads = q.extent[1] };
    p.drop = tsi_attention_drop_of(a, &q, &k);
    p.mask = tsi_mask_find(rank->world, tsi_attention_mask(a));
    if (!p.mask) return TS_ERR_ARG;
    ts_status status = tsi_mask_check(p.mask, "attention", q.extent[0], q.extent[2], k.extent[2]);
    ts_tensor *in[4] = { ts_cast(given[0], wide), ts_cast(given[1], wide), ts_cast(given[2], wide),
                         given[3] };
    int64_t repeats = q.extent[1] / k.extent[1];
    for (int i = 1; i < 3 && repeats > 1; i++)
        in[i] = ts_repeat_interleave(in[i], repeats, 1);
    if (status == TS_OK) {
        double scale = isnan(a->scale) ? 1.0 / sqrt((double)q.extent[3]) : a->scale;
        ts_tensor *s = scores_of(in, scale, wide, &p), *top = tops_of(rank, s);
        ts_tensor *e = ts_exp(ts_sub(s, top));
        ts_tensor *l = ts_sum(e, (const int64_t[]){ 3 }, 1, 1);
        if (a->dropout > 0) e = ts_mul(e, ts_cast(of_pairs(e, TS_DTYPE_F64, kept_at, &p), wide));
        ts_tensor *some = ts_add(l, ts_cast(ts_eq_scalar(l, 0.0), wide)); /* 1 for nothing */
        out[0] = ts_cast(ts_div(ts_matmul(e, in[2]), some), dtype);
        ts_tensor *lse =
            ts_masked_fill(ts_add(top, ts_log(some)), ts_eq_scalar(l, 0.0), -(double)INFINITY);
        out[1] = ts_squeeze(lse, (const int64_t[]){ 3 }, 1);
        status = ts_rank_status(rank);
    }
    ts_mask_release(p.mask);
    return status;
}
