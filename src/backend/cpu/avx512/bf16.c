/* SPDX-License-Identifier: Apache-2.0 */
/* bf16.c - tiles of bf16 products by vdpbf16ps: 12 x 32 results in 24 registers.
 *
 * One vdpbf16ps adds to each of 16 f32 the product of two pairs: a pair of one row of a, the same
 * in every lane, by the pairs of 16 columns of b. Called only where the machine has AVX512_BF16. */
#include <immintrin.h>
#include <string.h>

#include "backend/cpu/gemm.h"

enum { ROWS = 12, COLUMNS = 32 };

static inline __m512bh pairs(const uint16_t *from)
{
    __m512i bits = _mm512_loadu_si512(from);
    __m512bh out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

static inline __m512bh pair_everywhere(const uint16_t *from)
{
    int32_t two;
    memcpy(&two, from, sizeof two);
    __m512i bits = _mm512_set1_epi32(two);
    __m512bh out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

static void multiply(int64_t groups, const uint16_t *a, const uint16_t *b, float *c, int64_t ldc,
                     bool first)
{
    __m512 sum[ROWS][2];
    for (int i = 0; i < ROWS; i++)
        sum[i][0] = sum[i][1] = _mm512_setzero_ps();
    for (int64_t g = 0; g < groups; g++, a += 2 * ROWS, b += 2 * COLUMNS) {
        __m512bh left = pairs(b), right = pairs(b + 32);
        for (int i = 0; i < ROWS; i++) {
            __m512bh row = pair_everywhere(a + 2 * i);
            sum[i][0] = _mm512_dpbf16_ps(sum[i][0], row, left);
            sum[i][1] = _mm512_dpbf16_ps(sum[i][1], row, right);
        }
    }
    for (int i = 0; i < ROWS; i++, c += ldc) {
        __m512 left = sum[i][0], right = sum[i][1];
        if (!first) {
            left = _mm512_add_ps(left, _mm512_loadu_ps(c));
            right = _mm512_add_ps(right, _mm512_loadu_ps(c + 16));
        }
        _mm512_storeu_ps(c, left);
        _mm512_storeu_ps(c + 16, right);
    }
}

const tsi_bf16_tile tsi_bf16_tile_avx512 = {
    .name = "avx512_bf16",
    .mr = ROWS,
    .nr = COLUMNS,
    .kr = 2,
    .ka = 2,
    .kb = 2,
    .multiply = multiply,
};
