/* SPDX-License-Identifier: Apache-2.0 */
/* rows_bf16.c - row kernels of an aarch64 with bf16 instructions: rounding to bf16 is one of them.
 * Called only where the machine has them. */
#define TSI_ROW_SET tsi_rows_neon_bf16
#define TSI_ROW_SET_NAME "neon-bf16"
#define TSI_ROWS_OWN_NARROW 1
#include "backend/cpu/neon/own.h"

static TSI_INLINE void own_narrow(uint16_t *to, float32x4_t a, float32x4_t b)
{
    bfloat16x8_t y = vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(a), b);
    vst1q_u16(to, vreinterpretq_u16_bf16(y));
}

#include "backend/cpu/rows_body.h"
