/* SPDX-License-Identifier: Apache-2.0 */
/* nn_modules.c - trees of modules: names, plans, declaring before there is storage (repair 18). */
#include <math.h>

#include "harness/test.h"
#include "tessera/tessera.h"

static void double_forward(void *state, const ts_module_io *io)
{
    ts_tensor *const *weight = state;
    io->output[0] = ts_mul(io->input[0], *weight);
}

static const ts_module_desc desc = { .struct_size = sizeof(ts_module_desc),
                                     .type = "test",
                                     .input_count = 1,
                                     .output_count = 1,
                                     .forward = double_forward };

static ts_module *part(ts_module *parent, const char *name)
{
    return ts_module_add(parent, name, ts_module_create(ts_module_mesh(parent), &desc, NULL));
}

static ts_scope catching(test *t)
{
    return ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
}

static void check_refused(test *t, ts_scope scope, ts_status want, const char *words)
{
    TEST_STATUS(t, ts_scope_close(scope), want);
    TEST_CHECK(t, ts_rank_error(t->me) != NULL);
    if (ts_rank_error(t->me)) TEST_SAYS(t, ts_rank_error(t->me)->text, words);
}

/* root - "blocks.0" - "inner" : weight, and a group without a name : "norm".weight */
static ts_module *tree(ts_mesh *mesh)
{
    ts_module *root = ts_module_create(mesh, &desc, NULL);
    ts_module *block = part(root, "blocks.0"), *inner = part(block, "inner");
    ts_module *group = part(root, NULL), *norm = part(group, "norm"), *head = part(group, "head");
    ts_param_options normal = TS_INIT(ts_param_options);
    double deviation = 0.5;
    normal.init = ts_init_normal;
    normal.init_state = &deviation;
    ts_module_param(inner, "weight", TS_SHAPE(6, 4), &normal);
    ts_module_param(block, "scale", TS_SHAPE(5), &normal);
    ts_module_param(norm, "weight", TS_SHAPE(4), &normal);
    ts_module_param(head, "weight", TS_SHAPE(3), &normal);
    deviation = 1e30; /* the state of a first value is copied */
    return root;
}

typedef struct names {
    char text[256];
} names;

static ts_status add_name(const char *name, ts_tensor *parameter, void *context)
{
    (void)parameter;
    names *n = context;
    size_t length = strlen(n->text);
    snprintf(n->text + length, sizeof n->text - length, "%s ", name);
    return TS_OK;
}

TS_TEST_RANKS(nn_names_are_full, 1, 2)
{
    ts_module *root = tree(ts_mesh_create(t->me, "tp=*"));
    names all = { "" }, some = { "" };
    TEST_OK(t, ts_module_each(root, add_name, &all));
    TEST_TEXT(t, all.text, "blocks.0.scale blocks.0.inner.weight norm.weight head.weight ");
    ts_module *inner = ts_module_find(root, "blocks.0.inner");
    TEST_OK(t, ts_module_each(inner, add_name, &some));
    TEST_TEXT(t, some.text, "blocks.0.inner.weight ");
    TEST_CHECK(t, ts_module_find_param(inner, "weight") != NULL);
    TEST_CHECK(t, ts_module_find_param(inner, "weight") ==
                      ts_module_find_param(root, "blocks.0.inner.weight"));
    ts_module *norm = ts_module_find(root, "norm");
    TEST_CHECK(t, norm != NULL && ts_module_find(root, "norm.x") == NULL);
    char name[64];
    TEST_EQ(t, ts_module_name(inner, name, sizeof name), 14);
    TEST_TEXT(t, name, "blocks.0.inner");
    ts_module_name(norm, name, sizeof name);
    TEST_TEXT(t, name, "norm");
    TEST_EQ(t, ts_module_name(root, name, sizeof name), 0);
    ts_module_destroy(root);
}

/* A part of a tree that is materialised alone begins with the bits it has in the whole. */
TS_TEST_RANKS(nn_parts_begin_as_the_whole, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "tp=*");
    ts_module *whole = tree(mesh), *parts = tree(mesh);
    TEST_OK(t, ts_module_plan(whole, "*.inner.weight: S(0)"));
    TEST_OK(t, ts_module_materialize(whole));
    TEST_OK(t, ts_module_materialize(ts_module_find(parts, "blocks.0.inner")));
    TEST_CHECK(t, ts_tensor_layout(ts_module_find_param(parts, "norm.weight")) == NULL);
    int equal = 0;
    double largest = 0;
    ts_tensor *a = ts_module_find_param(whole, "blocks.0.inner.weight");
    TEST_OK(t, ts_equal(a, ts_module_find_param(parts, "blocks.0.inner.weight"), &equal));
    TEST_EQ(t, equal, 1);
    TEST_OK(t, ts_tensor_item(ts_amax(ts_abs(a), NULL, 0, 0), &largest));
    TEST_SAY(t, largest > 0.1 && largest < 5, "the first values go up to %g", largest);
    TEST_OK(t, ts_module_materialize(parts)); /* the rest; what has storage keeps it */
    ts_module_destroy(whole);
    ts_module_destroy(parts);
}

TS_TEST_RANKS(nn_declared_reaches_no_kernel, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "tp=*");
    ts_module *root = tree(mesh);
    ts_tensor *weight = ts_module_find_param(root, "blocks.0.inner.weight");
    ts_tensor *x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(2, 4), NULL);
    ts_scope scope = catching(t);
    TEST_CHECK(t, ts_linear(x, weight, NULL) == NULL);
    check_refused(t, scope, TS_ERR_STATE,
                  "linear: input 1 is the parameter blocks.0.inner.weight, which is declared");
    scope = catching(t);
    TEST_CHECK(t, ts_redistribute(weight, "R") == NULL);
    check_refused(t, scope, TS_ERR_STATE, "the parameter blocks.0.inner.weight");
    scope = catching(t);
    ts_list list = { &weight, 1 };
    TEST_STATUS(t, ts_foreach_zero(list), TS_ERR_STATE);
    check_refused(t, scope, TS_ERR_STATE, "the parameter blocks.0.inner.weight");
    /* The handle may outlive its tree; then it has no name. */
    ts_tensor_retain(weight);
    ts_module_destroy(root);
    scope = catching(t);
    TEST_CHECK(t, ts_linear(x, weight, NULL) == NULL);
    check_refused(t, scope, TS_ERR_STATE, "input 1 is a variable without a value");
    ts_tensor_release(weight);
}

TS_TEST_RANKS(nn_plans_that_match_nothing, 1, 2)
{
    static const struct {
        const char *plan, *words;
    } rows[] = {
        { "blocks.*.iner.weight: S(0)", "no parameter matches \"blocks.*.iner.weight\"; did you "
                                        "mean blocks.*.inner.weight" },
        { "*: R\n\n# all\nnorm.wieght: R", "plan, line 4: no parameter matches \"norm.wieght\"; "
                                           "did you mean norm.weight" },
        { "nothing.like.it: R", "names are like blocks.*.inner.weight" },
        { "*", "plan, line 1: expected \"pattern: value\"" },
    };
    ts_module *root = tree(ts_mesh_create(t->me, "tp=*"));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ts_scope scope = catching(t);
        TEST_STATUS(t, ts_module_plan(root, rows[i].plan), TS_ERR_ARG);
        check_refused(t, scope, TS_ERR_ARG, rows[i].words);
    }
    TEST_OK(t, ts_module_plan(root, "*.inner.weight: S(0)\n*: R"));
    TEST_OK(t, ts_module_materialize(root));
    ts_scope scope = catching(t);
    TEST_STATUS(t, ts_module_plan(root, "head.weight: S(0)"), TS_ERR_STATE);
    check_refused(t, scope, TS_ERR_STATE, "the parameter head.weight is materialised already");
    ts_module_destroy(root);
}

TS_TEST_RANKS(nn_two_of_one_name, 1)
{
    ts_module *root = tree(ts_mesh_create(t->me, "tp=*"));
    ts_scope scope = catching(t);
    TEST_CHECK(t, ts_module_param(ts_module_find(root, "blocks.0.inner"), "weight", TS_SHAPE(1),
                                  NULL) == NULL);
    check_refused(t, scope, TS_ERR_ARG, "there is a parameter blocks.0.inner.weight already");
    /* Through another module, which is seen when the tree is complete. */
    TEST_CHECK(t, ts_module_param(root, "norm.weight", TS_SHAPE(1), NULL) != NULL);
    scope = catching(t);
    TEST_STATUS(t, ts_module_materialize(root), TS_ERR_ARG);
    check_refused(t, scope, TS_ERR_ARG, "there is a parameter norm.weight already");
    scope = catching(t);
    TEST_CHECK(t, ts_module_add(root, "again", ts_module_find(root, "norm")) == NULL);
    check_refused(t, scope, TS_ERR_STATE, "has a parent already");
    ts_module_destroy(root);
}

/* Of a function of the caller's own, as many bytes as it says. */
static ts_status init_from(ts_tensor *parameter, const char *name, void *state)
{
    (void)name;
    const double *value = state;
    ts_scope scope = ts_scope_open(ts_tensor_rank(parameter), NULL);
    ts_status status = ts_tensor_write(
        parameter, ts_full(value[1], ts_tensor_mesh(parameter), TS_DTYPE_F32, TS_SHAPE(2), NULL));
    ts_scope_close(scope);
    return status;
}

TS_TEST_RANKS(nn_init_state_is_copied, 1)
{
    ts_module *root = ts_module_create(ts_mesh_self(t->me), &desc, NULL);
    double state[2] = { 1, 7 }, value = 0;
    ts_param_options options = TS_INIT(ts_param_options);
    options.init = init_from;
    options.init_state = state;
    options.init_bytes = sizeof state;
    ts_tensor *p = ts_module_param(root, "p", TS_SHAPE(2), &options);
    state[1] = 9;
    TEST_OK(t, ts_module_materialize(root));
    TEST_OK(t, ts_tensor_item(ts_amax(p, NULL, 0, 0), &value));
    TEST_CHECK(t, value == 7);
    ts_module_destroy(root);
}

/* ---- optimisers ------------------------------------------------------------------------------ */

static ts_tensor *rounded_by_chance(test *t, ts_mesh *mesh, const char *stored)
{
    double deviation = 1;
    ts_param_options options = { .struct_size = sizeof options,
                                 .init = ts_init_normal,
                                 .init_state = &deviation,
                                 .stored = stored };
    ts_module *m = ts_module_create(mesh, &desc, NULL);
    ts_tensor *w = ts_module_param(m, "w", TS_SHAPE(4, 6, 5), &options);
    TEST_OK(t, ts_module_materialize(m));
    ts_optimizer *o =
        ts_adamw_create(m, TS_OPTIONS(ts_adamw_options, .lr = 0.1, .moments = TS_DTYPE_BF16));
    for (int step = 0; step < 3; step++) {
        ts_scope scope = ts_scope_open(t->me, NULL);
        ts_tape_begin(t->me);
        TEST_OK(t, ts_backward(ts_sum(ts_mul(ts_square(w), w), NULL, 0, 0), NULL));
        ts_scope_close(scope);
        TEST_OK(t, ts_optimizer_step(o));
    }
    ts_tensor *value = ts_tensor_full(w);
    TEST_OK(t, ts_tensor_wait(value));
    ts_optimizer_destroy(o);
    ts_module_destroy(m);
    return value;
}

/* Numbers that no optimiser can mean: of adamw and sgd, and a rate that comes later. */
TS_TEST_RANKS(nn_numbers_of_optimisers_are_checked, 1, 2)
{
    static const struct {
        double lr, beta1, beta2, epsilon, decay;
        const char *words;
    } bad[] = { { -1, 0.9, 0.9, 1e-8, 0, "adamw: the rate is -1" },
                { (double)NAN, 0.9, 0.9, 1e-8, 0, "the rate is nan" },
                { 1, 1, 0.9, 1e-8, 0, "beta1 is 1; it is a number from 0 on, and below 1" },
                { 1, 0.9, -0.1, 1e-8, 0, "beta2 is -0.1" },
                { 1, 0.9, 0.9, -1, 0, "epsilon is -1" },
                { 1, 0.9, 0.9, 1e-8, (double)INFINITY, "the weight decay is inf" } };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_module *m = ts_module_create(mesh, &desc, NULL);
    ts_module_param(m, "w", TS_SHAPE(3), NULL);
    TEST_OK(t, ts_module_materialize(m));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ts_scope scope = catching(t);
        const ts_adamw_options o = { .struct_size = sizeof o,
                                     .lr = bad[i].lr,
                                     .beta1 = bad[i].beta1,
                                     .beta2 = bad[i].beta2,
                                     .epsilon = bad[i].epsilon,
                                     .weight_decay = bad[i].decay,
                                     .exact = 1 };
        TEST_CHECK(t, ts_adamw_create(m, &o) == NULL);
        check_refused(t, scope, TS_ERR_ARG, bad[i].words);
    }
    ts_scope scope = catching(t);
    TEST_CHECK(t, !ts_sgd_create(m, TS_OPTIONS(ts_sgd_options, .lr = 1, .momentum = -0.5)));
    check_refused(t, scope, TS_ERR_ARG, "sgd: the momentum is -0.5");
    scope = catching(t);
    ts_sgd_update update = TS_INIT(ts_sgd_update);
    update.lr = -2;
    TEST_STATUS(t, ts_fused_sgd(&update), TS_ERR_ARG);
    check_refused(t, scope, TS_ERR_ARG, "fused_sgd: the rate is -2");
    ts_optimizer *o = ts_adamw_create(m, NULL);
    scope = catching(t);
    TEST_STATUS(t, ts_optimizer_rate(o, (double)NAN), TS_ERR_ARG);
    check_refused(t, scope, TS_ERR_ARG, "adamw: the rate is nan");
    ts_optimizer_destroy(o);
    ts_module_destroy(m);
}

/* A parameter that is laid out anew between steps takes its moments along. */
TS_TEST_RANKS(nn_moments_follow_their_parameter, 1, 2, 3)
{
    static const char *const way[2][3] = { { "R", "R", "R" }, { "S(1)", "S(0)", "R" } };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_scope outer = ts_scope_open(t->me, NULL);
    ts_tensor *value[2];
    for (int k = 0; k < 2; k++) {
        double deviation = 1;
        ts_param_options options = TS_INIT(ts_param_options);
        options.init = ts_init_normal;
        options.init_state = &deviation;
        ts_module *m = ts_module_create(mesh, &desc, NULL);
        ts_tensor *w = ts_module_param(m, "w", TS_SHAPE(4, 5), &options);
        TEST_OK(t, ts_module_materialize(m));
        ts_optimizer *o = ts_adamw_create(m, TS_OPTIONS(ts_adamw_options, .lr = 0.1));
        for (int step = 0; step < 3; step++) {
            const ts_sharding *to = ts_sharding_get(mesh, way[k][step]);
            TEST_OK(t, ts_tensor_relayout(w, to));
            ts_scope scope = ts_scope_open(t->me, NULL);
            ts_tape_begin(t->me);
            TEST_OK(t, ts_backward(ts_sum(ts_mul(ts_square(w), w), NULL, 0, 0), NULL));
            ts_scope_close(scope);
            TEST_OK(t, ts_optimizer_step(o));
        }
        value[k] = ts_tensor_full(w);
        TEST_OK(t, ts_tensor_wait(value[k]));
        ts_optimizer_destroy(o);
        ts_module_destroy(m);
    }
    int equal = 0;
    TEST_OK(t, ts_equal(value[0], value[1], &equal));
    TEST_CHECK(t, equal);
    ts_scope_close(outer);
}

/* Moments that are rounded by chance are rounded by global index, also of three dims (INV-13). */
TS_TEST_RANKS(nn_moments_have_the_same_bits_on_any_mesh, 1, 2, 3, 4)
{
    static const char *const stored[] = { "a:S(0)",
                                          "b:S(0)",
                                          "a:S(1)",
                                          "b:S(2)",
                                          "a:S(0) b:S(1)",
                                          "a:S(0) b:S(2)",
                                          "a:S(0)[0] b:S(0)[1]",
                                          "a:S(1) b:S(2)", /* rows at two distances */
                                          "a:SS(1,2)",     /* several runs of a dim */
                                          "a:SS(1,3) b:S(0)",
                                          "b:HT(0)",
                                          "a:HT(2) b:S(1)" };
    ts_mesh *mesh = ts_mesh_create(t->me, t->count == 4 ? "a=2, b=2" : "a=*, b=1");
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_tensor *want = rounded_by_chance(t, mesh, NULL);
    for (size_t i = 0; i < sizeof stored / sizeof *stored; i++) {
        int equal = 0;
        TEST_OK(t, ts_equal(rounded_by_chance(t, mesh, stored[i]), want, &equal));
        TEST_SAY(t, equal, "%s: other bits than whole", stored[i]);
    }
    ts_scope_close(scope);
}
