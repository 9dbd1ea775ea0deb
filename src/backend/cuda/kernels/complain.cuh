/* SPDX-License-Identifier: Apache-2.0 */
/* complain.cuh - saying that a value is wrong: the first of all kernels since the last wait stays.
 */
#ifndef TSI_BACKEND_CUDA_KERNELS_COMPLAIN_CUH
#define TSI_BACKEND_CUDA_KERNELS_COMPLAIN_CUH

#include "backend/cuda/kernels/args.h"

__device__ inline void complain(const tsi_cuda_asker &asker, int64_t value)
{
    if (!asker.to || atomicCAS(&asker.to->state, 0, 1) != 0) return;
    asker.to->kind = asker.kind;
    asker.to->value = value;
    asker.to->bound = asker.bound;
    asker.to->serial = asker.serial;
    asker.to->cut = asker.cut;
}

#endif
