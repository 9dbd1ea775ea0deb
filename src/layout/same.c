/* SPDX-License-Identifier: Apache-2.0 */
/* same.c - do two layouts put the same elements in the same places, and in the same blocks?
 *
 * Partial axes must agree. For the cuts, equal spellings decide at once; otherwise regions are
 * compared coordinate by coordinate. Where every axis cuts the same dims in both layouts, dims are
 * compared one at a time, over the coordinates of the axes that cut them; if not, over those of all
 * cutting axes together. The first difference ends it, and with layouts that differ it comes early.
 *
 * The same places are not the same blocks: S(0) and S(1) of [1, 1] put the element on the same
 * rank, but the empty blocks of the others are [0, 1] in one and [1, 0] in the other. */
#include "base/error.h"
#include "layout/layout.h"

enum { COORDS_MAX = 4096 }; /* looked at for tsi_layout_same_blocks */

static bool same_partials(const ts_sharding *a, const ts_sharding *b)
{
    if (a->axes_partial != b->axes_partial) return false;
    for (int32_t k = 0; k < a->ndim; k++) {
        if (!tsi_placement_partial(&a->place[k])) continue;
        if (!tsi_placement_equal(&a->place[k], &b->place[k], 0)) return false;
    }
    return true;
}

/* Axes of size > 1 that cut view dim v. */
static uint32_t axes_of_dim(const ts_layout *layout, int32_t v)
{
    uint32_t axes = 0;
    for (int32_t i = layout->cut_first[v]; i < layout->cut_first[v + 1]; i++)
        axes |= 1u << layout->sharding->order[i];
    return axes & layout->axes_cut;
}

/* The next combination of coordinates of the masked axes; false after the last. */
static bool next_coord(const tsi_mesh_desc *mesh, uint32_t axes, int64_t *coord)
{
    for (int32_t k = mesh->ndim - 1; k >= 0; k--) {
        if (!(axes >> k & 1)) continue;
        if (++coord[k] < mesh->size[k]) return true;
        coord[k] = 0;
    }
    return false;
}

/* Is the sequence of cuts of a view dim, but for axes of size 1, spelled alike? */
static bool same_spelling(const ts_layout *a, const ts_layout *b, int32_t v)
{
    const int64_t *size = a->sharding->mesh->size;
    int32_t i = a->cut_first[v], k = b->cut_first[v];
    for (;; i++, k++) {
        while (i < a->cut_first[v + 1] && size[a->sharding->order[i]] == 1)
            i++;
        while (k < b->cut_first[v + 1] && size[b->sharding->order[k]] == 1)
            k++;
        bool end_a = i == a->cut_first[v + 1], end_b = k == b->cut_first[v + 1];
        if (end_a || end_b) return end_a && end_b;
        int32_t axis = a->sharding->order[i];
        if (axis != b->sharding->order[k]) return false;
        ts_placement x = a->sharding->place[axis], y = b->sharding->place[axis];
        x.order = y.order = 0;
        if (!tsi_placement_equal(&x, &y, size[axis])) return false;
    }
}

/* False also if more than `most` coordinates would have to be looked at. */
static bool same_dim(const ts_layout *a, const ts_layout *b, int32_t v, int64_t most,
                     tsi_arena *arena)
{
    int64_t coord[TS_NDIM_MAX] = { 0 };
    uint32_t axes = axes_of_dim(a, v) | axes_of_dim(b, v);
    if (same_spelling(a, b, v)) return true;
    if (tsi_mesh_group_count(a->sharding->mesh, axes) > most) return false;
    do {
        tsi_span_list x, y;
        tsi_arena_mark mark = tsi_arena_save(arena);
        bool same = tsi_layout_region_dim(a, coord, v, arena, &x) &&
                    tsi_layout_region_dim(b, coord, v, arena, &y) && tsi_span_list_equal(&x, &y);
        tsi_arena_rewind(arena, mark);
        if (!same) return false;
    } while (next_coord(a->sharding->mesh, axes, coord));
    return true;
}

static bool same_regions(const ts_layout *a, const ts_layout *b, tsi_arena *arena)
{
    int64_t coord[TS_NDIM_MAX] = { 0 };
    uint32_t axes = a->axes_cut | b->axes_cut, joined = a->sharding->joined | b->sharding->joined;
    do {
        tsi_region x, y;
        tsi_arena_mark mark = tsi_arena_save(arena);
        bool same = tsi_layout_region_joined(a, coord, joined, arena, &x) &&
                    tsi_layout_region_joined(b, coord, joined, arena, &y) &&
                    tsi_region_equal(&x, &y);
        tsi_arena_rewind(arena, mark);
        if (!same) return false;
    } while (next_coord(a->sharding->mesh, axes, coord));
    return true;
}

/* Is every axis a cutter of the same view dim in both, so that dims can be compared one at a time?
 */
static bool dims_match(const ts_layout *a, const ts_layout *b)
{
    if (a->sharding->joined != b->sharding->joined) return false;
    for (int32_t v = 0; v < a->view.ndim; v++)
        for (int32_t w = 0; w < a->view.ndim; w++)
            if (v != w && (axes_of_dim(a, v) & axes_of_dim(b, w))) return false;
    return true;
}

/* What can be told without looking at a coordinate: mesh, shape and partial axes. */
static bool comparable(const ts_layout *a, const ts_layout *b)
{
    return a->sharding->mesh == b->sharding->mesh && tsi_shape_same(&a->shape, &b->shape) &&
           same_partials(a->sharding, b->sharding);
}

static bool same_dims(const ts_layout *a, const ts_layout *b, int64_t most, tsi_arena *arena)
{
    bool same = true;
    for (int32_t v = 0; v < a->view.ndim && same; v++)
        same = same_dim(a, b, v, most, arena);
    return same;
}

int ts_layout_same_places(const ts_layout *a, const ts_layout *b)
{
    if (!a || !b) return 0;
    if (a == b) return 1;
    if (!comparable(a, b)) return 0;
    if (a->count == 0) return 1;
    tsi_arena arena = { 0 };
    bool same = dims_match(a, b) ? same_dims(a, b, INT64_MAX, &arena) : same_regions(a, b, &arena);
    tsi_arena_release(&arena);
    return same;
}

bool tsi_layout_same_blocks(const ts_layout *a, const ts_layout *b)
{
    if (a == b) return true;
    if (!comparable(a, b) || !dims_match(a, b)) return false;
    tsi_arena arena = { 0 };
    bool same = same_dims(a, b, COORDS_MAX, &arena);
    tsi_arena_release(&arena);
    return same;
}
