/* SPDX-License-Identifier: Apache-2.0 */
/* remap.h - operators whose result takes every element from an input by index arithmetic, dim by
 * dim: slice, flip, roll, pad, repeat, cat and their gradients.
 *
 *   piece   out[o], out[o + os], ...  <-  in[i], in[i + is], ...      `count` of them
 *   dim     its pieces, the whole pattern `repeats` times, each shifted against the one before
 *   map     the product of its dims; what no piece covers has the fill value
 *
 * Dims that the map leaves alone may be cut in any way. A cut dim that it changes is done by an
 * exchange: every rank knows what every other one holds and wants, so the ranks send each other
 * exactly the boxes that are missing, and keep what they have.
 *
 * INV: both ends of a message list the same boxes in the same order, from the same arguments. */
#ifndef TSI_OP_REMAP_H
#define TSI_OP_REMAP_H

#include "op/core/common.h"

typedef struct tsi_remap_piece {
    int64_t out, in, count;
    int64_t out_step, in_step; /* out_step > 0; in_step any */
} tsi_remap_piece;

typedef struct tsi_remap_dim {
    int64_t in_extent, out_extent;
    int32_t piece_count, reserved;
    int64_t repeats, out_shift, in_shift; /* of one repetition against the one before */
    tsi_remap_piece piece[2];
} tsi_remap_dim;

typedef struct tsi_remap {
    int32_t ndim;
    uint32_t changed; /* dims whose elements do not all stay where they are */
    tsi_remap_dim dim[TS_NDIM_MAX];
} tsi_remap;

/* What an operator of this kind says of itself, in desc->family. */
typedef struct tsi_remap_kind {
    void (*map)(const tsi_op_call *call, int32_t input, tsi_remap *out);
    ts_number (*fill)(const void *attributes); /* NULL: every element comes from an input */
} tsi_remap_kind;

/* The identity of in's shape onto out's; dims with equal extents map one to one. */
void tsi_remap_begin(const ts_shape *in, const ts_shape *out, tsi_remap *map);
/* One piece for a dim; marks the dim as changed unless it is the identity. */
void tsi_remap_set(tsi_remap *map, int32_t dim, tsi_remap_piece piece);

/* Everything but normalise, infer, grad and sample, for operators with one input. */
void tsi_remap_rules(const tsi_op_call *call, tsi_rules *rules);
/* Partials that stay beside a fill value: all if it is 0. */
void tsi_remap_partials(ts_number fill, tsi_rules *rules);
ts_status tsi_remap_reference(const tsi_kernel_io *io);
extern const tsi_algorithm tsi_remap_exchange[]; /* number 1: "exchange" */
int64_t tsi_remap_received(const tsi_algorithm_request *request);

#endif
