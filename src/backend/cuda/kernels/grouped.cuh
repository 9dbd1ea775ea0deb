/* SPDX-License-Identifier: Apache-2.0 */
/* grouped.cuh - where rows of grouped products lie. */
#ifndef TSI_BACKEND_CUDA_KERNELS_GROUPED_CUH
#define TSI_BACKEND_CUDA_KERNELS_GROUPED_CUH

#include "backend/cuda/kernels/grouped.h"

__device__ inline int64_t row_at(const tsi_cuda_row_steps &steps, int32_t row)
{
    int32_t each = (int32_t)steps.each;
    return row / each * steps.outer + row % each * steps.inner;
}

#endif
