/* SPDX-License-Identifier: Apache-2.0 */
/* unary_scalar.h - the scalar functions of elementwise operators by the operators' names: of reals
 * and whole numbers those of scalars.def, which kernels of GPUs are made of, too; of complex ones
 * unary_complex.c's. The second argument, the operator's attributes, is there because all scalar
 * functions are called alike. */
#ifndef TSI_OP_UNARY_SCALAR_H
#define TSI_OP_UNARY_SCALAR_H

#include <complex.h>
#include <stdint.h>

/* clang-format off */
#define TSI_BOTH_LIST(X) \
    X(abs) X(same) X(conj) X(neg) X(square) X(reciprocal) X(exp) X(log) X(sqrt) X(sin) X(cos) \
    X(rsqrt) X(sigmoid) X(silu) X(tanh) X(acos) X(acosh) X(asin) X(asinh) X(atan) X(atanh) \
    X(cosh) X(sinh) X(tan) X(exp2) X(expm1) X(log10) X(log1p) X(log2) X(isfinite) X(isinf) \
    X(isnan) X(logical_not) X(zero) X(one)
/* clang-format on */
#define TSI_DECLARE(name)                                                                          \
    double tsi_real_##name(const double *x, const void *attributes);                               \
    int64_t tsi_whole_##name(const int64_t *x, const void *attributes);
#define TSI_POINT(name, real, whole) TSI_DECLARE(name)
#define TSI_HOT TSI_POINT
#define TSI_OWN(name, real, whole)
#include "op/pointwise/scalars.def"
#undef TSI_POINT
#undef TSI_HOT
TSI_DECLARE(same)
TSI_DECLARE(zero)
TSI_DECLARE(one)
TSI_DECLARE(bitwise_not)
#undef TSI_DECLARE
#define TSI_DECLARE_BOTH(name)                                                                     \
    double complex tsi_both_##name(const double complex *x, const void *attributes);
TSI_BOTH_LIST(TSI_DECLARE_BOTH)
#undef TSI_DECLARE_BOTH

#endif
