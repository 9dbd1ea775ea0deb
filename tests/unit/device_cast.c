/* SPDX-License-Identifier: Apache-2.0 */
/* device_cast.c - every dtype to every other, against a slow oracle that knows nothing of bits
 * tricks.
 *
 * The oracle decodes to long double (exact for every dtype here) with ldexpl, and encodes by
 * rounding a scaled significand with rintl. Patterns: all 65536 of bf16 and f16, the points between
 * them in f32 and f64, powers of two and their neighbours, the ends of the integer ranges,
 * infinities, NaNs, and random bits. */
#include <math.h>
#include <stdlib.h>

#include "device/device.h"
#include "harness/test.h"

typedef struct number {
    long double re, im;
    bool negative_nan; /* sign of a NaN real part */
} number;

typedef struct format {
    int bits, precision,
        exponent_max; /* precision with the hidden bit; exponent of the largest number */
} format;

static const format F64 = { 64, 53, 1023 }, F32 = { 32, 24, 127 }, BF16 = { 16, 8, 127 },
                    F16 = { 16, 11, 15 };

static uint64_t load_bits(const void *p, int bits)
{
    uint64_t v = 0;
    memcpy(&v, p, (size_t)bits / 8);
    return v;
}

static long double decode(const void *p, format f, bool *negative)
{
    uint64_t v = load_bits(p, f.bits);
    int fraction_bits = f.precision - 1;
    uint64_t fraction = v & (((uint64_t)1 << fraction_bits) - 1);
    int exponent_bits = f.bits - f.precision;
    int exponent = (int)((v >> fraction_bits) & (((uint64_t)1 << exponent_bits) - 1));
    *negative = (v >> (f.bits - 1)) & 1;
    long double size;
    if (exponent == (1 << exponent_bits) - 1)
        size = fraction ? (long double)NAN : (long double)INFINITY;
    else if (exponent == 0)
        size = ldexpl((long double)fraction, 1 - f.exponent_max - fraction_bits);
    else
        size = ldexpl((long double)(fraction | (uint64_t)1 << fraction_bits),
                      exponent - f.exponent_max - fraction_bits);
    return *negative ? -size : size;
}

/* The nearest number of the format, ties to even; NaN: any NaN, compared by class. */
static uint64_t encode(long double value, format f)
{
    uint64_t sign = signbit(value) ? (uint64_t)1 << (f.bits - 1) : 0;
    int fraction_bits = f.precision - 1;
    uint64_t infinity = ((uint64_t)2 * (uint64_t)f.exponent_max + 1) << fraction_bits;
    long double size = fabsl(value);
    if (size == 0) return sign;
    if (isinf(size)) return sign | infinity;
    int exponent;
    (void)frexpl(size, &exponent);
    exponent -= 1; /* size = 1.x * 2^exponent */
    if (exponent < 1 - f.exponent_max) exponent = 1 - f.exponent_max;
    long double scaled = rintl(ldexpl(size, fraction_bits - exponent));
    uint64_t significand =
        (uint64_t)scaled; /* may be 2^precision: the sum below carries into the exponent */
    uint64_t biased = significand >> fraction_bits ? (uint64_t)(exponent + f.exponent_max) : 0;
    uint64_t bits = biased == 0 ? significand : ((biased - 1) << fraction_bits) + significand;
    return sign | (bits > infinity ? infinity : bits);
}

static number number_load(ts_dtype dtype, const void *p)
{
    bool n = false, ignored = false;
    number x = { 0 };
    int64_t i64 = 0;
    switch (dtype) {
    case TS_DTYPE_F64:
        x.re = decode(p, F64, &n);
        break;
    case TS_DTYPE_F32:
        x.re = decode(p, F32, &n);
        break;
    case TS_DTYPE_BF16:
        x.re = decode(p, BF16, &n);
        break;
    case TS_DTYPE_F16:
        x.re = decode(p, F16, &n);
        break;
    case TS_DTYPE_I64:
        memcpy(&i64, p, 8);
        x.re = (long double)i64;
        break;
    case TS_DTYPE_I32:
        x.re = (int32_t)load_bits(p, 32);
        break;
    case TS_DTYPE_I16:
        x.re = (int16_t)load_bits(p, 16);
        break;
    case TS_DTYPE_I8:
        x.re = (int8_t)load_bits(p, 8);
        break;
    case TS_DTYPE_U8:
        x.re = (uint8_t)load_bits(p, 8);
        break;
    case TS_DTYPE_BOOL:
        x.re = load_bits(p, 8) != 0;
        break;
    case TS_DTYPE_C64:
        x.re = decode(p, F32, &n);
        x.im = decode((const char *)p + 4, F32, &ignored);
        break;
    case TS_DTYPE_C128:
        x.re = decode(p, F64, &n);
        x.im = decode((const char *)p + 8, F64, &ignored);
        break;
    case TS_DTYPE_NONE:
    case TS_DTYPE_COUNT:
        break;
    }
    x.negative_nan = n;
    return x;
}

static bool is_integer(ts_dtype dtype)
{
    return dtype == TS_DTYPE_I64 || dtype == TS_DTYPE_I32 || dtype == TS_DTYPE_I16 ||
           dtype == TS_DTYPE_I8 || dtype == TS_DTYPE_U8;
}

/* From a float: truncated, saturated. From an integer: its low bits. */
static uint64_t encode_integer(const number *x, ts_dtype dtype, bool from_integer)
{
    int bits = (int)ts_dtype_size(dtype) * 8;
    uint64_t mask = bits == 64 ? ~(uint64_t)0 : ((uint64_t)1 << bits) - 1;
    if (from_integer) return (uint64_t)(int64_t)x->re & mask;
    if (isnan(x->re)) return 0;
    long double low = dtype == TS_DTYPE_U8 ? 0 : -ldexpl(1, bits - 1);
    long double high = dtype == TS_DTYPE_U8 ? 255 : ldexpl(1, bits - 1) - 1;
    long double v = truncl(x->re);
    if (v < low) v = low;
    if (v >= high) return dtype == TS_DTYPE_U8 ? 255 : mask >> 1;
    return (uint64_t)(int64_t)v & mask;
}

static bool same_real(const void *got, long double want, bool negative_nan, format f)
{
    bool negative = false;
    long double value = decode(got, f, &negative);
    if (isnan(want)) return isnan(value) && negative == negative_nan;
    return load_bits(got, f.bits) == encode(want, f);
}

static bool right(ts_dtype to, const void *got, ts_dtype from, const number *x)
{
    bool negative = x->negative_nan;
    switch (to) {
    case TS_DTYPE_F64:
        return same_real(got, x->re, negative, F64);
    case TS_DTYPE_F32:
        return same_real(got, x->re, negative, F32);
    case TS_DTYPE_BF16:
        return same_real(got, x->re, negative, BF16);
    case TS_DTYPE_F16:
        return same_real(got, x->re, negative, F16);
    case TS_DTYPE_I64:
    case TS_DTYPE_I32:
    case TS_DTYPE_I16:
    case TS_DTYPE_I8:
    case TS_DTYPE_U8: {
        bool from_integer = is_integer(from) || from == TS_DTYPE_BOOL;
        return load_bits(got, (int)ts_dtype_size(to) * 8) == encode_integer(x, to, from_integer);
    }
    case TS_DTYPE_BOOL:
        return load_bits(got, 8) == (x->re != 0 || x->im != 0);
    case TS_DTYPE_C64:
        return same_real(got, x->re, negative, F32) &&
               (isnan(x->im) || load_bits((const char *)got + 4, 32) == encode(x->im, F32));
    case TS_DTYPE_C128:
        return same_real(got, x->re, negative, F64) &&
               (isnan(x->im) || load_bits((const char *)got + 8, 64) == encode(x->im, F64));
    case TS_DTYPE_NONE:
    case TS_DTYPE_COUNT:
        break;
    }
    return false;
}

/* Casts `count` contiguous elements to every other dtype and compares each. */
static void check_all_targets(test *t, ts_dtype from, const void *values, int64_t count)
{
    const tsi_device *cpu = tsi_device_host();
    size_t from_size = ts_dtype_size(from);
    char *out = malloc((size_t)count * 16);
    for (int32_t to = 1; to < TS_DTYPE_COUNT; to++) {
        if (to == (int32_t)from) continue;
        tsi_block source = {
            .dtype = (int32_t)from, .ndim = 1, .extent = { count }, .stride = { 1 }
        };
        tsi_block target = {
            .data = out, .dtype = to, .ndim = 1, .extent = { count }, .stride = { 1 }
        };
        memcpy(&source.data, &values, sizeof source.data);
        TEST_OK(t, cpu->copy(cpu, &target, &source, NULL));
        int64_t wrong = 0;
        for (int64_t i = 0; i < count && wrong < 3; i++) {
            const char *in = (const char *)values + (size_t)i * from_size;
            const char *got = out + (size_t)i * ts_dtype_size((ts_dtype)to);
            number x = number_load(from, in);
            if (right((ts_dtype)to, got, from, &x)) continue;
            wrong++;
            test_fail(
                t, __FILE__, __LINE__, "%s -> %s: %Lg (bits %llx) became bits %llx",
                ts_dtype_name(from), ts_dtype_name((ts_dtype)to), x.re,
                (unsigned long long)load_bits(in, from_size > 8 ? 64 : (int)from_size * 8),
                (unsigned long long)load_bits(got, 8 * (int)(ts_dtype_size((ts_dtype)to) % 16)));
        }
    }
    free(out);
}

TS_TEST(cast_all_halves)
{
    uint16_t *all = malloc(65536 * sizeof *all);
    for (int i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    check_all_targets(t, TS_DTYPE_F16, all, 65536);
    check_all_targets(t, TS_DTYPE_BF16, all, 65536);
    check_all_targets(t, TS_DTYPE_I16, all, 65536);
    check_all_targets(t, TS_DTYPE_U8, all, 256 * 2);
    check_all_targets(t, TS_DTYPE_I8, all, 256 * 2);
    check_all_targets(t, TS_DTYPE_BOOL, all, 256 * 2);
    free(all);
}

/* Each number of the half format, the middle to the next one, and the neighbours of both. */
static int64_t around_halves(format half, float *f32, double *f64)
{
    int64_t n = 0;
    for (uint32_t i = 0; i < 65535; i++) {
        uint16_t a = (uint16_t)i, b = (uint16_t)(i + 1);
        bool ignored;
        double x = (double)decode(&a, half, &ignored), y = (double)decode(&b, half, &ignored);
        double middle = isfinite(x) && isfinite(y) ? (x + y) / 2 : x;
        double points[6] = { x,
                             middle,
                             nextafter(middle, 1e300),
                             nextafter(middle, -1e300),
                             (double)nextafterf((float)middle, INFINITY),
                             (double)nextafterf((float)middle, -INFINITY) };
        for (int k = 0; k < 6; k++, n++) {
            f64[n] = points[k];
            f32[n] = (float)points[k];
        }
    }
    return n;
}

TS_TEST(cast_between_halves)
{
    float *f32 = malloc(6 * 65536 * sizeof *f32);
    double *f64 = malloc(6 * 65536 * sizeof *f64);
    const format formats[2] = { F16, BF16 };
    for (int k = 0; k < 2; k++) {
        int64_t n = around_halves(formats[k], f32, f64);
        check_all_targets(t, TS_DTYPE_F32, f32, n);
        check_all_targets(t, TS_DTYPE_F64, f64, n);
    }
    free(f32);
    free(f64);
}

/* Powers of two and their neighbours, in f64. */
static int64_t edges_f64(double *out)
{
    int64_t n = 0;
    for (int e = -1074; e <= 1023; e++) {
        double p = ldexp(1, e);
        double around[6] = { p, nextafter(p, 0), nextafter(p, HUGE_VAL), p * 1.5, p - 1, p + 1 };
        for (int k = 0; k < 6; k++) {
            out[n++] = around[k];
            out[n++] = -around[k];
        }
    }
    const double others[] = { 0.0, -0.0, HUGE_VAL, -HUGE_VAL, nan(""), -nan(""),
                              0.5, -0.5, 255.5,    65519.99,  65520 };
    memcpy(out + n, others, sizeof others);
    return n + (int64_t)(sizeof others / sizeof others[0]);
}

TS_TEST(cast_edges)
{
    double *f64 = malloc(2 * 40000 * sizeof *f64);
    float *f32 = malloc(2 * 40000 * sizeof *f32);
    int64_t *i64 = malloc(2 * 40000 * sizeof *i64);
    int32_t *i32 = malloc(2 * 40000 * sizeof *i32);
    int64_t n = edges_f64(f64);
    for (int64_t i = 0; i < n; i++)
        f32[i] = (float)f64[i];
    check_all_targets(t, TS_DTYPE_F64, f64, n);
    check_all_targets(t, TS_DTYPE_F32, f32, n);
    check_all_targets(t, TS_DTYPE_C128, f64, n / 2); /* pairs: any mixture of parts */
    check_all_targets(t, TS_DTYPE_C64, f32, n / 2);
    int64_t m = 0;
    for (int e = 0; e < 64; e++)
        for (int f = 0; f <= e; f++)
            for (int d = -2; d <= 2; d++) {
                uint64_t bits = (((uint64_t)1 << e) | ((uint64_t)1 << f)) + (uint64_t)(int64_t)d;
                memcpy(&i64[m], &bits, 8);
                i32[m++] = (int32_t)(uint32_t)bits;
            }
    check_all_targets(t, TS_DTYPE_I64, i64, m);
    check_all_targets(t, TS_DTYPE_I32, i32, m);
    free(f64), free(f32), free(i64), free(i32);
}

TS_TEST(cast_random_bits)
{
    enum { COUNT = 20000 };
    uint64_t *bits = malloc(2 * COUNT * sizeof *bits);
    for (int i = 0; i < 2 * COUNT; i++)
        bits[i] = test_random(t);
    for (int32_t from = 1; from < TS_DTYPE_COUNT; from++)
        check_all_targets(t, (ts_dtype)from, bits, COUNT);
    free(bits);
}

/* bool of 0.1, of NaN, of (0, 2i); the real part; saturation: what the header promises, said once
 * in plain. */
TS_TEST(cast_promises)
{
    const tsi_device *cpu = tsi_device_host();
    double in[4] = { 0.1, nan(""), 1e30, -3.9 };
    uint8_t flag[4];
    int8_t small[4];
    tsi_block from = {
        .data = in, .dtype = TS_DTYPE_F64, .ndim = 1, .extent = { 4 }, .stride = { 1 }
    };
    tsi_block to = from;
    to.data = flag, to.dtype = TS_DTYPE_BOOL;
    TEST_OK(t, cpu->copy(cpu, &to, &from, NULL));
    TEST_CHECK(t, flag[0] == 1 && flag[1] == 1 && flag[2] == 1 && flag[3] == 1);
    to.data = small, to.dtype = TS_DTYPE_I8;
    TEST_OK(t, cpu->copy(cpu, &to, &from, NULL));
    TEST_EQ(t, small[0], 0);
    TEST_EQ(t, small[1], 0);
    TEST_EQ(t, small[2], 127);
    TEST_EQ(t, small[3], -3);
    double complex_in[4] = { 0, 2, 0, 0 };
    from.data = complex_in, from.dtype = TS_DTYPE_C128, from.extent[0] = to.extent[0] = 2;
    to.data = flag, to.dtype = TS_DTYPE_BOOL;
    TEST_OK(t, cpu->copy(cpu, &to, &from, NULL));
    TEST_CHECK(t, flag[0] == 1 && flag[1] == 0);
}
