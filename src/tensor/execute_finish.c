/* SPDX-License-Identifier: Apache-2.0 */
/* execute_finish.c - p-norms: what reductions do besides folding.
 *
 * A p-norm is the p-th root of a sum of p-th powers, so the source is raised in a copy of its own
 * and the owners of results take roots. Elements go through doubles, in runs of the last dim. */
#include <math.h>

#include "array/image.h"
#include "base/alloc.h"
#include "base/keep.h"
#include "comm/engine.h"
#include "device/block_task.h"
#include "tensor/execute.h"

static double power_of(double x, double power)
{
    if (power == 2.0) return x * x;
    return power == 1.0 ? fabs(x) : pow(fabs(x), power);
}

static double root_of(double x, double power)
{
    if (power == 1.0) return x;
    return power == 2.0 ? sqrt(x) : pow(x, 1.0 / power);
}

/* Powers (or roots) of every element of a run. */
static ts_status finish_run(const tsi_block *run, double power, bool before)
{
    enum { CHUNK = 256 };
    double real[CHUNK];
    const tsi_device *host = tsi_device_host();
    size_t bytes = ts_dtype_size((ts_dtype)run->dtype);
    for (int64_t done = 0; done < run->extent[0]; done += CHUNK) {
        int64_t n = run->extent[0] - done < CHUNK ? run->extent[0] - done : CHUNK;
        tsi_block part = *run, wide = {
            .data = real, .dtype = TS_DTYPE_F64, .ndim = 1, .extent = { n }, .stride = { 1 }
        };
        part.extent[0] = n;
        part.data = (char *)run->data + (size_t)(done * run->stride[0]) * bytes;
        TSI_TRY(host->copy(host, &wide, &part, NULL));
        for (int64_t i = 0; i < n; i++)
            real[i] = before ? power_of(real[i], power) : root_of(real[i], power);
        TSI_TRY(host->copy(host, &part, &wide, NULL));
    }
    return TS_OK;
}

static ts_status finish_image(const tsi_block *block, double power, bool before)
{
    if (tsi_block_count(block) == 0) return TS_OK;
    int32_t last = block->ndim - 1;
    tsi_block run = { .dtype = block->dtype,
                      .ndim = 1,
                      .extent = { last >= 0 ? block->extent[last] : 1 },
                      .stride = { last >= 0 ? block->stride[last] : 1 } };
    int64_t index[TS_NDIM_MAX] = { 0 };
    size_t bytes = ts_dtype_size((ts_dtype)block->dtype);
    for (;;) {
        int64_t offset = 0;
        for (int32_t d = 0; d < last; d++)
            offset += index[d] * block->stride[d];
        run.data = (char *)block->data + (size_t)offset * bytes;
        TSI_TRY(finish_run(&run, power, before));
        int32_t d = last - 1;
        while (d >= 0 && ++index[d] == block->extent[d])
            index[d--] = 0;
        if (d < 0) return TS_OK;
    }
}

typedef struct finish_task {
    tsi_block block;
    double power;
    bool before;
} finish_task;

static ts_status finish_later(void *context)
{
    const finish_task *task = context;
    return finish_image(&task->block, task->power, task->before);
}

static void finish_touches(void *context, tsi_kept_tell tell, void *to)
{
    finish_task *task = context;
    tsi_block_touch(&task->block, true, tell, to);
}

static const tsi_kept_kind finish_kind = { TSI_KEPT_FREE, finish_touches };

/* Later, in the device's queue; a step that is recorded knows what it touches. */
static ts_status finish_deferred(ts_rank *rank, const tsi_rank_device *mine, finish_task *task)
{
    if (mine->device != tsi_device_keeping())
        return mine->device->defer(mine->device, mine->queue, finish_later, task, tsi_free);
    return tsi_keep_work(rank, (tsi_kept_work){ finish_later, task, tsi_free, &finish_kind });
}

/* By the device's own function, in the queue where that runs code of the host, else in an image. */
static ts_status finish_block(ts_rank *rank, const tsi_block *block, double power, bool before)
{
    const tsi_rank_device *mine = tsi_rank_device_of(rank);
    bool done = false;
    if (!mine) return ts_rank_status(rank);
    if (mine->device->power)
        TSI_TRY(mine->device->power(mine->device, block, power, !before, mine->queue, &done));
    if (done) return TS_OK;
    if (mine->device->defer) {
        finish_task *task = tsi_alloc(sizeof *task);
        if (!task) return tsi_fail_memory("the last step of a reduction", sizeof *task);
        *task = (finish_task){ *block, power, before };
        task->block.data = tsi_device_near(mine->device, block->data);
        return finish_deferred(rank, mine, task);
    }
    tsi_image image;
    TSI_TRY(tsi_image_open(rank, block, TSI_IMAGE_READ | TSI_IMAGE_WRITE, &image));
    ts_status status = tsi_rank_device_sync(rank);
    if (status == TS_OK) status = finish_image(&image.block, power, before);
    if (status == TS_OK) return tsi_image_close(&image);
    tsi_image_drop(&image);
    return status;
}

bool tsi_program_finishes(const tsi_program *program)
{
    return program->part.power != 0.0;
}

/* Results are the blocks that were received without combining into another. */
ts_status tsi_round_finish(ts_rank *rank, const tsi_program *program,
                           const tsi_exchange_round *round, const tsi_array *to)
{
    if (!round->reduces || !tsi_program_finishes(program)) return TS_OK;
    for (int64_t i = 0; i < round->recv_count; i++) {
        const ts_part *part = &round->recv[i];
        if (part->combine) continue;
        tsi_block block = tsi_part_block(part, to->dtype);
        TSI_TRY(finish_block(rank, &block, program->part.power, false));
    }
    return TS_OK;
}

tsi_array *tsi_powered(ts_rank *rank, const tsi_array *from, double power)
{
    ts_shape shape = tsi_array_shape(from);
    tsi_array *copy = tsi_array_create_tagged(rank, (ts_dtype)from->dtype, &shape, TSI_TAG_COMM);
    if (!copy) return NULL;
    tsi_block block = tsi_array_block(copy);
    if (tsi_array_copy(copy, from) == TS_OK && finish_block(rank, &block, power, true) == TS_OK)
        return copy;
    tsi_array_release(copy);
    return NULL;
}
