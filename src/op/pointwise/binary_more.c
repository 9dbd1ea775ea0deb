/* SPDX-License-Identifier: Apache-2.0 */
/* binary_more.c - more elementwise operators of two inputs: whole quotients, extremes that pass
 * over NaN, steps, shifts of bits, common divisors, closeness. */
#include <complex.h>
#include <math.h>

#include "op/pointwise/binary.h"
#include "op/pointwise/unary.h"
#include "op/pointwise/unary_scalar.h"

/* ---- closeness ------------------------------------------------------------------------------- */

static double real_isclose(const double *x, const void *a)
{
    const tsi_close_attributes *c = a;
    if (x[0] == x[1]) return 1;
    if (isnan(x[0]) || isnan(x[1])) return c->equal_nan && isnan(x[0]) && isnan(x[1]);
    return isfinite(x[0]) && isfinite(x[1]) && fabs(x[0] - x[1]) <= c->atol + c->rtol * fabs(x[1]);
}

static int64_t whole_isclose(const int64_t *x, const void *a)
{
    double both[] = { (double)x[0], (double)x[1] };
    return x[0] == x[1] || real_isclose(both, a) != 0;
}

static double complex both_isclose(const double complex *x, const void *a)
{
    const tsi_close_attributes *c = a;
    if (x[0] == x[1]) return 1;
    bool none[2];
    for (int i = 0; i < 2; i++)
        none[i] = isnan(creal(x[i])) || isnan(cimag(x[i]));
    if (none[0] || none[1]) return c->equal_nan && none[0] && none[1];
    return isfinite(cabs(x[0])) && isfinite(cabs(x[1])) &&
           cabs(x[0] - x[1]) <= c->atol + c->rtol * cabs(x[1]);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* To the one that is taken, of equal ones the first. */
static ts_status extreme_grad(const tsi_grad_io *io)
{
    ts_tensor *dy = io->out_grad[0], *a = io->in[0], *b = io->in[1];
    ts_tensor *first = io->op == &tsi_op_fmax ? ts_ge(a, b) : ts_le(a, b);
    first = ts_logical_or(first, ts_isnan(b));
    return tsi_binary_give(io, ts_masked_fill(dy, ts_logical_not(first), 0.0),
                           ts_masked_fill(dy, first, 0.0));
}

/* A step has no slope; where it is taken, the value has one. */
static ts_status heaviside_grad(const tsi_grad_io *io)
{
    ts_tensor *dy = io->out_grad[0];
    return tsi_binary_give(io, ts_zeros_like(dy),
                           ts_masked_fill(dy, ts_ne_scalar(io->in[0], 0), 0.0));
}

/* ---- the rows -------------------------------------------------------------------------------- */

static bool sample_close(tsi_sample *s)
{
    *(tsi_close_attributes *)s->attributes =
        (tsi_close_attributes){ 0, s->variant ? 4.0 : 1.0, 0, 0 };
    return tsi_sample_binary(s);
}

#define A 1u
#define B 2u

const tsi_op_desc tsi_op_floor_divide = {
    .name = "floor_divide",
    .what = "the largest whole number not above a / b; of integers by 0: 0",
    TSI_BINARY,
    .flags = TSI_OP_NO_GRAD | TSI_OP_IN_PLACE,
    .family = TSI_BINARY_FAMILY(tsi_real_floor_divide, tsi_whole_floor_divide, NULL, SAME),
};
const tsi_op_desc tsi_op_fmax = {
    .name = "fmax",
    .what = "the larger of a and b; a number where the other is none",
    TSI_BINARY,
    .saves = A | B,
    .family = TSI_BINARY_FAMILY(tsi_real_fmax, tsi_whole_fmax, NULL, SAME),
    .traits = { .mono = { TSI_MONO_UP, TSI_MONO_UP } },
    .rules = tsi_maximum_rules,
    .grad = extreme_grad,
};
const tsi_op_desc tsi_op_fmin = {
    .name = "fmin",
    .what = "the smaller of a and b; a number where the other is none",
    TSI_BINARY,
    .saves = A | B,
    .family = TSI_BINARY_FAMILY(tsi_real_fmin, tsi_whole_fmin, NULL, SAME),
    .traits = { .mono = { TSI_MONO_UP, TSI_MONO_UP } },
    .rules = tsi_minimum_rules,
    .grad = extreme_grad,
};
const tsi_op_desc tsi_op_logaddexp2 = {
    .name = "logaddexp2",
    .what = "log2(2^a + 2^b)",
    TSI_BINARY,
    .saves = A | B,
    .family = TSI_BINARY_FAMILY(tsi_real_logaddexp2, NULL, NULL, REAL),
    .traits = { .mono = { TSI_MONO_UP, TSI_MONO_UP } },
    .grad = tsi_grad_logaddexp,
};
const tsi_op_desc tsi_op_heaviside = {
    .name = "heaviside",
    .what = "0 below zero, 1 above, b where a is zero",
    TSI_BINARY,
    .saves = A,
    .family = TSI_BINARY_FAMILY(tsi_real_heaviside, tsi_whole_heaviside, NULL, SAME),
    .traits = { .flow = TSI_AVG_WITH_R, .linear_in = B, .mono = { TSI_MONO_NONE, TSI_MONO_UP } },
    .grad = heaviside_grad,
};
const tsi_op_desc tsi_op_isclose = {
    .name = "isclose",
    .what = "is |a - b| <= atol + rtol |b|?",
    TSI_BINARY_OF(sample_close),
    .flags = TSI_OP_NO_GRAD,
    TSI_ATTRIBUTES(tsi_close_table, tsi_close_attributes),
    .family = TSI_BINARY_FAMILY(real_isclose, whole_isclose, both_isclose, BOOL),
};

#define BITS TSI_BINARY_OF(tsi_sample_bits), .flags = TSI_OP_NO_GRAD | TSI_OP_IN_PLACE
const tsi_op_desc tsi_op_bitwise_left_shift = {
    .name = "bitwise_left_shift",
    .what = "a * 2^b, without the bits that leave",
    BITS,
    .family = TSI_BINARY_FAMILY(NULL, tsi_whole_bitwise_left_shift, NULL, SAME),
};
const tsi_op_desc tsi_op_bitwise_right_shift = {
    .name = "bitwise_right_shift",
    .what = "the largest whole number not above a / 2^b",
    BITS,
    .family = TSI_BINARY_FAMILY(NULL, tsi_whole_bitwise_right_shift, NULL, SAME),
};
const tsi_op_desc tsi_op_gcd = {
    .name = "gcd",
    .what = "the largest common divisor",
    BITS,
    .family = TSI_BINARY_FAMILY(NULL, tsi_whole_gcd, NULL, SAME),
};
const tsi_op_desc tsi_op_lcm = {
    .name = "lcm",
    .what = "the smallest common multiple",
    BITS,
    .family = TSI_BINARY_FAMILY(NULL, tsi_whole_lcm, NULL, SAME),
};

/* ---- the makers ------------------------------------------------------------------------------ */

TSI_MAKER2(bitwise_left_shift)
TSI_MAKER2(bitwise_right_shift)
TSI_MAKER2(floor_divide)
TSI_MAKER2(fmax)
TSI_MAKER2(fmin)
TSI_MAKER2(gcd)
TSI_MAKER2(heaviside)
TSI_MAKER2(lcm)
TSI_MAKER2(logaddexp2)
