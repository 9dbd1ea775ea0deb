/* SPDX-License-Identifier: Apache-2.0 */
/* update.c - lists: AdamW or SGD of all parameters, squares of all gradients, one table and one
 * launch. */
#include "op/nn/update.h"

#include "backend/cuda/dtype.h"
#include "backend/cuda/kernel.h"
#include "base/alloc.h"
#include "base/error.h"

typedef struct table {
    tsi_cuda_update_item *item; /* the stream's */
    void *memory;               /* scratch: the table, then a double for each chunk and item */
    int64_t items, chunks;
} table;

/* The stream keeps it: an update that ranks have agreed on, as those before it, takes no memory. */
static ts_status table_room(table *t, tsi_stream *stream, int64_t count)
{
    if (stream->update_room < count || !stream->update) {
        size_t bytes = ((size_t)count + 1) * sizeof *t->item;
        tsi_cuda_update_item *larger = tsi_alloc(bytes);
        if (!larger) return tsi_fail_memory("a table of updates", bytes);
        tsi_free(stream->update);
        stream->update = larger;
        stream->update_room = count;
    }
    t->item = stream->update;
    return TS_OK;
}

/* False: a dtype without code. Items without elements are left out. */
static bool table_fill(table *t, const tsi_list_io *io, int32_t parts)
{
    for (int64_t i = 0; i < io->count; i++) {
        const tsi_list_item *from = &io->item[i];
        if (from->count == 0) continue;
        tsi_cuda_update_item *to = &t->item[t->items++];
        *to = (tsi_cuda_update_item){ .count = from->count,
                                      .first_chunk = t->chunks,
                                      .base = from->base,
                                      .inner = from->inner,
                                      .outer = from->outer,
                                      .salt = from->salt };
        for (int32_t k = 0; k < TSI_CUDA_UPDATE_PARTS; k++) {
            if (k < parts && !tsi_cuda_is_real(from->part[k].dtype)) return false;
            to->part[k] = from->part[k].data;
            to->dtype[k] = (int32_t)from->part[k].dtype;
        }
        t->chunks += (from->count + TSI_CUDA_UPDATE_CHUNK - 1) / TSI_CUDA_UPDATE_CHUNK;
    }
    return t->chunks <= INT32_MAX;
}

static ts_status table_send(table *t, tsi_stream *stream, tsi_cuda_update_args *args)
{
    size_t bytes = (size_t)t->items * sizeof *t->item, before = stream->capture ? 0 : bytes;
    size_t sums = (size_t)(t->chunks + t->items) * sizeof(double);
    TSI_TRY(tsi_cuda_enter(stream->cuda));
    TSI_TRY(tsi_cuda_scratch(stream, before + sums, &t->memory));
    void *items = t->memory; /* in a capture it has memory of its own */
    args->partial = (double *)(void *)((char *)t->memory + before);
    args->items = t->items;
    args->chunks = t->chunks;
    TSI_TRY(stream->capture ? tsi_cuda_capture_table(stream, t->item, bytes, &items)
                            : tsi_cuda_stage_in(stream, items, t->item, bytes));
    args->item = items;
    return TS_OK;
}

static ts_status launch_squares(const table *t, tsi_stream *stream, tsi_cuda_update_args *args)
{
    TSI_TRY(tsi_cuda_launch(stream, TSI_CUDA_update_squares, t->chunks, TSI_CUDA_BLOCK, 0, args));
    TSI_TRY(
        tsi_cuda_launch(stream, TSI_CUDA_update_squares_items, t->items, TSI_CUDA_BLOCK, 0, args));
    return tsi_cuda_launch(stream, TSI_CUDA_update_squares_sum, 1, TSI_CUDA_BLOCK, 0, args);
}

/* `parts` of each item are there, and real. */
static ts_status run(const tsi_list_io *io, int32_t parts, tsi_cuda_update_args *args,
                     tsi_cuda_kernel kernel)
{
    table t = { .items = 0 };
    if (!io->queue) return (ts_status)TSI_KERNEL_DECLINED;
    TSI_TRY(table_room(&t, io->queue, io->count));
    if (!table_fill(&t, io, parts)) return (ts_status)TSI_KERNEL_DECLINED;
    if (t.items == 0) return TS_OK;
    TSI_TRY(table_send(&t, io->queue, args));
    return kernel == TSI_CUDA_update_squares
               ? launch_squares(&t, io->queue, args)
               : tsi_cuda_launch(io->queue, kernel, t.chunks, TSI_CUDA_BLOCK, 0, args);
}

ts_status tsi_cuda_list_adamw(const tsi_list_io *io)
{
    const tsi_adamw_step *s = io->attributes;
    const double *control = io->count > 0 ? io->item[0].part[TSI_UPDATE_CONTROL].data : NULL;
    tsi_cuda_update_args args = { .control = control,
                                  .beta1 = s->beta1,
                                  .beta2 = s->beta2,
                                  .epsilon = s->epsilon,
                                  .weight_decay = s->weight_decay,
                                  .lr = s->lr,
                                  .correction1 = s->correction1,
                                  .correction2 = s->correction2,
                                  .factor = s->factor,
                                  .steps = s->steps,
                                  .noise = s->noise };
    return run(io, 4, &args, s->noise ? TSI_CUDA_update_adamw_by_chance : TSI_CUDA_update_adamw);
}

ts_status tsi_cuda_list_sgd(const tsi_list_io *io)
{
    const tsi_sgd_step *s = io->attributes;
    bool moves = io->count > 0 && io->item[0].part[TSI_UPDATE_FIRST].data;
    tsi_cuda_update_args args = {
        .control = io->count > 0 ? io->item[0].part[TSI_UPDATE_CONTROL].data : NULL,
        .lr = s->lr,
        .momentum = s->momentum,
        .weight_decay = s->weight_decay,
        .factor = s->factor,
        .nesterov = s->nesterov,
        .first = s->first,
    };
    return run(io, moves ? 3 : 2, &args, TSI_CUDA_update_sgd);
}

ts_status tsi_cuda_list_squares(const tsi_list_io *io)
{
    tsi_cuda_update_args args = { .beta1 = 0 };
    return run(io, 1, &args, TSI_CUDA_update_squares);
}

ts_status tsi_cuda_list_decide(const tsi_list_io *io)
{
    if (!io->queue) return (ts_status)TSI_KERNEL_DECLINED;
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    for (int64_t i = 0; i < io->count; i++) {
        tsi_cuda_decide_args args = { .sum = io->item[i].part[TSI_DECIDE_SUMS].data,
                                      .control = io->item[i].part[TSI_DECIDE_CONTROL].data,
                                      .count = io->item[i].count };
        TSI_TRY(tsi_cuda_launch(io->queue, TSI_CUDA_update_decide, 1, 1, 0, &args));
    }
    return TS_OK;
}
