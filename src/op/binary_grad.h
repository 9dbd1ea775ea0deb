/* SPDX-License-Identifier: Apache-2.0 */
/* binary_grad.h - gradients that binary.c refers to. */
#ifndef TSI_OP_BINARY_GRAD_H
#define TSI_OP_BINARY_GRAD_H

#include "op/common.h"

ts_status tsi_grad_atan2(const tsi_grad_io *io);
ts_status tsi_grad_hypot(const tsi_grad_io *io);
ts_status tsi_grad_fmod(const tsi_grad_io *io); /* also remainder */
ts_status tsi_grad_copysign(const tsi_grad_io *io);
ts_status tsi_grad_xlogy(const tsi_grad_io *io);

#endif
