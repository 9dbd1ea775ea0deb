/* SPDX-License-Identifier: Apache-2.0 */
/* grouped_mma.cu - grouped products of bf16 and f16 on the tensor cores, sums in f32.
 *
 *   grouped_mma_*          tiles of 128 listed rows by 128 columns; matrices [outer, inner]
 *   grouped_mma_turned_*   the same of matrices that are contiguous along outer
 *   grouped_mma_sums_*     tiles of 128 by 128 of a group's matrix over its listed rows
 *
 * A block of four warps, each with 64 by 64 of the tile in registers, goes along the inner dim (the
 * group's rows) 64 at a time. Three stages lie in shared memory: one is multiplied while the next
 * two are fetched. A part of a stage is rows of 64 elements that are multiplied along them, or 64
 * rows of 128 that are multiplied across and turned on their way to registers.
 *
 *   stage:  left part (rows of y)  |  right part (columns of y)
 *
 * Results leave through shared memory, so that rows are written 16 bytes at a time. GPUs of 9.0
 * have wider tiles (grouped_wide.cu). */
#include "backend/cuda/kernels/grouped.cuh"
#include "backend/cuda/kernels/kernel.cuh"

enum {
    TILE = TSI_CUDA_GROUPED_MMA_TILE,
    DEEP = TSI_CUDA_GROUPED_MMA_DEEP,
    STAGES = TSI_CUDA_GROUPED_MMA_STAGES,
    THREADS = TSI_CUDA_GROUPED_MMA_THREADS,
    WARP = TILE / 2,        /* rows, and columns, of a warp */
    SIXTEENS = WARP / 16,   /* pieces of 16 of them */
    PART = TILE * DEEP * 2, /* bytes */
    AHEAD = STAGES - 1      /* stages that are fetched before they are wanted */
};

/* What a warp multiplies at a time: 64 by 16 and 16 by 64. */
struct factors {
    uint32_t left[SIXTEENS][4], right[SIXTEENS][4];
};

/* The k-th 16 of a stage. */
template <bool LEFT_TURNED, bool RIGHT_TURNED>
__device__ inline void load_factors(factors &f, uint32_t stage, int k)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int row = warp / 2 * WARP, column = warp % 2 * WARP;
    int low = lane & 15, high = lane >> 4, eight = (lane & 7) + (lane >> 4 << 3);
    int odd = lane >> 3 & 1;
#pragma unroll
    for (int i = 0; i < SIXTEENS; i++) {
        if (LEFT_TURNED)
            load_four_turned(f.left[i],
                             chunk_at<TILE>(stage, k * 16 + eight, row / 8 + i * 2 + odd));
        else
            load_four(f.left[i], chunk_at<DEEP>(stage, row + i * 16 + low, k * 2 + high));
        if (RIGHT_TURNED)
            load_four_turned(f.right[i],
                             chunk_at<TILE>(stage + PART, k * 16 + low, column / 8 + i * 2 + high));
        else
            load_four(f.right[i],
                      chunk_at<DEEP>(stage + PART, column + i * 16 + eight, k * 2 + odd));
    }
}

typedef float sums[SIXTEENS][2 * SIXTEENS][4];

template <typename H> __device__ inline void multiply(sums &sum, const factors &f)
{
#pragma unroll
    for (int i = 0; i < SIXTEENS; i++)
#pragma unroll
        for (int j = 0; j < SIXTEENS; j++) {
            H::multiply(sum[i][2 * j], f.left[i], f.right[j][0], f.right[j][1]);
            H::multiply(sum[i][2 * j + 1], f.left[i], f.right[j][2], f.right[j][3]);
        }
}

/* All `steps` stages; fetch_stage(to, step) asks for one. */
template <typename H, bool LEFT_TURNED, bool RIGHT_TURNED, typename Fetch>
__device__ inline void multiply_stages(sums &sum, uint32_t memory, int steps, Fetch fetch_stage)
{
    factors f[2];
    for (int step = 0; step < AHEAD; step++) {
        if (step < steps) fetch_stage(memory + step * 2 * PART, step);
        if (step < steps && step + 1 < AHEAD) __syncthreads();
        fetch_end();
    }
    for (int step = 0; step < steps; step++) {
        uint32_t stage = memory + step % STAGES * 2 * PART;
        fetch_wait<AHEAD - 1>();
        __syncthreads();
        load_factors<LEFT_TURNED, RIGHT_TURNED>(f[0], stage, 0);
        int next = step + AHEAD;
        if (next < steps) fetch_stage(memory + next % STAGES * 2 * PART, next);
        fetch_end();
#pragma unroll
        for (int k = 0; k < DEEP / 16; k++) {
            if (k + 1 < DEEP / 16)
                load_factors<LEFT_TURNED, RIGHT_TURNED>(f[(k + 1) % 2], stage, k + 1);
            multiply<H>(sum, f[k % 2]);
        }
    }
    fetch_wait();
    __syncthreads();
}

/* Rows of the tile to where at(row) says (NULL: nowhere); `left` columns of them are there. */
template <typename H, typename At>
__device__ inline void store(const sums &sum, int64_t left, At at)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = warp % 2 * WARP;
#pragma unroll
    for (int i = 0; i < SIXTEENS; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint16_t *row = at(warp / 2 * WARP + i * 16 + half * 8 + lane / 4);
            store_row<H>(sum[i], half, row ? row + column : NULL, left - column);
        }
}

/* ---- kernels --------------------------------------------------------------------------------- */

template <typename H, bool TURNED> __device__ void products(const tsi_cuda_grouped_args &a)
{
    __shared__ tile_rows<TILE> at;
    int64_t across = (a.outer + TILE - 1) / TILE, column = blockIdx.x % across * TILE;
    tsi_cuda_grouped_tile tile = a.tile[blockIdx.x / across];
    if (tile.group < 0) return;
    at.find(a, tile);
    TSI_BLOCK_MEMORY(__align__(1024) char, stages);
    uint32_t memory = shared_at(stages);
    const uint16_t *x = (const uint16_t *)a.x;
    const uint16_t *w = (const uint16_t *)a.w + tile.group * a.w_group;
    sums sum = {};
    auto fetch_stage = [&](uint32_t to, int step) {
        int64_t deep = (int64_t)step * DEEP;
        fetch_part<THREADS, TILE, DEEP>(to, x, deep, a.inner, [&](int r) { return at.x[r]; });
        if (TURNED)
            fetch_part<THREADS, DEEP, TILE>(to + PART, w, column, a.outer, [&](int r) {
                return deep + r < a.inner ? (deep + r) * a.w_inner : -1;
            });
        else
            fetch_part<THREADS, TILE, DEEP>(to + PART, w, deep, a.inner, [&](int r) {
                return column + r < a.outer ? (column + r) * a.w_outer : -1;
            });
    };
    multiply_stages<H, false, TURNED>(sum, memory, (int)((a.inner + DEEP - 1) / DEEP), fetch_stage);
    uint16_t *y = (uint16_t *)a.y + column;
    store<H>(sum, a.outer - column, [&](int r) { return at.y[r] < 0 ? NULL : y + at.y[r]; });
}

template <typename H> __device__ void sums_of_rows(const tsi_cuda_grouped_args &a)
{
    __shared__ row_places<DEEP> at;
    sums_tile tile(a, TILE, TILE);
    row_walk<DEEP> walk(a, at, tile.group);
    const uint16_t *x = (const uint16_t *)a.x, *y = (const uint16_t *)a.y;
    TSI_BLOCK_MEMORY(__align__(1024) char, stages);
    uint32_t memory = shared_at(stages);
    sums sum = {};
    auto fetch_stage = [&](uint32_t to, int step) {
        fetch_part<THREADS, DEEP, TILE>(to, y, tile.outer, a.outer,
                                        [&](int r) { return at.y[step % 2][r]; });
        fetch_part<THREADS, DEEP, TILE>(to + PART, x, tile.inner, a.inner,
                                        [&](int r) { return at.x[step % 2][r]; });
        walk.find(step + 1);
    };
    multiply_stages<H, true, true>(sum, memory, walk.steps(), fetch_stage);
    uint16_t *w = (uint16_t *)a.w + tile.group * a.w_group + tile.inner;
    store<H>(sum, a.inner - tile.inner, [&](int r) {
        return tile.outer + r < a.outer ? w + (tile.outer + r) * a.w_outer : NULL;
    });
}

#define GROUPED(name, H)                                                                           \
    TSI_KERNEL_BOUNDED(grouped_mma_##name, tsi_cuda_grouped_args, THREADS, 2)                      \
    {                                                                                              \
        products<H, false>(a);                                                                     \
    }                                                                                              \
    TSI_KERNEL_BOUNDED(grouped_mma_turned_##name, tsi_cuda_grouped_args, THREADS, 2)               \
    {                                                                                              \
        products<H, true>(a);                                                                      \
    }                                                                                              \
    TSI_KERNEL_BOUNDED(grouped_mma_sums_##name, tsi_cuda_grouped_args, THREADS, 2)                 \
    {                                                                                              \
        sums_of_rows<H>(a);                                                                        \
    }
GROUPED(bf16, of_bf16)
GROUPED(f16, of_f16)
