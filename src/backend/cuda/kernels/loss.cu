/* SPDX-License-Identifier: Apache-2.0 */
/* loss.cu - terms of losses of elements (TSI_CUDA_LOSSES), any strides and real dtypes. */
#include "backend/cuda/kernels/index.cuh"
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/real.cuh"

/* What is no number stays none. */
template <typename R> __device__ inline R at_least(R x, R least)
{
    return x < least ? least : x;
}

/* A parabola below the point, a line beyond. */
template <typename R> __device__ inline R bent(R d, R point)
{
    return d < point ? R(0.5) * d * d / point : d - R(0.5) * point;
}

template <typename R> __device__ inline R term(int32_t kind, R x, R t, R point, bool flag)
{
    switch (kind) {
#define TERM(name, value)                                                                          \
    case TSI_CUDA_LOSS_##name:                                                                     \
        return value;
        TSI_CUDA_LOSSES(TERM)
#undef TERM
    default:
        return 0;
    }
}

template <typename R> __device__ void terms(const tsi_cuda_loss_args &a)
{
    const tsi_cuda_operand *const operands[3] = { &a.x, &a.target, &a.to };
    for (int64_t i = first_item(); i < a.space.count; i += item_step()) {
        int64_t at[3];
        place(a.space, i, operands, at);
        R x = load_real<R>(a.dtype[0], a.x.data, at[0]);
        R t = load_real<R>(a.dtype[1], a.target.data, at[1]);
        store_real<R>(a.dtype[2], a.to.data, at[2], term<R>(a.kind, x, t, (R)a.point, a.flag != 0));
    }
}

TSI_KERNEL(loss_terms_f32, tsi_cuda_loss_args)
{
    terms<float>(a);
}

TSI_KERNEL(loss_terms_f64, tsi_cuda_loss_args)
{
    terms<double>(a);
}
