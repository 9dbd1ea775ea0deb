/* SPDX-License-Identifier: Apache-2.0 */
/* ternary.c - elementwise operators of three inputs, and the fused gradients of activations. */
#include <complex.h>
#include <math.h>

#include "op/pointwise/unary.h"
#include "op/pointwise/unary_scalar.h"

typedef struct value_attributes {
    ts_number value;
} value_attributes;
static const tsi_attribute value_table[] = {
    TSI_ATTR(value_attributes, value, NUMBER, "value", "1"), { 0 }
};

static double value_of(const void *attributes)
{
    return ((const value_attributes *)attributes)->value.real;
}

#define FAMILY(real, whole, both, kind)                                                            \
    (&(const tsi_pointwise_family){ { real, whole, both }, TSI_RESULT_##kind, NULL })
#define POINTWISE(n)                                                                               \
    .dims = "*", .input_min = n, .input_max = n, .output_count = 1,                                \
    .reference = tsi_family_reference

static bool sample_three(tsi_sample *s)
{
    tsi_sample_binary(s);
    s->in[2] = s->in[s->variant == 1 ? 1 : 0];
    s->count = 3;
    return s->variant < 3;
}

static bool sample_ternary(tsi_sample *s)
{
    *(ts_number *)s->attributes = tsi_number_real(s->variant == 1 ? -0.5 : 1.0);
    return sample_three(s);
}

/* ---- where ----------------------------------------------------------------------------------- */

static ts_status where_infer(const tsi_op_call *call)
{
    ts_shape shape;
    TSI_TRY(tsi_infer_broadcast(call, &shape));
    ts_dtype dtype = tsi_dtype_promote((ts_dtype)call->in[1].dtype, (ts_dtype)call->in[2].dtype);
    call->out[0] = (ts_meta){ .shape = shape, .dtype = (int32_t)dtype };
    return TS_OK;
}

TSI_BOTH(where, x[0] != 0.0 ? x[1] : x[2])

/* With a replicated condition: both choices pending alike; or one of them, where the other may be
 * counted again. */
static void where_rules(const tsi_op_call *call, tsi_rules *rules)
{
    (void)call;
    for (int reduce = TS_REDUCE_SUM; reduce <= TS_REDUCE_OR; reduce++) {
        tsi_role *row = tsi_rules_add(rules);
        row[1] = row[2] = row[3] = TSI_P(reduce);
        if (reduce == TS_REDUCE_SUM || reduce == TS_REDUCE_PROD) continue; /* not idempotent */
        for (int32_t i = 1; i <= 2; i++) {
            row = tsi_rules_add(rules);
            row[i] = row[3] = TSI_P(reduce);
        }
    }
}

static ts_status where_grad(const tsi_grad_io *io)
{
    ts_tensor *dy = io->out_grad[0], *zero = ts_zeros_like(dy), *c = io->in[0];
    if (io->needs & 2)
        io->in_grad[1] = tsi_grad_unbroadcast(ts_where(c, dy, zero), &io->in_meta[1]);
    if (io->needs & 4)
        io->in_grad[2] = tsi_grad_unbroadcast(ts_where(c, zero, dy), &io->in_meta[2]);
    return ts_rank_status(io->rank);
}

static bool sample_where(tsi_sample *s)
{
    bool more = sample_three(s);
    s->in[0].dtype = TS_DTYPE_BOOL;
    return more;
}

const tsi_op_desc tsi_op_where = {
    .name = "where",
    .what = "a where the condition holds, else b",
    POINTWISE(3),
    .infer = where_infer,
    .saves = 1,
    .family = FAMILY(tsi_real_where, tsi_whole_where, both_where, SAME),
    .rules = where_rules,
    .grad = where_grad,
    .sample = sample_where,
};

/* ---- addcmul, addcdiv ------------------------------------------------------------------------ */

static ts_dtype value_dtype(const void *attributes)
{
    return tsi_number_dtype(&((const value_attributes *)attributes)->value);
}

TSI_BOTH(addcmul, x[0] + tsi_first_both(a) * x[1] * x[2])
TSI_BOTH(addcdiv, x[0] + tsi_first_both(a) * x[1] / x[2])

static void pending(tsi_rules *rules, uint32_t inputs, ts_reduce reduce)
{
    tsi_role *row = tsi_rules_add(rules);
    for (int32_t i = 0; i < 3; i++)
        if (inputs >> i & 1) row[i] = TSI_P(reduce);
    row[3] = TSI_P(reduce);
}

/* The addend alone may be pending what a replicated term does not disturb; sums need a factor
 * pending too. */
static void addcmul_rules(const tsi_op_call *call, tsi_rules *rules)
{
    bool divides = call->op->name[4] == 'd';
    for (int k = 0; k < 2; k++) {
        ts_reduce linear = k ? TS_REDUCE_AVG : TS_REDUCE_SUM;
        pending(rules, 1 | 2, linear);
        if (!divides) pending(rules, 1 | 4, linear);
    }
    pending(rules, 1, TS_REDUCE_AVG);
    pending(rules, 2, TS_REDUCE_AVG);
    if (!divides) pending(rules, 4, TS_REDUCE_AVG);
    pending(rules, 1, TS_REDUCE_MIN);
    pending(rules, 1, TS_REDUCE_MAX);
}

/* dy times the conjugate of the value. */
static ts_tensor *by_value(const tsi_grad_io *io)
{
    ts_number value = ((const value_attributes *)io->attributes)->value;
    value.imaginary = -value.imaginary;
    return tsi_op_make(&tsi_op_mul_scalar, io->out_grad, 1, &value);
}

static ts_status addcmul_grad(const tsi_grad_io *io)
{
    ts_tensor *dy = io->out_grad[0], *scaled = by_value(io);
    if (io->needs & 1) io->in_grad[0] = tsi_grad_unbroadcast(dy, &io->in_meta[0]);
    if (io->needs & 2)
        io->in_grad[1] = tsi_grad_unbroadcast(ts_mul(scaled, io->in[2]), &io->in_meta[1]);
    if (io->needs & 4)
        io->in_grad[2] = tsi_grad_unbroadcast(ts_mul(scaled, io->in[1]), &io->in_meta[2]);
    return ts_rank_status(io->rank);
}

static ts_status addcdiv_grad(const tsi_grad_io *io)
{
    ts_tensor *dy = io->out_grad[0], *quotient = ts_div(by_value(io), io->in[2]);
    if (io->needs & 1) io->in_grad[0] = tsi_grad_unbroadcast(dy, &io->in_meta[0]);
    if (io->needs & 2) io->in_grad[1] = tsi_grad_unbroadcast(quotient, &io->in_meta[1]);
    if (io->needs & 4)
        io->in_grad[2] = tsi_grad_unbroadcast(
            ts_neg(ts_mul(quotient, ts_div(io->in[1], io->in[2]))), &io->in_meta[2]);
    return ts_rank_status(io->rank);
}

const tsi_op_desc tsi_op_addcmul = {
    .name = "addcmul",
    .what = "a + value * b * c",
    POINTWISE(3),
    .infer = tsi_family_infer,
    .flags = TSI_OP_IN_PLACE | TSI_OP_WRAPS,
    .saves = 6,
    TSI_ATTRIBUTES(value_table, value_attributes),
    .rules = addcmul_rules,
    .grad = addcmul_grad,
    .family = (&(const tsi_pointwise_family){
        { tsi_real_addcmul, tsi_whole_addcmul, both_addcmul }, TSI_RESULT_SAME, value_dtype }),
    .sample = sample_ternary,
};
const tsi_op_desc tsi_op_addcdiv = {
    .name = "addcdiv",
    .what = "a + value * b / c; integers give f32",
    POINTWISE(3),
    .infer = tsi_family_infer,
    .flags = TSI_OP_IN_PLACE,
    .saves = 6,
    TSI_ATTRIBUTES(value_table, value_attributes),
    .rules = addcmul_rules,
    .grad = addcdiv_grad,
    .family = (&(const tsi_pointwise_family){
        { tsi_real_addcdiv, NULL, both_addcdiv }, TSI_RESULT_REAL, value_dtype }),
    .sample = sample_ternary,
};

/* ---- masked_fill ----------------------------------------------------------------------------- */

TSI_REAL(masked_fill, x[1] != 0.0 ? value_of(a) : x[0])
TSI_BOTH(masked_fill, x[1] != 0.0 ? tsi_first_both(a) : x[0])
TSI_WHOLE(masked_fill, x[1] ? tsi_first_cut(a) : x[0])

static ts_status masked_fill_infer(const tsi_op_call *call)
{
    TSI_TRY(tsi_infer_pointwise(call));
    call->out[0].dtype = call->in[0].dtype;
    return tsi_number_fits(call);
}

/* The filled value counts once per rank: a sum passes only if it is zero, a product only if it is
 * one. */
static void masked_fill_rules(const tsi_op_call *call, tsi_rules *rules)
{
    double complex value = tsi_first_both(call->attributes);
    for (int reduce = TS_REDUCE_SUM; reduce <= TS_REDUCE_OR; reduce++) {
        if (reduce == TS_REDUCE_SUM && value != 0.0) continue;
        if (reduce == TS_REDUCE_PROD && value != 1.0 && value != 0.0) continue;
        tsi_role *row = tsi_rules_add(rules);
        row[0] = row[2] = TSI_P(reduce);
    }
}

static ts_status masked_fill_grad(const tsi_grad_io *io)
{
    return tsi_grad_give(
        io, tsi_grad_unbroadcast(ts_masked_fill(io->out_grad[0], io->in[1], 0.0), &io->in_meta[0]));
}

static bool sample_masked_fill(tsi_sample *s)
{
    bool more = tsi_sample_binary(s);
    s->in[1].dtype = TS_DTYPE_BOOL;
    *(ts_number *)s->attributes = tsi_number_real(s->variant == 0 ? 0.0 : 2.5);
    return more;
}

const tsi_op_desc tsi_op_masked_fill = {
    .name = "masked_fill",
    .what = "value where the mask holds, else x",
    POINTWISE(2),
    .infer = masked_fill_infer,
    .flags = TSI_OP_IN_PLACE,
    .saves = 2,
    TSI_ATTRIBUTES(value_table, value_attributes),
    .rules = masked_fill_rules,
    .grad = masked_fill_grad,
    .family = FAMILY(real_masked_fill, whole_masked_fill, both_masked_fill, SAME),
    .sample = sample_masked_fill,
};

/* ---- gradients of activations: linear in dy, the first input --------------------------------- */

TSI_BOTH(sigmoid_backward, x[0] * x[1] * (1.0 - x[1]))
TSI_BOTH(tanh_backward, x[0] * (1.0 - x[1] * x[1]))

static double complex both_silu_backward(const double complex *x, const void *a)
{
    (void)a;
    double complex s = 1.0 / (1.0 + cexp(-x[1]));
    return x[0] * s * (1.0 + x[1] * (1.0 - s));
}

#define BACKWARD(op, both, words)                                                                  \
    const tsi_op_desc tsi_op_##op = { .name = #op,                                                 \
                                      .what = words,                                               \
                                      POINTWISE(2),                                                \
                                      .infer = tsi_family_infer,                                   \
                                      .flags = TSI_OP_NO_GRAD,                                     \
                                      .sample = tsi_sample_binary,                                 \
                                      .traits = { .flow = TSI_LINEAR_EACH, .linear_in = 1 },       \
                                      .family = FAMILY(tsi_real_##op, NULL, both, REAL) }
BACKWARD(threshold_backward, NULL, "0 where y <= 0, else dy");
BACKWARD(sigmoid_backward, both_sigmoid_backward, "dy * y * (1 - y)");
BACKWARD(tanh_backward, both_tanh_backward, "dy * (1 - y^2)");
BACKWARD(silu_backward, both_silu_backward, "gradient of silu at x");
BACKWARD(gelu_backward, NULL, "gradient of gelu at x");
BACKWARD(gelu_tanh_backward, NULL, "gradient of gelu_tanh at x");

/* ---- the makers ------------------------------------------------------------------------------ */

ts_tensor *(ts_where)(ts_tensor *condition, ts_tensor *a, ts_tensor *b)
{
    ts_tensor *in[] = { condition, a, b };
    return tsi_op_make(&tsi_op_where, in, 3, NULL);
}

ts_tensor *(ts_addcmul)(ts_tensor *a, ts_tensor *b, ts_tensor *c, double value)
{
    ts_tensor *in[] = { a, b, c };
    value_attributes number = { tsi_number_real(value) };
    return tsi_op_make(&tsi_op_addcmul, in, 3, &number);
}

ts_tensor *(ts_addcdiv)(ts_tensor *a, ts_tensor *b, ts_tensor *c, double value)
{
    ts_tensor *in[] = { a, b, c };
    value_attributes number = { tsi_number_real(value) };
    return tsi_op_make(&tsi_op_addcdiv, in, 3, &number);
}

ts_tensor *(ts_masked_fill)(ts_tensor *x, ts_tensor *mask, double value)
{
    ts_tensor *in[] = { x, mask };
    value_attributes number = { tsi_number_real(value) };
    return tsi_op_make(&tsi_op_masked_fill, in, 2, &number);
}

TSI_MAKER2(threshold_backward)
TSI_MAKER2(sigmoid_backward)
TSI_MAKER2(tanh_backward)
TSI_MAKER2(silu_backward)
TSI_MAKER2(gelu_backward)
TSI_MAKER2(gelu_tanh_backward)
