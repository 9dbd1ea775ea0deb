/* SPDX-License-Identifier: Apache-2.0 */
/* trial.cu - factors to try a product with, and whether two results have the same bits. */
#include "backend/cuda/kernels/trial.h"

#include "backend/cuda/kernels/index.cuh"
#include "backend/cuda/kernels/kernel.cuh"

TSI_KERNEL(trial_fill, tsi_cuda_trial_fill_args)
{
    for (int64_t i = first_item(); i < a.words; i += item_step()) {
        uint32_t h = (uint32_t)i * 0x9E3779B1u ^ (uint32_t)(i >> 32);
        h = (h ^ h >> 15) * 0x85EBCA77u;
        h = (h ^ h >> 13) * 0xC2B2AE3Du;
        a.to[i] = a.same | ((h ^ h >> 16) & a.drawn);
    }
}

TSI_KERNEL(trial_differs, tsi_cuda_trial_differs_args)
{
    bool differs = false;
    for (int64_t i = first_item(); i < a.words; i += item_step())
        differs = differs || a.one[i] != a.other[i];
    if (differs) *a.differs = 1;
}
