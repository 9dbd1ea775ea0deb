/* SPDX-License-Identifier: Apache-2.0 */
/* wrong.cu - kernels with the faults that the simulated GPU is there to see: tests/gpu/simulated.c
 * launches each of them and asks what was seen. None of them is in the module. */
#include "backend/cuda/kernels/index.cuh"
#include "backend/cuda/kernels/kernel.cuh"

struct wrong_args {
    int64_t count;
    float *to;
    const float *from;
};

/* What it should: each element from the thread that has its mirror. */
TSI_KERNEL(wrong_not, wrong_args)
{
    __shared__ float shared[256];
    shared[threadIdx.x] = a.from[threadIdx.x];
    __syncthreads();
    a.to[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

TSI_KERNEL(wrong_no_barrier, wrong_args)
{
    __shared__ float shared[256];
    shared[threadIdx.x] = a.from[threadIdx.x];
    a.to[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

/* Each warp leaves its number and all read all of them, twice: a warp may leave the second one
 * while others still read. */
TSI_KERNEL(wrong_no_second_barrier, wrong_args)
{
    __shared__ float shared[8];
    int warp = threadIdx.x / 32;
    float sum = 0;
    for (int round = 0; round < 2; round++) {
        float x = a.from[round * 8 + warp]; /* 0 .. 7, 8 .. 15 */
        x = __shfl_xor_sync(0xffffffffu, x, 1);
        if (threadIdx.x % 32 == 0) shared[warp] = x;
        __syncthreads();
        for (int w = 0; w < 8; w++)
            sum += shared[w];
    }
    a.to[threadIdx.x] = sum == 120 ? a.from[blockDim.x - 1 - threadIdx.x] : -1;
}

TSI_KERNEL(wrong_unwritten, wrong_args)
{
    __shared__ float shared[256];
    if (threadIdx.x > 0) shared[threadIdx.x] = a.from[threadIdx.x];
    __syncthreads();
    a.to[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

TSI_KERNEL(wrong_half_at_barrier, wrong_args)
{
    if (threadIdx.x % 32 < 16) __syncthreads();
    __syncwarp();
    a.to[threadIdx.x] = 0;
}

TSI_KERNEL(wrong_lane_ends, wrong_args)
{
    if (threadIdx.x == 5) return;
    a.to[threadIdx.x] = __shfl_xor_sync(0xffffffffu, a.from[threadIdx.x], 1);
}

TSI_KERNEL(wrong_behind, wrong_args)
{
    a.to[threadIdx.x + a.count] = a.from[threadIdx.x];
}

TSI_KERNEL(wrong_far_behind, wrong_args)
{
    a.to[threadIdx.x] = a.from[threadIdx.x + a.count];
}

TSI_KERNEL(wrong_aligned, wrong_args)
{
    *(float4 *)(a.to + 1) = *(const float4 *)a.from;
}

TSI_KERNEL(wrong_behind_array, wrong_args)
{
    __shared__ float shared[256];
    for (int64_t i = 0; i < a.count; i++)
        shared[i] = a.from[0];
    a.to[0] = shared[0];
}

TSI_KERNEL(wrong_behind_room, wrong_args)
{
    TSI_BLOCK_MEMORY(float, room);
    room[a.count] = a.from[0];
    a.to[0] = room[0];
}

/* Reads what it fetched before it waits. */
TSI_KERNEL(wrong_no_wait, wrong_args)
{
    TSI_BLOCK_MEMORY(uint4, room);
    fetch(shared_at(room + threadIdx.x), a.from + 4 * threadIdx.x);
    fetch_end();
    ((uint4 *)a.to)[threadIdx.x] = room[threadIdx.x];
    fetch_wait();
}
