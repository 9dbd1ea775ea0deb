/* SPDX-License-Identifier: Apache-2.0 */
/* lists.cuh - lists that threads fill in any order are put in order by a block, so that what is
 * added by them has the same bits every time. */
#ifndef TSI_BACKEND_CUDA_KERNELS_LISTS_CUH
#define TSI_BACKEND_CUDA_KERNELS_LISTS_CUH

#include "backend/cuda/kernels/kernel.cuh"

/* `count` different numbers below `items` in order: one a thread by counting smaller ones, more by
 * a bitmap of `words` words in shared memory, which holds a stretch of the items at a time. All
 * threads of a block call it. `to` may be the list itself if the bitmap holds all items. */
__device__ inline void sort_list(const int32_t *list, int32_t *to, int count, int64_t items,
                                 int words)
{
    TSI_BLOCK_MEMORY(uint32_t, bits);
    __shared__ int base, before[32];
    if (count <= (int)blockDim.x) {
        int mine = threadIdx.x < count ? list[threadIdx.x] : 0, rank = 0;
        for (int i = 0; threadIdx.x < count && i < count; i++)
            rank += list[i] < mine;
        __syncthreads();
        if (threadIdx.x < count) to[rank] = mine;
        __syncthreads();
        return;
    }
    if (threadIdx.x == 0) base = 0;
    for (int64_t begin = 0; begin < items; begin += (int64_t)words * 32) {
        for (int w = threadIdx.x; w < words; w += blockDim.x)
            bits[w] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < count; i += blockDim.x) {
            int64_t bit = list[i] - begin;
            if (bit >= 0 && bit < (int64_t)words * 32)
                atomicOr(&bits[bit / 32], 1u << (uint32_t)(bit % 32));
        }
        __syncthreads();
        for (int first = 0; first < words; first += blockDim.x) { /* ranks of a stretch of words */
            int w = first + threadIdx.x, mine = w < words ? __popc(bits[w]) : 0, sum = mine;
            for (int step = 1; step < 32; step *= 2) {
                int other = __shfl_up_sync(0xffffffffu, sum, step);
                if (threadIdx.x % 32 >= step) sum += other;
            }
            if (threadIdx.x % 32 == 31) before[threadIdx.x / 32] = sum;
            __syncthreads();
            int at = base + sum - mine, all = 0;
            for (int k = 0; k < (int)blockDim.x / 32; k++) {
                if (k < (int)threadIdx.x / 32) at += before[k];
                all += before[k];
            }
            for (uint32_t left = w < words ? bits[w] : 0; left; left &= left - 1)
                to[at++] = (int32_t)(begin + w * 32 + __ffs(left) - 1);
            __syncthreads();
            if (threadIdx.x == 0) base += all;
            __syncthreads();
        }
    }
}

#endif
