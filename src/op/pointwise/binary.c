/* SPDX-License-Identifier: Apache-2.0 */
/* binary.c - elementwise operators of two inputs: arithmetic and extremes. Comparisons, logic and
 * bits are in binary_logic.c.
 *
 * Flow of pending reductions is by attributes: linear in all inputs together (add, sub), in each
 * alone (mul), in the first alone (div), monotone in each. */
#include "op/pointwise/binary.h"
#include "op/pointwise/unary.h"

#include <complex.h>
#include <math.h>

#include "op/pointwise/unary_scalar.h"

/* ---- functions of complex numbers ------------------------------------------------------------ */

static double alpha_of(const void *attributes)
{
    return ((const ts_number *)attributes)->real;
}

/* A real factor is one: it makes no zero of a part that is infinite. */
static double complex times(const void *a, double complex x)
{
    return cimag(tsi_first_both(a)) == 0 ? alpha_of(a) * x : tsi_first_both(a) * x;
}

TSI_BOTH(add, x[0] + times(a, x[1]))
TSI_BOTH(sub, x[0] - times(a, x[1]))
TSI_BOTH(mul, x[0] * x[1])
TSI_BOTH(div, x[0] / x[1])

TSI_BOTH(pow, x[1] == 0.0 ? 1.0 : cpow(x[0], x[1]))

/* ---- traits that depend on attributes -------------------------------------------------------- */

static const tsi_attribute alpha_table[] = { { "alpha", TS_ATTRIBUTE_NUMBER, 0, "1", NULL },
                                             { 0 } };

/* A whole factor leaves truths what they are, too. */
static ts_dtype alpha_dtype(const void *attributes)
{
    ts_dtype dtype = tsi_number_dtype(attributes);
    return dtype == TS_DTYPE_I64 ? TS_DTYPE_BOOL : dtype;
}

static void add_trait(const tsi_op_call *call, tsi_traits *traits)
{
    bool up = alpha_of(call->attributes) >= 0;
    *traits = (tsi_traits){ .flow = TSI_LINEAR_ALL | TSI_AVG_WITH_R,
                            .mono = { TSI_MONO_UP, up ? TSI_MONO_UP : TSI_MONO_DOWN } };
}

static void sub_trait(const tsi_op_call *call, tsi_traits *traits)
{
    bool up = alpha_of(call->attributes) >= 0;
    *traits = (tsi_traits){ .flow = TSI_LINEAR_ALL | TSI_AVG_WITH_R,
                            .mono = { TSI_MONO_UP, up ? TSI_MONO_DOWN : TSI_MONO_UP } };
}

void tsi_binary_pending(tsi_rules *rules, ts_reduce reduce)
{
    tsi_role *row = tsi_rules_add(rules);
    row[0] = row[1] = row[2] = TSI_P(reduce);
}

void tsi_maximum_rules(const tsi_op_call *call, tsi_rules *rules)
{
    (void)call;
    tsi_binary_pending(rules, TS_REDUCE_MAX);
}

void tsi_minimum_rules(const tsi_op_call *call, tsi_rules *rules)
{
    (void)call;
    tsi_binary_pending(rules, TS_REDUCE_MIN);
}

/* ---- gradients ------------------------------------------------------------------------------- */

ts_status tsi_binary_give(const tsi_grad_io *io, ts_tensor *da, ts_tensor *db)
{
    if (io->needs & 1 && da) io->in_grad[0] = tsi_grad_unbroadcast(da, &io->in_meta[0]);
    if (io->needs & 2 && db) io->in_grad[1] = tsi_grad_unbroadcast(db, &io->in_meta[1]);
    return ts_rank_status(io->rank);
}

/* dy times the conjugate of alpha, or of -alpha. */
static ts_tensor *by_alpha(const tsi_grad_io *io, bool negative)
{
    ts_number alpha = *(const ts_number *)io->attributes;
    alpha.imaginary = -alpha.imaginary;
    if (alpha.kind == TS_NUMBER_INT && alpha.whole == 1)
        return negative ? ts_neg(io->out_grad[0]) : io->out_grad[0];
    if (negative) {
        alpha.real = -alpha.real;
        alpha.imaginary = -alpha.imaginary;
        alpha.whole = (int64_t)(0 - (uint64_t)alpha.whole);
    }
    return tsi_op_make(&tsi_op_mul_scalar, io->out_grad, 1, &alpha);
}

static ts_status add_grad(const tsi_grad_io *io)
{
    return tsi_binary_give(io, io->out_grad[0], io->needs & 2 ? by_alpha(io, false) : NULL);
}

static ts_status sub_grad(const tsi_grad_io *io)
{
    return tsi_binary_give(io, io->out_grad[0], io->needs & 2 ? by_alpha(io, true) : NULL);
}

static ts_status mul_grad(const tsi_grad_io *io)
{
    ts_tensor *dy = io->out_grad[0];
    return tsi_binary_give(io, io->needs & 1 ? ts_mul(dy, io->in[1]) : NULL,
                           io->needs & 2 ? ts_mul(dy, io->in[0]) : NULL);
}

static ts_status div_grad(const tsi_grad_io *io)
{
    ts_tensor *dy = io->out_grad[0], *b = io->in[1];
    ts_tensor *da = ts_div(dy, b);
    return tsi_binary_give(io, da, io->needs & 2 ? ts_neg(ts_mul(da, ts_div(io->in[0], b))) : NULL);
}

/* Ties share the gradient; where one is no number, both get it. */
static ts_status extreme_grad(const tsi_grad_io *io, bool largest)
{
    ts_tensor *dy = io->out_grad[0], *a = io->in[0], *b = io->in[1], *slope[2] = { NULL, NULL };
    ts_dtype dtype = ts_tensor_dtype(dy);
    ts_tensor *tie = ts_mul_scalar(ts_cast(ts_eq(a, b), dtype), 0.5);
    for (int32_t i = 0; i < 2; i++) {
        if (!(io->needs >> i & 1)) continue;
        ts_tensor *lost = largest == (i == 0) ? ts_lt(a, b) : ts_gt(a, b);
        slope[i] = ts_mul(dy, ts_rsub_scalar(ts_add(ts_cast(lost, dtype), tie), 1.0));
    }
    return tsi_binary_give(io, slope[0], slope[1]);
}

static ts_status maximum_grad(const tsi_grad_io *io)
{
    return extreme_grad(io, true);
}

static ts_status minimum_grad(const tsi_grad_io *io)
{
    return extreme_grad(io, false);
}

/* d a^b = b a^(b-1) da + a^b log(a) db; 0 where a factor is, however large the other. In the dtype
 * of the result: log(a) and b - 1 would be rounded, or wrap, where one has fewer bits. */
static ts_status power_grad(const tsi_grad_io *io)
{
    ts_tensor *dy = io->out_grad[0], *da = NULL, *db = NULL, *y = io->out[0];
    ts_dtype dtype = ts_tensor_dtype(y);
    ts_tensor *a = ts_cast(io->in[0], dtype), *b = ts_cast(io->in[1], dtype);
    if (io->needs & 1) {
        da = ts_mul(b, ts_power(a, ts_add_scalar(b, -1.0)));
        da = ts_mul(dy, ts_masked_fill(da, ts_logical_not(b), 0.0));
    }
    if (io->needs & 2 && tsi_dtype_category(dtype) == TSI_CATEGORY_COMPLEX) {
        db = ts_mul(dy, ts_masked_fill(ts_mul(y, ts_log(a)), ts_logical_not(a), 0.0));
    } else if (io->needs & 2) {
        ts_tensor *flat = ts_logical_and(ts_logical_not(a), ts_ge_scalar(b, 0.0));
        db = ts_mul(dy, ts_masked_fill(ts_mul(y, ts_log(a)), flat, 0.0));
    }
    return tsi_binary_give(io, da, db);
}

/* dy times sigmoid(scale (a - b)) and its complement. By the difference of the inputs, not of one
 * and the result, which is rounded and may be infinite. Equal ones share, also infinite ones. */
ts_status tsi_grad_logaddexp(const tsi_grad_io *io)
{
    ts_tensor *dy = io->out_grad[0], *a = io->in[0], *b = io->in[1];
    ts_tensor *over = ts_masked_fill(ts_sub(a, b), ts_eq(a, b), 0.0);
    if (io->op == &tsi_op_logaddexp2) over = ts_mul_scalar(over, 0.6931471805599453);
    return tsi_binary_give(io, io->needs & 1 ? ts_mul(dy, ts_sigmoid(over)) : NULL,
                           io->needs & 2 ? ts_mul(dy, ts_sigmoid(ts_neg(over))) : NULL);
}

/* ---- the rows -------------------------------------------------------------------------------- */

#define A 1u
#define B 2u
#define Y ((uint64_t)1 << TSI_SAVE_OUT)

const tsi_op_desc tsi_op_add = {
    .name = "add",
    .what = "a + alpha * b",
    TSI_BINARY,
    .flags = TSI_OP_IN_PLACE | TSI_OP_WRAPS,
    TSI_ATTRIBUTES(alpha_table, ts_number),
    .family = (&(const tsi_pointwise_family){
        { tsi_real_add, tsi_whole_add, both_add }, TSI_RESULT_SAME, alpha_dtype }),
    .trait = add_trait,
    .grad = add_grad,
};
const tsi_op_desc tsi_op_sub = {
    .name = "sub",
    .what = "a - alpha * b",
    TSI_BINARY,
    .flags = TSI_OP_IN_PLACE | TSI_OP_WRAPS,
    TSI_ATTRIBUTES(alpha_table, ts_number),
    .family = (&(const tsi_pointwise_family){
        { tsi_real_sub, tsi_whole_sub, both_sub }, TSI_RESULT_SAME, alpha_dtype }),
    .trait = sub_trait,
    .grad = sub_grad,
};
const tsi_op_desc tsi_op_mul = {
    .name = "mul",
    .what = "a * b",
    TSI_BINARY,
    .flags = TSI_OP_IN_PLACE,
    .saves = A | B,
    .family = TSI_BINARY_FAMILY(tsi_real_mul, tsi_whole_mul, both_mul, SAME),
    .traits = { .flow = TSI_LINEAR_EACH | TSI_MULTIPLICATIVE },
    .grad = mul_grad,
};
const tsi_op_desc tsi_op_div = {
    .name = "div",
    .what = "a / b; integers give f32",
    TSI_BINARY,
    .flags = TSI_OP_IN_PLACE,
    .saves = A | B,
    .family = TSI_BINARY_FAMILY(tsi_real_div, NULL, both_div, REAL),
    .traits = { .flow = TSI_LINEAR_EACH | TSI_MULTIPLICATIVE, .linear_in = A },
    .grad = div_grad,
};
const tsi_op_desc tsi_op_maximum = {
    .name = "maximum",
    .what = "the larger of a and b",
    TSI_BINARY,
    .flags = TSI_OP_IN_PLACE,
    .saves = A | B,
    .family = TSI_BINARY_FAMILY(tsi_real_maximum, tsi_whole_maximum, NULL, SAME),
    .traits = { .mono = { TSI_MONO_UP, TSI_MONO_UP } },
    .rules = tsi_maximum_rules,
    .grad = maximum_grad,
};
const tsi_op_desc tsi_op_minimum = {
    .name = "minimum",
    .what = "the smaller of a and b",
    TSI_BINARY,
    .flags = TSI_OP_IN_PLACE,
    .saves = A | B,
    .family = TSI_BINARY_FAMILY(tsi_real_minimum, tsi_whole_minimum, NULL, SAME),
    .traits = { .mono = { TSI_MONO_UP, TSI_MONO_UP } },
    .rules = tsi_minimum_rules,
    .grad = minimum_grad,
};
const tsi_op_desc tsi_op_power = {
    .name = "power",
    .what = "a to the power of b; of integers the whole part",
    TSI_BINARY,
    .saves = A | B | Y,
    .family = TSI_BINARY_FAMILY(tsi_real_power, tsi_whole_power, both_pow, SAME),
    .grad = power_grad,
};
const tsi_op_desc tsi_op_atan2 = {
    .name = "atan2",
    .what = "angle of the point (b, a)",
    TSI_BINARY,
    .saves = A | B,
    .grad = tsi_grad_atan2,
    .family = TSI_BINARY_FAMILY(tsi_real_atan2, NULL, NULL, REAL),
};
const tsi_op_desc tsi_op_fmod = {
    .name = "fmod",
    .what = "remainder with the sign of a",
    TSI_BINARY,
    .saves = A | B,
    .grad = tsi_grad_fmod,
    .family = TSI_BINARY_FAMILY(tsi_real_fmod, tsi_whole_fmod, NULL, SAME),
};
const tsi_op_desc tsi_op_remainder = {
    .name = "remainder",
    .what = "remainder with the sign of b",
    TSI_BINARY,
    .saves = A | B,
    .grad = tsi_grad_fmod,
    .family = TSI_BINARY_FAMILY(tsi_real_remainder, tsi_whole_remainder, NULL, SAME),
};
const tsi_op_desc tsi_op_hypot = {
    .name = "hypot",
    .what = "sqrt(a^2 + b^2)",
    TSI_BINARY,
    .saves = A | B | Y,
    .grad = tsi_grad_hypot,
    .family = TSI_BINARY_FAMILY(tsi_real_hypot, NULL, NULL, REAL),
};
const tsi_op_desc tsi_op_copysign = {
    .name = "copysign",
    .what = "|a| with the sign of b",
    TSI_BINARY,
    .saves = A | Y,
    .grad = tsi_grad_copysign,
    .family = TSI_BINARY_FAMILY(tsi_real_copysign, NULL, NULL, REAL),
};
const tsi_op_desc tsi_op_xlogy = {
    .name = "xlogy",
    .what = "a log(b), 0 where a is 0",
    TSI_BINARY,
    .saves = A | B,
    .grad = tsi_grad_xlogy,
    .family = TSI_BINARY_FAMILY(tsi_real_xlogy, NULL, NULL, REAL),
    .traits = { .flow = 0 },
};
const tsi_op_desc tsi_op_logaddexp = {
    .name = "logaddexp",
    .what = "log(e^a + e^b)",
    TSI_BINARY,
    .saves = A | B,
    .family = TSI_BINARY_FAMILY(tsi_real_logaddexp, NULL, NULL, REAL),
    .traits = { .mono = { TSI_MONO_UP, TSI_MONO_UP } },
    .grad = tsi_grad_logaddexp,
};
