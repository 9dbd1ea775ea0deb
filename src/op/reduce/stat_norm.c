/* SPDX-License-Identifier: Apache-2.0 */
/* stat_norm.c - the p-norm over dims.
 *
 * A reduced dim that is sharded leaves a norm of norms pending: P(norm:p), for infinite p P(max) or
 * P(min), for 0 a count, P(sum). Nothing is communicated. Rules have no role for P(norm:p), so the
 * layout of the result is built here.
 *
 * INV: no two kinds of pending reductions in one result: what is pending on the input is settled
 * first, unless it is the same norm. */
#include <math.h>
#include <string.h>

#include "op/pointwise/unary.h"
#include "op/reduce/reduce.h"

static const tsi_attribute vector_norm_table[] = {
    TSI_ATTR(tsi_reduce_attributes, p, REAL, "p", "2"),
    TSI_ATTR(tsi_reduce_attributes, dims, DIMS, "dims", "[]"),
    TSI_ATTR(tsi_reduce_attributes, keepdim, BOOL, "keepdim", "false"),
    { 0 },
};

static ts_status vector_norm_infer(const tsi_op_call *call)
{
    const tsi_reduce_attributes *a = call->attributes;
    ts_dtype dtype = (ts_dtype)call->in[0].dtype;
    TSI_TRY(tsi_reduce_infer(call));
    if (isnan(a->p)) return TSI_FAIL(TS_ERR_ARG, "vector_norm: p is not a number");
    int64_t count = 1;
    for (int32_t i = 0; i < a->dims.count; i++)
        count *= call->in[0].shape.extent[a->dims.value[i]];
    if (count == 0 && (a->p < 0 || isinf(a->p)))
        return TSI_FAIL(TS_ERR_SHAPE, "vector_norm: no elements have no norm with p = %g", a->p);
    call->out[0].dtype = (int32_t)tsi_dtype_to_real(dtype);
    if (dtype == TS_DTYPE_C64) call->out[0].dtype = TS_DTYPE_F32;
    if (dtype == TS_DTYPE_C128) call->out[0].dtype = TS_DTYPE_F64;
    return TS_OK;
}

/* ---- placements ------------------------------------------------------------------------------ */

static ts_placement pending(double p)
{
    ts_placement place = { .kind = TS_PLACE_PARTIAL, .factor = 1, .align = 1 };
    if (p == 0.0)
        place.reduce = TS_REDUCE_SUM;
    else if (isinf(p))
        place.reduce = p > 0 ? TS_REDUCE_MAX : TS_REDUCE_MIN;
    else {
        place.kind = TS_PLACE_NORM;
        place.norm = p;
    }
    return place;
}

/* A cut over several dims makes them one in a block, and those behind it move up: a kernel, which
 * counts dims of the tensor, finds what is reduced if it is all from the cut on, or none of it. */
static bool block_has_dims(const ts_placement *cut, uint32_t mask, int32_t ndim)
{
    uint32_t from = (1u << ndim) - (1u << cut->dim), reduced = mask & from;
    return cut->dim == cut->dim_last || reduced == 0 || reduced == from;
}

/* The placement of the result for that of the input; false: the input must be replicated. */
static bool carry(const tsi_op_call *call, const ts_placement *in, ts_placement *out)
{
    const tsi_reduce_attributes *a = call->attributes;
    uint32_t mask = tsi_reduce_mask(a);
    *out = *in;
    if (in->kind == TS_PLACE_REPLICATE) return true;
    if (in->kind == TS_PLACE_NORM) return in->norm == a->p;
    if (in->kind == TS_PLACE_PARTIAL) return false;
    uint32_t cut = 0;
    for (int32_t d = in->dim; d <= in->dim_last; d++)
        cut |= 1u << d;
    if (!block_has_dims(in, mask, call->in[0].shape.ndim)) return false;
    if ((cut & mask) == cut) {
        *out = pending(a->p);
        /* Norms are combined by their powers, in their own dtype: half precision overflows early.
         */
        return out->kind != TS_PLACE_NORM || call->out[0].dtype != TS_DTYPE_F16;
    }
    if (cut & mask) return false;
    int32_t before = 0;
    for (int32_t d = 0; d < in->dim; d++)
        before += !a->keepdim && mask >> d & 1;
    out->dim -= before;
    out->dim_last -= before;
    return true;
}

static ts_status vector_norm_propagate(const tsi_op_call *call, const ts_layout *in,
                                       const ts_layout **in_wanted, const ts_sharding **out)
{
    const ts_sharding *sharding = in->sharding;
    ts_placement place[TS_NDIM_MAX], result[TS_NDIM_MAX];
    const ts_placement whole = { .kind = TS_PLACE_REPLICATE, .factor = 1, .align = 1 };
    bool gather = false; /* a cut over dims that cannot stay: no cut does */
    for (int32_t k = 0; k < sharding->ndim; k++) {
        place[k] = sharding->place[k];
        if (carry(call, &place[k], &result[k])) continue;
        gather = gather || tsi_placement_cuts(&place[k]);
        place[k] = result[k] = whole;
    }
    for (int32_t k = 0; gather && k < sharding->ndim; k++)
        if (tsi_placement_cuts(&place[k])) place[k] = result[k] = whole;
    return tsi_propagate_to(call, sharding->mesh, place, result, in_wanted, out);
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* The norm of one line, scaled by its largest element, of negative powers by its smallest, so that
 * powers do not overflow. */
static double norm_of(const tsi_block *in, tsi_reduce_loops *loops, double p)
{
    bool lowest = p < 0, some = tsi_loop_begin(&loops->inner);
    double top = lowest ? (double)INFINITY : 0.0, sum = 0;
    for (bool more = some; more; more = tsi_loop_next(&loops->inner)) {
        double size = cabs(tsi_block_complex(in, loops->outer.at[0] + loops->inner.at[0]));
        if (isnan(size) && p != 0.0) return size;
        if (lowest ? size < top : size > top) top = size;
        sum += size != 0.0;
    }
    if (p == 0.0) return sum;
    if (!some && p < 0) return (double)INFINITY;
    if (isinf(p) || top == 0.0 || isinf(top)) return top;
    sum = 0;
    for (bool more = tsi_loop_begin(&loops->inner); more; more = tsi_loop_next(&loops->inner))
        sum += pow(cabs(tsi_block_complex(in, loops->outer.at[0] + loops->inner.at[0])) / top, p);
    return top * pow(sum, 1.0 / p);
}

static ts_status vector_norm_reference(const tsi_kernel_io *io)
{
    const tsi_reduce_attributes *a = io->attributes;
    const tsi_block *in = &io->in[0].block, *out = &io->out[0].block;
    tsi_reduce_loops loops;
    tsi_reduce_loops_make(in, out, tsi_reduce_mask(a), a->keepdim, &loops);
    for (bool more = tsi_loop_begin(&loops.outer); more; more = tsi_loop_next(&loops.outer))
        tsi_block_set_real(out, loops.outer.at[1], norm_of(in, &loops, a->p));
    return TS_OK;
}

/* ---- the gradient ---------------------------------------------------------------------------- */

/* dx = sign(x) (|x| / y)^(p-1) dy, 0 where x is 0; for infinite p the extremes share dy. The sign
 * of a complex number is x / |x|. */
static ts_status vector_norm_grad(const tsi_grad_io *io)
{
    const tsi_reduce_attributes *a = io->attributes;
    if (a->p == 0.0) return TS_OK; /* a count does not change */
    ts_tensor *x = io->in[0], *y = tsi_grad_unreduce(io->out[0], &io->in_meta[0], a);
    ts_tensor *dy = tsi_grad_unreduce(io->out_grad[0], &io->in_meta[0], a);
    ts_tensor *factor;
    if (isinf(a->p)) {
        factor = ts_cast(ts_eq(ts_abs(x), y), ts_tensor_dtype(dy));
        factor = ts_div(factor, ts_sum(factor, a->dims.value, a->dims.count, 1));
    } else {
        factor = ts_div(ts_abs(x), y);
        if (a->p != 2.0) factor = ts_pow(factor, a->p - 1.0);
        factor = ts_masked_fill(factor, ts_logical_not(x), 0.0);
    }
    ts_tensor *sign = tsi_meta_is_complex(&io->in_meta[0]) ? tsi_complex_sign(x) : ts_sign(x);
    return tsi_grad_give(io, ts_mul(sign, ts_mul(factor, dy)));
}

static bool sample_vector_norm(tsi_sample *s)
{
    static const double p[] = { 2.0, 1.0, (double)INFINITY, 3.0, 0.0, -(double)INFINITY };
    (void)tsi_sample_as(s, s->variant % 4, tsi_sample_reduce);
    ((tsi_reduce_attributes *)s->attributes)->p = p[s->variant % 6];
    return s->variant < 6;
}

const tsi_op_desc tsi_op_vector_norm = {
    .name = "vector_norm",
    .what = "the p-norm over dims: (sum |x|^p)^(1/p), for 0 a count, for infinities the extreme",
    TSI_OPERANDS(1, 1, 1),
    TSI_ATTRIBUTES(vector_norm_table, tsi_reduce_attributes),
    .normalise = tsi_reduce_normalise,
    .infer = vector_norm_infer,
    .propagate = vector_norm_propagate,
    .reference = vector_norm_reference,
    .grad = vector_norm_grad,
    .saves = 1 | (uint64_t)1 << TSI_SAVE_OUT,
    .sample = sample_vector_norm,
};

ts_tensor *(ts_vector_norm)(ts_tensor *x, const ts_norm_options *options)
{
    tsi_reduce_attributes a = { .p = 2.0 };
    if (options) {
        a.p = options->p;
        a.keepdim = options->keepdim != 0;
        a.dims.count = options->dims ? options->count : 0;
        if (a.dims.count > TS_NDIM_MAX) a.dims.count = TS_NDIM_MAX;
        for (int32_t i = 0; i < a.dims.count; i++)
            a.dims.value[i] = options->dims[i];
    }
    return tsi_op_make(&tsi_op_vector_norm, &x, 1, &a);
}
