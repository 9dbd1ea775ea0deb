/* SPDX-License-Identifier: Apache-2.0 */
/* bpe.c - joining the symbols of a word.
 *
 * A short word is scanned for its best pair after each join: n^2 with a tiny constant. A long one
 * keeps its pairs in a heap of (rank, position), n log n. An entry of the heap may be out of date:
 * a symbol only ever grows, so it is current exactly if the pair at its position still has its
 * rank. Both ways give the same ids. */
#include "data/bpe.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/hash.h"
#include "data/utf8.h"

typedef struct tsi_symbol {
    int32_t id;
    uint32_t rank;           /* short words: of this symbol and the next; NO_RANK: none */
    uint32_t previous, next; /* long words; NOWHERE: none */
} tsi_symbol;

enum { SHORT_MAX = 40 };
#define NO_RANK UINT32_MAX
#define NOWHERE UINT32_MAX

void tsi_bpe_init(tsi_bpe *bpe)
{
    *bpe = (tsi_bpe){ .unknown = -1 };
    for (size_t i = 0; i < 256; i++)
        bpe->byte_id[i] = -1;
}

void tsi_bpe_release(tsi_bpe *bpe)
{
    tsi_vocab_release(&bpe->words);
    tsi_free(bpe->merge);
    tsi_bpe_init(bpe);
}

void tsi_bpe_work_release(tsi_bpe_work *work)
{
    tsi_word_cache_release(&work->cache);
    tsi_free(work->symbol);
    tsi_free(work->heap);
    *work = (tsi_bpe_work){ 0 };
}

/* ---- merges ---------------------------------------------------------------------------------- */
static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static tsi_merge *find_merge(const tsi_bpe *bpe, uint64_t pair)
{
    size_t mask = bpe->merge_capacity - 1;
    size_t i = (size_t)((pair * 0x9E3779B97F4A7C15u ^ pair >> 29) * 0xD6E8FEB86659FD93u >> 32);
    for (i &= mask; bpe->merge[i].id >= 0 && bpe->merge[i].pair != pair; i = (i + 1) & mask) {
    }
    return &bpe->merge[i];
}

static ts_status grow_merges(tsi_bpe *bpe)
{
    tsi_bpe bigger = *bpe;
    bigger.merge_capacity = bpe->merge_capacity != 0 ? 2 * bpe->merge_capacity : 1024;
    bigger.merge = tsi_alloc_array(bigger.merge_capacity, sizeof *bigger.merge);
    if (bigger.merge == NULL)
        return tsi_fail_memory("merges", bigger.merge_capacity * sizeof *bigger.merge);
    for (size_t i = 0; i < bigger.merge_capacity; i++)
        bigger.merge[i] = (tsi_merge){ 0, 0, -1 };
    for (size_t i = 0; i < bpe->merge_capacity; i++) {
        if (bpe->merge[i].id >= 0) *find_merge(&bigger, bpe->merge[i].pair) = bpe->merge[i];
    }
    tsi_free(bpe->merge);
    bpe->merge = bigger.merge;
    bpe->merge_capacity = bigger.merge_capacity;
    return TS_OK;
}

ts_status tsi_bpe_add_merge(tsi_bpe *bpe, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    if (2 * (bpe->merge_count + 1) > bpe->merge_capacity) TSI_TRY(grow_merges(bpe));
    uint64_t pair = pair_of(left, right);
    tsi_merge *merge = find_merge(bpe, pair);
    if (merge->id < 0) bpe->merge_count++;
    *merge = (tsi_merge){ pair, rank, id };
    return TS_OK;
}

/* The merge of two neighbours, or NULL. */
static const tsi_merge *merge_of(const tsi_bpe *bpe, int32_t left, int32_t right)
{
    if (bpe->merge_capacity == 0) return NULL;
    const tsi_merge *merge = find_merge(bpe, pair_of(left, right));
    return merge->id >= 0 ? merge : NULL;
}

/* ---- tokens ---------------------------------------------------------------------------------- */
ts_status tsi_tokens_reserve(ts_tokens *tokens, int64_t more)
{
    if (tokens->capacity - tokens->count >= more) return TS_OK;
    int64_t capacity = tokens->capacity != 0 ? tokens->capacity : 256;
    while (capacity - tokens->count < more) {
        if (capacity > INT64_MAX / 16) return tsi_fail_memory("tokens", SIZE_MAX);
        capacity *= 2;
    }
    int32_t *id = tsi_realloc(tokens->id, (size_t)capacity * sizeof *id);
    if (id == NULL) return tsi_fail_memory("tokens", (size_t)capacity * sizeof *id);
    tokens->id = id;
    tokens->capacity = capacity;
    return TS_OK;
}

ts_status tsi_tokens_add(ts_tokens *tokens, int32_t id)
{
    TSI_TRY(tsi_tokens_reserve(tokens, 1));
    tokens->id[tokens->count++] = id;
    return TS_OK;
}

/* ---- symbols of a word ----------------------------------------------------------------------- */
static ts_status reserve_symbols(tsi_bpe_work *work, size_t count)
{
    if (count <= work->symbol_capacity) return TS_OK;
    if (count >= NOWHERE) return TSI_FAIL(TS_ERR_ARG, "a word of %zu bytes is too long", count);
    size_t capacity = count + count / 2 + 64;
    tsi_symbol *symbol = tsi_alloc_array(capacity, sizeof *symbol);
    if (symbol == NULL) return tsi_fail_memory("symbols of a word", capacity * sizeof *symbol);
    tsi_free(work->symbol);
    work->symbol = symbol;
    work->symbol_capacity = capacity;
    return TS_OK;
}

static size_t byte_symbols(const tsi_bpe *bpe, tsi_symbol *symbol, const char *word, size_t length)
{
    size_t count = 0;
    bool unknown_before = false;
    for (size_t i = 0; i < length; i++) {
        int32_t id = bpe->byte_id[(unsigned char)word[i]];
        bool unknown = id < 0;
        if (unknown) id = unknown_before && bpe->fuse_unknown ? -1 : bpe->unknown;
        unknown_before = unknown;
        if (id >= 0) symbol[count++].id = id;
    }
    return count;
}

/* The ids of the bytes of a character that is not in the vocabulary; 0 if one of them has none. */
static size_t fall_back(const tsi_bpe *bpe, tsi_symbol *symbol, const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        symbol[i].id = bpe->byte_id[(unsigned char)text[i]];
        if (symbol[i].id < 0) return 0;
    }
    return length;
}

/* An unknown token is written when the next known one comes (or the word ends), so bytes that fell
 * back overtake it: the order of the reference implementation. */
static size_t char_symbols(const tsi_bpe *bpe, tsi_symbol *symbol, const char *word, size_t length)
{
    size_t count = 0, used;
    bool pending = false;
    for (size_t at = 0; at < length; at += used) {
        tsi_utf8_read(word + at, length - at, &used);
        int32_t id = tsi_vocab_find(&bpe->words, word + at, used);
        if (id >= 0) {
            if (pending) symbol[count++].id = bpe->unknown;
            pending = false;
            symbol[count++].id = id;
            continue;
        }
        size_t bytes = bpe->byte_fallback ? fall_back(bpe, symbol + count, word + at, used) : 0;
        count += bytes;
        if (bytes > 0 || bpe->unknown < 0) continue;
        if (pending && !bpe->fuse_unknown) symbol[count++].id = bpe->unknown;
        pending = true;
    }
    if (pending) symbol[count++].id = bpe->unknown;
    return count;
}

/* ---- short words ----------------------------------------------------------------------------- */
static void rank_pair(const tsi_bpe *bpe, tsi_symbol *symbol, size_t i, size_t count)
{
    const tsi_merge *merge = i + 1 < count ? merge_of(bpe, symbol[i].id, symbol[i + 1].id) : NULL;
    symbol[i].rank = merge != NULL ? merge->rank : NO_RANK;
    symbol[i].next = merge != NULL ? (uint32_t)merge->id : 0; /* what the pair becomes */
}

static size_t join_short(const tsi_bpe *bpe, tsi_symbol *symbol, size_t count)
{
    for (size_t i = 0; i < count; i++)
        rank_pair(bpe, symbol, i, count);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++) {
            if (symbol[i].rank < symbol[best].rank) best = i;
        }
        if (symbol[best].rank == NO_RANK) break;
        symbol[best].id = (int32_t)symbol[best].next;
        count--;
        memmove(symbol + best + 1, symbol + best + 2, (count - best - 1) * sizeof *symbol);
        rank_pair(bpe, symbol, best, count);
        if (best > 0) rank_pair(bpe, symbol, best - 1, count);
    }
    return count;
}

/* ---- long words ------------------------------------------------------------------------------ */
static void heap_push(tsi_bpe_work *work, uint64_t entry)
{
    size_t i = work->heap_count++;
    for (; i > 0 && work->heap[(i - 1) / 2] > entry; i = (i - 1) / 2)
        work->heap[i] = work->heap[(i - 1) / 2];
    work->heap[i] = entry;
}

static uint64_t heap_pop(tsi_bpe_work *work)
{
    uint64_t top = work->heap[0], last = work->heap[--work->heap_count];
    size_t i = 0, count = work->heap_count;
    for (size_t child; (child = 2 * i + 1) < count; i = child) {
        if (child + 1 < count && work->heap[child + 1] < work->heap[child]) child++;
        if (work->heap[child] >= last) break;
        work->heap[i] = work->heap[child];
    }
    if (count > 0) work->heap[i] = last;
    return top;
}

static void heap_pair(const tsi_bpe *bpe, tsi_bpe_work *work, uint32_t i)
{
    if (i == NOWHERE || work->symbol[i].next == NOWHERE) return;
    const tsi_merge *merge =
        merge_of(bpe, work->symbol[i].id, work->symbol[work->symbol[i].next].id);
    if (merge != NULL) heap_push(work, (uint64_t)merge->rank << 32 | i);
}

/* Each symbol begins with at most one pair and each join adds at most two: 3 n entries in all. */
static ts_status reserve_heap(tsi_bpe_work *work, size_t count)
{
    if (3 * count <= work->heap_capacity) return TS_OK;
    uint64_t *heap = tsi_alloc_array(3 * count, sizeof *heap);
    if (heap == NULL) return tsi_fail_memory("pairs of a word", 3 * count * sizeof *heap);
    tsi_free(work->heap);
    work->heap = heap;
    work->heap_capacity = 3 * count;
    return TS_OK;
}

static void join_at(const tsi_bpe *bpe, tsi_bpe_work *work, uint32_t i, uint32_t rank)
{
    tsi_symbol *left = &work->symbol[i];
    if (left->id < 0 || left->next == NOWHERE) return;
    tsi_symbol *right = &work->symbol[left->next];
    const tsi_merge *merge = merge_of(bpe, left->id, right->id);
    if (merge == NULL || merge->rank != rank) return;
    left->id = merge->id;
    right->id = -1;
    left->next = right->next;
    if (left->next != NOWHERE) work->symbol[left->next].previous = i;
    heap_pair(bpe, work, left->previous);
    heap_pair(bpe, work, i);
}

static ts_status join_long(const tsi_bpe *bpe, tsi_bpe_work *work, size_t *count)
{
    TSI_TRY(reserve_heap(work, *count));
    tsi_symbol *symbol = work->symbol;
    for (size_t i = 0; i < *count; i++) {
        symbol[i].previous = i > 0 ? (uint32_t)i - 1 : NOWHERE;
        symbol[i].next = i + 1 < *count ? (uint32_t)i + 1 : NOWHERE;
    }
    work->heap_count = 0;
    for (size_t i = 0; i < *count; i++)
        heap_pair(bpe, work, (uint32_t)i);
    while (work->heap_count > 0) {
        uint64_t top = heap_pop(work);
        join_at(bpe, work, (uint32_t)top, (uint32_t)(top >> 32));
    }
    size_t kept = 0;
    for (uint32_t i = 0; i != NOWHERE; i = symbol[i].next)
        symbol[kept++].id = symbol[i].id;
    *count = kept;
    return TS_OK;
}

/* ---- words ----------------------------------------------------------------------------------- */
static ts_status encode_new(const tsi_bpe *bpe, tsi_bpe_work *work, const char *word, size_t length,
                            ts_tokens *out)
{
    if (bpe->ignore_merges) {
        int32_t whole = tsi_vocab_find(&bpe->words, word, length);
        if (whole >= 0) return tsi_tokens_add(out, whole);
    }
    TSI_TRY(reserve_symbols(work, length));
    size_t count = bpe->byte_level ? byte_symbols(bpe, work->symbol, word, length)
                                   : char_symbols(bpe, work->symbol, word, length);
    if (count == 0) return TS_OK;
    if (count <= SHORT_MAX)
        count = join_short(bpe, work->symbol, count);
    else
        TSI_TRY(join_long(bpe, work, &count));
    TSI_TRY(tsi_tokens_reserve(out, (int64_t)count));
    for (size_t i = 0; i < count; i++)
        out->id[out->count++] = work->symbol[i].id;
    return TS_OK;
}

ts_status tsi_bpe_word(const tsi_bpe *bpe, tsi_bpe_work *work, const char *word, size_t length,
                       ts_tokens *out)
{
    if (length > TSI_WORD_BYTES_MAX) return encode_new(bpe, work, word, length, out);
    TSI_TRY(tsi_tokens_reserve(out, TSI_WORD_IDS_MAX));
    uint64_t hash = tsi_word_hash(word, length);
    if (tsi_word_cache_get(&work->cache, hash, word, length, out)) return TS_OK;
    int64_t before = out->count;
    TSI_TRY(encode_new(bpe, work, word, length, out));
    tsi_word_cache_put(&work->cache, hash, word, length, out->id + before,
                       (size_t)(out->count - before));
    return TS_OK;
}
