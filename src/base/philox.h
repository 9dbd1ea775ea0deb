/* SPDX-License-Identifier: Apache-2.0 */
/* philox.h - Philox4x32-10, the counter-based generator behind every random number.
 *
 * block(seed, stream, index) is a pure function: 128 bits of counter = (index, stream), 64 bits of
 * key = seed. Elements are numbered by their global index, so any layout draws the same bits. */
#ifndef TSI_BASE_PHILOX_H
#define TSI_BASE_PHILOX_H

#include <stdint.h>

#include "base/portable.h"

typedef struct tsi_philox_block {
    uint32_t word[4];
} tsi_philox_block;

enum { TSI_PHILOX_ROUNDS = 10 };

TSI_SHARED tsi_philox_block tsi_philox_round(tsi_philox_block c, uint32_t k0, uint32_t k1)
{
    uint64_t p0 = (uint64_t)0xD2511F53u * c.word[0], p1 = (uint64_t)0xCD9E8D57u * c.word[2];
    tsi_philox_block next = { { (uint32_t)(p1 >> 32) ^ c.word[1] ^ k0, (uint32_t)p1,
                                (uint32_t)(p0 >> 32) ^ c.word[3] ^ k1, (uint32_t)p0 } };
    return next;
}

/* The two words of the key in a round. */
TSI_SHARED uint32_t tsi_philox_key(uint64_t key, int round, int word)
{
    uint32_t step = word == 0 ? 0x9E3779B9u : 0xBB67AE85u;
    return (uint32_t)(key >> (32 * word)) + (uint32_t)round * step;
}

TSI_SHARED tsi_philox_block tsi_philox(uint64_t key, uint64_t counter_low, uint64_t counter_high)
{
    tsi_philox_block c = { { (uint32_t)counter_low, (uint32_t)(counter_low >> 32),
                             (uint32_t)counter_high, (uint32_t)(counter_high >> 32) } };
    for (int round = 0; round < TSI_PHILOX_ROUNDS; round++)
        c = tsi_philox_round(c, tsi_philox_key(key, round, 0), tsi_philox_key(key, round, 1));
    return c;
}

#endif
