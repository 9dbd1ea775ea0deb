/* SPDX-License-Identifier: Apache-2.0 */
/* vmath.h - exp and log of an f32 over the whole range, for vector loops.
 *
 * INV: no branches, no calls, so that a loop over an array becomes vector code, and an element has
 * the same bits wherever it stands in the array. Errors are below 2 units in the last place over
 * the whole range (a test compares with the C library), infinities and NaN as there. Polynomials
 * were fitted for the least largest relative error on the intervals named. */
#ifndef TSI_BACKEND_CPU_VMATH_H
#define TSI_BACKEND_CPU_VMATH_H

#include <math.h>
#include <stdint.h>

#include "base/compiler.h"
#include "device/number.h"

/* a * b + c, fused where the machine does so in one instruction. */
static TSI_INLINE float tsi_v_fma(float a, float b, float c)
{
    return TSI_FMAF(a, b, c);
}

/* All bits where the condition holds. Selections are written with masks: for `x
 * < c ? a : b` a compiler may test "not less, or not a number" instead, which
 * takes several instructions. */
static TSI_INLINE uint32_t tsi_v_mask(int condition)
{
    return 0u - (uint32_t)condition;
}

static TSI_INLINE float tsi_v_pick(uint32_t mask, float yes, float no)
{
    return tsi_f32_of_bits((tsi_bits_of_f32(yes) & mask) | (tsi_bits_of_f32(no) & ~mask));
}

/* 2^n times x, for -252 <= n <= 254 (other n give any number): in two factors,
 * so that results below the normal range are rounded once and overflow gives
 * infinity. */
static TSI_INLINE float tsi_v_scale(float x, int32_t n)
{
    int32_t half = n >> 1, rest = n - half;
    return x * tsi_f32_of_bits((uint32_t)(half + 127) << 23) *
           tsi_f32_of_bits((uint32_t)(rest + 127) << 23);
}

/* e^x = 2^n e^r with |r| <= ln(2)/2; e^r = 1 + r + r^2 q(r). */
static TSI_INLINE float tsi_v_exp(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    float shifted = tsi_v_fma(x, 1.44269504f, magic), n = shifted - magic;
    float r = tsi_v_fma(n, -0.693145752f, x); /* ln 2 in two parts, the first short: exact */
    r = tsi_v_fma(n, -1.42860677e-06f, r);
    float q = 0.00138131423f;
    q = tsi_v_fma(q, r, 0.00836941879f);
    q = tsi_v_fma(q, r, 0.0416684568f);
    q = tsi_v_fma(q, r, 0.166665148f);
    q = tsi_v_fma(q, r, 0.499999931f);
    float small = tsi_v_fma(q * r, r, r) + 1.0f;
    float y = tsi_v_scale(small, (int32_t)(tsi_bits_of_f32(shifted) - 0x4B400000u));
    y = tsi_v_pick(tsi_v_mask(x > 88.8f), INFINITY, y);
    return tsi_f32_of_bits(tsi_bits_of_f32(y) & ~tsi_v_mask(x < -104.0f)); /* a NaN stays one */
}

/* ln x: x = 2^e m with m in [sqrt(1/2), sqrt(2)), f = m - 1, ln m = f - f^2/2 + f^3 P(f). */
static TSI_INLINE float tsi_v_log(float x)
{
    uint32_t tiny = tsi_v_mask(x < 0x1p-126f); /* below the normal range */
    float wide = tsi_v_pick(tiny, x * 0x1p23f, x), shift = tsi_v_pick(tiny, -23.0f, 0.0f);
    uint32_t bits = tsi_bits_of_f32(wide);
    uint32_t biased = (bits + (0x3F800000u - 0x3F3504F3u)) >> 23;
    float e = (float)((int32_t)biased - 127) + shift;
    float f = tsi_f32_of_bits(bits - (biased << 23) + 0x3F800000u) - 1.0f, z = f * f;
    float p = 0.0691549157f;
    p = tsi_v_fma(p, f, -0.117898341f);
    p = tsi_v_fma(p, f, 0.118729312f);
    p = tsi_v_fma(p, f, -0.123843406f);
    p = tsi_v_fma(p, f, 0.142186638f);
    p = tsi_v_fma(p, f, -0.166692515f);
    p = tsi_v_fma(p, f, 0.200022263f);
    p = tsi_v_fma(p, f, -0.249999866f);
    p = tsi_v_fma(p, f, 0.333333104f);
    float low = tsi_v_fma(e, 1.42860677e-06f, tsi_v_fma(p * f, z, -0.5f * z));
    float y = tsi_v_fma(e, 0.693145752f, f + low);
    y = tsi_v_pick(tsi_v_mask(x < INFINITY), y, x); /* infinity, or a NaN, which is not below */
    y = tsi_v_pick(tsi_v_mask(x == 0.0f), -INFINITY, y);
    return tsi_v_pick(tsi_v_mask(x < 0.0f), NAN, y);
}

#endif
