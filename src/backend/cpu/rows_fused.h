/* SPDX-License-Identifier: Apache-2.0 */
/* rows_fused.h - rows of softmax, norms and rotary positions; a part of rows_body.h.
 *
 * Exponentials are computed a block at a time into the first-level cache and added up from there:
 * two short loops the compiler makes good vector code of. */

static TSI_INLINE void exp_block(float *restrict to, const float *x, float top, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = tsi_v_exp_below(x[i] - top);
}

static double exp_sum(const float *x, float top, int64_t count)
{
    float powers[TSI_SUM_BLOCK];
    double total = 0;
    for (int64_t at = 0; at < count; at += TSI_SUM_BLOCK) {
        int64_t part = count - at < TSI_SUM_BLOCK ? count - at : TSI_SUM_BLOCK;
        exp_block(powers, x + at, top, part);
        total += (double)lanes_f32(powers, part, 0.0f, add_f32_, add_f32_);
    }
    return total;
}

static double exp_store(float *to, const float *x, float top, int64_t count)
{
    double total = 0;
    for (int64_t at = 0; at < count; at += TSI_SUM_BLOCK) {
        int64_t part = count - at < TSI_SUM_BLOCK ? count - at : TSI_SUM_BLOCK;
        TSI_INDEPENDENT
        for (int64_t i = at; i < at + part; i++)
            to[i] = tsi_v_exp_below(x[i] - top);
        total += (double)lanes_f32(to + at, part, 0.0f, add_f32_, add_f32_);
    }
    return total;
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
    TSI_INDEPENDENT
    for (int64_t i = 0; i < count; i++)
        to[i] = tsi_v_exp_below(x[i] - top) * factor;
}

static double exp_scaled(float *to, const float *x, float scale, float top, int64_t count)
{
    double total = 0;
    for (int64_t at = 0; at < count; at += TSI_SUM_BLOCK) {
        int64_t part = count - at < TSI_SUM_BLOCK ? count - at : TSI_SUM_BLOCK;
        TSI_INDEPENDENT
        for (int64_t i = at; i < at + part; i++)
            to[i] = tsi_v_exp_below(x[i] * scale - top);
        total += (double)lanes_f32(to + at, part, 0.0f, add_f32_, add_f32_);
    }
    return total;
}

static void attend_back(float *restrict p, float *restrict dp, const float *numbers, int64_t count)
{
    const float scale = numbers[0], lse = numbers[1], delta = numbers[2];
    for (int64_t i = 0; i < count; i++) {
        float weight = tsi_v_exp_below(p[i] * scale - lse);
        p[i] = weight;
        dp[i] = weight * (dp[i] - delta) * scale;
    }
}

static double squares_about(const float *x, float mean, int64_t count)
{
    float apart[TSI_SUM_BLOCK];
    double total = 0;
    for (int64_t at = 0; at < count; at += TSI_SUM_BLOCK) {
        int64_t part = count - at < TSI_SUM_BLOCK ? count - at : TSI_SUM_BLOCK;
        for (int64_t i = 0; i < part; i++)
            apart[i] = x[at + i] - mean;
        total += (double)lanes_f32(apart, part, 0.0f, add_square_f32_, add_f32_);
    }
    return total;
}

static void normalise_row(float *to, const float *x, const float *const *weight_bias, float mean,
                          float scale, int64_t count)
{
    const float *w = weight_bias[0], *b = weight_bias[1];
    if (w && !b && mean == 0.0f) {
        TSI_INDEPENDENT
        for (int64_t i = 0; i < count; i++)
            to[i] = x[i] * scale * w[i];
    } else if (w && b) {
        TSI_INDEPENDENT
        for (int64_t i = 0; i < count; i++)
            to[i] = (x[i] - mean) * scale * w[i] + b[i];
    } else if (w) {
        TSI_INDEPENDENT
        for (int64_t i = 0; i < count; i++)
            to[i] = (x[i] - mean) * scale * w[i];
    } else {
        TSI_INDEPENDENT
        for (int64_t i = 0; i < count; i++)
            to[i] = (x[i] - mean) * scale + (b ? b[i] : 0.0f);
    }
}

static void add_four(float *to, const float *const *rows, int64_t count)
{
    const float *a = rows[0], *b = rows[1], *c = rows[2], *d = rows[3];
    TSI_INDEPENDENT
    for (int64_t i = 0; i < count; i++)
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
        total += (double)lanes_f32(lane, LANES, 0.0f, add_f32_, add_f32_);
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
    .squares_about = squares_about, .normalise = normalise_row, .rotate = rotate_row,              \
    .add_four = add_four, .dot = dot_row, .add_scaled = add_scaled_row
