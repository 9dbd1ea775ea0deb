/* SPDX-License-Identifier: Apache-2.0 */
/* stages.c - a part of a training step through a pipeline.
 *
 * A micro-batch consists of rows of every rank's own piece of the part; losses are sums over its
 * tokens, divided by those of the part, so that uneven micro-batches weigh what they are.
 *
 * INV: all ranks run the same schedule: where finding it depends on time, the first rank's holds.
 */
#include "train/stages.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"
#include "layout/layout.h"
#include "parallel/pipeline.h"

struct tsi_stages {
    ts_model *model;
    ts_mesh *mesh; /* with the axis, retained */
    ts_schedule *schedule;
    ts_pipeline *pipeline;
    int64_t *blocks;         /* [stage] */
    int64_t *size;           /* [micro]: rows of it */
    int64_t **row;           /* [micro]: which they are; NULL: nobody asked */
    int64_t row_count;       /* of the part that they are of */
    tsi_part part;           /* the one at hand */
    ts_tensor *ids, *labels; /* of it, retained, where they are needed */
    ts_tensor **loss;        /* [micro]: retained, of a part whose mean is asked for */
    double *begin, *end;     /* [cell of this rank]: of the last step */
    double z_loss;           /* train.z_loss */
};

/* ---- what is said ---------------------------------------------------------------------------- */

ts_status tsi_stages_parse(const char *text, tsi_stages_text *out)
{
    *out = (tsi_stages_text){ 0 };
    enum { MOST = sizeof out->blocks / sizeof out->blocks[0] };
    tsi_cursor cursor = tsi_cursor_of("parallel.stages", text);
    if (tsi_cursor_done(&cursor)) return TS_OK;
    if (!tsi_cursor_int(&cursor, &out->per_rank) || out->per_rank < 1 || out->per_rank > 65536)
        return tsi_cursor_fail(&cursor, "a number of stages of a rank, from 1 to 65536");
    if (!tsi_cursor_take(&cursor, ':')) {
        if (tsi_cursor_done(&cursor)) return TS_OK;
        return tsi_cursor_fail(&cursor, "\":\" or the end");
    }
    char word[16] = "";
    if (tsi_cursor_word(&cursor, word, sizeof word)) {
        out->by_cost = strcmp(word, "cost") == 0;
        if (out->by_cost && tsi_cursor_done(&cursor)) return TS_OK;
        return tsi_cursor_fail(&cursor, "\"cost\" or blocks of each stage");
    }
    do {
        int64_t blocks = 0;
        if (out->count == MOST || !tsi_cursor_int(&cursor, &blocks) || blocks < 1)
            return tsi_cursor_fail(&cursor, "a number of blocks of at least 1");
        out->blocks[out->count++] = blocks;
        (void)tsi_cursor_take(&cursor, ',');
    } while (!tsi_cursor_done(&cursor));
    return TS_OK;
}

ts_status tsi_stages_schedule(const ts_train_config *c, int64_t ranks, ts_schedule **out)
{
    tsi_stages_text said;
    *out = NULL;
    TSI_TRY(tsi_stages_parse(c->parallel.stages, &said));
    ts_schedule_options size = { .struct_size = sizeof size,
                                 .ranks = ranks,
                                 .micro_batches = c->parallel.micro_batches,
                                 .stages_per_rank = said.per_rank };
    TSI_TRY(ts_schedule_find(c->parallel.schedule, &size, out));
    int64_t stages = ts_schedule_stages(*out), micros = ts_schedule_micro_batches(*out);
    ts_status status = TS_OK;
    if (said.count > 0 && said.count != stages)
        status = TSI_FAIL(TS_ERR_ARG,
                          "parallel.stages: blocks of %lld stages are said, the schedule has %lld",
                          (long long)said.count, (long long)stages);
    else if (micros != c->parallel.micro_batches)
        status =
            TSI_FAIL(TS_ERR_ARG, "parallel.micro_batches: is %lld, the schedule %s has %lld",
                     (long long)c->parallel.micro_batches, c->parallel.schedule, (long long)micros);
    if (status == TS_OK) return TS_OK;
    ts_schedule_destroy(*out);
    *out = NULL;
    return status;
}

/* ---- one schedule on all ranks --------------------------------------------------------------- */

static ts_array bytes_of(void *data, size_t count)
{
    ts_array array = TS_INIT(ts_array);
    array.data = data;
    array.meta = (ts_meta){ .shape = TS_SHAPE((int64_t)count), .dtype = TS_DTYPE_U8 };
    return array;
}

/* The first rank's text on every rank. */
static ts_status share_schedule(tsi_stages *s)
{
    ts_group *all = ts_mesh_group(s->mesh, NULL);
    if (!all) return ts_rank_status(s->model->rank);
    uint64_t length = ts_schedule_text(s->schedule, NULL, 0);
    ts_array word = bytes_of(&length, sizeof length);
    TSI_TRY(ts_group_broadcast(all, &word, 0, NULL));
    char *text = tsi_calloc((size_t)length + 1, 1);
    if (!text) return tsi_fail_memory("a schedule", (size_t)length);
    if (ts_group_index(all) == 0) (void)ts_schedule_text(s->schedule, text, (size_t)length + 1);
    word = bytes_of(text, (size_t)length);
    ts_status status = ts_group_broadcast(all, &word, 0, NULL);
    ts_schedule *read = NULL;
    if (status == TS_OK) status = ts_schedule_parse(text, &read);
    tsi_free(text);
    if (status != TS_OK) return status;
    ts_schedule_destroy(s->schedule);
    s->schedule = read;
    return TS_OK;
}

/* ---- what the pipeline asks ------------------------------------------------------------------ */

static ts_tensor *micro_of(const tsi_stages *s, ts_tensor *of, int64_t micro)
{
    return ts_micro_batch(of, 0, ts_schedule_micro_batches(s->schedule), micro);
}

static ts_tensor *input_of(void *context, ts_rank *me, int64_t micro, int32_t index)
{
    (void)me, (void)index;
    const tsi_stages *s = context;
    return micro_of(s, s->ids, micro);
}

static ts_tensor *loss_of(void *context, ts_rank *me, int64_t micro, ts_tensor *const *output,
                          int32_t count)
{
    (void)me, (void)count;
    const tsi_stages *s = context;
    double tokens = (double)s->part.rows * (double)s->part.context;
    double factor = s->part.factor / tokens;
    ts_tensor *sum = ts_cross_entropy_sum(output[0], micro_of(s, s->labels, micro));
    ts_tensor *loss = ts_mul_scalar(sum, factor);
    if (!s->part.without_grad) loss = tsi_train_with_z(loss, output[0], s->z_loss * factor);
    /* As it is returned: the pipeline adds up these, which lie otherwise with the second loss. */
    if (s->part.mean) s->loss[micro] = ts_tensor_retain(ts_detach(loss));
    return loss;
}

static ts_status begin_micro(void *context, ts_rank *me, int64_t micro)
{
    (void)me;
    const tsi_stages *s = context;
    double share = (double)s->size[micro] / (double)s->part.rows;
    if (ts_model_router_count(s->model) > 0) /* their losses are means over a micro-batch */
        TSI_TRY(ts_model_router_factor(s->model, s->part.factor * share));
    if (!s->part.documents || !s->row) return TS_OK;
    return s->part.documents(s->part.of, s->row[micro], s->size[micro]);
}

static ts_status shape_of(void *context, ts_rank *me, int64_t micro, ts_shape *ids)
{
    (void)me;
    const tsi_stages *s = context;
    *ids = TS_SHAPE(s->size[micro], s->part.context);
    return TS_OK;
}

/* ---- making ---------------------------------------------------------------------------------- */

/* By the times of a micro-batch's rows of one rank. */
static ts_status cut_by_cost(tsi_stages *s, const ts_train_config *c)
{
    int64_t count = ts_model_block_count(s->model), stages = ts_schedule_stages(s->schedule);
    int64_t ranks = ts_mesh_size(s->model->mesh, NULL), micros = c->parallel.micro_batches;
    int64_t rows = c->train.batch / c->train.accumulate / (ranks * micros);
    tsi_part part = { .rows = rows > 0 ? rows : 1, .context = c->data.context };
    double *cost = tsi_calloc((size_t)count, sizeof *cost);
    if (!cost) return tsi_fail_memory("the costs of blocks", (size_t)count * sizeof *cost);
    bool alone = tsi_world_describes(s->model->rank->world);
    ts_status status = alone ? TS_OK : tsi_stages_costs(s->model, s->mesh, &part, cost);
    if (status == TS_OK) status = ts_stage_cut(alone ? NULL : cost, count, stages, s->blocks);
    tsi_free(cost);
    return status;
}

static ts_status cut_blocks(tsi_stages *s, const ts_train_config *c)
{
    int64_t stages = ts_schedule_stages(s->schedule), blocks = ts_model_block_count(s->model);
    tsi_stages_text said;
    TSI_TRY(tsi_stages_parse(c->parallel.stages, &said));
    s->blocks = tsi_calloc((size_t)stages, sizeof *s->blocks);
    size_t micros = (size_t)ts_schedule_micro_batches(s->schedule);
    s->size = tsi_calloc(micros, sizeof *s->size);
    s->loss = tsi_calloc(micros, sizeof *s->loss);
    if (!s->blocks || !s->size || !s->loss)
        return tsi_fail_memory("the stages of a run", (size_t)stages * 8);
    if (said.count > 0) {
        memcpy(s->blocks, said.blocks, (size_t)said.count * sizeof *s->blocks);
        return TS_OK;
    }
    return said.by_cost ? cut_by_cost(s, c) : ts_stage_cut(NULL, blocks, stages, s->blocks);
}

static size_t cells_of(const tsi_stages *s)
{
    return (size_t)ts_schedule_count(ts_pipeline_schedule(s->pipeline),
                                     ts_pipeline_rank(s->pipeline));
}

static ts_status open_stages(tsi_stages *s, const ts_train_config *c)
{
    int64_t ranks = ts_mesh_size(s->mesh, "pp");
    TSI_TRY(tsi_stages_schedule(c, ranks, &s->schedule));
    bool alone = tsi_world_describes(s->model->rank->world);
    if (strcasecmp(c->parallel.schedule, "search") == 0 && !alone) TSI_TRY(share_schedule(s));
    TSI_TRY(cut_blocks(s, c));
    ts_model_pipeline_options options = TS_INIT(ts_model_pipeline_options);
    options.mesh = s->mesh;
    options.schedule = s->schedule;
    options.blocks = s->blocks;
    options.input = input_of;
    options.loss = loss_of;
    options.context = s;
    options.shape = shape_of;
    options.prefetch = c->parallel.prefetch;
    bool separate = strcmp(c->data.documents, "separate") == 0;
    if (separate || ts_model_router_count(s->model) > 0) options.begin = begin_micro;
    s->pipeline = ts_model_pipeline(s->model, &options);
    if (!s->pipeline) return ts_rank_status(s->model->rank);
    size_t cells = cells_of(s);
    s->begin = tsi_calloc(2 * cells + 1, sizeof *s->begin);
    if (!s->begin) return tsi_fail_memory("the times of a schedule", cells * sizeof *s->begin);
    s->end = s->begin + cells;
    return TS_OK;
}

ts_status tsi_stages_open(const ts_train_config *c, ts_mesh *mesh, ts_model *model,
                          tsi_stages **out)
{
    *out = NULL;
    if (ts_mesh_axis(mesh, "pp") < 0) return TS_OK;
    tsi_stages *s = tsi_calloc(1, sizeof *s);
    if (!s) return tsi_fail_memory("the stages of a run", sizeof *s);
    s->model = model;
    s->mesh = ts_mesh_retain(mesh);
    s->z_loss = c->train.z_loss;
    ts_status status = open_stages(s, c);
    if (status == TS_OK)
        *out = s;
    else
        tsi_stages_close(s);
    return status;
}

static void forget_rows(tsi_stages *s)
{
    for (int64_t m = 0; s->row && m < ts_schedule_micro_batches(s->schedule); m++)
        tsi_free(s->row[m]);
    tsi_free(s->row);
    s->row = NULL;
}

void tsi_stages_close(tsi_stages *s)
{
    if (!s) return;
    forget_rows(s);
    ts_tensor_release(s->ids);
    ts_tensor_release(s->labels);
    ts_pipeline_destroy(s->pipeline);
    ts_schedule_destroy(s->schedule);
    ts_mesh_release(s->mesh);
    tsi_free(s->blocks);
    tsi_free(s->size);
    tsi_free(s->loss);
    tsi_free(s->begin);
    tsi_free(s);
}

/* ---- running --------------------------------------------------------------------------------- */

/* As tokens lie, with whole rows: the model's cut of the sequence is that of what it computed last,
 * the documents of a step or a text that it wrote, and fits no other extent. Retained. */
static const ts_sharding *whole_rows(const tsi_stages *s)
{
    const ts_sharding *tokens = ts_model_tokens(s->model);
    ts_placement place[TS_NDIM_MAX];
    for (int32_t k = 0; k < tokens->ndim; k++) {
        place[k] = tokens->place[k];
        if (tsi_placement_cuts(&place[k]) && place[k].dim == 1)
            place[k] = (ts_placement){ .kind = TS_PLACE_REPLICATE, .factor = 1, .align = 1 };
    }
    return tsi_sharding_intern(tokens->mesh, place);
}

/* Rows of each micro-batch, of all ranks together. */
static ts_status find_sizes(tsi_stages *s)
{
    ts_shape shape = TS_SHAPE(s->part.rows, s->part.context);
    const ts_sharding *lie = whole_rows(s);
    const ts_layout *layout = lie ? tsi_layout_intern(lie, &shape) : NULL;
    ts_sharding_release(lie);
    if (!layout) return ts_rank_status(s->model->rank);
    int64_t micros = ts_schedule_micro_batches(s->schedule);
    for (int64_t m = 0; m < micros; m++)
        s->size[m] = tsi_micro_batch_extent(layout, 0, micros, m);
    ts_layout_release(layout);
    return TS_OK;
}

static ts_status row_number(const int64_t *global, void *element, void *context)
{
    (void)context;
    *(int64_t *)element = global[0];
    return TS_OK;
}

/* The numbers of a micro-batch's rows, as they lie in it. */
static ts_status read_rows(tsi_stages *s, int64_t micro)
{
    ts_meta meta = { .shape = TS_SHAPE(s->part.rows, 1), .dtype = TS_DTYPE_I64 };
    ts_array to = TS_INIT(ts_array);
    s->row[micro] = tsi_calloc((size_t)s->size[micro] + 1, sizeof(int64_t));
    if (!s->row[micro]) return tsi_fail_memory("the rows of a micro-batch", 8);
    if (s->size[micro] == 0) return TS_OK;
    const ts_sharding *lie = whole_rows(s);
    ts_tensor *all = lie ? ts_from_function(row_number, NULL, lie, meta) : NULL;
    ts_sharding_release(lie);
    to.data = s->row[micro];
    to.meta = (ts_meta){ .shape = TS_SHAPE(s->size[micro], 1), .dtype = TS_DTYPE_I64 };
    return ts_tensor_read(ts_tensor_full(micro_of(s, all, micro)), &to);
}

static ts_status find_rows(tsi_stages *s)
{
    int64_t micros = ts_schedule_micro_batches(s->schedule);
    if (!s->part.documents || (s->row && s->row_count == s->part.rows)) return TS_OK;
    forget_rows(s);
    s->row_count = s->part.rows;
    s->row = tsi_calloc((size_t)micros, sizeof *s->row);
    if (!s->row) return tsi_fail_memory("the rows of micro-batches", (size_t)micros * 8);
    ts_scope scope = ts_scope_open(s->model->rank, "rows");
    ts_status status = TS_OK;
    for (int64_t m = 0; m < micros && status == TS_OK; m++)
        status = read_rows(s, m);
    ts_scope_close(scope);
    return status;
}

bool tsi_stages_reads(const tsi_stages *s, int64_t shift)
{
    return s->model->here[shift == 0 ? 0 : s->model->block_count - 1];
}

/* Tokens where a stage of this rank needs them; all ranks cut the sequence alike. */
static ts_status take_tokens(tsi_stages *s)
{
    const ts_model *m = s->model;
    const ts_sharding *cut = ts_model_tokens_of(s->model, s->part.context, m->documents);
    if (!cut) return ts_rank_status(m->rank);
    TSI_TRY(tsi_model_follow_to(s->model, cut));
    if (tsi_stages_reads(s, 0)) s->ids = ts_tensor_retain(s->part.tokens(s->part.of, 0));
    if (tsi_stages_reads(s, 1)) s->labels = ts_tensor_retain(s->part.tokens(s->part.of, 1));
    if (s->part.documents) tsi_pipeline_renew(s->pipeline); /* the cut may be another one */
    return ts_rank_status(m->rank);
}

/* As the pipeline adds them up and the host divides them: the same bits, where they lie. */
static ts_status tell_mean(const tsi_stages *s)
{
    ts_tensor *sum = NULL;
    for (int64_t m = 0; m < ts_schedule_micro_batches(s->schedule); m++)
        if (s->loss[m]) sum = sum ? ts_add(sum, s->loss[m]) : s->loss[m];
    if (!sum) return TS_OK;
    ts_tensor *whole = ts_cast(ts_tensor_full(sum), TS_DTYPE_F64);
    ts_tensor *mean = s->part.factor != 1.0 ? ts_div_scalar(whole, s->part.factor) : whole;
    return mean ? s->part.mean(s->part.of, mean) : ts_rank_status(s->model->rank);
}

static void forget_losses(tsi_stages *s)
{
    for (int64_t m = 0; m < ts_schedule_micro_batches(s->schedule); m++) {
        ts_tensor_release(s->loss[m]);
        s->loss[m] = NULL;
    }
}

ts_status tsi_stages_run(tsi_stages *s, const tsi_part *part, double *loss)
{
    double sum = 0, *read = loss ? &sum : NULL;
    s->part = *part;
    TSI_TRY(find_sizes(s));
    TSI_TRY(find_rows(s));
    ts_scope scope = ts_scope_open(s->model->rank, NULL);
    ts_status status = take_tokens(s);
    if (status == TS_OK)
        status = part->without_grad ? ts_pipeline_forward(s->pipeline, s->size, read)
                                    : ts_pipeline_step(s->pipeline, s->size, read);
    if (status == TS_OK && part->mean) status = tell_mean(s);
    forget_losses(s);
    ts_tensor_release(s->ids);
    ts_tensor_release(s->labels);
    s->ids = s->labels = NULL;
    ts_scope_close(scope);
    if (!part->without_grad) {
        memcpy(s->begin, ts_pipeline_begin(s->pipeline), cells_of(s) * sizeof *s->begin);
        memcpy(s->end, ts_pipeline_end(s->pipeline), cells_of(s) * sizeof *s->end);
    }
    if (loss) *loss = sum / part->factor;
    return status;
}

/* ---- getters --------------------------------------------------------------------------------- */

ts_pipeline *tsi_stages_pipeline(const tsi_stages *s)
{
    return s->pipeline;
}

ts_group *tsi_stages_group(const tsi_stages *s)
{
    return s ? ts_mesh_group(s->mesh, "pp") : NULL;
}

void tsi_stages_last(const tsi_stages *s, const double **begin, const double **end)
{
    *begin = s->begin;
    *end = s->end;
}

const int64_t *tsi_stages_blocks(const tsi_stages *s)
{
    return s->blocks;
}

void tsi_stages_tell(const tsi_stages *s, const ts_train_config *c, ts_train_cost *out)
{
    snprintf(out->schedule, sizeof out->schedule, "%.95s", c->parallel.schedule);
    for (int64_t g = 0; g < ts_schedule_stages(s->schedule) && g < TS_TRAIN_STAGES_MAX; g++) {
        out->stage_blocks[g] = (int32_t)s->blocks[g];
        out->stage_place[g] = (int32_t)ts_schedule_rank_of(s->schedule, g);
    }
}

double tsi_stages_bubble(const tsi_stages *s)
{
    ts_schedule_costs costs = { .struct_size = sizeof costs };
    ts_schedule_times times = { .struct_size = sizeof times };
    bool good = ts_schedule_simulate(s->schedule, &costs, &times, NULL, NULL, NULL) == TS_OK;
    return good ? times.fraction : 0;
}
