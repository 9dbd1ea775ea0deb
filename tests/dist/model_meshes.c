/* SPDX-License-Identifier: Apache-2.0 */
/* model_meshes.c - the families on many meshes and plans: the same initial bits everywhere, the
 * same loss in f64, and gradients that are those of central differences. */
#include <math.h>

#include "harness/test.h"
#include "tessera/tessera.h"

enum { ROWS = 3, LENGTH = 5 };

static ts_model_config config_of(int32_t family)
{
    ts_model_config c = TS_INIT(ts_model_config);
    c.family = family;
    c.vocab = 23;
    c.hidden = 12;
    c.intermediate = 10;
    c.layers = 2;
    c.heads = 6;
    c.kv_heads = family == TS_MODEL_GPT2 ? 6 : 3;
    c.head_dim = family == TS_MODEL_GPT2 ? 2 : 4;
    c.init_deviation = 0.3;
    c.tied = family == TS_MODEL_GPT2 || family == TS_MODEL_QWEN3;
    c.attention_bias = family == TS_MODEL_LLAMA;
    c.mlp_bias = family == TS_MODEL_LLAMA;
    if (family == TS_MODEL_MIXTRAL) c.experts = 5;
    if (family == TS_MODEL_MIXTRAL) c.experts_per_token = 2;
    if (family == TS_MODEL_QWEN3) c.window = 3;
    if (family == TS_MODEL_QWEN3) c.window_layers[0] = 2;
    return c;
}

static ts_model *model_on(ts_mesh *mesh, int32_t family, const char *plan)
{
    ts_model_config c = config_of(family);
    ts_model_options options = TS_INIT(ts_model_options);
    options.plan = plan;
    options.dtype = TS_DTYPE_F64;
    return ts_model_create(mesh, &c, &options);
}

static ts_status token(const int64_t *global, void *element, void *context)
{
    int64_t shift = *(const int64_t *)context;
    *(int64_t *)element = (7 * global[0] + 3 * (global[1] + shift) * (global[1] + shift)) % 23;
    return TS_OK;
}

static ts_tensor *loss_of(ts_model *model)
{
    ts_meta meta = { .shape = TS_SHAPE(ROWS, LENGTH), .dtype = TS_DTYPE_I64 };
    int64_t now = 0, next = 1;
    ts_tensor *ids = ts_from_function(token, &now, ts_model_tokens(model), meta);
    ts_tensor *labels = ts_from_function(token, &next, ts_model_tokens(model), meta);
    return ts_model_loss(model, ids, labels);
}

/* ---- initial bits and losses ----------------------------------------------------------------- */

typedef struct other {
    test *t;
    ts_module *alone;
    const char *mesh;
} other;

static ts_status same_bits(const char *name, ts_tensor *parameter, void *context)
{
    const other *o = context;
    ts_scope scope = ts_scope_open(o->t->me, "compare");
    ts_array a = TS_INIT(ts_array), b = TS_INIT(ts_array);
    TEST_OK(o->t, test_view(ts_tensor_full(parameter), &a));
    TEST_OK(o->t, test_view(ts_module_find_param(o->alone, name), &b));
    size_t bytes = (size_t)ts_shape_count(&b.meta.shape) * sizeof(double);
    TEST_SAY(o->t, a.data && b.data && memcmp(a.data, b.data, bytes) == 0,
             "%s begins with other bits on %s", name, o->mesh);
    ts_scope_close(scope);
    return ts_rank_status(o->t->me);
}

TS_TEST_RANKS(model_same_on_meshes, 1, 2, 3, 4, 6)
{
    static const struct {
        int64_t ranks;
        const char *mesh, *plan;
    } rows[] = { { 1, "dp=1", "dp" },
                 { 1, "tp=1", "sp" },
                 { 2, "dp=2", "dp" },
                 { 2, "tp=2", "tp" },
                 { 2, "tp=2", "*: S(0)" },
                 { 3, "dp=3", "dp" },
                 { 3, "tp=3", "sp" },
                 { 4, "dp=2, tp=2", "tp" },
                 { 4, "tp=2, dp=2", "sp" },
                 { 4, "tp=4", "tp" },
                 { 4, "dp=2, tp=2", "*.weight: S(0), S(0)\n*: R, R" },
                 { 6, "dp=2, tp=3", "sp" },
                 { 6, "dp=3, tp=2", "tp" } };
    for (int32_t family = 0; family < 4; family++) {
        double alone = NAN;
        ts_model *one = model_on(ts_mesh_self(t->me), family, NULL);
        ts_tensor_item(loss_of(one), &alone);
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            if (rows[i].ranks != t->count) continue;
            ts_scope scope = ts_scope_open(t->me, "mesh");
            ts_model *model = model_on(ts_mesh_create(t->me, rows[i].mesh), family, rows[i].plan);
            other o = { t, ts_model_module(one), rows[i].mesh };
            TEST_OK(t, ts_module_each(ts_model_module(model), same_bits, &o));
            double loss = NAN;
            ts_tensor_item(loss_of(model), &loss);
            TEST_SAY(t, fabs(loss - alone) < 1e-12, "family %d on %s: loss %.15g, alone %.15g",
                     (int)family, rows[i].mesh, loss, alone);
            ts_model_destroy(model);
            ts_scope_close(scope);
        }
        ts_model_destroy(one);
    }
    TEST_OK(t, ts_rank_status(t->me));
}

/* ---- gradients ------------------------------------------------------------------------------- */

typedef struct differences {
    test *t;
    ts_model *model;
} differences;

static double loss_along(const differences *d, ts_tensor *parameter, ts_tensor *way, double step)
{
    double loss = NAN;
    ts_scope scope = ts_scope_open(d->t->me, "along");
    ts_tensor *before = ts_clone(parameter);
    ts_tensor_write(parameter, ts_add(before, ts_scale(way, step)));
    ts_tensor_item(loss_of(d->model), &loss);
    ts_tensor_write(parameter, before);
    ts_scope_close(scope);
    return loss;
}

static ts_status check_gradient(const char *name, ts_tensor *parameter, void *context)
{
    const differences *d = context;
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.no_grad = 1;
    options.label = name;
    ts_scope scope = ts_scope_open_with(d->t->me, &options);
    ts_tensor *way = ts_randn_like(parameter);
    double want = NAN, step = 1e-5;
    ts_tensor_item(ts_sum(ts_mul(ts_tensor_grad(parameter), way), NULL, 0, 0), &want);
    double got =
        (loss_along(d, parameter, way, step) - loss_along(d, parameter, way, -step)) / (2 * step);
    TEST_SAY(d->t, fabs(got - want) <= 1e-7 * (1.0 + fabs(want)),
             "%s: %.10g along a line, %.10g by differences", name, want, got);
    ts_scope_close(scope);
    return ts_rank_status(d->t->me);
}

TS_TEST_RANKS(model_gradients, 1, 2, 3)
{
    for (int32_t family = 0; family < 4; family++) {
        ts_model *model = model_on(ts_mesh_create(t->me, "tp=*"), family, "sp");
        ts_scope scope = ts_scope_open(t->me, "backward");
        ts_tape_begin(t->me);
        ts_backward(loss_of(model), NULL);
        ts_scope_close(scope);
        differences d = { t, model };
        TEST_OK(t, ts_module_each(ts_model_module(model), check_gradient, &d));
        ts_model_destroy(model);
    }
    TEST_OK(t, ts_rank_status(t->me));
}
