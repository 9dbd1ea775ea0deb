/* SPDX-License-Identifier: Apache-2.0 */
/* union.h - the ranks of two meshes as one group, for moves between them. */
#ifndef TSI_TENSOR_UNION_H
#define TSI_TENSOR_UNION_H

#include "tensor/tensor.h"

/* Members: the ranks of `src` in its order, then those of `dst` that `src` has not, in its order.
 */
typedef struct tsi_union {
    tsi_mesh_desc *src, *dst; /* retained */
    ts_group *group;
    int64_t *rank; /* of each member */
    int64_t count;
    tsi_map members; /* world rank -> member + 1 */
} tsi_union;

const tsi_union *tsi_union_of(ts_rank *rank, tsi_mesh_desc *src,
                              tsi_mesh_desc *dst);                   /* NULL: recorded */
int64_t tsi_union_member(const tsi_union *both, int64_t world_rank); /* -1: not in it */
void tsi_unions_release(tsi_tensor_state *state);

#endif
