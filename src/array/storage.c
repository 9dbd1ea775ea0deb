/* SPDX-License-Identifier: Apache-2.0 */
/* storage.c - counted memory: from a pool, or given from outside; copies and fills of its blocks.
 *
 * INV: memory goes back exactly once, to where it came from: the pool's device, or the outside's
 * `done`. Storage from a pool can be emptied and refilled while views of it live; outside memory
 * cannot. */
#include "array/array.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/keep.h"
#include "device/block_task.h"

/* ---- bodies: recycled through the shelf of their pool ---------------------------------------- */

enum { BODIES_MAX = 1024 };

/* Zeroed. NULL: recorded. */
static TSI_STEP_PATH tsi_storage *body_take(tsi_pool *pool)
{
    tsi_shelf *shelf = pool ? tsi_pool_shelf(pool) : NULL;
    tsi_storage *storage = shelf ? shelf->storages : NULL;
    if (TSI_LIKELY(storage != NULL)) {
        shelf->storages = storage->context;
        shelf->storage_count--;
        memset((void *)storage, 0, sizeof *storage);
        return storage;
    }
    storage = tsi_calloc(1, sizeof *storage);
    if (!storage) (void)tsi_fail_memory("a storage", sizeof *storage);
    return storage;
}

static void body_put(tsi_shelf *shelf, tsi_storage *storage)
{
    if (!shelf || shelf->storage_count == BODIES_MAX) {
        tsi_free(storage);
        return;
    }
    storage->context = shelf->storages;
    shelf->storages = storage;
    shelf->storage_count++;
}

/* ---- life ------------------------------------------------------------------------------------ */

TSI_STEP_PATH tsi_storage *tsi_storage_create(tsi_pool *pool, size_t bytes, uint32_t tag)
{
    tsi_storage *storage = body_take(pool);
    if (!storage) return NULL;
    atomic_init(&storage->references, 1);
    storage->device = tsi_pool_device(pool);
    storage->queue = tsi_pool_queue(pool);
    storage->pool = pool;
    storage->bytes = bytes;
    storage->tag = tag;
    if (tsi_storage_refill(storage) != TS_OK) {
        body_put(tsi_pool_shelf(pool), storage);
        return NULL;
    }
    return storage;
}

tsi_storage *tsi_storage_wrap(const tsi_rank_device *where, void *data, size_t bytes,
                              void (*done)(void *), void *context)
{
    tsi_storage *storage = body_take(NULL);
    if (!storage) return NULL;
    atomic_init(&storage->references, 1);
    storage->device = where->device;
    storage->queue = where->queue;
    storage->data = data;
    storage->bytes = bytes;
    storage->done = done;
    storage->context = context;
    return storage;
}

void tsi_storage_retain(tsi_storage *storage)
{
    int64_t before = atomic_fetch_add_explicit(&storage->references, 1, memory_order_relaxed);
    TSI_ASSERT(before > 0);
}

/* Memory from outside is its owner's again when the rank's queue is done with it, unless what uses
 * it is only recorded. */
static void finish_outside(const tsi_storage *storage)
{
    ts_rank *rank = tsi_rank_current();
    const tsi_rank_device *mine = rank ? tsi_slot_get(rank, TSI_SLOT_DEVICE) : NULL;
    if (!mine || !mine->queue || mine->queue != storage->queue || tsi_keeps(rank)) return;
    (void)tsi_rank_device_sync(rank); /* what failed there is the rank's error */
}

TSI_STEP_PATH void tsi_storage_release(tsi_storage *storage)
{
    if (!storage) return;
    /* The writes of every holder happen before the memory is reused. */
    int64_t before = atomic_fetch_sub_explicit(&storage->references, 1, memory_order_acq_rel);
    TSI_ASSERT(before > 0);
    if (before != 1) return;
    /* Its memory holds the pool; one that is this thread's and open stays without it, too, unless
     * the owner of outside memory closes it when he is told. */
    bool stays = storage->data && storage->pool && !storage->done;
    tsi_shelf *shelf = stays ? tsi_pool_shelf(storage->pool) : NULL;
    tsi_storage_empty(storage);
    if (TSI_UNLIKELY(storage->done != NULL)) {
        finish_outside(storage);
        storage->done(storage->context);
    }
    body_put(shelf, storage);
}

ts_status tsi_storage_refill(tsi_storage *storage)
{
    if (storage->data || !storage->pool) return TS_OK;
    storage->data = tsi_pool_alloc(storage->pool, storage->bytes, storage->tag);
    return storage->data ? TS_OK : TS_ERR_MEMORY;
}

void tsi_storage_retag(tsi_storage *storage, uint32_t tag)
{
    if (!storage->pool || storage->tag == tag) return;
    bool counted = !storage->data ||
                   tsi_pool_retag(storage->pool, storage->data, storage->bytes, storage->tag, tag);
    if (counted) storage->tag = tag;
}

/* Where another thread lets go last, nobody is told: a rank's observers are its own thread's. */
static TSI_COLD void tell_free(tsi_storage *storage)
{
    ts_rank *rank = tsi_pool_rank(storage->pool);
    if (rank && rank == tsi_rank_current()) tsi_tell(rank, TSI_NEWS_FREE, storage);
}

TSI_STEP_PATH void tsi_storage_empty(tsi_storage *storage)
{
    if (!storage->pool || !storage->data) return;
    if (TSI_UNLIKELY(storage->watched)) tell_free(storage);
    tsi_pool_free(storage->pool, storage->data, storage->bytes, storage->tag);
    storage->data = NULL;
}

/* ---- work on blocks -------------------------------------------------------------------------- */

static TSI_COLD ts_status keep_task(ts_rank *rank, tsi_block_task *task)
{
    if (!task) return TS_ERR_MEMORY; /* recorded */
    return tsi_keep_work(
        rank, (tsi_kept_work){ tsi_block_task_run, task, tsi_free, &tsi_block_task_kind });
}

ts_status tsi_storage_copy(const tsi_storage *storage, const tsi_block *to, const tsi_block *from)
{
    ts_rank *rank = tsi_rank_current();
    if (TSI_UNLIKELY(tsi_keeps_calls(rank))) return keep_task(rank, tsi_block_task_copy(to, from));
    return storage->device->copy(storage->device, to, from, storage->queue);
}

ts_status tsi_storage_fill(const tsi_storage *storage, const tsi_block *to, const void *element)
{
    ts_rank *rank = tsi_rank_current();
    if (TSI_UNLIKELY(tsi_keeps_calls(rank)))
        return keep_task(rank, tsi_block_task_fill(to, element));
    return storage->device->fill(storage->device, to, element, storage->queue);
}
