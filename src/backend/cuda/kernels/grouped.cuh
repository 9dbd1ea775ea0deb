/* SPDX-License-Identifier: Apache-2.0 */
/* grouped.cuh - where rows of grouped products lie, and how they come into shared memory and leave
 * registers, 16 bytes at a time (mma.cuh). Rows lie on 16 bytes, and may end anywhere. */
#ifndef TSI_BACKEND_CUDA_KERNELS_GROUPED_CUH
#define TSI_BACKEND_CUDA_KERNELS_GROUPED_CUH

#include "backend/cuda/kernels/grouped.h"
#include "backend/cuda/kernels/mma.cuh"

__device__ inline int64_t row_at(const tsi_cuda_row_steps &steps, int32_t row)
{
    int32_t each = (int32_t)steps.each;
    return row / each * steps.outer + row % each * steps.inner;
}

/* ROWS rows of COLUMNS elements from `column` on; rows end at `columns`. at(row): where it begins,
 * -1: there is none. */
template <int THREADS, int ROWS, int COLUMNS, typename At>
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

/* Four neighbours in a warp have two columns each of four times eight: afterwards they have eight
 * columns each. */
__device__ inline void gather_eights(uint32_t (&x)[4])
{
    bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? x[i] : x[i + 1], 1);
        x[i] = odd ? other : x[i];
        x[i + 1] = odd ? x[i + 1] : other;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t other = __shfl_xor_sync(0xffffffffu, high ? x[i] : x[i + 2], 2);
        x[i] = high ? other : x[i];
        x[i + 2] = high ? x[i + 2] : other;
    }
}

/* One of a thread's two rows (mma.cuh) of a product of EIGHTS times eight columns. NULL: nowhere;
 * `left` columns of the row are there. All threads of a warp call it. */
template <typename H, int EIGHTS>
__device__ inline void store_row(const float (&sum)[EIGHTS][4], int half, uint16_t *to,
                                 int64_t left)
{
#pragma unroll
    for (int first = 0; first < EIGHTS; first += 4) {
        uint32_t x[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = H::pair(sum[first + i][2 * half], sum[first + i][2 * half + 1]);
        gather_eights(x);
        int column = (first + (int)threadIdx.x % 4) * 8;
        if (!to) continue;
        if (column + 8 <= left)
            *(uint4 *)(to + column) = make_uint4(x[0], x[1], x[2], x[3]);
        else
#pragma unroll
            for (int e = 0; e < 8; e++)
                if (column + e < left) to[column + e] = (uint16_t)(x[e / 2] >> e % 2 * 16);
    }
}

/* Where the listed rows of a tile lie; -1: there are not so many. All threads call it. */
template <int ROWS> struct tile_rows {
    int64_t x[ROWS], y[ROWS];
    __device__ void find(const tsi_cuda_grouped_args &a, const tsi_cuda_grouped_tile &tile)
    {
        int nth = threadIdx.x;
        if (nth < ROWS) {
            int32_t row = nth < tile.rows ? a.order[tile.first + nth] : -1;
            x[nth] = row < 0 ? -1 : row_at(a.x_row, row);
            y[nth] = row < 0 ? -1 : row_at(a.y_row, row);
        }
        __syncthreads();
    }
};

/* A group's rows, ROWS a step. Places of a step are found while the one before is fetched, from
 * what was asked of the list another step before: nobody waits for it. */
template <int ROWS> struct row_places {
    int64_t x[2][ROWS], y[2][ROWS];
};

template <int ROWS> struct row_walk {
    const tsi_cuda_grouped_args &a;
    row_places<ROWS> &at; /* shared */
    const int32_t *order;
    int count;
    int32_t row; /* of this thread, in the step that is found next */
    __device__ row_walk(const tsi_cuda_grouped_args &args, row_places<ROWS> &places, int64_t group)
        : a(args), at(places), order(args.order + args.begin[group]), count(args.count[group])
    {
        row = ask(0);
        find(0);
        __syncthreads();
    }
    __device__ int32_t ask(int step) const
    {
        int nth = step * ROWS + (int)threadIdx.x;
        return (int)threadIdx.x < ROWS && nth < count ? order[nth] : -1;
    }
    /* Seen behind the next barrier. */
    __device__ void find(int step)
    {
        if ((int)threadIdx.x < ROWS) {
            at.x[step % 2][threadIdx.x] = row < 0 ? -1 : row_at(a.x_row, row);
            at.y[step % 2][threadIdx.x] = row < 0 ? -1 : row_at(a.y_row, row);
        }
        row = ask(step + 1);
    }
    __device__ int steps() const
    {
        return (count + ROWS - 1) / ROWS;
    }
};

/* The tile of a group's matrix that a block sums. */
struct sums_tile {
    int64_t group, outer, inner;
    __device__ sums_tile(const tsi_cuda_grouped_args &a, int rows, int columns)
    {
        int64_t down = (a.outer + rows - 1) / rows, across = (a.inner + columns - 1) / columns;
        group = blockIdx.x / (down * across);
        outer = blockIdx.x / across % down * rows;
        inner = blockIdx.x % across * columns;
    }
};

#endif
