/* SPDX-License-Identifier: Apache-2.0 */
/* binary.h - what the files of the elementwise operators of two inputs share. */
#ifndef TSI_OP_BINARY_H
#define TSI_OP_BINARY_H

#include "op/common.h"

/* A rule: both inputs pending the same, and so is the result. */
void tsi_binary_pending(tsi_rules *rules, ts_reduce reduce);

/* Gradients of binary.c, in binary_grad.c. */
ts_status tsi_grad_atan2(const tsi_grad_io *io);
ts_status tsi_grad_hypot(const tsi_grad_io *io);
ts_status tsi_grad_fmod(const tsi_grad_io *io); /* also remainder */
ts_status tsi_grad_copysign(const tsi_grad_io *io);
ts_status tsi_grad_xlogy(const tsi_grad_io *io);

#endif
