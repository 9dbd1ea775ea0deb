/* SPDX-License-Identifier: Apache-2.0 */
/* parallel_memory.c - memory of sharded training: what is said before a step is what the step
 * takes, kind by kind, and the device is asked for none once the order of units is known. */
#include <math.h>
#include <string.h>

#include "array/pool.h"
#include "dist/memory_util.h"
#include "harness/test.h"
#include "parallel/unit.h"
#include "tessera/tessera.h"
#include "tessera/train.h"
#include "train/tracker.h"

typedef struct memory_case {
    const char *name, *mesh;
    int32_t family, tied, compute, reshard, again, parts;
    int64_t rows, ranks, layers, ep;
    int32_t travels, prefetch_off; /* shards are no slices, as on devices that share none */
    const char *groups;            /* of ts_module_groups */
} memory_case;

/* Shards along the last dim are no runs of the whole: a gather makes a block. */
static int32_t last_dim(const char *name, ts_shape shape, int32_t otherwise, void *context)
{
    (void)name, (void)context;
    return shape.ndim > 1 ? shape.ndim - 1 : otherwise;
}

static const memory_case cases[] = {
    { .name = "fsdp=2", .mesh = "fsdp=2", .rows = 4, .ranks = 2 },
    { .name = "uneven", .mesh = "fsdp=3", .rows = 4, .ranks = 3 },
    { .name = "stays", .mesh = "fsdp=2", .reshard = TS_RESHARD_NO, .rows = 4, .ranks = 2 },
    { .name = "goes", .mesh = "fsdp=4", .reshard = TS_RESHARD_YES, .rows = 4, .ranks = 4 },
    { .name = "groups", .mesh = "fsdp=4", .reshard = 2, .rows = 4, .ranks = 4 },
    { .name = "run again", .mesh = "fsdp=2", .again = TS_RECOMPUTE_FULL, .rows = 4, .ranks = 2 },
    { .name = "selected", .mesh = "fsdp=2", .again = TS_RECOMPUTE_SELECT, .rows = 4, .ranks = 2 },
    { .name = "copies", .mesh = "replicate=2, fsdp=2", .rows = 4, .ranks = 4 },
    { .name = "tp", .mesh = "fsdp=2, tp=2", .rows = 4, .ranks = 4 },
    { .name = "bf16", .mesh = "fsdp=2", .compute = TS_DTYPE_BF16, .rows = 4, .ranks = 2 },
    { .name = "bf16, tp, again",
      .mesh = "fsdp=2, tp=2",
      .compute = TS_DTYPE_BF16,
      .again = TS_RECOMPUTE_FULL,
      .rows = 4,
      .ranks = 4 },
    { .name = "gpt2, tied",
      .mesh = "fsdp=2",
      .family = TS_MODEL_GPT2,
      .tied = 1,
      .rows = 4,
      .ranks = 2 },
    { .name = "mixtral", .mesh = "fsdp=2", .family = TS_MODEL_MIXTRAL, .rows = 4, .ranks = 2 },
    { .name = "two layers", .mesh = "fsdp=2", .rows = 2, .ranks = 2, .layers = 2 },
    { .name = "two layers, bf16",
      .mesh = "replicate=2, fsdp=2",
      .compute = TS_DTYPE_BF16,
      .reshard = TS_RESHARD_YES,
      .rows = 4,
      .ranks = 4,
      .layers = 2 },
    { .name = "parts", .mesh = "fsdp=2", .parts = 2, .rows = 2, .ranks = 2 },
    { .name = "a unit without backward",
      .mesh = "fsdp=2",
      .rows = 4,
      .ranks = 2,
      .travels = 1,
      .groups = "*embed_tokens*: frozen" },
    { .name = "experts",
      .mesh = "fsdp=4",
      .family = TS_MODEL_MIXTRAL,
      .rows = 4,
      .ranks = 4,
      .layers = 2,
      .ep = 2 },
    { .name = "experts, none cut",
      .mesh = "fsdp=4",
      .family = TS_MODEL_MIXTRAL,
      .rows = 4,
      .ranks = 4,
      .layers = 2,
      .ep = 4 },
    { .name = "experts, copies",
      .mesh = "replicate=4, fsdp=2",
      .family = TS_MODEL_MIXTRAL,
      .rows = 4,
      .ranks = 8,
      .layers = 2,
      .ep = 4 },
};

static ts_model *model_of(ts_mesh *mesh, const memory_case *c)
{
    ts_model_config config = memory_config(c->family, c->layers ? c->layers : 4, c->tied);
    ts_model_options options = { .struct_size = sizeof options,
                                 .compute = c->compute,
                                 .ep = c->ep };
    ts_fsdp_options units = { .struct_size = sizeof units,
                              .reshard = c->reshard,
                              .dim = c->travels ? last_dim : NULL,
                              .prefetch_off = c->prefetch_off };
    ts_model *model = ts_model_declare(mesh, &config, &options);
    for (int64_t i = 1; i + 1 < ts_model_block_count(model); i++)
        ts_module_checkpoint(ts_model_block(model, i), c->again);
    if (c->groups) ts_module_groups(ts_model_module(model), c->groups);
    ts_model_fsdp(model, &units);
    return model;
}

static ts_status step(ts_rank *me, ts_model *model, ts_optimizer *optimizer, const memory_case *c)
{
    int32_t parts = c->parts ? c->parts : 1;
    double norm;
    for (int32_t part = 0; part < parts; part++) {
        ts_scope scope = ts_scope_open(me, NULL);
        ts_tape_begin(me);
        ts_meta meta = { .shape = TS_SHAPE(c->rows, 64), .dtype = TS_DTYPE_I64 };
        ts_tensor *ids = ts_from_function(memory_token, NULL, ts_model_tokens(model), meta);
        ts_tensor *labels = ts_from_function(memory_token, NULL, ts_model_tokens(model), meta);
        ts_tensor *mean = ts_model_loss(model, ids, labels);
        double loss;
        ts_tensor_item(mean, &loss);
        ts_backward(parts > 1 ? ts_mul_scalar(mean, 1.0 / parts) : mean, NULL);
        ts_scope_close(scope);
    }
    ts_clip_grad_norm(ts_model_module(model), 1.0, &norm);
    return ts_optimizer_step(optimizer);
}

typedef struct outcome {
    test *t;
    const memory_case *c;
    int64_t peak, states; /* of rank 0 */
    int64_t held;         /* parameters, gradients, moments and what is gathered, at most */
    int64_t together;     /* the same, at one moment; where `counts` */
    bool shares;          /* shards are slices of one storage */
    bool counts;
} outcome;

typedef struct moment {
    const tsi_pool *pool;
    int64_t most;
} moment;

static void look(void *context, void *memory, size_t bytes, uint32_t tag)
{
    (void)memory, (void)bytes, (void)tag;
    static const int32_t tags[] = { TSI_TAG_PARAMETER, TSI_TAG_GRADIENT, TSI_TAG_OPTIMIZER,
                                    TSI_TAG_GATHERED };
    moment *m = context;
    int64_t now = 0;
    for (size_t i = 0; i < sizeof tags / sizeof tags[0]; i++)
        now += tsi_pool_used(m->pool, tags[i]).live;
    if (now > m->most) m->most = now;
}

static void look_away(void *context, void *memory)
{
    (void)context, (void)memory;
}

/* The most that a step holds of these kinds at one moment. */
static ts_status count_together(ts_rank *me, ts_model *model, ts_optimizer *optimizer,
                                const memory_case *c, int64_t *most)
{
    tsi_pool *pool = tsi_pool_of(me);
    moment m = { .pool = pool };
    const tsi_pool_watch watch = { look, look_away, &m, NULL };
    tsi_pool_watch_by(pool, &watch);
    ts_status status = step(me, model, optimizer, c);
    tsi_pool_watch_by(pool, NULL);
    *most = m.most;
    return status;
}

static void check_kinds(const outcome *o, const ts_memory *plan, const ts_memory *real)
{
    static const ts_memory_kind kinds[] = { TS_MEMORY_PARAMETER, TS_MEMORY_MIRROR,
                                            TS_MEMORY_GATHERED, TS_MEMORY_GRADIENT,
                                            TS_MEMORY_OPTIMIZER };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        double planned = (double)plan->most[kinds[i]], took = (double)real->most[kinds[i]];
        double slack = o->c->ep > 1 ? 0 : 0.02 * planned;
        TEST_SAY(o->t, fabs(took - planned) <= slack, "%s: %s took %.0f, planned %.0f", o->c->name,
                 ts_memory_kind_name(kinds[i]), took, planned);
    }
    /* Which rows go to the experts of a rank is known of numbers alone: a plan gives them even
     * shares, and these few rows are far from it. So it is activations that differ: the kinds
     * above are those of the plan on every rank, to the byte. */
    double beyond = fabs((double)(real->peak - plan->peak)), most = 0.05 * (double)plan->peak;
    if (o->c->ep > 1) most = (double)plan->most[TS_MEMORY_ACTIVATION] / 2;
    TEST_SAY(o->t, beyond <= most, "%s: the peak is %lld, planned %lld", o->c->name,
             (long long)real->peak, (long long)plan->peak);
}

/* One more step: its largest moment is the plan's, and the same modules hold the same then. */
static ts_status check_peak(const outcome *o, ts_rank *me, ts_model *model, ts_optimizer *optimizer,
                            const ts_train_peak *plan)
{
    ts_train_peak held;
    tsi_tracker tracker;
    ts_module *root = ts_model_module(model);
    ts_status status = tsi_tracker_begin(&tracker, me, root);
    if (status != TS_OK) return status;
    tsi_tracker_step(&tracker, "forward");
    status = step(me, model, optimizer, o->c);
    if (status == TS_OK) status = tsi_tracker_end(&tracker, root, optimizer, &held);
    tsi_tracker_release(&tracker);
    /* check_kinds says how near; as many bytes of experts may be others by chance */
    if (status != TS_OK || held.bytes != plan->bytes || o->c->ep > 1) return status;
    TEST_SAY(o->t,
             strcmp(plan->phase, held.phase) == 0 && strcmp(plan->module, held.module) == 0 &&
                 strcmp(plan->op, held.op) == 0,
             "%s: planned in %s of %s by %s, held in %s of %s by %s", o->c->name, plan->phase,
             plan->module, plan->op, held.phase, held.module, held.op);
    TEST_SAY(o->t, memcmp(plan->row, held.row, sizeof held.row) == 0,
             "%s: other modules hold the %lld bytes", o->c->name, (long long)held.bytes);
    return TS_OK;
}

static ts_status compare(ts_rank *me, void *argument)
{
    outcome *o = argument;
    const memory_case *c = o->c;
    ts_model *model = model_of(ts_mesh_create(me, c->mesh), c);
    ts_train_shape shape = {
        .struct_size = sizeof shape, .rows = c->rows, .context = 64, .moments = 2, .parts = c->parts
    };
    ts_train_cost cost;
    ts_status status = ts_train_estimate(model, &shape, &cost);
    if (status == TS_OK) status = ts_model_materialize(model);
    ts_optimizer *optimizer =
        status == TS_OK ? ts_adamw_create(ts_model_module(model), NULL) : NULL;
    int64_t reserved = 0;
    for (int i = 0; status == TS_OK && i < 10; i++) {
        if (i == 1) status = ts_rank_memory_reset(me);
        if (i == 2) reserved = tsi_pool_reserved(tsi_pool_of(me));
        if (status == TS_OK) status = step(me, model, optimizer, c);
    }
    ts_memory real = { .struct_size = sizeof real };
    if (status == TS_OK) status = ts_rank_memory(me, &real);
    if (status == TS_OK) check_kinds(o, &cost.memory, &real);
    if (c->ep <= 1) TEST_EQ(o->t, tsi_pool_reserved(tsi_pool_of(me)), reserved);
    if (status == TS_OK) status = check_peak(o, me, model, optimizer, &cost.peak);
    int64_t together = 0;
    if (status == TS_OK && o->counts) status = count_together(me, model, optimizer, c, &together);
    if (ts_rank_index(me) == 0) {
        o->peak = real.peak;
        o->together = together;
        o->states = cost.weight_bytes + cost.optimizer_bytes + cost.gradient_bytes;
        o->shares = tsi_world_shares(me->world);
        o->held = real.most[TS_MEMORY_PARAMETER] + real.most[TS_MEMORY_GRADIENT] +
                  real.most[TS_MEMORY_OPTIMIZER] + real.most[TS_MEMORY_GATHERED];
    }
    ts_optimizer_destroy(optimizer);
    ts_model_destroy(model);
    return status;
}

static void run_case(outcome *o)
{
    ts_world_options options = {
        .struct_size = sizeof options, .engine = "threads", .rank_count = o->c->ranks, .seed = 1
    };
    char error[512] = "";
    TEST_SAY(o->t, ts_launch_with(&options, compare, o, error, sizeof error) == TS_OK, "%s: %s",
             o->c->name, error);
}

TS_TEST(fsdp_memory_is_as_planned)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        outcome o = { .t = t, .c = &cases[i] };
        if (test_tries(t)) run_case(&o);
    }
}

/* With copies, what a rank holds beyond its states does not grow with the layers. */
TS_TEST(fsdp_20_memory_of_copies)
{
    int64_t beyond[2];
    for (int i = 0; i < 2; i++) {
        memory_case c = { .name = "layers",
                          .mesh = "replicate=2, fsdp=2",
                          .again = TS_RECOMPUTE_FULL,
                          .reshard = TS_RESHARD_YES,
                          .rows = 4,
                          .ranks = 4,
                          .layers = i ? 12 : 6 };
        outcome o = { .t = t, .c = &c };
        run_case(&o);
        beyond[i] = o.peak - o.states; /* the largest moment is when all gradients are there */
    }
    double grown = (double)(beyond[1] - beyond[0]) / (double)beyond[0];
    TEST_SAY(t, fabs(grown) < 0.02, "%lld bytes with 6 layers, %lld with 12", (long long)beyond[0],
             (long long)beyond[1]);
}

/* Four ranks hold a quarter of the states each, and two units. Where shards are slices of one
 * storage these are the gradients that backward fills and those on their way. Where a gather makes
 * a block, parameters go as their gradients come, which is one unit, and the other one is what is
 * on its way: gradients first, then the unit that comes next. What is held of single kinds is more,
 * at different moments. */
TS_TEST(fsdp_memory_is_a_part_and_two_units)
{
    static const memory_case row[] = {
        { .name = "alone", .mesh = "fsdp=1", .rows = 4, .ranks = 1, .layers = 8 },
        { .name = "cut", .mesh = "fsdp=4", .rows = 4, .ranks = 4, .layers = 8 },
        { .name = "blocks", .mesh = "fsdp=4", .rows = 4, .ranks = 4, .layers = 8, .travels = 1 },
        { .name = "nothing ahead",
          .mesh = "fsdp=4",
          .rows = 4,
          .ranks = 4,
          .layers = 8,
          .travels = 1,
          .prefetch_off = 1 },
        { .name = "one by one",
          .mesh = "fsdp=4",
          .rows = 4,
          .ranks = 4,
          .layers = 8,
          .travels = 1,
          .prefetch_off = 2 },
        { .name = "blocks that run again",
          .mesh = "fsdp=4",
          .rows = 4,
          .ranks = 4,
          .layers = 8,
          .travels = 1,
          .again = TS_RECOMPUTE_FULL },
    };
    enum { ROWS = sizeof row / sizeof row[0] };
    outcome o[ROWS];
    for (int i = 0; i < ROWS; i++) {
        o[i] = (outcome){ .t = t, .c = &row[i], .counts = true };
        run_case(&o[i]);
    }
    int64_t unit = 260 * 48 * (int64_t)sizeof(float);
    int64_t block = (48 * 24 * 3 + 48 * 48 + 3 * 48 * 128 + 2 * 48) * (int64_t)sizeof(float);
    if (block > unit) unit = block;
    const int64_t units[ROWS] = { 0, o[1].shares ? 2 : 4, 4, 3, 2, 4 };
    const int64_t together[ROWS] = { 0, 2, 2, 2, 2, 4 };
    for (int i = 1; i < ROWS; i++)
        TEST_SAY(t, o[i].held <= o[0].states / 4 + units[i] * unit,
                 "%s: %lld of %lld, and %lld units of %lld", row[i].name, (long long)o[i].held,
                 (long long)o[0].states, (long long)units[i], (long long)unit);
    for (int i = 1; i < ROWS; i++)
        TEST_SAY(t, o[i].together <= o[0].states / 4 + together[i] * unit,
                 "%s: %lld of %lld at one moment, and %lld units of %lld", row[i].name,
                 (long long)o[i].together, (long long)o[0].states, (long long)together[i],
                 (long long)unit);
}
