/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_fold_rows.c - reductions of contiguous rows: every reduction, every type, one to four sources
 * at once.
 *
 * INV: the operations of an element in the order of its sources, rounded as IEEE says: no
 * reassociation, no fusing. bf16 and f16 accumulate in f32 and are rounded once, at the end.
 * Integers wrap, averages of them in 64 bits. Complex numbers add as pairs of reals and multiply as
 * (ac - bd, ad + bc), without scaling. */
#include "base/compiler.h"
#include "device/cpu.h"
#include "device/number.h"

#define FOLD(verb) f64_##verb
#define ELEMENT double
#define VALUE double
#define WORD double
#define QUOTIENT double
#define TOTAL double
#define LOAD(x) (x)
#define STORE(x) (x)
#define IS_NAN(x) ((x) != (x))
#include "device/fold_type.inc"

#define FOLD(verb) f32_##verb
#define ELEMENT float
#define VALUE float
#define WORD float
#define QUOTIENT float
#define TOTAL float
#define LOAD(x) (x)
#define STORE(x) (x)
#define IS_NAN(x) ((x) != (x))
#include "device/fold_type.inc"

#define FOLD(verb) bf16_##verb
#define ELEMENT uint16_t
#define VALUE float
#define WORD float
#define QUOTIENT float
#define TOTAL float
#define LOAD(x) tsi_f32_of_bf16(x)
#define STORE(x) tsi_bf16_of_f32(x)
#define IS_NAN(x) ((x) != (x))
#include "device/fold_type.inc"

#define FOLD(verb) f16_##verb
#define ELEMENT uint16_t
#define VALUE float
#define WORD float
#define QUOTIENT float
#define TOTAL float
#define LOAD(x) tsi_f32_of_f16(x)
#define STORE(x) tsi_f16_of_f32(x)
#define IS_NAN(x) ((x) != (x))
#include "device/fold_type.inc"

#define FOLD(verb) i64_##verb
#define ELEMENT int64_t
#define VALUE int64_t
#define WORD uint64_t
#define QUOTIENT int64_t
#define TOTAL uint64_t
#define LOAD(x) (x)
#define STORE(x) (x)
#define IS_NAN(x) false
#include "device/fold_type.inc"

#define FOLD(verb) i32_##verb
#define ELEMENT int32_t
#define VALUE int32_t
#define WORD uint32_t
#define QUOTIENT int64_t
#define TOTAL uint64_t
#define LOAD(x) (x)
#define STORE(x) (x)
#define IS_NAN(x) false
#include "device/fold_type.inc"

/* Narrow words are added and multiplied in 32 unsigned bits: promoted to int a product could
 * overflow. */
#define FOLD(verb) i16_##verb
#define ELEMENT int16_t
#define VALUE int16_t
#define WORD uint32_t
#define QUOTIENT int64_t
#define TOTAL uint64_t
#define LOAD(x) (x)
#define STORE(x) (x)
#define IS_NAN(x) false
#include "device/fold_type.inc"

#define FOLD(verb) i8_##verb
#define ELEMENT int8_t
#define VALUE int8_t
#define WORD uint32_t
#define QUOTIENT int64_t
#define TOTAL uint64_t
#define LOAD(x) (x)
#define STORE(x) (x)
#define IS_NAN(x) false
#include "device/fold_type.inc"

#define FOLD(verb) u8_##verb
#define ELEMENT uint8_t
#define VALUE uint8_t
#define WORD uint32_t
#define QUOTIENT int64_t
#define TOTAL uint64_t
#define LOAD(x) (x)
#define STORE(x) (x)
#define IS_NAN(x) false
#include "device/fold_type.inc"

#define FOLD(verb) verb##_8
#define WORD uint8_t
#include "device/fold_logic.inc"

#define FOLD(verb) verb##_16
#define WORD uint16_t
#include "device/fold_logic.inc"

#define FOLD(verb) verb##_32
#define WORD uint32_t
#include "device/fold_logic.inc"

#define FOLD(verb) verb##_64
#define WORD uint64_t
#include "device/fold_logic.inc"

/* ---- complex: pairs of reals */

static void c64_sum(void *to, const void *const *from, int64_t sources, int64_t count,
                    int64_t divisor)
{
    f32_sum(to, from, sources, 2 * count, divisor);
}

static void c64_avg(void *to, const void *const *from, int64_t sources, int64_t count,
                    int64_t divisor)
{
    f32_avg(to, from, sources, 2 * count, divisor);
}

static void c128_sum(void *to, const void *const *from, int64_t sources, int64_t count,
                     int64_t divisor)
{
    f64_sum(to, from, sources, 2 * count, divisor);
}

static void c128_avg(void *to, const void *const *from, int64_t sources, int64_t count,
                     int64_t divisor)
{
    f64_avg(to, from, sources, 2 * count, divisor);
}

static void c64_prod(void *to, const void *const *from, int64_t sources, int64_t count,
                     int64_t divisor)
{
    (void)divisor;
    float *t = to;
    for (int64_t i = 0; i < count; i++) {
        const float *x = from[0];
        float re = x[2 * i], im = x[2 * i + 1];
        for (int64_t k = 1; k < sources; k++) {
            const float *y = from[k];
            float next = re * y[2 * i] - im * y[2 * i + 1];
            im = re * y[2 * i + 1] + im * y[2 * i];
            re = next;
        }
        t[2 * i] = re;
        t[2 * i + 1] = im;
    }
}

static void c128_prod(void *to, const void *const *from, int64_t sources, int64_t count,
                      int64_t divisor)
{
    (void)divisor;
    double *t = to;
    for (int64_t i = 0; i < count; i++) {
        const double *x = from[0];
        double re = x[2 * i], im = x[2 * i + 1];
        for (int64_t k = 1; k < sources; k++) {
            const double *y = from[k];
            double next = re * y[2 * i] - im * y[2 * i + 1];
            im = re * y[2 * i + 1] + im * y[2 * i];
            re = next;
        }
        t[2 * i] = re;
        t[2 * i + 1] = im;
    }
}

/* Columns: none sum avg min max prod and or band bor. NULL where tsi_reduce_allowed says no. */
#define NUMBER(type) NULL, type##_sum, type##_avg, type##_min, type##_max, type##_prod
#define LOGIC(width) and_##width, or_##width, band_##width, bor_##width
static const tsi_fold_rows_fn rows_of[TS_DTYPE_COUNT][TS_REDUCE_COUNT] = {
    [TS_DTYPE_F64] = { NUMBER(f64) },
    [TS_DTYPE_F32] = { NUMBER(f32) },
    [TS_DTYPE_BF16] = { NUMBER(bf16) },
    [TS_DTYPE_F16] = { NUMBER(f16) },
    [TS_DTYPE_I64] = { NUMBER(i64), LOGIC(64) },
    [TS_DTYPE_I32] = { NUMBER(i32), LOGIC(32) },
    [TS_DTYPE_I16] = { NUMBER(i16), LOGIC(16) },
    [TS_DTYPE_I8] = { NUMBER(i8), LOGIC(8) },
    [TS_DTYPE_U8] = { NUMBER(u8), LOGIC(8) },
    /* A bool may come as any byte: the bitwise forms are the logical ones. */
    [TS_DTYPE_BOOL] = { [TS_REDUCE_MIN] = and_8,
                        [TS_REDUCE_MAX] = or_8,
                        [TS_REDUCE_AND] = and_8,
                        [TS_REDUCE_OR] = or_8,
                        [TS_REDUCE_BAND] = and_8,
                        [TS_REDUCE_BOR] = or_8 },
    [TS_DTYPE_C64] = { NULL, c64_sum, c64_avg, NULL, NULL, c64_prod },
    [TS_DTYPE_C128] = { NULL, c128_sum, c128_avg, NULL, NULL, c128_prod },
};
#undef LOGIC
#undef NUMBER

tsi_fold_rows_fn tsi_cpu_fold_rows(ts_reduce reduce, ts_dtype dtype)
{
    return rows_of[dtype][reduce];
}
