/* SPDX-License-Identifier: Apache-2.0 */
/* report_stages.c - the last step's schedule as it ran: a row a rank, an action a box, with its
 * name and time where a pointer rests; and the measured costs as a file that `tessera schedule
 * --cost` reads. */
#include "base/alloc.h"
#include "base/file.h"
#include "plan/schedule.h"
#include "train/run.h"

enum { WIDE = 960, HIGH = 26, SIDE = 56 };

static const char *colour_of(int32_t kind)
{
    switch (kind) {
    case TS_CELL_FORWARD:
        return "var(--a)";
    case TS_CELL_BACKWARD:
    case TS_CELL_INPUT:
        return "var(--b)";
    default:
        return "#10b981";
    }
}

static void draw_cell(tsi_text *out, const tsi_stages_measured *m, int64_t at, const ts_cell *cell,
                      int64_t row)
{
    char name[48];
    double scale = (WIDE - SIDE) / m->span, took = m->end[at] - m->begin[at];
    double x = SIDE + m->begin[at] * scale, width = took * scale;
    (void)ts_cell_text(cell, name, sizeof name);
    tsi_text_printf(out,
                    "<rect x=\"%.2f\" y=\"%lld\" width=\"%.2f\" height=\"%d\" fill=\"%s\" "
                    "stroke=\"var(--line)\"><title>%s: %.3f ms from %.3f ms on</title></rect>",
                    x, (long long)(row * HIGH + 2), width, HIGH - 4, colour_of(cell->kind), name,
                    1e3 * took, 1e3 * m->begin[at]);
    if (width > 24)
        tsi_text_printf(out, "<text x=\"%.2f\" y=\"%lld\" text-anchor=\"middle\">%s</text>",
                        x + width / 2, (long long)(row * HIGH + HIGH - 9), name);
}

static void draw(tsi_text *out, const tsi_stages_measured *m)
{
    int64_t ranks = ts_schedule_ranks(m->schedule), at = 0;
    tsi_text_printf(out,
                    "<svg class=\"gantt\" viewBox=\"0 0 %d %lld\" role=\"img\" "
                    "aria-label=\"the last step\">",
                    WIDE, (long long)(ranks * HIGH));
    for (int64_t r = 0; r < ranks; r++) {
        tsi_text_printf(out, "<text x=\"0\" y=\"%lld\">pp %lld</text>",
                        (long long)(r * HIGH + HIGH - 9), (long long)r);
        for (int64_t i = 0; i < ts_schedule_count(m->schedule, r); i++, at++) {
            ts_cell cell = ts_schedule_cell(m->schedule, r, i);
            if (tsi_cell_computes(&cell)) draw_cell(out, m, at, &cell, r);
        }
    }
    tsi_text_add(out, "</svg>");
}

void tsi_report_stages(tsi_text *out, const tsi_run *run)
{
    const tsi_stages_measured *m = &run->measured;
    if (!m->schedule || !(m->span > 0)) return;
    int64_t stages = ts_schedule_stages(m->schedule);
    const int64_t *blocks = tsi_stages_blocks(run->stages);
    tsi_text_printf(out,
                    "<h2>Pipeline: the last step, %.2f ms</h2><p>Idle: %.1f %% by the schedule if "
                    "all actions took the same, %.1f %% with the costs measured, %.1f %% "
                    "measured.</p>",
                    1e3 * m->span, 100 * tsi_stages_bubble(run->stages), 100 * m->simulated,
                    100 * m->bubble);
    draw(out, m);
    tsi_text_add(out, "<table><tr><th>stage</th><th>rank of pp</th><th>blocks</th><th>forward, "
                      "ms</th><th>gradient of inputs, ms</th><th>of weights, ms</th></tr>");
    for (int64_t g = 0; g < stages; g++)
        tsi_text_printf(out,
                        "<tr><td>%lld</td><td>%lld</td><td>%lld</td><td>%.3f</td><td>%.3f</td>"
                        "<td>%.3f</td></tr>",
                        (long long)g, (long long)ts_schedule_rank_of(m->schedule, g),
                        (long long)blocks[g], 1e3 * m->cost[g].forward, 1e3 * m->cost[g].input,
                        1e3 * m->cost[g].weight);
    tsi_text_add(out, "</table>\n");
}

ts_status tsi_stages_write(const tsi_run *run)
{
    const tsi_stages_measured *m = &run->measured;
    char path[TSI_CONFIG_TEXT_MAX];
    tsi_text out = { 0 };
    TSI_TRY(tsi_train_path(run->config, "stages.json", path));
    tsi_text_printf(&out, "{\"schedule\": ");
    tsi_text_json(&out, run->config->parallel.schedule);
    tsi_text_printf(&out,
                    ", \"ranks\": %lld, \"micro_batches\": %lld, \"bubble\": %.6f, \"cost\": [",
                    (long long)ts_schedule_ranks(m->schedule),
                    (long long)ts_schedule_micro_batches(m->schedule), m->bubble);
    for (int64_t g = 0; g < ts_schedule_stages(m->schedule); g++)
        tsi_text_printf(&out,
                        "%s\n {\"F\": %.9f, \"I\": %.9f, \"W\": %.9f, \"comm\": 0, \"memory\": 1}",
                        g ? "," : "", m->cost[g].forward, m->cost[g].input, m->cost[g].weight);
    tsi_text_add(&out, "]}\n");
    size_t length = out.length;
    char *text = tsi_text_take(&out);
    if (!text) return TS_ERR_MEMORY;
    ts_status status = tsi_file_replace(path, text, length);
    tsi_free(text);
    return status;
}
