/* SPDX-License-Identifier: Apache-2.0 */
/* grouped.cu - rows listed by their groups; rows times the matrix of their group, and the gradient
 * of the matrices.
 *
 *   grouped_count        a block a chunk of rows counts those of each group
 *   grouped_list         a block a chunk lists its rows behind those of the chunks before it, and
 *                        the first block says which tiles of the list there are
 *   grouped_*            tiles of 64 listed rows by 64 columns, 16 deep
 *   grouped_backward_*   tiles of 64 by 64 of a group's matrix over its listed rows
 *
 * bf16 and f16 on 16 bytes go by grouped_mma.cu.
 *
 * INV: lists are in the order of rows, so sums over them are, too. */
#include "backend/cuda/kernels/complain.cuh"
#include "backend/cuda/kernels/grouped.cuh"
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/number.cuh"
#include "backend/cuda/kernels/real.cuh"

enum {
    LISTERS = TSI_CUDA_GROUPED_LISTERS,
    WARPS = LISTERS / 32,
    TILE = TSI_CUDA_GROUPED_TILE,
    DEEP = 16,
    SIDE = 16,
    EACH = TILE / SIDE
};
static_assert(SIDE * SIDE == TSI_CUDA_GROUPED_THREADS, "a thread has EACH x EACH places");

/* ---- lists ----------------------------------------------------------------------------------- */

__device__ inline int64_t whole_at(const tsi_cuda_grouped_args &a, int64_t i)
{
    return load_wide(a.group_dtype, a.group, i * a.group_stride).whole;
}

/* The first group that ends behind a row, by halves. */
__device__ inline int64_t group_before_end(const tsi_cuda_grouped_args &a, int64_t row)
{
    int64_t low = 0, high = a.ends;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (whole_at(a, middle) <= row)
            low = middle + 1;
        else
            high = middle;
    }
    return low < a.ends ? low : -1;
}

/* The local group of a row; -1: another rank's, or nobody's. */
__device__ inline int group_of(const tsi_cuda_grouped_args &a, int64_t row)
{
    int64_t group =
        a.ends ? group_before_end(a, tsi_cuda_index_at(&a.row_place, row)) : whole_at(a, row);
    bool right = group >= 0 && (a.ends || group < a.asker.bound);
    return right ? (int)tsi_cuda_place_of(&a.place, group) : -1;
}

__device__ inline void check_row(const tsi_cuda_grouped_args &a, int64_t row)
{
    int64_t group = whole_at(a, row);
    if (group < 0 || group >= a.asker.bound) complain(a.asker, row, group);
}

__device__ inline void check_ends(const tsi_cuda_grouped_args &a)
{
    for (int64_t g = threadIdx.x; g < a.ends; g += LISTERS) {
        int64_t before = g > 0 ? whole_at(a, g - 1) : 0, end = whole_at(a, g);
        if (end < before || end > a.asker.bound) complain(a.asker, g, end, before);
    }
}

TSI_KERNEL_BOUNDED(grouped_count, tsi_cuda_grouped_args, LISTERS)
{
    int64_t first = blockIdx.x * a.chunk_rows, end = first + a.chunk_rows;
    int32_t *counted = a.counted + blockIdx.x * a.groups;
    for (int64_t g = threadIdx.x; g < a.groups; g += LISTERS)
        counted[g] = 0;
    if (blockIdx.x == 0) check_ends(a);
    __syncthreads();
    for (int64_t row = first + threadIdx.x; row < end && row < a.rows; row += LISTERS) {
        int group = group_of(a, row);
        if (!a.ends) check_row(a, row);
        if (group >= 0) atomicAdd(&counted[group], 1);
    }
}

/* The sums of x over the threads before this one and over all; `shared` has a place for each warp.
 */
__device__ inline int64_t sum_before(int64_t x, int64_t *shared, int64_t *all)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t sum = x;
    for (int step = 1; step < 32; step *= 2) {
        int64_t other = __shfl_up_sync(0xffffffffu, sum, step);
        if (lane >= step) sum += other;
    }
    __syncthreads();
    if (lane == 31) shared[warp] = sum;
    __syncthreads();
    sum -= x;
    *all = 0;
    for (int w = 0; w < WARPS; w++) {
        if (w < warp) sum += shared[w];
        *all += shared[w];
    }
    return sum;
}

/* A group's place in the list, and its tiles. */
__device__ inline void note_group(const tsi_cuda_grouped_args &a, int group, int begin, int count,
                                  int tile)
{
    a.begin[group] = begin;
    a.count[group] = count;
    for (int at = 0; at < count; at += a.tile_rows)
        a.tile[tile++] = { group, begin + at, count - at < a.tile_rows ? count - at : a.tile_rows,
                           0 };
}

/* Where the chunk's rows of each group begin in the list. Rows and tiles are counted in one sum. */
__device__ inline void find_places(const tsi_cuda_grouped_args &a)
{
    __shared__ int64_t shared[WARPS];
    int64_t base = 0;
    for (int64_t first = 0; first < a.groups; first += LISTERS) {
        int64_t group = first + threadIdx.x, all;
        int before = 0, count = 0;
        for (int64_t c = 0; group < a.groups && c < a.chunks; c++) {
            int rows = a.counted[c * a.groups + group];
            count += rows;
            if (c < blockIdx.x) before += rows;
        }
        int64_t tiles = (count + a.tile_rows - 1) / a.tile_rows;
        int64_t at = base + sum_before(tiles << 32 | count, shared, &all);
        base += all;
        if (group >= a.groups) continue;
        int begin = (int)(at & 0x7fffffff);
        a.next[blockIdx.x * a.groups + group] = begin + before;
        if (blockIdx.x == 0) note_group(a, (int)group, begin, count, (int)(at >> 32));
    }
    for (int64_t t = (base >> 32) + threadIdx.x; blockIdx.x == 0 && t < a.tiles; t += LISTERS)
        a.tile[t].group = -1;
}

/* Warp by warp, so that rows of a group keep their order. */
TSI_KERNEL_BOUNDED(grouped_list, tsi_cuda_grouped_args, LISTERS)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t begin = blockIdx.x * a.chunk_rows, end = begin + a.chunk_rows;
    int32_t *next = a.next + blockIdx.x * a.groups;
    find_places(a);
    for (int64_t first = begin; first < end; first += LISTERS) {
        int64_t row = first + threadIdx.x;
        int group = row < a.rows && row < end ? group_of(a, row) : -1;
        unsigned same = __match_any_sync(0xffffffffu, group);
        unsigned before = same & ((1u << lane) - 1);
        for (int turn = 0; turn < WARPS; turn++) {
            __syncthreads();
            if (turn != warp) continue;
            int place = group >= 0 ? next[group] : 0;
            __syncwarp();
            if (group < 0) continue;
            a.order[place + __popc(before)] = (int32_t)row;
            if (before == 0) next[group] = place + __popc(same);
        }
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* sum[i][j] += a[i][l] b[l][j] of tiles in shared memory, for this thread's places. */
template <typename R>
__device__ inline void multiply(R (&sum)[EACH][EACH], const R (*a)[TILE + 1],
                                const R (*b)[TILE + 1])
{
    int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
#pragma unroll
    for (int l = 0; l < DEEP; l++) {
        R x[EACH], y[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++)
            x[i] = a[l][ty + i * SIDE], y[i] = b[l][tx + i * SIDE];
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int j = 0; j < EACH; j++)
                sum[i][j] += x[i] * y[j];
    }
}

template <typename R> __device__ void grouped(const tsi_cuda_grouped_args &a)
{
    __shared__ R x[DEEP][TILE + 1], w[DEEP][TILE + 1];
    __shared__ int64_t x_at[TILE], y_at[TILE];
    int64_t across = (a.outer + TILE - 1) / TILE, column = blockIdx.x % across * TILE;
    tsi_cuda_grouped_tile tile = a.tile[blockIdx.x / across];
    if (tile.group < 0) return;
    if ((int)threadIdx.x < tile.rows) {
        int32_t row = a.order[tile.first + threadIdx.x];
        x_at[threadIdx.x] = row_at(a.x_row, row);
        y_at[threadIdx.x] = row_at(a.y_row, row);
    }
    R sum[EACH][EACH] = {};
    for (int64_t deep = 0; deep < a.inner; deep += DEEP) {
        __syncthreads();
        for (int i = threadIdx.x; i < DEEP * TILE; i += SIDE * SIDE) {
            int l = i % DEEP, r = i / DEEP;
            bool inside = deep + l < a.inner;
            x[l][r] =
                inside && r < tile.rows ? load_real<R>(a.dtype, a.x, x_at[r] + deep + l) : R(0);
            w[l][r] = inside && column + r < a.outer
                          ? load_real<R>(a.dtype, a.w,
                                         tile.group * a.w_group + (column + r) * a.w_outer +
                                             (deep + l) * a.w_inner)
                          : R(0);
        }
        __syncthreads();
        multiply<R>(sum, x, w);
    }
    int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            int r = ty + i * SIDE;
            int64_t c = column + tx + j * SIDE;
            if (r < tile.rows && c < a.outer) store_real<R>(a.dtype, a.y, y_at[r] + c, sum[i][j]);
        }
}

template <typename R> __device__ void grouped_backward(const tsi_cuda_grouped_args &a)
{
    __shared__ R y[DEEP][TILE + 1], x[DEEP][TILE + 1];
    int64_t down = (a.outer + TILE - 1) / TILE, across = (a.inner + TILE - 1) / TILE;
    int64_t group = blockIdx.x / (down * across), o = blockIdx.x / across % down * TILE;
    int64_t c = blockIdx.x % across * TILE;
    int count = a.count[group];
    const int32_t *row = a.order + a.begin[group];
    R sum[EACH][EACH] = {};
    for (int deep = 0; deep < count; deep += DEEP) {
        __syncthreads();
        for (int i = threadIdx.x; i < DEEP * TILE; i += SIDE * SIDE) {
            int l = i / TILE, r = i % TILE;
            bool inside = deep + l < count;
            y[l][r] = inside && o + r < a.outer
                          ? load_real<R>(a.dtype, a.y, row_at(a.y_row, row[deep + l]) + o + r)
                          : R(0);
            x[l][r] = inside && c + r < a.inner
                          ? load_real<R>(a.dtype, a.x, row_at(a.x_row, row[deep + l]) + c + r)
                          : R(0);
        }
        __syncthreads();
        multiply<R>(sum, y, x);
    }
    int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            int64_t f = o + ty + i * SIDE, k = c + tx + j * SIDE;
            if (f < a.outer && k < a.inner)
                store_real<R>(a.dtype, a.w, group * a.w_group + f * a.w_outer + k * a.w_inner,
                              sum[i][j]);
        }
}

#define GROUPED(name, real)                                                                        \
    TSI_KERNEL_BOUNDED(grouped_##name, tsi_cuda_grouped_args, SIDE *SIDE)                          \
    {                                                                                              \
        grouped<real>(a);                                                                          \
    }                                                                                              \
    TSI_KERNEL_BOUNDED(grouped_backward_##name, tsi_cuda_grouped_args, SIDE *SIDE)                 \
    {                                                                                              \
        grouped_backward<real>(a);                                                                 \
    }
GROUPED(f32, float)
GROUPED(f64, double)
