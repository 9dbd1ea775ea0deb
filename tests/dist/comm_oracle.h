/* SPDX-License-Identifier: Apache-2.0 */
/* comm_oracle.h - values, arrays and folds for tests of collectives, written apart from the
 * library.
 *
 * Every element of every rank's input is a pure function of (key, rank, index), so that each rank
 * knows what all others hold and computes the expected result by itself. Arrays are [rows x cols],
 * dense or with gaps; the gaps are filled with a guard byte that must survive. Folds go one element
 * at a time in group order. With TEST_MEMORY=device arrays lie in memory of the rank's device, and
 * `memory` is their image on the host. */
#ifndef TESTS_DIST_COMM_ORACLE_H
#define TESTS_DIST_COMM_ORACLE_H

#include <math.h>
#include <stdlib.h>

#include "device/device.h"
#include "harness/test.h"
#include "tessera/comm.h"

enum { ORACLE_GUARD = 0xA5, ORACLE_ELEMENT_MAX = 16 };

/* ---- numbers --------------------------------------------------------------------------------- */

static inline uint64_t oracle_hash(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t h = a * 0x9E3779B97F4A7C15u ^ b * 0xC2B2AE3D27D4EB4Fu ^ c * 0x165667B19E3779F9u;
    h ^= h >> 31;
    h *= 0xBF58476D1CE4E5B9u;
    h ^= h >> 27;
    h *= 0x94D049BB133111EBu;
    return h ^ h >> 31;
}

/* The 16-bit format with `mantissa` bits, by arithmetic: nearest, ties to even, overflow to
 * infinity. */
static inline uint16_t oracle_narrow(float value, int mantissa, int exponent_min, int exponent_max)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double size = fabs((double)value);
    int shift;
    if (size == 0) return sign;
    (void)frexp(size, &shift);
    int exponent = shift - 1 < exponent_min ? exponent_min : shift - 1;
    double units = nearbyint(ldexp(size, mantissa - exponent)); /* exact in double, then to even */
    if (units >= ldexp(2, mantissa)) {
        units /= 2;
        exponent++;
    }
    uint16_t infinity = (uint16_t)((exponent_max - exponent_min + 2) << mantissa);
    if (isinf(value) || exponent > exponent_max) return (uint16_t)(sign | infinity);
    uint16_t bits = (uint16_t)units;
    if (bits >= 1u << mantissa) bits = (uint16_t)(bits + ((exponent - exponent_min) << mantissa));
    return (uint16_t)(sign | bits);
}

static inline float oracle_widen(uint16_t bits, int mantissa, int exponent_min, int exponent_max)
{
    int field = (bits & 0x7FFF) >> mantissa, top = exponent_max - exponent_min + 2;
    int fraction = bits & ((1 << mantissa) - 1);
    double size = field == top ? HUGE_VAL
                  : field == 0
                      ? ldexp(fraction, exponent_min - mantissa)
                      : ldexp(fraction + (1 << mantissa), exponent_min + field - 1 - mantissa);
    return (float)(bits & 0x8000 ? -size : size);
}

static inline uint16_t oracle_to_half(ts_dtype dtype, float value)
{
    return dtype == TS_DTYPE_BF16 ? oracle_narrow(value, 7, -126, 127)
                                  : oracle_narrow(value, 10, -14, 15);
}

static inline float oracle_of_half(ts_dtype dtype, uint16_t bits)
{
    return dtype == TS_DTYPE_BF16 ? oracle_widen(bits, 7, -126, 127)
                                  : oracle_widen(bits, 10, -14, 15);
}

/* Element `index` of the input of `rank`: full bit range for integers, about [-2, 2) for reals. */
static inline void oracle_value(ts_dtype dtype, uint64_t key, int64_t rank, int64_t index,
                                void *element)
{
    uint64_t h = oracle_hash(key, (uint64_t)rank + 1, (uint64_t)index + 1);
    double real = (double)(int64_t)h * 0x1p-62, other = (double)(int64_t)(h * 5) * 0x1p-62;
    float f[2] = { (float)real, (float)other };
    double d[2] = { real, other };
    uint16_t half = oracle_to_half(dtype, f[0]);
    uint8_t truth = (uint8_t)(h >> 40 & 1);
    switch (dtype) {
    case TS_DTYPE_F64:
        memcpy(element, d, 8);
        break;
    case TS_DTYPE_F32:
        memcpy(element, f, 4);
        break;
    case TS_DTYPE_BF16:
    case TS_DTYPE_F16:
        memcpy(element, &half, 2);
        break;
    case TS_DTYPE_I64:
        memcpy(element, &h, 8);
        break;
    case TS_DTYPE_I32:
        memcpy(element, &h, 4);
        break;
    case TS_DTYPE_I16:
        memcpy(element, &h, 2);
        break;
    case TS_DTYPE_I8:
    case TS_DTYPE_U8:
        memcpy(element, &h, 1);
        break;
    case TS_DTYPE_BOOL:
        memcpy(element, &truth, 1);
        break;
    case TS_DTYPE_C64:
        memcpy(element, f, 8);
        break;
    case TS_DTYPE_C128:
        memcpy(element, d, 16);
        break;
    case TS_DTYPE_NONE:
    case TS_DTYPE_COUNT:
        break;
    }
}

/* ---- folds ----------------------------------------------------------------------------------- */

static inline bool oracle_is_float(ts_dtype dtype)
{
    return dtype == TS_DTYPE_F64 || dtype == TS_DTYPE_F32 || dtype == TS_DTYPE_BF16 ||
           dtype == TS_DTYPE_F16;
}

static inline bool oracle_is_complex(ts_dtype dtype)
{
    return dtype == TS_DTYPE_C64 || dtype == TS_DTYPE_C128;
}

static inline bool oracle_allowed(ts_reduce reduce, ts_dtype dtype)
{
    bool arithmetic =
        reduce == TS_REDUCE_SUM || reduce == TS_REDUCE_AVG || reduce == TS_REDUCE_PROD;
    bool order = reduce == TS_REDUCE_MIN || reduce == TS_REDUCE_MAX;
    if (dtype == TS_DTYPE_BOOL) return !arithmetic;
    if (oracle_is_complex(dtype)) return arithmetic;
    if (oracle_is_float(dtype)) return arithmetic || order;
    return true;
}

static inline float oracle_op_f32(ts_reduce reduce, float a, float b)
{
    if (reduce == TS_REDUCE_PROD) return a * b;
    if (reduce == TS_REDUCE_MIN) return b < a ? b : a;
    if (reduce == TS_REDUCE_MAX) return b > a ? b : a;
    return a + b;
}

static inline double oracle_op_f64(ts_reduce reduce, double a, double b)
{
    if (reduce == TS_REDUCE_PROD) return a * b;
    if (reduce == TS_REDUCE_MIN) return b < a ? b : a;
    if (reduce == TS_REDUCE_MAX) return b > a ? b : a;
    return a + b;
}

static inline int64_t oracle_op_int(ts_reduce reduce, int64_t a, int64_t b)
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
        return a != 0 && b != 0;
    case TS_REDUCE_OR:
        return a != 0 || b != 0;
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

static inline int64_t oracle_int(ts_dtype dtype, const void *element)
{
    int64_t i64 = 0;
    int32_t i32 = 0;
    int16_t i16 = 0;
    if (dtype == TS_DTYPE_I64) return memcpy(&i64, element, 8), i64;
    if (dtype == TS_DTYPE_I32) return memcpy(&i32, element, 4), i32;
    if (dtype == TS_DTYPE_I16) return memcpy(&i16, element, 2), i16;
    if (dtype == TS_DTYPE_I8) return *(const int8_t *)element;
    return *(const uint8_t *)element;
}

static inline void oracle_fold_int(ts_dtype dtype, ts_reduce reduce, void *total,
                                   const void *const *in, int64_t count)
{
    size_t size = ts_dtype_size(dtype);
    int64_t result = oracle_int(dtype, in[0]);
    if (reduce == TS_REDUCE_AND || reduce == TS_REDUCE_OR) result = result != 0;
    for (int64_t i = 1; i < count; i++) {
        int64_t wide = oracle_op_int(reduce, result, oracle_int(dtype, in[i]));
        unsigned char low[8];
        memcpy(low, &wide, 8); /* wraps at the width of the type; averages are summed in 64 bits */
        result = reduce == TS_REDUCE_AVG ? wide : oracle_int(dtype, low);
    }
    if (reduce == TS_REDUCE_AVG) result /= count;
    memcpy(total, &result, size);
}

static inline void oracle_fold_f32(ts_dtype dtype, ts_reduce reduce, void *total,
                                   const void *const *in, int64_t count)
{
    float result = 0, value = 0;
    uint16_t half = 0;
    for (int64_t i = 0; i < count; i++) {
        if (dtype == TS_DTYPE_F32) {
            memcpy(&value, in[i], 4);
        } else {
            memcpy(&half, in[i], 2);
            value = oracle_of_half(dtype, half);
        }
        result = i == 0 ? value : oracle_op_f32(reduce, result, value);
    }
    if (reduce == TS_REDUCE_AVG) result /= (float)count;
    half = oracle_to_half(dtype, result);
    if (dtype == TS_DTYPE_F32)
        memcpy(total, &result, 4);
    else
        memcpy(total, &half, 2);
}

static inline void oracle_fold_f64(ts_reduce reduce, void *total, const void *const *in,
                                   int64_t count)
{
    double result = 0, value = 0;
    for (int64_t i = 0; i < count; i++) {
        memcpy(&value, in[i], 8);
        result = i == 0 ? value : oracle_op_f64(reduce, result, value);
    }
    if (reduce == TS_REDUCE_AVG) result /= (double)count;
    memcpy(total, &result, 8);
}

static inline void oracle_fold_c64(ts_reduce reduce, void *total, const void *const *in,
                                   int64_t count)
{
    float r[2] = { 0, 0 }, v[2] = { 0, 0 };
    for (int64_t i = 0; i < count; i++) {
        memcpy(v, in[i], 8);
        float re = reduce == TS_REDUCE_PROD ? r[0] * v[0] - r[1] * v[1] : r[0] + v[0];
        float im = reduce == TS_REDUCE_PROD ? r[0] * v[1] + r[1] * v[0] : r[1] + v[1];
        r[0] = i == 0 ? v[0] : re;
        r[1] = i == 0 ? v[1] : im;
    }
    for (int k = 0; k < 2 && reduce == TS_REDUCE_AVG; k++)
        r[k] /= (float)count;
    memcpy(total, r, 8);
}

static inline void oracle_fold_c128(ts_reduce reduce, void *total, const void *const *in,
                                    int64_t count)
{
    double r[2] = { 0, 0 }, v[2] = { 0, 0 };
    for (int64_t i = 0; i < count; i++) {
        memcpy(v, in[i], 16);
        double re = reduce == TS_REDUCE_PROD ? r[0] * v[0] - r[1] * v[1] : r[0] + v[0];
        double im = reduce == TS_REDUCE_PROD ? r[0] * v[1] + r[1] * v[0] : r[1] + v[1];
        r[0] = i == 0 ? v[0] : re;
        r[1] = i == 0 ? v[1] : im;
    }
    for (int k = 0; k < 2 && reduce == TS_REDUCE_AVG; k++)
        r[k] /= (double)count;
    memcpy(total, r, 16);
}

/* One element from `count` (at least one) elements, in that order. */
static inline void oracle_fold(ts_dtype dtype, ts_reduce reduce, void *total, const void *const *in,
                               int64_t count)
{
    if (dtype == TS_DTYPE_C64)
        oracle_fold_c64(reduce, total, in, count);
    else if (dtype == TS_DTYPE_C128)
        oracle_fold_c128(reduce, total, in, count);
    else if (dtype == TS_DTYPE_F64)
        oracle_fold_f64(reduce, total, in, count);
    else if (oracle_is_float(dtype))
        oracle_fold_f32(dtype, reduce, total, in, count);
    else
        oracle_fold_int(dtype, reduce, total, in, count);
}

/* Element `index` folded over the inputs of `ranks[0..count)`. */
static inline void oracle_folded(ts_dtype dtype, ts_reduce reduce, uint64_t key,
                                 const int64_t *ranks, int64_t count, int64_t index, void *element)
{
    enum { MOST = 64 };
    unsigned char value[MOST][ORACLE_ELEMENT_MAX];
    const void *in[MOST];
    for (int64_t i = 0; i < count && i < MOST; i++) {
        oracle_value(dtype, key, ranks[i], index, value[i]);
        in[i] = value[i];
    }
    oracle_fold(dtype, reduce, element, in, count);
}

/* ---- arrays ---------------------------------------------------------------------------------- */

typedef struct grid {
    ts_array array;
    ts_dtype dtype;
    int64_t rows, cols;
    unsigned char *memory;
    size_t bytes;
    const tsi_device *device; /* NULL: the array is `memory` itself */
} grid;

/* Collectives are in the order of the rank's queue; copies without one are not. */
static inline void grid_settle(const grid *g)
{
    if (g->device) (void)tsi_rank_device_sync(tsi_rank_current());
}

static inline void grid_push(grid *g)
{
    grid_settle(g);
    if (g->device &&
        g->device->copy_in(g->device, g->array.data, g->memory, g->bytes, NULL) != TS_OK)
        abort();
}

static inline void grid_pull(const grid *g)
{
    grid_settle(g);
    if (g->device &&
        g->device->copy_out(g->device, g->memory, g->array.data, g->bytes, NULL) != TS_OK)
        abort();
}

/* The array in memory of the rank's device. */
static inline void grid_to_device(grid *g)
{
    const char *where = getenv("TEST_MEMORY");
    if (!where || strcmp(where, "device") != 0) return;
    const tsi_rank_device *mine = tsi_rank_device_of(tsi_rank_current());
    if (!mine || mine->device->host_readable) return;
    g->device = mine->device;
    if (g->device->buffer_alloc(g->device, g->bytes, &g->array.data) != TS_OK) abort();
    g->array.device = g->device->dlpack_type;
    grid_push(g);
}

/* [rows x cols], all guard bytes; with gaps between columns and rows if `gaps`. */
static inline grid grid_make(ts_dtype dtype, int64_t rows, int64_t cols, bool gaps)
{
    grid g = { .dtype = dtype, .rows = rows, .cols = cols };
    int64_t column = gaps ? 2 : 1, row = gaps ? 2 * cols + 3 : cols;
    g.bytes = (size_t)(rows * row + 1) * ts_dtype_size(dtype);
    g.memory = malloc(g.bytes);
    if (g.memory == NULL) abort();
    memset(g.memory, ORACLE_GUARD, g.bytes);
    g.array = (ts_array){ .struct_size = sizeof(ts_array),
                          .data = g.memory,
                          .meta = { .shape = TS_SHAPE(rows, cols), .dtype = (int32_t)dtype } };
    if (gaps) {
        g.array.stride[0] = row;
        g.array.stride[1] = column;
    }
    grid_to_device(&g);
    return g;
}

static inline void grid_free(grid *g)
{
    if (g->device) g->device->buffer_free(g->device, g->array.data, g->bytes);
    free(g->memory);
    g->memory = NULL;
}

static inline unsigned char *grid_at(const grid *g, int64_t index)
{
    int64_t row = index / g->cols, column = index % g->cols;
    bool gaps = g->array.stride[0] != 0;
    int64_t offset = gaps ? row * g->array.stride[0] + column * g->array.stride[1] : index;
    return g->memory + (size_t)offset * ts_dtype_size(g->dtype);
}

/* The element where the array has it. */
static inline void *grid_place(const grid *g, int64_t index)
{
    return (char *)g->array.data + (grid_at(g, index) - g->memory);
}

/* Elements `first`, first + 1, ... of the input of `rank`. */
static inline void grid_fill(grid *g, uint64_t key, int64_t rank, int64_t first)
{
    for (int64_t i = 0; i < g->rows * g->cols; i++)
        oracle_value(g->dtype, key, rank, first + i, grid_at(g, i));
    grid_push(g);
}

/* Every byte outside the elements still is the guard. Destroys the elements. */
static inline bool grid_guarded(grid *g)
{
    grid_pull(g);
    for (int64_t i = 0; i < g->rows * g->cols; i++)
        memset(grid_at(g, i), ORACLE_GUARD, ts_dtype_size(g->dtype));
    for (size_t i = 0; i < g->bytes; i++)
        if (g->memory[i] != ORACLE_GUARD) return false;
    return true;
}

static inline bool grid_element_is(const grid *g, int64_t index, const void *element)
{
    return memcmp(grid_at(g, index), element, ts_dtype_size(g->dtype)) == 0;
}

/* Rows [first, first + count) hold elements from, from + 1, ... of the input of `rank`. */
static inline bool grid_rows_are(const grid *g, int64_t first, int64_t count, uint64_t key,
                                 int64_t rank, int64_t from)
{
    unsigned char want[ORACLE_ELEMENT_MAX];
    grid_pull(g);
    for (int64_t i = 0; i < count * g->cols; i++) {
        oracle_value(g->dtype, key, rank, from + i, want);
        if (!grid_element_is(g, first * g->cols + i, want)) return false;
    }
    return true;
}

/* The grid holds elements from, from + 1, ... folded over `ranks`. */
static inline bool grid_is_folded(const grid *g, uint64_t key, ts_reduce reduce,
                                  const int64_t *ranks, int64_t count, int64_t from)
{
    unsigned char want[ORACLE_ELEMENT_MAX];
    grid_pull(g);
    for (int64_t i = 0; i < g->rows * g->cols; i++) {
        oracle_folded(g->dtype, reduce, key, ranks, count, from + i, want);
        if (!grid_element_is(g, i, want)) return false;
    }
    return true;
}

#endif
