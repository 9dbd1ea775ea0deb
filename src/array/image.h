/* SPDX-License-Identifier: Apache-2.0 */
/* image.h - a block of a rank's device as the host sees it: the block itself where the host may
 * read it, else a copy that goes there and back through the rank's queue.
 *
 *   tsi_image_open(rank, &block, TSI_IMAGE_READ, &image);
 *   tsi_rank_device_sync(rank);                       (one wait for all images that are read)
 *   ... image.block ...
 *   tsi_image_close(&image);
 *
 * INV: this is the only way the host touches memory of a device that it cannot read. */
#ifndef TSI_ARRAY_IMAGE_H
#define TSI_ARRAY_IMAGE_H

#include "array/array.h"

enum { TSI_IMAGE_READ = 1, TSI_IMAGE_WRITE = 2 };

typedef struct tsi_image {
    tsi_block
        block; /* on the host; the device's strides where it is the block itself, else dense */
    /* private */
    tsi_block of;
    const tsi_rank_device *where;
    tsi_array *dense; /* on the device, where `of` is not contiguous: only whole ranges cross */
    void *memory;
    size_t bytes; /* that crossed, or will, one way */
    int32_t mode, reserved;
    bool pinned; /* memory is the device's own (host_alloc) */
} tsi_image;

/* With READ the contents are on their way, and there after tsi_rank_device_sync. */
ts_status tsi_image_open(ts_rank *rank, const tsi_block *block, int32_t mode, tsi_image *out);
/* With WRITE the contents go to the device, in the order of the queue. Accepts a zero image. */
ts_status tsi_image_close(tsi_image *image);
void tsi_image_drop(tsi_image *image); /* closes without writing */

/* Copies with a cast between an array and memory of the host, equal extents. `read` waits. */
ts_status tsi_array_read(ts_rank *rank, const tsi_array *from, const tsi_block *to);
ts_status tsi_array_write(ts_rank *rank, tsi_array *to, const tsi_block *from);

#endif
