/* SPDX-License-Identifier: Apache-2.0 */
/* own.h - row kernels of aarch64 by intrinsics, before rows_body.h makes the rest: extremes, since
 * fmax and fmin take a NaN as we want it and no portable expression becomes one of them. */
#define TSI_ROWS_OWN_EXTREMES 1

#include <arm_neon.h>
#include <stdint.h>

#include "base/compiler.h"

typedef float32x4_t (*extreme)(float32x4_t a, float32x4_t b);

static TSI_INLINE float32x4_t larger_of(float32x4_t a, float32x4_t b)
{
    return vmaxq_f32(a, b);
}

static TSI_INLINE float32x4_t smaller_of(float32x4_t a, float32x4_t b)
{
    return vminq_f32(a, b);
}

static TSI_INLINE float32x4_t fold_extreme(const float *x, int64_t count, float start, extreme f)
{
    float32x4_t lane[8];
    for (int j = 0; j < 8; j++)
        lane[j] = vdupq_n_f32(start);
    int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        TSI_PREFETCH(x + i + 256);
        TSI_PREFETCH(x + i + 272);
        for (int j = 0; j < 8; j++)
            lane[j] = f(lane[j], vld1q_f32(x + i + 4 * j));
    }
    float32x4_t left = f(f(lane[0], lane[1]), f(lane[2], lane[3]));
    float32x4_t right = f(f(lane[4], lane[5]), f(lane[6], lane[7]));
    for (; i + 4 <= count; i += 4)
        left = f(left, vld1q_f32(x + i));
    for (; i < count; i++)
        right = f(right, vld1q_dup_f32(x + i));
    return f(left, right);
}

static double max_f32(const float *x, int64_t count)
{
    return (double)vmaxvq_f32(fold_extreme(x, count, -__builtin_inff(), larger_of));
}

static double min_f32(const float *x, int64_t count)
{
    return (double)vminvq_f32(fold_extreme(x, count, __builtin_inff(), smaller_of));
}

static TSI_INLINE void join_extreme(float *to, const float *x, int64_t count, extreme f)
{
    int64_t i = 0;
    for (; i + 4 <= count; i += 4)
        vst1q_f32(to + i, f(vld1q_f32(to + i), vld1q_f32(x + i)));
    for (; i < count; i++)
        vst1q_lane_f32(to + i, f(vld1q_dup_f32(to + i), vld1q_dup_f32(x + i)), 0);
}

static void join_max_f32(float *to, const float *x, int64_t count)
{
    join_extreme(to, x, count, larger_of);
}

static void join_min_f32(float *to, const float *x, int64_t count)
{
    join_extreme(to, x, count, smaller_of);
}
