/* SPDX-License-Identifier: Apache-2.0 */
/* attend_mma.cuh - what attention on the tensor cores (mma.cuh) is made of: rows of heads, tiles of
 * a mask's list as steps, and the two products. Heads have 64 or 128 columns; those behind the ones
 * there are are zeros. Rows are on 16 bytes, and so many. */
#ifndef TSI_BACKEND_CUDA_KERNELS_ATTEND_MMA_CUH
#define TSI_BACKEND_CUDA_KERNELS_ATTEND_MMA_CUH

#include "backend/cuda/kernels/attend.cuh"
#include "backend/cuda/kernels/mma.cuh"
#include "tessera/types.h"

enum { KEYS = TSI_CUDA_TILE_KEYS };
#define LOG2_E 1.4426950408889634f /* powers are of two, not of e */

/* ---- a block --------------------------------------------------------------------------------- */

/* Which 128 queries of one head a block has: the last of every head come first, since they see most
 * where attention is causal. */
struct queries_at {
    int64_t b, h, g, first; /* row, head and its group, first query */
    __device__ explicit queries_at(const tsi_cuda_attend_args &a)
    {
        constexpr int M = TSI_CUDA_TILE_QUERIES;
        int64_t pairs = a.batch * a.heads, tiles = (a.queries + M - 1) / M;
        int64_t bh = blockIdx.x % pairs;
        first = (tiles - 1 - blockIdx.x / pairs) * M;
        b = bh / a.heads, h = bh % a.heads, g = a.group_of[h];
    }
};

/* ---- rows in shared memory ------------------------------------------------------------------- */

__device__ inline const uint16_t *head_of(const tsi_cuda_heads &x, int64_t b, int64_t h)
{
    return (const uint16_t *)x.data + b * x.stride[0] + h * x.stride[1];
}

/* Rows first .. first + ROWS - 1 of a head, `width` columns of them; those from `end` on are zeros.
 */
template <int D, int ROWS, int THREADS>
__device__ inline void fetch_rows(uint32_t to, const uint16_t *from, int64_t stride, int64_t first,
                                  int64_t end, int64_t width)
{
    constexpr int CHUNKS = D / 8;
#pragma unroll
    for (int i = 0; i < ROWS * CHUNKS / THREADS; i++) {
        int at = i * THREADS + threadIdx.x, row = at / CHUNKS, chunk = at % CHUNKS;
        bool there = first + row < end && chunk * 8 < width;
        fetch(chunk_at<D>(to, row, chunk), from + (there ? (first + row) * stride + chunk * 8 : 0),
              there ? 16 : 0);
    }
}

/* ---- the tiles of a list --------------------------------------------------------------------- */

struct listed_steps { /* the tiles of runs */
    run_list runs;
    int32_t nth; /* of the first run */
    __device__ bool is_over() const
    {
        return runs.run == runs.end;
    }
    __device__ int32_t key() const
    {
        return (runs.run->first + nth) * KEYS;
    }
    __device__ void go_on()
    {
        if (++nth < runs.run->count) return;
        runs.run++;
        nth = 0;
    }
};

/* Of each of a thread's rows, which keys of a step are seen. `masked`: any row sees less than all.
 */
template <int MT> struct seen_bits {
    uint64_t word[MT][2];
    int64_t mine; /* the first of the rows */
    bool masked;
    __device__ seen_bits(const tsi_cuda_attend_args &, int64_t first, int64_t mine_) : mine(mine_)
    {
        (void)first;
    }
    __device__ void look(const tsi_cuda_attend_args &a, const listed_steps &steps)
    {
        int32_t left = (int32_t)a.keys - steps.key();
        masked = left < KEYS || steps.runs.run->bits >= 0;
        if (!masked) return;
        uint64_t there = left < KEYS ? ((uint64_t)1 << left) - 1 : ~(uint64_t)0;
#pragma unroll
        for (int m = 0; m < MT; m++) {
            word[m][0] = word_of(a.tiles, steps.runs.run, mine + m * 16) & there;
            word[m][1] = word_of(a.tiles, steps.runs.run, mine + m * 16 + 8) & there;
        }
    }
    __device__ bool hides(int m, int half, int column) const
    {
        return !(word[m][half] >> column & 1);
    }
};

/* Products of pairs that are hidden are -inf. */
template <int MT, typename S>
__device__ inline void hide(float (&s)[MT][KEYS / 8][4], const S &seen)
{
    if (!seen.masked) return;
    int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (seen.hides(m, e / 2, n * 8 + column + e % 2)) s[m][n][e] = -INFINITY;
}

/* ---- results --------------------------------------------------------------------------------- */

/* Two neighbours, of a result of 16 bits or of sums. */
template <typename H>
__device__ inline void store_two(const tsi_cuda_heads &x, int64_t at, float low, float high)
{
    if (x.dtype == TS_DTYPE_F32) {
        ((float *)x.data)[at] = low;
        ((float *)x.data)[at + 1] = high;
    } else {
        *(uint32_t *)((uint16_t *)x.data + at) = H::pair(low, high);
    }
}

/* ---- products -------------------------------------------------------------------------------- */

template <int MT, int N> __device__ inline void clear(float (&x)[MT][N][4])
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                x[m][n][e] = 0;
}

/* s = Q X': rows that a warp has in registers by the 64 rows of a tile. */
template <typename H, int D, int MT>
__device__ inline void products(float (&s)[MT][KEYS / 8][4], const uint32_t (&q)[MT][D / 16][4],
                                uint32_t tile)
{
    int lane = threadIdx.x % 32;
    clear(s);
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
            uint32_t b[4];
            load_four(b, chunk_at<D>(tile, n * 16 + (lane & 7) + (lane >> 4 << 3),
                                     k * 2 + (lane >> 3 & 1)));
#pragma unroll
            for (int m = 0; m < MT; m++) {
                H::multiply(s[m][2 * n], q[m][k], b[0], b[1]);
                H::multiply(s[m][2 * n + 1], q[m][k], b[2], b[3]);
            }
        }
}

/* The same of the warp's rows first .. first + 15 of shared memory. */
template <typename H, int D>
__device__ inline void products(float (&s)[1][KEYS / 8][4], uint32_t rows, int first, uint32_t tile)
{
    int lane = threadIdx.x % 32;
    clear(s);
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t a[4], b[4];
        load_four(a, chunk_at<D>(rows, first + (lane & 15), k * 2 + (lane >> 4)));
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
            load_four(b, chunk_at<D>(tile, n * 16 + (lane & 7) + (lane >> 4 << 3),
                                     k * 2 + (lane >> 3 & 1)));
            H::multiply(s[0][2 * n], a, b[0], b[1]);
            H::multiply(s[0][2 * n + 1], a, b[2], b[3]);
        }
    }
}

/* sum += S X: S, rounded, by the 64 rows of a tile. */
template <typename H, int D, int MT>
__device__ inline void add_products(float (&sum)[MT][D / 8][4], const float (&s)[MT][KEYS / 8][4],
                                    uint32_t tile)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        uint32_t p[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++) {
            p[m][0] = H::pair(s[m][2 * k][0], s[m][2 * k][1]);
            p[m][1] = H::pair(s[m][2 * k][2], s[m][2 * k][3]);
            p[m][2] = H::pair(s[m][2 * k + 1][0], s[m][2 * k + 1][1]);
            p[m][3] = H::pair(s[m][2 * k + 1][2], s[m][2 * k + 1][3]);
        }
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t b[4];
            load_four_turned(b, chunk_at<D>(tile, k * 16 + (lane & 15), n * 2 + (lane >> 4)));
#pragma unroll
            for (int m = 0; m < MT; m++) {
                H::multiply(sum[m][2 * n], p[m], b[0], b[1]);
                H::multiply(sum[m][2 * n + 1], p[m], b[2], b[3]);
            }
        }
    }
}

#endif
