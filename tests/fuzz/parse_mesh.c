/* SPDX-License-Identifier: Apache-2.0 */
/* parse_mesh.c - any bytes as a mesh text: refused with a sentence, or a mesh that prints and
 * parses to itself. */
#include "corpus.h"

#include "layout/layout.h"

static void check_mesh(ts_world *world, ts_mesh *mesh)
{
    int64_t coord[TS_NDIM_MAX], back[TS_NDIM_MAX];
    if (ts_mesh_size(mesh, NULL) > 100000) return;
    size_t length = ts_mesh_text(mesh, NULL, 0);
    char *text = malloc(length + 1);
    FUZZ_CHECK(text && ts_mesh_text(mesh, text, length + 1) == length);
    ts_mesh *again = ts_mesh_describe(world, text);
    FUZZ_CHECK(ts_mesh_equal(mesh, again));
    ts_mesh_release(again);
    free(text);
    for (int64_t i = 0; i < ts_mesh_size(mesh, NULL) && i < 1000; i++) {
        tsi_mesh_desc_unravel(mesh->desc, i, coord);
        FUZZ_CHECK(tsi_mesh_desc_coord(mesh->desc, tsi_mesh_desc_rank(mesh->desc, coord), back));
        FUZZ_CHECK(memcmp(coord, back, (size_t)mesh->desc->ndim * sizeof *coord) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 2000) return 0;
    char text[2048];
    memcpy(text, data, size);
    text[size] = '\0';
    char *second = strchr(text, '\n'); /* a second line: slices and splits of the first */
    if (second) *second++ = '\0';
    ts_world *world = fuzz_world();
    ts_mesh *mesh = ts_mesh_describe(world, text);
    FUZZ_CHECK(mesh || ts_last_error()[0]);
    if (mesh) check_mesh(world, mesh);
    if (mesh && second) {
        ts_mesh *slice = ts_mesh_slice(mesh, second);
        if (slice) check_mesh(world, slice);
        ts_mesh *flat = ts_mesh_flatten(mesh, "f");
        FUZZ_CHECK(flat);
        ts_mesh *split =
            ts_mesh_size(mesh, NULL) < 100000 ? ts_mesh_split(flat, "f", second) : NULL;
        if (split) check_mesh(world, split);
    }
    tsi_world_unmake(world);
    return 0;
}

#ifndef TS_FUZZER
TS_TEST(parse_mesh_corpus)
{
    TEST_CHECK(t, fuzz_corpus(t, "parse_mesh") >= 10);
}
#endif
