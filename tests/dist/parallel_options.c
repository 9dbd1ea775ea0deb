/* SPDX-License-Identifier: Apache-2.0 */
/* parallel_options.c - a program's own gathers and reductions, units that it names to be gathered
 * ahead, steps of several orders: the same training as without. And dtypes of what goes into a unit
 * and comes out, and what the schedule costs. */
#include "parallel_util.h"

#include "base/clock.h"
#include "parallel/unit.h"
#include "tensor/prepared.h"

/* A net in units over all ranks, and the same one without. */
static void begin_both(test *t, net *units, net *plain, const ts_fsdp_options *options)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "fsdp=*");
    net_declare(units, mesh, false);
    net_declare(plain, mesh, false);
    TEST_OK(t, net_begin(units, options));
    TEST_OK(t, net_begin(plain, NULL));
}

typedef struct moves {
    int64_t calls, tensors;
    int32_t spoils, reserved; /* gives back what it got */
} moves;

static ts_status count_moves(ts_tensor *const *x, const ts_sharding *const *to, int32_t count,
                             ts_tensor **out, void *context)
{
    moves *m = context;
    m->calls++;
    m->tensors += count;
    for (int32_t i = 0; m->spoils && i < count; i++)
        out[i] = x[i];
    return m->spoils ? TS_OK : ts_redistribute_many(x, to, count, out);
}

static net net_of(int64_t count)
{
    return (net){ .count = count, .width = 6, .rows = 5, .leaves = -1, .dtype = TS_DTYPE_F64 };
}

TS_TEST_RANKS(fsdp_own_gathers_and_reductions, 2, 3)
{
    moves m = { 0 };
    ts_fsdp_options options = { .struct_size = sizeof options,
                                .gather_fn = count_moves,
                                .reduce_fn = count_moves,
                                .move_context = &m };
    net units = net_of(3), plain = units;
    begin_both(t, &units, &plain, &options);
    net_train_both(t, &units, &plain, 4, 1e-12);
    ts_fsdp_stats stats = { .struct_size = sizeof stats };
    TEST_OK(t, ts_fsdp_statistics(units.root, &stats));
    TEST_EQ(t, m.calls, stats.gathers + stats.reductions);
    TEST_CHECK(t, m.tensors > m.calls);
    if (strcmp(t->engine, "threads") == 0) { /* a process that fails takes along those behind it */
        TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
        m.spoils = 1;
        TEST_CHECK(t, ts_fsdp_gather(units.block[0]) != TS_OK);
        TEST_SAYS(t, ts_rank_error(t->me)->text, "fsdp: unit blocks.0: its own gather gave");
        TEST_OK(t, ts_rank_recover(t->me));
        m.spoils = 0;
        TEST_OK(t, ts_module_reset(units.root));
    }
    net_train_both(t, &units, &plain, 2, 1e-12);
    net_end(&units);
    net_end(&plain);
}

/* A copy of x that went by memory of the host. */
static ts_tensor *by_host(ts_tensor *x)
{
    ts_shape local = ts_tensor_shape(ts_tensor_local(x));
    size_t bytes = (size_t)ts_shape_count(&local) * ts_dtype_size(ts_tensor_dtype(x));
    ts_array block = { .struct_size = sizeof block, .data = malloc(bytes + 1) };
    block.meta = (ts_meta){ .shape = local, .dtype = (int32_t)ts_tensor_dtype(x) };
    ts_tensor *y = NULL;
    if (ts_tensor_read(x, &block) == TS_OK) y = ts_clone(ts_from_memory(ts_tensor_rank(x), &block));
    if (y && ts_tensor_wait(y) != TS_OK) y = NULL;
    free(block.data);
    return ts_from_local(y, ts_layout_sharding(ts_tensor_layout(x)), ts_tensor_shape(x));
}

static ts_status gather_by_host(ts_tensor *const *x, const ts_sharding *const *to, int32_t count,
                                ts_tensor **out, void *context)
{
    ts_tensor *copy[8];
    *(int64_t *)context += count;
    for (int32_t i = 0; i < count; i++)
        copy[i] = by_host(x[i]);
    return ts_redistribute_many(copy, to, count, out);
}

static ts_status reduce_by_host(ts_tensor *const *x, const ts_sharding *const *to, int32_t count,
                                ts_tensor **out, void *context)
{
    ts_status status = ts_redistribute_many(x, to, count, out);
    *(int64_t *)context += count;
    for (int32_t i = 0; status == TS_OK && i < count; i++)
        out[i] = by_host(out[i]);
    return status;
}

/* Shards that lie with the host and gradients that go there, accumulated over micro-batches. */
TS_TEST_RANKS(fsdp_15_moves_by_the_host_accumulated, 1, 2, 3)
{
    int64_t moved = 0;
    ts_fsdp_options options = { .struct_size = sizeof options,
                                .gather_fn = gather_by_host,
                                .reduce_fn = reduce_by_host,
                                .move_context = &moved };
    net units = net_of(3), plain = units;
    ts_mesh *mesh = ts_mesh_create(t->me, "fsdp=*");
    units.parts = plain.parts = 3;
    net_declare(&units, mesh, false);
    net_declare(&plain, mesh, false);
    TEST_OK(t, net_begin(&units, &options));
    TEST_OK(t, net_begin(&plain, NULL));
    net_train_both(t, &units, &plain, 4, 1e-12);
    TEST_CHECK(t, moved > 0);
    net_end(&units);
    net_end(&plain);
}

enum { OFFLOAD_STEPS = 4 };
typedef struct offload { /* rank 0's answers, of units and of the plain net */
    double loss[2][OFFLOAD_STEPS], norm[2][OFFLOAD_STEPS];
    _Atomic int64_t moved;
} offload;

static ts_status train_offloaded(ts_rank *me, void *argument)
{
    offload *o = argument;
    int64_t moved = 0;
    ts_fsdp_options options = { .struct_size = sizeof options,
                                .gather_fn = gather_by_host,
                                .reduce_fn = reduce_by_host,
                                .move_context = &moved };
    for (int k = 0; k < 2; k++) {
        net n = net_of(3);
        n.parts = 3;
        ts_mesh *mesh = ts_mesh_create(me, "fsdp=*");
        net_declare(&n, mesh, false);
        TSI_TRY(net_begin(&n, k == 0 ? &options : NULL));
        for (int step = 0; step < OFFLOAD_STEPS; step++) {
            double norm = NAN, loss = net_step(&n, step, &norm);
            if (ts_rank_index(me) != 0) continue;
            o->loss[k][step] = loss;
            o->norm[k][step] = norm;
        }
        net_end(&n);
    }
    o->moved += moved;
    return ts_rank_status(me);
}

/* The same where kernels run behind the host, in a queue of a device whose memory it does not read.
 */
TS_TEST(fsdp_15_offloaded_to_the_host_accumulated)
{
    for (int64_t ranks = 1; ranks <= 3; ranks++) {
        offload o = { 0 };
        char error[1024] = "";
        ts_world_options options = TS_INIT(ts_world_options);
        options.engine = "threads";
        options.device = "queue";
        options.rank_count = ranks;
        ts_status status = ts_launch_with(&options, train_offloaded, &o, error, sizeof error);
        TEST_SAY(t, status == TS_OK, "%d ranks: %s", (int)ranks, error);
        TEST_CHECK(t, o.moved > 0);
        for (int i = 0; i < OFFLOAD_STEPS; i++) {
            TEST_SAY(t, fabs(o.loss[0][i] - o.loss[1][i]) <= 1e-12 * o.loss[1][i],
                     "%d ranks, step %d: loss %.17g, not %.17g", (int)ranks, i, o.loss[0][i],
                     o.loss[1][i]);
            TEST_SAY(t, fabs(o.norm[0][i] - o.norm[1][i]) <= 1e-12 * o.norm[1][i],
                     "%d ranks, step %d: norm %.17g, not %.17g", (int)ranks, i, o.norm[0][i],
                     o.norm[1][i]);
        }
    }
}

/* The last dim is no run of the whole, so that what is gathered ahead travels. */
static int32_t last_dim(const char *name, ts_shape shape, int32_t otherwise, void *context)
{
    (void)name, (void)context;
    return shape.ndim > 0 ? shape.ndim - 1 : otherwise;
}

TS_TEST_RANKS(fsdp_named_prefetch, 2, 3)
{
    ts_fsdp_options options = { .struct_size = sizeof options, .dim = last_dim };
    net units = net_of(4), plain = units;
    begin_both(t, &units, &plain, &options);
    TEST_OK(t, ts_fsdp_prefetch(units.block[0], &units.block[1], 2, 0));
    TEST_OK(t, ts_fsdp_prefetch(units.block[3], &units.block[1], 2, 1));
    net_train_both(t, &units, &plain, 4, 1e-12);
    const tsi_unit *second = units.block[2]->unit;
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    ts_tensor *x = net_input(&units, 1);
    TEST_CHECK(t, TS_CALL(units.block[0], x) != NULL);
    TEST_EQ(t, second->state, TSI_UNIT_COMING);
    ts_scope_close(scope);
    TEST_OK(t, ts_module_reset(units.root));
    TEST_OK(t, ts_fsdp_prefetch(units.block[0], NULL, 0, 0));
    net_train_both(t, &units, &plain, 2, 1e-12);
    if (strcmp(t->engine, "threads") == 0) { /* as above */
        TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
        TEST_CHECK(t, ts_fsdp_prefetch(units.root, NULL, 0, 0) != TS_OK);
        TEST_SAYS(t, ts_rank_error(t->me)->text, "the top of the tree is no unit");
        TEST_OK(t, ts_rank_recover(t->me));
    }
    net_end(&units);
    net_end(&plain);
}

/* What the schedule costs is counted where it was asked for, from then on. */
TS_TEST_RANKS(fsdp_times_of_the_schedule, 1, 2, 3)
{
    ts_fsdp_options options = { .struct_size = sizeof options };
    net n = net_of(3);
    net_declare(&n, ts_mesh_create(t->me, "fsdp=*"), false);
    TEST_OK(t, net_begin(&n, &options));
    ts_fsdp_stats stats = { .struct_size = sizeof stats };
    double norm;
    net_step(&n, 0, &norm);
    TEST_OK(t, ts_fsdp_statistics(n.root, &stats));
    TEST_CHECK(t, stats.calls == 6 && stats.host_ns == 0 && stats.waited_ns == 0);
    TEST_OK(t, ts_fsdp_set(n.root, TS_FSDP_TIMES, 1));
    int64_t begin = tsi_clock_ns(), begin_thread = tsi_clock_thread_ns();
    net_step(&n, 1, &norm);
    net_step(&n, 2, &norm);
    int64_t took = tsi_clock_ns() - begin, took_thread = tsi_clock_thread_ns() - begin_thread;
    TEST_OK(t, ts_fsdp_statistics(n.root, &stats));
    TEST_EQ(t, stats.calls, 18);
    TEST_SAY(t, stats.host_ns > 0 && stats.host_ns < took_thread, "%lld ns of %lld",
             (long long)stats.host_ns, (long long)took_thread);
    TEST_SAY(t, stats.waited_ns > 0 && stats.waited_ns + stats.host_ns < took,
             "%lld and %lld ns of %lld", (long long)stats.host_ns, (long long)stats.waited_ns,
             (long long)took);
    TEST_OK(t, ts_fsdp_set(n.root, TS_FSDP_TIMES, 0));
    int64_t before = stats.host_ns;
    net_step(&n, 3, &norm);
    TEST_OK(t, ts_fsdp_statistics(n.root, &stats));
    TEST_EQ(t, stats.host_ns, before);
    net_end(&n);
}

static int32_t without_scalars(const char *name, ts_shape shape, int32_t otherwise, void *context)
{
    (void)name, (void)context;
    return shape.ndim > 0 ? otherwise : TS_FSDP_IGNORE;
}

/* A unit whose parameters are all cut is reduced in one round, which the host begins and does not
 * wait for. What several ranks want whole makes it two, which follow each other: with copies
 * everything (both axes are folded in the first, and copies give each other their parts);
 * parameters that cannot be cut, if they are few, in two of their own before that of the others. */
static void check_rounds(test *t, const char *mesh, bool scalars, int64_t rounds)
{
    ts_fsdp_options options = { .struct_size = sizeof options,
                                .dim = scalars ? NULL : without_scalars };
    net n = net_of(3);
    net_declare(&n, ts_mesh_create(t->me, mesh), false);
    TEST_OK(t, net_begin(&n, &options));
    double norm;
    for (int64_t step = 0; step < 3; step++)
        net_step(&n, step, &norm);
    for (int64_t i = 0; i < n.count; i++) {
        const tsi_unit *u = n.block[i]->unit;
        TEST_CHECK(t, u->reduction && !u->one_by_one);
        if (u->reduction) TEST_EQ(t, tsi_prepared_rounds(u->reduction), rounds);
    }
    net_end(&n);
}

TS_TEST_RANKS(fsdp_rounds_of_a_reduction, 4)
{
    check_rounds(t, "fsdp=4", false, 1);
    check_rounds(t, "fsdp=4", true, 3); /* two of scalars, then that of the matrices */
    check_rounds(t, "replicate=2, fsdp=2", false, 2);
}

/* ---- orders ---------------------------------------------------------------------------------- */

typedef struct pair_of_nets {
    net units, plain;
} pair_of_nets;

static void pair_begin(test *t, pair_of_nets *p, int64_t count)
{
    ts_fsdp_options options = { .struct_size = sizeof options, .dim = last_dim };
    p->units = p->plain = net_of(count);
    ts_mesh *mesh = ts_mesh_create(t->me, "fsdp=*");
    net_declare(&p->units, mesh, false);
    net_declare(&p->plain, mesh, false);
    TEST_OK(t, net_begin(&p->units, &options));
    TEST_OK(t, net_begin(&p->plain, NULL));
}

static void pair_end(pair_of_nets *p)
{
    net_end(&p->units);
    net_end(&p->plain);
}

/* Steps without unit `leaves` (-1: with all), of so many rows. */
static ts_fsdp_stats pair_steps(test *t, pair_of_nets *p, int64_t leaves, int64_t rows,
                                int64_t count)
{
    ts_fsdp_stats stats = { .struct_size = sizeof stats };
    p->units.leaves = p->plain.leaves = (int32_t)leaves;
    p->units.rows = p->plain.rows = rows;
    net_train_both(t, &p->units, &p->plain, count, 1e-12);
    TEST_OK(t, ts_fsdp_statistics(p->units.root, &stats));
    return stats;
}

/* A step of another order than the last one is gathered ahead too, once its order is known: from
 * its beginning where its shapes tell, else from where it goes its own way. */
TS_TEST_RANKS(fsdp_orders_by_shapes, 2, 3)
{
    pair_of_nets p;
    pair_begin(t, &p, 4);
    ts_fsdp_stats last = pair_steps(t, &p, -1, 5, 2), now;
    TEST_CHECK(t, last.orders == 0 && last.dropped == 0);
    last = pair_steps(t, &p, 2, 7, 1);
    TEST_CHECK(t, last.orders == 1 && last.dropped == 1);
    for (int i = 0; i < 3; i++) {
        now = pair_steps(t, &p, -1, 5, 1);
        TEST_EQ(t, now.prefetched - last.prefetched, 6); /* all but the first of each direction */
        last = now;
        now = pair_steps(t, &p, 2, 7, 1);
        TEST_EQ(t, now.prefetched - last.prefetched, 4);
        TEST_CHECK(t, now.orders == 1 && now.dropped == 1);
        last = now;
    }
    now = pair_steps(t, &p, -1, 7, 1); /* what these shapes did last is dropped where it ends */
    TEST_CHECK(t, now.orders == 1 && now.dropped == 2);
    TEST_EQ(t, now.prefetched - last.prefetched, 5);
    pair_end(&p);
}

/* More orders than are kept: the oldest go, and nothing is wrong. */
TS_TEST_RANKS(fsdp_last_orders_are_kept, 2)
{
    pair_of_nets p;
    pair_begin(t, &p, 6);
    for (int round = 0; round < 2; round++)
        for (int64_t variant = 0; variant < 2 * 7; variant++) {
            p.units.twice = p.plain.twice = variant >= 7;
            (void)pair_steps(t, &p, variant % 7 - 1, 5 + variant, 1);
        }
    const tsi_units *all = ((const tsi_unit *)p.units.block[0]->unit)->all;
    for (int32_t i = 0; i < TSI_UNIT_ORDERS; i++)
        TEST_CHECK(t, all->order[i].count > 0);
    pair_end(&p);
}

/* ---- dtypes ---------------------------------------------------------------------------------- */

typedef struct cast_state {
    ts_tensor *w;
    int32_t seen[3];
} cast_state;

static void cast_forward(void *state, const ts_module_io *io)
{
    cast_state *s = state;
    for (int i = 0; i < 3; i++)
        s->seen[i] = (int32_t)ts_tensor_dtype(io->input[i]);
    ts_tensor *y = ts_mul(io->input[0], s->w);
    io->output[0] = ts_add(ts_cast(y, TS_DTYPE_F32), io->input[1]);
    io->output[1] = ts_add(io->input[2], io->input[2]);
}

static const ts_module_desc cast_desc = { .struct_size = sizeof(ts_module_desc),
                                          .type = "casts",
                                          .input_count = 3,
                                          .output_count = 2,
                                          .forward = cast_forward };

TS_TEST_RANKS(fsdp_casts_of_inputs_and_outputs, 1, 2, 3)
{
    ts_fsdp_options options = { .struct_size = sizeof options,
                                .compute = TS_DTYPE_BF16,
                                .cast_inputs = 1,
                                .keep_inputs = 1u << 1,
                                .output = TS_DTYPE_F64 };
    ts_mesh *mesh = ts_mesh_create(t->me, "fsdp=*");
    cast_state s = { 0 };
    ts_module *m = ts_module_create(mesh, &cast_desc, &s);
    ts_param_options ones = { .struct_size = sizeof ones, .init = ts_init_ones };
    s.w = ts_module_param(m, "w", TS_SHAPE(6), &ones);
    TEST_OK(t, ts_fsdp(m, &options));
    TEST_OK(t, ts_module_materialize(m));
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_tape_begin(t->me);
    ts_tensor *x = ts_full(1.0 + 0x1p-20, mesh, TS_DTYPE_F32, TS_SHAPE(5, 6), "fsdp:S(0)");
    ts_tensor *ids = ts_ones(mesh, TS_DTYPE_I64, TS_SHAPE(5, 6), "fsdp:S(0)");
    ts_tensor *in[3] = { x, x, ids };
    ts_tensor *y = ts_module_call(m, in, 3);
    TEST_EQ(t, s.seen[0], TS_DTYPE_BF16);
    TEST_EQ(t, s.seen[1], TS_DTYPE_F32);
    TEST_EQ(t, s.seen[2], TS_DTYPE_I64);
    TEST_EQ(t, ts_tensor_dtype(y), TS_DTYPE_F64);
    double sum = NAN, grad = NAN;
    TEST_OK(t, ts_tensor_item(ts_sum(y, NULL, 0, 0), &sum));
    TEST_SAY(t, sum == 30 * (2.0 + 0x1p-20), "%.17g: one input is rounded", sum);
    TEST_OK(t, ts_backward(ts_sum(y, NULL, 0, 0), NULL));
    TEST_EQ(t, ts_tensor_dtype(ts_tensor_grad(s.w)), TS_DTYPE_F32);
    TEST_OK(t, ts_tensor_item(ts_sum(ts_tensor_grad(s.w), NULL, 0, 0), &grad));
    TEST_SAY(t, grad == 30, "%g", grad);
    ts_scope_close(scope);
    ts_module_destroy(m);
}

TS_TEST_RANKS(fsdp_refuses_dtypes, 2)
{
    static const struct {
        int32_t compute, output, casts;
        const char *words;
    } rows[] = {
        { 0, 0, 1,
          "fsdp: unit blocks.0: inputs are to be cast to the dtype of compute, and there" },
        { 0, TS_DTYPE_I64, 0,
          "fsdp: unit blocks.0: the dtype of outputs is i64, which is not real" },
        { 0, 999, 0, "fsdp: unit blocks.0: the dtype of outputs is" },
    };
    net n = net_of(1);
    net_declare(&n, ts_mesh_create(t->me, "fsdp=*"), false);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ts_fsdp_options options = { .struct_size = sizeof options,
                                    .compute = rows[i].compute,
                                    .output = rows[i].output,
                                    .cast_inputs = rows[i].casts };
        ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
        TEST_CHECK(t, ts_fsdp(n.block[0], &options) != TS_OK);
        if (ts_rank_error(t->me)) TEST_SAYS(t, ts_rank_error(t->me)->text, rows[i].words);
        TEST_CHECK(t, ts_scope_close(scope) != TS_OK);
    }
    net_end(&n);
}

/* ---- norms ----------------------------------------------------------------------------------- */

static double norm_below(test *t, ts_module *m)
{
    static const char *const names[] = { "weight", "bias", "gain" };
    double squares = 0;
    for (int i = 0; i < 3; i++) {
        ts_scope scope = ts_scope_open(t->me, NULL);
        ts_tensor *grad = ts_tensor_grad(ts_module_find_param(m, names[i]));
        double one = NAN;
        TEST_OK(t, ts_tensor_item(ts_sum(ts_square(ts_tensor_full(grad)), NULL, 0, 0), &one));
        squares += one;
        ts_scope_close(scope);
    }
    return sqrt(squares);
}

static double reductions_of(test *t, uint64_t since)
{
    ts_counts *counts = calloc(1, sizeof *counts);
    double sum = 0;
    counts->struct_size = sizeof *counts;
    TEST_OK(t, ts_rank_counts(t->me, since, counts));
    for (int64_t i = 0; i < counts->row_count; i++)
        sum += (double)counts->row[i].count;
    free(counts);
    return sum;
}

/* Cut, tensor parallel, in no unit, copies: each element once, all norms by one reduction. */
TS_TEST_RANKS(fsdp_norms_by_module, 4, 8)
{
    ts_mesh *mesh =
        ts_mesh_create(t->me, t->count == 4 ? "fsdp=2, tp=2" : "replicate=2, fsdp=2, tp=2");
    net n = net_of(3);
    net_declare(&n, mesh, false);
    TEST_OK(t, ts_module_plan(n.root, "blocks.1.weight: tp:S(0)\nblocks.1.bias: tp:S(0)\n"));
    TEST_OK(t, ts_fsdp(n.block[0], NULL));
    TEST_OK(t, ts_fsdp(n.block[1], NULL));
    TEST_OK(t, net_begin(&n, NULL)); /* block 2 is in no unit */
    net_run(&n, 0, 0, 1);
    double own[4], norm = NAN, all = 0, clipped = NAN;
    ts_module *list[4] = { n.block[2], n.root, n.block[0], n.block[1] };
    TEST_OK(t, ts_clip_grads(n.root, NULL, &norm)); /* settles what is not yet */
    ts_clip_options options = { .struct_size = sizeof options,
                                .norm_max = 1e-3,
                                .module_count = 4,
                                .module = list,
                                .module_norm = own };
    double wanted[3];
    for (int i = 0; i < 3; i++)
        wanted[i] = norm_below(t, n.block[i]);
    uint64_t event = ts_rank_event(t->me);
    TEST_OK(t, ts_clip_grads(n.root, &options, &norm));
    double reductions = reductions_of(t, event);
    TEST_SAY(t, reductions == 1, "%g exchanges", reductions);
    for (int i = 0; i < 3; i++)
        all += wanted[i] * wanted[i];
    static const int place[3] = { 2, 3, 0 };
    for (int i = 0; i < 3; i++)
        TEST_SAY(t, fabs(own[place[i]] - wanted[i]) <= 1e-13 * wanted[i], "%d: %.17g, not %.17g", i,
                 own[place[i]], wanted[i]);
    TEST_SAY(t, fabs(norm - sqrt(all)) <= 1e-13 * norm && own[1] == norm, "%.17g, not %.17g", norm,
             sqrt(all));
    TEST_OK(t, ts_clip_grad_norm(n.root, 0, &clipped));
    TEST_SAY(t, fabs(clipped - 1e-3) <= 2e-6 * norm, "%.17g after clipping", clipped);
    net_end(&n);
}

static ts_status spoil(ts_tensor *x, double value)
{
    ts_tensor *grad = ts_tensor_grad(x);
    return ts_tensor_write(grad, ts_mul_scalar(grad, value));
}

/* Not finite: ignored, skipped, refused by the module's name; alike on all ranks. */
TS_TEST_RANKS(fsdp_norms_not_finite, 1, 2, 3)
{
    ts_fsdp_options options = { .struct_size = sizeof options };
    net n = net_of(3);
    net_declare(&n, ts_mesh_create(t->me, "fsdp=*"), false);
    TEST_OK(t, net_begin(&n, &options));
    ts_tensor *w = ts_module_find_param(n.block[1], "weight");
    double own[3], norm = 0, before = NAN, after = NAN;
    ts_clip_options clip = { .struct_size = sizeof clip,
                             .norm_max = 1,
                             .module_count = 3,
                             .module = n.block,
                             .module_norm = own };
    for (int way = TS_NONFINITE_IGNORE; way <= TS_NONFINITE_ERROR; way++) {
        ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
        net_run(&n, 0, 0, 1);
        TEST_OK(t, spoil(w, NAN));
        ts_tensor_item(ts_sum(w, NULL, 0, 0), &before);
        clip.nonfinite = way;
        ts_status status = ts_clip_grads(n.root, &clip, &norm);
        TEST_CHECK(t, isnan(norm) && isfinite(own[0]) && isnan(own[1]) && isfinite(own[2]));
        TEST_EQ(t, status == TS_OK, way != TS_NONFINITE_ERROR);
        if (status != TS_OK)
            TEST_SAYS(t, ts_rank_error(t->me)->text,
                      "clip: the norm of the gradients of blocks.1 is nan");
        if (way == TS_NONFINITE_SKIP) {
            TEST_CHECK(t, ts_tensor_grad(w) == NULL);
            TEST_OK(t, ts_optimizer_step(n.optimizer));
            ts_tensor_item(ts_sum(w, NULL, 0, 0), &after);
            TEST_CHECK(t, before == after);
        }
        (void)ts_scope_close(scope);
        TEST_OK(t, ts_module_reset(n.root));
    }
    ts_module *other = ts_module_create(n.mesh, &net_desc, NULL);
    clip.module = &other;
    clip.module_count = 1;
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    TEST_CHECK(t, ts_clip_grads(n.root, &clip, &norm) != TS_OK);
    TEST_SAYS(t, ts_rank_error(t->me)->text, "clip: module 0 of the list is not below");
    (void)ts_scope_close(scope);
    ts_module_destroy(other);
    net_end(&n);
}

/* ---- axes of single parameters --------------------------------------------------------------- */

static const char *weights_over_one_axis(const char *name, ts_shape shape, void *context)
{
    (void)shape;
    size_t length = strlen(name);
    bool weight = length > 6 && strcmp(name + length - 6, "weight") == 0;
    return weight || context ? "fsdp" : NULL;
}

/* How many ranks gather a unit, and how many add up its gradients, as the step says; -1: none. */
static int64_t group_size(const tsi_step *step, int64_t rank, const char *unit, int32_t kind)
{
    const tsi_step_list *list = tsi_step_list_of(step, rank);
    for (int32_t a = 0; a < list->action_count; a++) {
        const tsi_action *action = &list->action[a];
        if (action->kind == kind && action->what && strcmp(action->what, unit) == 0)
            return step->group[action->group].count;
    }
    return -1;
}

/* Each unit of a module has groups of its own: its axes gather, all of them add up. */
static void check_groups(test *t, const tsi_step *step, bool all_weights)
{
    int64_t index = t->index, along = t->count / 2;
    TEST_EQ(t, group_size(step, index, "blocks.1", TSI_ACTION_GATHER),
            all_weights ? along : t->count);
    TEST_EQ(t, group_size(step, index, "blocks.1@2", TSI_ACTION_GATHER), all_weights ? -1 : along);
    TEST_EQ(t, group_size(step, index, "blocks.1", TSI_ACTION_REDUCE), t->count);
    TEST_EQ(t, group_size(step, index, "blocks.1@2", TSI_ACTION_REDUCE),
            all_weights ? -1 : t->count);
}

/* Weights lie cut over one axis, the rest over two: one unit of a module, two rounds beside each
 * other, gathered ahead together. */
TS_TEST_RANKS(fsdp_axes_of_single_parameters, 4, 6)
{
    static const int32_t ways[] = { TS_RESHARD_AUTO, TS_RESHARD_YES, TS_RESHARD_NO };
    for (int i = 0; i < 12; i++) {
        ts_fsdp_options options = { .struct_size = sizeof options,
                                    .axes = "fsdp, ep",
                                    .dim = i & 1 ? last_dim : NULL,
                                    .reshard = ways[i / 4],
                                    .axes_fn = weights_over_one_axis,
                                    .axes_context = i & 2 ? &options : NULL };
        net units = net_of(4), plain = units;
        ts_mesh *mesh = ts_mesh_create(t->me, t->count == 4 ? "fsdp=2, ep=2" : "fsdp=3, ep=2");
        net_declare(&units, mesh, false);
        net_declare(&plain, mesh, false);
        TEST_OK(t, net_begin(&units, &options));
        TEST_OK(t, net_begin(&plain, NULL));
        net_train_both(t, &units, &plain, 4, 1e-12);
        ts_tensor *w = ts_module_find_param(units.root, "blocks.1.weight");
        ts_tensor *b = ts_module_find_param(units.root, "blocks.1.bias");
        TEST_EQ(t, ts_layout_replicas(ts_tensor_layout(w)), 2);
        TEST_EQ(t, ts_layout_replicas(ts_tensor_layout(b)), i & 2 ? 2 : 1);
        ts_fsdp_stats stats = { .struct_size = sizeof stats };
        TEST_OK(t, ts_fsdp_statistics(units.root, &stats));
        TEST_EQ(t, stats.units, i & 2 ? 4 : 8);
        TEST_CHECK(t, stats.orders == 0 && stats.dropped == 0 && stats.prefetched > 0);
        tsi_step *step = NULL;
        TEST_OK(t, tsi_units_step(((const tsi_unit *)units.block[0]->unit)->all, &step));
        if (step) TEST_OK(t, tsi_step_prove(step, NULL));
        if (step) check_groups(t, step, i & 2);
        tsi_step_destroy(step);
        TEST_OK(t, ts_fsdp_gather(units.block[2]));
        TEST_EQ(t, ts_layout_replicas(ts_tensor_layout(w)), 2);
        w = ts_module_find_param(units.root, "blocks.2.weight");
        TEST_EQ(t, ts_layout_replicas(ts_tensor_layout(w)), t->count);
        TEST_OK(t, ts_fsdp_release(units.block[2]));
        TEST_EQ(t, ts_layout_replicas(ts_tensor_layout(w)), 2);
        net_end(&units);
        net_end(&plain);
    }
}

/* ---- parameters that go before their unit ---------------------------------------------------- */

typedef struct early {
    test *t;
    ts_module *block;
    int64_t ranks, calls;
    bool by_hand;
} early;

/* Before the gradient of the bias is told complete, that of the weight was: it shows its shard.
 * Gathered by hand all of the unit is whole once more. */
static ts_status look_at_weight(ts_tensor *bias, void *context)
{
    (void)bias;
    early *e = context;
    ts_tensor *weight = ts_module_find_param(e->block, "weight");
    e->calls++;
    TEST_EQ(e->t, ts_layout_replicas(ts_tensor_layout(weight)), 1);
    if (!e->by_hand) return TS_OK;
    TEST_OK(e->t, ts_fsdp_gather(e->block));
    TEST_EQ(e->t, ts_layout_replicas(ts_tensor_layout(weight)), e->ranks);
    return ts_fsdp_release(e->block);
}

TS_TEST_RANKS(fsdp_parameters_go_with_their_gradients, 2, 3, 4)
{
    for (int i = 0; i < 4; i++) {
        ts_fsdp_options options = { .struct_size = sizeof options,
                                    .dim = last_dim,
                                    .prefetch_off = i / 2 };
        net units = net_of(4), plain = units;
        begin_both(t, &units, &plain, &options);
        early e = { .t = t, .block = units.block[1], .ranks = t->count, .by_hand = i & 1 };
        TEST_OK(t, ts_tensor_on_grad(ts_module_find_param(e.block, "bias"), look_at_weight, &e));
        net_train_both(t, &units, &plain, 4, 1e-12);
        TEST_EQ(t, e.calls, 4);
        ts_fsdp_stats stats = { .struct_size = sizeof stats };
        TEST_OK(t, ts_fsdp_statistics(units.root, &stats));
        TEST_CHECK(t, stats.orders == 0 && (stats.prefetched > 0) == (i < 2));
        net_end(&units);
        net_end(&plain);
    }
}

/* Whole until it is given back, whatever backwards come in between. */
TS_TEST_RANKS(fsdp_gathered_by_hand_stays_whole, 2, 3)
{
    ts_fsdp_options options = { .struct_size = sizeof options, .dim = last_dim };
    net units = net_of(4), plain = units;
    begin_both(t, &units, &plain, &options);
    net_train_both(t, &units, &plain, 1, 1e-12); /* its leaves report from here on */
    ts_tensor *weight = ts_module_find_param(units.block[1], "weight");
    TEST_OK(t, ts_fsdp_gather(units.block[1]));
    ts_tape_begin(t->me);
    ts_tensor *square = ts_sum(ts_mul(weight, weight), NULL, 0, 0);
    TEST_OK(t, ts_backward(square, NULL));
    TEST_EQ(t, ts_layout_replicas(ts_tensor_layout(weight)), t->count);
    TEST_OK(t, ts_fsdp_release(units.block[1]));
    TEST_EQ(t, ts_layout_replicas(ts_tensor_layout(weight)), 1);
    TEST_OK(t, ts_module_reset(units.root));
    net_end(&units);
    net_end(&plain);
}
