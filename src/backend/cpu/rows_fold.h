/* SPDX-License-Identifier: Apache-2.0 */
/* rows_fold.h - rows reduced to one number, and rows folded into rows; a part of rows_body.h.
 *
 * Element i of a block belongs to lane i % LANES, whatever the width of the machine's vectors;
 * lanes are folded by halves. So the bits of a sum depend on its length alone. */

enum { LANES = 32, AHEAD = 256 }; /* AHEAD: what is fetched while this is added up */

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
    for (; i + LANES <= count; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] = step(lane[j], x[i + j]);
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

static TSI_INLINE int64_t all_i64(const int64_t *x, int64_t count, int64_t start, i64_fold step)
{
    int64_t total = start;
    for (int64_t i = 0; i < count; i++)
        total = step(total, x[i]);
    return total;
}

/* Blocks of f32 are added up in double. */
static TSI_INLINE double blocks_f32(const float *x, int64_t count, f32_fold step)
{
    double total = 0;
    for (int64_t at = 0; at < count; at += TSI_SUM_BLOCK) {
        int64_t part = count - at < TSI_SUM_BLOCK ? count - at : TSI_SUM_BLOCK;
        total += (double)lanes_f32(x + at, part, 0.0f, step, add_f32_);
    }
    return total;
}

static double sum_f32(const float *x, int64_t count)
{
    return blocks_f32(x, count, add_f32_);
}

static double squares_f32(const float *x, int64_t count)
{
    return blocks_f32(x, count, add_square_f32_);
}

/* The same blocks and lanes, of bf16. */
static TSI_INLINE float lanes_bf16(const uint16_t *x, int64_t count, float start, f32_fold step,
                                   f32_fold join)
{
    float lane[LANES];
    for (int j = 0; j < LANES; j++)
        lane[j] = start;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] = step(lane[j], tsi_f32_of_bf16(x[i + j]));
    for (int j = 0; i < count; i++, j++)
        lane[j] = step(lane[j], tsi_f32_of_bf16(x[i]));
    return fold_lanes(lane, join);
}

static TSI_INLINE double blocks_bf16(const uint16_t *x, int64_t count, f32_fold step)
{
    double total = 0;
    for (int64_t at = 0; at < count; at += TSI_SUM_BLOCK) {
        int64_t part = count - at < TSI_SUM_BLOCK ? count - at : TSI_SUM_BLOCK;
        total += (double)lanes_bf16(x + at, part, 0.0f, step, add_f32_);
    }
    return total;
}

static double sum_bf16(const uint16_t *x, int64_t count)
{
    return blocks_bf16(x, count, add_f32_);
}

static double squares_bf16(const uint16_t *x, int64_t count)
{
    return blocks_bf16(x, count, add_square_f32_);
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
    return all_i64(x, count, 0, add_i64_);
}

static int64_t squares_i64(const int64_t *x, int64_t count)
{
    return all_i64(x, count, 0, add_square_i64_);
}

static int64_t prod_i64(const int64_t *x, int64_t count)
{
    return all_i64(x, count, 1, multiply_i64_);
}

static int64_t max_i64(const int64_t *x, int64_t count)
{
    return all_i64(x, count, INT64_MIN, larger_i64_);
}

static int64_t min_i64(const int64_t *x, int64_t count)
{
    return all_i64(x, count, INT64_MAX, smaller_i64_);
}

/* ---- rows into rows -------------------------------------------------------------------------- */

static TSI_INLINE void into_f32(float *restrict to, const float *restrict x, int64_t count,
                                f32_fold step)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = step(to[i], x[i]);
}

static TSI_INLINE void into_f64(double *restrict to, const double *restrict x, int64_t count,
                                f64_fold step)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = step(to[i], x[i]);
}

static TSI_INLINE void into_f64_f32(double *restrict to, const float *restrict x, int64_t count,
                                    f64_fold step)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = step(to[i], (double)x[i]);
}

static TSI_INLINE void into_i64(int64_t *restrict to, const int64_t *restrict x, int64_t count,
                                i64_fold step)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = step(to[i], x[i]);
}

static void join_sum_f32(float *to, const float *x, int64_t count)
{
    into_f32(to, x, count, add_f32_);
}

static void join_squares_f32(float *to, const float *x, int64_t count)
{
    into_f32(to, x, count, add_square_f32_);
}

static void join_prod_f32(float *to, const float *x, int64_t count)
{
    into_f32(to, x, count, multiply_f32_);
}

#ifndef TSI_ROWS_OWN_EXTREMES
static void join_max_f32(float *to, const float *x, int64_t count)
{
    into_f32(to, x, count, larger_f32_);
}

static void join_min_f32(float *to, const float *x, int64_t count)
{
    into_f32(to, x, count, smaller_f32_);
}
#endif

static void join_sum_f64(double *to, const double *x, int64_t count)
{
    into_f64(to, x, count, add_f64_);
}

static void join_squares_f64(double *to, const double *x, int64_t count)
{
    into_f64(to, x, count, add_square_f64_);
}

static void join_prod_f64(double *to, const double *x, int64_t count)
{
    into_f64(to, x, count, multiply_f64_);
}

static void join_max_f64(double *to, const double *x, int64_t count)
{
    into_f64(to, x, count, larger_f64_);
}

static void join_min_f64(double *to, const double *x, int64_t count)
{
    into_f64(to, x, count, smaller_f64_);
}

static void join_sum_f64_f32(double *to, const float *x, int64_t count)
{
    into_f64_f32(to, x, count, add_f64_);
}

static void join_squares_f64_f32(double *to, const float *x, int64_t count)
{
    into_f64_f32(to, x, count, add_square_f64_);
}

static void join_prod_f64_f32(double *to, const float *x, int64_t count)
{
    into_f64_f32(to, x, count, multiply_f64_);
}

static void join_max_f64_f32(double *to, const float *x, int64_t count)
{
    into_f64_f32(to, x, count, larger_f64_);
}

static void join_min_f64_f32(double *to, const float *x, int64_t count)
{
    into_f64_f32(to, x, count, smaller_f64_);
}

static void join_sum_i64(int64_t *to, const int64_t *x, int64_t count)
{
    into_i64(to, x, count, add_i64_);
}

static void join_squares_i64(int64_t *to, const int64_t *x, int64_t count)
{
    into_i64(to, x, count, add_square_i64_);
}

static void join_prod_i64(int64_t *to, const int64_t *x, int64_t count)
{
    into_i64(to, x, count, multiply_i64_);
}

static void join_max_i64(int64_t *to, const int64_t *x, int64_t count)
{
    into_i64(to, x, count, larger_i64_);
}

static void join_min_i64(int64_t *to, const int64_t *x, int64_t count)
{
    into_i64(to, x, count, smaller_i64_);
}

#define TSI_ROWS_FOLD                                                                              \
    .fold_f32 = { sum_f32, squares_f32, prod_f32, max_f32, min_f32 },                              \
    .fold_bf16 = { [TSI_BY_SUM] = sum_bf16, [TSI_BY_SQUARES] = squares_bf16 },                     \
    .fold_f64 = { sum_f64, squares_f64, prod_f64, max_f64, min_f64 },                              \
    .fold_i64 = { sum_i64, squares_i64, prod_i64, max_i64, min_i64 },                              \
    .join_f32 = { join_sum_f32, join_squares_f32, join_prod_f32, join_max_f32, join_min_f32 },     \
    .join_f64 = { join_sum_f64, join_squares_f64, join_prod_f64, join_max_f64, join_min_f64 },     \
    .join_f64_f32 = { join_sum_f64_f32, join_squares_f64_f32, join_prod_f64_f32, join_max_f64_f32, \
                      join_min_f64_f32 },                                                          \
    .join_i64 = { join_sum_i64, join_squares_i64, join_prod_i64, join_max_i64, join_min_i64 }
