/* SPDX-License-Identifier: Apache-2.0 */
/* recipe.h - what makes random elements of one dtype, checked and worked out (array/random.c). A
 * device fills its own memory from it (tsi_device.random); kernels get it as it is, so it is plain
 * data in the common part of C11 and C++17. */
#ifndef TSI_DEVICE_RECIPE_H
#define TSI_DEVICE_RECIPE_H

#include <stdint.h>

typedef enum tsi_random_kind {
    TSI_RANDOM_UNIFORM,
    TSI_RANDOM_NORMAL,
    TSI_RANDOM_INTEGER,
    TSI_RANDOM_BERNOULLI
} tsi_random_kind;

typedef struct tsi_random_recipe {
    int32_t kind, dtype;      /* a tsi_random_kind, a ts_dtype */
    int32_t words;            /* k, of an element */
    int32_t is_complex, wide; /* wide: f64 and c128, 53 random bits */
    int32_t unit;             /* UNIFORM from 0 to 1 */
    uint32_t drop;            /* UNIFORM: low bits of a word that are not used */
    int32_t reserved;
    double top; /* UNIFORM: the largest number of the dtype below b */
    double a, b;
    int64_t low, high;
    uint64_t seed, stream, offset;
} tsi_random_recipe;

/* Consecutive elements: `length` of them, from place `local` of the block on, with global indices
 * from `global` on. */
typedef struct tsi_random_run {
    int64_t global, local, length;
} tsi_random_run;

#endif
