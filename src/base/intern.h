/* SPDX-License-Identifier: Apache-2.0 */
/* intern.h - a table in which equal values are one pointer, shared by the threads of a world.
 *
 * An interned value begins with tsi_interned. References are counted; a value that nobody holds may
 * be dropped by a later insertion, so the table does not grow without bound (it is weak). Lookup of
 * an existing value takes one uncontended stripe lock; callers that are hot keep a cache of their
 * own.
 *
 *   get(table, key) -> existing value, retained      (hit)
 *                   -> make(key), inserted, retained (miss; make runs under the stripe's lock) */
#ifndef TSI_BASE_INTERN_H
#define TSI_BASE_INTERN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tessera/status.h"

typedef struct tsi_interned {
    uint64_t hash;
    _Atomic int64_t references;
    struct tsi_intern *table;
} tsi_interned;

typedef struct tsi_intern_type {
    const char *name; /* in statistics: "layout" */
    /* Does the value equal the key? `key` is whatever the caller of get passed. */
    bool (*equal)(const tsi_interned *value, const void *key);
    /* A new value for the key, or NULL after recording the error. hash, references, table are set
     * by the table. Must not call into the same table. */
    tsi_interned *(*make)(const void *key, void *context);
    void (*destroy)(tsi_interned *value);
} tsi_intern_type;

typedef struct tsi_intern tsi_intern;
typedef struct tsi_intern_stats {
    int64_t live, hits, misses, dropped;
} tsi_intern_stats;

tsi_intern *tsi_intern_create(const tsi_intern_type *type); /* NULL: out of memory, recorded */
void tsi_intern_destroy(tsi_intern *table);                 /* destroys all values, held or not */
tsi_interned *tsi_intern_get(tsi_intern *table, uint64_t hash, const void *key, void *context);
static inline void tsi_interned_retain(tsi_interned *value)
{
    atomic_fetch_add_explicit(&value->references, 1, memory_order_relaxed);
}
/* The value stays findable until an insertion sweeps it. */
static inline void tsi_interned_release(tsi_interned *value)
{
    atomic_fetch_sub_explicit(&value->references, 1, memory_order_release);
}
static inline void tsi_interned_release_many(tsi_interned *value, int64_t count)
{
    atomic_fetch_sub_explicit(&value->references, count, memory_order_release);
}
tsi_intern_stats tsi_intern_statistics(tsi_intern *table);

#endif
