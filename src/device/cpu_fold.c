/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_fold.c - the n-source reduction of the cpu device.
 *
 * Memory is walked once: a tile of each source passes through the L1 cache, two buffers take turns as the
 * accumulator, and the last operation writes the target itself where it can.
 *
 *   source 0 tile --+
 *   source 1 tile --op--> buffer 0 --+
 *   source 2 tile -------------------op--> buffer 1 --+
 *   source 3 tile ------------------------------------op--> (divide) --> (round to bf16, f16) --> target
 *
 * INV: element i depends on element i of the sources in their order alone, so that any split of the index
 * space, any stride and any number of threads give the same bits. Nothing is allocated. */
#include <string.h>

#include "base/compiler.h"
#include "base/error.h"
#include "base/intmath.h"
#include "device/cpu.h"

enum { BUFFER_BYTES = TSI_TILE_MAX * 16, ROW_MIN = 128 };

typedef struct fold {
    tsi_fold_kind kind;
    ts_reduce reduce;
    const tsi_block *to;
    const tsi_block *const *from;
    int64_t count, divisor;
    size_t size, accumulator_size;
    bool half;     /* bf16 or f16: widened to f32 on the way in, rounded on the way out */
    bool rows;     /* tiles are contiguous rows in every block; else they are gathered and scattered */
    bool in_place; /* some source is the target */
    /* The dims that are left when those contiguous in every block are merged; `dim` is a merged group's last. */
    int32_t ndim, dim[TS_NDIM_MAX];
    int64_t extent[TS_NDIM_MAX];
    tsi_tiles tiles;
} fold;

typedef struct buffers {
    _Alignas(64) char turn[2][BUFFER_BYTES];   /* the accumulator */
    _Alignas(64) char source[2][BUFFER_BYTES]; /* the operands of one operation, gathered or widened */
    _Alignas(64) char narrow[TSI_TILE_MAX * 2]; /* a gathered bf16 or f16 source, or such a result */
} buffers;

static bool merges(const fold *f, int32_t outer, int32_t inner)
{
    int64_t extent = f->extent[f->ndim - 1]; /* of the group that ends with `inner` */
    if (f->to->stride[outer] != extent * f->to->stride[inner]) return false;
    for (int64_t i = 0; i < f->count; i++)
        if (f->from[i]->stride[outer] != extent * f->from[i]->stride[inner]) return false;
    return true;
}

/* Fills dim and extent from the last dim to the first, then turns them round. */
static void merge_dims(fold *f)
{
    for (int32_t d = f->to->ndim - 1; d >= 0; d--) {
        if (f->to->extent[d] == 1) continue;
        if (f->ndim > 0 && merges(f, d, f->dim[f->ndim - 1])) {
            f->extent[f->ndim - 1] *= f->to->extent[d];
        } else {
            f->dim[f->ndim] = d;
            f->extent[f->ndim++] = f->to->extent[d];
        }
    }
    for (int32_t i = 0, j = f->ndim - 1; i < j; i++, j--) {
        int32_t dim = f->dim[i];
        int64_t extent = f->extent[i];
        f->dim[i] = f->dim[j], f->extent[i] = f->extent[j];
        f->dim[j] = dim, f->extent[j] = extent;
    }
}

static tsi_block merged(const fold *f, const tsi_block *block)
{
    tsi_block out = { .data = block->data, .dtype = block->dtype, .ndim = f->ndim };
    for (int32_t d = 0; d < f->ndim; d++) {
        out.extent[d] = f->extent[d];
        out.stride[d] = block->stride[f->dim[d]];
    }
    return out;
}

/* Long rows that are contiguous everywhere are folded where they lie. */
static bool rows_everywhere(const fold *f)
{
    if (f->ndim == 0) return true;
    int32_t last = f->dim[f->ndim - 1];
    bool rows = f->to->stride[last] == 1 && (f->ndim == 1 || f->extent[f->ndim - 1] >= ROW_MIN);
    for (int64_t i = 0; rows && i < f->count; i++)
        rows = f->from[i]->stride[last] == 1;
    return rows;
}

/* Source i of this tile, contiguous, in the accumulator type. `which` tells two operands apart. */
static const void *operand(const fold *f, int64_t i, int which, buffers *b)
{
    tsi_block whole = merged(f, f->from[i]), part = tsi_tiles_part(&f->tiles, &whole);
    const void *values = part.data;
    if (!f->rows) {
        tsi_block dense = tsi_tiles_dense(&f->tiles, part.dtype, f->half ? b->narrow : b->source[which]);
        tsi_cpu_copy_same(&dense, &part);
        values = dense.data;
    }
    if (!f->half) return values;
    float *wide = (float *)(void *)b->source[which];
    tsi_cpu_widen_rows((ts_dtype)part.dtype, wide, values, f->tiles.count);
    return wide;
}

/* All operations but the rounding. The result is `direct` if that is not NULL, else a buffer or a source. */
static const void *combine(const fold *f, void *direct, buffers *b)
{
    int64_t n = f->tiles.count;
    const void *value = operand(f, 0, 0, b);
    int turn = 0;
    for (int64_t i = 1; i < f->count; i++) {
        void *out = direct && i == f->count - 1 ? direct : b->turn[turn];
        f->kind.rows(out, value, operand(f, i, 1, b), n);
        value = out;
        turn = !turn;
    }
    bool logic = f->reduce == TS_REDUCE_AND || f->reduce == TS_REDUCE_OR || f->to->dtype == TS_DTYPE_BOOL;
    if (f->count == 1 && (logic || f->kind.divide)) {
        if (logic)
            f->kind.rows(b->turn[0], value, value, n); /* makes 0 or 1 of it */
        else
            memcpy(b->turn[0], value, (size_t)n * f->accumulator_size);
        value = b->turn[0];
        turn = 1;
    }
    if (f->kind.divide) f->kind.divide(b->turn[!turn], n, f->divisor);
    return value;
}

static void fold_tile(const fold *f, buffers *b)
{
    tsi_block whole = merged(f, f->to), part = tsi_tiles_part(&f->tiles, &whole);
    bool direct = f->rows && !f->half && !f->in_place && !f->kind.divide;
    const void *value = combine(f, direct ? part.data : NULL, b);
    if (f->rows) {
        if (f->half)
            tsi_cpu_narrow_rows((ts_dtype)part.dtype, part.data, value, f->tiles.count);
        else if (value != part.data)
            memcpy(part.data, value, (size_t)f->tiles.count * f->size);
        return;
    }
    tsi_block dense = tsi_tiles_dense(&f->tiles, part.dtype, b->narrow);
    if (f->half) {
        tsi_cpu_narrow_rows((ts_dtype)part.dtype, b->narrow, value, f->tiles.count);
        tsi_cpu_copy_same(&part, &dense);
    } else {
        /* A dense block is never written through when it is a source. */
        memcpy(&dense.data, &value, sizeof dense.data);
        tsi_cpu_copy_same(&part, &dense);
    }
}

ts_status tsi_cpu_fold(const tsi_device *device, const tsi_block *to, const tsi_block *const *from,
                       int64_t count, ts_reduce reduce, int64_t avg_count, tsi_stream *stream)
{
    (void)device, (void)stream;
    ts_dtype dtype = (ts_dtype)to->dtype;
    const char *why = NULL;
    if (!tsi_reduce_allowed(reduce, dtype, &why))
        return TSI_FAIL(TS_ERR_DTYPE, "%s of %s: %s", ts_reduce_name(reduce), ts_dtype_name(dtype), why);
    if (count < 1)
        return TSI_FAIL(TS_ERR_ARG, "a reduction of %lld sources has no value", (long long)count);
    fold f = { .kind = tsi_cpu_fold_kind(reduce, dtype), .reduce = reduce, .to = to, .from = from,
               .count = count, .divisor = avg_count > 0 ? avg_count : count,
               .size = ts_dtype_size(dtype) };
    f.accumulator_size = ts_dtype_size((ts_dtype)f.kind.accumulator);
    f.half = f.kind.accumulator != to->dtype;
    for (int64_t i = 0; i < count; i++)
        f.in_place = f.in_place || from[i]->data == to->data;
    merge_dims(&f);
    f.rows = rows_everywhere(&f);
    tsi_block whole = merged(&f, to), first = merged(&f, from[0]);
    if (!tsi_tiles_first(&f.tiles, &whole, &first)) return TS_OK;
    if (f.rows && f.ndim > 0)
        tsi_tiles_as_rows(&f.tiles, (int64_t)(8192 / f.accumulator_size));
    buffers b;
    do
        fold_tile(&f, &b);
    while (tsi_tiles_next(&f.tiles));
    return TS_OK;
}
