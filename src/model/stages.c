/* SPDX-License-Identifier: Apache-2.0 */
/* stages.c - a model as stages of a pipeline: its blocks in order, one tensor between two stages.
 *
 * Every rank declares the whole tree. Blocks of its own stages lie on the mesh without the
 * pipeline's axis; those of another stage on that stage's mesh, which this rank is outside of: it
 * knows their names, shapes and placements, and holds nothing of them. So lists of parameters are
 * alike on all ranks, for files and optimisers too. A head that is the embedding's weight is held
 * by both ends. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "layout/mesh.h"
#include "model/model.h"
#include "parallel/pipeline.h"

struct tsi_model_stages {
    ts_model *model;
    ts_pipeline *pipeline; /* NULL: it ended */
    ts_mesh *mesh;         /* with the axis, retained */
    ts_model_pipeline_options options;
    ts_tensor *ids;    /* whose logits are asked for, out of turn; or NULL */
    ts_tensor *logits; /* of them, retained, on ranks of the last stage */
    int64_t *size;     /* [micro-batches]: of such a turn */
};

typedef struct cutting {
    ts_model *model;
    const ts_model_pipeline_options *options;
    int64_t stage_count;
    int64_t *blocks; /* [stage] */
    ts_stage *stage;
    ts_stage_input *input;
    int64_t at; /* this rank on the axis */
} cutting;

/* ---- cutting --------------------------------------------------------------------------------- */

/* As said, or as even as can be. */
static ts_status count_blocks(cutting *c)
{
    const ts_model *m = c->model;
    int64_t sum = 0;
    if (!c->options->blocks) return ts_stage_cut(NULL, m->block_count, c->stage_count, c->blocks);
    for (int64_t g = 0; g < c->stage_count; g++) {
        c->blocks[g] = c->options->blocks[g];
        sum += c->blocks[g];
        if (c->blocks[g] < 1)
            return TSI_FAIL(TS_ERR_ARG, "stages: stage %lld has %lld blocks; it needs one",
                            (long long)g, (long long)c->blocks[g]);
    }
    if (sum == m->block_count) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG, "stages: %lld blocks in all, the model has %lld", (long long)sum,
                    (long long)m->block_count);
}

static void fill_stages(cutting *c)
{
    ts_model *m = c->model;
    int64_t first = 0;
    for (int64_t g = 0; g < c->stage_count; g++) {
        bool here = ts_schedule_rank_of(c->options->schedule, g) == c->at;
        c->input[g] = (ts_stage_input){ (int32_t)g - 1, 0 };
        c->stage[g] = (ts_stage){ .module = here ? &m->block[first] : NULL,
                                  .module_count = c->blocks[g],
                                  .input = &c->input[g],
                                  .input_count = 1,
                                  .output_count = 1 };
        for (int64_t i = 0; i < c->blocks[g]; i++)
            m->here[first + i] = here;
        first += c->blocks[g];
    }
}

/* The mesh of the stages at place `at` of the axis: the model's, with each rank's neighbour there.
 * A handle of the rank's; NULL: recorded. */
static ts_mesh *mesh_at(const cutting *c, int64_t at)
{
    const tsi_mesh_desc *here = c->model->mesh->desc, *all = c->options->mesh->desc;
    int32_t axis = tsi_mesh_desc_axis(all, "pp");
    tsi_mesh_desc draft = { .ndim = here->ndim, .count = here->count }, *there = NULL;
    memcpy(draft.size, here->size, sizeof draft.size);
    memcpy(draft.name, here->name, sizeof draft.name);
    int64_t *rank = tsi_alloc_array((size_t)here->count, sizeof *rank), coord[TS_NDIM_MAX];
    if (!rank) {
        tsi_fail_memory("the ranks of a stage", (size_t)here->count * sizeof *rank);
        return NULL;
    }
    for (int64_t i = 0; i < here->count; i++) {
        tsi_mesh_desc_unravel(here, i, coord);
        (void)ts_mesh_coord_of(c->options->mesh, tsi_mesh_desc_rank(here, coord), coord);
        coord[axis] = at;
        rank[i] = tsi_mesh_desc_rank(all, coord);
    }
    (void)tsi_mesh_settle(all->world, &draft, rank, &there);
    tsi_free(rank);
    ts_mesh *mesh = there ? tsi_mesh_of(c->model->rank, there) : NULL;
    tsi_mesh_desc_release(there);
    return mesh;
}

/* The tree below lies there; but for one part of it. */
static void move_tree(ts_module *m, ts_mesh *mesh, const ts_module *stays)
{
    if (m == stays) return;
    ts_mesh *before = m->mesh;
    m->mesh = ts_mesh_retain(mesh);
    ts_mesh_release(before);
    for (ts_module *child = m->first; child; child = child->next)
        move_tree(child, mesh, stays);
}

/* Blocks of other stages go to their meshes. */
static ts_status move_blocks(cutting *c, const ts_module *stays)
{
    int64_t first = 0;
    for (int64_t g = 0; g < c->stage_count; first += c->blocks[g++]) {
        int64_t at = ts_schedule_rank_of(c->options->schedule, g);
        if (at == c->at) continue;
        ts_mesh *there = mesh_at(c, at);
        if (!there) return ts_rank_status(c->model->rank);
        for (int64_t i = 0; i < c->blocks[g]; i++)
            move_tree(c->model->block[first + i], there, stays);
    }
    return TS_OK;
}

typedef struct first_param {
    ts_module *module;
    ts_tensor *value;
    char name[TSI_PARAM_NAME_MAX];
} first_param;

static ts_status take_first(ts_module *m, tsi_param *param, const char *name, void *context)
{
    first_param *found = context;
    if (found->value) return TS_OK;
    found->module = m;
    found->value = param->value;
    (void)snprintf(found->name, sizeof found->name, "%s", name);
    return TS_OK;
}

/* The weight of the embedding, which is the head's too; its module has no other parameter. */
static ts_status find_tied(ts_model *m, first_param *out)
{
    *out = (first_param){ 0 };
    if (!m->config.tied) return TS_OK;
    return tsi_module_visit(m->block[0], take_first, out);
}

/* Where on the axis the tied weight is written from: the writer, at the beginning of it, cannot get
 * another's while it holds its own. */
static int64_t tied_writer(const cutting *c)
{
    const ts_schedule *schedule = c->options->schedule;
    return ts_schedule_rank_of(schedule, c->stage_count - 1) == 0
               ? 0
               : ts_schedule_rank_of(schedule, 0);
}

/* ---- what the pipeline asks ------------------------------------------------------------------ */

static ts_tensor *give_input(void *context, ts_rank *me, int64_t micro, int32_t index)
{
    const tsi_model_stages *s = context;
    ts_tensor *ids = s->ids;
    if (!ids && s->options.input) ids = s->options.input(s->options.context, me, micro, index);
    return ids && tsi_model_follow(s->model, ids) == TS_OK ? ids : NULL;
}

static ts_tensor *take_output(void *context, ts_rank *me, int64_t micro, ts_tensor *const *output,
                              int32_t count)
{
    tsi_model_stages *s = context;
    if (!s->ids && !s->options.loss) return NULL;
    if (!s->ids) return s->options.loss(s->options.context, me, micro, output, count);
    s->logits = ts_tensor_retain(output[0]);
    return NULL;
}

static ts_status begin_micro(void *context, ts_rank *me, int64_t micro)
{
    const tsi_model_stages *s = context;
    if (s->ids) return TS_OK;
    return s->options.begin ? s->options.begin(s->options.context, me, micro) : TS_OK;
}

/* Between two blocks there are activations of the ids' rows and tokens. */
static ts_status shape_of(void *context, ts_rank *me, int64_t micro, const ts_stage_input *of,
                          ts_meta *meta, const ts_sharding **lies)
{
    const tsi_model_stages *s = context;
    const ts_model *m = s->model;
    ts_shape ids = { 0 };
    first_param first = { 0 };
    (void)of;
    TSI_TRY(begin_micro(context, me, micro));
    if (s->ids)
        ids = ts_tensor_shape(s->ids);
    else
        TSI_TRY(s->options.shape(s->options.context, me, micro, &ids));
    TSI_TRY(tsi_module_visit(m->block[0], take_first, &first));
    tsi_param *param = tsi_param_of(first.value);
    *meta = (ts_meta){ .shape = TS_SHAPE(ids.extent[0], ids.extent[1], m->config.hidden),
                       .dtype = m->compute ? m->compute : param->dtype };
    *lies = m->residual;
    return TS_OK;
}

/* ---- making ---------------------------------------------------------------------------------- */

static void forget_pipeline(void *context)
{
    ((tsi_model_stages *)context)->pipeline = NULL;
}

static ts_status make_stages(cutting *c)
{
    ts_model *m = c->model;
    size_t micros = (size_t)ts_schedule_micro_batches(c->options->schedule);
    tsi_model_stages_destroy(m->stages);
    m->stages = tsi_calloc(1, sizeof *m->stages);
    if (!m->stages) return tsi_fail_memory("stages of a model", sizeof *m->stages);
    m->stages->model = m;
    m->stages->mesh = ts_mesh_retain(c->options->mesh);
    m->stages->options = *c->options;
    m->stages->size = tsi_calloc(micros, sizeof *m->stages->size);
    return m->stages->size ? TS_OK : tsi_fail_memory("stages of a model", micros * 8);
}

static ts_pipeline *create(cutting *c)
{
    const ts_model_pipeline_options *o = c->options;
    ts_model *m = c->model;
    first_param tied;
    if (count_blocks(c) != TS_OK || find_tied(m, &tied) != TS_OK || make_stages(c) != TS_OK)
        return NULL;
    fill_stages(c);
    int32_t last = (int32_t)c->stage_count - 1, ends[2] = { 0, last };
    bool mine = m->here[0] || m->here[m->block_count - 1];
    ts_shared_param shared = { mine ? tied.value : NULL, ends, last > 0 ? 2 : 1 };
    ts_stages stages = { c->stage, c->stage_count, &shared, tied.value ? 1 : 0 };
    memcpy(m->tied_name, tied.name, sizeof tied.name);
    m->tied_copy = mine && !m->here[0] ? tied.value : NULL;
    m->unsaved = mine && c->at != tied_writer(c) ? tied.value : NULL;
    if (move_blocks(c, mine ? tied.module : NULL) != TS_OK) return NULL;
    ts_pipeline_options options = { .struct_size = sizeof options,
                                    .input = give_input,
                                    .loss = take_output,
                                    .context = m->stages,
                                    .prefetch = o->prefetch,
                                    .begin = o->begin ? begin_micro : NULL,
                                    .shape = o->shape ? shape_of : NULL };
    ts_pipeline *made = ts_pipeline_create(o->mesh, &stages, o->schedule, &options);
    if (made) tsi_pipeline_on_end(made, forget_pipeline, m->stages);
    m->stages->pipeline = made;
    return made;
}

static ts_model_pipeline_options options_of(const ts_model_pipeline_options *given)
{
    ts_model_pipeline_options options = { .struct_size = sizeof options };
    if (given)
        memcpy(&options, given,
               given->struct_size < sizeof options ? given->struct_size : sizeof options);
    return options;
}

ts_pipeline *(ts_model_pipeline)(ts_model *model, const ts_model_pipeline_options *given)
{
    if (!model || tsi_rank_enter(model->rank) != TS_OK) return NULL;
    ts_model_pipeline_options options = options_of(given);
    if (!options.mesh || !options.schedule) {
        TSI_FAIL(TS_ERR_NULL, "model_pipeline: the mesh or the schedule is NULL");
        return NULL;
    }
    cutting c = { .model = model,
                  .options = &options,
                  .stage_count = ts_schedule_stages(options.schedule),
                  .at = ts_mesh_coord(options.mesh, "pp") };
    if (c.at < 0) {
        TSI_FAIL(TS_ERR_MESH, "model_pipeline: the mesh has no axis pp, or not this rank");
        return NULL;
    }
    size_t count = (size_t)c.stage_count;
    c.blocks = tsi_calloc(count, sizeof *c.blocks);
    c.stage = tsi_calloc(count, sizeof *c.stage);
    c.input = tsi_calloc(count, sizeof *c.input);
    if (!model->here) model->here = tsi_calloc((size_t)model->block_count, 1);
    ts_pipeline *made = NULL;
    if (c.blocks && c.stage && c.input && model->here)
        made = create(&c);
    else
        (void)tsi_fail_memory("stages of a model", count * sizeof *c.stage);
    tsi_free(c.blocks);
    tsi_free(c.stage);
    tsi_free(c.input);
    return made;
}

void tsi_model_stages_destroy(tsi_model_stages *s)
{
    if (!s) return;
    if (s->pipeline) tsi_pipeline_on_end(s->pipeline, NULL, NULL);
    ts_tensor_release(s->logits);
    ts_mesh_release(s->mesh);
    tsi_free(s->size);
    tsi_free(s);
}

/* ---- running --------------------------------------------------------------------------------- */

ts_mesh *tsi_model_mesh(const ts_model *model)
{
    return model->stages ? model->stages->mesh : model->mesh;
}

ts_mesh *tsi_model_first(const ts_model *model)
{
    const tsi_mesh_desc *all = tsi_model_mesh(model)->desc;
    int64_t coord[TS_NDIM_MAX] = { 0 }, rank = tsi_mesh_desc_rank(all, coord);
    tsi_mesh_desc draft = { .ndim = 1, .count = 1, .size = { 1 } }, *one = NULL;
    (void)tsi_mesh_settle(all->world, &draft, &rank, &one);
    ts_mesh *mesh = one ? tsi_mesh_of(model->rank, one) : NULL;
    tsi_mesh_desc_release(one);
    return mesh;
}

/* Through the pipeline as its first micro-batch, whatever its sizes were. */
static ts_status run_forward(tsi_model_stages *s, ts_tensor *ids)
{
    s->ids = ids;
    s->size[0] = 1;
    tsi_pipeline_renew(s->pipeline);
    ts_status status = ts_pipeline_forward(s->pipeline, s->size, NULL);
    tsi_pipeline_renew(s->pipeline);
    s->ids = NULL;
    return status;
}

ts_tensor *tsi_model_stages_logits(ts_model *m, ts_tensor *ids)
{
    tsi_model_stages *s = m->stages;
    if (!ids || tsi_rank_enter(m->rank) != TS_OK) return NULL;
    if (!s->pipeline || tsi_tape_recording(m->rank)) {
        TSI_FAIL(TS_ERR_STATE, "model: it is cut into stages, %s",
                 s->pipeline ? "and gradients of its logits are ts_pipeline_step's to make"
                             : "and their pipeline has ended");
        return NULL;
    }
    int64_t last = ts_schedule_stages(ts_pipeline_schedule(s->pipeline)) - 1;
    ts_tensor *logits = NULL;
    if (run_forward(s, ids) == TS_OK)
        logits = tsi_pipeline_pass(s->pipeline, s->logits, (int32_t)last);
    if (logits && logits == s->logits) logits = ts_detach(logits); /* of the caller's scope */
    ts_tensor_release(s->logits);
    s->logits = NULL;
    return logits;
}
