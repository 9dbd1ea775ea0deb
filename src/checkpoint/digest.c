/* SPDX-License-Identifier: Apache-2.0 */
/* digest.c - hashes of blocks and of tensors.
 *
 * INV: these functions are part of the file format: a change of one bit is a new version of it. All
 * loads are little-endian, as the files and the memory of every machine we run on. Loops are plain
 * and their lanes independent, so that compilers make vector code of them. */
#include "checkpoint/digest.h"

#include <string.h>

#include "base/hash.h"

#define GOLDEN 0x9E3779B97F4A7C15u

/* ---- sums over words -------------------------------------------------------------------------
 *
 * Word w at place p counts w * factor[p mod 256] * odd(p div 256). All factors are odd, so no
 * change of one word is lost; they are as good as random, so no likely change of several is. */

enum { FACTORS = 256 };
static const uint32_t factor[FACTORS] = {
#include "checkpoint/digest_table.inc"
};

static uint64_t odd(uint64_t number)
{
    return tsi_hash_mix(GOLDEN, number) | 1;
}

static uint64_t sum_4(const unsigned char *at, const uint32_t *by, int64_t count)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t word;
        memcpy(&word, at + 4 * i, 4);
        sum += (uint64_t)word * by[i];
    }
    return sum;
}

static uint64_t sum_2(const unsigned char *at, const uint32_t *by, int64_t count)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < count; i++) {
        uint16_t word;
        memcpy(&word, at + 2 * i, 2);
        sum += (uint64_t)word * by[i];
    }
    return sum;
}

static uint64_t sum_1(const unsigned char *at, const uint32_t *by, int64_t count)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += (uint64_t)at[i] * by[i];
    return sum;
}

/* `count` words of `bytes` each, the first of them at `place`. */
static uint64_t sum_words(uint64_t place, const unsigned char *at, int64_t count, size_t bytes)
{
    uint64_t sum = 0;
    while (count > 0) {
        int64_t first = (int64_t)(place % FACTORS), n = FACTORS - first;
        if (n > count) n = count;
        uint64_t part = bytes == 4   ? sum_4(at, factor + first, n)
                        : bytes == 2 ? sum_2(at, factor + first, n)
                                     : sum_1(at, factor + first, n);
        sum += part * odd(place / FACTORS);
        at += (size_t)n * bytes;
        place += (uint64_t)n;
        count -= n;
    }
    return sum;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

uint64_t tsi_digest_part(size_t at, const void *data, size_t bytes)
{
    const unsigned char *from = data;
    size_t words = bytes / 4, left = bytes % 4;
    unsigned char last[4] = { 0 };
    uint64_t sum = sum_words(at / 4, from, (int64_t)words, 4);
    if (left > 0) memcpy(last, from + 4 * words, left);
    if (left > 0) sum += sum_words(at / 4 + words, last, 1, 4);
    return sum;
}

uint64_t tsi_digest_block(const void *data, size_t bytes)
{
    return tsi_digest_block_of(bytes, tsi_digest_part(0, data, bytes));
}

uint64_t tsi_digest_block_of(size_t bytes, uint64_t sum)
{
    /* With the length, so that zeros at the end count. */
    return tsi_hash_mix(tsi_hash_mix(GOLDEN, (uint64_t)bytes), sum);
}

/* ---- tensors --------------------------------------------------------------------------------- */

uint64_t tsi_digest_elements(ts_dtype dtype, int64_t first, const void *data, int64_t count)
{
    size_t bytes = ts_dtype_size(dtype);
    if (bytes < 4) return sum_words((uint64_t)first, data, count, bytes);
    int64_t words = (int64_t)bytes / 4;
    return sum_words((uint64_t)(first * words), data, count * words, 4);
}

uint64_t tsi_digest_tensor(const ts_meta *meta, uint64_t sum)
{
    uint64_t hash = tsi_hash_text(sum, ts_dtype_name((ts_dtype)meta->dtype));
    hash = tsi_hash_mix(hash, (uint64_t)meta->shape.ndim);
    for (int32_t d = 0; d < meta->shape.ndim; d++)
        hash = tsi_hash_mix(hash, (uint64_t)meta->shape.extent[d]);
    return hash;
}

uint64_t tsi_digest_named(const char *name, uint64_t tensor)
{
    return tsi_hash_text(tensor, name);
}
