/* SPDX-License-Identifier: Apache-2.0 */
/* compose.c - functions made of operators (tessera/op_compose.h): placements, gradients and
 * refusals are those of their parts. */
#include "tessera/op_compose.h"

#include <math.h>

#include "op/core/common.h"
#include "tensor/scope.h"

/* Records a refusal of the function itself; NULL, for makers. */
static ts_tensor *refuse_dims(const char *name, ts_tensor *x, const char *expected)
{
    ts_shape shape = ts_tensor_shape(x);
    char text[96];
    if (x && !tsi_tensor_enter(x, name)) return NULL;
    if (x && ts_rank_status(x->rank) == TS_OK)
        (void)TSI_FAIL(TS_ERR_SHAPE, "%s: takes %s, not %s", name, expected,
                       tsi_shape_text(&shape, text, sizeof text));
    return NULL;
}

/* ---- reductions ------------------------------------------------------------------------------ */

ts_tensor *(ts_nansum)(ts_tensor *x, const int64_t *dims, int32_t count, int keepdim)
{
    ts_scope inner = tsi_scope_inner(x);
    return ts_scope_leave(inner, ts_sum(ts_masked_fill(x, ts_isnan(x), 0.0), dims, count, keepdim));
}

ts_tensor *(ts_nanmean)(ts_tensor *x, const int64_t *dims, int32_t count, int keepdim)
{
    ts_scope inner = tsi_scope_inner(x);
    ts_tensor *there = ts_sum(ts_logical_not(ts_isnan(x)), dims, count, keepdim);
    return ts_scope_leave(inner, ts_div((ts_nansum)(x, dims, count, keepdim), there));
}

/* The last of the k smallest. */
ts_status(ts_kthvalue)(ts_tensor *x, int64_t k, int32_t dim, ts_tensor *out[2])
{
    ts_topk_options options = TS_INIT(ts_topk_options);
    ts_tensor *part[2] = { NULL, NULL };
    out[0] = out[1] = NULL;
    options.k = k;
    options.dim = dim;
    options.smallest = 1;
    if (x && k < 1)
        return TSI_FAIL(TS_ERR_ARG, "kthvalue: %lld of a dim, which counts from 1", (long long)k);
    ts_scope inner = tsi_scope_inner(x);
    ts_status status = ts_topk(x, &options, &part[0], &part[1]);
    bool whole = ts_tensor_shape(x).ndim == 0;
    for (int i = 0; status == TS_OK && i < 2; i++)
        out[i] = ts_scope_pass(inner, whole ? part[i] : ts_select(part[i], dim, k - 1));
    if (status == TS_OK) status = ts_rank_status(x->rank);
    ts_scope_close(inner);
    return status;
}

ts_status(ts_median)(ts_tensor *x, int32_t dim, ts_tensor *out[2])
{
    ts_shape shape = ts_tensor_shape(x);
    int32_t d = dim < 0 ? dim + shape.ndim : dim;
    bool there = d >= 0 && d < shape.ndim;
    ts_scope inner = tsi_scope_inner(x);
    ts_tensor *largest[] = { NULL, NULL }, *none = NULL;
    ts_status status = (ts_kthvalue)(x, there ? (shape.extent[d] + 1) / 2 : 1, dim, out);
    bool real = status == TS_OK && tsi_dtype_category((ts_dtype)x->dtype) == TSI_CATEGORY_REAL;
    if (real) status = ts_max(x, dim, &largest[0], &largest[1]);
    if (real && status == TS_OK) none = ts_isnan(largest[0]);
    for (int i = 0; i < 2; i++)
        out[i] = ts_scope_pass(inner, none ? ts_where(none, largest[i], out[i]) : out[i]);
    if (status == TS_OK) status = ts_rank_status(x->rank);
    ts_scope_close(inner);
    return status;
}

/* ---- vectors and matrices -------------------------------------------------------------------- */

ts_tensor *(ts_outer)(ts_tensor *a, ts_tensor *b)
{
    if (a && ts_tensor_shape(a).ndim != 1) return refuse_dims("outer", a, "two vectors");
    if (b && ts_tensor_shape(b).ndim != 1) return refuse_dims("outer", b, "two vectors");
    ts_scope inner = tsi_scope_inner(a);
    return ts_scope_leave(inner, ts_mul(ts_unsqueeze(a, 1), b));
}

ts_tensor *(ts_trace)(ts_tensor *x)
{
    if (x && ts_tensor_shape(x).ndim != 2) return refuse_dims("trace", x, "a matrix");
    ts_scope inner = tsi_scope_inner(x);
    return ts_scope_leave(inner, ts_sum(ts_diagonal(x, 0, 0, 1), NULL, 0, 0));
}

static ts_tensor *shifted(ts_tensor *x, int64_t dim, int64_t by)
{
    return ts_roll(x, &by, &dim, 1);
}

/* a[i + 1] b[i + 2] - a[i + 2] b[i + 1], around the three */
ts_tensor *(ts_cross)(ts_tensor *a, ts_tensor *b, int32_t dim)
{
    ts_shape shape = ts_tensor_shape(a);
    int32_t d = dim < 0 ? dim + shape.ndim : dim;
    if (a && (d < 0 || d >= shape.ndim || shape.extent[d] != 3))
        return refuse_dims("cross", a, "a dim of extent 3");
    ts_scope inner = tsi_scope_inner(a);
    return ts_scope_leave(inner, ts_sub(ts_mul(shifted(a, dim, -1), shifted(b, dim, -2)),
                                        ts_mul(shifted(a, dim, -2), shifted(b, dim, -1))));
}

/* The 2-norm along a dim, which stays; at least epsilon. */
static ts_tensor *length_of(ts_tensor *x, int64_t dim, double epsilon)
{
    ts_norm_options options = TS_INIT(ts_norm_options);
    options.dims = &dim;
    options.count = 1;
    options.keepdim = 1;
    options.p = 2;
    return ts_clamp(ts_vector_norm(x, &options), epsilon, (double)NAN);
}

ts_tensor *(ts_normalize)(ts_tensor *x, int32_t dim, double epsilon)
{
    ts_scope inner = tsi_scope_inner(x);
    return ts_scope_leave(inner, ts_div(x, length_of(x, dim, epsilon)));
}

/* x with the dims that it has when it is broadcast against y, and along `dim` with the extent it
 * has then: what is repeated counts in a length. */
static ts_tensor *repeated_along(ts_tensor *x, ts_tensor *y, int32_t dim)
{
    if (!x || !y) return x;
    ts_shape mine = ts_tensor_shape(x), other = ts_tensor_shape(y), out = other;
    int32_t ndim = mine.ndim > other.ndim ? mine.ndim : other.ndim, d = dim < 0 ? dim + ndim : dim;
    out.ndim = ndim;
    for (int32_t k = 0; k < ndim; k++) {
        int32_t here = k - (ndim - mine.ndim), there = k - (ndim - other.ndim);
        out.extent[k] = here >= 0 ? mine.extent[here] : 1;
        if (k == d && out.extent[k] == 1 && there >= 0) out.extent[k] = other.extent[there];
    }
    bool same = ndim == mine.ndim && (d < 0 || d >= ndim || out.extent[d] == mine.extent[d]);
    return same ? x : ts_expand(x, out);
}

ts_tensor *(ts_cosine_similarity)(ts_tensor *a, ts_tensor *b, int32_t dim)
{
    const double least = 1e-8;
    int64_t d = dim;
    ts_scope inner = tsi_scope_inner(a);
    ts_tensor *one = (ts_normalize)(repeated_along(a, b, dim), dim, least);
    ts_tensor *other = (ts_normalize)(repeated_along(b, a, dim), dim, least);
    return ts_scope_leave(inner, ts_sum(ts_mul(one, other), &d, 1, 0));
}

/* ---- indices --------------------------------------------------------------------------------- */

ts_tensor *(ts_one_hot)(ts_tensor *index, int64_t classes)
{
    if (!tsi_tensor_enter(index, "one_hot")) return NULL;
    ts_scope inner = tsi_scope_inner(index);
    ts_tensor *number =
        ts_arange(ts_tensor_mesh(index), TS_DTYPE_I64, TS_SHAPE(classes), NULL, NULL);
    return ts_scope_leave(inner, ts_cast(ts_eq(ts_unsqueeze(index, -1), number), TS_DTYPE_I64));
}

static ts_tensor *put_at(ts_tensor *x, int32_t dim, ts_tensor *index, ts_tensor *values)
{
    int64_t d = dim;
    ts_index_options options = TS_INIT(ts_index_options);
    options.index = &index;
    options.dims = &d;
    options.count = 1;
    return ts_index_put(x, values, &options);
}

ts_tensor *(ts_index_fill)(ts_tensor *x, int32_t dim, ts_tensor *index, double value)
{
    if (!x) return put_at(x, dim, index, x); /* which says so */
    if (!tsi_tensor_enter(x, "index_fill")) return NULL;
    ts_scope inner = tsi_scope_inner(x);
    ts_tensor *one = ts_full(value, x->mesh, ts_tensor_dtype(x), TS_SHAPE_SCALAR, NULL);
    return ts_scope_leave(inner, put_at(x, dim, index, one));
}

ts_tensor *(ts_index_copy)(ts_tensor *x, int32_t dim, ts_tensor *index, ts_tensor *source)
{
    return put_at(x, dim, index, source);
}

ts_tensor *(ts_tile)(ts_tensor *x, const int64_t *repeats, int32_t count)
{
    ts_shape shape = ts_tensor_shape(x);
    int64_t all[TS_NDIM_MAX];
    if (!x || !repeats || count >= shape.ndim) return ts_repeat(x, repeats, count);
    for (int32_t d = 0; d < shape.ndim; d++)
        all[d] = d < shape.ndim - count ? 1 : repeats[d - (shape.ndim - count)];
    return ts_repeat(x, all, shape.ndim);
}

/* ---- layers ---------------------------------------------------------------------------------- */

ts_tensor *(ts_glu)(ts_tensor *x, int32_t dim)
{
    ts_shape shape = ts_tensor_shape(x);
    ts_tensor *half[2] = { NULL, NULL };
    int32_t d = dim < 0 ? dim + shape.ndim : dim;
    if (x && (d < 0 || d >= shape.ndim || shape.extent[d] % 2))
        return refuse_dims("glu", x, "a dim of even extent");
    ts_scope inner = tsi_scope_inner(x);
    (void)ts_chunk(x, dim, 2, half);
    return ts_scope_leave(inner, ts_mul(half[0], ts_sigmoid(half[1])));
}

/* [C] as [C, 1, ..], to go with x [N, C, ..]. */
static ts_tensor *per_channel(ts_tensor *p, const ts_shape *x)
{
    ts_shape shape = { .ndim = x->ndim - 1, .extent = { ts_tensor_shape(p).extent[0] } };
    for (int32_t d = 1; d < shape.ndim; d++)
        shape.extent[d] = 1;
    return p ? ts_reshape(p, shape) : NULL;
}

ts_tensor *(ts_batch_norm)(ts_tensor *x, const ts_batch_norm_options *options)
{
    if (!x) return ts_neg(x); /* which says so */
    ts_shape shape = ts_tensor_shape(x);
    if (!options || !options->mean || !options->variance) {
        if (ts_rank_status(x->rank) == TS_OK)
            (void)TSI_FAIL(TS_ERR_NULL, "batch_norm: the mean and variance are required");
        return NULL;
    }
    if (shape.ndim < 2) return refuse_dims("batch_norm", x, "[N, C, ..]");
    bool exact = options->struct_size > offsetof(ts_batch_norm_options, exact) && options->exact;
    double epsilon = options->epsilon != 0 || exact ? options->epsilon : 1e-5;
    ts_scope inner = tsi_scope_inner(x);
    ts_tensor *factor = ts_rsqrt(ts_add_scalar(options->variance, epsilon));
    if (options->weight) factor = ts_mul(factor, options->weight);
    ts_tensor *y =
        ts_mul(ts_sub(x, per_channel(options->mean, &shape)), per_channel(factor, &shape));
    if (options->bias) y = ts_add(y, per_channel(options->bias, &shape));
    return ts_scope_leave(inner, y);
}
