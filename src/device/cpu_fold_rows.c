/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_fold_rows.c - to[i] = a[i] op b[i] on contiguous rows, for every reduction and accumulator type.
 *
 * INV: one operation per element, in the order of the operands, rounded as IEEE says: no reassociation, no fusing.
 * Integers wrap (sums and products are of unsigned words); complex numbers add as pairs of reals and multiply
 * as (ac - bd, ad + bc) without scaling. Logical results are 0 or 1, also of a bool that came as another byte. */
#include "base/compiler.h"
#include "device/cpu.h"

#define FOLD(verb) f64_##verb
#define VALUE double
#define WORD double
#define PRODUCT double
#define QUOTIENT double
#define IS_NAN(x) ((x) != (x))
#include "device/fold_rows.inc"

#define FOLD(verb) f32_##verb
#define VALUE float
#define WORD float
#define PRODUCT float
#define QUOTIENT float
#define IS_NAN(x) ((x) != (x))
#include "device/fold_rows.inc"

#define FOLD(verb) i64_##verb
#define VALUE int64_t
#define WORD uint64_t
#define PRODUCT uint64_t
#define QUOTIENT int64_t
#define IS_NAN(x) false
#include "device/fold_rows.inc"

#define FOLD(verb) i32_##verb
#define VALUE int32_t
#define WORD uint32_t
#define PRODUCT uint32_t
#define QUOTIENT int64_t
#define IS_NAN(x) false
#include "device/fold_rows.inc"

/* A product of 16-bit words is taken in 32 unsigned bits: promoted to int it could overflow. */
#define FOLD(verb) i16_##verb
#define VALUE int16_t
#define WORD uint16_t
#define PRODUCT uint32_t
#define QUOTIENT int64_t
#define IS_NAN(x) false
#include "device/fold_rows.inc"

#define FOLD(verb) i8_##verb
#define VALUE int8_t
#define WORD uint8_t
#define PRODUCT uint32_t
#define QUOTIENT int64_t
#define IS_NAN(x) false
#include "device/fold_rows.inc"

#define FOLD(verb) u8_##verb
#define VALUE uint8_t
#define WORD uint8_t
#define PRODUCT uint32_t
#define QUOTIENT int64_t
#define IS_NAN(x) false
#include "device/fold_rows.inc"

/* ---- complex: pairs of reals */

static void c64_sum(void *to, const void *a, const void *b, int64_t count)
{
    f32_sum(to, a, b, 2 * count);
}

static void c64_divide(void *values, int64_t count, int64_t divisor)
{
    f32_divide(values, 2 * count, divisor);
}

static void c64_prod(void *to, const void *a, const void *b, int64_t count)
{
    float *restrict t = to;
    const float *x = a, *y = b;
    for (int64_t i = 0; i < count; i++) {
        float xr = x[2 * i], xi = x[2 * i + 1], yr = y[2 * i], yi = y[2 * i + 1];
        t[2 * i] = xr * yr - xi * yi;
        t[2 * i + 1] = xr * yi + xi * yr;
    }
}

static void c128_sum(void *to, const void *a, const void *b, int64_t count)
{
    f64_sum(to, a, b, 2 * count);
}

static void c128_divide(void *values, int64_t count, int64_t divisor)
{
    f64_divide(values, 2 * count, divisor);
}

static void c128_prod(void *to, const void *a, const void *b, int64_t count)
{
    double *restrict t = to;
    const double *x = a, *y = b;
    for (int64_t i = 0; i < count; i++) {
        double xr = x[2 * i], xi = x[2 * i + 1], yr = y[2 * i], yi = y[2 * i + 1];
        t[2 * i] = xr * yr - xi * yi;
        t[2 * i + 1] = xr * yi + xi * yr;
    }
}

/* ---- logic, by width */

static void and_8(void *to, const void *a, const void *b, int64_t count)
{
    uint8_t *restrict t = to;
    const uint8_t *x = a, *y = b;
    for (int64_t i = 0; i < count; i++)
        t[i] = (uint8_t)((x[i] != 0) & (y[i] != 0));
}

static void or_8(void *to, const void *a, const void *b, int64_t count)
{
    uint8_t *restrict t = to;
    const uint8_t *x = a, *y = b;
    for (int64_t i = 0; i < count; i++)
        t[i] = (uint8_t)((x[i] | y[i]) != 0);
}

static void and_16(void *to, const void *a, const void *b, int64_t count)
{
    uint16_t *restrict t = to;
    const uint16_t *x = a, *y = b;
    for (int64_t i = 0; i < count; i++)
        t[i] = (uint16_t)((x[i] != 0) & (y[i] != 0));
}

static void or_16(void *to, const void *a, const void *b, int64_t count)
{
    uint16_t *restrict t = to;
    const uint16_t *x = a, *y = b;
    for (int64_t i = 0; i < count; i++)
        t[i] = (uint16_t)((x[i] | y[i]) != 0);
}

static void and_32(void *to, const void *a, const void *b, int64_t count)
{
    uint32_t *restrict t = to;
    const uint32_t *x = a, *y = b;
    for (int64_t i = 0; i < count; i++)
        t[i] = (uint32_t)((x[i] != 0) & (y[i] != 0));
}

static void or_32(void *to, const void *a, const void *b, int64_t count)
{
    uint32_t *restrict t = to;
    const uint32_t *x = a, *y = b;
    for (int64_t i = 0; i < count; i++)
        t[i] = (uint32_t)((x[i] | y[i]) != 0);
}

static void and_64(void *to, const void *a, const void *b, int64_t count)
{
    uint64_t *restrict t = to;
    const uint64_t *x = a, *y = b;
    for (int64_t i = 0; i < count; i++)
        t[i] = (uint64_t)((x[i] != 0) & (y[i] != 0));
}

static void or_64(void *to, const void *a, const void *b, int64_t count)
{
    uint64_t *restrict t = to;
    const uint64_t *x = a, *y = b;
    for (int64_t i = 0; i < count; i++)
        t[i] = (uint64_t)((x[i] | y[i]) != 0);
}

/* ---- bits: the type does not matter but for its width */

static void band_bytes(void *to, const void *a, const void *b, int64_t count)
{
    uint8_t *restrict t = to;
    const uint8_t *x = a, *y = b;
    for (int64_t i = 0; i < count; i++)
        t[i] = x[i] & y[i];
}

static void bor_bytes(void *to, const void *a, const void *b, int64_t count)
{
    uint8_t *restrict t = to;
    const uint8_t *x = a, *y = b;
    for (int64_t i = 0; i < count; i++)
        t[i] = x[i] | y[i];
}

static void band_16(void *to, const void *a, const void *b, int64_t count)
{
    band_bytes(to, a, b, 2 * count);
}

static void bor_16(void *to, const void *a, const void *b, int64_t count)
{
    bor_bytes(to, a, b, 2 * count);
}

static void band_32(void *to, const void *a, const void *b, int64_t count)
{
    band_bytes(to, a, b, 4 * count);
}

static void bor_32(void *to, const void *a, const void *b, int64_t count)
{
    bor_bytes(to, a, b, 4 * count);
}

static void band_64(void *to, const void *a, const void *b, int64_t count)
{
    band_bytes(to, a, b, 8 * count);
}

static void bor_64(void *to, const void *a, const void *b, int64_t count)
{
    bor_bytes(to, a, b, 8 * count);
}

/* Columns: none sum avg min max prod and or band bor. NULL where tsi_reduce_allowed says no. */
#define LOGIC(width) and_##width, or_##width, band_##width, bor_##width
#define NUMBER(type) NULL, type##_sum, type##_sum, type##_min, type##_max, type##_prod
static const tsi_fold_rows_fn rows_of[TS_DTYPE_COUNT][TS_REDUCE_COUNT] = {
    [TS_DTYPE_F64] = { NUMBER(f64) },
    [TS_DTYPE_F32] = { NUMBER(f32) },
    [TS_DTYPE_I64] = { NUMBER(i64), LOGIC(64) },
    [TS_DTYPE_I32] = { NUMBER(i32), LOGIC(32) },
    [TS_DTYPE_I16] = { NUMBER(i16), LOGIC(16) },
    [TS_DTYPE_I8] = { NUMBER(i8), and_8, or_8, band_bytes, bor_bytes },
    [TS_DTYPE_U8] = { NUMBER(u8), and_8, or_8, band_bytes, bor_bytes },
    [TS_DTYPE_BOOL] = { [TS_REDUCE_MIN] = and_8, [TS_REDUCE_MAX] = or_8, [TS_REDUCE_AND] = and_8,
                        [TS_REDUCE_OR] = or_8, [TS_REDUCE_BAND] = and_8, [TS_REDUCE_BOR] = or_8 },
    [TS_DTYPE_C64] = { NULL, c64_sum, c64_sum, NULL, NULL, c64_prod },
    [TS_DTYPE_C128] = { NULL, c128_sum, c128_sum, NULL, NULL, c128_prod },
};
#undef LOGIC
#undef NUMBER

static void (*const divide_of[TS_DTYPE_COUNT])(void *, int64_t, int64_t) = {
    [TS_DTYPE_F64] = f64_divide, [TS_DTYPE_F32] = f32_divide, [TS_DTYPE_I64] = i64_divide,
    [TS_DTYPE_I32] = i32_divide, [TS_DTYPE_I16] = i16_divide, [TS_DTYPE_I8] = i8_divide,
    [TS_DTYPE_U8] = u8_divide,   [TS_DTYPE_C64] = c64_divide, [TS_DTYPE_C128] = c128_divide,
};

tsi_fold_kind tsi_cpu_fold_kind(ts_reduce reduce, ts_dtype dtype)
{
    bool half = dtype == TS_DTYPE_BF16 || dtype == TS_DTYPE_F16;
    ts_dtype accumulator = half ? TS_DTYPE_F32 : dtype;
    return (tsi_fold_kind){ .rows = rows_of[accumulator][reduce],
                            .divide = reduce == TS_REDUCE_AVG ? divide_of[accumulator] : NULL,
                            .accumulator = (int32_t)accumulator };
}
