/* SPDX-License-Identifier: Apache-2.0 */
/* unary_scalar.h - the scalar functions of the elementwise operators of one input. The second
 * argument, the operator's attributes, is there because all scalar functions are called alike. */
#ifndef TSI_OP_UNARY_SCALAR_H
#define TSI_OP_UNARY_SCALAR_H

#include <complex.h>
#include <stdint.h>

/* clang-format off */
#define TSI_REAL_LIST(X) \
    X(abs) X(acos) X(acosh) X(asin) X(asinh) X(atan) X(atanh) X(ceil) X(same) X(cos) X(cosh) \
    X(deg2rad) X(digamma) X(erf) X(erfc) X(exp) X(exp2) X(expm1) X(floor) X(frac) X(isfinite) \
    X(isinf) X(isnan) X(lgamma) X(log) X(log10) X(log1p) X(log2) X(logical_not) X(neg) \
    X(rad2deg) X(reciprocal) X(relu) X(round) X(rsqrt) X(sign) X(signbit) X(sin) X(sinh) X(sqrt) \
    X(square) X(tan) X(tanh) X(trunc) X(zero) X(one) X(sigmoid) X(log_sigmoid) X(silu) X(gelu) \
    X(gelu_tanh) X(softplus)
#define TSI_WHOLE_LIST(X) \
    X(abs) X(same) X(bitwise_not) X(neg) X(square) X(sign) X(signbit) X(relu) X(logical_not) \
    X(zero) X(one)
#define TSI_BOTH_LIST(X) \
    X(abs) X(same) X(conj) X(neg) X(square) X(reciprocal) X(exp) X(log) X(sqrt) X(sin) X(cos) \
    X(rsqrt) X(sigmoid) X(silu) X(tanh) X(acos) X(acosh) X(asin) X(asinh) X(atan) X(atanh) \
    X(cosh) X(sinh) X(tan) X(exp2) X(expm1) X(log10) X(log1p) X(log2) X(isfinite) X(isinf) \
    X(isnan) X(logical_not) X(zero) X(one)
/* clang-format on */
#define TSI_DECLARE_REAL(name) double tsi_real_##name(const double *x, const void *attributes);
TSI_REAL_LIST(TSI_DECLARE_REAL)
#undef TSI_DECLARE_REAL
#define TSI_DECLARE_WHOLE(name) int64_t tsi_whole_##name(const int64_t *x, const void *attributes);
TSI_WHOLE_LIST(TSI_DECLARE_WHOLE)
#undef TSI_DECLARE_WHOLE
#define TSI_DECLARE_BOTH(name)                                                                     \
    double complex tsi_both_##name(const double complex *x, const void *attributes);
TSI_BOTH_LIST(TSI_DECLARE_BOTH)
#undef TSI_DECLARE_BOTH

/* x^n with wrap-around; of a negative power the whole part, so 0 but for 1 and -1. */
int64_t tsi_whole_power(int64_t x, int64_t n);

#endif
