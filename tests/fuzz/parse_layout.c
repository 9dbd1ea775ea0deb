/* SPDX-License-Identifier: Apache-2.0 */
/* parse_layout.c - any bytes as "mesh \n placements \n extents": what is accepted prints and parses
 * to itself, partitions its elements and inverts its maps. */
#include "corpus.h"

#include "layout/layout.h"

static void check_coord(const ts_layout *layout, const int64_t *coord)
{
    ts_shape local = ts_layout_local(layout, coord);
    int64_t at[TS_NDIM_MAX] = { 0 }, global[TS_NDIM_MAX], back[TS_NDIM_MAX], owner[TS_NDIM_MAX];
    tsi_arena arena = { 0 };
    tsi_region region;
    if (tsi_layout_region(layout, coord, &arena, &region))
        for (int32_t v = 0; v < region.ndim; v++)
            FUZZ_CHECK(region.dim[v].total == local.extent[v]);
    tsi_arena_release(&arena);
    for (int32_t v = 0; v < local.ndim; v++) {
        if (local.extent[v] == 0) return;
        at[v] = local.extent[v] - 1;
    }
    ts_layout_to_global(layout, coord, at, global);
    FUZZ_CHECK(ts_layout_to_local(layout, coord, global, back));
    FUZZ_CHECK(memcmp(at, back, (size_t)local.ndim * sizeof *at) == 0);
    FUZZ_CHECK(ts_layout_owner(layout, global, owner) == TS_OK);
    for (int32_t k = 0; k < layout->sharding->ndim; k++)
        if (layout->axes_cut >> k & 1) FUZZ_CHECK(owner[k] == coord[k]);
}

static void check_layout(const ts_layout *layout)
{
    const tsi_mesh_desc *mesh = layout->sharding->mesh;
    int64_t coord[TS_NDIM_MAX];
    for (int64_t i = 0; i < mesh->count && i < 16; i++) {
        tsi_mesh_desc_unravel(mesh, i, coord);
        check_coord(layout, coord);
        tsi_mesh_desc_unravel(mesh, mesh->count - 1 - i, coord);
        check_coord(layout, coord);
    }
}

static void check_sharding(ts_mesh *mesh, const ts_sharding *sharding, const char *extents)
{
    size_t length = ts_sharding_text(sharding, NULL, 0);
    char *text = malloc(length + 1);
    FUZZ_CHECK(text && ts_sharding_text(sharding, text, length + 1) == length);
    FUZZ_CHECK(ts_sharding_get(mesh, text) == sharding);
    free(text);
    ts_shape shape = { 0 };
    for (char *end; shape.ndim < TS_NDIM_MAX && *extents; extents = end) {
        shape.extent[shape.ndim] = strtoll(extents, &end, 10);
        if (end == extents) break;
        shape.ndim++;
    }
    const ts_layout *layout = ts_layout_get(sharding, shape);
    if (!layout) return;
    check_layout(layout);
    const ts_sharding *strided = ts_sharding_to_strided(mesh, layout->sharding, NULL);
    const ts_layout *other = strided ? ts_layout_get(strided, shape) : NULL;
    if (other && ts_mesh_size(mesh, NULL) < 1000)
        FUZZ_CHECK(ts_layout_same_places(layout, other) || !layout->even);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 2000) return 0;
    char text[2048];
    memcpy(text, data, size);
    text[size] = '\0';
    char *placements = strchr(text, '\n');
    if (!placements) return 0;
    *placements++ = '\0';
    char *extents = strchr(placements, '\n');
    if (extents) *extents++ = '\0';
    ts_world *world = fuzz_world();
    ts_mesh *mesh = ts_mesh_describe(world, text);
    const ts_sharding *sharding = mesh ? ts_sharding_get(mesh, placements) : NULL;
    FUZZ_CHECK(sharding || ts_last_error()[0]);
    if (sharding) check_sharding(mesh, sharding, extents ? extents : "");
    tsi_world_unmake(world);
    return 0;
}

#ifndef TS_FUZZER
TS_TEST(parse_layout_corpus)
{
    TEST_CHECK(t, fuzz_corpus(t, "parse_layout") >= 10);
}
#endif
