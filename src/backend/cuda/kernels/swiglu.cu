/* SPDX-License-Identifier: Apache-2.0 */
/* swiglu.cu - both gradients of silu(gate) * up in one pass: three arrays are read, two written. */
#include "backend/cuda/kernels/real.cuh"

template <typename T> __device__ inline void gradients(const tsi_cuda_swiglu_args &a)
{
    typedef typename T::E E;
    constexpr int N = 16 / sizeof(E);
    int64_t units = a.count / N, u = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (u < units) {
        unit_of<E> dy, gate, up;
        dy.unit = __ldcs((const uint4 *)a.dy + u);
        gate.unit = __ldcs((const uint4 *)a.gate + u);
        up.unit = __ldcs((const uint4 *)a.up + u);
#pragma unroll
        for (int e = 0; e < N; e++) {
            float d = T::load(dy.element[e]), x = T::load(gate.element[e]);
            float s = __fdividef(1.0f, 1.0f + __expf(-x)), silu = x * s;
            gate.element[e] = T::store(d * T::load(up.element[e]) * (s + silu * (1.0f - s)));
            up.element[e] = T::store(d * silu);
        }
        ((uint4 *)a.d_gate)[u] = gate.unit;
        ((uint4 *)a.d_up)[u] = up.unit;
    }
    int64_t i = units * N + u; /* the few behind the last unit */
    if (i < a.count && u < N) {
        float d = T::load(((const E *)a.dy)[i]), x = T::load(((const E *)a.gate)[i]);
        float y = T::load(((const E *)a.up)[i]);
        float s = __fdividef(1.0f, 1.0f + __expf(-x)), silu = x * s;
        ((E *)a.d_gate)[i] = T::store(d * y * (s + silu * (1.0f - s)));
        ((E *)a.d_up)[i] = T::store(d * silu);
    }
}

extern "C" __global__ void swiglu_gradients_f32(const __grid_constant__ tsi_cuda_swiglu_args a)
{
    gradients<as_f32>(a);
}

extern "C" __global__ void swiglu_gradients_bf16(const __grid_constant__ tsi_cuda_swiglu_args a)
{
    gradients<as_bf16>(a);
}
