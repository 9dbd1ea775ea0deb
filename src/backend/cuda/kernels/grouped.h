/* SPDX-License-Identifier: Apache-2.0 */
/* grouped.h - what kernels of grouped products are called with: rows, the matrices of their groups,
 * and the lists that the first kernels of a call make for the last one. */
#ifndef TSI_BACKEND_CUDA_KERNELS_GROUPED_H
#define TSI_BACKEND_CUDA_KERNELS_GROUPED_H

#include "backend/cuda/kernels/args.h"

/* Threads of a block, its tile of rows and columns, so many of the inner dim at a time, in so many
 * stages of shared memory: by plain arithmetic, on the tensor cores, on those of GPUs of 9.0. */
enum {
    TSI_CUDA_GROUPED_LISTERS = 256, /* threads that list a chunk of rows */
    TSI_CUDA_GROUPED_THREADS = 256,
    TSI_CUDA_GROUPED_TILE = 64,
    TSI_CUDA_GROUPED_MMA_THREADS = 128,
    TSI_CUDA_GROUPED_MMA_TILE = 128,
    TSI_CUDA_GROUPED_MMA_DEEP = 64,
    TSI_CUDA_GROUPED_MMA_STAGES = 3,
    TSI_CUDA_GROUPED_WIDE_THREADS = 256,
    TSI_CUDA_GROUPED_WIDE_ROWS = 128,
    TSI_CUDA_GROUPED_WIDE_COLUMNS = 256,
    TSI_CUDA_GROUPED_WIDE_DEEP = 64,
    TSI_CUDA_GROUPED_WIDE_STAGES = 4
};

/* Bytes of these stages, of elements of two. */
enum {
    TSI_CUDA_GROUPED_MMA_SHARED =
        2 * 2 * TSI_CUDA_GROUPED_MMA_STAGES * TSI_CUDA_GROUPED_MMA_DEEP * TSI_CUDA_GROUPED_MMA_TILE,
    TSI_CUDA_GROUPED_WIDE_SHARED = 2 * TSI_CUDA_GROUPED_WIDE_STAGES * TSI_CUDA_GROUPED_WIDE_DEEP *
                                   (TSI_CUDA_GROUPED_WIDE_ROWS + TSI_CUDA_GROUPED_WIDE_COLUMNS)
};

/* Row r lies at r / each * outer + r % each * inner: rows of one stride, or such rows each of which
 * is there several times. Columns are contiguous. */
typedef struct tsi_cuda_row_steps {
    int64_t outer, inner, each;
} tsi_cuda_row_steps;

/* Rows of one group, first .. first + rows - 1 of the list. Group -1: none. */
typedef struct tsi_cuda_grouped_tile {
    int32_t group, first, rows, reserved;
} tsi_cuda_grouped_tile;

/* y[m] = w[group of m] x[m], or, backward, w[g] = the sum over rows m of g of y[m] x[m]'. */
typedef struct tsi_cuda_grouped_args {
    const void *x, *group;
    void *w, *y;
    int64_t rows, inner, outer, groups; /* x [rows, inner], w [groups, outer, inner], y */
    tsi_cuda_row_steps x_row, y_row;
    int64_t group_stride;
    int64_t w_group, w_outer, w_inner;
    /* `group` has the group of each row, or the row where each of all groups ends. */
    int64_t ends;                     /* so many; 0: groups of rows */
    tsi_cuda_places place, row_place; /* of the groups; of the rows, where groups end */
    tsi_cuda_asker asker;
    int32_t dtype, group_dtype;
    /* The lists. Chunks of rows, one a block. */
    int64_t chunk_rows, chunks, tiles;
    int32_t tile_rows, reserved;
    tsi_cuda_grouped_tile *tile;
    int32_t *count, *begin, *order; /* rows of each group; where they begin; rows by groups */
    int32_t *counted, *next;        /* of each chunk and group: rows; the place of the first one */
} tsi_cuda_grouped_args;

#endif
