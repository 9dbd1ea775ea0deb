/* SPDX-License-Identifier: Apache-2.0 */
/* swiglu.cu - both gradients of silu(gate) * up in one pass: three arrays are read, two written. */
#include "backend/cuda/kernels/index.cuh"
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

template <typename T> __device__ inline void gradients(const tsi_cuda_swiglu_args &a)
{
    typedef typename T::E E;
    constexpr int N = 16 / sizeof(E);
    int64_t u = first_item();
    if (u < a.units) {
        int64_t row = a.by.divisor ? divide((uint32_t)u, a.by) : 0;
        int64_t column = u - row * a.by.divisor, at[TSI_CUDA_SWIGLU_ARRAYS];
#pragma unroll
        for (int k = 0; k < TSI_CUDA_SWIGLU_ARRAYS; k++)
            at[k] = row * a.stride[k] + column;
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

extern "C" __global__ void swiglu_gradients_f32(const __grid_constant__ tsi_cuda_swiglu_args a)
{
    gradients<as_f32>(a);
}

extern "C" __global__ void swiglu_gradients_bf16(const __grid_constant__ tsi_cuda_swiglu_args a)
{
    gradients<as_bf16>(a);
}
