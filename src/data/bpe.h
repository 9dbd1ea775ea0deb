/* SPDX-License-Identifier: Apache-2.0 */
/* bpe.h - byte pair encoding of one word: the pair with the lowest rank is joined first, the
 * leftmost among equals, until no pair of neighbours has a rank.
 *
 * The model (tsi_bpe) does not change after it is made; tsi_bpe_work holds the memory of an encoder
 * and its cache of words. Words are bytes: in a byte-level model every byte is a symbol, otherwise
 * every character is (see utf8.h). */
#ifndef TSI_DATA_BPE_H
#define TSI_DATA_BPE_H

#include <stdbool.h>
#include <stdint.h>

#include "data/vocab.h"
#include "tessera/data.h"

typedef struct tsi_merge {
    uint64_t pair; /* left id << 32 | right id */
    uint32_t rank;
    int32_t id; /* of the result; -1: free */
} tsi_merge;

typedef struct tsi_bpe {
    tsi_vocab words; /* by the bytes that tokens stand for */
    tsi_merge *merge;
    size_t merge_count, merge_capacity; /* capacity: a power of two, or 0 */
    int32_t byte_id[256];               /* byte-level: of the bytes; else of <0x00> ... */
    int32_t unknown;                    /* id, or -1 */
    bool byte_level, byte_fallback, fuse_unknown, ignore_merges;
} tsi_bpe;

void tsi_bpe_init(tsi_bpe *bpe);
/* Adds the rank of a pair; the last of equal pairs counts. */
ts_status tsi_bpe_add_merge(tsi_bpe *bpe, int32_t left, int32_t right, uint32_t rank, int32_t id);
void tsi_bpe_release(tsi_bpe *bpe);

typedef struct tsi_word_cache { /* from bytes to ids; emptied when full */
    struct tsi_word_slot *slot;
    size_t slot_count, used;
    uint32_t *pool; /* of each word: its ids, then its bytes */
    size_t pool_length, pool_capacity;
} tsi_word_cache;

typedef struct tsi_bpe_work {
    tsi_word_cache cache;
    struct tsi_symbol *symbol; /* of the word at hand */
    size_t symbol_capacity;
    uint64_t *heap; /* rank << 32 | position */
    size_t heap_count, heap_capacity;
} tsi_bpe_work;

void tsi_bpe_work_release(tsi_bpe_work *work);
/* Appends the ids of a word; length > 0. */
ts_status tsi_bpe_word(const tsi_bpe *bpe, tsi_bpe_work *work, const char *word, size_t length,
                       ts_tokens *out);

/* Makes room for `more` ids; the caller then writes past count. */
ts_status tsi_tokens_reserve(ts_tokens *tokens, int64_t more);
ts_status tsi_tokens_add(ts_tokens *tokens, int32_t id);

/* ---- the cache (word_cache.c) ---- */
/* Appends the ids of a cached word and returns true, or false: not there. The tokens have room for
 * TSI_WORD_IDS_MAX more. */
enum { TSI_WORD_BYTES_MAX = 128, TSI_WORD_IDS_MAX = 128 };
uint64_t tsi_word_hash(const char *word, size_t length);
bool tsi_word_cache_get(const tsi_word_cache *cache, uint64_t hash, const char *word, size_t length,
                        ts_tokens *out);
/* Remembers ids of a word; without memory it just does not. */
void tsi_word_cache_put(tsi_word_cache *cache, uint64_t hash, const char *word, size_t length,
                        const int32_t *ids, size_t count);
void tsi_word_cache_release(tsi_word_cache *cache);

#endif
