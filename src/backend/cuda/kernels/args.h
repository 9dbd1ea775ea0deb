/* SPDX-License-Identifier: Apache-2.0 */
/* args.h - what kernels are called with: one struct each, read by C and CUDA alike.
 *
 * INV: plain data in the common part of C11 and C++17; at most 4096 bytes. Strides are in units of
 * what the kernel moves (elements, or units of 1 to 16 bytes), extents outermost first. */
#ifndef TSI_BACKEND_CUDA_KERNELS_ARGS_H
#define TSI_BACKEND_CUDA_KERNELS_ARGS_H

#include <stdint.h>

#include "device/recipe.h"

enum { TSI_CUDA_DIMS = 8, TSI_CUDA_SOURCES = 32, TSI_CUDA_BLOCK = 256 };

/* n / divisor for n < 2^31 as a product and a shift. */
typedef struct tsi_cuda_divisor {
    uint32_t divisor, magic, shift;
} tsi_cuda_divisor;

/* The index space of a launch. Counts from 2^31 on divide by the extents themselves. */
typedef struct tsi_cuda_space {
    int64_t count;
    int32_t ndim, reserved;
    int64_t extent[TSI_CUDA_DIMS];
    tsi_cuda_divisor by[TSI_CUDA_DIMS];
} tsi_cuda_space;

typedef struct tsi_cuda_operand {
    void *data;
    int64_t stride[TSI_CUDA_DIMS];
} tsi_cuda_operand;

/* copy.cu: units of one size, or a cast between dtypes. */
typedef struct tsi_cuda_copy_args {
    tsi_cuda_space space;
    tsi_cuda_operand to, from;
    int32_t to_dtype, from_dtype;
} tsi_cuda_copy_args;

/* copy.cu: dims `row` and `column` in tiles; `from` is contiguous along `row`, `to` along `column`.
 * The other dims are the space. */
typedef struct tsi_cuda_transpose_args {
    tsi_cuda_space space;
    tsi_cuda_operand to, from; /* over the space */
    int64_t rows, columns;
    int64_t to_row, from_column; /* strides: to[row * to_row + column], from[column * .. + row] */
    int64_t row_tiles, column_tiles;
} tsi_cuda_transpose_args;

typedef struct tsi_cuda_fill_args {
    tsi_cuda_space space;
    tsi_cuda_operand to;
    uint32_t pattern[4]; /* 16 bytes of repeated elements */
} tsi_cuda_fill_args;

/* fold.cu */
typedef struct tsi_cuda_fold_args {
    tsi_cuda_space space;
    tsi_cuda_operand to;
    int64_t sources, divisor;
    int32_t reduce, dense;        /* dense: all blocks contiguous and on 16 bytes */
    const tsi_cuda_operand *more; /* on the device, where there are too many; else NULL */
    tsi_cuda_operand from[TSI_CUDA_SOURCES];
} tsi_cuda_fold_args;

/* pointwise.cu: the operators of pointwise.def. */
enum {
#define TSI_POINTWISE(name, expression) TSI_POINTWISE_##name,
#include "backend/cuda/kernels/pointwise.def"
#undef TSI_POINTWISE
    TSI_POINTWISE_COUNT
};
typedef struct tsi_cuda_pointwise_args {
    tsi_cuda_space space;
    tsi_cuda_operand to, from[3];
    int32_t dtype[4]; /* of the result, then of the inputs */
    int32_t op, inputs;
    double number;
} tsi_cuda_pointwise_args;

/* norm.cu: `rows` rows of `length`, contiguous. `partial` has a row of f32 for each block. */
typedef struct tsi_cuda_norm_args {
    const void *x, *dy;
    const void *weight;
    void *y;      /* or dx */
    float *scale; /* one a row */
    float *partial;
    void *dw;
    int64_t rows, length;
    double eps;
    int32_t dtype, weight_dtype, blocks, reserved;
} tsi_cuda_norm_args;

/* rows.cu: softmax of rows */
typedef struct tsi_cuda_softmax_args {
    const void *x;
    void *y;
    int64_t rows, length;
    int32_t dtype, log;
} tsi_cuda_softmax_args;

/* update.cu: items in chunks of TSI_CUDA_UPDATE_CHUNK elements; the table is on the device. */
enum { TSI_CUDA_UPDATE_CHUNK = 16384 };
typedef struct tsi_cuda_update_item {
    void *part[4];
    int64_t count, first_chunk;
    int32_t dtype[4];
} tsi_cuda_update_item;
typedef struct tsi_cuda_update_args {
    const tsi_cuda_update_item *item;
    int64_t items, chunks;
    double *partial; /* squares: one a chunk */
    double beta1, beta2, decay, rate, root, epsilon;
} tsi_cuda_update_args;

/* random.cu: `runs` runs of `length`, the i-th at local + i * local_step with the global index
 * global + i * global_step. */
typedef struct tsi_cuda_random_args {
    tsi_random_recipe recipe;
    void *to;
    int64_t runs, length, local, local_step, global, global_step;
} tsi_cuda_random_args;

#endif
