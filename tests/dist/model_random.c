/* SPDX-License-Identifier: Apache-2.0 */
/* model_random.c - models of experts that nobody chose: random sizes of the three families (top-1
 * to all, shared experts or none, groups, dense layers, q of low rank or not), with random routers'
 * losses, capacity, accumulation, recomputation and units, on random meshes with experts cut over
 * random groups and placed anew between steps, train as one rank does. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness/test.h"
#include "tessera/tessera.h"

enum { ROWS = 6, LENGTH = 7, VOCAB = 29, STEPS = 3, PARTS_MAX = 2, EXPERTS_MAX = 12, TRIALS = 6 };

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
    const char *mesh;
    int32_t parts, recompute;
    bool has_units, places;
    uint64_t seed;
    char text[512];
} trial;

typedef struct mesh_row {
    int64_t ranks;
    const char *mesh;
} mesh_row;

static const mesh_row meshes[] = {
    { 2, "fsdp=2" },
    { 2, "tp=2" },
    { 2, "cp=2" },
    { 2, "replicate=2" },
    { 3, "fsdp=3" },
    { 3, "tp=3" },
    { 3, "cp=3" },
    { 4, "fsdp=4" },
    { 4, "fsdp=2, tp=2" },
    { 4, "tp=2, fsdp=2" },
    { 4, "fsdp=2, cp=2" },
    { 4, "cp=2, tp=2" },
    { 4, "cp=4" },
    { 4, "tp=4" },
    { 4, "replicate=2, fsdp=2" },
    { 6, "fsdp=6" },
    { 6, "fsdp=3, tp=2" },
    { 6, "fsdp=2, tp=3" },
    { 6, "replicate=3, fsdp=2" },
    { 6, "fsdp=2, cp=3" },
    { 6, "fsdp=3, cp=2" },
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
    static const int64_t counts[] = { 1, 2, 5, 6, 8, 12 };
    c->experts = counts[pick(d, 6)];
    c->experts_per_token = 1 + pick(d, c->experts);
    if (pick(d, 4) == 0) c->experts_per_token = pick(d, 2) ? 1 : c->experts;
    c->route_sum = (int32_t)pick(d, 2);
    if (c->family == TS_MODEL_MIXTRAL) c->route_sum = 1;
    if (c->family == TS_MODEL_QWEN3_MOE) {
        c->expert_step = 1 + pick(d, 2);
        c->dense_layers[0] = (uint64_t)pick(d, 4);
    }
    if (c->family != TS_MODEL_DEEPSEEK_V3) return;
    c->shared_experts = pick(d, 3);
    c->dense_first = pick(d, c->layers + 1);
    c->route_scale = pick(d, 2) ? 2.5 : 1.0;
    c->expert_groups = c->experts % 3 == 0 && pick(d, 2) ? 3 : 1;
    c->groups_per_token = 1 + pick(d, c->expert_groups);
    int64_t visible = c->experts / c->expert_groups * c->groups_per_token;
    if (c->experts_per_token > visible) c->experts_per_token = visible;
}

static void draw_config(draw *d, ts_model_config *c)
{
    static const int32_t families[] = { TS_MODEL_MIXTRAL, TS_MODEL_QWEN3_MOE,
                                        TS_MODEL_DEEPSEEK_V3 };
    *c = (ts_model_config){ .struct_size = sizeof *c,
                            .family = families[pick(d, 3)],
                            .vocab = VOCAB,
                            .hidden = 8 + 4 * pick(d, 2),
                            .intermediate = 10,
                            .layers = 1 + pick(d, 3),
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 4,
                            .expert_width = 3 + pick(d, 4),
                            .positions = 32,
                            .init_deviation = 0.3 };
    c->tied = (int32_t)pick(d, 2);
    if (c->family == TS_MODEL_DEEPSEEK_V3) {
        c->kv_heads = 4;
        c->plain_dim = 4;
        c->value_dim = 2 + 2 * pick(d, 2);
        c->kv_rank = 6;
        c->q_rank = pick(d, 2) ? 5 : 0;
        c->rope_interleave = (int32_t)pick(d, 2);
    }
    draw_experts(d, c);
}

static void draw_options(draw *d, int64_t ranks, trial *c)
{
    ts_model_options *o = &c->options;
    *o = (ts_model_options)TS_INIT(ts_model_options);
    o->dtype = TS_DTYPE_F64;
    if (strstr(c->mesh, "tp")) o->plan = pick(d, 2) ? "tp" : "sp";
    o->ep = 1 + pick(d, ranks);
    bool whole = strcmp(c->mesh, "tp=4") == 0 || strcmp(c->mesh, "cp=4") == 0;
    while (ranks % o->ep != 0 || (whole && o->ep == 2)) /* no part of tp or cp is a group */
        o->ep--;
    o->count_loads = 1;
    if (pick(d, 2)) o->aux_loss = 0.05;
    if (pick(d, 2)) o->sequence_loss = 0.03;
    if (pick(d, 2)) o->z_loss = 0.01;
    if (c->config.family == TS_MODEL_DEEPSEEK_V3 && pick(d, 2)) o->bias_rate = 0.02;
    if (pick(d, 3) == 0) o->capacity = 0.5 + 0.5 * (double)pick(d, 3);
    c->parts = 1 + (int32_t)pick(d, PARTS_MAX);
    c->recompute = pick(d, 3) ? 0 : pick(d, 2) ? TS_RECOMPUTE_FULL : TS_RECOMPUTE_SELECT;
    c->units = (ts_fsdp_options)TS_INIT(ts_fsdp_options);
    c->units.reshard = pick(d, 3) == 0 ? TS_RESHARD_NO : pick(d, 2) ? TS_RESHARD_YES : 0;
    c->has_units = strstr(c->mesh, "fsdp") != NULL || pick(d, 2);
    c->places = pick(d, 2);
}

static void draw_trial(uint64_t seed, int64_t ranks, trial *c)
{
    draw d = { seed };
    *c = (trial){ .seed = seed, .mesh = pick_mesh(&d, ranks) };
    draw_config(&d, &c->config);
    draw_options(&d, ranks, c);
    const ts_model_config *k = &c->config;
    snprintf(c->text, sizeof c->text,
             "seed %llu: family %d, %lld layers (%lld dense), %lld of %lld experts of %lld in %lld "
             "groups (%lld), %lld shared, q_rank %lld, tied %d; %s, plan %s, ep %lld, capacity %g, "
             "%d parts, recompute %d, units %d (%d), places %d",
             (unsigned long long)seed, k->family, (long long)k->layers, (long long)k->dense_first,
             (long long)k->experts_per_token, (long long)k->experts, (long long)k->expert_width,
             (long long)k->expert_groups, (long long)k->groups_per_token,
             (long long)k->shared_experts, (long long)k->q_rank, k->tied, c->mesh,
             c->options.plan ? c->options.plan : "-", (long long)c->options.ep, c->options.capacity,
             c->parts, c->recompute, c->has_units, c->units.reshard, c->places);
}

/* ---- training -------------------------------------------------------------------------------- */

typedef struct outcome {
    double loss[STEPS * PARTS_MAX], load[EXPERTS_MAX], numbers[5], norm;
} outcome;

static ts_status token_at(const int64_t *global, void *element, void *context)
{
    *(int64_t *)element =
        (7 * global[0] + 3 * global[1] * global[1] + *(const int64_t *)context) % VOCAB;
    return TS_OK;
}

static ts_tensor *tokens(ts_model *m, int64_t salt)
{
    ts_meta meta = { .shape = TS_SHAPE(ROWS, LENGTH), .dtype = TS_DTYPE_I64 };
    return ts_from_function(token_at, &salt, ts_model_tokens(m), meta);
}

static void one_step(test *t, const trial *c, ts_model *m, ts_optimizer *o, int step, outcome *out)
{
    TEST_OK(t, ts_model_router_factor(m, 1.0 / c->parts));
    for (int part = 0; part < c->parts; part++) {
        ts_scope scope = ts_scope_open(t->me, "part");
        int64_t salt = 5 * step + 11 * part;
        ts_tape_begin(t->me);
        ts_tensor *loss = ts_model_loss(m, tokens(m, salt), tokens(m, salt + 1));
        ts_backward(ts_mul_scalar(loss, 1.0 / c->parts), NULL);
        ts_tensor_item(loss, &out->loss[step * PARTS_MAX + part]);
        ts_scope_close(scope);
    }
    int64_t last = ts_model_router_count(m) - 1;
    ts_router_report r = TS_INIT(ts_router_report);
    if (last >= 0) TEST_OK(t, ts_model_router_read(m, last, &r, out->load));
    const double numbers[] = { r.aux_loss, r.sequence_loss, r.z_loss, r.entropy,
                               (double)r.dropped };
    memcpy(out->numbers, numbers, sizeof numbers);
    TEST_OK(t, ts_model_router_step(m));
    TEST_OK(t, ts_optimizer_step(o));
}

/* By loads that have nothing to do with what routers choose. */
static void place(test *t, const trial *c, ts_model *m, ts_optimizer *o)
{
    double load[3 * EXPERTS_MAX];
    draw d = { c->seed + 99 };
    ts_experts_moves moves = TS_INIT(ts_experts_moves);
    for (int i = 0; i < 3 * EXPERTS_MAX; i++)
        load[i] = pick(&d, 5) == 0 ? 40.0 : (double)pick(&d, 4);
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    ts_status status = ts_experts_place(m, o, load, &moves);
    ts_scope_close(scope);
    const char *text = status == TS_OK ? "" : ts_rank_error(t->me)->text;
    TEST_SAY(t, status == TS_OK || strstr(text, "more than one axis"), "%s: %s", c->text, text);
    if (status == TS_OK) TEST_EQ(t, moves.bytes, moves.bytes_bound);
}

static void train(test *t, const trial *c, ts_mesh *mesh, bool alone, outcome *out)
{
    ts_model_options options = c->options;
    if (alone) {
        options.ep = 1;
        options.plan = NULL;
    }
    ts_model *m = ts_model_declare(mesh, &c->config, &options);
    for (int64_t i = 1; c->recompute && !alone && i <= c->config.layers; i++)
        ts_module_checkpoint(ts_model_block(m, i), c->recompute);
    if (c->has_units && !alone) ts_model_fsdp(m, &c->units);
    TEST_OK(t, ts_model_materialize(m));
    ts_optimizer *o = ts_adamw_create(ts_model_module(m), NULL);
    for (int step = 0; step < STEPS && ts_rank_status(t->me) == TS_OK; step++) {
        if (step > 0 && c->places && !alone && options.ep > 1 && ts_model_router_count(m) > 0)
            place(t, c, m, o);
        one_step(t, c, m, o, step, out);
    }
    ts_optimizer_destroy(o);
    ts_model_destroy(m);
}

static void compare(test *t, const trial *c, const outcome *a, const outcome *b)
{
    double worst = 0, numbers = 0, loads = 0;
    for (int i = 0; i < STEPS * PARTS_MAX; i++)
        worst = fmax(worst, fabs(a->loss[i] - b->loss[i]));
    for (int i = 0; i < 5; i++)
        numbers = fmax(numbers, fabs(a->numbers[i] - b->numbers[i]));
    for (int e = 0; e < EXPERTS_MAX; e++)
        loads = fmax(loads, fabs(a->load[e] - b->load[e]));
    TEST_SAY(t, worst < 1e-9 && isfinite(a->loss[0]), "losses %g apart; %s", worst, c->text);
    TEST_SAY(t, numbers < 1e-9 && loads == 0, "routers %g, loads %g apart; %s", numbers, loads,
             c->text);
}

TS_TEST_RANKS(experts_of_any_kind_train_alike, 2, 3, 4, 6)
{
    for (uint64_t i = 0; i < TRIALS && ts_rank_status(t->me) == TS_OK; i++) {
        trial c;
        outcome one = { .norm = 0 }, all = { .norm = 0 };
        draw_trial(t->seed * 1000 + i, t->count, &c);
        ts_scope scope = ts_scope_open(t->me, "trial");
        train(t, &c, ts_mesh_self(t->me), true, &one);
        train(t, &c, ts_mesh_create(t->me, c.mesh), false, &all);
        compare(t, &c, &all, &one);
        TEST_SAY(t, ts_rank_status(t->me) == TS_OK, "%s: %s", c.text, ts_rank_error(t->me)->text);
        ts_scope_close(scope);
    }
}
