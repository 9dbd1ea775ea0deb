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
 * Results leave through shared memory, so that rows are written 16 bytes at a time.
 *
 * INV: rows lie on 16 bytes; a row may end anywhere. */
#include "backend/cuda/kernels/grouped.cuh"
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/mma.cuh"

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

/* ---- stages ---------------------------------------------------------------------------------- */

/* ROWS rows of COLUMNS elements from `column` on; rows end at `columns`. at(row): where it begins,
 * -1: there is none. */
template <int ROWS, int COLUMNS, typename At>
__device__ inline void fetch_part(uint32_t to, const uint16_t *from, int64_t column,
                                  int64_t columns, At at)
{
    constexpr int CHUNKS = COLUMNS / 8;
    int chunk = threadIdx.x % CHUNKS, first = threadIdx.x / CHUNKS;
    int64_t left = (columns - column - chunk * 8) * 2;
    int bytes = left < 0 ? 0 : left < 16 ? (int)left : 16;
#pragma unroll
    for (int i = 0; i < ROWS * CHUNKS / THREADS; i++) {
        int row = first + i * (THREADS / CHUNKS);
        int64_t begin = at(row);
        bool there = begin >= 0 && bytes > 0;
        fetch(chunk_at<COLUMNS>(to, row, chunk), from + (there ? begin + column + chunk * 8 : 0),
              there ? bytes : 0);
    }
}

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

/* All `steps` stages; fetch(to, step) asks for one, and may ask for none. */
template <typename H, bool LEFT_TURNED, bool RIGHT_TURNED, typename Fetch>
__device__ inline void multiply_stages(sums &sum, uint32_t memory, int steps, Fetch fetch_stage)
{
    factors f[2];
    for (int step = 0; step < AHEAD; step++) {
        if (step < steps) fetch_stage(memory + step * 2 * PART, step);
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

/* ---- results --------------------------------------------------------------------------------- */

template <typename H> __device__ inline void leave_in_shared(const sums &sum, char *shared)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int row = warp / 2 * WARP + lane / 4, column = warp % 2 * WARP + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < SIXTEENS; i++)
#pragma unroll
        for (int j = 0; j < 2 * SIXTEENS; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int r = row + i * 16 + half * 8, c = column + j * 8;
                uint32_t at = chunk_at<TILE>(0, r, c / 8) + c % 8 * 2;
                *(uint32_t *)(shared + at) = H::pair(sum[i][j][2 * half], sum[i][j][2 * half + 1]);
            }
    __syncthreads();
}

/* Rows of the tile to where at(row) says (-1: nowhere), from `column` up to `columns`. */
template <typename At>
__device__ inline void store_rows(const char *shared, uint16_t *to, int64_t column, int64_t columns,
                                  At at)
{
    constexpr int CHUNKS = TILE / 8;
    int chunk = threadIdx.x % CHUNKS;
    int64_t first = column + chunk * 8, left = columns - first;
    for (int row = threadIdx.x / CHUNKS; row < TILE; row += THREADS / CHUNKS) {
        int64_t begin = at(row);
        const uint16_t *from = (const uint16_t *)(shared + chunk_at<TILE>(0, row, chunk));
        if (begin < 0) continue;
        if (left >= 8)
            *(uint4 *)(to + begin + first) = *(const uint4 *)from;
        else
            for (int e = 0; e < left; e++)
                to[begin + first + e] = from[e];
    }
}

/* ---- kernels --------------------------------------------------------------------------------- */

extern __shared__ __align__(1024) char stages[];

template <typename H, bool TURNED> __device__ void products(const tsi_cuda_grouped_args &a)
{
    __shared__ int64_t x_at[TILE], y_at[TILE];
    int64_t across = (a.outer + TILE - 1) / TILE, column = blockIdx.x % across * TILE;
    tsi_cuda_grouped_tile tile = a.tile[blockIdx.x / across];
    if (tile.group < 0) return;
    static_assert(THREADS == TILE, "a thread finds the places of a row");
    bool there = (int)threadIdx.x < tile.rows;
    int32_t row = there ? a.order[tile.first + threadIdx.x] : 0;
    x_at[threadIdx.x] = there ? row_at(a.x_row, row) : -1;
    y_at[threadIdx.x] = there ? row_at(a.y_row, row) : -1;
    __syncthreads();

    uint32_t memory = (uint32_t)__cvta_generic_to_shared(stages);
    const uint16_t *x = (const uint16_t *)a.x;
    const uint16_t *w = (const uint16_t *)a.w + tile.group * a.w_group;
    sums sum = {};
    auto fetch_stage = [&](uint32_t to, int step) {
        int64_t deep = (int64_t)step * DEEP;
        fetch_part<TILE, DEEP>(to, x, deep, a.inner, [&](int r) { return x_at[r]; });
        if (TURNED)
            fetch_part<DEEP, TILE>(to + PART, w, column, a.outer, [&](int r) {
                return deep + r < a.inner ? (deep + r) * a.w_inner : -1;
            });
        else
            fetch_part<TILE, DEEP>(to + PART, w, deep, a.inner, [&](int r) {
                return column + r < a.outer ? (column + r) * a.w_outer : -1;
            });
    };
    multiply_stages<H, false, TURNED>(sum, memory, (int)((a.inner + DEEP - 1) / DEEP), fetch_stage);
    leave_in_shared<H>(sum, stages);
    store_rows(stages, (uint16_t *)a.y, column, a.outer, [&](int r) { return y_at[r]; });
}

/* Places of rows are found a stage before they are fetched, so that nobody waits for the list. */
template <typename H> __device__ void sums_of_rows(const tsi_cuda_grouped_args &a)
{
    __shared__ int64_t x_at[2][DEEP], y_at[2][DEEP];
    int64_t down = (a.outer + TILE - 1) / TILE, across = (a.inner + TILE - 1) / TILE;
    int64_t group = blockIdx.x / (down * across), o = blockIdx.x / across % down * TILE;
    int64_t c = blockIdx.x % across * TILE;
    int count = a.count[group];
    const int32_t *order = a.order + a.begin[group];
    const uint16_t *x = (const uint16_t *)a.x, *y = (const uint16_t *)a.y;
    uint32_t memory = (uint32_t)__cvta_generic_to_shared(stages);
    sums sum = {};
    auto find_rows = [&](int step) {
        int at = step * DEEP + (int)threadIdx.x;
        if (threadIdx.x >= DEEP) return;
        x_at[step % 2][threadIdx.x] = at < count ? row_at(a.x_row, order[at]) : -1;
        y_at[step % 2][threadIdx.x] = at < count ? row_at(a.y_row, order[at]) : -1;
    };
    find_rows(0);
    __syncthreads();
    auto fetch_stage = [&](uint32_t to, int step) {
        fetch_part<DEEP, TILE>(to, y, o, a.outer, [&](int r) { return y_at[step % 2][r]; });
        fetch_part<DEEP, TILE>(to + PART, x, c, a.inner, [&](int r) { return x_at[step % 2][r]; });
        find_rows(step + 1); /* read behind the next barrier */
        if (step + 1 < AHEAD) __syncthreads();
    };
    multiply_stages<H, true, true>(sum, memory, (count + DEEP - 1) / DEEP, fetch_stage);
    leave_in_shared<H>(sum, stages);
    store_rows(stages, (uint16_t *)a.w + group * a.w_group, c, a.inner,
               [&](int r) { return o + r < a.outer ? (o + r) * a.w_outer : -1; });
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
