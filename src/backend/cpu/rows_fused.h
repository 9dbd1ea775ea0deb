/* SPDX-License-Identifier: Apache-2.0 */
/* rows_fused.h - rows of softmax, norms and rotary positions; a part of rows_body.h.
 *
 * Exponentials are computed a block at a time into the first-level cache and added up from there.
 */

/* e^(x scale - top) */
static TSI_INLINE void exp_row(float *to, const float *x, float scale, float top, int64_t count)
{
    int64_t i = 0;
    for (; i + PACK <= count; i += PACK) {
        vp y = load_f32(x + i);
        TSI_PREFETCH(x + i + count);
        EACH y.v[j] = y.v[j] * scale - top;
        store_f32(to + i, vp_exp_below(y));
    }
    if (i < count) {
        vp y = part_f32(x + i, count - i, 0.0f);
        EACH y.v[j] = y.v[j] * scale - top;
        store_part_f32(to + i, vp_exp_below(y), count - i);
    }
}

/* Into `to`, or nowhere; and the sum. */
static TSI_INLINE double exp_blocks(float *to, const float *x, float scale, float top,
                                    int64_t count)
{
    float powers[TSI_SUM_BLOCK];
    double total = 0;
    for (int64_t at = 0; at < count; at += TSI_SUM_BLOCK) {
        int64_t part = count - at < TSI_SUM_BLOCK ? count - at : TSI_SUM_BLOCK;
        float *here = to ? to + at : powers;
        exp_row(here, x + at, scale, top, part);
        total += (double)lanes_f32(here, part, 0.0f, add_f32_, add_f32_);
    }
    return total;
}

static double exp_sum(const float *x, float top, int64_t count)
{
    return exp_blocks(NULL, x, 1.0f, top, count);
}

static double exp_store(float *to, const float *x, float top, int64_t count)
{
    return exp_blocks(to, x, 1.0f, top, count);
}

static double exp_scaled(float *to, const float *x, float scale, float top, int64_t count)
{
    return exp_blocks(to, x, scale, top, count);
}

static void scale_row(float *to, const float *x, float factor, int64_t count)
{
    TSI_INDEPENDENT
    for (int64_t i = 0; i < count; i++)
        to[i] = x[i] * factor;
}

static void shift_row(float *to, const float *x, float top, float add, int64_t count)
{
    TSI_INDEPENDENT
    for (int64_t i = 0; i < count; i++)
        to[i] = (x[i] - top) + add;
}

static void exp_scale(float *to, const float *x, float top, float factor, int64_t count)
{
    for (int64_t i = 0; i < count; i += PACK) {
        int64_t left = count - i;
        vp y = left >= PACK ? load_f32(x + i) : part_f32(x + i, left, 0.0f);
        EACH y.v[j] = y.v[j] - top;
        y = vp_exp_below(y);
        EACH y.v[j] = y.v[j] * factor;
        if (left >= PACK)
            store_f32(to + i, y);
        else
            store_part_f32(to + i, y, left);
    }
}

static void attend_back(float *restrict p, float *restrict dp, const float *numbers, int64_t count)
{
    const float scale = numbers[0], lse = numbers[1], delta = numbers[2];
    for (int64_t i = 0; i < count; i += PACK) {
        int64_t left = count - i;
        vp w = left >= PACK ? load_f32(p + i) : part_f32(p + i, left, 0.0f);
        vp d = left >= PACK ? load_f32(dp + i) : part_f32(dp + i, left, 0.0f);
        EACH w.v[j] = w.v[j] * scale - lse;
        w = vp_exp_below(w);
        EACH d.v[j] = w.v[j] * (d.v[j] - delta) * scale;
        if (left >= PACK) {
            store_f32(p + i, w);
            store_f32(dp + i, d);
        } else {
            store_part_f32(p + i, w, left);
            store_part_f32(dp + i, d, left);
        }
    }
}

static double squares_about(const float *x, float mean, int64_t count)
{
    double total = 0;
    for (int64_t at = 0; at < count; at += TSI_SUM_BLOCK) {
        int64_t part = count - at < TSI_SUM_BLOCK ? count - at : TSI_SUM_BLOCK, i = 0;
        float lane[LANES] = { 0 };
        for (; i + LANES <= part; i += LANES)
            for (int j = 0; j < LANES; j++) {
                float apart = x[at + i + j] - mean;
                lane[j] = tsi_v_fma(apart, apart, lane[j]);
            }
        for (int j = 0; i < part; i++, j++)
            lane[j] = add_square_f32_(lane[j], x[at + i] - mean);
        total += (double)fold_lanes(lane, add_f32_);
    }
    return total;
}

static TSI_INLINE vp normalised(vp x, const float *w, const float *b, float mean, float scale)
{
    EACH x.v[j] = (x.v[j] - mean) * scale;
    if (w) {
        vp weight = load_f32(w);
        EACH x.v[j] = x.v[j] * weight.v[j];
    }
    if (b) {
        vp bias = load_f32(b);
        EACH x.v[j] = x.v[j] + bias.v[j];
    }
    return x;
}

/* What follows in memory is the next row: it is fetched while this one is computed. */
static void normalise_row(float *to, const float *x, const float *const *weight_bias, float mean,
                          float scale, int64_t count)
{
    const float *w = weight_bias[0], *b = weight_bias[1];
    int64_t i = 0;
    if (w && !b && mean == 0.0f) {
        for (; i + PACK <= count; i += PACK) {
            vp y = load_f32(x + i), weight = load_f32(w + i);
            TSI_PREFETCH(x + i + count);
            EACH y.v[j] = y.v[j] * scale * weight.v[j];
            store_f32(to + i, y);
        }
    }
    for (; i + PACK <= count; i += PACK) {
        vp y = load_f32(x + i);
        TSI_PREFETCH(x + i + count);
        store_f32(to + i, normalised(y, w ? w + i : NULL, b ? b + i : NULL, mean, scale));
    }
    for (; i < count; i++) {
        float y = (x[i] - mean) * scale * (w ? w[i] : 1.0f);
        to[i] = b ? y + b[i] : y;
    }
}

static void normalise_row_bf16(uint16_t *to, const uint16_t *x, const float *const *weight_bias,
                               float mean, float scale, int64_t count)
{
    const float *w = weight_bias[0], *b = weight_bias[1];
    int64_t i = 0;
    if (w && !b && mean == 0.0f) {
        for (; i + PACK <= count; i += PACK) {
            vp y = load_bf16(x + i), weight = load_f32(w + i);
            TSI_PREFETCH(x + i + count);
            EACH y.v[j] = y.v[j] * scale * weight.v[j];
            store_bf16(to + i, y);
        }
    }
    for (; i + PACK <= count; i += PACK)
        store_bf16(to + i,
                   normalised(load_bf16(x + i), w ? w + i : NULL, b ? b + i : NULL, mean, scale));
    for (; i < count; i++) {
        float y = (tsi_f32_of_bf16(x[i]) - mean) * scale * (w ? w[i] : 1.0f);
        to[i] = tsi_bf16_of_f32(b ? y + b[i] : y);
    }
}

static void add_four(float *to, const float *const *rows, int64_t count)
{
    const float *a = rows[0], *b = rows[1], *c = rows[2], *d = rows[3];
    int64_t i = 0;
    for (; i + PACK <= count; i += PACK) {
        vp y = load_f32(to + i), r0 = load_f32(a + i), r1 = load_f32(b + i);
        vp r2 = load_f32(c + i), r3 = load_f32(d + i);
        TSI_PREFETCH(a + i + AHEAD);
        TSI_PREFETCH(b + i + AHEAD);
        TSI_PREFETCH(c + i + AHEAD);
        TSI_PREFETCH(d + i + AHEAD);
        EACH y.v[j] = y.v[j] + ((r0.v[j] + r1.v[j]) + (r2.v[j] + r3.v[j]));
        store_f32(to + i, y);
    }
    for (; i < count; i++)
        to[i] += (a[i] + b[i]) + (c[i] + d[i]);
}

static void rotate_row(float *const *to, const float *const *from, const float *const *cos_sin,
                       float sign, int64_t count)
{
    float *low = to[0], *high = to[1];
    const float *a = from[0], *b = from[1], *c = cos_sin[0], *s = cos_sin[1];
    TSI_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        float x = a[i], y = b[i], sine = sign * s[i];
        low[i] = x * c[i] - y * sine;
        high[i] = y * c[i] + x * sine;
    }
}

/* Sixteen lanes of fused products, a block at a time. */
static double dot_row(const float *x, const float *y, int64_t count)
{
    double total = 0;
    for (int64_t at = 0; at < count; at += TSI_SUM_BLOCK) {
        int64_t part = count - at < TSI_SUM_BLOCK ? count - at : TSI_SUM_BLOCK, i = 0;
        float lane[LANES] = { 0 };
        for (; i + LANES <= part; i += LANES)
            for (int j = 0; j < LANES; j++)
                lane[j] = tsi_v_fma(x[at + i + j], y[at + i + j], lane[j]);
        for (int j = 0; i < part; i++, j++)
            lane[j] = tsi_v_fma(x[at + i], y[at + i], lane[j]);
        total += (double)fold_lanes(lane, add_f32_);
    }
    return total;
}

static void add_scaled_row(float *to, const float *x, float factor, int64_t count)
{
    TSI_INDEPENDENT
    for (int64_t i = 0; i < count; i++)
        to[i] = tsi_v_fma(factor, x[i], to[i]);
}

#define TSI_ROWS_FUSED                                                                             \
    .exp_sum = exp_sum, .exp_store = exp_store, .scale = scale_row, .shift = shift_row,            \
    .exp_scale = exp_scale, .exp_scaled = exp_scaled, .attend_back = attend_back,                  \
    .squares_about = squares_about, .normalise = normalise_row,                                    \
    .normalise_bf16 = normalise_row_bf16, .rotate = rotate_row, .add_four = add_four,              \
    .dot = dot_row, .add_scaled = add_scaled_row
