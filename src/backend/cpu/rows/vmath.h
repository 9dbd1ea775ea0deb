/* SPDX-License-Identifier: Apache-2.0 */
/* vmath.h - the words of which functions of one f32 are made in vector loops: fused products and
 * selections.
 *
 * INV: no branches, no calls, so that a loop over an array becomes vector code, and an element has
 * the same bits wherever it stands in the array. Exponentials and their kin: rows_math.h. */
#ifndef TSI_BACKEND_CPU_VMATH_H
#define TSI_BACKEND_CPU_VMATH_H

#include <math.h>
#include <stdint.h>

#include "base/compiler.h"
#include "device/number.h"

/* a * b + c, fused where the machine does so in one instruction. */
static TSI_INLINE float tsi_v_fma(float a, float b, float c)
{
    return TSI_FMAF(a, b, c);
}

/* All bits where the condition holds. Selections are written with masks: for `x
 * < c ? a : b` a compiler may test "not less, or not a number" instead, which
 * takes several instructions. */
static TSI_INLINE uint32_t tsi_v_mask(int condition)
{
    return 0u - (uint32_t)condition;
}

static TSI_INLINE float tsi_v_pick(uint32_t mask, float yes, float no)
{
    return tsi_f32_of_bits((tsi_bits_of_f32(yes) & mask) | (tsi_bits_of_f32(no) & ~mask));
}

#endif
