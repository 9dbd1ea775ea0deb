/* SPDX-License-Identifier: Apache-2.0 */
/* rows_fold.h - rows reduced to one number each; a part of rows_body.h.
 *
 * Element i of a block belongs to lane i % LANES, of sums lane i % FOLD_LANES, whatever the width
 * of the machine's vectors; lanes are folded by halves. So the bits of a sum depend on its length
 * alone. */

enum { LANES = 32, FOLD_LANES = 64, AHEAD = 256 }; /* AHEAD: fetched while this is added up */

static TSI_INLINE float add_f32_(float a, float b)
{
    return a + b;
}

static TSI_INLINE float multiply_f32_(float a, float b)
{
    return a * b;
}

static TSI_INLINE float larger_f32_(float a, float b)
{
    return tsi_v_pick(tsi_v_mask(b > a) | ~tsi_v_mask(b == b), b, a);
}

static TSI_INLINE float smaller_f32_(float a, float b)
{
    return tsi_v_pick(tsi_v_mask(b < a) | ~tsi_v_mask(b == b), b, a);
}

static TSI_INLINE float add_square_f32_(float a, float b)
{
    return tsi_v_fma(b, b, a);
}

static TSI_INLINE double add_f64_(double a, double b)
{
    return a + b;
}

static TSI_INLINE double multiply_f64_(double a, double b)
{
    return a * b;
}

static TSI_INLINE double larger_f64_(double a, double b)
{
    return a > b || a != a ? a : b;
}

static TSI_INLINE double smaller_f64_(double a, double b)
{
    return a < b || a != a ? a : b;
}

static TSI_INLINE double add_square_f64_(double a, double b)
{
    return a + b * b;
}

static TSI_INLINE int64_t add_i64_(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

static TSI_INLINE int64_t multiply_i64_(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a * (uint64_t)b);
}

static TSI_INLINE int64_t larger_i64_(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static TSI_INLINE int64_t smaller_i64_(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static TSI_INLINE int64_t add_square_i64_(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b * (uint64_t)b);
}

typedef float (*f32_fold)(float a, float b);
typedef double (*f64_fold)(double a, double b);
typedef int64_t (*i64_fold)(int64_t a, int64_t b);

/* The lanes as one number, by halves. */
static TSI_INLINE float fold_lanes(float *lane, f32_fold join)
{
    for (int j = 0; j < 16; j++)
        lane[j] = join(lane[j], lane[j + 16]);
    for (int j = 0; j < 8; j++)
        lane[j] = join(lane[j], lane[j + 8]);
    for (int j = 0; j < 4; j++)
        lane[j] = join(lane[j], lane[j + 4]);
    return join(join(lane[0], lane[2]), join(lane[1], lane[3]));
}

/* At most a block of elements: lanes take them in by `step` and are folded by `join`. */
static TSI_INLINE float lanes_f32(const float *x, int64_t count, float start, f32_fold step,
                                  f32_fold join)
{
    float lane[LANES];
    for (int j = 0; j < LANES; j++)
        lane[j] = start;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        TSI_PREFETCH(x + i + AHEAD);
        TSI_PREFETCH(x + i + AHEAD + 16);
        for (int j = 0; j < LANES; j++)
            lane[j] = step(lane[j], x[i + j]);
    }
    for (int j = 0; i < count; i++, j++)
        lane[j] = step(lane[j], x[i]);
    return fold_lanes(lane, join);
}

static TSI_INLINE double lanes_f64(const double *x, int64_t count, double start, f64_fold step,
                                   f64_fold join)
{
    double lane[LANES];
    for (int j = 0; j < LANES; j++)
        lane[j] = start;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        for (int j = 0; j < LANES; j += 8)
            TSI_PREFETCH(x + i + j + AHEAD / 2);
        for (int j = 0; j < LANES; j++)
            lane[j] = step(lane[j], x[i + j]);
    }
    for (int j = 0; i < count; i++, j++)
        lane[j] = step(lane[j], x[i]);
    for (int j = 0; j < 16; j++)
        lane[j] = join(lane[j], lane[j + 16]);
    for (int j = 0; j < 8; j++)
        lane[j] = join(lane[j], lane[j + 8]);
    for (int j = 0; j < 4; j++)
        lane[j] = join(lane[j], lane[j + 4]);
    return join(join(lane[0], lane[2]), join(lane[1], lane[3]));
}

static TSI_INLINE int64_t lanes_i64(const int64_t *x, int64_t count, int64_t start, i64_fold step,
                                    i64_fold join)
{
    int64_t lane[LANES], total = start, i = 0;
    for (int j = 0; j < LANES; j++)
        lane[j] = start;
    for (; i + LANES <= count; i += LANES) {
        for (int j = 0; j < LANES; j += 8)
            TSI_PREFETCH(x + i + j + AHEAD / 2);
        for (int j = 0; j < LANES; j++)
            lane[j] = step(lane[j], x[i + j]);
    }
    for (int j = 0; j < LANES; j++)
        total = join(total, lane[j]);
    for (; i < count; i++)
        total = step(total, x[i]);
    return total;
}

/* ---- sums of blocks: f32, and bf16 without a buffer ------------------------------------------ */

enum {
    FOLD_VECTORS = FOLD_LANES / VF_LANES,
    FOLD_MOST = 16
}; /* vectors of lanes; on any machine */

/* The lanes of one vector by halves. */
static TSI_INLINE float fold_vector(vf v)
{
#if defined(__aarch64__)
    float32x4_t all = (float32x4_t)v;
    return vpadds_f32(vadd_f32(vget_low_f32(all), vget_high_f32(all)));
#else
    float x[16] = { 0 };
    memcpy(x, &v, sizeof v);
    if (VF_LANES >= 16)
        for (int j = 0; j < 8; j++)
            x[j] = x[j] + x[j + 8];
    if (VF_LANES >= 8)
        for (int j = 0; j < 4; j++)
            x[j] = x[j] + x[j + 4];
    return (x[0] + x[2]) + (x[1] + x[3]);
#endif
}

/* Vectors by halves. */
static TSI_INLINE vf fold_vectors(vf *lane, int vectors)
{
    if (vectors >= 16)
        for (int j = 0; j < 8; j++)
            lane[j] = lane[j] + lane[j + 8];
    if (vectors >= 8)
        for (int j = 0; j < 4; j++)
            lane[j] = lane[j] + lane[j + 4];
    if (vectors >= 4)
        for (int j = 0; j < 2; j++)
            lane[j] = lane[j] + lane[j + 2];
    return vectors >= 2 ? lane[0] + lane[1] : lane[0];
}

typedef vf (*vf_step)(vf total, vf x);

static TSI_INLINE vf vf_add(vf total, vf x)
{
    return total + x;
}

static TSI_INLINE vf vf_add_square(vf total, vf x)
{
    return vf_fma(x, x, total);
}

static TSI_INLINE void take_f32(vf *lane, const float *x, vf_step step)
{
    for (int j = 0; j < FOLD_VECTORS; j++) {
        vf here;
        memcpy(&here, x + j * VF_LANES, sizeof here);
        lane[j] = step(lane[j], here);
    }
}

/* At most a block. What is left over is taken with zeros behind it, which change nothing: a lane
 * begins with 0 and is never -0. */
static TSI_INLINE float sum_block_f32(const float *x, int64_t count, vf_step step)
{
    vf lane[FOLD_MOST];
    for (int j = 0; j < FOLD_MOST; j++)
        lane[j] = vf_set(0.0f);
    int64_t i = 0;
    for (; i + FOLD_LANES <= count; i += FOLD_LANES) {
        for (int j = 0; j < FOLD_LANES; j += 16)
            TSI_PREFETCH(x + i + j + AHEAD);
        take_f32(lane, x + i, step);
    }
    if (i < count) {
        float rest[FOLD_LANES] = { 0 };
        memcpy(rest, x + i, (size_t)(count - i) * sizeof *x);
        take_f32(lane, rest, step);
    }
    return fold_vector(fold_vectors(lane, FOLD_VECTORS));
}

/* Blocks of f32 are added up in double. */
static TSI_INLINE double blocks_f32(const float *x, int64_t count, vf_step step)
{
    double total = 0;
    for (int64_t at = 0; at < count; at += TSI_SUM_BLOCK) {
        int64_t part = count - at < TSI_SUM_BLOCK ? count - at : TSI_SUM_BLOCK;
        total += (double)sum_block_f32(x + at, part, step);
    }
    return total;
}

static double sum_f32(const float *x, int64_t count)
{
    return blocks_f32(x, count, vf_add);
}

static double squares_f32(const float *x, int64_t count)
{
    return blocks_f32(x, count, vf_add_square);
}

/* Vectors of pairs of bf16: even elements into one total, odd ones into another, so that no order
 * has to be made. Lanes by halves are the even lanes by halves, and the odd ones, and then both. */
typedef void (*pair_step)(vf *even, vf *odd, vu pairs);

#ifndef TSI_ROWS_OWN_PAIRS /* the file of an instruction set may have instructions for it */
static TSI_INLINE void add_pairs(vf *even, vf *odd, vu pairs)
{
    *even = *even + (vf)(pairs << 16);
    *odd = *odd + (vf)(pairs & 0xFFFF0000u);
}

static TSI_INLINE void add_square_pairs(vf *even, vf *odd, vu pairs)
{
    *even = vf_add_square(*even, (vf)(pairs << 16));
    *odd = vf_add_square(*odd, (vf)(pairs & 0xFFFF0000u));
}
#endif

static TSI_INLINE void take_bf16(vf *even, vf *odd, const uint16_t *x, pair_step step)
{
    for (int j = 0; j < FOLD_VECTORS / 2; j++) {
        vu pairs;
        memcpy(&pairs, x + 2 * j * VF_LANES, sizeof pairs);
        step(&even[j], &odd[j], pairs);
    }
}

static TSI_INLINE float sum_block_bf16(const uint16_t *x, int64_t count, pair_step step)
{
    vf even[FOLD_MOST], odd[FOLD_MOST];
    for (int j = 0; j < FOLD_MOST; j++)
        even[j] = odd[j] = vf_set(0.0f);
    int64_t i = 0;
    for (; i + FOLD_LANES <= count; i += FOLD_LANES) {
        TSI_PREFETCH(x + i + 2 * AHEAD);
        TSI_PREFETCH(x + i + 2 * AHEAD + 32);
        take_bf16(even, odd, x + i, step);
    }
    if (i < count) {
        uint16_t rest[FOLD_LANES] = { 0 };
        memcpy(rest, x + i, (size_t)(count - i) * sizeof *x);
        take_bf16(even, odd, rest, step);
    }
    return fold_vector(fold_vectors(even, FOLD_VECTORS / 2)) +
           fold_vector(fold_vectors(odd, FOLD_VECTORS / 2));
}

static TSI_INLINE double blocks_bf16(const uint16_t *x, int64_t count, pair_step step)
{
    double total = 0;
    for (int64_t at = 0; at < count; at += TSI_SUM_BLOCK_BF16) {
        int64_t part = count - at < TSI_SUM_BLOCK_BF16 ? count - at : TSI_SUM_BLOCK_BF16;
        total += (double)sum_block_bf16(x + at, part, step);
    }
    return total;
}

static double sum_bf16(const uint16_t *x, int64_t count)
{
    return blocks_bf16(x, count, add_pairs);
}

static double squares_bf16(const uint16_t *x, int64_t count)
{
    return blocks_bf16(x, count, add_square_pairs);
}

/* The larger, the smaller; a NaN wins. */
static TSI_INLINE vf vf_larger(vf a, vf b)
{
#if defined(__aarch64__)
    return (vf)vmaxq_f32((float32x4_t)a, (float32x4_t)b);
#else
    return vf_pick((vu)(b > a) | (vu)(b != b), b, a);
#endif
}

static TSI_INLINE vf vf_smaller(vf a, vf b)
{
#if defined(__aarch64__)
    return (vf)vminq_f32((float32x4_t)a, (float32x4_t)b);
#else
    return vf_pick((vu)(b < a) | (vu)(b != b), b, a);
#endif
}

static TSI_INLINE void larger_pairs(vf *even, vf *odd, vu pairs)
{
    *even = vf_larger(*even, (vf)(pairs << 16));
    *odd = vf_larger(*odd, (vf)(pairs & 0xFFFF0000u));
}

static TSI_INLINE void smaller_pairs(vf *even, vf *odd, vu pairs)
{
    *even = vf_smaller(*even, (vf)(pairs << 16));
    *odd = vf_smaller(*odd, (vf)(pairs & 0xFFFF0000u));
}

/* The largest and the smallest of bf16, found among their bits. As signed numbers, those >= 0 are
 * in order and above all others, the others in the opposite order; as unsigned ones, a NaN is above
 * infinity, of either sign. */
typedef struct extremes_bf16 {
    int16_t above, below; /* the largest and the smallest as signed numbers */
    uint16_t far;         /* the largest as an unsigned one */
} extremes_bf16;

static TSI_INLINE extremes_bf16 extremes_of_bf16(const uint16_t *x, int64_t count)
{
    int16_t above[LANES], below[LANES];
    uint16_t far[LANES];
    for (int j = 0; j < LANES; j++) {
        above[j] = below[j] = (int16_t)x[0];
        far[j] = x[0];
    }
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        TSI_PREFETCH(x + i + 2 * AHEAD);
        for (int j = 0; j < LANES; j++) {
            int16_t here = (int16_t)x[i + j];
            above[j] = here > above[j] ? here : above[j];
            below[j] = here < below[j] ? here : below[j];
            far[j] = x[i + j] > far[j] ? x[i + j] : far[j];
        }
    }
    extremes_bf16 all = { above[0], below[0], far[0] };
    for (int j = 0; j < LANES; j++) {
        all.above = above[j] > all.above ? above[j] : all.above;
        all.below = below[j] < all.below ? below[j] : all.below;
        all.far = far[j] > all.far ? far[j] : all.far;
    }
    for (; i < count; i++) {
        int16_t here = (int16_t)x[i];
        all.above = here > all.above ? here : all.above;
        all.below = here < all.below ? here : all.below;
        all.far = x[i] > all.far ? x[i] : all.far;
    }
    return all;
}

/* What stands for the NaN among them; 0: there is none. */
static TSI_INLINE uint16_t nan_of_bf16(extremes_bf16 all)
{
    if (all.above > 0x7F80) return (uint16_t)all.above;
    return all.far > 0xFF80 ? all.far : 0;
}

static double max_bf16(const uint16_t *x, int64_t count)
{
    if (count == 0) return (double)-INFINITY;
    extremes_bf16 all = extremes_of_bf16(x, count);
    uint16_t nan = nan_of_bf16(all);
    int16_t most = all.above >= 0 ? all.above : all.below;
    return (double)tsi_f32_of_bf16(nan ? nan : (uint16_t)most);
}

static double min_bf16(const uint16_t *x, int64_t count)
{
    if (count == 0) return (double)INFINITY;
    extremes_bf16 all = extremes_of_bf16(x, count);
    uint16_t nan = nan_of_bf16(all);
    return (double)tsi_f32_of_bf16(nan ? nan : all.below < 0 ? all.far : (uint16_t)all.below);
}

/* A product of many f32 leaves their range early: in double. */
static double prod_f32(const float *x, int64_t count)
{
    double total = 1;
    for (int64_t i = 0; i < count; i++)
        total *= (double)x[i];
    return total;
}

#ifndef TSI_ROWS_OWN_EXTREMES /* the file of an instruction set may have                           \
                                 better ones */
static double max_f32(const float *x, int64_t count)
{
    return (double)lanes_f32(x, count, -INFINITY, larger_f32_, larger_f32_);
}

static double min_f32(const float *x, int64_t count)
{
    return (double)lanes_f32(x, count, INFINITY, smaller_f32_, smaller_f32_);
}
#endif

/* ---- many rows, each at most a block --------------------------------------------------------- */

static void rows_sum_f32(double *to, const float *x, int64_t stride, int64_t rows, int64_t count)
{
    for (int64_t i = 0; i < rows; i++)
        to[i] = (double)sum_block_f32(x + i * stride, count, vf_add);
}

static void rows_squares_f32(double *to, const float *x, int64_t stride, int64_t rows,
                             int64_t count)
{
    for (int64_t i = 0; i < rows; i++)
        to[i] = (double)sum_block_f32(x + i * stride, count, vf_add_square);
}

static void rows_max_f32(double *to, const float *x, int64_t stride, int64_t rows, int64_t count)
{
    for (int64_t i = 0; i < rows; i++)
        to[i] = max_f32(x + i * stride, count);
}

static void rows_min_f32(double *to, const float *x, int64_t stride, int64_t rows, int64_t count)
{
    for (int64_t i = 0; i < rows; i++)
        to[i] = min_f32(x + i * stride, count);
}

static void rows_sum_bf16(double *to, const uint16_t *x, int64_t stride, int64_t rows,
                          int64_t count)
{
    for (int64_t i = 0; i < rows; i++)
        to[i] = (double)sum_block_bf16(x + i * stride, count, add_pairs);
}

static void rows_squares_bf16(double *to, const uint16_t *x, int64_t stride, int64_t rows,
                              int64_t count)
{
    for (int64_t i = 0; i < rows; i++)
        to[i] = (double)sum_block_bf16(x + i * stride, count, add_square_pairs);
}

static void rows_max_bf16(double *to, const uint16_t *x, int64_t stride, int64_t rows,
                          int64_t count)
{
    for (int64_t i = 0; i < rows; i++)
        to[i] = max_bf16(x + i * stride, count);
}

static void rows_min_bf16(double *to, const uint16_t *x, int64_t stride, int64_t rows,
                          int64_t count)
{
    for (int64_t i = 0; i < rows; i++)
        to[i] = min_bf16(x + i * stride, count);
}

static double sum_f64(const double *x, int64_t count)
{
    return lanes_f64(x, count, 0.0, add_f64_, add_f64_);
}

static double squares_f64(const double *x, int64_t count)
{
    return lanes_f64(x, count, 0.0, add_square_f64_, add_f64_);
}

static double prod_f64(const double *x, int64_t count)
{
    return lanes_f64(x, count, 1.0, multiply_f64_, multiply_f64_);
}

static double max_f64(const double *x, int64_t count)
{
    return lanes_f64(x, count, (double)-INFINITY, larger_f64_, larger_f64_);
}

static double min_f64(const double *x, int64_t count)
{
    return lanes_f64(x, count, (double)INFINITY, smaller_f64_, smaller_f64_);
}

static int64_t sum_i64(const int64_t *x, int64_t count)
{
    return lanes_i64(x, count, 0, add_i64_, add_i64_);
}

static int64_t squares_i64(const int64_t *x, int64_t count)
{
    return lanes_i64(x, count, 0, add_square_i64_, add_i64_);
}

static int64_t prod_i64(const int64_t *x, int64_t count)
{
    int64_t total = 1;
    for (int64_t i = 0; i < count; i++)
        total = multiply_i64_(total, x[i]);
    return total;
}

static int64_t max_i64(const int64_t *x, int64_t count)
{
    return lanes_i64(x, count, INT64_MIN, larger_i64_, larger_i64_);
}

static int64_t min_i64(const int64_t *x, int64_t count)
{
    return lanes_i64(x, count, INT64_MAX, smaller_i64_, smaller_i64_);
}

#define TSI_ROWS_FOLD                                                                              \
    .fold_f32 = { sum_f32, squares_f32, prod_f32, max_f32, min_f32 },                              \
    .fold_bf16 = { sum_bf16, squares_bf16, NULL, max_bf16, min_bf16 },                             \
    .fold_f64 = { sum_f64, squares_f64, prod_f64, max_f64, min_f64 },                              \
    .fold_i64 = { sum_i64, squares_i64, prod_i64, max_i64, min_i64 },                              \
    .rows_f32 = { rows_sum_f32, rows_squares_f32, NULL, rows_max_f32, rows_min_f32 },              \
    .rows_bf16 = { rows_sum_bf16, rows_squares_bf16, NULL, rows_max_bf16, rows_min_bf16 }
