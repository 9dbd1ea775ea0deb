/* SPDX-License-Identifier: Apache-2.0 */
/* norm.c - rms_norm and layer_norm over the last dims, their gradients, var and std.
 *
 * Leading dims may stay sharded; weight and bias are replicated then, and their gradients come out
 * as partial sums. */
#include <math.h>
#include <string.h>

#include "op/core/algorithm.h"
#include "op/nn/add_norm.h"
#include "op/nn/attributes.h"
#include "op/reduce/reduce.h"

static const tsi_attribute norm_table[] = {
    TSI_ATTR(tsi_norm_attributes, normalized, DIMS, "normalized", "[]"),
    TSI_ATTR(tsi_norm_attributes, eps, REAL, "eps", "1e-05"),
    { 0 }
};

/* ---- shapes ---------------------------------------------------------------------------------- */

/* Empty: the last dim. */
static ts_status norm_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                void *attributes)
{
    (void)count;
    tsi_norm_attributes *a = attributes;
    const ts_shape *shape = &in[0].shape;
    if (a->normalized.count <= 0 && shape->ndim > 0)
        a->normalized = (tsi_dims){ .count = 1, .value = { shape->extent[shape->ndim - 1] } };
    for (int32_t i = 0; i < a->normalized.count; i++) {
        int32_t d = shape->ndim - a->normalized.count + i;
        if (d < 0 || shape->extent[d] != a->normalized.value[i])
            return TSI_FAIL(TS_ERR_SHAPE, "%s: normalized extent %lld is not that of dim %d (%lld)",
                            op->name, (long long)a->normalized.value[i], d,
                            d >= 0 ? (long long)shape->extent[d] : -1LL);
    }
    return TS_OK;
}

static int32_t first_inner(const ts_meta *x, const tsi_norm_attributes *a)
{
    return x->shape.ndim - a->normalized.count;
}

static uint32_t inner_mask(const ts_meta *x, const tsi_norm_attributes *a)
{
    int32_t first = first_inner(x, a);
    return ((1u << x->shape.ndim) - 1) & ~((1u << first) - 1);
}

static ts_status check_parameter(const tsi_op_call *call, int32_t input)
{
    const tsi_norm_attributes *a = call->attributes;
    const ts_meta *p = &call->in[input];
    if (input >= call->input_count || p->dtype == TS_DTYPE_NONE) return TS_OK;
    bool fits = p->shape.ndim == a->normalized.count;
    for (int32_t d = 0; fits && d < p->shape.ndim; d++)
        fits = p->shape.extent[d] == a->normalized.value[d];
    char text[96];
    if (!fits)
        return TSI_FAIL(TS_ERR_SHAPE, "%s: input %d has shape %s, not that of the normalized dims",
                        call->op->name, input, tsi_shape_text(&p->shape, text, sizeof text));
    return TS_OK;
}

/* Outputs: y, then the reciprocal deviation per row (and the mean, for layer_norm), f32 at least.
 */
static ts_status norm_infer(const tsi_op_call *call)
{
    const tsi_norm_attributes *a = call->attributes;
    for (int32_t i = 1; i < call->input_count; i++)
        TSI_TRY(check_parameter(call, i));
    call->out[0] = call->in[0];
    if (tsi_dtype_category((ts_dtype)call->in[0].dtype) != TSI_CATEGORY_REAL)
        return TSI_FAIL(TS_ERR_DTYPE, "%s: is not defined for %s", call->op->name,
                        ts_dtype_name((ts_dtype)call->in[0].dtype));
    for (int32_t o = 1; o < call->output_count; o++) {
        call->out[o].shape =
            tsi_shape_reduce(&call->in[0].shape, inner_mask(&call->in[0], a), true);
        call->out[o].dtype = call->in[0].dtype == TS_DTYPE_F64 ? TS_DTYPE_F64 : TS_DTYPE_F32;
    }
    return TS_OK;
}

/* The result is linear in weight and bias together, and affine in the bias alone. */
static void parameter_rules(const tsi_op_call *call, tsi_rules *rules)
{
    const ts_reduce kinds[] = { TS_REDUCE_SUM, TS_REDUCE_AVG, TS_REDUCE_MIN, TS_REDUCE_MAX };
    int32_t y = call->input_count;
    for (int k = 0; k < 4; k++) {
        bool extreme = kinds[k] == TS_REDUCE_MIN || kinds[k] == TS_REDUCE_MAX;
        if (extreme && call->input_count < 3) return;
        tsi_role p = TSI_P(kinds[k]), *row = tsi_rules_add(rules);
        if (!extreme && row[1] != TSI_ROLE_NONE) row[1] = p;
        if (call->input_count > 2 && row[2] != TSI_ROLE_NONE) row[2] = p;
        row[y] = p;
    }
}

/* Leading dims: the input and all outputs cut alike, parameters replicated. */
static void norm_rules(const tsi_op_call *call, tsi_rules *rules)
{
    int32_t first = first_inner(&call->in[0], call->attributes);
    for (int32_t d = 0; d < first; d++) {
        tsi_role *row = tsi_rules_add(rules);
        row[0] = TSI_S(d);
        for (int32_t o = 0; o < call->output_count; o++)
            row[call->input_count + o] = TSI_S(d);
    }
    for (int32_t d = first; d < call->in[0].shape.ndim;
         d++) { /* a normalized dim: statistics are reduced */
        tsi_role *row = tsi_rules_add_with(rules, 1, 0);
        row[0] = row[call->input_count] = TSI_S(d);
        for (int32_t i = 1; i < call->input_count; i++)
            if (row[i] != TSI_ROLE_NONE) row[i] = TSI_S(d - first);
    }
    bool parameters = call->input_count > 1 && call->in[call->input_count - 1].dtype;
    if (parameters) parameter_rules(call, rules);
    for (int32_t d = first; parameters && d < call->in[0].shape.ndim; d++) {
        tsi_role *row = tsi_rules_add_with(rules, 2, 0); /* whole rows, cut parameters */
        row[call->input_count] = TSI_S(d);
        for (int32_t i = 1; i < call->input_count; i++)
            if (row[i] != TSI_ROLE_NONE) row[i] = TSI_S(d - first);
    }
}

/* ---- kernels --------------------------------------------------------------------------------- */

typedef struct row_moments {
    double mean, scale; /* scale: 1 / sqrt(variance + eps); mean 0 for rms_norm */
} row_moments;

static row_moments moments_of(const tsi_block *x, int64_t at, tsi_loop *inner, bool centred,
                              double eps)
{
    double sum = 0, squares = 0;
    int64_t n = 0;
    for (bool more = tsi_loop_begin(inner); more; more = tsi_loop_next(inner), n++) {
        double v = tsi_block_real(x, at + inner->at[0]);
        sum += v;
    }
    row_moments m = { centred ? sum / (double)n : 0.0, 0.0 };
    for (bool more = tsi_loop_begin(inner); more; more = tsi_loop_next(inner)) {
        double v = tsi_block_real(x, at + inner->at[0]) - m.mean;
        squares += v * v;
    }
    m.scale = 1.0 / sqrt(squares / (double)n + eps);
    return m;
}

static double parameter_at(const tsi_kernel_io *io, int32_t input, const tsi_loop *inner,
                           double otherwise)
{
    if (input >= io->input_count || io->in[input].block.dtype == TS_DTYPE_NONE) return otherwise;
    const tsi_block *p = &io->in[input].block;
    int64_t at = 0;
    for (int32_t d = 0; d < p->ndim; d++)
        at += inner->index[d] * p->stride[d];
    return tsi_block_real(p, at);
}

static ts_status norm_reference(const tsi_kernel_io *io)
{
    const tsi_norm_attributes *a = io->attributes;
    const tsi_block *x = &io->in[0].block, *y = &io->out[0].block;
    bool centred = io->op == &tsi_op_layer_norm;
    uint32_t mask = inner_mask(io->in[0].global, a);
    tsi_reduce_loops in, out;
    const tsi_block *scale = &io->out[io->output_count - 1].block;
    tsi_reduce_loops_make(x, scale, mask, true, &in);
    tsi_reduce_loops_make(y, centred ? &io->out[1].block : scale, mask, true, &out);
    bool more = tsi_loop_begin(&in.outer);
    for (tsi_loop_begin(&out.outer); more;
         more = tsi_loop_next(&in.outer), tsi_loop_next(&out.outer)) {
        row_moments m = moments_of(x, in.outer.at[0], &in.inner, centred, a->eps);
        tsi_block_set_real(scale, in.outer.at[1], m.scale);
        if (centred) tsi_block_set_real(&io->out[1].block, out.outer.at[1], m.mean);
        bool next = tsi_loop_begin(&in.inner);
        for (tsi_loop_begin(&out.inner); next;
             next = tsi_loop_next(&in.inner), tsi_loop_next(&out.inner)) {
            double v = tsi_block_real(x, in.outer.at[0] + in.inner.at[0]);
            v = (v - m.mean) * m.scale * parameter_at(io, 1, &in.inner, 1.0) +
                parameter_at(io, 2, &in.inner, 0.0);
            tsi_block_set_real(y, out.outer.at[0] + out.inner.at[0], v);
        }
    }
    return TS_OK;
}

/* ---- a sharded inner dim --------------------------------------------------------------------- */

static int64_t norm_bytes(const tsi_op_call *call, int64_t n)
{
    return tsi_algorithm_share(tsi_algorithm_bytes(&call->out[1], 4), n);
}

static ts_status norm_two_phase(const tsi_algorithm_io *io)
{
    const tsi_norm_attributes *a = io->attributes;
    int32_t first = first_inner(&io->call->in[0], a), ndim = io->call->in[0].shape.ndim;
    int64_t dims[TS_NDIM_MAX];
    for (int32_t d = first; d < ndim; d++)
        dims[d - first] = d;
    ts_scope scope = tsi_algorithm_begin(io);
    ts_tensor *x = ts_cast(io->in[0], (ts_dtype)io->call->out[1].dtype), *out[3] = { NULL };
    bool centred = io->op == &tsi_op_layer_norm;
    ts_tensor *mean = centred ? tsi_algorithm_settle(io, ts_mean(x, dims, ndim - first, 1)) : NULL;
    if (centred) x = ts_sub(x, mean);
    ts_tensor *variance = tsi_algorithm_settle(io, ts_mean(ts_square(x), dims, ndim - first, 1));
    ts_tensor *scale = ts_rsqrt(ts_add_scalar(variance, a->eps)), *y = ts_mul(x, scale);
    if (io->input_count > 1 && io->in[1]) y = ts_mul(y, io->in[1]);
    if (io->input_count > 2 && io->in[2]) y = ts_add(y, io->in[2]);
    out[0] = ts_cast(y, (ts_dtype)io->call->out[0].dtype);
    out[1] = centred ? mean : scale;
    out[2] = scale;
    return tsi_algorithm_end(io, scope, out);
}

static int64_t no_bytes(const tsi_op_call *call, int64_t n)
{
    (void)call;
    (void)n;
    return 0;
}

/* Every rank has whole rows and a part of the parameters: it keeps that part of the result. */
static ts_status norm_sliced(const tsi_algorithm_io *io)
{
    ts_scope scope = tsi_algorithm_begin(io);
    ts_tensor *x = ts_cast(io->in[0], (ts_dtype)io->call->out[1].dtype), *out[3] = { NULL };
    tsi_op_args args = { io->op, &x, 1, 0, io->attributes };
    if (x && tsi_op_run(&args, out) == TS_OK) {
        ts_tensor *y = io->in[1] ? ts_mul(out[0], io->in[1]) : out[0];
        if (io->input_count > 2 && io->in[2]) y = ts_add(y, io->in[2]);
        out[0] = ts_cast(y, (ts_dtype)io->call->out[0].dtype);
    }
    return tsi_algorithm_end(io, scope, out);
}

static const tsi_algorithm norm_phases[] = { { "two-phase", norm_two_phase, norm_bytes },
                                             { "sliced", norm_sliced, no_bytes },
                                             { 0 } };

/* ---- gradients ------------------------------------------------------------------------------- */

/* May the gradient of x be added to what is there of it, in the same pass? */
static bool joins_sum(const tsi_grad_io *io)
{
    const ts_tensor *sum = io->in_sum[0], *dy = io->out_grad[0];
    return sum && sum->dtype == io->in_meta[0].dtype && dy->dtype == sum->dtype &&
           io->in_meta[1].shape.ndim == 1 && !sum->move && sum->layout == dy->layout &&
           !sum->layout->axes_partial;
}

static ts_status rms_grad_onto(const tsi_grad_io *io)
{
    ts_tensor *in[] = { io->in_sum[0], io->out_grad[0], io->in[0], io->in[1], io->out[1] };
    ts_tensor *out[2] = { NULL };
    TSI_TRY(tsi_add_norm_backward(in, out));
    io->in_grad[0] = out[0];
    *io->included |= 1;
    io->in_grad[1] = ts_cast(out[1], (ts_dtype)io->in_meta[1].dtype);
    return ts_rank_status(io->rank);
}

/* All gradients at once, where there are a weight and what else the norm may have. */
static ts_status norm_grad_fused(const tsi_grad_io *io)
{
    bool centred = io->op == &tsi_op_layer_norm;
    if (!centred && joins_sum(io)) return rms_grad_onto(io);
    ts_tensor *scale = io->out[io->output_count - 1], *out[TSI_OUTPUT_MAX] = { NULL };
    ts_tensor *in[] = { io->out_grad[0], io->in[0], io->in[1], scale, centred ? io->out[1] : NULL };
    tsi_norm_back a = { { 0 } };
    tsi_op_args args = { centred ? &tsi_op_layer_norm_backward : &tsi_op_rms_norm_backward, in,
                         centred ? 5 : 4, 0, &a };
    TSI_TRY(tsi_op_run(&args, out));
    for (int32_t i = 0; i < io->input_count; i++)
        if (io->needs >> i & 1) io->in_grad[i] = ts_cast(out[i], (ts_dtype)io->in_meta[i].dtype);
    return ts_rank_status(io->rank);
}

/* With v the normalised input and g = dy * weight: dx = scale (g - mean(g) [layer] - v mean(g v)).
 */
static ts_status norm_grad(const tsi_grad_io *io)
{
    const tsi_norm_attributes *a = io->attributes;
    bool centred = io->op == &tsi_op_layer_norm;
    if (io->needs == (centred ? 7u : 3u)) return norm_grad_fused(io);
    int32_t first = first_inner(&io->in_meta[0], a), ndim = io->in_meta[0].shape.ndim;
    int64_t dims[TS_NDIM_MAX];
    for (int32_t d = first; d < ndim; d++)
        dims[d - first] = d;
    ts_dtype wide = ts_tensor_dtype(io->out[io->output_count - 1]);
    ts_tensor *dy = ts_cast(io->out_grad[0], wide), *x = ts_cast(io->in[0], wide);
    ts_tensor *scale = io->out[io->output_count - 1];
    ts_tensor *v = ts_mul(centred ? ts_sub(x, io->out[1]) : x, scale);
    ts_tensor *weight = io->input_count > 1 ? io->in[1] : NULL;
    ts_tensor *g = weight ? ts_mul(dy, ts_cast(weight, wide)) : dy;
    if (io->needs & 1) {
        ts_tensor *dx = ts_sub(g, ts_mul(v, ts_mean(ts_mul(g, v), dims, ndim - first, 1)));
        if (centred) dx = ts_sub(dx, ts_mean(g, dims, ndim - first, 1));
        io->in_grad[0] = ts_cast(ts_mul(dx, scale), (ts_dtype)io->in_meta[0].dtype);
    }
    if (io->needs & 2) io->in_grad[1] = tsi_grad_unbroadcast(ts_mul(dy, v), &io->in_meta[1]);
    if (io->needs & 4) io->in_grad[2] = tsi_grad_unbroadcast(dy, &io->in_meta[2]);
    return ts_rank_status(io->rank);
}

static bool sample_norm(tsi_sample *s, int32_t inputs)
{
    tsi_norm_attributes *a = s->attributes;
    *a = (tsi_norm_attributes){ .normalized = { .count = 1, .value = { 4 } }, .eps = 1e-5 };
    s->in[0] = tsi_meta_f64(TS_SHAPE(2, 5, 4));
    s->count = s->variant == 0 || s->variant == 3 ? inputs : 1;
    for (int32_t i = 1; i < s->count; i++)
        s->in[i] = tsi_meta_f64(TS_SHAPE(4));
    if (s->variant == 2) a->normalized = (tsi_dims){ .count = 2, .value = { 5, 4 } };
    if (s->variant == 3) s->in[0].shape = TS_SHAPE(4); /* all dims */
    return s->variant < 4;
}

static bool sample_rms(tsi_sample *s)
{
    return sample_norm(s, 2);
}

static bool sample_layer(tsi_sample *s)
{
    return sample_norm(s, 3);
}

#define NORM                                                                                       \
    .attribute = norm_table, .attribute_bytes = sizeof(tsi_norm_attributes),                       \
    .normalise = norm_normalise, .infer = norm_infer, .rules = norm_rules,                         \
    .reference = norm_reference, .algorithm = norm_phases, .grad = norm_grad

const tsi_op_desc tsi_op_rms_norm = {
    .name = "rms_norm",
    .flags = TSI_OP_CHEAP,
    .what = "x over its root mean square, times the weight",
    .dtypes = TSI_DTYPES_REAL,
    TSI_OPERANDS(1, 2, 2),
    .saves = 3 | (uint64_t)2 << TSI_SAVE_OUT,
    .aside = 2,
    NORM,
    .sample = sample_rms,
};
const tsi_op_desc tsi_op_layer_norm = {
    .name = "layer_norm",
    .flags = TSI_OP_CHEAP,
    .what = "x less its mean over its deviation, times the weight, plus the bias",
    .dtypes = TSI_DTYPES_REAL,
    TSI_OPERANDS(1, 3, 3),
    .saves = 3 | (uint64_t)6 << TSI_SAVE_OUT,
    .aside = 6,
    NORM,
    .sample = sample_layer,
};

/* ---- makers ---------------------------------------------------------------------------------- */

static ts_tensor *norm(const tsi_op_desc *op, ts_tensor *const *in, int32_t count, double eps)
{
    tsi_norm_attributes a = { .eps = eps };
    while (count > 1 && !in[count - 1])
        count--;
    ts_shape weight = count > 1 && in[1] ? ts_tensor_shape(in[1]) : TS_SHAPE_SCALAR;
    a.normalized.count = weight.ndim;
    memcpy(a.normalized.value, weight.extent, sizeof a.normalized.value);
    for (int32_t d = weight.ndim; d < TS_NDIM_MAX; d++)
        a.normalized.value[d] = 0;
    tsi_op_args args = { op, in, count, 0, &a };
    ts_tensor *out[TSI_OUTPUT_MAX] = { NULL };
    return tsi_op_run(&args, out) == TS_OK ? out[0] : NULL;
}

ts_tensor *(ts_rms_norm)(ts_tensor *x, ts_tensor *weight, double epsilon)
{
    ts_tensor *in[] = { x, weight };
    return norm(&tsi_op_rms_norm, in, 2, epsilon);
}

ts_tensor *(ts_layer_norm)(ts_tensor *x, ts_tensor *weight, ts_tensor *bias, double epsilon)
{
    ts_tensor *in[] = { x, weight, bias };
    return norm(&tsi_op_layer_norm, in, 3, epsilon);
}
