/* SPDX-License-Identifier: Apache-2.0 */
/* ptx.cuh - the instructions that kernels use and CUDA has no function for, one function each.
 *
 * INV: PTX stands here and in wgmma.cuh alone (scripts/check-source looks), so that the simulated
 * GPU of the tests, which is the host's compiler, has all of it by functions of the same names
 * (tests/gpu/simulated). */
#ifndef TSI_BACKEND_CUDA_KERNELS_PTX_CUH
#define TSI_BACKEND_CUDA_KERNELS_PTX_CUH

#include <stdint.h>

/* ---- numbers --------------------------------------------------------------------------------- */

/* Rounded to nearest even, in one instruction. */
__device__ inline uint16_t bf16_of(float x)
{
    uint16_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
__device__ inline uint32_t bf16_pair_of(float low, float high)
{
    uint32_t bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}
__device__ inline uint16_t f16_of(float x)
{
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
__device__ inline float f32_of_f16(uint16_t bits)
{
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
__device__ inline uint32_t f16_pair_of(float low, float high)
{
    uint32_t bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

/* 2 to the power x, short: right in 22 bits; numbers below 2^-126 are 0. */
__device__ inline float power_of_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Extremes where what is no number is more, or less, than all; of two bf16 each at a time. */
__device__ inline float max_of(float x, float y)
{
    float most;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(x), "f"(y));
    return most;
}
__device__ inline float min_of(float x, float y)
{
    float least;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(x), "f"(y));
    return least;
}
__device__ inline uint32_t max_of_pairs(uint32_t x, uint32_t y)
{
    asm("max.NaN.bf16x2 %0, %0, %1;" : "+r"(x) : "r"(y));
    return x;
}
__device__ inline uint32_t min_of_pairs(uint32_t x, uint32_t y)
{
    asm("min.NaN.bf16x2 %0, %0, %1;" : "+r"(x) : "r"(y));
    return x;
}

/* ---- what other blocks and kernels see ------------------------------------------------------- */

/* The ticket before; the next one is one more, or 0 behind `most`. Behind what this thread has
 * written and before what it reads from here on. */
__device__ inline uint32_t take_ticket(uint32_t *ticket, uint32_t most)
{
    uint32_t before;
    asm volatile("atom.inc.acq_rel.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(ticket), "r"(most)
                 : "memory");
    return before;
}

/* The kernel behind this one may begin; nothing that the kernel ahead wrote is seen before the wait
 * (kernel.cuh). GPUs from 9.0 on. */
__device__ __forceinline__ void let_next_begin()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void wait_for_ahead()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* ---- fetches to shared memory that go on while threads compute ------------------------------- */

__device__ inline uint32_t shared_at(const void *shared)
{
    return (uint32_t)__cvta_generic_to_shared(shared);
}

/* 16 bytes, later. */
__device__ inline void fetch(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
/* The first `bytes` of them from memory, the others zeros. */
__device__ inline void fetch(uint32_t to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}

/* 8 bytes, likewise. */
__device__ inline void fetch_8(uint32_t to, const void *from, int bytes)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(bytes));
}

__device__ inline void fetch_end()
{
    asm volatile("cp.async.commit_group;");
}

/* Until all fetches of this thread but those of the last `LATER` ends are there. */
template <int LATER = 0> __device__ inline void fetch_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
}
/* All of them, ended or not. */
__device__ inline void fetch_wait_all()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* ---- products of a warp ---------------------------------------------------------------------- */

/* Four matrices of 8 by 8 from shared memory, a row of 16 bytes a lane: rows of matrix lane / 8. A
 * thread gets of each two neighbours, in row lane / 4 from column lane % 4 * 2 on; turned: of the
 * transposes. */
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

/* c += a b: 16 by 16 and 16 by 8, sums in f32. */
__device__ inline void multiply_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                     uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void multiply_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
