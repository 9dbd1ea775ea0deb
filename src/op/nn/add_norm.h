/* SPDX-License-Identifier: Apache-2.0 */
/* add_norm.h - residual and norm: attributes, and the operator by way of others' kernels. */
#ifndef TSI_OP_NN_ADD_NORM_H
#define TSI_OP_NN_ADD_NORM_H

#include "op/nn/norm.h"

typedef struct tsi_add_norm {
    double eps;
} tsi_add_norm;

/* One after the other by the kernels given; NULL: the reference. */
ts_status tsi_add_rms_norm_by(const tsi_kernel_io *io, tsi_kernel_fn add, tsi_kernel_fn norm);
ts_status tsi_add_rms_norm_backward_by(const tsi_kernel_io *io, tsi_kernel_fn back,
                                       tsi_kernel_fn add);
/* in: dsum, dy, x, weight, scale; out: dx with dsum in it, dw. */
ts_status tsi_add_norm_backward(ts_tensor *const in[5], ts_tensor *out[2]);

#endif
