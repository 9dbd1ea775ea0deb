/* SPDX-License-Identifier: Apache-2.0 */
/* bench_predict.c - how good the cost model is: redistributions on thread ranks beside their
 * predicted times.
 *
 * First the constants of the model are measured: of tiny redistributions what each kind of step
 * costs at least, of large ones the bandwidth and the rates of copying and combining, as those for
 * which the model itself predicts the measured times best. Then other layouts and sizes are
 * predicted and measured. Times are medians over batches; a batch takes as long as its slowest
 * rank. All ranks take part and come to the same numbers. */
#include "bench_predict.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCHES = 5, REPEATS_MAX = 2000, CASES_MAX = 48 };

typedef struct move {
    const char *from, *to, *planner;
    int64_t rows, columns;
} move;

typedef struct prediction {
    move what;
    char family[16];
    double predicted_us, measured_us;
} prediction;

typedef struct predict {
    double seconds;
    const char *mesh;
    int64_t ranks;
    ts_topology topology; /* measured */
    prediction done[CASES_MAX];
    size_t count;
} predict;

/* ---- one redistribution ---------------------------------------------------------------------- */
static ts_status agree_max(ts_rank *me, double *value)
{
    ts_array array = { .struct_size = sizeof array, .data = value };
    array.meta.dtype = TS_DTYPE_F64;
    return ts_group_all_reduce(ts_group_world(me), &array, &array, TS_REDUCE_MAX, NULL);
}

/* Seconds of one, over `repeats` of them; the slowest rank's. */
static ts_status time_batch(ts_rank *me, ts_tensor *x, const ts_sharding *to, const char *planner,
                            int64_t repeats, double *out)
{
    ts_move_options options = { .struct_size = sizeof options, .planner = planner, .blocking = 1 };
    ts_status status = ts_group_barrier(ts_group_world(me), NULL);
    double start = cli_now();
    for (int64_t i = 0; i < repeats && status == TS_OK; i++) {
        ts_scope scope = ts_scope_open(me, "bench");
        ts_tensor *y = ts_redistribute_with(x, to, &options);
        status = y != NULL ? ts_tensor_wait(y) : ts_rank_status(me);
        (void)ts_scope_close(scope);
    }
    *out = (cli_now() - start) / (double)repeats;
    return status == TS_OK ? agree_max(me, out) : status;
}

static ts_tensor *make_source(ts_mesh *mesh, const move *m)
{
    ts_tensor *x = ts_empty(mesh, TS_DTYPE_F32, TS_SHAPE(m->rows, m->columns), m->from);
    ts_array view = { .struct_size = sizeof view };
    if (x == NULL || ts_tensor_view(x, &view) != TS_OK) return NULL;
    memset(view.data, 0, (size_t)ts_shape_count(&view.meta.shape) * sizeof(float));
    return x;
}

/* The median of some batches within `budget` seconds, in microseconds. */
static ts_status time_move(ts_rank *me, ts_mesh *mesh, const move *m, double budget, double *out)
{
    ts_scope scope = ts_scope_open(me, "bench");
    ts_tensor *x = make_source(mesh, m);
    const ts_sharding *to = ts_sharding_retain(ts_sharding_get(mesh, m->to));
    double once = 0, batch[BATCHES];
    ts_status status = x != NULL && to != NULL ? TS_OK : ts_rank_status(me);
    for (int warm = 0; warm < 2 && status == TS_OK; warm++)
        status = time_batch(me, x, to, m->planner, warm ? 3 : 1, &once);
    double share = budget / BATCHES / (once > 1e-9 ? once : 1e-9);
    int64_t repeats = share < 2 ? 2 : share > REPEATS_MAX ? REPEATS_MAX : (int64_t)share;
    for (int i = 0; i < BATCHES && status == TS_OK; i++)
        status = time_batch(me, x, to, m->planner, repeats, &batch[i]);
    *out = status == TS_OK ? bench_median(batch, BATCHES) * 1e6 : 0;
    ts_sharding_release(to);
    (void)ts_scope_close(scope);
    return status;
}

/* ---- predicting ------------------------------------------------------------------------------ */
static ts_status predict_move(ts_mesh *mesh, const move *m, const ts_topology *topology,
                              prediction *out)
{
    ts_shape shape = TS_SHAPE(m->rows, m->columns);
    const ts_layout *src = ts_layout_retain(ts_layout_get(ts_sharding_get(mesh, m->from), shape));
    const ts_layout *dst = ts_layout_retain(ts_layout_get(ts_sharding_get(mesh, m->to), shape));
    ts_plan_options options = { .struct_size = sizeof options,
                                .planner = m->planner,
                                .topology = topology };
    ts_plan *plan = NULL;
    ts_status status = ts_plan_create(src, dst, TS_DTYPE_F32, &options, &plan);
    if (status == TS_OK) {
        ts_plan_summary summary = { .struct_size = sizeof summary };
        ts_plan_summarise(plan, &summary);
        out->predicted_us = summary.time_us;
        (void)snprintf(out->family, sizeof out->family, "%s",
                       ts_plan_family_name((ts_plan_family)summary.family));
    }
    ts_plan_release(plan);
    ts_layout_release(src);
    ts_layout_release(dst);
    return status;
}

/* ---- the topology ---------------------------------------------------------------------------- */
enum { RATES = 3 };

static void set_rates(ts_topology *t, const double *rate)
{
    t->level[0].bandwidth_gib_s = exp(rate[0]);
    t->copy_gib_s = exp(rate[1]);
    t->reduce_gib_s = exp(rate[2]);
}

/* How far the model is from what was measured: squares of the logarithms of the ratios. */
static double misfit(ts_mesh *mesh, const ts_topology *t, prediction *cases, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        if (predict_move(mesh, &cases[i].what, t, &cases[i]) != TS_OK) return HUGE_VAL;
        double off = log(cases[i].predicted_us / cases[i].measured_us);
        sum += off * off;
    }
    return sum;
}

/* One rate after the other is moved up or down while that helps, by smaller and smaller steps. */
static void fit_rates(ts_mesh *mesh, ts_topology *t, prediction *cases, size_t count)
{
    double rate[RATES] = { log(4), log(4), log(4) };
    set_rates(t, rate);
    double best = misfit(mesh, t, cases, count);
    for (double step = 1; step > 0.01; step /= 2) {
        for (int turn = 0; turn < 4; turn++) {
            for (int i = 0; i < 2 * RATES; i++) {
                double before = rate[i / 2];
                rate[i / 2] += i % 2 ? step : -step;
                set_rates(t, rate);
                double now = misfit(mesh, t, cases, count);
                if (now < best)
                    best = now;
                else
                    rate[i / 2] = before;
            }
        }
    }
    set_rates(t, rate);
}

static ts_status time_tiny(ts_rank *me, ts_mesh *mesh, double budget, ts_topology *out)
{
    const move moves[] = { { "S(0)", "R", "collectives", 8, 8 },
                           { "S(0)", "S(1)", "collectives", 8, 8 },
                           { "S(0)", "S(1)", "direct", 8, 8 } };
    double us[3];
    ts_status status = ts_topology_preset("threads", out);
    for (int i = 0; i < 3 && status == TS_OK; i++)
        status = time_move(me, mesh, &moves[i], budget, &us[i]);
    if (status != TS_OK) return status;
    (void)snprintf(out->name, sizeof out->name, "measured");
    out->base_us = us[0] * 0.8;
    out->level[0].latency_us = us[0] * 0.2;
    out->all_to_all_us = us[1] > us[0] ? us[1] - us[0] : 0;
    out->exchange_us = us[2] > us[0] ? us[2] - us[0] : 0;
    out->level[0].total_gib_s = out->shared_gib_s = 0; /* all ranks are busy while it is measured */
    return TS_OK;
}

static ts_status measure_topology(predict *self, ts_rank *me, ts_mesh *mesh, ts_topology *out)
{
    static const move kinds[] = {
        { "S(0)", "R", "collectives", 0, 0 },   { "S(0)", "S(1)", "collectives", 0, 0 },
        { "S(0)", "S(1)", "direct", 0, 0 },     { "P(sum)", "S(0)", "collectives", 0, 0 },
        { "P(sum)", "R", "collectives", 0, 0 }, { "S(1)", "R", "direct", 0, 0 }
    };
    enum { KINDS = sizeof kinds / sizeof kinds[0], SIZES = 2 };
    prediction cases[KINDS * SIZES];
    size_t count = 0;
    double budget = self->seconds * 0.3 / (KINDS * SIZES + 3);
    ts_status status = time_tiny(me, mesh, budget, out);
    for (int64_t n = 640; n <= 2560; n *= 4) {
        for (size_t i = 0; i < KINDS && status == TS_OK; i++) {
            prediction *one = &cases[count++];
            *one = (prediction){ .what = kinds[i] };
            one->what.rows = one->what.columns = n;
            status = time_move(me, mesh, &one->what, budget, &one->measured_us);
        }
    }
    if (status == TS_OK) fit_rates(mesh, out, cases, count);
    return status;
}

/* ---- predictions ----------------------------------------------------------------------------- */
/* What is predicted; none of it was measured for the topology at these sizes. */
static size_t list_moves(int64_t ranks, move *out)
{
    static const char *const lines[][2] = { { "S(0)", "R" },      { "S(1)", "R" },
                                            { "S(0)", "S(1)" },   { "P(sum)", "R" },
                                            { "P(sum)", "S(0)" }, { "P(sum)", "S(1)" },
                                            { "R", "S(1)" },      { "SS(0,2)", "S(0)" } };
    static const char *const planes[][2] = {
        { "S(0), S(1)", "S(1), S(0)" }, { "S(0), S(0)", "S(1), R" },
        { "R, S(0)", "S(0), S(0)" },    { "S(0), R", "R, R" },
        { "P(sum), S(0)", "S(0), R" },  { "S(0), P(sum)", "S(0), S(1)" }
    };
    static const int64_t sizes[][2] = { { 256, 192 }, { 1024, 1000 }, { 3000, 2800 } };
    bool plane = ranks % 2 == 0 && ranks > 2;
    size_t count = 0,
           kinds = plane ? sizeof planes / sizeof planes[0] : sizeof lines / sizeof lines[0];
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (size_t i = 0; i < kinds; i++) {
            const char *const *pair = plane ? planes[i] : lines[i];
            out[count++] = (move){ pair[0], pair[1], "auto", sizes[s][0], sizes[s][1] };
        }
    }
    return count;
}

static ts_status work(ts_rank *me, void *arg)
{
    predict *self = arg;
    bool first = ts_rank_index(me) == 0;
    ts_mesh *line = ts_mesh_create(me, "x=*"), *mesh = ts_mesh_create(me, self->mesh);
    move moves[CASES_MAX];
    size_t count = list_moves(self->ranks, moves);
    ts_topology topology;
    ts_status status = mesh != NULL && line != NULL ? TS_OK : ts_rank_status(me);
    if (status == TS_OK) status = measure_topology(self, me, line, &topology);
    if (status == TS_OK && first) {
        self->topology = topology;
        status = ts_topology_set(ts_rank_world(me), &topology);
    }
    if (status == TS_OK) status = ts_group_barrier(ts_group_world(me), NULL);
    for (size_t i = 0; i < count && status == TS_OK; i++) {
        prediction one = { .what = moves[i] };
        status = predict_move(mesh, &moves[i], &topology, &one);
        double budget = self->seconds * 0.6 / (double)count;
        if (status == TS_OK) status = time_move(me, mesh, &moves[i], budget, &one.measured_us);
        if (first && status == TS_OK) self->done[self->count++] = one;
    }
    return status;
}

static void add_lines(const predict *self, bench_lines *lines)
{
    double errors[CASES_MAX];
    const ts_topology *t = &self->topology;
    for (size_t i = 0; i < self->count; i++) {
        const prediction *p = &self->done[i];
        errors[i] = fabs(p->predicted_us - p->measured_us) / p->measured_us;
        bench_line *line = bench_lines_add(
            lines, "us", p->predicted_us, "predicted: %s to %s, %lldx%lld", p->what.from,
            p->what.to, (long long)p->what.rows, (long long)p->what.columns);
        bench_line_floor(line, p->measured_us, "measured");
        bench_line_note(line, "%s", p->family);
    }
    bench_line *line = bench_lines_add(lines, "%", 100 * bench_median(errors, self->count),
                                       "median error of the predictions");
    line->wanted = 20;
    bench_line_note(line, "%lld ranks; %.1f us, GiB/s %.1f, copy %.1f, fold %.1f",
                    (long long)self->ranks, t->base_us, t->level[0].bandwidth_gib_s, t->copy_gib_s,
                    t->reduce_gib_s);
}

bool bench_predict(int64_t ranks, double seconds, bench_lines *lines, char *error, size_t size)
{
    cli_machine machine;
    cli_machine_read(&machine);
    if (ranks == 0) ranks = machine.cores >= 4 ? 4 : 2;
    predict *self = calloc(1, sizeof *self);
    if (self == NULL) {
        (void)snprintf(error, size, "out of memory");
        return false;
    }
    self->ranks = ranks;
    self->seconds = seconds;
    self->mesh = ranks % 2 == 0 && ranks > 2 ? "a=2, b=*" : "x=*";
    ts_world_options world = { .struct_size = sizeof world,
                               .engine = "threads",
                               .rank_count = ranks };
    bool good = ts_launch_with(&world, work, self, error, size) == TS_OK;
    if (good) add_lines(self, lines);
    free(self);
    return good;
}
