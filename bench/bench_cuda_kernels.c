/* SPDX-License-Identifier: Apache-2.0 */
/* bench_cuda_kernels.c - the kernels of a training step that are bound by memory, in bytes read and
 * written beside a copy of tensors as large.
 *
 * One table: an operator, what goes into it, its attributes. Bytes are those of its inputs and
 * results, whatever the kernel does. The losses are also measured at the size of model A. */
#include <string.h>

#include "bench_cuda.h"

/* Which rows a line is measured with. */
enum { NARROW = 1, WIDE = 2, HEADS = 4 }; /* 768 and 2,048 columns; 32,000; heads of 64 */
enum { WORDS = 32000, TOKENS_OF_A = 16384 };

/* Inputs, a letter each:
 *   x  bf16 [rows, columns]   f  f32 of that shape   n  as x, not read
 *   v  bf16 [columns]         w  f32 [columns]       r  f32 [rows, 1]     p  f32 [rows]
 *   l  labels [rows]          i  ids [rows] of e, a table of 32,000 rows, of which as many are read
 *   h  bf16 heads             a  angles of their positions */
static const struct kernel {
    const char *name, *op, *inputs, *attributes;
    int on;
} kernels[] = {
    { "add", "add", "xx", NULL, NARROW | WIDE },
    { "add of a row", "add", "xv", NULL, NARROW | WIDE },
    { "cast to f32", "cast", "x", "{\"dtype\": \"f32\"}", NARROW },
    { "cast to bf16", "cast", "f", "{\"dtype\": \"bf16\"}", NARROW },
    { "gelu_tanh", "gelu_tanh", "x", NULL, NARROW | WIDE },
    { "gelu_tanh_backward", "gelu_tanh_backward", "xx", NULL, NARROW },
    { "swiglu", "swiglu", "xx", NULL, NARROW | WIDE },
    { "swiglu_gradients", "swiglu_gradients", "xxx", NULL, NARROW },
    { "dropout", "dropout", "x", "{\"p\": 0.1}", NARROW },
    { "rand_like", "rand_like", "n", NULL, NARROW },
    { "randn_like", "randn_like", "n", NULL, NARROW },
    { "rms_norm", "rms_norm", "xw", NULL, NARROW | WIDE },
    { "rms_norm_backward", "rms_norm_backward", "xxwr", NULL, NARROW },
    { "add_rms_norm", "add_rms_norm", "xxw", NULL, NARROW },
    { "add_rms_norm_backward", "add_rms_norm_backward", "xxxwr", NULL, NARROW },
    { "layer_norm", "layer_norm", "xww", NULL, NARROW },
    { "layer_norm_backward", "layer_norm_backward", "xxwrr", NULL, NARROW },
    { "softmax", "softmax", "x", NULL, NARROW | WIDE },
    { "softmax_backward", "softmax_backward", "xx", NULL, NARROW | WIDE },
    { "log_softmax", "log_softmax", "x", NULL, WIDE },
    { "log_softmax_backward", "log_softmax_backward", "xx", NULL, WIDE },
    { "cross_entropy", "cross_entropy", "xl", NULL, WIDE },
    { "cross_entropy_backward", "cross_entropy_backward", "xlpp", NULL, WIDE },
    { "cross_entropy_backward over its logits", "cross_entropy_backward_", "xlpp", NULL, WIDE },
    { "sum of rows", "sum", "x", "{\"dims\": [1]}", NARROW | WIDE },
    { "sum of columns", "sum", "x", "{\"dims\": [0]}", NARROW | WIDE },
    { "sum of all", "sum", "x", NULL, NARROW },
    { "sum of fours", "sum", "4", "{\"dims\": [1]}", NARROW },
    { "amax of rows", "amax", "x", "{\"dims\": [1]}", NARROW | WIDE },
    { "argmax of rows", "argmax", "x", "{\"dim\": 1}", WIDE },
    { "embedding", "embedding", "ei", NULL, NARROW },
    { "embedding_backward", "embedding_backward", "xi", "{\"rows\": 32000}", NARROW },
    { "rope", "rope", "ha", NULL, HEADS },
    { "rope in place", "rope_", "ha", NULL, HEADS },
};
enum { KERNELS = sizeof kernels / sizeof kernels[0] };

/* ---- tensors --------------------------------------------------------------------------------- */

/* Heads of 64 of 12 times 1,024 positions a row of the batch, as many bytes as the others. */
static ts_tensor *heads(bench_cuda *b, int64_t elements)
{
    int64_t batch = elements / (12 * 1024 * 64);
    return bench_cuda_numbers(b, TS_DTYPE_BF16, TS_SHAPE(batch > 0 ? batch : 1, 12, 1024, 64));
}

static ts_tensor *input(bench_cuda *b, char letter, int64_t rows, int64_t columns)
{
    switch (letter) {
    case 'f':
        return bench_cuda_numbers(b, TS_DTYPE_F32, TS_SHAPE(rows, columns));
    case 'v':
        return bench_cuda_numbers(b, TS_DTYPE_BF16, TS_SHAPE(columns));
    case 'w':
        return bench_cuda_numbers(b, TS_DTYPE_F32, TS_SHAPE(columns));
    case 'r':
        return bench_cuda_numbers(b, TS_DTYPE_F32, TS_SHAPE(rows, 1));
    case 'p':
        return bench_cuda_numbers(b, TS_DTYPE_F32, TS_SHAPE(rows));
    case 'l':
        return bench_cuda_below(b, rows, columns);
    case 'i':
        return bench_cuda_below(b, rows, WORDS);
    case 'e':
        return bench_cuda_numbers(b, TS_DTYPE_BF16, TS_SHAPE(WORDS, columns));
    case '4':
        return bench_cuda_numbers(b, TS_DTYPE_BF16, TS_SHAPE(rows / 4, 4, columns));
    case 'h':
        return heads(b, rows * columns);
    case 'a':
        return bench_cuda_numbers(b, TS_DTYPE_F32, TS_SHAPE(1024, 64));
    default:
        return bench_cuda_numbers(b, TS_DTYPE_BF16, TS_SHAPE(rows, columns));
    }
}

static double bytes_of(ts_tensor *x)
{
    if (!x) return 0;
    ts_shape shape = ts_tensor_shape(x);
    return (double)ts_shape_count(&shape) * (double)ts_dtype_size(ts_tensor_dtype(x));
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void run_op(bench_cuda *b)
{
    ts_tensor *out[8] = { NULL };
    (void)ts_op_call_json(b->op, b->x, b->inputs, b->attributes, out);
}

/* What goes in and what comes out. Of a table as much is read as the result has. */
static double bytes_moved(bench_cuda *b, const char *inputs)
{
    ts_tensor *out[8] = { NULL };
    double bytes = 0;
    (void)ts_op_call_json(b->op, b->x, b->inputs, b->attributes, out);
    for (int i = 0; i < 8; i++)
        bytes += bytes_of(out[i]);
    for (int32_t i = 0; i < b->inputs; i++)
        if (inputs[i] != 'n') bytes += bytes_of(inputs[i] == 'e' ? out[0] : b->x[i]);
    return bytes;
}

static void put_rate(bench_cuda *b, const char *name, bench_cuda_fn run, double bytes)
{
    double rate = bytes / bench_cuda_seconds(b, run) / 1e9;
    if (ts_rank_status(b->me) != TS_OK) return;
    bench_line *line = bench_lines_add(&b->lines, "GB/s", rate, "%s", name);
    bench_line_floor(line, b->copy, "a copy");
}

static void measure(bench_cuda *b, const struct kernel *k, int64_t rows, int64_t columns,
                    const char *size)
{
    char name[96];
    (void)snprintf(name, sizeof name, "%s, %s", k->name, size);
    if (!bench_cuda_is_turn(b, name)) return;
    ts_scope scope = ts_scope_open(b->me, NULL);
    b->op = ts_op_find(b->me, k->op);
    b->attributes = k->attributes;
    b->inputs = (int32_t)strlen(k->inputs);
    for (int32_t i = 0; i < b->inputs; i++)
        b->x[i] = input(b, k->inputs[i], rows, columns);
    put_rate(b, name, run_op, bytes_moved(b, k->inputs));
    (void)ts_scope_close(scope);
}

static void run_clone(bench_cuda *b)
{
    (void)ts_clone(b->x[0]);
}

static void run_turn(bench_cuda *b)
{
    (void)ts_clone(ts_transpose(b->x[0], 0, 1));
}

static void measure_copy(bench_cuda *b, int64_t mib)
{
    ts_scope scope = ts_scope_open(b->me, NULL);
    b->x[0] = bench_cuda_numbers(b, TS_DTYPE_BF16, TS_SHAPE(mib << 19));
    b->copy = 2.0 * (double)(mib << 20) / bench_cuda_seconds(b, run_clone) / 1e9;
    (void)bench_lines_add(&b->lines, "GB/s", b->copy, "copy of %lld MiB, read and written",
                          (long long)mib);
    (void)ts_scope_close(scope);
}

static void measure_turn(bench_cuda *b, ts_dtype dtype, int64_t mib)
{
    char name[96];
    int64_t rows = (mib << 20) / (int64_t)ts_dtype_size(dtype) / 1024;
    (void)snprintf(name, sizeof name, "transpose of %s, %lld MiB", ts_dtype_name(dtype),
                   (long long)mib);
    if (!bench_cuda_is_turn(b, name)) return;
    ts_scope scope = ts_scope_open(b->me, NULL);
    b->x[0] = bench_cuda_numbers(b, dtype, TS_SHAPE(rows, 1024));
    put_rate(b, name, run_turn, 2 * bytes_of(b->x[0]));
    (void)ts_scope_close(scope);
}

/* Tensors of so many MiB, each kind of rows that a kernel is measured with. */
static void measure_all(bench_cuda *b, int64_t mib)
{
    static const struct {
        int kind;
        int64_t columns;
    } widths[] = { { NARROW, 768 }, { NARROW, 2048 }, { WIDE, WORDS }, { HEADS, 64 } };
    measure_copy(b, mib);
    measure_turn(b, TS_DTYPE_BF16, mib);
    measure_turn(b, TS_DTYPE_F32, mib);
    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++) {
        char size[64];
        int64_t columns = widths[w].columns;
        (void)snprintf(size, sizeof size, "%lld MiB, %lld columns", (long long)mib,
                       (long long)columns);
        for (size_t i = 0; i < KERNELS; i++)
            if (kernels[i].on & widths[w].kind)
                measure(b, &kernels[i], (mib << 19) / columns, columns, size);
    }
}

/* ---- updates --------------------------------------------------------------------------------- */

enum { PARTS = 16 }; /* parameters of an update */

typedef struct update {
    ts_tensor *of[4][PARTS]; /* parameters, gradients, first and second moments */
    ts_adamw_update adamw;
} update;

static update updated;

static void run_adamw(bench_cuda *b)
{
    (void)b;
    updated.adamw.step++;
    (void)ts_fused_adamw(&updated.adamw);
}

static void run_norm(bench_cuda *b)
{
    double norm;
    (void)b;
    (void)ts_foreach_norm_total(updated.adamw.grad, &norm);
}

/* Parameters, gradients and moments of f32, `mib` MiB of each. */
static void measure_updates(bench_cuda *b, int64_t mib)
{
    char name[2][96];
    double bytes = (double)(mib << 20);
    (void)snprintf(name[0], sizeof name[0], "adamw of %d tensors, %lld MiB", PARTS, (long long)mib);
    (void)snprintf(name[1], sizeof name[1], "norm of %d gradients, %lld MiB, waited for", PARTS,
                   (long long)mib);
    if (!bench_cuda_is_turn(b, name[0]) && !bench_cuda_is_turn(b, name[1])) return;
    ts_scope scope = ts_scope_open(b->me, NULL);
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < PARTS; i++)
            updated.of[k][i] = ts_ones(b->mesh, TS_DTYPE_F32, TS_SHAPE((mib << 18) / PARTS), NULL);
    ts_adamw_update *u = &updated.adamw;
    *u = (ts_adamw_update)TS_INIT(ts_adamw_update);
    u->param = (ts_list){ updated.of[0], PARTS };
    u->grad = (ts_list){ updated.of[1], PARTS };
    u->first = (ts_list){ updated.of[2], PARTS };
    u->second = (ts_list){ updated.of[3], PARTS };
    u->lr = 1e-3, u->beta1 = 0.9, u->beta2 = 0.95, u->epsilon = 1e-8;
    if (bench_cuda_is_turn(b, name[0])) put_rate(b, name[0], run_adamw, 7 * bytes);
    if (bench_cuda_is_turn(b, name[1])) put_rate(b, name[1], run_norm, bytes);
    (void)ts_scope_close(scope);
}

void bench_cuda_kernels(bench_cuda *b)
{
    measure_all(b, b->mib > 0 ? b->mib : 64);
    if (b->mib == 0) measure_all(b, 512);
    for (size_t i = 0; b->mib == 0 && i < KERNELS; i++)
        if (strncmp(kernels[i].op, "cross_entropy", 13) == 0)
            measure(b, &kernels[i], TOKENS_OF_A, WORDS, "16384 x 32000");
    measure_updates(b, b->mib > 0 ? b->mib : 512);
}
