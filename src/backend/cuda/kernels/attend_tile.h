/* SPDX-License-Identifier: Apache-2.0 */
/* attend_tile.h - tiles of attend_tile.cu, and the shared memory that a block needs for them. */
#ifndef TSI_BACKEND_CUDA_KERNELS_ATTEND_TILE_H
#define TSI_BACKEND_CUDA_KERNELS_ATTEND_TILE_H

#include "backend/cuda/kernels/args.h"

enum {
    TSI_CUDA_TILE = TSI_CUDA_TILE_KEYS, /* queries, and keys */
    TSI_CUDA_TILE_THREADS = 256,
    TSI_CUDA_TILE_UNIT = 4,                                   /* columns that are read at once */
    TSI_CUDA_TILE_SCORES = TSI_CUDA_TILE + TSI_CUDA_TILE_UNIT /* from a row of scores to the next */
};

/* From a row in shared memory to the next: zeros up to a unit, and one more, so that rows begin in
 * other banks. */
TSI_SHARED int64_t tsi_cuda_tile_row(int64_t columns)
{
    return (columns + TSI_CUDA_TILE_UNIT - 1) / TSI_CUDA_TILE_UNIT * TSI_CUDA_TILE_UNIT +
           TSI_CUDA_TILE_UNIT;
}

#endif
