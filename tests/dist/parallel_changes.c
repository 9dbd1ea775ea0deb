/* SPDX-License-Identifier: Apache-2.0 */
/* parallel_changes.c - parameters of units that are changed where nobody expects it: between
 * forward and backward, beside a unit that was left gathered, in a step that is recorded. What a
 * tensor without units does is done, or refused; numbers are never another's. */
#include <string.h>
#include <time.h>

#include "parallel_util.h"

static const ts_fsdp_options plain_options = { .struct_size = sizeof plain_options };

static net net_of(int64_t count, int64_t width, int64_t rows)
{
    return (
        net){ .count = count, .width = width, .rows = rows, .leaves = -1, .dtype = TS_DTYPE_F64 };
}

/* What is cut so is no run of the whole: it travels, also between threads. */
static int32_t last_dim(const char *name, ts_shape shape, int32_t otherwise, void *context)
{
    (void)name, (void)context;
    return shape.ndim > 0 ? shape.ndim - 1 : otherwise;
}

static ts_fsdp_options options_of(bool travels, int32_t reshard)
{
    ts_fsdp_options options = plain_options;
    if (travels) options.dim = last_dim;
    options.reshard = reshard;
    return options;
}

static void begin_both(test *t, net *units, net *plain, ts_mesh *mesh, const ts_fsdp_options *o)
{
    net_declare(units, mesh, false);
    net_declare(plain, mesh, false);
    TEST_OK(t, net_begin(units, o));
    TEST_OK(t, net_begin(plain, NULL));
}

static void check_alike(test *t, net *units, net *plain, const char *when)
{
    double most = net_difference(t, units, plain);
    TEST_SAY(t, most <= 1e-12, "%s: parameters differ by %g", when, most);
}

/* ---- between forward and backward ------------------------------------------------------------ */

enum { BY_UPDATE, BY_WRITE, IN_PLACE, CHANGES };

typedef struct changed {
    int how, travels, recompute;
    int32_t reshard;
} changed;

/* Weights alone: gains, which cannot be cut, would be noticed without units. */
static void change(ts_rank *me, const net *n, int how)
{
    ts_scope scope = ts_scope_open_with(me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    for (int64_t i = 0; how == BY_UPDATE && i < n->count; i++)
        ts_tensor_grad_clear(ts_module_find_param(n->block[i], "gain"));
    if (how == BY_UPDATE) ts_optimizer_step(n->optimizer);
    for (int64_t i = 0; how != BY_UPDATE && i < n->count; i++) {
        ts_tensor *w = ts_module_find_param(n->block[i], "weight");
        if (how == BY_WRITE) ts_tensor_write(w, ts_mul_scalar(w, 2));
        if (how == IN_PLACE) ts_tril_(w, 0);
    }
    ts_scope_close(scope);
}

static ts_status change_between(ts_rank *me, void *argument)
{
    const changed *c = argument;
    ts_fsdp_options options = options_of(c->travels, c->reshard);
    net n = net_of(2, 6, 5);
    net_declare(&n, ts_mesh_create(me, "fsdp=*"), false);
    for (int64_t b = 0; b < n.count; b++)
        ts_module_checkpoint(n.block[b], c->recompute);
    ts_status status = net_begin(&n, &options);
    net_run(&n, 1, 0, 1); /* gradients for the update */
    ts_scope scope = ts_scope_open(me, NULL);
    ts_tape_begin(me);
    ts_tensor *x = net_input(&n, 2), *y = ts_module_call(n.root, &x, 1);
    ts_tensor *sum = ts_sum(ts_square(y), NULL, 0, 0);
    if (status == TS_OK && c->how < CHANGES) change(me, &n, c->how);
    if (status == TS_OK) status = ts_backward(sum, NULL);
    ts_status closed = ts_scope_close(scope);
    net_end(&n);
    return status == TS_OK ? closed : status;
}

TS_TEST(fsdp_changed_before_backward)
{
    static const int32_t reshard[] = { TS_RESHARD_AUTO, TS_RESHARD_YES, TS_RESHARD_NO };
    for (int i = 0; i < 2 * 3 * 3 * 2 * (CHANGES + 1); i++) {
        char error[1000] = "";
        changed c = { i / 36, i % 2, i / 2 % 3, reshard[i / 6 % 3] };
        ts_world_options world = TS_INIT(ts_world_options);
        world.engine = "threads";
        world.rank_count = 2 + i / 18 % 2;
        ts_status status = ts_launch_with(&world, change_between, &c, error, sizeof error);
        bool refused = status != TS_OK && strstr(error, "changed");
        TEST_SAY(t, c.how == CHANGES ? status == TS_OK : refused,
                 "how %d, travels %d, recompute %d, reshard %d, %d ranks: %s \"%s\"", c.how,
                 c.travels, c.recompute, c.reshard, (int)world.rank_count, ts_status_name(status),
                 error);
    }
}

typedef struct edited_state {
    ts_tensor *weight;
} edited_state;

/* A module that changes its weight before it uses it, as some clip theirs. */
static void edited_forward(void *state, const ts_module_io *io)
{
    const edited_state *s = state;
    ts_scope scope =
        ts_scope_open_with(ts_tensor_rank(s->weight), TS_OPTIONS(ts_scope_options, .no_grad = 1));
    ts_tril_(s->weight, 0);
    ts_scope_close(scope);
    io->output[0] = ts_linear(io->input[0], s->weight, NULL);
}

/* That is seen by the tape of the call, and no reason to refuse it. */
TS_TEST_RANKS(fsdp_changed_inside_of_a_call, 1, 2, 3)
{
    static const ts_module_desc desc = { .struct_size = sizeof(ts_module_desc),
                                         .type = "edited",
                                         .input_count = 1,
                                         .output_count = 1,
                                         .forward = edited_forward };
    for (int i = 0; i < 12; i++) {
        ts_fsdp_options options = options_of(i % 2, i / 2 % 3 - 1);
        if (i >= 6) options.compute = TS_DTYPE_BF16;
        edited_state s = { NULL };
        ts_mesh *mesh = ts_mesh_create(t->me, "fsdp=*");
        ts_module *m = ts_module_create(mesh, &desc, &s);
        ts_param_options ones = { .struct_size = sizeof ones, .init = ts_init_ones };
        s.weight = ts_module_param(m, "weight", TS_SHAPE(7, 7), &ones);
        TEST_OK(t, ts_fsdp(m, &options));
        TEST_OK(t, ts_module_materialize(m));
        for (int step = 0; step < 2; step++) {
            double sum = NAN;
            ts_scope scope = ts_scope_open(t->me, NULL);
            ts_tape_begin(t->me);
            ts_tensor *x = ts_watch(ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(4, 7), "R"));
            TEST_OK(t, ts_backward(ts_sum(TS_CALL(m, x), NULL, 0, 0), NULL));
            TEST_OK(t, ts_tensor_item(ts_sum(ts_tensor_grad(x), NULL, 0, 0), &sum));
            TEST_SAY(t, sum == 4 * 28, "case %d, step %d: %g", i, step, sum);
            TEST_OK(t, ts_scope_close(scope));
        }
        ts_module_destroy(m);
    }
}

/* Under a tape; no backward comes. */
static void abandon_call(test *t, net *n, int64_t salt)
{
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_tape_begin(t->me);
    ts_tensor *x = net_input(n, salt);
    TEST_CHECK(t, ts_module_call(n->root, &x, 1) != NULL);
    TEST_OK(t, ts_scope_close(scope));
}

/* What was kept of the whole over groups of neighbours is not the parameter any more, when that was
 * updated since: the call that kept it never came to its backward. */
TS_TEST_RANKS(fsdp_parts_of_groups_are_as_new_as_shards, 4)
{
    ts_fsdp_options options = options_of(true, 2);
    net units = net_of(3, 8, 9), plain = units;
    begin_both(t, &units, &plain, ts_mesh_create(t->me, "fsdp=4"), &options);
    net *each[] = { &units, &plain };
    double loss[2];
    for (int k = 0; k < 2; k++) {
        net_run(each[k], 1, 0, 1);
        abandon_call(t, each[k], 2);
        TEST_OK(t, ts_optimizer_step(each[k]->optimizer));
        loss[k] = net_run(each[k], 2, 0, 1);
    }
    TEST_SAY(t, fabs(loss[0] - loss[1]) <= 1e-12 * loss[1], "%.17g, not %.17g", loss[0], loss[1]);
    net_end(&units);
    net_end(&plain);
}

/* ---- units that were left gathered ----------------------------------------------------------- */

/* A call whose backward never comes leaves the last unit gathered; so does the switch. Shards are
 * updated all the same, by each rank its own, and nothing that is abandoned later undoes that. */
TS_TEST_RANKS(fsdp_updates_of_what_was_left_gathered, 2, 3, 4)
{
    for (int way = 0; way < 4; way++) {
        ts_fsdp_options options = options_of(way % 2, TS_RESHARD_AUTO);
        net units = net_of(3, 6, 8), plain = units;
        begin_both(t, &units, &plain, units_mesh(t), &options);
        net_train_both(t, &units, &plain, 2, 1e-12);
        if (way > 1) TEST_OK(t, ts_fsdp_set(units.root, TS_FSDP_RESHARD_BACKWARD, 0));
        net *each[] = { &units, &plain };
        for (int k = 0; k < 2; k++) {
            net_run(each[k], 5, 0, 1);
            abandon_call(t, each[k], 7);
            TEST_OK(t, ts_optimizer_step(each[k]->optimizer));
        }
        char text[64] = "";
        ts_tensor *weight = ts_module_find_param(units.root, "blocks.2.weight");
        ts_layout_text(ts_tensor_layout(weight), text, sizeof text);
        TEST_SAYS(t, text, "S(");
        check_alike(t, &units, &plain, "after the update");
        TEST_OK(t, ts_module_reset(units.root));
        check_alike(t, &units, &plain, "after a reset");
        net_train_both(t, &units, &plain, 2, 1e-12);
        net_end(&units);
        net_end(&plain);
    }
}

typedef struct recorded {
    net *n;
    ts_tensor *x;
    int32_t updates;
} recorded;

static ts_status recorded_step(void *context)
{
    const recorded *r = context;
    ts_scope scope = ts_scope_open(ts_tensor_rank(r->x), NULL);
    ts_tape_begin(ts_tensor_rank(r->x));
    ts_tensor *y = TS_CALL(r->n->root, r->x);
    ts_status status = ts_backward(ts_sum(ts_square(y), NULL, 0, 0), NULL);
    if (status == TS_OK && r->updates)
        status =
            ts_optimizer_step_with(r->n->optimizer, TS_OPTIONS(ts_step_options, .norm_max = 0.5));
    ts_status closed = ts_scope_close(scope);
    return status == TS_OK ? closed : status;
}

/* A step that leaves units gathered up to its update runs again as it ran. */
TS_TEST_RANKS(fsdp_recorded_with_units_left_gathered, 1, 2, 3)
{
    static const int32_t reshard[] = { TS_RESHARD_AUTO, TS_RESHARD_YES, TS_RESHARD_NO };
    for (int way = 0; way < 6; way++) {
        ts_fsdp_options options = options_of(way % 2, reshard[way / 2]);
        net twin[2] = { net_of(2, 8, 9), net_of(2, 8, 9) };
        ts_mesh *mesh = ts_mesh_create(t->me, "fsdp=*");
        ts_scope scope = ts_scope_open(t->me, NULL);
        for (int k = 0; k < 2; k++) {
            net_declare(&twin[k], mesh, false);
            TEST_OK(t, net_begin(&twin[k], &options));
            TEST_OK(t, ts_fsdp_set(twin[k].root, TS_FSDP_RESHARD_BACKWARD, 0));
            recorded r = { &twin[k], net_input(&twin[k], 5), 1 };
            for (int i = 0; i < 2; i++)
                TEST_OK(t, recorded_step(&r));
            ts_step *step = k ? ts_step_record(t->me, recorded_step, &r) : NULL;
            TEST_CHECK(t, !k == !step);
            if (!k) TEST_OK(t, recorded_step(&r));
            for (int i = 0; i < 4; i++)
                TEST_OK(t, k && step ? ts_step_replay(step) : recorded_step(&r));
            ts_step_destroy(step);
        }
        double most = net_difference(t, &twin[1], &twin[0]);
        TEST_SAY(t, most == 0, "way %d: they differ by %g", way, most);
        TEST_OK(t, ts_scope_close(scope));
        net_end(&twin[0]);
        net_end(&twin[1]);
    }
}

/* One whose units lie elsewhere where it ends is refused: run again it would read what is old. */
TS_TEST_RANKS(fsdp_recorded_from_cut_to_gathered, 2, 3)
{
    for (int way = 0; way < 2; way++) {
        ts_fsdp_options options = options_of(true, TS_RESHARD_AUTO);
        net n = net_of(2, 8, 9);
        net_declare(&n, ts_mesh_create(t->me, "fsdp=*"), false);
        TEST_OK(t, net_begin(&n, &options));
        ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
        recorded r = { &n, net_input(&n, 5), 0 };
        TEST_OK(t, recorded_step(&r));
        TEST_OK(t, ts_fsdp_set(n.root, TS_FSDP_RESHARD_BACKWARD, way));
        ts_step *step = ts_step_record(t->me, recorded_step, &r);
        TEST_CHECK(t, !way == !step);
        if (!way && ts_rank_error(t->me)) {
            TEST_SAYS(t, ts_rank_error(t->me)->text, "blocks.0.");
            TEST_SAYS(t, ts_rank_error(t->me)->text, "TS_FSDP_RESHARD_BACKWARD");
        }
        ts_step_destroy(step);
        TEST_EQ(t, ts_scope_close(scope) == TS_OK, way);
        TEST_OK(t, ts_rank_recover(t->me));
        net_end(&n);
    }
}

/* ---- sums that wait -------------------------------------------------------------------------- */

/* Micro-batches may go different ways through a net, so that a gradient is partial over an axis in
 * one of them and cut by it in the next. */
TS_TEST_RANKS(fsdp_waits_for_sums_of_different_ways, 4)
{
    net units = net_of(3, 8, 9), plain = units;
    ts_mesh *mesh = ts_mesh_create(t->me, "fsdp=2, tp=2");
    net_declare(&units, mesh, false);
    net_declare(&plain, mesh, false);
    TEST_OK(t, ts_module_plan(units.root, "blocks.0.weight: tp:S(0)\nblocks.1.weight: tp:S(1)\n"
                                          "blocks.1.bias: tp:S(0)\n"));
    TEST_OK(t, net_begin(&units, &plain_options));
    TEST_OK(t, net_begin(&plain, NULL));
    for (int round = 0; round < 2; round++) {
        for (int64_t part = 0; part < 5; part++) {
            units.leaves = plain.leaves = part < 3 ? (int32_t)part : -1;
            TEST_OK(t, ts_fsdp_set(units.root, TS_FSDP_ALL_REDUCE, part == 4));
            net_run(&units, part, 0, 1);
            net_run(&plain, part, part < 4, 1);
        }
        TEST_OK(t, ts_optimizer_step(units.optimizer));
        TEST_OK(t, ts_optimizer_step(plain.optimizer));
        check_alike(t, &units, &plain, "after an update");
    }
    net_end(&units);
    net_end(&plain);
}

/* ---- what units take ------------------------------------------------------------------------- */

/* What is done without an answer is told, so that "leave it alone" can be one. */
static int32_t not_whole(const char *name, ts_shape shape, int32_t otherwise, void *context)
{
    (void)name;
    if (shape.ndim == 0 && otherwise != TS_FSDP_WHOLE) *(int *)context = 1;
    return otherwise == TS_FSDP_WHOLE ? TS_FSDP_IGNORE : otherwise;
}

static int32_t nothing(const char *name, ts_shape shape, int32_t otherwise, void *context)
{
    (void)name, (void)shape, (void)otherwise, (void)context;
    return TS_FSDP_IGNORE;
}

static void check_no_unit(test *t, ts_module *m, const ts_fsdp_options *options, const char *words)
{
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    TEST_CHECK(t, ts_fsdp(m, options) != TS_OK);
    if (ts_rank_error(t->me)) TEST_SAYS(t, ts_rank_error(t->me)->text, words);
    TEST_CHECK(t, ts_scope_close(scope) != TS_OK);
}

TS_TEST_RANKS(fsdp_ignores_by_what_it_would_do, 1, 2, 3)
{
    int wrong = 0;
    ts_fsdp_options options = plain_options;
    options.dim = not_whole;
    options.dim_context = &wrong;
    net units = net_of(2, 6, 5), plain = units;
    ts_mesh *mesh = ts_mesh_create(t->me, "fsdp=*");
    begin_both(t, &units, &plain, mesh, &options);
    TEST_EQ(t, wrong, 0);
    net_end(&units);
    net_end(&plain);
    options.dim = nothing;
    net_declare(&units, mesh, false);
    check_no_unit(t, units.block[0], &options, "not ignored or in a unit below it");
    TEST_OK(t, ts_rank_recover(t->me));
    TEST_OK(t, net_begin(&units, NULL));
    net_run(&units, 1, 0, 1);
    TEST_OK(t, ts_rank_sync(t->me));
    TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
    check_no_unit(t, units.block[0], &plain_options, "has a gradient already");
    TEST_OK(t, ts_rank_recover(t->me));
    net_end(&units);
}

/* ---- steps that are abandoned ---------------------------------------------------------------- */

static ts_status is_late(ts_module *m, void *context)
{
    (void)m;
    if (*(const bool *)context) nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
    return TS_OK;
}

static ts_status run_once(ts_rank *me, net *n, int64_t salt)
{
    ts_scope scope = ts_scope_open(me, NULL);
    ts_tape_begin(me);
    ts_tensor *x = net_input(n, salt), *y = ts_module_call(n->root, &x, 1);
    ts_status status = ts_backward(ts_sum(ts_square(y), NULL, 0, 0), NULL);
    ts_status closed = ts_scope_close(scope);
    return status == TS_OK ? closed : status;
}

/* Its last reduction was under way when a rank gave up, and a scope around it keeps what it made:
 * the next backward has nothing to do with what became of that. */
TS_TEST_RANKS(fsdp_reductions_of_abandoned_steps, 2, 3)
{
    bool late = false;
    net units = net_of(2, 8, 9), plain = units;
    begin_both(t, &units, &plain, ts_mesh_create(t->me, "fsdp=*"), &plain_options);
    TEST_OK(t, ts_module_on(units.block[0], TS_HOOK_BACKWARD_BEFORE, is_late, &late));
    ts_scope outer = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    for (int64_t step = 0; step < 4; step++) {
        if (step == 1) {
            ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
            late = t->index > 0;
            (void)run_once(t->me, &units, step);
            late = false;
            (void)ts_scope_close(scope);
            TEST_OK(t, ts_rank_recover(t->me));
            TEST_OK(t, ts_module_reset(units.root));
        }
        TEST_OK(t, run_once(t->me, &units, step));
        TEST_OK(t, run_once(t->me, &plain, step));
        TEST_OK(t, ts_optimizer_step(units.optimizer));
        TEST_OK(t, ts_optimizer_step(plain.optimizer));
        check_alike(t, &units, &plain, "after a step");
        if (test_failed(t)) break;
    }
    TEST_OK(t, ts_scope_close(outer));
    net_end(&units);
    net_end(&plain);
}
