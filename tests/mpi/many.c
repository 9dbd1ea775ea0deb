/* SPDX-License-Identifier: Apache-2.0 */
/* many.c - several thread ranks in each MPI process: the first argument says how many.
 *
 * Neighbours are a thread of the same process or another process, so every operation mixes both.
 * Sizes run from one element to more than a message holds; results are known in closed form. The
 * exit code is non-zero if one was wrong. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tessera/comm.h"

typedef struct state {
    ts_rank *me;
    ts_group *group;
    int64_t rank, count, rows; /* rows: elements per rank */
    float *in, *out, *third;   /* count * rows each */
    int bad;
} state;

static ts_array array_of(float *data, int64_t count)
{
    ts_array array = TS_INIT(ts_array);
    array.data = data;
    array.meta.shape = TS_SHAPE(count);
    array.meta.dtype = TS_DTYPE_F32;
    return array;
}

static float value(int64_t rank, int64_t i)
{
    return (float)(rank * 100 + i % 97);
}

static void expect(state *s, const char *what, int64_t i, float got, float want)
{
    if (got == want) return;
    if (s->bad++ == 0)
        printf("many: rank %lld, %lld rows, %s[%lld] is %g, not %g\n", (long long)s->rank,
               (long long)s->rows, what, (long long)i, (double)got, (double)want);
}

/* Every second element of a larger array: nothing is contiguous. */
static ts_status strided_reduce(state *s)
{
    int64_t half = s->count * s->rows / 2, n = s->count;
    ts_array in = array_of(s->in, half), out = array_of(s->out, half);
    in.stride[0] = out.stride[0] = 2;
    ts_status status = ts_group_all_reduce(s->group, &in, &out, TS_REDUCE_SUM, NULL);
    for (int64_t i = 0; i < half && status == TS_OK; i++)
        expect(s, "all_reduce", i, s->out[2 * i],
               (float)(100 * n * (n - 1) / 2) + (float)n * value(0, 2 * i));
    return status;
}

/* Two operations in flight, on two channels. */
static ts_status two_channels(state *s)
{
    int64_t rows = s->rows, total = s->count * rows;
    ts_array mine = array_of(s->in, rows), all = array_of(s->in, total);
    ts_array gathered = array_of(s->out, total), turned = array_of(s->third, total);
    ts_work *first = NULL, *second = NULL;
    ts_comm_options a = TS_INIT(ts_comm_options), b = TS_INIT(ts_comm_options);
    a.channel = 1;
    a.work = &first;
    b.channel = 2;
    b.work = &second;
    (void)ts_group_all_gather(s->group, &mine, &gathered, &a);
    (void)ts_group_all_to_all(s->group, &all, &turned, &b);
    (void)ts_work_wait(second);
    if (ts_work_wait(first) != TS_OK) return ts_rank_status(s->me);
    for (int64_t i = 0; i < total; i++) {
        expect(s, "all_gather", i, s->out[i], value(i / rows, i % rows));
        expect(s, "all_to_all", i, s->third[i], value(i / rows, s->rank * rows + i % rows));
    }
    return ts_rank_status(s->me);
}

/* Around a ring, the receive posted first so that nobody waits for a send. */
static ts_status ring(state *s)
{
    ts_array in = array_of(s->in, s->rows), out = array_of(s->out, s->rows);
    int64_t from = (s->rank + s->count - 1) % s->count;
    ts_work *work = NULL;
    ts_comm_options options = TS_INIT(ts_comm_options);
    options.work = &work;
    (void)ts_group_recv(s->group, &out, from, &options);
    (void)ts_group_send(s->group, &in, (s->rank + 1) % s->count, NULL);
    if (ts_work_wait(work) != TS_OK) return ts_rank_status(s->me);
    for (int64_t i = 0; i < s->rows; i++)
        expect(s, "ring", i, s->out[i], value(from, i));
    return ts_rank_status(s->me);
}

static ts_status scatter_sum(state *s)
{
    ts_array in = array_of(s->in, s->count * s->rows), out = array_of(s->out, s->rows);
    ts_status status = ts_group_reduce_scatter(s->group, &in, &out, TS_REDUCE_MAX, NULL);
    for (int64_t i = 0; i < s->rows && status == TS_OK; i++)
        expect(s, "reduce_scatter", i, s->out[i], value(s->count - 1, s->rank * s->rows + i));
    return status;
}

static ts_status one_size(state *s)
{
    size_t bytes = (size_t)(s->count * s->rows) * sizeof(float);
    s->in = malloc(bytes);
    s->out = malloc(bytes);
    s->third = malloc(bytes);
    if (s->in == NULL || s->out == NULL || s->third == NULL)
        return ts_rank_fail(s->me, TS_ERR_MEMORY, "no memory for %lld rows", (long long)s->rows);
    for (int64_t i = 0; i < s->count * s->rows; i++)
        s->in[i] = value(s->rank, i);
    ts_status status = strided_reduce(s);
    if (status == TS_OK) status = two_channels(s);
    if (status == TS_OK) status = ring(s);
    if (status == TS_OK) status = scatter_sum(s);
    free(s->in);
    free(s->out);
    free(s->third);
    return status;
}

static ts_status work(ts_rank *me, void *argument)
{
    (void)argument;
    state s = {
        .me = me, .group = ts_group_world(me), .rank = ts_rank_index(me), .count = ts_rank_count(me)
    };
    for (s.rows = 1; s.rows < 400000; s.rows = 5 * s.rows + 2)
        if (one_size(&s) != TS_OK) return ts_rank_status(me);
    return s.bad == 0 ? TS_OK : ts_rank_fail(me, TS_ERR_INTERNAL, "%d values are wrong", s.bad);
}

int main(int argc, char **argv)
{
    char text[2048] = "";
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "mpi";
    options.threads_per_process = argc > 1 ? atoll(argv[1]) : 2;
    ts_status status = ts_launch_with(&options, work, NULL, text, sizeof text);
    if (status != TS_OK) printf("many: %s: %s\n", ts_status_name(status), text);
    return status == TS_OK ? 0 : 1;
}
