/* SPDX-License-Identifier: Apache-2.0 */
/* histogram.c - histc and bincount: counts by bins, and sums of weights by lists (put.c);
 * count_unique. */
#include <string.h>

#include "backend/cuda/complain.h"
#include "backend/cuda/dtype.h"
#include "backend/cuda/index.h"
#include "backend/cuda/kernel.h"
#include "backend/cuda/put.h"
#include "base/error.h"
#include "op/reduce/reduce.h"

enum { SHARED_BINS = 4096, BLOCKS_MAX = 1024 };

static void elements_of(const tsi_block *x, tsi_cuda_operand *from, tsi_cuda_space *space)
{
    int64_t extent[TS_NDIM_MAX];
    tsi_cuda_operand *const operands[] = { from };
    *from = tsi_cuda_operand_of(x);
    memcpy(extent, x->extent, sizeof extent);
    int32_t ndim = tsi_cuda_coalesce(x->ndim, extent, operands, 1);
    tsi_cuda_space_make(space, ndim, extent);
}

static void settle(const tsi_block *x, const tsi_block *out, tsi_cuda_histogram_args *a)
{
    elements_of(x, &a->from, &a->space);
    a->from_dtype = x->dtype;
    a->to = out->data;
    a->to_dtype = out->dtype;
    a->to_step = out->stride[0];
    a->bins = out->extent[0];
    a->shared = a->bins <= SHARED_BINS;
}

static int64_t blocks_for(const tsi_cuda_histogram_args *a)
{
    int64_t blocks = (a->space.count + TSI_CUDA_BLOCK - 1) / TSI_CUDA_BLOCK;
    return blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX;
}

/* Memory for the counts, and for the extremes of reals whose bounds are not given. */
static ts_status count(tsi_stream *stream, tsi_cuda_histogram_args *a, bool bounded)
{
    void *memory = NULL;
    int64_t blocks = blocks_for(a);
    size_t bytes = (size_t)(a->bins + 2) * sizeof *a->tally;
    TSI_TRY(tsi_cuda_scratch(stream, bytes, &memory));
    a->extreme = bounded ? NULL : memory;
    a->tally = (uint64_t *)memory + 2;
    TSI_CUDA_TRY(stream->cuda, "counts of bins",
                 tsi_cu.set_bytes(tsi_cuda_pointer(memory), 0, bytes, tsi_cuda_apart(stream)));
    if (!bounded && blocks > 0)
        TSI_TRY(tsi_cuda_launch(stream, TSI_CUDA_histogram_extremes, blocks, TSI_CUDA_BLOCK, 0, a));
    if (blocks > 0)
        TSI_TRY(tsi_cuda_launch(stream, TSI_CUDA_histogram_count, blocks, TSI_CUDA_BLOCK,
                                a->shared ? (int32_t)a->bins * (int32_t)sizeof(uint32_t) : 0, a));
    return tsi_cuda_launch_items(stream, TSI_CUDA_histogram_store, a->bins, a);
}

ts_status tsi_cuda_histc(const tsi_kernel_io *io)
{
    const tsi_histc_attributes *attributes = io->attributes;
    const tsi_block *x = &io->in[0].block;
    tsi_cuda_histogram_args a = { .min = attributes->min, .max = attributes->max };
    if (!io->queue || !tsi_cuda_is_real(x->dtype)) return (ts_status)TSI_KERNEL_DECLINED;
    settle(x, &io->out[0].block, &a);
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    return count(io->queue, &a, a.min != a.max);
}

/* ---- whole numbers --------------------------------------------------------------------------- */

/* Each weight is added where its number points, in order. */
static ts_status sum_weights(const tsi_kernel_io *io)
{
    const tsi_block *x = &io->in[0].block, *weights = &io->in[1].block, *out = &io->out[0].block;
    unsigned char zero[16] = { 0 };
    tsi_cuda_put_args a = { .count = 1, .dtype = out->dtype, .rows = out->extent[0] };
    if (!tsi_cuda_put_adds(x->extent[0], a.rows) || weights->dtype != out->dtype)
        return (ts_status)TSI_KERNEL_DECLINED;
    a.index[0] = (tsi_cuda_operand){ .data = x->data, .stride = { x->stride[0] } };
    a.near = (tsi_cuda_operand){ .data = weights->data, .stride = { weights->stride[0] } };
    a.far.data = out->data;
    a.index_dtype[0] = x->dtype;
    a.bound[0] = a.rows;
    a.far_step[0] = out->stride[0];
    a.row_step[0] = 1;
    tsi_cuda_space_make(&a.space, 1, x->extent);
    tsi_cuda_space_make(&a.rest, 0, NULL);
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    if (a.rows > 0) TSI_TRY(io->device->fill(io->device, out, zero, io->queue));
    TSI_TRY(tsi_cuda_index_check(io, 0, TSI_CUDA_BAD_NUMBER, a.rows, false, &a.asker));
    return tsi_cuda_put_add(io->queue, &a);
}

ts_status tsi_cuda_bincount(const tsi_kernel_io *io)
{
    const tsi_block *x = &io->in[0].block, *out = &io->out[0].block;
    tsi_cuda_histogram_args a = { .whole = 1 };
    if (!io->queue || !tsi_cuda_is_whole(x->dtype)) return (ts_status)TSI_KERNEL_DECLINED;
    if (io->input_count > 1 && io->in[1].global->dtype != TS_DTYPE_NONE) return sum_weights(io);
    settle(x, out, &a);
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    TSI_TRY(tsi_cuda_ask(io, TSI_CUDA_BAD_NUMBER, a.bins, io->in[0].region != NULL, &a.asker));
    return count(io->queue, &a, true);
}

/* ---- different values ------------------------------------------------------------------------ */

/* A table of at least twice as many slots, and the one behind it. */
static ts_status count_different(tsi_stream *stream, tsi_cuda_unique_args *a)
{
    CUdeviceptr memory = 0;
    for (a->slots = 64; a->slots < 2 * a->space.count;)
        a->slots *= 2;
    size_t bytes = (size_t)(a->slots + 1) * sizeof *a->table;
    TSI_TRY(tsi_cuda_memory(stream, "a table of values", bytes, &memory));
    a->table = (uint64_t *)(uintptr_t)memory;
    CUresult set = tsi_cu.set_bytes(memory, 0xff, bytes, tsi_cuda_apart(stream));
    ts_status status = set == CUDA_SUCCESS
                           ? tsi_cuda_launch_items(stream, TSI_CUDA_unique_count, a->space.count, a)
                           : tsi_cuda_fail(stream->cuda, set, "a table of values");
    (void)tsi_cu.free_async(memory, tsi_cuda_apart(stream));
    return status;
}

ts_status tsi_cuda_count_unique(const tsi_kernel_io *io)
{
    const tsi_block *x = &io->in[0].block;
    tsi_cuda_unique_args a = { .dtype = x->dtype, .whole = !tsi_cuda_is_real(x->dtype) };
    if (!io->queue || tsi_cuda_is_complex(x->dtype)) return (ts_status)TSI_KERNEL_DECLINED;
    elements_of(x, &a.from, &a.space);
    a.count = io->out[0].block.data;
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    TSI_CUDA_TRY(
        io->queue->cuda, "a count",
        tsi_cu.set_bytes(tsi_cuda_pointer(a.count), 0, sizeof *a.count, tsi_cuda_apart(io->queue)));
    return a.space.count ? count_different(io->queue, &a) : TS_OK;
}
