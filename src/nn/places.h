/* SPDX-License-Identifier: Apache-2.0 */
/* places.h - which global indices the elements of a block have, in the form that lists take.
 *
 *   block   [####][####][####][##][##]      elements in their order
 *   whole   ####....####....####....##..##  runs: alike at even distances, they are a piece
 */
#ifndef TSI_NN_PLACES_H
#define TSI_NN_PLACES_H

#include "op/core/kernel.h"
#include "tensor/tensor.h"

typedef struct tsi_piece {
    int64_t first, count; /* elements of the block */
    /* Element i of the piece has the global index base + i / inner * outer + i % inner; inner 0:
     * base + i. */
    int64_t base, inner, outer;
} tsi_piece;

typedef struct tsi_places {
    const ts_layout *layout; /* that they are of; NULL: of none yet */
    tsi_piece *piece;
    int64_t count, capacity;
} tsi_places;

/* The places of a tensor's block; made once for a layout. */
ts_status tsi_places_of(tsi_places *places, const ts_tensor *t);
void tsi_places_release(tsi_places *places);

#endif
