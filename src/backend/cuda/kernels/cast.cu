/* SPDX-License-Identifier: Apache-2.0 */
/* cast.cu - any dtype to any other, one rounding each; f32 with bf16 and f16 in rows of eight. */
#include "backend/cuda/kernels/index.cuh"
#include "backend/cuda/kernels/number.cuh"

extern "C" __global__ void cast_any(const __grid_constant__ tsi_cuda_copy_args a)
{
    const tsi_cuda_operand *const operands[2] = { &a.to, &a.from };
    wide_kind kind = kind_of(a.from_dtype);
    for (int64_t i = first_item(); i < a.space.count; i += item_step()) {
        int64_t offset[2];
        place(a.space, i, operands, offset);
        wide w = load_wide(a.from_dtype, a.from.data, offset[1]);
        if (kind == WIDE_I64)
            store_i64(a.to_dtype, a.to.data, offset[0], w.whole);
        else
            store_f64(a.to_dtype, a.to.data, offset[0], w.re, w.im);
    }
}

struct bf16 {
    __device__ static float widen(uint16_t h)
    {
        return tsi_f32_of_bf16(h);
    }
    __device__ static uint16_t narrow(float f)
    {
        return tsi_bf16_of_f32(f);
    }
};

struct f16 {
    __device__ static float widen(uint16_t h)
    {
        return tsi_f32_of_f16(h);
    }
    __device__ static uint16_t narrow(float f)
    {
        return tsi_f16_of_f32(f);
    }
};

union eight_halves {
    uint4 unit;
    uint16_t half[8];
};

union four_floats {
    float4 unit;
    float value[4];
};

template <typename T> __device__ void narrow_rows(const tsi_cuda_copy_args &a)
{
    int64_t whole = a.space.count / 8;
    const float *from = (const float *)a.from.data;
    uint16_t *to = (uint16_t *)a.to.data;
    for (int64_t i = first_item(); i < whole; i += item_step()) {
        four_floats low, high;
        low.unit = ((const float4 *)from)[2 * i];
        high.unit = ((const float4 *)from)[2 * i + 1];
        eight_halves out;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            out.half[k] = T::narrow(low.value[k]);
            out.half[k + 4] = T::narrow(high.value[k]);
        }
        ((uint4 *)to)[i] = out.unit;
    }
    int64_t rest = 8 * whole + first_item();
    if (rest < a.space.count) to[rest] = T::narrow(from[rest]);
}

template <typename T> __device__ void widen_rows(const tsi_cuda_copy_args &a)
{
    int64_t whole = a.space.count / 8;
    const uint16_t *from = (const uint16_t *)a.from.data;
    float *to = (float *)a.to.data;
    for (int64_t i = first_item(); i < whole; i += item_step()) {
        eight_halves in;
        in.unit = ((const uint4 *)from)[i];
        four_floats low, high;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            low.value[k] = T::widen(in.half[k]);
            high.value[k] = T::widen(in.half[k + 4]);
        }
        ((float4 *)to)[2 * i] = low.unit;
        ((float4 *)to)[2 * i + 1] = high.unit;
    }
    int64_t rest = 8 * whole + first_item();
    if (rest < a.space.count) to[rest] = T::widen(from[rest]);
}

#define HALVES(name)                                                                               \
    extern "C" __global__ void cast_f32_##name(const __grid_constant__ tsi_cuda_copy_args a)       \
    {                                                                                              \
        narrow_rows<name>(a);                                                                      \
    }                                                                                              \
    extern "C" __global__ void cast_##name##_f32(const __grid_constant__ tsi_cuda_copy_args a)     \
    {                                                                                              \
        widen_rows<name>(a);                                                                       \
    }
HALVES(bf16)
HALVES(f16)
