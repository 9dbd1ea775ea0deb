/* SPDX-License-Identifier: Apache-2.0 */
/* scan.c - running sums, products and extremes along a dim, of reals and whole numbers, and the
 * gradient of running products. */
#include "op/reduce/scan.h"

#include <string.h>

#include "backend/cuda/dtype.h"
#include "backend/cuda/kernel.h"
#include "base/error.h"

static ts_status scan(const tsi_kernel_io *io, int32_t product)
{
    const tsi_scan_attributes *a = io->attributes;
    const tsi_block *x = &io->in[0].block, *y = &io->out[0].block;
    if (!io->queue || tsi_cuda_is_complex(x->dtype) || x->ndim == 0)
        return (ts_status)TSI_KERNEL_DECLINED;
    if (tsi_block_count(x) == 0) return TS_OK;
    int32_t dim = (int32_t)a->dim;
    tsi_cuda_scan_args args = { .from = tsi_cuda_operand_of(x),
                                .to = tsi_cuda_operand_of(y),
                                .from_step = x->stride[dim],
                                .to_step = y->stride[dim],
                                .length = x->extent[dim],
                                .from_dtype = x->dtype,
                                .to_dtype = y->dtype,
                                .product = product };
    if (a->reverse) { /* from the last element on */
        int64_t last = args.length - 1;
        int64_t sizes[] = { (int64_t)ts_dtype_size((ts_dtype)x->dtype),
                            (int64_t)ts_dtype_size((ts_dtype)y->dtype) };
        args.from.data = (char *)x->data + last * args.from_step * sizes[0];
        args.to.data = (char *)y->data + last * args.to_step * sizes[1];
        args.from_step = -args.from_step;
        args.to_step = -args.to_step;
    }
    int64_t extent[TS_NDIM_MAX];
    memcpy(extent, x->extent, sizeof extent);
    extent[dim] = 1;
    tsi_cuda_space_make(&args.space, x->ndim, extent);
    tsi_cuda_kernel kernel = tsi_cuda_is_narrow(x->dtype) ? TSI_CUDA_scan_f32
                             : x->dtype == TS_DTYPE_F64   ? TSI_CUDA_scan_f64
                                                          : TSI_CUDA_scan_i64;
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    return tsi_cuda_launch(io->queue, kernel,
                           args.space.count < INT32_MAX ? args.space.count : INT32_MAX,
                           TSI_CUDA_BLOCK, 0, &args);
}

ts_status tsi_cuda_cumsum(const tsi_kernel_io *io)
{
    return scan(io, 0);
}

ts_status tsi_cuda_cumprod(const tsi_kernel_io *io)
{
    return scan(io, 1);
}

/* ---- extremes -------------------------------------------------------------------------------- */

/* Strides of the lines; along a line they are `step`. A number without dims is a line of one. */
static tsi_cuda_operand line_of(const tsi_block *block, int32_t dim, int64_t *step)
{
    tsi_cuda_operand operand = tsi_cuda_operand_of(block);
    *step = block->ndim ? block->stride[dim] : 0;
    return operand;
}

/* The space of lines along a dim; returns their length. */
static int64_t lines_of(const tsi_block *block, int32_t dim, tsi_cuda_space *space)
{
    int64_t extent[TS_NDIM_MAX];
    memcpy(extent, block->extent, sizeof extent);
    if (block->ndim) extent[dim] = 1;
    tsi_cuda_space_make(space, block->ndim, extent);
    return block->ndim ? block->extent[dim] : 1;
}

static ts_status extremes(const tsi_kernel_io *io, int32_t least)
{
    int32_t dim = (int32_t)((const tsi_scan_attributes *)io->attributes)->dim;
    const tsi_block *x = &io->in[0].block, *y = &io->out[0].block, *at = &io->out[1].block;
    if (!io->queue || tsi_cuda_is_complex(x->dtype)) return (ts_status)TSI_KERNEL_DECLINED;
    if (tsi_block_count(x) == 0) return TS_OK;
    tsi_cuda_scan_args a = { .from_dtype = x->dtype, .to_dtype = y->dtype, .least = least };
    a.from = line_of(x, dim, &a.from_step);
    a.to = line_of(y, dim, &a.to_step);
    a.at = line_of(at, dim, &a.at_step);
    a.length = lines_of(x, dim, &a.space);
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    return tsi_cuda_launch(
        io->queue,
        tsi_cuda_is_real(x->dtype) ? TSI_CUDA_scan_extremes_f64 : TSI_CUDA_scan_extremes_i64,
        a.space.count < INT32_MAX ? a.space.count : INT32_MAX, TSI_CUDA_BLOCK, 0, &a);
}

ts_status tsi_cuda_cummax(const tsi_kernel_io *io)
{
    return extremes(io, 0);
}

ts_status tsi_cuda_cummin(const tsi_kernel_io *io)
{
    return extremes(io, 1);
}

/* ---- the gradient of running products -------------------------------------------------------- */

ts_status tsi_cuda_cumprod_backward(const tsi_kernel_io *io)
{
    int32_t dim = (int32_t)((const tsi_scan_attributes *)io->attributes)->dim;
    const tsi_block *dy = &io->in[0].block, *x = &io->in[1].block, *dx = &io->out[0].block;
    tsi_stream *stream = io->queue;
    int64_t count = tsi_block_count(x);
    CUdeviceptr memory = 0;
    if (!stream || !tsi_cuda_is_real(x->dtype) || !tsi_cuda_is_real(dy->dtype))
        return (ts_status)TSI_KERNEL_DECLINED;
    if (count == 0) return TS_OK;
    tsi_cuda_scan_back_args a = { .dy_dtype = dy->dtype, .x_dtype = x->dtype };
    a.dx_dtype = dx->dtype;
    a.dy = line_of(dy, dim, &a.dy_step);
    a.x = line_of(x, dim, &a.x_step);
    a.dx = line_of(dx, dim, &a.dx_step);
    a.length = lines_of(x, dim, &a.space);
    TSI_TRY(tsi_cuda_enter(stream->cuda));
    TSI_TRY(tsi_cuda_memory(stream, "lines of cumprod_backward", (size_t)count * sizeof *a.room,
                            &memory));
    a.room = (double *)(uintptr_t)memory;
    ts_status status = tsi_cuda_launch_items(stream, TSI_CUDA_scan_back, a.space.count, &a);
    (void)tsi_cu.free_async(memory, tsi_cuda_apart(stream));
    return status;
}
