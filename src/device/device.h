/* SPDX-License-Identifier: Apache-2.0 */
/* device.h - what a device can do with memory: a const vtable, one per kind of device.
 *
 * `cpu` runs everything at once on the calling thread, so its streams and events are trivial;
 * `cuda` (backend/cuda, a module) fills the same table. Kernels of operators are a separate table
 * [device][op] in op/; here are only those that storage and communication need. */
#ifndef TSI_DEVICE_DEVICE_H
#define TSI_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tessera/types.h"

typedef struct tsi_stream tsi_stream; /* NULL: the default stream */
typedef struct tsi_device_event tsi_device_event;

/* A strided block of memory on one device: kernels see nothing else. */
typedef struct tsi_block {
    void *data; /* first element */
    int32_t dtype;
    int32_t ndim;
    int64_t extent[TS_NDIM_MAX];
    int64_t stride[TS_NDIM_MAX]; /* in elements; may be 0 (broadcast) or negative on sources */
} tsi_block;

typedef struct tsi_device {
    size_t struct_size;
    const char *name;   /* "cpu" */
    bool host_readable; /* the CPU may dereference its pointers */

    /* ---- buffers: raw, slow; the caching allocator of array/ stands before them. 64-byte aligned
     * at least. alloc returns TS_ERR_MEMORY without recording it: the caller may have caches to
     * give back first. */
    ts_status (*buffer_alloc)(const struct tsi_device *device, size_t bytes, void **out);
    void (*buffer_free)(const struct tsi_device *device, void *buffer, size_t bytes);

    /* ---- copies between this device and the host, contiguous, in stream order */
    ts_status (*copy_in)(const struct tsi_device *device, void *to, const void *from, size_t bytes,
                         tsi_stream *stream);
    ts_status (*copy_out)(const struct tsi_device *device, void *to, const void *from, size_t bytes,
                          tsi_stream *stream);

    /* ---- streams and events */
    ts_status (*stream_create)(const struct tsi_device *device, tsi_stream **out);
    void (*stream_destroy)(const struct tsi_device *device, tsi_stream *stream);
    ts_status (*stream_sync)(const struct tsi_device *device, tsi_stream *stream);
    ts_status (*event_record)(const struct tsi_device *device, tsi_stream *stream,
                              tsi_device_event **out);
    ts_status (*event_wait)(const struct tsi_device *device, tsi_stream *stream,
                            tsi_device_event *event); /* later work of stream waits for event */
    bool (*event_done)(const struct tsi_device *device, tsi_device_event *event);
    void (*event_destroy)(const struct tsi_device *device, tsi_device_event *event);

    /* ---- kernels of storage and communication, in stream order. Shapes were checked by the
     * caller. */
    /* to[i] = cast(from[i]); equal extents, any strides, any two dtypes. */
    ts_status (*copy)(const struct tsi_device *device, const tsi_block *to, const tsi_block *from,
                      tsi_stream *stream);
    ts_status (*fill)(const struct tsi_device *device, const tsi_block *to, const void *element,
                      tsi_stream *stream); /* element has to's dtype */
    /* to[i] = from[0][i] op from[1][i] op ... in that order, one rounding; equal extents and
     * dtypes; `to` may be one of the sources. avg divides by avg_count (0: by count). */
    ts_status (*fold)(const struct tsi_device *device, const tsi_block *to,
                      const tsi_block *const *from, int64_t count, ts_reduce reduce,
                      int64_t avg_count, tsi_stream *stream);
} tsi_device;

/* Always there. */
const tsi_device *tsi_device_cpu(void);
/* By name ("cpu"); NULL after recording why not (names what was found). */
const tsi_device *tsi_device_find(const char *name);

/* Is the reduction meaningful for the dtype? false: *why is a phrase ("min of complex numbers"). */
bool tsi_reduce_allowed(ts_reduce reduce, ts_dtype dtype, const char **why);
/* Writes the identity element of the reduction (0, 1, +inf, ...; avg: 0) for the dtype, 16 bytes at
 * most. */
ts_status tsi_reduce_identity(ts_reduce reduce, ts_dtype dtype, void *element);

/* ---- helpers on blocks, no memory touched */
int64_t tsi_block_count(const tsi_block *block);
bool tsi_block_is_dense(const tsi_block *block); /* contiguous, row-major */
/* From a public array, validated: dtype, ndim, extents, data not NULL unless empty. */
ts_status tsi_block_of_array(const ts_array *array, const char *what, tsi_block *out);
/* Merges dims that are contiguous in both blocks (same extents); drops size-1 dims. */
void tsi_block_coalesce_pair(tsi_block *a, tsi_block *b);

#endif
