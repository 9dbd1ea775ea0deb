/* SPDX-License-Identifier: Apache-2.0 */
/* places.c - what a coordinate holds, and who holds an element.
 *
 * The cuts of a view dim are a chain: each takes positions of what the one before left. Lengths go
 * down the chain, a local index goes up, a global index goes down and says at each cut which
 * coordinate it needs:
 *
 *   [0, extent) --cut 0--> length 1 --cut 1--> length 2 = local extent
 *
 * Only intervals and regions need lists. Coordinates outside the mesh hold nothing. */
#include "base/alloc.h"
#include "base/error.h"
#include "layout/cut.h"
#include "layout/span.h"

/* The cut number i of a layout on an extent. Axes of size 1 are passed over by the callers. */
static tsi_cut cut_at(const ts_layout *layout, int32_t i, int64_t extent)
{
    const ts_sharding *s = layout->sharding;
    int32_t axis = s->order[i];
    return (tsi_cut){ &s->place[axis], s->mesh->size[axis], extent };
}

static int64_t coord_at(const ts_layout *layout, int32_t i, const int64_t *coord)
{
    return coord[layout->sharding->order[i]];
}

static int64_t local_extent(const ts_layout *layout, int32_t v, const int64_t *coord)
{
    int64_t extent = layout->view.extent[v];
    for (int32_t i = layout->cut_first[v]; i < layout->cut_first[v + 1]; i++) {
        tsi_cut cut = cut_at(layout, i, extent);
        if (cut.parts > 1) extent = tsi_cut_length(&cut, coord_at(layout, i, coord));
    }
    return extent;
}

/* Up the chain: the index in the view dim of a local position. */
static int64_t outer_index(const ts_layout *layout, int32_t v, const int64_t *coord, int64_t local)
{
    int64_t extent[TS_NDIM_MAX + 1];
    int32_t first = layout->cut_first[v], count = layout->cut_first[v + 1] - first;
    extent[0] = layout->view.extent[v];
    for (int32_t i = 0; i < count; i++) {
        tsi_cut cut = cut_at(layout, first + i, extent[i]);
        extent[i + 1] =
            cut.parts > 1 ? tsi_cut_length(&cut, coord_at(layout, first + i, coord)) : extent[i];
    }
    for (int32_t i = count - 1; i >= 0; i--) {
        tsi_cut cut = cut_at(layout, first + i, extent[i]);
        if (cut.parts > 1) local = tsi_cut_outer(&cut, coord_at(layout, first + i, coord), local);
    }
    return local;
}

static bool is_coord(const ts_layout *layout, const int64_t *coord)
{
    const tsi_mesh_desc *mesh = layout->sharding->mesh;
    for (int32_t k = 0; k < mesh->ndim; k++)
        if (coord[k] < 0 || coord[k] >= mesh->size[k]) return false;
    return true;
}

/* ---- shapes --------------------------------------------------------------------------------- */

void tsi_layout_local(const ts_layout *layout, const int64_t *coord, ts_shape *out)
{
    *out = (ts_shape){ .ndim = layout->view.ndim };
    for (int32_t v = 0; v < layout->view.ndim; v++)
        out->extent[v] = local_extent(layout, v, coord);
}

ts_shape ts_layout_local(const ts_layout *layout, const int64_t *coord)
{
    ts_shape local = { .ndim = layout->view.ndim };
    if (is_coord(layout, coord)) tsi_layout_local(layout, coord, &local);
    return local;
}

ts_shape ts_sharding_local(const ts_sharding *sharding, ts_shape shape, int64_t rank)
{
    int64_t coord[TS_NDIM_MAX];
    const ts_layout *layout = tsi_layout_intern(sharding, &shape);
    ts_shape local = { .ndim = layout ? 1 : -1 }; /* outside the mesh: one dim of size 0 */
    if (layout && rank >= 0 && tsi_mesh_desc_coord(sharding->mesh, rank, coord))
        tsi_layout_local(layout, coord, &local);
    ts_layout_release(layout);
    return local;
}

static ts_status check_coord(const ts_layout *layout, const int64_t *coord, const char *what)
{
    const tsi_mesh_desc *mesh = layout->sharding->mesh;
    for (int32_t k = 0; k < mesh->ndim; k++)
        if (coord[k] < 0 || coord[k] >= mesh->size[k])
            return TSI_FAIL(TS_ERR_ARG, "%s: coordinate %lld on axis %d of size %lld", what,
                            (long long)coord[k], (int)k, (long long)mesh->size[k]);
    return TS_OK;
}

ts_status ts_layout_offset(const ts_layout *layout, const int64_t *coord, int64_t *offset)
{
    for (int32_t v = 0; v < layout->view.ndim; v++)
        offset[v] = 0;
    TSI_TRY(check_coord(layout, coord, "ts_layout_offset"));
    for (int32_t v = 0; v < layout->view.ndim; v++) {
        bool empty = local_extent(layout, v, coord) == 0;
        offset[v] = empty ? layout->view.extent[v] : outer_index(layout, v, coord, 0);
    }
    return TS_OK;
}

/* ---- regions -------------------------------------------------------------------------------- */

/* Down the chain as long as it is one interval; returns the first cut that may leave more. */
static int32_t first_interval(const ts_layout *layout, const int64_t *coord, int32_t dim,
                              ts_interval *out)
{
    int32_t i = layout->cut_first[dim], end = layout->cut_first[dim + 1];
    *out = (ts_interval){ 0, layout->view.extent[dim] };
    for (; i < end; i++) {
        tsi_cut cut = cut_at(layout, i, out->end - out->begin);
        ts_interval taken;
        if (cut.parts == 1) continue;
        if (!tsi_cut_interval(&cut, coord_at(layout, i, coord), &taken)) break;
        *out = (ts_interval){ out->begin + taken.begin, out->begin + taken.end };
    }
    return i;
}

bool tsi_layout_region_dim(const ts_layout *layout, const int64_t *coord, int32_t dim,
                           tsi_arena *arena, tsi_span_list *out)
{
    TSI_ASSERT(dim >= 0 && dim < layout->view.ndim);
    ts_interval first;
    int32_t i = first_interval(layout, coord, dim, &first), end = layout->cut_first[dim + 1];
    int64_t length = first.end - first.begin;
    if (i == end) {
        *out = tsi_span_list_whole(length);
        out->few[0].begin = first.begin;
        return true;
    }
    /* Of one interval, positions are indices but for where it begins. */
    tsi_cut cut = cut_at(layout, i, length);
    if (!tsi_cut_positions(&cut, coord_at(layout, i, coord), arena, out)) return false;
    tsi_span *span = out->more ? out->more : out->few;
    for (int64_t k = 0; k < out->span_count; k++)
        span[k].begin += first.begin;
    for (i++; i < end; i++) {
        tsi_span_list taken, before = *out;
        cut = cut_at(layout, i, before.total);
        if (cut.parts == 1) continue;
        if (!tsi_cut_positions(&cut, coord_at(layout, i, coord), arena, &taken)) return false;
        if (!tsi_span_list_select(&before, &taken, arena, out)) return false;
    }
    return true;
}

bool tsi_layout_region(const ts_layout *layout, const int64_t *coord, tsi_arena *arena,
                       tsi_region *out)
{
    out->ndim = layout->view.ndim;
    out->reserved = 0;
    for (int32_t v = 0; v < layout->view.ndim; v++)
        if (!tsi_layout_region_dim(layout, coord, v, arena, &out->dim[v])) return false;
    return true;
}

bool tsi_layout_region_joined(const ts_layout *layout, const int64_t *coord, uint32_t joined,
                              tsi_arena *arena, tsi_region *out)
{
    ts_shape view = layout->view;
    int32_t first_dim[TS_NDIM_MAX + 1];
    tsi_region region;
    if (!tsi_layout_region(layout, coord, arena, out)) return false;
    for (int32_t v = 0; v < view.ndim; v++)
        first_dim[v] = layout->view_dim[v];
    for (int32_t v = 0; v + 1 < view.ndim;) {
        if (!(joined >> (first_dim[v + 1] - 1) & 1)) { /* the border between v and v + 1 */
            v++;
            continue;
        }
        region = *out;
        if (!tsi_region_join(&region, &view, v, v + 1, arena, out)) return false;
        view.extent[v] *= view.extent[v + 1];
        view.ndim--;
        for (int32_t w = v + 1; w < view.ndim; w++) {
            view.extent[w] = view.extent[w + 1];
            first_dim[w] = first_dim[w + 1];
        }
    }
    return true;
}

int64_t ts_layout_intervals(const ts_layout *layout, const int64_t *coord, int32_t dim,
                            ts_interval *out, int64_t capacity)
{
    tsi_arena arena = { 0 };
    tsi_span_list list;
    int64_t count = 0;
    if (dim < 0 || dim >= layout->view.ndim || !is_coord(layout, coord)) return 0;
    if (!tsi_layout_region_dim(layout, coord, dim, &arena, &list)) {
        tsi_arena_release(&arena);
        return -1;
    }
    for (int64_t i = 0; i < list.span_count && count < capacity; i++) {
        const tsi_span *span = &tsi_spans(&list)[i];
        for (int64_t k = 0; k < span->count && count < capacity; k++, count++) {
            int64_t begin = span->begin + k * span->period;
            out[count] = (ts_interval){ begin, begin + span->length };
        }
    }
    count = tsi_span_list_intervals(&list);
    tsi_arena_release(&arena);
    return count;
}

/* ---- maps ----------------------------------------------------------------------------------- */

/* Tensor dims [view_dim(v), end) of view dim v. */
static int32_t view_end(const ts_layout *layout, int32_t v)
{
    return v + 1 < layout->view.ndim ? layout->view_dim[v + 1] : layout->shape.ndim;
}

static int64_t view_index(const ts_layout *layout, int32_t v, const int64_t *global)
{
    int64_t index = 0;
    for (int32_t d = layout->view_dim[v]; d < view_end(layout, v); d++)
        index = index * layout->shape.extent[d] + global[d];
    return index;
}

void ts_layout_to_global(const ts_layout *layout, const int64_t *coord, const int64_t *local,
                         int64_t *global)
{
    bool inside = is_coord(layout, coord);
    for (int32_t v = 0; v < layout->view.ndim; v++) {
        bool held = inside && local[v] >= 0 && local[v] < local_extent(layout, v, coord);
        int64_t index = held ? outer_index(layout, v, coord, local[v]) : -1;
        for (int32_t d = view_end(layout, v) - 1; d >= layout->view_dim[v]; d--) {
            global[d] = held ? index % layout->shape.extent[d] : -1;
            if (held) index /= layout->shape.extent[d];
        }
    }
}

/* Down the chain of view dim v: writes the coordinates that hold an index, returns its local
 * position. */
static int64_t descend(const ts_layout *layout, int32_t v, int64_t index, int64_t *coord)
{
    int64_t extent = layout->view.extent[v];
    for (int32_t i = layout->cut_first[v]; i < layout->cut_first[v + 1]; i++) {
        tsi_cut cut = cut_at(layout, i, extent);
        int32_t axis = layout->sharding->order[i];
        coord[axis] = 0;
        if (cut.parts == 1) continue;
        coord[axis] = tsi_cut_find(&cut, index, &index);
        extent = tsi_cut_length(&cut, coord[axis]);
    }
    return index;
}

static bool is_element(const ts_layout *layout, const int64_t *global)
{
    for (int32_t d = 0; d < layout->shape.ndim; d++)
        if (global[d] < 0 || global[d] >= layout->shape.extent[d]) return false;
    return true;
}

int ts_layout_to_local(const ts_layout *layout, const int64_t *coord, const int64_t *global,
                       int64_t *local)
{
    int64_t needed[TS_NDIM_MAX];
    if (!is_element(layout, global) || !is_coord(layout, coord)) return 0;
    for (int32_t v = 0; v < layout->view.ndim; v++) {
        local[v] = descend(layout, v, view_index(layout, v, global), needed);
        for (int32_t i = layout->cut_first[v]; i < layout->cut_first[v + 1]; i++)
            if (needed[layout->sharding->order[i]] != coord_at(layout, i, coord)) return 0;
    }
    return 1;
}

ts_status ts_layout_owner(const ts_layout *layout, const int64_t *global, int64_t *coord)
{
    for (int32_t k = 0; k < layout->sharding->ndim; k++)
        coord[k] = 0;
    for (int32_t d = 0; d < layout->shape.ndim; d++)
        if (global[d] < 0 || global[d] >= layout->shape.extent[d])
            return TSI_FAIL(TS_ERR_ARG,
                            "ts_layout_owner: index %lld of dim %d, whose extent is %lld",
                            (long long)global[d], (int)d, (long long)layout->shape.extent[d]);
    for (int32_t v = 0; v < layout->view.ndim; v++)
        (void)descend(layout, v, view_index(layout, v, global), coord);
    return TS_OK;
}
