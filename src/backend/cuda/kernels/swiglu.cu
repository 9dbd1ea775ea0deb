/* SPDX-License-Identifier: Apache-2.0 */
/* swiglu.cu - silu(gate) * up of rows that lie apart, and both its gradients in one pass: three
 * arrays are read, two written. */
#include "backend/cuda/kernels/index.cuh"
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/real.cuh"

/* gate and up become their gradients. */
template <typename T>
__device__ inline void gradients_of(typename T::E dy, typename T::E &gate, typename T::E &up)
{
    float d = T::load(dy), x = T::load(gate), y = T::load(up);
    float s = __fdividef(1.0f, 1.0f + __expf(-x)), silu = x * s;
    gate = T::store(d * y * (s + silu * (1.0f - s)));
    up = T::store(d * silu);
}

/* Where unit u lies in each array. */
__device__ inline void place_unit(const tsi_cuda_swiglu_args &a, int64_t u,
                                  int64_t (&at)[TSI_CUDA_SWIGLU_ARRAYS])
{
    int64_t row = a.by.divisor ? divide((uint32_t)u, a.by) : 0, column = u - row * a.by.divisor;
#pragma unroll
    for (int k = 0; k < TSI_CUDA_SWIGLU_ARRAYS; k++)
        at[k] = row * a.stride[k] + column;
}

/* silu(gate) * up of rows, into the place of the gate's gradient. */
template <typename T> __device__ inline void rows(const tsi_cuda_swiglu_args &a)
{
    int64_t u = first_item(), at[TSI_CUDA_SWIGLU_ARRAYS];
    if (u >= a.units) return;
    place_unit(a, u, at);
    unit_of<uint16_t> gate, up;
    gate.unit = ((const uint4 *)a.data[TSI_CUDA_SWIGLU_GATE])[at[TSI_CUDA_SWIGLU_GATE]];
    up.unit = ((const uint4 *)a.data[TSI_CUDA_SWIGLU_UP])[at[TSI_CUDA_SWIGLU_UP]];
#pragma unroll
    for (int e = 0; e < 8; e++) {
        float x = T::load(gate.element[e]), y = T::load(up.element[e]);
        gate.element[e] = T::store(__fdividef(x, 1.0f + __expf(-x)) * y);
    }
    ((uint4 *)a.data[TSI_CUDA_SWIGLU_D_GATE])[at[TSI_CUDA_SWIGLU_D_GATE]] = gate.unit;
}

template <typename T> __device__ inline void gradients(const tsi_cuda_swiglu_args &a)
{
    typedef typename T::E E;
    constexpr int N = 16 / sizeof(E);
    int64_t u = first_item(), at[TSI_CUDA_SWIGLU_ARRAYS];
    if (u < a.units) {
        place_unit(a, u, at);
        unit_of<E> dy, gate, up;
        dy.unit = __ldcs((const uint4 *)a.data[TSI_CUDA_SWIGLU_DY] + at[TSI_CUDA_SWIGLU_DY]);
        gate.unit = __ldcs((const uint4 *)a.data[TSI_CUDA_SWIGLU_GATE] + at[TSI_CUDA_SWIGLU_GATE]);
        up.unit = __ldcs((const uint4 *)a.data[TSI_CUDA_SWIGLU_UP] + at[TSI_CUDA_SWIGLU_UP]);
#pragma unroll
        for (int e = 0; e < N; e++)
            gradients_of<T>(dy.element[e], gate.element[e], up.element[e]);
        ((uint4 *)a.data[TSI_CUDA_SWIGLU_D_GATE])[at[TSI_CUDA_SWIGLU_D_GATE]] = gate.unit;
        ((uint4 *)a.data[TSI_CUDA_SWIGLU_D_UP])[at[TSI_CUDA_SWIGLU_D_UP]] = up.unit;
    }
    if (u >= a.rest) return;
    int64_t i = a.units * N + u; /* the few behind the last unit */
    E gate = ((const E *)a.data[TSI_CUDA_SWIGLU_GATE])[i];
    E up = ((const E *)a.data[TSI_CUDA_SWIGLU_UP])[i];
    gradients_of<T>(((const E *)a.data[TSI_CUDA_SWIGLU_DY])[i], gate, up);
    ((E *)a.data[TSI_CUDA_SWIGLU_D_GATE])[i] = gate;
    ((E *)a.data[TSI_CUDA_SWIGLU_D_UP])[i] = up;
}

TSI_KERNEL(swiglu_rows_bf16, tsi_cuda_swiglu_args)
{
    rows<as_bf16>(a);
}

TSI_KERNEL(swiglu_rows_f16, tsi_cuda_swiglu_args)
{
    rows<as_f16>(a);
}

TSI_KERNEL(swiglu_gradients_f32, tsi_cuda_swiglu_args)
{
    gradients<as_f32>(a);
}

TSI_KERNEL(swiglu_gradients_bf16, tsi_cuda_swiglu_args)
{
    gradients<as_bf16>(a);
}

TSI_KERNEL(swiglu_gradients_f16, tsi_cuda_swiglu_args)
{
    gradients<as_f16>(a);
}
