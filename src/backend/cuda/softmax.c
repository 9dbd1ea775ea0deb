/* SPDX-License-Identifier: Apache-2.0 */
/* softmax.c - softmax and log_softmax of the last dim, and their gradients. Rows that fit stay in
 * the registers of a warp or a block. */
#include "backend/cuda/kernel.h"
#include "base/error.h"
#include "op/nn/attributes.h"

enum { WARPS = 8, THREADS_MAX = 512, LONG_ROW = 1024 };

static bool is_real(int32_t dtype)
{
    return dtype == TS_DTYPE_F32 || dtype == TS_DTYPE_BF16 || dtype == TS_DTYPE_F16 ||
           dtype == TS_DTYPE_F64;
}

static int32_t place_of_dtype(int32_t dtype)
{
    return dtype == TS_DTYPE_F32 ? 0 : dtype == TS_DTYPE_F64 ? 1 : dtype == TS_DTYPE_BF16 ? 2 : 3;
}

static int64_t at_most(int64_t value, int64_t most)
{
    return value < most ? value : most;
}

/* Units of 16 bytes in a row; 0: rows do not lie on them. */
static int64_t units_of(const tsi_cuda_softmax_args *a)
{
    int64_t n = 16 / (int64_t)ts_dtype_size((ts_dtype)a->dtype);
    uintptr_t bits = (uintptr_t)a->x | (uintptr_t)a->y;
    bool kept = a->dtype == TS_DTYPE_F32 || a->dtype == TS_DTYPE_BF16;
    return kept && bits % 16 == 0 && (a->length | a->x_stride | a->y_stride) % n == 0
               ? a->length / n
               : 0;
}

static int32_t place_of(int64_t each) /* 1, 2, 3..4 units */
{
    return each <= 1 ? 0 : each <= 2 ? 1 : 2;
}

static ts_status launch_forward(tsi_stream *stream, tsi_cuda_softmax_args *a)
{
    static const tsi_cuda_kernel warp[2][3] = {
        { TSI_CUDA_softmax_warp_1_f32, TSI_CUDA_softmax_warp_2_f32, TSI_CUDA_softmax_warp_4_f32 },
        { TSI_CUDA_softmax_warp_1_bf16, TSI_CUDA_softmax_warp_2_bf16,
          TSI_CUDA_softmax_warp_4_bf16 },
    };
    static const tsi_cuda_kernel block[2][2] = {
        { TSI_CUDA_softmax_block_4_f32, TSI_CUDA_softmax_block_8_f32 },
        { TSI_CUDA_softmax_block_4_bf16, TSI_CUDA_softmax_block_8_bf16 },
    };
    static const tsi_cuda_kernel any[] = { TSI_CUDA_softmax_f32, TSI_CUDA_softmax_f64,
                                           TSI_CUDA_softmax_bf16, TSI_CUDA_softmax_f16 };
    bool narrow = a->dtype == TS_DTYPE_BF16;
    int64_t units = units_of(a), rows = at_most(a->rows, INT32_MAX);
    if (units > 0 && units <= 4 * 32)
        return tsi_cuda_launch(stream, warp[narrow][place_of((units + 31) / 32)],
                               (rows + 2 * WARPS - 1) / (2 * WARPS), WARPS * 32, 0, a);
    int64_t threads = at_most((units / 4 + 32) / 32 * 32, THREADS_MAX);
    int64_t each = (units + threads - 1) / threads;
    if (units > 0 && each <= 8)
        return tsi_cuda_launch(stream, block[narrow][each > 4], rows, (int32_t)threads, 0, a);
    return tsi_cuda_launch(stream, any[place_of_dtype(a->dtype)], rows,
                           a->length > LONG_ROW ? 512 : 128, 0, a);
}

/* Rows along the last dim. False: not for these kernels. */
static bool settle(const tsi_kernel_io *io, const tsi_block *x, const tsi_block *y,
                   tsi_cuda_softmax_args *a)
{
    int64_t rows, length;
    a->x = x->data;
    a->y = y->data;
    a->dtype = x->dtype;
    return io->queue && is_real(x->dtype) && y->dtype == x->dtype && x->ndim > 0 &&
           ((const tsi_softmax_attributes *)io->attributes)->dim == x->ndim - 1 &&
           tsi_block_count(x) > 0 && tsi_cuda_rows_of(x, 1, &a->rows, &a->length, &a->x_stride) &&
           tsi_cuda_rows_of(y, 1, &rows, &length, &a->y_stride);
}

static ts_status forward(const tsi_kernel_io *io, int32_t log)
{
    tsi_cuda_softmax_args args = { .log = log };
    if (!settle(io, &io->in[0].block, &io->out[0].block, &args))
        return (ts_status)TSI_KERNEL_DECLINED;
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    return launch_forward(io->queue, &args);
}

static ts_status backward(const tsi_kernel_io *io, int32_t log)
{
    static const tsi_cuda_kernel any[] = { TSI_CUDA_softmax_backward_f32,
                                           TSI_CUDA_softmax_backward_f64,
                                           TSI_CUDA_softmax_backward_bf16,
                                           TSI_CUDA_softmax_backward_f16 };
    const tsi_block *dy = &io->in[0].block;
    tsi_cuda_softmax_args args = { .log = log, .dy = dy->data };
    int64_t rows, length;
    if (!settle(io, &io->in[1].block, &io->out[0].block, &args) || dy->dtype != args.dtype ||
        !tsi_cuda_rows_of(dy, 1, &rows, &length, &args.dy_stride))
        return (ts_status)TSI_KERNEL_DECLINED;
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    return tsi_cuda_launch(io->queue, any[place_of_dtype(args.dtype)],
                           at_most(args.rows, INT32_MAX), args.length > LONG_ROW ? 512 : 128, 0,
                           &args);
}

ts_status tsi_cuda_softmax(const tsi_kernel_io *io)
{
    return forward(io, 0);
}

ts_status tsi_cuda_log_softmax(const tsi_kernel_io *io)
{
    return forward(io, 1);
}

ts_status tsi_cuda_softmax_backward(const tsi_kernel_io *io)
{
    return backward(io, 0);
}

ts_status tsi_cuda_log_softmax_backward(const tsi_kernel_io *io)
{
    return backward(io, 1);
}
