/* SPDX-License-Identifier: Apache-2.0 */
/* layout_picture.c - a layout seen dim by dim (layout.h has the drawing).
 *
 * The pieces of a dim cover it without gaps, ascending. Where there are more than PIECES_MAX of
 * them, SAMPLES pieces of equal length stand for all and are marked as mixed: each is the owner of
 * its first position. */
#include <stdlib.h>
#include <string.h>

#include "layout.h"

enum { PIECES_MAX = 1 << 14, OWNERS_MAX = 1 << 12, SAMPLES = 64 };

static int64_t axis_stride(const ts_mesh *mesh, int32_t axis)
{
    int64_t stride = 1;
    for (int32_t k = axis + 1; k < ts_mesh_ndim(mesh); k++)
        stride *= ts_mesh_axis_size(mesh, k);
    return stride;
}

/* The axes that cut dims first..last of the tensor, by bit. */
static uint32_t axes_of(const layout_picture *p, const layout_dim *dim)
{
    const ts_sharding *sharding = ts_layout_sharding(p->layout);
    uint32_t axes = 0;
    for (int32_t k = 0; k < ts_sharding_ndim(sharding); k++) {
        ts_placement place = ts_sharding_placement(sharding, k);
        if ((p->replicated | p->partial) >> k & 1u) continue;
        if (place.dim <= dim->last && place.dim_last >= dim->first) axes |= 1u << k;
    }
    return axes;
}

/* Coordinate number `index` along the axes; returns its key. */
int64_t layout_place(const ts_mesh *mesh, uint32_t axes, int64_t index, int64_t *coord)
{
    int64_t key = 0;
    memset(coord, 0, TS_NDIM_MAX * sizeof *coord);
    for (int32_t k = ts_mesh_ndim(mesh) - 1; k >= 0; k--) {
        if (!(axes >> k & 1u)) continue;
        int64_t n = ts_mesh_axis_size(mesh, k);
        coord[k] = index % n;
        index /= n;
        key += coord[k] * axis_stride(mesh, k);
    }
    return key;
}

int64_t layout_places(const ts_mesh *mesh, uint32_t axes)
{
    int64_t count = 1;
    for (int32_t k = 0; k < ts_mesh_ndim(mesh); k++) {
        if (axes >> k & 1u) count *= ts_mesh_axis_size(mesh, k);
    }
    return count;
}

static int compare_pieces(const void *left, const void *right)
{
    const layout_piece *a = left, *b = right;
    return (a->begin > b->begin) - (a->begin < b->begin);
}

/* ---- exact ----------------------------------------------------------------------------------- */
/* Appends what one coordinate holds of dim d; false: too many, or no memory. */
static bool add_owner(const layout_picture *p, int32_t d, const int64_t *coord, int64_t key,
                      layout_dim *dim)
{
    int64_t count = ts_layout_intervals(p->layout, coord, d, NULL, 0), local = 0;
    if (count < 0 || dim->count + count > PIECES_MAX) return false;
    ts_interval *list = layout_intervals(p->layout, coord, d, &count);
    if (list == NULL) return false;
    for (int64_t i = 0; i < count; i++) {
        dim->piece[dim->count++] = (layout_piece){
            .begin = list[i].begin, .end = list[i].end, .local = local, .key = key
        };
        local += list[i].end - list[i].begin;
    }
    free(list);
    return true;
}

static bool list_pieces(const layout_picture *p, int32_t d, uint32_t axes, layout_dim *dim)
{
    int64_t owners = layout_places(p->mesh, axes), coord[TS_NDIM_MAX];
    if (owners > OWNERS_MAX) return false;
    for (int64_t i = 0; i < owners; i++) {
        int64_t key = layout_place(p->mesh, axes, i, coord);
        if (!add_owner(p, d, coord, key, dim)) return false;
    }
    qsort(dim->piece, (size_t)dim->count, sizeof *dim->piece, compare_pieces);
    return true;
}

/* ---- samples --------------------------------------------------------------------------------- */
static void to_tensor(const layout_dim *dim, ts_shape shape, int64_t position, int64_t *global)
{
    memset(global, 0, TS_NDIM_MAX * sizeof *global);
    for (int32_t t = dim->last; t >= dim->first; t--) {
        global[t] = position % shape.extent[t];
        position /= shape.extent[t];
    }
}

static bool sample_pieces(const layout_picture *p, int32_t d, uint32_t axes, layout_dim *dim)
{
    ts_shape shape = ts_layout_shape(p->layout);
    int64_t step = (dim->extent + SAMPLES - 1) / SAMPLES;
    dim->count = 0;
    for (int64_t begin = 0; begin < dim->extent; begin += step) {
        int64_t global[TS_NDIM_MAX], coord[TS_NDIM_MAX] = { 0 }, local[TS_NDIM_MAX] = { 0 };
        layout_piece *piece = &dim->piece[dim->count++];
        to_tensor(dim, shape, begin, global);
        if (ts_layout_owner(p->layout, global, coord) != TS_OK) return false;
        (void)ts_layout_to_local(p->layout, coord, global, local);
        int64_t end = begin + step < dim->extent ? begin + step : dim->extent;
        *piece = (layout_piece){
            .begin = begin, .end = end, .local = local[d], .mixed = end - begin > 1
        };
        for (int32_t k = 0; k < ts_mesh_ndim(p->mesh); k++) {
            if (axes >> k & 1u) piece->key += coord[k] * axis_stride(p->mesh, k);
        }
    }
    return true;
}

/* ---- the picture ----------------------------------------------------------------------------- */
static void find_axes(layout_picture *p)
{
    const ts_sharding *sharding = ts_layout_sharding(p->layout);
    for (int32_t k = 0; k < ts_sharding_ndim(sharding); k++) {
        ts_placement place = ts_sharding_placement(sharding, k);
        if (place.kind == TS_PLACE_REPLICATE) p->replicated |= 1u << k;
        if (place.kind == TS_PLACE_PARTIAL || place.kind == TS_PLACE_NORM) p->partial |= 1u << k;
    }
}

/* Which dims of the tensor each dim of the view is. */
static void find_dims(layout_picture *p)
{
    ts_shape view = ts_layout_view(p->layout), shape = ts_layout_shape(p->layout);
    const ts_sharding *sharding = ts_layout_sharding(p->layout);
    p->ndim = view.ndim;
    for (int32_t d = 0, t = 0; d < view.ndim && t < shape.ndim; d++, t++) {
        p->dim[d].extent = view.extent[d];
        p->dim[d].first = p->dim[d].last = t;
        for (int32_t k = 0; k < ts_sharding_ndim(sharding); k++) {
            ts_placement place = ts_sharding_placement(sharding, k);
            if ((p->replicated | p->partial) >> k & 1u) continue;
            if (place.dim == t && place.dim_last > p->dim[d].last) p->dim[d].last = place.dim_last;
        }
        t = p->dim[d].last;
    }
}

static bool make_dim(layout_picture *p, int32_t d)
{
    layout_dim *dim = &p->dim[d];
    uint32_t axes = axes_of(p, dim);
    dim->piece = calloc(PIECES_MAX, sizeof *dim->piece);
    if (dim->piece == NULL) return false;
    if (list_pieces(p, d, axes, dim)) return true;
    p->sampled = true;
    ts_shape shape = ts_layout_shape(p->layout);
    if (ts_shape_count(&shape) == 0) { /* nothing to see, whatever the pieces */
        dim->count = 0;
        return true;
    }
    return sample_pieces(p, d, axes, dim);
}

bool layout_picture_make(ts_mesh *mesh, const ts_layout *layout, layout_picture *out)
{
    *out = (layout_picture){ .mesh = mesh, .layout = layout };
    find_axes(out);
    find_dims(out);
    for (int32_t d = 0; d < out->ndim; d++) {
        if (make_dim(out, d)) continue;
        layout_picture_release(out);
        return false;
    }
    return true;
}

void layout_picture_release(layout_picture *picture)
{
    for (int32_t d = 0; d < picture->ndim; d++)
        free(picture->dim[d].piece);
    *picture = (layout_picture){ 0 };
}

const layout_piece *layout_piece_at(const layout_dim *dim, int64_t position)
{
    int64_t low = 0, high = dim->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (dim->piece[middle].end <= position)
            low = middle + 1;
        else
            high = middle;
    }
    return low < dim->count ? &dim->piece[low] : NULL;
}

layout_piece *layout_bins(const layout_dim *dim, int64_t most, int64_t *count)
{
    bool all = dim->count <= most;
    layout_piece *bins = calloc((size_t)(all ? dim->count : most) + 1, sizeof *bins);
    *count = 0;
    if (bins == NULL) return NULL;
    if (all) {
        *count = dim->count;
        if (dim->count > 0) memcpy(bins, dim->piece, (size_t)dim->count * sizeof *bins);
        return bins;
    }
    int64_t step = dim->extent / most + (dim->extent % most != 0);
    for (int64_t begin = 0; begin < dim->extent; begin += step) {
        const layout_piece *piece = layout_piece_at(dim, begin);
        int64_t end = begin + step < dim->extent ? begin + step : dim->extent;
        bins[(*count)++] = (layout_piece){ .begin = begin,
                                           .end = end,
                                           .local = piece->local + begin - piece->begin,
                                           .key = piece->key,
                                           .mixed = piece->mixed || piece->end < end };
    }
    return bins;
}

int64_t layout_holders(const layout_picture *p)
{
    return layout_places(p->mesh, p->replicated | p->partial);
}

int64_t layout_holder(const layout_picture *p, int64_t first, int64_t i)
{
    int64_t coord[TS_NDIM_MAX];
    return first + layout_place(p->mesh, p->replicated | p->partial, i, coord);
}

static uint32_t cut_axes(const layout_picture *p)
{
    uint32_t all = (1u << ts_mesh_ndim(p->mesh)) - 1;
    return all & ~(p->replicated | p->partial);
}

int64_t layout_owners(const layout_picture *p)
{
    return layout_places(p->mesh, cut_axes(p));
}

int64_t layout_owner(const layout_picture *p, int64_t i)
{
    int64_t coord[TS_NDIM_MAX];
    return layout_place(p->mesh, cut_axes(p), i, coord);
}

int64_t layout_owner_index(const layout_picture *p, int64_t number)
{
    int64_t coord[TS_NDIM_MAX], index = 0;
    layout_coord(p->mesh, number, coord);
    for (int32_t k = 0; k < ts_mesh_ndim(p->mesh); k++) {
        if (cut_axes(p) >> k & 1u) index = index * ts_mesh_axis_size(p->mesh, k) + coord[k];
    }
    return index;
}

char *layout_mesh_text(const ts_mesh *mesh)
{
    size_t length = ts_mesh_text(mesh, NULL, 0);
    char *text = malloc(length + 1);
    if (text != NULL) (void)ts_mesh_text(mesh, text, length + 1);
    return text;
}

char *layout_sharding_text(const ts_sharding *sharding)
{
    size_t length = ts_sharding_text(sharding, NULL, 0);
    char *text = malloc(length + 1);
    if (text != NULL) (void)ts_sharding_text(sharding, text, length + 1);
    return text;
}

const char *layout_axis_name(const ts_mesh *mesh, int32_t axis, char *out, size_t size)
{
    const char *name = ts_mesh_axis_name(mesh, axis);
    if (name[0] != '\0')
        (void)snprintf(out, size, "%s", name);
    else
        (void)snprintf(out, size, "axis %d", axis);
    return out;
}
