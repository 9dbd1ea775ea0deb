/* SPDX-License-Identifier: Apache-2.0 */
/* sample.h - what sweeps over the table draw beside the operators' own samples: placements of every
 * kind on any mesh, and extents of 0 and 1. Everything follows from `random`. */
#ifndef TSI_OP_SAMPLE_H
#define TSI_OP_SAMPLE_H

#include "base/text.h"
#include "op/op.h"

/* 0 .. bound-1. */
int64_t tsi_sample_below(uint64_t *random, int64_t bound);
/* A pending reduction that has a meaning for the dtype; NULL for TS_DTYPE_NONE: nothing is pending
 * (indices). */
const char *tsi_sample_reduce_name(uint64_t *random, ts_dtype dtype);
/* Placements of a tensor, one per axis: R, P(reduce) unless that is NULL, and every kind of cut.
 * They may not go together with each other (a ragged cut beside another): then draw again. */
void tsi_sample_places(uint64_t *random, const tsi_mesh_desc *mesh, const ts_shape *shape,
                       const char *reduce, tsi_text *out);
/* A layout drawn so, interned; NULL: memory. */
const ts_layout *tsi_sample_layout(uint64_t *random, tsi_mesh_desc *mesh, const ts_shape *shape,
                                   ts_dtype dtype);
/* Replaces some extents of the inputs by small ones, 0 and 1 mostly, and equal ones alike, so that
 * what belongs together still fits. */
void tsi_sample_extents(uint64_t *random, ts_meta *in, int32_t count);

#endif
