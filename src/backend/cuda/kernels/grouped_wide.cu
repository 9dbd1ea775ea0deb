/* SPDX-License-Identifier: Apache-2.0 */
/* grouped_wide.cu - grouped products of bf16 and f16 on the tensor cores of GPUs of 9.0, which read
 * both factors from shared memory while their warps go on (wgmma.cuh).
 *
 *   grouped_wide_*          tiles of 128 listed rows by 256 columns; matrices [outer, inner]
 *   grouped_wide_turned_*   the same of matrices that are contiguous along outer
 *   grouped_wide_sums_*     tiles of 128 by 256 of a group's matrix over its listed rows
 *
 * A block of eight warps, four for 64 rows of the tile each, goes along the inner dim (the group's
 * rows) 64 at a time. Four stages lie in shared memory:
 *
 *   step - 1: being multiplied   step: comes next   step + 1, step + 2: being fetched
 *
 * The memory of step + 2 was that of step - 2, whose products were waited for before the barrier of
 * this step. Of a stage the left factor comes first, 64 rows of the tile a block of 8 KiB; the
 * right one behind it.
 *
 * A tile takes 48 KiB for each step of 4 Mflop, which is what the second cache gives; blocks that
 * walk several tiles and fetch on into the next one were measured and gain nothing. */
#include "backend/cuda/kernels/grouped.cuh"
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/wgmma.cuh"

enum {
    ROWS = TSI_CUDA_GROUPED_WIDE_ROWS,
    COLUMNS = TSI_CUDA_GROUPED_WIDE_COLUMNS,
    DEEP = TSI_CUDA_GROUPED_WIDE_DEEP,
    STAGES = TSI_CUDA_GROUPED_WIDE_STAGES,
    THREADS = TSI_CUDA_GROUPED_WIDE_THREADS,
    AHEAD = STAGES - 2,     /* stages that are fetched before they are wanted */
    BLOCK = 64 * DEEP * 2,  /* bytes: 64 rows of 64, or 64 of 64 columns */
    LEFT = ROWS * DEEP * 2, /* bytes */
    STAGE = LEFT + COLUMNS * DEEP * 2
};
static_assert(DEEP == 64 && ROWS == THREADS / 128 * 64, "64 rows for four warps");

/* ---- stages ---------------------------------------------------------------------------------- */

/* WIDTH columns of 64 rows, 64 columns a block: to be multiplied across its rows. */
template <int WIDTH, typename At>
__device__ inline void fetch_turned(uint32_t to, const uint16_t *from, int64_t column,
                                    int64_t columns, At at)
{
#pragma unroll
    for (int block = 0; block < WIDTH / 64; block++)
        fetch_part<THREADS, DEEP, 64>(to + block * BLOCK, from, column + block * 64, columns, at);
}

template <typename H, bool LEFT_TURNED, bool RIGHT_TURNED>
__device__ inline void multiply_stage(wide_sums &sum, uint32_t stage)
{
    enum { ALONG = 16 * 2, ACROSS = 16 * 128 }; /* bytes to the next 16 of the inner dim */
    uint32_t left = stage + threadIdx.x / 128 * BLOCK, right = stage + LEFT;
    products_begin();
#pragma unroll
    for (int k = 0; k < DEEP / 16; k++)
        multiply_later<LEFT_TURNED, RIGHT_TURNED>(
            H(), sum, factor_at(left + k * (LEFT_TURNED ? ACROSS : ALONG), BLOCK),
            factor_at(right + k * (RIGHT_TURNED ? ACROSS : ALONG), BLOCK));
    products_end();
}

/* Rows of a tile to where at(row) says (NULL: nowhere); `left` columns of them are there. */
template <typename H, typename At>
__device__ inline void store(const wide_sums &sum, int64_t left, At at)
{
    int row = (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;
    store_row<H>(sum, 0, at(row), left);
    store_row<H>(sum, 1, at(row + 8), left);
}

/* All `steps` stages; fetch_stage(to, step) asks for one. */
template <typename H, bool LEFT_TURNED, bool RIGHT_TURNED, typename Fetch>
__device__ inline void multiply_stages(wide_sums &sum, uint32_t memory, int steps,
                                       Fetch fetch_stage)
{
    for (int step = 0; step < AHEAD; step++) {
        if (step < steps) fetch_stage(memory + step * STAGE, step);
        if (step < steps && step + 1 < AHEAD) __syncthreads();
        fetch_end();
    }
    for (int step = 0; step < steps; step++) {
        fetch_wait<AHEAD - 1>();
        show_products();
        __syncthreads();
        multiply_stage<H, LEFT_TURNED, RIGHT_TURNED>(sum, memory + step % STAGES * STAGE);
        products_wait<1>();
        int next = step + AHEAD;
        if (next < steps) fetch_stage(memory + next % STAGES * STAGE, next);
        fetch_end();
    }
    products_wait();
    fetch_wait();
}

/* ---- kernels --------------------------------------------------------------------------------- */

template <typename H, bool TURNED> __device__ void products(const tsi_cuda_grouped_args &a)
{
    __shared__ tile_rows<ROWS> at;
    int64_t across = (a.outer + COLUMNS - 1) / COLUMNS, column = blockIdx.x % across * COLUMNS;
    tsi_cuda_grouped_tile tile = a.tile[blockIdx.x / across];
    if (tile.group < 0) return;
    at.find(a, tile);
    TSI_BLOCK_MEMORY(__align__(1024) char, stages);
    uint32_t memory = shared_at(stages);
    const uint16_t *x = (const uint16_t *)a.x;
    const uint16_t *w = (const uint16_t *)a.w + tile.group * a.w_group;
    wide_sums sum = {};
    auto fetch_stage = [&](uint32_t to, int step) {
        int64_t deep = (int64_t)step * DEEP;
        fetch_part<THREADS, ROWS, DEEP>(to, x, deep, a.inner, [&](int r) { return at.x[r]; });
        if (TURNED)
            fetch_turned<COLUMNS>(to + LEFT, w, column, a.outer, [&](int r) {
                return deep + r < a.inner ? (deep + r) * a.w_inner : -1;
            });
        else
            fetch_part<THREADS, COLUMNS, DEEP>(to + LEFT, w, deep, a.inner, [&](int r) {
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
    sums_tile tile(a, ROWS, COLUMNS);
    row_walk<DEEP> walk(a, at, tile.group);
    const uint16_t *x = (const uint16_t *)a.x, *y = (const uint16_t *)a.y;
    TSI_BLOCK_MEMORY(__align__(1024) char, stages);
    uint32_t memory = shared_at(stages);
    wide_sums sum = {};
    auto fetch_stage = [&](uint32_t to, int step) {
        fetch_turned<ROWS>(to, y, tile.outer, a.outer, [&](int r) { return at.y[step % 2][r]; });
        fetch_turned<COLUMNS>(to + LEFT, x, tile.inner, a.inner,
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
    TSI_KERNEL_BOUNDED(grouped_wide_##name, tsi_cuda_grouped_args, THREADS, 1)                     \
    {                                                                                              \
        products<H, false>(a);                                                                     \
    }                                                                                              \
    TSI_KERNEL_BOUNDED(grouped_wide_turned_##name, tsi_cuda_grouped_args, THREADS, 1)              \
    {                                                                                              \
        products<H, true>(a);                                                                      \
    }                                                                                              \
    TSI_KERNEL_BOUNDED(grouped_wide_sums_##name, tsi_cuda_grouped_args, THREADS, 1)                \
    {                                                                                              \
        sums_of_rows<H>(a);                                                                        \
    }
GROUPED(bf16, of_bf16)
GROUPED(f16, of_f16)
