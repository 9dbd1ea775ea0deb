/* SPDX-License-Identifier: Apache-2.0 */
/* element.c - loading and storing single elements through the device's cast of rows, and the loops
 * of references.
 *
 * Conversions go through the casts of the cpu device (device/number.h) where rounding matters, so
 * that there is one rule of rounding in the project; the exact ones are done here. */
#include "op/core/element.h"

#include "device/cpu.h"
#include "device/number.h"

#include <string.h>

tsi_category tsi_dtype_category(ts_dtype dtype)
{
    switch (dtype) {
    case TS_DTYPE_F64:
    case TS_DTYPE_F32:
    case TS_DTYPE_BF16:
    case TS_DTYPE_F16:
        return TSI_CATEGORY_REAL;
    case TS_DTYPE_I64:
    case TS_DTYPE_I32:
    case TS_DTYPE_I16:
    case TS_DTYPE_I8:
    case TS_DTYPE_U8:
        return TSI_CATEGORY_INT;
    case TS_DTYPE_C64:
    case TS_DTYPE_C128:
        return TSI_CATEGORY_COMPLEX;
    case TS_DTYPE_BOOL:
    case TS_DTYPE_NONE:
    case TS_DTYPE_COUNT:
        break;
    }
    return TSI_CATEGORY_BOOL;
}

static ts_dtype promote_reals(ts_dtype a, ts_dtype b)
{
    if (a == b) return a;
    if (a == TS_DTYPE_F64 || b == TS_DTYPE_F64) return TS_DTYPE_F64;
    return TS_DTYPE_F32;
}

static ts_dtype promote_ints(ts_dtype a, ts_dtype b)
{
    if (a == b) return a;
    if (a == TS_DTYPE_U8 ||
        b == TS_DTYPE_U8) { /* unsigned with signed: the signed type that holds both */
        ts_dtype other = a == TS_DTYPE_U8 ? b : a;
        return other == TS_DTYPE_I8 ? TS_DTYPE_I16 : other;
    }
    return ts_dtype_size(a) >= ts_dtype_size(b) ? a : b;
}

ts_dtype tsi_dtype_promote(ts_dtype a, ts_dtype b)
{
    tsi_category ca = tsi_dtype_category(a), cb = tsi_dtype_category(b);
    if (ca < cb) {
        ts_dtype swap = a;
        a = b;
        b = swap;
        tsi_category kind = ca;
        ca = cb;
        cb = kind;
    }
    switch (ca) {
    case TSI_CATEGORY_BOOL:
        return a;
    case TSI_CATEGORY_INT:
        return cb == TSI_CATEGORY_INT ? promote_ints(a, b) : a;
    case TSI_CATEGORY_REAL:
        return cb == TSI_CATEGORY_REAL ? promote_reals(a, b) : a;
    case TSI_CATEGORY_COMPLEX:
        return a == TS_DTYPE_C128 || b == TS_DTYPE_C128 || b == TS_DTYPE_F64 ? TS_DTYPE_C128 : a;
    }
    return a;
}

ts_dtype tsi_dtype_to_real(ts_dtype dtype)
{
    return tsi_dtype_category(dtype) >= TSI_CATEGORY_REAL ? dtype : TS_DTYPE_F32;
}

/* ---- elements -------------------------------------------------------------------------------- */

/* One element from one dtype to another by the project's only cast. */
static void cast_one(ts_dtype to_dtype, void *to, ts_dtype from_dtype, const void *from)
{
    unsigned char copy[16]; /* `to` and `from` may be the same */
    memcpy(copy, from, ts_dtype_size(from_dtype));
    if (to_dtype == from_dtype)
        memcpy(to, copy, ts_dtype_size(to_dtype));
    else
        tsi_cpu_cast_rows(to_dtype, to, from_dtype, copy, 1);
}

double tsi_load_real(ts_dtype dtype, const void *element)
{
    double value = 0;
    float narrow;
    uint16_t half;
    switch (dtype) {
    case TS_DTYPE_F64:
        memcpy(&value, element, sizeof value);
        return value;
    case TS_DTYPE_F32:
        memcpy(&narrow, element, sizeof narrow);
        return (double)narrow;
    case TS_DTYPE_BF16:
        memcpy(&half, element, sizeof half);
        return (double)tsi_f32_of_bf16(half);
    case TS_DTYPE_F16:
    case TS_DTYPE_I64:
    case TS_DTYPE_I32:
    case TS_DTYPE_U8:
    case TS_DTYPE_BOOL:
    case TS_DTYPE_I16:
    case TS_DTYPE_I8:
    case TS_DTYPE_C64:
    case TS_DTYPE_C128:
    case TS_DTYPE_NONE:
    case TS_DTYPE_COUNT:
        break;
    }
    cast_one(TS_DTYPE_F64, &value, dtype, element);
    return value;
}

int64_t tsi_load_int(ts_dtype dtype, const void *element)
{
    int64_t value = 0;
    if (dtype == TS_DTYPE_I64) {
        memcpy(&value, element, sizeof value);
        return value;
    }
    cast_one(TS_DTYPE_I64, &value, dtype, element);
    return value;
}

double complex tsi_load_complex(ts_dtype dtype, const void *element)
{
    double complex value = 0;
    if (dtype == TS_DTYPE_F32 || dtype == TS_DTYPE_F64) return tsi_load_real(dtype, element);
    cast_one(TS_DTYPE_C128, &value, dtype, element);
    return value;
}

void tsi_store_real(ts_dtype dtype, void *element, double value)
{
    if (dtype == TS_DTYPE_F32) {
        float narrow = (float)value;
        memcpy(element, &narrow, sizeof narrow);
    } else {
        cast_one(dtype, element, TS_DTYPE_F64, &value);
    }
}

void tsi_store_int(ts_dtype dtype, void *element, int64_t value)
{
    cast_one(dtype, element, TS_DTYPE_I64, &value);
}

void tsi_store_complex(ts_dtype dtype, void *element, double complex value)
{
    if (dtype == TS_DTYPE_F32 || dtype == TS_DTYPE_F64) {
        tsi_store_real(dtype, element, creal(value));
        return;
    }
    cast_one(dtype, element, TS_DTYPE_C128, &value);
}

void tsi_store_number(ts_dtype dtype, void *element, ts_number value)
{
    if (value.kind == TS_NUMBER_INT)
        tsi_store_int(dtype, element, value.whole);
    else if (tsi_dtype_category(dtype) == TSI_CATEGORY_COMPLEX)
        tsi_store_complex(dtype, element, tsi_number_both(value));
    else
        tsi_store_real(dtype, element, value.real);
}

/* ---- loops ----------------------------------------------------------------------------------- */

bool tsi_loop_begin(tsi_loop *loop)
{
    memset(loop->index, 0, sizeof loop->index);
    memset(loop->at, 0, sizeof loop->at);
    for (int32_t d = 0; d < loop->ndim; d++)
        if (loop->extent[d] == 0) return false;
    return true;
}

bool tsi_loop_next(tsi_loop *loop)
{
    for (int32_t d = loop->ndim - 1; d >= 0; d--) {
        for (int32_t k = 0; k < loop->operand_count; k++)
            loop->at[k] += loop->stride[k][d];
        if (++loop->index[d] < loop->extent[d]) return true;
        for (int32_t k = 0; k < loop->operand_count; k++)
            loop->at[k] -= loop->stride[k][d] * loop->extent[d];
        loop->index[d] = 0;
    }
    return false;
}

tsi_loop tsi_loop_of(const tsi_block *over, const int64_t *const *stride)
{
    tsi_loop loop = { .ndim = over->ndim };
    memcpy(loop.extent, over->extent, sizeof loop.extent);
    for (; loop.operand_count < TSI_LOOP_OPERANDS && stride[loop.operand_count];
         loop.operand_count++)
        loop.stride[loop.operand_count] = stride[loop.operand_count];
    return loop;
}

tsi_loop tsi_loop_over(const tsi_block *block)
{
    return TSI_LOOP(block, block->stride);
}

void tsi_broadcast_strides(const tsi_block *block, int32_t ndim, const int64_t *extent,
                           int64_t *stride)
{
    for (int32_t d = 0; d < TS_NDIM_MAX; d++)
        stride[d] = 0;
    for (int32_t d = 0; d < ndim; d++) {
        int32_t mine = d - (ndim - block->ndim);
        if (mine < 0 || (block->extent[mine] == 1 && extent[d] != 1)) continue;
        stride[d] = block->stride[mine];
    }
}
