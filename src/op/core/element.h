/* SPDX-License-Identifier: Apache-2.0 */
/* element.h - one element of any dtype, and loops over strided blocks: what reference kernels are
 * written with.
 *
 * A reference kernel is plain and slow: it loads each element into a wide number (double, int64 or
 * complex double), computes, and stores with one rounding. It is the oracle of the fast kernels, so
 * it must be obviously right. */
#ifndef TSI_OP_ELEMENT_H
#define TSI_OP_ELEMENT_H

#include <complex.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "device/device.h"

typedef enum tsi_category {
    TSI_CATEGORY_BOOL,
    TSI_CATEGORY_INT,
    TSI_CATEGORY_REAL,
    TSI_CATEGORY_COMPLEX
} tsi_category;
tsi_category tsi_dtype_category(ts_dtype dtype);
/* The dtype of a op b: the same category takes the wider, else the higher of bool < int < real <
 * complex (a real of the other's precision); bf16 with f16 is f32. */
ts_dtype tsi_dtype_promote(ts_dtype a, ts_dtype b);
/* What a real-valued function of that dtype gives: itself for reals and complex, f32 for integers
 * and bool. */
ts_dtype tsi_dtype_to_real(ts_dtype dtype);

double tsi_load_real(ts_dtype dtype, const void *element); /* complex: the real part */
int64_t tsi_load_int(ts_dtype dtype, const void *element); /* reals: truncated, saturating */
double complex tsi_load_complex(ts_dtype dtype, const void *element);
void tsi_store_real(ts_dtype dtype, void *element, double value); /* one rounding to nearest even */
void tsi_store_int(ts_dtype dtype, void *element, int64_t value); /* wraps */
void tsi_store_complex(ts_dtype dtype, void *element, double complex value);
/* Whole numbers as integers, all 64 bits of them; of a complex one into a real dtype its real part.
 */
void tsi_store_number(ts_dtype dtype, void *element, ts_number value);
/* By its parts: what some compilers have no CMPLX for, and a product by I would spoil infinities.
 */
static inline double complex tsi_number_both(ts_number value)
{
    const double part[2] = { value.real, value.imaginary };
    double complex both;
    memcpy(&both, part, sizeof both);
    return both;
}
/* The first number of attributes: value, alpha, exponent. Integers wrap as unsigned ones. */
static inline uint64_t tsi_first_whole(const void *attributes)
{
    return (uint64_t)((const ts_number *)attributes)->whole;
}
static inline double complex tsi_first_both(const void *attributes)
{
    return tsi_number_both(*(const ts_number *)attributes);
}

/* Walks over all positions of `extent`, row-major. Per operand the strides in elements; `at[k]` is
 * the offset, in elements, of operand k. Usage:  for (bool more = tsi_loop_begin(&loop); more; more
 * = tsi_loop_next(&loop)) ... */
enum { TSI_LOOP_OPERANDS = 8 };
typedef struct tsi_loop {
    int32_t ndim, operand_count;
    int64_t extent[TS_NDIM_MAX];
    const int64_t *stride[TSI_LOOP_OPERANDS]; /* each TS_NDIM_MAX long */
    int64_t index[TS_NDIM_MAX];
    int64_t at[TSI_LOOP_OPERANDS];
} tsi_loop;
bool tsi_loop_begin(tsi_loop *loop); /* false: there is nothing to visit */
bool tsi_loop_next(tsi_loop *loop);
/* A loop over the positions of `over`, for operands of the strides (as many as are not NULL):
 * TSI_LOOP(labels, x->stride, labels->stride). */
tsi_loop tsi_loop_of(const tsi_block *over, const int64_t *const *stride);
#define TSI_LOOP(over, ...)                                                                        \
    tsi_loop_of(over, (const int64_t *const[TSI_LOOP_OPERANDS]){ __VA_ARGS__ })
/* The same with that block as operand 0. */
tsi_loop tsi_loop_over(const tsi_block *block);
/* Strides of `block` seen as an array of `ndim` dims and the extents, right-aligned, 0 where it is
 * broadcast. */
void tsi_broadcast_strides(const tsi_block *block, int32_t ndim, const int64_t *extent,
                           int64_t *stride);

static inline void *tsi_block_at(const tsi_block *block, int64_t offset)
{
    return (char *)block->data + (size_t)((int64_t)ts_dtype_size((ts_dtype)block->dtype) * offset);
}
/* The element there, and writing it. References of f64 do little else. */
static inline double tsi_block_real(const tsi_block *block, int64_t offset)
{
    double value;
    if (block->dtype != TS_DTYPE_F64)
        return tsi_load_real((ts_dtype)block->dtype, tsi_block_at(block, offset));
    memcpy(&value, (const double *)block->data + offset, sizeof value);
    return value;
}
static inline int64_t tsi_block_int(const tsi_block *block, int64_t offset)
{
    return tsi_load_int((ts_dtype)block->dtype, tsi_block_at(block, offset));
}
static inline void tsi_block_set_real(const tsi_block *block, int64_t offset, double value)
{
    if (block->dtype == TS_DTYPE_F64)
        memcpy((double *)block->data + offset, &value, sizeof value);
    else
        tsi_store_real((ts_dtype)block->dtype, tsi_block_at(block, offset), value);
}
static inline double complex tsi_block_complex(const tsi_block *block, int64_t offset)
{
    return tsi_load_complex((ts_dtype)block->dtype, tsi_block_at(block, offset));
}
static inline void tsi_block_set_complex(const tsi_block *block, int64_t offset,
                                         double complex value)
{
    tsi_store_complex((ts_dtype)block->dtype, tsi_block_at(block, offset), value);
}
static inline void tsi_block_add_real(const tsi_block *block, int64_t offset, double value)
{
    tsi_block_set_real(block, offset, tsi_block_real(block, offset) + value);
}

#endif
