/* SPDX-License-Identifier: Apache-2.0 */
/* pointwise.cu - elementwise operators of reals: dense operands of one dtype by 16 bytes, anything
 * else element by element. The operator is the same for a launch, so the switch is outside loops.
 */
#include "backend/cuda/kernels/index.cuh"
#include "backend/cuda/kernels/real.cuh"

template <typename R> __device__ inline R swiglu_slope(R dy, R gate, R up)
{
    R s = R(1) / (R(1) + exp(-gate));
    return dy * up * (s * (R(1) + gate * (R(1) - s)));
}

#define TSI_POINTWISE(name, expression)                                                            \
    struct fn_##name {                                                                             \
        template <typename R> __device__ static R apply(R x, R y, R z, R n0)                       \
        {                                                                                          \
            (void)x, (void)y, (void)z, (void)n0;                                                   \
            return expression;                                                                     \
        }                                                                                          \
    };
#include "backend/cuda/kernels/pointwise.def"
#undef TSI_POINTWISE

template <typename F, typename R> __device__ void walk(const tsi_cuda_pointwise_args &a)
{
    const tsi_cuda_operand *const operands[4] = { &a.to, &a.from[0], &a.from[1], &a.from[2] };
    for (int64_t i = first_item(); i < a.space.count; i += item_step()) {
        int64_t offset[4];
        place(a.space, i, operands, offset);
        R x[3] = { 0, 0, 0 };
        for (int k = 0; k < a.inputs; k++)
            x[k] = load_real<R>(a.dtype[1 + k], a.from[k].data, offset[1 + k]);
        store_real<R>(a.dtype[0], a.to.data, offset[0], F::apply(x[0], x[1], x[2], (R)a.number));
    }
}

/* Two units a thread on their way. */
template <typename F, typename T> __device__ void rows(const tsi_cuda_pointwise_args &a)
{
    constexpr int N = 16 / sizeof(typename T::E);
    typedef typename T::R R;
    int64_t units = a.space.count / N;
    for (int64_t i = first_of<2>(); i < units; i += step_of<2>()) {
        unit_of<typename T::E> in[2][3];
#pragma unroll
        for (int u = 0; u < 2; u++)
#pragma unroll
            for (int k = 0; k < 3; k++)
                if (k < a.inputs && i + u * TSI_CUDA_BLOCK < units)
                    in[u][k].unit = ((const uint4 *)a.from[k].data)[i + u * TSI_CUDA_BLOCK];
#pragma unroll
        for (int u = 0; u < 2; u++) {
            if (i + u * TSI_CUDA_BLOCK >= units) continue;
            unit_of<typename T::E> out;
#pragma unroll
            for (int e = 0; e < N; e++) {
                R x = T::load(in[u][0].element[e]), y = 0, z = 0;
                if (a.inputs > 1) y = T::load(in[u][1].element[e]);
                if (a.inputs > 2) z = T::load(in[u][2].element[e]);
                out.element[e] = T::store(F::apply(x, y, z, (R)a.number));
            }
            ((uint4 *)a.to.data)[i + u * TSI_CUDA_BLOCK] = out.unit;
        }
    }
    int64_t rest = units * N + first_item();
    if (rest >= a.space.count) return;
    R x[3] = { 0, 0, 0 };
    for (int k = 0; k < a.inputs; k++)
        x[k] = T::load(((const typename T::E *)a.from[k].data)[rest]);
    ((typename T::E *)a.to.data)[rest] = T::store(F::apply(x[0], x[1], x[2], (R)a.number));
}

extern "C" __global__ void pointwise_any(const __grid_constant__ tsi_cuda_pointwise_args a)
{
    switch (a.op) {
#define TSI_POINTWISE(name, expression)                                                            \
    case TSI_POINTWISE_##name:                                                                     \
        walk<fn_##name, float>(a);                                                                 \
        break;
#include "backend/cuda/kernels/pointwise.def"
#undef TSI_POINTWISE
    }
}

extern "C" __global__ void pointwise_any_f64(const __grid_constant__ tsi_cuda_pointwise_args a)
{
    switch (a.op) {
#define TSI_POINTWISE(name, expression)                                                            \
    case TSI_POINTWISE_##name:                                                                     \
        walk<fn_##name, double>(a);                                                                \
        break;
#include "backend/cuda/kernels/pointwise.def"
#undef TSI_POINTWISE
    }
}

extern "C" __global__ void pointwise_f32(const __grid_constant__ tsi_cuda_pointwise_args a)
{
    switch (a.op) {
#define TSI_POINTWISE(name, expression)                                                            \
    case TSI_POINTWISE_##name:                                                                     \
        rows<fn_##name, as_f32>(a);                                                                \
        break;
#include "backend/cuda/kernels/pointwise.def"
#undef TSI_POINTWISE
    }
}

extern "C" __global__ void pointwise_bf16(const __grid_constant__ tsi_cuda_pointwise_args a)
{
    switch (a.op) {
#define TSI_POINTWISE(name, expression)                                                            \
    case TSI_POINTWISE_##name:                                                                     \
        rows<fn_##name, as_bf16>(a);                                                               \
        break;
#include "backend/cuda/kernels/pointwise.def"
#undef TSI_POINTWISE
    }
}
