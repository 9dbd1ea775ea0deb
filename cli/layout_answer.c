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
typedef struct cursor { /* of one dim: walks the positions held, ascending */
    ts_interval *interval;
    int64_t count, at, position, stride;
} cursor;

static void cursor_rewind(cursor *c)
{
    c->at = 0;
    c->position = c->count > 0 ? c->interval[0].begin : 0;
}

/* False: went back to the beginning. */
static bool cursor_next(cursor *c)
{
    if (++c->position < c->interval[c->at].end) return true;
    if (++c->at < c->count) {
        c->position = c->interval[c->at].begin;
        return true;
    }
    cursor_rewind(c);
    return false;
}

static void walk_elements(cursor *dims, int32_t ndim, cli_json *json)
{
    int32_t moved = 0;
    while (moved >= 0) {
        int64_t index = 0;
        for (int32_t d = 0; d < ndim; d++)
            index += dims[d].position * dims[d].stride;
        cli_json_int(json, index);
        for (moved = ndim - 1; moved >= 0 && !cursor_next(&dims[moved]); moved--)
            continue;
    }
}

static bool put_elements(const ts_layout *layout, const int64_t *coord, cli_json *json)
{
    cursor dims[TS_NDIM_MAX] = { { 0 } };
    ts_shape view = ts_layout_view(layout), local = ts_layout_local(layout, coord);
    bool good = true;
    int64_t stride = 1;
    for (int32_t d = view.ndim - 1; d >= 0 && good; d--) {
        dims[d].interval = layout_intervals(layout, coord, d, &dims[d].count);
        dims[d].stride = stride;
        stride *= view.extent[d];
        good = dims[d].interval != NULL;
        if (good) cursor_rewind(&dims[d]);
    }
    cli_json_key(json, "elements");
    cli_json_open(json, '[');
    if (good && ts_shape_count(&local) > 0) walk_elements(dims, view.ndim, json);
    cli_json_close(json, ']');
    for (int32_t d = 0; d < view.ndim; d++)
        free(dims[d].interval);
    return good;
}

/* ---- one coordinate -------------------------------------------------------------------------- */
static bool put_rank(const ts_mesh *mesh, const ts_layout *layout, int64_t number, bool elements,
                     cli_json *json)
{
    int64_t coord[TS_NDIM_MAX], offset[TS_NDIM_MAX];
    layout_coord(mesh, number, coord);
    ts_shape local = ts_layout_local(layout, coord);
    if (ts_layout_offset(layout, coord, offset) != TS_OK) return false;
    cli_json_open(json, '{');
    cli_json_key(json, "coord");
    cli_json_ints(json, coord, ts_mesh_ndim(mesh));
    cli_json_key(json, "shape");
    cli_json_ints(json, local.extent, local.ndim);
    cli_json_key(json, "offset");
    cli_json_ints(json, offset, local.ndim);
    bool good = !elements || put_elements(layout, coord, json);
    cli_json_close(json, '}');
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

bool layout_answer(const ts_mesh *mesh, const ts_layout *layout, bool elements, cli_json *json,
                   char *error, size_t size)
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
    cli_json_key(json, "ranks");
    cli_json_open(json, '[');
    for (int64_t i = 0; i < ranks && good; i++)
        good = put_rank(mesh, layout, i, elements, json);
    cli_json_close(json, ']');
    if (!good) (void)snprintf(error, size, "%s", ts_last_error());
    if (good && !layout_is_row_major(mesh)) {
        cli_json_key(json, "world_ranks");
        cli_json_open(json, '[');
        for (int64_t i = 0; i < ranks; i++)
            cli_json_int(json, layout_rank(mesh, i));
        cli_json_close(json, ']');
    }
    return good;
}

bool layout_answer_strided(ts_mesh *mesh, const char *placements, const ts_shape *shape,
                           cli_json *json, char *error, size_t size)
{
    const ts_sharding *ordered = ts_sharding_get(mesh, placements);
    const ts_sharding *strided =
        ordered != NULL ? ts_sharding_to_strided(mesh, ordered, shape) : NULL;
    if (strided == NULL) {
        (void)snprintf(error, size, "%s%s", ordered == NULL ? "placements: " : "",
                       ts_last_error());
        return false;
    }
    cli_json_key(json, "strided");
    cli_json_open(json, '[');
    for (int32_t k = 0; k < ts_sharding_ndim(strided); k++) {
        size_t length = ts_placement_text(strided, k, NULL, 0);
        char *text = malloc(length + 1);
        if (text != NULL) (void)ts_placement_text(strided, k, text, length + 1);
        cli_json_text(json, text);
        free(text);
    }
    cli_json_close(json, ']');
    return true;
}

/* ---- batches --------------------------------------------------------------------------------- */
#if TS_HAVE_JANSSON
#include <jansson.h>

static bool serve_on(const void *request, ts_mesh *mesh, const char *placements,
                     const layout_options *options, cli_json *answer, char *error, size_t size)
{
    ts_shape shape = { 0 };
    bool has_shape = json_object_get(request, "tensor") != NULL;
    if ((has_shape || !options->to_strided) &&
        !layout_field_shape(request, "tensor", &shape, error, size)) {
        return false;
    }
    if (options->to_strided) {
        return layout_answer_strided(mesh, placements, has_shape ? &shape : NULL, answer, error,
                                     size);
    }
    const ts_layout *layout = layout_make(mesh, placements, shape, "placements", error, size);
    bool good = layout != NULL && layout_answer(mesh, layout, options->elements, answer, error, size);
    ts_layout_release(layout);
    return good;
}

bool layout_serve(const void *request, cli_json *answer, char *error, size_t size, void *context)
{
    const layout_options *options = context;
    char *mesh_text = layout_field_mesh(request, "mesh", error, size);
    char *placements = NULL;
    if (mesh_text != NULL)
        placements = layout_field_placements(request, "placements", "shard_order", error, size);
    ts_mesh *mesh = placements != NULL ? layout_mesh(options->world, mesh_text, error, size) : NULL;
    cli_json_open(answer, '{');
    bool good = mesh != NULL && serve_on(request, mesh, placements, options, answer, error, size);
    cli_json_close(answer, '}');
    ts_mesh_release(mesh);
    free(placements);
    free(mesh_text);
    return good;
}

#else

bool layout_serve(const void *request, cli_json *answer, char *error, size_t size, void *context)
{
    (void)request;
    (void)answer;
    (void)context;
    (void)snprintf(error, size, "this build has no jansson");
    return false;
}

#endif
