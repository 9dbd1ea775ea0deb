/* SPDX-License-Identifier: Apache-2.0 */
/* product_table.h - which algorithm a product takes, from a file: shapes of products, the GPU and
 * the library's version on one side, the library's own bytes on the other. */
#ifndef TSI_BACKEND_CUDA_PRODUCT_TABLE_H
#define TSI_BACKEND_CUDA_PRODUCT_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What an algorithm depends on. Memory is compared: no gaps. */
typedef struct tsi_product_key {
    int64_t m, n, k, lda, ldb, ldc, batch, a_step, b_step, c_step;
    int32_t dtype, c_dtype, accumulate, biased, ta, tb;
    int32_t a_align, b_align, c_align, reserved;
} tsi_product_key;

typedef struct tsi_product_rank { /* where it was measured */
    int64_t version;
    char gpu[64];
} tsi_product_rank;

/* The algorithm of a product in the file of TESSERA_CUDA_PRODUCTS; false: it has none. */
bool tsi_product_table_find(const tsi_product_rank *where, const tsi_product_key *key,
                            void *algorithm, size_t bytes);
/* All of it, and another one in its place; "" is none. */
const char *tsi_product_table_text(void);
bool tsi_product_table_replace(const char *text); /* false: no memory, the old one stays */
/* What TESSERA_CUDA_TUNE says of products that are not in the table. */
typedef enum tsi_product_tuning {
    TSI_TUNING_SAME_BITS, /* nothing: the fastest with the bits of the first proposal */
    TSI_TUNING_OFF,       /* "off": the first proposal */
    TSI_TUNING_TO_FILE    /* a file: the fastest, and the file gets a line for each */
} tsi_product_tuning;
tsi_product_tuning tsi_product_tuning_of(void);
/* `nth`: which of the library's proposals it was. */
void tsi_product_table_add(const tsi_product_rank *where, const tsi_product_key *key,
                           const void *algorithm, size_t bytes, int32_t nth);

#endif
