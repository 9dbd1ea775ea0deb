/* SPDX-License-Identifier: Apache-2.0 */
/* real.cuh - elements of f32, f64, bf16 and f16 as values, one by one and by 16 bytes, and sums and
 * extremes over a warp or a block. */
#ifndef TSI_BACKEND_CUDA_KERNELS_REAL_CUH
#define TSI_BACKEND_CUDA_KERNELS_REAL_CUH

#include "backend/cuda/kernels/args.h"
#include "backend/cuda/kernels/ptx.cuh"
#include "device/number.h"
#include "tessera/types.h"

/* E: in memory; R: in registers. */
struct as_f32 {
    typedef float E;
    typedef float R;
    __device__ static float load(float x)
    {
        return x;
    }
    __device__ static float store(float x)
    {
        return x;
    }
};
struct as_f64 {
    typedef double E;
    typedef double R;
    __device__ static double load(double x)
    {
        return x;
    }
    __device__ static double store(double x)
    {
        return x;
    }
};

struct as_bf16 {
    typedef uint16_t E;
    typedef float R;
    __device__ static float load(uint16_t x)
    {
        return tsi_f32_of_bf16(x);
    }
    __device__ static uint16_t store(float x)
    {
        return bf16_of(x);
    }
};
struct as_f16 {
    typedef uint16_t E;
    typedef float R;
    __device__ static float load(uint16_t x)
    {
        return f32_of_f16(x);
    }
    __device__ static uint16_t store(float x)
    {
        return f16_of(x);
    }
};

template <typename R> __device__ inline R load_real(int32_t dtype, const void *data, int64_t i)
{
    switch (dtype) {
    case TS_DTYPE_F64: return (R)((const double *)data)[i];
    case TS_DTYPE_BF16: return (R)tsi_f32_of_bf16(((const uint16_t *)data)[i]);
    case TS_DTYPE_F16: return (R)f32_of_f16(((const uint16_t *)data)[i]);
    default: return (R)((const float *)data)[i];
    }
}

template <typename R> __device__ inline void store_real(int32_t dtype, void *data, int64_t i, R x)
{
    switch (dtype) {
    case TS_DTYPE_F64: ((double *)data)[i] = (double)x; break;
    case TS_DTYPE_BF16: ((uint16_t *)data)[i] = bf16_of((float)x); break;
    case TS_DTYPE_F16: ((uint16_t *)data)[i] = f16_of((float)x); break;
    default: ((float *)data)[i] = (float)x; break;
    }
}

/* e to the power x. Of bf16 the short exponential is exact enough by far; below 2^-126 it is 0,
 * without the three steps that such numbers take. */
template <typename T> __device__ inline typename T::R power_of(typename T::R x)
{
    return exp(x);
}
template <> __device__ inline float power_of<as_bf16>(float x)
{
    return power_of_two(x * 1.4426950408889634f);
}

/* 16 bytes of elements. */
template <typename E> union unit_of {
    uint4 unit;
    E element[16 / sizeof(E)];
};

/* Rows are walked by units, or element by element where they do not lie on them. */
template <typename T, typename A> __device__ inline bool by_units(const A &a)
{
    constexpr int N = 16 / sizeof(typename T::E);
    uint64_t bits = (uint64_t)a.x | (uint64_t)a.y | (uint64_t)a.dy;
    int64_t steps = a.length | a.x_stride | a.y_stride | a.dy_stride;
    return steps % N == 0 && bits % 16 == 0;
}

template <typename T>
__device__ inline unit_of<typename T::E> load_unit(const typename T::E *from, bool units)
{
    unit_of<typename T::E> in;
    if (units)
        in.unit = *(const uint4 *)from;
    else
        in.element[0] = *from;
    return in;
}

template <typename T>
__device__ inline void store_unit(typename T::E *to, const unit_of<typename T::E> &out, bool units)
{
    if (units)
        *(uint4 *)to = out.unit;
    else
        *to = out.element[0];
}

/* The unit of N values. Pairs of bf16 are rounded in one instruction. */
template <typename T> __device__ inline uint4 unit_from(const typename T::R *value)
{
    unit_of<typename T::E> out;
#pragma unroll
    for (int e = 0; e < 16 / (int)sizeof(typename T::E); e++)
        out.element[e] = T::store(value[e]);
    return out.unit;
}
template <> __device__ inline uint4 unit_from<as_bf16>(const float *value)
{
    return make_uint4(bf16_pair_of(value[0], value[1]), bf16_pair_of(value[2], value[3]),
                      bf16_pair_of(value[4], value[5]), bf16_pair_of(value[6], value[7]));
}

/* ---- sums and extremes: one tree for every launch, lanes of a warp, then warps --------------- */

/* All lanes call it and get the result. */
template <typename R> __device__ inline R warp_sum(R x)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* What is no number is larger than all. */
template <typename R> __device__ inline R larger(R x, R y)
{
    return x != x || x > y ? x : y;
}
template <> __device__ inline float larger<float>(float x, float y)
{
    return max_of(x, y);
}

template <typename R> __device__ inline R warp_max(R x)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        x = larger(x, (R)__shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

/* A block is whole warps; all its threads call it and get the result; `shared` has 32 places. */
template <typename R> __device__ inline R block_sum(R x, R *shared)
{
    x = warp_sum(x);
    int warps = blockDim.x / 32;
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_sum(threadIdx.x % 32 < warps ? shared[threadIdx.x % 32] : R(0));
}

template <typename R> __device__ inline R block_max(R x, R *shared)
{
    x = warp_max(x);
    int warps = blockDim.x / 32;
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_max(shared[threadIdx.x % 32 < warps ? threadIdx.x % 32 : 0]);
}

/* Is this the last of `count` blocks that ask, one thread each? Behind what the block left, if it
 * met, and before what it reads of others; the ticket is zero again after the last. */
__device__ inline bool is_last(uint32_t *ticket, int64_t count)
{
    uint32_t most = (uint32_t)count - 1;
    return take_ticket(ticket, most) == most;
}

/* Column c of `rows` rows of `width`, for 32 columns and eight warps a block: a warp adds every
 * eighth row, the first one the warps in order and gets the sum. The rows of 264 blocks are all on
 * their way at once: for each further round a warp would wait as long again. */
template <typename R>
__device__ inline R column_sum(const R *from, int rows, int64_t width, int64_t c)
{
    constexpr int WARPS = 8, U = 33;
    __shared__ R shared[WARPS][32];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    R sum = 0;
    for (int r = warp; c < width && r < rows; r += WARPS * U) {
        R part[U];
#pragma unroll
        for (int u = 0; u < U; u++)
            part[u] = r + WARPS * u < rows ? from[(r + WARPS * u) * width + c] : R(0);
#pragma unroll
        for (int u = 0; u < U; u++)
            sum += part[u];
    }
    shared[warp][lane] = sum;
    __syncthreads();
    for (int w = 1; warp == 0 && w < WARPS; w++)
        sum += shared[w][lane];
    return sum;
}

#endif
