/* SPDX-License-Identifier: Apache-2.0 */
/* attend_rows.h - rows of attention in bf16: scores in f32 to weights in bf16, once per instruction
 * set; included by the file of a tile, which defines before
 *
 *   vf, LANES, WIDE, RUN              a vector of LANES f32; WIDE vectors (even) are
 *                                     computed at once
 *   own_fma(a, b, c), own_max(a, b)   a b + c; the larger, or b where a is a NaN
 *   own_narrow(to, step, x)           a pack rounded to bf16, runs of RUN (of 4, or all of a pack)
 *                                     step apart
 *
 * Weights are rounded to bf16, whose numbers are 2^-8 apart, so their exponentials need no more
 * than 2^-18: 2^x = 2^n 2^r with n whole and |r| <= 1/2, and 2^r by a polynomial of degree 4
 * (fitted for the least largest relative error, 2.6e-6). Every step is done for WIDE vectors before
 * the next one begins, so that the chain of dependent steps fills the machine; the end of a row is
 * padded, so that an element has the same bits wherever it stands. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "backend/cpu/matrix/gemm.h"
#include "base/compiler.h"

typedef uint32_t vu __attribute__((vector_size(LANES * 4)));
typedef struct vp {
    vf v[WIDE];
} vp;
enum { PACK = WIDE * LANES };
#define EACH for (int j = 0; j < WIDE; j++)

static TSI_INLINE vf vf_set(float x)
{
    vf y = { 0 };
    for (int i = 0; i < LANES; i++)
        y[i] = x;
    return y;
}

static TSI_INLINE vp load(const float *x)
{
    vp y;
    EACH
    {
        vf one; /* a whole pack would go through memory */
        memcpy(&one, x + j * LANES, sizeof one);
        y.v[j] = one;
    }
    return y;
}

/* The last `count` numbers of a row, fewer than a pack, and zeros. */
static TSI_INLINE vp load_part(const float *x, int64_t count)
{
    float y[PACK] = { 0 };
    memcpy(y, x, (size_t)count * sizeof *x);
    return load(y);
}

/* The first `count` of a pack, as own_narrow places them. */
static TSI_INLINE void store_part(uint16_t *to, int64_t step, vp x, int64_t count)
{
    uint16_t y[PACK];
    own_narrow(y, RUN, x.v);
    for (int64_t i = 0; i < count; i++)
        to[i / RUN * step + i % RUN] = y[i];
}

/* 2^r for |r| <= 1/2, times the power in the low bits of `shifted`. */
static TSI_INLINE vp power_of_parts(vp r, vp shifted)
{
    vp square, high, p;
    EACH square.v[j] = r.v[j] * r.v[j];
    EACH high.v[j] = own_fma(r.v[j], vf_set(0.0559178591f), vf_set(0.240247443f));
    EACH p.v[j] = own_fma(r.v[j], vf_set(0.693121791f), vf_set(0.999999285f));
    EACH high.v[j] = own_fma(square.v[j], vf_set(0.00957010221f), high.v[j]);
    EACH p.v[j] = own_fma(high.v[j], square.v[j], p.v[j]);
    EACH p.v[j] = p.v[j] * (vf)((vu)shifted.v[j] << 23);
    return p;
}

/* Adding 1.5 * 2^23 rounds to a whole number; the low bits are then the biased exponent. */
#define MAGIC (12582912.0f + 127.0f)

/* 2^x for x < 127.5; 0 below -126.5 and for a NaN. */
static TSI_INLINE vp power(vp x)
{
    vp shifted;
    EACH x.v[j] = own_max(x.v[j], vf_set(-127.0f));
    EACH shifted.v[j] = x.v[j] + vf_set(MAGIC);
    EACH x.v[j] = x.v[j] - (shifted.v[j] - vf_set(MAGIC));
    return power_of_parts(x, shifted);
}

/* 2^(x factor - top) */
static TSI_INLINE vp weight(const float *x, vf factor, vf top)
{
    vp y = load(x);
    EACH y.v[j] = own_fma(y.v[j], factor, -top);
    return power(y);
}

/* The same for a whole top, |x factor| <= 32 and top <= 32: nothing is too small, and the fraction
 * does not depend on top. */
static TSI_INLINE vp weight_near(const float *x, vf factor, vf magic)
{
    vp y = load(x), shifted;
    EACH y.v[j] = y.v[j] * factor;
    EACH shifted.v[j] = y.v[j] + magic;
    EACH y.v[j] = y.v[j] - (shifted.v[j] - magic);
    return power_of_parts(y, shifted);
}

typedef vp (*weight_fn)(const float *x, vf factor, vf constant);

/* The short end of a row: its numbers, and their sum. */
static TSI_INLINE float weigh_end(uint16_t *to, int64_t step, const float *x, vf factor,
                                  vf constant, int64_t count, weight_fn f)
{
    float padded[PACK] = { 0 }, lane[PACK], total = 0;
    memcpy(padded, x, (size_t)count * sizeof *x);
    vp y = f(padded, factor, constant);
    store_part(to, step, y, count);
    memcpy(lane, y.v, sizeof lane);
    for (int64_t j = 0; j < count; j++)
        total += lane[j];
    return total;
}

static TSI_INLINE float weigh_by(uint16_t *to, int64_t step, const float *x, const float *numbers,
                                 int64_t count, weight_fn f)
{
    const vf factor = vf_set(numbers[0]), constant = vf_set(numbers[1]);
    vf sum[WIDE], all = vf_set(0);
    int64_t i = 0;
    EACH sum[j] = vf_set(0);
    for (; i + PACK <= count; i += PACK, to += PACK / RUN * step) {
        vp y = f(x + i, factor, constant);
        EACH sum[j] = sum[j] + y.v[j];
        own_narrow(to, step, y.v);
    }
    EACH all = all + sum[j];
    float total = 0;
    for (int j = 0; j < LANES; j++)
        total += all[j];
    if (i < count) total += weigh_end(to, step, x + i, factor, constant, count - i, f);
    return total;
}

/* See tsi_bf16_tile. */
static float weigh(uint16_t *to, int64_t step, const float *x, const float *factor_top,
                   int64_t count)
{
    return weigh_by(to, step, x, factor_top, count, weight);
}

static float weigh_near(uint16_t *to, int64_t step, const float *x, const float *factor_top,
                        int64_t count)
{
    const float numbers[] = { factor_top[0], MAGIC - factor_top[1] };
    return weigh_by(to, step, x, numbers, count, weight_near);
}

static TSI_INLINE void turn_back(vp *s, vp *dp, vp base, vp delta, vf factor)
{
    EACH s->v[j] = own_fma(s->v[j], factor, -base.v[j]);
    *s = power(*s);
    EACH dp->v[j] = s->v[j] * (dp->v[j] - delta.v[j]);
}

static void weigh_back(const tsi_weigh_back *w)
{
    int64_t i = 0, step = w->step;
    uint16_t *p = w->p, *ds = w->ds;
    const vf factor = vf_set(w->factor);
    for (; i + PACK <= w->count; i += PACK, p += PACK / RUN * step, ds += PACK / RUN * step) {
        vp s = load(w->s + i), dp = load(w->dp + i);
        turn_back(&s, &dp, load(w->base + i), load(w->delta + i), factor);
        own_narrow(p, step, s.v);
        own_narrow(ds, step, dp.v);
        own_narrow(w->row + i, RUN, dp.v);
    }
    if (i < w->count) {
        int64_t left = w->count - i;
        vp s = load_part(w->s + i, left), dp = load_part(w->dp + i, left);
        turn_back(&s, &dp, load_part(w->base + i, left), load_part(w->delta + i, left), factor);
        store_part(p, step, s, left);
        store_part(ds, step, dp, left);
        store_part(w->row + i, RUN, dp, left);
    }
}
