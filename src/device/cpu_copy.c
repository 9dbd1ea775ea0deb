/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_copy.c - strided copies, with and without a cast. They are the communication of thread ranks.
 *
 * Equal dtypes become loops over bytes; dims are ordered by the stride of the target, merged, and
 * the contiguous ones at the end become the unit that is copied at once:
 *
 *   no dim left               one memcpy
 *   unit of 1 2 4 8 16 bytes  fixed-size moves; a tiled transpose if the source runs along another
 *                             dim
 *   any other unit            rows of memcpy; long ones of large copies past the cache
 *
 * A cast goes through tiles in the L1 cache unless both sides have long contiguous rows. */
#include "device/cpu.h"

#include <stdint.h>
#include <string.h>

#include "base/compiler.h"
#include "base/intmath.h"
#include "device/cpu_stream.h"

/* Negative target strides are walked from the other end, so that order and merging see positive
 * ones. */
static void loops_add_dim(tsi_loops *loops, int64_t extent, int64_t to_stride, int64_t from_stride)
{
    if (to_stride < 0) {
        loops->to += (extent - 1) * to_stride;
        loops->from += (extent - 1) * from_stride;
        to_stride = -to_stride;
        from_stride = -from_stride;
    }
    int32_t d = loops->ndim++;
    for (; d > 0 && loops->to_stride[d - 1] < to_stride; d--) {
        loops->extent[d] = loops->extent[d - 1];
        loops->to_stride[d] = loops->to_stride[d - 1];
        loops->from_stride[d] = loops->from_stride[d - 1];
    }
    loops->extent[d] = extent;
    loops->to_stride[d] = to_stride;
    loops->from_stride[d] = from_stride;
}

static void loops_merge(tsi_loops *loops)
{
    int32_t last = 0; /* dims 0 .. last are merged */
    for (int32_t d = 1; d < loops->ndim; d++) {
        int64_t extent = loops->extent[d];
        if (loops->to_stride[last] == extent * loops->to_stride[d] &&
            loops->from_stride[last] == extent * loops->from_stride[d]) {
            loops->extent[last] *= extent;
        } else {
            loops->extent[++last] = extent;
        }
        loops->to_stride[last] = loops->to_stride[d];
        loops->from_stride[last] = loops->from_stride[d];
    }
    loops->ndim = loops->ndim > 0 ? last + 1 : 0;
    while (loops->ndim > 0 && loops->to_stride[loops->ndim - 1] == (int64_t)loops->unit &&
           loops->from_stride[loops->ndim - 1] == (int64_t)loops->unit)
        loops->unit *= (size_t)loops->extent[--loops->ndim];
}

/* False: nothing to copy. */
static bool loops_make(tsi_loops *loops, const tsi_block *to, const tsi_block *from)
{
    int64_t size = (int64_t)ts_dtype_size((ts_dtype)to->dtype);
    *loops = (tsi_loops){ .to = to->data, .from = from->data, .unit = (size_t)size };
    for (int32_t d = 0; d < to->ndim; d++)
        if (to->extent[d] == 0) return false;
    for (int32_t d = 0; d < to->ndim; d++)
        if (to->extent[d] != 1)
            loops_add_dim(loops, to->extent[d], to->stride[d] * size, from->stride[d] * size);
    loops_merge(loops);
    return true;
}

/* The innermost dim with fixed-size moves, which compilers turn into plain loads and stores. */
static void row_1(char *to, const char *from, int64_t n, int64_t ts, int64_t fs)
{
    for (int64_t i = 0; i < n; i++)
        to[i * ts] = from[i * fs];
}

static void row_2(char *to, const char *from, int64_t n, int64_t ts, int64_t fs)
{
    for (int64_t i = 0; i < n; i++)
        memcpy(to + i * ts, from + i * fs, 2);
}

static void row_4(char *to, const char *from, int64_t n, int64_t ts, int64_t fs)
{
    for (int64_t i = 0; i < n; i++)
        memcpy(to + i * ts, from + i * fs, 4);
}

static void row_8(char *to, const char *from, int64_t n, int64_t ts, int64_t fs)
{
    for (int64_t i = 0; i < n; i++)
        memcpy(to + i * ts, from + i * fs, 8);
}

static void row_16(char *to, const char *from, int64_t n, int64_t ts, int64_t fs)
{
    for (int64_t i = 0; i < n; i++)
        memcpy(to + i * ts, from + i * fs, 16);
}

static void row_32(char *to, const char *from, int64_t n, int64_t ts, int64_t fs)
{
    for (int64_t i = 0; i < n; i++)
        memcpy(to + i * ts, from + i * fs, 32);
}

static void row_64(char *to, const char *from, int64_t n, int64_t ts, int64_t fs)
{
    for (int64_t i = 0; i < n; i++)
        memcpy(to + i * ts, from + i * fs, 64);
}

/* A source in reverse order: constant strides become vector code, and it is the target that is
 * written from its end, since hardware fetches ahead upwards. */
static void row_back_2(uint16_t *restrict to, const uint16_t *restrict from, int64_t n)
{
    for (int64_t i = n - 1; i >= 0; i--)
        to[i] = from[-i];
}

static void row_back_4(uint32_t *restrict to, const uint32_t *restrict from, int64_t n)
{
    for (int64_t i = n - 1; i >= 0; i--)
        to[i] = from[-i];
}

/* Short rows a line or more apart look to the hardware like no pattern at all: it is told what
 * comes. */
static void row_far(char *to, const char *from, int64_t n, int64_t ts, int64_t fs, size_t unit)
{
    for (int64_t i = 0; i < n; i++) {
        TSI_PREFETCH(from + (i + 12 < n ? i + 12 : n - 1) * fs);
        memcpy(to + i * ts, from + i * fs, unit);
    }
}

static void row_any(char *to, const char *from, int64_t n, int64_t ts, int64_t fs, size_t unit)
{
    for (int64_t i = 0; i < n; i++)
        memcpy(to + i * ts, from + i * fs, unit);
}

/* Long rows far apart, eight at a time in pieces of whole lines of the target: hardware follows
 * eight streams as easily as one, and the start of a row, which it cannot foresee, is then waited
 * for once instead of eight times. */
static TSI_INLINE void rows_abreast(char *to, const char *from, int64_t n, int64_t ts, int64_t fs,
                                    size_t unit, bool stream)
{
    enum { ABREAST = 8, PIECE = 256 };
    int64_t row = 0;
    size_t pieces = (unit - (TSI_LINE - 1)) / PIECE;
    for (; row + ABREAST <= n; row += ABREAST) {
        char *t[ABREAST];
        const char *f[ABREAST];
        size_t rest[ABREAST];
        for (int i = 0; i < ABREAST; i++) {
            char *start = to + (row + i) * ts;
            size_t head = (TSI_LINE - (uintptr_t)start % TSI_LINE) % TSI_LINE;
            memcpy(start, from + (row + i) * fs, head);
            t[i] = start + head;
            f[i] = from + (row + i) * fs + head;
            rest[i] = unit - head - pieces * PIECE;
        }
        for (size_t p = 0; p < pieces; p++) {
            for (int i = 0; i < ABREAST; i++) {
                if (stream)
                    tsi_stream_lines(t[i] + p * PIECE, f[i] + p * PIECE, PIECE);
                else
                    memcpy(t[i] + p * PIECE, f[i] + p * PIECE, PIECE);
            }
        }
        for (int i = 0; i < ABREAST; i++)
            memcpy(t[i] + pieces * PIECE, f[i] + pieces * PIECE, rest[i]);
    }
    row_any(to + row * ts, from + row * fs, n - row, ts, fs, unit);
}

static void rows_cached(char *to, const char *from, int64_t n, int64_t ts, int64_t fs, size_t unit)
{
    rows_abreast(to, from, n, ts, fs, unit, false);
}

static void rows_streamed(char *to, const char *from, int64_t n, int64_t ts, int64_t fs,
                          size_t unit)
{
    rows_abreast(to, from, n, ts, fs, unit, true);
    tsi_stream_end();
}

/* Contiguous bytes. */
static void copy_whole(char *to, const char *from, size_t bytes)
{
    if (to == from) return;
    size_t head = 0, lines = 0;
    if (tsi_stream_pays(bytes)) {
        head = (TSI_LINE - (uintptr_t)to % TSI_LINE) % TSI_LINE;
        lines = (bytes - head) / TSI_LINE * TSI_LINE;
        memcpy(to, from, head);
        tsi_stream_lines(to + head, from + head, lines);
        tsi_stream_end();
    }
    size_t done = head + lines;
    memcpy(to + done, from + done, bytes - done);
}

static void rows_whole(char *to, const char *from, int64_t n, int64_t ts, int64_t fs, size_t unit)
{
    for (int64_t i = 0; i < n; i++)
        copy_whole(to + i * ts, from + i * fs, unit);
}

static void rows_long(char *to, const char *from, int64_t n, int64_t ts, int64_t fs, size_t unit)
{
    if (tsi_stream_pays(unit))
        rows_whole(to, from, n, ts, fs, unit);
    else if (n < 8)
        row_any(to, from, n, ts, fs, unit);
    else if (tsi_stream_pays(unit * (size_t)n))
        rows_streamed(to, from, n, ts, fs, unit);
    else
        rows_cached(to, from, n, ts, fs, unit);
}

static void copy_row(char *to, const char *from, int64_t n, int64_t ts, int64_t fs, size_t unit)
{
    if (unit > 16 && unit <= 128 && (fs >= 128 || fs <= -128)) {
        row_far(to, from, n, ts, fs, unit);
        return;
    }
    bool back = ts == (int64_t)unit && fs == -ts && (uintptr_t)to % unit == 0 &&
                (uintptr_t)from % unit == 0;
    switch (unit) {
    case 1:
        row_1(to, from, n, ts, fs);
        break;
    case 2:
        if (back)
            row_back_2((uint16_t *)(void *)to, (const uint16_t *)(const void *)from, n);
        else
            row_2(to, from, n, ts, fs);
        break;
    case 4:
        if (back)
            row_back_4((uint32_t *)(void *)to, (const uint32_t *)(const void *)from, n);
        else
            row_4(to, from, n, ts, fs);
        break;
    case 8:
        row_8(to, from, n, ts, fs);
        break;
    case 16:
        row_16(to, from, n, ts, fs);
        break;
    case 32:
        row_32(to, from, n, ts, fs);
        break;
    case 64:
        row_64(to, from, n, ts, fs);
        break;
    default:
        if (unit >= 512)
            rows_long(to, from, n, ts, fs, unit);
        else
            row_any(to, from, n, ts, fs, unit);
        break;
    }
}

/* Steps `index` over dims 0 .. ndim-1 and moves both pointers along; false after the last position.
 */
static bool odometer(tsi_loops *loops, int64_t *index, int32_t ndim)
{
    for (int32_t d = ndim - 1; d >= 0; d--) {
        loops->to += loops->to_stride[d];
        loops->from += loops->from_stride[d];
        if (++index[d] < loops->extent[d]) return true;
        loops->to -= loops->extent[d] * loops->to_stride[d];
        loops->from -= loops->extent[d] * loops->from_stride[d];
        index[d] = 0;
    }
    return false;
}

/* The dim along which the source is nearly contiguous, if that is not the last one; else -1. */
static int32_t transposed_dim(const tsi_loops *loops)
{
    bool small = loops->unit <= 16 && (loops->unit & (loops->unit - 1)) == 0;
    if (!small || loops->ndim < 2) return -1;
    int32_t last = loops->ndim - 1, best = -1;
    int64_t least = loops->from_stride[last];
    least = least < 0 ? -least : least;
    if (least == 0) return -1; /* broadcast along the target's fast dim: rows are right */
    for (int32_t d = last - 1; d >= 0; d--) {
        int64_t stride = loops->from_stride[d] < 0 ? -loops->from_stride[d] : loops->from_stride[d];
        if (stride == 0 || stride >= least) continue;
        best = d;
        least = stride;
    }
    return best;
}

static void move_dim_to(tsi_loops *loops, int32_t from, int32_t to)
{
    int64_t extent = loops->extent[from];
    int64_t to_stride = loops->to_stride[from], from_stride = loops->from_stride[from];
    for (int32_t d = from; d < to; d++) {
        loops->extent[d] = loops->extent[d + 1];
        loops->to_stride[d] = loops->to_stride[d + 1];
        loops->from_stride[d] = loops->from_stride[d + 1];
    }
    loops->extent[to] = extent;
    loops->to_stride[to] = to_stride;
    loops->from_stride[to] = from_stride;
}

void tsi_cpu_copy_same(const tsi_block *to, const tsi_block *from)
{
    tsi_loops loops;
    if (!loops_make(&loops, to, from)) return;
    int32_t last = loops.ndim - 1;
    if (last < 0) {
        copy_whole(loops.to, loops.from, loops.unit);
        return;
    }
    int64_t index[TS_NDIM_MAX] = { 0 };
    int32_t across = transposed_dim(&loops);
    if (across >= 0) {
        move_dim_to(&loops, across, last - 1);
        do
            tsi_cpu_transpose(&loops);
        while (odometer(&loops, index, last - 1));
        return;
    }
    do
        copy_row(loops.to, loops.from, loops.extent[last], loops.to_stride[last],
                 loops.from_stride[last], loops.unit);
    while (odometer(&loops, index, last));
}

/* Long contiguous rows on both sides: cast in place, without a tile. */
static void cast_long_rows(const tsi_block *to, const tsi_block *from)
{
    int32_t last = to->ndim - 1;
    tsi_loops loops = { .to = to->data, .from = from->data };
    for (int32_t d = 0; d < last; d++) {
        loops.extent[d] = to->extent[d];
        loops.to_stride[d] = to->stride[d] * (int64_t)ts_dtype_size((ts_dtype)to->dtype);
        loops.from_stride[d] = from->stride[d] * (int64_t)ts_dtype_size((ts_dtype)from->dtype);
    }
    int64_t index[TS_NDIM_MAX] = { 0 };
    int64_t count = last >= 0 ? to->extent[last] : 1;
    do
        tsi_cpu_cast_rows((ts_dtype)to->dtype, loops.to, (ts_dtype)from->dtype, loops.from, count);
    while (odometer(&loops, index, last));
}

static void cast_tiles(const tsi_block *to, const tsi_block *from)
{
    _Alignas(64) char wide[TSI_TILE_MAX * 16], narrow[TSI_TILE_MAX * 16];
    tsi_tiles tiles;
    for (bool more = tsi_tiles_first(&tiles, to, from); more; more = tsi_tiles_next(&tiles)) {
        tsi_block to_part = tsi_tiles_part(&tiles, to), from_part = tsi_tiles_part(&tiles, from);
        tsi_block source = tsi_tiles_dense(&tiles, from->dtype, wide);
        tsi_block target = tsi_tiles_dense(&tiles, to->dtype, narrow);
        tsi_cpu_copy_same(&source, &from_part);
        tsi_cpu_cast_rows((ts_dtype)to->dtype, narrow, (ts_dtype)from->dtype, wide, tiles.count);
        tsi_cpu_copy_same(&to_part, &target);
    }
}

ts_status tsi_cpu_copy(const tsi_device *device, const tsi_block *to, const tsi_block *from,
                       tsi_stream *stream)
{
    (void)device, (void)stream;
    if (to->dtype == from->dtype) {
        tsi_cpu_copy_same(to, from);
        return TS_OK;
    }
    tsi_block t = *to, f = *from;
    if (tsi_block_count(&t) == 0) return TS_OK;
    tsi_block_coalesce_pair(&t, &f);
    int32_t last = t.ndim - 1;
    bool rows = last < 0 || (t.stride[last] == 1 && f.stride[last] == 1 && t.extent[last] >= 64);
    if (rows)
        cast_long_rows(&t, &f);
    else
        cast_tiles(&t, &f);
    return TS_OK;
}
