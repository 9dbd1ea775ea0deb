/* SPDX-License-Identifier: Apache-2.0 */
/* bench_topology.h - the constants of the cost model, measured: `tessera bench comm --save`. */
#ifndef CLI_BENCH_TOPOLOGY_H
#define CLI_BENCH_TOPOLOGY_H

#include "cli.h"

/* [coll] over all ranks, which must be at least two; the same on every rank. Starts from the preset
 * `threads`; `seconds`: to spend, about. */
ts_status bench_topology_measure(ts_rank *me, double seconds, ts_topology *out);

#endif
