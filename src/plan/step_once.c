/* SPDX-License-Identifier: Apache-2.0 */
/* step_once.c - each action that counts is there, once.
 *
 * A rank that has a stage of a pipeline does for every micro-batch one forward, then either one
 * backward, or one input gradient and then one weight gradient; no stage is on no rank. Without
 * stages only doubles are refused: a second update or reduction is never meant. */
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/error.h"
#include "plan/step_prove.h"

/* ---- doubles --------------------------------------------------------------------------------- */

static bool counts_once(const tsi_action *a)
{
#define ONCE_OF(name, text, class_, once) once,
    static const uint8_t once_of[] = { TSI_ACTION_LIST(ONCE_OF) };
#undef ONCE_OF
    return once_of[a->kind] && (a->what || a->stage >= 0);
}

static bool same_action(const void *value, const void *wanted)
{
    const tsi_action *a = value, *b = wanted;
    return a->kind == b->kind && a->what == b->what && a->stage == b->stage &&
           a->micro == b->micro && a->group == b->group;
}

static uint64_t action_key(const tsi_action *a)
{
    uint64_t h = tsi_hash_mix(1, (uint64_t)(uintptr_t)a->what);
    h = tsi_hash_mix(h, (uint64_t)a->kind << 32 | (uint32_t)a->group);
    return tsi_hash_mix(h, (uint64_t)(uint32_t)a->stage << 32 | (uint32_t)a->micro);
}

ts_status tsi_step_prove_once(const tsi_step *step, int64_t rank, tsi_findings *found)
{
    const tsi_step_list *list = tsi_step_list_of(step, rank);
    tsi_map seen = { 0 };
    ts_status status = TS_OK;
    for (int32_t i = 0; i < list->action_count && status == TS_OK; i++) {
        tsi_action *a = &list->action[i];
        if (!counts_once(a)) continue;
        uint64_t key = action_key(a);
        const tsi_action *before = tsi_map_find(&seen, key, same_action, a);
        if (!before) {
            status = tsi_map_insert(&seen, key, a);
            continue;
        }
        tsi_text text = { 0 };
        tsi_step_cite(step, rank, i, &text);
        tsi_text_printf(&text, " is there already as action %d",
                        (int32_t)(before - list->action) + 1);
        if (before->place && before->place != a->place)
            tsi_text_printf(&text, " at %s", before->place);
        status = tsi_step_refuse(found, TSI_FINDING_TWICE, &text);
    }
    tsi_map_release(&seen);
    return status;
}

/* ---- stages ---------------------------------------------------------------------------------- */

typedef struct work {
    int32_t stage, micro, kind, index;
} work;

static int compare_work(const void *x, const void *y)
{
    const work *a = x, *b = y;
    if (a->stage != b->stage) return a->stage < b->stage ? -1 : 1;
    if (a->micro != b->micro) return a->micro < b->micro ? -1 : 1;
    if (a->kind != b->kind) return a->kind < b->kind ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

static ts_status refuse_range(const tsi_step *step, int64_t rank, int32_t index,
                              tsi_findings *found)
{
    tsi_text text = { 0 };
    tsi_step_cite(step, rank, index, &text);
    tsi_text_printf(&text, " is outside of %d stages and %d micro-batches", step->stage_count,
                    step->micro_count);
    return tsi_step_refuse(found, TSI_FINDING_STAGES, &text);
}

static ts_status collect(const tsi_step *step, int64_t rank, tsi_findings *found, work *out,
                         int32_t *count)
{
    const tsi_step_list *list = tsi_step_list_of(step, rank);
    *count = 0;
    for (int32_t i = 0; i < list->action_count; i++) {
        const tsi_action *a = &list->action[i];
        if (a->kind > TSI_ACTION_WEIGHT_GRADIENT || a->stage < 0) continue;
        if (a->stage >= step->stage_count || a->micro < 0 || a->micro >= step->micro_count)
            TSI_TRY(refuse_range(step, rank, i, found));
        else
            out[(*count)++] = (work){ a->stage, a->micro, a->kind, i };
    }
    if (*count > 0) qsort(out, (size_t)*count, sizeof *out, compare_work);
    return TS_OK;
}

typedef struct staged { /* one rank, while its stages are looked at */
    const tsi_step *step;
    tsi_findings *found;
    int64_t rank;
    uint8_t *seen; /* [stage] */
} staged;

static ts_status refuse_work(const staged *s, int32_t stage, int32_t micro, const char *what)
{
    tsi_text text = { 0 };
    tsi_text_printf(&text, "stage %d, micro-batch %d on rank %lld: %s", stage, micro,
                    (long long)tsi_step_shown(s->step, s->rank), what);
    return tsi_step_refuse(s->found, TSI_FINDING_STAGES, &text);
}

static ts_status refuse_twice(const staged *s, const work *w, int32_t before)
{
    char what[96];
    (void)snprintf(what, sizeof what, "%s twice, as actions %d and %d", tsi_action_names[w->kind],
                   before + 1, w->index + 1);
    return refuse_work(s, w->stage, w->micro, what);
}

/* What is wrong with the actions of one micro-batch, by their places; NULL: nothing. */
static const char *micro_wrong(const int32_t *at)
{
    int32_t forward = at[TSI_ACTION_FORWARD], whole = at[TSI_ACTION_BACKWARD];
    int32_t input = at[TSI_ACTION_INPUT_GRADIENT], weight = at[TSI_ACTION_WEIGHT_GRADIENT];
    if (forward < 0) return "the forward is missing";
    if (whole >= 0 && (input >= 0 || weight >= 0))
        return "a backward, and a gradient of it once more";
    if (whole < 0 && input < 0) return "the backward is missing, or the input_gradient";
    if (whole < 0 && weight < 0) return "the weight_gradient is missing";
    if ((whole >= 0 && whole < forward) || (input >= 0 && input < forward))
        return "a gradient stands before the forward";
    if (weight >= 0 && weight < input)
        return "the weight_gradient stands before the input_gradient";
    return NULL;
}

/* What is done for one micro-batch of one stage, sorted by kind. */
static ts_status check_micro(const staged *s, const work *w, int32_t count)
{
    int32_t at[4] = { -1, -1, -1, -1 };
    for (int32_t i = 0; i < count; i++) {
        if (at[w[i].kind] >= 0) return refuse_twice(s, &w[i], at[w[i].kind]);
        at[w[i].kind] = w[i].index;
    }
    const char *wrong = micro_wrong(at);
    return wrong ? refuse_work(s, w->stage, w->micro, wrong) : TS_OK;
}

/* Sorted work: every stage that is there has all micro-batches. */
static ts_status check_rank(const staged *s, const work *w, int32_t count)
{
    int32_t stage = -1, next = s->step->micro_count;
    for (int32_t i = 0, end; i <= count; i = end) {
        bool fresh = i == count || w[i].stage != stage;
        if (fresh && next < s->step->micro_count)
            return refuse_work(s, stage, next, "the forward is missing");
        end = i + 1;
        if (i == count) break;
        if (fresh) next = 0;
        stage = w[i].stage;
        s->seen[stage] = 1;
        if (w[i].micro != next) return refuse_work(s, stage, next, "the forward is missing");
        while (end < count && w[end].stage == stage && w[end].micro == next)
            end++;
        TSI_TRY(check_micro(s, &w[i], end - i));
        next++;
    }
    return TS_OK;
}

static ts_status refuse_stage(const tsi_step *step, int32_t stage, tsi_findings *found)
{
    tsi_text text = { 0 };
    if (stage < 0)
        tsi_text_printf(&text, "%d stages in %lld actions: some stage is on no rank",
                        step->stage_count, (long long)tsi_step_action_count(step));
    else
        tsi_text_printf(&text, "stage %d is on no rank", stage);
    return tsi_step_refuse(found, TSI_FINDING_STAGES, &text);
}

ts_status tsi_step_prove_stages(const tsi_step *step, tsi_findings *found)
{
    int64_t most = 0;
    if (step->stage_count == 0) return TS_OK;
    if (step->stage_count > tsi_step_action_count(step)) return refuse_stage(step, -1, found);
    for (int32_t r = 0; r < step->list_count; r++)
        if (step->list[r].action_count > most) most = step->list[r].action_count;
    work *w = tsi_alloc_array((size_t)most + 1, sizeof *w);
    uint8_t *seen = tsi_calloc((size_t)step->stage_count, 1);
    ts_status status =
        w && seen ? TS_OK : tsi_fail_memory("the stages of a step", (size_t)most * 16);
    for (int32_t r = 0, count; r < step->list_count && status == TS_OK; r++) {
        staged s = { step, found, r, seen };
        status = collect(step, r, found, w, &count);
        if (status == TS_OK) status = check_rank(&s, w, count);
    }
    for (int32_t s = 0; s < step->stage_count && status == TS_OK; s++)
        if (!seen[s]) status = refuse_stage(step, s, found);
    tsi_free(w);
    tsi_free(seen);
    return status;
}
