/* SPDX-License-Identifier: Apache-2.0 */
/* image.c - blocks of a device on the host; see image.h. */
#include "array/image.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"

enum { IMAGE_ALIGNMENT = 64 };

/* What is only written goes from plain memory, which copy_in has read when it returns: nobody waits
 * for the queue. What is read comes into memory that copies need not stage. */
static ts_status memory_take(tsi_image *image)
{
    const tsi_device *device = image->where->device;
    image->pinned = device->host_alloc && image->mode & TSI_IMAGE_READ;
    if (image->pinned) return device->host_alloc(device, image->bytes, &image->memory);
    image->memory = tsi_alloc_aligned(image->bytes, IMAGE_ALIGNMENT);
    return image->memory ? TS_OK : tsi_fail_memory("an image on the host", image->bytes);
}

static void memory_give(tsi_image *image)
{
    const tsi_device *device = image->where->device;
    if (image->pinned && image->memory)
        device->host_free(device, image->memory, image->bytes);
    else
        tsi_free(image->memory);
}

/* Only contiguous memory crosses: a strided block goes by way of a dense one on the device. */
static ts_status dense_make(ts_rank *rank, tsi_image *image)
{
    ts_shape shape = { .ndim = image->of.ndim };
    memcpy(shape.extent, image->of.extent, sizeof shape.extent);
    image->dense = tsi_array_create_tagged(rank, (ts_dtype)image->of.dtype, &shape, TSI_TAG_COMM);
    if (!image->dense) return ts_rank_status(rank);
    memcpy(image->block.stride, image->dense->stride, sizeof image->block.stride);
    if (!(image->mode & TSI_IMAGE_READ)) return TS_OK;
    tsi_block to = tsi_array_block(image->dense);
    const tsi_rank_device *where = image->where;
    return where->device->copy(where->device, &to, &image->of, where->queue);
}

static void *crossing(const tsi_image *image)
{
    return image->dense ? tsi_array_data(image->dense) : image->of.data;
}

ts_status tsi_image_open(ts_rank *rank, const tsi_block *block, int32_t mode, tsi_image *out)
{
    *out = (tsi_image){ .block = *block, .of = *block, .mode = mode };
    const tsi_rank_device *where = tsi_rank_device_of(rank);
    if (!where) return ts_rank_status(rank);
    if (where->device->host_readable) return TS_OK;
    out->where = where;
    out->block.data = NULL;
    out->bytes = (size_t)tsi_block_count(block) * ts_dtype_size((ts_dtype)block->dtype);
    if (out->bytes == 0) return TS_OK;
    ts_status status = memory_take(out);
    if (status == TS_OK && !tsi_block_is_dense(block)) status = dense_make(rank, out);
    if (status == TS_OK && mode & TSI_IMAGE_READ)
        status = where->device->copy_out(where->device, out->memory, crossing(out), out->bytes,
                                         where->queue);
    out->block.data = out->memory;
    if (status != TS_OK) tsi_image_drop(out);
    return status;
}

/* A copy_out that is still on its way would write into memory that is given back here. */
void tsi_image_drop(tsi_image *image)
{
    if (!image->where) return;
    const tsi_rank_device *where = image->where;
    bool reads = image->memory && image->mode & TSI_IMAGE_READ;
    if (reads) (void)where->device->stream_sync(where->device, where->queue);
    memory_give(image);
    tsi_array_release(image->dense);
    *image = (tsi_image){ .mode = 0 };
}

ts_status tsi_image_close(tsi_image *image)
{
    const tsi_rank_device *where = image->where;
    ts_status status = TS_OK;
    TSI_ASSERT(!where || image->bytes == 0 || image->memory);
    if (where && image->mode & TSI_IMAGE_WRITE && image->bytes > 0) {
        const tsi_device *device = where->device;
        status =
            device->copy_in(device, crossing(image), image->memory, image->bytes, where->queue);
        if (status == TS_OK && image->dense) {
            tsi_block from = tsi_array_block(image->dense);
            status = device->copy(device, &image->of, &from, where->queue);
        }
        if (image->pinned) { /* pinned memory is read later, be the rest as it may */
            ts_status read = device->stream_sync(device, where->queue);
            if (status == TS_OK) status = read;
        }
    }
    if (where) {
        memory_give(image);
        tsi_array_release(image->dense);
    }
    *image = (tsi_image){ .mode = 0 };
    return status;
}

static ts_status copy_on_host(const tsi_block *to, const tsi_block *from)
{
    const tsi_device *host = tsi_device_host();
    return host->copy(host, to, from, NULL);
}

ts_status tsi_array_read(ts_rank *rank, const tsi_array *from, const tsi_block *to)
{
    tsi_image image;
    tsi_block block = tsi_array_block(from);
    TSI_TRY(tsi_image_open(rank, &block, TSI_IMAGE_READ, &image));
    ts_status status = tsi_rank_device_sync(rank);
    if (status == TS_OK) status = copy_on_host(to, &image.block);
    tsi_image_drop(&image);
    return status;
}

ts_status tsi_array_write(ts_rank *rank, tsi_array *to, const tsi_block *from)
{
    tsi_image image;
    tsi_block block = tsi_array_block(to);
    TSI_TRY(tsi_image_open(rank, &block, TSI_IMAGE_WRITE, &image));
    ts_status status = copy_on_host(&image.block, from);
    if (status == TS_OK) return tsi_image_close(&image);
    tsi_image_drop(&image);
    return status;
}
