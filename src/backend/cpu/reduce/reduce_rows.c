/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_rows.c - reductions of rows (reduction.h): blocks of several rows or chunks in turn.
 *
 * A core that follows one row reads about two thirds of what it reads from several far from each
 * other, so the tasks of a worker are cut into STREAMS parts, and each gives a block in turn. */
#include <math.h>

#include "backend/cpu/reduce/reduce.h"
#include "base/compiler.h"
#include "op/core/element.h"

enum { STREAMS = 4, BATCH = 64 };

/* Elements of a block: 4 KiB where that is how they lie. */
static int64_t block_of(const tsi_reduction *r)
{
    if (r->in_dtype == TS_DTYPE_BOOL && r->in_stride == 1) return 4 * TSI_SUM_BLOCK;
    if (ts_dtype_size(r->in_dtype) == 8) return TSI_SUM_BLOCK / 2;
    return r->in_dtype == TS_DTYPE_BF16 ? TSI_SUM_BLOCK_BF16 : TSI_SUM_BLOCK;
}

/* Of bf16, as they are. */
static double fold_block_bf16(const tsi_reduction *r, const char *from, int64_t count)
{
    uint16_t tile[TSI_SUM_BLOCK_BF16];
    const uint16_t *x = (const uint16_t *)(const void *)from;
    if (r->in_stride != (int64_t)sizeof *x) {
        tsi_gather(TS_DTYPE_BF16, tile, TS_DTYPE_BF16, from, r->in_stride, count);
        x = tile;
    }
    return r->set->fold_bf16[r->fold](x, count);
}

/* At most a block of a row to one number; narrow and strided elements through a buffer. */
static double fold_block(const tsi_reduction *r, const char *from, int64_t count)
{
    bool narrow = r->compute == TS_DTYPE_F32;
    if (narrow && r->in_dtype == TS_DTYPE_BF16 && r->set->fold_bf16[r->fold])
        return fold_block_bf16(r, from, count);
    double tile[TSI_SUM_BLOCK_BF16];
    const void *x = tsi_reduce_take(r, from, count, tile);
    return narrow ? r->set->fold_f32[r->fold](x, count) : r->set->fold_f64[r->fold](x, count);
}

/* Bytes of bool, at most a block of them. */
static int64_t fold_bools(tsi_fold fold, const uint8_t *x, int64_t count)
{
    uint32_t sum = 0;
    uint8_t some = 0, zero = 0;
    if (fold == TSI_BY_MAX) {
        for (int64_t i = 0; i < count; i++)
            some |= x[i];
        return some != 0;
    }
    if (fold == TSI_BY_MIN || fold == TSI_BY_PROD) { /* the product of truths is the smallest */
        for (int64_t i = 0; i < count; i++)
            zero |= (uint8_t)(x[i] == 0);
        return zero == 0;
    }
    for (int64_t i = 0; i < count; i++)
        sum += x[i] != 0;
    return (int64_t)sum;
}

static int64_t fold_block_i64(const tsi_reduction *r, const char *from, int64_t count)
{
    if (r->in_dtype == TS_DTYPE_BOOL && r->in_stride == 1)
        return fold_bools(r->fold, (const uint8_t *)(const void *)from, count);
    int64_t tile[TSI_SUM_BLOCK];
    return r->set->fold_i64[r->fold](tsi_reduce_take(r, from, count, tile), count);
}

static void store_real(const tsi_reduction *r, char *to, double value)
{
    tsi_store_real(r->out_dtype, to, tsi_reduce_finish(r, value));
}

/* A task of rows is one chunk of one result: some rows of the gone dims, or a piece of one row. A
 * stream works on tasks `task` .. `end` - 1, a block at a time. */
typedef struct stream {
    int64_t task, end;
    int64_t row, last; /* rows of the task that are left */
    int64_t at, count; /* elements of the row that are taken; that the task takes */
    int64_t in, out;   /* offsets: of the task without the gone dims, and of its result */
    const char *from;  /* the row */
    double real;
    int64_t whole;
} stream;

static void begin_row(const tsi_reduction *r, stream *s)
{
    int64_t at = s->in, none = 0;
    tsi_reduce_offsets(&r->gone, s->row, &at, &none);
    s->from = r->in + at;
    s->at = 0;
}

static void begin_task(const tsi_reduction *r, stream *s)
{
    int64_t result = s->task, chunk = 0, from = 0;
    if (r->chunks > 1) {
        result = s->task / r->chunks;
        chunk = s->task % r->chunks;
    }
    s->in = s->out = 0;
    tsi_reduce_offsets(&r->kept, result, &s->in, &s->out);
    s->row = 0;
    s->last = r->gone.count;
    s->count = r->length;
    if (r->chunks > 1) {
        s->row = chunk / r->pieces * r->rows_per_chunk;
        if (s->row + r->rows_per_chunk < s->last) s->last = s->row + r->rows_per_chunk;
        from = chunk % r->pieces * TSI_REDUCE_CHUNK;
        s->count = r->length - from < TSI_REDUCE_CHUNK ? r->length - from : TSI_REDUCE_CHUNK;
    }
    s->in += from * r->in_stride;
    s->real = r->start;
    s->whole = r->start_i64;
    begin_row(r, s);
}

static void end_task(const tsi_reduction *r, const stream *s)
{
    bool wide = r->compute == TS_DTYPE_I64;
    if (r->partial && wide)
        ((int64_t *)r->partial)[s->task] = s->whole;
    else if (r->partial)
        ((double *)r->partial)[s->task] = s->real;
    else if (wide)
        tsi_store_int(r->out_dtype, r->out + s->out, s->whole);
    else
        store_real(r, r->out + s->out, s->real);
}

/* One block; false when the stream has come to its end. */
static bool take_block(const tsi_reduction *r, stream *s)
{
    int64_t left = s->count - s->at, count = left < block_of(r) ? left : block_of(r);
    const char *from = s->from + s->at * r->in_stride;
    if (r->compute == TS_DTYPE_I64)
        s->whole = tsi_fold_two_i64(r->fold, s->whole, fold_block_i64(r, from, count));
    else
        s->real = tsi_fold_two(r->fold, s->real, fold_block(r, from, count));
    s->at += count;
    if (count < left) return true;
    if (++s->row < s->last) {
        begin_row(r, s);
        return true;
    }
    end_task(r, s);
    if (++s->task == s->end) return false;
    begin_task(r, s);
    return true;
}

/* Several streams, far from each other, in turn: a core alone reads one row only about two thirds
 * as fast as several. */
static void run_rows(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const tsi_reduction *r = context;
    stream s[STREAMS];
    int32_t live = 0;
    int64_t each = (end - begin - 1) / STREAMS + 1;
    for (int64_t task = begin; task < end; task += each) {
        s[live].task = task;
        s[live].end = task + each < end ? task + each : end;
        begin_task(r, &s[live++]);
    }
    while (live > 0)
        for (int32_t i = live - 1; i >= 0; i--)
            if (!take_block(r, &s[i])) s[i] = s[--live];
}

/* ---- rows of at most a block, one result each ------------------------------------------------ */

/* Rows begin .. of the only kept dim. */
static void take_rows(const tsi_reduction *r, int64_t begin, int64_t rows)
{
    double total[BATCH];
    const char *from = r->in + begin * r->kept.in[0];
    if (r->in_dtype == TS_DTYPE_F32)
        r->set->rows_f32[r->fold](total, (const float *)(const void *)from, r->kept.in[0] / 4, rows,
                                  r->length);
    else
        r->set->rows_bf16[r->fold](total, (const uint16_t *)(const void *)from, r->kept.in[0] / 2,
                                   rows, r->length);
    for (int64_t i = 0; i < rows; i++)
        total[i] = tsi_reduce_finish(r, total[i]);
    tsi_scatter(r->out_dtype, r->out + begin * r->kept.out[0], r->kept.out[0], TS_DTYPE_F64, total,
                rows);
}

/* Streams as above, a few rows in turn. */
static void run_short_rows(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const tsi_reduction *r = context;
    int64_t some = block_of(r) / r->length, each = (end - begin - 1) / STREAMS + 1;
    if (some > BATCH) some = BATCH;
    for (int64_t at = 0; at < each; at += some)
        for (int64_t first = begin; first < end; first += each) {
            int64_t row = first + at, last = first + each < end ? first + each : end;
            if (row < last) take_rows(r, row, last - row < some ? last - row : some);
        }
}

/* Whether rows are taken so: elements that lie side by side, rows a fixed number of them apart. */
static bool short_rows(const tsi_reduction *r)
{
    int64_t size = (int64_t)ts_dtype_size(r->in_dtype);
    bool narrow = r->in_dtype == TS_DTYPE_F32 || r->in_dtype == TS_DTYPE_BF16;
    return narrow && r->compute == TS_DTYPE_F32 && r->set->rows_f32[r->fold] &&
           r->gone.count == 1 && r->kept.ndim == 1 && r->length <= block_of(r) &&
           r->in_stride == size && r->kept.in[0] % size == 0;
}

static void finish_rows(const tsi_reduction *r)
{
    for (int64_t result = 0; result < r->kept.count; result++) {
        int64_t in = 0, out = 0;
        tsi_reduce_offsets(&r->kept, result, &in, &out);
        const double *real = (const double *)r->partial + result * r->chunks;
        const int64_t *whole = (const int64_t *)r->partial + result * r->chunks;
        if (r->compute == TS_DTYPE_I64) {
            int64_t total = whole[0];
            for (int64_t c = 1; c < r->chunks; c++)
                total = tsi_fold_two_i64(r->fold, total, whole[c]);
            tsi_store_int(r->out_dtype, r->out + out, total);
        } else {
            double total = real[0];
            for (int64_t c = 1; c < r->chunks; c++)
                total = tsi_fold_two(r->fold, total, real[c]);
            store_real(r, r->out + out, total);
        }
    }
}

ts_status tsi_reduce_rows(tsi_reduction *r, ts_rank *rank)
{
    r->pieces = (r->length - 1) / TSI_REDUCE_CHUNK + 1;
    r->rows_per_chunk = r->pieces > 1 ? 1 : TSI_REDUCE_CHUNK / r->length;
    r->chunks = r->pieces * ((r->gone.count - 1) / r->rows_per_chunk + 1);
    tsi_scratch scratch = { 0 };
    if (r->chunks > 1)
        TSI_TRY(tsi_scratch_get(&scratch, rank, (size_t)(r->kept.count * r->chunks), 8));
    r->partial = scratch.data;
    int64_t work = r->length * r->gone.count / r->chunks + 8;
    tsi_parallel_for(rank, r->kept.count * r->chunks, TSI_REDUCE_GRAIN / work + 1,
                     short_rows(r) ? run_short_rows : run_rows, r);
    if (r->partial && !tsi_dry(rank)) finish_rows(r);
    tsi_scratch_done(&scratch);
    return TS_OK;
}
