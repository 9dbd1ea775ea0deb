/* SPDX-License-Identifier: Apache-2.0 */
/* array_random.c - random fills: the words of the specification, any split gives the same bits, the
 * bits are the same on every machine (hashes below), and the numbers are distributed as they should
 * be. */
#include "array/random.h"

#include <math.h>
#include <stdlib.h>

#include "array/random_math.h"
#include "base/hash.h"
#include "base/philox.h"
#include "device/number.h"
#include "harness/test.h"

static tsi_block dense(void *data, ts_dtype dtype, int64_t count)
{
    return (tsi_block){
        .data = data, .dtype = (int32_t)dtype, .ndim = 1, .extent = { count }, .stride = { 1 }
    };
}

static uint32_t word_of(const tsi_random *r, int64_t k, int64_t g, int64_t i)
{
    uint64_t w = (uint64_t)g * (uint64_t)k + (uint64_t)i;
    return tsi_philox(r->seed, r->offset + w / 4, r->stream).word[w % 4];
}

/* ---- the definition, one element at a time */

TS_TEST(random_words_by_definition)
{
    enum { N = 1000 };
    tsi_random r = { .kind = TSI_RANDOM_UNIFORM,
                     .seed = 0x123456789ABCDEF0u,
                     .stream = 77,
                     .offset = 0xFFFFFFFEu,
                     .a = 0,
                     .b = 1 };
    static float f32[N];
    static double f64[N];
    static uint16_t bf16[N];
    const int64_t g = 12345;
    tsi_block b = dense(f32, TS_DTYPE_F32, N);
    TEST_OK(t, tsi_random_fill(&r, &b, g));
    for (int i = 0; i < N; i++)
        TEST_CHECK(t, f32[i] == (float)(word_of(&r, 1, g + i, 0) >> 8) * 0x1p-24f);
    b = dense(f64, TS_DTYPE_F64, N);
    TEST_OK(t, tsi_random_fill(&r, &b, g));
    for (int i = 0; i < N; i++) {
        uint64_t both = (uint64_t)word_of(&r, 2, g + i, 0) << 32 | word_of(&r, 2, g + i, 1);
        TEST_CHECK(t, f64[i] == (double)(both >> 11) * 0x1p-53);
    }
    b = dense(bf16, TS_DTYPE_BF16, N);
    TEST_OK(t, tsi_random_fill(&r, &b, g));
    for (int i = 0; i < N; i++)
        TEST_CHECK(t, tsi_f32_of_bf16(bf16[i]) == (float)(word_of(&r, 1, g + i, 0) >> 24) / 256);
    r.kind = TSI_RANDOM_NORMAL, r.a = 3, r.b = 2;
    b = dense(f64, TS_DTYPE_F64, N);
    TEST_OK(t, tsi_random_fill(&r, &b, g));
    for (int i = 0; i < N; i++) {
        uint64_t w0 = (uint64_t)word_of(&r, 4, g + i, 0) << 32 | word_of(&r, 4, g + i, 1);
        uint64_t w1 = (uint64_t)word_of(&r, 4, g + i, 2) << 32 | word_of(&r, 4, g + i, 3);
        double u = ((double)(w0 >> 11) + 1) * 0x1p-53, v = (double)(w1 >> 11) * 0x1p-53;
        double want = 3 + 2 * sqrt(-2 * log(u)) * cos(2 * 3.14159265358979323846 * v);
        TEST_SAY(t, fabs(f64[i] - want) < 1e-13, "%d: %.17g, by the C library %.17g", i, f64[i],
                 want);
    }
}

TS_TEST(random_integers_by_definition)
{
    enum { N = 500 };
    tsi_random r = { .kind = TSI_RANDOM_INTEGER, .seed = 5, .low = -10, .high = 1000003 };
    static int32_t i32[N];
    static int8_t i8[N];
    tsi_block b = dense(i32, TS_DTYPE_I32, N);
    TEST_OK(t, tsi_random_fill(&r, &b, 3));
    for (int i = 0; i < N; i++) {
        uint64_t both = (uint64_t)word_of(&r, 2, 3 + i, 0) << 32 | word_of(&r, 2, 3 + i, 1);
        long double exact =
            ldexpl((long double)both, -64) * 1000013.0L; /* 64 + 20 bits: a hair of rounding */
        TEST_CHECK(t,
                   llabs((int64_t)floorl(exact) - 10 - i32[i]) <= (exact - floorl(exact) < 1e-9L));
    }
    r.low = -128, r.high = 128;
    b = dense(i8, TS_DTYPE_I8, N);
    TEST_OK(t, tsi_random_fill(&r, &b, 3));
    for (int i = 0; i < N; i++)
        TEST_EQ(t, i8[i], (int64_t)(word_of(&r, 1, 3 + i, 0) >> 24) - 128);
    r = (tsi_random){ .kind = TSI_RANDOM_INTEGER, .low = INT64_MIN, .high = INT64_MAX };
    static int64_t i64[N];
    b = dense(i64, TS_DTYPE_I64, N);
    TEST_OK(t, tsi_random_fill(&r, &b, 0));
    int positive = 0;
    for (int i = 0; i < N; i++)
        positive += i64[i] > 0;
    TEST_CHECK(t, positive > 150 && positive < 350);
}

/* ---- splits */

static const tsi_random_kind kinds[] = { TSI_RANDOM_UNIFORM, TSI_RANDOM_NORMAL, TSI_RANDOM_INTEGER,
                                         TSI_RANDOM_BERNOULLI };

static tsi_random make(tsi_random_kind kind, uint64_t seed)
{
    return (tsi_random){ .kind = kind,
                         .seed = seed,
                         .stream = seed ^ 99,
                         .offset = seed % 1000,
                         .a = kind == TSI_RANDOM_BERNOULLI ? 0.3 : 0,
                         .b = 1,
                         .low = 0,
                         .high = kind == TSI_RANDOM_INTEGER ? 2 : 0 };
}

TS_TEST(random_any_split_same_bits)
{
    enum { N = 1500 };
    static char whole[N * 16], parts[N * 16];
    for (size_t k = 0; k < 4; k++)
        for (int32_t dtype = 1; dtype < TS_DTYPE_COUNT; dtype++) {
            if (tsi_random_words(kinds[k], (ts_dtype)dtype) == 0) continue;
            tsi_random r = make(kinds[k], test_random(t));
            size_t size = ts_dtype_size((ts_dtype)dtype);
            int64_t first = test_random_below(t, 1 << 20);
            tsi_block b = dense(whole, (ts_dtype)dtype, N);
            TEST_OK(t, tsi_random_fill(&r, &b, first));
            memset(parts, 0xAA, sizeof parts);
            tsi_random_run run[N];
            int64_t runs = 0;
            for (int64_t at = 0; at < N; runs++) {
                int64_t most = runs % 7 == 0 ? 400 : 9, length = 1 + test_random_below(t, most);
                if (length > N - at) length = N - at;
                run[runs] = (tsi_random_run){ .global = first + at, .local = at, .length = length };
                at += length;
            }
            for (int64_t i = runs - 1; i > 0; i--) { /* in any order */
                int64_t j = test_random_below(t, i + 1);
                tsi_random_run keep = run[i];
                run[i] = run[j];
                run[j] = keep;
            }
            tsi_block p = dense(parts, (ts_dtype)dtype, N);
            TEST_OK(t, tsi_random_fill_runs(&r, &p, run, runs));
            TEST_SAY(t, memcmp(whole, parts, N * size) == 0, "kind %zu of %s", k,
                     ts_dtype_name((ts_dtype)dtype));
        }
}

/* ---- the same bits everywhere: made once, with gcc on aarch64 */

static const struct {
    tsi_random_kind kind;
    ts_dtype dtype;
    uint64_t hash;
} golden[] = {
    { TSI_RANDOM_UNIFORM, TS_DTYPE_F32, 0x61B13494BA1CD3E9u },
    { TSI_RANDOM_UNIFORM, TS_DTYPE_F64, 0xA370C55B5C2A480Au },
    { TSI_RANDOM_UNIFORM, TS_DTYPE_BF16, 0xECBAFBD521D4AD84u },
    { TSI_RANDOM_NORMAL, TS_DTYPE_F32, 0x3AB9AD8126646E01u },
    { TSI_RANDOM_NORMAL, TS_DTYPE_F64, 0xFAD55A8D8484F607u },
    { TSI_RANDOM_NORMAL, TS_DTYPE_BF16, 0xFF47A28A1D6EAE37u },
    { TSI_RANDOM_NORMAL, TS_DTYPE_C64, 0xB555CFB8AD073F2Eu },
    { TSI_RANDOM_NORMAL, TS_DTYPE_C128, 0x4B8A4CEB870F89B0u },
    { TSI_RANDOM_INTEGER, TS_DTYPE_I64, 0x4D48FBEC989558FAu },
    { TSI_RANDOM_BERNOULLI, TS_DTYPE_BOOL, 0x87377878B548263Bu },
};

TS_TEST(random_same_bits_everywhere)
{
    enum { N = 100000 };
    char *data = malloc(N * 16);
    for (size_t i = 0; i < sizeof golden / sizeof golden[0]; i++) {
        tsi_random r = make(golden[i].kind, 42);
        tsi_block b = dense(data, golden[i].dtype, N);
        TEST_OK(t, tsi_random_fill(&r, &b, 7));
        uint64_t hash = tsi_hash_bytes(0, data, N * ts_dtype_size(golden[i].dtype));
        TEST_SAY(t, hash == golden[i].hash, "kind %d of %s: 0x%016llX", (int)golden[i].kind,
                 ts_dtype_name(golden[i].dtype), (unsigned long long)hash);
    }
    free(data);
}

/* ---- our log and sincos */

static double ulps(double got, double want)
{
    double unit = nextafter(fabs(want), HUGE_VAL) - fabs(want);
    return fabs(got - want) / unit;
}

TS_TEST(random_math_close_to_libm)
{
    double worst_log = 0, worst_turn = 0, worst_short = 0;
    for (int i = 0; i < 200000; i++) {
        double x = (double)((test_random(t) >> 11) + 1) * 0x1p-53;
        if (i % 4 == 0) x = ldexp(x, -(int)(test_random(t) % 40));
        double e = ulps(tsi_log(x), log(x));
        worst_log = e > worst_log ? e : worst_log;
        double v = (double)(test_random(t) >> 11) * 0x1p-53, c, s;
        tsi_cos_sin_turn(v, &c, &s);
        double angle = 8 * atan(1) * v;
        e = fmax(fabs(c - cos(angle)),
                 fabs(s - sin(angle))); /* absolute: the C library's angle is rounded */
        worst_turn = e > worst_turn ? e : worst_turn;
        e = fmax(fabs(tsi_cos_turn_short(v) - c), fabs(tsi_log_short(x) / log(x) - 1));
        worst_short = e > worst_short ? e : worst_short;
    }
    TEST_SAY(t, worst_short < 1e-9, "a short form is off by %g", worst_short);
    TEST_SAY(t, worst_log < 2, "log is off by %g units", worst_log);
    TEST_SAY(t, worst_turn < 1e-15, "cos or sin of a turn is off by %g", worst_turn);
    double c, s;
    for (int q = 0; q < 4; q++) {
        tsi_cos_sin_turn(q / 4.0, &c, &s);
        TEST_CHECK(t, c == (q == 0) - (q == 2) && s == (q == 1) - (q == 3));
    }
    TEST_CHECK(t, tsi_log(1) == 0);
}

/* ---- distributions; seeds are fixed, so these numbers never change */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Kolmogorov-Smirnov: the largest distance between the sample and the distribution, times sqrt(n).
 */
static double ks(double *x, int n, double (*cdf)(double))
{
    qsort(x, (size_t)n, sizeof *x, compare_doubles);
    double worst = 0;
    for (int i = 0; i < n; i++) {
        double f = cdf(x[i]);
        worst = fmax(worst, fmax(f - (double)i / n, (double)(i + 1) / n - f));
    }
    return worst * sqrt(n);
}

static double cdf_uniform(double x)
{
    return x;
}

static double cdf_normal(double x)
{
    return 0.5 * erfc(-x / sqrt(2));
}

TS_TEST(random_distributions)
{
    enum { N = 100000 };
    double *x = malloc(N * sizeof *x);
    float *f = malloc(N * sizeof *f);
    for (int pass = 0; pass < 4; pass++) {
        bool normal = pass >= 2, narrow = pass % 2;
        tsi_random r = make(normal ? TSI_RANDOM_NORMAL : TSI_RANDOM_UNIFORM, 1 + (uint64_t)pass);
        tsi_block b = narrow ? dense(f, TS_DTYPE_F32, N) : dense(x, TS_DTYPE_F64, N);
        TEST_OK(t, tsi_random_fill(&r, &b, 0));
        for (int i = 0; i < N && narrow; i++)
            x[i] = (double)f[i];
        double distance = ks(x, N, normal ? cdf_normal : cdf_uniform);
        TEST_SAY(t, distance < 1.63,
                 "pass %d: Kolmogorov-Smirnov %.3f, 1.63 is exceeded once in 100", pass, distance);
    }
    /* 50 bins of integers: chi square with 49 degrees is below 74.9 in 99 of 100 cases. */
    int64_t *n = malloc(N * sizeof *n), bin[50] = { 0 };
    tsi_random r = make(TSI_RANDOM_INTEGER, 9);
    r.low = 100, r.high = 150;
    tsi_block b = dense(n, TS_DTYPE_I64, N);
    TEST_OK(t, tsi_random_fill(&r, &b, 0));
    double chi = 0;
    for (int i = 0; i < N; i++) {
        TEST_CHECK(t, n[i] >= 100 && n[i] < 150);
        bin[n[i] - 100]++;
    }
    for (int i = 0; i < 50; i++)
        chi += ((double)bin[i] - N / 50.0) * ((double)bin[i] - N / 50.0) / (N / 50.0);
    TEST_SAY(t, chi < 74.9, "chi square %.1f", chi);
    free(x), free(f), free(n);
}

/* Neighbours of a normal sample are independent: no pairing across elements. */
TS_TEST(random_neighbours_uncorrelated)
{
    enum { N = 100000 };
    float *x = malloc(N * sizeof *x);
    tsi_random r = make(TSI_RANDOM_NORMAL, 3);
    tsi_block b = dense(x, TS_DTYPE_F32, N);
    TEST_OK(t, tsi_random_fill(&r, &b, 0));
    double sum = 0, squares = 0;
    for (int i = 0; i + 1 < N; i++) {
        sum += (double)x[i] * (double)x[i + 1];
        squares += ((double)x[i] * (double)x[i] - 1) * ((double)x[i + 1] * (double)x[i + 1] - 1);
    }
    TEST_SAY(t, fabs(sum) < 3 * sqrt(N) && fabs(squares) < 3 * 2 * sqrt(N), "%g %g", sum, squares);
    free(x);
}

/* ---- parameters */

TS_TEST(random_uniform_never_reaches_the_end)
{
    enum { N = 4096 };
    static uint16_t h[N];
    static float f[N];
    tsi_random r = { .kind = TSI_RANDOM_UNIFORM, .a = -1, .b = 3.0000001 };
    tsi_block b = dense(h, TS_DTYPE_BF16, N);
    TEST_OK(t, tsi_random_fill(&r, &b, 0));
    for (int i = 0; i < N; i++)
        TEST_CHECK(t, (double)tsi_f32_of_bf16(h[i]) >= r.a && (double)tsi_f32_of_bf16(h[i]) < r.b);
    r = (tsi_random){ .kind = TSI_RANDOM_UNIFORM, .a = 1, .b = 1 + 0x1p-22 };
    b = dense(f, TS_DTYPE_F32, N);
    TEST_OK(t, tsi_random_fill(&r, &b, 0));
    for (int i = 0; i < N; i++)
        TEST_CHECK(t, (double)f[i] >= r.a && (double)f[i] < r.b);
    r.b = r.a; /* an empty range is its only point */
    TEST_OK(t, tsi_random_fill(&r, &b, 0));
    TEST_CHECK(t, f[0] == 1 && f[N - 1] == 1);
}

TS_TEST(random_refusals_and_counts)
{
    float f[8];
    tsi_random r = { .kind = TSI_RANDOM_UNIFORM, .a = 2, .b = 1 };
    tsi_block b = dense(f, TS_DTYPE_F32, 8);
    TEST_STATUS(t, tsi_random_fill(&r, &b, 0), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "from 2 to 1");
    r = (tsi_random){ .kind = TSI_RANDOM_NORMAL, .b = -1 };
    TEST_STATUS(t, tsi_random_fill(&r, &b, 0), TS_ERR_ARG);
    r = (tsi_random){ .kind = TSI_RANDOM_BERNOULLI, .a = 1.5 };
    TEST_STATUS(t, tsi_random_fill(&r, &b, 0), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "1.5");
    r = (tsi_random){ .kind = TSI_RANDOM_INTEGER, .high = 5 };
    TEST_STATUS(t, tsi_random_fill(&r, &b, 0), TS_ERR_DTYPE);
    b.dtype = TS_DTYPE_I8;
    r.high = 129;
    TEST_STATUS(t, tsi_random_fill(&r, &b, 0), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "0 to 129");
    r.high = 128;
    tsi_random_run run = { .global = 0, .local = 5, .length = 4 };
    TEST_STATUS(t, tsi_random_fill_runs(&r, &b, &run, 1), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "the block has 8 elements");
    b.stride[0] = 2;
    TEST_STATUS(t, tsi_random_fill(&r, &b, 0), TS_ERR_ARG);
    TEST_EQ(t, tsi_random_words(TSI_RANDOM_NORMAL, TS_DTYPE_F64), 4);
    TEST_EQ(t, tsi_random_words(TSI_RANDOM_INTEGER, TS_DTYPE_F64), 0);
    TEST_EQ(t, tsi_random_blocks(TSI_RANDOM_UNIFORM, TS_DTYPE_F32, 9), 3);
    TEST_EQ(t, tsi_random_blocks(TSI_RANDOM_NORMAL, TS_DTYPE_F32, 0), 0);
}
