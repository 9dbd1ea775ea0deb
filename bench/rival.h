/* SPDX-License-Identifier: Apache-2.0 */
/* rival.h - the raw MPI calls as a rival: a small module of its own per MPI, loaded by the bench.
 *
 * The program itself does not link MPI. The module that fits is the one beside the mpi engine's
 * module, "tessera_rival_<mpi>.so" beside "tessera_mpi_<mpi>.so"; it uses the MPI that the engine
 * has initialised. */
#ifndef BENCH_RIVAL_H
#define BENCH_RIVAL_H

#include "bench.h"
#include "bench_moves.h"

typedef struct bench_rival {
    size_t struct_size;
    /* Does what the named MPI call does on this rank's buffers, on MPI_COMM_WORLD; 0: done. */
    int (*call)(const char *raw, bench_rank *b);
    /* A redistribution: MPI_Alltoallw (derived types), MPI_Alltoallv (packing before and after),
     * MPI_Allreduce, MPI_Reduce_scatter. open makes what a program would keep: communicator and
     * types. */
    int (*move_open)(bench_moves *moves);
    int (*move)(const char *raw, bench_moves *moves);
    void (*move_close)(bench_moves *moves);
} bench_rival;

/* The one exported function of the module is `bench_rival_module`. */
typedef const bench_rival *(*bench_rival_fn)(void);

const bench_rival *bench_rival_load(void); /* NULL: there is none */

#endif
