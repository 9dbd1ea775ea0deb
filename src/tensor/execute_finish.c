/* SPDX-License-Identifier: Apache-2.0 */
/* execute_finish.c - p-norms and averages: what reductions do besides folding.
 *
 * A p-norm is the p-th root of a sum of p-th powers, so the source is raised in a copy of its own
 * and the owners of results take roots. Averages among sums are divided by their owners. Elements
 * go through doubles, in runs of the last dim; averages of whole numbers truncate. */
#include <math.h>
#include <string.h>

#include "array/image.h"
#include "base/alloc.h"
#include "tensor/execute.h"

static double finish_real(double x, const tsi_finishing *f, bool before)
{
    if (before) {
        if (f->power == 2.0) return x * x;
        return f->power == 1.0 ? fabs(x) : pow(fabs(x), f->power);
    }
    if (f->divide > 1) x /= (double)f->divide;
    if (f->power == 0.0 || f->power == 1.0) return x;
    return f->power == 2.0 ? sqrt(x) : pow(x, 1.0 / f->power);
}

/* Applies the function to every element of a block, in runs of its last dim, through doubles (or
 * pairs of them, or int64 where the dtype is whole: averages of integers truncate). */
static ts_status finish_run(const tsi_block *run, const tsi_finishing *f, bool before)
{
    enum { CHUNK = 256 };
    double real[2 * CHUNK];
    int64_t whole[CHUNK];
    const tsi_device *host = tsi_device_host();
    ts_dtype dtype = (ts_dtype)run->dtype;
    bool complex_ = dtype == TS_DTYPE_C64 || dtype == TS_DTYPE_C128;
    bool real_ = dtype == TS_DTYPE_F64 || dtype == TS_DTYPE_F32 || dtype == TS_DTYPE_BF16 ||
                 dtype == TS_DTYPE_F16;
    size_t bytes = ts_dtype_size(dtype);
    for (int64_t done = 0; done < run->extent[0]; done += CHUNK) {
        int64_t n = run->extent[0] - done < CHUNK ? run->extent[0] - done : CHUNK;
        tsi_block part = *run, wide = { .ndim = 1, .extent = { n }, .stride = { 1 } };
        part.extent[0] = n;
        part.data = (char *)run->data + (size_t)(done * run->stride[0]) * bytes;
        wide.dtype = complex_ ? TS_DTYPE_C128 : real_ ? TS_DTYPE_F64 : TS_DTYPE_I64;
        wide.data = real_ || complex_ ? (void *)real : (void *)whole;
        TSI_TRY(host->copy(host, &wide, &part, NULL));
        for (int64_t i = 0; i < (complex_ ? 2 * n : n); i++) {
            if (complex_)
                real[i] /= (double)f->divide; /* sums and averages alone exist */
            else if (real_)
                real[i] = finish_real(real[i], f, before);
            else
                whole[i] /= f->divide;
        }
        TSI_TRY(host->copy(host, &part, &wide, NULL));
    }
    return TS_OK;
}

static ts_status finish_image(const tsi_block *block, const tsi_finishing *f, bool before)
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
        TSI_TRY(finish_run(&run, f, before));
        int32_t d = last - 1;
        while (d >= 0 && ++index[d] == block->extent[d])
            index[d--] = 0;
        if (d < 0) return TS_OK;
    }
}

typedef struct finish_task {
    tsi_block block;
    tsi_finishing finishing;
    bool before;
} finish_task;

static ts_status finish_later(void *context)
{
    const finish_task *task = context;
    return finish_image(&task->block, &task->finishing, task->before);
}

/* In the queue where that runs code of the host, else in an image. */
static ts_status finish_block(ts_rank *rank, const tsi_block *block, const tsi_finishing *f,
                              bool before)
{
    const tsi_rank_device *mine = tsi_rank_device_of(rank);
    if (!mine) return ts_rank_status(rank);
    if (mine->device->defer) {
        finish_task *task = tsi_alloc(sizeof *task);
        if (!task) return tsi_fail_memory("the last step of a reduction", sizeof *task);
        *task = (finish_task){ *block, *f, before };
        return mine->device->defer(mine->device, mine->queue, finish_later, task, tsi_free);
    }
    tsi_image image;
    TSI_TRY(tsi_image_open(rank, block, TSI_IMAGE_READ | TSI_IMAGE_WRITE, &image));
    ts_status status = tsi_rank_device_sync(rank);
    if (status == TS_OK) status = finish_image(&image.block, f, before);
    if (status == TS_OK) return tsi_image_close(&image);
    tsi_image_drop(&image);
    return status;
}

bool tsi_program_finishes(const tsi_program *program)
{
    return program->part.power != 0.0 || program->part.divide > 1;
}

/* Results are the blocks that were received without combining into another. */
ts_status tsi_round_finish(ts_rank *rank, const tsi_program *program,
                           const tsi_exchange_round *round, const tsi_array *to)
{
    tsi_finishing f = { program->part.power, program->part.divide > 1 ? program->part.divide : 1 };
    if (!round->reduces || !tsi_program_finishes(program)) return TS_OK;
    for (int64_t i = 0; i < round->recv_count; i++) {
        const ts_part *part = &round->recv[i];
        if (part->combine) continue;
        tsi_block block = { .data = part->data, .dtype = to->dtype, .ndim = part->ndim };
        memcpy(block.extent, part->extent, sizeof block.extent);
        memcpy(block.stride, part->stride, sizeof block.stride);
        TSI_TRY(finish_block(rank, &block, &f, false));
    }
    return TS_OK;
}

tsi_array *tsi_powered(ts_rank *rank, const tsi_array *from, double power)
{
    ts_shape shape = tsi_array_shape(from);
    tsi_array *copy = tsi_array_create_tagged(rank, (ts_dtype)from->dtype, &shape, TSI_TAG_COMM);
    if (!copy) return NULL;
    tsi_finishing f = { .power = power, .divide = 1 };
    tsi_block block = tsi_array_block(copy);
    if (tsi_array_copy(copy, from) == TS_OK && finish_block(rank, &block, &f, true) == TS_OK)
        return copy;
    tsi_array_release(copy);
    return NULL;
}
