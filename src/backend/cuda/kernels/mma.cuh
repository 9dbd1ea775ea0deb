/* SPDX-License-Identifier: Apache-2.0 */
/* mma.cuh - products on the tensor cores from sm_80 on (ptx.cuh), by dtype, and rows in shared
 * memory.
 *
 * Rows of shared memory are turned by their number, 16 bytes at a time, so that eight rows of one
 * column are eight banks.
 *
 * A warp's product of 16 rows and 8 columns lies in its threads as the instruction leaves it: a
 * thread has columns lane % 4 * 2 and the next one of rows lane / 4 (elements 0, 1) and lane / 4 +
 * 8 (2, 3). */
#ifndef TSI_BACKEND_CUDA_KERNELS_MMA_CUH
#define TSI_BACKEND_CUDA_KERNELS_MMA_CUH

#include "backend/cuda/kernels/ptx.cuh"

/* ---- dtypes ---------------------------------------------------------------------------------- */

struct of_bf16 {
    __device__ static void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
    {
        multiply_bf16(c, a, b0, b1);
    }
    __device__ static uint32_t pair(float low, float high)
    {
        return bf16_pair_of(low, high);
    }
};

struct of_f16 {
    __device__ static void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
    {
        multiply_f16(c, a, b0, b1);
    }
    __device__ static uint32_t pair(float low, float high)
    {
        return f16_pair_of(low, high);
    }
};

/* ---- rows in shared memory ------------------------------------------------------------------- */

template <int D> __device__ inline uint32_t chunk_at(uint32_t base, int row, int chunk)
{
    return base + (uint32_t)(row * D + ((chunk ^ (row & 7)) * 8)) * 2;
}

#endif
