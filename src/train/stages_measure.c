/* SPDX-License-Identifier: Apache-2.0 */
/* stages_measure.c - what a step through the pipeline took: when each action ran on which rank,
 * what a stage costs, how long ranks were idle.
 *
 * Times count from each rank's own beginning of the step; a step begins when all have ended the one
 * before it. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "plan/schedule.h"
#include "train/stages.h"

/* ---- from all ranks -------------------------------------------------------------------------- */

/* Every rank puts its own cells at their place; the rest is zero. */
static ts_status gather(const tsi_stages *s, tsi_stages_measured *m, int64_t cells)
{
    const ts_schedule *schedule = m->schedule;
    int64_t first = 0, me = ts_pipeline_rank(tsi_stages_pipeline(s));
    const double *begin, *end;
    tsi_stages_last(s, &begin, &end);
    for (int64_t r = 0; r < me; r++)
        first += ts_schedule_count(schedule, r);
    size_t bytes = (size_t)ts_schedule_count(schedule, me) * sizeof *begin;
    memcpy(m->begin + first, begin, bytes);
    memcpy(m->end + first, end, bytes);
    ts_array all = TS_INIT(ts_array);
    all.data = m->begin; /* end follows it */
    all.meta = (ts_meta){ .shape = TS_SHAPE(2 * cells), .dtype = TS_DTYPE_F64 };
    return ts_group_all_reduce(tsi_stages_group(s), &all, &all, TS_REDUCE_SUM, NULL);
}

/* ---- numbers --------------------------------------------------------------------------------- */

typedef struct mean {
    double sum;
    int64_t count;
} mean;

static double mean_of(const mean *m)
{
    return m->count > 0 ? m->sum / (double)m->count : 0;
}

/* A backward that is not split counts as two equal halves. */
static void take_costs(const mean (*took)[TS_CELL_KINDS], int64_t stages, ts_stage_cost *out)
{
    for (int64_t g = 0; g < stages; g++) {
        double whole = mean_of(&took[g][TS_CELL_BACKWARD]);
        out[g] = (ts_stage_cost){ .forward = mean_of(&took[g][TS_CELL_FORWARD]),
                                  .input = mean_of(&took[g][TS_CELL_INPUT]) + whole / 2,
                                  .weight = mean_of(&took[g][TS_CELL_WEIGHT]) + whole / 2,
                                  .memory = 1 };
    }
}

static ts_status evaluate(tsi_stages_measured *m)
{
    int64_t ranks = ts_schedule_ranks(m->schedule), stages = ts_schedule_stages(m->schedule);
    mean(*took)[TS_CELL_KINDS] = tsi_calloc((size_t)stages, sizeof *took);
    if (!took) return tsi_fail_memory("what stages took", (size_t)stages * sizeof *took);
    double busy = 0;
    for (int64_t r = 0, at = 0; r < ranks; r++) {
        for (int64_t i = 0; i < ts_schedule_count(m->schedule, r); i++, at++) {
            ts_cell cell = ts_schedule_cell(m->schedule, r, i);
            m->span = fmax(m->span, m->end[at]);
            if (!tsi_cell_computes(&cell)) continue;
            took[cell.stage][cell.kind].sum += m->end[at] - m->begin[at];
            took[cell.stage][cell.kind].count++;
            busy += m->end[at] - m->begin[at];
        }
    }
    m->bubble = m->span > 0 ? 1 - busy / ((double)ranks * m->span) : 0;
    take_costs((const mean(*)[TS_CELL_KINDS])took, stages, m->cost);
    tsi_free(took);
    ts_schedule_costs costs = { .struct_size = sizeof costs, .stage = m->cost, .count = stages };
    ts_schedule_times times = { .struct_size = sizeof times };
    TSI_TRY(ts_schedule_simulate(m->schedule, &costs, &times, NULL, NULL, NULL));
    m->simulated = times.fraction;
    return TS_OK;
}

ts_status tsi_stages_measure(const tsi_stages *s, tsi_stages_measured *out)
{
    const ts_schedule *schedule = ts_pipeline_schedule(tsi_stages_pipeline(s));
    int64_t cells = 0, stages = ts_schedule_stages(schedule);
    for (int64_t r = 0; r < ts_schedule_ranks(schedule); r++)
        cells += ts_schedule_count(schedule, r);
    *out = (tsi_stages_measured){ .schedule = schedule };
    out->begin = tsi_calloc(2 * (size_t)cells + 1, sizeof *out->begin);
    out->cost = tsi_calloc((size_t)stages, sizeof *out->cost);
    if (!out->begin || !out->cost)
        return tsi_fail_memory("the times of a schedule", (size_t)cells * 16);
    out->end = out->begin + cells;
    TSI_TRY(gather(s, out, cells));
    return evaluate(out);
}

void tsi_stages_measured_release(tsi_stages_measured *m)
{
    tsi_free(m->begin);
    tsi_free(m->cost);
    *m = (tsi_stages_measured){ 0 };
}
