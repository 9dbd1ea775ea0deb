/* SPDX-License-Identifier: Apache-2.0 */
/* array.h - storage and views of it: the local block under a distributed tensor.
 *
 *   tsi_storage   counted memory on a device, from its owner's caching allocator or given from
 *                 outside. Its data may be emptied and refilled under live views (resharding). The
 *                 count is atomic: peers may hold a storage; memory goes back to its owner's
 *                 allocator.
 *   tsi_array     a counted view: storage, offset, dtype, extents, strides. One thread at a
 *                 time. */
#ifndef TSI_ARRAY_ARRAY_H
#define TSI_ARRAY_ARRAY_H

#include <stdatomic.h>

#include "array/pool.h"
#include "base/rank.h"
#include "device/device.h"

enum { TSI_PARTS_MAX = 8 };

/* What a list form reads, from `data` to `read_only`, is mostly in one cache line. */
typedef struct tsi_storage {
    _Atomic int64_t references;
    const tsi_device *device;
    tsi_stream *queue; /* of the owner: copies and fills go there */
    tsi_pool *pool;    /* NULL: memory from outside */
    void *data;        /* NULL: emptied */
    /* Memory that others read too: whoever writes asks first, and says for which tensor; NULL: he
     * may. */
    ts_status (*ask)(void *context, void *tensor);
    uint32_t tag;                /* pool tag */
    uint32_t version;            /* counts in-place writes, of parts too */
    bool read_only;              /* outside memory that must not be written: every write asks */
    bool watched;                /* observers of the pool's rank are told when its memory goes */
    size_t bytes;                /* wanted size, also while emptied */
    void (*done)(void *context); /* outside memory: called when the last reference goes */
    void *context, *ask_context;
    /* Of storage that is cut into parts: arrays that see part p + 1, and writes of it alone. */
    int32_t part_arrays[TSI_PARTS_MAX];
    uint32_t part_writes[TSI_PARTS_MAX];
} tsi_storage;

typedef struct tsi_array {
    int32_t references;
    int32_t dense; /* 1: row-major without gaps; 0: not known to be */
    tsi_storage *storage;
    int64_t offset; /* elements */
    int32_t dtype;
    int32_t ndim;
    int32_t part, reserved; /* 1 + the part of the storage it lies in; 0: it may see all of it */
    int64_t extent[TS_NDIM_MAX];
    int64_t stride[TS_NDIM_MAX];
} tsi_array;

tsi_storage *tsi_storage_create(tsi_pool *pool, size_t bytes, uint32_t tag); /* NULL: recorded */
/* Memory from outside; done may be NULL (the caller keeps it alive). On failure done is not called.
 */
tsi_storage *tsi_storage_wrap(const tsi_rank_device *where, void *data, size_t bytes,
                              void (*done)(void *), void *context);
void tsi_storage_retain(tsi_storage *storage);
void tsi_storage_release(tsi_storage *storage); /* any thread; accepts NULL */
ts_status
tsi_storage_refill(tsi_storage *storage); /* memory again after empty, undefined contents */
void tsi_storage_retag(tsi_storage *storage, uint32_t tag); /* counted as this from now on */
void tsi_storage_empty(
    tsi_storage *storage); /* gives memory back, views stay; outside memory stays too */
/* A copy into blocks of the storage, or a fill, in the order of its queue. Checked by the caller.
 */
ts_status tsi_storage_copy(const tsi_storage *storage, const tsi_block *to, const tsi_block *from);
ts_status tsi_storage_fill(const tsi_storage *storage, const tsi_block *to, const void *element);

/* Dense, not zeroed, counted as an activation; the second form counts under another tag. NULL:
 * recorded. */
tsi_array *tsi_array_create(ts_rank *rank, ts_dtype dtype, const ts_shape *shape);
tsi_array *tsi_array_create_tagged(ts_rank *rank, ts_dtype dtype, const ts_shape *shape,
                                   uint32_t tag);
/* A dense array shaped like `model`, whose storage is not looked at; `bytes` are those of its
 * elements. For those who make the same shape again and again, on the pool's own thread. */
tsi_array *tsi_array_like(tsi_pool *pool, const tsi_array *model, size_t bytes);
/* The same, counted under another tag than that of activations. */
tsi_array *tsi_array_like_tagged(tsi_pool *pool, const tsi_array *model, size_t bytes,
                                 uint32_t tag);
/* Memory from outside: shared where the rank's device is where it lies (block->device), else copied
 * to the rank's device. Takes block->data if done is set; on failure it stays the caller's.
 * Negative strides are welcome. */
tsi_array *tsi_array_wrap(ts_rank *rank, const ts_array *block);
/* Another view of base's storage: offset from the storage's beginning and strides count elements of
 * `dtype`; stride NULL: dense. Refused if an element would lie outside the storage. */
tsi_array *tsi_array_view(tsi_array *base, ts_dtype dtype, const ts_shape *shape,
                          const int64_t *stride, int64_t offset);
/* A view with dtype, extents and strides of `model`, `offset` elements beyond base's, that is known
 * to lie inside: it did before, from the same strides and extents. */
tsi_array *tsi_array_view_like(tsi_array *base, const tsi_array *model, int64_t offset);
/* All of a storage, dense, from its beginning; on failure the storage is released. */
tsi_array *tsi_array_over(tsi_storage *storage /* takes */, ts_dtype dtype, const ts_shape *shape);
/* The same for one of several parts that share no element: part 0 .. TSI_PARTS_MAX - 1. Views of it
 * belong to that part. */
tsi_array *tsi_array_part(tsi_array *whole, int32_t part, const ts_shape *shape,
                          const int64_t *stride, int64_t offset);
/* Whether nothing else sees its elements, so that they may be written: it has one holder, and its
 * storage, or its part of it, no other array. */
bool tsi_array_is_alone(const tsi_array *array);
/* May they share elements: does the stretch of memory from the first to the last of one meet that
 * of the other? Also of storages that were given the same memory from outside. */
bool tsi_array_meets(const tsi_array *a, const tsi_array *b);
/* Do they share an element? Blocks that interlock in so many ways that not all are tried: yes. */
bool tsi_array_shares(const tsi_array *a, const tsi_array *b);
/* Its elements were written, or will be. */
static inline void tsi_array_wrote(const tsi_array *array)
{
    array->storage->version++;
    if (array->part) array->storage->part_writes[array->part - 1]++;
}
/* Another number after each write that may be one of its elements: other parts have none of them.
 */
uint32_t tsi_array_version(const tsi_array *array);
/* May one element stand for several? Then a write to one of them changes the others. Strides that
 * reach into each other count, also where they happen to meet no element twice. */
bool tsi_array_repeats(const tsi_array *array);
tsi_array *tsi_array_retain(tsi_array *array);
void tsi_array_release(tsi_array *array);     /* accepts NULL */
void *tsi_array_data(const tsi_array *array); /* the first element; NULL while emptied */
tsi_block tsi_array_block(const tsi_array *array);
ts_shape tsi_array_shape(const tsi_array *array);
/* As ts_array says it: 0 the host's memory. */
static inline int32_t tsi_array_device(const tsi_array *array)
{
    const tsi_device *device = array->storage->device;
    return device->host_readable ? 0 : device->dlpack_type;
}
bool tsi_array_is_dense(const tsi_array *array);
/* For handing out; borrows. One element repeated by zero strides alone cannot be said in a
 * ts_array: data is NULL. */
void tsi_array_describe(const tsi_array *array, ts_array *out);
/* Strided copy with cast, and fill (`element` of to's dtype), on the array's device. Equal extents,
 * no broadcasting; both count as a write of the target's storage. */
ts_status tsi_array_copy(tsi_array *to, const tsi_array *from);
ts_status tsi_array_fill(tsi_array *to, const void *element);

/* ---- DLPack, version 1 (dlpack.c): `managed` is a DLManagedTensorVersioned of the standard ABI.
 * Out: shares the memory, retains the storage, and the consumer calls the deleter, from any thread.
 * In: takes `managed` and calls its deleter when nothing refers to the memory any more; on failure
 * it stays the caller's. */
struct DLManagedTensorVersioned;
ts_status tsi_array_to_dlpack(tsi_array *array, struct DLManagedTensorVersioned **out);
tsi_array *tsi_array_from_dlpack(ts_rank *rank,
                                 struct DLManagedTensorVersioned *managed /* takes */);

#endif
