/* SPDX-License-Identifier: Apache-2.0 */
/* propagate_rules.c - the rules of one call: those of the operator, without what its dtypes do not
 * keep.
 *
 * INV: a rule that is left holds for the elements of these dtypes, pending ones too. */
#include "op/core/dispatch.h"
#include "op/core/element.h"

/* A sum of truths is their "or": rules whose result is one are said so. */
static void sums_of_truths(const tsi_op_call *call, tsi_rules *rules)
{
    int32_t inputs = rules->input_count, width = inputs + rules->output_count;
    if (call->output_count == 0 || call->out[0].dtype != TS_DTYPE_BOOL) return;
    for (int32_t r = 0; r < rules->count; r++) {
        tsi_role *role = rules->role + (size_t)r * (size_t)width;
        if (role[inputs] != TSI_P(TS_REDUCE_SUM)) continue;
        for (int32_t i = 0; i < width; i++) {
            const ts_meta *meta = i < inputs ? &call->in[i] : &call->out[i - inputs];
            if (meta->dtype == TS_DTYPE_BOOL && role[i] == TSI_P(TS_REDUCE_SUM))
                role[i] = TSI_P(TS_REDUCE_OR);
        }
    }
}

/* A rule is no longer offered: it becomes all R, which an earlier row has. */
static void take_back(tsi_role *role, int32_t width)
{
    for (int32_t k = 0; k < width; k++)
        if (role[k] != TSI_ROLE_NONE) role[k] = TSI_ROLE_R;
}

/* The smallest and the largest of truths: arithmetic on them gives truths again by "not zero",
 * which keeps no order. Such rules are taken back; where elements are only moved they stay. */
static void extremes_of_truths(const tsi_op_call *call, uint32_t flow, tsi_rules *rules)
{
    int32_t inputs = rules->input_count, width = inputs + rules->output_count;
    if (flow & TSI_SELECT || call->output_count == 0 || call->out[0].dtype != TS_DTYPE_BOOL) return;
    for (int32_t r = 0; r < rules->count; r++) {
        tsi_role *role = rules->role + (size_t)r * (size_t)width;
        for (int32_t i = 0; i < inputs; i++) {
            if (call->in[i].dtype != TS_DTYPE_BOOL) continue;
            if (role[i] == TSI_P(TS_REDUCE_MIN) || role[i] == TSI_P(TS_REDUCE_MAX))
                take_back(role, width);
        }
    }
}

/* Pending products of f16: a term leaves its range where the product does not (300 * 300 beside
 * 0.003 * 0.003), and an infinite term times 0 is no number. So they are made (in f32, rounded
 * once) before they are used, and not left pending, but where elements are only moved. */
static void products_of_half(const tsi_op_call *call, uint32_t flow, tsi_rules *rules)
{
    int32_t inputs = rules->input_count, width = inputs + rules->output_count;
    bool half = false; /* mostly there is none, and no rule need be looked at */
    for (int32_t o = 0; o < call->output_count; o++)
        half = half || call->out[o].dtype == TS_DTYPE_F16;
    if (!half || flow & TSI_SELECT) return;
    for (int32_t r = 0; r < rules->count; r++) {
        tsi_role *role = rules->role + (size_t)r * (size_t)width;
        for (int32_t o = 0; o < call->output_count; o++)
            if (call->out[o].dtype == TS_DTYPE_F16 && role[inputs + o] == TSI_P(TS_REDUCE_PROD))
                take_back(role, width);
    }
}

static bool is_whole(const ts_meta *meta)
{
    return tsi_dtype_category((ts_dtype)meta->dtype) == TSI_CATEGORY_INT;
}

/* Can a pending role of whole numbers pass to a result? Sums and products wrap: what is wider than
 * the input would not. What wraps keeps no order. Averages truncate and truths are 0 or 1: both are
 * made before use. Where neither is whole every role can. */
static bool keeps_whole(const tsi_op_desc *op, const ts_meta *in, tsi_role role, const ts_meta *out,
                        tsi_role result)
{
    bool whole_in = is_whole(in), whole_out = is_whole(out);
    if (whole_in && role == TSI_P(TS_REDUCE_AVG)) return false;
    if (whole_out && (result == TSI_P(TS_REDUCE_AVG) || result == TSI_P(TS_REDUCE_AND) ||
                      result == TSI_P(TS_REDUCE_OR)))
        return false;
    if (whole_out && op->flags & TSI_OP_WRAPS && tsi_role_is_p(role) &&
        role != TSI_P(TS_REDUCE_SUM))
        return false;
    if (!whole_in || (role != TSI_P(TS_REDUCE_SUM) && role != TSI_P(TS_REDUCE_PROD))) return true;
    return whole_out && ts_dtype_size((ts_dtype)out->dtype) <= ts_dtype_size((ts_dtype)in->dtype);
}

/* Rules that whole numbers do not keep are taken back. */
static void partials_of_whole(const tsi_op_call *call, tsi_rules *rules)
{
    int32_t inputs = rules->input_count, width = inputs + rules->output_count;
    bool whole = false; /* most calls have no whole numbers, and no rule need be looked at */
    for (int32_t i = 0; i < inputs; i++)
        whole = whole || is_whole(&call->in[i]);
    for (int32_t o = 0; o < call->output_count; o++)
        whole = whole || is_whole(&call->out[o]);
    for (int32_t r = 0; whole && r < rules->count; r++) {
        tsi_role *role = rules->role + (size_t)r * (size_t)width;
        bool keeps = true;
        for (int32_t i = 0; i < inputs && keeps; i++)
            for (int32_t o = 0; o < call->output_count && keeps; o++)
                keeps = role[i] == TSI_ROLE_NONE || keeps_whole(call->op, &call->in[i], role[i],
                                                                &call->out[o], role[inputs + o]);
        if (!keeps) take_back(role, width);
    }
}

static const ts_meta *operand_of(const tsi_op_call *call, int32_t k)
{
    return k < call->input_count ? &call->in[k] : &call->out[k - call->input_count];
}

/* What is pending on one operand may have no meaning for another's dtype: a sum beside truths. Such
 * rules are taken back. What has no meaning for any is met by no call. */
static void partials_of_others(const tsi_op_call *call, tsi_rules *rules)
{
    int32_t width = rules->input_count + rules->output_count;
    uint32_t kinds = 0;
    for (int32_t k = 0; k < width; k++)
        if (operand_of(call, k)->dtype != TS_DTYPE_NONE)
            kinds |= 1u << tsi_dtype_category((ts_dtype)operand_of(call, k)->dtype);
    if ((kinds & (kinds - 1)) == 0) return; /* mostly all are of one kind */
    for (int32_t r = 0; r < rules->count; r++) {
        tsi_role *role = rules->role + (size_t)r * (size_t)width;
        bool some = false, all = true;
        for (int32_t k = 0; k < width; k++) {
            if (!tsi_role_is_p(role[k])) continue;
            ts_dtype dtype = (ts_dtype)operand_of(call, k)->dtype;
            bool allowed = tsi_reduce_allowed(tsi_role_reduce(role[k]), dtype, NULL);
            some = some || allowed;
            all = all && allowed;
        }
        if (some && !all) take_back(role, width);
    }
}

void tsi_op_rules(const tsi_op_call *call, tsi_rules *rules)
{
    const tsi_op_desc *op = call->op;
    uint64_t absent = 0;
    for (int32_t i = 0; i < call->input_count && i < 64; i++)
        if (call->in[i].dtype == TS_DTYPE_NONE) absent |= UINT64_C(1) << i;
    tsi_arena *arena = rules->arena;
    tsi_rules_begin(rules, call->input_count, call->output_count, absent, arena);
    if (op->dims) {
        if (op->dims[0] == '*')
            tsi_rules_pointwise(rules, call->in, call->out);
        else
            tsi_rules_dims(rules, op->dims, call->in,
                           op->dims_reduce ? op->dims_reduce : TS_REDUCE_SUM);
    }
    tsi_traits traits = op->traits;
    if (op->trait) op->trait(call, &traits);
    tsi_rules_partials(rules, &traits);
    if (op->rules) op->rules(call, rules);
    if (rules->failed) return;
    sums_of_truths(call, rules);
    extremes_of_truths(call, traits.flow, rules);
    partials_of_whole(call, rules);
    partials_of_others(call, rules);
    products_of_half(call, traits.flow, rules);
    tsi_rules_finish(rules);
}
