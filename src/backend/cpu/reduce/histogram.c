/* SPDX-License-Identifier: Apache-2.0 */
/* histogram.c - histc, bincount and count_unique on all threads.
 *
 * Counts are whole numbers: each worker counts for itself, and the counts are added up. Distinct
 * values are counted after a radix sort of keys (radix.h). Sums of weights are left to the
 * reference, which adds them up in order. */
#include <math.h>

#include "backend/cpu/data.h"
#include "backend/cpu/index/radix.h"
#include "op/reduce/reduce.h"

enum { PIECE = 512, GRAIN = 16384, BINS_EACH = 1 << 20 };

typedef struct counting {
    const tsi_kernel_io *io;
    tsi_walk walk; /* x alone: the order does not matter */
    ts_dtype dtype;
    int64_t pieces; /* of each row */
    double min, max;
    int64_t bins, *counts; /* per worker */
    int32_t workers;       /* one, where there are so many bins that adding up would be the work */
    double *bounds;        /* per worker: least, largest */
    _Atomic int bad;
} counting;

typedef void (*piece_fn)(counting *c, const char *from, int64_t stride, int64_t n, int32_t worker);

static void each_piece(counting *c, int64_t begin, int64_t end, int32_t worker, piece_fn fn)
{
    int64_t stride = c->walk.stride[0][c->walk.ndim - 1];
    tsi_walker walker;
    tsi_walker_start(&walker, &c->walk, begin / c->pieces);
    for (int64_t i = begin; i < end; i++) {
        int64_t at = i % c->pieces * PIECE, left = c->walk.length - at;
        fn(c, walker.at[0] + at * stride, stride, left < PIECE ? left : PIECE, worker);
        if ((i + 1) % c->pieces == 0) tsi_walker_next(&walker);
    }
}

static void over_all(counting *c, tsi_parallel_fn fn)
{
    int64_t pieces = c->walk.rows * c->pieces;
    tsi_parallel_for(c->io->rank, pieces, c->workers > 1 ? GRAIN / PIECE : pieces, fn, c);
}

static ts_status counting_make(counting *c, const tsi_kernel_io *io, tsi_scratch *scratch)
{
    const tsi_block *x = &io->in[0].block;
    c->workers = c->bins > BINS_EACH ? 1 : tsi_parallel_threads(io->rank);
    size_t workers = (size_t)c->workers;
    c->io = io;
    c->dtype = (ts_dtype)x->dtype;
    tsi_walk_make(&c->walk, (const tsi_block *[]){ x }, 1, 0);
    c->pieces = (c->walk.length - 1) / PIECE + 1;
    TSI_TRY(tsi_scratch_get(scratch, io->rank, ((size_t)c->bins + 2) * workers, sizeof(int64_t)));
    memset(scratch->data, 0, scratch->bytes);
    c->counts = scratch->data;
    c->bounds = (double *)(void *)(c->counts + (size_t)c->bins * workers);
    return TS_OK;
}

/* What all workers counted, into the result. */
static void store_counts(const counting *c)
{
    const tsi_block *out = &c->io->out[0].block;
    for (int64_t bin = 0; bin < c->bins; bin++) {
        int64_t sum = 0;
        for (int32_t w = 0; w < c->workers; w++)
            sum += c->counts[w * c->bins + bin];
        void *to = tsi_block_at(out, bin * out->stride[0]);
        if (out->dtype == TS_DTYPE_I64)
            tsi_store_int(TS_DTYPE_I64, to, sum);
        else
            tsi_store_real((ts_dtype)out->dtype, to, (double)sum);
    }
}

/* ---- histc ----------------------------------------------------------------------------------- */

static void bound_piece(counting *c, const char *from, int64_t stride, int64_t n, int32_t worker)
{
    double x[PIECE], low = c->bounds[2 * worker], high = c->bounds[2 * worker + 1];
    tsi_gather(TS_DTYPE_F64, x, c->dtype, from, stride, n);
    for (int64_t i = 0; i < n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    c->bounds[2 * worker] = low;
    c->bounds[2 * worker + 1] = high;
}

static void bin_piece(counting *c, const char *from, int64_t stride, int64_t n, int32_t worker)
{
    double x[PIECE], min = c->min, max = c->max, bins = (double)c->bins;
    int64_t *counts = c->counts + worker * c->bins, last = c->bins - 1;
    tsi_gather(TS_DTYPE_F64, x, c->dtype, from, stride, n);
    for (int64_t i = 0; i < n; i++) {
        if (!(x[i] >= min && x[i] <= max)) continue;
        int64_t bin = (int64_t)((x[i] - min) / (max - min) * bins);
        counts[bin < last ? bin : last]++;
    }
}

static void bound_all(void *context, int64_t begin, int64_t end, int32_t worker)
{
    each_piece(context, begin, end, worker, bound_piece);
}

static void bin_all(void *context, int64_t begin, int64_t end, int32_t worker)
{
    each_piece(context, begin, end, worker, bin_piece);
}

/* The bounds of the data; where all are alike, a bin on each side. */
static void find_bounds(counting *c)
{
    for (int32_t w = 0; w < c->workers; w++) {
        c->bounds[2 * w] = (double)INFINITY;
        c->bounds[2 * w + 1] = -(double)INFINITY;
    }
    over_all(c, bound_all);
    double low = c->bounds[0], high = c->bounds[1];
    for (int32_t w = 1; w < c->workers; w++) {
        low = c->bounds[2 * w] < low ? c->bounds[2 * w] : low;
        high = c->bounds[2 * w + 1] > high ? c->bounds[2 * w + 1] : high;
    }
    if (low <= high) {
        c->min = low;
        c->max = high;
    }
    if (c->min != c->max) return;
    c->min -= 1;
    c->max += 1;
}

ts_status tsi_cpu_histc(const tsi_kernel_io *io)
{
    const tsi_histc_attributes *a = io->attributes;
    counting c = { .min = a->min, .max = a->max, .bins = a->bins };
    tsi_scratch scratch;
    if (tsi_block_count(&io->in[0].block) == 0) return (ts_status)TSI_KERNEL_DECLINED;
    TSI_TRY(counting_make(&c, io, &scratch));
    if (c.min == c.max) find_bounds(&c);
    bool finite = isfinite(c.min) && isfinite(c.max); /* else the bins are the reference's */
    if (finite) over_all(&c, bin_all);
    if (finite) store_counts(&c);
    tsi_scratch_done(&scratch);
    return finite ? TS_OK : (ts_status)TSI_KERNEL_DECLINED;
}

/* ---- bincount -------------------------------------------------------------------------------- */

static void value_piece(counting *c, const char *from, int64_t stride, int64_t n, int32_t worker)
{
    int64_t buffer[PIECE], *counts = c->counts + worker * c->bins;
    const int64_t *x = (const int64_t *)(const void *)from;
    if (c->dtype != TS_DTYPE_I64 || stride != (int64_t)sizeof *x) {
        tsi_gather(TS_DTYPE_I64, buffer, c->dtype, from, stride, n);
        x = buffer;
    }
    for (int64_t i = 0; i < n; i++) {
        if (TSI_UNLIKELY((uint64_t)x[i] >= (uint64_t)c->bins))
            c->bad = 1;
        else
            counts[x[i]]++;
    }
}

static void count_values(void *context, int64_t begin, int64_t end, int32_t worker)
{
    each_piece(context, begin, end, worker, value_piece);
}

ts_status tsi_cpu_bincount(const tsi_kernel_io *io)
{
    counting c = { .bins = io->out[0].global->shape.extent[0] };
    bool weighed = io->input_count > 1 && io->in[1].global->dtype != TS_DTYPE_NONE;
    tsi_scratch scratch;
    if (weighed || tsi_block_count(&io->in[0].block) == 0) return (ts_status)TSI_KERNEL_DECLINED;
    TSI_TRY(counting_make(&c, io, &scratch));
    over_all(&c, count_values);
    if (!c.bad) store_counts(&c);
    tsi_scratch_done(&scratch);
    return c.bad ? (ts_status)TSI_KERNEL_DECLINED : TS_OK; /* the reference says which */
}

/* ---- count_unique ---------------------------------------------------------------------------- */

/* Every NaN, whose key is the last of all, is a value of its own. */
static int64_t count_distinct(ts_dtype dtype, const uint64_t *items, int64_t count, int32_t words)
{
    bool real = tsi_dtype_category(dtype) == TSI_CATEGORY_REAL;
    uint64_t none = tsi_key_is_wide(dtype) ? UINT64_MAX : UINT32_MAX, before = 0;
    int32_t shift = words == 1 ? 32 : 0;
    int64_t distinct = 0;
    for (int64_t i = 0; i < count; i++) {
        uint64_t key = items[i * words] >> shift;
        distinct += i == 0 || key != before || (real && key == none);
        before = key;
    }
    return distinct;
}

ts_status tsi_cpu_count_unique(const tsi_kernel_io *io)
{
    const tsi_block *x = &io->in[0].block;
    ts_dtype dtype = (ts_dtype)x->dtype;
    int64_t count = tsi_block_count(x);
    int32_t words = tsi_item_words(dtype, count);
    if (tsi_dtype_category(dtype) == TSI_CATEGORY_COMPLEX) return (ts_status)TSI_KERNEL_DECLINED;
    tsi_scratch scratch = { 0 };
    tsi_held held;
    ts_status status = tsi_hold(io, x, dtype, false, &held);
    if (status == TS_OK)
        status = tsi_scratch_get(&scratch, io->rank, (size_t)(2 * count * words), sizeof(uint64_t));
    if (status == TS_OK) {
        uint64_t *items = scratch.data;
        uint64_t live = tsi_items_load(dtype, held.dense.data, (int64_t)ts_dtype_size(dtype), count,
                                       false, words, items);
        const uint64_t *sorted =
            tsi_radix_sort(io->rank, items, items + count * words, count, words, live);
        tsi_store_int(TS_DTYPE_I64, io->out[0].block.data,
                      count_distinct(dtype, sorted, count, words));
    }
    tsi_scratch_done(&scratch);
    return tsi_let_go(io, &held, status);
}
