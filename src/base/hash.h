/* SPDX-License-Identifier: Apache-2.0 */
/* hash.h - 64-bit hashing of keys, the same on every machine; and a map from 64-bit keys to
 * pointers.
 *
 * tsi_map is open addressing with power-of-two capacity. Keys are hashes; the value owner compares
 * what it must through `equal` (NULL: equal hashes are equal keys). */
#ifndef TSI_BASE_HASH_H
#define TSI_BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tessera/status.h"

static inline uint64_t tsi_hash_mix(uint64_t h, uint64_t value)
{
    h ^= value;
    h *= 0x9E3779B97F4A7C15u;
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93u;
    h ^= h >> 29;
    return h;
}
uint64_t tsi_hash_bytes(uint64_t seed, const void *data, size_t bytes);
uint64_t tsi_hash_text(uint64_t seed, const char *text);

typedef struct tsi_map_entry {
    uint64_t key;
    void *value; /* NULL: free */
} tsi_map_entry;
typedef struct tsi_map {
    tsi_map_entry *entry;
    size_t capacity, count;
} tsi_map; /* zero is an empty map */

typedef bool (*tsi_map_equal_fn)(const void *value, const void *wanted);
void *tsi_map_find(const tsi_map *map, uint64_t key, tsi_map_equal_fn equal, const void *wanted);
ts_status tsi_map_insert(tsi_map *map, uint64_t key, void *value /* not NULL */); /* no lookup */
/* Makes the next `more` insertions unable to fail; false (not recorded) if memory is lacking. */
bool tsi_map_reserve(tsi_map *map, size_t more);
void *tsi_map_remove(tsi_map *map, uint64_t key, tsi_map_equal_fn equal, const void *wanted);
void tsi_map_release(tsi_map *map); /* not the values */

#endif
