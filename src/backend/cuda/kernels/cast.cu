/* SPDX-License-Identifier: Apache-2.0 */
/* cast.cu - any dtype to any other, one rounding each; f32 with bf16 and f16 in units
 * of four; and what p-norms make of reals before and behind their sums. */
#include "backend/cuda/kernels/index.cuh"
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/number.cuh"

TSI_KERNEL(cast_any, tsi_cuda_copy_args)
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

/* Reals in f64, one function of each, as the host does it. */
template <typename F> __device__ inline void cast_by(const tsi_cuda_copy_args &a, F function)
{
    const tsi_cuda_operand *const operands[2] = { &a.to, &a.from };
    for (int64_t i = first_item(); i < a.space.count; i += item_step()) {
        int64_t offset[2];
        place(a.space, i, operands, offset);
        double x = load_wide(a.from_dtype, a.from.data, offset[1]).re;
        store_f64(a.to_dtype, a.to.data, offset[0], function(x), 0.0);
    }
}

TSI_KERNEL(cast_abs, tsi_cuda_copy_args)
{
    cast_by(a, [](double x) { return fabs(x); });
}

TSI_KERNEL(cast_square, tsi_cuda_copy_args)
{
    cast_by(a, [](double x) { return x * x; });
}

TSI_KERNEL(cast_root, tsi_cuda_copy_args)
{
    cast_by(a, [](double x) { return sqrt(x); });
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

template <typename H> struct narrowing {
    typedef float from;
    typedef uint16_t to;
    __device__ static uint16_t apply(float f)
    {
        return H::narrow(f);
    }
};

template <typename H> struct widening {
    typedef uint16_t from;
    typedef float to;
    __device__ static float apply(uint16_t h)
    {
        return H::widen(h);
    }
};

/* Rows in units of N elements, four units a thread on their way. Bits alone are moved: a NaN keeps
 * its payload when it is widened, and becomes quiet when it is narrowed. */
template <typename C, int N> __device__ void cast_rows(const tsi_cuda_copy_args &a)
{
    struct alignas(N * sizeof(typename C::from)) source {
        typename C::from element[N];
    };
    struct alignas(N * sizeof(typename C::to)) target {
        typename C::to element[N];
    };
    const tsi_cuda_operand *const operands[2] = { &a.to, &a.from };
    for (int64_t i = first_of<4>(); i < a.space.count; i += step_of<4>()) {
        source in[4];
        int64_t at[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int64_t item = i + k * TSI_CUDA_BLOCK, offset[2];
            if (item >= a.space.count) continue;
            place(a.space, item, operands, offset);
            at[k] = offset[0];
            in[k] = ((const source *)a.from.data)[offset[1]];
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (i + k * TSI_CUDA_BLOCK >= a.space.count) continue;
            target out;
#pragma unroll
            for (int e = 0; e < N; e++)
                out.element[e] = C::apply(in[k].element[e]);
            ((target *)a.to.data)[at[k]] = out;
        }
    }
}

#define CAST(name, type, unit)                                                                     \
    TSI_KERNEL(cast_##name##_##unit, tsi_cuda_copy_args)                                           \
    {                                                                                              \
        cast_rows<type, unit>(a);                                                                  \
    }
CAST(f32_bf16, narrowing<bf16>, 1)
CAST(f32_bf16, narrowing<bf16>, 4)
CAST(bf16_f32, widening<bf16>, 1)
CAST(bf16_f32, widening<bf16>, 4)
CAST(f32_f16, narrowing<f16>, 1)
CAST(f32_f16, narrowing<f16>, 4)
CAST(f16_f32, widening<f16>, 1)
CAST(f16_f32, widening<f16>, 4)
