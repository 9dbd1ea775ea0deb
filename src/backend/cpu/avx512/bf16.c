/* SPDX-License-Identifier: Apache-2.0 */
/* bf16.c - tiles of bf16 products by vdpbf16ps: 12 x 32 results in 24 registers.
 *
 * One vdpbf16ps adds to each of 16 f32 the product of two pairs: a pair of one row of a, the same
 * in every lane, by the pairs of 16 columns of b. Called only where the machine has AVX512_BF16. */
#include <immintrin.h>
#include <string.h>

#include "backend/cpu/matrix/gemm.h"
#include "base/compiler.h"

/* ---- rows of attention ----------------------------------------------------------------------- */

enum { LANES = 16, WIDE = 2, RUN = 32 };
typedef float vf __attribute__((vector_size(64)));

static TSI_INLINE vf own_fma(vf a, vf b, vf c)
{
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

static TSI_INLINE vf own_max(vf a, vf b)
{
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
}

static TSI_INLINE void own_narrow(uint16_t *to, int64_t step, const vf *x)
{
    (void)step; /* a pack is one run */
    __m512bh y = _mm512_cvtne2ps_pbh((__m512)x[1], (__m512)x[0]);
    memcpy(to, &y, sizeof y);
}

#include "backend/cpu/rows/attend_rows.h"

float tsi_weigh_avx512(uint16_t *to, int64_t step, const float *x, const float *factor_top,
                       int64_t count)
{
    return weigh(to, step, x, factor_top, count);
}

float tsi_weigh_near_avx512(uint16_t *to, int64_t step, const float *x, const float *factor_top,
                            int64_t count)
{
    return weigh_near(to, step, x, factor_top, count);
}

void tsi_weigh_back_avx512(const tsi_weigh_back *w)
{
    weigh_back(w);
}

/* ---- products -------------------------------------------------------------------------------- */

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

static void multiply_one(const tsi_bf16_tiles *x, const uint16_t *a, float *c)
{
    const uint16_t *b = x->b;
    __m512 sum[ROWS][2];
    for (int i = 0; i < ROWS; i++)
        sum[i][0] = sum[i][1] = _mm512_setzero_ps();
    for (int64_t g = 0; g < x->groups; g++, a += 2 * ROWS, b += 2 * COLUMNS) {
        __m512bh left = pairs(b), right = pairs(b + 32);
        for (int i = 0; i < ROWS; i++) {
            __m512bh row = pair_everywhere(a + 2 * i);
            sum[i][0] = _mm512_dpbf16_ps(sum[i][0], row, left);
            sum[i][1] = _mm512_dpbf16_ps(sum[i][1], row, right);
        }
    }
    for (int i = 0; i < ROWS; i++, c += x->ldc) {
        __m512 left = sum[i][0], right = sum[i][1];
        if (!x->first) {
            left = _mm512_add_ps(left, _mm512_loadu_ps(c));
            right = _mm512_add_ps(right, _mm512_loadu_ps(c + 16));
        }
        _mm512_storeu_ps(c, left);
        _mm512_storeu_ps(c + 16, right);
    }
}

static void multiply(const tsi_bf16_tiles *x)
{
    for (int64_t i = 0; i < x->count; i++)
        multiply_one(x, x->a + i * x->a_step, x->c + i * ROWS * x->ldc);
}

float tsi_dot_avx512(const uint16_t *x, const uint16_t *y, int64_t count)
{
    __m512 sum[2] = { _mm512_setzero_ps(), _mm512_setzero_ps() };
    int64_t i = 0;
    for (; i + 64 <= count; i += 64)
        for (int j = 0; j < 2; j++)
            sum[j] = _mm512_dpbf16_ps(sum[j], pairs(x + i + 32 * j), pairs(y + i + 32 * j));
    if (i < count) {
        uint16_t a[64] = { 0 }, b[64] = { 0 };
        memcpy(a, x + i, (size_t)(count - i) * sizeof *a);
        memcpy(b, y + i, (size_t)(count - i) * sizeof *b);
        for (int j = 0; j < 2; j++)
            sum[j] = _mm512_dpbf16_ps(sum[j], pairs(a + 32 * j), pairs(b + 32 * j));
    }
    return _mm512_reduce_add_ps(_mm512_add_ps(sum[0], sum[1]));
}

const tsi_bf16_tile tsi_bf16_tile_avx512 = {
    .name = "avx512_bf16",
    .mr = ROWS,
    .nr = COLUMNS,
    .kr = 2,
    .ka = 2,
    .kb = 2,
    .run = RUN,
    .multiply = multiply,
    .dot = tsi_dot_avx512,
    .weigh = tsi_weigh_avx512,
    .weigh_near = tsi_weigh_near_avx512,
    .weigh_back = tsi_weigh_back_avx512,
};
