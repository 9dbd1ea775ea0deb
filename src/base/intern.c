/* SPDX-License-Identifier: Apache-2.0 */
/* intern.c - equal values are one pointer; values nobody holds are swept.
 *
 * The table is 16 stripes, chosen by the hash, each with a lock and a map. The count of a value
 * goes from 0 to 1 only in tsi_intern_get, under the stripe's lock. So a value whose count is 0
 * while the lock is held has no other user, and a sweep may destroy it. A stripe sweeps when it
 * holds twice what it held after the last sweep: the cost per insertion stays constant, the size
 * within twice what is in use. */
#include "base/intern.h"

#include <pthread.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/hash.h"

enum { STRIPE_COUNT = 16, STRIPE_SHIFT = 60, SWEEP_MIN = 32 };

typedef struct stripe {
    _Alignas(TSI_CACHE_LINE) pthread_mutex_t lock;
    tsi_map map;
    size_t sweep_at; /* count that makes the next insertion sweep */
    int64_t hits, misses, dropped;
} stripe;

struct tsi_intern {
    stripe stripe[STRIPE_COUNT];
    const tsi_intern_type *type;
};

tsi_intern *tsi_intern_create(const tsi_intern_type *type)
{
    tsi_intern *table = tsi_alloc_aligned(sizeof *table, TSI_CACHE_LINE);
    if (table == NULL) {
        (void)tsi_fail_memory(type->name, sizeof *table);
        return NULL;
    }
    table->type = type;
    for (int i = 0; i < STRIPE_COUNT; i++) {
        table->stripe[i] = (stripe){ .sweep_at = SWEEP_MIN };
        pthread_mutex_init(&table->stripe[i].lock, NULL);
    }
    return table;
}

void tsi_intern_destroy(tsi_intern *table)
{
    if (table == NULL) return;
    for (int i = 0; i < STRIPE_COUNT; i++) {
        stripe *s = &table->stripe[i];
        for (size_t k = 0; k < s->map.capacity; k++)
            if (s->map.entry[k].value != NULL) table->type->destroy(s->map.entry[k].value);
        tsi_map_release(&s->map);
        pthread_mutex_destroy(&s->lock);
    }
    tsi_free(table);
}

/* The entry's value as the map stores it; the map's equal has no room for the type's, so the search
 * for an equal value walks the entries of one hash here. */
typedef struct wanted_key {
    const tsi_intern_type *type;
    const void *key;
} wanted_key;

static bool equal_to_key(const void *value, const void *wanted)
{
    const wanted_key *w = wanted;
    return w->type->equal(value, w->key);
}

static bool same_pointer(const void *value, const void *wanted)
{
    return value == wanted;
}

/* Collects unused values before it removes them, because removing moves entries; in chunks, to
 * bound the stack. An entry that moves back past the place of the scan waits for the next sweep. */
static void sweep(const tsi_intern_type *type, stripe *s)
{
    enum { CHUNK = 64 };
    tsi_interned *unused[CHUNK];
    for (size_t k = 0; k < s->map.capacity;) {
        size_t found = 0;
        for (; k < s->map.capacity && found < CHUNK; k++) {
            tsi_interned *value = s->map.entry[k].value;
            if (value == NULL) continue;
            /* Pairs with the release of the last holder: its uses come before the destruction. */
            if (atomic_load_explicit(&value->references, memory_order_acquire) == 0)
                unused[found++] = value;
        }
        for (size_t i = 0; i < found; i++) {
            (void)tsi_map_remove(&s->map, unused[i]->hash, same_pointer, unused[i]);
            type->destroy(unused[i]);
        }
        s->dropped += (int64_t)found;
    }
    s->sweep_at = s->map.count > SWEEP_MIN / 2 ? 2 * s->map.count : SWEEP_MIN;
}

/* Under the stripe's lock. */
static tsi_interned *insert_new(tsi_intern *table, stripe *s, uint64_t hash, const void *key,
                                void *context)
{
    tsi_interned *value = table->type->make(key, context);
    if (value == NULL) return NULL;
    if (s->map.count >= s->sweep_at) sweep(table->type, s);
    value->hash = hash;
    value->table = table;
    atomic_init(&value->references, 1);
    if (tsi_map_insert(&s->map, hash, value) != TS_OK) {
        table->type->destroy(value);
        return NULL;
    }
    s->misses++;
    return value;
}

tsi_interned *tsi_intern_get(tsi_intern *table, uint64_t hash, const void *key, void *context)
{
    stripe *s = &table->stripe[hash >> STRIPE_SHIFT];
    const wanted_key wanted = { .type = table->type, .key = key };
    pthread_mutex_lock(&s->lock);
    tsi_interned *value = tsi_map_find(&s->map, hash, equal_to_key, &wanted);
    if (TSI_LIKELY(value != NULL)) {
        tsi_interned_retain(value);
        s->hits++;
    } else {
        value = insert_new(table, s, hash, key, context);
    }
    pthread_mutex_unlock(&s->lock);
    return value;
}

tsi_intern_stats tsi_intern_statistics(tsi_intern *table)
{
    tsi_intern_stats sum = { 0 };
    for (int i = 0; i < STRIPE_COUNT; i++) {
        stripe *s = &table->stripe[i];
        pthread_mutex_lock(&s->lock);
        sum.live += (int64_t)s->map.count;
        sum.hits += s->hits;
        sum.misses += s->misses;
        sum.dropped += s->dropped;
        pthread_mutex_unlock(&s->lock);
    }
    return sum;
}
