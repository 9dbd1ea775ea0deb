/* SPDX-License-Identifier: Apache-2.0 */
/* op_view.h - views, joins and index arithmetic: reshape, permute, slice, cat, pad, flip, roll.
 *
 * makers: NULL on failure, NULL in gives NULL out (world.h). Any operator takes any placement; what
 * cannot stay sharded is moved, as far as the policy of the open scope allows (scope.h). Dims may
 * be negative. */
#ifndef TESSERA_OP_VIEW_H
#define TESSERA_OP_VIEW_H

#include "tensor.h"

TS_BEGIN_C

TS_END_C
#endif
