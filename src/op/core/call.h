/* SPDX-License-Identifier: Apache-2.0 */
/* call.h - what users hold of an operator, and how a name leads to it. */
#ifndef TSI_OP_CALL_H
#define TSI_OP_CALL_H

#include "op/op.h"

struct ts_op { /* immutable */
    const tsi_op_desc *desc;
    int32_t in_place;
    int32_t number; /* of the table; -1: registered at run time */
};

/* "add_" is add in place, unless an operator has that very name. Refused with the nearest name. A
 * NULL world has no operators of users. */
ts_status tsi_op_find_form(ts_world *world, const char *name, const tsi_op_desc **op,
                           int32_t *in_place);

#endif
