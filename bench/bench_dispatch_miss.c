/* SPDX-License-Identifier: Apache-2.0 */
/* bench_dispatch_miss.c - calls whose plan has to be made: sizes, or a number, never seen before.
 *
 * The inputs of a batch are made beforehand, each of another size. Every batch is run twice; what
 * the second run takes, which finds its plans, is taken off, so that only the making is left. A
 * call that would communicate is made where implicit moves are forbidden: it is planned, then
 * refused. */
#include "bench_dispatch.h"

enum { BATCHES = 8, BATCH = DISPATCH_BATCH };

typedef struct miss {
    const char *name;
    ts_tensor *(*call)(ts_tensor *x, ts_tensor *y, int64_t fresh);
    int32_t ndim;      /* of x: (n) or (n, 4); 0: (4), and only the number is new */
    const char *x, *y; /* placements; y is like x, or (4, 4) where y_square */
    bool y_square, moves;
} miss;

static ts_tensor *call_add(ts_tensor *x, ts_tensor *y, int64_t fresh)
{
    (void)fresh;
    return ts_add(x, y);
}
static ts_tensor *call_mul(ts_tensor *x, ts_tensor *y, int64_t fresh)
{
    (void)fresh;
    return ts_mul(x, y);
}
static ts_tensor *call_mm(ts_tensor *x, ts_tensor *y, int64_t fresh)
{
    (void)fresh;
    return ts_mm(x, y);
}
static ts_tensor *call_view(ts_tensor *x, ts_tensor *y, int64_t fresh)
{
    (void)y;
    (void)fresh;
    return ts_reshape(x, TS_SHAPE(-1, 2, 2));
}
static ts_tensor *call_sum(ts_tensor *x, ts_tensor *y, int64_t fresh)
{
    (void)y;
    (void)fresh;
    return ts_sum(x, NULL, 0, 0);
}
static ts_tensor *call_softmax_last(ts_tensor *x, ts_tensor *y, int64_t fresh)
{
    (void)y;
    (void)fresh;
    return ts_softmax(x, -1);
}
static ts_tensor *call_softmax_first(ts_tensor *x, ts_tensor *y, int64_t fresh)
{
    (void)y;
    (void)fresh;
    return ts_softmax(x, 0);
}
static ts_tensor *call_scale(ts_tensor *x, ts_tensor *y, int64_t fresh)
{
    (void)y;
    return ts_mul_scalar(x, 1.0 + (double)fresh / 1024);
}

static const miss misses[] = {
    { "add", call_add, 1, "R, S(0)", "R, S(0)", false, false },
    { "mul", call_mul, 1, "R, S(0)", "R, S(0)", false, false },
    { "mm", call_mm, 2, "S(0), R", "R, S(1)", true, false },
    { "view", call_view, 2, "R, S(0)", NULL, false, false },
    { "sum", call_sum, 1, "R, S(0)", NULL, false, false },
    { "softmax", call_softmax_last, 2, "R, S(0)", NULL, false, false },
    { "mul_scalar", call_scale, 0, "R, S(0)", NULL, false, false },
    { "add of S(0) and P", call_add, 1, "R, S(0)", "R, P(sum)", false, true },
    { "mm of S(0) and S(0)", call_mm, 2, "R, S(0)", "R, S(0)", true, true },
    { "softmax of its cut dim", call_softmax_first, 2, "R, S(0)", NULL, false, true },
};
enum { MISSES = sizeof misses / sizeof misses[0] };

typedef struct batch {
    const miss *what;
    ts_rank *me;
    ts_tensor *x[BATCH], *y[BATCH];
    int64_t fresh; /* size of the first */
} batch;

static ts_tensor *input_make(ts_mesh *mesh, ts_shape shape, const char *placements)
{
    return placements ? ts_empty(mesh, TS_DTYPE_F32, shape, placements) : NULL;
}

static void batch_make(batch *b, ts_mesh *mesh)
{
    b->fresh += BATCH;
    for (int i = 0; i < BATCH; i++) {
        int64_t n = b->what->ndim ? b->fresh + i : 4;
        ts_shape x = b->what->ndim == 2 ? TS_SHAPE(n, 4) : TS_SHAPE(n);
        b->x[i] = input_make(mesh, x, b->what->x);
        b->y[i] = input_make(mesh, b->what->y_square ? TS_SHAPE(4, 4) : x, b->what->y);
    }
}

static void run_free(void *context, int64_t times)
{
    batch *b = context;
    ts_scope scope = ts_scope_open(b->me, NULL);
    for (int64_t i = 0; i < times; i++)
        (void)b->what->call(b->x[i], b->y[i], b->fresh + i);
    (void)ts_scope_close(scope);
}

static void run_refused(void *context, int64_t times)
{
    batch *b = context;
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.implicit_moves = TS_MOVES_FORBID;
    options.catches = 1;
    for (int64_t i = 0; i < times; i++) {
        ts_scope scope = ts_scope_open_with(b->me, &options);
        (void)b->what->call(b->x[i], b->y[i], b->fresh + i);
        (void)ts_scope_close(scope);
    }
}

static double time_run(void (*run)(void *, int64_t), batch *b)
{
    double start = cli_now();
    run(b, BATCH);
    return (cli_now() - start) / BATCH;
}

/* Seconds of one call: the best batch whose plans are made less the best whose plans are found. */
static double time_miss(batch *b, ts_mesh *mesh)
{
    double made = 1, found = 1;
    for (int i = 0; i < BATCHES; i++) {
        ts_scope scope = ts_scope_open(b->me, NULL);
        batch_make(b, mesh);
        double first = time_run(b->what->moves ? run_refused : run_free, b);
        double again = time_run(b->what->moves ? run_refused : run_free, b);
        if (first < made) made = first;
        if (again < found) found = again;
        (void)ts_scope_close(scope);
    }
    return made - found;
}

static double count_miss(dispatch_bench *self, batch *b, ts_mesh *mesh)
{
    ts_scope scope = ts_scope_open(b->me, NULL);
    if (self->counting) batch_make(b, mesh);
    double count = dispatch_count(self, b->what->moves ? run_refused : run_free, b, BATCH);
    count -= dispatch_count(self, b->what->moves ? run_refused : run_free, b, BATCH);
    (void)ts_scope_close(scope);
    return count / BATCH;
}

size_t dispatch_miss_sections(void)
{
    return (size_t)2 * MISSES;
}

void dispatch_misses(dispatch_bench *self, ts_rank *me, ts_mesh *mesh)
{
    for (size_t i = 0; i < MISSES && ts_rank_status(me) == TS_OK; i++) {
        batch b = { .what = &misses[i], .me = me };
        double count = count_miss(self, &b, mesh);
        if (self->counting) continue;
        char name[64];
        (void)snprintf(name, sizeof name, "%s, plan made", b.what->name);
        bench_line *line =
            bench_lines_add(&self->lines, "ns", time_miss(&b, mesh) * 1e9, "%s", name);
        line->wanted = 10000;
        dispatch_line_count(self, line, count, 0, name);
    }
}
