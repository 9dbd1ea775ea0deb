/* SPDX-License-Identifier: Apache-2.0 */
/* run_stages.c - where a run and its stages meet: tokens of a step, documents of a micro-batch. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "parallel/unit.h"
#include "train/run.h"

typedef struct rows { /* of a part of a step */
    tsi_run *run;
    int64_t step, first, count;
} rows;

static ts_tensor *tokens_of(void *context, int64_t shift)
{
    const rows *r = context;
    return tsi_run_rows(r->run, r->step, r->first, r->count, shift);
}

/* Rows are counted from the part's first. */
static ts_status documents_of(void *context, const int64_t *row, int64_t count)
{
    const rows *r = context;
    return tsi_run_documents_of(r->run, r->step, row, r->first, count);
}

static ts_status run_rows(tsi_run *run, rows *r, tsi_part part, double *loss)
{
    bool separate = strcmp(run->config->data.documents, "separate") == 0;
    part.rows = r->count;
    part.context = run->config->data.context;
    part.tokens = tokens_of;
    part.documents = separate ? documents_of : NULL;
    part.of = r;
    TSI_TRY(tsi_run_documents(run, r->step, r->first, r->count));
    return tsi_stages_run(run->stages, &part, loss);
}

ts_status tsi_run_staged_part(tsi_run *run, int64_t step, int64_t part, double *loss)
{
    int64_t parts = run->config->train.accumulate, count = run->config->train.batch / parts;
    rows r = { run, step, part * count, count };
    return run_rows(run, &r, (tsi_part){ .factor = run->scale.value / (double)parts }, loss);
}

typedef struct again_part { /* of a step that is recorded */
    tsi_run *run;
    const tsi_rows_part *of;
    ts_tensor *loss;
} again_part;

static ts_tensor *tokens_again(void *context, int64_t shift)
{
    const again_part *a = context;
    return shift == 0 ? a->of->ids : a->of->labels;
}

static ts_status add_mean(void *context, ts_tensor *mean)
{
    const again_part *a = context;
    return tsi_run_add_loss(a->run, a->loss, mean);
}

ts_status tsi_run_staged_again(tsi_run *run, const tsi_rows_part *of, ts_tensor *loss)
{
    int64_t parts = run->config->train.accumulate;
    again_part again = { run, of, loss };
    const tsi_part part = { .rows = run->config->train.batch / parts,
                            .context = run->config->data.context,
                            .factor = run->scale.value / (double)parts,
                            .tokens = tokens_again,
                            .mean = add_mean,
                            .of = &again };
    return tsi_stages_run(run->stages, &part, NULL);
}

ts_status tsi_run_staged_eval(tsi_run *run, int64_t first, int64_t count, double *loss)
{
    rows r = { run, 0, first, count };
    return run_rows(run, &r, (tsi_part){ .factor = 1.0, .without_grad = true }, loss);
}

/* Elsewhere a router was not called, and everything of it is 0. */
ts_status tsi_run_staged_router(tsi_run *run, ts_router_report *report, double *load)
{
    int64_t experts = ts_model_configuration(run->model)->experts;
    double sum[7] = { (double)report->tokens, (double)report->dropped, report->load_ratio,
                      report->entropy,        report->aux_loss,        report->sequence_loss,
                      report->z_loss };
    if (!run->stages) return TS_OK;
    ts_group *stages = tsi_stages_group(run->stages);
    ts_array array = TS_INIT(ts_array);
    array.data = sum;
    array.meta = (ts_meta){ .shape = TS_SHAPE(7), .dtype = TS_DTYPE_F64 };
    TSI_TRY(ts_group_all_reduce(stages, &array, &array, TS_REDUCE_SUM, NULL));
    report->tokens = (int64_t)sum[0];
    report->dropped = (int64_t)sum[1];
    report->load_ratio = sum[2];
    report->entropy = sum[3];
    report->aux_loss = sum[4];
    report->sequence_loss = sum[5];
    report->z_loss = sum[6];
    array.data = load;
    array.meta.shape = TS_SHAPE(experts);
    return ts_group_all_reduce(stages, &array, &array, TS_REDUCE_SUM, NULL);
}

/* With the blocks that each stage has, however they were found. */
ts_status tsi_run_staged_estimate(tsi_run *run, ts_train_cost *out)
{
    const ts_schedule *schedule = ts_pipeline_schedule(tsi_stages_pipeline(run->stages));
    int64_t stages = ts_schedule_stages(schedule), ranks = ts_schedule_ranks(schedule);
    ts_train_config *fixed = tsi_alloc(sizeof *fixed);
    if (!fixed) return tsi_fail_memory("a configuration", sizeof *fixed);
    *fixed = *run->config;
    char *text = fixed->parallel.stages;
    size_t size = sizeof fixed->parallel.stages;
    int used = snprintf(text, size, "%lld:", (long long)(stages / ranks));
    for (int64_t g = 0; g < stages && used > 0 && (size_t)used < size; g++)
        used += snprintf(text + used, size - (size_t)used, " %lld",
                         (long long)tsi_stages_blocks(run->stages)[g]);
    if (used <= 0 || (size_t)used >= size) memcpy(text, run->config->parallel.stages, size);
    tsi_described of = { .vocab = run->model->config.vocab,
                         .rank = ts_rank_index(run->me),
                         .together = tsi_world_shares(run->me->world),
                         .threads = tsi_train_threads(run->me),
                         .world = run->me->world };
    ts_status status = tsi_train_estimate_rank(fixed, &of, out);
    tsi_free(fixed);
    return status;
}

void tsi_run_staged_plan(tsi_run *run)
{
    const ts_schedule *schedule = ts_pipeline_schedule(tsi_stages_pipeline(run->stages));
    run->plan.schedule = run->config->parallel.schedule;
    run->plan.stages = ts_schedule_stages(schedule);
    run->plan.micro_batches = ts_schedule_micro_batches(schedule);
    run->plan.blocks = tsi_stages_blocks(run->stages);
    run->plan.bubble = tsi_stages_bubble(run->stages);
}

ts_status tsi_run_staged_end(tsi_run *run, ts_train_result *out)
{
    if (!run->stages) return TS_OK;
    TSI_TRY(tsi_stages_measure(run->stages, &run->measured));
    out->bubble = tsi_stages_bubble(run->stages);
    out->bubble_measured = run->measured.bubble;
    bool writes = ts_rank_index(run->me) == 0 && run->measured.span > 0;
    return writes ? tsi_stages_write(run) : TS_OK;
}
