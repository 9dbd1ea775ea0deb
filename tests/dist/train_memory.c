/* SPDX-License-Identifier: Apache-2.0 */
/* train_memory.c - the account of a step before there was one, beside the account of the step
 * (repair 20): small models, where nothing hides behind the weights. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "array/pool.h"
#include "base/compiler.h"
#include "base/intmath.h"
#include "comm/comm.h"
#include "device/device.h"
#include "dist/memory_util.h"
#include "harness/test.h"
#include "tessera/tessera.h"
#include "tessera/train.h"
#include "train/tracker.h"

typedef struct memory_case {
    const char *name, *mesh, *plan;
    int32_t family, tied, compute, dtype, parts, again, window;
    int64_t rows, ranks, ep;
    int32_t balance, attention, muon, reserved;
} memory_case;

static const memory_case cases[] = {
    { .name = "llama", .mesh = "dp=1", .rows = 4, .ranks = 1 },
    { .name = "tied", .mesh = "dp=1", .tied = 1, .rows = 4, .ranks = 1 },
    { .name = "bf16", .mesh = "dp=1", .compute = TS_DTYPE_BF16, .rows = 4, .ranks = 1 },
    { .name = "stored in bf16", .mesh = "dp=1", .dtype = TS_DTYPE_BF16, .rows = 4, .ranks = 1 },
    { .name = "accumulation", .mesh = "dp=1", .parts = 3, .rows = 2, .ranks = 1 },
    { .name = "run again", .mesh = "dp=1", .again = 1, .rows = 4, .ranks = 1 },
    { .name = "gpt2", .mesh = "dp=1", .family = TS_MODEL_GPT2, .tied = 1, .rows = 4, .ranks = 1 },
    { .name = "qwen3",
      .mesh = "dp=1",

      .family = TS_MODEL_QWEN3,
      .tied = 1,
      .rows = 4,
      .ranks = 1 },
    { .name = "window",
      .mesh = "dp=1",

      .family = TS_MODEL_QWEN3,
      .window = 9,
      .rows = 4,
      .ranks = 1 },
    { .name = "mixtral",
      .mesh = "dp=1",

      .family = TS_MODEL_MIXTRAL,
      .rows = 4,
      .ranks = 1 },
    { .name = "dp", .mesh = "dp=2", .rows = 4, .ranks = 2 },
    { .name = "dp, uneven", .mesh = "dp=2", .rows = 3, .ranks = 2 },
    { .name = "tp", .mesh = "tp=2", .plan = "tp", .rows = 4, .ranks = 2 },
    { .name = "sp", .mesh = "tp=2", .plan = "sp", .rows = 4, .ranks = 2 },
    { .name = "tied, bf16, tp, accumulation",
      .mesh = "tp=2",
      .plan = "tp",
      .tied = 1,
      .compute = TS_DTYPE_BF16,
      .parts = 2,
      .rows = 2,
      .ranks = 2 },
    { .name = "dp, tp, bf16",
      .mesh = "dp=2, tp=2",
      .compute = TS_DTYPE_BF16,
      .rows = 4,
      .ranks = 4 },
    { .name = "gpt2, sp",
      .mesh = "tp=2",
      .family = TS_MODEL_GPT2,
      .tied = 1,
      .rows = 4,
      .ranks = 2 },
    { .name = "mixtral, dp, tp",
      .mesh = "dp=2, tp=2",
      .family = TS_MODEL_MIXTRAL,
      .rows = 4,
      .ranks = 4 },
    { .name = "experts, a part of an axis",
      .mesh = "dp=4",
      .family = TS_MODEL_MIXTRAL,
      .rows = 4,
      .ranks = 4,
      .ep = 2 },
    { .name = "experts, an axis",
      .mesh = "dp=4",
      .family = TS_MODEL_MIXTRAL,
      .rows = 4,
      .ranks = 4,
      .ep = 4 },
    { .name = "experts, tp",
      .mesh = "dp=2, tp=2",
      .family = TS_MODEL_MIXTRAL,
      .rows = 4,
      .ranks = 4,
      .ep = 2 },
    { .name = "experts, tp and a part",
      .mesh = "dp=4, tp=2",
      .family = TS_MODEL_MIXTRAL,
      .rows = 4,
      .ranks = 8,
      .ep = 4 },
    { .name = "muon", .mesh = "dp=1", .rows = 1, .ranks = 1, .muon = 1 },
    { .name = "muon, dp, tp", .mesh = "dp=2, tp=2", .rows = 2, .ranks = 4, .muon = 1 },
    { .name = "muon, gpt2, sp",
      .mesh = "tp=2",
      .family = TS_MODEL_GPT2,
      .tied = 1,
      .rows = 1,
      .ranks = 2,
      .muon = 1 },
    { .name = "muon, experts, bf16",
      .mesh = "dp=4",
      .family = TS_MODEL_MIXTRAL,
      .compute = TS_DTYPE_BF16,
      .rows = 4,
      .ranks = 4,
      .ep = 2,
      .muon = 1 },
    { .name = "an axis of no role", .mesh = "x=2", .rows = 4, .ranks = 2 },
    { .name = "a sequence cut in order",
      .mesh = "cp=3",
      .rows = 4,
      .ranks = 3,
      .balance = TS_BALANCE_NONE,
      .attention = TS_ATTENTION_GATHER },
    { .name = "a sequence cut by cost",
      .mesh = "cp=3",
      .rows = 4,
      .ranks = 3,
      .balance = TS_BALANCE_PTRR,
      .attention = TS_ATTENTION_HEADS },
    { .name = "a ring", .mesh = "cp=3", .rows = 4, .ranks = 3, .attention = TS_ATTENTION_RING },
    { .name = "a ring in bf16",
      .mesh = "cp=2, tp=2",
      .compute = TS_DTYPE_BF16,
      .rows = 4,
      .ranks = 4,
      .attention = TS_ATTENTION_RING },
};

static ts_model *model_of(ts_mesh *mesh, const memory_case *c)
{
    ts_model_config config = memory_config(c->family, 3, c->tied);
    config.window = c->window;
    config.window_layers[0] = c->window ? 2 : 0;
    ts_model_options options = { .struct_size = sizeof options,
                                 .plan = c->plan,
                                 .dtype = c->dtype,
                                 .compute = c->compute,
                                 .attention = c->attention,
                                 .balance = c->balance,
                                 .ep = c->ep };
    ts_model *model = ts_model_declare(mesh, &config, &options);
    for (int64_t i = 1; c->again && i + 1 < ts_model_block_count(model); i++)
        ts_module_checkpoint(ts_model_block(model, i), 1);
    return model;
}

static ts_status step(ts_rank *me, ts_model *model, const memory_case *c)
{
    int32_t parts = c->parts ? c->parts : 1;
    for (int32_t part = 0; part < parts; part++) {
        ts_scope scope = ts_scope_open(me, NULL);
        ts_tape_begin(me);
        ts_meta meta = { .shape = TS_SHAPE(c->rows, 64), .dtype = TS_DTYPE_I64 };
        const ts_sharding *cut = ts_model_tokens_of(model, 64, NULL);
        ts_tensor *ids = ts_from_function(memory_token, NULL, cut, meta);
        ts_tensor *labels = ts_from_function(memory_token, NULL, cut, meta);
        ts_tensor *mean = ts_model_loss(model, ids, labels);
        double loss;
        ts_tensor_item(mean, &loss);
        ts_backward(parts > 1 ? ts_mul_scalar(mean, 1.0 / parts) : mean,
                    TS_OPTIONS(ts_backward_options, .lazy = part + 1 < parts));
        ts_scope_close(scope);
    }
    return ts_rank_status(me);
}

typedef struct outcome {
    test *t;
    const memory_case *c;
    char state[512]; /* where one is saved */
} outcome;

/* Every tensor was foreseen, and what kernels use while they run. Which rows go to the experts of a
 * rank is known of numbers alone: a plan gives them even shares. */
static void check_account(const outcome *o, ts_rank *me, const ts_train_cost *cost)
{
    const tsi_pool *pool = tsi_pool_of(me);
    int64_t peak = tsi_pool_used(pool, -1).peak;
    int64_t scratch = tsi_pool_used(pool, TSI_TAG_OTHER).peak;
    int64_t comm = tsi_pool_used(pool, TSI_TAG_COMM).peak;
    int64_t states = cost->weight_bytes + cost->gradient_bytes + cost->optimizer_bytes;
    int64_t planned = states + cost->activation_bytes, beyond = peak - planned;
    /* Where work runs later, experts take rows by all their choices, so that no host has to say
     * which are theirs (op/matrix/grouped_mlp_whole.c), and rows that travelled stay until the
     * queue has passed them; a plan is that of a host. */
    int64_t part = tsi_rank_device_of(me)->device->host_readable ? 4 : 1;
    int64_t uneven = o->c->ep > 1 ? cost->activation_bytes / part : 0;
    TEST_EQ(o->t, cost->weight_bytes, tsi_pool_used(pool, TSI_TAG_PARAMETER).live);
    TEST_EQ(o->t, cost->optimizer_bytes, tsi_pool_used(pool, TSI_TAG_OPTIMIZER).live);
    TEST_SAY(o->t, beyond >= -uneven && beyond <= scratch + comm + uneven,
             "%s: %lld bytes, planned %lld; kernels use %lld, communication %lld", o->c->name,
             (long long)peak, (long long)planned, (long long)scratch, (long long)comm);
    if (o->c->ep <= 1) TEST_EQ(o->t, peak, planned);
}

/* Rows add up to what the pool counted at the peak of the same step. */
static void check_sums(const outcome *o, ts_rank *me, const ts_train_peak *held)
{
    ts_memory memory = { .struct_size = sizeof memory };
    TEST_CHECK(o->t, ts_rank_memory(me, &memory) == TS_OK);
    TEST_EQ(o->t, held->bytes, memory.peak);
    for (int k = 0; k < TS_MEMORY_KINDS; k++) {
        int64_t sum = 0;
        for (int32_t i = 0; i < held->row_count; i++)
            sum += held->row[i].bytes[k];
        TEST_SAY(o->t, sum == memory.at_peak[k], "%s: modules have %lld bytes of %s, the rank %lld",
                 o->c->name, (long long)sum, ts_memory_kind_name((ts_memory_kind)k),
                 (long long)memory.at_peak[k]);
    }
}

/* The same moment, and the same modules hold the same then. */
static void check_peak(const outcome *o, const ts_train_peak *plan, const ts_train_peak *held)
{
    TEST_EQ(o->t, plan->bytes, held->bytes);
    TEST_SAY(o->t,
             strcmp(plan->phase, held->phase) == 0 && strcmp(plan->module, held->module) == 0 &&
                 strcmp(plan->op, held->op) == 0 && plan->kind == held->kind,
             "%s: planned in %s of %s by %s, held in %s of %s by %s", o->c->name, plan->phase,
             plan->module, plan->op, held->phase, held->module, held->op);
    TEST_EQ(o->t, plan->row_count, held->row_count);
    TEST_CHECK(o->t, plan->row_count > 4);
    for (int32_t i = 0; i < plan->row_count && i < held->row_count; i++)
        TEST_SAY(o->t, memcmp(&plan->row[i], &held->row[i], sizeof plan->row[i]) == 0,
                 "%s: row %d is \"%s\", and was \"%s\"", o->c->name, i, plan->row[i].name,
                 held->row[i].name);
}

/* Even shares of a rank, whatever the axes beside tp are called. */
static void check_sizes(const outcome *o, const ts_mesh *mesh, const ts_train_sizes *sizes)
{
    int64_t tp = ts_mesh_size(mesh, "tp") > 0 ? ts_mesh_size(mesh, "tp") : 1;
    TEST_EQ(o->t, sizes->rows, tsi_ceil_div(64 * o->c->rows, o->c->ranks / tp));
    TEST_EQ(o->t, sizes->inner, 128 / tp);
    TEST_EQ(o->t, sizes->heads, 4 / tp);
}

/* `tracker` may be NULL. */
static ts_status update(ts_rank *me, ts_model *model, const memory_case *c, ts_optimizer *optimizer,
                        tsi_tracker *tracker)
{
    double norm;
    ts_status status = step(me, model, c);
    if (tracker) tsi_tracker_phase(tracker, "update");
    if (status == TS_OK) status = ts_clip_grad_norm(ts_model_module(model), 1.0, &norm);
    return status == TS_OK ? ts_optimizer_step(optimizer) : status;
}

/* Experts that lie elsewhere get rows by numbers: such a step is another than the plan's. */
static ts_status watch_step(const outcome *o, ts_rank *me, ts_model *model, ts_optimizer *optimizer,
                            const ts_train_cost *cost)
{
    ts_train_peak held;
    tsi_tracker tracker;
    ts_module *root = ts_model_module(model);
    ts_status status = ts_rank_memory_reset(me);
    if (status == TS_OK) status = tsi_tracker_begin(&tracker, me, root);
    if (status != TS_OK) return status;
    tsi_tracker_step(&tracker, "forward");
    status = update(me, model, o->c, optimizer, &tracker);
    if (status == TS_OK) status = tsi_tracker_end(&tracker, root, optimizer, &held);
    tsi_tracker_release(&tracker);
    if (status != TS_OK) return status;
    check_sums(o, me, &held);
    if (o->c->ep <= 1) check_peak(o, &cost->peak, &held);
    return TS_OK;
}

static ts_status compare(ts_rank *me, void *argument)
{
    const outcome *o = argument;
    const memory_case *c = o->c;
    ts_mesh *mesh = ts_mesh_create(me, c->mesh);
    ts_model *model = model_of(mesh, c);
    ts_train_shape shape = {
        .struct_size = sizeof shape, .rows = c->rows, .context = 64, .moments = 2, .parts = c->parts
    };
    if (c->muon) ts_muon_options_init(&shape.muon);
    ts_train_cost cost;
    ts_status status = ts_train_estimate(model, &shape, &cost);
    if (status == TS_OK) status = ts_model_materialize(model);
    ts_optimizer *optimizer = NULL;
    if (status == TS_OK)
        optimizer = c->muon ? ts_muon_create(ts_model_module(model), NULL)
                            : ts_adamw_create(ts_model_module(model), NULL);
    for (int i = 0; status == TS_OK && i < 3; i++)
        status = update(me, model, c, optimizer, NULL);
    if (status == TS_OK) check_account(o, me, &cost);
    if (status == TS_OK) check_sizes(o, mesh, &cost.sizes);
    if (status == TS_OK) status = watch_step(o, me, model, optimizer, &cost);
    ts_optimizer_destroy(optimizer);
    ts_model_destroy(model);
    return status;
}

/* On two threads, since each thread has buffers of its own. */
TS_TEST(memory_is_as_planned)
{
    (void)setenv("TESSERA_THREADS", "2", 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        outcome o = { t, &cases[i], "" };
        ts_world_options options = { .struct_size = sizeof options,
                                     .engine = "threads",
                                     .rank_count = cases[i].ranks,
                                     .seed = 1 };
        char error[512] = "";
        TEST_SAY(t, ts_launch_with(&options, compare, &o, error, sizeof error) == TS_OK, "%s: %s",
                 cases[i].name, error);
    }
}

/* A save in the background copies the state, and the copy stays for the next one: it is staging,
 * planned to the byte, beside the peak of a step. */
static ts_status compare_saved(ts_rank *me, void *argument)
{
    const outcome *o = argument;
    ts_mesh *mesh = ts_mesh_create(me, o->c->mesh);
    ts_model *model = model_of(mesh, o->c);
    ts_train_shape shape = {
        .struct_size = sizeof shape, .rows = o->c->rows, .context = 64, .moments = 2
    };
    ts_train_cost without, cost;
    ts_memory held = { .struct_size = sizeof held };
    TEST_OK(o->t, ts_train_estimate(model, &shape, &without));
    shape.saves_behind = 1;
    TEST_OK(o->t, ts_train_estimate(model, &shape, &cost));
    TEST_OK(o->t, ts_model_materialize(model));
    ts_optimizer *optimizer = ts_adamw_create(ts_model_module(model), NULL);
    ts_state *state = ts_state_create(mesh);
    TEST_OK(o->t, ts_state_add_module(state, "", ts_model_module(model)));
    TEST_OK(o->t, ts_state_add_optimizer(state, "", optimizer));
    TEST_OK(o->t,
            ts_checkpoint_save(state, o->state, TS_OPTIONS(ts_save_options, .background = 1)));
    for (int i = 0; i < 2; i++) {
        TEST_OK(o->t, step(me, model, o->c));
        TEST_OK(o->t, ts_optimizer_step(optimizer));
    }
    TEST_OK(o->t, ts_state_wait(state));
    TEST_OK(o->t, ts_rank_memory(me, &held));
    int64_t staging = cost.memory.at_peak[TS_MEMORY_STAGING];
    bool host = tsi_rank_device_of(me)->device->host_readable;
    TEST_CHECK(o->t, host == (staging > 0));
    TEST_EQ(o->t, staging, cost.memory.peak - without.memory.peak);
    TEST_EQ(o->t, held.most[TS_MEMORY_STAGING], staging);
    TEST_EQ(o->t, held.most[TS_MEMORY_COMM], cost.memory.most[TS_MEMORY_COMM]);
    TEST_EQ(o->t, held.peak, cost.memory.peak);
    ts_state_destroy(state);
    ts_optimizer_destroy(optimizer);
    ts_model_destroy(model);
    return ts_rank_status(me);
}

TS_TEST(a_state_behind_is_planned)
{
    (void)setenv("TESSERA_THREADS", "2", 1);
    char path[512], command[600];
    snprintf(path, sizeof path, TS_BINARY_DIR "/memory-%ld", (long)getpid());
    static const memory_case rows[] = {
        { .name = "alone", .mesh = "dp=1", .rows = 4, .ranks = 1 },
        { .name = "tied, copies", .mesh = "dp=3", .tied = 1, .rows = 3, .ranks = 3 },
        { .name = "dp, tp", .mesh = "dp=2, tp=2", .rows = 4, .ranks = 4 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        outcome o = { t, &rows[i], "" };
        snprintf(o.state, sizeof o.state, "%s", path);
        ts_world_options options = { .struct_size = sizeof options,
                                     .engine = "threads",
                                     .rank_count = rows[i].ranks,
                                     .seed = 1 };
        char error[512] = "";
        TEST_SAY(t, ts_launch_with(&options, compare_saved, &o, error, sizeof error) == TS_OK,
                 "%s: %s", rows[i].name, error);
    }
    snprintf(command, sizeof command, "rm -r '%s'", path);
    TEST_CHECK(t, system(command) == 0);
}

/* ---- without ranks and without memory -------------------------------------------------------- */

/* Llama 3 70B on 64 ranks: its weights are those of the formula, and planning it takes no memory.
 */
static ts_status plan_large(ts_rank *me, void *argument)
{
    test *t = argument;
    ts_model_config config = { .struct_size = sizeof config,
                               .vocab = 128256,
                               .hidden = 8192,
                               .intermediate = 28672,
                               .layers = 80,
                               .heads = 64,
                               .kv_heads = 8,
                               .head_dim = 128,
                               .positions = 8192 };
    ts_model_options options = { .struct_size = sizeof options, .compute = TS_DTYPE_BF16 };
    ts_model *model = ts_model_declare(ts_mesh_create(me, "dp=8, tp=8"), &config, &options);
    ts_train_shape shape = {
        .struct_size = sizeof shape, .rows = 16, .context = 4096, .moments = 2, .parts = 2
    };
    ts_train_cost cost;
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    ts_status status = ts_train_estimate(model, &shape, &cost);
    getrusage(RUSAGE_SELF, &after);
    TEST_EQ(t, cost.parameters, 70553706496);
    int64_t norms = 161 * 8192, local = 4 * ((cost.parameters - norms) / 8 + norms);
    TEST_EQ(t, cost.weight_bytes, local);
    TEST_EQ(t, cost.gradient_bytes, local);
    TEST_EQ(t, cost.optimizer_bytes, 2 * local);
    /* 6 for each parameter but norms and the embedding, 12 L H D T for attention. */
    double flops =
        6.0 * (double)(cost.parameters - norms - 128256LL * 8192) + 12.0 * 80 * 64 * 128 * 4096;
    TEST_SAY(t, cost.flops_per_token == flops, "%.0f FLOPs a token, not %.0f", cost.flops_per_token,
             flops);
    TEST_CHECK(t, cost.activation_bytes > (int64_t)1 << 34);
    long grown = after.ru_maxrss - before.ru_maxrss;
    if (!TSI_SANITIZED) /* which keeps what is freed, and more beside it */
        TEST_SAY(t, grown < 64 << 10, "planning took %ld KiB", grown);
    ts_model_destroy(model);
    return status;
}

TS_TEST(a_large_model_is_planned_in_no_memory)
{
    ts_world_options options = { .struct_size = sizeof options,
                                 .engine = "model",
                                 .rank_count = 64 };
    char error[512] = "";
    TEST_SAY(t, ts_launch_with(&options, plan_large, t, error, sizeof error) == TS_OK, "%s", error);
}
