/* SPDX-License-Identifier: Apache-2.0 */
/* attend.cuh - rows of heads, and who sees whom: the block lists of a mask, as kernels walk them.
 *
 *   list (of a row and head) -> rows of tiles    -> runs of tiles that are computed, by column
 *                            -> columns of tiles -> the same, by row
 *
 * INV: a tile that is in no run has no pair that is seen; one in a run without bits is seen whole,
 * up to the last key. */
#ifndef TSI_BACKEND_CUDA_KERNELS_ATTEND_CUH
#define TSI_BACKEND_CUDA_KERNELS_ATTEND_CUH

#include "backend/cuda/kernels/args.h"

/* Where a row of a head begins. */
__device__ inline int64_t at(const tsi_cuda_heads &x, int64_t b, int64_t h, int64_t i)
{
    return b * x.stride[0] + h * x.stride[1] + i * x.stride[2];
}

struct run_list {
    const tsi_cuda_run *run, *end;
};

__device__ inline int64_t list_of(const tsi_cuda_tiles &t, int64_t b, int64_t h)
{
    return b * t.by_row + h * t.by_head;
}

__device__ inline run_list runs_of(const tsi_cuda_tiles &t, int64_t list, int64_t row)
{
    const int64_t *first = t.first + list * t.rows + row;
    return { t.run + first[0], t.run + first[1] };
}

/* Of the rows of tiles that have one in a column, from the first to the last row. */
__device__ inline run_list runs_of_column(const tsi_cuda_tiles &t, int64_t list, int64_t column)
{
    const int64_t *first = t.column_first + list * t.columns + column;
    return { t.column_run + first[0], t.column_run + first[1] };
}

/* Which keys of a run's tile a query sees, bit by bit; of a run without bits: every one. */
__device__ inline uint64_t word_of(const tsi_cuda_tiles &t, const tsi_cuda_run *run, int64_t query)
{
    return run->bits < 0 ? ~(uint64_t)0 : t.bits[run->bits + query % TSI_CUDA_TILE_QUERIES];
}

#endif
