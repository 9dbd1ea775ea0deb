/* SPDX-License-Identifier: Apache-2.0 */
/* numbers.h - values that wrong rules cannot pass by luck, and their terms under a layout.
 *
 * Everything is a function of (pattern, operand, row-major global index), so every rank knows every
 * value without communication. Values are small multiples of a quarter: sums and products of a few
 * are exact in f32 and f64. Terms of a pending reduction are unequal, of both signs, alternate over
 * a checkerboard, and for extremes lie near and far; sums of integers wrap, averages leave a
 * remainder. */
#ifndef TSI_OP_NUMBERS_H
#define TSI_OP_NUMBERS_H

#include <complex.h>

#include "layout/layout.h"
#include "op/core/element.h"

enum { TSI_PATTERNS = 6 };
typedef struct tsi_numbers { /* the values of one operand */
    ts_meta meta;            /* global */
    int32_t pattern;         /* 0 mixed, 1 negated and shifted, 2 positive, 3 zeros and ties,
                                4 nearly all zero, 5 of two scales */
    int32_t operand;
    int64_t limit;    /* integers lie in [0, limit); 0: small, of both signs */
    int64_t set;      /* with `counted`: so many of the truths are true */
    int32_t positive; /* terms of a p-norm, weights: no negative values */
    int32_t counted;
    int32_t truth, reserved; /* pending "and" or "or": integers are 0 or 1 */
} tsi_numbers;

double complex tsi_numbers_at(const tsi_numbers *numbers, int64_t index);
/* What a coordinate holds of the element at `index` (global): its value, or its term where axes of
 * the layout are pending. */
double complex tsi_numbers_term(const tsi_numbers *numbers, const ts_layout *layout,
                                const int64_t *coord, int64_t index);
/* Fills a dense block with what a coordinate holds. false: recorded. */
bool tsi_numbers_fill(const tsi_numbers *numbers, const ts_layout *layout, const int64_t *coord,
                      tsi_arena *arena, const tsi_block *block);
void tsi_number_store(ts_dtype dtype, void *element, double complex value);
double complex tsi_number_load(ts_dtype dtype, const void *element);
/* Equal as far as the dtype and results of size `scale` allow; NaN equals NaN. */
bool tsi_number_close(double complex x, double complex y, ts_dtype dtype, double scale);
/* The scale that allows for the rounding of terms of that size which cancel: some dozens of units
 * in their last place, which of f32 and f64 is far less than results of that size are given. */
double tsi_terms_scale(ts_dtype dtype, double terms);

#endif
