/* SPDX-License-Identifier: Apache-2.0 */
/* identity.c - which reductions mean something for which dtype, and their identity elements.
 *
 *               sum avg prod   min max   and or   band bor
 *   float        yes            yes       no       no
 *   integer      yes            yes       yes      yes        sums wrap, avg truncates towards zero
 *   bool         no             yes       yes      yes        false < true
 *   complex      yes            no        no       no */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/error.h"
#include "device/device.h"
#include "device/number.h"

typedef enum family {
    FAMILY_NONE,
    FAMILY_FLOAT,
    FAMILY_INTEGER,
    FAMILY_BOOL,
    FAMILY_COMPLEX
} family;

static family family_of(ts_dtype dtype)
{
    switch (dtype) {
    case TS_DTYPE_F64:
    case TS_DTYPE_F32:
    case TS_DTYPE_BF16:
    case TS_DTYPE_F16:
        return FAMILY_FLOAT;
    case TS_DTYPE_I64:
    case TS_DTYPE_I32:
    case TS_DTYPE_I16:
    case TS_DTYPE_I8:
    case TS_DTYPE_U8:
        return FAMILY_INTEGER;
    case TS_DTYPE_BOOL:
        return FAMILY_BOOL;
    case TS_DTYPE_C64:
    case TS_DTYPE_C128:
        return FAMILY_COMPLEX;
    case TS_DTYPE_NONE:
    case TS_DTYPE_COUNT:
        break;
    }
    return FAMILY_NONE;
}

/* Why not, by family; NULL: allowed. */
static const char *refusal(ts_reduce reduce, family kind)
{
    bool complex = kind == FAMILY_COMPLEX, real = kind == FAMILY_FLOAT;
    switch (reduce) {
    case TS_REDUCE_SUM:
        return kind == FAMILY_BOOL ? "sum of booleans (or counts as any)" : NULL;
    case TS_REDUCE_AVG:
        return kind == FAMILY_BOOL ? "average of booleans" : NULL;
    case TS_REDUCE_PROD:
        return kind == FAMILY_BOOL ? "product of booleans (and is all)" : NULL;
    case TS_REDUCE_MIN:
        return complex ? "min of complex numbers" : NULL;
    case TS_REDUCE_MAX:
        return complex ? "max of complex numbers" : NULL;
    case TS_REDUCE_AND:
    case TS_REDUCE_OR:
        return complex ? "logic on complex numbers"
               : real  ? "logic on floating-point numbers"
                       : NULL;
    case TS_REDUCE_BAND:
    case TS_REDUCE_BOR:
        return complex ? "bits of complex numbers" : real ? "bits of floating-point numbers" : NULL;
    case TS_REDUCE_NONE:
    case TS_REDUCE_COUNT:
        break;
    }
    return "no such reduction";
}

bool tsi_reduce_allowed(ts_reduce reduce, ts_dtype dtype, const char **why)
{
    family kind = family_of(dtype);
    const char *phrase = kind == FAMILY_NONE ? "no such dtype" : refusal(reduce, kind);
    if (why) *why = phrase;
    return phrase == NULL;
}

/* 0, 1, or an end of the range. Complex identities are 0 and 1, so the imaginary part stays 0. */
static void write_float(ts_dtype dtype, double value, void *element)
{
    double f64 = value;
    float f32 = (float)value;
    uint16_t bf16 = tsi_bf16_of_f64(value), f16 = tsi_f16_of_f64(value);
    switch (dtype) {
    case TS_DTYPE_F64:
    case TS_DTYPE_C128:
        memcpy(element, &f64, sizeof f64);
        break;
    case TS_DTYPE_F32:
    case TS_DTYPE_C64:
        memcpy(element, &f32, sizeof f32);
        break;
    case TS_DTYPE_BF16:
        memcpy(element, &bf16, sizeof bf16);
        break;
    case TS_DTYPE_F16:
        memcpy(element, &f16, sizeof f16);
        break;
    case TS_DTYPE_I64:
    case TS_DTYPE_I32:
    case TS_DTYPE_I16:
    case TS_DTYPE_I8:
    case TS_DTYPE_U8:
    case TS_DTYPE_BOOL:
    case TS_DTYPE_NONE:
    case TS_DTYPE_COUNT:
        break;
    }
}

/* Little-endian: the low bytes of the value. */
static void write_integer(ts_dtype dtype, int64_t value, void *element)
{
    memcpy(element, &value, ts_dtype_size(dtype));
}

static int64_t integer_end(ts_dtype dtype, bool high)
{
    if (dtype == TS_DTYPE_BOOL) return high;
    if (dtype == TS_DTYPE_U8) return high ? UINT8_MAX : 0;
    int64_t top = INT64_MAX >> (64 - 8 * ts_dtype_size(dtype));
    return high ? top : -top - 1;
}

ts_status tsi_reduce_identity(ts_reduce reduce, ts_dtype dtype, void *element)
{
    const char *why = NULL;
    if (!tsi_reduce_allowed(reduce, dtype, &why))
        return TSI_FAIL(TS_ERR_DTYPE, "the identity of %s for %s does not exist: %s",
                        ts_reduce_name(reduce), ts_dtype_name(dtype), why);
    memset(element, 0, ts_dtype_size(dtype));
    family kind = family_of(dtype);
    bool real = kind == FAMILY_FLOAT || kind == FAMILY_COMPLEX;
    switch (reduce) {
    case TS_REDUCE_PROD:
    case TS_REDUCE_AND:
        if (real)
            write_float(dtype, 1, element);
        else
            write_integer(dtype, 1, element);
        break;
    case TS_REDUCE_MIN:
    case TS_REDUCE_MAX:
        if (real)
            write_float(dtype, reduce == TS_REDUCE_MIN ? (double)INFINITY : -(double)INFINITY,
                        element);
        else
            write_integer(dtype, integer_end(dtype, reduce == TS_REDUCE_MIN), element);
        break;
    case TS_REDUCE_BAND:
        write_integer(dtype, kind == FAMILY_BOOL ? 1 : -1, element);
        break;
    case TS_REDUCE_SUM:
    case TS_REDUCE_AVG:
    case TS_REDUCE_OR:
    case TS_REDUCE_BOR:
    case TS_REDUCE_NONE:
    case TS_REDUCE_COUNT:
        break;
    }
    return TS_OK;
}
