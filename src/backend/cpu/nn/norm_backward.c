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
    const tsi_block *dy, *x, *dx;
    tsi_line dy_line, x_line, dx_line; /* a row of each */
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
        at += index % b->x->extent[d] * block->stride[d];
        index /= b->x->extent[d];
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
                back_row(b, row, (float *)(void *)row_at(b, b->dx, row),
                         (const float *)(const void *)row_at(b, b->dy, row),
                         (const float *)(const void *)row_at(b, b->x, row), sums);
                continue;
            }
            tsi_line_gather(&b->dy_line, row_at(b, b->dy, row), TS_DTYPE_F32, mine);
            tsi_line_gather(&b->x_line, row_at(b, b->x, row), TS_DTYPE_F32, mine + b->length);
            back_row(b, row, mine + 2 * b->length, mine, mine + b->length, sums);
            tsi_line_scatter(&b->dx_line, row_at(b, b->dx, row), TS_DTYPE_F32,
                             mine + 2 * b->length);
        }
    }
}

/* dw, or db, from those of all chunks. */
static void fold_chunks(const backward *b, int32_t output, int64_t chunks)
{
    const tsi_block *out = &b->io->out[output].block;
    tsi_line line;
    tsi_line_make(&line, out, 0);
    const float *from = b->sums + (output - 1) * b->length;
    for (int64_t i = 0; i < b->length; i++) {
        double total = 0;
        for (int64_t c = 0; c < chunks; c++)
            total += (double)from[2 * c * b->length + i];
        tsi_store_real((ts_dtype)out->dtype, (char *)out->data + tsi_line_at(&line, i), total);
    }
}

/* The operands as rows, and the rows as chunks. */
static void rows_make(backward *b)
{
    b->dy = &b->io->in[DY].block;
    b->x = &b->io->in[X].block;
    b->dx = &b->io->out[0].block;
    b->outer = b->x->ndim - b->io->in[WEIGHT].block.ndim;
    tsi_line_make(&b->dy_line, b->dy, b->outer);
    tsi_line_make(&b->x_line, b->x, b->outer);
    tsi_line_make(&b->dx_line, b->dx, b->outer);
    b->length = b->x_line.count;
    b->rows = tsi_block_count(b->x) / b->length;
    b->chunk = b->rows / CHUNKS + 1 > CHUNK_ROWS ? b->rows / CHUNKS + 1 : CHUNK_ROWS;
}

ts_status tsi_cpu_norm_backward(const tsi_kernel_io *io)
{
    const tsi_block *x = &io->in[X].block, *w = &io->in[WEIGHT].block;
    backward b = { .io = io, .set = tsi_rows(), .layer = io->op == &tsi_op_layer_norm_backward };
    for (int32_t i = DY; i <= WEIGHT; i++)
        if (!tsi_is_small_real(io->in[i].block.dtype)) return (ts_status)TSI_KERNEL_DECLINED;
    if (tsi_block_count(x) == 0) return (ts_status)TSI_KERNEL_DECLINED; /* sums of nothing */
    rows_make(&b);
    int64_t chunks = (b.rows - 1) / b.chunk + 1;
    bool direct = tsi_line_is_plain(&b.dy_line, TS_DTYPE_F32) &&
                  tsi_line_is_plain(&b.x_line, TS_DTYPE_F32) &&
                  tsi_line_is_plain(&b.dx_line, TS_DTYPE_F32);
    int64_t buffers = direct ? 0 : BUFFERS * tsi_parallel_threads(io->rank);
    tsi_scratch scratch;
    TSI_TRY(tsi_scratch_get(&scratch, io->rank, (size_t)((buffers + 1 + 2 * chunks) * b.length),
                            sizeof(float)));
    float *weight = scratch.data;
    tsi_line flat;
    tsi_line_make(&flat, w, 0);
    if (!tsi_dry(io->rank)) tsi_line_gather(&flat, w->data, TS_DTYPE_F32, weight);
    b.weight = weight;
    b.sums = weight + b.length;
    b.buffer = direct ? NULL : b.sums + 2 * chunks * b.length;
    tsi_parallel_for(io->rank, chunks, 1, run_chunks, &b);
    for (int32_t o = 1; o < io->output_count && !tsi_dry(io->rank); o++)
        fold_chunks(&b, o, chunks);
    tsi_scratch_done(&scratch);
    return TS_OK;
}
