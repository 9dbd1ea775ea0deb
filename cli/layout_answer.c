/* SPDX-License-Identifier: Apache-2.0 */
/* layout_answer.c - what `tessera layout` says to a machine: one answer to one question.
 *
 * The answer for a coordinate comes from its interval lists alone, so elements are written without
 * asking for each of them, and in local row-major order by construction. */
#include <stdlib.h>
#include <string.h>

#include "layout.h"

ts_interval *layout_intervals(const ts_layout *layout, const int64_t *coord, int32_t dim,
                              int64_t *count)
{
    *count = ts_layout_intervals(layout, coord, dim, NULL, 0);
    if (*count < 0) return NULL;
    ts_interval *list = calloc((size_t)*count + 1, sizeof *list);
    if (list != NULL) *count = ts_layout_intervals(layout, coord, dim, list, *count);
    return list;
}

/* ---- elements -------------------------------------------------------------------------------- */
bool layout_walk_open(layout_walk *walk, const ts_layout *layout, const int64_t *coord)
{
    ts_shape view = ts_layout_view(layout), local = ts_layout_local(layout, coord);
    int64_t stride = 1;
    *walk = (layout_walk){ .ndim = view.ndim, .more = ts_shape_count(&local) > 0 };
    for (int32_t d = view.ndim - 1; d >= 0 && walk->more; d--) {
        walk->dim[d].interval = layout_intervals(layout, coord, d, &walk->dim[d].count);
        if (walk->dim[d].interval == NULL) {
            layout_walk_close(walk);
            return false;
        }
        walk->dim[d].position = walk->dim[d].interval[0].begin;
        walk->dim[d].stride = stride;
        stride *= view.extent[d];
    }
    return true;
}

/* To the next position of a dim; false: went back to the first. */
static bool walk_step(layout_walk *walk, int32_t d, bool whole)
{
    const ts_interval *interval = walk->dim[d].interval;
    int64_t at = walk->dim[d].at;
    if (!whole && ++walk->dim[d].position < interval[at].end) return true;
    bool more = at + 1 < walk->dim[d].count;
    walk->dim[d].at = more ? at + 1 : 0;
    walk->dim[d].position = interval[walk->dim[d].at].begin;
    return more;
}

bool layout_walk_next(layout_walk *walk, int64_t *index, int64_t *length)
{
    int32_t last = walk->ndim - 1, d = last;
    if (!walk->more) return false;
    *index = 0;
    *length = 1;
    for (int32_t i = 0; i <= last; i++)
        *index += walk->dim[i].position * walk->dim[i].stride;
    if (last >= 0)
        *length = walk->dim[last].interval[walk->dim[last].at].end - walk->dim[last].position;
    while (d >= 0 && !walk_step(walk, d, d == last))
        d--;
    walk->more = d >= 0;
    return true;
}

void layout_walk_close(layout_walk *walk)
{
    for (int32_t d = 0; d < walk->ndim; d++)
        free(walk->dim[d].interval);
    *walk = (layout_walk){ 0 };
}

static bool put_elements(const ts_layout *layout, const int64_t *coord, ts_json_writer *json)
{
    layout_walk walk;
    int64_t index, length;
    if (!layout_walk_open(&walk, layout, coord)) return false;
    ts_json_put_key(json, "elements");
    ts_json_put_open(json, '[');
    while (layout_walk_next(&walk, &index, &length)) {
        for (int64_t i = 0; i < length; i++)
            ts_json_put_int(json, index + i);
    }
    ts_json_put_close(json, ']');
    layout_walk_close(&walk);
    return true;
}

/* ---- one coordinate -------------------------------------------------------------------------- */
static bool put_rank(const ts_mesh *mesh, const ts_layout *layout, int64_t number, bool elements,
                     ts_json_writer *json)
{
    int64_t coord[TS_NDIM_MAX], offset[TS_NDIM_MAX];
    layout_coord(mesh, number, coord);
    ts_shape local = ts_layout_local(layout, coord);
    if (ts_layout_offset(layout, coord, offset) != TS_OK) return false;
    ts_json_put_open(json, '{');
    ts_json_put_key(json, "coord");
    ts_json_put_ints(json, coord, ts_mesh_ndim(mesh));
    ts_json_put_key(json, "shape");
    ts_json_put_ints(json, local.extent, local.ndim);
    ts_json_put_key(json, "offset");
    ts_json_put_ints(json, offset, local.ndim);
    bool good = !elements || put_elements(layout, coord, json);
    ts_json_put_close(json, '}');
    return good;
}

/* Elements that all coordinates hold together, or -1 beyond the limit. */
static int64_t count_elements(const ts_mesh *mesh, const ts_layout *layout)
{
    int64_t ranks = ts_mesh_size(mesh, NULL), total = 0;
    for (int64_t i = 0; i < ranks; i++) {
        int64_t coord[TS_NDIM_MAX];
        layout_coord(mesh, i, coord);
        ts_shape local = ts_layout_local(layout, coord);
        int64_t count = ts_shape_count(&local);
        if (count < 0 || count > LAYOUT_ELEMENTS_MAX - total) return -1;
        total += count;
    }
    return total;
}

bool layout_answer(const ts_mesh *mesh, const ts_layout *layout, bool elements,
                   ts_json_writer *json, char *error, size_t size)
{
    int64_t ranks = ts_mesh_size(mesh, NULL);
    if (ranks > LAYOUT_RANKS_MAX) {
        (void)snprintf(error, size, "the mesh has %lld ranks; at most %d are listed",
                       (long long)ranks, LAYOUT_RANKS_MAX);
        return false;
    }
    if (elements && count_elements(mesh, layout) < 0) {
        (void)snprintf(error, size,
                       "elements: the ranks hold more than %d elements, the most that are listed; "
                       "ask without --elements",
                       LAYOUT_ELEMENTS_MAX);
        return false;
    }
    bool good = true;
    ts_json_put_key(json, "ranks");
    ts_json_put_open(json, '[');
    for (int64_t i = 0; i < ranks && good; i++)
        good = put_rank(mesh, layout, i, elements, json);
    ts_json_put_close(json, ']');
    if (!good) (void)snprintf(error, size, "%s", ts_last_error());
    if (good && !layout_is_row_major(mesh)) {
        ts_json_put_key(json, "world_ranks");
        ts_json_put_open(json, '[');
        for (int64_t i = 0; i < ranks; i++)
            ts_json_put_int(json, layout_rank(mesh, i));
        ts_json_put_close(json, ']');
    }
    return good;
}

bool layout_answer_strided(ts_mesh *mesh, const char *placements, const ts_shape *shape,
                           ts_json_writer *json, char *error, size_t size)
{
    const ts_sharding *ordered = ts_sharding_get(mesh, placements);
    const ts_sharding *strided =
        ordered != NULL ? ts_sharding_to_strided(mesh, ordered, shape) : NULL;
    if (strided == NULL) {
        (void)snprintf(error, size, "%s%s", ordered == NULL ? "placements: " : "", ts_last_error());
        return false;
    }
    ts_json_put_key(json, "strided");
    ts_json_put_open(json, '[');
    for (int32_t k = 0; k < ts_sharding_ndim(strided); k++) {
        size_t length = ts_placement_text(strided, k, NULL, 0);
        char *text = malloc(length + 1);
        if (text != NULL) (void)ts_placement_text(strided, k, text, length + 1);
        ts_json_put_text(json, text);
        free(text);
    }
    ts_json_put_close(json, ']');
    return true;
}

/* ---- batches --------------------------------------------------------------------------------- */
static bool serve_on(const ts_json *request, ts_mesh *mesh, const char *placements,
                     const layout_options *options, ts_json_writer *answer, char *error,
                     size_t size)
{
    ts_shape shape = { 0 };
    const ts_json *tensor = ts_json_member(request, "tensor");
    bool has_shape = tensor != NULL;
    if ((has_shape || !options->to_strided) &&
        !layout_field_shape(tensor, "tensor", &shape, error, size)) {
        return false;
    }
    if (options->to_strided) {
        return layout_answer_strided(mesh, placements, has_shape ? &shape : NULL, answer, error,
                                     size);
    }
    const ts_layout *layout = layout_make(mesh, placements, shape, "placements", error, size);
    bool good =
        layout != NULL && layout_answer(mesh, layout, options->elements, answer, error, size);
    ts_layout_release(layout);
    return good;
}

bool layout_serve(const ts_json *request, ts_json_writer *answer, char *error, size_t size,
                  void *context)
{
    const layout_options *options = context;
    char *mesh_text = layout_field_mesh(ts_json_member(request, "mesh"), "mesh", error, size);
    char *placements = NULL;
    const ts_json *order = NULL;
    if (mesh_text != NULL && layout_field_order(request, "shard_order", &order, error, size))
        placements = layout_field_placements(ts_json_member(request, "placements"), "placements",
                                             order, error, size);
    ts_mesh *mesh = placements != NULL ? layout_mesh(options->world, mesh_text, error, size) : NULL;
    ts_json_put_open(answer, '{');
    bool good = mesh != NULL && serve_on(request, mesh, placements, options, answer, error, size);
    ts_json_put_close(answer, '}');
    ts_mesh_release(mesh);
    free(placements);
    free(mesh_text);
    return good;
}
