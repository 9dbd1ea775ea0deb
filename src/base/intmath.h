/* SPDX-License-Identifier: Apache-2.0 */
/* intmath.h - integer arithmetic on extents: 64 bit, overflow reported or saturated, never wrapped.
 */
#ifndef TSI_BASE_INTMATH_H
#define TSI_BASE_INTMATH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Each returns false on overflow and leaves *out unspecified. */
static inline bool tsi_mul_i64(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool tsi_add_i64(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}
static inline bool tsi_mul_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool tsi_add_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}
/* Sums and products of amounts; INT64_MAX also stands for what is beyond it. A negative amount is a
 * count that did not fit. */
static inline int64_t tsi_mul_most(int64_t a, int64_t b)
{
    int64_t out;
    if (a == 0 || b == 0) return 0;
    return a < 0 || b < 0 || __builtin_mul_overflow(a, b, &out) ? INT64_MAX : out;
}
static inline int64_t tsi_add_most(int64_t a, int64_t b)
{
    int64_t out;
    return a < 0 || b < 0 || __builtin_add_overflow(a, b, &out) ? INT64_MAX : out;
}
static inline int64_t tsi_min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t tsi_max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
/* ceil(a / b) for a >= 0, b > 0, without overflow. */
static inline int64_t tsi_ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}
static inline int64_t tsi_round_up(int64_t a, int64_t b)
{
    return tsi_ceil_div(a, b) * b;
}
static inline int64_t tsi_gcd(int64_t a, int64_t b)
{
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

#endif
