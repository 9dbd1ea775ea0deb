/* SPDX-License-Identifier: Apache-2.0 */
/* scan.c - running sums and products along a dim, of reals and whole numbers. */
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
    tsi_cuda_scan_args args = { .from = { .data = x->data },
                                .to = { .data = y->data },
                                .from_step = x->stride[dim],
                                .to_step = y->stride[dim],
                                .length = x->extent[dim],
                                .from_dtype = x->dtype,
                                .to_dtype = y->dtype,
                                .product = product };
    memcpy(args.from.stride, x->stride, sizeof args.from.stride);
    memcpy(args.to.stride, y->stride, sizeof args.to.stride);
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
