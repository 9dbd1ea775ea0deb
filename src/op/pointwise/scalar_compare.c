/* SPDX-License-Identifier: Apache-2.0 */
/* scalar_compare.c - elementwise comparisons and remainders with a number: x > c, x mod c.
 *
 * Comparisons turn extremes into logic as those of two tensors do: the largest of the terms is
 * above c if one of them is. */
#include <complex.h>
#include <math.h>

#include "op/pointwise/unary.h"
#include "op/pointwise/unary_scalar.h"

static const tsi_attribute value_table[] = { { "value", TS_ATTRIBUTE_NUMBER, 0, NULL, NULL },
                                             { 0 } };

static ts_dtype value_dtype(const void *attributes)
{
    return tsi_number_dtype(attributes);
}

/* ---- functions of complex numbers ------------------------------------------------------------ */

TSI_BOTH(eq, x[0] == tsi_number_both(*(const ts_number *)a) ? 1 : 0)
TSI_BOTH(ne, x[0] != tsi_number_both(*(const ts_number *)a) ? 1 : 0)

/* ---- rules and gradients --------------------------------------------------------------------- */

static void order_rules(tsi_rules *rules, ts_reduce any, ts_reduce every)
{
    const ts_reduce pair[][2] = { { any, TS_REDUCE_OR }, { every, TS_REDUCE_AND } };
    for (int k = 0; k < 2; k++) {
        tsi_role *row = tsi_rules_add(rules);
        row[0] = TSI_P(pair[k][0]);
        row[1] = TSI_P(pair[k][1]);
    }
}

static void greater_rules(const tsi_op_call *call, tsi_rules *rules)
{
    (void)call;
    order_rules(rules, TS_REDUCE_MAX, TS_REDUCE_MIN);
}

static void less_rules(const tsi_op_call *call, tsi_rules *rules)
{
    (void)call;
    order_rules(rules, TS_REDUCE_MIN, TS_REDUCE_MAX);
}

static ts_status same_grad(const tsi_grad_io *io)
{
    return tsi_grad_give(io, io->out_grad[0]);
}

static bool sample_value(tsi_sample *s)
{
    *(ts_number *)s->attributes = tsi_number_real(s->variant == 0   ? 2.5
                                                  : s->variant == 1 ? -2.0
                                                                    : 3.0);
    return tsi_sample_unary(s);
}

/* ---- the rows -------------------------------------------------------------------------------- */

#define FAMILY(real, whole, both, kind)                                                            \
    (&(const tsi_pointwise_family){ { real, whole, both }, TSI_RESULT_##kind, value_dtype })
#define ONE                                                                                        \
    .dims = "*", .input_min = 1, .input_max = 1, .output_count = 1, .infer = tsi_family_infer,     \
    .reference = tsi_family_reference, .attribute = value_table,                                   \
    .attribute_bytes = sizeof(ts_number), .sample = sample_value

const tsi_op_desc tsi_op_eq_scalar = {
    .name = "eq_scalar",
    .what = "is x equal to a number?",
    ONE,
    .flags = TSI_OP_NO_GRAD,
    .family = FAMILY(tsi_real_eq_scalar, tsi_whole_eq_scalar, both_eq, BOOL),
};
const tsi_op_desc tsi_op_ne_scalar = {
    .name = "ne_scalar",
    .what = "is x another number?",
    ONE,
    .flags = TSI_OP_NO_GRAD,
    .family = FAMILY(tsi_real_ne_scalar, tsi_whole_ne_scalar, both_ne, BOOL),
};
const tsi_op_desc tsi_op_gt_scalar = {
    .name = "gt_scalar",
    .what = "is x above a number?",
    ONE,
    .flags = TSI_OP_NO_GRAD,
    .rules = greater_rules,
    .family = FAMILY(tsi_real_gt_scalar, tsi_whole_gt_scalar, NULL, BOOL),
};
const tsi_op_desc tsi_op_ge_scalar = {
    .name = "ge_scalar",
    .what = "is x not below a number?",
    ONE,
    .flags = TSI_OP_NO_GRAD,
    .rules = greater_rules,
    .family = FAMILY(tsi_real_ge_scalar, tsi_whole_ge_scalar, NULL, BOOL),
};
const tsi_op_desc tsi_op_lt_scalar = {
    .name = "lt_scalar",
    .what = "is x below a number?",
    ONE,
    .flags = TSI_OP_NO_GRAD,
    .rules = less_rules,
    .family = FAMILY(tsi_real_lt_scalar, tsi_whole_lt_scalar, NULL, BOOL),
};
const tsi_op_desc tsi_op_le_scalar = {
    .name = "le_scalar",
    .what = "is x not above a number?",
    ONE,
    .flags = TSI_OP_NO_GRAD,
    .rules = less_rules,
    .family = FAMILY(tsi_real_le_scalar, tsi_whole_le_scalar, NULL, BOOL),
};
const tsi_op_desc tsi_op_fmod_scalar = {
    .name = "fmod_scalar",
    .what = "remainder by a number, with the sign of x",
    ONE,
    .flags = TSI_OP_IN_PLACE,
    .family = FAMILY(tsi_real_fmod_scalar, tsi_whole_fmod_scalar, NULL, SAME),
    .grad = same_grad,
};
const tsi_op_desc tsi_op_remainder_scalar = {
    .name = "remainder_scalar",
    .what = "remainder by a number, with its sign",
    ONE,
    .flags = TSI_OP_IN_PLACE,
    .family = FAMILY(tsi_real_remainder_scalar, tsi_whole_remainder_scalar, NULL, SAME),
    .grad = same_grad,
};

/* ---- the makers ------------------------------------------------------------------------------ */

TSI_MAKER1_NUMBER(eq_scalar, value)
TSI_MAKER1_NUMBER(ne_scalar, value)
TSI_MAKER1_NUMBER(gt_scalar, value)
TSI_MAKER1_NUMBER(ge_scalar, value)
TSI_MAKER1_NUMBER(lt_scalar, value)
TSI_MAKER1_NUMBER(le_scalar, value)
TSI_MAKER1_NUMBER(fmod_scalar, value)
TSI_MAKER1_NUMBER(remainder_scalar, value)
