/* SPDX-License-Identifier: Apache-2.0 */
/* ops.c - operators on a GPU against the same calls on the host, from the same random numbers; then
 * their rates: products in TFLOP/s, the others in bytes read and written. */
#include "gpu/gpu.h"

#include <math.h>
#include <unistd.h>

#include "device/number.h"
#include "tessera/op.h"
#include "tessera/world.h"

typedef ts_tensor *(*make_fn)(ts_mesh *mesh, ts_dtype dtype);

static ts_tensor *randn(ts_mesh *mesh, ts_dtype dtype, ts_shape shape)
{
    return ts_randn(mesh, dtype, shape, "R");
}

static ts_tensor *make_linear(ts_mesh *m, ts_dtype d)
{
    return ts_linear(randn(m, d, TS_SHAPE(3, 50, 72)), randn(m, d, TS_SHAPE(40, 72)),
                     randn(m, d, TS_SHAPE(40)));
}

static ts_tensor *make_weight_gradient(ts_mesh *m, ts_dtype d)
{
    return ts_einsum("abn,abk->nk", randn(m, d, TS_SHAPE(3, 50, 40)),
                     randn(m, d, TS_SHAPE(3, 50, 72)));
}

static ts_tensor *make_input_gradient(ts_mesh *m, ts_dtype d)
{
    return ts_einsum("abn,nk->abk", randn(m, d, TS_SHAPE(3, 50, 40)),
                     randn(m, d, TS_SHAPE(40, 72)));
}

static ts_tensor *make_batches(ts_mesh *m, ts_dtype d)
{
    return ts_matmul(randn(m, d, TS_SHAPE(5, 1, 33, 17)), randn(m, d, TS_SHAPE(3, 17, 29)));
}

static ts_tensor *make_turned(ts_mesh *m, ts_dtype d)
{
    return ts_matmul(ts_transpose(randn(m, d, TS_SHAPE(4, 17, 33)), 1, 2),
                     ts_transpose(randn(m, d, TS_SHAPE(4, 29, 17)), 1, 2));
}

static ts_tensor *make_heads(ts_mesh *m, ts_dtype d)
{
    return ts_einsum("bthd,bshd->bhts", randn(m, d, TS_SHAPE(2, 9, 3, 16)),
                     randn(m, d, TS_SHAPE(2, 11, 3, 16)));
}

static ts_tensor *make_add(ts_mesh *m, ts_dtype d)
{
    return ts_add(randn(m, d, TS_SHAPE(7, 5, 130)), randn(m, d, TS_SHAPE(5, 1)));
}

static ts_tensor *make_add_scaled(ts_mesh *m, ts_dtype d)
{
    ts_tensor *x = randn(m, d, TS_SHAPE(300)), *y = randn(m, d, TS_SHAPE(300)), *out = NULL;
    if (ts_foreach_add((ts_list){ &x, 1 }, (ts_list){ &y, 1 }, 0.5, &out) != TS_OK) return NULL;
    return out;
}

static ts_tensor *make_mul(ts_mesh *m, ts_dtype d)
{
    return ts_mul(randn(m, d, TS_SHAPE(1003)), randn(m, d, TS_SHAPE(1003)));
}

static ts_tensor *make_silu(ts_mesh *m, ts_dtype d)
{
    return ts_silu(ts_transpose(randn(m, d, TS_SHAPE(65, 34)), 0, 1));
}

static ts_tensor *make_gelu(ts_mesh *m, ts_dtype d)
{
    return ts_gelu(randn(m, d, TS_SHAPE(65, 34)));
}

static ts_tensor *make_swiglu(ts_mesh *m, ts_dtype d)
{
    return ts_swiglu(randn(m, d, TS_SHAPE(64, 128)), randn(m, d, TS_SHAPE(64, 128)));
}

static ts_tensor *make_swiglu_back(ts_mesh *m, ts_dtype d)
{
    return ts_swiglu_backward(randn(m, d, TS_SHAPE(64, 128)), randn(m, d, TS_SHAPE(64, 128)),
                              randn(m, d, TS_SHAPE(64, 128)));
}

/* Drawn by global index: the same on both sides. */
static ts_tensor *make_dropout(ts_mesh *m, ts_dtype d)
{
    return ts_dropout(randn(m, d, TS_SHAPE(5, 203)), 0.25);
}

static ts_tensor *make_rope(ts_mesh *m, ts_dtype d)
{
    return ts_rope(randn(m, d, TS_SHAPE(2, 3, 9, 64)), randn(m, d, TS_SHAPE(11, 64)));
}

static ts_tensor *make_embedding(ts_mesh *m, ts_dtype d)
{
    ts_tensor *ids = ts_randint(m, TS_DTYPE_I64, TS_SHAPE(3, 33), "R",
                                TS_OPTIONS(ts_random_options, .high = 50));
    return ts_embedding(randn(m, d, TS_SHAPE(50, 73)), ids);
}

static ts_tensor *make_add_rows(ts_mesh *m, ts_dtype d)
{
    ts_tensor *wide = randn(m, d, TS_SHAPE(33, 256));
    return ts_add(ts_narrow(wide, 1, (ts_interval){ 0, 128 }),
                  ts_narrow(wide, 1, (ts_interval){ 128, 256 }));
}

static ts_tensor *make_rms_norm(ts_mesh *m, ts_dtype d)
{
    return ts_rms_norm(randn(m, d, TS_SHAPE(33, 768)), randn(m, d, TS_SHAPE(768)), 1e-5);
}

static ts_tensor *make_rms_norm_odd(ts_mesh *m, ts_dtype d)
{
    return ts_rms_norm(randn(m, d, TS_SHAPE(3, 5, 77)), randn(m, d, TS_SHAPE(77)), 1e-5);
}

static ts_tensor *make_softmax(ts_mesh *m, ts_dtype d)
{
    return ts_softmax(randn(m, d, TS_SHAPE(33, 1001)), -1);
}

static ts_tensor *make_log_softmax(ts_mesh *m, ts_dtype d)
{
    return ts_log_softmax(randn(m, d, TS_SHAPE(33, 101)), -1);
}

static const struct {
    const char *name;
    make_fn make;
} cases[] = {
    { "linear", make_linear },
    { "linear, weight gradient", make_weight_gradient },
    { "linear, input gradient", make_input_gradient },
    { "matmul in batches", make_batches },
    { "matmul of transposes", make_turned },
    { "einsum of heads", make_heads },
    { "add with broadcast", make_add },
    { "add of halves", make_add_scaled },
    { "mul", make_mul },
    { "silu of a transpose", make_silu },
    { "gelu", make_gelu },
    { "swiglu", make_swiglu },
    { "swiglu_backward", make_swiglu_back },
    { "dropout", make_dropout },
    { "rope", make_rope },
    { "embedding", make_embedding },
    { "add of rows that lie apart", make_add_rows },
    { "rms_norm", make_rms_norm },
    { "rms_norm of odd rows", make_rms_norm_odd },
    { "softmax", make_softmax },
    { "log_softmax", make_log_softmax },
};
enum { CASES = sizeof cases / sizeof cases[0] };
static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16, TS_DTYPE_F64 };
enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

typedef struct results {
    double *value[CASES][DTYPES];
    int64_t count[CASES][DTYPES];
} results;

static ts_status compute(ts_rank *me, void *context)
{
    results *out = context;
    ts_mesh *mesh = ts_mesh_create(me, "x=*");
    for (int c = 0; c < CASES; c++)
        for (int d = 0; d < DTYPES; d++) {
            ts_scope scope = ts_scope_open(me, NULL);
            out->value[c][d] = gpu_values(cases[c].make(mesh, dtypes[d]), &out->count[c][d]);
            (void)ts_scope_close(scope);
        }
    return ts_rank_status(me);
}

static void check(test *t, const char *name, ts_dtype dtype, const double *got, const double *want,
                  int64_t count)
{
    double most = 0, worst = 0;
    for (int64_t i = 0; i < count; i++) {
        most = fmax(most, fabs(want[i]));
        double off = fabs(got[i] - want[i]);
        if (!(off <= worst)) worst = off;
    }
    TEST_SAY(t, worst <= gpu_allowed(dtype) * most, "%s of %s: off by %g of %g", name,
             ts_dtype_name(dtype), worst, most);
}

TS_TEST_LONG(operators_agree_with_the_host, 300)
{
    static results on[2];
    (void)setenv("TESSERA_CUDA_MEMORY", "host", 1); /* results are read through pointers */
    gpu_beside_host(t, 7, compute, &on[0], &on[1]);
    for (int c = 0; c < CASES; c++)
        for (int d = 0; d < DTYPES; d++) {
            bool both = on[0].value[c][d] && on[1].value[c][d];
            TEST_SAY(t, both, "%s of %s: no result", cases[c].name, ts_dtype_name(dtypes[d]));
            if (both)
                check(t, cases[c].name, dtypes[d], on[1].value[c][d], on[0].value[c][d],
                      on[0].count[c][d]);
            free(on[0].value[c][d]);
            free(on[1].value[c][d]);
        }
}

/* ---- algorithms of products ------------------------------------------------------------------ */

enum { FORMS = 3 };

typedef struct products_of {
    double *value[FORMS];
    int64_t count[FORMS];
} products_of;

/* Large enough for trials: a product and its two gradients. */
static ts_status large_products(ts_rank *me, void *context)
{
    products_of *out = context;
    ts_mesh *mesh = ts_mesh_create(me, "x=*");
    ts_tensor *x = randn(mesh, TS_DTYPE_BF16, TS_SHAPE(4096, 768));
    ts_tensor *w = randn(mesh, TS_DTYPE_BF16, TS_SHAPE(2304, 768));
    ts_tensor *y = randn(mesh, TS_DTYPE_BF16, TS_SHAPE(4096, 2304));
    ts_tensor *made[FORMS] = { ts_linear(x, w, NULL), ts_einsum("tn,nk->tk", y, w),
                               ts_einsum("tn,tk->nk", y, x) };
    for (int f = 0; f < FORMS; f++)
        out->value[f] = gpu_values(made[f], &out->count[f]);
    return ts_rank_status(me);
}

/* Time decides among algorithms with the same bits alone: as without trials. */
TS_TEST_LONG(trials_change_no_bits, 120)
{
    if (gpu_leaves_out("products that are large enough for trials")) return;
    (void)setenv("TESSERA_CUDA_MEMORY", "host", 1);
    tsi_stream *stream = NULL;
    const tsi_device *gpu = gpu_open(t, &stream);
    if (!gpu) return;
    products_of first = { { NULL }, { 0 } }, tried = { { NULL }, { 0 } };
    (void)setenv("TESSERA_CUDA_TUNE", "off", 1);
    TEST_OK(t, gpu->choices_take(gpu, "# first proposals\n"));
    gpu_launch(t, "cuda", 1, 7, large_products, &first);
    (void)unsetenv("TESSERA_CUDA_TUNE");
    TEST_OK(t, gpu->choices_take(gpu, "# the fastest of them\n"));
    gpu_launch(t, "cuda", 1, 7, large_products, &tried);
    for (int f = 0; f < FORMS; f++) {
        bool there = first.value[f] && tried.value[f] && first.count[f] == tried.count[f];
        TEST_CHECK(t, there);
        TEST_CHECK(t, there && memcmp(first.value[f], tried.value[f],
                                      (size_t)first.count[f] * sizeof(double)) == 0);
        free(first.value[f]);
        free(tried.value[f]);
    }
    gpu->stream_destroy(gpu, stream);
    (void)unsetenv("TESSERA_CUDA_MEMORY");
}

/* A product and its two gradients, of any size. */
static ts_status small_products(ts_rank *me, void *context)
{
    products_of *out = context;
    ts_mesh *mesh = ts_mesh_create(me, "x=*");
    ts_tensor *x = randn(mesh, TS_DTYPE_BF16, TS_SHAPE(64, 96));
    ts_tensor *w = randn(mesh, TS_DTYPE_BF16, TS_SHAPE(80, 96));
    ts_tensor *y = randn(mesh, TS_DTYPE_BF16, TS_SHAPE(64, 80));
    ts_tensor *made[FORMS] = { ts_linear(x, w, NULL), ts_einsum("tn,nk->tk", y, w),
                               ts_einsum("tn,tk->nk", y, x) };
    for (int f = 0; f < FORMS; f++)
        out->value[f] = gpu_values(made[f], &out->count[f]);
    return ts_rank_status(me);
}

/* With TESSERA_CUDA_TUNE=FILE every shape is tried, and gets a line; who has the file takes the
 * same algorithms. */
TS_TEST_LONG(trials_are_taken_from_a_file, 120)
{
    static char text[1 << 16];
    char path[512];
    tsi_stream *stream = NULL;
    const tsi_device *gpu = gpu_open(t, &stream);
    if (!gpu) return;
    (void)setenv("TESSERA_CUDA_MEMORY", "host", 1);
    (void)snprintf(path, sizeof path, "%s/products-%ld", TS_BINARY_DIR, (long)getpid());
    (void)remove(path);
    (void)setenv("TESSERA_CUDA_TUNE", path, 1);
    products_of tried = { { NULL }, { 0 } }, again = { { NULL }, { 0 } };
    gpu_launch(t, "cuda", 1, 7, small_products, &tried);
    FILE *file = fopen(path, "r");
    TEST_SAY(t, file != NULL, "%s is not there", path);
    size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file) (void)fclose(file);
    int lines = 0;
    for (size_t i = 0; i < length; i++)
        lines += text[i] == '\n';
    TEST_EQ(t, lines, FORMS);
    (void)setenv("TESSERA_CUDA_TUNE", "off", 1);
    TEST_OK(t, gpu->choices_take(gpu, text));
    gpu_launch(t, "cuda", 1, 7, small_products, &again);
    for (int f = 0; f < FORMS; f++) {
        TEST_CHECK(t, tried.value[f] && again.value[f] &&
                          memcmp(tried.value[f], again.value[f],
                                 (size_t)again.count[f] * sizeof(double)) == 0);
        free(tried.value[f]);
        free(again.value[f]);
    }
    (void)remove(path);
    (void)unsetenv("TESSERA_CUDA_TUNE");
    (void)unsetenv("TESSERA_CUDA_MEMORY");
    gpu->stream_destroy(gpu, stream);
}

/* ---- rates ----------------------------------------------------------------------------------- */

enum { RUNS = 6, REPEATS = 5 };

static ts_tensor *in[4];
static int64_t sizes[3]; /* of the product: rows, columns, depth */

static ts_tensor *run_linear(ts_mesh *m, ts_dtype d)
{
    (void)m, (void)d;
    return ts_linear(in[0], in[1], NULL);
}

static ts_tensor *run_input(ts_mesh *m, ts_dtype d)
{
    (void)m, (void)d;
    return ts_einsum("tn,nk->tk", in[2], in[1]);
}

static ts_tensor *run_weight(ts_mesh *m, ts_dtype d)
{
    (void)m, (void)d;
    return ts_einsum("tn,tk->nk", in[2], in[0]);
}

static ts_tensor *run_add(ts_mesh *m, ts_dtype d)
{
    (void)m, (void)d;
    return ts_add(in[0], in[1]);
}

static ts_tensor *run_swiglu(ts_mesh *m, ts_dtype d)
{
    (void)m, (void)d;
    return ts_swiglu(in[0], in[1]);
}

static ts_tensor *run_norm(ts_mesh *m, ts_dtype d)
{
    (void)m, (void)d;
    return ts_rms_norm(in[0], in[3], 1e-5);
}

static ts_tensor *run_softmax(ts_mesh *m, ts_dtype d)
{
    (void)m, (void)d;
    return ts_softmax(in[0], -1);
}

static double best_us(ts_rank *me, ts_mesh *mesh, make_fn make)
{
    const tsi_rank_device *where = tsi_rank_device_of(me);
    const tsi_device *gpu = where->device;
    double best = 1e30;
    for (int run = 0; run < RUNS; run++) {
        tsi_device_event *begin = NULL, *end = NULL;
        double us = 0;
        if (gpu->event_mark(gpu, where->queue, &begin) != TS_OK) return best;
        for (int i = 0; i < REPEATS; i++) {
            ts_scope scope = ts_scope_open(me, NULL);
            (void)make(mesh, TS_DTYPE_BF16);
            (void)ts_scope_close(scope);
        }
        if (gpu->event_mark(gpu, where->queue, &end) != TS_OK ||
            gpu->stream_sync(gpu, where->queue) != TS_OK ||
            gpu->event_time(gpu, begin, end, &us) != TS_OK)
            return best;
        gpu->event_destroy(gpu, begin);
        gpu->event_destroy(gpu, end);
        if (run > 0 && us / REPEATS < best) best = us / REPEATS;
    }
    return best;
}

static ts_status time_products(ts_rank *me, void *context)
{
    (void)context;
    static const struct {
        const char *name;
        int64_t t, n, k;
    } shapes[] = { { "A qkv", 16384, 2304, 768 },     { "A o", 16384, 768, 768 },
                   { "A gate-up", 16384, 4096, 768 }, { "A down", 16384, 768, 2048 },
                   { "A head", 16384, 32000, 768 },   { "B qkv", 8192, 2560, 2048 },
                   { "B o", 8192, 2048, 2048 },       { "B gate-up", 8192, 11264, 2048 },
                   { "B down", 8192, 2048, 5632 },    { "B head", 8192, 32000, 2048 } };
    static const make_fn forms[3] = { run_linear, run_input, run_weight };
    ts_mesh *mesh = ts_mesh_create(me, "x=*");
    printf("products of bf16, TFLOP/s               forward   input gradient   weight gradient\n");
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        ts_scope scope = ts_scope_open(me, NULL);
        sizes[0] = shapes[i].t, sizes[1] = shapes[i].n, sizes[2] = shapes[i].k;
        in[0] = randn(mesh, TS_DTYPE_BF16, TS_SHAPE(sizes[0], sizes[2]));
        in[1] = randn(mesh, TS_DTYPE_BF16, TS_SHAPE(sizes[1], sizes[2]));
        in[2] = randn(mesh, TS_DTYPE_BF16, TS_SHAPE(sizes[0], sizes[1]));
        double flops = 2.0 * (double)sizes[0] * (double)sizes[1] * (double)sizes[2];
        printf("%-36s", shapes[i].name);
        for (int f = 0; f < 3; f++)
            printf(" %12.0f", flops / best_us(me, mesh, forms[f]) / 1e6);
        printf("\n");
        (void)ts_scope_close(scope);
    }
    return ts_rank_status(me);
}

static ts_status time_rows(ts_rank *me, void *context)
{
    (void)context;
    static const struct {
        const char *name;
        make_fn make;
        double moves; /* tensors read and written */
    } works[] = { { "add", run_add, 3 },
                  { "swiglu", run_swiglu, 3 },
                  { "rms_norm", run_norm, 2 },
                  { "softmax", run_softmax, 2 } };
    static const int64_t columns[] = { 768, 2048, 32000 };
    ts_mesh *mesh = ts_mesh_create(me, "x=*");
    printf("rows of bf16, TB/s              by columns:  768      2048     32000\n");
    for (size_t w = 0; w < sizeof works / sizeof works[0]; w++) {
        printf("%-36s", works[w].name);
        for (int c = 0; c < 3; c++) {
            ts_scope scope = ts_scope_open(me, NULL);
            int64_t rows = ((int64_t)1 << 28) / columns[c];
            in[0] = randn(mesh, TS_DTYPE_BF16, TS_SHAPE(rows, columns[c]));
            in[1] = randn(mesh, TS_DTYPE_BF16, TS_SHAPE(rows, columns[c]));
            in[3] = randn(mesh, TS_DTYPE_F32, TS_SHAPE(columns[c]));
            double bytes = works[w].moves * 2.0 * (double)(rows * columns[c]);
            printf(" %9.3f", bytes / best_us(me, mesh, works[w].make) / 1e6);
            (void)ts_scope_close(scope);
        }
        printf("\n");
    }
    return ts_rank_status(me);
}

TS_TEST_LONG(zz_rates, 300)
{
    if (gpu_leaves_out("rates")) return;
    static const ts_work_fn works[] = { time_products, time_rows };
    for (size_t i = 0; i < sizeof works / sizeof works[0]; i++) {
        char error[512] = "";
        ts_status status =
            ts_launch_with(TS_OPTIONS(ts_world_options, .rank_count = 1, .device = "cuda"),
                           works[i], NULL, error, sizeof error);
        TEST_SAY(t, status == TS_OK, "%s", error);
    }
}
