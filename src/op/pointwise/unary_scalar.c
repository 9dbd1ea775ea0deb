/* SPDX-License-Identifier: Apache-2.0 */
/* unary_scalar.c - the scalar functions of the elementwise operators of one input.
 *
 * Reals are computed in double, integers in int64 with wrap-around; unary_complex.c has those of
 * complex numbers. */
#include "op/pointwise/unary_scalar.h"

#include <math.h>

/* ---- scalar functions, reals ----------------------------------------------------------------- */

double tsi_real_abs(const double *x, const void *a)
{
    (void)a;
    return fabs(*x);
}

double tsi_real_acos(const double *x, const void *a)
{
    (void)a;
    return acos(*x);
}

double tsi_real_acosh(const double *x, const void *a)
{
    (void)a;
    return acosh(*x);
}

double tsi_real_asin(const double *x, const void *a)
{
    (void)a;
    return asin(*x);
}

double tsi_real_asinh(const double *x, const void *a)
{
    (void)a;
    return asinh(*x);
}

double tsi_real_atan(const double *x, const void *a)
{
    (void)a;
    return atan(*x);
}

double tsi_real_atanh(const double *x, const void *a)
{
    (void)a;
    return atanh(*x);
}

double tsi_real_ceil(const double *x, const void *a)
{
    (void)a;
    return ceil(*x);
}

double tsi_real_same(const double *x, const void *a)
{
    (void)a;
    return *x;
}

double tsi_real_cos(const double *x, const void *a)
{
    (void)a;
    return cos(*x);
}

double tsi_real_cosh(const double *x, const void *a)
{
    (void)a;
    return cosh(*x);
}

double tsi_real_deg2rad(const double *x, const void *a)
{
    (void)a;
    return *x * 0.017453292519943295;
}

/* Shifted up to where the series holds, reflected below zero. At zero it has the sign of the side
 * it comes from, at the other poles it is not a number. */
double tsi_real_digamma(const double *x, const void *a)
{
    (void)a;
    const double pi = 3.14159265358979323846;
    double value = 0, at = *x;
    if (at == 0) return signbit(at) ? HUGE_VAL : -HUGE_VAL;
    if (isinf(at)) return at > 0 ? at : (double)NAN;
    if (at <= 0) {
        if (at == floor(at)) return (double)NAN;
        value = -pi / tan(pi * at);
        at = 1 - at;
    }
    for (; at < 10; at += 1)
        value -= 1 / at;
    double square = 1 / (at * at);
    double series =
        square * (1.0 / 12 - square * (1.0 / 120 - square * (1.0 / 252 - square / 240)));
    return value + log(at) - 0.5 / at - series;
}

double tsi_real_erf(const double *x, const void *a)
{
    (void)a;
    return erf(*x);
}

double tsi_real_erfc(const double *x, const void *a)
{
    (void)a;
    return erfc(*x);
}

double tsi_real_exp(const double *x, const void *a)
{
    (void)a;
    return exp(*x);
}

double tsi_real_exp2(const double *x, const void *a)
{
    (void)a;
    return exp2(*x);
}

double tsi_real_expm1(const double *x, const void *a)
{
    (void)a;
    return expm1(*x);
}

double tsi_real_floor(const double *x, const void *a)
{
    (void)a;
    return floor(*x);
}

double tsi_real_frac(const double *x, const void *a)
{
    (void)a;
    return *x - trunc(*x);
}

double tsi_real_isfinite(const double *x, const void *a)
{
    (void)a;
    return isfinite(*x) ? 1.0 : 0.0;
}

double tsi_real_isinf(const double *x, const void *a)
{
    (void)a;
    return isinf(*x) ? 1.0 : 0.0;
}

double tsi_real_isnan(const double *x, const void *a)
{
    (void)a;
    return isnan(*x) ? 1.0 : 0.0;
}

double tsi_real_lgamma(const double *x, const void *a)
{
    (void)a;
    int sign; /* lgamma writes it to a global that threads would share */
    return lgamma_r(*x, &sign);
}

double tsi_real_log(const double *x, const void *a)
{
    (void)a;
    return log(*x);
}

double tsi_real_log10(const double *x, const void *a)
{
    (void)a;
    return log10(*x);
}

double tsi_real_log1p(const double *x, const void *a)
{
    (void)a;
    return log1p(*x);
}

double tsi_real_log2(const double *x, const void *a)
{
    (void)a;
    return log2(*x);
}

double tsi_real_logical_not(const double *x, const void *a)
{
    (void)a;
    return *x == 0.0 ? 1.0 : 0.0;
}

double tsi_real_neg(const double *x, const void *a)
{
    (void)a;
    return -*x;
}

double tsi_real_rad2deg(const double *x, const void *a)
{
    (void)a;
    return *x * 57.29577951308232;
}

double tsi_real_reciprocal(const double *x, const void *a)
{
    (void)a;
    return 1.0 / *x;
}

double tsi_real_relu(const double *x, const void *a)
{
    (void)a;
    return isnan(*x) ? *x : *x > 0.0 ? *x : 0.0;
}

double tsi_real_round(const double *x, const void *a)
{
    (void)a;
    return nearbyint(*x);
}

double tsi_real_rsqrt(const double *x, const void *a)
{
    (void)a;
    return 1.0 / sqrt(*x);
}

double tsi_real_sign(const double *x, const void *a)
{
    (void)a;
    return isnan(*x) ? *x : (double)((*x > 0.0) - (*x < 0.0));
}

double tsi_real_signbit(const double *x, const void *a)
{
    (void)a;
    return signbit(*x) ? 1.0 : 0.0;
}

double tsi_real_sin(const double *x, const void *a)
{
    (void)a;
    return sin(*x);
}

double tsi_real_sinh(const double *x, const void *a)
{
    (void)a;
    return sinh(*x);
}

double tsi_real_sqrt(const double *x, const void *a)
{
    (void)a;
    return sqrt(*x);
}

double tsi_real_square(const double *x, const void *a)
{
    (void)a;
    return *x * *x;
}

double tsi_real_tan(const double *x, const void *a)
{
    (void)a;
    return tan(*x);
}

double tsi_real_tanh(const double *x, const void *a)
{
    (void)a;
    return tanh(*x);
}

double tsi_real_trunc(const double *x, const void *a)
{
    (void)a;
    return trunc(*x);
}

double tsi_real_zero(const double *x, const void *a)
{
    (void)x;
    (void)a;
    return 0.0;
}

double tsi_real_one(const double *x, const void *a)
{
    (void)x;
    (void)a;
    return 1.0;
}

static double sigmoid(double x)
{
    return x >= 0 ? 1.0 / (1.0 + exp(-x)) : exp(x) / (1.0 + exp(x));
}

double tsi_real_sigmoid(const double *x, const void *a)
{
    (void)a;
    return sigmoid(*x);
}

double tsi_real_log_sigmoid(const double *x, const void *a)
{
    (void)a;
    return fmin(*x, 0.0) - log1p(exp(-fabs(*x)));
}

double tsi_real_silu(const double *x, const void *a)
{
    (void)a;
    return *x * sigmoid(*x);
}

double tsi_real_gelu(const double *x, const void *a)
{
    (void)a;
    return 0.5 * *x * (1.0 + erf(*x * 0.7071067811865476));
}

double tsi_real_gelu_tanh(const double *x, const void *a)
{
    (void)a;
    double inner = 0.7978845608028654 * (*x + 0.044715 * *x * *x * *x);
    return 0.5 * *x * (1.0 + tanh(inner));
}

double tsi_real_softplus(const double *x, const void *a)
{
    (void)a;
    return fmax(*x, 0.0) + log1p(exp(-fabs(*x)));
}

/* ---- integers -------------------------------------------------------------------------------- */

int64_t tsi_whole_abs(const int64_t *x, const void *a)
{
    (void)a;
    return *x < 0 ? (int64_t)(0 - (uint64_t)*x) : *x;
}

int64_t tsi_whole_same(const int64_t *x, const void *a)
{
    (void)a;
    return *x;
}

int64_t tsi_whole_bitwise_not(const int64_t *x, const void *a)
{
    (void)a;
    return ~*x;
}

int64_t tsi_whole_neg(const int64_t *x, const void *a)
{
    (void)a;
    return (int64_t)(0 - (uint64_t)*x);
}

int64_t tsi_whole_square(const int64_t *x, const void *a)
{
    (void)a;
    return (int64_t)((uint64_t)*x * (uint64_t)*x);
}

int64_t tsi_whole_sign(const int64_t *x, const void *a)
{
    (void)a;
    return (*x > 0) - (*x < 0);
}

int64_t tsi_whole_signbit(const int64_t *x, const void *a)
{
    (void)a;
    return *x < 0;
}

int64_t tsi_whole_relu(const int64_t *x, const void *a)
{
    (void)a;
    return *x > 0 ? *x : 0;
}

int64_t tsi_whole_logical_not(const int64_t *x, const void *a)
{
    (void)a;
    return *x == 0;
}

int64_t tsi_whole_zero(const int64_t *x, const void *a)
{
    (void)a;
    (void)x;
    return 0;
}

int64_t tsi_whole_one(const int64_t *x, const void *a)
{
    (void)a;
    (void)x;
    return 1;
}

int64_t tsi_whole_power(int64_t x, int64_t n)
{
    uint64_t result = 1, square = (uint64_t)x;
    if (n < 0) return x == 1 ? 1 : x == -1 ? (n % 2 ? -1 : 1) : 0;
    for (; n > 0; n >>= 1, square *= square)
        if (n & 1) result *= square;
    return (int64_t)result;
}
