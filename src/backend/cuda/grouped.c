/* SPDX-License-Identifier: Apache-2.0 */
/* grouped.c - grouped_linear and its gradient: rows are listed by their groups on the device, so
 * the host waits for nothing. */
#include <string.h>

#include "backend/cuda/complain.h"
#include "backend/cuda/dtype.h"
#include "backend/cuda/kernel.h"
#include "base/error.h"

enum { TILE = 64, THREADS = 256, LIST_THREADS = 1024 };

/* All but the rows of x and y, which may have to be copied; their rows and columns are known. */
static bool settle(const tsi_kernel_io *io, const tsi_block *x, const tsi_block *y,
                   const tsi_operand *w, tsi_cuda_grouped_args *a)
{
    const tsi_block *group = &io->in[2].block;
    int64_t one;
    a->w = w->block.data, a->group = group->data;
    a->w_group = w->block.stride[0], a->w_outer = w->block.stride[1];
    a->w_inner = w->block.stride[2];
    a->groups = w->block.extent[0];
    a->inner = x->extent[x->ndim - 1];
    a->outer = y->extent[y->ndim - 1];
    a->dtype = x->dtype;
    a->group_dtype = group->dtype;
    return io->queue && tsi_cuda_is_real(x->dtype) && y->dtype == x->dtype &&
           w->block.dtype == x->dtype && tsi_cuda_is_whole(group->dtype) &&
           tsi_cuda_rows_of(group, 0, &a->rows, &one, &a->group_stride) && a->rows < INT32_MAX &&
           tsi_cuda_places_make(&a->place, w->region, 0);
}

/* Rows of x and y, and behind their copies the room of the lists. */
static ts_status rows_make(const tsi_kernel_io *io, tsi_block x, tsi_block y,
                           tsi_cuda_grouped_args *a)
{
    int64_t rows, length;
    void *memory = NULL;
    size_t lists = (2 * (size_t)a->groups + (size_t)a->rows) * sizeof(int32_t);
    size_t copies = tsi_cuda_rows_room(&x, 1) + tsi_cuda_rows_room(&y, 1);
    TSI_TRY(tsi_cuda_scratch(io->queue, copies + lists, &memory));
    char *room = memory;
    TSI_TRY(tsi_cuda_rows_make(io->queue, &x, 1, &room));
    TSI_TRY(tsi_cuda_rows_make(io->queue, &y, 1, &room));
    (void)tsi_cuda_rows_of(&x, 1, &rows, &length, &a->x_row);
    (void)tsi_cuda_rows_of(&y, 1, &rows, &length, &a->y_row);
    a->x = x.data;
    a->y = y.data;
    a->count = (int32_t *)(void *)room;
    a->begin = a->count + a->groups;
    a->order = a->begin + a->groups;
    return TS_OK;
}

static ts_status lists_make(const tsi_kernel_io *io, const tsi_operand *w, tsi_cuda_grouped_args *a)
{
    /* Peers may have other rows: they are told. */
    TSI_TRY(tsi_cuda_ask(io, TSI_CUDA_BAD_GROUP, w->global->shape.extent[0], true, &a->asker));
    TSI_TRY(tsi_cuda_launch(io->queue, TSI_CUDA_grouped_count, a->groups, LIST_THREADS, 0, a));
    return tsi_cuda_launch(io->queue, TSI_CUDA_grouped_list, a->groups, LIST_THREADS, 0, a);
}

ts_status tsi_cuda_grouped_linear(const tsi_kernel_io *io)
{
    const tsi_block *y = &io->out[0].block;
    tsi_cuda_grouped_args a = { .rows = 0 };
    if (!settle(io, &io->in[0].block, y, &io->in[1], &a) || tsi_cuda_rows_room(y, 1) > 0)
        return (ts_status)TSI_KERNEL_DECLINED;
    if (tsi_block_count(y) == 0) return TS_OK;
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    if (a.place.count > 0 || a.groups == 0) { /* rows of other ranks' groups are zeros */
        unsigned char zero[16] = { 0 };
        TSI_TRY(io->device->fill(io->device, y, zero, io->queue));
        if (a.groups == 0) return TS_OK;
    }
    TSI_TRY(rows_make(io, io->in[0].block, *y, &a)); /* a result is rows: it is not copied */
    TSI_TRY(lists_make(io, &io->in[1], &a));
    int64_t tiles = (a.rows + TILE - 1) / TILE + a.groups, across = (a.outer + TILE - 1) / TILE;
    return tsi_cuda_launch(io->queue,
                           a.dtype == TS_DTYPE_F64 ? TSI_CUDA_grouped_f64 : TSI_CUDA_grouped_f32,
                           tiles * across, THREADS, 0, &a);
}

ts_status tsi_cuda_grouped_linear_backward(const tsi_kernel_io *io)
{
    const tsi_block *dy = &io->in[0].block, *x = &io->in[1].block;
    tsi_cuda_grouped_args a = { .rows = 0 };
    if (!settle(io, x, dy, &io->out[0], &a)) return (ts_status)TSI_KERNEL_DECLINED;
    if (tsi_block_count(&io->out[0].block) == 0) return TS_OK;
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    TSI_TRY(rows_make(io, *x, *dy, &a));
    TSI_TRY(lists_make(io, &io->out[0], &a));
    int64_t down = (a.outer + TILE - 1) / TILE, across = (a.inner + TILE - 1) / TILE;
    return tsi_cuda_launch(io->queue,
                           a.dtype == TS_DTYPE_F64 ? TSI_CUDA_grouped_backward_f64
                                                   : TSI_CUDA_grouped_backward_f32,
                           a.groups * down * across, THREADS, 0, &a);
}
