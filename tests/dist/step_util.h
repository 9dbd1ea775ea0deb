/* SPDX-License-Identifier: Apache-2.0 */
/* step_util.h - steps of a tiny Llama on any device, with what each of them found: losses, norms,
 * waits of the host, memory held. */
#ifndef TESTS_DIST_STEP_UTIL_H
#define TESTS_DIST_STEP_UTIL_H

#include <math.h>

#include "array/pool.h"
#include "harness/test.h"
#include "nn/module.h"
#include "tessera/model.h"

enum { ROWS = 2, CONTEXT = 8, VOCAB = 40, STEPS_KEPT = 128 };

static const ts_model_config tiny = { .struct_size = sizeof tiny,
                                      .vocab = VOCAB,
                                      .hidden = 16,
                                      .intermediate = 24,
                                      .layers = 2,
                                      .heads = 2,
                                      .kv_heads = 1,
                                      .head_dim = 8,
                                      .positions = CONTEXT,
                                      .norm_epsilon = 1e-5,
                                      .init_deviation = 0.2 };

typedef struct walk_of {
    test *t;
    const char *mesh, *engine;     /* NULL: threads */
    int32_t dtype, compute, count; /* of parameters and products; 0: f32 */
    int32_t moments;               /* of AdamW; 0: as the parameters */
    double loss[STEPS_KEPT], norm[STEPS_KEPT];
    int64_t waits, reserved[STEPS_KEPT];
    double poison_at; /* the rate of this step is not a number; -1: none */
    bool sgd;
} walk_of;

static ts_status token_at(const int64_t *global, void *element, void *context)
{
    *(int64_t *)element = (global[0] * 7 + global[1] * 3 + *(const int64_t *)context) % VOCAB;
    return TS_OK;
}

static ts_tensor *tokens(ts_model *model, int64_t salt)
{
    ts_meta meta = { .shape = TS_SHAPE(ROWS, CONTEXT), .dtype = TS_DTYPE_I64 };
    return ts_from_function(token_at, &salt, ts_model_tokens(model), meta);
}

/* Every mirror is its parameter, rounded. */
static ts_status check_mirror(ts_module *m, tsi_param *p, const char *name, void *context)
{
    test *t = context;
    if (!p->mirror) return TS_OK;
    ts_scope scope = ts_scope_open_with(m->rank, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    double far = NAN;
    ts_tensor *again = ts_cast(ts_cast(p->value, (ts_dtype)p->mirror->dtype), TS_DTYPE_F32);
    ts_tensor *apart = ts_abs(ts_sub(ts_cast(p->mirror, TS_DTYPE_F32), again));
    TEST_OK(t, ts_tensor_item(ts_amax(apart, NULL, 0, 0), &far));
    TEST_SAY(t, tsi_param_mirror(p) && far == 0.0, "%s: its mirror is off by %g", name, far);
    return ts_scope_close(scope);
}

typedef struct neighbour {
    test *t;
    const char *end; /* of the mirror that was seen last */
    int32_t found;
} neighbour;

/* Mirrors of k, v and up begin where those of q, k and gate end: they are one product. */
static ts_status check_neighbour(ts_module *m, tsi_param *p, const char *name, void *context)
{
    neighbour *n = context;
    (void)m;
    if (!p->mirror) return TS_OK;
    tsi_block block = tsi_array_block(p->mirror->array);
    const char *begin = block.data;
    bool follows = strstr(name, "k_proj") || strstr(name, "v_proj") || strstr(name, "up_proj");
    if (follows) TEST_SAY(n->t, begin == n->end, "%s does not follow its neighbour", name);
    n->found += follows;
    n->end = begin + (size_t)tsi_block_count(&block) * ts_dtype_size((ts_dtype)block.dtype);
    return TS_OK;
}

static ts_status one_step(ts_rank *me, walk_of *s, ts_model *model, ts_optimizer *o, int32_t step)
{
    ts_scope scope = ts_scope_open(me, "");
    ts_tape_begin(me);
    ts_tensor *loss = ts_model_loss(model, tokens(model, step), tokens(model, step + 1));
    ts_status status = ts_backward(loss, NULL);
    if (step == (int32_t)s->poison_at) loss = ts_mul_scalar(ts_detach(loss), NAN);
    if (status == TS_OK)
        status =
            ts_optimizer_step_with(o, TS_OPTIONS(ts_step_options, .norm_max = 0.5, .loss = loss));
    ts_scope_close(scope);
    return status;
}

static ts_status walk(ts_rank *me, void *argument)
{
    walk_of *s = argument;
    ts_mesh *mesh = ts_mesh_create(me, s->mesh);
    ts_model *model = ts_model_create(
        mesh, &tiny, TS_OPTIONS(ts_model_options, .dtype = s->dtype, .compute = s->compute));
    ts_module *root = ts_model_module(model);
    ts_optimizer *o =
        s->sgd ? ts_sgd_create(root, TS_OPTIONS(ts_sgd_options, .lr = 0.1, .momentum = 0.9))
               : ts_adamw_create(root,
                                 TS_OPTIONS(ts_adamw_options, .lr = 1e-2, .moments = s->moments));
    const tsi_rank_device *device = tsi_rank_device_of(me);
    bool notes = ts_rank_index(me) == 0; /* what all ranks see, and its own memory */
    for (int32_t step = 0; step < s->count; step++) {
        int64_t before = device->waits;
        TEST_OK(s->t, one_step(me, s, model, o, step));
        if (step >= 2 && notes) s->waits += device->waits - before;
        if (notes) s->reserved[step] = tsi_pool_reserved(tsi_pool_of(me));
        ts_step_outcome is = TS_INIT(ts_step_outcome);
        if (step == 0) continue;
        TEST_OK(s->t, ts_optimizer_outcome(o, step, &is)); /* the one before, which counts from 1 */
        if (!notes) continue;
        s->loss[step - 1] = is.loss;
        s->norm[step - 1] = is.norm;
    }
    TEST_OK(s->t, tsi_module_visit(root, check_mirror, s->t));
    neighbour n = { .t = s->t };
    TEST_OK(s->t, tsi_module_visit(root, check_neighbour, &n));
    TEST_EQ(s->t, n.found, s->compute ? 3 * tiny.layers : 0);
    ts_optimizer_destroy(o);
    ts_model_destroy(model);
    ts_mesh_release(mesh);
    return ts_rank_status(me);
}

static void run_on(walk_of *s, const char *device, int64_t ranks)
{
    char error[1024] = "";
    ts_world_options options = { .struct_size = sizeof options,
                                 .engine = s->engine ? s->engine : "threads",
                                 .rank_count = ranks,
                                 .seed = 5,
                                 .device = device };
    s->waits = 0;
    ts_status status = ts_launch_with(&options, walk, s, error, sizeof error);
    TEST_SAY(s->t, status == TS_OK, "%s", error);
}

#endif
