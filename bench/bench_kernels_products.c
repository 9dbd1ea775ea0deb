/* SPDX-License-Identifier: Apache-2.0 */
/* bench_kernels_products.c - matrix products and attention.
 *
 *   f32 matrix products      against the raw OpenBLAS call with as many threads
 *   bf16 matrix products     against our own in f32
 *   attention                against the rate of matrix products of its dtype
 *
 * Ratios are rates over the floor's rate: larger is better. */
#include <stdlib.h>

#include "bench_kernels.h"

#if TS_HAVE_OPENBLAS
#include <cblas.h>
#endif

typedef struct subject { /* one operator on its inputs */
    const bench_kernels *self;
    ts_tensor *(*run)(const struct subject *s);
    ts_tensor *x, *y, *z;
    ts_tensor *forward[2], *d_out; /* of a gradient of attention */
    bool causal;
    double work; /* operations */
    int64_t m, n, k;
    float *a, *b, *c;            /* operands of OpenBLAS */
    const struct subject *rival; /* NULL: OpenBLAS */
} subject;

/* ---- the operators --------------------------------------------------------------------------- */

static ts_tensor *run_matmul(const subject *s)
{
    return ts_matmul(s->x, s->y);
}

static ts_tensor *run_linear(const subject *s)
{
    return ts_linear(s->x, s->y, NULL);
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

/* Threads of OpenBLAS look for work for so many seconds behind a call, on our cores. */
#define AWAKE 0.15

static void run_blas(const subject *s)
{
#if TS_HAVE_OPENBLAS
    openblas_set_num_threads((int)s->self->threads);
    bool turned = s->run == run_linear;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, turned ? CblasTrans : CblasNoTrans, (int)s->m,
                (int)s->n, (int)s->k, 1.0f, s->a, (int)s->k, s->b, (int)(turned ? s->k : s->n),
                0.0f, s->c, (int)s->n);
    openblas_set_num_threads(1);
#else
    (void)s;
#endif
}

static ts_status turn(void *context, int who)
{
    const subject *s = context;
    if (who == 0) return bench_kernels_drop(s->self, s->run(s));
    if (s->rival != NULL) return bench_kernels_drop(s->self, s->rival->run(s->rival));
    run_blas(s);
    return TS_OK;
}

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

/* x and y, and what their product takes; of run_linear n is k. */
static subject product_of(const bench_kernels *self, ts_dtype dtype, int64_t m, int64_t n,
                          int64_t k)
{
    subject s = { .self = self, .run = run_matmul, .m = m, .n = n, .k = k };
    s.x = bench_kernels_numbers(self, 0, dtype, TS_SHAPE(m, k));
    s.y = bench_kernels_numbers(self, 1, dtype, TS_SHAPE(k, n));
    s.work = 2.0 * (double)m * (double)n * (double)k;
    return s;
}

/* ---- the lines ------------------------------------------------------------------------------- */

typedef struct product_case {
    const char *name;
    ts_status (*line)(bench_kernels *self, const struct product_case *what);
    int64_t m, n, k;
    ts_tensor *(*run)(const subject *s);
    ts_dtype dtype;
    bool causal, back;
} product_case;

static ts_status blas_line(bench_kernels *self, const product_case *what)
{
    ts_scope scope = ts_scope_open(self->me, what->name);
    subject s = product_of(self, TS_DTYPE_F32, what->m, what->n, what->k);
    s.run = what->run;
    contest_times times = { { 0 }, { 0 } };
    ts_status status = TS_ERR_MEMORY;
    self->rest = AWAKE;
    if (rival_open(&s)) status = bench_kernels_measure(self, 2, turn, &s, &times);
    self->rest = 0;
    rival_close(&s);
    if (status == TS_OK) {
        bench_line *line = bench_lines_add(&self->lines, "Gflop/s", s.work / times.best[0] / 1e9,
                                           "%s", what->name);
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

/* One operator beside another, rates of both. */
static ts_status rival_line(bench_kernels *self, subject *s, const char *name, const char *floor,
                            const char *note)
{
    contest_times times = { { 0 }, { 0 } };
    ts_status status = bench_kernels_measure(self, 2, turn, s, &times);
    if (status != TS_OK) return status;
    bench_line *line =
        bench_lines_add(&self->lines, "Gflop/s", s->work / times.best[0] / 1e9, "%s", name);
    bench_line_floor(line, s->rival->work / times.best[1] / 1e9, floor);
    bench_line_note(line, "ratio wanted: %s", note);
    return TS_OK;
}

/* bf16 beside the same product in f32. */
static ts_status bf16_line(bench_kernels *self, const product_case *what)
{
    ts_scope scope = ts_scope_open(self->me, what->name);
    subject wide = product_of(self, TS_DTYPE_F32, what->m, what->n, what->k), s = wide;
    wide.run = s.run = what->run;
    s.x = ts_cast(wide.x, TS_DTYPE_BF16);
    s.y = ts_cast(wide.y, TS_DTYPE_BF16);
    s.rival = &wide;
    ts_status status =
        rival_line(self, &s, what->name, "the same in f32", "1.50 with bf16 instructions");
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

/* Forward: two products; backward: five. */
static ts_status attention_line(bench_kernels *self, const product_case *what)
{
    const int64_t b = 1, h = 8, t = 1024, d = 64;
    const ts_shape shape = TS_SHAPE(b, h, t, d);
    ts_scope scope = ts_scope_open(self->me, what->name);
    subject s = { .self = self, .run = what->run, .causal = what->causal };
    s.x = bench_kernels_numbers(self, 0, what->dtype, shape);
    s.y = bench_kernels_numbers(self, 1, what->dtype, shape);
    s.z = ts_randn(self->mesh, what->dtype, shape, NULL);
    if (what->back) {
        s.d_out = ts_randn(self->mesh, what->dtype, shape, NULL);
        (void)ts_attention_lse(s.x, s.y, s.z,
                               TS_OPTIONS(ts_attention_options, .causal = what->causal), s.forward);
    }
    s.work = (what->back ? 10.0 : 4.0) * (double)(b * h * t * t * d) / (what->causal ? 2.0 : 1.0);
    subject product = product_of(self, what->dtype, 1024, 1024, 1024);
    s.rival = &product;
    ts_status status = rival_line(self, &s, what->name, "matmul 1024", "0.60");
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

static const product_case cases[] = {
    { "matmul f32 256x256x256", blas_line, 256, 256, 256, run_matmul, TS_DTYPE_F32, false, false },
    { "matmul f32 512x512x512", blas_line, 512, 512, 512, run_matmul, TS_DTYPE_F32, false, false },
    { "matmul f32 1024x1024x1024", blas_line, 1024, 1024, 1024, run_matmul, TS_DTYPE_F32, false,
      false },
    { "matmul f32 8x2048x2048", blas_line, 8, 2048, 2048, run_matmul, TS_DTYPE_F32, false, false },
    { "matmul f32 32x768x768", blas_line, 32, 768, 768, run_matmul, TS_DTYPE_F32, false, false },
    { "matmul f32 64x2048x2048", blas_line, 64, 2048, 2048, run_matmul, TS_DTYPE_F32, false,
      false },
    { "matmul f32 2048x2048x1024", blas_line, 2048, 2048, 1024, run_matmul, TS_DTYPE_F32, false,
      false },
    { "linear f32 4x2048x2048", blas_line, 4, 2048, 2048, run_linear, TS_DTYPE_F32, false, false },
    { "linear f32 32x2048x2048", blas_line, 32, 2048, 2048, run_linear, TS_DTYPE_F32, false,
      false },
    { "matmul bf16 1024", bf16_line, 1024, 1024, 1024, run_matmul, TS_DTYPE_BF16, false, false },
    { "linear bf16 8x2048x2048", bf16_line, 8, 2048, 2048, run_linear, TS_DTYPE_BF16, false,
      false },
    { "linear bf16 1024", bf16_line, 1024, 1024, 1024, run_linear, TS_DTYPE_BF16, false, false },
    { "attention f32 T=1024 D=64", attention_line, 0, 0, 0, run_attention, TS_DTYPE_F32, false,
      false },
    { "attention f32 causal T=1024 D=64", attention_line, 0, 0, 0, run_causal, TS_DTYPE_F32, true,
      false },
    { "attention bf16 T=1024 D=64", attention_line, 0, 0, 0, run_attention, TS_DTYPE_BF16, false,
      false },
    { "attention bf16 causal T=1024 D=64", attention_line, 0, 0, 0, run_causal, TS_DTYPE_BF16, true,
      false },
    { "attention backward f32 T=1024 D=64", attention_line, 0, 0, 0, run_attention_back,
      TS_DTYPE_F32, false, true },
    { "attention backward f32 causal T=1024 D=64", attention_line, 0, 0, 0, run_attention_back,
      TS_DTYPE_F32, true, true },
    { "attention backward bf16 T=1024 D=64", attention_line, 0, 0, 0, run_attention_back,
      TS_DTYPE_BF16, false, true },
    { "attention backward bf16 causal T=1024 D=64", attention_line, 0, 0, 0, run_attention_back,
      TS_DTYPE_BF16, true, true },
};

ts_status bench_kernels_products(bench_kernels *self)
{
    ts_status status = TS_OK;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0] && status == TS_OK; i++)
        if (bench_kernels_turn(self, cases[i].name)) status = cases[i].line(self, &cases[i]);
    return status;
}
