/* SPDX-License-Identifier: Apache-2.0 */
/* scalars.h - functions of one element that scalars.def is written with, for the references of the
 * host (R is double) and for kernels of a GPU (R is f32 or f64); and of int64. In C and in CUDA. */
#ifndef TSI_OP_SCALARS_H
#define TSI_OP_SCALARS_H

#include <stdint.h>

#define PI 3.14159265358979323846
#if defined(__CUDACC__)
#define REAL_FN template <typename R> __device__ inline
#define WHOLE_FN __device__ inline
#else
#include <math.h>
#include <stdbool.h>
typedef double R;
#define R(value) ((R)(value))
#define REAL_FN static inline
#define WHOLE_FN static inline
#endif

/* ---- reals ----------------------------------------------------------------------------------- */

REAL_FN R sigmoid(R x)
{
    R e = exp(-fabs(x));
    return (x >= R(0) ? R(1) : e) / (R(1) + e);
}

REAL_FN R silu_slope(R x)
{
    R s = R(1) / (R(1) + exp(-x));
    return s * (R(1) + x * (R(1) - s));
}

REAL_FN R silu_backward(R dy, R x)
{
    R s = R(1) / (R(1) + exp(-x));
    return dy * s * (R(1) + x * (R(1) - s));
}

REAL_FN R gelu_backward(R dy, R x)
{
    R cdf = R(0.5) * (R(1) + erf(x * R(0.7071067811865476)));
    R pdf = R(0.3989422804014327) * exp(R(-0.5) * x * x);
    return dy * (cdf + x * pdf);
}

REAL_FN R gelu_tanh(R x)
{
    R inner = R(0.7978845608028654) * (x + R(0.044715) * x * x * x);
    return R(0.5) * x * (R(1) + tanh(inner));
}

/* With u = c (x + k x^3) and t = tanh(u): 0.5 (1 + t) + 0.5 x (1 - t^2) c (1 + 3 k x^2). */
REAL_FN R gelu_tanh_backward(R dy, R x)
{
    const R c = R(0.7978845608028654), k = R(0.044715);
    R z = x * x, t = tanh(c * x * (R(1) + k * z));
    R slope = isinf(x) ? R(0) : R(0.5) * x * (R(1) - t * t) * c * (R(1) + R(3) * k * z);
    return dy * (R(0.5) * (R(1) + t) + slope);
}

REAL_FN R clamp(R x, R low, R high)
{
    if (low == low && x < low) x = low;
    if (high == high && x > high) x = high;
    return x;
}

/* Shifted up to where the series holds, reflected below zero. At zero it has the sign of the side
 * it comes from, at the other poles it is not a number. */
REAL_FN R digamma(R x)
{
    R value = 0;
    if (x == R(0)) return signbit(x) ? R(INFINITY) : -R(INFINITY);
    if (isinf(x)) return x > R(0) ? x : R(NAN);
    if (x <= R(0)) {
        if (x == floor(x)) return R(NAN);
        value = -R(PI) / tan(R(PI) * x);
        x = R(1) - x;
    }
    for (; x < R(10); x += R(1))
        value -= R(1) / x;
    R q = R(1) / (x * x);
    R series = q * (R(1.0 / 12) - q * (R(1.0 / 120) - q * (R(1.0 / 252) - q / R(240))));
    return value + log(x) - R(0.5) / x - series;
}

/* Shifted up to where the series holds, reflected below zero. */
REAL_FN R trigamma(R x)
{
    R value = 0, sign = 1;
    if (x <= R(0) && x == floor(x)) return R(INFINITY);
    if (x < R(0.5)) {
        R s = sin(R(PI) * x);
        value = -R(PI) * R(PI) / (s * s);
        x = R(1) - x;
        sign = -1;
    }
    for (; x < R(10); x += R(1))
        value += R(1) / (x * x);
    R q = R(1) / (x * x);
    value += R(1) / x + q / R(2) +
             q / x * (R(1.0 / 6) - q * (R(1.0 / 30) - q * (R(1.0 / 42) - q / R(30))));
    return sign * value;
}

REAL_FN R hardsigmoid(R x)
{
    R y = x / R(6) + R(0.5);
    return y < R(0) ? R(0) : y > R(1) ? R(1) : y;
}

REAL_FN R logit(R x, R eps)
{
    if (eps == eps && x < eps) x = eps;
    if (eps == eps && x > R(1) - eps) x = R(1) - eps;
    return log(x / (R(1) - x));
}

REAL_FN R log_add(R x, R y)
{
    R high = fmax(x, y), low = fmin(x, y);
    if (x != x || y != y) return R(NAN);
    return isinf(high) ? high : high + log1p(exp(low - high));
}

REAL_FN R log_add2(R x, R y)
{
    R high = fmax(x, y), low = fmin(x, y);
    if (x != x || y != y) return R(NAN);
    return isinf(high) ? high : high + log1p(exp2(low - high)) / R(0.6931471805599453);
}

REAL_FN R real_remainder(R x, R y)
{
    R r = fmod(x, y);
    return r != R(0) && (r < R(0)) != (y < R(0)) ? r + y : r;
}

/* From the remainder, which is exact: x / y may round up to the next whole number. */
REAL_FN R floor_divide(R x, R y)
{
    R r = fmod(x, y);
    if (y == R(0)) return x / y;
    if (r != r) return r; /* of an infinite number there is no remainder */
    R q = (x - r) / y;
    if (r != R(0) && (r < R(0)) != (y < R(0))) q -= R(1);
    return q == R(0) ? copysign(R(0), x / y) : rint(q);
}

REAL_FN bool is_close(R x, R y, R rtol, R atol, int equal_nan)
{
    if (x == y) return true;
    if (x != x || y != y) return equal_nan && x != x && y != y;
    return isfinite(x) && isfinite(y) && fabs(x - y) <= atol + rtol * fabs(y);
}

/* ---- whole numbers --------------------------------------------------------------------------- */

WHOLE_FN int64_t wrap_add(int64_t x, int64_t y)
{
    return (int64_t)((uint64_t)x + (uint64_t)y);
}

WHOLE_FN int64_t wrap_sub(int64_t x, int64_t y)
{
    return (int64_t)((uint64_t)x - (uint64_t)y);
}

WHOLE_FN int64_t wrap_mul(int64_t x, int64_t y)
{
    return (int64_t)((uint64_t)x * (uint64_t)y);
}

/* A bound that is NaN as a real is none. */
WHOLE_FN int64_t whole_clamp(int64_t x, double has_low, int64_t low, double has_high, int64_t high)
{
    if (has_low == has_low && x < low) x = low;
    if (has_high == has_high && x > high) x = high;
    return x;
}

/* x^n with wrap-around; of a negative power the whole part, so 0 but for 1 and -1. */
WHOLE_FN int64_t whole_power(int64_t x, int64_t n)
{
    uint64_t result = 1, square = (uint64_t)x;
    if (n < 0) return x == 1 ? 1 : x == -1 ? (n % 2 ? -1 : 1) : 0;
    for (; n > 0; n >>= 1, square *= square)
        if (n & 1) result *= square;
    return (int64_t)result;
}

WHOLE_FN int64_t whole_fmod(int64_t x, int64_t y)
{
    return y == 0 || y == -1 ? 0 : x % y;
}

WHOLE_FN int64_t whole_remainder(int64_t x, int64_t y)
{
    int64_t r = whole_fmod(x, y);
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

/* A quotient by 0 is 0, as the remainder is. */
WHOLE_FN int64_t whole_floor_divide(int64_t x, int64_t y)
{
    if (y == 0) return 0;
    if (y == -1) return wrap_sub(0, x);
    return x / y - (x % y != 0 && (x < 0) != (y < 0));
}

/* Shifts by less than no or more than all bits leave none but the sign. */
WHOLE_FN int64_t whole_right_shift(int64_t x, int64_t y)
{
    int64_t by = y < 0 || y > 63 ? 63 : y;
    return x >= 0 ? x >> by : ~(~x >> by);
}

WHOLE_FN uint64_t size_of(int64_t x)
{
    return x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
}

WHOLE_FN uint64_t divisor_of(int64_t x, int64_t y)
{
    uint64_t a = size_of(x), b = size_of(y);
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

WHOLE_FN int64_t whole_lcm(int64_t x, int64_t y)
{
    uint64_t common = divisor_of(x, y);
    return common == 0 ? 0 : (int64_t)(size_of(x) / common * size_of(y));
}

#endif
