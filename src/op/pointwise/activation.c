/* SPDX-License-Identifier: Apache-2.0 */
/* activation.c - more elementwise functions of one input that models use: hard and smooth
 * activations, and shrinkages.
 *
 * Each is a function of reals, its slope written with operators, and a row. Those that never fall
 * pass minima and maxima. */
#include <math.h>

#include "op/pointwise/unary.h"
#include "op/pointwise/unary_scalar.h"

typedef struct threshold_attributes {
    ts_number threshold, value;
} threshold_attributes;

static const tsi_attribute alpha_table[] = { TSI_ATTR(tsi_unary_number, number, REAL, "alpha", "1"),
                                             { 0 } };
static const tsi_attribute lambd_table[] = {
    TSI_ATTR(tsi_unary_number, number, REAL, "lambd", "0.5"), { 0 }
};
static const tsi_attribute threshold_table[] = {
    TSI_ATTR(threshold_attributes, threshold, NUMBER, "threshold", NULL),
    TSI_ATTR(threshold_attributes, value, NUMBER, "value", NULL),
    { 0 },
};

static const double selu_scale = 1.0507009873554805, selu_alpha = 1.6732632423543772;

/* ---- threshold ------------------------------------------------------------------------------- */

static double real_threshold(const double *x, const void *a)
{
    const threshold_attributes *t = a;
    return *x <= t->threshold.real ? t->value.real : *x;
}

static int64_t whole_threshold(const int64_t *x, const void *a)
{
    const threshold_attributes *t = a;
    return *x <= t->threshold.whole ? t->value.whole : *x;
}

/* Whole numbers leave integers what they are. */
static ts_dtype threshold_dtype(const void *attributes)
{
    const threshold_attributes *t = attributes;
    return tsi_dtype_promote(tsi_number_dtype(&t->threshold), tsi_number_dtype(&t->value));
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* 0 where the function is flat, else dy: also where x is no number. */
static ts_status give_but(const tsi_grad_io *io, ts_tensor *flat)
{
    return tsi_grad_give(io, ts_masked_fill(io->out_grad[0], flat, 0.0));
}

static ts_status hardsigmoid_grad(const tsi_grad_io *io)
{
    ts_tensor *x = io->in[0], *slope = ts_logical_and(ts_gt_scalar(x, -3), ts_lt_scalar(x, 3));
    TSI_TRY(give_but(io, ts_logical_not(slope)));
    return tsi_grad_give(io, ts_div_scalar(io->in_grad[0], 6));
}

/* 0 below -3, 1 above 3, (2 x + 3) / 6 between. */
static ts_status hardswish_grad(const tsi_grad_io *io)
{
    ts_tensor *x = io->in[0];
    ts_tensor *slope = ts_div_scalar(ts_add_scalar(ts_mul_scalar(x, 2), 3), 6);
    slope = ts_masked_fill(slope, ts_lt_scalar(x, -3), 0.0);
    return tsi_unary_give(io, ts_masked_fill(slope, ts_ge_scalar(x, 3), 1.0));
}

static ts_status relu6_grad(const tsi_grad_io *io)
{
    ts_tensor *x = io->in[0];
    return give_but(io, ts_logical_or(ts_le_scalar(x, 0), ts_ge_scalar(x, 6)));
}

static ts_status softsign_grad(const tsi_grad_io *io)
{
    return tsi_unary_give(io, ts_reciprocal(ts_square(ts_add_scalar(ts_abs(io->in[0]), 1))));
}

static ts_status tanhshrink_grad(const tsi_grad_io *io)
{
    return tsi_unary_give(io, ts_square(ts_tanh(io->in[0])));
}

/* With t = tanh(softplus(x)): t + x sigmoid(x) (1 - t^2). */
static ts_status mish_grad(const tsi_grad_io *io)
{
    ts_tensor *x = io->in[0], *t = ts_tanh(ts_softplus(x));
    ts_tensor *rest = ts_rsub_scalar(ts_square(t), 1);
    return tsi_unary_give(io, ts_add(t, ts_mul(ts_mul(x, ts_sigmoid(x)), rest)));
}

static ts_status selu_grad(const tsi_grad_io *io)
{
    ts_tensor *below = ts_mul_scalar(ts_exp(io->in[0]), selu_scale * selu_alpha);
    return tsi_unary_give(io, ts_masked_fill(below, ts_gt_scalar(io->in[0], 0), selu_scale));
}

static ts_status celu_grad(const tsi_grad_io *io)
{
    ts_tensor *below = ts_exp(ts_div_scalar(io->in[0], tsi_unary_number_of(io->attributes)));
    return tsi_unary_give(io, ts_masked_fill(below, ts_gt_scalar(io->in[0], 0), 1.0));
}

static ts_status shrink_grad(const tsi_grad_io *io)
{
    return give_but(io, ts_le_scalar(ts_abs(io->in[0]), tsi_unary_number_of(io->attributes)));
}

static ts_status threshold_grad(const tsi_grad_io *io)
{
    const threshold_attributes *t = io->attributes;
    return give_but(io, tsi_op_make(&tsi_op_le_scalar, &io->in[0], 1, &t->threshold));
}

/* ---- traits and samples that depend on attributes -------------------------------------------- */

static void celu_trait(const tsi_op_call *call, tsi_traits *traits)
{
    if (tsi_unary_number_of(call->attributes) > 0) traits->mono[0] = TSI_MONO_UP;
}

static void shrink_trait(const tsi_op_call *call, tsi_traits *traits)
{
    if (tsi_unary_number_of(call->attributes) >= 0) traits->mono[0] = TSI_MONO_UP;
}

static void threshold_trait(const tsi_op_call *call, tsi_traits *traits)
{
    const threshold_attributes *t = call->attributes;
    if (t->value.real <= t->threshold.real) traits->mono[0] = TSI_MONO_UP;
}

static bool sample_number(tsi_sample *s)
{
    ((tsi_unary_number *)s->attributes)->number = s->variant == 1 ? 0.25 : 2.0;
    return tsi_sample_unary(s);
}

static bool sample_threshold(tsi_sample *s)
{
    threshold_attributes *t = s->attributes;
    t->threshold = tsi_number_real(0.4);
    t->value = tsi_number_real(s->variant == 1 ? 3.0 : s->variant == 2 ? 0.4 : -2.0);
    return tsi_sample_unary(s);
}

/* ---- the rows -------------------------------------------------------------------------------- */

#define REALS(function)                                                                            \
    (&(const tsi_pointwise_family){ { function, NULL, NULL }, TSI_RESULT_REAL, NULL })
#define ROW(op, words, mono_, saves_)                                                              \
    .name = #op, .what = words, .dims = "*", .input_min = 1, .input_max = 1, .output_count = 1,    \
    .saves = (saves_), .traits = { .mono = { TSI_MONO_##mono_ } }, .infer = tsi_family_infer,      \
    .reference = tsi_family_reference
#define PLAIN .flags = TSI_OP_IN_PLACE, .sample = tsi_sample_unary
#define NUMBER(table)                                                                              \
    .flags = TSI_OP_IN_PLACE, .attribute = table, .attribute_bytes = sizeof(tsi_unary_number)
#define X 1

const tsi_op_desc tsi_op_hardsigmoid = {
    ROW(hardsigmoid, "x / 6 + 1/2 within 0 and 1", UP, X),
    PLAIN,
    .family = REALS(tsi_real_hardsigmoid),
    .grad = hardsigmoid_grad,
};
const tsi_op_desc tsi_op_hardswish = {
    ROW(hardswish, "x * hardsigmoid(x)", NONE, X),
    PLAIN,
    .family = REALS(tsi_real_hardswish),
    .grad = hardswish_grad,
};
const tsi_op_desc tsi_op_relu6 = {
    ROW(relu6, "x within 0 and 6", UP, X),
    PLAIN,
    .family = (&(const tsi_pointwise_family){
        { tsi_real_relu6, tsi_whole_relu6, NULL }, TSI_RESULT_SAME, NULL }),
    .grad = relu6_grad,
};
const tsi_op_desc tsi_op_softsign = {
    ROW(softsign, "x / (1 + |x|)", UP, X),
    PLAIN,
    .family = REALS(tsi_real_softsign),
    .grad = softsign_grad,
};
const tsi_op_desc tsi_op_tanhshrink = {
    ROW(tanhshrink, "x - tanh(x)", UP, X),
    PLAIN,
    .family = REALS(tsi_real_tanhshrink),
    .grad = tanhshrink_grad,
};
const tsi_op_desc tsi_op_mish = {
    ROW(mish, "x * tanh(softplus(x))", NONE, X),
    PLAIN,
    .family = REALS(tsi_real_mish),
    .grad = mish_grad,
};
const tsi_op_desc tsi_op_selu = {
    ROW(selu, "elu with the scale and alpha that keep mean 0 and deviation 1", UP, X),
    PLAIN,
    .family = REALS(tsi_real_selu),
    .grad = selu_grad,
};
const tsi_op_desc tsi_op_celu = {
    ROW(celu, "x, or alpha * (e^(x / alpha) - 1) below zero", NONE, X),
    NUMBER(alpha_table),
    .sample = sample_number,
    .trait = celu_trait,
    .family = REALS(tsi_real_celu),
    .grad = celu_grad,
};
const tsi_op_desc tsi_op_hardshrink = {
    ROW(hardshrink, "x, or 0 where |x| <= lambd", NONE, X),
    NUMBER(lambd_table),
    .sample = sample_number,
    .trait = shrink_trait,
    .family = REALS(tsi_real_hardshrink),
    .grad = shrink_grad,
};
const tsi_op_desc tsi_op_softshrink = {
    ROW(softshrink, "x brought nearer to 0 by lambd", NONE, X),
    NUMBER(lambd_table),
    .sample = sample_number,
    .trait = shrink_trait,
    .family = REALS(tsi_real_softshrink),
    .grad = shrink_grad,
};
const tsi_op_desc tsi_op_threshold = {
    ROW(threshold, "x, or value where x <= threshold", NONE, X),
    .flags = TSI_OP_IN_PLACE,
    TSI_ATTRIBUTES(threshold_table, threshold_attributes),
    .sample = sample_threshold,
    .trait = threshold_trait,
    .family = (&(const tsi_pointwise_family){
        { real_threshold, whole_threshold, NULL }, TSI_RESULT_SAME, threshold_dtype }),
    .grad = threshold_grad,
};

/* ---- relu2 ----------------------------------------------------------------------------------- */

static ts_status relu2_grad(const tsi_grad_io *io)
{
    return tsi_unary_give(io, ts_mul_scalar(ts_relu(io->in[0]), 2));
}

const tsi_op_desc tsi_op_relu2 = {
    ROW(relu2, "the square of max(x, 0)", UP, X),
    PLAIN,
    .family = REALS(tsi_real_relu2),
    .grad = relu2_grad,
};
TSI_MAKER1(relu2)

/* ---- the makers ------------------------------------------------------------------------------ */

TSI_MAKER1(hardsigmoid)
TSI_MAKER1(hardswish)
TSI_MAKER1(mish)
TSI_MAKER1(relu6)
TSI_MAKER1(selu)
TSI_MAKER1(softsign)
TSI_MAKER1(tanhshrink)
TSI_MAKER1_BY(celu, alpha)
TSI_MAKER1_BY(hardshrink, lambd)
TSI_MAKER1_BY(softshrink, lambd)

ts_tensor *(ts_threshold)(ts_tensor *x, double threshold, double value)
{
    threshold_attributes a = { tsi_number_real(threshold), tsi_number_real(value) };
    return tsi_op_make(&tsi_op_threshold, &x, 1, &a);
}
