/* SPDX-License-Identifier: Apache-2.0 */
/* bench_kernels_memory.c - operators that are bound by memory: bytes they must read and write,
 * against plain copies that read and write as many in all, by as many threads. A sum, which only
 * reads, stands against a copy of half its bytes, and a loop that only reads is beside it.
 *
 * Ratios are rates over the floor's rate: larger is better. Where an operator computes an
 * exponential for each element, its note says what the exponentials alone would allow. */
#include "bench_kernels.h"

typedef struct subject { /* one operator on its inputs */
    const bench_kernels *self;
    ts_tensor *(*run)(const struct subject *s);
    ts_tensor *x, *y, *z;
    double work; /* bytes */
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

static ts_tensor *run_masked_fill(const subject *s)
{
    return ts_masked_fill(s->x, s->z, 1.0);
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

static ts_tensor *run_mv(const subject *s)
{
    return ts_mv(s->x, s->y);
}

static ts_tensor *run_vm(const subject *s)
{
    return ts_matmul(s->y, s->x);
}

/* ---- measuring ------------------------------------------------------------------------------- */

static ts_status turn(void *context, int who)
{
    const subject *s = context;
    if (who == 0) return bench_kernels_drop(s->self, s->run(s));
    if (who == 1)
        bench_kernels_copy(s->self, s->work);
    else
        copy_team_read(s->self->team, s->self->from, (size_t)s->work);
    return TS_OK;
}

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
static ts_status measure_exponentials(bench_kernels *self)
{
    const int64_t rows = 4, columns = 1024, last = -1;
    ts_scope scope = ts_scope_open(self->me, "exponentials");
    ts_tensor *x = bench_kernels_numbers(self, 0, TS_DTYPE_F32, TS_SHAPE(rows, columns));
    double best = 1e30, until = cli_now() + 0.05;
    ts_status status = TS_OK;
    while (status == TS_OK && cli_now() < until) {
        double start = cli_now();
        for (int i = 0; i < 16 && status == TS_OK; i++)
            status = bench_kernels_drop(self, ts_logsumexp(x, &last, 1, 0));
        if (cli_now() - start < best) best = cli_now() - start;
    }
    self->exp_rate = 16.0 * (double)(rows * columns * self->threads) / best;
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

static subject subject_of(const bench_kernels *self, const memory_case *what)
{
    ts_shape shape = TS_SHAPE(what->rows, what->columns), row = TS_SHAPE(what->columns);
    subject s = { .self = self, .run = what->run };
    s.x = bench_kernels_numbers(self, 0, what->dtype, shape);
    if (what->inputs == 2 || what->inputs == 5)
        s.y = bench_kernels_numbers(self, 1, what->dtype, shape);
    if (what->inputs == 5) s.z = ts_gt(s.x, s.y);
    if (what->inputs == 3) {
        s.y = bench_kernels_numbers(self, 0, what->dtype, row);
        s.z = bench_kernels_numbers(self, 1, what->dtype, row);
    }
    if (what->inputs == 4) s.y = ts_zeros(self->mesh, TS_DTYPE_I64, TS_SHAPE(what->rows), NULL);
    s.work = (double)(what->rows * what->columns) * what->per_element;
    return s;
}

static ts_status memory_line(bench_kernels *self, const memory_case *what)
{
    ts_scope scope = ts_scope_open(self->me, what->name);
    subject s = subject_of(self, what);
    bool reads = what->per_element <= (double)ts_dtype_size(what->dtype);
    contest_times times = { { 0 }, { 0 } };
    ts_status status = bench_kernels_measure(self, reads ? 3 : 2, turn, &s, &times);
    if (status == TS_OK) {
        bench_line *line =
            bench_lines_add(&self->lines, "GB/s", s.work / times.best[0] / 1e9, "%s", what->name);
        bench_line_floor(line, s.work / times.best[1] / 1e9, "memcpy");
        if (what->exponential)
            bench_line_note(line, "wanted: %.2f; exp alone: %.1f", what->wanted,
                            self->exp_rate * what->per_element / 1e9);
        else if (reads)
            bench_line_note(line, "wanted: %.2f; bare reads: %.4g", what->wanted,
                            s.work / times.best[2] / 1e9);
        else
            bench_line_note(line, "ratio wanted: %.2f", what->wanted);
    }
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

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
    { "masked_fill f32 16 MiB", run_masked_fill, TS_DTYPE_F32, 4096, 1024, 5, 9, 0.8, false },
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
    { "cross_entropy bf16 16 MiB", run_cross_entropy, TS_DTYPE_BF16, 1024, 8192, 4, 2, 0.6, true },
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

ts_status bench_kernels_memory(bench_kernels *self)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (!bench_kernels_turn(self, cases[i].name)) continue;
        ts_status status = TS_OK;
        if (cases[i].exponential && self->exp_rate == 0.0) status = measure_exponentials(self);
        if (status == TS_OK) status = memory_line(self, &cases[i]);
        if (status != TS_OK) return status;
    }
    return TS_OK;
}
