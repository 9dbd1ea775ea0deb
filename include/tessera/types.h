/* SPDX-License-Identifier: Apache-2.0 */
/* types.h - the small values of the public API: dtypes, reductions, shapes, blocks of memory.
 *
 * All structs here are frozen or begin with struct_size. Option structs are filled in one of two
 * ways (docs/design/0026-zeros-in-options.md):
 *
 *   ts_x_options o; ts_x_options_init(&o);   real defaults, and every number said is meant, 0 too
 *   TS_INIT(ts_x_options), TS_OPTIONS(..)    zeros: where a comment says "0: 1e-5", that default
 */
#ifndef TESSERA_TYPES_H
#define TESSERA_TYPES_H

#include <stddef.h>
#include <stdint.h>

#include "export.h"
#include "status.h"

/* X(NAME, text, bytes). The numbers are part of the ABI: append only. */
#define TS_DTYPE_LIST(X)                                                                           \
    X(F64, "f64", 8)                                                                               \
    X(F32, "f32", 4)                                                                               \
    X(BF16, "bf16", 2)                                                                             \
    X(F16, "f16", 2)                                                                               \
    X(I64, "i64", 8)                                                                               \
    X(I32, "i32", 4)                                                                               \
    X(U8, "u8", 1)                                                                                 \
    X(BOOL, "bool", 1)                                                                             \
    X(I16, "i16", 2)                                                                               \
    X(I8, "i8", 1)                                                                                 \
    X(C64, "c64", 8)                                                                               \
    X(C128, "c128", 16)

typedef enum ts_dtype {
    TS_DTYPE_NONE,
#define TS_DTYPE_ENUM(name, text, bytes) TS_DTYPE_##name,
    TS_DTYPE_LIST(TS_DTYPE_ENUM)
#undef TS_DTYPE_ENUM
        TS_DTYPE_COUNT /* one past the last; fp8 kinds will be appended before it */
} ts_dtype;

/* How values are combined, in a collective and in a partial placement. X(NAME, text). */
#define TS_REDUCE_LIST(X)                                                                          \
    X(SUM, "sum")                                                                                  \
    X(AVG, "avg")                                                                                  \
    X(MIN, "min")                                                                                  \
    X(MAX, "max")                                                                                  \
    X(PROD, "prod")                                                                                \
    X(AND, "and") /* logical: the result is 0 or 1 */                                              \
    X(OR, "or")                                                                                    \
    X(BAND, "band") /* bitwise */                                                                  \
    X(BOR, "bor")

typedef enum ts_reduce {
    TS_REDUCE_NONE,
#define TS_REDUCE_ENUM(name, text) TS_REDUCE_##name,
    TS_REDUCE_LIST(TS_REDUCE_ENUM)
#undef TS_REDUCE_ENUM
        TS_REDUCE_COUNT
} ts_reduce;

enum { TS_NDIM_MAX = 8 }; /* dims of a tensor, and axes of a mesh */

typedef struct ts_shape {
    int32_t ndim, reserved;
    int64_t extent[TS_NDIM_MAX];
} ts_shape;

typedef struct ts_meta {
    ts_shape shape;
    int32_t dtype, reserved; /* a ts_dtype */
} ts_meta;

/* A number as it was said: whole ones keep their 64 bits (frozen). */
typedef enum ts_number_kind { TS_NUMBER_INT, TS_NUMBER_REAL, TS_NUMBER_COMPLEX } ts_number_kind;
typedef struct ts_number {
    double real, imaginary; /* INT: the nearest double, and 0 */
    int64_t whole;          /* INT */
    int32_t kind, reserved; /* a ts_number_kind */
} ts_number;

/* One block of memory. Whoever fills it keeps the memory unless `done` is set: then tessera takes
 * it and calls done(context) on the rank's thread when nothing refers to it any more. */
typedef struct ts_array {
    size_t struct_size;
    void *data;
    ts_meta meta;
    int64_t stride[TS_NDIM_MAX]; /* in elements; all zero: contiguous, row-major; a zero beside
                                  * others repeats the same elements along that dim */
    void (*done)(void *context);
    void *context;
    int32_t device, ordinal; /* where data lies: 0 host memory, else a device type of DLPack (2:
                                CUDA) and which one of that type */
} ts_array;

TS_BEGIN_C

TS_API size_t ts_dtype_size(ts_dtype dtype);         /* bytes of one element; 0 if unknown */
TS_API const char *ts_dtype_name(ts_dtype dtype);    /* "bf16"; "none" if unknown */
TS_API ts_dtype ts_dtype_parse(const char *text);    /* TS_DTYPE_NONE if unknown */
TS_API const char *ts_reduce_name(ts_reduce reduce); /* "sum"; "none" if unknown */
TS_API ts_reduce ts_reduce_parse(const char *text);  /* TS_REDUCE_NONE if unknown */

/* Elements of a shape (1 for a scalar); -1 if an extent is negative or the product overflows. */
TS_API int64_t ts_shape_count(const ts_shape *shape);

TS_END_C

static inline ts_number ts_number_int(int64_t value)
{
    ts_number number = { (double)value, 0, value, TS_NUMBER_INT, 0 };
    return number;
}
static inline ts_number ts_number_real(double value)
{
    ts_number number = { value, 0, 0, TS_NUMBER_REAL, 0 };
    return number;
}
static inline ts_number ts_number_complex(double real, double imaginary)
{
    ts_number number = { real, imaginary, 0, TS_NUMBER_COMPLEX, 0 };
    return number;
}

/* TS_SHAPE(2, 3) is a shape; TS_SHAPE_SCALAR has no dims. TS_INIT(type) initialises a struct with
 * zeros and its size; TS_OPTIONS(type, .field = value, ...) is the address of a temporary one (C
 * only). */
#ifdef __cplusplus
template <class T> inline T ts_init_of()
{
    T options{};
    options.struct_size = sizeof(T);
    return options;
}
template <class... T> inline ts_shape ts_shape_of(T... extent)
{
    return ts_shape{ (int32_t)sizeof...(T), 0, { (int64_t)extent... } };
}
#define TS_INIT(type) ts_init_of<type>()
#define TS_SHAPE(...) ts_shape_of(__VA_ARGS__)
#define TS_SHAPE_SCALAR ts_shape_of()
#else
#define TS_COUNT(type, ...) (int32_t)(sizeof((type[]){ __VA_ARGS__ }) / sizeof(type))
#define TS_INIT(type)                                                                              \
    {                                                                                              \
        .struct_size = sizeof(type)                                                                \
    }
#define TS_OPTIONS(type, ...) (&(type){ .struct_size = sizeof(type), __VA_ARGS__ })
#define TS_SHAPE(...) ((ts_shape){ TS_COUNT(int64_t, __VA_ARGS__), 0, { __VA_ARGS__ } })
#define TS_SHAPE_SCALAR ((ts_shape){ 0 })
#endif

#endif
