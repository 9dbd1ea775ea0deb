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

TSI_SHARED tsi_philox_block tsi_philox(uint64_t key, uint64_t counter_low, uint64_t counter_high)
{
    uint32_t c0 = (uint32_t)counter_low, c1 = (uint32_t)(counter_low >> 32);
    uint32_t c2 = (uint32_t)counter_high, c3 = (uint32_t)(counter_high >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    tsi_philox_block block = { { c0, c1, c2, c3 } };
    return block;
}

#endif
