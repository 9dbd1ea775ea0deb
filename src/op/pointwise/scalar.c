/* SPDX-License-Identifier: Apache-2.0 */
/* scalar.c - elementwise operators with numbers as attributes: x + c, c x, x^c, clamp, lerp, and
 * the like.
 *
 * A number counts once, not once per rank: x + c passes averages and extremes but not sums. The
 * sign of a factor decides whether extremes pass or swap. A whole number leaves integers what they
 * are, another makes them f32. */
#include "op/pointwise/unary.h"

#include <math.h>

#include "op/pointwise/unary_scalar.h"

typedef struct value_attributes {
    double value;
} value_attributes;
typedef struct exponent_attributes {
    double exponent;
} exponent_attributes;
typedef struct clamp_attributes {
    double min, max; /* NaN: no bound */
} clamp_attributes;
typedef struct lerp_attributes {
    double weight;
} lerp_attributes;
typedef struct slope_attributes {
    double negative_slope;
} slope_attributes;
typedef struct alpha_attributes {
    double alpha;
} alpha_attributes;

static const tsi_attribute value_table[] = { TSI_ATTR(value_attributes, value, REAL, "value", NULL),
                                             { 0 } };
static const tsi_attribute exponent_table[] = {
    TSI_ATTR(exponent_attributes, exponent, REAL, "exponent", NULL), { 0 }
};
static const tsi_attribute clamp_table[] = { TSI_ATTR(clamp_attributes, min, REAL, "min", "null"),
                                             TSI_ATTR(clamp_attributes, max, REAL, "max", "null"),
                                             { 0 } };
static const tsi_attribute lerp_table[] = { TSI_ATTR(lerp_attributes, weight, REAL, "weight", NULL),
                                            { 0 } };
static const tsi_attribute slope_table[] = {
    TSI_ATTR(slope_attributes, negative_slope, REAL, "negative_slope", "0.01"), { 0 }
};
static const tsi_attribute elu_table[] = { TSI_ATTR(alpha_attributes, alpha, REAL, "alpha", "1"),
                                           { 0 } };

static double value_of(const void *attributes)
{
    return ((const value_attributes *)attributes)->value;
}

static ts_dtype value_dtype(const void *attributes)
{
    return tsi_number_dtype(value_of(attributes));
}

static ts_dtype clamp_dtype(const void *attributes)
{
    const clamp_attributes *c = attributes;
    ts_dtype low = isnan(c->min) ? TS_DTYPE_I64 : tsi_number_dtype(c->min);
    return low == TS_DTYPE_F32 || isnan(c->max) ? low : tsi_number_dtype(c->max);
}

/* Integers stay integers under whole powers that are not negative. */
static ts_dtype exponent_dtype(const void *attributes)
{
    double exponent = ((const exponent_attributes *)attributes)->exponent;
    return exponent < 0 ? TS_DTYPE_F32 : tsi_number_dtype(exponent);
}

/* ---- x + c, c - x, c x, x / c ---------------------------------------------------------------- */

TSI_REAL(add, x[0] + value_of(a))
TSI_WHOLE(add, (int64_t)((uint64_t)x[0] + (uint64_t)(int64_t)value_of(a)))
TSI_BOTH(add, x[0] + value_of(a))
TSI_REAL(rsub, value_of(a) - x[0])
TSI_WHOLE(rsub, (int64_t)((uint64_t)(int64_t)value_of(a) - (uint64_t)x[0]))
TSI_BOTH(rsub, value_of(a) - x[0])
TSI_REAL(mul, x[0] * value_of(a))
TSI_WHOLE(mul, (int64_t)((uint64_t)x[0] * (uint64_t)(int64_t)value_of(a)))
TSI_BOTH(mul, x[0] * value_of(a))
TSI_REAL(div, x[0] / value_of(a))
TSI_BOTH(div, x[0] / value_of(a))

static void factor_trait(const tsi_op_call *call, tsi_traits *traits)
{
    double value = value_of(call->attributes);
    *traits = (tsi_traits){ .flow = TSI_LINEAR_ALL };
    traits->mono[0] = value >= 0 ? TSI_MONO_UP : TSI_MONO_DOWN;
    bool divides_by_zero = value == 0.0 && call->op == &tsi_op_div_scalar;
    if (isnan(value) || divides_by_zero) *traits = (tsi_traits){ 0 };
}

static ts_status same_grad(const tsi_grad_io *io)
{
    io->in_grad[0] = io->out_grad[0];
    return ts_rank_status(io->rank);
}

static ts_status rsub_grad(const tsi_grad_io *io)
{
    io->in_grad[0] = ts_neg(io->out_grad[0]);
    return ts_rank_status(io->rank);
}

static ts_status mul_grad(const tsi_grad_io *io)
{
    io->in_grad[0] = ts_mul_scalar(io->out_grad[0], value_of(io->attributes));
    return ts_rank_status(io->rank);
}

static ts_status div_grad(const tsi_grad_io *io)
{
    io->in_grad[0] = ts_div_scalar(io->out_grad[0], value_of(io->attributes));
    return ts_rank_status(io->rank);
}

/* ---- powers, clamps, leaky functions --------------------------------------------------------- */

TSI_REAL(pow, pow(x[0], ((const exponent_attributes *)a)->exponent))
TSI_WHOLE(pow, tsi_whole_power(x[0], (int64_t)((const exponent_attributes *)a)->exponent))
TSI_BOTH(pow, cpow(x[0], ((const exponent_attributes *)a)->exponent))

/* Whole powers are multiplicative; odd ones are monotone too. */
static void pow_trait(const tsi_op_call *call, tsi_traits *traits)
{
    double exponent = ((const exponent_attributes *)call->attributes)->exponent;
    *traits = (tsi_traits){ 0 };
    if (exponent != floor(exponent) || fabs(exponent) > 1e9) return;
    traits->flow = TSI_MULTIPLICATIVE;
    if (exponent > 0 && fmod(exponent, 2.0) == 1.0) traits->mono[0] = TSI_MONO_UP;
    if (exponent == 1.0) traits->flow |= TSI_LINEAR_ALL;
}

static ts_status pow_grad(const tsi_grad_io *io)
{
    double exponent = ((const exponent_attributes *)io->attributes)->exponent;
    if (exponent == 0.0) /* 0 times a power that may be infinite */
        io->in_grad[0] = ts_zeros_like(io->out_grad[0]);
    else
        io->in_grad[0] =
            ts_mul(io->out_grad[0], ts_mul_scalar(ts_pow(io->in[0], exponent - 1.0), exponent));
    return ts_rank_status(io->rank);
}

static double real_clamp(const double *x, const void *a)
{
    const clamp_attributes *c = a;
    double y = x[0];
    if (!isnan(c->min) && y < c->min) y = c->min;
    if (!isnan(c->max) && y > c->max) y = c->max;
    return y;
}

static int64_t whole_clamp(const int64_t *x, const void *a)
{
    const clamp_attributes *c = a;
    int64_t y = x[0];
    if (!isnan(c->min) && (double)y < c->min) y = (int64_t)c->min;
    if (!isnan(c->max) && (double)y > c->max) y = (int64_t)c->max;
    return y;
}

/* The gradient passes where x lies within the bounds. */
static ts_status clamp_grad(const tsi_grad_io *io)
{
    const clamp_attributes *c = io->attributes;
    ts_tensor *inside = ts_eq(io->in[0], ts_clamp(io->in[0], c->min, c->max));
    io->in_grad[0] = ts_mul(io->out_grad[0], ts_cast(inside, ts_tensor_dtype(io->out_grad[0])));
    return ts_rank_status(io->rank);
}

TSI_REAL(leaky_relu, x[0] > 0 ? x[0] : x[0] * ((const slope_attributes *)a)->negative_slope)

static void leaky_trait(const tsi_op_call *call, tsi_traits *traits)
{
    *traits = (tsi_traits){ 0 };
    if (((const slope_attributes *)call->attributes)->negative_slope >= 0)
        traits->mono[0] = TSI_MONO_UP;
}

static ts_status leaky_grad(const tsi_grad_io *io)
{
    double slope = ((const slope_attributes *)io->attributes)->negative_slope;
    ts_tensor *dy = io->out_grad[0];
    ts_tensor *positive = ts_cast(ts_gt(io->in[0], ts_zeros_like(io->in[0])), ts_tensor_dtype(dy));
    io->in_grad[0] = ts_mul(dy, ts_add_scalar(ts_mul_scalar(positive, 1.0 - slope), slope));
    return ts_rank_status(io->rank);
}

TSI_REAL(elu, x[0] > 0 ? x[0] : ((const alpha_attributes *)a)->alpha * expm1(x[0]))

static void elu_trait(const tsi_op_call *call, tsi_traits *traits)
{
    *traits = (tsi_traits){ 0 };
    if (((const alpha_attributes *)call->attributes)->alpha >= 0) traits->mono[0] = TSI_MONO_UP;
}

static ts_status elu_grad(const tsi_grad_io *io)
{
    ts_tensor *dy = io->out_grad[0], *x = io->in[0];
    double alpha = ((const alpha_attributes *)io->attributes)->alpha;
    ts_tensor *slope = ts_mul_scalar(ts_exp(ts_minimum(x, ts_zeros_like(x))), alpha);
    io->in_grad[0] = ts_where(ts_gt(x, ts_zeros_like(x)), dy, ts_mul(dy, slope));
    return ts_rank_status(io->rank);
}

/* ---- a + w (b - a) --------------------------------------------------------------------------- */

/* From the nearer end: weight 0 gives a and weight 1 gives b, exactly. */
static double real_lerp(const double *x, const void *a)
{
    double w = ((const lerp_attributes *)a)->weight, way = x[1] - x[0];
    return w < 0.5 ? x[0] + w * way : x[1] - way * (1.0 - w);
}

static double complex both_lerp(const double complex *x, const void *a)
{
    double w = ((const lerp_attributes *)a)->weight;
    double complex way = x[1] - x[0];
    return w < 0.5 ? x[0] + w * way : x[1] - way * (1.0 - w);
}

static void lerp_trait(const tsi_op_call *call, tsi_traits *traits)
{
    double w = ((const lerp_attributes *)call->attributes)->weight;
    *traits = (tsi_traits){ .flow = TSI_LINEAR_ALL | TSI_AVG_WITH_R };
    traits->mono[0] = w <= 1.0 ? TSI_MONO_UP : TSI_MONO_DOWN;
    traits->mono[1] = w >= 0.0 ? TSI_MONO_UP : TSI_MONO_DOWN;
}

static ts_status lerp_grad(const tsi_grad_io *io)
{
    double w = ((const lerp_attributes *)io->attributes)->weight;
    ts_tensor *dy = io->out_grad[0];
    if (io->needs & 1)
        io->in_grad[0] = tsi_grad_unbroadcast(ts_mul_scalar(dy, 1.0 - w), &io->in_meta[0]);
    if (io->needs & 2) io->in_grad[1] = tsi_grad_unbroadcast(ts_mul_scalar(dy, w), &io->in_meta[1]);
    return ts_rank_status(io->rank);
}

/* ---- samples --------------------------------------------------------------------------------- */

static bool sample_value(uint64_t *random, int32_t variant, ts_meta *in, int32_t *count,
                         void *attributes)
{
    static const double value[] = { 2.0, -1.5, 0.0, 1.0 };
    tsi_sample_unary(random, variant, in, count, NULL);
    *(double *)attributes = value[variant % 4];
    return variant < 4;
}

static bool sample_exponent(uint64_t *random, int32_t variant, ts_meta *in, int32_t *count,
                            void *attributes)
{
    static const double value[] = { 2.0, 3.0, 1.0, -1.0 };
    tsi_sample_unary(random, variant, in, count, NULL);
    *(double *)attributes = value[variant % 4];
    return variant < 4;
}

static bool sample_clamp(uint64_t *random, int32_t variant, ts_meta *in, int32_t *count,
                         void *attributes)
{
    tsi_sample_unary(random, variant, in, count, NULL);
    clamp_attributes *c = attributes;
    c->min = variant == 1 ? (double)NAN : -1.0;
    c->max = variant == 2 ? (double)NAN : 0.5;
    return variant < 3;
}

static bool sample_lerp(uint64_t *random, int32_t variant, ts_meta *in, int32_t *count,
                        void *attributes)
{
    static const double value[] = { 0.5, 0.25, 1.5, -0.5 };
    tsi_sample_binary(random, variant % 3, in, count, NULL);
    *(double *)attributes = value[variant % 4];
    return variant < 4;
}

static bool sample_positive(uint64_t *random, int32_t variant, ts_meta *in, int32_t *count,
                            void *attributes)
{
    tsi_sample_unary(random, variant, in, count, NULL);
    *(double *)attributes = variant == 1 ? 0.3 : 1.0;
    return variant < 3;
}

/* ---- the rows -------------------------------------------------------------------------------- */

#define FAMILY(real, whole, both, kind)                                                            \
    (&(const tsi_pointwise_family){ { real, whole, both }, TSI_RESULT_##kind, NULL })
#define FAMILY_WITH(real, whole, both, with)                                                       \
    (&(const tsi_pointwise_family){ { real, whole, both }, TSI_RESULT_SAME, with })
#define ONE                                                                                        \
    .dims = "*", .input_min = 1, .input_max = 1, .output_count = 1, .infer = tsi_family_infer,     \
    .reference = tsi_family_reference
#define VALUE                                                                                      \
    .attribute = value_table, .attribute_bytes = sizeof(value_attributes), .sample = sample_value

const tsi_op_desc tsi_op_add_scalar = {
    .name = "add_scalar",
    .what = "x + value",
    ONE,
    VALUE,
    .flags = TSI_OP_IN_PLACE | TSI_OP_WRAPS,
    .family = FAMILY_WITH(real_add, whole_add, both_add, value_dtype),
    .traits = { .flow = TSI_AVG_WITH_R, .mono = { TSI_MONO_UP } },
    .grad = same_grad,
};
const tsi_op_desc tsi_op_rsub_scalar = {
    .name = "rsub_scalar",
    .what = "value - x",
    ONE,
    VALUE,
    .flags = TSI_OP_IN_PLACE | TSI_OP_WRAPS,
    .family = FAMILY_WITH(real_rsub, whole_rsub, both_rsub, value_dtype),
    .traits = { .flow = TSI_AVG_WITH_R, .mono = { TSI_MONO_DOWN } },
    .grad = rsub_grad,
};
const tsi_op_desc tsi_op_mul_scalar = {
    .name = "mul_scalar",
    .what = "x * value",
    ONE,
    VALUE,
    .flags = TSI_OP_IN_PLACE | TSI_OP_WRAPS,
    .family = FAMILY_WITH(real_mul, whole_mul, both_mul, value_dtype),
    .trait = factor_trait,
    .grad = mul_grad,
};
const tsi_op_desc tsi_op_div_scalar = {
    .name = "div_scalar",
    .what = "x / value; integers give f32",
    ONE,
    VALUE,
    .flags = TSI_OP_IN_PLACE,
    .family = FAMILY(real_div, NULL, both_div, REAL),
    .trait = factor_trait,
    .grad = div_grad,
};
const tsi_op_desc tsi_op_pow = {
    .name = "pow",
    .what = "x to the power of a number; integers stay integers if it is whole and not negative",
    ONE,
    .flags = TSI_OP_IN_PLACE | TSI_OP_WRAPS,
    .saves = 1,
    .attribute = exponent_table,
    .attribute_bytes = sizeof(exponent_attributes),
    .sample = sample_exponent,
    .family = FAMILY_WITH(real_pow, whole_pow, both_pow, exponent_dtype),
    .trait = pow_trait,
    .grad = pow_grad,
};
const tsi_op_desc tsi_op_clamp = {
    .name = "clamp",
    .what = "x kept within min and max",
    ONE,
    .flags = TSI_OP_IN_PLACE,
    .saves = 1,
    .attribute = clamp_table,
    .attribute_bytes = sizeof(clamp_attributes),
    .sample = sample_clamp,
    .family = FAMILY_WITH(real_clamp, whole_clamp, NULL, clamp_dtype),
    .traits = { .mono = { TSI_MONO_UP } },
    .grad = clamp_grad,
};
const tsi_op_desc tsi_op_leaky_relu = {
    .name = "leaky_relu",
    .what = "x, or negative_slope * x below zero",
    ONE,
    .saves = 1,
    .attribute = slope_table,
    .attribute_bytes = sizeof(slope_attributes),
    .sample = sample_positive,
    .family = FAMILY(real_leaky_relu, NULL, NULL, REAL),
    .trait = leaky_trait,
    .grad = leaky_grad,
};
const tsi_op_desc tsi_op_elu = {
    .name = "elu",
    .what = "x, or alpha * (e^x - 1) below zero",
    ONE,
    .saves = 1,
    .attribute = elu_table,
    .attribute_bytes = sizeof(alpha_attributes),
    .sample = sample_positive,
    .family = FAMILY(real_elu, NULL, NULL, REAL),
    .trait = elu_trait,
    .grad = elu_grad,
};
const tsi_op_desc tsi_op_lerp = {
    .name = "lerp",
    .what = "a + weight * (b - a)",
    .dims = "*",
    .input_min = 2,
    .input_max = 2,
    .output_count = 1,
    .infer = tsi_family_infer,
    .reference = tsi_family_reference,
    .attribute = lerp_table,
    .attribute_bytes = sizeof(lerp_attributes),
    .sample = sample_lerp,
    .family = FAMILY(real_lerp, NULL, both_lerp, REAL),
    .trait = lerp_trait,
    .grad = lerp_grad,
};

/* ---- the makers ------------------------------------------------------------------------------ */

TSI_MAKER1_BY(add_scalar, value)
TSI_MAKER1_BY(rsub_scalar, value)
TSI_MAKER1_BY(mul_scalar, value)

ts_tensor *(ts_scale)(ts_tensor *x, double factor)
{
    return tsi_op_make(&tsi_op_mul_scalar, &x, 1, &factor);
}

TSI_MAKER1_BY(div_scalar, value)
TSI_MAKER1_BY(pow, exponent)

ts_tensor *(ts_clamp)(ts_tensor *x, double min, double max)
{
    return tsi_op_make(&tsi_op_clamp, &x, 1, &(clamp_attributes){ min, max });
}

TSI_MAKER1_BY(leaky_relu, negative_slope)
TSI_MAKER1_BY(elu, alpha)

ts_tensor *(ts_lerp)(ts_tensor *a, ts_tensor *b, double weight)
{
    ts_tensor *in[] = { a, b };
    return tsi_op_make(&tsi_op_lerp, in, 2, &weight);
}
