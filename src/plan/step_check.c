/* SPDX-License-Identifier: Apache-2.0 */
/* step_check.c - what is wrong with a step: one pass over all of it, without running anything.
 *
 * A wide step is narrowed first (step_wide.h): what is found of a class of ranks is true of each of
 * them, and what is wrong already then is all that is found. A proof is a check that found nothing.
 */
#include "base/alloc.h"
#include "base/error.h"
#include "plan/step_prove.h"
#include "plan/step_wide.h"

#define FINDING_NAME(name, text) #text,
const char *const tsi_finding_names[] = { TSI_FINDING_LIST(FINDING_NAME) NULL };
#undef FINDING_NAME

ts_status tsi_step_refuse(tsi_findings *found, tsi_finding_kind kind, tsi_text *sentence)
{
    ts_status status = TS_OK;
    if (sentence->failed)
        status = tsi_fail_memory("a sentence", sentence->length);
    else if (!found)
        status = TSI_FAIL(TS_ERR_ARG, "step: %s", sentence->data);
    else if (found->by[kind]++, found->total++ < TSI_FINDINGS_MAX) {
        status = tsi_room(&found->item, found->count, &found->capacity, sizeof *found->item,
                          "what was found");
        char *text = status == TS_OK ? tsi_text_take(sentence) : NULL;
        if (status == TS_OK && !text) status = TS_ERR_MEMORY;
        if (status == TS_OK) found->item[found->count++] = (tsi_finding){ (int32_t)kind, text };
    }
    tsi_text_release(sentence);
    return status;
}

void tsi_findings_release(tsi_findings *found)
{
    for (int64_t i = 0; i < found->count; i++)
        tsi_free(found->item[i].text);
    tsi_free(found->item);
    *found = (tsi_findings){ 0 };
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void add_account(const tsi_step_peak *peak, tsi_text *text)
{
    const char *comma = ": ";
    for (int32_t m = 0; m < TSI_STEP_MEMORY_KINDS; m++) {
        if (peak->by[m] == 0) continue;
        tsi_text_printf(text, "%s%s %lld", comma, tsi_step_memory_names[m], (long long)peak->by[m]);
        comma = ", ";
    }
}

static void add_moment(const tsi_step *step, int64_t rank, const tsi_step_peak *peak,
                       tsi_text *text)
{
    if (peak->action >= 0)
        tsi_step_cite(step, rank, peak->action, text);
    else
        tsi_text_add(text, "its beginning");
    add_account(peak, text);
}

static ts_status check_memory(const tsi_step *step, int64_t rank, int64_t cap, tsi_findings *found)
{
    tsi_step_peak peak;
    tsi_text text = { 0 };
    int64_t planned = tsi_step_list_of(step, rank)->peak;
    long long shown = (long long)tsi_step_shown(step, rank);
    tsi_step_memory_of(step, rank, &peak, NULL);
    if (cap > 0 && peak.bytes > cap) {
        tsi_text_printf(&text, "rank %lld needs %lld bytes, %lld more than the cap, at ", shown,
                        (long long)peak.bytes, (long long)(peak.bytes - cap));
        add_moment(step, rank, &peak, &text);
        TSI_TRY(tsi_step_refuse(found, TSI_FINDING_MEMORY, &text));
    }
    if (planned == 0 || planned == peak.bytes) return TS_OK;
    tsi_text_printf(&text, "rank %lld needs %lld bytes and not the %lld that are planned, at ",
                    shown, (long long)peak.bytes, (long long)planned);
    add_moment(step, rank, &peak, &text);
    return tsi_step_refuse(found, TSI_FINDING_PEAK, &text);
}

/* ---- policy ---------------------------------------------------------------------------------- */

static ts_status check_hidden(const tsi_step *step, int64_t rank, tsi_findings *found)
{
    const tsi_step_list *list = tsi_step_list_of(step, rank);
    for (int32_t i = 0; i < list->action_count; i++) {
        if (!list->action[i].hidden) continue;
        tsi_text text = { 0 };
        tsi_step_cite(step, rank, i, &text);
        tsi_text_printf(&text,
                        " moves %lld bytes that nobody asked to move: an operator wants its "
                        "input in another form",
                        (long long)list->action[i].bytes);
        TSI_TRY(tsi_step_refuse(found, TSI_FINDING_HIDDEN, &text));
    }
    return TS_OK;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static ts_status check_narrow(const tsi_step *step, const tsi_step_rules *rules,
                              tsi_findings *found)
{
    for (int64_t r = 0; r < step->list_count; r++) {
        TSI_TRY(tsi_step_prove_once(step, r, found));
        TSI_TRY(tsi_step_prove_parts(step, r, found));
        TSI_TRY(tsi_step_prove_order(step, r, found));
        TSI_TRY(tsi_step_prove_forms(step, r, found));
        TSI_TRY(check_memory(step, r, rules->memory_bytes_max, found));
        if (rules->no_hidden) TSI_TRY(check_hidden(step, r, found));
    }
    TSI_TRY(tsi_step_prove_stages(step, found));
    tsi_step_graph graph;
    ts_status status = tsi_step_graph_make(step, rules->buffered, found, &graph);
    tsi_step_graph_release(&graph);
    return status;
}

ts_status tsi_step_check(const tsi_step *step, const tsi_step_rules *rules, tsi_findings *found)
{
    static const tsi_step_rules plain = { 0 };
    if (!rules) rules = &plain;
    if (!step->wide) return check_narrow(step, rules, found);
    tsi_step *narrow = NULL;
    ts_status status = tsi_step_narrow(step, found, &narrow);
    if (status == TS_OK && narrow) status = check_narrow(narrow, rules, found);
    tsi_step_destroy(narrow);
    return status;
}

ts_status tsi_step_prove(const tsi_step *step, const tsi_step_rules *rules)
{
    tsi_findings found = { 0 };
    ts_status status = tsi_step_check(step, rules, &found);
    if (status == TS_OK && found.count > 0)
        status = TSI_FAIL(TS_ERR_ARG, "step: %s", found.item[0].text);
    tsi_findings_release(&found);
    return status;
}
