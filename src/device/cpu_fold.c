/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_fold.c - the n-source reduction of the cpu device.
 *
 * Memory is walked once. Up to four sources are one loop from memory to memory; more go in groups,
 * a tile in the L1 cache carrying the value from group to group:
 *
 *   sources 0 1 2 3 --op--> tile --+
 *   sources 4 5 6 -----------------op--> tile --+
 *   sources 7 8 -------------------------------op--> target      (avg divides in the last group)
 *
 * Rows of one group that lie contiguous in every block are folded row by row where they are.
 *
 * bf16 and f16: a single group rounds in its loop; more groups widen each source to f32 first,
 * carry f32 and round at the end. Averages of integers are carried in i64 likewise. Strided blocks
 * are gathered and scattered tile by tile.
 *
 * INV: element i depends on element i of the sources in their order alone, so that any split of the
 * index space, any stride and any number of threads give the same bits. Nothing is allocated. */
#include <string.h>

#include "base/compiler.h"
#include "base/error.h"
#include "base/intmath.h"
#include "device/cpu.h"

enum {
    BUFFER_BYTES = TSI_TILE_MAX * 16,
    ROW_MIN = 128,     /* elements: shorter rows are gathered where there are several groups */
    ROW_ALONE = 8,     /* elements: shorter rows are gathered in any case */
    LONG_BYTES = 4096, /* rows from here on are folded abreast, so many at once, in such pieces */
    ABREAST = 4,
    PIECE_BYTES = 256
};

typedef struct fold {
    const tsi_block *to;
    const tsi_block *const *from;
    int64_t count, divisor;
    tsi_fold_rows_fn middle, last; /* of all groups but the last; of the last */
    size_t size, carry_size;       /* of an element; of one that is carried */
    ts_dtype carried;              /* the sources', or a wider one in more than one group */
    bool widened;                  /* it is a wider one */
    bool rows; /* tiles are contiguous rows in every block; else they are gathered and scattered */
    bool buffered; /* some source is the target, and the loops would be slow if they wrote it */
    /* The dims that are left when those contiguous in every block are merged; `dim` is a merged
     * group's last. */
    int32_t ndim, dim[TS_NDIM_MAX];
    int64_t extent[TS_NDIM_MAX];
    tsi_tiles tiles;
} fold;

typedef struct buffers {
    _Alignas(64) char turn[2][BUFFER_BYTES]; /* the value that is carried */
    _Alignas(
        64) char source[TSI_FOLD_MAX][BUFFER_BYTES]; /* sources of a group, gathered or widened */
    _Alignas(64) char narrow[TSI_TILE_MAX * 4];      /* a gathered source that is then widened */
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

/* One group, and rows that are contiguous in every block: each is folded where it lies. */
static bool walks_rows(const fold *f)
{
    if (f->ndim < 2 || f->count > TSI_FOLD_MAX || f->buffered) return false;
    int32_t last = f->dim[f->ndim - 1];
    bool rows = f->to->stride[last] == 1 && f->extent[f->ndim - 1] >= ROW_ALONE;
    for (int64_t i = 0; rows && i < f->count; i++)
        rows = f->from[i]->stride[last] == 1;
    return rows;
}

/* `columns` elements of a row, from `column` on. */
static void fold_run(const fold *f, char *to, const void *const *at, int64_t row, int64_t column,
                     int64_t columns)
{
    int32_t d = f->dim[f->ndim - 2];
    const void *from[TSI_FOLD_MAX];
    for (int64_t i = 0; i < f->count; i++)
        from[i] = (const char *)at[i] + (row * f->from[i]->stride[d] + column) * (int64_t)f->size;
    f->last(to + (row * f->to->stride[d] + column) * (int64_t)f->size, from, f->count, columns,
            f->divisor);
}

/* Elements of a row before the first whole line of the target. */
static int64_t head_of(const fold *f, const char *to, int64_t row)
{
    const char *start = to + row * f->to->stride[f->dim[f->ndim - 2]] * (int64_t)f->size;
    return (int64_t)((TSI_CACHE_LINE - (uintptr_t)start % TSI_CACHE_LINE) % TSI_CACHE_LINE) /
           (int64_t)f->size;
}

/* Rows abreast in short pieces of whole lines of the target: the start of a row, which hardware
 * cannot foresee, is then waited for once instead of for each of them. */
static void fold_abreast(const fold *f, char *to, const void *const *at, int64_t row)
{
    int64_t columns = f->extent[f->ndim - 1], piece = PIECE_BYTES / (int64_t)f->size;
    int64_t head[ABREAST];
    for (int64_t i = 0; i < ABREAST; i++)
        head[i] = head_of(f, to, row + i);
    for (int64_t end = 0; end < columns + piece; end += piece)
        for (int64_t i = 0; i < ABREAST; i++) {
            int64_t first = tsi_max_i64(head[i] + end - piece, 0);
            int64_t last = tsi_min_i64(head[i] + end, columns);
            if (first < last) fold_run(f, to, at, row + i, first, last - first);
        }
}

/* All rows of the last two dims. */
static void fold_plane(const fold *f, char *to, const void *const *at)
{
    int64_t rows = f->extent[f->ndim - 2], columns = f->extent[f->ndim - 1], row = 0;
    bool abreast = columns * (int64_t)f->size >= LONG_BYTES;
    for (; abreast && row + ABREAST <= rows; row += ABREAST)
        fold_abreast(f, to, at, row);
    for (; row < rows; row++)
        fold_run(f, to, at, row, 0, columns);
}

static void walk_rows(const fold *f)
{
    int64_t index[TS_NDIM_MAX] = { 0 }, size = (int64_t)f->size;
    const void *at[TSI_FOLD_MAX];
    char *to = f->to->data;
    for (int64_t i = 0; i < f->count; i++)
        at[i] = f->from[i]->data;
    for (int32_t d = 0; d >= 0;) {
        fold_plane(f, to, at);
        for (d = f->ndim - 3; d >= 0; d--) { /* the next plane */
            bool wraps = ++index[d] == f->extent[d];
            int64_t steps = wraps ? 1 - f->extent[d] : 1;
            to += steps * f->to->stride[f->dim[d]] * size;
            for (int64_t i = 0; i < f->count; i++)
                at[i] = (const char *)at[i] + steps * f->from[i]->stride[f->dim[d]] * size;
            if (!wraps) break;
            index[d] = 0;
        }
    }
}

/* Source i of this tile, contiguous, in the type that is carried; `slot` is its place in the group.
 */
static const void *operand(const fold *f, int64_t i, int64_t slot, buffers *b)
{
    tsi_block whole = merged(f, f->from[i]), part = tsi_tiles_part(&f->tiles, &whole);
    const void *values = part.data;
    if (!f->rows) {
        tsi_block dense =
            tsi_tiles_dense(&f->tiles, part.dtype, f->widened ? b->narrow : b->source[slot]);
        tsi_cpu_copy_same(&dense, &part);
        values = dense.data;
    }
    if (!f->widened) return values;
    tsi_cpu_cast_rows(f->carried, b->source[slot], (ts_dtype)part.dtype, values, f->tiles.count);
    return b->source[slot];
}

/* All groups of one tile. The last one writes `direct` if that is not NULL, else a buffer; returns
 * which. */
static void *combine(const fold *f, void *direct, buffers *b)
{
    void *value = NULL;
    int turn = 0;
    for (int64_t i = 0; i < f->count;) {
        const void *in[TSI_FOLD_MAX];
        int64_t sources = 0;
        if (value) in[sources++] = value;
        for (; sources < TSI_FOLD_MAX && i < f->count; i++, sources++)
            in[sources] = operand(f, i, sources, b);
        bool last = i == f->count;
        void *out = last && direct ? direct : b->turn[turn];
        (last ? f->last : f->middle)(out, in, sources, f->tiles.count, f->divisor);
        value = out;
        turn = !turn;
    }
    return value;
}

static void fold_tile(const fold *f, buffers *b)
{
    tsi_block whole = merged(f, f->to), part = tsi_tiles_part(&f->tiles, &whole);
    bool direct = f->rows && !f->widened && !f->buffered;
    void *value = combine(f, direct ? part.data : NULL, b);
    if (direct) return;
    if (f->widened) {
        void *rounded = f->rows ? part.data : b->narrow;
        tsi_cpu_cast_rows((ts_dtype)part.dtype, rounded, f->carried, value, f->tiles.count);
        value = rounded;
    }
    tsi_block dense = tsi_tiles_dense(&f->tiles, part.dtype, value);
    if (value != part.data) tsi_cpu_copy_same(&part, &dense);
}

/* Rows need no buffer if they go from memory to memory; else a tile of them stays in the L1 cache.
 */
static void choose_tiles(fold *f, const tsi_block *whole)
{
    if (!f->rows || f->ndim == 0) return;
    int64_t length = f->count > TSI_FOLD_MAX || f->buffered
                         ? (int64_t)(BUFFER_BYTES / f->carry_size)
                         : whole->extent[f->ndim - 1];
    tsi_tiles_as_rows(&f->tiles, f->widened ? TSI_TILE_MAX : length);
}

/* What goes from group to group: a value that is rounded, or wraps, at the end only. */
static ts_dtype carried_as(ts_dtype dtype, ts_reduce reduce)
{
    if (dtype == TS_DTYPE_BF16 || dtype == TS_DTYPE_F16) return TS_DTYPE_F32;
    bool narrow = dtype == TS_DTYPE_I32 || dtype == TS_DTYPE_I16 || dtype == TS_DTYPE_I8 ||
                  dtype == TS_DTYPE_U8;
    return narrow && reduce == TS_REDUCE_AVG ? TS_DTYPE_I64 : dtype;
}

ts_status tsi_cpu_fold(const tsi_device *device, const tsi_block *to, const tsi_block *const *from,
                       int64_t count, ts_reduce reduce, int64_t avg_count, tsi_stream *stream)
{
    (void)device, (void)stream;
    ts_dtype dtype = (ts_dtype)to->dtype;
    const char *why = NULL;
    if (!tsi_reduce_allowed(reduce, dtype, &why))
        return TSI_FAIL(TS_ERR_DTYPE, "%s of %s: %s", ts_reduce_name(reduce), ts_dtype_name(dtype),
                        why);
    if (count < 1)
        return TSI_FAIL(TS_ERR_ARG, "a reduction of %lld sources has no value", (long long)count);
    fold f = {
        .to = to, .from = from, .count = count, .divisor = avg_count > 0 ? avg_count : count
    };
    f.carried = count > TSI_FOLD_MAX ? carried_as(dtype, reduce) : dtype;
    f.widened = f.carried != dtype;
    f.size = ts_dtype_size(dtype);
    f.carry_size = ts_dtype_size(f.carried);
    f.last = tsi_cpu_fold_rows(reduce, f.carried);
    f.middle = reduce == TS_REDUCE_AVG ? tsi_cpu_fold_rows(TS_REDUCE_SUM, f.carried) : f.last;
    for (int64_t i = 0; i < count; i++)
        f.buffered = f.buffered || (!TSI_INDEPENDENT_HERE && from[i]->data == to->data);
    merge_dims(&f);
    if (tsi_block_count(to) > 0 && walks_rows(&f)) {
        walk_rows(&f);
        return TS_OK;
    }
    f.rows = rows_everywhere(&f);
    tsi_block whole = merged(&f, to), first = merged(&f, from[0]);
    if (!tsi_tiles_first(&f.tiles, &whole, &first)) return TS_OK;
    choose_tiles(&f, &whole);
    buffers b;
    do
        fold_tile(&f, &b);
    while (tsi_tiles_next(&f.tiles));
    return TS_OK;
}
