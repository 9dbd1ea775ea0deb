/* SPDX-License-Identifier: Apache-2.0 */
/* plan_oracle.c - every row of tests/golden/plans.jsonl: the reference's steps and bytes by name,
 * and what ours do with the same question: never more bytes than either, the bound where the
 * exchange is direct. */
#include "base/alloc.h"
#include "base/rank.h"
#include "harness/test.h"
#include "plan/plan.h"
#include "tessera/json.h"

typedef struct row {
    test *t;
    int line;
    const ts_json *json;
    const ts_layout *src, *dst;
    ts_topology topology;
} row;

static void list_text(const ts_json *list, char *out, size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    for (int64_t i = 0; i < ts_json_count(list); i++) {
        const ts_json *item = ts_json_item(list, i);
        const char *comma = i ? ", " : "";
        if (ts_json_kind_of(item) == TS_JSON_INT) {
            used += (size_t)snprintf(out + used, size - used, "%s%lld", comma,
                                     (long long)ts_json_int(item, -1));
        } else {
            used +=
                (size_t)snprintf(out + used, size - used, "%s%s", comma, ts_json_text(item, "?"));
        }
    }
}

static ts_plan *plan_by(const row *r, const char *planner, const ts_topology *topology)
{
    ts_plan *plan = NULL;
    ts_plan_options options = TS_INIT(ts_plan_options);
    options.planner = planner;
    options.topology = topology;
    ts_status status = ts_plan_create(r->src, r->dst, TS_DTYPE_F32, &options, &plan);
    TEST_SAY(r->t, status == TS_OK, "line %d, %s: %s", r->line, planner, ts_last_error());
    return plan;
}

static int64_t check_reference(const row *r, const char *planner)
{
    const ts_json *want = ts_json_member(ts_json_member(r->json, "reference"), planner);
    const ts_json *steps = ts_json_member(want, "steps");
    int64_t bytes = ts_json_int(ts_json_member(want, "bytes_received"), -1);
    ts_plan *plan = plan_by(r, planner, &r->topology);
    if (!plan) return bytes;
    TEST_SAY(r->t, plan->step_count == ts_json_count(steps), "line %d, %s: %d steps", r->line,
             planner, plan->step_count);
    TEST_SAY(r->t, plan->bytes_received == bytes, "line %d, %s: %lld bytes, wanted %lld", r->line,
             planner, (long long)plan->bytes_received, (long long)bytes);
    tsi_state from = plan->first;
    for (int32_t i = 0; i < plan->step_count && i < ts_json_count(steps); i++) {
        const ts_json *step = ts_json_item(steps, i);
        int32_t axis = (int32_t)ts_json_int(ts_json_item(step, 0), -1);
        tsi_text a = { 0 }, b = { 0 };
        tsi_space_place_text(&plan->space, from, axis, false, &a);
        tsi_space_place_text(&plan->space, plan->step[i].to, axis, false, &b);
        TEST_SAY(r->t,
                 plan->step[i].axes == 1u << axis &&
                     !strcmp(a.data, ts_json_text(ts_json_item(step, 1), "")) &&
                     !strcmp(b.data, ts_json_text(ts_json_item(step, 2), "")),
                 "line %d, %s: step %d is axes %x, %s to %s", r->line, planner, i,
                 plan->step[i].axes, a.data, b.data);
        tsi_text_release(&a);
        tsi_text_release(&b);
        from = plan->step[i].to;
    }
    ts_plan_release(plan);
    return bytes;
}

static void check_ours(const row *r, int64_t least, const ts_topology *topology)
{
    ts_plan *automatic = plan_by(r, "auto", topology), *direct = plan_by(r, "direct", topology);
    ts_plan *collectives = plan_by(r, "collectives", topology);
    if (automatic && direct && collectives) {
        TEST_SAY(r->t, automatic->bytes_received <= least,
                 "line %d on %s: auto receives %lld, reference %lld", r->line, topology->name,
                 (long long)automatic->bytes_received, (long long)least);
        TEST_SAY(r->t, automatic->bytes_received <= collectives->bytes_received,
                 "line %d: auto above collectives", r->line);
        TEST_SAY(r->t, direct->bytes_received == direct->bytes_bound, "line %d: direct", r->line);
        TEST_SAY(r->t, direct->bytes_bound <= least,
                 "line %d: bound %lld above the reference's %lld", r->line,
                 (long long)direct->bytes_bound, (long long)least);
        if (automatic->family == TS_PLAN_DIRECT) {
            TEST_SAY(r->t, automatic->bytes_received == automatic->bytes_bound, "line %d: bound",
                     r->line);
        }
        if (collectives->bytes_received == direct->bytes_received) {
            TEST_SAY(r->t, automatic->time_us <= collectives->time_us + 1e-6, "line %d: slower",
                     r->line);
        }
    }
    ts_plan_release(automatic);
    ts_plan_release(direct);
    ts_plan_release(collectives);
}

static void check_row(row *r, ts_world *world)
{
    char mesh_text[64], src[128], dst[128];
    list_text(ts_json_member(r->json, "mesh"), mesh_text, sizeof mesh_text);
    list_text(ts_json_member(r->json, "src"), src, sizeof src);
    list_text(ts_json_member(r->json, "dst"), dst, sizeof dst);
    const ts_json *tensor = ts_json_member(r->json, "tensor");
    ts_shape shape = { .ndim = (int32_t)ts_json_count(tensor) };
    for (int32_t d = 0; d < shape.ndim; d++)
        shape.extent[d] = ts_json_int(ts_json_item(tensor, d), -1);
    ts_mesh *mesh = ts_mesh_describe(world, mesh_text);
    const ts_sharding *a = ts_sharding_get(mesh, src), *b = ts_sharding_get(mesh, dst);
    r->src = ts_layout_get(a, shape);
    r->dst = ts_layout_get(b, shape);
    TEST_SAY(r->t, r->src && r->dst, "line %d: %s", r->line, ts_last_error());
    if (r->src && r->dst) {
        int64_t greedy = check_reference(r, "greedy"), graph = check_reference(r, "graph");
        int64_t least = greedy < graph ? greedy : graph;
        static const char *const presets[] = { "reference-cpu", "8xh100", "threads", "ethernet" };
        for (int i = 0; i < 4; i++) {
            ts_topology topology;
            TEST_OK(r->t, ts_topology_preset(presets[i], &topology));
            check_ours(r, least, &topology);
        }
    }
    ts_mesh_release(mesh);
}

TS_TEST_LONG(all_rows, 120)
{
    size_t length;
    char *text = test_read_file(t, "tests/golden/plans.jsonl", &length);
    ts_world *world = NULL;
    TEST_OK(t, tsi_world_make(1, 1, 0, 64, &world));
    row r = { .t = t };
    TEST_OK(t, ts_topology_preset("reference-cpu", &r.topology));
    for (char *line = text; line && *line;) {
        char *end = strchr(line, '\n');
        size_t size = end ? (size_t)(end - line) : strlen(line);
        ts_json_document *document = NULL;
        r.line++;
        TEST_OK(t, ts_json_parse("plans.jsonl", line, size, &document));
        r.json = ts_json_root(document);
        check_row(&r, world);
        ts_json_release(document);
        line = end ? end + 1 : NULL;
    }
    TEST_EQ(t, r.line, 227);
    tsi_world_unmake(world);
    tsi_free(text);
}

static void check_trace(test *t, const char *src, const char *dst, const char *want)
{
    ts_world *world = NULL;
    TEST_OK(t, tsi_world_make(1, 1, 0, 64, &world));
    ts_mesh *mesh = ts_mesh_describe(world, "2, 2, 2");
    const ts_layout *a = ts_layout_get(ts_sharding_get(mesh, src), TS_SHAPE(8, 8, 8));
    const ts_layout *b = ts_layout_get(ts_sharding_get(mesh, dst), TS_SHAPE(8, 8, 8));
    ts_topology topology;
    TEST_OK(t, ts_topology_preset("reference-cpu", &topology));
    ts_plan_options options = TS_INIT(ts_plan_options);
    options.planner = "graph";
    options.topology = &topology;
    ts_plan *plan = NULL;
    TEST_OK(t, ts_plan_create(a, b, TS_DTYPE_F32, &options, &plan));
    char trace[512];
    if (plan) {
        TEST_EQ(t, ts_plan_trace(plan, trace, sizeof trace), strlen(want));
        TEST_TEXT(t, trace, want);
    }
    ts_plan_release(plan);
    ts_mesh_release(mesh);
    tsi_world_unmake(world);
}

TS_TEST(traces)
{
    check_trace(t, "S(0), S(0), S(0)", "R, S(0), S(0)",
                "S(0)[0]S(0)[1]S(0)[2]->S(0)[0]S(0)[1]R->S(0)RR->RRR->RS(0)R->RS(0)[0]S(0)[1]");
    check_trace(t, "S(0)[1], S(0)[0], S(0)[2]", "R, S(0), S(0)",
                "S(0)[1]S(0)[0]S(0)[2]->S(0)[1]S(0)[0]R->RS(0)R->RS(0)[0]S(0)[1]");
    check_trace(t, "S(0), S(0), R", "R, S(1), S(0)",
                "S(0)[0]S(0)[1]R->S(0)RR->S(0)S(1)R->RS(1)R->RS(1)S(0)");
}
