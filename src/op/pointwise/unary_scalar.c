/* SPDX-License-Identifier: Apache-2.0 */
/* unary_scalar.c - the scalar functions of the elementwise operators of one input.
 *
 * Reals are computed in double, integers in int64 with wrap-around; unary_complex.c has those of
 * complex numbers. */
#include "op/pointwise/unary_scalar.h"

#include <math.h>

#include "op/core/common.h"

#define REAL(name, e) TSI_SCALAR(double, tsi_real_##name, e)
#define WHOLE(name, e) TSI_SCALAR(int64_t, tsi_whole_##name, e)

/* ---- scalar functions, reals ----------------------------------------------------------------- */

REAL(abs, fabs(x[0]))
REAL(acos, acos(x[0]))
REAL(acosh, acosh(x[0]))
REAL(asin, asin(x[0]))
REAL(asinh, asinh(x[0]))
REAL(atan, atan(x[0]))
REAL(atanh, atanh(x[0]))
REAL(ceil, ceil(x[0]))
REAL(same, x[0])
REAL(cos, cos(x[0]))
REAL(cosh, cosh(x[0]))
REAL(deg2rad, x[0] * 0.017453292519943295)

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

REAL(erf, erf(x[0]))
REAL(erfc, erfc(x[0]))
REAL(exp, exp(x[0]))
REAL(exp2, exp2(x[0]))
REAL(expm1, expm1(x[0]))
REAL(floor, floor(x[0]))
REAL(frac, x[0] - trunc(x[0]))
REAL(isfinite, isfinite(x[0]) ? 1.0 : 0.0)
REAL(isinf, isinf(x[0]) ? 1.0 : 0.0)
REAL(isnan, isnan(x[0]) ? 1.0 : 0.0)

double tsi_real_lgamma(const double *x, const void *a)
{
    (void)a;
    int sign; /* lgamma writes it to a global that threads would share */
    return lgamma_r(*x, &sign);
}

REAL(log, log(x[0]))
REAL(log10, log10(x[0]))
REAL(log1p, log1p(x[0]))
REAL(log2, log2(x[0]))
REAL(logical_not, x[0] == 0.0 ? 1.0 : 0.0)
REAL(neg, -x[0])
REAL(rad2deg, x[0] * 57.29577951308232)
REAL(reciprocal, 1.0 / x[0])
REAL(relu, isnan(x[0]) ? x[0] : x[0] > 0.0 ? x[0] : 0.0)
REAL(round, nearbyint(x[0]))
REAL(rsqrt, 1.0 / sqrt(x[0]))
REAL(sign, isnan(x[0]) ? x[0] : (double)((x[0] > 0.0) - (x[0] < 0.0)))
REAL(signbit, signbit(x[0]) ? 1.0 : 0.0)
REAL(sin, sin(x[0]))
REAL(sinh, sinh(x[0]))
REAL(sqrt, sqrt(x[0]))
REAL(square, x[0] * x[0])
REAL(tan, tan(x[0]))
REAL(tanh, tanh(x[0]))
REAL(trunc, trunc(x[0]))
REAL(zero, 0.0)
REAL(one, 1.0)

static double sigmoid(double x)
{
    return x >= 0 ? 1.0 / (1.0 + exp(-x)) : exp(x) / (1.0 + exp(x));
}

REAL(sigmoid, sigmoid(x[0]))
REAL(log_sigmoid, fmin(x[0], 0.0) - log1p(exp(-fabs(x[0]))))
REAL(silu, x[0] * sigmoid(x[0]))
REAL(gelu, 0.5 * x[0] * (1.0 + erf(x[0] * 0.7071067811865476)))

double tsi_real_gelu_tanh(const double *x, const void *a)
{
    (void)a;
    double inner = 0.7978845608028654 * (*x + 0.044715 * *x * *x * *x);
    return 0.5 * *x * (1.0 + tanh(inner));
}

REAL(softplus, fmax(x[0], 0.0) + log1p(exp(-fabs(x[0]))))

/* ---- integers -------------------------------------------------------------------------------- */

WHOLE(abs, x[0] < 0 ? (int64_t)(0 - (uint64_t)x[0]) : x[0])
WHOLE(same, x[0])
WHOLE(bitwise_not, ~x[0])
WHOLE(neg, (int64_t)(0 - (uint64_t)x[0]))
WHOLE(square, (int64_t)((uint64_t)x[0] * (uint64_t)x[0]))
WHOLE(sign, (x[0] > 0) - (x[0] < 0))
WHOLE(signbit, x[0] < 0)
WHOLE(relu, x[0] > 0 ? x[0] : 0)
WHOLE(logical_not, x[0] == 0)
WHOLE(zero, 0)
WHOLE(one, 1)

int64_t tsi_whole_power(int64_t x, int64_t n)
{
    uint64_t result = 1, square = (uint64_t)x;
    if (n < 0) return x == 1 ? 1 : x == -1 ? (n % 2 ? -1 : 1) : 0;
    for (; n > 0; n >>= 1, square *= square)
        if (n & 1) result *= square;
    return (int64_t)result;
}
