/* SPDX-License-Identifier: Apache-2.0 */
/* product.c - cuBLASLt, found at run time: descriptors, the choice of an algorithm, the call.
 *
 * The library knows matrices by columns, we by rows: c = a b is there c' = b' a'. Sums are in f32
 * (f64 of f64); TF32 is never used. The algorithm of a shape is what the table of
 * TESSERA_CUDA_PRODUCTS says (product_table.c), else the library's first proposal, asked for once
 * and kept: the same shape has the same bits for the life of the process.
 *
 * INV: one workspace a stream, so products of one stream never share it with another's. */
#include "backend/cuda/beside.h"

#include <cublasLt.h>
#include <string.h>

#include "backend/cuda/product_table.h"
#include "base/alloc.h"
#include "base/error.h"
#include "op/core/kernel.h"

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

enum { WORKSPACE = 64 << 20, CHOICES = 4096 };

typedef tsi_product_key shape_key;

typedef struct choice {
    shape_key key;
    cublasLtMatmulAlgo_t algorithm;
    int32_t state; /* 0 free, 1 known, 2 nothing fits */
} choice;

static struct {
    pthread_mutex_t lock;
    bool looked;
    cublasLtHandle_t handle; /* NULL: not here; for all GPUs of the process */
#define TSI_CUBLAS_FIELD(field, symbol, parameters) cublasStatus_t(*field) parameters;
    TSI_CUBLAS(TSI_CUBLAS_FIELD)
#undef TSI_CUBLAS_FIELD
    size_t (*version)(void);
    choice choice[CHOICES];
} lt = { .lock = PTHREAD_MUTEX_INITIALIZER };

static bool find_functions(void *library)
{
    bool all = library != NULL;
#define TSI_CUBLAS_FIND(field, symbol, parameters)                                                 \
    all = all && tsi_cuda_symbol(library, #symbol, &lt.field);
    TSI_CUBLAS(TSI_CUBLAS_FIND)
#undef TSI_CUBLAS_FIND
    return all && tsi_cuda_symbol(library, "cublasLtGetVersion", &lt.version);
}

/* With the lock. */
static bool library_open(void)
{
    static const char *const names[] = { "libcublasLt.so.13", "libcublasLt.so.12", NULL };
    if (lt.looked) return lt.handle != NULL;
    lt.looked = true;
    if (!find_functions(tsi_cuda_library_open(names))) return false;
    if (lt.create(&lt.handle) != CUBLAS_STATUS_SUCCESS) lt.handle = NULL;
    return lt.handle != NULL;
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

typedef struct problem {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
} problem;

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
    return lt.layout_create(out, type_of(dtype), (uint64_t)rows, (uint64_t)columns, ld) ==
               CUBLAS_STATUS_SUCCESS &&
           lt.layout_set(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch) ==
               CUBLAS_STATUS_SUCCESS &&
           lt.layout_set(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step) ==
               CUBLAS_STATUS_SUCCESS;
}

/* Our columns are the library's rows, which is what its epilogue adds a vector to. */
static bool set_bias(cublasLtMatmulDesc_t desc, int32_t dtype)
{
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    cudaDataType_t type = type_of(dtype);
    return lt.desc_set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue) ==
               CUBLAS_STATUS_SUCCESS &&
           lt.desc_set(desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type) ==
               CUBLAS_STATUS_SUCCESS;
}

/* The library's first factor is our b. */
static bool make_problem(problem *out, const shape_key *key)
{
    bool wide = key->dtype == TS_DTYPE_F64;
    cublasOperation_t tb = key->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t ta = key->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    *out = (problem){ 0 };
    return lt.desc_create(&out->desc, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                          wide ? CUDA_R_64F : CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
           lt.desc_set(out->desc, CUBLASLT_MATMUL_DESC_TRANSA, &tb, sizeof tb) ==
               CUBLAS_STATUS_SUCCESS &&
           lt.desc_set(out->desc, CUBLASLT_MATMUL_DESC_TRANSB, &ta, sizeof ta) ==
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
    if (p->c) (void)lt.layout_destroy(p->c);
    if (p->a) (void)lt.layout_destroy(p->a);
    if (p->b) (void)lt.layout_destroy(p->b);
    if (p->desc) (void)lt.desc_destroy(p->desc);
}

/* ---- the choice of an algorithm -------------------------------------------------------------- */

enum { PROPOSALS = 8 };

/* The library's first proposals; how many. */
static int32_t propose(const problem *p, const shape_key *key,
                       cublasLtMatmulHeuristicResult_t *result, int32_t wanted)
{
    cublasLtMatmulPreference_t preference = NULL;
    size_t workspace = WORKSPACE;
    uint32_t a = (uint32_t)key->a_align, b = (uint32_t)key->b_align, c = (uint32_t)key->c_align;
    int found = 0;
    if (lt.preference_create(&preference) != CUBLAS_STATUS_SUCCESS) return 0;
    (void)lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                            sizeof workspace);
    (void)lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &b, sizeof b);
    (void)lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &a, sizeof a);
    (void)lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c, sizeof c);
    (void)lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &c, sizeof c);
    bool any = lt.propose(lt.handle, p->desc, p->b, p->a, p->c, p->c, preference, wanted, result,
                          &found) == CUBLAS_STATUS_SUCCESS;
    (void)lt.preference_destroy(preference);
    return any ? found : 0;
}

static uint64_t hash_of(const shape_key *key)
{
    const unsigned char *byte = (const unsigned char *)key;
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < sizeof *key; i++)
        hash = (hash ^ byte[i]) * 0x100000001b3u;
    return hash;
}

/* With the lock: the place of the shape; the last one is taken again if all others are. */
static choice *place_of(const shape_key *key)
{
    uint64_t at = hash_of(key) % CHOICES;
    choice *place = &lt.choice[at];
    for (int32_t i = 0; i < 64; i++, at = (at + 1) % CHOICES) {
        place = &lt.choice[at];
        if (place->state == 0 || memcmp(&place->key, key, sizeof *key) == 0) return place;
    }
    place->state = 0;
    return place;
}

static tsi_product_rank rank_of(const tsi_cuda *cuda)
{
    tsi_product_rank rank = { .version = (int64_t)lt.version() };
    tsi_device_properties properties;
    cuda->device.properties(&cuda->device, &properties);
    memcpy(rank.gpu, properties.name, sizeof rank.gpu);
    return rank;
}

/* ---- the call -------------------------------------------------------------------------------- */

static cublasStatus_t multiply(tsi_stream *stream, const tsi_cuda_product *p, const problem *x,
                               const cublasLtMatmulAlgo_t *algorithm)
{
    const double factor[] = { p->alpha, p->accumulate ? p->beta : 0 };
    const float factor_f32[] = { (float)factor[0], (float)factor[1] };
    bool wide = p->dtype == TS_DTYPE_F64;
    const void *alpha = wide ? (const void *)&factor[0] : &factor_f32[0];
    const void *beta = wide ? (const void *)&factor[1] : &factor_f32[1];
    if (p->bias)
        (void)lt.desc_set(x->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, (const void *)&p->bias,
                          sizeof p->bias);
    const void *onto = p->accumulate && p->onto ? p->onto : p->c;
    return lt.multiply(lt.handle, x->desc, alpha, p->b, x->b, p->a, x->a, beta, onto, x->c, p->c,
                       x->c, algorithm, stream->workspace, WORKSPACE, (cudaStream_t)stream->handle);
}

/* ---- the choice among proposals, by time ----------------------------------------------------- */

/* Microseconds of a few runs between two events; a large number if it does not run. */
static double time_of(tsi_stream *stream, const tsi_cuda_product *p, const problem *x,
                      const cublasLtMatmulAlgo_t *algorithm, const CUevent *event)
{
    enum { RUNS = 8 };
    float ms = 0;
    bool works = multiply(stream, p, x, algorithm) == CUBLAS_STATUS_SUCCESS &&
                 tsi_cu.event_record(event[0], stream->handle) == CUDA_SUCCESS;
    for (int32_t i = 0; works && i < RUNS; i++)
        works = multiply(stream, p, x, algorithm) == CUBLAS_STATUS_SUCCESS;
    works = works && tsi_cu.event_record(event[1], stream->handle) == CUDA_SUCCESS &&
            tsi_cu.stream_sync(stream->handle) == CUDA_SUCCESS &&
            tsi_cu.event_time(&ms, event[0], event[1]) == CUDA_SUCCESS;
    return works ? (double)ms * 1e3 / RUNS : 1e30;
}

/* The fastest proposal, with results that go to memory of its own. */
static int32_t fastest(tsi_stream *stream, const tsi_cuda_product *p, const problem *x,
                       const shape_key *key, const cublasLtMatmulHeuristicResult_t *result,
                       int32_t found)
{
    tsi_cuda_product trial = *p;
    CUevent event[2] = { NULL };
    CUdeviceptr memory = 0;
    int64_t last = (key->batch - 1) * key->c_step + (key->m - 1) * key->ldc + key->n;
    size_t bytes = (size_t)last * ts_dtype_size((ts_dtype)key->c_dtype);
    double best = 1e29;
    int32_t at = 0;
    bool ready = tsi_cu.alloc(&memory, bytes) == CUDA_SUCCESS &&
                 tsi_cu.event_create(&event[0], CU_EVENT_DEFAULT) == CUDA_SUCCESS &&
                 tsi_cu.event_create(&event[1], CU_EVENT_DEFAULT) == CUDA_SUCCESS;
    trial.c = (void *)(uintptr_t)memory;
    trial.accumulate = 0;
    for (int32_t i = 0; ready && i < found; i++) {
        double us = time_of(stream, &trial, x, &result[i].algo, event);
        if (us < best) best = us, at = i;
    }
    for (int32_t i = 0; i < 2; i++)
        if (event[i]) (void)tsi_cu.event_destroy(event[i]);
    if (memory) (void)tsi_cu.free(memory);
    return at;
}

/* With the lock: what the table says, else the first proposal, or where a table is made the
 * fastest. */
static void decide(tsi_stream *stream, const tsi_cuda_product *p, const problem *x, choice *place)
{
    cublasLtMatmulHeuristicResult_t result[PROPOSALS];
    tsi_product_rank rank = rank_of(stream->cuda);
    place->state = 1;
    if (tsi_product_table_find(&rank, &place->key, &place->algorithm, sizeof place->algorithm))
        return;
    bool tuning = tsi_product_table_is_made();
    int32_t found = propose(x, &place->key, result, tuning ? PROPOSALS : 1), at = 0;
    place->state = found > 0 ? 1 : 2;
    if (found == 0) return;
    if (tuning) at = fastest(stream, p, x, &place->key, result, found);
    place->algorithm = result[at].algo;
    if (tuning)
        tsi_product_table_add(&rank, &place->key, &place->algorithm, sizeof place->algorithm, at);
}

static bool choose(tsi_stream *stream, const tsi_cuda_product *p, const problem *x,
                   const shape_key *key, choice *out)
{
    pthread_mutex_lock(&lt.lock);
    choice *place = place_of(key);
    if (place->state == 0) {
        place->key = *key;
        decide(stream, p, x, place);
    }
    *out = *place;
    pthread_mutex_unlock(&lt.lock);
    return out->state == 1;
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
    TSI_CUDA_TRY(stream->cuda, "a workspace of products", tsi_cu.alloc(&memory, WORKSPACE));
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
        cublasStatus_t said = multiply(place.on, p, x, algorithm);
        if (said != CUBLAS_STATUS_SUCCESS) status = refuse(stream, p, said);
    }
    place.on->sent++;
    ts_status ended = tsi_cuda_beside_end(stream, &place);
    return status == TS_OK ? ended : status;
}

ts_status tsi_cuda_product_run(tsi_stream *stream, const tsi_cuda_product *product)
{
    pthread_mutex_lock(&lt.lock);
    bool here = library_open();
    pthread_mutex_unlock(&lt.lock);
    if (!here) return (ts_status)TSI_KERNEL_DECLINED;
    tsi_cuda_product p = by_rows(product);
    shape_key key = key_of(&p);
    problem x;
    choice c;
    ts_status status = workspace_of(stream);
    if (status != TS_OK) return status;
    if (make_problem(&x, &key) && choose(stream, &p, &x, &key, &c))
        status = launch(stream, &p, &x, &c.algorithm);
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
    pthread_mutex_lock(&lt.lock); /* what was chosen before went by another table */
    for (int32_t i = 0; i < CHOICES; i++)
        lt.choice[i].state = 0;
    pthread_mutex_unlock(&lt.lock);
    return TS_OK;
}

int64_t tsi_cuda_product_version(void)
{
    pthread_mutex_lock(&lt.lock);
    bool here = library_open();
    pthread_mutex_unlock(&lt.lock);
    return here ? (int64_t)lt.version() : 0;
}
