/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_columns.c - reductions of columns (reduction.h): rows are folded into a row of totals,
 * four at once where they are f32 or bf16. */
#include <string.h>

#include "backend/cpu/reduce/reduce.h"
#include "base/compiler.h"

enum { COLUMNS = 2048, FLUSH = 64, FLUSH_BF16 = 256, ROWS = 256 };

/* Sums of up to FLUSH (or FLUSH_BF16) rows are held in f32, the rest in double. */
typedef struct column_sums {
    double total[COLUMNS];
    float some[COLUMNS];
    int64_t pending;
} column_sums;

static void flush(const tsi_reduction *r, column_sums *s, int64_t width)
{
    if (s->pending == 0) return;
    tsi_fold fold = r->fold == TSI_BY_SQUARES ? TSI_BY_SUM : r->fold;
    r->set->join_f64_f32[fold](s->total, s->some, width);
    s->pending = 0;
}

/* Room for `rows` more in f32. Numbers of 8 bits leave room for more of them. */
static void make_room(const tsi_reduction *r, column_sums *s, int64_t rows, int64_t width)
{
    int64_t most = r->in_dtype == TS_DTYPE_BF16 ? FLUSH_BF16 : FLUSH;
    if (s->pending + rows > most) flush(r, s, width);
    if (s->pending == 0) {
        float start = (float)r->start;
        for (int64_t i = 0; i < width; i++)
            s->some[i] = start;
    }
    s->pending += rows;
}

static void take_row_f32(const tsi_reduction *r, column_sums *s, const char *from, int64_t width)
{
    float tile[COLUMNS];
    const float *x = tsi_reduce_take(r, from, width, tile);
    if (r->fold == TSI_BY_PROD) {
        r->set->join_f64_f32[r->fold](s->total, x, width);
        return;
    }
    make_room(r, s, 1, width);
    r->set->join_f32[r->fold](s->some, x, width);
}

/* Whether four rows are taken at once: columns of f32 or bf16 side by side. */
static bool by_fours(const tsi_reduction *r)
{
    if (r->fold == TSI_BY_PROD || r->compute != TS_DTYPE_F32) return false;
    return (r->in_dtype == TS_DTYPE_F32 && r->in_stride == 4) ||
           (r->in_dtype == TS_DTYPE_BF16 && r->in_stride == 2);
}

/* Rows first .. first + 4 each - 1 in four parts, a row of each at once: several streams far from
 * each other are read faster than one. */
static void take_fours(const tsi_reduction *r, column_sums *s, int64_t at, int64_t first,
                       int64_t each, int64_t width)
{
    for (int64_t row = first; row < first + each; row++) {
        const void *rows[4];
        for (int i = 0; i < 4; i++) {
            int64_t in = at, none = 0;
            tsi_reduce_offsets(&r->gone, row + i * each, &in, &none);
            rows[i] = r->in + in;
        }
        make_room(r, s, 4, width);
        if (r->in_dtype == TS_DTYPE_F32)
            r->set->four_f32[r->fold](s->some, (const float *const *)rows, width);
        else
            r->set->four_bf16[r->fold](s->some, (const uint16_t *const *)rows, width);
    }
}

/* As many rows as go by fours; returns the first one that is left. Parts have an odd number of
 * rows: at a power of two from each other they would meet in the same lines of the cache. */
static int64_t take_all_fours(const tsi_reduction *r, column_sums *s, int64_t at, int64_t first,
                              int64_t last, int64_t width)
{
    while (last - first >= 4) {
        int64_t each = (last - first) / 4;
        each -= each % 2 == 0;
        take_fours(r, s, at, first, each, width);
        first += 4 * each;
    }
    return first;
}

static void take_row_f64(const tsi_reduction *r, double *total, const char *from, int64_t width)
{
    double tile[COLUMNS];
    r->set->join_f64[r->fold](total, tsi_reduce_take(r, from, width, tile), width);
}

static void take_row_i64(const tsi_reduction *r, int64_t *total, const char *from, int64_t width)
{
    int64_t tile[COLUMNS];
    r->set->join_i64[r->fold](total, tsi_reduce_take(r, from, width, tile), width);
}

static void store_columns(const tsi_reduction *r, char *to, void *total, int64_t width)
{
    if (r->compute == TS_DTYPE_I64) {
        tsi_scatter(r->out_dtype, to, r->out_stride, TS_DTYPE_I64, total, width);
        return;
    }
    double *real = total;
    for (int64_t i = 0; i < width; i++)
        real[i] = tsi_reduce_finish(r, real[i]);
    tsi_scatter(r->out_dtype, to, r->out_stride, TS_DTYPE_F64, real, width);
}

/* A task: block of columns, chunk of rows, outer position. */
static void column_chunk(const tsi_reduction *r, int64_t task)
{
    int64_t blocks = r->pieces, block = task % blocks, chunk = task / blocks % r->chunks;
    int64_t outer = task / blocks / r->chunks, in = 0, out = 0;
    tsi_reduce_offsets(&r->kept, outer, &in, &out);
    int64_t column = block * COLUMNS;
    int64_t width = r->length - column < COLUMNS ? r->length - column : COLUMNS;
    int64_t first = chunk * r->rows_per_chunk;
    int64_t last =
        first + r->rows_per_chunk < r->gone.count ? first + r->rows_per_chunk : r->gone.count;
    column_sums s;
    int64_t whole[COLUMNS];
    s.pending = 0;
    for (int64_t i = 0; i < width && r->compute == TS_DTYPE_I64; i++)
        whole[i] = r->start_i64;
    for (int64_t i = 0; i < width && r->compute != TS_DTYPE_I64; i++)
        s.total[i] = r->start;
    if (by_fours(r)) first = take_all_fours(r, &s, in + column * r->in_stride, first, last, width);
    for (int64_t row = first; row < last; row++) {
        int64_t at = in + column * r->in_stride, none = 0;
        tsi_reduce_offsets(&r->gone, row, &at, &none);
        if (r->compute == TS_DTYPE_F32)
            take_row_f32(r, &s, r->in + at, width);
        else if (r->compute == TS_DTYPE_F64)
            take_row_f64(r, s.total, r->in + at, width);
        else
            take_row_i64(r, whole, r->in + at, width);
    }
    if (r->compute == TS_DTYPE_F32) flush(r, &s, width);
    void *total = r->compute == TS_DTYPE_I64 ? (void *)whole : s.total;
    if (!r->partial)
        store_columns(r, r->out + out + column * r->out_stride, total, width);
    else
        memcpy((char *)r->partial + 8 * ((outer * r->chunks + chunk) * r->length + column), total,
               (size_t)width * 8);
}

static void run_columns(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    for (int64_t task = begin; task < end; task++)
        column_chunk(context, task);
}

static void finish_columns(const tsi_reduction *r)
{
    tsi_fold fold = r->fold == TSI_BY_SQUARES ? TSI_BY_SUM : r->fold;
    for (int64_t outer = 0; outer < r->kept.count; outer++) {
        int64_t in = 0, out = 0;
        tsi_reduce_offsets(&r->kept, outer, &in, &out);
        char *first = (char *)r->partial + 8 * outer * r->chunks * r->length;
        for (int64_t c = 1; c < r->chunks; c++) {
            void *next = first + 8 * c * r->length;
            if (r->compute == TS_DTYPE_I64)
                r->set->join_i64[fold]((int64_t *)(void *)first, next, r->length);
            else
                r->set->join_f64[fold]((double *)(void *)first, next, r->length);
        }
        store_columns(r, r->out + out, first, r->length);
    }
}

ts_status tsi_reduce_columns(tsi_reduction *r, ts_rank *rank)
{
    int64_t width = r->length < COLUMNS ? r->length : COLUMNS;
    r->pieces = (r->length - 1) / COLUMNS + 1;
    r->rows_per_chunk = TSI_REDUCE_CHUNK / width > ROWS ? TSI_REDUCE_CHUNK / width : ROWS;
    r->chunks = (r->gone.count - 1) / r->rows_per_chunk + 1;
    tsi_scratch scratch = { 0 };
    if (r->chunks > 1)
        TSI_TRY(
            tsi_scratch_get(&scratch, rank, (size_t)(r->kept.count * r->chunks * r->length), 8));
    r->partial = scratch.data;
    int64_t rows = r->gone.count < r->rows_per_chunk ? r->gone.count : r->rows_per_chunk;
    tsi_parallel_for(rank, r->kept.count * r->chunks * r->pieces,
                     TSI_REDUCE_GRAIN / (width * rows + 64) + 1, run_columns, r);
    if (r->partial && !tsi_dry(rank)) finish_columns(r);
    tsi_scratch_done(&scratch);
    return TS_OK;
}
