/* SPDX-License-Identifier: Apache-2.0 */
/* bench_replay_waits.h - what ranks wait for in a step, by kind of operation and axes of its group:
 * predicted and measured, in two orders. */
#ifndef BENCH_BENCH_REPLAY_WAITS_H
#define BENCH_BENCH_REPLAY_WAITS_H

#include "bench_lines.h"
#include "tessera/tessera.h"

enum { BENCH_RECORDED, BENCH_REORDERED, BENCH_ORDERS };

typedef struct bench_wait {
    char kind[16], axes[48];
    double predicted[BENCH_ORDERS]; /* seconds of a step, mean of the ranks */
    double measured[BENCH_ORDERS];  /* of this rank, of all turns; then as predicted */
} bench_wait;

typedef struct bench_waits { /* a rank's; zero is an empty one */
    bench_wait row[24];
    int count;
} bench_waits;

/* Times of a program, the same on every rank; that of the recorded order comes first: its kinds are
 * the rows, so that ranks have the same. */
ts_status bench_waits_predict(bench_waits *waits, int order, const ts_program *program,
                              const ts_program_costs *costs, ts_program_times *times);
/* Of the latest ts_step_time. */
ts_status bench_waits_add(bench_waits *waits, int order, const ts_step *step);
/* [coll] The mean of ranks and turns. */
ts_status bench_waits_meet(bench_waits *waits, ts_rank *me, int64_t turns);
/* One line a kind. */
void bench_waits_report(const bench_waits *waits, const char *mesh, bench_lines *lines);

#endif
