/* SPDX-License-Identifier: Apache-2.0 */
/* algorithm.h - the frame of an operator's algorithm: a body of operators that may communicate by
 * itself.
 *
 *   scope = begin(io);  ... operators, settle(io, partial) ...  return end(io, scope, outputs);
 *
 * Inside, implicit moves are allowed whatever the caller's policy says: the policy has judged the
 * algorithm as a whole, by the bytes it states. Nothing inside is recorded on a tape. */
#ifndef TSI_OP_ALGORITHM_H
#define TSI_OP_ALGORITHM_H

#include "op/op.h"

ts_scope tsi_algorithm_begin(const tsi_algorithm_io *io);
/* The tensor with what is pending on the algorithm's axes reduced: replicated there, else as it is.
 */
ts_tensor *tsi_algorithm_settle(const tsi_algorithm_io *io, ts_tensor *t);
/* The tensor whole on the axes of a mask, elsewhere as it is. */
ts_tensor *tsi_algorithm_whole(ts_tensor *t, uint32_t axes);
/* Outputs in the layouts the plan promised, handed to the caller's scope; an input among them is
 * copied. */
ts_status tsi_algorithm_end(const tsi_algorithm_io *io, ts_scope scope, ts_tensor *const *out);

/* What algorithms state: bytes of so many arrays like this, at most INT64_MAX; and what a rank of n
 * receives of bytes of which it has its share. */
int64_t tsi_algorithm_bytes(const ts_meta *meta, int64_t arrays);
int64_t tsi_algorithm_share(int64_t bytes, int64_t n);

/* For algorithms that write blocks themselves: one for each output in its promised layout, at most
 * TSI_OUTPUT_MAX; and the tensors made of them, or, after a failure, nothing left. */
ts_status tsi_algorithm_blocks(const tsi_algorithm_io *io, tsi_array **block);
ts_status tsi_algorithm_finish(const tsi_algorithm_io *io, tsi_array **block, ts_status status);
/* The same for those whose local steps the host does, between messages of its own: `block` has the
 * inputs, then the outputs, as the host sees them; arena memory lasts for the call. */
typedef ts_status (*tsi_algorithm_fn)(const tsi_algorithm_io *io, const tsi_block *block,
                                      tsi_arena *arena);
ts_status tsi_algorithm_on_host(const tsi_algorithm_io *io, tsi_algorithm_fn fn);

#endif
