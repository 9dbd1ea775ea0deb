/* SPDX-License-Identifier: Apache-2.0 */
/* number.h - single numbers between formats: bf16 and f16 as bits, and the conversions C leaves
 * open.
 *
 * INV: every conversion rounds once, to nearest even; a NaN stays a NaN with its sign; the bits are
 * the same on every machine. No branches, so that a loop over an array becomes vector code.
 *
 *   float -> integer   truncates, saturates at the ends of the range, NaN gives 0
 *   integer -> integer keeps the low bits
 *   anything -> bool   is "not equal to zero", so NaN is true */
#ifndef TSI_DEVICE_NUMBER_H
#define TSI_DEVICE_NUMBER_H

#include <stdint.h>
#include <string.h>

#include "base/portable.h"

TSI_SHARED uint32_t tsi_bits_of_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

TSI_SHARED float tsi_f32_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

TSI_SHARED float tsi_f32_of_bf16(uint16_t h)
{
    return tsi_f32_of_bits((uint32_t)h << 16);
}

TSI_SHARED uint16_t tsi_bf16_of_f32(float value)
{
    uint32_t bits = tsi_bits_of_f32(value);
    uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40u; /* adding could carry a NaN into infinity or the sign */
    return (uint16_t)(value != value ? quiet : rounded);
}

TSI_SHARED float tsi_f32_of_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7FFFu;
    /* The exponent moves from bias 15 to 127; infinity and NaN need the same step once more. */
    uint32_t rebias = rest >= 0x7C00u ? 224u << 23 : 112u << 23;
    uint32_t normal = (rest << 13) + rebias;
    uint32_t subnormal = tsi_bits_of_f32((float)(int32_t)rest * 0x1p-24f);
    return tsi_f32_of_bits(sign | (rest < 0x400u ? subnormal : normal));
}

TSI_SHARED uint16_t tsi_f16_of_f32(float value)
{
    uint32_t bits = tsi_bits_of_f32(value), rest = bits & 0x7FFFFFFFu;
    uint32_t normal = (rest + 0xFFFu + ((rest >> 13) & 1u) - (112u << 23)) >> 13;
    /* One ulp of 0.5f is 2^-24, the unit of a subnormal f16: the addition rounds for us. */
    uint32_t subnormal = tsi_bits_of_f32(tsi_f32_of_bits(rest) + 0.5f) - 0x3F000000u;
    uint32_t nan = 0x7E00u | ((rest >> 13) & 0x3FFu);
    uint32_t h = rest < 0x38800000u ? subnormal : normal; /* below 2^-14 */
    h = rest >= 0x477FF000u ? 0x7C00u : h;                /* 65520 and more round to infinity */
    h = rest > 0x7F800000u ? nan : h;
    return (uint16_t)(((bits >> 16) & 0x8000u) | h);
}

/* f64 to f32, rounded to odd: truncated, and an inexact result gets an odd last bit. A second
 * rounding to at most 22 bits then gives what one rounding of the f64 would have given. */
TSI_SHARED float tsi_f32_odd_of_f64(double value)
{
    float near = (float)value;
    double back = (double)near;
    double size = value < 0 ? -value : value, back_size = back < 0 ? -back : back;
    uint32_t bits = tsi_bits_of_f32(near);
    bits -= back_size > size ? 1u : 0u;
    bits |= back != value ? 1u : 0u;
    return tsi_f32_of_bits(bits);
}

TSI_SHARED uint16_t tsi_bf16_of_f64(double value)
{
    return tsi_bf16_of_f32(tsi_f32_odd_of_f64(value));
}

TSI_SHARED uint16_t tsi_f16_of_f64(double value)
{
    return tsi_f16_of_f32(tsi_f32_odd_of_f64(value));
}

/* Bits an f64 cannot hold are gathered into one sticky bit, far below the last bit of a bf16 or
 * f16. */
TSI_SHARED double tsi_f64_sticky_of_i64(int64_t value)
{
    uint64_t size = value < 0 ? 0u - (uint64_t)value : (uint64_t)value;
    uint64_t sticky = (size & ~(uint64_t)0x7FF) | ((size & 0x7FFu) != 0 ? 0x800u : 0u);
    uint64_t held = size < ((uint64_t)1 << 53) ? size : sticky;
    double result = (double)held;
    return value < 0 ? -result : result;
}

/* Truncates towards zero within [low, high]; `high` is the largest f64 that fits, `end` what
 * saturation gives above it (they differ for i64 only). NaN gives 0. */
TSI_SHARED int64_t tsi_i64_saturated(double value, double low, double high, int64_t end)
{
    double inside = value < low ? low : value > high ? high : value;
    inside = value != value ? 0 : inside;
    int64_t result = (int64_t)inside;
    return value > high ? end : result;
}

TSI_SHARED int64_t tsi_i64_of_f64(double value)
{
    return tsi_i64_saturated(value, -0x1p63, 0x1.fffffffffffffp62, INT64_MAX);
}

TSI_SHARED int32_t tsi_i32_of_f64(double value)
{
    return (int32_t)tsi_i64_saturated(value, INT32_MIN, INT32_MAX, INT32_MAX);
}

TSI_SHARED int16_t tsi_i16_of_f64(double value)
{
    return (int16_t)tsi_i64_saturated(value, INT16_MIN, INT16_MAX, INT16_MAX);
}

TSI_SHARED int8_t tsi_i8_of_f64(double value)
{
    return (int8_t)tsi_i64_saturated(value, INT8_MIN, INT8_MAX, INT8_MAX);
}

TSI_SHARED uint8_t tsi_u8_of_f64(double value)
{
    return (uint8_t)tsi_i64_saturated(value, 0, UINT8_MAX, UINT8_MAX);
}

#endif
