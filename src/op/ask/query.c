/* SPDX-License-Identifier: Apache-2.0 */
/* query.c - planning a call that is not made: by name, layouts and attributes as JSON.
 *
 * The plan comes from the same code as that of a real call (propagate.c); only the mesh may be a
 * description, and the way to the choice is kept to be told. */
#include "op/ask/query.h"

#include <string.h>

#include "base/alloc.h"
#include "op/core/call.h"
#include "op/core/element.h"

/* ---- dtypes ---------------------------------------------------------------------------------- */

/* Integers beside numbers are indices and stay; alone they are the numbers. */
static ts_dtype dtype_like(ts_dtype sampled, ts_dtype wanted, bool alone)
{
    tsi_category kind = tsi_dtype_category(sampled), asked = tsi_dtype_category(wanted);
    if (kind == TSI_CATEGORY_REAL || (kind == asked && kind != TSI_CATEGORY_INT)) return wanted;
    return alone && kind == TSI_CATEGORY_INT && asked <= TSI_CATEGORY_INT ? wanted : sampled;
}

uint64_t tsi_op_input_dtypes(const tsi_op_desc *op, int32_t input_count, ts_dtype dtype,
                             uint8_t *out)
{
    ts_meta in[TSI_INPUT_MAX];
    uint64_t attributes[TSI_ATTRIBUTES_MAX / 8], known = 0, is_index = 0;
    for (int32_t i = 0; i < input_count; i++)
        out[i] = (uint8_t)dtype;
    for (int32_t variant = 0; variant < 8; variant++) {
        uint64_t random = 1 + (uint64_t)variant;
        int32_t count = op->input_max;
        memset(in, 0, sizeof in);
        memset(attributes, 0, sizeof attributes);
        if (!tsi_op_sample(op, &random, variant, in, &count, attributes)) break;
        bool alone = true;
        for (int32_t i = 0; i < count; i++)
            alone &= tsi_dtype_category((ts_dtype)in[i].dtype) <= TSI_CATEGORY_INT;
        for (int32_t i = 0; i < count && i < input_count; i++) {
            if (known >> (i & 63) & 1 || in[i].dtype == TS_DTYPE_NONE) continue;
            out[i] = (uint8_t)dtype_like((ts_dtype)in[i].dtype, dtype, alone);
            known |= UINT64_C(1) << (i & 63);
            if (!alone && tsi_dtype_category((ts_dtype)in[i].dtype) == TSI_CATEGORY_INT)
                is_index |= UINT64_C(1) << (i & 63);
        }
    }
    for (int32_t i = 1; i < input_count; i++) { /* more of the same kind than the samples have */
        if (known >> (i & 63) & 1) continue;
        out[i] = out[i - 1];
        is_index |= (is_index >> ((i - 1) & 63) & 1) << (i & 63);
    }
    return is_index;
}

/* ---- making ---------------------------------------------------------------------------------- */

static ts_status check_options(const ts_op_query_options *o)
{
    if (!o->op || !o->mesh)
        return TSI_FAIL(TS_ERR_NULL, "query: an operator and a mesh are required");
    if (o->input_count < 0 || o->input_count > TSI_INPUT_MAX)
        return TSI_FAIL(TS_ERR_ARG, "%s: %d inputs, 0 to %d are possible", o->op, o->input_count,
                        TSI_INPUT_MAX);
    if (o->input_count > 0 && !o->in) return TSI_FAIL(TS_ERR_NULL, "%s: no layouts", o->op);
    if (o->dtype < 0 || o->dtype >= TS_DTYPE_COUNT)
        return TSI_FAIL(TS_ERR_DTYPE, "%s: there is no dtype number %d", o->op, o->dtype);
    return TS_OK;
}

static ts_status check_policy(const ts_op_query *query, const ts_op_query_options *o)
{
    const tsi_op_plan *plan = query->plan;
    int64_t total = tsi_op_plan_bytes(plan);
    if (o->implicit_moves != TS_MOVES_FORBID || total == 0) return TS_OK;
    int32_t worst = 0;
    char bytes[32], wanted[256] = "";
    for (int32_t i = 1; i < plan->input_count; i++)
        if (plan->move_bytes[i] > plan->move_bytes[worst]) worst = i;
    tsi_text_bytes(bytes, sizeof bytes, total);
    if (!plan->moved_total)
        return TSI_FAIL(TS_ERR_POLICY,
                        "%s: would move %s by its own algorithm \"%s\", and implicit "
                        "moves are forbidden",
                        o->op, bytes, query->op->algorithm[plan->algorithm - 1].name);
    ts_sharding_text(plan->wanted[worst]->sharding, wanted, sizeof wanted);
    return TSI_FAIL(TS_ERR_POLICY,
                    "%s: input %d is %s and would be moved to (%s), %s, but implicit moves are "
                    "forbidden; say it: ts_redistribute(x, \"%s\")",
                    o->op, worst, plan->in[worst]->text, wanted, bytes, wanted);
}

static ts_status query_fill(ts_op_query *query, const ts_op_query_options *o)
{
    int32_t in_place = 0;
    uint8_t dtype[TSI_INPUT_MAX];
    TSI_TRY(tsi_op_find_form(o->mesh->desc->world, o->op, &query->op, &in_place));
    query->attributes = tsi_arena_calloc(&query->scratch, 1, query->op->attribute_bytes + 16);
    if (!query->attributes) return tsi_fail_memory("attributes", query->op->attribute_bytes);
    TSI_TRY(tsi_attributes_parse(query->op, o->attributes, query->attributes));
    query->is_index = tsi_op_input_dtypes(query->op, o->input_count,
                                          o->dtype ? (ts_dtype)o->dtype : TS_DTYPE_F32, dtype);
    tsi_op_request request = { .op = query->op,
                               .mesh = o->mesh,
                               .in = o->in,
                               .dtype = dtype,
                               .input_count = o->input_count,
                               .in_place = in_place,
                               .attributes = query->attributes };
    query->plan = tsi_op_plan_for(&request, &query->scratch, &query->story);
    if (!query->plan) return TS_ERR_ARG;
    return check_policy(query, o);
}

ts_status ts_op_query_create(const ts_op_query_options *options, ts_op_query **out)
{
    *out = NULL;
    ts_op_query_options o = TS_INIT(ts_op_query_options);
    if (!options) return TSI_FAIL(TS_ERR_NULL, "query: options are required");
    memcpy(&o, options, options->struct_size < sizeof o ? options->struct_size : sizeof o);
    TSI_TRY(check_options(&o));
    ts_op_query *query = tsi_calloc(1, sizeof *query);
    if (!query) return tsi_fail_memory("a query", sizeof *query);
    query->mesh = o.mesh;
    ts_status status = query_fill(query, &o);
    if (status == TS_OK)
        *out = query;
    else
        ts_op_query_destroy(query);
    return status;
}

void ts_op_query_destroy(ts_op_query *query)
{
    if (!query) return;
    tsi_op_plan_destroy(query->plan);
    tsi_op_story_release(&query->story);
    tsi_arena_release(&query->scratch);
    tsi_free(query);
}

/* ---- reading --------------------------------------------------------------------------------- */

void ts_op_query_summarise(const ts_op_query *query, ts_op_query_summary *out)
{
    const tsi_op_plan *plan = query->plan;
    ts_op_query_summary s = { .struct_size = out->struct_size,
                              .bytes_received = tsi_op_plan_bytes(plan),
                              .bytes_moved = plan->moved_total,
                              .cost_us = query->story.chosen.cost_us,
                              .input_count = plan->input_count,
                              .output_count = plan->output_count,
                              .algorithm = plan->algorithm,
                              .rule_count = query->story.rules.count };
    memcpy(out, &s, s.struct_size < sizeof s ? s.struct_size : sizeof s);
}

const ts_layout *ts_op_query_out(const ts_op_query *query, int32_t output)
{
    return output >= 0 && output < query->plan->output_count ? query->plan->out[output] : NULL;
}
