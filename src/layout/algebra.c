/* SPDX-License-Identifier: Apache-2.0 */
/* algebra.c - intersection, difference and complement of interval lists.
 *
 * Two lists are walked side by side, one pair of overlapping spans at a time. Two periodic spans
 * repeat after the least common multiple of their periods: what happens in one such cycle is worked
 * out once, then repeated (as a span, or as a product where only the count is wanted). So the cost
 * is the number of intervals in a cycle, not in the tensor.
 *
 *   wide    [#########]............[#########]............[#########]       looped over
 *   narrow  [##]..[##]..[##]..[##]..[##]..[##]..[##]..[##]..[##]            clipped in O(1)
 *           |<------ cycle ------->| */
#include "base/intmath.h"
#include "layout/span.h"

/* Intervals of `wide` from number `from` on that fill whole cycles of both spans; *steps intervals
 * each. 0: too few to be worth it. */
static int64_t whole_cycles(const tsi_span *wide, const tsi_span *narrow, int64_t from,
                            int64_t *steps, int64_t *shift)
{
    int64_t begin = wide->begin + from * wide->period;
    int64_t end = narrow->begin + narrow->count * narrow->period;
    *steps = narrow->period / tsi_gcd(wide->period, narrow->period);
    if (begin < narrow->begin || begin >= end) return 0;
    if (!tsi_mul_i64(wide->period, *steps, shift)) return 0;
    int64_t cycles = tsi_min_i64((wide->count - from) / *steps, (end - begin) / *shift);
    return cycles >= 2 ? cycles : 0;
}

/* Number of the first interval that ends after x. */
static int64_t first_after(const tsi_span *span, int64_t x)
{
    if (x < span->begin + span->length) return 0;
    return (x - span->begin - span->length) / span->period + 1;
}

static bool clip_some(const tsi_span *wide, const tsi_span *narrow, int64_t from, int64_t count,
                      tsi_arena *arena, tsi_span_list *out)
{
    for (int64_t k = from; k < from + count; k++) {
        int64_t begin = wide->begin + k * wide->period;
        if (!tsi_span_append_clipped(out, narrow, begin, begin + wide->length, arena)) return false;
    }
    return true;
}

static bool intersect_pair(const tsi_span *a, const tsi_span *b, tsi_arena *arena,
                           tsi_span_list *out)
{
    bool swap = b->count == 1 || (a->count > 1 && b->period > a->period);
    const tsi_span *wide = swap ? b : a, *narrow = swap ? a : b;
    int64_t end = tsi_span_end(narrow), steps, shift;
    for (int64_t k = first_after(wide, narrow->begin);
         k < wide->count && wide->begin + k * wide->period < end;) {
        int64_t cycles = whole_cycles(wide, narrow, k, &steps, &shift);
        if (cycles == 0) {
            if (!clip_some(wide, narrow, k++, 1, arena, out)) return false;
            continue;
        }
        tsi_span_list pattern = { 0 };
        if (!clip_some(wide, narrow, k, steps, arena, &pattern)) return false;
        if (!tsi_span_list_append_repeated(out, &pattern, shift, cycles, arena)) return false;
        k += steps * cycles;
    }
    return true;
}

bool tsi_span_list_intersect(const tsi_span_list *a, const tsi_span_list *b, tsi_arena *arena,
                             tsi_span_list *out)
{
    *out = (tsi_span_list){ 0 };
    const tsi_span *x = tsi_spans(a), *y = tsi_spans(b);
    const tsi_span *x_end = x + a->span_count, *y_end = y + b->span_count;
    while (x < x_end && y < y_end) {
        if (!intersect_pair(x, y, arena, out)) return false;
        if (tsi_span_end(x) < tsi_span_end(y))
            x++;
        else
            y++;
    }
    return true;
}

static int64_t count_some(const tsi_span *wide, const tsi_span *narrow, int64_t from, int64_t count)
{
    int64_t total = 0;
    for (int64_t k = from; k < from + count; k++) {
        int64_t begin = wide->begin + k * wide->period;
        total += tsi_span_before(narrow, begin + wide->length) - tsi_span_before(narrow, begin);
    }
    return total;
}

static int64_t count_pair(const tsi_span *a, const tsi_span *b)
{
    bool swap = b->count == 1 || (a->count > 1 && b->period > a->period);
    const tsi_span *wide = swap ? b : a, *narrow = swap ? a : b;
    int64_t end = tsi_span_end(narrow), total = 0, steps, shift;
    for (int64_t k = first_after(wide, narrow->begin);
         k < wide->count && wide->begin + k * wide->period < end;) {
        int64_t cycles = whole_cycles(wide, narrow, k, &steps, &shift);
        if (cycles == 0) {
            total += count_some(wide, narrow, k++, 1);
            continue;
        }
        total += count_some(wide, narrow, k, steps) * cycles;
        k += steps * cycles;
    }
    return total;
}

int64_t tsi_span_list_intersect_count(const tsi_span_list *a, const tsi_span_list *b)
{
    const tsi_span *x = tsi_spans(a), *y = tsi_spans(b);
    const tsi_span *x_end = x + a->span_count, *y_end = y + b->span_count;
    int64_t total = 0;
    while (x < x_end && y < y_end) {
        total += count_pair(x, y);
        if (tsi_span_end(x) < tsi_span_end(y))
            x++;
        else
            y++;
    }
    return total;
}

bool tsi_span_list_complement(const tsi_span_list *list, int64_t extent, tsi_arena *arena,
                              tsi_span_list *out)
{
    *out = (tsi_span_list){ 0 };
    const tsi_span *span = tsi_spans(list);
    int64_t end = 0;
    for (int64_t i = 0; i < list->span_count; i++) {
        tsi_span before = { end, span[i].begin - end, span[i].begin - end, 1 };
        tsi_span between = { span[i].begin + span[i].length, span[i].period - span[i].length,
                             span[i].period, span[i].count - 1 };
        if (!tsi_span_list_append(out, before, arena)) return false;
        if (!tsi_span_list_append(out, between, arena)) return false;
        end = tsi_span_end(&span[i]);
    }
    return tsi_span_list_append(out, (tsi_span){ end, extent - end, extent - end, 1 }, arena);
}

bool tsi_span_list_subtract(const tsi_span_list *a, const tsi_span_list *b, tsi_arena *arena,
                            tsi_span_list *out)
{
    tsi_span_list rest;
    if (a->span_count == 0) {
        *out = *a;
        return true;
    }
    int64_t extent = tsi_span_end(&tsi_spans(a)[a->span_count - 1]);
    if (b->span_count > 0)
        extent = tsi_max_i64(extent, tsi_span_end(&tsi_spans(b)[b->span_count - 1]));
    if (!tsi_span_list_complement(b, extent, arena, &rest)) return false;
    return tsi_span_list_intersect(a, &rest, arena, out);
}
