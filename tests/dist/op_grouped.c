/* SPDX-License-Identifier: Apache-2.0 */
/* op_grouped.c - grouped products against the same thing computed densely: every matrix on every
 * row, and all but one thrown away. Values and both gradients, on any number of ranks, with rows,
 * columns, sums and groups sharded, empty groups and groups of many pieces. */
#include <math.h>

#include "dist/bytes_util.h"
#include "harness/test.h"
#include "tessera/tessera.h"

typedef struct sizes {
    int64_t rows, groups, out, in;
} sizes;

static ts_status group_at(const int64_t *global, void *element, void *context)
{
    int64_t groups = *(const int64_t *)context; /* group 1 is empty where there are more than two */
    int64_t g = (global[0] * global[0] + 3 * global[0] + 2 * global[1]) % groups;
    *(int64_t *)element = g == 1 && groups > 2 ? 0 : g;
    return TS_OK;
}

/* 1 where the row belongs to the group: [rows, 2, groups]. */
static ts_status one_hot_at(const int64_t *global, void *element, void *context)
{
    int64_t g = 0;
    group_at(global, &g, context);
    *(double *)element = g == global[2] ? 1.0 : 0.0;
    return TS_OK;
}

static double apart(ts_tensor *a, ts_tensor *b)
{
    double worst = NAN;
    ts_tensor_item(ts_amax(ts_abs(ts_sub(a, b)), NULL, 0, 0), &worst);
    return worst;
}

static void compare(test *t, ts_mesh *mesh, const sizes *n, const char *const place[3],
                    ts_dtype dtype)
{
    ts_scope scope = ts_scope_open(t->me, "case");
    ts_tape_begin(t->me);
    int64_t groups = n->groups;
    ts_meta ids = { .shape = TS_SHAPE(n->rows, 2), .dtype = TS_DTYPE_I64 };
    ts_meta hot = { .shape = TS_SHAPE(n->rows, 2, groups), .dtype = TS_DTYPE_F64 };
    ts_tensor *x[2], *w[2], *y[2];
    const char *names[] = { "x", "w" };
    for (int k = 0; k < 2; k++) { /* the same numbers twice: leaves of two computations */
        ts_tensor *made_x =
            ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(n->rows, 2, n->in), place[0], NULL);
        ts_tensor *made_w =
            ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(groups, n->out, n->in), place[1], NULL);
        x[k] = ts_watch(ts_cast(ts_sin(made_x), dtype));
        w[k] = ts_watch(ts_cast(ts_cos(made_w), dtype));
    }
    ts_tensor *group = ts_from_function(group_at, &groups, ts_sharding_get(mesh, place[2]), ids);
    ts_tensor *mask =
        ts_cast(ts_from_function(one_hot_at, &groups, ts_sharding_get(mesh, "R"), hot), dtype);
    y[0] = ts_grouped_linear(x[0], w[0], group);
    ts_tensor *all = ts_einsum("mkc,efc->mkef", x[1], w[1]);
    int64_t dim = 2;
    y[1] = ts_sum(ts_mul(all, ts_unsqueeze(mask, 3)), &dim, 1, 0);
    for (int k = 0; k < 2; k++)
        ts_backward(ts_sum(ts_square(y[k]), NULL, 0, 0), NULL);
    double allowed = (dtype == TS_DTYPE_F64 ? 1e-12 : 2e-5) * (double)(n->rows + n->in + n->out);
    double error = apart(y[0], y[1]);
    TEST_SAY(t, error <= allowed, "y: %g apart with %s, %s, %s", error, place[0], place[1],
             place[2]);
    ts_tensor *const grad[2][2] = { { ts_tensor_grad(x[0]), ts_tensor_grad(x[1]) },
                                    { ts_tensor_grad(w[0]), ts_tensor_grad(w[1]) } };
    for (int k = 0; k < 2; k++) {
        error = apart(grad[k][0], grad[k][1]);
        TEST_SAY(t, error <= allowed, "gradient of %s: %g apart with %s, %s, %s", names[k], error,
                 place[0], place[1], place[2]);
    }
    ts_scope_close(scope);
}

TS_TEST_RANKS(grouped_is_dense, 1, 2, 3)
{
    static const char *const places[][3] = {
        { "R", "R", "R" },         { "S(0)", "R", "S(0)" }, { "R", "S(1)", "R" },
        { "S(2)", "S(2)", "R" },   { "R", "S(0)", "R" },    { "S(1)", "S(1)", "S(0)" },
        { "S(0)", "S(0)", "R" },   { "S(2)", "R", "S(1)" }, { "S(0)", "S(0)", "S(0)" },
        { "S(1)", "S(0)", "S(1)" }
    };
    /* Of the last, matrices are worth more than rows: rows go to them. */
    static const sizes all[] = {
        { 7, 5, 4, 3 }, { 1, 1, 1, 1 }, { 300, 2, 3, 5 }, { 5, 7, 6, 1 }, { 20, 23, 40, 30 }
    };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        for (size_t p = 0; p < sizeof places / sizeof places[0]; p++)
            for (int k = 0; k < 2; k++)
                compare(t, mesh, &all[i], places[p], k ? TS_DTYPE_F32 : TS_DTYPE_F64);
    TEST_OK(t, ts_rank_status(t->me));
}

/* ---- rows that go to their matrices ---------------------------------------------------------- */

typedef struct routing {
    int64_t rows, groups;
    int32_t kind; /* 0: spread, 1: all to the last group, 2: all to the first */
} routing;

static int64_t routed(const routing *r, int64_t row)
{
    if (r->kind) return r->kind == 1 ? r->groups - 1 : 0;
    return (7 * row + row / 3) % r->groups;
}

static ts_status routed_at(const int64_t *global, void *element, void *context)
{
    *(int64_t *)element = routed(context, global[0]);
    return TS_OK;
}

/* What must come: the counts, the rows of my groups with their numbers, and my rows' results. */
static int64_t needed(const test *t, const routing *r, int64_t row_bytes, int64_t result_bytes)
{
    int64_t ranks = t->count, bytes = 8 * (ranks - 1);
    for (int64_t row = 0; row < r->rows; row++) {
        int64_t from = holder(row, r->rows, ranks), to = holder(routed(r, row), r->groups, ranks);
        if (from != to && to == t->index) bytes += row_bytes + 8;
        if (from != to && from == t->index) bytes += result_bytes;
    }
    return bytes;
}

TS_TEST_RANKS(grouped_rows_move_once, 2, 3, 5, 8)
{
    enum { IN = 32, OUT = 48 };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    for (int32_t kind = 0; kind < 3; kind++) {
        routing r = { .rows = 37, .groups = 21, .kind = kind };
        ts_scope scope = ts_scope_open(t->me, "case");
        ts_tensor *x = ts_sin(ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(r.rows, IN), "S(0)", NULL));
        ts_tensor *w =
            ts_cos(ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(r.groups, OUT, IN), "S(0)", NULL));
        ts_meta ids = { .shape = TS_SHAPE(r.rows), .dtype = TS_DTYPE_I64 };
        ts_tensor *group = ts_from_function(routed_at, &r, ts_sharding_get(mesh, "S(0)"), ids);
        ts_rank_sync(t->me);
        uint64_t before = ts_rank_event(t->me);
        ts_tensor *y = ts_grouped_linear(x, w, group);
        ts_tensor_wait(y);
        int64_t have = received(t->me, before), want = needed(t, &r, 8 * IN, 8 * OUT);
        TEST_SAY(t, have == want, "kind %d: %lld bytes received, %lld are needed", kind,
                 (long long)have, (long long)want);
        ts_tensor *whole =
            ts_grouped_linear(ts_tensor_full(x), ts_tensor_full(w), ts_tensor_full(group));
        double error = apart(y, whole);
        TEST_SAY(t, error <= 1e-13, "kind %d: %g apart", kind, error);
        ts_scope_close(scope);
    }
    TEST_OK(t, ts_rank_status(t->me));
}

TS_TEST_RANKS(grouped_refusals, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    static const struct {
        int64_t group, columns;
        const char *words;
    } rows[] = { { 3, 4, "grouped_linear: group 3 is out of range for 3 groups" },
                 { -1, 4, "grouped_linear: group -1 is out of range for 3 groups" },
                 { 0, 5, "do not fit: [.., C] and [E, F, C]" } };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ts_scope_options options = TS_INIT(ts_scope_options);
        options.catches = 1;
        options.agree = mesh;
        ts_scope scope = ts_scope_open_with(t->me, &options);
        ts_tensor *x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(2, 4), "R");
        ts_tensor *w = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(3, 2, rows[i].columns), "R");
        ts_tensor *g = ts_full((double)rows[i].group, mesh, TS_DTYPE_I64, TS_SHAPE(2), "R");
        ts_tensor *y = ts_grouped_linear(x, w, g);
        TEST_CHECK(t, y == NULL || ts_tensor_wait(y) != TS_OK);
        TEST_CHECK(t, ts_scope_close(scope) != TS_OK);
        TEST_SAYS(t, ts_rank_error(t->me)->text, rows[i].words);
        /* A device finds it later, where it cannot know that peers have the same groups. */
        if (ts_rank_status(t->me) != TS_OK) TEST_OK(t, ts_rank_recover(t->me));
    }
}
