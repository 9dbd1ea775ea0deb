/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_lines.c - dims looked at as lines of contiguous elements: where they lie, or gathered. */
#include "backend/cpu/reduce/reduce_lines.h"

enum { GRAIN = 32768 };

/* Where the lines of a block begin: its dims but those of `gone`, and a last one of one element,
 * which is the row of the walk. */
static tsi_block beginnings(const tsi_block *block, uint32_t gone)
{
    tsi_block kept = *block;
    kept.ndim = 0;
    for (int32_t d = 0; d < block->ndim; d++) {
        if (gone >> d & 1) continue;
        kept.extent[kept.ndim] = block->extent[d];
        kept.stride[kept.ndim++] = block->stride[d];
    }
    kept.extent[kept.ndim] = 1;
    kept.stride[kept.ndim++] = 0;
    return kept;
}

static void run_lines(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const tsi_lines *l = context;
    float *buffer = l->buffer ? l->buffer + worker * l->in.count : NULL;
    tsi_walker walker;
    tsi_walker_start(&walker, &l->walk, begin);
    for (int64_t i = begin; i < end; i++, tsi_walker_next(&walker)) {
        if (buffer) tsi_line_gather(&l->in, walker.at[0], TS_DTYPE_F32, buffer);
        l->run(l, buffer ? (const void *)buffer : walker.at[0], walker.at + 1);
    }
}

/* The dims of `mask` are the line; a result that is reduced has none of them, or of extent 1. */
static ts_status run(tsi_lines *l, uint32_t mask, bool reduced)
{
    const tsi_kernel_io *io = l->io;
    const tsi_block *in = &io->in[0].block, *block[3];
    tsi_block kept[3], moved = tsi_block_with_last(in, mask);
    kept[0] = beginnings(in, mask);
    for (int32_t o = 0; o < io->output_count; o++) {
        const tsi_block *out = &io->out[o].block;
        kept[o + 1] = beginnings(out, reduced && out->ndim < in->ndim ? 0 : mask);
    }
    for (int32_t i = 0; i <= io->output_count; i++)
        block[i] = &kept[i];
    l->set = tsi_rows();
    tsi_walk_make(&l->walk, block, io->output_count + 1, 1);
    tsi_line_make(&l->in, &moved, kept[0].ndim - 1);
    l->narrow = l->takes_narrow && tsi_line_is_plain(&l->in, TS_DTYPE_BF16);
    tsi_scratch scratch = { 0 };
    int64_t workers = l->walk.rows > 1 ? tsi_parallel_threads(io->rank) : 1;
    if (!l->narrow && !tsi_line_is_plain(&l->in, TS_DTYPE_F32))
        TSI_TRY(
            tsi_scratch_get(&scratch, io->rank, (size_t)(l->in.count * workers), sizeof(float)));
    l->buffer = scratch.data;
    tsi_parallel_for(io->rank, l->walk.rows, GRAIN / (l->in.count + 8) + 1, run_lines, l);
    tsi_scratch_done(&scratch);
    return TS_OK;
}

ts_status tsi_lines_run(tsi_lines *l, int32_t dim)
{
    tsi_block moved = tsi_block_with_last(&l->io->out[0].block, 1u << dim);
    tsi_line_make(&l->out, &moved, moved.ndim - 1);
    return run(l, 1u << dim, false);
}

ts_status tsi_lines_reduce(tsi_lines *l)
{
    const tsi_block *in = &l->io->in[0].block;
    if (!tsi_is_small_real(in->dtype) || tsi_block_count(in) == 0)
        return (ts_status)TSI_KERNEL_DECLINED;
    return run(l, tsi_reduce_mask(l->io->attributes), true);
}
