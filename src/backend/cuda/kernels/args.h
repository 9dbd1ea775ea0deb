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

/* random.cu: `runs` runs of `length`, the i-th at local + i * local_step with the global index
 * global + i * global_step. */
typedef struct tsi_cuda_random_args {
    tsi_random_recipe recipe;
    void *to;
    int64_t runs, length, local, local_step, global, global_step;
} tsi_cuda_random_args;

#endif
