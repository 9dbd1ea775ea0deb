/* SPDX-License-Identifier: Apache-2.0 */
/* layout_places.c - worked tables of the specification, interning, and layouts that are the same in
 * other words. */
#include "base/alloc.h"
#include "base/rank.h"
#include "base/thread.h"
#include "harness/test.h"
#include "layout/slots.h"

static ts_world *open_world(test *t)
{
    ts_world *world = NULL;
    TEST_OK(t, tsi_world_make(1, 1, 0, 0, &world));
    return world;
}

static const ts_layout *layout_of(test *t, ts_mesh *mesh, const char *text, ts_shape shape)
{
    const ts_layout *layout = ts_layout_get(ts_sharding_get(mesh, text), shape);
    TEST_SAY(t, layout, "%s: %s", text, ts_last_error());
    return layout;
}

/* All coordinates of a one-dim layout as "0 1 | 2 | | 3". */
static const char *table(const ts_layout *layout)
{
    static _Thread_local char text[512];
    const tsi_mesh_desc *mesh = layout->sharding->mesh;
    size_t used = 0;
    for (int64_t r = 0; r < mesh->count; r++) {
        int64_t coord[TS_NDIM_MAX], global;
        tsi_mesh_desc_unravel(mesh, r, coord);
        int64_t count = ts_layout_local(layout, coord).extent[0];
        if (r > 0) used += (size_t)snprintf(text + used, sizeof text - used, " |");
        for (int64_t i = 0; i < count; i++) {
            ts_layout_to_global(layout, coord, &i, &global);
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%lld", used ? " " : "",
                                     (long long)global);
        }
    }
    return text;
}

TS_TEST(layout_tables)
{
    static const struct {
        const char *mesh, *placements;
        int64_t extent;
        const char *held;
    } cases[] = {
        { "2, 2", "S(0), S(0)", 10, "0 1 2 | 3 4 | 5 6 7 | 8 9" },
        { "2, 2", "S(0), S(0)", 5, "0 1 | 2 | 3 | 4" },
        { "2, 2", "S(0), S(0)", 3, "0 | 1 | 2 |" },
        { "2, 2", "S(0), S(0)", 8, "0 1 | 2 3 | 4 5 | 6 7" },
        { "2, 2", "SS(0,2), S(0)", 8, "0 1 | 4 5 | 2 3 | 6 7" },
        { "2, 2", "S(0)[1], S(0)[0]", 8, "0 1 | 4 5 | 2 3 | 6 7" },
        { "2, 2", "SS(0,2), SS(0,4)", 18, "0 1 3 4 10 11 13 | 2 9 12 | 5 7 14 16 | 6 8 15 17" },
        { "4", "SS(0,2)", 9, "0 1 5 | 2 3 6 | 4 7 | 8" },
        { "2", "SS(0,2)", 5, "0 1 3 | 2 4" },
        { "2", "SS(0,3)", 10, "0 1 4 5 8 | 2 3 6 7 9" },
        { "8", "S(0)", 9, "0 1 | 2 3 | 4 5 | 6 7 | 8 | | |" },
        { "3, 2", "S(0)[1], S(0)[0]", 7, "0 1 | 4 | 2 3 | 5 | | 6" },
        { "3, 2", "SS(0,2), S(0)", 7, "0 1 | 4 | 2 3 | 5 | 6 |" },
        { "2", "HT(0)", 8, "0 1 6 7 | 2 3 4 5" },
        { "3", "HT(0)", 7, "0 1 | 2 3 | 4 5 6" },
        { "4", "RS(0:3,0,1,4)", 8, "0 1 2 | | 3 | 4 5 6 7" },
        { "2", "S(0/4)", 10, "0 1 2 3 4 5 6 7 | 8 9" },
        { "3", "S(0/8)", 10, "0 1 2 3 4 5 6 7 | 8 9 |" },
    };
    ts_world *world = open_world(t);
    for (size_t i = 0; i < TSI_COUNT_OF(cases); i++) {
        ts_mesh *mesh = ts_mesh_describe(world, cases[i].mesh);
        const ts_layout *layout =
            layout_of(t, mesh, cases[i].placements, TS_SHAPE(cases[i].extent));
        TEST_TEXT(t, table(layout), cases[i].held);
    }
    tsi_world_unmake(world);
}

TS_TEST(layout_misfits)
{
    static const struct {
        const char *placements;
        ts_shape shape;
        const char *says;
    } cases[] = {
        { "S(2), R",
          { 2, 0, { 4, 4 } },
          "placement 0, S(2), does not fit a tensor of shape [4, 4]: it has no such dim" },
        { "R, S(1-2)", { 2, 0, { 4, 4 } }, "placement 1, S(1-2), does not fit" },
        { "S(0), R", { 0, 0, { 0 } }, "a tensor of shape []" },
        { "R, RS(0:3,4)", { 1, 0, { 8 } }, "its sizes add up to 7, and it cuts 8" },
        { "S(0), RS(0:2,2)", { 1, 0, { 7 } }, "on some coordinates, other extents on others" },
        { "R, R", { 1, 0, { -1 } }, "extent -1 of dim 0 is negative" },
        { "R, R", { 9, 0, { 0 } }, "a tensor has 0 to 8 dims, not 9" },
    };
    ts_world *world = open_world(t);
    ts_mesh *mesh = ts_mesh_describe(world, "2, 2");
    for (size_t i = 0; i < TSI_COUNT_OF(cases); i++) {
        TEST_CHECK(t, !ts_layout_get(ts_sharding_get(mesh, cases[i].placements), cases[i].shape));
        TEST_SAYS(t, ts_last_error(), cases[i].says);
    }
    TEST_CHECK(t, !ts_layout_get(NULL, TS_SHAPE(1)));
    const ts_layout *layout = layout_of(t, mesh, "S(0), RS(0:2,2)", TS_SHAPE(8));
    TEST_TEXT(t, table(layout), "0 1 | 2 3 | 4 5 | 6 7");
    tsi_world_unmake(world);
}

TS_TEST(layout_values)
{
    ts_world *world = open_world(t);
    ts_mesh *mesh = ts_mesh_describe(world, "a=2, b=3, c=4");
    const ts_layout *layout = layout_of(t, mesh, "S(1), R, P(sum)", TS_SHAPE(5, 7));
    char text[64];
    TEST_EQ(t, ts_layout_text(layout, text, sizeof text), 23);
    TEST_TEXT(t, text, "[5, 7](S(1), R, P(sum))");
    TEST_EQ(t, ts_layout_replicas(layout), 3);
    TEST_EQ(t, ts_layout_terms(layout), 4);
    TEST_CHECK(t, !layout->even && layout_of(t, mesh, "S(1), R, R", TS_SHAPE(5, 6))->even);
    TEST_CHECK(t, ts_layout_bytes(layout) > sizeof(ts_layout));
    const ts_layout *scalar = layout_of(t, mesh, "R, R, R", TS_SHAPE_SCALAR);
    int64_t coord[3] = { 1, 2, 3 }, outside[3] = { 2, 0, 0 }, none[1], global[2] = { 4, 3 },
            local[2];
    TEST_CHECK(t, ts_layout_local(scalar, coord).ndim == 0 && scalar->count == 1);
    TEST_OK(t, ts_layout_offset(scalar, coord, none));
    TEST_EQ(t, ts_layout_local(layout, outside).extent[1], 0);
    TEST_STATUS(t, ts_layout_offset(layout, outside, local), TS_ERR_ARG);
    TEST_CHECK(t, !ts_layout_to_local(layout, outside, global, local));
    TEST_CHECK(t, !ts_layout_to_local(layout, coord, global, local));
    coord[0] = 0;
    TEST_CHECK(t,
               ts_layout_to_local(layout, coord, global, local) && local[0] == 4 && local[1] == 3);
    global[1] = 7;
    TEST_STATUS(t, ts_layout_owner(layout, global, coord), TS_ERR_ARG);
    ts_interval got[4];
    layout = layout_of(t, mesh, "SS(0,3), R, R", TS_SHAPE(10));
    coord[0] = 1;
    TEST_EQ(t, ts_layout_intervals(layout, coord, 0, got, 2), 3);
    TEST_CHECK(t, got[0].begin == 2 && got[0].end == 4 && got[1].begin == 6 && got[1].end == 8);
    tsi_world_unmake(world);
}

TS_TEST(layout_one_pointer)
{
    ts_world *world = open_world(t);
    ts_mesh *a = ts_mesh_describe(world, "x=2, y=2"),
            *b = ts_mesh_describe(world, "x=2, y=2 : 0-3");
    TEST_CHECK(t, ts_sharding_get(a, "S(0), SS(1,1)") == ts_sharding_get(b, "x:S(0) y:S(1)"));
    const ts_layout *layout = layout_of(t, a, "S(0), R", TS_SHAPE(4, 4));
    TEST_CHECK(t, layout == layout_of(t, b, "x:S(0)", TS_SHAPE(4, 4)));
    TEST_CHECK(t, layout != layout_of(t, b, "x:S(0)", TS_SHAPE(4, 5)));
    ts_mesh *c = ts_mesh_describe(world, "x=2, z=2");
    TEST_CHECK(t, ts_sharding_get(a, "S(0), R") != ts_sharding_get(c, "S(0), R"));
    tsi_world_unmake(world);
}

/* Weak tables: a hundred thousand layouts that nobody keeps do not stay; one that is kept does. */
TS_TEST(layout_tables_are_weak)
{
    ts_world *world = open_world(t);
    ts_mesh *mesh = ts_mesh_describe(world, "x=2");
    const ts_layout *kept = ts_layout_retain(layout_of(t, mesh, "S(0)", TS_SHAPE(12345)));
    int64_t live = tsi_alloc_live();
    for (int64_t i = 0; i < 100000; i++)
        TEST_CHECK(t, layout_of(t, mesh, "S(0)", TS_SHAPE(i)) != NULL);
    TEST_CHECK(t, tsi_alloc_live() - live < 20000);
    TEST_CHECK(t, layout_of(t, mesh, "S(0)", TS_SHAPE(12345)) == kept);
    ts_layout_release(kept);
    tsi_world_unmake(world);
}

/* Four threads, two of them attached to ranks, ask for the same thousand layouts and get the same
 * pointers while others come and go. */
typedef struct asker {
    ts_world *world;
    ts_mesh *mesh;
    ts_rank *rank; /* or NULL */
    const ts_layout *const *want;
    int wrong;
} asker;

static void *ask(void *argument)
{
    asker *a = argument;
    tsi_rank_set_current(a->rank);
    for (int64_t i = 0; i < 20000; i++) {
        int64_t n = i * 7919 % 1000;
        const ts_sharding *s = ts_sharding_get(a->mesh, n % 2 ? "S(0)" : "SS(0,2)");
        if (ts_layout_get(s, TS_SHAPE(n, 3)) != a->want[n]) a->wrong++;
        if (!ts_layout_get(s, TS_SHAPE(i, n, 5))) a->wrong++;
    }
    tsi_rank_set_current(NULL);
    return NULL;
}

TS_TEST(layout_from_many_threads)
{
    ts_world *world = NULL;
    const ts_layout *want[1000];
    asker a[4];
    pthread_t thread[4];
    TEST_OK(t, tsi_world_make(4, 4, 0, 0, &world));
    ts_mesh *mesh = ts_mesh_describe(world, "x=2");
    for (int64_t n = 0; n < 1000; n++)
        want[n] = ts_layout_retain(layout_of(t, mesh, n % 2 ? "S(0)" : "SS(0,2)", TS_SHAPE(n, 3)));
    for (int i = 0; i < 4; i++) {
        a[i] = (asker){ world, mesh, i < 2 ? world->rank[i] : NULL, want, 0 };
        TEST_OK(t, tsi_thread_start(&thread[i], ask, &a[i], 0));
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        TEST_EQ(t, a[i].wrong, 0);
    }
    for (int64_t n = 0; n < 1000; n++)
        ts_layout_release(want[n]);
    tsi_world_unmake(world);
}

TS_TEST(layout_same_in_other_words)
{
    static const struct {
        const char *mesh, *a, *b;
        ts_shape shape;
        int same;
    } cases[] = {
        { "2, 2", "S(0)[1], S(0)[0]", "SS(0,2), S(0)", { 1, 0, { 8 } }, 1 },
        { "3, 2", "S(0)[1], S(0)[0]", "SS(0,2), S(0)", { 1, 0, { 7 } }, 0 },
        { "2, 2", "S(0), R", "R, S(0)", { 1, 0, { 8 } }, 0 },
        { "2, 1", "S(0), S(1)", "S(0), R", { 2, 0, { 8, 3 } }, 1 },
        { "2, 2", "S(0), P(sum)", "S(0), R", { 1, 0, { 8 } }, 0 },
        { "2, 2", "S(0), P(sum)", "S(0), P(avg)", { 1, 0, { 8 } }, 0 },
        { "2, 2", "S(0), R", "S(1), R", { 2, 0, { 1, 1 } }, 1 }, /* one element, and nothing */
        { "2, 2", "S(0), R", "S(1), R", { 2, 0, { 2, 1 } }, 0 },
        { "2, 2", "S(0), R", "R, S(1)", { 2, 0, { 0, 4 } }, 1 },
        { "4, 1", "S(0), R", "S(0-1), R", { 2, 0, { 8, 3 } }, 1 },
        { "4, 1", "S(0), R", "S(0-1), R", { 2, 0, { 6, 3 } }, 0 },
        { "4, 1", "SS(0-1,8), R", "S(1), R", { 2, 0, { 8, 4 } }, 1 },
        { "4, 1", "RS(0:2,2,2,1), R", "S(0), R", { 1, 0, { 7 } }, 1 },
        { "1000, 1000", "S(0)[1], S(0)[0]", "SS(0,1000), S(0)", { 1, 0, { 1000000000 } }, 1 },
    };
    ts_world *world = open_world(t);
    for (size_t i = 0; i < TSI_COUNT_OF(cases); i++) {
        ts_mesh *mesh = ts_mesh_describe(world, cases[i].mesh);
        const ts_layout *a = layout_of(t, mesh, cases[i].a, cases[i].shape);
        const ts_layout *b = layout_of(t, mesh, cases[i].b, cases[i].shape);
        TEST_SAY(t, ts_layout_same_places(a, b) == cases[i].same, "%s and %s", a->text, b->text);
        TEST_EQ(t, ts_layout_same_places(b, a), cases[i].same);
        TEST_CHECK(t, ts_layout_same_places(a, a));
    }
    tsi_world_unmake(world);
}

TS_TEST(layout_same_blocks_and_same_places)
{
    static const struct {
        const char *mesh, *a, *b;
        ts_shape shape;
        bool same;
    } cases[] = {
        { "2, 2", "S(0)[1], S(0)[0]", "SS(0,2), S(0)", { 1, 0, { 8 } }, true },
        { "2, 1", "S(0), S(1)", "S(0), R", { 2, 0, { 8, 3 } }, true },
        { "4, 1", "RS(0:2,2,2,1), R", "S(0), R", { 1, 0, { 7 } }, true },
        { "4, 1", "RS(0:1,0,0,0), R", "S(0), R", { 2, 0, { 1, 3 } }, true },
        /* the same elements in other blocks: empty ones are [0, 1] and [1, 0] */
        { "2, 2", "S(0), R", "S(1), R", { 2, 0, { 1, 1 } }, false },
        { "2, 2", "S(0), S(1)", "S(1), S(0)", { 2, 0, { 1, 1 } }, false },
        { "2, 2", "S(0), R", "R, S(1)", { 2, 0, { 0, 4 } }, false },
        { "2, 2", "S(1), R", "R, R", { 2, 0, { 0, 4 } }, false },
        { "2, 2", "S(0), R", "R, R", { 2, 0, { 0, 4 } }, true },
        { "4, 1", "S(0), R", "S(0-1), R", { 2, 0, { 8, 3 } }, false },
        { "2, 1", "S(0-1), R", "S(1-2), R", { 3, 0, { 1, 2, 1 } }, false },
    };
    ts_world *world = open_world(t);
    for (size_t i = 0; i < TSI_COUNT_OF(cases); i++) {
        ts_mesh *mesh = ts_mesh_describe(world, cases[i].mesh);
        const ts_layout *a = layout_of(t, mesh, cases[i].a, cases[i].shape);
        const ts_layout *b = layout_of(t, mesh, cases[i].b, cases[i].shape);
        TEST_CHECK(t, ts_layout_same_places(a, b));
        TEST_SAY(t, tsi_layout_same_blocks(a, b) == cases[i].same, "%s and %s", a->text, b->text);
        TEST_EQ(t, tsi_layout_same_blocks(b, a), cases[i].same);
    }
    tsi_world_unmake(world);
}

TS_TEST(layout_conversions)
{
    static const struct {
        const char *mesh, *given, *strided;
    } cases[] = {
        { "4, 3, 2", "S(0)[1], S(0)[2], S(0)[0]", "SS(0,2), SS(0,2), S(0)" },
        { "4, 3, 2", "S(0), S(0), S(1)", "S(0), S(0), S(1)" },
        { "2, 2, 2", "S(0)[1], RS(1:4,4), S(0)[0]", "SS(0,2), RS(1:4,4), S(0)" },
    };
    ts_world *world = open_world(t);
    char text[128];
    for (size_t i = 0; i < TSI_COUNT_OF(cases); i++) {
        ts_mesh *mesh = ts_mesh_describe(world, cases[i].mesh);
        const ts_sharding *s = ts_sharding_get(mesh, cases[i].given);
        const ts_sharding *strided = ts_sharding_to_strided(mesh, s, NULL);
        (void)ts_sharding_text(strided, text, sizeof text);
        TEST_TEXT(t, text, cases[i].strided);
        TEST_CHECK(t, ts_sharding_to_order(mesh, strided, NULL) == s);
    }
    static const struct {
        const char *given;
        int to_strided;
        const char *says;
    } refused[] = {
        { "SS(0,3), S(0)", 0, "SS(0,3) on axis 0 is not an order" },
        { "HT(0)[1], S(0)[0]", 1, "HT(0)[1] on axis 0 cannot be part of a conversion" },
        { "SS(0,2)[1], S(0)[0]", 1, "only plain shards without alignment can" },
        { "SS(0,2)[1], S(0)[0]", 0, "dim 0 has both strided shards and an order of its own" },
    };
    ts_mesh *mesh = ts_mesh_describe(world, "3, 2");
    for (size_t i = 0; i < TSI_COUNT_OF(refused); i++) {
        const ts_sharding *s = ts_sharding_get(mesh, refused[i].given);
        TEST_CHECK(t, !(refused[i].to_strided ? ts_sharding_to_strided
                                              : ts_sharding_to_order)(mesh, s, NULL));
        TEST_SAYS(t, ts_last_error(), refused[i].says);
    }
    const ts_sharding *s = ts_sharding_get(mesh, "S(0)[1], S(0)[0]");
    TEST_CHECK(t, ts_sharding_to_strided(mesh, s, &TS_SHAPE(6)) != NULL);
    TEST_CHECK(t, !ts_sharding_to_strided(mesh, s, &TS_SHAPE(7)));
    TEST_SAYS(t, ts_last_error(),
              "[7](S(0)[1], S(0)[0]) and (SS(0,2), S(0)) put different elements on some ranks");
    tsi_world_unmake(world);
}
