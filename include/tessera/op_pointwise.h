/* SPDX-License-Identifier: Apache-2.0 */
/* op_pointwise.h - elementwise operators: unary, binary, ternary, comparisons, casts, and their
 * scalar forms.
 *
 * makers: NULL on failure, NULL in gives NULL out (world.h). Any operator takes any placement; what
 * cannot stay sharded is moved, as far as the policy of the open scope allows (scope.h). Dims may
 * be negative. */
#ifndef TESSERA_OP_POINTWISE_H
#define TESSERA_OP_POINTWISE_H

#include "tensor.h"

TS_BEGIN_C

TS_API ts_tensor *ts_add(ts_tensor *a, ts_tensor *b); /* a + b, with broadcast */
TS_END_C
#endif
