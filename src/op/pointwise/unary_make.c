/* SPDX-License-Identifier: Apache-2.0 */
/* unary_make.c - the public makers of the elementwise operators of one input. */
#include "op/pointwise/unary.h"

ts_tensor *(ts_abs)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_abs, &x, 1, NULL);
}

ts_tensor *(ts_acos)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_acos, &x, 1, NULL);
}

ts_tensor *(ts_acosh)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_acosh, &x, 1, NULL);
}

ts_tensor *(ts_asin)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_asin, &x, 1, NULL);
}

ts_tensor *(ts_asinh)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_asinh, &x, 1, NULL);
}

ts_tensor *(ts_atan)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_atan, &x, 1, NULL);
}

ts_tensor *(ts_atanh)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_atanh, &x, 1, NULL);
}

ts_tensor *(ts_bitwise_not)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_bitwise_not, &x, 1, NULL);
}

ts_tensor *(ts_ceil)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_ceil, &x, 1, NULL);
}

ts_tensor *(ts_clone)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_clone, &x, 1, NULL);
}

ts_tensor *(ts_conj)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_conj, &x, 1, NULL);
}

ts_tensor *(ts_cos)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_cos, &x, 1, NULL);
}

ts_tensor *(ts_cosh)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_cosh, &x, 1, NULL);
}

ts_tensor *(ts_deg2rad)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_deg2rad, &x, 1, NULL);
}

ts_tensor *(ts_erf)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_erf, &x, 1, NULL);
}

ts_tensor *(ts_digamma)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_digamma, &x, 1, NULL);
}

ts_tensor *(ts_erfc)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_erfc, &x, 1, NULL);
}

ts_tensor *(ts_exp)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_exp, &x, 1, NULL);
}

ts_tensor *(ts_exp2)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_exp2, &x, 1, NULL);
}

ts_tensor *(ts_expm1)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_expm1, &x, 1, NULL);
}

ts_tensor *(ts_floor)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_floor, &x, 1, NULL);
}

ts_tensor *(ts_frac)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_frac, &x, 1, NULL);
}

ts_tensor *(ts_gelu)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_gelu, &x, 1, NULL);
}

ts_tensor *(ts_isfinite)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_isfinite, &x, 1, NULL);
}

ts_tensor *(ts_isinf)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_isinf, &x, 1, NULL);
}

ts_tensor *(ts_isnan)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_isnan, &x, 1, NULL);
}

ts_tensor *(ts_lgamma)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_lgamma, &x, 1, NULL);
}

ts_tensor *(ts_log)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_log, &x, 1, NULL);
}

ts_tensor *(ts_log10)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_log10, &x, 1, NULL);
}

ts_tensor *(ts_log1p)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_log1p, &x, 1, NULL);
}

ts_tensor *(ts_log2)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_log2, &x, 1, NULL);
}

ts_tensor *(ts_log_sigmoid)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_log_sigmoid, &x, 1, NULL);
}

ts_tensor *(ts_logical_not)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_logical_not, &x, 1, NULL);
}

ts_tensor *(ts_neg)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_neg, &x, 1, NULL);
}

ts_tensor *(ts_ones_like)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_ones_like, &x, 1, NULL);
}

ts_tensor *(ts_rad2deg)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_rad2deg, &x, 1, NULL);
}

ts_tensor *(ts_reciprocal)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_reciprocal, &x, 1, NULL);
}

ts_tensor *(ts_relu)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_relu, &x, 1, NULL);
}

ts_tensor *(ts_round)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_round, &x, 1, NULL);
}

ts_tensor *(ts_rsqrt)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_rsqrt, &x, 1, NULL);
}

ts_tensor *(ts_sigmoid)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_sigmoid, &x, 1, NULL);
}

ts_tensor *(ts_sign)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_sign, &x, 1, NULL);
}

ts_tensor *(ts_signbit)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_signbit, &x, 1, NULL);
}

ts_tensor *(ts_silu)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_silu, &x, 1, NULL);
}

ts_tensor *(ts_sin)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_sin, &x, 1, NULL);
}

ts_tensor *(ts_sinh)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_sinh, &x, 1, NULL);
}

ts_tensor *(ts_softplus)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_softplus, &x, 1, NULL);
}

ts_tensor *(ts_sqrt)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_sqrt, &x, 1, NULL);
}

ts_tensor *(ts_square)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_square, &x, 1, NULL);
}

ts_tensor *(ts_tan)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_tan, &x, 1, NULL);
}

ts_tensor *(ts_tanh)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_tanh, &x, 1, NULL);
}

ts_tensor *(ts_trunc)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_trunc, &x, 1, NULL);
}

ts_tensor *(ts_zeros_like)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_zeros_like, &x, 1, NULL);
}

ts_tensor *(ts_gelu_tanh)(ts_tensor *x)
{
    return tsi_op_make(&tsi_op_gelu_tanh, &x, 1, NULL);
}
