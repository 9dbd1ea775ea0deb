/* SPDX-License-Identifier: Apache-2.0 */
/* bench_kernels_data.h - the lines of `tessera bench kernels` for operators that move, pick, sort
 * and draw numbers, and for convolutions. */
#ifndef CLI_BENCH_KERNELS_DATA_H
#define CLI_BENCH_KERNELS_DATA_H

#include "bench_lines.h"
#include "copy_team.h"

typedef struct bench_data {
    bench_lines *lines;
    ts_rank *me;
    copy_team *team;
    char *from, *to; /* for copies */
    size_t copy_bytes;
    double seconds;   /* for each line */
    const char *only; /* lines whose name contains it; NULL: all */
} bench_data;

ts_status bench_data_lines(const bench_data *self);

#endif
