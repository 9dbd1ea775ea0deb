/* SPDX-License-Identifier: Apache-2.0 */
/* op_list.h - operators over lists of tensors, and fused optimiser updates.
 *
 * makers: NULL on failure, NULL in gives NULL out (world.h). Any operator takes any placement; what
 * cannot stay sharded is moved, as far as the policy of the open scope allows (scope.h). Dims may
 * be negative. */
#ifndef TESSERA_OP_LIST_H
#define TESSERA_OP_LIST_H

#include "tensor.h"

TS_BEGIN_C

TS_END_C
#endif
