/* SPDX-License-Identifier: Apache-2.0 */
/* mma.cuh - products on the tensor cores from sm_80 on: the instructions, fetches that go on while
 * threads compute, and rows in shared memory.
 *
 * Rows of shared memory are turned by their number, 16 bytes at a time, so that eight rows of one
 * column are eight banks.
 *
 * A warp's product of 16 rows and 8 columns lies in its threads as the instruction leaves it: a
 * thread has columns lane % 4 * 2 and the next one of rows lane / 4 (elements 0, 1) and lane / 4 +
 * 8 (2, 3). */
#ifndef TSI_BACKEND_CUDA_KERNELS_MMA_CUH
#define TSI_BACKEND_CUDA_KERNELS_MMA_CUH

#include <stdint.h>

/* ---- instructions ---------------------------------------------------------------------------- */

struct of_bf16 {
    __device__ static void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
    {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                     "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
    __device__ static uint32_t pair(float low, float high)
    {
        uint32_t both;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
        return both;
    }
};

struct of_f16 {
    __device__ static void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
    {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
                     "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
    __device__ static uint32_t pair(float low, float high)
    {
        uint32_t both;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
        return both;
    }
};

__device__ inline void load_four(uint32_t (&to)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from));
}

__device__ inline void load_four_turned(uint32_t (&to)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from));
}

/* 16 bytes to shared memory, later: the first `bytes` from memory, the others zeros. */
__device__ inline void fetch(uint32_t to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}

__device__ inline void fetch_end()
{
    asm volatile("cp.async.commit_group;");
}

/* Until all fetches but those of the last `LATER` ends are there. */
template <int LATER = 0> __device__ inline void fetch_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
}

/* ---- rows in shared memory ------------------------------------------------------------------- */

template <int D> __device__ inline uint32_t chunk_at(uint32_t base, int row, int chunk)
{
    return base + (uint32_t)(row * D + ((chunk ^ (row & 7)) * 8)) * 2;
}

#endif
