/* SPDX-License-Identifier: Apache-2.0 */
/* complain.cuh - saying that a value is wrong: of all calls since the last wait the first, and of
 * its wrong values the one in the first place, as a loop on the host would find it. */
#ifndef TSI_BACKEND_CUDA_KERNELS_COMPLAIN_CUH
#define TSI_BACKEND_CUDA_KERNELS_COMPLAIN_CUH

#include "backend/cuda/kernels/args.h"

/* Greater is earlier; never 0. Calls count modulo 2^23, places up to 2^40; those of a graph count
 * as when it was recorded. */
__device__ inline unsigned long long order_of(const tsi_cuda_asker &asker, int64_t place)
{
    unsigned long long most = (1ull << 40) - 1;
    unsigned long long at = (unsigned long long)place < most ? (unsigned long long)place : most;
    return ~((asker.serial & 0x7fffff) << 40 | at);
}

/* Most threads see that an earlier one was here and go; the others write one after another. */
__device__ inline void complain(const tsi_cuda_asker &asker, int64_t place, int64_t value,
                                int64_t least = 0)
{
    tsi_cuda_complaint *to = asker.to;
    if (!to) return;
    unsigned long long order = order_of(asker, place), *first = (unsigned long long *)&to->order;
    if (atomicMax(first, order) >= order) return;
    while (atomicCAS(&to->lock, 0, 1) != 0) {
    }
    if (atomicMax(first, 0ull) == order) {
        to->kind = asker.kind;
        to->value = value;
        to->least = least;
        to->place = place;
        to->bound = asker.bound;
        to->serial = asker.serial;
        to->cut = asker.cut;
        __threadfence();
    }
    atomicExch(&to->lock, 0);
}

/* Whether something wrong stands to be told: then nobody adds to what was there before. */
__device__ inline bool is_refused(const tsi_cuda_asker &asker)
{
    return asker.to && *(volatile uint64_t *)&asker.to->order != 0;
}

#endif
