/* SPDX-License-Identifier: Apache-2.0 */
/* bench_dispatch.c - `tessera bench dispatch`: what an operator call costs beside its arithmetic.
 *
 * Tensors of four elements on a mesh of 2x4 thread ranks; one rank calls while the others wait, so
 * nothing but the call itself is measured. What the local kernel takes alone is taken off. A hit
 * finds its plan in the rank's cache; a miss has an attribute that was never seen. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_lines.h"

enum { BATCH = 64, MISSES = 512, PARAMETERS = 200 };

typedef struct bench {
    bench_lines lines;
    int64_t calls;
    ts_status status;
} bench;

typedef struct inputs {
    ts_tensor *x, *y, *square, *whole;
} inputs;

typedef struct subject {
    const char *name, *op, *attributes;
    ts_tensor *(*call)(inputs *in);
    int32_t inputs;
} subject;

static ts_tensor *call_add(inputs *in)
{
    return ts_add(in->x, in->y);
}
static ts_tensor *call_mul(inputs *in)
{
    return ts_mul(in->x, in->y);
}
static ts_tensor *call_mm(inputs *in)
{
    return ts_mm(in->square, in->square);
}
static ts_tensor *call_view(inputs *in)
{
    return ts_reshape(in->whole, TS_SHAPE(2, 2));
}
static ts_tensor *call_sum(inputs *in)
{
    return ts_sum(in->x, NULL, 0, 0);
}
static ts_tensor *call_softmax(inputs *in)
{
    return ts_softmax(in->whole, 0);
}

static const subject subjects[] = {
    { "add", "add", NULL, call_add, 2 }, { "mul", "mul", NULL, call_mul, 2 },
    { "mm", "mm", NULL, call_mm, 2 },    { "view", "reshape", "{\"shape\": [2, 2]}", call_view, 1 },
    { "sum", "sum", NULL, call_sum, 1 }, { "softmax", "softmax", "{\"dim\": 0}", call_softmax, 1 },
};
enum { SUBJECTS = sizeof subjects / sizeof subjects[0] };

/* Seconds of one call, the best of batches; the tensors of a batch are freed with its scope. */
static double time_calls(const bench *self, ts_rank *me, const subject *s, inputs *in)
{
    double best = 1;
    for (int64_t done = 0; done < self->calls; done += BATCH) {
        double start = cli_now();
        ts_scope scope = ts_scope_open(me, NULL);
        for (int i = 0; i < BATCH; i++)
            (void)s->call(in);
        (void)ts_scope_close(scope);
        double one = (cli_now() - start) / BATCH;
        if (one < best) best = one;
    }
    return best;
}

/* The local kernel of the same call. */
static double kernel_time(const bench *self, const subject *s, const inputs *in)
{
    bool whole = s->call == call_view || s->call == call_softmax, square = s->call == call_mm;
    ts_tensor *x = square ? in->square : whole ? in->whole : in->x;
    ts_tensor *both[2] = { x, square ? in->square : in->y };
    double ns = 0;
    (void)ts_op_kernel_time(s->op, both, s->inputs, s->attributes, self->calls / BATCH, &ns);
    return ns;
}

/* Every call has another number, so that none finds its plan. */
static double time_misses(ts_rank *me, inputs *in)
{
    double best = 1;
    int64_t seen = 0;
    for (int batch = 0; batch < MISSES / BATCH; batch++) {
        double start = cli_now();
        ts_scope scope = ts_scope_open(me, NULL);
        for (int i = 0; i < BATCH; i++)
            (void)ts_mul_scalar(in->x, 1.0 + (double)++seen / 1024);
        (void)ts_scope_close(scope);
        double one = (cli_now() - start) / BATCH;
        if (one < best) best = one;
    }
    return best;
}

/* The arithmetic of one AdamW step, on blocks of four elements. */
static double time_arithmetic(const bench *self)
{
    static float x[4][PARAMETERS][4];
    double best = 1;
    for (int64_t done = 0; done < self->calls; done += PARAMETERS) {
        double start = cli_now();
        for (int i = 0; i < PARAMETERS; i++)
            for (int j = 0; j < (i % 2 ? 1 : 4); j++) {
                float g = x[1][i][j], m = 0.9f * x[2][i][j] + 0.1f * g;
                float v = 0.95f * x[3][i][j] + 0.05f * g * g;
                x[2][i][j] = m;
                x[3][i][j] = v;
                x[0][i][j] -= 1e-3f * m / (sqrtf(v) + 1e-8f);
            }
        double one = (cli_now() - start) / PARAMETERS;
        if (one < best) best = one;
    }
    return best;
}

/* One fused step over parameters of four elements, half of them cut in four. */
static double time_list(const bench *self, ts_mesh *mesh)
{
    ts_tensor *x[4][PARAMETERS];
    for (int i = 0; i < PARAMETERS; i++)
        for (int k = 0; k < 4; k++)
            x[k][i] = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(4), i % 2 ? "R, S(0)" : "R, R");
    ts_adamw_update u = TS_INIT(ts_adamw_update);
    u.param = (ts_list){ x[0], PARAMETERS };
    u.grad = (ts_list){ x[1], PARAMETERS };
    u.first = (ts_list){ x[2], PARAMETERS };
    u.second = (ts_list){ x[3], PARAMETERS };
    u.lr = 1e-3, u.beta1 = 0.9, u.beta2 = 0.95, u.epsilon = 1e-8;
    double best = 1;
    for (int64_t done = 0; done < self->calls; done += PARAMETERS) {
        double start = cli_now();
        u.step++;
        if (ts_fused_adamw(&u) != TS_OK) return 0;
        double one = (cli_now() - start) / PARAMETERS;
        if (one < best) best = one;
    }
    return best;
}

static ts_status measure(bench *self, ts_rank *me, ts_mesh *mesh)
{
    ts_scope scope = ts_scope_open(me, "bench");
    inputs in = { 0 };
    in.x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(4), "R, S(0)");
    in.y = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(4), "R, S(0)");
    in.whole = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(4), "R, R");
    in.square = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(2, 2), "R, R");
    for (size_t i = 0; i < SUBJECTS && ts_rank_status(me) == TS_OK; i++) {
        double ours = time_calls(self, me, &subjects[i], &in);
        double kernel = kernel_time(self, &subjects[i], &in);
        bench_line *line = bench_lines_add(&self->lines, "ns", ours * 1e9 - kernel,
                                           "%s, plan found: beyond its kernel", subjects[i].name);
        bench_line_note(line, "the kernel takes %.0f ns", kernel);
        line->wanted = 150;
    }
    bench_line *line =
        bench_lines_add(&self->lines, "ns", time_misses(me, &in) * 1e9, "mul_scalar, plan made");
    line->wanted = 10000;
    ts_op_cache_stats stats = { .struct_size = sizeof stats };
    if (ts_op_cache_statistics(me, &stats) == TS_OK)
        bench_line_note(line, "%lld hits, %lld misses, %lld plans kept", (long long)stats.hits,
                        (long long)stats.misses, (long long)stats.live);
    double arithmetic = time_arithmetic(self) * 1e9;
    line = bench_lines_add(&self->lines, "ns", time_list(self, mesh) * 1e9 - arithmetic,
                           "fused_adamw of %d parameters, each", PARAMETERS);
    line->wanted = 30;
    bench_line_note(line, "its arithmetic takes %.0f ns", arithmetic);
    (void)ts_scope_close(scope);
    return ts_rank_status(me);
}

static ts_status work(ts_rank *me, void *arg)
{
    bench *self = arg;
    ts_mesh *mesh = ts_mesh_create(me, "a=2, b=4");
    ts_status status = mesh != NULL ? TS_OK : ts_rank_status(me);
    if (status == TS_OK && ts_rank_index(me) == 0) status = measure(self, me, mesh);
    if (status == TS_OK) status = ts_group_barrier(ts_group_world(me), NULL);
    ts_mesh_release(mesh);
    return status;
}

int cli_bench_dispatch(int argc, char **argv)
{
    bool json = false;
    bench self = { .calls = 200000 };
    const cli_option options[] = { CLI_INT("calls", &self.calls, 64, 1 << 30,
                                           "of each operator (200,000)"),
                                   CLI_FLAG("json", &json, "one JSON object"), CLI_END };
    const cli_usage usage = { "bench dispatch", "[options]",
                              "Measures what an operator call costs beside its arithmetic.",
                              options, NULL };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc > 1) return cli_fail_usage("bench dispatch", "unexpected argument \"%s\"", argv[1]);
    char error[1024] = "";
    ts_world_options world = { .struct_size = sizeof world, .engine = "threads", .rank_count = 8 };
    if (ts_launch_with(&world, work, &self, error, sizeof error) != TS_OK)
        return cli_fail("bench dispatch", "%s", error);
    return bench_lines_print(&self.lines, json);
}
