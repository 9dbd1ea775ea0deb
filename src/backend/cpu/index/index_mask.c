/* SPDX-License-Identifier: Apache-2.0 */
/* index_mask.c - masked_select and its gradient on all threads.
 *
 *   elements of each piece that are set are counted -> where each piece's go -> packed, or spread
 *
 * Pieces are PIECE positions in row-major order. The count must be what the caller said; where it
 * is not, nothing is written and the reference says so. */
#include "backend/cpu/data.h"
#include "op/index/index.h"

enum { PIECE = 2048, PART = 256, GRAIN = 8 };

typedef struct masking {
    const tsi_kernel_io *io;
    tsi_block x, mask; /* of equal extents, dims merged */
    char *line;        /* the elements that are set, one after another: line_step bytes apart */
    int64_t count, line_count, line_step; /* positions; elements */
    int64_t *start;                       /* per piece, and the end */
    size_t size;
    bool packs;
} masking;

typedef struct run { /* positions that lie in one row */
    char *x;
    const unsigned char *mask;
    int64_t count;
} run;

static run run_at(const masking *m, int64_t position, int64_t end)
{
    int32_t last = m->x.ndim - 1;
    int64_t left = m->x.extent[last] - position % m->x.extent[last], x = 0, mask = 0;
    run r = { .count = left < end - position ? left : end - position };
    for (int32_t d = last; d >= 0; d--) {
        x += position % m->x.extent[d] * m->x.stride[d];
        mask += position % m->x.extent[d] * m->mask.stride[d];
        position /= m->x.extent[d];
    }
    r.x = tsi_block_at(&m->x, x);
    r.mask = tsi_block_at(&m->mask, mask);
    return r;
}

static int64_t piece_end(const masking *m, int64_t piece)
{
    return (piece + 1) * PIECE < m->count ? (piece + 1) * PIECE : m->count;
}

static void count_pieces(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const masking *m = context;
    int64_t step = m->mask.stride[m->mask.ndim - 1];
    for (int64_t piece = begin; piece < end; piece++) {
        int64_t set = 0, stop = piece_end(m, piece);
        for (int64_t at = piece * PIECE; at < stop;) {
            run r = run_at(m, at, stop);
            for (int64_t i = 0; i < r.count; i++)
                set += r.mask[i * step] != 0;
            at += r.count;
        }
        m->start[piece + 1] = set;
    }
}

/* At most PART positions; every one is written to the buffer, and the next one over it unless it is
 * set. Returns how many stay. */
static TSI_INLINE int64_t pack_part(char *buffer, const char *x, int64_t x_step,
                                    const unsigned char *mask, int64_t mask_step, int64_t n,
                                    size_t size)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
        tsi_copy_one(buffer + kept * (int64_t)size, x + i * x_step, size);
        kept += mask[i * mask_step] != 0;
    }
    return kept;
}

static TSI_INLINE void pack_run(const masking *m, const run *r, int64_t *next, size_t size)
{
    char buffer[(PART + 1) * 16];
    int64_t x_step = m->x.stride[m->x.ndim - 1] * (int64_t)size;
    int64_t mask_step = m->mask.stride[m->mask.ndim - 1];
    for (int64_t at = 0; at < r->count; at += PART) {
        int64_t n = r->count - at < PART ? r->count - at : PART;
        int64_t kept = pack_part(buffer, r->x + at * x_step, x_step, r->mask + at * mask_step,
                                 mask_step, n, size);
        memcpy(m->line + *next * (int64_t)size, buffer, (size_t)kept * size);
        *next += kept;
    }
}

static TSI_INLINE void spread_run(const masking *m, const run *r, int64_t *next, size_t size)
{
    int64_t x_step = m->x.stride[m->x.ndim - 1] * (int64_t)size, at = *next;
    int64_t mask_step = m->mask.stride[m->mask.ndim - 1];
    for (int64_t i = 0; i < r->count; i++) {
        if (r->mask[i * mask_step])
            tsi_copy_one(r->x + i * x_step, m->line + at++ * m->line_step, size);
        else
            memset(r->x + i * x_step, 0, size);
    }
    *next = at;
}

static TSI_INLINE void move_run(const masking *m, const run *r, int64_t *next, size_t size)
{
    if (m->packs)
        pack_run(m, r, next, size);
    else
        spread_run(m, r, next, size);
}

static void move_pieces(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const masking *m = context;
    for (int64_t piece = begin; piece < end; piece++) {
        int64_t next = m->start[piece], stop = piece_end(m, piece);
        for (int64_t at = piece * PIECE; at < stop;) {
            run r = run_at(m, at, stop);
            if (m->size == 4)
                move_run(m, &r, &next, 4);
            else if (m->size == 2)
                move_run(m, &r, &next, 2);
            else if (m->size == 8)
                move_run(m, &r, &next, 8);
            else if (m->size == 1)
                move_run(m, &r, &next, 1);
            else
                move_run(m, &r, &next, 16);
            at += r.count;
        }
    }
}

static ts_status run_mask(masking *m)
{
    tsi_scratch scratch;
    m->count = tsi_block_count(&m->x);
    m->size = ts_dtype_size((ts_dtype)m->x.dtype);
    if (m->count == 0) return (ts_status)TSI_KERNEL_DECLINED;
    tsi_block_coalesce_pair(&m->x, &m->mask);
    if (m->x.ndim == 0) { /* one element */
        m->x.ndim = m->mask.ndim = 1;
        m->x.extent[0] = m->mask.extent[0] = 1;
        m->x.stride[0] = m->mask.stride[0] = 1;
    }
    int64_t pieces = (m->count - 1) / PIECE + 1;
    TSI_TRY(tsi_scratch_get(&scratch, m->io->rank, (size_t)pieces + 1, sizeof *m->start));
    m->start = scratch.data;
    m->start[0] = 0;
    tsi_parallel_for(m->io->rank, pieces, GRAIN, count_pieces, m);
    for (int64_t i = 0; i < pieces; i++)
        m->start[i + 1] += m->start[i];
    bool fits = m->start[pieces] == m->line_count;
    if (fits) tsi_parallel_for(m->io->rank, pieces, GRAIN, move_pieces, m);
    tsi_scratch_done(&scratch);
    return fits ? TS_OK : (ts_status)TSI_KERNEL_DECLINED;
}

ts_status tsi_cpu_masked_select(const tsi_kernel_io *io)
{
    masking m = { .io = io,
                  .x = io->in[0].block,
                  .mask = io->in[1].block,
                  .line = io->out[0].block.data,
                  .line_count = ((const tsi_masked_attributes *)io->attributes)->count,
                  .packs = true };
    return run_mask(&m);
}

ts_status tsi_cpu_masked_select_backward(const tsi_kernel_io *io)
{
    const tsi_block *dy = &io->in[0].block;
    masking m = { .io = io,
                  .x = io->out[0].block,
                  .mask = io->in[1].block,
                  .line = dy->data,
                  .line_count = dy->extent[0] };
    m.line_step = dy->stride[0] * (int64_t)ts_dtype_size((ts_dtype)dy->dtype);
    return run_mask(&m);
}
