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
/* The end of a shape, where nothing but blanks may follow the bracket that was opened, if any. */
static bool is_end(const char *at, const char *bracket)
{
    size_t length = strlen(bracket);
    return strncmp(at, bracket, length) == 0 && at[length + strspn(at + length, " ")] == '\0';
}

bool layout_read_shape(const char *text, ts_shape *out, char *error, size_t size)
{
    *out = (ts_shape){ 0 };
    const char *at = text + strspn(text, " "), *bracket = "";
    if (*at == '[' || *at == '(') {
        bracket = *at == '[' ? "]" : ")";
        at += 1 + strspn(at + 1, " ");
    }
    if (strcmp(at, "scalar") == 0 || is_end(at, bracket)) return true;
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
        at = end + strspn(end, " ");
        if (is_end(at, bracket)) return true;
        if (*at != 'x' && *at != ',') {
            return refuse(error, size, "shape, column %d: expected \"x\"%s%s%s, found \"%s\"",
                          (int)(at - text) + 1, *bracket ? " or \"" : "", bracket,
                          *bracket ? "\"" : "", at);
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
bool layout_field_shape(const ts_json *list, const char *key, ts_shape *out, char *error,
                        size_t size)
{
    *out = (ts_shape){ 0 };
    if (list == NULL) return refuse(error, size, "\"%s\" is missing: a list of sizes", key);
    if (ts_json_kind_of(list) != TS_JSON_LIST)
        return cli_field_refuse(key, list, "a list of sizes", error, size);
    if (ts_json_count(list) > TS_NDIM_MAX) {
        return refuse(error, size, "\"%s\" has %lld dims; at most %d are allowed", key,
                      (long long)ts_json_count(list), TS_NDIM_MAX);
    }
    for (int64_t d = 0; d < ts_json_count(list); d++) {
        const ts_json *item = ts_json_item(list, d);
        if (ts_json_kind_of(item) != TS_JSON_INT || ts_json_int(item, -1) < 0) {
            return refuse(error, size, "\"%s\", item %lld: expected a whole number of at least 0",
                          key, (long long)d);
        }
        out->extent[out->ndim++] = ts_json_int(item, -1);
    }
    return true;
}

/* Position of an axis in a shard order, [[dim, [axes, outermost first]], ...]; -1: not there. */
static int64_t order_of(const ts_json *order, int64_t axis)
{
    for (int64_t i = 0; i < ts_json_count(order); i++) {
        const ts_json *axes = ts_json_item(ts_json_item(order, i), 1);
        for (int64_t p = 0; p < ts_json_count(axes); p++)
            if (ts_json_int(ts_json_item(axes, p), -1) == axis) return p;
    }
    return -1;
}

/* The items of a list, all of one kind, as the text that the library reads: with commas between
 * them, and after each its position in a shard order, if it has one. To be freed. */
static char *join(const ts_json *list, const char *key, ts_json_kind kind, const char *expected,
                  const ts_json *order, char *error, size_t size)
{
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    bool good = out != NULL;
    for (int64_t i = 0; good && i < ts_json_count(list); i++) {
        const ts_json *item = ts_json_item(list, i);
        int64_t position = order_of(order, i);
        good = ts_json_kind_of(item) == kind;
        if (!good)
            (void)refuse(error, size, "\"%s\", item %lld: expected %s", key, (long long)i,
                         expected);
        else if (kind == TS_JSON_INT)
            fprintf(out, "%s%lld", i > 0 ? ", " : "", (long long)ts_json_int(item, 0));
        else
            fprintf(out, "%s%s", i > 0 ? ", " : "", ts_json_text(item, ""));
        if (good && position >= 0) fprintf(out, "[%lld]", (long long)position);
    }
    if (out != NULL) fclose(out);
    if (good) return text;
    free(text);
    return NULL;
}

char *layout_field_mesh(const ts_json *value, const char *key, char *error, size_t size)
{
    static const char expected[] = "a list of axis sizes, or a text as \"dp=2, tp=4\"";
    if (ts_json_kind_of(value) == TS_JSON_TEXT) return strdup(ts_json_text(value, ""));
    if (ts_json_kind_of(value) == TS_JSON_LIST)
        return join(value, key, TS_JSON_INT, "an axis size", NULL, error, size);
    if (value == NULL)
        (void)refuse(error, size, "\"%s\" is missing: %s", key, expected);
    else
        (void)cli_field_refuse(key, value, expected, error, size);
    return NULL;
}

static bool is_order(const ts_json *order)
{
    bool good = ts_json_kind_of(order) == TS_JSON_LIST;
    for (int64_t i = 0; good && i < ts_json_count(order); i++) {
        const ts_json *item = ts_json_item(order, i), *axes = ts_json_item(item, 1);
        good = ts_json_count(item) == 2 && ts_json_kind_of(axes) == TS_JSON_LIST &&
               ts_json_kind_of(ts_json_item(item, 0)) == TS_JSON_INT;
        for (int64_t p = 0; good && p < ts_json_count(axes); p++)
            good = ts_json_kind_of(ts_json_item(axes, p)) == TS_JSON_INT;
    }
    return good;
}

bool layout_field_order(const ts_json *request, const char *key, const ts_json **out, char *error,
                        size_t size)
{
    *out = ts_json_member(request, key);
    if (*out == NULL || is_order(*out)) return true;
    return cli_field_refuse(key, *out, "a list of [dim, [axes]]", error, size);
}

char *layout_field_placements(const ts_json *value, const char *key, const ts_json *order,
                              char *error, size_t size)
{
    if (ts_json_kind_of(value) == TS_JSON_TEXT) return strdup(ts_json_text(value, ""));
    if (ts_json_kind_of(value) == TS_JSON_LIST)
        return join(value, key, TS_JSON_TEXT, "a text", order, error, size);
    if (value == NULL)
        (void)refuse(error, size, "\"%s\" is missing: a list as [\"S(0)\", \"R\"]", key);
    else
        (void)cli_field_refuse(key, value, "a list as [\"S(0)\", \"R\"]", error, size);
    return NULL;
}
