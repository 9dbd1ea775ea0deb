/* SPDX-License-Identifier: Apache-2.0 */
/* bench_topology.c - measures the constants of the cost model.
 *
 * Redistributions of every kind and several sizes are timed; the constants are those with which the
 * model itself predicts these times best. So a constant means in the file what it means in a plan,
 * and limits that ranks share are in the constants, because every rank is busy while they are
 * measured. Medians of batches, not the best ones: a prediction is wanted.
 *
 *   tiny moves    base, latency, what an all_to_all and an exchange cost more, a local step
 *   large moves   what a byte costs that is received, copied, combined, and a contiguous run
 *   two meshes    latency by the size of the group, where there are enough ranks
 *   products      what a rank multiplies meanwhile, f32 and bf16 */
#include "bench_topology.h"

#include <math.h>
#include <string.h>

#include "contest.h"

enum { PROBES_MAX = 64, ROUNDS = 6 };

/* ---- one move ------------------------------------------------------------------------------- */

typedef struct moving {
    ts_rank *me;
    ts_tensor *x;
    const ts_sharding *to;
    const char *planner;
} moving;

static ts_status move_once(void *context, int who)
{
    moving *m = context;
    (void)who;
    ts_move_options options = { .struct_size = sizeof options,
                                .planner = m->planner,
                                .blocking = 1 };
    ts_scope scope = ts_scope_open(m->me, "probe");
    ts_tensor *y = ts_redistribute_with(m->x, m->to, &options);
    ts_scope_close(scope);
    return y ? TS_OK : ts_rank_status(m->me);
}

ts_status bench_probe_time(ts_rank *me, bench_probe *probe, double seconds)
{
    ts_scope scope = ts_scope_open(me, "bench");
    ts_mesh *mesh = ts_mesh_create(me, probe->mesh);
    moving m = { .me = me, .planner = probe->planner };
    m.x = ts_empty(mesh, TS_DTYPE_F32, TS_SHAPE(probe->rows, probe->columns), probe->from);
    m.to = ts_sharding_get(mesh, probe->to);
    ts_array view = { .struct_size = sizeof view };
    ts_status status = m.x && m.to ? ts_tensor_view(m.x, &view) : ts_rank_status(me);
    if (status == TS_OK && view.device == 0) /* pages that nobody touched are slow */
        memset(view.data, 0, (size_t)ts_shape_count(&view.meta.shape) * sizeof(float));
    contest race = { .world = ts_group_world(me),
                     .contenders = 1,
                     .seconds = seconds,
                     .context = &m,
                     .run = move_once };
    contest_times times = { { 0 }, { 0 } };
    if (status == TS_OK) status = contest_run(&race, &times);
    probe->measured_us = times.median[0] * 1e6;
    ts_scope_close(scope);
    return status;
}

ts_status bench_probe_predict(ts_mesh *mesh, const ts_topology *topology, bench_probe *probe)
{
    ts_shape shape = TS_SHAPE(probe->rows, probe->columns);
    const ts_layout *src = ts_layout_get(ts_sharding_get(mesh, probe->from), shape);
    const ts_layout *dst = ts_layout_get(ts_sharding_get(mesh, probe->to), shape);
    ts_plan_options options = { .struct_size = sizeof options,
                                .planner = probe->planner,
                                .topology = topology };
    ts_plan *plan = NULL;
    ts_status status = ts_plan_create(src, dst, TS_DTYPE_F32, &options, &plan);
    if (status != TS_OK) return status;
    ts_plan_summary summary = { .struct_size = sizeof summary };
    ts_plan_summarise(plan, &summary);
    probe->predicted_us = summary.time_us;
    (void)snprintf(probe->family, sizeof probe->family, "%s",
                   ts_plan_family_name((ts_plan_family)summary.family));
    ts_plan_release(plan);
    return TS_OK;
}

/* ---- what is timed -------------------------------------------------------------------------- */

static size_t list_probes(int64_t ranks, bench_probe *out)
{
    static const char *const lines[][3] = {
        { "S(0)", "R", "collectives" },      { "S(1)", "R", "collectives" },
        { "S(0)", "S(1)", "collectives" },   { "S(0)", "S(1)", "direct" },
        { "P(sum)", "S(0)", "collectives" }, { "P(sum)", "S(1)", "collectives" },
        { "P(sum)", "R", "collectives" },    { "R", "S(1)", "direct" }
    };
    static const char *const planes[][3] = { { "S(0), R", "R, R", "collectives" },
                                             { "P(sum), R", "S(0), R", "collectives" },
                                             { "S(0), S(1)", "S(1), S(0)", "direct" } };
    static const int64_t sizes[][2] = { { 8, 8 }, { 160, 192 }, { 720, 640 }, { 2048, 2560 } };
    size_t count = 0;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
            out[count++] = (bench_probe){ .mesh = "x=*",
                                          .from = lines[i][0],
                                          .to = lines[i][1],
                                          .planner = lines[i][2],
                                          .rows = sizes[s][0],
                                          .columns = sizes[s][1] };
        for (size_t i = 0; ranks > 2 && ranks % 2 == 0 && i < sizeof planes / sizeof planes[0]; i++)
            out[count++] = (bench_probe){ .mesh = "a=2, b=*",
                                          .from = planes[i][0],
                                          .to = planes[i][1],
                                          .planner = planes[i][2],
                                          .rows = sizes[s][0],
                                          .columns = sizes[s][1] };
    }
    return count;
}

/* ---- fitting -------------------------------------------------------------------------------- */

enum { BASE, LATENCY, ALL_TO_ALL, EXCHANGE, LOCAL, RUN, BYTE, COPY, REDUCE, CONSTANTS };

typedef struct fitting {
    ts_mesh *line, *plane; /* plane NULL: all groups have one size */
    bench_probe *probe;
    size_t count;
    ts_topology *topology;
    double value[CONSTANTS]; /* logarithms of microseconds, per GiB where it is a rate */
} fitting;

static void apply(const fitting *f)
{
    ts_topology *t = f->topology;
    t->base_us = exp(f->value[BASE]);
    t->level[0].latency_us = f->plane ? exp(f->value[LATENCY]) : t->base_us / 4;
    t->all_to_all_us = exp(f->value[ALL_TO_ALL]);
    t->exchange_us = exp(f->value[EXCHANGE]);
    t->local_us = exp(f->value[LOCAL]);
    t->run_us = exp(f->value[RUN]);
    t->level[0].bandwidth_gib_s = 1e6 / exp(f->value[BYTE]);
    t->copy_gib_s = 1e6 / exp(f->value[COPY]);
    t->reduce_gib_s = 1e6 / exp(f->value[REDUCE]);
}

/* How far the model is from what was measured: the logarithms of the ratios, small ones squared, so
 * that a few moves it cannot describe do not spoil all others. */
static double misfit(fitting *f)
{
    double sum = 0;
    apply(f);
    for (size_t i = 0; i < f->count; i++) {
        bench_probe *p = &f->probe[i];
        ts_mesh *mesh = strcmp(p->mesh, "x=*") == 0 ? f->line : f->plane;
        if (bench_probe_predict(mesh, f->topology, p) != TS_OK) return HUGE_VAL;
        double off = log((p->predicted_us + 1e-3) / (p->measured_us + 1e-3));
        sum += sqrt(off * off + 0.01);
    }
    return sum;
}

/* One constant after the other is moved up or down while that helps, by smaller and smaller steps.
 */
static void fit(fitting *f)
{
    double best = misfit(f);
    for (double step = 1.5; step > 0.01; step /= 2) {
        for (int round = 0; round < ROUNDS; round++) {
            double before_round = best;
            for (int i = 0; i < 2 * CONSTANTS; i++) {
                double before = f->value[i / 2];
                f->value[i / 2] += i % 2 ? step : -step;
                double now = misfit(f);
                if (now < best)
                    best = now;
                else
                    f->value[i / 2] = before;
            }
            if (best >= before_round) break;
        }
    }
    apply(f);
}

/* ---- products -------------------------------------------------------------------------------- */

typedef struct product {
    ts_rank *me;
    ts_tensor *x, *w;
} product;

static ts_status multiply_once(void *context, int who)
{
    const product *p = context;
    (void)who;
    ts_scope scope = ts_scope_open(p->me, "probe");
    ts_tensor *y = ts_linear(p->x, p->w, NULL);
    ts_status status = y ? ts_tensor_wait(y) : ts_rank_status(p->me);
    ts_scope_close(scope);
    return status;
}

/* FLOP/s of a rank, in 1e9, while all of them multiply. */
static ts_status product_rate(ts_rank *me, ts_dtype dtype, double seconds, double *out)
{
    enum { SIDE = 512 };
    ts_scope scope = ts_scope_open(me, "bench");
    ts_mesh *self = ts_mesh_self(me);
    product p = { .me = me,
                  .x = ts_ones(self, dtype, TS_SHAPE(SIDE, SIDE), NULL),
                  .w = ts_ones(self, dtype, TS_SHAPE(SIDE, SIDE), NULL) };
    contest race = { .world = ts_group_world(me),
                     .contenders = 1,
                     .seconds = seconds,
                     .context = &p,
                     .run = multiply_once };
    contest_times times = { { 0 }, { 0 } };
    ts_status status = p.x && p.w ? contest_run(&race, &times) : ts_rank_status(me);
    if (status == TS_OK) *out = 2e-9 * SIDE * SIDE * SIDE / times.median[0];
    ts_mesh_release(self);
    ts_scope_close(scope);
    return status;
}

static ts_status measure_products(ts_rank *me, double seconds, ts_topology *out)
{
    ts_status status = product_rate(me, TS_DTYPE_F32, seconds / 2, &out->product_gflops);
    if (status != TS_OK) return status;
    return product_rate(me, TS_DTYPE_BF16, seconds / 2, &out->product_half_gflops);
}

ts_status bench_topology_measure(ts_rank *me, double seconds, ts_topology *out)
{
    bench_probe probe[PROBES_MAX];
    int64_t ranks = ts_rank_count(me);
    fitting f = { .probe = probe, .count = list_probes(ranks, probe), .topology = out };
    f.line = ts_mesh_create(me, "x=*");
    if (ranks > 2 && ranks % 2 == 0) f.plane = ts_mesh_create(me, "a=2, b=*");
    ts_status status = f.line ? ts_topology_preset("threads", out) : ts_rank_status(me);
    for (size_t i = 0; i < f.count && status == TS_OK; i++)
        status = bench_probe_time(me, &probe[i], seconds / (double)f.count);
    if (status == TS_OK) status = measure_products(me, seconds / 10, out);
    if (status != TS_OK) return status;
    (void)snprintf(out->name, sizeof out->name, "measured");
    out->hops = TS_HOPS_LOG;
    out->level[0].total_gib_s = out->shared_gib_s = 0;
    const double start[CONSTANTS] = { 2, 1, 0.5, 0.5, 1, 0.02, 60000, 60000, 30000 };
    for (int i = 0; i < CONSTANTS; i++)
        f.value[i] = log(start[i]);
    fit(&f);
    return TS_OK;
}
