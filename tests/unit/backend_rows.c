/* SPDX-License-Identifier: Apache-2.0 */
/* backend_rows.c - row kernels by themselves, in every set this machine runs: elementary functions
 * against the C library in units of the last place, infinities and NaN, bf16 against the rounding
 * of single numbers, the same bits at every place of a row and of every length. */
#include <math.h>
#include <string.h>

#include "backend/cpu/machine.h"
#include "backend/cpu/rows/rows.h"
#include "device/number.h"
#include "harness/test.h"

enum { ROW = 1021 };

static int32_t sets(const tsi_row_set **out)
{
    int32_t count = 0;
    out[count++] = &tsi_rows_base;
#if defined(__aarch64__)
    out[count++] = &tsi_rows_neon;
    if (tsi_machine() & TSI_MACHINE_NEON_BF16) out[count++] = &tsi_rows_neon_bf16;
#elif defined(__x86_64__)
    if (tsi_machine() & TSI_MACHINE_AVX2) out[count++] = &tsi_rows_avx2;
    if (tsi_machine() & TSI_MACHINE_AVX512) out[count++] = &tsi_rows_avx512;
#endif
    return count;
}

static double real_sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static double real_silu(double x)
{
    return x / (1.0 + exp(-x));
}

static double real_gelu(double x)
{
    return 0.5 * x * erfc(-x * 0.70710678118654752);
}

static double real_gelu_tanh(double x)
{
    return x / (1.0 + exp(-2.0 * 0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static double real_softplus(double x)
{
    return fmax(x, 0.0) + log1p(exp(-fabs(x)));
}

static double real_log_sigmoid(double x)
{
    return -real_softplus(-x);
}

static double real_elu_flat(double x) /* alpha 0: rows without a number */
{
    return fmax(x, 0.0);
}

/* Below `small` an absolute error of as much is allowed: results that vanish may be 0. */
typedef struct function {
    tsi_row_id row;
    const char *name;
    double (*real)(double);
    double low, high, ulps, small;
} function;

static const function functions[] = {
    { TSI_ROW_exp, "exp", exp, -110, 88.7, 2, 1e-44 },
    { TSI_ROW_log, "log", log, 0, 50, 2, 1e-8 },
    { TSI_ROW_expm1, "expm1", expm1, -25, 88.7, 3, 0 },
    { TSI_ROW_expm1, "expm1", expm1, -2, 2, 3, 0 },
    { TSI_ROW_expm1, "expm1", expm1, -1e-3, 1e-3, 3, 0 },
    { TSI_ROW_elu, "elu", real_elu_flat, -25, 25, 0, 0 },
    { TSI_ROW_log1p, "log1p", log1p, -1, 50, 3, 0 },
    { TSI_ROW_log1p, "log1p", log1p, -1e-3, 1e-3, 3, 0 },
    { TSI_ROW_log1p, "log1p", log1p, -0.9, 1, 3, 0 },
    { TSI_ROW_softplus, "softplus", real_softplus, -87, 90, 4, 0 },
    { TSI_ROW_softplus, "softplus", real_softplus, -4, 4, 4, 0 },
    { TSI_ROW_log_sigmoid, "log_sigmoid", real_log_sigmoid, -90, 87, 4, 0 },
    { TSI_ROW_tanh, "tanh", tanh, -12, 12, 3, 0 },
    { TSI_ROW_erf, "erf", erf, -6, 6, 3, 0 },
    { TSI_ROW_sigmoid, "sigmoid", real_sigmoid, -100, 100, 4, 2e-38 },
    { TSI_ROW_silu, "silu", real_silu, -100, 100, 4, 1e-36 },
    { TSI_ROW_gelu, "gelu", real_gelu, -5, 20, 4, 1e-6 },
    { TSI_ROW_gelu_tanh, "gelu_tanh", real_gelu_tanh, -9, 20, 4, 2e-7 },
};

static double ulps(float have, double want)
{
    double size = fabs(want) > 0x1p-126 ? fabs(want) : 0x1p-126;
    return fabs((double)have - want) / ldexp(1.0, ilogb(size) - 23);
}

TS_TEST(functions_are_close_to_the_c_library)
{
    const tsi_row_set *set[4];
    int32_t count = sets(set);
    for (int32_t s = 0; s < count; s++)
        for (size_t f = 0; f < sizeof functions / sizeof functions[0]; f++) {
            const function *fn = &functions[f];
            double worst = 0, at = 0;
            for (int round = 0; round < 200; round++) {
                float x[ROW], y[ROW];
                for (int i = 0; i < ROW; i++)
                    x[i] = (float)(fn->low + (fn->high - fn->low) *
                                                 (double)test_random_below(t, 1 << 30) / (1 << 30));
                tsi_row row = { .out = y, .in = { x }, .step = { 1 }, .count = ROW };
                set[s]->f32[fn->row](&row);
                for (int i = 0; i < ROW; i++) {
                    double want = fn->real((double)x[i]), off = ulps(y[i], want);
                    if (fabs((double)y[i] - want) <= fn->small) continue;
                    if (off > worst) worst = off, at = (double)x[i];
                }
            }
            double most = strcmp(set[s]->name, "base") == 0 ? 2 * fn->ulps : fn->ulps;
            TEST_SAY(t, worst <= most, "%s in %s: %.2f ulps at %.9g", fn->name, set[s]->name, worst,
                     at);
        }
}

TS_TEST(functions_take_infinities_and_nan)
{
    const float inf = INFINITY;
    const tsi_row_set *set[4];
    int32_t count = sets(set);
    for (int32_t s = 0; s < count; s++) {
        float x[4] = { inf, -inf, NAN, -0.0f }, y[4];
        tsi_row row = { .out = y, .in = { x }, .step = { 1 }, .count = 4 };
        set[s]->f32[TSI_ROW_exp](&row);
        TEST_CHECK(t, y[0] == inf && y[1] == 0.0f && isnan(y[2]) && y[3] == 1.0f);
        set[s]->f32[TSI_ROW_sigmoid](&row);
        TEST_CHECK(t, y[0] == 1.0f && y[1] == 0.0f && isnan(y[2]) && y[3] == 0.5f);
        set[s]->f32[TSI_ROW_silu](&row);
        TEST_CHECK(t, y[0] == inf && isnan(y[1]) && isnan(y[2]) && y[3] == 0.0f);
        set[s]->f32[TSI_ROW_tanh](&row);
        TEST_CHECK(t, y[0] == 1.0f && y[1] == -1.0f && isnan(y[2]) && y[3] == 0.0f);
        TEST_CHECK(t, signbit(y[3]));
        set[s]->f32[TSI_ROW_expm1](&row);
        TEST_CHECK(t, y[0] == inf && y[1] == -1.0f && isnan(y[2]) && y[3] == 0.0f);
        TEST_CHECK(t, signbit(y[3]));
        set[s]->f32[TSI_ROW_log1p](&row);
        TEST_CHECK(t, y[0] == inf && isnan(y[1]) && isnan(y[2]) && y[3] == 0.0f);
        TEST_CHECK(t, signbit(y[3]));
        set[s]->f32[TSI_ROW_softplus](&row);
        TEST_CHECK(t,
                   y[0] == inf && y[1] == 0.0f && isnan(y[2]) && fabsf(y[3] - 0.6931472f) < 1e-6f);
        set[s]->f32[TSI_ROW_log_sigmoid](&row);
        TEST_CHECK(t, y[0] == 0.0f && y[1] == -inf && isnan(y[2]));
        const float end = -1.0f; /* where log1p ends */
        float least;
        tsi_row single = { .out = &least, .in = { &end }, .step = { 1 }, .count = 1 };
        set[s]->f32[TSI_ROW_log1p](&single);
        TEST_CHECK(t, least == -inf);
        set[s]->f32[TSI_ROW_erf](&row);
        TEST_CHECK(t, y[0] == 1.0f && y[1] == -1.0f && isnan(y[2]) && y[3] == 0.0f);
        set[s]->f32[TSI_ROW_gelu](&row);
        TEST_CHECK(t, y[0] == inf && isnan(y[1]) && isnan(y[2]) && y[3] == 0.0f);
        TEST_CHECK(t, isnan(set[s]->fold_f32[TSI_BY_MAX](x, 4)));
        TEST_CHECK(t, set[s]->exp_sum(x + 1, 0.0f, 1) == 0.0);
    }
}

/* Every length from 0 on, against the first elements of a long row. */
TS_TEST(an_element_has_the_same_bits_at_every_place)
{
    static const tsi_row_id ids[] = {
        TSI_ROW_silu,          TSI_ROW_tanh,       TSI_ROW_gelu,      TSI_ROW_add,
        TSI_ROW_silu_backward, TSI_ROW_mul_scalar, TSI_ROW_gelu_tanh, TSI_ROW_gelu_tanh_backward,
        TSI_ROW_swiglu,        TSI_ROW_exp,        TSI_ROW_log,       TSI_ROW_swiglu_backward,
    };
    const tsi_row_set *set[4];
    int32_t count = sets(set);
    double numbers[2] = { 1.25, 0 };
    float x[ROW], y[ROW], whole[ROW], part[ROW];
    uint16_t hx[ROW], hwhole[ROW], hpart[ROW];
    for (int i = 0; i < ROW; i++) {
        x[i] = (float)test_random_below(t, 1 << 20) / 65536.0f - 8.0f;
        y[i] = x[(i * 7) % ROW];
        hx[i] = tsi_bf16_of_f32(x[i]);
    }
    for (int32_t s = 0; s < count; s++)
        for (size_t k = 0; k < sizeof ids / sizeof ids[0]; k++) {
            tsi_row row = { .out = whole, .in = { x, y, y }, .step = { 1, 1, 1 } };
            row.number = numbers;
            row.count = ROW;
            set[s]->f32[ids[k]](&row);
            tsi_row half = { .out = hwhole, .in = { hx, hx, hx }, .step = { 1, 1, 1 } };
            half.number = numbers;
            half.count = ROW;
            set[s]->bf16[ids[k]](&half);
            for (int64_t n = 0; n < 70; n++) {
                row.out = part;
                half.out = hpart;
                row.count = half.count = n;
                set[s]->f32[ids[k]](&row);
                set[s]->bf16[ids[k]](&half);
                TEST_CHECK(t, memcmp(part, whole, (size_t)n * 4) == 0);
                TEST_CHECK(t, memcmp(hpart, hwhole, (size_t)n * 2) == 0);
            }
        }
}

/* repair 2: an empty row has no memory. */
TS_TEST(an_empty_row_reads_nothing)
{
    const tsi_row_set *set[4];
    int32_t count = sets(set);
    const ts_number number[2] = { ts_number_real(1.25), ts_number_real(1.5) }; /* clamp has two */
    for (int32_t moves = 0; moves < 2; moves++)
        for (int32_t s = 0; s < count; s++)
            for (int32_t id = 0; id < TSI_ROW_COUNT; id++) {
                tsi_row_fn fn[] = { set[s]->f32[id], set[s]->bf16[id], set[s]->f64[id],
                                    set[s]->i64[id] };
                tsi_row row = { .step = { moves, moves, moves }, .number = number };
                for (int32_t k = 0; k < 4; k++)
                    if (fn[k]) fn[k](&row);
            }
    TEST_CHECK(t, count > 0);
}

TS_TEST(bf16_is_rounded_as_single_numbers_are)
{
    const tsi_row_set *set[4];
    int32_t count = sets(set);
    for (int round = 0; round < 300; round++) {
        float x[ROW], wide[ROW];
        uint16_t have[ROW];
        for (int i = 0; i < ROW; i++) {
            uint32_t bits = (uint32_t)test_random_below(t, 1 << 16) << 16;
            static const uint32_t ends[] = { 0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF };
            uint32_t low = test_random_below(t, 2) ? ends[test_random_below(t, 6)]
                                                   : (uint32_t)test_random_below(t, 1 << 16);
            x[i] = tsi_f32_of_bits(bits | low);
        }
        for (int32_t s = 0; s < count; s++) {
            set[s]->narrow(have, x, ROW);
            set[s]->widen(wide, have, ROW);
            for (int i = 0; i < ROW; i++) {
                TEST_SAY(t, have[i] == tsi_bf16_of_f32(x[i]), "%s: %08x gives %04x", set[s]->name,
                         tsi_bits_of_f32(x[i]), have[i]);
                TEST_CHECK(t, tsi_bits_of_f32(wide[i]) == (uint32_t)have[i] << 16);
            }
        }
    }
}

/* All sets of a machine fold a row by the same lanes. */
TS_TEST(sums_do_not_depend_on_the_set)
{
    const tsi_row_set *set[4];
    int32_t count = sets(set);
    static float x[5000];
    uint16_t half[5000];
    for (int i = 0; i < 5000; i++)
        x[i] = (float)test_random_below(t, 1 << 22) / 65536.0f - 31.0f;
    set[0]->narrow(half, x, 5000);
    for (int64_t n = 0; n < 5000; n = n * 5 / 4 + 1)
        for (int32_t s = 1; s < count; s++) {
            TEST_CHECK(t, set[s]->fold_f32[TSI_BY_SUM](x, n) == set[0]->fold_f32[TSI_BY_SUM](x, n));
            TEST_CHECK(t, set[s]->fold_bf16[TSI_BY_SUM](half, n) ==
                              set[0]->fold_bf16[TSI_BY_SUM](half, n));
            TEST_CHECK(t, set[s]->fold_f32[TSI_BY_MAX](x, n) == set[0]->fold_f32[TSI_BY_MAX](x, n));
        }
}

/* Rows of bf16 give what those of f32 give for the same numbers, bit for bit; all sets add up
 * alike. */
TS_TEST(rows_of_softmax_agree_across_dtypes)
{
    const tsi_row_set *set[4];
    int32_t count = sets(set);
    static float x[5000], powers[5000], narrow[5000];
    static uint16_t half[5000];
    for (int i = 0; i < 5000; i++) {
        half[i] = tsi_bf16_of_f32((float)test_random_below(t, 1 << 22) / 65536.0f - 70.0f);
        x[i] = tsi_f32_of_bf16(half[i]);
    }
    for (int64_t n = 1; n < 5000; n = n * 5 / 4 + 1)
        for (int32_t s = 0; s < count; s++) {
            float top = set[s]->top_bf16(half, n);
            TEST_CHECK(t, (double)top == set[s]->fold_f32[TSI_BY_MAX](x, n));
            double sum = set[s]->exp_store(powers, x, top, n), exact = 0;
            TEST_CHECK(t, set[s]->exp_store_bf16(narrow, half, top, n) == sum);
            TEST_CHECK(t, memcmp(powers, narrow, (size_t)n * sizeof *powers) == 0);
            TEST_CHECK(t, set[s]->exp_sum(x, top, n) == sum);
            TEST_CHECK(t, set[s]->exp_sum_bf16(half, top, n) == sum);
            for (int64_t i = 0; i < n; i++)
                exact += exp((double)x[i] - (double)top);
            TEST_SAY(t, fabs(sum - exact) <= 2e-6 * exact, "%s, %lld: %.9g, not %.9g", set[s]->name,
                     (long long)n, sum, exact);
        }
}

TS_TEST(rows_of_softmax_take_infinities_and_nan)
{
    const tsi_row_set *set[4];
    int32_t count = sets(set);
    for (int32_t s = 0; s < count; s++)
        for (int n = 1; n < 150; n++) {
            uint16_t x[150];
            float wide[150];
            for (int i = 0; i < n; i++)
                x[i] = 0xFF80; /* minus infinity */
            TEST_CHECK(t, set[s]->top_bf16(x, n) == -INFINITY);
            x[n / 2] = 0xC000; /* -2 */
            TEST_CHECK(t, set[s]->top_bf16(x, n) == -2.0f);
            TEST_CHECK(t, set[s]->exp_sum_bf16(x, -2.0f, n) == 1.0);
            x[n - 1] = 0xFFC0; /* not a number */
            set[s]->widen(wide, x, n);
            TEST_CHECK(t, isnan(set[s]->exp_sum_bf16(x, -2.0f, n)));
            TEST_CHECK(t, isnan(set[s]->exp_sum(wide, -2.0f, n)));
            x[0] = 0x7F80; /* infinity */
            TEST_CHECK(t, n == 1 || !isfinite(set[s]->top_bf16(x, n)));
        }
}

/* The mean and the squares about it, also where the beginning of a row is far from the rest. */
TS_TEST(moments_are_those_about_the_mean)
{
    const tsi_row_set *set[4];
    int32_t count = sets(set);
    static float x[5000];
    static uint16_t half[5000];
    for (int kind = 0; kind < 3; kind++)
        for (int64_t n = 1; n < 5000; n = n * 4 / 3 + 1) {
            double sum = 0, squares = 0, have[2];
            for (int64_t i = 0; i < n; i++) {
                float v = (float)test_random_below(t, 1 << 20) / 65536.0f + (kind ? 100.0f : -8.0f);
                half[i] = tsi_bf16_of_f32(kind == 2 && i < 20 ? v * 1000.0f : v);
                x[i] = tsi_f32_of_bf16(half[i]);
                sum += (double)x[i];
            }
            for (int64_t i = 0; i < n; i++)
                squares += pow((double)x[i] - sum / (double)n, 2);
            for (int32_t s = 0; s < count; s++) {
                set[s]->moments(x, n, have);
                double apart = fabs(have[0] - sum / (double)n), wide = fabs(sum / (double)n);
                TEST_SAY(t, apart <= 1e-6 * (wide + sqrt(squares / (double)n)),
                         "mean of %lld: %.9g", (long long)n, have[0]);
                TEST_SAY(t, fabs(have[1] - squares) <= 1e-5 * squares + 1e-9 * wide * wide,
                         "squares of %lld in %s: %.9g, not %.9g", (long long)n, set[s]->name,
                         have[1], squares);
                double narrow[2];
                set[s]->moments_bf16(half, n, narrow);
                TEST_CHECK(t, narrow[0] == have[0] && narrow[1] == have[1]);
            }
        }
}

/* ---- folds against their definition ---------------------------------------------------------- */

enum { LONG = 5000, LANES = 64 };

/* One weight and bias for all, or a row of the same ones: the same bits. */
TS_TEST(norms_by_one_weight_are_those_by_rows)
{
    const tsi_row_set *set[4];
    int32_t count = sets(set);
    float x[ROW], weight[ROW], bias[ROW], one[ROW], many[ROW];
    uint16_t half[ROW], half_one[ROW], half_many[ROW];
    const float numbers[] = { 0.375f, 1.7f, -0.6f, 0.3f }, *const rows[] = { weight, bias };
    for (int i = 0; i < ROW; i++) {
        x[i] = (float)(test_random_below(t, 2001) - 1000) / 300.0f;
        half[i] = tsi_bf16_of_f32(x[i]);
        weight[i] = numbers[2];
        bias[i] = numbers[3];
    }
    for (int32_t s = 0; s < count; s++)
        for (int64_t length = 1; length <= ROW; length += 17) {
            set[s]->normalise_by(one, x, numbers, length);
            set[s]->normalise(many, x, rows, numbers[0], numbers[1], length);
            TEST_CHECK(t, memcmp(one, many, (size_t)length * sizeof *one) == 0);
            set[s]->normalise_by_bf16(half_one, half, numbers, length);
            set[s]->normalise_bf16(half_many, half, rows, numbers[0], numbers[1], length);
            TEST_CHECK(t, memcmp(half_one, half_many, (size_t)length * sizeof *half_one) == 0);
        }
}

/* Blocks in lanes by halves, blocks in double. */
static double sum_by_definition(const float *x, int64_t count, int64_t block)
{
    double total = 0;
    for (int64_t at = 0; at < count; at += block) {
        float lane[LANES] = { 0 };
        for (int64_t i = at; i < count && i < at + block; i++)
            lane[(i - at) % LANES] += x[i];
        for (int half = LANES / 2; half > 0; half /= 2)
            for (int j = 0; j < half; j++)
                lane[j] += lane[j + half];
        total += (double)lane[0];
    }
    return total;
}

static void random_bf16(test *t, uint16_t *half, float *wide, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        half[i] = tsi_bf16_of_f32((float)test_random_below(t, 1 << 22) / 65536.0f - 31.0f);
        wide[i] = tsi_f32_of_bf16(half[i]);
    }
}

TS_TEST(sums_are_what_their_lanes_say)
{
    const tsi_row_set *set[4];
    int32_t count = sets(set);
    static float x[LONG], wide[LONG];
    static uint16_t half[LONG];
    for (int i = 0; i < LONG; i++)
        x[i] = (float)test_random_below(t, 1 << 22) / 65536.0f - 31.0f;
    random_bf16(t, half, wide, LONG);
    for (int64_t n = 0; n < LONG; n = n < 140 ? n + 1 : n * 5 / 4)
        for (int32_t s = 0; s < count; s++) {
            double f32 = set[s]->fold_f32[TSI_BY_SUM](x, n);
            double bf16 = set[s]->fold_bf16[TSI_BY_SUM](half, n);
            TEST_SAY(t, f32 == sum_by_definition(x, n, TSI_SUM_BLOCK), "%s: %lld", set[s]->name,
                     (long long)n);
            TEST_SAY(t, bf16 == sum_by_definition(wide, n, TSI_SUM_BLOCK_BF16), "%s: %lld",
                     set[s]->name, (long long)n);
        }
}

/* The extremes of bf16 are found among their bits: every sign, NaN, infinity, zero. */
TS_TEST(extremes_of_bf16_are_those_of_f32)
{
    static const uint16_t harsh[] = { 0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0xFFC1,
                                      0x0001, 0x8001, 0x3F80, 0xBF80, 0x7F7F, 0xFF7F };
    const tsi_row_set *set[4];
    int32_t count = sets(set);
    for (int round = 0; round < 4000; round++) {
        uint16_t x[150];
        float wide[150];
        int64_t n = test_random_below(t, 150);
        int64_t kinds = 1 + test_random_below(t, 12), first = test_random_below(t, 12);
        for (int64_t i = 0; i < n; i++) {
            x[i] = harsh[(first + test_random_below(t, kinds)) % 12];
            wide[i] = tsi_f32_of_bf16(x[i]);
        }
        for (int32_t s = 0; s < count; s++)
            for (int fold = TSI_BY_MAX; fold <= TSI_BY_MIN; fold++) {
                double have = set[s]->fold_bf16[fold](x, n);
                double want = tsi_rows_base.fold_f32[fold](wide, n);
                TEST_SAY(t, have == want || (isnan(have) && isnan(want)), "%s: %g, not %g",
                         set[s]->name, have, want);
            }
    }
}

TS_TEST(many_rows_are_folded_as_single_ones)
{
    const tsi_row_set *set[4];
    int32_t count = sets(set);
    static float x[LONG];
    static uint16_t half[LONG];
    double have[5];
    random_bf16(t, half, x, LONG);
    for (int64_t n = 0; n <= 990; n += n < 130 ? 13 : 215)
        for (int32_t s = 0; s < count; s++)
            for (int fold = 0; fold < TSI_BY_COUNT; fold++) {
                if (fold == TSI_BY_PROD) continue;
                set[s]->rows_f32[fold](have, x, n + 3, 5, n);
                for (int64_t i = 0; i < 5; i++)
                    TEST_CHECK(t, have[i] == set[s]->fold_f32[fold](x + i * (n + 3), n));
                set[s]->rows_bf16[fold](have, half, n + 3, 5, n);
                for (int64_t i = 0; i < 5; i++)
                    TEST_CHECK(t, have[i] == set[s]->fold_bf16[fold](half + i * (n + 3), n));
            }
}

TS_TEST(four_rows_are_joined_as_one_after_another)
{
    const tsi_row_set *set[4];
    int32_t count = sets(set);
    static float x[4 * ROW], have[ROW], want[ROW], fresh[ROW];
    static uint16_t half[4 * ROW];
    random_bf16(t, half, x, 4 * ROW);
    const float *rows[4] = { x, x + ROW, x + 2 * ROW, x + 3 * ROW };
    const uint16_t *halves[4] = { half, half + ROW, half + 2 * ROW, half + 3 * ROW };
    for (int64_t n = 0; n <= ROW; n += n < 140 ? 1 : 881)
        for (int32_t s = 0; s < count; s++)
            for (int fold = 0; fold < TSI_BY_COUNT; fold++) {
                if (fold == TSI_BY_PROD) continue;
                float start = (float)set[s]->fold_f32[fold](x, 0);
                for (int64_t i = 0; i < n; i++) {
                    have[i] = want[i] = x[i] / 3.0f;
                    fresh[i] = start;
                }
                set[s]->four_f32[fold](have, rows, n);
                for (int k = 0; k < 4; k++) {
                    set[s]->join_f32[fold](want, rows[k], n);
                    set[s]->join_f32[fold](fresh, rows[k], n);
                }
                TEST_SAY(t, memcmp(have, want, (size_t)n * 4) == 0, "%s fold %d of %lld",
                         set[s]->name, fold, (long long)n);
                for (int64_t i = 0; i < n; i++)
                    have[i] = want[i] = x[i] / 3.0f;
                set[s]->four_bf16[fold](have, halves, n);
                set[s]->join_f32[fold == TSI_BY_SQUARES ? TSI_BY_SUM : fold](want, fresh, n);
                TEST_SAY(t, memcmp(have, want, (size_t)n * 4) == 0, "%s bf16 fold %d of %lld",
                         set[s]->name, fold, (long long)n);
            }
}

/* One call of lerp in every dtype: f64 and f32 by the formula in that dtype, bf16 by that of f32.
 */
static void check_lerp(test *t, const tsi_row_set *set, double w, const float *x, const float *y,
                       int64_t n)
{
    static double a[ROW], b[ROW], wide[ROW];
    static float have[ROW];
    static uint16_t half_x[ROW], half_y[ROW], half[ROW];
    for (int64_t i = 0; i < n; i++) {
        a[i] = (double)x[i] / 3.0;
        b[i] = (double)y[i] / 7.0;
        half_x[i] = tsi_bf16_of_f32(x[i]);
        half_y[i] = tsi_bf16_of_f32(y[i]);
    }
    tsi_row row = { .out = wide, .in = { a, b }, .step = { 1, 1 }, .count = n, .number = &w };
    set->f64[TSI_ROW_lerp](&row);
    row = (tsi_row){ .out = have, .in = { x, y }, .step = { 1, 1 }, .count = n, .number = &w };
    set->f32[TSI_ROW_lerp](&row);
    row = (tsi_row){ .out = half, .in = { half_x, half_y }, .step = { 1, 1 }, .count = n };
    row.number = &w;
    set->bf16[TSI_ROW_lerp](&row);
    float c = (float)w;
    for (int64_t i = 0; i < n; i++) {
        double way = b[i] - a[i], far = w < 0.5 ? a[i] + w * way : b[i] - way * (1.0 - w);
        float step = y[i] - x[i], near = w < 0.5 ? x[i] + c * step : y[i] - step * (1.0f - c);
        TEST_SAY(t, wide[i] == far && have[i] == near && half[i] == tsi_bf16_of_f32(near),
                 "%s: lerp of %g and %g by %g: %.17g %.9g, not %.17g %.9g", set->name, (double)x[i],
                 (double)y[i], w, wide[i], (double)have[i], far, (double)near);
        TEST_CHECK(t, w != 1.0 || (wide[i] == b[i] && have[i] == y[i] && half[i] == half_y[i]));
        TEST_CHECK(t, w != 0.0 || (wide[i] == a[i] && have[i] == x[i] && half[i] == half_x[i]));
    }
}

TS_TEST(lerp_ends_where_its_ends_are)
{
    const tsi_row_set *set[4];
    int32_t count = sets(set);
    static const double weights[] = { 0, 0.25, 0.3, 0.5, 0.7, 1, 1.5, -0.5 };
    float x[ROW], y[ROW];
    for (int64_t i = 0; i < ROW; i++) { /* of sizes far apart, and exact in bf16 */
        x[i] =
            ldexpf((float)test_random_below(t, 255) - 127.0f, (int)test_random_below(t, 60) - 30);
        y[i] =
            ldexpf((float)test_random_below(t, 255) - 127.0f, (int)test_random_below(t, 60) - 30);
    }
    for (int64_t n = 0; n <= ROW; n += n < 70 ? 1 : 317)
        for (int32_t s = 0; s < count; s++)
            for (size_t k = 0; k < sizeof weights / sizeof weights[0]; k++)
                check_lerp(t, set[s], weights[k], x, y, n);
}
