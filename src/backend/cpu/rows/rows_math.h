/* SPDX-License-Identifier: Apache-2.0 */
/* rows_math.h - elementary functions of packs (rows_pack.h): exponentials, logarithms and what is
 * made of them; a part of rows_body.h.
 *
 * Errors are below 4 units in the last place (below 2: exp and log; a test compares with the C
 * library), infinities and NaN as there; results below the normal range may be 0, but those of exp.
 * Polynomials and quotients were fitted for the least largest relative error on the intervals
 * named. Polynomials are added up in pairs: a fused product takes the register of its addend, so
 * one with a constant addend costs a copy of it, and the chain of dependent steps is shorter. */

typedef int32_t vs __attribute__((vector_size(VF_BYTES)));

/* x between low and high; a NaN stays one. */
static TSI_INLINE vf vf_clamp(vf x, float low, float high)
{
#if defined(__aarch64__)
    return (vf)vminq_f32(vmaxq_f32((float32x4_t)x, vdupq_n_f32(low)), vdupq_n_f32(high));
#elif defined(__AVX2__)
    return vf_min(vf_set(high), vf_max(vf_set(low), x)); /* a NaN gives the second */
#else
    x = vf_pick((vu)(x < low), vf_set(low), x);
    return vf_pick((vu)(x > high), vf_set(high), x);
#endif
}

/* x, but at least low; a NaN stays one. */
static TSI_INLINE vf vf_least(vf x, float low)
{
#if defined(__aarch64__)
    return (vf)vmaxq_f32((float32x4_t)x, vdupq_n_f32(low));
#elif defined(__AVX2__)
    return vf_max(vf_set(low), x);
#else
    return vf_pick((vu)(x < low), vf_set(low), x);
#endif
}

/* ---- exponentials ---------------------------------------------------------------------------- */

/* e^r with r in place of x, where sign x = n ln 2 + sign r and |r| <= ln(2)/2; the low bits of
 * `shifted` are n + 127. ln 2 rounded to f32 is wrong by 3e-9 of itself: far below what is left of
 * a difference of two f32, so `fine` with its rest only where x itself counts to the last bit.
 *   e^r = 1 + r + r^2 q(r) */
static TSI_INLINE vp vp_exp_near(vp x, float sign, bool fine, vp *shifted)
{
    /* Adding 1.5 * 2^23 rounds to a whole number; the low bits are then the biased exponent. */
    const vf magic = vf_set(12582912.0f + 127.0f), one = vf_set(1.0f);
    vp n, r, w, a, p;
    EACH shifted->v[j] = vf_fma(x.v[j], vf_set(sign * 1.44269504f), magic);
    EACH n.v[j] = shifted->v[j] - magic;
    if (fine) {
        EACH r.v[j] = vf_fma(n.v[j], vf_set(sign * -0.693145752f), x.v[j]); /* short: exact */
        EACH r.v[j] = vf_fma(n.v[j], vf_set(sign * -1.42860677e-06f), r.v[j]);
    } else {
        EACH r.v[j] = vf_fma(n.v[j], vf_set(sign * -0.693147182f), x.v[j]);
    }
    EACH w.v[j] = r.v[j] * r.v[j];
    EACH a.v[j] = vf_fma(r.v[j], vf_set(sign * 0.00831250101f), vf_set(0.0418903306f));
    EACH p.v[j] = vf_fma(r.v[j], vf_set(sign * 0.166671157f), vf_set(0.499992311f));
    EACH p.v[j] = vf_fma(a.v[j], w.v[j], p.v[j]);
    EACH a.v[j] = sign > 0 ? one + r.v[j] : one - r.v[j];
    EACH p.v[j] = vf_fma(p.v[j], w.v[j], a.v[j]);
    return p;
}

/* The power 2^n of a biased exponent in the low bits: 0 and infinity at the ends. */
static TSI_INLINE vf vf_power(vf shifted)
{
    return (vf)((vu)shifted << 23);
}

/* x <= 0: 0 below -87.6; a NaN stays one. What softmax and attention need. */
static TSI_INLINE vp vp_exp_below(vp x)
{
    vp shifted;
    EACH x.v[j] = vf_least(x.v[j], -88.0f);
    x = vp_exp_near(x, 1.0f, false, &shifted);
    EACH x.v[j] = x.v[j] * vf_power(shifted.v[j]);
    return x;
}

/* Over the whole range, rounded once below the normal range: 2^n in two factors. The polynomial is
 * one degree higher than above. */
static TSI_INLINE vp vp_exp(vp x, float c)
{
    (void)c;
    const vf magic = vf_set(12582912.0f);
    vp n, r, w, a, b;
    vs half[VP_WIDTH], rest[VP_WIDTH];
    EACH x.v[j] = vf_clamp(x.v[j], -104.0f, 89.0f);
    EACH n.v[j] = vf_fma(x.v[j], vf_set(1.44269504f), magic);
    EACH rest[j] = (vs)n.v[j] - 0x4B400000;
    EACH n.v[j] = n.v[j] - magic;
    EACH r.v[j] = vf_fma(n.v[j], vf_set(-0.693145752f), x.v[j]);
    EACH r.v[j] = vf_fma(n.v[j], vf_set(-1.42860677e-06f), r.v[j]);
    EACH half[j] = rest[j] >> 1;
    EACH rest[j] = rest[j] - half[j];
    EACH w.v[j] = r.v[j] * r.v[j];
    EACH a.v[j] = vf_fma(r.v[j], vf_set(0.00836941879f), vf_set(0.0416684568f));
    EACH a.v[j] = vf_fma(w.v[j], vf_set(0.00138131423f), a.v[j]);
    EACH b.v[j] = vf_fma(r.v[j], vf_set(0.166665148f), vf_set(0.499999931f));
    EACH b.v[j] = vf_fma(a.v[j], w.v[j], b.v[j]);
    EACH b.v[j] = vf_fma(b.v[j], w.v[j], r.v[j]) + 1.0f;
    EACH b.v[j] = b.v[j] * (vf)((half[j] + 127) << 23);
    EACH b.v[j] = b.v[j] * (vf)((rest[j] + 127) << 23);
    return b;
}

/* 1 + e^-x; a NaN stays one. */
static TSI_INLINE vp vp_logistic(vp x)
{
    vp shifted;
    EACH x.v[j] = vf_clamp(x.v[j], -89.0f, 88.0f);
    x = vp_exp_near(x, -1.0f, true, &shifted);
    EACH x.v[j] = vf_fma(x.v[j], vf_power(shifted.v[j]), vf_set(1.0f));
    return x;
}

static TSI_INLINE vp vp_sigmoid(vp x, float c)
{
    (void)c;
    x = vp_logistic(x);
    EACH x.v[j] = 1.0f / x.v[j];
    return x;
}

static TSI_INLINE vp vp_silu(vp x, float c)
{
    (void)c;
    vp y = vp_logistic(x);
    EACH y.v[j] = x.v[j] / y.v[j];
    return y;
}

/* With s = sigmoid(y): x s (1 + y (1 - s)). */
static TSI_INLINE vp vp_silu_backward(vp x, vp y, float c)
{
    (void)c;
    vp s = vp_logistic(y);
    EACH s.v[j] = 1.0f / s.v[j];
    EACH x.v[j] = x.v[j] * s.v[j];
    EACH s.v[j] = 1.0f - s.v[j];
    EACH s.v[j] = vf_fma(s.v[j], y.v[j], vf_set(1.0f));
    EACH x.v[j] = x.v[j] * s.v[j];
    return x;
}

/* m / (m + 2) with m = e^2x - 1 = 2^n (e^r - 1) + (2^n - 1), which loses nothing near 0. */
static TSI_INLINE vp vp_tanh(vp x, float c)
{
    (void)c;
    const vf magic = vf_set(12582912.0f + 127.0f);
    vp y, n, s, w, a, p;
    EACH y.v[j] = vf_clamp(x.v[j], -10.0f, 10.0f);
    EACH s.v[j] = vf_fma(y.v[j], vf_set(2.88539008f), magic);
    EACH n.v[j] = s.v[j] - magic;
    EACH y.v[j] = vf_fma(n.v[j], vf_set(-0.693147182f), y.v[j] + y.v[j]);
    EACH s.v[j] = vf_power(s.v[j]);
    EACH w.v[j] = y.v[j] * y.v[j];
    EACH a.v[j] = vf_fma(y.v[j], vf_set(0.00836941879f), vf_set(0.0416684568f));
    EACH a.v[j] = vf_fma(w.v[j], vf_set(0.00138131423f), a.v[j]);
    EACH p.v[j] = vf_fma(y.v[j], vf_set(0.166665148f), vf_set(0.499999931f));
    EACH p.v[j] = vf_fma(a.v[j], w.v[j], p.v[j]);
    EACH p.v[j] = vf_fma(p.v[j], w.v[j], y.v[j]);
    EACH p.v[j] = vf_fma(p.v[j], s.v[j], s.v[j] - 1.0f);
    EACH p.v[j] = p.v[j] / (p.v[j] + 2.0f);
    EACH p.v[j] = vf_sign(p.v[j], x.v[j]); /* -0 */
    return p;
}

/* ---- the error function and the normal distribution ------------------------------------------ */

/* x P(x^2) below 1, else 1 - e^-L(x) with L = -ln(1 - erf); from 4 on it rounds to 1. */
static TSI_INLINE vp vp_erf(vp x, float c)
{
    (void)c;
    vp z, w, p, q, l, s;
    EACH z.v[j] = x.v[j] * x.v[j];
    EACH p.v[j] = vf_fma(vf_set(-9.68014311e-06f), z.v[j], vf_set(0.000112705468f));
    EACH p.v[j] = vf_fma(p.v[j], z.v[j], vf_set(-0.000848471177f));
    EACH p.v[j] = vf_fma(p.v[j], z.v[j], vf_set(0.0052210749f));
    EACH p.v[j] = vf_fma(p.v[j], z.v[j], vf_set(-0.0268654458f));
    EACH p.v[j] = vf_fma(p.v[j], z.v[j], vf_set(0.112837827f));
    EACH p.v[j] = vf_fma(p.v[j], z.v[j], vf_set(-0.376126385f));
    EACH p.v[j] = vf_fma(p.v[j] * z.v[j], x.v[j], x.v[j] * 1.12837917f);
    EACH s.v[j] = vf_min(vf_abs(x.v[j]), vf_set(4.0f));
    EACH w.v[j] = s.v[j] * s.v[j];
    EACH l.v[j] = vf_fma(s.v[j], vf_set(-0.000441472627f), vf_set(0.00420528464f));
    EACH l.v[j] = vf_fma(w.v[j], vf_set(2.16976119e-05f), l.v[j]);
    EACH q.v[j] = vf_fma(s.v[j], vf_set(-0.0252103395f), vf_set(0.108422099f));
    EACH l.v[j] = vf_fma(l.v[j], w.v[j], q.v[j]);
    EACH l.v[j] = vf_fma(l.v[j], s.v[j], vf_set(0.633216397f));
    EACH l.v[j] = vf_fma(l.v[j], s.v[j], vf_set(1.12958031f));
    EACH l.v[j] = vf_fma(l.v[j], s.v[j], vf_set(-0.00018846794f));
    l = vp_exp_near(l, -1.0f, false, &s);
    EACH l.v[j] = vf_sign(1.0f - l.v[j] * vf_power(s.v[j]), x.v[j]);
    EACH l.v[j] = vf_pick((vu)(vf_abs(x.v[j]) >= 1.0f), l.v[j], p.v[j]); /* a NaN: p */
    return l;
}

/* 1 + erf(x / sqrt(2)), twice the normal distribution: 1 + x P(z) / Q(z) with z = x^2, up to where
 * the quotient rounds to 1; wrong by 3e-7 at most. */
static TSI_INLINE vp vp_normal(vp x)
{
    vp z, w, p, q, a;
    EACH x.v[j] = vf_clamp(x.v[j], -5.50000954f, 5.50000954f);
    EACH z.v[j] = x.v[j] * x.v[j];
    EACH w.v[j] = z.v[j] * z.v[j];
    EACH p.v[j] = vf_fma(z.v[j], vf_set(4.53000801e-08f), vf_set(1.25884262e-05f));
    EACH a.v[j] = vf_fma(z.v[j], vf_set(0.000332744909f), vf_set(0.00932416692f));
    EACH p.v[j] = vf_fma(p.v[j], w.v[j], a.v[j]);
    EACH a.v[j] = vf_fma(z.v[j], vf_set(0.0673110858f), vf_set(0.797884524f));
    EACH p.v[j] = vf_fma(p.v[j], w.v[j], a.v[j]);
    EACH q.v[j] = vf_fma(z.v[j], vf_set(1.19028937e-06f), vf_set(7.26409125e-05f));
    EACH a.v[j] = vf_fma(z.v[j], vf_set(0.00187089317f), vf_set(0.0285249278f));
    EACH q.v[j] = vf_fma(q.v[j], w.v[j], a.v[j]);
    EACH a.v[j] = vf_fma(z.v[j], vf_set(0.251028299f), vf_set(1.0f));
    EACH q.v[j] = vf_fma(q.v[j], w.v[j], a.v[j]);
    EACH x.v[j] = vf_least(x.v[j] * p.v[j] / q.v[j] + 1.0f, 0.0f);
    return x;
}

static TSI_INLINE vp vp_gelu(vp x, float c)
{
    (void)c;
    vp y = vp_normal(x);
    EACH y.v[j] = x.v[j] * 0.5f * y.v[j];
    return y;
}

static TSI_INLINE vp vp_gelu_backward(vp x, vp y, float c)
{
    (void)c;
    vp cdf = vp_normal(y), pdf;
    EACH pdf.v[j] = y.v[j] * y.v[j] * -0.5f;
    pdf = vp_exp_below(pdf);
    EACH pdf.v[j] = y.v[j] * (pdf.v[j] * 0.398942280f);
    EACH x.v[j] = x.v[j] * vf_fma(cdf.v[j], vf_set(0.5f), pdf.v[j]);
    return x;
}

/* In its tanh form: 0.5 (1 + tanh u) is sigmoid(2 u), with u = sqrt(2/pi) (x + 0.044715 x^3). */
static TSI_INLINE vp vp_gelu_tanh(vp x, float c)
{
    (void)c;
    vp y;
    EACH y.v[j] = vf_fma(x.v[j] * x.v[j], vf_set(0.0713548128f), vf_set(1.59576912f)) * x.v[j];
    y = vp_logistic(y);
    EACH y.v[j] = x.v[j] / y.v[j];
    return y;
}

/* x (s + y s (1 - s) (2 u)'); beyond 30 the slope is 0 or 1, and no product leaves the range. */
static TSI_INLINE vp vp_gelu_tanh_backward(vp x, vp y, float c)
{
    (void)c;
    vp z, s;
    EACH y.v[j] = vf_clamp(y.v[j], -30.0f, 30.0f);
    EACH z.v[j] = y.v[j] * y.v[j];
    EACH s.v[j] = vf_fma(z.v[j], vf_set(0.0713548128f), vf_set(1.59576912f)) * y.v[j];
    s = vp_logistic(s);
    EACH s.v[j] = 1.0f / s.v[j];
    EACH z.v[j] = vf_fma(z.v[j], vf_set(0.214064438f), vf_set(1.59576912f)) * y.v[j];
    EACH z.v[j] = vf_fma(z.v[j], 1.0f - s.v[j], vf_set(1.0f)) * s.v[j];
    EACH x.v[j] = x.v[j] * z.v[j];
    return x;
}

/* silu(x) y */
static TSI_INLINE vp vp_swiglu(vp x, vp y, float c)
{
    x = vp_silu(x, c);
    EACH x.v[j] = x.v[j] * y.v[j];
    return x;
}

/* x z silu'(y) */
static TSI_INLINE vp vp_swiglu_backward(vp x, vp y, vp z, float c)
{
    EACH x.v[j] = x.v[j] * z.v[j];
    return vp_silu_backward(x, y, c);
}

/* ---- logarithms ------------------------------------------------------------------------------ */

/* x = 2^e m with m in [sqrt(1/2), sqrt(2)), f = m - 1, ln m = f - f^2/2 + f^3 P(f). */
static TSI_INLINE vp vp_log(vp x, float c)
{
    (void)c;
    vp e, f, z, p, q, r;
    EACH
    {
        vu tiny = (vu)(x.v[j] < 0x1p-126f); /* below the normal range */
        vu bits = (vu)vf_pick(tiny, x.v[j] * 0x1p23f, x.v[j]);
        vu biased = (bits + (0x3F800000u - 0x3F3504F3u)) >> 23;
        e.v[j] = __builtin_convertvector((vs)biased, vf) - 127.0f;
        e.v[j] = e.v[j] - (vf)((vu)vf_set(23.0f) & tiny);
        f.v[j] = (vf)(bits - (biased << 23) + 0x3F800000u) - 1.0f;
    }
    EACH z.v[j] = f.v[j] * f.v[j];
    EACH p.v[j] = vf_fma(f.v[j], vf_set(-0.117898341f), vf_set(0.118729312f));
    EACH p.v[j] = vf_fma(z.v[j], vf_set(0.0691549157f), p.v[j]);
    EACH q.v[j] = vf_fma(f.v[j], vf_set(-0.123843406f), vf_set(0.142186638f));
    EACH p.v[j] = vf_fma(p.v[j], z.v[j], q.v[j]);
    EACH q.v[j] = vf_fma(f.v[j], vf_set(-0.166692515f), vf_set(0.200022263f));
    EACH p.v[j] = vf_fma(p.v[j], z.v[j], q.v[j]);
    EACH q.v[j] = vf_fma(f.v[j], vf_set(-0.249999866f), vf_set(0.333333104f));
    EACH p.v[j] = vf_fma(p.v[j], z.v[j], q.v[j]);
    EACH p.v[j] = vf_fma(p.v[j] * f.v[j], z.v[j], z.v[j] * -0.5f);
    EACH p.v[j] = vf_fma(e.v[j], vf_set(1.42860677e-06f), p.v[j]);
    EACH r.v[j] = vf_fma(e.v[j], vf_set(0.693145752f), f.v[j] + p.v[j]);
    EACH r.v[j] = vf_pick((vu)(x.v[j] < INFINITY), r.v[j], x.v[j]); /* infinity, or a NaN */
    EACH p.v[j] = vf_pick((vu)(x.v[j] == 0.0f), vf_set(-INFINITY), vf_set(NAN));
    EACH r.v[j] = vf_pick((vu)(x.v[j] > 0.0f), r.v[j], p.v[j]);
    return r;
}

/* ---- near one -------------------------------------------------------------------------------- */

/* e^x - 1 = 2^n (e^r - 1) + (2^n - 1), halved until the end so that 2^n is a number. */
static TSI_INLINE vp vp_expm1(vp x, float c)
{
    (void)c;
    const vf magic = vf_set(12582912.0f + 127.0f);
    vp s, n, r, w, a, p;
    EACH r.v[j] = vf_clamp(x.v[j], -20.0f, 89.0f);
    EACH s.v[j] = vf_fma(r.v[j], vf_set(1.44269504f), magic);
    EACH n.v[j] = s.v[j] - magic;
    EACH r.v[j] = vf_fma(n.v[j], vf_set(-0.693145752f), r.v[j]);
    EACH r.v[j] = vf_fma(n.v[j], vf_set(-1.42860677e-06f), r.v[j]);
    EACH s.v[j] = (vf)(((vu)s.v[j] - 1u) << 23);
    EACH w.v[j] = r.v[j] * r.v[j];
    EACH a.v[j] = vf_fma(r.v[j], vf_set(0.00836941879f), vf_set(0.0416684568f));
    EACH a.v[j] = vf_fma(w.v[j], vf_set(0.00138131423f), a.v[j]);
    EACH p.v[j] = vf_fma(r.v[j], vf_set(0.166665148f), vf_set(0.499999931f));
    EACH p.v[j] = vf_fma(a.v[j], w.v[j], p.v[j]);
    EACH p.v[j] = vf_fma(p.v[j], w.v[j], r.v[j]);
    EACH p.v[j] = vf_fma(p.v[j], s.v[j], s.v[j] - 0.5f);
    EACH p.v[j] = vf_sign(p.v[j] + p.v[j], x.v[j]); /* -0 */
    return p;
}

/* x, or c (e^x - 1) unless it is positive. */
static TSI_INLINE vp vp_elu(vp x, float c)
{
    vp y = vp_expm1(x, 0.0f);
    EACH y.v[j] = vf_pick((vu)(x.v[j] > 0.0f), x.v[j], y.v[j] * c);
    return y;
}

/* log(u) with u = 1 + x rounded, and what was rounded off over u. */
static TSI_INLINE vp vp_log1p(vp x, float c)
{
    vp u, rest, y;
    EACH u.v[j] = x.v[j] + 1.0f;
    EACH rest.v[j] = (x.v[j] - (u.v[j] - 1.0f)) / u.v[j];
    EACH rest.v[j] =
        (vf)((vu)rest.v[j] & (vu)(u.v[j] > 0.0f) & (vu)(u.v[j] < INFINITY)); /* not 0 / 0 */
    y = vp_log(u, c);
    EACH y.v[j] = vf_sign(y.v[j] + rest.v[j], x.v[j]); /* -0 */
    return y;
}

/* max(x, 0) + log(1 + e^-|x|) */
static TSI_INLINE vp vp_softplus(vp x, float c)
{
    vp y;
    EACH y.v[j] = -vf_abs(x.v[j]);
    y = vp_log1p(vp_exp(y, c), c);
    EACH y.v[j] = y.v[j] + vf_least(x.v[j], 0.0f);
    return y;
}

static TSI_INLINE vp vp_log_sigmoid(vp x, float c)
{
    EACH x.v[j] = -x.v[j];
    x = vp_softplus(x, c);
    EACH x.v[j] = -x.v[j];
    return x;
}

/* ---- rows of three inputs -------------------------------------------------------------------- */

typedef vp (*pack_three)(vp x, vp y, vp z, float c);

static TSI_INLINE void pack3_f32(const tsi_row *row, pack_three f)
{
    if (row->count == 0) return;
    float *to = row->out, c = (float)number_of(row);
    vp v[3];
    for (int k = 0; k < 3; k++)
        v[k] = vp_set(*(const float *)row->in[k]);
    int64_t i = 0;
    for (; i + PACK <= row->count; i += PACK) {
        for (int k = 0; k < 3; k++)
            if (row->step[k]) v[k] = load_f32((const float *)row->in[k] + i);
        store_f32(to + i, f(v[0], v[1], v[2], c));
    }
    int64_t rest = row->count - i;
    if (rest <= 0) return;
    for (int k = 0; k < 3; k++)
        if (row->step[k]) v[k] = part_f32((const float *)row->in[k] + i, rest, 0.0f);
    store_part_f32(to + i, f(v[0], v[1], v[2], c), rest);
}

static TSI_INLINE void pack3_bf16(const tsi_row *row, pack_three f)
{
    if (row->count == 0) return;
    uint16_t *to = row->out;
    float c = (float)number_of(row);
    vp v[3];
    for (int k = 0; k < 3; k++)
        v[k] = vp_set(tsi_f32_of_bf16(*(const uint16_t *)row->in[k]));
    int64_t i = 0;
    for (; i + PACK <= row->count; i += PACK) {
        for (int k = 0; k < 3; k++)
            if (row->step[k]) v[k] = load_bf16((const uint16_t *)row->in[k] + i);
        store_bf16(to + i, f(v[0], v[1], v[2], c));
    }
    int64_t rest = row->count - i;
    if (rest <= 0) return;
    for (int k = 0; k < 3; k++)
        if (row->step[k]) v[k] = part_bf16((const uint16_t *)row->in[k] + i, rest);
    store_part_bf16(to + i, f(v[0], v[1], v[2], c), rest);
}
