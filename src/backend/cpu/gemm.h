/* SPDX-License-Identifier: Apache-2.0 */
/* gemm.h - one matrix product, and the engines that compute it.
 *
 *   c[m, n] = a[m, k] b[k, n], or c += a b; strides in elements.
 *
 * product.c brings every contraction into this form; blas.c computes f32, f64 and complex numbers
 * through OpenBLAS (or loops of our own where there is none), bf16.c multiplies bf16 with the
 * machine's instructions and adds up in f32. */
#ifndef TSI_BACKEND_CPU_GEMM_H
#define TSI_BACKEND_CPU_GEMM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rank.h"
#include "tessera/types.h"

typedef struct tsi_gemm {
    int64_t m, n, k;
    const void *a, *b;
    void *c;
    int64_t am, ak, bk, bn, cm, cn; /* a[i * am + l * ak], b[l * bk + j * bn], c[i * cm + j * cn] */
    bool accumulate;
    bool swapped; /* a and b are the contraction's b and a: c is computed as its transpose */
} tsi_gemm;

/* Is a matrix with these strides what BLAS takes: one stride 1, the other at least the row? */
bool tsi_gemm_fits(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride);
/* f32, f64, c64, c128 on the calling thread; a and b fit, c has cn 1 (or n 1). false: not this
 * dtype. */
bool tsi_gemm_blas(ts_dtype dtype, const tsi_gemm *gemm);
bool tsi_gemm_blas_has(ts_dtype dtype);
void tsi_gemm_start(void); /* tells OpenBLAS to use the calling thread alone */

/* ---- bf16: tiles of mr x nr, k in groups of kr ----------------------------------------------- */
/* Panels of a hold [k / ka][rows][ka], those of b [k / kb][columns][kb]: for each ka (or kb)
 * numbers of k, the rows (or columns) one after another; short ones are filled with zeros, and k up
 * to a multiple of kr. */
typedef struct tsi_bf16_tile {
    const char *name; /* "bfmmla" */
    int32_t mr, nr, kr, ka, kb;
    int32_t reserved;
    /* c [mr x nr] f32, rows ldc apart: set if first, else added to. */
    void (*multiply)(int64_t groups, const uint16_t *a, const uint16_t *b, float *c, int64_t ldc,
                     bool first);
    /* Four rows of k, `rows` wide in memory, into groups; (optional) for ka and kb 4, panels of 8.
     */
    void (*pack_across)(uint16_t *to, const uint16_t *from, int64_t k_stride, int64_t groups);
} tsi_bf16_tile;
const tsi_bf16_tile *tsi_bf16_tile_of_machine(void); /* NULL: no such instructions */
extern const tsi_bf16_tile tsi_bf16_tile_neon, tsi_bf16_tile_avx512, tsi_bf16_tile_amx;
/* All threads of the rank; any strides. c is bf16. */
ts_status tsi_gemm_bf16(ts_rank *rank, const tsi_bf16_tile *tile, const tsi_gemm *gemm);

#endif
