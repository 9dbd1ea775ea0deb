/* SPDX-License-Identifier: Apache-2.0 */
/* product.c - cuBLASLt, found at run time: descriptors and the call.
 *
 * The library knows matrices by columns, we by rows: c = a b is there c' = b' a'. Sums are in f32
 * (f64 of f64); TF32 is never used. Which algorithm a shape takes product_choice.c says.
 *
 * INV: one workspace a stream, so products of one stream never share it with another's. */
#include "backend/cuda/product_library.h"

#include <string.h>

#include "backend/cuda/beside.h"
#include "base/alloc.h"
#include "base/error.h"
#include "op/core/kernel.h"

typedef tsi_product_key shape_key;
typedef tsi_product_problem problem;

tsi_product_library tsi_lt;

static struct {
    pthread_mutex_t lock;
    bool looked;
} opened = { .lock = PTHREAD_MUTEX_INITIALIZER };

static bool find_functions(void *library)
{
    bool all = library != NULL;
#define TSI_CUBLAS_FIND(field, symbol, parameters)                                                 \
    all = all && tsi_cuda_symbol(library, #symbol, &tsi_lt.field);
    TSI_CUBLAS(TSI_CUBLAS_FIND)
#undef TSI_CUBLAS_FIND
    return all && tsi_cuda_symbol(library, "cublasLtGetVersion", &tsi_lt.version);
}

static bool library_open(void)
{
    static const char *const names[] = { "libcublasLt.so.13", "libcublasLt.so.12", NULL };
    pthread_mutex_lock(&opened.lock);
    if (!opened.looked && find_functions(tsi_cuda_library_open(names)) &&
        tsi_lt.create(&tsi_lt.handle) != CUBLAS_STATUS_SUCCESS)
        tsi_lt.handle = NULL;
    opened.looked = true;
    bool here = tsi_lt.handle != NULL;
    pthread_mutex_unlock(&opened.lock);
    return here;
}

/* ---- matrices -------------------------------------------------------------------------------- */

/* A side of 1 has no stride that matters. The first index runs along rows of the library. */
static bool fits(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride)
{
    bool down = rows == 1 || row_stride == 1;
    return down && (columns == 1 || column_stride >= rows) && column_stride < INT32_MAX;
}

bool tsi_cuda_product_fits_a(const tsi_cuda_product *p)
{
    return fits(p->k, p->m, p->ak, p->am) || fits(p->m, p->k, p->am, p->ak);
}

bool tsi_cuda_product_fits_b(const tsi_cuda_product *p)
{
    return fits(p->n, p->k, p->bn, p->bk) || fits(p->k, p->n, p->bk, p->bn);
}

bool tsi_cuda_product_fits_c(const tsi_cuda_product *p)
{
    return fits(p->n, p->m, p->cn, p->cm) || fits(p->m, p->n, p->cm, p->cn);
}

/* c written by rows; else its transpose is computed. */
static tsi_cuda_product by_rows(const tsi_cuda_product *p)
{
    tsi_cuda_product q = *p;
    if (fits(p->n, p->m, p->cn, p->cm)) return q;
    q.a = p->b, q.b = p->a;
    q.m = p->n, q.n = p->m;
    q.am = p->bn, q.ak = p->bk;
    q.bk = p->ak, q.bn = p->am;
    q.cm = p->cn, q.cn = p->cm;
    q.a_step = p->b_step, q.b_step = p->a_step;
    return q;
}

static int64_t leading(int64_t rows, int64_t columns, int64_t stride)
{
    return columns > 1 && stride > rows ? stride : rows;
}

static int32_t alignment_of(const void *memory)
{
    uintptr_t at = (uintptr_t)memory;
    return at == 0 ? 256 : (int32_t)((at & -at) > 256 ? 256 : (at & -at));
}

static shape_key key_of(const tsi_cuda_product *p)
{
    shape_key key;
    memset(&key, 0, sizeof key);
    key.m = p->m, key.n = p->n, key.k = p->k;
    key.tb = !fits(p->n, p->k, p->bn, p->bk); /* b' is n x k there; else it is turned */
    key.ta = !fits(p->k, p->m, p->ak, p->am);
    key.ldb = key.tb ? leading(p->k, p->n, p->bn) : leading(p->n, p->k, p->bk);
    key.lda = key.ta ? leading(p->m, p->k, p->ak) : leading(p->k, p->m, p->am);
    key.ldc = leading(p->n, p->m, p->cm);
    key.batch = p->batch;
    key.a_step = p->a_step, key.b_step = p->b_step, key.c_step = p->c_step;
    key.dtype = p->dtype;
    key.c_dtype = p->c_dtype;
    key.accumulate = p->accumulate;
    key.biased = p->bias != NULL;
    key.a_align = alignment_of(p->a);
    key.b_align = alignment_of(p->b);
    int32_t c = alignment_of(p->c), onto = alignment_of(p->onto);
    key.c_align = c < onto ? c : onto;
    return key;
}

/* ---- descriptors ----------------------------------------------------------------------------- */

static cudaDataType_t type_of(int32_t dtype)
{
    switch (dtype) {
    case TS_DTYPE_BF16:
        return CUDA_R_16BF;
    case TS_DTYPE_F16:
        return CUDA_R_16F;
    case TS_DTYPE_F64:
        return CUDA_R_64F;
    default:
        return CUDA_R_32F;
    }
}

bool tsi_cuda_product_takes(int32_t dtype, int32_t c_dtype)
{
    bool narrow = dtype == TS_DTYPE_BF16 || dtype == TS_DTYPE_F16;
    return dtype == c_dtype || (narrow && c_dtype == TS_DTYPE_F32);
}

static bool make_layout(cublasLtMatrixLayout_t *out, int32_t dtype, int64_t batch_count,
                        int64_t rows, int64_t columns, int64_t ld, int64_t step)
{
    int32_t batch = (int32_t)batch_count;
    return tsi_lt.layout_create(out, type_of(dtype), (uint64_t)rows, (uint64_t)columns, ld) ==
               CUBLAS_STATUS_SUCCESS &&
           tsi_lt.layout_set(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch) ==
               CUBLAS_STATUS_SUCCESS &&
           tsi_lt.layout_set(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step,
                             sizeof step) == CUBLAS_STATUS_SUCCESS;
}

/* Our columns are the library's rows, which is what its epilogue adds a vector to. */
static bool set_bias(cublasLtMatmulDesc_t desc, int32_t dtype)
{
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    cudaDataType_t type = type_of(dtype);
    return tsi_lt.desc_set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue) ==
               CUBLAS_STATUS_SUCCESS &&
           tsi_lt.desc_set(desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type) ==
               CUBLAS_STATUS_SUCCESS;
}

static bool make_problem(problem *out, const shape_key *key)
{
    bool wide = key->dtype == TS_DTYPE_F64;
    cublasOperation_t tb = key->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t ta = key->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    *out = (problem){ 0 };
    return tsi_lt.desc_create(&out->desc, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                              wide ? CUDA_R_64F : CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
           tsi_lt.desc_set(out->desc, CUBLASLT_MATMUL_DESC_TRANSA, &tb, sizeof tb) ==
               CUBLAS_STATUS_SUCCESS &&
           tsi_lt.desc_set(out->desc, CUBLASLT_MATMUL_DESC_TRANSB, &ta, sizeof ta) ==
               CUBLAS_STATUS_SUCCESS &&
           (!key->biased || set_bias(out->desc, key->c_dtype)) &&
           make_layout(&out->b, key->dtype, key->batch, key->tb ? key->k : key->n,
                       key->tb ? key->n : key->k, key->ldb, key->b_step) &&
           make_layout(&out->a, key->dtype, key->batch, key->ta ? key->m : key->k,
                       key->ta ? key->k : key->m, key->lda, key->a_step) &&
           make_layout(&out->c, key->c_dtype, key->batch, key->n, key->m, key->ldc, key->c_step);
}

static void drop_problem(problem *p)
{
    if (p->c) (void)tsi_lt.layout_destroy(p->c);
    if (p->a) (void)tsi_lt.layout_destroy(p->a);
    if (p->b) (void)tsi_lt.layout_destroy(p->b);
    if (p->desc) (void)tsi_lt.desc_destroy(p->desc);
}

/* ---- the call -------------------------------------------------------------------------------- */

cublasStatus_t tsi_product_multiply(tsi_stream *stream, const tsi_cuda_product *p, const problem *x,
                                    const cublasLtMatmulAlgo_t *algorithm)
{
    const double factor[] = { p->alpha, p->accumulate ? p->beta : 0 };
    const float factor_f32[] = { (float)factor[0], (float)factor[1] };
    bool wide = p->dtype == TS_DTYPE_F64;
    const void *alpha = wide ? (const void *)&factor[0] : &factor_f32[0];
    const void *beta = wide ? (const void *)&factor[1] : &factor_f32[1];
    if (p->bias)
        (void)tsi_lt.desc_set(x->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, (const void *)&p->bias,
                              sizeof p->bias);
    const void *onto = p->accumulate && p->onto ? p->onto : p->c;
    return tsi_lt.multiply(tsi_lt.handle, x->desc, alpha, p->b, x->b, p->a, x->a, beta, onto, x->c,
                           p->c, x->c, algorithm, stream->workspace, TSI_PRODUCT_WORKSPACE,
                           (cudaStream_t)stream->handle);
}

static ts_status refuse(const tsi_stream *stream, const tsi_cuda_product *p, cublasStatus_t status)
{
    return TSI_FAIL(TS_ERR_INTERNAL,
                    "%s: a product of %lld x %lld by %lld x %lld: cuBLASLt says %d",
                    stream->cuda->name, (long long)p->m, (long long)p->k, (long long)p->k,
                    (long long)p->n, (int)status);
}

static ts_status workspace_of(tsi_stream *stream)
{
    CUdeviceptr memory = 0;
    if (stream->workspace) return TS_OK;
    TSI_CUDA_TRY(stream->cuda, "a workspace of products",
                 tsi_cu.alloc(&memory, TSI_PRODUCT_WORKSPACE));
    stream->workspace = (void *)(uintptr_t)memory;
    return TS_OK;
}

static ts_status launch(tsi_stream *stream, const tsi_cuda_product *p, const problem *x,
                        const cublasLtMatmulAlgo_t *algorithm)
{
    tsi_cuda_touched touched;
    tsi_cuda_place place;
    bool small = tsi_cuda_product_touches(p, &touched);
    TSI_TRY(tsi_cuda_beside_begin(stream, small ? &touched : NULL, &place));
    ts_status status = workspace_of(place.on);
    if (status == TS_OK) {
        cublasStatus_t said = tsi_product_multiply(place.on, p, x, algorithm);
        if (said != CUBLAS_STATUS_SUCCESS) status = refuse(stream, p, said);
    }
    place.on->sent++;
    ts_status ended = tsi_cuda_beside_end(stream, &place);
    return status == TS_OK ? ended : status;
}

ts_status tsi_cuda_product_run(tsi_stream *stream, const tsi_cuda_product *product)
{
    if (!library_open()) return (ts_status)TSI_KERNEL_DECLINED;
    tsi_cuda_product p = by_rows(product);
    shape_key key = key_of(&p);
    problem x;
    cublasLtMatmulAlgo_t algorithm;
    ts_status status = workspace_of(stream);
    if (status != TS_OK) return status;
    if (make_problem(&x, &key) && tsi_product_choose(stream, &x, &key, &algorithm))
        status = launch(stream, &p, &x, &algorithm);
    else
        status = (ts_status)TSI_KERNEL_DECLINED;
    drop_problem(&x);
    return status;
}

const char *tsi_cuda_product_choices(const tsi_device *device)
{
    (void)device; /* lines say which GPU they are for */
    return tsi_product_table_text();
}

ts_status tsi_cuda_product_choices_take(const tsi_device *device, const char *text)
{
    (void)device;
    if (strcmp(text, tsi_product_table_text()) == 0) return TS_OK;
    if (!tsi_product_table_replace(text))
        return tsi_fail_memory("the table of products", strlen(text) + 1);
    tsi_product_forget(); /* what was chosen before went by another table */
    return TS_OK;
}

int64_t tsi_cuda_product_version(void)
{
    return library_open() ? (int64_t)tsi_lt.version() : 0;
}
