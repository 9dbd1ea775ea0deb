/* SPDX-License-Identifier: Apache-2.0 */
/* remap_box.h - boxes of a map (remap.h): what of it lies in a window of the input and one of the
 * result. Shared by the local kernel and the exchange. */
#ifndef TSI_OP_REMAP_BOX_H
#define TSI_OP_REMAP_BOX_H

#include "op/view/remap.h"

typedef struct tsi_remap_range { /* global indices of a changed dim, positions of any other */
    int64_t in_begin, in_end, out_begin, out_end;
} tsi_remap_range;
typedef struct tsi_remap_window {
    tsi_remap_range dim[TS_NDIM_MAX];
} tsi_remap_window;

typedef struct tsi_remap_segment { /* positions from the windows' beginnings */
    int64_t count, out, in, out_step, in_step;
} tsi_remap_segment;
typedef struct tsi_remap_box {
    int32_t ndim, reserved;
    tsi_remap_segment dim[TS_NDIM_MAX];
} tsi_remap_box;
typedef ts_status (*tsi_remap_box_fn)(const tsi_remap_box *box, void *context);

/* Visits the boxes in an order that depends on map and window alone. */
ts_status tsi_remap_boxes(const tsi_remap *map, const tsi_remap_window *window,
                          tsi_remap_box_fn visit, void *context);
/* The identity of a dim that is cut alike on both sides: so many positions are here. */
void tsi_remap_still(tsi_remap *map, int32_t dim, int64_t extent);
/* A box as a strided part of the result's (or the input's) block, which begins at the window. */
tsi_block tsi_remap_side(const tsi_remap_box *box, const tsi_block *block, bool out);

typedef struct tsi_remap_copying {
    const tsi_device *device;
    tsi_stream *queue;
    const tsi_block *in, *out;
} tsi_remap_copying;
ts_status tsi_remap_copy(const tsi_remap_box *box, void *context); /* a tsi_remap_copying */
/* The fill value all over a block of the result, where the operator has one. */
ts_status tsi_remap_fill(const tsi_op_desc *op, const void *attributes, const tsi_device *device,
                         tsi_stream *queue, const tsi_block *out);

#endif
