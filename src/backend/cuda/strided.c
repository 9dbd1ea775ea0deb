/* SPDX-License-Identifier: Apache-2.0 */
/* strided.c - as_strided: a copy of what lies at its strides, and its gradient by lists (put.c).
 * Strides speak of the whole tensor in row-major order: another order in memory is copied first. */
#include <string.h>

#include "backend/cuda/dtype.h"
#include "backend/cuda/kernel.h"
#include "backend/cuda/put.h"
#include "base/error.h"
#include "op/view/attributes.h"

ts_status tsi_cuda_as_strided(const tsi_kernel_io *io)
{
    const tsi_strided_attributes *a = io->attributes;
    const tsi_block *y = &io->out[0].block;
    tsi_block x = io->in[0].block, from = *y;
    void *room = NULL;
    if (!io->queue) return (ts_status)TSI_KERNEL_DECLINED;
    if (tsi_block_count(y) == 0) return TS_OK;
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    size_t bytes = tsi_cuda_rows_room(&x, x.ndim);
    if (bytes) TSI_TRY(tsi_cuda_scratch(io->queue, bytes, &room));
    char *next = room;
    TSI_TRY(tsi_cuda_rows_make(io->queue, &x, x.ndim, &next));
    from.data = (char *)x.data + a->offset * (int64_t)ts_dtype_size((ts_dtype)x.dtype);
    for (int32_t d = 0; d < y->ndim; d++)
        from.stride[d] = a->stride.value[d];
    return tsi_cuda_copy(io->device, y, &from, io->queue);
}

/* Every element of the gradient is added at its place, in order. */
ts_status tsi_cuda_as_strided_backward(const tsi_kernel_io *io)
{
    const tsi_strided_attributes *attributes = io->attributes;
    const tsi_block *dy = &io->in[0].block, *dx = &io->out[0].block;
    unsigned char zero[16] = { 0 };
    tsi_cuda_put_args a = { .dtype = dx->dtype, .rows = tsi_block_count(dx) };
    if (!io->queue || tsi_cuda_rows_room(dx, dx->ndim) > 0 || dy->dtype != dx->dtype ||
        !tsi_cuda_put_adds(tsi_block_count(dy), a.rows))
        return (ts_status)TSI_KERNEL_DECLINED;
    if (a.rows == 0) return TS_OK;
    int64_t size = (int64_t)ts_dtype_size((ts_dtype)dx->dtype);
    a.first = attributes->offset;
    a.near.data = dy->data;
    a.far.data = (char *)dx->data + a.first * size;
    for (int32_t d = 0; d < dy->ndim; d++) {
        a.near.stride[d] = dy->stride[d];
        a.far.stride[d] = a.row.stride[d] = attributes->stride.value[d];
    }
    tsi_cuda_space_make(&a.space, dy->ndim, dy->extent);
    tsi_cuda_space_make(&a.rest, 0, NULL);
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    TSI_TRY(io->device->fill(io->device, dx, zero, io->queue));
    return tsi_cuda_put_add(io->queue, &a);
}
