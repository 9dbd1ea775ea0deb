/* SPDX-License-Identifier: Apache-2.0 */
/* product_library.h - cuBLASLt as product.c opens and calls it and product_choice.c asks it. */
#ifndef TSI_BACKEND_CUDA_PRODUCT_LIBRARY_H
#define TSI_BACKEND_CUDA_PRODUCT_LIBRARY_H

#include <cublasLt.h>

#include "backend/cuda/product.h"
#include "backend/cuda/product_table.h"

/* X(field, symbol, parameters) */
#define TSI_CUBLAS(X)                                                                              \
    X(create, cublasLtCreate, (cublasLtHandle_t *))                                                \
    X(desc_create, cublasLtMatmulDescCreate,                                                       \
      (cublasLtMatmulDesc_t *, cublasComputeType_t, cudaDataType_t))                               \
    X(desc_set, cublasLtMatmulDescSetAttribute,                                                    \
      (cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *, size_t))                \
    X(desc_destroy, cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t))                             \
    X(layout_create, cublasLtMatrixLayoutCreate,                                                   \
      (cublasLtMatrixLayout_t *, cudaDataType, uint64_t, uint64_t, int64_t))                       \
    X(layout_set, cublasLtMatrixLayoutSetAttribute,                                                \
      (cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t, const void *, size_t))             \
    X(layout_destroy, cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t))                       \
    X(preference_create, cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t *))           \
    X(preference_set, cublasLtMatmulPreferenceSetAttribute,                                        \
      (cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void *, size_t))    \
    X(preference_destroy, cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t))           \
    X(propose, cublasLtMatmulAlgoGetHeuristic,                                                     \
      (cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,     \
       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,            \
       cublasLtMatmulHeuristicResult_t *, int *))                                                  \
    X(multiply, cublasLtMatmul,                                                                    \
      (cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *, cublasLtMatrixLayout_t, \
       const void *, cublasLtMatrixLayout_t, const void *, const void *, cublasLtMatrixLayout_t,   \
       void *, cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *, void *, size_t,               \
       cudaStream_t))

enum { TSI_PRODUCT_WORKSPACE = 64 << 20 };

typedef struct tsi_product_library {
    cublasLtHandle_t handle; /* NULL: not here; for all GPUs of the process */
#define TSI_CUBLAS_FIELD(field, symbol, parameters) cublasStatus_t(*field) parameters;
    TSI_CUBLAS(TSI_CUBLAS_FIELD)
#undef TSI_CUBLAS_FIELD
    size_t (*version)(void);
} tsi_product_library;

extern tsi_product_library tsi_lt;

/* A product as the library knows it, whose first factor is our b. */
typedef struct tsi_product_problem {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
} tsi_product_problem;

/* Enqueued on a stream that has its workspace. */
cublasStatus_t tsi_product_multiply(tsi_stream *stream, const tsi_cuda_product *p,
                                    const tsi_product_problem *x,
                                    const cublasLtMatmulAlgo_t *algorithm);

/* ---- product_choice.c */
/* The algorithm of a shape; false: the library has none. */
bool tsi_product_choose(tsi_stream *stream, const tsi_product_problem *x,
                        const tsi_product_key *key, cublasLtMatmulAlgo_t *out);
/* What was chosen is chosen anew. */
void tsi_product_forget(void);

#endif
