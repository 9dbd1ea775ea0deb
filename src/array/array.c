/* SPDX-License-Identifier: Apache-2.0 */
/* array.c - counted views of storage.
 *
 * INV: every element of a view lies inside its storage; that is checked once, when the view is
 * made, so that kernels need no check. A view holds a reference to its storage and owns nothing
 * else. */
#include "array/array.h"

#include <stdlib.h>
#include <string.h>

#include "array/image.h"
#include "base/alloc.h"
#include "base/compiler.h"
#include "base/dtype.h"
#include "base/intmath.h"

/* The range of elements that a shape with strides reaches, relative to its first. */
typedef struct reach {
    int64_t low, high; /* low <= 0 <= high */
    int64_t count;
} reach;

/* False if the range overflows 64 bits. An empty shape reaches nothing: low = 0, high = -1. */
static bool reach_of(int32_t ndim, const int64_t *extent, const int64_t *stride, reach *out)
{
    reach r = { .count = 1 };
    for (int32_t d = 0; d < ndim; d++)
        if (extent[d] == 0) {
            *out = (reach){ .high = -1 };
            return true;
        }
    for (int32_t d = 0; d < ndim; d++) {
        int64_t last = 0;
        if (!tsi_mul_i64(extent[d] - 1, stride[d], &last)) return false;
        int64_t *end = last < 0 ? &r.low : &r.high;
        if (!tsi_add_i64(*end, last, end) || !tsi_mul_i64(r.count, extent[d], &r.count))
            return false;
    }
    *out = r;
    return true;
}

static void dense_strides(const ts_shape *shape, int64_t *stride)
{
    int64_t next = 1;
    for (int32_t d = shape->ndim - 1; d >= 0; d--) {
        stride[d] = next;
        if (!tsi_mul_i64(next, shape->extent[d], &next)) next = 0; /* then the array is empty */
    }
}

static bool is_dense(const ts_shape *shape, const int64_t *stride)
{
    int64_t next = 1;
    for (int32_t d = shape->ndim - 1; d >= 0; d--) {
        if (stride[d] != next && shape->extent[d] != 1) return false;
        if (!tsi_mul_i64(next, shape->extent[d], &next)) return false;
    }
    return true;
}

/* ---- bodies: recycled through the shelf of the storage's pool -------------------------------- */

enum { BODIES_MAX = 1024 };

/* A body whose fields are not set; NULL: out of memory (recorded). */
static TSI_STEP_PATH tsi_array *body_take(tsi_pool *pool)
{
    tsi_shelf *shelf = pool ? tsi_pool_shelf(pool) : NULL;
    if (shelf && shelf->bodies) {
        tsi_array *array = shelf->bodies;
        shelf->bodies = (tsi_array *)(void *)array->storage;
        shelf->body_count--;
        return array;
    }
    /* What a list form reads of an array is in its first cache line. */
    tsi_array *array = tsi_alloc_aligned(sizeof *array, TSI_CACHE_LINE);
    if (!array) (void)tsi_fail_memory("an array", sizeof *array);
    return array;
}

static void body_put(tsi_pool *pool, tsi_array *array)
{
    tsi_shelf *shelf = pool ? tsi_pool_shelf(pool) : NULL;
    if (!shelf || shelf->body_count == BODIES_MAX) {
        tsi_free(array);
        return;
    }
    array->storage = (tsi_storage *)(void *)shelf->bodies;
    shelf->bodies = array;
    shelf->body_count++;
}

static tsi_array *array_fill(tsi_array *array, tsi_storage *storage, ts_dtype dtype,
                             const ts_shape *shape, const int64_t *stride, int64_t offset)
{
    *array = (tsi_array){ .references = 1,
                          .storage = storage,
                          .offset = offset,
                          .dtype = (int32_t)dtype,
                          .ndim = shape->ndim };
    for (int32_t d = 0; d < shape->ndim; d++) {
        array->extent[d] = shape->extent[d];
        array->stride[d] = stride[d];
    }
    array->dense = is_dense(shape, stride);
    return array;
}

static inline void join_part(tsi_array *array, int32_t part)
{
    array->part = part;
    if (part) array->storage->part_arrays[part - 1]++;
}

/* Takes the caller's reference to storage; releases it on failure. */
static tsi_array *array_make(tsi_storage *storage /* takes */, ts_dtype dtype,
                             const ts_shape *shape, const int64_t *stride, int64_t offset)
{
    tsi_array *array = body_take(storage->pool);
    if (!array) {
        tsi_storage_release(storage);
        return NULL;
    }
    return array_fill(array, storage, dtype, shape, stride, offset);
}

/* Bytes of a dense array; false after recording what is wrong with dtype or shape. */
static bool dense_bytes(const char *what, ts_dtype dtype, const ts_shape *shape, size_t *bytes)
{
    size_t size = ts_dtype_size(dtype);
    if (size == 0) {
        (void)TSI_FAIL(TS_ERR_DTYPE, "%s: there is no dtype number %d", what, (int)dtype);
        return false;
    }
    if (shape->ndim < 0 || shape->ndim > TS_NDIM_MAX) {
        (void)TSI_FAIL(TS_ERR_SHAPE, "%s: %d dims, 0 to %d are possible", what, shape->ndim,
                       TS_NDIM_MAX);
        return false;
    }
    for (int32_t d = 0; d < shape->ndim; d++)
        if (shape->extent[d] < 0) {
            (void)TSI_FAIL(TS_ERR_SHAPE, "%s: the extent of dim %d is %lld", what, d,
                           (long long)shape->extent[d]);
            return false;
        }
    int64_t count = ts_shape_count(shape);
    if (count < 0 || count > INT64_MAX / (int64_t)size) {
        (void)TSI_FAIL(TS_ERR_SHAPE, "%s: the size of the array overflows 64 bits", what);
        return false;
    }
    *bytes = (size_t)count * size;
    return true;
}

/* ---- the shelf of small arrays -------------------------------------------------------------- */

static uint32_t shelf_slot(size_t bytes)
{
    return (uint32_t)((bytes * 0x9E3779B97F4A7C15u) >> 58);
}

/* Puts an array that nobody holds on its pool's shelf, storage and memory included; false: it does
 * not belong there. */
static bool shelve(tsi_array *array)
{
    tsi_storage *storage = array->storage;
    if (storage->bytes > TSI_SHELF_BYTES || !storage->pool || !storage->data) return false;
    if (storage->tag != TSI_TAG_ACTIVATION || storage->watched ||
        atomic_load_explicit(&storage->references, memory_order_acquire) != 1)
        return false;
    tsi_shelf *shelf = tsi_pool_shelf(storage->pool);
    uint32_t slot = shelf_slot(storage->bytes);
    if (!shelf || shelf->depth[slot] == TSI_SHELF_DEPTH) return false;
    if (shelf->depth[slot] > 0 && shelf->bytes[slot] != storage->bytes) return false;
    tsi_pool_forget(storage->pool, storage->data, storage->bytes);
    storage->context = shelf->first[slot];
    shelf->first[slot] = array;
    shelf->bytes[slot] = (uint32_t)storage->bytes;
    shelf->depth[slot]++;
    tsi_pool_count_live(storage->pool, -(int64_t)storage->bytes, storage->tag);
    return true;
}

static TSI_INLINE tsi_array *unshelve(tsi_pool *pool, size_t bytes)
{
    uint32_t slot = shelf_slot(bytes);
    tsi_shelf *shelf = bytes <= TSI_SHELF_BYTES ? tsi_pool_own_shelf(pool) : NULL;
    if (!shelf || shelf->depth[slot] == 0 || shelf->bytes[slot] != bytes) return NULL;
    tsi_array *array = shelf->first[slot];
    shelf->first[slot] = array->storage->context;
    shelf->depth[slot]--;
    array->storage->context = NULL;
    array->storage->version = 0;
    tsi_pool_count_taken(pool, bytes, TSI_TAG_ACTIVATION);
    return array;
}

void tsi_shelf_empty(tsi_pool *pool, tsi_shelf *shelf)
{
    for (int32_t slot = 0; slot < TSI_SHELF_SLOTS; slot++)
        while (shelf->depth[slot] > 0) {
            tsi_array *array = shelf->first[slot];
            shelf->first[slot] = array->storage->context;
            shelf->depth[slot]--;
            array->storage->context = NULL;
            tsi_pool_count_live(pool, (int64_t)array->storage->bytes, array->storage->tag);
            tsi_storage_release(array->storage);
            tsi_free(array);
        }
    while (shelf->bodies) {
        tsi_array *array = shelf->bodies;
        shelf->bodies = (tsi_array *)(void *)array->storage;
        tsi_free(array);
    }
    while (shelf->storages) {
        tsi_storage *storage = shelf->storages;
        shelf->storages = storage->context;
        tsi_free(storage);
    }
    shelf->body_count = shelf->storage_count = 0;
}

static inline tsi_array *fill_like(tsi_array *array, tsi_storage *storage, const tsi_array *model)
{
    *array = *model;
    array->references = 1;
    array->storage = storage;
    return array;
}

TSI_STEP_PATH tsi_array *tsi_array_like_tagged(tsi_pool *pool, const tsi_array *model, size_t bytes,
                                               uint32_t tag)
{
    tsi_storage *storage = tsi_storage_create(pool, bytes, tag);
    tsi_array *array = storage ? body_take(pool) : NULL;
    if (TSI_LIKELY(array != NULL)) return fill_like(array, storage, model);
    tsi_storage_release(storage);
    return NULL;
}

tsi_array *tsi_array_like(tsi_pool *pool, const tsi_array *model, size_t bytes)
{
    tsi_array *array = unshelve(pool, bytes);
    if (TSI_UNLIKELY(!array)) return tsi_array_like_tagged(pool, model, bytes, TSI_TAG_ACTIVATION);
    return fill_like(array, array->storage, model);
}

tsi_array *tsi_array_create(ts_rank *rank, ts_dtype dtype, const ts_shape *shape)
{
    return tsi_array_create_tagged(rank, dtype, shape, TSI_TAG_ACTIVATION);
}

tsi_array *tsi_array_create_tagged(ts_rank *rank, ts_dtype dtype, const ts_shape *shape,
                                   uint32_t tag)
{
    size_t bytes = 0;
    if (!dense_bytes("array", dtype, shape, &bytes)) return NULL;
    tsi_pool *pool = tsi_pool_of(rank);
    int64_t stride[TS_NDIM_MAX];
    dense_strides(shape, stride);
    /* What was put on the shelf is taken from it, by whatever call: else it would only grow. */
    bool shelved = tag == TSI_TAG_ACTIVATION && pool && tsi_pool_shelf(pool);
    tsi_array *array = shelved ? unshelve(pool, bytes) : NULL;
    if (array) return array_fill(array, array->storage, dtype, shape, stride, 0);
    tsi_storage *storage = pool ? tsi_storage_create(pool, bytes, tag) : NULL;
    return storage ? array_make(storage, dtype, shape, stride, 0) : NULL;
}

/* A copy on the rank's device of a block of the host. It keeps the block until it goes itself, so
 * that who owns what does not depend on the device. Not an activation: those are recycled whole. */
static tsi_array *copy_from_host(ts_rank *rank, const ts_array *block, const tsi_block *from)
{
    tsi_array *array =
        tsi_array_create_tagged(rank, (ts_dtype)from->dtype, &block->meta.shape, TSI_TAG_OTHER);
    if (!array) return NULL;
    if (tsi_array_write(rank, array, from) != TS_OK) {
        tsi_array_release(array);
        return NULL;
    }
    array->storage->done = block->done;
    array->storage->context = block->context;
    return array;
}

static bool is_of_host(const ts_array *block)
{
    const tsi_device *host = tsi_device_host();
    return block->device == 0 || block->device == host->dlpack_type;
}

static bool is_of_device(const ts_array *block, const tsi_device *device)
{
    if (device->host_readable) return is_of_host(block);
    return block->device == device->dlpack_type && block->ordinal == device->ordinal;
}

/* Numbers begin at multiples of their size, complex ones at those of their parts. */
static bool is_aligned(const tsi_block *block)
{
    size_t size = ts_dtype_size((ts_dtype)block->dtype);
    bool complex = tsi_dtype_is_complex(block->dtype);
    return (uintptr_t)block->data % (complex ? size / 2 : size) == 0;
}

tsi_array *tsi_array_wrap(ts_rank *rank, const ts_array *block)
{
    tsi_block b;
    const tsi_rank_device *mine = tsi_rank_device_of(rank);
    if (!mine || tsi_block_of_array(block, "array", &b) != TS_OK) return NULL;
    if (!is_aligned(&b)) {
        (void)TSI_FAIL(TS_ERR_ARG, "array: data is not where a %s may begin",
                       ts_dtype_name((ts_dtype)b.dtype));
        return NULL;
    }
    if (!is_of_device(block, mine->device)) {
        if (is_of_host(block)) return copy_from_host(rank, block, &b);
        (void)TSI_FAIL(TS_ERR_ARG, "array: memory of device type %d number %d, the rank's is %s",
                       block->device, block->ordinal, mine->device->name);
        return NULL;
    }
    reach r;
    int64_t size = (int64_t)ts_dtype_size((ts_dtype)b.dtype), span = 0;
    if (!reach_of(b.ndim, b.extent, b.stride, &r) || !tsi_add_i64(r.high - r.low, 1, &span) ||
        !tsi_mul_i64(span, size, &span)) {
        (void)TSI_FAIL(TS_ERR_SHAPE, "array: strides and extents reach beyond 64 bits");
        return NULL;
    }
    char *first = b.data ? (char *)b.data + r.low * size : NULL;
    tsi_storage *storage = tsi_storage_wrap(mine, first, (size_t)span, NULL, NULL);
    if (!storage) return NULL;
    tsi_array *array = array_make(storage, (ts_dtype)b.dtype, &block->meta.shape, b.stride, -r.low);
    if (!array) return NULL;
    storage->done = block->done; /* from here on tessera owns it */
    storage->context = block->context;
    return array;
}

tsi_array *tsi_array_over(tsi_storage *storage, ts_dtype dtype, const ts_shape *shape)
{
    int64_t stride[TS_NDIM_MAX];
    dense_strides(shape, stride);
    return array_make(storage, dtype, shape, stride, 0);
}

tsi_array *tsi_array_view(tsi_array *base, ts_dtype dtype, const ts_shape *shape,
                          const int64_t *stride, int64_t offset)
{
    if (!base) return NULL;
    size_t ignored = 0, size = ts_dtype_size(dtype);
    int64_t dense[TS_NDIM_MAX];
    if (!dense_bytes("view", dtype, shape, &ignored)) return NULL;
    if (!stride) {
        dense_strides(shape, dense);
        stride = dense;
    }
    reach r;
    int64_t room = (int64_t)(base->storage->bytes / size), first = 0, last = 0;
    bool known = reach_of(shape->ndim, shape->extent, stride, &r) &&
                 tsi_add_i64(offset, r.low, &first) && tsi_add_i64(offset, r.high, &last);
    bool inside =
        known && first >= 0 && last < room && (r.count > 0 || (offset >= 0 && offset <= room));
    if (!inside) {
        (void)TSI_FAIL(TS_ERR_SHAPE,
                       "view: elements %lld to %lld of a storage of %lld (%s): outside of it",
                       (long long)first, (long long)last, (long long)room, ts_dtype_name(dtype));
        return NULL;
    }
    tsi_storage_retain(base->storage);
    tsi_array *array = array_make(base->storage, dtype, shape, stride, offset);
    if (array) join_part(array, base->part);
    return array;
}

tsi_array *tsi_array_part(tsi_array *whole, int32_t part, const ts_shape *shape,
                          const int64_t *stride, int64_t offset)
{
    TSI_ASSERT(part >= 0 && part < TSI_PARTS_MAX && whole->part == 0);
    tsi_array *array = tsi_array_view(whole, (ts_dtype)whole->dtype, shape, stride, offset);
    if (array) join_part(array, part + 1);
    return array;
}

/* The first byte of its elements and the one behind their last; false: it has none. */
static bool span_of(const tsi_array *array, const char **low, const char **high)
{
    int64_t size = (int64_t)ts_dtype_size((ts_dtype)array->dtype);
    const char *data = tsi_array_data(array);
    reach r;
    if (!data || !reach_of(array->ndim, array->extent, array->stride, &r) || r.high < 0)
        return false;
    *low = data + r.low * size;
    *high = data + (r.high + 1) * size;
    return true;
}

bool tsi_array_meets(const tsi_array *a, const tsi_array *b)
{
    const char *low[2], *high[2];
    if (!span_of(a, &low[0], &high[0]) || !span_of(b, &low[1], &high[1])) return false;
    return low[0] < high[1] && low[1] < high[0];
}

/* Ways from a byte of one block to one of another: each term is taken `low` to `high` times, the
 * longest strides first. From term n on they lead `least[n]` to `most[n]` bytes, and to each place
 * between if all[n]. */
enum { TERMS = 2 * TS_NDIM_MAX + 1, TRIES = 4096 };
typedef struct ways {
    int64_t stride[TERMS], low[TERMS], high[TERMS], least[TERMS + 1], most[TERMS + 1];
    bool all[TERMS];
    int32_t count, tries;
} ways;

/* `times` steps of a stride, there (sign 1) or back (-1). */
static void add_term(ways *w, int64_t stride, int64_t times, int32_t sign)
{
    if (stride == 0 || times == 0) return;
    if (stride < 0) sign = -sign;
    stride = llabs(stride);
    int32_t at = 0, i = w->count;
    while (at < w->count && w->stride[at] > stride)
        at++;
    if (at == w->count || w->stride[at] != stride) {
        for (w->count++; i > at; i--) {
            w->stride[i] = w->stride[i - 1];
            w->low[i] = w->low[i - 1];
            w->high[i] = w->high[i - 1];
        }
        w->stride[at] = stride;
        w->low[at] = w->high[at] = 0;
    }
    if (sign > 0)
        w->high[at] += times;
    else
        w->low[at] -= times;
}

static void add_terms(ways *w, const tsi_array *array, int32_t sign)
{
    int64_t size = (int64_t)ts_dtype_size((ts_dtype)array->dtype);
    for (int32_t d = 0; d < array->ndim; d++)
        add_term(w, array->stride[d] * size, array->extent[d] - 1, sign);
    add_term(w, 1, size - 1, sign);
}

static void sum_up(ways *w)
{
    w->least[w->count] = w->most[w->count] = 0;
    for (int32_t n = w->count - 1; n >= 0; n--) {
        int64_t rest = w->most[n + 1] - w->least[n + 1];
        w->least[n] = w->least[n + 1] + w->low[n] * w->stride[n];
        w->most[n] = w->most[n + 1] + w->high[n] * w->stride[n];
        w->all[n] = w->stride[n] <= rest + 1 && (n + 1 == w->count || w->all[n + 1]);
    }
}

/* The least number that is not below x / y. */
static int64_t up(int64_t x, int64_t y)
{
    return x / y + (x % y > 0);
}

/* Do the terms from the n-th on lead `away` bytes? After too many tries: they may. */
static bool leads(ways *w, int32_t n, int64_t away)
{
    if (away < w->least[n] || away > w->most[n]) return false;
    if (n == w->count || w->all[n]) return true;
    int64_t first = up(away - w->most[n + 1], w->stride[n]);
    int64_t last = -up(w->least[n + 1] - away, w->stride[n]);
    if (first < w->low[n]) first = w->low[n];
    if (last > w->high[n]) last = w->high[n];
    for (int64_t k = first; k <= last; k++)
        if (--w->tries < 0 || leads(w, n + 1, away - k * w->stride[n])) return true;
    return false;
}

bool tsi_array_shares(const tsi_array *a, const tsi_array *b)
{
    if (!tsi_array_meets(a, b)) return false;
    ways w = { .tries = TRIES };
    add_terms(&w, a, 1);
    add_terms(&w, b, -1);
    sum_up(&w);
    return leads(&w, 0, (const char *)tsi_array_data(b) - (const char *)tsi_array_data(a));
}

uint32_t tsi_array_version(const tsi_array *array)
{
    const tsi_storage *storage = array->storage;
    uint32_t version = storage->version;
    for (int32_t p = 0; array->part && p < TSI_PARTS_MAX; p++)
        if (p != array->part - 1) version -= storage->part_writes[p];
    return version;
}

/* From the shortest stride on, each has to lead beyond all that the shorter ones reach. */
bool tsi_array_repeats(const tsi_array *array)
{
    int64_t reached = 0;
    if (array->dense) return false;
    for (uint32_t done = 0;;) {
        int32_t next = -1;
        for (int32_t d = 0; d < array->ndim; d++) {
            if (array->extent[d] == 0) return false;
            if (done >> d & 1 || array->extent[d] == 1) continue;
            if (next < 0 || llabs(array->stride[d]) < llabs(array->stride[next])) next = d;
        }
        if (next < 0) return false;
        if (llabs(array->stride[next]) <= reached) return true;
        reached += (array->extent[next] - 1) * llabs(array->stride[next]);
        done |= 1u << next;
    }
}

bool tsi_array_is_alone(const tsi_array *array)
{
    const tsi_storage *storage = array->storage;
    int64_t holders = atomic_load(&storage->references), arrays = 0;
    if (array->references != 1 || storage->read_only || tsi_array_repeats(array)) return false;
    if (!array->part) return holders == 1;
    for (int32_t p = 0; p < TSI_PARTS_MAX; p++)
        arrays += storage->part_arrays[p];
    /* A holder that is no array of a part may read all of it. */
    return holders == arrays && storage->part_arrays[array->part - 1] == 1;
}

tsi_array *tsi_array_view_like(tsi_array *base, const tsi_array *model, int64_t offset)
{
    tsi_array *array = body_take(base->storage->pool);
    if (!array) return NULL;
    tsi_storage_retain(base->storage);
    *array = *model;
    array->references = 1;
    array->storage = base->storage;
    array->offset = base->offset + offset;
    join_part(array, base->part);
    return array;
}

TSI_STEP_PATH tsi_array *tsi_array_retain(tsi_array *array)
{
    if (array) array->references++;
    return array;
}

TSI_STEP_PATH void tsi_array_release(tsi_array *array)
{
    if (!array || --array->references > 0) return;
    TSI_ASSERT(array->references == 0);
    if (array->part) array->storage->part_arrays[array->part - 1]--;
    if (shelve(array)) return;
    tsi_storage *storage = array->storage;
    body_put(storage->pool, array); /* first: the pool may go with its last block */
    tsi_storage_release(storage);
}

void *tsi_array_data(const tsi_array *array)
{
    char *data = array->storage->data;
    return data ? data + array->offset * (int64_t)ts_dtype_size((ts_dtype)array->dtype) : NULL;
}

tsi_block tsi_array_block(const tsi_array *array)
{
    tsi_block block = { .data = tsi_array_data(array), .dtype = array->dtype, .ndim = array->ndim };
    memcpy(block.extent, array->extent, sizeof block.extent);
    memcpy(block.stride, array->stride, sizeof block.stride);
    return block;
}

ts_shape tsi_array_shape(const tsi_array *array)
{
    ts_shape shape = { .ndim = array->ndim };
    for (int32_t d = 0; d < array->ndim; d++)
        shape.extent[d] = array->extent[d];
    return shape;
}

bool tsi_array_is_dense(const tsi_array *array)
{
    if (TSI_LIKELY(array->dense)) return true;
    tsi_block block = tsi_array_block(array);
    return tsi_block_is_dense(&block);
}

void tsi_array_describe(const tsi_array *array, ts_array *out)
{
    const tsi_device *device = array->storage->device;
    *out = (ts_array){ .struct_size = sizeof *out, .data = tsi_array_data(array) };
    if (!device->host_readable) {
        out->device = device->dlpack_type;
        out->ordinal = device->ordinal;
    }
    out->meta.shape = tsi_array_shape(array);
    out->meta.dtype = array->dtype;
    memcpy(out->stride, array->stride, sizeof out->stride);
    bool zero = ts_shape_count(&out->meta.shape) > 1;
    for (int32_t d = 0; d < array->ndim; d++)
        zero = zero && array->stride[d] == 0;
    if (zero)
        out->data = NULL; /* all strides zero would read as "contiguous", far beyond the element */
}

/* May the array be written, and has it memory? */
static ts_status check_memory(const char *what, const tsi_array *array, bool write)
{
    if (!array) return TSI_FAIL(TS_ERR_NULL, "%s: the array is NULL", what);
    if (write && array->storage->read_only)
        return TSI_FAIL(TS_ERR_ARG, "%s: the memory was given as read-only", what);
    if (array->storage->data) return TS_OK;
    for (int32_t d = 0; d < array->ndim; d++)
        if (array->extent[d] == 0) return TS_OK;
    return TSI_FAIL(TS_ERR_STATE, "%s: the storage is emptied (%zu bytes)", what,
                    array->storage->bytes);
}

ts_status tsi_array_copy(tsi_array *to, const tsi_array *from)
{
    TSI_TRY(check_memory("copy to", to, true));
    TSI_TRY(check_memory("copy from", from, false));
    if (to->ndim != from->ndim)
        return TSI_FAIL(TS_ERR_SHAPE, "copy: %d dims to %d", from->ndim, to->ndim);
    for (int32_t d = 0; d < to->ndim; d++)
        if (to->extent[d] != from->extent[d])
            return TSI_FAIL(TS_ERR_SHAPE,
                            "copy: dim %d has %lld elements in the source, %lld in the target", d,
                            (long long)from->extent[d], (long long)to->extent[d]);
    const tsi_device *device = to->storage->device;
    if (device != from->storage->device)
        return TSI_FAIL(TS_ERR_ARG, "copy: from device %s to %s", from->storage->device->name,
                        device->name);
    tsi_block t = tsi_array_block(to), f = tsi_array_block(from);
    tsi_array_wrote(to);
    return tsi_storage_copy(to->storage, &t, &f);
}

ts_status tsi_array_fill(tsi_array *to, const void *element)
{
    TSI_TRY(check_memory("fill", to, true));
    tsi_block t = tsi_array_block(to);
    tsi_array_wrote(to);
    return tsi_storage_fill(to->storage, &t, element);
}
