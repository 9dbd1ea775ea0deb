/* SPDX-License-Identifier: Apache-2.0 */
/* model_blocks.c - models are trees: their blocks have names, run one after the other, can be run
 * again in backward and hooked one by one, and get storage only when they are told. */
#include <math.h>

#include "harness/test.h"
#include "tessera/tessera.h"

enum { ROWS = 3, LENGTH = 40, LAYERS = 6 };

static ts_model_config config_of(int32_t family)
{
    ts_model_config c = TS_INIT(ts_model_config);
    c.family = family;
    c.vocab = 23;
    c.hidden = 12;
    c.intermediate = 10;
    c.layers = LAYERS;
    c.heads = 6;
    c.kv_heads = family == TS_MODEL_GPT2 ? 6 : 3;
    c.head_dim = family == TS_MODEL_GPT2 ? 2 : 4;
    c.init_deviation = 0.3;
    c.tied = family == TS_MODEL_GPT2 || family == TS_MODEL_QWEN3;
    if (family == TS_MODEL_MIXTRAL) c.experts = 5;
    if (family == TS_MODEL_MIXTRAL) c.experts_per_token = 2;
    return c;
}

static ts_model *model_on(test *t, int32_t family, bool materialized)
{
    ts_model_config c = config_of(family);
    ts_model_options options = TS_INIT(ts_model_options);
    ts_mesh *mesh = ts_mesh_create(t->me, t->count == 4 ? "dp=2, tp=2" : "tp=*");
    return materialized ? ts_model_create(mesh, &c, &options)
                        : ts_model_declare(mesh, &c, &options);
}

static ts_status token(const int64_t *global, void *element, void *context)
{
    int64_t shift = *(const int64_t *)context;
    *(int64_t *)element = (7 * global[0] + 3 * (global[1] + shift) * (global[1] + shift)) % 23;
    return TS_OK;
}

static ts_tensor *tokens(ts_model *model, int64_t shift)
{
    ts_meta meta = { .shape = TS_SHAPE(ROWS, LENGTH), .dtype = TS_DTYPE_I64 };
    return ts_from_function(token, &shift, ts_model_tokens(model), meta);
}

/* ---- names ----------------------------------------------------------------------------------- */

TS_TEST_RANKS(model_blocks_have_names, 1, 2)
{
    static const char *const first[] = { "model.embed_tokens", "model.embed_tokens",
                                         "model.embed_tokens", "transformer.wte+transformer.wpe" };
    static const char *const last[] = { "model.norm+lm_head", "model.norm+lm_head",
                                        "model.norm+lm_head", "transformer.ln_f+lm_head" };
    for (int32_t family = 0; family < 4; family++) {
        ts_model *model = model_on(t, family, false);
        char name[128];
        TEST_EQ(t, ts_model_block_count(model), LAYERS + 2);
        ts_module_name(ts_model_block(model, 0), name, sizeof name);
        TEST_TEXT(t, name, first[family]);
        ts_module_name(ts_model_block(model, 2), name, sizeof name);
        TEST_TEXT(t, name, family == TS_MODEL_GPT2 ? "transformer.h.1" : "model.layers.1");
        ts_module_name(ts_model_block(model, LAYERS + 1), name, sizeof name);
        TEST_TEXT(t, name, last[family]);
        TEST_CHECK(t, ts_model_block(model, LAYERS + 2) == NULL);
        TEST_CHECK(t, ts_model_block(model, -1) == NULL);
        ts_module *root = ts_model_module(model);
        const char *inner = family == TS_MODEL_GPT2 ? "transformer.h.2.mlp" : "model.layers.2.mlp";
        TEST_CHECK(t, ts_module_find(root, inner) != NULL);
        TEST_CHECK(t, ts_module_find(root, "lm_head") != NULL);
        ts_model_destroy(model);
    }
}

/* ---- running --------------------------------------------------------------------------------- */

TS_TEST_RANKS(model_is_its_blocks, 1, 2, 4)
{
    for (int32_t family = 0; family < 4; family++) {
        ts_scope scope = ts_scope_open(t->me, NULL);
        ts_model *model = model_on(t, family, true);
        ts_tensor *x = tokens(model, 0);
        ts_tensor *whole = ts_model_logits(model, x);
        for (int64_t i = 0; i < ts_model_block_count(model); i++)
            x = TS_CALL(ts_model_block(model, i), x);
        int equal = 0;
        TEST_OK(t, ts_equal(x, whole, &equal));
        TEST_SAY(t, equal == 1, "family %d: the blocks give other logits", (int)family);
        ts_model_destroy(model);
        ts_scope_close(scope);
    }
}

typedef struct calls {
    int64_t forward, before, after;
} calls;

static ts_status count_forward(ts_module *m, void *context)
{
    (void)m;
    ((calls *)context)->forward++;
    return TS_OK;
}

static ts_status count_before(ts_module *m, void *context)
{
    (void)m;
    ((calls *)context)->before++;
    return TS_OK;
}

static ts_status count_after(ts_module *m, void *context)
{
    (void)m;
    ((calls *)context)->after++;
    return TS_OK;
}

/* How often gradients of norms were added to what was there already, since an event. */
static int64_t added_norms(ts_rank *me, uint64_t since)
{
    ts_times times = TS_INIT(ts_times);
    int64_t count = 0;
    if (ts_rank_times(me, since, &times) != TS_OK) return -1;
    for (int64_t i = 0; i < times.op_count; i++)
        if (strcmp(times.op[i].name, "add_rms_norm_backward") == 0) count += times.op[i].count;
    return count;
}

/* The loss of one step; gradients stay with the model. */
static double step(test *t, ts_model *model, int64_t *peak, int64_t *added)
{
    double loss = NAN;
    ts_memory before = TS_INIT(ts_memory), memory = TS_INIT(ts_memory);
    ts_scope scope = ts_scope_open(t->me, "step");
    TEST_OK(t, ts_rank_memory_reset(t->me));
    TEST_OK(t, ts_rank_memory(t->me, &before));
    uint64_t event = ts_rank_event(t->me);
    ts_tape_begin(t->me);
    ts_tensor *mean = ts_model_loss(model, tokens(model, 0), tokens(model, 1));
    TEST_OK(t, ts_tensor_item(mean, &loss));
    TEST_OK(t, ts_backward(mean, NULL));
    TEST_OK(t, ts_rank_memory(t->me, &memory));
    ts_scope_close(scope);
    *peak = memory.peak - before.live;
    *added = added_norms(t->me, event);
    return loss;
}

typedef struct twin {
    test *t;
    ts_module *other;
} twin;

static ts_status same_gradient(const char *name, ts_tensor *parameter, void *context)
{
    const twin *w = context;
    int equal = 0;
    ts_scope scope = ts_scope_open(w->t->me, NULL);
    ts_tensor *other = ts_module_find_param(w->other, name);
    TEST_OK(w->t, ts_equal(ts_tensor_grad(parameter), ts_tensor_grad(other), &equal));
    TEST_SAY(w->t, equal == 1, "%s has another gradient where its block runs again", name);
    ts_scope_close(scope);
    return TS_OK;
}

/* Layers that keep their input alone: the same bits, less memory, each hooked once. */
TS_TEST_RANKS(model_blocks_run_again, 1, 2, 4)
{
    for (int32_t family = 0; family < 4; family++) {
        ts_model *kept = model_on(t, family, true), *again = model_on(t, family, false);
        int64_t count = ts_model_block_count(again), peak = 0, less = 0;
        calls seen = { 0 };
        for (int64_t i = 1; i + 1 < count; i++) {
            ts_module *layer = ts_model_block(again, i);
            TEST_OK(t, ts_module_checkpoint(layer, 1));
            TEST_OK(t, ts_module_on(layer, TS_HOOK_FORWARD_AFTER, count_forward, &seen));
            TEST_OK(t, ts_module_on(layer, TS_HOOK_BACKWARD_BEFORE, count_before, &seen));
            TEST_OK(t, ts_module_on(layer, TS_HOOK_BACKWARD_AFTER, count_after, &seen));
        }
        TEST_OK(t, ts_model_materialize(again));
        int64_t added[2] = { 0 };
        double want = step(t, kept, &peak, &added[0]), have = step(t, again, &less, &added[1]);
        /* Sums are made by the same operators: on devices others have other bits. */
        TEST_EQ(t, added[1], added[0]);
        TEST_SAY(t, have == want, "family %d: loss %.17g, kept %.17g", (int)family, have, want);
        TEST_EQ(t, seen.forward, count - 2);
        TEST_EQ(t, seen.before, count - 2);
        TEST_EQ(t, seen.after, count - 2);
        /* GPT-2 that is cut small has its largest moment in the gradient of the embedding. */
        bool is_less = family == TS_MODEL_GPT2 ? less <= peak : less < peak;
        TEST_SAY(t, is_less, "family %d: %lld bytes at most, kept %lld", (int)family,
                 (long long)less, (long long)peak);
        twin w = { t, ts_model_module(again) };
        TEST_OK(t, ts_module_each(ts_model_module(kept), same_gradient, &w));
        ts_model_destroy(kept);
        ts_model_destroy(again);
    }
}

/* ---- storage --------------------------------------------------------------------------------- */

static ts_status same_value(const char *name, ts_tensor *parameter, void *context)
{
    const twin *w = context;
    int equal = 0;
    TEST_OK(w->t, ts_equal(parameter, ts_module_find_param(w->other, name), &equal));
    TEST_SAY(w->t, equal == 1, "%s has another first value", name);
    return TS_OK;
}

static ts_status add_bytes(const char *name, ts_tensor *parameter, void *context)
{
    (void)name;
    ts_array view = TS_INIT(ts_array);
    ts_status status = test_view(parameter, &view);
    *(int64_t *)context += (int64_t)ts_dtype_size((ts_dtype)view.meta.dtype) *
                           (view.data ? ts_shape_count(&view.meta.shape) : 0);
    return status;
}

/* Read block by block, and at once: the same values; no more than the shards are held. */
TS_TEST_RANKS(model_is_read_by_blocks, 1, 2, 3)
{
    static const char *const models[] = { "llama_bias", "mixtral_window", "gpt2_plain" };
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        ts_scope scope = ts_scope_open(t->me, NULL);
        char path[512];
        ts_mesh *mesh = ts_mesh_create(t->me, "tp=*");
        (void)snprintf(path, sizeof path, TS_SOURCE_DIR "/tests/golden/models/%s", models[i]);
        ts_model *whole = ts_model_load(mesh, path, NULL);
        ts_memory before = TS_INIT(ts_memory), after = TS_INIT(ts_memory);
        TEST_OK(t, ts_rank_memory_reset(t->me));
        TEST_OK(t, ts_rank_memory(t->me, &before));
        ts_model *parts = ts_model_open(mesh, path, NULL);
        TEST_OK(t, ts_rank_memory(t->me, &after));
        TEST_EQ(t, after.peak, before.live);
        for (int64_t b = ts_model_block_count(parts); b-- > 0;)
            TEST_OK(t, ts_module_materialize(ts_model_block(parts, b)));
        TEST_OK(t, ts_model_materialize(parts));
        TEST_OK(t, ts_rank_memory(t->me, &after));
        int64_t bytes = 0;
        TEST_OK(t, ts_module_each(ts_model_module(parts), add_bytes, &bytes));
        TEST_EQ(t, after.peak - before.live, bytes);
        twin w = { t, ts_model_module(parts) };
        TEST_OK(t, ts_module_each(ts_model_module(whole), same_value, &w));
        ts_model_destroy(whole);
        ts_model_destroy(parts);
        ts_scope_close(scope);
    }
}

TS_TEST_RANKS(model_without_storage_is_refused, 1, 2)
{
    ts_model *model = model_on(t, TS_MODEL_LLAMA, false);
    TEST_OK(t, ts_module_materialize(ts_model_block(model, 0)));
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    TEST_CHECK(t, ts_model_logits(model, tokens(model, 0)) == NULL);
    TEST_STATUS(t, ts_scope_close(scope), TS_ERR_STATE);
    TEST_SAYS(t, ts_rank_error(t->me)->text, "the parameter model.layers.0.input_layernorm.weight");
    ts_model_destroy(model);
}
