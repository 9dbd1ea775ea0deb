/* SPDX-License-Identifier: Apache-2.0 */
/* verify_reason.c - legal assignments of roles that are not offered on purpose, and why. */
#include <string.h>

#include "op/verify.h"

const char *tsi_verify_reason(const tsi_verify_call *call, const tsi_role *role)
{
    (void)call;
    (void)role;
    return NULL;
}
