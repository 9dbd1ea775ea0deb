/* SPDX-License-Identifier: Apache-2.0 */
/* contest.h - contenders that do the same thing, timed in turns by all ranks together.
 *
 * Batches of the contenders alternate, so that whatever else the machine does hits them alike. A
 * batch lasts from the first rank's start to the last one's end; what counts is the best batch. All
 * ranks decide how often to repeat from numbers they have agreed on, so they stay in step. */
#ifndef BENCH_CONTEST_H
#define BENCH_CONTEST_H

#include "cli.h"

enum { CONTEST_MAX = 4, CONTEST_BATCHES = 15 };

typedef struct contest {
    ts_group *world;
    int contenders;
    double seconds; /* to spend, about */
    double rest; /* before the first contender's batches: others' threads fall asleep meanwhile */
    void *context;
    ts_status (*run)(void *context, int who); /* once */
} contest;

typedef struct contest_times { /* seconds of one run */
    double best[CONTEST_MAX], median[CONTEST_MAX];
} contest_times;

ts_status contest_run(const contest *self, contest_times *out); /* [coll] */
/* [coll] Every rank gets the largest of all ranks' values. */
ts_status contest_agree(ts_group *world, double *values, int64_t count);

#endif
