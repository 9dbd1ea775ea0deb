/* SPDX-License-Identifier: Apache-2.0 */
/* special.c - special functions of one input: logit, sinc, erfinv, trigamma, and what becomes of
 * infinities and NaN. None is monotone where it is defined everywhere, so nothing pending passes.
 */
#include <math.h>

#include "op/pointwise/unary.h"
#include "op/pointwise/unary_scalar.h"

typedef struct finite_attributes {
    double nan, posinf, neginf; /* NaN: the largest number of the dtype, and its negative */
} finite_attributes;

static const tsi_attribute eps_table[] = { TSI_ATTR(tsi_unary_number, number, REAL, "eps", "null"),
                                           { 0 } };
static const tsi_attribute finite_table[] = {
    TSI_ATTR(finite_attributes, nan, REAL, "nan", "0"),
    TSI_ATTR(finite_attributes, posinf, REAL, "posinf", "null"),
    TSI_ATTR(finite_attributes, neginf, REAL, "neginf", "null"),
    { 0 },
};

static const double pi = 3.14159265358979323846;

/* ---- functions ------------------------------------------------------------------------------- */

static double real_nan_to_num(const double *x, const void *a)
{
    const finite_attributes *f = a;
    if (isnan(*x)) return f->nan;
    if (!isinf(*x)) return *x;
    return *x > 0 ? f->posinf : f->neginf;
}

TSI_WHOLE(nan_to_num, x[0])

static ts_status nan_to_num_reference(const tsi_kernel_io *io)
{
    ts_dtype dtype = (ts_dtype)io->in[0].global->dtype;
    finite_attributes f = *(const finite_attributes *)io->attributes;
    double largest = tsi_largest_real(dtype);
    if (isnan(f.posinf)) f.posinf = largest;
    if (isnan(f.neginf)) f.neginf = -largest;
    tsi_kernel_io with = *io;
    with.attributes = &f;
    tsi_scalar_fns fns = { real_nan_to_num, whole_nan_to_num, NULL };
    return tsi_reference_pointwise(&with, &fns, dtype);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* 1 / (x (1 - x)), 0 where x was kept away from the ends. */
static ts_status logit_grad(const tsi_grad_io *io)
{
    double eps = tsi_unary_number_of(io->attributes);
    ts_tensor *x = io->in[0];
    TSI_TRY(tsi_unary_give(io, ts_reciprocal(ts_mul(x, ts_rsub_scalar(x, 1)))));
    bool clamps = !isnan(eps); /* else there is no function outside, and no slope */
    ts_tensor *outside = clamps ? ts_logical_or(ts_lt_scalar(x, eps), ts_gt_scalar(x, 1 - eps))
                                : ts_logical_or(ts_lt_scalar(x, 0), ts_gt_scalar(x, 1));
    return tsi_grad_give(io, ts_masked_fill(io->in_grad[0], outside, clamps ? 0.0 : (double)NAN));
}

/* (cos(pi x) - sinc(x)) / x, 0 at 0. */
static ts_status sinc_grad(const tsi_grad_io *io)
{
    ts_tensor *x = io->in[0], *slope = ts_sub(ts_cos(ts_mul_scalar(x, pi)), io->out[0]);
    return tsi_unary_give(io, ts_masked_fill(ts_div(slope, x), ts_logical_not(x), 0.0));
}

/* sqrt(pi) / 2 e^(y^2) */
static ts_status erfinv_grad(const tsi_grad_io *io)
{
    return tsi_unary_give(io, ts_mul_scalar(ts_exp(ts_square(io->out[0])), 0.8862269254527580));
}

static ts_status nan_to_num_grad(const tsi_grad_io *io)
{
    ts_tensor *gone = ts_logical_not(ts_isfinite(io->in[0]));
    return tsi_grad_give(io, ts_masked_fill(io->out_grad[0], gone, 0.0));
}

static bool sample_eps(tsi_sample *s)
{
    ((tsi_unary_number *)s->attributes)->number = s->variant == 1 ? 0.25 : (double)NAN;
    return tsi_sample_unary(s);
}

static bool sample_finite(tsi_sample *s)
{
    *(finite_attributes *)s->attributes = (finite_attributes){ 0.5, (double)NAN, (double)NAN };
    return tsi_sample_unary(s);
}

/* ---- the rows -------------------------------------------------------------------------------- */

#define REALS(function)                                                                            \
    (&(const tsi_pointwise_family){ { function, NULL, NULL }, TSI_RESULT_REAL, NULL })
#define ROW(op, words, saves_)                                                                     \
    .name = #op, .what = words, .dims = "*", .input_min = 1, .input_max = 1, .output_count = 1,    \
    .saves = (saves_), .infer = tsi_family_infer, .reference = tsi_family_reference
#define X 1
#define Y ((uint64_t)1 << TSI_SAVE_OUT)

const tsi_op_desc tsi_op_sinc = {
    ROW(sinc, "sin(pi x) / (pi x), 1 at 0", X | Y),
    .flags = TSI_OP_IN_PLACE,
    .sample = tsi_sample_unary,
    .family = REALS(tsi_real_sinc),
    .grad = sinc_grad,
};
const tsi_op_desc tsi_op_erfinv = {
    ROW(erfinv, "the number whose error function is x", Y),
    .flags = TSI_OP_IN_PLACE,
    .sample = tsi_sample_unary,
    .family = REALS(tsi_real_erfinv),
    .grad = erfinv_grad,
};
const tsi_op_desc tsi_op_logit = {
    ROW(logit, "log(x / (1 - x)), with x kept eps away from 0 and 1 if eps is given", X),
    .flags = TSI_OP_IN_PLACE,
    TSI_ATTRIBUTES(eps_table, tsi_unary_number),
    .sample = sample_eps,
    .family = REALS(tsi_real_logit),
    .grad = logit_grad,
};
const tsi_op_desc tsi_op_nan_to_num = {
    .name = "nan_to_num",
    .what = "x with numbers in place of NaN and infinities",
    .dims = "*",
    TSI_OPERANDS(1, 1, 1),
    .saves = X,
    .infer = tsi_family_infer,
    .reference = nan_to_num_reference,
    .flags = TSI_OP_IN_PLACE,
    TSI_ATTRIBUTES(finite_table, finite_attributes),
    .sample = sample_finite,
    .family = (&(const tsi_pointwise_family){
        { real_nan_to_num, whole_nan_to_num, NULL }, TSI_RESULT_SAME, NULL }),
    .grad = nan_to_num_grad,
};
const tsi_op_desc tsi_op_trigamma = {
    ROW(trigamma, "the slope of digamma", 0),
    .flags = TSI_OP_IN_PLACE | TSI_OP_NO_GRAD,
    .sample = tsi_sample_unary,
    .family = REALS(tsi_real_trigamma),
};
const tsi_op_desc tsi_op_isposinf = {
    ROW(isposinf, "is it infinite and above zero?", 0),
    .flags = TSI_OP_NO_GRAD,
    .sample = tsi_sample_unary,
    .family = (&(const tsi_pointwise_family){
        { tsi_real_isposinf, tsi_whole_isposinf, NULL }, TSI_RESULT_BOOL, NULL }),
};
const tsi_op_desc tsi_op_isneginf = {
    ROW(isneginf, "is it infinite and below zero?", 0),
    .flags = TSI_OP_NO_GRAD,
    .sample = tsi_sample_unary,
    .family = (&(const tsi_pointwise_family){
        { tsi_real_isneginf, tsi_whole_isneginf, NULL }, TSI_RESULT_BOOL, NULL }),
};

/* ---- the makers ------------------------------------------------------------------------------ */

TSI_MAKER1(erfinv)
TSI_MAKER1(isneginf)
TSI_MAKER1(isposinf)
TSI_MAKER1(sinc)
TSI_MAKER1(trigamma)
TSI_MAKER1_BY(logit, eps)

ts_tensor *(ts_nan_to_num)(ts_tensor *x, double nan)
{
    finite_attributes a = { nan, (double)NAN, (double)NAN };
    return tsi_op_make(&tsi_op_nan_to_num, &x, 1, &a);
}
