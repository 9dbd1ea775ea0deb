/* SPDX-License-Identifier: Apache-2.0 */
/* softmax.c - softmax and log_softmax of a dim, and their gradients. Rows that fit stay in the
 * registers of a warp or a block; a dim that is no row goes through dense copies. */
#include "backend/cuda/dtype.h"
#include "backend/cuda/kernel.h"
#include "backend/cuda/rows.h"
#include "base/error.h"
#include "op/nn/attributes.h"

enum { WARPS = 8, LONG_ROW = 1024 };

static int32_t place_of(int64_t each) /* 1, 2, 3..4, 5..8 units */
{
    return each <= 1 ? 0 : each <= 2 ? 1 : each <= 4 ? 2 : 3;
}

static ts_status launch_any(tsi_stream *stream, const tsi_cuda_kernel *kernel,
                            tsi_cuda_softmax_args *a)
{
    return tsi_cuda_launch(stream, tsi_cuda_by_dtype(a->dtype, kernel),
                           tsi_min_i64(a->rows, INT32_MAX), a->length > LONG_ROW ? 512 : 128, 0, a);
}

static ts_status launch_forward(tsi_stream *stream, tsi_cuda_softmax_args *a)
{
    static const tsi_cuda_kernel warp[2][4] = {
        { TSI_CUDA_softmax_warp_1_f32, TSI_CUDA_softmax_warp_2_f32, TSI_CUDA_softmax_warp_4_f32,
          TSI_CUDA_softmax_warp_8_f32 },
        { TSI_CUDA_softmax_warp_1_bf16, TSI_CUDA_softmax_warp_2_bf16, TSI_CUDA_softmax_warp_4_bf16,
          TSI_CUDA_softmax_warp_8_bf16 },
    };
    static const int32_t at_once[2][4] = { { 4, 4, 4, 2 }, { 4, 4, 3, 2 } };
    static const tsi_cuda_kernel block[2][2] = {
        { TSI_CUDA_softmax_block_4_f32, TSI_CUDA_softmax_block_8_f32 },
        { TSI_CUDA_softmax_block_4_bf16, TSI_CUDA_softmax_block_8_bf16 },
    };
    static const tsi_cuda_kernel any[] = { TSI_CUDA_softmax_f32, TSI_CUDA_softmax_f64,
                                           TSI_CUDA_softmax_bf16, TSI_CUDA_softmax_f16 };
    bool narrow = a->dtype == TS_DTYPE_BF16;
    int64_t units = tsi_cuda_row_units(a->dtype, a->length, a->x_stride | a->y_stride,
                                       (uintptr_t)a->x | (uintptr_t)a->y);
    if (units > 0 && units <= 8 * 32) {
        int32_t place = place_of((units + 31) / 32);
        int64_t blocks = (a->rows + WARPS - 1) / WARPS;
        return tsi_cuda_launch(stream, warp[narrow][place],
                               tsi_cuda_walkers(stream, blocks, at_once[narrow][place]), WARPS * 32,
                               0, a);
    }
    if (tsi_cuda_keeps(units))
        return tsi_cuda_launch_kept(stream, block, a->dtype, a->rows, units, 16, a);
    return launch_any(stream, any, a);
}

/* Does a block of this GPU have the room for a row of two operands? */
static bool has_room(const tsi_stream *stream, int64_t units)
{
    tsi_cuda_keepers by = tsi_cuda_keepers_of(units);
    return by.each * by.threads * 2 * 16 <= stream->cuda->shared;
}

static ts_status launch_backward(tsi_stream *stream, tsi_cuda_softmax_args *a)
{
    static const tsi_cuda_kernel warp[2][3] = {
        { TSI_CUDA_softmax_warp_backward_1_f32, TSI_CUDA_softmax_warp_backward_2_f32,
          TSI_CUDA_softmax_warp_backward_4_f32 },
        { TSI_CUDA_softmax_warp_backward_1_bf16, TSI_CUDA_softmax_warp_backward_2_bf16,
          TSI_CUDA_softmax_warp_backward_4_bf16 },
    };
    static const int32_t at_once[3] = { 4, 4, 3 };
    static const tsi_cuda_kernel block[2][2] = {
        { TSI_CUDA_softmax_block_backward_4_f32, TSI_CUDA_softmax_block_backward_8_f32 },
        { TSI_CUDA_softmax_block_backward_4_bf16, TSI_CUDA_softmax_block_backward_8_bf16 },
    };
    static const tsi_cuda_kernel any[] = { TSI_CUDA_softmax_backward_f32,
                                           TSI_CUDA_softmax_backward_f64,
                                           TSI_CUDA_softmax_backward_bf16,
                                           TSI_CUDA_softmax_backward_f16 };
    int64_t units =
        tsi_cuda_row_units(a->dtype, a->length, a->x_stride | a->dy_stride | a->y_stride,
                           (uintptr_t)a->x | (uintptr_t)a->dy | (uintptr_t)a->y);
    if (units > 0 && units <= 4 * 32) {
        int32_t place = place_of((units + 31) / 32);
        int64_t blocks = (a->rows + WARPS - 1) / WARPS;
        return tsi_cuda_launch(stream, warp[a->dtype == TS_DTYPE_BF16][place],
                               tsi_cuda_walkers(stream, blocks, at_once[place]), WARPS * 32, 0, a);
    }
    if (tsi_cuda_keeps(units) && has_room(stream, units))
        return tsi_cuda_launch_kept(stream, block, a->dtype, a->rows, units, 2 * 16, a);
    return launch_any(stream, any, a);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

enum { X, DY, Y, BLOCKS }; /* DY: the gradient's alone, whose x is the result of softmax */

/* Rows along the last dim; false: they are none. */
static bool rows_of(const tsi_block *block, tsi_cuda_softmax_args *a)
{
    int64_t rows, length;
    a->x = block[X].data;
    a->dy = block[DY].data;
    a->y = block[Y].data;
    a->dtype = block[X].dtype;
    return tsi_cuda_rows_of(&block[X], 1, &a->rows, &a->length, &a->x_stride) &&
           tsi_cuda_rows_of(&block[Y], 1, &rows, &length, &a->y_stride) &&
           (!a->dy || tsi_cuda_rows_of(&block[DY], 1, &rows, &length, &a->dy_stride));
}

static ts_status launch(tsi_stream *stream, tsi_cuda_softmax_args *a)
{
    return a->dy ? launch_backward(stream, a) : launch_forward(stream, a);
}

static void move_last(tsi_block *block, int32_t dim)
{
    int64_t extent = block->extent[dim], stride = block->stride[dim];
    int32_t last = block->ndim - 1;
    for (int32_t d = dim; d < last; d++) {
        block->extent[d] = block->extent[d + 1];
        block->stride[d] = block->stride[d + 1];
    }
    block->extent[last] = extent;
    block->stride[last] = stride;
}

/* Through dense copies of all blocks. */
static ts_status by_copies(const tsi_kernel_io *io, const tsi_block *block,
                           tsi_cuda_softmax_args *a)
{
    tsi_stream *stream = io->queue;
    tsi_block dense[BLOCKS];
    CUdeviceptr memory = 0;
    size_t bytes = (size_t)tsi_block_count(&block[X]) * ts_dtype_size((ts_dtype)block[X].dtype);
    bytes = (bytes + 255) / 256 * 256;
    TSI_TRY(tsi_cuda_memory(stream, "rows of a softmax", BLOCKS * bytes, &memory));
    ts_status status = TS_OK;
    for (int32_t k = X; k <= Y; k++) {
        int64_t step = 1;
        dense[k] = block[k];
        if (!block[k].data) continue;
        dense[k].data = (char *)(uintptr_t)memory + (size_t)k * bytes;
        for (int32_t d = block[k].ndim - 1; d >= 0; step *= block[k].extent[d--])
            dense[k].stride[d] = step;
        if (k != Y && status == TS_OK)
            status = tsi_cuda_copy(io->device, &dense[k], &block[k], stream);
    }
    if (status == TS_OK && rows_of(dense, a)) status = launch(stream, a);
    if (status == TS_OK) status = tsi_cuda_copy(io->device, &block[Y], &dense[Y], stream);
    (void)tsi_cu.free_async(memory, tsi_cuda_apart(stream));
    return status;
}

static ts_status softmax(const tsi_kernel_io *io, const tsi_block *x, const tsi_block *dy,
                         int32_t log)
{
    const tsi_block *y = &io->out[0].block;
    int32_t dim = (int32_t)((const tsi_softmax_attributes *)io->attributes)->dim;
    tsi_block block[BLOCKS] = { [X] = *x, [Y] = *y };
    tsi_cuda_softmax_args args = { .log = log };
    if (dy) block[DY] = *dy;
    if (!io->queue || !tsi_cuda_is_real(x->dtype) || y->dtype != x->dtype || x->ndim == 0 ||
        (dy && dy->dtype != x->dtype) || tsi_block_count(x) == 0)
        return (ts_status)TSI_KERNEL_DECLINED;
    for (int32_t k = X; k <= Y; k++)
        if (block[k].data) move_last(&block[k], dim);
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    return rows_of(block, &args) ? launch(io->queue, &args) : by_copies(io, block, &args);
}

static ts_status forward(const tsi_kernel_io *io, int32_t log)
{
    return softmax(io, &io->in[0].block, NULL, log);
}

static ts_status backward(const tsi_kernel_io *io, int32_t log)
{
    return softmax(io, &io->in[1].block, &io->in[0].block, log);
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
