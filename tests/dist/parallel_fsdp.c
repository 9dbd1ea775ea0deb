/* SPDX-License-Identifier: Apache-2.0 */
/* parallel_fsdp.c - units of sharded data parallelism: a net in units does what it does without.
 * Names with a number are the pitfalls of docs/parallel.md. */
#include "parallel_util.h"

#include "parallel/unit.h"

static const ts_fsdp_options plain_options = { .struct_size = sizeof plain_options };

static net net_of(int64_t count, int64_t width, int64_t rows)
{
    return (
        net){ .count = count, .width = width, .rows = rows, .leaves = -1, .dtype = TS_DTYPE_F64 };
}

/* A net in units, and the same one without. */
static void begin_both(test *t, net *units, net *plain, ts_mesh *mesh, bool has_table,
                       const ts_fsdp_options *options)
{
    net_declare(units, mesh, has_table);
    net_declare(plain, mesh, has_table);
    TEST_OK(t, net_begin(units, options));
    TEST_OK(t, net_begin(plain, NULL));
}

static void both(test *t, net shape, const ts_fsdp_options *options, double tolerance)
{
    net units = shape, plain = shape;
    ts_mesh *mesh = units_mesh(t);
    begin_both(t, &units, &plain, mesh, false, options);
    net_train_both(t, &units, &plain, 5, tolerance);
    net_end(&units);
    net_end(&plain);
}

TS_TEST_RANKS(fsdp_trains_as_one, 1, 2, 3, 4)
{
    both(t, net_of(3, 6, 5), &plain_options, 1e-12);
}

/* Nine rows on eight ranks: chunks of two, one rank with one row, three with none. They begin with
 * the same bits, and train alike within what their dtype rounds. */
TS_TEST_RANKS(fsdp_01_empty_ranks, 8)
{
    static const struct {
        ts_dtype dtype;
        double tolerance;
    } rows[] = { { TS_DTYPE_F64, 1e-12 },
                 { TS_DTYPE_F32, 1e-5 },
                 { TS_DTYPE_BF16, 0.1 },
                 { TS_DTYPE_F16, 0.02 } };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        net units = net_of(2, 9, 7);
        units.dtype = rows[i].dtype;
        net plain = units;
        begin_both(t, &units, &plain, units_mesh(t), false, &plain_options);
        for (int64_t b = 0; b < units.count; b++)
            TEST_OK(t, ts_fsdp_gather(units.block[b]));
        double most = net_difference(t, &units, &plain);
        TEST_SAY(t, most == 0, "dtype %d: gathered, they differ by %g", rows[i].dtype, most);
        for (int64_t b = 0; b < units.count; b++)
            TEST_OK(t, ts_fsdp_release(units.block[b]));
        net_train_both(t, &units, &plain, 5, rows[i].tolerance);
        net_end(&units);
        net_end(&plain);
    }
}

/* A gathered parameter has the bits it began with, whatever dim it is cut along. */
static int32_t last_dim(const char *name, ts_shape shape, int32_t otherwise, void *context)
{
    (void)name, (void)context;
    return shape.ndim > 0 ? shape.ndim - 1 : otherwise;
}

TS_TEST_RANKS(fsdp_gathers_what_was_cut, 1, 2, 3, 8)
{
    for (int way = 0; way < 2; way++) {
        ts_fsdp_options options = plain_options;
        if (way) options.dim = last_dim;
        net units = net_of(2, 9, 4), plain = units;
        ts_mesh *mesh = units_mesh(t);
        begin_both(t, &units, &plain, mesh, true, &options);
        TEST_OK(t, ts_fsdp_gather(units.block[1]));
        ts_tensor *w = ts_module_find_param(units.block[1], "weight");
        TEST_EQ(t, ts_layout_replicas(ts_tensor_layout(w)), t->count);
        double most = net_difference(t, &units, &plain);
        TEST_SAY(t, most == 0, "they differ by %g", most);
        TEST_OK(t, ts_fsdp_release(units.block[1]));
        TEST_EQ(t, ts_layout_replicas(ts_tensor_layout(w)), 1);
        most = net_difference(t, &units, &plain);
        TEST_SAY(t, most == 0, "they differ by %g", most);
        net_end(&units);
        net_end(&plain);
    }
}

/* What was taken from a tree before training are handles: they follow the updates. */
TS_TEST_RANKS(fsdp_02_captured_handles_follow, 2, 3)
{
    net n = net_of(2, 6, 4);
    net_declare(&n, units_mesh(t), false);
    ts_tensor *early = ts_module_find_param(n.root, "blocks.1.weight");
    TEST_OK(t, net_begin(&n, &plain_options));
    double before = NAN, after = NAN, norm;
    ts_tensor_item(ts_sum(early, NULL, 0, 0), &before);
    net_step(&n, 0, &norm);
    ts_tensor_item(ts_sum(early, NULL, 0, 0), &after);
    TEST_CHECK(t, early == ts_module_find_param(n.root, "blocks.1.weight"));
    TEST_SAY(t, before != after, "%g before and after", before);
    TEST_CHECK(t, ts_layout_replicas(ts_tensor_layout(early)) == 1);
    net_end(&n);
}

typedef struct pair_state {
    ts_tensor *a, *b;
} pair_state;

static void pair_forward(void *state, const ts_module_io *io)
{
    const pair_state *s = state;
    io->output[0] = ts_mul(io->input[0], s->a);
    io->output[1] = ts_mul(io->input[1], s->b);
}

/* Two inputs and two outputs, of which the loss uses both or one: all gradients are reduced. */
static void check_pair(test *t, ts_module *m, const pair_state *s, int32_t uses)
{
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_tape_begin(t->me);
    ts_tensor *x = ts_ones(m->mesh, TS_DTYPE_F32, TS_SHAPE(6, 5), "fsdp:S(0)");
    ts_tensor *in[2] = { x, x }, *out[TSI_OUTPUT_MAX];
    tsi_module_call(m, in, 2, out);
    TEST_OK(t, ts_backward(ts_sum(uses == 2 ? ts_add(out[0], out[1]) : out[0], NULL, 0, 0), NULL));
    TEST_CHECK(t, (ts_tensor_grad(s->b) != NULL) == (uses == 2));
    ts_tensor *const used[2] = { s->a, s->b };
    for (int32_t i = 0; i < uses; i++) {
        double sum = NAN;
        TEST_OK(t, ts_tensor_item(ts_sum(ts_tensor_grad(used[i]), NULL, 0, 0), &sum));
        TEST_SAY(t, sum == 30, "%g", sum);
        TEST_CHECK(t, ts_tensor_layout(ts_tensor_grad(used[i])) == ts_tensor_layout(used[i]));
    }
    ts_scope_close(scope);
    TEST_OK(t, ts_module_reset(m));
}

TS_TEST_RANKS(fsdp_03_several_inputs_and_outputs, 2, 3)
{
    static const ts_module_desc desc = { .struct_size = sizeof(ts_module_desc),
                                         .type = "pair",
                                         .input_count = 2,
                                         .output_count = 2,
                                         .forward = pair_forward };
    ts_mesh *mesh = units_mesh(t);
    pair_state s;
    ts_module *m = ts_module_create(mesh, &desc, &s);
    ts_param_options ones = { .struct_size = sizeof ones, .init = ts_init_ones };
    s.a = ts_module_param(m, "a", TS_SHAPE(5), &ones);
    s.b = ts_module_param(m, "b", TS_SHAPE(5), &ones);
    TEST_OK(t, ts_fsdp(m, NULL));
    TEST_OK(t, ts_module_materialize(m));
    check_pair(t, m, &s, 1);
    check_pair(t, m, &s, 2);
    ts_module_destroy(m);
}

/* Whole numbers and truths in a unit are gathered with the rest and never reduced. */
TS_TEST_RANKS(fsdp_04_other_dtypes_beside, 2, 3, 4)
{
    net units = net_of(2, 7, 6), plain = units;
    ts_mesh *mesh = units_mesh(t);
    begin_both(t, &units, &plain, mesh, true, &plain_options);
    net_train_both(t, &units, &plain, 3, 1e-12);
    static const ts_dtype dtype[] = { TS_DTYPE_I8, TS_DTYPE_BOOL };
    for (int i = 0; i < 2; i++) {
        ts_tensor *table = ts_module_find_param(units.block[i], "table");
        TEST_EQ(t, ts_tensor_dtype(table), dtype[i]);
        TEST_CHECK(t, ts_tensor_grad(table) == NULL);
    }
    net_end(&units);
    net_end(&plain);
}

TS_TEST_RANKS(fsdp_07_unit_used_twice, 2, 3, 4)
{
    net n = net_of(3, 6, 5);
    n.twice = 1;
    both(t, n, &plain_options, 1e-12);
    n.again = 1;
    both(t, n, &plain_options, 1e-12);
}

TS_TEST_RANKS(fsdp_runs_again, 1, 2, 3, 4)
{
    net n = net_of(3, 6, 5);
    n.again = 1;
    both(t, n, &plain_options, 1e-12);
}

/* Between the directions a rank holds its part of what its group of neighbours has, so that
 * backward gathers inside of the group. */
TS_TEST_RANKS(fsdp_14_parts_of_groups, 4, 6, 8)
{
    ts_fsdp_options options = plain_options;
    options.dim = last_dim; /* they travel */
    options.reshard = 2;
    net n = net_of(3, 24, 5);
    net_declare(&n, ts_mesh_create(t->me, "fsdp=*"), false);
    TEST_OK(t, net_begin(&n, &options));
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_tape_begin(t->me);
    ts_tensor *x = net_input(&n, 0);
    TEST_CHECK(t, ts_module_call(n.root, &x, 1) != NULL);
    const tsi_unit *u = n.block[0]->unit;
    TEST_CHECK(t, u->param[0].part != NULL);
    if (u->param[0].part)
        TEST_EQ(t, ts_layout_replicas(ts_tensor_layout(u->param[0].part)), t->count / 2);
    ts_scope_close(scope);
    TEST_OK(t, ts_module_reset(n.root));
    net_end(&n);
}

TS_TEST_RANKS(fsdp_14_reshard, 1, 2, 4, 6)
{
    static const int32_t ways[] = { TS_RESHARD_YES, TS_RESHARD_NO, TS_RESHARD_AUTO, 1, 2, 3 };
    char text[32];
    snprintf(text, sizeof text, "fsdp=%d", (int)t->count);
    ts_mesh *mesh = ts_mesh_create(t->me, text);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        if (ways[i] > 0 && t->count % ways[i] != 0) continue;
        ts_fsdp_options options = plain_options;
        options.reshard = ways[i];
        net units = net_of(3, 9, 5), plain = units;
        begin_both(t, &units, &plain, mesh, false, &options);
        net_train_both(t, &units, &plain, 3, 1e-12);
        net_end(&units);
        net_end(&plain);
    }
}

/* Micro-batches: reduced each time, or kept whole and reduced at the end. */
TS_TEST_RANKS(fsdp_accumulates, 1, 2, 3, 4)
{
    net units = net_of(2, 6, 5), plain = units;
    ts_mesh *mesh = units_mesh(t);
    begin_both(t, &units, &plain, mesh, false, &plain_options);
    for (int way = 0; way < 2; way++) {
        for (int64_t part = 0; part < 3; part++) {
            net_run(&units, part, way == 1 && part < 2, 1);
            net_run(&plain, part, part < 2, 1);
        }
        double a = NAN, b = NAN;
        TEST_OK(t, ts_clip_grad_norm(units.root, 0, &a));
        TEST_OK(t, ts_clip_grad_norm(plain.root, 0, &b));
        TEST_SAY(t, fabs(a - b) <= 1e-12 * b, "way %d: %.17g, not %.17g", way, a, b);
        TEST_OK(t, ts_optimizer_step(units.optimizer));
        TEST_OK(t, ts_optimizer_step(plain.optimizer));
    }
    double most = net_difference(t, &units, &plain);
    TEST_SAY(t, most <= 1e-12, "they differ by %g", most);
    net_end(&units);
    net_end(&plain);
}

/* Copies are summed with the last micro-batch alone: the same to the last digits, in f64. */
TS_TEST_RANKS(fsdp_12_all_reduce_off, 4)
{
    net units = net_of(2, 6, 8), plain = units;
    ts_mesh *mesh = units_mesh(t);
    begin_both(t, &units, &plain, mesh, false, &plain_options);
    for (int64_t part = 0; part < 3; part++) {
        TEST_OK(t, ts_fsdp_set(units.root, TS_FSDP_ALL_REDUCE, part == 2));
        net_run(&units, part, 0, 1);
        net_run(&plain, part, part < 2, 1);
        ts_tensor *grad = ts_tensor_grad(ts_module_find_param(units.root, "blocks.0.weight"));
        TEST_EQ(t, ts_layout_terms(ts_tensor_layout(grad)), part < 2 ? 2 : 1);
    }
    double norm[2];
    TEST_OK(t, ts_clip_grad_norm(units.root, 0, &norm[0]));
    TEST_OK(t, ts_clip_grad_norm(plain.root, 0, &norm[1]));
    TEST_SAY(t, fabs(norm[0] - norm[1]) <= 1e-14 * norm[1], "%.17g, not %.17g", norm[0], norm[1]);
    net_end(&units);
    net_end(&plain);
}

/* What copies have not summed yet is summed where somebody wants the gradient: the norm, and the
 * update of a parameter that the last micro-batch does not use. */
TS_TEST_RANKS(fsdp_12_partly_reduced_gradients_settle, 4)
{
    net units = net_of(3, 6, 8), plain = units;
    ts_mesh *mesh = units_mesh(t);
    begin_both(t, &units, &plain, mesh, false, &plain_options);
    for (int64_t part = 0; part < 2; part++) {
        double norm[2] = { NAN, NAN };
        TEST_OK(t, ts_fsdp_set(units.root, TS_FSDP_ALL_REDUCE, part == 1));
        units.leaves = plain.leaves = part == 1 ? 1 : -1;
        net_run(&units, part, 0, 1);
        net_run(&plain, part, 0, 1);
        for (int i = 0; part == 0 && i < 2; i++) /* one that is asked for, the others by the norm */
            TEST_OK(t, ts_grad_settle(ts_module_find_param(units.root, "blocks.0.weight")));
        if (part == 1) TEST_OK(t, ts_clip_grad_norm(units.root, 0, &norm[0]));
        if (part == 1) TEST_OK(t, ts_clip_grad_norm(plain.root, 0, &norm[1]));
        TEST_SAY(t, part == 0 || fabs(norm[0] - norm[1]) <= 1e-13 * norm[1], "%.17g, not %.17g",
                 norm[0], norm[1]);
    }
    TEST_OK(t, ts_optimizer_step(units.optimizer));
    TEST_OK(t, ts_optimizer_step(plain.optimizer));
    double most = net_difference(t, &units, &plain);
    TEST_SAY(t, most <= 1e-12, "they differ by %g", most);
    net_end(&units);
    net_end(&plain);
}

/* A factor on gradients is one on all that they are made of: what a lazy backward added lies apart
 * from what was reduced before it. */
TS_TEST_RANKS(fsdp_scales_what_waits, 1, 2, 3)
{
    net units = net_of(2, 6, 5), plain = units;
    ts_mesh *mesh = units_mesh(t);
    begin_both(t, &units, &plain, mesh, false, &plain_options);
    double norm[2] = { NAN, NAN };
    net *const both_nets[] = { &units, &plain };
    for (int i = 0; i < 2; i++) {
        net_run(both_nets[i], 0, 0, 1);
        net_run(both_nets[i], 1, 1, 1);
        TEST_OK(t, ts_grad_scale(both_nets[i]->root, 0.25));
        TEST_OK(t, ts_clip_grad_norm(both_nets[i]->root, 0, &norm[i]));
    }
    TEST_SAY(t, fabs(norm[0] - norm[1]) <= 1e-13 * norm[1], "%.17g, not %.17g", norm[0], norm[1]);
    net_end(&units);
    net_end(&plain);
}

/* A unit that was gathered ahead and is not called: dropped, the order is noted again. */
TS_TEST_RANKS(fsdp_16_prefetch_for_nothing, 2, 3)
{
    net units = net_of(4, 6, 5), plain = units;
    ts_mesh *mesh = units_mesh(t);
    begin_both(t, &units, &plain, mesh, false, &plain_options);
    net_train_both(t, &units, &plain, 3, 1e-12);
    ts_fsdp_stats before = { .struct_size = sizeof before }, after = before;
    TEST_OK(t, ts_fsdp_statistics(units.root, &before));
    TEST_CHECK(t, before.prefetched > 0 && before.dropped == 0 && before.orders == 0);
    units.leaves = plain.leaves = 2;
    net_train_both(t, &units, &plain, 2, 1e-12);
    TEST_OK(t, ts_fsdp_statistics(units.root, &after));
    TEST_EQ(t, after.dropped, 1);
    TEST_EQ(t, after.orders, 1);
    for (int64_t i = 0; i < 4; i++)
        TEST_EQ(t, ((const tsi_unit *)units.block[i]->unit)->state, TSI_UNIT_CUT);
    net_end(&units);
    net_end(&plain);
}

/* An evaluation between steps leaves nothing behind, and does not disturb the order. */
TS_TEST_RANKS(fsdp_17_evaluation_between_steps, 2, 4)
{
    for (int32_t reshard = TS_RESHARD_NO; reshard <= 0; reshard++) {
        ts_fsdp_options options = plain_options;
        options.reshard = reshard;
        net units = net_of(3, 6, 5), plain = units;
        ts_mesh *mesh = units_mesh(t);
        begin_both(t, &units, &plain, mesh, false, &options);
        for (int round = 0; round < 3; round++) {
            net_train_both(t, &units, &plain, 2, 1e-12);
            ts_scope scope = ts_scope_open(t->me, NULL);
            ts_tensor *x = net_input(&units, 99);
            double a = NAN, b = NAN;
            ts_tensor_item(ts_sum(ts_module_call(units.root, &x, 1), NULL, 0, 0), &a);
            ts_tensor_item(ts_sum(ts_module_call(plain.root, &x, 1), NULL, 0, 0), &b);
            TEST_SAY(t, fabs(a - b) <= 1e-12 * fabs(b), "%.17g, not %.17g", a, b);
            ts_scope_close(scope);
            for (int64_t i = 0; i < 3; i++)
                TEST_EQ(t, ((const tsi_unit *)units.block[i]->unit)->state, TSI_UNIT_CUT);
        }
        ts_fsdp_stats stats = { .struct_size = sizeof stats };
        TEST_OK(t, ts_fsdp_statistics(units.root, &stats));
        TEST_EQ(t, stats.orders, 0);
        net_end(&units);
        net_end(&plain);
    }
}

/* ---- bad input ------------------------------------------------------------------------------- */

static void refused(test *t, ts_module *m, const ts_fsdp_options *options, const char *words)
{
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    TEST_CHECK(t, ts_fsdp(m, options) != TS_OK);
    if (ts_rank_error(t->me)) TEST_SAYS(t, ts_rank_error(t->me)->text, words);
    TEST_CHECK(t, ts_scope_close(scope) != TS_OK);
}

TS_TEST_RANKS(fsdp_refuses, 4)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "fsdp=4");
    net n = net_of(2, 6, 4);
    net_declare(&n, mesh, false);
    ts_fsdp_options options = plain_options;
    options.axes = "fdsp";
    refused(t, n.block[0], &options, "fsdp: unit blocks.0");
    options = plain_options;
    options.reshard = 3;
    refused(t, n.block[0], &options, "fsdp: unit blocks.0: groups of 3 ranks do not divide the 4");
    TEST_OK(t, ts_fsdp(n.block[0], NULL));
    refused(t, n.block[0], NULL, "fsdp: blocks.0 is a unit already");
    TEST_OK(t, ts_fsdp(n.block[1], NULL));
    refused(t, n.root, NULL,
            "fsdp: the top of the tree has no parameters that are not in a unit below it");
    ts_param_options frozen = { .struct_size = sizeof frozen, .frozen = 1 };
    ts_module *top = ts_module_create(mesh, &net_desc, NULL);
    ts_module_param(top, "w", TS_SHAPE(4), &frozen);
    refused(t, top, NULL, "the top of the tree: all of its 1 parameters are frozen");
    ts_module_destroy(top);
    TEST_OK(t, net_begin(&n, NULL));
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    ts_tensor_write(ts_module_find_param(n.root, "blocks.1.bias"),
                    ts_zeros(mesh, TS_DTYPE_F64, TS_SHAPE(7), NULL));
    ts_tensor *x = net_input(&n, 0);
    TEST_CHECK(t, ts_module_call(n.root, &x, 1) == NULL);
    TEST_SAYS(t, ts_rank_error(t->me)->text,
              "fsdp: unit blocks.1: parameter blocks.1.bias is (7) now and was declared as (6)");
    ts_scope_close(scope);
    net_end(&n);
}

typedef struct giver_state { /* hands its weight out beside its outputs */
    ts_tensor *weight, *given;
} giver_state;

static void giver_forward(void *state, const ts_module_io *io)
{
    giver_state *s = state;
    s->given = s->weight;
    io->output[0] = io->input[0];
}

/* What a unit's weights are used for is not in its call: backward would pass by, and no gradient
 * would be reduced. Without a tape, or where ranks may differ, it is no error. */
TS_TEST_RANKS(fsdp_a_unit_without_trigger, 1, 2, 3)
{
    static const ts_module_desc desc = { .struct_size = sizeof(ts_module_desc),
                                         .type = "giver",
                                         .input_count = 1,
                                         .output_count = 1,
                                         .forward = giver_forward };
    ts_param_options ones = { .struct_size = sizeof ones, .init = ts_init_ones };
    for (int way = 0; way < 3; way++) {
        ts_mesh *mesh = units_mesh(t);
        giver_state s = { 0 };
        ts_fsdp_options options = plain_options;
        options.unused = way == 1;
        ts_module *top = ts_module_create(mesh, &net_desc, NULL);
        ts_module *m = ts_module_add(top, "giver", ts_module_create(mesh, &desc, &s));
        s.weight = ts_module_param(m, "weight", TS_SHAPE(6), &ones);
        TEST_OK(t, ts_fsdp(m, &options));
        TEST_OK(t, ts_module_materialize(top));
        ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
        if (way < 2) ts_tape_begin(t->me);
        ts_tensor *x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(4, 6), NULL);
        ts_tensor *y = TS_CALL(m, x);
        TEST_CHECK(t, (y == NULL) == (way == 0));
        if (way == 0 && ts_rank_error(t->me))
            TEST_SAYS(t, ts_rank_error(t->me)->text,
                      "fsdp: unit giver: it has 1 trained parameters, and its call recorded "
                      "nothing");
        TEST_CHECK(t, (ts_scope_close(scope) != TS_OK) == (way == 0));
        ts_module_destroy(top);
    }
}

/* ---- special parameters ---------------------------------------------------------------------- */

typedef struct toggled_state {
    ts_tensor *a, *b, *table;
    int32_t frozen; /* b is, in this step */
} toggled_state;

static void toggled_forward(void *state, const ts_module_io *io)
{
    const toggled_state *s = state;
    ts_tensor *b = s->frozen ? ts_detach(s->b) : s->b;
    ts_tensor *y = ts_mul(ts_mul(io->input[0], s->a), b);
    io->output[0] = ts_mul(y, ts_cast(s->table, TS_DTYPE_F32));
}

/* A parameter is frozen in some steps and trained in others, beside one that always is, of another
 * dtype: what is trained is reduced, in every order of such steps, and nothing is said of dtypes.
 */
TS_TEST_RANKS(fsdp_05_frozen_and_trained_in_turns, 2, 3, 4)
{
    static const ts_module_desc desc = { .struct_size = sizeof(ts_module_desc),
                                         .type = "toggled",
                                         .input_count = 1,
                                         .output_count = 1,
                                         .forward = toggled_forward };
    ts_param_options ones = { .struct_size = sizeof ones, .init = ts_init_ones };
    ts_param_options wide = { .struct_size = sizeof wide, .init = ts_init_ones };
    wide.dtype = TS_DTYPE_F64;
    wide.frozen = 1;
    ts_mesh *mesh = units_mesh(t);
    toggled_state s = { 0 };
    ts_module *m = ts_module_create(mesh, &desc, &s);
    s.a = ts_module_param(m, "a", TS_SHAPE(5), &ones);
    s.b = ts_module_param(m, "b", TS_SHAPE(5), &ones);
    s.table = ts_module_param(m, "table", TS_SHAPE(5), &wide);
    TEST_OK(t, ts_fsdp(m, NULL));
    TEST_OK(t, ts_module_materialize(m));
    for (int step = 0; step < 16; step++) {
        s.frozen = 0xa6c3 >> step & 1;
        ts_scope scope = ts_scope_open(t->me, NULL);
        ts_tape_begin(t->me);
        ts_tensor *x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(2 * t->count, 5), "fsdp:S(0)");
        TEST_OK(t, ts_backward(ts_sum(TS_CALL(m, x), NULL, 0, 0), NULL));
        ts_tensor *of[2] = { s.a, s.b };
        for (int i = 0; i < 2 - s.frozen; i++) {
            double sum = NAN;
            ts_tensor *grad = ts_tensor_grad(of[i]);
            TEST_OK(t, ts_tensor_item(ts_sum(grad, NULL, 0, 0), &sum));
            TEST_SAY(t, sum == 10 * (double)t->count, "step %d, %d: %g", step, i, sum);
            TEST_CHECK(t, ts_tensor_layout(grad) == ts_tensor_layout(of[i]));
        }
        TEST_CHECK(t, !s.frozen || ts_tensor_grad(s.b) == NULL);
        TEST_CHECK(t, ts_tensor_grad(s.table) == NULL);
        ts_scope_close(scope);
        TEST_OK(t, ts_module_reset(m));
    }
    ts_module_destroy(m);
}

/* Recomputation around a unit and inside it, and two forwards before their backwards. */
TS_TEST_RANKS(fsdp_08_nested_recomputation, 2, 3, 4)
{
    net units = net_of(3, 6, 5), plain = units;
    ts_mesh *mesh = units_mesh(t);
    net_declare(&units, mesh, false);
    net_declare(&plain, mesh, false);
    TEST_OK(t, ts_module_checkpoint(units.root, TS_RECOMPUTE_FULL));
    TEST_OK(t, net_begin(&units, &plain_options));
    TEST_OK(t, net_begin(&plain, NULL));
    net_train_both(t, &units, &plain, 4, 1e-12);
    net *both_nets[2] = { &units, &plain };
    for (int i = 0; i < 2; i++) {
        ts_scope scope = ts_scope_open(t->me, NULL);
        ts_tape_begin(t->me);
        ts_tensor *x = net_input(both_nets[i], 1), *z = net_input(both_nets[i], 2);
        ts_tensor *y = ts_sum(ts_module_call(both_nets[i]->root, &x, 1), NULL, 0, 0);
        ts_tensor *w = ts_sum(ts_module_call(both_nets[i]->root, &z, 1), NULL, 0, 0);
        TEST_OK(t, ts_backward(y, NULL));
        TEST_OK(t, ts_backward(w, NULL));
        ts_scope_close(scope);
    }
    double norm[2];
    TEST_OK(t, ts_clip_grad_norm(units.root, 0, &norm[0]));
    TEST_OK(t, ts_clip_grad_norm(plain.root, 0, &norm[1]));
    TEST_SAY(t, fabs(norm[0] - norm[1]) <= 1e-12 * norm[1], "%.17g, not %.17g", norm[0], norm[1]);
    net_end(&units);
    net_end(&plain);
}

/* Two trees share a rank's memory: what is gathered is the larger of the two, not the sum. */
TS_TEST_RANKS(fsdp_09_two_roots, 2, 3)
{
    net a = net_of(3, 16, 6), b = net_of(4, 24, 6);
    ts_mesh *mesh = units_mesh(t);
    int64_t most[3] = { 0, 0, 0 };
    for (int which = 0; which < 3; which++) {
        net x = a, y = b;
        net_declare(&x, mesh, false);
        net_declare(&y, mesh, false);
        ts_fsdp_options options = plain_options;
        options.dim = last_dim; /* no run of the whole: it travels */
        TEST_OK(t, net_begin(&x, &options));
        TEST_OK(t, net_begin(&y, &options));
        TEST_OK(t, ts_rank_memory_reset(t->me));
        for (int64_t step = 0; step < 4; step++) {
            double norm;
            if (which != 1) net_step(&x, step, &norm);
            if (which != 0) net_step(&y, step, &norm);
        }
        ts_memory memory = { .struct_size = sizeof memory };
        TEST_OK(t, ts_rank_memory(t->me, &memory));
        most[which] = memory.most[TS_MEMORY_GATHERED];
        net_end(&x);
        net_end(&y);
    }
    TEST_CHECK(t, most[1] > most[0] && most[0] > 0);
    TEST_EQ(t, most[2], most[1]);
}

/* A loss is divided once, whatever axes of one rank there are. */
TS_TEST_RANKS(fsdp_10_divided_once, 1, 2, 4)
{
    static const char *const meshes[] = { "replicate=1, fsdp=*", "replicate=*, fsdp=1", "fsdp=*",
                                          "replicate=*" };
    double first = NAN;
    for (size_t i = 0; i < 4; i++) {
        net n = net_of(2, 6, 8);
        ts_fsdp_options options = plain_options;
        net_declare(&n, ts_mesh_create(t->me, meshes[i]), false);
        TEST_OK(t, net_begin(&n, &options));
        double norm = NAN;
        net_run(&n, 1, 0, 256.0); /* scaled, as for f16 */
        TEST_OK(t, ts_grad_scale(n.root, 1.0 / 256.0));
        TEST_OK(t, ts_clip_grad_norm(n.root, 0, &norm));
        if (i == 0) first = norm;
        TEST_SAY(t, fabs(norm - first) <= 1e-13 * first, "%s: %.17g, not %.17g", meshes[i], norm,
                 first);
        net_end(&n);
    }
}

static void scale_forward(void *state, const ts_module_io *io)
{
    io->output[0] = ts_mul(io->input[0], *(ts_tensor **)state);
}

/* A weight that products see in bf16, used on pieces of rows and of a sequence: 4 terms of 1 or
 * 1 + 1/128 are added up in f32, where bf16 would lose the last bits. */
TS_TEST_RANKS(fsdp_11_reduced_in_the_dtype_of_the_parameter, 4)
{
    static const ts_module_desc desc = { .struct_size = sizeof(ts_module_desc),
                                         .type = "scale",
                                         .input_count = 1,
                                         .output_count = 1,
                                         .forward = scale_forward };
    ts_mesh *mesh = ts_mesh_create(t->me, "fsdp=2, tp=2");
    ts_tensor *w = NULL;
    ts_module *m = ts_module_create(mesh, &desc, &w);
    w = ts_module_param(m, "w", TS_SHAPE(6), NULL);
    ts_fsdp_options options = plain_options;
    options.compute = TS_DTYPE_BF16;
    TEST_OK(t, ts_fsdp(m, &options));
    TEST_OK(t, ts_module_materialize(m));
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_tape_begin(t->me);
    double value = t->index == 0 ? 1.0 + 1.0 / 128 : 1.0;
    ts_tensor *own = ts_full(value, ts_mesh_self(t->me), TS_DTYPE_BF16, TS_SHAPE(1, 1, 6), NULL);
    ts_tensor *x =
        ts_from_local(own, ts_sharding_get(mesh, "fsdp:S(0) tp:S(1)"), TS_SHAPE(2, 2, 6));
    ts_tensor *y = TS_CALL(m, x);
    TEST_EQ(t, ts_tensor_dtype(y), TS_DTYPE_BF16);
    TEST_OK(t, ts_backward(ts_sum(ts_cast(y, TS_DTYPE_F32), NULL, 0, 0), NULL));
    double sum = NAN;
    TEST_EQ(t, ts_tensor_dtype(ts_tensor_grad(w)), TS_DTYPE_F32);
    TEST_OK(t, ts_tensor_item(ts_sum(ts_tensor_grad(w), NULL, 0, 0), &sum));
    TEST_SAY(t, sum == 6 * (4.0 + 1.0 / 128), "%.9g", sum);
    ts_scope_close(scope);
    ts_module_destroy(m);
}

/* The norm over cut, tensor parallel and replicated gradients is that of the whole ones. */
TS_TEST_RANKS(fsdp_13_norm_over_mixtures, 4, 8)
{
    net n = net_of(3, 9, 5);
    ts_mesh *mesh =
        ts_mesh_create(t->me, t->count == 4 ? "fsdp=2, tp=2" : "replicate=2, fsdp=2, tp=2");
    net_declare(&n, mesh, false);
    TEST_OK(t, ts_module_plan(n.root, "blocks.0.weight: tp:S(0)\nblocks.1.weight: tp:S(1)\n"
                                      "blocks.1.bias: tp:S(0)\n"));
    TEST_OK(t, ts_fsdp(n.block[0], NULL));
    TEST_OK(t, ts_fsdp(n.block[1], NULL));
    TEST_OK(t, net_begin(&n, NULL)); /* block 2 is in no unit */
    net_run(&n, 0, 0, 1);
    double norm = NAN, squares = 0;
    TEST_OK(t, ts_clip_grad_norm(n.root, 0, &norm));
    static const char *const names[] = { "weight", "bias", "gain" };
    for (int64_t i = 0; i < 9; i++) {
        ts_scope scope = ts_scope_open(t->me, NULL);
        ts_tensor *grad = ts_tensor_grad(ts_module_find_param(n.block[i / 3], names[i % 3]));
        double one = NAN;
        TEST_OK(t, ts_tensor_item(ts_sum(ts_square(ts_tensor_full(grad)), NULL, 0, 0), &one));
        squares += one;
        ts_scope_close(scope);
    }
    TEST_SAY(t, fabs(norm - sqrt(squares)) <= 1e-13 * norm, "%.17g, not %.17g", norm,
             sqrt(squares));
    net_end(&n);
}

/* Tensor parallel cuts first, unevenly, then the unit: back to the whole it is what it was. */
TS_TEST_RANKS(fsdp_19_cuts_of_one_dim, 4, 6)
{
    ts_mesh *mesh = ts_mesh_create(t->me, t->count == 4 ? "fsdp=2, tp=2" : "fsdp=3, tp=2");
    net units = net_of(2, 9, 4), plain = units;
    net_declare(&units, mesh, false);
    net_declare(&plain, mesh, false);
    TEST_OK(t, ts_module_plan(units.root, "*.weight: tp:S(0)\n*.bias: tp:S(0)"));
    ts_fsdp_options options = plain_options;
    TEST_OK(t, net_begin(&units, &options));
    TEST_OK(t, net_begin(&plain, NULL));
    double most = net_difference(t, &units, &plain);
    TEST_SAY(t, most == 0, "they differ by %g", most);
    ts_tensor *w = ts_module_find_param(units.root, "blocks.0.bias");
    TEST_EQ(t, ts_layout_replicas(ts_tensor_layout(w)), 1);
    net_train_both(t, &units, &plain, 3, 1e-12);
    net_end(&units);
    net_end(&plain);
}

/* A plan that cuts by one of a unit's axes leaves copies along the other: each is updated once. */
TS_TEST_RANKS(fsdp_19_cut_by_one_axis_of_two, 4, 6)
{
    ts_mesh *mesh = ts_mesh_create(t->me, t->count == 4 ? "fsdp=2, cp=2" : "cp=3, fsdp=2");
    net units = net_of(2, 9, 4), plain = units;
    net_declare(&units, mesh, false);
    net_declare(&plain, mesh, false);
    TEST_OK(t, ts_module_plan(units.root, "blocks.0.weight: cp:S(0)\nblocks.0.bias: cp:S(0)\n"
                                          "blocks.1.weight: fsdp:S(0)"));
    ts_fsdp_options options = plain_options;
    TEST_OK(t, net_begin(&units, &options));
    TEST_OK(t, net_begin(&plain, NULL));
    ts_tensor *w = ts_module_find_param(units.root, "blocks.0.weight");
    TEST_EQ(t, ts_layout_replicas(ts_tensor_layout(w)), 2);
    net_train_both(t, &units, &plain, 3, 1e-12);
    net_end(&units);
    net_end(&plain);
}

/* Nor need a plan's cuts lie within the whole that operators of a rank see. */
TS_TEST_RANKS(fsdp_19_cut_across_the_whole, 4, 8)
{
    ts_mesh *mesh = ts_mesh_create(t->me, t->count == 4 ? "fsdp=2, tp=2" : "fsdp=2, cp=2, tp=2");
    net units = net_of(2, 5, 4), plain = units;
    net_declare(&units, mesh, false);
    net_declare(&plain, mesh, false);
    TEST_OK(t, ts_module_plan(units.root, "blocks.0.weight: fsdp:S(0) cp?:S(0) tp:S(0)\n"
                                          "blocks.1.bias: fsdp:S(0) cp?:S(0) tp:S(0)"));
    ts_fsdp_options options = plain_options;
    TEST_OK(t, net_begin(&units, &options));
    TEST_OK(t, net_begin(&plain, NULL));
    net_train_both(t, &units, &plain, 3, 1e-12);
    net_end(&units);
    net_end(&plain);
}

/* ---- by hand --------------------------------------------------------------------------------- */

/* A change of the whole is a change of the shards. */
TS_TEST_RANKS(fsdp_writes_back, 1, 2, 3, 4)
{
    net n = net_of(2, 6, 4);
    net_declare(&n, units_mesh(t), false);
    TEST_OK(t, net_begin(&n, &plain_options));
    ts_tensor *w = ts_module_find_param(n.root, "blocks.0.weight");
    ts_tensor *b = ts_module_find_param(n.root, "blocks.0.bias");
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    TEST_OK(t, ts_fsdp_gather(n.block[0]));
    TEST_CHECK(t, ts_tril_(w, -10) == w); /* zeros, in place */
    TEST_OK(t, ts_tensor_write(b, ts_full(1.5, n.mesh, TS_DTYPE_F64, TS_SHAPE(6), NULL)));
    TEST_OK(t, ts_fsdp_release(n.block[0]));
    double sum = NAN;
    TEST_OK(t, ts_tensor_item(ts_sum(w, NULL, 0, 0), &sum));
    TEST_SAY(t, sum == 0, "%g", sum);
    TEST_OK(t, ts_tensor_item(ts_sum(b, NULL, 0, 0), &sum));
    TEST_SAY(t, sum == 9, "%g", sum);
    ts_fsdp_stats stats = { .struct_size = sizeof stats };
    TEST_OK(t, ts_fsdp_statistics(n.root, &stats));
    TEST_EQ(t, stats.written_back, t->count > 1 ? 2 : 0);
    ts_scope_close(scope);
    net_end(&n);
}

/* A step that is abandoned half way leaves nothing behind. */
TS_TEST_RANKS(fsdp_reset, 2, 4)
{
    net units = net_of(3, 6, 5), plain = units;
    ts_mesh *mesh = units_mesh(t);
    ts_fsdp_options options = plain_options;
    options.reshard = TS_RESHARD_NO;
    begin_both(t, &units, &plain, mesh, false, &options);
    net_train_both(t, &units, &plain, 2, 1e-12);
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_tape_begin(t->me);
    ts_tensor *x = net_input(&units, 1);
    TEST_CHECK(t, ts_module_call(units.root, &x, 1) != NULL); /* and no backward */
    ts_scope_close(scope);
    TEST_OK(t, ts_module_reset(units.root));
    ts_memory memory = { .struct_size = sizeof memory };
    TEST_OK(t, ts_rank_memory_reset(t->me));
    TEST_OK(t, ts_rank_memory(t->me, &memory));
    TEST_EQ(t, memory.most[TS_MEMORY_GATHERED], 0);
    net_train_both(t, &units, &plain, 2, 1e-12);
    net_end(&units);
    net_end(&plain);
}

/* Several modules as one unit: one exchange for all. */
TS_TEST_RANKS(fsdp_modules_together, 2, 3)
{
    net units = net_of(4, 6, 5), plain = units;
    ts_mesh *mesh = units_mesh(t);
    net_declare(&units, mesh, false);
    net_declare(&plain, mesh, false);
    TEST_OK(t, ts_fsdp(units.block[0], NULL));
    TEST_OK(t, ts_fsdp(units.block[1], NULL));
    TEST_OK(t, ts_fsdp_together(&units.block[2], 2, NULL));
    TEST_OK(t, net_begin(&units, NULL));
    TEST_OK(t, net_begin(&plain, NULL));
    net_train_both(t, &units, &plain, 4, 1e-12);
    ts_fsdp_stats stats = { .struct_size = sizeof stats };
    TEST_OK(t, ts_fsdp_statistics(units.root, &stats));
    TEST_EQ(t, stats.units, 3);
    TEST_EQ(t, stats.reductions, 4 * 3);
    net_end(&units);
    net_end(&plain);
}

/* One of the modules is called twice, or not at all: the unit goes with its last backward. */
TS_TEST_RANKS(fsdp_modules_together_in_other_numbers, 2, 3)
{
    for (int twice = 0; twice < 2; twice++) {
        net units = net_of(3, 6, 5), plain = units;
        ts_mesh *mesh = units_mesh(t);
        units.twice = plain.twice = twice;
        units.leaves = plain.leaves = twice ? -1 : 1;
        net_declare(&units, mesh, false);
        net_declare(&plain, mesh, false);
        TEST_OK(t, ts_fsdp_together(units.block, 2, NULL));
        TEST_OK(t, ts_fsdp(units.block[2], NULL));
        TEST_OK(t, net_begin(&units, NULL));
        TEST_OK(t, net_begin(&plain, NULL));
        net_train_both(t, &units, &plain, 3, 1e-12);
        ts_tensor *weight = ts_module_find_param(units.root, "blocks.0.weight");
        TEST_EQ(t, ts_layout_replicas(ts_tensor_layout(weight)), 1);
        net_end(&units);
        net_end(&plain);
    }
}

/* Two runs give the same bits; so do shards and copies, which add the same terms in rank order. */
TS_TEST_RANKS(fsdp_same_bits, 2, 3, 4)
{
    static const char *const meshes[] = { "fsdp=*", "fsdp=*", "replicate=*" };
    double loss[3] = { 0, 0, 0 };
    for (int i = 0; i < 3; i++) {
        net n = net_of(3, 6, 5);
        n.dtype = TS_DTYPE_F32;
        net_declare(&n, ts_mesh_create(t->me, meshes[i]), false);
        TEST_OK(t, net_begin(&n, &plain_options));
        for (int64_t step = 0; step < 5; step++) {
            net_run(&n, step, 0, 1);
            ts_optimizer_step(n.optimizer);
        }
        loss[i] = net_run(&n, 9, 0, 1);
        net_end(&n);
    }
    TEST_SAY(t, loss[0] == loss[1], "two runs: %.17g and %.17g", loss[0], loss[1]);
    TEST_SAY(t, loss[0] == loss[2], "shards and copies: %.17g and %.17g", loss[0], loss[2]);
}

/* ---- the schedule ---------------------------------------------------------------------------- */

static int64_t most_gathered(const tsi_step_list *list)
{
    int64_t most = 0, live = 0;
    for (int32_t a = 0; a < list->action_count; a++) {
        const tsi_touch *touch = tsi_step_touches(list, &list->action[a]);
        for (int32_t i = 0; i < list->action[a].touch_count; i++) {
            const tsi_value *value = &list->value[touch[i].value];
            if (value->memory != TSI_STEP_MEMORY_GATHERED) continue;
            if (touch[i].how == TSI_MAKES) live += value->bytes;
            if (live > most) most = live;
            if (touch[i].how == TSI_FREES) live -= value->bytes;
        }
    }
    return most;
}

/* The order that is followed, as a step: it is proved, and its peak is what is held. */
TS_TEST_RANKS(fsdp_schedule_is_a_step, 2, 3, 4)
{
    for (int32_t i = 0; i < 6; i++) {
        ts_fsdp_options options = plain_options;
        int32_t reshard = options.reshard = TS_RESHARD_NO + i / 2;
        if (i & 1) options.dim = last_dim; /* not in place */
        net n = net_of(4, 12, 6);
        n.again = reshard == TS_RESHARD_YES;
        net_declare(&n, units_mesh(t), false);
        TEST_OK(t, net_begin(&n, &options));
        double norm;
        net_step(&n, 0, &norm);
        net_step(&n, 1, &norm);
        TEST_OK(t, ts_rank_memory_reset(t->me));
        net_step(&n, 2, &norm);
        ts_memory memory = { .struct_size = sizeof memory };
        TEST_OK(t, ts_rank_memory(t->me, &memory));
        tsi_step *step = NULL;
        TEST_OK(t, tsi_units_step(((const tsi_unit *)n.block[0]->unit)->all, &step));
        if (step) {
            TEST_OK(t, tsi_step_prove(step, NULL));
            int64_t gathered = most_gathered(tsi_step_list_of(step, t->index));
            TEST_EQ(t, gathered, memory.most[TS_MEMORY_GATHERED]);
        }
        tsi_step_destroy(step);
        net_end(&n);
    }
}
