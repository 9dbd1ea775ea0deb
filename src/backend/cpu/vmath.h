/* SPDX-License-Identifier: Apache-2.0 */
/* vmath.h - exp, log, tanh, the logistic and the error function of an f32, for vector loops.
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

/* e^x for x <= 0, 0 below -87 and for a NaN: what softmax and attention need.
 * 2^r = 1 + r p(r) for |r| <= 1/2, to 23 bits. */
static TSI_INLINE float tsi_v_exp_below(float x)
{
    const float magic = 12582912.0f + 127.0f; /* the low bits are the biased exponent */
    float t = x * 1.44269504f, shifted = t + magic, r = t - (shifted - magic), z = r * r;
    float p = tsi_v_fma(r, 0.240222421f, 0.693146978f);
    float q = tsi_v_fma(r, 0.00967151267f, 0.0555073375f);
    q = tsi_v_fma(z, 0.00132647263f, q);
    p = tsi_v_fma(z, q, p);
    p = tsi_v_fma(p, r, 1.0f);
    float y = p * tsi_f32_of_bits(tsi_bits_of_f32(shifted) << 23);
    return tsi_f32_of_bits(tsi_bits_of_f32(y) & tsi_v_mask(x > -87.0f));
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

/* 1 / (1 + e^-x), without overflow. */
static TSI_INLINE float tsi_v_sigmoid(float x)
{
    float e = tsi_v_exp(-fabsf(x)), top = tsi_v_pick(tsi_v_mask(x < 0.0f), e, 1.0f);
    return top / (1.0f + e);
}

/* x + x^3 Q(x^2) below 0.625, else 1 - 2 / (e^2x + 1). */
static TSI_INLINE float tsi_v_tanh(float x)
{
    float size = fabsf(x), z = x * x;
    float q = 0.00214754106f;
    q = tsi_v_fma(q, z, -0.00818267876f);
    q = tsi_v_fma(q, z, 0.0217029692f);
    q = tsi_v_fma(q, z, -0.0539472047f);
    q = tsi_v_fma(q, z, 0.133332098f);
    q = tsi_v_fma(q, z, -0.333333309f);
    float small = tsi_v_fma(q * z, x, x);
    float large = 1.0f - 2.0f / (tsi_v_exp(2.0f * size) + 1.0f);
    return tsi_v_pick(tsi_v_mask(size < 0.625f), small, copysignf(large, x));
}

/* x P(x^2) below 1, else 1 - e^-L(x) with L = -ln(1 - erf). */
static TSI_INLINE float tsi_v_erf(float x)
{
    float size = fabsf(x), z = x * x;
    float p = -9.68014311e-06f;
    p = tsi_v_fma(p, z, 0.000112705468f);
    p = tsi_v_fma(p, z, -0.000848471177f);
    p = tsi_v_fma(p, z, 0.0052210749f);
    p = tsi_v_fma(p, z, -0.0268654458f);
    p = tsi_v_fma(p, z, 0.112837827f);
    p = tsi_v_fma(p, z, -0.376126385f);
    float small = tsi_v_fma(p * z, x, 1.12837917f * x);
    float s = tsi_v_pick(tsi_v_mask(size > 4.0f), 4.0f, size); /* from 4 on it rounds to 1 */
    float l = 2.16976119e-05f;
    l = tsi_v_fma(l, s, -0.000441472627f);
    l = tsi_v_fma(l, s, 0.00420528464f);
    l = tsi_v_fma(l, s, -0.0252103395f);
    l = tsi_v_fma(l, s, 0.108422099f);
    l = tsi_v_fma(l, s, 0.633216397f);
    l = tsi_v_fma(l, s, 1.12958031f);
    l = tsi_v_fma(l, s, -0.00018846794f);
    float large = copysignf(1.0f - tsi_v_exp(-l), x);
    return tsi_v_pick(tsi_v_mask(size < 1.0f), small, large);
}

#endif
