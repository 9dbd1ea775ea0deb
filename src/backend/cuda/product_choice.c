/* SPDX-License-Identifier: Apache-2.0 */
/* product_choice.c - which of cuBLASLt's algorithms a product takes, settled when its shape is met
 * first and kept.
 *
 *   in the table of TESSERA_CUDA_PRODUCTS   what it says (product_table.c)
 *   while TESSERA_CUDA_TUNE makes one       the fastest of the library's proposals
 *   large, of bf16 or f16                   the fastest of those whose results have the bits of the
 *                                           first one's, unless TESSERA_CUDA_TUNE is "off"
 *   others                                  the first
 *
 * Proposals that cut the inner dim alike add in the same order, however they tile the result. That
 * is not believed but tried, on factors of its own, which no zeros of a first step make alike.
 *
 * INV: without a file to make, time decides how long a product takes and never its bits.
 * INV: a trial has a stream and memory of its own and holds no lock: it waits for nobody, and a
 * rank that meets the shape meanwhile goes on with the first proposal. */
#include <string.h>

#include "backend/cuda/kernels/trial.h"
#include "backend/cuda/product_library.h"
#include "base/error.h"

enum { CHOICES = 4096, PROBES = 64, PROPOSALS = 8 };

typedef tsi_product_key shape_key;
typedef tsi_product_problem problem;
typedef cublasLtMatmulHeuristicResult_t proposal;

typedef struct choice {
    shape_key key;
    cublasLtMatmulAlgo_t algorithm;
    int32_t state; /* 0 free, 1 known, 2 nothing fits */
} choice;

static struct {
    pthread_mutex_t lock;
    choice choice[CHOICES];
} kept = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* The library's first proposals; how many. */
static int32_t propose(const problem *p, const shape_key *key, proposal *out, int32_t wanted)
{
    cublasLtMatmulPreference_t preference = NULL;
    size_t workspace = TSI_PRODUCT_WORKSPACE;
    uint32_t a = (uint32_t)key->a_align, b = (uint32_t)key->b_align, c = (uint32_t)key->c_align;
    int found = 0;
    if (tsi_lt.preference_create(&preference) != CUBLAS_STATUS_SUCCESS) return 0;
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        uint32_t bytes;
    } aligned[] = { { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b },
                    { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a },
                    { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c },
                    { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, c } };
    (void)tsi_lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                sizeof workspace);
    for (size_t i = 0; i < TSI_COUNT_OF(aligned); i++)
        (void)tsi_lt.preference_set(preference, aligned[i].name, &aligned[i].bytes,
                                    sizeof aligned[i].bytes);
    bool any = tsi_lt.propose(tsi_lt.handle, p->desc, p->b, p->a, p->c, p->c, preference, wanted,
                              out, &found) == CUBLAS_STATUS_SUCCESS;
    (void)tsi_lt.preference_destroy(preference);
    return any ? found : 0;
}

static tsi_product_rank rank_of(const tsi_cuda *cuda)
{
    tsi_product_rank rank = { .version = (int64_t)tsi_lt.version() };
    tsi_device_properties properties;
    cuda->device.properties(&cuda->device, &properties);
    memcpy(rank.gpu, properties.name, sizeof rank.gpu);
    return rank;
}

/* ---- trials ---------------------------------------------------------------------------------- */

typedef struct trial {
    tsi_stream on; /* its handle and its workspace alone */
    CUevent event[2];
    CUdeviceptr memory;
    tsi_cuda_product product; /* of memory of its own */
    void *result[2];          /* of the first proposal, of another one */
    int64_t words;            /* of a result */
    uint32_t *differs;
} trial;

static int64_t span_of(int64_t rows, int64_t columns, int64_t ld, int64_t batch, int64_t step)
{
    return (batch - 1) * step + (rows - 1) * ld + columns;
}

/* Bytes of so many elements, up to where the next ones may begin. */
static size_t room_of(int64_t elements, int32_t dtype)
{
    size_t bytes = (size_t)elements * ts_dtype_size((ts_dtype)dtype);
    return (bytes + 255) & ~(size_t)255;
}

/* Numbers of either sign from 1/2 up to 2 (bf16) or 1 (f16). */
static bool fill(trial *t, int32_t dtype, CUdeviceptr to, size_t bytes)
{
    bool bf16 = dtype == TS_DTYPE_BF16;
    tsi_cuda_trial_fill_args args = { .to = (uint32_t *)(uintptr_t)to,
                                      .words = (int64_t)(bytes / sizeof(uint32_t)),
                                      .same = bf16 ? 0x3F003F00u : 0x38003800u,
                                      .drawn = bf16 ? 0x80FF80FFu : 0x83FF83FFu };
    return tsi_cuda_launch_items(&t->on, TSI_CUDA_trial_fill, args.words, &args) == TS_OK;
}

/* A small part of the GPU's: others may be about to take what is free. */
static bool take_memory(trial *t, size_t bytes)
{
    enum { PARTS = 16 };
    size_t all = 0;
    return tsi_cu.device_memory(&all, t->on.cuda->handle) == CUDA_SUCCESS && bytes <= all / PARTS &&
           tsi_cu.alloc(&t->memory, bytes) == CUDA_SUCCESS;
}

/* a, b, a bias, two results whose gaps are zeros, a word for an answer, the library's workspace. */
static bool trial_memory(trial *t, const shape_key *key)
{
    tsi_cuda_product *p = &t->product;
    size_t a = room_of(span_of(key->ta ? key->k : key->m, key->ta ? key->m : key->k, key->lda,
                               key->batch, key->a_step),
                       key->dtype);
    size_t b = room_of(span_of(key->tb ? key->n : key->k, key->tb ? key->k : key->n, key->ldb,
                               key->batch, key->b_step),
                       key->dtype);
    size_t bias = room_of(key->n, key->c_dtype);
    size_t c = room_of(span_of(key->m, key->n, key->ldc, key->batch, key->c_step), key->c_dtype);
    size_t filled = a + b + bias, all = filled + 2 * c + 256;
    if (!take_memory(t, all + TSI_PRODUCT_WORKSPACE)) return false;
    char *at = (char *)(uintptr_t)t->memory;
    p->a = at;
    p->b = at + a;
    p->bias = key->biased ? at + a + b : NULL;
    t->result[0] = at + filled;
    t->result[1] = at + filled + c;
    t->words = (int64_t)(c / sizeof(uint32_t));
    t->differs = (uint32_t *)(void *)(at + filled + 2 * c);
    t->on.workspace = at + all;
    return tsi_cu.set_bytes(t->memory + filled, 0, all - filled, tsi_cuda_apart(&t->on)) ==
               CUDA_SUCCESS &&
           fill(t, key->dtype, t->memory, filled);
}

/* False: there is no memory for it now. */
static bool trial_begin(trial *t, tsi_cuda *cuda, const shape_key *key)
{
    *t = (trial){ .on.cuda = cuda, .product.dtype = key->dtype, .product.alpha = 1 };
    return tsi_cu.stream_create(&t->on.handle, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS &&
           tsi_cu.event_create(&t->event[0], CU_EVENT_DEFAULT) == CUDA_SUCCESS &&
           tsi_cu.event_create(&t->event[1], CU_EVENT_DEFAULT) == CUDA_SUCCESS &&
           trial_memory(t, key);
}

static void trial_end(trial *t)
{
    for (int i = 0; i < 2; i++)
        if (t->event[i]) (void)tsi_cu.event_destroy(t->event[i]);
    if (t->on.handle) (void)tsi_cu.stream_sync(t->on.handle);
    if (t->on.handle) (void)tsi_cu.stream_destroy(t->on.handle);
    if (t->memory) (void)tsi_cu.free(t->memory);
}

/* Microseconds of a run, of a few behind a first one; a large number if it does not run. */
static double time_of(trial *t, const problem *x, const cublasLtMatmulAlgo_t *algorithm)
{
    enum { RUNS = 6 };
    float ms = 0;
    bool works = true;
    for (int i = 0; works && i <= RUNS; i++) {
        works = tsi_product_multiply(&t->on, &t->product, x, algorithm) == CUBLAS_STATUS_SUCCESS;
        if (i == 0) works = works && tsi_cu.event_record(t->event[0], t->on.handle) == CUDA_SUCCESS;
    }
    works = works && tsi_cu.event_record(t->event[1], t->on.handle) == CUDA_SUCCESS &&
            tsi_cu.stream_sync(t->on.handle) == CUDA_SUCCESS &&
            tsi_cu.event_time(&ms, t->event[0], t->event[1]) == CUDA_SUCCESS;
    return works ? (double)ms * 1e3 / RUNS : 1e30;
}

/* Whether the two results have the same bits. */
static bool same_bits(trial *t)
{
    uint32_t differs = 1;
    CUdeviceptr answer = tsi_cuda_pointer(t->differs);
    tsi_cuda_trial_differs_args args = {
        .one = t->result[0], .other = t->result[1], .words = t->words, .differs = t->differs
    };
    return tsi_cu.set_bytes(answer, 0, sizeof differs, tsi_cuda_apart(&t->on)) == CUDA_SUCCESS &&
           tsi_cuda_launch_items(&t->on, TSI_CUDA_trial_differs, t->words, &args) == TS_OK &&
           tsi_cu.copy_out(&differs, answer, sizeof differs, t->on.handle) == CUDA_SUCCESS &&
           tsi_cu.stream_sync(t->on.handle) == CUDA_SUCCESS && differs == 0;
}

/* The fastest proposal, of all or of those with the bits of the first. */
static int32_t fastest(tsi_cuda *cuda, const problem *x, const shape_key *key, const proposal *list,
                       int32_t count, bool any_bits)
{
    trial t;
    double best = 1e29;
    int32_t at = 0;
    if (trial_begin(&t, cuda, key))
        for (int32_t i = 0; i < count; i++) {
            t.product.c = t.result[i > 0];
            double us = time_of(&t, x, &list[i].algo);
            if (us < best && (i == 0 || any_bits || same_bits(&t))) best = us, at = i;
        }
    trial_end(&t);
    return at;
}

/* ---- the choice ------------------------------------------------------------------------------ */

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
    choice *place = &kept.choice[at];
    for (int32_t i = 0; i < PROBES; i++, at = (at + 1) % CHOICES) {
        place = &kept.choice[at];
        if (place->state == 0 || memcmp(&place->key, key, sizeof *key) == 0) return place;
    }
    place->state = 0;
    return place;
}

/* Large enough that a trial is soon made good: some microseconds of a GPU's time. */
static bool is_tried(const shape_key *key)
{
    tsi_product_tuning tuning = tsi_product_tuning_of();
    bool narrow = key->dtype == TS_DTYPE_BF16 || key->dtype == TS_DTYPE_F16;
    double flops = 2.0 * (double)key->m * (double)key->n * (double)key->k * (double)key->batch;
    bool large = narrow && flops >= 4e9;
    return tuning == TSI_TUNING_TO_FILE || (tuning == TSI_TUNING_SAME_BITS && large);
}

/* With the lock: what the table says, else the first proposal. Returns how many there are to be
 * tried. */
static int32_t settle(tsi_cuda *cuda, const problem *x, choice *place, proposal *list)
{
    tsi_product_rank rank = rank_of(cuda);
    place->state = 1;
    if (tsi_product_table_find(&rank, &place->key, &place->algorithm, sizeof place->algorithm))
        return 0;
    bool tries = is_tried(&place->key);
    int32_t found = propose(x, &place->key, list, tries ? PROPOSALS : 1);
    place->state = found > 0 ? 1 : 2;
    if (found > 0) place->algorithm = list[0].algo;
    return tries ? found : 0;
}

static void settle_by_time(tsi_cuda *cuda, const problem *x, const shape_key *key,
                           const proposal *list, int32_t count, cublasLtMatmulAlgo_t *out)
{
    bool to_file = tsi_product_tuning_of() == TSI_TUNING_TO_FILE;
    tsi_product_rank rank = rank_of(cuda);
    int32_t at = fastest(cuda, x, key, list, count, to_file);
    *out = list[at].algo;
    if (to_file) tsi_product_table_add(&rank, key, out, sizeof *out, at);
    pthread_mutex_lock(&kept.lock);
    choice *place = place_of(key);
    place->key = *key;
    place->algorithm = *out;
    place->state = 1;
    pthread_mutex_unlock(&kept.lock);
}

bool tsi_product_choose(tsi_stream *stream, const problem *x, const shape_key *key,
                        cublasLtMatmulAlgo_t *out)
{
    proposal list[PROPOSALS];
    int32_t count = 0;
    pthread_mutex_lock(&kept.lock);
    choice *place = place_of(key);
    if (place->state == 0) {
        place->key = *key;
        count = settle(stream->cuda, x, place, list);
    }
    bool known = place->state == 1;
    *out = place->algorithm;
    pthread_mutex_unlock(&kept.lock);
    if (count > 0 && !stream->capture) settle_by_time(stream->cuda, x, key, list, count, out);
    return known;
}

void tsi_product_forget(void)
{
    pthread_mutex_lock(&kept.lock);
    for (int32_t i = 0; i < CHOICES; i++)
        kept.choice[i].state = 0;
    pthread_mutex_unlock(&kept.lock);
}
