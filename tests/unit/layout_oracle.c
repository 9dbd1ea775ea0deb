/* SPDX-License-Identifier: Apache-2.0 */
/* layout_oracle.c - every row of tests/golden/layouts.jsonl and orders.jsonl, exactly.
 *
 * The rows are answers of the reference system (tests/golden/README.md). A layout row is checked
 * through the public functions: local shape, offset, the elements by to_global, and back by
 * to_local. */
#include "base/alloc.h"
#include "base/rank.h"
#include "base/text.h"
#include "harness/test.h"
#include "tessera/json.h"
#include "tessera/layout.h"

typedef struct row {
    test *t;
    int line;
    ts_mesh *mesh;
    const ts_json *json;
} row;

static void list_text(const ts_json *list, char *out, size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    for (int64_t i = 0; i < ts_json_count(list); i++) {
        const ts_json *item = ts_json_item(list, i);
        const char *comma = i ? ", " : "";
        if (ts_json_kind_of(item) == TS_JSON_INT)
            used += (size_t)snprintf(out + used, size - used, "%s%lld", comma,
                                     (long long)ts_json_int(item, -1));
        else
            used +=
                (size_t)snprintf(out + used, size - used, "%s%s", comma, ts_json_text(item, "?"));
    }
}

static ts_shape shape_of(const ts_json *list)
{
    ts_shape shape = { .ndim = (int32_t)ts_json_count(list) };
    for (int32_t d = 0; d < shape.ndim; d++)
        shape.extent[d] = ts_json_int(ts_json_item(list, d), -1);
    return shape;
}

static void check_rank(const row *r, const ts_layout *layout, const ts_json *want)
{
    ts_shape shape = ts_layout_shape(layout);
    ts_shape coord = shape_of(ts_json_member(want, "coord"));
    ts_shape local = ts_layout_local(layout, coord.extent);
    ts_shape want_local = shape_of(ts_json_member(want, "shape"));
    ts_shape want_offset = shape_of(ts_json_member(want, "offset"));
    int64_t offset[TS_NDIM_MAX];
    TEST_OK(r->t, ts_layout_offset(layout, coord.extent, offset));
    for (int32_t d = 0; d < shape.ndim; d++) {
        TEST_SAY(r->t, local.extent[d] == want_local.extent[d], "line %d: local extent %d", r->line,
                 d);
        TEST_SAY(r->t, offset[d] == want_offset.extent[d], "line %d: offset %d", r->line, d);
    }
    const ts_json *elements = ts_json_member(want, "elements");
    int64_t count = ts_shape_count(&local), at[TS_NDIM_MAX] = { 0 };
    TEST_SAY(r->t, count == ts_json_count(elements), "line %d: number of elements", r->line);
    for (int64_t i = 0; i < count; i++) {
        int64_t global[TS_NDIM_MAX], back[TS_NDIM_MAX], index = 0;
        ts_layout_to_global(layout, coord.extent, at, global);
        for (int32_t d = 0; d < shape.ndim; d++)
            index = index * shape.extent[d] + global[d];
        TEST_SAY(r->t, index == ts_json_int(ts_json_item(elements, i), -1), "line %d: element %lld",
                 r->line, (long long)i);
        TEST_SAY(r->t, ts_layout_to_local(layout, coord.extent, global, back), "line %d: held",
                 r->line);
        for (int32_t d = 0; d < shape.ndim; d++)
            TEST_SAY(r->t, back[d] == at[d], "line %d: map back", r->line);
        for (int32_t d = shape.ndim - 1; d >= 0 && ++at[d] == local.extent[d]; d--)
            at[d] = 0;
    }
}

static void check_layout(const row *r)
{
    char placements[256];
    list_text(ts_json_member(r->json, "placements"), placements, sizeof placements);
    const ts_sharding *sharding = ts_sharding_get(r->mesh, placements);
    TEST_SAY(r->t, sharding, "line %d: %s", r->line, ts_last_error());
    const ts_layout *layout = ts_layout_get(sharding, shape_of(ts_json_member(r->json, "tensor")));
    TEST_SAY(r->t, layout, "line %d: %s", r->line, ts_last_error());
    if (!layout) return;
    const ts_json *ranks = ts_json_member(r->json, "ranks");
    TEST_EQ(r->t, ts_json_count(ranks), ts_mesh_size(r->mesh, NULL));
    for (int64_t i = 0; i < ts_json_count(ranks); i++)
        check_rank(r, layout, ts_json_item(ranks, i));
}

/* [[dim, [axes, outermost first]], ...] as positions behind the placements. */
static void check_order(const row *r)
{
    char text[256] = "", strided[256], got[256];
    const ts_json *placements = ts_json_member(r->json, "placements");
    const ts_json *order = ts_json_member(r->json, "shard_order");
    for (int64_t k = 0; k < ts_json_count(placements); k++) {
        size_t used = strlen(text);
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", k ? ", " : "",
                                 ts_json_text(ts_json_item(placements, k), "?"));
        for (int64_t i = 0; i < ts_json_count(order); i++) {
            const ts_json *axes = ts_json_item(ts_json_item(order, i), 1);
            for (int64_t p = 0; p < ts_json_count(axes); p++)
                if (ts_json_int(ts_json_item(axes, p), -1) == k)
                    used += (size_t)snprintf(text + used, sizeof text - used, "[%d]", (int)p);
        }
    }
    list_text(ts_json_member(r->json, "strided"), strided, sizeof strided);
    const ts_sharding *ordered = ts_sharding_get(r->mesh, text);
    TEST_SAY(r->t, ordered, "line %d: %s", r->line, ts_last_error());
    const ts_sharding *converted = ts_sharding_to_strided(r->mesh, ordered, NULL);
    TEST_SAY(r->t, converted, "line %d: %s", r->line, ts_last_error());
    TEST_CHECK(r->t, converted == ts_sharding_get(r->mesh, strided));
    (void)ts_sharding_text(converted, got, sizeof got);
    TEST_TEXT(r->t, got, strided);
    TEST_SAY(r->t, ts_sharding_to_order(r->mesh, converted, NULL) == ordered, "line %d: back to %s",
             r->line, text);
}

/* Every line of a file, each on a mesh of its own description. */
static int each_row(test *t, const char *path, void (*check)(const row *r))
{
    size_t length;
    char *text = test_read_file(t, path, &length);
    ts_world *world = NULL;
    int lines = 0;
    TEST_OK(t, tsi_world_make(1, 1, 0, 0, &world));
    for (char *line = text; line && *line && !test_failed(t);) {
        size_t end = strcspn(line, "\n");
        ts_json_document *document = NULL;
        TEST_OK(t, ts_json_parse(path, line, end, &document));
        char mesh[128];
        row r = { t, ++lines, NULL, ts_json_root(document) };
        list_text(ts_json_member(r.json, "mesh"), mesh, sizeof mesh);
        r.mesh = ts_mesh_describe(world, mesh);
        TEST_SAY(t, r.mesh, "line %d: %s", lines, ts_last_error());
        if (r.mesh) check(&r);
        ts_mesh_release(r.mesh);
        ts_json_release(document);
        line += end + (line[end] == '\n');
    }
    tsi_world_unmake(world);
    tsi_free(text);
    return lines;
}

TS_TEST(layouts_of_the_reference)
{
    TEST_EQ(t, each_row(t, "tests/golden/layouts.jsonl", check_layout), 400);
}

TS_TEST(orders_of_the_reference)
{
    TEST_EQ(t, each_row(t, "tests/golden/orders.jsonl", check_order), 120);
}
