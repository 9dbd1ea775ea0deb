/* SPDX-License-Identifier: Apache-2.0 */
/* verify_reason.c - legal assignments of roles that are not offered on purpose, and why. */
#include <string.h>

#include "op/ask/verify.h"

/* A factor of zero makes an operand irrelevant and one of one the operator an identity, whatever is
 * pending: not worth rules. */
static bool has_trivial_factor(const tsi_verify_call *call)
{
    for (int32_t i = 0; call->op->attribute && call->op->attribute[i].name; i++) {
        const tsi_attribute *a = &call->op->attribute[i];
        double value = 2;
        if (a->type == TS_ATTRIBUTE_REAL || a->type == TS_ATTRIBUTE_NUMBER) /* begins with one */
            memcpy(&value, (const char *)call->attributes + a->offset, sizeof value);
        if (value == 0.0 || value == 1.0) return true;
    }
    return false;
}

static bool any_input(const tsi_verify_call *call, tsi_category kind)
{
    for (int32_t i = 0; i < call->input_count; i++)
        if (call->in[i].dtype && tsi_dtype_category((ts_dtype)call->in[i].dtype) == kind)
            return true;
    return false;
}

static bool any_role(const tsi_verify_call *call, const tsi_role *role, tsi_role wanted)
{
    for (int32_t i = 0; i < call->input_count; i++)
        if (role[i] == wanted) return true;
    return false;
}

typedef struct reason {
    const char *op;
    const char *why;
} reason;

/* Operators whose finds are explained one by one. */
static const reason reasons[] = {
    { "isfinite", "the numbers tried are finite; others would show it false" },
    { "isinf", "the numbers tried are finite; others would show it false" },
    { "isnan", "the numbers tried are finite; others would show it false" },
    { "isneginf", "the numbers tried are finite; others would show it false" },
    { "isposinf", "the numbers tried are finite; others would show it false" },
    { "lerp", "the numbers tried are finite; others would show it false" },
    { "nan_to_num", "the numbers tried are finite; others would show it false" },
    { "eq_scalar", "the numbers tried seldom meet the one compared with; others would show it" },
    { "ne_scalar", "the numbers tried seldom meet the one compared with; others would show it" },
    { "signbit", "zero has two signs, and an extreme of both may have either" },
    { "copysign", "zero has two signs, and an extreme of both may have either" },
    { "rsqrt", "of -0 it is -infinite: it falls from 0 on alone, and zero has two signs" },
    { "bce", "targets are given, not computed from something pending" },
    { "bce_with_logits", "targets are given, not computed from something pending" },
    { "conv", "a bias that is pending is reduced by its owner, once a step" },
    { "exp", "exponentials of terms overflow where that of their sum does not" },
    { "exp2", "exponentials of terms overflow where that of their sum does not" },
    { "group_norm", "parameters that are pending are reduced by their owner, once a step" },
    { "kl_div", "targets are given, not computed from something pending" },
    { "nll_loss", "log-probabilities come out of a softmax, which leaves nothing pending" },
    { "cast", "narrower dtypes round: the numbers tried are exact in them, others are not" },
    { "conj", "of real numbers it is the identity: nobody calls it" },
    { "rope", "the table of positions is made, not computed from something pending" },
    { "sum_to", "where no dim is summed it is the identity: nobody calls it" },
    { "pad", "a pad of no elements is the identity: nobody calls it" },
    { "equal", "complex numbers tried are never equal, pending or not; equal ones would show it" },
    { "any", "the numbers tried leave no group of zeros when everything is one group" },
};

const char *tsi_verify_reason(const tsi_verify_call *call, const tsi_role *role)
{
    size_t length = strlen(call->op->name);
    bool whole = any_input(call, TSI_CATEGORY_INT) && !any_input(call, TSI_CATEGORY_REAL) &&
                 !any_input(call, TSI_CATEGORY_COMPLEX);
    if (has_trivial_factor(call)) return "a factor of zero or one: irrelevant, or the identity";
    if (any_input(call, TSI_CATEGORY_BOOL))
        return "arithmetic and comparisons of truths: every function of two values is monotone";
    if (any_role(call, role, TSI_P(TS_REDUCE_PROD)))
        return "a product may underflow or wrap to zero, which its terms do not show";
    if (length > 9 && strcmp(call->op->name + length - 9, "_backward") == 0)
        return "gradients are pending sums and averages, nothing else";
    if (whole) return "functions of real numbers, tried on a few integers";
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++)
        if (strcmp(reasons[i].op, call->op->name) == 0) return reasons[i].why;
    return NULL;
}
