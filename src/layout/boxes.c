/* SPDX-License-Identifier: Apache-2.0 */
/* boxes.c - a sub-region of two local blocks as a sequence of strided boxes.
 *
 * Each dim of the part is a list of spans; a span is `count` steps of `length` indices. For one
 * choice of a span per dim the elements are numbered by (step of dim 0, step of dim 1, ..., index
 * of dim 0, index of dim 1, ...), the last fastest, and choices follow each other in lexicographic
 * order:
 *
 *   dim 0: [#]                dim 1: [##]...[##]...[##]        box: steps 3 x rows 1 x columns 2
 *
 * INV: that order depends on the part alone. Where a block does not hold the steps at even
 * distances, or a box would have too many dims, the leading steps are looped over instead, which
 * leaves the order as it is. */
#include "base/alloc.h"
#include "base/error.h"
#include "layout/span.h"

/* One span of one dim, seen in one block: where it begins there and how far apart its steps are. */
typedef struct placed {
    int64_t position, step; /* step -1: not evenly spaced */
} placed;

typedef struct side {
    const tsi_region *block;   /* NULL: not wanted */
    int64_t row[TS_NDIM_MAX];  /* elements from one index to the next, per dim */
    placed *span[TS_NDIM_MAX]; /* per dim, per span of the part */
} side;

typedef struct axis_of_box {
    int64_t extent;
    int64_t stride[2];
    int32_t dim;
    bool step, even; /* over the steps of a span; at even distances in both blocks */
} axis_of_box;

typedef struct maker {
    const tsi_region *part;
    side of[2];
    int64_t choice[TS_NDIM_MAX]; /* number of the span, per dim */
    tsi_box_fn visit;
    void *context;
} maker;

/* Where the span lies in a list that contains it. `at` is the list's span that holds its begin, at
 * position `base`. */
static placed place_span(const tsi_span_list *list, const tsi_span *at, int64_t base,
                         const tsi_span *span)
{
    int64_t from = span->begin - at->begin;
    placed out = { base + from / at->period * at->length + from % at->period, -1 };
    if (span->count == 1)
        out.step = 0;
    else if (span->count == 2)
        out.step = tsi_span_list_find(list, span->begin + span->period) - out.position;
    else if (tsi_span_end(span) > tsi_span_end(at))
        out.step = -1;
    else if (at->count == 1)
        out.step = span->period;
    else if (span->period % at->period == 0)
        out.step = span->period / at->period * at->length;
    return out;
}

static bool place_dim(const tsi_span_list *part, const tsi_span_list *list, tsi_arena *arena,
                      placed **out)
{
    size_t bytes = (size_t)part->span_count * sizeof(placed);
    *out = tsi_arena_alloc(arena, bytes);
    if (!*out) {
        tsi_fail_memory("boxes of a region", bytes);
        return false;
    }
    const tsi_span *at = tsi_spans(list), *span = tsi_spans(part);
    int64_t base = 0;
    for (int64_t i = 0; i < part->span_count; i++) {
        while (tsi_span_end(at) <= span[i].begin) {
            base += tsi_span_total(at);
            at++;
        }
        (*out)[i] = place_span(list, at, base, &span[i]);
    }
    return true;
}

static bool place_side(side *of, const tsi_region *part, const tsi_region *block, tsi_arena *arena)
{
    of->block = block;
    if (!block) return true;
    int64_t row = 1;
    for (int32_t d = part->ndim - 1; d >= 0; d--) {
        of->row[d] = row;
        row *= block->dim[d].total;
        if (!place_dim(&part->dim[d], &block->dim[d], arena, &of->span[d])) return false;
    }
    return true;
}

static const tsi_span *chosen(const maker *m, int32_t dim)
{
    return tsi_spans(&m->part->dim[dim]) + m->choice[dim];
}

/* Element offset, in block k, of the chosen spans' first elements. */
static int64_t first_offset(const maker *m, int k)
{
    int64_t offset = 0;
    for (int32_t d = 0; d < m->part->ndim && m->of[k].block; d++)
        offset += m->of[k].span[d][m->choice[d]].position * m->of[k].row[d];
    return offset;
}

/* The axes of the chosen spans in the order of the file's head, those of extent 1 left out. */
static int32_t list_axes(const maker *m, axis_of_box *axis)
{
    int32_t count = 0;
    for (int32_t d = 0; d < m->part->ndim; d++) {
        if (chosen(m, d)->count == 1) continue;
        axis_of_box a = { .extent = chosen(m, d)->count, .dim = d, .step = true, .even = true };
        for (int k = 0; k < 2; k++) {
            if (!m->of[k].block) continue;
            int64_t step = m->of[k].span[d][m->choice[d]].step;
            a.stride[k] = step * m->of[k].row[d];
            if (step < 0) a.even = false;
        }
        axis[count++] = a;
    }
    for (int32_t d = 0; d < m->part->ndim; d++) {
        if (chosen(m, d)->length == 1) continue;
        axis_of_box a = { .extent = chosen(m, d)->length, .dim = d, .even = true };
        for (int k = 0; k < 2; k++)
            a.stride[k] = m->of[k].block ? m->of[k].row[d] : 0;
        axis[count++] = a;
    }
    return count;
}

/* Joins neighbouring axes that are one run in both blocks, from `from` on; returns the new count.
 */
static int32_t join_axes(axis_of_box *axis, int32_t from, int32_t count)
{
    int32_t last = from;
    for (int32_t i = from + 1; i < count; i++) {
        axis_of_box *outer = &axis[last], *inner = &axis[i];
        if (outer->stride[0] == inner->extent * inner->stride[0] &&
            outer->stride[1] == inner->extent * inner->stride[1]) {
            inner->extent *= outer->extent;
            *outer = *inner;
        } else {
            axis[++last] = *inner;
        }
    }
    return count > from ? last + 1 : count;
}

/* Offset of one step of an axis from the span's first element in block k. */
static int64_t step_offset(const maker *m, const axis_of_box *axis, int64_t step, int k)
{
    const side *of = &m->of[k];
    if (!of->block) return 0;
    const placed *at = &of->span[axis->dim][m->choice[axis->dim]];
    if (at->step >= 0) return step * axis->stride[k];
    const tsi_span *span = chosen(m, axis->dim);
    int64_t index = span->begin + step * span->period;
    return (tsi_span_list_find(&of->block->dim[axis->dim], index) - at->position) *
           of->row[axis->dim];
}

/* Loops over the first `looped` axes, one box for each combination. */
static bool visit_steps(const maker *m, const axis_of_box *axis, int32_t looped, tsi_box *box)
{
    int64_t at[TS_NDIM_MAX] = { 0 };
    const int64_t first_a = first_offset(m, 0), first_b = first_offset(m, 1);
    for (;;) {
        box->offset_a = first_a;
        box->offset_b = first_b;
        for (int32_t i = 0; i < looped; i++) {
            box->offset_a += step_offset(m, &axis[i], at[i], 0);
            box->offset_b += step_offset(m, &axis[i], at[i], 1);
        }
        if (!m->visit(box, m->context)) return false;
        int32_t i = looped - 1;
        while (i >= 0 && ++at[i] == axis[i].extent)
            at[i--] = 0;
        if (i < 0) return true;
    }
}

static bool visit_choice(const maker *m)
{
    axis_of_box axis[2 * TS_NDIM_MAX];
    int32_t count = list_axes(m, axis), looped = 0;
    for (int32_t i = 0; i < count; i++)
        if (!axis[i].even) looped = i + 1;
    count = join_axes(axis, looped, count);
    while (count - looped > TS_NDIM_MAX)
        looped++;
    tsi_box box = { .ndim = count - looped };
    for (int32_t i = looped; i < count; i++) {
        box.extent[i - looped] = axis[i].extent;
        box.stride_a[i - looped] = axis[i].stride[0];
        box.stride_b[i - looped] = axis[i].stride[1];
    }
    if (box.ndim == 0) {
        box.ndim = 1;
        box.extent[0] = 1;
        box.stride_a[0] = m->of[0].block != NULL;
        box.stride_b[0] = m->of[1].block != NULL;
    }
    return visit_steps(m, axis, looped, &box);
}

bool tsi_region_boxes(const tsi_region *part, const tsi_region *a, const tsi_region *b,
                      tsi_arena *arena, tsi_box_fn visit, void *context)
{
    if (tsi_region_count(part) == 0) return true;
    if ((a && tsi_region_count(a) < 0) || (b && tsi_region_count(b) < 0)) {
        TSI_FAIL(TS_ERR_SHAPE, "a block of more than 2^63 elements has no addresses");
        return false;
    }
    maker m = { .part = part, .visit = visit, .context = context };
    if (!place_side(&m.of[0], part, a, arena) || !place_side(&m.of[1], part, b, arena))
        return false;
    for (;;) {
        if (!visit_choice(&m)) return false;
        int32_t d = part->ndim - 1;
        while (d >= 0 && ++m.choice[d] == part->dim[d].span_count)
            m.choice[d--] = 0;
        if (d < 0) return true;
    }
}
