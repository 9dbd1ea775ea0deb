/* SPDX-License-Identifier: Apache-2.0 */
/* estimate.c - what a training step costs, before there was one: memory of a rank, FLOPs of a
 * token.
 *
 *   the model, wrapped --twin--> a world without data of as many ranks --> a step, as it is trained
 *                                (engine "model", device "none")           |
 *                                                  account of its pool, flops of its operators
 *
 * Nothing is known here of families, layers or operators: tensors are made, saved by the tape and
 * freed as in a step with numbers, because it is the same code; only kernels and messages do
 * nothing. Where ranks compute on the host, its kernels take and give back what they use while they
 * run (tsi_dry), as many threads as a rank will have. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "array/pool.h"
#include "base/alloc.h"
#include "base/error.h"
#include "base/intmath.h"
#include "base/launcher.h"
#include "base/thread.h"
#include "device/parallel.h"
#include "layout/mesh.h"
#include "model/model.h"
#include "nn/module.h"
#include "nn/optimizer.h"
#include "op/core/dispatch.h"
#include "parallel/unit.h"
#include "plan/topology.h"
#include "runtime/module_load.h"
#include "runtime/record.h"
#include "train/run.h"
#include "train/tracker.h"

enum { STACK_BYTES = 8 << 20, STEPS = 2 };

typedef struct described {
    const ts_model *model;         /* its twin is run; or NULL: */
    const ts_train_config *config; /* what this says */
    ts_train_shape shape;
    char *mesh;
    int64_t vocab;
    int64_t rank, ranks;
    bool together;        /* ranks are threads of one process */
    int32_t threads;      /* of a rank that computes on the host; 0: it does not */
    ts_topology topology; /* that moves are planned with */
    tsi_others others;
    bool saves_only;            /* a state is saved in the background, and no step runs */
    const tsi_program_how *how; /* a step is written down instead, to: */
    tsi_step *program;
    ts_train_cost cost;
    tsi_tracker tracker; /* of all steps, and of what comes before them */
    ts_status status;
    char error[512];
} described;

/* ---- one step -------------------------------------------------------------------------------- */

static ts_status no_token(const int64_t *global, void *element, void *context)
{
    (void)global, (void)context;
    *(int64_t *)element = 0;
    return TS_OK;
}

typedef struct no_tokens {
    ts_model *model;
    const ts_train_shape *shape;
} no_tokens;

static ts_tensor *tokens_of(void *context, int64_t shift)
{
    (void)shift;
    const no_tokens *n = context;
    int64_t length = n->shape->context;
    ts_meta meta = { .shape = TS_SHAPE(n->shape->rows, length), .dtype = TS_DTYPE_I64 };
    return ts_from_function(no_token, NULL, ts_model_tokens_of(n->model, length, NULL), meta);
}

static ts_status run_staged(const described *d, ts_model *m, tsi_stages *stages)
{
    no_tokens n = { m, &d->shape };
    tsi_part part = { .rows = d->shape.rows,
                      .context = d->shape.context,
                      .factor = 1.0 / d->shape.parts,
                      .tokens = tokens_of,
                      .of = &n };
    double loss;
    return tsi_stages_run(stages, &part, &loss);
}

/* As trainer.c does it. */
static ts_status run_part(ts_rank *me, ts_model *m, const ts_train_shape *shape, int32_t part)
{
    ts_scope scope = ts_scope_open(me, NULL);
    ts_tape_begin(me);
    no_tokens n = { m, shape };
    ts_tensor *mean = tsi_train_loss(&(tsi_rows_loss){ .model = m,
                                                       .ids = tokens_of(&n, 0),
                                                       .labels = tokens_of(&n, 1),
                                                       .rows = shape->rows,
                                                       .context = shape->context,
                                                       .z_loss = shape->z_loss,
                                                       .factor = 1.0 / shape->parts });
    ts_tensor *root = shape->parts > 1 ? ts_mul_scalar(mean, 1.0 / shape->parts) : mean;
    double loss;
    ts_status status = ts_tensor_item(mean, &loss);
    if (status == TS_OK)
        status = ts_backward(
            root, TS_OPTIONS(ts_backward_options, .lazy = tsi_train_waits(m, part, shape->parts)));
    ts_scope_close(scope);
    return status;
}

static ts_optimizer *optimizer_of(ts_model *m, const ts_train_shape *shape)
{
    ts_sgd_options sgd = { .struct_size = sizeof sgd, .momentum = 0.9 };
    ts_adamw_options adamw = { .struct_size = sizeof adamw, .moments = shape->moment_dtype };
    if (shape->muon.struct_size > 0) return ts_muon_create(m->root, &shape->muon);
    if (shape->moments <= 0) return NULL;
    return shape->moments == 1 ? ts_sgd_create(m->root, &sgd) : ts_adamw_create(m->root, &adamw);
}

static ts_status forget(const char *name, ts_tensor *parameter, void *context)
{
    (void)name, (void)context;
    if (!ts_tensor_grad(parameter)) return TS_OK;
    TSI_TRY(ts_grad_settle(parameter));
    return ts_tensor_grad_clear(parameter);
}

/* Gradients go as they do with an update: a step that is reset was none, and orders of units that
 * have no backward (frozen ones) would not be kept. */
static ts_status end_step(ts_model *m)
{
    return ts_module_each(m->root, forget, NULL);
}

/* What Muon turns is memory of the step, and travels; its products are none of a token's. */
static ts_status update(ts_rank *me, described *d, ts_optimizer *optimizer)
{
    tsi_op_state *state = tsi_op_state_of(me);
    if (!state) return ts_rank_status(me);
    tsi_tracker_phase(&d->tracker, "update");
    double flops = state->flops;
    ts_status status = ts_optimizer_step(optimizer);
    state->flops = flops;
    return status;
}

static ts_status run_step(ts_rank *me, described *d, ts_model *m, tsi_stages *stages,
                          ts_optimizer *optimizer)
{
    tsi_tracker_step(&d->tracker, "forward");
    for (int32_t part = 0; part < d->shape.parts; part++)
        TSI_TRY(stages ? run_staged(d, m, stages) : run_part(me, m, &d->shape, part));
    return d->shape.muon.struct_size > 0 ? update(me, d, optimizer) : end_step(m);
}

/* The first notes orders and fills caches; the last is what is counted. */
static ts_status run_steps(ts_rank *me, described *d, ts_model *m, tsi_stages *stages,
                           ts_optimizer *optimizer)
{
    ts_modelled before = { .struct_size = sizeof before }, after = before;
    tsi_traffic traffic;
    tsi_beside beside = { .me = me };
    tsi_account account;
    tsi_curve curve = { .me = me };
    for (int32_t step = 0; step + 1 < STEPS; step++)
        TSI_TRY(run_step(me, d, m, stages, optimizer));
    TSI_TRY(ts_rank_modelled(me, &before));
    TSI_TRY(tsi_account_begin(&account, me));
    d->cost.ranks = d->ranks;
    ts_status status = tsi_traffic_begin(&traffic, tsi_model_mesh(m));
    if (status == TS_OK) status = tsi_beside_begin(&beside, me, &traffic);
    if (status == TS_OK) status = tsi_curve_begin(&curve, me, &d->cost.curve);
    if (status == TS_OK) status = run_step(me, d, m, stages, optimizer);
    tsi_curve_end(&curve);
    tsi_beside_end(&beside, &d->cost);
    tsi_traffic_end(&traffic);
    tsi_account_end(&account, &d->cost);
    TSI_TRY(status);
    TSI_TRY(ts_rank_modelled(me, &after));
    d->cost.comm_seconds = after.seconds - before.seconds;
    d->cost.traffic_count = traffic.count;
    memcpy(d->cost.traffic, traffic.row, sizeof d->cost.traffic);
    return TS_OK;
}

/* ---- the account ----------------------------------------------------------------------------- */

/* Gradients lie as their parameters, in their dtype. */
static ts_status add_gradient(const char *name, ts_tensor *parameter, void *context)
{
    (void)name;
    tsi_block block = tsi_array_block(parameter->array);
    if (tsi_leaf_of(parameter))
        *(int64_t *)context +=
            tsi_block_count(&block) * (int64_t)ts_dtype_size(ts_tensor_dtype(parameter));
    return TS_OK;
}

static ts_status first_dtype(ts_module *module, tsi_param *param, const char *name, void *context)
{
    (void)module, (void)name;
    int32_t *dtype = context;
    if (*dtype == 0) *dtype = param->dtype;
    return TS_OK;
}

/* 1: there is no such axis. A model's mesh is asked and not its text: experts may have split an
 * axis of it ("fsdp=2, ep=2"), and no configuration names that one. */
static int64_t ranks_along(const ts_mesh *mesh, const char *axis)
{
    int64_t size = ts_mesh_size(mesh, axis);
    return size > 0 ? size : 1;
}

/* Even shares; what a micro-batch has of the rows, in a pipeline. */
static ts_train_sizes sizes_of(const described *d, const ts_model *m)
{
    const ts_mesh *mesh = tsi_model_mesh(m);
    int32_t dtype = m->compute;
    (void)tsi_module_visit(m->root, first_dtype, &dtype);
    int64_t tp = ranks_along(mesh, "tp"), stages = ranks_along(mesh, "pp"), micros = 1;
    if (stages > 1 && d->config) micros = d->config->parallel.micro_batches;
    int64_t shares = d->ranks / tp / stages * micros, tokens = d->shape.rows * d->shape.context;
    const ts_model_config *c = &m->config;
    return (ts_train_sizes){ .rows = tsi_ceil_div(tokens, shares > 0 ? shares : 1),
                             .hidden = c->hidden,
                             .inner = tsi_ceil_div(c->intermediate, tp),
                             .context = d->shape.context,
                             .heads = tsi_ceil_div(c->heads, tp),
                             .head_dim = c->head_dim,
                             .dtype = dtype };
}

/* Pieces of a cut are alike, or the last ones are smaller. */
static bool last_has_less(const ts_layout *layout, const ts_mesh *mesh)
{
    int64_t last[TS_NDIM_MAX] = { 0 };
    for (int32_t k = 0; k < ts_mesh_ndim(mesh); k++)
        last[k] = ts_mesh_axis_size(mesh, k) - 1;
    ts_shape here = ts_layout_local(layout, mesh->coord), there = ts_layout_local(layout, last);
    return ts_shape_count(&there) < ts_shape_count(&here);
}

static ts_status compare_param(const char *name, ts_tensor *parameter, void *context)
{
    (void)name;
    *(bool *)context |= last_has_less(parameter->layout, parameter->mesh);
    return TS_OK;
}

/* Ranks that have as much of every parameter and of the tokens do the same, unless they have other
 * pieces of the sequence: attention sees less of it from one than from another. */
static ts_status find_difference(described *d, ts_model *m)
{
    ts_shape tokens = TS_SHAPE(d->shape.rows, d->shape.context);
    const ts_layout *layout = tsi_layout_intern(m->tokens, &tokens);
    if (!layout) return ts_rank_status(m->rank);
    d->others.last = last_has_less(layout, m->mesh) || ranks_along(m->mesh, "cp") > 1 ||
                     ranks_along(m->mesh, "ep") > 1;
    ts_layout_release(layout);
    return ts_module_each(m->root, compare_param, &d->others.last);
}

static ts_status account(ts_rank *me, described *d, ts_model *m)
{
    const tsi_pool *pool = tsi_pool_of(me);
    const tsi_op_state *state = tsi_op_state_of(me);
    if (!pool || !state) return ts_rank_status(me);
    ts_train_cost *c = &d->cost;
    double tokens = (double)d->shape.rows * (double)d->shape.context;
    TSI_TRY(ts_module_each(m->root, add_gradient, &c->gradient_bytes));
    c->parameters = ts_module_count(m->root);
    c->sizes = sizes_of(d, m);
    c->tokens = d->shape.rows * d->shape.context * d->shape.parts;
    c->memory.struct_size = sizeof c->memory;
    TSI_TRY(ts_rank_memory(me, &c->memory));
    c->flops_per_token = state->flops / (tokens * d->shape.parts * STEPS);
    c->weight_bytes = tsi_pool_used(pool, TSI_TAG_PARAMETER).live;
    c->optimizer_bytes = tsi_pool_used(pool, TSI_TAG_OPTIMIZER).live;
    TSI_TRY(find_difference(d, m));
    int64_t states = c->weight_bytes + c->optimizer_bytes + c->gradient_bytes;
    c->activation_bytes = tsi_pool_used(pool, -1).peak - states;
    if (c->activation_bytes < 0) c->activation_bytes = 0; /* a rank without rows has no gradients */
    return tsi_describe_model(m, c);
}

/* ---- the step itself ------------------------------------------------------------------------- */

static ts_status run_trained(ts_rank *me, const described *d, ts_model *m, tsi_stages *stages,
                             ts_optimizer *optimizer)
{
    for (int32_t part = 0; part < d->shape.parts; part++)
        TSI_TRY(stages ? run_staged(d, m, stages) : run_part(me, m, &d->shape, part));
    return optimizer ? ts_optimizer_step(optimizer) : end_step(m);
}

/* Several moments may be the largest: kinds and modules are those of the same one. */
static void sum_kinds(const ts_train_peak *peak, int64_t *kind)
{
    memset(kind, 0, TS_MEMORY_KINDS * sizeof *kind);
    for (int32_t i = 0; i < peak->row_count; i++)
        for (int k = 0; k < TS_MEMORY_KINDS; k++)
            kind[k] += peak->row[i].bytes[k];
}

/* What the pool held at most, counted as the step counts: with what was there before it. */
static void note_peak(tsi_step *step, int64_t rank, int64_t rise)
{
    tsi_step_list *list = rank < step->list_count ? &step->list[rank] : NULL;
    for (int32_t v = 0; list && v < list->value_count; v++)
        rise += list->value[v].life & TSI_LIFE_TAKEN ? tsi_held_bytes(&list->value[v]) : 0;
    if (list) list->peak = rise;
}

/* The second step: orders are known and caches full. */
static ts_status record_step(ts_rank *me, described *d, ts_model *m, tsi_stages *stages,
                             ts_optimizer *optimizer)
{
    tsi_recording *recording = NULL;
    tsi_pool *pool = tsi_pool_of(me);
    if (!pool) return ts_rank_status(me);
    TSI_TRY(run_trained(me, d, m, stages, optimizer));
    tsi_pool_peak_reset(pool);
    int64_t before = tsi_pool_used(pool, -1).live;
    TSI_TRY(tsi_record_begin(me, &recording));
    tsi_record_kernels(recording, d->how->flops_per_second, d->how->bytes_per_second);
    ts_status status = run_trained(me, d, m, stages, optimizer);
    ts_status written = tsi_record_end(recording, &d->program);
    if (status == TS_OK) status = written;
    if (status == TS_OK) note_peak(d->program, d->rank, tsi_pool_used(pool, -1).peak - before);
    return status;
}

static ts_status count_steps(ts_rank *me, described *d, ts_model *m, tsi_stages *stages,
                             ts_optimizer *optimizer)
{
    TSI_TRY(run_steps(me, d, m, stages, optimizer));
    TSI_TRY(account(me, d, m));
    d->others.most = d->others.least = -1;
    if (optimizer) TSI_TRY(tsi_muon_range(optimizer, &d->others.most, &d->others.least));
    TSI_TRY(tsi_tracker_end(&d->tracker, m->root, optimizer, &d->cost.peak));
    sum_kinds(&d->cost.peak, d->cost.memory.at_peak);
    return TS_OK;
}

static ts_status run_all(ts_rank *me, described *d, ts_model *m, ts_mesh *mesh, tsi_stages *stages,
                         ts_optimizer *optimizer)
{
    ts_state *state = NULL; /* its copy stays for the next save, so that steps hold it too */
    if (d->how) return record_step(me, d, m, stages, optimizer);
    ts_status status = TS_OK;
    d->cost.memory.struct_size = sizeof d->cost.memory;
    if (d->shape.saves_behind) status = tsi_state_behind(mesh, m, optimizer, &state);
    if (status == TS_OK && d->saves_only) status = ts_rank_memory(me, &d->cost.memory);
    if (status == TS_OK && !d->saves_only) status = count_steps(me, d, m, stages, optimizer);
    ts_state_destroy(state);
    return status;
}

static ts_status work(ts_rank *me, void *argument)
{
    described *d = argument;
    me->world->together = d->together;
    me->world->scratch = d->threads > 0;
    if (d->threads > 0) tsi_parallel_limit(me, d->threads);
    TSI_TRY(ts_topology_set(me->world, &d->topology));
    ts_mesh *mesh = ts_mesh_create(me, d->mesh);
    tsi_declare_how how = { .vocab = d->vocab, .without_weights = 1 };
    ts_model *twin = mesh && d->model ? tsi_model_twin(d->model, mesh) : NULL;
    ts_status status = mesh ? TS_OK : ts_rank_status(me);
    tsi_stages *stages = NULL;
    if (mesh && !d->model) status = tsi_train_declare(d->config, mesh, &how, &twin, &stages);
    if (stages) tsi_stages_tell(stages, d->config, &d->cost);
    if (status == TS_OK && !twin) status = ts_rank_status(me);
    if (status == TS_OK && !d->how) status = tsi_tracker_begin(&d->tracker, me, twin->root);
    if (status == TS_OK) status = ts_model_materialize(twin);
    ts_optimizer *optimizer = status == TS_OK ? optimizer_of(twin, &d->shape) : NULL;
    if (status == TS_OK) status = run_all(me, d, twin, mesh, stages, optimizer);
    tsi_tracker_release(&d->tracker);
    ts_optimizer_destroy(optimizer);
    tsi_stages_close(stages);
    ts_model_destroy(twin);
    ts_mesh_release(mesh);
    return status;
}

/* A thread is one rank at a time, and the caller's is one already. */
static void *describe(void *argument)
{
    described *d = argument;
    ts_world_options options = { .struct_size = sizeof options,
                                 .engine = "model",
                                 .rank_count = d->ranks,
                                 .model_ranks = &d->rank,
                                 .model_rank_count = 1 };
    d->status = ts_launch_with(&options, work, d, d->error, sizeof d->error);
    return NULL;
}

/* The caller frees; NULL: there is no memory for it. */
static char *mesh_text_of(const ts_mesh *mesh)
{
    size_t length = ts_mesh_text(mesh, NULL, 0);
    char *text = length > 0 ? tsi_alloc(length + 1) : NULL;
    if (text && ts_mesh_text(mesh, text, length + 1) == length) return text;
    tsi_free(text);
    return NULL;
}

/* Waits for the world without data. */
static ts_status run_described(described *d)
{
    pthread_t thread;
    TSI_TRY(tsi_thread_start(&thread, describe, d, STACK_BYTES));
    pthread_join(thread, NULL);
    return d->status == TS_OK ? TS_OK : TSI_FAIL(d->status, "estimate: %s", d->error);
}

ts_status ts_train_estimate(ts_model *model, const ts_train_shape *shape, ts_train_cost *out)
{
    if (!model || !shape || !out) return TSI_FAIL(TS_ERR_NULL, "estimate: an argument is NULL");
    *out = (ts_train_cost){ .struct_size = sizeof *out };
    TSI_TRY(tsi_rank_enter(model->rank));
    ts_train_shape given = { .struct_size = sizeof given };
    memcpy(&given, shape, shape->struct_size < sizeof given ? shape->struct_size : sizeof given);
    described d = { .model = model,
                    .shape = given,
                    .rank = ts_rank_index(model->rank),
                    .ranks = ts_rank_count(model->rank),
                    .together = tsi_world_shares(model->rank->world),
                    .threads = tsi_train_threads(model->rank),
                    .cost = *out };
    if (d.shape.rows < 1 || d.shape.context < 1)
        return TSI_FAIL(TS_ERR_ARG, "estimate: %lld rows of %lld are no step",
                        (long long)d.shape.rows, (long long)d.shape.context);
    if (d.shape.parts < 1) d.shape.parts = 1;
    TSI_TRY(ts_topology_of(model->rank->world, &d.topology));
    d.mesh = mesh_text_of(model->mesh);
    if (!d.mesh) return tsi_fail_memory("the text of a mesh", 64);
    ts_status status = run_described(&d);
    tsi_free(d.mesh);
    if (status == TS_OK) *out = d.cost;
    return status;
}

ts_train_shape tsi_train_shape(const ts_train_config *c)
{
    bool adamw = strcmp(c->optimizer.kind, "adamw") == 0;
    bool narrow = strcmp(c->optimizer.moments, "bf16") == 0;
    bool muon = strcmp(c->optimizer.kind, "muon") == 0;
    return (ts_train_shape){ .struct_size = sizeof(ts_train_shape),
                             .muon = muon ? tsi_train_muon(c) : (ts_muon_options){ 0 },
                             .rows = c->train.batch / c->train.accumulate,
                             .context = c->data.context,
                             .moments = adamw ? 2 : c->optimizer.momentum != 0,
                             .parts = (int32_t)c->train.accumulate,
                             .moment_dtype = narrow ? TS_DTYPE_BF16 : 0,
                             .saves_behind = (int32_t)c->checkpoint.async,
                             .z_loss = c->train.z_loss };
}

/* Ranks that this machine would run as threads. More of them are those of a cluster, and share no
 * memory. */
static bool fits_here(int64_t ranks)
{
    return !tsi_launcher_find().variable && ranks <= tsi_core_count();
}

int32_t tsi_train_threads(ts_rank *rank)
{
    return tsi_world_device(rank->world)->host_readable ? tsi_parallel_threads(rank) : 0;
}

/* As worlds of this process choose their device. */
static const char *device_of(const ts_train_config *config)
{
    const char *device = config->train.device, *said = getenv("TESSERA_DEVICE");
    if (strcmp(device, "auto") == 0 && said && said[0] != '\0') device = said;
    return strcmp(device, "auto") == 0 ? tsi_module_device_auto(NULL, 0)->kind : device;
}

/* Of a world that is there, or that the configuration asks for; GPUs are taken for eight a node. */
static ts_status topology_of(const ts_train_config *config, ts_world *world, int64_t ranks,
                             ts_topology *out)
{
    enum { GPUS = 8 };
    const char *asked = config->parallel.topology, *said = getenv("TESSERA_TOPOLOGY");
    if (world) return ts_topology_of(world, out);
    if (strcmp(asked, "auto") == 0 && said && said[0] != '\0') asked = said;
    if (strcmp(asked, "auto") != 0) return ts_topology_load(asked, out);
    bool cuda = strncmp(device_of(config), "cuda", strlen("cuda")) == 0;
    return tsi_topology_for(cuda ? "cuda" : "cpu", cuda ? GPUS : 0, ranks, out);
}

ts_status tsi_train_estimate_rank(const ts_train_config *config, const tsi_described *of,
                                  ts_train_cost *out)
{
    ts_roles roles;
    TSI_TRY(ts_roles_parse(config->parallel.mesh, &roles));
    *out = (ts_train_cost){ .struct_size = sizeof *out };
    described d = { .config = config,
                    .shape = tsi_train_shape(config),
                    .mesh = tsi_strdup(config->parallel.mesh),
                    .vocab = of->vocab,
                    .rank = of->rank,
                    .ranks = roles.ranks,
                    .together = of->together,
                    .threads = of->threads,
                    .saves_only = of->saves_only,
                    .cost = *out };
    if (!d.mesh) return tsi_fail_memory("the text of a mesh", 64);
    ts_status status = topology_of(config, of->world, d.ranks, &d.topology);
    if (status == TS_OK) status = run_described(&d);
    tsi_free(d.mesh);
    if (status == TS_OK) *out = d.cost;
    if (status == TS_OK && of->others) *of->others = d.others;
    return status;
}

ts_status tsi_train_record_rank(const ts_train_config *config, int64_t rank,
                                const tsi_program_how *how, tsi_step **out)
{
    ts_roles roles;
    *out = NULL;
    TSI_TRY(ts_roles_parse(config->parallel.mesh, &roles));
    described d = { .config = config,
                    .shape = tsi_train_shape(config),
                    .mesh = tsi_strdup(config->parallel.mesh),
                    .vocab = how->vocab,
                    .rank = rank,
                    .ranks = roles.ranks,
                    .how = how };
    if (!d.mesh) return tsi_fail_memory("the text of a mesh", 64);
    ts_status status = topology_of(config, NULL, d.ranks, &d.topology);
    if (status == TS_OK) status = run_described(&d);
    tsi_free(d.mesh);
    if (status == TS_OK)
        *out = d.program;
    else
        tsi_step_destroy(d.program);
    return status;
}

/* Where the configuration leaves the vocabulary to the data: the tokenizer's. */
ts_status tsi_train_vocabulary(const ts_train_config *c, int64_t *vocab)
{
    ts_tokenizer *tokenizer = NULL;
    *vocab = c->model.vocab;
    if (*vocab > 0 || c->model.directory[0]) return TS_OK;
    if (ts_tokenizer_open(c->data.tokenizer, &tokenizer) != TS_OK)
        return TSI_FAIL(TS_ERR_ARG,
                        "model.vocab: is not said, and the tokenizer \"%.200s\" cannot say it",
                        c->data.tokenizer);
    *vocab = ts_tokenizer_vocabulary(tokenizer);
    ts_tokenizer_close(tokenizer);
    return TS_OK;
}

/* How far apart neighbours along pp are among the ranks; 0: there is no such axis. */
static ts_status pipeline_stride(const char *mesh, int64_t *out)
{
    tsi_cursor cursor = tsi_cursor_of("mesh", mesh);
    tsi_mesh_desc draft = { 0 };
    int32_t star;
    *out = 0;
    TSI_TRY(tsi_mesh_parse_axes(&cursor, &draft, &star));
    for (int32_t k = 0; k < draft.ndim; k++) {
        if (strcmp(draft.name[k], "pp") == 0)
            *out = 1;
        else
            *out *= draft.size[k];
    }
    return TS_OK;
}

/* A rank among those before: *most is that with most, and knows which has least. */
static void see_rank(const ts_train_cost *one, int64_t rank, ts_train_cost *most)
{
    int64_t least = most->least_bytes, who = most->rank_least;
    bool first = most->ranks == 0;
    if (first || one->memory.peak > most->memory.peak) {
        *most = *one;
        most->rank_most = rank;
    }
    bool less = first || one->memory.peak < least;
    most->least_bytes = less ? one->memory.peak : least;
    most->rank_least = less ? rank : who;
}

/* The first rank of a stage has the largest pieces; where others may hold more or less they are
 * looked at too. *one: the first; `last`: the rank of the same stage that has the last of every
 * axis. */
static ts_status see_stage(const ts_train_config *config, const tsi_described *first, int64_t last,
                           ts_train_cost *one, ts_train_cost *most)
{
    tsi_described of = *first;
    tsi_others others = { 0 };
    of.others = &others;
    TSI_TRY(tsi_train_estimate_rank(config, &of, one));
    see_rank(one, of.rank, most);
    of.others = NULL;
    const int64_t rank[] = { others.last ? last : -1, others.most, others.least };
    ts_train_cost *other = tsi_alloc(sizeof *other);
    ts_status status = other ? TS_OK : tsi_fail_memory("a plan", sizeof *other);
    for (size_t i = 0; i < TSI_COUNT_OF(rank) && status == TS_OK; i++) {
        of.rank = rank[i];
        bool seen = of.rank < 0 || of.rank == first->rank || (i > 0 && of.rank == rank[0]);
        if (!seen) status = tsi_train_estimate_rank(config, &of, other);
        if (!seen && status == TS_OK) see_rank(other, of.rank, most);
    }
    tsi_free(other);
    return status;
}

/* The rank with most of all places along pp; work and parameters are of all of them. */
static ts_status forecast_stages(const ts_train_config *config, const tsi_described *first,
                                 int64_t places, int64_t ranks, ts_train_cost *out)
{
    ts_train_cost most = { 0 }, one, params = { 0 };
    int64_t stride, peak[TS_TRAIN_PLACES_MAX] = { 0 };
    double flops = 0, products = 0, attention = 0, bytes = 0;
    TSI_TRY(pipeline_stride(config->parallel.mesh, &stride));
    for (int64_t at = 0; at < places; at++) {
        tsi_described of = *first;
        of.rank = at * stride;
        TSI_TRY(see_stage(config, &of, ranks - 1 - (places - 1 - at) * stride, &one, &most));
        if (at == 0) params = one;
        tsi_describe_merge(&params, &one);
        if (at < TS_TRAIN_PLACES_MAX) peak[at] = one.memory.peak;
        flops += one.flops_per_token;
        products += one.product_flops; /* a rank's share of what its places do together */
        attention += one.attention_flops;
        bytes += (double)one.touched_bytes / (double)places;
    }
    *out = most;
    out->product_flops = products;
    out->attention_flops = attention;
    out->touched_bytes = (int64_t)bytes;
    memcpy(out->param, params.param, sizeof out->param);
    out->flops_per_token = flops;
    out->place_count = places < TS_TRAIN_PLACES_MAX ? places : TS_TRAIN_PLACES_MAX;
    memcpy(out->place_bytes, peak, sizeof peak);
    return TS_OK;
}

/* What the schedule alone says. */
static ts_status forecast_schedule(const ts_train_config *config, int64_t places,
                                   ts_train_cost *out)
{
    ts_schedule *schedule = NULL;
    ts_schedule_costs costs = { .struct_size = sizeof costs };
    ts_schedule_times times = { .struct_size = sizeof times };
    TSI_TRY(tsi_stages_schedule(config, places, &schedule));
    ts_status status = ts_schedule_simulate(schedule, &costs, &times, NULL, NULL, NULL);
    out->bubble = times.fraction;
    out->stages = ts_schedule_stages(schedule);
    out->micro_batches = ts_schedule_micro_batches(schedule);
    ts_schedule_destroy(schedule);
    return status;
}

/* The first of so many ranks. */
static ts_status describe_first(const ts_train_config *config, int64_t ranks, tsi_described *of)
{
    *of = (tsi_described){ .together = fits_here(ranks) };
    bool processes = tsi_launcher_find().variable != NULL; /* a rank each */
    if (strcmp(device_of(config), "cpu") == 0)
        of->threads = tsi_parallel_default(processes ? 1 : ranks);
    return tsi_train_vocabulary(config, &of->vocab);
}

ts_status tsi_forecast_whole(const ts_train_config *config, ts_train_cost *out)
{
    ts_roles roles;
    tsi_described of;
    *out = (ts_train_cost){ .struct_size = sizeof *out };
    TSI_TRY(ts_roles_parse(config->parallel.mesh, &roles));
    TSI_TRY(describe_first(config, roles.ranks, &of));
    int64_t places = roles.size[TS_ROLE_PIPELINE];
    if (places > 0) {
        TSI_TRY(forecast_stages(config, &of, places, roles.ranks, out));
        return forecast_schedule(config, places, out);
    }
    ts_train_cost *one = tsi_alloc(sizeof *one);
    if (!one) return tsi_fail_memory("a plan", sizeof *one);
    ts_status status = see_stage(config, &of, roles.ranks - 1, one, out);
    tsi_free(one);
    return status;
}

ts_status tsi_train_staging(const ts_train_config *config, int64_t rank, int64_t *bytes)
{
    ts_roles roles;
    tsi_described of;
    TSI_TRY(ts_roles_parse(config->parallel.mesh, &roles));
    TSI_TRY(describe_first(config, roles.ranks, &of));
    of.rank = rank;
    of.saves_only = true;
    ts_train_cost *cost = tsi_alloc(sizeof *cost);
    if (!cost) return tsi_fail_memory("a plan", sizeof *cost);
    ts_status status = tsi_train_estimate_rank(config, &of, cost);
    *bytes = status == TS_OK ? cost->memory.most[TS_MEMORY_STAGING] : 0;
    tsi_free(cost);
    return status;
}

ts_status ts_train_forecast(const ts_train_config *config, ts_train_cost *out)
{
    enum { MANY = 512 }; /* ranks; with fewer all layers are quick, but for rows to experts */
    if (!config || !out) return TSI_FAIL(TS_ERR_NULL, "forecast: an argument is NULL");
    *out = (ts_train_cost){ .struct_size = sizeof *out };
    TSI_TRY(tsi_train_config_meaning(config));
    ts_roles roles;
    TSI_TRY(ts_roles_parse(config->parallel.mesh, &roles));
    if (roles.ranks == 0)
        return TSI_FAIL(TS_ERR_ARG,
                        "parallel.mesh: \"%s\" has an axis \"*\", and there are no ranks",
                        config->parallel.mesh);
    if ((roles.ranks >= MANY || config->parallel.ep > 1) && roles.size[TS_ROLE_PIPELINE] == 0 &&
        tsi_forecast_by_layers(config, tsi_forecast_whole, out))
        return TS_OK;
    return tsi_forecast_whole(config, out);
}
