/* SPDX-License-Identifier: Apache-2.0 */
/* base_types.c - names, sizes and counts of the small public values, and the integer maths below.
 */
#include "base/intmath.h"
#include "harness/test.h"
#include "tessera/types.h"

TS_TEST(dtype_names_go_round)
{
    for (int i = TS_DTYPE_NONE + 1; i < TS_DTYPE_COUNT; i++) {
        const char *name = ts_dtype_name((ts_dtype)i);
        TEST_SAY(t, ts_dtype_parse(name) == (ts_dtype)i, "%s does not parse to itself", name);
        TEST_SAY(t, ts_dtype_size((ts_dtype)i) > 0, "%s has no size", name);
    }
    TEST_TEXT(t, ts_dtype_name(TS_DTYPE_BF16), "bf16");
    TEST_EQ(t, ts_dtype_size(TS_DTYPE_C128), 16);
    TEST_EQ(t, ts_dtype_size(TS_DTYPE_F16), 2);
}

TS_TEST(dtype_unknown_is_none)
{
    TEST_EQ(t, ts_dtype_parse("float"), TS_DTYPE_NONE);
    TEST_EQ(t, ts_dtype_parse("none"), TS_DTYPE_NONE);
    TEST_EQ(t, ts_dtype_parse(NULL), TS_DTYPE_NONE);
    TEST_EQ(t, ts_dtype_size((ts_dtype)99), 0);
    TEST_EQ(t, ts_dtype_size((ts_dtype)-1), 0);
    TEST_TEXT(t, ts_dtype_name((ts_dtype)-1), "none");
    TEST_TEXT(t, ts_dtype_name(TS_DTYPE_COUNT), "none");
}

TS_TEST(reduce_names_go_round)
{
    for (int i = TS_REDUCE_NONE + 1; i < TS_REDUCE_COUNT; i++)
        TEST_EQ(t, ts_reduce_parse(ts_reduce_name((ts_reduce)i)), i);
    TEST_EQ(t, ts_reduce_parse("mean"), TS_REDUCE_NONE);
    TEST_EQ(t, ts_reduce_parse(NULL), TS_REDUCE_NONE);
    TEST_TEXT(t, ts_reduce_name((ts_reduce)77), "none");
}

TS_TEST(shape_count_of_scalar_empty_and_overflow)
{
    const int64_t huge = (int64_t)1 << 40;
    TEST_EQ(t, ts_shape_count(&TS_SHAPE_SCALAR), 1);
    TEST_EQ(t, ts_shape_count(&TS_SHAPE(2, 3, 4)), 24);
    TEST_EQ(t, ts_shape_count(&TS_SHAPE(7, 0, 2)), 0);
    TEST_EQ(t, ts_shape_count(&TS_SHAPE(huge, huge)), -1);
    TEST_EQ(t, ts_shape_count(&TS_SHAPE(huge, huge, 0)), 0);
    TEST_EQ(t, ts_shape_count(&TS_SHAPE(0, -1)), -1);
    TEST_EQ(t, ts_shape_count(&TS_SHAPE(INT64_MAX, 1)), INT64_MAX);
    TEST_EQ(t, ts_shape_count(NULL), -1);
    ts_shape bad = TS_SHAPE(1);
    bad.ndim = TS_NDIM_MAX + 1;
    TEST_EQ(t, ts_shape_count(&bad), -1);
}

TS_TEST(multiplication_reports_overflow)
{
    int64_t out;
    size_t size;
    TEST_CHECK(t, tsi_mul_i64(INT64_MAX, 1, &out) && out == INT64_MAX);
    TEST_CHECK(t, tsi_mul_i64(INT64_MIN, 1, &out) && out == INT64_MIN);
    TEST_CHECK(t, !tsi_mul_i64(INT64_MIN, -1, &out));
    TEST_CHECK(t, !tsi_mul_i64((int64_t)1 << 32, (int64_t)1 << 31, &out));
    TEST_CHECK(t, tsi_mul_i64(-((int64_t)1 << 32), (int64_t)1 << 31, &out) && out == INT64_MIN);
    TEST_CHECK(t, !tsi_add_i64(INT64_MAX, 1, &out));
    TEST_CHECK(t, !tsi_add_i64(INT64_MIN, -1, &out));
    TEST_CHECK(t, tsi_mul_size(SIZE_MAX, 1, &size) && size == SIZE_MAX);
    TEST_CHECK(t, !tsi_mul_size(SIZE_MAX / 2 + 1, 2, &size));
    TEST_CHECK(t, !tsi_add_size(SIZE_MAX, 1, &size));
}

TS_TEST(division_rounds_as_said)
{
    TEST_EQ(t, tsi_ceil_div(INT64_MAX, 2), INT64_MAX / 2 + 1);
    for (int64_t a = 0; a < 40; a++) {
        for (int64_t b = 1; b < 12; b++) {
            int64_t q = tsi_ceil_div(a, b);
            TEST_SAY(t, q * b >= a && (q - 1) * b < a, "ceil(%lld / %lld) is not %lld",
                     (long long)a, (long long)b, (long long)q);
            TEST_EQ(t, tsi_round_up(a, b), q * b);
        }
    }
}

TS_TEST(gcd_is_the_largest_divisor)
{
    for (int64_t a = 0; a < 30; a++) {
        for (int64_t b = 1; b < 30; b++) {
            int64_t largest = 1;
            for (int64_t d = 1; d <= b; d++)
                if (a % d == 0 && b % d == 0) largest = d;
            TEST_EQ(t, tsi_gcd(a, b), largest);
        }
    }
}
