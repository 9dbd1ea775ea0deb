/* SPDX-License-Identifier: Apache-2.0 */
/* kept.cuh - rows that stay in registers, C units of 16 bytes a thread, and rows on their way to
 * shared memory while the one before them is computed. */
#ifndef TSI_BACKEND_CUDA_KERNELS_KEPT_CUH
#define TSI_BACKEND_CUDA_KERNELS_KEPT_CUH

#include "backend/cuda/kernels/real.cuh"

/* A unit that is less than all: what lies behind the end of a row. */
template <typename T> __device__ inline uint4 least_unit()
{
    uint32_t bits = sizeof(typename T::E) == 2 ? 0xFF80FF80u : 0xFF800000u; /* bf16, f32 */
    return make_uint4(bits, bits, bits, bits);
}

/* The values of a unit. */
template <typename T>
__device__ inline void unpack(const uint4 &from, float (&v)[16 / sizeof(typename T::E)])
{
    unit_of<typename T::E> in;
    in.unit = from;
#pragma unroll
    for (int e = 0; e < 16 / (int)sizeof(typename T::E); e++)
        v[e] = T::load(in.element[e]);
}

/* The same once more, of a unit that was unpacked before: by other instructions, as the compiler
 * would otherwise keep the values of 32 bits, which do not fit the registers. */
template <typename T>
__device__ inline void unpack_again(const uint4 &from, float (&v)[16 / sizeof(typename T::E)])
{
    unpack<T>(from, v);
}
template <> __device__ inline void unpack_again<as_bf16>(const uint4 &from, float (&v)[8])
{
    const uint32_t word[4] = { from.x, from.y, from.z, from.w };
#pragma unroll
    for (int w = 0; w < 4; w++) {
        v[2 * w] = __uint_as_float(__byte_perm(word[w], 0, 0x1044));
        v[2 * w + 1] = __uint_as_float(__byte_perm(word[w], 0, 0x3244));
    }
}

/* A thread's part of a row. */
template <typename T, int C>
__device__ inline void values_of(const uint4 (&from)[C], float (&v)[C][16 / sizeof(typename T::E)])
{
#pragma unroll
    for (int k = 0; k < C; k++)
        unpack<T>(from[k], v[k]);
}

template <int C, int N> __device__ inline float largest_of(const float (&v)[C][N])
{
    float top = v[0][0];
#pragma unroll
    for (int k = 0; k < C; k++)
#pragma unroll
        for (int e = 0; e < N; e++)
            top = larger(top, v[k][e]);
    return top;
}

/* The same of units; pairs of bf16 in one instruction. */
template <typename T, int C> __device__ inline float largest_of_units(const uint4 (&from)[C])
{
    if constexpr (sizeof(typename T::E) == 4) {
        float v[C][4];
        values_of<T, C>(from, v);
        return largest_of(v);
    } else {
        uint32_t both = from[0].x;
#pragma unroll
        for (int k = 0; k < C; k++) {
            const uint32_t pair[4] = { from[k].x, from[k].y, from[k].z, from[k].w };
#pragma unroll
            for (int p = 0; p < 4; p++)
                both = max_of_pairs(both, pair[p]);
        }
        return larger(tsi_f32_of_bf16((uint16_t)both), tsi_f32_of_bf16((uint16_t)(both >> 16)));
    }
}

/* ---- rows on their way to shared memory, C units a thread, each for itself alone ------------- */

__device__ inline void fetch_unit(uint4 *shared, const uint4 *from)
{
    fetch(shared_at(shared), from);
}

/* `behind` is what a thread finds behind the end of a row. */
template <int C> __device__ inline void fetch_prepare(uint4 *fetched, int64_t units, uint4 behind)
{
#pragma unroll
    for (int k = 0; k < C; k++) {
        int64_t u = threadIdx.x + (int64_t)k * blockDim.x;
        if (u >= units) fetched[u] = behind;
    }
}

/* The block's next row. INV: the block has met since it read the one that lies there. */
template <int C> __device__ inline void fetch_row(uint4 *fetched, const void *row, int64_t units)
{
#pragma unroll
    for (int k = 0; k < C; k++) {
        uint32_t u = threadIdx.x + k * blockDim.x;
        if (u < units) fetch_unit(fetched + u, (const uint4 *)row + u);
    }
}

template <int C> __device__ inline void fetched_units(const uint4 *fetched, uint4 (&in)[C])
{
    fetch_wait_all();
#pragma unroll
    for (int k = 0; k < C; k++)
        in[k] = fetched[threadIdx.x + k * blockDim.x];
}

template <typename T, int C>
__device__ inline void fetched_row(const uint4 *fetched, float (&v)[C][16 / sizeof(typename T::E)])
{
    uint4 in[C];
    fetched_units(fetched, in);
    values_of<T, C>(in, v);
}

#endif
