/* SPDX-License-Identifier: Apache-2.0 */
/* grouped_linear.h - what the two files of grouped products share. */
#ifndef TSI_OP_MATRIX_GROUPED_LINEAR_H
#define TSI_OP_MATRIX_GROUPED_LINEAR_H

#include "op/op.h"

/* Rows go to the ranks that hold their groups (grouped_exchange.c). */
extern const tsi_algorithm tsi_grouped_linear_exchange[];
extern const tsi_algorithm tsi_grouped_backward_exchange[];

/* For each group the member that holds its matrix, the first of several; -1: none of them does.
 * `among` NULL: this rank alone. */
ts_status tsi_grouped_owners(const tsi_algorithm_io *io, ts_group *among, const ts_layout *matrices,
                             tsi_arena *arena, int64_t **out);

/* The gradient of the matrices, which lies where they do. maker */
ts_tensor *tsi_grouped_sums(ts_tensor *dy, ts_tensor *x, ts_tensor *group, ts_tensor *weight);

/* `cut`: other ranks have other rows, so that they do not know of it. */
ts_status tsi_grouped_refuse(const char *op, int64_t group, int64_t groups, bool cut);

#endif
