/* SPDX-License-Identifier: Apache-2.0 */
/* linear_list.h - several weights times one x: the operators by way of one product. */
#ifndef TSI_OP_LINEAR_LIST_H
#define TSI_OP_LINEAR_LIST_H

#include "op/op.h"

typedef struct tsi_list_weights { /* attributes of the weights' gradients */
    int32_t wide, reserved;       /* narrow factors, and results in f32 */
} tsi_list_weights;

typedef struct tsi_list_equation {
    char text[64];
} tsi_list_equation;
/* Of rows with `ndim` dims: "ABk,nk->ABn" (from 'k' to 'n'), or the other way; "ABk,ABn->nk". */
tsi_list_equation tsi_list_by_weight(int32_t ndim, char from, char to);
tsi_list_equation tsi_list_of_weight(int32_t ndim);

/* One product of blocks by an equation of two factors; `accumulate`: added to what is there. */
typedef ts_status (*tsi_list_product_fn)(const tsi_kernel_io *io, const char *equation,
                                         const tsi_block *const block[3], bool accumulate);

/* The operators of linear_list.c by one way to multiply. `joins`: blocks that lie beside each other
 * in one storage are one block, and so one product; else, and where they do not, each has a product
 * of its own. Neighbours in two storages are so by chance and are not joined: one sum over all is
 * rounded otherwise than a sum of sums, and bits would depend on the allocator. The host joins
 * none, so that its bits do not depend on the mesh either. */
ts_status tsi_linear_list_by(const tsi_kernel_io *io, tsi_list_product_fn product, bool joins);
ts_status tsi_linear_list_input_by(const tsi_kernel_io *io, tsi_list_product_fn product,
                                   bool joins);
ts_status tsi_linear_list_weights_by(const tsi_kernel_io *io, tsi_list_product_fn product,
                                     bool joins);

#endif
