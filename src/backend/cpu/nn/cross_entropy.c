/* SPDX-License-Identifier: Apache-2.0 */
/* cross_entropy.c - cross_entropy of narrow reals and its gradient, row by row of classes:
 * contiguous rows of f32 and bf16 where they lie, others through a buffer of f32.
 *
 * Terms of the loss are kept per row and added up in order. Labels are checked before anything is
 * written; where one is out of range, or logits are f64, the reference runs (and says so). */
#include <math.h>

#include "backend/cpu/cpu.h"
#include "base/compiler.h"
#include "device/number.h"
#include "op/core/element.h"
#include "op/nn/attributes.h"

enum { GRAIN = 16384 };

typedef struct entropy {
    const tsi_row_set *set;
    const tsi_kernel_io *io;
    const tsi_block *x, *labels;
    float *buffer; /* per worker: a row; NULL: rows are used where they lie */
    double *term;  /* per row */
    int64_t classes, ignored;
    bool narrow; /* rows of bf16, and of the gradient, are used where they lie */
} entropy;

/* Offset of row `row` of the labels' dims in a block that begins with these dims. */
static int64_t offset_of(const entropy *e, const tsi_block *block, int64_t row)
{
    int64_t at = 0;
    for (int32_t d = e->labels->ndim - 1; d >= 0; d--) {
        at += row % e->labels->extent[d] * block->stride[d];
        row /= e->labels->extent[d];
    }
    return at;
}

static int64_t label_of(const entropy *e, int64_t row)
{
    return tsi_block_int(e->labels, offset_of(e, e->labels, row));
}

/* The logits of a row, in f32. */
static const float *logits(const entropy *e, int64_t row, int32_t worker)
{
    const char *at = tsi_block_at(e->x, offset_of(e, e->x, row));
    if (!e->buffer) return (const float *)(const void *)at;
    float *to = e->buffer + worker * e->classes;
    int64_t size = (int64_t)ts_dtype_size((ts_dtype)e->x->dtype);
    tsi_gather(TS_DTYPE_F32, to, (ts_dtype)e->x->dtype, at, e->x->stride[e->x->ndim - 1] * size,
               e->classes);
    return to;
}

/* The log of the sum of exponentials of a row; not a number if there is no largest logit, or it is
 * infinite. And the logit of the label. */
static double row_lse(const entropy *e, int64_t row, int32_t worker, int64_t label, double *chosen)
{
    float top;
    double sum = 0;
    if (e->narrow) {
        const uint16_t *x = (const void *)tsi_block_at(e->x, offset_of(e, e->x, row));
        top = e->set->top_bf16(x, e->classes);
        if (isfinite(top)) sum = e->set->exp_sum_bf16(x, top, e->classes);
        *chosen = label >= 0 ? (double)tsi_f32_of_bf16(x[label]) : 0;
    } else {
        const float *x = logits(e, row, worker);
        top = (float)e->set->fold_f32[TSI_BY_MAX](x, e->classes);
        if (isfinite(top)) sum = e->set->exp_sum(x, top, e->classes);
        *chosen = label >= 0 ? (double)x[label] : 0;
    }
    return isfinite(top) ? (double)top + log(sum) : (double)NAN;
}

static void run_forward(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const entropy *e = context;
    const tsi_block *lse = &e->io->out[1].block;
    for (int64_t row = begin; row < end; row++) {
        int64_t label = label_of(e, row);
        bool counts = label != e->ignored;
        double chosen, value = row_lse(e, row, worker, counts ? label : -1, &chosen);
        tsi_block_set_real(lse, offset_of(e, lse, row), value);
        e->term[row] = counts ? value - chosen : 0.0;
    }
}

/* The loss from the terms of all rows. */
static void finish(const entropy *e, int64_t rows, int64_t reduction)
{
    const tsi_block *loss = &e->io->out[0].block;
    double total = 0;
    int64_t counted = 0;
    for (int64_t row = 0; row < rows; row++) {
        total += e->term[row];
        counted += label_of(e, row) != e->ignored;
        if (reduction == 2) tsi_block_set_real(loss, offset_of(e, loss, row), e->term[row]);
    }
    if (reduction == 0) total /= (double)counted; /* 0 / 0: nothing counts, not a number */
    if (reduction != 2) tsi_store_real((ts_dtype)loss->dtype, loss->data, total);
}

static bool prepare(entropy *e, const tsi_kernel_io *io)
{
    *e = (entropy){ .set = tsi_rows(), .io = io, .x = &io->in[0].block };
    e->labels = &io->in[1].block;
    e->classes = e->x->extent[e->x->ndim - 1];
    return tsi_is_small_real(e->x->dtype) && e->classes > 0;
}

static bool lies_plain(const tsi_block *x, ts_dtype dtype)
{
    return x->dtype == (int32_t)dtype &&
           (x->stride[x->ndim - 1] == 1 || x->extent[x->ndim - 1] == 1);
}

/* Is each label a class, or ignored? Where not, the reference says which. */
static bool labels_fit(const entropy *e, int64_t rows)
{
    for (int64_t row = 0; row < rows && !tsi_dry(e->io->rank); row++) {
        int64_t label = label_of(e, row);
        if (label != e->ignored && (label < 0 || label >= e->classes)) return false;
    }
    return true;
}

ts_status tsi_cpu_cross_entropy(const tsi_kernel_io *io)
{
    entropy e;
    if (!prepare(&e, io)) return (ts_status)TSI_KERNEL_DECLINED;
    int64_t rows = tsi_block_count(e.labels);
    const tsi_cross_entropy_attributes *a = io->attributes;
    if (io->input_count > 2 || a->label_smoothing != 0) return (ts_status)TSI_KERNEL_DECLINED;
    e.ignored = a->ignore_index;
    if (!labels_fit(&e, rows)) return (ts_status)TSI_KERNEL_DECLINED;
    tsi_scratch scratch = { 0 }, terms = { 0 };
    e.narrow = lies_plain(e.x, TS_DTYPE_BF16);
    if (!e.narrow && !lies_plain(e.x, TS_DTYPE_F32))
        TSI_TRY(tsi_scratch_get(&scratch, io->rank,
                                (size_t)(tsi_parallel_threads(io->rank) * e.classes),
                                sizeof(float)));
    ts_status status = tsi_scratch_get(&terms, io->rank, (size_t)rows + 1, sizeof(double));
    if (status == TS_OK) {
        e.buffer = scratch.data;
        e.term = terms.data;
        tsi_parallel_for(io->rank, rows, GRAIN / e.classes + 1, run_forward, &e);
        if (!tsi_dry(io->rank)) finish(&e, rows, a->reduction);
    }
    tsi_scratch_done(&terms);
    tsi_scratch_done(&scratch);
    return status;
}

/* ---- the gradient ---------------------------------------------------------------------------- */

/* What the gradient of one row is made of: (e^(x - base) - [c is the label]) scale. */
typedef struct slope {
    double base, scale;
    int64_t label;   /* -1: not among the classes here */
    bool zero, none; /* all of it 0; not a number */
} slope;

static slope slope_of(const entropy *e, int64_t row)
{
    const tsi_block *lse = &e->io->in[2].block, *g = &e->io->in[3].block;
    slope s = { .label = label_of(e, row) };
    if (e->io->in[0].region && s.label >= 0)
        s.label = tsi_span_list_find(&e->io->in[0].region->dim[e->x->ndim - 1], s.label);
    if (s.label >= e->classes) s.label = -1;
    s.base = tsi_block_real(lse, offset_of(e, lse, row));
    s.scale = tsi_block_real(g, offset_of(e, g, row));
    s.zero = s.scale == 0.0;
    s.none = !s.zero && isnan(s.base);
    return s;
}

static float slope_at_label(const slope *s, float x)
{
    return (float)((exp((double)x - s->base) - 1.0) * s->scale);
}

static void gradient_row(const entropy *e, int64_t row, float *to, const float *x)
{
    slope s = slope_of(e, row);
    if (s.zero || s.none) {
        for (int64_t c = 0; c < e->classes; c++)
            to[c] = s.zero ? 0.0f : NAN;
        return;
    }
    float chosen = s.label >= 0 ? slope_at_label(&s, x[s.label]) : 0.0f;
    e->set->exp_scale(to, x, (float)s.base, (float)s.scale, e->classes);
    if (s.label >= 0) to[s.label] = chosen;
}

static void gradient_row_bf16(const entropy *e, int64_t row, uint16_t *to, const uint16_t *x)
{
    slope s = slope_of(e, row);
    if (s.zero || s.none) {
        for (int64_t c = 0; c < e->classes; c++)
            to[c] = s.zero ? 0 : 0x7FC0; /* not a number */
        return;
    }
    float chosen = s.label >= 0 ? slope_at_label(&s, tsi_f32_of_bf16(x[s.label])) : 0.0f;
    e->set->exp_scale_bf16(to, x, (float)s.base, (float)s.scale, e->classes);
    if (s.label >= 0) to[s.label] = tsi_bf16_of_f32(chosen);
}

static void run_backward(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const entropy *e = context;
    const tsi_block *out = &e->io->out[0].block;
    int64_t size = (int64_t)ts_dtype_size((ts_dtype)out->dtype);
    for (int64_t row = begin; row < end; row++) {
        char *to = tsi_block_at(out, offset_of(e, out, row));
        if (e->narrow) {
            const void *x = tsi_block_at(e->x, offset_of(e, e->x, row));
            gradient_row_bf16(e, row, (uint16_t *)(void *)to, x);
            continue;
        }
        const float *x = logits(e, row, worker);
        if (!e->buffer) {
            gradient_row(e, row, (float *)(void *)to, x);
            continue;
        }
        float *buffer = e->buffer + worker * e->classes;
        gradient_row(e, row, buffer, x);
        tsi_scatter((ts_dtype)out->dtype, to, out->stride[out->ndim - 1] * size, TS_DTYPE_F32,
                    buffer, e->classes);
    }
}

ts_status tsi_cpu_cross_entropy_backward(const tsi_kernel_io *io)
{
    entropy e;
    if (!prepare(&e, io)) return (ts_status)TSI_KERNEL_DECLINED;
    tsi_scratch scratch = { 0 };
    const tsi_block *to = &io->out[0].block;
    e.narrow = lies_plain(e.x, TS_DTYPE_BF16) && lies_plain(to, TS_DTYPE_BF16);
    if (!e.narrow && (!lies_plain(e.x, TS_DTYPE_F32) || !lies_plain(to, TS_DTYPE_F32)))
        TSI_TRY(tsi_scratch_get(&scratch, io->rank,
                                (size_t)(tsi_parallel_threads(io->rank) * e.classes),
                                sizeof(float)));
    e.buffer = scratch.data;
    tsi_parallel_for(io->rank, tsi_block_count(e.labels), GRAIN / e.classes + 1, run_backward, &e);
    tsi_scratch_done(&scratch);
    return TS_OK;
}
