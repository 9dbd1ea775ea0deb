/* SPDX-License-Identifier: Apache-2.0 */
/* replay_model_faults.c - a replay of a training step of a small model in which a rank fails before
 * the update, in the recorded order, in a new one, with operations that go as one and in parts:
 * after recovering the next replays have the losses of a run that nothing disturbed. */
#include "device/device.h"
#include "dist/token_util.h"
#include "fault/order.h"
#include "harness/test.h"
#include "tessera/tessera.h"

enum { ROWS = 4, CONTEXT = 8, VOCAB = 31, REPLAYS = 3 };

typedef struct trial {
    test *t;
    order_kind order;
    bool fails, graphs;
    double loss[REPLAYS]; /* of each replay that ended well */
} trial;

typedef struct trained {
    ts_rank *me;
    ts_model *model;
    ts_optimizer *optimizer;
    ts_tensor *ids, *labels;
    bool armed;
} trained;

static ts_status strike(void *context)
{
    trained *r = context;
    if (!r->armed) return TS_OK;
    r->armed = false;
    return ts_rank_fail(r->me, TS_ERR_STATE, "the rank broke");
}

static ts_tensor *tokens(const trained *r, int64_t salt)
{
    return tokens_of(r->model, ROWS, CONTEXT, (token_recipe){ VOCAB, salt });
}

/* Between threads, too, so that there is something to put into another order. */
static ts_status gather(ts_tensor *const *x, const ts_sharding *const *to, int32_t count,
                        ts_tensor **out, void *context)
{
    (void)context;
    return ts_redistribute_many(x, to, count, out);
}

static void make(ts_rank *me, trained *r)
{
    ts_model_config config = { .struct_size = sizeof config,
                               .vocab = VOCAB,
                               .hidden = 16,
                               .intermediate = 24,
                               .layers = 2,
                               .heads = 4,
                               .kv_heads = 2,
                               .head_dim = 4,
                               .positions = CONTEXT };
    ts_fsdp_options sharded = { .struct_size = sizeof sharded, .gather_fn = gather };
    sharded.prefetch_off = 2;
    r->me = me;
    r->model = ts_model_declare(ts_mesh_create(me, "fsdp=*"), &config, NULL);
    ts_model_fsdp(r->model, &sharded);
    ts_model_materialize(r->model);
    r->optimizer =
        ts_adamw_create(ts_model_module(r->model), TS_OPTIONS(ts_adamw_options, .lr = 1e-2));
    r->ids = tokens(r, 1);
    r->labels = tokens(r, 2);
}

static ts_status step(void *context)
{
    trained *r = context;
    ts_scope scope = ts_scope_open(r->me, "step");
    ts_tape_begin(r->me);
    ts_tensor *loss = ts_model_loss(r->model, r->ids, r->labels);
    ts_status status = ts_backward(loss, NULL);
    if (status == TS_OK)
        status = tsi_keep_work(r->me, (tsi_kept_work){ strike, r, NULL, &order_loose });
    ts_step_options options = { .struct_size = sizeof options, .norm_max = 0.5, .loss = loss };
    if (status == TS_OK) status = ts_optimizer_step_with(r->optimizer, &options);
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

/* The second replay fails on all ranks, and is made once more. */
static ts_status replay(trial *l, trained *r, ts_step *again, int32_t n)
{
    if (l->fails && n == 1) {
        r->armed = ts_rank_index(r->me) == 1;
        TEST_SAY(l->t, ts_step_replay(again) != TS_OK, "rank %d went on",
                 (int)ts_rank_index(r->me));
        TEST_SAYS(l->t, ts_rank_error(r->me)->text, "the rank broke");
        TEST_OK(l->t, ts_rank_recover(r->me));
    }
    return ts_step_replay(again);
}

static ts_status run(trial *l, trained *r, ts_step *again)
{
    bool graphs = !tsi_rank_device_of(r->me)->device->host_readable; /* they keep their order */
    ts_status status = graphs ? TS_OK : order_anew(l->t, again, l->order);
    for (int32_t n = 0; n < REPLAYS && status == TS_OK; n++) {
        status = replay(l, r, again, n);
        ts_step_outcome is = TS_INIT(ts_step_outcome);
        if (status == TS_OK)
            status = ts_optimizer_outcome(r->optimizer, ts_optimizer_begun(r->optimizer), &is);
        if (ts_rank_index(r->me) == 0) l->loss[n] = is.loss;
    }
    if (ts_rank_index(r->me) == 0) l->graphs = graphs;
    return status;
}

static ts_status work(ts_rank *me, void *argument)
{
    trained r = { 0 };
    make(me, &r);
    ts_status status = ts_rank_status(me);
    if (status == TS_OK) status = step(&r);
    ts_step *again = status == TS_OK ? ts_step_record(me, step, &r) : NULL;
    if (again)
        status = run(argument, &r, again);
    else if (status == TS_OK)
        status = ts_rank_status(me);
    ts_step_destroy(again);
    ts_optimizer_destroy(r.optimizer);
    ts_model_destroy(r.model);
    return status;
}

static void launch(trial *l)
{
    char error[1024] = "";
    ts_world_options options = {
        .struct_size = sizeof options, .engine = "threads", .rank_count = 2, .timeout_ms = 20000
    };
    TEST_SAY(l->t, ts_launch_with(&options, work, l, error, sizeof error) == TS_OK, "order %d: %s",
             l->order, error);
}

TS_TEST_LONG(a_rank_fails_in_the_replay_of_a_model, 120)
{
    trial usual = { .t = t };
    launch(&usual);
    TEST_CHECK(t, usual.loss[2] < usual.loss[0]);
    for (int32_t i = 0; i < ORDER_KINDS && !(usual.graphs && i > 0); i++) {
        trial l = { .t = t, .order = (order_kind)i, .fails = true };
        launch(&l);
        for (int32_t n = 0; n < REPLAYS; n++)
            TEST_SAY(t, l.loss[n] == usual.loss[n], "order %d, replay %d: %.17g, %.17g", i, n,
                     l.loss[n], usual.loss[n]);
    }
}
