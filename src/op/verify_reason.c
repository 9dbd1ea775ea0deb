/* SPDX-License-Identifier: Apache-2.0 */
/* verify_reason.c - legal assignments of roles that are not offered on purpose, and why. */
#include <string.h>

#include "op/verify.h"

/* A factor of zero makes an operand irrelevant, whatever is pending on it: not worth rules. */
static bool has_zero_factor(const tsi_verify_call *call)
{
    for (int32_t i = 0; call->op->attribute && call->op->attribute[i].name; i++) {
        const tsi_attribute *a = &call->op->attribute[i];
        double value = 1;
        if (a->type == TSI_ATTR_REAL)
            memcpy(&value, (const char *)call->attributes + a->offset, sizeof value);
        if (value == 0.0) return true;
    }
    return false;
}

const char *tsi_verify_reason(const tsi_verify_call *call, const tsi_role *role)
{
    (void)role;
    if (has_zero_factor(call)) return "a factor of zero makes an operand irrelevant";
    return NULL;
}
