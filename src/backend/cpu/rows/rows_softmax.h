/* SPDX-License-Identifier: Apache-2.0 */
/* rows_softmax.h - rows of softmax, its relatives and attention, of f32 and bf16; a part of
 * rows_body.h.
 *
 * Exponentials are added up while they are in registers: element i of a block of TSI_SUM_BLOCK
 * belongs to lane i % SUM_LANES, whatever the width of the machine's vectors, lanes are folded by
 * halves and blocks added up in double. So the bits of a sum depend on its length alone. What
 * follows a row in memory is the next one: it is fetched while this one is computed. */

enum { SUM_LANES = 16, SUM_VECTORS = SUM_LANES / VF_LANES };

/* How a row lies in memory; what is beyond its end is `fill`. */
static TSI_INLINE vp load_here(const float *x, int64_t left, float fill)
{
    return left >= PACK ? load_f32(x) : part_f32(x, left, fill);
}

static TSI_INLINE void store_here(float *to, vp x, int64_t left)
{
    if (left >= PACK)
        store_f32(to, x);
    else
        store_part_f32(to, x, left);
}

static TSI_INLINE void store_here_bf16(uint16_t *to, vp x, int64_t left)
{
    if (left >= PACK)
        store_bf16(to, x);
    else
        store_part_bf16(to, x, left);
}

static TSI_INLINE vp load_here_bf16(const uint16_t *x, int64_t left, float fill)
{
    if (left >= PACK) return load_bf16(x);
    uint16_t y[PACK];
    for (int i = 0; i < PACK; i++)
        y[i] = (uint16_t)(tsi_bits_of_f32(fill) >> 16);
    memcpy(y, x, (size_t)left * sizeof *x);
    return load_bf16(y);
}

typedef struct sum_lanes {
    vf v[SUM_VECTORS];
} sum_lanes;

static TSI_INLINE void lanes_take(sum_lanes *sum, vp x)
{
    EACH sum->v[j % SUM_VECTORS] = sum->v[j % SUM_VECTORS] + x.v[j];
}

static TSI_INLINE float lanes_fold(const sum_lanes *sum)
{
    float lane[SUM_LANES];
    memcpy(lane, sum, sizeof lane);
    for (int half = SUM_LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++)
            lane[j] = lane[j] + lane[j + half];
    return lane[0];
}

/* The largest element, from the bits: those of numbers from 0 on are ordered as they are, those
 * below 0 the other way round. A NaN may be passed over, since the sum of exponentials will be one.
 */
static float top_bf16(const uint16_t *x, int64_t count)
{
    enum { MANY = 64 };
    int16_t high[MANY], low[MANY];
    for (int j = 0; j < MANY; j++) {
        high[j] = INT16_MIN;
        low[j] = -128; /* minus infinity */
    }
    int64_t i = 0;
    for (; i + MANY <= count; i += MANY)
        for (int j = 0; j < MANY; j++) {
            int16_t y = (int16_t)x[i + j];
            high[j] = y > high[j] ? y : high[j];
            low[j] = y < low[j] ? y : low[j];
        }
    for (int j = 0; i < count; i++, j++) {
        int16_t y = (int16_t)x[i];
        high[j] = y > high[j] ? y : high[j];
        low[j] = y < low[j] ? y : low[j];
    }
    for (int j = 1; j < MANY; j++) {
        high[0] = high[j] > high[0] ? high[j] : high[0];
        low[0] = low[j] < low[0] ? low[j] : low[0];
    }
    return tsi_f32_of_bf16((uint16_t)(high[0] >= 0 ? high[0] : low[0]));
}

/* Every f32 row of exponentials: of x, or of bf16 h; into `to`, or nowhere; x scale - top <= 0. */
typedef struct exp_job {
    float *to;
    const float *x;
    const uint16_t *h;
    float scale, top;
    bool scaled;
} exp_job;

static TSI_INLINE vp exp_pack(const exp_job *job, int64_t i, int64_t left)
{
    vp y = job->h ? load_here_bf16(job->h + i, left, -INFINITY)
                  : load_here(job->x + i, left, -INFINITY);
    if (job->scaled)
        EACH y.v[j] = vf_fma(y.v[j], vf_set(job->scale), vf_set(-job->top));
    else
        EACH y.v[j] = y.v[j] - job->top;
    y = vp_exp_below(y);
    if (job->to) store_here(job->to + i, y, left);
    return y;
}

static TSI_INLINE double exp_blocks(const exp_job *job, int64_t count)
{
    double total = 0;
    for (int64_t at = 0; at < count; at += TSI_SUM_BLOCK) {
        int64_t end = count - at < TSI_SUM_BLOCK ? count : at + TSI_SUM_BLOCK, i = at;
        sum_lanes sum;
        for (int j = 0; j < SUM_VECTORS; j++)
            sum.v[j] = vf_set(0.0f);
        for (; i + PACK <= end; i += PACK) {
            if (job->h)
                TSI_PREFETCH(job->h + i + count);
            else
                TSI_PREFETCH(job->x + i + count);
            lanes_take(&sum, exp_pack(job, i, PACK));
        }
        if (i < end) lanes_take(&sum, exp_pack(job, i, end - i));
        total += (double)lanes_fold(&sum);
    }
    return total;
}

static double exp_sum(const float *x, float top, int64_t count)
{
    return exp_blocks(&(exp_job){ .x = x, .top = top }, count);
}

static double exp_store(float *to, const float *x, float top, int64_t count)
{
    return exp_blocks(&(exp_job){ .to = to, .x = x, .top = top }, count);
}

static double exp_scaled(float *to, const float *x, float scale, float top, int64_t count)
{
    exp_job job = { .to = to, .x = x, .scale = scale, .top = top, .scaled = true };
    return exp_blocks(&job, count);
}

static double exp_sum_bf16(const uint16_t *x, float top, int64_t count)
{
    return exp_blocks(&(exp_job){ .h = x, .top = top }, count);
}

static double exp_store_bf16(float *to, const uint16_t *x, float top, int64_t count)
{
    return exp_blocks(&(exp_job){ .to = to, .h = x, .top = top }, count);
}

static void scale_row(float *to, const float *x, float factor, int64_t count)
{
    TSI_INDEPENDENT
    for (int64_t i = 0; i < count; i++)
        to[i] = x[i] * factor;
}

static void scale_row_bf16(uint16_t *to, const float *x, float factor, int64_t count)
{
    for (int64_t i = 0; i < count; i += PACK) {
        vp y = load_here(x + i, count - i, 0.0f);
        EACH y.v[j] = y.v[j] * factor;
        store_here_bf16(to + i, y, count - i);
    }
}

static void shift_row(float *to, const float *x, float top, float add, int64_t count)
{
    TSI_INDEPENDENT
    for (int64_t i = 0; i < count; i++)
        to[i] = (x[i] - top) + add;
}

static void shift_row_bf16(uint16_t *to, const uint16_t *x, float top, float add, int64_t count)
{
    for (int64_t i = 0; i < count; i += PACK) {
        vp y = load_here_bf16(x + i, count - i, 0.0f);
        EACH y.v[j] = (y.v[j] - top) + add;
        store_here_bf16(to + i, y, count - i);
    }
}

static TSI_INLINE vp exp_times(vp x, float top, float factor)
{
    EACH x.v[j] = x.v[j] - top;
    x = vp_exp_below(x);
    EACH x.v[j] = x.v[j] * factor;
    return x;
}

static void exp_scale(float *to, const float *x, float top, float factor, int64_t count)
{
    int64_t i = 0;
    for (; i + PACK <= count; i += PACK)
        store_f32(to + i, exp_times(load_f32(x + i), top, factor));
    if (i < count)
        store_part_f32(to + i, exp_times(part_f32(x + i, count - i, 0.0f), top, factor), count - i);
}

static void exp_scale_bf16(uint16_t *to, const uint16_t *x, float top, float factor, int64_t count)
{
    int64_t i = 0;
    for (; i + PACK <= count; i += PACK)
        store_bf16(to + i, exp_times(load_bf16(x + i), top, factor));
    if (i < count)
        store_part_bf16(to + i, exp_times(part_bf16(x + i, count - i), top, factor), count - i);
}

/* ---- gradients ------------------------------------------------------------------------------- */

static void softmax_back(float *to, const float *dy, const float *y, float sum, int64_t count)
{
    TSI_INDEPENDENT
    for (int64_t i = 0; i < count; i++)
        to[i] = y[i] * (dy[i] - sum);
}

/* y <= 0, or a rounding above. */
static void log_softmax_back(float *to, const float *dy, const float *y, float sum, int64_t count)
{
    for (int64_t i = 0; i < count; i += PACK) {
        vp g = load_here(dy + i, count - i, 0.0f);
        vp p = vp_exp_below(load_here(y + i, count - i, 0.0f));
        EACH g.v[j] = g.v[j] - p.v[j] * sum;
        store_here(to + i, g, count - i);
    }
}

static TSI_INLINE void attend_back_pack(vp *w, vp *d, float scale, float lse, float delta)
{
    EACH w->v[j] = vf_fma(w->v[j], vf_set(scale), vf_set(-lse));
    *w = vp_exp_below(*w);
    EACH d->v[j] = w->v[j] * (d->v[j] - delta) * scale;
}

static void attend_back(float *restrict p, float *restrict dp, const float *numbers, int64_t count)
{
    const float scale = numbers[0], lse = numbers[1], delta = numbers[2];
    int64_t i = 0;
    for (; i + PACK <= count; i += PACK) {
        vp w = load_f32(p + i), d = load_f32(dp + i);
        attend_back_pack(&w, &d, scale, lse, delta);
        store_f32(p + i, w);
        store_f32(dp + i, d);
    }
    if (i == count) return;
    vp w = part_f32(p + i, count - i, 0.0f), d = part_f32(dp + i, count - i, 0.0f);
    attend_back_pack(&w, &d, scale, lse, delta);
    store_part_f32(p + i, w, count - i);
    store_part_f32(dp + i, d, count - i);
}

#define TSI_ROWS_SOFTMAX                                                                           \
    .exp_sum = exp_sum, .exp_store = exp_store, .top_bf16 = top_bf16,                              \
    .exp_sum_bf16 = exp_sum_bf16, .exp_store_bf16 = exp_store_bf16, .scale = scale_row,            \
    .scale_bf16 = scale_row_bf16, .shift = shift_row, .shift_bf16 = shift_row_bf16,                \
    .exp_scale = exp_scale, .exp_scale_bf16 = exp_scale_bf16, .exp_scaled = exp_scaled,            \
    .attend_back = attend_back, .softmax_back = softmax_back, .log_softmax_back = log_softmax_back
