/* SPDX-License-Identifier: Apache-2.0 */
/* lend.h - tensors between ranks of one process without a copy.
 *
 *   sender    memory, retained -> a loan of the world -> its number goes as a message
 *   receiver  the number -> a tensor on the sender's memory, given back with the last reference
 *
 * INV: nobody writes to what was lent: it is a tensor between stages, which its maker's tape may
 * need as it is. A loan that nobody takes (of an abandoned step, or of a rank that left) ends with
 * the world.
 */
#ifndef TSI_PARALLEL_LEND_H
#define TSI_PARALLEL_LEND_H

#include <stdbool.h>

#include "tessera/tensor.h"

/* Can ranks of this rank's world read each other's memory? All of them say the same. */
bool tsi_lends(ts_rank *rank);
/* The number of a loan of x's block, which is ready; 0: recorded. */
uint64_t tsi_lend(ts_tensor *x);
/* What was lent under that number, as a block of so many dims, each once. maker */
ts_tensor *tsi_borrow(ts_rank *rank, uint64_t number, const ts_meta *meta,
                      const ts_sharding *sharding);

#endif
