/* SPDX-License-Identifier: Apache-2.0 */
/* kernel.h - the one way from an operator to the code that computes it.
 *
 * A device's kernels stand before the references. A device without a kernel for a call borrows the
 * host's: operands are copied to the host, results back (a fallback: an event, a warning, a
 * policy).
 *
 * INV: tsi_kernel_run is the only caller of kernels and references, so that every kernel is found,
 * deferred, staged and reported in one place. */
#ifndef TSI_OP_CORE_KERNEL_H
#define TSI_OP_CORE_KERNEL_H

#include "op/op.h"

/* A fast kernel declines a dtype it has no loops for with TSI_KERNEL_DECLINED (positive, not a
 * status), and the reference runs. */
enum { TSI_KERNEL_DECLINED = 1 };
void tsi_kernel_set(tsi_op_id op, tsi_kernel_fn kernel); /* of the cpu; before the first world */
/* The kernel of a device; NULL: none, the host's reference runs. */
tsi_kernel_fn tsi_kernel_of(const tsi_device *device, const tsi_op_desc *op);

/* Runs `kernel` (NULL: the reference) on the call's blocks, in the order of io->queue. What a
 * kernel finds wrong with its data on a device that runs later is told by the next wait. */
ts_status tsi_kernel_run(tsi_kernel_fn kernel, const tsi_kernel_io *io);

/* The blocks of a rank's device as blocks of the host, for work that only the host can do: a
 * user's function, a reference, a step of an algorithm. The first `ins` are read, the others
 * written; `name` is for events and messages. On a device the host reads, fn gets them as they
 * are. */
typedef ts_status (*tsi_host_fn)(void *context, const tsi_block *block);
ts_status tsi_host_run(ts_rank *rank, const char *name, const tsi_block *block, int32_t ins,
                       int32_t outs, tsi_host_fn fn, void *context);

#endif
