/* SPDX-License-Identifier: Apache-2.0 */
/* pointwise.cu - elementwise operators (scalars.def).
 *
 * Every one, any strides and dtypes, element by element in f32, f64 or int64; hot ones of f32 and
 * bf16 go by 16 bytes (pointwise_rows.cuh). The operator is the same for a launch: a switch costs a
 * branch that all threads take alike. */
#include "backend/cuda/kernels/index.cuh"
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/number.cuh"
#include "backend/cuda/kernels/real.cuh"
#include "op/pointwise/scalars.h"

#define NONE 0

template <typename R> __device__ inline R load_any(int32_t dtype, const void *data, int64_t i)
{
    switch (dtype) {
    case TS_DTYPE_F32:
        return (R)((const float *)data)[i];
    case TS_DTYPE_BF16:
        return (R)tsi_f32_of_bf16(((const uint16_t *)data)[i]);
    case TS_DTYPE_F16:
        return (R)tsi_f32_of_f16(((const uint16_t *)data)[i]);
    case TS_DTYPE_F64:
        return (R)((const double *)data)[i];
    case TS_DTYPE_BOOL:
        return (R)(((const uint8_t *)data)[i] != 0);
    default:
        return (R)load_wide(dtype, data, i).whole;
    }
}

template <> __device__ inline int64_t load_any<int64_t>(int32_t dtype, const void *data, int64_t i)
{
    return load_wide(dtype, data, i).whole;
}

__device__ inline void store_any(int32_t dtype, void *data, int64_t i, float x)
{
    switch (dtype) {
    case TS_DTYPE_F32:
        ((float *)data)[i] = x;
        break;
    case TS_DTYPE_BF16:
        ((uint16_t *)data)[i] = tsi_bf16_of_f32(x);
        break;
    case TS_DTYPE_F16:
        ((uint16_t *)data)[i] = tsi_f16_of_f32(x);
        break;
    default:
        store_f64(dtype, data, i, x, 0);
        break;
    }
}

__device__ inline void store_any(int32_t dtype, void *data, int64_t i, double x)
{
    store_f64(dtype, data, i, x, 0);
}

__device__ inline void store_any(int32_t dtype, void *data, int64_t i, int64_t x)
{
    store_i64(dtype, data, i, x);
}

template <typename R>
__device__ inline R apply(const tsi_cuda_pointwise_args &a, R x, R y, R z, R n0, R n1)
{
    int flag = a.flag;
    switch (a.op) {
#define TSI_HOT(name, real, whole)                                                                 \
    case TSI_POINTWISE_##name:                                                                     \
        return R(real);
#define TSI_POINT(name, real, whole)                                                               \
    case TSI_POINTWISE_##name:                                                                     \
        return R(real);
#include "op/pointwise/scalars.def"
#undef TSI_HOT
#undef TSI_POINT
    default:
        return x;
    }
}

template <>
__device__ inline int64_t apply<int64_t>(const tsi_cuda_pointwise_args &a, int64_t x, int64_t y,
                                         int64_t z, int64_t n0, int64_t n1)
{
    int flag = a.flag;
    double r0 = a.number[0], r1 = a.number[1];
    switch (a.op) {
#define TSI_HOT(name, real, whole)                                                                 \
    case TSI_POINTWISE_##name:                                                                     \
        return whole;
#define TSI_POINT(name, real, whole)                                                               \
    case TSI_POINTWISE_##name:                                                                     \
        return whole;
#include "op/pointwise/scalars.def"
#undef TSI_HOT
#undef TSI_POINT
    default:
        return x;
    }
}

template <typename R> __device__ inline R number_of(const tsi_cuda_pointwise_args &a, int which)
{
    return (R)a.number[which];
}

template <>
__device__ inline int64_t number_of<int64_t>(const tsi_cuda_pointwise_args &a, int which)
{
    return a.whole[which];
}

template <typename R> __device__ void walk(const tsi_cuda_pointwise_args &a)
{
    const tsi_cuda_operand *const operands[4] = { &a.to, &a.from[0], &a.from[1], &a.from[2] };
    R n0 = number_of<R>(a, 0), n1 = number_of<R>(a, 1);
    for (int64_t i = first_item(); i < a.space.count; i += item_step()) {
        int64_t offset[4];
        place(a.space, i, operands, offset);
        R x[3] = { 0, 0, 0 };
        for (int k = 0; k < a.inputs; k++)
            x[k] = load_any<R>(a.dtype[1 + k], a.from[k].data, offset[1 + k]);
        store_any(a.dtype[0], a.to.data, offset[0], apply<R>(a, x[0], x[1], x[2], n0, n1));
    }
}

TSI_KERNEL(pointwise_any, tsi_cuda_pointwise_args)
{
    walk<float>(a);
}

TSI_KERNEL(pointwise_any_f64, tsi_cuda_pointwise_args)
{
    walk<double>(a);
}

TSI_KERNEL(pointwise_any_i64, tsi_cuda_pointwise_args)
{
    walk<int64_t>(a);
}
