/* SPDX-License-Identifier: Apache-2.0 */
/* grouped_linear.h - what the two files of grouped products share. */
#ifndef TSI_OP_MATRIX_GROUPED_LINEAR_H
#define TSI_OP_MATRIX_GROUPED_LINEAR_H

#include "op/op.h"

/* Rows go to the ranks that hold their groups (grouped_exchange.c). */
extern const tsi_algorithm tsi_grouped_linear_exchange[];
extern const tsi_algorithm tsi_grouped_backward_exchange[];

ts_status tsi_grouped_refuse(const char *op, int64_t group, int64_t groups);

#endif
