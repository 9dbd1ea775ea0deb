/* SPDX-License-Identifier: Apache-2.0 */
/* rows_join.h - rows folded into rows, one or four at once; a part of rows_body.h. */

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

/* JOIN(sum, f32, float, float, add_f32_): join_sum_f32, which folds rows of floats by add_f32_. */
#define JOIN(name, type, to_type, from_type, step)                                                 \
    static void join_##name##_##type(to_type *to, const from_type *x, int64_t count)               \
    {                                                                                              \
        into_##type(to, x, count, step);                                                           \
    }
JOIN(sum, f32, float, float, add_f32_)
JOIN(squares, f32, float, float, add_square_f32_)
JOIN(prod, f32, float, float, multiply_f32_)
#ifndef TSI_ROWS_OWN_EXTREMES
JOIN(max, f32, float, float, larger_f32_)
JOIN(min, f32, float, float, smaller_f32_)
#endif
JOIN(sum, f64, double, double, add_f64_)
JOIN(squares, f64, double, double, add_square_f64_)
JOIN(prod, f64, double, double, multiply_f64_)
JOIN(max, f64, double, double, larger_f64_)
JOIN(min, f64, double, double, smaller_f64_)
JOIN(sum, f64_f32, double, float, add_f64_)
JOIN(squares, f64_f32, double, float, add_square_f64_)
JOIN(prod, f64_f32, double, float, multiply_f64_)
JOIN(max, f64_f32, double, float, larger_f64_)
JOIN(min, f64_f32, double, float, smaller_f64_)
JOIN(sum, i64, int64_t, int64_t, add_i64_)
JOIN(squares, i64, int64_t, int64_t, add_square_i64_)
JOIN(prod, i64, int64_t, int64_t, multiply_i64_)
JOIN(max, i64, int64_t, int64_t, larger_i64_)
JOIN(min, i64, int64_t, int64_t, smaller_i64_)
#undef JOIN

/* ---- four rows into a row -------------------------------------------------------------------- */

static TSI_INLINE void four_f32(float *to, const float *const *rows, int64_t count, vf_step step,
                                f32_fold one)
{
    const float *x[4] = { rows[0], rows[1], rows[2], rows[3] };
    int64_t i = 0;
    for (; i + PACK <= count; i += PACK) {
        vp total = load_f32(to + i);
        for (int k = 0; k < 4; k++) {
            vp here = load_f32(x[k] + i);
            EACH total.v[j] = step(total.v[j], here.v[j]);
        }
        store_f32(to + i, total);
    }
    for (; i < count; i++)
        for (int k = 0; k < 4; k++)
            to[i] = one(to[i], x[k][i]);
}

/* Even and odd elements in their order. */
static TSI_INLINE void in_order(vf even, vf odd, vf *low, vf *high)
{
#if defined(__AVX512F__)
    *low =
        __builtin_shufflevector(even, odd, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    *high = __builtin_shufflevector(even, odd, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30,
                                    15, 31);
#elif defined(__AVX2__)
    *low = __builtin_shufflevector(even, odd, 0, 8, 1, 9, 2, 10, 3, 11);
    *high = __builtin_shufflevector(even, odd, 4, 12, 5, 13, 6, 14, 7, 15);
#else
    *low = __builtin_shufflevector(even, odd, 0, 4, 1, 5);
    *high = __builtin_shufflevector(even, odd, 2, 6, 3, 7);
#endif
}

/* Sums of two vectors, the even and the odd elements, into the row. */
static TSI_INLINE void put_pairs(float *to, vf even, vf odd, vf_step join)
{
    vf low, high, here, next;
    in_order(even, odd, &low, &high);
    memcpy(&here, to, sizeof here);
    memcpy(&next, to + VF_LANES, sizeof next);
    here = join(here, low);
    next = join(next, high);
    memcpy(to, &here, sizeof here);
    memcpy(to + VF_LANES, &next, sizeof next);
}

typedef struct pair_fold { /* what folds pairs, vectors and single numbers alike */
    float start;
    pair_step step;
    vf_step join;
    f32_fold one, join_one;
} pair_fold;

static TSI_INLINE void four_bf16(float *to, const uint16_t *const *rows, int64_t count, pair_fold f)
{
    const int64_t wide = 2 * VF_LANES;
    const uint16_t *x[4] = { rows[0], rows[1], rows[2], rows[3] };
    int64_t i = 0;
    for (; i + 4 * wide <= count; i += 4 * wide) {
        vf even[4], odd[4];
        for (int j = 0; j < 4; j++)
            even[j] = odd[j] = vf_set(f.start);
        for (int k = 0; k < 4; k++)
            for (int j = 0; j < 4; j++) {
                vu pairs;
                memcpy(&pairs, x[k] + i + j * wide, sizeof pairs);
                f.step(&even[j], &odd[j], pairs);
            }
        for (int j = 0; j < 4; j++)
            put_pairs(to + i + j * wide, even[j], odd[j], f.join);
    }
    for (; i < count; i++) {
        float some = f.start;
        for (int k = 0; k < 4; k++)
            some = f.one(some, tsi_f32_of_bf16(x[k][i]));
        to[i] = f.join_one(to[i], some);
    }
}

static void four_sum_f32(float *to, const float *const *rows, int64_t count)
{
    four_f32(to, rows, count, vf_add, add_f32_);
}

static void four_squares_f32(float *to, const float *const *rows, int64_t count)
{
    four_f32(to, rows, count, vf_add_square, add_square_f32_);
}

static void four_max_f32(float *to, const float *const *rows, int64_t count)
{
    four_f32(to, rows, count, vf_larger, larger_f32_);
}

static void four_min_f32(float *to, const float *const *rows, int64_t count)
{
    four_f32(to, rows, count, vf_smaller, smaller_f32_);
}

static void four_sum_bf16(float *to, const uint16_t *const *rows, int64_t count)
{
    four_bf16(to, rows, count, (pair_fold){ 0.0f, add_pairs, vf_add, add_f32_, add_f32_ });
}

static void four_squares_bf16(float *to, const uint16_t *const *rows, int64_t count)
{
    four_bf16(to, rows, count,
              (pair_fold){ 0.0f, add_square_pairs, vf_add, add_square_f32_, add_f32_ });
}

static void four_max_bf16(float *to, const uint16_t *const *rows, int64_t count)
{
    four_bf16(to, rows, count,
              (pair_fold){ -INFINITY, larger_pairs, vf_larger, larger_f32_, larger_f32_ });
}

static void four_min_bf16(float *to, const uint16_t *const *rows, int64_t count)
{
    four_bf16(to, rows, count,
              (pair_fold){ INFINITY, smaller_pairs, vf_smaller, smaller_f32_, smaller_f32_ });
}

#define TSI_ROWS_JOIN                                                                              \
    .join_f32 = { join_sum_f32, join_squares_f32, join_prod_f32, join_max_f32, join_min_f32 },     \
    .join_f64 = { join_sum_f64, join_squares_f64, join_prod_f64, join_max_f64, join_min_f64 },     \
    .join_f64_f32 = { join_sum_f64_f32, join_squares_f64_f32, join_prod_f64_f32, join_max_f64_f32, \
                      join_min_f64_f32 },                                                          \
    .four_f32 = { four_sum_f32, four_squares_f32, NULL, four_max_f32, four_min_f32 },              \
    .four_bf16 = { four_sum_bf16, four_squares_bf16, NULL, four_max_bf16, four_min_bf16 },         \
    .join_i64 = { join_sum_i64, join_squares_i64, join_prod_i64, join_max_i64, join_min_i64 }
