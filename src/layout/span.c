/* SPDX-License-Identifier: Apache-2.0 */
/* span.c - sorted interval lists of one dim in closed form: build, cut, select, compare.
 *
 * INV: every list is the greedy grouping, from the left, of its maximal intervals into evenly
 * spaced spans. add() keeps it for any input that comes in ascending order, so equal sets always
 * have equal spans. Periodic input is never unrolled where the result is periodic again: a pattern
 * is built once and repeated by its shift. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/intmath.h"
#include "layout/span.h"

tsi_span_list tsi_span_list_whole(int64_t extent)
{
    tsi_span_list list = { .total = extent, .span_count = extent > 0 };
    if (extent > 0) list.few[0] = (tsi_span){ 0, extent, extent, 1 };
    return list;
}

/* ---- growing -------------------------------------------------------------------------------- */

static tsi_span *spans_of(tsi_span_list *list)
{
    return list->more ? list->more : list->few;
}

/* `more` has room for the next power of two, at least 8, so the count alone says when it is full.
 */
static bool grow(tsi_span_list *list, tsi_arena *arena)
{
    int64_t room = tsi_max_i64(8, list->span_count * 2);
    size_t bytes = (size_t)room * sizeof(tsi_span);
    if (list->span_count >= TSI_SPAN_COUNT_MAX) {
        TSI_FAIL(TS_ERR_MEMORY,
                 "a region of more than %d separate runs along one dim is not supported",
                 (int)TSI_SPAN_COUNT_MAX);
        return false;
    }
    tsi_span *more = arena ? tsi_arena_alloc(arena, bytes) : NULL;
    if (!more) {
        tsi_fail_memory("intervals of a region", bytes);
        return false;
    }
    memcpy(more, tsi_spans(list), (size_t)list->span_count * sizeof(tsi_span));
    list->more = more;
    return true;
}

static bool push(tsi_span_list *list, tsi_span span, tsi_arena *arena)
{
    int64_t count = list->span_count;
    bool full = list->more ? count >= 8 && (count & (count - 1)) == 0 : count == TSI_SPAN_INLINE;
    if (full && !grow(list, arena)) return false;
    spans_of(list)[list->span_count++] = span;
    return true;
}

static tsi_span one(int64_t begin, int64_t length)
{
    return (tsi_span){ begin, length, length, 1 };
}

static tsi_span without_first(tsi_span span)
{
    span.begin += span.period;
    span.count--;
    if (span.count == 1) span.period = span.length;
    return span;
}

/* Takes the last interval off the list and returns where it began. */
static int64_t pop_interval(tsi_span_list *list)
{
    tsi_span *last = spans_of(list) + list->span_count - 1;
    int64_t begin = last->begin + (last->count - 1) * last->period;
    last->count--;
    if (last->count == 1) last->period = last->length;
    if (last->count == 0) list->span_count--;
    return begin;
}

/* Moves as many intervals of `span` into the last span as continue it; false if none does. */
static bool absorb(tsi_span *last, tsi_span *span)
{
    if (last->length != span->length) return false;
    if (last->count > 1 && span->begin != last->begin + last->count * last->period) return false;
    if (last->count == 1) last->period = span->begin - last->begin;
    if (span->count == 1 || span->period == last->period) {
        last->count += span->count;
        span->count = 0;
    } else {
        last->count++;
        *span = without_first(*span);
    }
    return true;
}

static bool add(tsi_span_list *list, tsi_span span, tsi_arena *arena)
{
    while (span.count > 0 && list->span_count > 0) {
        tsi_span *last = spans_of(list) + list->span_count - 1;
        if (tsi_span_end(last) == span.begin) {
            int64_t begin = pop_interval(list);
            int64_t end = span.begin + span.length;
            if (!add(list, one(begin, end - begin), arena)) return false;
            if (span.count == 1) return true;
            span = without_first(span);
        } else if (!absorb(last, &span)) {
            break;
        }
    }
    return span.count == 0 || push(list, span, arena);
}

bool tsi_span_list_append(tsi_span_list *list, tsi_span span, tsi_arena *arena)
{
    if (span.length <= 0 || span.count <= 0) return true;
    if (span.count == 1 || span.period == span.length) {
        span.length *= span.count;
        span.period = span.length;
        span.count = 1;
    }
    list->total += span.length * span.count;
    return add(list, span, arena);
}

bool tsi_span_list_append_repeated(tsi_span_list *list, const tsi_span_list *pattern, int64_t shift,
                                   int64_t repeats, tsi_arena *arena)
{
    const tsi_span *span = tsi_spans(pattern);
    if (pattern->span_count == 0 || repeats == 0) return true;
    if (pattern->span_count == 1) {
        tsi_span whole = *span;
        if (span->count == 1 || span->count * span->period == shift) {
            whole.period = span->count == 1 ? shift : span->period;
            whole.count *= repeats;
            return tsi_span_list_append(list, whole, arena);
        }
    }
    for (int64_t k = 0; k < repeats; k++) {
        for (int64_t i = 0; i < pattern->span_count; i++) {
            tsi_span copy = span[i];
            copy.begin += k * shift;
            if (!tsi_span_list_append(list, copy, arena)) return false;
        }
    }
    return true;
}

/* ---- parts of one span ---------------------------------------------------------------------- */

/* Intervals first..last (inclusive) of a span, the first without its `skip` first indices, the last
 * cut to `keep` of its indices. */
static bool append_part(tsi_span_list *out, const tsi_span *span, int64_t first, int64_t skip,
                        int64_t last, int64_t keep, tsi_arena *arena)
{
    int64_t begin = span->begin + first * span->period;
    if (first == last) return tsi_span_list_append(out, one(begin + skip, keep - skip), arena);
    if (skip > 0) {
        if (!tsi_span_list_append(out, one(begin + skip, span->length - skip), arena)) return false;
        first++;
    }
    int64_t full = keep == span->length ? last + 1 : last;
    tsi_span middle = { span->begin + first * span->period, span->length, span->period,
                        full - first };
    if (!tsi_span_list_append(out, middle, arena)) return false;
    if (full > last) return true;
    return tsi_span_list_append(out, one(span->begin + last * span->period, keep), arena);
}

bool tsi_span_append_positions(tsi_span_list *out, const tsi_span *span, int64_t begin, int64_t end,
                               tsi_arena *arena)
{
    if (begin >= end) return true;
    return append_part(out, span, begin / span->length, begin % span->length,
                       (end - 1) / span->length, (end - 1) % span->length + 1, arena);
}

bool tsi_span_append_clipped(tsi_span_list *out, const tsi_span *span, int64_t begin, int64_t end,
                             tsi_arena *arena)
{
    return tsi_span_append_positions(out, span, tsi_span_before(span, begin),
                                     tsi_span_before(span, end), arena);
}

/* ---- positions of a list -------------------------------------------------------------------- */

/* Walks over a list by ascending positions; `base` is the position of the span's first index. */
typedef struct walker {
    const tsi_span *span;
    int64_t left, base;
} walker;

static walker walk(const tsi_span_list *list)
{
    return (walker){ tsi_spans(list), list->span_count, 0 };
}

static void walk_to(walker *at, int64_t position)
{
    while (at->left > 0 && at->base + tsi_span_total(at->span) <= position) {
        at->base += tsi_span_total(at->span);
        at->span++;
        at->left--;
    }
}

static bool walk_cut(walker at, int64_t begin, int64_t end, tsi_arena *arena, tsi_span_list *out)
{
    for (; at.left > 0 && at.base < end; at.left--, at.span++) {
        int64_t total = tsi_span_total(at.span);
        int64_t from = tsi_max_i64(begin - at.base, 0), to = tsi_min_i64(end - at.base, total);
        if (!tsi_span_append_positions(out, at.span, from, to, arena)) return false;
        at.base += total;
    }
    return true;
}

bool tsi_span_list_cut(const tsi_span_list *list, int64_t begin, int64_t end, tsi_arena *arena,
                       tsi_span_list *out)
{
    *out = (tsi_span_list){ 0 };
    walker at = walk(list);
    walk_to(&at, begin);
    return walk_cut(at, begin, end, arena, out);
}

/* Appends pieces of `pick`, which begins inside the walker's span: all that end in the interval
 * where the first one begins, as one span, or a single one that runs over its end. Returns how
 * many; 0: out of memory. */
static int64_t select_in_interval(const walker *at, const tsi_span *pick, tsi_arena *arena,
                                  tsi_span_list *out)
{
    const tsi_span *span = at->span;
    int64_t inside = pick->begin - at->base, number = inside / span->length;
    int64_t offset = inside % span->length, room = span->length - offset;
    if (room < pick->length)
        return walk_cut(*at, pick->begin, pick->begin + pick->length, arena, out) ? 1 : 0;
    int64_t pieces = tsi_min_i64((room - pick->length) / pick->period + 1, pick->count);
    tsi_span taken = { span->begin + number * span->period + offset, pick->length, pick->period,
                       pieces };
    return tsi_span_list_append(out, taken, arena) ? pieces : 0;
}

/* The same for whole cycles of the span and the pieces: the pattern of lcm(pick.period,
 * span.length) positions repeats, shifted. Otherwise for one interval. */
static int64_t select_some(const walker *at, const tsi_span *pick, tsi_arena *arena,
                           tsi_span_list *out)
{
    const tsi_span *span = at->span;
    int64_t room = tsi_span_total(span) - (pick->begin - at->base), cycle;
    int64_t steps = span->length / tsi_gcd(pick->period, span->length); /* pieces in a cycle */
    int64_t repeats = 0;
    if (span->count > 1 && tsi_mul_i64(pick->period, steps, &cycle))
        repeats = tsi_min_i64(room / cycle, pick->count / steps);
    if (repeats < 2) return select_in_interval(at, pick, arena, out);
    tsi_span_list pattern = { 0 };
    for (tsi_span rest = { pick->begin, pick->length, pick->period, steps }; rest.count > 0;) {
        int64_t taken = select_in_interval(at, &rest, arena, &pattern);
        if (taken == 0) return 0;
        rest.begin += taken * rest.period;
        rest.count -= taken;
    }
    int64_t shift = cycle / span->length * span->period;
    bool ok = tsi_span_list_append_repeated(out, &pattern, shift, repeats, arena);
    return ok ? steps * repeats : 0;
}

bool tsi_span_list_select(const tsi_span_list *list, const tsi_span_list *positions,
                          tsi_arena *arena, tsi_span_list *out)
{
    *out = (tsi_span_list){ 0 };
    walker at = walk(list);
    const tsi_span *span = tsi_spans(positions);
    for (int64_t i = 0; i < positions->span_count; i++) {
        for (tsi_span pick = span[i]; pick.count > 0;) {
            walk_to(&at, pick.begin);
            if (at.left == 0) return true;
            int64_t taken = select_some(&at, &pick, arena, out);
            if (taken == 0) return false;
            pick.begin += taken * pick.period;
            pick.count -= taken;
        }
    }
    return true;
}

bool tsi_span_list_join(const tsi_span_list *outer, const tsi_span_list *inner,
                        int64_t inner_extent, tsi_arena *arena, tsi_span_list *out)
{
    *out = (tsi_span_list){ 0 };
    const tsi_span *span = tsi_spans(outer);
    bool whole = inner->total == inner_extent;
    for (int64_t i = 0; i < outer->span_count && inner->total > 0; i++) {
        tsi_span wide = { span[i].begin * inner_extent, span[i].length * inner_extent,
                          span[i].period * inner_extent, span[i].count };
        if (whole) {
            if (!tsi_span_list_append(out, wide, arena)) return false;
            continue;
        }
        for (int64_t k = 0; k < span[i].count; k++) {
            tsi_span_list row = { 0 };
            for (int64_t j = 0; j < inner->span_count; j++) {
                tsi_span moved = tsi_spans(inner)[j];
                moved.begin += wide.begin + k * wide.period;
                if (!tsi_span_list_append(&row, moved, arena)) return false;
            }
            if (!tsi_span_list_append_repeated(out, &row, inner_extent, span[i].length, arena))
                return false;
        }
    }
    return true;
}

/* ---- questions ------------------------------------------------------------------------------ */

bool tsi_span_list_equal(const tsi_span_list *a, const tsi_span_list *b)
{
    if (a->total != b->total || a->span_count != b->span_count) return false;
    return memcmp(tsi_spans(a), tsi_spans(b), (size_t)a->span_count * sizeof(tsi_span)) == 0;
}

int64_t tsi_span_list_at(const tsi_span_list *list, int64_t position)
{
    const tsi_span *span = tsi_spans(list);
    for (int64_t i = 0; i < list->span_count; i++) {
        int64_t total = tsi_span_total(&span[i]);
        if (position < total)
            return span[i].begin + position / span[i].length * span[i].period +
                   position % span[i].length;
        position -= total;
    }
    return -1;
}

int64_t tsi_span_list_find(const tsi_span_list *list, int64_t index)
{
    const tsi_span *span = tsi_spans(list);
    int64_t base = 0;
    for (int64_t i = 0; i < list->span_count && index >= span[i].begin; i++) {
        if (index < tsi_span_end(&span[i])) {
            int64_t inside = (index - span[i].begin) % span[i].period;
            if (inside >= span[i].length) return -1;
            return base + (index - span[i].begin) / span[i].period * span[i].length + inside;
        }
        base += tsi_span_total(&span[i]);
    }
    return -1;
}

int64_t tsi_span_list_before(const tsi_span_list *list, int64_t index)
{
    const tsi_span *span = tsi_spans(list);
    int64_t count = 0;
    for (int64_t i = 0; i < list->span_count && index > span[i].begin; i++)
        count += tsi_span_before(&span[i], index);
    return count;
}

int64_t tsi_span_list_intervals(const tsi_span_list *list)
{
    const tsi_span *span = tsi_spans(list);
    int64_t count = 0;
    for (int64_t i = 0; i < list->span_count; i++)
        count += span[i].count;
    return count;
}
