/* SPDX-License-Identifier: Apache-2.0 */
/* norm.h - what norms and their gradients share. */
#ifndef TSI_OP_NORM_H
#define TSI_OP_NORM_H

#include "op/op.h"

typedef struct tsi_norm_back {
    tsi_dims normalized; /* extents of the last dims: those of the weight */
} tsi_norm_back;

#endif
