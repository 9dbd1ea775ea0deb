/* SPDX-License-Identifier: Apache-2.0 */
/* step_prove.c - may this step run? Each part of the proof names what breaks it. */
#include "plan/step_prove.h"

#include "base/error.h"

static ts_status prove_memory(const tsi_step *step, int64_t rank, int64_t cap)
{
    tsi_step_peak peak;
    tsi_step_memory_of(step, rank, &peak, NULL);
    if (peak.bytes <= cap) return TS_OK;
    tsi_text text = { 0 };
    tsi_text_printf(&text, "rank %lld needs %lld bytes, %lld more than the cap, at ",
                    (long long)rank, (long long)peak.bytes, (long long)(peak.bytes - cap));
    if (peak.action >= 0)
        tsi_step_cite(step, rank, peak.action, &text);
    else
        tsi_text_add(&text, "its beginning");
    const char *comma = ": ";
    for (int32_t m = 0; m < TSI_STEP_MEMORY_KINDS; m++) {
        if (peak.by[m] == 0) continue;
        tsi_text_printf(&text, "%s%s %lld", comma, tsi_step_memory_names[m], (long long)peak.by[m]);
        comma = ", ";
    }
    return tsi_step_refuse(&text);
}

ts_status tsi_step_prove(const tsi_step *step, const tsi_step_rules *rules)
{
    static const tsi_step_rules plain = { 0 };
    if (!rules) rules = &plain;
    for (int64_t r = 0; r < step->list_count; r++) {
        TSI_TRY(tsi_step_prove_once(step, r));
        TSI_TRY(tsi_step_prove_order(step, r));
        if (rules->memory_bytes_max > 0) TSI_TRY(prove_memory(step, r, rules->memory_bytes_max));
    }
    TSI_TRY(tsi_step_prove_stages(step));
    tsi_step_graph graph;
    ts_status status = tsi_step_graph_make(step, rules->buffered, &graph);
    tsi_step_graph_release(&graph);
    return status;
}
