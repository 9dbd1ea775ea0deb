/* SPDX-License-Identifier: Apache-2.0 */
/* pool.h - the caching allocator of one rank and device, with bytes by tag.
 *
 * Blocks are rounded to a size class and kept for reuse; live, peak and reserved bytes are counted
 * per tag (parameter, gradient, activation, ...). A block freed by another thread waits in a
 * lock-free list that the owner empties at its next allocation. The owner is the thread attached to
 * the pool's rank, or the thread that made a pool without a rank. Another thread may allocate too,
 * but past the cache. Counters may be read anywhere.
 *
 * INV: a pool that was destroyed lives on, invisible, until its last block has come back; then it
 * goes with it. */
#ifndef TSI_ARRAY_POOL_H
#define TSI_ARRAY_POOL_H

#include <stddef.h>
#include <stdint.h>

#include "base/rank.h"
#include "device/device.h"

enum { TSI_POOL_TAG_MAX = 16 };
typedef enum tsi_pool_tag {
    TSI_TAG_OTHER,
    TSI_TAG_ACTIVATION,
    TSI_TAG_PARAMETER,
    TSI_TAG_GRADIENT,
    TSI_TAG_OPTIMIZER,
    TSI_TAG_COMM,     /* staging of engines and plans */
    TSI_TAG_MIRROR,   /* parameters in the dtype of products */
    TSI_TAG_GATHERED, /* parameters that are whole for a while */
    TSI_TAG_STAGING,  /* the copy of a state that is written in the background */
    TSI_TAG_COUNT
} tsi_pool_tag;
_Static_assert((int)TSI_TAG_COUNT <= (int)TSI_POOL_TAG_MAX, "tags of memory");

typedef struct tsi_pool tsi_pool;
typedef struct tsi_pool_usage {
    int64_t live, peak;  /* bytes asked for and not freed; the most since the last reset */
    int64_t allocations; /* calls */
    int64_t at_peak;     /* of a tag: live when the whole pool was at its peak */
} tsi_pool_usage;

/* Small arrays that nobody holds any more, complete with their storage, by exact size: what one
 * operator frees the next one takes, without a search. Owner only; array.c fills and empties it. */
enum { TSI_SHELF_SLOTS = 64, TSI_SHELF_DEPTH = 256, TSI_SHELF_BYTES = 4096 };
typedef struct tsi_shelf {
    struct tsi_array *first[TSI_SHELF_SLOTS];
    uint32_t bytes[TSI_SHELF_SLOTS], depth[TSI_SHELF_SLOTS];
    struct tsi_array *bodies;     /* of arrays without storage */
    struct tsi_storage *storages; /* bodies without memory, by `context` */
    uint32_t body_count, storage_count;
} tsi_shelf;
tsi_shelf *tsi_pool_shelf(tsi_pool *pool);     /* NULL: the thread is not the owner */
tsi_shelf *tsi_pool_own_shelf(tsi_pool *pool); /* for a thread that knows it is */
/* What is on the shelf is not live: counted off when it is put there or given back, and on, as an
 * allocation, when it is taken. By the owner. */
void tsi_pool_count_live(tsi_pool *pool, int64_t change, uint32_t tag);
void tsi_pool_count_taken(tsi_pool *pool, size_t bytes, uint32_t tag);
/* A live block is of another kind from now on; by the owner, else nothing happens. */
bool tsi_pool_retag(tsi_pool *pool, void *memory, size_t bytes, uint32_t from, uint32_t to);
void tsi_shelf_empty(tsi_pool *pool, tsi_shelf *shelf); /* gives everything back to the pool */

/* Told of each block that the owner takes or gives back; NULL: nobody any more. While somebody is
 * told, small arrays go back to the pool as well, and the shelf is empty. By the owner. */
typedef struct tsi_pool_watch {
    void (*taken)(void *context, void *memory, size_t bytes, uint32_t tag);
    void (*given)(void *context, void *memory);
    void *context;
    void (*retagged)(void *context, void *memory, uint32_t tag); /* (optional) */
} tsi_pool_watch;
void tsi_pool_watch_by(tsi_pool *pool, const tsi_pool_watch *watch);

/* What the owner means to hold when it holds most, in all and by tag, for the sentence that refuses
 * memory; NULL: nothing is planned any more. Copied; by the owner. */
typedef struct tsi_pool_plan {
    int64_t peak, tag[TSI_POOL_TAG_MAX];
} tsi_pool_plan;
void tsi_pool_plan_for(tsi_pool *pool, const tsi_pool_plan *plan);

tsi_pool *tsi_pool_of(ts_rank *rank); /* the rank's pool, made on first use; NULL: recorded */
/* `queue`: the owner's, in whose order blocks are used; NULL where work is done on return. */
tsi_pool *tsi_pool_create(const tsi_device *device, tsi_stream *queue,
                          ts_rank *rank /* may be NULL */);
/* By the owner, or by anyone once the owner has ended. Live blocks stay valid; accepts NULL. */
void tsi_pool_destroy(tsi_pool *pool);
void *tsi_pool_alloc(tsi_pool *pool, size_t bytes,
                     uint32_t tag); /* 64-byte aligned; NULL: recorded */
/* Any thread; accepts NULL. bytes and tag as at the allocation. */
void tsi_pool_free(tsi_pool *pool, void *memory, size_t bytes, uint32_t tag);
tsi_pool_usage tsi_pool_used(const tsi_pool *pool, int32_t tag /* -1: all */);
int64_t tsi_pool_reserved(const tsi_pool *pool); /* bytes held from the device, live or cached */
void tsi_pool_peak_reset(tsi_pool *pool);
/* By the owner: a block that was given back, and that nobody took since, is taken again as it lies.
 * False: it is live, or gone. */
bool tsi_pool_retake(tsi_pool *pool, void *memory, size_t bytes, uint32_t tag);
size_t
tsi_pool_rounded(size_t bytes);     /* what is taken from the device where so much is asked for */
void tsi_pool_trim(tsi_pool *pool); /* gives cached blocks back to the device; owner only */
const tsi_device *tsi_pool_device(const tsi_pool *pool);
tsi_stream *tsi_pool_queue(const tsi_pool *pool);
/* By the owner: what the block holds means nothing any more, in the order of the queue. */
void tsi_pool_forget(const tsi_pool *pool, void *memory, size_t bytes);
/* NULL: it has none. For comparing only: the rank may be gone. */
ts_rank *tsi_pool_rank(const tsi_pool *pool);
const char *tsi_pool_tag_name(uint32_t tag); /* "activation"; "other" if unknown */

#endif
