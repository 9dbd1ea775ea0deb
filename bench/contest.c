/* SPDX-License-Identifier: Apache-2.0 */
/* contest.c - see contest.h. */
#include "contest.h"

#include <stdlib.h>
#include <time.h>

enum { BATCHES_MIN = 3, REPEATS_MAX = 5000 };

ts_status contest_agree(ts_group *world, double *values, int64_t count)
{
    ts_array array = { .struct_size = sizeof array, .data = values };
    array.meta.dtype = TS_DTYPE_F64;
    array.meta.shape.ndim = 1;
    array.meta.shape.extent[0] = count;
    return ts_group_all_reduce(world, &array, &array, TS_REDUCE_MAX, NULL);
}

static int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* From the first rank's start to the last rank's end: the closing barrier makes the rank that began
 * first wait for all, also where ranks share cores and run one after another. */
static ts_status time_batch(const contest *self, int who, int64_t repeats, double *out)
{
    struct timespec rest = { 0, who == 0 ? (long)(self->rest * 1e9) : 0 };
    (void)nanosleep(&rest, NULL);
    ts_status status = ts_group_barrier(self->world, NULL);
    double start = cli_now();
    for (int64_t i = 0; i < repeats && status == TS_OK; i++)
        status = self->run(self->context, who);
    if (status == TS_OK) status = ts_group_barrier(self->world, NULL);
    *out = (cli_now() - start) / (double)repeats;
    return status;
}

/* Repeats of a batch, so that a batch of every contender takes about 1/15 of the time. */
static ts_status calibrate(const contest *self, int64_t *repeats)
{
    double once[CONTEST_MAX] = { 0 }, all = 1e-9;
    ts_status status = TS_OK;
    for (int turn = 0; turn < 2; turn++) { /* the first turn warms up */
        for (int who = 0; who < self->contenders && status == TS_OK; who++)
            status = time_batch(self, who, 1, &once[who]);
    }
    if (status == TS_OK) status = contest_agree(self->world, once, CONTEST_MAX);
    for (int who = 0; who < self->contenders; who++)
        all += once[who];
    double share = self->seconds / CONTEST_BATCHES / all;
    *repeats = share < 1 ? 1 : share > REPEATS_MAX ? REPEATS_MAX : (int64_t)share;
    return status;
}

ts_status contest_run(const contest *self, contest_times *out)
{
    double batch[CONTEST_MAX][CONTEST_BATCHES] = { { 0 } }, spent = 0, start = cli_now();
    int64_t repeats = 1, batches = 0;
    *out = (contest_times){ { 0 }, { 0 } };
    ts_status status = calibrate(self, &repeats);
    while (status == TS_OK && batches < CONTEST_BATCHES &&
           (batches < BATCHES_MIN || spent < self->seconds)) {
        for (int who = 0; who < self->contenders && status == TS_OK; who++)
            status = time_batch(self, who, repeats, &batch[who][batches]);
        batches++;
        spent = cli_now() - start;
        if (status == TS_OK) status = contest_agree(self->world, &spent, 1);
    }
    for (int who = 0; who < self->contenders && status == TS_OK; who++) {
        status = contest_agree(self->world, batch[who], batches);
        qsort(batch[who], (size_t)batches, sizeof batch[who][0], compare_doubles);
        out->best[who] = batch[who][0];
        out->median[who] = batch[who][batches / 2];
    }
    return status;
}
