/* SPDX-License-Identifier: Apache-2.0 */
/* pooling.c - max_pool, avg_pool and the gradient of avg_pool, plane by plane, on all threads.
 *
 * A row of windows is done at once: for each row of x that it sees, brought to f64, and for each
 * tap of the kernel along the row, one loop over the windows. Taps are visited in the order of the
 * reference: the same bits, but for the gradient, which is added up in f64 and rounded once. */
#include <math.h>

#include "backend/cpu/data.h"
#include "base/intmath.h"
#include "op/nn/attributes.h"

enum { PLACES = 3, GRAIN = 16384 };

typedef struct pool {
    const tsi_kernel_io *io;
    const tsi_block *x, *y, *index; /* index: max_pool */
    int32_t places, reserved;
    int64_t kernel[PLACES], stride[PLACES], padding[PLACES];
    int64_t in[PLACES], out[PLACES], whole[PLACES];             /* places here; of x altogether */
    int64_t x_first[PLACES], y_first[PLACES];                   /* global */
    int64_t x_step[PLACES], y_step[PLACES], index_step[PLACES]; /* elements */
    double *scratch; /* per worker: a plane or a row of x, and rows of windows */
    int64_t scratch_count;
} pool;

typedef struct rows { /* buffers of one worker */
    double *x, *y;
    int64_t *best;
} rows;

/* ---- one row of windows ---------------------------------------------------------------------- */

/* Windows whose tap `k` lies on the row of x: from *begin to *end; *at is the first one's place. */
static void windows_of(const pool *p, int64_t k, int64_t *begin, int64_t *end, int64_t *at)
{
    int64_t step = p->stride[2];
    int64_t from = p->y_first[2] * step - p->padding[2] + k - p->x_first[2];
    *begin = from < 0 ? tsi_min_i64(p->out[2], (-from + step - 1) / step) : 0;
    *at = from + *begin * step;
    *end =
        *at < p->in[2] ? tsi_min_i64(p->out[2], *begin + (p->in[2] - 1 - *at) / step + 1) : *begin;
}

/* `step` is constant where these are inlined, for the common ones. */
static TSI_INLINE void max_taps_by(const double *x, int64_t step, double *top, int64_t *best,
                                   int64_t index, int64_t n)
{
    TSI_INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        double value = x[i * step];
        bool wins = (best[i] < 0) | (value > top[i]) | ((value != value) & (top[i] == top[i]));
        top[i] = wins ? value : top[i];
        best[i] = wins ? index + i * step : best[i];
    }
}

static void max_taps(const double *x, int64_t step, double *top, int64_t *best, int64_t index,
                     int64_t n)
{
    if (step == 1)
        max_taps_by(x, 1, top, best, index, n);
    else if (step == 2)
        max_taps_by(x, 2, top, best, index, n);
    else
        max_taps_by(x, step, top, best, index, n);
}

static TSI_INLINE void sum_taps_by(const double *x, int64_t step, double *sum, int64_t n)
{
    TSI_INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        sum[i] += x[i * step];
}

static void sum_taps(const double *x, int64_t step, double *sum, int64_t n)
{
    if (step == 1)
        sum_taps_by(x, 1, sum, n);
    else if (step == 2)
        sum_taps_by(x, 2, sum, n);
    else
        sum_taps_by(x, step, sum, n);
}

static void spread_taps(double *x, int64_t step, const double *share, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i * step] += share[i];
}

/* All taps of row `at` (of x, here) in the row of windows. */
static void run_taps(const pool *p, const rows *r, double *x, int64_t row_index, bool back)
{
    for (int64_t k = 0; k < p->kernel[2]; k++) {
        int64_t begin, end, at;
        windows_of(p, k, &begin, &end, &at);
        if (end <= begin) continue;
        if (back)
            spread_taps(x + at, p->stride[2], r->y + begin, end - begin);
        else if (p->index)
            max_taps(x + at, p->stride[2], r->y + begin, r->best + begin,
                     row_index + at + p->x_first[2], end - begin);
        else
            sum_taps(x + at, p->stride[2], r->y + begin, end - begin);
    }
}

/* The rows of x that window row (z, y) sees, in order; a plane of f64 takes part where it is given,
 * else rows are brought to f64. */
static void run_window_row(const pool *p, const rows *r, const char *plane, double *sums, int64_t z,
                           int64_t y)
{
    int64_t size = (int64_t)ts_dtype_size((ts_dtype)p->x->dtype), window[2] = { z, y };
    for (int64_t t = 0; t < p->kernel[0] * p->kernel[1]; t++) {
        int64_t tap[2] = { t / p->kernel[1], t % p->kernel[1] }, at[2];
        bool here = true;
        for (int i = 0; i < 2; i++) {
            at[i] =
                (p->y_first[i] + window[i]) * p->stride[i] - p->padding[i] + tap[i] - p->x_first[i];
            here = here && at[i] >= 0 && at[i] < p->in[i];
        }
        if (!here) continue;
        int64_t index =
            ((at[0] + p->x_first[0]) * p->whole[1] + at[1] + p->x_first[1]) * p->whole[2];
        double *x = sums ? sums + (at[0] * p->in[1] + at[1]) * p->in[2] : r->x;
        if (!sums)
            tsi_gather(TS_DTYPE_F64, x, (ts_dtype)p->x->dtype,
                       plane + (at[0] * p->x_step[0] + at[1] * p->x_step[1]) * size,
                       p->x_step[2] * size, p->in[2]);
        run_taps(p, r, x, index, sums != NULL);
    }
}

/* ---- planes ---------------------------------------------------------------------------------- */

static char *plane_of(const tsi_block *block, int64_t number)
{
    return tsi_block_at(block, number / block->extent[1] * block->stride[0] +
                                   number % block->extent[1] * block->stride[1]);
}

static double window_size(const pool *p)
{
    return (double)p->kernel[0] * (double)p->kernel[1] * (double)p->kernel[2];
}

static void store_row(const pool *p, const rows *r, char *y, char *index, int64_t row)
{
    int64_t at[2] = { row / p->out[1], row % p->out[1] };
    ts_dtype dtype = (ts_dtype)p->y->dtype;
    int64_t size = (int64_t)ts_dtype_size(dtype);
    for (int64_t i = 0; !p->index && i < p->out[2]; i++)
        r->y[i] /= window_size(p);
    tsi_scatter(dtype, y + (at[0] * p->y_step[0] + at[1] * p->y_step[1]) * size,
                p->y_step[2] * size, TS_DTYPE_F64, r->y, p->out[2]);
    if (!p->index) return;
    char *to = index + (at[0] * p->index_step[0] + at[1] * p->index_step[1]) * 8;
    for (int64_t i = 0; i < p->out[2]; i++)
        memcpy(to + i * p->index_step[2] * 8, &r->best[i], sizeof r->best[i]);
}

static void forward_planes(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const pool *p = context;
    double *own = p->scratch + worker * p->scratch_count;
    rows r = { .x = own, .y = own + p->in[2] };
    r.best = (int64_t *)(void *)(r.y + p->out[2]);
    for (int64_t plane = begin; plane < end; plane++) {
        const char *x = plane_of(p->x, plane);
        char *y = plane_of(p->y, plane), *index = p->index ? plane_of(p->index, plane) : NULL;
        for (int64_t row = 0; row < p->out[0] * p->out[1]; row++) {
            for (int64_t i = 0; i < p->out[2]; i++) {
                r.y[i] = p->index ? -(double)INFINITY : 0.0;
                r.best[i] = -1;
            }
            run_window_row(p, &r, x, NULL, row / p->out[1], row % p->out[1]);
            store_row(p, &r, y, index, row);
        }
    }
}

static void backward_planes(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const pool *p = context;
    int64_t places = p->in[0] * p->in[1] * p->in[2];
    double *sums = p->scratch + worker * p->scratch_count;
    rows r = { .y = sums + places };
    ts_dtype x_dtype = (ts_dtype)p->x->dtype, y_dtype = (ts_dtype)p->y->dtype;
    int64_t x_size = (int64_t)ts_dtype_size(x_dtype), y_size = (int64_t)ts_dtype_size(y_dtype);
    for (int64_t plane = begin; plane < end; plane++) {
        char *x = plane_of(p->x, plane);
        const char *y = plane_of(p->y, plane);
        memset(sums, 0, (size_t)places * sizeof *sums);
        for (int64_t row = 0; row < p->out[0] * p->out[1]; row++) {
            int64_t at = row / p->out[1] * p->y_step[0] + row % p->out[1] * p->y_step[1];
            tsi_gather(TS_DTYPE_F64, r.y, y_dtype, y + at * y_size, p->y_step[2] * y_size,
                       p->out[2]);
            for (int64_t i = 0; i < p->out[2]; i++)
                r.y[i] /= window_size(p);
            run_window_row(p, &r, NULL, sums, row / p->out[1], row % p->out[1]);
        }
        for (int64_t row = 0; row < p->in[0] * p->in[1]; row++) {
            int64_t at = row / p->in[1] * p->x_step[0] + row % p->in[1] * p->x_step[1];
            tsi_scatter(x_dtype, x + at * x_size, p->x_step[2] * x_size, TS_DTYPE_F64,
                        sums + row * p->in[2], p->in[2]);
        }
    }
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void pool_make(pool *p, const tsi_kernel_io *io, const tsi_operand *x, const tsi_operand *y)
{
    const tsi_pool_attributes *a = io->attributes;
    const tsi_dims *kernel = &a->kernel_size, *stride = &a->stride, *padding = &a->padding;
    *p = (pool){ .io = io, .x = &x->block, .y = &y->block, .places = x->block.ndim - 2 };
    for (int32_t i = 0; i < PLACES; i++) { /* missing ones stand in front */
        int32_t d = i - (PLACES - p->places), own = 2 + d;
        bool there = d >= 0;
        p->kernel[i] = there ? kernel->value[d] : 1;
        p->stride[i] = there ? stride->value[d] : 1;
        p->padding[i] = there ? padding->value[d] : 0;
        p->in[i] = there ? x->block.extent[own] : 1;
        p->out[i] = there ? y->block.extent[own] : 1;
        p->whole[i] = there ? x->global->shape.extent[own] : 1;
        p->x_first[i] = there ? tsi_operand_offset(x, own) : 0;
        p->y_first[i] = there ? tsi_operand_offset(y, own) : 0;
        p->x_step[i] = there ? x->block.stride[own] : 0;
        p->y_step[i] = there ? y->block.stride[own] : 0;
        if (there && io->output_count == 2) p->index_step[i] = io->out[1].block.stride[own];
    }
    if (io->output_count == 2) p->index = &io->out[1].block;
}

static ts_status run_planes(pool *p, tsi_parallel_fn fn, int64_t count)
{
    int64_t planes = p->x->extent[0] * p->x->extent[1];
    int64_t work = p->out[0] * p->out[1] * p->out[2] * p->kernel[0] * p->kernel[1] * p->kernel[2];
    if (tsi_block_count(p->x) == 0 || tsi_block_count(p->y) == 0)
        return (ts_status)TSI_KERNEL_DECLINED;
    tsi_scratch scratch;
    TSI_TRY(tsi_scratch_get(&scratch, p->io->rank,
                            (size_t)(count * tsi_parallel_threads(p->io->rank)), sizeof(double)));
    p->scratch = scratch.data;
    p->scratch_count = count;
    tsi_parallel_for(p->io->rank, planes, GRAIN / (work + 1) + 1, fn, p);
    tsi_scratch_done(&scratch);
    return TS_OK;
}

ts_status tsi_cpu_pool(const tsi_kernel_io *io)
{
    pool p;
    pool_make(&p, io, &io->in[0], &io->out[0]);
    return run_planes(&p, forward_planes, p.in[2] + 2 * p.out[2]);
}

ts_status tsi_cpu_avg_pool_backward(const tsi_kernel_io *io)
{
    pool p;
    pool_make(&p, io, &io->out[0], &io->in[0]);
    return run_planes(&p, backward_planes, p.in[0] * p.in[1] * p.in[2] + p.out[2]);
}
