/* SPDX-License-Identifier: Apache-2.0 */
/* device_fold.c - every dtype, every reduction, 1 to 9 sources, dense and strided and in place, bit
 * for bit against one element at a time; what has no meaning is refused with a phrase; identities
 * leave values alone. */
#include <math.h>
#include <stdlib.h>

#include "device/device.h"
#include "device/number.h"
#include "harness/test.h"

enum { SOURCES_MAX = 9 };

static int64_t as_i64(ts_dtype dtype, const void *p)
{
    int64_t v = 0;
    memcpy(&v, p, ts_dtype_size(dtype));
    if (dtype == TS_DTYPE_BOOL) return v != 0;
    if (dtype == TS_DTYPE_U8) return v;
    int shift = 64 - 8 * (int)ts_dtype_size(dtype);
    return (int64_t)((uint64_t)v << shift) >> shift;
}

/* One step on integers; the caller cuts the result to the type. */
static int64_t step_i64(ts_reduce reduce, int64_t a, int64_t b)
{
    switch (reduce) {
    case TS_REDUCE_SUM:
    case TS_REDUCE_AVG:
        return (int64_t)((uint64_t)a + (uint64_t)b);
    case TS_REDUCE_PROD:
        return (int64_t)((uint64_t)a * (uint64_t)b);
    case TS_REDUCE_MIN:
        return b < a ? b : a;
    case TS_REDUCE_MAX:
        return b > a ? b : a;
    case TS_REDUCE_AND:
        return a && b;
    case TS_REDUCE_OR:
        return a || b;
    case TS_REDUCE_BAND:
        return a & b;
    case TS_REDUCE_BOR:
        return a | b;
    case TS_REDUCE_NONE:
    case TS_REDUCE_COUNT:
        break;
    }
    return 0;
}

static void fold_integer(ts_reduce reduce, ts_dtype dtype, const void *const *source, int64_t n,
                         int64_t divisor, void *out)
{
    int64_t acc = as_i64(dtype, source[0]);
    if (n == 1 && (reduce == TS_REDUCE_AND || reduce == TS_REDUCE_OR)) acc = acc != 0;
    for (int64_t i = 1; i < n; i++) {
        acc = step_i64(reduce, acc, as_i64(dtype, source[i]));
        if (reduce != TS_REDUCE_AVG)
            acc = as_i64(dtype, &acc); /* cut to the type after each step */
    }
    if (reduce == TS_REDUCE_AVG) acc /= divisor;
    memcpy(out, &acc, ts_dtype_size(dtype));
}

static float step_f32(ts_reduce reduce, float a, float b)
{
    if (reduce == TS_REDUCE_SUM || reduce == TS_REDUCE_AVG) return a + b;
    if (reduce == TS_REDUCE_PROD) return a * b;
    if (isnan(a)) return a;
    if (isnan(b)) return b;
    return reduce == TS_REDUCE_MIN ? (b < a ? b : a) : (b > a ? b : a);
}

static double step_f64(ts_reduce reduce, double a, double b)
{
    if (reduce == TS_REDUCE_SUM || reduce == TS_REDUCE_AVG) return a + b;
    if (reduce == TS_REDUCE_PROD) return a * b;
    if (isnan(a)) return a;
    if (isnan(b)) return b;
    return reduce == TS_REDUCE_MIN ? (b < a ? b : a) : (b > a ? b : a);
}

static float load_f32(ts_dtype dtype, const void *p)
{
    float f;
    uint16_t h;
    memcpy(&h, p, sizeof h);
    if (dtype == TS_DTYPE_BF16) return tsi_f32_of_bf16(h);
    if (dtype == TS_DTYPE_F16) return tsi_f32_of_f16(h);
    memcpy(&f, p, sizeof f);
    return f;
}

static void fold_f32(ts_reduce reduce, ts_dtype dtype, const void *const *source, int64_t n,
                     int64_t divisor, void *out)
{
    float acc = load_f32(dtype, source[0]);
    for (int64_t i = 1; i < n; i++)
        acc = step_f32(reduce, acc, load_f32(dtype, source[i]));
    if (reduce == TS_REDUCE_AVG) acc /= (float)divisor;
    uint16_t h = dtype == TS_DTYPE_BF16 ? tsi_bf16_of_f32(acc) : tsi_f16_of_f32(acc);
    if (dtype == TS_DTYPE_F32)
        memcpy(out, &acc, sizeof acc);
    else
        memcpy(out, &h, sizeof h);
}

static void fold_f64(ts_reduce reduce, const void *const *source, int64_t n, int64_t divisor,
                     void *out)
{
    double acc, next;
    memcpy(&acc, source[0], sizeof acc);
    for (int64_t i = 1; i < n; i++) {
        memcpy(&next, source[i], sizeof next);
        acc = step_f64(reduce, acc, next);
    }
    if (reduce == TS_REDUCE_AVG) acc /= (double)divisor;
    memcpy(out, &acc, sizeof acc);
}

static void fold_c64(ts_reduce reduce, const void *const *source, int64_t n, int64_t divisor,
                     void *out)
{
    float a[2], b[2];
    memcpy(a, source[0], sizeof a);
    for (int64_t i = 1; i < n; i++) {
        memcpy(b, source[i], sizeof b);
        float re = a[0] * b[0] - a[1] * b[1], im = a[0] * b[1] + a[1] * b[0];
        a[0] = reduce == TS_REDUCE_PROD ? re : a[0] + b[0];
        a[1] = reduce == TS_REDUCE_PROD ? im : a[1] + b[1];
    }
    for (int k = 0; k < 2 && reduce == TS_REDUCE_AVG; k++)
        a[k] /= (float)divisor;
    memcpy(out, a, sizeof a);
}

static void fold_c128(ts_reduce reduce, const void *const *source, int64_t n, int64_t divisor,
                      void *out)
{
    double a[2], b[2];
    memcpy(a, source[0], sizeof a);
    for (int64_t i = 1; i < n; i++) {
        memcpy(b, source[i], sizeof b);
        double re = a[0] * b[0] - a[1] * b[1], im = a[0] * b[1] + a[1] * b[0];
        a[0] = reduce == TS_REDUCE_PROD ? re : a[0] + b[0];
        a[1] = reduce == TS_REDUCE_PROD ? im : a[1] + b[1];
    }
    for (int k = 0; k < 2 && reduce == TS_REDUCE_AVG; k++)
        a[k] /= (double)divisor;
    memcpy(out, a, sizeof a);
}

static void fold_one(ts_reduce reduce, ts_dtype dtype, const void *const *source, int64_t n,
                     int64_t divisor, void *out)
{
    if (dtype == TS_DTYPE_F32 || dtype == TS_DTYPE_BF16 || dtype == TS_DTYPE_F16)
        fold_f32(reduce, dtype, source, n, divisor, out);
    else if (dtype == TS_DTYPE_F64)
        fold_f64(reduce, source, n, divisor, out);
    else if (dtype == TS_DTYPE_C64)
        fold_c64(reduce, source, n, divisor, out);
    else if (dtype == TS_DTYPE_C128)
        fold_c128(reduce, source, n, divisor, out);
    else
        fold_integer(reduce, dtype, source, n, divisor, out);
}

static bool is_nan(ts_dtype dtype, const void *p)
{
    double d;
    if (dtype == TS_DTYPE_F64 || dtype == TS_DTYPE_C128) {
        memcpy(&d, p, sizeof d);
        return isnan(d);
    }
    bool real = dtype == TS_DTYPE_F32 || dtype == TS_DTYPE_C64 || dtype == TS_DTYPE_BF16 ||
                dtype == TS_DTYPE_F16;
    return real && isnan(load_f32(dtype == TS_DTYPE_C64 ? TS_DTYPE_F32 : dtype, p));
}

/* Equal bits; which NaN an operation on two NaNs gives is the machine's choice, so any NaN equals
 * any. */
static bool same(ts_dtype dtype, const void *a, const void *b)
{
    size_t size = ts_dtype_size(dtype);
    bool pair = dtype == TS_DTYPE_C64 || dtype == TS_DTYPE_C128;
    size_t part = pair ? size / 2 : size;
    for (size_t at = 0; at < size; at += part) {
        const char *x = (const char *)a + at, *y = (const char *)b + at;
        if (memcmp(x, y, part) != 0 && !(is_nan(dtype, x) && is_nan(dtype, y))) return false;
    }
    return true;
}

/* Random bits are mostly huge or tiny floats; every other value is a small one, some are special.
 */
static void random_element(test *t, ts_dtype dtype, void *out)
{
    const tsi_device *cpu = tsi_device_host();
    uint64_t bits[2] = { test_random(t), test_random(t) };
    double special[] = { 0.0, -0.0, 1.0, -1.0, HUGE_VAL, -HUGE_VAL, nan(""), 3.5, -2.25, 0.1 };
    double value[2] = { special[bits[1] % 10], special[bits[0] % 10] };
    if (bits[0] % 3 == 0) value[0] = (double)(int64_t)(bits[1] % 2001) / 8 - 125;
    if (bits[0] % 2 == 0 || dtype == TS_DTYPE_BOOL) {
        memcpy(out, bits, ts_dtype_size(dtype));
        return;
    }
    tsi_block from = { .data = value, .dtype = TS_DTYPE_C128 },
              to = { .data = out, .dtype = (int32_t)dtype };
    TEST_OK(t, cpu->copy(cpu, &to, &from, NULL));
}

static void *random_elements(test *t, ts_dtype dtype, int64_t count)
{
    size_t size = ts_dtype_size(dtype);
    char *data = malloc((size_t)count * size);
    for (int64_t i = 0; i < count; i++)
        random_element(t, dtype, data + (size_t)i * size);
    return data;
}

typedef struct fold_case {
    ts_dtype dtype;
    ts_reduce reduce;
    int64_t sources, divisor; /* divisor 0: the number of sources */
    int64_t rows, columns, pitch, column_stride;
    bool in_place; /* the target is the last source */
} fold_case;

static void check_case(test *t, const fold_case *c)
{
    const tsi_device *cpu = tsi_device_host();
    size_t size = ts_dtype_size(c->dtype);
    int64_t room = c->rows * c->pitch + c->columns * c->column_stride + 1;
    tsi_block block[SOURCES_MAX + 1];
    const tsi_block *from[SOURCES_MAX];
    char *before[SOURCES_MAX + 1];
    for (int64_t i = 0; i <= c->sources; i++) {
        block[i] = (tsi_block){ .dtype = (int32_t)c->dtype,
                                .ndim = 2,
                                .extent = { c->rows, c->columns },
                                .stride = { c->pitch, c->column_stride } };
        block[i].data = random_elements(t, c->dtype, room);
        before[i] = malloc((size_t)room * size);
        memcpy(before[i], block[i].data, (size_t)room * size);
        if (i < c->sources) from[i] = &block[i];
    }
    int64_t target = c->in_place ? c->sources - 1 : c->sources;
    TEST_OK(t, cpu->fold(cpu, &block[target], from, c->sources, c->reduce, c->divisor, NULL));
    int64_t wrong = 0;
    for (int64_t i = 0; i < room && wrong < 2; i++) {
        const void *source[SOURCES_MAX];
        char want[16];
        for (int64_t k = 0; k < c->sources; k++)
            source[k] = before[k] + (size_t)i * size;
        int64_t row = c->pitch > 0 ? i / c->pitch : 0, rest = i - row * c->pitch;
        bool covered =
            row < c->rows && rest % c->column_stride == 0 && rest / c->column_stride < c->columns;
        if (covered)
            fold_one(c->reduce, c->dtype, source, c->sources, c->divisor ? c->divisor : c->sources,
                     want);
        else
            memcpy(want, before[target] + (size_t)i * size, size);
        const char *got = (const char *)block[target].data + (size_t)i * size;
        if (same(c->dtype, got, want)) continue;
        wrong++;
        test_fail(t, __FILE__, __LINE__,
                  "%s of %lld %s, %lld x %lld pitch %lld stride %lld%s: element %lld",
                  ts_reduce_name(c->reduce), (long long)c->sources, ts_dtype_name(c->dtype),
                  (long long)c->rows, (long long)c->columns, (long long)c->pitch,
                  (long long)c->column_stride, c->in_place ? " in place" : "", (long long)i);
    }
    for (int64_t i = 0; i <= c->sources; i++) {
        free(block[i].data);
        free(before[i]);
    }
}

static const int64_t shapes[][4] = {
    /* rows, columns, pitch, column stride */
    { 1, 1, 1, 1 },     { 1, 37, 37, 1 }, { 3, 700, 700, 1 },
    { 4, 150, 160, 1 }, { 9, 5, 8, 1 },   { 6, 40, 100, 2 },
};

TS_TEST_LONG(fold_everything, 120)
{
    for (int32_t dtype = 1; dtype < TS_DTYPE_COUNT; dtype++)
        for (int32_t reduce = 1; reduce < TS_REDUCE_COUNT; reduce++) {
            if (!tsi_reduce_allowed((ts_reduce)reduce, (ts_dtype)dtype, NULL)) continue;
            for (int64_t n = 1; n <= SOURCES_MAX; n++)
                for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
                    for (int in_place = 0; in_place < 2; in_place++) {
                        fold_case c = { .dtype = (ts_dtype)dtype,
                                        .reduce = (ts_reduce)reduce,
                                        .sources = n,
                                        .divisor = s % 2 ? 0 : 3,
                                        .rows = shapes[s][0],
                                        .columns = shapes[s][1],
                                        .pitch = shapes[s][2],
                                        .column_stride = shapes[s][3],
                                        .in_place = in_place };
                        check_case(t, &c);
                        if (test_failed(t)) return;
                    }
        }
}

/* Rows so long that several are folded abreast, more of them than go abreast. */
TS_TEST(fold_long_rows)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16, TS_DTYPE_I8, TS_DTYPE_C128 };
    for (int i = 0; i < 4; i++)
        for (int64_t n = 1; n <= 5; n++) {
            int64_t columns = 4200 / (int64_t)ts_dtype_size(dtypes[i]) + 3;
            fold_case c = { .dtype = dtypes[i],
                            .reduce = n % 2 ? TS_REDUCE_SUM : TS_REDUCE_AVG,
                            .sources = n,
                            .rows = 7,
                            .columns = columns,
                            .pitch = columns + 11,
                            .column_stride = 1,
                            .in_place = n == 3 };
            check_case(t, &c);
        }
}

/* Longer than a tile, and a target laid out across the sources. */
TS_TEST(fold_large_and_transposed)
{
    enum { N = 300 };
    const tsi_device *cpu = tsi_device_host();
    float *a = random_elements(t, TS_DTYPE_F32, N * N),
          *b = random_elements(t, TS_DTYPE_F32, N * N);
    float *out = calloc(N * N, sizeof *out);
    tsi_block x = {
        .data = a, .dtype = TS_DTYPE_F32, .ndim = 2, .extent = { N, N }, .stride = { N, 1 }
    };
    tsi_block y = x, to = x;
    y.data = b, to.data = out;
    to.stride[0] = 1, to.stride[1] = N;
    const tsi_block *from[] = { &x, &y };
    TEST_OK(t, cpu->fold(cpu, &to, from, 2, TS_REDUCE_SUM, 0, NULL));
    int64_t wrong = 0;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            float want = a[i * N + j] + b[i * N + j];
            wrong += !same(TS_DTYPE_F32, &out[j * N + i], &want);
        }
    TEST_EQ(t, wrong, 0);
    free(a), free(b), free(out);
}

/* 1/3 in bf16, 100 times: one rounding at the end, not a hundred. */
TS_TEST(fold_rounds_once)
{
    const tsi_device *cpu = tsi_device_host();
    enum { N = 100 };
    uint16_t third = tsi_bf16_of_f32(1.0f / 3), out = 0;
    float exact = 0;
    tsi_block source = { .data = &third, .dtype = TS_DTYPE_BF16 },
              to = { .data = &out, .dtype = TS_DTYPE_BF16 };
    const tsi_block *from[N];
    for (int i = 0; i < N; i++) {
        from[i] = &source;
        exact += tsi_f32_of_bf16(third);
    }
    TEST_OK(t, cpu->fold(cpu, &to, from, N, TS_REDUCE_SUM, 0, NULL));
    TEST_EQ(t, out, tsi_bf16_of_f32(exact));
    TEST_OK(t, cpu->fold(cpu, &to, from, N, TS_REDUCE_AVG, 0, NULL));
    TEST_EQ(t, out, tsi_bf16_of_f32(exact / N));
}

/* Blocks without elements are cut into no tiles: where a division by zero is a signal, that ended
 * the program. */
TS_TEST(fold_of_nothing)
{
    const tsi_device *cpu = tsi_device_host();
    float at[4] = { 1, 2, 3, 4 };
    static const int64_t extents[][2] = { { 3, 0 }, { 0, 3 }, { 0, 0 } };
    for (size_t i = 0; i < TSI_COUNT_OF(extents); i++) {
        tsi_block to = { .data = at, .dtype = TS_DTYPE_F32, .ndim = 2, .stride = { 1, 1 } };
        memcpy(to.extent, extents[i], sizeof extents[i]);
        const tsi_block *from[] = { &to, &to };
        TEST_OK(t, cpu->fold(cpu, &to, from, 2, TS_REDUCE_SUM, 0, NULL));
        TEST_OK(t, cpu->copy(cpu, &to, &to, NULL));
    }
    TEST_CHECK(t, at[0] == 1 && at[1] == 2 && at[2] == 3 && at[3] == 4);
}

TS_TEST(fold_refusals)
{
    const tsi_device *cpu = tsi_device_host();
    const char *why = NULL;
    TEST_CHECK(t, !tsi_reduce_allowed(TS_REDUCE_MIN, TS_DTYPE_C64, &why));
    TEST_TEXT(t, why, "min of complex numbers");
    TEST_CHECK(t, !tsi_reduce_allowed(TS_REDUCE_BAND, TS_DTYPE_F32, &why));
    TEST_SAYS(t, why, "bits of floating-point");
    TEST_CHECK(t, !tsi_reduce_allowed(TS_REDUCE_SUM, TS_DTYPE_BOOL, &why));
    TEST_CHECK(t, !tsi_reduce_allowed((ts_reduce)99, TS_DTYPE_F32, &why));
    TEST_TEXT(t, why, "no such reduction");
    TEST_CHECK(t, !tsi_reduce_allowed(TS_REDUCE_SUM, (ts_dtype)99, &why));
    TEST_CHECK(t, tsi_reduce_allowed(TS_REDUCE_MAX, TS_DTYPE_BF16, &why) && why == NULL);
    float x = 1;
    tsi_block block = { .data = &x, .dtype = TS_DTYPE_F32 };
    const tsi_block *from[] = { &block };
    TEST_STATUS(t, cpu->fold(cpu, &block, from, 1, TS_REDUCE_OR, 0, NULL), TS_ERR_DTYPE);
    TEST_SAYS(t, ts_last_error(), "or of f32");
    TEST_STATUS(t, cpu->fold(cpu, &block, from, 0, TS_REDUCE_SUM, 0, NULL), TS_ERR_ARG);
}

/* identity op x is x, but for what op itself makes of x (logic gives 0 or 1; a sum turns -0 into
 * 0). */
TS_TEST(fold_identities)
{
    const tsi_device *cpu = tsi_device_host();
    for (int32_t dtype = 1; dtype < TS_DTYPE_COUNT; dtype++)
        for (int32_t reduce = 1; reduce < TS_REDUCE_COUNT; reduce++) {
            char identity[16], x[16], got[16], want[16];
            ts_status status = tsi_reduce_identity((ts_reduce)reduce, (ts_dtype)dtype, identity);
            bool allowed = tsi_reduce_allowed((ts_reduce)reduce, (ts_dtype)dtype, NULL);
            TEST_STATUS(t, status, allowed ? TS_OK : TS_ERR_DTYPE);
            /* A complex product with (1, 0) makes NaN of an infinite part, and -0 hides in one
             * part. */
            bool complex = dtype == TS_DTYPE_C64 || dtype == TS_DTYPE_C128;
            for (int k = 0; allowed && !complex && k < 50; k++) {
                random_element(t, (ts_dtype)dtype, x);
                tsi_block a = { .data = identity, .dtype = dtype },
                          b = { .data = x, .dtype = dtype };
                tsi_block to = { .data = got, .dtype = dtype },
                          alone = { .data = want, .dtype = dtype };
                const tsi_block *pair[] = { &b, &a }, *one[] = { &b };
                TEST_OK(t, cpu->fold(cpu, &to, pair, 2, (ts_reduce)reduce, 1, NULL));
                TEST_OK(t, cpu->fold(cpu, &alone, one, 1, (ts_reduce)reduce, 1, NULL));
                double zero = 0; /* -0 + 0 is 0: accept a zero of either sign */
                tsi_block z = { .data = &zero, .dtype = TS_DTYPE_F64 };
                TEST_OK(t, cpu->copy(cpu, &z, &alone, NULL));
                TEST_SAY(t, same((ts_dtype)dtype, got, want) || zero == 0,
                         "%s of %s with its identity", ts_reduce_name((ts_reduce)reduce),
                         ts_dtype_name((ts_dtype)dtype));
            }
        }
}
