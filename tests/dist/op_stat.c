/* SPDX-License-Identifier: Apache-2.0 */
/* op_stat.c - statistics, extremes with indices, sorting, histograms, losses, random operators and
 * answers to the host: every row on placements of one and two axes against replicas, what stays
 * where it is, gradients, refusals. */
#include "dist/op_family.h"
#include "op/core/dispatch.h"

static const char *const rows[] = { "var",
                                    "std",
                                    "vector_norm",
                                    "argmax",
                                    "argmin",
                                    "max",
                                    "min",
                                    "sort",
                                    "topk",
                                    "histc",
                                    "bincount",
                                    "mse_loss",
                                    "l1_loss",
                                    "bce",
                                    "kl_div",
                                    "nll_loss",
                                    "equal",
                                    "allclose",
                                    "group_norm",
                                    "conv",
                                    "conv_backward_input",
                                    "conv_backward_weight",
                                    "max_pool",
                                    "avg_pool",
                                    "avg_pool_backward",
                                    NULL };
static const char *const random_rows[] = { "dropout",      "rand_like", "randn_like",
                                           "randint_like", "bernoulli", NULL };

/* One stream for all calls, so that draws can be compared. */
static void force_stream(test *t)
{
    tsi_op_state *state = tsi_op_state_of(t->me);
    state->stream_is_forced = 1;
    state->stream_forced = 77;
}

TS_TEST_RANKS(rows_on_one_axis, 1, 2, 3, 5)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    family_sweep(t, mesh, rows, 24);
    force_stream(t);
    family_sweep(t, mesh, random_rows, 24);
}

TS_TEST_RANKS(rows_on_two_axes, 4, 6)
{
    ts_mesh *mesh = ts_mesh_create(t->me, t->count == 4 ? "x=2, y=2" : "x=2, y=3");
    family_sweep(t, mesh, rows, 30);
    force_stream(t);
    family_sweep(t, mesh, random_rows, 30);
}

/* ---- what stays ------------------------------------------------------------------------------ */

static ts_tensor *matrix(ts_mesh *mesh, const char *place)
{
    ts_meta meta = { .shape = TS_SHAPE(8, 12), .dtype = TS_DTYPE_F64 };
    return family_input(mesh, 0, &meta, place);
}

TS_TEST_RANKS(a_norm_of_a_sharded_tensor_stays_pending, 4)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=4");
    family_plan(t, ts_vector_norm(matrix(mesh, "S(0)"), NULL), "P(norm:2)", "vector_norm");
    family_plan(t, ts_vector_norm(matrix(mesh, "P(sum)"), NULL), "R", "vector_norm");
    int64_t last = 1;
    family_plan(t,
                ts_vector_norm(matrix(mesh, "S(0)"),
                               TS_OPTIONS(ts_norm_options, .dims = &last, .count = 1, .p = 2)),
                "S(0)", "vector_norm");
    family_plan(t, ts_var(matrix(mesh, "S(0)"), NULL), "R", "var");
    family_plan(t, ts_argmax(matrix(mesh, "S(1)"), 1, 0), "R", "argmax");
    family_plan(t, ts_argmax(matrix(mesh, "S(0)"), 1, 0), "S(0)", "argmax");
    family_plan(
        t,
        ts_histc(matrix(mesh, "S(0)"), TS_OPTIONS(ts_histc_options, .bins = 4, .min = 0, .max = 1)),
        "P(sum)", "histc");
}

TS_TEST_RANKS(equal_elements_give_the_smallest_index, 1, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(7), "S(0)"), *values, *indices;
    double at = -1;
    TEST_EQ(t, ts_tensor_item(ts_argmax(x, 0, 0), &at), TS_OK);
    TEST_CHECK(t, at == 0);
    TEST_EQ(t, ts_topk(x, TS_OPTIONS(ts_topk_options, .k = 3), &values, &indices), TS_OK);
    int64_t n = 0;
    double *list = family_numbers(indices, &n);
    TEST_EQ(t, n, 3);
    for (int64_t i = 0; i < n; i++)
        TEST_CHECK(t, list[i] == (double)i);
    tsi_free(list);
}

/* ---- gradients ------------------------------------------------------------------------------- */

static ts_tensor *call_var(ts_tensor *x, void *context)
{
    return ts_var(x, context);
}
static ts_tensor *call_std(ts_tensor *x, void *context)
{
    return ts_std(x, context);
}
static ts_tensor *call_norm(ts_tensor *x, void *context)
{
    return ts_vector_norm(x, context);
}
static ts_tensor *call_max(ts_tensor *x, void *context)
{
    (void)context;
    ts_tensor *values = NULL;
    return ts_max(x, 1, &values, NULL) == TS_OK ? values : NULL;
}
static ts_tensor *call_sort(ts_tensor *x, void *context)
{
    (void)context;
    ts_tensor *values = NULL;
    return ts_sort(x, NULL, &values, NULL) == TS_OK ? values : NULL;
}
static ts_tensor *call_topk(ts_tensor *x, void *context)
{
    ts_tensor *values = NULL;
    return ts_topk(x, context, &values, NULL) == TS_OK ? values : NULL;
}

TS_TEST_RANKS(gradients, 1, 2)
{
    static const char *const places[] = { "R", "S(0)", "S(1)" };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    int64_t last = -1;
    ts_stat_options row = TS_INIT(ts_stat_options);
    row.dims = &last;
    row.count = 1;
    row.correction = 1;
    ts_norm_options cubes = TS_INIT(ts_norm_options);
    cubes.dims = &last;
    cubes.count = 1;
    cubes.p = 3;
    ts_topk_options two = TS_INIT(ts_topk_options);
    two.k = 2;
    two.dim = 1;
    ts_shape shape = TS_SHAPE(3, 4);
    for (size_t i = 0; i < 3; i++) {
        family_gradient(t, mesh, call_var, &row, shape, places[i], "var");
        family_gradient(t, mesh, call_var, NULL, shape, places[i], "var of all");
        family_gradient(t, mesh, call_std, &row, shape, places[i], "std");
        family_gradient(t, mesh, call_norm, NULL, shape, places[i], "vector_norm");
        family_gradient(t, mesh, call_norm, &cubes, shape, places[i], "vector_norm of 3");
        family_gradient(t, mesh, call_max, NULL, shape, places[i], "max");
        family_gradient(t, mesh, call_sort, NULL, shape, places[i], "sort");
        family_gradient(t, mesh, call_topk, &two, shape, places[i], "topk");
    }
}

static ts_tensor *call_mse(ts_tensor *x, void *context)
{
    return ts_mse_loss(x, context, NULL);
}
static ts_tensor *call_mse_target(ts_tensor *x, void *context)
{
    return ts_mse_loss(context, x, TS_OPTIONS(ts_loss_options, .reduction = TS_LOSS_SUM));
}
static ts_tensor *call_l1(ts_tensor *x, void *context)
{
    return ts_l1_loss(x, context, TS_OPTIONS(ts_loss_options, .reduction = TS_LOSS_NONE));
}
static ts_tensor *call_bce(ts_tensor *x, void *context)
{
    return ts_bce(ts_sigmoid(x), context, NULL);
}
static ts_tensor *call_bce_target(ts_tensor *x, void *context)
{
    return ts_bce(context, ts_sigmoid(x), NULL);
}
static ts_tensor *call_kl(ts_tensor *x, void *context)
{
    return ts_kl_div(x, context, TS_OPTIONS(ts_loss_options, .reduction = TS_LOSS_BATCH_MEAN));
}
static ts_tensor *call_kl_target(ts_tensor *x, void *context)
{
    return ts_kl_div(context, x, TS_OPTIONS(ts_loss_options, .log_target = 1));
}
static ts_tensor *call_nll(ts_tensor *x, void *context)
{
    return ts_nll_loss(x, context, NULL);
}
/* Weights 1, 3, 5, .. of the classes; x: log-probabilities. */
static ts_tensor *class_weights(ts_mesh *mesh, int64_t classes)
{
    ts_tensor *count = ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(classes), NULL, NULL);
    return ts_add_scalar(ts_scale(count, 2), 1);
}
static ts_tensor *call_nll_weighed(ts_tensor *x, void *context)
{
    ts_cross_entropy_options o = TS_CROSS_ENTROPY_OPTIONS_INIT;
    o.weight = class_weights(ts_tensor_mesh(x), 4);
    return ts_nll_loss_with(x, context, &o);
}
/* x: the weights; labels repeat and one is ignored. */
static ts_tensor *call_nll_weights(ts_tensor *x, void *context)
{
    ts_mesh *mesh = ts_tensor_mesh(x);
    ts_cross_entropy_options o = TS_CROSS_ENTROPY_OPTIONS_INIT;
    o.weight = x;
    o.ignore_index = 2;
    o.reduction = *(const int32_t *)context;
    ts_tensor *labels = ts_arange(mesh, TS_DTYPE_I64, TS_SHAPE(5), "S(0)", NULL);
    ts_tensor *log_p = ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(5, 4), "S(0)", NULL);
    labels = ts_remainder(labels, ts_full(3, mesh, TS_DTYPE_I64, TS_SHAPE_SCALAR, NULL));
    return ts_nll_loss_with(ts_scale(log_p, -0.25), labels, &o);
}
static ts_tensor *call_dropout(ts_tensor *x, void *context)
{
    (void)context;
    return ts_dropout(x, 0.5);
}

static ts_tensor *call_group(ts_tensor *x, void *context)
{
    (void)context;
    ts_tensor *weight = ts_arange(ts_tensor_mesh(x), TS_DTYPE_F64, TS_SHAPE(2), NULL, NULL);
    return ts_group_norm(x, ts_add_scalar(weight, 0.5), weight, NULL);
}
static ts_tensor *call_conv(ts_tensor *x, void *context)
{
    static const int64_t one[] = { 1 };
    return ts_conv(x, context, NULL, TS_OPTIONS(ts_conv_options, .padding = one));
}
static ts_tensor *call_conv_weight(ts_tensor *w, void *context)
{
    return ts_conv(context, w, NULL, NULL);
}
static ts_tensor *call_max_pool(ts_tensor *x, void *context)
{
    return ts_max_pool(x, context);
}
static ts_tensor *call_avg_pool(ts_tensor *x, void *context)
{
    return ts_avg_pool(x, context);
}

TS_TEST_RANKS(gradients_of_layers, 1, 2)
{
    static const char *const places[] = { "R", "S(0)", "S(1)", "S(2)" };
    static const int64_t two[] = { 2 }, one[] = { 1 };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_shape shape = TS_SHAPE(3, 2, 4);
    ts_pool_options pool = TS_INIT(ts_pool_options);
    pool.window = two;
    pool.stride = one;
    pool.padding = one;
    ts_tensor *w = ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(2, 2, 3), "S(0)", NULL);
    ts_tensor *x = ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(2, 2, 5), "S(0)", NULL);
    for (size_t i = 0; i < 4; i++) {
        family_gradient(t, mesh, call_group, NULL, shape, places[i], "group_norm");
        family_gradient(t, mesh, call_conv, w, shape, places[i], "conv");
        family_gradient(t, mesh, call_conv_weight, x, shape, places[i], "conv of the weight");
        family_gradient(t, mesh, call_max_pool, &pool, TS_SHAPE(2, 2, 4), places[i], "max_pool");
        family_gradient(t, mesh, call_avg_pool, &pool, shape, places[i], "avg_pool");
    }
}

TS_TEST_RANKS(gradients_of_losses, 1, 2)
{
    static const char *const places[] = { "R", "S(0)", "S(1)" };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_shape shape = TS_SHAPE(3, 4);
    ts_tensor *third = ts_full(0.3, mesh, TS_DTYPE_F64, shape, "S(0)");
    ts_tensor *labels = ts_arange(mesh, TS_DTYPE_I64, TS_SHAPE(3), "S(0)", NULL);
    force_stream(t);
    for (size_t i = 0; i < 3; i++) {
        family_gradient(t, mesh, call_mse, third, shape, places[i], "mse_loss");
        family_gradient(t, mesh, call_mse_target, third, shape, places[i], "mse_loss of target");
        family_gradient(t, mesh, call_l1, third, shape, places[i], "l1_loss");
        family_gradient(t, mesh, call_bce, third, shape, places[i], "bce");
        family_gradient(t, mesh, call_bce_target, third, shape, places[i], "bce of target");
        family_gradient(t, mesh, call_kl, third, shape, places[i], "kl_div");
        family_gradient(t, mesh, call_kl_target, third, shape, places[i], "kl_div of target");
        family_gradient(t, mesh, call_nll, labels, shape, places[i], "nll_loss");
        family_gradient(t, mesh, call_nll_weighed, labels, shape, places[i], "weighed nll_loss");
        family_gradient(t, mesh, call_dropout, NULL, shape, places[i], "dropout");
    }
}

TS_TEST_RANKS(gradients_of_class_weights_of_nll_loss, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    for (int32_t reduction = TS_LOSS_MEAN; reduction <= TS_LOSS_NONE; reduction++)
        for (int cut = 0; cut < 2; cut++)
            family_gradient(t, mesh, call_nll_weights, &reduction, TS_SHAPE(4), cut ? "S(0)" : "R",
                            "nll_loss of its weights");
}

TS_TEST_RANKS(class_weights_of_nll_loss_and_cross_entropy_agree, 1, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_cross_entropy_options o = TS_CROSS_ENTROPY_OPTIONS_INIT;
    o.weight = class_weights(mesh, 5);
    o.ignore_index = 3;
    ts_tensor *labels = ts_arange(mesh, TS_DTYPE_I64, TS_SHAPE(5), "S(0)", NULL);
    ts_tensor *x = ts_sin(ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(5, 5), "S(1)", NULL));
    for (o.reduction = TS_LOSS_MEAN; o.reduction <= TS_LOSS_NONE; o.reduction++) {
        ts_tensor *y = ts_nll_loss_with(ts_log_softmax(x, 1), labels, &o);
        family_same(t, y, ts_cross_entropy_with(x, labels, &o), "weighed losses");
    }
    o.label_smoothing = 0.5;
    FAMILY_REFUSES(t, "label smoothing 0.5", ts_nll_loss_with(x, labels, &o));
    o.label_smoothing = 0;
    o.reduction = TS_LOSS_BATCH_MEAN;
    FAMILY_REFUSES(t, "reduction", ts_nll_loss_with(x, labels, &o));
    o.reduction = TS_LOSS_MEAN;
    o.weight = class_weights(mesh, 4);
    FAMILY_REFUSES(t, "weights of shape", ts_nll_loss_with(x, labels, &o));
}

TS_TEST_RANKS(ignored_labels_do_not_count_on_any_rank, 1, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *labels = ts_arange(mesh, TS_DTYPE_I64, TS_SHAPE(5), "S(0)", NULL);
    ts_tensor *low = ts_full(-100, mesh, TS_DTYPE_I64, TS_SHAPE(5), "S(0)");
    ts_tensor *two = ts_full(2, mesh, TS_DTYPE_I64, TS_SHAPE_SCALAR, NULL);
    ts_tensor *x = ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(5, 5), "S(0)", NULL);
    double loss = 0; /* rows 0 and 1 count: -(0 + 6) / 2 */
    ts_tensor *y = ts_nll_loss(x, ts_where(ts_lt(labels, two), labels, low), NULL);
    TEST_EQ(t, ts_tensor_item(y, &loss), TS_OK);
    TEST_SAY(t, loss == -3.0, "the loss is %g, not -3", loss);
}

/* ---- the host -------------------------------------------------------------------------------- */

TS_TEST_RANKS(equal_is_right_on_partials_and_on_every_rank, 1, 2, 5)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *whole = matrix(mesh, "R"), *pending = matrix(mesh, "P(sum)");
    int same = -1;
    TEST_EQ(t, ts_equal(whole, pending, &same), TS_OK);
    TEST_EQ(t, same, 1);
    ts_tensor *other = ts_add(matrix(mesh, "S(1)"), ts_mul_scalar(ts_tril(whole, -7), 1e-3));
    TEST_EQ(t, ts_equal(whole, other, &same), TS_OK);
    TEST_EQ(t, same, 0);
    TEST_EQ(t, ts_allclose(whole, other, NULL, &same), TS_OK);
    TEST_EQ(t, same, 0);
    TEST_EQ(t, ts_allclose(whole, other, TS_OPTIONS(ts_close_options, .relative = 1e-2), &same),
            TS_OK);
    TEST_EQ(t, same, 1);
}

TS_TEST_RANKS(dropout_keeps_what_is_pending, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=2");
    family_plan(t, ts_dropout(matrix(mesh, "P(sum)"), 0.5), "P(sum)", "dropout");
    family_plan(t, ts_rand_like(matrix(mesh, "P(sum)")), "R", "rand_like");
    family_plan(t, ts_mse_loss(matrix(mesh, "S(0)"), matrix(mesh, "R"), NULL), "P(sum)",
                "mse_loss");
}

/* In another's shape, dtype and placements; what was pending there is whole, but of empty ones. */
TS_TEST_RANKS(tensors_like_another, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    static const char *const place[] = { "R", "S(0)", "S(1)", "P(sum)" };
    ts_tensor *whole = ts_zeros(mesh, TS_DTYPE_I64, TS_SHAPE(5, 7), "S(0)");
    for (int32_t i = 0; i < 4; i++) {
        const char *to = i == 3 ? "R" : place[i];
        ts_tensor *x = matrix(mesh, place[i]), *full = ts_full_like(x, 2.5);
        family_plan(t, full, to, "full_like");
        family_same(t, ts_full(2.5, mesh, TS_DTYPE_F64, ts_tensor_shape(x), "R"), full, to);
        ts_tensor *empty = ts_empty_like(x);
        family_plan(t, empty, place[i], "empty_like");
        TEST_EQ(t, ts_tensor_dtype(empty), TS_DTYPE_F64);
    }
    ts_tensor *two = ts_full_like(whole, 2.5), *drawn = ts_randint_like(whole, -2, 9);
    family_same(t, ts_full(2, mesh, TS_DTYPE_I64, TS_SHAPE(5, 7), "R"), two, "cut off");
    family_same(t, drawn, ts_clamp(drawn, -2, 8), "randint_like");
    family_plan(t, drawn, "S(0)", "randint_like");
    FAMILY_REFUSES(t, "no whole number for i64", ts_full_like(whole, (double)INFINITY));
    FAMILY_REFUSES(t, "from 3 to 3 is empty", ts_randint_like(whole, 3, 3));
    FAMILY_REFUSES(t, "not defined for f64", ts_randint_like(matrix(mesh, "R"), 0, 3));
}

/* ---- refusals -------------------------------------------------------------------------------- */

TS_TEST_RANKS(refusals_name_the_values, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *x = matrix(mesh, "S(0)");
    ts_tensor *whole = ts_zeros(mesh, TS_DTYPE_I64, TS_SHAPE(4), "S(0)");
    FAMILY_REFUSES(t, "not defined for i64", ts_var(whole, NULL));
    FAMILY_REFUSES(t, "13 of the 12 elements",
                   ts_topk(x, TS_OPTIONS(ts_topk_options, .k = 13, .dim = 1), NULL, NULL));
    FAMILY_REFUSES(t, "dim 4 is out of range", ts_argmax(x, 4, 0));
    FAMILY_REFUSES(t, "(4)", ts_mse_loss(x, whole, NULL));
    FAMILY_REFUSES(t, "not a probability", ts_dropout(x, 1.5));
    int same;
    FAMILY_REFUSES(t, "(8, 12)", ts_allclose(x, whole, NULL, &same));
    FAMILY_REFUSES(t, "0 bins", ts_histc(x, TS_OPTIONS(ts_histc_options, .bins = 0)));
}
