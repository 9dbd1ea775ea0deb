/* SPDX-License-Identifier: Apache-2.0 */
/* redistribute_memory.c - a move takes the extra memory its plan stated, and keeps to a budget.
 *
 * Extra memory is counted by the rank's allocator under the tag of communication; beside it a move
 * may allocate its target and nothing else. An engine that packs keeps its own (bounded) buffers,
 * which the plan counts and the rank's allocator does not: there the statement is an upper bound.
 */
#include "array/pool.h"
#include "redistribute_oracle.h"

typedef struct usage {
    int64_t extra, other; /* bytes under the tag, and all others, at their peak above the start */
} usage;

static const char *const planners[] = { "auto", "direct", "collectives", "greedy", "graph" };

static int64_t largest_of_all(test *t, int64_t value)
{
    ts_array array = TS_INIT(ts_array);
    array.meta = (ts_meta){ .shape = TS_SHAPE(1), .dtype = TS_DTYPE_I64 };
    array.data = &value;
    TEST_OK(t, ts_group_all_reduce(ts_group_world(t->me), &array, &array, TS_REDUCE_MAX, NULL));
    return value;
}

static int64_t block_bytes(const test *t, ts_mesh *mesh, const ts_layout *layout, ts_dtype dtype)
{
    int64_t coord[TS_NDIM_MAX];
    if (!ts_mesh_coord_of(mesh, t->index, coord)) return 0;
    ts_shape local = ts_layout_local(layout, coord);
    return ts_shape_count(&local) * (int64_t)ts_dtype_size(dtype);
}

typedef struct move {
    ts_mesh *mesh;
    const char *from, *to, *planner;
    const kind *k;
    ts_dtype dtype;
    ts_shape shape;
    int64_t budget;
    bool blocking;
} move;

static ts_plan_summary summary_of(test *t, const move *m, const ts_layout *from,
                                  const ts_layout *to)
{
    ts_plan_summary summary = { .struct_size = sizeof summary };
    ts_plan_options options = TS_INIT(ts_plan_options);
    ts_plan *plan = NULL;
    options.planner = m->planner;
    options.budget_bytes = m->budget;
    options.staged = strcmp(t->engine, "mpi") == 0;
    TEST_OK(t, ts_plan_cached(from, to, m->dtype, &options, &plan));
    if (plan) ts_plan_summarise(plan, &summary);
    ts_plan_release(plan);
    return summary;
}

/* Moves, checks the result and says what was used. */
static usage measure(test *t, const move *m, const side *from, const side *to)
{
    ts_scope scope = ts_scope_open(t->me, "measure");
    ts_tensor *x = ts_empty(m->mesh, m->dtype, m->shape, m->from);
    int64_t at = 0;
    (void)oracle_block_run(x, t->index, m->k, from, NULL, true, &at);
    tsi_pool *pool = tsi_pool_of(t->me);
    tsi_pool_peak_reset(pool);
    tsi_pool_usage all = tsi_pool_used(pool, -1), comm = tsi_pool_used(pool, TSI_TAG_COMM);
    ts_move_options options = TS_INIT(ts_move_options);
    options.planner = m->planner;
    options.budget = m->budget;
    options.blocking = m->blocking;
    ts_tensor *y = ts_redistribute_with(x, ts_layout_sharding(to->layout), &options);
    TEST_OK(t, ts_tensor_wait(y));
    usage used = { tsi_pool_used(pool, TSI_TAG_COMM).peak - comm.live, 0 };
    used.other = tsi_pool_used(pool, TSI_TAG_ACTIVATION).peak -
                 (all.live - comm.live); /* nothing else lives here */
    TEST_SAY(t, y && oracle_block_run(y, t->index, m->k, from, to, false, &at) == 0,
             "(%s) -> (%s) by %s: wrong values", m->from, m->to, m->planner);
    TEST_EQ(t, tsi_pool_used(pool, TSI_TAG_COMM).live, comm.live);
    ts_scope_close(scope);
    return used;
}

static void expect_stated(test *t, const move *m)
{
    side from = side_of(m->mesh, ts_layout_get(ts_sharding_get(m->mesh, m->from), m->shape));
    side to = side_of(m->mesh, ts_layout_get(ts_sharding_get(m->mesh, m->to), m->shape));
    ts_plan_summary summary = summary_of(t, m, from.layout, to.layout);
    usage used = measure(t, m, &from, &to);
    int64_t extra = largest_of_all(t, used.extra);
    const char *family = ts_plan_family_name((ts_plan_family)summary.family);
    if (strcmp(t->engine, "mpi") == 0)
        TEST_SAY(t, extra <= summary.peak_bytes || summary.family == TS_PLAN_COLLECTIVES,
                 "(%s) -> (%s) by %s (%s): %lld bytes used, %lld stated", m->from, m->to,
                 m->planner, family, (long long)extra, (long long)summary.peak_bytes);
    else
        TEST_SAY(t, extra == summary.peak_bytes,
                 "(%s) -> (%s) by %s (%s): %lld bytes used, %lld stated", m->from, m->to,
                 m->planner, family, (long long)extra, (long long)summary.peak_bytes);
    TEST_SAY(t, used.other <= block_bytes(t, m->mesh, to.layout, m->dtype),
             "(%s) -> (%s) by %s: %lld bytes beside extra memory", m->from, m->to, m->planner,
             (long long)used.other);
    if (m->budget > 0)
        TEST_SAY(t, extra <= m->budget && summary.peak_bytes <= m->budget,
                 "(%s) -> (%s) by %s: %lld bytes used, %lld stated, the budget is %lld", m->from,
                 m->to, m->planner, (long long)extra, (long long)summary.peak_bytes,
                 (long long)m->budget);
}

static const char *const plain[] = {
    "R, R",       "S(0), R",          "R, S(1)",   "S(0), S(1)",     "S(1), S(0)",
    "S(0), S(0)", "S(1)[1], S(1)[0]", "P(sum), R", "P(sum), P(sum)", "P(sum), S(0)"
};
enum { PLAIN = 10 };

static bool asks_for_partial(const char *from, const char *to)
{
    return strchr(to, 'P') != NULL && strchr(from, 'P') == NULL;
}

TS_TEST_RANKS(extra_memory_is_what_was_stated, 4, 6)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "a=2, b=*");
    for (int i = 0; i < PLAIN * PLAIN * 5 && !test_failed(t); i++) {
        move m = { .mesh = mesh,
                   .from = plain[i % PLAIN],
                   .to = plain[i / PLAIN % PLAIN],
                   .planner = planners[i / PLAIN / PLAIN],
                   .k = &oracle_kinds[0],
                   .dtype = i % 3 ? TS_DTYPE_F32 : TS_DTYPE_C64,
                   .shape = TS_SHAPE(24, 17),
                   .blocking = i % 2 };
        bool ordered = strchr(m.from, '[') || strchr(m.to, '[');
        if (strchr(m.to, 'P') || asks_for_partial(m.from, m.to)) continue;
        if (ordered && strcmp(m.planner, "greedy") == 0) continue;
        expect_stated(t, &m);
    }
}

/* The powers of norms are taken in a copy, which counts. */
TS_TEST_RANKS(powers_of_norms_are_counted, 4)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "a=2, b=2");
    const char *from[] = { "P(norm:2), P(norm:2)", "P(norm:2), S(0)", "R, P(norm:2)" };
    const char *to[] = { "R, R", "S(0), S(0)", "S(1), R" };
    for (int i = 0; i < 3 * 3 * 5; i++) {
        move m = { .mesh = mesh,
                   .from = from[i % 3],
                   .to = to[i / 3 % 3],
                   .planner = planners[i / 9],
                   .k = &oracle_kinds[5],
                   .dtype = TS_DTYPE_F32,
                   .shape = TS_SHAPE(12, 10) };
        expect_stated(t, &m);
    }
}

TS_TEST_RANKS(a_sixteenth_is_kept, 4, 6)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "a=2, b=*");
    for (int i = 0; i < PLAIN * PLAIN && !test_failed(t); i++) {
        move m = { .mesh = mesh,
                   .from = plain[i % PLAIN],
                   .to = plain[i / PLAIN],
                   .planner = "auto",
                   .k = &oracle_kinds[0],
                   .dtype = TS_DTYPE_F32,
                   .shape = TS_SHAPE(48, 40),
                   .budget = 48 * 40 * 4 / 16 };
        if (strchr(m.to, 'P')) continue;
        expect_stated(t, &m);
    }
}
