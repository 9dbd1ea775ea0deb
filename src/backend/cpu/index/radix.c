/* SPDX-License-Identifier: Apache-2.0 */
/* radix.c - keys of elements, and a radix sort from the lowest digit up.
 *
 * Only digits with bits in which keys differ are looked at. A pass counts the digits of each chunk,
 * adds up where each chunk's items of each digit go, and moves them: chunks are independent, so the
 * threads of the rank share the work, and the result is the only stable order whoever does it.
 * Counts have 32 bits; a longer list is sorted in parts, which are merged. */
#include "backend/cpu/index/radix.h"

#include <string.h>

#include "base/compiler.h"

enum { DIGIT_MAX = 11, CHUNKS_MAX = 16, CHUNK_MIN = 32768, SHORT = 40, SMALL = 4096 };

/* ---- keys ------------------------------------------------------------------------------------ */

static TSI_INLINE uint32_t key_of_f32(uint32_t bits)
{
    uint32_t size = bits & 0x7FFFFFFFu;
    uint32_t key = bits ^ ((uint32_t)((int32_t)bits >> 31) | 0x80000000u);
    key = size == 0 ? 0x80000000u : key;
    return size > 0x7F800000u ? 0xFFFFFFFFu : key;
}

static TSI_INLINE uint64_t key_of_f64(uint64_t bits)
{
    uint64_t sign = (uint64_t)1 << 63, size = bits & ~sign;
    uint64_t key = bits ^ ((uint64_t)((int64_t)bits >> 63) | sign);
    key = size == 0 ? sign : key;
    return size > 0x7FF0000000000000u ? UINT64_MAX : key;
}

void tsi_keys_32(ts_dtype dtype, const char *from, int64_t stride, int64_t count, bool descending,
                 uint32_t *keys)
{
    uint32_t flip = descending ? 0xFFFFFFFFu : 0;
    bool real = dtype == TS_DTYPE_F32 || dtype == TS_DTYPE_BF16 || dtype == TS_DTYPE_F16;
    if (real) {
        uint32_t buffer[TSI_KEYS_MAX];
        const void *bits = from;
        if (dtype != TS_DTYPE_F32 || stride != (int64_t)sizeof *buffer) {
            tsi_gather(TS_DTYPE_F32, buffer, dtype, from, stride, count);
            bits = buffer;
        }
        const uint32_t *x = bits;
        for (int64_t i = 0; i < count; i++)
            keys[i] = key_of_f32(x[i]) ^ flip;
        return;
    }
    int64_t whole[TSI_KEYS_MAX];
    tsi_gather(TS_DTYPE_I64, whole, dtype, from, stride, count);
    for (int64_t i = 0; i < count; i++)
        keys[i] = (uint32_t)whole[i] ^ 0x80000000u ^ flip;
}

void tsi_keys_64(ts_dtype dtype, const char *from, int64_t stride, int64_t count, bool descending,
                 uint64_t *keys)
{
    uint64_t flip = descending ? UINT64_MAX : 0;
    if (!tsi_key_is_wide(dtype)) {
        uint32_t narrow[TSI_KEYS_MAX];
        tsi_keys_32(dtype, from, stride, count, descending, narrow);
        for (int64_t i = 0; i < count; i++)
            keys[i] = narrow[i];
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits;
        memcpy(&bits, from + i * stride, sizeof bits);
        keys[i] = (dtype == TS_DTYPE_F64 ? key_of_f64(bits) : bits ^ (uint64_t)1 << 63) ^ flip;
    }
}

uint64_t tsi_items_load(ts_dtype dtype, const char *from, int64_t stride, int64_t count,
                        bool descending, int32_t words, uint64_t *items)
{
    uint32_t narrow[TSI_KEYS_MAX];
    uint64_t wide[TSI_KEYS_MAX], some = 0, all = UINT64_MAX;
    for (int64_t at = 0, n; at < count; at += n) {
        n = count - at < TSI_KEYS_MAX ? count - at : TSI_KEYS_MAX;
        const char *part = from + at * stride;
        if (words == 2) {
            tsi_keys_64(dtype, part, stride, n, descending, wide);
            for (int64_t i = 0; i < n; i++) {
                items[2 * (at + i)] = wide[i];
                items[2 * (at + i) + 1] = (uint64_t)(at + i);
                some |= wide[i];
                all &= wide[i];
            }
            continue;
        }
        tsi_keys_32(dtype, part, stride, n, descending, narrow);
        for (int64_t i = 0; i < n; i++) {
            uint64_t key = (uint64_t)narrow[i] << 32;
            items[at + i] = key | (uint64_t)(at + i);
            some |= key;
            all &= key;
        }
    }
    return some & ~all;
}

/* ---- short lists ----------------------------------------------------------------------------- */

static TSI_INLINE void insertion_sort(uint64_t *items, int64_t count, int32_t words)
{
    for (int64_t i = 1; i < count; i++) {
        uint64_t key = items[i * words], place = items[i * words + words - 1];
        int64_t j = i;
        for (; j > 0 && items[(j - 1) * words] > key; j--) {
            items[j * words] = items[(j - 1) * words];
            if (words == 2) items[j * words + 1] = items[(j - 1) * words + 1];
        }
        items[j * words] = key;
        if (words == 2) items[j * words + 1] = place;
    }
}

/* ---- passes ---------------------------------------------------------------------------------- */

typedef struct pass {
    const uint64_t *from;
    uint64_t *to;
    int64_t count, chunk; /* items; items of a chunk */
    int32_t words, shift;
    uint32_t mask;
    uint32_t (*place)[1 << DIGIT_MAX]; /* per chunk and digit: how many; then where they go */
} pass;

static TSI_INLINE void count_digits(const pass *p, int64_t chunk, int32_t words)
{
    int64_t begin = chunk * p->chunk, end = begin + p->chunk;
    uint32_t *place = p->place[chunk], mask = p->mask;
    const uint64_t *from = p->from;
    int32_t shift = p->shift;
    end = end < p->count ? end : p->count;
    memset(place, 0, ((size_t)mask + 1) * sizeof *place);
    for (int64_t i = begin; i < end; i++)
        place[(uint32_t)(from[i * words] >> shift) & mask]++;
}

static TSI_INLINE void move_items(const pass *p, int64_t chunk, int32_t words)
{
    int64_t begin = chunk * p->chunk, end = begin + p->chunk;
    uint32_t *place = p->place[chunk], mask = p->mask;
    const uint64_t *from = p->from;
    uint64_t *to = p->to;
    int32_t shift = p->shift;
    end = end < p->count ? end : p->count;
    for (int64_t i = begin; i < end; i++) {
        int64_t at = place[(uint32_t)(from[i * words] >> shift) & mask]++;
        to[at * words] = from[i * words];
        if (words == 2) to[at * words + 1] = from[i * words + 1];
    }
}

static void count_chunks(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const pass *p = context;
    for (int64_t c = begin; c < end; c++)
        if (p->words == 1)
            count_digits(p, c, 1);
        else
            count_digits(p, c, 2);
}

static void move_chunks(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const pass *p = context;
    for (int64_t c = begin; c < end; c++)
        if (p->words == 1)
            move_items(p, c, 1);
        else
            move_items(p, c, 2);
}

static void run_pass(pass *p, ts_rank *rank, int64_t chunks)
{
    tsi_parallel_for(rank, chunks, 1, count_chunks, p);
    uint32_t next = 0;
    for (uint32_t digit = 0; digit <= p->mask; digit++)
        for (int64_t c = 0; c < chunks; c++) {
            uint32_t here = p->place[c][digit];
            p->place[c][digit] = next;
            next += here;
        }
    tsi_parallel_for(rank, chunks, 1, move_chunks, p);
}

static int32_t lowest_bit(uint64_t bits)
{
    int32_t at = 0;
    for (; !(bits & 1); bits >>= 1)
        at++;
    return at;
}

static uint64_t *sort_in(pass *p, ts_rank *rank, int64_t chunks, uint64_t *items, uint64_t *other,
                         uint64_t live)
{
    int32_t digit = p->count < SMALL ? 8 : DIGIT_MAX;
    while (live) {
        p->shift = lowest_bit(live);
        p->mask = (1u << digit) - 1;
        if (p->shift + digit > 64) p->mask >>= p->shift + digit - 64;
        p->from = items;
        p->to = other;
        run_pass(p, rank, chunks);
        live &= ~((uint64_t)p->mask << p->shift);
        other = items;
        items = p->to;
    }
    return items;
}

static uint64_t *sort_one(ts_rank *rank, uint64_t *items, uint64_t *other, int64_t count,
                          int32_t words, uint64_t live)
{
    if (count < SHORT) {
        if (words == 1)
            insertion_sort(items, count, 1);
        else
            insertion_sort(items, count, 2);
        return items;
    }
    uint32_t own[1][1 << DIGIT_MAX];
    pass p = { .count = count, .chunk = count, .words = words, .place = own };
    int64_t chunks = rank ? tsi_parallel_threads(rank) : 1;
    if (chunks > CHUNKS_MAX) chunks = CHUNKS_MAX;
    if (chunks > count / CHUNK_MIN) chunks = count / CHUNK_MIN;
    tsi_scratch scratch = { 0 };
    if (chunks > 1 && tsi_scratch_get(&scratch, rank, (size_t)chunks, sizeof own[0]) == TS_OK) {
        p.chunk = (count - 1) / chunks + 1;
        p.place = scratch.data;
    } else {
        chunks = 1;
    }
    uint64_t *sorted = sort_in(&p, chunks > 1 ? rank : NULL, chunks, items, other, live);
    tsi_scratch_done(&scratch);
    return sorted;
}

/* ---- lists of more items than counts can say ------------------------------------------------- */

/* Both are sorted; of equal keys the first list's come first. One-word items never have equal keys:
 * their places differ. */
static void merge(const uint64_t *a, int64_t a_count, const uint64_t *b, int64_t b_count,
                  int32_t words, uint64_t *to)
{
    for (int64_t i = 0, j = 0; i < a_count || j < b_count; to += words) {
        bool first = j == b_count || (i < a_count && a[i * words] <= b[j * words]);
        memcpy(to, first ? &a[i * words] : &b[j * words], (size_t)words * sizeof *to);
        i += first;
        j += !first;
    }
}

uint64_t *tsi_radix_sort_parts(ts_rank *rank, uint64_t *items, uint64_t *other, int64_t count,
                               int32_t words, uint64_t live, int64_t most)
{
    if (count <= most) return sort_one(rank, items, other, count, words, live);
    int64_t half = count / 2, at = half * words;
    const uint64_t *low = tsi_radix_sort_parts(rank, items, other, half, words, live, most);
    const uint64_t *high =
        tsi_radix_sort_parts(rank, items + at, other + at, count - half, words, live, most);
    /* Each half lies in one of the two lists; the merge goes where neither does. */
    if (low == items && high != items + at) {
        memcpy(items + at, high, (size_t)((count - half) * words) * sizeof *items);
        high = items + at;
    } else if (low != items && high == items + at) {
        memcpy(other + at, high, (size_t)((count - half) * words) * sizeof *items);
        high = other + at;
    }
    uint64_t *to = low == items ? other : items;
    merge(low, half, high, count - half, words, to);
    return to;
}

uint64_t *tsi_radix_sort(ts_rank *rank, uint64_t *items, uint64_t *other, int64_t count,
                         int32_t words, uint64_t live)
{
    return tsi_radix_sort_parts(rank, items, other, count, words, live, UINT32_MAX);
}
