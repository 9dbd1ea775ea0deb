/* SPDX-License-Identifier: Apache-2.0 */
/* op_list.c - list forms against the operators they stand for, and fused optimiser updates against
 * the same update written with operators: every layout, moved gradients, refusals that write
 * nothing. */
#include <math.h>

#include "harness/test.h"
#include "op/nn/update.h"
#include "tessera/autograd.h"
#include "tessera/op.h"
#include "tessera/op_list.h"

enum { ITEMS = 6 };
static const char *const places[ITEMS] = { "R", "S(0)", "S(1)", "R", "S(0)", "S(0)" };
static const int64_t rows[ITEMS] = { 7, 5, 1, 3, 2, 0 }, columns[ITEMS] = { 5, 3, 9, 1, 64, 4 };

static ts_shape shape_of(int i)
{
    return TS_SHAPE(rows[i], columns[i]);
}

static void fill(ts_mesh *mesh, ts_dtype dtype, const char *const *place, double add,
                 ts_tensor **out)
{
    for (int i = 0; i < ITEMS; i++)
        out[i] = ts_add_scalar(ts_rand(mesh, dtype, shape_of(i), place[i]), add);
}

static ts_list list_of(ts_tensor **x)
{
    return (ts_list){ x, ITEMS };
}

static void same(test *t, ts_tensor *have, ts_tensor *want, double tolerance, const char *what)
{
    ts_array a = TS_INIT(ts_array), b = TS_INIT(ts_array);
    ts_tensor *x = ts_tensor_full(ts_cast(have, TS_DTYPE_F64));
    ts_tensor *y = ts_tensor_full(ts_cast(want, TS_DTYPE_F64));
    TEST_STATUS(t, test_view(x, &a), TS_OK);
    TEST_STATUS(t, test_view(y, &b), TS_OK);
    int64_t count = 1;
    for (int32_t d = 0; d < a.meta.shape.ndim; d++)
        count *= a.meta.shape.extent[d];
    const double *p = a.data, *q = b.data;
    for (int64_t i = 0; p && q && i < count; i++)
        TEST_SAY(t, fabs(p[i] - q[i]) <= tolerance * (1 + fabs(q[i])),
                 "%s: element %lld is %.9g, not %.9g", what, (long long)i, p[i], q[i]);
}

static void same_lists(test *t, ts_tensor **have, ts_tensor **want, double tolerance,
                       const char *what)
{
    for (int i = 0; i < ITEMS; i++)
        same(t, have[i], want[i], tolerance, what);
}

TS_TEST_RANKS(forms_do_what_operators_do, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_scope s = ts_scope_open(t->me, "forms");
    ts_tensor *x[ITEMS], *y[ITEMS], *z[ITEMS], *have[ITEMS], *want[ITEMS];
    fill(mesh, TS_DTYPE_F32, places, 0.5, x);
    fill(mesh, TS_DTYPE_F32, places, 1.0, y);
    fill(mesh, TS_DTYPE_F32, places, 2.0, z);
    for (int i = 0; i < ITEMS; i++)
        want[i] = ts_add(x[i], ts_mul_scalar(y[i], 0.5));
    TEST_OK(t, ts_foreach_add(list_of(x), list_of(y), 0.5, have));
    same_lists(t, have, want, 1e-6, "add");
    for (int i = 0; i < ITEMS; i++)
        want[i] = ts_lerp(x[i], y[i], 0.25);
    TEST_OK(t, ts_foreach_lerp(list_of(x), list_of(y), 0.25, have));
    same_lists(t, have, want, 0, "lerp");
    for (int i = 0; i < ITEMS; i++)
        want[i] = ts_addcdiv(x[i], y[i], z[i], -2.0);
    TEST_OK(t, ts_foreach_addcdiv(list_of(x), list_of(y), list_of(z), -2.0, have));
    same_lists(t, have, want, 0, "addcdiv");
    for (int i = 0; i < ITEMS; i++)
        want[i] = ts_sqrt(ts_mul(ts_add_scalar(ts_mul_scalar(x[i], 3), 1), y[i]));
    for (int i = 0; i < ITEMS; i++)
        want[i] = ts_lerp(want[i], z[i], 0.75);
    TEST_OK(t, ts_foreach_mul_scalar(list_of(x), 3, NULL)); /* in place from here on */
    TEST_OK(t, ts_foreach_add_scalar(list_of(x), 1, NULL));
    TEST_OK(t, ts_foreach_mul(list_of(x), list_of(y), NULL));
    TEST_OK(t, ts_foreach_sqrt(list_of(x), NULL));
    TEST_OK(t, ts_foreach_lerp(list_of(x), list_of(z), 0.75, NULL));
    same_lists(t, x, want, 0, "in place");
    TEST_OK(t, ts_foreach_copy(list_of(x), list_of(z)));
    same_lists(t, x, z, 0, "copy");
    TEST_OK(t, ts_foreach_zero(list_of(x)));
    double norm = 1;
    TEST_OK(t, ts_foreach_norm_total(list_of(x), &norm));
    TEST_CHECK(t, norm == 0.0);
    TEST_OK(t, ts_scope_close(s));
}

TS_TEST_RANKS(norms_count_each_element_once, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_scope s = ts_scope_open(t->me, "norms");
    ts_tensor *x[ITEMS], *each[ITEMS];
    fill(mesh, TS_DTYPE_F32, places, 0.5, x);
    x[3] = ts_sum(x[1], (const int64_t[]){ 0 }, 1, 0); /* partial where it was cut */
    x[4] = ts_transpose(x[4], 0, 1);                   /* strided */
    double total = 0, squares = 0;
    TEST_OK(t, ts_foreach_norm_total(list_of(x), &total));
    TEST_OK(t, ts_foreach_norm(list_of(x), 2, each));
    for (int i = 0; i < ITEMS; i++) {
        double one = 0;
        TEST_OK(t, ts_tensor_item(each[i], &one));
        squares += one * one;
    }
    TEST_SAY(t, fabs(total - sqrt(squares)) < 1e-6 * total, "%.9g, not %.9g", total, sqrt(squares));
    TEST_OK(t, ts_scope_close(s));
}

/* AdamW with operators, in f64. */
static void adamw_by_operators(ts_tensor **p, ts_tensor *g, ts_tensor **m, ts_tensor **v, int step)
{
    *m = ts_lerp(*m, g, 0.1);
    *v = ts_lerp(*v, ts_square(g), 0.05);
    ts_tensor *first = ts_mul_scalar(*m, 1 / (1 - pow(0.9, step)));
    ts_tensor *second = ts_mul_scalar(*v, 1 / (1 - pow(0.95, step)));
    ts_tensor *down = ts_add_scalar(ts_sqrt(second), 1e-8);
    *p = ts_sub(ts_mul_scalar(*p, 1 - 0.01 * 0.1), ts_mul_scalar(ts_div(first, down), 0.01));
}

static void adamw_in(test *t, ts_dtype dtype, double tolerance)
{
    /* Gradients lie otherwise than their parameters, some of them. */
    static const char *const grad_places[ITEMS] = { "S(0)", "S(0)", "R", "R", "S(1)", "S(0)" };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_scope s = ts_scope_open(t->me, "adamw");
    ts_tensor *p[ITEMS], *g[ITEMS], *m[ITEMS], *v[ITEMS], *want[ITEMS], *wm[ITEMS], *wv[ITEMS];
    ts_dtype moments = dtype == TS_DTYPE_F64 ? TS_DTYPE_F64 : TS_DTYPE_F32;
    fill(mesh, dtype, places, -0.5, p);
    for (int i = 0; i < ITEMS; i++) {
        m[i] = ts_zeros(mesh, moments, shape_of(i), places[i]);
        v[i] = ts_zeros(mesh, moments, shape_of(i), places[i]);
        want[i] = ts_cast(ts_clone(p[i]), TS_DTYPE_F64);
        wm[i] = ts_zeros(mesh, TS_DTYPE_F64, shape_of(i), places[i]);
        wv[i] = ts_zeros(mesh, TS_DTYPE_F64, shape_of(i), places[i]);
    }
    for (int step = 1; step <= 3; step++) {
        fill(mesh, dtype, grad_places, -0.5, g);
        ts_adamw_update u = TS_INIT(ts_adamw_update);
        u.param = list_of(p), u.grad = list_of(g), u.first = list_of(m), u.second = list_of(v);
        u.lr = 0.01, u.beta1 = 0.9, u.beta2 = 0.95, u.epsilon = 1e-8, u.weight_decay = 0.1;
        u.step = step;
        TEST_OK(t, ts_fused_adamw(&u));
        for (int i = 0; i < ITEMS; i++)
            adamw_by_operators(&want[i], ts_cast(g[i], TS_DTYPE_F64), &wm[i], &wv[i], step);
    }
    same_lists(t, p, want, tolerance, "parameters");
    same_lists(t, m, wm, tolerance, "first moments");
    same_lists(t, v, wv, tolerance, "second moments");
    TEST_OK(t, ts_scope_close(s));
}

TS_TEST_RANKS(adamw_is_adamw, 1, 2, 3)
{
    adamw_in(t, TS_DTYPE_F64, 1e-12);
    adamw_in(t, TS_DTYPE_F32, 1e-5);
    adamw_in(t, TS_DTYPE_BF16, 3e-2);
}

static void sgd_in(test *t, double momentum, int32_t nesterov)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_scope s = ts_scope_open(t->me, "sgd");
    ts_tensor *p[ITEMS], *g[ITEMS], *m[ITEMS], *want[ITEMS], *wm[ITEMS];
    fill(mesh, TS_DTYPE_F32, places, -0.5, p);
    for (int i = 0; i < ITEMS; i++) {
        m[i] = ts_zeros(mesh, TS_DTYPE_F32, shape_of(i), places[i]);
        want[i] = ts_clone(p[i]);
        wm[i] = NULL;
    }
    for (int step = 1; step <= 3; step++) {
        fill(mesh, TS_DTYPE_F32, places, -0.5, g);
        ts_sgd_update u = TS_INIT(ts_sgd_update);
        u.param = list_of(p), u.grad = list_of(g), u.lr = 0.1, u.weight_decay = 0.01;
        u.momentum = momentum, u.nesterov = nesterov, u.step = step;
        if (momentum != 0) u.momentum_of = list_of(m);
        TEST_OK(t, ts_fused_sgd(&u));
        for (int i = 0; i < ITEMS; i++) {
            ts_tensor *d = ts_add(g[i], ts_mul_scalar(want[i], 0.01));
            wm[i] = wm[i] ? ts_add(ts_mul_scalar(wm[i], momentum), d) : d;
            ts_tensor *by = momentum == 0 ? d
                            : nesterov    ? ts_add(d, ts_mul_scalar(wm[i], momentum))
                                          : wm[i];
            want[i] = ts_sub(want[i], ts_mul_scalar(by, 0.1));
        }
    }
    same_lists(t, p, want, 1e-5, "parameters");
    TEST_OK(t, ts_scope_close(s));
}

TS_TEST_RANKS(sgd_is_sgd, 1, 2, 3)
{
    sgd_in(t, 0, 0);
    sgd_in(t, 0.9, 0);
    sgd_in(t, 0.9, 1);
}

/* In place, what had to be moved first has its gradient too. */
TS_TEST_RANKS(what_is_moved_has_a_gradient, 1, 2, 3)
{
    static const char *const from[] = { "S(0)", "S(1)", "R" };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_scope s = ts_scope_open(t->me, "moved");
    ts_tensor *x[3], *y[3];
    ts_tape_begin(t->me);
    for (int i = 0; i < 3; i++) {
        x[i] = ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(5, 4), "S(0)");
        y[i] = ts_watch(ts_rand(mesh, TS_DTYPE_F64, TS_SHAPE(5, 4), from[i]));
    }
    TEST_OK(t, ts_foreach_add((ts_list){ x, 3 }, (ts_list){ y, 3 }, 3, NULL));
    for (int i = 0; i < 3; i++) {
        TEST_CHECK(t, ts_tensor_needs_grad(x[i]));
        TEST_OK(t, ts_backward(ts_sum(x[i], NULL, 0, 0), NULL));
        TEST_CHECK(t, ts_tensor_layout(ts_tensor_grad(y[i])) == ts_tensor_layout(y[i]));
        same(t, ts_tensor_grad(y[i]), ts_mul_scalar(ts_ones_like(y[i]), 3), 0, from[i]);
    }
    TEST_OK(t, ts_scope_close(s));
    ts_mesh_release(mesh);
}

/* Zeros and copies are on no tape: they took the history of what was there before. */
TS_TEST_RANKS(what_has_a_history_is_not_filled, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    for (int way = 0; way < 6; way++) { /* zeros, copies; of results, of leaves, under no_grad */
        ts_scope_options options = TS_INIT(ts_scope_options);
        options.catches = 1;
        ts_scope s = ts_scope_open_with(t->me, &options);
        ts_tape_begin(t->me);
        ts_tensor *w = ts_watch(ts_rand(mesh, TS_DTYPE_F64, TS_SHAPE(5), "S(0)"));
        ts_tensor *x = way % 3 == 1 ? w : ts_mul_scalar(w, 3), *y = ts_detach(w);
        options.no_grad = way % 3 == 2;
        ts_scope inner = ts_scope_open_with(t->me, &options);
        ts_status status = way < 3 ? ts_foreach_zero((ts_list){ &x, 1 })
                                   : ts_foreach_copy((ts_list){ &x, 1 }, (ts_list){ &y, 1 });
        TEST_EQ(t, status, way % 3 == 2 ? TS_OK : TS_ERR_STATE);
        TEST_EQ(t, ts_scope_close(inner), status);
        TEST_OK(t, ts_foreach_copy((ts_list){ &y, 1 }, (ts_list){ &x, 1 })); /* to a constant */
        TEST_OK(t, ts_scope_close(s));
    }
    ts_mesh_release(mesh);
}

/* What a tape refuses, it does before the first item is written: zeros, copies, and forms in place
 * whose second item is a leaf. */
TS_TEST_RANKS(what_a_tape_refuses_writes_nothing, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    for (int way = 0; way < 3; way++) {
        ts_scope outer = ts_scope_open(t->me, NULL);
        ts_scope_options options = TS_INIT(ts_scope_options);
        options.catches = 1;
        ts_tensor *x[2], *y[2], *before[2];
        for (int i = 0; i < 2; i++) {
            x[i] = ts_rand(mesh, TS_DTYPE_F64, TS_SHAPE(5), "S(0)");
            y[i] = ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(5), "S(0)");
            before[i] = ts_clone(x[i]);
        }
        x[1] = ts_watch(x[1]);
        ts_scope s = ts_scope_open_with(t->me, &options);
        ts_tape_begin(t->me);
        const ts_list to = { x, 2 }, from = { y, 2 };
        uint32_t version = tsi_array_version(x[0]->array);
        TEST_EQ(t,
                way == 0   ? ts_foreach_zero(to)
                : way == 1 ? ts_foreach_copy(to, from)
                           : ts_foreach_add(to, from, 1, NULL),
                TS_ERR_STATE);
        TEST_EQ(t, tsi_array_version(x[0]->array), version);
        TEST_STATUS(t, ts_scope_close(s), TS_ERR_STATE);
        same(t, x[0], before[0], 0, "untouched");
        ts_scope_close(outer);
    }
    ts_mesh_release(mesh);
}

/* The list as a whole, or nothing of it. */
TS_TEST_RANKS(what_is_refused_writes_nothing, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_scope outer = ts_scope_open(t->me, "refused");
    ts_tensor *x[2], *y[2], *before[2];
    for (int i = 0; i < 2; i++) {
        x[i] = ts_arange(mesh, TS_DTYPE_F32, TS_SHAPE(6, 2), "S(0)", NULL);
        y[i] = ts_arange(mesh, TS_DTYPE_F32, TS_SHAPE(6, 2), "S(0)", NULL);
        before[i] = ts_clone(x[i]);
    }
    y[1] = ts_arange(mesh, TS_DTYPE_F32, TS_SHAPE(5, 2), "S(0)", NULL);
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.catches = 1;
    ts_scope s = ts_scope_open_with(t->me, &options);
    TEST_CHECK(t, ts_foreach_add((ts_list){ x, 2 }, (ts_list){ y, 2 }, 1, NULL) != TS_OK);
    TEST_CHECK(t, ts_scope_close(s) != TS_OK);
    y[1] = ts_arange(mesh, TS_DTYPE_F32, TS_SHAPE(6, 2), "S(1)", NULL);
    options.implicit_moves = TS_MOVES_FORBID;
    s = ts_scope_open_with(t->me, &options);
    TEST_STATUS(t, ts_foreach_add((ts_list){ x, 2 }, (ts_list){ y, 2 }, 1, NULL), TS_ERR_POLICY);
    TEST_STATUS(t, ts_scope_close(s), TS_ERR_POLICY);
    s = ts_scope_open_with(t->me, &options);
    ts_sgd_update u = TS_INIT(ts_sgd_update);
    u.param = (ts_list){ x, 2 }, u.grad = (ts_list){ y, 2 }, u.lr = 1, u.step = 1;
    TEST_STATUS(t, ts_fused_sgd(&u), TS_ERR_POLICY);
    TEST_STATUS(t, ts_scope_close(s), TS_ERR_POLICY);
    for (int i = 0; i < 2; i++)
        same(t, x[i], before[i], 0, "untouched");
    TEST_OK(t, ts_foreach_add((ts_list){ x, 2 }, (ts_list){ y, 2 }, 1, NULL)); /* moved, allowed */
    for (int i = 0; i < 2; i++)
        same(t, x[i], ts_mul_scalar(before[i], 2), 0, "moved first");
    options.implicit_moves = 0;
    s = ts_scope_open_with(t->me, &options);
    ts_tensor *pending = ts_sum(x[0], (const int64_t[]){ 0 }, 1, 0);
    u.param = u.grad = (ts_list){ &pending, 1 };
    TEST_STATUS(t, ts_fused_sgd(&u), TS_ERR_SHAPE);
    TEST_STATUS(t, ts_scope_close(s), TS_ERR_SHAPE);
    TEST_SAYS(t, ts_rank_error(t->me)->text, "partial");
    TEST_OK(t, ts_scope_close(outer));
}

/* An update writes each parameter once, whether all of the list is simple, or its first item or its
 * last is not, so that what was noted of the others is taken back. */
TS_TEST_RANKS(an_update_is_one_write_of_each, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    for (int strided = -1; strided < ITEMS - 1; strided++) {
        ts_tensor *x[4][ITEMS];
        uint32_t before[ITEMS];
        for (int k = 0; k < 4; k++)
            fill(mesh, TS_DTYPE_F32, places, 1.0, x[k]);
        for (int k = 0; strided >= 0 && k < 4; k++)
            x[k][strided] = ts_transpose(x[k][strided], 0, 1);
        for (int i = 0; i < ITEMS; i++)
            before[i] = x[0][i]->array->storage->version;
        ts_adamw_update u = TS_INIT(ts_adamw_update);
        u.param = list_of(x[0]), u.grad = list_of(x[1]);
        u.first = list_of(x[2]), u.second = list_of(x[3]);
        u.lr = 1e-2, u.beta1 = 0.9, u.beta2 = 0.95, u.epsilon = 1e-8, u.step = 1;
        TEST_OK(t, ts_fused_adamw(&u));
        for (int i = 0; i < ITEMS; i++) {
            uint32_t writes = x[0][i]->array->storage->version - before[i];
            uint32_t most = i == strided ? 2 : 1; /* a strided one is also copied back */
            TEST_SAY(t, writes >= 1 && writes <= most,
                     "item %d of a list with %d strided: %u writes", i, strided, writes);
        }
    }
}

/* The fast kernels against the plain loops, bit for bit, with any number of threads. */
TS_TEST_RANKS(fast_updates_are_the_plain_ones, 1, 2)
{
    enum { N = 70001 };
    tsi_adamw_step adamw = { 0.01, 0.9, 0.95, 1e-8, 0.1, 0.1, 0.05, 0.75, 1, 0 };
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16, TS_DTYPE_F64 };
    for (int c = 0; c < 3; c++) {
        ts_scope s = ts_scope_open(t->me, "fast");
        ts_mesh *mesh = ts_mesh_self(t->me);
        ts_tensor *x[2][4];
        ts_array view[2][4];
        ts_dtype wide = dtypes[c] == TS_DTYPE_F64 ? TS_DTYPE_F64 : TS_DTYPE_F32;
        tsi_list_item item[2][3] = { { { 0 } } };
        for (int k = 0; k < 4; k++) {
            x[0][k] = ts_rand(mesh, k < 2 ? dtypes[c] : wide, TS_SHAPE(N), NULL);
            x[1][k] = ts_clone(x[0][k]);
            view[1][k] = (ts_array)TS_INIT(ts_array); /* the reference's: memory of the host */
            TEST_OK(t, test_view(x[1][k], &view[1][k]));
        }
        for (int who = 0; who < 2; who++)
            for (int i = 0; i < 3; i++) { /* one large item, an empty one, a small one */
                int64_t first = i == 0 ? 0 : N - 7, count = i == 0 ? N - 7 : i == 1 ? 0 : 7;
                item[who][i].count = count;
                for (int k = 0; k < 4; k++) {
                    ts_dtype dtype = (ts_dtype)x[who][k]->dtype;
                    char *data = who ? view[1][k].data : tsi_array_data(x[0][k]->array);
                    item[who][i].part[k] =
                        (tsi_list_part){ data + (size_t)first * ts_dtype_size(dtype), dtype, 0 };
                }
            }
        tsi_list_io io = { .attributes = &adamw, .item = item[0], .count = 3, .rank = t->me };
        TEST_OK(t, tsi_list_run(&tsi_list_adamw, io));
        io.item = item[1];
        TEST_OK(t, tsi_list_adamw.reference(&io));
        for (int k = 0; k < 4; k++) {
            view[0][k] = (ts_array)TS_INIT(ts_array);
            TEST_OK(t, test_view(x[0][k], &view[0][k]));
            TEST_CHECK(t, memcmp(view[0][k].data, view[1][k].data,
                                 N * ts_dtype_size((ts_dtype)x[0][k]->dtype)) == 0);
        }
        TEST_OK(t, ts_scope_close(s));
    }
}

enum { SIDE = 64 };

/* A column half of a matrix, or all of it: moments in bf16, four steps. */
static void step_columns(test *t, int64_t first, int64_t wide, uint16_t out[2][SIDE * SIDE])
{
    enum { PARAM, GRAD, M, V };
    ts_scope s = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    ts_tensor *x[4];
    for (int k = 0; k < 4; k++) {
        ts_arange_options range = TS_INIT(ts_arange_options);
        range.start = 0.1;
        range.step = k == GRAD ? 0.37 : 0.0;
        ts_tensor *whole = ts_sin(
            ts_arange(ts_mesh_self(t->me), TS_DTYPE_F32, TS_SHAPE(SIDE, SIDE), NULL, &range));
        ts_tensor *part = ts_clone(ts_narrow(whole, 1, (ts_interval){ first, first + wide }));
        x[k] = k < M ? part : ts_cast(part, TS_DTYPE_BF16);
    }
    TEST_OK(t, ts_rank_status(t->me));
    tsi_list_item item = {
        .count = SIDE * wide, .base = first, .inner = wide, .outer = SIDE, .salt = 3
    };
    for (int k = 0; k < 4; k++)
        item.part[k] = (tsi_list_part){ tsi_array_data(x[k]->array), (ts_dtype)x[k]->dtype, 0 };
    for (int step = 1; step <= 4; step++) {
        tsi_adamw_step adamw = { 0.01, 0.9, 0.95, 1e-8, 0.1, 0.1, 0.05, 1.0, step, 7 };
        tsi_list_io io = { .attributes = &adamw, .item = &item, .count = 1, .rank = t->me };
        TEST_OK(t, tsi_list_run(&tsi_list_adamw, io));
    }
    TEST_OK(t, ts_rank_sync(t->me));
    for (int k = M; k <= V; k++) {
        ts_array to = TS_INIT(ts_array);
        uint16_t local[SIDE * SIDE];
        to.data = local;
        to.meta = (ts_meta){ .shape = TS_SHAPE(SIDE, wide), .dtype = TS_DTYPE_BF16 };
        TEST_OK(t, ts_tensor_read(x[k], &to));
        for (int64_t i = 0; i < SIDE * wide; i++)
            out[k - M][i / wide * SIDE + first + i % wide] = local[i];
    }
    TEST_OK(t, ts_scope_close(s));
}

/* Moments in bf16 are rounded by chance, which depends on global places, not on how they are cut.
 */
TS_TEST_RANKS(moments_are_rounded_by_place, 1, 2)
{
    static uint16_t whole[2][2][SIDE * SIDE], parts[2][2][SIDE * SIDE];
    int me = (int)ts_rank_index(t->me);
    step_columns(t, 0, SIDE, whole[me]);
    for (int64_t cut = 21; cut <= 24; cut += 3) { /* eight neighbours in two rows, and in one */
        step_columns(t, 0, cut, parts[me]);
        step_columns(t, cut, SIDE - cut, parts[me]);
        TEST_CHECK(t, memcmp(whole[me], parts[me], sizeof whole[me]) == 0);
    }
}
