/* SPDX-License-Identifier: Apache-2.0 */
/* rows_fused.h - rotary positions and products of rows; a part of rows_body.h. */

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

#define TSI_ROWS_FUSED .rotate = rotate_row, .dot = dot_row, .add_scaled = add_scaled_row
