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

/* ---- blocks ---------------------------------------------------------------------------------- */

enum { LANES = 8, STRIPE = 8 * LANES };

/* Digits of pi after the point, 16 hexadecimal ones each. */
static const uint64_t keys[LANES] = { 0x243F6A8885A308D3u, 0x13198A2E03707344u, 0xA4093822299F31D0u,
                                      0x082EFA98EC4E6C89u, 0x452821E638D01377u, 0xBE5466CF34E90C6Cu,
                                      0xC0AC29B7C97C50DDu, 0x3F84D5B5B5470917u };

/* A word counts twice: alone in its neighbour's lane, so that no change of one word is lost, and as
 * a product under a key of its place, so that order counts. */
static void add_stripe(uint64_t *lane, const unsigned char *at, uint64_t place)
{
    uint64_t word[LANES];
    memcpy(word, at, STRIPE);
    for (int i = 0; i < LANES; i++) {
        uint64_t mixed = word[i] ^ (keys[i] + place);
        lane[i] += (mixed & 0xFFFFFFFFu) * (mixed >> 32);
    }
    for (int i = 0; i < LANES; i++)
        lane[i] += word[i ^ 1];
}

uint64_t tsi_digest_block(const void *data, size_t bytes)
{
    uint64_t lane[LANES] = { 0 }, place = 0;
    const unsigned char *at = data;
    size_t left = bytes;
    for (; left >= STRIPE; left -= STRIPE, at += STRIPE, place += GOLDEN)
        add_stripe(lane, at, place);
    if (left > 0) {
        unsigned char last[STRIPE] = { 0 };
        memcpy(last, at, left);
        add_stripe(lane, last, place);
    }
    uint64_t hash = tsi_hash_mix(GOLDEN, (uint64_t)bytes); /* so that zeros at the end count */
    for (int i = 0; i < LANES; i++)
        hash = tsi_hash_mix(hash, lane[i]);
    return hash;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* A word of 32 bits under the number of its place. The multiplier is odd and below 2^32, so equal
 * places with different words never give the same. */
static inline uint64_t term(uint64_t place, uint32_t word)
{
    uint64_t key = (place + 1) * GOLDEN;
    key ^= key << 32;
    uint64_t product = (uint64_t)(uint32_t)((uint32_t)key + word) * ((key >> 32) | 1);
    return product ^ product >> 29;
}

static uint64_t sum_words(uint64_t place, const unsigned char *at, int64_t count)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t word;
        memcpy(&word, at + 4 * i, 4);
        sum += term(place + (uint64_t)i, word);
    }
    return sum;
}

static uint64_t sum_halves(uint64_t place, const unsigned char *at, int64_t count)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, at + 2 * i, 2);
        sum += term(place + (uint64_t)i, half);
    }
    return sum;
}

static uint64_t sum_bytes(uint64_t place, const unsigned char *at, int64_t count)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += term(place + (uint64_t)i, at[i]);
    return sum;
}

uint64_t tsi_digest_elements(ts_dtype dtype, int64_t first, const void *data, int64_t count)
{
    size_t bytes = ts_dtype_size(dtype);
    if (bytes == 1) return sum_bytes((uint64_t)first, data, count);
    if (bytes == 2) return sum_halves((uint64_t)first, data, count);
    int64_t words = (int64_t)bytes / 4;
    return sum_words((uint64_t)(first * words), data, count * words);
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
