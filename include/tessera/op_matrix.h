/* SPDX-License-Identifier: Apache-2.0 */
/* op_matrix.h - matrix products, einsum, attention, rotary positions, embedding and losses.
 *
 * makers: NULL on failure, NULL in gives NULL out (world.h). Any operator takes any placement; what
 * cannot stay sharded is moved, as far as the policy of the open scope allows (scope.h). Dims may
 * be negative. */
#ifndef TESSERA_OP_MATRIX_H
#define TESSERA_OP_MATRIX_H

#include "tensor.h"

TS_BEGIN_C

TS_END_C
#endif
