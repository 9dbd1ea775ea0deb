/* SPDX-License-Identifier: Apache-2.0 */
/* vf.h - a vector of f32 of the instruction set a file is compiled for, with gcc's and clang's
 * operators, and its fused product. */
#ifndef TSI_BACKEND_CPU_VF_H
#define TSI_BACKEND_CPU_VF_H

#include <stdint.h>

#include "base/compiler.h"

#if defined(__AVX512F__)
#include <immintrin.h>
enum { VF_BYTES = 64, VF_REGISTERS = 32 };
#elif defined(__AVX2__)
#include <immintrin.h>
enum { VF_BYTES = 32, VF_REGISTERS = 16 };
#elif defined(__aarch64__)
#include <arm_neon.h>
enum { VF_BYTES = 16, VF_REGISTERS = 32 };
#else
enum { VF_BYTES = 16, VF_REGISTERS = 16 };
#endif
enum { VF_LANES = VF_BYTES / 4 };

typedef float vf __attribute__((vector_size(VF_BYTES)));

/* Does a fused product take its second number from a lane of a register? Else from memory. The lane
 * is part of the instruction. */
#if defined(__aarch64__)
#define VF_BY_LANES 1
#define vf_fma_lane(a, b, lane, c)                                                                 \
    ((vf)vfmaq_laneq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b), lane))
#else
#define VF_BY_LANES 0
#endif

static TSI_INLINE vf vf_set(float x)
{
#if defined(__AVX512F__)
    return (vf)_mm512_set1_ps(x);
#elif defined(__AVX2__)
    return (vf)_mm256_set1_ps(x);
#elif defined(__aarch64__)
    return (vf)vdupq_n_f32(x);
#else
    return (vf){ x, x, x, x };
#endif
}

/* a b + c, rounded once where the instruction set can. */
static TSI_INLINE vf vf_fma(vf a, vf b, vf c)
{
#if defined(__AVX512F__)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

#endif
