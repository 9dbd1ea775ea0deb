/* SPDX-License-Identifier: Apache-2.0 */
/* halo.h - operators that look at windows of places (convolution, pooling): a place dim that is cut
 * stays cut, and each rank fetches the few places around its own that its windows reach.
 *
 *   windows p, places q:   q = p stride - padding + k dilation,   k = 0 .. kernel - 1
 *
 * Forward operators need places for their windows, gradients windows for their places, and the
 * gradient of a weight places for the windows of dy. Kernels take positions from the regions of
 * their operands, so the same kernel runs on blocks with and without halos.
 *
 * INV: tensors are [N, C, places..]; both sides are cut into plain chunks. */
#ifndef TSI_OP_HALO_H
#define TSI_OP_HALO_H

#include "op/core/common.h"

typedef struct tsi_window { /* along one place dim */
    int64_t kernel, stride, padding, dilation;
} tsi_window;

typedef struct tsi_halo_kind { /* desc->family of such an operator */
    int32_t input;             /* the operand that is fetched with a halo */
    int32_t follows;           /* whose cut says what is needed: an input, or -1: output 0 */
    bool needs_windows;        /* the fetched operand has windows, the other one places */
    void (*window)(const tsi_op_call *call, int32_t place, tsi_window *out);
} tsi_halo_kind;

/* One rule per place dim, by the algorithm below; other inputs are whole. */
void tsi_halo_rules(const tsi_op_call *call, tsi_rules *rules);
extern const tsi_algorithm tsi_halo_exchange[]; /* number 1: "halo" */
int64_t tsi_halo_received(const tsi_algorithm_request *request);

#endif
