/* SPDX-License-Identifier: Apache-2.0 */
/* scalar.cuh - functions of one element that pointwise.def is written with: what the references of
 * src/op/pointwise compute, in R = f32 or f64, and in int64. */
#ifndef TSI_BACKEND_CUDA_KERNELS_SCALAR_CUH
#define TSI_BACKEND_CUDA_KERNELS_SCALAR_CUH

#include <stdint.h>

#define PI 3.14159265358979323846

/* ---- reals ----------------------------------------------------------------------------------- */

template <typename R> __device__ inline R sigmoid(R x)
{
    return x >= R(0) ? R(1) / (R(1) + exp(-x)) : exp(x) / (R(1) + exp(x));
}

template <typename R> __device__ inline R silu_slope(R x)
{
    R s = R(1) / (R(1) + exp(-x));
    return s * (R(1) + x * (R(1) - s));
}

template <typename R> __device__ inline R gelu_slope(R dy, R x)
{
    R cdf = R(0.5) * (R(1) + erf(x * R(0.7071067811865476)));
    return dy * (cdf + x * R(0.3989422804014327) * exp(R(-0.5) * x * x));
}

template <typename R> __device__ inline R gelu_tanh(R x)
{
    R inner = R(0.7978845608028654) * (x + R(0.044715) * x * x * x);
    return R(0.5) * x * (R(1) + tanh(inner));
}

template <typename R> __device__ inline R gelu_tanh_slope(R dy, R x)
{
    const R c = R(0.7978845608028654), k = R(0.044715);
    R z = x * x, t = tanh(c * x * (R(1) + k * z));
    R slope = isinf(x) ? R(0) : R(0.5) * x * (R(1) - t * t) * c * (R(1) + R(3) * k * z);
    return dy * (R(0.5) * (R(1) + t) + slope);
}

template <typename R> __device__ inline R clamp(R x, R low, R high)
{
    if (low == low && x < low) x = low;
    if (high == high && x > high) x = high;
    return x;
}

template <typename R> __device__ inline R digamma(R x)
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

template <typename R> __device__ inline R trigamma(R x)
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

template <typename R> __device__ inline R hardsigmoid(R x)
{
    R y = x / R(6) + R(0.5);
    return y < R(0) ? R(0) : y > R(1) ? R(1) : y;
}

template <typename R> __device__ inline R logit(R x, R eps)
{
    if (eps == eps && x < eps) x = eps;
    if (eps == eps && x > R(1) - eps) x = R(1) - eps;
    return log(x / (R(1) - x));
}

template <typename R> __device__ inline R log_add(R x, R y)
{
    R high = fmax(x, y), low = fmin(x, y);
    if (x != x || y != y) return R(NAN);
    return isinf(high) ? high : high + log1p(exp(low - high));
}

template <typename R> __device__ inline R log_add2(R x, R y)
{
    R high = fmax(x, y), low = fmin(x, y);
    if (x != x || y != y) return R(NAN);
    return isinf(high) ? high : high + log1p(exp2(low - high)) / R(0.6931471805599453);
}

template <typename R> __device__ inline R real_remainder(R x, R y)
{
    R r = fmod(x, y);
    return r != R(0) && (r < R(0)) != (y < R(0)) ? r + y : r;
}

template <typename R> __device__ inline R floor_divide(R x, R y)
{
    R r = fmod(x, y);
    if (y == R(0)) return x / y;
    if (r != r) return r; /* of an infinite number there is no remainder */
    R q = (x - r) / y;
    if (r != R(0) && (r < R(0)) != (y < R(0))) q -= R(1);
    return q == R(0) ? copysign(R(0), x / y) : rint(q);
}

template <typename R> __device__ inline bool is_close(R x, R y, R rtol, R atol, int equal_nan)
{
    if (x == y) return true;
    if (x != x || y != y) return equal_nan && x != x && y != y;
    return isfinite(x) && isfinite(y) && fabs(x - y) <= atol + rtol * fabs(y);
}

/* ---- whole numbers --------------------------------------------------------------------------- */

__device__ inline int64_t wrap_add(int64_t x, int64_t y)
{
    return (int64_t)((uint64_t)x + (uint64_t)y);
}

__device__ inline int64_t wrap_sub(int64_t x, int64_t y)
{
    return (int64_t)((uint64_t)x - (uint64_t)y);
}

__device__ inline int64_t wrap_mul(int64_t x, int64_t y)
{
    return (int64_t)((uint64_t)x * (uint64_t)y);
}

/* A bound that is NaN as a real is none. */
__device__ inline int64_t whole_clamp(int64_t x, double has_low, int64_t low, double has_high,
                                      int64_t high)
{
    if (has_low == has_low && x < low) x = low;
    if (has_high == has_high && x > high) x = high;
    return x;
}

__device__ inline int64_t whole_power(int64_t x, int64_t n)
{
    uint64_t result = 1, square = (uint64_t)x;
    if (n < 0) return x == 1 ? 1 : x == -1 ? (n % 2 ? -1 : 1) : 0;
    for (; n > 0; n >>= 1, square *= square)
        if (n & 1) result *= square;
    return (int64_t)result;
}

__device__ inline int64_t whole_fmod(int64_t x, int64_t y)
{
    return y == 0 || y == -1 ? 0 : x % y;
}

__device__ inline int64_t whole_remainder(int64_t x, int64_t y)
{
    int64_t r = whole_fmod(x, y);
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

__device__ inline int64_t floor_divide(int64_t x, int64_t y)
{
    if (y == 0) return 0;
    if (y == -1) return wrap_sub(0, x);
    return x / y - (x % y != 0 && (x < 0) != (y < 0));
}

__device__ inline uint64_t size_of(int64_t x)
{
    return x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
}

__device__ inline uint64_t divisor_of(int64_t x, int64_t y)
{
    uint64_t a = size_of(x), b = size_of(y);
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

__device__ inline int64_t whole_lcm(int64_t x, int64_t y)
{
    uint64_t common = divisor_of(x, y);
    return common == 0 ? 0 : (int64_t)(size_of(x) / common * size_of(y));
}

#endif
