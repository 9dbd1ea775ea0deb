/* SPDX-License-Identifier: Apache-2.0 */
/* autograd_faults.c - a step with tapes, checkpoints, hooks and an update, in which the n-th
 * allocation fails, for every n. It ends with TS_ERR_MEMORY, leaves nothing behind, counts no step
 * that failed, and the next world takes the step as if nothing had been. A hook that fails ends
 * backward with its status. */
#include "base/alloc.h"
#include "harness/test.h"
#include "tessera/nn.h"

typedef struct step {
    int64_t fail_at;       /* 0: nothing fails */
    int64_t tried;         /* allocations of the step */
    bool decides;          /* on the device */
    const char *device;    /* NULL: the default */
    bool began, miscounts; /* steps that are counted are not those that ran */
    double loss;
} step;

static void forward(void *state, const ts_module_io *io)
{
    ts_tensor *p = state;
    io->output[0] = ts_tanh(ts_matmul(ts_dropout(io->input[0], 0.2), p));
}

static ts_status quiet(ts_module *m, void *context)
{
    (void)m;
    (void)context;
    return TS_OK;
}

static ts_status quiet_leaf(ts_tensor *t, void *context)
{
    (void)t;
    (void)context;
    return TS_OK;
}

static ts_status take(ts_rank *me, ts_module *m, ts_optimizer *o, step *s)
{
    ts_scope scope = ts_scope_open(me, "step");
    ts_tape_begin(me);
    ts_tensor *x = ts_watch(ts_ones(ts_module_mesh(m), TS_DTYPE_F32, TS_SHAPE(3, 4), NULL));
    if (x) (void)ts_tensor_on_grad(x, quiet_leaf, NULL);
    ts_tensor *y = TS_CALL(m, TS_CALL(m, x));
    if (y) (void)ts_tensor_on_grad(y, quiet_leaf, NULL);
    ts_tensor *total = ts_sum(ts_square(y), NULL, 0, 0);
    if (total) {
        (void)ts_tensor_item(total, &s->loss);
        (void)ts_backward(total, TS_OPTIONS(ts_backward_options, .part = TS_BACKWARD_INPUTS));
        (void)ts_backward(total, TS_OPTIONS(ts_backward_options, .part = TS_BACKWARD_WEIGHTS));
    }
    (void)ts_clip_grad_norm(m, 0.5, NULL);
    (void)(s->decides ? ts_optimizer_step_with(o, NULL) : ts_optimizer_step(o));
    ts_scope_close(scope);
    return ts_rank_status(me);
}

static double first_weight(ts_tensor *p)
{
    double value = 0;
    (void)ts_tensor_item(ts_select(ts_select(p, 0, 0), 0, 0), &value);
    return value;
}

static ts_status work(ts_rank *me, void *argument)
{
    step *s = argument;
    static const ts_module_desc desc = { .struct_size = sizeof desc,
                                         .type = "layer",
                                         .input_count = 1,
                                         .output_count = 1,
                                         .forward = forward };
    static double deviation = 0.5;
    ts_param_options options = TS_INIT(ts_param_options);
    options.init = ts_init_normal;
    options.init_state = &deviation;
    ts_mesh *mesh = ts_mesh_create(me, "dp=1");
    ts_scope scope = ts_scope_open(me, "run");
    /* The state of a module is its parameter here: it is known only once the module is. */
    ts_module *m = ts_module_create(mesh, &desc, NULL);
    ts_tensor *p = ts_module_param(m, "p", TS_SHAPE(4, 4), &options);
    ts_module *layer = ts_module_create(mesh, &desc, p);
    ts_module_add(m, "layer", layer);
    ts_status status = ts_module_materialize(m);
    ts_optimizer *o = ts_adamw_create(m, NULL);
    (void)ts_module_checkpoint(layer, 1);
    s->began = status == TS_OK && o != NULL;
    double before = first_weight(p);
    if (s->began && s->fail_at > 0) (void)tsi_alloc_fail_at(s->fail_at);
    (void)ts_module_on(layer, TS_HOOK_BACKWARD_BEFORE, quiet, NULL);
    (void)ts_module_on(m, TS_HOOK_GRAD_READY, quiet, NULL);
    status = s->began ? take(me, layer, o, s) : ts_rank_status(me);
    s->tried = tsi_alloc_fail_at(0);
    if (status != TS_OK) (void)ts_rank_recover(me);
    s->miscounts = ts_optimizer_steps(o) != (first_weight(p) != before);
    ts_optimizer_destroy(o);
    ts_module_destroy(m);
    ts_scope_close(scope);
    return status;
}

static ts_status run(step *s, char *error, size_t size)
{
    ts_world_options options = {
        .struct_size = sizeof options, .engine = "threads", .rank_count = 1, .seed = 9
    };
    options.device = s->device;
    return ts_launch_with(&options, work, s, error, size);
}

static void fail_all(test *t, bool decides, const char *device)
{
    char error[512] = "";
    step good = { .decides = decides, .device = device }, last = good;
    TEST_OK(t, run(&good, error, sizeof error));
    TEST_CHECK(t, good.began && good.loss > 0);
    int64_t n = 1, failed = 0;
    for (bool reached = true; reached && n < 20000; n++) {
        step s = { .fail_at = n, .decides = decides, .device = device };
        int64_t live = tsi_alloc_live();
        ts_status status = run(&s, error, sizeof error);
        reached = s.tried >= n;
        failed += reached;
        TEST_CHECK(t, s.began);
        TEST_SAY(t, !s.miscounts, "allocation %lld: the count is wrong", (long long)n);
        /* An allocation that only a cache wanted may fail without harm. */
        TEST_SAY(t, status == TS_OK || status == TS_ERR_MEMORY, "allocation %lld: %s: %s",
                 (long long)n, ts_status_name(status), error);
        TEST_SAY(t, tsi_alloc_live() == live, "allocation %lld: %lld stayed (%s)", (long long)n,
                 (long long)(tsi_alloc_live() - live), error);
    }
    TEST_SAY(t, failed > 50, "%lld allocations failed", (long long)failed);
    TEST_OK(t, run(&last, error, sizeof error));
    TEST_CHECK(t, last.loss == good.loss);
}

TS_TEST(every_allocation_of_a_step_may_fail)
{
    fail_all(t, false, NULL);
}

TS_TEST(every_allocation_of_a_step_that_decides_on_the_device_may_fail)
{
    fail_all(t, true, NULL);
}

/* Updates are handed to the queue, which needs memory: they may fail when all else was done. */
TS_TEST(every_allocation_of_a_step_on_a_queue_may_fail)
{
    fail_all(t, false, "queue");
    fail_all(t, true, "queue");
}

/* ---- hooks ----------------------------------------------------------------------------------- */

static ts_status refuse(ts_tensor *t, void *context)
{
    (void)context;
    return ts_rank_fail(ts_tensor_rank(t), TS_ERR_STATE, "the hook does not want this");
}

TS_TEST_RANKS(a_hook_that_fails_ends_backward, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    for (int on_leaf = 0; on_leaf < 2; on_leaf++) {
        ts_scope scope =
            ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1, .agree = mesh));
        ts_tape_begin(t->me);
        ts_tensor *x = ts_watch(ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(4, 2), "dp:S(0)"));
        ts_tensor *h = ts_exp(x);
        TEST_OK(t, ts_tensor_on_grad(on_leaf ? x : h, refuse, NULL));
        TEST_STATUS(t, ts_backward(ts_sum(ts_square(h), NULL, 0, 0), NULL), TS_ERR_STATE);
        TEST_SAYS(t, ts_rank_error(t->me)->text, "does not want");
        TEST_STATUS(t, ts_scope_close(scope), TS_ERR_STATE);
        TEST_OK(t, ts_rank_status(t->me));
    }
}

static ts_status known_name(const char *name, ts_tensor *value, void *context)
{
    (void)value;
    *(bool *)context &= strncmp(name, "p.exp_avg", 9) == 0;
    return TS_OK;
}

/* An optimizer that could be made knows its parameters by name. */
TS_TEST_RANKS(every_allocation_of_an_optimizer_may_fail, 1)
{
    static const ts_module_desc desc = { .struct_size = sizeof desc, .type = "layer" };
    ts_module *m = ts_module_create(ts_mesh_self(t->me), &desc, NULL);
    (void)ts_module_param(m, "p", TS_SHAPE(4, 4), NULL);
    TEST_OK(t, ts_module_materialize(m));
    int64_t n = 1;
    for (bool reached = true; reached && n < 1000; n++) {
        (void)tsi_alloc_fail_at(n);
        ts_optimizer *o = ts_adamw_create(m, NULL);
        reached = tsi_alloc_fail_at(0) >= n;
        bool known = true;
        if (o) TEST_OK(t, ts_optimizer_each(o, known_name, &known));
        TEST_SAY(t, known && (o || ts_rank_status(t->me) == TS_ERR_MEMORY), "allocation %lld",
                 (long long)n);
        ts_optimizer_destroy(o);
        if (!o) TEST_OK(t, ts_rank_recover(t->me));
    }
    TEST_CHECK(t, n > 5);
    ts_module_destroy(m);
}
