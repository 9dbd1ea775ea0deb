/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_lines.c - one dim looked at as lines of contiguous f32: where they lie, or gathered. */
#include "backend/cpu/reduce/reduce_lines.h"

enum { GRAIN = 32768 };

/* The block with its dim `dim` at the end; of a result without that dim, one element there. */
static tsi_block dim_last(const tsi_block *block, int32_t dim, bool missing)
{
    tsi_block moved = *block;
    int32_t to = 0, ndim = block->ndim + missing;
    for (int32_t d = 0; d < block->ndim; d++) {
        if (!missing && d == dim) continue;
        moved.extent[to] = block->extent[d];
        moved.stride[to++] = block->stride[d];
    }
    moved.extent[to] = missing ? 1 : block->extent[dim];
    moved.stride[to] = missing ? 0 : block->stride[dim];
    moved.ndim = ndim;
    return moved;
}

static void run_lines(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const tsi_lines *l = context;
    const tsi_walk *walk = &l->walk;
    float *buffer = l->buffer ? l->buffer + worker * walk->length : NULL;
    tsi_walker walker;
    tsi_walker_start(&walker, walk, begin);
    for (int64_t i = begin; i < end; i++, tsi_walker_next(&walker)) {
        const float *x = (const float *)(const void *)walker.at[0];
        if (buffer) {
            tsi_gather(TS_DTYPE_F32, buffer, l->in_dtype, walker.at[0],
                       walk->stride[0][walk->ndim - 1], walk->length);
            x = buffer;
        }
        l->run(l, x, walker.at + 1);
    }
}

ts_status tsi_lines_run(tsi_lines *l, int32_t dim, bool reduced)
{
    const tsi_kernel_io *io = l->io;
    const tsi_block *in = &io->in[0].block, *block[3];
    tsi_block moved[3];
    moved[0] = dim_last(in, dim, false);
    block[0] = &moved[0];
    for (int32_t i = 0; i < io->output_count; i++) {
        const tsi_block *out = &io->out[i].block;
        moved[i + 1] = dim_last(out, dim, reduced && out->ndim < in->ndim);
        block[i + 1] = &moved[i + 1];
    }
    l->set = tsi_rows();
    l->in_dtype = (ts_dtype)in->dtype;
    tsi_walk_make(&l->walk, block, io->output_count + 1, 1);
    const tsi_walk *walk = &l->walk;
    tsi_scratch scratch = { 0 };
    if (in->dtype != TS_DTYPE_F32 || walk->stride[0][walk->ndim - 1] != (int64_t)sizeof(float))
        TSI_TRY(tsi_scratch_get(&scratch, io->rank,
                                (size_t)(walk->length * tsi_parallel_threads(io->rank)),
                                sizeof(float)));
    l->buffer = scratch.data;
    tsi_parallel_for(io->rank, walk->rows, GRAIN / (walk->length + 8) + 1, run_lines, l);
    tsi_scratch_done(&scratch);
    return TS_OK;
}

int32_t tsi_lines_dim(const tsi_kernel_io *io)
{
    const tsi_reduce_attributes *a = io->attributes;
    const tsi_block *in = &io->in[0].block;
    if (a->dims.count != 1 || !tsi_is_small_real(in->dtype) || tsi_block_count(in) == 0) return -1;
    return (int32_t)a->dims.value[0];
}
