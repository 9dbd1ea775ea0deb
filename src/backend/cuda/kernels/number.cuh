/* SPDX-License-Identifier: Apache-2.0 */
/* number.cuh - any dtype to and from the wide types, with the host's bits (device/number.h).
 *
 * The GPU's own conversions give one NaN for all; a NaN keeps its sign and payload here, as it does
 * on the host. */
#ifndef TSI_BACKEND_CUDA_KERNELS_NUMBER_CUH
#define TSI_BACKEND_CUDA_KERNELS_NUMBER_CUH

#include "array/random_math.h" /* bits of an f64 */
#include "device/number.h"
#include "tessera/types.h"

__device__ inline double f64_of_f32(float value)
{
    uint32_t bits = tsi_bits_of_f32(value);
    if (value == value) return (double)value;
    return tsi_f64_of_bits((uint64_t)(bits & 0x80000000u) << 32 | 0x7FF8000000000000u |
                           (uint64_t)(bits & 0x7FFFFFu) << 29);
}

__device__ inline float f32_of_f64(double value)
{
    uint64_t bits = tsi_bits_of_f64(value);
    if (value == value) return (float)value;
    return tsi_f32_of_bits((uint32_t)(bits >> 32) & 0x80000000u | 0x7FC00000u |
                           (uint32_t)(bits >> 29) & 0x7FFFFFu);
}

/* tsi_f32_odd_of_f64 with that conversion. */
__device__ inline float f32_odd_of_f64(double value)
{
    return value == value ? tsi_f32_odd_of_f64(value) : f32_of_f64(value);
}

enum wide_kind { WIDE_F64, WIDE_I64, WIDE_C128 };

struct wide {
    double re, im;
    int64_t whole;
};

__device__ inline wide_kind kind_of(int32_t dtype)
{
    switch (dtype) {
    case TS_DTYPE_F64:
    case TS_DTYPE_F32:
    case TS_DTYPE_BF16:
    case TS_DTYPE_F16:
        return WIDE_F64;
    case TS_DTYPE_C64:
    case TS_DTYPE_C128:
        return WIDE_C128;
    default:
        return WIDE_I64;
    }
}

__device__ inline wide load_wide(int32_t dtype, const void *data, int64_t i)
{
    wide w = { 0, 0, 0 };
    switch (dtype) {
    case TS_DTYPE_F64: w.re = ((const double *)data)[i]; break;
    case TS_DTYPE_F32: w.re = f64_of_f32(((const float *)data)[i]); break;
    case TS_DTYPE_BF16: w.re = f64_of_f32(tsi_f32_of_bf16(((const uint16_t *)data)[i])); break;
    case TS_DTYPE_F16: w.re = f64_of_f32(tsi_f32_of_f16(((const uint16_t *)data)[i])); break;
    case TS_DTYPE_I64: w.whole = ((const int64_t *)data)[i]; break;
    case TS_DTYPE_I32: w.whole = ((const int32_t *)data)[i]; break;
    case TS_DTYPE_I16: w.whole = ((const int16_t *)data)[i]; break;
    case TS_DTYPE_I8: w.whole = ((const int8_t *)data)[i]; break;
    case TS_DTYPE_U8: w.whole = ((const uint8_t *)data)[i]; break;
    case TS_DTYPE_BOOL: w.whole = ((const uint8_t *)data)[i] != 0; break;
    case TS_DTYPE_C64:
        w.re = f64_of_f32(((const float *)data)[2 * i]);
        w.im = f64_of_f32(((const float *)data)[2 * i + 1]);
        break;
    case TS_DTYPE_C128:
        w.re = ((const double *)data)[2 * i];
        w.im = ((const double *)data)[2 * i + 1];
        break;
    default: break;
    }
    return w;
}

__device__ inline void store_f64(int32_t dtype, void *data, int64_t i, double re, double im)
{
    switch (dtype) {
    case TS_DTYPE_F64: ((double *)data)[i] = re; break;
    case TS_DTYPE_F32: ((float *)data)[i] = f32_of_f64(re); break;
    case TS_DTYPE_BF16: ((uint16_t *)data)[i] = tsi_bf16_of_f32(f32_odd_of_f64(re)); break;
    case TS_DTYPE_F16: ((uint16_t *)data)[i] = tsi_f16_of_f32(f32_odd_of_f64(re)); break;
    case TS_DTYPE_I64: ((int64_t *)data)[i] = tsi_i64_of_f64(re); break;
    case TS_DTYPE_I32: ((int32_t *)data)[i] = tsi_i32_of_f64(re); break;
    case TS_DTYPE_I16: ((int16_t *)data)[i] = tsi_i16_of_f64(re); break;
    case TS_DTYPE_I8: ((int8_t *)data)[i] = tsi_i8_of_f64(re); break;
    case TS_DTYPE_U8: ((uint8_t *)data)[i] = tsi_u8_of_f64(re); break;
    case TS_DTYPE_BOOL: ((uint8_t *)data)[i] = re != 0 || im != 0; break;
    case TS_DTYPE_C64:
        ((float *)data)[2 * i] = f32_of_f64(re);
        ((float *)data)[2 * i + 1] = f32_of_f64(im);
        break;
    case TS_DTYPE_C128:
        ((double *)data)[2 * i] = re;
        ((double *)data)[2 * i + 1] = im;
        break;
    default: break;
    }
}

__device__ inline void store_i64(int32_t dtype, void *data, int64_t i, int64_t v)
{
    switch (dtype) {
    case TS_DTYPE_F64: ((double *)data)[i] = (double)v; break;
    case TS_DTYPE_F32: ((float *)data)[i] = (float)v; break;
    case TS_DTYPE_BF16:
        ((uint16_t *)data)[i] = tsi_bf16_of_f64(tsi_f64_sticky_of_i64(v));
        break;
    case TS_DTYPE_F16: ((uint16_t *)data)[i] = tsi_f16_of_f64(tsi_f64_sticky_of_i64(v)); break;
    case TS_DTYPE_I64: ((int64_t *)data)[i] = v; break;
    case TS_DTYPE_I32: ((uint32_t *)data)[i] = (uint32_t)v; break;
    case TS_DTYPE_I16: ((uint16_t *)data)[i] = (uint16_t)v; break;
    case TS_DTYPE_I8:
    case TS_DTYPE_U8: ((uint8_t *)data)[i] = (uint8_t)v; break;
    case TS_DTYPE_BOOL: ((uint8_t *)data)[i] = v != 0; break;
    case TS_DTYPE_C64:
        ((float *)data)[2 * i] = (float)v;
        ((float *)data)[2 * i + 1] = 0;
        break;
    case TS_DTYPE_C128:
        ((double *)data)[2 * i] = (double)v;
        ((double *)data)[2 * i + 1] = 0;
        break;
    default: break;
    }
}

#endif
