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
    ts_number value;
} value_attributes;
typedef struct exponent_attributes {
    ts_number exponent;
} exponent_attributes;
typedef struct clamp_attributes {
    ts_number min, max; /* NaN: no bound */
} clamp_attributes;
typedef struct lerp_attributes {
    ts_number weight;
} lerp_attributes;
typedef struct slope_attributes {
    double negative_slope;
} slope_attributes;
typedef struct alpha_attributes {
    double alpha;
} alpha_attributes;

static const tsi_attribute value_table[] = {
    TSI_ATTR(value_attributes, value, NUMBER, "value", NULL), { 0 }
};
static const tsi_attribute exponent_table[] = {
    TSI_ATTR(exponent_attributes, exponent, NUMBER, "exponent", NULL), { 0 }
};
static const tsi_attribute clamp_table[] = { TSI_ATTR(clamp_attributes, min, NUMBER, "min", "null"),
                                             TSI_ATTR(clamp_attributes, max, NUMBER, "max", "null"),
                                             { 0 } };
static const tsi_attribute lerp_table[] = {
    TSI_ATTR(lerp_attributes, weight, NUMBER, "weight", NULL), { 0 }
};
static const tsi_attribute slope_table[] = {
    TSI_ATTR(slope_attributes, negative_slope, REAL, "negative_slope", "0.01"), { 0 }
};
static const tsi_attribute elu_table[] = { TSI_ATTR(alpha_attributes, alpha, REAL, "alpha", "1"),
                                           { 0 } };

/* The first number of the attributes: value, exponent. */
static double value_of(const void *attributes)
{
    return ((const ts_number *)attributes)->real;
}

static ts_dtype value_dtype(const void *attributes)
{
    return tsi_number_dtype(attributes);
}

static ts_dtype clamp_dtype(const void *attributes)
{
    const clamp_attributes *c = attributes;
    ts_dtype low = isnan(c->min.real) ? TS_DTYPE_I64 : tsi_number_dtype(&c->min);
    ts_dtype high = isnan(c->max.real) ? TS_DTYPE_I64 : tsi_number_dtype(&c->max);
    return tsi_dtype_promote(low, high);
}

/* Integers stay integers under whole powers that are not negative. */
static ts_dtype exponent_dtype(const void *attributes)
{
    ts_dtype dtype = tsi_number_dtype(attributes);
    return dtype == TS_DTYPE_I64 && value_of(attributes) < 0 ? TS_DTYPE_F32 : dtype;
}

/* ---- x + c, c - x, c x, x / c ---------------------------------------------------------------- */

/* A real factor is one: it makes no zero of a part that is infinite. */
static double complex times(double complex x, const void *a)
{
    return cimag(tsi_first_both(a)) == 0 ? x * value_of(a) : x * tsi_first_both(a);
}

static double complex by(double complex x, const void *a)
{
    return cimag(tsi_first_both(a)) == 0 ? x / value_of(a) : x / tsi_first_both(a);
}

TSI_BOTH(add, x[0] + tsi_first_both(a))
TSI_BOTH(rsub, tsi_first_both(a) - x[0])
TSI_BOTH(mul, times(x[0], a))
TSI_BOTH(div, by(x[0], a))

static void factor_trait(const tsi_op_call *call, tsi_traits *traits)
{
    double complex both = tsi_first_both(call->attributes);
    double value = creal(both);
    *traits = (tsi_traits){ .flow = TSI_LINEAR_ALL };
    if (value != 0) traits->mono[0] = value > 0 ? TSI_MONO_UP : TSI_MONO_DOWN; /* 0 inf is NaN */
    bool divides_by_zero = both == 0.0 && call->op == &tsi_op_div_scalar;
    if (isnan(value) || isnan(cimag(both)) || divides_by_zero) *traits = (tsi_traits){ 0 };
}

/* A complex number makes reals complex: their gradient is the real part. */
static ts_status give(const tsi_grad_io *io, ts_tensor *grad)
{
    bool narrows = ((const ts_number *)io->attributes)->kind == TS_NUMBER_COMPLEX;
    return tsi_grad_give(io, narrows ? tsi_grad_unbroadcast(grad, &io->in_meta[0]) : grad);
}

static ts_status same_grad(const tsi_grad_io *io)
{
    return give(io, io->out_grad[0]);
}

static ts_status rsub_grad(const tsi_grad_io *io)
{
    return give(io, ts_neg(io->out_grad[0]));
}

/* The same operator with the conjugate: of mul and div. */
static ts_status factor_grad(const tsi_grad_io *io)
{
    value_attributes a = *(const value_attributes *)io->attributes;
    a.value.imaginary = -a.value.imaginary;
    return give(io, tsi_op_make(io->op, io->out_grad, 1, &a));
}

/* ---- powers, clamps, leaky functions --------------------------------------------------------- */

TSI_BOTH(pow, tsi_first_both(a) == 0.0 ? 1.0 : cpow(x[0], tsi_first_both(a)))

/* Whole powers are multiplicative; odd ones are monotone too. */
static void pow_trait(const tsi_op_call *call, tsi_traits *traits)
{
    double exponent = value_of(call->attributes);
    *traits = (tsi_traits){ 0 };
    if (cimag(tsi_first_both(call->attributes)) != 0 || exponent != floor(exponent) ||
        fabs(exponent) > 1e9)
        return;
    traits->flow = TSI_MULTIPLICATIVE;
    if (exponent > 0 && fmod(exponent, 2.0) == 1.0) traits->mono[0] = TSI_MONO_UP;
    if (exponent == 1.0) traits->flow |= TSI_LINEAR_ALL;
}

static ts_status pow_grad(const tsi_grad_io *io)
{
    value_attributes by = { ((const exponent_attributes *)io->attributes)->exponent };
    exponent_attributes less = { by.value };
    by.value.imaginary = less.exponent.imaginary = -by.value.imaginary;
    less.exponent.real -= 1.0;
    less.exponent = tsi_number_of(less.exponent);
    if (tsi_first_both(&by) == 0.0) /* 0 times a power that may be infinite */
        return give(io, ts_zeros_like(io->out_grad[0]));
    ts_tensor *power = tsi_op_make(&tsi_op_pow, &io->in[0], 1, &less);
    return give(io, ts_mul(io->out_grad[0], tsi_op_make(&tsi_op_mul_scalar, &power, 1, &by)));
}

static double real_clamp(const double *x, const void *a)
{
    const clamp_attributes *c = a;
    double y = x[0];
    if (y < c->min.real) y = c->min.real; /* never where there is no bound */
    if (y > c->max.real) y = c->max.real;
    return y;
}

static int64_t whole_clamp(const int64_t *x, const void *a)
{
    const clamp_attributes *c = a;
    int64_t y = x[0];
    if (!isnan(c->min.real) && y < c->min.whole) y = c->min.whole;
    if (!isnan(c->max.real) && y > c->max.whole) y = c->max.whole;
    return y;
}

/* The gradient passes where x lies within the bounds. */
static ts_status clamp_grad(const tsi_grad_io *io)
{
    const clamp_attributes *c = io->attributes;
    ts_tensor *x = io->in[0], *inside = ts_eq(x, x);
    if (!isnan(c->min.real))
        inside = ts_logical_and(inside, tsi_op_make(&tsi_op_ge_scalar, &x, 1, &c->min));
    if (!isnan(c->max.real))
        inside = ts_logical_and(inside, tsi_op_make(&tsi_op_le_scalar, &x, 1, &c->max));
    return tsi_grad_give(io, ts_masked_fill(io->out_grad[0], ts_logical_not(inside), 0.0));
}

static void leaky_trait(const tsi_op_call *call, tsi_traits *traits)
{
    *traits = (tsi_traits){ 0 };
    if (((const slope_attributes *)call->attributes)->negative_slope > 0) /* 0 inf is NaN */
        traits->mono[0] = TSI_MONO_UP;
}

static ts_status leaky_grad(const tsi_grad_io *io)
{
    double slope = ((const slope_attributes *)io->attributes)->negative_slope;
    ts_tensor *dy = io->out_grad[0];
    ts_tensor *positive = ts_cast(ts_gt(io->in[0], ts_zeros_like(io->in[0])), ts_tensor_dtype(dy));
    return tsi_grad_give(io,
                         ts_mul(dy, ts_add_scalar(ts_mul_scalar(positive, 1.0 - slope), slope)));
}

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
    return tsi_grad_give(io, ts_where(ts_gt(x, ts_zeros_like(x)), dy, ts_mul(dy, slope)));
}

/* ---- a constant ------------------------------------------------------------------------------ */

TSI_REAL(full, value_of(a))
TSI_WHOLE(full, tsi_first_cut(a))
TSI_BOTH(full, tsi_first_both(a))

static ts_status full_infer(const tsi_op_call *call)
{
    call->out[0] = call->in[0];
    return tsi_number_fits(call);
}

/* ---- a + w (b - a) --------------------------------------------------------------------------- */

/* From the nearer end, as of reals: weight 0 gives a and weight 1 gives b, exactly. */
static double complex both_lerp(const double complex *x, const void *a)
{
    double complex w = tsi_first_both(a), way = x[1] - x[0];
    return cabs(w) < 0.5 ? x[0] + w * way : x[1] - way * (1.0 - w);
}

static ts_status lerp_grad(const tsi_grad_io *io)
{
    ts_number near = ((const lerp_attributes *)io->attributes)->weight, far = near;
    near.imaginary = -near.imaginary; /* gradients go by the conjugate */
    far = near.kind == TS_NUMBER_COMPLEX ? ts_number_complex(1 - near.real, -near.imaginary)
                                         : tsi_number_real(1 - near.real);
    for (int32_t i = 0; i < 2; i++) {
        if (!(io->needs >> i & 1)) continue;
        ts_tensor *part = tsi_op_make(&tsi_op_mul_scalar, io->out_grad, 1, i ? &near : &far);
        io->in_grad[i] = tsi_grad_unbroadcast(part, &io->in_meta[i]);
    }
    return ts_rank_status(io->rank);
}

/* ---- samples --------------------------------------------------------------------------------- */

static bool sample_value(tsi_sample *s)
{
    static const double value[] = { 2.0, -1.5, 0.0, 1.0 };
    tsi_sample_unary(s);
    *(ts_number *)s->attributes = tsi_number_real(value[s->variant % 4]);
    return s->variant < 4;
}

static bool sample_exponent(tsi_sample *s)
{
    static const double value[] = { 2.0, 3.0, 1.0, -1.0 };
    tsi_sample_unary(s);
    *(ts_number *)s->attributes = tsi_number_real(value[s->variant % 4]);
    return s->variant < 4;
}

static bool sample_clamp(tsi_sample *s)
{
    tsi_sample_unary(s);
    clamp_attributes *c = s->attributes;
    c->min = tsi_number_real(s->variant == 1 ? (double)NAN : -1.0);
    c->max = tsi_number_real(s->variant == 2 ? (double)NAN : 0.5);
    return s->variant < 3;
}

static bool sample_lerp(tsi_sample *s)
{
    static const double value[] = { 0.5, 0.25, 1.5, -0.5 };
    (void)tsi_sample_as(s, s->variant % 3, tsi_sample_binary);
    *(ts_number *)s->attributes = tsi_number_real(value[s->variant % 4]);
    return s->variant < 4;
}

static bool sample_positive(tsi_sample *s)
{
    tsi_sample_unary(s);
    *(double *)s->attributes = s->variant == 1 ? 0.3 : 1.0;
    return s->variant < 3;
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
    .family = FAMILY_WITH(tsi_real_add_scalar, tsi_whole_add_scalar, both_add, value_dtype),
    .traits = { .flow = TSI_AVG_WITH_R, .mono = { TSI_MONO_UP } },
    .grad = same_grad,
};
const tsi_op_desc tsi_op_rsub_scalar = {
    .name = "rsub_scalar",
    .what = "value - x",
    ONE,
    VALUE,
    .flags = TSI_OP_IN_PLACE | TSI_OP_WRAPS,
    .family = FAMILY_WITH(tsi_real_rsub_scalar, tsi_whole_rsub_scalar, both_rsub, value_dtype),
    .traits = { .flow = TSI_AVG_WITH_R, .mono = { TSI_MONO_DOWN } },
    .grad = rsub_grad,
};
const tsi_op_desc tsi_op_mul_scalar = {
    .name = "mul_scalar",
    .what = "x * value",
    ONE,
    VALUE,
    .flags = TSI_OP_IN_PLACE | TSI_OP_WRAPS,
    .family = FAMILY_WITH(tsi_real_mul_scalar, tsi_whole_mul_scalar, both_mul, value_dtype),
    .trait = factor_trait,
    .grad = factor_grad,
};
const tsi_op_desc tsi_op_div_scalar = {
    .name = "div_scalar",
    .what = "x / value; integers give f32",
    ONE,
    VALUE,
    .flags = TSI_OP_IN_PLACE,
    .family = (&(const tsi_pointwise_family){
        { tsi_real_div_scalar, NULL, both_div }, TSI_RESULT_REAL, value_dtype }),
    .trait = factor_trait,
    .grad = factor_grad,
};
const tsi_op_desc tsi_op_pow = {
    .name = "pow",
    .what = "x to the power of a number; integers stay integers if it is whole and not negative",
    ONE,
    .flags = TSI_OP_IN_PLACE | TSI_OP_WRAPS,
    .saves = 1,
    TSI_ATTRIBUTES(exponent_table, exponent_attributes),
    .sample = sample_exponent,
    .family = FAMILY_WITH(tsi_real_pow, tsi_whole_pow, both_pow, exponent_dtype),
    .trait = pow_trait,
    .grad = pow_grad,
};
const tsi_op_desc tsi_op_clamp = {
    .name = "clamp",
    .what = "x kept within min and max",
    ONE,
    .flags = TSI_OP_IN_PLACE,
    .saves = 1,
    TSI_ATTRIBUTES(clamp_table, clamp_attributes),
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
    TSI_ATTRIBUTES(slope_table, slope_attributes),
    .sample = sample_positive,
    .family = FAMILY(tsi_real_leaky_relu, NULL, NULL, REAL),
    .trait = leaky_trait,
    .grad = leaky_grad,
};
const tsi_op_desc tsi_op_elu = {
    .name = "elu",
    .what = "x, or alpha * (e^x - 1) below zero",
    ONE,
    .saves = 1,
    TSI_ATTRIBUTES(elu_table, alpha_attributes),
    .sample = sample_positive,
    .family = FAMILY(tsi_real_elu, NULL, NULL, REAL),
    .trait = elu_trait,
    .grad = elu_grad,
};
const tsi_op_desc tsi_op_full_like = {
    .name = "full_like",
    .what = "one number in the shape and dtype of another tensor",
    .dims = "*",
    TSI_OPERANDS(1, 1, 1),
    VALUE,
    .flags = TSI_OP_NO_GRAD | TSI_OP_FREE,
    .family = FAMILY(real_full, whole_full, both_full, SAME),
    .infer = full_infer,
    .rules = tsi_constant_rules,
    .reference = tsi_family_reference,
};
const tsi_op_desc tsi_op_lerp = {
    .name = "lerp",
    .what = "a + weight * (b - a)",
    .dims = "*",
    TSI_OPERANDS(2, 2, 1),
    .flags = TSI_OP_IN_PLACE,
    .infer = tsi_family_infer,
    .reference = tsi_family_reference,
    TSI_ATTRIBUTES(lerp_table, lerp_attributes),
    .sample = sample_lerp,
    .family = (&(const tsi_pointwise_family){
        { tsi_real_lerp, NULL, both_lerp }, TSI_RESULT_REAL, value_dtype }),
    /* It keeps the order, but of an infinite term, as extremes have them, it makes NaN. */
    .traits = { .flow = TSI_LINEAR_ALL | TSI_AVG_WITH_R },
    .grad = lerp_grad,
};

/* ---- the makers ------------------------------------------------------------------------------ */

TSI_MAKER1_NUMBER(add_scalar, value)
TSI_MAKER1_NUMBER(rsub_scalar, value)
TSI_MAKER1_NUMBER(mul_scalar, value)

ts_tensor *(ts_scale)(ts_tensor *x, double factor)
{
    return (ts_mul_scalar)(x, factor);
}

TSI_MAKER1_NUMBER(div_scalar, value)
TSI_MAKER1_NUMBER(pow, exponent)
TSI_MAKER1_NUMBER(full_like, value)

ts_tensor *(ts_clamp)(ts_tensor *x, double min, double max)
{
    clamp_attributes a = { tsi_number_real(min), tsi_number_real(max) };
    return tsi_op_make(&tsi_op_clamp, &x, 1, &a);
}

TSI_MAKER1_BY(leaky_relu, negative_slope)
TSI_MAKER1_BY(elu, alpha)

ts_tensor *(ts_lerp)(ts_tensor *a, ts_tensor *b, double weight)
{
    ts_tensor *in[] = { a, b };
    lerp_attributes number = { tsi_number_real(weight) };
    return tsi_op_make(&tsi_op_lerp, in, 2, &number);
}
