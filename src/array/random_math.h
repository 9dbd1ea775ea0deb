/* SPDX-License-Identifier: Apache-2.0 */
/* random_math.h - log, sine and cosine from basic IEEE operations, for random normals.
 *
 * INV: only +, -, *, /, conversions between equal bits: the same result bits on every machine and
 * compiler (nothing is fused: -ffp-contract=off). No branches, so that loops become vector code.
 * Errors are below 2 units in the last place on the ranges named, of the short forms below 1e-9; a
 * test compares with the C library. */
#ifndef TSI_ARRAY_RANDOM_MATH_H
#define TSI_ARRAY_RANDOM_MATH_H

#include <stdint.h>
#include <string.h>

#include "base/portable.h"

TSI_SHARED uint64_t tsi_bits_of_f64(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

TSI_SHARED double tsi_f64_of_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* An integer below 2^52 as a double, without a conversion instruction (SSE2 has none for 64 bits).
 */
TSI_SHARED double tsi_f64_of_u52(uint64_t value)
{
    return tsi_f64_of_bits(value | 0x4330000000000000u) - 0x1p52;
}

/* x = 2^e m with m in [sqrt(1/2), sqrt(2)), for normal x > 0. */
TSI_SHARED double tsi_split(double x, double *e)
{
    const uint64_t root_half = 0x3FE6A09E667F3BCDu, one = 0x3FF0000000000000u;
    uint64_t bits = tsi_bits_of_f64(x);
    uint64_t biased = (bits + (one - root_half)) >> 52;
    *e = tsi_f64_of_u52(biased) - 1023;
    return tsi_f64_of_bits(bits - (biased << 52) + one);
}

/* ln x for normal x > 0: ln m = 2 atanh(s), s = (m - 1) / (m + 1), whose series is 1/3, 1/5, ... in
 * s s. */
TSI_SHARED double tsi_log(double x)
{
    double e, m = tsi_split(x, &e);
    double f = m - 1, s = f / (2 + f), z = s * s; /* f is exact */
    double p = 1.0 / 21;
    p = p * z + 1.0 / 19;
    p = p * z + 1.0 / 17;
    p = p * z + 1.0 / 15;
    p = p * z + 1.0 / 13;
    p = p * z + 1.0 / 11;
    p = p * z + 1.0 / 9;
    p = p * z + 1.0 / 7;
    p = p * z + 1.0 / 5;
    p = p * z + 1.0 / 3;
    double log_m = f - s * (f - 2 * z * p); /* 2 s is f - s f */
    /* ln 2 in two parts: the first has 32 bits, so that its product with e is exact. */
    return e * 0x1.62e42feep-1 + (log_m + e * 0x1.a39ef35793c76p-33);
}

/* The same to ten digits, for results that are rounded to f32 or less. */
TSI_SHARED double tsi_log_short(double x)
{
    double e, m = tsi_split(x, &e);
    double f = m - 1, s = f / (2 + f), z = s * s;
    double p = 1.0 / 13;
    p = p * z + 1.0 / 11;
    p = p * z + 1.0 / 9;
    p = p * z + 1.0 / 7;
    p = p * z + 1.0 / 5;
    p = p * z + 1.0 / 3;
    return e * 0x1.62e42fefa39efp-1 + (f - s * (f - 2 * z * p));
}

/* The sine of a by its series from the term of a^13 on; `p` is what the terms before it left. */
TSI_SHARED double tsi_sin_series(double a, double p)
{
    double z = a * a;
    p = p * z + 1.0 / 6227020800.0; /* 13! */
    p = p * z - 1.0 / 39916800.0;
    p = p * z + 1.0 / 362880.0;
    p = p * z - 1.0 / 5040.0;
    p = p * z + 1.0 / 120.0;
    p = p * z - 1.0 / 6.0;
    return a + a * (z * p);
}

/* cos(2 pi v) for v in [0, 1) to ten digits, as the sine of an angle between -pi/2 and pi/2. */
TSI_SHARED double tsi_cos_turn_short(double v)
{
    double w = v < 0.5 ? v : 1 - v;                   /* exact: cosine is even */
    double a = (1 - 4 * w) * 0x1.921fb54442d18p+0;    /* times pi/2 */
    return tsi_sin_series(a, -1.0 / 1307674368000.0); /* 15! */
}

/* sin and cos of an angle between -pi/4 and pi/4, by their series. */
TSI_SHARED double tsi_sin_small(double a)
{
    double p = 1.0 / 355687428096000.0;                            /* 17! */
    return tsi_sin_series(a, p * (a * a) - 1.0 / 1307674368000.0); /* 15! */
}

TSI_SHARED double tsi_cos_small(double a)
{
    double z = a * a;
    double p = 1.0 / 20922789888000.0; /* 16! */
    p = p * z - 1.0 / 87178291200.0;
    p = p * z + 1.0 / 479001600.0;
    p = p * z - 1.0 / 3628800.0;
    p = p * z + 1.0 / 40320.0;
    p = p * z - 1.0 / 720.0;
    p = p * z + 1.0 / 24.0;
    p = p * z - 1.0 / 2.0;
    return 1 + z * p;
}

/* cos and sin of 2 pi v, v in [0, 1): the nearest quarter turn is taken off exactly. */
TSI_SHARED void tsi_cos_sin_turn(double v, double *cosine, double *sine)
{
    double shifted =
        4 * v + 0x1p52; /* rounds to a whole number of quarter turns, in the low bits */
    uint64_t quarter = tsi_bits_of_f64(shifted);
    double a = (4 * v - (shifted - 0x1p52)) * 0x1.921fb54442d18p+0; /* times pi/2 */
    uint64_t c = tsi_bits_of_f64(tsi_cos_small(a)), s = tsi_bits_of_f64(tsi_sin_small(a));
    uint64_t swap = 0 - (quarter & 1);
    uint64_t first = (c & ~swap) | (s & swap), second = (s & ~swap) | (c & swap);
    *cosine = tsi_f64_of_bits(first ^ (((quarter + 1) & 2) << 62));
    *sine = tsi_f64_of_bits(second ^ ((quarter & 2) << 62));
}

#endif
