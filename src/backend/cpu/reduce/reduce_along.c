/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_along.c - one dim looked at as lines: where the largest or smallest is, the variance, sums
 * so far.
 *
 * Every line is a row of contiguous f32: where it lies, or gathered. Indices and sums so far have
 * the bits of the reference (these are added up in double, one after another); a variance is the
 * row kernel's, whatever the strides. Several dims at once, integers and f64 are the reference's.
 */
#include <math.h>

#include "backend/cpu/cpu.h"
#include "base/compiler.h"
#include "op/core/element.h"
#include "op/reduce/reduce.h"
#include "op/reduce/scan.h"

enum { GRAIN = 32768, SPAN = 64 };

typedef struct lines lines;
typedef void (*line_fn)(const lines *l, const float *x, char *const *out);

struct lines {
    tsi_walk walk; /* operand 0 is the input, the dim its last; then the results */
    const tsi_kernel_io *io;
    const tsi_row_set *set;
    line_fn run;
    ts_dtype in_dtype;
    bool least, root, reverse;
    double divisor;
    float *buffer; /* per worker; NULL: lines are used where they lie */
};

/* The block with its dim `dim` at the end; of a result without that dim, one element there. */
static tsi_block dim_last(const tsi_block *block, int32_t dim, bool missing)
{
    tsi_block moved = *block;
    int32_t to = 0, ndim = block->ndim + missing;
    for (int32_t d = 0; d < block->ndim; d++) {
        if (!missing && d == dim) continue;
        moved.extent[to] = block->extent[d];
        moved.stride[to++] = block->stride[d];
    }
    moved.extent[to] = missing ? 1 : block->extent[dim];
    moved.stride[to] = missing ? 0 : block->stride[dim];
    moved.ndim = ndim;
    return moved;
}

static void run_lines(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const lines *l = context;
    const tsi_walk *walk = &l->walk;
    float *buffer = l->buffer ? l->buffer + worker * walk->length : NULL;
    tsi_walker walker;
    tsi_walker_start(&walker, walk, begin);
    for (int64_t i = begin; i < end; i++, tsi_walker_next(&walker)) {
        const float *x = (const float *)(const void *)walker.at[0];
        if (buffer) {
            tsi_gather(TS_DTYPE_F32, buffer, l->in_dtype, walker.at[0],
                       walk->stride[0][walk->ndim - 1], walk->length);
            x = buffer;
        }
        l->run(l, x, walker.at + 1);
    }
}

/* Lines of the input along `dim`, and of the results: these without the dim, or of one element of
 * it, if `reduced`. */
static ts_status along(lines *l, int32_t dim, bool reduced)
{
    const tsi_kernel_io *io = l->io;
    const tsi_block *in = &io->in[0].block, *block[3];
    tsi_block moved[3];
    moved[0] = dim_last(in, dim, false);
    block[0] = &moved[0];
    for (int32_t i = 0; i < io->output_count; i++) {
        const tsi_block *out = &io->out[i].block;
        moved[i + 1] = dim_last(out, dim, reduced && out->ndim < in->ndim);
        block[i + 1] = &moved[i + 1];
    }
    l->set = tsi_rows();
    l->in_dtype = (ts_dtype)in->dtype;
    tsi_walk_make(&l->walk, block, io->output_count + 1, 1);
    const tsi_walk *walk = &l->walk;
    tsi_scratch scratch = { 0 };
    if (in->dtype != TS_DTYPE_F32 || walk->stride[0][walk->ndim - 1] != (int64_t)sizeof(float))
        TSI_TRY(tsi_scratch_get(&scratch, io->rank,
                                (size_t)(walk->length * tsi_parallel_threads(io->rank)),
                                sizeof(float)));
    l->buffer = scratch.data;
    tsi_parallel_for(io->rank, walk->rows, GRAIN / (walk->length + 8) + 1, run_lines, l);
    tsi_scratch_done(&scratch);
    return TS_OK;
}

/* The dim that is reduced; -1: not one alone, or nothing there, or not of narrow reals. */
static int32_t reduced_dim(const tsi_kernel_io *io)
{
    const tsi_reduce_attributes *a = io->attributes;
    const tsi_block *in = &io->in[0].block;
    if (a->dims.count != 1 || !tsi_is_small_real(in->dtype) || tsi_block_count(in) == 0) return -1;
    return (int32_t)a->dims.value[0];
}

/* ---- argmax, argmin, max, min ---------------------------------------------------------------- */

static bool has(const float *x, float value, int64_t count)
{
    uint32_t found = 0;
    for (int64_t i = 0; i < count; i++)
        found |= (uint32_t)(x[i] == value);
    return found != 0;
}

/* The first place of the extreme, which is among them; a NaN is found as one. */
static int64_t place_of(const float *x, float extreme, int64_t count)
{
    int64_t i = 0;
    if (isnan(extreme)) {
        while (i + 1 < count && !isnan(x[i]))
            i++;
        return i;
    }
    while (i + SPAN <= count && !has(x + i, extreme, SPAN))
        i += SPAN;
    while (i + 1 < count && x[i] != extreme)
        i++;
    return i;
}

static void run_extreme(const lines *l, const float *x, char *const *out)
{
    int64_t count = l->walk.length;
    float extreme = (float)l->set->fold_f32[l->least ? TSI_BY_MIN : TSI_BY_MAX](x, count);
    int64_t at = place_of(x, extreme, count);
    int32_t last = l->io->output_count - 1;
    tsi_store_int(TS_DTYPE_I64, out[last], at);
    if (last > 0) tsi_store_real((ts_dtype)l->io->out[0].block.dtype, out[0], (double)x[at]);
}

static ts_status extreme_kernel(const tsi_kernel_io *io, bool least)
{
    int32_t dim = reduced_dim(io);
    if (dim < 0) return (ts_status)TSI_KERNEL_DECLINED;
    lines l = { .io = io, .run = run_extreme, .least = least };
    return along(&l, dim, true);
}

ts_status tsi_cpu_largest(const tsi_kernel_io *io)
{
    return extreme_kernel(io, false);
}

ts_status tsi_cpu_smallest(const tsi_kernel_io *io)
{
    return extreme_kernel(io, true);
}

/* ---- var, std -------------------------------------------------------------------------------- */

static void run_stat(const lines *l, const float *x, char *const *out)
{
    double mean_squares[2];
    l->set->moments(x, l->walk.length, mean_squares);
    double value = mean_squares[1] / l->divisor;
    tsi_store_real((ts_dtype)l->io->out[0].block.dtype, out[0], l->root ? sqrt(value) : value);
}

static ts_status stat_kernel(const tsi_kernel_io *io, bool root)
{
    int32_t dim = reduced_dim(io);
    if (dim < 0) return (ts_status)TSI_KERNEL_DECLINED;
    lines l = { .io = io, .run = run_stat, .root = root };
    double count = (double)io->in[0].global->shape.extent[dim];
    l.divisor = fmax(count - tsi_attribute_real(io, "correction"), 0.0);
    return along(&l, dim, true);
}

ts_status tsi_cpu_var(const tsi_kernel_io *io)
{
    return stat_kernel(io, false);
}

ts_status tsi_cpu_std(const tsi_kernel_io *io)
{
    return stat_kernel(io, true);
}

/* ---- cumsum ---------------------------------------------------------------------------------- */

static void run_cumsum(const lines *l, const float *x, char *const *out)
{
    const tsi_walk *walk = &l->walk;
    int64_t count = walk->length, stride = walk->stride[1][walk->ndim - 1];
    double total = 0;
    if (!l->reverse && stride == (int64_t)sizeof(float)) {
        float *to = (float *)(void *)out[0];
        for (int64_t i = 0; i < count; i++) {
            total += (double)x[i];
            to[i] = (float)total;
        }
        return;
    }
    for (int64_t k = 0; k < count; k++) {
        int64_t i = l->reverse ? count - 1 - k : k;
        total += (double)x[i];
        *(float *)(void *)(out[0] + i * stride) = (float)total;
    }
}

ts_status tsi_cpu_cumsum(const tsi_kernel_io *io)
{
    const tsi_scan_attributes *a = io->attributes;
    const tsi_block *in = &io->in[0].block;
    if (in->dtype != TS_DTYPE_F32 || io->out[0].block.dtype != TS_DTYPE_F32 || in->ndim == 0)
        return (ts_status)TSI_KERNEL_DECLINED;
    if (tsi_block_count(in) == 0) return TS_OK;
    lines l = { .io = io, .run = run_cumsum, .reverse = a->reverse != 0 };
    return along(&l, (int32_t)a->dim, false);
}
