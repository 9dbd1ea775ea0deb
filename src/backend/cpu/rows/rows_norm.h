/* SPDX-License-Identifier: Apache-2.0 */
/* rows_norm.h - rows of layer_norm, rms_norm and group_norm, of f32 and bf16; a part of
 * rows_body.h.
 *
 * Sums are added up in LANES lanes, as those of rows_fold.h. What follows a row in memory is the
 * next one: it is fetched while this one is computed. */

enum { LANE_VECTORS = LANES / VF_LANES };

/* ---- moments --------------------------------------------------------------------------------- */

static TSI_INLINE vf load_vector(const float *x)
{
    vf y;
    memcpy(&y, x, sizeof y);
    return y;
}

/* Sums of x - shift and of its square, of one block of x or of bf16 h. */
static TSI_INLINE void moments_block(const float *x, const uint16_t *h, float shift, int64_t count,
                                     double *sum, double *squares)
{
    vf first[LANE_VECTORS], second[LANE_VECTORS];
    float lane[LANES], square[LANES];
    for (int j = 0; j < LANE_VECTORS; j++)
        first[j] = second[j] = vf_set(0.0f);
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int j = 0; j < LANE_VECTORS; j++) {
            int64_t at = i + j * VF_LANES;
            vf y = (h ? widen_vector(h + at) : load_vector(x + at)) - shift;
            first[j] = first[j] + y;
            second[j] = vf_fma(y, y, second[j]);
        }
    memcpy(lane, first, sizeof lane);
    memcpy(square, second, sizeof square);
    for (int j = 0; i < count; i++, j++) {
        float y = (h ? tsi_f32_of_bf16(h[i]) : x[i]) - shift;
        lane[j] = lane[j] + y;
        square[j] = tsi_v_fma(y, y, square[j]);
    }
    *sum += (double)fold_lanes(lane, add_f32_);
    *squares += (double)fold_lanes(square, add_f32_);
}

static TSI_INLINE void moments_about(const float *x, const uint16_t *h, float shift, int64_t count,
                                     double *sum, double *squares)
{
    *sum = *squares = 0;
    for (int64_t at = 0; at < count; at += TSI_SUM_BLOCK) {
        int64_t part = count - at < TSI_SUM_BLOCK ? count - at : TSI_SUM_BLOCK;
        moments_block(h ? NULL : x + at, h ? h + at : NULL, shift, part, sum, squares);
    }
}

/* The mean, and the sum of squares about it: once over the row, about the mean of its beginning;
 * once more if that was farther from the mean than the deviation, which then would lose digits. */
static TSI_INLINE void moments_of(const float *x, const uint16_t *h, int64_t count, double *out)
{
    sum_lanes begin;
    for (int j = 0; j < SUM_VECTORS && count >= SUM_LANES; j++)
        begin.v[j] = h ? widen_vector(h + j * VF_LANES) : load_vector(x + j * VF_LANES);
    float shift =
        count >= SUM_LANES ? lanes_fold(&begin) / SUM_LANES : (h ? tsi_f32_of_bf16(*h) : *x);
    double sum, squares;
    moments_about(x, h, shift, count, &sum, &squares);
    double off = sum / (double)count, rest = squares - off * sum;
    out[0] = (double)shift + off;
    out[1] = rest;
    if (off * sum <= rest) return;
    float mean = (float)out[0];
    moments_about(x, h, mean, count, &sum, &squares);
    out[1] = squares - sum / (double)count * sum;
    if (out[1] < 0) out[1] = 0;
}

static void moments_row(const float *x, int64_t count, double *mean_squares)
{
    moments_of(x, NULL, count, mean_squares);
}

static void moments_row_bf16(const uint16_t *x, int64_t count, double *mean_squares)
{
    moments_of(NULL, x, count, mean_squares);
}

/* ---- the result ------------------------------------------------------------------------------ */

/* What is absent is known where a loop is made: a loop for each kind of norm. */
typedef struct norm_job {
    const float *weight, *bias; /* or NULL */
    float mean, scale;
    bool centred;
} norm_job;

static TSI_INLINE vp norm_pack(const norm_job *job, vp x, int64_t i, int64_t left)
{
    if (job->centred) EACH x.v[j] = x.v[j] - job->mean;
    EACH x.v[j] = x.v[j] * job->scale;
    vp w = job->weight ? load_here(job->weight + i, left, 0.0f) : x;
    vp b = job->bias ? load_here(job->bias + i, left, 0.0f) : x;
    if (job->weight && job->bias)
        EACH x.v[j] = vf_fma(x.v[j], w.v[j], b.v[j]);
    else if (job->weight)
        EACH x.v[j] = x.v[j] * w.v[j];
    else if (job->bias)
        EACH x.v[j] = x.v[j] + b.v[j];
    return x;
}

static TSI_INLINE void norm_loop(float *to, const float *x, norm_job job, int64_t count)
{
    int64_t i = 0;
    for (; i + PACK <= count; i += PACK) {
        TSI_PREFETCH(x + i + count);
        store_f32(to + i, norm_pack(&job, load_f32(x + i), i, PACK));
    }
    if (i == count) return;
    vp y = norm_pack(&job, part_f32(x + i, count - i, 0.0f), i, count - i);
    store_part_f32(to + i, y, count - i);
}

static TSI_INLINE void norm_loop_bf16(uint16_t *to, const uint16_t *x, norm_job job, int64_t count)
{
    int64_t i = 0;
    for (; i + PACK <= count; i += PACK) {
        TSI_PREFETCH(x + i + count);
        store_bf16(to + i, norm_pack(&job, load_bf16(x + i), i, PACK));
    }
    if (i == count) return;
    vp y = norm_pack(&job, part_bf16(x + i, count - i), i, count - i);
    store_part_bf16(to + i, y, count - i);
}

static void normalise_row(float *to, const float *x, const float *const *weight_bias, float mean,
                          float scale, int64_t count)
{
    const float *w = weight_bias[0], *b = weight_bias[1];
    if (mean == 0.0f && !b && w)
        norm_loop(to, x, (norm_job){ .weight = w, .scale = scale }, count);
    else if (w && b)
        norm_loop(to, x, (norm_job){ w, b, mean, scale, true }, count);
    else if (w)
        norm_loop(to, x, (norm_job){ w, NULL, mean, scale, true }, count);
    else if (b)
        norm_loop(to, x, (norm_job){ NULL, b, mean, scale, true }, count);
    else
        norm_loop(to, x, (norm_job){ NULL, NULL, mean, scale, true }, count);
}

static void normalise_row_bf16(uint16_t *to, const uint16_t *x, const float *const *weight_bias,
                               float mean, float scale, int64_t count)
{
    const float *w = weight_bias[0], *b = weight_bias[1];
    if (mean == 0.0f && !b && w)
        norm_loop_bf16(to, x, (norm_job){ .weight = w, .scale = scale }, count);
    else if (w && b)
        norm_loop_bf16(to, x, (norm_job){ w, b, mean, scale, true }, count);
    else if (w)
        norm_loop_bf16(to, x, (norm_job){ w, NULL, mean, scale, true }, count);
    else if (b)
        norm_loop_bf16(to, x, (norm_job){ NULL, b, mean, scale, true }, count);
    else
        norm_loop_bf16(to, x, (norm_job){ NULL, NULL, mean, scale, true }, count);
}

static TSI_INLINE vp norm_pack_by(const float *numbers, vp x)
{
    EACH x.v[j] = (x.v[j] - numbers[0]) * numbers[1];
    EACH x.v[j] = vf_fma(x.v[j], vf_set(numbers[2]), vf_set(numbers[3]));
    return x;
}

static void normalise_row_by(float *to, const float *x, const float *numbers, int64_t count)
{
    int64_t i = 0;
    for (; i + PACK <= count; i += PACK) {
        TSI_PREFETCH(x + i + count);
        store_f32(to + i, norm_pack_by(numbers, load_f32(x + i)));
    }
    if (i == count) return;
    store_part_f32(to + i, norm_pack_by(numbers, part_f32(x + i, count - i, 0.0f)), count - i);
}

static void normalise_row_by_bf16(uint16_t *to, const uint16_t *x, const float *numbers,
                                  int64_t count)
{
    int64_t i = 0;
    for (; i + PACK <= count; i += PACK) {
        TSI_PREFETCH(x + i + count);
        store_bf16(to + i, norm_pack_by(numbers, load_bf16(x + i)));
    }
    if (i == count) return;
    store_part_bf16(to + i, norm_pack_by(numbers, part_bf16(x + i, count - i)), count - i);
}

/* ---- gradients ------------------------------------------------------------------------------- */

static void norm_back_sums(const float *const *from, const float *numbers, int64_t count,
                           double *sums)
{
    const float *dy = from[0], *x = from[1], *w = from[2], mean = numbers[0], scale = numbers[1];
    sums[0] = sums[1] = 0;
    for (int64_t at = 0; at < count; at += TSI_SUM_BLOCK) {
        int64_t end = count - at < TSI_SUM_BLOCK ? count : at + TSI_SUM_BLOCK, i = at;
        vf first[LANE_VECTORS], second[LANE_VECTORS];
        float lane[LANES], product[LANES];
        for (int j = 0; j < LANE_VECTORS; j++)
            first[j] = second[j] = vf_set(0.0f);
        for (; i + LANES <= end; i += LANES)
            for (int j = 0; j < LANE_VECTORS; j++) {
                int64_t k = i + j * VF_LANES;
                vf g = load_vector(dy + k) * load_vector(w + k);
                first[j] = first[j] + g;
                second[j] = vf_fma(g, (load_vector(x + k) - mean) * scale, second[j]);
            }
        memcpy(lane, first, sizeof lane);
        memcpy(product, second, sizeof product);
        for (int j = 0; i < end; i++, j++) {
            float g = dy[i] * w[i];
            lane[j] = lane[j] + g;
            product[j] = tsi_v_fma(g, (x[i] - mean) * scale, product[j]);
        }
        sums[0] += (double)fold_lanes(lane, add_f32_);
        sums[1] += (double)fold_lanes(product, add_f32_);
    }
}

static TSI_INLINE void norm_back_loop(float *dx, float *const *dw_db, const float *const *from,
                                      const float *numbers, int64_t count, bool bias)
{
    const float *dy = from[0], *x = from[1], *w = from[2];
    float *dw = dw_db[0], *db = dw_db[1];
    const float mean = numbers[0], scale = numbers[1], less = numbers[2], times = numbers[3];
    TSI_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        float d = dy[i], v = (x[i] - mean) * scale;
        dx[i] = scale * (tsi_v_fma(d, w[i], -less) - v * times);
        dw[i] = tsi_v_fma(d, v, dw[i]);
        if (bias) db[i] = db[i] + d;
    }
}

static void norm_back(float *dx, float *const *dw_db, const float *const *from,
                      const float *numbers, int64_t count)
{
    if (dw_db[1])
        norm_back_loop(dx, dw_db, from, numbers, count, true);
    else
        norm_back_loop(dx, dw_db, from, numbers, count, false);
}

#define TSI_ROWS_NORM                                                                              \
    .moments = moments_row, .moments_bf16 = moments_row_bf16, .normalise = normalise_row,          \
    .normalise_bf16 = normalise_row_bf16, .normalise_by = normalise_row_by,                        \
    .normalise_by_bf16 = normalise_row_by_bf16, .norm_back_sums = norm_back_sums,                  \
    .norm_back = norm_back
