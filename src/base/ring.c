/* SPDX-License-Identifier: Apache-2.0 */
/* ring.c - the event ring: one counter claims entries, each entry carries the number of its event.
 *
 *   writer: number = 0 ; fields ; number = n          reader: number == n ? copy ; number == n ?
 *
 * Every field is atomic. The writer's field stores are releases, so whoever sees one also sees that
 * the number was withdrawn; the reader's loads are acquires, so its second look at the number comes
 * last. The end of an event that was overwritten meanwhile is dropped by its number; only a writer
 * stopped between that check and its store for a whole turn of the ring could date a wrong event.
 */
#include "base/ring.h"

#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/hash.h"

enum { CAPACITY_MIN = 16, CAPACITY_DEFAULT = 4096, CAPACITY_MAX = 1 << 24, NAMES_MAX = 65536 };

typedef struct entry {
    _Atomic uint64_t number; /* 0: empty or being written */
    _Atomic int64_t begin_ns, end_ns, bytes;
    _Atomic(const char *) kind_name;
    _Atomic(const char *) name;
    _Atomic(const char *) where;
    _Atomic uint64_t kind_queue; /* kind in the low half */
    _Atomic uint64_t sequence, group;
} entry;

struct tsi_ring {
    _Alignas(TSI_CACHE_LINE) _Atomic uint64_t last;
    _Alignas(TSI_CACHE_LINE) entry *entries;
    uint64_t mask;
    pthread_mutex_t names_lock;
    tsi_map names; /* hash of the text -> kept copy */
    tsi_arena names_text;
};

tsi_ring *tsi_ring_create(int64_t capacity)
{
    if (capacity <= 0) capacity = CAPACITY_DEFAULT;
    size_t size = CAPACITY_MIN;
    while ((int64_t)size < capacity && size < CAPACITY_MAX)
        size *= 2;
    tsi_ring *ring = tsi_alloc_aligned(sizeof *ring, TSI_CACHE_LINE);
    entry *entries = ring != NULL ? tsi_calloc(size, sizeof *entries) : NULL;
    if (entries == NULL) {
        tsi_free(ring);
        (void)tsi_fail_memory("an event ring", sizeof *ring + size * sizeof *entries);
        return NULL;
    }
    memset(ring, 0, sizeof *ring);
    ring->entries = entries;
    ring->mask = size - 1;
    pthread_mutex_init(&ring->names_lock, NULL);
    return ring;
}

void tsi_ring_destroy(tsi_ring *ring)
{
    if (ring == NULL) return;
    pthread_mutex_destroy(&ring->names_lock);
    tsi_map_release(&ring->names);
    tsi_arena_release(&ring->names_text);
    tsi_free(ring->entries);
    tsi_free(ring);
}

static TSI_STEP_PATH uint64_t write_event(tsi_ring *ring, const tsi_event *event, int64_t begin,
                                          int64_t end)
{
    uint64_t number = atomic_fetch_add_explicit(&ring->last, 1, memory_order_relaxed) + 1;
    entry *e = &ring->entries[number & ring->mask];
    atomic_store_explicit(&e->number, 0, memory_order_relaxed);
    atomic_store_explicit(&e->begin_ns, begin, memory_order_release);
    atomic_store_explicit(&e->end_ns, end, memory_order_release);
    atomic_store_explicit(&e->bytes, event->bytes, memory_order_release);
    atomic_store_explicit(&e->kind_name, event->kind_name, memory_order_release);
    atomic_store_explicit(&e->name, event->name, memory_order_release);
    atomic_store_explicit(&e->where, event->where, memory_order_release);
    atomic_store_explicit(&e->kind_queue, event->kind | (uint64_t)event->queue << 32,
                          memory_order_release);
    atomic_store_explicit(&e->sequence, event->sequence, memory_order_release);
    atomic_store_explicit(&e->group, event->group, memory_order_release);
    atomic_store_explicit(&e->number, number, memory_order_release);
    return number;
}

TSI_STEP_PATH uint64_t tsi_ring_begin(tsi_ring *ring, const tsi_event *event)
{
    return ring != NULL ? write_event(ring, event, tsi_clock_ns(), 0) : 0;
}

TSI_STEP_PATH void tsi_ring_end(tsi_ring *ring, uint64_t number, int64_t bytes)
{
    if (ring == NULL || number == 0) return;
    entry *e = &ring->entries[number & ring->mask];
    if (atomic_load_explicit(&e->number, memory_order_relaxed) != number) return;
    atomic_store_explicit(&e->bytes, bytes, memory_order_relaxed);
    atomic_store_explicit(&e->end_ns, tsi_clock_ns(), memory_order_release);
}

void tsi_ring_add(tsi_ring *ring, const tsi_event *event)
{
    if (ring != NULL) (void)write_event(ring, event, event->begin_ns, event->end_ns);
}

void tsi_ring_mark(tsi_ring *ring, const tsi_event *event)
{
    if (ring == NULL) return;
    int64_t now = tsi_clock_ns();
    (void)write_event(ring, event, now, now);
}

static bool same_text(const void *value, const void *wanted)
{
    return strcmp(value, wanted) == 0;
}

/* Under the lock. A name that cannot be kept is shown as "?": the ring never fails its user. */
static const char *keep_name(tsi_ring *ring, uint64_t hash, const char *text)
{
    if (ring->names.count >= NAMES_MAX) return "?";
    tsi_arena_mark mark = tsi_arena_save(&ring->names_text);
    char *copy = tsi_arena_strdup(&ring->names_text, text);
    if (copy == NULL) return "?";
    if (tsi_map_reserve(&ring->names, 1)) {
        (void)tsi_map_insert(&ring->names, hash, copy);
        return copy;
    }
    tsi_arena_rewind(&ring->names_text, mark);
    return "?";
}

const char *tsi_ring_name(tsi_ring *ring, const char *text)
{
    if (ring == NULL || text == NULL || text[0] == '\0') return "";
    uint64_t hash = tsi_hash_text(0, text);
    pthread_mutex_lock(&ring->names_lock);
    const char *kept = tsi_map_find(&ring->names, hash, same_text, text);
    if (kept == NULL) kept = keep_name(ring, hash, text);
    pthread_mutex_unlock(&ring->names_lock);
    return kept;
}

uint64_t tsi_ring_last(const tsi_ring *ring)
{
    return ring != NULL ? atomic_load_explicit(&ring->last, memory_order_acquire) : 0;
}

static const char *or_empty(const char *text)
{
    return text != NULL ? text : "";
}

int tsi_ring_read(const tsi_ring *ring, uint64_t number, tsi_event *out)
{
    if (ring == NULL || number == 0) return 0;
    const entry *e = &ring->entries[number & ring->mask];
    if (atomic_load_explicit(&e->number, memory_order_acquire) != number) return 0;
    out->number = number;
    out->begin_ns = atomic_load_explicit(&e->begin_ns, memory_order_acquire);
    out->end_ns =
        atomic_load_explicit(&e->end_ns, memory_order_acquire); /* before the bytes it dates */
    out->bytes = atomic_load_explicit(&e->bytes, memory_order_acquire);
    out->kind_name = or_empty(atomic_load_explicit(&e->kind_name, memory_order_acquire));
    out->name = or_empty(atomic_load_explicit(&e->name, memory_order_acquire));
    out->where = or_empty(atomic_load_explicit(&e->where, memory_order_acquire));
    uint64_t kind_queue = atomic_load_explicit(&e->kind_queue, memory_order_acquire);
    out->kind = (uint32_t)kind_queue;
    out->queue = (uint32_t)(kind_queue >> 32);
    out->sequence = atomic_load_explicit(&e->sequence, memory_order_acquire);
    out->group = atomic_load_explicit(&e->group, memory_order_acquire);
    return atomic_load_explicit(&e->number, memory_order_relaxed) == number;
}

int64_t tsi_ring_capacity(const tsi_ring *ring)
{
    return ring != NULL ? (int64_t)ring->mask + 1 : 0;
}
