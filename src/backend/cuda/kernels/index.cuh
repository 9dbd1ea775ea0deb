/* SPDX-License-Identifier: Apache-2.0 */
/* index.cuh - from the number of an item to the places of its operands.
 *
 * INV: spaces of fewer than 2^31 items divide by products and shifts, larger ones by the extents;
 * both give the same places. */
#ifndef TSI_BACKEND_CUDA_KERNELS_INDEX_CUH
#define TSI_BACKEND_CUDA_KERNELS_INDEX_CUH

#include "backend/cuda/kernels/args.h"

__device__ inline uint32_t divide(uint32_t n, tsi_cuda_divisor by)
{
    return (__umulhi(n, by.magic) + n) >> by.shift;
}

__device__ inline bool is_small(const tsi_cuda_space &space)
{
    return space.count < ((int64_t)1 << 31);
}

/* Offsets of N operands at item i. */
template <int N>
__device__ inline void place(const tsi_cuda_space &space, int64_t i,
                             const tsi_cuda_operand *const (&operand)[N], int64_t (&offset)[N])
{
    for (int k = 0; k < N; k++)
        offset[k] = 0;
    if (is_small(space)) {
        uint32_t rest = (uint32_t)i;
        for (int d = space.ndim - 1; d >= 0; d--) {
            uint32_t outer = d > 0 ? divide(rest, space.by[d]) : 0;
            uint32_t at = rest - outer * (uint32_t)space.extent[d];
            rest = outer;
            for (int k = 0; k < N; k++)
                offset[k] += (int64_t)at * operand[k]->stride[d];
        }
        return;
    }
    int64_t rest = i;
    for (int d = space.ndim - 1; d >= 0; d--) {
        int64_t outer = d > 0 ? rest / space.extent[d] : 0, at = rest - outer * space.extent[d];
        rest = outer;
        for (int k = 0; k < N; k++)
            offset[k] += at * operand[k]->stride[d];
    }
}

/* The place of item i in each dim. */
__device__ inline void coordinates(const tsi_cuda_space &space, int64_t i, int64_t *at)
{
    bool small = is_small(space);
    for (int d = space.ndim - 1; d >= 0; d--) {
        int64_t outer = d == 0   ? 0
                        : small ? (int64_t)divide((uint32_t)i, space.by[d])
                                : i / space.extent[d];
        at[d] = i - outer * space.extent[d];
        i = outer;
    }
}

/* The first item of this thread, and the step to its next. */
__device__ inline int64_t first_item()
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ inline int64_t item_step()
{
    return (int64_t)gridDim.x * blockDim.x;
}

/* The same for blocks that walk pieces of N * TSI_CUDA_BLOCK items: a thread's N items of a piece
 * are TSI_CUDA_BLOCK apart. */
template <int N> __device__ inline int64_t first_of()
{
    return (int64_t)blockIdx.x * (N * TSI_CUDA_BLOCK) + threadIdx.x;
}

template <int N> __device__ inline int64_t step_of()
{
    return (int64_t)gridDim.x * (N * TSI_CUDA_BLOCK);
}

/* An element of so many bytes. */
__device__ inline void copy_bytes(int32_t size, void *to, int64_t i, const void *from, int64_t j)
{
    switch (size) {
    case 1:
        ((uint8_t *)to)[i] = ((const uint8_t *)from)[j];
        break;
    case 2:
        ((uint16_t *)to)[i] = ((const uint16_t *)from)[j];
        break;
    case 4:
        ((uint32_t *)to)[i] = ((const uint32_t *)from)[j];
        break;
    case 8:
        ((uint64_t *)to)[i] = ((const uint64_t *)from)[j];
        break;
    default:
        ((uint4 *)to)[i] = ((const uint4 *)from)[j];
        break;
    }
}

#endif
