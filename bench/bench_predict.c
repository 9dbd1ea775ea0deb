/* SPDX-License-Identifier: Apache-2.0 */
/* bench_predict.c - how good the cost model is: redistributions on thread ranks beside their
 * predicted times.
 *
 * First the constants of the model are measured (bench_topology.c), then other layouts and sizes
 * are predicted and measured. All ranks take part and come to the same numbers. */
#include "bench_predict.h"

#include <math.h>
#include <stdlib.h>

#include "bench_topology.h"

enum { CASES_MAX = 48 };

typedef struct predict {
    double seconds;
    const char *mesh;
    int64_t ranks;
    ts_topology topology; /* measured */
    bench_probe done[CASES_MAX];
    size_t count;
} predict;

/* ---- predictions ----------------------------------------------------------------------------- */
/* What is predicted; none of it was measured for the topology at these sizes. */
static size_t list_moves(int64_t ranks, const char *mesh, bench_probe *out)
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
            out[count++] = (bench_probe){ .mesh = mesh,
                                          .from = pair[0],
                                          .to = pair[1],
                                          .planner = "auto",
                                          .rows = sizes[s][0],
                                          .columns = sizes[s][1] };
        }
    }
    return count;
}

static ts_status work(ts_rank *me, void *arg)
{
    predict *self = arg;
    bool first = ts_rank_index(me) == 0;
    ts_mesh *mesh = ts_mesh_create(me, self->mesh);
    bench_probe moves[CASES_MAX];
    size_t count = list_moves(self->ranks, self->mesh, moves);
    ts_topology topology;
    ts_status status = mesh != NULL ? TS_OK : ts_rank_status(me);
    if (status == TS_OK) status = bench_topology_measure(me, self->seconds * 0.45, &topology);
    if (status == TS_OK && first) {
        self->topology = topology;
        status = ts_topology_set(ts_rank_world(me), &topology);
    }
    if (status == TS_OK) status = ts_group_barrier(ts_group_world(me), NULL);
    for (size_t i = 0; i < count && status == TS_OK; i++) {
        status = bench_probe_predict(mesh, &topology, &moves[i]);
        double budget = self->seconds * 0.45 / (double)count;
        if (status == TS_OK) status = bench_probe_time(me, &moves[i], budget);
        if (first && status == TS_OK) self->done[self->count++] = moves[i];
    }
    return status;
}

static void add_lines(const predict *self, bench_lines *lines)
{
    double errors[CASES_MAX];
    const ts_topology *t = &self->topology;
    for (size_t i = 0; i < self->count; i++) {
        const bench_probe *p = &self->done[i];
        errors[i] = fabs(p->predicted_us - p->measured_us) / p->measured_us;
        bench_line *line =
            bench_lines_add(lines, "us", p->predicted_us, "predicted: %s to %s, %lldx%lld", p->from,
                            p->to, (long long)p->rows, (long long)p->columns);
        bench_line_floor(line, p->measured_us, "measured");
        bench_line_note(line, "%s", p->family);
    }
    bench_line *line = bench_lines_add(lines, "%", 100 * bench_median(errors, self->count),
                                       "median error of the predictions");
    line->wanted = 20;
    bench_line_note(line, "%lld ranks; %.1f us, run %.3f, GiB/s %.1f, copy %.1f, fold %.1f",
                    (long long)self->ranks, t->base_us, t->run_us, t->level[0].bandwidth_gib_s,
                    t->copy_gib_s, t->reduce_gib_s);
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
