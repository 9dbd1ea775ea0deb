/* SPDX-License-Identifier: Apache-2.0 */
/* hash.c - hashing of bytes, and the open-addressing map.
 *
 * Invariant of the map: from the home of a key to its entry there is no free entry, so a search
 * ends at the first free one. Removal therefore moves later entries back instead of leaving a
 * tombstone. At most 3/4 of the entries are used. */
#include "base/hash.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/intmath.h"

/* Assembled by shifts, so that the hash does not depend on byte order; compilers make it one load.
 */
static uint64_t load_le64(const unsigned char *p)
{
    return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24 |
           (uint64_t)p[4] << 32 | (uint64_t)p[5] << 40 | (uint64_t)p[6] << 48 |
           (uint64_t)p[7] << 56;
}

uint64_t tsi_hash_bytes(uint64_t seed, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint64_t h = tsi_hash_mix(seed, (uint64_t)bytes); /* so that trailing zero bytes count */
    size_t left = bytes;
    for (; left >= 8; left -= 8, p += 8)
        h = tsi_hash_mix(h, load_le64(p));
    uint64_t tail = 0;
    for (size_t i = 0; i < left; i++)
        tail |= (uint64_t)p[i] << (8 * i);
    return tsi_hash_mix(h, tail);
}

uint64_t tsi_hash_text(uint64_t seed, const char *text)
{
    return tsi_hash_bytes(seed, text, strlen(text));
}

/* Keys may be plain numbers; the multiplication spreads them over the high bits. */
static size_t home_of(const tsi_map *map, uint64_t key)
{
    return (size_t)((key * 0x9E3779B97F4A7C15u) >> 32) & (map->capacity - 1);
}

/* The entry of the key, or the free entry where the search ended. The map has entries. */
static size_t find_entry(const tsi_map *map, uint64_t key, tsi_map_equal_fn equal,
                         const void *wanted)
{
    size_t mask = map->capacity - 1;
    size_t i = home_of(map, key);
    while (map->entry[i].value != NULL) {
        const tsi_map_entry *entry = &map->entry[i];
        if (entry->key == key && (equal == NULL || equal(entry->value, wanted))) break;
        i = (i + 1) & mask;
    }
    return i;
}

void *tsi_map_find(const tsi_map *map, uint64_t key, tsi_map_equal_fn equal, const void *wanted)
{
    if (map->count == 0) return NULL;
    return map->entry[find_entry(map, key, equal, wanted)].value;
}

static void put(tsi_map *map, uint64_t key, void *value)
{
    size_t i = home_of(map, key);
    while (map->entry[i].value != NULL)
        i = (i + 1) & (map->capacity - 1);
    map->entry[i] = (tsi_map_entry){ .key = key, .value = value };
}

static bool fits(const tsi_map *map, size_t count)
{
    return count <= map->capacity / 4 * 3;
}

bool tsi_map_reserve(tsi_map *map, size_t more)
{
    size_t wanted;
    if (!tsi_add_size(map->count, more, &wanted) || wanted > SIZE_MAX / 64) return false;
    if (fits(map, wanted)) return true;
    tsi_map bigger = { .capacity = map->capacity != 0 ? 2 * map->capacity : 8,
                       .count = map->count };
    while (!fits(&bigger, wanted))
        bigger.capacity *= 2;
    bigger.entry = tsi_calloc(bigger.capacity, sizeof(tsi_map_entry));
    if (bigger.entry == NULL) return false;
    for (size_t i = 0; i < map->capacity; i++)
        if (map->entry[i].value != NULL) put(&bigger, map->entry[i].key, map->entry[i].value);
    tsi_free(map->entry);
    *map = bigger;
    return true;
}

ts_status tsi_map_insert(tsi_map *map, uint64_t key, void *value)
{
    TSI_ASSERT(value != NULL);
    if (!tsi_map_reserve(map, 1))
        return tsi_fail_memory("a hash map", 2 * map->capacity * sizeof(tsi_map_entry));
    TSI_ASSERT(map->count < map->capacity); /* a search ends at a free entry */
    put(map, key, value);
    map->count++;
    return TS_OK;
}

void *tsi_map_remove(tsi_map *map, uint64_t key, tsi_map_equal_fn equal, const void *wanted)
{
    if (map->count == 0) return NULL;
    size_t mask = map->capacity - 1;
    size_t hole = find_entry(map, key, equal, wanted);
    void *value = map->entry[hole].value;
    if (value == NULL) return NULL;
    for (size_t i = (hole + 1) & mask; map->entry[i].value != NULL; i = (i + 1) & mask) {
        /* The entry may fill the hole if its home is not in (hole, i], cyclically. */
        size_t home = home_of(map, map->entry[i].key);
        if (((i - home) & mask) < ((i - hole) & mask)) continue;
        map->entry[hole] = map->entry[i];
        hole = i;
    }
    map->entry[hole] = (tsi_map_entry){ 0 };
    map->count--;
    return value;
}

void tsi_map_release(tsi_map *map)
{
    tsi_free(map->entry);
    *map = (tsi_map){ 0 };
}
