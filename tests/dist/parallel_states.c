/* SPDX-License-Identifier: Apache-2.0 */
/* parallel_states.c - what is around the steps of units: states that are saved and read while units
 * are gathered, views of weights, own moves, gradients that nobody agreed on, and ranks that
 * failed, in a first step or in one that is run again, and go on. */
#include <string.h>
#include <unistd.h>

#include "dist/checkpoint_util.h"
#include "dist/parallel_util.h"
#include "nn/module.h"

static double sum_of(ts_tensor *x)
{
    double value = NAN;
    ts_scope scope = ts_scope_open(ts_tensor_rank(x), NULL);
    ts_tensor_item(ts_sum(ts_cast(x, TS_DTYPE_F64), NULL, 0, 0), &value);
    ts_scope_close(scope);
    return value;
}

static net small_net(ts_dtype dtype)
{
    return (net){ .count = 2, .width = 6, .rows = 6, .leaves = -1, .dtype = dtype };
}

/* ---- states ---------------------------------------------------------------------------------- */

static void forward_alone(net *n)
{
    ts_scope scope = ts_scope_open(n->mesh->rank, NULL);
    ts_tape_begin(n->mesh->rank);
    ts_tensor *x = net_input(n, 3);
    (void)ts_module_call(n->root, &x, 1);
    ts_scope_close(scope);
}

/* What is saved are the shards, whatever operators see; and what is read stays, whatever is
 * forgotten then. */
TS_TEST_RANKS(fsdp_states_of_gathered_units, 1, 2, 3)
{
    char place[PATH];
    net n = small_net(TS_DTYPE_F32);
    ts_fsdp_options options = { .struct_size = sizeof options,
                                .compute = TS_DTYPE_BF16,
                                .compute_ndim = 2,
                                .reshard = TS_RESHARD_NO };
    net_declare(&n, ts_mesh_create(t->me, "fsdp=*"), false);
    TEST_OK(t, net_begin(&n, &options));
    ts_tensor *w = ts_module_find_param(n.root, "blocks.0.weight");
    ts_state *state = ts_state_create(n.mesh);
    TEST_OK(t, ts_state_add_module(state, "", n.root));
    double norm, master = sum_of(w);
    forward_alone(&n);
    make_path(t, "states", place);
    TEST_OK(t, ts_checkpoint_save(state, place, NULL));
    TEST_OK(t, ts_module_reset(n.root));
    (void)net_step(&n, 1, &norm);
    TEST_CHECK(t, sum_of(w) != master);
    forward_alone(&n);
    TEST_OK(t, ts_checkpoint_load(state, place, NULL));
    TEST_CHECK(t, sum_of(w) == master);
    TEST_OK(t, ts_module_reset(n.root));
    TEST_SAY(t, sum_of(w) == master, "%.9g, not %.9g", sum_of(w), master);
    TEST_OK(t, ts_fsdp_gather(n.block[0]));
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    TEST_EQ(t, ts_checkpoint_save(state, place, NULL), TS_ERR_STATE);
    TEST_SAYS(t, ts_rank_error(t->me)->text,
              "fsdp: unit blocks.0 is gathered, so that blocks.0.weight is there in bf16 alone");
    (void)ts_scope_close(scope);
    TEST_OK(t, ts_fsdp_release(n.block[0]));
    ts_state_destroy(state);
    net_end(&n);
    remove_path(t, place);
}

/* ---- views ----------------------------------------------------------------------------------- */

static void by_a_view(void *state, const ts_module_io *io)
{
    ts_tensor *w = *(ts_tensor **)state;
    io->output[0] = ts_linear(io->input[0], ts_transpose(w, 0, 1), NULL);
}

static const ts_module_desc view_desc = { .struct_size = sizeof(ts_module_desc),
                                          .type = "view",
                                          .input_count = 1,
                                          .output_count = 1,
                                          .forward = by_a_view };

static ts_status rank_1_is_late(ts_tensor *x, void *context)
{
    (void)context;
    if (ts_rank_index(ts_tensor_rank(x)) == 1) usleep(50000);
    return TS_OK;
}

/* Backward reads the weight through a view: no peer writes it before. */
TS_TEST_RANKS(fsdp_views_of_weights_are_gathered, 1, 2, 3, 4)
{
    ts_tensor *w = NULL;
    ts_mesh *mesh = ts_mesh_create(t->me, "fsdp=*");
    ts_param_options ones = { .struct_size = sizeof ones,
                              .init = ts_init_ones,
                              .dtype = TS_DTYPE_F64 };
    ts_module *m = ts_module_create(mesh, &view_desc, &w);
    w = ts_module_param(m, "weight", TS_SHAPE(4, 4), &ones);
    TEST_OK(t, ts_fsdp(m, NULL));
    TEST_OK(t, ts_module_materialize(m));
    for (int step = 0; step < 2; step++) {
        ts_scope scope = ts_scope_open(t->me, NULL);
        ts_tape_begin(t->me);
        ts_tensor *x = ts_watch(ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(2, 4), "fsdp:S(0)"));
        ts_tensor *y = TS_CALL(m, x);
        TEST_OK(t, ts_tensor_on_grad(y, rank_1_is_late, NULL));
        TEST_OK(t, ts_backward(ts_sum(y, NULL, 0, 0), NULL));
        ts_scope quiet = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
        (void)ts_tril_(w, -10); /* zeros, in place */
        TEST_OK(t, ts_scope_close(quiet));
        TEST_EQ(t, sum_of(ts_tensor_grad(x)), 32);
        TEST_OK(t, ts_tensor_write(w, ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(4, 4), NULL)));
        TEST_OK(t, ts_tensor_grad_clear(w));
        TEST_OK(t, ts_scope_close(scope));
    }
    ts_module_destroy(m);
}

/* ---- options --------------------------------------------------------------------------------- */

typedef struct own_move {
    int32_t calls, narrow; /* narrow: terms of bf16 that are still to be added up */
    ts_status status;
    ts_dtype gives; /* or none */
} own_move;

static ts_status move_it(ts_tensor *const *x, const ts_sharding *const *to, int32_t count,
                         ts_tensor **out, void *context)
{
    own_move *own = context;
    char text[96];
    for (int32_t i = 0; i < count; i++) {
        (void)ts_layout_text(ts_tensor_layout(x[i]), text, sizeof text);
        own->calls++;
        own->narrow += ts_tensor_dtype(x[i]) == TS_DTYPE_BF16 && strstr(text, "P(sum)");
    }
    if (own->status != TS_OK) return own->status;
    ts_status status = ts_redistribute_many(x, to, count, out);
    for (int32_t i = 0; own->gives != TS_DTYPE_NONE && status == TS_OK && i < count; i++)
        out[i] = ts_cast(out[i], own->gives);
    return status;
}

/* Gradients travel in fewer bits, each term rounded by itself, with copies too. */
TS_TEST_RANKS(fsdp_reductions_in_fewer_bits, 4)
{
    own_move own = { .gives = TS_DTYPE_NONE };
    net n = small_net(TS_DTYPE_F32), plain = n;
    ts_fsdp_options options = { .struct_size = sizeof options,
                                .reduce = TS_DTYPE_BF16,
                                .reduce_fn = move_it,
                                .move_context = &own };
    ts_mesh *mesh = ts_mesh_create(t->me, "replicate=2, fsdp=2");
    net_declare(&n, mesh, false);
    net_declare(&plain, mesh, false);
    TEST_OK(t, net_begin(&n, &options));
    TEST_OK(t, net_begin(&plain, NULL));
    double norm, wanted;
    (void)net_step(&n, 1, &norm);
    (void)net_step(&plain, 1, &wanted);
    TEST_SAY(t, own.calls == 6 && own.narrow == 6, "%d of %d are terms", own.narrow, own.calls);
    TEST_SAY(t, fabs(norm - wanted) < 0.02 * wanted, "%g, not %g", norm, wanted);
    TEST_OK(t, ts_fsdp_set(n.root, TS_FSDP_ALL_REDUCE, 0));
    (void)net_run(&n, 2, 0, 0.5);
    TEST_OK(t, ts_fsdp_set(n.root, TS_FSDP_ALL_REDUCE, 1));
    (void)net_run(&n, 3, 0, 0.5);
    TEST_OK(t, ts_optimizer_step(n.optimizer));
    net_end(&n);
    net_end(&plain);
}

static ts_status refused(test *t, ts_status status, const char *words)
{
    TEST_CHECK(t, status != TS_OK);
    const ts_error *error = ts_rank_error(t->me);
    TEST_SAYS(t, error ? error->text : "", words);
    return status;
}

TS_TEST_RANKS(fsdp_refuses_trees_and_dtypes, 1, 2)
{
    net n = small_net(TS_DTYPE_F64), other = n;
    ts_mesh *mesh = ts_mesh_create(t->me, "fsdp=*");
    net_declare(&n, mesh, false);
    net_declare(&other, mesh, false);
    ts_module *both[] = { n.block[0], other.block[0] }, *twice[] = { n.block[0], n.block[0] };
    ts_fsdp_options whole = { .struct_size = sizeof whole, .reduce = TS_DTYPE_I32 };
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    (void)refused(t, ts_fsdp_together(both, 2, NULL), "is in another tree of modules");
    (void)ts_scope_close(scope);
    scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    (void)refused(t, ts_fsdp_together(twice, 2, NULL), "blocks.0 is twice among the modules");
    (void)ts_scope_close(scope);
    scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    (void)refused(t, ts_fsdp(n.block[0], &whole),
                  "unit blocks.0: the dtype of reductions is i32, which is not real");
    (void)ts_scope_close(scope);
    TEST_OK(t, ts_fsdp(n.block[1], NULL));
    scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    (void)refused(t, ts_module_plan(n.root, "blocks.1.weight: fsdp:S(1)"),
                  "the parameter blocks.1.weight is in a unit already");
    (void)ts_scope_close(scope);
    scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    (void)refused(t, ts_fsdp_set(n.root, TS_FSDP_RESHARD_FORWARD, -9),
                  "unit blocks.1: reshard is -9");
    (void)ts_scope_close(scope);
    ts_module_destroy(n.root);
    ts_module_destroy(other.root);
}

/* A status alone is an error, too, and what own moves give has the dtype that they got. */
TS_TEST_RANKS(fsdp_own_moves_that_fail, 2)
{
    static const struct {
        own_move own;
        const char *words;
    } rows[] = { { { .status = TS_ERR_IO, .gives = TS_DTYPE_NONE },
                   "unit blocks.1: its own reduction returned TS_ERR_IO" },
                 { { .gives = TS_DTYPE_I32 }, "its own reduction gave" } };
    for (int i = 0; i < 2 && strcmp(t->engine, "threads") == 0; i++) {
        own_move own = rows[i].own;
        net n = small_net(TS_DTYPE_F64);
        ts_fsdp_options options = { .struct_size = sizeof options,
                                    .reduce_fn = move_it,
                                    .move_context = &own };
        net_declare(&n, ts_mesh_create(t->me, "fsdp=*"), false);
        TEST_OK(t, net_begin(&n, &options));
        (void)net_run(&n, 1, 0, 1);
        (void)refused(t, ts_rank_status(t->me), rows[i].words);
        TEST_OK(t, ts_rank_recover(t->me));
        TEST_OK(t, ts_module_reset(n.root));
        net_end(&n);
    }
}

/* ---- gradients that nobody agreed on --------------------------------------------------------- */

/* What lazy backwards left in a unit whose parameters not all ranks use is not settled one by one:
 * ranks would mix up parameters. Nor does a call that has no backward keep ranks from agreeing. */
TS_TEST_RANKS(fsdp_gradients_nobody_agreed_on, 2, 3)
{
    for (int i = 0; i < 2; i++) {
        net n = small_net(TS_DTYPE_F64);
        ts_fsdp_options options = { .struct_size = sizeof options, .unused = 1 };
        double norm;
        net_declare(&n, ts_mesh_create(t->me, "fsdp=*"), false);
        TEST_OK(t, ts_fsdp_together(n.block, 2, &options));
        TEST_OK(t, net_begin(&n, NULL));
        forward_alone(&n);
        (void)net_step(&n, 1, &norm);
        TEST_OK(t, ts_rank_status(t->me));
        if (i == 1 && strcmp(t->engine, "threads") == 0) {
            (void)net_run(&n, 2, 1, 1);
            (void)refused(t, ts_optimizer_step(n.optimizer),
                          "ranks have not agreed on which ones they used");
            TEST_OK(t, ts_rank_recover(t->me));
            TEST_OK(t, ts_module_reset(n.root));
        }
        net_end(&n);
    }
}

/* ---- ranks that failed ----------------------------------------------------------------------- */

static _Thread_local int armed; /* > 0: the call of the operator that fails */

static ts_status copy_kernel(const void *attributes, const ts_array *const *in,
                             ts_array *const *out)
{
    (void)attributes;
    if (armed > 0 && --armed == 0) return ts_op_fail(TS_ERR_ARG, "it was to fail");
    memcpy(out[0]->data, in[0]->data,
           (size_t)ts_shape_count(&in[0]->meta.shape) * ts_dtype_size((ts_dtype)in[0]->meta.dtype));
    return TS_OK;
}

static void copy_grad(const ts_op_io *io)
{
    io->output[0] = ts_mul_scalar(io->input[0], 1);
}

static const ts_op_desc copy_op = { .struct_size = sizeof copy_op,
                                    .name = "test.copy",
                                    .dims = "*->*",
                                    .input_count = 1,
                                    .output_count = 1,
                                    .kernel = copy_kernel,
                                    .grad = copy_grad };

static void failing_forward(void *state, const ts_module_io *io)
{
    const net_block *b = state;
    ts_tensor *y = ts_tanh(ts_linear(io->input[0], b->weight, b->bias));
    y = ts_op_apply(ts_op_register(io->rank, &copy_op), &y, NULL);
    io->output[0] = ts_mul(y, b->gain);
}

typedef struct training {
    net of;
    ts_tensor *input;
} training;

static ts_status train(void *context)
{
    training *w = context;
    net *n = &w->of;
    ts_scope scope = ts_scope_open(n->mesh->rank, NULL);
    ts_tape_begin(n->mesh->rank);
    ts_tensor *loss = ts_mean(ts_square(ts_module_call(n->root, &w->input, 1)), NULL, 0, 0);
    ts_status status = ts_backward(loss, NULL);
    if (status == TS_OK) status = ts_optimizer_step_with(n->optimizer, NULL);
    ts_scope_close(scope);
    return status;
}

/* Rank 1 fails in call `at` of step `step`; with `records` steps are run again. The weights behind
 * three more steps; those of a twin without fault and record in *wanted. */
static double go_on_after(test *t, int step, int at, bool records)
{
    training w = { .of = small_net(TS_DTYPE_F64) };
    ts_fsdp_options options = { .struct_size = sizeof options };
    net *n = &w.of;
    ts_step *again = NULL;
    n->count = 3;
    net_declare(n, ts_mesh_create(t->me, "fsdp=*"), false);
    for (int64_t i = 0; i < n->count; i++)
        n->block[i]->desc.forward = failing_forward;
    TEST_OK(t, net_begin(n, &options));
    w.input = ts_tensor_retain(net_input(n, 1));
    for (int s = 0; s < 5; s++) {
        if (records && s == 2) again = ts_step_record(t->me, train, &w);
        TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
        if (s == step && at > 0) {
            armed = t->index == 1 ? at : 0;
            TEST_CHECK(t, (again ? ts_step_replay(again) : train(&w)) != TS_OK);
            armed = 0;
            TEST_OK(t, ts_rank_recover(t->me));
            TEST_OK(t, ts_module_reset(n->root));
        }
        if (!records || s != 2) TEST_OK(t, again ? ts_step_replay(again) : train(&w));
    }
    double sum = sum_of(ts_module_find_param(n->root, "blocks.1.weight"));
    ts_step_destroy(again);
    ts_tensor_release(w.input);
    net_end(n);
    return sum;
}

/* Ranks end each in another unit: none of what they noted of orders and gathers holds for all. */
TS_TEST_RANKS(fsdp_ranks_that_failed_go_on, 2, 3)
{
    if (strcmp(t->engine, "threads") != 0) return; /* a process that fails takes others along */
    double wanted = go_on_after(t, -1, 0, false);
    for (int at = 1; at <= 3; at++) {
        double first = go_on_after(t, 0, at, false), later = go_on_after(t, 1, at, false);
        double replayed = go_on_after(t, 4, at, true);
        TEST_SAY(t, first == wanted && later == wanted && replayed == wanted,
                 "call %d: %.17g, %.17g, %.17g, not %.17g", at, first, later, replayed, wanted);
    }
}
