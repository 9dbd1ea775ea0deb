/* SPDX-License-Identifier: Apache-2.0 */
/* binary.h - what the files of the elementwise operators of two inputs share. */
#ifndef TSI_OP_BINARY_H
#define TSI_OP_BINARY_H

#include "op/core/common.h"

/* A rule: both inputs pending the same, and so is the result. */
void tsi_binary_pending(tsi_rules *rules, ts_reduce reduce);
/* That of the larger and of the smaller one. */
void tsi_maximum_rules(const tsi_op_call *call, tsi_rules *rules);
void tsi_minimum_rules(const tsi_op_call *call, tsi_rules *rules);
/* Gradients of both inputs, of their own shapes; NULL where none is needed. */
ts_status tsi_binary_give(const tsi_grad_io *io, ts_tensor *da, ts_tensor *db);

/* isclose and allclose: |a - b| <= atol + rtol |b|. */
typedef struct tsi_close_attributes {
    double rtol, atol;
    int32_t equal_nan, reserved;
} tsi_close_attributes;
extern const tsi_attribute tsi_close_table[];

/* Gradients of binary.c, in binary_grad.c. */
ts_status tsi_grad_atan2(const tsi_grad_io *io);
ts_status tsi_grad_hypot(const tsi_grad_io *io);
ts_status tsi_grad_fmod(const tsi_grad_io *io); /* also remainder */
ts_status tsi_grad_copysign(const tsi_grad_io *io);
ts_status tsi_grad_xlogy(const tsi_grad_io *io);
ts_status tsi_grad_logaddexp(const tsi_grad_io *io); /* also logaddexp2 */

/* What the table's rows of two elementwise inputs have in common: functions of reals, whole and
 * complex numbers (NULL: none) with the kind of their result; and the rest of the row. */
#define TSI_BINARY_FAMILY(real, whole, both, kind)                                                 \
    (&(const tsi_pointwise_family){ { real, whole, both }, TSI_RESULT_##kind, NULL })
#define TSI_BINARY TSI_BINARY_OF(tsi_sample_binary)
#define TSI_BINARY_OF(samples)                                                                     \
    .dims = "*", .input_min = 2, .input_max = 2, .output_count = 1, .infer = tsi_family_infer,     \
    .reference = tsi_family_reference, .sample = samples

#endif
