/* SPDX-License-Identifier: Apache-2.0 */
/* cut.c - the kinds of cuts in closed form; see cut.h for what each means.
 *
 * INV: for every kind, summed over coordinates the lengths are the extent; find is the inverse of
 * outer. Nothing overflows for extents below TSI_EXTENT_MAX and any number of coordinates: products
 * are formed only where a division has shown that they fit. */
#include "layout/cut.h"
#include "base/compiler.h"
#include "base/intmath.h"

/* Length of full chunks: ceil(extent / parts), up to a multiple of align, at most the extent. */
static int64_t chunk_length(int64_t extent, int64_t parts, int64_t align)
{
    int64_t length = tsi_ceil_div(extent, parts);
    if (align == 1) return length;
    if (!tsi_mul_i64(tsi_ceil_div(length, align), align, &length)) return extent;
    return tsi_min_i64(length, extent);
}

/* Chunk number `chunk` of an extent cut into chunks of `length`. */
static ts_interval chunk_at(int64_t extent, int64_t length, int64_t chunk)
{
    int64_t begin;
    if (!tsi_mul_i64(chunk, length, &begin) || begin > extent)
        return (ts_interval){ extent, extent };
    return (ts_interval){ begin, extent - begin > length ? begin + length : extent };
}

static ts_interval chunk_of(int64_t extent, int64_t parts, int64_t align, int64_t chunk)
{
    return chunk_at(extent, chunk_length(extent, parts, align), chunk);
}

static int64_t interval_length(ts_interval interval)
{
    return interval.end - interval.begin;
}

/* A strided cut: `full` pieces of `piece` positions, then one of `rest`; what a coordinate takes of
 * either. */
typedef struct strided {
    int64_t piece, full, rest;
    ts_interval in_full, in_rest;
} strided;

static strided strided_of(const tsi_cut *cut, int64_t coord)
{
    strided s = { .piece = tsi_ceil_div(cut->extent, cut->place->factor) };
    if (s.piece == 0) return s; /* nothing to cut */
    s.full = cut->extent / s.piece;
    s.rest = cut->extent - s.full * s.piece;
    s.in_full = chunk_of(s.piece, cut->parts, cut->place->align, coord);
    if (s.rest > 0) s.in_rest = chunk_of(s.rest, cut->parts, cut->place->align, coord);
    return s;
}

/* Head and tail: the two chunks of a coordinate. */
static void head_tail_of(const tsi_cut *cut, int64_t coord, ts_interval *head, ts_interval *tail)
{
    int64_t length = chunk_length(cut->extent, 2 * cut->parts, cut->place->align);
    *head = chunk_at(cut->extent, length, coord);
    *tail = chunk_at(cut->extent, length, 2 * cut->parts - 1 - coord);
}

/* Ragged: piece i of round i / parts belongs to coordinate i % parts. */
static const int64_t *ragged_offsets(const tsi_cut *cut)
{
    return cut->place->sizes + cut->parts * cut->place->factor;
}

static int64_t ragged_length(const tsi_cut *cut, int64_t coord, int64_t rounds)
{
    int64_t length = 0;
    for (int64_t i = 0; i < rounds; i++)
        length += cut->place->sizes[i * cut->parts + coord];
    return length;
}

static int64_t ragged_outer(const tsi_cut *cut, int64_t coord, int64_t local)
{
    int64_t piece = coord;
    while (local >= cut->place->sizes[piece] &&
           piece + cut->parts < cut->parts * cut->place->factor) {
        local -= cut->place->sizes[piece];
        piece += cut->parts;
    }
    return ragged_offsets(cut)[piece] + local;
}

int64_t tsi_cut_length(const tsi_cut *cut, int64_t coord)
{
    ts_interval head, tail;
    strided s;
    switch ((ts_placement_kind)cut->place->kind) {
    case TS_PLACE_SHARD:
        return interval_length(chunk_of(cut->extent, cut->parts, cut->place->align, coord));
    case TS_PLACE_STRIDED:
        s = strided_of(cut, coord);
        return s.full * interval_length(s.in_full) + interval_length(s.in_rest);
    case TS_PLACE_RAGGED:
        return ragged_length(cut, coord, cut->place->factor);
    case TS_PLACE_HEAD_TAIL:
        head_tail_of(cut, coord, &head, &tail);
        return interval_length(head) + interval_length(tail);
    case TS_PLACE_REPLICATE:
    case TS_PLACE_PARTIAL:
    case TS_PLACE_NORM:
        break;
    }
    return cut->extent;
}

static int64_t strided_outer(const tsi_cut *cut, int64_t coord, int64_t local)
{
    strided s = strided_of(cut, coord);
    int64_t each = interval_length(s.in_full);
    if (each > 0 && local < s.full * each)
        return local / each * s.piece + s.in_full.begin + local % each;
    return s.full * s.piece + s.in_rest.begin + (local - s.full * each);
}

int64_t tsi_cut_outer(const tsi_cut *cut, int64_t coord, int64_t local)
{
    ts_interval head, tail;
    switch ((ts_placement_kind)cut->place->kind) {
    case TS_PLACE_SHARD:
        return chunk_of(cut->extent, cut->parts, cut->place->align, coord).begin + local;
    case TS_PLACE_STRIDED:
        return strided_outer(cut, coord, local);
    case TS_PLACE_RAGGED:
        return ragged_outer(cut, coord, local);
    case TS_PLACE_HEAD_TAIL:
        head_tail_of(cut, coord, &head, &tail);
        if (local < interval_length(head)) return head.begin + local;
        return tail.begin + local - interval_length(head);
    case TS_PLACE_REPLICATE:
    case TS_PLACE_PARTIAL:
    case TS_PLACE_NORM:
        break;
    }
    return local;
}

static int64_t strided_find(const tsi_cut *cut, int64_t position, int64_t *local)
{
    int64_t piece = tsi_ceil_div(cut->extent, cut->place->factor);
    int64_t number = position / piece, within = position % piece;
    int64_t here = tsi_min_i64(piece, cut->extent - number * piece);
    int64_t chunk = chunk_length(here, cut->parts, cut->place->align);
    int64_t coord = within / chunk;
    ts_interval in_full = chunk_of(piece, cut->parts, cut->place->align, coord);
    *local = number * interval_length(in_full) + within % chunk;
    return coord;
}

static int64_t head_tail_find(const tsi_cut *cut, int64_t position, int64_t *local)
{
    int64_t length = chunk_length(cut->extent, 2 * cut->parts, cut->place->align);
    int64_t chunk = position / length;
    *local = position % length;
    if (chunk < cut->parts) return chunk;
    int64_t coord = 2 * cut->parts - 1 - chunk;
    *local += interval_length(chunk_at(cut->extent, length, coord));
    return coord;
}

/* The last piece whose offset is at most the position holds it: empty ones before share the
 * offset. */
static int64_t ragged_find(const tsi_cut *cut, int64_t position, int64_t *local)
{
    const int64_t *offset = ragged_offsets(cut);
    int64_t low = 0, high = cut->parts * cut->place->factor;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (offset[middle] <= position)
            low = middle;
        else
            high = middle;
    }
    int64_t coord = low % cut->parts;
    *local = position - offset[low] + ragged_length(cut, coord, low / cut->parts);
    return coord;
}

int64_t tsi_cut_find(const tsi_cut *cut, int64_t position, int64_t *local)
{
    TSI_ASSERT(position >= 0 && position < cut->extent);
    int64_t chunk;
    switch ((ts_placement_kind)cut->place->kind) {
    case TS_PLACE_SHARD:
        chunk = chunk_length(cut->extent, cut->parts, cut->place->align);
        *local = position % chunk;
        return position / chunk;
    case TS_PLACE_STRIDED:
        return strided_find(cut, position, local);
    case TS_PLACE_RAGGED:
        return ragged_find(cut, position, local);
    case TS_PLACE_HEAD_TAIL:
        return head_tail_find(cut, position, local);
    case TS_PLACE_REPLICATE:
    case TS_PLACE_PARTIAL:
    case TS_PLACE_NORM:
        break;
    }
    *local = position;
    return 0;
}

static void add_interval(tsi_span_list *out, ts_interval interval)
{
    int64_t length = interval_length(interval);
    (void)tsi_span_list_append(out, (tsi_span){ interval.begin, length, length, 1 }, NULL);
}

static bool ragged_positions(const tsi_cut *cut, int64_t coord, tsi_arena *arena,
                             tsi_span_list *out)
{
    for (int64_t i = 0; i < cut->place->factor; i++) {
        int64_t piece = i * cut->parts + coord, length = cut->place->sizes[piece];
        tsi_span span = { ragged_offsets(cut)[piece], length, length, 1 };
        if (length > 0 && !tsi_span_list_append(out, span, arena)) return false;
    }
    return true;
}

static void strided_positions(const tsi_cut *cut, int64_t coord, tsi_span_list *out)
{
    strided s = strided_of(cut, coord);
    int64_t base = s.full * s.piece;
    tsi_span each = { s.in_full.begin, interval_length(s.in_full), s.piece, s.full };
    (void)tsi_span_list_append(out, each, NULL);
    add_interval(out, (ts_interval){ base + s.in_rest.begin, base + s.in_rest.end });
}

bool tsi_cut_interval(const tsi_cut *cut, int64_t coord, ts_interval *out)
{
    if (cut->place->kind == TS_PLACE_SHARD) {
        *out = chunk_of(cut->extent, cut->parts, cut->place->align, coord);
        return true;
    }
    if (cut->place->kind != TS_PLACE_RAGGED || cut->place->factor > 1) return false;
    *out = (ts_interval){ ragged_offsets(cut)[coord], ragged_offsets(cut)[coord + 1] };
    return true;
}

bool tsi_cut_positions(const tsi_cut *cut, int64_t coord, tsi_arena *arena, tsi_span_list *out)
{
    ts_interval head, tail;
    *out = (tsi_span_list){ 0 };
    switch ((ts_placement_kind)cut->place->kind) {
    case TS_PLACE_SHARD:
        (void)tsi_cut_interval(cut, coord, &head);
        add_interval(out, head);
        return true;
    case TS_PLACE_RAGGED:
        return ragged_positions(cut, coord, arena, out);
    case TS_PLACE_STRIDED:
        strided_positions(cut, coord, out);
        return true;
    case TS_PLACE_HEAD_TAIL:
        head_tail_of(cut, coord, &head, &tail);
        add_interval(out, head);
        add_interval(out, tail);
        return true;
    case TS_PLACE_REPLICATE:
    case TS_PLACE_PARTIAL:
    case TS_PLACE_NORM:
        break;
    }
    *out = tsi_span_list_whole(cut->extent);
    return true;
}

bool tsi_cut_even(const tsi_cut *cut, int64_t *length)
{
    *length = tsi_cut_length(cut, 0);
    if (cut->parts == 1 || cut->extent == 0) return true;
    if (cut->place->kind == TS_PLACE_RAGGED) {
        for (int64_t r = 1; r < cut->parts; r++)
            if (ragged_length(cut, r, cut->place->factor) != *length) return false;
        return true;
    }
    /* Coordinate 0 has the largest length (of HT perhaps the least), and lengths add up to the
     * extent. */
    int64_t all;
    return tsi_mul_i64(*length, cut->parts, &all) && all == cut->extent;
}
