/* SPDX-License-Identifier: Apache-2.0 */
/* stages.c - a model as stages of a pipeline: its blocks in order, one tensor between two stages.
 *
 * Every rank declares the whole tree, on the mesh without the pipeline's axis, and holds the blocks
 * of its own stages alone. A head that is the embedding's weight is held by both ends. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "model/model.h"

typedef struct cutting {
    ts_model *model;
    const ts_model_pipeline_options *options;
    int64_t stage_count;
    int64_t *blocks; /* [stage] */
    ts_stage *stage;
    ts_stage_input *input;
    int64_t at; /* this rank on the axis */
} cutting;

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

static ts_pipeline *create(cutting *c)
{
    const ts_model_pipeline_options *o = c->options;
    first_param tied;
    if (count_blocks(c) != TS_OK || find_tied(c->model, &tied) != TS_OK) return NULL;
    fill_stages(c);
    int32_t last = (int32_t)c->stage_count - 1, ends[2] = { 0, last };
    bool mine = c->model->here[0] || c->model->here[c->model->block_count - 1];
    ts_shared_param shared = { mine ? tied.value : NULL, ends, last > 0 ? 2 : 1 };
    ts_stages stages = { c->stage, c->stage_count, &shared, tied.value ? 1 : 0 };
    c->model->tied = mine ? tied.module : NULL;
    memcpy(c->model->tied_name, tied.name, sizeof tied.name);
    ts_pipeline_options options = {
        .struct_size = sizeof options, .input = o->input, .loss = o->loss, .context = o->context
    };
    return ts_pipeline_create(o->mesh, &stages, o->schedule, &options);
}

ts_pipeline *(ts_model_pipeline)(ts_model *model, const ts_model_pipeline_options *options)
{
    if (!model || tsi_rank_enter(model->rank) != TS_OK) return NULL;
    if (!options || !options->mesh || !options->schedule) {
        TSI_FAIL(TS_ERR_NULL, "model_pipeline: the mesh or the schedule is NULL");
        return NULL;
    }
    cutting c = { .model = model,
                  .options = options,
                  .stage_count = ts_schedule_stages(options->schedule),
                  .at = ts_mesh_coord(options->mesh, "pp") };
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

ts_status tsi_model_materialize_stages(ts_model *model)
{
    for (int64_t i = 0; i < model->block_count; i++)
        if (model->here[i]) TSI_TRY(ts_module_materialize(model->block[i]));
    return model->tied ? ts_module_materialize(model->tied) : TS_OK;
}
