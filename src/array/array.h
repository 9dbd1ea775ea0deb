/* SPDX-License-Identifier: Apache-2.0 */
/* array.h - storage and views of it: the local block under a distributed tensor.
 *
 * tsi_storage  counted memory on a device, from its owner's caching allocator or given from outside. Its
 *              data may be emptied and refilled under live views (resharding). The count is atomic:
 *              peers may hold a storage; memory goes back to its owner's allocator.
 * tsi_array    a counted view: storage, offset, dtype, extents, strides. One thread at a time.            */
#ifndef TSI_ARRAY_ARRAY_H
#define TSI_ARRAY_ARRAY_H

#include <stdatomic.h>

#include "array/pool.h"
#include "base/rank.h"
#include "device/device.h"

typedef struct tsi_storage {
    _Atomic int64_t references;
    const tsi_device *device;
    tsi_pool *pool;  /* NULL: memory from outside */
    void *data;      /* NULL: emptied */
    size_t bytes;    /* wanted size, also while emptied */
    uint32_t tag;    /* pool tag */
    uint32_t version; /* counts in-place writes */
    void (*done)(void *context); /* outside memory: called when the last reference goes */
    void *context;
} tsi_storage;

typedef struct tsi_array {
    int64_t references;
    tsi_storage *storage;
    int64_t offset; /* elements */
    int32_t dtype;
    int32_t ndim;
    int64_t extent[TS_NDIM_MAX];
    int64_t stride[TS_NDIM_MAX];
} tsi_array;

tsi_storage *tsi_storage_create(tsi_pool *pool, size_t bytes, uint32_t tag); /* NULL: recorded */
tsi_storage *tsi_storage_wrap(const tsi_device *device, void *data, size_t bytes,
                              void (*done)(void *), void *context);
void tsi_storage_retain(tsi_storage *storage);
void tsi_storage_release(tsi_storage *storage);  /* any thread; accepts NULL */
ts_status tsi_storage_refill(tsi_storage *storage); /* memory again after empty */
void tsi_storage_empty(tsi_storage *storage);       /* gives memory back, views stay */

tsi_array *tsi_array_create(ts_rank *rank, ts_dtype dtype, const ts_shape *shape); /* dense, not zeroed */
tsi_array *tsi_array_wrap(ts_rank *rank, const ts_array *block); /* takes block->data if done is set */
tsi_array *tsi_array_view(tsi_array *base, ts_dtype dtype, const ts_shape *shape,
                          const int64_t *stride, int64_t offset); /* checked against the storage */
tsi_array *tsi_array_retain(tsi_array *array);
void tsi_array_release(tsi_array *array); /* accepts NULL */
void *tsi_array_data(const tsi_array *array);
tsi_block tsi_array_block(const tsi_array *array);
ts_shape tsi_array_shape(const tsi_array *array);
bool tsi_array_is_dense(const tsi_array *array);
void tsi_array_describe(const tsi_array *array, ts_array *out); /* for handing out; borrows */
/* Strided copy with cast, and fill, on the array's device. */
ts_status tsi_array_copy(tsi_array *to, const tsi_array *from);
ts_status tsi_array_fill(tsi_array *to, const void *element);

/* ---- DLPack, version 1 (dlpack.c): `managed` is a DLManagedTensorVersioned of the standard ABI */
struct DLManagedTensorVersioned;
ts_status tsi_array_to_dlpack(tsi_array *array, struct DLManagedTensorVersioned **out);
tsi_array *tsi_array_from_dlpack(ts_rank *rank, struct DLManagedTensorVersioned *managed /* takes */);

#endif
