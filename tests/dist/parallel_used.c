/* SPDX-License-Identifier: Apache-2.0 */
/* parallel_used.c - units of which not everything is used or trained: ranks agree on what is
 * reduced, in usual, lazy and recorded backwards. Names with a number are the pitfalls of
 * docs/parallel.md. */
#include "parallel_util.h"

static const ts_fsdp_options plain_options = { .struct_size = sizeof plain_options };

typedef struct either_state {
    ts_tensor *a, *b, *c;
    int64_t index, all; /* all: c is used too */
} either_state;

static void either_forward(void *state, const ts_module_io *io)
{
    const either_state *s = state;
    io->output[0] = ts_mul(io->input[0], s->index % 2 ? s->b : s->a);
    if (s->all) io->output[0] = ts_mul(io->output[0], s->c);
}

static ts_module *either(ts_mesh *mesh, either_state *s)
{
    static const ts_module_desc desc = { .struct_size = sizeof(ts_module_desc),
                                         .type = "either",
                                         .input_count = 1,
                                         .output_count = 1,
                                         .forward = either_forward };
    ts_param_options ones = { .struct_size = sizeof ones, .init = ts_init_ones };
    ts_module *m = ts_module_create(mesh, &desc, s);
    s->a = ts_module_param(m, "a", TS_SHAPE(5), &ones);
    s->b = ts_module_param(m, "b", TS_SHAPE(5), &ones);
    s->c = ts_module_param(m, "c", TS_SHAPE(5), &ones);
    return m;
}

/* Even ranks use a, odd ones b, none uses c. */
TS_TEST_RANKS(fsdp_06_ranks_use_different_parameters, 2, 3, 4)
{
    ts_mesh *mesh = units_mesh(t);
    either_state s = { .index = t->index };
    ts_module *m = either(mesh, &s);
    ts_fsdp_options options = plain_options;
    options.unused = 1;
    TEST_OK(t, ts_fsdp(m, &options));
    TEST_OK(t, ts_module_materialize(m));
    for (int round = 0; round < 3; round++) {
        ts_scope scope = ts_scope_open(t->me, NULL);
        ts_tape_begin(t->me);
        ts_tensor *x =
            ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(2 * t->count, 5), "replicate?:S(0) fsdp:S(0)");
        TEST_OK(t, ts_backward(ts_sum(TS_CALL(m, x), NULL, 0, 0), NULL));
        double a = NAN, b = NAN;
        TEST_CHECK(t, ts_tensor_grad(s.c) == NULL);
        TEST_OK(t, ts_tensor_item(ts_sum(ts_tensor_grad(s.a), NULL, 0, 0), &a));
        TEST_OK(t, ts_tensor_item(ts_sum(ts_tensor_grad(s.b), NULL, 0, 0), &b));
        TEST_SAY(t, a == 10 * (double)((t->count + 1) / 2), "a: %g", a);
        TEST_SAY(t, b == 10 * (double)(t->count / 2), "b: %g", b);
        ts_scope_close(scope);
        TEST_OK(t, ts_module_reset(m));
    }
    ts_module_destroy(m);
}

static void normed_forward(void *state, const ts_module_io *io)
{
    ts_tensor *const *weight = state;
    io->output[0] = ts_rms_norm(io->input[0], *weight, 1e-6);
}

/* The gradient of a norm's weight in bf16, whole. */
static ts_tensor *normed_gradient(test *t, ts_mesh *mesh, int64_t width, int32_t unused)
{
    static const ts_module_desc desc = { .struct_size = sizeof(ts_module_desc),
                                         .type = "normed",
                                         .input_count = 1,
                                         .output_count = 1,
                                         .forward = normed_forward };
    ts_param_options ones = { .struct_size = sizeof ones, .init = ts_init_ones };
    ones.dtype = TS_DTYPE_BF16;
    ts_tensor *weight = NULL;
    ts_fsdp_options options = plain_options;
    options.unused = unused;
    ts_module *m = ts_module_create(mesh, &desc, &weight);
    weight = ts_module_param(m, "weight", TS_SHAPE(width), &ones);
    TEST_OK(t, ts_fsdp(m, &options));
    TEST_OK(t, ts_module_materialize(m));
    ts_scope outer = ts_scope_open(t->me, NULL), scope = ts_scope_open(t->me, NULL);
    ts_tape_begin(t->me);
    net n = { .mesh = mesh, .rows = 2 * t->count + 1, .width = width, .dtype = TS_DTYPE_BF16 };
    TEST_OK(t, ts_backward(ts_sum(TS_CALL(m, net_input(&n, 3)), NULL, 0, 0), NULL));
    ts_tensor *gradient = ts_tensor_full(ts_cast(ts_tensor_grad(weight), TS_DTYPE_F32));
    gradient = ts_tensor_retain(ts_scope_pass(outer, gradient));
    TEST_OK(t, ts_scope_close(scope));
    TEST_OK(t, ts_scope_close(outer));
    ts_module_destroy(m);
    return gradient;
}

/* What backward rounds it sums first: each rank has its shard of the gradient before ranks agree on
 * whether it is used. Even and uneven ones, and more ranks than elements. */
TS_TEST_RANKS(fsdp_06_gradients_that_are_sums_already, 1, 2, 3, 4)
{
    static const int64_t widths[] = { 12, 5, 2 };
    ts_mesh *mesh = units_mesh(t);
    for (int i = 0; i < 3; i++) {
        double size = 0, error = NAN;
        ts_tensor *usual = normed_gradient(t, mesh, widths[i], 0),
                  *agreed = normed_gradient(t, mesh, widths[i], 1);
        ts_scope scope = ts_scope_open(t->me, NULL);
        TEST_OK(t, ts_tensor_item(ts_amax(ts_abs(usual), NULL, 0, 0), &size));
        TEST_OK(t, ts_tensor_item(ts_amax(ts_abs(ts_sub(usual, agreed)), NULL, 0, 0), &error));
        TEST_SAY(t, size > 0 && error == 0, "width %d: %g of %g", (int)widths[i], error, size);
        TEST_OK(t, ts_scope_close(scope));
        ts_tensor_release(usual);
        ts_tensor_release(agreed);
    }
}

static void norm_either_forward(void *state, const ts_module_io *io)
{
    const either_state *s = state;
    ts_tensor *y = ts_rms_norm(io->input[0], s->index % 2 ? s->b : s->a, 1e-6);
    io->output[0] = ts_mul(y, s->c);
}

static ts_status norm_backward(test *t, ts_mesh *mesh, ts_dtype dtype, ts_module *m, int32_t lazy)
{
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_tape_begin(t->me);
    ts_tensor *x = ts_ones(mesh, dtype, TS_SHAPE(2 * t->count, 5), "replicate?:S(0) fsdp:S(0)");
    ts_status status = ts_backward(ts_sum(TS_CALL(m, x), NULL, 0, 0),
                                   TS_OPTIONS(ts_backward_options, .lazy = lazy));
    (void)ts_scope_close(scope);
    return status;
}

typedef struct either_calls { /* which norm is used in a lazy backward (-1: there is none), and in
                                 the one behind it */
    int64_t first, index;
    int32_t clears; /* 1: gradients are cleared between */
} either_calls;

static ts_status norm_either(test *t, ts_mesh *mesh, ts_dtype dtype, either_calls of, double *sum)
{
    static const ts_module_desc desc = { .struct_size = sizeof(ts_module_desc),
                                         .type = "either",
                                         .input_count = 1,
                                         .output_count = 1,
                                         .forward = norm_either_forward };
    ts_param_options ones = { .struct_size = sizeof ones, .init = ts_init_ones, .dtype = dtype };
    ts_fsdp_options options = plain_options;
    either_state s = { .index = of.first };
    options.unused = 1;
    ts_module *m = ts_module_create(mesh, &desc, &s);
    s.a = ts_module_param(m, "a", TS_SHAPE(5), &ones);
    s.b = ts_module_param(m, "b", TS_SHAPE(5), &ones);
    s.c = ts_module_param(m, "c", TS_SHAPE(5), &ones);
    TEST_OK(t, ts_fsdp(m, &options));
    TEST_OK(t, ts_module_materialize(m));
    if (of.first >= 0) TEST_OK(t, norm_backward(t, mesh, dtype, m, 1));
    ts_tensor *const all[] = { s.a, s.b, s.c };
    for (int i = 0; of.clears && i < 3; i++)
        TEST_OK(t, ts_tensor_grad_clear(all[i]));
    s.index = of.index;
    ts_status status = norm_backward(t, mesh, dtype, m, 0);
    ts_scope scope = ts_scope_open(t->me, NULL);
    if (status == TS_OK) {
        TEST_OK(t, ts_tensor_item(ts_sum(ts_tensor_grad(s.a), NULL, 0, 0), &sum[0]));
        if (ts_tensor_grad(s.b))
            TEST_OK(t, ts_tensor_item(ts_sum(ts_tensor_grad(s.b), NULL, 0, 0), &sum[1]));
    }
    (void)ts_scope_close(scope);
    if (status != TS_OK) TEST_OK(t, ts_rank_recover(t->me));
    ts_module_destroy(m);
    return status;
}

/* Such sums are right where all ranks along an axis make them; else ranks would meet in sums of two
 * parameters, which is refused, on all. In f32 nothing is summed before. */
TS_TEST_RANKS(fsdp_06_sums_of_two_parameters_are_not_mixed, 2, 3, 4)
{
    ts_mesh *mesh = units_mesh(t);
    double n = (double)t->count, sum[2] = { 0 };
    TEST_OK(t, norm_either(t, mesh, TS_DTYPE_F32, (either_calls){ -1, t->index, 0 }, sum));
    TEST_SAY(t, fabs(sum[0] - 10 * floor((n + 1) / 2)) < 1e-4, "f32: a %g", sum[0]);
    TEST_SAY(t, fabs(sum[1] - 10 * floor(n / 2)) < 1e-4, "f32: b %g", sum[1]);
    TEST_OK(t, norm_either(t, mesh, TS_DTYPE_BF16, (either_calls){ -1, 0, 0 }, sum));
    TEST_SAY(t, sum[0] == 10 * n, "bf16: a %g", sum[0]);
    if (strcmp(t->engine, "threads") != 0) return; /* a process that fails takes others along */
    ts_status status = norm_either(t, mesh, TS_DTYPE_BF16, (either_calls){ -1, t->index, 0 }, sum);
    TEST_EQ(t, status, TS_ERR_STATE);
    if (status != TS_OK)
        TEST_SAYS(t, ts_rank_error(t->me)->text,
                  "fsdp: unit the top of the tree: some ranks use "
                  "parameter a, whose gradient is summed");
}

/* The same of several backwards: a lazy one leaves terms, and a parameter that has some was not
 * used in each of them. */
TS_TEST_RANKS(fsdp_06_nor_are_those_of_lazy_backwards, 2, 3, 4)
{
    ts_mesh *mesh = units_mesh(t);
    const int64_t own = t->index;
    const either_calls mixed[] = {
        { own, 0, 0 }, { 0, own, 0 }, { own, own + 1, 0 }, { own, own, 0 }, { 0, own, 1 }
    };
    double n = (double)t->count, sum[2] = { 0 };
    TEST_OK(t, norm_either(t, mesh, TS_DTYPE_F32, (either_calls){ own, own + 1, 0 }, sum));
    TEST_SAY(t, fabs(sum[0] - 10 * n) < 1e-4 && fabs(sum[1] - 10 * n) < 1e-4, "f32: a %g, b %g",
             sum[0], sum[1]);
    TEST_OK(t, norm_either(t, mesh, TS_DTYPE_BF16, (either_calls){ 0, 1, 0 }, sum));
    TEST_SAY(t, sum[0] == 10 * n && sum[1] == 10 * n, "bf16: a %g, b %g", sum[0], sum[1]);
    TEST_OK(t, norm_either(t, mesh, TS_DTYPE_BF16, (either_calls){ 0, 0, 0 }, sum));
    TEST_SAY(t, sum[0] == 20 * n, "bf16, twice: a %g", sum[0]);
    TEST_OK(t, norm_either(t, mesh, TS_DTYPE_BF16, (either_calls){ own, 0, 1 }, sum));
    TEST_SAY(t, sum[0] == 10 * n, "bf16, cleared between: a %g", sum[0]);
    if (strcmp(t->engine, "threads") != 0) return;
    for (size_t i = 0; i < sizeof mixed / sizeof mixed[0]; i++) {
        ts_status status = norm_either(t, mesh, TS_DTYPE_BF16, mixed[i], sum);
        TEST_SAY(t, status == TS_ERR_STATE, "case %zu: %s", i, ts_status_name(status));
    }
}

typedef struct either_step {
    ts_rank *me;
    ts_module *module;
    ts_optimizer *optimizer;
    ts_tensor *x;
} either_step;

static ts_status either_train(void *context)
{
    const either_step *e = context;
    ts_scope scope = ts_scope_open(e->me, NULL);
    ts_tape_begin(e->me);
    ts_tensor *loss = ts_sum(ts_square(TS_CALL(e->module, e->x)), NULL, 0, 0);
    ts_status status = ts_backward(loss, NULL);
    ts_step_options options = { .struct_size = sizeof options, .norm_max = 0.5, .loss = loss };
    if (status == TS_OK) status = ts_optimizer_step_with(e->optimizer, &options);
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

static ts_status either_steps(either_step *e, bool records)
{
    ts_status status = TS_OK;
    for (int step = 0; step < (records ? 2 : 6) && status == TS_OK; step++)
        status = either_train(e);
    ts_step *recorded = records && status == TS_OK ? ts_step_record(e->me, either_train, e) : NULL;
    if (records && !recorded) status = ts_rank_status(e->me);
    for (int step = 0; recorded && step < 3 && status == TS_OK; step++)
        status = ts_step_replay(recorded);
    ts_step_destroy(recorded);
    return status;
}

/* A recorded step goes the way it went: what is used there is agreed on once. */
TS_TEST_RANKS(fsdp_06_agreed_on_in_a_recorded_step, 1, 2, 3, 4)
{
    double sum[2][3] = { { NAN, NAN, NAN }, { NAN, NAN, NAN } };
    for (int records = 0; records < 2; records++) {
        either_state s = { .index = t->index };
        either_step e = { .me = t->me, .module = either(units_mesh(t), &s) };
        ts_fsdp_options options = plain_options;
        ts_adamw_options adamw = { .struct_size = sizeof adamw, .lr = 0.1, .weight_decay = 0.1 };
        options.unused = 1;
        TEST_OK(t, ts_fsdp(e.module, &options));
        TEST_OK(t, ts_module_materialize(e.module));
        e.optimizer = ts_adamw_create(e.module, &adamw);
        ts_scope scope = ts_scope_open(t->me, NULL);
        e.x = ts_ones(ts_module_mesh(e.module), TS_DTYPE_F32, TS_SHAPE(2 * t->count, 5),
                      "replicate?:S(0) fsdp:S(0)");
        TEST_OK(t, either_steps(&e, records));
        ts_tensor *const parameter[] = { s.a, s.b, s.c };
        for (int i = 0; i < 3; i++)
            TEST_OK(t, ts_tensor_item(ts_sum(parameter[i], NULL, 0, 0), &sum[records][i]));
        ts_scope_close(scope);
        ts_optimizer_destroy(e.optimizer);
        ts_module_destroy(e.module);
    }
    for (int i = 0; i < 3; i++)
        TEST_SAY(t, sum[0][i] == sum[1][i], "parameter %d: %.9g, replayed %.9g", i, sum[0][i],
                 sum[1][i]);
    TEST_CHECK(t, sum[0][0] < 5 && (t->count == 1 || sum[0][1] < 5) && sum[0][2] == 5);
}

static void either_run(test *t, ts_module *m, int32_t lazy)
{
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_tape_begin(t->me);
    ts_tensor *x = ts_ones(ts_module_mesh(m), TS_DTYPE_F32, TS_SHAPE(2 * t->count, 5),
                           "replicate?:S(0) fsdp:S(0)");
    TEST_OK(t, ts_backward(ts_sum(TS_CALL(m, x), NULL, 0, 0),
                           TS_OPTIONS(ts_backward_options, .lazy = lazy)));
    ts_scope_close(scope);
}

/* Micro-batches: what some used in a lazy one is agreed on in the last, which uses others. And a
 * unit that is gathered by hand agrees as any other. */
TS_TEST_RANKS(fsdp_06_agreed_on_later_and_by_hand, 2, 3, 4)
{
    either_state s = { .all = 1 };
    ts_module *m = either(units_mesh(t), &s);
    ts_fsdp_options options = plain_options;
    options.unused = 1;
    TEST_OK(t, ts_fsdp(m, &options));
    TEST_OK(t, ts_module_materialize(m));
    ts_tensor *const parameter[] = { s.a, s.b, s.c };
    for (int by_hand = 0; by_hand < 2; by_hand++) {
        double n = (double)t->count, sum = NAN, norm = NAN;
        double want[] = { by_hand ? 10 * (n - 1) : 10 * (2 * n - 1), 10,
                          by_hand ? 10 * n : 20 * n };
        s.index = t->index == t->count - 1; /* the last one uses b */
        if (by_hand) TEST_OK(t, ts_fsdp_gather(m));
        either_run(t, m, !by_hand);
        s.index = 0; /* all use a */
        if (!by_hand) either_run(t, m, 0);
        if (by_hand) TEST_OK(t, ts_fsdp_release(m));
        TEST_OK(t, ts_clip_grad_norm(m, 0, &norm));
        for (int i = 0; i < 3; i++) {
            TEST_OK(t, ts_tensor_item(ts_sum(ts_tensor_grad(parameter[i]), NULL, 0, 0), &sum));
            TEST_SAY(t, sum == want[i], "parameter %d: %g, not %g", i, sum, want[i]);
        }
        TEST_OK(t, ts_module_reset(m));
    }
    ts_module_destroy(m);
}

/* Frozen and trained in one unit, of other dtypes. */
TS_TEST_RANKS(fsdp_05_frozen_beside_trained, 2, 3)
{
    ts_mesh *mesh = units_mesh(t);
    either_state s = { .index = 0 };
    ts_module *m = either(mesh, &s);
    ts_param_options frozen = {
        .struct_size = sizeof frozen, .init = ts_init_ones, .dtype = TS_DTYPE_F64, .frozen = 1
    };
    ts_tensor *f = ts_module_param(m, "f", TS_SHAPE(7), &frozen);
    TEST_OK(t, ts_fsdp(m, NULL));
    TEST_OK(t, ts_module_materialize(m));
    TEST_OK(t, ts_fsdp_gather(m));
    TEST_EQ(t, ts_layout_replicas(ts_tensor_layout(f)), t->count);
    TEST_OK(t, ts_fsdp_release(m));
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_tape_begin(t->me);
    ts_tensor *x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(4, 5), "fsdp:S(0)");
    TEST_OK(t, ts_backward(ts_sum(TS_CALL(m, x), NULL, 0, 0), NULL));
    TEST_CHECK(t, ts_tensor_grad(f) == NULL && ts_tensor_grad(s.a) != NULL);
    ts_scope_close(scope);
    ts_module_destroy(m);
}
