/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_words.h - CUDA C for the host's C++ compiler: what the kernels of the cuda module use of it,
 * included before the first line of each.
 *
 * A thread of a block is a fiber (run.h). Variables in shared memory are static ones of the library
 * of kernels: one block runs at a time, so its threads share them, and there is nothing else among
 * the library's variables that are not constant (kernels.cpp).
 *
 * INV: what kernels may not rely on, they do not find: threads run in orders that change (run.cpp),
 * and shared memory has noise in it when a kernel begins. */
#ifndef TESTS_GPU_SIMULATED_CUDA_WORDS_H
#define TESTS_GPU_SIMULATED_CUDA_WORDS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "run.h"

#define __CUDACC__ /* headers that both sides share ask for it */
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __trap() __builtin_trap()

/* ---- vectors --------------------------------------------------------------------------------- */

struct __align__(16) uint4
{
    unsigned x, y, z, w;
};
struct __align__(8) uint2
{
    unsigned x, y;
};
struct __align__(16) float4
{
    float x, y, z, w;
};
struct __align__(8) float2
{
    float x, y;
};
struct __align__(16) double2
{
    double x, y;
};
struct __align__(8) ushort4
{
    unsigned short x, y, z, w;
};

inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return { x, y, z, w };
}
inline uint2 make_uint2(unsigned x, unsigned y)
{
    return { x, y };
}
inline float4 make_float4(float x, float y, float z, float w)
{
    return { x, y, z, w };
}
inline float2 make_float2(float x, float y)
{
    return { x, y };
}

/* ---- where a thread is, and what it waits for ------------------------------------------------ */

#define threadIdx simulated_thread
#define blockIdx simulated_block
#define blockDim simulated_block_size
#define gridDim simulated_grid_size

inline void __syncthreads()
{
    (void)simulated_meet(0);
}
inline int __syncthreads_or(int any)
{
    return simulated_meet(any);
}
inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    (void)simulated_exchange(mask, nullptr, 0);
}
inline void __threadfence()
{
}

/* ---- lanes of a warp ------------------------------------------------------------------------- */

inline unsigned simulated_lane()
{
    return threadIdx.x % 32;
}
/* What lane `from` gave; its own where that is none of the warp. */
template <typename T> T simulated_from(unsigned mask, T mine, unsigned from)
{
    const simulated_slot *slot = simulated_exchange(mask, &mine, sizeof mine);
    if (from < 32 && (mask >> from & 1)) memcpy(&mine, slot[from].byte, sizeof mine);
    return mine;
}
template <typename T> T __shfl_xor_sync(unsigned mask, T x, int bits)
{
    return simulated_from(mask, x, simulated_lane() ^ (unsigned)bits);
}
template <typename T> T __shfl_up_sync(unsigned mask, T x, unsigned by)
{
    return simulated_from(mask, x, simulated_lane() - by);
}
template <typename T> T __shfl_down_sync(unsigned mask, T x, unsigned by)
{
    return simulated_from(mask, x, simulated_lane() + by);
}
template <typename T> T __shfl_sync(unsigned mask, T x, int from)
{
    return simulated_from(mask, x, (unsigned)from % 32);
}
inline int __all_sync(unsigned mask, int x)
{
    const simulated_slot *slot = simulated_exchange(mask, &x, sizeof x);
    for (unsigned lane = 0; lane < 32; lane++) {
        int said = 1;
        if (mask >> lane & 1) memcpy(&said, slot[lane].byte, sizeof said);
        if (!said) return 0;
    }
    return 1;
}
template <typename T> unsigned __match_any_sync(unsigned mask, T x)
{
    const simulated_slot *slot = simulated_exchange(mask, &x, sizeof x);
    unsigned same = 0;
    for (unsigned lane = 0; lane < 32; lane++)
        if ((mask >> lane & 1) && memcmp(slot[lane].byte, &x, sizeof x) == 0) same |= 1u << lane;
    return same;
}

/* ---- memory ---------------------------------------------------------------------------------- */

template <typename T> T __ldcs(const T *from)
{
    return *from;
}
template <typename T> T __ldcg(const T *from)
{
    return *from;
}
template <typename T> void __stcs(T *to, T x)
{
    *to = x;
}
template <typename T> void __stwb(T *to, T x)
{
    *to = x;
}

/* A fiber is not interrupted, so these are ordinary. */
template <typename T> T atomicExch(T *at, T x)
{
    T before = *at;
    *at = x;
    return before;
}
template <typename T> T atomicAdd(T *at, T x)
{
    return atomicExch(at, (T)(*at + x));
}
template <typename T> T atomicSub(T *at, T x)
{
    return atomicExch(at, (T)(*at - x));
}
template <typename T> T atomicOr(T *at, T x)
{
    return atomicExch(at, (T)(*at | x));
}
template <typename T> T atomicMax(T *at, T x)
{
    return atomicExch(at, *at < x ? x : *at);
}
template <typename T> T atomicMin(T *at, T x)
{
    return atomicExch(at, x < *at ? x : *at);
}
template <typename T> T atomicCAS(T *at, T expected, T x)
{
    return atomicExch(at, *at == expected ? x : *at);
}

/* ---- numbers --------------------------------------------------------------------------------- */

inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
inline unsigned __umulhi(unsigned x, unsigned y)
{
    return (unsigned)((uint64_t)x * y >> 32);
}
inline uint64_t __umul64hi(uint64_t x, uint64_t y)
{
    return (uint64_t)((unsigned __int128)x * y >> 64);
}
inline float __uint_as_float(unsigned x)
{
    float y;
    memcpy(&y, &x, sizeof y);
    return y;
}
inline unsigned __float_as_uint(float x)
{
    unsigned y;
    memcpy(&y, &x, sizeof y);
    return y;
}
/* Byte i of the result is that of (y, x) which digit i of `which` names. */
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned which)
{
    uint64_t both = (uint64_t)y << 32 | x;
    unsigned out = 0;
    for (int i = 0; i < 4; i++)
        out |= (unsigned)(both >> (which >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return out;
}
inline float __fdividef(float x, float y)
{
    return x / y;
}
inline float __expf(float x)
{
    return expf(x);
}
/* By Newton's steps from a formula of S. Winitzki's, which is right to a few thousandths. */
inline double erfinv(double x)
{
    double l = log1p(-x * x), h = 4.3307467508 + l / 2; /* 2 / (pi 0.147) */
    double y = copysign(sqrt(sqrt(h * h - l / 0.147) - h), x);
    if (!(fabs(x) < 1)) return fabs(x) == 1 ? x * (double)INFINITY : (double)NAN;
    for (int i = 0; i < 4 && y != 0; i++) {
        double off = x > 0 ? erfc(y) - (1 - x) : (1 + x) - erfc(-y);
        y += off * 0.88622692545275801 * exp(y * y);
    }
    return y;
}
inline float erfinv(float x)
{
    return (float)erfinv((double)x);
}

#endif
