/* SPDX-License-Identifier: Apache-2.0 */
/* product.h - one matrix product, or a batch of them with even steps, by cuBLASLt. */
#ifndef TSI_BACKEND_CUDA_PRODUCT_H
#define TSI_BACKEND_CUDA_PRODUCT_H

#include "backend/cuda/cuda.h"

/* c[i, j] = alpha sum over l of a[i, l] b[l, j] (+ beta onto[i, j]); strides in elements. */
typedef struct tsi_cuda_product {
    const void *a, *b;
    void *c;
    int64_t m, n, k;
    int64_t am, ak, bk, bn, cm, cn;
    int64_t batch, a_step, b_step, c_step;
    int32_t dtype;                /* of a and b */
    int32_t c_dtype;              /* the same, or f32 of bf16 and f16: sums are not rounded */
    int32_t accumulate, reserved; /* 0: nothing is added */
    double alpha, beta;
    const void *bias; /* one number a column j, of c's dtype, added to it; NULL: none */
    const void *onto; /* lies as c does; NULL: what c holds */
} tsi_cuda_product;

/* Whether the strides are those of matrices: one of each pair is 1, and c is written once. */
bool tsi_cuda_product_fits_a(const tsi_cuda_product *p);
bool tsi_cuda_product_fits_b(const tsi_cuda_product *p);
bool tsi_cuda_product_fits_c(const tsi_cuda_product *p);
/* Whether a product of these dtypes exists. */
bool tsi_cuda_product_takes(int32_t dtype, int32_t c_dtype);
/* The library's version, 13.1.0 as 130100; 0: it is not here. */
int64_t tsi_cuda_product_version(void);
/* The table of algorithms (tsi_device.choices). */
const char *tsi_cuda_product_choices(const tsi_device *device);
ts_status tsi_cuda_product_choices_take(const tsi_device *device, const char *text);
/* TSI_KERNEL_DECLINED: the library is not here, or has nothing for these sizes. */
ts_status tsi_cuda_product_run(tsi_stream *stream, const tsi_cuda_product *product);

#endif
