/* SPDX-License-Identifier: Apache-2.0 */
/* grouped.cu - rows times the matrix of their group, and the gradient of the matrices.
 *
 *   grouped_count, grouped_list   a block a group lists its rows in order
 *   grouped_*                     tiles of 64 listed rows by 64 columns, 16 deep
 *   grouped_backward_*            tiles of 64 by 64 of a group's matrix over its listed rows
 *
 * INV: lists are in the order of rows, so sums over them are, too. */
#include "backend/cuda/kernels/complain.cuh"
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/number.cuh"
#include "backend/cuda/kernels/real.cuh"

enum { TILE = 64, DEEP = 16, SIDE = 16, EACH = TILE / SIDE };

/* ---- lists ----------------------------------------------------------------------------------- */

/* The local group of a row; -1: another rank's, or nobody's. */
__device__ inline int64_t group_of(const tsi_cuda_grouped_args &a, int64_t row)
{
    int64_t group = load_wide(a.group_dtype, a.group, row * a.group_stride).whole;
    if (group >= 0 && group < a.asker.bound) return tsi_cuda_place_of(&a.place, group);
    complain(a.asker, row, group);
    return -1;
}

TSI_KERNEL(grouped_count, tsi_cuda_grouped_args)
{
    __shared__ int shared[32];
    int count = 0;
    for (int64_t row = threadIdx.x; row < a.rows; row += blockDim.x)
        count += group_of(a, row) == blockIdx.x;
    count = block_sum(count, shared);
    if (threadIdx.x == 0) a.count[blockIdx.x] = count;
}

TSI_KERNEL(grouped_list, tsi_cuda_grouped_args)
{
    __shared__ int before[32];
    int at = 0, lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (int g = 0; g < (int)blockIdx.x; g++)
        at += a.count[g];
    if (threadIdx.x == 0) a.begin[blockIdx.x] = at;
    for (int64_t first = 0; first < a.rows; first += blockDim.x) {
        int64_t row = first + threadIdx.x;
        bool mine = row < a.rows && group_of(a, row) == blockIdx.x;
        unsigned votes = __ballot_sync(0xffffffffu, mine);
        __syncthreads();
        if (lane == 0) before[warp] = __popc(votes);
        __syncthreads();
        int place = at + __popc(votes & ((1u << lane) - 1));
        for (int w = 0; w < warp; w++)
            place += before[w];
        if (mine) a.order[place] = (int32_t)row;
        for (int w = 0; w < warps; w++)
            at += before[w];
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

/* The group and the first listed row of a tile of rows; group -1: there are not so many. */
struct tile_of {
    int group, first, rows;
};

__device__ inline tile_of find_tile(const tsi_cuda_grouped_args &a, int tile)
{
    for (int g = 0; g < a.groups; g++) {
        int count = a.count[g], tiles = (count + TILE - 1) / TILE;
        if (tile < tiles) {
            int left = count - tile * TILE;
            return { g, a.begin[g] + tile * TILE, left < TILE ? left : TILE };
        }
        tile -= tiles;
    }
    return { -1, 0, 0 };
}

template <typename R> __device__ void grouped(const tsi_cuda_grouped_args &a)
{
    __shared__ R x[DEEP][TILE + 1], w[DEEP][TILE + 1];
    __shared__ tile_of tile;
    int64_t across = (a.outer + TILE - 1) / TILE, column = blockIdx.x % across * TILE;
    if (threadIdx.x == 0) tile = find_tile(a, (int)(blockIdx.x / across));
    __syncthreads();
    if (tile.group < 0) return;
    R sum[EACH][EACH] = {};
    const int32_t *row = a.order + tile.first;
    for (int64_t deep = 0; deep < a.inner; deep += DEEP) {
        __syncthreads();
        for (int i = threadIdx.x; i < DEEP * TILE; i += SIDE * SIDE) {
            int l = i % DEEP, r = i / DEEP;
            bool inside = deep + l < a.inner;
            x[l][r] = inside && r < tile.rows
                          ? load_real<R>(a.dtype, a.x, row[r] * a.x_row + deep + l)
                          : R(0);
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
            if (r < tile.rows && c < a.outer)
                store_real<R>(a.dtype, a.y, row[r] * a.y_row + c, sum[i][j]);
        }
}

/* w[g][o][i] = sum over rows of g of y[row][o] x[row][i]: here w is written, y and x are read. */
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
                          ? load_real<R>(a.dtype, a.y, row[deep + l] * a.y_row + o + r)
                          : R(0);
            x[l][r] = inside && c + r < a.inner
                          ? load_real<R>(a.dtype, a.x, row[deep + l] * a.x_row + c + r)
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
                store_real<R>(a.dtype, (void *)a.w,
                              group * a.w_group + f * a.w_outer + k * a.w_inner, sum[i][j]);
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
