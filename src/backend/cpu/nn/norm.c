/* SPDX-License-Identifier: Apache-2.0 */
/* norm.c - rms_norm and layer_norm of narrow reals over the last dims, row by row.
 *
 * A row's moments are added up as rows.h says and finished in double; weight and bias are brought
 * to f32 once per call. Results beside y: the reciprocal deviation (and the mean), as the gradient
 * wants them. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/compiler.h"
#include "op/core/element.h"
#include "op/nn/attributes.h"

enum { GRAIN = 16384 };

typedef struct norm {
    const tsi_row_set *set;
    tsi_block x, y, scale, mean; /* mean only if centred */
    tsi_line x_line, y_line;     /* a row of x, of y */
    const float *weight_bias[2];
    float *buffer; /* per worker: a row */
    ts_dtype dtype;
    double eps;
    int64_t length;
    int64_t step[4]; /* bytes from row to row of x, y, scale, mean, where all of them have one */
    bool even;
    int32_t outer;                /* dims before the normalized ones */
    bool centred, direct, narrow; /* direct: f32 where it lies; narrow: bf16 where it lies */
} norm;

/* Bytes from one row of a block to the next, with the outer extents of x; false: not everywhere
 * the same. */
static bool row_step(const norm *n, const tsi_block *block, int64_t *step)
{
    int64_t rows = 1, stride = 0;
    for (int32_t d = n->outer - 1; d >= 0; d--) {
        if (n->x.extent[d] == 1) continue;
        if (rows == 1)
            stride = block->stride[d];
        else if (block->stride[d] != stride * rows)
            return false;
        rows *= n->x.extent[d];
    }
    *step = stride * (int64_t)ts_dtype_size((ts_dtype)block->dtype);
    return true;
}

enum { X, Y, SCALE, MEAN };

/* Where row `index` of the outer dims begins; for the statistics, whose extents are the same there.
 */
static char *row_at(const norm *n, int which, int64_t index)
{
    const tsi_block *const blocks[] = { &n->x, &n->y, &n->scale, &n->mean }, *block = blocks[which];
    if (n->even) return (char *)block->data + index * n->step[which];
    int64_t at = 0;
    for (int32_t d = n->outer - 1; d >= 0; d--) {
        at += index % n->x.extent[d] * block->stride[d];
        index /= n->x.extent[d];
    }
    return (char *)block->data + at * (int64_t)ts_dtype_size((ts_dtype)block->dtype);
}

static double scale_of(const norm *n, double squares)
{
    return 1.0 / sqrt(squares / (double)n->length + n->eps);
}

static void store_moments(const norm *n, int64_t row, double mean, double scale)
{
    tsi_store_real((ts_dtype)n->scale.dtype, row_at(n, SCALE, row), scale);
    if (n->centred) tsi_store_real((ts_dtype)n->mean.dtype, row_at(n, MEAN, row), mean);
}

/* Of one row: the mean (0 if the norm has none) and the reciprocal deviation. */
typedef struct moments {
    double mean, scale;
} moments;

static moments moments_of(const norm *n, bool narrow, const void *x)
{
    double out[2] = { 0, 0 };
    if (n->centred && narrow)
        n->set->moments_bf16(x, n->length, out);
    else if (n->centred)
        n->set->moments(x, n->length, out);
    else
        out[1] = narrow ? n->set->fold_bf16[TSI_BY_SQUARES](x, n->length)
                        : n->set->fold_f32[TSI_BY_SQUARES](x, n->length);
    return (moments){ out[0], scale_of(n, out[1]) };
}

static void norm_row(const norm *n, bool narrow, void *to, const void *x, moments m)
{
    if (narrow)
        n->set->normalise_bf16(to, x, n->weight_bias, (float)m.mean, (float)m.scale, n->length);
    else
        n->set->normalise(to, x, n->weight_bias, (float)m.mean, (float)m.scale, n->length);
}

/* Rows where they lie. The moments of a row are taken before the row before it is written: the end
 * of a sum, a root and a quotient then wait for nothing. */
static void run_direct(const norm *n, int64_t begin, int64_t end)
{
    moments m = moments_of(n, n->narrow, row_at(n, X, begin));
    for (int64_t row = begin; row < end; row++) {
        moments next = m;
        if (row + 1 < end) next = moments_of(n, n->narrow, row_at(n, X, row + 1));
        norm_row(n, n->narrow, row_at(n, Y, row), row_at(n, X, row), m);
        store_moments(n, row, m.mean, m.scale);
        m = next;
    }
}

static void run_rows(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const norm *n = context;
    float *buffer = n->buffer + worker * n->length;
    if (n->direct || n->narrow) {
        run_direct(n, begin, end);
        return;
    }
    for (int64_t row = begin; row < end; row++) {
        tsi_line_gather(&n->x_line, row_at(n, X, row), TS_DTYPE_F32, buffer);
        moments m = moments_of(n, false, buffer);
        norm_row(n, false, buffer, buffer, m);
        store_moments(n, row, m.mean, m.scale);
        tsi_line_scatter(&n->y_line, row_at(n, Y, row), TS_DTYPE_F32, buffer);
    }
}

/* Weight or bias as f32 in `to`; NULL if absent. */
static const float *parameter(const tsi_kernel_io *io, int32_t input, float *to)
{
    if (input >= io->input_count || io->in[input].block.dtype == TS_DTYPE_NONE) return NULL;
    tsi_line line;
    tsi_line_make(&line, &io->in[input].block, 0);
    tsi_line_gather(&line, io->in[input].block.data, TS_DTYPE_F32, to);
    return to;
}

static ts_status run(const tsi_kernel_io *io, norm *n)
{
    int64_t rows = tsi_block_count(&n->x) / n->length, threads = tsi_parallel_threads(io->rank);
    tsi_scratch scratch;
    TSI_TRY(
        tsi_scratch_get(&scratch, io->rank, (size_t)((threads + 2) * n->length), sizeof(float)));
    float *memory = scratch.data;
    if (!tsi_dry(io->rank)) {
        n->weight_bias[0] = parameter(io, 1, memory);
        n->weight_bias[1] = parameter(io, 2, memory + n->length);
    }
    n->buffer = memory + 2 * n->length;
    tsi_parallel_for(io->rank, rows, GRAIN / n->length + 1, run_rows, n);
    tsi_scratch_done(&scratch);
    return TS_OK;
}

ts_status tsi_cpu_norm(const tsi_kernel_io *io)
{
    const tsi_block *x = &io->in[0].block;
    const tsi_norm_attributes *a = io->attributes;
    if (!tsi_is_small_real(x->dtype) || tsi_block_count(x) == 0)
        return (ts_status)TSI_KERNEL_DECLINED;
    norm n = {
        .set = tsi_rows(), .centred = io->op == &tsi_op_layer_norm, .x = *x, .y = io->out[0].block
    };
    n.dtype = (ts_dtype)x->dtype;
    n.outer = x->ndim - a->normalized.count;
    n.eps = a->eps;
    tsi_line_make(&n.x_line, &n.x, n.outer);
    tsi_line_make(&n.y_line, &n.y, n.outer);
    n.length = n.x_line.count;
    n.scale = io->out[io->output_count - 1].block;
    if (n.centred) n.mean = io->out[1].block;
    bool plain = tsi_line_is_plain(&n.x_line, n.dtype) && tsi_line_is_plain(&n.y_line, n.dtype);
    n.direct = n.dtype == TS_DTYPE_F32 && plain;
    n.narrow = n.dtype == TS_DTYPE_BF16 && plain;
    n.even = row_step(&n, &n.x, &n.step[X]) && row_step(&n, &n.y, &n.step[Y]) &&
             row_step(&n, &n.scale, &n.step[SCALE]) &&
             (!n.centred || row_step(&n, &n.mean, &n.step[MEAN]));
    return run(io, &n);
}
