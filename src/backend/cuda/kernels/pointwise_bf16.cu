/* SPDX-License-Identifier: Apache-2.0 */
/* pointwise_bf16.cu - hot elementwise operators of bf16, dense and by rows. */
#include "backend/cuda/kernels/brief.cuh"
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/pointwise_rows.cuh"

TSI_KERNEL(pointwise_bf16, tsi_cuda_pointwise_args)
{
    switch (a.op) {
#define TSI_HOT(name, real, whole)                                                                 \
    case TSI_POINTWISE_##name:                                                                     \
        rows<fn_##name, as_brief, true>(a);                                                        \
        break;
#include "op/pointwise/scalars.def"
#undef TSI_HOT
    }
}

TSI_KERNEL(pointwise_rows_bf16, tsi_cuda_pointwise_args)
{
    switch (a.op) {
#define TSI_HOT(name, real, whole)                                                                 \
    case TSI_POINTWISE_##name:                                                                     \
        rows<fn_##name, as_brief, false>(a);                                                       \
        break;
#include "op/pointwise/scalars.def"
#undef TSI_HOT
    }
}
