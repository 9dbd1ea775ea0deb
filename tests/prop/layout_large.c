/* SPDX-License-Identifier: Apache-2.0 */
/* layout_large.c - 10,000 random layouts of real and unreal size, checked by algebra.
 *
 * Extents to 10^12, meshes to 10^6 ranks on up to 5 axes, chains of any cuts. Nothing can be
 * listed, so identities are checked: lengths along an axis add up to what it cuts; an element's
 * owner holds it, its neighbours do not; local to global to local is the identity; the list of a
 * coordinate has the length and the indices of the maps; and a coordinate's elements under one
 * layout are distributed without loss among the coordinates of another. */
#include "base/alloc.h"
#include "base/rank.h"
#include "harness/test.h"
#include "layout/cut.h"

typedef struct big {
    test *t;
    ts_world *world;
    tsi_mesh_desc *mesh;
    const ts_layout *layout;
    tsi_arena arena;
    int64_t lists; /* how many lists were looked at */
} big;

static int64_t log_random(test *t, int64_t most)
{
    int64_t bits = 1;
    while (most >> bits)
        bits++;
    int64_t value = test_random_below(t, (int64_t)1 << test_random_below(t, bits + 1));
    return value < most ? value : most;
}

static tsi_mesh_desc *random_mesh(test *t, ts_world *world, int64_t ranks_max)
{
    char text[256] = "";
    int64_t ndim = 1 + test_random_below(t, 5), left = ranks_max;
    for (int64_t k = 0; k < ndim; k++) {
        int64_t size = 1 + log_random(t, left - 1);
        left /= size;
        size_t used = strlen(text);
        (void)snprintf(text + used, sizeof text - used, "%sx%d=%lld", k ? ", " : "", (int)k,
                       (long long)size);
    }
    tsi_mesh_desc *mesh = NULL;
    if (test_random_below(t, 4) == 0) { /* a regular numbering that does not begin at 0 */
        TEST_OK(t, tsi_mesh_desc_parse(world, text, -1, &mesh));
        size_t used = strlen(text);
        (void)snprintf(text + used, sizeof text - used, " : 5-%lld/3",
                       (long long)(5 + 3 * (mesh->count - 1)));
        tsi_mesh_desc_release(mesh);
    }
    TEST_OK(t, tsi_mesh_desc_parse(world, text, -1, &mesh));
    return mesh;
}

static ts_placement random_place(test *t, int32_t ndim)
{
    ts_placement place = { .factor = 1, .align = 1, .order = (int32_t)test_random_below(t, 5) };
    int64_t kind = test_random_below(t, 8);
    if (kind == 0) return place;
    if (kind == 1) {
        place.kind = TS_PLACE_PARTIAL;
        place.reduce = test_random_below(t, 2) ? TS_REDUCE_SUM : TS_REDUCE_AVG;
        return place;
    }
    place.kind = kind < 5 ? TS_PLACE_SHARD : kind < 7 ? TS_PLACE_STRIDED : TS_PLACE_HEAD_TAIL;
    place.factor = 1 + log_random(t, 60);
    place.dim = place.dim_last = (int32_t)test_random_below(t, ndim);
    if (test_random_below(t, 4) == 0) place.align = 1 + log_random(t, 4096);
    return place;
}

static void random_coord(big *b, int64_t *coord)
{
    for (int32_t k = 0; k < b->mesh->ndim; k++)
        coord[k] = test_random_below(b->t, b->mesh->size[k]);
}

/* Down one dim: at each cut the lengths of all coordinates add up (where there are not too many).
 */
static void check_lengths(big *b, int32_t v)
{
    const ts_sharding *s = b->layout->sharding;
    int64_t extent = b->layout->view.extent[v];
    for (int32_t i = b->layout->cut_first[v]; i < b->layout->cut_first[v + 1]; i++) {
        int32_t axis = s->order[i];
        tsi_cut cut = { &s->place[axis], b->mesh->size[axis], extent };
        int64_t sum = 0;
        if (cut.parts <= 2000) {
            for (int64_t r = 0; r < cut.parts; r++)
                sum += tsi_cut_length(&cut, r);
            TEST_EQ(b->t, sum, extent);
        }
        /* Any position belongs to one coordinate, and is found there. */
        for (int n = 0; n < 8 && extent > 0; n++) {
            int64_t position = test_random_below(b->t, extent), local;
            int64_t r = tsi_cut_find(&cut, position, &local);
            TEST_CHECK(b->t,
                       r >= 0 && r < cut.parts && local >= 0 && local < tsi_cut_length(&cut, r));
            TEST_EQ(b->t, tsi_cut_outer(&cut, r, local), position);
        }
        extent = tsi_cut_length(&cut, test_random_below(b->t, cut.parts));
    }
}

static void check_owner(big *b)
{
    const ts_layout *layout = b->layout;
    int64_t global[TS_NDIM_MAX], owner[TS_NDIM_MAX], local[TS_NDIM_MAX], back[TS_NDIM_MAX];
    for (int32_t d = 0; d < layout->shape.ndim; d++)
        global[d] = test_random_below(b->t, layout->shape.extent[d]);
    TEST_OK(b->t, ts_layout_owner(layout, global, owner));
    TEST_CHECK(b->t, ts_layout_to_local(layout, owner, global, local));
    ts_layout_to_global(layout, owner, local, back);
    for (int32_t d = 0; d < layout->shape.ndim; d++)
        TEST_EQ(b->t, back[d], global[d]);
    for (int32_t k = 0; k < b->mesh->ndim; k++) {
        if (b->mesh->size[k] == 1) continue;
        int64_t kept = owner[k];
        owner[k] = (kept + 1 + test_random_below(b->t, b->mesh->size[k] - 1)) % b->mesh->size[k];
        bool holds = ts_layout_to_local(layout, owner, global, local);
        TEST_EQ(b->t, holds, !(layout->axes_cut >> k & 1)); /* replicas and terms hold it too */
        owner[k] = kept;
    }
}

static void check_coordinate(big *b)
{
    const ts_layout *layout = b->layout;
    int64_t coord[TS_NDIM_MAX], offset[TS_NDIM_MAX], local[TS_NDIM_MAX], global[TS_NDIM_MAX];
    random_coord(b, coord);
    ts_shape block = ts_layout_local(layout, coord);
    TEST_OK(b->t, ts_layout_offset(layout, coord, offset));
    bool empty = false;
    for (int32_t v = 0; v < layout->view.ndim; v++) {
        tsi_span_list list;
        TEST_CHECK(b->t, tsi_layout_region_dim(layout, coord, v, &b->arena, &list));
        TEST_EQ(b->t, list.total, block.extent[v]);
        TEST_EQ(b->t, list.total ? tsi_span_list_at(&list, 0) : layout->view.extent[v], offset[v]);
        b->lists++;
        empty = empty || list.total == 0;
        local[v] = list.total ? test_random_below(b->t, list.total) : 0;
        global[v] = tsi_span_list_at(&list, local[v]);
        if (list.total) TEST_EQ(b->t, tsi_span_list_find(&list, global[v]), local[v]);
    }
    if (empty) return;
    int64_t mapped[TS_NDIM_MAX], back[TS_NDIM_MAX];
    ts_layout_to_global(layout, coord, local, mapped);
    TEST_CHECK(b->t, ts_layout_to_local(layout, coord, mapped, back));
    for (int32_t v = 0; v < layout->view.ndim; v++) {
        TEST_EQ(b->t, mapped[v], global[v]);
        TEST_EQ(b->t, back[v], local[v]);
    }
}

static void random_layout(big *b, int64_t ranks_max)
{
    ts_placement place[TS_NDIM_MAX];
    ts_shape shape = { .ndim = 1 + (int32_t)test_random_below(b->t, 3) };
    for (int32_t d = 0; d < shape.ndim; d++)
        shape.extent[d] = 1 + log_random(b->t, 1000000000000 - 1);
    b->mesh = random_mesh(b->t, b->world, ranks_max);
    for (int32_t k = 0; k < b->mesh->ndim; k++)
        place[k] = random_place(b->t, shape.ndim);
    const ts_sharding *s = tsi_sharding_intern(b->mesh, place);
    TEST_SAY(b->t, s, "%s", ts_last_error());
    b->layout = s ? tsi_layout_intern(s, &shape) : NULL;
    TEST_SAY(b->t, b->layout, "%s", ts_last_error());
    ts_sharding_release(s);
}

static void end_layout(big *b)
{
    ts_layout_release(b->layout);
    tsi_mesh_desc_release(b->mesh);
    tsi_arena_reset(&b->arena);
}

static void check_ranks(big *b)
{
    int64_t coord[TS_NDIM_MAX], back[TS_NDIM_MAX];
    random_coord(b, coord);
    int64_t rank = tsi_mesh_desc_rank(b->mesh, coord);
    TEST_CHECK(b->t, tsi_mesh_desc_coord(b->mesh, rank, back));
    for (int32_t k = 0; k < b->mesh->ndim; k++)
        TEST_EQ(b->t, back[k], coord[k]);
    tsi_mesh_desc_unravel(b->mesh, tsi_mesh_desc_ravel(b->mesh, coord), back);
    for (int32_t k = 0; k < b->mesh->ndim; k++)
        TEST_EQ(b->t, back[k], coord[k]);
    TEST_CHECK(b->t, !tsi_mesh_desc_coord(b->mesh, b->mesh->offset - 1, back));
}

TS_TEST_LONG(layout_ten_thousand, 60)
{
    big b = { .t = t };
    TEST_OK(t, tsi_world_make(1, 1, 0, 0, &b.world));
    for (int i = 0; i < 10000 && !test_failed(t); i++) {
        random_layout(&b, 1000000);
        if (b.layout) {
            check_ranks(&b);
            for (int32_t v = 0; v < b.layout->view.ndim; v++)
                check_lengths(&b, v);
            check_owner(&b);
            check_coordinate(&b);
        }
        end_layout(&b);
    }
    TEST_CHECK(t, b.lists > 10000);
    tsi_arena_release(&b.arena);
    tsi_world_unmake(b.world);
}

/* What one coordinate holds under a layout is held, each element once, by the owners under another.
 */
TS_TEST_LONG(layout_exchanges_lose_nothing, 60)
{
    big b = { .t = t };
    TEST_OK(t, tsi_world_make(1, 1, 0, 0, &b.world));
    for (int i = 0; i < 1500 && !test_failed(t); i++) {
        random_layout(&b, 64);
        ts_placement place[TS_NDIM_MAX];
        for (int32_t k = 0; k < b.mesh->ndim; k++)
            place[k] = random_place(t, b.layout->shape.ndim);
        const ts_sharding *s = tsi_sharding_intern(b.mesh, place);
        const ts_layout *other = s ? tsi_layout_intern(s, &b.layout->shape) : NULL;
        TEST_SAY(t, other, "%s", ts_last_error());
        tsi_region mine, theirs, part;
        int64_t coord[TS_NDIM_MAX], at[TS_NDIM_MAX];
        random_coord(&b, coord);
        TEST_CHECK(t, tsi_layout_region(b.layout, coord, &b.arena, &mine));
        for (int32_t v = 0; v < mine.ndim && other; v++) {
            /* Dim by dim, over the coordinates that cut this dim: counts add up, and equal the
             * lists' lengths. */
            int64_t sum = 0;
            for (int64_t r = 0; r < b.mesh->count; r++) {
                tsi_mesh_desc_unravel(b.mesh, r, at);
                bool first = true;
                for (int32_t k = 0; k < b.mesh->ndim; k++)
                    if ((!tsi_placement_cuts(&s->place[k]) || s->place[k].dim != v) && at[k] != 0)
                        first = false;
                if (!first) continue;
                TEST_CHECK(t, tsi_layout_region_dim(other, at, v, &b.arena, &theirs.dim[v]));
                TEST_CHECK(t, tsi_span_list_intersect(&mine.dim[v], &theirs.dim[v], &b.arena,
                                                      &part.dim[v]));
                int64_t common = tsi_span_list_intersect_count(&mine.dim[v], &theirs.dim[v]);
                TEST_EQ(t, part.dim[v].total, common);
                sum += common;
            }
            TEST_EQ(t, sum, mine.dim[v].total);
        }
        ts_layout_release(other);
        ts_sharding_release(s);
        end_layout(&b);
    }
    tsi_arena_release(&b.arena);
    tsi_world_unmake(b.world);
}

/* Products beyond 2^63 are counted as -1, and everything about one coordinate still works. */
TS_TEST(layout_beyond_all_counts)
{
    ts_world *world;
    TEST_OK(t, tsi_world_make(1, 1, 0, 0, &world));
    ts_mesh *mesh = ts_mesh_describe(world, "a=1000, b=1000");
    int64_t large = ((int64_t)1 << 62) - 1, coord[2] = { 999, 999 }, offset[3];
    const ts_layout *layout =
        ts_layout_get(ts_sharding_get(mesh, "S(0), SS(1,7)"), TS_SHAPE(large, large, 3));
    TEST_SAY(t, layout, "%s", ts_last_error());
    TEST_EQ(t, layout->count, -1);
    TEST_OK(t, ts_layout_offset(layout, coord, offset));
    ts_shape local = ts_layout_local(layout, coord);
    TEST_EQ(t, offset[0] + local.extent[0], large);
    int64_t sum = 0;
    for (coord[1] = 0; coord[1] < 1000; coord[1]++)
        sum += ts_layout_local(layout, coord).extent[1];
    TEST_EQ(t, sum, large);
    TEST_CHECK(t, !ts_layout_get(ts_sharding_get(mesh, "R, R"), TS_SHAPE(large + 1)));
    TEST_SAYS(t, ts_last_error(), "2^62");
    TEST_CHECK(t, !ts_layout_get(ts_sharding_get(mesh, "S(0-1), R"), TS_SHAPE(large, 2)));
    TEST_SAYS(t, ts_last_error(), "2^62 elements or more");
    TEST_CHECK(t, ts_layout_get(ts_sharding_get(mesh, "S(0-1), R"), TS_SHAPE(large, 0)) != NULL);
    tsi_world_unmake(world);
}
