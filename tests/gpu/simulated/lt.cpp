/* SPDX-License-Identifier: Apache-2.0 */
/* lt.cpp - libcublasLt of the simulated GPU: the functions that product_library.h of the module
 * asks for. Products are loops, with sums in f32 (f64 of f64), and run late, as the stream says.
 *
 * Of three proposals each says that it is faster than the one before. The second has the bits of
 * the first; the third, which adds up the inner dim in two halves, has not.
 *
 * INV: what the library may refuse is refused: a matrix off the alignment that was promised for it,
 * an algorithm that was proposed for another problem, a matrix outside of the GPU's memory. */
#include <cublasLt.h>

#include <string.h>
#include <vector>

#include "device/number.h"
#include "driver.h"

namespace
{

enum { PROPOSALS = 3, HALVES = 2, VERSION = 130000 };

struct matrix {
    cudaDataType type;
    int64_t rows, columns, ld, step;
    int32_t batch;
};
struct product {
    cublasOperation_t a, b;
    cublasLtEpilogue_t epilogue;
    cudaDataType bias_type;
    const void *bias;
    bool wide;
};
struct preference {
    uint64_t workspace;
    uint32_t aligned[4]; /* a, b, c, d */
};

/* What an algorithm's bytes hold. */
struct algorithm {
    uint64_t problem;
    int64_t which;
    uint32_t aligned[4];
};
static_assert(sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t), "an algorithm fits");

uint64_t mix(uint64_t hash, uint64_t x)
{
    return (hash ^ x) * 0x100000001b3u;
}

uint64_t problem_of(const product &p, const matrix &a, const matrix &b, const matrix &c)
{
    uint64_t hash = mix(mix(mix(0xcbf29ce484222325u, p.a), p.b), p.epilogue);
    for (const matrix *m : { &a, &b, &c })
        for (int64_t x :
             { (int64_t)m->type, m->rows, m->columns, m->ld, m->step, (int64_t)m->batch })
            hash = mix(hash, (uint64_t)x);
    return hash;
}

size_t size_of(cudaDataType type)
{
    return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
}

double load(cudaDataType type, const void *from, int64_t i)
{
    switch ((int)type) {
    case CUDA_R_64F:
        return ((const double *)from)[i];
    case CUDA_R_16BF:
        return tsi_f32_of_bf16(((const uint16_t *)from)[i]);
    case CUDA_R_16F:
        return tsi_f32_of_f16(((const uint16_t *)from)[i]);
    default:
        return ((const float *)from)[i];
    }
}

void store(cudaDataType type, void *to, int64_t i, double x)
{
    switch ((int)type) {
    case CUDA_R_64F:
        ((double *)to)[i] = x;
        break;
    case CUDA_R_16BF:
        ((uint16_t *)to)[i] = tsi_bf16_of_f32((float)x);
        break;
    case CUDA_R_16F:
        ((uint16_t *)to)[i] = tsi_f16_of_f32((float)x);
        break;
    default:
        ((float *)to)[i] = (float)x;
        break;
    }
}

/* A call, as it is when it is made. */
struct call {
    product p;
    matrix a, b, c, d;
    const void *from_a, *from_b, *from_c;
    void *to;
    double alpha, beta;
    int64_t halves;
    double takes; /* seconds, for events */
};

/* Column j of op(x) for all j, one after another; op(x) is rows by columns. */
template <typename R>
std::vector<R> columns_of(const matrix &m, const void *from, bool turned, int64_t batch)
{
    int64_t rows = turned ? m.columns : m.rows, columns = turned ? m.rows : m.columns;
    std::vector<R> out((size_t)(rows * columns));
    for (int64_t j = 0; j < columns; j++)
        for (int64_t i = 0; i < rows; i++)
            out[(size_t)(j * rows + i)] =
                (R)load(m.type, from, batch * m.step + (turned ? i * m.ld + j : j * m.ld + i));
    return out;
}

template <typename R> void multiply(const call &x, int64_t batch)
{
    int64_t rows = x.d.rows, deep = x.p.a == CUBLAS_OP_N ? x.a.columns : x.a.rows;
    std::vector<R> a = columns_of<R>(x.a, x.from_a, x.p.a != CUBLAS_OP_N, batch);
    std::vector<R> b = columns_of<R>(x.b, x.from_b, x.p.b != CUBLAS_OP_N, batch);
    std::vector<R> sum((size_t)rows), part((size_t)rows);
    for (int64_t j = 0; j < x.d.columns; j++) {
        sum.assign((size_t)rows, 0);
        for (int64_t half = 0; half < x.halves; half++) {
            part.assign((size_t)rows, 0);
            for (int64_t k = deep * half / x.halves; k < deep * (half + 1) / x.halves; k++) {
                R factor = b[(size_t)(j * deep + k)];
                const R *column = &a[(size_t)(k * rows)];
                for (int64_t i = 0; i < rows; i++)
                    part[(size_t)i] += column[i] * factor;
            }
            for (int64_t i = 0; i < rows; i++)
                sum[(size_t)i] += part[(size_t)i];
        }
        for (int64_t i = 0; i < rows; i++) {
            R y = (R)x.alpha * sum[(size_t)i];
            int64_t from = batch * x.c.step + j * x.c.ld + i;
            if (x.beta != 0) y += (R)x.beta * (R)load(x.c.type, x.from_c, from);
            if (x.p.epilogue == CUBLASLT_EPILOGUE_BIAS) y += (R)load(x.p.bias_type, x.p.bias, i);
            store(x.d.type, x.to, batch * x.d.step + j * x.d.ld + i, (double)y);
        }
    }
}

CUresult run(const call &x)
{
    for (int32_t batch = 0; batch < x.d.batch; batch++)
        x.p.wide ? multiply<double>(x, batch) : multiply<float>(x, batch);
    simulated_takes(x.takes);
    return CUDA_SUCCESS;
}

bool is_there(const matrix &m, const void *at, uint32_t aligned)
{
    int64_t last = (m.batch - 1) * m.step + (m.columns - 1) * m.ld + m.rows;
    return (uintptr_t)at % aligned == 0 && simulated_holds(at, (size_t)last * size_of(m.type));
}

/* op(a) op(b) is c. */
bool fits(const product &p, const matrix &a, const matrix &b, const matrix &c)
{
    int64_t m = p.a == CUBLAS_OP_N ? a.rows : a.columns,
            k = p.a == CUBLAS_OP_N ? a.columns : a.rows;
    int64_t n = p.b == CUBLAS_OP_N ? b.columns : b.rows,
            j = p.b == CUBLAS_OP_N ? b.rows : b.columns;
    return m == c.rows && n == c.columns && k == j && a.ld >= a.rows && b.ld >= b.rows &&
           c.ld >= c.rows && a.batch == b.batch && b.batch == c.batch && a.type == b.type;
}

template <typename T, typename H> cublasStatus_t make(H *out, T value)
{
    *(T **)out = new T(value);
    return CUBLAS_STATUS_SUCCESS;
}

template <typename T> cublasStatus_t take(T *to, const void *from, size_t bytes)
{
    if (bytes != sizeof *to) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, from, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

} // namespace

extern "C" {
#define CALL __attribute__((visibility("default"))) cublasStatus_t CUBLASWINAPI

__attribute__((visibility("default"))) size_t CUBLASWINAPI cublasLtGetVersion()
{
    return VERSION;
}

CALL cublasLtCreate(cublasLtHandle_t *handle)
{
    static int only;
    *handle = (cublasLtHandle_t)&only;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- descriptions ---------------------------------------------------------------------------- */

CALL cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                              cudaDataType_t)
{
    product p = {};
    p.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    p.bias_type = CUDA_R_32F;
    p.wide = compute == CUBLAS_COMPUTE_64F;
    return make(out, p);
}

CALL cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t which,
                                    const void *value, size_t bytes)
{
    product &p = *(product *)desc;
    switch ((int)which) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return take(&p.a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return take(&p.b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return take(&p.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return take(&p.bias_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return take(&p.bias, value, bytes);
    default:
        return CUBLAS_STATUS_INVALID_VALUE;
    }
}

CALL cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    delete (product *)desc;
    return CUBLAS_STATUS_SUCCESS;
}

CALL cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows,
                                uint64_t columns, int64_t ld)
{
    matrix m = {};
    m.type = type;
    m.rows = (int64_t)rows, m.columns = (int64_t)columns, m.ld = ld;
    m.batch = 1;
    return make(out, m);
}

CALL cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                      cublasLtMatrixLayoutAttribute_t which, const void *value,
                                      size_t bytes)
{
    matrix &m = *(matrix *)layout;
    switch ((int)which) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
        return take(&m.batch, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
        return take(&m.step, value, bytes);
    default:
        return CUBLAS_STATUS_INVALID_VALUE;
    }
}

CALL cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    delete (matrix *)layout;
    return CUBLAS_STATUS_SUCCESS;
}

CALL cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    return make(out, preference{ 0, { 256, 256, 256, 256 } });
}

CALL cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t which,
                                          cublasLtMatmulPreferenceAttributes_t name,
                                          const void *value, size_t bytes)
{
    preference &p = *(preference *)which;
    switch ((int)name) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return take(&p.workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        return take(&p.aligned[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        return take(&p.aligned[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        return take(&p.aligned[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return take(&p.aligned[3], value, bytes);
    default:
        return CUBLAS_STATUS_INVALID_VALUE;
    }
}

CALL cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t which)
{
    delete (preference *)which;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- products -------------------------------------------------------------------------------- */

CALL cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                    cublasLtMatrixLayout_t layout_a,
                                    cublasLtMatrixLayout_t layout_b,
                                    cublasLtMatrixLayout_t layout_c,
                                    cublasLtMatrixLayout_t layout_d,
                                    cublasLtMatmulPreference_t preferred, int wanted,
                                    cublasLtMatmulHeuristicResult_t *out, int *found)
{
    const product &p = *(product *)desc;
    const matrix &a = *(matrix *)layout_a, &b = *(matrix *)layout_b, &c = *(matrix *)layout_c;
    *found = 0;
    if (!fits(p, a, b, c) || !fits(p, a, b, *(matrix *)layout_d))
        return CUBLAS_STATUS_INVALID_VALUE;
    for (int i = 0; i < wanted && i < PROPOSALS; i++) {
        algorithm algo = {};
        algo.problem = problem_of(p, a, b, c);
        algo.which = i;
        memcpy(algo.aligned, ((preference *)preferred)->aligned, sizeof algo.aligned);
        memset(&out[i], 0, sizeof out[i]);
        memcpy(&out[i].algo, &algo, sizeof algo);
        ++*found;
    }
    return CUBLAS_STATUS_SUCCESS;
}

CALL cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                    cublasLtMatrixLayout_t layout_a, const void *b, cublasLtMatrixLayout_t layout_b,
                    const void *beta, const void *c, cublasLtMatrixLayout_t layout_c, void *d,
                    cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t *by,
                    void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    algorithm algo;
    memcpy(&algo, by, sizeof algo);
    call x = { *(product *)desc,
               *(matrix *)layout_a,
               *(matrix *)layout_b,
               *(matrix *)layout_c,
               *(matrix *)layout_d,
               a,
               b,
               c,
               d,
               0,
               0,
               algo.which == PROPOSALS - 1 ? HALVES : 1,
               1e-3 * (double)(PROPOSALS - algo.which) };
    x.alpha = x.p.wide ? *(const double *)alpha : (double)*(const float *)alpha;
    x.beta = x.p.wide ? *(const double *)beta : (double)*(const float *)beta;
    if (!fits(x.p, x.a, x.b, x.d) || algo.problem != problem_of(x.p, x.a, x.b, x.c))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!is_there(x.a, a, algo.aligned[0]) || !is_there(x.b, b, algo.aligned[1]) ||
        (x.beta != 0 && !is_there(x.c, c, algo.aligned[2])) || !is_there(x.d, d, algo.aligned[3]) ||
        !simulated_holds(workspace, workspace_bytes))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return simulated_enqueue((CUstream)stream, [=] { return run(x); }) == CUDA_SUCCESS
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}
}
