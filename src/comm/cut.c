/* SPDX-License-Identifier: Apache-2.0 */
/* cut.c - see cut.h. */
#include "comm/cut.h"

#include <string.h>

#include "comm/engine.h"

/* Elements that go between this rank and each member. */
static void find_totals(const tsi_cut *cut, const ts_part *list, int64_t count)
{
    memset(cut->scratch, 0, 2 * (size_t)cut->members * sizeof *cut->scratch);
    for (int64_t i = 0; i < count; i++)
        cut->scratch[list[i].peer] += tsi_part_elements(&list[i]);
}

/* A block, and those that fold into it. */
static int64_t length_of_run(const tsi_cut *cut, const ts_part *list, int64_t count)
{
    int64_t length = 1;
    while (cut->folds && length < count && list[length].combine)
        length++;
    return length;
}

/* ---- ranges ---------------------------------------------------------------------------------- */

typedef struct adding {
    const ts_part *run; /* the block and those that fold into it */
    int64_t length;
    int64_t size; /* of an element */
    ts_part *out; /* or NULL */
    int64_t count;
} adding;

static void add_block(adding *to, const ts_part *block)
{
    for (int64_t i = 0; i < to->length; i++, to->count++) {
        if (!to->out) continue;
        ts_part *part = &to->out[to->count];
        *part = *block;
        part->peer = to->run[i].peer;
        part->combine = to->run[i].combine;
    }
}

static ts_part rows_of(const adding *to, const ts_part *block, int64_t first, int64_t rows)
{
    ts_part part = *block;
    part.data = (char *)block->data + first * block->stride[0] * to->size;
    part.extent[0] = rows;
    return part;
}

static ts_part row_of(const adding *to, const ts_part *block, int64_t index)
{
    ts_part row = rows_of(to, block, index, 1);
    row.ndim--;
    memmove(row.extent, row.extent + 1, (size_t)row.ndim * sizeof *row.extent);
    memmove(row.stride, row.stride + 1, (size_t)row.ndim * sizeof *row.stride);
    return row;
}

/* Elements [low, high) of the block, row-major: the end of a row, whole rows, the begin of one. */
static void add_range(adding *to, const ts_part *block, int64_t low, int64_t high)
{
    if (low >= high) return;
    if (low == 0 && high == tsi_part_elements(block)) {
        add_block(to, block);
        return;
    }
    int64_t inner = tsi_part_elements(block) / block->extent[0];
    int64_t first = low / inner, last = high / inner;
    if (low % inner > 0) {
        ts_part row = row_of(to, block, first);
        add_range(to, &row, low % inner, first == last ? high % inner : inner);
        if (first == last) return;
        first++;
    }
    if (last > first) {
        ts_part rows = rows_of(to, block, first, last - first);
        add_block(to, &rows);
    }
    if (high % inner > 0) {
        ts_part row = row_of(to, block, last);
        add_range(to, &row, 0, high % inner);
    }
}

static int64_t bound(const tsi_cut *cut, int64_t total, int64_t index)
{
    return total / cut->count * index + total % cut->count * index / cut->count;
}

static int64_t between(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

int64_t tsi_cut_list(const tsi_cut *cut, const ts_part *list, int64_t count, ts_part *out)
{
    int64_t *total = cut->scratch, *at = total + cut->members;
    adding to = { .out = out, .size = (int64_t)ts_dtype_size((ts_dtype)cut->dtype) };
    find_totals(cut, list, count);
    for (int64_t i = 0; i < count; i += to.length) {
        const ts_part *first = &list[i];
        int64_t elements = tsi_part_elements(first), all = total[first->peer],
                before = at[first->peer];
        int64_t low = bound(cut, all, cut->index) - before;
        int64_t high = bound(cut, all, cut->index + 1) - before;
        to.run = first;
        to.length = length_of_run(cut, first, count - i);
        add_range(&to, first, between(low, 0, elements), between(high, 0, elements));
        for (int64_t k = 0; k < to.length; k++)
            at[first[k].peer] += elements;
    }
    return to.count;
}

static bool same_block(const ts_part *a, const ts_part *b)
{
    bool same = a->data == b->data && a->ndim == b->ndim;
    for (int32_t d = 0; same && d < a->ndim; d++)
        same = a->extent[d] == b->extent[d] && (a->stride[d] == b->stride[d] || a->extent[d] == 1);
    return same;
}

bool tsi_cut_is_possible(const tsi_cut *cut, const ts_part *list, int64_t count)
{
    int64_t *total = cut->scratch, *at = total + cut->members, length = 1;
    find_totals(cut, list, count);
    for (int64_t i = 0; i < count; i += length) {
        const ts_part *first = &list[i];
        int64_t before = at[first->peer];
        length = length_of_run(cut, first, count - i);
        for (int64_t k = 0; k < length; k++) {
            int64_t peer = first[k].peer;
            if (total[peer] != total[first->peer] || at[peer] != before) return false;
            if (!same_block(first, &first[k])) return false;
            at[peer] += tsi_part_elements(first);
        }
    }
    return true;
}
