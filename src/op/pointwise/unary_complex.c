/* SPDX-License-Identifier: Apache-2.0 */
/* unary_complex.c - the functions of complex numbers of the elementwise operators of one input, in
 * double complex. */
#include <complex.h>
#include <math.h>

#include "op/pointwise/unary_scalar.h"

double complex tsi_both_abs(const double complex *x, const void *a)
{
    (void)a;
    return cabs(*x);
}

double complex tsi_both_same(const double complex *x, const void *a)
{
    (void)a;
    return *x;
}

double complex tsi_both_conj(const double complex *x, const void *a)
{
    (void)a;
    return conj(*x);
}

double complex tsi_both_neg(const double complex *x, const void *a)
{
    (void)a;
    return -*x;
}

double complex tsi_both_square(const double complex *x, const void *a)
{
    (void)a;
    return *x * *x;
}

double complex tsi_both_reciprocal(const double complex *x, const void *a)
{
    (void)a;
    return 1.0 / *x;
}

double complex tsi_both_exp(const double complex *x, const void *a)
{
    (void)a;
    return cexp(*x);
}

double complex tsi_both_log(const double complex *x, const void *a)
{
    (void)a;
    return clog(*x);
}

double complex tsi_both_sqrt(const double complex *x, const void *a)
{
    (void)a;
    return csqrt(*x);
}

double complex tsi_both_sin(const double complex *x, const void *a)
{
    (void)a;
    return csin(*x);
}

double complex tsi_both_cos(const double complex *x, const void *a)
{
    (void)a;
    return ccos(*x);
}

double complex tsi_both_rsqrt(const double complex *x, const void *a)
{
    (void)a;
    return 1.0 / csqrt(*x);
}

double complex tsi_both_sigmoid(const double complex *x, const void *a)
{
    (void)a;
    return 1.0 / (1.0 + cexp(-*x));
}

double complex tsi_both_silu(const double complex *x, const void *a)
{
    (void)a;
    return *x / (1.0 + cexp(-*x));
}

double complex tsi_both_tanh(const double complex *x, const void *a)
{
    (void)a;
    return ctanh(*x);
}

double complex tsi_both_zero(const double complex *x, const void *a)
{
    (void)a;
    (void)x;
    return 0.0;
}

double complex tsi_both_one(const double complex *x, const void *a)
{
    (void)a;
    (void)x;
    return 1.0;
}

double complex tsi_both_acos(const double complex *x, const void *a)
{
    (void)a;
    return cacos(*x);
}

double complex tsi_both_acosh(const double complex *x, const void *a)
{
    (void)a;
    return cacosh(*x);
}

double complex tsi_both_asin(const double complex *x, const void *a)
{
    (void)a;
    return casin(*x);
}

double complex tsi_both_asinh(const double complex *x, const void *a)
{
    (void)a;
    return casinh(*x);
}

double complex tsi_both_atan(const double complex *x, const void *a)
{
    (void)a;
    return catan(*x);
}

double complex tsi_both_atanh(const double complex *x, const void *a)
{
    (void)a;
    return catanh(*x);
}

double complex tsi_both_cosh(const double complex *x, const void *a)
{
    (void)a;
    return ccosh(*x);
}

double complex tsi_both_sinh(const double complex *x, const void *a)
{
    (void)a;
    return csinh(*x);
}

double complex tsi_both_tan(const double complex *x, const void *a)
{
    (void)a;
    return ctan(*x);
}

double complex tsi_both_exp2(const double complex *x, const void *a)
{
    (void)a;
    return cexp(*x * 0.6931471805599453);
}

double complex tsi_both_expm1(const double complex *x, const void *a)
{
    (void)a;
    return cexp(*x) - 1.0;
}

double complex tsi_both_log10(const double complex *x, const void *a)
{
    (void)a;
    return clog(*x) / 2.302585092994046;
}

double complex tsi_both_log1p(const double complex *x, const void *a)
{
    (void)a;
    return clog(1.0 + *x);
}

double complex tsi_both_log2(const double complex *x, const void *a)
{
    (void)a;
    return clog(*x) / 0.6931471805599453;
}

double complex tsi_both_isfinite(const double complex *x, const void *a)
{
    (void)a;
    return isfinite(creal(*x)) && isfinite(cimag(*x)) ? 1.0 : 0.0;
}

double complex tsi_both_isinf(const double complex *x, const void *a)
{
    (void)a;
    return isinf(creal(*x)) || isinf(cimag(*x)) ? 1.0 : 0.0;
}

double complex tsi_both_isnan(const double complex *x, const void *a)
{
    (void)a;
    return isnan(creal(*x)) || isnan(cimag(*x)) ? 1.0 : 0.0;
}

double complex tsi_both_logical_not(const double complex *x, const void *a)
{
    (void)a;
    return *x == 0.0 ? 1.0 : 0.0;
}
