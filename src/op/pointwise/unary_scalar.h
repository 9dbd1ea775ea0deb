/* SPDX-License-Identifier: Apache-2.0 */
/* unary_scalar.h - the scalar functions of the elementwise operators of one input. The second
 * argument, the operator's attributes, is there because all scalar functions are called alike. */
#ifndef TSI_OP_UNARY_SCALAR_H
#define TSI_OP_UNARY_SCALAR_H

#include <complex.h>
#include <stdint.h>

double tsi_real_abs(const double *x, const void *attributes);
double tsi_real_acos(const double *x, const void *attributes);
double tsi_real_acosh(const double *x, const void *attributes);
double tsi_real_asin(const double *x, const void *attributes);
double tsi_real_asinh(const double *x, const void *attributes);
double tsi_real_atan(const double *x, const void *attributes);
double tsi_real_atanh(const double *x, const void *attributes);
double tsi_real_ceil(const double *x, const void *attributes);
double tsi_real_same(const double *x, const void *attributes);
double tsi_real_cos(const double *x, const void *attributes);
double tsi_real_cosh(const double *x, const void *attributes);
double tsi_real_deg2rad(const double *x, const void *attributes);
double tsi_real_digamma(const double *x, const void *attributes);
double tsi_real_erf(const double *x, const void *attributes);
double tsi_real_erfc(const double *x, const void *attributes);
double tsi_real_exp(const double *x, const void *attributes);
double tsi_real_exp2(const double *x, const void *attributes);
double tsi_real_expm1(const double *x, const void *attributes);
double tsi_real_floor(const double *x, const void *attributes);
double tsi_real_frac(const double *x, const void *attributes);
double tsi_real_isfinite(const double *x, const void *attributes);
double tsi_real_isinf(const double *x, const void *attributes);
double tsi_real_isnan(const double *x, const void *attributes);
double tsi_real_lgamma(const double *x, const void *attributes);
double tsi_real_log(const double *x, const void *attributes);
double tsi_real_log10(const double *x, const void *attributes);
double tsi_real_log1p(const double *x, const void *attributes);
double tsi_real_log2(const double *x, const void *attributes);
double tsi_real_logical_not(const double *x, const void *attributes);
double tsi_real_neg(const double *x, const void *attributes);
double tsi_real_rad2deg(const double *x, const void *attributes);
double tsi_real_reciprocal(const double *x, const void *attributes);
double tsi_real_relu(const double *x, const void *attributes);
double tsi_real_round(const double *x, const void *attributes);
double tsi_real_rsqrt(const double *x, const void *attributes);
double tsi_real_sign(const double *x, const void *attributes);
double tsi_real_signbit(const double *x, const void *attributes);
double tsi_real_sin(const double *x, const void *attributes);
double tsi_real_sinh(const double *x, const void *attributes);
double tsi_real_sqrt(const double *x, const void *attributes);
double tsi_real_square(const double *x, const void *attributes);
double tsi_real_tan(const double *x, const void *attributes);
double tsi_real_tanh(const double *x, const void *attributes);
double tsi_real_trunc(const double *x, const void *attributes);
double tsi_real_zero(const double *x, const void *attributes);
double tsi_real_one(const double *x, const void *attributes);
double tsi_real_sigmoid(const double *x, const void *attributes);
double tsi_real_log_sigmoid(const double *x, const void *attributes);
double tsi_real_silu(const double *x, const void *attributes);
double tsi_real_gelu(const double *x, const void *attributes);
double tsi_real_gelu_tanh(const double *x, const void *attributes);
double tsi_real_softplus(const double *x, const void *attributes);
int64_t tsi_whole_abs(const int64_t *x, const void *attributes);
int64_t tsi_whole_same(const int64_t *x, const void *attributes);
int64_t tsi_whole_bitwise_not(const int64_t *x, const void *attributes);
int64_t tsi_whole_neg(const int64_t *x, const void *attributes);
int64_t tsi_whole_square(const int64_t *x, const void *attributes);
int64_t tsi_whole_sign(const int64_t *x, const void *attributes);
int64_t tsi_whole_signbit(const int64_t *x, const void *attributes);
int64_t tsi_whole_relu(const int64_t *x, const void *attributes);
int64_t tsi_whole_logical_not(const int64_t *x, const void *attributes);
int64_t tsi_whole_zero(const int64_t *x, const void *attributes);
int64_t tsi_whole_one(const int64_t *x, const void *attributes);
double complex tsi_both_abs(const double complex *x, const void *attributes);
double complex tsi_both_same(const double complex *x, const void *attributes);
double complex tsi_both_conj(const double complex *x, const void *attributes);
double complex tsi_both_neg(const double complex *x, const void *attributes);
double complex tsi_both_square(const double complex *x, const void *attributes);
double complex tsi_both_reciprocal(const double complex *x, const void *attributes);
double complex tsi_both_exp(const double complex *x, const void *attributes);
double complex tsi_both_log(const double complex *x, const void *attributes);
double complex tsi_both_sqrt(const double complex *x, const void *attributes);
double complex tsi_both_sin(const double complex *x, const void *attributes);
double complex tsi_both_cos(const double complex *x, const void *attributes);
double complex tsi_both_rsqrt(const double complex *x, const void *attributes);
double complex tsi_both_sigmoid(const double complex *x, const void *attributes);
double complex tsi_both_silu(const double complex *x, const void *attributes);
double complex tsi_both_tanh(const double complex *x, const void *attributes);
double complex tsi_both_acos(const double complex *x, const void *attributes);
double complex tsi_both_acosh(const double complex *x, const void *attributes);
double complex tsi_both_asin(const double complex *x, const void *attributes);
double complex tsi_both_asinh(const double complex *x, const void *attributes);
double complex tsi_both_atan(const double complex *x, const void *attributes);
double complex tsi_both_atanh(const double complex *x, const void *attributes);
double complex tsi_both_cosh(const double complex *x, const void *attributes);
double complex tsi_both_sinh(const double complex *x, const void *attributes);
double complex tsi_both_tan(const double complex *x, const void *attributes);
double complex tsi_both_exp2(const double complex *x, const void *attributes);
double complex tsi_both_expm1(const double complex *x, const void *attributes);
double complex tsi_both_log10(const double complex *x, const void *attributes);
double complex tsi_both_log1p(const double complex *x, const void *attributes);
double complex tsi_both_log2(const double complex *x, const void *attributes);
double complex tsi_both_isfinite(const double complex *x, const void *attributes);
double complex tsi_both_isinf(const double complex *x, const void *attributes);
double complex tsi_both_isnan(const double complex *x, const void *attributes);
double complex tsi_both_logical_not(const double complex *x, const void *attributes);
double complex tsi_both_zero(const double complex *x, const void *attributes);
double complex tsi_both_one(const double complex *x, const void *attributes);

/* x^n with wrap-around; of a negative power the whole part, so 0 but for 1 and -1. */
int64_t tsi_whole_power(int64_t x, int64_t n);

#endif
