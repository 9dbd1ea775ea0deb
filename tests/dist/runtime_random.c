/* SPDX-License-Identifier: Apache-2.0 */
/* runtime_random.c - training steps that nobody chose: random models, meshes and options. Each is
 * recorded, its program checked, saved and read again, and replayed with new rows in random orders:
 * losses, norms and weights are the bits of the steps run as usual. TEST_CASES says how many of
 * each number of ranks (more than 4: none else); the seed makes them again. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/device.h"
#include "dist/token_util.h"
#include "harness/test.h"
#include "model/model.h"
#include "tessera/tessera.h"

enum { ROWS = 6, VOCAB = 37, STEPS = 9, PARTS_MAX = 3, PARAMETERS = 160, TEXT = 1024 };

typedef struct draw {
    uint64_t state;
} draw;

/* One of 0 .. count - 1. */
static int64_t pick(draw *d, int64_t count)
{
    d->state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = (d->state ^ d->state >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (int64_t)((z ^ z >> 31) % (uint64_t)count);
}

typedef struct trial {
    ts_model_config config;
    ts_model_options options;
    ts_fsdp_options units;
    const char *mesh, *groups;
    int64_t length, parts, usual; /* of a row; of a step; steps before the recorded one */
    int32_t recompute, moments, product;
    bool has_units, bare, sgd, looks; /* looks: the model is used between steps */
    double z_loss, norm_max;
    uint64_t seed;
    char text[TEXT];
} trial;

/* ---- what is drawn --------------------------------------------------------------------------- */

typedef struct mesh_row {
    int64_t ranks;
    const char *mesh;
} mesh_row;

static const mesh_row meshes[] = {
    { 1, "fsdp=1" },
    { 1, "tp=1" },
    { 2, "fsdp=2" },
    { 2, "fsdp=2" },
    { 2, "tp=2" },
    { 2, "tp=2" },
    { 2, "cp=2" },
    { 2, "replicate=2" },
    { 3, "fsdp=3" },
    { 3, "tp=3" },
    { 3, "cp=3" },
    { 3, "replicate=3" },
    { 4, "fsdp=4" },
    { 4, "fsdp=2, tp=2" },
    { 4, "fsdp=2, tp=2" },
    { 4, "tp=2, fsdp=2" },
    { 4, "fsdp=2, cp=2" },
    { 4, "cp=2, tp=2" },
    { 4, "replicate=2, tp=2" },
    { 4, "replicate=2, cp=2" },
    { 4, "cp=4" },
    { 4, "tp=4" },
    { 4, "replicate=2, fsdp=2" },
    { 6, "fsdp=3, tp=2" },
    { 6, "fsdp=2, tp=3" },
    { 6, "replicate=3, fsdp=2" },
    { 6, "fsdp=2, cp=3" },
    { 8, "fsdp=4, tp=2" },
    { 8, "replicate=2, fsdp=2, tp=2" },
    { 8, "fsdp=2, cp=2, tp=2" },
    { 8, "fsdp=8" },
};

static const char *pick_mesh(draw *d, int64_t ranks)
{
    int64_t fits = 0, count = (int64_t)(sizeof meshes / sizeof meshes[0]);
    for (int64_t i = 0; i < count; i++)
        fits += meshes[i].ranks == ranks;
    int64_t chosen = pick(d, fits);
    for (int64_t i = 0; i < count; i++)
        if (meshes[i].ranks == ranks && chosen-- == 0) return meshes[i].mesh;
    return NULL;
}

static void draw_experts(draw *d, ts_model_config *c)
{
    c->experts = 1 + pick(d, 5);
    c->experts_per_token = 1 + pick(d, c->experts);
    c->expert_width = 3 + pick(d, 6);
    c->route_sum = c->family == TS_MODEL_MIXTRAL ? 1 : (int32_t)pick(d, 2);
    if (c->family != TS_MODEL_DEEPSEEK_V3) return;
    c->kv_heads = c->heads;
    c->plain_dim = 4;
    c->value_dim = 4;
    c->kv_rank = 6;
    c->q_rank = pick(d, 2) ? 5 : 0;
    c->shared_experts = pick(d, 3);
    c->dense_first = pick(d, c->layers + 1);
}

static void draw_config(draw *d, ts_model_config *c)
{
    static const int64_t heads[] = { 2, 3, 4, 4, 6 };
    int32_t family = (int32_t)pick(d, 6);
    bool gpt2 = family == TS_MODEL_GPT2;
    int64_t h = heads[pick(d, 5)];
    *c = (ts_model_config){ .struct_size = sizeof *c,
                            .family = family,
                            .vocab = VOCAB,
                            .hidden = gpt2 ? 4 * h : 8 + 4 * pick(d, 5),
                            .intermediate = 9 + 7 * pick(d, 3),
                            .layers = 1 + pick(d, 3),
                            .heads = h,
                            .kv_heads = gpt2 || h % 2 ? h : h / 2,
                            .head_dim = 4,
                            .positions = 32,
                            .init_deviation = 0.2 };
    c->tied = gpt2 || pick(d, 3) == 0;
    if (family == TS_MODEL_LLAMA) c->attention_bias = (int32_t)pick(d, 2);
    if (family == TS_MODEL_LLAMA) c->mlp_bias = (int32_t)pick(d, 2);
    if (family == TS_MODEL_QWEN3 && pick(d, 2)) c->window = 3;
    if (family == TS_MODEL_QWEN3) c->window_layers[0] = 2;
    bool experts = family == TS_MODEL_MIXTRAL || family == TS_MODEL_QWEN3_MOE ||
                   family == TS_MODEL_DEEPSEEK_V3;
    if (experts) draw_experts(d, c);
}

static void draw_routers(draw *d, int64_t ranks, trial *c)
{
    ts_model_options *o = &c->options;
    bool whole = strcmp(c->mesh, "tp=4") == 0 || strcmp(c->mesh, "cp=4") == 0 || ranks > 4;
    if (pick(d, 2)) o->ep = whole ? ranks : 1 + pick(d, ranks);
    while (o->ep > 1 && ranks % o->ep != 0)
        o->ep--;
    if (pick(d, 3) == 0) o->aux_loss = 0.05;
    if (pick(d, 3) == 0) o->z_loss = 0.01;
    if (pick(d, 3) == 0) o->capacity = 0.5 + 0.5 * (double)pick(d, 3);
}

static void draw_options(draw *d, int64_t ranks, trial *c)
{
    static const int32_t dtypes[] = { 0, 0, TS_DTYPE_BF16, TS_DTYPE_F64 };
    static const int32_t computes[] = { 0, 0, 0, TS_DTYPE_BF16, TS_DTYPE_F16 };
    static const char *const groups[] = { NULL, NULL, "*norm*: decay=0", "*layers.0.*: frozen",
                                          "*embed_tokens*: frozen\n*norm*: rate=0.5" };
    static const int32_t again[] = { 0, 0, TS_RECOMPUTE_FULL, TS_RECOMPUTE_SELECT };
    ts_model_options *o = &c->options;
    *o = (ts_model_options)TS_INIT(ts_model_options);
    bool gpt2 = c->config.family == TS_MODEL_GPT2;
    o->dtype = dtypes[pick(d, 4)];
    o->compute = o->dtype == TS_DTYPE_F64 ? 0 : computes[pick(d, 5)];
    if (strstr(c->mesh, "tp")) o->plan = pick(d, 2) ? "tp" : "sp";
    if (o->plan && strcmp(o->plan, "sp") == 0) o->saves_cut = (int32_t)pick(d, 2);
    if (pick(d, 3) == 0) o->loss_rows = pick(d, 2) ? 4 : -1;
    if (strstr(c->mesh, "cp")) o->attention = (int32_t)pick(d, 3);
    if (strstr(c->mesh, "cp")) o->balance = (int32_t)pick(d, 3);
    if (c->config.experts) draw_routers(d, ranks, c);
    c->groups = gpt2 ? NULL : groups[pick(d, 5)];
    c->recompute = again[pick(d, 4)];
    c->parts = pick(d, 2) ? 1 : 1 + pick(d, PARTS_MAX);
    c->length = 1 + pick(d, 13);
    c->usual = 1 + pick(d, 2);
    c->sgd = pick(d, 3) == 0;
    c->moments = !c->sgd && pick(d, 4) == 0 ? TS_DTYPE_BF16 : 0;
    c->z_loss = pick(d, 4) ? 0 : 0.01;
    c->norm_max = pick(d, 3) ? 0.5 : 0;
    c->looks = pick(d, 2);
    c->product = (int32_t)pick(d, 3); /* chosen; whole; chunk by chunk, where that is possible */
}

static void draw_units(draw *d, trial *c)
{
    static const int32_t reshard[] = { 0, TS_RESHARD_YES, TS_RESHARD_NO, 2 };
    ts_fsdp_options *u = &c->units;
    *u = (ts_fsdp_options)TS_INIT(ts_fsdp_options);
    c->has_units = strstr(c->mesh, "fsdp") ? pick(d, 8) > 0 : pick(d, 3) == 0;
    bool in_two = strstr(c->mesh, "fsdp=4") && c->options.ep < 2;
    u->reshard = reshard[pick(d, in_two ? 4 : 3)];
    if (c->options.dtype != TS_DTYPE_F64 && pick(d, 4) == 0) u->compute = TS_DTYPE_BF16;
    if (u->compute && pick(d, 2)) u->reduce = TS_DTYPE_F32;
    u->prefetch_off = (int32_t)pick(d, 3);
    c->bare = pick(d, 3) == 0;
    u->unused = pick(d, 4) == 0;
}

static void draw_trial(uint64_t seed, int64_t ranks, trial *c)
{
    draw d = { seed };
    *c = (trial){ .seed = seed, .mesh = pick_mesh(&d, ranks) };
    draw_config(&d, &c->config);
    draw_options(&d, ranks, c);
    draw_units(&d, c);
    const ts_model_config *k = &c->config;
    const ts_model_options *o = &c->options;
    snprintf(
        c->text, sizeof c->text,
        "case %llu: family %d, %lld layers of %lld, %lld/%lld heads, %lld of %lld experts, tied "
        "%d; %s, plan %s, dtype %d/%d, ep %lld, capacity %g, loss_rows %lld, cut %d, "
        "attention %d/%d, product %d; recompute "
        "%d, groups %s, %lld rows of %lld in %lld parts, z %g, norm %g, sgd %d, moments %d; "
        "units %d (reshard %d, compute %d, prefetch_off %d, bare %d, unused %d), usual %lld",
        (unsigned long long)seed, k->family, (long long)k->layers, (long long)k->hidden,
        (long long)k->heads, (long long)k->kv_heads, (long long)k->experts_per_token,
        (long long)k->experts, k->tied, c->mesh, o->plan ? o->plan : "-", o->dtype, o->compute,
        (long long)o->ep, o->capacity, (long long)o->loss_rows, o->saves_cut, o->attention,
        o->balance, c->product, c->recompute, c->groups ? c->groups : "-", (long long)ROWS,
        (long long)c->length, (long long)c->parts, c->z_loss, c->norm_max, c->sgd, c->moments,
        c->has_units, c->units.reshard, c->units.compute, c->units.prefetch_off, c->bare,
        c->units.unused, (long long)c->usual);
}

/* ---- training -------------------------------------------------------------------------------- */

typedef struct trained {
    ts_rank *me;
    const trial *c;
    ts_model *model;
    ts_optimizer *optimizer;
    ts_tensor *ids[PARTS_MAX], *labels[PARTS_MAX]; /* where the step reads */
    double loss[STEPS], norm[STEPS], after[STEPS];
    uint64_t bits[PARAMETERS]; /* of each parameter, whole */
    char name[PARAMETERS][80];
    int32_t count;
} trained;

static ts_status gather(ts_tensor *const *x, const ts_sharding *const *to, int32_t count,
                        ts_tensor **out, void *context)
{
    (void)context;
    return ts_redistribute_many(x, to, count, out);
}

static ts_status make(const trial *c, ts_rank *me, trained *r)
{
    ts_fsdp_options units = c->units;
    *r = (trained){ .me = me, .c = c };
    if (c->bare) units.gather_fn = gather;
    r->model = ts_model_declare(ts_mesh_create(me, c->mesh), &c->config, &c->options);
    ts_module *root = ts_model_module(r->model);
    if (c->groups) (void)ts_module_groups(root, c->groups);
    for (int64_t i = 0; i < ts_model_block_count(r->model); i++)
        ts_module_checkpoint(ts_model_block(r->model, i), c->recompute);
    if (c->has_units) ts_model_fsdp(r->model, &units);
    ts_model_materialize(r->model);
    ts_adamw_options adamw = {
        .struct_size = sizeof adamw, .lr = 1e-2, .weight_decay = 0.1, .moments = c->moments
    };
    ts_sgd_options sgd = { .struct_size = sizeof sgd, .lr = 0.1, .momentum = 0.9 };
    r->optimizer = c->sgd ? ts_sgd_create(root, &sgd) : ts_adamw_create(root, &adamw);
    return ts_rank_status(me);
}

static void unmake(trained *r)
{
    for (int64_t i = 0; i < PARTS_MAX; i++) {
        ts_tensor_release(r->ids[i]);
        ts_tensor_release(r->labels[i]);
    }
    ts_optimizer_destroy(r->optimizer);
    ts_model_destroy(r->model);
}

static ts_tensor *tokens(const trained *r, int64_t number, int64_t part)
{
    return tokens_of(r->model, ROWS / r->c->parts, r->c->length,
                     (token_recipe){ VOCAB, 3 * number + 11 * part });
}

static void feed(trained *r, int64_t number)
{
    for (int64_t i = 0; i < r->c->parts; i++) {
        ts_tensor_release(r->ids[i]);
        ts_tensor_release(r->labels[i]);
        r->ids[i] = ts_tensor_retain(tokens(r, number, i));
        r->labels[i] = ts_tensor_retain(tokens(r, number + 1, i));
    }
}

static ts_tensor *loss_of(const trained *r, int64_t part)
{
    if (r->c->z_loss == 0) return ts_model_loss(r->model, r->ids[part], r->labels[part]);
    ts_tensor *logits = ts_cast(ts_model_logits(r->model, r->ids[part]), TS_DTYPE_F32);
    ts_tensor *mean = ts_cross_entropy(logits, r->labels[part]);
    ts_tensor *squares = ts_square(ts_logsumexp(logits, (int64_t[]){ -1 }, 1, 0));
    return ts_with_loss(mean, ts_sum(squares, NULL, 0, 0), r->c->z_loss);
}

static ts_status step(void *context)
{
    const trained *r = context;
    ts_scope scope = ts_scope_open_with(
        r->me, TS_OPTIONS(ts_scope_options, .label = "step", .product = r->c->product));
    ts_status status = TS_OK;
    ts_tensor *sum = NULL;
    for (int64_t i = 0; i < r->c->parts && status == TS_OK; i++) {
        ts_scope inner = ts_scope_open(r->me, NULL);
        ts_tape_begin(r->me);
        ts_tensor *loss = ts_mul_scalar(loss_of(r, i), 1.0 / (double)r->c->parts);
        status = ts_backward(loss, NULL);
        ts_tensor *here = ts_detach(loss);
        sum = ts_scope_pass(scope, sum ? ts_add(sum, here) : here);
        ts_status closed = ts_scope_close(inner);
        if (status == TS_OK) status = closed;
    }
    ts_step_options options = { .struct_size = sizeof options,
                                .norm_max = r->c->norm_max,
                                .loss = sum };
    if (status == TS_OK) status = ts_optimizer_step_with(r->optimizer, &options);
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

static ts_status note(trained *r, int64_t number)
{
    ts_step_outcome is = TS_INIT(ts_step_outcome);
    ts_status status = ts_optimizer_outcome(r->optimizer, number + 1, &is);
    r->loss[number] = is.loss;
    r->norm[number] = is.norm;
    ts_scope scope = ts_scope_open_with(r->me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    if (status == TS_OK && r->c->looks && number % 3 == 1)
        status =
            ts_tensor_item(ts_model_loss(r->model, r->ids[0], r->labels[0]), &r->after[number]);
    ts_status closed = ts_scope_close(scope);
    if (status == TS_OK) status = closed;
    return status != TS_OK ? status : ts_optimizer_rate(r->optimizer, 1e-2 / (double)(number + 2));
}

static ts_status add_bits(const char *name, ts_tensor *parameter, void *context)
{
    trained *r = context;
    ts_array view = TS_INIT(ts_array);
    ts_scope scope = ts_scope_open(r->me, NULL);
    bool there = test_view(ts_tensor_full(parameter), &view) == TS_OK && view.data;
    size_t bytes =
        there ? (size_t)ts_shape_count(&view.meta.shape) * ts_dtype_size((ts_dtype)view.meta.dtype)
              : 0;
    int32_t at = r->count < PARAMETERS ? r->count++ : PARAMETERS - 1;
    for (size_t i = 0; i < bytes; i++)
        r->bits[at] =
            (r->bits[at] ^ ((const unsigned char *)view.data)[i]) * UINT64_C(0x100000001b3);
    (void)snprintf(r->name[at], sizeof r->name[at], "%s", name);
    ts_scope_close(scope);
    return ts_rank_status(r->me);
}

/* After one more use of the model: units that let nothing go show what they gathered. */
static ts_status note_weights(trained *r)
{
    double loss = NAN;
    ts_scope scope = ts_scope_open_with(r->me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    ts_status status = ts_tensor_item(ts_model_loss(r->model, r->ids[0], r->labels[0]), &loss);
    ts_status closed = ts_scope_close(scope);
    if (status == TS_OK) status = closed;
    r->after[0] = loss;
    return status != TS_OK ? status : ts_module_each(ts_model_module(r->model), add_bits, r);
}

static ts_status run_usual(trained *r)
{
    ts_status status = ts_rank_status(r->me);
    for (int64_t n = 0; n < STEPS && status == TS_OK; n++) {
        ts_scope scope = ts_scope_open(r->me, NULL);
        feed(r, n);
        status = step(r);
        ts_status closed = ts_scope_close(scope);
        if (status == TS_OK) status = closed;
        if (status == TS_OK) status = note(r, n);
    }
    if (status == TS_OK) status = note_weights(r);
    return status;
}

/* ---- in other orders ------------------------------------------------------------------------- */

typedef struct told {
    test *t;
    const trial *c;
} told;

static void tell(const char *kind, const char *text, void *context)
{
    const told *o = context;
    TEST_SAY(o->t, false, "%s: %s; %s", kind, text, o->c->text);
}

/* Nothing is wrong with it; saved and read again it is the same, which is returned. */
static ts_program *check_program(test *t, const trial *c, const ts_step *recorded, int64_t n)
{
    char path[512], why[256] = "";
    ts_program *program = NULL, *again = NULL;
    int64_t count = -1;
    told o = { t, c };
    TEST_OK(t, ts_step_program(recorded, &program));
    if (!program) return NULL;
    TEST_OK(t, ts_program_check(program, NULL, tell, &o, &count));
    (void)snprintf(path, sizeof path, "%s/runtime_random-%lld-%lld-%d.txt", TS_BINARY_DIR,
                   (long long)getpid(), (long long)n, (int)t->index);
    TEST_OK(t, ts_program_write(program, path));
    TEST_OK(t, ts_program_read(path, &again));
    size_t differ = again ? ts_program_differ(program, again, why, sizeof why) : 1;
    TEST_SAY(t, differ == 0, "%s; %s", why, c->text);
    if (!getenv("TEST_KEEP")) (void)unlink(path);
    ts_program_destroy(program);
    return again;
}

/* In the order of all passes or of some, with enough memory or little; a few ranks may have passes
 * of their own. */
static void order_anew(test *t, const trial *c, ts_step *recorded, int64_t n, draw *d)
{
    ts_program *better = NULL;
    ts_reorder_options options;
    ts_step_order is = TS_INIT(ts_step_order);
    int64_t bytes = pick(d, 3) ? (int64_t)1 << 32 : 0;
    uint32_t passes = pick(d, 3) ? TS_PASS_ALL : 1 + (uint32_t)pick(d, TS_PASS_ALL);
    bool back = pick(d, 6) == 0, apart = pick(d, 5) == 0;
    ts_reorder_options_init(&options);
    options.tries = pick(d, 8);
    options.memory_bytes_max = bytes;
    options.costs.compute_us = 1 + (double)pick(d, 20);
    options.bucket_bytes = pick(d, 2) ? 0 : 1 << (8 + pick(d, 10));
    options.seed = c->seed;
    if (apart && t->index == 1) passes = passes ^ TS_PASS_HOIST ^ TS_PASS_PREFETCH;
    if (pick(d, 4)) passes &= ~(uint32_t)TS_PASS_SPLIT; /* which takes long */
    options.passes = passes ? passes : TS_PASS_HOIST;
    ts_program *program = check_program(t, c, recorded, n);
    if (!program) return;
    TEST_OK(t, ts_program_reorder(program, &options, NULL, NULL, &better));
    if (better) {
        int64_t count = -1;
        told o = { t, c };
        TEST_OK(t, ts_program_check(better, NULL, tell, &o, &count));
    }
    ts_status status = ts_step_reorder(recorded, back ? NULL : better, bytes, &is);
    TEST_SAY(t, status == TS_OK, "%s; %s", ts_rank_error(t->me) ? ts_rank_error(t->me)->text : "",
             c->text);
    if (getenv("TEST_TALK") && t->index == 0)
        fprintf(stderr,
                "    taken %d agreed %d moved %lld ahead %lld joined %lld parted %lld/%lld\n",
                is.taken, is.agreed, (long long)is.moved, (long long)is.ahead, (long long)is.joined,
                (long long)is.parted, (long long)is.whole);
    ts_program_destroy(better);
    ts_program_destroy(program);
}

static ts_status replay(test *t, trained *r, ts_step *recorded, int64_t n, draw *d)
{
    bool readable = tsi_rank_device_of(t->me)->device->host_readable;
    int64_t what = pick(d, 5);
    if (readable && what < 2) order_anew(t, r->c, recorded, n, d);
    for (int64_t i = 0; i < r->c->parts; i++) {
        TEST_OK(t, ts_step_input(recorded, r->ids[i], tokens(r, n, i)));
        TEST_OK(t, ts_step_input(recorded, r->labels[i], tokens(r, n + 1, i)));
    }
    return what == 3 ? ts_step_time(recorded) : ts_step_replay(recorded);
}

static ts_status run_recorded(test *t, trained *r)
{
    ts_step *recorded = NULL;
    ts_status status = ts_rank_status(t->me);
    draw d = { r->c->seed * 31 + 7 };
    for (int64_t n = 0; n < STEPS && status == TS_OK; n++) {
        ts_scope scope = ts_scope_open(t->me, NULL);
        if (!recorded) feed(r, n);
        if (n == r->c->usual) tsi_model_routers_clear(r->model); /* they count in the step alone */
        if (recorded)
            status = replay(t, r, recorded, n, &d);
        else if (n < r->c->usual)
            status = step(r);
        else if (!(recorded = ts_step_record(t->me, step, r)))
            status = ts_rank_status(t->me);
        ts_status closed = ts_scope_close(scope);
        if (status == TS_OK) status = closed;
        if (status == TS_OK) status = note(r, n);
    }
    if (status == TS_OK) status = note_weights(r);
    ts_step_destroy(recorded);
    return status;
}

static bool same(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

static void compare(test *t, const trained *a, const trained *b)
{
    for (int64_t n = 0; n < STEPS; n++)
        TEST_SAY(t,
                 same(a->loss[n], b->loss[n]) && same(a->norm[n], b->norm[n]) &&
                     same(a->after[n], b->after[n]),
                 "step %lld: loss %.17g, norm %.17g, %.17g; replayed %.17g, %.17g, %.17g; %s",
                 (long long)n, a->loss[n], a->norm[n], a->after[n], b->loss[n], b->norm[n],
                 b->after[n], a->c->text);
    TEST_EQ(t, a->count, b->count);
    for (int32_t i = 0; i < a->count; i++)
        TEST_SAY(t, a->bits[i] == b->bits[i], "%s is another; %s", a->name[i], a->c->text);
}

static void try_one(test *t, uint64_t seed)
{
    trial c;
    trained usual, again;
    draw_trial(seed, t->count, &c);
    if (getenv("TEST_TALK") && t->index == 0) fprintf(stderr, "  %s\n", c.text);
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_status status = make(&c, t->me, &usual);
    if (status == TS_OK) status = run_usual(&usual);
    TEST_SAY(t, status == TS_OK, "%s; %s", status ? ts_rank_error(t->me)->text : "", c.text);
    if (status == TS_OK) status = make(&c, t->me, &again);
    bool made = status == TS_OK;
    if (made) status = run_recorded(t, &again);
    TEST_SAY(t, status == TS_OK, "%s; %s", status ? ts_rank_error(t->me)->text : "", c.text);
    if (status == TS_OK) compare(t, &usual, &again);
    if (made) unmake(&again);
    unmake(&usual);
    (void)ts_scope_close(scope);
    if (ts_rank_status(t->me)) TEST_OK(t, ts_rank_recover(t->me));
}

TS_TEST_RANKS(random_steps_run_again, 1, 2, 3, 4, 6, 8)
{
    const char *said = getenv("TEST_CASES"), *from = getenv("TEST_FROM");
    int64_t cases = said ? atoll(said) : t->count <= 4, first = from ? atoll(from) : 0;
    for (int64_t i = first; i < first + cases; i++)
        try_one(t, t->seed * 1000000 + (uint64_t)(i * 10 + t->count));
}
