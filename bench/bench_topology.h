/* SPDX-License-Identifier: Apache-2.0 */
/* bench_topology.h - redistributions timed and predicted, and the constants of the cost model that
 * predict them best: `tessera bench comm --save`, `tessera bench plan`. */
#ifndef BENCH_TOPOLOGY_H
#define BENCH_TOPOLOGY_H

#include "cli.h"

typedef struct bench_probe { /* of f32 */
    const char *mesh, *from, *to, *planner;
    int64_t rows, columns;
    char family[16];
    double predicted_us, measured_us;
} bench_probe;

/* [coll] over all ranks: fills measured_us with the median, the same on every rank. */
ts_status bench_probe_time(ts_rank *me, bench_probe *probe, double seconds);
/* Fills family and predicted_us. */
ts_status bench_probe_predict(ts_mesh *mesh, const ts_topology *topology, bench_probe *probe);

/* [coll] over all ranks, which must be at least two; the same on every rank. Starts from the preset
 * `threads`; `seconds`: to spend, about. */
ts_status bench_topology_measure(ts_rank *me, double seconds, ts_topology *out);

#endif
