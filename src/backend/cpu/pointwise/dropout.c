/* SPDX-License-Identifier: Apache-2.0 */
/* dropout.c - dropout and bernoulli in one pass over their input, on all threads.
 *
 *   words of the generator (array/random.h) -> which elements stay -> result (and mask)
 *
 * a chunk in the L1 cache at a time. What an element draws depends on its global index alone, so
 * runs of consecutive ones are listed first, and cut where they are long.
 *
 * INV: the bits of the reference: a product is made in f64 and rounded once. */
#include "op/pointwise/dropout.h"
#include "array/random.h"
#include "backend/cpu/data.h"
#include "device/cpu.h"

enum { CHUNK = 512, RUN_MAX = 65536, GRAIN = 8192 };

typedef struct drawing {
    const tsi_kernel_io *io;
    tsi_random random;
    const tsi_block *x; /* any strides; results are dense */
    char *y;
    unsigned char *mask; /* dropout */
    ts_dtype dtype;
    size_t size;
    bool dense;
    double scale;
    uint64_t threshold;
    const tsi_random_run *run;
} drawing;

/* ---- inputs ---------------------------------------------------------------------------------- */

/* Elements first .. first + n - 1 of x, row-major, as f64 (or f32 where they are narrow). */
static void load(const drawing *d, ts_dtype to_dtype, void *to, int64_t first, int64_t n)
{
    const tsi_block *x = d->x;
    size_t wide = ts_dtype_size(to_dtype);
    if (d->dense) {
        const char *from = (const char *)x->data + (size_t)first * d->size;
        if (d->dtype == to_dtype)
            memcpy(to, from, (size_t)n * wide);
        else
            tsi_gather(to_dtype, to, d->dtype, from, (int64_t)d->size, n);
        return;
    }
    int32_t last = x->ndim - 1;
    for (int64_t done = 0, part; done < n; done += part) {
        int64_t position = first + done, at = 0;
        part = x->extent[last] - position % x->extent[last];
        part = part < n - done ? part : n - done;
        for (int32_t k = last; k >= 0; k--) {
            at += position % x->extent[k] * x->stride[k];
            position /= x->extent[k];
        }
        tsi_gather(to_dtype, (char *)to + (size_t)done * wide, d->dtype, tsi_block_at(x, at),
                   x->stride[last] * (int64_t)d->size, part);
    }
}

static void store(const drawing *d, int64_t first, ts_dtype dtype, const void *from, int64_t n)
{
    tsi_scatter(d->dtype, d->y + (size_t)first * d->size, (int64_t)d->size, dtype, from, n);
}

/* ---- dropout --------------------------------------------------------------------------------- */

static void keep_mask(unsigned char *restrict mask, const uint32_t *restrict word,
                      uint64_t threshold, int64_t n)
{
    uint32_t last = (uint32_t)(threshold - 1); /* threshold 0 is told apart by the caller */
    for (int64_t i = 0; i < n; i++)
        mask[i] = word[i] <= last;
}

static void keep_f32(float *restrict y, const float *restrict x, const uint32_t *restrict word,
                     uint64_t threshold, double scale, int64_t n)
{
    uint32_t last = (uint32_t)(threshold - 1);
    for (int64_t i = 0; i < n; i++) {
        float scaled = (float)((double)x[i] * scale);
        y[i] = word[i] <= last ? scaled : 0.0f;
    }
}

static void keep_f64(double *y, const double *x, const uint32_t *restrict word, uint64_t threshold,
                     double scale, int64_t n)
{
    uint32_t last = (uint32_t)(threshold - 1);
    for (int64_t i = 0; i < n; i++) {
        double scaled = x[i] * scale;
        y[i] = word[i] <= last ? scaled : 0.0;
    }
}

/* Narrow numbers times the scale, exact in f64, are rounded from there. */
static void dropout_chunk(const drawing *d, uint64_t global, int64_t local, int64_t n)
{
    uint32_t buffer[TSI_RANDOM_BUFFER];
    double x[CHUNK];
    float narrow[CHUNK];
    const uint32_t *word = tsi_random_draw(&d->random, global, n, buffer);
    keep_mask(d->mask + local, word, d->threshold, n);
    if (d->dtype == TS_DTYPE_F32) {
        const float *from = narrow;
        if (d->dense)
            from = (const float *)d->x->data + local;
        else
            load(d, TS_DTYPE_F32, narrow, local, n);
        keep_f32((float *)(void *)d->y + local, from, word, d->threshold, d->scale, n);
        return;
    }
    load(d, TS_DTYPE_F64, x, local, n);
    keep_f64(x, x, word, d->threshold, d->scale, n);
    store(d, local, TS_DTYPE_F64, x, n);
}

static void dropout_runs(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const drawing *d = context;
    for (int64_t i = begin; i < end; i++)
        for (int64_t at = 0, n; at < d->run[i].length; at += n) {
            n = d->run[i].length - at < CHUNK ? d->run[i].length - at : CHUNK;
            dropout_chunk(d, (uint64_t)(d->run[i].global + at), d->run[i].local + at, n);
        }
}

/* ---- bernoulli ------------------------------------------------------------------------------- */

static void bernoulli_runs(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const drawing *d = context;
    double p[CHUNK];
    uint32_t buffer[TSI_RANDOM_BUFFER];
    for (int64_t i = begin; i < end; i++)
        for (int64_t at = 0, n; at < d->run[i].length; at += n) {
            n = d->run[i].length - at < CHUNK ? d->run[i].length - at : CHUNK;
            const uint32_t *word =
                tsi_random_draw(&d->random, (uint64_t)(d->run[i].global + at) * 2, 2 * n, buffer);
            load(d, TS_DTYPE_F64, p, d->run[i].local + at, n);
            for (int64_t j = 0; j < n; j++) {
                uint64_t top = (uint64_t)word[2 * j] << 21 | word[2 * j + 1] >> 11;
                p[j] = (double)(int64_t)top * 0x1p-53 < p[j] ? 1.0 : 0.0;
            }
            store(d, d->run[i].local + at, TS_DTYPE_F64, p, n);
        }
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* Runs of the elements that are here, none longer than RUN_MAX; `to` NULL: only counted. */
static int64_t list_runs(const tsi_operand *place, tsi_random_run *to)
{
    int64_t count = 0;
    tsi_region_iterator at = { .length = tsi_block_count(&place->block) };
    if (place->region) tsi_region_iterate(&at, place->region, &place->global->shape);
    bool more = place->region ? tsi_region_next(&at) : true;
    for (; more; more = place->region && tsi_region_next(&at))
        for (int64_t done = 0; done < at.length; done += RUN_MAX, count++)
            if (to)
                to[count] =
                    (tsi_random_run){ at.global + done, at.local + done,
                                      at.length - done < RUN_MAX ? at.length - done : RUN_MAX };
    return count;
}

static ts_status run_drawing(drawing *d, tsi_parallel_fn fn)
{
    const tsi_operand *place = &d->io->out[0];
    int64_t count = tsi_block_count(&place->block), runs = list_runs(place, NULL);
    d->random.seed = d->io->seed;
    d->random.stream = d->io->stream;
    d->x = &d->io->in[0].block;
    d->dtype = (ts_dtype)d->x->dtype;
    d->size = ts_dtype_size(d->dtype);
    d->dense = tsi_block_is_dense(d->x);
    if (count == 0) return TS_OK;
    tsi_scratch scratch;
    TSI_TRY(tsi_scratch_get(&scratch, d->io->rank, (size_t)runs, sizeof(tsi_random_run)));
    (void)list_runs(place, scratch.data);
    d->run = scratch.data;
    tsi_parallel_for(d->io->rank, runs, GRAIN / (count / runs + 1) + 1, fn, d);
    tsi_scratch_done(&scratch);
    return TS_OK;
}

/* With results that are dense, as every new block is. */
static ts_status run_held(drawing *d, tsi_parallel_fn fn)
{
    const tsi_kernel_io *io = d->io;
    tsi_held y = { 0 }, mask = { 0 };
    const tsi_block *out = &io->out[0].block;
    ts_status status = tsi_hold(io, out, (ts_dtype)out->dtype, true, &y);
    if (status == TS_OK && io->output_count > 1)
        status = tsi_hold(io, &io->out[1].block, (ts_dtype)io->out[1].block.dtype, true, &mask);
    d->y = y.dense.data;
    d->mask = mask.dense.data;
    if (status == TS_OK) status = run_drawing(d, fn);
    status = tsi_let_go(io, &mask, status);
    return tsi_let_go(io, &y, status);
}

ts_status tsi_cpu_dropout(const tsi_kernel_io *io)
{
    double p = ((const tsi_dropout_attributes *)io->attributes)->p;
    drawing d = { .io = io, .scale = tsi_dropout_scale(p) };
    d.threshold = (uint64_t)((1.0 - p) * 0x1p32);
    if (tsi_dtype_category((ts_dtype)io->in[0].block.dtype) != TSI_CATEGORY_REAL ||
        d.threshold == 0) /* nothing is kept: the reference needs no draw */
        return (ts_status)TSI_KERNEL_DECLINED;
    return run_held(&d, dropout_runs);
}

ts_status tsi_cpu_bernoulli(const tsi_kernel_io *io)
{
    drawing d = { .io = io };
    return run_held(&d, bernoulli_runs);
}
