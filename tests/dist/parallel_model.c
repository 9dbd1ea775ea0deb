/* SPDX-License-Identifier: Apache-2.0 */
/* parallel_model.c - models in units against the same model on one rank, in f64: 20 steps of every
 * family on every mesh, each with one way to let go and to recompute; TEST_ALL=1: with all. */
#include <math.h>
#include <stdlib.h>

#include "harness/test.h"
#include "tessera/tessera.h"

enum { STEPS = 20 };

typedef struct way {
    const char *mesh;
    int32_t family, reshard, again;
    int32_t scaled; /* rotary positions as llama31 has them */
} way;

static ts_model *model_of(ts_mesh *mesh, const way *w, bool units)
{
    int32_t family = w->family;
    ts_model_config config = { .struct_size = sizeof config,
                               .family = family,
                               .vocab = 31,
                               .hidden = 12,
                               .intermediate = 20,
                               .layers = 2,
                               .heads = 4,
                               .kv_heads = family == TS_MODEL_GPT2 ? 4 : 2,
                               .head_dim = family == TS_MODEL_GPT2 ? 3 : 6,
                               .positions = 16,
                               .tied = family == TS_MODEL_GPT2 };
    if (w->scaled) {
        config.rope_type = TS_ROPE_LLAMA3;
        config.rope_theta = 500000;
        config.rope_factor = 8;
        config.rope_low = 1;
        config.rope_high = 4;
        config.rope_original = 8;
    }
    if (family == TS_MODEL_MIXTRAL) config.experts = 3;
    if (family == TS_MODEL_MIXTRAL) config.experts_per_token = 2;
    ts_model_options options = { .struct_size = sizeof options, .dtype = TS_DTYPE_F64 };
    ts_fsdp_options sharded = { .struct_size = sizeof sharded, .reshard = w->reshard };
    ts_model *model = ts_model_declare(mesh, &config, &options);
    for (int64_t i = 0; units && i < ts_model_block_count(model); i++)
        ts_module_checkpoint(ts_model_block(model, i), w->again);
    if (units) ts_model_fsdp(model, &sharded);
    ts_model_materialize(model);
    return model;
}

static ts_status token(const int64_t *global, void *element, void *context)
{
    int64_t salt = *(const int64_t *)context;
    *(int64_t *)element = (7 * global[0] + 3 * global[1] * global[1] + 5 * salt) % 31;
    return TS_OK;
}

static void train(ts_rank *me, ts_model *model, double *loss)
{
    ts_adamw_options adamw = { .struct_size = sizeof adamw, .lr = 3e-3, .weight_decay = 0.1 };
    ts_optimizer *optimizer = ts_adamw_create(ts_model_module(model), &adamw);
    for (int64_t step = 0; step < STEPS; step++) {
        ts_scope scope = ts_scope_open(me, NULL);
        ts_tape_begin(me);
        ts_meta meta = { .shape = TS_SHAPE(4, 12), .dtype = TS_DTYPE_I64 };
        int64_t next = step + 1;
        ts_tensor *ids = ts_from_function(token, &step, ts_model_tokens(model), meta);
        ts_tensor *labels = ts_from_function(token, &next, ts_model_tokens(model), meta);
        ts_tensor *mean = ts_model_loss(model, ids, labels);
        double norm;
        loss[step] = NAN;
        ts_tensor_item(mean, &loss[step]);
        ts_backward(mean, NULL);
        ts_clip_grad_norm(ts_model_module(model), 1.0, &norm);
        ts_optimizer_step(optimizer);
        ts_scope_close(scope);
    }
    ts_optimizer_destroy(optimizer);
}

/* The first rank has it alone, too, and compares. */
static void twenty_steps(test *t, const way *w)
{
    double alone[STEPS], sharded[STEPS];
    ts_model *many = model_of(ts_mesh_create(t->me, w->mesh), w, true);
    train(t->me, many, sharded);
    ts_model_destroy(many);
    if (t->index != 0) return;
    ts_model *one = model_of(ts_mesh_self(t->me), w, false);
    train(t->me, one, alone);
    ts_model_destroy(one);
    for (int i = 0; i < STEPS; i++)
        TEST_SAY(t, fabs(sharded[i] - alone[i]) <= 1e-9 * alone[i],
                 "%s, family %d, reshard %d, recompute %d: loss %d is %.15g, not %.15g", w->mesh,
                 w->family, w->reshard, w->again, i, sharded[i], alone[i]);
    TEST_CHECK(t, alone[STEPS - 1] < 0.9 * alone[0]);
}

/* `groups`: parameters may stay cut over groups of two. */
static void families(test *t, const char *mesh, bool groups)
{
    static const int32_t family[] = { TS_MODEL_LLAMA, TS_MODEL_LLAMA, TS_MODEL_QWEN3,
                                      TS_MODEL_MIXTRAL, TS_MODEL_GPT2 };
    static const int32_t reshard[] = { 2, TS_RESHARD_YES, TS_RESHARD_NO, TS_RESHARD_AUTO };
    enum { FAMILIES = sizeof family / sizeof family[0], WAYS = 3 };
    bool all = getenv("TEST_ALL") != NULL;
    for (int32_t i = 0; i < FAMILIES; i++)
        for (int32_t k = groups ? 0 : 1; k < 4; k++)
            for (int32_t again = 0; again < WAYS; again++) {
                bool sampled = k == (groups ? i % 4 : 1 + i % 3) && again == i % WAYS;
                way w = { .mesh = mesh, .family = family[i], .scaled = i == 1 };
                w.reshard = reshard[k];
                w.again = again;
                if ((all || sampled) && test_tries(t)) twenty_steps(t, &w);
            }
}

TS_TEST_RANKS(fsdp_models_f64_cut, 2, 3, 4, 8)
{
    char mesh[32];
    snprintf(mesh, sizeof mesh, "fsdp=%d", (int)t->count);
    families(t, mesh, t->count > 3);
}

TS_TEST_RANKS(fsdp_models_f64_mixed, 4, 8)
{
    if (t->count == 8) families(t, "replicate=2, fsdp=2, tp=2", false);
    if (t->count == 8) return;
    families(t, "replicate=2, fsdp=2", false);
    families(t, "fsdp=2, tp=2", false);
}

/* The gradient of a table of embeddings reads its indices alone: the block that has it is gathered
 * once a step, the others twice. */
TS_TEST_RANKS(fsdp_embeddings_are_gathered_once, 2, 3)
{
    enum { BLOCKS = 4 };
    double loss[STEPS];
    way w = { .mesh = "fsdp=*", .family = TS_MODEL_LLAMA, .reshard = TS_RESHARD_YES };
    ts_model *model = model_of(ts_mesh_create(t->me, w.mesh), &w, true);
    TEST_EQ(t, ts_model_block_count(model), BLOCKS);
    train(t->me, model, loss);
    ts_fsdp_stats stats = { .struct_size = sizeof stats };
    TEST_OK(t, ts_fsdp_statistics(ts_model_module(model), &stats));
    TEST_EQ(t, stats.gathers, STEPS * (2 * BLOCKS - 1));
    TEST_EQ(t, stats.reductions, STEPS * BLOCKS);
    ts_model_destroy(model);
}
