/* SPDX-License-Identifier: Apache-2.0 */
/* embed.c - somebody else's MPI program at thread level FUNNELED that calls tessera on a
 * sub-communicator.
 *
 * It keeps its own messages in flight around ours, opens several worlds one after another, finds
 * its error handler, signal handlers and locale as they were, and finalises MPI itself. Each
 * process prints one line for what failed; the exit code is non-zero if anything did. */
#include <locale.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tessera/comm.h"
#include "tessera/plan.h"

static int failures;

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("embed: line %d: %s\n", __LINE__, #condition);                                  \
            failures++;                                                                            \
        }                                                                                          \
    } while (0)

enum { COUNT = 5000 };

static ts_array array_of(void *data, int64_t count)
{
    ts_array array = TS_INIT(ts_array);
    array.data = data;
    array.meta.shape = TS_SHAPE(count);
    array.meta.dtype = TS_DTYPE_F32;
    return array;
}

/* Sum of (rank in half) over half, beside a message of the program's own. */
static void one_step(ts_rank *me, MPI_Comm half, int step)
{
    static float in[COUNT], out[COUNT];
    int rank = 0, size = 1, token = step, got = -1;
    MPI_Request request[2];
    MPI_Comm_rank(half, &rank);
    MPI_Comm_size(half, &size);
    MPI_Irecv(&got, 1, MPI_INT, (rank + size - 1) % size, 7, half, &request[0]);
    for (int i = 0; i < COUNT; i++)
        in[i] = (float)(rank + step + i % 13);
    ts_array from = array_of(in, COUNT), to = array_of(out, COUNT);
    CHECK(ts_group_all_reduce(ts_group_world(me), &from, &to, TS_REDUCE_SUM, NULL) == TS_OK);
    MPI_Isend(&token, 1, MPI_INT, (rank + 1) % size, 7, half, &request[1]);
    MPI_Wait(&request[0], MPI_STATUS_IGNORE);
    MPI_Wait(&request[1], MPI_STATUS_IGNORE);
    CHECK(got == step);
    for (int i = 0; i < COUNT; i++)
        if (out[i] != (float)(size * (size - 1) / 2 + size * (step + i % 13))) {
            CHECK(!"the sum is right");
            break;
        }
}

static void one_world(MPI_Comm half, int progress)
{
    int rank = 0, size = 1;
    MPI_Comm_rank(half, &rank);
    MPI_Comm_size(half, &size);
    ts_world *world = NULL;
    ts_rank *me = NULL;
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "mpi";
    options.mpi_comm = &half;
    options.progress = progress;
    if (ts_world_open(&options, &world) != TS_OK || ts_rank_attach(world, 0, &me) != TS_OK) {
        printf("embed: %s\n", ts_last_error());
        failures++;
        ts_world_close(world);
        return;
    }
    CHECK(ts_rank_count(me) == size);
    CHECK(ts_rank_index(me) == rank);
    for (int step = 0; step < 20; step++)
        one_step(me, half, step);
    if (ts_rank_status(me) != TS_OK) printf("embed: %s\n", ts_rank_error(me)->text);
    ts_rank_detach(me);
    ts_world_close(world);
}

/* The topology of a world is what the first process reads, or cannot read, whatever others have. */
static void one_topology(MPI_Comm half, const char *first, const char *others)
{
    int rank = 0;
    MPI_Comm_rank(half, &rank);
    ts_world *world = NULL;
    ts_topology topology = TS_INIT(ts_topology);
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "mpi";
    options.mpi_comm = &half;
    options.topology = rank == 0 ? first : others;
    ts_status status = ts_world_open(&options, &world);
    if (strcmp(first, "torus") == 0) {
        CHECK(status == TS_OK && ts_topology_of(world, &topology) == TS_OK);
        CHECK(strcmp(topology.name, first) == 0);
    } else {
        CHECK(status == TS_ERR_IO && world == NULL);
        CHECK(strstr(ts_last_error(), rank == 0 ? "no/such.json" : "the first process") != NULL);
    }
    ts_world_close(world);
}

static void on_signal(int number)
{
    (void)number;
}

int main(int argc, char **argv)
{
    int level = 0, rank = 0;
    MPI_Comm half;
    MPI_Errhandler before, after;
    (void)setlocale(LC_ALL, "C");
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
    (void)signal(SIGUSR1, on_signal);
    (void)signal(SIGSEGV, on_signal);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_split(MPI_COMM_WORLD, rank & 1, rank, &half);
    MPI_Comm_get_errhandler(half, &before);
    for (int turn = 0; turn < 3; turn++)
        one_world(half, turn & 1);
    one_topology(half, "torus", "no/such.json");
    one_topology(half, "no/such.json", "torus");
    MPI_Comm_get_errhandler(half, &after);
    CHECK(before == after);
    CHECK(signal(SIGUSR1, SIG_DFL) == on_signal);
    CHECK(signal(SIGSEGV, SIG_DFL) == on_signal);
    CHECK(strcmp(setlocale(LC_ALL, NULL), "C") == 0);
    int finalized = 0, all = 0;
    MPI_Finalized(&finalized);
    CHECK(!finalized);
    MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Errhandler_free(&before);
    MPI_Errhandler_free(&after);
    MPI_Comm_free(&half);
    MPI_Finalize();
    if (rank == 0) printf("embed: %s\n", all == 0 ? "ok" : "FAILED");
    return all != 0;
}
