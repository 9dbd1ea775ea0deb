/* SPDX-License-Identifier: Apache-2.0 */
/* group_norm.c - group_norm of any strides and real dtypes: a block of threads a group. */
#include <string.h>

#include "backend/cuda/dtype.h"
#include "backend/cuda/kernel.h"
#include "base/error.h"
#include "op/nn/attributes.h"

enum { THREADS = 512 };

static tsi_cuda_operand operand_of(const tsi_block *block, int32_t from)
{
    tsi_cuda_operand operand = { .data = block->data };
    for (int32_t d = from; d < block->ndim; d++)
        operand.stride[d - from] = block->stride[d];
    return operand;
}

/* A weight or bias of the channels; false: of another dtype. Without one there is no data. */
static bool weights_of(const tsi_kernel_io *io, int32_t input, tsi_cuda_operand *to, int32_t *dtype)
{
    if (input >= io->input_count || io->in[input].global->dtype == TS_DTYPE_NONE) return true;
    *to = operand_of(&io->in[input].block, 0);
    *dtype = io->in[input].block.dtype;
    return tsi_cuda_is_real(*dtype);
}

static void shape_of(const tsi_kernel_io *io, tsi_cuda_group_norm_args *a)
{
    const tsi_block *x = &io->in[0].block, *y = &io->out[0].block;
    int64_t extent[TS_NDIM_MAX];
    a->batch = x->extent[0];
    a->groups = ((const tsi_group_norm_attributes *)io->attributes)->num_groups;
    a->channels = x->extent[1] / a->groups;
    a->x = operand_of(x, 1);
    a->y = operand_of(y, 1);
    a->channel.stride[0] = 1;
    a->x_batch = x->stride[0];
    a->x_group = a->channels * x->stride[1];
    a->y_batch = y->stride[0];
    a->y_group = a->channels * y->stride[1];
    memcpy(extent, x->extent + 1, (size_t)(x->ndim - 1) * sizeof *extent);
    extent[0] = a->channels;
    tsi_cuda_operand *const operands[] = { &a->x, &a->y, &a->channel };
    int32_t ndim = tsi_cuda_coalesce(x->ndim - 1, extent, operands, 3);
    tsi_cuda_space_make(&a->inner, ndim, extent);
}

ts_status tsi_cuda_group_norm(const tsi_kernel_io *io)
{
    const tsi_block *mean = &io->out[1].block, *scale = &io->out[2].block;
    tsi_cuda_group_norm_args a = { .dtype = io->in[0].block.dtype, .sum_dtype = mean->dtype };
    if (!io->queue || !tsi_cuda_is_real(a.dtype) ||
        !weights_of(io, 1, &a.weight, &a.weight_dtype) ||
        !weights_of(io, 2, &a.bias, &a.bias_dtype))
        return (ts_status)TSI_KERNEL_DECLINED;
    a.eps = ((const tsi_group_norm_attributes *)io->attributes)->eps;
    a.mean = operand_of(mean, 0);
    a.scale = operand_of(scale, 0);
    shape_of(io, &a);
    int64_t items = a.batch * a.groups;
    if (items == 0) return TS_OK;
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    return tsi_cuda_launch(io->queue, TSI_CUDA_group_norm, items < INT32_MAX ? items : INT32_MAX,
                           THREADS, 0, &a);
}
