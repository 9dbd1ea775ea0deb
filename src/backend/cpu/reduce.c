/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.c - sum, mean, prod, amax, amin, powers and sum_to: over rows, or over columns.
 *
 *   the fastest dim is reduced     rows      [kept .., reduced .., row]   one number per row
 *   the fastest dim is kept        columns   [kept .., reduced .., column]  rows folded into rows
 *
 * INV: long reductions are cut into chunks by their sizes alone; chunks are folded in order. Sums
 * of narrow reals are added up in f32 for at most a block of terms, then in double, and rounded
 * once. */
#include "op/reduce.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/compiler.h"

enum { TILE = 1024, COLUMNS = 2048, FLUSH = 64, ROWS = 256, CHUNK = 65536, GRAIN = 32768 };

/* Dims of one kind, outermost first; strides in bytes. */
typedef struct dims {
    int32_t ndim;
    int64_t extent[TS_NDIM_MAX], in[TS_NDIM_MAX], out[TS_NDIM_MAX];
    int64_t count; /* positions */
} dims;

typedef struct reduction {
    dims kept, gone;                       /* without the row or column dim */
    int64_t length, in_stride, out_stride; /* of the row or column */
    const char *in;
    char *out;
    ts_dtype in_dtype, out_dtype, compute; /* compute: f32, f64 or i64 */
    const tsi_row_set *set;
    tsi_fold fold;
    bool columns;
    double divide, start; /* start: the identity, also as an integer */
    int64_t start_i64;
    int64_t rows_per_chunk, pieces,
        chunks;    /* pieces: of a row; chunks per result (or row of results) */
    void *partial; /* [results][chunks] doubles or int64; NULL: one chunk */
} reduction;

/* ---- dims ------------------------------------------------------------------------------------ */

static void add_dim(dims *to, int64_t extent, int64_t in, int64_t out)
{
    if (extent == 1) return;
    int32_t at = to->ndim++;
    while (at > 0 && to->in[at - 1] < in) { /* sorted by the input's strides */
        to->extent[at] = to->extent[at - 1];
        to->in[at] = to->in[at - 1];
        to->out[at] = to->out[at - 1];
        at--;
    }
    to->extent[at] = extent;
    to->in[at] = in;
    to->out[at] = out;
}

static void merge(dims *x)
{
    int32_t last = 0;
    for (int32_t d = 1; d < x->ndim; d++) {
        bool follows =
            x->in[last] == x->in[d] * x->extent[d] && x->out[last] == x->out[d] * x->extent[d];
        int64_t extent = follows ? x->extent[last] * x->extent[d] : x->extent[d];
        if (!follows) last++;
        x->extent[last] = extent;
        x->in[last] = x->in[d];
        x->out[last] = x->out[d];
    }
    if (x->ndim > 0) x->ndim = last + 1;
    x->count = 1;
    for (int32_t d = 0; d < x->ndim; d++)
        x->count *= x->extent[d];
}

static void offsets(const dims *x, int64_t index, int64_t *in, int64_t *out)
{
    if (x->ndim == 1) { /* no division */
        *in += index * x->in[0];
        *out += index * x->out[0];
        return;
    }
    for (int32_t d = x->ndim - 1; d >= 0; d--) {
        int64_t at = index % x->extent[d];
        index /= x->extent[d];
        *in += at * x->in[d];
        *out += at * x->out[d];
    }
}

/* Takes the row or column out of the dims it ends. */
static void take_last(reduction *r)
{
    dims *from = r->columns ? &r->kept : &r->gone;
    r->length = 1;
    r->in_stride = r->out_stride = 0;
    if (from->ndim == 0) return;
    int32_t d = --from->ndim;
    r->length = from->extent[d];
    r->in_stride = from->in[d];
    r->out_stride = from->out[d];
    from->count /= r->length;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static double fold_two(tsi_fold fold, double a, double b)
{
    switch (fold) {
    case TSI_BY_SUM:
    case TSI_BY_SQUARES:
    case TSI_BY_COUNT:
        break;
    case TSI_BY_PROD:
        return a * b;
    case TSI_BY_MAX:
        return a > b || isnan(a) ? a : b;
    case TSI_BY_MIN:
        return a < b || isnan(a) ? a : b;
    }
    return a + b;
}

static int64_t fold_two_i64(tsi_fold fold, int64_t a, int64_t b)
{
    switch (fold) {
    case TSI_BY_SUM:
    case TSI_BY_SQUARES:
    case TSI_BY_COUNT:
        break;
    case TSI_BY_PROD:
        return (int64_t)((uint64_t)a * (uint64_t)b);
    case TSI_BY_MAX:
        return a > b ? a : b;
    case TSI_BY_MIN:
        return a < b ? a : b;
    }
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

static bool as_it_is(const reduction *r)
{
    return r->in_dtype == r->compute && r->in_stride == (int64_t)ts_dtype_size(r->compute);
}

/* Part of a row to one number; narrow and strided elements through a buffer. */
static double fold_part(const reduction *r, const char *from, int64_t count)
{
    if (as_it_is(r))
        return r->compute == TS_DTYPE_F32
                   ? r->set->fold_f32[r->fold]((const float *)(const void *)from, count)
                   : r->set->fold_f64[r->fold]((const double *)(const void *)from, count);
    if (r->in_dtype == TS_DTYPE_BF16 && r->in_stride == 2 && r->set->fold_bf16[r->fold])
        return r->set->fold_bf16[r->fold]((const uint16_t *)(const void *)from, count);
    double total = r->start, tile[TILE];
    int64_t most = r->compute == TS_DTYPE_F32 ? TSI_SUM_BLOCK : TILE; /* what the tile holds */
    for (int64_t at = 0; at < count; at += most) {
        int64_t n = count - at < most ? count - at : most;
        tsi_gather(r->compute, tile, r->in_dtype, from + at * r->in_stride, r->in_stride, n);
        double part = r->compute == TS_DTYPE_F32
                          ? r->set->fold_f32[r->fold]((const float *)(void *)tile, n)
                          : r->set->fold_f64[r->fold](tile, n);
        total = fold_two(r->fold, total, part);
    }
    return total;
}

static int64_t fold_part_i64(const reduction *r, const char *from, int64_t count)
{
    if (as_it_is(r)) return r->set->fold_i64[r->fold]((const int64_t *)(const void *)from, count);
    int64_t total = r->start_i64, tile[TILE];
    for (int64_t at = 0; at < count; at += TILE) {
        int64_t n = count - at < TILE ? count - at : TILE;
        tsi_gather(TS_DTYPE_I64, tile, r->in_dtype, from + at * r->in_stride, r->in_stride, n);
        total = fold_two_i64(r->fold, total, r->set->fold_i64[r->fold](tile, n));
    }
    return total;
}

static void store_real(const reduction *r, char *to, double value)
{
    tsi_store_real(r->out_dtype, to, r->divide != 1.0 ? value / r->divide : value);
}

/* One chunk of one result: rows `first` .. of the gone dims, or a piece of one row. */
static void row_chunk(const reduction *r, int64_t result, int64_t chunk)
{
    int64_t in = 0, out = 0, piece = chunk % r->pieces;
    offsets(&r->kept, result, &in, &out);
    int64_t first = chunk / r->pieces * r->rows_per_chunk;
    int64_t last =
        first + r->rows_per_chunk < r->gone.count ? first + r->rows_per_chunk : r->gone.count;
    int64_t from = r->pieces > 1 ? piece * CHUNK : 0;
    int64_t count = r->pieces > 1 && r->length - from > CHUNK ? CHUNK : r->length - from;
    double real = r->start;
    int64_t whole = r->start_i64;
    bool wide = r->compute == TS_DTYPE_I64;
    for (int64_t row = first; row < last; row++) {
        int64_t at = in + from * r->in_stride, none = 0;
        offsets(&r->gone, row, &at, &none);
        if (wide)
            whole = fold_two_i64(r->fold, whole, fold_part_i64(r, r->in + at, count));
        else
            real = fold_two(r->fold, real, fold_part(r, r->in + at, count));
    }
    int64_t place = result * r->chunks + chunk;
    if (r->partial && wide)
        ((int64_t *)r->partial)[place] = whole;
    else if (r->partial)
        ((double *)r->partial)[place] = real;
    else if (wide)
        tsi_store_int(r->out_dtype, r->out + out, whole);
    else
        store_real(r, r->out + out, real);
}

/* A result is one row. */
static void run_single_rows(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const reduction *r = context;
    for (int64_t i = begin; i < end; i++) {
        int64_t in = 0, out = 0;
        offsets(&r->kept, i, &in, &out);
        double part = fold_part(r, r->in + in, r->length);
        store_real(r, r->out + out, fold_two(r->fold, r->start, part));
    }
}

static void run_rows(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const reduction *r = context;
    for (int64_t i = begin; i < end; i++)
        row_chunk(r, i / r->chunks, i % r->chunks);
}

static void finish_rows(const reduction *r)
{
    for (int64_t result = 0; result < r->kept.count; result++) {
        int64_t in = 0, out = 0;
        offsets(&r->kept, result, &in, &out);
        const double *real = (const double *)r->partial + result * r->chunks;
        const int64_t *whole = (const int64_t *)r->partial + result * r->chunks;
        if (r->compute == TS_DTYPE_I64) {
            int64_t total = whole[0];
            for (int64_t c = 1; c < r->chunks; c++)
                total = fold_two_i64(r->fold, total, whole[c]);
            tsi_store_int(r->out_dtype, r->out + out, total);
        } else {
            double total = real[0];
            for (int64_t c = 1; c < r->chunks; c++)
                total = fold_two(r->fold, total, real[c]);
            store_real(r, r->out + out, total);
        }
    }
}

static ts_status reduce_rows(reduction *r, ts_rank *rank)
{
    r->pieces = (r->length - 1) / CHUNK + 1;
    r->rows_per_chunk = r->pieces > 1 ? 1 : CHUNK / r->length;
    r->chunks = r->pieces * ((r->gone.count - 1) / r->rows_per_chunk + 1);
    tsi_scratch scratch = { 0 };
    if (r->chunks > 1)
        TSI_TRY(tsi_scratch_get(&scratch, rank, (size_t)(r->kept.count * r->chunks), 8));
    r->partial = scratch.data;
    int64_t work = r->length * r->gone.count / r->chunks + 8;
    bool single = r->chunks == 1 && r->gone.count == 1 && r->compute != TS_DTYPE_I64;
    tsi_parallel_for(rank, r->kept.count * r->chunks, GRAIN / work + 1,
                     single ? run_single_rows : run_rows, r);
    if (r->partial) finish_rows(r);
    tsi_scratch_done(&scratch);
    return TS_OK;
}

/* ---- columns --------------------------------------------------------------------------------- */

/* Sums of up to FLUSH rows are held in f32, the rest in double. */
typedef struct column_sums {
    double total[COLUMNS];
    float some[COLUMNS];
    int64_t pending;
} column_sums;

static void flush(const reduction *r, column_sums *s, int64_t width)
{
    if (s->pending == 0) return;
    tsi_fold fold = r->fold == TSI_BY_SQUARES ? TSI_BY_SUM : r->fold;
    r->set->join_f64_f32[fold](s->total, s->some, width);
    s->pending = 0;
}

static void take_row_f32(const reduction *r, column_sums *s, const char *from, int64_t width)
{
    float tile[COLUMNS];
    const float *x = (const float *)(const void *)from;
    if (!as_it_is(r)) {
        tsi_gather(TS_DTYPE_F32, tile, r->in_dtype, from, r->in_stride, width);
        x = tile;
    }
    if (r->fold == TSI_BY_PROD) {
        r->set->join_f64_f32[r->fold](s->total, x, width);
        return;
    }
    if (s->pending == 0) {
        float start = (float)r->start;
        for (int64_t i = 0; i < width; i++)
            s->some[i] = start;
    }
    r->set->join_f32[r->fold](s->some, x, width);
    if (++s->pending == FLUSH) flush(r, s, width);
}

/* Four rows of a sum at once, where they are f32 and contiguous; returns how
 * many were taken. */
static int64_t take_four(const reduction *r, column_sums *s, int64_t at, int64_t row, int64_t last,
                         int64_t width)
{
    if (r->fold != TSI_BY_SUM || row + 4 > last || s->pending == 0 || s->pending + 4 > FLUSH ||
        r->compute != TS_DTYPE_F32 || !as_it_is(r))
        return 0;
    const float *rows[4];
    for (int i = 0; i < 4; i++) {
        int64_t in = at, none = 0;
        offsets(&r->gone, row + i, &in, &none);
        rows[i] = (const float *)(const void *)(r->in + in);
    }
    r->set->add_four(s->some, rows, width);
    s->pending += 4;
    if (s->pending == FLUSH) flush(r, s, width);
    return 4;
}

static void take_row_f64(const reduction *r, double *total, const char *from, int64_t width)
{
    double tile[COLUMNS];
    const double *x = (const double *)(const void *)from;
    if (!as_it_is(r)) {
        tsi_gather(TS_DTYPE_F64, tile, r->in_dtype, from, r->in_stride, width);
        x = tile;
    }
    r->set->join_f64[r->fold](total, x, width);
}

static void take_row_i64(const reduction *r, int64_t *total, const char *from, int64_t width)
{
    int64_t tile[COLUMNS];
    const int64_t *x = (const int64_t *)(const void *)from;
    if (!as_it_is(r)) {
        tsi_gather(TS_DTYPE_I64, tile, r->in_dtype, from, r->in_stride, width);
        x = tile;
    }
    r->set->join_i64[r->fold](total, x, width);
}

static void store_columns(const reduction *r, char *to, void *total, int64_t width)
{
    if (r->compute == TS_DTYPE_I64) {
        tsi_scatter(r->out_dtype, to, r->out_stride, TS_DTYPE_I64, total, width);
        return;
    }
    double *real = total;
    if (r->divide != 1.0)
        for (int64_t i = 0; i < width; i++)
            real[i] /= r->divide;
    tsi_scatter(r->out_dtype, to, r->out_stride, TS_DTYPE_F64, real, width);
}

/* A task: block of columns, chunk of rows, outer position. */
static void column_chunk(const reduction *r, int64_t task)
{
    int64_t blocks = r->pieces, block = task % blocks, chunk = task / blocks % r->chunks;
    int64_t outer = task / blocks / r->chunks, in = 0, out = 0;
    offsets(&r->kept, outer, &in, &out);
    int64_t column = block * COLUMNS;
    int64_t width = r->length - column < COLUMNS ? r->length - column : COLUMNS;
    int64_t first = chunk * r->rows_per_chunk;
    int64_t last =
        first + r->rows_per_chunk < r->gone.count ? first + r->rows_per_chunk : r->gone.count;
    column_sums s = { .pending = 0 };
    int64_t whole[COLUMNS];
    double start = r->start;
    for (int64_t i = 0; i < width; i++) {
        s.total[i] = start;
        whole[i] = r->start_i64;
    }
    for (int64_t row = first; row < last; row++) {
        int64_t at = in + column * r->in_stride, none = 0;
        int64_t taken = take_four(r, &s, at, row, last, width);
        if (taken > 0) {
            row += taken - 1;
            continue;
        }
        offsets(&r->gone, row, &at, &none);
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

static void finish_columns(const reduction *r)
{
    tsi_fold fold = r->fold == TSI_BY_SQUARES ? TSI_BY_SUM : r->fold;
    for (int64_t outer = 0; outer < r->kept.count; outer++) {
        int64_t in = 0, out = 0;
        offsets(&r->kept, outer, &in, &out);
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

static ts_status reduce_columns(reduction *r, ts_rank *rank)
{
    int64_t width = r->length < COLUMNS ? r->length : COLUMNS;
    r->pieces = (r->length - 1) / COLUMNS + 1;
    r->rows_per_chunk = CHUNK / width > ROWS ? CHUNK / width : ROWS;
    r->chunks = (r->gone.count - 1) / r->rows_per_chunk + 1;
    tsi_scratch scratch = { 0 };
    if (r->chunks > 1)
        TSI_TRY(
            tsi_scratch_get(&scratch, rank, (size_t)(r->kept.count * r->chunks * r->length), 8));
    r->partial = scratch.data;
    int64_t rows = r->gone.count < r->rows_per_chunk ? r->gone.count : r->rows_per_chunk;
    tsi_parallel_for(rank, r->kept.count * r->chunks * r->pieces, GRAIN / (width * rows + 64) + 1,
                     run_columns, r);
    if (r->partial) finish_columns(r);
    tsi_scratch_done(&scratch);
    return TS_OK;
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* out_dim[d]: the result's dim of input dim d, or -1: it is reduced. */
static ts_status reduce(const tsi_kernel_io *io, const int32_t *out_dim, tsi_fold fold,
                        double divide)
{
    const tsi_block *in = &io->in[0].block, *out = &io->out[0].block;
    tsi_category category = tsi_dtype_category((ts_dtype)in->dtype);
    if (category == TSI_CATEGORY_COMPLEX || tsi_block_count(in) == 0)
        return (ts_status)TSI_KERNEL_DECLINED;
    reduction r = { .in = in->data, .out = out->data, .set = tsi_rows(), .fold = fold };
    r.in_dtype = (ts_dtype)in->dtype;
    r.out_dtype = (ts_dtype)out->dtype;
    r.compute = category <= TSI_CATEGORY_INT ? TS_DTYPE_I64
                : r.in_dtype == TS_DTYPE_F64 ? TS_DTYPE_F64
                                             : TS_DTYPE_F32;
    r.divide = divide;
    r.start = r.set->fold_f64[fold](NULL, 0);
    r.start_i64 = r.set->fold_i64[fold](NULL, 0);
    int64_t in_size = (int64_t)ts_dtype_size(r.in_dtype);
    int64_t out_size = (int64_t)ts_dtype_size(r.out_dtype);
    for (int32_t d = 0; d < in->ndim; d++) {
        if (out_dim[d] < 0)
            add_dim(&r.gone, in->extent[d], in->stride[d] * in_size, 0);
        else
            add_dim(&r.kept, in->extent[d], in->stride[d] * in_size,
                    out->stride[out_dim[d]] * out_size);
    }
    merge(&r.kept);
    merge(&r.gone);
    r.columns = r.kept.ndim > 0 &&
                (r.gone.ndim == 0 || r.kept.in[r.kept.ndim - 1] < r.gone.in[r.gone.ndim - 1]);
    take_last(&r);
    return r.columns ? reduce_columns(&r, io->rank) : reduce_rows(&r, io->rank);
}

/* Which dims go, by the mask of the attributes. */
static ts_status by_attributes(const tsi_kernel_io *io, tsi_fold fold, bool mean)
{
    const tsi_reduce_attributes *a = io->attributes;
    uint32_t mask = tsi_reduce_mask(a);
    int32_t out_dim[TS_NDIM_MAX], place = 0;
    double count = 1;
    for (int32_t d = 0; d < io->in[0].block.ndim; d++) {
        bool gone = mask >> d & 1;
        out_dim[d] = gone ? -1 : place;
        if (gone) count *= (double)io->in[0].global->shape.extent[d];
        if (!gone || a->keepdim) place++;
    }
    return reduce(io, out_dim, fold, mean ? count : 1.0);
}

static ts_status sum_kernel(const tsi_kernel_io *io)
{
    return by_attributes(io, TSI_BY_SUM, false);
}

static ts_status mean_kernel(const tsi_kernel_io *io)
{
    if (tsi_dtype_category((ts_dtype)io->in[0].block.dtype) != TSI_CATEGORY_REAL)
        return (ts_status)TSI_KERNEL_DECLINED;
    return by_attributes(io, TSI_BY_SUM, true);
}

static ts_status prod_kernel(const tsi_kernel_io *io)
{
    return by_attributes(io, TSI_BY_PROD, false);
}

static ts_status amax_kernel(const tsi_kernel_io *io)
{
    return by_attributes(io, TSI_BY_MAX, false);
}

static ts_status amin_kernel(const tsi_kernel_io *io)
{
    return by_attributes(io, TSI_BY_MIN, false);
}

/* Terms of the 2-norm; other powers are the reference's. */
static ts_status powsum_kernel(const tsi_kernel_io *io)
{
    const tsi_reduce_attributes *a = io->attributes;
    bool real = tsi_dtype_category((ts_dtype)io->in[0].block.dtype) == TSI_CATEGORY_REAL;
    if (a->p != 2.0 || !real) return (ts_status)TSI_KERNEL_DECLINED;
    return by_attributes(io, TSI_BY_SQUARES, false);
}

/* Integers would wrap where the reference goes through double. */
static ts_status sum_to_kernel(const tsi_kernel_io *io)
{
    if (tsi_dtype_category((ts_dtype)io->in[0].block.dtype) != TSI_CATEGORY_REAL)
        return (ts_status)TSI_KERNEL_DECLINED;
    const ts_shape *in = &io->in[0].global->shape, *out = &io->out[0].global->shape;
    int32_t out_dim[TS_NDIM_MAX];
    for (int32_t d = 0; d < in->ndim; d++) {
        int32_t e = d - (in->ndim - out->ndim);
        out_dim[d] = e < 0 || (out->extent[e] == 1 && in->extent[d] != 1) ? -1 : e;
    }
    return reduce(io, out_dim, TSI_BY_SUM, 1.0);
}

void tsi_reduce_install(void)
{
    const tsi_device *cpu = tsi_device_cpu();
    tsi_kernel_set(cpu, TSI_OP_ID_SUM, sum_kernel);
    tsi_kernel_set(cpu, TSI_OP_ID_MEAN, mean_kernel);
    tsi_kernel_set(cpu, TSI_OP_ID_PROD, prod_kernel);
    tsi_kernel_set(cpu, TSI_OP_ID_AMAX, amax_kernel);
    tsi_kernel_set(cpu, TSI_OP_ID_AMIN, amin_kernel);
    tsi_kernel_set(cpu, TSI_OP_ID_POWSUM, powsum_kernel);
    tsi_kernel_set(cpu, TSI_OP_ID_SUM_TO, sum_to_kernel);
}
