/* SPDX-License-Identifier: Apache-2.0 */
/* sort.c - sort, topk and topk_mask of lines that fit shared memory; longer ones are the host's. */
#include <string.h>

#include "backend/cuda/dtype.h"
#include "backend/cuda/kernel.h"
#include "base/error.h"
#include "op/index/index.h"

enum { LENGTH_MAX = 8192 };

/* Strides of the other dims, and the step along its own. */
static tsi_cuda_operand operand_of(const tsi_block *block, int32_t dim, int64_t *step)
{
    tsi_cuda_operand operand = tsi_cuda_operand_of(block);
    *step = block->ndim ? block->stride[dim] : 1;
    if (block->ndim) operand.stride[dim] = 0;
    return operand;
}

static ts_status lines(const tsi_kernel_io *io, int32_t dim, tsi_cuda_sort_args *a)
{
    const tsi_block *x = &io->in[0].block, *values = &io->out[0].block;
    const tsi_block *places = a->mask ? values : &io->out[1].block;
    int64_t extent[TS_NDIM_MAX];
    a->length = x->ndim ? x->extent[dim] : 1;
    if (!io->queue || tsi_cuda_is_complex(x->dtype) || a->length > LENGTH_MAX)
        return (ts_status)TSI_KERNEL_DECLINED;
    if (tsi_block_count(values) == 0) return TS_OK;
    memcpy(extent, x->extent, sizeof extent);
    if (x->ndim) extent[dim] = 1;
    a->dtype = x->dtype;
    a->whole = !tsi_cuda_is_real(x->dtype);
    a->from = operand_of(x, dim, &a->from_step);
    a->values = operand_of(values, dim, &a->values_step);
    a->places = operand_of(places, dim, &a->places_step);
    for (a->padded = 2; a->padded < a->length;)
        a->padded *= 2;
    tsi_cuda_space_make(&a->space, x->ndim, extent);
    int64_t threads = a->padded / 2 < 32 ? 32 : a->padded / 2 > 512 ? 512 : a->padded / 2;
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    return tsi_cuda_launch(io->queue, TSI_CUDA_sort_lines,
                           a->space.count < INT32_MAX ? a->space.count : INT32_MAX,
                           (int32_t)threads, (int32_t)a->padded * 12, a);
}

ts_status tsi_cuda_sort(const tsi_kernel_io *io)
{
    const tsi_sort_attributes *attributes = io->attributes;
    int32_t dim = (int32_t)attributes->dim;
    const tsi_block *values = &io->out[0].block;
    tsi_cuda_sort_args a = { .descending = attributes->descending != 0 };
    a.wanted = values->ndim ? values->extent[dim] : 1;
    return lines(io, dim, &a);
}

ts_status tsi_cuda_topk_mask(const tsi_kernel_io *io)
{
    tsi_cuda_sort_args a = { .descending = 1, .mask = 1 };
    memcpy(&a.wanted, io->attributes, sizeof a.wanted); /* its one attribute */
    return lines(io, io->in[0].block.ndim - 1, &a);
}
