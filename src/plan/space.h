/* SPDX-License-Identifier: Apache-2.0 */
/* space.h - placement states of one mesh and tensor as 64-bit integers.
 *
 *   state = one byte per axis:   ppp ccccc
 *
 *   p: position among the axes that cut the same dim;  c: code
 *
 *   code  0        R
 *         1 + d    S(d), the plain chunk rule
 *         9 + i    cut[i]: any other cut (strided, ragged, ...)
 *        25 + i    op[i]: a partial
 *
 * Equal states are equal integers; the cuts of a dim form a stack by position, the last on top.
 * Only the top of a stack may be gathered or moved, and a new cut becomes the top (spec: nested
 * shards). */
#ifndef TSI_PLAN_SPACE_H
#define TSI_PLAN_SPACE_H

#include "base/text.h"
#include "layout/layout.h"
#include "tessera/plan.h"

typedef uint64_t tsi_state;

enum {
    TSI_CODE_R = 0,
    TSI_CODE_S = 1,
    TSI_CODE_CUT = 9,
    TSI_CODE_P = 25,
    TSI_CUT_MAX = 16,
    TSI_OP_MAX = 7
};

typedef struct tsi_space {
    int32_t axes, dims;
    int64_t size[TS_NDIM_MAX];   /* of the axes */
    int64_t extent[TS_NDIM_MAX]; /* of the tensor */
    int64_t count;               /* elements of the tensor */
    int64_t item;                /* bytes of one */
    int64_t ranks;
    int32_t cut_count, op_count;
    int32_t spans; /* a cut runs over several dims: states cannot be searched */
    int32_t reserved;
    ts_placement cut[TSI_CUT_MAX];
    int64_t cut_size[TSI_CUT_MAX]; /* of the axis it was found on: as many sizes has a ragged one */
    ts_placement op[TSI_OP_MAX];
    tsi_state src, dst;
} tsi_space;

static inline int32_t tsi_state_code(tsi_state state, int32_t axis)
{
    return (int32_t)(state >> (8 * axis) & 31u);
}
static inline int32_t tsi_state_position(tsi_state state, int32_t axis)
{
    return (int32_t)(state >> (8 * axis + 5) & 7u);
}
static inline tsi_state tsi_state_with(tsi_state state, int32_t axis, int32_t code,
                                       int32_t position)
{
    uint64_t byte = (uint64_t)code | (uint64_t)position << 5;
    return (state & ~((uint64_t)255 << (8 * axis))) | byte << (8 * axis);
}
static inline bool tsi_code_cuts(int32_t code)
{
    return code >= TSI_CODE_S && code < TSI_CODE_P;
}
static inline bool tsi_code_partial(int32_t code)
{
    return code >= TSI_CODE_P;
}
static inline int32_t tsi_code_dim(const tsi_space *space, int32_t code)
{
    return code < TSI_CODE_CUT ? code - TSI_CODE_S : space->cut[code - TSI_CODE_CUT].dim;
}

/* Source and target are on equal meshes. Fails if a count of bytes would not fit into 63 bits. */
ts_status tsi_space_make(const ts_layout *src, const ts_layout *dst, ts_dtype dtype,
                         tsi_space *out);
/* The placement of one axis, its order included. */
ts_placement tsi_space_place(const tsi_space *space, tsi_state state, int32_t axis);
/* Interned and retained; NULL: recorded. The one term of an axis of one rank is R, so that states
 * on the way to a target may have it beside other kinds. */
const ts_sharding *tsi_space_sharding(const tsi_space *space, tsi_mesh_desc *mesh, tsi_state state);
/* Elements held by all ranks together. */
int64_t tsi_space_held(const tsi_space *space, tsi_state state);
/* Extents of the largest block; and whether every cut divides exactly. */
void tsi_space_lengths(const tsi_space *space, tsi_state state, int64_t *length, bool *even);
/* Its elements. */
int64_t tsi_space_largest(const tsi_space *space, tsi_state state, bool *even);
/* Positions renumbered from 0 without gaps, keeping their order. */
tsi_state tsi_space_compact(const tsi_space *space, tsi_state state);
/* Axes of size 1 made R. */
tsi_state tsi_space_without_units(const tsi_space *space, tsi_state state);
/* "S(0)[0]S(0)[1]R": a position wherever several axes cut a dim. */
void tsi_space_trace(const tsi_space *space, tsi_state state, tsi_text *text);
/* One placement; marked: with "[k]" where that is not the left-to-right order. */
void tsi_space_place_text(const tsi_space *space, tsi_state state, int32_t axis, bool marked,
                          tsi_text *text);

/* The longest of the n pieces of a cut of `length` indices. */
int64_t tsi_place_longest(const ts_placement *place, int64_t length, int64_t n);
bool tsi_place_even(const ts_placement *place, int64_t length, int64_t n);
/* May two partials stand in one list? (equal, or sum and avg) */
bool tsi_ops_mix(const ts_placement *a, const ts_placement *b);

#endif
