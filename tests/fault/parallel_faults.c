/* SPDX-License-Identifier: Apache-2.0 */
/* parallel_faults.c - a step of sharded training in which a rank fails, stalls or leaves, or the
 * n-th allocation fails: all ranks end with the sentence within the timeout, and after recovering
 * and a reset the next step is that of a run without the fault. */
#include <unistd.h>

#include "../dist/parallel_util.h"
#include "base/alloc.h"
#include "base/error.h"
#include "nn/module.h"

typedef enum fault_place {
    IN_GATHER,
    IN_FORWARD,
    IN_AGAIN,
    IN_BACKWARD,
    IN_REDUCTION,
    IN_UPDATE,
    PLACES
} fault_place;
typedef enum fault_kind { FAILS, STALLS, LEAVES } fault_kind;

typedef struct fault {
    test *t;
    fault_place place;
    fault_kind kind;
    const char *mesh;       /* NULL: three ranks that cut */
    int64_t fail_at, tried; /* allocation; 0: none */
    int32_t armed;          /* rank 1's own */
    ts_rank *me;
    /* Without the third step, and with it: the loss after it, the one of the next step, and after
     * that. */
    double wanted[2], next[2], last[2];
} fault;

static _Thread_local fault *here; /* of rank 1's thread */

static ts_status strike(fault_place place)
{
    fault *f = here;
    if (!f || !f->armed || f->place != place) return TS_OK;
    f->armed = 0;
    if (f->kind == STALLS) usleep(1080000);
    return f->kind != STALLS
               ? ts_rank_fail(f->me, TS_ERR_STATE, "the rank broke in place %d", place)
               : TS_OK;
}

static ts_status on_forward(ts_module *m, void *context)
{
    (void)m, (void)context;
    ts_status status = strike(IN_GATHER);
    return status == TS_OK ? strike(IN_FORWARD) : status;
}

static ts_status on_backward(ts_module *m, void *context)
{
    (void)m, (void)context;
    return strike(IN_BACKWARD);
}

static ts_status on_gradient(ts_tensor *leaf, void *context)
{
    (void)leaf, (void)context;
    return strike(IN_REDUCTION);
}

static void net_forward_again(void *state, const ts_module_io *io)
{
    if (io->phase == 1) (void)strike(IN_AGAIN);
    block_forward(state, io);
}

static const ts_module_desc again_desc = { .struct_size = sizeof(ts_module_desc),
                                           .type = "block",
                                           .input_count = 1,
                                           .output_count = 1,
                                           .forward = net_forward_again,
                                           .destroy = free };

static ts_status begin(net *n, ts_rank *me, const char *mesh)
{
    ts_fsdp_options options = { .struct_size = sizeof options };
    n->again = 1;
    net_declare(n, ts_mesh_create(me, mesh ? mesh : "fsdp=*"), false);
    n->block[1]->desc = again_desc;
    TSI_TRY(net_begin(n, &options));
    TSI_TRY(ts_module_on(n->block[1], TS_HOOK_FORWARD_BEFORE, on_forward, NULL));
    TSI_TRY(ts_module_on(n->block[1], TS_HOOK_BACKWARD_BEFORE, on_backward, NULL));
    return ts_tensor_on_grad(ts_module_find_param(n->block[1], "bias"), on_gradient, NULL);
}

static double evaluate(net *n)
{
    ts_rank *me = n->mesh->rank;
    double value = NAN;
    ts_scope scope = ts_scope_open(me, NULL);
    ts_tensor *x = net_input(n, 77);
    ts_tensor_item(ts_sum(ts_square(ts_module_call(n->root, &x, 1)), NULL, 0, 0), &value);
    ts_scope_close(scope);
    return value;
}

static net shape_of(void)
{
    return (net){ .count = 3, .width = 6, .rows = 5, .leaves = -1, .dtype = TS_DTYPE_F64 };
}

static bool close_to(double value, double wanted)
{
    return fabs(value - wanted) <= 1e-12 * fabs(wanted);
}

/* The disturbed step was made on all ranks or on none, and the next one goes on from there. */
static void check_next(const fault *f, net *n)
{
    double norm, loss = evaluate(n);
    int made = close_to(loss, f->wanted[1]);
    TEST_SAY(f->t, close_to(loss, f->wanted[made]),
             "place %d, allocation %lld: %.17g is neither %.17g nor %.17g", f->place,
             (long long)f->fail_at, loss, f->wanted[0], f->wanted[1]);
    double next = net_step(n, 3, &norm), last = evaluate(n);
    TEST_SAY(f->t, close_to(next, f->next[made]) && close_to(last, f->last[made]),
             "place %d, allocation %lld: the next step has %.17g and leaves %.17g, not %.17g and "
             "%.17g",
             f->place, (long long)f->fail_at, next, last, f->next[made], f->last[made]);
}

/* Two steps, one that is disturbed, recovering, and a look at the weights. */
static ts_status work(ts_rank *me, void *argument)
{
    fault own = *(fault *)argument, *shared = argument;
    bool victim = ts_rank_index(me) == 1;
    net n = shape_of();
    double norm;
    own.me = me;
    here = victim ? &own : NULL;
    TSI_TRY(begin(&n, me, own.mesh));
    for (int64_t step = 0; step < 2; step++)
        net_step(&n, step, &norm);
    own.armed = own.fail_at == 0;
    TSI_TRY(ts_group_barrier(ts_group_world(me), NULL));
    if (victim && own.fail_at > 0) (void)tsi_alloc_fail_at(own.fail_at);
    if (own.kind == LEAVES && own.place == PLACES && victim) {
        net_end(&n);
        return TS_ERR_STATE;
    }
    net_run(&n, 2, 0, 1);
    ts_clip_grad_norm(n.root, 0.5, &norm);
    if (victim) (void)strike(IN_UPDATE);
    ts_optimizer_step(n.optimizer);
    ts_group_barrier(ts_group_world(me), NULL);
    if (victim && own.fail_at > 0) shared->tried = tsi_alloc_fail_at(0);
    bool failed = ts_rank_status(me) != TS_OK;
    if (!failed) ts_group_barrier(ts_group_world(me), NULL); /* nothing fails any more */
    if (own.fail_at == 0) TEST_SAY(own.t, failed, "rank %d went on", (int)ts_rank_index(me));
    here = NULL;
    if (failed && own.kind == FAILS) {
        TEST_OK(own.t, ts_rank_recover(me));
        TEST_OK(own.t, ts_module_reset(n.root));
    }
    if (!failed || own.kind == FAILS) {
        check_next(&own, &n);
    }
    net_end(&n);
    return ts_rank_status(me);
}

static ts_status undisturbed(ts_rank *me, void *argument)
{
    fault *f = argument;
    for (int made = 0; made < 2; made++) {
        net n = shape_of();
        double norm, loss[3];
        TSI_TRY(begin(&n, me, f->mesh));
        for (int64_t step = 0; step < 2 + made; step++)
            net_step(&n, step, &norm);
        loss[0] = evaluate(&n);
        loss[1] = net_step(&n, 3, &norm);
        loss[2] = evaluate(&n);
        if (ts_rank_index(me) == 0) {
            f->wanted[made] = loss[0];
            f->next[made] = loss[1];
            f->last[made] = loss[2];
        }
        net_end(&n);
    }
    return ts_rank_status(me);
}

static ts_status launch(fault *f, ts_status (*fn)(ts_rank *, void *), char *error, size_t size)
{
    ts_world_options options = { .struct_size = sizeof options,
                                 .engine = "threads",
                                 .rank_count = f->mesh ? 4 : 3,
                                 .seed = 5,
                                 .timeout_ms = f->kind == STALLS ? 1000 : 20000 };
    return ts_launch_with(&options, fn, f, error, size);
}

TS_TEST_LONG(fsdp_a_rank_fails, 120)
{
    char error[1024];
    for (int place = 0; place < PLACES; place++) {
        fault f = { .t = t, .kind = FAILS, .place = (fault_place)place };
        TEST_OK(t, launch(&f, undisturbed, error, sizeof error));
        ts_status status = launch(&f, work, error, sizeof error);
        TEST_SAY(t, status == TS_OK, "place %d: %s", place, error);
    }
}

/* With copies: where gradients of block 1 are made, both rounds of those of block 2 are on their
 * way. */
TS_TEST_LONG(fsdp_a_rank_fails_between_begin_and_end, 120)
{
    static const fault_place places[] = { IN_AGAIN, IN_BACKWARD, IN_REDUCTION, IN_UPDATE };
    char error[1024];
    for (int i = 0; i < 4; i++) {
        fault f = { .t = t, .kind = FAILS, .place = places[i], .mesh = "replicate=2, fsdp=2" };
        TEST_OK(t, launch(&f, undisturbed, error, sizeof error));
        ts_status status = launch(&f, work, error, sizeof error);
        TEST_SAY(t, status == TS_OK, "place %d: %s", places[i], error);
        f.kind = LEAVES; /* it does not recover */
        TEST_CHECK(t, launch(&f, work, error, sizeof error) != TS_OK);
        TEST_SAYS(t, error, "the rank broke in place");
        f.kind = STALLS;
        TEST_CHECK(t, launch(&f, work, error, sizeof error) != TS_OK);
        TEST_SAYS(t, error, "rank");
    }
}

TS_TEST_LONG(fsdp_18_a_rank_stalls_or_leaves, 120)
{
    char error[1024] = "";
    fault leaves = { .t = t, .kind = LEAVES, .place = PLACES };
    TEST_CHECK(t, launch(&leaves, work, error, sizeof error) != TS_OK);
    TEST_SAYS(t, error, "rank 1");
    static const fault_place places[] = { IN_GATHER, IN_AGAIN, IN_REDUCTION, IN_UPDATE };
    for (int i = 0; i < 4; i++) {
        fault f = { .t = t, .kind = LEAVES, .place = places[i] }; /* it does not recover */
        TEST_CHECK(t, launch(&f, work, error, sizeof error) != TS_OK);
        TEST_SAYS(t, error, "the rank broke in place");
        f.kind = STALLS;
        TEST_CHECK(t, launch(&f, work, error, sizeof error) != TS_OK);
        TEST_SAYS(t, error, "rank");
    }
}

static void every_allocation(test *t, const char *mesh)
{
    char error[1024];
    fault f = { .t = t, .kind = FAILS, .place = PLACES, .mesh = mesh };
    TEST_OK(t, launch(&f, undisturbed, error, sizeof error));
    int64_t n = 1;
    for (bool reached = true; reached && n < 20000 && !test_failed(t); n++) {
        if (!test_tries(t)) continue;
        fault one = f;
        one.fail_at = n;
        ts_status status = launch(&one, work, error, sizeof error);
        TEST_SAY(t, status == TS_OK, "allocation %lld: %s", (long long)n, error);
        reached = one.tried >= n;
    }
    TEST_CHECK(t, n > 40);
}

TS_TEST_LONG(fsdp_every_allocation_of_a_step_may_fail, 300)
{
    every_allocation(t, NULL);
}

TS_TEST_LONG(fsdp_every_allocation_of_a_step_with_copies_may_fail, 300)
{
    every_allocation(t, "replicate=2, fsdp=2");
}

/* ---- a shard that a peer does not let go of -------------------------------------------------- */

/* Rank 1 has it gathered and is away: the others may not write their shards. */
static ts_status held(ts_rank *me, void *argument)
{
    fault *f = argument;
    net n = shape_of();
    net_declare(&n, ts_mesh_create(me, "fsdp=*"), false);
    TSI_TRY(net_begin(&n, TS_OPTIONS(ts_fsdp_options, .prefetch_off = 1)));
    ts_tensor *w = ts_module_find_param(n.root, "blocks.0.weight");
    ts_scope scope = ts_scope_open_with(me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    TSI_TRY(ts_fsdp_gather(n.block[0]));
    TSI_TRY(ts_tensor_wait(w));
    if (ts_rank_index(me) == 1) usleep(1080000);
    TSI_TRY(ts_fsdp_release(n.block[0]));
    (void)ts_tril_(w, -10); /* the shard, in place */
    const ts_error *error = ts_rank_error(me);
    if (ts_rank_index(me) == 0 && error) f->tried = error->rank;
    ts_scope_close(scope);
    net_end(&n);
    return ts_rank_status(me);
}

TS_TEST(fsdp_a_rank_keeps_what_it_gathered)
{
    char error[1024] = "";
    fault f = { .t = t, .kind = STALLS, .tried = -1 };
    TEST_STATUS(t, launch(&f, held, error, sizeof error), TS_ERR_PEER);
    TEST_SAYS(t, error, " waited 1000 ms in a write to its shard of fsdp unit blocks.0 for rank 1");
    TEST_EQ(t, f.tried, 1);
}

/* ---- different orders ------------------------------------------------------------------------ */

static ts_status backwards(ts_rank *me, void *argument)
{
    (void)argument;
    net n = shape_of();
    ts_fsdp_options options = { .struct_size = sizeof options };
    n.width = 7;
    net_declare(&n, ts_mesh_create(me, "fsdp=*"), false);
    TSI_TRY(net_begin(&n, &options));
    ts_scope scope = ts_scope_open(me, NULL);
    ts_tensor *x = net_input(&n, 0);
    for (int64_t i = 0; i < n.count; i++)
        x = TS_CALL(n.block[ts_rank_index(me) == 1 ? n.count - 1 - i : i], x);
    ts_tensor_wait(x);
    ts_scope_close(scope);
    net_end(&n);
    return ts_rank_status(me);
}

/* Units in another order on one rank: a sentence that names them, no hang, no wrong number. */
TS_TEST(fsdp_different_orders)
{
    char error[1024] = "";
    fault f = { .t = t, .kind = FAILS };
    TEST_CHECK(t, launch(&f, backwards, error, sizeof error) != TS_OK);
    TEST_SAYS(t, error, "fsdp: unit blocks.");
    TEST_SAYS(t, error, "ranks were not called alike");
}
