/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_graph.c - which tensors go from which stage to which. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "plan/schedule.h"

static ts_status check_link(int32_t stages, const tsi_stage_link *link, int32_t index)
{
    if (link->from < 0 || link->from >= stages || link->to_count < 1)
        return TSI_FAIL(TS_ERR_ARG, "stages: tensor %d comes from stage %d of %d and has %d users",
                        index, link->from, stages, link->to_count);
    for (int32_t i = 0; i < link->to_count; i++)
        if (link->to[i] <= (i > 0 ? link->to[i - 1] : link->from) || link->to[i] >= stages)
            return TSI_FAIL(TS_ERR_ARG,
                            "stages: tensor %d of stage %d is used by stage %d of %d; users "
                            "ascend and come after the stage",
                            index, link->from, link->to[i], stages);
    return TS_OK;
}

/* Fills the lists once their first places are known, which it moves on by one stage. */
static void fill_lists(tsi_stage_graph *graph)
{
    for (int32_t l = 0; l < graph->count; l++) {
        const tsi_stage_link *link = &graph->link[l];
        graph->out[graph->out_first[link->from + 1]++] = l;
        for (int32_t i = 0; i < link->to_count; i++)
            graph->in[graph->in_first[link->to[i] + 1]++] = l;
    }
}

static void sum_up(int32_t *first, int32_t stages)
{
    int32_t sum = 0;
    for (int32_t g = 0; g < stages; g++) {
        int32_t here = first[g + 1];
        first[g + 1] = sum;
        sum += here;
    }
}

ts_status tsi_stage_graph_make(int32_t stages, const tsi_stage_link *link, int32_t count,
                               tsi_stage_graph *out)
{
    *out = (tsi_stage_graph){ .stages = stages, .count = count };
    size_t uses = 0, size = (size_t)stages + 1;
    for (int32_t l = 0; l < count; l++) {
        TSI_TRY(check_link(stages, &link[l], l));
        uses += (size_t)link[l].to_count;
    }
    tsi_arena *memory = &out->memory;
    out->link = tsi_arena_calloc(memory, (size_t)count + 1, sizeof *out->link);
    out->in_first = tsi_arena_calloc(memory, size, sizeof *out->in_first);
    out->out_first = tsi_arena_calloc(memory, size, sizeof *out->out_first);
    out->in = tsi_arena_calloc(memory, uses + 1, sizeof *out->in);
    out->out = tsi_arena_calloc(memory, (size_t)count + 1, sizeof *out->out);
    int32_t *to = tsi_arena_calloc(memory, uses + 1, sizeof *to);
    if (!out->link || !out->in_first || !out->out_first || !out->in || !out->out || !to) {
        tsi_stage_graph_release(out);
        return tsi_fail_memory("the graph of stages", (uses + size) * sizeof *to);
    }
    for (int32_t l = 0; l < count; l++) {
        out->link[l] = link[l];
        out->link[l].to = to;
        out->out_first[link[l].from + 1]++;
        for (int32_t i = 0; i < link[l].to_count; i++) {
            *to++ = link[l].to[i];
            out->in_first[link[l].to[i] + 1]++;
        }
    }
    sum_up(out->in_first, stages);
    sum_up(out->out_first, stages);
    fill_lists(out);
    return TS_OK;
}

ts_status tsi_stage_graph_line(int32_t stages, tsi_stage_graph *out)
{
    size_t count = (size_t)stages;
    tsi_stage_link *link = tsi_alloc_array(count, sizeof *link);
    int32_t *to = tsi_alloc_array(count, sizeof *to);
    ts_status status =
        link && to ? TS_OK : tsi_fail_memory("the graph of stages", count * sizeof *link);
    for (int32_t g = 0; g + 1 < stages && status == TS_OK; g++) {
        to[g] = g + 1;
        link[g] = (tsi_stage_link){ .from = g, .to = &to[g], .to_count = 1, .gradient = true };
    }
    if (status == TS_OK) status = tsi_stage_graph_make(stages, link, stages - 1, out);
    tsi_free(link);
    tsi_free(to);
    return status;
}

void tsi_stage_graph_release(tsi_stage_graph *graph)
{
    tsi_arena_release(&graph->memory);
    *graph = (tsi_stage_graph){ 0 };
}
