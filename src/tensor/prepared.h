/* SPDX-License-Identifier: Apache-2.0 */
/* prepared.h - moves of several tensors that are made again and again: what follows from their
 * layouts is found once, a run adds blocks and addresses.
 *
 *   layouts, dtypes --make--> plans, programs, lists of parts in order
 *   tensors --run--> fresh blocks, one exchange a round, one work
 *
 * INV: a run exchanges what tsi_redistribute_tagged would, part by part, so that a rank may go this
 * way and its peers the other one. */
#ifndef TSI_TENSOR_PREPARED_H
#define TSI_TENSOR_PREPARED_H

#include "tensor/tensor.h"

typedef struct tsi_prepared tsi_prepared;

/* The moves of x[i] to the layouts to[i] on the same meshes, whose blocks are counted under `tag`.
 * *out is NULL where they have to be made one by one: some stay where they are, copy or fill
 * something besides, would travel in several exchanges at once, or are described alone. */
ts_status tsi_prepared_make(ts_tensor *const *x, const ts_layout *const *to, int32_t count,
                            uint32_t tag, tsi_prepared **out);
void tsi_prepared_destroy(tsi_prepared *p); /* accepts NULL; what is under way goes on */
/* Is it for exactly these? */
bool tsi_prepared_fits(const tsi_prepared *p, ts_tensor *const *x, const ts_layout *const *to,
                       int32_t count);
int64_t tsi_prepared_rounds(const tsi_prepared *p); /* of a run */
/* [coll] Begins the moves of x[i], for which it fits; the variables are bound to the results, which
 * are on their way. A variable may be what is moved. `name` is for events and sentences. */
ts_status tsi_prepared_run(tsi_prepared *p, const char *name, ts_tensor *const *x,
                           ts_tensor *const *variable);

#endif
