/* SPDX-License-Identifier: Apache-2.0 */
/* runtime_nodes.c - a world knows which ranks are of one node, and plans for that: four ranks on
 * one machine, or counted as nodes of 2 and 2, 3 and 1, 1 and 3 (TESSERA_NODES; scripts/mpi-tests
 * runs the first three over MPI, where memory is then shared inside nodes only). */
#include <stdlib.h>
#include <string.h>

#include "harness/test.h"
#include "tessera/tessera.h"

enum { RANKS = 4, EXTENT = 512 };

typedef struct expected {
    const char *nodes; /* TESSERA_NODES */
    int64_t node[RANKS], level_ranks;
    int32_t levels, in_node[3]; /* of the axes of "a=2, b=2", of the axis of "x=4" */
} expected;

static const expected rows[] = {
    { "", { 0, 0, 0, 0 }, 0, 1, { 1, 1, 1 } },
    { "2", { 0, 0, 1, 1 }, 2, 2, { 0, 1, 0 } },
    { "3, 1", { 0, 0, 0, 1 }, 3, 2, { 0, 0, 0 } },
    { "1, 3", { 0, 1, 1, 1 }, 1, 2, { 0, 0, 0 } },
};
enum { ROWS = sizeof rows / sizeof rows[0] };

static const expected *row_of(const char *nodes)
{
    for (int i = 0; i < ROWS; i++)
        if (strcmp(rows[i].nodes, nodes ? nodes : "") == 0) return &rows[i];
    return NULL;
}

/* GPUs of several nodes have links of their own. */
static const char *name_of(const expected *e)
{
    const char *device = getenv("TESSERA_DEVICE");
    if (e->levels == 1) return "threads";
    return device && strncmp(device, "cuda", 4) == 0 ? "8xh100" : "cluster";
}

static void check_world(test *t, const expected *e, ts_mesh *pair, ts_mesh *line)
{
    ts_world *world = ts_rank_world(t->me);
    ts_topology topology = TS_INIT(ts_topology);
    for (int64_t r = 0; r < RANKS; r++)
        TEST_EQ(t, ts_world_node(world, r), e->node[r]);
    TEST_EQ(t, ts_world_node(world, RANKS), -1);
    TEST_EQ(t, ts_world_node(world, -1), -1);
    TEST_OK(t, ts_topology_of(world, &topology));
    TEST_EQ(t, topology.level_count, e->levels);
    TEST_EQ(t, topology.level[0].ranks, e->level_ranks);
    TEST_TEXT(t, topology.name, name_of(e));
    TEST_EQ(t, ts_mesh_axis_in_node(pair, 0), e->in_node[0]);
    TEST_EQ(t, ts_mesh_axis_in_node(pair, 1), e->in_node[1]);
    TEST_EQ(t, ts_mesh_axis_in_node(line, 0), e->in_node[2]);
}

static void plan_says(test *t, ts_mesh *mesh, const char *from, const char *planner,
                      ts_plan_summary *out, char *trace, size_t size)
{
    ts_plan_options options = TS_INIT(ts_plan_options);
    ts_shape shape = TS_SHAPE(EXTENT, EXTENT);
    ts_plan *plan = NULL;
    options.planner = planner;
    TEST_OK(t, ts_plan_cached(ts_layout_get(ts_sharding_get(mesh, from), shape),
                              ts_layout_get(ts_sharding_get(mesh, "R, R"), shape), TS_DTYPE_F32,
                              &options, &plan));
    *out = (ts_plan_summary){ .struct_size = sizeof *out };
    trace[0] = '\0';
    if (!plan) return;
    ts_plan_summarise(plan, out);
    ts_plan_trace(plan, trace, size);
    ts_plan_release(plan);
}

/* In nodes first, then between them, where the axes allow it; on one node as ever. */
static void check_plans(test *t, const expected *e, ts_mesh *pair)
{
    static const char by_levels[] = "P(sum)P(sum)->P(sum)S(0)->RS(0)->RR";
    char trace[256];
    ts_plan_summary s;
    plan_says(t, pair, "P(sum), P(sum)", "auto", &s, trace, sizeof trace);
    bool levels = s.family == TS_PLAN_COLLECTIVES && strcmp(trace, by_levels) == 0;
    TEST_SAY(t, levels == (e->in_node[0] != e->in_node[1]), "nodes \"%s\": %s", e->nodes, trace);
    TEST_EQ(t, s.bytes_received, s.bytes_bound);
    plan_says(t, pair, "S(0), R", "direct", &s, trace, sizeof trace);
    TEST_EQ(t, s.family == TS_PLAN_HIERARCHICAL, e->in_node[0] != e->in_node[1]);
}

/* Small whole numbers: their sums are exact in any order, so the bits of every plan are one. */
static float term(int64_t i, int64_t rank)
{
    return (float)((i * 7 + rank * 13) % 1021 - 500);
}

static bool is_whole(test *t, ts_tensor *y, int64_t terms)
{
    ts_array view = TS_INIT(ts_array);
    if (!y || test_view(y, &view) != TS_OK) return false;
    for (int64_t i = 0; i < EXTENT * EXTENT; i++) {
        float want = 0;
        for (int64_t r = 0; r < terms; r++)
            want += term(i, r);
        if (((const float *)view.data)[i] != want) return false;
    }
    return ts_rank_status(t->me) == TS_OK;
}

/* By the world's own choice and by either family: the same bits. */
static void check_moves(test *t, ts_mesh *pair, bool sums)
{
    static const char *const planners[] = { "auto", "direct", "collectives" };
    ts_scope scope = ts_scope_open(t->me, "moves");
    ts_tensor *x =
        ts_empty(pair, TS_DTYPE_F32, TS_SHAPE(EXTENT, EXTENT), sums ? "P(sum), P(sum)" : "S(0), R");
    ts_array view = TS_INIT(ts_array);
    int64_t first = sums ? 0 : ts_mesh_coord(pair, "a") * EXTENT * EXTENT / 2;
    TEST_OK(t, test_view(x, &view));
    for (int64_t i = 0; view.data && i < ts_shape_count(&view.meta.shape); i++)
        ((float *)view.data)[i] = term(first + i, sums ? t->index : 0);
    TEST_OK(t, test_written(x, &view));
    for (int i = 0; i < 3; i++) {
        ts_move_options move = TS_INIT(ts_move_options);
        move.planner = planners[i];
        ts_tensor *y = ts_redistribute_with(x, ts_sharding_get(pair, "R, R"), &move);
        TEST_SAY(t, is_whole(t, y, sums ? RANKS : 1), "%s by %s", sums ? "sums" : "blocks",
                 planners[i]);
    }
    TEST_OK(t, ts_scope_close(scope));
}

static void check(test *t, const expected *e)
{
    ts_mesh *pair = ts_mesh_create(t->me, "a=2, b=2"), *line = ts_mesh_create(t->me, "x=4");
    TEST_CHECK(t, pair != NULL && line != NULL);
    if (!pair || !line) return;
    check_world(t, e, pair, line);
    check_plans(t, e, pair);
    check_moves(t, pair, true);
    check_moves(t, pair, false);
    ts_mesh_release(line);
    ts_mesh_release(pair);
}

TS_TEST_RANKS(nodes_of_this_world, 4)
{
    const expected *e = row_of(getenv("TESSERA_NODES"));
    TEST_CHECK(t, e != NULL);
    if (e) check(t, e);
}

/* ---- thread ranks, as if they were of several machines --------------------------------------- */

typedef struct launched {
    test *t;
    const expected *row;
} launched;

static ts_status work(ts_rank *me, void *context)
{
    const launched *l = context;
    test mine = *l->t;
    mine.me = me;
    mine.index = ts_rank_index(me);
    mine.count = ts_rank_count(me);
    check(&mine, l->row);
    return ts_rank_status(me);
}

TS_TEST(nodes_of_threads)
{
    for (int i = 0; i < ROWS; i++) {
        launched l = { t, &rows[i] };
        char error[512] = "";
        setenv("TESSERA_NODES", rows[i].nodes, 1);
        ts_status status =
            ts_launch_with(TS_OPTIONS(ts_world_options, .engine = "threads", .rank_count = RANKS),
                           work, &l, error, sizeof error);
        TEST_SAY(t, status == TS_OK, "nodes \"%s\": %s", rows[i].nodes, error);
    }
}

/* What the program says goes before what was found, and what is set later before both. */
static ts_status overridden(ts_rank *me, void *context)
{
    test *t = context;
    ts_topology topology = TS_INIT(ts_topology), other = TS_INIT(ts_topology);
    TEST_OK(t, ts_topology_of(ts_rank_world(me), &topology));
    TEST_TEXT(t, topology.name, "8xh100");
    TEST_EQ(t, topology.level[0].ranks, 8);
    TEST_OK(t, ts_topology_preset("torus", &other));
    TEST_OK(t, ts_topology_set(ts_rank_world(me), &other));
    TEST_OK(t, ts_topology_of(ts_rank_world(me), &topology));
    TEST_TEXT(t, topology.name, "torus");
    TEST_EQ(t, ts_world_node(ts_rank_world(me), 0), 0);
    return ts_rank_status(me);
}

TS_TEST(topologies_that_are_given)
{
    char error[512] = "";
    ts_world_options options = {
        .struct_size = sizeof options, .engine = "threads", .rank_count = 1, .topology = "8xh100"
    };
    setenv("TESSERA_TOPOLOGY", "ethernet", 1); /* the option goes before it */
    TEST_OK(t, ts_launch_with(&options, overridden, t, error, sizeof error));
    options.topology = NULL;
    setenv("TESSERA_TOPOLOGY", "8xh100", 1);
    TEST_OK(t, ts_launch_with(&options, overridden, t, error, sizeof error));
    setenv("TESSERA_TOPOLOGY", "8xh10", 1);
    TEST_STATUS(t, ts_launch_with(&options, overridden, t, error, sizeof error), TS_ERR_ARG);
    TEST_SAYS(t, error, "did you mean '8xh100'");
}
