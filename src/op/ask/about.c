/* SPDX-License-Identifier: Apache-2.0 */
/* about.c - the operator table for those who read it: names, attributes, rules, gradients. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "op/ask/query.h"
#include "op/pointwise/unary.h"

int32_t ts_op_count(void)
{
    return TSI_OP_ID_COUNT;
}

int32_t ts_op_number(const char *name)
{
    const tsi_op_desc *op = name ? tsi_op_find(name) : NULL;
    return op ? tsi_op_number(op) : -1;
}

/* The dtypes that an operator takes: elementwise families by the functions that they have. */
static uint32_t dtypes_of(const tsi_op_desc *op)
{
    const tsi_pointwise_family *family = op->family;
    uint32_t all = (1u << TS_DTYPE_COUNT) - 2, out = 0;
    if (op->infer != tsi_family_infer) return op->dtypes ? op->dtypes : all;
    for (int d = 1; d < TS_DTYPE_COUNT; d++) {
        bool real = family->result == TSI_RESULT_REAL;
        tsi_category kind = tsi_dtype_category(real ? tsi_dtype_to_real((ts_dtype)d) : (ts_dtype)d);
        bool has = kind == TSI_CATEGORY_COMPLEX ? family->fns.both != NULL
                   : kind == TSI_CATEGORY_REAL  ? family->fns.real != NULL
                                                : family->fns.integer != NULL;
        if (has) out |= 1u << d;
    }
    return out;
}

/* Names of the functions that the public headers declare, in order; made when the build is
 * configured. */
static const char *const functions[] = {
#include "op/functions.inc"
};

static int compare_function(const void *name, const void *entry)
{
    return strcmp(name, *(const char *const *)entry);
}

/* "ts_<name><suffix>" if there is such a function. */
static const char *function_of(const tsi_op_desc *op, const char *suffix)
{
    char name[80];
    (void)snprintf(name, sizeof name, "ts_%s%s", op->name, suffix);
    const char *const *found =
        bsearch(name, functions, TSI_COUNT_OF(functions), sizeof functions[0], compare_function);
    return found ? *found : NULL;
}

void tsi_op_about_fill(const tsi_op_desc *op, ts_op_about *out)
{
    int32_t algorithms = 0;
    while (op->algorithm && op->algorithm[algorithms].name)
        algorithms++;
    ts_op_about about = { .struct_size = out->struct_size,
                          .name = op->name,
                          .what = op->what ? op->what : "",
                          .dims = op->dims,
                          .input_min = op->input_min,
                          .input_max = op->input_max,
                          .output_count = op->output_count,
                          .has_gradient = op->grad                     ? 1
                                          : op->flags & TSI_OP_NO_GRAD ? -1
                                                                       : 0,
                          .has_in_place = (op->flags & TSI_OP_IN_PLACE) != 0,
                          .is_view = (op->flags & TSI_OP_VIEW) != 0,
                          .is_random = (op->flags & TSI_OP_RANDOM) != 0,
                          .is_host = (op->flags & TSI_OP_HOST) != 0,
                          .dtypes = dtypes_of(op),
                          .algorithm_count = algorithms,
                          .attribute = op->attribute,
                          .function = function_of(op, ""),
                          .function_in_place = function_of(op, "_") };
    memcpy(out, &about, about.struct_size < sizeof about ? about.struct_size : sizeof about);
}

ts_status ts_op_about_at(int32_t index, ts_op_about *out)
{
    const tsi_op_desc *op = tsi_op_at(index);
    if (!op)
        return TSI_FAIL(TS_ERR_ARG, "there is no operator number %d of %d", index, TSI_OP_ID_COUNT);
    tsi_op_about_fill(op, out);
    return TS_OK;
}

size_t ts_op_attributes_text(int32_t index, char *out, size_t size)
{
    tsi_text text = { 0 };
    if (tsi_op_at(index)) tsi_attributes_words(tsi_op_at(index), &text);
    return tsi_text_give(&text, out, size);
}

size_t ts_op_algorithms_text(int32_t index, char *out, size_t size)
{
    const tsi_op_desc *op = tsi_op_at(index);
    tsi_text text = { 0 };
    for (int32_t a = 0; op && op->algorithm && op->algorithm[a].name; a++)
        tsi_text_printf(&text, "%s%s", a ? ", " : "", op->algorithm[a].name);
    return tsi_text_give(&text, out, size);
}

/* The rules of the operator's first sample. */
static void sample_rules(const tsi_op_desc *op, tsi_arena *arena, tsi_text *text)
{
    ts_meta in[TSI_INPUT_MAX] = { 0 }, out[TSI_OUTPUT_MAX] = { 0 };
    uint64_t attributes[TSI_ATTRIBUTES_MAX / 8] = { 0 }, random = 1;
    int32_t count = op->input_max;
    if (!op->sample || op->attribute_bytes > sizeof attributes ||
        !tsi_op_sample(op, &random, 0, in, &count, attributes))
        return;
    if (op->normalise && op->normalise(op, in, count, attributes) != TS_OK) return;
    tsi_op_call call = { op, attributes, in, out, count, op->output_count };
    if (op->infer(&call) != TS_OK) return;
    tsi_rules rules = { .arena = arena };
    tsi_op_rules(&call, &rules);
    for (int32_t r = 0; !rules.failed && r < rules.count; r++) {
        tsi_text_add(text, r ? "\n" : "");
        tsi_rule_text(&rules, r, text);
        if (rules.algorithm[r])
            tsi_text_printf(text, " by %s", op->algorithm[rules.algorithm[r] - 1].name);
    }
}

size_t ts_op_rules_text(int32_t index, char *out, size_t size)
{
    const tsi_op_desc *op = tsi_op_at(index);
    tsi_text text = { 0 };
    tsi_arena arena = { 0 };
    if (op && op->propagate)
        tsi_text_add(&text, "from the whole layout");
    else if (op)
        sample_rules(op, &arena, &text);
    tsi_arena_release(&arena);
    return tsi_text_give(&text, out, size);
}

ts_status ts_op_cache_statistics(ts_rank *me, ts_op_cache_stats *out)
{
    TSI_TRY(tsi_rank_enter(me));
    const tsi_op_state *state = tsi_op_state_of(me);
    if (!state) return ts_rank_status(me);
    ts_op_cache_stats s = { .struct_size = out->struct_size,
                            .hits = state->hits,
                            .misses = state->misses,
                            .evicted = state->evicted,
                            .live = state->live,
                            .capacity = TSI_OP_CACHE_SIZE,
                            .implicit_bytes = state->implicit_bytes,
                            .matched = state->matched };
    for (int32_t i = 0; i < TSI_OP_CACHE_SIZE; i++)
        if (state->cache[i])
            s.bytes +=
                (int64_t)(sizeof *state->cache[i] + tsi_arena_reserved(&state->cache[i]->memory));
    memcpy(out, &s, s.struct_size < sizeof s ? s.struct_size : sizeof s);
    return TS_OK;
}

ts_status ts_op_cache_text(ts_rank *me, char *out, size_t size)
{
    ts_op_cache_stats s = TS_INIT(ts_op_cache_stats);
    if (size > 0) out[0] = '\0';
    TSI_TRY(ts_op_cache_statistics(me, &s));
    const struct {
        const char *name;
        int64_t value;
    } line[] = { { "hits", s.hits },       { "misses", s.misses },
                 { "matched", s.matched }, { "evicted", s.evicted },
                 { "live", s.live },       { "capacity", s.capacity },
                 { "bytes", s.bytes },     { "implicit_bytes", s.implicit_bytes } };
    tsi_text text = { 0 };
    for (size_t i = 0; i < TSI_COUNT_OF(line); i++)
        tsi_text_printf(&text, "op.cache.%s %lld\n", line[i].name, (long long)line[i].value);
    bool failed = text.failed;
    (void)tsi_text_give(&text, out, size);
    return failed ? tsi_fail_memory("statistics", 256) : TS_OK;
}

ts_status ts_op_check_plans(ts_rank *me, int on)
{
    TSI_TRY(tsi_rank_enter(me));
    tsi_op_state *state = tsi_op_state_of(me);
    if (!state) return ts_rank_status(me);
    state->check_plans = on != 0;
    return TS_OK;
}

ts_status ts_op_kernel_time(const char *op, ts_tensor *const *in, int32_t count,
                            const char *attributes, int64_t repeats, double *ns)
{
    *ns = 0;
    const tsi_op_desc *desc = op ? tsi_op_find(op) : NULL;
    if (!desc) return TSI_FAIL(TS_ERR_ARG, "there is no operator \"%s\"", op ? op : "(null)");
    if (count < 1 || !in || !in[0])
        return TSI_FAIL(TS_ERR_NULL, "%s: input 0 is required", desc->name);
    TSI_TRY(tsi_rank_enter(in[0]->rank));
    uint64_t given[TSI_ATTRIBUTES_MAX / 8] = { 0 };
    if (desc->attribute_bytes > sizeof given)
        return TSI_FAIL(TS_ERR_ARG, "%s: its attributes cannot be said in JSON", desc->name);
    TSI_TRY(tsi_attributes_parse(desc, attributes, given));
    tsi_op_args args = { desc, in, count, 0, given };
    tsi_op_plan *plan = tsi_op_plan_of(in[0]->rank, &args);
    return plan ? tsi_op_plan_time(plan, in, repeats, ns) : ts_rank_status(in[0]->rank);
}
