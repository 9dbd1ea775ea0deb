/* SPDX-License-Identifier: Apache-2.0 */
/* layout_request.c - reading meshes, shapes and placements, from a command line or a JSON request.
 *
 * Lists are turned into the texts that the library reads, so there is one parser and one kind of
 * sentence about what is wrong, with its column. */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "layout.h"

ts_world *layout_world(const char *command)
{
    ts_world *world = NULL;
    ts_world_options options = { .struct_size = sizeof options,
                                 .engine = "threads",
                                 .rank_count = 1 };
    if (ts_world_open(&options, &world) == TS_OK) return world;
    (void)cli_fail(command, "%s", ts_last_error());
    return NULL;
}

static bool refuse(char *error, size_t size, const char *format, ...) TS_PRINTF(3, 4);
static bool refuse(char *error, size_t size, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(error, size, format, arguments);
    va_end(arguments);
    return false;
}

/* ---- shapes ---------------------------------------------------------------------------------- */
bool layout_read_shape(const char *text, ts_shape *out, char *error, size_t size)
{
    *out = (ts_shape){ 0 };
    const char *at = text + strspn(text, " [(");
    if (strcmp(at, "scalar") == 0 || at[strspn(at, " ])")] == '\0') return true;
    while (true) {
        char *end = NULL;
        errno = 0;
        long long extent = strtoll(at, &end, 10);
        if (at[0] < '0' || at[0] > '9' || errno != 0) {
            return refuse(error, size, "shape, column %d: expected a size, found \"%s\"",
                          (int)(at - text) + 1, at);
        }
        if (out->ndim == TS_NDIM_MAX) {
            return refuse(error, size, "shape, column %d: at most %d dims are allowed",
                          (int)(at - text) + 1, TS_NDIM_MAX);
        }
        out->extent[out->ndim++] = extent;
        at = end + strspn(end, " ])");
        if (*at == '\0') return true;
        if (*at != 'x' && *at != ',') {
            return refuse(error, size, "shape, column %d: expected \"x\", found \"%s\"",
                          (int)(at - text) + 1, at);
        }
        at += 1 + strspn(at + 1, " ");
    }
}

const char *layout_shape_text(const ts_shape *shape, char *out, size_t size)
{
    size_t used = 0;
    if (shape->ndim == 0) (void)snprintf(out, size, "scalar");
    for (int32_t d = 0; d < shape->ndim && used < size; d++) {
        used += (size_t)snprintf(out + used, size - used, "%s%lld", d > 0 ? "x" : "",
                                 (long long)shape->extent[d]);
    }
    return out;
}

const char *layout_list_text(const int64_t *values, int32_t count, char *out, size_t size)
{
    size_t used = (size_t)snprintf(out, size, "(");
    for (int32_t i = 0; i < count && used < size; i++) {
        used += (size_t)snprintf(out + used, size - used, "%s%lld", i > 0 ? ", " : "",
                                 (long long)values[i]);
    }
    if (used < size) (void)snprintf(out + used, size - used, ")");
    return out;
}

/* ---- meshes and layouts ---------------------------------------------------------------------- */
ts_mesh *layout_mesh(ts_world *world, const char *text, char *error, size_t size)
{
    ts_mesh *mesh = ts_mesh_describe(world, text);
    if (mesh == NULL) (void)snprintf(error, size, "%s", ts_last_error());
    return mesh;
}

const ts_layout *layout_make(ts_mesh *mesh, const char *placements, ts_shape shape,
                             const char *what, char *error, size_t size)
{
    const ts_sharding *sharding = ts_sharding_get(mesh, placements);
    const ts_layout *layout = sharding != NULL ? ts_layout_get(sharding, shape) : NULL;
    if (layout == NULL) {
        (void)snprintf(error, size, "%s: %s", what, ts_last_error());
        return NULL;
    }
    return ts_layout_retain(layout);
}

void layout_coord(const ts_mesh *mesh, int64_t number, int64_t *coord)
{
    for (int32_t k = ts_mesh_ndim(mesh) - 1; k >= 0; k--) {
        int64_t n = ts_mesh_axis_size(mesh, k);
        coord[k] = number % n;
        number /= n;
    }
}

int64_t layout_rank(const ts_mesh *mesh, int64_t number)
{
    int64_t coord[TS_NDIM_MAX];
    layout_coord(mesh, number, coord);
    return ts_mesh_rank_at(mesh, coord);
}

bool layout_is_row_major(const ts_mesh *mesh)
{
    int64_t count = ts_mesh_size(mesh, NULL);
    for (int64_t i = 0; i < count; i++) {
        if (layout_rank(mesh, i) != i) return false;
    }
    return true;
}

/* ---- fields of a request --------------------------------------------------------------------- */
#if TS_HAVE_JANSSON
#include <jansson.h>

bool layout_field_shape(const void *request, const char *key, ts_shape *out, char *error,
                        size_t size)
{
    const json_t *list = json_object_get(request, key);
    *out = (ts_shape){ 0 };
    if (list == NULL) return refuse(error, size, "\"%s\" is missing: a list of sizes", key);
    if (!json_is_array(list)) return refuse(error, size, "\"%s\" must be a list of sizes", key);
    if (json_array_size(list) > TS_NDIM_MAX) {
        return refuse(error, size, "\"%s\" has %zu dims; at most %d are allowed", key,
                      json_array_size(list), TS_NDIM_MAX);
    }
    for (size_t d = 0; d < json_array_size(list); d++) {
        const json_t *item = json_array_get(list, d);
        if (!json_is_integer(item) || json_integer_value(item) < 0) {
            return refuse(error, size, "\"%s\", item %zu: expected a whole number of at least 0",
                          key, d);
        }
        out->extent[out->ndim++] = json_integer_value(item);
    }
    return true;
}

/* One item of a list as text, between commas; false: it is neither. */
static bool put_item(const json_t *item, size_t index, FILE *out)
{
    if (index > 0) fputs(", ", out);
    if (json_is_integer(item))
        fprintf(out, "%lld", (long long)json_integer_value(item));
    else if (json_is_string(item))
        fputs(json_string_value(item), out);
    else
        return false;
    return true;
}

char *layout_field_mesh(const void *request, const char *key, char *error, size_t size)
{
    const json_t *value = json_object_get(request, key);
    if (json_is_string(value)) return strdup(json_string_value(value));
    if (!json_is_array(value)) {
        (void)refuse(error, size, "\"%s\" %s: a list of axis sizes, or a text as \"dp=2, tp=4\"",
                     key, value == NULL ? "is missing" : "must be a mesh");
        return NULL;
    }
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    bool good = out != NULL;
    for (size_t i = 0; good && i < json_array_size(value); i++) {
        const json_t *item = json_array_get(value, i);
        good = json_is_integer(item) && put_item(item, i, out);
        if (!good) (void)refuse(error, size, "\"%s\", item %zu: expected an axis size", key, i);
    }
    if (out != NULL) fclose(out);
    if (good) return text;
    free(text);
    return NULL;
}

/* Position of an axis in a shard_order, [[dim, [axes, outermost first]], ...]; -1: not there. */
static int64_t order_of(const json_t *order, size_t axis)
{
    for (size_t i = 0; i < json_array_size(order); i++) {
        const json_t *axes = json_array_get(json_array_get(order, i), 1);
        for (size_t p = 0; p < json_array_size(axes); p++) {
            if (json_integer_value(json_array_get(axes, p)) == (json_int_t)axis) return (int64_t)p;
        }
    }
    return -1;
}

static bool check_order(const json_t *order, const char *key, char *error, size_t size)
{
    if (order != NULL && !json_is_array(order)) {
        return refuse(error, size, "\"%s\" must be a list of [dim, [axes]]", key);
    }
    for (size_t i = 0; i < json_array_size(order); i++) {
        const json_t *item = json_array_get(order, i), *axes = json_array_get(item, 1);
        bool good = json_array_size(item) == 2 && json_is_integer(json_array_get(item, 0)) &&
                    json_is_array(axes);
        for (size_t p = 0; good && p < json_array_size(axes); p++)
            good = json_is_integer(json_array_get(axes, p));
        if (!good) return refuse(error, size, "\"%s\", item %zu: expected [dim, [axes]]", key, i);
    }
    return true;
}

char *layout_field_placements(const void *request, const char *key, const char *order_key,
                              char *error, size_t size)
{
    const json_t *value = json_object_get(request, key);
    const json_t *order = order_key != NULL ? json_object_get(request, order_key) : NULL;
    if (json_is_string(value)) return strdup(json_string_value(value));
    if (!json_is_array(value)) {
        (void)refuse(error, size, "\"%s\" %s: a list as [\"S(0)\", \"R\"]", key,
                     value == NULL ? "is missing" : "must be placements");
        return NULL;
    }
    if (!check_order(order, order_key != NULL ? order_key : "", error, size)) return NULL;
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    bool good = out != NULL;
    for (size_t i = 0; good && i < json_array_size(value); i++) {
        int64_t position = order_of(order, i);
        const json_t *item = json_array_get(value, i);
        good = json_is_string(item) && put_item(item, i, out);
        if (!good) (void)refuse(error, size, "\"%s\", item %zu: expected a text", key, i);
        if (good && position >= 0) fprintf(out, "[%lld]", (long long)position);
    }
    if (out != NULL) fclose(out);
    if (good) return text;
    free(text);
    return NULL;
}

#endif
