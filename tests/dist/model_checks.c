/* SPDX-License-Identifier: Apache-2.0 */
/* model_checks.c - what must hold of every family whatever its sizes: gradients of all parameters
 * against central differences in f64, and first values that do not depend on the mesh. */
#include <math.h>
#include <stdlib.h>

#include "array/array.h"
#include "base/hash.h"
#include "harness/test.h"
#include "tensor/tensor.h"
#include "tessera/train.h"

static const ts_model_config configs[] = {
    { .family = TS_MODEL_LLAMA, .kv_heads = 1, .attention_bias = 1, .mlp_bias = 1 },
    { .family = TS_MODEL_LLAMA, .kv_heads = 3, .tied = 1, .rope_type = TS_ROPE_LLAMA3 },
    { .family = TS_MODEL_QWEN3,
      .kv_heads = 3,
      .activation = TS_ACTIVATION_GELU,
      .window = 3,
      .window_layers = { 1 } },
    { .family = TS_MODEL_QWEN3, .kv_heads = 3, .tied = 1 },
    { .family = TS_MODEL_MIXTRAL, .kv_heads = 3, .experts = 3, .experts_per_token = 2 },
    { .family = TS_MODEL_GPT2, .kv_heads = 3, .tied = 1 },
    { .family = TS_MODEL_GPT2,
      .kv_heads = 3,
      .tied = 1,
      .activation = TS_ACTIVATION_GELU,
      .attention_by_layer = 1 },
};
enum { CONFIGS = sizeof configs / sizeof configs[0] };

static ts_model_config config_of(int i)
{
    ts_model_config c = configs[i];
    c.struct_size = sizeof c;
    c.vocab = 11;
    c.hidden = 12;
    c.intermediate = 10;
    c.layers = 2;
    c.heads = 3;
    c.head_dim = 4;
    c.positions = 8;
    c.norm_epsilon = 1e-5;
    c.init_deviation = 0.4;
    c.rope_theta = 100;
    if (c.rope_type == TS_ROPE_LLAMA3) {
        c.rope_factor = 4;
        c.rope_low = 1;
        c.rope_high = 4;
        c.rope_original = 8;
    }
    return c;
}

/* ---- gradients ------------------------------------------------------------------------------- */

typedef struct checked {
    test *t;
    ts_model *model;
    ts_tensor *ids, *labels;
    int config;
} checked;

static ts_status token_at(const int64_t *global, void *element, void *context)
{
    *(int64_t *)element = (7 * global[0] + 3 * global[1] * global[1] + *(int64_t *)context) % 11;
    return TS_OK;
}

static double loss_of(const checked *c)
{
    double loss = NAN;
    ts_scope scope = ts_scope_open_with(c->t->me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    TEST_OK(c->t, ts_tensor_item(ts_model_loss(c->model, c->ids, c->labels), &loss));
    ts_scope_close(scope);
    return loss;
}

static double loss_with(const checked *c, ts_tensor *p, const ts_array *value)
{
    TEST_OK(c->t, test_written(p, value));
    return loss_of(c);
}

/* Every element of small parameters, some of large ones. */
static ts_status check_param(const char *name, ts_tensor *p, void *context)
{
    enum { SOME = 20 };
    const double h = 1e-5;
    checked *c = context;
    ts_array view = TS_INIT(ts_array), value = TS_INIT(ts_array);
    ts_tensor *grad = ts_tensor_grad(p);
    TEST_SAY(c->t, grad != NULL, "config %d: %s has no gradient", c->config, name);
    if (!grad || test_view(grad, &view) != TS_OK || test_view(p, &value) != TS_OK)
        return ts_rank_status(c->t->me);
    double *at = value.data;
    int64_t count = ts_shape_count(&value.meta.shape), tries = count < SOME ? count : SOME;
    for (int64_t n = 0; n < tries; n++) {
        int64_t i = count < SOME ? n : test_random_below(c->t, count);
        double kept = at[i], have = ((const double *)view.data)[i];
        at[i] = kept + h;
        double up = loss_with(c, p, &value);
        at[i] = kept - h;
        double want = (up - loss_with(c, p, &value)) / (2 * h);
        at[i] = kept;
        TEST_SAY(c->t, fabs(have - want) <= 2e-8 + 1e-6 * fabs(want),
                 "config %d: %s[%lld]: %.12g, not %.12g", c->config, name, (long long)i, have,
                 want);
    }
    return test_written(p, &value);
}

TS_TEST_RANKS(gradients_of_every_layer, 1)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=1");
    for (int i = 0; i < CONFIGS; i++) {
        ts_scope scope = ts_scope_open(t->me, "check");
        ts_model_config config = config_of(i);
        ts_model_options options = TS_INIT(ts_model_options);
        options.dtype = TS_DTYPE_F64;
        checked c = { .t = t, .model = ts_model_create(mesh, &config, &options), .config = i };
        TEST_OK(t, ts_rank_status(t->me));
        if (!c.model) return;
        ts_meta meta = { .shape = TS_SHAPE(2, 5), .dtype = TS_DTYPE_I64 };
        int64_t salt[2] = { 1, 4 };
        c.ids = ts_from_function(token_at, &salt[0], ts_model_tokens(c.model), meta);
        c.labels = ts_from_function(token_at, &salt[1], ts_model_tokens(c.model), meta);
        ts_tape_begin(t->me);
        TEST_OK(t, ts_backward(ts_model_loss(c.model, c.ids, c.labels), NULL));
        TEST_OK(t, ts_module_each(ts_model_module(c.model), check_param, &c));
        ts_model_destroy(c.model);
        ts_scope_close(scope);
    }
}

/* ---- first values ---------------------------------------------------------------------------- */

typedef struct started {
    const char *mesh, *plan;
    int config;
    uint64_t hash; /* of all parameters, whole */
} started;

static ts_status hash_param(const char *name, ts_tensor *p, void *context)
{
    uint64_t *hash = context;
    ts_array view = TS_INIT(ts_array);
    ts_status status = test_view(ts_tensor_full(p), &view);
    if (status != TS_OK) return status;
    *hash = tsi_hash_text(*hash, name);
    size_t bytes =
        (size_t)ts_shape_count(&view.meta.shape) * ts_dtype_size((ts_dtype)view.meta.dtype);
    *hash = tsi_hash_bytes(*hash, view.data, bytes);
    return TS_OK;
}

static ts_status start(ts_rank *me, void *argument)
{
    started *s = argument;
    ts_scope scope = ts_scope_open(me, "start");
    ts_model_config config = config_of(s->config);
    ts_model_options options = TS_INIT(ts_model_options);
    options.plan = s->plan;
    ts_model *model = ts_model_create(ts_mesh_create(me, s->mesh), &config, &options);
    uint64_t hash = 1;
    if (model) (void)ts_module_each(ts_model_module(model), hash_param, &hash);
    if (ts_rank_index(me) == 0) s->hash = hash;
    ts_model_destroy(model);
    ts_scope_close(scope);
    return ts_rank_status(me);
}

TS_TEST(first_values_do_not_depend_on_the_mesh)
{
    static const struct {
        const char *mesh, *plan;
        int64_t ranks;
    } cases[] = {
        { "dp=1", "dp", 1 },       { "dp=2", "dp", 2 },       { "dp=3", "dp", 3 },
        { "tp=2", "tp", 2 },       { "tp=3", "tp", 3 },       { "tp=4", "tp", 4 },
        { "dp=2, tp=2", "tp", 4 }, { "dp=2, tp=2", "sp", 4 }, { "tp=2, dp=3", "tp", 6 },
        { "dp=4", "dp", 4 },       { "tp=5", "sp", 5 },
    };
    for (int config = 0; config < CONFIGS; config++) {
        uint64_t want = 0;
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            started s = { .mesh = cases[i].mesh, .plan = cases[i].plan, .config = config };
            ts_world_options options = { .struct_size = sizeof options,
                                         .engine = "threads",
                                         .rank_count = cases[i].ranks,
                                         .seed = 77 };
            char error[512] = "";
            TEST_SAY(t, ts_launch_with(&options, start, &s, error, sizeof error) == TS_OK,
                     "config %d on %s: %s", config, cases[i].mesh, error);
            if (i == 0) want = s.hash;
            TEST_SAY(t, s.hash == want, "config %d: %s starts with other values than dp=1", config,
                     cases[i].mesh);
        }
    }
}
