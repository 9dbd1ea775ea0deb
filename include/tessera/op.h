/* SPDX-License-Identifier: Apache-2.0 */
/* op.h - all operators. docs/ops.md lists them with their rules, gradients, dtypes and algorithms.
 */
#ifndef TESSERA_OP_H
#define TESSERA_OP_H

#include "op_call.h"
#include "op_compose.h"
#include "op_index.h"
#include "op_list.h"
#include "op_matrix.h"
#include "op_nn.h"
#include "op_pointwise.h"
#include "op_random.h"
#include "op_reduce.h"
#include "op_user.h"
#include "op_view.h"

#endif
