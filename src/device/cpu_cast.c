/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_cast.c - contiguous rows from any dtype to any other, one rounding each (number.h).
 *
 * A pair goes through one of three wide types that hold its source exactly, in a buffer in the L1
 * cache:
 *
 *   f64 f32 bf16 f16         -> f64  \
 *   i64 i32 i16 i8 u8 bool   -> i64   >-> any dtype, rounded once
 *   c64 c128                 -> c128 /      (a real target takes the real part; bool: either part)
 *
 * So 12 + 27 loops serve 144 pairs. Pairs of training (f32 with bf16, f16, f64) have a loop of
 * their own. */
#include "device/cpu.h"

#include "base/compiler.h"
#include "base/intmath.h"
#include "device/number.h"

enum { WIDE_ROWS = 256 }; /* elements of the wide buffer: 4 KiB of c128 */

/* ---- pairs with their own loop */

static void bf16_to_f32(void *to, const void *from, int64_t n)
{
    float *restrict t = to;
    const uint16_t *restrict f = from;
    for (int64_t i = 0; i < n; i++)
        t[i] = tsi_f32_of_bf16(f[i]);
}

static void f32_to_bf16(void *to, const void *from, int64_t n)
{
    uint16_t *restrict t = to;
    const float *restrict f = from;
    for (int64_t i = 0; i < n; i++)
        t[i] = tsi_bf16_of_f32(f[i]);
}

static void f16_to_f32(void *to, const void *from, int64_t n)
{
    float *restrict t = to;
    const uint16_t *restrict f = from;
    for (int64_t i = 0; i < n; i++)
        t[i] = tsi_f32_of_f16(f[i]);
}

static void f32_to_f16(void *to, const void *from, int64_t n)
{
    uint16_t *restrict t = to;
    const float *restrict f = from;
    for (int64_t i = 0; i < n; i++)
        t[i] = tsi_f16_of_f32(f[i]);
}

static void f32_to_f64(void *to, const void *from, int64_t n)
{
    double *restrict t = to;
    const float *restrict f = from;
    for (int64_t i = 0; i < n; i++)
        t[i] = (double)f[i];
}

static void f64_to_f32(void *to, const void *from, int64_t n)
{
    float *restrict t = to;
    const double *restrict f = from;
    for (int64_t i = 0; i < n; i++)
        t[i] = (float)f[i];
}

/* ---- to the wide type */

static void f64_widen(void *to, const void *from, int64_t n)
{
    memcpy(to, from, (size_t)n * sizeof(double));
}

static void bf16_widen(void *to, const void *from, int64_t n)
{
    double *restrict t = to;
    const uint16_t *restrict f = from;
    for (int64_t i = 0; i < n; i++)
        t[i] = (double)tsi_f32_of_bf16(f[i]);
}

static void f16_widen(void *to, const void *from, int64_t n)
{
    double *restrict t = to;
    const uint16_t *restrict f = from;
    for (int64_t i = 0; i < n; i++)
        t[i] = (double)tsi_f32_of_f16(f[i]);
}

static void i64_widen(void *to, const void *from, int64_t n)
{
    memcpy(to, from, (size_t)n * sizeof(int64_t));
}

static void i32_widen(void *to, const void *from, int64_t n)
{
    int64_t *restrict t = to;
    const int32_t *restrict f = from;
    for (int64_t i = 0; i < n; i++)
        t[i] = f[i];
}

static void i16_widen(void *to, const void *from, int64_t n)
{
    int64_t *restrict t = to;
    const int16_t *restrict f = from;
    for (int64_t i = 0; i < n; i++)
        t[i] = f[i];
}

static void i8_widen(void *to, const void *from, int64_t n)
{
    int64_t *restrict t = to;
    const int8_t *restrict f = from;
    for (int64_t i = 0; i < n; i++)
        t[i] = f[i];
}

static void u8_widen(void *to, const void *from, int64_t n)
{
    int64_t *restrict t = to;
    const uint8_t *restrict f = from;
    for (int64_t i = 0; i < n; i++)
        t[i] = f[i];
}

/* A bool from outside may be any byte; all but 0 are true. */
static void bool_widen(void *to, const void *from, int64_t n)
{
    int64_t *restrict t = to;
    const uint8_t *restrict f = from;
    for (int64_t i = 0; i < n; i++)
        t[i] = f[i] != 0;
}

static void c64_widen(void *to, const void *from, int64_t n)
{
    f32_to_f64(to, from, 2 * n);
}

static void c128_widen(void *to, const void *from, int64_t n)
{
    memcpy(to, from, (size_t)n * 16);
}

/* ---- from f64 */

static void f64_to_bf16(void *to, const void *from, int64_t n)
{
    uint16_t *restrict t = to;
    const double *restrict f = from;
    for (int64_t i = 0; i < n; i++)
        t[i] = tsi_bf16_of_f64(f[i]);
}

static void f64_to_f16(void *to, const void *from, int64_t n)
{
    uint16_t *restrict t = to;
    const double *restrict f = from;
    for (int64_t i = 0; i < n; i++)
        t[i] = tsi_f16_of_f64(f[i]);
}

static void f64_to_i64(void *to, const void *from, int64_t n)
{
    int64_t *restrict t = to;
    const double *restrict f = from;
    for (int64_t i = 0; i < n; i++)
        t[i] = tsi_i64_of_f64(f[i]);
}

static void f64_to_i32(void *to, const void *from, int64_t n)
{
    int32_t *restrict t = to;
    const double *restrict f = from;
    for (int64_t i = 0; i < n; i++)
        t[i] = tsi_i32_of_f64(f[i]);
}

static void f64_to_i16(void *to, const void *from, int64_t n)
{
    int16_t *restrict t = to;
    const double *restrict f = from;
    for (int64_t i = 0; i < n; i++)
        t[i] = tsi_i16_of_f64(f[i]);
}

static void f64_to_i8(void *to, const void *from, int64_t n)
{
    int8_t *restrict t = to;
    const double *restrict f = from;
    for (int64_t i = 0; i < n; i++)
        t[i] = tsi_i8_of_f64(f[i]);
}

static void f64_to_u8(void *to, const void *from, int64_t n)
{
    uint8_t *restrict t = to;
    const double *restrict f = from;
    for (int64_t i = 0; i < n; i++)
        t[i] = tsi_u8_of_f64(f[i]);
}

static void f64_to_bool(void *to, const void *from, int64_t n)
{
    uint8_t *restrict t = to;
    const double *restrict f = from;
    for (int64_t i = 0; i < n; i++)
        t[i] = f[i] != 0;
}

static void f64_to_c64(void *to, const void *from, int64_t n)
{
    float *restrict t = to;
    const double *restrict f = from;
    for (int64_t i = 0; i < n; i++) {
        t[2 * i] = (float)f[i];
        t[2 * i + 1] = 0;
    }
}

static void f64_to_c128(void *to, const void *from, int64_t n)
{
    double *restrict t = to;
    const double *restrict f = from;
    for (int64_t i = 0; i < n; i++) {
        t[2 * i] = f[i];
        t[2 * i + 1] = 0;
    }
}

/* ---- from i64 */

static void i64_to_f64(void *to, const void *from, int64_t n)
{
    double *restrict t = to;
    const int64_t *restrict f = from;
    for (int64_t i = 0; i < n; i++)
        t[i] = (double)f[i];
}

/* One by one, since there is no vector code that rounds once; four to a turn, so that how fast it
 * is does not depend on where the linker puts the loop. */
static void i64_to_f32(void *to, const void *from, int64_t n)
{
    enum { TURN = 4 };
    float *restrict t = to;
    const int64_t *restrict f = from;
    int64_t i = 0;
    for (; i + TURN <= n; i += TURN)
        for (int j = 0; j < TURN; j++)
            t[i + j] = (float)f[i + j];
    for (; i < n; i++)
        t[i] = (float)f[i];
}

static void i64_to_bf16(void *to, const void *from, int64_t n)
{
    uint16_t *restrict t = to;
    const int64_t *restrict f = from;
    for (int64_t i = 0; i < n; i++)
        t[i] = tsi_bf16_of_f64(tsi_f64_sticky_of_i64(f[i]));
}

static void i64_to_f16(void *to, const void *from, int64_t n)
{
    uint16_t *restrict t = to;
    const int64_t *restrict f = from;
    for (int64_t i = 0; i < n; i++)
        t[i] = tsi_f16_of_f64(tsi_f64_sticky_of_i64(f[i]));
}

static void i64_to_i32(void *to, const void *from, int64_t n)
{
    uint32_t *restrict t = to;
    const uint64_t *restrict f = from;
    for (int64_t i = 0; i < n; i++)
        t[i] = (uint32_t)f[i];
}

static void i64_to_i16(void *to, const void *from, int64_t n)
{
    uint16_t *restrict t = to;
    const uint64_t *restrict f = from;
    for (int64_t i = 0; i < n; i++)
        t[i] = (uint16_t)f[i];
}

/* i8 and u8: the low byte either way. */
static void i64_to_byte(void *to, const void *from, int64_t n)
{
    uint8_t *restrict t = to;
    const uint64_t *restrict f = from;
    for (int64_t i = 0; i < n; i++)
        t[i] = (uint8_t)f[i];
}

static void i64_to_bool(void *to, const void *from, int64_t n)
{
    uint8_t *restrict t = to;
    const int64_t *restrict f = from;
    for (int64_t i = 0; i < n; i++)
        t[i] = f[i] != 0;
}

static void i64_to_c64(void *to, const void *from, int64_t n)
{
    float *restrict t = to;
    const int64_t *restrict f = from;
    for (int64_t i = 0; i < n; i++) {
        t[2 * i] = (float)tsi_f64_sticky_of_i64(f[i]);
        t[2 * i + 1] = 0;
    }
}

static void i64_to_c128(void *to, const void *from, int64_t n)
{
    double *restrict t = to;
    const int64_t *restrict f = from;
    for (int64_t i = 0; i < n; i++) {
        t[2 * i] = (double)f[i];
        t[2 * i + 1] = 0;
    }
}

/* ---- from c128; other targets take the real parts and go on from f64 */

static void c128_to_c64(void *to, const void *from, int64_t n)
{
    f64_to_f32(to, from, 2 * n);
}

static void c128_to_bool(void *to, const void *from, int64_t n)
{
    uint8_t *restrict t = to;
    const double *restrict f = from;
    for (int64_t i = 0; i < n; i++)
        t[i] = f[2 * i] != 0 || f[2 * i + 1] != 0;
}

static void real_parts(double *restrict to, const double *restrict from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = from[2 * i];
}

/* ---- tables by dtype */

typedef enum wide_kind { WIDE_F64, WIDE_I64, WIDE_C128 } wide_kind;

static const struct {
    wide_kind kind;
    tsi_cast_rows_fn widen;
} wide_of[TS_DTYPE_COUNT] = {
    [TS_DTYPE_F64] = { WIDE_F64, f64_widen },   [TS_DTYPE_F32] = { WIDE_F64, f32_to_f64 },
    [TS_DTYPE_BF16] = { WIDE_F64, bf16_widen }, [TS_DTYPE_F16] = { WIDE_F64, f16_widen },
    [TS_DTYPE_I64] = { WIDE_I64, i64_widen },   [TS_DTYPE_I32] = { WIDE_I64, i32_widen },
    [TS_DTYPE_I16] = { WIDE_I64, i16_widen },   [TS_DTYPE_I8] = { WIDE_I64, i8_widen },
    [TS_DTYPE_U8] = { WIDE_I64, u8_widen },     [TS_DTYPE_BOOL] = { WIDE_I64, bool_widen },
    [TS_DTYPE_C64] = { WIDE_C128, c64_widen },  [TS_DTYPE_C128] = { WIDE_C128, c128_widen },
};

/* NULL for c128: by the real parts. */
static const tsi_cast_rows_fn narrow_to[TS_DTYPE_COUNT][3] = {
    [TS_DTYPE_F64] = { f64_widen, i64_to_f64, NULL },
    [TS_DTYPE_F32] = { f64_to_f32, i64_to_f32, NULL },
    [TS_DTYPE_BF16] = { f64_to_bf16, i64_to_bf16, NULL },
    [TS_DTYPE_F16] = { f64_to_f16, i64_to_f16, NULL },
    [TS_DTYPE_I64] = { f64_to_i64, i64_widen, NULL },
    [TS_DTYPE_I32] = { f64_to_i32, i64_to_i32, NULL },
    [TS_DTYPE_I16] = { f64_to_i16, i64_to_i16, NULL },
    [TS_DTYPE_I8] = { f64_to_i8, i64_to_byte, NULL },
    [TS_DTYPE_U8] = { f64_to_u8, i64_to_byte, NULL },
    [TS_DTYPE_BOOL] = { f64_to_bool, i64_to_bool, c128_to_bool },
    [TS_DTYPE_C64] = { f64_to_c64, i64_to_c64, c128_to_c64 },
    [TS_DTYPE_C128] = { f64_to_c128, i64_to_c128, c128_widen },
};

/* Pairs that need no wide buffer. */
static const tsi_cast_rows_fn direct[TS_DTYPE_COUNT][TS_DTYPE_COUNT] = {
    [TS_DTYPE_F32] = { [TS_DTYPE_BF16] = bf16_to_f32,
                       [TS_DTYPE_F16] = f16_to_f32,
                       [TS_DTYPE_F64] = f64_to_f32,
                       [TS_DTYPE_I64] = i64_to_f32 },
    [TS_DTYPE_BF16] = { [TS_DTYPE_F32] = f32_to_bf16, [TS_DTYPE_F64] = f64_to_bf16 },
    [TS_DTYPE_F16] = { [TS_DTYPE_F32] = f32_to_f16, [TS_DTYPE_F64] = f64_to_f16 },
    [TS_DTYPE_F64] = { [TS_DTYPE_F32] = f32_to_f64, [TS_DTYPE_I64] = i64_to_f64 },
    [TS_DTYPE_I64] = { [TS_DTYPE_I32] = i32_widen, [TS_DTYPE_F64] = f64_to_i64 },
    [TS_DTYPE_I32] = { [TS_DTYPE_I64] = i64_to_i32, [TS_DTYPE_F64] = f64_to_i32 },
    [TS_DTYPE_C128] = { [TS_DTYPE_C64] = c64_widen },
    [TS_DTYPE_C64] = { [TS_DTYPE_C128] = c128_to_c64 },
};

static void cast_through_wide(ts_dtype to_dtype, void *to, ts_dtype from_dtype, const void *from,
                              int64_t count)
{
    union {
        double f64[2 * WIDE_ROWS];
        int64_t i64[WIDE_ROWS];
    } wide;
    double real[WIDE_ROWS];
    size_t to_size = ts_dtype_size(to_dtype), from_size = ts_dtype_size(from_dtype);
    wide_kind kind = wide_of[from_dtype].kind;
    tsi_cast_rows_fn narrow = narrow_to[to_dtype][kind];
    for (int64_t at = 0; at < count; at += WIDE_ROWS) {
        int64_t n = tsi_min_i64(WIDE_ROWS, count - at);
        char *t = (char *)to + (size_t)at * to_size;
        wide_of[from_dtype].widen(&wide, (const char *)from + (size_t)at * from_size, n);
        if (narrow) {
            narrow(t, &wide, n);
        } else {
            real_parts(real, wide.f64, n);
            narrow_to[to_dtype][WIDE_F64](t, real, n);
        }
    }
}

void tsi_cpu_cast_rows(ts_dtype to_dtype, void *to, ts_dtype from_dtype, const void *from,
                       int64_t count)
{
    TSI_ASSERT(to_dtype > 0 && to_dtype < TS_DTYPE_COUNT && from_dtype > 0 &&
               from_dtype < TS_DTYPE_COUNT);
    tsi_cast_rows_fn cast = direct[to_dtype][from_dtype];
    if (cast)
        cast(to, from, count);
    else
        cast_through_wide(to_dtype, to, from_dtype, from, count);
}

void tsi_cpu_narrow_rows(ts_dtype dtype, void *to, const float *from, int64_t count)
{
    if (dtype == TS_DTYPE_BF16)
        f32_to_bf16(to, from, count);
    else
        f32_to_f16(to, from, count);
}
