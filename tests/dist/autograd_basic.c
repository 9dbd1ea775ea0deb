/* SPDX-License-Identifier: Apache-2.0 */
/* autograd_basic.c - tapes, leaves and gradients of elementwise operators against central
 * differences. */
#include <math.h>

#include "base/compiler.h"
#include "harness/test.h"
#include "tessera/autograd.h"
#include "tessera/op.h"

typedef ts_tensor *(*unary_fn)(ts_tensor *x);

static ts_tensor *chain(ts_tensor *x)
{
    return ts_mul(ts_sigmoid(x), ts_add_scalar(ts_square(x), 1.0));
}

/* d f / d x against (f(x + h) - f(x - h)) / 2h, element by element, on any placement. */
static void check_unary(test *t, ts_mesh *mesh, unary_fn fn, const char *place, const char *name)
{
    ts_scope s = ts_scope_open(t->me, "check");
    ts_arange_options range = TS_INIT(ts_arange_options);
    range.start = 0.15;
    range.step = 0.02;
    ts_tensor *x = ts_watch(ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(5, 4), place, &range));
    ts_tape_begin(t->me);
    ts_tensor *y = fn(x);
    ts_backward_options options = TS_INIT(ts_backward_options);
    options.seed = ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(5, 4), NULL);
    TEST_OK(t, ts_backward(y, &options));
    ts_tensor *dx = ts_tensor_full(ts_tensor_grad(x));
    double h = 1e-6;
    ts_tensor *up = fn(ts_add_scalar(ts_detach(x), h)), *down = fn(ts_add_scalar(ts_detach(x), -h));
    ts_tensor *slope = ts_tensor_full(ts_div_scalar(ts_sub(up, down), 2 * h));
    ts_array a = TS_INIT(ts_array), b = TS_INIT(ts_array);
    TEST_OK(t, test_view(dx, &a));
    TEST_OK(t, test_view(slope, &b));
    for (int i = 0; a.data && b.data && i < 20; i++) {
        double have = ((const double *)a.data)[i], want = ((const double *)b.data)[i];
        TEST_SAY(t, fabs(have - want) <= 1e-6 * (1 + fabs(want)),
                 "%s on %s, element %d: %.12g, not %.12g", name, place, i, have, want);
    }
    ts_scope_close(s);
}

TS_TEST_RANKS(gradients_of_unary_operators, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    static const struct {
        const char *name;
        unary_fn fn;
    } row[] = {
        { "chain", chain },          { "abs", ts_abs },         { "acos", ts_acos },
        { "asin", ts_asin },         { "asinh", ts_asinh },     { "atan", ts_atan },
        { "atanh", ts_atanh },       { "cos", ts_cos },         { "cosh", ts_cosh },
        { "deg2rad", ts_deg2rad },   { "erf", ts_erf },         { "erfc", ts_erfc },
        { "exp", ts_exp },           { "exp2", ts_exp2 },       { "expm1", ts_expm1 },
        { "gelu", ts_gelu },         { "log", ts_log },         { "log10", ts_log10 },
        { "log1p", ts_log1p },       { "log2", ts_log2 },       { "log_sigmoid", ts_log_sigmoid },
        { "neg", ts_neg },           { "rad2deg", ts_rad2deg }, { "reciprocal", ts_reciprocal },
        { "relu", ts_relu },         { "rsqrt", ts_rsqrt },     { "sigmoid", ts_sigmoid },
        { "silu", ts_silu },         { "sin", ts_sin },         { "sinh", ts_sinh },
        { "softplus", ts_softplus }, { "sqrt", ts_sqrt },       { "square", ts_square },
        { "tan", ts_tan },           { "tanh", ts_tanh },
    };
    const char *place[] = { "R", "S(0)", "S(1)" };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        for (int p = 0; p < 3; p++)
            check_unary(t, mesh, row[i].fn, place[p], row[i].name);
}

TS_TEST_RANKS(a_broadcast_operand_gets_the_sum, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    ts_tensor *bias = ts_watch(ts_zeros(mesh, TS_DTYPE_F64, TS_SHAPE(4), "R"));
    ts_tape_begin(t->me);
    ts_tensor *x = ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(5, 4), "S(0)", NULL);
    ts_tensor *y = ts_mul(ts_add(x, bias), x);
    ts_backward_options options = TS_INIT(ts_backward_options);
    options.seed = ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(5, 4), NULL);
    TEST_OK(t, ts_backward(y, &options));
    ts_array a = TS_INIT(ts_array);
    TEST_OK(t, test_view(ts_tensor_grad(bias), &a));
    TEST_CHECK(t, ts_tensor_layout(ts_tensor_grad(bias)) == ts_tensor_layout(bias));
    for (int i = 0; a.data && i < 4; i++)
        TEST_EQ(t, ((const double *)a.data)[i], 40 + 5 * i);
}

TS_TEST_RANKS(repair_4_a_seed_fits_its_root, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    const struct {
        ts_dtype dtype;
        ts_shape shape;
        const char *words;
    } wrong[] = {
        { TS_DTYPE_F32, TS_SHAPE(3, 2), "backward: seed 0 is f32 (3, 2), its root f32 (2, 3)" },
        { TS_DTYPE_F32, TS_SHAPE(3), "seed 0 is f32 (3), its root f32 (2, 3)" },
        { TS_DTYPE_F64, TS_SHAPE(2, 3), "seed 0 is f64 (2, 3), its root f32 (2, 3)" },
    };
    for (int i = 0; i < 4; i++) {
        ts_scope scope =
            ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1, .agree = mesh));
        ts_tape_begin(t->me);
        ts_tensor *x = ts_watch(ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(2, 3), "S(0)"));
        ts_tensor *y = ts_mul(x, x);
        ts_dtype dtype = i < 3 ? wrong[i].dtype : TS_DTYPE_F32;
        ts_tensor *seed = ts_ones(mesh, dtype, i < 3 ? wrong[i].shape : TS_SHAPE(2, 3), NULL);
        ts_status status = ts_backward_from(&y, &seed, 1, NULL);
        TEST_STATUS(t, status, i < 3 ? TS_ERR_SHAPE : TS_OK); /* any layout will do */
        if (i < 3) TEST_SAYS(t, ts_rank_error(t->me)->text, wrong[i].words);
        TEST_CHECK(t, (ts_tensor_grad(x) != NULL) == (i == 3));
        (void)ts_scope_close(scope);
    }
}

/* repair 14: an operator that gives reals and has no gradient says so; truths, draws and constants
 * end a gradient. */
TS_TEST_RANKS(what_has_no_gradient_says_so, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *x = ts_watch(ts_arange(mesh, TS_DTYPE_F32, TS_SHAPE(4), "S(0)", NULL));
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.catches = 1;
    ts_scope scope = ts_scope_open_with(t->me, &options);
    ts_tape_begin(t->me);
    ts_tensor *whole = ts_floor_divide(x, ts_add_scalar(ts_detach(x), 2.0));
    TEST_EQ(t, ts_backward(ts_sum(ts_add(whole, x), NULL, 0, 0), NULL), TS_ERR_STATE);
    const ts_error *error = ts_rank_error(t->me);
    TEST_SAY(t, error && strstr(error->text, "backward of floor_divide: it has no gradient"), "%s",
             error ? error->text : "no error");
    (void)ts_scope_close(scope);
    ts_tape_begin(t->me);
    ts_tensor *some = ts_mul(x, ts_zeros_like(x));
    some = ts_add(some, ts_cast(ts_gt_scalar(x, 1.0), TS_DTYPE_F32));
    TEST_OK(t, ts_backward(ts_sum(some, NULL, 0, 0), NULL));
    some = ts_floor_divide(ts_detach(x), ts_add_scalar(ts_detach(x), 2.0));
    TEST_OK(t, ts_backward(ts_sum(ts_mul(some, x), NULL, 0, 0), NULL));
}

/* An extreme, an average or a product that was pending and is moved gets a gradient that is a
 * pending sum. */
TS_TEST_RANKS(what_was_pending_takes_a_pending_gradient, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_scope s = ts_scope_open(t->me, "pending");
    const int64_t rows[] = { 0 };
    ts_tape_begin(t->me);
    ts_tensor *x = ts_watch(ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(4, 3), "S(0)", NULL));
    ts_tensor *most = ts_redistribute(ts_amax(x, rows, 1, 0), "R");
    ts_tensor *y = ts_mul(most, ts_full(2.0, mesh, TS_DTYPE_F64, TS_SHAPE(5, 3), "S(0)"));
    TEST_OK(t, ts_backward(ts_sum(y, NULL, 0, 0), NULL));
    ts_array view = TS_INIT(ts_array);
    TEST_OK(t, test_view(ts_tensor_full(ts_tensor_grad(x)), &view));
    for (int64_t i = 0; view.data && i < 12; i++)
        TEST_CHECK(t, ((const double *)view.data)[i] == (i < 9 ? 0.0 : 10.0));
    TEST_OK(t, ts_scope_close(s));
    ts_mesh_release(mesh);
}

/* What an operator gives beside, for its own gradient, has none: alone, and with its result. */
typedef struct beside {
    const char *op, *attributes;
    int32_t inputs, output, result;
} beside;

static void refuse_beside(test *t, ts_mesh *mesh, const beside *b, bool with_result)
{
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.catches = 1;
    ts_scope scope = ts_scope_open_with(t->me, &options);
    ts_tape_begin(t->me);
    ts_tensor *x = ts_watch(ts_rand(mesh, TS_DTYPE_F64, TS_SHAPE(4, 3), "S(0)"));
    ts_tensor *w = ts_watch(ts_rand(mesh, TS_DTYPE_F64, TS_SHAPE(3), NULL));
    ts_tensor *in[] = { x, w, w }, *out[3] = { NULL };
    if (strcmp(b->op, "add_rms_norm") == 0) in[1] = x;
    if (strcmp(b->op, "cross_entropy") == 0)
        in[1] = ts_zeros(mesh, TS_DTYPE_I64, TS_SHAPE(4), "S(0)");
    const ts_op *op = ts_op_find(t->me, b->op);
    TEST_OK(t, ts_op_call_json(op, in, b->inputs, b->attributes, out));
    ts_tensor *loss = ts_sum(out[b->output], NULL, 0, 0);
    if (with_result) loss = ts_add(loss, ts_sum(out[b->result], NULL, 0, 0));
    TEST_STATUS(t, ts_backward(loss, NULL), TS_ERR_STATE);
    const ts_error *error = ts_rank_error(t->me);
    TEST_SAYS(t, error ? error->text : "", "has no gradient, and one is asked for; detach it");
    TEST_SAYS(t, error ? error->text : "", b->op);
    (void)ts_scope_close(scope);
}

TS_TEST_RANKS(what_is_given_beside_has_no_gradient, 1, 2)
{
    static const beside row[] = {
        { "rms_norm", "{}", 2, 1, 0 },     { "layer_norm", "{}", 3, 1, 0 },
        { "layer_norm", "{}", 1, 2, 0 },   { "group_norm", "{\"num_groups\": 1}", 1, 1, 0 },
        { "add_rms_norm", "{}", 3, 2, 1 }, { "cross_entropy", "{}", 2, 1, 0 },
    };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    for (size_t i = 0; i < TSI_COUNT_OF(row); i++) {
        refuse_beside(t, mesh, &row[i], false);
        refuse_beside(t, mesh, &row[i], true);
    }
    ts_mesh_release(mesh);
}

/* A backward that is refused leaves its tape as it was: another root, and the same one, can follow.
 */
TS_TEST_RANKS(a_refused_backward_changes_nothing, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *x = ts_full(3, mesh, TS_DTYPE_F64, TS_SHAPE(4), "S(0)"), *grad = NULL;
    ts_tape_begin(t->me);
    ts_tensor *leaf = ts_watch(x), *square = ts_mul(leaf, leaf);
    ts_tensor *good = ts_sum(square, NULL, 0, 0);
    ts_tensor *two = ts_full(2, mesh, TS_DTYPE_F64, TS_SHAPE_SCALAR, NULL);
    ts_tensor *bad = ts_sum(ts_mul(square, ts_floor_divide(leaf, two)), NULL, 0, 0);
    ts_tensor *wrong = ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(3), NULL);
    ts_tensor *roots[] = { good, good }, *seeds[] = { NULL, wrong };
    for (int again = 0; again < 2; again++) {
        ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
        if (again)
            (void)ts_backward(bad, NULL);
        else
            (void)ts_backward_from(roots, seeds, 2, NULL);
        TEST_CHECK(t, ts_scope_close(scope) != TS_OK);
        TEST_SAYS(t, ts_rank_error(t->me)->text, again ? "floor_divide" : "seed 1");
    }
    TEST_OK(t, ts_backward(good, NULL));
    grad = ts_tensor_grad(leaf);
    double sum = 0;
    TEST_OK(t, ts_tensor_item(ts_sum(grad, NULL, 0, 0), &sum));
    TEST_CHECK(t, sum == 4 * 6);
}

/* ---- gradients that are views ---------------------------------------------------------------- */

/* The gradient of a sum is one number seen many times: nobody may turn it where it lies. */
static ts_tensor *turned(ts_mesh *mesh, ts_tensor *x, bool plain)
{
    ts_tensor *table = ts_rand_with(mesh, TS_DTYPE_F64, TS_SHAPE(3, 4), NULL,
                                    TS_OPTIONS(ts_random_options, .stream = "table"));
    ts_tensor *y = ts_rope(x, table), *slope = NULL;
    if (plain) y = ts_mul(y, ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(1, 5, 3, 4), NULL));
    ts_tensor *sum = ts_sum(y, (const int64_t[]){ 1 }, 1, 0);
    ts_status status = ts_grad(ts_sum(ts_square(sum), NULL, 0, 0), &x, 1, &slope);
    return status == TS_OK ? slope : NULL;
}

TS_TEST_RANKS(gradients_of_sums_are_not_written, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_tape_begin(t->me);
    ts_tensor *x = ts_watch(ts_rand(mesh, TS_DTYPE_F64, TS_SHAPE(1, 5, 3, 4), NULL));
    double far = 1;
    ts_tensor *a = turned(mesh, x, false), *b = turned(mesh, x, true);
    TEST_OK(t, ts_tensor_item(ts_amax(ts_abs(ts_sub(a, b)), NULL, 0, 0), &far));
    TEST_SAY(t, far < 1e-14, "off by %g", far);
    TEST_OK(t, ts_scope_close(scope));
}
