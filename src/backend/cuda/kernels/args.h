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

#ifdef __CUDACC__
#define TSI_BOTH_SIDES __host__ __device__
#else
#define TSI_BOTH_SIDES
#endif

/* The global indices of one dim of a block, as spans of the host's (layout/region.h). */
enum { TSI_CUDA_SPANS = 4 };
typedef struct tsi_cuda_span {
    int64_t begin, length, period, count;
} tsi_cuda_span;
typedef struct tsi_cuda_places {
    int64_t count; /* 0: indices are places */
    tsi_cuda_span span[TSI_CUDA_SPANS];
} tsi_cuda_places;

TSI_BOTH_SIDES static inline int64_t tsi_cuda_index_at(const tsi_cuda_places *p, int64_t place)
{
    for (int64_t s = 0; s < p->count; s++) {
        const tsi_cuda_span *span = &p->span[s];
        int64_t size = span->length * span->count;
        if (place < size)
            return span->begin + place / span->length * span->period + place % span->length;
        place -= size;
    }
    return place;
}

/* The place of a global index; -1: it is not here. */
TSI_BOTH_SIDES static inline int64_t tsi_cuda_place_of(const tsi_cuda_places *p, int64_t index)
{
    int64_t before = 0;
    if (p->count == 0) return index;
    for (int64_t s = 0; s < p->count; s++) {
        const tsi_cuda_span *span = &p->span[s];
        int64_t off = index - span->begin, nth = off / span->period;
        if (off < 0) return -1;
        if (nth < span->count && off % span->period < span->length)
            return before + nth * span->length + off % span->period;
        before += span->length * span->count;
    }
    return -1;
}

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

/* attend.cu: blocks of four dims, [batch, head, position, column] each. */
enum { TSI_CUDA_HEADS = 256 };
typedef struct tsi_cuda_heads {
    void *data;
    int64_t stride[4];
} tsi_cuda_heads;
typedef struct tsi_cuda_attend_args {
    tsi_cuda_heads q, k, v, out, lse, d_out, dq, dk, dv; /* lse has three strides */
    void *delta;                                         /* a number for each row of q */
    int64_t batch, heads, queries, depth, groups, keys, width;
    int64_t reach; /* causal: the query at global position i sees keys up to i + reach */
    tsi_cuda_places place; /* of the queries */
    double scale;
    int32_t causal, dtype, lse_dtype, reserved;
    int16_t group_of[TSI_CUDA_HEADS]; /* of a head */
} tsi_cuda_attend_args;

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
