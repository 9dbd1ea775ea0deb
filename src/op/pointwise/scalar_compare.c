/* SPDX-License-Identifier: Apache-2.0 */
/* scalar_compare.c - elementwise comparisons and remainders with a number: x > c, x mod c.
 *
 * Comparisons turn extremes into logic as those of two tensors do: the largest of the terms is
 * above c if one of them is. */
#include <complex.h>
#include <math.h>

#include "op/pointwise/unary.h"

static const tsi_attribute value_table[] = { { "value", TS_ATTRIBUTE_NUMBER, 0, NULL, NULL },
                                             { 0 } };

static double value_of(const void *attributes)
{
    return ((const ts_number *)attributes)->real;
}

static int64_t whole_of(const void *attributes)
{
    return ((const ts_number *)attributes)->whole;
}

static ts_dtype value_dtype(const void *attributes)
{
    return tsi_number_dtype(attributes);
}

/* ---- functions: whole numbers meet a whole number, others make them real --------------------- */

TSI_REAL(eq, x[0] == value_of(a) ? 1 : 0)
TSI_WHOLE(eq, x[0] == whole_of(a))
TSI_BOTH(eq, x[0] == tsi_number_both(*(const ts_number *)a) ? 1 : 0)
TSI_REAL(ne, x[0] != value_of(a) ? 1 : 0)
TSI_WHOLE(ne, x[0] != whole_of(a))
TSI_BOTH(ne, x[0] != tsi_number_both(*(const ts_number *)a) ? 1 : 0)
TSI_REAL(gt, x[0] > value_of(a) ? 1 : 0)
TSI_WHOLE(gt, x[0] > whole_of(a))
TSI_REAL(ge, x[0] >= value_of(a) ? 1 : 0)
TSI_WHOLE(ge, x[0] >= whole_of(a))
TSI_REAL(lt, x[0] < value_of(a) ? 1 : 0)
TSI_WHOLE(lt, x[0] < whole_of(a))
TSI_REAL(le, x[0] <= value_of(a) ? 1 : 0)
TSI_WHOLE(le, x[0] <= whole_of(a))
TSI_REAL(fmod, fmod(x[0], value_of(a)))

static int64_t whole_fmod(const int64_t *x, const void *a)
{
    int64_t by = whole_of(a);
    return by == 0 || by == -1 ? 0 : *x % by;
}

static double real_remainder(const double *x, const void *a)
{
    double by = value_of(a), r = fmod(*x, by);
    return r != 0.0 && (r < 0.0) != (by < 0.0) ? r + by : r;
}

static int64_t whole_remainder(const int64_t *x, const void *a)
{
    int64_t by = whole_of(a), r = whole_fmod(x, a);
    return r != 0 && (r < 0) != (by < 0) ? r + by : r;
}

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
    .family = FAMILY(real_eq, whole_eq, both_eq, BOOL),
};
const tsi_op_desc tsi_op_ne_scalar = {
    .name = "ne_scalar",
    .what = "is x another number?",
    ONE,
    .flags = TSI_OP_NO_GRAD,
    .family = FAMILY(real_ne, whole_ne, both_ne, BOOL),
};
const tsi_op_desc tsi_op_gt_scalar = {
    .name = "gt_scalar",
    .what = "is x above a number?",
    ONE,
    .flags = TSI_OP_NO_GRAD,
    .rules = greater_rules,
    .family = FAMILY(real_gt, whole_gt, NULL, BOOL),
};
const tsi_op_desc tsi_op_ge_scalar = {
    .name = "ge_scalar",
    .what = "is x not below a number?",
    ONE,
    .flags = TSI_OP_NO_GRAD,
    .rules = greater_rules,
    .family = FAMILY(real_ge, whole_ge, NULL, BOOL),
};
const tsi_op_desc tsi_op_lt_scalar = {
    .name = "lt_scalar",
    .what = "is x below a number?",
    ONE,
    .flags = TSI_OP_NO_GRAD,
    .rules = less_rules,
    .family = FAMILY(real_lt, whole_lt, NULL, BOOL),
};
const tsi_op_desc tsi_op_le_scalar = {
    .name = "le_scalar",
    .what = "is x not above a number?",
    ONE,
    .flags = TSI_OP_NO_GRAD,
    .rules = less_rules,
    .family = FAMILY(real_le, whole_le, NULL, BOOL),
};
const tsi_op_desc tsi_op_fmod_scalar = {
    .name = "fmod_scalar",
    .what = "remainder by a number, with the sign of x",
    ONE,
    .flags = TSI_OP_IN_PLACE,
    .family = FAMILY(real_fmod, whole_fmod, NULL, SAME),
    .grad = same_grad,
};
const tsi_op_desc tsi_op_remainder_scalar = {
    .name = "remainder_scalar",
    .what = "remainder by a number, with its sign",
    ONE,
    .flags = TSI_OP_IN_PLACE,
    .family = FAMILY(real_remainder, whole_remainder, NULL, SAME),
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
