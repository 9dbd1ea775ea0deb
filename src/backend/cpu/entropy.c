/* SPDX-License-Identifier: Apache-2.0 */
/* entropy.c - cross_entropy of narrow reals and its gradient, row by row of classes.
 *
 * Terms of the loss are kept per row and added up in order. Labels are checked before anything is
 * written; where one is out of range, or logits are f64, the reference runs (and says so). */
#include <math.h>

#include "backend/cpu/cpu.h"
#include "base/compiler.h"
#include "op/element.h"

enum { GRAIN = 16384 };

typedef struct entropy {
    const tsi_row_set *set;
    const tsi_kernel_io *io;
    const tsi_block *x, *labels;
    float *buffer; /* per worker: a row; NULL: rows are used where they lie */
    double *term;  /* per row */
    int64_t classes, ignored;
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
    return tsi_load_int((ts_dtype)e->labels->dtype,
                        tsi_block_at(e->labels, offset_of(e, e->labels, row)));
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

static void run_forward(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const entropy *e = context;
    const tsi_block *lse = &e->io->out[1].block;
    for (int64_t row = begin; row < end; row++) {
        const float *x = logits(e, row, worker);
        float top = (float)e->set->fold_f32[TSI_BY_MAX](x, e->classes);
        double value = (double)NAN; /* no largest logit, or it is infinite */
        if (isfinite(top)) value = (double)top + log(e->set->exp_sum(x, top, e->classes));
        int64_t label = label_of(e, row);
        tsi_store_real((ts_dtype)lse->dtype, tsi_block_at(lse, offset_of(e, lse, row)), value);
        e->term[row] = label == e->ignored ? 0.0 : value - (double)x[label];
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
        if (reduction == 2)
            tsi_store_real((ts_dtype)loss->dtype, tsi_block_at(loss, offset_of(e, loss, row)),
                           e->term[row]);
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

static bool lies_plain(const tsi_block *x)
{
    return x->dtype == TS_DTYPE_F32 && (x->stride[x->ndim - 1] == 1 || x->extent[x->ndim - 1] == 1);
}

static ts_status forward_kernel(const tsi_kernel_io *io)
{
    entropy e;
    if (!prepare(&e, io)) return (ts_status)TSI_KERNEL_DECLINED;
    int64_t rows = tsi_block_count(e.labels);
    e.ignored = tsi_attribute_int(io, "ignore_index");
    for (int64_t row = 0; row < rows; row++) {
        int64_t label = label_of(&e, row);
        if (label != e.ignored && (label < 0 || label >= e.classes))
            return (ts_status)TSI_KERNEL_DECLINED;
    }
    tsi_scratch scratch = { 0 }, terms = { 0 };
    if (!lies_plain(e.x))
        TSI_TRY(tsi_scratch_get(&scratch, io->rank,
                                (size_t)(tsi_parallel_threads(io->rank) * e.classes),
                                sizeof(float)));
    ts_status status = tsi_scratch_get(&terms, io->rank, (size_t)rows + 1, sizeof(double));
    if (status == TS_OK) {
        e.buffer = scratch.data;
        e.term = terms.data;
        tsi_parallel_for(io->rank, rows, GRAIN / e.classes + 1, run_forward, &e);
        finish(&e, rows, tsi_attribute_int(io, "reduction"));
    }
    tsi_scratch_done(&terms);
    tsi_scratch_done(&scratch);
    return status;
}

/* ---- the gradient ---------------------------------------------------------------------------- */

static void gradient_row(const entropy *e, int64_t row, float *to, const float *x)
{
    const tsi_block *lse = &e->io->in[2].block, *g = &e->io->in[3].block;
    int32_t last = e->x->ndim - 1;
    int64_t label = label_of(e, row);
    if (e->io->in[0].region && label >= 0)
        label = tsi_span_list_find(&e->io->in[0].region->dim[last], label);
    double base = tsi_load_real((ts_dtype)lse->dtype, tsi_block_at(lse, offset_of(e, lse, row)));
    double scale = tsi_load_real((ts_dtype)g->dtype, tsi_block_at(g, offset_of(e, g, row)));
    if (scale == 0.0 || isnan(base)) {
        for (int64_t c = 0; c < e->classes; c++)
            to[c] = scale == 0.0 ? 0.0f : NAN;
        return;
    }
    bool here = label >= 0 && label < e->classes;
    double chosen = here ? (double)x[label] : 0;
    e->set->exp_scale(to, x, (float)base, (float)scale, e->classes);
    if (here) to[label] = (float)((exp(chosen - base) - 1.0) * scale);
}

static void run_backward(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const entropy *e = context;
    const tsi_block *out = &e->io->out[0].block;
    int64_t size = (int64_t)ts_dtype_size((ts_dtype)out->dtype);
    for (int64_t row = begin; row < end; row++) {
        const float *x = logits(e, row, worker);
        char *to = tsi_block_at(out, offset_of(e, out, row));
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

static ts_status backward_kernel(const tsi_kernel_io *io)
{
    entropy e;
    if (!prepare(&e, io)) return (ts_status)TSI_KERNEL_DECLINED;
    tsi_scratch scratch = { 0 };
    if (!lies_plain(e.x) || !lies_plain(&io->out[0].block))
        TSI_TRY(tsi_scratch_get(&scratch, io->rank,
                                (size_t)(tsi_parallel_threads(io->rank) * e.classes),
                                sizeof(float)));
    e.buffer = scratch.data;
    tsi_parallel_for(io->rank, tsi_block_count(e.labels), GRAIN / e.classes + 1, run_backward, &e);
    tsi_scratch_done(&scratch);
    return TS_OK;
}

void tsi_entropy_install(void)
{
    tsi_kernel_set(tsi_device_cpu(), TSI_OP_ID_CROSS_ENTROPY, forward_kernel);
    tsi_kernel_set(tsi_device_cpu(), TSI_OP_ID_CROSS_ENTROPY_BACKWARD, backward_kernel);
}
