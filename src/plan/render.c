/* SPDX-License-Identifier: Apache-2.0 */
/* render.c - plans as texts: for a person, as JSON, as a trace of states. Everything is computed
 * from the plan when it is asked for, so that making a plan formats nothing. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "plan/plan.h"

static const char *const family_names[] = { "none", "local", "collectives", "direct",
                                            "hierarchical" };
static const char *const kind_names[] = { "slice",      "partition",      "all_gather",
                                          "all_reduce", "reduce_scatter", "all_to_all",
                                          "exchange",   "reduce_exchange" };

const char *ts_plan_family_name(ts_plan_family family)
{
    return family >= TS_PLAN_NONE && family <= TS_PLAN_HIERARCHICAL ? family_names[family]
                                                                    : "unknown";
}

const char *ts_step_kind_name(ts_step_kind kind)
{
    return kind >= TS_STEP_SLICE && kind <= TS_STEP_REDUCE_EXCHANGE ? kind_names[kind] : "unknown";
}

/* ---- placements ----------------------------------------------------------------------------- */

static void sharding_list(const ts_sharding *sharding, bool json, tsi_text *text)
{
    for (int32_t k = 0; k < sharding->ndim; k++) {
        char one[512];
        ts_placement_text(sharding, k, one, sizeof one);
        tsi_text_add(text, k ? ", " : "");
        if (json)
            tsi_text_json(text, one);
        else
            tsi_text_add(text, one);
    }
}

/* In JSON the planners that are named after the reference write placements as it does, without the
 * marks of order; texts have them always. */
static void state_list(const ts_plan *plan, tsi_state state, bool json, tsi_text *text)
{
    bool reference = plan->planner == TSI_PLANNER_GREEDY || plan->planner == TSI_PLANNER_GRAPH;
    for (int32_t k = 0; k < plan->space.axes; k++) {
        tsi_text one = { 0 };
        tsi_space_place_text(&plan->space, state, k, !(json && reference), &one);
        tsi_text_add(text, k ? ", " : "");
        if (json)
            tsi_text_json(text, one.data);
        else
            tsi_text_add(text, one.data ? one.data : "");
        text->failed |= one.failed;
        tsi_text_release(&one);
    }
}

static tsi_state state_before(const ts_plan *plan, int32_t index)
{
    return index == 0 ? plan->first : plan->step[index - 1].to;
}

static void step_side(const ts_plan *plan, int32_t index, bool after, bool json, tsi_text *text)
{
    if (plan->has_space) {
        state_list(plan, after ? plan->step[index].to : state_before(plan, index), json, text);
    } else {
        sharding_list((after ? plan->dst : plan->src)->sharding, json, text);
    }
}

size_t ts_plan_step_from(const ts_plan *plan, int32_t index, char *out, size_t size)
{
    tsi_text text = { 0 };
    if (index >= 0 && index < plan->step_count) step_side(plan, index, false, false, &text);
    return tsi_text_give(&text, out, size);
}

size_t ts_plan_step_to(const ts_plan *plan, int32_t index, char *out, size_t size)
{
    tsi_text text = { 0 };
    if (index >= 0 && index < plan->step_count) step_side(plan, index, true, false, &text);
    return tsi_text_give(&text, out, size);
}

size_t ts_plan_trace(const ts_plan *plan, char *out, size_t size)
{
    tsi_text text = { 0 };
    if (!plan->has_space) {
        sharding_list(plan->src->sharding, false, &text);
        tsi_text_add(&text, "-->");
        sharding_list(plan->dst->sharding, false, &text);
        return tsi_text_give(&text, out, size);
    }
    tsi_space_trace(&plan->space, plan->first, &text);
    for (int32_t i = 0; i < plan->step_count; i++) {
        uint32_t axes = plan->step[i].axes;
        tsi_text_add(&text, (axes & (axes - 1)) != 0 ? "-->" : "->");
        tsi_space_trace(&plan->space, plan->step[i].to, &text);
    }
    return tsi_text_give(&text, out, size);
}

/* ---- why ------------------------------------------------------------------------------------ */

/* "direct at 12.3 us", "collectives at 12.3 us or more". */
static void other_words(const ts_plan *plan, tsi_text *text)
{
    tsi_text_printf(text, "%s at %.3g us%s", family_names[plan->other_family], plan->other_us,
                    plan->other_bounded ? " or more" : "");
}

static void faster_words(const ts_plan *plan, tsi_text *text)
{
    char ours[32], theirs[32];
    (void)snprintf(ours, sizeof ours, "%.3g", plan->time_us);
    (void)snprintf(theirs, sizeof theirs, "%.3g", plan->other_us);
    tsi_text_printf(text, "%s takes %s us, ", family_names[plan->family], ours);
    if (strcmp(ours, theirs) == 0) { /* rounded, "less than" would compare a number with itself */
        tsi_text_printf(text, "%s %s as long", family_names[plan->other_family],
                        plan->other_bounded ? "at least" : "about");
    } else {
        tsi_text_add(text, "less than ");
        other_words(plan, text);
    }
    if (plan->bytes_received == plan->bytes_bound) {
        tsi_text_add(text, "; it receives no more than the bound");
    } else {
        tsi_text_add(text, "; no sequence of collectives receives fewer bytes");
    }
}

static void why_words(const ts_plan *plan, tsi_text *text)
{
    switch ((tsi_why)plan->why) {
    case TSI_WHY_SAME:
        tsi_text_add(text, "every element is where it is wanted");
        return;
    case TSI_WHY_LOCAL:
        tsi_text_add(text, "every rank already holds what it needs");
        return;
    case TSI_WHY_NAMED:
        tsi_text_printf(text, "planner '%s' was asked for", tsi_planner_names[plan->planner]);
        if (plan->bytes_bound > 0) {
            tsi_text_printf(text, "; it receives %.3g times the bound",
                            (double)plan->bytes_received / (double)plan->bytes_bound);
        }
        return;
    case TSI_WHY_OTHER_MESH:
        tsi_text_add(
            text,
            "source and target lie on different meshes: each rank gets exactly what it lacks");
        return;
    case TSI_WHY_SPANS:
        tsi_text_add(text, "a cut runs over several dims, which no collective makes: each rank "
                           "gets what it lacks");
        return;
    case TSI_WHY_WHOLE:
        tsi_text_add(text, "averages of integers truncate, so they are divided once, by all axes: "
                           "each rank gets what it lacks");
        return;
    case TSI_WHY_FORBIDDEN:
        tsi_text_add(text, "the other family is forbidden");
        return;
    case TSI_WHY_BUDGET:
        tsi_text_add(text, "the budget leaves no room for intermediate arrays of ");
        other_words(plan, text);
        return;
    case TSI_WHY_FASTER:
        faster_words(plan, text);
        return;
    case TSI_WHY_FEWER_BYTES:
        other_words(plan, text);
        tsi_text_printf(text,
                        " would receive %" PRId64 " bytes; direct receives the bound of %" PRId64,
                        plan->other_bytes, plan->bytes_bound);
        return;
    case TSI_WHY_UNPROVED:
        tsi_text_add(
            text,
            "the search stopped before it could prove a sequence of collectives better; direct "
            "receives the bound");
        return;
    }
}

size_t ts_plan_why(const ts_plan *plan, char *out, size_t size)
{
    tsi_text text = { 0 };
    why_words(plan, &text);
    return tsi_text_give(&text, out, size);
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static void json_axes(const ts_plan *plan, uint32_t axes, tsi_text *text)
{
    bool first = true;
    tsi_text_add(text, "\"axes\": [");
    for (int32_t k = 0; k < plan->src->sharding->ndim; k++) {
        if (!(axes >> k & 1u)) continue;
        tsi_text_printf(text, "%s%d", first ? "" : ", ", k);
        first = false;
    }
    tsi_text_add(text, "]");
}

/* [[axis, from, to], ...] of the axes whose placement changes, without marks of order. */
static void json_changes(const ts_plan *plan, int32_t index, tsi_text *text)
{
    tsi_state from = state_before(plan, index), to = plan->step[index].to;
    bool first = true;
    tsi_text_add(text, ", \"changes\": [");
    for (int32_t k = 0; k < plan->space.axes; k++) {
        if (tsi_state_code(from, k) == tsi_state_code(to, k)) continue;
        tsi_text_printf(text, "%s[%d, \"", first ? "" : ", ", k);
        tsi_space_place_text(&plan->space, from, k, false, text);
        tsi_text_add(text, "\", \"");
        tsi_space_place_text(&plan->space, to, k, false, text);
        tsi_text_add(text, "\"]");
        first = false;
    }
    tsi_text_add(text, "]");
}

static void json_step(const ts_plan *plan, int32_t index, tsi_text *text)
{
    const tsi_path_step *step = &plan->step[index];
    tsi_text_printf(text, "{\"kind\": \"%s\", ", kind_names[step->kind]);
    json_axes(plan, step->axes, text);
    tsi_text_add(text, ", \"from\": [");
    step_side(plan, index, false, true, text);
    tsi_text_add(text, "], \"to\": [");
    step_side(plan, index, true, true, text);
    tsi_text_add(text, "]");
    if (plan->has_space) json_changes(plan, index, text);
    tsi_text_printf(text, ", \"bytes_received\": %" PRId64 ", \"time_us\": %.6g}", step->bytes,
                    step->time_us);
}

static void json_other(const ts_plan *plan, tsi_text *text)
{
    if (plan->other_family == TS_PLAN_NONE) {
        tsi_text_add(text, ", \"other\": null");
        return;
    }
    tsi_text_printf(text, ", \"other\": {\"family\": \"%s\", \"time_us\": %.6g%s",
                    family_names[plan->other_family], plan->other_us,
                    plan->other_bounded ? ", \"at_least\": true" : "");
    if (plan->other_bytes >= 0)
        tsi_text_printf(text, ", \"bytes_received\": %" PRId64, plan->other_bytes);
    tsi_text_add(text, "}");
}

size_t ts_plan_json(const ts_plan *plan, char *out, size_t size)
{
    tsi_text text = { 0 };
    ts_plan_summary s = { .struct_size = sizeof s };
    ts_plan_summarise(plan, &s);
    tsi_text_printf(&text, "{\"family\": \"%s\", \"steps\": [", family_names[plan->family]);
    for (int32_t i = 0; i < plan->step_count; i++) {
        tsi_text_add(&text, i ? ", " : "");
        json_step(plan, i, &text);
    }
    tsi_text_printf(&text,
                    "], \"bytes_received\": %" PRId64 ", \"bytes_bound\": %" PRId64
                    ", \"time_us\": %.6g, \"peak_bytes\": %" PRId64 ", \"why\": ",
                    plan->bytes_received, plan->bytes_bound, plan->time_us, plan->peak_bytes);
    tsi_text why = { 0 };
    why_words(plan, &why);
    tsi_text_json(&text, why.data);
    text.failed |= why.failed;
    tsi_text_release(&why);
    json_other(plan, &text);
    tsi_text_printf(&text,
                    ", \"planner\": \"%s\", \"topology\": ", tsi_planner_names[plan->planner]);
    tsi_text_json(&text, plan->topology);
    tsi_text_printf(&text, ", \"rounds\": %" PRId64 ", \"states\": %" PRId64 "}", s.rounds,
                    s.states);
    return tsi_text_give(&text, out, size);
}

/* ---- for a person --------------------------------------------------------------------------- */

static void words_axes(const ts_plan *plan, uint32_t axes, tsi_text *text)
{
    const tsi_mesh_desc *mesh = plan->src->sharding->mesh;
    bool first = true;
    for (int32_t k = 0; k < mesh->ndim; k++) {
        if (!(axes >> k & 1u)) continue;
        if (!first) tsi_text_add(text, "+");
        if (mesh->name[k][0] != '\0')
            tsi_text_add(text, mesh->name[k]);
        else
            tsi_text_printf(text, "%d", k);
        first = false;
    }
}

static void words_step(const ts_plan *plan, int32_t index, tsi_text *text)
{
    const tsi_path_step *step = &plan->step[index];
    char bytes[32];
    tsi_text_printf(text, "  %d. %-15s on ", index + 1, kind_names[step->kind]);
    words_axes(plan, step->axes, text);
    tsi_text_add(text, "   ");
    step_side(plan, index, false, false, text);
    tsi_text_add(text, "  ->  ");
    step_side(plan, index, true, false, text);
    tsi_text_printf(text, "   %s received, %.4g us\n",
                    tsi_text_bytes(bytes, sizeof bytes, step->bytes), step->time_us);
}

size_t ts_plan_text(const ts_plan *plan, char *out, size_t size)
{
    tsi_text text = { 0 };
    char a[32], b[32], c[32];
    tsi_text_printf(
        &text,
        "%s: %s received by all ranks (bound %s), %.4g us predicted on %s, %s extra memory\n",
        family_names[plan->family], tsi_text_bytes(a, sizeof a, plan->bytes_received),
        tsi_text_bytes(b, sizeof b, plan->bytes_bound), plan->time_us, plan->topology,
        tsi_text_bytes(c, sizeof c, plan->peak_bytes));
    for (int32_t i = 0; i < plan->step_count; i++)
        words_step(plan, i, &text);
    tsi_text_add(&text, "  why: ");
    why_words(plan, &text);
    tsi_text_add(&text, "\n");
    if (plan->other_family != TS_PLAN_NONE) {
        tsi_text_add(&text, "  otherwise: ");
        other_words(plan, &text);
        tsi_text_add(&text, "\n");
    }
    return tsi_text_give(&text, out, size);
}
