/* SPDX-License-Identifier: Apache-2.0 */
/* op_experts.c - the feed-forward of chosen experts as one operator: against the same thing made
 * of grouped products on whole tensors, with rows, experts and the inside of experts cut, by every
 * algorithm; what crosses between ranks against what must. */
#include <math.h>

#include "device/device.h"
#include "dist/bytes_util.h"
#include "harness/test.h"
#include "tessera/tessera.h"

enum { WIDTH = 12, INNER = 10 };

typedef struct layer {
    int64_t rows, experts, choices;
    int32_t kind; /* 0: spread, 1: all choose the first ones, 2: the last ones, 3: odd ones alone */
} layer;

static int64_t chosen(const layer *l, int64_t row, int64_t k)
{
    int64_t e = l->experts;
    if (l->kind == 1) return k;
    if (l->kind == 2) return e - 1 - k;
    if (l->kind == 3) return (2 * ((row + k) % (e / 2)) + 1) % e;
    return (5 * row + row / 3 + k * (1 + row % 2)) % e;
}

static ts_status which_at(const int64_t *global, void *element, void *context)
{
    *(int64_t *)element = chosen(context, global[0], global[1]);
    return TS_OK;
}

static double apart(ts_tensor *a, ts_tensor *b)
{
    double worst = NAN;
    ts_tensor_item(ts_amax(ts_abs(ts_sub(a, b)), NULL, 0, 0), &worst);
    return worst;
}

typedef struct leaves {
    ts_tensor *x, *weight, *in, *out, *which;
} leaves;

static ts_tensor *numbers(ts_mesh *mesh, ts_dtype dtype, ts_shape shape, const char *place,
                          double by)
{
    ts_tensor *i = ts_arange(mesh, TS_DTYPE_F64, shape, place, NULL);
    return ts_watch(ts_cast(ts_sin(ts_mul_scalar(i, by)), dtype));
}

/* rows: of x, which and weight. */
static leaves make(ts_mesh *mesh, const layer *l, ts_dtype dtype, const char *rows, const char *in,
                   const char *out)
{
    ts_meta ids = { .shape = TS_SHAPE(l->rows, l->choices), .dtype = TS_DTYPE_I64 };
    leaves made = {
        .x = numbers(mesh, dtype, TS_SHAPE(l->rows, WIDTH), rows, 0.7),
        .weight = numbers(mesh, dtype, TS_SHAPE(l->rows, l->choices), rows, 1.3),
        .in = numbers(mesh, dtype, TS_SHAPE(l->experts, 2, INNER, WIDTH), in, 0.11),
        .out = numbers(mesh, dtype, TS_SHAPE(l->experts, WIDTH, INNER), out, 0.17),
    };
    layer copy = *l;
    made.which = ts_from_function(which_at, &copy, ts_sharding_get(mesh, rows), ids);
    return made;
}

/* The same of grouped products, which see every choice by itself. */
static ts_tensor *by_products(const leaves *v, const layer *l)
{
    int64_t slots = 1;
    ts_tensor *x = ts_expand(ts_unsqueeze(v->x, 1), TS_SHAPE(l->rows, l->choices, WIDTH));
    ts_tensor *in = ts_reshape(v->in, TS_SHAPE(l->experts, 2 * INNER, WIDTH));
    ts_tensor *both = ts_grouped_linear(x, in, v->which);
    both = ts_reshape(both, TS_SHAPE(l->rows, l->choices, 2, INNER));
    ts_tensor *h = ts_mul(ts_silu(ts_select(both, 2, 0)), ts_select(both, 2, 1));
    h = ts_mul(h, ts_unsqueeze(v->weight, 2));
    return ts_sum(ts_grouped_linear(h, v->out, v->which), &slots, 1, 0);
}

static ts_tensor *by_operator(const leaves *v, const char *algorithm)
{
    ts_grouped_mlp_options options = TS_INIT(ts_grouped_mlp_options);
    options.weight = v->weight;
    options.in = v->in;
    options.out = v->out;
    options.algorithm = algorithm;
    return ts_grouped_mlp(v->x, v->which, &options);
}

typedef struct trial {
    const char *mesh, *rows, *in, *out, *algorithm;
} trial;

static void compare(test *t, ts_mesh *mesh, const layer *l, const trial *c, ts_dtype dtype)
{
    static const char *const names[] = { "x", "weight", "in", "out" };
    ts_scope scope = ts_scope_open(t->me, "case");
    ts_tape_begin(t->me);
    const char *whole = ts_mesh_ndim(mesh) > 1 ? "R, R" : "R";
    leaves v[2] = { make(mesh, l, dtype, c->rows, c->in, c->out),
                    make(mesh, l, dtype, whole, whole, whole) };
    ts_tensor *y[2] = { by_operator(&v[0], c->algorithm), by_products(&v[1], l) };
    double allowed = (dtype == TS_DTYPE_F64 ? 1e-13 : 4e-5) * (double)(l->rows + 40);
    double error = apart(y[0], y[1]);
    TEST_SAY(t, error <= allowed, "y: %g apart, kind %d, %s %s %s, %s", error, l->kind, c->rows,
             c->in, c->out, c->algorithm);
    for (int k = 0; k < 2; k++)
        ts_backward(ts_sum(ts_square(y[k]), NULL, 0, 0), NULL);
    ts_tensor *const leaf[2][4] = { { v[0].x, v[0].weight, v[0].in, v[0].out },
                                    { v[1].x, v[1].weight, v[1].in, v[1].out } };
    for (int i = 0; i < 4; i++) {
        error = apart(ts_tensor_grad(leaf[0][i]), ts_tensor_grad(leaf[1][i]));
        TEST_SAY(t, error <= 4 * allowed, "gradient of %s: %g apart, kind %d, %s %s %s, %s",
                 names[i], error, l->kind, c->rows, c->in, c->out, c->algorithm);
    }
    ts_scope_close(scope);
}

TS_TEST_RANKS(experts_are_products, 1, 2, 3, 5)
{
    static const trial trials[] = {
        { "x=*", "R", "R", "R", "auto" },           { "x=*", "S(0)", "R", "R", "auto" },
        { "x=*", "R", "S(0)", "S(0)", "auto" },     { "x=*", "R", "S(2)", "S(2)", "auto" },
        { "x=*", "S(0)", "S(0)", "S(0)", "rows" },  { "x=*", "S(0)", "S(0)", "S(0)", "gather" },
        { "x=*", "S(0)", "S(0)", "S(0)", "nodes" }, { "x=*", "HT(0)", "S(0)", "S(0)", "rows" },
        { "x=*", "S(0)", "HT(0)", "HT(0)", "rows" }
    };
    static const layer layers[] = {
        { 7, 6, 2, 0 }, { 11, 8, 3, 1 }, { 4, 5, 1, 2 }, { 40, 12, 4, 3 }, { 1, 2, 2, 0 }
    };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++)
        for (size_t c = 0; c < sizeof trials / sizeof trials[0]; c++)
            compare(t, mesh, &layers[i], &trials[c], c % 2 ? TS_DTYPE_F32 : TS_DTYPE_F64);
    TEST_OK(t, ts_rank_status(t->me));
}

TS_TEST_RANKS(experts_on_two_axes, 4, 6)
{
    static const trial trials[] = {
        { "a=2, b=*", "S(0), R", "S(0), S(0)", "S(0), S(0)", "rows" },
        { "a=2, b=*", "S(0), R", "S(0), S(2)", "S(0), S(2)", "rows" },
        { "a=2, b=*", "S(0), S(0)", "S(0), S(0)", "S(0), S(0)", "rows" },
        { "a=2, b=*", "S(0), S(0)", "R, S(0)", "R, S(0)", "gather" },
        { "a=2, b=*", "S(0), S(0)", "S(0), R", "S(0), R", "auto" },
    };
    static const layer layers[] = { { 9, 6, 2, 0 }, { 8, 12, 4, 2 } };
    for (size_t c = 0; c < sizeof trials / sizeof trials[0]; c++) {
        ts_mesh *mesh = ts_mesh_create(t->me, trials[c].mesh);
        for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++)
            compare(t, mesh, &layers[i], &trials[c], TS_DTYPE_F64);
    }
    TEST_OK(t, ts_rank_status(t->me));
}

/* ---- what crosses ---------------------------------------------------------------------------- */

/* The bound: of a row that has experts on another rank one copy goes there and one result comes
 * back, whatever the number of its experts there; and each choice's number with its weight. */
static int64_t needed(const test *t, const layer *l, int64_t there, int64_t back,
                      int64_t numbers_back)
{
    int64_t bytes = 0;
    for (int64_t row = 0; row < l->rows; row++) {
        int64_t home = holder(row, l->rows, t->count);
        uint64_t seen = 0;
        if (home != t->index) bytes += 4 * l->choices;
        for (int64_t k = 0; k < l->choices; k++) {
            int64_t to = holder(chosen(l, row, k), l->experts, t->count);
            bool first = !(seen >> to & 1);
            seen |= UINT64_C(1) << to;
            if (to == home) continue;
            if (to == t->index) bytes += 8 + (first ? there * 8 * WIDTH : 0);
            if (home == t->index) bytes += 8 * numbers_back + (first ? back * 8 * WIDTH : 0);
        }
    }
    return bytes;
}

TS_TEST_RANKS(expert_rows_cross_once, 2, 3, 5, 8)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    for (int32_t kind = 0; kind < 4; kind++) {
        layer l = { .rows = 37, .experts = 12, .choices = 4, .kind = kind };
        ts_scope scope = ts_scope_open(t->me, "case");
        ts_tape_begin(t->me);
        leaves v = make(mesh, &l, TS_DTYPE_F64, "S(0)", "S(0)", "S(0)");
        ts_rank_sync(t->me);
        uint64_t before = ts_rank_event(t->me);
        ts_tensor *y = by_operator(&v, "rows");
        ts_tensor_wait(y);
        int64_t have = received(t->me, before), want = needed(t, &l, 1, 1, 0);
        TEST_SAY(t, have == want, "kind %d: %lld bytes received, %lld are needed", kind,
                 (long long)have, (long long)want);
        before = ts_rank_event(t->me);
        ts_tensor *seed = ts_detach(y);
        TEST_OK(t, ts_backward_from(&y, &seed, 1, NULL));
        have = received(t->me, before);
        want = needed(t, &l, 2, 1, 1);
        TEST_SAY(t, have == want, "kind %d, gradient: %lld bytes received, %lld are needed", kind,
                 (long long)have, (long long)want);
        ts_scope_close(scope);
    }
    TEST_OK(t, ts_rank_status(t->me));
}

/* ---- meanwhile ------------------------------------------------------------------------------- */

/* Rank 1 has all experts that were chosen: rank 0 goes on while what they make of its rows is on
 * its way. Once in ten is enough, the ranks being at nobody's beck and call. */
TS_TEST_RANKS(results_are_on_their_way, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    layer l = { .rows = 4000, .experts = 6000, .choices = 4, .kind = 2 };
    double seen = 0;
    for (int i = 0; i < 10 && seen == 0; i++) {
        ts_scope scope = ts_scope_open(t->me, "case");
        leaves v = make(mesh, &l, TS_DTYPE_F64, "S(0)", "S(0)", "S(0)");
        ts_rank_sync(t->me);
        uint64_t before = ts_rank_event(t->me);
        ts_counts counts = TS_INIT(ts_counts);
        ts_tensor *y = by_operator(&v, "rows");
        TEST_OK(t, ts_rank_counts(t->me, before, &counts));
        TEST_OK(t, ts_tensor_wait(y));
        double open = t->index == 0 ? (double)counts.open : 0.0;
        ts_array in = TS_INIT(ts_array), out = TS_INIT(ts_array);
        in.data = &open;
        out.data = &seen;
        in.meta = out.meta = (ts_meta){ .shape = TS_SHAPE(1), .dtype = TS_DTYPE_F64 };
        TEST_OK(t, ts_group_all_reduce(ts_group_world(t->me), &in, &out, TS_REDUCE_MAX, NULL));
        ts_scope_close(scope);
    }
    TEST_CHECK(t, seen > 0);
    TEST_OK(t, ts_rank_status(t->me));
}

/* ---- choices of none ------------------------------------------------------------------------- */

static ts_status some_at(const int64_t *global, void *element, void *context)
{
    *(int64_t *)element =
        (global[0] + global[1]) % 3 == 0 ? -1 : chosen(context, global[0], global[1]);
    return TS_OK;
}

static ts_status kept_at(const int64_t *global, void *element, void *context)
{
    (void)context;
    *(double *)element = (global[0] + global[1]) % 3 == 0 ? 0.0 : 1.0;
    return TS_OK;
}

/* A choice of -1 is one whose weight is 0, and brings no row anywhere; rows without any are 0. */
TS_TEST_RANKS(choices_of_none, 1, 3)
{
    static const char *const algorithms[] = { "rows", "gather", "nodes" };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    for (int i = 0; i < 3; i++) {
        layer l = { .rows = 14, .experts = 5, .choices = 1 + i };
        ts_scope scope = ts_scope_open(t->me, "case");
        ts_tape_begin(t->me);
        leaves v = make(mesh, &l, TS_DTYPE_F64, "S(0)", "S(0)", "S(0)"), w = v;
        ts_meta meta = { .shape = TS_SHAPE(l.rows, l.choices), .dtype = TS_DTYPE_I64 };
        w.which = ts_from_function(some_at, &l, ts_sharding_get(mesh, "S(0)"), meta);
        meta.dtype = TS_DTYPE_F64;
        ts_tensor *kept = ts_from_function(kept_at, &l, ts_sharding_get(mesh, "S(0)"), meta);
        v.weight = ts_mul(v.weight, kept);
        ts_grouped_mlp_options options = TS_INIT(ts_grouped_mlp_options);
        options.weight = w.weight;
        options.in = w.in;
        options.out = w.out;
        options.skips = 1;
        options.algorithm = algorithms[i];
        ts_tensor *y = ts_grouped_mlp(w.x, w.which, &options), *want = by_products(&v, &l);
        double error = apart(y, want);
        TEST_SAY(t, error <= 1e-12, "%s: %g apart", algorithms[i], error);
        ts_tensor *d[2] = { NULL, NULL };
        for (int k = 0; k < 2; k++) {
            ts_tensor *loss = ts_sum(ts_square(k ? want : y), NULL, 0, 0);
            TEST_OK(t, ts_backward(loss, NULL));
            d[k] = ts_detach(ts_tensor_grad(v.in));
        }
        /* the second is added to the first */
        error = apart(d[1], ts_mul_scalar(d[0], 2.0));
        TEST_SAY(t, error <= 1e-11, "%s: gradients %g apart", algorithms[i], error);
        ts_scope_close(scope);
    }
    TEST_OK(t, ts_rank_status(t->me));
}

/* ---- refusals -------------------------------------------------------------------------------- */

static ts_status bad_at(const int64_t *global, void *element, void *context)
{
    const int64_t *bad = context; /* row, expert */
    *(int64_t *)element = global[0] == bad[0] ? bad[1] : 0;
    return TS_OK;
}

/* One bad choice of one rank: the same sentence everywhere, and the ranks go on. Where a device
 * alone sees the choices (one rank: no rows move) the product says it, when somebody waits. */
TS_TEST_RANKS(expert_refusals, 1, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    bool late = t->count == 1 && !tsi_world_device(ts_rank_world(t->me))->host_readable;
    static const int64_t expert[] = { 6, 0, 0, -1, (int64_t)1 << 40, -((int64_t)1 << 40) };
    for (int i = 0; i < 6; i++) {
        layer l = { .rows = 7, .experts = 6, .choices = i == 1 ? 7 : 2 };
        ts_scope_options options = TS_INIT(ts_scope_options);
        options.catches = 1;
        options.agree = mesh;
        ts_scope scope = ts_scope_open_with(t->me, &options);
        leaves v = make(mesh, &l, TS_DTYPE_F64, "S(0)", "S(0)", "S(0)");
        int64_t bad[] = { 3, expert[i] };
        ts_meta ids = { .shape = TS_SHAPE(l.rows, l.choices), .dtype = TS_DTYPE_I64 };
        if (expert[i] != 0)
            v.which = ts_from_function(bad_at, bad, ts_sharding_get(mesh, "S(0)"), ids);
        ts_tensor *y = by_operator(&v, i == 2 ? "row" : "rows");
        bool of_data = i != 1 && i != 2;
        TEST_CHECK(t, y == NULL || (late && of_data));
        TEST_CHECK(t, ts_scope_close(scope) != TS_OK);
        static const char *const words[] = { "choice 0 of row 3 is expert 6, of 6",
                                             "7 choices of 6 experts",
                                             "\"row\" is no algorithm",
                                             "choice 0 of row 3 is expert -1, of 6",
                                             "is expert 536870912 or more, of 6",
                                             "is expert -536870912 or less, of 6" };
        TEST_SAYS(t, ts_rank_error(t->me)->text,
                  late && of_data ? "is out of range for 6 groups" : words[i]);
    }
    layer l = { .rows = 7, .experts = 6, .choices = 2 };
    leaves v = make(mesh, &l, TS_DTYPE_F64, "S(0)", "S(0)", "S(0)");
    TEST_CHECK(t, by_operator(&v, "rows") != NULL);
    TEST_OK(t, ts_rank_status(t->me));
}
