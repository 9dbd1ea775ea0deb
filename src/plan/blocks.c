/* SPDX-License-Identifier: Apache-2.0 */
/* blocks.c - which blocks of a layout meet a given set of indices, one dim at a time.
 *
 * Plain chunks are descended like a tree: a chunk is an interval, so the coordinates that can meet
 * the query are computed, and the cost is that of the answer, not of the axis. Below a cut of
 * another kind every coordinate is tried. The order is lexicographic in the coordinates, in cutting
 * order: both ends of a message rely on it. */
#include <string.h>

#include "base/compiler.h"
#include "base/intmath.h"
#include "plan/exchange.h"

/* ---- lists in joint dims -------------------------------------------------------------------- */

/* The list of indices a * extent_b + b. */
static bool flatten(const tsi_span_list *a, const tsi_span_list *b, int64_t extent_b,
                    tsi_arena *arena, tsi_span_list *out)
{
    *out = (tsi_span_list){ 0 };
    const tsi_span *sa = tsi_spans(a), *sb = tsi_spans(b);
    bool interval = b->span_count == 1 && sb[0].count == 1;
    for (int64_t i = 0; i < a->span_count && b->total > 0; i++) {
        if (b->total == extent_b) {
            tsi_span span = { sa[i].begin * extent_b, sa[i].length * extent_b,
                              sa[i].period * extent_b, sa[i].count };
            if (!tsi_span_list_append(out, span, arena)) return false;
            continue;
        }
        for (int64_t c = 0; c < sa[i].count; c++) {
            int64_t first = sa[i].begin + c * sa[i].period;
            if (interval) {
                bool one = sa[i].length == 1;
                tsi_span span = { first * extent_b + sb[0].begin, sb[0].length,
                                  one ? sb[0].length : extent_b, sa[i].length };
                if (!tsi_span_list_append(out, span, arena)) return false;
                continue;
            }
            for (int64_t x = first; x < first + sa[i].length; x++) {
                for (int64_t j = 0; j < b->span_count; j++) {
                    tsi_span span = sb[j];
                    span.begin += x * extent_b;
                    if (!tsi_span_list_append(out, span, arena)) return false;
                }
            }
        }
    }
    return true;
}

/* Is tensor dim d + 1 joined to dim d by a cut of this layout? */
static bool glued(const ts_sharding *sharding, int32_t d)
{
    for (int32_t k = 0; k < sharding->ndim; k++) {
        const ts_placement *place = &sharding->place[k];
        if (tsi_placement_cuts(place) && place->dim <= d && d < place->dim_last) return true;
    }
    return false;
}

bool tsi_side_list(const tsi_pair *pair, const tsi_side *side, const int64_t *coord, int32_t dim,
                   tsi_arena *arena, tsi_span_list *out)
{
    const ts_sharding *sharding = side->layout->sharding;
    const int64_t *extent = side->layout->shape.extent;
    int32_t view = 0; /* dim of the layout's own view */
    for (int32_t d = 1; d <= pair->first_dim[dim]; d++)
        view += !glued(sharding, d - 1);
    bool first = true;
    for (int32_t d = pair->first_dim[dim]; d < pair->first_dim[dim + 1]; view++) {
        tsi_span_list own, joined;
        int64_t own_extent = extent[d++];
        while (d < pair->first_dim[dim + 1] && glued(sharding, d - 1))
            own_extent *= extent[d++];
        if (!tsi_layout_region_dim(side->layout, coord, view, arena, &own)) return false;
        if (!first && !flatten(out, &own, own_extent, arena, &joined)) return false;
        *out = first ? own : joined;
        first = false;
    }
    return true;
}

bool tsi_side_region(const tsi_pair *pair, const tsi_side *side, const int64_t *coord,
                     tsi_arena *arena, tsi_region *out)
{
    out->ndim = pair->dims;
    out->reserved = 0;
    for (int32_t d = 0; d < pair->dims; d++) {
        if (!tsi_side_list(pair, side, coord, d, arena, &out->dim[d])) return false;
    }
    return true;
}

/* ---- meets ---------------------------------------------------------------------------------- */

typedef struct descent {
    const tsi_pair *pair;
    const tsi_side *side;
    const tsi_span_list *query;
    tsi_arena *arena;
    tsi_meets *out;
    int64_t coord[TS_NDIM_MAX]; /* by axis */
    const int64_t *at;
    uint32_t fixed;
    int32_t dim;
    int64_t low, high; /* hull of the query */
} descent;

static bool add_meet(descent *d, const tsi_span_list *common)
{
    tsi_meets *m = d->out;
    if (m->count == m->capacity) {
        int64_t capacity = m->capacity ? 2 * m->capacity : 8;
        tsi_meet *item = tsi_arena_alloc(d->arena, (size_t)capacity * sizeof *item);
        if (!item) return false;
        if (m->count) memcpy(item, m->item, (size_t)m->count * sizeof *item);
        m->item = item;
        m->capacity = capacity;
    }
    tsi_meet *meet = &m->item[m->count++];
    for (int32_t i = 0; i < d->side->dim_count[d->dim]; i++) {
        meet->coord[i] = d->coord[d->side->dim_axis[d->dim][i]];
    }
    meet->common = *common;
    return true;
}

/* [begin, end) against the query. */
static bool meet_interval(descent *d, int64_t begin, int64_t end)
{
    tsi_span_list common = { 0 };
    const tsi_span *span = tsi_spans(d->query);
    if (d->query->span_count == 1 && span[0].count == 1) {
        int64_t low = tsi_max_i64(begin, d->low), high = tsi_min_i64(end, d->high);
        if (low >= high) return true;
        common.total = high - low;
        common.span_count = 1;
        common.few[0] = (tsi_span){ low, high - low, high - low, 1 };
        return add_meet(d, &common);
    }
    tsi_span_list block = { .total = end - begin, .span_count = end > begin };
    block.few[0] = (tsi_span){ begin, end - begin, end - begin, 1 };
    if (!tsi_span_list_intersect(&block, d->query, d->arena, &common)) return false;
    return common.total == 0 || add_meet(d, &common);
}

static bool descend_plain(descent *d, int32_t level, int64_t begin, int64_t end)
{
    if (level == d->side->dim_count[d->dim]) return meet_interval(d, begin, end);
    int32_t axis = d->side->dim_axis[d->dim][level];
    int64_t n = d->side->mesh->size[axis], chunk = tsi_ceil_div(end - begin, n);
    if (chunk == 0) return true;
    int64_t first = d->low > begin ? (d->low - begin) / chunk : 0;
    int64_t last = d->high < end ? (d->high - 1 - begin) / chunk : n - 1;
    if (d->fixed >> axis & 1u) {
        if (d->at[axis] < first || d->at[axis] > last) return true;
        first = last = d->at[axis];
    }
    for (int64_t c = first; c <= last && c < n; c++) {
        int64_t from = begin + c * chunk, to = tsi_min_i64(from + chunk, end);
        if (from >= end) break;
        d->coord[axis] = c;
        if (!descend_plain(d, level + 1, from, to)) return false;
    }
    return true;
}

static bool descend_any(descent *d, int32_t level)
{
    if (level == d->side->dim_count[d->dim]) {
        tsi_span_list block, common;
        if (!tsi_side_list(d->pair, d->side, d->coord, d->dim, d->arena, &block)) return false;
        if (!tsi_span_list_intersect(&block, d->query, d->arena, &common)) return false;
        return common.total == 0 || add_meet(d, &common);
    }
    int32_t axis = d->side->dim_axis[d->dim][level];
    bool held = d->fixed >> axis & 1u;
    int64_t first = held ? d->at[axis] : 0,
            last = held ? d->at[axis] : d->side->mesh->size[axis] - 1;
    for (int64_t c = first; c <= last; c++) {
        d->coord[axis] = c;
        if (!descend_any(d, level + 1)) return false;
    }
    return true;
}

bool tsi_side_meets(const tsi_pair *pair, const tsi_side *side, int32_t dim,
                    const tsi_span_list *query, uint32_t fixed, const int64_t *at, tsi_arena *arena,
                    tsi_meets *out)
{
    *out = (tsi_meets){ 0 };
    if (query->total == 0) return true;
    const tsi_span *span = tsi_spans(query), *end = &span[query->span_count - 1];
    descent d = { .pair = pair,
                  .side = side,
                  .query = query,
                  .arena = arena,
                  .out = out,
                  .at = at,
                  .fixed = fixed,
                  .dim = dim,
                  .low = span[0].begin };
    d.high = end->begin + (end->count - 1) * end->period + end->length;
    if (side->dim_count[dim] == 0) return add_meet(&d, query);
    if (side->dim_plain >> dim & 1u) return descend_plain(&d, 0, 0, pair->extent[dim]);
    return descend_any(&d, 0);
}

/* ---- walks ---------------------------------------------------------------------------------- */

bool tsi_walk_open(tsi_walk *walk, const tsi_pair *pair, const tsi_side *side,
                   const tsi_region *query, uint32_t fixed, const int64_t *at, tsi_arena *arena)
{
    walk->pair = pair;
    walk->side = side;
    walk->started = walk->empty = 0;
    walk->common.ndim = pair->dims;
    walk->common.reserved = 0;
    memset(walk->coord, 0, sizeof walk->coord);
    for (int32_t d = 0; d < pair->dims; d++) {
        if (!tsi_side_meets(pair, side, d, &query->dim[d], fixed, at, arena, &walk->meets[d]))
            return false;
        if (walk->meets[d].count == 0) walk->empty = 1;
    }
    return true;
}

static void walk_set(tsi_walk *walk, int32_t d)
{
    const tsi_meet *meet = &walk->meets[d].item[walk->at[d]];
    for (int32_t i = 0; i < walk->side->dim_count[d]; i++) {
        walk->coord[walk->side->dim_axis[d][i]] = meet->coord[i];
    }
    walk->common.dim[d] = meet->common;
}

bool tsi_walk_next(tsi_walk *walk)
{
    if (walk->empty) return false;
    if (!walk->started) {
        walk->started = 1;
        for (int32_t d = 0; d < walk->pair->dims; d++) {
            walk->at[d] = 0;
            walk_set(walk, d);
        }
        return true;
    }
    for (int32_t d = walk->pair->dims - 1; d >= 0; d--) {
        walk->at[d] = walk->at[d] + 1 < walk->meets[d].count ? walk->at[d] + 1 : 0;
        walk_set(walk, d);
        if (walk->at[d] > 0) return true;
    }
    return false;
}
