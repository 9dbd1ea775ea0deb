/* SPDX-License-Identifier: Apache-2.0 */
/* bench_dispatch.c - `tessera bench dispatch`: what an operator call costs beside its arithmetic.
 *
 * Tensors of four elements on a mesh of 2x4 thread ranks; one rank calls, pinned to a core, while
 * the others wait, so nothing but the call itself is measured. What the local kernel takes alone is
 * taken off. A hit finds its plan in the rank's cache; a miss (bench_dispatch_miss.c) has sizes or
 * an attribute that were never seen. Where valgrind is found, the program runs itself under it, and
 * the instructions of each call stand below its time. */
#include "bench_dispatch.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = DISPATCH_BATCH, PARAMETERS = 200 };

typedef struct inputs {
    ts_tensor *x, *y, *square, *whole;
    const ts_op *add;
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

/* By name, with an attribute: read, checked and copied at every call. */
static ts_tensor *call_named(inputs *in)
{
    const ts_attribute alpha = ts_attribute_real("alpha", 1);
    ts_tensor *both[] = { in->x, in->y }, *out = NULL;
    (void)ts_op_call(in->add, both, 2, &alpha, 1, &out);
    return out;
}

static const subject subjects[] = {
    { "add", "add", NULL, call_add, 2 },
    { "mul", "mul", NULL, call_mul, 2 },
    { "mm", "mm", NULL, call_mm, 2 },
    { "view", "reshape", "{\"shape\": [2, 2]}", call_view, 1 },
    { "sum", "sum", NULL, call_sum, 1 },
    { "softmax", "softmax", "{\"dim\": 0}", call_softmax, 1 },
    { "add by name", "add", NULL, call_named, 2 },
};
enum { SUBJECTS = sizeof subjects / sizeof subjects[0] };

/* ---- instructions ---------------------------------------------------------------------------- */

double dispatch_count(dispatch_bench *self, void (*run)(void *, int64_t), void *context,
                      int64_t times)
{
    if (self->counting) {
        (void)cli_count_section(run, context, times);
        return 0;
    }
    return self->counted_used < DISPATCH_SECTIONS ? self->counted[self->counted_used++] : 0;
}

double dispatch_count_each(dispatch_bench *self, void (*run)(void *, int64_t), void *context,
                           int64_t few, int64_t many)
{
    double less = dispatch_count(self, run, context, few);
    return (dispatch_count(self, run, context, many) - less) / (double)(many - few);
}

void dispatch_line_count(dispatch_bench *self, bench_line *time, double value, double wanted,
                         const char *name)
{
    size_t length = strlen(time->note);
    if (self->not_counted) {
        (void)snprintf(time->note + length, sizeof time->note - length, "%s%s", length ? "; " : "",
                       self->not_counted);
        return;
    }
    bench_line *line = bench_lines_add(&self->lines, "instr", value, "%s: instructions", name);
    line->wanted = wanted;
}

/* ---- calls whose plan is found --------------------------------------------------------------- */

typedef struct hit {
    ts_rank *me;
    const subject *subject;
    inputs *in;
} hit;

/* Batches; the tensors of one are freed with its scope. */
static void run_hits(void *context, int64_t batches)
{
    const hit *h = context;
    for (int64_t b = 0; b < batches; b++) {
        ts_scope scope = ts_scope_open(h->me, NULL);
        for (int i = 0; i < BATCH; i++)
            (void)h->subject->call(h->in);
        (void)ts_scope_close(scope);
    }
}

/* The local kernel of the same call. */
static double kernel_time(const hit *h, int64_t rounds)
{
    const subject *s = h->subject;
    bool whole = s->call == call_view || s->call == call_softmax, square = s->call == call_mm;
    ts_tensor *x = square ? h->in->square : whole ? h->in->whole : h->in->x;
    ts_tensor *both[2] = { x, square ? h->in->square : h->in->y };
    double ns = 0;
    (void)ts_op_kernel_time(s->op, both, s->inputs, s->attributes, rounds, &ns);
    return ns;
}

static void run_kernels(void *context, int64_t rounds)
{
    (void)kernel_time(context, rounds);
}

/* Seconds of one call, the best of batches. */
static double time_hits(hit *h, int64_t calls)
{
    double best = 1;
    for (int64_t done = 0; done < calls; done += BATCH) {
        double start = cli_now();
        run_hits(h, 1);
        double one = (cli_now() - start) / BATCH;
        if (one < best) best = one;
    }
    return best;
}

static void measure_hit(dispatch_bench *self, hit *h)
{
    run_hits(h, 8); /* plans are made, pools are filled */
    double count = dispatch_count_each(self, run_hits, h, 2, 18) / BATCH;
    double kernel_count = dispatch_count_each(self, run_kernels, h, 2, 18) / BATCH;
    if (self->counting) return;
    double ours = time_hits(h, self->calls), kernel = kernel_time(h, self->calls / BATCH);
    if (kernel <= 0) kernel_count = 0; /* a view has none */
    bench_line *line = bench_lines_add(&self->lines, "ns", ours * 1e9 - kernel,
                                       "%s, plan found: beyond its kernel", h->subject->name);
    bool named = h->subject->call == call_named; /* pays for names too */
    line->wanted = named ? 250 : 150;
    if (kernel > 0) bench_line_floor(line, kernel, "its kernel");
    char name[64];
    (void)snprintf(name, sizeof name, "%s, plan found", h->subject->name);
    dispatch_line_count(self, line, count - kernel_count, named ? 2000 : 1000, name);
    if (!self->not_counted && kernel_count > 0)
        bench_line_floor(&self->lines.line[self->lines.count - 1], kernel_count, "its kernel");
}

/* ---- the list form --------------------------------------------------------------------------- */

/* The arithmetic of one AdamW step, on blocks of four elements. */
static double time_arithmetic(const dispatch_bench *self)
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

static void run_list(void *context, int64_t steps)
{
    ts_adamw_update *u = context;
    for (int64_t i = 0; i < steps; i++) {
        u->step++;
        (void)ts_fused_adamw(u);
    }
}

/* Parameters of four elements, half of them cut in four, with all that a step of AdamW needs. Made
 * before anything else, as a program makes them: later their memory would be what the calls that
 * were measured left behind, here and there. */
static ts_adamw_update list_make(ts_mesh *mesh, ts_tensor *x[4][PARAMETERS])
{
    for (int i = 0; i < PARAMETERS; i++)
        for (int k = 0; k < 4; k++)
            x[k][i] = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(4), i % 2 ? "R, S(0)" : "R, R");
    ts_adamw_update u = TS_INIT(ts_adamw_update);
    u.param = (ts_list){ x[0], PARAMETERS };
    u.grad = (ts_list){ x[1], PARAMETERS };
    u.first = (ts_list){ x[2], PARAMETERS };
    u.second = (ts_list){ x[3], PARAMETERS };
    u.lr = 1e-3, u.beta1 = 0.9, u.beta2 = 0.95, u.epsilon = 1e-8;
    return u;
}

static void measure_list(dispatch_bench *self, ts_adamw_update *u)
{
    run_list(u, 2);
    double count = dispatch_count_each(self, run_list, u, 2, 10) / PARAMETERS;
    if (self->counting) return;
    double best = 1, arithmetic = time_arithmetic(self) * 1e9;
    for (int64_t done = 0; done < self->calls; done += PARAMETERS) {
        double start = cli_now();
        run_list(u, 1);
        double one = (cli_now() - start) / PARAMETERS;
        if (one < best) best = one;
    }
    bench_line *line = bench_lines_add(&self->lines, "ns", best * 1e9 - arithmetic,
                                       "fused_adamw of %d parameters, each", PARAMETERS);
    line->wanted = 30;
    bench_line_floor(line, arithmetic, "its arithmetic");
    dispatch_line_count(self, line, count, 0, "fused_adamw, all of it, each");
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* The calling thread stays on the core it is on, if the system lets it. */
static void pin(void)
{
    int core = sched_getcpu();
    cpu_set_t set;
    CPU_ZERO(&set);
    if (core < 0 || core >= CPU_SETSIZE) return;
    CPU_SET((size_t)core, &set);
    (void)sched_setaffinity(0, sizeof set, &set);
}

static ts_status measure(dispatch_bench *self, ts_rank *me, ts_mesh *mesh)
{
    pin();
    ts_scope scope = ts_scope_open(me, "bench");
    inputs in = { 0 };
    ts_tensor *x[4][PARAMETERS];
    ts_adamw_update update = list_make(mesh, x);
    in.x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(4), "R, S(0)");
    in.y = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(4), "R, S(0)");
    in.whole = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(4), "R, R");
    in.square = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(2, 2), "R, R");
    in.add = ts_op_find(me, "add");
    for (size_t i = 0; i < SUBJECTS && ts_rank_status(me) == TS_OK; i++) {
        hit h = { me, &subjects[i], &in };
        measure_hit(self, &h);
    }
    if (ts_rank_status(me) == TS_OK) dispatch_misses(self, me, mesh);
    if (ts_rank_status(me) == TS_OK) measure_list(self, &update);
    (void)ts_scope_close(scope);
    return ts_rank_status(me);
}

static ts_status work(ts_rank *me, void *arg)
{
    dispatch_bench *self = arg;
    ts_mesh *mesh = ts_mesh_create(me, "a=2, b=4");
    ts_status status = mesh != NULL ? TS_OK : ts_rank_status(me);
    if (status == TS_OK && ts_rank_index(me) == 0) status = measure(self, me, mesh);
    if (status == TS_OK) status = ts_group_barrier(ts_group_world(me), NULL);
    ts_mesh_release(mesh);
    return status;
}

/* The numbers of the child, before anything is timed. */
static void count_child(dispatch_bench *self)
{
    char bench[] = "bench", dispatch[] = "dispatch", sections[] = "--sections";
    char *arguments[] = { bench, dispatch, sections, NULL };
    size_t count = 4 * SUBJECTS + dispatch_miss_sections() + 2;
    self->not_counted = cli_count_run(arguments, self->counted, count);
}

int cli_bench_dispatch(int argc, char **argv)
{
    bool json = false, time_only = false;
    static dispatch_bench self;
    self = (dispatch_bench){ .calls = 200000 };
    const cli_option options[] = {
        CLI_INT("calls", &self.calls, 64, 1 << 30, "of each operator (200,000)"),
        CLI_FLAG("time-only", &time_only, "do not count instructions"),
        CLI_FLAG("sections", &self.counting, "make the calls to be counted, and nothing else"),
        CLI_FLAG("json", &json, "one JSON object"), CLI_END
    };
    const cli_usage usage = { "bench dispatch", "[options]",
                              "Measures what an operator call costs beside its arithmetic.",
                              options, NULL };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc > 1) return cli_fail_usage("bench dispatch", "unexpected argument \"%s\"", argv[1]);
    self.not_counted = "not counted";
    if (!self.counting && !time_only) count_child(&self);
    char error[1024] = "";
    ts_world_options world = { .struct_size = sizeof world, .engine = "threads", .rank_count = 8 };
    if (ts_launch_with(&world, work, &self, error, sizeof error) != TS_OK)
        return cli_fail("bench dispatch", "%s", error);
    return self.counting ? 0 : bench_lines_print(&self.lines, json);
}
