/* SPDX-License-Identifier: Apache-2.0 */
/* bench_predict.c - how good the cost model is: redistributions on thread ranks beside their
 * predicted times.
 *
 * First the constants of the model are measured with the redistributions that isolate them:
 *
 *   S(0) -> R, tiny     base + latency          S(0) -> R, large     bandwidth
 *   S(0) -> S(1), tiny  what an all_to_all and an exchange cost more
 *   S(0) -> S(1)        copies                  P -> S(0), large     combining
 *
 * Then other layouts and sizes are predicted and measured. Times are medians over batches; a batch
 * takes as long as its slowest rank. */
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
    ts_shape shape = TS_SHAPE(m->rows, m->columns);
    if (strchr(m->from, 'P') != NULL) return ts_empty(mesh, TS_DTYPE_F32, shape, m->from);
    return ts_ones(mesh, TS_DTYPE_F32, shape, m->from);
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

/* ---- the topology ---------------------------------------------------------------------------- */
static double at_least(double value, double least)
{
    return value > least ? value : least;
}

static double gib_s(double us_per_byte)
{
    return 1e6 / at_least(us_per_byte, 1e-6) / 1073741824.0;
}

/* long: straight-line, one measured constant after the other */
static ts_status measure_topology(predict *self, ts_rank *me, ts_mesh *mesh, ts_topology *out)
{
    enum { SMALL = 8, LARGE = 2048 };
    double tiny_gather, tiny_all_to_all, tiny_direct, gather, all_to_all, direct, scatter;
    double n = (double)self->ranks, budget = self->seconds / 40;
    double bytes = (double)LARGE * LARGE * 4, each = bytes / n;
    const char *gathers = "collectives";
    const struct {
        move m;
        double *out;
    } wanted[] = {
        { { "S(0)", "R", gathers, SMALL, SMALL }, &tiny_gather },
        { { "S(0)", "S(1)", gathers, SMALL, SMALL }, &tiny_all_to_all },
        { { "S(0)", "S(1)", "direct", SMALL, SMALL }, &tiny_direct },
        { { "S(0)", "R", gathers, LARGE, LARGE }, &gather },
        { { "S(0)", "S(1)", gathers, LARGE, LARGE }, &all_to_all },
        { { "S(0)", "S(1)", "direct", LARGE, LARGE }, &direct },
        { { "P(sum)", "S(0)", gathers, LARGE, LARGE }, &scatter },
    };
    ts_status status = TS_OK;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0] && status == TS_OK; i++)
        status = time_move(me, mesh, &wanted[i].m, budget, wanted[i].out);
    if (status == TS_OK) status = ts_topology_preset("threads", out);
    if (status != TS_OK) return status;
    double received = bytes * (n - 1) / n;
    double per_byte = (gather - tiny_gather) / received;
    (void)snprintf(out->name, sizeof out->name, "measured");
    out->base_us = tiny_gather * 0.8;
    out->level[0].latency_us = tiny_gather * 0.2;
    out->all_to_all_us = at_least(tiny_all_to_all - tiny_gather, 0);
    out->exchange_us = at_least(tiny_direct - tiny_gather, 0);
    out->level[0].bandwidth_gib_s = gib_s(per_byte);
    out->level[0].total_gib_s = out->shared_gib_s =
        0; /* all ranks were busy when it was measured */
    double moved = each * (n - 1) / n * per_byte;
    out->copy_gib_s = gib_s((all_to_all - tiny_all_to_all - moved) / each);
    out->reduce_gib_s = gib_s((scatter - tiny_gather) / received - per_byte);
    (void)direct;
    return status;
}

/* ---- predictions ----------------------------------------------------------------------------- */
static ts_status predict_move(ts_mesh *mesh, const move *m, prediction *out)
{
    ts_shape shape = TS_SHAPE(m->rows, m->columns);
    const ts_layout *src = ts_layout_retain(ts_layout_get(ts_sharding_get(mesh, m->from), shape));
    const ts_layout *dst = ts_layout_retain(ts_layout_get(ts_sharding_get(mesh, m->to), shape));
    ts_plan_options options = { .struct_size = sizeof options, .planner = m->planner };
    ts_plan *plan = NULL;
    ts_status status = ts_plan_cached(src, dst, TS_DTYPE_F32, &options, &plan);
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
        status = predict_move(mesh, &moves[i], &one);
        double budget = self->seconds * 0.7 / (double)count;
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
    bench_line_note(line, "%lld ranks; base %.1f us, %.1f GiB/s, copy %.1f, combine %.1f",
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
