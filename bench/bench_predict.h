/* SPDX-License-Identifier: Apache-2.0 */
/* bench_predict.h - predicted beside measured times of redistributions. */
#ifndef BENCH_PREDICT_H
#define BENCH_PREDICT_H

#include "bench_lines.h"

/* Measures a topology of thread ranks, sets it, and adds a line for each redistribution and one for
 * the median error. `ranks` 0: 4 where there are as many cores, else 2. False: `error` says why. */
bool bench_predict(int64_t ranks, double seconds, bench_lines *lines, char *error, size_t size);

#endif
