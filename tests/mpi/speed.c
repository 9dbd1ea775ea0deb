/* SPDX-License-Identifier: Apache-2.0 */
/* speed.c - our collectives beside the raw MPI calls, in one process and alternating, f32.
 *
 * Prints per size and collective: our time, that of the raw call, and their ratio; times are the
 * best of several rounds, each the slowest rank's. It is a measurement, not a test: nothing is
 * asserted. mpirun -n 2 test_mpi_speed_openmpi [largest MiB] */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tessera/comm.h"

enum { KINDS = 5, ROUNDS = 15, RANKS_MAX = 64 };
static const char *const names[KINDS] = { "all_gather", "all_to_all", "reduce_scatter",
                                          "all_reduce", "broadcast" };

typedef struct arrays {
    ts_array in, out, part_in, part_out;
    int64_t count, part;
    int rows[RANKS_MAX];
} arrays;

static ts_array array_of(float *data, int64_t count)
{
    ts_array array = TS_INIT(ts_array);
    array.data = data;
    array.meta.shape = TS_SHAPE(count);
    array.meta.dtype = TS_DTYPE_F32;
    return array;
}

static ts_status ours(ts_group *group, int kind, const arrays *a)
{
    switch (kind) {
    case 0:
        return ts_group_all_gather(group, &a->part_in, &a->out, NULL);
    case 1:
        return ts_group_all_to_all(group, &a->in, &a->out, NULL);
    case 2:
        return ts_group_reduce_scatter(group, &a->in, &a->part_out, TS_REDUCE_SUM, NULL);
    case 3:
        return ts_group_all_reduce(group, &a->in, &a->out, TS_REDUCE_SUM, NULL);
    default:
        return ts_group_broadcast(group, &a->in, 0, NULL);
    }
}

static void raw(int kind, const arrays *a)
{
    int part = (int)a->part, count = (int)a->count;
    switch (kind) {
    case 0:
        MPI_Allgather(a->in.data, part, MPI_FLOAT, a->out.data, part, MPI_FLOAT, MPI_COMM_WORLD);
        return;
    case 1:
        MPI_Alltoall(a->in.data, part, MPI_FLOAT, a->out.data, part, MPI_FLOAT, MPI_COMM_WORLD);
        return;
    case 2:
        MPI_Reduce_scatter(a->in.data, a->out.data, a->rows, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        return;
    case 3:
        MPI_Allreduce(a->in.data, a->out.data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        return;
    default:
        MPI_Bcast(a->in.data, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
    }
}

/* The slowest rank's seconds for one call. */
static double timed(ts_group *group, int kind, const arrays *a, int mine)
{
    double slowest = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime();
    if (mine)
        (void)ours(group, kind, a);
    else
        raw(kind, a);
    double took = MPI_Wtime() - begin;
    MPI_Allreduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

static void measure(ts_group *group, int64_t bytes, int ranks, int rank)
{
    float *in = malloc((size_t)bytes), *out = malloc((size_t)bytes);
    if (in == NULL || out == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
    memset(in, 0, (size_t)bytes);
    memset(out, 0, (size_t)bytes);
    arrays a = { .count = bytes / 4 };
    a.part = a.count / ranks;
    a.count = a.part * ranks;
    a.in = array_of(in, a.count);
    a.out = array_of(out, a.count);
    a.part_in = array_of(in, a.part);
    a.part_out = array_of(out, a.part);
    for (int i = 0; i < ranks; i++)
        a.rows[i] = (int)a.part;
    for (int kind = 0; kind < KINDS; kind++) {
        double best[2] = { 1e9, 1e9 };
        for (int round = 0; round < 2 * ROUNDS; round++) {
            double took = timed(group, kind, &a, round & 1);
            if (took < best[round & 1]) best[round & 1] = took;
        }
        if (rank == 0)
            printf("%8lld KiB %-15s ours %9.1f us  raw %9.1f us  ratio %.2f\n",
                   (long long)(bytes >> 10), names[kind], best[1] * 1e6, best[0] * 1e6,
                   best[1] / best[0]);
    }
    free(in);
    free(out);
}

int main(int argc, char **argv)
{
    int level = 0, rank = 0, ranks = 1, comm_is_ok = 0;
    MPI_Comm everybody = MPI_COMM_WORLD;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
    MPI_Comm_rank(everybody, &rank);
    MPI_Comm_size(everybody, &ranks);
    int64_t largest = (argc > 1 ? atoll(argv[1]) : 64) << 20;
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "mpi";
    options.mpi_comm = &everybody;
    ts_world *world = NULL;
    ts_rank *me = NULL;
    if (ranks <= RANKS_MAX && ts_world_open(&options, &world) == TS_OK)
        comm_is_ok = ts_rank_attach(world, 0, &me) == TS_OK;
    if (comm_is_ok) {
        for (int64_t bytes = 1 << 20; bytes <= largest; bytes *= 8)
            measure(ts_group_world(me), bytes, ranks, rank);
        ts_rank_detach(me);
    } else {
        printf("speed: %s\n", ts_last_error());
    }
    ts_world_close(world);
    MPI_Finalize();
    return comm_is_ok ? 0 : 1;
}
