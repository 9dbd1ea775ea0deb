/* SPDX-License-Identifier: Apache-2.0 */
/* rows_pack.h - functions of several vectors at once, for rows the compiler's own vector code is
 * slow on: exponentials, and bf16; a part of rows_body.h.
 *
 * A pack is VP_WIDTH vectors. Every step of a function is done for all of them before the next one
 * begins, so that a long chain of dependent steps fills the machine. Rows that do not end with a
 * pack end with a padded one: an element has the same bits wherever it stands in its row.
 *
 * Vectors are those of gcc and clang, with operators; what these lack comes from the instruction
 * set: fused products, the larger and the smaller (a NaN gives the second), rounding to bf16. */

#include "backend/cpu/rows/vf.h"

enum { VP_WIDTH = VF_BYTES == 16 ? 4 : 2, PACK = VP_WIDTH * VF_LANES };

typedef uint32_t vu __attribute__((vector_size(VF_BYTES)));
typedef uint16_t vh __attribute__((vector_size(VF_BYTES / 2)));
typedef struct vp {
    vf v[VP_WIDTH];
} vp;
#define EACH for (int j = 0; j < VP_WIDTH; j++)

static TSI_INLINE vf vf_pick(vu mask, vf yes, vf no)
{
    return (vf)(((vu)yes & mask) | ((vu)no & ~mask));
}

static TSI_INLINE vf vf_max(vf a, vf b)
{
#if defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__aarch64__)
    return (vf)vmaxnmq_f32((float32x4_t)a, (float32x4_t)b);
#else
    return vf_pick((vu)(a > b), a, b);
#endif
}

static TSI_INLINE vf vf_min(vf a, vf b)
{
#if defined(__AVX512F__)
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__aarch64__)
    return (vf)vminnmq_f32((float32x4_t)a, (float32x4_t)b);
#else
    return vf_pick((vu)(a < b), a, b);
#endif
}

static TSI_INLINE vf vf_abs(vf x)
{
    return (vf)((vu)x & 0x7FFFFFFFu);
}

/* The size of one, the sign of the other. */
static TSI_INLINE vf vf_sign(vf size, vf sign)
{
    return (vf)(((vu)size & 0x7FFFFFFFu) | ((vu)sign & 0x80000000u));
}

/* ---- packs in memory ------------------------------------------------------------------------- */

static TSI_INLINE vp load_f32(const float *x)
{
    vp y;
    EACH
    {
        vf one; /* a whole pack would go through memory */
        memcpy(&one, x + j * VF_LANES, sizeof one);
        y.v[j] = one;
    }
    return y;
}

static TSI_INLINE void store_f32(float *to, vp x)
{
    EACH
    {
        vf one = x.v[j];
        memcpy(to + j * VF_LANES, &one, sizeof one);
    }
}

static TSI_INLINE vf widen_vector(const uint16_t *x)
{
#if defined(__AVX512F__)
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)x));
    return (vf)_mm512_slli_epi32(wide, 16);
#elif defined(__AVX2__)
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)x));
    return (vf)_mm256_slli_epi32(wide, 16);
#elif defined(__aarch64__)
    return (vf)vshll_n_u16(vld1_u16(x), 16);
#else
    vh half;
    memcpy(&half, x, sizeof half);
    return (vf)(__builtin_convertvector(half, vu) << 16);
#endif
}

#if defined(__aarch64__) /* two vectors at once; interleaving with zeros is cheaper than a shift   \
                          */
static TSI_INLINE vp load_bf16(const uint16_t *x)
{
    const uint16x8_t zero = vdupq_n_u16(0);
    vp y;
    for (int j = 0; j < VP_WIDTH; j += 2) {
        uint16x8_t both = vld1q_u16(x + j * VF_LANES);
        y.v[j] = (vf)vzip1q_u16(zero, both);
        y.v[j + 1] = (vf)vzip2q_u16(zero, both);
    }
    return y;
}
#else
static TSI_INLINE vp load_bf16(const uint16_t *x)
{
    vp y;
    EACH y.v[j] = widen_vector(x + j * VF_LANES);
    return y;
}
#endif

#ifdef TSI_ROWS_OWN_NARROW /* the file of an instruction set has an instruction for it */
static TSI_INLINE void store_bf16(uint16_t *to, vp x)
{
    for (int j = 0; j < VP_WIDTH; j += 2)
        own_narrow(to + j * VF_LANES, x.v[j], x.v[j + 1]);
}
#else
static TSI_INLINE void store_bf16(uint16_t *to, vp x)
{
    EACH
    {
        vu bits = (vu)x.v[j], real = (vu)(x.v[j] == x.v[j]);
        vu rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16, quiet = (bits >> 16) | 0x40u;
        vh half = __builtin_convertvector((rounded & real) | (quiet & ~real), vh);
        memcpy(to + j * VF_LANES, &half, sizeof half);
    }
}
#endif

/* The last `count` elements of a row, fewer than a pack; what is beyond them is `fill`. */
static TSI_INLINE vp part_f32(const float *x, int64_t count, float fill)
{
    float y[PACK];
    for (int i = 0; i < PACK; i++)
        y[i] = fill;
    memcpy(y, x, (size_t)count * sizeof *x);
    return load_f32(y);
}

static TSI_INLINE void store_part_f32(float *to, vp x, int64_t count)
{
    float y[PACK];
    store_f32(y, x);
    memcpy(to, y, (size_t)count * sizeof *to);
}

static TSI_INLINE vp part_bf16(const uint16_t *x, int64_t count)
{
    uint16_t y[PACK] = { 0 };
    memcpy(y, x, (size_t)count * sizeof *x);
    return load_bf16(y);
}

static TSI_INLINE void store_part_bf16(uint16_t *to, vp x, int64_t count)
{
    uint16_t y[PACK];
    store_bf16(y, x);
    memcpy(to, y, (size_t)count * sizeof *to);
}

static TSI_INLINE vp vp_set(float x)
{
    vp y;
    EACH y.v[j] = vf_set(x);
    return y;
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

static TSI_INLINE vp vp_add(vp x, vp y, float c)
{
    EACH x.v[j] = x.v[j] + y.v[j] * c;
    return x;
}

/* With c = 1, which is the rule. */
static TSI_INLINE vp vp_plus(vp x, vp y, float c)
{
    (void)c;
    EACH x.v[j] = x.v[j] + y.v[j];
    return x;
}

static TSI_INLINE vp vp_sub(vp x, vp y, float c)
{
    EACH x.v[j] = x.v[j] - y.v[j] * c;
    return x;
}

static TSI_INLINE vp vp_mul(vp x, vp y, float c)
{
    (void)c;
    EACH x.v[j] = x.v[j] * y.v[j];
    return x;
}

static TSI_INLINE vp vp_div(vp x, vp y, float c)
{
    (void)c;
    EACH x.v[j] = x.v[j] / y.v[j];
    return x;
}

static TSI_INLINE vp vp_lerp(vp x, vp y, float c)
{
    EACH x.v[j] = x.v[j] + (y.v[j] - x.v[j]) * c;
    return x;
}

static TSI_INLINE vp vp_lerp_back(vp x, vp y, float c)
{
    EACH x.v[j] = y.v[j] - (y.v[j] - x.v[j]) * (1.0f - c);
    return x;
}

static TSI_INLINE vp vp_add_scalar(vp x, float c)
{
    EACH x.v[j] = x.v[j] + c;
    return x;
}

static TSI_INLINE vp vp_mul_scalar(vp x, float c)
{
    EACH x.v[j] = x.v[j] * c;
    return x;
}

static TSI_INLINE vp vp_relu(vp x, float c)
{
    (void)c;
    EACH x.v[j] = (vf)((vu)x.v[j] & ~(vu)(x.v[j] <= 0.0f));
    return x;
}

static TSI_INLINE vp vp_square(vp x, float c)
{
    (void)c;
    EACH x.v[j] = x.v[j] * x.v[j];
    return x;
}

/* ---- rows ------------------------------------------------------------------------------------ */

typedef vp (*pack_one)(vp x, float c);
typedef vp (*pack_two)(vp x, vp y, float c);

static TSI_INLINE void pack1_f32(const tsi_row *row, pack_one f)
{
    float *to = row->out, c = (float)number_of(row);
    const float *x = row->in[0];
    int64_t i = 0;
    for (; i + PACK <= row->count; i += PACK)
        store_f32(to + i, f(load_f32(x + i), c));
    int64_t rest = row->count - i;
    if (rest > 0) store_part_f32(to + i, f(part_f32(x + i, rest, 0.0f), c), rest);
}

/* An input that does not move is a pack of one number; that of an empty row is not there to read.
 */
static TSI_INLINE void pack2_f32(const tsi_row *row, pack_two f)
{
    if (row->count == 0) return;
    float *to = row->out, c = (float)number_of(row);
    const float *x = row->in[0], *y = row->in[1];
    int64_t i = 0, moves_x = row->step[0], moves_y = row->step[1];
    vp a = vp_set(*x), b = vp_set(*y);
    for (; i + PACK <= row->count; i += PACK) {
        if (moves_x) a = load_f32(x + i);
        if (moves_y) b = load_f32(y + i);
        store_f32(to + i, f(a, b, c));
    }
    int64_t rest = row->count - i;
    if (rest <= 0) return;
    if (moves_x) a = part_f32(x + i, rest, 0.0f);
    if (moves_y) b = part_f32(y + i, rest, 0.0f);
    store_part_f32(to + i, f(a, b, c), rest);
}
