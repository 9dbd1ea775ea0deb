/* SPDX-License-Identifier: Apache-2.0 */
/* 10_symmetric.c - a halo exchange by a kernel of one's own that reads other ranks' memory.
 *
 * Each rank holds CELLS cells of a ring. A step replaces each by the mean of itself and its two
 * neighbours; the cells at the ends read those of the ranks beside, where they lie. Two fields take
 * turns: what is read in one step is written in the next, so one signal to each side, after the
 * field is written, is all that orders the ranks. The sum of all cells never changes, which is
 * checked at the end.
 *
 * Runs on any number of ranks: TESSERA_RANKS=4 ./10_symmetric, or under mpirun on one node. */
#include <math.h>
#include <stdio.h>

#include <tessera/tessera.h>

enum { CELLS = 64, STEPS = 200, LEFT = 0, RIGHT = 1 };

static double *field_of(const ts_symmetric *s, int64_t member, int which)
{
    return (double *)ts_symmetric_data(s, member) + which * CELLS;
}

/* Tells both neighbours that this rank's field is written, and waits until theirs are. */
static ts_status meet(ts_symmetric *s, int64_t left, int64_t right)
{
    ts_status status = ts_symmetric_signal(s, left, RIGHT);
    if (status == TS_OK) status = ts_symmetric_signal(s, right, LEFT);
    if (status == TS_OK) status = ts_symmetric_wait(s, left, LEFT);
    return status == TS_OK ? ts_symmetric_wait(s, right, RIGHT) : status;
}

static ts_status smooth(ts_symmetric *s)
{
    int64_t size = ts_symmetric_size(s), me = ts_symmetric_index(s);
    int64_t left = (me + size - 1) % size, right = (me + 1) % size;
    for (int step = 0; step < STEPS; step++) {
        ts_status status = meet(s, left, right);
        if (status != TS_OK) return status;
        const double *from = field_of(s, me, step % 2);
        double *to = field_of(s, me, 1 - step % 2);
        for (int i = 0; i < CELLS; i++) {
            double before = i > 0 ? from[i - 1] : field_of(s, left, step % 2)[CELLS - 1];
            double after = i + 1 < CELLS ? from[i + 1] : field_of(s, right, step % 2)[0];
            to[i] = (before + from[i] + after) / 3.0;
        }
    }
    return TS_OK;
}

static ts_status run(ts_rank *me, void *argument)
{
    (void)argument;
    ts_group *world = ts_group_world(me);
    ts_symmetric *s = ts_symmetric_alloc(world, 2 * CELLS * sizeof(double), NULL);
    if (s == NULL) return ts_rank_status(me);
    int64_t index = ts_symmetric_index(s), size = ts_symmetric_size(s);
    for (int i = 0; i < CELLS; i++)
        field_of(s, index, 0)[i] = (double)((index * CELLS + i) % 7);
    ts_status status = smooth(s);
    if (status == TS_OK) status = ts_symmetric_barrier(s, 2);
    double sum = 0, want = 0;
    for (int64_t m = 0; status == TS_OK && m < size; m++)
        for (int i = 0; i < CELLS; i++) {
            sum += field_of(s, m, STEPS % 2)[i];
            want += (double)((m * CELLS + i) % 7);
        }
    if (status == TS_OK && index == 0)
        printf("%d steps on %lld ranks: the sum is %s\n", STEPS, (long long)size,
               fabs(sum - want) < 1e-9 * want ? "kept" : "lost");
    ts_symmetric_release(s);
    return status;
}

int main(int argc, char **argv)
{
    return ts_launch(argc, argv, run, NULL);
}
