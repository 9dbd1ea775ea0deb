/* SPDX-License-Identifier: Apache-2.0 */
/* bench_cuda.c - `tessera bench cuda`: what one GPU does: copies, products, attention, and each
 * kernel beside the copy rate.
 *
 * A line is many calls in a row and one wait, the best of a few rounds; tensors are larger than the
 * caches. Products stand beside the fastest of the library's proposals, which a process of its own
 * finds, since the choice for a shape is made once a process. Calls that would run on the host are
 * forbidden. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "bench_cuda.h"

enum { ROUNDS = 4, ATTENTION_RUNS = 9 };

/* ---- timing ---------------------------------------------------------------------------------- */

static double one_round(bench_cuda *b, bench_cuda_fn run, int calls)
{
    double start = cli_now();
    ts_scope scope = ts_scope_open(b->me, NULL);
    for (int i = 0; i < calls && ts_rank_status(b->me) == TS_OK; i++) {
        ts_scope inner = ts_scope_open(b->me, NULL);
        run(b);
        (void)ts_scope_close(inner);
    }
    (void)ts_scope_close(scope);
    (void)ts_rank_sync(b->me);
    return (cli_now() - start) / calls;
}

double bench_cuda_seconds(bench_cuda *b, bench_cuda_fn run)
{
    (void)one_round(b, run, 1);
    double best = one_round(b, run, 2);
    int calls = best > 0 && best < 0.03 ? (int)(0.03 / best) + 1 : 1;
    for (int i = 0; i < ROUNDS; i++) {
        double s = one_round(b, run, calls < 500 ? calls : 500);
        if (s < best) best = s;
    }
    return best;
}

bool bench_cuda_is_turn(const bench_cuda *b, const char *name)
{
    return (!b->only || strstr(name, b->only)) && ts_rank_status(b->me) == TS_OK;
}

ts_tensor *bench_cuda_numbers(bench_cuda *b, ts_dtype dtype, ts_shape shape)
{
    return ts_randn(b->mesh, dtype, shape, NULL);
}

ts_tensor *bench_cuda_below(bench_cuda *b, int64_t count, int64_t below)
{
    ts_random_options options = TS_INIT(ts_random_options);
    options.high = below;
    return ts_randint(b->mesh, TS_DTYPE_I64, TS_SHAPE(count), NULL, &options);
}

/* ---- products -------------------------------------------------------------------------------- */

static void run_forward(bench_cuda *b)
{
    (void)ts_linear(b->x[0], b->x[1], NULL);
}

static void run_input(bench_cuda *b)
{
    (void)ts_einsum("tn,nk->tk", b->x[2], b->x[1]);
}

static void run_weight(bench_cuda *b)
{
    (void)ts_einsum("tn,tk->nk", b->x[2], b->x[0]);
}

typedef struct product {
    const char *name;
    int64_t t, n, k;
} product;

static const struct {
    const char *name;
    bench_cuda_fn run;
} forms[] = { { "forward", run_forward },
              { "input gradient", run_input },
              { "weight gradient", run_weight } };
enum { FORMS = 3 };

static void make_factors(bench_cuda *b, const product *p)
{
    b->x[0] = bench_cuda_numbers(b, TS_DTYPE_BF16, TS_SHAPE(p->t, p->k));
    b->x[1] = bench_cuda_numbers(b, TS_DTYPE_BF16, TS_SHAPE(p->n, p->k));
    b->x[2] = bench_cuda_numbers(b, TS_DTYPE_BF16, TS_SHAPE(p->t, p->n));
}

static double flops_of(const product *p)
{
    return 2.0 * (double)p->t * (double)p->n * (double)p->k;
}

static void measure_product(bench_cuda *b, const product *p, int form, double *best)
{
    char name[96];
    (void)snprintf(name, sizeof name, "product %s, %s", p->name, forms[form].name);
    if (!bench_cuda_is_turn(b, name)) return;
    ts_scope scope = ts_scope_open(b->me, NULL);
    make_factors(b, p);
    double rate = flops_of(p) / bench_cuda_seconds(b, forms[form].run) / 1e12;
    bench_line *line = bench_lines_add(&b->lines, "TFLOP/s", rate, "%s", name);
    if (*best > 0 && !b->tuned) bench_line_floor(line, *best, "the best of 8 proposals");
    *best = rate;
    (void)ts_scope_close(scope);
}

static void products(bench_cuda *b)
{
    static const product shapes[] = {
        { "A qkv", 16384, 2304, 768 },     { "A o", 16384, 768, 768 },
        { "A gate-up", 16384, 4096, 768 }, { "A down", 16384, 768, 2048 },
        { "A head", 16384, 32000, 768 },   { "B qkv", 8192, 2560, 2048 },
        { "B o", 8192, 2048, 2048 },       { "B gate-up", 8192, 11264, 2048 },
        { "B down", 8192, 2048, 5632 },    { "B head", 8192, 32000, 2048 }
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int f = 0; f < FORMS; f++)
            measure_product(b, &shapes[i], f, &b->best[FORMS * i + (size_t)f]);
}

static void run_head(bench_cuda *b)
{
    (void)ts_linear_cross_entropy(b->x[0], b->x[1], b->x[3], NULL);
}

/* The head with its loss and both gradients, by chunks, beside its three products alone. */
static void head(bench_cuda *b, const product *p)
{
    char name[96];
    (void)snprintf(name, sizeof name, "linear_cross_entropy %s, %lld x %lld", p->name,
                   (long long)p->t, (long long)p->n);
    if (!bench_cuda_is_turn(b, name)) return;
    ts_scope scope = ts_scope_open(b->me, NULL);
    make_factors(b, p);
    b->x[3] = bench_cuda_below(b, p->t, p->n);
    double alone = 0, all = bench_cuda_seconds(b, run_head);
    for (int f = 0; f < FORMS; f++)
        alone += bench_cuda_seconds(b, forms[f].run);
    bench_line *line =
        bench_lines_add(&b->lines, "TFLOP/s", FORMS * flops_of(p) / all / 1e12, "%s", name);
    bench_line_floor(line, FORMS * flops_of(p) / alone / 1e12, "its products alone");
    (void)ts_scope_close(scope);
}

static void heads_with_losses(bench_cuda *b)
{
    head(b, &(product){ "A", 16384, 32000, 768 });
    head(b, &(product){ "B", 8192, 32000, 2048 });
}

/* ---- grouped products ------------------------------------------------------------------------ */

static void run_grouped(bench_cuda *b)
{
    (void)ts_grouped_linear(b->x[0], b->x[3], b->x[4]);
}

static void run_grouped_input(bench_cuda *b)
{
    (void)ts_grouped_linear(b->x[2], ts_transpose(b->x[3], 1, 2), b->x[4]);
}

static void run_grouped_weights(bench_cuda *b)
{
    (void)ts_grouped_linear_backward(b->x[2], b->x[0], b->x[4], ts_tensor_shape(b->x[3]).extent[0]);
}

/* Rows of many groups, in no order, beside one product of as many rows. */
static void grouped(bench_cuda *b, const product *p, int64_t groups)
{
    static const bench_cuda_fn run[FORMS] = { run_grouped, run_grouped_input, run_grouped_weights };
    for (int f = 0; f < FORMS; f++) {
        char name[96];
        (void)snprintf(name, sizeof name, "grouped product %s, %s", p->name, forms[f].name);
        if (!bench_cuda_is_turn(b, name)) continue;
        ts_scope scope = ts_scope_open(b->me, NULL);
        make_factors(b, p);
        b->x[3] = bench_cuda_numbers(b, TS_DTYPE_BF16, TS_SHAPE(groups, p->n, p->k));
        b->x[4] = bench_cuda_below(b, p->t, groups);
        double each = bench_cuda_seconds(b, run[f]), one = bench_cuda_seconds(b, forms[f].run);
        bench_line *line =
            bench_lines_add(&b->lines, "TFLOP/s", flops_of(p) / each / 1e12, "%s", name);
        bench_line_floor(line, flops_of(p) / one / 1e12, "one product of as many rows");
        (void)ts_scope_close(scope);
    }
}

static void grouped_products(bench_cuda *b)
{
    grouped(b, &(product){ "of 64 experts, in", 65536, 1024, 1024 }, 64);
    grouped(b, &(product){ "of 64 experts, out", 65536, 1024, 512 }, 64);
    grouped(b, &(product){ "of 8 experts, in", 16384, 14336, 4096 }, 8);
}

/* ---- attention ------------------------------------------------------------------------------- */

static void run_attention(bench_cuda *b)
{
    ts_tensor *out[2];
    (void)ts_attention_lse(b->x[0], b->x[1], b->x[2], TS_OPTIONS(ts_attention_options, .causal = 1),
                           out);
}

static void run_attention_back(bench_cuda *b)
{
    ts_tensor *grad[3];
    (void)ts_attention_backward(TS_OPTIONS(ts_attention_saved, .q = b->x[0], .k = b->x[1],
                                           .v = b->x[2], .o = b->x[3], .lse = b->x[4],
                                           .d_o = b->x[5]),
                                TS_OPTIONS(ts_attention_options, .causal = 1), grad);
}

static ts_tensor *heads(bench_cuda *b, int64_t batch, int64_t rows_, int64_t count, int64_t width)
{
    return ts_transpose(bench_cuda_numbers(b, TS_DTYPE_BF16, TS_SHAPE(batch, rows_, count, width)),
                        1, 2);
}

/* What the library's graph takes alone: a call runs it once, or several times over the same arrays,
 * and the difference is a loop over nothing else. 0: it is not the library's. */
static double seconds_alone(bench_cuda *b, bench_cuda_fn run, double once)
{
    char runs[16];
    (void)snprintf(runs, sizeof runs, "%d", ATTENTION_RUNS);
    (void)setenv("TESSERA_CUDNN_RUNS", runs, 1);
    double several = bench_cuda_seconds(b, run);
    (void)unsetenv("TESSERA_CUDNN_RUNS");
    return several > 2 * once ? (several - once) / (ATTENTION_RUNS - 1) : 0;
}

typedef struct layer {
    const char *name;
    int64_t batch, heads, groups, rows, width;
} layer;

/* By cuDNN, with its sums in any order, and by the own kernels: what a line sets meanwhile. */
static const struct attend {
    const char *name, *variable, *value;
    bench_cuda_fn run;
    double flops; /* for one of the forward */
} attends[] = {
    { "forward", NULL, NULL, run_attention, 1 },
    { "gradient", NULL, NULL, run_attention_back, 2.5 },
    { "gradient in any order", "TESSERA_DETERMINISTIC", "0", run_attention_back, 2.5 },
    { "forward without cuDNN", "TESSERA_CUDNN", "off", run_attention, 1 },
    { "gradient without cuDNN", "TESSERA_CUDNN", "off", run_attention_back, 2.5 },
};
enum { ATTENDS = sizeof attends / sizeof attends[0] };

static bool is_attends_turn(const bench_cuda *b, const layer *l, const struct attend *a,
                            char (*name)[96])
{
    (void)snprintf(*name, sizeof *name, "attention %s, %s", l->name, a->name);
    return bench_cuda_is_turn(b, *name);
}

static void measure_attention(bench_cuda *b, const layer *l, const struct attend *a)
{
    char name[96];
    if (!is_attends_turn(b, l, a, &name)) return;
    if (a->variable) (void)setenv(a->variable, a->value, 1);
    double pairs = (double)(l->batch * l->heads) * (double)l->rows * (double)l->rows / 2;
    double flops = a->flops * 4 * pairs * (double)l->width;
    double once = bench_cuda_seconds(b, a->run), alone = seconds_alone(b, a->run, once);
    double again = bench_cuda_seconds(b, a->run); /* the chip has got warmer */
    if (a->variable) (void)unsetenv(a->variable);
    double best = again < once ? again : once;
    bench_line *line = bench_lines_add(&b->lines, "TFLOP/s", flops / best / 1e12, "%s", name);
    if (alone <= 0) return;
    bench_line_floor(line, flops / alone / 1e12, "cuDNN alone");
    bench_line_note(line, "%.3f of it", alone / best);
}

static void attend_layer(bench_cuda *b, const layer *l)
{
    int64_t n = l->batch, t = l->rows, d = l->width;
    char name[96];
    size_t first = 0;
    while (first < ATTENDS && !is_attends_turn(b, l, &attends[first], &name))
        first++;
    if (first == ATTENDS) return;
    ts_scope scope = ts_scope_open(b->me, NULL);
    b->x[0] = heads(b, n, t, l->heads, d);
    b->x[1] = heads(b, n, t, l->groups, d);
    b->x[2] = heads(b, n, t, l->groups, d);
    b->x[5] = heads(b, n, t, l->heads, d);
    ts_tensor *out[2] = { NULL };
    (void)ts_attention_lse(b->x[0], b->x[1], b->x[2], TS_OPTIONS(ts_attention_options, .causal = 1),
                           out);
    b->x[3] = out[0];
    b->x[4] = out[1];
    for (size_t i = first; i < ATTENDS; i++)
        measure_attention(b, l, &attends[i]);
    (void)ts_scope_close(scope);
}

static void attention(bench_cuda *b)
{
    static const layer layers[] = { { "A, 16 x 1024, 12 of 64", 16, 12, 12, 1024, 64 },
                                    { "A, 16 x 1024, 6 of 128", 16, 6, 6, 1024, 128 },
                                    { "B, 4 x 2048, 32 on 4 of 64", 4, 32, 4, 2048, 64 },
                                    { "B, 4 x 2048, 16 on 4 of 128", 4, 16, 4, 2048, 128 } };
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++)
        attend_layer(b, &layers[i]);
}

/* ---- the command ----------------------------------------------------------------------------- */

static ts_status work(ts_rank *me, void *argument)
{
    bench_cuda *b = argument;
    b->me = me;
    b->mesh = ts_mesh_self(me);
    if (b->tuned) {
        products(b);
        return ts_rank_status(me);
    }
    bench_cuda_kernels(b);
    if (b->mib > 0) return ts_rank_status(me);
    products(b);
    heads_with_losses(b);
    grouped_products(b);
    attention(b);
    return ts_rank_status(me);
}

static ts_status launch(bench_cuda *b, char *error, size_t size)
{
    return ts_launch_with(TS_OPTIONS(ts_world_options, .rank_count = 1, .device = b->device), work,
                          b, error, size);
}

/* Rates of the fastest proposals, found by a process that makes a table of them. */
static void find_best(bench_cuda *b)
{
    int ends_[2];
    if (pipe(ends_) != 0) return;
    pid_t child = fork();
    if (child == 0) {
        char error[512];
        static bench_cuda other;
        (void)setenv("TESSERA_CUDA_TUNE", b->save ? b->save : "/dev/null", 1);
        other.device = b->device;
        other.only = b->only;
        other.tuned = true;
        bool done = launch(&other, error, sizeof error) == TS_OK;
        ssize_t wrote = done ? write(ends_[1], other.best, sizeof other.best) : 0;
        _exit(wrote == (ssize_t)sizeof other.best ? 0 : 1);
    }
    (void)close(ends_[1]);
    if (child > 0) {
        ssize_t got = read(ends_[0], b->best, sizeof b->best);
        if (got != (ssize_t)sizeof b->best) memset(b->best, 0, sizeof b->best);
        (void)waitpid(child, NULL, 0);
    }
    (void)close(ends_[0]);
}

int cli_bench_cuda(int argc, char **argv)
{
    static bench_cuda self = { .device = "cuda" };
    char error[1024];
    const cli_option options[] = {
        CLI_TEXT("device", &self.device, "NAME", "cuda, cuda:1; others to try the lines (cpu)"),
        CLI_INT("mib", &self.mib, 1, 1 << 16, "kernels alone, with tensors of so many MiB"),
        CLI_TEXT("only", &self.only, "TEXT", "lines whose name contains it"),
        CLI_TEXT("save", &self.save, "FILE",
                 "adds the fastest algorithm of each product (for TESSERA_CUDA_PRODUCTS)"),
        CLI_FLAG("json", &self.json, "one JSON object"),
        CLI_END
    };
    const cli_usage usage = {
        "bench cuda", "[options]",
        "One GPU: the rate of copies, kernels beside it in bytes read and written, products "
        "beside\n"
        "the fastest of cuBLASLt's proposals, attention beside cuDNN alone and without it.",
        options, NULL
    };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc > 1) return cli_fail_usage("bench cuda", "unexpected argument \"%s\"", argv[1]);
    (void)setenv("TESSERA_FALLBACK", "forbid", 1);
    if (self.mib == 0) find_best(&self);
    if (launch(&self, error, sizeof error) != TS_OK) return cli_fail("bench cuda", "%s", error);
    return bench_lines_print(&self.lines, self.json);
}
