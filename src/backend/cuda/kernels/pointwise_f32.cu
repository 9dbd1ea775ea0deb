/* SPDX-License-Identifier: Apache-2.0 */
/* pointwise_f32.cu - hot elementwise operators of f32, dense and by rows. */
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/pointwise_rows.cuh"

TSI_KERNEL(pointwise_f32, tsi_cuda_pointwise_args)
{
    switch (a.op) {
#define TSI_HOT(name, real, whole)                                                                 \
    case TSI_POINTWISE_##name:                                                                     \
        rows<fn_##name, as_f32, true>(a);                                                          \
        break;
#include "op/pointwise/scalars.def"
#undef TSI_HOT
    }
}

TSI_KERNEL(pointwise_rows_f32, tsi_cuda_pointwise_args)
{
    switch (a.op) {
#define TSI_HOT(name, real, whole)                                                                 \
    case TSI_POINTWISE_##name:                                                                     \
        rows<fn_##name, as_f32, false>(a);                                                         \
        break;
#include "op/pointwise/scalars.def"
#undef TSI_HOT
    }
}
