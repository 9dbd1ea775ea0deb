/* SPDX-License-Identifier: Apache-2.0 */
/* model.c - the life of a model: declared by its family, planned, materialised or read, run. */
#include "model/model.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "model/model_config.h"
#include "model/model_plan.h"
#include "model/part.h"
#include "model/weights.h"

/* ---- placements of activations --------------------------------------------------------------- */

ts_tensor *tsi_model_whole(const ts_model *model, ts_tensor *x)
{
    return (ts_redistribute_to)(x, model->whole);
}

ts_tensor *tsi_model_residual(const ts_model *model, ts_tensor *x)
{
    return (ts_redistribute_to)(x, model->residual);
}

ts_tensor *tsi_model_cast(const ts_model *model, ts_tensor *parameter)
{
    return model->compute ? tsi_param_cast(parameter, (ts_dtype)model->compute) : parameter;
}

const char *ts_model_plan_text(ts_model_family family, const char *name)
{
    if (!name) return NULL;
    return family == TS_MODEL_GPT2 ? tsi_gpt2_plan(name) : tsi_llama_plan(name);
}

/* ---- declaring ------------------------------------------------------------------------------- */

/* The blocks one after the other: without a tape, turn frees what went into a block as soon as it
 * is done. A second input, labels, is the head's: its output is the loss then, also when it runs
 * again in backward. */
static void model_forward(void *state, const ts_module_io *io)
{
    const ts_model *m = state;
    ts_scope scope = ts_scope_open(io->rank, NULL);
    ts_tensor *in[] = { io->input[0], io->input_count > 1 ? io->input[1] : NULL };
    for (int64_t i = 0; i < m->block_count; i++) {
        bool labels = in[1] && i + 1 == m->block_count;
        in[0] = ts_scope_turn(scope, ts_module_call(m->block[i], in, labels ? 2 : 1));
    }
    io->output[0] = ts_scope_leave(scope, in[0]);
}

static const ts_module_desc model_desc = { .struct_size = sizeof(ts_module_desc),
                                           .type = "model",
                                           .input_count = 1,
                                           .output_count = 1,
                                           .forward = model_forward };

static tsi_builder builder_of(ts_model *m, int32_t dtype)
{
    ts_param_options base = TS_INIT(ts_param_options);
    base.dtype = dtype > 0 ? dtype : 0;
    tsi_builder b = { .model = m, .normal = base, .ones = base, .zeros = base };
    b.normal.init = ts_init_normal;
    b.normal.init_state = &m->config.init_deviation;
    b.ones.init = ts_init_ones;
    return b;
}

/* The tree of m->config, its parameters replicated. */
static ts_status build_tree(ts_model *m, int32_t dtype)
{
    TSI_TRY(tsi_model_place(m, m->balance == TS_BALANCE_NONE ? "S(1)" : "HT(1)"));
    m->root = ts_module_create(m->mesh, &model_desc, m);
    m->block = tsi_calloc((size_t)m->config.layers + 2, sizeof(ts_module *));
    if (!m->block) return tsi_fail_memory("the blocks of a model", sizeof(ts_module *));
    tsi_builder b = builder_of(m, dtype);
    if (m->config.family == TS_MODEL_GPT2)
        tsi_gpt2_build(&b);
    else
        tsi_llama_build(&b);
    TSI_TRY(ts_rank_status(m->rank));
    TSI_ASSERT(m->block_count == m->config.layers + 2);
    return TS_OK;
}

/* What routers are asked for and cannot do. */
static ts_status check_router(const ts_model *m)
{
    const ts_model_options *o = &m->router_options;
    bool asked = o->aux_loss != 0 || o->sequence_loss != 0 || o->z_loss != 0 || o->bias_rate != 0 ||
                 o->capacity != 0;
    if (asked && m->config.experts <= 0)
        return TSI_FAIL(TS_ERR_ARG, "model: losses and balance of routers: the model has none");
    if (!(o->aux_loss >= 0 && o->sequence_loss >= 0 && o->z_loss >= 0 && o->bias_rate >= 0 &&
          o->capacity >= 0))
        return TSI_FAIL(TS_ERR_ARG,
                        "model: of routers aux_loss %g, sequence_loss %g, z_loss %g, bias_rate %g "
                        "and capacity %g are 0 or more",
                        o->aux_loss, o->sequence_loss, o->z_loss, o->bias_rate, o->capacity);
    if (o->bias_rate > 0 && m->config.family != TS_MODEL_DEEPSEEK_V3)
        return TSI_FAIL(TS_ERR_ARG,
                        "model: bias_rate %g: only routers of deepseek_v3 have a "
                        "selection bias",
                        o->bias_rate);
    return TS_OK;
}

static ts_status declare_with(ts_model *m, const ts_model_options *options,
                              const tsi_model_plan *plan)
{
    m->compute = options ? options->compute : 0;
    m->attention = options ? options->attention : 0;
    m->saves_cut = options ? options->saves_cut : 0;
    m->balance = options ? options->balance : 0;
    m->sequence = plan->sequence;
    if (options)
        memcpy(&m->router_options, options,
               options->struct_size < sizeof *options ? options->struct_size : sizeof *options);
    m->loss_rows = m->router_options.loss_rows;
    TSI_TRY(check_router(m));
    TSI_TRY(build_tree(m, options ? options->dtype : 0));
    TSI_TRY(tsi_model_plan_apply(plan, m));
    if (!m->origin) return TS_OK;
    return tsi_model_expect_weights(m, options && options->dtype == TS_MODEL_DTYPE_STORED);
}

static ts_status declare(ts_model *m, const ts_model_options *options)
{
    TSI_TRY(tsi_model_config_check("model", &m->config));
    TSI_TRY(tsi_model_spread(m, options ? options->ep : 0));
    tsi_model_plan plan;
    ts_status status = tsi_model_plan_find(m, options ? options->plan : NULL, &plan);
    if (status == TS_OK) status = declare_with(m, options, &plan);
    tsi_free(plan.memory);
    return status;
}

static ts_model *model_new(ts_mesh *mesh, const ts_model_config *config)
{
    ts_model *m = tsi_calloc(1, sizeof *m);
    if (!m) {
        tsi_fail_memory("a model", sizeof *m);
        return NULL;
    }
    m->rank = mesh->rank;
    m->mesh = ts_mesh_retain(mesh);
    m->config = *config;
    m->router_factor = 1.0;
    if (m->config.norm_epsilon == 0.0 && !config->exact) m->config.norm_epsilon = 1e-5;
    if (m->config.init_deviation == 0.0 && !config->exact) m->config.init_deviation = 0.02;
    if (m->config.rope_theta == 0.0) m->config.rope_theta = 10000.0;
    if (m->config.kv_heads == 0) m->config.kv_heads = m->config.heads;
    if (m->config.head_dim == 0 && m->config.heads > 0)
        m->config.head_dim = m->config.hidden / m->config.heads;
    if (m->config.positions == 0) m->config.positions = 2048;
    if (m->config.expert_width == 0) m->config.expert_width = m->config.intermediate;
    if (m->config.family == TS_MODEL_MIXTRAL) { /* its files have one size and no choice */
        m->config.intermediate = m->config.expert_width;
        m->config.route_sum = 1;
    }
    if (m->config.rope_original == 0.0) m->config.rope_original = (double)m->config.positions;
    return m;
}

static ts_rank *enter(ts_mesh *mesh, const void *argument, const char *what)
{
    ts_rank *rank = mesh ? mesh->rank : tsi_rank_current();
    if (!rank || tsi_rank_enter(rank) != TS_OK) return NULL;
    if (mesh && argument) return rank;
    TSI_FAIL(TS_ERR_NULL, "%s: an argument is NULL", what);
    return NULL;
}

ts_model *(ts_model_declare)(ts_mesh *mesh, const ts_model_config *config,
                             const ts_model_options *options)
{
    if (!enter(mesh, config, "model_declare")) return NULL;
    ts_model *m = model_new(mesh, config);
    if (m && declare(m, options) == TS_OK) return m;
    ts_model_destroy(m);
    return NULL;
}

ts_model *(ts_model_open)(ts_mesh *mesh, const char *directory, const ts_model_options *options)
{
    if (!enter(mesh, directory, "model_open")) return NULL;
    ts_model_config config;
    if (ts_model_config_read(directory, &config) != TS_OK) return NULL;
    ts_model *m = model_new(mesh, &config);
    if (!m) return NULL;
    char path[4096];
    size_t length;
    snprintf(path, sizeof path, "%s/config.json", directory);
    if (tsi_file_text(path, &m->config_text, &length) == TS_OK &&
        ts_archive_open(directory, &m->origin) == TS_OK && declare(m, options) == TS_OK)
        return m;
    ts_model_destroy(m);
    return NULL;
}

/* Both trees were built alike. */
static ts_status wrap_alike(ts_module *to, const ts_module *from)
{
    to->runs_again = from->runs_again;
    const tsi_param *p = from->param_first;
    for (tsi_param *q = to->param_first; q; q = q->next, p = p->next) {
        TSI_ASSERT(p && strcmp(p->name.text, q->name.text) == 0);
        q->dtype = p->dtype;
        q->frozen = p->frozen;
        q->rate = p->rate;
        q->decay = p->decay;
        q->adamw = p->adamw;
        q->stored = p->stored ? tsi_strdup(p->stored) : NULL;
        if (p->stored && !q->stored) return tsi_fail_memory("placements of a parameter", 64);
    }
    const ts_module *below = from->first;
    for (ts_module *child = to->first; child; child = child->next, below = below->next) {
        TSI_ASSERT(below != NULL);
        TSI_TRY(wrap_alike(child, below));
    }
    return TS_OK;
}

ts_model *tsi_model_twin(const ts_model *model, ts_mesh *mesh)
{
    if (!enter(mesh, model, "model")) return NULL;
    ts_model *m = model_new(mesh, &model->config);
    if (!m) return NULL;
    m->compute = model->compute;
    m->sequence = model->sequence;
    m->ep = model->ep;
    m->ep_axes = model->ep_axes; /* the mesh is split already */
    m->attention = model->attention;
    m->saves_cut = model->saves_cut;
    m->loss_rows = model->loss_rows;
    m->balance = model->balance;
    m->router_options = model->router_options;
    ts_status status = build_tree(m, 0);
    if (status == TS_OK) status = wrap_alike(m->root, model->root);
    if (status == TS_OK && model->has_units) status = ts_model_fsdp(m, &model->units);
    if (status == TS_OK) return m;
    ts_model_destroy(m);
    return NULL;
}

/* ---- storage --------------------------------------------------------------------------------- */

ts_status(ts_model_materialize)(ts_model *model)
{
    if (!model) return TS_ERR_NULL;
    TSI_TRY(ts_module_materialize(model->root));
    if (model->origin) tsi_archive_close_files(model->origin);
    return TS_OK;
}

static ts_model *materialized(ts_model *m)
{
    if (!m || (ts_model_materialize)(m) == TS_OK) return m;
    ts_model_destroy(m);
    return NULL;
}

ts_model *(ts_model_create)(ts_mesh *mesh, const ts_model_config *config,
                            const ts_model_options *options)
{
    return materialized((ts_model_declare)(mesh, config, options));
}

ts_model *(ts_model_load)(ts_mesh *mesh, const char *directory, const ts_model_options *options)
{
    return materialized((ts_model_open)(mesh, directory, options));
}

void ts_model_destroy(ts_model *m)
{
    if (!m) return;
    tsi_model_stages_destroy(m->stages);
    ts_module_destroy(m->root);
    tsi_free(m->block);
    tsi_model_routers_release(m);
    tsi_free(m->here);
    tsi_tensor_release(m->rope);
    ts_sharding_release(m->tokens);
    ts_sharding_release(m->whole);
    ts_sharding_release(m->residual);
    ts_mask_release(m->documents);
    ts_mesh_release(m->mesh);
    ts_archive_close(m->origin);
    tsi_free(m->config_text);
    tsi_free(m);
}

ts_module *ts_model_module(ts_model *model)
{
    return model ? model->root : NULL;
}

int64_t ts_model_block_count(const ts_model *model)
{
    return model ? model->block_count : 0;
}

ts_module *ts_model_block(ts_model *model, int64_t index)
{
    return model && index >= 0 && index < model->block_count ? model->block[index] : NULL;
}

const ts_model_config *ts_model_configuration(const ts_model *model)
{
    return model ? &model->config : NULL;
}

/* ---- running --------------------------------------------------------------------------------- */

ts_tensor *(ts_model_logits)(ts_model *model, ts_tensor *ids)
{
    if (!model || tsi_model_follow(model, ids) != TS_OK) return NULL;
    if (model->stages) return tsi_model_stages_logits(model, ids);
    return ts_module_call(model->root, &ids, 1);
}

ts_tensor *(ts_model_loss)(ts_model *model, ts_tensor *ids, ts_tensor *labels)
{
    if (!model || !labels || model->loss_rows == 0 || model->stages) {
        /* Logits end here, but for the tape: backward may turn them into their gradient. */
        ts_scope scope = ts_scope_open(model ? model->rank : NULL, NULL);
        return ts_scope_leave(scope, ts_cross_entropy(ts_model_logits(model, ids), labels));
    }
    if (tsi_model_follow(model, ids) != TS_OK) return NULL;
    return ts_module_call(model->root, (ts_tensor *[]){ ids, labels }, 2);
}
