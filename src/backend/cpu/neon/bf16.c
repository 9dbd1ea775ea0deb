/* SPDX-License-Identifier: Apache-2.0 */
/* bf16.c - tiles of bf16 products by bfmmla: 8 x 8 results in 16 registers, each a 2 x 2 corner.
 *
 * One bfmmla multiplies two rows of four by two columns of four and adds the four sums to a
 * register [r0c0 r0c1 r1c0 r1c1], in f32. Called only where the machine has the instruction. */
#include <arm_neon.h>

#include "backend/cpu/matrix/gemm.h"
#include "base/compiler.h"

/* ---- rows of attention ----------------------------------------------------------------------- */

enum { LANES = 4, WIDE = 8, RUN = 4 };
typedef float vf __attribute__((vector_size(16)));

static TSI_INLINE vf own_fma(vf a, vf b, vf c)
{
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}

static TSI_INLINE vf own_max(vf a, vf b)
{
    return (vf)vmaxnmq_f32((float32x4_t)a, (float32x4_t)b);
}

static TSI_INLINE void own_narrow(uint16_t *to, int64_t step, const vf *x)
{
    for (int j = 0; j < WIDE; j++)
        vst1_bf16((bfloat16_t *)(void *)(to + j * step), vcvt_bf16_f32((float32x4_t)x[j]));
}

#include "backend/cpu/rows/attend_rows.h"

/* ---- products -------------------------------------------------------------------------------- */

static bfloat16x8_t load_bf16(const uint16_t *from)
{
    return vreinterpretq_bf16_u16(vld1q_u16(from));
}

/* Rows 2i and 2i+1, columns 4j .. 4j+3 of the tile, from two corners. */
static void put(float *c, int64_t ldc, float32x4_t left, float32x4_t right, bool first)
{
    float32x4_t upper = vcombine_f32(vget_low_f32(left), vget_low_f32(right));
    float32x4_t lower = vcombine_f32(vget_high_f32(left), vget_high_f32(right));
    if (!first) {
        upper = vaddq_f32(upper, vld1q_f32(c));
        lower = vaddq_f32(lower, vld1q_f32(c + ldc));
    }
    vst1q_f32(c, upper);
    vst1q_f32(c + ldc, lower);
}

static void multiply(const tsi_bf16_tiles *x)
{
    const uint16_t *a_panel = x->a;
    float *c = x->c;
    const int64_t groups = x->groups, ldc = x->ldc;
    for (int64_t count = x->count; count > 0; count--, a_panel += x->a_step, c += 8 * ldc) {
        const uint16_t *a = a_panel, *b = x->b;
        float32x4_t sum[4][4];
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++)
                sum[i][j] = vdupq_n_f32(0);
        for (int64_t g = 0; g < groups; g++, a += 32, b += 32) {
            bfloat16x8_t rows[4], columns[4];
            for (int i = 0; i < 4; i++) {
                rows[i] = load_bf16(a + 8 * i);
                columns[i] = load_bf16(b + 8 * i);
            }
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++)
                    sum[i][j] = vbfmmlaq_f32(sum[i][j], rows[i], columns[j]);
        }
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 2; j++)
                put(c + 2 * i * ldc + 4 * j, ldc, sum[i][2 * j], sum[i][2 * j + 1], x->first);
    }
}

/* Four rows of eight, k down: to eight columns of four. */
static void pack_across(uint16_t *to, const uint16_t *from, int64_t k_stride, int64_t groups)
{
    for (int64_t g = 0; g < groups; g++, to += 32, from += 4 * k_stride) {
        uint16x8_t r0 = vld1q_u16(from), r1 = vld1q_u16(from + k_stride);
        uint16x8_t r2 = vld1q_u16(from + 2 * k_stride), r3 = vld1q_u16(from + 3 * k_stride);
        uint16x8_t lo01 = vzip1q_u16(r0, r1), hi01 = vzip2q_u16(r0, r1);
        uint16x8_t lo23 = vzip1q_u16(r2, r3), hi23 = vzip2q_u16(r2, r3);
        uint32x4_t a = vreinterpretq_u32_u16(lo01), b = vreinterpretq_u32_u16(lo23);
        uint32x4_t c = vreinterpretq_u32_u16(hi01), d = vreinterpretq_u32_u16(hi23);
        vst1q_u16(to, vreinterpretq_u16_u32(vzip1q_u32(a, b)));
        vst1q_u16(to + 8, vreinterpretq_u16_u32(vzip2q_u32(a, b)));
        vst1q_u16(to + 16, vreinterpretq_u16_u32(vzip1q_u32(c, d)));
        vst1q_u16(to + 24, vreinterpretq_u16_u32(vzip2q_u32(c, d)));
    }
}

static float dot(const uint16_t *x, const uint16_t *y, int64_t count)
{
    float32x4_t sum[4];
    for (int j = 0; j < 4; j++)
        sum[j] = vdupq_n_f32(0);
    int64_t i = 0;
    for (; i + 32 <= count; i += 32)
        for (int j = 0; j < 4; j++)
            sum[j] = vbfdotq_f32(sum[j], load_bf16(x + i + 8 * j), load_bf16(y + i + 8 * j));
    if (i < count) {
        uint16_t a[32] = { 0 }, b[32] = { 0 };
        memcpy(a, x + i, (size_t)(count - i) * sizeof *a);
        memcpy(b, y + i, (size_t)(count - i) * sizeof *b);
        for (int j = 0; j < 4; j++)
            sum[j] = vbfdotq_f32(sum[j], load_bf16(a + 8 * j), load_bf16(b + 8 * j));
    }
    return vaddvq_f32(vaddq_f32(vaddq_f32(sum[0], sum[1]), vaddq_f32(sum[2], sum[3])));
}

const tsi_bf16_tile tsi_bf16_tile_neon = {
    .name = "bfmmla",
    .mr = 8,
    .nr = 8,
    .kr = 4,
    .ka = 4,
    .kb = 4,
    .run = RUN,
    .multiply = multiply,
    .pack_across = pack_across,
    .dot = dot,
    .weigh = weigh,
    .weigh_near = weigh_near,
    .weigh_back = weigh_back,
};
