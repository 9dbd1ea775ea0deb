/* SPDX-License-Identifier: Apache-2.0 */
/* rows_bf16.c - row kernels of an aarch64 with bf16 instructions: rounding to bf16 is one of them,
 * so are products of bf16 added to f32, rounded once. Called only where the machine has them. */
#define TSI_ROW_SET tsi_rows_neon_bf16
#define TSI_ROW_SET_NAME "neon-bf16"
#define TSI_ROWS_OWN_NARROW 1
#define TSI_ROWS_OWN_PAIRS 1
#include "backend/cpu/neon/own.h"

static TSI_INLINE void own_narrow(uint16_t *to, float32x4_t a, float32x4_t b)
{
    bfloat16x8_t y = vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(a), b);
    vst1q_u16(to, vreinterpretq_u16_bf16(y));
}

typedef float own_vf __attribute__((vector_size(16)));
typedef uint32_t own_vu __attribute__((vector_size(16)));

/* Times one: the sum of f32, rounded as an addition is. */
static TSI_INLINE void add_pairs(own_vf *even, own_vf *odd, own_vu pairs)
{
    uint16x8_t ones = vdupq_n_u16(0x3F80);
    TSI_OPAQUE_VECTOR(ones);
    bfloat16x8_t one = vreinterpretq_bf16_u16(ones), x = vreinterpretq_bf16_u32((uint32x4_t)pairs);
    *even = (own_vf)vbfmlalbq_f32((float32x4_t)*even, x, one);
    *odd = (own_vf)vbfmlaltq_f32((float32x4_t)*odd, x, one);
}

static TSI_INLINE void add_square_pairs(own_vf *even, own_vf *odd, own_vu pairs)
{
    bfloat16x8_t x = vreinterpretq_bf16_u32((uint32x4_t)pairs);
    *even = (own_vf)vbfmlalbq_f32((float32x4_t)*even, x, x);
    *odd = (own_vf)vbfmlaltq_f32((float32x4_t)*odd, x, x);
}

#include "backend/cpu/rows/rows_body.h"
