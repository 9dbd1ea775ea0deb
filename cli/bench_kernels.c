/* SPDX-License-Identifier: Apache-2.0 */
/* bench_kernels.c - `tessera bench kernels`: operators on one rank beside what the machine can do.
 *
 *   memory-bound operators   bytes they must read and write, against plain copies that read and
 *                            write as many in all, by as many threads: a sum, which only reads,
 *                            against a copy of half its bytes
 *   f32 matrix products      against the raw OpenBLAS call with as many threads
 *   bf16 matrix products     against our own in f32; attention against the rate of matrix products
 *
 * Ratios are rates over the floor's rate: larger is better. Where an operator computes an
 * exponential for each element, its note says what the exponentials alone would allow. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_kernels_data.h"
#include "bench_lines.h"
#include "contest.h"
#include "copy_team.h"

#if TS_HAVE_OPENBLAS
#include <cblas.h>
#endif

typedef struct bench {
    bench_lines lines;
    ts_rank *me;
    ts_mesh *mesh;
    copy_team *team;
    int64_t threads, seconds;
    const char *only;
    char *from, *to; /* for copies */
    size_t copy_bytes;
    double matmul_rate; /* f32, of the largest product */
    double exp_rate;    /* exponentials of f32 added up in the first cache, by all threads; 0: not
                           measured yet */
    bool json;
} bench;

typedef struct subject { /* one operator on its inputs */
    bench *self;
    ts_tensor *(*run)(const struct subject *s);
    ts_tensor *x, *y, *z;
    ts_tensor *forward[2], *d_out; /* of a gradient of attention */
    bool causal;
    double work; /* bytes, or operations */
    int64_t m, n, k;
    float *a, *b, *c;                             /* the rival's operands */
    bool reads;                                   /* also against a loop that only reads */
    ts_tensor *(*rival)(const struct subject *s); /* NULL: copies */
} subject;

/* ---- the operators --------------------------------------------------------------------------- */

static ts_tensor *run_add(const subject *s)
{
    return ts_add(s->x, s->y);
}

static ts_tensor *run_mul(const subject *s)
{
    return ts_mul(s->x, s->y);
}

static ts_tensor *run_silu(const subject *s)
{
    return ts_silu(s->x);
}

static ts_tensor *run_cast(const subject *s)
{
    return ts_cast(s->x, TS_DTYPE_BF16);
}

static ts_tensor *run_cast_f32(const subject *s)
{
    return ts_cast(s->x, TS_DTYPE_F32);
}

static ts_tensor *run_relu(const subject *s)
{
    return ts_relu(s->x);
}

static ts_tensor *run_gt(const subject *s)
{
    return ts_gt(s->x, s->y);
}

static ts_tensor *run_where(const subject *s)
{
    return ts_where(s->z, s->x, s->y);
}

static ts_tensor *run_sum(const subject *s)
{
    return ts_sum(s->x, NULL, 0, 0);
}

static ts_tensor *run_sum_rows(const subject *s)
{
    return ts_sum(s->x, (const int64_t[]){ -1 }, 1, 0);
}

static ts_tensor *run_sum_columns(const subject *s)
{
    return ts_sum(s->x, (const int64_t[]){ 0 }, 1, 0);
}

static ts_tensor *run_amax(const subject *s)
{
    return ts_amax(s->x, (const int64_t[]){ -1 }, 1, 0);
}

static ts_tensor *run_argmax(const subject *s)
{
    return ts_argmax(s->x, -1, 0);
}

static ts_tensor *run_var(const subject *s)
{
    return ts_var(s->x, TS_OPTIONS(ts_stat_options, .dims = (const int64_t[]){ -1 }, .count = 1,
                                   .correction = 1));
}

static ts_tensor *run_cumsum(const subject *s)
{
    return ts_cumsum(s->x, -1);
}

static ts_tensor *run_any(const subject *s)
{
    return ts_any(s->z, NULL, 0, 0);
}

static ts_tensor *run_softmax(const subject *s)
{
    return ts_softmax(s->x, -1);
}

static ts_tensor *run_log_softmax(const subject *s)
{
    return ts_log_softmax(s->x, -1);
}

static ts_tensor *run_softmax_backward(const subject *s)
{
    return ts_softmax_backward(s->x, s->y, -1);
}

static ts_tensor *run_gelu(const subject *s)
{
    return ts_gelu(s->x);
}

static ts_tensor *run_gelu_tanh(const subject *s)
{
    return ts_gelu_tanh(s->x);
}

static ts_tensor *run_swiglu(const subject *s)
{
    return ts_swiglu(s->x, s->y);
}

static ts_tensor *run_swiglu_backward(const subject *s)
{
    return ts_swiglu_backward(s->x, s->y, s->x);
}

/* y: a label for each row */
static ts_tensor *run_cross_entropy(const subject *s)
{
    return ts_cross_entropy(s->x, s->y);
}

static ts_tensor *run_rms_norm(const subject *s)
{
    return ts_rms_norm(s->x, s->y, 1e-5);
}

static ts_tensor *run_layer_norm(const subject *s)
{
    return ts_layer_norm(s->x, s->y, s->z, 1e-5);
}

static ts_tensor *run_matmul(const subject *s)
{
    return ts_matmul(s->x, s->y);
}

static ts_tensor *run_linear(const subject *s)
{
    return ts_linear(s->x, s->y, NULL);
}

static ts_tensor *run_mv(const subject *s)
{
    return ts_mv(s->x, s->y);
}

static ts_tensor *run_vm(const subject *s)
{
    return ts_matmul(s->y, s->x);
}

static ts_tensor *run_attention(const subject *s)
{
    return ts_attention(s->x, s->y, s->z, NULL);
}

static ts_tensor *run_causal(const subject *s)
{
    return ts_attention(s->x, s->y, s->z, TS_OPTIONS(ts_attention_options, .causal = 1));
}

static ts_tensor *run_attention_back(const subject *s)
{
    ts_attention_saved saved = { .struct_size = sizeof saved,
                                 .q = s->x,
                                 .k = s->y,
                                 .v = s->z,
                                 .o = s->forward[0],
                                 .lse = s->forward[1],
                                 .d_o = s->d_out };
    ts_tensor *grad[3] = { NULL };
    ts_status status =
        ts_attention_backward(&saved, TS_OPTIONS(ts_attention_options, .causal = s->causal), grad);
    ts_tensor_drop(grad[1]);
    ts_tensor_drop(grad[2]);
    return status == TS_OK ? grad[0] : NULL;
}

/* ---- measuring ------------------------------------------------------------------------------- */

static void run_copy(const subject *s)
{
    size_t bytes = (size_t)(s->work / 2); /* read once, written once */
    copy_team_copy(s->self->team, s->self->to, s->self->from,
                   bytes < s->self->copy_bytes ? bytes : s->self->copy_bytes);
}

static void run_blas(const subject *s)
{
#if TS_HAVE_OPENBLAS
    openblas_set_num_threads((int)s->self->threads);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)s->m, (int)s->n, (int)s->k, 1.0f,
                s->a, (int)s->k, s->b, (int)s->n, 0.0f, s->c, (int)s->n);
    openblas_set_num_threads(1);
#else
    (void)s;
#endif
}

static ts_status drop(const subject *s, ts_tensor *result)
{
    if (result == NULL) return ts_rank_status(s->self->me);
    ts_status status = ts_tensor_wait(result);
    ts_tensor_drop(result);
    return status;
}

static ts_status turn(void *context, int who)
{
    const subject *s = context;
    if (who == 0) return drop(s, s->run(s));
    if (who == 2) {
        copy_team_read(s->self->team, s->self->from, (size_t)s->work);
        return TS_OK;
    }
    if (s->rival != NULL) return drop(s, s->rival(s));
    if (s->a != NULL)
        run_blas(s);
    else
        run_copy(s);
    return TS_OK;
}

static ts_status measure(subject *s, contest_times *times)
{
    contest c = { .world = ts_group_world(s->self->me),
                  .contenders = s->reads ? 3 : 2,
                  .seconds = (double)s->self->seconds / 30.0,
                  .context = s,
                  .run = turn };
    return contest_run(&c, times);
}

static bool wanted(const bench *self, const char *name)
{
    return self->only == NULL || strstr(name, self->only) != NULL;
}

/* ---- memory ---------------------------------------------------------------------------------- */

typedef struct memory_case {
    const char *name;
    ts_tensor *(*run)(const subject *s);
    ts_dtype dtype;
    int64_t rows, columns;
    /* 2: y is like x; 3: y (and z) are rows; 4: y are labels of rows; 5: y is like x, z of bool */
    int inputs;
    double per_element; /* bytes read and written for each element of x */
    double wanted;
    bool exponential; /* one for each element: the machine's own bound is beside the line */
} memory_case;

/* Exponentials a second: the log of a sum of them over rows that stay in the first cache, on one
 * thread, times the threads. */
static ts_status measure_exponentials(bench *self)
{
    const int64_t rows = 4, columns = 1024, last = -1;
    ts_scope scope = ts_scope_open(self->me, "exponentials");
    ts_tensor *x = ts_randn(self->mesh, TS_DTYPE_F32, TS_SHAPE(rows, columns), NULL);
    subject s = { .self = self };
    double best = 1e30, until = cli_now() + 0.05;
    ts_status status = TS_OK;
    while (status == TS_OK && cli_now() < until) {
        double start = cli_now();
        for (int i = 0; i < 16 && status == TS_OK; i++)
            status = drop(&s, ts_logsumexp(x, &last, 1, 0));
        if (cli_now() - start < best) best = cli_now() - start;
    }
    self->exp_rate = 16.0 * (double)(rows * columns * self->threads) / best;
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

static ts_tensor *numbers_of(const bench *self, ts_dtype dtype, ts_shape shape)
{
    if (dtype == TS_DTYPE_I64)
        return ts_cast(ts_randn(self->mesh, TS_DTYPE_F32, shape, NULL), dtype);
    return ts_randn(self->mesh, dtype, shape, NULL);
}

static ts_status memory_line(bench *self, const memory_case *what)
{
    ts_scope scope = ts_scope_open(self->me, what->name);
    ts_shape shape = TS_SHAPE(what->rows, what->columns), row = TS_SHAPE(what->columns);
    subject s = { .self = self, .run = what->run };
    s.reads = what->per_element <= (double)ts_dtype_size(what->dtype);
    s.x = numbers_of(self, what->dtype, shape);
    if (what->inputs == 2 || what->inputs == 5) s.y = numbers_of(self, what->dtype, shape);
    if (what->inputs == 5) s.z = ts_gt(s.x, s.y);
    if (what->inputs == 3) {
        s.y = ts_randn(self->mesh, what->dtype, row, NULL);
        s.z = ts_randn(self->mesh, what->dtype, row, NULL);
    }
    if (what->inputs == 4) s.y = ts_zeros(self->mesh, TS_DTYPE_I64, TS_SHAPE(what->rows), NULL);
    s.work = (double)(what->rows * what->columns) * what->per_element;
    contest_times times = { { 0 }, { 0 } };
    ts_status status = measure(&s, &times);
    if (status == TS_OK) {
        bench_line *line =
            bench_lines_add(&self->lines, "GB/s", s.work / times.best[0] / 1e9, "%s", what->name);
        bench_line_floor(line, s.work / times.best[1] / 1e9, "memcpy");
        if (what->exponential)
            bench_line_note(line, "wanted: %.2f; exp alone: %.1f", what->wanted,
                            self->exp_rate * what->per_element / 1e9);
        else if (s.reads)
            bench_line_note(line, "wanted: %.2f; bare reads: %.4g", what->wanted,
                            s.work / times.best[2] / 1e9);
        else
            bench_line_note(line, "ratio wanted: %.2f", what->wanted);
    }
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

static ts_status memory_lines(bench *self)
{
    static const memory_case cases[] = {
        { "add f32 1 MiB", run_add, TS_DTYPE_F32, 256, 1024, 2, 12, 0.8, false },
        { "add f32 16 MiB", run_add, TS_DTYPE_F32, 4096, 1024, 2, 12, 0.8, false },
        { "add f32 64 MiB", run_add, TS_DTYPE_F32, 16384, 1024, 2, 12, 0.8, false },
        { "add bf16 16 MiB", run_add, TS_DTYPE_BF16, 8192, 1024, 2, 6, 0.8, false },
        { "mul f32 by a row", run_mul, TS_DTYPE_F32, 4096, 1024, 3, 8, 0.8, false },
        { "silu f32 16 MiB", run_silu, TS_DTYPE_F32, 4096, 1024, 1, 8, 0.6, true },
        { "cast f32 to bf16", run_cast, TS_DTYPE_F32, 4096, 1024, 1, 6, 0.8, false },
        { "cast bf16 to f32", run_cast_f32, TS_DTYPE_BF16, 4096, 1024, 1, 6, 0.8, false },
        { "cast i64 to f32", run_cast_f32, TS_DTYPE_I64, 2048, 1024, 1, 12, 0.8, false },
        { "relu f32 16 MiB", run_relu, TS_DTYPE_F32, 4096, 1024, 1, 8, 0.8, false },
        { "add f64 16 MiB", run_add, TS_DTYPE_F64, 2048, 1024, 2, 24, 0.8, false },
        { "add i64 16 MiB", run_add, TS_DTYPE_I64, 2048, 1024, 2, 24, 0.8, false },
        { "gt f32 16 MiB", run_gt, TS_DTYPE_F32, 4096, 1024, 2, 9, 0.8, false },
        { "where f32 16 MiB", run_where, TS_DTYPE_F32, 4096, 1024, 5, 13, 0.8, false },
        { "sum f32 1 MiB", run_sum, TS_DTYPE_F32, 256, 1024, 1, 4, 0.8, false },
        { "sum f32 16 MiB", run_sum, TS_DTYPE_F32, 4096, 1024, 1, 4, 0.8, false },
        { "sum f32 of rows", run_sum_rows, TS_DTYPE_F32, 4096, 1024, 1, 4, 0.8, false },
        { "sum f32 of columns", run_sum_columns, TS_DTYPE_F32, 4096, 1024, 1, 4, 0.8, false },
        { "sum bf16 of rows", run_sum_rows, TS_DTYPE_BF16, 8192, 1024, 1, 2, 0.8, false },
        { "amax f32 of rows", run_amax, TS_DTYPE_F32, 4096, 1024, 1, 4, 0.8, false },
        { "sum f64 of rows", run_sum_rows, TS_DTYPE_F64, 2048, 1024, 1, 8, 0.8, false },
        { "sum i64 of rows", run_sum_rows, TS_DTYPE_I64, 2048, 1024, 1, 8, 0.8, false },
        { "argmax f32 of rows", run_argmax, TS_DTYPE_F32, 4096, 1024, 1, 4, 0.8, false },
        { "var f32 of rows", run_var, TS_DTYPE_F32, 4096, 1024, 1, 4, 0.8, false },
        { "any bool 16 MiB", run_any, TS_DTYPE_F32, 16384, 1024, 5, 1, 0.8, false },
        { "cumsum f32 of rows", run_cumsum, TS_DTYPE_F32, 4096, 1024, 1, 8, 0.8, false },
        { "softmax f32 1 MiB", run_softmax, TS_DTYPE_F32, 256, 1024, 1, 8, 0.6, true },
        { "softmax f32 16 MiB", run_softmax, TS_DTYPE_F32, 4096, 1024, 1, 8, 0.6, true },
        { "softmax bf16 16 MiB", run_softmax, TS_DTYPE_BF16, 8192, 1024, 1, 4, 0.6, true },
        { "log_softmax f32 16 MiB", run_log_softmax, TS_DTYPE_F32, 4096, 1024, 1, 8, 0.6, true },
        { "softmax_backward f32 16 MiB", run_softmax_backward, TS_DTYPE_F32, 4096, 1024, 2, 12, 0.6,
          false },
        { "cross_entropy f32 16 MiB", run_cross_entropy, TS_DTYPE_F32, 512, 8192, 4, 4, 0.6, true },
        { "cross_entropy bf16 16 MiB", run_cross_entropy, TS_DTYPE_BF16, 1024, 8192, 4, 2, 0.6,
          true },
        { "gelu f32 16 MiB", run_gelu, TS_DTYPE_F32, 4096, 1024, 1, 8, 0.6, true },
        { "gelu_tanh f32 16 MiB", run_gelu_tanh, TS_DTYPE_F32, 4096, 1024, 1, 8, 0.6, true },
        { "swiglu f32 16 MiB", run_swiglu, TS_DTYPE_F32, 4096, 1024, 2, 12, 0.6, true },
        { "swiglu bf16 16 MiB", run_swiglu, TS_DTYPE_BF16, 8192, 1024, 2, 6, 0.6, true },
        { "swiglu_backward f32 16 MiB", run_swiglu_backward, TS_DTYPE_F32, 4096, 1024, 2, 12, 0.6,
          true },
        { "rms_norm f32 16 MiB", run_rms_norm, TS_DTYPE_F32, 4096, 1024, 3, 8, 0.6, false },
        { "rms_norm bf16 16 MiB", run_rms_norm, TS_DTYPE_BF16, 8192, 1024, 3, 4, 0.6, false },
        { "layer_norm f32 16 MiB", run_layer_norm, TS_DTYPE_F32, 4096, 1024, 3, 8, 0.6, false },
        { "mv f32 2048x2048", run_mv, TS_DTYPE_F32, 2048, 2048, 3, 4, 0.8, false },
        { "mv bf16 2048x2048", run_mv, TS_DTYPE_BF16, 2048, 2048, 3, 2, 0.8, false },
        { "vector by f32 matrix", run_vm, TS_DTYPE_F32, 2048, 2048, 3, 4, 0.8, false },
        { "vector by bf16 matrix", run_vm, TS_DTYPE_BF16, 2048, 2048, 3, 2, 0.8, false },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (!wanted(self, cases[i].name)) continue;
        ts_status status = TS_OK;
        if (cases[i].exponential && self->exp_rate == 0.0) status = measure_exponentials(self);
        if (status == TS_OK) status = memory_line(self, &cases[i]);
        if (status != TS_OK) return status;
    }
    return TS_OK;
}

/* ---- matrix products ------------------------------------------------------------------------- */

static float *numbers(size_t count)
{
    float *x = malloc(count * sizeof *x);
    for (size_t i = 0; x != NULL && i < count; i++)
        x[i] = (float)(i % 13) / 8.0f - 0.7f;
    return x;
}

static bool rival_open(subject *s)
{
    s->a = numbers((size_t)(s->m * s->k));
    s->b = numbers((size_t)(s->k * s->n));
    s->c = numbers((size_t)(s->m * s->n));
    return s->a != NULL && s->b != NULL && s->c != NULL;
}

static void rival_close(subject *s)
{
    free(s->a);
    free(s->b);
    free(s->c);
}

static ts_status blas_line(bench *self, int64_t m, int64_t n, int64_t k)
{
    ts_scope scope = ts_scope_open(self->me, "matmul");
    subject s = { .self = self, .run = run_matmul, .m = m, .n = n, .k = k };
    s.x = ts_randn(self->mesh, TS_DTYPE_F32, TS_SHAPE(m, k), NULL);
    s.y = ts_randn(self->mesh, TS_DTYPE_F32, TS_SHAPE(k, n), NULL);
    s.work = 2.0 * (double)m * (double)n * (double)k;
    contest_times times = { { 0 }, { 0 } };
    ts_status status = rival_open(&s) ? measure(&s, &times) : TS_ERR_MEMORY;
    rival_close(&s);
    if (status == TS_OK) {
        self->matmul_rate = s.work / times.best[0] / 1e9;
        bench_line *line =
            bench_lines_add(&self->lines, "Gflop/s", self->matmul_rate, "matmul f32 %lldx%lldx%lld",
                            (long long)m, (long long)n, (long long)k);
#if TS_HAVE_OPENBLAS
        bench_line_floor(line, s.work / times.best[1] / 1e9, "cblas_sgemm");
        bench_line_note(line, "ratio wanted: 1.00");
#else
        bench_line_note(line, "without OpenBLAS");
#endif
    }
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

/* bf16 beside the same product in f32. */
static ts_status bf16_line(bench *self, ts_tensor *(*run)(const subject *s), const char *name)
{
    const int64_t n = 1024;
    ts_scope scope = ts_scope_open(self->me, name);
    subject wide = { .self = self, .run = run }, s;
    wide.x = ts_randn(self->mesh, TS_DTYPE_F32, TS_SHAPE(n, n), NULL);
    wide.y = ts_randn(self->mesh, TS_DTYPE_F32, TS_SHAPE(n, n), NULL);
    s = wide;
    s.x = ts_cast(wide.x, TS_DTYPE_BF16);
    s.y = ts_cast(wide.y, TS_DTYPE_BF16);
    double work = 2.0 * (double)n * (double)n * (double)n, best = 1e30, floor = 1e30;
    ts_status status = TS_OK;
    double until = cli_now() + (double)self->seconds / 20.0;
    for (int turns = 0; status == TS_OK && (turns < 3 || cli_now() < until); turns++) {
        double start = cli_now();
        status = drop(&s, run(&s));
        double middle = cli_now();
        if (status == TS_OK) status = drop(&wide, run(&wide));
        double end = cli_now();
        if (turns > 0 && middle - start < best) best = middle - start;
        if (turns > 0 && end - middle < floor) floor = end - middle;
    }
    if (status == TS_OK) {
        bench_line *line = bench_lines_add(&self->lines, "Gflop/s", work / best / 1e9, "%s", name);
        bench_line_floor(line, work / floor / 1e9, "the same in f32");
        bench_line_note(line, "ratio wanted: 1.50 with bf16 instructions");
    }
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

/* Forward: two products; backward: five. */
static ts_status attention_line(bench *self, ts_dtype dtype, bool causal, bool back)
{
    const int64_t b = 1, h = 8, t = 1024, d = 64;
    const ts_shape shape = TS_SHAPE(b, h, t, d);
    ts_scope scope = ts_scope_open(self->me, "attention");
    subject s = { .self = self, .run = causal ? run_causal : run_attention, .causal = causal };
    s.x = ts_randn(self->mesh, dtype, shape, NULL);
    s.y = ts_randn(self->mesh, dtype, shape, NULL);
    s.z = ts_randn(self->mesh, dtype, shape, NULL);
    if (back) {
        s.run = run_attention_back;
        s.d_out = ts_randn(self->mesh, dtype, shape, NULL);
        (void)ts_attention_lse(s.x, s.y, s.z, TS_OPTIONS(ts_attention_options, .causal = causal),
                               s.forward);
    }
    subject product = { .self = self, .run = run_matmul };
    product.x = ts_randn(self->mesh, dtype, TS_SHAPE(1024, 1024), NULL);
    product.y = ts_randn(self->mesh, dtype, TS_SHAPE(1024, 1024), NULL);
    double work = (back ? 10.0 : 4.0) * (double)(b * h * t * t * d) / (causal ? 2.0 : 1.0);
    double best = 1e30;
    double product_work = 2.0 * 1024 * 1024 * 1024, floor = 1e30;
    ts_status status = TS_OK;
    double until = cli_now() + (double)self->seconds / 20.0;
    for (int turns = 0; status == TS_OK && (turns < 3 || cli_now() < until); turns++) {
        double start = cli_now();
        status = drop(&s, s.run(&s));
        double middle = cli_now();
        if (status == TS_OK) status = drop(&product, product.run(&product));
        double end = cli_now();
        if (turns > 0 && middle - start < best) best = middle - start;
        if (turns > 0 && end - middle < floor) floor = end - middle;
    }
    if (status == TS_OK) {
        bench_line *line = bench_lines_add(&self->lines, "Gflop/s", work / best / 1e9,
                                           "attention %s%s%s T=1024 D=64", back ? "backward " : "",
                                           ts_dtype_name(dtype), causal ? " causal" : "");
        bench_line_floor(line, product_work / floor / 1e9, "matmul 1024");
        bench_line_note(line, "ratio wanted: 0.60");
    }
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

static ts_status product_lines(bench *self)
{
    static const int64_t sizes[][3] = { { 256, 256, 256 },
                                        { 512, 512, 512 },
                                        { 1024, 1024, 1024 },
                                        { 64, 2048, 2048 },
                                        { 2048, 2048, 1024 } };
    ts_status status = TS_OK;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && status == TS_OK; i++)
        if (wanted(self, "matmul f32"))
            status = blas_line(self, sizes[i][0], sizes[i][1], sizes[i][2]);
    if (status == TS_OK && wanted(self, "matmul bf16 1024"))
        status = bf16_line(self, run_matmul, "matmul bf16 1024");
    if (status == TS_OK && wanted(self, "linear bf16 1024"))
        status = bf16_line(self, run_linear, "linear bf16 1024");
    const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16 };
    for (int i = 0; i < 8 && status == TS_OK; i++)
        if (wanted(self, i < 4 ? "attention" : "attention backward"))
            status = attention_line(self, dtypes[i / 2 % 2], i % 2 == 1, i >= 4);
    return status;
}

/* ---- the command ----------------------------------------------------------------------------- */

static ts_status work(ts_rank *me, void *argument)
{
    bench *self = argument;
    self->me = me;
    self->mesh = ts_mesh_self(me);
    ts_status status = memory_lines(self);
    if (status == TS_OK) status = product_lines(self);
    if (status != TS_OK) return status;
    bench_data data = { &self->lines,
                        me,
                        self->team,
                        self->from,
                        self->to,
                        self->copy_bytes,
                        (double)self->seconds / 100.0,
                        self->only };
    return bench_data_lines(&data);
}

static int run(bench *self)
{
    char error[1024], threads[32];
    (void)snprintf(threads, sizeof threads, "%lld", (long long)self->threads);
    (void)setenv("TESSERA_THREADS", threads, 1); /* before the world opens */
    self->copy_bytes = (size_t)128 << 20;
    self->from = malloc(self->copy_bytes);
    self->to = malloc(self->copy_bytes);
    self->team = copy_team_start((int)self->threads);
    int code = 0;
    if (self->from == NULL || self->to == NULL || self->team == NULL) {
        code = cli_fail("bench kernels", "out of memory");
    } else {
        memset(self->from, 1, self->copy_bytes);
        memset(self->to, 2, self->copy_bytes);
        ts_world_options options = { .struct_size = sizeof options, .rank_count = 1 };
        ts_status status = ts_launch_with(&options, work, self, error, sizeof error);
        if (status != TS_OK)
            code = cli_fail("bench kernels", "%s", error);
        else if (self->lines.count == 0)
            code = cli_fail_usage("bench kernels", "--only: no line has \"%s\" in its name",
                                  self->only);
        else
            code = bench_lines_print(&self->lines, self->json);
    }
    copy_team_end(self->team);
    free(self->from);
    free(self->to);
    return code;
}

int cli_bench_kernels(int argc, char **argv)
{
    bench self = { .seconds = 40 };
    cli_machine machine;
    cli_machine_read(&machine);
    self.threads = machine.cores;
    const cli_option options[] = {
        CLI_INT("threads", &self.threads, 1, 1024, "threads of the rank (default: the cores)"),
        CLI_TEXT("only", &self.only, "TEXT", "lines whose name contains it"),
        CLI_INT("seconds", &self.seconds, 1, 3600, "time to spend, about (default: 40)"),
        CLI_FLAG("json", &self.json, "one JSON object"), CLI_END
    };
    const cli_usage usage = {
        "bench kernels", "[options]",
        "Operators on one rank: memory-bound ones against plain copies, matrix products against\n"
        "OpenBLAS, bf16 against f32, attention and convolutions against matrix products, sorts\n"
        "against qsort, in the same run. GB/s are bytes read plus bytes written, of the operator\n"
        "and of the copy alike; beside them stand a loop that only reads, for reductions, and "
        "what\n"
        "exponentials alone allow, where an operator computes one for each element.",
        options, NULL
    };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc > 1) return cli_fail_usage("bench kernels", "unexpected argument \"%s\"", argv[1]);
    return run(&self);
}
