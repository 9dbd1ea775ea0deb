/* SPDX-License-Identifier: Apache-2.0 */
/* word_cache.c - the words that were encoded before.
 *
 * English text repeats few words often: more than 95 of 100 lookups hit. Slots are open addressing,
 * at most 3/4 used; when the cache reaches its bounds (2^18 slots, 16 MiB of words) it is emptied
 * and fills again, which costs less than deciding what to keep. */
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/hash.h"
#include "data/bpe.h"

typedef struct tsi_word_slot {
    uint64_t hash;
    uint32_t at;     /* in the pool */
    uint16_t length; /* bytes of the word; 0: free */
    uint16_t count;  /* ids */
} tsi_word_slot;

enum { SLOTS_FIRST = 1 << 12, SLOTS_MAX = 1 << 18, POOL_FIRST = 1 << 14, POOL_MAX = 1 << 22 };

static uint64_t load64(const char *p)
{
    uint64_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

static uint64_t load32(const char *p)
{
    uint32_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

/* Two overlapping loads cover a word of up to 16 bytes. Never stored, so byte order does not
 * matter. */
uint64_t tsi_word_hash(const char *word, size_t length)
{
    uint64_t a, b;
    if (length > 16) return tsi_hash_bytes(length, word, length);
    if (length >= 8) {
        a = load64(word);
        b = load64(word + length - 8);
    } else if (length >= 4) {
        a = load32(word);
        b = load32(word + length - 4);
    } else {
        a = (unsigned char)word[0];
        b = (uint64_t)(unsigned char)word[length / 2] << 8 | (unsigned char)word[length - 1];
    }
    uint64_t h = (a ^ length * 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u;
    return (h ^ h >> 32 ^ b) * 0x9E3779B97F4A7C15u;
}

static size_t home_of(const tsi_word_cache *cache, uint64_t hash)
{
    return (size_t)(hash >> 40) & (cache->slot_count - 1);
}

bool tsi_word_cache_get(const tsi_word_cache *cache, uint64_t hash, const char *word, size_t length,
                        ts_tokens *out)
{
    if (cache->slot_count == 0) return false;
    size_t mask = cache->slot_count - 1;
    for (size_t i = home_of(cache, hash); cache->slot[i].length != 0; i = (i + 1) & mask) {
        const tsi_word_slot *slot = &cache->slot[i];
        if (slot->hash != hash || slot->length != length) continue;
        const uint32_t *ids = cache->pool + slot->at;
        if (memcmp(ids + slot->count, word, length) != 0) continue;
        int32_t *to = out->id + out->count;
        to[0] = (int32_t)ids[0];
        for (size_t k = 1; k < slot->count; k++)
            to[k] = (int32_t)ids[k];
        out->count += slot->count;
        return true;
    }
    return false;
}

static void empty(tsi_word_cache *cache)
{
    memset(cache->slot, 0, cache->slot_count * sizeof *cache->slot);
    cache->used = cache->pool_length = 0;
}

static size_t free_slot(const tsi_word_cache *cache, uint64_t hash)
{
    size_t i = home_of(cache, hash);
    while (cache->slot[i].length != 0)
        i = (i + 1) & (cache->slot_count - 1);
    return i;
}

static bool grow_slots(tsi_word_cache *cache)
{
    tsi_word_cache bigger = *cache;
    bigger.slot_count = cache->slot_count != 0 ? 4 * cache->slot_count : SLOTS_FIRST;
    bigger.slot = tsi_calloc(bigger.slot_count, sizeof *bigger.slot);
    if (bigger.slot == NULL) return false;
    for (size_t i = 0; i < cache->slot_count; i++) {
        if (cache->slot[i].length != 0)
            bigger.slot[free_slot(&bigger, cache->slot[i].hash)] = cache->slot[i];
    }
    tsi_free(cache->slot);
    *cache = bigger;
    return true;
}

static bool grow_pool(tsi_word_cache *cache)
{
    size_t capacity = cache->pool_capacity != 0 ? 4 * cache->pool_capacity : POOL_FIRST;
    uint32_t *pool = tsi_realloc(cache->pool, capacity * sizeof *pool);
    if (pool == NULL) return false;
    cache->pool = pool;
    cache->pool_capacity = capacity;
    return true;
}

/* Room for one more word of `need` units, emptying if the bounds are reached. */
static bool make_room(tsi_word_cache *cache, size_t need)
{
    if (4 * (cache->used + 1) > 3 * cache->slot_count) {
        if (cache->slot_count >= SLOTS_MAX)
            empty(cache);
        else if (!grow_slots(cache))
            return false;
    }
    if (cache->pool_length + need > cache->pool_capacity) {
        if (cache->pool_capacity >= POOL_MAX)
            empty(cache);
        else if (!grow_pool(cache))
            return false;
    }
    return true;
}

void tsi_word_cache_put(tsi_word_cache *cache, uint64_t hash, const char *word, size_t length,
                        const int32_t *ids, size_t count)
{
    if (length == 0 || length > TSI_WORD_BYTES_MAX || count == 0 || count > TSI_WORD_IDS_MAX)
        return;
    size_t need = count + (length + 3) / 4;
    if (!make_room(cache, need)) return;
    uint32_t *to = cache->pool + cache->pool_length;
    memcpy(to, ids, count * sizeof *ids);
    memcpy(to + count, word, length);
    cache->slot[free_slot(cache, hash)] =
        (tsi_word_slot){ hash, (uint32_t)cache->pool_length, (uint16_t)length, (uint16_t)count };
    cache->pool_length += need;
    cache->used++;
}

void tsi_word_cache_release(tsi_word_cache *cache)
{
    tsi_free(cache->slot);
    tsi_free(cache->pool);
    *cache = (tsi_word_cache){ 0 };
}
