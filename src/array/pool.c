/* SPDX-License-Identifier: Apache-2.0 */
/* pool.c - the caching allocator: free blocks by size class, blocks of other threads through a
 * list.
 *
 *   owner:   alloc <-- cached[class] <-- free              no lock, no atomic but the counters
 *                            ^
 *   others:  free --> returned           lock-free: many push, the owner takes all when it
 *                                        allocates next
 *
 * A block is described by a node in host memory, so that devices whose memory the host cannot touch
 * are served alike; nodes are found by address. The map `nodes` is changed by the owner alone,
 * under the lock; so the owner reads it without, everybody else with the lock.
 *
 * INV: `holders` counts live blocks, plus one until destroy. Who brings it to zero frees the pool,
 * and nobody touches the pool after giving up its hold. Destroy puts CLOSED into `returned`; who
 * finds it there frees to the device at once, so no block is ever pushed that nobody will take. */
#include "array/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/error.h"
#include "base/hash.h"

/* Classes of 64 bytes up to 512, then eight per power of two: at most 12.5 % are lost to rounding.
 */
enum { CLASS_STEP = 64, CLASS_COUNT = 8 + 8 * 54 };

typedef struct node {
    void *memory;
    size_t reserved; /* bytes of the class, as asked from the device */
    size_t asked;    /* bytes the user asked for, while live */
    struct node *next;
    uint32_t size_class;
    bool live;
    bool foreign; /* made by another thread: in `others`, never cached */
} node;

/* `live` and `allocations` are written by the owner alone, others have a count of their own. */
typedef struct usage {
    _Atomic int64_t live, peak, allocations;
    _Atomic int64_t others_live, others_allocations;
    _Atomic int64_t at_peak; /* of a tag */
} usage;

struct tsi_pool {
    const tsi_device *device;
    tsi_stream *queue;
    ts_rank *rank;
    pthread_t thread; /* the owner of a pool without a rank */
    _Atomic int64_t holders;
    _Atomic(node *) returned;
    pthread_mutex_t lock;
    tsi_map nodes, others;
    _Atomic int64_t reserved;
    usage total, tag[TSI_POOL_TAG_MAX];
    const tsi_pool_watch *watch; /* NULL: nobody is told */
    tsi_pool_plan plan;          /* with the lock; a peak of 0: there is none */
    node *cached[CLASS_COUNT];
    tsi_shelf shelf;
};

static node closed_mark;
#define CLOSED (&closed_mark)

static uint32_t log2_floor(uint64_t value) /* > 0 */
{
    return 63 - (uint32_t)__builtin_clzll(value);
}

/* The class of a size and, in *rounded, the bytes of its blocks. */
static uint32_t class_of(size_t bytes, size_t *rounded)
{
    uint64_t last = bytes > 0 ? bytes - 1 : 0;
    if (last < 512) {
        *rounded = ((size_t)last / CLASS_STEP + 1) * CLASS_STEP;
        return (uint32_t)(last / CLASS_STEP);
    }
    uint32_t e = log2_floor(last), shift = e - 3;
    uint64_t eighth = last >> shift; /* 8 .. 15 */
    *rounded = (size_t)((eighth + 1) << shift);
    return 8 + (e - 9) * 8 + (uint32_t)(eighth - 8);
}

static uint64_t key_of(const void *memory)
{
    return tsi_hash_mix(0, (uint64_t)(uintptr_t)memory);
}

static bool node_holds(const void *value, const void *memory)
{
    return ((const node *)value)->memory == memory;
}

static bool is_owner(const tsi_pool *pool)
{
    if (atomic_load_explicit(&pool->returned, memory_order_relaxed) == CLOSED) return false;
    if (pool->rank) return tsi_rank_current() == pool->rank;
    return pthread_equal(pool->thread, pthread_self());
}

/* ---- counters */

static TSI_NOINLINE void raise_peak(usage *u, int64_t live)
{
    int64_t peak = atomic_load_explicit(&u->peak, memory_order_relaxed);
    while (live > peak && !atomic_compare_exchange_weak_explicit(
                              &u->peak, &peak, live, memory_order_relaxed, memory_order_relaxed))
        continue;
}

static int64_t read_count(const _Atomic int64_t *count)
{
    return atomic_load_explicit(count, memory_order_relaxed);
}

static int64_t live_of(const usage *u)
{
    return read_count(&u->live) + read_count(&u->others_live);
}

/* By the only thread that writes it. */
static void add_own(_Atomic int64_t *count, int64_t change)
{
    atomic_store_explicit(count, read_count(count) + change, memory_order_relaxed);
}

/* Is it more than ever before? Then the peak is still to be raised. */
static inline bool add_taken(usage *u, size_t bytes)
{
    int64_t live = read_count(&u->live) + (int64_t)bytes;
    atomic_store_explicit(&u->live, live, memory_order_relaxed);
    add_own(&u->allocations, 1);
    return live + read_count(&u->others_live) > read_count(&u->peak);
}

static void count_others(usage *u, size_t bytes)
{
    atomic_fetch_add_explicit(&u->others_live, (int64_t)bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&u->others_allocations, 1, memory_order_relaxed);
    raise_peak(u, live_of(u));
}

static void count_free(usage *u, size_t bytes, bool owner)
{
    if (TSI_LIKELY(owner))
        add_own(&u->live, -(int64_t)bytes);
    else
        atomic_fetch_sub_explicit(&u->others_live, (int64_t)bytes, memory_order_relaxed);
}

static usage *usage_of(tsi_pool *pool, uint32_t tag)
{
    return &pool->tag[tag < TSI_POOL_TAG_MAX ? tag : TSI_TAG_OTHER];
}

/* By the owner: if the pool is at its peak, that is what it is made of. */
static inline void note_peak(tsi_pool *pool)
{
    if (TSI_LIKELY(live_of(&pool->total) < read_count(&pool->total.peak))) return;
    for (int32_t i = 0; i < TSI_POOL_TAG_MAX; i++)
        atomic_store_explicit(&pool->tag[i].at_peak, live_of(&pool->tag[i]), memory_order_relaxed);
}

/* Allocation events show what is asked of the device; a step that runs from the cache writes none.
 */
static void note_reserved(tsi_pool *pool, const char *what, int64_t change)
{
    atomic_fetch_add_explicit(&pool->reserved, change, memory_order_relaxed);
    /* The rank is looked at only if it is this thread's: else it may be gone. */
    if (!pool->rank || tsi_rank_current() != pool->rank || !pool->rank->ring) return;
    tsi_event event = { .kind = TSI_EVENT_ALLOC,
                        .kind_name = what,
                        .name = pool->rank->label,
                        .where = "",
                        .bytes = change };
    if (!event.name) event.name = "";
    tsi_ring_mark(pool->rank->ring, &event);
}

/* ---- nodes */

/* Memory and a node that is in no map yet; NULL: the device has none, nothing recorded. */
static node *node_make(tsi_pool *pool, uint32_t size_class, size_t rounded)
{
    node *n = tsi_calloc(1, sizeof *n);
    if (!n) return NULL;
    if (pool->device->buffer_alloc(pool->device, rounded, &n->memory) != TS_OK) {
        tsi_free(n);
        return NULL;
    }
    n->reserved = rounded;
    n->size_class = size_class;
    return n;
}

static void node_destroy(tsi_pool *pool, node *n)
{
    pool->device->buffer_free(pool->device, n->memory, n->reserved);
    tsi_free(n);
}

/* Into the map; on failure the node is destroyed. */
static node *node_publish(tsi_pool *pool, node *n, bool foreign)
{
    n->foreign = foreign;
    pthread_mutex_lock(&pool->lock);
    ts_status status = tsi_map_insert(foreign ? &pool->others : &pool->nodes, key_of(n->memory), n);
    pthread_mutex_unlock(&pool->lock);
    if (status != TS_OK) {
        node_destroy(pool, n);
        return NULL;
    }
    note_reserved(pool, "reserve", (int64_t)n->reserved);
    return n;
}

static void node_forget(tsi_pool *pool, node *n)
{
    pthread_mutex_lock(&pool->lock);
    tsi_map_remove(n->foreign ? &pool->others : &pool->nodes, key_of(n->memory), node_holds,
                   n->memory);
    pthread_mutex_unlock(&pool->lock);
    note_reserved(pool, "release", -(int64_t)n->reserved);
    node_destroy(pool, n);
}

static node *node_find(tsi_pool *pool, const void *memory, bool owner)
{
    uint64_t key = key_of(memory);
    node *n = owner ? tsi_map_find(&pool->nodes, key, node_holds, memory) : NULL;
    if (n) return n;
    pthread_mutex_lock(&pool->lock);
    n = tsi_map_find(&pool->nodes, key, node_holds, memory);
    if (!n) n = tsi_map_find(&pool->others, key, node_holds, memory);
    pthread_mutex_unlock(&pool->lock);
    return n;
}

/* ---- the cache, owner only */

static void cache_put(tsi_pool *pool, node *n)
{
    n->next = pool->cached[n->size_class];
    pool->cached[n->size_class] = n;
}

static node *cache_take(tsi_pool *pool, uint32_t size_class)
{
    node *n = pool->cached[size_class];
    if (n) pool->cached[size_class] = n->next;
    return n;
}

/* Takes the whole list of returned blocks and leaves `instead`. */
static void take_returned(tsi_pool *pool, node *instead)
{
    node *n = atomic_exchange_explicit(&pool->returned, instead, memory_order_acquire);
    while (n) {
        node *next = n->next;
        cache_put(pool, n);
        n = next;
    }
}

static void cache_empty(tsi_pool *pool)
{
    for (uint32_t c = 0; c < CLASS_COUNT; c++)
        for (node *n = cache_take(pool, c); n; n = cache_take(pool, c))
            node_forget(pool, n);
}

/* ---- public */

static void pool_release(tsi_pool *pool)
{
    if (atomic_fetch_sub_explicit(&pool->holders, 1, memory_order_acq_rel) != 1) return;
    tsi_map_release(&pool->nodes);
    tsi_map_release(&pool->others);
    pthread_mutex_destroy(&pool->lock);
    tsi_free(pool);
}

tsi_pool *tsi_pool_create(const tsi_device *device, tsi_stream *queue, ts_rank *rank)
{
    tsi_pool *pool = tsi_calloc(1, sizeof *pool);
    if (!pool) {
        (void)tsi_fail_memory("a caching allocator", sizeof *pool);
        return NULL;
    }
    pool->device = device;
    pool->queue = queue;
    pool->rank = rank;
    pool->thread = pthread_self();
    atomic_init(&pool->holders, 1);
    pthread_mutex_init(&pool->lock, NULL);
    return pool;
}

void tsi_pool_destroy(tsi_pool *pool)
{
    if (!pool) return;
    tsi_shelf_empty(pool, &pool->shelf);
    take_returned(pool, CLOSED);
    cache_empty(pool);
    pool_release(pool);
}

static void *pool_for_slot(ts_rank *rank)
{
    const tsi_rank_device *mine = tsi_rank_device_of(rank);
    return mine ? tsi_pool_create(mine->device, mine->queue, rank) : NULL;
}

static void slot_pool_destroy(void *state)
{
    tsi_pool_destroy(state);
}

tsi_pool *tsi_pool_of(ts_rank *rank)
{
    return tsi_rank_slot(rank, TSI_SLOT_ARRAY, pool_for_slot, slot_pool_destroy);
}

/* A block the cache did not have: from the device, if need be after giving the cache back to it. */
static node *node_fresh(tsi_pool *pool, uint32_t size_class, size_t rounded, bool owner)
{
    node *n = node_make(pool, size_class, rounded);
    if (!n && owner) {
        tsi_pool_trim(pool);
        n = node_make(pool, size_class, rounded);
    }
    return n ? node_publish(pool, n, !owner) : NULL;
}

/* The kind of tensors that holds most of those not told yet; -1: no other holds anything. */
static int32_t next_holder(const tsi_pool *pool, const bool *told)
{
    int32_t most = -1;
    for (int32_t i = 0; i < TSI_POOL_TAG_MAX; i++)
        if (!told[i] && tsi_pool_used(pool, i).live > 0 &&
            (most < 0 || tsi_pool_used(pool, i).live > tsi_pool_used(pool, most).live))
            most = i;
    return most;
}

/* ": optimizer 800 (planned 800), activation 700 (planned 500)", the largest first. */
static void name_holders(const tsi_pool *pool, const tsi_pool_plan *plan, char *out, size_t size)
{
    size_t used = 0;
    bool told[TSI_POOL_TAG_MAX] = { false };
    out[0] = '\0';
    for (int32_t n = 0; n < 3; n++) {
        int32_t most = next_holder(pool, told);
        if (most < 0 || used + 1 >= size) break;
        told[most] = true;
        used += (size_t)snprintf(out + used, size - used, "%s%s %lld", n ? ", " : ": ",
                                 tsi_pool_tag_name((uint32_t)most),
                                 (long long)tsi_pool_used(pool, most).live);
        if (plan->peak > 0 && used + 1 < size)
            used += (size_t)snprintf(out + used, size - used, " (planned %lld)",
                                     (long long)plan->tag[most]);
    }
}

/* What could not be had, and who holds the memory, beside what was planned to. */
static TSI_COLD void refuse(tsi_pool *pool, size_t bytes, uint32_t tag)
{
    char holders[320], planned[64] = "";
    pthread_mutex_lock(&pool->lock);
    tsi_pool_plan plan = pool->plan;
    pthread_mutex_unlock(&pool->lock);
    name_holders(pool, &plan, holders, sizeof holders);
    if (plan.peak > 0)
        (void)snprintf(planned, sizeof planned, " (planned %lld at most)", (long long)plan.peak);
    (void)TSI_FAIL(TS_ERR_MEMORY,
                   "no memory for %s (%zu bytes) on %s: this rank holds %lld bytes of it, %lld in "
                   "use%s%s",
                   tsi_pool_tag_name(tag), bytes, pool->device->name,
                   (long long)tsi_pool_reserved(pool), (long long)tsi_pool_used(pool, -1).live,
                   planned, holders);
}

void tsi_pool_plan_for(tsi_pool *pool, const tsi_pool_plan *plan)
{
    pthread_mutex_lock(&pool->lock);
    pool->plan = plan ? *plan : (tsi_pool_plan){ .peak = 0 };
    pthread_mutex_unlock(&pool->lock);
}

TSI_STEP_PATH void *tsi_pool_alloc(tsi_pool *pool, size_t bytes, uint32_t tag)
{
    size_t rounded = 0;
    bool owner = is_owner(pool), possible = bytes <= SIZE_MAX / 4;
    node *n = NULL;
    if (TSI_LIKELY(possible)) {
        uint32_t size_class = class_of(bytes, &rounded);
        if (owner) {
            if (atomic_load_explicit(&pool->returned, memory_order_relaxed))
                take_returned(pool, NULL);
            n = cache_take(pool, size_class);
        }
        if (!n) n = node_fresh(pool, size_class, rounded, owner);
    }
    if (TSI_UNLIKELY(!n)) {
        refuse(pool, bytes, tag);
        return NULL;
    }
    n->asked = bytes;
    n->live = true;
    atomic_fetch_add_explicit(&pool->holders, 1, memory_order_relaxed);
    if (TSI_LIKELY(owner)) {
        tsi_pool_count_taken(pool, bytes, tag);
    } else {
        count_others(&pool->total, bytes);
        count_others(usage_of(pool, tag), bytes);
    }
    if (TSI_UNLIKELY(pool->watch != NULL) && owner)
        pool->watch->taken(pool->watch->context, n->memory, bytes, tag);
    return n->memory;
}

/* Gives the block to the owner; once the pool is closed, to the device. */
static void return_block(tsi_pool *pool, node *n)
{
    node *head = atomic_load_explicit(&pool->returned, memory_order_relaxed);
    do {
        if (head == CLOSED) {
            node_forget(pool, n);
            return;
        }
        n->next = head;
    } while (!atomic_compare_exchange_weak_explicit(&pool->returned, &head, n, memory_order_release,
                                                    memory_order_relaxed));
}

TSI_STEP_PATH void tsi_pool_free(tsi_pool *pool, void *memory, size_t bytes, uint32_t tag)
{
    if (!memory) return;
    bool owner = is_owner(pool);
    node *n = node_find(pool, memory, owner);
    TSI_ASSERT(n && n->live && n->asked == bytes);
    n->live = false;
    count_free(&pool->total, bytes, owner);
    count_free(usage_of(pool, tag), bytes, owner);
    if (n->foreign) {
        node_forget(pool, n);
    } else if (owner) {
        if (TSI_UNLIKELY(pool->watch != NULL)) pool->watch->given(pool->watch->context, memory);
        tsi_pool_forget(pool, memory, bytes);
        cache_put(pool, n);
    } else {
        return_block(pool, n);
    }
    pool_release(pool);
}

size_t tsi_pool_rounded(size_t bytes)
{
    size_t rounded = 0;
    (void)class_of(bytes, &rounded);
    return rounded;
}

bool tsi_pool_retake(tsi_pool *pool, void *memory, size_t bytes, uint32_t tag)
{
    TSI_ASSERT(is_owner(pool));
    tsi_shelf_empty(pool, &pool->shelf);
    take_returned(pool, NULL);
    node *n = node_find(pool, memory, true);
    if (!n || n->live || n->foreign) return false;
    node **at = &pool->cached[n->size_class];
    while (*at && *at != n)
        at = &(*at)->next;
    if (!*at) return false;
    *at = n->next;
    n->asked = bytes;
    n->live = true;
    atomic_fetch_add_explicit(&pool->holders, 1, memory_order_relaxed);
    tsi_pool_count_taken(pool, bytes, tag);
    return true;
}

tsi_pool_usage tsi_pool_used(const tsi_pool *pool, int32_t tag)
{
    const usage *u =
        tag < 0 ? &pool->total : &pool->tag[tag < TSI_POOL_TAG_MAX ? tag : TSI_TAG_OTHER];
    return (tsi_pool_usage){
        .live = read_count(&u->live) + read_count(&u->others_live),
        .peak = read_count(&u->peak),
        .allocations = read_count(&u->allocations) + read_count(&u->others_allocations),
        .at_peak = read_count(&u->at_peak),
    };
}

int64_t tsi_pool_reserved(const tsi_pool *pool)
{
    return atomic_load_explicit(&pool->reserved, memory_order_relaxed);
}

static void peak_reset(usage *u)
{
    int64_t live = read_count(&u->live) + read_count(&u->others_live);
    atomic_store_explicit(&u->peak, live, memory_order_relaxed);
}

void tsi_pool_peak_reset(tsi_pool *pool)
{
    peak_reset(&pool->total);
    for (int32_t i = 0; i < TSI_POOL_TAG_MAX; i++)
        peak_reset(&pool->tag[i]);
    note_peak(pool);
}

TSI_STEP_PATH tsi_shelf *tsi_pool_shelf(tsi_pool *pool)
{
    return is_owner(pool) && !pool->watch ? &pool->shelf : NULL;
}

void tsi_pool_watch_by(tsi_pool *pool, const tsi_pool_watch *watch)
{
    TSI_ASSERT(is_owner(pool));
    if (watch) tsi_shelf_empty(pool, &pool->shelf);
    pool->watch = watch;
}

void tsi_pool_count_live(tsi_pool *pool, int64_t change, uint32_t tag)
{
    add_own(&pool->total.live, change);
    add_own(&usage_of(pool, tag)->live, change);
}

static TSI_COLD void raise_peaks(tsi_pool *pool, usage *u)
{
    bool more = live_of(&pool->total) > read_count(&pool->total.peak);
    raise_peak(&pool->total, live_of(&pool->total));
    raise_peak(u, live_of(u));
    if (more) note_peak(pool);
}

TSI_STEP_PATH void tsi_pool_count_taken(tsi_pool *pool, size_t bytes, uint32_t tag)
{
    usage *u = usage_of(pool, tag);
    bool more = add_taken(&pool->total, bytes), more_of_tag = add_taken(u, bytes);
    if (TSI_UNLIKELY(more | more_of_tag)) raise_peaks(pool, u);
}

bool tsi_pool_retag(tsi_pool *pool, void *memory, size_t bytes, uint32_t from, uint32_t to)
{
    if (!is_owner(pool)) return false;
    usage *u = usage_of(pool, to);
    add_own(&usage_of(pool, from)->live, -(int64_t)bytes);
    add_own(&u->live, (int64_t)bytes);
    raise_peak(u, live_of(u));
    note_peak(pool);
    if (TSI_UNLIKELY(pool->watch != NULL) && pool->watch->retagged)
        pool->watch->retagged(pool->watch->context, memory, to);
    return true;
}

tsi_shelf *tsi_pool_own_shelf(tsi_pool *pool)
{
    return &pool->shelf;
}

void tsi_pool_trim(tsi_pool *pool)
{
    tsi_shelf_empty(pool, &pool->shelf);
    take_returned(pool, NULL);
    cache_empty(pool);
}

TSI_STEP_PATH const tsi_device *tsi_pool_device(const tsi_pool *pool)
{
    return pool->device;
}

TSI_STEP_PATH tsi_stream *tsi_pool_queue(const tsi_pool *pool)
{
    return pool->queue;
}

void tsi_pool_forget(const tsi_pool *pool, void *memory, size_t bytes)
{
    if (TSI_UNLIKELY(pool->device->freed != NULL))
        pool->device->freed(pool->device, memory, bytes, pool->queue);
}

ts_rank *tsi_pool_rank(const tsi_pool *pool)
{
    return pool->rank;
}

const char *tsi_pool_tag_name(uint32_t tag)
{
    static const char *const names[] = { "other",    "activation", "parameter",
                                         "gradient", "optimizer",  "communication staging",
                                         "mirror",   "gathered" };
    return tag < TSI_COUNT_OF(names) ? names[tag] : names[0];
}
