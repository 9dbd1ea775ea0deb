/* SPDX-License-Identifier: Apache-2.0 */
/* autograd_thin.c - selected recomputation: the bits of a run that keeps everything in less memory,
 * and nothing is drawn twice. */
#include <math.h>

#include "device/parallel.h"
#include "harness/test.h"
#include "tessera/tessera.h"
#include "tessera/train.h"

static ts_model *declared(ts_mesh *mesh, int32_t family, int64_t loss_rows)
{
    ts_model_config config = { .struct_size = sizeof config,
                               .family = family,
                               .vocab = 50,
                               .hidden = 24,
                               .intermediate = 64,
                               .layers = 3,
                               .heads = 4,
                               .kv_heads = family == TS_MODEL_GPT2 ? 4 : 2,
                               .head_dim = 6,
                               .positions = 32,
                               .tied = family == TS_MODEL_GPT2 };
    if (family == TS_MODEL_MIXTRAL) config.experts = 4;
    if (family == TS_MODEL_MIXTRAL) config.experts_per_token = 2;
    ts_model_options options = { .struct_size = sizeof options, .loss_rows = loss_rows };
    return ts_model_declare(mesh, &config, &options);
}

static ts_model *model_of(ts_mesh *mesh, int32_t family, int what)
{
    ts_model *model = declared(mesh, family, 0);
    for (int64_t i = 1; i + 1 < ts_model_block_count(model); i++)
        ts_module_checkpoint(ts_model_block(model, i), what);
    return model;
}

static ts_status token(const int64_t *global, void *element, void *context)
{
    *(int64_t *)element = (7 * global[0] + 3 * global[1] * global[1] + *(int64_t *)context) % 50;
    return TS_OK;
}

/* Whole, or in two halves. */
static void run_back(ts_tensor *mean, bool split)
{
    if (!split) {
        ts_backward(mean, NULL);
        return;
    }
    ts_backward(mean, TS_OPTIONS(ts_backward_options, .part = TS_BACKWARD_INPUTS));
    ts_backward(mean, TS_OPTIONS(ts_backward_options, .part = TS_BACKWARD_WEIGHTS));
}

static void run(test *t, ts_model *model, bool split)
{
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_tape_begin(t->me);
    ts_meta meta = { .shape = TS_SHAPE(4, 32), .dtype = TS_DTYPE_I64 };
    int64_t salt = 0, next = 3;
    ts_tensor *ids = ts_from_function(token, &salt, ts_model_tokens(model), meta);
    ts_tensor *labels = ts_from_function(token, &next, ts_model_tokens(model), meta);
    run_back(ts_model_loss(model, ids, labels), split);
    ts_scope_close(scope);
}

typedef struct pair {
    test *t;
    ts_module *other;
} pair;

static ts_status same_gradient(const char *name, ts_tensor *parameter, void *context)
{
    const pair *p = context;
    int equal = 0;
    ts_tensor *mine = ts_tensor_grad(parameter);
    ts_tensor *other = ts_tensor_grad(ts_module_find_param(p->other, name));
    TEST_SAY(p->t, mine && other, "%s has no gradient", name);
    if (!mine || !other) return TS_OK;
    TEST_OK(p->t, ts_equal(mine, other, &equal));
    TEST_SAY(p->t, equal, "the gradient of %s differs", name);
    return TS_OK;
}

static void both(test *t, const char *mesh_text, int32_t family, bool split)
{
    ts_mesh *mesh = ts_mesh_create(t->me, mesh_text);
    ts_model *keeps = model_of(mesh, family, TS_RECOMPUTE_NONE);
    ts_model *thin = model_of(mesh, family, TS_RECOMPUTE_SELECT);
    ts_train_shape shape = { .struct_size = sizeof shape, .rows = 4, .context = 32, .moments = 2 };
    ts_train_cost cost[2];
    tsi_parallel_limit(t->me, 1); /* what threads keep for themselves nobody saves */
    TEST_OK(t, ts_train_estimate(keeps, &shape, &cost[0]));
    TEST_OK(t, ts_train_estimate(thin, &shape, &cost[1]));
    tsi_parallel_limit(t->me, 0);
    double share = (double)cost[1].activation_bytes / (double)cost[0].activation_bytes;
    /* Where gradients are added up by the products that make them, a step that keeps everything has
     * its largest moment earlier: of such small models little is left to save. */
    TEST_SAY(t, share < 0.99, "%s, family %d: activations of %.3f of those that are kept",
             mesh_text, family, share);
    TEST_CHECK(t, cost[0].flops_per_token == cost[1].flops_per_token); /* products are kept */
    TEST_OK(t, ts_model_materialize(keeps));
    TEST_OK(t, ts_model_materialize(thin));
    run(t, thin, split);
    run(t, keeps, split);
    pair p = { t, ts_model_module(keeps) };
    TEST_OK(t, ts_module_each(ts_model_module(thin), same_gradient, &p));
    ts_model_destroy(keeps);
    ts_model_destroy(thin);
}

TS_TEST_RANKS(thin_is_the_same_in_less, 1, 2)
{
    static const int32_t family[] = { TS_MODEL_LLAMA, TS_MODEL_QWEN3, TS_MODEL_MIXTRAL,
                                      TS_MODEL_GPT2 };
    for (size_t i = 0; i < 4; i++) {
        both(t, "tp=*", family[i], false);
        both(t, "dp=*", family[i], i % 2 == 0);
    }
}

/* The loss of some rows at a time is the head's, which runs again as any module, and so may all of
 * the model: with the labels of its call. */
TS_TEST_RANKS(a_loss_by_rows_runs_again, 1, 2)
{
    for (int i = 0; i < 12; i++) {
        int32_t family = i % 2 ? TS_MODEL_GPT2 : TS_MODEL_LLAMA;
        ts_mesh *mesh = ts_mesh_create(t->me, i == 11 ? "tp=*" : "dp=*");
        ts_model *keeps = declared(mesh, family, 5), *again = declared(mesh, family, 5);
        ts_module *root = ts_model_module(again),
                  *head = ts_model_block(again, ts_model_block_count(again) - 1);
        ts_module *place[] = { head, ts_module_find(root, "lm_head"), root };
        int what = i < 6 ? TS_RECOMPUTE_FULL : TS_RECOMPUTE_SELECT;
        TEST_OK(t, ts_module_checkpoint(place[i / 2 % 3], what));
        TEST_OK(t, ts_model_materialize(keeps));
        TEST_OK(t, ts_model_materialize(again));
        run(t, again, i % 4 == 1);
        run(t, keeps, i % 4 == 1);
        pair p = { t, ts_model_module(keeps) };
        TEST_OK(t, ts_module_each(root, same_gradient, &p));
        ts_model_destroy(keeps);
        ts_model_destroy(again);
    }
}

static void noisy(void *state, const ts_module_io *io)
{
    ts_tensor *x = ts_mul(io->input[0], *(ts_tensor **)state);
    x = ts_dropout(ts_exp(x), 0.5);
    io->output[0] = ts_exp(ts_mul_scalar(x, 0.1));
}

/* Draws are kept: the gradient is that of the numbers that were drawn. */
TS_TEST_RANKS(thin_keeps_draws, 1, 3)
{
    static const ts_module_desc desc = { .struct_size = sizeof(ts_module_desc),
                                         .type = "noisy",
                                         .input_count = 1,
                                         .output_count = 1,
                                         .forward = noisy };
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    ts_param_options ones = { .struct_size = sizeof ones, .init = ts_init_ones };
    ts_tensor *weight = NULL, *grad[2] = { NULL, NULL };
    ts_scope scope = ts_scope_open(t->me, NULL);
    for (int what = 0; what < 2; what++) {
        ts_module *m = ts_module_create(mesh, &desc, &weight);
        weight = ts_module_param(m, "w", TS_SHAPE(40), &ones);
        TEST_OK(t, ts_module_materialize(m));
        TEST_OK(t, ts_module_checkpoint(m, what ? TS_RECOMPUTE_SELECT : TS_RECOMPUTE_NONE));
        ts_scope inner = ts_scope_open(t->me, what ? "b" : "a");
        ts_tape_begin(t->me);
        ts_tensor *x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(6, 40), "dp:S(0)");
        ts_tensor *y = TS_CALL(m, x);
        TEST_OK(t, ts_backward(ts_sum(ts_square(y), NULL, 0, 0), NULL));
        /* d/dw of exp(0.1 d exp(w))^2 is 2 y^2 log(y): checks y against the same draw */
        int64_t rows = 0;
        ts_tensor *want = ts_sum(ts_scale(ts_mul(ts_square(y), ts_log(y)), 2.0), &rows, 1, 0);
        double most = NAN, size = NAN;
        grad[what] = ts_tensor_grad(weight);
        TEST_OK(t, ts_tensor_item(ts_amax(ts_abs(ts_sub(grad[what], want)), NULL, 0, 0), &most));
        TEST_OK(t, ts_tensor_item(ts_amax(want, NULL, 0, 0), &size));
        TEST_SAY(t, most <= 1e-4 * size, "gradient off by %g of %g", most, size);
        ts_scope_close(inner);
        ts_module_destroy(m);
    }
    ts_scope_close(scope);
}

static void raised(void *state, const ts_module_io *io)
{
    (void)state;
    io->output[0] = ts_exp(io->input[0]);
}

/* Its middle is made again. */
static void raised_twice(void *state, const ts_module_io *io)
{
    (void)state;
    io->output[0] = ts_exp(ts_mul_scalar(ts_square(ts_exp(ts_scale(io->input[0], 0.1))), 0.1));
}

/* What a region hands out is what its gradients use: changed in place since, it is refused as it is
 * where everything is kept. */
TS_TEST_RANKS(thin_refuses_what_was_changed, 1, 2)
{
    static const ts_module_desc desc = { .struct_size = sizeof(ts_module_desc),
                                         .type = "raised",
                                         .input_count = 1,
                                         .output_count = 1,
                                         .forward = raised };
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    for (int what = 0; what < 2; what++) {
        ts_module *m = ts_module_create(mesh, &desc, NULL);
        TEST_OK(t, ts_module_checkpoint(m, what ? TS_RECOMPUTE_SELECT : TS_RECOMPUTE_NONE));
        ts_scope caught = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
        ts_tape_begin(t->me);
        ts_tensor *x = ts_watch(ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(6, 6), "dp:S(0)"));
        ts_tensor *y = ts_tril_(TS_CALL(m, x), 0);
        TEST_STATUS(t, ts_backward(ts_sum(y, NULL, 0, 0), NULL), TS_ERR_STATE);
        TEST_SAYS(t, ts_rank_error(t->me)->text, "changed in place since");
        TEST_STATUS(t, ts_scope_close(caught), TS_ERR_STATE);
        ts_module_destroy(m);
    }
}

/* A backward takes nothing away from calls that it does not reach, and says so where it took what a
 * later one needs. */
TS_TEST_RANKS(thin_keeps_what_other_roots_need, 1, 2)
{
    static const ts_module_desc desc = { .struct_size = sizeof(ts_module_desc),
                                         .type = "raised",
                                         .input_count = 1,
                                         .output_count = 1,
                                         .forward = raised_twice };
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    ts_module *m = ts_module_create(mesh, &desc, NULL);
    double sum[2][2] = { { NAN, NAN }, { NAN, NAN } };
    for (int what = 0; what < 2; what++) {
        TEST_OK(t, ts_module_checkpoint(m, what ? TS_RECOMPUTE_SELECT : TS_RECOMPUTE_NONE));
        ts_scope scope = ts_scope_open(t->me, NULL);
        ts_tape_begin(t->me);
        ts_tensor *x[2], *y[2];
        for (int i = 0; i < 2; i++) {
            x[i] = ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(6, 6), "dp:S(0)");
            x[i] = ts_watch(ts_mul_scalar(x[i], i + 1));
            y[i] = ts_sum(TS_CALL(m, x[i]), NULL, 0, 0);
        }
        for (int i = 1; i >= 0; i--) { /* the later call first, then the earlier one */
            TEST_OK(t, ts_backward(y[i], NULL));
            TEST_OK(t, ts_tensor_item(ts_sum(ts_tensor_grad(x[i]), NULL, 0, 0), &sum[what][i]));
        }
        TEST_OK(t, ts_scope_close(scope));
        scope = ts_scope_open(t->me, NULL);
        ts_tape_begin(t->me);
        for (int i = 0; i < 2; i++)
            y[i] =
                ts_sum(TS_CALL(m, ts_watch(ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(6, 6), "dp:S(0)"))),
                       NULL, 0, 0);
        TEST_OK(t, ts_backward(y[0], NULL));
        TEST_OK(t, ts_backward(y[1], NULL)); /* the root of the first lies below it */
        TEST_OK(t, ts_scope_close(scope));
    }
    for (int i = 0; i < 2; i++)
        TEST_SAY(t, sum[0][i] == sum[1][i] && sum[0][i] > 0, "call %d: %.17g, not %.17g", i,
                 sum[1][i], sum[0][i]);
    ts_module_destroy(m);
}
