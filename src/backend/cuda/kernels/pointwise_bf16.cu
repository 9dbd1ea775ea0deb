/* SPDX-License-Identifier: Apache-2.0 */
/* pointwise_bf16.cu - hot elementwise operators of bf16, dense and by rows. */
#include "backend/cuda/kernels/brief.cuh"
#include "backend/cuda/kernels/pointwise_rows.cuh"

extern "C" __global__ void pointwise_bf16(const __grid_constant__ tsi_cuda_pointwise_args a)
{
    switch (a.op) {
#define TSI_HOT(name, real, whole)                                                                 \
    case TSI_POINTWISE_##name:                                                                     \
        rows<fn_##name, as_brief, true>(a);                                                        \
        break;
#include "backend/cuda/kernels/pointwise.def"
#undef TSI_HOT
    }
}

extern "C" __global__ void pointwise_rows_bf16(const __grid_constant__ tsi_cuda_pointwise_args a)
{
    switch (a.op) {
#define TSI_HOT(name, real, whole)                                                                 \
    case TSI_POINTWISE_##name:                                                                     \
        rows<fn_##name, as_brief, false>(a);                                                       \
        break;
#include "backend/cuda/kernels/pointwise.def"
#undef TSI_HOT
    }
}
