/* SPDX-License-Identifier: Apache-2.0 */
/* plan_choice.c - what plans say: families, refusals, budgets, the cache, topologies, memory that
 * runs out. */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/rank.h"
#include "harness/test.h"
#include "plan/cache.h"
#include "plan/plan.h"
#include "tessera/json.h"

static ts_world *world_make(test *t)
{
    ts_world *world = NULL;
    TEST_OK(t, tsi_world_make(16, 1, 0, 64, &world));
    return world;
}

static const ts_layout *layout(test *t, ts_mesh *mesh, const char *text, ts_shape shape)
{
    const ts_sharding *sharding = ts_sharding_get(mesh, text);
    const ts_layout *out = sharding ? ts_layout_get(sharding, shape) : NULL;
    TEST_SAY(t, out, "%s: %s", text, ts_last_error());
    return out;
}

typedef struct question {
    const char *mesh, *dst_mesh, *src, *dst; /* dst_mesh NULL: the same */
    ts_shape shape;
    int32_t dtype; /* 0: f32 */
} question;

static ts_status ask(test *t, ts_world *world, const question *q, const ts_plan_options *options,
                     ts_plan **out)
{
    ts_mesh *a = ts_mesh_describe(world, q->mesh);
    ts_mesh *b = ts_mesh_describe(world, q->dst_mesh ? q->dst_mesh : q->mesh);
    const ts_layout *src = layout(t, a, q->src, q->shape), *dst = layout(t, b, q->dst, q->shape);
    ts_status status = TS_ERR_INTERNAL;
    *out = NULL;
    if (src && dst) {
        status =
            ts_plan_create(src, dst, q->dtype ? (ts_dtype)q->dtype : TS_DTYPE_F32, options, out);
    }
    ts_mesh_release(a);
    ts_mesh_release(b);
    return status;
}

static void expect_family(test *t, ts_world *world, question q, const char *planner,
                          ts_plan_family family)
{
    ts_plan *plan = NULL;
    ts_plan_options options = TS_INIT(ts_plan_options);
    options.planner = planner;
    TEST_OK(t, ask(t, world, &q, &options, &plan));
    if (!plan) return;
    TEST_SAY(t, plan->family == (int32_t)family, "(%s) -> (%s) by %s is %s", q.src, q.dst, planner,
             ts_plan_family_name((ts_plan_family)plan->family));
    ts_plan_release(plan);
}

TS_TEST(families)
{
    ts_world *world = world_make(t);
    question same = { .mesh = "2, 4", .src = "S(0), R", .dst = "S(0), R", .shape = TS_SHAPE(8, 8) };
    expect_family(t, world, same, "auto", TS_PLAN_NONE);
    expect_family(t, world, same, "direct", TS_PLAN_NONE);
    /* An order and the strided shard that spells it put the same elements in the same places. */
    question order = {
        .mesh = "2, 4", .src = "S(0)[1], S(0)[0]", .dst = "SS(0,4), S(0)", .shape = TS_SHAPE(16)
    };
    expect_family(t, world, order, "auto", TS_PLAN_NONE);
    question slice = {
        .mesh = "2, 4", .src = "S(0), R", .dst = "S(0), S(1)", .shape = TS_SHAPE(8, 8)
    };
    expect_family(t, world, slice, "auto", TS_PLAN_LOCAL);
    expect_family(t, world, slice, "collectives", TS_PLAN_LOCAL);
    question unit = { .mesh = "1, 4", .src = "P(sum), R", .dst = "S(0), R", .shape = TS_SHAPE(8) };
    expect_family(t, world, unit, "auto", TS_PLAN_NONE);
    question move = {
        .mesh = "2, 4", .src = "S(0), S(1)", .dst = "S(1), S(0)", .shape = TS_SHAPE(64, 64)
    };
    expect_family(t, world, move, "auto", TS_PLAN_DIRECT);
    expect_family(t, world, move, "collectives", TS_PLAN_COLLECTIVES);
    question partial = {
        .mesh = "2, 4", .src = "S(0), R", .dst = "S(0), P(sum)", .shape = TS_SHAPE(8)
    };
    expect_family(t, world, partial, "auto", TS_PLAN_LOCAL);
    question span = { .mesh = "4", .src = "S(0-1)", .dst = "R", .shape = TS_SHAPE(6, 7) };
    expect_family(t, world, span, "auto", TS_PLAN_DIRECT);
    question cross = {
        .mesh = "4", .dst_mesh = "3", .src = "S(0)", .dst = "S(0)", .shape = TS_SHAPE(12)
    };
    expect_family(t, world, cross, "auto", TS_PLAN_DIRECT);
    question empty = { .mesh = "4", .src = "S(0)", .dst = "R", .shape = TS_SHAPE(0, 7) };
    expect_family(t, world, empty, "auto", TS_PLAN_LOCAL);
    tsi_world_unmake(world);
}

/* An axis of one rank combines nothing and moves nothing, whatever stands on it. */
TS_TEST(axes_of_one)
{
    static const char *const planners[] = { "auto", "collectives", "direct", "greedy", "graph" };
    static const char *const pairs[][2] = { { "R, P(band)", "R, R" },
                                            { "R, R", "R, P(and)" },
                                            { "R, S(0)", "R, P(max)" },
                                            { "R, P(band)", "R, P(prod)" },
                                            { "S(0), S(1)", "S(0), R" } };
    ts_world *world = world_make(t);
    for (size_t i = 0; i < TSI_COUNT_OF(pairs); i++) {
        for (size_t p = 0; p < TSI_COUNT_OF(planners); p++) {
            question q = { .mesh = "4, 1",
                           .src = pairs[i][0],
                           .dst = pairs[i][1],
                           .shape = TS_SHAPE(6, 5),
                           .dtype = TS_DTYPE_C128 };
            ts_plan_options options = TS_INIT(ts_plan_options);
            options.planner = planners[p];
            ts_plan *plan = NULL;
            TEST_OK(t, ask(t, world, &q, &options, &plan));
            if (!plan) continue;
            TEST_SAY(t, plan->bytes_received == 0 && plan->time_us < 1,
                     "(%s) -> (%s) by %s receives %lld in %g us", q.src, q.dst, planners[p],
                     (long long)plan->bytes_received, plan->time_us);
            ts_plan_release(plan);
        }
    }
    tsi_world_unmake(world);
}

/* A cut in multiples is not the plain cut, and a strided cut that spells an order is that order. */
TS_TEST(other_cuts)
{
    ts_world *world = world_make(t);
    ts_plan_options options = TS_INIT(ts_plan_options);
    options.planner = "graph";
    question aligned = { .mesh = "7", .src = "S(0)", .dst = "S(0/3)", .shape = TS_SHAPE(9) };
    ts_plan *plan = NULL;
    TEST_OK(t, ask(t, world, &aligned, &options, &plan));
    TEST_CHECK(t, plan && plan->bytes_received >= plan->bytes_bound && plan->step_count > 0);
    ts_plan_release(plan);
    question spelt = {
        .mesh = "2, 4", .src = "P(sum), R", .dst = "SS(0,4), S(0)", .shape = TS_SHAPE(4)
    };
    TEST_OK(t, ask(t, world, &spelt, NULL, &plan));
    TEST_CHECK(t, plan && plan->bytes_received == plan->bytes_bound);
    ts_plan_release(plan);
    tsi_world_unmake(world);
}

static void expect_refusal(test *t, ts_world *world, question q, const ts_plan_options *options,
                           ts_status status, const char *words)
{
    ts_plan *plan = (ts_plan *)world;
    TEST_STATUS(t, ask(t, world, &q, options, &plan), status);
    TEST_CHECK(t, plan == NULL);
    TEST_SAYS(t, ts_last_error(), words);
    ts_plan_release(plan);
}

TS_TEST(refusals)
{
    ts_world *world = world_make(t);
    ts_shape shape = TS_SHAPE(8, 8);
    question q = { .mesh = "a=2, b=4", .src = "S(0), R", .dst = "P(sum), R", .shape = shape };
    expect_refusal(t, world, q, NULL, TS_ERR_SHAPE, "axis 'a' cannot go from S(0) to P(sum)");
    q.src = "P(max), R";
    expect_refusal(t, world, q, NULL, TS_ERR_SHAPE, "one kind of partial is not another");
    q.dst = "R, R";
    q.dtype = TS_DTYPE_C64;
    expect_refusal(t, world, q, NULL, TS_ERR_DTYPE, "max has no meaning for c64");
    q.src = "P(norm:2), R";
    q.dtype = TS_DTYPE_I64;
    expect_refusal(t, world, q, NULL, TS_ERR_DTYPE, "norm has no meaning for i64");
    ts_plan_options options = TS_INIT(ts_plan_options);
    options.planner = "gready";
    q = (question){ .mesh = "a=2, b=4", .src = "S(0), R", .dst = "R, R", .shape = shape };
    expect_refusal(t, world, q, &options, TS_ERR_ARG, "did you mean 'greedy'?");
    options.planner = "greedy";
    q.src = "S(0)[1], S(0)[0]";
    expect_refusal(t, world, q, &options, TS_ERR_ARG, "left to right");
    q.src = "R, P(min)";
    q.dst = "P(max), R";
    expect_refusal(t, world, q, &options, TS_ERR_ARG, "would mix kinds of partial on its way");
    q.src = "S(0)[1], S(0)[0]";
    q.dst = "R, R";
    q.dst_mesh = "4";
    q.dst = "R";
    expect_refusal(t, world, q, &options, TS_ERR_MESH, "one mesh");
    options.planner = "collectives";
    expect_refusal(t, world, q, &options, TS_ERR_MESH, "one mesh");
    options.planner = NULL;
    options.forbid = TS_PLAN_NO_COLLECTIVES | TS_PLAN_NO_DIRECT;
    expect_refusal(t, world, q, &options, TS_ERR_ARG, "forbidden");
    tsi_world_unmake(world);
}

TS_TEST(shapes_that_differ)
{
    ts_world *world = world_make(t);
    ts_mesh *mesh = ts_mesh_describe(world, "4");
    const ts_layout *a = layout(t, mesh, "S(0)", TS_SHAPE(8, 8)),
                    *b = layout(t, mesh, "R", TS_SHAPE(8, 9));
    ts_plan *plan = NULL;
    TEST_STATUS(t, ts_plan_create(a, b, TS_DTYPE_F32, NULL, &plan), TS_ERR_SHAPE);
    TEST_SAYS(t, ts_last_error(), "different shapes");
    TEST_STATUS(t, ts_plan_create(NULL, b, TS_DTYPE_F32, NULL, &plan), TS_ERR_NULL);
    ts_mesh_release(mesh);
    tsi_world_unmake(world);
}

TS_TEST(budget)
{
    ts_world *world = world_make(t);
    question q = {
        .mesh = "2, 4", .src = "S(0), S(1)", .dst = "S(1), S(0)", .shape = TS_SHAPE(64, 64)
    };
    ts_plan_options options = TS_INIT(ts_plan_options);
    options.planner = "direct";
    options.staged = 1;
    ts_plan *plan = NULL;
    TEST_OK(t, ask(t, world, &q, &options, &plan));
    int64_t whole = plan->peak_bytes;
    TEST_CHECK(t, whole > 0);
    ts_plan_release(plan);
    for (int64_t part = 2; part <= 16; part *= 2) {
        options.budget_bytes = whole / part;
        TEST_OK(t, ask(t, world, &q, &options, &plan));
        ts_plan_summary s = TS_INIT(ts_plan_summary);
        ts_plan_summarise(plan, &s);
        TEST_CHECK(t, s.peak_bytes <= whole / part && s.peak_bytes > 0);
        TEST_CHECK(t, s.rounds >= part);
        TEST_EQ(t, s.bytes_received, s.bytes_bound);
        ts_plan_release(plan);
    }
    options.budget_bytes = 3;
    expect_refusal(t, world, q, &options, TS_ERR_MEMORY, "too small");
    options.planner = "collectives";
    options.budget_bytes = 16;
    expect_refusal(t, world, q, &options, TS_ERR_MEMORY, "budget is 16");
    tsi_world_unmake(world);
}

TS_TEST(cache)
{
    ts_world *world = world_make(t);
    ts_mesh *mesh = ts_mesh_describe(world, "2, 4");
    const ts_layout *a = layout(t, mesh, "S(0), R", TS_SHAPE(8, 8)),
                    *b = layout(t, mesh, "R, S(0)", TS_SHAPE(8, 8));
    ts_plan *first = NULL, *second = NULL, *third = NULL;
    ts_plan_cache_stats stats;
    TEST_OK(t, ts_plan_cached(a, b, TS_DTYPE_F32, NULL, &first));
    TEST_OK(t, ts_plan_cached(a, b, TS_DTYPE_F32, NULL, &second));
    TEST_CHECK(t, first && first == second);
    TEST_OK(t, ts_plan_cached(a, b, TS_DTYPE_BF16, NULL, &third));
    TEST_CHECK(t, third != first);
    ts_plan_release(third);
    ts_topology topology;
    TEST_OK(t, ts_topology_preset("8xh100", &topology));
    TEST_OK(t, ts_topology_set(world, &topology));
    TEST_OK(t, ts_plan_cached(a, b, TS_DTYPE_F32, NULL, &third));
    TEST_CHECK(t, third != first); /* a new generation of plans */
    ts_plan_release(third);
    ts_plan_options options = TS_INIT(ts_plan_options);
    options.topology = &topology;
    TEST_OK(t, ts_plan_cached(a, b, TS_DTYPE_F32, &options, &second));
    TEST_OK(t, ts_plan_cached(a, b, TS_DTYPE_F32, &options, &third));
    TEST_CHECK(t, second == third);
    ts_plan_release(third);
    TEST_OK(t, ts_plan_cache_statistics(world, &stats));
    TEST_EQ(t, stats.hits, 2);
    TEST_EQ(t, stats.misses, 4);
    TEST_EQ(t, stats.live, 4);
    TEST_OK(t, ts_plan_cache_clear(world));
    TEST_OK(t, ts_plan_cache_statistics(world, &stats));
    TEST_EQ(t, stats.live, 0);
    ts_plan_release(first);
    ts_plan_release(first);
    ts_plan_release(second);
    ts_mesh_release(mesh);
    tsi_world_unmake(world);
}

TS_TEST(cache_is_bounded)
{
    ts_world *world = world_make(t);
    ts_mesh *mesh = ts_mesh_describe(world, "2, 4");
    ts_plan_cache_stats stats;
    for (int64_t i = 1; i <= 3000; i++) {
        ts_plan *plan = NULL;
        TEST_OK(t,
                ts_plan_cached(layout(t, mesh, "S(0), R", TS_SHAPE(i)),
                               layout(t, mesh, "R, S(0)", TS_SHAPE(i)), TS_DTYPE_F32, NULL, &plan));
        ts_plan_release(plan);
    }
    TEST_OK(t, ts_plan_cache_statistics(world, &stats));
    TEST_CHECK(t, stats.live <= stats.capacity && stats.live > stats.capacity / 2);
    TEST_EQ(t, stats.live + stats.evicted, 3000);
    ts_mesh_release(mesh);
    tsi_world_unmake(world);
}

TS_TEST(a_ranks_own_table)
{
    ts_world *world = world_make(t);
    ts_mesh *mesh = ts_mesh_describe(world, "2, 4");
    const ts_layout *a = layout(t, mesh, "S(0), R", TS_SHAPE(8)),
                    *b = layout(t, mesh, "R, R", TS_SHAPE(8));
    ts_plan *first = NULL, *second = NULL;
    TEST_OK(t, tsi_plan_for(world->rank[0], a, b, TS_DTYPE_F32, false, &first));
    TEST_OK(t, tsi_plan_for(world->rank[0], a, b, TS_DTYPE_F32, false, &second));
    TEST_CHECK(t, first && first == second);
    TEST_OK(t, tsi_plan_for(world->rank[0], a, b, TS_DTYPE_F32, true, &second));
    TEST_CHECK(t, first != second);
    ts_plan_cache_stats stats;
    TEST_OK(t, ts_plan_cache_statistics(world, &stats));
    TEST_EQ(t, stats.hits, 1);
    TEST_OK(t, ts_plan_cache_clear(world));
    TEST_OK(t, tsi_plan_for(world->rank[0], a, b, TS_DTYPE_F32, false, &second));
    TEST_CHECK(t, second->family == TS_PLAN_COLLECTIVES || second->family == TS_PLAN_DIRECT);
    ts_mesh_release(mesh);
    tsi_world_unmake(world);
}

/* What a world takes for its links: one node as ever; of several the host's share a link. */
TS_TEST(topologies_that_are_found)
{
    ts_topology preset, found;
    TEST_OK(t, ts_topology_preset("threads", &preset));
    for (int64_t node = 0; node <= 8; node += 4) {
        TEST_OK(t, tsi_topology_for(node ? "cuda" : "cpu", node, 4, &found));
        TEST_TEXT(t, found.name, "threads");
        TEST_EQ(t, tsi_topology_hash(&found), tsi_topology_hash(&preset));
    }
    TEST_OK(t, tsi_topology_for("cpu", 4, 16, &found));
    TEST_TEXT(t, found.name, "cluster");
    TEST_EQ(t, found.level[0].ranks, 4);
    TEST_CHECK(t, found.level[1].bandwidth_gib_s == 2.6 / 4);
    TEST_OK(t, tsi_topology_for("cuda", 4, 16, &found));
    TEST_TEXT(t, found.name, "8xh100");
    TEST_EQ(t, found.level[0].ranks, 4);
    TEST_CHECK(t, found.level[1].bandwidth_gib_s == 43);
    TEST_OK(t, tsi_topology_check(&found));
}

TS_TEST(topology_files)
{
    for (int i = 0; tsi_topology_presets[i]; i++) {
        ts_topology preset, back;
        char text[4096], path[] = "/tmp/tessera_topology_XXXXXX";
        TEST_OK(t, ts_topology_load(tsi_topology_presets[i], &preset));
        TEST_CHECK(t, ts_topology_json(&preset, text, sizeof text) < sizeof text);
        TEST_OK(t, ts_topology_parse(text, &back));
        TEST_CHECK(t, memcmp(&preset, &back, sizeof back) == 0);
        int file = mkstemp(path);
        TEST_CHECK(t, file >= 0);
        close(file);
        TEST_OK(t, ts_topology_save(&preset, path));
        TEST_OK(t, ts_topology_load(path, &back));
        TEST_CHECK(t, memcmp(&preset, &back, sizeof back) == 0);
        TEST_EQ(t, tsi_topology_hash(&preset), tsi_topology_hash(&back));
        unlink(path);
    }
    ts_topology topology;
    TEST_STATUS(t, ts_topology_load("8xh10", &topology), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "did you mean '8xh100'?");
    TEST_STATUS(t, ts_topology_load("no/such/file.json", &topology), TS_ERR_IO);
    TEST_STATUS(t, ts_topology_parse("{\"base_u\": 1}", &topology), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "base_us");
    TEST_STATUS(
        t, ts_topology_parse("{\"levels\": [{\"ranks\": 8, \"bandwidth_gib_s\": 0}]}", &topology),
        TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "bandwidth above 0");
}

TS_TEST(axis_constants)
{
    ts_world *world = world_make(t);
    ts_mesh *mesh = ts_mesh_describe(world, "pp=2, dp=2, tp=4");
    ts_topology topology;
    tsi_links links;
    TEST_OK(t, ts_topology_preset("8xh100", &topology));
    tsi_links_make(&topology, mesh->desc, 16, &links);
    TEST_CHECK(t, links.per_byte[0] > links.per_byte[1] && links.per_byte[1] == links.per_byte[2]);
    topology.axis_count = 1;
    topology.axis[0] = (ts_topology_axis){ "tp", 9, 1 };
    tsi_links_make(&topology, mesh->desc, 16, &links);
    TEST_CHECK(t, links.latency[2] == 9 && links.per_byte[2] > links.per_byte[0]);
    tsi_links_group group = tsi_links_of(&links, 7);
    TEST_CHECK(t, group.n == 16 && group.latency == 9);
    ts_mesh_release(mesh);
    tsi_world_unmake(world);
}

/* Little is summed by a tree, much by a ring; what is gathered goes round, and so does everything
 * with the constants of the reference. */
TS_TEST(small_sums_go_by_trees)
{
    ts_world *world = world_make(t);
    ts_mesh *mesh = ts_mesh_describe(world, "dp=1024");
    static const char *const presets[] = { "8xh100", "ethernet", "reference-cpu" };
    for (int i = 0; i < 3; i++) {
        ts_topology topology;
        tsi_links links;
        TEST_OK(t, ts_topology_preset(presets[i], &topology));
        tsi_links_make(&topology, mesh->desc, 1024, &links);
        tsi_links_group group = tsi_links_of(&links, 1);
        double round = tsi_time_two_rounds(&links, &group, 16),
               sum = tsi_time_all_reduce(&links, &group, 16);
        TEST_SAY(t, i == 2 ? sum == round : sum < round / 50, "%s: %g and %g us", presets[i], sum,
                 round);
        TEST_CHECK(t, tsi_time_all_gather(&links, &group, 1024 * 16, false) > round / 2.1);
        TEST_CHECK(t, tsi_time_all_reduce(&links, &group, 1e9) ==
                          tsi_time_two_rounds(&links, &group, 1e9));
    }
    ts_mesh_release(mesh);
    tsi_world_unmake(world);
}

/* A sum of one number over many ranks is one step, and the plan is the tree's. */
TS_TEST(a_number_of_many_ranks)
{
    ts_world *world = world_make(t);
    ts_mesh *mesh = ts_mesh_describe(world, "dp=1024");
    ts_topology topology;
    ts_plan_options options = TS_INIT(ts_plan_options);
    ts_plan_summary said = TS_INIT(ts_plan_summary);
    ts_plan *plan = NULL;
    TEST_OK(t, ts_topology_preset("8xh100", &topology));
    options.topology = &topology;
    TEST_OK(t, ts_plan_create(layout(t, mesh, "P(sum)", TS_SHAPE(1)),
                              layout(t, mesh, "R", TS_SHAPE(1)), TS_DTYPE_F32, &options, &plan));
    ts_plan_summarise(plan, &said);
    TEST_EQ(t, said.family, TS_PLAN_COLLECTIVES);
    TEST_SAY(t, said.time_us > 70 && said.time_us < 100, "%g us", said.time_us);
    ts_plan_release(plan);
    ts_mesh_release(mesh);
    tsi_world_unmake(world);
}

TS_TEST(json_and_text)
{
    ts_world *world = world_make(t);
    question q = {
        .mesh = "a=2, b=4", .src = "S(1), P(sum)", .dst = "R, S(1)", .shape = TS_SHAPE(1024, 128)
    };
    static const char *const planners[] = { "auto", "collectives", "direct", "greedy", "graph" };
    for (int i = 0; i < 5; i++) {
        ts_plan_options options = TS_INIT(ts_plan_options);
        options.planner = planners[i];
        ts_plan *plan = NULL;
        TEST_OK(t, ask(t, world, &q, &options, &plan));
        char text[8192];
        TEST_CHECK(t, ts_plan_json(plan, text, sizeof text) < sizeof text);
        ts_json_document *document = NULL;
        TEST_OK(t, ts_json_parse("plan", text, strlen(text), &document));
        const ts_json *root = ts_json_root(document);
        static const char *const fields[] = { "family",      "steps",   "bytes_received",
                                              "bytes_bound", "time_us", "peak_bytes",
                                              "why",         "other" };
        for (int f = 0; f < 8; f++)
            TEST_SAY(t, ts_json_member(root, fields[f]), "%s: %s", planners[i], fields[f]);
        const ts_json *steps = ts_json_member(root, "steps"),
                      *last = ts_json_item(steps, ts_json_count(steps) - 1);
        TEST_EQ(t, ts_json_count(ts_json_member(last, "to")), 2);
        TEST_TEXT(t, ts_json_text(ts_json_item(ts_json_member(last, "to"), 1), ""), "S(1)");
        int64_t bytes = 0;
        for (int64_t s = 0; s < ts_json_count(steps); s++) {
            bytes += ts_json_int(ts_json_member(ts_json_item(steps, s), "bytes_received"), 0);
        }
        TEST_EQ(t, bytes, plan->bytes_received);
        ts_json_release(document);
        ts_plan_text(plan, text, sizeof text);
        TEST_SAYS(t, text, "why:");
        ts_plan_release(plan);
    }
    tsi_world_unmake(world);
}

/* The hierarchical all-reduce of two levels is found, and receives the bound. */
TS_TEST(hierarchical_all_reduce)
{
    ts_world *world = world_make(t);
    question q = {
        .mesh = "2, 8", .src = "P(sum), P(sum)", .dst = "R, R", .shape = TS_SHAPE(4096, 4096)
    };
    ts_topology topology;
    TEST_OK(t, ts_topology_preset("8xh100", &topology));
    ts_plan_options options = TS_INIT(ts_plan_options);
    options.planner = "collectives";
    options.topology = &topology;
    ts_plan *plan = NULL;
    TEST_OK(t, ask(t, world, &q, &options, &plan));
    char trace[256];
    ts_plan_trace(plan, trace, sizeof trace);
    TEST_TEXT(t, trace, "P(sum)P(sum)->P(sum)S(0)->RS(0)->RR");
    TEST_EQ(t, plan->bytes_received, plan->bytes_bound);
    TEST_EQ(t, plan->bytes_bound, (int64_t)120 * 16 * 1024 * 1024);
    ts_plan_release(plan);
    tsi_world_unmake(world);
}

/* Every allocation of a plan may fail: a status, no output, nothing lost. */
TS_TEST(memory_runs_out)
{
    ts_world *world = world_make(t);
    ts_topology topology;
    TEST_OK(t, ts_topology_preset("8xh100", &topology));
    ts_mesh *mesh = ts_mesh_describe(world, "2, 3, 2");
    const ts_layout *a = layout(t, mesh, "S(0), P(sum), S(1)", TS_SHAPE(7, 9));
    const ts_layout *b = layout(t, mesh, "S(1), S(0), S(0)", TS_SHAPE(7, 9));
    static const char *const planners[] = { "auto", "collectives", "direct", "graph" };
    for (int i = 0; i < 4; i++) {
        ts_plan_options options = TS_INIT(ts_plan_options);
        options.planner = planners[i];
        options.topology = &topology;
        options.staged = 1;
        ts_plan *plan = NULL;
        TEST_OK(t, ts_plan_create(a, b, TS_DTYPE_F32, &options,
                                  &plan)); /* layouts on the way are interned now */
        ts_plan_release(plan);
        int64_t live = tsi_alloc_live();
        ts_status status = TS_ERR_MEMORY;
        int64_t n = 1;
        for (; status != TS_OK && n < 500; n++) {
            tsi_alloc_fail_at(n);
            status = ts_plan_create(a, b, TS_DTYPE_F32, &options, &plan);
            tsi_alloc_fail_at(0);
            if (status != TS_OK)
                TEST_SAY(t, plan == NULL && status == TS_ERR_MEMORY, "%s", ts_status_name(status));
            ts_plan_release(plan);
            TEST_SAY(t, tsi_alloc_live() == live, "%s: allocation %lld failed, %lld are lost",
                     planners[i], (long long)n, (long long)(tsi_alloc_live() - live));
        }
        TEST_CHECK(t, n > 3 && status == TS_OK);
    }
    ts_mesh_release(mesh);
    tsi_world_unmake(world);
}
