/* SPDX-License-Identifier: Apache-2.0 */
/* norm_backward.c - gradients of rms_norm and layer_norm of narrow reals, row by row: once over a
 * row for the two sums that dx needs, once more for dx and what the row adds to dw and db.
 *
 * INV: rows are cut into chunks by their number alone; each chunk has its own dw and db, and these
 * are added up in order. So the bits do not depend on the number of threads. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/compiler.h"
#include "op/core/element.h"

enum { CHUNKS = 32, CHUNK_ROWS = 16, BUFFERS = 3 };
enum { DY, X, WEIGHT, SCALE, MEAN };

typedef struct backward {
    const tsi_kernel_io *io;
    const tsi_row_set *set;
    tsi_block dy, x, dx; /* [rows.., length] */
    tsi_block sum[2];    /* dw and db: [length] */
    const float *weight;
    float *sums;   /* [chunks][2][length]: dw and db */
    float *buffer; /* per worker: three rows; NULL: all rows are used where they lie */
    int64_t rows, length, chunk;
    int32_t outer; /* dims before the normalized ones */
    bool layer;
} backward;

/* Where row `index` of the outer dims begins. */
static char *row_at(const backward *b, const tsi_block *block, int64_t index)
{
    int64_t at = 0;
    for (int32_t d = b->outer - 1; d >= 0; d--) {
        at += index % b->x.extent[d] * block->stride[d];
        index /= b->x.extent[d];
    }
    return (char *)block->data + at * (int64_t)ts_dtype_size((ts_dtype)block->dtype);
}

static double moment(const backward *b, int32_t input, int64_t row)
{
    const tsi_block *block = &b->io->in[input].block;
    return tsi_load_real((ts_dtype)block->dtype, row_at(b, block, row));
}

static void back_row(const backward *b, int64_t row, float *dx, const float *dy, const float *x,
                     float *sums)
{
    float numbers[4] = { b->layer ? (float)moment(b, MEAN, row) : 0.0f,
                         (float)moment(b, SCALE, row) };
    const float *const from[] = { dy, x, b->weight };
    float *const dw_db[] = { sums, b->layer ? sums + b->length : NULL };
    double sum[2];
    b->set->norm_back_sums(from, numbers, b->length, sum);
    numbers[2] = b->layer ? (float)(sum[0] / (double)b->length) : 0.0f;
    numbers[3] = (float)(sum[1] / (double)b->length);
    b->set->norm_back(dx, dw_db, from, numbers, b->length);
}

static int64_t stride_of(const backward *b, const tsi_block *block)
{
    return block->stride[b->outer] * (int64_t)ts_dtype_size((ts_dtype)block->dtype);
}

static void gather(const backward *b, const tsi_block *from, float *to, int64_t row)
{
    tsi_gather(TS_DTYPE_F32, to, (ts_dtype)from->dtype, row_at(b, from, row), stride_of(b, from),
               b->length);
}

static void run_chunks(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const backward *b = context;
    float *mine = b->buffer ? b->buffer + BUFFERS * worker * b->length : NULL;
    for (int64_t c = begin; c < end; c++) {
        float *sums = b->sums + 2 * c * b->length;
        memset(sums, 0, (size_t)(2 * b->length) * sizeof *sums);
        int64_t last = (c + 1) * b->chunk < b->rows ? (c + 1) * b->chunk : b->rows;
        for (int64_t row = c * b->chunk; row < last; row++) {
            if (!mine) {
                back_row(b, row, (float *)(void *)row_at(b, &b->dx, row),
                         (const float *)(const void *)row_at(b, &b->dy, row),
                         (const float *)(const void *)row_at(b, &b->x, row), sums);
                continue;
            }
            gather(b, &b->dy, mine, row);
            gather(b, &b->x, mine + b->length, row);
            back_row(b, row, mine + 2 * b->length, mine, mine + b->length, sums);
            tsi_scatter((ts_dtype)b->dx.dtype, row_at(b, &b->dx, row), stride_of(b, &b->dx),
                        TS_DTYPE_F32, mine + 2 * b->length, b->length);
        }
    }
}

/* dw, or db, from those of all chunks. */
static void fold_chunks(const backward *b, int32_t output, int64_t chunks)
{
    const tsi_block *out = &b->sum[output - 1];
    int64_t size = out->stride[0] * (int64_t)ts_dtype_size((ts_dtype)out->dtype);
    const float *from = b->sums + (output - 1) * b->length;
    for (int64_t i = 0; i < b->length; i++) {
        double total = 0;
        for (int64_t c = 0; c < chunks; c++)
            total += (double)from[2 * c * b->length + i];
        tsi_store_real((ts_dtype)out->dtype, (char *)out->data + i * size, total);
    }
}

/* The operands as rows; false: dtypes without loops, or dims that do not merge. */
static bool settle(backward *b, const tsi_block *weight, tsi_block *flat)
{
    const tsi_kernel_io *io = b->io;
    for (int32_t i = DY; i <= WEIGHT; i++)
        if (!tsi_is_small_real(io->in[i].block.dtype)) return false;
    if (!tsi_block_flatten(&io->in[DY].block, b->outer, &b->dy) ||
        !tsi_block_flatten(&io->in[X].block, b->outer, &b->x) ||
        !tsi_block_flatten(&io->out[0].block, b->outer, &b->dx) ||
        !tsi_block_flatten(weight, 0, flat))
        return false;
    for (int32_t o = 1; o < io->output_count; o++)
        if (!tsi_block_flatten(&io->out[o].block, 0, &b->sum[o - 1])) return false;
    return tsi_block_count(&io->in[X].block) > 0;
}

static bool lies_plain(const backward *b, const tsi_block *rows)
{
    return rows->dtype == TS_DTYPE_F32 && (b->length == 1 || rows->stride[b->outer] == 1);
}

ts_status tsi_cpu_norm_backward(const tsi_kernel_io *io)
{
    const tsi_block *x = &io->in[X].block, *w = &io->in[WEIGHT].block;
    backward b = { .io = io, .set = tsi_rows(), .layer = io->op == &tsi_op_layer_norm_backward };
    b.outer = x->ndim - w->ndim;
    tsi_block flat;
    if (!settle(&b, w, &flat)) return (ts_status)TSI_KERNEL_DECLINED;
    b.length = tsi_block_count(w);
    b.rows = tsi_block_count(x) / b.length;
    b.chunk = b.rows / CHUNKS + 1 > CHUNK_ROWS ? b.rows / CHUNKS + 1 : CHUNK_ROWS;
    int64_t chunks = (b.rows - 1) / b.chunk + 1;
    bool direct = lies_plain(&b, &b.dy) && lies_plain(&b, &b.x) && lies_plain(&b, &b.dx);
    int64_t buffers = direct ? 0 : BUFFERS * tsi_parallel_threads(io->rank);
    tsi_scratch scratch;
    TSI_TRY(tsi_scratch_get(&scratch, io->rank, (size_t)((buffers + 1 + 2 * chunks) * b.length),
                            sizeof(float)));
    float *weight = scratch.data;
    tsi_gather(TS_DTYPE_F32, weight, (ts_dtype)w->dtype, w->data,
               flat.stride[0] * (int64_t)ts_dtype_size((ts_dtype)w->dtype), b.length);
    b.weight = weight;
    b.sums = weight + b.length;
    b.buffer = direct ? NULL : b.sums + 2 * chunks * b.length;
    tsi_parallel_for(io->rank, chunks, 1, run_chunks, &b);
    for (int32_t o = 1; o < io->output_count; o++)
        fold_chunks(&b, o, chunks);
    tsi_scratch_done(&scratch);
    return TS_OK;
}
