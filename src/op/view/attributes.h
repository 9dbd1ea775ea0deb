/* SPDX-License-Identifier: Apache-2.0 */
/* attributes.h - the attributes of the operators of views that kernels read, normalised. */
#ifndef TSI_OP_VIEW_ATTRIBUTES_H
#define TSI_OP_VIEW_ATTRIBUTES_H

#include "op/op.h"

typedef struct tsi_join_attributes {
    int64_t dim;
} tsi_join_attributes;

typedef struct tsi_strided_attributes {
    tsi_dims size, stride;
    int64_t offset;
    tsi_dims shape; /* gradient: of the result */
} tsi_strided_attributes;

typedef struct tsi_triangle_attributes {
    int64_t diagonal;
} tsi_triangle_attributes;
/* Where input i of stack lies in its result (join.c). */
tsi_block tsi_stack_place(const tsi_kernel_io *io, int32_t i);

#endif
