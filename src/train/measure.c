/* SPDX-License-Identifier: Apache-2.0 */
/* measure.c - numbers about a run: what a step costs, what it takes, where its time goes.
 *
 * Events are read from the rank's ring after every step, before they are overwritten. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/rank.h"
#include "train/run.h"

/* As a forecast has them: work is a rank's share of what all stages do together, and ranks wait for
 * each other. */
static ts_status share_work(const tsi_run *run, ts_train_cost *cost)
{
    ts_pipeline *pipeline = tsi_stages_pipeline(run->stages);
    double bytes = (double)cost->touched_bytes;
    TSI_TRY(ts_pipeline_sum(pipeline, cost->product_flops, &cost->product_flops));
    TSI_TRY(ts_pipeline_sum(pipeline, cost->attention_flops, &cost->attention_flops));
    TSI_TRY(ts_pipeline_sum(pipeline, bytes, &bytes));
    cost->touched_bytes = (int64_t)(bytes / (double)ts_mesh_size(run->mesh, "pp"));
    cost->bubble = tsi_stages_bubble(run->stages);
    return TS_OK;
}

ts_status tsi_measure_plan(tsi_run *run)
{
    ts_train_shape shape = tsi_train_shape(run->config);
    ts_train_cost cost;
    TSI_TRY(run->stages ? tsi_run_staged_estimate(run, &cost)
                        : ts_train_estimate(run->model, &shape, &cost));
    if (run->stages) TSI_TRY(share_work(run, &cost));
    ts_train_plan *p = &run->plan;
    p->parameters = cost.parameters;
    p->flops_per_token = cost.flops_per_token;
    if (run->stages) /* each has its own part of them */
        TSI_TRY(ts_pipeline_sum(tsi_stages_pipeline(run->stages), cost.flops_per_token,
                                &p->flops_per_token));
    p->weight_bytes = cost.weight_bytes;
    p->gradient_bytes = cost.gradient_bytes;
    p->optimizer_bytes = cost.optimizer_bytes;
    p->activation_bytes = cost.activation_bytes;
    run->planned = cost.memory;
    run->cost = tsi_alloc(sizeof *run->cost);
    if (!run->cost) return tsi_fail_memory("a plan", sizeof *run->cost);
    *run->cost = cost;
    return TS_OK;
}

/* ---- events ---------------------------------------------------------------------------------- */

static void add_counts(ts_counts *sum, const ts_counts *more)
{
    sum->lost += more->lost;
    for (int64_t j = 0; j < more->row_count; j++) {
        int64_t i = 0;
        while (i < sum->row_count && strcmp(sum->row[i].kind, more->row[j].kind) != 0)
            i++;
        if (i == TS_COUNTS_MAX) continue;
        if (i == sum->row_count)
            sum->row[sum->row_count++] = (ts_count){ .kind = more->row[j].kind };
        sum->row[i].count += more->row[j].count;
        sum->row[i].bytes += more->row[j].bytes;
        sum->row[i].time_ns += more->row[j].time_ns;
    }
}

void tsi_measure_step(tsi_run *run)
{
    tsi_measures *m = &run->measures;
    ts_counts counts = { .struct_size = sizeof counts };
    if (ts_rank_counts(run->me, m->event, &counts) == TS_OK) add_counts(&m->counts, &counts);
    if (ts_rank_times(run->me, m->event, &m->times) != TS_OK) return;
    m->event = ts_rank_event(run->me);
    m->memory.struct_size = sizeof m->memory;
    if (ts_rank_memory(run->me, &m->memory) == TS_OK) m->memory_peak = m->memory.peak;
}
