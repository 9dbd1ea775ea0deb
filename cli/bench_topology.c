/* SPDX-License-Identifier: Apache-2.0 */
/* bench_topology.c - measures the constants of the cost model with the moves that isolate them.
 *
 *   R -> S(1), large      copies: nobody is asked
 *   S(0) -> R, tiny       base and latency             S(0) -> R, large     what a byte received
 * costs S(0) -> S(1), tiny    what an all_to_all and an exchange cost more P -> S(0), large what
 * combining costs more
 *
 * Every rank is busy while a constant is measured, so limits that ranks share are in the constants
 * already and are not stated again. Medians of batches, not the best ones: a prediction is wanted.
 */
#include "bench_topology.h"

#include <string.h>

#include "contest.h"

enum { TINY = 8, LARGE = 2048, PROBES = 6 };

typedef struct probe {
    const char *from, *to, *planner;
    int64_t extent;
} probe;

/* In the order of the constants below. */
static const probe probes[PROBES] = {
    { "R", "S(1)", "auto", LARGE },        { "S(0)", "R", "collectives", TINY },
    { "S(0)", "R", "collectives", LARGE }, { "S(0)", "S(1)", "collectives", TINY },
    { "S(0)", "S(1)", "direct", TINY },    { "P(sum)", "S(0)", "collectives", LARGE },
};
enum { COPY, GATHER_TINY, GATHER, ALL_TO_ALL_TINY, DIRECT_TINY, SCATTER };

typedef struct probing {
    ts_rank *me;
    ts_tensor *x;
    const ts_sharding *to;
    const char *planner;
} probing;

static ts_status move_once(void *context, int who)
{
    probing *p = context;
    (void)who;
    ts_move_options options = { .struct_size = sizeof options,
                                .planner = p->planner,
                                .blocking = 1 };
    ts_scope scope = ts_scope_open(p->me, "probe");
    ts_tensor *y = ts_redistribute_with(p->x, p->to, &options);
    ts_scope_close(scope);
    return y ? TS_OK : ts_rank_status(p->me);
}

/* Microseconds of one move, by the median. */
static ts_status time_probe(ts_rank *me, ts_mesh *mesh, const probe *what, double seconds,
                            double *us)
{
    ts_scope scope = ts_scope_open(me, "bench");
    probing p = { .me = me, .planner = what->planner };
    p.x = ts_empty(mesh, TS_DTYPE_F32, TS_SHAPE(what->extent, what->extent), what->from);
    p.to = ts_sharding_get(mesh, what->to);
    ts_array view = { .struct_size = sizeof view };
    ts_status status = p.x && p.to ? ts_tensor_view(p.x, &view) : ts_rank_status(me);
    if (status == TS_OK)
        memset(view.data, 0, (size_t)ts_shape_count(&view.meta.shape) * sizeof(float));
    contest race = { ts_group_world(me), 1, seconds, &p, move_once };
    contest_times times = { { 0 }, { 0 } };
    if (status == TS_OK) status = contest_run(&race, &times);
    *us = times.median[0] * 1e6;
    ts_scope_close(scope);
    return status;
}

static double at_least(double value, double least)
{
    return value > least ? value : least;
}

static double gib_s(double us_per_byte)
{
    return 1e6 / at_least(us_per_byte, 1e-7) / 1073741824.0;
}

ts_status bench_topology_measure(ts_rank *me, double seconds, ts_topology *out)
{
    double us[PROBES] = { 0 }, n = (double)ts_rank_count(me);
    ts_mesh *mesh = ts_mesh_create(me, "x=*");
    ts_status status = mesh ? ts_topology_preset("threads", out) : ts_rank_status(me);
    for (int i = 0; i < PROBES && status == TS_OK; i++)
        status = time_probe(me, mesh, &probes[i], seconds / PROBES, &us[i]);
    if (status != TS_OK) return status;
    double whole = (double)LARGE * LARGE * 4, own = whole / n, received = whole - own;
    double copy = us[COPY] / own;
    double byte = at_least((us[GATHER] - us[GATHER_TINY] - own * copy) / received, copy / 4);
    (void)snprintf(out->name, sizeof out->name, "measured");
    out->copy_gib_s = gib_s(copy);
    out->base_us = us[GATHER_TINY] * 0.8;
    out->level[0].latency_us = us[GATHER_TINY] * 0.2;
    out->level[0].bandwidth_gib_s = gib_s(byte);
    out->level[0].total_gib_s = out->shared_gib_s = 0;
    out->all_to_all_us = at_least(us[ALL_TO_ALL_TINY] - us[GATHER_TINY], 0);
    out->exchange_us = at_least(us[DIRECT_TINY] - us[GATHER_TINY], 0);
    out->reduce_gib_s = gib_s((us[SCATTER] - us[GATHER_TINY]) / received - byte);
    return TS_OK;
}
