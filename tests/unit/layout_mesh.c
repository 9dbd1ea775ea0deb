/* SPDX-License-Identifier: Apache-2.0 */
/* layout_mesh.c - mesh texts, their errors, derived meshes, nodes, and meshes of a million ranks.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/rank.h"
#include "harness/test.h"
#include "layout/layout.h"

typedef struct fixture {
    ts_world *world;
    char text[4096];
} fixture;

static void open_world(test *t, fixture *f, int64_t ranks)
{
    TEST_OK(t, tsi_world_make(ranks, ranks, 0, 0, &f->world));
}

static const char *text_of(fixture *f, const ts_mesh *mesh)
{
    (void)ts_mesh_text(mesh, f->text, sizeof f->text);
    return f->text;
}

/* The mesh of a rank, as ts_mesh_create would give it. */
static ts_mesh *mesh_of(test *t, fixture *f, int64_t rank, const char *axes)
{
    tsi_mesh_desc *desc;
    tsi_rank_set_current(f->world->rank[rank]);
    TEST_OK(t, tsi_mesh_desc_parse(f->world, axes, f->world->rank_count, &desc));
    return tsi_mesh_handle(f->world, f->world->rank[rank], desc);
}

static void close_world(fixture *f)
{
    tsi_rank_set_current(NULL);
    tsi_world_unmake(f->world);
}

TS_TEST(mesh_text_both_ways)
{
    static const struct {
        const char *given, *printed;
    } cases[] = {
        { "dp=2, tp=4", "dp=2, tp=4" },
        { " dp = 2 ,tp=4 ", "dp=2, tp=4" },
        { "2,4", "2, 4" },
        { "a=2, 3", "a=2, 3" },
        { "dp=2, tp=2 : 3 1 2 0", "dp=2, tp=2 : 3 1 2 0" },
        { "x=4 : 0-6/2", "x=4 : 0-6/2" },
        { "x=4 : 0 2 4 6", "x=4 : 0-6/2" },
        { "x=8 : 0-7", "x=8" },
        { "x=2, y=2 : 0 2 1 3", "x=2, y=2 : 0 2 1 3" },
        { "x=4 : 0 2 1 3", "x=4 : 0 2 1 3" },
        { "x=6 : 7 0-3, 9", "x=6 : 7 0-3 9" },
        { "x=*, y=2 : 0-7", "x=4, y=2" },
        { "x=1 : 5", "x=1 : 5" },
        { "1, 1, 1", "1, 1, 1" },
        { "x=3 : 0-8/4", "x=3 : 0-8/4" },
    };
    fixture f;
    open_world(t, &f, 1);
    for (size_t i = 0; i < TSI_COUNT_OF(cases); i++) {
        ts_mesh *mesh = ts_mesh_describe(f.world, cases[i].given);
        TEST_SAY(t, mesh, "%s: %s", cases[i].given, ts_last_error());
        TEST_TEXT(t, text_of(&f, mesh), cases[i].printed);
        ts_mesh *again = ts_mesh_describe(f.world, f.text);
        TEST_SAY(t, ts_mesh_equal(mesh, again), "%s is not itself again", cases[i].printed);
        ts_mesh_release(mesh);
        ts_mesh_release(again);
    }
    close_world(&f);
}

TS_TEST(mesh_text_errors)
{
    static const struct {
        const char *given, *says;
    } cases[] = {
        { "",
          "column 1: expected a name of at most 31 characters, a size or \"*\", found the end" },
        { "dp", "column 3: expected '=' after the axis name" },
        { "dp=", "column 4: expected a size or \"*\"" },
        { "dp=0", "column 4: expected a size of at least 1" },
        { "dp=-2", "column 4: expected a size of at least 1" },
        { "dp=2, dp=3", "axes 0 and 1 are both named \"dp\"" },
        { "dp=2 tp=3", "column 6: expected ',', ':' or the end" },
        { "*,*", "column 3: expected a size (only one axis" },
        { "dp=*", "takes what is left of a world" },
        { "1,1,1,1,1,1,1,1,1", "column 17: expected the end (a mesh has at most 8 axes)" },
        { "x=2 : 0", "its axes hold 2 ranks, 1 are listed" },
        { "x=2 : 0 0", "rank 0 occurs twice" },
        { "x=2, y=2 : 0 1 1 2", "rank 1 occurs twice" },
        { "x=2 : 5-3", "column 9: expected the last rank of the run" },
        { "x=2 : 0-3/0", "column 11: expected a step of at least 1" },
        { "x=2 : ", "expected a rank" },
        { "x=2 : -1 0", "column 7: expected a rank" },
        { "9999999999999, 9999999999999", "more than 2^60 ranks" },
        { "x=99999999999999999999", "column 3: expected a size" },
        { "a=3, b=* : 0-7", "is no multiple of the other axes' 3: 6 or 9 would be" },
        { "x=40000000 : 0-39999998 50000000", "more than 1048576 need a single run" },
        { "abcdefghijklmnopqrstuvwxyzabcdefgh=2", "column 1: expected a name of at most 31" },
    };
    fixture f;
    open_world(t, &f, 1);
    for (size_t i = 0; i < TSI_COUNT_OF(cases); i++) {
        TEST_SAY(t, !ts_mesh_describe(f.world, cases[i].given), "\"%s\" was taken", cases[i].given);
        TEST_SAYS(t, ts_last_error(), cases[i].says);
    }
    tsi_mesh_desc *desc;
    TEST_STATUS(t, tsi_mesh_desc_parse(f.world, "dp=4, tp=4", 8, &desc), TS_ERR_MESH);
    TEST_SAYS(t, ts_last_error(), "has 16 ranks, the world only 8");
    TEST_STATUS(t, tsi_mesh_desc_parse(f.world, "dp=*, tp=4", 6, &desc), TS_ERR_MESH);
    TEST_SAYS(t, ts_last_error(),
              "the size of the world, 6, is no multiple of the other axes' 4: 4 or 8 would be");
    TEST_STATUS(t, tsi_mesh_desc_parse(f.world, "x=2 : 3 8", 8, &desc), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "column 9: expected ranks below 8");
    TEST_OK(t, tsi_mesh_desc_parse(f.world, "dp=*, tp=4", 8, &desc));
    TEST_EQ(t, desc->size[0], 2);
    tsi_mesh_desc_release(desc);
    close_world(&f);
}

/* The examples of the specification: each rank gets its own part. */
TS_TEST(mesh_slices)
{
    fixture f;
    open_world(t, &f, 8);
    ts_mesh *mesh = mesh_of(t, &f, 2, "dp=2, tp=4");
    ts_mesh *tp = ts_mesh_slice(mesh, "tp"), *dp = ts_mesh_slice(mesh, "dp");
    TEST_TEXT(t, text_of(&f, tp), "tp=4");
    TEST_TEXT(t, text_of(&f, dp), "dp=2 : 2 6");
    TEST_EQ(t, ts_mesh_coord(tp, "tp"), 2);
    TEST_EQ(t, ts_mesh_coord(dp, NULL), 0);
    TEST_CHECK(t, ts_mesh_parent(tp) == mesh);
    TEST_CHECK(t, ts_mesh_slice(mesh, "dp, tp") == mesh);
    ts_mesh *turned = ts_mesh_permute(mesh, "tp, dp");
    TEST_TEXT(t, text_of(&f, turned), "tp=4, dp=2 : 0 4 1 5 2 6 3 7");
    ts_mesh *whole = ts_mesh_concat((ts_mesh *[]){ dp, tp }, 2);
    TEST_CHECK(t, ts_mesh_equal(whole, mesh));
    TEST_TEXT(t, text_of(&f, ts_mesh_concat((ts_mesh *[]){ tp, dp }, 2)),
              "tp=4, dp=2 : 0 4 1 5 2 6 3 7");
    mesh = mesh_of(t, &f, 6, "dp=2, tp=4");
    TEST_TEXT(t, text_of(&f, ts_mesh_slice(mesh, "tp")), "tp=4 : 4-7");
    mesh = mesh_of(t, &f, 5, "dp=2, cp=2, tp=2");
    ts_mesh *joined = ts_mesh_slice(mesh, "dp+cp");
    TEST_TEXT(t, text_of(&f, joined), "dp_cp=4 : 1-7/2");
    TEST_EQ(t, ts_mesh_coord(joined, "dp_cp"), 2);
    ts_mesh *outer = ts_mesh_slice(mesh, "dp+tp, cp"); /* not adjacent */
    TEST_TEXT(t, text_of(&f, outer), "dp_tp=4, cp=2 : 0 2 1 3 4 6 5 7");
    TEST_TEXT(t, text_of(&f, ts_mesh_slice(outer, "dp_tp")), "dp_tp=4 : 0 1 4 5");
    TEST_TEXT(t, text_of(&f, ts_mesh_slice(ts_mesh_slice(mesh, "cp, dp"), "dp")), "dp=2 : 1 5");
    close_world(&f);
}

TS_TEST(mesh_flatten_and_split)
{
    fixture f;
    open_world(t, &f, 8);
    ts_mesh *mesh = mesh_of(t, &f, 3, "dp=2, cp=2, tp=2");
    TEST_TEXT(t, text_of(&f, ts_mesh_flatten(mesh, NULL)), "dp_cp_tp=8");
    ts_mesh *turned = ts_mesh_permute(mesh, "tp, cp, dp");
    ts_mesh *flat = ts_mesh_flatten(turned, "all");
    TEST_TEXT(t, text_of(&f, flat), "all=8 : 0 4 2 6 1 5 3 7");
    TEST_CHECK(t, ts_mesh_equal(ts_mesh_split(flat, "all", "tp=2, cp=2, dp=*"), turned));
    ts_mesh *line = mesh_of(t, &f, 3, "x=8");
    TEST_TEXT(t, text_of(&f, ts_mesh_split(line, "x", "a=2, b=2, c=2")), "a=2, b=2, c=2");
    TEST_CHECK(t, ts_mesh_flatten(line, "x") == line);
    /* Sizes that cut through a mode: the ranks are listed, and stay in the mesh's order. */
    ts_mesh *six = mesh_of(t, &f, 3, "a=2, b=3");
    ts_mesh *odd =
        ts_mesh_split(ts_mesh_flatten(ts_mesh_permute(six, "b, a"), "ba"), "0", "c=2, d=3");
    TEST_TEXT(t, text_of(&f, odd), "c=2, d=3 : 0 3 1 4 2 5");
    TEST_EQ(t, ts_mesh_coord(odd, "c"), 0);
    TEST_EQ(t, ts_mesh_coord(odd, "d"), 1);
    close_world(&f);
}

/* Repair 34: the greatest rank without looking at each. */
TS_TEST(mesh_rank_end)
{
    static const struct {
        const char *axes;
        int64_t end;
    } row[] = { { "a=2, b=3", 6 },
                { "a=2 : 7 3", 8 },
                { "a=1", 1 },
                { "a=1000000, b=1000000000", 1000000000000000 } };
    ts_world *world = NULL;
    TEST_OK(t, tsi_world_make(1, 1, 0, 16, &world));
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        ts_mesh *mesh = ts_mesh_describe(world, row[i].axes);
        TEST_EQ(t, ts_mesh_rank_end(mesh), row[i].end);
        ts_mesh_release(mesh);
    }
    TEST_EQ(t, ts_mesh_rank_end(NULL), 0);
    tsi_world_unmake(world);
}

TS_TEST(mesh_numbered_otherwise)
{
    fixture f;
    open_world(t, &f, 6);
    ts_mesh *mesh = mesh_of(t, &f, 2, "a=2, b=2 : 3 1 2 0");
    int64_t coord[2];
    TEST_EQ(t, ts_mesh_rank_at(mesh, (int64_t[]){ 1, 0 }), 2);
    TEST_EQ(t, ts_mesh_rank_at(mesh, (int64_t[]){ 2, 0 }), -1);
    TEST_CHECK(t, ts_mesh_coord_of(mesh, 1, coord) && coord[0] == 0 && coord[1] == 1);
    TEST_CHECK(t, !ts_mesh_coord_of(mesh, 4, coord));
    TEST_TEXT(t, text_of(&f, ts_mesh_slice(mesh, "a")), "a=2 : 3 2");
    TEST_TEXT(t, text_of(&f, ts_mesh_slice(mesh, "b")), "b=2 : 2 0");
    int64_t ranks[4];
    uint32_t mask;
    TEST_OK(t, tsi_mesh_axes(mesh, "b", &mask));
    TEST_EQ(t, tsi_mesh_group_count(mesh->desc, mask), 2);
    tsi_mesh_group_ranks(mesh->desc, mask, mesh->coord, ranks);
    TEST_CHECK(t, ranks[0] == 2 && ranks[1] == 0);
    TEST_EQ(t, tsi_mesh_group_place(mesh->desc, mask, mesh->coord), 0);
    TEST_OK(t, tsi_mesh_axes(mesh, NULL, &mask));
    tsi_mesh_group_ranks(mesh->desc, mask, mesh->coord, ranks);
    TEST_CHECK(t, ranks[0] == 3 && ranks[1] == 1 && ranks[2] == 2 && ranks[3] == 0);
    TEST_EQ(t, tsi_mesh_group_place(mesh->desc, mask, mesh->coord), 2);
    close_world(&f);
}

TS_TEST(mesh_of_others)
{
    fixture f;
    open_world(t, &f, 8);
    ts_mesh *mesh = mesh_of(t, &f, 7, "a=2, b=2"); /* rank 7 is outside */
    TEST_CHECK(t, !ts_mesh_is_member(mesh));
    TEST_EQ(t, ts_mesh_coord(mesh, "a"), -1);
    ts_mesh *slice = ts_mesh_slice(mesh, "b");
    TEST_CHECK(t, slice && !ts_mesh_is_member(slice));
    const ts_sharding *s = ts_sharding_get(mesh, "S(0), R");
    ts_shape local = ts_sharding_local(s, TS_SHAPE(6, 5), 7);
    TEST_CHECK(t, local.ndim == 1 && local.extent[0] == 0);
    local = ts_sharding_local(s, TS_SHAPE(7, 5), 3);
    TEST_CHECK(t, local.ndim == 2 && local.extent[0] == 3 && local.extent[1] == 5);
    ts_mesh *self = ts_mesh_self(f.world->rank[7]);
    TEST_TEXT(t, text_of(&f, self), "self=1 : 7");
    TEST_CHECK(t, ts_mesh_is_member(self) && ts_mesh_self(f.world->rank[7]) == self);
    ts_mesh_release(self);
    ts_mesh_release(self);
    close_world(&f);
}

TS_TEST(mesh_derivation_errors)
{
    static const struct {
        const char *slice, *says;
    } cases[] = {
        { "xp", "column 1: expected an axis of the mesh (dp, tp)" },
        { "dp, dp", "column 5: expected each axis once" },
        { "dp+dp", "column 4: expected each axis once" },
        { "dp, tp, dp", "column 9: expected each axis once" },
        { "dp tp", "column 4: expected ',', '+' or the end" },
        { "", "column 1: expected an axis of the mesh" },
    };
    fixture f;
    open_world(t, &f, 8);
    ts_mesh *mesh = ts_mesh_describe(f.world, "dp=2, tp=4");
    for (size_t i = 0; i < TSI_COUNT_OF(cases); i++) {
        TEST_CHECK(t, !ts_mesh_slice(mesh, cases[i].slice));
        TEST_SAYS(t, ts_last_error(), cases[i].says);
    }
    TEST_CHECK(t, !ts_mesh_permute(mesh, "tp"));
    TEST_SAYS(t, ts_last_error(), "all axes of the mesh");
    TEST_CHECK(t, !ts_mesh_split(mesh, "tp", "a=3, b=2"));
    TEST_SAYS(t, ts_last_error(), "its size is 4, that of \"a=3, b=2\" 6");
    TEST_CHECK(t, !ts_mesh_split(mesh, "tp", "dp=2, b=2"));
    TEST_SAYS(t, ts_last_error(), "both named \"dp\"");
    TEST_CHECK(t, !ts_mesh_flatten(mesh, "no name"));
    TEST_SAYS(t, ts_last_error(), "\"no name\" is no name");
    ts_mesh *other = ts_mesh_describe(f.world, "dp=4, tp=2");
    TEST_CHECK(t, !ts_mesh_concat((ts_mesh *[]){ mesh, other }, 2));
    TEST_SAYS(t, ts_last_error(), "not derived from one mesh");
    ts_mesh *tp = ts_mesh_slice(mesh, "tp"), *flat = ts_mesh_flatten(mesh, "all");
    TEST_CHECK(t, !ts_mesh_concat((ts_mesh *[]){ tp, flat }, 2));
    TEST_SAYS(t, ts_last_error(), "overlap");
    TEST_CHECK(t, !ts_mesh_slice(NULL, "a"));
    TEST_SAYS(t, ts_last_error(), "a mesh is required");
    close_world(&f);
}

TS_TEST(mesh_nodes)
{
    fixture f;
    open_world(t, &f, 1);
    ts_mesh *mesh = ts_mesh_describe(f.world, "pp=2, dp=4, tp=8");
    TEST_EQ(t, ts_mesh_axis_in_node(mesh, 2), 0); /* unknown */
    f.world->node_ranks = 8;
    TEST_EQ(t, ts_mesh_axis_in_node(mesh, 2), 1);
    TEST_EQ(t, ts_mesh_axis_in_node(mesh, 1), 0);
    f.world->node_ranks = 32;
    TEST_EQ(t, ts_mesh_axis_in_node(mesh, 1), 1);
    TEST_EQ(t, ts_mesh_axis_in_node(mesh, 0), 0);
    ts_mesh *odd = ts_mesh_describe(f.world, "a=5, b=3");
    f.world->node_ranks = 6;
    TEST_EQ(t, ts_mesh_axis_in_node(odd, 1), 1);
    f.world->node_ranks = 4;
    TEST_EQ(t, ts_mesh_axis_in_node(odd, 1), 0); /* 3 4 5 crosses */
    f.world->node_ranks = 8;
    TEST_EQ(t, ts_mesh_axis_in_node(odd, 1), 0); /* 6 7 8 crosses, by one */
    f.world->node_ranks = 4;
    ts_mesh *listed = ts_mesh_describe(f.world, "a=2, b=2 : 3 1 6 4");
    TEST_EQ(t, ts_mesh_axis_in_node(listed, 1), 1);
    TEST_EQ(t, ts_mesh_axis_in_node(listed, 0), 0);
    close_world(&f);
}

/* From the first rank of each rank's node. */
static ts_world *world_of_nodes(test *t, fixture *f, const int32_t *first)
{
    int32_t *node = tsi_alloc_array(6, sizeof *node);
    open_world(t, f, 6);
    memcpy(node, first, 6 * sizeof *node);
    f->world->node = node;
    tsi_world_settle_nodes(f->world);
    return f->world;
}

TS_TEST(nodes_of_a_world)
{
    static const struct {
        int32_t first[6];
        int64_t ranks, node[6];
        bool listed;
        int in_node[2]; /* axes of "a=3, b=2" */
    } row[] = { { { 0, 0, 0, 0, 0, 0 }, 6, { 0, 0, 0, 0, 0, 0 }, false, { 1, 1 } },
                { { 0, 0, 2, 2, 4, 4 }, 2, { 0, 0, 1, 1, 2, 2 }, false, { 0, 1 } },
                { { 0, 0, 0, 0, 4, 4 }, 4, { 0, 0, 0, 0, 1, 1 }, false, { 0, 1 } },
                { { 0, 0, 2, 2, 2, 2 }, 2, { 0, 0, 1, 1, 1, 1 }, true, { 0, 1 } },
                { { 0, 0, 0, 3, 3, 3 }, 3, { 0, 0, 0, 1, 1, 1 }, false, { 0, 0 } },
                { { 0, 1, 0, 1, 0, 1 }, 1, { 0, 1, 0, 1, 0, 1 }, true, { 1, 0 } },
                { { 0, 1, 1, 0, 0, 5 }, 1, { 0, 1, 1, 0, 0, 2 }, true, { 0, 0 } } };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        fixture f;
        const ts_world *world = world_of_nodes(t, &f, row[i].first);
        TEST_EQ(t, world->node_ranks, row[i].ranks);
        TEST_EQ(t, world->node != NULL, row[i].listed);
        for (int64_t r = 0; r < 6; r++)
            TEST_EQ(t, ts_world_node(world, r), row[i].node[r]);
        ts_mesh *mesh = ts_mesh_describe(f.world, "a=3, b=2");
        TEST_EQ(t, ts_mesh_axis_in_node(mesh, 0), row[i].in_node[0]);
        TEST_EQ(t, ts_mesh_axis_in_node(mesh, 1), row[i].in_node[1]);
        close_world(&f);
    }
}

/* A million ranks take no more memory than eight, and neither do their slices, flattenings and
 * splits. */
TS_TEST(mesh_of_a_million)
{
    fixture f;
    open_world(t, &f, 1);
    int64_t before = tsi_alloc_live();
    ts_mesh *mesh = ts_mesh_describe(f.world, "pp=10, dp=100, cp=10, tp=100");
    ts_mesh *turned = ts_mesh_permute(mesh, "tp, pp, cp, dp");
    ts_mesh *flat = ts_mesh_flatten(turned, "all");
    ts_mesh *split = ts_mesh_split(flat, "all", "tp=100, rest=*");
    TEST_CHECK(t, tsi_alloc_live() - before < 100);
    TEST_CHECK(t, !mesh->desc->map && !turned->desc->map && !flat->desc->map && !split->desc->map);
    TEST_EQ(t, ts_mesh_size(split, "rest"), 10000);
    int64_t coord[4] = { 7, 89, 3, 42 }, back[4];
    int64_t rank = ts_mesh_rank_at(mesh, coord);
    TEST_EQ(t, rank, ((7 * 100 + 89) * 10 + 3) * 100 + 42);
    TEST_CHECK(t, ts_mesh_coord_of(turned, rank, back));
    TEST_CHECK(t, back[0] == 42 && back[1] == 7 && back[2] == 3 && back[3] == 89);
    TEST_CHECK(t, ts_mesh_coord_of(flat, rank, back));
    TEST_EQ(t, back[0], ((42 * 10 + 7) * 10 + 3) * 100 + 89);
    const ts_layout *layout = ts_layout_get(ts_sharding_get(mesh, "S(0), S(0), SS(1,4), S(1)"),
                                            TS_SHAPE(123456789, 987654321));
    TEST_SAY(t, layout, "%s", ts_last_error());
    ts_shape local = ts_layout_local(layout, coord);
    TEST_CHECK(t, local.extent[0] > 120000 && local.extent[1] > 900000);
    close_world(&f);
}

/* Every way of making handles survives a failure of any allocation, and nothing is left behind. */
TS_TEST(mesh_failing_allocations)
{
    for (int64_t n = 1; n < 200 && !test_failed(t); n++) {
        fixture f;
        open_world(t, &f, 4);
        tsi_alloc_fail_at(n);
        ts_mesh *mesh = ts_mesh_describe(f.world, "a=2, b=2 : 3 0 2 1");
        ts_mesh *slice = mesh ? ts_mesh_slice(mesh, "b") : NULL;
        ts_mesh *flat = slice ? ts_mesh_flatten(mesh, NULL) : NULL;
        ts_mesh *split = flat ? ts_mesh_split(flat, "0", "x=2, y=2") : NULL;
        const ts_sharding *s = split ? ts_sharding_get(split, "S(0)[1], S(0)[0]") : NULL;
        const ts_layout *layout = s ? ts_layout_get(s, TS_SHAPE(5, 3)) : NULL;
        s = layout ? ts_sharding_to_strided(split, s, &TS_SHAPE(8, 3)) : NULL;
        int64_t made = tsi_alloc_fail_at(0);
        if (!s) TEST_SAYS(t, ts_last_error(), "bytes");
        close_world(&f);
        if (s && made < n) return; /* all allocations have failed once */
    }
    test_fail(t, __FILE__, __LINE__, "there is no end of allocations");
}
