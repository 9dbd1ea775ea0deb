/* SPDX-License-Identifier: Apache-2.0 */
/* query_text.c - what a query says: JSON for machines, words for people. */
#include <inttypes.h>
#include <string.h>

#include "op/ask/query.h"
#include "plan/plan.h"

/* ---- rules ----------------------------------------------------------------------------------- */

static void role_text(tsi_role role, tsi_text *text)
{
    if (role == TSI_ROLE_NONE)
        tsi_text_add(text, "-");
    else if (tsi_role_is_s(role))
        tsi_text_printf(text, "S(%d)", tsi_role_dim(role));
    else if (tsi_role_is_p(role))
        tsi_text_printf(text, "P(%s)", ts_reduce_name(tsi_role_reduce(role)));
    else
        tsi_text_add(text, "R");
}

void tsi_rule_text(const tsi_rules *rules, int32_t rule, tsi_text *text)
{
    const tsi_role *role = tsi_rules_row(rules, rule);
    int32_t inputs = rules->input_count;
    for (int32_t i = 0; i < inputs + rules->output_count; i++) {
        tsi_text_add(text, i == inputs ? "->" : i ? "," : "");
        role_text(role[i], text);
    }
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void json_places(const ts_sharding *sharding, tsi_text *text)
{
    tsi_text_add(text, "[");
    for (int32_t k = 0; k < sharding->ndim; k++) {
        char one[512];
        ts_placement_text(sharding, k, one, sizeof one);
        tsi_text_add(text, k ? ", " : "");
        tsi_text_json(text, one);
    }
    tsi_text_add(text, "]");
}

static void json_shape(const ts_shape *shape, tsi_text *text)
{
    tsi_text_add(text, "[");
    for (int32_t d = 0; d < shape->ndim; d++)
        tsi_text_printf(text, "%s%" PRId64, d ? ", " : "", shape->extent[d]);
    tsi_text_add(text, "]");
}

static void json_axes(uint32_t axes, tsi_text *text)
{
    bool first = true;
    tsi_text_add(text, "[");
    for (int32_t k = 0; k < TS_NDIM_MAX; k++) {
        if (!(axes >> k & 1u)) continue;
        tsi_text_printf(text, "%s%d", first ? "" : ", ", k);
        first = false;
    }
    tsi_text_add(text, "]");
}

/* "S(0), R" as a JSON list. */
static void json_list_of(const char *places, tsi_text *text)
{
    tsi_text_add(text, "[");
    for (const char *at = places; *at;) {
        const char *comma = strstr(at, ", ");
        size_t length = comma ? (size_t)(comma - at) : strlen(at);
        if (at != places) tsi_text_add(text, ", ");
        tsi_text_printf(text, "\"%.*s\"", (int)length, at);
        at += length + (comma ? 2 : 0);
    }
    tsi_text_add(text, "]");
}

static void json_step(const ts_plan *move, int32_t index, int32_t input, tsi_text *text)
{
    ts_plan_step step = TS_INIT(ts_plan_step);
    char from[1024], to[1024];
    if (ts_plan_step_at(move, index, &step) != TS_OK) return;
    ts_plan_step_from(move, index, from, sizeof from);
    ts_plan_step_to(move, index, to, sizeof to);
    tsi_text_printf(text, "{\"input\": %d, \"kind\": \"%s\", \"axes\": ", input,
                    ts_step_kind_name((ts_step_kind)step.kind));
    json_axes(step.axes, text);
    tsi_text_add(text, ", \"from\": ");
    json_list_of(from, text);
    tsi_text_add(text, ", \"to\": ");
    json_list_of(to, text);
    tsi_text_printf(text, ", \"bytes_received\": %" PRId64 "}", step.bytes_received);
}

/* The plan of leg 0 or 1 of an input's move, held; NULL: there is none. */
static ts_plan *move_of(const ts_op_query *query, int32_t input, int leg)
{
    const tsi_op_plan *plan = query->plan;
    const ts_layout *from = plan->in[input], *to = plan->wanted[input], *via = plan->via[input];
    ts_plan *move = NULL;
    if (!to || (leg == 1 && !via)) return NULL;
    if (via && leg == 0) to = via;
    if (via && leg == 1) from = via;
    ts_status status = ts_plan_cached(from, to, (ts_dtype)plan->in_dtype[input], NULL, &move);
    return status == TS_OK ? move : NULL;
}

/* Algorithms that were weighed against each other. */
static void json_candidates(const ts_op_query *query, tsi_text *text)
{
    const tsi_algorithm_choice *all = &query->story.algorithms;
    const char *between = ", \"candidates\": [";
    for (int32_t i = 0; i < all->count; i++) {
        const tsi_algorithm_candidate *c = &all->candidate[i];
        if (c->algorithm == 0) continue;
        tsi_text_printf(text,
                        "%s{\"name\": \"%s\", \"bytes_received\": %" PRId64
                        ", \"steps\": %d, \"memory\": %" PRId64 ", \"balance\": ",
                        between, query->op->algorithm[c->algorithm - 1].name, c->bytes, c->steps,
                        c->memory);
        tsi_text_real(text, c->balance);
        tsi_text_add(text, ", \"time_us\": ");
        tsi_text_real(text, c->us);
        tsi_text_add(text, "}");
        between = ", ";
    }
    if (all->count > 0) tsi_text_add(text, "]");
}

static void words_candidates(const ts_op_query *query, tsi_text *text)
{
    const tsi_algorithm_choice *all = &query->story.algorithms;
    for (int32_t i = 0; i < all->count; i++) {
        const tsi_algorithm_candidate *c = &all->candidate[i];
        char bytes[32], memory[32];
        if (c->algorithm == 0) continue;
        tsi_text_printf(
            text, "  %s %-9s %10.4g us, %s received in %d steps, %s beside, balance %.3f\n",
            i == all->chosen ? "takes" : "or   ", query->op->algorithm[c->algorithm - 1].name,
            c->us, tsi_text_bytes(bytes, sizeof bytes, c->bytes), c->steps,
            tsi_text_bytes(memory, sizeof memory, c->memory), c->balance);
    }
}

static void json_steps(const ts_op_query *query, tsi_text *text)
{
    const tsi_op_plan *plan = query->plan;
    bool first = true;
    tsi_text_add(text, "[");
    for (int32_t leg = 0; leg < 2 * plan->input_count; leg++) {
        int32_t i = leg / 2;
        ts_plan *move = move_of(query, i, leg % 2);
        ts_plan_summary summary = TS_INIT(ts_plan_summary);
        if (!move) continue;
        ts_plan_summarise(move, &summary);
        for (int32_t s = 0; s < summary.step_count; s++) {
            tsi_text_add(text, first ? "" : ", ");
            json_step(move, s, i, text);
            first = false;
        }
        ts_plan_release(move);
    }
    if (plan->algorithm > 0) {
        tsi_text_printf(text, "%s{\"kind\": \"algorithm\", \"name\": \"%s\", \"axes\": ",
                        first ? "" : ", ", plan->op->algorithm[plan->algorithm - 1].name);
        json_axes(plan->algorithm_axes, text);
        tsi_text_printf(text, ", \"bytes_received\": %" PRId64, plan->algorithm_bytes);
        json_candidates(query, text);
        tsi_text_add(text, "}");
    }
    tsi_text_add(text, "]");
}

/* ---- why ------------------------------------------------------------------------------------- */

static void axis_name(const tsi_mesh_desc *mesh, int32_t axis, tsi_text *text)
{
    if (mesh->name[axis][0])
        tsi_text_add(text, mesh->name[axis]);
    else
        tsi_text_printf(text, "axis %d", axis);
}

static void rules_words(const ts_op_query *query, const int32_t *rule, tsi_text *text)
{
    const tsi_mesh_desc *mesh = query->mesh->desc;
    for (int32_t k = 0; k < mesh->ndim; k++) {
        tsi_text_add(text, k ? "; " : "");
        axis_name(mesh, k, text);
        tsi_text_add(text, ": ");
        tsi_rule_text(&query->story.rules, rule[k], text);
    }
}

static void why_words(const ts_op_query *query, tsi_text *text)
{
    const tsi_op_plan *plan = query->plan;
    int32_t changed = 0;
    for (int32_t i = 0; i < plan->input_count; i++)
        changed += plan->wanted[i] != NULL;
    if (plan->moved_total > 0)
        tsi_text_add(text, "the cheapest legal combination of rules moves inputs");
    else if (changed > 0)
        tsi_text_add(text, "inputs are sliced or partitioned where they are; nothing is received");
    else
        tsi_text_add(text, "every input stays as it is");
    if (plan->algorithm > 0)
        tsi_text_printf(text, ", and the algorithm \"%s\" communicates",
                        plan->op->algorithm[plan->algorithm - 1].name);
    if (query->story.rules.count == 0) {
        tsi_text_add(text, "; a view: decided from the whole layout");
        return;
    }
    tsi_text_add(text, " (");
    rules_words(query, query->story.chosen.rule, text);
    tsi_text_add(text, ")");
    if (query->story.other_count > 0 && tsi_op_plan_bytes(plan) > 0)
        tsi_text_printf(text, ": %.3g us, the next best %.3g us", query->story.chosen.cost_us,
                        query->story.other[0].cost_us);
}

static void json_why(const ts_op_query *query, tsi_text *text)
{
    tsi_text why = { 0 };
    why_words(query, &why);
    tsi_text_json(text, why.data);
    text->failed |= why.failed;
    tsi_text_release(&why);
}

static void json_outs(const tsi_op_plan *plan, tsi_text *text)
{
    tsi_text_add(text, "[");
    for (int32_t o = 0; o < plan->output_count; o++) {
        tsi_text_add(text, o ? ", {\"placements\": " : "{\"placements\": ");
        json_places(plan->out[o]->sharding, text);
        tsi_text_add(text, ", \"shape\": ");
        json_shape(&plan->out_meta[o].shape, text);
        tsi_text_printf(text, ", \"dtype\": \"%s\"}",
                        ts_dtype_name((ts_dtype)plan->out_meta[o].dtype));
    }
    tsi_text_add(text, "]");
}

static void json_rules(const ts_op_query *query, tsi_text *text)
{
    tsi_text_add(text, ", \"rules\": [");
    for (int32_t k = 0; query->story.rules.count > 0 && k < query->mesh->desc->ndim; k++) {
        tsi_text_add(text, k ? ", \"" : "\"");
        tsi_rule_text(&query->story.rules, query->story.chosen.rule[k], text);
        tsi_text_add(text, "\"");
    }
    tsi_text_add(text, "]");
}

static void json_others(const ts_op_query *query, tsi_text *text)
{
    tsi_text_add(text, ", \"others\": [");
    for (int32_t i = 0; i < query->story.other_count; i++) {
        const tsi_op_choice *other = &query->story.other[i];
        tsi_text_add(text, i ? ", {\"out\": " : "{\"out\": ");
        json_places(other->out, text);
        tsi_text_printf(text, ", \"time_us\": %.6g}", other->cost_us);
    }
    tsi_text_add(text, "]");
}

size_t ts_op_query_json(const ts_op_query *query, char *out, size_t size)
{
    const tsi_op_plan *plan = query->plan;
    tsi_text text = { 0 };
    tsi_text_add(&text, "{\"out\": ");
    if (query->op->flags & TSI_OP_HOST)
        tsi_text_add(&text, "\"host\"");
    else
        json_places(plan->out[0]->sharding, &text);
    tsi_text_add(&text, ", \"out_shape\": ");
    json_shape(&plan->out_meta[0].shape, &text);
    tsi_text_add(&text, ", \"outs\": ");
    json_outs(plan, &text);
    tsi_text_add(&text, ", \"steps\": ");
    json_steps(query, &text);
    tsi_text_printf(&text, ", \"bytes_received\": %" PRId64 ", \"time_us\": %.6g, \"why\": ",
                    tsi_op_plan_bytes(plan), query->story.chosen.cost_us);
    json_why(query, &text);
    json_rules(query, &text);
    json_others(query, &text);
    tsi_query_kernels_json(query, &text);
    tsi_text_add(&text, "}");
    return tsi_text_give(&text, out, size);
}

/* ---- for a person ---------------------------------------------------------------------------- */

static void words_input(const ts_op_query *query, int32_t i, tsi_text *text)
{
    const tsi_op_plan *plan = query->plan;
    if (!plan->in[i]) {
        tsi_text_printf(text, "  input %d   absent\n", i);
        return;
    }
    tsi_text_printf(text, "  input %d   %s %s", i, ts_dtype_name((ts_dtype)plan->in_dtype[i]),
                    plan->in[i]->text);
    for (int leg = 0; leg < 2; leg++) {
        ts_plan *move = move_of(query, i, leg);
        if (!move) continue;
        char to[256], bytes[32], trace[512];
        ts_plan_summary summary = TS_INIT(ts_plan_summary);
        ts_plan_summarise(move, &summary);
        ts_sharding_text(ts_layout_sharding(ts_plan_target(move)), to, sizeof to);
        ts_plan_trace(move, trace, sizeof trace);
        tsi_text_printf(text, "  moves to (%s): %s, %s received", to, trace,
                        tsi_text_bytes(bytes, sizeof bytes, summary.bytes_received));
        ts_plan_release(move);
    }
    tsi_text_add(text, "\n");
}

size_t ts_op_query_text(const ts_op_query *query, char *out, size_t size)
{
    const tsi_op_plan *plan = query->plan;
    tsi_text text = { 0 };
    char bytes[32];
    tsi_text_printf(&text, "%s%s ", query->op->name, plan->in_place ? "_" : "");
    tsi_attributes_json(query->op, plan->attributes, &text);
    tsi_text_printf(&text, ": %s received by all ranks, %.4g us predicted\n",
                    tsi_text_bytes(bytes, sizeof bytes, tsi_op_plan_bytes(plan)),
                    query->story.chosen.cost_us);
    for (int32_t i = 0; i < plan->input_count; i++)
        words_input(query, i, &text);
    if (plan->algorithm > 0)
        tsi_text_printf(&text, "  algorithm %s, %s received\n",
                        plan->op->algorithm[plan->algorithm - 1].name,
                        tsi_text_bytes(bytes, sizeof bytes, plan->algorithm_bytes));
    words_candidates(query, &text);
    tsi_query_kernels_words(query, &text);
    for (int32_t o = 0; o < plan->output_count; o++)
        tsi_text_printf(&text, "  output %d  %s %s\n", o,
                        ts_dtype_name((ts_dtype)plan->out_meta[o].dtype), plan->out[o]->text);
    tsi_text_add(&text, "  why: ");
    why_words(query, &text);
    tsi_text_add(&text, "\n");
    for (int32_t i = 0; i < query->story.other_count; i++) {
        const tsi_op_choice *other = &query->story.other[i];
        tsi_text_printf(&text, "  else %10.4g us  ", other->cost_us);
        rules_words(query, other->rule, &text);
        tsi_text_add(&text, "\n");
    }
    return tsi_text_give(&text, out, size);
}
