/* SPDX-License-Identifier: Apache-2.0 */
/* norm.c - rms_norm, its gradient and softmax of contiguous rows of f32 and bf16. */
#include "backend/cuda/kernel.h"
#include "base/error.h"
#include "op/nn/attributes.h"

enum { LENGTH_MAX = 11264, BACK_BLOCKS = 264 }; /* a row of f32 in shared memory */

static bool is_plain(const tsi_block *block)
{
    return (block->dtype == TS_DTYPE_F32 || block->dtype == TS_DTYPE_BF16) &&
           tsi_block_is_dense(block) && tsi_block_count(block) > 0;
}

/* A thread for each unit of 16 bytes, as far as there are some. */
static int32_t threads_for(int64_t length, int32_t dtype)
{
    int64_t units = length * (int64_t)ts_dtype_size((ts_dtype)dtype) / 16, most = 512;
    int64_t threads = (units + 31) / 32 * 32;
    return (int32_t)(threads < 32 ? 32 : threads > most ? most : threads);
}

/* Sizes and the weight; false: not for these kernels. */
static bool settle(const tsi_kernel_io *io, const tsi_block *x, const tsi_block *weight,
                   const tsi_block *scale, int64_t length, tsi_cuda_norm_args *args)
{
    bool weighed = weight && weight->dtype != TS_DTYPE_NONE;
    if (!io->queue || !is_plain(x) || length < 1 || (weighed && !is_plain(weight)) ||
        scale->dtype != TS_DTYPE_F32 || !is_plain(scale))
        return false;
    args->length = length;
    args->rows = tsi_block_count(x) / length;
    args->scale = scale->data;
    args->dtype = x->dtype;
    if (!weighed) return true;
    args->weight = weight->data;
    args->weight_dtype = weight->dtype;
    return tsi_block_count(weight) == length;
}

ts_status tsi_cuda_rms_norm(const tsi_kernel_io *io)
{
    const tsi_norm_attributes *a = io->attributes;
    const tsi_block *x = &io->in[0].block, *y = &io->out[0].block;
    tsi_cuda_norm_args args = { .x = x->data, .y = y->data, .eps = a->eps };
    int64_t length = 1;
    for (int32_t i = 0; i < a->normalized.count; i++)
        length *= a->normalized.value[i];
    const tsi_block *weight = io->input_count > 1 ? &io->in[1].block : NULL;
    if (!settle(io, x, weight, &io->out[1].block, length, &args) || !is_plain(y) ||
        y->dtype != x->dtype)
        return (ts_status)TSI_KERNEL_DECLINED;
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    int64_t blocks = args.rows < INT32_MAX ? args.rows : INT32_MAX;
    return tsi_cuda_launch(
        io->queue, x->dtype == TS_DTYPE_F32 ? TSI_CUDA_rms_norm_f32 : TSI_CUDA_rms_norm_bf16,
        blocks, threads_for(length, x->dtype), 0, &args);
}

ts_status tsi_cuda_rms_norm_backward(const tsi_kernel_io *io)
{
    const tsi_block *dy = &io->in[0].block, *x = &io->in[1].block, *weight = &io->in[2].block;
    const tsi_block *dx = &io->out[0].block, *dw = &io->out[1].block;
    tsi_stream *stream = io->queue;
    tsi_cuda_norm_args args = { .x = x->data, .dy = dy->data, .y = dx->data, .dw = dw->data };
    if (!settle(io, x, weight, &io->in[3].block, tsi_block_count(weight), &args) || !is_plain(dy) ||
        !is_plain(dx) || !is_plain(dw) || dy->dtype != x->dtype || dx->dtype != x->dtype ||
        dw->dtype != weight->dtype || args.length > LENGTH_MAX)
        return (ts_status)TSI_KERNEL_DECLINED;
    args.blocks = (int32_t)(args.rows < BACK_BLOCKS ? args.rows : BACK_BLOCKS);
    CUdeviceptr memory = 0;
    size_t row = (size_t)args.length * sizeof(float);
    TSI_TRY(tsi_cuda_enter(stream->cuda));
    TSI_CUDA_TRY(stream->cuda, "sums of a norm",
                 tsi_cu.alloc_async(&memory, (size_t)args.blocks * row, stream->handle));
    args.partial = (float *)(uintptr_t)memory;
    ts_status status = tsi_cuda_launch(
        stream,
        x->dtype == TS_DTYPE_F32 ? TSI_CUDA_rms_norm_backward_f32 : TSI_CUDA_rms_norm_backward_bf16,
        args.blocks, threads_for(args.length, x->dtype), (int32_t)row, &args);
    if (status == TS_OK)
        status =
            tsi_cuda_launch(stream, TSI_CUDA_norm_weight, (args.length + 127) / 128, 128, 0, &args);
    (void)tsi_cu.free_async(memory, stream->handle);
    return status;
}

static ts_status softmax(const tsi_kernel_io *io, int32_t log)
{
    const tsi_softmax_attributes *a = io->attributes;
    const tsi_block *x = &io->in[0].block, *y = &io->out[0].block;
    if (!io->queue || !is_plain(x) || !is_plain(y) || x->dtype != y->dtype || x->ndim < 1 ||
        a->dim != x->ndim - 1)
        return (ts_status)TSI_KERNEL_DECLINED;
    tsi_cuda_softmax_args args = { .x = x->data, .y = y->data, .dtype = x->dtype, .log = log };
    args.length = x->extent[x->ndim - 1];
    args.rows = tsi_block_count(x) / args.length;
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    int64_t blocks = args.rows < INT32_MAX ? args.rows : INT32_MAX;
    return tsi_cuda_launch(io->queue,
                           x->dtype == TS_DTYPE_F32 ? TSI_CUDA_softmax_f32 : TSI_CUDA_softmax_bf16,
                           blocks, threads_for(args.length, x->dtype), 0, &args);
}

ts_status tsi_cuda_softmax(const tsi_kernel_io *io)
{
    return softmax(io, 0);
}

ts_status tsi_cuda_log_softmax(const tsi_kernel_io *io)
{
    return softmax(io, 1);
}
