/* SPDX-License-Identifier: Apache-2.0 */
/* binary_logic.c - elementwise comparisons, logic and bits of two inputs.
 *
 * Comparisons turn extremes into logic: max(a) > b is an OR over the terms. Logic with a replicated
 * truth, and with a truth pending the same, passes what is pending. */
#include "op/pointwise/binary.h"
#include "op/pointwise/unary.h"
#include "op/pointwise/unary_scalar.h"

/* ---- comparisons ----------------------------------------------------------------------------- */

TSI_BOTH(eq, x[0] == x[1] ? 1.0 : 0.0)
TSI_BOTH(ne, x[0] != x[1] ? 1.0 : 0.0)
TSI_BOTH(logical_and, x[0] != 0.0 && x[1] != 0.0 ? 1.0 : 0.0)
TSI_BOTH(logical_or, x[0] != 0.0 || x[1] != 0.0 ? 1.0 : 0.0)
TSI_BOTH(logical_xor, (x[0] != 0.0) != (x[1] != 0.0) ? 1.0 : 0.0)

/* One input pending an extreme, the other replicated: the truth is pending a logical reduction. */
static void order_rule(tsi_rules *rules, int32_t input, ts_reduce extreme, ts_reduce logic)
{
    tsi_role *row = tsi_rules_add(rules);
    row[input] = TSI_P(extreme);
    row[2] = TSI_P(logic);
}

static void greater_rules(const tsi_op_call *call, tsi_rules *rules)
{
    (void)call;
    order_rule(rules, 0, TS_REDUCE_MAX, TS_REDUCE_OR);
    order_rule(rules, 0, TS_REDUCE_MIN, TS_REDUCE_AND);
    order_rule(rules, 1, TS_REDUCE_MIN, TS_REDUCE_OR);
    order_rule(rules, 1, TS_REDUCE_MAX, TS_REDUCE_AND);
}

static void less_rules(const tsi_op_call *call, tsi_rules *rules)
{
    (void)call;
    order_rule(rules, 0, TS_REDUCE_MIN, TS_REDUCE_OR);
    order_rule(rules, 0, TS_REDUCE_MAX, TS_REDUCE_AND);
    order_rule(rules, 1, TS_REDUCE_MAX, TS_REDUCE_OR);
    order_rule(rules, 1, TS_REDUCE_MIN, TS_REDUCE_AND);
}

/* Logic of booleans with a replicated one: x and (OR of terms) is the OR of (x and term), and so
 * on. */
static void logic_rules(const tsi_op_call *call, tsi_rules *rules)
{
    if (call->in[0].dtype != TS_DTYPE_BOOL || call->in[1].dtype != TS_DTYPE_BOOL) return;
    for (int32_t i = 0; i < 2; i++) {
        order_rule(rules, i, TS_REDUCE_OR, TS_REDUCE_OR);
        order_rule(rules, i, TS_REDUCE_AND, TS_REDUCE_AND);
    }
}

static void and_rules(const tsi_op_call *call, tsi_rules *rules)
{
    logic_rules(call, rules);
    tsi_binary_pending(rules, TS_REDUCE_AND);
}

static void or_rules(const tsi_op_call *call, tsi_rules *rules)
{
    logic_rules(call, rules);
    tsi_binary_pending(rules, TS_REDUCE_OR);
}

/* Bits of truths are truths. */
static void bit_rules(const tsi_op_call *call, tsi_rules *rules)
{
    if (call->out[0].dtype != TS_DTYPE_BOOL) return;
    if (call->op == &tsi_op_bitwise_and)
        and_rules(call, rules);
    else
        or_rules(call, rules);
}

/* ---- bits ------------------------------------------------------------------------------------ */

/* ---- the rows -------------------------------------------------------------------------------- */

const tsi_op_desc tsi_op_bitwise_and = {
    .name = "bitwise_and",
    .what = "a & b",
    TSI_BINARY_OF(tsi_sample_bits),
    .flags = TSI_OP_NO_GRAD | TSI_OP_IN_PLACE,
    .rules = bit_rules,
    .family = TSI_BINARY_FAMILY(NULL, tsi_whole_bitwise_and, NULL, SAME),
};
const tsi_op_desc tsi_op_bitwise_or = {
    .name = "bitwise_or",
    .what = "a | b",
    TSI_BINARY_OF(tsi_sample_bits),
    .flags = TSI_OP_NO_GRAD | TSI_OP_IN_PLACE,
    .rules = bit_rules,
    .family = TSI_BINARY_FAMILY(NULL, tsi_whole_bitwise_or, NULL, SAME),
};
const tsi_op_desc tsi_op_bitwise_xor = {
    .name = "bitwise_xor",
    .what = "a ^ b",
    TSI_BINARY_OF(tsi_sample_bits),
    .flags = TSI_OP_NO_GRAD | TSI_OP_IN_PLACE,
    .family = TSI_BINARY_FAMILY(NULL, tsi_whole_bitwise_xor, NULL, SAME),
};

#define COMPARE TSI_BINARY, .flags = TSI_OP_NO_GRAD
const tsi_op_desc tsi_op_eq = {
    .name = "eq",
    .what = "a == b",
    COMPARE,
    .family = TSI_BINARY_FAMILY(tsi_real_eq, tsi_whole_eq, both_eq, BOOL),
};
const tsi_op_desc tsi_op_ne = {
    .name = "ne",
    .what = "a != b",
    COMPARE,
    .family = TSI_BINARY_FAMILY(tsi_real_ne, tsi_whole_ne, both_ne, BOOL),
};
const tsi_op_desc tsi_op_gt = {
    .name = "gt",
    .what = "a > b",
    COMPARE,
    .rules = greater_rules,
    .family = TSI_BINARY_FAMILY(tsi_real_gt, tsi_whole_gt, NULL, BOOL),
};
const tsi_op_desc tsi_op_ge = {
    .name = "ge",
    .what = "a >= b",
    COMPARE,
    .rules = greater_rules,
    .family = TSI_BINARY_FAMILY(tsi_real_ge, tsi_whole_ge, NULL, BOOL),
};
const tsi_op_desc tsi_op_lt = {
    .name = "lt",
    .what = "a < b",
    COMPARE,
    .rules = less_rules,
    .family = TSI_BINARY_FAMILY(tsi_real_lt, tsi_whole_lt, NULL, BOOL),
};
const tsi_op_desc tsi_op_le = {
    .name = "le",
    .what = "a <= b",
    COMPARE,
    .rules = less_rules,
    .family = TSI_BINARY_FAMILY(tsi_real_le, tsi_whole_le, NULL, BOOL),
};
const tsi_op_desc tsi_op_logical_and = {
    .name = "logical_and",
    .what = "a and b",
    COMPARE,
    .rules = and_rules,
    .family =
        TSI_BINARY_FAMILY(tsi_real_logical_and, tsi_whole_logical_and, both_logical_and, BOOL),
};
const tsi_op_desc tsi_op_logical_or = {
    .name = "logical_or",
    .what = "a or b",
    COMPARE,
    .rules = or_rules,
    .family = TSI_BINARY_FAMILY(tsi_real_logical_or, tsi_whole_logical_or, both_logical_or, BOOL),
};
const tsi_op_desc tsi_op_logical_xor = {
    .name = "logical_xor",
    .what = "exactly one of a and b",
    COMPARE,
    .family =
        TSI_BINARY_FAMILY(tsi_real_logical_xor, tsi_whole_logical_xor, both_logical_xor, BOOL),
};
