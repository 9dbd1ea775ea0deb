/* SPDX-License-Identifier: Apache-2.0 */
/* add_norm.c - residual and norm, and their gradient, of contiguous rows. */
#include "op/nn/add_norm.h"
#include "backend/cuda/beside.h"
#include "backend/cuda/dtype.h"
#include "backend/cuda/kernel.h"
#include "base/error.h"

enum { THREADS_MAX = 1024, COLUMNS = 32, WEIGHT_THREADS = 256, WIDE = 16 };
/* Of a block; numbers of bf16 that a warp has at most, and with few registers. */
enum { WARPS = 4, WARP_ROW_MAX = 2048, WARP_ROW_SHORT = 768 };
/* Threads of a block whose groups have a row each; blocks a multiprocessor holds of them. */
enum { GROUPS_MAX = 512, GROUP_BLOCKS = 2 };

static bool is_dense(const tsi_block *block, int32_t dtype)
{
    return block->dtype == dtype && tsi_block_is_dense(block);
}

/* A thread has 16 bytes of a row; 0: the row is too long. */
static int32_t threads_for(int64_t length, int32_t dtype)
{
    int64_t each = WIDE / (int64_t)ts_dtype_size((ts_dtype)dtype);
    int64_t threads = ((length + each - 1) / each + 31) / 32 * 32;
    return threads <= THREADS_MAX ? (int32_t)threads : 0;
}

static const tsi_cuda_kernel forward[] = { TSI_CUDA_add_rms_norm_f32, TSI_CUDA_add_rms_norm_f64,
                                           TSI_CUDA_add_rms_norm_bf16, TSI_CUDA_add_rms_norm_f16 };
static const tsi_cuda_kernel back[] = { TSI_CUDA_add_rms_norm_backward_f32,
                                        TSI_CUDA_add_rms_norm_backward_f64,
                                        TSI_CUDA_add_rms_norm_backward_bf16,
                                        TSI_CUDA_add_rms_norm_backward_f16 };

/* Sizes and the weight; false: not for these kernels. */
static bool settle(const tsi_kernel_io *io, const tsi_block *x, const tsi_block *weight,
                   const tsi_block *scale, tsi_cuda_add_norm_args *args)
{
    int32_t dtype = x->dtype, wide = dtype == TS_DTYPE_F64 ? TS_DTYPE_F64 : TS_DTYPE_F32;
    int64_t count = tsi_block_count(x);
    if (!io->queue || !tsi_cuda_is_real(dtype) || !tsi_cuda_is_real(weight->dtype) || count == 0 ||
        !tsi_block_is_dense(weight) || !is_dense(scale, wide))
        return false;
    args->length = tsi_block_count(weight);
    args->rows = count / args->length;
    args->weight = weight->data;
    args->weight_dtype = weight->dtype;
    args->scale = scale->data;
    uint64_t bits = (uint64_t)(uintptr_t)args->x | (uint64_t)(uintptr_t)args->r |
                    (uint64_t)(uintptr_t)args->dy | (uint64_t)(uintptr_t)args->sum |
                    (uint64_t)(uintptr_t)args->y;
    args->by_units =
        args->length * (int64_t)ts_dtype_size((ts_dtype)dtype) % WIDE == 0 && bits % WIDE == 0;
    return threads_for(args->length, dtype) > 0;
}

static bool by_warps(const tsi_cuda_add_norm_args *args, int32_t dtype)
{
    return dtype == TS_DTYPE_BF16 && args->by_units && args->length <= WARP_ROW_MAX &&
           (uintptr_t)args->weight % WIDE == 0;
}

ts_status tsi_cuda_add_rms_norm(const tsi_kernel_io *io)
{
    const tsi_block *x = &io->in[0].block, *r = &io->in[1].block, *weight = &io->in[2].block;
    const tsi_block *sum = &io->out[0].block, *y = &io->out[1].block;
    tsi_cuda_add_norm_args args = { .x = x->data,
                                    .r = r->data,
                                    .sum = sum->data,
                                    .y = y->data,
                                    .eps = ((const tsi_add_norm *)io->attributes)->eps };
    if (!is_dense(x, sum->dtype) || !is_dense(r, sum->dtype) || !is_dense(sum, sum->dtype) ||
        !is_dense(y, sum->dtype) || !settle(io, x, weight, &io->out[2].block, &args))
        return (ts_status)TSI_KERNEL_DECLINED;
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    if (by_warps(&args, x->dtype))
        return tsi_cuda_launch(io->queue,
                               args.length <= WARP_ROW_SHORT ? TSI_CUDA_add_rms_norm_warps_3
                                                             : TSI_CUDA_add_rms_norm_warps_8,
                               (args.rows + WARPS - 1) / WARPS, WARPS * 32, 0, &args);
    int64_t blocks = args.rows < INT32_MAX ? args.rows : INT32_MAX;
    return tsi_cuda_launch(io->queue, tsi_cuda_by_dtype(x->dtype, forward), blocks,
                           threads_for(args.length, x->dtype), 0, &args);
}

/* As many blocks as keep the GPU busy, by the sizes alone. */
static int32_t blocks_for(const tsi_cuda_add_norm_args *args, int32_t threads)
{
    int64_t most = (int64_t)132 * (threads <= 128 ? 7 : threads <= 256 ? 2 : 1);
    return (int32_t)(args->rows < most ? args->rows : most);
}

/* Groups of threads with a row each; how many threads a block has. */
static int32_t settle_groups(tsi_cuda_add_norm_args *args)
{
    args->group = threads_for(args->length, TS_DTYPE_BF16);
    int64_t groups = GROUPS_MAX / args->group, most = (int64_t)132 * GROUP_BLOCKS,
            blocks = (args->rows + groups - 1) / groups;
    args->blocks = (int32_t)(blocks < most ? blocks : most);
    return (int32_t)groups * args->group;
}

ts_status tsi_cuda_add_rms_norm_backward(const tsi_kernel_io *io)
{
    const tsi_block *dsum = &io->in[0].block, *dy = &io->in[1].block, *x = &io->in[2].block;
    const tsi_block *dx = &io->out[0].block, *dw = &io->out[1].block;
    tsi_stream *stream = io->queue;
    tsi_cuda_add_norm_args args = {
        .x = x->data, .r = dsum->data, .dy = dy->data, .y = dx->data, .dw = dw->data
    };
    int32_t wide = x->dtype == TS_DTYPE_F64 ? TS_DTYPE_F64 : TS_DTYPE_F32;
    if (!is_dense(x, x->dtype) || !is_dense(dsum, x->dtype) || !is_dense(dy, x->dtype) ||
        !is_dense(dx, x->dtype) || !is_dense(dw, wide) ||
        !settle(io, x, &io->in[3].block, &io->in[4].block, &args))
        return (ts_status)TSI_KERNEL_DECLINED;
    bool groups = by_warps(&args, x->dtype);
    int32_t threads = groups ? settle_groups(&args) : threads_for(args.length, x->dtype);
    if (!groups) args.blocks = blocks_for(&args, threads);
    size_t row = (size_t)args.length * ts_dtype_size((ts_dtype)wide);
    TSI_TRY(tsi_cuda_enter(stream->cuda));
    TSI_TRY(tsi_cuda_scratch(stream, (size_t)args.blocks * row, &args.partial));
    TSI_TRY(tsi_cuda_launch(
        stream, groups ? TSI_CUDA_add_rms_norm_backward_groups : tsi_cuda_by_dtype(x->dtype, back),
        args.blocks, threads, groups ? (int32_t)row : 0, &args));
    return tsi_cuda_beside_launch(
        stream, wide == TS_DTYPE_F64 ? TSI_CUDA_add_norm_weight_f64 : TSI_CUDA_add_norm_weight_f32,
        (args.length + COLUMNS - 1) / COLUMNS, WEIGHT_THREADS, &args,
        tsi_bytes_at(args.partial, (size_t)args.blocks * row), tsi_bytes_at(args.dw, row));
}
