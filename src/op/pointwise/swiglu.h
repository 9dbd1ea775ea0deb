/* SPDX-License-Identifier: Apache-2.0 */
/* swiglu.h - both gradients of swiglu by way of the kernels of each. */
#ifndef TSI_OP_POINTWISE_SWIGLU_H
#define TSI_OP_POINTWISE_SWIGLU_H

#include "op/op.h"

/* One after the other by the kernels of swiglu_backward and swiglu; NULL: the reference. */
ts_status tsi_swiglu_gradients_by(const tsi_kernel_io *io, tsi_kernel_fn gate, tsi_kernel_fn up);

#endif
