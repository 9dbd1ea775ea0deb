/* SPDX-License-Identifier: Apache-2.0 */
/* set_up.c - what a training run needs before its first step: mesh, data, model, optimizer, the
 * state it goes on from.
 *
 * INV: the same on every rank but for the files that rank 0 writes. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "model/model.h"
#include "model/model_config.h"
#include "nn/module.h"
#include "train/run.h"

static ts_status make_mesh(tsi_run *run)
{
    ts_roles roles;
    TSI_TRY(ts_roles_parse(run->config->parallel.mesh, &roles));
    run->mesh = ts_mesh_create(run->me, run->config->parallel.mesh);
    if (!run->mesh) return ts_rank_status(run->me);
    int64_t size = ts_mesh_size(run->mesh, NULL), world = ts_rank_count(run->me);
    if (size != world)
        return TSI_FAIL(TS_ERR_ARG, "parallel.mesh: \"%s\" has %lld ranks, the world has %lld",
                        run->config->parallel.mesh, (long long)size, (long long)world);
    ts_mesh_text(run->mesh, run->mesh_text, sizeof run->mesh_text);
    run->all = ts_mesh_group(run->mesh, NULL);
    return run->all ? TS_OK : ts_rank_status(run->me);
}

static ts_model_config model_config(const ts_train_config *config, int64_t vocab)
{
    const tsi_model_keys *m = &config->model;
    ts_model_config c = { .struct_size = sizeof c };
    for (int32_t i = 0; tsi_family_names[i]; i++)
        if (strcmp(m->family, tsi_family_names[i]) == 0) c.family = i;
    c.vocab = m->vocab ? m->vocab : vocab;
    c.hidden = m->hidden;
    /* 8/3 of hidden gives SwiGLU as many parameters as 4 * hidden without a gate. */
    int64_t inner = c.family == TS_MODEL_GPT2 ? 4 * m->hidden : (8 * m->hidden / 3 + 15) / 16 * 16;
    c.intermediate = m->intermediate ? m->intermediate : inner;
    c.layers = m->layers;
    c.heads = m->heads;
    c.kv_heads = m->kv_heads ? m->kv_heads : m->heads;
    c.head_dim = m->head_dim ? m->head_dim : m->hidden / m->heads;
    c.positions = m->positions ? m->positions : config->data.context;
    c.experts = m->experts;
    c.experts_per_token = m->experts_per_token;
    c.expert_width = m->expert_width;
    c.route_sum = (int32_t)m->route_sum;
    c.shared_experts = m->shared_experts;
    c.expert_groups = m->expert_groups;
    c.groups_per_token = m->groups_per_token;
    c.dense_first = m->dense_first;
    c.route_scale = m->route_scale;
    c.q_rank = m->q_rank;
    c.kv_rank = m->kv_rank;
    c.plain_dim = m->plain_dim;
    c.value_dim = m->value_dim ? m->value_dim : m->plain_dim;
    c.rope_interleave = c.family == TS_MODEL_DEEPSEEK_V3;
    c.norm_epsilon = m->norm_epsilon;
    c.init_deviation = m->init_deviation;
    c.exact = 1;
    c.rope_theta = m->rope_theta;
    c.tied = m->tied >= 0 ? (int32_t)m->tied : c.family == TS_MODEL_GPT2;
    return c;
}

/* What every layer's backward makes again, or every n-th layer's. */
static ts_status recompute_layers(ts_model *model, const char *word)
{
    ts_recompute what = TS_RECOMPUTE_FULL;
    int64_t every = 1;
    if (strcmp(word, "none") == 0) return TS_OK;
    if (strcmp(word, "select") == 0)
        what = TS_RECOMPUTE_SELECT;
    else if (strcmp(word, "full") != 0)
        every = strtoll(word, NULL, 10);
    for (int64_t i = 1; i + 1 < ts_model_block_count(model); i += every)
        TSI_TRY(ts_module_checkpoint(ts_model_block(model, i), (int)what));
    return TS_OK;
}

/* With an axis fsdp every block is a unit; with an axis replicate alone, too, of gradients that are
 * reduced together. */
static ts_status shard_blocks(ts_model *model, ts_mesh *mesh, const char *reshard)
{
    ts_fsdp_options options = { .struct_size = sizeof options };
    if (ts_mesh_axis(mesh, "fsdp") < 0 && ts_mesh_axis(mesh, "replicate") < 0) return TS_OK;
    TSI_TRY(ts_reshard_parse(reshard, &options.reshard));
    return ts_model_fsdp(model, &options);
}

static ts_status wrap(ts_model *model, ts_mesh *mesh, const tsi_parallel_keys *keys)
{
    TSI_TRY(recompute_layers(model, keys->recompute));
    return shard_blocks(model, mesh, keys->reshard);
}

/* The words of parallel.attention were checked. */
static int32_t algorithm_of(const char *word)
{
    if (strcmp(word, "ring") == 0) return TS_ATTENTION_RING;
    if (strcmp(word, "gather") == 0) return TS_ATTENTION_GATHER;
    return strcmp(word, "heads") == 0 ? TS_ATTENTION_HEADS : TS_ATTENTION_AUTO;
}

static ts_status declare(const ts_train_config *c, ts_mesh *mesh, const tsi_declare_how *how,
                         ts_model **out)
{
    ts_model_options options = TS_INIT(ts_model_options);
    options.plan = c->parallel.plan[0] ? c->parallel.plan : NULL;
    options.dtype = ts_dtype_parse(c->model.dtype);
    options.compute = c->model.compute[0] ? (int32_t)ts_dtype_parse(c->model.compute) : 0;
    options.ep = c->parallel.ep;
    options.aux_loss = c->experts.aux_loss;
    options.sequence_loss = c->experts.sequence_loss;
    options.z_loss = c->experts.z_loss;
    options.bias_rate = c->experts.bias_rate;
    options.capacity = c->experts.capacity;
    options.count_loads = 1;
    options.attention = algorithm_of(c->parallel.attention);
    options.saves_cut = strcmp(c->parallel.saved, "sharded") == 0;
    options.loss_rows = c->train.loss_rows;
    ts_balance balance;
    TSI_TRY(ts_balance_parse(c->parallel.balance, &balance));
    options.balance = (int32_t)balance;
    *out = NULL;
    if (c->model.directory[0] && !how->without_weights) {
        *out = ts_model_open(mesh, c->model.directory, &options);
    } else {
        ts_model_config config = model_config(c, how->vocab);
        if (c->model.directory[0]) TSI_TRY(ts_model_config_read(c->model.directory, &config));
        *out = ts_model_declare(mesh, &config, &options);
    }
    return *out ? TS_OK : ts_rank_status(mesh->rank);
}

static ts_status find_trained(ts_module *m, tsi_param *param, const char *name, void *context)
{
    (void)m, (void)name;
    if (!param->frozen) *(bool *)context = true;
    return TS_OK;
}

static ts_status mark_adamw(const tsi_match *match, void *context)
{
    (void)context;
    match->param->adamw = 1;
    return TS_OK;
}

/* Before stages are cut: a stage has not all parameters that patterns are of. */
static ts_status leave_to_adamw(const ts_train_config *c, ts_model *model)
{
    const tsi_optimizer_keys *k = &c->optimizer;
    char item[TSI_CONFIG_TEXT_MAX];
    tsi_text lines = { 0 };
    bool says = k->muon_adamw[0] && strcmp(k->muon_adamw, "none") != 0;
    if (strcmp(k->kind, "muon") != 0 || !says) return TS_OK;
    for (int64_t i = 0; tsi_train_item(k->muon_adamw, i, item); i++)
        tsi_text_printf(&lines, "%s: adamw\n", item);
    char *text = tsi_text_take(&lines);
    if (!text) return tsi_fail_memory("the patterns of muon", sizeof item);
    ts_status status =
        tsi_module_match(ts_model_module(model),
                         &(tsi_match_list){ "optimizer.muon_adamw", text, mark_adamw, NULL });
    tsi_free(text);
    return status;
}

/* The lines of a configuration are separated by semicolons. */
static ts_status group_params(const ts_train_config *c, ts_model *model)
{
    char lines[sizeof c->optimizer.groups];
    TSI_TRY(leave_to_adamw(c, model));
    if (c->optimizer.groups[0] == '\0') return TS_OK;
    memcpy(lines, c->optimizer.groups, sizeof lines);
    for (char *at = lines; *at; at++)
        if (*at == ';') *at = '\n';
    ts_module *root = ts_model_module(model);
    TSI_TRY(ts_module_groups(root, lines));
    bool trained = false;
    TSI_TRY(tsi_module_visit(root, find_trained, &trained));
    if (trained) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG, "optimizer.groups: \"%s\" leaves nothing to train",
                    c->optimizer.groups);
}

ts_status tsi_train_declare(const ts_train_config *c, ts_mesh *mesh, const tsi_declare_how *how,
                            ts_model **out, tsi_stages **stages)
{
    bool staged = ts_mesh_axis(mesh, "pp") >= 0;
    ts_mesh *here = staged ? ts_pipeline_mesh(mesh, NULL) : ts_mesh_retain(mesh);
    ts_status status = here ? declare(c, here, how, out) : ts_rank_status(mesh->rank);
    if (status == TS_OK) status = group_params(c, *out);
    if (status == TS_OK) status = tsi_stages_open(c, mesh, *out, stages);
    if (status == TS_OK) status = wrap(*out, here, &c->parallel);
    ts_mesh_release(here);
    return status;
}

/* Declared, wrapped and planned; if it fits, read or begun. */
static ts_status make_model(tsi_run *run)
{
    const ts_train_config *c = run->config;
    tsi_declare_how how = { .vocab = ts_loader_vocabulary(run->loader) };
    TSI_TRY(tsi_train_declare(c, run->mesh, &how, &run->model, &run->stages));
    const ts_model_config *made = ts_model_configuration(run->model);
    if (made->vocab < ts_loader_vocabulary(run->loader))
        return TSI_FAIL(
            TS_ERR_ARG,
            "model.vocab: is %lld, the data has tokens up to %lld; it could be %lld, or "
            "0: as the data has",
            (long long)made->vocab, (long long)ts_loader_vocabulary(run->loader) - 1,
            (long long)ts_loader_vocabulary(run->loader));
    if (made->positions < c->data.context)
        return TSI_FAIL(TS_ERR_ARG, "data.context: is %lld, the model has %lld positions",
                        (long long)c->data.context, (long long)made->positions);
    TSI_TRY(tsi_measure_plan(run));
    TSI_TRY(tsi_limit_check(run, run->cost));
    TSI_TRY(tsi_limit_tell(run->me, &run->cost->memory));
    return ts_model_materialize(run->model);
}

static ts_status make_optimizer(tsi_run *run)
{
    const tsi_optimizer_keys *k = &run->config->optimizer;
    ts_module *root = ts_model_module(run->model);
    if (strcmp(k->kind, "sgd") == 0) {
        ts_sgd_options options = { .struct_size = sizeof options,
                                   .lr = k->rate,
                                   .momentum = k->momentum,
                                   .weight_decay = k->weight_decay,
                                   .nesterov = (int32_t)k->nesterov,
                                   .exact = 1 };
        run->optimizer = ts_sgd_create(root, &options);
    } else if (strcmp(k->kind, "muon") == 0) {
        ts_muon_options options = tsi_train_muon(run->config);
        run->optimizer = ts_muon_create(root, &options);
    } else {
        ts_adamw_options options = { .struct_size = sizeof options,
                                     .lr = k->rate,
                                     .beta1 = k->beta1,
                                     .beta2 = k->beta2,
                                     .epsilon = k->epsilon,
                                     .weight_decay = k->weight_decay,
                                     .exact = 1 };
        if (strcmp(k->moments, "bf16") == 0) options.moments = TS_DTYPE_BF16;
        run->optimizer = ts_adamw_create(root, &options);
    }
    return run->optimizer ? TS_OK : ts_rank_status(run->me);
}

static ts_status resume(tsi_run *run)
{
    run->id = tsi_hash_mix((uint64_t)tsi_clock_ns(), (uint64_t)getpid());
    run->id = tsi_hash_mix(run->id, (uint64_t)time(NULL));
    if (run->config->train.resume)
        TSI_TRY(tsi_state_load(run, &run->plan.step_first));
    else
        TSI_TRY(tsi_state_none(run));
    if (ts_rank_index(run->me) != 0) return TS_OK;
    char path[TSI_CONFIG_TEXT_MAX];
    TSI_TRY(tsi_train_path(run->config, "train.jsonl", path));
    run->history.run = run->id;
    TSI_TRY(tsi_history_open(&run->history, path, run->plan.step_first));
    if (!run->config->log.tensorboard) return TS_OK;
    TSI_TRY(tsi_train_path(run->config, "tensorboard", path));
    return tsi_tensorboard_open(&run->board, path);
}

/* Sums in an order of their own are NCCL's alone: a file that asks for them runs elsewhere, too. */
static void say_order(const tsi_run *run)
{
    const char *engine = ts_world_engine(ts_rank_world(run->me));
    bool native = strcmp(run->config->comm.reduce, "native") == 0;
    if (native && strcmp(engine, "nccl") != 0 && ts_rank_index(run->me) == 0)
        tsi_log(TSI_LOG_WARN,
                "comm.reduce: native is of the engine nccl; sums of the engine %s are in order",
                engine);
}

/* A trace of steps that are not run would be no file, or the one of a run before. */
static void say_trace(const tsi_run *run)
{
    const ts_train_config *c = run->config;
    int64_t first = run->plan.step_first + 1, last = tsi_last_step(c);
    if (run->trace_first == 0 || ts_rank_index(run->me) != 0) return;
    if (first > last)
        tsi_log(TSI_LOG_WARN, "log.trace: nothing is written: no step is left to run");
    else if (run->trace_first > last || run->trace_last < first)
        tsi_log(TSI_LOG_WARN,
                "log.trace: nothing is written: of %s none is among the steps %lld to "
                "%lld of this run",
                c->log.trace, (long long)first, (long long)last);
}

ts_status tsi_run_set_up(tsi_run *run)
{
    const ts_train_config *c = run->config;
    TSI_TRY(ts_train_config_check(c));
    say_order(run);
    TSI_TRY(make_mesh(run));
    if (ts_rank_index(run->me) == 0) TSI_TRY(tsi_output_open(run));
    TSI_TRY(tsi_run_data(run));
    TSI_TRY(tsi_eval_open(run));
    TSI_TRY(make_model(run));
    TSI_TRY(make_optimizer(run));
    TSI_TRY(resume(run));
    const tsi_rank_device *device = tsi_rank_device_of(run->me);
    tsi_keep keep;
    TSI_TRY(tsi_keep_parse(c->checkpoint.keep, &keep));
    TSI_TRY(tsi_trace_parse(c->log.trace, &run->trace_first, &run->trace_last));
    say_trace(run);
    tsi_state_room(run, tsi_last_step(c));
    run->keeps_best = keep.best > 0 && run->held_out.loader;
    run->late = run->options->late && device && !device->device->host_readable &&
                run->scale.every == 0 && !run->stages;
    ts_train_plan *p = &run->plan;
    p->mesh = run->mesh_text;
    p->plan = c->parallel.plan[0] ? c->parallel.plan : ts_model_plan_default(run->mesh);
    p->engine = ts_world_engine(ts_rank_world(run->me));
    p->device = ts_world_device(ts_rank_world(run->me));
    p->output = c->train.output;
    p->ranks = ts_rank_count(run->me);
    p->steps = c->train.steps;
    p->rows = c->train.batch;
    p->context = c->data.context;
    p->tokens_per_step = p->rows * p->context;
    p->data_tokens = ts_loader_tokens(run->loader);
    if (run->stages) tsi_run_staged_plan(run);
    return TS_OK;
}
