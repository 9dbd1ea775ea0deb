/* SPDX-License-Identifier: Apache-2.0 */
/* backend_rows.c - row kernels by themselves, in every set this machine runs: elementary functions
 * against the C library in units of the last place, infinities and NaN, bf16 against the rounding
 * of single numbers, the same bits at every place of a row and of every length. */
#include <math.h>
#include <string.h>

#include "backend/cpu/machine.h"
#include "backend/cpu/rows.h"
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

/* Below `small` an absolute error of as much is allowed: results that vanish may be 0. */
typedef struct function {
    tsi_row_id row;
    const char *name;
    double (*real)(double);
    double low, high, ulps, small;
} function;

static const function functions[] = {
    { TSI_ROW_EXP, "exp", exp, -110, 88.7, 2, 1e-44 },
    { TSI_ROW_LOG, "log", log, 0, 50, 2, 1e-8 },
    { TSI_ROW_TANH, "tanh", tanh, -12, 12, 3, 0 },
    { TSI_ROW_ERF, "erf", erf, -6, 6, 3, 0 },
    { TSI_ROW_SIGMOID, "sigmoid", real_sigmoid, -100, 100, 4, 2e-38 },
    { TSI_ROW_SILU, "silu", real_silu, -100, 100, 4, 1e-36 },
    { TSI_ROW_GELU, "gelu", real_gelu, -5, 20, 4, 1e-6 },
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
        set[s]->f32[TSI_ROW_EXP](&row);
        TEST_CHECK(t, y[0] == inf && y[1] == 0.0f && isnan(y[2]) && y[3] == 1.0f);
        set[s]->f32[TSI_ROW_SIGMOID](&row);
        TEST_CHECK(t, y[0] == 1.0f && y[1] == 0.0f && isnan(y[2]) && y[3] == 0.5f);
        set[s]->f32[TSI_ROW_SILU](&row);
        TEST_CHECK(t, y[0] == inf && isnan(y[1]) && isnan(y[2]) && y[3] == 0.0f);
        set[s]->f32[TSI_ROW_TANH](&row);
        TEST_CHECK(t, y[0] == 1.0f && y[1] == -1.0f && isnan(y[2]) && y[3] == 0.0f);
        TEST_CHECK(t, signbit(y[3]));
        set[s]->f32[TSI_ROW_ERF](&row);
        TEST_CHECK(t, y[0] == 1.0f && y[1] == -1.0f && isnan(y[2]) && y[3] == 0.0f);
        set[s]->f32[TSI_ROW_GELU](&row);
        TEST_CHECK(t, y[0] == inf && isnan(y[1]) && isnan(y[2]) && y[3] == 0.0f);
        TEST_CHECK(t, isnan(set[s]->fold_f32[TSI_BY_MAX](x, 4)));
        TEST_CHECK(t, set[s]->exp_sum(x + 1, 0.0f, 1) == 0.0);
    }
}

/* Every length from 0 on, against the first elements of a long row. */
TS_TEST(an_element_has_the_same_bits_at_every_place)
{
    static const tsi_row_id ids[] = { TSI_ROW_SILU, TSI_ROW_TANH,          TSI_ROW_GELU,
                                      TSI_ROW_ADD,  TSI_ROW_SILU_BACKWARD, TSI_ROW_MUL_SCALAR };
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
            tsi_row row = { .out = whole, .in = { x, y }, .step = { 1, 1 }, .number = numbers };
            row.count = ROW;
            set[s]->f32[ids[k]](&row);
            tsi_row half = { .out = hwhole, .in = { hx, hx }, .step = { 1, 1 }, .number = numbers };
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
