/* SPDX-License-Identifier: Apache-2.0 */
/* vocab.c - the two-way table of tokens.
 *
 * Invariant of the slots: at most half are used, and from the home of a text to its slot none is
 * free. Texts are never removed. */
#include "data/vocab.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/hash.h"

static size_t home_of(const tsi_vocab *vocab, const char *text, size_t length)
{
    return (size_t)tsi_hash_bytes(0, text, length) & (vocab->slot_count - 1);
}

/* The slot of the text, or the free slot where it would go. There are slots. */
static size_t find_slot(const tsi_vocab *vocab, const char *text, size_t length)
{
    size_t i = home_of(vocab, text, length);
    while (vocab->slot[i] != 0) {
        const tsi_vocab_entry *entry = &vocab->entry[vocab->slot[i] - 1];
        if (entry->length == length && memcmp(vocab->pool + entry->at, text, length) == 0) break;
        i = (i + 1) & (vocab->slot_count - 1);
    }
    return i;
}

static ts_status grow_slots(tsi_vocab *vocab)
{
    size_t count = vocab->slot_count != 0 ? 2 * vocab->slot_count : 1024;
    uint32_t *slot = tsi_calloc(count, sizeof *slot);
    if (slot == NULL) return tsi_fail_memory("slots of a vocabulary", count * sizeof *slot);
    tsi_free(vocab->slot);
    vocab->slot = slot;
    vocab->slot_count = count;
    for (int64_t id = 0; id < vocab->size; id++) {
        const tsi_vocab_entry *entry = &vocab->entry[id];
        if (!entry->known) continue;
        slot[find_slot(vocab, vocab->pool + entry->at, entry->length)] = (uint32_t)id + 1;
    }
    return TS_OK;
}

static ts_status grow_entries(tsi_vocab *vocab, int64_t size)
{
    int64_t capacity = vocab->capacity != 0 ? vocab->capacity : 1024;
    while (capacity < size)
        capacity *= 2;
    size_t bytes = (size_t)capacity * sizeof *vocab->entry;
    tsi_vocab_entry *entry = tsi_realloc(vocab->entry, bytes);
    if (entry == NULL) return tsi_fail_memory("entries of a vocabulary", bytes);
    size_t old = (size_t)vocab->capacity * sizeof *entry;
    memset((char *)entry + old, 0, bytes - old);
    vocab->entry = entry;
    vocab->capacity = capacity;
    return TS_OK;
}

static ts_status grow_pool(tsi_vocab *vocab, size_t more)
{
    size_t capacity = vocab->pool_capacity != 0 ? vocab->pool_capacity : 16384;
    while (capacity - vocab->pool_length < more)
        capacity *= 2;
    char *pool = tsi_realloc(vocab->pool, capacity);
    if (pool == NULL) return tsi_fail_memory("texts of a vocabulary", capacity);
    vocab->pool = pool;
    vocab->pool_capacity = capacity;
    return TS_OK;
}

ts_status tsi_vocab_add(tsi_vocab *vocab, int64_t id, const char *text, size_t length)
{
    if (id < 0 || id > TSI_VOCAB_ID_MAX)
        return TSI_FAIL(TS_ERR_ARG, "token \"%.64s\" has id %lld; ids are 0 .. %d", text,
                        (long long)id, TSI_VOCAB_ID_MAX);
    if (length > UINT32_MAX / 2)
        return TSI_FAIL(TS_ERR_ARG, "token %lld has %zu bytes", (long long)id, length);
    if (id >= vocab->capacity) TSI_TRY(grow_entries(vocab, id + 1));
    if (vocab->entry[id].known)
        return TSI_FAIL(TS_ERR_ARG, "tokens \"%.64s\" and \"%.64s\" have the same id %lld",
                        vocab->pool + vocab->entry[id].at, text, (long long)id);
    if (2 * (vocab->used + 1) > vocab->slot_count) TSI_TRY(grow_slots(vocab));
    if (vocab->pool_capacity - vocab->pool_length < length + 1) {
        TSI_TRY(grow_pool(vocab, length + 1));
    }
    size_t slot = find_slot(vocab, text, length);
    if (vocab->slot[slot] != 0)
        return TSI_FAIL(TS_ERR_ARG, "token \"%.64s\" has the ids %u and %lld", text,
                        vocab->slot[slot] - 1, (long long)id);
    vocab->entry[id] = (tsi_vocab_entry){ vocab->pool_length, (uint32_t)length, true };
    memcpy(vocab->pool + vocab->pool_length, text, length);
    vocab->pool_length += length;
    vocab->pool[vocab->pool_length++] = '\0';
    vocab->slot[slot] = (uint32_t)id + 1;
    vocab->used++;
    if (id >= vocab->size) vocab->size = id + 1;
    return TS_OK;
}

int32_t tsi_vocab_find(const tsi_vocab *vocab, const char *text, size_t length)
{
    if (vocab->slot_count == 0) return -1;
    return (int32_t)vocab->slot[find_slot(vocab, text, length)] - 1;
}

const char *tsi_vocab_text(const tsi_vocab *vocab, int64_t id, size_t *length)
{
    if (length != NULL) *length = 0;
    if (id < 0 || id >= vocab->size || !vocab->entry[id].known) return NULL;
    if (length != NULL) *length = vocab->entry[id].length;
    return vocab->pool + vocab->entry[id].at;
}

void tsi_vocab_release(tsi_vocab *vocab)
{
    tsi_free(vocab->pool);
    tsi_free(vocab->entry);
    tsi_free(vocab->slot);
    *vocab = (tsi_vocab){ 0 };
}
