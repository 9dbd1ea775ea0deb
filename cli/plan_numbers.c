/* SPDX-License-Identifier: Apache-2.0 */
/* plan_numbers.c - the numbers that `tessera plan --check` moves, and how terms are combined.
 *
 * Values are functions of (element, term), so nobody has to keep the tensor. They have six bits
 * behind the leading one and one of two scales: exact in every floating dtype, and sums of up to a
 * thousand of them are exact in f32, so that a lost or doubled term is never within rounding. */
#include <math.h>
#include <string.h>

#include "plan.h"

typedef enum kind { KIND_WHOLE, KIND_REAL, KIND_COMPLEX } kind;

static kind kind_of(ts_dtype dtype)
{
    switch (dtype) {
    case TS_DTYPE_F64:
    case TS_DTYPE_F32:
    case TS_DTYPE_BF16:
    case TS_DTYPE_F16:
        return KIND_REAL;
    case TS_DTYPE_C64:
    case TS_DTYPE_C128:
        return KIND_COMPLEX;
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
    return KIND_WHOLE;
}

void plan_terms_of(const ts_mesh *mesh, const ts_layout *layout, ts_dtype dtype, plan_terms *out)
{
    const ts_sharding *sharding = ts_layout_sharding(layout);
    *out = (plan_terms){ .dtype = dtype, .kind = TS_PLACE_REPLICATE, .count = 1, .divisor = 1 };
    out->item = ts_dtype_size(dtype);
    for (int32_t k = 0; k < ts_sharding_ndim(sharding); k++) {
        ts_placement place = ts_sharding_placement(sharding, k);
        int64_t n = ts_mesh_axis_size(mesh, k);
        if (place.kind != TS_PLACE_PARTIAL && place.kind != TS_PLACE_NORM) continue;
        if (n == 1) continue; /* one term is the value, whatever the kind */
        out->kind = place.kind;
        out->norm = place.norm;
        out->count *= n;
        if (place.reduce == TS_REDUCE_AVG) out->divisor *= n;
        out->reduce = place.reduce == TS_REDUCE_AVG ? TS_REDUCE_SUM : (ts_reduce)place.reduce;
    }
}

/* ---- bits ------------------------------------------------------------------------------------ */
static uint64_t mix(uint64_t element, uint64_t term)
{
    uint64_t x = element * UINT64_C(0x9e3779b97f4a7c15) + (term + 1) * UINT64_C(0xd1342543de82ef95);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* 1.xxxxxx times one of two scales, of either sign; `narrow`: one scale (products, norms). */
static double real_of(uint64_t bits, bool narrow, bool positive)
{
    double value = 1 + (double)(bits & 63) / 64;
    if (!narrow && (bits >> 6 & 1)) value *= 64;
    return !positive && (bits >> 7 & 1) ? -value : value;
}

static uint16_t bf16_bits(double value)
{
    float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    return (uint16_t)(bits >> 16); /* exact: the low half is zero */
}

static uint16_t f16_bits(double value)
{
    int exponent;
    double fraction = frexp(fabs(value), &exponent); /* 0.5 <= fraction < 1: 1.x is 2 * fraction */
    if (value == 0) return 0;
    unsigned mantissa = (unsigned)((2 * fraction - 1) * 1024);
    return (uint16_t)((value < 0 ? 0x8000u : 0) | (unsigned)(exponent - 1 + 15) << 10 | mantissa);
}

static double f16_value(uint16_t bits)
{
    int exponent = bits >> 10 & 31;
    double mantissa = bits & 1023, value;
    if (exponent == 31)
        value = mantissa > 0 ? (double)NAN : HUGE_VAL;
    else
        value = exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);
    return bits & 0x8000 ? -value : value;
}

static void write_real(ts_dtype dtype, double re, double im, void *out)
{
    float single[2] = { (float)re, (float)im };
    double pair[2] = { re, im };
    if (dtype == TS_DTYPE_BF16 || dtype == TS_DTYPE_F16) {
        uint16_t half = dtype == TS_DTYPE_BF16 ? bf16_bits(re) : f16_bits(re);
        memcpy(out, &half, sizeof half);
    } else if (dtype == TS_DTYPE_F32) {
        memcpy(out, single, 4);
    } else if (dtype == TS_DTYPE_C64 || dtype == TS_DTYPE_F64) {
        memcpy(out, dtype == TS_DTYPE_C64 ? (const void *)single : pair, 8);
    } else {
        memcpy(out, pair, 16);
    }
}

static int64_t whole_of(const plan_terms *t, uint64_t bits)
{
    bool small = ts_dtype_size(t->dtype) < 4;
    if (t->dtype == TS_DTYPE_BOOL) return (int64_t)(bits & 1);
    if (t->reduce == TS_REDUCE_PROD) return (int64_t)(bits & 1) + 1;
    /* Any number counts as true; without a reduction only 1 stays what it is. */
    bool logical = t->reduce == TS_REDUCE_AND || t->reduce == TS_REDUCE_OR;
    if (logical) return t->count > 1 ? (int64_t)(bits & 3) - 1 : (int64_t)(bits & 1);
    if (small && t->divisor > 1) return (int64_t)(bits & 1); /* a sum that wraps has no average */
    int64_t value = (int64_t)(bits & (small ? 7 : 0xffff));
    if (bits >> 63) value *= small ? 3 : 64;
    return bits >> 62 & 1 && t->dtype != TS_DTYPE_U8 ? -value : value;
}

void plan_value(const plan_terms *t, bool any_bits, int64_t element, int64_t term, void *out)
{
    uint64_t bits = mix((uint64_t)element, (uint64_t)term);
    if (any_bits && t->dtype != TS_DTYPE_BOOL) {
        uint64_t wide[2] = { bits, bits ^ UINT64_C(0x5851f42d4c957f2d) };
        if (t->item == 4)
            memcpy(out, wide, 4);
        else
            memcpy(out, wide, t->item);
        return;
    }
    if (kind_of(t->dtype) == KIND_WHOLE) {
        int64_t value = whole_of(t, bits);
        memcpy(out, &value, t->item); /* little-endian: the low bytes */
        return;
    }
    bool logical = t->reduce == TS_REDUCE_AND || t->reduce == TS_REDUCE_OR;
    bool narrow = t->reduce == TS_REDUCE_PROD || t->kind == TS_PLACE_NORM;
    double re = real_of(bits, narrow, t->kind == TS_PLACE_NORM);
    if (logical && (bits >> 20 & 1)) re = 0;
    write_real(t->dtype, re, real_of(bits >> 8, narrow, false), out);
}

plan_number plan_read(ts_dtype dtype, const void *element)
{
    plan_number n = { 0 };
    int64_t whole = 0;
    size_t size = ts_dtype_size(dtype);
    if (kind_of(dtype) == KIND_WHOLE) {
        memcpy(&whole, element, size);
        int shift = dtype == TS_DTYPE_U8 || dtype == TS_DTYPE_BOOL ? 0 : 64 - 8 * (int)size;
        n.whole = (int64_t)((uint64_t)whole << shift) >> shift; /* sign */
        return n;
    }
    uint16_t half;
    float single[2] = { 0 };
    double pair[2] = { 0 };
    if (dtype == TS_DTYPE_F32) {
        memcpy(single, element, 4);
        n.re = (double)single[0];
    } else if (size == 2) {
        memcpy(&half, element, 2);
        uint32_t wide = (uint32_t)half << 16;
        memcpy(single, &wide, 4);
        n.re = dtype == TS_DTYPE_BF16 ? (double)single[0] : f16_value(half);
    } else if (dtype == TS_DTYPE_C64) {
        memcpy(single, element, 8);
        n.re = (double)single[0];
        n.im = (double)single[1];
    } else {
        memcpy(pair, element, size);
        n.re = pair[0];
        n.im = pair[1];
    }
    return n;
}

/* ---- combining ------------------------------------------------------------------------------- */
plan_number plan_combine_begin(const plan_terms *t)
{
    plan_number n = { 0 };
    if (t->kind != TS_PLACE_PARTIAL) return n;
    switch (t->reduce) {
    case TS_REDUCE_MIN:
        n = (plan_number){ HUGE_VAL, 0, INT64_MAX };
        break;
    case TS_REDUCE_MAX:
        n = (plan_number){ -HUGE_VAL, 0, INT64_MIN };
        break;
    case TS_REDUCE_PROD:
    case TS_REDUCE_AND:
        n = (plan_number){ 1, 0, 1 };
        break;
    case TS_REDUCE_BAND:
        n.whole = -1;
        break;
    case TS_REDUCE_SUM:
    case TS_REDUCE_AVG:
    case TS_REDUCE_OR:
    case TS_REDUCE_BOR:
    case TS_REDUCE_NONE:
    case TS_REDUCE_COUNT:
        break;
    }
    return n;
}

static void combine_sum(plan_number x, plan_number *a)
{
    a->re += x.re;
    a->im += x.im;
    a->whole = (int64_t)((uint64_t)a->whole + (uint64_t)x.whole);
}

static void combine_product(plan_number x, plan_number *a)
{
    plan_number p = *a;
    a->re = p.re * x.re - p.im * x.im;
    a->im = p.re * x.im + p.im * x.re;
    a->whole = (int64_t)((uint64_t)a->whole * (uint64_t)x.whole);
}

void plan_combine(const plan_terms *t, plan_number x, plan_number *a, double *size)
{
    bool whole = kind_of(t->dtype) == KIND_WHOLE;
    bool set = whole ? x.whole != 0 : x.re != 0;
    *size += fabs(x.re) + fabs(x.im);
    if (t->kind == TS_PLACE_NORM) {
        a->re += pow(fabs(x.re), t->norm);
        return;
    }
    switch (t->reduce) {
    case TS_REDUCE_MIN:
        a->re = fmin(a->re, x.re);
        if (x.whole < a->whole) a->whole = x.whole;
        break;
    case TS_REDUCE_MAX:
        a->re = fmax(a->re, x.re);
        if (x.whole > a->whole) a->whole = x.whole;
        break;
    case TS_REDUCE_PROD:
        combine_product(x, a);
        break;
    case TS_REDUCE_AND:
        a->whole = a->whole && set;
        a->re = a->re != 0 && set;
        break;
    case TS_REDUCE_OR:
        a->whole = a->whole || set;
        a->re = a->re != 0 || set;
        break;
    case TS_REDUCE_BAND:
        a->whole &= x.whole;
        break;
    case TS_REDUCE_BOR:
        a->whole |= x.whole;
        break;
    case TS_REDUCE_SUM:
    case TS_REDUCE_AVG:
    case TS_REDUCE_NONE:
    case TS_REDUCE_COUNT:
        combine_sum(x, a);
        break;
    }
}

void plan_combine_end(const plan_terms *t, plan_number *a)
{
    if (t->kind == TS_PLACE_NORM) a->re = pow(a->re, 1 / t->norm);
    if (t->divisor > 1) {
        a->re /= (double)t->divisor;
        a->im /= (double)t->divisor;
        a->whole /= t->divisor; /* towards zero */
    }
    if (kind_of(t->dtype) != KIND_WHOLE) return;
    int64_t value = a->whole;
    a->whole = plan_read(t->dtype, &value).whole; /* wraps as the dtype does */
}

/* ---- comparing ------------------------------------------------------------------------------- */
/* Distance from 1 to the next number; a sum of f32 and wider is exact by the choice of numbers. */
static double step_of(ts_dtype dtype)
{
    if (dtype == TS_DTYPE_BF16) return 0x1p-7;
    if (dtype == TS_DTYPE_F16) return 0x1p-10;
    return dtype == TS_DTYPE_F32 || dtype == TS_DTYPE_C64 ? 0x1p-23 : 0x1p-52;
}

static bool near(double a, double b, double slack)
{
    return a == b || fabs(a - b) <= slack || (isnan(a) && isnan(b));
}

bool plan_same(const plan_terms *t, plan_number a, plan_number b, double size, bool rounded)
{
    if (kind_of(t->dtype) == KIND_WHOLE) {
        /* Averages of averages of integers drop a fraction each time. */
        int64_t slack_whole = t->divisor > 1 ? t->count : 0;
        return a.whole - b.whole <= slack_whole && b.whole - a.whole <= slack_whole;
    }
    double step = step_of(t->dtype), slack = 0;
    bool narrow = step > 0x1p-20;
    bool product = t->kind == TS_PLACE_PARTIAL && t->reduce == TS_REDUCE_PROD;
    bool sum = t->kind == TS_PLACE_PARTIAL && t->reduce == TS_REDUCE_SUM;
    if (t->kind == TS_PLACE_NORM || product) slack = 8 * (double)t->count * step * fabs(a.re);
    if (product) slack += 8 * (double)t->count * step * fabs(a.im);
    if (sum && (narrow || t->divisor > 1 || rounded)) slack = (double)t->count * step * size;
    return near(a.re, b.re, slack) && (kind_of(t->dtype) == KIND_REAL || near(a.im, b.im, slack));
}
